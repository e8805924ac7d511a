/*
 * The mount outlives the daemon, so the next one finds the models in it: what is mounted already is
 * taken as it is, and only its size follows the config. The folder is held by a descriptor from the
 * look at it to the mount, so nothing else can be mounted over.
 */
#include "node_tmpfs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "entries.h"
#include "log.h"
#include "node_folder.h"
#include "selinux_label.h"

enum {
    FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC,
    BESIDE_BYTES = 64 << 20, /* manifests, journals, the ends of pages */
    OPTIONS_BYTES = 512,
};

#define UNMOUNT "unmount it when no pod uses it, and the daemon mounts it with the label"

enum { HUGE_AUTO, HUGE_NEVER }; /* the first of SL_NODE_TMPFS_HUGE */

static uint64_t size_for(uint64_t budget_bytes)
{
    return budget_bytes + budget_bytes / 16 + BESIDE_BYTES;
}

/* What the kernel is told; "" for a size that it chooses itself. huge, label: NULL for no word
 * about it: a kernel without huge pages for tmpfs, or with SELinux off, does not know the word at
 * all. */
static void options_of(const struct sl_node_spec *spec, const char *huge, const char *label,
                       char options[OPTIONS_BYTES])
{
    uint64_t bytes = spec->tmpfs.size_bytes;
    char size[32] = "";
    if (bytes == SL_AUTO_VALUE && spec->budget_bytes != SL_AUTO_VALUE)
        bytes = size_for(spec->budget_bytes);
    if (bytes != SL_AUTO_VALUE)
        snprintf(size, sizeof(size), ",size=%" PRIu64, bytes);
    snprintf(options, OPTIONS_BYTES, "mode=0755%s%s%s%s%s%s", size, huge ? ",huge=" : "",
             huge ? huge : "", label ? ",context=\"" : "", label ? label : "", label ? "\"" : "");
}

/* What is asked for by itself may be missing. */
static int mount_at(const struct sl_node_spec *spec, const char *target, unsigned long flags,
                    const char *label, char options[OPTIONS_BYTES])
{
    char huge[64] = "within_size";
    int wanted = spec->tmpfs.huge;
    if (wanted != HUGE_AUTO)
        sl_choice_name(SL_NODE_TMPFS_HUGE, wanted, huge);
    options_of(spec, wanted == HUGE_NEVER ? NULL : huge, label, options);
    int done = mount("sluice", target, "tmpfs", flags, options);
    if (done == 0 || wanted != HUGE_AUTO || errno != EINVAL)
        return done;
    options_of(spec, NULL, label, options);
    return mount("sluice", target, "tmpfs", flags, options);
}

static int fail_mount(struct sl_err *err, int number, const char *path, const char *options)
{
    if (number == EPERM || number == EACCES)
        return sl_fail(err, SL_E_NO_SPACE,
                       "cannot mount a tmpfs at '%s': this process has no CAP_SYS_ADMIN: run it "
                       "privileged, or mount one yourself and leave 'tmpfs' out of the config",
                       path);
    return sl_fail_errno(err, SL_E_NO_SPACE, number, "cannot mount a tmpfs (%s) at '%s'", options,
                         path);
}

static int fail_label(struct sl_err *err, int number, const char *path, const char *label)
{
    return sl_fail_errno(err, SL_E_NO_SPACE, number,
                         "cannot mount a tmpfs with the SELinux label '%s' at '%s': set "
                         "'selinuxLabel' to one that this machine's policy knows and this process "
                         "may give, to auto or to none",
                         label, path);
}

/* One label for everything in it, as a label of the mount: it is there for every file from the
 * start, and the kubelet sees that no runtime has to label the files of a volume once more. */
static int mount_new(const struct sl_node_spec *spec, const char *target, struct sl_err *err)
{
    const char *label = sl_selinux_label(spec), *path = spec->tmpfs.path;
    char options[OPTIONS_BYTES];
    int done = mount_at(spec, target, FLAGS, label, options), number = errno;
    if (done < 0 && label && (number == EINVAL || number == EACCES)) {
        if (sl_selinux_is_asked(spec))
            return fail_label(err, number, path, label);
        done = mount_at(spec, target, FLAGS, NULL, options);
        if (done == 0)
            sl_log(SL_LOG_WARN,
                   "the tmpfs at '%s' has no SELinux label for containers, so pods may be denied "
                   "its files: the kernel refuses '%s': %s: set 'selinuxLabel' to a label that "
                   "containers may read, or to none",
                   path, label, strerror(number));
        number = errno;
    }
    if (done < 0)
        return fail_mount(err, number, path, options);
    sl_log(SL_LOG_INFO, "mounted a tmpfs at '%s' (%s)", path, options);
    return 0;
}

/* Is the folder the root of a mount, and is that a tmpfs? */
static bool is_mounted(int fd)
{
    struct stat here, above;
    struct statfs system;
    return fstat(fd, &here) == 0 && fstatat(fd, "..", &above, 0) == 0 &&
           here.st_dev != above.st_dev && fstatfs(fd, &system) == 0 &&
           (uint32_t)system.f_type == TMPFS_MAGIC;
}

static int check_empty(int fd, const char *path, struct sl_err *err)
{
    int inside = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = inside < 0 ? NULL : fdopendir(inside);
    if (!folder) {
        int number = errno;
        sl_autoclose_(&inside);
        return sl_fail_errno(err, SL_E_NO_SPACE, number, "cannot read '%s'", path);
    }
    bool empty = !sl_next_entry(folder);
    int number = errno;
    closedir(folder);
    if (empty && number)
        return sl_fail_errno(err, SL_E_NO_SPACE, number, "cannot read '%s'", path);
    if (empty)
        return 0;
    return sl_fail(err, SL_E_NO_SPACE,
                   "'%s' is not empty, and a tmpfs mounted there would hide its contents: empty "
                   "it, or name another folder in 'tmpfs.path'",
                   path);
}

static void warn_of_size(const char *path, const char *options)
{
    sl_log(SL_LOG_WARN, "the tmpfs at '%s' keeps its size: the kernel refuses %s: %s", path,
           options, strerror(errno));
}

/* Without a word about its label, which a mount keeps. */
static void resize(const struct sl_node_spec *spec, const char *target)
{
    char options[OPTIONS_BYTES];
    if (mount_at(spec, target, MS_REMOUNT | FLAGS, NULL, options) < 0)
        warn_of_size(spec->tmpfs.path, options);
}

int sl_node_tmpfs_mount(const struct sl_node_spec *spec, struct sl_err *err)
{
    const char *path = spec->tmpfs.path;
    char target[64];
    bool exposed;
    if (!path)
        return 0;
    sl_autoclose int fd = sl_node_folder_reach(path, &exposed, err);
    if (fd < 0)
        return -1;
    if (exposed)
        return sl_fail_code(err, SL_E_NO_SPACE, "owner",
                            "other users can replace '%s': choose a 'tmpfs.path' in folders that "
                            "only root and this user can write to",
                            path);
    snprintf(target, sizeof(target), "/proc/self/fd/%d", fd);
    if (is_mounted(fd)) {
        resize(spec, target);
        sl_selinux_check(fd, path, sl_selinux_label(spec), UNMOUNT);
        return 0;
    }
    if (check_empty(fd, path, err) < 0)
        return -1;
    return mount_new(spec, target, err);
}

void sl_node_tmpfs_grow(const struct sl_node_spec *spec, const char *path)
{
    char options[OPTIONS_BYTES], target[64];
    struct statfs system;
    bool exposed;
    if (spec->tmpfs.size_bytes != SL_AUTO_VALUE || spec->budget_bytes == SL_AUTO_VALUE)
        return;
    uint64_t bytes = size_for(spec->budget_bytes);
    sl_autoclose int fd = sl_node_folder_reach(path, &exposed, NULL);
    if (fd < 0 || !is_mounted(fd) || fstatfs(fd, &system) < 0 ||
        (uint64_t)system.f_blocks * (uint64_t)system.f_bsize >= bytes)
        return;
    snprintf(target, sizeof(target), "/proc/self/fd/%d", fd);
    snprintf(options, sizeof(options), "size=%" PRIu64, bytes);
    if (mount("sluice", target, "tmpfs", MS_REMOUNT | FLAGS, options) < 0)
        warn_of_size(path, options);
}
