/*
 * The run of a plan: what the journal keeps is found, the plan's own bytes are written, threads
 * read the rest, the last hashes are awaited. The calling thread is the first of them. Checks that
 * failed are struck from the journal when every slot is gone, since a slot may still have had bytes
 * of theirs to note.
 */
#include "reader.h"

#include <sys/random.h>

#include "cgroup.h"
#include "composed_reads.h"
#include "host_memory.h"
#include "metrics.h"
#include "reader_parts.h"
#include "stages.h"
#include "thread_cancel.h"

enum { BAD_CHECKS_MAX = 4096, WHOLE_REQUEST_BYTES = 256 * 1024 };
#define REMEMBERED_NS (250 * SL_NS_PER_MS)

/* What came wrong may still be fetched again, by a thread that fails the load when it likes. */
static int check_failed(struct sl_reader *reader, struct sl_err *err)
{
    SL_LOCKED(&reader->lock);
    if (!reader->locked.err.kind)
        return 0;
    *err = reader->locked.err;
    return -1;
}

static int read_back(void *arg, uint32_t file, uint64_t offset, void *data, size_t bytes,
                     struct sl_err *err)
{
    struct sl_reader *reader = arg;
    if (sl_cancel_check(reader->config->cancel, err) < 0)
        return -1;
    return sl_sink_read(reader->sink, file, offset, data, bytes, err);
}

static bool is_passed(void *arg, const struct sl_check *check)
{
    return sl_is_inherited(((struct sl_reader *)arg)->sink, check->file);
}

static void on_mismatch(void *arg, const struct sl_check *check)
{
    struct sl_reader *reader = arg;
    SL_LOCKED(&reader->lock);
    if (reader->locked.bad_count < BAD_CHECKS_MAX &&
        sl_grow(&reader->locked.bad, &reader->locked.bad_capacity, reader->locked.bad_count + 1,
                sizeof(*reader->locked.bad), NULL) == 0)
        reader->locked.bad[reader->locked.bad_count++] = check;
    else if (reader->journal)
        sl_journal_give_up(reader->journal, "too much of it is wrong");
}

static void on_agreed(void *arg, const struct sl_check *check)
{
    const struct sl_reader *reader = arg;
    const struct sl_stage_device *device = reader->config->device;
    if (sl_reader_vouch(reader, check->source) == SL_VOUCH_BLOCKS && check->range)
        sl_source_agreed(reader->plan->sources[check->source].source, check->begin, check->end);
    if (device)
        device->events.agreed(device->events.arg, check);
}

static enum sl_delivery delivery_of(void *arg, const struct sl_check *check)
{
    const struct sl_reader *reader = arg;
    return sl_source_delivery(reader->plan->sources[check->source].source);
}

static int on_wrong_bytes(void *arg, const struct sl_check *check, struct sl_err *err)
{
    return sl_repair_add(arg, check, err);
}

static void take_crc(void *arg, const struct sl_check *check, uint32_t crc)
{
    sl_verify_take_crc(((struct sl_reader *)arg)->verify, check, crc);
}

/* What was fetched again is noted anew: nothing that was noted of it before counts. */
static void note_repaired(struct sl_reader *reader)
{
    const struct sl_repair *repair = &reader->repair;
    for (size_t i = 0; reader->journal && i < repair->repaired_count; i++) {
        const struct sl_repaired *repaired = &repair->repaired[i];
        sl_journal_strike(reader->journal, repaired->file, repaired->begin, repaired->end);
        sl_journal_add(reader->journal, repaired->file, repaired->begin, repaired->end,
                       repaired->crc32c, NULL);
    }
}

/* At the end: no other thread is left. */
static void strike_bad(struct sl_reader *reader)
{
    for (size_t i = 0; reader->journal && i < reader->locked.bad_count; i++) {
        const struct sl_check *check = reader->locked.bad[i];
        sl_journal_strike(reader->journal, check->file, check->file_offset,
                          check->file_offset + (check->end - check->begin));
    }
}

/* ---- threads and connections ----------------------------------------------------------------- */

/* Does one file have most of the bytes? Memory that is lent has no turns. */
static bool is_one_file(const struct sl_sink *sink)
{
    uint64_t all = 0, most = 0;
    for (size_t i = 0; i < sink->file_count; i++) {
        all += sink->files[i].bytes;
        most = SL_MAX(most, sink->files[i].bytes);
    }
    return !sl_sink_lends(sink) && most > all / 2;
}

/* There is no other thread yet. */
static void decide(struct sl_reader *reader)
{
    const struct sl_reader_config *config = reader->config;
    const struct sl_plan *plan = reader->plan;
    reader->facts = (struct sl_load_facts){
        .connections = config->connections,
        .threads = config->threads,
        .memory_bytes = config->memory_bytes,
        .planned = plan->connections,
        .ranges = plan->range_count,
        .fetch_bytes = sl_plan_expected_bytes(plan),
        .grows = reader->grows,
        .one_file = is_one_file(reader->sink),
        .first_byte_ns = sl_reader_first_byte_ns(reader),
        .processors = sl_cpu_count(),
        .processor_limit = sl_cgroup_cpus_recent(),
        .cpu = sl_cpu_time,
        .fixed = plan->fixed,
    };
    struct sl_store *store = plan->source_count ? sl_source_store(plan->sources[0].source) : NULL;
    struct sl_host_needs needs;
    if (store)
        reader->facts.host = sl_store_host_connections(store);
    if (store && !plan->fixed.on && sl_host_memory_recall(sl_store_uri(store), &needs))
        reader->facts.known = needs.connections;
    sl_concurrency_decide(&reader->facts, &reader->concurrency);
    reader->locked.hedge_credit = SL_HEDGE_CREDIT;
    reader->locked.growth = (struct sl_host_share){.own = reader->concurrency.growth};
    reader->locked.wanted = reader->concurrency.growth.connections;
    reader->locked.weigh = plan->weigh;
}

/* From here on it has its part of the host's connections, and of the processors.
 * There is no other thread yet. */
static void join_others(struct sl_reader *reader)
{
    const struct sl_plan *plan = reader->plan;
    bool local = plan->connections.why == SL_CONNECTIONS_LOCAL || !plan->source_count;
    const char *uri = local ? NULL : sl_store_uri(sl_source_store(plan->sources[0].source));
    sl_concurrency_take_threads(&reader->facts, &reader->concurrency);
    reader->locked.growth.own.second_thread = reader->concurrency.growth.second_thread;
    reader->locked.wanted = sl_host_growth_join(&reader->locked.growth, uri);
}

/* There is no other thread any more. */
static void leave_others(struct sl_reader *reader)
{
    sl_host_growth_leave(&reader->locked.growth);
    sl_concurrency_return_threads(reader->concurrency.threads);
}

static uint64_t count_requests(const struct sl_plan *plan)
{
    uint64_t all = 0, requests, bytes;
    for (size_t i = 0; i < plan->source_count; i++) {
        sl_source_counts(plan->sources[i].source, &requests, &bytes);
        all += requests;
    }
    return all;
}

/* What the host brought, for who asks it next: of a load that was long enough to tell, and whose
 * requests were not mostly waited for. */
static void remember_host(const struct sl_reader *reader, uint64_t requests)
{
    uint64_t ns = sl_now_ns() - reader->began_ns;
    uint64_t come = sl_counter_get(&reader->landed) + sl_counter_get(&reader->dropped);
    if (ns < REMEMBERED_NS || !reader->plan->source_count || reader->plan->fixed.on ||
        come < requests * WHOLE_REQUEST_BYTES)
        return;
    const struct sl_growth *growth = &reader->locked.growth.own;
    bool tried = growth->why == SL_GROWTH_ROSE || growth->why == SL_GROWTH_SAME;
    bool alone = !reader->locked.growth.shared;
    const struct sl_host_needs needs = {
        .bytes_per_s = alone ? (double)come * (double)SL_NS_PER_S / (double)ns : 0,
        .connections = tried && !reader->config->connections ? growth->connections : 0,
    };
    struct sl_store *store = sl_source_store(reader->plan->sources[0].source);
    sl_host_memory_note(sl_store_uri(store), &needs);
}

/* What pins the next load to what this one had. What was pinned is told as it was, even where there
 * was nothing to do by it. */
static void print_decided(const struct sl_reader *reader, char text[SL_FIXED_TEXT_BYTES])
{
    const struct sl_plan *plan = reader->plan;
    const struct sl_fixed *fixed = &plan->fixed;
    struct sl_store *store = plan->source_count ? sl_source_store(plan->sources[0].source) : NULL;
    struct sl_fixed decided = sl_concurrency_decided(
        &reader->facts, &reader->concurrency, reader->locked.wanted, reader->locked.window_most);
    int *const places[SL_STAGES] = {[SL_STAGE_DECRYPT] = &decided.decrypt,
                                    [SL_STAGE_CAST] = &decided.cast,
                                    [SL_STAGE_CRC] = &decided.crc};
    const int pinned[SL_STAGES] = {[SL_STAGE_DECRYPT] = fixed->decrypt,
                                   [SL_STAGE_CAST] = fixed->cast,
                                   [SL_STAGE_CRC] = fixed->crc};
    for (int i = 0; i < SL_STAGES; i++)
        *places[i] = fixed->on && pinned[i] >= 0                 ? pinned[i]
                     : sl_plan_on_device(plan, (enum sl_stage)i) ? SL_FIXED_GPU
                                                                 : SL_FIXED_HOST;
    decided.range_bytes = plan->range_bytes;
    decided.request_worth = sl_request_worth(&reader->locked.weigh.facts, 0);
    decided.openings = store ? sl_store_openings(store, SL_OPENINGS_MAX) : SL_OPENINGS_MAX;
    decided.preconnect = fixed->on ? sl_fixed_or(fixed->preconnect, 0)
                         : store   ? sl_store_preconnected(store)
                                   : 0;
    sl_fixed_print(&decided, text);
}

/* There is no other thread any more. */
static void report_outcome(const struct sl_reader *reader)
{
    const struct sl_concurrency *concurrency = &reader->concurrency;
    struct sl_reader_outcome *outcome = reader->config->outcome;
    uint64_t requests = count_requests(reader->plan) - reader->asked_before;
    remember_host(reader, requests);
    if (outcome)
        *outcome = (struct sl_reader_outcome){
            .resumed = sl_counter_get(&reader->resumed),
            .inherited = sl_counter_get(&reader->inherited),
            .buffer_bytes = SL_MAX(reader->locked.window_most, concurrency->buffer_bytes),
            .first = SL_MIN(concurrency->connections.first, reader->plan->connections.most),
            .most = reader->locked.slots_most,
            .why = concurrency->connections.why,
            .bound = concurrency->connections.bound,
            .last = reader->locked.wanted,
            .last_why = reader->locked.growth.own.why,
            .threads = reader->started ? concurrency->threads : 0,
            .threads_why = concurrency->threads_why,
            .shared_files = reader->locked.queues.shared_count,
            .requests = requests,
            .dropped = sl_counter_get(&reader->dropped),
            .worth = sl_request_worth(&reader->locked.weigh.facts, 0),
            .worth_why = reader->locked.weigh.why,
            .rows = reader->plan->rows.rows,
        };
    if (outcome && reader->started)
        print_decided(reader, outcome->decided);
}

/* What the threads take from. There is no other thread yet. */
static int make_jobs(struct sl_reader *reader, struct sl_err *err)
{
    const struct sl_work *work = &reader->work;
    reader->given_max = reader->concurrency.connections.most;
    reader->locked.given = sl_alloc_array(reader->given_max, sizeof(*reader->locked.given), err);
    return reader->locked.given
               ? sl_file_queues_init(&reader->locked.queues, work->ranges, work->range_count,
                                     work->extents, reader->plan->file_count, err)
               : -1;
}

struct thread_start {
    struct sl_reader *reader;
    unsigned thread;
};

static void *run_thread(void *arg)
{
    const struct thread_start *start = arg;
    struct sl_cancel *before = sl_thread_cancel_set(start->reader->config->cancel);
    sl_reader_compose(start->reader, start->thread);
    sl_reader_thread_run(start->reader, start->thread);
    sl_thread_cancel_set(before);
    return NULL;
}

static void run_threads(struct sl_reader *reader)
{
    pthread_t threads[SL_THREADS_MAX];
    struct thread_start starts[SL_THREADS_MAX];
    struct sl_err err = SL_ERR_INIT;
    unsigned started = 1;
    starts[0] = (struct thread_start){reader, 0};
    for (; started < reader->concurrency.threads; started++) {
        starts[started] = (struct thread_start){reader, started};
        if (sl_thread_start(&threads[started], "sluice-read", run_thread, &starts[started], &err) <
            0) {
            sl_reader_fail(reader, &err);
            break;
        }
    }
    run_thread(&starts[0]);
    for (unsigned i = 1; i < started; i++)
        pthread_join(threads[i], NULL);
}

/* Until it has told all CRCs that are its own. */
static int await_device(const struct sl_reader *reader, struct sl_err *err)
{
    const struct sl_stage_device *device = reader->config->device;
    return device && device->finish ? device->finish(device->arg, err) : 0;
}

static int scatter(struct sl_reader *reader, struct sl_err *err)
{
    const struct sl_plan *plan = reader->plan;
    uint64_t seed = 1;
    if (!plan->source_count || !sl_store_through(sl_source_store(plan->sources[0].source)))
        return 0;
    if (!plan->fixed.on && getrandom(&seed, sizeof(seed), 0) < 0)
        seed = sl_now_ns();
    return sl_work_scatter(&reader->work, plan, seed, err);
}

/* The plan's own bytes; headers of files that are there are counted with them. */
static int write_literals(struct sl_reader *reader, struct sl_err *err)
{
    const struct sl_plan *plan = reader->plan;
    for (size_t i = 0; i < plan->deferred_header_count; i++)
        if (sl_is_inherited(reader->sink, plan->deferred_headers[i].file))
            sl_reader_count_inherited(reader, plan->deferred_headers[i].header->bytes);
    for (size_t i = 0; i < plan->literal_count; i++) {
        if (sl_is_inherited(reader->sink, plan->literals[i].file))
            sl_reader_count_inherited(reader, plan->literals[i].bytes);
        else if (sl_cancel_check(reader->config->cancel, err) < 0 ||
                 sl_writer_literal(reader, &plan->literals[i], err) < 0)
            return -1;
    }
    return 0;
}

static void count_kept(struct sl_reader *reader)
{
    uint64_t kept = reader->work.resumed_bytes, copied = SL_MIN(reader->config->copied, kept);
    sl_counter_add(&reader->resumed, kept - copied);
    sl_progress_add_resumed(reader->config->progress, kept - copied);
    sl_metric_add(SL_M_RESUMED_BYTES, (int64_t)(kept - copied));
    sl_reader_count_inherited(reader, reader->work.inherited_bytes + copied);
}

static int read_all(struct sl_reader *reader, struct sl_err *err)
{
    const struct sl_plan *plan = reader->plan;
    struct sl_progress *progress = reader->config->progress;
    if (write_literals(reader, err) < 0)
        return -1;
    if (reader->journal)
        sl_journal_set_cancel(reader->journal, reader->config->cancel);
    if (sl_work_make(&reader->work, plan, reader->sink, reader->journal, reader->verify,
                     reader->deferred, err) < 0 ||
        scatter(reader, err) < 0)
        return -1;
    count_kept(reader);
    if (make_jobs(reader, err) < 0 ||
        sl_plan_guard_composed(plan, reader->config->progress, err) < 0)
        return -1;
    join_others(reader);
    reader->started = true;
    if (reader->work.range_count || sl_reader_composes(plan))
        run_threads(reader);
    leave_others(reader);
    if (check_failed(reader, err) < 0)
        return -1;
    sl_progress_set_state(progress, SL_LOAD_CHECKING);
    if (await_device(reader, err) < 0 ||
        sl_verify_finish(reader->verify, reader->config->cancel, err) < 0)
        return -1;
    if (sl_deferred_finish(reader->deferred, err) < 0)
        return -1;
    sl_repair_stop(&reader->repair);
    for (size_t i = 0; i < reader->repair.repaired_count; i++) {
        const struct sl_repaired *repaired = &reader->repair.repaired[i];
        if (sl_deferred_redo(reader->deferred, repaired->file, repaired->begin, repaired->end,
                             err) < 0)
            return -1;
    }
    return 0;
}

static int run_reader(struct sl_reader *reader, struct sl_err *err)
{
    struct sl_verify_config config = {.read = read_back,
                                      .passes = is_passed,
                                      .mismatch = on_mismatch,
                                      .agreed = on_agreed,
                                      .repair = on_wrong_bytes,
                                      .delivery = delivery_of,
                                      .arg = reader,
                                      .progress = reader->config->progress};
    if (reader->plan->fixed.on)
        config.threads = reader->concurrency.threads;
    const struct sl_stage_device *device = reader->config->device;
    const struct sl_stage_results results = {take_crc, reader};
    if (!(reader->vouches = sl_plan_vouches(reader->plan, err)))
        return -1;
    reader->verify = sl_verify_new(reader->plan->checks, reader->plan->check_count, &config, err);
    if (!reader->verify)
        return -1;
    if (device && device->begin)
        device->begin(device->arg, &results);
    int failed = sl_deferred_new(&reader->deferred, reader, err);
    if (!failed)
        failed = read_all(reader, err);
    if (failed)
        sl_cancel_raise(reader->stop, 0);
    if (device && device->end)
        device->end(device->arg);
    sl_repair_stop(&reader->repair);
    sl_deferred_free(reader->deferred);
    sl_verify_free(reader->verify);
    note_repaired(reader);
    strike_bad(reader);
    sl_work_release(&reader->work);
    return failed;
}

/* What the plan leaves to a device must have one. */
static int check_device(const struct sl_plan *plan, const struct sl_journal *journal,
                        const struct sl_stage_device *device, struct sl_err *err)
{
    uint64_t cast = sl_plan_on_device(plan, SL_STAGE_CAST);
    uint64_t crcs = sl_plan_on_device(plan, SL_STAGE_CRC);
    uint64_t all = sl_plan_on_device(plan, SL_STAGE_DECRYPT) + cast + crcs;
    if (!all || (device && !journal && (device->cast || !cast) && (device->finish || !crcs)))
        return 0;
    return sl_fail(err, SL_E_INTERNAL, "the plan leaves work to a device that is not there");
}

int sl_reader_run(const struct sl_plan *plan, struct sl_sink *sink, struct sl_journal *journal,
                  const struct sl_reader_config *config, struct sl_err *err)
{
    struct sl_reader reader = {.plan = plan, .sink = sink, .journal = journal, .config = config};
    struct sl_err why = SL_ERR_INIT;
    if (check_device(plan, journal, config->device, err) < 0)
        return -1;
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++) {
        const struct sl_mapping *mapping = &plan->mappings[i];
        reader.forms = reader.forms || mapping->changes || mapping->target->slice;
        reader.grows = reader.grows || mapping->out_item > mapping->in_item;
    }
    reader.stop = sl_cancel_new(err);
    reader.done = reader.stop ? sl_cancel_new(err) : NULL;
    if (!reader.done) {
        sl_cancel_free(reader.stop);
        return -1;
    }
    pthread_mutex_init(&reader.lock, NULL);
    for (int i = 0; i < SL_WRITE_TURNS; i++)
        pthread_mutex_init(&reader.turns[i], NULL);
    sl_repair_init(&reader.repair);
    decide(&reader);
    reader.began_ns = sl_now_ns();
    reader.asked_before = count_requests(plan);
    int failed = run_reader(&reader, &why);
    report_outcome(&reader);
    sl_repair_release(&reader.repair);
    free(reader.vouches);
    free(reader.locked.bad); /* no other thread is left */
    free(reader.locked.given);
    sl_file_queues_release(&reader.locked.queues);
    for (int i = 0; i < SL_WRITE_TURNS; i++)
        pthread_mutex_destroy(&reader.turns[i]);
    pthread_mutex_destroy(&reader.lock);
    sl_cancel_free(reader.done);
    sl_cancel_free(reader.stop);
    if (failed && err)
        *err = why;
    return failed;
}
