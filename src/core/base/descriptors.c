/* Of a limit of 64: 12 connections (36), 8 files, and 20 for all that a process has anyway. */
#include "descriptors.h"

#include <stdbool.h>
#include <sys/resource.h>

#include "mem.h"

enum { LEAST = 4, PARTS_OF_CONNECTIONS = 5, PARTS_OF_FILES = 8 };

static struct rlimit before;
static bool raised;

void sl_descriptors_raise(void)
{
    if (getrlimit(RLIMIT_NOFILE, &before) < 0 || before.rlim_cur == before.rlim_max)
        return;
    const struct rlimit wanted = {before.rlim_max, before.rlim_max};
    raised = setrlimit(RLIMIT_NOFILE, &wanted) == 0;
}

void sl_descriptors_restore(void)
{
    if (raised)
        setrlimit(RLIMIT_NOFILE, &before);
}

unsigned sl_descriptors(void)
{
    struct rlimit now;
    if (getrlimit(RLIMIT_NOFILE, &now) < 0)
        return 1024;
    return (unsigned)SL_MIN(now.rlim_cur, (rlim_t)1 << 20);
}

unsigned sl_descriptors_for_files(unsigned wanted)
{
    return SL_MAX(SL_MIN(sl_descriptors() / PARTS_OF_FILES, wanted), (unsigned)LEAST);
}

unsigned sl_descriptors_for_connections(void)
{
    return SL_MAX(sl_descriptors() / PARTS_OF_CONNECTIONS, (unsigned)LEAST);
}
