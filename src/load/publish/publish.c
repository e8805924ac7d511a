/*
 * The directory of a model. PATH itself may be a mount or a link that the operator made; below it
 * no link is followed. The lock is a flock on .sluice/lock: it goes away with the process that
 * holds it, however that ends. All names in .sluice are ours, and the file names of a model can not
 * reach it (sl_name_check).
 *
 * Others may lock what they can read, and a lease lets them hold up who opens it. So a directory of
 * one process alone has no lock, and a file beside it says what is whole.
 */
#include "publish.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "entries.h"
#include "log.h"
#include "owners.h"
#include "publish_parts.h"

#define VANISHED "vanished"
enum { LOCK_POLL_MS = 20, VANISHED_MAX = 100, FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC };

/* Besides the lock: of a model, of a load that can go on, of somebody else. */
static bool holds_something(const struct sl_publish *publish)
{
    bool more = false;
    int fd = openat(publish->state_fd, ".", FOLDER);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        if (fd >= 0)
            close(fd);
        return true;
    }
    for (struct dirent *entry; !more && (entry = sl_next_entry(folder));)
        more = strcmp(entry->d_name, "lock") != 0;
    more = more || errno;
    closedir(folder);
    return more;
}

/*
 * What was made for a load that brought nothing goes with it. The lock is held meanwhile: whoever
 * waits for it finds that its file is gone, and makes everything anew.
 */
static void remove_traces(struct sl_publish *publish)
{
    bool mine = publish->locked || publish->beside_fd >= 0;
    if (!publish->made_state || !mine || holds_something(publish) ||
        (unlinkat(publish->state_fd, "lock", 0) < 0 && errno != ENOENT) ||
        unlinkat(publish->root_fd, SL_STATE_DIRECTORY, AT_REMOVEDIR) < 0)
        return;
    for (size_t end = strlen(publish->path); publish->made_from && end >= publish->made_from;) {
        publish->path[end] = 0;
        if (rmdir(publish->path) < 0 && errno != ENOENT) /* named twice: "a/", "a" */
            return;
        while (end && publish->path[end] != '/')
            end--;
        while (end && publish->path[end - 1] == '/')
            end--;
    }
}

void sl_publish_free(struct sl_publish *publish)
{
    if (!publish)
        return;
    remove_traces(publish);
    sl_autoclose_(&publish->staging_fd);
    sl_autoclose_(&publish->state_fd);
    sl_autoclose_(&publish->root_fd);
    sl_autoclose_(&publish->beside_fd);
    sl_autoclose_(&publish->lock_fd); /* last: what follows the lock finds everything closed */
    free(publish->path);
    free(publish);
}

/* As sl_tree_fail, of what was there, or made, a moment ago. */
static int fail_opening(struct sl_err *err, int number, const char *doing, const char *name)
{
    sl_tree_fail(err, number, doing, name);
    if (err && number == ENOENT)
        snprintf(err->code, sizeof(err->code), "%s", VANISHED);
    return -1;
}

/* A path that leads through a file, or to one. */
static int fail_not_directory(const char *path, struct sl_err *err)
{
    struct stat status;
    bool itself = stat(path, &status) == 0;
    return sl_fail(err, SL_E_USAGE,
                   itself ? "'%s' is not a directory: choose a directory to load into"
                          : "'%s' lies below something that is not a directory: choose another one",
                   path);
}

/* Links among the parents are the operator's. */
static int make_path(const char *path, size_t *made_from, struct sl_err *err)
{
    sl_autofree char *text = sl_strdup(path, err);
    if (!text)
        return -1;
    for (char *slash = text + 1; *text; slash++) {
        char kept = *slash;
        if (kept && kept != '/')
            continue;
        *slash = 0;
        int made = mkdir(text, 0755);
        size_t end = (size_t)(slash - text);
        if (made == 0 && (!*made_from || end < *made_from))
            *made_from = end;
        if (made < 0 && errno != EEXIST && errno != EISDIR) {
            int number = errno;
            struct stat status;
            if (stat(text, &status) < 0)
                return number == ENOTDIR ? fail_not_directory(path, err)
                                         : fail_opening(err, number, "make directory", text);
        }
        if (!kept)
            break;
        *slash = kept;
    }
    return 0;
}

int sl_publish_make_path(const char *path, struct sl_err *err)
{
    size_t made_from = 0;
    return make_path(path, &made_from, err);
}

/* What `--to "$DIR/"` means while DIR is not set: the model's files would lie among the system's.
 */
static int fail_root(const char *path, struct sl_err *err)
{
    return sl_fail(err, SL_E_USAGE, "'%s' is the root directory: give the model one of its own",
                   path);
}

static int refuse_root(const struct sl_publish *publish, struct sl_err *err)
{
    struct stat own, root;
    if (fstat(publish->root_fd, &own) < 0 || stat("/", &root) < 0 || own.st_dev != root.st_dev ||
        own.st_ino != root.st_ino)
        return 0;
    return fail_root(publish->path, err);
}

/* The same for a path that does not exist yet, by its text, before any folder of it is made. */
static int refuse_written_root(const char *path, struct sl_err *err)
{
    struct stat status;
    size_t depth = 0;
    if (*path != '/' || stat(path, &status) == 0)
        return 0;
    for (const char *at = path; *at;) {
        at += strspn(at, "/");
        size_t bytes = strcspn(at, "/");
        if (bytes == 2 && memcmp(at, "..", 2) == 0)
            depth -= depth > 0;
        else
            depth += bytes > 0 && !(bytes == 1 && *at == '.');
        at += bytes;
    }
    return depth ? 0 : fail_root(path, err);
}

/* The system's own root is refused. */
static int open_root(struct sl_publish *publish, struct sl_err *err)
{
    publish->root_fd = open(publish->path, FOLDER);
    if (publish->root_fd < 0)
        return errno == ENOTDIR ? fail_not_directory(publish->path, err)
                                : fail_opening(err, errno, "open directory", publish->path);
    return refuse_root(publish, err);
}

static int open_state(struct sl_publish *publish, struct sl_err *err)
{
    if (open_root(publish, err) < 0)
        return -1;
    bool made = mkdirat(publish->root_fd, SL_STATE_DIRECTORY, 0755) == 0;
    publish->made_state = publish->made_state || made;
    if (!made && errno != EEXIST)
        return fail_opening(err, errno, "make " SL_STATE_DIRECTORY " in", publish->path);
    publish->state_fd = openat(publish->root_fd, SL_STATE_DIRECTORY, FOLDER | O_NOFOLLOW);
    if (publish->state_fd < 0)
        return fail_opening(err, errno, "open " SL_STATE_DIRECTORY " in", publish->path);
    if (!made && sl_publish_check_own(publish, publish->state_fd, "", err) < 0)
        return -1;
    struct stat status;
    if (made && fstat(publish->state_fd, &status) == 0) /* whatever the umask is */
        (void)fchmod(publish->state_fd, 0755 | (status.st_mode & S_ISGID));
    return 0;
}

/* The lock file may have been deleted with its folder while we waited: then the lock is worth
 * nothing. */
static bool is_lock_alive(const struct sl_publish *publish)
{
    struct stat held, named;
    char name[SL_PUBLISH_PATH_MAX + 32];
    snprintf(name, sizeof(name), "%s/" SL_STATE_DIRECTORY "/lock", publish->path);
    return fstat(publish->lock_fd, &held) == 0 && lstat(name, &named) == 0 &&
           held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

/* Network file systems may have no locks, or grant them to everybody, as Lustre does where it is
 * mounted without flock. Two loads at once are then found out by what they do to each other. */
static void warn_without_locks(const struct sl_publish *publish)
{
    sl_autoclose int other_fd =
        openat(publish->state_fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (other_fd >= 0 && (flock(other_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK))
        sl_log(SL_LOG_WARN,
               "locks have no effect on the file system of '%s': let one load at a time write "
               "there, since two at once end with an error",
               publish->path);
}

static bool has_no_locks(int code)
{
    return code == ENOSYS || code == EOPNOTSUPP || code == ENOLCK;
}

static int take_lock(struct sl_publish *publish, struct sl_cancel *cancel,
                     void (**waiting)(void *arg), void *arg, struct sl_err *err)
{
    publish->lock_fd = openat(publish->state_fd, "lock",
                              O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (publish->lock_fd < 0)
        return fail_opening(err, errno, "open the lock of", publish->path);
    if (sl_owners_check_file(publish->state_fd, publish->lock_fd, SL_STATE_DIRECTORY "/lock", err) <
        0)
        return sl_wrap(err, "'%s'", publish->path);
    while (flock(publish->lock_fd, LOCK_EX | LOCK_NB) < 0 && !has_no_locks(errno)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return sl_tree_fail(err, errno, "lock", publish->path);
        if (*waiting) {
            (*waiting)(arg);
            *waiting = NULL;
        }
        if (sl_sleep_ms(LOCK_POLL_MS, cancel, err) < 0)
            return -1;
    }
    publish->locked = true;
    warn_without_locks(publish);
    return 0;
}

static void close_all(struct sl_publish *publish)
{
    int *fds[] = {&publish->state_fd, &publish->root_fd, &publish->lock_fd};
    for (size_t i = 0; i < SL_COUNT(fds); i++) {
        sl_autoclose_(fds[i]);
        *fds[i] = -1;
    }
}

/* Another load, which brought nothing, may take its folders away at any step. */
static int open_locked(struct sl_publish *publish, struct sl_cancel *cancel,
                       void (**waiting)(void *arg), void *arg, struct sl_err *err)
{
    return refuse_written_root(publish->path, err) < 0 ||
                   make_path(publish->path, &publish->made_from, err) < 0 ||
                   open_state(publish, err) < 0 || take_lock(publish, cancel, waiting, arg, err) < 0
               ? -1
               : 0;
}

static struct sl_publish *new_publish(const char *path, struct sl_cancel *cancel,
                                      struct sl_err *err)
{
    SL_AUTO(sl_publish) publish = sl_alloc(sizeof(*publish), err);
    if (!publish)
        return NULL;
    publish->root_fd = publish->state_fd = publish->lock_fd = -1;
    publish->staging_fd = publish->beside_fd = -1;
    if (!*path || strlen(path) >= SL_PUBLISH_PATH_MAX) {
        sl_fail(err, SL_E_USAGE, "'%s' is not a path of a directory", path);
        return NULL;
    }
    publish->cancel = cancel;
    publish->path = sl_strdup(path, err);
    return publish->path ? sl_steal(&publish) : NULL;
}

static int finish_earlier(struct sl_publish *publish, struct sl_err *err)
{
    if (sl_commit_finish(publish, err) == 0)
        return 0;
    return sl_wrap(err, "cannot complete what an earlier load began to publish in '%s'",
                   publish->path);
}

struct sl_publish *sl_publish_open(const char *path, struct sl_cancel *cancel,
                                   void (*waiting)(void *arg), void *arg, struct sl_err *err)
{
    SL_AUTO(sl_publish) publish = new_publish(path, cancel, err);
    if (!publish)
        return NULL;
    for (unsigned vanished = 0;;) {
        struct sl_err why = SL_ERR_INIT;
        close_all(publish);
        int done = open_locked(publish, cancel, &waiting, arg, &why);
        if (done == 0 && is_lock_alive(publish))
            break;
        publish->locked = false;
        if (done < 0 && (strcmp(why.code, VANISHED) != 0 || ++vanished == VANISHED_MAX)) {
            if (err)
                *err = why;
            return NULL;
        }
    }
    return finish_earlier(publish, err) < 0 ? NULL : sl_steal(&publish);
}

static int look_into(struct sl_publish *publish, struct sl_err *err)
{
    publish->root_fd = open(publish->path, FOLDER);
    if (publish->root_fd >= 0)
        publish->state_fd = openat(publish->root_fd, SL_STATE_DIRECTORY, FOLDER | O_NOFOLLOW);
    if (publish->state_fd >= 0)
        return 0;
    return sl_fail_errno(err, errno == ENOENT ? SL_E_NOT_FOUND : SL_E_NO_SPACE, errno,
                         "'%s' holds no published model", publish->path);
}

struct sl_publish *sl_publish_open_own(const char *path, bool look, struct sl_cancel *cancel,
                                       struct sl_err *err)
{
    SL_AUTO(sl_publish) publish = new_publish(path, cancel, err);
    if (!publish || (look ? look_into(publish, err) : open_state(publish, err)) < 0)
        return NULL;
    publish->beside_fd = openat(publish->root_fd, "..", FOLDER);
    if (publish->beside_fd < 0) {
        sl_tree_fail(err, errno, "open the folder of", path);
        return NULL;
    }
    const char *slash = strrchr(path, '/');
    snprintf(publish->beside, sizeof(publish->beside), "%s" SL_WHOLE, slash ? slash + 1 : path);
    if (look)
        return sl_steal(&publish);
    unlinkat(publish->state_fd, "lock", 0); /* of an earlier version: readers could take it */
    return finish_earlier(publish, err) < 0 ? NULL : sl_steal(&publish);
}

/* What a load would find there first. */
static int look_at_place(struct sl_publish *publish, struct sl_err *err)
{
    struct stat status;
    if (stat(publish->path, &status) < 0 && errno == ENOENT)
        return refuse_written_root(publish->path, err);
    if (open_root(publish, err) < 0)
        return -1;
    publish->state_fd = openat(publish->root_fd, SL_STATE_DIRECTORY, FOLDER | O_NOFOLLOW);
    if (publish->state_fd >= 0)
        return sl_publish_check_own(publish, publish->state_fd, "", err);
    return errno == ENOENT
               ? 0
               : fail_opening(err, errno, "open " SL_STATE_DIRECTORY " in", publish->path);
}

int sl_publish_would_take(const char *path, const struct sl_plan *plan, struct sl_err *err)
{
    SL_AUTO(sl_publish) publish = new_publish(path, NULL, err);
    if (!publish || look_at_place(publish, err) < 0)
        return -1;
    return publish->root_fd < 0 ? 0 : sl_publish_look_ahead(publish, plan, err);
}

static int give_file(int root_fd, const char *name, uint32_t owner, uint32_t group,
                     struct sl_err *err)
{
    const char *leaf;
    struct stat status;
    sl_autoclose int folder = sl_tree_parent(root_fd, name, false, &leaf);
    if (folder < 0 || fstatat(folder, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return sl_tree_fail(err, errno, "look at", name);
    if ((owner == UINT32_MAX || status.st_uid == owner) &&
        (group == UINT32_MAX || status.st_gid == group))
        return 0;
    sl_autoclose int fd = openat(folder, leaf, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return sl_tree_fail(err, errno, "open", name);
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_nlink > 1)
        return sl_fail(err, SL_E_NO_SPACE,
                       "cannot give away '%s': it is a hard link, so that another file would go "
                       "with it: remove it and load again",
                       name);
    if (fchown(fd, owner, group) < 0)
        return sl_tree_fail(err, errno, "give away", name);
    sl_tree_seal(root_fd, name);
    return 0;
}

int sl_publish_give(struct sl_publish *publish, const struct sl_plan *plan, uint32_t owner,
                    uint32_t group, struct sl_err *err)
{
    bool any = owner != UINT32_MAX || group != UINT32_MAX;
    for (size_t i = 0; any && i < plan->file_count; i++)
        if (give_file(publish->root_fd, plan->files[i].name, owner, group, err) < 0)
            return -1;
    return 0;
}

int sl_publish_state(const struct sl_publish *publish)
{
    return publish->state_fd;
}

uint64_t sl_publish_published_bytes(const struct sl_publish *publish)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published old = {0};
    uint64_t bytes = 0;
    if (sl_published_old(publish, &old))
        for (size_t i = 0; i < old.count; i++)
            bytes = sl_add_capped(bytes, old.files[i].bytes);
    return bytes;
}

int sl_publish_withdraw(struct sl_publish *publish, struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published old = {0};
    if (sl_tree_remove(publish->state_fd, SL_READY) < 0)
        return sl_tree_fail(err, errno, "withdraw the old version in", publish->path);
    if (!sl_published_old(publish, &old))
        return 0;
    for (size_t i = 0; i < old.count; i++)
        if (sl_tree_unlink(publish->root_fd, old.files[i].name) < 0)
            return sl_tree_fail(err, errno, "remove", old.files[i].name);
    if (sl_tree_remove(publish->state_fd, SL_MANIFEST) < 0)
        return sl_tree_fail(err, errno, "withdraw the old version in", publish->path);
    return 0;
}

int sl_publish_remove(struct sl_publish *publish, struct sl_err *err)
{
    if (sl_publish_withdraw(publish, err) < 0 || sl_publish_discard(publish, false, err) < 0)
        return -1;
    publish->made_state = true; /* its free takes the rest */
    publish->made_from = strlen(publish->path);
    return 0;
}
