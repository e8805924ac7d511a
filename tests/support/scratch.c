/* mkdtemp and nftw: nothing outside the directory is ever touched. */
#include "scratch.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int sl_scratch_open(char path[SL_SCRATCH_PATH_BYTES])
{
    const char *base = getenv("TMPDIR");
    if (!base || !*base)
        base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    if (snprintf(path, SL_SCRATCH_PATH_BYTES, "%s/sluice-test-XXXXXX", base) >=
            SL_SCRATCH_PATH_BYTES ||
        !mkdtemp(path))
        abort();
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        abort();
    return directory;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return remove(path);
}

void sl_scratch_close(int directory, const char *path)
{
    close(directory);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}
