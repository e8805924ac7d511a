/*
 * Who reads what. Each thread has a file as long as there are files (file_queues.h); what a slot
 * gives away comes first, since it has waited longest. A slot's range is its own thread's alone:
 * nobody takes from it, its thread gives, when it sees that others are idle. So a byte is in one
 * range at any moment, and the load has ended when no range waits and none is being read.
 *
 * Sending a slow request again (slow.c): only where it is the request that is slow and not the
 * link. A link, a server or this process that stops stops everyone at about the same time; so what
 * counts is that others landed bytes after the request fell into doubt, or have nothing left to do.
 * Where most are in doubt that is not enough: others must have landed a whole range since.
 * It works without clocks that agree, on machines however busy. How often is bounded by a bucket
 * that ranges fill: a server whose answers are slow for good is not burdened with more requests.
 */
#include "reader_parts.h"

enum { HEDGE_RANGES = 16, HEDGE_CREDIT_MAX = 32 * HEDGE_RANGES };
_Static_assert((int)SL_HEDGE_CREDIT >= HEDGE_RANGES, "a load begins with some");
enum {
    WASTE_PART = 50, /* of what the load fetches may come in vain */
    WASTE_TIMES = 3, /* the buffers of both ends are about as full, and the way between them */
    WASTE_LEAST = 64 * 1024,
    WASTE_FREE = 256 * 1024 * WASTE_PART, /* small loads, too, may help themselves */
};

static bool has_work(const struct sl_reader *reader)
{
    return reader->locked.given_count || sl_file_queues_left(&reader->locked.queues);
}

/* With the lock. */
static void take_given(struct sl_reader *reader, unsigned thread, struct sl_reader_job *job)
{
    *job = reader->locked.given[--reader->locked.given_count];
    sl_file_queues_note(&reader->locked.queues, thread, &job->range);
}

bool sl_reader_take(struct sl_reader *reader, unsigned thread, struct sl_reader_job *job)
{
    SL_LOCKED(&reader->lock);
    if (reader->locked.err.kind || !has_work(reader))
        return false;
    if (reader->locked.given_count)
        take_given(reader, thread, job);
    else
        job->range = *sl_file_queues_take(&reader->locked.queues, thread);
    reader->locked.busy++;
    if (reader->locked.hedge_credit < HEDGE_CREDIT_MAX)
        reader->locked.hedge_credit++;
    return true;
}

bool sl_reader_deal(struct sl_reader *reader, unsigned thread, size_t number,
                    struct sl_reader_job *job)
{
    SL_LOCKED(&reader->lock);
    const struct sl_range *range =
        reader->locked.err.kind ? NULL
                                : sl_file_queues_deal(&reader->locked.queues, thread, number);
    if (!range)
        return false;
    job->range = *range;
    reader->locked.busy++;
    return true;
}

void sl_reader_leave(struct sl_reader *reader, unsigned thread)
{
    SL_LOCKED(&reader->lock);
    sl_file_queues_leave(&reader->locked.queues, thread);
}

void sl_reader_began(struct sl_reader *reader, uint64_t first_ns, bool fresh)
{
    SL_LOCKED(&reader->lock);
    struct sl_pace *pace = &reader->locked.pace;
    sl_waits_add(fresh ? &pace->fresh : &pace->first, first_ns);
}

void sl_reader_ended(struct sl_reader *reader, uint64_t bytes, uint64_t ns, uint64_t gap_ns)
{
    bool last;
    {
        SL_LOCKED(&reader->lock);
        sl_pace_add(&reader->locked.pace, bytes, ns);
        if (gap_ns)
            sl_waits_add(&reader->locked.pace.gaps, gap_ns);
        last = --reader->locked.busy == 0 && !has_work(reader);
    }
    if (last)
        sl_cancel_raise(reader->done, 0);
}

bool sl_reader_finished(struct sl_reader *reader)
{
    SL_LOCKED(&reader->lock);
    return reader->locked.err.kind || (!reader->locked.busy && !has_work(reader));
}

bool sl_reader_used_up(struct sl_reader *reader)
{
    SL_LOCKED(&reader->lock);
    return !sl_file_queues_left(&reader->locked.queues);
}

bool sl_reader_give(struct sl_reader *reader, const struct sl_reader_job *job)
{
    SL_LOCKED(&reader->lock);
    if (reader->locked.given_count >= SL_MIN(reader->locked.idle, reader->given_max))
        return false;
    reader->locked.given[reader->locked.given_count++] = *job;
    return true;
}

/* With the lock. */
static bool is_it_the_request(const struct sl_reader *reader, const struct sl_slow *slow)
{
    unsigned slots = reader->locked.slots, doubtful = reader->locked.doubtful;
    if (slots == 1)
        return slow->stuck;
    uint64_t landed = sl_counter_get(&reader->landed) - slow->landed_then;
    if (doubtful * 2 > slots) /* a link that wakes up brings them all their bytes sooner */
        return slow->stuck && landed > slow->range_bytes;
    bool others = slots > reader->locked.idle + doubtful;
    return !others || landed > 0;
}

/* With the lock. */
static bool take_waste(struct sl_reader *reader, uint64_t unread)
{
    uint64_t bytes = WASTE_TIMES * unread + WASTE_LEAST;
    if ((reader->locked.waste + bytes) * WASTE_PART > reader->plan->fetch_bytes + WASTE_FREE)
        return false;
    reader->locked.waste += bytes;
    return true;
}

bool sl_reader_may_waste(struct sl_reader *reader, uint64_t unread)
{
    SL_LOCKED(&reader->lock);
    return take_waste(reader, unread);
}

bool sl_reader_may_hedge(struct sl_reader *reader, const struct sl_slow *slow)
{
    SL_LOCKED(&reader->lock);
    if (reader->locked.hedge_credit < HEDGE_RANGES || !is_it_the_request(reader, slow) ||
        (slow->unread && !take_waste(reader, slow->unread)))
        return false;
    reader->locked.hedge_credit -= HEDGE_RANGES;
    struct sl_pace *pace = &reader->locked.pace;
    sl_waits_add(slow->begun   ? &pace->gaps
                 : slow->fresh ? &pace->fresh
                               : &pace->first,
                 slow->quiet_ns);
    return true;
}

struct sl_latency_delays sl_reader_delays(struct sl_reader *reader)
{
    const struct sl_plan *plan = reader->plan;
    uint64_t first_ns =
        plan->source_count ? sl_store_first_byte_ns(sl_source_store(plan->sources[0].source)) : 0;
    SL_LOCKED(&reader->lock);
    return sl_pace_delays(&reader->locked.pace, first_ns);
}

bool sl_reader_hungry(struct sl_reader *reader)
{
    SL_LOCKED(&reader->lock);
    return reader->locked.idle > reader->locked.given_count;
}

void sl_reader_count_idle(struct sl_reader *reader, int change)
{
    SL_LOCKED(&reader->lock);
    reader->locked.idle += (unsigned)change;
}

void sl_reader_count_doubtful(struct sl_reader *reader, int change)
{
    SL_LOCKED(&reader->lock);
    reader->locked.doubtful += (unsigned)change;
}

uint64_t sl_reader_worth(struct sl_reader *reader, uint64_t row, uint64_t *span)
{
    SL_LOCKED(&reader->lock);
    *span = sl_weigh_span(&reader->locked.weigh);
    return sl_request_worth(&reader->locked.weigh.facts, row);
}

uint64_t sl_reader_expect(struct sl_reader *reader, uint64_t bytes)
{
    SL_LOCKED(&reader->lock);
    return sl_pace_expect(&reader->locked.pace, bytes);
}
