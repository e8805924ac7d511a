/* The folder in which a version is made before it is published. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "owners.h"
#include "publish_parts.h"

enum { FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC };

int sl_publish_staging(struct sl_publish *publish, struct sl_err *err)
{
    if (publish->staging_fd >= 0)
        return publish->staging_fd;
    if (mkdirat(publish->state_fd, SL_STAGING, 0700) < 0 && errno != EEXIST)
        return sl_tree_fail(err, errno, "make the staging directory in", publish->path);
    publish->staging_fd = openat(publish->state_fd, SL_STAGING, FOLDER | O_NOFOLLOW);
    if (publish->staging_fd < 0)
        return sl_tree_fail(err, errno, "open the staging directory in", publish->path);
    if (sl_publish_check_own(publish, publish->staging_fd, "/" SL_STAGING, err) == 0)
        return publish->staging_fd;
    sl_autoclose_(&publish->staging_fd);
    publish->staging_fd = -1;
    return -1;
}

uint64_t sl_publish_staged_bytes(struct sl_publish *publish)
{
    sl_autoclose int fd = openat(publish->state_fd, SL_STAGING, FOLDER | O_NOFOLLOW);
    return fd < 0 ? 0 : sl_tree_bytes(fd);
}

int sl_publish_discard(struct sl_publish *publish, bool keep_journal, struct sl_err *err)
{
    sl_autoclose_(&publish->staging_fd);
    publish->staging_fd = -1;
    if ((!keep_journal && sl_tree_remove(publish->state_fd, SL_JOURNAL_NAME) < 0) ||
        sl_tree_remove(publish->state_fd, SL_STAGING) < 0)
        return sl_tree_fail(err, errno, "clear the staging directory in", publish->path);
    return 0;
}

int sl_publish_check_own(const struct sl_publish *publish, int fd, const char *below,
                         struct sl_err *err)
{
    sl_autofree char *path = sl_asprintf(err, "%s/" SL_STATE_DIRECTORY "%s", publish->path, below);
    return path ? sl_owners_check_folder(fd, path, err) : -1;
}
