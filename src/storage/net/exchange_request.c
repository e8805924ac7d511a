/* The bytes of a request (RFC 9112): its head, and behind it a body that is copied. */
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "exchange_state.h"
#include "url.h"

/* Proxy-Authorization from the proxy's own URL. */
static int add_proxy_login(struct sl_exchange *exchange, const struct sl_url *proxy,
                           struct sl_err *err)
{
    if (!proxy->userinfo)
        return 0;
    size_t colon = strcspn(proxy->userinfo, ":");
    const char *rest = proxy->userinfo + colon + (proxy->userinfo[colon] == ':');
    sl_autofree char *user = sl_url_decode(proxy->userinfo, colon, err);
    sl_autofree char *password = user ? sl_url_decode(rest, strlen(rest), err) : NULL;
    sl_autofree char *basic = password ? sl_http_basic(user, password, err) : NULL;
    return basic ? sl_buf_printf(&exchange->out, err, "Proxy-Authorization: %s\r\n", basic) : -1;
}

static int add_headers(struct sl_exchange *exchange, const struct sl_request *request,
                       struct sl_err *err)
{
    for (const char *const *header = request->headers; header && *header; header++) {
        const char *colon = strchr(*header, ':');
        if (!colon || colon == *header)
            return sl_fail(err, SL_E_USAGE, "a request header without a name");
        for (const char *c = *header; *c; c++)
            if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
                return sl_fail(err, SL_E_USAGE,
                               "the request header '%.*s' holds control characters",
                               (int)SL_MIN(colon - *header, 60), *header);
        if (sl_buf_printf(&exchange->out, err, "%s\r\n", *header) < 0)
            return -1;
    }
    return 0;
}

int sl_exchange_build(struct sl_exchange *exchange, const struct sl_request *request,
                      const struct sl_url *url, const struct sl_url *forward, struct sl_err *err)
{
    char authority[SL_URL_AUTHORITY_MAX];
    struct sl_buf *out = &exchange->out;
    for (const char *c = request->method; *c || c == request->method; c++)
        if (*c < 'A' || *c > 'Z')
            return sl_fail(err, SL_E_USAGE, "bad request method");
    sl_url_authority(url, authority);
    out->used = 0;
    if (sl_buf_printf(out, err, "%s %s%s%s HTTP/1.1\r\nHost: %s\r\n", request->method,
                      forward ? "http://" : "", forward ? authority : "", url->target,
                      authority) < 0 ||
        sl_buf_text(out, "User-Agent: sluice/" SLUICE_VERSION "\r\nAccept-Encoding: identity\r\n",
                    err) < 0 ||
        (forward && add_proxy_login(exchange, forward, err) < 0) ||
        add_headers(exchange, request, err) < 0)
        return -1;
    uint64_t bytes = request->stream_bytes ? request->stream_bytes : request->body_bytes;
    bool length =
        bytes || strcmp(request->method, "PUT") == 0 || strcmp(request->method, "POST") == 0;
    bool copied = request->body_bytes && !request->lent;
    if ((length && sl_buf_printf(out, err, "Content-Length: %" PRIu64 "\r\n", bytes) < 0) ||
        sl_buf_text(out, "\r\n", err) < 0 ||
        (copied && sl_buf_append(out, request->body, request->body_bytes, err) < 0))
        return -1;
    exchange->body = request->lent ? request->body : NULL;
    exchange->body_bytes = request->lent ? request->body_bytes : 0;
    exchange->stream_bytes = request->stream_bytes;
    exchange->bodiless = strcmp(request->method, "HEAD") == 0;
    return 0;
}

char *sl_http_basic(const char *user, const char *password, struct sl_err *err)
{
    sl_autofree char *plain = sl_asprintf(err, "%s:%s", user, password);
    if (!plain)
        return NULL;
    size_t bytes = strlen(plain);
    char *text = sl_alloc(6 + (bytes + 2) / 3 * 4 + 1, err);
    if (!text)
        return NULL;
    memcpy(text, "Basic ", 6);
    EVP_EncodeBlock((unsigned char *)text + 6, (const unsigned char *)plain, (int)bytes);
    return text;
}
