/*
 * A strict, small URL parser: scheme, userinfo, host, port, and the target as it will be sent. Dots
 * and double slashes in paths are kept, because they are legal in object keys; only Location
 * references are resolved with RFC 3986's dot rules.
 */
#include "url.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "buf.h"

static const char hex_digits[] = "0123456789ABCDEF";

void sl_url_release(struct sl_url *url)
{
    free(url->userinfo);
    free(url->host);
    free(url->target);
    *url = (struct sl_url){0};
}

static int fail_url(struct sl_err *err, const char *text, const char *why)
{
    sl_autofree char *shown = sl_uri_sanitize(text, err);
    return shown ? sl_fail(err, SL_E_USAGE, "bad URL '%.220s': %s", shown, why) : -1;
}

static int parse_port(const char *text, size_t bytes, uint16_t *port)
{
    unsigned value = 0;
    if (bytes == 0 || bytes > 5)
        return -1;
    for (size_t i = 0; i < bytes; i++) {
        if (!isdigit((unsigned char)text[i]))
            return -1;
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    if (value == 0 || value > 65535)
        return -1;
    *port = (uint16_t)value;
    return 0;
}

static bool host_ok(const char *host, size_t bytes, bool ipv6)
{
    if (bytes == 0 || bytes > 253)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)host[i];
        bool good = ipv6 ? isxdigit(c) || c == ':' || c == '.'
                         : isalnum(c) || c == '-' || c == '.' || c == '_';
        if (!good)
            return false;
    }
    return true;
}

/* host, [v6], with or without :port */
static int parse_host(const char *text, size_t bytes, struct sl_url *url, struct sl_err *err,
                      const char *whole)
{
    const char *host = text, *port = NULL;
    size_t host_bytes = bytes;
    if (bytes && text[0] == '[') {
        const char *end = memchr(text, ']', bytes);
        if (!end)
            return fail_url(err, whole, "the address has no ']'");
        url->ipv6 = true;
        host = text + 1;
        host_bytes = (size_t)(end - host);
        port = end + 1 < text + bytes ? end + 1 : NULL;
        if (port && *port != ':')
            return fail_url(err, whole, "unexpected text after ']'");
    } else {
        port = memchr(text, ':', bytes);
        if (port)
            host_bytes = (size_t)(port - text);
    }
    if (host_bytes == 0)
        return fail_url(err, whole, "it names no host");
    if (!host_ok(host, host_bytes, url->ipv6))
        return fail_url(err, whole,
                        "the host name has characters that host names do not have, or is too long");
    if (port && port + 1 < text + bytes &&
        parse_port(port + 1, (size_t)(text + bytes - port - 1), &url->port) < 0)
        return fail_url(err, whole, "the port is not a number from 1 to 65535");
    url->host = sl_strndup(host, host_bytes, err);
    if (!url->host)
        return -1;
    for (char *c = url->host; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return 0;
}

/* Path and query up to the fragment; a path is put in front if there is none. */
static int parse_target(const char *text, struct sl_url *url, struct sl_err *err)
{
    size_t bytes = strcspn(text, "#");
    char *target = sl_alloc(3 * bytes + 2, err);
    if (!target)
        return -1;
    size_t used = 0;
    if (text[0] != '/')
        target[used++] = '/';
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c > 0x20 && c < 0x7f && !strchr("\"<>\\^`{|}", c)) {
            target[used++] = (char)c;
        } else {
            target[used++] = '%';
            target[used++] = hex_digits[c >> 4];
            target[used++] = hex_digits[c & 15];
        }
    }
    url->target = target;
    url->fragment = text[bytes] == '#';
    return 0;
}

/* Of "http://" or "https://" in front; 0: it is neither. */
static size_t scheme_bytes(const char *text, bool *tls)
{
    *tls = strncasecmp(text, "https://", 8) == 0;
    return *tls ? 8 : strncasecmp(text, "http://", 7) == 0 ? 7 : 0;
}

int sl_url_parse(const char *text, struct sl_url *url, struct sl_err *err)
{
    *url = (struct sl_url){0};
    size_t bytes = strlen(text);
    if (bytes > SL_URL_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "a URL of %zu bytes, limit %d", bytes, SL_URL_BYTES_MAX);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return fail_url(err, text, "it holds control characters");

    const char *rest = text + scheme_bytes(text, &url->tls);
    if (rest == text)
        return fail_url(err, text, "it begins with neither http:// nor https://");
    url->port = url->tls ? 443 : 80;

    size_t authority = strcspn(rest, "/?#");
    const char *at = NULL;
    for (size_t i = 0; i < authority; i++)
        if (rest[i] == '@')
            at = rest + i;
    const char *host = at ? at + 1 : rest;
    if (parse_host(host, authority - (size_t)(host - rest), url, err, text) < 0 ||
        parse_target(rest + authority, url, err) < 0 ||
        (at && !(url->userinfo = sl_strndup(rest, (size_t)(at - rest), err)))) {
        sl_url_release(url);
        return -1;
    }
    return 0;
}

const char *sl_url_authority(const struct sl_url *url, char text[SL_URL_AUTHORITY_MAX])
{
    const char *open = url->ipv6 ? "[" : "", *close = url->ipv6 ? "]" : "";
    if (url->port == (url->tls ? 443 : 80))
        snprintf(text, SL_URL_AUTHORITY_MAX, "%s%s%s", open, url->host, close);
    else
        snprintf(text, SL_URL_AUTHORITY_MAX, "%s%s%s:%u", open, url->host, close, url->port);
    return text;
}

bool sl_url_is_base(const struct sl_url *url)
{
    return !url->userinfo && !url->fragment && !strchr(url->target, '?');
}

bool sl_url_is_host(const struct sl_url *url)
{
    return sl_url_is_base(url) && strcmp(url->target, "/") == 0;
}

bool sl_url_same_origin(const struct sl_url *a, const struct sl_url *b)
{
    return a->tls == b->tls && a->port == b->port && strcmp(a->host, b->host) == 0;
}

char *sl_url_format(const struct sl_url *url, bool query, struct sl_err *err)
{
    char authority[SL_URL_AUTHORITY_MAX];
    int target = query ? (int)strlen(url->target) : (int)strcspn(url->target, "?");
    return sl_asprintf(err, "http%s://%s%.*s", url->tls ? "s" : "",
                       sl_url_authority(url, authority), target, url->target);
}

/* RFC 3986 section 5.2.4, in place; path begins with '/'. */
static void remove_dots(char *path)
{
    char *out = path;
    const char *in = path;
    while (*in) {
        size_t bytes = 1 + strcspn(in + 1, "/");
        bool last = in[bytes] == 0;
        if (bytes == 2 && in[1] == '.') {
            if (last)
                *out++ = '/';
        } else if (bytes == 3 && in[1] == '.' && in[2] == '.') {
            while (out > path && *--out != '/')
                ;
            if (last)
                *out++ = '/';
        } else {
            memmove(out, in, bytes);
            out += bytes;
        }
        in += bytes;
    }
    *out = 0;
}

/* The target that a reference without an authority means below base. */
static char *resolve_target(const char *base, const char *reference, struct sl_err *err)
{
    int folder = 0, path = (int)strcspn(base, "?");
    for (int i = 0; i < path; i++)
        if (base[i] == '/')
            folder = i + 1;
    int used = (int)strcspn(reference, "#");
    if (used == 0)
        return sl_strdup(base, err);
    if (reference[0] == '?')
        return sl_asprintf(err, "%.*s%.*s", path, base, used, reference);
    int before_query = (int)strcspn(reference, "?#");
    sl_autofree char *merged =
        reference[0] == '/' ? sl_strndup(reference, (size_t)before_query, err)
                            : sl_asprintf(err, "%.*s%.*s", folder, base, before_query, reference);
    if (!merged)
        return NULL;
    remove_dots(merged);
    return sl_asprintf(err, "%s%.*s", merged, used - before_query, reference + before_query);
}

char *sl_url_resolve(const char *base, const char *reference, struct sl_err *err)
{
    sl_autourl from = {0};
    sl_autourl to = {0};
    char authority[SL_URL_AUTHORITY_MAX];
    sl_autofree char *whole = NULL;
    if (sl_url_parse(base, &from, err) < 0)
        return NULL;
    size_t scheme = 0;
    while (isalnum((unsigned char)reference[scheme]) ||
           (scheme && reference[scheme] && strchr("+-.", reference[scheme])))
        scheme++;
    bool tls;
    if (scheme && reference[scheme] == ':' && !scheme_bytes(reference, &tls)) {
        sl_fail(err, SL_E_NET, "redirected to a URL that is not http or https");
        if (err)
            err->retryable = false;
        return NULL;
    }
    if (scheme && reference[scheme] == ':') {
        whole = sl_strdup(reference, err);
    } else if (strncmp(reference, "//", 2) == 0) {
        whole = sl_asprintf(err, "http%s:%s", from.tls ? "s" : "", reference);
    } else {
        sl_autofree char *target = resolve_target(from.target, reference, err);
        if (target)
            whole = sl_asprintf(err, "http%s://%s%s", from.tls ? "s" : "",
                                sl_url_authority(&from, authority), target);
    }
    if (!whole)
        return NULL;
    if (sl_url_parse(whole, &to, err) < 0) {
        if (err && err->kind == SL_E_USAGE)
            err->kind = SL_E_NET;
        return NULL;
    }
    return sl_url_format(&to, true, err);
}

bool sl_url_host_is_near(const char *host)
{
    unsigned a, b, c, d;
    int end = 0;
    if (strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0)
        return true;
    return sscanf(host, "%3u.%3u.%3u.%3u%n", &a, &b, &c, &d, &end) == 4 && !host[end] && a == 127 &&
           b < 256 && c < 256 && d < 256;
}

char *sl_url_encode(const char *text, bool keep_slash, struct sl_err *err)
{
    char *out = sl_alloc_array(strlen(text) + 1, 3, err), *end = out;
    if (!out)
        return NULL;
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (isalnum(c) || strchr("-._~", c) || (keep_slash && c == '/')) {
            *end++ = (char)c;
        } else {
            *end++ = '%';
            *end++ = hex_digits[c >> 4];
            *end++ = hex_digits[c & 15];
        }
    }
    *end = 0;
    return out;
}

char *sl_url_decode(const char *text, size_t bytes, struct sl_err *err)
{
    char *out = sl_alloc(bytes + 1, err), *end = out;
    for (size_t i = 0; out && i < bytes; i++) {
        uint8_t byte = (uint8_t)text[i];
        if (byte == '%') {
            if (bytes - i < 3 || sl_unhex((char[]){text[i + 1], text[i + 2], 0}, &byte, 1) < 0 ||
                byte == 0) {
                sl_fail(err, SL_E_USAGE, "'%.*s' holds a broken percent escape",
                        (int)SL_MIN(bytes, 200), text);
                free(out);
                return NULL;
            }
            i += 2;
        }
        *end++ = (char)byte;
    }
    return out;
}
