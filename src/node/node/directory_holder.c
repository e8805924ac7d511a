/*
 * A version is loaded into its own folder, so whoever reads the files of an older one is not
 * disturbed. The folder's name says which version it is, and the manifest in it must agree, before
 * it counts for whole after a restart. A version that goes loses its marker `ready` first: a kill
 * in between leaves something that counts for partial.
 *
 * Nothing counts that somebody else made, or could write: a folder, a link or a spec of another
 * user was there before the daemon, or before its folder was closed to others, and is left alone.
 */
#include "directory_holder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "entries.h"
#include "log.h"
#include "node_folder.h"
#include "node_lock.h"
#include "thread.h"
#include "tree.h"

enum { FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW };
#define CURRENT     "current"
#define CURRENT_NEW ".current.new"
#define MODEL_SPEC  "model.yaml"
#define STATE       ".sluice"

struct sl_directory_holder {
    struct sl_node_folder folder;
    int lock_fd;
    pthread_mutex_t lock; /* of specs that are written or removed, and of names' empty folders */
    struct sl_holder ops;
};

/* ---- names ---------------------------------------------------------------------------------- */

static bool is_version(const char *name)
{
    return strlen(name) == SL_VERSION_TEXT - 1 &&
           strspn(name, "0123456789abcdef") == SL_VERSION_TEXT - 1;
}

static void where(void *self, const char *name, const char *version, char path[SL_PUBLISH_PATH_MAX])
{
    const struct sl_directory_holder *holder = self;
    snprintf(path, SL_PUBLISH_PATH_MAX, "%s/%s/%s", holder->folder.path, name, version);
}

/* The same for what takes a path and must not be led elsewhere. */
static void work_path(const struct sl_directory_holder *holder, const char *name,
                      const char *version, char path[SL_PUBLISH_PATH_MAX])
{
    snprintf(path, SL_PUBLISH_PATH_MAX, "%s/%s/%s", holder->folder.work, name, version);
}

/* ---- whose it is ---------------------------------------------------------------------------- */

static int open_model(const struct sl_directory_holder *holder, const char *name, bool make,
                      struct sl_err *err)
{
    char path[SL_PUBLISH_PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", holder->folder.path, name);
    return sl_node_open_own(holder->folder.fd, name, make, path, err);
}

/* The folder of a version, with what tells its state in it; SL_E_NOT_FOUND. */
static int open_version(const struct sl_directory_holder *holder, int model_fd, const char *name,
                        const char *version, bool make, struct sl_err *err)
{
    char path[SL_PUBLISH_PATH_MAX];
    struct sl_err why = SL_ERR_INIT;
    where((void *)(uintptr_t)holder, name, version, path);
    sl_autoclose int fd = sl_node_open_own(model_fd, version, make, path, err);
    if (fd < 0)
        return -1;
    sl_autoclose int state_fd = sl_node_open_own(fd, STATE, false, path, &why);
    if (state_fd < 0 && why.kind != SL_E_NOT_FOUND) {
        if (err)
            *err = why;
        return -1;
    }
    sl_autofree char *state = sl_asprintf(err, "%s/" STATE, path);
    if (!state || (state_fd >= 0 && sl_node_check_entries(state_fd, state, err) < 0))
        return -1;
    int whole = fd;
    fd = -1;
    return whole;
}

/* ---- loading -------------------------------------------------------------------------------- */

struct loading {
    struct sl_directory_holder *holder;
    const struct sl_holder_job *job;
    char version[SL_VERSION_TEXT];
    char older[SL_VERSION_TEXT]; /* what it takes files over from; "": nothing */
};

/* The version that the link names; "" if there is none of ours. */
static void read_current(int model_fd, char current[SL_VERSION_TEXT])
{
    struct stat status;
    char target[SL_VERSION_TEXT] = "";
    *current = 0;
    if (fstatat(model_fd, CURRENT, &status, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISLNK(status.st_mode) ||
        !sl_node_is_own(&status) ||
        readlinkat(model_fd, CURRENT, target, sizeof(target)) != SL_VERSION_TEXT - 1)
        return;
    memcpy(current, target, SL_VERSION_TEXT);
}

/* The version before this one, if it is there. What is evicted meanwhile is not found. */
static void find_older(struct loading *loading, int model_fd, char older[SL_PUBLISH_PATH_MAX])
{
    const char *name = loading->job->name;
    *older = 0;
    read_current(model_fd, loading->older);
    sl_autoclose int fd =
        is_version(loading->older) && strcmp(loading->older, loading->version) != 0
            ? open_version(loading->holder, model_fd, name, loading->older, false, NULL)
            : -1;
    if (fd >= 0)
        work_path(loading->holder, name, loading->older, older);
    else
        *loading->older = 0;
}

/* What the load will link, for the budget. With `free-first` the old version goes, whatever that
 * saves. */
static int promise(struct loading *loading, const struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_holder_job *job = loading->job;
    char older[SL_PUBLISH_PATH_MAX] = "";
    struct sl_inheritable there = {.bytes = 0};
    sl_autoclose int model_fd = open_model(loading->holder, job->name, false, NULL);
    sl_version_text(plan->identity, loading->version);
    if (model_fd >= 0)
        find_older(loading, model_fd, older);
    if (*older && job->spec->sink.tmpfs.replace != 1 &&
        sl_publish_inheritable(older, plan, &job->spec->sink.tmpfs, &there, err) < 0)
        return -1;
    job->shared->bytes = there.link_bytes;
    memcpy(job->shared->with, loading->older, sizeof(loading->older));
    return 0;
}

static int choose(void *arg, const struct sl_plan *plan, char path[SL_PUBLISH_PATH_MAX],
                  char older[SL_PUBLISH_PATH_MAX], struct sl_err *err)
{
    struct loading *loading = arg;
    const struct sl_holder_job *job = loading->job;
    *job->unversioned = plan->unversioned > 0;
    if (promise(loading, plan, err) < 0 ||
        job->admit(job->arg, plan->identity, plan->sink_bytes, loading->version, err) < 0)
        return -1;
    SL_LOCKED(&loading->holder->lock); /* an empty folder of a name may be removed */
    sl_autoclose int model_fd = open_model(loading->holder, job->name, true, err);
    sl_autoclose int fd = model_fd < 0 ? -1
                                       : open_version(loading->holder, model_fd, job->name,
                                                      loading->version, true, err);
    if (fd < 0)
        return -1;
    work_path(loading->holder, job->name, loading->version, path);
    find_older(loading, model_fd, older);
    return 0;
}

/* Never absent on the way: a link under another name is renamed over it. */
static int point_current(struct sl_directory_holder *holder, const char *name, const char *version,
                         struct sl_err *err)
{
    sl_autoclose int fd = open_model(holder, name, false, err);
    if (fd < 0)
        return -1;
    unlinkat(fd, CURRENT_NEW, 0);
    if (symlinkat(version, fd, CURRENT_NEW) < 0 || renameat(fd, CURRENT_NEW, fd, CURRENT) < 0)
        return sl_tree_fail(err, errno, "make the link " CURRENT " of", name);
    return 0;
}

/* The truth: the bytes of links that are there. */
static void note_shared(const struct loading *loading)
{
    const struct sl_holder_job *job = loading->job;
    struct sl_holder_shared *shared = job->shared;
    shared->bytes = 0;
    sl_autoclose int model_fd = open_model(loading->holder, job->name, false, NULL);
    sl_autoclose int fd = -1, other_fd = -1;
    if (model_fd < 0 || !*loading->older)
        return;
    fd = open_version(loading->holder, model_fd, job->name, loading->version, false, NULL);
    other_fd = open_version(loading->holder, model_fd, job->name, loading->older, false, NULL);
    if (fd < 0 || other_fd < 0)
        return;
    shared->bytes = sl_publish_shared_bytes(fd, other_fd);
    memcpy(shared->with, loading->older, sizeof(shared->with));
}

static int load(void *self, const struct sl_holder_job *job, void **body, struct sl_err *err)
{
    struct sl_load_result result;
    struct loading loading = {.holder = self, .job = job};
    const struct sl_load_place place = {choose, &loading};
    char path[SL_PUBLISH_PATH_MAX];
    *body = NULL;
    if (sl_load_run_placed(job->spec, &place, job->cancel, job->progress, &result, err) < 0) {
        sl_node_folder_explain(&loading.holder->folder, err);
        return -1;
    }
    note_shared(&loading);
    if (point_current(self, job->name, loading.version, err) < 0)
        return -1;
    where(self, job->name, loading.version, path);
    sl_load_say(&result, job->progress, job->name, path);
    return 0;
}

/* ---- dropping ------------------------------------------------------------------------------- */

static void unlink_current(int fd, const char *version)
{
    char target[SL_VERSION_TEXT + 1] = "";
    ssize_t bytes = readlinkat(fd, CURRENT, target, sizeof(target));
    if (bytes == SL_VERSION_TEXT - 1 && memcmp(target, version, (size_t)bytes) == 0)
        unlinkat(fd, CURRENT, 0);
}

static int drop(void *self, const char *name, const char *version, void *body, struct sl_err *err)
{
    struct sl_directory_holder *holder = self;
    char ready[SL_VERSION_TEXT + 16];
    struct sl_err why = SL_ERR_INIT;
    (void)body;
    sl_autoclose int fd = open_model(holder, name, false, &why);
    if (fd < 0) {
        if (err && why.kind != SL_E_NOT_FOUND)
            *err = why;
        return why.kind == SL_E_NOT_FOUND ? 0 : -1;
    }
    unlink_current(fd, version);
    snprintf(ready, sizeof(ready), "%s/.sluice/ready", version);
    unlinkat(fd, ready, 0);
    snprintf(ready, sizeof(ready), "%s" SL_WHOLE, version);
    unlinkat(fd, ready, 0);
    if (sl_tree_remove(fd, version) < 0)
        return sl_tree_fail(err, errno, "remove a version of", name);
    SL_LOCKED(&holder->lock);                        /* not while a spec is written into it */
    unlinkat(holder->folder.fd, name, AT_REMOVEDIR); /* if nothing else is in it */
    return 0;
}

/* ---- after a restart ------------------------------------------------------------------------ */

/* Takes fd. */
static DIR *read_folder(int fd)
{
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder && fd >= 0)
        close(fd);
    return folder;
}

/* Is a whole version there, and how many bytes? look: only looked at; else a commit that was
 * interrupted is completed on the way. */
static enum sl_wholeness survey(const struct sl_directory_holder *holder, const char *name,
                                const char *version, bool look, uint64_t *bytes)
{
    char path[SL_PUBLISH_PATH_MAX], work[SL_PUBLISH_PATH_MAX];
    struct sl_err why = SL_ERR_INIT;
    struct sl_publish_facts facts = {.bytes = 0};
    where((void *)(uintptr_t)holder, name, version, path);
    work_path(holder, name, version, work);
    SL_AUTO(sl_publish) publish = sl_publish_open_own(work, look, NULL, &why);
    int done = publish ? sl_publish_survey(publish, &facts, &why) : -1;
    *bytes = facts.bytes;
    if (done == 0)
        return strncmp(facts.identity, version, SL_VERSION_TEXT - 1) == 0 ? SL_WHOLENESS_WHOLE
                                                                          : SL_WHOLENESS_NOT;
    sl_node_folder_explain(&holder->folder, &why);
    if (why.kind != SL_E_NOT_FOUND)
        sl_log(SL_LOG_WARN, "'%s' does not count as loaded: %s", path, why.message);
    return why.kind == SL_E_NOT_FOUND || why.kind == SL_E_INTEGRITY || why.kind == SL_E_FORMAT
               ? SL_WHOLENESS_NOT
               : SL_WHOLENESS_UNKNOWN;
}

/* Versions of a model that were found before. */
struct scanned {
    char (*versions)[SL_VERSION_TEXT];
    size_t count, capacity;
};

/* With which of those before it a version has most in common; so no two count on each other. */
static void find_shared(const struct sl_directory_holder *holder, int model_fd, int fd,
                        const char *name, const struct scanned *before,
                        struct sl_holder_shared *shared)
{
    for (size_t i = 0; i < before->count; i++) {
        const char *version = before->versions[i];
        sl_autoclose int other_fd = open_version(holder, model_fd, name, version, false, NULL);
        uint64_t bytes = other_fd < 0 ? 0 : sl_publish_shared_bytes(fd, other_fd);
        if (bytes <= shared->bytes)
            continue;
        shared->bytes = bytes;
        memcpy(shared->with, version, SL_VERSION_TEXT);
    }
}

static int scan_version(struct sl_directory_holder *holder, struct sl_registry *registry,
                        int model_fd, const char *name, const char *version, bool current,
                        struct scanned *before, struct sl_err *err)
{
    uint64_t bytes;
    struct sl_err why = SL_ERR_INIT;
    sl_autoclose int fd = open_version(holder, model_fd, name, version, false, &why);
    if (fd < 0) {
        sl_log(SL_LOG_WARN, "a version of '%s' is left alone: %s", name, why.message);
        return 0;
    }
    bool ready = survey(holder, name, version, false, &bytes) == SL_WHOLENESS_WHOLE;
    if (!ready)
        bytes = sl_tree_bytes(fd);
    struct sl_registry_found found = {
        .name = name, .version = version, .bytes = bytes, .ready = ready, .current = current};
    find_shared(holder, model_fd, fd, name, before, &found.shared);
    if (sl_grow(&before->versions, &before->capacity, before->count + 1, sizeof(*before->versions),
                err) < 0)
        return -1;
    snprintf(before->versions[before->count++], SL_VERSION_TEXT, "%s", version);
    return sl_registry_adopt(registry, &holder->ops, &found, err);
}

static int scan_model(struct sl_directory_holder *holder, struct sl_registry *registry,
                      const char *name, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    DIR *folder = read_folder(open_model(holder, name, false, &why));
    char current[SL_VERSION_TEXT];
    struct scanned scanned = {.count = 0};
    int done = 0;
    if (!folder) {
        sl_log(SL_LOG_WARN, "'%s' is left alone: %s", name, why.message);
        return 0;
    }
    read_current(dirfd(folder), current);
    for (struct dirent *entry; done == 0 && (entry = sl_next_entry(folder));) {
        struct stat status;
        if (is_version(entry->d_name) &&
            fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISDIR(status.st_mode))
            done = scan_version(holder, registry, dirfd(folder), name, entry->d_name,
                                strcmp(current, entry->d_name) == 0, &scanned, err);
    }
    if (done == 0 && errno)
        sl_log(SL_LOG_WARN, "versions of '%s' may be left alone: its folder cannot be read: %s",
               name, strerror(errno));
    free(scanned.versions);
    closedir(folder);
    return done;
}

int sl_directory_holder_scan(struct sl_directory_holder *holder, struct sl_registry *registry,
                             struct sl_err *err)
{
    DIR *folder = read_folder(openat(holder->folder.fd, ".", FOLDER));
    int done = 0;
    if (!folder)
        return sl_tree_fail(err, errno, "read", holder->folder.path);
    for (struct dirent *entry; done == 0 && (entry = sl_next_entry(folder));)
        if (sl_is_model_name(entry->d_name))
            done = scan_model(holder, registry, entry->d_name, err);
    if (done == 0 && errno)
        done = sl_tree_fail(err, errno, "read", holder->folder.path);
    closedir(folder);
    return done;
}

/* ---- for layers above ----------------------------------------------------------------------- */

int sl_directory_holder_version(struct sl_directory_holder *holder, const char *name,
                                const char *version, struct sl_err *err)
{
    if (!sl_is_model_name(name) || !is_version(version))
        return sl_fail(err, SL_E_NOT_FOUND, "'%.64s/%.64s' is not a version of a model", name,
                       version);
    sl_autoclose int model_fd = open_model(holder, name, false, err);
    return model_fd < 0 ? -1 : open_version(holder, model_fd, name, version, false, err);
}

enum sl_wholeness sl_directory_holder_look(struct sl_directory_holder *holder, const char *name,
                                           const char *version, uint64_t *bytes)
{
    struct sl_err why = SL_ERR_INIT;
    *bytes = 0;
    sl_autoclose int fd = sl_directory_holder_version(holder, name, version, &why);
    if (fd < 0)
        return why.kind == SL_E_NOT_FOUND || *why.code ? SL_WHOLENESS_NOT : SL_WHOLENESS_UNKNOWN;
    enum sl_wholeness found = survey(holder, name, version, true, bytes);
    if (found == SL_WHOLENESS_UNKNOWN)
        *bytes = sl_tree_bytes(fd);
    return found;
}

int sl_directory_holder_beside(struct sl_directory_holder *holder, const char *name,
                               struct sl_err *err)
{
    char path[SL_PUBLISH_PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", holder->folder.path, name);
    return sl_node_open_own(holder->folder.fd, name, true, path, err);
}

/* ---- specs that callers brought ------------------------------------------------------------- */

int sl_directory_holder_remember(struct sl_directory_holder *holder, const char *name,
                                 const char *text, struct sl_err *err)
{
    SL_LOCKED(&holder->lock);
    struct sl_err why = SL_ERR_INIT;
    if (text && holder->folder.exposed)
        return 0; /* the next daemon could not tell whose it is */
    sl_autoclose int fd = open_model(holder, name, text, &why);
    if (fd < 0 && !text && why.kind == SL_E_NOT_FOUND)
        return 0;
    if (fd < 0) {
        if (err)
            *err = why;
        return -1;
    }
    int done = text ? sl_tree_write_own(fd, MODEL_SPEC, text, strlen(text), err)
               : sl_tree_remove(fd, MODEL_SPEC) < 0
                   ? sl_tree_fail(err, errno, "remove the spec of", name)
                   : 0;
    if (!text || done < 0)
        unlinkat(holder->folder.fd, name, AT_REMOVEDIR); /* if nothing else is in it */
    return done;
}

int sl_directory_holder_recall(struct sl_directory_holder *holder, const char *name,
                               struct sl_buf *text, struct sl_err *err)
{
    sl_autoclose int fd = open_model(holder, name, false, err);
    return fd < 0 ? -1 : sl_node_read_own(fd, MODEL_SPEC, text, err);
}

void sl_directory_holder_each_spec(struct sl_directory_holder *holder,
                                   void (*call)(void *arg, const char *name, const char *text,
                                                size_t bytes),
                                   void *arg)
{
    DIR *folder =
        holder->folder.exposed ? NULL : read_folder(openat(holder->folder.fd, ".", FOLDER));
    for (struct dirent *entry; folder && (entry = sl_next_entry(folder));) {
        if (!sl_is_model_name(entry->d_name))
            continue;
        sl_autobuf text = SL_BUF_INIT(SL_SPEC_BYTES_MAX);
        struct sl_err why = SL_ERR_INIT;
        sl_autoclose int fd = open_model(holder, entry->d_name, false, NULL);
        if (fd >= 0 && sl_node_read_own(fd, MODEL_SPEC, &text, &why) == 0)
            call(arg, entry->d_name, sl_buf_string(&text), text.used);
        else if (fd >= 0 && why.kind != SL_E_NOT_FOUND)
            sl_log(SL_LOG_WARN, "the kept spec of '%s' cannot be read: %s", entry->d_name,
                   why.message);
    }
    if (folder && errno)
        sl_log(SL_LOG_WARN, "some kept specs may be missing: '%s' cannot be read: %s",
               holder->folder.path, strerror(errno));
    if (folder)
        closedir(folder);
}

/* ---- the holder ----------------------------------------------------------------------------- */

struct sl_directory_holder *sl_directory_holder_open(const char *path, struct sl_err *err)
{
    SL_AUTO(sl_directory_holder) holder = sl_alloc(sizeof(*holder), err);
    if (!holder)
        return NULL;
    holder->folder.fd = holder->lock_fd = -1;
    pthread_mutex_init(&holder->lock, NULL);
    holder->ops = (struct sl_holder){.name = "directory",
                                     .placement = SL_PLACEMENT(SL_SPACE_HOST),
                                     .keeps_partial = true,
                                     .self = holder,
                                     .load = load,
                                     .measure = sl_load_measure,
                                     .drop = drop,
                                     .where = where};
    if (strlen(path) + 32 + 64 + SL_VERSION_TEXT + 2 >= SL_PUBLISH_PATH_MAX) {
        sl_fail(err, SL_E_USAGE, "the path '%.100s…' is too long", path);
        return NULL;
    }
    if (sl_node_folder_open(path, &holder->folder, err) < 0)
        return NULL;
    holder->lock_fd = sl_node_lock(holder->folder.fd, holder->folder.path, err);
    return holder->lock_fd < 0 ? NULL : sl_steal(&holder);
}

void sl_directory_holder_free(struct sl_directory_holder *holder)
{
    if (!holder)
        return;
    sl_node_folder_release(&holder->folder);
    sl_autoclose_(&holder->lock_fd);
    pthread_mutex_destroy(&holder->lock);
    free(holder);
}

void sl_directory_holder_room(const struct sl_directory_holder *holder, uint64_t *bytes,
                              uint64_t *free_bytes)
{
    struct statvfs status;
    *bytes = *free_bytes = 0;
    if (fstatvfs(holder->folder.fd, &status) < 0)
        return;
    *bytes = (uint64_t)status.f_blocks * status.f_frsize;
    *free_bytes = (uint64_t)status.f_bavail * status.f_frsize;
}

const struct sl_holder *sl_directory_holder_ops(struct sl_directory_holder *holder)
{
    return &holder->ops;
}

const char *sl_directory_holder_path(const struct sl_directory_holder *holder)
{
    return holder->folder.path;
}
