/*
 * The kernels of kernels.def as functions of the host, from the same source as those of the
 * device: for tests, and for a driver that only pretends to have a GPU. Slow: threads of a block
 * take turns. Needs libc alone. Any thread; rows are constants.
 */
#ifndef SL_FAKE_CUDA_ROWS_H
#define SL_FAKE_CUDA_ROWS_H

#include <stddef.h>
#include <stdint.h>

struct fake_cuda_row {
    const char *name;  /* as in the image: "sl_cast" */
    size_t args_bytes; /* of its one argument */
    unsigned threads;  /* of a block: what it must be launched with */
    size_t shared_bytes;
    /** One block of `blocks`; shared: shared_bytes, aligned as malloc() does, any contents. */
    void (*run)(const void *args, void *shared, uint64_t block, uint64_t blocks);
};

/** By the name in the image; NULL: there is none. */
const struct fake_cuda_row *fake_cuda_row_find(const char *name);
/** All of them, in the order of their rows; NULL behind the last. */
const struct fake_cuda_row *fake_cuda_row_at(size_t number);
/**
 * What a driver does for a launch: all blocks, one after another. `args` is what the first of the
 * launch's parameters points to; addresses in it are addresses of this process. -1: threads are
 * not those that the kernel was made for, or there is no memory.
 */
int fake_cuda_row_launch(const struct fake_cuda_row *kernel, uint64_t blocks, unsigned threads,
                         const void *args);

#endif
