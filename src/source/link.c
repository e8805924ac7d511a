/*
 * libcurl in CONNECT_ONLY mode makes the connection: names, happy eyeballs, tunnels, TLS and
 * certificates are its work. On a plain connection we then use the socket itself, so that bytes go
 * from the kernel to their place; on TLS curl_easy_recv().
 *
 * Every link has a curl multi handle of its own, for two reasons: connecting does not block the
 * thread, which has other links to drive, and libcurl closes idle CONNECT_ONLY connections of a
 * multi that is driven for others.
 *
 * Addresses: eight shared caches take turns. Each resolves a name once and shuffles the answer, so
 * links spread over the addresses of a name for at most eight look-ups a minute.
 */
#include "link.h"

#include <curl/curl.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ca.h"
#include "link_local.h"
#include "metrics.h"
#include "retry.h"
#include "url.h"

enum { CACHE_COUNT = 8, CONNECT_SECONDS_DEFAULT = 10, DRIVE_ROUNDS_MAX = 64, NUDGE_MS = 100 };

static const struct sl_option tls_rows[] = {
    SL_OPTION(sl_tls_options, ca_file, STRING, "",
              "file of certificates (PEM) that servers are trusted by, instead of the system's"),
    SL_OPTION(sl_tls_options, verify, BOOL, "true",
              "check the server's certificate; without it anyone on the way can change the model"),
    SL_OPTION_END,
};
const struct sl_option_table sl_tls_table = {"tls", sizeof(struct sl_tls_options), tls_rows};

/* ---- once per process ------------------------------------------------------------------------ */

static struct {
    CURLSH *handle;
    pthread_mutex_t mutexes[CURL_LOCK_DATA_LAST];
} caches[CACHE_COUNT];
static struct sl_counter cache_turn;
static pthread_once_t setup_once = PTHREAD_ONCE_INIT;
static bool setup_good;

static void lock_cache(CURL *easy, curl_lock_data data, curl_lock_access access, void *mutexes)
{
    (void)easy, (void)access;
    pthread_mutex_lock((pthread_mutex_t *)mutexes + data);
}

static void unlock_cache(CURL *easy, curl_lock_data data, void *mutexes)
{
    (void)easy;
    pthread_mutex_unlock((pthread_mutex_t *)mutexes + data);
}

static void setup(void)
{
    if (curl_global_init(CURL_GLOBAL_ALL) != CURLE_OK)
        return;
    for (unsigned i = 0; i < CACHE_COUNT; i++) {
        for (unsigned k = 0; k < CURL_LOCK_DATA_LAST; k++)
            pthread_mutex_init(&caches[i].mutexes[k], NULL);
        CURLSH *cache = caches[i].handle = curl_share_init();
        if (!cache)
            return;
        curl_share_setopt(cache, CURLSHOPT_LOCKFUNC, lock_cache);
        curl_share_setopt(cache, CURLSHOPT_UNLOCKFUNC, unlock_cache);
        curl_share_setopt(cache, CURLSHOPT_USERDATA, caches[i].mutexes);
        curl_share_setopt(cache, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
        curl_share_setopt(cache, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
    }
    setup_good = true;
}

int sl_link_setup(struct sl_err *err)
{
    pthread_once(&setup_once, setup);
    return setup_good ? 0 : sl_fail(err, SL_E_INTERNAL, "libcurl cannot be initialised");
}

static CURLSH *next_cache(void)
{
    sl_counter_add(&cache_turn, 1);
    return caches[sl_counter_get(&cache_turn) % CACHE_COUNT].handle;
}

/*
 * A TLS library may write() to a connection that the peer has closed, and the SIGPIPE would end a
 * process that does not ignore it; its disposition is the program's business, not ours. So the
 * signal is blocked in this thread while libcurl works, and one that came of it is taken away.
 */
struct quiet {
    sigset_t before;
    bool pending; /* one was there before us: it stays */
};

static void pipe_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGPIPE);
}

static struct quiet quiet_begin(void)
{
    struct quiet quiet = {.pending = false};
    sigset_t set, waiting;
    pipe_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, &quiet.before);
    if (sigismember(&quiet.before, SIGPIPE) && sigpending(&waiting) == 0)
        quiet.pending = sigismember(&waiting, SIGPIPE) == 1;
    return quiet;
}

static void quiet_end(struct quiet *quiet)
{
    const struct timespec now = {0};
    sigset_t set;
    pipe_set(&set);
    if (!quiet->pending)
        sigtimedwait(&set, NULL, &now);
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
}

#define QUIET_PIPE __attribute__((cleanup(quiet_end), unused)) struct quiet quiet = quiet_begin()

/* ---- connecting ------------------------------------------------------------------------------ */

struct sl_link {
    const struct sl_connect *connect;
    CURLM *multi;
    CURL *easy;
    struct pollfd wanted[SL_FETCH_POLL_MAX]; /* what curl waits for while it connects */
    int wanted_count;
    uint64_t timer_ns, nudge_ns;
    int fd; /* of the connection, -1 until connected */
    bool tls;
    size_t expected; /* SO_RCVLOWAT as it is set */
    char authority[SL_URL_AUTHORITY_MAX];
    char host[SL_URL_AUTHORITY_MAX];
    bool refused; /* an address that its name led to */
    char trouble[CURL_ERROR_SIZE];
};

struct sl_link *sl_link_new(const struct sl_connect *connect, struct sl_err *err)
{
    if (sl_link_setup(err) < 0)
        return NULL;
    struct sl_link *link = sl_alloc(sizeof(*link), err);
    if (!link)
        return NULL;
    link->connect = connect;
    link->fd = -1;
    return link;
}

void sl_link_free(struct sl_link *link)
{
    if (!link)
        return;
    sl_link_close(link);
    free(link);
}

void sl_link_close(struct sl_link *link)
{
    if (!link->multi && !link->easy)
        return;
    QUIET_PIPE;
    if (link->multi && link->easy)
        curl_multi_remove_handle(link->multi, link->easy);
    curl_easy_cleanup(link->easy);
    if (link->multi)
        curl_multi_cleanup(link->multi);
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
    if (i == SL_FETCH_POLL_MAX)
        return 0;
    link->wanted_count = SL_MAX(link->wanted_count, i + 1);
    link->wanted[i].fd = fd;
    link->wanted[i].events =
        (short)((what & CURL_POLL_IN ? POLLIN : 0) | (what & CURL_POLL_OUT ? POLLOUT : 0));
    return 0;
}

static int note_timer(CURLM *multi, long ms, void *arg)
{
    struct sl_link *link = arg;
    (void)multi;
    link->timer_ns = ms < 0 ? UINT64_MAX : sl_now_ns() + (uint64_t)ms * SL_NS_PER_MS;
    return 0;
}

/* curl's own socket(), but for addresses that a name must not lead to. */
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct sl_link *link = arg;
    if (purpose == CURLSOCKTYPE_IPCXN && sl_link_local_refused(link->host, &address->addr)) {
        link->refused = true;
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static bool set_options(struct sl_link *link, const char *url, const char *proxy)
{
    CURL *easy = link->easy;
    const struct sl_connect *connect = link->connect;
    unsigned seconds =
        connect->connect_seconds ? connect->connect_seconds : CONNECT_SECONDS_DEFAULT;
    CURLcode bad = CURLE_OK;
#define SET(option, value) (bad = bad ? bad : curl_easy_setopt(easy, option, value))
    SET(CURLOPT_URL, url);
    SET(CURLOPT_CONNECT_ONLY, 1L);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_PROXY, proxy);
    SET(CURLOPT_NOPROXY, "");
    SET(CURLOPT_HTTPPROXYTUNNEL, *proxy ? 1L : 0L);
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)seconds * 1000);
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
    SET(CURLOPT_QUICK_EXIT, 1L); /* closing does not wait for a name server that is silent */
#endif
    SET(CURLOPT_SHARE, next_cache());
    if (!connect->direct && !*proxy) {
        SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
        SET(CURLOPT_OPENSOCKETDATA, link);
    }
    SET(CURLOPT_ERRORBUFFER, link->trouble);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (connect->tls && !connect->tls->verify) {
        SET(CURLOPT_SSL_VERIFYPEER, 0L);
        SET(CURLOPT_SSL_VERIFYHOST, 0L);
    }
#undef SET
    bad = bad ? bad : sl_ca_use(easy, connect->tls ? connect->tls->ca_file : NULL);
    curl_multi_setopt(link->multi, CURLMOPT_SOCKETFUNCTION, note_socket);
    curl_multi_setopt(link->multi, CURLMOPT_SOCKETDATA, link);
    curl_multi_setopt(link->multi, CURLMOPT_TIMERFUNCTION, note_timer);
    curl_multi_setopt(link->multi, CURLMOPT_TIMERDATA, link);
    return bad == CURLE_OK;
}

int sl_link_open(struct sl_link *link, const char *url, const char *proxy, struct sl_err *err)
{
    sl_link_close(link);
    sl_autourl parsed = {0};
    if (sl_url_parse(url, &parsed, err) < 0)
        return -1;
    sl_url_authority(&parsed, link->authority);
    snprintf(link->host, sizeof(link->host), "%s", parsed.host);
    link->tls = parsed.tls;
    link->refused = false;
    link->trouble[0] = 0;
    link->timer_ns = 0;
    link->nudge_ns = sl_now_ns() + NUDGE_MS * SL_NS_PER_MS;
    link->easy = curl_easy_init();
    link->multi = link->easy ? curl_multi_init() : NULL;
    if (!link->multi || !set_options(link, url, proxy) ||
        curl_multi_add_handle(link->multi, link->easy) != CURLM_OK) {
        sl_link_close(link);
        return sl_fail(err, SL_E_NO_SPACE, "cannot prepare a connection to '%s'", link->authority);
    }
    sl_metric_add(SL_M_SOURCE_CONNECTS, 1);
    return 0;
}

/* What curl could not do, in our terms. */
static int fail_connect(struct sl_link *link, CURLcode code, struct sl_err *err)
{
    const char *reason = link->trouble[0] ? link->trouble : curl_easy_strerror(code);
    long answered = 0;
    curl_easy_getinfo(link->easy, CURLINFO_HTTP_CONNECTCODE, &answered);
    bool broken_off = strstr(reason, "SYSCALL") || strstr(reason, "reset");
    if (link->refused && code == CURLE_COULDNT_CONNECT) {
        sl_fail(err, SL_E_NET,
                "'%s' leads to a link-local address, where clouds keep the keys of machines: name "
                "the address itself if it is meant",
                link->authority);
    } else if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
               code == CURLE_SSL_ISSUER_ERROR) {
        sl_fail(err, SL_E_NET,
                "cannot trust '%s': %s; set source.tls.caFile to a file with the certificate of "
                "its issuer",
                link->authority, reason);
    } else if (code == CURLE_SSL_CONNECT_ERROR && !broken_off) {
        sl_fail(err, SL_E_NET, "'%s' refuses TLS: %s; is the port right, and is it https?",
                link->authority, reason);
    } else if (code == CURLE_OPERATION_TIMEDOUT && strstr(reason, "SSL")) {
        sl_fail_code(err, SL_E_NET, SL_FETCH_UNREACHED,
                     "'%s' takes the connection but does not answer to TLS: %s; is the port right, "
                     "and is it https?",
                     link->authority, reason);
        return -1;
    } else if (answered == 407) {
        sl_fail(err, SL_E_AUTH,
                "the proxy for '%s' wants credentials: put user:password@ into its URL",
                link->authority);
    } else {
        sl_fail_code(err, code == CURLE_OUT_OF_MEMORY ? SL_E_NO_SPACE : SL_E_NET,
                     SL_FETCH_UNREACHED,
                     "cannot connect to '%s': %s; check the name, the port, the network and the "
                     "proxy settings",
                     link->authority, reason);
        if (err)
            err->retryable = answered < 400 || sl_retry_status((int)answered);
        return -1;
    }
    if (err)
        err->retryable = false;
    return -1;
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
    curl_multi_socket_all(link->multi, &running);
#pragma GCC diagnostic pop
}

/* One round of curl's work; true if there was any. */
static bool drive(struct sl_link *link)
{
    struct pollfd fds[SL_FETCH_POLL_MAX];
    int count = link->wanted_count, running;
    bool worked = false;
    memcpy(fds, link->wanted, sizeof(fds));
    if (count && poll(fds, (nfds_t)count, 0) > 0) {
        for (int i = 0; i < count; i++) {
            int events = (fds[i].revents & (POLLIN | POLLHUP) ? CURL_CSELECT_IN : 0) |
                         (fds[i].revents & POLLOUT ? CURL_CSELECT_OUT : 0) |
                         (fds[i].revents & (POLLERR | POLLNVAL) ? CURL_CSELECT_ERR : 0);
            if (events) {
                curl_multi_socket_action(link->multi, fds[i].fd, events, &running);
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
        curl_multi_socket_action(link->multi, CURL_SOCKET_TIMEOUT, 0, &running);
        worked = true;
    }
    return worked;
}

enum sl_fetch_state sl_link_connect(struct sl_link *link, struct sl_err *err)
{
    if (link->fd >= 0)
        return SL_FETCH_DATA;
    QUIET_PIPE;
    for (int round = 0; round < DRIVE_ROUNDS_MAX; round++) {
        bool worked = drive(link);
        int left;
        CURLMsg *message = curl_multi_info_read(link->multi, &left);
        if (message && message->msg == CURLMSG_DONE) {
            curl_socket_t fd = CURL_SOCKET_BAD;
            CURLcode code = message->data.result;
            if (code == CURLE_OK)
                code = curl_easy_getinfo(link->easy, CURLINFO_ACTIVESOCKET, &fd);
            if (code == CURLE_OK && fd == CURL_SOCKET_BAD)
                code = CURLE_COULDNT_CONNECT;
            if (code != CURLE_OK) {
                fail_connect(link, code, err);
                sl_link_close(link);
                return SL_FETCH_FAILED;
            }
            link->fd = fd;
            return SL_FETCH_DATA;
        }
        if (!worked)
            break;
    }
    return SL_FETCH_WAIT;
}

int sl_link_poll(const struct sl_link *link, bool want_write, struct pollfd fds[SL_FETCH_POLL_MAX],
                 uint64_t *deadline_ns)
{
    *deadline_ns = UINT64_MAX;
    if (link->fd >= 0) {
        fds[0] = (struct pollfd){link->fd, want_write ? POLLOUT | POLLIN : POLLIN, 0};
        return 1;
    }
    memcpy(fds, link->wanted, sizeof(link->wanted));
    *deadline_ns = SL_MIN(link->timer_ns, link->nudge_ns);
    return link->wanted_count;
}

/* poll() does not tell: it sees neither less than SO_RCVLOWAT nor what the TLS library holds. */
bool sl_link_idle(struct sl_link *link)
{
    char byte;
    if (link->fd < 0)
        return false;
    if (!link->tls)
        return recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
    QUIET_PIPE;
    size_t came;
    return curl_easy_recv(link->easy, &byte, 1, &came) == CURLE_AGAIN;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static int fail_io(struct sl_link *link, int number, const char *verb, struct sl_err *err)
{
    return sl_fail_errno(err, SL_E_NET, number, "cannot %s '%s'", verb, link->authority);
}

ssize_t sl_link_send(struct sl_link *link, const void *data, size_t bytes, struct sl_err *err)
{
    if (!link->tls) {
        ssize_t sent = send(link->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            return sent;
        if (errno == EAGAIN || errno == EINTR)
            return SL_LINK_AGAIN;
        return fail_io(link, errno, "send to", err);
    }
    QUIET_PIPE;
    size_t sent = 0;
    CURLcode code = curl_easy_send(link->easy, data, bytes, &sent);
    if (code == CURLE_AGAIN)
        return SL_LINK_AGAIN;
    if (code == CURLE_OK)
        return (ssize_t)sent;
    return sl_fail(err, SL_E_NET, "cannot send to '%s': %s", link->authority,
                   curl_easy_strerror(code));
}

/* TLS records are at most 16 KiB: go on while there are any, since poll() does not see what the
 * library holds. */
static ssize_t recv_tls(struct sl_link *link, char *data, size_t bytes, struct sl_err *err)
{
    QUIET_PIPE;
    size_t used = 0;
    while (used < bytes) {
        size_t came = 0;
        CURLcode code = curl_easy_recv(link->easy, data + used, bytes - used, &came);
        if (code == CURLE_AGAIN)
            return used ? (ssize_t)used : SL_LINK_AGAIN;
        if (code != CURLE_OK && !used)
            return sl_fail(err, SL_E_NET, "cannot receive from '%s': %s", link->authority,
                           curl_easy_strerror(code));
        if (code != CURLE_OK || came == 0)
            break;
        used += came;
    }
    return (ssize_t)used;
}

ssize_t sl_link_recv(struct sl_link *link, void *data, size_t bytes, struct sl_err *err)
{
    if (link->tls)
        return recv_tls(link, data, bytes, err);
    ssize_t came = recv(link->fd, data, bytes, MSG_DONTWAIT);
    if (came >= 0)
        return came;
    if (errno == EAGAIN || errno == EINTR)
        return SL_LINK_AGAIN;
    return fail_io(link, errno, "receive from", err);
}

void sl_link_expect(struct sl_link *link, size_t bytes)
{
    int value = (int)SL_MAX(bytes, 1);
    if (link->tls || link->fd < 0 || link->expected == (size_t)value ||
        (value == 1 && !link->expected))
        return;
    if (setsockopt(link->fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value)) == 0)
        link->expected = (size_t)value;
}
