/*
 * Every pair is made ready first, in the work place of its destination: loaded, checked, and, if it
 * is a single archive, unpacked. Only then, after a mark in every destination, files are moved to
 * their places. A run that is killed before resumes its loads; one that is killed while moving goes
 * on moving.
 *
 * Pairs are taken one after another: a load uses the whole network by itself.
 */
#include "initializer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_work.h"
#include "choosing.h"
#include "destination.h"
#include "entries.h"
#include "hash.h"
#include "local_links.h"
#include "log.h"
#include "own_names.h"
#include "plan.h"
#include "storage_env.h"
#include "stores.h"
#include "tree.h"
#include "url.h"

enum { PAIRS_MAX = 1000, COMPLAINTS_MAX = 64 * 1024, CHANGED_TRIES = 2 };

struct pair {
    unsigned number;
    const char *to;
    struct sl_storage_uri uri;
    struct sl_destination *destination; /* borrowed */
    struct sl_local_links links;        /* to be made; or … */
    struct sl_ready ready;              /* … moved, if it has a kind */
    struct sl_initialized *done;
};
struct run {
    const struct sl_initializer *job;
    struct sl_patterns patterns;
    struct pair *pairs;
    struct sl_destination **destinations;
    size_t pair_count, destination_count;
};

static void run_release(struct run *run)
{
    for (size_t i = 0; i < run->pair_count; i++) {
        sl_local_links_release(&run->pairs[i].links);
        sl_storage_uri_release(&run->pairs[i].uri);
    }
    for (size_t i = 0; i < run->destination_count; i++)
        sl_destination_free(run->destinations[i]);
    free(run->pairs);
    free(run->destinations);
    sl_patterns_release(&run->patterns);
}

/* ---- a request ---------------------------------------------------------------------------------
 */

static void hash_text(struct sl_sha256 *sha, const char *text)
{
    sl_sha256_update(sha, text, strlen(text) + 1);
}

static void hash_list(struct sl_sha256 *sha, const struct sl_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        hash_text(sha, list->items[i]);
    hash_text(sha, "");
}

/* Equal requests are for the same files. */
static int hash_request(const struct run *run, struct pair *pair, struct sl_err *err)
{
    const struct sl_initializer *job = run->job;
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    hash_text(sha, pair->uri.text);
    hash_list(sha, &run->patterns.allow);
    hash_list(sha, &run->patterns.ignore);
    hash_text(sha, job->strict_prefix ? "strict" : "");
    for (size_t i = 0; i < SL_COUNT(sl_storage_signing); i++) {
        const char *value = getenv(sl_storage_signing[i].variable);
        if (value && *value)
            hash_text(sha, value);
    }
    for (size_t i = 0; i < job->setting_count; i++) {
        hash_text(sha, job->settings[i].path);
        hash_text(sha, job->settings[i].value);
    }
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), pair->ready.request);
    return 0;
}

/* ---- an archive ----------------------------------------------------------------------------- */

/* The one file that a load published, below a folder (taken): itself and its name; -1 with errno.
 */
static int find_only_file(int fd, bool top, char name[256])
{
    DIR *folder = fdopendir(fd);
    if (!folder) {
        close(fd);
        return -1;
    }
    int found = -1;
    struct stat status;
    for (struct dirent *entry; found < 0 && (entry = sl_next_entry(folder));) {
        if ((top && sl_own_name(entry->d_name, strlen(entry->d_name))) ||
            fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        int next = openat(dirfd(folder), entry->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0)
            break;
        snprintf(name, 256, "%s", entry->d_name);
        found = S_ISDIR(status.st_mode) ? find_only_file(next, false, name) : next;
        if (found < 0 && errno != ENOENT)
            break;
    }
    int number = errno ? errno : ENOENT;
    closedir(folder);
    errno = number;
    return found;
}

/* What came out of an archive is a model like any other: whole, or not published. Hashes and
 * signatures are the archive's. Links that lead nowhere yet are for the destination to judge. */
static int judge_unpacked(const struct run *run, const struct pair *pair, struct sl_err *err)
{
    const struct sl_initializer *job = run->job;
    struct sl_specs specs = {0};
    struct sl_plan *plan = NULL;
    struct sl_source_config config;
    sl_autobuf complaints = SL_BUF_INIT(COMPLAINTS_MAX);
    sl_autofree char *work =
        sl_destination_work(pair->destination, pair->number, SL_WORK_FILES, err);
    sl_autofree char *uri = work ? sl_asprintf(err, "%s/", work) : NULL;
    if (!uri || sl_spec_from_uri(uri, work, job->settings, job->setting_count, &specs, &complaints,
                                 err) < 0)
        return -1;
    struct sl_spec own = specs.items[0]; /* its strings are borrowed */
    own.verify = (struct sl_spec_verify){.sidecar = SL_SIDECAR_OFF};
    own.source.beneath_bytes = strlen(work);
    sl_spec_source_config(&own, job->cancel, NULL, &config);
    struct sl_err why = SL_ERR_INIT;
    int done = sl_plan_make_listed(&own, true, &config, &plan, &why);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    if (done == 0 || why.kind == SL_E_NOT_FOUND || why.kind == SL_E_AUTH)
        return 0;
    *err = why;
    return -1;
}

static int unpack(struct run *run, struct pair *pair, int from, enum sl_archive kind,
                  const char *name, bool own, struct sl_err *err)
{
    const struct sl_archive_work work = {pair->destination, pair->number, pair->to,
                                         run->job->cancel};
    const struct sl_archive_file file = {from, kind, name, own};
    if (sl_archive_work_unpack(&work, &file, &pair->done->files, &pair->done->bytes, err) < 0)
        return -1;
    if (judge_unpacked(run, pair, err) < 0) {
        sl_destination_discard(pair->destination, pair->number, SL_WORK_FILES, NULL);
        return -1;
    }
    pair->done->unpacked = true;
    snprintf(pair->ready.kind, sizeof(pair->ready.kind), SL_WORK_FILES);
    *pair->ready.strip = 0; /* what is in an archive are no keys of the bucket */
    return 0;
}

static bool is_url(const struct pair *pair)
{
    return pair->uri.store && pair->uri.store->traits.urls;
}

static int unpack_loaded(struct run *run, struct pair *pair, enum sl_archive kind,
                         struct sl_err *err)
{
    char name[256];
    int folder = sl_destination_open_work(pair->destination, pair->number, SL_WORK_LOAD, err);
    if (folder < 0)
        return -1;
    sl_autoclose int from = find_only_file(folder, true, name);
    if (from < 0)
        return sl_tree_fail(err, errno, "open the archive in", pair->to);
    if (kind == SL_ARCHIVE_NONE) {
        kind = sl_archive_kind(name);
        if (kind == SL_ARCHIVE_NONE)
            return 0;
    }
    return unpack(run, pair, from, kind, name, true, err);
}

/* ---- a load --------------------------------------------------------------------------------- */

/* A spec of the URI that publishes into the work place. */
static int make_specs(const struct run *run, const struct pair *pair,
                      const struct sl_storage_env *env, struct sl_specs *specs, struct sl_err *err)
{
    const struct sl_initializer *job = run->job;
    size_t count = env->count + job->setting_count;
    sl_autobuf complaints = SL_BUF_INIT(COMPLAINTS_MAX);
    sl_autofree struct sl_spec_setting *settings = sl_alloc_array(count, sizeof(*settings), err);
    sl_autofree char *work =
        sl_destination_work(pair->destination, pair->number, SL_WORK_LOAD, err);
    if (!settings || !work)
        return -1;
    memcpy(settings, env->items, env->count * sizeof(*settings));
    if (job->setting_count)
        memcpy(settings + env->count, job->settings, job->setting_count * sizeof(*settings));
    const char *uri =
        pair->uri.kind == SL_STORAGE_LOCAL ? sl_storage_local_path(pair->uri.text) : pair->uri.text;
    return sl_spec_from_uri(uri, work, settings, count, specs, &complaints, err);
}

static int load(struct run *run, struct pair *pair, const struct sl_spec *spec, struct sl_err *err)
{
    sl_autofree char *clean = sl_uri_sanitize(pair->uri.text, err);
    struct sl_progress *progress =
        clean ? sl_progress_new(spec->metadata.name, clean, pair->to, err) : NULL;
    if (!progress)
        return -1;
    struct sl_load_result *result = &pair->done->load;
    int done = sl_load_run(spec, run->job->cancel, progress, result, err);
    sl_progress_free(progress);
    snprintf(result->path, sizeof(result->path), "%s", pair->to);
    pair->done->files = result->files;
    pair->done->bytes = result->bytes;
    return done;
}

/* The objects of a prefix, as KServe chooses them. */
static int load_chosen(struct run *run, struct pair *pair, struct sl_spec *spec, struct sl_err *err)
{
    __attribute__((cleanup(sl_choosing_release))) struct sl_choice choice = {0};
    struct sl_source_config config;
    sl_spec_source_config(spec, run->job->cancel, NULL, &config);
    if (sl_choose(spec->source.uri, &config, run->job->strict_prefix, &run->patterns, &choice,
                  err) < 0)
        return -1;
    if (*choice.strip && spec->sink.tmpfs.layout != SL_LAYOUT_VERBATIM)
        return sl_fail(err, SL_E_USAGE,
                       "'%.300s' takes several folders at once, which a layout cannot: end the "
                       "URI with '/' or use --strict-prefix",
                       spec->source.uri);
    if (*choice.strip && sl_spec_is_signed(spec))
        return sl_fail(err, SL_E_USAGE,
                       "'%.300s' takes several folders at once, and a signature is of one: end the "
                       "URI with '/' or use --strict-prefix",
                       spec->source.uri);
    if (strlen(choice.strip) >= sizeof(pair->ready.strip))
        return sl_fail(err, SL_E_USAGE, "the path in '%.100s…' is too long", spec->source.uri);
    snprintf(pair->ready.strip, sizeof(pair->ready.strip), "%s", choice.strip);
    sl_destination_make_room(pair->destination, choice.bytes, &choice);
    struct sl_spec own = *spec; /* its strings are borrowed */
    own.source.uri = choice.base_uri;
    own.source.chosen = &choice.objects;
    return load(run, pair, &own, err);
}

/* One object, whose size is known once it is opened: what an earlier run left of it goes if both do
 * not fit. */
static int load_single(struct run *run, struct pair *pair, struct sl_spec *spec, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    struct sl_source_config config;
    if (load(run, pair, spec, &why) == 0)
        return 0;
    struct sl_chosen_object object = {0};
    struct sl_choice choice = {.objects = {&object, 1, 1}, .strip = (char *)(uintptr_t) ""};
    sl_spec_source_config(spec, run->job->cancel, NULL, &config);
    if (why.kind == SL_E_NO_SPACE &&
        sl_store_open(spec->source.uri, &config, &store, &key, NULL) == 0 && *key) {
        object.name = key;
        if (sl_destination_make_room(pair->destination, INT64_MAX, &choice))
            return load(run, pair, spec, err);
    }
    *err = why;
    return -1;
}

/* What was chosen may be overwritten before it is read: then once more from the listing on. */
static int load_again(struct run *run, struct pair *pair, struct sl_spec *spec, bool prefix,
                      struct sl_err *err)
{
    for (unsigned tries = 1;; tries++) {
        struct sl_err why = SL_ERR_INIT;
        int done = prefix ? load_chosen(run, pair, spec, &why) : load_single(run, pair, spec, &why);
        if (done == 0)
            return 0;
        if (!prefix || tries == CHANGED_TRIES || why.kind != SL_E_INTEGRITY ||
            strcmp(why.code, "changed") != 0) {
            *err = why;
            return -1;
        }
        sl_log(SL_LOG_WARN, "%s: listed once more", why.message);
    }
}

static bool is_prefix(const struct pair *pair)
{
    struct stat status;
    if (pair->uri.kind == SL_STORAGE_LOCAL)
        return stat(sl_storage_local_path(pair->uri.text), &status) == 0 && S_ISDIR(status.st_mode);
    const struct sl_store_traits *traits = pair->uri.store ? &pair->uri.store->traits : NULL;
    if (!traits || !traits->listing)
        return false;
    return !traits->folders || pair->uri.text[strlen(pair->uri.text) - 1] == '/';
}

static int fetch_with(struct run *run, struct pair *pair, const struct sl_storage_env *env,
                      struct sl_err *err)
{
    struct sl_specs specs = {0};
    int done = make_specs(run, pair, env, &specs, err);
    if (done == 0) {
        struct sl_spec *spec = &specs.items[0];
        done = load_again(run, pair, spec, is_prefix(pair), err);
        snprintf(pair->ready.kind, sizeof(pair->ready.kind), SL_WORK_LOAD);
        bool single = pair->done->files == 1 && spec->sink.tmpfs.layout == SL_LAYOUT_VERBATIM;
        if (done == 0 && single)
            done = unpack_loaded(
                run, pair, is_url(pair) ? sl_archive_kind_of_url(pair->uri.text) : SL_ARCHIVE_NONE,
                err);
    }
    sl_specs_release(&specs);
    return done;
}

static int fetch(struct run *run, struct pair *pair, struct sl_err *err)
{
    __attribute__((cleanup(sl_storage_env_release))) struct sl_storage_env env = {0};
    if (sl_storage_env_of(&env, &pair->uri, err) < 0)
        return -1;
    return fetch_with(run, pair, &env, err);
}

/* ---- local ---------------------------------------------------------------------------------- */

static int find_local(struct run *run, struct pair *pair, struct sl_err *err)
{
    if (sl_local_links_find(&pair->links, sl_storage_local_path(pair->uri.text), &run->patterns,
                            err) < 0)
        return -1;
    const char *only = pair->links.paths.items[0];
    enum sl_archive kind = pair->links.paths.count == 1 ? sl_archive_kind(only) : SL_ARCHIVE_NONE;
    pair->done->files = pair->links.paths.count;
    pair->done->linked = kind == SL_ARCHIVE_NONE;
    if (kind == SL_ARCHIVE_NONE)
        return 0;
    sl_autoclose int from = open(only, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int done = from < 0 ? sl_fail_errno(err, SL_E_AUTH, errno, "cannot open '%.300s'", only)
                        : unpack(run, pair, from, kind, only, false, err);
    sl_local_links_release(&pair->links);
    return done;
}

/* ---- all pairs ------------------------------------------------------------------------------ */

/* Then it is read, and copied: what is behind a link may change. */
static bool must_be_signed(const struct sl_initializer *job)
{
    static const char KEY[] = "verify.modelSigning";
    for (size_t i = 0; i < SL_COUNT(sl_storage_signing); i++) {
        const char *value = getenv(sl_storage_signing[i].variable);
        if (value && *value)
            return true;
    }
    for (size_t i = 0; i < job->setting_count; i++)
        if (strncmp(job->settings[i].path, KEY, sizeof(KEY) - 1) == 0)
            return true;
    return false;
}

static int make_ready(struct run *run, struct pair *pair, struct sl_err *err)
{
    if (sl_cancel_check(run->job->cancel, err) < 0 || hash_request(run, pair, err) < 0)
        return -1;
    if (sl_destination_marked(pair->destination, pair->number, pair->ready.request, &pair->ready)) {
        pair->done->moved = true;
        return 0;
    }
    switch (pair->uri.kind) {
    case SL_STORAGE_MOUNTED:
        sl_log(SL_LOG_INFO, "'%s' is put there by a model agent: there is nothing to do",
               pair->uri.text);
        return 0;
    case SL_STORAGE_LOCAL:
        if (run->job->local == SL_INITIALIZER_LINK && !must_be_signed(run->job))
            return find_local(run, pair, err);
        return fetch(run, pair, err);
    default:
        return fetch(run, pair, err);
    }
}

/* Which pair failed matters only if there are several. */
static int wrap(const struct run *run, const struct pair *pair, struct sl_err *err)
{
    sl_autofree char *clean = run->pair_count > 1 ? sl_uri_sanitize(pair->uri.text, NULL) : NULL;
    return clean ? sl_wrap(err, "'%.200s'", clean) : -1;
}

/* A name or a link that must not be put there: nothing was, and the next run asks the source again.
 */
static int refuse(struct run *run, struct pair *failed, struct sl_err *err)
{
    for (size_t i = 0; i < run->pair_count; i++)
        if (err->kind == SL_E_FORMAT)
            sl_destination_unmark(run->pairs[i].destination, run->pairs[i].number);
    return failed ? wrap(run, failed, err) : -1;
}

/* What goes where, as a whole, before anything moves. */
static int judge_all(struct run *run, struct sl_err *err)
{
    for (size_t i = 0; i < run->pair_count; i++) {
        struct pair *pair = &run->pairs[i];
        int done = *pair->ready.kind
                       ? sl_destination_list(pair->destination, pair->number, &pair->ready, err)
                       : sl_local_links_list(&pair->links, pair->destination, err);
        if (done < 0)
            return refuse(run, pair, err);
    }
    for (size_t i = 0; i < run->destination_count; i++)
        if (sl_destination_judge(run->destinations[i], run->job->cancel, err) < 0)
            return refuse(run, NULL, err);
    return 0;
}

static int move_all(struct run *run, struct sl_err *err)
{
    for (size_t i = 0; i < run->destination_count; i++)
        if (sl_destination_look(run->destinations[i], err) < 0)
            return -1;
    for (size_t i = 0; i < run->destination_count; i++)
        if (sl_destination_move(run->destinations[i], err) < 0)
            return -1;
    for (size_t i = 0; i < run->pair_count; i++) {
        struct pair *pair = &run->pairs[i];
        if (!*pair->ready.kind && sl_local_links_make(&pair->links, pair->destination, err) < 0)
            return wrap(run, pair, err);
    }
    return 0;
}

static int put_in_place(struct run *run, struct sl_err *err)
{
    if (judge_all(run, err) < 0)
        return -1;
    for (size_t i = 0; i < run->pair_count; i++) {
        struct pair *pair = &run->pairs[i];
        if (*pair->ready.kind &&
            sl_destination_mark(pair->destination, pair->number, &pair->ready, err) < 0)
            return wrap(run, pair, err);
    }
    if (move_all(run, err) < 0)
        return -1;
    for (size_t i = 0; i < run->destination_count; i++)
        if (sl_destination_clean(run->destinations[i], err) < 0)
            return -1;
    return 0;
}

static struct sl_destination *find_destination(struct run *run, const char *to, struct sl_err *err)
{
    for (size_t i = 0; i < run->destination_count; i++)
        if (sl_destination_is(run->destinations[i], to))
            return run->destinations[i];
    struct sl_destination *made = sl_destination_open(to, run->job->cancel, err);
    if (made)
        run->destinations[run->destination_count++] = made;
    return made;
}

/* All sources are judged before anything is made. */
static int prepare(struct run *run, struct sl_initialized *done, struct sl_err *err)
{
    const struct sl_initializer *job = run->job;
    run->pairs = sl_alloc_array(job->pair_count, sizeof(*run->pairs), err);
    run->destinations = sl_alloc_array(job->pair_count, sizeof(struct sl_destination *), err);
    if (!run->pairs || !run->destinations)
        return -1;
    for (; run->pair_count < job->pair_count; run->pair_count++) {
        struct pair *pair = &run->pairs[run->pair_count];
        *pair = (struct pair){.number = (unsigned)run->pair_count,
                              .to = job->arguments[2 * run->pair_count + 1],
                              .done = &done[run->pair_count]};
        *pair->done = (struct sl_initialized){0};
        if (sl_storage_uri_parse(job->arguments[2 * run->pair_count], &pair->uri, err) < 0)
            return -1;
    }
    for (size_t i = 0; i < run->pair_count; i++) {
        struct pair *pair = &run->pairs[i];
        pair->destination = find_destination(run, pair->to, err);
        if (!pair->destination)
            return -1;
    }
    return 0;
}

static int refuse_confidential(struct sl_err *err)
{
    const char *wanted = getenv("CONFIDENTIAL_ENABLED");
    if (!wanted || strcasecmp(wanted, "true") != 0)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "CONFIDENTIAL_ENABLED asks for keys from a confidential data hub, which sluice "
                   "does not talk to: use KServe's confidential initializer, or .tensors files "
                   "and --key-file");
}

int sl_initializer_run(const struct sl_initializer *job, struct sl_initialized *done,
                       struct sl_err *err)
{
    __attribute__((cleanup(run_release))) struct run run = {.job = job};
    if (job->pair_count > PAIRS_MAX)
        return sl_fail(err, SL_E_USAGE, "more than %d sources", PAIRS_MAX);
    if (refuse_confidential(err) < 0 || sl_patterns_read(&run.patterns, err) < 0 ||
        prepare(&run, done, err) < 0)
        return -1;
    for (size_t i = 0; i < run.pair_count; i++)
        if (make_ready(&run, &run.pairs[i], err) < 0)
            return wrap(&run, &run.pairs[i], err);
    return put_in_place(&run, err);
}
