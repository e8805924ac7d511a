/* Who changes a file: its lock, its place, and the choice between the file and a new one. */
#include "file_edit.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exact_io.h"
#include "file_journal.h"

enum { COPY_BYTES = 1 << 20, OPEN_TRIES = 5 };
#define JOURNAL_SUFFIX ".sluice-edit"
#define FRESH_SUFFIX   ".sluice-new"

struct sl_file_edit {
    struct sl_file_place place;
    struct stat seen; /* when it was opened: programs that know no lock may write, too */
};

static bool ends_with(const char *name, const char *end)
{
    size_t a = strlen(name), b = strlen(end);
    return a > b && strcmp(name + a - b, end) == 0;
}

bool sl_file_edit_is_own(const char *name)
{
    return name[0] == '.' && (ends_with(name, JOURNAL_SUFFIX) || ends_with(name, FRESH_SUFFIX));
}

/* ---- the place ------------------------------------------------------------------------------- */

int sl_file_edit_fail(const struct sl_file_place *place, int number, struct sl_err *err)
{
    bool refused = number == EACCES || number == EPERM || number == EROFS;
    return sl_fail_errno(err, refused ? SL_E_AUTH : SL_E_NO_SPACE, number, "cannot change '%s'",
                         place->path);
}

void sl_file_place_release(struct sl_file_place *place)
{
    sl_autoclose_(&place->folder);
    sl_autoclose_(&place->fd); /* and the lock */
    free(place->path);
    free(place->journal);
    free(place->fresh);
}

int sl_file_place_open(struct sl_file_place *place, const char *path, int fd, struct sl_err *err)
{
    *place = (struct sl_file_place){.folder = -1, .fd = fd};
    if (!(place->path = sl_strdup(path, err)))
        return -1;
    char *slash = strrchr(place->path, '/');
    place->name = slash + 1;
    place->journal = sl_asprintf(err, ".%s" JOURNAL_SUFFIX, place->name);
    place->fresh = place->journal ? sl_asprintf(err, ".%s" FRESH_SUFFIX, place->name) : NULL;
    if (!place->fresh)
        return -1;
    *slash = 0;
    place->folder =
        open(slash == place->path ? "/" : place->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *slash = '/';
    return place->folder < 0 ? sl_file_edit_fail(place, errno, err) : 0;
}

int sl_file_edit_create(const struct sl_file_place *place, unsigned mode, struct sl_err *err)
{
    unlinkat(place->folder, place->fresh, 0); /* of an editor that was killed */
    int fd = openat(place->folder, place->fresh, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    mode);
    return fd < 0 ? sl_file_edit_fail(place, errno, err) : fd;
}

int sl_file_edit_name(const struct sl_file_place *place, int fd, const char *name,
                      struct sl_err *err)
{
    if ((fsync(fd) < 0 && errno != EINVAL) ||
        renameat(place->folder, place->fresh, place->folder, name) < 0) {
        sl_file_edit_fail(place, errno, err);
        unlinkat(place->folder, place->fresh, 0);
        return -1;
    }
    fsync(place->folder); /* where it can be */
    return 0;
}

/* ---- the lock -------------------------------------------------------------------------------- */

static bool is_still(const char *path, int fd)
{
    struct stat named, opened;
    return stat(path, &named) == 0 && fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino &&
           named.st_dev == opened.st_dev;
}

static int fail_open(const char *path, int number, struct sl_err *err)
{
    enum sl_err_kind kind = number == ENOENT || number == ENOTDIR ? SL_E_NOT_FOUND
                            : number == EACCES || number == EPERM || number == EROFS ? SL_E_AUTH
                            : number == EISDIR                                       ? SL_E_USAGE
                                               : SL_E_NO_SPACE;
    return sl_fail_errno(err, kind, number, "cannot open '%s' to change it", path);
}

/* A descriptor that holds the lock; or -1. */
static int lock(const char *path, struct sl_err *err)
{
    for (int tries = 0; tries < OPEN_TRIES; tries++) {
        struct stat info;
        int fd = open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (fd < 0)
            return fail_open(path, errno, err);
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
        int number = errno;
        if (locked && fstat(fd, &info) == 0 && !S_ISREG(info.st_mode)) {
            close(fd);
            return sl_fail(err, SL_E_USAGE, "'%s' is not a file: only files are changed", path);
        }
        if (locked && is_still(path, fd))
            return fd;
        close(fd); /* else an editor before has put another file there */
        if (!locked && number != EWOULDBLOCK)
            return fail_open(path, number, err);
        if (!locked)
            break;
    }
    return sl_fail_code(err, SL_E_USAGE, "busy",
                        "'%s' is being changed by another program: try again when that has ended",
                        path);
}

int sl_file_edit_open(const char *given, struct sl_file_edit **out, struct sl_err *err)
{
    sl_autofree char *path = realpath(given, NULL);
    if (!path)
        return fail_open(given, errno, err);
    int fd = lock(path, err);
    if (fd < 0)
        return -1;
    SL_AUTO(sl_file_edit) edit = sl_alloc(sizeof(*edit), err);
    if (!edit) {
        close(fd);
        return -1;
    }
    if (sl_file_place_open(&edit->place, path, fd, err) < 0 ||
        sl_file_journal_complete(&edit->place, err) < 0)
        return -1;
    if (fstat(fd, &edit->seen) < 0)
        return fail_open(path, errno, err);
    *out = sl_steal(&edit);
    return 0;
}

void sl_file_edit_free(struct sl_file_edit *edit)
{
    if (edit)
        sl_file_place_release(&edit->place);
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

static int write_new(const struct sl_file_place *place, const struct sl_file_content *content,
                     struct sl_err *err)
{
    struct stat info;
    sl_autoclose int fd = sl_file_edit_create(place, 0600, err);
    if (fd < 0)
        return -1;
    int done = fstat(place->fd, &info);
    if (done == 0 && fchown(fd, info.st_uid, info.st_gid) < 0 && errno != EPERM)
        done = -1;
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
        is_still(edit->place.path, edit->place.fd))
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
    return in_place(content) ? sl_file_journal_run(&edit->place, content, err)
                             : write_new(&edit->place, content, err);
}

/* ---- readers --------------------------------------------------------------------------------- */

static int refuse(const char *path, struct sl_err *err)
{
    return sl_fail(err, SL_E_AUTH,
                   "a change of '%s' was begun and is not complete: let its owner open it once, "
                   "such as by 'sluice inspect'",
                   path);
}

static int complete(const char *path, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    struct sl_file_edit *edit;
    if (sl_file_edit_open(path, &edit, &why) == 0) {
        sl_file_edit_free(edit);
        return 1;
    }
    if (strcmp(why.code, "busy") == 0)
        return sl_fail_code(err, SL_E_INTEGRITY, "changed",
                            "'%s' is being changed: open it again when that has ended", path);
    if (why.kind == SL_E_AUTH)
        return refuse(path, err);
    *err = why;
    return -1;
}

int sl_file_edit_check(int fd, bool mend, struct sl_err *err)
{
    char self[32], path[PATH_MAX], journal[PATH_MAX + 32];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(self, path, sizeof(path) - 1);
    if (bytes <= 0 || path[0] != '/')
        return 0; /* no /proc: nobody can tell */
    path[bytes] = 0;
    const char *name = strrchr(path, '/') + 1;
    snprintf(journal, sizeof(journal), "%.*s.%s" JOURNAL_SUFFIX, (int)(name - path), path, name);
    if (faccessat(AT_FDCWD, journal, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    return mend ? complete(path, err) : refuse(path, err);
}
