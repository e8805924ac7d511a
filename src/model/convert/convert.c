/*
 * One conversion from spec to finished objects: what there is (folder.c), how it is laid out
 * (convert_layout.c), then threads that take blocks (schedule.c, worker.c), hash them (tally.c) and
 * write them (output.c). Everything that can be refused is refused before the first byte is
 * written; whatever fails later aborts every upload.
 */
#include "convert.h"

#include <string.h>

#include "deadline.h"
#include "job.h"
#include "log.h"
#include "places.h"
#include "spec.h"
#include "stores.h"

static void job_release(struct sl_job *job)
{
    for (size_t i = 0; i < job->item_count; i++) {
        sl_item_release(&job->items[i]);
        sl_chunk_check_free(job->items[i].chunk_check);
    }
    free(job->items);
    for (size_t i = 0; i < job->output_count; i++)
        sl_output_release(&job->outputs[i]);
    free(job->outputs);
    for (size_t i = 0; i < job->component_count; i++)
        sl_component_release(&job->components[i]);
    free(job->components);
    sl_store_free(job->store);
    pthread_mutex_destroy(&job->lock);
    pthread_cond_destroy(&job->moved);
}

/* Blocks hold whole pieces. */
static void set_block_bytes(struct sl_job *job)
{
    enum { BLOCK_BYTES_MIN = 1024, STEP = 64 };
    uint64_t bytes = job->config->block_bytes;
    if (!bytes)
        bytes = SL_CONVERT_BLOCK_BYTES;
    bytes = SL_MAX(bytes, (uint64_t)BLOCK_BYTES_MIN);
    job->piece_bytes = bytes >= SL_PIECE_BYTES ? SL_PIECE_BYTES : bytes - bytes % STEP;
    job->block_bytes = bytes - bytes % job->piece_bytes;
}

static bool is_folder(const char *uri)
{
    size_t bytes = strlen(uri);
    return bytes && uri[bytes - 1] == '/';
}

static int check_config(const struct sl_convert_config *config, struct sl_err *err)
{
    const struct sl_spec *spec = config->spec;
    if (config->shard_bytes && (!is_folder(config->to) || config->format != SL_CONVERT_SAFETENSORS))
        return sl_fail(err, SL_E_USAGE,
                       "--shard-bytes makes several safetensors files: name a folder, with a '/' "
                       "at the end");
    if (config->ranks && (!is_folder(config->to) || config->format != SL_CONVERT_SAFETENSORS))
        return sl_fail(err, SL_E_USAGE,
                       "--ranks makes a safetensors file for each rank: name a folder, with a '/' "
                       "at the end");
    if (config->seal && config->format != SL_CONVERT_TENSORIZER)
        return sl_fail(err, SL_E_USAGE,
                       "only .tensors files can be encrypted: name a destination that ends in "
                       ".tensors, or give --to-format tensorizer");
    if (config->align && config->format != SL_CONVERT_TENSORIZER)
        return sl_fail(err, SL_E_USAGE, "--align is for .tensors files: safetensors has no slack");
    if (spec->verify.sha256.count)
        return sl_fail(err, SL_E_USAGE,
                       "'verify.sha256' is of whole objects, and a conversion reads tensors: check "
                       "it with `sluice load` or leave it out");
    if (spec->verify.minisign.public_key || spec->verify.minisign.public_key_file)
        return sl_fail(err, SL_E_USAGE,
                       "'verify.minisign' is of whole objects, and a conversion reads tensors: "
                       "check it with `sluice verify` and leave it out");
    if (sl_spec_is_signed(spec))
        return sl_fail(err, SL_E_USAGE,
                       "'verify.modelSigning' is of the model as it was signed, and a conversion "
                       "makes another: check it with `sluice verify` and leave it out");
    return 0;
}

static int prepare_key(struct sl_job *job, struct sl_err *err)
{
    const struct sl_convert_config *config = job->config;
    if (sl_crypt_init(err) < 0)
        return -1;
    if (!config->seal)
        return 0;
    sl_keys_heed(config->seal, config->cancel);
    job->key = sl_keys_find(config->seal,
                            sl_keys_have_passphrase(config->seal) ? &config->kdf : NULL, err);
    return job->key ? 0 : -1;
}

/* Stores hold what is unfinished in memory, files do not. */
static void set_window(struct sl_job *job)
{
    job->window_bytes = sl_uri_is_local(job->config->to) ? UINT64_MAX : SL_CONVERT_WINDOW_BYTES;
}

static void set_total(const struct sl_job *job, struct sl_convert_result *result)
{
    uint64_t twice = 0;
    for (size_t i = 0; i < job->output_count; i++)
        result->bytes_written += job->outputs[i].bytes;
    for (size_t i = 0; i < job->item_count && job->in_order; i++)
        twice += job->items[i].header ? sl_item_span(&job->items[i]) : 0;
    result->tensors = job->item_count;
    result->files = job->output_count;
    for (size_t i = 0; i < job->component_count; i++)
        result->objects += job->components[i].plan->source_count;
    for (size_t i = 0; i < job->output_count; i++)
        result->objects += job->outputs[i].source != NULL;
    sl_progress_set_total(job->config->progress, result->bytes_written + twice, result->tensors,
                          result->objects);
}

static int run(struct sl_job *job, struct sl_convert_result *result, struct sl_err *err)
{
    struct sl_progress *progress = job->config->progress;
    set_total(job, result);
    sl_progress_set_state(progress, SL_LOAD_READING);
    if (sl_outputs_run(job, err) < 0)
        return -1;
    result->checks = job->locked.checks; /* no other thread is left */
    result->bytes_read = job->locked.bytes_read;
    return 0;
}

static int prepare(struct sl_job *job, struct sl_err *err)
{
    sl_progress_set_state(job->config->progress, SL_LOAD_PLANNING);
    if (check_config(job->config, err) < 0 || sl_job_find(job, err) < 0 ||
        prepare_key(job, err) < 0)
        return -1;
    return sl_job_lay_out(job, err) < 0 ? -1 : sl_job_check_leftovers(job, err);
}

struct conversion {
    struct sl_convert_config config;
    struct sl_convert_result *result;
};

/* From this source. *elsewhere: it cannot be opened, and nothing was begun. */
static int convert_from(struct conversion *conversion, const char *uri, bool *elsewhere,
                        struct sl_err *err)
{
    struct sl_spec spec = *conversion->config.spec;
    struct sl_convert_config config = conversion->config;
    struct sl_job job = {
        .config = &config, .lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
    struct sl_err why = SL_ERR_INIT;
    spec.source.uri = (char *)(uintptr_t)uri;
    config.spec = &spec;
    sl_spec_source_config(&spec, config.cancel, config.progress, &job.source_config);
    set_block_bytes(&job);
    set_window(&job);
    int done = prepare(&job, &why);
    *elsewhere = done < 0 && sl_places_move_loads(&why);
    if (done == 0)
        done = run(&job, conversion->result, &why);
    job_release(&job);
    if (done < 0)
        *err = why;
    return done;
}

static int convert(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    struct conversion *conversion = arg;
    const struct sl_spec_source *source = &conversion->config.spec->source;
    struct sl_err why = SL_ERR_INIT;
    bool elsewhere;
    conversion->config.cancel = cancel;
    int done = convert_from(conversion, source->uri, &elsewhere, &why);
    for (size_t i = 0; i < source->mirrors.count && elsewhere; i++) {
        sl_log(SL_LOG_WARN, "%s; trying mirror %zu of %zu", why.message, i + 1,
               source->mirrors.count);
        done = convert_from(conversion, source->mirrors.items[i], &elsewhere, &why);
    }
    if (done < 0)
        *err = why;
    return done;
}

/* What a spec says of readers, where the caller says nothing. One object has no room for data
 * files. */
static void settle(struct sl_convert_config *config)
{
    config->data_files &= is_folder(config->to);
    const struct sl_spec_readers *readers = &config->spec->readers;
    if (!config->threads && readers->connections != SL_AUTO_VALUE)
        config->threads = (unsigned)readers->connections;
    if (!config->upload.memory_bytes && readers->memory_bytes != SL_AUTO_VALUE)
        config->upload.memory_bytes = readers->memory_bytes;
}

int sl_convert_run(const struct sl_convert_config *config, struct sl_convert_result *result,
                   struct sl_err *err)
{
    struct sl_convert_result own;
    struct conversion conversion = {*config, result ? result : &own};
    uint64_t begin_ns = sl_now_ns();
    result = conversion.result;
    *result = (struct sl_convert_result){0};
    settle(&conversion.config);
    int done = sl_deadline_run(config->spec->readers.timeout_seconds, config->cancel, convert,
                               &conversion, err);
    result->seconds = (double)(sl_now_ns() - begin_ns) / 1e9;
    return done;
}
