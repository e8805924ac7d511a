/*
 * Connections without TLS and without a tunnel are made by ourselves, since libcurl, with all that
 * it brings, takes longer to load than a small object.
 *
 * As libcurl does: addresses of one family one after another, each of them (but the last) for half
 * of the time that is left; those of the other family beside them, a little later (RFC 8305).
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "imds.h"
#include "link_state.h"

enum { OTHER_FAMILY_MS = 200, KEEPALIVE_SECONDS = 60 };

static void drop(struct sl_dial_family *family)
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
static int connect_to(struct sl_link *link, union sl_host_place place)
{
    bool v6 = place.any.sa_family == AF_INET6;
    if (!link->connect.direct && sl_imds_refused(link->host, &place.any)) {
        link->refused = true;
        return -1;
    }
    int number = sl_host_number(&link->permit, &place.any);
    if (number >= 0 && link->tried_count < SL_HOST_ADDRESSES_MAX)
        link->tried[link->tried_count++] = number;
    *(v6 ? &place.v6.sin6_port : &place.v4.sin_port) = htons(link->port);
    int fd = make_socket(place.any.sa_family);
    if (fd >= 0 && (connect(fd, &place.any, v6 ? sizeof(place.v6) : sizeof(place.v4)) == 0 ||
                    errno == EINPROGRESS || errno == EINTR))
        return fd;
    link->dial.trouble = errno;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* The next address of a family; false: there is none. */
static bool next_place(const struct sl_dial *dial, struct sl_dial_family *family)
{
    while (family->next < dial->count && dial->places[family->next].any.sa_family != family->kind)
        family->next++;
    return family->next < dial->count;
}

static void try_next(struct sl_link *link, struct sl_dial_family *family)
{
    struct sl_dial *dial = &link->dial;
    drop(family);
    while (family->fd < 0 && next_place(dial, family))
        family->fd = connect_to(link, dial->places[family->next++]);
    uint64_t now = sl_now_ns();
    family->leave_ns = next_place(dial, family) && dial->end_ns > now
                           ? now + (dial->end_ns - now) / 2
                           : dial->end_ns;
}

bool sl_link_dial_begin(struct sl_link *link, uint64_t left_ms)
{
    struct sl_dial *dial = &link->dial;
    if (link->tls || *link->proxy)
        return false;
    dial->count = sl_host_places(&link->permit, link->avoided, dial->places);
    if (!dial->count)
        return false;
    bool v6 = dial->places[0].any.sa_family == AF_INET6;
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

enum sl_io_state sl_link_dial_drive(struct sl_link *link, int *fd)
{
    struct sl_dial *dial = &link->dial;
    struct sl_dial_family *first = &dial->families[0], *other = &dial->families[1];
    for (struct sl_dial_family *family = first; family <= other; family++) {
        enum sl_io_state state = family->fd < 0 ? SL_IO_WAIT : look_at(dial, family);
        if (state == SL_IO_DATA) {
            *fd = family->fd;
            family->fd = -1;
            drop(family == first ? other : first);
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

int sl_link_dial_poll(const struct sl_link *link, struct pollfd *fds, uint64_t *deadline_ns)
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

void sl_link_dial_end(struct sl_link *link)
{
    if (!link->dial.on)
        return;
    drop(&link->dial.families[0]);
    drop(&link->dial.families[1]);
    if (link->fd >= 0)
        close(link->fd);
    link->dial.on = false;
    link->fd = -1;
    link->expected = 0;
}
