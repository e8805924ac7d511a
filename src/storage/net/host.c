/*
 * Places for connections, and the table of hosts.
 *
 * A permit is held from before a connection is made until it is closed, so the number of permits is
 * the number of connections. Where it is limited, permits that wait stand in the order of their
 * coming; one that was not asked for in a while (its thread is busy, or its load has ended) is
 * passed over. Nobody holds a permit while it waits for another: a link has one, an idle connection
 * gives its own up when somebody wants it (sl_host_on_want), and so loads cannot wait for each
 * other in a circle.
 *
 * Hosts stay when nobody uses them, for what was learned of their addresses, as long as there are
 * not too many.
 */
#include "host.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "descriptors.h"
#include "fork_guard.h"
#include "host_state.h"

enum { HOSTS_KEPT = 64 };
#define PASSED_OVER_NS (200 * SL_NS_PER_MS)

pthread_mutex_t sl_hosts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sl_host *hosts; /* the latest first */
static void (*shed_idle)(const struct sl_host *host);

/* Their places are held by links that a child has not, and look-ups under way end nowhere. */
static void forget(void)
{
    hosts = NULL;
}
SL_FORK_GUARD(&sl_hosts_lock, forget)

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

/* Of those that nobody uses keep the latest. */
static void forget_the_oldest(void)
{
    unsigned kept = HOSTS_KEPT;
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

static struct sl_host *find(const char *name, unsigned port, struct sl_err *err)
{
    for (struct sl_host *host = hosts; host; host = host->next)
        if (host->port == port && strcmp(host->name, name) == 0)
            return host;
    forget_the_oldest();
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

/* ---- permits ----------------------------------------------------------------------------------
 */

static void append(struct sl_host *host, struct sl_permit *permit)
{
    permit->next = NULL;
    permit->before = host->permits_last;
    *(host->permits_last ? &host->permits_last->next : &host->permits) = permit;
    host->permits_last = permit;
}

static void unlink_permit(struct sl_host *host, struct sl_permit *permit)
{
    *(permit->before ? &permit->before->next : &host->permits) = permit->next;
    *(permit->next ? &permit->next->before : &host->permits_last) = permit->before;
}

int sl_host_ask_permit(struct sl_permit *permit, const char *name, unsigned port, const void *owner,
                       unsigned limit, struct sl_err *err)
{
    unsigned most = sl_descriptors_for_connections();
    sl_host_leave(permit);
    SL_LOCKED(&sl_hosts_lock);
    struct sl_host *host = find(name, port, err);
    if (!host)
        return -1;
    *permit = (struct sl_permit){.host = host,
                                 .owner = owner,
                                 .limit = limit ? SL_MIN(limit, most) : most,
                                 .address = -1,
                                 .asked_ns = sl_now_ns()};
    append(host, permit);
    host->users++;
    host->waiting++;
    return 0;
}

void sl_host_leave(struct sl_permit *permit)
{
    struct sl_host *host = permit->host;
    if (!host)
        return;
    SL_LOCKED(&sl_hosts_lock);
    sl_host_count(permit, -1);
    unlink_permit(host, permit);
    host->users--;
    *(permit->held ? &host->held : &host->waiting) -= 1;
    *permit = (struct sl_permit){.address = -1};
}

/* Those who came before and wait for a place, too. */
static unsigned count_before(const struct sl_permit *permit, uint64_t now_ns)
{
    unsigned count = 0;
    for (const struct sl_permit *other = permit->host->permits; other != permit;
         other = other->next)
        count += !other->held && now_ns - other->asked_ns < PASSED_OVER_NS;
    return count;
}

bool sl_host_is_permitted(struct sl_permit *permit)
{
    void (*shed)(const struct sl_host *host) = NULL;
    {
        SL_LOCKED(&sl_hosts_lock);
        struct sl_host *host = permit->host;
        uint64_t now_ns = permit->asked_ns = sl_now_ns();
        if (permit->held)
            return true;
        if (!permit->limit || host->held + host->waiting <= permit->limit ||
            host->held + count_before(permit, now_ns) < permit->limit) {
            permit->held = true;
            host->waiting--;
            host->held++;
            return true;
        }
        shed = shed_idle;
    }
    if (shed)
        shed(permit->host);
    return false;
}

bool sl_host_has_room(const struct sl_permit *permit)
{
    const struct sl_host *host = permit->host;
    if (!host || !permit->limit)
        return true;
    SL_LOCKED(&sl_hosts_lock);
    return host->held + host->waiting <= permit->limit;
}

static unsigned held_by(const struct sl_host *host, const void *owner)
{
    unsigned count = 0;
    for (const struct sl_permit *permit = host->permits; permit; permit = permit->next)
        count += permit->held && permit->owner == owner;
    return count;
}

bool sl_host_should_yield(const struct sl_permit *permit)
{
    const struct sl_host *host = permit->host;
    if (!host)
        return false;
    SL_LOCKED(&sl_hosts_lock);
    if (!host->waiting)
        return false;
    unsigned mine = held_by(host, permit->owner);
    for (const struct sl_permit *other = host->permits; other; other = other->next)
        if (!other->held && other->owner != permit->owner && other->limit &&
            held_by(host, other->owner) + 1 < mine)
            return host->held >= other->limit;
    return false;
}
