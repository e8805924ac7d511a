/*
 * List Blobs, page by page. A page is read whole and is a stranger's: names must lie below the
 * prefix, and lengths must be numbers. Folders of hierarchical accounts are listed, too, and left
 * out.
 *
 * https://learn.microsoft.com/rest/api/storageservices/list-blobs
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "az_store.h"
#include "thread.h"
#include "url.h"
#include "xml.h"

enum { MARKER_BYTES_MAX = 8 * 1024, ETAG_BYTES_MAX = 256, MD5_TEXT_BYTES_MAX = 64 };

struct page {
    const char *what, *prefix;
    int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err);
    void *arg;
    bool is_listing;
    char **marker;
    uint64_t entries;
    /* the Blob in hand */
    bool has_bytes, folder, encoded, said;
    uint64_t bytes;
    char name[3 * SL_AZ_NAME_BYTES_MAX + 1], etag[ETAG_BYTES_MAX], md5[MD5_TEXT_BYTES_MAX];
};

static int hostile(const struct page *page, const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "listing", "%s: %s", page->what, why);
}

static int take_name(struct page *page, const char *value, struct sl_err *err)
{
    sl_autofree char *decoded =
        page->encoded ? sl_url_decode(value, strlen(value), NULL) : sl_strdup(value, err);
    if (!decoded || !*decoded || strlen(decoded) > SL_AZ_NAME_BYTES_MAX)
        return hostile(page, "a blob has no name, one of more than 1024 bytes or a broken escape",
                       err);
    snprintf(page->name, sizeof(page->name), "%s", decoded);
    return 0;
}

/* Listings leave the quotes out, answers to reads have them. */
static void take_etag(struct page *page, const char *value)
{
    bool quoted = *value == '"' || strncmp(value, "W/", 2) == 0;
    page->etag[0] = 0;
    if (*value && strlen(value) + 2 < ETAG_BYTES_MAX)
        snprintf(page->etag, sizeof(page->etag), "%s%s%s", quoted ? "" : "\"", value,
                 quoted ? "" : "\"");
}

static int end_blob(struct page *page, struct sl_err *err)
{
    size_t prefix = strlen(page->prefix), bytes = strlen(page->name);
    struct sl_checksums sums;
    struct sl_entry entry = {.name = page->name + prefix, .bytes = page->bytes, .etag = page->etag};
    bool folder = page->folder || (bytes && page->name[bytes - 1] == '/' && !page->bytes);
    if (!bytes || (!page->has_bytes && !folder))
        return hostile(page, "a blob has no name or no length", err);
    if (folder)
        return 0;
    if (strncmp(page->name, page->prefix, prefix) != 0)
        return hostile(page, "a name does not lie below the prefix", err);
    if (!*entry.name)
        return hostile(page, "the blob that is named as the prefix itself is not empty", err);
    page->said |= !sl_az_take_md5(page->md5, page->said ? NULL : page->name, &sums);
    entry.sums = sums.count ? &sums : NULL;
    page->entries++;
    return page->each(&entry, page->arg, err);
}

static int begin_blob(struct page *page, struct sl_err *err)
{
    int result = end_blob(page, err);
    page->has_bytes = page->folder = page->encoded = false;
    page->bytes = 0;
    page->name[0] = page->etag[0] = page->md5[0] = 0;
    return result;
}

static int on_blob(struct page *page, const char *field, const char *value, struct sl_err *err)
{
    if (strcmp(field, "/Name@Encoded") == 0)
        page->encoded = strcmp(value, "true") == 0;
    else if (strcmp(field, "/Name") == 0)
        return take_name(page, value, err);
    else if (strcmp(field, "/Properties/Etag") == 0)
        take_etag(page, value);
    else if (strcmp(field, "/Properties/Content-MD5") == 0)
        snprintf(page->md5, sizeof(page->md5), "%s", value);
    else if (strcmp(field, "/Properties/ResourceType") == 0)
        page->folder |= strcmp(value, "directory") == 0;
    else if (strcasecmp(field, "/Metadata/hdi_isfolder") == 0) /* tools write it in any case */
        page->folder |= strcasecmp(value, "true") == 0;
    else if (strcmp(field, "/Properties/Content-Length") == 0) {
        if (!sl_take_digits(&value, &page->bytes) || *value || page->bytes > SL_OBJECT_BYTES_MAX)
            return hostile(page, "the length of a blob is not a number", err);
        page->has_bytes = true;
    } else if (!*field)
        return begin_blob(page, err);
    return 0;
}

static int on_element(const char *path, const char *value, void *arg, struct sl_err *err)
{
    static const char blob[] = "EnumerationResults/Blobs/Blob";
    struct page *page = arg;
    if (strncmp(path, blob, sizeof(blob) - 1) == 0)
        return on_blob(page, path + sizeof(blob) - 1, value, err);
    if (strcmp(path, "EnumerationResults") == 0)
        page->is_listing = true;
    if (strcmp(path, "EnumerationResults/NextMarker") != 0 || !*value)
        return 0;
    if (strlen(value) > MARKER_BYTES_MAX || *page->marker)
        return hostile(page, "the marker of its next page is too long, or double", err);
    *page->marker = sl_strdup(value, err);
    return *page->marker ? 0 : -1;
}

int sl_az_page_parse(const char *text, size_t bytes, const char *what, const char *prefix,
                     int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                     void *arg, char **marker, uint64_t *entries, struct sl_err *err)
{
    *marker = NULL;
    sl_autofree struct page *page = sl_alloc(sizeof(*page), err);
    if (!page)
        return -1;
    page->what = what;
    page->prefix = prefix;
    page->each = each;
    page->arg = arg;
    page->marker = marker;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) /* a byte order mark */
        text += 3, bytes -= 3;
    int result = sl_xml_parse(text, bytes, what, on_element, page, err);
    if (result == 0 && !page->is_listing)
        result =
            hostile(page, "the answer is not a list of blobs: is this Azure's blob endpoint?", err);
    *entries = page->entries;
    if (result < 0) {
        free(*marker);
        *marker = NULL;
    }
    return result;
}

/* ---- all pages ------------------------------------------------------------------------------- */

struct listing {
    struct sl_az *az;
    const char *marker; /* of the page; NULL: the first */
    char *begin;        /* prefix and more, encoded */
    unsigned let_in;
    const struct sl_listing *wanted;
    char what[400];
};

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct listing *listing = arg;
    sl_autofree char *marker = sl_url_encode(listing->marker ? listing->marker : "", false, err);
    sl_autofree char *query =
        marker ? sl_asprintf(err,
                             "restype=container&comp=list&prefix=%s&maxresults=5000&"
                             "include=metadata%s%s",
                             listing->begin, *marker ? "&marker=" : "", marker)
               : NULL;
    return query ? sl_az_let_in(listing->az, NULL, query, request, &listing->let_in, err) : -1;
}

static int refuse(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    struct listing *listing = arg;
    struct sl_cloud_headers headers;
    const struct sl_cloud_reply reply = sl_cloud_reply_of(answer, SL_AZ_CODE_HEADER, &headers);
    return sl_az_refused(listing->az, listing->what, SL_AZ_LIST, &reply, err);
}

static bool recover(void *arg, const struct sl_err *why)
{
    struct listing *listing = arg;
    return sl_az_recover(listing->az, listing->let_in, why);
}

static int list_page(void *arg, const char *marker, char **next, uint64_t *entries,
                     struct sl_err *err)
{
    struct listing *listing = arg;
    const struct sl_http_call call = {.what = listing->what,
                                      .method = "GET",
                                      .answer_limit = SL_XML_BYTES_MAX,
                                      .arg = listing,
                                      .prepare = prepare,
                                      .refuse = refuse,
                                      .recover = recover};
    struct sl_answer answer = {0};
    listing->marker = marker;
    if (sl_http_ask(listing->az->store, &call, &answer, err) < 0)
        return -1;
    int result = sl_az_page_parse(sl_buf_string(&answer.body), answer.body.used, listing->what,
                                  listing->az->place.prefix, listing->wanted->each,
                                  listing->wanted->arg, next, entries, err);
    sl_answer_release(&answer);
    return result;
}

int sl_az_list(struct sl_store *store, const struct sl_listing *wanted, struct sl_err *err)
{
    struct listing listing = {.az = store->impl, .wanted = wanted};
    const struct sl_http_walk walk = {listing.what, list_page, &listing};
    uint64_t total = 0;
    snprintf(listing.what, sizeof(listing.what), "cannot list '%.300s%.70s'", store->uri,
             wanted->begin);
    sl_autofree char *whole = sl_asprintf(err, "%s%s", listing.az->place.prefix, wanted->begin);
    sl_autofree char *encoded = whole ? sl_url_encode(whole, false, err) : NULL;
    listing.begin = encoded;
    if (!encoded || sl_http_walk(store, &walk, &total, err) < 0)
        return -1;
    if (total)
        return 0;
    return sl_fail(err, SL_E_NOT_FOUND,
                   "there is no blob below '%s%.300s': check the prefix, it is case-sensitive",
                   store->uri, wanted->begin);
}
