/* A small table of hosts that are being read from; where it is full a load stays alone. */
#include "host_growth.h"

#include <string.h>

#include "fork_guard.h"
#include "host_memory.h"
#include "mem.h"
#include "thread.h"

enum { HOSTS = 32 };

struct sl_reading_host {
    char key[SL_HOST_KEY_BYTES];
    struct sl_host_share *loads; /* NULL: the place is free */
    unsigned count;
    struct sl_growth growth;
    uint64_t gone_bytes; /* landed by loads that have left */
};
static struct {
    pthread_mutex_t mutex;
    struct sl_reading_host hosts[HOSTS];
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* The parent's loads get no part of what a child reads. */
static void forget(void)
{
    memset(table.hosts, 0, sizeof(table.hosts));
}
SL_FORK_GUARD(&table.mutex, forget)

static struct sl_reading_host *find(const char *key)
{
    struct sl_reading_host *free = NULL;
    for (unsigned i = 0; i < HOSTS; i++) {
        struct sl_reading_host *host = &table.hosts[i];
        if (!host->loads)
            free = host;
        else if (strcmp(host->key, key) == 0)
            return host;
    }
    if (free) {
        *free = (struct sl_reading_host){0};
        memcpy(free->key, key, sizeof(free->key));
    }
    return free;
}

static void keep_one_each(struct sl_reading_host *host)
{
    struct sl_growth *growth = &host->growth;
    growth->connections = SL_MIN(SL_MAX(growth->connections, host->count), growth->maximum);
}

/* That will have landed once all are done; 0: not known of one. */
static uint64_t all_bytes(const struct sl_reading_host *host)
{
    uint64_t all = host->gone_bytes;
    for (const struct sl_host_share *load = host->loads; load; load = load->next) {
        if (!load->own.all_bytes)
            return 0;
        all += load->own.all_bytes;
    }
    return all;
}

/* The most that one of the loads would have alone, and one for each at least. */
static void fit(struct sl_reading_host *host)
{
    struct sl_growth *growth = &host->growth;
    unsigned maximum = host->count;
    for (const struct sl_host_share *load = host->loads; load; load = load->next)
        maximum = SL_MAX(maximum, load->own.maximum);
    growth->maximum = maximum;
    keep_one_each(host);
    sl_growth_know_bytes(growth, all_bytes(host));
    /* Of several loads each has a thread of its own. */
    sl_growth_know_threads(growth, host->count == 1 ? host->loads->own.second_thread : 0);
}

/* Small requests are mostly waited for: they need what they begin with alone. */
static void take_in(struct sl_growth *growth, const struct sl_growth *own)
{
    sl_growth_restart(growth);
    if (growth->why == SL_GROWTH_BEGUN || own->quantum < growth->quantum)
        growth->connections = SL_MAX(growth->connections, own->connections);
    growth->quantum = SL_MAX(growth->quantum, own->quantum);
}

/* In turn, until all are given or nobody may have more. */
static void part(struct sl_reading_host *host)
{
    unsigned left = host->growth.connections;
    for (struct sl_host_share *load = host->loads; load; load = load->next)
        load->part = 0;
    for (bool given = true; left && given;) {
        given = false;
        for (struct sl_host_share *load = host->loads; load && left; load = load->next) {
            if (load->part >= load->own.maximum)
                continue;
            load->part++;
            left--;
            given = true;
        }
    }
}

unsigned sl_host_growth_join(struct sl_host_share *share, const char *uri)
{
    char key[SL_HOST_KEY_BYTES] = "";
    if (uri)
        sl_host_memory_key(uri, key);
    SL_LOCKED(&table.mutex);
    struct sl_reading_host *host = *key && !share->own.fixed ? find(key) : NULL;
    if (!host)
        return share->own.connections;
    struct sl_host_share **last = &host->loads;
    for (; *last; last = &(*last)->next)
        (*last)->shared = share->shared = true;
    *last = share;
    share->host = host;
    if (host->count++)
        take_in(&host->growth, &share->own);
    else
        host->growth = share->own;
    fit(host);
    part(host);
    return share->part;
}

void sl_host_growth_leave(struct sl_host_share *share)
{
    SL_LOCKED(&table.mutex);
    struct sl_reading_host *host = share->host;
    if (!host)
        return;
    struct sl_host_share **place = &host->loads;
    while (*place != share)
        place = &(*place)->next;
    *place = share->next;
    share->own = host->growth;
    share->host = NULL;
    share->next = NULL;
    host->gone_bytes += share->bytes;
    if (!--host->count)
        return;
    sl_growth_restart(&host->growth);
    fit(host);
}

struct sl_growth *sl_host_growth_lock(struct sl_host_share *share)
{
    pthread_mutex_lock(&table.mutex);
    return share->host ? &share->host->growth : &share->own;
}

void sl_host_growth_unlock(void)
{
    pthread_mutex_unlock(&table.mutex);
}

/* Connections that all loads of the host have open. */
static unsigned count_open(const struct sl_reading_host *host)
{
    unsigned open = 0;
    for (const struct sl_host_share *load = host->loads; load; load = load->next)
        open += load->open;
    return open;
}

unsigned sl_host_growth_tick(struct sl_host_share *share, uint64_t now_ns, uint64_t bytes,
                             unsigned throttled, unsigned open)
{
    struct sl_reading_host *host = share->host;
    share->bytes = bytes;
    share->open = open;
    if (!host)
        return sl_growth_tick(&share->own, now_ns, bytes, throttled);
    uint64_t all = host->gone_bytes;
    for (const struct sl_host_share *load = host->loads; load; load = load->next)
        all += load->bytes;
    keep_one_each(host); /* its distance may be known now */
    sl_growth_tick(&host->growth, now_ns, all, throttled);
    keep_one_each(host); /* the server may be too busy */
    part(host);
    return share->part;
}

bool sl_host_growth_is_crowded(struct sl_host_share *share, unsigned open)
{
    SL_LOCKED(&table.mutex);
    struct sl_reading_host *host = share->host;
    share->open = open;
    return host ? sl_growth_is_crowded(&host->growth, count_open(host))
                : sl_growth_is_crowded(&share->own, open);
}
