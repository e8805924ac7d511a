/*
 * One load: plan (which asks the source for its versions), stop here if the destination has exactly
 * that, wait for keys, read, and let the destination show it. Where it goes is the destination's
 * affair (load_destination.h); what a failure is worth is decided here.
 *
 * An object that changes in mid-load is noticed by the source (SL_E_INTEGRITY, code "changed"); the
 * load then starts once more from a clean state. When a hash does not match bytes that may be of
 * two versions (some were kept, or the source gives no version), they are read once more. A mirror
 * is tried when a source cannot be reached, refuses or lacks the objects; never after a wrong hash.
 */
#include "load.h"

#include <stdio.h>
#include <unistd.h>

#include "deadline.h"
#include "descriptors.h"
#include "load_destination.h"
#include "log.h"
#include "mapping.h"
#include "metrics.h"
#include "pages.h"
#include "places.h"
#include "prefault.h"
#include "prestage.h"

struct load {
    const struct sl_spec *spec;
    struct sl_cancel *cancel; /* of the caller, then of the time limit, too */
    struct sl_progress *progress;
    struct sl_load_result *result;
    uint64_t began_ns;
    struct sl_load_destination *to;
    bool doubtful;                     /* of the plan in hand */
    struct sl_publish_facts published; /* if the plan in hand is there */
    bool elsewhere;                    /* there is a mirror that was not tried yet */
    bool blamed;  /* a registry's own mirrors, by the last failure: none is asked any more */
    bool misread; /* what the last plan was to be made of was wrong */
    bool stale;   /* by the last failure: what an earlier load kept is, or may be */
};

static double seconds_since(uint64_t begin_ns)
{
    return (double)(sl_now_ns() - begin_ns) / (double)SL_NS_PER_S;
}

/* ---- one attempt ---------------------------------------------------------------------------- */

static struct sl_reader_config reader_config(const struct load *load)
{
    const struct sl_spec_readers *readers = &load->spec->readers;
    return (struct sl_reader_config){
        .connections = readers->connections == SL_AUTO_VALUE ? 0 : (unsigned)readers->connections,
        .memory_bytes = readers->memory_bytes == SL_AUTO_VALUE ? 0 : readers->memory_bytes,
        .hedge = (enum sl_hedge)readers->hedge,
        .hashes = load->spec->verify.hashes,
        .cancel = load->cancel,
        .progress = load->progress,
        .outcome = &load->result->reading,
    };
}

/* A key is derived on one processor: meanwhile another can find the memory to write into. */
static int await_keys(struct load *load, const struct sl_plan *plan, struct sl_err *err)
{
    uint64_t begin_ns = sl_now_ns();
    if (!plan->fixed.on)
        sl_prefault_during_key(load->to->sink, plan);
    if (sl_plan_await_keys(plan, err) < 0 || sl_cancel_check(load->cancel, err) < 0)
        return -1;
    load->result->key_seconds = seconds_since(begin_ns);
    return 0;
}

static int read_plan(struct load *load, const struct sl_plan *plan,
                     const struct sl_reader_config *config, struct sl_err *err)
{
    struct sl_prefault prefault = {0};
    struct sl_prestage prestage;
    uint64_t begin_ns = sl_now_ns();
    sl_progress_set_state(load->progress, SL_LOAD_READING);
    if (!plan->fixed.on)
        sl_prefault_start(&prefault, load->to->sink, plan);
    sl_prestage_start(&prestage, plan);
    int done = sl_reader_run(plan, load->to->sink, load->to->journal, config, err);
    sl_prestage_end(&prestage);
    sl_prefault_end(&prefault);
    load->result->read_seconds = seconds_since(begin_ns);
    return done;
}

static void note_plan(struct load *load, const struct sl_plan *plan)
{
    struct sl_load_result *result = load->result;
    struct sl_plan_changes changes = sl_plan_changes(plan);
    result->decrypted = changes.decrypted;
    result->cast = changes.cast;
    result->sliced = changes.sliced;
    result->bytes = plan->sink_bytes;
    result->unhashed = plan->unhashed_bytes;
    result->tensors = plan->tensor_count;
    result->objects = plan->source_count;
    result->unversioned = plan->unversioned;
    result->files = plan->file_count;
    result->reading = (struct sl_reader_outcome){.first = plan->connections.first,
                                                 .why = plan->connections.why,
                                                 .bound = plan->connections.bound};
    result->range_bytes = plan->range_bytes;
    result->checks = plan->check_count;
    result->sidecars = plan->sidecar_count;
    result->index_requests = plan->index_requests;
    result->signed_by = sl_plan_signed_by(plan);
    sl_progress_set_signed(load->progress, &result->signed_by);
    snprintf(result->uri, sizeof(result->uri), "%s", sl_plan_uri(plan));
}

/* Is there a tensor whose hash cannot be checked, since its bytes are put together anew? */
static bool leaves_hashes(const struct sl_plan *plan)
{
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++)
        if (sl_mapping_composed(&plan->mappings[i]) && plan->mappings[i].target->from->hash_count)
            return true;
    return false;
}

/* Are hashes missed? Most models have none: a line for each of them would hide the one that should
 * have some. */
static bool wants_hashes(const struct load *load)
{
    const struct sl_spec_verify *verify = &load->spec->verify;
    return load->result->checks || sl_progress_counts(load->progress).verified ||
           verify->hashes != SL_HASHES_AUTO || verify->sidecar == SL_SIDECAR_REQUIRE ||
           verify->sha256.count || verify->minisign.public_key || verify->minisign.public_key_file;
}

/* What was checked as it came, by a hash that no check is made of. */
static void note_delivered(struct load *load, const struct sl_plan *plan)
{
    uint64_t unhashed = sl_plan_unhashed(plan);
    sl_progress_add_verified(load->progress, load->result->unhashed - unhashed);
    load->result->unhashed = unhashed;
    load->result->unhashed_matters = unhashed && (wants_hashes(load) || leaves_hashes(plan));
}

/* What a user of --log-level debug wants to know of every load, local ones too. */
static void log_plan(const struct load *load, const struct sl_spec *spec)
{
    const struct sl_load_result *result = load->result;
    const char *name = spec->metadata.name ? spec->metadata.name : "";
    char bytes[32], objects[40], requests[40];
    sl_log(SL_LOG_DEBUG,
           "model '%.100s': %s in %s of '%.300s', to the %s '%.300s', planned in %.3f s with %s",
           name, sl_human_bytes(result->bytes, bytes),
           sl_human_count(result->objects, "object", objects), result->uri, load->to->ops->name,
           spec->sink.tmpfs.path ? spec->sink.tmpfs.path : name, result->plan_seconds,
           sl_human_count(result->index_requests, "request", requests));
}

/* What there is to read; nothing if the version is there already. */
static void set_total(struct load *load, const struct sl_plan *plan)
{
    uint64_t total_bytes = 0;
    for (size_t i = 0; i < plan->extent_count && !load->result->already; i++)
        total_bytes += sl_extent_bytes(plan, &plan->extents[i]);
    for (size_t i = 0; plan->mappings && i < plan->target_count && !load->result->already; i++)
        total_bytes += sl_mapping_composed(&plan->mappings[i]);
    for (size_t i = 0; i < plan->literal_count && !load->result->already; i++)
        total_bytes += plan->literals[i].bytes;
    for (size_t i = 0; i < plan->deferred_header_count && !load->result->already; i++)
        total_bytes += plan->deferred_headers[i].header->bytes;
    sl_progress_set_total(load->progress, total_bytes, plan->tensor_count, plan->source_count);
}

/* From a plan to a model that is there. */
static int carry_out(struct load *load, const struct sl_load_attempt *attempt, struct sl_err *err)
{
    struct sl_load_destination *to = load->to;
    const struct sl_plan *plan = attempt->plan;
    struct sl_reader_config config = reader_config(load);
    if (to->ops->prepare && to->ops->prepare(to, attempt, err) < 0)
        return -1;
    int current = to->ops->current ? to->ops->current(to, attempt, err) : 0;
    if (current < 0)
        return -1;
    load->result->already = current;
    set_total(load, plan);
    if (current)
        return 0;
    sl_plan_warn_of_versions(plan, to->ops->resumes
                                       ? "and a later load can neither resume nor skip it"
                                       : "and every load reads all of it");
    if (sl_plan_begin_keys(plan, err) < 0 || to->ops->begin(to, attempt, &config, err) < 0 ||
        await_keys(load, plan, err) < 0 || read_plan(load, plan, &config, err) < 0)
        return -1;
    note_delivered(load, plan);
    uint64_t begin_ns = sl_now_ns();
    int done = to->ops->finish(to, attempt, err);
    load->result->publish_seconds = seconds_since(begin_ns);
    return done;
}

/* No object was opened: what was published says what it is. */
static void note_published(struct load *load)
{
    struct sl_load_result *result = load->result;
    const struct sl_publish_facts *published = &load->published;
    result->bytes = published->bytes;
    result->files = published->files;
    result->tensors = published->tensors;
    result->objects = published->objects;
    result->checks = published->checks;
    result->unhashed = published->unhashed;
}

static bool ask_destination(const uint8_t asked[32], void *arg)
{
    struct load *load = arg;
    return load->to->ops->there(load->to, asked, &load->published);
}

static int make_plan(struct load *load, const struct sl_spec *spec, struct sl_plan **plan,
                     struct sl_err *err)
{
    struct sl_source_config config;
    uint64_t begin_ns = sl_now_ns();
    sl_spec_source_config(spec, load->cancel, load->progress, &config);
    config.preconnect = spec->fixed.on
                            ? (unsigned)sl_fixed_or(spec->fixed.preconnect, 0)
                            : sl_concurrency_preconnect(spec->readers.connections,
                                                        sl_descriptors_for_connections());
    if (load->elsewhere)
        config.unreachable_seconds = 0;
    config.no_mirrors = load->blamed;
    config.hold_bytes = sl_plan_may_hold(spec, load->to->output.layout);
    load->result->reading = (struct sl_reader_outcome){0};
    sl_progress_set_state(load->progress, SL_LOAD_PLANNING);
    struct sl_plan_output output = load->to->output;
    if (load->to->ops->there) {
        output.there = ask_destination;
        output.there_arg = load;
    }
    if (sl_plan_make(spec, &output, &config, plan, err) < 0)
        return -1;
    note_plan(load, *plan);
    if ((*plan)->there)
        note_published(load);
    load->doubtful = (*plan)->doubtful;
    load->result->plan_seconds = seconds_since(begin_ns);
    log_plan(load, spec);
    return 0;
}

static bool is_wrong_hash(const struct sl_err *err)
{
    return err->kind == SL_E_INTEGRITY &&
           (strncmp(err->code, "E_HASH_", 7) == 0 || strcmp(err->code, "E_SIGNATURE") == 0);
}

static bool blame_mirrors(const struct sl_plan *plan, const struct sl_err *why)
{
    bool blamed = false;
    if (!is_wrong_hash(why))
        return false;
    for (size_t i = 0; i < plan->source_count; i++)
        blamed |= sl_store_blame_mirrors(sl_source_store(plan->sources[i].source), why);
    return blamed;
}

static bool source_changed(const struct sl_err *why)
{
    return why->kind == SL_E_INTEGRITY && strcmp(why->code, "changed") == 0;
}

/* A hash does not match, and it is not of bytes that were fetched alone again and stayed wrong. So
 * it may be of what was kept before, by which nothing is vouched for any more. */
static bool kept_wrong(const struct load *load, const struct sl_progress_counts *before,
                       const struct sl_err *why)
{
    struct sl_progress_counts now = sl_progress_counts(load->progress);
    const struct sl_reader_outcome *reading = &load->result->reading;
    bool mixed = load->doubtful || reading->resumed > 0 || reading->inherited > 0;
    return mixed && is_wrong_hash(why) && now.refetched == before->refetched;
}

static int load_from(struct load *load, const char *uri, struct sl_err *err)
{
    struct sl_progress_counts before = sl_progress_counts(load->progress);
    struct sl_spec spec = *load->spec; /* its strings are borrowed */
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_plan) plan = NULL;
    spec.source.uri = (char *)(uintptr_t)uri;
    int done = make_plan(load, &spec, &plan, &why);
    struct sl_load_attempt attempt = {&spec,          plan,  load->cancel,
                                      load->progress, false, load->stale};
    if (done == 0)
        done = carry_out(load, &attempt, &why);
    load->blamed = done < 0 && plan && blame_mirrors(plan, &why);
    load->misread = done < 0 && !plan && strncmp(why.code, "E_HASH_", 7) == 0;
    load->stale = done < 0 && kept_wrong(load, &before, &why);
    /* Files beside the one that was found wrong may have bytes of the same mirror. */
    attempt.worthless = load->blamed || load->stale || (done < 0 && source_changed(&why));
    load->to->ops->end(load->to, &attempt, done < 0 ? &why : NULL);
    if (done < 0)
        *err = why;
    return done;
}

/* ---- again, and elsewhere ------------------------------------------------------------------- */

static int load_restarting(struct load *load, const char *uri, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (load_from(load, uri, &why) == 0)
        return 0;
    if (!source_changed(&why) && !load->blamed && !load->misread && !load->stale) {
        *err = why;
        return -1;
    }
    sl_log(SL_LOG_WARN, "%s: %s", why.message,
           source_changed(&why) ? "the load starts again from a clean state"
           : load->blamed       ? "everything is read again, from the source itself"
           : load->misread      ? "what the plan is made of is read again"
                                : "these bytes may be of two versions, and are read again");
    sl_progress_begin_again(load->progress);
    load->blamed |=
        !source_changed(&why) && !load->misread; /* what was kept may be of one of them, too */
    if (load_from(load, uri, err) == 0)
        return 0;
    return source_changed(err) ? sl_wrap(err, "the object changed twice during one load") : -1;
}

static int load_anywhere(struct load *load, struct sl_err *err)
{
    const struct sl_spec_source *source = &load->spec->source;
    struct sl_err first = SL_ERR_INIT;
    load->elsewhere = source->mirrors.count > 0;
    if (load_restarting(load, source->uri, &first) == 0)
        return 0;
    for (size_t i = 0; i < source->mirrors.count && sl_places_move_loads(&first); i++) {
        struct sl_err why = SL_ERR_INIT;
        sl_log(SL_LOG_WARN, "%s; trying mirror %zu of %zu", first.message, i + 1,
               source->mirrors.count);
        sl_progress_begin_again(load->progress);
        load->elsewhere = i + 1 < source->mirrors.count;
        if (load_restarting(load, source->mirrors.items[i], &why) == 0)
            return 0;
        first = why;
    }
    *err = first;
    return -1;
}

/* ---- the time the whole may take ------------------------------------------------------------ */

static int run(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    struct load *load = arg;
    struct sl_load_destination *to = load->to;
    const struct sl_load_attempt begun = {load->spec, NULL, cancel, load->progress, false, false};
    load->cancel = cancel;
    int done = to->ops->open ? to->ops->open(to, &begun, err) : 0;
    if (done == 0)
        done = load_anywhere(load, err);
    if (to->ops->close)
        to->ops->close(to);
    return done;
}

static int run_within(struct load *load, uint64_t seconds, struct sl_err *err)
{
    int done = sl_deadline_run(seconds, load->cancel, run, load, err);
    if (done < 0 && err->kind == SL_E_TIMEOUT)
        sl_fail(err, SL_E_TIMEOUT, "the load took longer than readers.timeoutSeconds (%llu s); %s",
                (unsigned long long)seconds,
                !load->to->ops->resumes ? "the next one starts over"
                : load->result->unversioned
                    ? "the next one starts over, since the source gives no version"
                    : "the next one resumes it");
    return done;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void note_end(struct load *load)
{
    struct sl_load_result *result = load->result;
    struct sl_progress_counts counts = sl_progress_counts(load->progress);
    snprintf(result->path, sizeof(result->path), "%.511s", load->to->path);
    result->seconds = seconds_since(load->began_ns);
    result->resumed = result->reading.resumed;
    result->inherited = result->reading.inherited;
    if (load->to->ops->lands_late) {
        result->read_seconds += result->publish_seconds;
        result->publish_seconds = 0;
    }
    result->fetched = counts.fetched;
    result->verified = counts.verified;
    result->retries = counts.retries;
    result->refetched_ranges = counts.refetched;
    result->hedged = counts.hedged;
    result->wasted = counts.wasted;
    result->fallbacks = counts.fallbacks;
    result->mirrored = counts.mirrored;
    result->cached = counts.cached;
    result->place_count = sl_progress_suppliers(load->progress, result->places, SL_SUPPLIERS_MAX);
    result->destination = *result->path ? sl_pages_of_path(result->path) : "";
    sl_progress_set_decided(load->progress, result->reading.decided);
    if (*result->reading.decided) /* who sits before it asks for more with -v; a log cannot */
        sl_log(isatty(STDERR_FILENO) ? SL_LOG_DEBUG : SL_LOG_INFO, "model '%.100s': decided: %s",
               load->spec->metadata.name ? load->spec->metadata.name : "", result->reading.decided);
}

int sl_load_run_to(const struct sl_spec *spec, struct sl_load_destination *to,
                   struct sl_cancel *cancel, struct sl_progress *progress,
                   struct sl_load_result *result, struct sl_err *err)
{
    struct sl_load_result own_result;
    struct load load = {.spec = spec, .cancel = cancel, .progress = progress, .to = to};
    struct sl_err why = SL_ERR_INIT;
    struct sl_progress *own = NULL;
    load.result = result ? result : &own_result;
    load.began_ns = sl_now_ns();
    *load.result = (struct sl_load_result){.destination = ""};
    if (!load.progress) {
        own =
            sl_progress_new(spec->metadata.name ? spec->metadata.name : "model", "", to->path, err);
        if (!own)
            return -1;
        load.progress = own;
    }
    sl_metric_add(SL_M_LOADS_STARTED, 1);
    sl_metric_add(SL_M_LOADS_ACTIVE, 1);
    sl_concurrency_open_load();
    int done = run_within(&load, spec->readers.timeout_seconds, &why);
    sl_concurrency_close_load();
    sl_metric_add(SL_M_LOADS_ACTIVE, -1);
    sl_metric_add(done < 0 ? SL_M_LOADS_FAILED : SL_M_LOADS_PUBLISHED, 1);
    note_end(&load);
    if (done == 0)
        sl_progress_set_rate(load.progress, sl_load_rate(load.result));
    sl_progress_finish(load.progress, done < 0 ? &why : NULL);
    sl_progress_free(own);
    if (done < 0 && err)
        *err = why;
    return done;
}

int sl_load_measure(const struct sl_spec *spec, struct sl_cancel *cancel, uint64_t *bytes,
                    struct sl_err *err)
{
    struct sl_source_config config;
    sl_spec_source_config(spec, cancel, NULL, &config);
    config.unreachable_seconds = 0;
    config.attempts = 1;
    return sl_plan_measure(spec, &config, bytes, err);
}
