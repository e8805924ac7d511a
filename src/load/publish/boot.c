/*
 * Files are not synced: what lies on a disk was written for certain only as long as the machine
 * runs. So manifest and ready say of which boot they are, and on a disk those of another one are
 * believed only after every file has been read and compared with its CRC32C. What lies in memory
 * does not outlive a boot.
 */
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cgroup.h"
#include "log.h"
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

int sl_published_check(int root_fd, int staging_fd, const struct sl_published *published,
                       struct sl_cancel *cancel, struct sl_err *err)
{
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, SL_HASH_BUFFER_BYTES, err);
    if (!buffer)
        return -1;
    for (size_t i = 0; i < published->count; i++) {
        bool good = false;
        if (staging_fd >= 0 &&
            sl_published_hash(staging_fd, &published->files[i], buffer, cancel, &good, err) < 0)
            return -1;
        if (!good &&
            sl_published_hash(root_fd, &published->files[i], buffer, cancel, &good, err) < 0)
            return -1;
        if (!good)
            return sl_fail(err, SL_E_INTEGRITY,
                           "the machine was restarted since it was written, and '%s' does not "
                           "match its CRC32C of the manifest",
                           published->files[i].name);
    }
    return 0;
}

int sl_publish_outlived(struct sl_publish *publish, const json_t *ready, const char *identity,
                        struct sl_cancel *cancel, struct sl_err *err)
{
    __attribute__((cleanup(sl_published_release))) struct sl_published published = {0};
    if (!sl_boot_is_past(publish->root_fd, ready))
        return 0;
    sl_log(SL_LOG_INFO,
           "the machine was restarted since '%s' was published on a disk: its files are read "
           "and compared with the manifest",
           publish->path);
    if (sl_published_read(publish->state_fd, SL_MANIFEST, &published, err) < 0)
        return -1;
    if (strcmp(published.identity, identity) != 0)
        return sl_fail(err, SL_E_INTEGRITY, "the manifest in '%s' is of another load",
                       publish->path);
    if (sl_published_check(publish->root_fd, -1, &published, cancel, err) < 0)
        return -1;
    struct sl_err why = SL_ERR_INIT; /* then the next load reads them again */
    if (sl_commit_write_ready(publish, &published, &why) < 0)
        sl_log(SL_LOG_DEBUG, "%s", why.message);
    return 0;
}
