/*
 * URL and headers come from the kind's own hook, so that signatures and credentials are those of
 * a load; the rest is the least that a server takes.
 */
#include "raw_request.h"

#include <inttypes.h>
#include <limits.h>

#include "http_base.h"
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

bool sl_store_asks_by_http(const struct sl_store *store)
{
    return store->transport == &sl_http_transport;
}

/* Somebody else asks, or the origin takes nothing before a time. */
static int wait_for(const struct sl_range_request *request, struct sl_cancel *cancel,
                    struct sl_err *err)
{
    struct pollfd fds[2] = {{request->wait_fd, POLLIN, 0}, {sl_cancel_fd(cancel), POLLIN, 0}};
    uint64_t now = sl_now_ns(), until = request->wait_until_ns;
    int ms = -1;
    if (until)
        ms = until > now ? (int)SL_MIN((until - now) / SL_NS_PER_MS + 1, (uint64_t)INT_MAX) : 0;
    poll(fds, SL_COUNT(fds), ms);
    return sl_cancel_check(cancel, err);
}

/* What others learn from a request that is not sent here is left to them. */
static int prepare(struct sl_source *source, struct sl_range_request *request, struct sl_err *err)
{
    const struct sl_http_hooks *hooks = source->store->kind->hooks;
    while (hooks->prepare(source, request, err) == 0) {
        if (request->asks)
            sl_http_object_settle(request->object, false);
        if (!request->waits)
            return 0;
        if (wait_for(request, source->store->config.cancel, err) < 0)
            return -1;
        sl_range_request_release(request);
        *request = (struct sl_range_request){0};
    }
    return -1;
}

int sl_source_raw_request(struct sl_source *source, uint64_t begin, uint64_t end, char **url,
                          struct sl_buf *text, struct sl_err *err)
{
    struct sl_range_request request = {0};
    sl_autourl parsed = {0};
    if (!sl_store_asks_by_http(source->store))
        return sl_fail(err, SL_E_USAGE, "'%s' is not read by HTTP", source->uri);
    int done = prepare(source, &request, err);
    if (done == 0)
        done = sl_url_parse(request.url, &parsed, err);
    if (done == 0)
        done = write_request(&request, &parsed, begin, end, text, err);
    if (done == 0)
        *url = sl_steal(&request.url);
    sl_range_request_release(&request);
    return done;
}
