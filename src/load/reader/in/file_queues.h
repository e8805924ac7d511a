/*
 * Which range a thread reads next, and so which file it writes. Writers that meet in one file wait
 * for each other at the page cache's lock, in two files they do not. Ranges that follow one another
 * in the plan and go into one file are a *queue*. A thread takes the next range of its queue; when
 * that is empty it takes the first queue that nobody reads, in the order of the plan; and only when
 * each has its thread it joins the one with the most ranges left.
 *
 * One thread alone so reads in the order of the plan. Computation alone, under its owner's lock.
 */
#ifndef SL_FILE_QUEUES_H
#define SL_FILE_QUEUES_H

#include "concurrency.h"
#include "plan.h"

struct sl_file_queue {
    size_t next, end; /* of the ranges; equal: empty */
    unsigned threads; /* that read from it */
};
struct sl_file_queues {
    const struct sl_range *ranges;
    const struct sl_extent *extents;
    size_t range_count;
    size_t queued; /* ranges before this one are, or were, in a queue */
    size_t taken;
    struct sl_file_queue queues[SL_THREADS_MAX];
    struct sl_file_queue *of[SL_THREADS_MAX]; /* of each thread; NULL: none */
    uint8_t *writers; /* of each file: the first thread that wrote to it, from 1; 0: none yet */
    bool *shared;     /* of each file: more threads than one wrote to it */
    size_t shared_count;
};
/**
 * Make the queues of a load's ranges.
 *
 * @queues      out: release it, after a failure too.
 * @ranges      `range_count` of them, in the order of the plan; borrowed until the release.
 * @extents     which the ranges count; borrowed as well.
 * @file_count  of the plan.
 * @return      0, or -1 with SL_E_NO_SPACE.
 */
int sl_file_queues_init(struct sl_file_queues *queues, const struct sl_range *ranges,
                        size_t range_count, const struct sl_extent *extents, size_t file_count,
                        struct sl_err *err);
void sl_file_queues_release(struct sl_file_queues *queues);
/** Is a range left that nobody has taken? */
bool sl_file_queues_left(const struct sl_file_queues *queues);
/** The next range for a thread (below SL_THREADS_MAX), borrowed; NULL: none is left. */
const struct sl_range *sl_file_queues_take(struct sl_file_queues *queues, unsigned thread);
/** The same of a load that is pinned: the range of this number, each once; NULL: past the last. */
const struct sl_range *sl_file_queues_deal(struct sl_file_queues *queues, unsigned thread,
                                           size_t number);
/** A thread is about to write this range, or a part of one, wherever it has it from. */
void sl_file_queues_note(struct sl_file_queues *queues, unsigned thread,
                         const struct sl_range *range);
/** A thread reads nothing for now: another one may have its queue. */
void sl_file_queues_leave(struct sl_file_queues *queues, unsigned thread);

#endif
