/* Which proxy a URL goes through: the environment variables that curl knows, decided here. Any
 * thread; no network. */
#ifndef SL_PROXY_H
#define SL_PROXY_H

#include "url.h"

/**
 * *proxy: malloc'ed URL with scheme (http, https, socks4, socks4a, socks5, socks5h), or NULL for
 * none. Reads http_proxy (lower case only: HTTP_PROXY can be forged through CGI), https_proxy,
 * HTTPS_PROXY, all_proxy, ALL_PROXY and no_proxy, NO_PROXY (suffixes, *, host:port, CIDR).
 * free() it. SL_E_USAGE names a variable that is not a URL; SL_E_NO_SPACE.
 */
int sl_proxy_find(const struct sl_url *url, char **proxy, struct sl_err *err);
/** Host and port of a proxy's URL, without its login; borrowed. */
const char *sl_proxy_place(const char *proxy);
/** For the message of a host that plain http does not reach: "" or "; HTTP_PROXY is set, …"; a
 * constant. */
const char *sl_proxy_hint(const char *host, uint16_t port);
#define SL_PROXY_LOGIN "wants a login that it does not have: put user and password into its URL"
/** The no_proxy rule alone: does `list` name the URL's host? */
bool sl_proxy_excluded(const struct sl_url *url, const char *list);

#endif
