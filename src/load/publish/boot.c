/*
 * Files are not synced: what lies on a disk was written for certain only as long as the machine
 * runs. So manifest and ready say of which boot they are, and on a disk those of another one are
 * believed only after every file has been read and compared with its CRC32C. What lies in memory
 * does not outlive a boot.
 */
#include <string.h>

#include "log.h"
#include "publish_parts.h"

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
