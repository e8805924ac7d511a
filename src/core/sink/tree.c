/*
 * Every component is opened with O_NOFOLLOW relative to the one before, so a link put in the way is
 * an error (ELOOP, ENOTDIR), never a way out of the destination.
 */
#include "tree.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "entries.h"
#include "exact_io.h"

enum {
    COMPONENT_BYTES = 256,
    DEPTH_MAX = 600,
    FOLDER = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
};

static const char *advice(int number)
{
    switch (number) {
    case ENOSPC:
        return "the destination is full: give its tmpfs a larger size or the Pod more memory";
    case EDQUOT:
        return "the quota is used up: raise it";
    case EFBIG:
        return "the file system or the file size limit (ulimit -f) allows no file that large";
    case EROFS:
        return "the destination is mounted read-only: mount it writable";
    case EACCES:
    case EPERM:
        return "no permission: run as the directory's owner or set fsGroup";
    case ELOOP:
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case EEXIST:
        return "something that is not of this load is in the way: choose another directory, or "
               "move it away if it is yours";
    case ENOENT:
        return "it is not there, or is a link to what is not: make it, or name another place";
    case EMFILE:
    case ENFILE:
        return "no descriptors left";
    default:
        return "look at the destination's file system";
    }
}

int sl_tree_fail(struct sl_err *err, int number, const char *doing, const char *name)
{
    return sl_fail_errno(err, SL_E_NO_SPACE, number, "cannot %s '%s': %s", doing, name,
                         advice(number));
}

/* A folder that we sealed is opened for change again. */
static void thaw(int fd)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && !(status.st_mode & S_IWUSR) && status.st_uid == geteuid())
        (void)fchmod(fd, (status.st_mode & 07777) | S_IWUSR);
}

static int step_into(int fd, const char *component, bool make)
{
    int next = openat(fd, component, FOLDER);
    if (next < 0 && errno == ENOENT && make &&
        (mkdirat(fd, component, 0755) == 0 || errno == EEXIST))
        next = openat(fd, component, FOLDER);
    int number = errno;
    close(fd);
    if (next >= 0 && make)
        thaw(next);
    errno = number;
    return next;
}

int sl_tree_parent(int root_fd, const char *name, bool make, const char **leaf)
{
    int fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 0);
    for (const char *slash; fd >= 0 && (slash = strchr(name, '/')); name = slash + 1) {
        char component[COMPONENT_BYTES];
        size_t bytes = (size_t)(slash - name);
        assert(bytes < sizeof(component));
        memcpy(component, name, bytes);
        component[bytes] = 0;
        fd = step_into(fd, component, make);
    }
    *leaf = name;
    return fd;
}

void sl_tree_walk_end(struct sl_tree_walk *walk)
{
    sl_autoclose_(&walk->fd);
    walk->fd = -1;
    walk->missing = false;
}

/* Of the name's folder with its slash; 0 for none. */
static size_t folder_bytes(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? (size_t)(slash - name) + 1 : 0;
}

bool sl_tree_siblings(const char *a, const char *b)
{
    size_t bytes = folder_bytes(a);
    return bytes == folder_bytes(b) && memcmp(a, b, bytes) == 0;
}

int sl_tree_enter(struct sl_tree_walk *walk, const char *name, const char **leaf)
{
    size_t bytes = folder_bytes(name);
    *leaf = name + bytes;
    if ((walk->fd >= 0 || walk->missing) && bytes == walk->bytes &&
        memcmp(name, walk->folder, bytes) == 0) {
        errno = ENOENT; /* if it is missing */
        return walk->fd;
    }
    sl_tree_walk_end(walk);
    if (bytes > sizeof(walk->folder)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    walk->fd = sl_tree_parent(walk->root_fd, name, walk->make, leaf);
    walk->missing = walk->fd < 0 && errno == ENOENT;
    walk->bytes = bytes;
    memcpy(walk->folder, name, bytes);
    return walk->fd;
}

static int remove_entries(int fd, unsigned depth);

static int remove_at(int directory_fd, const char *name, unsigned depth)
{
    if (unlinkat(directory_fd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -1;
    if (depth > DEPTH_MAX) {
        errno = ELOOP;
        return -1;
    }
    int fd = openat(directory_fd, name, FOLDER);
    if (fd < 0)
        return -1;
    thaw(fd);
    return remove_entries(fd, depth) < 0 ? -1 : unlinkat(directory_fd, name, AT_REMOVEDIR);
}

/* Takes fd. */
static int remove_entries(int fd, unsigned depth)
{
    DIR *folder = fdopendir(fd);
    if (!folder) {
        close(fd);
        return -1;
    }
    int done = 0;
    for (struct dirent *entry; done == 0 && (entry = sl_next_entry(folder));)
        done = remove_at(dirfd(folder), entry->d_name, depth + 1);
    int number = errno;
    if (done == 0 && number)
        done = -1;
    closedir(folder);
    errno = number;
    return done;
}

int sl_tree_remove(int directory_fd, const char *name)
{
    return remove_at(directory_fd, name, 0);
}

bool sl_tree_is_gone(int number)
{
    return number == ENOENT || number == ENOTDIR || number == ELOOP || number == EISDIR;
}

int sl_tree_unlink(int root_fd, const char *name)
{
    const char *leaf;
    int fd = sl_tree_parent(root_fd, name, false, &leaf);
    if (fd < 0)
        return sl_tree_is_gone(errno) ? 0 : -1;
    thaw(fd);
    int done = unlinkat(fd, leaf, 0) == 0 || sl_tree_is_gone(errno) ? 0 : -1, number = errno;
    close(fd);
    if (done < 0) {
        errno = number;
        return -1;
    }
    char folder[1025];
    if (strlen(name) >= sizeof(folder))
        return 0;
    memcpy(folder, name, strlen(name) + 1);
    for (char *slash; (slash = strrchr(folder, '/'));) {
        *slash = 0;
        fd = sl_tree_parent(root_fd, folder, false, &leaf);
        if (fd < 0)
            break;
        thaw(fd);
        int gone = unlinkat(fd, leaf, AT_REMOVEDIR);
        close(fd);
        if (gone < 0)
            break; /* not empty: others live there */
    }
    return 0;
}

void sl_tree_seal(int root_fd, const char *name)
{
    char folder[1025];
    struct stat file, status;
    const char *leaf;
    bool known = false;
    if (strlen(name) >= sizeof(folder))
        return;
    memcpy(folder, name, strlen(name) + 1);
    for (char *slash; (slash = strrchr(folder, '/'));) {
        sl_autoclose int fd = sl_tree_parent(root_fd, folder, false, &leaf);
        if (fd < 0 || (!known && fstatat(fd, leaf, &file, AT_SYMLINK_NOFOLLOW) < 0))
            return;
        known = true;
        *slash = 0;
        if (fstat(fd, &status) < 0)
            return;
        if (status.st_uid != file.st_uid || status.st_gid != file.st_gid)
            (void)!fchown(fd, file.st_uid, file.st_gid);
        if (status.st_mode & 0222)
            (void)fchmod(fd, 0555 | (status.st_mode & S_ISGID)); /* a volume's group is kept */
    }
}

/* Takes fd. What cannot be read counts nothing. */
static uint64_t bytes_below(int fd, unsigned depth)
{
    uint64_t bytes = 0;
    DIR *folder = fdopendir(fd);
    if (!folder) {
        close(fd);
        return 0;
    }
    for (struct dirent *entry; (entry = sl_next_entry(folder));) {
        struct stat status;
        if (fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        bytes += (uint64_t)status.st_blocks * 512;
        if (S_ISDIR(status.st_mode) && depth < DEPTH_MAX) {
            int below = openat(dirfd(folder), entry->d_name, FOLDER);
            bytes += below < 0 ? 0 : bytes_below(below, depth + 1);
        }
    }
    closedir(folder);
    return bytes;
}

uint64_t sl_tree_bytes(int directory_fd)
{
    int fd = openat(directory_fd, ".", FOLDER);
    return fd < 0 ? 0 : bytes_below(fd, 0);
}

static int write_whole(int directory_fd, const char *name, mode_t mode, const void *data,
                       size_t bytes, struct sl_err *err)
{
    char temporary[COMPONENT_BYTES];
    snprintf(temporary, sizeof(temporary), "%s.tmp", name);
    unlinkat(directory_fd, temporary, 0);
    sl_autoclose int fd =
        openat(directory_fd, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 && sl_write_all(fd, data, bytes) == 0 && fchmod(fd, mode) == 0 &&
        renameat(directory_fd, temporary, directory_fd, name) == 0)
        return 0;
    int why = errno;
    if (fd >= 0)
        unlinkat(directory_fd, temporary, 0);
    return sl_tree_fail(err, why, "write", name);
}

int sl_tree_write(int directory_fd, const char *name, const void *data, size_t bytes,
                  struct sl_err *err)
{
    return write_whole(directory_fd, name, 0444, data, bytes, err);
}

int sl_tree_write_own(int directory_fd, const char *name, const void *data, size_t bytes,
                      struct sl_err *err)
{
    return write_whole(directory_fd, name, 0600, data, bytes, err);
}

int sl_tree_read(int directory_fd, const char *name, struct sl_buf *buf, struct sl_err *err)
{
    sl_autoclose int fd =
        openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return sl_fail_errno(err, errno == ENOENT ? SL_E_NOT_FOUND : SL_E_NO_SPACE, errno,
                             "cannot open '%s'", name);
    struct stat status;
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
        return sl_fail(err, SL_E_NO_SPACE, "'%s' is not a regular file: remove it", name);
    if ((uint64_t)status.st_size > buf->limit) /* it may be a terabyte of holes */
        return sl_fail(err, SL_E_NO_SPACE, "'%s' is larger than %zu bytes", name, buf->limit);
    return sl_buf_read_fd(buf, fd, name, SL_E_NO_SPACE, err);
}
