/*
 * One load: take the directory's lock, plan (which asks the source for its versions), stop here if
 * exactly that is published, see that it fits, read, publish. The journal is bound to the plan's
 * identity: a killed load goes on where it was, one of another version or with other wishes begins
 * anew, and so does every load of an object without a version (plan/versions.c).
 *
 * An object that changes in mid-load is noticed by the source (SL_E_INTEGRITY, code "changed"); the
 * load then starts once more from a clean state. When a hash does not match bytes that may be of
 * two versions (some were kept, or the source gives no version), they are read once more. A mirror
 * is tried when a source cannot be reached, refuses or lacks the objects; never after a wrong hash.
 */
#include "load.h"

#include <stdio.h>
#include <sys/stat.h>

#include "ahead.h"
#include "deadline.h"
#include "link_kernel.h"
#include "log.h"
#include "mapping.h"
#include "metrics.h"
#include "owners.h"
#include "pages.h"
#include "reader.h"

/* Connections made to a distant server while its first answer is on its way: what a load far from
 * its store begins with, if it is of some size (reader/growth.c). */
enum { AHEAD_AUTO = 32, AHEAD_MAX = 63 };

struct load {
    const struct sl_spec *spec;
    struct sl_cancel *cancel;
    struct sl_progress *progress;
    struct sl_load_result *result;
    uint64_t began_ns;
    const struct sl_load_place *place; /* NULL: the spec names the directory */
    const struct sl_load_fill *fill;   /* not NULL: into no directory at all */
    bool doubtful;                     /* of the plan in hand */
};

static double seconds_since(uint64_t begin_ns)
{
    return (double)(sl_now_ns() - begin_ns) / (double)SL_NS_PER_S;
}

void sl_load_source_config(const struct sl_spec *spec, struct sl_cancel *cancel,
                           struct sl_progress *progress, struct sl_source_config *config)
{
    sl_spec_source_config(spec, config);
    config->cancel = cancel;
    config->progress = progress;
}

/* ---- one attempt ---------------------------------------------------------------------------- */

/* Files of the sink; names belong to the plan. */
static struct sl_sink_file *sink_files(const struct sl_plan *plan, struct sl_err *err)
{
    struct sl_sink_file *files = sl_alloc_array(plan->file_count, sizeof(*files), err);
    for (size_t i = 0; files && i < plan->file_count; i++)
        files[i] = (struct sl_sink_file){plan->files[i].name, plan->files[i].bytes};
    return files;
}

/* The journal, with a staging directory that fits it: of another plan's files nothing may remain.
 */
static struct sl_journal *open_journal(struct sl_publish *publish, const struct sl_plan *plan,
                                       struct sl_err *err)
{
    bool resumed = false;
    SL_AUTO(sl_journal)
    journal =
        sl_journal_open(sl_publish_state(publish), SL_JOURNAL_NAME, plan->identity, &resumed, err);
    if (!journal)
        return NULL;
    if (!resumed && sl_publish_discard(publish, true, err) < 0)
        return NULL;
    return sl_steal(&journal);
}

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
    };
}

static int read_plan(struct load *load, const struct sl_plan *plan, struct sl_sink *sink,
                     struct sl_journal *journal, struct sl_err *err)
{
    struct sl_reader_config config = reader_config(load);
    struct sl_ahead ahead;
    uint64_t begin_ns = sl_now_ns();
    sl_progress_set_state(load->progress, SL_LOAD_READING);
    sl_ahead_start(&ahead, sink, plan);
    int done = sl_reader_run(plan, sink, journal, &config, err);
    sl_ahead_end(&ahead);
    load->result->read_seconds = seconds_since(begin_ns);
    return done;
}

/* A key is derived on one processor: meanwhile another can find the memory to write into. */
static int await_keys(struct load *load, const struct sl_plan *plan, struct sl_sink *sink,
                      struct sl_err *err)
{
    uint64_t begin_ns = sl_now_ns();
    sl_ahead_of_key(sink, plan);
    if (sl_plan_await_keys(plan, err) < 0 || sl_cancel_check(load->cancel, err) < 0)
        return -1;
    load->result->key_seconds = seconds_since(begin_ns);
    return 0;
}

static int publish_plan(struct load *load, struct sl_publish *publish, const struct sl_plan *plan,
                        struct sl_sink *sink, struct sl_journal *journal, struct sl_err *err)
{
    uint64_t begin_ns = sl_now_ns();
    sl_autofree uint32_t *crcs = sl_alloc_array(plan->file_count, sizeof(*crcs), err);
    sl_autofree bool *known = sl_alloc_array(plan->file_count, sizeof(*known), err);
    if (!crcs || !known || sl_sink_finish(sink, err) < 0 ||
        sl_journal_file_crcs(journal, sink, crcs, known, err) < 0 ||
        sl_cancel_check(load->cancel, err) < 0)
        return -1;
    int done = sl_publish_commit(publish, plan, load->spec, crcs, known, err);
    load->result->publish_seconds = seconds_since(begin_ns);
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
    result->connections = plan->connections;
    result->checks = plan->check_count;
    result->sidecars = plan->sidecar_count;
    result->index_requests = plan->index_requests;
    snprintf(result->uri, sizeof(result->uri), "%s", sl_plan_uri(plan));
}

/* What there is to read; nothing if the version is there already. */
static void set_total(struct load *load, const struct sl_plan *plan)
{
    uint64_t landing = 0;
    for (size_t i = 0; i < plan->extent_count && !load->result->already; i++)
        landing += sl_extent_bytes(plan, &plan->extents[i]);
    for (size_t i = 0; plan->mappings && i < plan->target_count && !load->result->already; i++)
        landing += sl_mapping_composed(&plan->mappings[i]);
    for (size_t i = 0; i < plan->literal_count && !load->result->already; i++)
        landing += plan->literals[i].bytes;
    for (size_t i = 0; i < plan->head_count && !load->result->already; i++)
        landing += plan->heads[i].header->bytes;
    sl_progress_set_total(load->progress, landing, plan->tensor_count, plan->source_count);
}

/* The old version goes first, unless even without it there is too little room. */
static int make_place(struct sl_publish *publish, const struct sl_plan *plan, const char *path,
                      struct sl_err *err)
{
    uint64_t freed =
        sl_add_capped(sl_publish_staged_bytes(publish), sl_publish_published_bytes(publish));
    if (sl_room_check(path, plan->sink_bytes, freed, NULL, err) < 0)
        return -1;
    return sl_publish_withdraw(publish, err);
}

static int fill(struct load *load, struct sl_publish *publish, const struct sl_plan *plan,
                struct sl_err *err)
{
    const struct sl_tmpfs_options *tmpfs = &load->spec->sink.tmpfs;
    if (sl_plan_begin_keys(plan, err) < 0)
        return -1;
    SL_AUTO(sl_journal) journal = open_journal(publish, plan, err);
    if (!journal)
        return -1;
    if (sl_publish_look_ahead(publish, plan, err) < 0)
        return -1;
    if (tmpfs->replace == 1 && make_place(publish, plan, tmpfs->path, err) < 0)
        return -1;
    if (sl_room_check(tmpfs->path, plan->sink_bytes, sl_publish_staged_bytes(publish), NULL, err) <
        0)
        return -1;
    sl_autofree struct sl_sink_file *files = sink_files(plan, err);
    int staging_fd = files ? sl_publish_staging(publish, err) : -1;
    if (staging_fd < 0)
        return -1;
    SL_AUTO(sl_sink) sink = sl_tmpfs_open(staging_fd, files, plan->file_count, err);
    if (!sink || sl_tmpfs_set_owner(sink, tmpfs, err) < 0)
        return -1;
    if (await_keys(load, plan, sink, err) < 0 || read_plan(load, plan, sink, journal, err) < 0)
        return -1;
    return publish_plan(load, publish, plan, sink, journal, err);
}

/* The version is there: it may be wanted for others than it was loaded for, and a load of another
 * version may have left something behind. */
static int keep(struct load *load, struct sl_publish *publish, const struct sl_plan *plan,
                struct sl_err *err)
{
    uint32_t owner, group;
    if (sl_tmpfs_owner(&load->spec->sink.tmpfs, &owner, &group, err) < 0 ||
        sl_publish_give(publish, plan, owner, group, err) < 0)
        return -1;
    return sl_publish_discard(publish, false, err);
}

/* The directory that `path` is, or the nearest above it that is there; *whole: it is there itself.
 */
static char *find_place(const char *path, bool *whole, struct sl_err *err)
{
    sl_autofree char *place = sl_strdup(path, err);
    *whole = true;
    while (place) {
        char *found = realpath(*place ? place : ".", NULL);
        if (found)
            return found;
        *whole = false;
        char *slash = strrchr(place, '/');
        if (slash == place && !slash[1])
            break;
        if (slash)
            slash[slash == place] = 0;
        else
            *place = 0;
    }
    return NULL;
}

/* Published over itself a local model would lose its own files; one below its own prefix would be
 * part of what the next load reads. */
static int refuse_overlap(const char *uri, const char *path, struct sl_err *err)
{
    struct stat status;
    bool whole;
    const char *local = strncmp(uri, "file://", 7) == 0 ? uri + 7 : uri;
    sl_autofree char *source = strstr(local, "://") ? NULL : realpath(local, NULL);
    if (!source || stat(source, &status) < 0)
        return 0;
    bool folder = S_ISDIR(status.st_mode);
    sl_autofree char *place = find_place(path, &whole, err);
    if (!place)
        return -1;
    char *slash = strrchr(source, '/');
    if (!folder)
        slash[slash == source] = 0;
    size_t bytes = strlen(source);
    bool same = strcmp(place, source) == 0 && (whole || folder);
    bool below = folder && bytes > 1 && strncmp(place, source, bytes) == 0 && place[bytes] == '/';
    if (!same && !below)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "the model would be loaded from '%s' into '%s', over its own files: choose "
                   "another directory",
                   uri, path);
}

static void on_waiting(void *arg)
{
    struct load *load = arg;
    sl_progress_set_state(load->progress, SL_LOAD_WAITING);
    sl_log(SL_LOG_INFO, "another load holds '%s': waiting for it", load->spec->sink.tmpfs.path);
}

static bool has_changed(const struct sl_err *err)
{
    return err->kind == SL_E_INTEGRITY && strcmp(err->code, "changed") == 0;
}

static int carry_out(struct load *load, struct sl_publish *publish, const struct sl_plan *plan,
                     struct sl_err *err)
{
    load->result->already = sl_publish_is_current(publish, plan);
    set_total(load, plan);
    if (load->result->already)
        return keep(load, publish, plan, err);
    sl_plan_warn_of_versions(plan,
                             "and no later load can resume this one or know that it is current");
    if (fill(load, publish, plan, err) == 0)
        return 0;
    if (has_changed(err)) {
        struct sl_err worse = SL_ERR_INIT;
        if (sl_publish_discard(publish, false, &worse) < 0)
            sl_log(SL_LOG_WARN, "%s", worse.message);
    }
    return -1;
}

/* Into what the caller has made of the plan. */
static int hand_over(struct load *load, const struct sl_plan *plan, struct sl_err *err)
{
    struct sl_reader_config config = reader_config(load);
    uint64_t begin_ns = sl_now_ns();
    set_total(load, plan);
    sl_plan_warn_of_versions(plan, "and every load reads all of it");
    if (sl_plan_begin_keys(plan, err) < 0 || sl_plan_await_keys(plan, err) < 0 ||
        sl_cancel_check(load->cancel, err) < 0)
        return -1;
    load->result->key_seconds = seconds_since(begin_ns);
    begin_ns = sl_now_ns();
    int done = load->fill->fill(load->fill->arg, plan, &config, err);
    load->result->read_seconds = seconds_since(begin_ns);
    return done;
}

/* One is there, that of the opening. */
static unsigned connections_ahead(const struct sl_spec *spec)
{
    uint64_t wanted = spec->readers.connections;
    if (wanted == SL_AUTO_VALUE || wanted == 0)
        return AHEAD_AUTO;
    return (unsigned)SL_MIN(wanted - 1, (uint64_t)AHEAD_MAX);
}

/* publish NULL: whoever called decides about the directory, now that the version is known. */
static int load_from(struct load *load, struct sl_publish *publish, const char *uri,
                     struct sl_err *err)
{
    struct sl_spec spec = *load->spec; /* its strings are borrowed */
    struct load attempt = *load;
    struct sl_source_config config;
    uint64_t begin_ns = sl_now_ns();
    spec.source.uri = (char *)(uintptr_t)uri;
    attempt.spec = &spec;
    sl_load_source_config(&spec, load->cancel, load->progress, &config);
    config.ahead = connections_ahead(&spec);
    sl_progress_set_state(load->progress, SL_LOAD_PLANNING);
    SL_AUTO(sl_plan) plan = NULL;
    if (sl_plan_make(&spec, &config, &plan, err) < 0)
        return -1;
    note_plan(load, plan);
    load->doubtful = plan->doubtful;
    load->result->plan_seconds = seconds_since(begin_ns);
    if (load->fill)
        return hand_over(&attempt, plan, err);
    if (publish)
        return carry_out(&attempt, publish, plan, err);
    char path[SL_PUBLISH_PATH_MAX];
    if (load->place->choose(load->place->arg, plan, path, err) < 0)
        return -1;
    spec.sink.tmpfs.path = path;
    snprintf(load->result->path, sizeof(load->result->path), "%.511s", path);
    if (refuse_overlap(uri, path, err) < 0)
        return -1;
    SL_AUTO(sl_publish) chosen = sl_publish_open(path, load->cancel, on_waiting, &attempt, err);
    return chosen ? carry_out(&attempt, chosen, plan, err) : -1;
}

/* ---- again, and elsewhere ------------------------------------------------------------------- */

/* A hash does not match, and it is not of bytes that were fetched alone again and stayed wrong. The
 * journal vouches for its bytes no more. */
static bool has_wrong_whole(const struct load *load, const struct sl_progress_view *before,
                            const struct sl_err *err)
{
    struct sl_progress_view now;
    sl_progress_view(load->progress, &now);
    return err->kind == SL_E_INTEGRITY && now.refetched == before->refetched &&
           (strncmp(err->code, "E_HASH_", 7) == 0 || strcmp(err->code, "E_SIGNATURE") == 0);
}

/* Would another try do better? */
static bool may_help(const struct load *load, const struct sl_progress_view *before,
                     const struct sl_err *err)
{
    struct sl_progress_view now;
    sl_progress_view(load->progress, &now);
    bool mixed = load->doubtful || now.bytes_resumed > 0;
    return has_changed(err) || (mixed && has_wrong_whole(load, before, err));
}

static int load_restarting(struct load *load, struct sl_publish *publish, const char *uri,
                           struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    struct sl_progress_view before;
    sl_progress_view(load->progress, &before);
    if (load_from(load, publish, uri, &why) == 0)
        return 0;
    if (!may_help(load, &before, &why)) {
        *err = why;
        return -1;
    }
    sl_log(SL_LOG_WARN, "%s: %s", why.message,
           has_changed(&why) ? "the load starts again from a clean state"
                             : "these bytes may be of two versions, and are read again");
    if (has_changed(&why) && publish && sl_publish_discard(publish, false, err) < 0)
        return -1;
    sl_progress_begin_again(load->progress);
    if (load_from(load, publish, uri, err) == 0)
        return 0;
    return has_changed(err) ? sl_wrap(err, "the object changed twice during one load") : -1;
}

static bool may_try_mirror(const struct sl_err *err)
{
    return err->kind == SL_E_NET || err->kind == SL_E_NOT_FOUND || err->kind == SL_E_AUTH;
}

static int load_anywhere(struct load *load, struct sl_publish *publish, struct sl_err *err)
{
    const struct sl_spec_source *source = &load->spec->source;
    struct sl_err first = SL_ERR_INIT;
    if (load_restarting(load, publish, source->uri, &first) == 0)
        return 0;
    for (size_t i = 0; i < source->mirrors.count && may_try_mirror(&first); i++) {
        struct sl_err why = SL_ERR_INIT;
        sl_log(SL_LOG_WARN, "%s; trying mirror %zu of %zu", first.message, i + 1,
               source->mirrors.count);
        sl_progress_begin_again(load->progress);
        if (load_restarting(load, publish, source->mirrors.items[i], &why) == 0)
            return 0;
        first = why;
    }
    *err = first;
    return -1;
}

static int run(struct load *load, struct sl_err *err)
{
    const char *path = load->spec->sink.tmpfs.path;
    if (load->place || load->fill)
        return load_anywhere(load, NULL, err);
    if (!path || !*path)
        return sl_fail(err, SL_E_USAGE,
                       "the model '%s' has no destination: set sink.tmpfs.path, or give --to DIR",
                       load->spec->metadata.name ? load->spec->metadata.name : "");
    if (refuse_overlap(load->spec->source.uri, path, err) < 0 ||
        sl_owners_check_path(path, err) < 0)
        return -1;
    SL_AUTO(sl_publish) publish = sl_publish_open(path, load->cancel, on_waiting, load, err);
    return publish ? load_anywhere(load, publish, err) : -1;
}

/* ---- the time the whole may take ------------------------------------------------------------ */

static int run_with(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    struct load *load = arg;
    struct sl_cancel *outer = load->cancel;
    load->cancel = cancel;
    int done = run(load, err);
    load->cancel = outer;
    return done;
}

static int run_within(struct load *load, uint64_t seconds, struct sl_err *err)
{
    int done = sl_deadline_run(seconds, load->cancel, run_with, load, err);
    if (done < 0 && err->kind == SL_E_TIMEOUT)
        sl_fail(err, SL_E_TIMEOUT, "the load took longer than readers.timeoutSeconds (%llu s); %s",
                (unsigned long long)seconds,
                load->result->unversioned
                    ? "the next one begins anew, since the source gives no version"
                    : "the next one resumes it");
    return done;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void note_end(struct load *load)
{
    struct sl_load_result *result = load->result;
    struct sl_progress_view view;
    sl_progress_view(load->progress, &view);
    result->seconds = seconds_since(load->began_ns);
    result->fetched = view.bytes_fetched;
    result->resumed = view.bytes_resumed;
    result->verified = view.bytes_verified;
    result->retries = view.retries;
    result->refetched_ranges = view.refetched;
    result->hedged = view.hedged;
    result->wasted = view.wasted;
    if (view.connections)
        result->connections = view.connections;
    result->kernel_tls = sl_kernel_tls_used();
    result->destination = *result->path ? sl_pages_of_path(result->path) : "";
}

static int run_load(const struct load *wanted, struct sl_err *err)
{
    struct sl_load_result own_result;
    struct load load = *wanted;
    const struct sl_spec *spec = load.spec;
    struct sl_err why = SL_ERR_INIT;
    struct sl_progress *own = NULL;
    load.result = load.result ? load.result : &own_result;
    load.began_ns = sl_now_ns();
    *load.result = (struct sl_load_result){.destination = ""};
    if (spec->sink.tmpfs.path && !load.place && !load.fill)
        snprintf(load.result->path, sizeof(load.result->path), "%s", spec->sink.tmpfs.path);
    if (!load.progress) {
        own = sl_progress_new(spec->metadata.name ? spec->metadata.name : "model", "",
                              load.result->path, err);
        if (!own)
            return -1;
        load.progress = own;
    }
    sl_metric_add(SL_M_LOADS_STARTED, 1);
    sl_metric_add(SL_M_LOADS_ACTIVE, 1);
    int done = run_within(&load, spec->readers.timeout_seconds, &why);
    sl_metric_add(SL_M_LOADS_ACTIVE, -1);
    sl_metric_add(done < 0 ? SL_M_LOADS_FAILED : SL_M_LOADS_PUBLISHED, 1);
    note_end(&load);
    sl_progress_finish(load.progress, done < 0 ? &why : NULL);
    sl_progress_free(own);
    if (done < 0 && err)
        *err = why;
    return done;
}

int sl_load_run(const struct sl_spec *spec, struct sl_cancel *cancel, struct sl_progress *progress,
                struct sl_load_result *result, struct sl_err *err)
{
    return sl_load_run_placed(spec, NULL, cancel, progress, result, err);
}

int sl_load_run_placed(const struct sl_spec *spec, const struct sl_load_place *place,
                       struct sl_cancel *cancel, struct sl_progress *progress,
                       struct sl_load_result *result, struct sl_err *err)
{
    const struct load load = {
        .spec = spec, .cancel = cancel, .progress = progress, .result = result, .place = place};
    return run_load(&load, err);
}

int sl_load_run_into(const struct sl_spec *spec, const struct sl_load_fill *fill,
                     struct sl_cancel *cancel, struct sl_progress *progress,
                     struct sl_load_result *result, struct sl_err *err)
{
    const struct load load = {
        .spec = spec, .cancel = cancel, .progress = progress, .result = result, .fill = fill};
    return run_load(&load, err);
}
