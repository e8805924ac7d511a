/*
 * ListObjectsV2, page by page.
 *
 * A page is read whole (it holds at most 1000 keys of at most 1024 bytes) and walked twice: whether
 * keys are percent-encoded and whether there is a next page may stand behind the keys. Everything
 * in it is a stranger's: keys must lie below the prefix, and sizes must be numbers.
 *
 * A store that knows only the first version of the listing passes over list-type and answers
 * without a token: it is asked on after the last key, as that version has it.
 */
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "http_call.h"
#include "s3_store.h"
#include "xml.h"

enum {
    TOKEN_BYTES_MAX = 8 * 1024,
    ETAG_BYTES_MAX = 256,
};

/* ---- one page ------------------------------------------------------------------------------- */

struct page {
    const char *uri, *prefix;
    size_t prefix_bytes;
    int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err);
    void *arg;
    bool is_listing, encoded, truncated;
    char *token;
    uint64_t entries;
    /* the Contents element in hand */
    bool has_key, has_bytes;
    uint64_t bytes;
    char key[SL_S3_KEY_BYTES_MAX + 1], etag[ETAG_BYTES_MAX];
};

static int hostile(const struct page *page, struct sl_err *err, const char *what)
{
    return sl_fail_code(err, SL_E_FORMAT, "listing", "cannot list '%s': %s", page->uri, what);
}

static int on_frame(const char *path, const char *value, void *arg, struct sl_err *err)
{
    struct page *page = arg;
    if (strcmp(path, "ListBucketResult") == 0)
        page->is_listing = true;
    else if (strcmp(path, "ListBucketResult/EncodingType") == 0)
        page->encoded = strcmp(value, "url") == 0;
    else if (strcmp(path, "ListBucketResult/IsTruncated") == 0)
        page->truncated = strcmp(value, "true") == 0;
    else if (strcmp(path, "ListBucketResult/NextContinuationToken") == 0) {
        if (!*value || strlen(value) > TOKEN_BYTES_MAX)
            return *value ? hostile(page, err, "its continuation token is too long") : 0;
        free(page->token);
        page->token = sl_strdup(value, err);
        return page->token ? 0 : -1;
    }
    return 0;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Into page->key: %XX and '+' undone if the page is encoded. */
static int take_key(struct page *page, const char *value, struct sl_err *err)
{
    size_t used = 0;
    for (; *value; value++) {
        char c = *value;
        if (page->encoded && c == '+') {
            c = ' ';
        } else if (page->encoded && c == '%') {
            int high = hex(value[1]), low = high < 0 ? -1 : hex(value[2]);
            if (low < 0 || (high | low) == 0)
                return hostile(page, err, "a key holds a broken escape or a NUL");
            c = (char)(high * 16 + low);
            value += 2;
        }
        if (used == SL_S3_KEY_BYTES_MAX)
            return hostile(page, err, "a key is longer than the 1024 bytes that S3 allows");
        page->key[used++] = c;
    }
    page->key[used] = 0;
    page->has_key = used > 0;
    return 0;
}

static int take_size(struct page *page, const char *value, struct sl_err *err)
{
    if (!sl_take_digits(&value, &page->bytes) || *value)
        return hostile(page, err, "the size of an object is not a number");
    if (page->bytes > SL_OBJECT_BYTES_MAX)
        return hostile(page, err,
                       "an object has more than 1 EiB by the listing, which is not possible");
    page->has_bytes = true;
    return 0;
}

static int end_entry(struct page *page, struct sl_err *err)
{
    if (!page->has_key || !page->has_bytes)
        return hostile(page, err, "an entry has no key or no size");
    if (strncmp(page->key, page->prefix, page->prefix_bytes) != 0)
        return hostile(page, err, "a key does not lie below the prefix");
    const char *name = page->key + page->prefix_bytes;
    size_t bytes = strlen(page->key);
    bool folder = page->key[bytes - 1] == '/';
    struct sl_entry entry = {.name = name, .bytes = page->bytes, .etag = page->etag};
    if (folder && !page->bytes)
        return 0;
    if (!*name)
        return hostile(page, err, "the object that is named as the prefix itself is not empty");
    page->entries++;
    return page->each(&entry, page->arg, err);
}

static int on_content(const char *path, const char *value, void *arg, struct sl_err *err)
{
    static const char contents[] = "ListBucketResult/Contents";
    struct page *page = arg;
    if (strncmp(path, contents, sizeof(contents) - 1) != 0)
        return 0;
    const char *field = path + sizeof(contents) - 1;
    if (strcmp(field, "/Key") == 0)
        return take_key(page, value, err);
    if (strcmp(field, "/Size") == 0)
        return take_size(page, value, err);
    if (strcmp(field, "/ETag") == 0)
        snprintf(page->etag, sizeof(page->etag), "%s", strlen(value) < ETAG_BYTES_MAX ? value : "");
    if (*field)
        return 0;
    int result = end_entry(page, err);
    page->has_key = page->has_bytes = false;
    page->etag[0] = 0;
    return result;
}

int sl_s3_page_parse(const char *text, size_t bytes, const char *uri, const char *prefix,
                     int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                     void *arg, struct sl_s3_next *next, uint64_t *entries, struct sl_err *err)
{
    char what[400];
    struct page page = {
        .uri = uri, .prefix = prefix, .prefix_bytes = strlen(prefix), .each = each, .arg = arg};
    *next = (struct sl_s3_next){0};
    snprintf(what, sizeof(what), "cannot list '%.380s'", uri);
    int result = sl_xml_parse(text, bytes, what, on_frame, &page, err);
    if (result == 0 && !page.is_listing)
        result =
            hostile(&page, err, "the answer is not a ListBucketResult: is this an S3 endpoint?");
    if (result == 0)
        result = sl_xml_parse(text, bytes, what, on_content, &page, err);
    if (result == 0 && page.truncated && !page.token && !*page.key)
        result = hostile(&page, err, "the page says that there is more, but not where");
    if (result == 0 && page.truncated) {
        next->is_key = !page.token;
        next->text = page.token ? sl_steal(&page.token) : sl_strdup(page.key, err);
        result = next->text ? 0 : -1;
    }
    *entries = page.entries;
    free(page.token);
    return result;
}

/* ---- all pages ------------------------------------------------------------------------------ */

struct listing {
    struct sl_s3 *s3;
    bool by_key; /* the next page begins after a key */
    const struct sl_listing *wanted;
    char what[400];
};

/* at: a token or a key; NULL: the first page. */
static char *page_query(const struct listing *listing, const char *at, struct sl_err *err)
{
    sl_autofree char *whole = sl_asprintf(err, "%s%s", listing->s3->prefix, listing->wanted->begin);
    sl_autofree char *prefix = whole ? sl_url_encode(whole, false, err) : NULL;
    sl_autofree char *from = prefix ? sl_url_encode(at ? at : "", false, err) : NULL;
    if (!from)
        return NULL;
    if (at && listing->by_key)
        return sl_asprintf(err, "encoding-type=url&marker=%s&max-keys=1000&prefix=%s", from,
                           prefix);
    return sl_asprintf(err, "%s%s%sencoding-type=url&list-type=2&max-keys=1000&prefix=%s",
                       at ? "continuation-token=" : "", from, at ? "&" : "", prefix);
}

/* The first object is fetched on the connection that the last page came on. */
static int get_page(const struct listing *listing, const char *query, struct sl_answer *answer,
                    struct sl_err *err)
{
    const struct sl_s3_call call = {.what = listing->what,
                                    .verb = SL_S3_LIST,
                                    .method = "GET",
                                    .query = query,
                                    .answer_limit = SL_XML_BYTES_MAX};
    struct sl_channel *channel = sl_store_take_channel(listing->s3->store, err);
    if (!channel)
        return -1;
    int result =
        sl_s3_call(listing->s3, sl_http_channel_exchange(channel), &call, answer, NULL, err);
    sl_store_give_channel(listing->s3->store, channel);
    return result;
}

static int list_page(void *arg, const char *at, char **next, uint64_t *entries, struct sl_err *err)
{
    struct listing *listing = arg;
    const struct sl_s3 *s3 = listing->s3;
    struct sl_s3_next after;
    struct sl_answer answer = {0};
    sl_autofree char *query = page_query(listing, at, err);
    if (!query || get_page(listing, query, &answer, err) < 0)
        return -1;
    int result =
        sl_s3_page_parse(sl_buf_string(&answer.body), answer.body.used, s3->store->uri, s3->prefix,
                         listing->wanted->each, listing->wanted->arg, &after, entries, err);
    sl_answer_release(&answer);
    *next = after.text;
    listing->by_key = after.is_key;
    return result;
}

int sl_s3_list(struct sl_store *store, const struct sl_listing *wanted, struct sl_err *err)
{
    struct listing listing = {.s3 = store->impl, .wanted = wanted};
    const struct sl_http_walk walk = {listing.what, list_page, &listing};
    uint64_t total = 0;
    snprintf(listing.what, sizeof(listing.what), "cannot list '%.300s%.70s'", store->uri,
             wanted->begin);
    if (sl_http_walk(store, &walk, &total, err) < 0)
        return -1;
    if (!total)
        return sl_fail(
            err, SL_E_NOT_FOUND,
            "there is no object below '%s%.300s': check the prefix, it is case-sensitive",
            store->uri, wanted->begin);
    return 0;
}
