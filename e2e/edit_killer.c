/* Preloaded into edit_killer.py: ends the process at the nth call that changes a file, after half
 * of what that call would write. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#define OWN(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static unsigned left; /* 0: never */

void edit_killer_arm(unsigned nth)
{
    left = nth;
}

static int is_last(void)
{
    return left && !--left;
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset)
{
    int last = is_last();
    ssize_t done = OWN(pwrite64)(fd, data, last ? bytes / 2 : bytes, offset);
    if (last)
        raise(SIGKILL);
    return done;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    int last = is_last();
    ssize_t done = OWN(write)(fd, data, last ? bytes / 2 : bytes);
    if (last)
        raise(SIGKILL);
    return done;
}

int fsync(int fd)
{
    if (is_last())
        raise(SIGKILL);
    return OWN(fsync)(fd);
}

int ftruncate64(int fd, off64_t bytes)
{
    if (is_last())
        raise(SIGKILL);
    return OWN(ftruncate64)(fd, bytes);
}

int unlinkat(int folder, const char *name, int flags)
{
    if (is_last())
        raise(SIGKILL);
    return OWN(unlinkat)(folder, name, flags);
}
