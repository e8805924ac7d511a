/* Device memory behind descriptors, against the fake driver. */
#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "gpu.h"
#include "use_fake_cuda.h"

enum { MIB = 1024 * 1024 };

static const struct fake_cuda_control *fake;

static struct sl_gpu *open_gpu(int ordinal)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_gpu *gpu = sl_gpu_open(ordinal, &err);
    ck_assert_msg(gpu, "%s", err.message);
    return gpu;
}

static uint64_t free_of(struct sl_gpu *gpu)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t free_bytes = 0, total_bytes = 0;
    ck_assert_msg(sl_gpu_memory(gpu, &free_bytes, &total_bytes, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(total_bytes, 1024ull * MIB);
    return free_bytes;
}

SL_TEST(a_descriptor_alone_keeps_the_memory)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_gpu) gpu = open_gpu(0);
    struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
    uint64_t before = free_of(gpu);
    ck_assert_uint_eq(sl_gpu_round(gpu, 3 * MIB), 4 * MIB);
    ck_assert_int_eq(sl_gpu_memory_make(gpu, 4 * MIB, &memory, &err), 0);
    ck_assert_uint_eq(free_of(gpu), before - 4 * MIB);
    ck_assert(fcntl(memory.fd, F_GETFD) & FD_CLOEXEC);
    sl_gpu_memory_unmap(gpu, &memory);
    struct fake_cuda_counts counts;
    fake->counts(&counts);
    ck_assert_uint_eq(counts.handles + counts.mappings + counts.reservations + counts.contexts, 0);
    ck_assert_uint_eq(free_of(gpu), before - 4 * MIB);
    sl_gpu_memory_release(gpu, &memory);
    ck_assert_uint_eq(free_of(gpu), before);
    check_no_cuda_left(fake);
}

/* The flag is asked for where the device says that it can: a driver refuses it elsewhere. */
SL_TEST(network_cards_may_read_it_where_the_device_can)
{
    for (int has = 0; has < 2; has++) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
        struct sl_cuda_prop prop;
        fake->set_rdma(has);
        SL_AUTO(sl_gpu) gpu = open_gpu(0);
        ck_assert_msg(sl_gpu_memory_make(gpu, 2 * MIB, &memory, &err) == 0, "%s", err.message);
        ck_assert_int_eq(sl_cuda_open(NULL)->mem_prop(&prop, memory.handle), 0);
        ck_assert_int_eq(prop.rdma, has);
        sl_gpu_memory_release(gpu, &memory);
    }
}

SL_TEST(every_call_that_fails_leaves_nothing)
{
    static const char *const names[] = {"cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent",
                                        "cuMemCreate",
                                        "cuMemExportToShareableHandle",
                                        "cuMemAddressReserve",
                                        "cuMemMap",
                                        "cuMemSetAccess"};
    SL_AUTO(sl_gpu) gpu = open_gpu(0);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        for (int full = 0; full < 2; full++) {
            struct sl_err err = SL_ERR_INIT;
            struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
            fake->fail_call(names[i], 1, full ? SL_CUDA_OUT_OF_MEMORY : SL_CUDA_UNKNOWN);
            ck_assert_int_eq(sl_gpu_memory_make(gpu, 2 * MIB, &memory, &err), -1);
            ck_assert_msg(err.kind == (full ? SL_E_NO_SPACE : SL_E_GPU), "%s", names[i]);
            ck_assert_msg(strstr(err.message, "cuda:0"), "%s", err.message);
            ck_assert_int_eq(memory.fd, -1);
            check_no_cuda_left(fake);
        }
    }
    struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
    ck_assert_int_eq(sl_gpu_memory_make(gpu, 2 * MIB, &memory, NULL), 0);
    sl_gpu_memory_release(gpu, &memory);
    check_no_cuda_left(fake);
}

SL_TEST(a_full_device_says_how_much_was_free)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
    fake->set_bytes(8 * MIB);
    SL_AUTO(sl_gpu) gpu = open_gpu(0);
    ck_assert_int_eq(sl_gpu_memory_make(gpu, 10 * MIB, &memory, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_msg(strstr(err.message, "10485760 bytes are wanted and 8388608 of 8388608 free"),
                  "%s", err.message);
    check_no_cuda_left(fake);
}

SL_TEST(two_devices_are_apart)
{
    struct sl_err err = SL_ERR_INIT;
    fake->set_devices(2);
    SL_AUTO(sl_gpu) first = open_gpu(0);
    SL_AUTO(sl_gpu) second = open_gpu(1);
    struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
    uint64_t before = free_of(first);
    ck_assert_int_eq(sl_gpu_memory_make(second, 4 * MIB, &memory, &err), 0);
    ck_assert_uint_eq(free_of(first), before);
    ck_assert_uint_eq(free_of(second), before - 4 * MIB);
    ck_assert_int_eq(sl_gpu_memory_check(second, memory.fd, 4 * MIB, &err), 0);
    ck_assert_int_eq(sl_gpu_memory_check(first, memory.fd, 4 * MIB, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    sl_gpu_memory_release(second, &memory);
    check_no_cuda_left(fake);
}

SL_TEST(memory_of_others_is_checked)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_gpu) gpu = open_gpu(0);
    struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
    ck_assert_int_eq(sl_gpu_memory_make(gpu, 4 * MIB, &memory, &err), 0);
    ck_assert_int_eq(sl_gpu_memory_check(gpu, memory.fd, 4 * MIB, &err), 0);
    ck_assert_int_eq(sl_gpu_memory_check(gpu, memory.fd, 6 * MIB, &err), -1);
    ck_assert_int_eq(sl_gpu_memory_check(gpu, memory.fd, 3 * MIB, &err), -1);
    ck_assert_int_eq(sl_gpu_memory_check(gpu, memory.fd, 0, &err), -1);
    sl_gpu_memory_release(gpu, &memory);
    int fd = memfd_create("other", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(fd, 4 * MIB), 0);
    ck_assert_int_eq(sl_gpu_memory_check(gpu, fd, 4 * MIB, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    close(fd);
    check_no_cuda_left(fake);
}

/* Whether a driver maps less than there is, or more, is documented nowhere. */
SL_TEST(a_size_that_the_driver_does_not_check_is_not_believed)
{
    static const struct {
        enum fake_map_rule rule;
        int less, exact, more;
    } cases[] = {
        {FAKE_MAP_EXACT, -1, 0, -1}, {FAKE_MAP_SMALLER, -1, 0, -1}, {FAKE_MAP_LARGER, -1, -1, -1}};
    SL_AUTO(sl_gpu) gpu = open_gpu(0);
    struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
    ck_assert_int_eq(sl_gpu_memory_make(gpu, 4 * MIB, &memory, NULL), 0);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        const int wanted[] = {cases[i].less, cases[i].exact, cases[i].more};
        fake->set_map_rule(cases[i].rule);
        for (size_t n = 0; n < SL_COUNT(wanted); n++) {
            struct sl_err err = SL_ERR_INIT;
            ck_assert_int_eq(sl_gpu_memory_check(gpu, memory.fd, (n + 1) * 2 * MIB, &err),
                             wanted[n]);
            ck_assert(wanted[n] == 0 || err.kind == SL_E_INTEGRITY);
        }
    }
    fake->set_map_rule(FAKE_MAP_EXACT);
    sl_gpu_memory_release(gpu, &memory);
    check_no_cuda_left(fake);
}

SL_TEST(memory_that_tells_another_gpu_is_refused)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_gpu) gpu = open_gpu(0);
    struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
    ck_assert_int_eq(sl_gpu_memory_make(gpu, 4 * MIB, &memory, NULL), 0);
    fake->set_imported(1);
    ck_assert_int_eq(sl_gpu_memory_check(gpu, memory.fd, 4 * MIB, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_msg(strstr(err.message, "does not belong to cuda:0"), "%s", err.message);
    fake->set_imported(-1);
    sl_gpu_memory_release(gpu, &memory);
    check_no_cuda_left(fake);
}

SL_TEST(a_lost_device_fails_for_good_and_leaves_nothing)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_gpu) gpu = open_gpu(0);
    struct sl_gpu_memory memory = SL_GPU_MEMORY_INIT;
    fake->fail_call("cuMemMap", 1, SL_CUDA_LAUNCH_FAILED);
    ck_assert_int_eq(sl_gpu_memory_make(gpu, 2 * MIB, &memory, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_GPU);
    uint64_t calls = fake->calls("*");
    ck_assert_int_eq(sl_gpu_memory_make(gpu, 2 * MIB, &memory, &err), -1);
    ck_assert_msg(strstr(err.message, "cuda:0 is lost for this process"), "%s", err.message);
    ck_assert_msg(strstr(err.message, "restart the process"), "%s", err.message);
    ck_assert_uint_eq(fake->calls("*"), calls);
}

SL_TEST(no_allocation_is_left_when_one_fails)
{
    for (unsigned nth = 1;; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        struct sl_gpu *gpu = sl_gpu_open(0, &err);
        sl_alloc_fail_at(0);
        sl_gpu_free(gpu);
        check_no_cuda_left(fake);
        if (gpu)
            break;
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.prepare = prepare)
