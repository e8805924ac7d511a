/*
 * curl's rules for proxies, read from the environment by us, since plain http through a proxy is
 * sent by us (absolute-form request line) and only tunnels are made by curl, which is told the
 * outcome.
 */
#include "proxy.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* 4 or 16 bytes of an address literal, 0 if it is none. */
static unsigned address_bytes(const char *text, uint8_t address[16])
{
    if (inet_pton(AF_INET, text, address) == 1)
        return 4;
    return inet_pton(AF_INET6, text, address) == 1 ? 16 : 0;
}

static bool in_network(const char *host, char *network)
{
    uint8_t a[16], b[16];
    char *slash = strchr(network, '/'), *end;
    *slash = 0;
    unsigned bytes = address_bytes(host, a), long_bits = 0;
    if (!bytes || address_bytes(network, b) != bytes)
        return false;
    unsigned long bits = strtoul(slash + 1, &end, 10);
    if (end == slash + 1 || *end || bits > bytes * 8)
        return false;
    long_bits = (unsigned)bits;
    unsigned whole = long_bits / 8, rest = long_bits % 8;
    if (memcmp(a, b, whole) != 0)
        return false;
    return rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

/* entry: example.com, .example.com, host:port, [v6]:port, 10.0.0.0/8 */
static bool entry_matches(const struct sl_url *url, char *entry)
{
    char *port = NULL;
    if (*entry == '[') {
        char *close = strchr(entry, ']');
        if (!close)
            return false;
        if (close[1] == ':')
            port = close + 2;
        *close = 0;
        entry++;
    } else if (strchr(entry, ':') && strchr(entry, ':') == strrchr(entry, ':')) {
        port = strchr(entry, ':') + 1;
        port[-1] = 0;
    }
    if (port && strtoul(port, NULL, 10) != url->port)
        return false;
    if (strchr(entry, '/'))
        return in_network(url->host, entry);
    uint8_t a[16], b[16];
    unsigned bytes = address_bytes(url->host, a);
    if (bytes)
        return address_bytes(entry, b) == bytes && memcmp(a, b, bytes) == 0;
    while (*entry == '.')
        entry++;
    size_t host = strlen(url->host), suffix = strlen(entry);
    while (suffix && entry[suffix - 1] == '.')
        suffix--;
    if (suffix == 0 || suffix > host || strncasecmp(url->host + host - suffix, entry, suffix) != 0)
        return false;
    return suffix == host || url->host[host - suffix - 1] == '.';
}

bool sl_proxy_excluded(const struct sl_url *url, const char *list)
{
    char entry[300];
    while (list && *list) {
        list += strspn(list, ", \t");
        size_t bytes = strcspn(list, ", \t");
        if (bytes && bytes < sizeof(entry)) {
            memcpy(entry, list, bytes);
            entry[bytes] = 0;
            if (strcmp(entry, "*") == 0 || entry_matches(url, entry))
                return true;
        }
        list += bytes;
    }
    return false;
}

static const char *first_set(const char *const names[], const char **name)
{
    for (; *names; names++) {
        const char *value = getenv(*names);
        if (value && *value) {
            *name = *names;
            return value;
        }
    }
    return NULL;
}

/* Scheme and port made explicit, path cut off. */
static int normalise(const char *value, const char *name, char **proxy, struct sl_err *err)
{
    static const char *const schemes[] = {"http://",    "https://",  "socks4://",
                                          "socks4a://", "socks5://", "socks5h://"};
    const char *scheme = schemes[0], *rest = value;
    if (strstr(value, "://")) {
        scheme = NULL;
        for (size_t i = 0; i < SL_COUNT(schemes) && !scheme; i++)
            if (strncasecmp(value, schemes[i], strlen(schemes[i])) == 0) {
                scheme = schemes[i];
                rest = value + strlen(scheme);
            }
        if (!scheme)
            return sl_fail(err, SL_E_USAGE,
                           "the proxy in $%s has a scheme other than http, https or socks", name);
    }
    sl_autofree char *as_http = sl_asprintf(err, "http://%.*s", (int)strcspn(rest, "/?#"), rest);
    sl_autourl url = {0};
    if (!as_http)
        return -1;
    if (sl_url_parse(as_http, &url, err) < 0)
        return sl_wrap(err, "the proxy in $%s", name);
    const char *tail = strrchr(as_http, ']') ? strrchr(as_http, ']') : as_http + strlen("http://");
    const char *at = strrchr(tail, '@');
    bool has_port = strchr(at ? at : tail, ':') != NULL;
    *proxy = sl_asprintf(err, "%s%s%s", scheme, as_http + strlen("http://"),
                         has_port                          ? ""
                         : strcmp(scheme, "https://") == 0 ? ":443"
                                                           : ":1080");
    return *proxy ? 0 : -1;
}

const char *sl_proxy_place(const char *proxy)
{
    const char *scheme = strstr(proxy, "://"), *at = strrchr(proxy, '@');
    const char *rest = scheme ? scheme + 3 : proxy;
    return at && at > rest ? at + 1 : rest;
}

/* curl does not believe it, since a web server's CGI has request headers under such names. */
const char *sl_proxy_hint(const char *host, uint16_t port)
{
    static const char *const used[] = {"http_proxy", "all_proxy", "ALL_PROXY", NULL};
    static const char *const capitals[] = {"HTTP_PROXY", NULL};
    static const char *const none[] = {"no_proxy", "NO_PROXY", NULL};
    const char *name;
    char copy[256];
    const struct sl_url url = {.host = copy, .port = port};
    snprintf(copy, sizeof(copy), "%s", host);
    if (first_set(used, &name) || !first_set(capitals, &name) ||
        sl_proxy_excluded(&url, first_set(none, &name)))
        return "";
    return "; HTTP_PROXY is set, but http goes by http_proxy in small letters, as with curl: set "
           "that if the proxy is meant";
}

int sl_proxy_find(const struct sl_url *url, char **proxy, struct sl_err *err)
{
    static const char *const plain[] = {"http_proxy", "all_proxy", "ALL_PROXY", NULL};
    static const char *const secure[] = {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
                                         NULL};
    static const char *const none[] = {"no_proxy", "NO_PROXY", NULL};
    const char *name;
    *proxy = NULL;
    const char *value = first_set(url->tls ? secure : plain, &name);
    if (!value)
        return 0;
    const char *excluded = first_set(none, &(const char *){NULL});
    if (sl_proxy_excluded(url, excluded))
        return 0;
    return normalise(value, name, proxy, err);
}
