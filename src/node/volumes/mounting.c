/*
 * The folder that holds a target is opened part by part, following no link (sl_tree_parent), and
 * from then on only that descriptor and the target's own name count. Where the kernel has
 * open_tree() and mount_setattr() (Linux 5.12) the mount is made read-only before it is anywhere;
 * elsewhere it takes two calls, and the mount can be written in between by whoever has the rights
 * to: a restart looks for what was left so.
 */
#include "mounting.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "entries.h"
#include "log.h"
#include "mem.h"
#include "tree.h"

enum {
    UNMOUNTS_MAX = 64, /* of one target, a mount upon another */
    FOLDER = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
    FD_PATH = 64 + 256,
};
#define TARGET_MODE 0750

int sl_mounting_open(const char *path, struct sl_mounting *mounting, struct sl_err *err)
{
    char name[64], real[4096];
    *mounting = (struct sl_mounting){.fd = -1};
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    mounting->path = sl_strndup(path, bytes, err);
    if (!mounting->path)
        return -1;
    mounting->fd = open(mounting->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    snprintf(name, sizeof(name), "/proc/self/fd/%d", mounting->fd);
    ssize_t read = mounting->fd < 0 ? -1 : readlink(name, real, sizeof(real) - 1);
    if (read < 0) {
        sl_fail_errno(err, SL_E_USAGE, errno, "cannot open the kubelet's directory '%s'",
                      mounting->path);
        sl_mounting_release(mounting);
        return -1;
    }
    mounting->real = sl_strndup(real, (size_t)read, err);
    if (mounting->real)
        return 0;
    sl_mounting_release(mounting);
    return -1;
}

void sl_mounting_release(struct sl_mounting *mounting)
{
    sl_autoclose_(&mounting->fd);
    free(mounting->path);
    free(mounting->real);
    *mounting = (struct sl_mounting){.fd = -1};
}

/* ---- paths ---------------------------------------------------------------------------------- */

static bool is_clean(const char *relative)
{
    for (const char *at = relative;; at++) {
        size_t bytes = strcspn(at, "/");
        if (bytes == 0 || bytes > NAME_MAX || (bytes == 1 && *at == '.') ||
            (bytes == 2 && memcmp(at, "..", 2) == 0))
            return false;
        for (size_t i = 0; i < bytes; i++)
            if ((unsigned char)at[i] < 0x20 || at[i] == 0x7f)
                return false;
        at += bytes;
        if (!*at)
            return true;
    }
}

/* What comes behind the kubelet's directory; NULL: it is not below it. */
static const char *relative_of(const struct sl_mounting *mounting, const char *target)
{
    size_t bytes = strlen(mounting->path);
    return strncmp(target, mounting->path, bytes) == 0 && target[bytes] == '/' ? target + bytes + 1
                                                                               : NULL;
}

int sl_mounting_check(const struct sl_mounting *mounting, const char *target, struct sl_err *err)
{
    if (!target || !*target)
        return sl_fail(err, SL_E_USAGE, "a volume needs a target path");
    if (strlen(target) >= SL_TARGET_MAX)
        return sl_fail(err, SL_E_USAGE, "the target path has %zu bytes, the limit is %d",
                       strlen(target), SL_TARGET_MAX - 1);
    const char *relative = relative_of(mounting, target);
    if (!relative)
        return sl_fail(
            err, SL_E_USAGE,
            "the target path '%.300s' is not below the kubelet's directory '%.200s': set "
            "csi.kubeletDirectory if this node has another",
            target, mounting->path);
    if (!is_clean(relative))
        return sl_fail(
            err, SL_E_USAGE,
            "the target path '%.300s' holds '.', '..', an empty part, a part that is too "
            "long, or control characters",
            target);
    return 0;
}

/* The folder that holds the target, without following a link; *leaf points into target. */
static int open_parent(const struct sl_mounting *mounting, const char *target, const char **leaf)
{
    return sl_tree_parent(mounting->fd, relative_of(mounting, target), false, leaf);
}

bool sl_mounting_lacks_folder(const struct sl_mounting *mounting, const char *relative)
{
    const char *leaf;
    struct stat status;
    sl_autoclose int fd = sl_tree_parent(mounting->fd, relative, false, &leaf);
    if (fd < 0 || fstatat(fd, leaf, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return sl_tree_is_gone(errno);
    return !S_ISDIR(status.st_mode);
}

static void path_below(int fd, const char *leaf, char path[FD_PATH])
{
    snprintf(path, FD_PATH, leaf ? "/proc/self/fd/%d/%.255s" : "/proc/self/fd/%d", fd, leaf);
}

/* Before the end of its scope, which closes it no second time. */
static void close_now(int *fd)
{
    sl_autoclose_(fd);
    *fd = -1;
}

/* ---- binding -------------------------------------------------------------------------------- */

/* Of the kernel's headers, where older systems lack them. */
enum {
    TREE_CLONE = 1,
    TREE_CLOEXEC = O_CLOEXEC,
    EMPTY_PATH = 0x1000,
    ATTR_RDONLY = 1,
    ATTR_NOSUID = 2,
    ATTR_NODEV = 4,
    ATTR_NOEXEC = 8,
    MOVE_F_EMPTY_PATH = 4,
    MOVE_T_EMPTY_PATH = 0x40,
    SYS_OPEN_TREE = 428,
    SYS_MOVE_MOUNT = 429,
    SYS_MOUNT_SETATTR = 442,
};
struct mount_attributes {
    uint64_t set, clear, propagation, userns_fd;
};

/* 0, -1 with errno; ENOSYS: the kernel has not all of it, and nothing was done. */
static int bind_at_once(int source_fd, int target_fd)
{
    struct mount_attributes attributes = {.set =
                                              ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC};
    sl_autoclose int tree_fd =
        (int)syscall(SYS_OPEN_TREE, source_fd, "", TREE_CLONE | TREE_CLOEXEC | EMPTY_PATH);
    if (tree_fd < 0 ||
        syscall(SYS_MOUNT_SETATTR, tree_fd, "", EMPTY_PATH, &attributes, sizeof(attributes)) < 0)
        return -1;
    return (int)syscall(SYS_MOVE_MOUNT, tree_fd, "", target_fd, "",
                        MOVE_F_EMPTY_PATH | MOVE_T_EMPTY_PATH);
}

static int bind_in_two(int source_fd, int parent_fd, const char *leaf)
{
    char source[FD_PATH], target[FD_PATH];
    sl_autoclose int below_fd = openat(parent_fd, leaf, FOLDER);
    path_below(source_fd, NULL, source);
    path_below(below_fd, NULL, target);
    if (below_fd < 0 || mount(source, target, NULL, MS_BIND, NULL) < 0)
        return -1;
    sl_autoclose int mounted_fd = openat(parent_fd, leaf, FOLDER); /* the mount's root */
    path_below(mounted_fd, NULL, target);
    if (mounted_fd < 0)
        return -1;
    return mount(NULL, target, NULL,
                 MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
}

static bool is_empty(int parent_fd, const char *leaf)
{
    int fd = openat(parent_fd, leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        sl_autoclose_(&fd);
        return false;
    }
    bool empty = !sl_next_entry(folder) && !errno;
    closedir(folder);
    return empty;
}

bool sl_mounting_holds_only(int folder_fd, const char *socket)
{
    int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    struct stat status;
    if (!folder) {
        sl_autoclose_(&fd);
        return false;
    }
    bool only =
        fstatat(folder_fd, socket, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(status.st_mode);
    for (struct dirent *entry; only && (entry = sl_next_entry(folder));)
        only = *entry->d_name == '.' || strcmp(entry->d_name, socket) == 0;
    only = only && !errno;
    closedir(folder);
    return only;
}

static int fail_parent(const char *target, struct sl_err *err)
{
    if (errno == ENOENT)
        return sl_fail(err, SL_E_NOT_FOUND, "the parent folder of '%.300s' does not exist", target);
    if (errno == ENOTDIR || errno == ELOOP)
        return sl_fail_code(err, SL_E_USAGE, "precondition",
                            "a link or a file is on the way to '%.300s', where only folders may be",
                            target);
    return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot reach '%.300s'", target);
}

/* 1, 0; -1: it cannot be told. */
static int is_mount(int parent_fd, int fd)
{
    struct statx above, here;
    if (statx(parent_fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &above) == 0 &&
        statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &here) == 0 &&
        (here.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT))
        return (here.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
    struct stat old_above, old_here; /* before Linux 5.8 */
    if (fstat(parent_fd, &old_above) < 0 || fstat(fd, &old_here) < 0)
        return -1;
    return old_above.st_dev != old_here.st_dev;
}

/* What was there before stays as it was: only a folder with nothing in it is mounted upon. */
static int make_target(int parent_fd, const char *leaf, const char *target, struct sl_err *err)
{
    if (mkdirat(parent_fd, leaf, TARGET_MODE) == 0)
        return 0;
    if (errno != EEXIST)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot create '%.300s'", target);
    sl_autoclose int fd = openat(parent_fd, leaf, FOLDER);
    if (fd >= 0 && is_mount(parent_fd, fd) == 0 && is_empty(parent_fd, leaf))
        return 0;
    return sl_fail_code(err, SL_E_USAGE, "precondition",
                        "'%.300s' is not an empty folder, so no volume is mounted there", target);
}

static int fail_mount(const char *target, struct sl_err *err)
{
    if (errno == EPERM || errno == EACCES)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "cannot mount at '%.300s': the daemon needs CAP_SYS_ADMIN", target);
    return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot mount at '%.300s'", target);
}

int sl_mounting_bind(const struct sl_mounting *mounting, const char *target, int source_fd,
                     struct sl_err *err)
{
    const char *leaf;
    sl_autoclose int parent_fd = open_parent(mounting, target, &leaf);
    if (parent_fd < 0)
        return fail_parent(target, err);
    if (make_target(parent_fd, leaf, target, err) < 0)
        return -1;
    sl_autoclose int target_fd = openat(parent_fd, leaf, FOLDER);
    int done = target_fd < 0 ? -1 : bind_at_once(source_fd, target_fd);
    close_now(&target_fd); /* it would keep an unmount from working */
    if (done < 0 && (errno == ENOSYS || errno == EPERM || errno == EINVAL))
        done = bind_in_two(source_fd, parent_fd, leaf); /* a filter of system calls says EPERM */
    if (done == 0)
        return 0;
    fail_mount(target, err);
    struct sl_err why = SL_ERR_INIT;
    if (sl_mounting_undo(mounting, target, NULL, 0, &why) < 0)
        sl_log(SL_LOG_WARN, "cannot undo the mount at '%s': %s", target, why.message);
    return -1;
}

/* ---- looking, and undoing ------------------------------------------------------------------- */

enum sl_mounted sl_mounting_look(const struct sl_mounting *mounting, const char *target,
                                 int source_fd)
{
    const char *leaf;
    struct statvfs status;
    struct stat here, source;
    sl_autoclose int parent_fd = open_parent(mounting, target, &leaf);
    sl_autoclose int fd = parent_fd < 0 ? -1 : openat(parent_fd, leaf, FOLDER);
    if (fd < 0)
        return sl_tree_is_gone(errno) ? SL_MOUNTED_NOTHING : SL_MOUNTED_UNKNOWN;
    int mounted = is_mount(parent_fd, fd);
    if (mounted <= 0)
        return mounted ? SL_MOUNTED_UNKNOWN : SL_MOUNTED_FOLDER;
    if (source_fd < 0)
        return SL_MOUNTED_OTHER;
    if (fstat(fd, &here) < 0 || fstat(source_fd, &source) < 0 || fstatvfs(fd, &status) < 0)
        return SL_MOUNTED_UNKNOWN;
    if (here.st_dev != source.st_dev || here.st_ino != source.st_ino)
        return SL_MOUNTED_OTHER;
    return status.f_flag & ST_RDONLY ? SL_MOUNTED_RIGHT : SL_MOUNTED_WRITABLE;
}

static bool may_unmount(int fd, const dev_t *devices, size_t count)
{
    struct stat status;
    for (size_t i = 0; i < count; i++)
        if (fstat(fd, &status) == 0 && status.st_dev == devices[i])
            return true;
    return count == 0;
}

/* 1: there was a mount, and it is gone; 0: there is none. */
static int unmount_one(int parent_fd, const char *leaf, const char *target, const dev_t *devices,
                       size_t count, struct sl_err *err)
{
    char path[FD_PATH];
    sl_autoclose int fd = openat(parent_fd, leaf, FOLDER);
    int mounted = fd < 0 ? 0 : is_mount(parent_fd, fd);
    if ((fd < 0 && !sl_tree_is_gone(errno)) || mounted < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot look at '%.300s'", target);
    if (!mounted)
        return 0;
    if (!may_unmount(fd, devices, count))
        return sl_fail_code(err, SL_E_USAGE, "precondition",
                            "the mount at '%.300s' does not belong to this driver", target);
    close_now(&fd);
    path_below(parent_fd, leaf, path);
    if (umount2(path, UMOUNT_NOFOLLOW) == 0 ||
        (errno == EBUSY && umount2(path, UMOUNT_NOFOLLOW | MNT_DETACH) == 0))
        return 1;
    if (errno == EINVAL) /* somebody else did */
        return 0;
    return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot unmount '%.300s'", target);
}

int sl_mounting_undo(const struct sl_mounting *mounting, const char *target, const dev_t *devices,
                     size_t count, struct sl_err *err)
{
    const char *leaf;
    sl_autoclose int parent_fd = open_parent(mounting, target, &leaf);
    if (parent_fd < 0)
        return errno == ENOENT ? 0 : fail_parent(target, err);
    int unmounted = 1;
    for (unsigned i = 0; unmounted > 0 && i < UNMOUNTS_MAX; i++)
        unmounted = unmount_one(parent_fd, leaf, target, devices, count, err);
    if (unmounted < 0)
        return -1;
    if (unlinkat(parent_fd, leaf, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    if (errno == ENOTDIR || errno == ENOTEMPTY)
        return sl_fail_code(err, SL_E_USAGE, "precondition",
                            "'%.300s' is not removed: another process has put something there",
                            target);
    return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot remove '%.300s'", target);
}
