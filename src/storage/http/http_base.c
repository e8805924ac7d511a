/*
 * The origin of a store over HTTP and what is sent to it.
 *
 * Credentials belong to the origin of the base: a request that a redirect led elsewhere carries
 * none of them, configured headers included.
 */
#include "http_base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "http_object.h"
#include "http_window.h"
#include "log.h"
#include "netrc.h"

enum {
    FROM_BYTES = 128,
    CREDENTIALS_BYTES_MAX = 64 * 1024,
    HEADERS_MAX = SL_RANGE_HEADERS_MAX - 8
};

/* The default entry is for whichever host comes: without TLS whoever is on the way would have it.
 */
static int find_in_netrc(struct sl_http_base *base, struct sl_err *err)
{
    struct sl_netrc_login netrc;
    if (!sl_netrc_find(base->url.host, &netrc))
        return 0;
    bool sent = base->url.tls || !netrc.by_default;
    if (sent)
        base->login = sl_http_basic(netrc.login, netrc.password, err);
    else
        sl_log(SL_LOG_WARN,
               "the default entry of .netrc is not sent to '%s', which is without TLS: use https, "
               "or name the host in an entry 'machine %s'",
               base->url.host, base->url.host);
    explicit_bzero(&netrc, sizeof(netrc));
    return !sent || base->login ? 0 : -1;
}

static int find_login(struct sl_http_base *base, struct sl_err *err)
{
    const char *userinfo = base->url.userinfo;
    if (!userinfo)
        return find_in_netrc(base, err);
    size_t colon = strcspn(userinfo, ":");
    const char *rest = userinfo + colon + (userinfo[colon] == ':');
    sl_autofree char *user = sl_url_decode(userinfo, colon, err);
    sl_autofree char *password = user ? sl_url_decode(rest, strlen(rest), err) : NULL;
    base->login = password ? sl_http_basic(user, password, err) : NULL;
    return base->login ? 0 : sl_wrap(err, "the user and password in the URL");
}

int sl_http_base_init(struct sl_http_base *base, const char *url, struct sl_err *err)
{
    pthread_mutex_init(&base->locked.mutex, NULL);
    base->locked.bearer.limit = base->locked.headers.limit = CREDENTIALS_BYTES_MAX;
    return sl_url_parse(url, &base->url, err);
}

int sl_http_base_open(struct sl_http_base *base, const char *url, struct sl_err *err)
{
    return sl_http_base_init(base, url, err) < 0 ? -1 : find_login(base, err);
}

void sl_http_base_close(struct sl_http_base *base)
{
    sl_http_base_forget_objects(base);
    sl_url_release(&base->url);
    free(base->login);
    sl_buf_release(&base->locked.bearer);
    sl_buf_release(&base->locked.headers);
    pthread_mutex_destroy(&base->locked.mutex);
}

/* ---- credentials ----------------------------------------------------------------------------- */

/* Where the token comes from, for messages. */
static const char *bearer_from(const struct sl_http_base *base, char text[FROM_BYTES])
{
    if (base->bearer_from)
        return base->bearer_from;
    snprintf(text, FROM_BYTES, "%s.bearerTokenFile", base->section);
    return text;
}

/* Under the lock: the token without the newline that editors put behind it. where: " '/a/file'". */
static int take_bearer(struct sl_http_base *base, const char *token, const char *where,
                       struct sl_err *err)
{
    char from[FROM_BYTES];
    size_t bytes = strlen(token);
    while (bytes && strchr("\r\n \t", token[bytes - 1]))
        bytes--;
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)token[i] <= 0x20 || (unsigned char)token[i] >= 0x7f)
            return sl_fail(err, SL_E_AUTH, "%s:%s holds more than one token",
                           bearer_from(base, from), where);
    if (!bytes)
        return sl_fail(err, SL_E_AUTH, "%s:%s is empty", bearer_from(base, from), where);
    base->locked.bearer.used = 0;
    return sl_buf_append(&base->locked.bearer, token, bytes, err);
}

static int load_bearer(struct sl_http_base *base, const char *path, struct sl_err *err)
{
    char from[FROM_BYTES];
    sl_autobuf text = SL_BUF_INIT(CREDENTIALS_BYTES_MAX);
    sl_autofree char *where = sl_asprintf(err, " '%s'", path);
    if (!where)
        return -1;
    if (sl_buf_read_file(&text, path, err) < 0) {
        err->kind = SL_E_AUTH;
        return sl_wrap(err, "%s", bearer_from(base, from));
    }
    return take_bearer(base, sl_buf_string(&text), where, err);
}

/* Under the lock: the lines become strings one after another. */
static int load_headers(struct sl_http_base *base, const char *path, struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(CREDENTIALS_BYTES_MAX);
    if (sl_buf_read_file(&text, path, err) < 0) {
        err->kind = SL_E_AUTH;
        return sl_wrap(err, "%s.headersFile", base->section);
    }
    base->locked.headers.used = 0;
    unsigned number = 0, count = 0;
    for (const char *line = sl_buf_string(&text); *line || line == sl_buf_string(&text);) {
        size_t bytes = strcspn(line, "\n"), used = bytes;
        number++;
        while (used && strchr("\r \t", line[used - 1]))
            used--;
        size_t name = strcspn(line, ":\r\n \t");
        bool good =
            used == 0 || (name && name < used && line[name] == ':' && ++count <= HEADERS_MAX);
        for (size_t i = 0; good && i < used; i++)
            good = (unsigned char)line[i] >= 0x20 && line[i] != 0x7f;
        if (!good)
            return sl_fail(err, SL_E_USAGE, "%s.headersFile: '%s' line %u is not 'Name: value'",
                           base->section, path, number);
        if (used && (sl_buf_append(&base->locked.headers, line, used, err) < 0 ||
                     sl_buf_append(&base->locked.headers, "", 1, err) < 0))
            return -1;
        if (!line[bytes])
            break;
        line += bytes + 1;
    }
    return 0;
}

/* Under the lock. */
static int load_credentials(struct sl_http_base *base, struct sl_err *err)
{
    struct sl_err problem = SL_ERR_INIT;
    bool from_file = base->bearer_token_file && base->bearer_token_file[0];
    if (from_file && load_bearer(base, base->bearer_token_file, &problem) < 0)
        goto failed;
    if (!from_file && base->bearer_token && base->bearer_token[0] &&
        take_bearer(base, base->bearer_token, " it", &problem) < 0)
        goto failed;
    if (base->headers_file && base->headers_file[0] &&
        load_headers(base, base->headers_file, &problem) < 0)
        goto failed;
    base->locked.loaded = true;
    return 0;
failed:
    if (err)
        *err = problem;
    return -1;
}

static int add_credentials(struct sl_http_base *base, struct sl_range_request *request,
                           struct sl_err *err)
{
    SL_LOCKED(&base->locked.mutex);
    if (!base->locked.loaded && load_credentials(base, err) < 0)
        return -1;
    bool authorized = false;
    const char *headers = sl_buf_string(&base->locked.headers);
    for (size_t at = 0; at < base->locked.headers.used; at += strlen(headers + at) + 1) {
        authorized |= strncasecmp(headers + at, "Authorization:", 14) == 0;
        if (sl_range_add_header(request, err, "%s", headers + at) < 0)
            return -1;
    }
    const char *bearer = base->locked.bearer.used ? sl_buf_string(&base->locked.bearer) : NULL;
    if (bearer && base->bearer_cookie &&
        sl_range_add_header(request, err, "Cookie: %s=%s", base->bearer_cookie, bearer) < 0)
        return -1;
    if (bearer)
        return sl_range_add_header(request, err, "Authorization: Bearer %s", bearer);
    if (base->login && !authorized)
        return sl_range_add_header(request, err, "Authorization: %s", base->login);
    return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

int sl_range_add_header(struct sl_range_request *request, struct sl_err *err, const char *format,
                        ...)
{
    char text[8192];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (bytes < 0 || (size_t)bytes >= sizeof(text) ||
        request->header_count + 1 >= SL_RANGE_HEADERS_MAX)
        return sl_fail(err, SL_E_USAGE, "too many or too large request headers");
    char *copy = sl_strdup(text, err);
    explicit_bzero(text, (size_t)bytes);
    if (!copy)
        return -1;
    request->headers[request->header_count++] = copy;
    return 0;
}

void sl_range_request_release(struct sl_range_request *request)
{
    free(request->url);
    for (unsigned i = 0; i < request->header_count; i++) {
        explicit_bzero(request->headers[i], strlen(request->headers[i]));
        free(request->headers[i]);
    }
}

/* Nobody is to wait for what this request would learn: all of them wait for the same moment. */
static int wait_for_window(struct sl_range_request *request, uint64_t opens_ns)
{
    if (request->asks)
        sl_http_object_settle(request->object, false);
    request->asks = false;
    request->waits = true;
    request->wait_fd = -1;
    request->wait_until_ns = opens_ns;
    free(sl_steal(&request->url));
    return 0;
}

int sl_http_prepare(struct sl_http_base *base, struct sl_http_object *object,
                    struct sl_range_request *request, struct sl_err *err)
{
    sl_autourl url = {0};
    if (sl_http_object_place(base, object, request, err) < 0)
        return -1;
    if (request->waits)
        return 0;
    if (sl_url_parse(request->url, &url, err) < 0)
        return -1;
    request->secret = sl_http_has_login(base);
    if (!sl_url_same_origin(&url, &base->url))
        return 0;
    uint64_t opens_ns = base->windows ? sl_http_window_opens_ns(&base->url) : 0;
    if (opens_ns > sl_now_ns())
        return wait_for_window(request, opens_ns);
    return add_credentials(base, request, err);
}

bool sl_http_recover(struct sl_http_base *base, struct sl_http_object *object,
                     const struct sl_err *why, struct sl_err *err)
{
    bool led_away = sl_http_object_expired(object, why);
    if (why->http_status != 401 || (!base->bearer_token_file && !base->headers_file))
        return led_away;
    SL_LOCKED(&base->locked.mutex);
    return load_credentials(base, led_away ? NULL : err) == 0 || led_away;
}

int sl_http_plain_prepare(struct sl_source *source, struct sl_range_request *request,
                          struct sl_err *err)
{
    if (!source->impl)
        return sl_fail(err, SL_E_INTERNAL, "'%s' has no URL", source->uri);
    if (sl_http_prepare(source->store->impl, source->impl, request, err) < 0)
        return -1;
    if (source->store->kind->traits.urls && request->url && strchr(request->url, '?'))
        request->secret = true; /* it may be a signed link */
    return 0;
}

int sl_http_plain_redirect(struct sl_source *source, const struct sl_exchange *exchange,
                           const char *from, const char *to, struct sl_err *err)
{
    return sl_http_redirect(source->store->impl, source->impl, from, to,
                            sl_exchange_status(exchange), err);
}

bool sl_http_plain_recover(struct sl_source *source, const struct sl_err *why, struct sl_err *err)
{
    return source->impl && sl_http_recover(source->store->impl, source->impl, why, err);
}
