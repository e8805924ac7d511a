/*
 * The bytes of a connection. On a plain one we use the socket itself, so that bytes go from the
 * kernel to their place; on TLS sl_libcurl.easy_recv().
 */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "latency.h"
#include "link_state.h"

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
    return link->stage == SL_LINK_SEATING;
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
