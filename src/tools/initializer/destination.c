/*
 * Names below .sluice/initializer: NUMBER.load and NUMBER.files are folders, NUMBER.mark holds
 * three lines: the hash of the request, the kind, what is cut off names. The lock is that of loads
 * into the directory, .sluice/lock, a file that nobody else can open, there while an initializer
 * works: a flock on the destination itself could be held by whoever may read it.
 *
 * Moving (moving.c) is a rename for each file, so a file is wholly old or wholly new and no byte is
 * copied. Files get mode 0644 or 0755 and folders 0755, as KServe's own initializer leaves them:
 * other users read them, and their owner may remove them.
 */
#include "destination.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "initializer.h"
#include "log.h"
#include "moving.h"
#include "owners.h"
#include "publish.h"
#include "tree.h"

enum { LOCK_POLL_MS = 20, MARK_BYTES_MAX = 2048, FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC };
#define STATE ".sluice"
#define WORK  "initializer"
#define LOCK  "lock"

struct sl_destination {
    char *path;
    int fd;
    int state_fd, work_fd;    /* -1 where there is none */
    int lock_fd;              /* the same if nothing is written */
    struct sl_moving *moving; /* NULL until something is listed */
};

/* ---- the work place ------------------------------------------------------------------------- */

/* -1 with errno. */
static int open_below(int fd, const char *name, bool make)
{
    if (make && mkdirat(fd, name, 0755) < 0 && errno != EEXIST)
        return -1;
    return openat(fd, name, FOLDER | O_NOFOLLOW);
}

/* The same of one of ours; EEXIST: somebody else has made it, maybe a moment ago. */
static int open_ours(int fd, const char *name, bool make)
{
    int own = open_below(fd, name, make);
    if (own < 0 || sl_owners_check_folder(own, name, NULL) == 0)
        return own;
    close(own);
    errno = EEXIST;
    return -1;
}

/* -1 with errno. */
static int open_work(struct sl_destination *destination, bool make)
{
    if (destination->state_fd < 0)
        destination->state_fd = open_ours(destination->fd, STATE, make);
    if (destination->state_fd >= 0 && destination->work_fd < 0)
        destination->work_fd = open_ours(destination->state_fd, WORK, make);
    return destination->work_fd;
}

static void close_places(struct sl_destination *destination)
{
    int *fds[] = {&destination->work_fd, &destination->state_fd};
    for (size_t i = 0; i < SL_COUNT(fds); i++) {
        sl_autoclose_(fds[i]);
        *fds[i] = -1;
    }
}

static int work_fail(struct sl_destination *destination, struct sl_err *err)
{
    return sl_tree_fail(err, errno, "make " STATE "/" WORK " in", destination->path);
}

/* ---- the lock ------------------------------------------------------------------------------- */

/* Who had it may have removed it with its folder while we waited: then it is worth nothing. */
static bool is_lock_alive(const struct sl_destination *destination)
{
    struct stat held, named;
    return destination->lock_fd >= 0 && fstat(destination->lock_fd, &held) == 0 &&
           fstatat(destination->fd, STATE "/" LOCK, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

/* With the folders, unless something is in them that the next run goes on with. */
static void remove_lock(struct sl_destination *destination)
{
    if (!is_lock_alive(destination))
        return;
    (void)unlinkat(destination->state_fd, WORK, AT_REMOVEDIR);
    if (unlinkat(destination->state_fd, LOCK, 0) == 0)
        (void)unlinkat(destination->fd, STATE, AT_REMOVEDIR);
}

/* The folder is ours, and so is what has the name: if it is no lock, it is replaced by one. -1 with
 * errno. */
static int open_lock(int state)
{
    struct stat status;
    for (unsigned tries = 0; tries < 2; tries++) {
        int fd = openat(state, LOCK,
                        O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
        if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink < 2)
            return fd;
        bool other = fd >= 0 || errno == ELOOP || errno == EISDIR || errno == ENXIO;
        sl_autoclose_(&fd);
        if (!other || sl_tree_remove(state, LOCK) < 0)
            return -1;
    }
    errno = EEXIST;
    return -1;
}

/* What somebody else made may hold their work, or their lock: names, marks and links to anywhere.
 */
static int refuse_foreign(struct sl_destination *destination, struct sl_err *err)
{
    static const char below[] = STATE "/" WORK "/x";
    uint32_t owner;
    size_t bytes = sl_owners_foreign_folder(destination->fd, below, &owner);
    if (bytes == 0)
        return 0;
    sl_owners_fail_folder(err, below, bytes, owner);
    return sl_wrap(err, "cannot work in '%s'", destination->path);
}

/* 0: locked, or nobody can write here, or there are no locks. 1: it went away meanwhile. */
static int try_lock(struct sl_destination *destination, bool *warned, struct sl_cancel *cancel,
                    struct sl_err *err)
{
    int work = open_work(destination, true);
    if (work < 0 && errno == EEXIST)
        return refuse_foreign(destination, err) < 0 ? -1 : 1;
    destination->lock_fd = work < 0 ? -1 : open_lock(destination->state_fd);
    if (destination->lock_fd < 0 && errno == ENOENT)
        return 1;
    if (destination->lock_fd < 0)
        return errno == EROFS || errno == EACCES || errno == EPERM ? 0
                                                                   : work_fail(destination, err);
    for (; flock(destination->lock_fd, LOCK_EX | LOCK_NB) < 0; *warned = true) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return 0; /* a network file system without locks: KServe starts one at a time */
        if (!*warned)
            sl_log(SL_LOG_INFO, "another initializer or load holds '%s': waiting for it",
                   destination->path);
        if (sl_sleep_ms(LOCK_POLL_MS, cancel, err) < 0)
            return -1;
    }
    if (!is_lock_alive(destination))
        return 1;
    sl_autoclose_(&destination->work_fd); /* who had the lock may have removed it */
    destination->work_fd = -1;
    return open_work(destination, true) < 0 ? work_fail(destination, err) : 0;
}

static int take_lock(struct sl_destination *destination, struct sl_cancel *cancel,
                     struct sl_err *err)
{
    bool warned = false;
    int done;
    while ((done = try_lock(destination, &warned, cancel, err)) > 0) {
        sl_autoclose_(&destination->lock_fd);
        destination->lock_fd = -1;
        close_places(destination);
        if (sl_cancel_check(cancel, err) < 0)
            return -1;
    }
    return done;
}

bool sl_initializer_is_at_work(const char *path, uint64_t *bytes)
{
    sl_autofree char *name = sl_asprintf(NULL, "%s/" STATE, path);
    sl_autoclose int state = name ? open(name, FOLDER | O_NOFOLLOW) : -1;
    sl_autoclose int work = state < 0 ? -1 : openat(state, WORK, FOLDER | O_NOFOLLOW);
    sl_autoclose int fd =
        work < 0 ? -1 : openat(state, LOCK, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    *bytes = work < 0 ? 0 : sl_tree_bytes(work);
    return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

int sl_initializer_clear(int state_fd, struct sl_err *err)
{
    return sl_tree_remove(state_fd, WORK) < 0 ? sl_tree_fail(err, errno, "remove", STATE "/" WORK)
                                              : 0;
}

/* ---- the directory -------------------------------------------------------------------------- */

void sl_destination_free(struct sl_destination *destination)
{
    if (!destination)
        return;
    sl_moving_free(destination->moving);
    remove_lock(destination);
    close_places(destination);
    sl_autoclose_(&destination->lock_fd);
    sl_autoclose_(&destination->fd);
    free(destination->path);
    free(destination);
}

struct sl_destination *sl_destination_open(const char *path, struct sl_cancel *cancel,
                                           struct sl_err *err)
{
    SL_AUTO(sl_destination) destination = sl_alloc(sizeof(*destination), err);
    if (!destination)
        return NULL;
    destination->fd = destination->state_fd = destination->work_fd = destination->lock_fd = -1;
    destination->path = sl_strdup(path, err);
    if (!destination->path || sl_owners_check_path(path, err) < 0 ||
        sl_publish_make_path(path, err) < 0)
        return NULL;
    destination->fd = open(path, FOLDER);
    if (destination->fd < 0) {
        sl_tree_fail(err, errno, "open directory", path);
        return NULL;
    }
    if (refuse_foreign(destination, err) < 0 || take_lock(destination, cancel, err) < 0)
        return NULL;
    return sl_steal(&destination);
}

bool sl_destination_is(const struct sl_destination *destination, const char *path)
{
    struct stat own, other;
    return fstat(destination->fd, &own) == 0 && stat(path, &other) == 0 &&
           own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

/* ---- what is made ready ---------------------------------------------------------------------- */

static void work_name(char name[32], unsigned number, const char *kind)
{
    snprintf(name, 32, "%u.%s", number, kind);
}

int sl_destination_open_work(struct sl_destination *destination, unsigned number, const char *kind,
                             struct sl_err *err)
{
    char name[32];
    work_name(name, number, kind);
    int work = open_work(destination, true);
    sl_autoclose int fd = work < 0 ? -1 : open_below(work, name, true);
    if (fd < 0)
        return work_fail(destination, err);
    sl_autofree char *path = sl_asprintf(err, "%s/" STATE "/" WORK "/%s", destination->path, name);
    if (!path || sl_owners_check_folder(fd, path, err) < 0)
        return -1;
    int own = fd;
    fd = -1;
    return own;
}

char *sl_destination_work(struct sl_destination *destination, unsigned number, const char *kind,
                          struct sl_err *err)
{
    sl_autoclose int fd = sl_destination_open_work(destination, number, kind, err);
    return fd < 0
               ? NULL
               : sl_asprintf(err, "%s/" STATE "/" WORK "/%u.%s", destination->path, number, kind);
}

int sl_destination_discard(struct sl_destination *destination, unsigned number, const char *kind,
                           struct sl_err *err)
{
    char name[32];
    work_name(name, number, kind);
    int work = open_work(destination, false);
    if (work < 0 && errno == ENOENT)
        return 0;
    return work < 0 || sl_tree_remove(work, name) < 0
               ? sl_tree_fail(err, errno, "clear " STATE "/" WORK " in", destination->path)
               : 0;
}

int sl_destination_spoil(struct sl_destination *destination, unsigned number, struct sl_err *err)
{
    char name[64];
    snprintf(name, sizeof(name), "%u." SL_WORK_LOAD "/" STATE "/ready", number);
    int work = open_work(destination, false);
    if (work < 0 || (unlinkat(work, name, 0) < 0 && errno != ENOENT))
        return sl_tree_fail(err, errno, "withdraw what was loaded in", destination->path);
    return 0;
}

/* Fine if it is missing, or no regular file. */
static bool remove_old(struct sl_destination *destination, const char *file)
{
    const char *leaf;
    struct stat status;
    if (sl_name_check(file, strlen(file), NULL) < 0)
        return false;
    sl_autoclose int parent = sl_tree_parent(destination->fd, file, false, &leaf);
    return parent >= 0 && fstatat(parent, leaf, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(status.st_mode) && sl_tree_unlink(destination->fd, file) == 0;
}

unsigned sl_destination_make_room(struct sl_destination *destination, uint64_t bytes,
                                  const struct sl_choice *choice)
{
    unsigned removed = 0;
    int work = open_work(destination, false);
    if (sl_room_check(destination->path, bytes, work < 0 ? 0 : sl_tree_bytes(work), NULL, NULL) ==
        0)
        return 0;
    for (size_t i = 0; i < choice->objects.count; i++)
        removed += remove_old(destination, sl_choosing_file(choice, choice->objects.items[i].name));
    char files[40];
    if (removed)
        sl_log(SL_LOG_INFO,
               "removed %s of an earlier run from '%s': the new ones would not fit beside what "
               "was there",
               sl_human_count(removed, "file", files), destination->path);
    return removed;
}

int sl_destination_fd(const struct sl_destination *destination)
{
    return destination->fd;
}

/* ---- marks ---------------------------------------------------------------------------------- */

int sl_destination_mark(struct sl_destination *destination, unsigned number,
                        const struct sl_ready *ready, struct sl_err *err)
{
    char name[32], text[MARK_BYTES_MAX];
    work_name(name, number, "mark");
    int length =
        snprintf(text, sizeof(text), "%s\n%s\n%s\n", ready->request, ready->kind, ready->strip);
    int work = open_work(destination, true);
    if (work < 0)
        return work_fail(destination, err);
    return sl_tree_write(work, name, text, (size_t)length, err);
}

/* The next line, cut off; NULL at the end. */
static char *next_line(char **text)
{
    char *line = *text, *end = line ? strchr(line, '\n') : NULL;
    if (!end)
        return NULL;
    *end = 0;
    *text = end + 1;
    return line;
}

bool sl_destination_marked(struct sl_destination *destination, unsigned number, const char *request,
                           struct sl_ready *ready)
{
    char name[32];
    sl_autobuf text = SL_BUF_INIT(MARK_BYTES_MAX);
    work_name(name, number, "mark");
    int work = open_work(destination, false);
    if (work < 0 || sl_tree_read(work, name, &text, NULL) < 0)
        return false;
    char *rest = text.data, *old = next_line(&rest), *kind = next_line(&rest),
         *strip = next_line(&rest);
    if (!strip || strcmp(old, request) != 0 || strlen(strip) >= sizeof(ready->strip) ||
        (strcmp(kind, SL_WORK_LOAD) != 0 && strcmp(kind, SL_WORK_FILES) != 0))
        return false;
    if (request != ready->request)
        snprintf(ready->request, sizeof(ready->request), "%s", request);
    snprintf(ready->kind, sizeof(ready->kind), "%s", kind);
    snprintf(ready->strip, sizeof(ready->strip), "%s", strip);
    return true;
}

void sl_destination_unmark(struct sl_destination *destination, unsigned number)
{
    char name[32];
    work_name(name, number, "mark");
    int work = open_work(destination, false);
    if (work >= 0)
        (void)unlinkat(work, name, 0);
}

/* ---- moving --------------------------------------------------------------------------------- */

/* What was listed is forgotten. */
static int forget(struct sl_destination *destination)
{
    sl_moving_free(destination->moving);
    destination->moving = NULL;
    return -1;
}

static struct sl_moving *moving_of(struct sl_destination *destination, struct sl_err *err)
{
    if (!destination->moving)
        destination->moving = sl_moving_new(destination->fd, destination->path, err);
    return destination->moving;
}

int sl_destination_list(struct sl_destination *destination, unsigned number,
                        const struct sl_ready *ready, struct sl_err *err)
{
    bool files = strcmp(ready->kind, SL_WORK_FILES) == 0; /* an archive's names are no keys */
    struct sl_moving *moving = moving_of(destination, err);
    int from = moving ? sl_destination_open_work(destination, number, ready->kind, err) : -1;
    if (from < 0 || sl_moving_add(moving, from, files ? "" : ready->strip, err) < 0)
        return forget(destination);
    return 0;
}

int sl_destination_judge_alone(struct sl_destination *destination, unsigned number,
                               const struct sl_ready *ready, const struct sl_cancel *cancel,
                               struct sl_err *err)
{
    int done = sl_destination_list(destination, number, ready, err);
    if (done == 0)
        done = sl_destination_judge(destination, cancel, err);
    if (done == 0)
        done = sl_destination_look(destination, err);
    forget(destination);
    return done;
}

int sl_destination_list_link(struct sl_destination *destination, const char *name,
                             struct sl_err *err)
{
    struct sl_moving *moving = moving_of(destination, err);
    return moving && sl_moving_add_local(moving, name, err) == 0 ? 0 : forget(destination);
}

int sl_destination_judge(struct sl_destination *destination, const struct sl_cancel *cancel,
                         struct sl_err *err)
{
    if (destination->moving && sl_moving_judge(destination->moving, cancel, err) < 0)
        return forget(destination);
    return 0;
}

int sl_destination_look(struct sl_destination *destination, struct sl_err *err)
{
    if (destination->moving && sl_moving_look(destination->moving, err) < 0)
        return forget(destination);
    return 0;
}

int sl_destination_move(struct sl_destination *destination, struct sl_err *err)
{
    int done = destination->moving ? sl_moving_carry_out(destination->moving, err) : 0;
    forget(destination);
    return done;
}

int sl_destination_link(struct sl_destination *destination, const char *name, const char *target,
                        struct sl_err *err)
{
    if (symlinkat(target, destination->fd, name) == 0)
        return 0;
    if (errno != EEXIST)
        return sl_tree_fail(err, errno, "link", name);
    sl_log(SL_LOG_INFO, "'%s/%s' is there already and stays", destination->path, name);
    return 0;
}

int sl_destination_clean(struct sl_destination *destination, struct sl_err *err)
{
    sl_autoclose int state = open_below(destination->fd, STATE, false);
    if (state < 0)
        return errno == ENOENT ? 0 : work_fail(destination, err);
    if (sl_tree_remove(state, WORK) < 0)
        return sl_tree_fail(err, errno, "clear " STATE "/" WORK " in", destination->path);
    remove_lock(destination);
    close_places(destination);
    (void)unlinkat(destination->fd, STATE, AT_REMOVEDIR); /* somebody else's state may be there */
    return 0;
}
