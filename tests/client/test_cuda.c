/* The driver's table, against the fake driver. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "cuda.h"
#include "mem.h"
#include "use_fake_cuda.h"

static const struct fake_cuda_control *fake;
static const char *driver_at; /* the only place where there is a driver; NULL: as it is */

void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);

void *__wrap_dlopen(const char *path, int flags)
{
    if (!driver_at || !path || !strstr(path, "libcuda.so.1"))
        return __real_dlopen(path, flags);
    return __real_dlopen(strcmp(path, driver_at) == 0 ? SL_FAKE_CUDA "/libcuda.so.1" : "/nowhere",
                         flags);
}

/* The driver is opened once for a process: each of these runs in one of its own (fork mode). */
SL_TEST(a_driver_is_found_and_initialised)
{
    struct sl_cuda_err err;
    const struct sl_cuda *cuda = sl_cuda_open(&err);
    ck_assert_ptr_nonnull(cuda);
    ck_assert_int_eq(cuda->version, 12080);
    ck_assert_ptr_eq(cuda, sl_cuda_open(&err));
    ck_assert_uint_eq(fake->calls("cuInit"), 1);
}

SL_TEST(a_driver_is_found_where_container_runtimes_put_it)
{
    driver_at = "/usr/local/nvidia/lib64/libcuda.so.1";
    ck_assert_ptr_nonnull(sl_cuda_open(NULL));
}

SL_TEST(a_driver_is_found_in_their_older_place)
{
    driver_at = "/usr/local/nvidia/lib/libcuda.so.1";
    ck_assert_ptr_nonnull(sl_cuda_open(NULL));
}

SL_TEST(the_places_without_a_driver_are_named)
{
    struct sl_cuda_err err = {0};
    driver_at = "";
    ck_assert_ptr_null(sl_cuda_open(&err));
    ck_assert_msg(strstr(err.message, "/usr/local/nvidia/lib64") && strstr(err.message, "compute"),
                  "%s", err.message);
}

static void check_refused(const char *word, const char *advice)
{
    struct sl_cuda_err err = {0};
    ck_assert_ptr_null(sl_cuda_open(&err));
    ck_assert_msg(strstr(err.message, word) && strstr(err.message, advice), "%s", err.message);
    ck_assert_ptr_null(strchr(err.message, '\n'));
}

SL_TEST(an_old_driver_is_named)
{
    fake->set_version(11020);
    check_refused("it has CUDA 11.2, and sluice needs 11.4", "update it");
    fake->set_version(12080);
    ck_assert_ptr_nonnull(sl_cuda_open(NULL));
}

SL_TEST(a_missing_function_is_named)
{
    setenv("FAKE_CUDA_LACKS", "cuMemMap", 1);
    check_refused("no function cuMemMap", "update it");
    setenv("FAKE_CUDA_LACKS", "cuDeviceGetPCIBusId", 1);
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    ck_assert_ptr_nonnull(cuda);
    ck_assert_ptr_null((void *)cuda->device_pci_bus_id);
}

SL_TEST(a_driver_without_a_device_is_told)
{
    fake->set_devices(0);
    check_refused("CUDA_ERROR_NO_DEVICE", "give the container or the machine a GPU");
}

SL_TEST(a_driver_that_fails_is_told)
{
    fake->fail_call("cuInit", 1, SL_CUDA_SYSTEM_NOT_READY);
    check_refused("cannot initialise NVIDIA's driver", "nvidia-fabricmanager");
}

SL_TEST(devices_are_told_by_ordinal_and_by_uuid)
{
    struct sl_cuda_err err;
    struct sl_cuda_device first, second, again;
    fake->set_devices(2);
    const struct sl_cuda *cuda = sl_cuda_open(&err);
    ck_assert_int_eq(sl_cuda_device(cuda, 0, &first, &err), 0);
    ck_assert_int_eq(sl_cuda_device(cuda, 1, &second, &err), 0);
    ck_assert_int_ne(memcmp(first.uuid, second.uuid, 16), 0);
    ck_assert_uint_eq(first.granularity, 2 * 1024 * 1024);
    ck_assert_int_eq(sl_cuda_device(cuda, 2, &again, &err), -1);
    ck_assert_int_eq(err.result, SL_CUDA_INVALID_DEVICE);
    ck_assert_ptr_nonnull(strstr(err.message, "there is no cuda:2: this process sees 2 GPUs"));
}

SL_TEST(every_failing_call_of_a_device_is_an_error)
{
    static const struct {
        const char *name;
        bool matters;
    } calls[] = {{"cuDeviceGetCount", true},
                 {"cuDeviceGet", true},
                 {"cuDeviceGetUuid", true},
                 {"cuDeviceTotalMem", true},
                 {"cuMemGetAllocationGranularity", true},
                 {"cuDeviceGetName", false}};
    struct sl_cuda_device device;
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        struct sl_cuda_err err = {0};
        fake->fail_call(calls[i].name, 1, SL_CUDA_UNKNOWN);
        int done = sl_cuda_device(cuda, 0, &device, &err);
        ck_assert_msg(done == (calls[i].matters ? -1 : 0), "%s", calls[i].name);
        if (done < 0)
            ck_assert_msg(strstr(err.message, "CUDA_ERROR_UNKNOWN (999"), "%s", err.message);
    }
}

SL_TEST(a_device_without_shareable_memory_is_refused)
{
    struct sl_cuda_err err;
    struct sl_cuda_device device;
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    fake->fail_call("cuDeviceGetAttribute", 8, SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(sl_cuda_device(cuda, 0, &device, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "virtual memory management"));
}

/* Drivers before 12.2 do not know which node is next to a GPU: that is not the first one. */
SL_TEST(what_a_device_says_of_itself_is_kept)
{
    static const struct {
        int node, kept;
        bool has_rdma;
    } cases[] = {{1, 1, true}, {-1, -1, false}, {-2, -1, false}};
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_cuda_device device;
        fake->set_host_node(cases[i].node);
        fake->set_rdma(cases[i].has_rdma);
        ck_assert_int_eq(sl_cuda_device(cuda, 0, &device, NULL), 0);
        ck_assert_int_eq(device.host_node, cases[i].kept);
        ck_assert_int_eq(device.has_rdma, cases[i].has_rdma);
        ck_assert_int_eq(sl_cuda_shared(&device).rdma, cases[i].has_rdma);
    }
}

SL_TEST(results_that_end_a_context_are_known)
{
    static const int lost[] = {4,   214, 220, 226, 700, 702, 709, 710,
                               714, 715, 716, 717, 718, 719, 721};
    static const int others[] = {0, 1, 2, 201, 221, 304, 400, 600, 712, 801, 999};
    for (size_t i = 0; i < sizeof(lost) / sizeof(*lost); i++)
        ck_assert_msg(sl_cuda_is_sticky(lost[i]), "%d", lost[i]);
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        ck_assert_msg(!sl_cuda_is_sticky(others[i]), "%d", others[i]);
}

SL_TEST(an_unknown_result_has_a_number)
{
    struct sl_cuda_err err;
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    ck_assert_int_eq(sl_cuda_check(cuda, 12345, &err, "do %s", "this"), -1);
    ck_assert_str_eq(err.message, "cannot do this: an unknown error (12345, unknown)");
    ck_assert_int_eq(sl_cuda_check(cuda, SL_CUDA_OUT_OF_MEMORY, &err, "take %d bytes", 7), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "cannot take 7 bytes: CUDA_ERROR_OUT_OF_MEMORY"));
    ck_assert_ptr_nonnull(strstr(err.message, "free memory of the GPU"));
}

/* Started by the test below, in a new process where nothing was loaded. */
static int run_without_driver(void)
{
    struct sl_cuda_err err = {0};
    if (sl_cuda_open(&err))
        return 0; /* this machine has one */
    return strstr(err.message, "no NVIDIA driver") && strstr(err.message, "compute") ? 0 : 3;
}

SL_TEST(no_driver_is_a_clear_error)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        unsetenv("LD_LIBRARY_PATH");
        setenv("SL_WITHOUT_DRIVER", "1", 1);
        execl("/proc/self/exe", "test_cuda", (char *)NULL);
        _exit(127);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}

static bool prepare(void)
{
    if (getenv("SL_WITHOUT_DRIVER"))
        exit(run_without_driver());
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.prepare = prepare)
