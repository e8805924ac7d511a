/*
 * One table, the longest idle first, and a thread that closes what has had its time; it is there as
 * long as there is a connection. What is closed is taken out first and freed without the lock.
 *
 * What the process leaves open when it ends the kernel closes: libraries of TLS may be gone by
 * then.
 */
#include "idle_links.h"

#include <string.h>
#include <time.h>

#include "fork_guard.h"
#include "metrics.h"
#include "thread.h"

struct kept {
    struct sl_link *link;
    uint64_t end_ns;
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct kept of[SL_IDLE_LINKS_MAX];
    unsigned count;
    bool sweeps; /* the thread is there */
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare(void)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&table.changed, &clock);
    pthread_condattr_destroy(&clock);
}

/* A child that closed a connection of its parent's would end it for the parent, too (TLS). */
static void forget(void)
{
    sl_metric_add(SL_M_SOURCE_IDLE, -(int64_t)table.count);
    table.count = 0;
    table.sweeps = false;
    prepare();
}
SL_FORK_GUARD(&table.mutex, forget)

/* The functions below down to sweep() are called with the lock held. */

static struct sl_link *take_out(unsigned at)
{
    struct sl_link *link = table.of[at].link;
    table.count--;
    sl_metric_add(SL_M_SOURCE_IDLE, -1);
    memmove(&table.of[at], &table.of[at + 1], (table.count - at) * sizeof(table.of[0]));
    return link;
}

/* One whose time has come; NULL: none. *next_ns: when that of another does. */
static struct sl_link *take_late(uint64_t *next_ns)
{
    uint64_t now = sl_now_ns();
    *next_ns = UINT64_MAX;
    for (unsigned i = 0; i < table.count; i++) {
        if (table.of[i].end_ns <= now)
            return take_out(i);
        *next_ns = SL_MIN(*next_ns, table.of[i].end_ns);
    }
    return NULL;
}

/* Which must go before this one comes; NULL: there is room. */
static struct sl_link *make_room(const struct sl_link *link)
{
    unsigned count = 0, oldest = 0;
    for (unsigned i = table.count; i-- > 0;)
        if (sl_link_leads_as(link, table.of[i].link)) {
            oldest = i;
            count++;
        }
    if (count >= SL_IDLE_LINKS_ORIGIN_MAX)
        return take_out(oldest);
    return table.count == SL_IDLE_LINKS_MAX ? take_out(0) : NULL;
}

/* What is to be closed next; NULL: there are no more, and no thread from now on. */
static struct sl_link *await_late(void)
{
    SL_LOCKED(&table.mutex);
    for (;;) {
        uint64_t next_ns;
        struct sl_link *link = take_late(&next_ns);
        if (link)
            return link;
        if (!table.count) {
            table.sweeps = false;
            return NULL;
        }
        const struct timespec end = {(time_t)(next_ns / SL_NS_PER_S),
                                     (long)(next_ns % SL_NS_PER_S)};
        pthread_cond_timedwait(&table.changed, &table.mutex, &end);
    }
}

static void *sweep(void *unused)
{
    struct sl_link *link;
    (void)unused;
    while ((link = await_late()))
        sl_link_free(link);
    return NULL;
}

/* False: no thread would close them. */
static bool begin_sweeping(void)
{
    pthread_t thread;
    if (!table.sweeps && sl_thread_start(&thread, "sluice-idle", sweep, NULL, NULL) == 0) {
        pthread_detach(thread);
        table.sweeps = true;
    }
    return table.sweeps;
}

/* The one that must go for it. */
static struct sl_link *put(struct sl_link *link, unsigned seconds)
{
    SL_LOCKED(&table.mutex);
    if (!begin_sweeping())
        return link;
    struct sl_link *gone = make_room(link);
    table.of[table.count++] = (struct kept){link, sl_now_ns() + seconds * SL_NS_PER_S};
    sl_metric_add(SL_M_SOURCE_IDLE, 1);
    pthread_cond_signal(&table.changed);
    return gone;
}

void sl_idle_links_keep(struct sl_link *link, unsigned seconds)
{
    pthread_once(&once, prepare);
    if (!sl_link_idle(link)) {
        sl_link_free(link);
        return;
    }
    sl_link_leave(link);
    sl_link_free(put(link, seconds));
}

/* The one that was used last. */
static struct sl_link *take_like(const struct sl_connect *connect, const char *url,
                                 const char *proxy)
{
    SL_LOCKED(&table.mutex);
    for (unsigned i = table.count; i-- > 0;)
        if (table.of[i].end_ns > sl_now_ns() &&
            sl_link_serves(table.of[i].link, connect, url, proxy))
            return take_out(i);
    return NULL;
}

struct sl_link *sl_idle_links_take(const struct sl_connect *connect, const char *url,
                                   const char *proxy)
{
    struct sl_link *link;
    while ((link = take_like(connect, url, proxy))) {
        sl_link_enter(link, connect);
        if (sl_link_idle(link) && !sl_link_is_past(link))
            return link;
        sl_link_free(link);
    }
    return NULL;
}

static struct sl_link *take_leading_to(const struct sl_host *host)
{
    SL_LOCKED(&table.mutex);
    for (unsigned i = 0; i < table.count; i++)
        if (sl_link_leads_to(table.of[i].link, host))
            return take_out(i);
    return NULL;
}

bool sl_idle_links_shed(const struct sl_host *host)
{
    struct sl_link *link = take_leading_to(host);
    sl_link_free(link);
    return link != NULL;
}
