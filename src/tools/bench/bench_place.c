/*
 * A folder of the bench's own, PATH/sluice-bench, locked while it is used, so that two benches do
 * not count each other's bytes, and that what a killed one left behind (on a tmpfs that is memory)
 * goes when the next begins. Links are not followed: PATH may be /dev/shm, where all may write.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_parts.h"
#include "publish.h"
#include "tree.h"

static const char run_name[] = "run", warm_name[] = "warm";

static int open_folder(struct sl_bench_place *place, const char *to, struct sl_err *err)
{
    struct stat status;
    place->parent_fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (place->parent_fd < 0)
        return sl_fail_errno(err, errno == ENOENT ? SL_E_NOT_FOUND : SL_E_NO_SPACE, errno,
                             "cannot open '%s': name a directory with --to DIR", to);
    if (mkdirat(place->parent_fd, place->name, 0700) < 0 && errno != EEXIST)
        return sl_tree_fail(err, errno, "make", place->path);
    place->fd =
        openat(place->parent_fd, place->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (place->fd < 0 || fstat(place->fd, &status) < 0)
        return sl_tree_fail(err, errno, "open", place->path);
    if (status.st_uid != geteuid())
        return sl_fail(err, SL_E_USAGE,
                       "'%s' belongs to another user: name another directory with --to DIR",
                       place->path);
    if (flock(place->fd, LOCK_EX | LOCK_NB) < 0) {
        int why = errno;
        close(place->fd); /* not ours to remove */
        place->fd = -1;
        return sl_fail_errno(err, SL_E_USAGE, why,
                             "another benchmark uses '%s': wait for it, or name another "
                             "directory with --to DIR",
                             place->path);
    }
    return 0;
}

int sl_bench_place_open(struct sl_bench_place *place, const char *to, const char *name,
                        struct sl_err *err)
{
    *place = (struct sl_bench_place){.fd = -1, .parent_fd = -1, .name = name};
    place->path = sl_asprintf(err, "%s/%s", to, name);
    place->run = place->path ? sl_asprintf(err, "%s/%s", place->path, run_name) : NULL;
    if (!place->run)
        return -1;
    return open_folder(place, to, err) < 0 ? -1 : sl_bench_place_clear(place, err);
}

int sl_bench_place_make(struct sl_bench_place *place, struct sl_err *err)
{
    if (mkdirat(place->fd, run_name, 0700) < 0)
        return sl_tree_fail(err, errno, "make", place->run);
    return 0;
}

uint64_t sl_bench_place_bytes(const struct sl_bench_place *place)
{
    sl_autoclose int fd = openat(place->fd, run_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? UINT64_MAX : sl_tree_bytes(fd);
}

int sl_bench_place_clear(struct sl_bench_place *place, struct sl_err *err)
{
    if (sl_tree_remove(place->fd, run_name) < 0 || sl_tree_remove(place->fd, warm_name) < 0)
        return sl_tree_fail(err, errno, "empty", place->path);
    return 0;
}

void sl_bench_place_warm(struct sl_bench_place *place, uint64_t bytes)
{
    if (!bytes || sl_room_check(place->path, bytes, 0, NULL, NULL) < 0)
        return;
    sl_autoclose int fd = openat(place->fd, warm_name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    unlinkat(place->fd, warm_name, 0);
    /* It is only a favour to the next run: where it cannot be done the run is as good. */
    while (fallocate(fd, 0, 0, (off_t)bytes) < 0 && errno == EINTR)
        continue;
}

void sl_bench_place_close(struct sl_bench_place *place)
{
    if (place->fd >= 0) {
        sl_bench_place_clear(place, NULL);
        unlinkat(place->parent_fd, place->name, AT_REMOVEDIR);
        close(place->fd);
    }
    if (place->parent_fd >= 0)
        close(place->parent_fd);
    free(place->path);
    free(place->run);
    *place = (struct sl_bench_place){.fd = -1, .parent_fd = -1};
}
