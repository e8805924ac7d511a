/*
 * The kernel resolves the whole path at once, so nothing can be exchanged between a look and the
 * opening. Without openat2 (an old kernel, a filter of system calls) each component is opened below
 * the last, and a link is refused wherever it leads.
 */
#include "beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mem.h"

enum { RACES_MAX = 128, COMPONENT_BYTES = 256 };

/* A rename somewhere on the way makes it EAGAIN. */
static int open_whole(int root_fd, const char *path, int flags)
{
    struct open_how how = {.flags = (unsigned)flags | O_CLOEXEC,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    long fd = -1;
    for (unsigned i = 0; i < RACES_MAX; i++) {
        fd = syscall(SYS_openat2, root_fd, path, &how, sizeof(how));
        if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
            break;
    }
    return (int)fd;
}

static bool is_link(int folder_fd, const char *name, int flags)
{
    struct stat status;
    return fstatat(folder_fd, name, &status, AT_SYMLINK_NOFOLLOW | flags) == 0 &&
           S_ISLNK(status.st_mode);
}

/* One component; the last is what is wanted, the others are only passed. */
static int step(int fd, const char *name, size_t bytes, bool last, int flags)
{
    char component[COMPONENT_BYTES];
    if (bytes >= sizeof(component)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(component, name, bytes);
    component[bytes] = 0;
    if (strcmp(component, "..") == 0) {
        errno = EXDEV;
        return -1;
    }
    int next = openat(fd, component, (last ? flags : O_PATH) | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0 && errno == ENOTDIR && is_link(fd, component, 0))
        errno = ELOOP;
    if (next < 0 || !is_link(next, "", AT_EMPTY_PATH))
        return next;
    close(next);
    errno = ELOOP;
    return -1;
}

static int open_stepwise(int root_fd, const char *path, int flags)
{
    sl_autoclose int folder = -1;
    int fd = root_fd;
    if (*path == '/') {
        errno = EXDEV;
        return -1;
    }
    for (;;) {
        size_t bytes = strcspn(path, "/");
        const char *rest = path + bytes + strspn(path + bytes, "/");
        int next = step(fd, path, bytes, !*rest, path[bytes] ? flags | O_DIRECTORY : flags);
        if (!*rest || next < 0)
            return next;
        sl_autoclose_(&folder);
        fd = folder = next;
        path = rest;
    }
}

int sl_beneath_open(int root_fd, const char *path, int flags)
{
    const char *name = *path ? path : ".";
    int fd = open_whole(root_fd, name, flags);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) /* EPERM: old filters say so */
        return fd;
    return open_stepwise(root_fd, name, flags);
}
