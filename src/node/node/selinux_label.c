/*
 * The kernel's list of file systems tells whether SELinux is on: inside a container its own file
 * system is seldom mounted. A user of a label (system_u, unconfined_u) says who made a file and
 * decides nothing about who may read it, so labels are compared without it.
 */
#include "selinux_label.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#include "buf.h"
#include "log.h"

#define ATTRIBUTE "security.selinux"
enum { LABEL_BYTES = 4096, LIST_BYTES_MAX = 64 * 1024 };

static bool is_on(void)
{
    sl_autobuf list = SL_BUF_INIT(LIST_BYTES_MAX);
    return sl_buf_read_file(&list, "/proc/filesystems", NULL) == 0 &&
           strstr(sl_buf_string(&list), "\tselinuxfs\n");
}

bool sl_selinux_is_asked(const struct sl_node_spec *spec)
{
    const char *text = spec->selinux_label;
    return text && strcmp(text, "auto") != 0 && strcmp(text, "none") != 0;
}

const char *sl_selinux_label(const struct sl_node_spec *spec)
{
    const char *text = spec->selinux_label;
    if ((text && strcmp(text, "none") == 0) || !is_on())
        return NULL;
    return sl_selinux_is_asked(spec) ? text : SL_SELINUX_AUTO;
}

static bool is_same(const char *label, const char *other)
{
    return strcmp(label + strcspn(label, ":"), other + strcspn(other, ":")) == 0;
}

/* path: a last component that is a link is not followed only if follow is false. False: it has
 * none. */
static bool read_label(const char *path, bool follow, char label[LABEL_BYTES])
{
    ssize_t bytes = follow ? getxattr(path, ATTRIBUTE, label, LABEL_BYTES - 1)
                           : lgetxattr(path, ATTRIBUTE, label, LABEL_BYTES - 1);
    if (bytes <= 0)
        return false;
    label[bytes] = 0;
    return true;
}

void sl_selinux_check(int fd, const char *path, const char *label, const char *advice)
{
    char name[64], found[LABEL_BYTES];
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    if (label && read_label(name, true, found) && !is_same(label, found))
        sl_log(SL_LOG_WARN,
               "'%s' has the SELinux label '%.200s' and not '%s', so pods may be denied its files: "
               "%s",
               path, found, label, advice);
}

void sl_selinux_give(int folder_fd, const char *name, const char *path, const char *label)
{
    char place[320], found[LABEL_BYTES];
    snprintf(place, sizeof(place), "/proc/self/fd/%d/%.255s", folder_fd, name);
    if (!label || (read_label(place, false, found) && is_same(label, found)) ||
        lsetxattr(place, ATTRIBUTE, label, strlen(label) + 1, 0) == 0)
        return;
    sl_log(SL_LOG_WARN,
           "the kernel refuses the SELinux label '%s' for the socket '%s', so pods may be denied "
           "it: %s",
           label, path, strerror(errno));
}
