/* The linker gives us what the program asks of paths (--wrap). */
#include "fake_root.h"

#include <check.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

char fake_root[SL_SCRATCH_PATH_BYTES];
static int root_fd;
static bool seen;

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __real_stat64(const char *path, struct stat *status);
int __wrap_stat64(const char *path, struct stat *status);
int __real_statfs64(const char *path, struct statfs *status);
int __wrap_statfs64(const char *path, struct statfs *status);
int __real_statvfs64(const char *path, struct statvfs *status);
int __wrap_statvfs64(const char *path, struct statvfs *status);

void fake_root_setup(void)
{
    root_fd = sl_scratch_open(fake_root);
    seen = true;
}

void fake_root_leave(void)
{
    seen = false;
}

void fake_root_teardown(void)
{
    fake_root_leave();
    sl_scratch_close(root_fd, fake_root);
}

static const char *place(const char *path, char whole[1024])
{
    if (!seen || (strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/sys/", 5) != 0))
        return path;
    ck_assert_int_lt(snprintf(whole, 1024, "%s%s", fake_root, path), 1024);
    return whole;
}

void fake_root_put(const char *path, const char *text)
{
    char whole[1024];
    snprintf(whole, sizeof(whole), "%s%s", fake_root, path);
    for (char *slash = strchr(whole + strlen(fake_root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(whole, 0755);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

/* What the program opens here it only reads. */
int __wrap_open64(const char *path, int flags, ...)
{
    char whole[1024];
    return __real_open64(place(path, whole), flags, 0);
}

int __wrap_stat64(const char *path, struct stat *status)
{
    char whole[1024];
    return __real_stat64(place(path, whole), status);
}

int __wrap_statfs64(const char *path, struct statfs *status)
{
    int done = __real_statfs64(path, status);
    if (seen)
        status->f_type = TMPFS_MAGIC;
    return done;
}

/* A tmpfs without size= has no blocks. */
int __wrap_statvfs64(const char *path, struct statvfs *status)
{
    int done = __real_statvfs64(path, status);
    if (seen)
        status->f_blocks = 0;
    return done;
}
