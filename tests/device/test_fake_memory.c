/*
 * What the fake driver is strict about where memory of a device is made, exported and mapped, each
 * rule broken once. What work may touch is in test_fake_cuda.c.
 */
#include <check.h>
#include <sys/mman.h>
#include <unistd.h>

#include "claims.h"
#include "cuda.h"
#include "mem.h"
#include "use_fake_cuda.h"

enum { GRANULE = 2 * 1024 * 1024 };

static const struct fake_cuda_control *fake;

SL_TEST(memory_is_made_as_the_driver_wants_it)
{
    uint64_t handle;
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    const struct sl_cuda_prop good = sl_cuda_shareable(0);
    struct sl_cuda_prop bad[] = {good, good, good, good};
    bad[0].type = 2, bad[1].location.id = 1, bad[2].other[3] = 1, bad[3].rdma = 1;
    fake->set_rdma(false);
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_msg(cuda->mem_create(&handle, GRANULE, &bad[i], 0) == SL_CUDA_INVALID_VALUE,
                      "%zu", i);
    ck_assert_int_eq(cuda->mem_create(&handle, 4096, &good, 0), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->mem_create(&handle, GRANULE, &good, 1), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->mem_create(&handle, (size_t)2 << 30, &good, 0), SL_CUDA_OUT_OF_MEMORY);
}

SL_TEST(only_what_was_made_for_it_is_exported)
{
    uint64_t handle;
    int fd = -1;
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    struct sl_cuda_prop prop = sl_cuda_shareable(0);
    prop.handle_types = 0;
    ck_assert_int_eq(cuda->mem_create(&handle, GRANULE, &prop, 0), 0);
    ck_assert_int_eq(cuda->mem_export(&fd, handle, SL_CUDA_HANDLE_FD, 0), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->mem_release(handle), 0);
    ck_assert_int_eq(cuda->mem_release(handle), SL_CUDA_INVALID_VALUE);
    fd = memfd_create("a file", MFD_CLOEXEC);
    ck_assert_int_eq(cuda->mem_import(&handle, (void *)(uintptr_t)fd, SL_CUDA_HANDLE_FD),
                     SL_CUDA_INVALID_VALUE);
    close(fd);
}

/* What a real driver takes is not known: the product must do with any of the three. */
SL_TEST(maps_are_as_large_as_is_set)
{
    static const struct {
        enum fake_map_rule rule;
        bool smaller, larger;
    } cases[] = {{FAKE_MAP_EXACT, false, false},
                 {FAKE_MAP_SMALLER, true, false},
                 {FAKE_MAP_LARGER, false, true}};
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    const struct sl_cuda_prop prop = sl_cuda_shareable(0);
    uint64_t handle, address;
    ck_assert_int_eq(cuda->mem_create(&handle, (size_t)2 * GRANULE, &prop, 0), 0);
    ck_assert_int_eq(cuda->address_reserve(&address, (size_t)3 * GRANULE, 0, 0, 0), 0);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        const bool taken[] = {cases[i].smaller, true, cases[i].larger};
        fake->set_map_rule(cases[i].rule);
        for (size_t n = 0; n < SL_COUNT(taken); n++) {
            size_t bytes = (n + 1) * GRANULE;
            ck_assert_int_eq(cuda->mem_map(address, bytes, 0, handle, 0),
                             taken[n] ? 0 : SL_CUDA_INVALID_VALUE);
            ck_assert(!taken[n] || cuda->mem_unmap(address, bytes) == 0);
        }
    }
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.prepare = prepare)
