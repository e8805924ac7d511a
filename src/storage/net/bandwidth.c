/*
 * Buckets of time: every byte that is read moves the moment until which a link is taken by its own
 * time at the link's rate. Each rate that loads name has a bucket, and all of them draw from one
 * more, the link's, which has the largest of these rates.
 *
 * Readers that come too early get turns, one behind another and a slice of bytes apart: else the
 * first of a thread's connections would always find what the others wait for. A turn is only a time
 * to ask again, so one that finds nothing to read delays nobody: what it leaves is there for the
 * next.
 *
 * Where the link is short, the rate that got least goes first, however many connections the others
 * have. A rate that does not come for what it waited for is not waited for.
 */
#include "bandwidth.h"

#include <stdbool.h>

#include "fork_guard.h"
#include "mem.h"
#include "thread.h"

enum { SLICE_BYTES = 64 * 1024, RATES_MAX = 32 };

/* A rate that nobody asked for in this time does not count any more. */
static const uint64_t IDLE_NS = SL_NS_PER_S;

struct bucket {
    uint64_t rate;   /* bytes/s, 0: not in use */
    double taken_ns; /* taken until then */
};

struct share {
    struct bucket bucket;
    double turn_ns;      /* the last turn at its bucket ends */
    double link_turn_ns; /* the last turn at the link */
    uint64_t asked_ns;   /* last */
    double waits_ns;     /* until then it counts as waiting for the link */
    double got;          /* bytes, beside those of the others that are here */
};

static struct {
    pthread_mutex_t mutex;
    struct bucket link;
    struct share shares[RATES_MAX];
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};
SL_FORK_GUARD(&all.mutex, NULL)

static double ns_of(uint64_t rate, double bytes)
{
    return bytes * (double)SL_NS_PER_S / (double)rate;
}

static double slice_ns(const struct bucket *bucket, size_t bytes)
{
    double slice = ns_of(bucket->rate, (double)SL_MIN(bytes, (size_t)SLICE_BYTES));
    return SL_MIN(slice, (double)SL_BANDWIDTH_BURST_NS);
}

static bool is_here(const struct share *share, uint64_t now_ns)
{
    return share->bucket.rate && share->asked_ns + IDLE_NS > now_ns;
}

/* Who comes anew begins with what the least of those has got that are here. */
static void begin(struct share *share, uint64_t rate, uint64_t now_ns)
{
    double least = -1;
    for (unsigned i = 0; i < RATES_MAX; i++)
        if (is_here(&all.shares[i], now_ns) && (least < 0 || all.shares[i].got < least))
            least = all.shares[i].got;
    if (share->bucket.rate != rate)
        *share = (struct share){.bucket.rate = rate};
    share->waits_ns = 0;
    share->got = SL_MAX(least, 0.0);
}

/* Of this rate, made if need be from the one that was not asked for the longest. */
static struct share *share_of(uint64_t rate, uint64_t now_ns)
{
    struct share *oldest = &all.shares[0], *found = NULL;
    rate = SL_MAX(rate, UINT64_C(1));
    for (unsigned i = 0; i < RATES_MAX && !found; i++) {
        struct share *share = &all.shares[i];
        if (share->bucket.rate == rate)
            found = share;
        else if (share->asked_ns < oldest->asked_ns)
            oldest = share;
    }
    if (!found || !is_here(found, now_ns)) {
        found = found ? found : oldest;
        begin(found, rate, now_ns);
    }
    found->asked_ns = SL_MAX(found->asked_ns, now_ns);
    return found;
}

static void set_link(uint64_t now_ns)
{
    all.link.rate = 1;
    for (unsigned i = 0; i < RATES_MAX; i++)
        if (is_here(&all.shares[i], now_ns))
            all.link.rate = SL_MAX(all.link.rate, all.shares[i].bucket.rate);
}

static void forget_unused(struct bucket *bucket, uint64_t now_ns)
{
    double floor = (double)now_ns - (double)SL_BANDWIDTH_BURST_NS;
    bucket->taken_ns = SL_MAX(bucket->taken_ns, floor);
}

static double bytes_there(const struct bucket *bucket, uint64_t now_ns)
{
    return ((double)now_ns - bucket->taken_ns) * (double)bucket->rate / (double)SL_NS_PER_S;
}

static bool has_room(const struct bucket *bucket, size_t bytes, uint64_t now_ns)
{
    return (double)now_ns - bucket->taken_ns >= slice_ns(bucket, bytes);
}

/* Another rate waits for the link and has got less by more than a slice. */
static bool another_is_first(const struct share *mine, uint64_t now_ns)
{
    for (unsigned i = 0; i < RATES_MAX; i++) {
        const struct share *other = &all.shares[i];
        if (other != mine && other->waits_ns > (double)now_ns &&
            other->got + SLICE_BYTES < mine->got)
            return true;
    }
    return false;
}

/* Those that wait for the link, and this one. */
static unsigned count_waiting(const struct share *mine, uint64_t now_ns)
{
    unsigned count = 1;
    for (unsigned i = 0; i < RATES_MAX; i++)
        count += &all.shares[i] != mine && all.shares[i].waits_ns > (double)now_ns;
    return count;
}

/* The next turn of a line, after `turns` slices. */
static double give_turn(double *line_ns, const struct bucket *bucket, size_t bytes, unsigned turns,
                        uint64_t now_ns)
{
    double from = SL_MAX(SL_MAX(*line_ns, bucket->taken_ns), (double)now_ns);
    return *line_ns = from + slice_ns(bucket, bytes) * turns;
}

/* When it may ask again: its own bucket, the link's, or both have no room. */
static uint64_t next_turn(struct share *share, bool own, bool link, size_t bytes, uint64_t now_ns)
{
    double own_turn = 0, link_turn = 0;
    if (!own)
        own_turn = give_turn(&share->turn_ns, &share->bucket, bytes, 1, now_ns);
    if (!link)
        link_turn =
            give_turn(&share->link_turn_ns, &all.link, bytes, count_waiting(share, now_ns), now_ns);
    if (own)
        share->waits_ns = link_turn + (double)SL_BANDWIDTH_BURST_NS / 2;
    return (uint64_t)SL_MAX(own_turn, link_turn) + 1;
}

size_t sl_bandwidth_ask(struct sl_bandwidth *reader, uint64_t rate, size_t bytes, uint64_t now_ns)
{
    if (reader->turn_ns > now_ns)
        return 0;
    SL_LOCKED(&all.mutex);
    struct share *share = share_of(rate, now_ns);
    double now = (double)now_ns;
    set_link(now_ns);
    forget_unused(&share->bucket, now_ns);
    forget_unused(&all.link, now_ns);
    bool comes_anew = !reader->turn_ns;
    bool own = has_room(&share->bucket, bytes, now_ns) && !(comes_anew && share->turn_ns > now);
    bool link = has_room(&all.link, bytes, now_ns) && !(comes_anew && share->link_turn_ns > now) &&
                !another_is_first(share, now_ns);
    if (!own || !link) {
        reader->turn_ns = next_turn(share, own, link, bytes, now_ns);
        return 0;
    }
    double there = SL_MIN(bytes_there(&share->bucket, now_ns), bytes_there(&all.link, now_ns));
    reader->turn_ns = 0;
    share->waits_ns = 0;
    return SL_MIN(SL_MAX((size_t)there, 1), bytes);
}

void sl_bandwidth_used(uint64_t rate, size_t bytes, uint64_t now_ns)
{
    SL_LOCKED(&all.mutex);
    struct share *share = share_of(rate, now_ns);
    set_link(now_ns);
    forget_unused(&share->bucket, now_ns);
    forget_unused(&all.link, now_ns);
    share->bucket.taken_ns += ns_of(share->bucket.rate, (double)bytes);
    all.link.taken_ns += ns_of(all.link.rate, (double)bytes);
    share->got += (double)bytes;
}
