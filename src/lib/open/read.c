/*
 * A read is a part of the opened plan (plan/part.c), carried out by the reader of every load: its
 * ranges, retries, hashes, casts and decryption. What it lacks is a destination that others see, so
 * neither journal nor publishing is needed; what is complete is told by what the run tells.
 */

#include "concurrency.h"
#include "mapping.h"
#include "reader.h"
#include "readiness.h"
#include "reading.h"

/* ---- what is told ---------------------------------------------------------------------------- */

/* The lock is held. */
static void count_bytes(struct sl_reading *reading, uint64_t bytes)
{
    const struct sluice_read_options *options = &reading->options;
    reading->locked.bytes_done += bytes;
    if (options->progress &&
        options->progress(options->arg, reading->locked.bytes_done, reading->bytes_total))
        reading->locked.canceled = true;
}

/* The lock is held. */
static void report_done(struct sl_reading *reading, size_t read)
{
    const struct sluice_read_options *options = &reading->options;
    count_bytes(reading, reading->reads[read].bytes);
    if (options->done && options->done(options->arg, read))
        reading->locked.canceled = true;
}

/* What has no bytes at all. */
static void report_empty(struct sl_reading *reading)
{
    SL_LOCKED(&reading->lock);
    for (size_t i = 0; i < reading->count; i++)
        if (!reading->pieces_left[i])
            report_done(reading, i);
}

/* From its own memory to where it goes. */
static int hand_over(const struct sl_reading *reading, const struct sl_piece *piece,
                     struct sl_err *err)
{
    if (!piece->between)
        return 0; /* it has no bytes, or they came to their place */
    if (!reading->device) {
        sl_piece_take_out(piece, piece->to);
        return 0;
    }
    if (!piece->steps)
        return sl_read_device_copy(reading->device, piece->to, piece->between, piece->bytes, err);
    sl_autofree uint8_t *taken = sl_alloc(piece->bytes, err);
    if (!taken)
        return -1;
    uint64_t bytes = (uint64_t)(sl_piece_take_out(piece, taken) - taken);
    return sl_read_device_copy(reading->device, piece->to, taken, bytes, err);
}

/* A piece is there and checked. */
static void on_ready(void *arg, size_t number)
{
    struct sl_reading *reading = arg;
    struct sl_piece *piece = &reading->pieces[number];
    struct sl_err err = SL_ERR_INIT;
    int done = hand_over(reading, piece, &err);
    SL_LOCKED(&reading->lock);
    if (piece->aside && !piece->keeps)
        free(sl_steal(&piece->between));
    if (done < 0) {
        reading->locked.why = err;
        reading->locked.canceled = true;
    } else if (--reading->pieces_left[piece->read] == 0) {
        report_done(reading, piece->read);
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

static struct sl_plan_wanted *make_wanted(const struct sl_reading *reading, struct sl_err *err)
{
    struct sl_plan_wanted *wanted = sl_alloc_array(reading->piece_count, sizeof(*wanted), err);
    for (size_t i = 0; wanted && i < reading->piece_count; i++) {
        const struct sl_piece *piece = &reading->pieces[i];
        uint64_t number = reading->reads[piece->read].number;
        wanted[i].target = sl_open_target(reading->source, number);
        wanted[i].source = sl_open_object(reading->source, number);
        wanted[i].slice = piece->whole ? NULL : &piece->slice;
        wanted[i].begin = piece->whole ? 0 : piece->slice.begin[0];
        wanted[i].end = piece->whole ? piece->bytes : piece->slice.end[0];
    }
    return wanted;
}

static struct sl_readiness *follow(struct sl_reading *reading, const struct sl_plan *plan,
                                   const struct sl_plan_wanted *wanted, struct sl_err *err)
{
    sl_autofree struct sl_readiness_item *items =
        sl_alloc_array(reading->piece_count, sizeof(*items), err);
    const struct sl_mapping *mapping = plan->mappings;
    for (size_t i = 0; items && i < reading->piece_count; i++) {
        items[i] = (struct sl_readiness_item){.file = (uint32_t)i,
                                              .source = wanted[i].source,
                                              .bytes = reading->pieces[i].bytes,
                                              .begin = wanted[i].begin,
                                              .end = wanted[i].end};
        reading->pieces[i].keeps = sl_plan_sidecar(plan, wanted[i].source) != NULL;
        if (!wanted[i].target)
            continue;
        items[i].begin = mapping->begin;
        items[i].end = mapping->end;
        if (mapping->target->from->meta)
            items[i].bytes = 0;
        mapping++;
    }
    return items ? sl_readiness_new(plan, items, reading->piece_count, on_ready, reading, err)
                 : NULL;
}

static struct sl_reader_config reader_config(const struct sl_reading *reading,
                                             struct sl_cancel *cancel)
{
    const struct sl_spec *spec = reading->source->specs.items;
    const struct sl_spec_readers *readers = &spec->readers;
    return (struct sl_reader_config){
        .connections = readers->connections == SL_AUTO_VALUE ? 0 : (unsigned)readers->connections,
        .memory_bytes = readers->memory_bytes == SL_AUTO_VALUE ? 0 : readers->memory_bytes,
        .hedge = (enum sl_hedge)readers->hedge,
        .hashes = spec->verify.hashes,
        .cancel = cancel,
        .progress = reading->source->progress,
    };
}

static int run_plan(struct sl_reading *reading, const struct sl_plan *plan,
                    struct sl_readiness *readiness, struct sl_cancel *cancel, struct sl_err *err)
{
    sl_autofree struct sl_sink_file *files = sl_plan_sink_files(plan, err);
    SL_AUTO(sl_sink) sink = files ? sl_read_sink_open(reading, files, err) : NULL;
    if (!sink)
        return -1;
    const struct sl_stage_device device = {.events = sl_readiness_events(readiness)};
    struct sl_reader_config config = reader_config(reading, cancel);
    config.device = &device;
    sl_concurrency_open_load();
    int done = sl_reader_run(plan, sink, NULL, &config, err);
    sl_concurrency_close_load();
    return done;
}

/* Errors are told, and canceling by a callback is one. */
static int judge(struct sl_reading *reading, struct sl_readiness *readiness, struct sl_err *err)
{
    size_t left = sl_readiness_left(readiness); /* it takes our lock within its own */
    SL_LOCKED(&reading->lock);
    if (reading->locked.why.kind) {
        *err = reading->locked.why;
        return -1;
    }
    if (reading->locked.canceled)
        return sl_fail(err, SL_E_CANCELED, "a callback ended the read");
    if (left)
        return sl_fail(err, SL_E_INTERNAL, "%zu tensors were read, but not counted as complete",
                       left);
    return 0;
}

static int read_it(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    struct sl_reading *reading = arg;
    struct sluice_source *source = reading->source;
    if (sl_cancel_check(cancel, err) < 0)
        return -1;
    if (reading->options.device &&
        !(reading->device = sl_read_device_open(reading->options.device, err)))
        return -1;
    if (sl_reading_part(reading, err) < 0)
        return -1;
    sl_autofree struct sl_plan_wanted *wanted = make_wanted(reading, err);
    SL_AUTO(sl_plan) plan = NULL;
    if (!wanted || sl_plan_make_part(source->plan, wanted, reading->piece_count, &source->lock,
                                     &plan, err) < 0)
        return -1;
    report_empty(reading);
    SL_AUTO(sl_readiness) readiness = follow(reading, plan, wanted, err);
    if (!readiness || (plan->range_count + plan->target_count &&
                       run_plan(reading, plan, readiness, cancel, err) < 0))
        return -1;
    return judge(reading, readiness, err);
}

static void release(struct sl_reading *reading)
{
    for (size_t i = 0; i < reading->piece_count; i++)
        free(reading->pieces[i].between);
    sl_read_device_close(reading->device);
    free(reading->pieces);
    free(reading->pieces_left);
    pthread_mutex_destroy(&reading->lock);
}

/* As they are for us, whatever the caller's version of the struct has. */
static struct sluice_read *copy_reads(const struct sluice_read *reads, size_t count,
                                      struct sl_err *err)
{
    struct sluice_read *copies = sl_alloc_array(count, sizeof(*copies), err);
    const uint8_t *from = (const uint8_t *)reads;
    if (!copies || sl_open_check_size(reads, err) < 0) {
        free(copies);
        return NULL;
    }
    for (size_t i = 0; i < count; i++, from += reads->size)
        sl_api_take(&copies[i], sizeof(*copies), from);
    return copies;
}

int sluice_read(struct sluice_source *source, const struct sluice_read *reads, size_t count,
                const struct sluice_read_options *given, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_reading reading = {
        .source = source, .count = count, .lock = PTHREAD_MUTEX_INITIALIZER};
    int done = sl_open_take(&reading.options, sizeof(reading.options), given, &err);
    const struct sl_open_limits limits = {reading.options.timeout_ms, reading.options.cancel_fd};
    sl_autofree struct sluice_read *copies =
        count && done == 0 ? copy_reads(reads, count, &err) : NULL;
    reading.reads = copies;
    reading.pieces_left = copies ? sl_alloc_array(count, sizeof(*reading.pieces_left), &err) : NULL;
    if (done == 0)
        done = sl_open_check_process(source, &err);
    if (count && done == 0)
        done = reading.pieces_left
                   ? sl_open_within(&limits, source->cancel, false, read_it, &reading, &err)
                   : -1;
    release(&reading);
    return done < 0 ? sl_open_fail(error, &err) : 0;
}
