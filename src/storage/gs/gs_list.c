/*
 * Listing by the JSON API, page by page, with what it tells of each object: generation and CRC32C.
 *
 * A page is read whole and is a stranger's: names must lie below the prefix, sizes and generations
 * must be numbers.
 * https://cloud.google.com/storage/docs/json_api/v1/objects/list
 */
#include <stdio.h>
#include <string.h>

#include "gs_store.h"
#include "json.h"
#include "thread.h"
#include "url.h"

enum { TOKEN_BYTES_MAX = 8 * 1024 };

static int hostile(const char *what, const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "listing", "%s: %s", what, why);
}

/* A number that is written as a text. */
static bool take_number(const json_t *item, const char *name, uint64_t *value)
{
    const char *text = sl_json_get_string(item, name);
    return text && sl_take_digits(&text, value) && !*text;
}

struct page {
    const char *what, *prefix;
    int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err);
    void *arg;
    uint64_t entries;
};

static int take_item(struct page *page, const json_t *item, struct sl_err *err)
{
    const char *name = sl_json_get_string(item, "name");
    const char *crc = sl_json_get_string(item, "crc32c");
    const char *generation = sl_json_get_string(item, "generation");
    char pin[SL_PIN_TEXT_MAX];
    struct sl_checksums sums = {.count = 1, .items[0].kind = SL_HASH_CRC32C};
    struct sl_entry entry = {.etag = ""};
    size_t prefix = strlen(page->prefix);
    if (!name || !*name || strlen(name) > SL_GS_KEY_BYTES_MAX)
        return hostile(page->what, "an object has no name, or one of more than 1024 bytes", err);
    if (!take_number(item, "size", &entry.bytes) || entry.bytes > SL_OBJECT_BYTES_MAX)
        return hostile(page->what, "the size of an object is not a number", err);
    if (strncmp(name, page->prefix, prefix) != 0)
        return hostile(page->what, "a name does not lie below the prefix", err);
    if (name[strlen(name) - 1] == '/' && !entry.bytes)
        return 0; /* a folder's mark */
    if (!name[prefix])
        return hostile(page->what, "the object that is named as the prefix itself is not empty",
                       err);
    entry.name = name + prefix;
    if (generation && !sl_gs_pin(pin, generation))
        return hostile(page->what, "the generation of an object is not a number", err);
    entry.pin = generation ? pin : NULL;
    if (crc && sl_cloud_base64(crc, sums.items[0].value, 4))
        entry.sums = &sums;
    page->entries++;
    return page->each(&entry, page->arg, err);
}

static int take_page(struct page *page, const json_t *json, char **token, struct sl_err *err)
{
    const json_t *items = json_object_get(json, "items");
    const char *next = sl_json_get_string(json, "nextPageToken");
    if (!json_is_object(json) || (items && !json_is_array(items)))
        return hostile(page->what, "the answer is not a list of objects: is this Google's store?",
                       err);
    for (size_t i = 0; i < json_array_size(items); i++)
        if (take_item(page, json_array_get(items, i), err) < 0)
            return -1;
    if (!next || !*next)
        return 0;
    if (strlen(next) > TOKEN_BYTES_MAX)
        return hostile(page->what, "the token of its next page is too long", err);
    *token = sl_strdup(next, err);
    return *token ? 0 : -1;
}

int sl_gs_page_parse(const char *text, size_t bytes, const char *what, const char *prefix,
                     int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                     void *arg, char **token, uint64_t *entries, struct sl_err *err)
{
    struct page page = {.what = what, .prefix = prefix, .each = each, .arg = arg};
    *token = NULL;
    json_t *json = sl_json_parse(text, bytes, "the listing", err);
    if (!json)
        return sl_wrap(err, "%s", what);
    int result = take_page(&page, json, token, err);
    json_decref(json);
    *entries = page.entries;
    return result;
}

/* ---- all pages ------------------------------------------------------------------------------- */

struct listing {
    struct sl_gs *gs;
    const char *token; /* of the page; NULL: the first */
    char *begin;       /* prefix and more, encoded */
    unsigned let_in;   /* generation of the token of the request */
    const struct sl_listing *wanted;
    char what[400];
};

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct listing *listing = arg;
    const struct sl_gs *gs = listing->gs;
    sl_autofree char *token = sl_url_encode(listing->token ? listing->token : "", false, err);
    if (!token)
        return -1;
    request->url = sl_asprintf(
        err,
        "%s/storage/v1/b/%s/o?prefix=%s&maxResults=1000&fields=items(name,size,generation,crc32c),"
        "nextPageToken%s%s%s%s",
        gs->origin, gs->bucket, listing->begin, *token ? "&pageToken=" : "", token,
        gs->user_project ? "&userProject=" : "", gs->user_project ? gs->user_project : "");
    return request->url ? sl_gs_let_in(listing->gs, request, &listing->let_in, err) : -1;
}

static int refuse(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    struct listing *listing = arg;
    struct sl_cloud_headers headers;
    const struct sl_cloud_reply reply = sl_cloud_reply_of(answer, NULL, &headers);
    return sl_gs_refused(listing->gs, listing->what, SL_GS_LIST, &reply, err);
}

static bool recover(void *arg, const struct sl_err *why)
{
    struct listing *listing = arg;
    return why->http_status == 401 && sl_gs_creds_renew(listing->gs->creds, listing->let_in);
}

static int list_page(void *arg, const char *token, char **next, uint64_t *entries,
                     struct sl_err *err)
{
    struct listing *listing = arg;
    const struct sl_http_call call = {.what = listing->what,
                                      .method = "GET",
                                      .answer_limit = SL_GS_PAGE_BYTES_MAX,
                                      .arg = listing,
                                      .prepare = prepare,
                                      .refuse = refuse,
                                      .recover = recover};
    struct sl_answer answer = {0};
    listing->token = token;
    if (sl_http_ask(listing->gs->store, &call, &answer, err) < 0)
        return -1;
    int result = sl_gs_page_parse(sl_buf_string(&answer.body), answer.body.used, listing->what,
                                  listing->gs->prefix, listing->wanted->each, listing->wanted->arg,
                                  next, entries, err);
    sl_answer_release(&answer);
    return result;
}

int sl_gs_list(struct sl_store *store, const struct sl_listing *wanted, struct sl_err *err)
{
    struct listing listing = {.gs = store->impl, .wanted = wanted};
    const struct sl_http_walk walk = {listing.what, list_page, &listing};
    uint64_t total = 0;
    snprintf(listing.what, sizeof(listing.what), "cannot list '%.300s%.70s'", store->uri,
             wanted->begin);
    sl_autofree char *whole = sl_asprintf(err, "%s%s", listing.gs->prefix, wanted->begin);
    sl_autofree char *encoded = whole ? sl_url_encode(whole, false, err) : NULL;
    listing.begin = encoded;
    if (!encoded || sl_http_walk(store, &walk, &total, err) < 0)
        return -1;
    if (total)
        return 0;
    return sl_fail(err, SL_E_NOT_FOUND,
                   "there is no object below '%s%.300s': check the prefix, it is case-sensitive",
                   store->uri, wanted->begin);
}
