/*
 * From a URL to a connection: a place at the host, its addresses, and then link_dial.c, or curl
 * where there is TLS or a tunnel.
 *
 * Both try the addresses in the order that they are given, and leave one that is silent after half
 * of the time to connect. Where another address does well that is long: after a fifth of the time
 * we begin again with that one. Whichever was tried in vain is told to the host (host.h), so that
 * the next connections go elsewhere at once.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ca.h"
#include "latency.h"
#include "link_state.h"
#include "metrics.h"
#include "proxy.h"
#include "retry.h"

enum {
    DRIVE_ROUNDS_MAX = 64,
    NAMES_BYTES = 200,
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
    link->stage = SL_LINK_SEATING;
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
    sl_link_dial_end(link);
    sl_link_curl_end(link);
}

void sl_link_close(struct sl_link *link)
{
    if (link->stage == SL_LINK_DIALING && are_addresses_slow(link))
        refuse_tried(link, -1);
    end(link);
    sl_host_leave(&link->permit);
    link->stage = SL_LINK_CLOSED;
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

/* What errno says of it, NULL if nothing that is worth saying in other words. */
static const char *errno_reason(long number)
{
    switch (number) {
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
    const char *reason = errno_reason(number);
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
    tried_names(link, names);
    if (*link->proxy)
        snprintf(way, sizeof(way), " through the proxy '%s'", sl_proxy_place(link->proxy));
    sl_fail_code(err, kind, SL_NET_UNREACHED,
                 "cannot connect to '%s'%s%s: %s; check the name, the port, the network and the "
                 "proxy settings%s",
                 link->authority, way, names, reason, hint(link));
    if (err)
        err->retryable = retryable;
    return -1;
}

static int fail_dial(const struct sl_link *link, struct sl_err *err)
{
    const char *reason = errno_reason(link->dial.trouble);
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

static int dial(struct sl_link *link, struct sl_err *err)
{
    uint64_t now = sl_now_ns(), end = link->opened_ns + connect_ns(link);
    uint64_t left_ms = end > now ? (end - now) / SL_NS_PER_MS + 1 : 1;
    if (!sl_link_dial_begin(link, left_ms) && sl_link_curl_begin(link, left_ms, err) < 0) {
        sl_link_close(link);
        return -1;
    }
    link->dialed_ns = now;
    link->stage = SL_LINK_DIALING;
    sl_metric_add(SL_M_SOURCE_CONNECTS, 1);
    return 0;
}

/* Up to the point where it connects: DATA. */
static enum sl_io_state prepare(struct sl_link *link, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (link->stage == SL_LINK_SEATING) {
        link->ask_ns = now + ASK_NS;
        if (link->permit.host && !sl_host_is_permitted(&link->permit))
            return SL_IO_WAIT;
        link->stage = SL_LINK_LOOKING;
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
        if (dial(link, err) < 0)
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
    link->stage = SL_LINK_OPEN;
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
    enum sl_io_state state = sl_link_dial_drive(link, &fd);
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
    return dial(link, err);
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
    if (link->stage == SL_LINK_SEATING) {
        *deadline_ns = link->ask_ns;
        return 0;
    }
    if (link->stage == SL_LINK_LOOKING) {
        fds[0] = (struct pollfd){sl_host_fd(&link->permit), POLLIN, 0};
        *deadline_ns = link->opened_ns + connect_ns(link);
        return 1;
    }
    if (link->dial.on) {
        int count = sl_link_dial_poll(link, fds, deadline_ns);
        if (!are_addresses_slow(link))
            *deadline_ns = SL_MIN(*deadline_ns, slow_ns(link));
        return count;
    }
    memcpy(fds, link->wanted, sizeof(link->wanted));
    *deadline_ns = SL_MIN(link->timer_ns, link->nudge_ns);
    return link->wanted_count;
}
