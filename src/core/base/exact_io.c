/* pread(), pwrite() and write() take less than was asked for at the end of a file, of its space, on
 * a signal, and always beyond 2 GiB. */
#include "exact_io.h"

#include <errno.h>
#include <unistd.h>

static int check_range(size_t bytes, uint64_t offset)
{
    if (offset <= INT64_MAX && bytes <= INT64_MAX - offset)
        return 0;
    errno = EOVERFLOW;
    return -1;
}

/* What one call did. 1: go on, 0: there is nothing more, -1: it failed for good. */
static int take(ssize_t moved, size_t *done)
{
    if (moved > 0)
        *done += (size_t)moved;
    return moved > 0 ? 1 : moved == 0 ? 0 : errno == EINTR ? 1 : -1;
}

int sl_read_at(int fd, void *data, size_t bytes, uint64_t offset)
{
    if (check_range(bytes, offset) < 0)
        return -1;
    int more = 1;
    for (size_t done = 0; more > 0 && done < bytes;)
        more = take(pread(fd, (uint8_t *)data + done, bytes - done, (off_t)(offset + done)), &done);
    if (more == 0)
        errno = ENODATA;
    return more > 0 ? 0 : -1;
}

int sl_write_at(int fd, const void *data, size_t bytes, uint64_t offset)
{
    if (check_range(bytes, offset) < 0)
        return -1;
    int more = 1;
    for (size_t done = 0; more > 0 && done < bytes;)
        more = take(pwrite(fd, (const uint8_t *)data + done, bytes - done, (off_t)(offset + done)),
                    &done);
    if (more == 0)
        errno = ENOSPC;
    return more > 0 ? 0 : -1;
}

int sl_write_all(int fd, const void *data, size_t bytes)
{
    int more = 1;
    for (size_t done = 0; more > 0 && done < bytes;)
        more = take(write(fd, (const uint8_t *)data + done, bytes - done), &done);
    if (more == 0)
        errno = ENOSPC;
    return more > 0 ? 0 : -1;
}
