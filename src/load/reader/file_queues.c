/*
 * A thread has one queue at most, and a queue that holds ranges without a thread is taken before a
 * new one is made: so there are never more of them than threads, however many files there are.
 */
#include "file_queues.h"

#include "mem.h"

int sl_file_queues_init(struct sl_file_queues *queues, const struct sl_range *ranges,
                        size_t range_count, const struct sl_extent *extents, size_t file_count,
                        struct sl_err *err)
{
    *queues =
        (struct sl_file_queues){.ranges = ranges, .extents = extents, .range_count = range_count};
    queues->writers = sl_alloc_array(file_count, sizeof(*queues->writers), err);
    if (queues->writers)
        queues->shared = sl_alloc_array(file_count, sizeof(*queues->shared), err);
    return queues->shared ? 0 : -1;
}

void sl_file_queues_release(struct sl_file_queues *queues)
{
    free(queues->writers);
    free(queues->shared);
}

bool sl_file_queues_left(const struct sl_file_queues *queues)
{
    return queues->taken < queues->range_count;
}

/* The file that a range goes into, or the first of them. */
static uint32_t file_of(const struct sl_file_queues *queues, const struct sl_range *range)
{
    return queues->extents[range->extent_first].file;
}

static bool is_empty(const struct sl_file_queue *queue)
{
    return queue->next == queue->end;
}

static size_t left(const struct sl_file_queue *queue)
{
    return queue->end - queue->next;
}

/* The first that holds ranges and has no thread. */
static struct sl_file_queue *find_unread(struct sl_file_queues *queues)
{
    struct sl_file_queue *first = NULL;
    for (unsigned i = 0; i < SL_THREADS_MAX; i++) {
        struct sl_file_queue *queue = &queues->queues[i];
        if (!is_empty(queue) && !queue->threads && (!first || queue->next < first->next))
            first = queue;
    }
    return first;
}

static struct sl_file_queue *find_longest(struct sl_file_queues *queues)
{
    struct sl_file_queue *longest = &queues->queues[0];
    for (unsigned i = 1; i < SL_THREADS_MAX; i++)
        if (left(&queues->queues[i]) > left(longest))
            longest = &queues->queues[i];
    return longest;
}

/* Of the ranges of the next file. Some place is free: see above. */
static struct sl_file_queue *make_queue(struct sl_file_queues *queues)
{
    struct sl_file_queue *queue = queues->queues;
    while (!is_empty(queue) || queue->threads)
        queue++;
    size_t end = queues->queued;
    uint32_t file = file_of(queues, &queues->ranges[end]);
    while (end < queues->range_count && file_of(queues, &queues->ranges[end]) == file)
        end++;
    *queue = (struct sl_file_queue){.next = queues->queued, .end = end};
    queues->queued = end;
    return queue;
}

void sl_file_queues_leave(struct sl_file_queues *queues, unsigned thread)
{
    if (queues->of[thread])
        queues->of[thread]->threads--;
    queues->of[thread] = NULL;
}

static void choose_queue(struct sl_file_queues *queues, unsigned thread)
{
    sl_file_queues_leave(queues, thread);
    struct sl_file_queue *queue = find_unread(queues);
    if (!queue)
        queue = queues->queued < queues->range_count ? make_queue(queues) : find_longest(queues);
    queue->threads++;
    queues->of[thread] = queue;
}

void sl_file_queues_note(struct sl_file_queues *queues, unsigned thread,
                         const struct sl_range *range)
{
    uint32_t file = file_of(queues, range);
    uint8_t *writer = &queues->writers[file];
    if (!*writer)
        *writer = (uint8_t)(thread + 1);
    if (*writer == thread + 1 || queues->shared[file])
        return;
    queues->shared[file] = true;
    queues->shared_count++;
}

const struct sl_range *sl_file_queues_take(struct sl_file_queues *queues, unsigned thread)
{
    if (!sl_file_queues_left(queues))
        return NULL;
    if (!queues->of[thread] || is_empty(queues->of[thread]))
        choose_queue(queues, thread);
    const struct sl_range *range = &queues->ranges[queues->of[thread]->next++];
    queues->taken++;
    sl_file_queues_note(queues, thread, range);
    return range;
}

const struct sl_range *sl_file_queues_deal(struct sl_file_queues *queues, unsigned thread,
                                           size_t number)
{
    if (number >= queues->range_count)
        return NULL;
    queues->taken++;
    sl_file_queues_note(queues, thread, &queues->ranges[number]);
    return &queues->ranges[number];
}
