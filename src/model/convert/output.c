/*
 * One new object. Most destinations take bytes in any order. One that takes them in order only
 * (HTTP PUT) cannot be held open: its objects are sent one after another, each with the head first,
 * by whichever thread has the next bytes.
 */
#include "job.h"
#include "stores.h"
#include "url.h"

enum { ZEROS_BYTES = 64 * 1024 };

void sl_output_release(struct sl_output *output)
{
    sl_upload_free(output->upload);
    sl_source_free(output->source);
    free(output->name);
    free(output->uri);
}

int sl_output_open(struct sl_job *job, struct sl_output *output, struct sl_err *err)
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

int sl_output_write_head(struct sl_job *job, struct sl_output *output, struct sl_err *err)
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
    return sl_output_open(job, output, err) < 0 ? -1 : sl_output_write_head(job, output, err);
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

static char *output_uri(const char *to, const char *name, struct sl_err *err)
{
    size_t bytes = strlen(to);
    if (bytes == 0 || to[bytes - 1] != '/')
        return sl_strdup(to, err);
    sl_autofree char *encoded =
        sl_uri_is_encoded(to) ? sl_url_encode(name, true, err) : sl_strdup(name, err);
    return encoded ? sl_asprintf(err, "%s%s", to, encoded) : NULL;
}

int sl_job_add_output(struct sl_job *job, const char *folder, const char *name, uint64_t bytes,
                      struct sl_err *err)
{
    if (sl_grow(&job->outputs, &job->output_capacity, job->output_count + 1, sizeof(*job->outputs),
                err) < 0)
        return -1;
    struct sl_output *output = &job->outputs[job->output_count++];
    *output = (struct sl_output){.bytes = bytes};
    output->name = sl_asprintf(err, "%s%s", folder, name);
    output->uri = output->name ? output_uri(job->config->to, output->name, err) : NULL;
    return output->uri ? 0 : -1;
}
