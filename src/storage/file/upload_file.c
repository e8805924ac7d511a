/*
 * A new local file.
 *
 * Its bytes go into a file without a name (O_TMPFILE) of the destination's own folder, so that
 * whatever ends before sl_upload_finish() leaves nothing, and what is linked then is on the right
 * file system. Where that is not to be had (NFS, FUSE) it has a hidden name instead:
 * .NAME.XXXXXX.sluice-new, which a killed process leaves behind and nobody reads. Replacing goes
 * through such a name too, since a link cannot replace: rename() does, atomically.
 *
 * The file is synced before it gets its name: a conversion takes long and is kept. The kernel is
 * told to write back as bytes come, so that the sync at the end finds little to do.
 *
 * A link at the destination is never followed: it is refused, or replaced itself. Links in the
 * folders above are the user's own way there.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "buf.h"
#include "exact_io.h"
#include "file_store.h"
#include "log.h"
#include "upload_backend.h"

enum { MODE_DEFAULT = 0644, TEMPORARY_TRIES = 100, WRITE_BACK_BYTES = 256 * 1024 };

struct file {
    int folder, fd;  /* -1: none */
    char *path;      /* as given, for messages and folders */
    char *name;      /* within the folder */
    char *temporary; /* its hidden name, NULL: none */
    int mode;        /* -1: what new files get */
    size_t made;     /* folders were made from this byte of path on; 0: none */
};

/* Refusals of a destination, by what the kernel says. */
static int fail_path(int number, const char *verb, const char *path, struct sl_err *err)
{
    bool usage = number == ENAMETOOLONG || number == ELOOP || number == ENOTDIR ||
                 number == EISDIR || number == EINVAL;
    return sl_fail_errno(err, usage ? SL_E_USAGE : SL_E_NO_SPACE, number, "cannot %s '%s'", verb,
                         path);
}

/* ---- what may be there ---------------------------------------------------------------------- */

static int fail_exists(const char *path, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_USAGE, "exists",
                        "'%s' exists: name another destination, or replace it with --replace",
                        path);
}

/* A file that replaces another is no more open to others than that was. */
static int check_there(const struct sl_upload *upload, struct file *file, struct sl_err *err)
{
    struct stat info;
    if (fstatat(file->folder, file->name, &info, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fail_path(errno, "write", file->path, err);
    if (S_ISDIR(info.st_mode))
        return sl_fail(err, SL_E_USAGE, "'%s' is a folder: name a file in it", file->path);
    if (!S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode))
        return sl_fail(err, SL_E_USAGE, "'%s' is neither a file nor absent: it is not replaced",
                       file->path);
    if (!upload->config.replace)
        return fail_exists(file->path, err);
    if (file->mode < 0 && S_ISREG(info.st_mode))
        file->mode = (int)(info.st_mode & 0777);
    return 0;
}

static int check_room(const struct sl_upload *upload, const struct file *file, struct sl_err *err)
{
    struct statvfs info;
    char need[32], have[32];
    if (fstatvfs(file->folder, &info) < 0 || !info.f_blocks)
        return 0;
    uint64_t room = (uint64_t)info.f_bavail * info.f_frsize;
    if (room >= upload->bytes)
        return 0;
    return sl_fail(err, SL_E_NO_SPACE,
                   "'%s' needs %s, its file system has %s left: make room there", file->path,
                   sl_human_bytes(upload->bytes, need), sl_human_bytes(room, have));
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Make what is missing of the folders above the name; an absent one is made with its parents. */
static int make_folders(struct file *file, size_t folder_bytes, struct sl_err *err)
{
    sl_autofree char *path = sl_strndup(file->path, folder_bytes, err);
    if (!path)
        return -1;
    for (size_t end = 1; end <= folder_bytes; end++) {
        if (path[end] != '/' && path[end] != 0)
            continue;
        char kept = path[end];
        path[end] = 0;
        if (mkdir(path, 0777) == 0) {
            if (!file->made)
                file->made = end;
        } else if (errno != EEXIST) {
            return fail_path(errno, "make the folder", path, err);
        }
        path[end] = kept;
    }
    return 0;
}

static int open_folder(struct file *file, struct sl_err *err)
{
    const char *slash = strrchr(file->path, '/');
    const char *name = slash ? slash + 1 : file->path;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(file->path, "-") == 0)
        return sl_fail(err, SL_E_USAGE, "'%s' is not a name of a file", file->path);
    size_t bytes = slash ? (size_t)(slash - file->path) : 0;
    file->name = sl_strdup(name, err);
    sl_autofree char *folder = !file->name ? NULL
                               : bytes     ? sl_strndup(file->path, bytes, err)
                                           : sl_strdup(slash ? "/" : ".", err);
    if (!folder)
        return -1;
    file->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file->folder < 0 && errno == ENOENT && bytes) {
        if (make_folders(file, bytes, err) < 0)
            return -1;
        file->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    return file->folder < 0 ? fail_path(errno, "open the folder", folder, err) : 0;
}

/* A hidden name that is free, and where `take` succeeds with it (0, or -1 with errno). */
static int with_temporary(struct file *file, int (*take)(struct file *file, const char *name),
                          struct sl_err *err)
{
    for (unsigned i = 0; i < TEMPORARY_TRIES; i++) {
        uint64_t random = (sl_now_ns() + i) * 0x9e3779b97f4a7c15ull ^ (uint64_t)getpid() << 32;
        char *name = sl_asprintf(err, ".%.200s.%06llx.sluice-new", file->name,
                                 (unsigned long long)(random >> 40));
        if (!name)
            return -1;
        if (take(file, name) == 0) {
            file->temporary = name;
            return 0;
        }
        free(name);
        if (errno != EEXIST)
            break;
    }
    return fail_path(errno, "write", file->path, err);
}

static int create(struct file *file, const char *name)
{
    file->fd = openat(file->folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                      MODE_DEFAULT);
    return file->fd < 0 ? -1 : 0;
}

static int open_file(const struct sl_upload *upload, struct file *file, struct sl_err *err)
{
    file->fd = openat(file->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, MODE_DEFAULT);
    bool unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT;
    if (file->fd < 0 && !unknown)
        return fail_path(errno, "write", file->path, err);
    if (file->fd < 0 && with_temporary(file, create, err) < 0)
        return -1;
    if ((file->mode >= 0 && fchmod(file->fd, (mode_t)file->mode) < 0) ||
        ftruncate(file->fd, (off_t)upload->bytes) < 0)
        return fail_path(errno, "write", file->path, err);
    return 0;
}

static int file_open(struct sl_upload *upload, const char *uri, struct sl_err *err)
{
    struct file *file = upload->impl = sl_alloc(sizeof(*file), err);
    if (!file)
        return -1;
    file->folder = file->fd = -1;
    file->mode = upload->config.mode ? upload->config.mode : -1;
    file->path = sl_file_path(uri, err);
    upload->uri = file->path ? sl_strdup(file->path, err) : NULL;
    if (!upload->uri)
        return -1;
    if (upload->bytes > INT64_MAX)
        return sl_fail(err, SL_E_USAGE, "'%s' would be larger than any file", file->path);
    if (open_folder(file, err) < 0 || check_there(upload, file, err) < 0 ||
        check_room(upload, file, err) < 0)
        return -1;
    return open_file(upload, file, err);
}

/* ---- writing -------------------------------------------------------------------------------- */

static int file_write(struct sl_upload *upload, uint64_t offset, const void *data, size_t bytes,
                      struct sl_err *err)
{
    const struct file *file = upload->impl;
    if (sl_write_at(file->fd, data, bytes, offset) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot write '%s'", file->path);
    if (bytes >= WRITE_BACK_BYTES)
        sync_file_range(file->fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    return 0;
}

/* ---- the name ------------------------------------------------------------------------------- */

/* Give the nameless file a name in the folder; EEXIST if that is taken. */
static int link_name(struct file *file, const char *name)
{
    char self[32];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", file->fd);
    if (linkat(AT_FDCWD, self, file->folder, name, AT_SYMLINK_FOLLOW) == 0)
        return 0;
    if (errno != ENOENT && errno != ENOTDIR)
        return -1;
    return linkat(file->fd, "", file->folder, name, AT_EMPTY_PATH); /* without /proc, privileged */
}

/* Rename unless the name is taken, by whatever the file system has for that: a file system with
 * neither flag nor links (some FUSE) is asked beforehand, which leaves a moment for others. */
static int rename_new(struct file *file)
{
    struct stat info;
    if (renameat2(file->folder, file->temporary, file->folder, file->name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (linkat(file->folder, file->temporary, file->folder, file->name, 0) == 0)
        return unlinkat(file->folder, file->temporary, 0);
    if (errno == EEXIST)
        return -1;
    if (fstatat(file->folder, file->name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST;
        return -1;
    }
    return renameat(file->folder, file->temporary, file->folder, file->name);
}

static int give_name(const struct sl_upload *upload, struct file *file, struct sl_err *err)
{
    int result = 0;
    if (!file->temporary) {
        result = link_name(file, file->name);
        if (result == 0)
            return 0;
        if (errno == EEXIST && upload->config.replace) {
            if (with_temporary(file, link_name, err) < 0)
                return -1;
            result = renameat(file->folder, file->temporary, file->folder, file->name);
        }
    } else {
        result = upload->config.replace
                     ? renameat(file->folder, file->temporary, file->folder, file->name)
                     : rename_new(file);
    }
    if (result == 0)
        free(sl_steal(&file->temporary));
    else if (errno == EEXIST)
        fail_exists(file->path, err);
    else
        fail_path(errno, "name", file->path, err);
    return result;
}

static int file_finish(struct sl_upload *upload, struct sl_err *err)
{
    struct file *file = upload->impl;
    if (fsync(file->fd) < 0 && errno != EINVAL && errno != EROFS)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot write '%s'", file->path);
    if (give_name(upload, file, err) < 0)
        return -1;
    if (fsync(file->folder) < 0 && errno != EINVAL && errno != EROFS)
        sl_log(SL_LOG_WARN, "'%s' is written, but its folder cannot be synced: %s", file->path,
               strerror(errno));
    return 0;
}

/* The folders that were made for it, as far as they are still empty. */
static void remove_folders(struct file *file)
{
    for (char *slash; (slash = strrchr(file->path, '/')) && slash >= file->path + file->made &&
                      slash > file->path;) {
        *slash = 0;
        if (rmdir(file->path) < 0)
            return;
    }
}

static void file_close(struct sl_upload *upload)
{
    struct file *file = upload->impl;
    if (!file)
        return;
    if (file->temporary)
        unlinkat(file->folder, file->temporary, 0);
    if (file->fd >= 0)
        close(file->fd);
    if (file->folder >= 0)
        close(file->folder);
    if (file->made && !upload->finished)
        remove_folders(file);
    free(file->path);
    free(file->name);
    free(file->temporary);
    free(file);
}

static int file_remove(const struct sl_store_kind *kind, const char *uri,
                       const struct sl_source_config *config, struct sl_err *err)
{
    sl_autofree char *path = sl_file_path(uri, err);
    (void)kind, (void)config;
    if (!path)
        return -1;
    return unlink(path) == 0 || errno == ENOENT ? 0 : fail_path(errno, "remove", path, err);
}

const struct sl_upload_ops sl_upload_file_ops = {
    .open = file_open,
    .write = file_write,
    .finish = file_finish,
    .close = file_close,
    .remove = file_remove,
};
