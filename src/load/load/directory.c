/*
 * Loads into a directory: files of a staging directory, which publishing moves to their places. The
 * directory of a spec is locked before its source is asked, so that of two loads the second finds
 * what the first has published. One that the caller chooses is its own, and has no lock; it is
 * known only when the plan is, and given back after each attempt.
 *
 * The journal is bound to the plan's identity: a killed load goes on where it was, one of another
 * version or with another spec starts over, and so does every load of an object without a version
 * (plan/versions.c).
 */
#include <string.h>
#include <sys/stat.h>

#include "file_store.h"
#include "load.h"
#include "load_destination.h"
#include "log.h"
#include "owners.h"
#include "pages.h"
#include "stores.h"

struct directory {
    struct sl_load_destination base;
    const struct sl_load_place *place; /* who chooses it; NULL: the spec names it */
    char chosen[SL_PUBLISH_PATH_MAX];  /* what was chosen */
    char older[SL_PUBLISH_PATH_MAX];   /* the same: another version; "": none */
    struct sl_publish *publish;        /* holds its lock; NULL: not taken */
    struct sl_publish *other;          /* of older; NULL: it is not open */
    struct sl_sink_file *files;        /* of the sink */
    struct sl_inheritance *inheritance;
    uint64_t linked; /* bytes of inherited files */
};

/* ---- the place ------------------------------------------------------------------------------ */

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
    if (!sl_uri_is_local(uri))
        return 0;
    sl_autofree char *local = sl_file_path(uri, err);
    if (!local)
        return -1;
    sl_autofree char *source = realpath(local, NULL);
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

/* Its book of what it holds would be wrong, and it may be writing there. */
static int refuse_daemons(const char *path, struct sl_err *err)
{
    sl_autofree char *daemon = sl_owners_daemon_of(path);
    if (!daemon)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'%s' belongs to the node daemon of '%s': have it load the model, with 'sluice "
                   "node load', or choose another directory",
                   path, daemon);
}

struct waiting {
    struct sl_progress *progress;
    const char *path;
};

static void on_waiting(void *arg)
{
    const struct waiting *waiting = arg;
    sl_progress_set_state(waiting->progress, SL_LOAD_WAITING);
    sl_log(SL_LOG_INFO, "another load holds '%s': waiting for it", waiting->path);
}

static int take(struct directory *directory, const struct sl_load_attempt *attempt,
                struct sl_err *err)
{
    const char *path = directory->base.path;
    struct waiting waiting = {attempt->progress, path};
    directory->publish = sl_publish_open(path, attempt->cancel, on_waiting, &waiting, err);
    return directory->publish ? 0 : -1;
}

static void give_back(struct sl_load_destination *to)
{
    struct directory *directory = (struct directory *)to;
    sl_publish_free(directory->publish);
    directory->publish = NULL;
}

/* Before the source is asked. */
static int judge_path(const struct sl_spec *spec, const char *path, struct sl_err *err)
{
    return sl_owners_check_path(path, err) < 0 || refuse_overlap(spec->source.uri, path, err) < 0
               ? -1
               : refuse_daemons(path, err);
}

int sl_load_would_take(const struct sl_spec *spec, const struct sl_plan *plan, struct sl_err *err)
{
    const char *path = spec->sink.tmpfs.path;
    uint32_t owner, group;
    if (judge_path(spec, path, err) < 0 ||
        sl_tmpfs_owner(&spec->sink.tmpfs, &owner, &group, err) < 0)
        return -1;
    return sl_publish_would_take(path, plan, err);
}

static int open_named(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                      struct sl_err *err)
{
    const struct sl_spec *spec = attempt->spec;
    if (!*to->path)
        return sl_fail(err, SL_E_USAGE,
                       "the model '%s' has no destination: set sink.tmpfs.path, or give --to DIR",
                       spec->metadata.name ? spec->metadata.name : "");
    if (judge_path(spec, to->path, err) < 0)
        return -1;
    return take((struct directory *)to, attempt, err);
}

static int prepare_chosen(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                          struct sl_err *err)
{
    struct directory *directory = (struct directory *)to;
    const struct sl_load_place *place = directory->place;
    *directory->older = 0;
    if (place->choose(place->arg, attempt->plan, directory->chosen, directory->older, err) < 0)
        return -1;
    to->path = directory->chosen;
    if (refuse_overlap(attempt->spec->source.uri, to->path, err) < 0)
        return -1;
    directory->publish = sl_publish_open_own(to->path, false, attempt->cancel, err);
    return directory->publish ? 0 : -1;
}

static bool there(struct sl_load_destination *to, const uint8_t asked[32],
                  struct sl_publish_facts *facts)
{
    return sl_publish_has_asked(((struct directory *)to)->publish, asked, facts);
}

/* The version is there: it may be wanted for others than it was loaded for, and a load of another
 * version may have left something behind. */
static int current(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                   struct sl_err *err)
{
    struct sl_publish *publish = ((struct directory *)to)->publish;
    uint32_t owner, group;
    if (attempt->plan->there) /* for the same owner, too */
        return sl_publish_discard(publish, false, err) < 0 ? -1 : 1;
    bool current;
    if (sl_publish_is_current(publish, attempt->plan, &current, err) < 0)
        return -1;
    if (!current)
        return 0;
    if (sl_tmpfs_owner(&attempt->spec->sink.tmpfs, &owner, &group, err) < 0 ||
        sl_publish_discard(publish, false, err) < 0 || /* with links to these files */
        sl_publish_give(publish, attempt->plan, owner, group, err) < 0)
        return -1;
    return 1;
}

/* ---- one attempt ---------------------------------------------------------------------------- */

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

/* The old version goes first, unless even without it there is too little room. What is linked is
 * counted among the staged. */
static int make_place(struct directory *directory, const struct sl_plan *plan, struct sl_err *err)
{
    struct sl_publish *publish = directory->publish;
    uint64_t old = sl_publish_published_bytes(publish);
    uint64_t freed =
        sl_add_capped(sl_publish_staged_bytes(publish), old - SL_MIN(old, directory->linked));
    if (sl_room_check(directory->base.path, plan->sink_bytes, freed, NULL, err) < 0)
        return -1;
    return sl_publish_withdraw(publish, err);
}

/* From what is there, or from the version that whoever chose the place knows. */
static int inherit(struct directory *directory, const struct sl_load_attempt *attempt,
                   struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (attempt->afresh)
        return 0;
    if (*directory->older)
        directory->other = sl_publish_open_own(directory->older, true, attempt->cancel, &why);
    if (why.kind)
        sl_log(SL_LOG_DEBUG, "nothing is taken over from '%s': %s", directory->older, why.message);
    directory->inheritance =
        sl_inherit(directory->publish, directory->place ? directory->other : directory->publish,
                   attempt->plan, &attempt->spec->sink.tmpfs, directory->base.journal,
                   directory->files, &directory->linked, err);
    return directory->inheritance ? 0 : -1;
}

/* Whoever mistyped a path below /dev/shm learns it before the disk is full. */
static void log_disk(const char *path)
{
    if (strcmp(sl_pages_of_path(path), sl_pages_text(SL_PAGES_NONE)) == 0)
        sl_log(SL_LOG_INFO,
               "'%s' is on a disk, not in memory: choose a directory on a tmpfs, such as "
               "/dev/shm, to load into memory",
               path);
}

static int begin(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                 struct sl_reader_config *config, struct sl_err *err)
{
    struct directory *directory = (struct directory *)to;
    struct sl_publish *publish = directory->publish;
    log_disk(to->path);
    const struct sl_tmpfs_options *tmpfs = &attempt->spec->sink.tmpfs;
    const struct sl_plan *plan = attempt->plan;
    to->journal = open_journal(publish, plan, err);
    if (!to->journal || sl_publish_look_ahead(publish, plan, err) < 0)
        return -1;
    directory->files = sl_plan_sink_files(plan, err);
    if (!directory->files || inherit(directory, attempt, err) < 0)
        return -1;
    if (tmpfs->replace == 1 && make_place(directory, plan, err) < 0)
        return -1;
    uint64_t staged = sl_publish_staged_bytes(publish);
    if (sl_room_check(to->path, plan->sink_bytes, staged, NULL, err) < 0)
        return -1;
    int staging_fd = sl_publish_staging(publish, err);
    if (staging_fd < 0)
        return -1;
    to->sink = sl_tmpfs_open(staging_fd, directory->files, plan->file_count, tmpfs, err);
    if (!to->sink || !directory->inheritance || tmpfs->replace == 1) /* the old one is gone */
        return to->sink ? 0 : -1;
    return sl_inherit_copy(directory->inheritance, to->sink, to->journal, &config->copied, err);
}

static int finish(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                  struct sl_err *err)
{
    const struct sl_plan *plan = attempt->plan;
    struct sl_publish *publish = ((struct directory *)to)->publish;
    sl_autofree uint32_t *crcs = sl_alloc_array(plan->file_count, sizeof(*crcs), err);
    sl_autofree bool *known = sl_alloc_array(plan->file_count, sizeof(*known), err);
    if (!crcs || !known || sl_sink_finish(to->sink, err) < 0 ||
        sl_journal_file_crcs(to->journal, to->sink, crcs, known, err) < 0 ||
        sl_cancel_check(attempt->cancel, err) < 0)
        return -1;
    return sl_publish_commit(publish, plan, attempt->spec, crcs, known, err);
}

static void end(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                const struct sl_err *why)
{
    struct directory *directory = (struct directory *)to;
    struct sl_err worse = SL_ERR_INIT;
    sl_sink_free(sl_steal(&to->sink));
    sl_journal_free(sl_steal(&to->journal));
    free(sl_steal(&directory->files));
    sl_inheritance_free(sl_steal(&directory->inheritance));
    sl_publish_free(sl_steal(&directory->other));
    directory->linked = 0;
    bool worthless = why && directory->publish &&
                     (attempt->worthless || !sl_publish_staged_bytes(directory->publish));
    if (worthless && sl_publish_discard(directory->publish, false, &worse) < 0)
        sl_log(SL_LOG_WARN, "%s", worse.message);
}

static void end_chosen(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                       const struct sl_err *why)
{
    end(to, attempt, why);
    give_back(to);
}

/* ---- both ----------------------------------------------------------------------------------- */

const struct sl_load_destination_ops sl_directory_destination = {
    .name = "directory",
    .resumes = true,
    .open = open_named,
    .there = there,
    .current = current,
    .begin = begin,
    .finish = finish,
    .end = end,
    .close = give_back,
};

const struct sl_load_destination_ops sl_chosen_destination = {
    .name = "chosen",
    .resumes = true,
    .prepare = prepare_chosen,
    .current = current,
    .begin = begin,
    .finish = finish,
    .end = end_chosen,
};

int sl_load_run(const struct sl_spec *spec, struct sl_cancel *cancel, struct sl_progress *progress,
                struct sl_load_result *result, struct sl_err *err)
{
    const char *path = spec->sink.tmpfs.path;
    struct directory directory = {.base = {.ops = &sl_directory_destination,
                                           .output = sl_plan_output_of_spec(spec),
                                           .path = path ? path : ""}};
    return sl_load_run_to(spec, &directory.base, cancel, progress, result, err);
}

int sl_load_run_placed(const struct sl_spec *spec, const struct sl_load_place *place,
                       struct sl_cancel *cancel, struct sl_progress *progress,
                       struct sl_load_result *result, struct sl_err *err)
{
    struct directory directory = {
        .base = {.ops = &sl_chosen_destination, .output = sl_plan_output_of_spec(spec), .path = ""},
        .place = place};
    return sl_load_run_to(spec, &directory.base, cancel, progress, result, err);
}
