/*
 * The new objects. Most destinations take bytes in any order: all of them are opened before the
 * first byte is read, so that what is in the way is told at once, and made visible together at the
 * end, in an order in which nothing names what is not there yet. A destination that takes bytes in
 * order only (HTTP PUT) cannot be held open: it is asked beforehand whether it would take them, and
 * its objects are sent one after another, each with the head first, by whichever thread has the
 * next bytes.
 */

#include "job.h"
#include "stores.h"

enum { ZEROS_BYTES = 64 * 1024, COPY_BYTES = 1024 * 1024 };

void sl_output_release(struct sl_output *output)
{
    sl_upload_free(output->upload);
    sl_source_free(output->source);
    free(output->name);
    free(output->uri);
}

static int open_output(struct sl_job *job, struct sl_output *output, struct sl_err *err)
{
    struct sl_upload_config config = job->config->upload;
    config.source = &job->source_config;
    config.replace = job->config->replace;
    return sl_upload_open(output->uri, output->bytes, &config, &output->upload, err);
}

static void advance(struct sl_job *job, struct sl_output *output, size_t bytes)
{
    SL_LOCKED(&job->lock);
    output->locked.position += bytes;
    pthread_cond_broadcast(&job->moved);
}

static int await_position(struct sl_job *job, const struct sl_output *output, uint64_t offset,
                          struct sl_err *err)
{
    SL_LOCKED(&job->lock);
    while (!job->locked.failed && output->locked.position != offset)
        pthread_cond_wait(&job->moved, &job->lock);
    if (!job->locked.failed)
        return 0;
    *err = job->locked.err;
    return -1;
}

int sl_output_write(struct sl_job *job, struct sl_output *output, uint64_t offset, const void *data,
                    size_t bytes, struct sl_err *err)
{
    if (bytes == 0)
        return 0;
    if (job->pass != SL_PASS_MEASURE) {
        if (job->in_order && await_position(job, output, offset, err) < 0)
            return -1;
        if (sl_upload_write(output->upload, offset, data, bytes, err) < 0)
            return -1;
        if (job->in_order)
            advance(job, output, bytes);
    }
    sl_progress_add_bytes(job->config->progress, bytes);
    return 0;
}

int sl_output_zeros(struct sl_job *job, struct sl_output *output, uint64_t begin, uint64_t end,
                    struct sl_err *err)
{
    static const uint8_t zeros[ZEROS_BYTES];
    while (begin < end) {
        size_t bytes = SL_MIN(end - begin, sizeof(zeros));
        if (sl_output_write(job, output, begin, zeros, bytes, err) < 0)
            return -1;
        begin += bytes;
    }
    return 0;
}

static int write_head(struct sl_job *job, struct sl_output *output, struct sl_err *err)
{
    const struct sl_buf *head = &output->file->head;
    return sl_output_write(job, output, 0, head->data, head->used, err);
}

/* In order an object is opened when its turn comes, by who has its first bytes; what others write
 * waits for those. */
int sl_output_admit(struct sl_job *job, const struct sl_block *block, struct sl_err *err)
{
    struct sl_output *output = block->first->output;
    if (job->pass == SL_PASS_MEASURE)
        return 0;
    if (!job->in_order)
        return sl_upload_admit(output->upload, err);
    if (block->first != output->first_item || block->begin > 0)
        return 0;
    return open_output(job, output, err) < 0 ? -1 : write_head(job, output, err);
}

int sl_output_items_done(struct sl_job *job, struct sl_output *output, size_t count,
                         struct sl_err *err)
{
    {
        SL_LOCKED(&job->lock);
        output->locked.items_left -= count;
        if (output->locked.items_left)
            return 0;
    }
    if (sl_output_zeros(job, output, output->tail, output->bytes, err) < 0)
        return -1;
    if (job->pass == SL_PASS_MEASURE || !job->in_order)
        return 0;
    return sl_upload_finish(output->upload, err);
}

/* ---- data files ------------------------------------------------------------------------------ */

static int copy_file(struct sl_job *job, struct sl_output *output, struct sl_err *err)
{
    sl_autofree uint8_t *data = sl_alloc(COPY_BYTES, err);
    if (!data)
        return -1;
    for (uint64_t at = 0; at < output->bytes;) {
        size_t bytes = SL_MIN(output->bytes - at, COPY_BYTES);
        if (sl_cancel_check(job->config->cancel, err) < 0 ||
            sl_upload_admit(output->upload, err) < 0 ||
            sl_source_read(output->source, at, data, bytes, err) < 0 ||
            sl_output_write(job, output, at, data, bytes, err) < 0)
            return -1;
        at += bytes;
    }
    return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* Without tensors: a data file, an index, a model of none. */
static int write_plain_output(struct sl_job *job, struct sl_output *output, struct sl_err *err)
{
    if (output->source)
        return copy_file(job, output, err);
    if (write_head(job, output, err) < 0)
        return -1;
    return sl_output_zeros(job, output, output->tail, output->bytes, err);
}

static int send_plain_outputs(struct sl_job *job, bool data_files, struct sl_err *err)
{
    for (size_t i = 0; i < job->output_count; i++) {
        struct sl_output *output = &job->outputs[i];
        if (output->first_item || (output->source != NULL) != data_files)
            continue;
        if (job->in_order && open_output(job, output, err) < 0)
            return -1;
        if (write_plain_output(job, output, err) < 0 ||
            (job->in_order && sl_upload_finish(output->upload, err) < 0))
            return -1;
    }
    return 0;
}

/* What is in the way of any of them is told before the first byte is fetched. */
static int try_outputs(struct sl_job *job, struct sl_err *err)
{
    for (size_t i = 0; i < job->output_count; i++) {
        struct sl_output *output = &job->outputs[i];
        if (open_output(job, output, err) < 0)
            return -1;
        sl_upload_free(output->upload);
        output->upload = NULL;
    }
    return 0;
}

static int run_in_order(struct sl_job *job, struct sl_err *err)
{
    bool headers = job->item_count && job->items[0].header;
    if (try_outputs(job, err) < 0 || sl_job_prove_indexes(job, err) < 0)
        return -1;
    job->pass = SL_PASS_MEASURE;
    if (headers && sl_job_work(job, err) < 0)
        return -1;
    job->pass = SL_PASS_ORDER;
    if (send_plain_outputs(job, true, err) < 0 || sl_job_work(job, err) < 0)
        return -1;
    return send_plain_outputs(job, false, err);
}

static int run_in_any_order(struct sl_job *job, struct sl_err *err)
{
    job->pass = SL_PASS_WRITE;
    for (size_t i = 0; i < job->output_count; i++)
        if (open_output(job, &job->outputs[i], err) < 0)
            return -1;
    for (size_t i = 0; i < job->output_count; i++)
        if (job->outputs[i].first_item && write_head(job, &job->outputs[i], err) < 0)
            return -1;
    if (send_plain_outputs(job, true, err) < 0 || send_plain_outputs(job, false, err) < 0 ||
        sl_job_work(job, err) < 0 || sl_job_prove_indexes(job, err) < 0 ||
        sl_cancel_check(job->config->cancel, err) < 0)
        return -1;
    sl_progress_set_state(job->config->progress, SL_LOAD_CHECKING);
    for (size_t i = 0; i < job->output_count; i++) /* data files, tensors, what names them */
        if (sl_upload_finish(job->outputs[i].upload, err) < 0)
            return -1;
    return 0;
}

int sl_outputs_run(struct sl_job *job, struct sl_err *err)
{
    return (job->in_order ? run_in_order : run_in_any_order)(job, err);
}
