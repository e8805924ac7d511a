/* Which boot of the machine this is: what another one wrote to a disk may never have reached it. */
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>

#include "cgroup.h"
#include "publish_parts.h"

void sl_boot_id(char id[SL_BOOT_BYTES])
{
    char text[SL_CGROUP_TEXT_BYTES];
    id[0] = 0;
    if (sl_cgroup_read("/proc/sys/kernel/random/boot_id", text) < 0)
        return;
    size_t bytes = strcspn(text, "\n");
    if (bytes < SL_BOOT_BYTES)
        snprintf(id, SL_BOOT_BYTES, "%.*s", (int)bytes, text);
}

static bool is_memory(int directory_fd)
{
    struct statfs system;
    if (fstatfs(directory_fd, &system) < 0)
        return false;
    return (uint32_t)system.f_type == TMPFS_MAGIC || (uint32_t)system.f_type == RAMFS_MAGIC ||
           (uint32_t)system.f_type == HUGETLBFS_MAGIC;
}

bool sl_boot_is_past(int directory_fd, const json_t *document)
{
    char this_boot[SL_BOOT_BYTES];
    const char *boot = sl_json_get_string(document, "boot");
    sl_boot_id(this_boot);
    bool same = boot && *boot && strcmp(boot, this_boot) == 0;
    return !same && !is_memory(directory_fd);
}
