/*
 * What a thread does with a block: wait until the upload has room, read (and cast) the plaintext
 * (pull.c), hash, encrypt, write. Reading comes before waiting for anybody, so that while one
 * thread hashes, the others are a block ahead. Small tensors are put together in memory with their
 * headers and written at once.
 */
#include <string.h>

#include "job.h"
#include "names.h"

/* ---- encryption ------------------------------------------------------------------------------ */

/* Seal the pieces of [begin, end); read a second time, they must come out as before. */
static int seal(const struct sl_job *job, const struct sl_item *item, uint64_t begin, uint64_t end,
                const uint8_t *plain, uint8_t *cipher, struct sl_err *err)
{
    const struct sl_layout_header *header = item->header;
    uint64_t piece_bytes = header->mac_count == 1 ? item->data_bytes : header->piece_bytes;
    for (uint64_t at = begin; at < end; at += piece_bytes) {
        uint8_t mac[SL_MAC_BYTES],
            *place = header->data + header->macs_at + at / piece_bytes * SL_MAC_BYTES;
        size_t bytes = SL_MIN(piece_bytes, end - at);
        sl_crypt_seal(job->key, header->data + header->nonce_at, at / piece_bytes,
                      plain + (at - begin), cipher + (at - begin), bytes, mac);
        if (job->pass != SL_PASS_ORDER)
            memcpy(place, mac, sizeof(mac));
        else if (memcmp(place, mac, sizeof(mac)) != 0)
            return sl_fail_code(
                err, SL_E_INTEGRITY, "changed",
                "tensor '%.*s' was not the same when it was read a second time: the source changed "
                "during the conversion",
                SL_NAME_ARGS(item->target->from->name, item->target->from->name_bytes));
    }
    return 0;
}

/* ---- a batch of small tensors ---------------------------------------------------------------- */

/* One whole tensor of a batch, at `place` in memory, its header in front of it. */
static int make_whole(struct sl_worker *worker, struct sl_item *item, uint8_t *place,
                      struct sl_err *err)
{
    struct sl_job *job = worker->job;
    struct sl_tally tally = {.end = item->data_bytes, .raw_end = item->raw_bytes};
    if (sl_item_begin(item, err) < 0 || sl_worker_read(worker, item, place, &tally, err) < 0)
        return -1;
    if (sl_item_in_turns(item))
        sl_item_hash(job, item, place, item->data_bytes);
    if (job->key && item->data_bytes && seal(job, item, 0, item->data_bytes, place, place, err) < 0)
        return -1;
    sl_item_count(job, item, &tally);
    if (sl_item_complete(job, item, err) < 0)
        return -1;
    const struct sl_layout_header *header = item->header;
    if (header)
        memcpy(place - (item->begin - header->offset), header->data, header->bytes);
    return 0;
}

static int work_batch(struct sl_worker *worker, const struct sl_block *block, struct sl_err *err)
{
    struct sl_job *job = worker->job;
    struct sl_output *output = block->first->output;
    const struct sl_item *last = &block->first[block->count - 1];
    uint64_t begin = block->first->gap, bytes = last->begin + last->data_bytes - begin;
    memset(worker->plain, 0, bytes);
    if (sl_worker_read_ahead(worker, block, err) < 0)
        return -1;
    for (size_t i = 0; i < block->count; i++) {
        struct sl_item *item = &block->first[i];
        if (sl_job_check(job, err) < 0 || sl_cancel_check(job->config->cancel, err) < 0 ||
            make_whole(worker, item, worker->plain + (item->begin - begin), err) < 0)
            return -1;
    }
    if (sl_output_write(job, output, begin, worker->plain, bytes, err) < 0)
        return -1;
    return sl_output_items_done(job, output, block->count, err);
}

/* ---- a part of a large tensor ---------------------------------------------------------------- */

static int write_header(struct sl_job *job, const struct sl_item *item, struct sl_err *err)
{
    const struct sl_layout_header *header = item->header;
    if (!header)
        return 0;
    return sl_output_write(job, item->output, header->offset, header->data, header->bytes, err);
}

/* Before a tensor's first bytes. */
static int begin_tensor(struct sl_job *job, struct sl_item *item, struct sl_err *err)
{
    uint64_t gap_end = item->header ? item->header->offset : item->begin;
    if (sl_item_begin(item, err) < 0 ||
        sl_output_zeros(job, item->output, item->gap, gap_end, err) < 0)
        return -1;
    return job->pass == SL_PASS_ORDER ? write_header(job, item, err) : 0;
}

/* After its last. */
static int end_tensor(struct sl_job *job, struct sl_item *item, struct sl_err *err)
{
    if (sl_item_complete(job, item, err) < 0 ||
        (job->pass != SL_PASS_ORDER && write_header(job, item, err) < 0))
        return -1;
    return sl_output_items_done(job, item->output, 1, err);
}

static int work_part(struct sl_worker *worker, const struct sl_block *block, struct sl_err *err)
{
    struct sl_job *job = worker->job;
    struct sl_item *item = block->first;
    struct sl_tally tally = {.begin = block->begin, .end = block->end};
    size_t bytes = block->end - block->begin;
    bool cast = item->target->from->dtype != item->target->out.dtype;
    const uint8_t *out = worker->plain;
    worker->ahead.end = 0;
    if (block->begin == 0 && begin_tensor(job, item, err) < 0)
        return -1;
    /* What is cast is hashed while it is read. */
    if (cast && item->sha_check && sl_item_await_turn(job, item, block->begin, err) < 0)
        return -1;
    if (sl_worker_read(worker, item, worker->plain, &tally, err) < 0)
        return -1;
    if (job->key) {
        if (seal(job, item, block->begin, block->end, worker->plain, worker->other, err) < 0)
            return -1;
        out = worker->other;
    }
    if (sl_output_write(job, item->output, item->begin + block->begin, out, bytes, err) < 0)
        return -1;
    if (sl_item_in_turns(item)) {
        if (sl_item_await_turn(job, item, block->begin, err) < 0)
            return -1;
        sl_item_hash(job, item, worker->plain, bytes);
    }
    return sl_item_count(job, item, &tally) ? end_tensor(job, item, err) : 0;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void worker_release(struct sl_worker *worker)
{
    sl_worker_release_readers(worker);
    free(worker->plain);
    free(worker->other);
}

static int work_blocks(struct sl_worker *worker, struct sl_err *err)
{
    struct sl_job *job = worker->job;
    worker->plain = sl_alloc_aligned(64, job->block_bytes, err);
    worker->other = worker->plain ? sl_alloc_aligned(64, job->block_bytes, err) : NULL;
    if (!worker->other)
        return -1;
    for (;;) {
        struct sl_block block;
        sl_job_take(job, worker, &block);
        if (!block.count)
            return 0;
        if (sl_cancel_check(job->config->cancel, err) < 0 || sl_output_admit(job, &block, err) < 0)
            return -1;
        if ((block.part ? work_part : work_batch)(worker, &block, err) < 0)
            return -1;
    }
}

static void *run_worker(void *arg)
{
    struct sl_worker worker = {.job = arg};
    struct sl_err err = SL_ERR_INIT;
    if (work_blocks(&worker, &err) < 0)
        sl_job_fail(arg, &err);
    worker_release(&worker);
    return NULL;
}

static bool is_remote(const struct sl_job *job)
{
    for (size_t i = 0; i < job->component_count; i++)
        if (!sl_store_traits(sl_source_store(job->components[i].plan->sources[0].source))->local)
            return true;
    return false;
}

enum { THREADS_AUTO_MAX = 8 };

static unsigned count_threads(const struct sl_job *job)
{
    uint64_t bytes = 0, threads = job->config->threads;
    if (!threads)
        threads = is_remote(job) ? THREADS_AUTO_MAX : SL_MIN(sl_cpu_count(), THREADS_AUTO_MAX);
    for (size_t i = 0; i < job->item_count; i++)
        bytes += job->items[i].data_bytes;
    threads = SL_MIN(threads, bytes / job->block_bytes + 1);
    return (unsigned)SL_MIN(threads, SL_CONVERT_THREADS_MAX);
}

/* This thread works too, so one that cannot start costs time only. */
int sl_job_work(struct sl_job *job, struct sl_err *err)
{
    pthread_t threads[SL_CONVERT_THREADS_MAX];
    unsigned wanted = count_threads(job), started = 0;
    sl_job_rewind(job);
    while (started + 1 < wanted &&
           sl_thread_start(&threads[started], "sl-convert", run_worker, job, NULL) == 0)
        started++;
    run_worker(job);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return sl_job_check(job, err);
}
