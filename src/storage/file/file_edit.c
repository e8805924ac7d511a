/*
 * Who changes a file: its lock, its place, and the choice between the file and a new one.
 *
 * A path is resolved once, to a folder; the file and all that lies beside it are opened below that
 * without following links.
 *
 * The lock is a flock on .NAME.sluice-lock, which is there while somebody edits. Who may read the
 * file and no more cannot open it, so cannot hold it either; a lock on the file itself could be
 * held by every reader. What somebody else put at its name is removed, or the edit is refused where
 * that is not allowed: to go on without a lock would be to let two editors write at once.
 */
#include "file_edit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exact_io.h"
#include "file_journal.h"
#include "hash.h"
#include "log.h"

enum {
    COPY_BYTES = 1 << 20,
    OPEN_TRIES = 5,
};
#define JOURNAL_SUFFIX ".sluice-edit"
#define LOCK_SUFFIX    ".sluice-lock"

struct sl_file_edit {
    struct sl_file_place place;
    struct stat seen; /* when it was opened: programs that know no lock may write, too */
};

/* ---- the place ------------------------------------------------------------------------------- */

/* Does the name still mean what is open? */
static bool is_still(const struct sl_file_place *place, const char *name, int fd)
{
    struct stat named, opened;
    return fstatat(place->folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino &&
           named.st_dev == opened.st_dev;
}

static void release_place(struct sl_file_place *place)
{
    if (place->lock_fd >= 0 && place->locked_by == getpid() &&
        is_still(place, place->lock, place->lock_fd))
        unlinkat(place->folder, place->lock, 0); /* before others can have it */
    sl_autoclose_(&place->lock_fd);
    sl_autoclose_(&place->folder);
    sl_autoclose_(&place->fd);
    free(place->path);
    free(place->journal);
    free(place->fresh);
    free(place->lock);
}

/* The same for all who edit it. A long name is cut; two that share a lock wait for each other. */
static char *lock_name(const char *name, struct sl_err *err)
{
    size_t bytes = strlen(name);
    if (bytes + strlen("." LOCK_SUFFIX) <= NAME_MAX)
        return sl_asprintf(err, ".%s" LOCK_SUFFIX, name);
    return sl_asprintf(err, ".%.200s.%08" PRIx32 LOCK_SUFFIX, name, sl_crc32c(0, name, bytes));
}

/* Its folder and names; nothing else is opened. path is absolute. */
static int open_place(struct sl_file_place *place, const char *path, struct sl_err *err)
{
    *place = (struct sl_file_place){.folder = -1, .fd = -1, .lock_fd = -1};
    if (!(place->path = sl_strdup(path, err)))
        return -1;
    char *slash = strrchr(place->path, '/');
    place->name = slash + 1;
    place->journal = sl_asprintf(err, ".%s" JOURNAL_SUFFIX, place->name);
    place->fresh =
        place->journal ? sl_asprintf(err, ".%s" SL_FILE_FRESH_SUFFIX, place->name) : NULL;
    place->lock = place->fresh ? lock_name(place->name, err) : NULL;
    if (!place->lock)
        return -1;
    *slash = 0;
    const char *folder = slash == place->path ? "/" : place->path;
    place->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (place->folder < 0 && errno == EACCES) /* one that may be entered, not listed */
        place->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    *slash = '/';
    return place->folder < 0 ? sl_file_edit_fail(place, errno, err) : 0;
}

/* ---- the lock -------------------------------------------------------------------------------- */

static int fail_open(const char *path, int number, struct sl_err *err)
{
    enum sl_err_kind kind = number == ENOENT || number == ENOTDIR ? SL_E_NOT_FOUND
                            : number == EACCES || number == EPERM || number == EROFS ? SL_E_AUTH
                            : number == EISDIR                                       ? SL_E_USAGE
                                               : SL_E_NO_SPACE;
    return sl_fail_errno(err, kind, number, "cannot open '%s' to change it", path);
}

static int fail_busy(const struct sl_file_place *place, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_USAGE, "busy",
                        "'%s' is being changed by another program: try again when that has ended",
                        place->path);
}

/* Could an editor of this file have made it? Who may write to the file is trusted with its lock,
 * and so is root, who may not be able to give it away. Of the file's group is who can give the lock
 * to it, which an editor has done before the lock has its name. */
static bool may_be_an_editors(const struct stat *lock, const struct stat *file)
{
    bool of_group = file->st_mode & 0020 && lock->st_gid == file->st_gid;
    bool near = lock->st_uid == file->st_uid || lock->st_uid == geteuid() || lock->st_uid == 0 ||
                of_group || file->st_mode & 0002;
    return S_ISREG(lock->st_mode) && lock->st_nlink == 1 && near;
}

/* Something is there that is no lock, or that cannot be opened: 0 if it is gone now. */
static int clear_lock(const struct sl_file_place *place, const struct stat *file, int number,
                      struct sl_err *err)
{
    struct stat there;
    if (fstatat(place->folder, place->lock, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT && number == 0 ? 0 : fail_open(place->path, number, err);
    if (number && may_be_an_editors(&there, file)) /* we cannot open it; or it has a lease */
        return sl_fail_code(err, SL_E_USAGE, "busy",
                            "'%s' is being changed by user %u, or was: try again when that has "
                            "ended; if no program is at it, have '%s' beside it removed",
                            place->path, there.st_uid, place->lock);
    if (!sl_file_place_clear(place, place->lock))
        return sl_fail(err, SL_E_AUTH,
                       "cannot lock '%s': '%s' beside it belongs to user %u, and cannot be removed "
                       "from here: have it removed, or change a copy of the file elsewhere",
                       place->path, place->lock, there.st_uid);
    sl_log(SL_LOG_WARN,
           "'%s' beside '%s' was put out of the way: it is not a lock of an editor of this file",
           place->lock, place->path);
    return 0;
}

/* Those may open it who may write the file. */
static void set_lock_rights(int fd, const struct stat *file)
{
    mode_t others = file->st_mode & 0022;
    (void)fchmod(fd, 0600 | others | others << 1);
    if (fchown(fd, file->st_uid, file->st_gid) < 0 && fchown(fd, (uid_t)-1, file->st_gid) < 0)
        (void)fchmod(fd, 0600);
}

/* It has its rights, and is held, before it has its name; -1 with errno. */
static int make_lock(const struct sl_file_place *place, const struct stat *file)
{
    char name[NAME_MAX + 1];
    enum { NEW = O_RDWR | O_CREAT | O_EXCL | SL_FILE_QUIET };
    sl_autoclose int fd =
        sl_file_fresh_name(place, name) < 0 ? -1 : openat(place->folder, name, NEW, 0600);
    if (fd < 0)
        return -1;
    set_lock_rights(fd, file);
    bool named = flock(fd, LOCK_EX | LOCK_NB) == 0 &&
                 renameat2(place->folder, name, place->folder, place->lock, RENAME_NOREPLACE) == 0;
    int number = errno, made = named ? fd : -1;
    if (named) {
        fd = -1;
        return made;
    }
    unlinkat(place->folder, name, 0);
    if (number == EINVAL || number == ENOSYS) { /* NFS, and others that cannot do that */
        made = openat(place->folder, place->lock, NEW, 0600);
        number = errno;
        if (made >= 0)
            set_lock_rights(made, file);
    }
    errno = number;
    return made;
}

/* 0: locked. 1: the name means another file by now, or something was removed: again. */
static int try_lock(struct sl_file_place *place, const struct stat *file, struct sl_err *err)
{
    struct stat lock;
    sl_autoclose int fd = openat(place->folder, place->lock, O_RDWR | SL_FILE_QUIET);
    if (fd < 0 && errno == ENOENT)
        fd = make_lock(place, file);
    if (fd < 0 && (errno == EINTR || errno == EEXIST))
        return 1;
    if (fd < 0)
        return clear_lock(place, file, errno, err) < 0 ? -1 : 1;
    if (fstat(fd, &lock) < 0)
        return fail_open(place->path, errno, err);
    if (!may_be_an_editors(&lock, file))
        return clear_lock(place, file, 0, err) < 0 ? -1 : 1;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? fail_busy(place, err) : fail_open(place->path, errno, err);
    if (!is_still(place, place->lock, fd))
        return 1;
    place->lock_fd = fd;
    place->locked_by = getpid();
    fd = -1;
    return 0;
}

static int lock(struct sl_file_place *place, struct sl_err *err)
{
    struct stat file;
    int done = 1;
    if (fstatat(place->folder, place->name, &file, AT_SYMLINK_NOFOLLOW) < 0)
        return fail_open(place->path, errno, err);
    if (S_ISDIR(file.st_mode))
        return fail_open(place->path, EISDIR, err);
    if (!S_ISREG(file.st_mode))
        return sl_fail(err, SL_E_USAGE, "'%s' is not a file: only files are changed", place->path);
    for (int tries = 0; done > 0 && tries < OPEN_TRIES; tries++)
        done = try_lock(place, &file, err);
    return done > 0 ? fail_busy(place, err) : done;
}

static int open_file(struct sl_file_edit *edit, struct sl_err *err)
{
    struct sl_file_place *place = &edit->place;
    place->fd = openat(place->folder, place->name, O_RDWR | SL_FILE_QUIET);
    if (place->fd < 0 || fstat(place->fd, &edit->seen) < 0)
        return fail_open(place->path, errno, err);
    if (!S_ISREG(edit->seen.st_mode))
        return sl_fail(err, SL_E_USAGE, "'%s' is not a file: only files are changed", place->path);
    if (sl_file_journal_complete(place, err) < 0)
        return -1;
    return fstat(place->fd, &edit->seen) < 0 ? fail_open(place->path, errno, err) : 0;
}

int sl_file_edit_open(const char *given, struct sl_file_edit **out, struct sl_err *err)
{
    sl_autofree char *path = realpath(given, NULL);
    if (!path)
        return fail_open(given, errno, err);
    SL_AUTO(sl_file_edit) edit = sl_alloc(sizeof(*edit), err);
    if (!edit)
        return -1;
    if (open_place(&edit->place, path, err) < 0 || lock(&edit->place, err) < 0 ||
        open_file(edit, err) < 0)
        return -1;
    *out = sl_steal(&edit);
    return 0;
}

void sl_file_edit_free(struct sl_file_edit *edit)
{
    if (edit)
        release_place(&edit->place);
    free(edit);
}

const char *sl_file_edit_path(const struct sl_file_edit *edit)
{
    return edit->place.path;
}

/* ---- a new file ------------------------------------------------------------------------------ */

/* By the kernel where it can, which shares blocks where the file system can. */
static int copy_part(int from, uint64_t at, int to, uint64_t bytes, uint8_t *buffer)
{
    loff_t offset = (loff_t)at;
    while (bytes) {
        ssize_t copied = copy_file_range(from, &offset, to, NULL, bytes, 0);
        if (copied <= 0) {
            size_t some = SL_MIN(bytes, (uint64_t)COPY_BYTES);
            if (sl_read_at(from, buffer, some, (uint64_t)offset) < 0 ||
                sl_write_all(to, buffer, some) < 0)
                return -1;
            copied = (ssize_t)some;
            offset += copied;
        }
        bytes -= (uint64_t)copied;
    }
    return 0;
}

static int write_pieces(const struct sl_file_place *place, const struct sl_file_content *content,
                        int fd, struct sl_err *err)
{
    sl_autofree uint8_t *buffer = sl_alloc(COPY_BYTES, err);
    if (!buffer)
        return -1;
    for (size_t i = 0; i < content->count; i++) {
        const struct sl_file_piece *piece = &content->pieces[i];
        int done = piece->data ? sl_write_all(fd, piece->data, piece->bytes)
                               : copy_part(place->fd, piece->from, fd, piece->bytes, buffer);
        if (done < 0)
            return sl_file_edit_fail(place, errno, err);
    }
    return 0;
}

static int write_new(struct sl_file_place *place, const struct sl_file_content *content,
                     struct sl_err *err)
{
    struct stat info;
    sl_autoclose int fd = sl_file_edit_create(place, err);
    if (fd < 0)
        return -1;
    int done = fstat(place->fd, &info);
    if (done == 0)
        done = fchmod(fd, info.st_mode & 0777);
    if (done < 0)
        sl_file_edit_fail(place, errno, err);
    else
        done = write_pieces(place, content, fd, err);
    if (done < 0) {
        unlinkat(place->folder, place->fresh, 0);
        return -1;
    }
    return sl_file_edit_name(place, fd, place->name, err);
}

/* Nothing that stays moves. */
static bool in_place(const struct sl_file_content *content)
{
    uint64_t at = 0;
    for (size_t i = 0; i < content->count; i++) {
        const struct sl_file_piece *piece = &content->pieces[i];
        if (!piece->data && piece->bytes && piece->from != at)
            return false;
        at += piece->bytes;
    }
    return !content->copy;
}

static int check_unchanged(const struct sl_file_edit *edit, struct sl_err *err)
{
    struct stat now;
    if (fstat(edit->place.fd, &now) == 0 && now.st_size == edit->seen.st_size &&
        now.st_ctim.tv_sec == edit->seen.st_ctim.tv_sec &&
        now.st_ctim.tv_nsec == edit->seen.st_ctim.tv_nsec &&
        is_still(&edit->place, edit->place.name, edit->place.fd))
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "changed",
                        "'%s' was written to by another program at the same time: start again",
                        edit->place.path);
}

int sl_file_edit_commit(struct sl_file_edit *edit, const struct sl_file_content *content,
                        struct sl_err *err)
{
    if (check_unchanged(edit, err) < 0)
        return -1;
    int done = in_place(content) ? sl_file_journal_run(&edit->place, content, err) : 1;
    return done > 0 ? write_new(&edit->place, content, err) : done;
}

/* ---- readers --------------------------------------------------------------------------------- */

int sl_file_edit_check(int fd, struct sl_err *err)
{
    char self[32], path[PATH_MAX], journal[PATH_MAX + 32];
    struct stat there;
    struct sl_file_place place;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(self, path, sizeof(path) - 1);
    if (bytes <= 0 || path[0] != '/')
        return 0; /* no /proc: nobody can tell */
    path[bytes] = 0;
    const char *name = strrchr(path, '/') + 1;
    snprintf(journal, sizeof(journal), "%.*s.%s" JOURNAL_SUFFIX, (int)(name - path), path, name);
    if (fstatat(AT_FDCWD, journal, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    struct sl_err why = SL_ERR_INIT;
    bool opened = open_place(&place, path, &why) == 0, half = false;
    place.fd = fd;
    if (opened && is_still(&place, place.name, fd))
        half = sl_file_journal_is_half(&place);
    place.fd = -1; /* the caller's */
    release_place(&place);
    if (!opened && why.kind == SL_E_NO_SPACE) { /* of memory or descriptors: nobody knows */
        *err = why;
        return -1;
    }
    if (!half)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "changed",
                        "'%s' is between two contents: an edit is running, or was interrupted: try "
                        "again, and if this persists let its owner run 'sluice inspect "
                        "--complete-edit' on it",
                        path);
}
