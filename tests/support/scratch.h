/* A directory of a test's own, gone afterwards. */
#ifndef SL_SCRATCH_H
#define SL_SCRATCH_H

enum { SL_SCRATCH_PATH_BYTES = 256 };
/** Make one below TMPDIR or /dev/shm and open it; aborts if that fails. */
int sl_scratch_open(char path[SL_SCRATCH_PATH_BYTES]);
/** Remove it with everything in it. */
void sl_scratch_close(int directory, const char *path);

#endif
