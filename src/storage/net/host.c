/*
 * Places for connections, and the table of hosts.
 *
 * A seat is held from before a connection is made until it is closed, so the number of seats is the
 * number of connections. Where it is limited, seats that wait stand in the order of their coming;
 * one that was not asked for in a while (its thread is busy, or its load has ended) is passed over.
 * Nobody holds a seat while it waits for another: a link has one, an idle connection gives its own
 * up when somebody wants it (sl_host_on_want), and so loads cannot wait for each other in a circle.
 *
 * Hosts stay when nobody uses them, for what was learned of their addresses, as long as there are
 * not too many.
 */
#include "host.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "descriptors.h"
#include "host_state.h"

enum { HOSTS_KEPT = 64 };
#define PASSED_OVER_NS (200 * SL_NS_PER_MS)

pthread_mutex_t sl_hosts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sl_host *hosts; /* the latest first */
static void (*shed_idle)(const struct sl_host *host);

void sl_host_on_want(void (*shed)(const struct sl_host *host))
{
    SL_LOCKED(&sl_hosts_lock);
    shed_idle = shed;
}

void sl_hosts_each(void (*visit)(struct sl_host *host, void *arg), void *arg)
{
    for (struct sl_host *host = hosts; host; host = host->next)
        visit(host, arg);
}

static void free_host(struct sl_host *host)
{
    if (host->fd >= 0)
        close(host->fd);
    free(host->name);
    free(host);
}

/* Of those that nobody uses keep so many, the latest. */
static void forget_beyond(unsigned kept)
{
    for (struct sl_host **at = &hosts; *at;) {
        struct sl_host *host = *at;
        bool used = host->users || host->looking;
        if (used || kept) {
            kept -= !used;
            at = &host->next;
        } else {
            *at = host->next;
            free_host(host);
        }
    }
}

void sl_host_forget_all(void)
{
    SL_LOCKED(&sl_hosts_lock);
    forget_beyond(0);
}

static struct sl_host *find(const char *name, unsigned port, struct sl_err *err)
{
    for (struct sl_host *host = hosts; host; host = host->next)
        if (host->port == port && strcmp(host->name, name) == 0)
            return host;
    forget_beyond(HOSTS_KEPT);
    struct sl_host *host = sl_alloc(sizeof(*host), err);
    if (!host)
        return NULL;
    host->fd = -1;
    host->port = port;
    host->name = sl_strdup(name, err);
    if (!host->name || sl_host_prepare(host, err) < 0) {
        free_host(host);
        return NULL;
    }
    host->next = hosts;
    hosts = host;
    return host;
}

/* ---- seats ---------------------------------------------------------------------------------- */

static void append(struct sl_host *host, struct sl_seat *seat)
{
    seat->next = NULL;
    seat->before = host->seats_last;
    *(host->seats_last ? &host->seats_last->next : &host->seats) = seat;
    host->seats_last = seat;
}

static void unlink_seat(struct sl_host *host, struct sl_seat *seat)
{
    *(seat->before ? &seat->before->next : &host->seats) = seat->next;
    *(seat->next ? &seat->next->before : &host->seats_last) = seat->before;
}

int sl_host_sit(struct sl_seat *seat, const char *name, unsigned port, const void *owner,
                unsigned limit, struct sl_err *err)
{
    unsigned most = sl_descriptors_for_connections();
    sl_host_leave(seat);
    SL_LOCKED(&sl_hosts_lock);
    struct sl_host *host = find(name, port, err);
    if (!host)
        return -1;
    *seat = (struct sl_seat){.host = host,
                             .owner = owner,
                             .limit = limit ? SL_MIN(limit, most) : most,
                             .address = -1,
                             .asked_ns = sl_now_ns()};
    append(host, seat);
    host->users++;
    host->waiting++;
    return 0;
}

void sl_host_leave(struct sl_seat *seat)
{
    struct sl_host *host = seat->host;
    if (!host)
        return;
    SL_LOCKED(&sl_hosts_lock);
    sl_host_count(seat, -1);
    unlink_seat(host, seat);
    host->users--;
    *(seat->held ? &host->held : &host->waiting) -= 1;
    *seat = (struct sl_seat){.address = -1};
}

/* Those who came before and wait for a place, too. */
static unsigned count_before(const struct sl_seat *seat, uint64_t now_ns)
{
    unsigned count = 0;
    for (const struct sl_seat *other = seat->host->seats; other != seat; other = other->next)
        count += !other->held && now_ns - other->asked_ns < PASSED_OVER_NS;
    return count;
}

bool sl_host_seated(struct sl_seat *seat)
{
    void (*shed)(const struct sl_host *host) = NULL;
    {
        SL_LOCKED(&sl_hosts_lock);
        struct sl_host *host = seat->host;
        uint64_t now_ns = seat->asked_ns = sl_now_ns();
        if (seat->held)
            return true;
        if (!seat->limit || host->held + host->waiting <= seat->limit ||
            host->held + count_before(seat, now_ns) < seat->limit) {
            seat->held = true;
            host->waiting--;
            host->held++;
            return true;
        }
        shed = shed_idle;
    }
    if (shed)
        shed(seat->host);
    return false;
}

bool sl_host_has_room(const struct sl_seat *seat)
{
    const struct sl_host *host = seat->host;
    if (!host || !seat->limit)
        return true;
    SL_LOCKED(&sl_hosts_lock);
    return host->held + host->waiting <= seat->limit;
}

static unsigned held_by(const struct sl_host *host, const void *owner)
{
    unsigned count = 0;
    for (const struct sl_seat *seat = host->seats; seat; seat = seat->next)
        count += seat->held && seat->owner == owner;
    return count;
}

bool sl_host_should_yield(const struct sl_seat *seat)
{
    const struct sl_host *host = seat->host;
    if (!host)
        return false;
    SL_LOCKED(&sl_hosts_lock);
    if (!host->waiting)
        return false;
    unsigned mine = held_by(host, seat->owner);
    for (const struct sl_seat *other = host->seats; other; other = other->next)
        if (!other->held && other->owner != seat->owner && other->limit &&
            held_by(host, other->owner) + 1 < mine)
            return host->held >= other->limit;
    return false;
}
