/*
 * All objects of a conversion. Where they may be written in any order, all are opened before the
 * first byte is read, so that what is in the way is told at once; else the destination is asked
 * beforehand whether it would take them. Data files come before tensors. All become visible at the
 * end, in an order in which nothing names what is not there yet.
 */
#include "job.h"

enum { COPY_BYTES = 1 << 20 };

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

/* Without tensors: a data file, an index, a model of none. */
static int write_plain_output(struct sl_job *job, struct sl_output *output, struct sl_err *err)
{
    if (output->source)
        return copy_file(job, output, err);
    if (sl_output_write_head(job, output, err) < 0)
        return -1;
    return sl_output_zeros(job, output, output->tail, output->bytes, err);
}

static int send_plain_outputs(struct sl_job *job, bool data_files, struct sl_err *err)
{
    for (size_t i = 0; i < job->output_count; i++) {
        struct sl_output *output = &job->outputs[i];
        if (output->first_item || (output->source != NULL) != data_files)
            continue;
        if (job->in_order && sl_output_open(job, output, err) < 0)
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
        if (sl_output_open(job, output, err) < 0)
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
        if (sl_output_open(job, &job->outputs[i], err) < 0)
            return -1;
    for (size_t i = 0; i < job->output_count; i++)
        if (job->outputs[i].first_item && sl_output_write_head(job, &job->outputs[i], err) < 0)
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
