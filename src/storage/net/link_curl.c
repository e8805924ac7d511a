/*
 * libcurl in CONNECT_ONLY mode: happy eyeballs, tunnels, TLS and certificates are its work.
 *
 * Every link has a curl multi handle of its own, for two reasons: connecting does not block the
 * thread, which has other links to drive, and libcurl closes idle CONNECT_ONLY connections of a
 * multi that is driven for others. Names are looked up by us (host.h), and curl is given the
 * addresses in our order; only proxies of tunnels it looks up itself.
 */
#include <string.h>
#include <sys/socket.h>

#include "imds.h"
#include "link_state.h"
#include "tls_context.h"
#include "trust.h"

enum { NUDGE_MS = 100 };

/* ---- handles ----------------------------------------------------------------------------------
 */

static void pipe_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGPIPE);
}

struct sl_quiet sl_quiet_begin(void)
{
    struct sl_quiet quiet = {.pending = false};
    sigset_t set, waiting;
    pipe_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, &quiet.before);
    if (sigismember(&quiet.before, SIGPIPE) && sigpending(&waiting) == 0)
        quiet.pending = sigismember(&waiting, SIGPIPE) == 1;
    return quiet;
}

void sl_quiet_end(struct sl_quiet *quiet)
{
    const struct timespec now = {0};
    sigset_t set;
    pipe_set(&set);
    if (!quiet->pending)
        sigtimedwait(&set, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
}

void sl_link_curl_end(struct sl_link *link)
{
    if (!link->multi && !link->easy && !link->trust)
        return;
    SL_QUIET_PIPE;
    if (link->multi && link->easy)
        sl_libcurl.multi_remove_handle(link->multi, link->easy);
    sl_libcurl.easy_cleanup(link->easy);
    if (link->multi)
        sl_libcurl.multi_cleanup(link->multi);
    sl_trust_release(sl_steal(&link->trust));
    sl_libcurl.slist_free_all(link->resolved);
    link->resolved = NULL;
    link->easy = NULL;
    link->multi = NULL;
    link->fd = -1;
    link->wanted_count = 0;
    link->expected = 0;
}

static int note_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *unused)
{
    struct sl_link *link = arg;
    (void)easy, (void)unused;
    int i = 0;
    while (i < link->wanted_count && link->wanted[i].fd != fd)
        i++;
    if (what == CURL_POLL_REMOVE) {
        if (i < link->wanted_count)
            link->wanted[i] = link->wanted[--link->wanted_count];
        return 0;
    }
    if (i == SL_LINK_POLL_MAX)
        return 0;
    link->wanted_count = SL_MAX(link->wanted_count, i + 1);
    link->wanted[i].fd = fd;
    link->wanted[i].events =
        (short)((what & CURL_POLL_IN ? POLLIN : 0) | (what & CURL_POLL_OUT ? POLLOUT : 0));
    return 0;
}

static bool has_tls_proxy(const struct sl_link *link)
{
    return strncmp(link->proxy, "https:", 6) == 0;
}

static bool needs_trust(const struct sl_link *link)
{
    const struct sl_tls_options *tls = link->connect.tls;
    return sl_libcurl.ssl.ctx_ctrl && (has_tls_proxy(link) || (link->tls && (!tls || tls->verify)));
}

/* A context for the server or for an https proxy. */
static CURLcode set_context(CURL *easy, void *context, void *arg)
{
    struct sl_link *link = arg;
    (void)easy;
    if (needs_trust(link)) {
        X509_STORE *trusted = sl_trust_store(link->trust);
        if (!trusted)
            return CURLE_SSL_CACERT_BADFILE;
        sl_libcurl.ssl.ctx_set1_cert_store(context, trusted);
    }
    sl_tls_context_prepare(context);
    return CURLE_OK;
}

static int note_timer(CURLM *multi, long ms, void *arg)
{
    struct sl_link *link = arg;
    (void)multi;
    link->timer_ns = ms < 0 ? UINT64_MAX : sl_now_ns() + (uint64_t)ms * SL_NS_PER_MS;
    return 0;
}

/* curl's own socket(), but for addresses that a name must not lead to; and we see which it tries.
 */
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct sl_link *link = arg;
    if (purpose == CURLSOCKTYPE_IPCXN && !link->connect.direct &&
        sl_imds_refused(link->host, &address->addr)) {
        link->refused = true;
        return CURL_SOCKET_BAD;
    }
    int number = sl_host_number(&link->permit, &address->addr);
    if (number >= 0 && link->tried_count < SL_HOST_ADDRESSES_MAX)
        link->tried[link->tried_count++] = number;
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static bool set_options(struct sl_link *link, const struct sl_ca_choice *choice, uint64_t left_ms)
{
    static const CURLoption ca_options[] = {CURLOPT_CAINFO, CURLOPT_CAPATH, CURLOPT_PROXY_CAINFO,
                                            CURLOPT_PROXY_CAPATH};
    CURL *easy = link->easy;
    const char *proxy = link->proxy;
    const struct sl_connect *connect = &link->connect;
    CURLcode bad = CURLE_OK;
#define SET(option, value) (bad = bad ? bad : sl_libcurl.easy_setopt(easy, option, value))
    SET(CURLOPT_URL, link->url);
    SET(CURLOPT_CONNECT_ONLY, 1L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_PROXY, proxy);
    SET(CURLOPT_NOPROXY, "");
    SET(CURLOPT_HTTPPROXYTUNNEL, *proxy ? 1L : 0L);
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)left_ms);
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
    SET(CURLOPT_QUICK_EXIT, 1L); /* closing does not wait for a name server that is silent */
#endif
    SET(CURLOPT_SHARE, sl_trust_cache(link->trust, *proxy != 0));
    if (link->resolved)
        SET(CURLOPT_RESOLVE, link->resolved);
    if (!*proxy) {
        SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
        SET(CURLOPT_OPENSOCKETDATA, link);
    }
    SET(CURLOPT_ERRORBUFFER, link->trouble);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (sl_libcurl.ssl.ctx_ctrl) {
        SET(CURLOPT_SSL_CTX_FUNCTION, set_context);
        SET(CURLOPT_SSL_CTX_DATA, link);
        for (unsigned i = 0; i < SL_COUNT(ca_options); i++) /* set_context() */
            SET(ca_options[i], NULL);
    } else {
        bad = bad ? bad : sl_ca_use(easy, choice);
    }
    if (connect->tls && !connect->tls->verify) {
        SET(CURLOPT_SSL_VERIFYPEER, 0L);
        SET(CURLOPT_SSL_VERIFYHOST, 0L);
    }
#undef SET
    sl_libcurl.multi_setopt(link->multi, CURLMOPT_SOCKETFUNCTION, note_socket);
    sl_libcurl.multi_setopt(link->multi, CURLMOPT_SOCKETDATA, link);
    sl_libcurl.multi_setopt(link->multi, CURLMOPT_TIMERFUNCTION, note_timer);
    sl_libcurl.multi_setopt(link->multi, CURLMOPT_TIMERDATA, link);
    return bad == CURLE_OK;
}

/* The addresses in the order in which they are to be tried, where the name is not one itself. */
static bool give_addresses(struct sl_link *link)
{
    char text[SL_HOST_RESOLVE_BYTES];
    if (!link->permit.host || !sl_host_choose(&link->permit, link->avoided, text))
        return true;
    link->resolved = sl_libcurl.slist_append(NULL, text);
    return link->resolved != NULL;
}

int sl_link_curl_begin(struct sl_link *link, uint64_t left_ms, struct sl_err *err)
{
    if (sl_libcurl_open(err) < 0)
        return -1;
    const struct sl_tls_options *tls = link->connect.tls;
    const struct sl_ca_choice choice = sl_ca_choose(tls ? tls->ca_file : NULL);
    link->trust = sl_trust_take(&choice, err);
    if (!link->trust)
        return -1;
    link->verified = !tls || tls->verify;
    link->refused = link->begun = false;
    link->trouble[0] = 0;
    link->timer_ns = 0;
    link->nudge_ns = sl_now_ns() + NUDGE_MS * SL_NS_PER_MS;
    link->tried_count = 0;
    link->easy = sl_libcurl.easy_init();
    link->multi = link->easy ? sl_libcurl.multi_init() : NULL;
    if (link->multi && give_addresses(link) && set_options(link, &choice, left_ms) &&
        sl_libcurl.multi_add_handle(link->multi, link->easy) == CURLM_OK)
        return 0;
    sl_link_curl_end(link);
    return sl_fail(err, SL_E_NO_SPACE, "cannot prepare a connection to '%s'", link->authority);
}

/*
 * For leaving an address that is silent for the next one of the name, curl sets no timer and, in
 * between, has no socket: it looks at its clock whenever it is called. Of its functions only this
 * one runs everything and tells of sockets as well.
 */
static void nudge(struct sl_link *link)
{
    int running;
    link->nudge_ns = sl_now_ns() + NUDGE_MS * SL_NS_PER_MS;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    sl_libcurl.multi_socket_all(link->multi, &running);
#pragma GCC diagnostic pop
}

/* One round of curl's work; true if there was any. */
bool sl_link_curl_drive(struct sl_link *link)
{
    struct pollfd fds[SL_LINK_POLL_MAX];
    int count = link->wanted_count, running;
    bool worked = false;
    memcpy(fds, link->wanted, sizeof(fds));
    if (count && poll(fds, (nfds_t)count, 0) > 0) {
        for (int i = 0; i < count; i++) {
            int events = (fds[i].revents & (POLLIN | POLLHUP) ? CURL_CSELECT_IN : 0) |
                         (fds[i].revents & POLLOUT ? CURL_CSELECT_OUT : 0) |
                         (fds[i].revents & (POLLERR | POLLNVAL) ? CURL_CSELECT_ERR : 0);
            if (events) {
                sl_libcurl.multi_socket_action(link->multi, fds[i].fd, events, &running);
                worked = true;
            }
        }
    }
    uint64_t now = sl_now_ns();
    if (link->nudge_ns <= now) {
        nudge(link);
        worked = true;
    }
    if (link->timer_ns <= now) {
        link->timer_ns = UINT64_MAX;
        sl_libcurl.multi_socket_action(link->multi, CURL_SOCKET_TIMEOUT, 0, &running);
        worked = true;
    }
    if (!link->begun && needs_trust(link)) /* while the first packet is on its way */
        (void)sl_trust_store(link->trust);
    link->begun = true;
    return worked;
}
