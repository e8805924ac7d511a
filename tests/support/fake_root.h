/* A made-up /proc and /sys. A program that uses it needs the link options of SLUICE_FAKE_ROOT
 * (CMakeLists.txt). One thread. */
#ifndef SL_FAKE_ROOT_H
#define SL_FAKE_ROOT_H

#include "scratch.h"

/** The folder with both, empty at first; it is on no file system with a limit, and in memory. */
extern char fake_root[SL_SCRATCH_PATH_BYTES];
void fake_root_setup(void);
void fake_root_teardown(void);
/** A file and the folders above it: "/proc/meminfo". */
void fake_root_put(const char *path, const char *text);
/** From now on those of the machine are seen. */
void fake_root_leave(void);

#endif
