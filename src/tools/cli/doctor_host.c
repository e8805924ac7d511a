/* libcurl does one exchange and tells how long each part of it took. Proxies, and why there was no
 * connection, are those of a load's. */
#include "doctor_host.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "ca.h"
#include "libcurl.h"
#include "link.h"
#include "mem.h"
#include "proxy.h"
#include "thread.h"
#include "url.h"

enum { TIMEOUT_MS = 10000 };

struct head {
    char date[96];
};

static size_t take_header(char *data, size_t size, size_t count, void *arg)
{
    struct head *head = arg;
    size_t bytes = size * count;
    if (bytes > 6 && strncasecmp(data, "date: ", 6) == 0)
        snprintf(head->date, sizeof(head->date), "%.*s", (int)SL_MIN(bytes - 6, (size_t)90),
                 data + 6);
    return bytes;
}

static size_t drop_body(char *data, size_t size, size_t count, void *arg)
{
    (void)data, (void)arg;
    return size * count;
}

static CURLcode perform(CURL *easy, const char *url, const char *proxy,
                        const struct sl_tls_options *tls, const struct sl_ca_choice *trusted,
                        struct head *head, char *trouble)
{
    sl_libcurl.easy_setopt(easy, CURLOPT_URL, url);
    sl_libcurl.easy_setopt(easy, CURLOPT_PROXY, proxy);
    sl_libcurl.easy_setopt(easy, CURLOPT_NOBODY, 1L);
    sl_libcurl.easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    sl_libcurl.easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    sl_libcurl.easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)TIMEOUT_MS);
    sl_libcurl.easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    sl_libcurl.easy_setopt(easy, CURLOPT_HEADERDATA, head);
    sl_libcurl.easy_setopt(easy, CURLOPT_WRITEFUNCTION, drop_body);
    sl_libcurl.easy_setopt(easy, CURLOPT_ERRORBUFFER, trouble);
    if (tls && !tls->verify) {
        sl_libcurl.easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
        sl_libcurl.easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    CURLcode bad = sl_ca_use(easy, trusted);
    return bad ? bad : sl_libcurl.easy_perform(easy);
}

/* place: what was connected to, the proxy or the host. */
static int fail_reaching(const struct sl_doctor_host *host, CURL *easy, CURLcode code,
                         const char *place, const char *trouble, struct sl_err *err)
{
    const char *reason = *trouble ? trouble : sl_libcurl.easy_strerror(code), *known = NULL;
    long number = 0;
    if (code == CURLE_COULDNT_CONNECT &&
        sl_libcurl.easy_getinfo(easy, CURLINFO_OS_ERRNO, &number) == CURLE_OK)
        known = sl_link_reason(number);
    if (code == CURLE_COULDNT_RESOLVE_HOST)
        return sl_fail(err, SL_E_NET, "the name '%s' is not known: check it, and the DNS server",
                       host->name);
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
        return sl_fail(err, SL_E_NET, "cannot trust '%s': %s; trusted are %s", host->name, reason,
                       host->trusted);
    return sl_fail(err, SL_E_NET,
                   "cannot connect to '%s': %s; check the name, the port, the network and the "
                   "proxy settings",
                   place, known ? known : reason);
}

static void take_figures(CURL *easy, const struct head *head, struct sl_doctor_host *host)
{
    char *address = NULL;
    double whole = 0, secure = 0;
    sl_libcurl.easy_getinfo(easy, CURLINFO_PRIMARY_IP, &address);
    sl_libcurl.easy_getinfo(easy, CURLINFO_NAMELOOKUP_TIME, &host->lookup_seconds);
    sl_libcurl.easy_getinfo(easy, CURLINFO_CONNECT_TIME, &whole);
    sl_libcurl.easy_getinfo(easy, CURLINFO_APPCONNECT_TIME, &secure);
    host->connect_seconds = (secure > 0 ? secure : whole) - host->lookup_seconds;
    snprintf(host->address, sizeof(host->address), "%s", address ? address : "unknown");
    struct tm tm = {0};
    host->dated = strptime(head->date, "%a, %d %b %Y %H:%M:%S GMT", &tm) != NULL;
    if (host->dated)
        host->skew_seconds = sl_wall_seconds() - (int64_t)timegm(&tm);
}

int sl_doctor_host(const char *url, const struct sl_tls_options *tls, struct sl_doctor_host *host,
                   struct sl_err *err)
{
    const struct sl_ca_choice trusted = sl_ca_choose(tls ? tls->ca_file : NULL);
    sl_autourl parsed = {0};
    sl_autofree char *proxy = NULL;
    char root[600], authority[SL_URL_AUTHORITY_MAX], trouble[CURL_ERROR_SIZE] = "";
    struct head head = {.date = ""};
    *host = (struct sl_doctor_host){.tls = false};
    if (sl_url_parse(url, &parsed, err) < 0 || sl_proxy_find(&parsed, &proxy, err) < 0 ||
        sl_libcurl_open(err) < 0)
        return -1;
    bool colon = strchr(parsed.host, ':') != NULL;
    snprintf(root, sizeof(root), "%s://%s%.255s%s:%u/", parsed.tls ? "https" : "http",
             colon ? "[" : "", parsed.host, colon ? "]" : "", parsed.port);
    snprintf(host->name, sizeof(host->name), "%.255s", parsed.host);
    snprintf(host->trusted, sizeof(host->trusted), "%s (from %s)",
             trusted.file ? trusted.file : "no file", trusted.from);
    host->tls = parsed.tls;
    CURL *easy = sl_libcurl.easy_init();
    CURLcode code = easy ? perform(easy, root, proxy ? proxy : "", tls, &trusted, &head, trouble)
                         : CURLE_OUT_OF_MEMORY;
    const char *place = proxy ? sl_proxy_place(proxy) : sl_url_authority(&parsed, authority);
    int done = 0;
    if (code != CURLE_OK && code != CURLE_GOT_NOTHING)
        done = fail_reaching(host, easy, code, place, trouble, err);
    else
        take_figures(easy, &head, host);
    sl_libcurl.easy_cleanup(easy);
    return done;
}
