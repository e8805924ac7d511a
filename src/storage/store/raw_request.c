/*
 * URL and headers come from the backend's own hook, so that signatures and credentials are those of
 * a load; the rest is the least that a server takes.
 */
#include "raw_request.h"

#include <inttypes.h>

#include "range_lane.h"
#include "url.h"

static int write_request(const struct sl_range_request *request, const struct sl_url *url,
                         uint64_t begin, uint64_t end, struct sl_buf *text, struct sl_err *err)
{
    char host[SL_URL_AUTHORITY_MAX];
    if (sl_buf_printf(text, err,
                      "GET %s HTTP/1.1\r\nHost: %s\r\nAccept-Encoding: identity\r\n"
                      "Range: bytes=%" PRIu64 "-%" PRIu64 "\r\n",
                      url->target, sl_url_authority(url, host), begin, end - 1) < 0)
        return -1;
    for (unsigned i = 0; i < request->header_count; i++)
        if (sl_buf_printf(text, err, "%s\r\n", request->headers[i]) < 0)
            return -1;
    return sl_buf_text(text, "\r\n", err);
}

int sl_source_raw_request(struct sl_source *source, uint64_t begin, uint64_t end, char **url,
                          struct sl_buf *text, struct sl_err *err)
{
    const struct sl_backend *backend = source->store->backend;
    struct sl_range_request request = {0};
    sl_autourl parsed = {0};
    if (!backend->prepare)
        return sl_fail(err, SL_E_USAGE, "'%s' is not read by HTTP", source->uri);
    int done = backend->prepare(source, &request, err);
    if (done == 0)
        done = sl_url_parse(request.url, &parsed, err);
    if (done == 0)
        done = write_request(&request, &parsed, begin, end, text, err);
    if (done == 0)
        *url = sl_steal(&request.url);
    sl_range_request_release(&request);
    return done;
}
