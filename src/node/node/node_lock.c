/* A lock of a file in the directory: the kernel drops it with the process, so there is no stale
 * one. */
#include "node_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

#include "mem.h"
#include "node_folder.h"
#include "thread.h"
#include "tree.h"

#define LOCK_FILE ".lock"
/* `status`, `rm` and loads try the lock for a moment: that is no daemon yet. */
enum { TRIES = 25, PAUSE_MS = 20 };

int sl_node_lock(int fd, const char *path, struct sl_err *err)
{
    sl_autoclose int lock_fd =
        openat(fd, LOCK_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (lock_fd < 0)
        return sl_tree_fail(err, errno, "open the lock of", path);
    struct stat status;
    if (fstat(lock_fd, &status) < 0 || !S_ISREG(status.st_mode) || !sl_node_is_own(&status))
        return sl_fail_code(err, SL_E_NO_SPACE, "owner",
                            "'" LOCK_FILE "' in '%s' is not the daemon's own: remove it", path);
    for (unsigned i = 1; flock(lock_fd, LOCK_EX | LOCK_NB) < 0; i++) {
        if (errno != EWOULDBLOCK)
            return sl_tree_fail(err, errno, "lock", path);
        if (i == TRIES)
            return sl_fail(err, SL_E_NO_SPACE,
                           "another node daemon has the directory '%s': end it, or give this one "
                           "another",
                           path);
        if (sl_sleep_ms(PAUSE_MS, NULL, err) < 0)
            return -1;
    }
    int locked = lock_fd;
    lock_fd = -1;
    return locked;
}
