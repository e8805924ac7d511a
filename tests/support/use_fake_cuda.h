/* Tests run against the fake driver of fake_cuda.h. */
#ifndef SL_USE_FAKE_CUDA_H
#define SL_USE_FAKE_CUDA_H

#include "fake_cuda.h"

/** Load it, for this process and, by LD_LIBRARY_PATH, for those it starts. Its knobs are reset.
 * Call it in main(), before threads begin. */
const struct fake_cuda_control *use_fake_cuda(void);
/** The memory behind a descriptor of the fake driver as a file; of any other the file itself. The
 * caller's. */
int fake_cuda_file(int fd);
/** ck_assert that the process has nothing of the driver. */
void check_no_cuda_left(const struct fake_cuda_control *fake);

#endif
