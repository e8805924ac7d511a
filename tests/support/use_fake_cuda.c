/*
 * dlopen("libcuda.so.1") takes a library that is already loaded under this name, so loading the
 * fake by its path is enough for the process itself.
 */
#include "use_fake_cuda.h"

#include <check.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

const struct fake_cuda_control *use_fake_cuda(void)
{
    const struct fake_cuda_control *fake;
    void *library = dlopen(SL_FAKE_CUDA "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library || !(fake = dlsym(library, "fake_cuda_control"))) {
        fprintf(stderr, "no fake driver: %s\n", dlerror());
        exit(1);
    }
    setenv("LD_LIBRARY_PATH", SL_FAKE_CUDA, 1);
    fake->reset();
    return fake;
}

int fake_cuda_file(int fd)
{
    void *library = dlopen(SL_FAKE_CUDA "/libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    const struct fake_cuda_control *fake = library ? dlsym(library, "fake_cuda_control") : NULL;
    int file = fake ? fake->file(fd) : -1;
    if (library)
        dlclose(library);
    return file >= 0 ? file : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

void check_no_cuda_left(const struct fake_cuda_control *fake)
{
    struct fake_cuda_counts counts;
    fake->counts(&counts);
    ck_assert_uint_eq(counts.handles, 0);
    ck_assert_uint_eq(counts.mappings, 0);
    ck_assert_uint_eq(counts.reservations, 0);
    ck_assert_uint_eq(counts.streams, 0);
    ck_assert_uint_eq(counts.events, 0);
    ck_assert_uint_eq(counts.modules, 0);
    ck_assert_uint_eq(counts.host_buffers, 0);
    ck_assert_uint_eq(counts.contexts, 0);
    ck_assert_uint_eq(counts.left, 0);
    ck_assert_uint_eq(counts.bytes, 0);
}
