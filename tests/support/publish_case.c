/* The linker gives us what publishing asks of the machine (--wrap, see CMakeLists.txt). */
#include "publish_case.h"

#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/statfs.h>

#include "cgroup.h"
#include "publish_parts.h"

/* ---- another boot, another disk -------------------------------------------------------------- */

static struct {
    const char *boot; /* NULL: the machine's */
    bool disk;        /* every folder is on one */
} pretended;

void publish_pretend_boot(const char *id, bool disk)
{
    pretended.boot = id;
    pretended.disk = disk;
}

int __real_sl_cgroup_read(const char *path, char text[SL_CGROUP_TEXT_BYTES]);
int __wrap_sl_cgroup_read(const char *path, char text[SL_CGROUP_TEXT_BYTES]);
int __wrap_sl_cgroup_read(const char *path, char text[SL_CGROUP_TEXT_BYTES])
{
    if (!pretended.boot || strcmp(path, "/proc/sys/kernel/random/boot_id") != 0)
        return __real_sl_cgroup_read(path, text);
    snprintf(text, SL_CGROUP_TEXT_BYTES, "%s\n", pretended.boot);
    return *pretended.boot ? 0 : -1;
}

int __real_fstatfs64(int fd, struct statfs *status);
int __wrap_fstatfs64(int fd, struct statfs *status);
int __wrap_fstatfs64(int fd, struct statfs *status)
{
    int done = __real_fstatfs64(fd, status);
    if (pretended.disk)
        status->f_type = EXT4_SUPER_MAGIC;
    return done;
}

/* ---- kills ----------------------------------------------------------------------------------- */

static void (*step)(const char *what, const char *name);
static bool in_commit;

void publish_before_steps(void (*called)(const char *what, const char *name))
{
    step = called;
}

static void before(const char *what, const char *name)
{
    if (!step)
        return;
    in_commit = in_commit || (strcmp(what, "write") == 0 && strcmp(name, SL_MANIFEST_NEW) == 0);
    if (in_commit)
        step(what, name);
}

int __real_sl_tree_write(int fd, const char *name, const void *data, size_t bytes,
                         struct sl_err *err);
int __wrap_sl_tree_write(int fd, const char *name, const void *data, size_t bytes,
                         struct sl_err *err);
int __wrap_sl_tree_write(int fd, const char *name, const void *data, size_t bytes,
                         struct sl_err *err)
{
    before("write", name);
    return __real_sl_tree_write(fd, name, data, bytes, err);
}

int __real_sl_tree_remove(int fd, const char *name);
int __wrap_sl_tree_remove(int fd, const char *name);
int __wrap_sl_tree_remove(int fd, const char *name)
{
    before("remove", name);
    return __real_sl_tree_remove(fd, name);
}

int __real_sl_tree_unlink(int fd, const char *name);
int __wrap_sl_tree_unlink(int fd, const char *name);
int __wrap_sl_tree_unlink(int fd, const char *name)
{
    before("unlink", name);
    return __real_sl_tree_unlink(fd, name);
}

int __real_renameat(int from, const char *old, int to, const char *new);
int __wrap_renameat(int from, const char *old, int to, const char *new);
int __wrap_renameat(int from, const char *old, int to, const char *new)
{
    before("rename", new);
    return __real_renameat(from, old, to, new);
}
