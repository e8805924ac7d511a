/*
 * Who does what next. A SHA-256 must see the bytes of its tensor in order, so several threads on
 * one tensor wait for each other: each begins a tensor of its own, and only helps with another's
 * when none is left to begin (or when it lies too far ahead for a store that holds what is
 * unfinished in memory). A helper reads, seals and writes its block while the one before is hashed.
 * Small tensors that follow each other are one block. Destinations that take bytes in order only
 * get every block in that order.
 */
#include "job.h"

static uint64_t item_end(const struct sl_item *item)
{
    return item->begin + item->data_bytes;
}

uint64_t sl_item_span(const struct sl_item *item)
{
    return item_end(item) - item->gap;
}

static bool is_begun(const struct sl_item *item)
{
    return item->locked.assigned > 0;
}

static bool is_left(const struct sl_item *item)
{
    return item->locked.assigned < item->data_bytes;
}

/* The lock is held, here and below. */
static void leave_item(struct sl_worker *worker)
{
    if (worker->item)
        worker->item->locked.workers--;
    worker->item = NULL;
}

static void take_part(struct sl_job *job, struct sl_worker *worker, struct sl_item *item,
                      struct sl_block *block)
{
    if (worker->item != item) {
        leave_item(worker);
        worker->item = item;
        item->locked.workers++;
    }
    uint64_t bytes = SL_MIN(job->block_bytes, item->data_bytes - item->locked.assigned);
    *block = (struct sl_block){.first = item, .count = 1, .part = true};
    block->begin = item->locked.assigned;
    block->end = item->locked.assigned += bytes;
}

/* Whole tensors from `next` on that fit in one block and follow each other in one output. */
static size_t batch_length(const struct sl_job *job, const struct sl_item *first)
{
    const struct sl_item *end = job->items + job->item_count;
    size_t count = 0;
    for (const struct sl_item *item = first; item < end && item->output == first->output; item++) {
        if (item_end(item) - first->gap > job->block_bytes)
            break;
        count++;
    }
    return count;
}

static void begin_next(struct sl_job *job, struct sl_worker *worker, struct sl_block *block)
{
    struct sl_item *first = &job->items[job->locked.next];
    size_t count = batch_length(job, first);
    if (count == 0) {
        job->locked.next++;
        take_part(job, worker, first, block);
        return;
    }
    leave_item(worker);
    *block = (struct sl_block){.first = first, .count = count};
    for (size_t i = 0; i < count; i++)
        first[i].locked.assigned = first[i].data_bytes;
    job->locked.next += count;
}

/* Where the unfinished begins: outputs are far apart, so only those of one are compared. */
static bool in_window(struct sl_job *job, const struct sl_item *next)
{
    size_t *open = &job->locked.first_open;
    while (*open < job->locked.next &&
           job->items[*open].locked.done == job->items[*open].data_bytes)
        ++*open;
    if (*open == job->locked.next)
        return true;
    const struct sl_item *first = &job->items[*open];
    uint64_t ahead = first->output == next->output
                         ? next->gap - first->begin
                         : first->output->bytes - first->begin + next->gap;
    uint64_t done = SL_MIN(first->locked.done, ahead);
    return ahead - done <= job->window_bytes;
}

/* The tensor with the most to do among those begun. */
static struct sl_item *find_to_help(struct sl_job *job)
{
    struct sl_item *best = NULL;
    for (size_t i = job->locked.first_open; i < job->locked.next; i++) {
        struct sl_item *item = &job->items[i];
        if (is_left(item) && is_begun(item) &&
            (!best ||
             item->data_bytes - item->locked.assigned > best->data_bytes - best->locked.assigned))
            best = item;
    }
    return best;
}

/* 1: taken, 0: nothing is left, -1: wait. */
static int try_in_order(struct sl_job *job, struct sl_worker *worker, struct sl_block *block)
{
    struct sl_item *last = job->locked.next ? &job->items[job->locked.next - 1] : NULL;
    if (last && is_left(last))
        take_part(job, worker, last, block);
    else if (job->locked.next < job->item_count)
        begin_next(job, worker, block);
    else
        return 0;
    return 1;
}

static int try_take(struct sl_job *job, struct sl_worker *worker, struct sl_block *block)
{
    struct sl_item *own = worker->item;
    if (job->pass == SL_PASS_ORDER)
        return try_in_order(job, worker, block);
    if (own && is_left(own) && own->locked.workers == 1) {
        take_part(job, worker, own, block);
        return 1;
    }
    bool more = job->locked.next < job->item_count;
    if (more && in_window(job, &job->items[job->locked.next])) {
        begin_next(job, worker, block);
        return 1;
    }
    struct sl_item *other = find_to_help(job);
    if (other) {
        take_part(job, worker, other, block);
        return 1;
    }
    return more ? -1 : 0;
}

void sl_job_take(struct sl_job *job, struct sl_worker *worker, struct sl_block *block)
{
    SL_LOCKED(&job->lock);
    *block = (struct sl_block){0};
    while (!job->locked.failed && try_take(job, worker, block) < 0)
        pthread_cond_wait(&job->moved, &job->lock);
    if (!block->count)
        leave_item(worker);
}

/* Between two passes: no other thread works. */
void sl_job_rewind(struct sl_job *job)
{
    job->locked.next = job->locked.first_open = 0;
    for (size_t i = 0; i < job->item_count; i++) {
        struct sl_item *item = &job->items[i];
        sl_item_release(item);
        item->locked.assigned = item->locked.hashed = item->locked.done = 0;
        item->locked.crc = item->locked.raw_crc = 0;
        item->locked.workers = 0;
    }
    for (size_t i = 0; i < job->output_count; i++)
        job->outputs[i].locked.items_left = 0;
    for (size_t i = 0; i < job->item_count; i++)
        job->items[i].output->locked.items_left++;
}

int sl_job_fail(struct sl_job *job, const struct sl_err *err)
{
    SL_LOCKED(&job->lock);
    if (!job->locked.failed)
        job->locked.err = *err;
    job->locked.failed = true;
    pthread_cond_broadcast(&job->moved);
    return -1;
}

int sl_job_check(struct sl_job *job, struct sl_err *err)
{
    SL_LOCKED(&job->lock);
    if (!job->locked.failed)
        return 0;
    *err = job->locked.err;
    return -1;
}
