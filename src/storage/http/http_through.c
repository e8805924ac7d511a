/*
 * A cache keeps what it has under X-Sluice-Version and the slice, whatever the store pins versions
 * by: an ETag, a generation in the query, a commit in the path. The hash covers the object's own
 * URL, of which a link that a redirect led to says nothing, and all that the store said of the
 * version; or, where that is a digest of its bytes, this alone, so that files of one blob share its
 * ranges. Who knows it has been let in by the origin.
 */
#include "http_through.h"

#include <string.h>
#include <strings.h>

#include "hash.h"
#include "http_base.h"
#include "source.h"

static bool begins(const char *header, const char *with)
{
    return strncasecmp(header, with, strlen(with)) == 0;
}

/* A signature is of one request and ends soon; what is sent in words is not. */
static bool is_secret(const char *header)
{
    return begins(header, "Authorization: Bearer") || begins(header, "Authorization: Basic") ||
           begins(header, "Cookie:");
}

bool sl_http_through_may_see(const struct sl_range_request *request, const char *via)
{
    bool hidden = begins(via, "https:"), open = begins(request->url, "http:");
    if (request->secret && !hidden && !open)
        return false;
    for (unsigned i = 0; i < request->header_count; i++) {
        if (strcasestr(request->headers[i], "-customer-key"))
            return false;
        if (is_secret(request->headers[i]) && !hidden && !open)
            return false;
    }
    return true;
}

bool sl_http_through_may_see_source(struct sl_source *source, const char *via)
{
    const struct sl_http_hooks *hooks = source->store->kind->hooks;
    struct sl_range_request request = {0};
    struct sl_err why = SL_ERR_INIT;
    bool may = hooks->prepare(source, &request, &why) == 0 &&
               (request.waits || sl_http_through_may_see(&request, via));
    sl_range_request_release(&request);
    return may;
}

/* A link differs from one machine to another; a query may name the object. */
static size_t name_bytes(const struct sl_source *source, const char *url)
{
    return source->store->kind->traits.urls ? strlen(url) : strcspn(url, "?");
}

int sl_http_through_name(const struct sl_source *source, struct sl_range_request *request,
                         struct sl_err *err)
{
    const struct sl_version *version = &source->version;
    const char *url = request->object ? sl_http_object_url(request->object) : request->url;
    const char *const words[] = {source->uri, version->etag, version->version_id, version->pin,
                                 version->last_modified};
    uint8_t digest[32];
    char text[65], name[SL_SOURCE_NAME_BYTES];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    if (source->blob)
        sl_sha256_update(sha, source->blob, strlen(source->blob));
    else
        sl_sha256_update(sha, url, name_bytes(source, url));
    for (size_t i = 0; i < SL_COUNT(words) && !source->blob; i++) {
        sl_sha256_update(sha, "", 1);
        sl_sha256_update(sha, words[i], strlen(words[i]));
    }
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), text);
    if (sl_source_common_name(source, name) &&
        sl_range_add_header(request, err, SL_HTTP_THROUGH_NAME ": %s", name) < 0)
        return -1;
    return sl_range_add_header(request, err, SL_HTTP_THROUGH_KEY ": %s", text) < 0
               ? -1
               : sl_range_add_header(request, err, "X-Forwarded-Proto: %s",
                                     begins(request->url, "https:") ? "https" : "http");
}
