/*
 * Who reads what. Ranges come off the plan in its order; what a lane gives away comes first, since
 * it has waited longest. A lane's range is its own thread's alone: nobody takes from it, its thread
 * gives, when it sees that others are idle. So a byte is in one range at any moment, and the load
 * has ended when no range waits and none is being read.
 *
 * Sending a slow request again: only when the plan is used up (before, a slow lane holds nobody up)
 * and only while most lanes do well, since then it is the request that is slow and not the link.
 */
#include "reader_parts.h"

static bool has_work(const struct sl_reader *reader)
{
    return reader->locked.given_count || reader->locked.next_range < reader->work.range_count;
}

bool sl_reader_take(struct sl_reader *reader, struct sl_job *job)
{
    SL_LOCKED(&reader->lock);
    if (reader->locked.err.kind || !has_work(reader))
        return false;
    if (reader->locked.given_count)
        *job = reader->locked.given[--reader->locked.given_count];
    else
        *job = (struct sl_job){.range = reader->work.ranges[reader->locked.next_range++]};
    reader->locked.busy++;
    return true;
}

void sl_reader_ended(struct sl_reader *reader, uint64_t bytes, uint64_t ns)
{
    bool last;
    {
        SL_LOCKED(&reader->lock);
        sl_pace_add(&reader->locked.pace, bytes, ns);
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
    return reader->locked.next_range == reader->work.range_count;
}

bool sl_reader_give(struct sl_reader *reader, const struct sl_job *job)
{
    SL_LOCKED(&reader->lock);
    if (reader->locked.given_count >= SL_MIN(reader->locked.idle, reader->given_max))
        return false;
    reader->locked.given[reader->locked.given_count++] = *job;
    return true;
}

bool sl_reader_give_back(struct sl_reader *reader, const struct sl_job *job, bool stuck)
{
    SL_LOCKED(&reader->lock);
    bool alone = reader->locked.lanes == 1;
    bool most_do_well = reader->locked.doubtful * 2 <= reader->locked.lanes;
    if (alone ? !stuck : !most_do_well)
        return false;
    if (reader->locked.next_range < reader->work.range_count ||
        reader->locked.given_count == reader->given_max)
        return false;
    reader->locked.given[reader->locked.given_count++] = *job;
    reader->locked.busy--;
    return true;
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

uint64_t sl_reader_expect(struct sl_reader *reader, uint64_t bytes)
{
    SL_LOCKED(&reader->lock);
    return sl_pace_expect(&reader->locked.pace, bytes);
}
