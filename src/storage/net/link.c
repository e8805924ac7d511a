/*
 * From a URL to a connection, and its bytes.
 *
 *     CLOSED ──▶ PERMITTING ──▶ LOOKING ──▶ DIALING ──▶ OPEN      each may end in CLOSED
 *                                           ▲     │
 *                                           └─────┘ another address does better
 *
 *     sl_link_open()   PERMITTING: it waits for a permit of the host
 *     prepare()        LOOKING: for the host's addresses
 *     connect_anew()   DIALING: by ourselves, or by libcurl where there is TLS or a tunnel
 *     settle()         OPEN
 *     sl_link_close()  CLOSED
 *
 * Both ways of dialing try the addresses in the order that they are given, and leave one that is
 * silent after half of the time to connect. Where another address does well that is long: after a
 * fifth of the time we begin again with that one. Whichever was tried in vain is told to the host
 * (host.h), so that the next connections go elsewhere at once.
 *
 * On a plain connection we use the socket itself, so that bytes go from the kernel to their place;
 * on TLS sl_libcurl.easy_recv().
 */
#include "link.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ca.h"
#include "imds.h"
#include "latency.h"
#include "link_state.h"
#include "metrics.h"
#include "proxy.h"
#include "retry.h"
#include "trust.h"

enum {
    DRIVE_ROUNDS_MAX = 64,
    NAMES_BYTES = 200,
    OTHER_FAMILY_MS = 200,
    KEEPALIVE_SECONDS = 60,
};
#define ASK_NS    (20 * SL_NS_PER_MS)
#define NS_PER_US UINT64_C(1000)

static const struct sl_option tls_rows[] = {
    SL_OPTION(sl_tls_options, ca_file, STRING, "",
              "file of certificates (PEM) that servers are trusted by, instead of the system's"),
    SL_OPTION(sl_tls_options, verify, BOOL, "true",
              "check the server's certificate; without it anyone on the way can change the model"),
    SL_OPTION_END,
};
const struct sl_option_table sl_tls_table = {"tls", sizeof(struct sl_tls_options), tls_rows};

static void set_stage(struct sl_link *link, enum sl_link_stage to)
{
    assert(to == SL_LINK_CLOSED || to == link->stage + 1 ||
           (to == SL_LINK_DIALING && link->stage == to));
    link->stage = to;
}

struct sl_link *sl_link_new(const struct sl_connect *connect, struct sl_err *err)
{
    struct sl_link *link = sl_alloc(sizeof(*link), err);
    if (!link)
        return NULL;
    link->connect = *connect;
    link->fd = -1;
    return link;
}

void sl_link_free(struct sl_link *link)
{
    if (!link)
        return;
    sl_link_close(link);
    free(link->url);
    free(link->proxy);
    free(link);
}

/* ---- plain connections ------------------------------------------------------------------------
 *
 * They are made by ourselves, since libcurl, with all that it brings, takes longer to load than a
 * small object. As libcurl does: addresses of one family one after another, each of them (but the
 * last) for half of the time that is left; those of the other family beside them, a little later
 * (RFC 8305).
 */

static void drop_family(struct sl_dial_family *family)
{
    if (family->fd >= 0)
        close(family->fd);
    family->fd = -1;
}

static void set_option(int fd, int level, int name, int value)
{
    (void)!setsockopt(fd, level, name, &value, sizeof(value));
}

static int make_socket(int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_SECONDS);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_SECONDS);
    return fd;
}

/* A socket on its way there, or -1. */
static int connect_to(struct sl_link *link, union sl_host_sockaddr address)
{
    bool v6 = address.any.sa_family == AF_INET6;
    if (!link->connect.direct && sl_imds_refused(link->host, &address.any)) {
        link->refused = true;
        return -1;
    }
    int number = sl_host_number(&link->permit, &address.any);
    if (number >= 0 && link->tried_count < SL_HOST_ADDRESSES_MAX)
        link->tried[link->tried_count++] = number;
    *(v6 ? &address.v6.sin6_port : &address.v4.sin_port) = htons(link->port);
    int fd = make_socket(address.any.sa_family);
    if (fd >= 0 && (connect(fd, &address.any, v6 ? sizeof(address.v6) : sizeof(address.v4)) == 0 ||
                    errno == EINPROGRESS || errno == EINTR))
        return fd;
    link->dial.trouble = errno;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The next address of a family; false: there is none. */
static bool next_address(const struct sl_dial *dial, struct sl_dial_family *family)
{
    while (family->next < dial->count &&
           dial->addresses[family->next].any.sa_family != family->kind)
        family->next++;
    return family->next < dial->count;
}

static void try_next(struct sl_link *link, struct sl_dial_family *family)
{
    struct sl_dial *dial = &link->dial;
    drop_family(family);
    while (family->fd < 0 && next_address(dial, family))
        family->fd = connect_to(link, dial->addresses[family->next++]);
    uint64_t now = sl_now_ns();
    family->leave_ns = next_address(dial, family) && dial->end_ns > now
                           ? now + (dial->end_ns - now) / 2
                           : dial->end_ns;
}

/* Begin to connect; left_ms: to be done. false: the connection needs libcurl. */
static bool dial_begin(struct sl_link *link, uint64_t left_ms)
{
    struct sl_dial *dial = &link->dial;
    if (link->tls || *link->proxy)
        return false;
    dial->count = sl_host_addresses(&link->permit, link->avoided, dial->addresses);
    if (!dial->count)
        return false;
    bool v6 = dial->addresses[0].any.sa_family == AF_INET6;
    link->refused = false;
    link->tried_count = 0;
    dial->on = true;
    dial->trouble = 0;
    dial->end_ns = sl_now_ns() + left_ms * SL_NS_PER_MS;
    dial->other_ns = sl_now_ns() + OTHER_FAMILY_MS * SL_NS_PER_MS;
    for (int i = 0; i < 2; i++)
        dial->families[i] =
            (struct sl_dial_family){.fd = -1, .kind = v6 == !i ? AF_INET6 : AF_INET};
    try_next(link, &dial->families[0]);
    return true;
}

/* DATA: it stands. */
static enum sl_io_state look_at(struct sl_dial *dial, struct sl_dial_family *family)
{
    struct pollfd socket = {family->fd, POLLOUT, 0};
    socklen_t bytes = sizeof(int);
    int trouble = 0;
    if (poll(&socket, 1, 0) <= 0) {
        if (sl_now_ns() < family->leave_ns)
            return SL_IO_WAIT;
        trouble = ETIMEDOUT;
    } else if (getsockopt(family->fd, SOL_SOCKET, SO_ERROR, &trouble, &bytes) < 0) {
        trouble = errno;
    }
    if (trouble)
        dial->trouble = trouble;
    return trouble ? SL_IO_FAILED : SL_IO_DATA;
}

/* DATA: connected, *fd is the caller's. FAILED: dial.trouble or refused says why. */
static enum sl_io_state dial_drive(struct sl_link *link, int *fd)
{
    struct sl_dial *dial = &link->dial;
    struct sl_dial_family *first = &dial->families[0], *other = &dial->families[1];
    for (struct sl_dial_family *family = first; family <= other; family++) {
        enum sl_io_state state = family->fd < 0 ? SL_IO_WAIT : look_at(dial, family);
        if (state == SL_IO_DATA) {
            *fd = family->fd;
            family->fd = -1;
            drop_family(family == first ? other : first);
            return SL_IO_DATA;
        }
        if (state == SL_IO_FAILED)
            try_next(link, family);
    }
    if (dial->other_ns != UINT64_MAX && (first->fd < 0 || sl_now_ns() >= dial->other_ns)) {
        dial->other_ns = UINT64_MAX;
        try_next(link, other);
    }
    return first->fd < 0 && other->fd < 0 ? SL_IO_FAILED : SL_IO_WAIT;
}

static int dial_poll(const struct sl_link *link, struct pollfd *fds, uint64_t *deadline_ns)
{
    const struct sl_dial *dial = &link->dial;
    int count = 0;
    *deadline_ns = dial->other_ns;
    for (int i = 0; i < 2; i++) {
        if (dial->families[i].fd < 0)
            continue;
        fds[count++] = (struct pollfd){dial->families[i].fd, POLLOUT, 0};
        *deadline_ns = SL_MIN(*deadline_ns, dial->families[i].leave_ns);
    }
    return count;
}

/* Close what is on its way, and the connection. */
static void dial_end(struct sl_link *link)
{
    if (!link->dial.on)
        return;
    drop_family(&link->dial.families[0]);
    drop_family(&link->dial.families[1]);
    if (link->fd >= 0)
        close(link->fd);
    link->dial.on = false;
    link->fd = -1;
    link->expected = 0;
}

static uint64_t connect_ns(const struct sl_link *link)
{
    return sl_latency_connect_limit(link->connect.connect_seconds);
}

/* When these addresses have had their time. */
static uint64_t slow_ns(const struct sl_link *link)
{
    return link->dialed_ns + sl_latency_address_delay(link->connect.connect_seconds);
}

static bool are_addresses_slow(const struct sl_link *link)
{
    return sl_now_ns() >= slow_ns(link);
}

/* ---- opening and closing --------------------------------------------------------------------- */

int sl_link_open(struct sl_link *link, const char *url, const char *proxy, struct sl_err *err)
{
    sl_link_close(link);
    sl_autourl parsed = {0};
    if (sl_url_parse(url, &parsed, err) < 0)
        return -1;
    sl_url_authority(&parsed, link->authority);
    snprintf(link->host, sizeof(link->host), "%s", parsed.host);
    link->port = parsed.port;
    link->tls = parsed.tls;
    free(link->url);
    free(link->proxy);
    link->url = sl_strdup(url, err);
    link->proxy = link->url ? sl_strdup(proxy, err) : NULL;
    if (!link->proxy ||
        (!*proxy && sl_host_ask_permit(&link->permit, link->host, link->port, link->connect.owner,
                                       link->connect.host_connections, err) < 0))
        return -1;
    set_stage(link, SL_LINK_PERMITTING);
    link->ask_ns = 0;
    link->avoided = 0;
    return 0;
}

static uint32_t tried_bits(const struct sl_link *link)
{
    uint32_t bits = link->avoided;
    for (unsigned i = 0; i < link->tried_count; i++)
        bits |= UINT32_C(1) << link->tried[i];
    return bits;
}

/* Those that were tried before this one in vain; -1: all. */
static void refuse_tried(struct sl_link *link, int winner)
{
    for (unsigned i = 0; i < link->tried_count && link->tried[i] != winner; i++)
        sl_host_refused(&link->permit, link->tried[i]);
}

static void end(struct sl_link *link)
{
    dial_end(link);
    sl_link_curl_end(link);
}

void sl_link_close(struct sl_link *link)
{
    if (link->stage == SL_LINK_DIALING && are_addresses_slow(link))
        refuse_tried(link, -1);
    end(link);
    sl_host_leave(&link->permit);
    set_stage(link, SL_LINK_CLOSED);
}

/* ---- from one owner to another --------------------------------------------------------------- */

void sl_link_leave(struct sl_link *link)
{
    link->connect = (struct sl_connect){.direct = link->connect.direct};
    sl_host_pass_permit(&link->permit, NULL, 0);
}

void sl_link_enter(struct sl_link *link, const struct sl_connect *connect)
{
    link->connect = *connect;
    sl_host_pass_permit(&link->permit, connect->owner, connect->host_connections);
}

static bool is_trusted_alike(const struct sl_link *link, const struct sl_tls_options *tls)
{
    const struct sl_ca_choice choice = sl_ca_choose(tls ? tls->ca_file : NULL);
    struct sl_trust *trust = sl_trust_take(&choice, NULL);
    bool same = trust == link->trust && link->verified == (!tls || tls->verify);
    sl_trust_release(trust);
    return same;
}

bool sl_link_serves(const struct sl_link *link, const struct sl_connect *connect, const char *url,
                    const char *proxy)
{
    return link->connect.direct == connect->direct && strcmp(link->url, url) == 0 &&
           strcmp(link->proxy, proxy) == 0 &&
           (!link->trust || is_trusted_alike(link, connect->tls));
}

bool sl_link_leads_as(const struct sl_link *link, const struct sl_link *other)
{
    return strcmp(link->url, other->url) == 0 && strcmp(link->proxy, other->proxy) == 0;
}

/* ---- failing --------------------------------------------------------------------------------- */

/* " (127.0.0.2, 127.0.0.3)", or nothing where the name is an address. */
static void tried_names(const struct sl_link *link, char text[NAMES_BYTES])
{
    char names[NAMES_BYTES - 4];
    text[0] = 0;
    if (*sl_host_names(&link->permit, tried_bits(link), names, sizeof(names)))
        snprintf(text, NAMES_BYTES, " (%s)", names);
}

/* Each way in which a certificate can be wrong is mended in another place. */
static int fail_trust(struct sl_link *link, CURLcode code, const char *reason, struct sl_err *err)
{
    const struct sl_tls_options *tls = link->connect.tls;
    const struct sl_ca_choice trusted = sl_ca_choose(tls ? tls->ca_file : NULL);
    const char *from =
        tls && tls->ca_file && *tls->ca_file && tls->ca_from ? tls->ca_from : trusted.from;
    if (code == CURLE_SSL_CACERT_BADFILE)
        return sl_fail(err, SL_E_NET,
                       "cannot read the trusted certificates in '%s' (from %s): name a file of "
                       "certificates (PEM) that is there",
                       trusted.file ? trusted.file : "", from);
    if (strstr(reason, "has expired"))
        return sl_fail(err, SL_E_NET,
                       "the certificate of '%s' has expired: renew it on the server, or set this "
                       "machine's clock if it is wrong",
                       link->authority);
    if (strstr(reason, "not yet valid"))
        return sl_fail(err, SL_E_NET,
                       "the certificate of '%s' is not valid yet: set this machine's clock if it "
                       "is wrong, or wait until the certificate is valid",
                       link->authority);
    if (strstr(reason, "subject name") || strstr(reason, "does not match"))
        return sl_fail(err, SL_E_NET,
                       "the certificate of '%s' is for another name (%s): use the name that it "
                       "was issued for, or give the server one for this name",
                       link->authority, reason);
    return sl_fail(err, SL_E_NET,
                   "cannot trust '%s': %s; its issuer is not among the certificates in '%s' (from "
                   "%s): set source.tls.caFile to a file with the issuer's certificate",
                   link->authority, reason, trusted.file ? trusted.file : "no file", from);
}

static const char too_many_files[] = "too many open files: raise the limit (ulimit -n)";

const char *sl_link_reason(long number)
{
    switch (number) {
    case EMFILE:
        return too_many_files;
    case ECONNREFUSED:
        return "connection refused, nothing listens on that port";
    case EHOSTUNREACH:
    case ENETUNREACH:
        return "no route to it";
    case ETIMEDOUT:
        return "it does not answer in time";
    default:
        return NULL;
    }
}

/* curl only says that it could not connect; the kernel knows why. */
static const char *curl_reason(const struct sl_link *link, CURLcode code)
{
    long number = 0;
    if (code == CURLE_COULDNT_CONNECT)
        sl_libcurl.easy_getinfo(link->easy, CURLINFO_OS_ERRNO, &number);
    const char *reason = sl_link_reason(number);
    if (reason)
        return reason;
    return link->trouble[0] ? link->trouble : sl_libcurl.easy_strerror(code);
}

static int fail_refused(const struct sl_link *link, struct sl_err *err)
{
    sl_fail(err, SL_E_NET,
            "'%s' leads to a cloud's metadata address, which serves the machine's keys: name the "
            "address itself if you mean it",
            link->authority);
    if (err)
        err->retryable = false;
    return -1;
}

static const char *hint(const struct sl_link *link)
{
    bool plain = !link->tls && !*link->proxy && !link->connect.direct;
    return plain ? sl_proxy_hint(link->host, link->port) : "";
}

static int fail_unreached(const struct sl_link *link, enum sl_err_kind kind, const char *reason,
                          bool retryable, struct sl_err *err)
{
    char names[NAMES_BYTES], way[SL_URL_AUTHORITY_MAX + 40] = "";
    bool here = reason == too_many_files;
    tried_names(link, names);
    if (*link->proxy)
        snprintf(way, sizeof(way), " through the proxy '%s'", sl_proxy_place(link->proxy));
    sl_fail_code(err, kind, SL_NET_UNREACHED, "cannot connect to '%s'%s%s: %s%s%s", link->authority,
                 way, names, reason,
                 here ? "" : "; check the name, the port, the network and the proxy settings",
                 here ? "" : hint(link));
    if (err)
        err->retryable = retryable;
    return -1;
}

static int fail_dial(const struct sl_link *link, struct sl_err *err)
{
    const char *reason = sl_link_reason(link->dial.trouble);
    char text[100];
    if (link->refused)
        return fail_refused(link, err);
    if (!reason)
        reason = strerror_r(link->dial.trouble, text, sizeof(text));
    return fail_unreached(link, SL_E_NET, reason, true, err);
}

/* What curl could not do, in our terms. */
static int fail_curl(struct sl_link *link, CURLcode code, struct sl_err *err)
{
    const char *reason = curl_reason(link, code);
    long answered = 0;
    sl_libcurl.easy_getinfo(link->easy, CURLINFO_HTTP_CONNECTCODE, &answered);
    bool broken_off = strstr(reason, "SYSCALL") || strstr(reason, "reset");
    if (link->refused && code == CURLE_COULDNT_CONNECT)
        return fail_refused(link, err);
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
        code == CURLE_SSL_ISSUER_ERROR) {
        fail_trust(link, code, reason, err);
    } else if (code == CURLE_SSL_CONNECT_ERROR && strstr(reason, "wrong version number")) {
        sl_fail(err, SL_E_NET,
                "'%s' answers, but not in TLS: write http://%s if it has none (an address without "
                "a scheme is taken for https)",
                link->authority, link->authority);
    } else if (code == CURLE_SSL_CONNECT_ERROR && !broken_off) {
        sl_fail(err, SL_E_NET, "'%s' refuses TLS: %s; is the port right, and is it https?",
                link->authority, reason);
    } else if (code == CURLE_OPERATION_TIMEDOUT && strstr(reason, "SSL")) {
        sl_fail_code(err, SL_E_NET, SL_NET_UNREACHED,
                     "'%s' takes the connection but does not answer to TLS: %s; is the port right, "
                     "and is it https?",
                     link->authority, reason);
        return -1;
    } else if (answered == 407) {
        sl_fail(err, SL_E_AUTH, "cannot connect to '%s': the proxy '%s' " SL_PROXY_LOGIN,
                link->authority, sl_proxy_place(link->proxy));
    } else if (answered >= 400 && !sl_retry_status((int)answered)) {
        sl_fail(err, SL_E_AUTH,
                "cannot connect to '%s': the proxy '%s' refuses it (%ld): ask who runs the proxy "
                "to allow this host, or name the host in no_proxy if it is reached without",
                link->authority, sl_proxy_place(link->proxy), answered);
    } else {
        return fail_unreached(link, code == CURLE_OUT_OF_MEMORY ? SL_E_NO_SPACE : SL_E_NET, reason,
                              true, err);
    }
    if (err)
        err->retryable = false;
    return -1;
}

/* A name that leads nowhere, or takes too long. */
static enum sl_io_state fail_lookup(struct sl_link *link, const char *code, const char *why,
                                    struct sl_err *err)
{
    sl_fail_code(err, SL_E_NET, *code ? code : SL_NET_UNREACHED,
                 "cannot connect to '%s': %s; check the name, the port, the network and the proxy "
                 "settings%s",
                 link->authority, why, hint(link));
    if (err)
        err->retryable = true;
    sl_link_close(link);
    return SL_IO_FAILED;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static int connect_anew(struct sl_link *link, struct sl_err *err)
{
    uint64_t now = sl_now_ns(), end = link->opened_ns + connect_ns(link);
    uint64_t left_ms = end > now ? (end - now) / SL_NS_PER_MS + 1 : 1;
    if (!dial_begin(link, left_ms) && sl_link_curl_begin(link, left_ms, err) < 0) {
        sl_link_close(link);
        return -1;
    }
    link->dialed_ns = now;
    set_stage(link, SL_LINK_DIALING);
    sl_metric_add(SL_M_SOURCE_CONNECTS, 1);
    return 0;
}

/* Up to the point where it connects: DATA. */
static enum sl_io_state prepare(struct sl_link *link, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (link->stage == SL_LINK_PERMITTING) {
        link->ask_ns = now + ASK_NS;
        if (link->permit.host && !sl_host_is_permitted(&link->permit))
            return SL_IO_WAIT;
        set_stage(link, SL_LINK_LOOKING);
        link->opened_ns = now;
    }
    if (link->stage == SL_LINK_LOOKING) {
        struct sl_err why = SL_ERR_INIT;
        enum sl_host_state state =
            link->permit.host ? sl_host_look_up(&link->permit, &why) : SL_HOST_KNOWN;
        if (state == SL_HOST_FAILED)
            return fail_lookup(link, why.code, why.message, err);
        if (state == SL_HOST_WAIT && now - link->opened_ns >= connect_ns(link))
            return fail_lookup(link, "", "the name server does not answer", err);
        if (state == SL_HOST_WAIT)
            return SL_IO_WAIT;
        if (connect_anew(link, err) < 0)
            return SL_IO_FAILED;
    }
    return SL_IO_DATA;
}

/* A handshake takes processors, and the first one reads certificates. */
static uint64_t away_ns(const struct sl_link *link)
{
    struct tcp_info info;
    socklen_t bytes = sizeof(info);
    bool direct = link->tls && !*link->proxy;
    if (direct && getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0)
        return info.tcpi_rtt * NS_PER_US;
    return link->connect_ns;
}

static void settle(struct sl_link *link, int fd)
{
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof(peer);
    link->fd = fd;
    set_stage(link, SL_LINK_OPEN);
    link->connect_ns = sl_now_ns() - link->dialed_ns;
    link->away_ns = away_ns(link);
    if (!link->permit.host || getpeername(fd, (struct sockaddr *)&peer, &bytes) != 0)
        return;
    int number = sl_host_number(&link->permit, (struct sockaddr *)&peer);
    refuse_tried(link, number);
    sl_host_connected(&link->permit, number);
}

static enum sl_io_state give_up(struct sl_link *link)
{
    refuse_tried(link, -1);
    sl_link_close(link);
    return SL_IO_FAILED;
}

/* curl has come to an end, one way or the other. */
static enum sl_io_state take_result(struct sl_link *link, CURLcode code, struct sl_err *err)
{
    curl_socket_t fd = CURL_SOCKET_BAD;
    if (code == CURLE_OK)
        code = sl_libcurl.easy_getinfo(link->easy, CURLINFO_ACTIVESOCKET, &fd);
    if (code == CURLE_OK && fd == CURL_SOCKET_BAD)
        code = CURLE_COULDNT_CONNECT;
    if (code == CURLE_OK) {
        settle(link, fd);
        return SL_IO_DATA;
    }
    fail_curl(link, code, err);
    return give_up(link);
}

static enum sl_io_state drive_curl(struct sl_link *link, struct sl_err *err)
{
    SL_QUIET_PIPE;
    for (int round = 0; round < DRIVE_ROUNDS_MAX; round++) {
        bool worked = sl_link_curl_drive(link);
        int left;
        CURLMsg *message = sl_libcurl.multi_info_read(link->multi, &left);
        if (message && message->msg == CURLMSG_DONE)
            return take_result(link, message->data.result, err);
        if (!worked)
            break;
    }
    return SL_IO_WAIT;
}

static enum sl_io_state drive_dial(struct sl_link *link, struct sl_err *err)
{
    int fd;
    enum sl_io_state state = dial_drive(link, &fd);
    if (state == SL_IO_DATA)
        settle(link, fd);
    if (state != SL_IO_FAILED)
        return state;
    fail_dial(link, err);
    return give_up(link);
}

/* An address takes its time, and another does well: begin again with that one. */
static int try_elsewhere(struct sl_link *link, struct sl_err *err)
{
    uint32_t bits = tried_bits(link);
    if (!link->tried_count || !are_addresses_slow(link) || !sl_host_has_other(&link->permit, bits))
        return 0;
    refuse_tried(link, -1);
    link->avoided = bits;
    end(link);
    return connect_anew(link, err);
}

enum sl_io_state sl_link_connect(struct sl_link *link, struct sl_err *err)
{
    if (link->fd >= 0)
        return SL_IO_DATA;
    enum sl_io_state state = prepare(link, err);
    if (state != SL_IO_DATA)
        return state;
    state = link->dial.on ? drive_dial(link, err) : drive_curl(link, err);
    if (state != SL_IO_WAIT)
        return state;
    return try_elsewhere(link, err) < 0 ? SL_IO_FAILED : SL_IO_WAIT;
}

int sl_link_poll(const struct sl_link *link, bool want_write, struct pollfd fds[SL_LINK_POLL_MAX],
                 uint64_t *deadline_ns)
{
    *deadline_ns = UINT64_MAX;
    if (link->fd >= 0) {
        fds[0] = (struct pollfd){link->fd, want_write ? POLLOUT | POLLIN : POLLIN, 0};
        return 1;
    }
    if (link->stage == SL_LINK_PERMITTING) {
        *deadline_ns = link->ask_ns;
        return 0;
    }
    if (link->stage == SL_LINK_LOOKING) {
        fds[0] = (struct pollfd){sl_host_fd(&link->permit), POLLIN, 0};
        *deadline_ns = link->opened_ns + connect_ns(link);
        return 1;
    }
    if (link->dial.on) {
        int count = dial_poll(link, fds, deadline_ns);
        if (!are_addresses_slow(link))
            *deadline_ns = SL_MIN(*deadline_ns, slow_ns(link));
        return count;
    }
    memcpy(fds, link->wanted, sizeof(link->wanted));
    *deadline_ns = SL_MIN(link->timer_ns, link->nudge_ns);
    return link->wanted_count;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* poll() does not tell: it sees neither less than SO_RCVLOWAT nor what the TLS library holds. */
bool sl_link_idle(struct sl_link *link)
{
    char byte;
    if (link->fd < 0)
        return false;
    if (!link->tls)
        return recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
    SL_QUIET_PIPE;
    size_t came;
    return sl_libcurl.easy_recv(link->easy, &byte, 1, &came) == CURLE_AGAIN;
}

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
    SL_QUIET_PIPE;
    size_t sent = 0;
    CURLcode code = sl_libcurl.easy_send(link->easy, data, bytes, &sent);
    if (code == CURLE_AGAIN)
        return SL_LINK_AGAIN;
    if (code == CURLE_OK)
        return (ssize_t)sent;
    return sl_fail(err, SL_E_NET, "cannot send to '%s': %s", link->authority,
                   sl_libcurl.easy_strerror(code));
}

/* TLS records are at most 16 KiB: go on while there are any, since poll() does not see what the
 * library holds. */
static ssize_t recv_tls(struct sl_link *link, char *data, size_t bytes, struct sl_err *err)
{
    SL_QUIET_PIPE;
    size_t used = 0;
    while (used < bytes) {
        size_t came = 0;
        CURLcode code = sl_libcurl.easy_recv(link->easy, data + used, bytes - used, &came);
        if (code == CURLE_AGAIN)
            return used ? (ssize_t)used : SL_LINK_AGAIN;
        if (code != CURLE_OK && !used)
            return sl_fail(err, SL_E_NET, "cannot receive from '%s': %s", link->authority,
                           sl_libcurl.easy_strerror(code));
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

/* ---- what is noted of it --------------------------------------------------------------------- */

void sl_link_note_answer(struct sl_link *link, uint64_t bytes, uint64_t ns, bool whole)
{
    sl_host_answered(&link->permit, bytes, ns, whole);
}

uint64_t sl_link_away_ns(const struct sl_link *link)
{
    return link->away_ns;
}

uint64_t sl_link_answer_delay(const struct sl_link *link)
{
    return sl_latency_answer_delay(link->connect_ns, sl_host_answer_delay(&link->permit),
                                   SL_LATENCY_ANSWER_LEAST_NS);
}

void sl_link_note_wait(struct sl_link *link, uint64_t ns)
{
    sl_host_waited(&link->permit, ns);
}

bool sl_link_has_room(const struct sl_link *link)
{
    return sl_host_has_room(&link->permit);
}

bool sl_link_awaits_permit(const struct sl_link *link)
{
    return link->stage == SL_LINK_PERMITTING;
}

void sl_link_note_silence(struct sl_link *link)
{
    sl_host_doubted(&link->permit);
}

void sl_link_note_trouble(struct sl_link *link)
{
    sl_host_troubled(&link->permit);
}

bool sl_link_is_past(const struct sl_link *link)
{
    return sl_host_outdone(&link->permit) || sl_host_should_yield(&link->permit);
}

bool sl_link_leads_to(const struct sl_link *link, const struct sl_host *host)
{
    return link->permit.host == host;
}
