/*
 * What the fake driver is strict about: each rule that a real driver enforces, broken once. A
 * product that breaks one of them must fail in its own tests, not on its first real device.
 */
#include <check.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "cuda.h"
#include "mem.h"
#include "thread.h"
#include "use_fake_cuda.h"

static const struct fake_cuda_control *fake;

/* A piece of memory, a context on this thread, a stream and a pinned buffer. */
struct bench {
    const struct sl_cuda *cuda;
    uint64_t handle, address;
    struct sl_cuda_context *context;
    struct sl_cuda_stream *stream;
    void *pinned;
};
enum { BENCH_BYTES = 2 * 1024 * 1024 };

static int set_access(const struct bench *bench, int flags)
{
    const struct sl_cuda_access access = {{SL_CUDA_LOCATION_DEVICE, 0}, flags};
    return bench->cuda->mem_set_access(bench->address, BENCH_BYTES, &access, 1);
}

static void open_bench(struct bench *bench, int ordinal)
{
    const struct sl_cuda *cuda = bench->cuda = sl_cuda_open(NULL);
    const struct sl_cuda_prop prop = sl_cuda_shareable(ordinal);
    const struct sl_cuda_access access = {prop.location, SL_CUDA_READ_WRITE};
    ck_assert_ptr_nonnull(cuda);
    ck_assert_int_eq(cuda->primary_retain(&bench->context, ordinal), 0);
    ck_assert_int_eq(cuda->set_current(bench->context), 0);
    ck_assert_int_eq(cuda->mem_create(&bench->handle, BENCH_BYTES, &prop, 0), 0);
    ck_assert_int_eq(cuda->address_reserve(&bench->address, BENCH_BYTES, 0, 0, 0), 0);
    ck_assert_int_eq(cuda->mem_map(bench->address, BENCH_BYTES, 0, bench->handle, 0), 0);
    ck_assert_int_eq(cuda->mem_set_access(bench->address, BENCH_BYTES, &access, 1), 0);
    ck_assert_int_eq(cuda->stream_create(&bench->stream, SL_CUDA_STREAM_NON_BLOCKING), 0);
    ck_assert_int_eq(cuda->host_alloc(&bench->pinned, BENCH_BYTES, 0), 0);
}

static int copy(const struct bench *bench, const void *from)
{
    return bench->cuda->copy_to_device(bench->address, from, 4096, bench->stream);
}

static uint64_t copies_done(void)
{
    struct fake_cuda_counts counts;
    fake->counts(&counts);
    return counts.copies;
}

/* The end that takes memory from work that was asked for, and a call that tells. */
static void check_fault(struct bench *bench)
{
    ck_assert_int_eq(bench->cuda->stream_synchronize(bench->stream), SL_CUDA_ILLEGAL_ADDRESS);
    ck_assert_int_eq(bench->cuda->mem_info(&(size_t){0}, &(size_t){0}), SL_CUDA_ILLEGAL_ADDRESS);
    fake->reset();
}

/* ---- contexts -------------------------------------------------------------------------------- */

SL_TEST(nothing_answers_before_it_is_initialised)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    ck_assert_ptr_nonnull(library);
    int (*count_devices)(int *) = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int count;
    ck_assert_int_eq(count_devices(&count), SL_CUDA_NOT_INITIALIZED);
    ck_assert_int_eq(init(1), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(init(0), 0);
    ck_assert_int_eq(count_devices(&count), 0);
    dlclose(library);
}

SL_TEST(work_needs_a_context_of_this_thread)
{
    struct bench bench;
    struct sl_cuda_stream *stream;
    void *pinned;
    open_bench(&bench, 0);
    const struct sl_cuda *cuda = bench.cuda;
    ck_assert_int_eq(cuda->set_current(NULL), 0);
    ck_assert_int_eq(copy(&bench, bench.pinned), SL_CUDA_INVALID_CONTEXT);
    ck_assert_int_eq(cuda->stream_create(&stream, 0), SL_CUDA_INVALID_CONTEXT);
    ck_assert_int_eq(cuda->host_alloc(&pinned, 4096, 0), SL_CUDA_INVALID_CONTEXT);
    ck_assert_int_eq(cuda->set_current(bench.context), 0);
    ck_assert_int_eq(cuda->primary_release(0), 0); /* and it is still current */
    ck_assert_int_eq(copy(&bench, bench.pinned), SL_CUDA_CONTEXT_IS_DESTROYED);
    ck_assert_int_eq(cuda->primary_release(0), SL_CUDA_INVALID_CONTEXT);
    ck_assert_int_eq(cuda->set_current(bench.context), SL_CUDA_INVALID_CONTEXT);
}

SL_TEST(a_context_takes_its_time)
{
    struct fake_cuda_counts counts;
    struct sl_cuda_context *context;
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    fake->set_context_us(20000);
    uint64_t begin = sl_now_ns();
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(cuda->primary_retain(&context, 0), 0);
    ck_assert_uint_ge(sl_now_ns() - begin, 20 * SL_NS_PER_MS);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.contexts_made, 1);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(cuda->primary_release(0), 0);
    ck_assert_uint_ge(sl_now_ns() - begin, 40 * SL_NS_PER_MS);
}

SL_TEST(streams_events_and_access_are_of_one_gpu)
{
    struct bench first, second;
    struct sl_cuda_event *event;
    fake->set_devices(2);
    open_bench(&first, 0);
    const struct sl_cuda *cuda = first.cuda;
    ck_assert_int_eq(cuda->event_create(&event, 0), 0);
    open_bench(&second, 1); /* whose context is current now */
    ck_assert_int_eq(cuda->copy_to_device(second.address, second.pinned, 64, first.stream),
                     SL_CUDA_INVALID_HANDLE);
    ck_assert_int_eq(cuda->event_record(event, second.stream), SL_CUDA_INVALID_HANDLE);
    ck_assert_int_eq(cuda->copy_to_device(first.address, second.pinned, 64, second.stream),
                     SL_CUDA_INVALID_VALUE);
    cuda->event_destroy(event);
}

SL_TEST(what_a_context_has_under_way_when_it_ends_is_told)
{
    struct bench bench;
    struct fake_cuda_counts counts;
    open_bench(&bench, 0);
    fake->hold(true);
    ck_assert_int_eq(copy(&bench, bench.pinned), 0);
    ck_assert_int_eq(bench.cuda->primary_release(0), 0);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.left, 3); /* the stream, the buffer, the copy */
    ck_assert_uint_eq(counts.contexts_made, 1);
    fake->hold(false);
}

/* ---- nothing waits that a device does not wait for ------------------------------------------- */

SL_TEST(memory_that_is_unmapped_under_a_copy_is_a_fault_later)
{
    struct bench bench;
    open_bench(&bench, 0);
    fake->hold(true);
    ck_assert_int_eq(copy(&bench, bench.pinned), 0);
    ck_assert_int_eq(bench.cuda->mem_unmap(bench.address, BENCH_BYTES), 0);
    fake->hold(false);
    check_fault(&bench);
}

SL_TEST(memory_that_is_unpinned_under_a_copy_is_a_fault_later)
{
    struct bench bench;
    open_bench(&bench, 0);
    fake->hold(true);
    ck_assert_int_eq(copy(&bench, bench.pinned), 0);
    ck_assert_int_eq(bench.cuda->host_free(bench.pinned), 0);
    fake->hold(false);
    check_fault(&bench);
}

static void *map_anonymous(size_t bytes, int protection)
{
    void *map = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    return map;
}

SL_TEST(memory_that_is_unregistered_under_a_copy_is_a_fault_later)
{
    struct bench bench;
    open_bench(&bench, 0);
    void *map = map_anonymous(4096, PROT_READ | PROT_WRITE);
    ck_assert_int_eq(bench.cuda->host_register(map, 4096, 0), 0);
    fake->hold(true);
    ck_assert_int_eq(copy(&bench, map), 0);
    ck_assert_int_eq(bench.cuda->host_unregister(map), 0);
    fake->hold(false);
    check_fault(&bench);
    munmap(map, 4096);
}

SL_TEST(a_stream_that_is_destroyed_does_its_work_later)
{
    struct bench bench;
    open_bench(&bench, 0);
    fake->hold(true);
    ck_assert_int_eq(copy(&bench, bench.pinned), 0);
    ck_assert_int_eq(bench.cuda->stream_destroy(bench.stream), 0);
    ck_assert_uint_eq(copies_done(), 0);
    ck_assert_int_eq(copy(&bench, bench.pinned), SL_CUDA_INVALID_HANDLE);
    fake->hold(false);
    ck_assert_int_eq(bench.cuda->synchronize(), 0);
    ck_assert_uint_eq(copies_done(), 1);
}

SL_TEST(a_copy_reads_its_source_when_it_is_done)
{
    struct bench bench;
    open_bench(&bench, 0);
    memset(bench.pinned, 'a', 4096);
    fake->hold(true);
    ck_assert_int_eq(copy(&bench, bench.pinned), 0);
    memset(bench.pinned, 'b', 4096);
    fake->hold(false);
    ck_assert_int_eq(bench.cuda->stream_synchronize(bench.stream), 0);
    ck_assert_int_eq(*(const char *)(uintptr_t)bench.address, 'b');
}

SL_TEST(an_event_comes_when_what_was_before_it_is_done)
{
    struct bench bench;
    struct sl_cuda_event *event;
    open_bench(&bench, 0);
    const struct sl_cuda *cuda = bench.cuda;
    ck_assert_int_eq(cuda->event_create(&event, 0), 0);
    ck_assert_int_eq(cuda->event_query(event), 0);
    fake->hold(true);
    ck_assert_int_eq(copy(&bench, bench.pinned), 0);
    ck_assert_int_eq(cuda->event_record(event, bench.stream), 0);
    ck_assert_int_eq(cuda->event_query(event), SL_CUDA_NOT_READY);
    fake->hold(false);
    ck_assert_int_eq(cuda->event_synchronize(event), 0);
    ck_assert_uint_eq(copies_done(), 1);
    ck_assert_int_eq(cuda->event_destroy(event), 0);
}

/* The legacy default stream may be used, and waits for all others of its context. */
SL_TEST(the_default_stream_comes_after_all_others)
{
    struct bench bench;
    open_bench(&bench, 0);
    fake->set_delay_us(20000);
    memset(bench.pinned, 'a', 4096);
    ck_assert_int_eq(copy(&bench, bench.pinned), 0);
    ck_assert_int_eq(
        bench.cuda->copy_to_device(bench.address, (char *)bench.pinned + 4096, 4096, NULL), 0);
    ck_assert_uint_eq(copies_done(), 2);
}

/* ---- kernels ----------------------------------------------------------------------------------
 */

static const char ptx[] = "// any";
static struct sl_cuda_function *load_kernel(const struct sl_cuda *cuda,
                                            struct sl_cuda_module **module)
{
    struct sl_cuda_function *function;
    ck_assert_int_eq(cuda->module_load(module, ptx), 0);
    ck_assert_int_eq(cuda->module_function(&function, *module, "sl_box_keys"), 0);
    return function;
}

struct grid {
    unsigned x, y, z, threads, shared;
};

/* It is never run: what it would work on is not there. */
static int launch(const struct bench *bench, struct sl_cuda_function *function, struct grid grid)
{
    static uint64_t argument[FAKE_PARAM_BYTES_MAX / 8];
    void *params[] = {argument};
    return bench->cuda->launch(function, grid.x, grid.y, grid.z, grid.threads, 1, 1, grid.shared,
                               bench->stream, params, NULL);
}
static const struct grid plain = {1, 1, 1, 64, 0};

SL_TEST(a_module_that_goes_under_its_kernels_is_a_fault_later)
{
    struct bench bench;
    struct sl_cuda_module *module;
    open_bench(&bench, 0);
    struct sl_cuda_function *function = load_kernel(bench.cuda, &module);
    fake->hold(true);
    ck_assert_int_eq(launch(&bench, function, plain), 0);
    ck_assert_int_eq(bench.cuda->module_unload(module), 0);
    fake->hold(false);
    check_fault(&bench);
}

SL_TEST(kernels_are_of_the_context_that_loaded_them)
{
    struct bench first, second;
    struct sl_cuda_module *module;
    fake->set_devices(2);
    open_bench(&first, 0);
    struct sl_cuda_function *function = load_kernel(first.cuda, &module);
    open_bench(&second, 1);
    ck_assert_int_eq(launch(&second, function, plain), SL_CUDA_INVALID_HANDLE);
    ck_assert_int_eq(launch(&first, function, plain), SL_CUDA_INVALID_HANDLE);
    first.cuda->module_unload(module);
}

SL_TEST(a_launch_that_no_device_takes_is_refused)
{
    static const struct grid grids[] = {
        {0, 1, 1, 64, 0},   {1, 65536, 1, 64, 0},    {1, 1, 65536, 64, 0},         {1, 1, 1, 0, 0},
        {1, 1, 1, 1025, 0}, {1u << 31, 1, 1, 64, 0}, {1, 1, 1, 64, 48 * 1024 + 1}, {1, 1, 1, 65, 0},
    };
    struct bench bench;
    struct sl_cuda_module *module;
    struct sl_cuda_function *function;
    open_bench(&bench, 0);
    function = load_kernel(bench.cuda, &module);
    for (size_t i = 0; i < SL_COUNT(grids); i++)
        ck_assert_msg(launch(&bench, function, grids[i]) == SL_CUDA_INVALID_VALUE, "%zu", i);
    ck_assert_int_eq(bench.cuda->module_function(&function, module, "sl_nothing"),
                     SL_CUDA_NOT_FOUND);
    ck_assert_int_eq(bench.cuda->module_load(&module, "rubbish"), SL_CUDA_INVALID_IMAGE);
    ck_assert_int_eq(bench.cuda->module_unload(module), 0);
}

/* ---- memory of the host -----------------------------------------------------------------------
 */

/* Attributes 99 and 113, and what comes of registering: memory that may be written; memory that may
 * be read, without and with the flag for that. */
SL_TEST(what_can_be_pinned_is_as_the_device_says)
{
    static const struct {
        bool any, read_only;
        int written, read, flagged;
    } cases[] = {
        {true, true, 0, SL_CUDA_INVALID_VALUE, 0},
        {true, false, 0, SL_CUDA_INVALID_VALUE, SL_CUDA_NOT_SUPPORTED},
        {false, false, SL_CUDA_NOT_SUPPORTED, SL_CUDA_NOT_SUPPORTED, SL_CUDA_NOT_SUPPORTED}};
    struct bench bench;
    void *written = map_anonymous(4096, PROT_READ | PROT_WRITE),
         *read = map_anonymous(4096, PROT_READ);
    open_bench(&bench, 0);
    const struct sl_cuda *cuda = bench.cuda;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        int any = -1, read_only = -1;
        fake->set_registers(cases[i].any, cases[i].read_only);
        ck_assert_int_eq(cuda->device_attribute(&any, SL_CUDA_HOST_REGISTER, 0), 0);
        ck_assert_int_eq(cuda->device_attribute(&read_only, SL_CUDA_READ_ONLY_HOST_REGISTER, 0), 0);
        ck_assert(any == cases[i].any && read_only == cases[i].read_only);
        ck_assert_int_eq(cuda->host_register(written, 4096, 0), cases[i].written);
        ck_assert_int_eq(cuda->host_register(read, 4096, 0), cases[i].read);
        ck_assert_int_eq(cuda->host_register(read, 4096, SL_CUDA_HOST_REGISTER_READ_ONLY),
                         cases[i].flagged);
        cuda->host_unregister(written);
        cuda->host_unregister(read);
    }
}

SL_TEST(memory_is_registered_once_in_whole_pages_and_not_too_much)
{
    struct bench bench;
    char *map = map_anonymous(8192, PROT_READ | PROT_WRITE);
    open_bench(&bench, 0);
    const struct sl_cuda *cuda = bench.cuda;
    ck_assert_int_eq(cuda->host_register(map + 64, 4096, 0), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->host_register(map, 0, 0), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->host_register(map, (size_t)512 << 30, 0), SL_CUDA_OUT_OF_MEMORY);
    ck_assert_int_eq(cuda->host_register(map, 8192, 0), 0);
    ck_assert_int_eq(cuda->host_register(map + 4096, 4096, 0),
                     SL_CUDA_HOST_MEMORY_ALREADY_REGISTERED);
    ck_assert_int_eq(cuda->host_free(map), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->host_unregister(map), 0);
    ck_assert_int_eq(cuda->host_unregister(map), SL_CUDA_INVALID_VALUE);
}

/* The driver stages it: slow, and whoever asks waits. Tests of the product fail on it by the count.
 */
SL_TEST(copies_of_memory_that_is_not_pinned_make_the_caller_wait)
{
    struct bench bench;
    struct fake_cuda_counts counts;
    char *ordinary = calloc(1, 4096);
    open_bench(&bench, 0);
    fake->set_delay_us(20000);
    ck_assert_int_eq(copy(&bench, ordinary), 0);
    ck_assert_uint_eq(copies_done(), 1);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.unpinned, 1);
    free(ordinary);
}

/* ---- memory of the device ----------------------------------------------------------------------
 */

SL_TEST(addresses_are_reserved_mapped_and_freed_in_order)
{
    struct bench bench;
    uint64_t other;
    open_bench(&bench, 0);
    const struct sl_cuda *cuda = bench.cuda;
    ck_assert_int_eq(cuda->mem_map(bench.address, BENCH_BYTES, 0, bench.handle, 0),
                     SL_CUDA_INVALID_VALUE); /* it is mapped */
    ck_assert_int_eq(cuda->address_free(bench.address, BENCH_BYTES), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->address_reserve(&other, 2 * BENCH_BYTES, 0, 0, 0), 0);
    ck_assert_int_eq(cuda->mem_map(other, BENCH_BYTES, 4096, bench.handle, 0),
                     SL_CUDA_INVALID_VALUE); /* an offset */
    ck_assert_int_eq(cuda->mem_map(other + 4096, BENCH_BYTES, 0, bench.handle, 0),
                     SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->mem_map(other + 2 * BENCH_BYTES, BENCH_BYTES, 0, bench.handle, 0),
                     SL_CUDA_INVALID_VALUE); /* behind what was reserved */
    ck_assert_int_eq(cuda->mem_map(other, BENCH_BYTES, 0, bench.handle, 0), 0);
    ck_assert_int_eq(cuda->mem_unmap(other, 2 * BENCH_BYTES), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->mem_unmap(other, BENCH_BYTES), 0);
    ck_assert_int_eq(cuda->address_free(other, BENCH_BYTES), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(cuda->address_free(other, 2 * BENCH_BYTES), 0);
}

SL_TEST(memory_is_used_as_its_access_says)
{
    struct bench bench;
    open_bench(&bench, 0);
    ck_assert_int_eq(set_access(&bench, 0), 0);
    ck_assert_int_eq(bench.cuda->copy_to_host(bench.pinned, bench.address, 64, bench.stream),
                     SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(set_access(&bench, SL_CUDA_READ), 0);
    ck_assert_int_eq(bench.cuda->copy_to_host(bench.pinned, bench.address, 64, bench.stream), 0);
    ck_assert_int_eq(copy(&bench, bench.pinned), SL_CUDA_INVALID_VALUE);
    ck_assert_int_eq(bench.cuda->set_bytes(bench.address, 0, 64, bench.stream),
                     SL_CUDA_INVALID_VALUE);
}

SL_TEST(imported_memory_tells_the_ordinal_that_is_set)
{
    struct bench bench;
    struct sl_cuda_prop prop;
    uint64_t handle;
    int fd = -1;
    open_bench(&bench, 0);
    const struct sl_cuda *cuda = bench.cuda;
    ck_assert_int_eq(cuda->mem_export(&fd, bench.handle, SL_CUDA_HANDLE_FD, 0), 0);
    fake->set_imported(7);
    ck_assert_int_eq(cuda->mem_import(&handle, (void *)(uintptr_t)fd, SL_CUDA_HANDLE_FD), 0);
    ck_assert_int_eq(cuda->mem_prop(&prop, handle), 0);
    ck_assert_int_eq(prop.location.id, 7);
    ck_assert_int_eq(cuda->mem_prop(&prop, bench.handle), 0);
    ck_assert_int_eq(prop.location.id, 0);
    close(fd);
}

SL_TEST(a_descriptor_is_no_file_and_outlives_its_exporter)
{
    struct bench bench;
    struct stat status;
    uint64_t handle;
    int fd = -1;
    open_bench(&bench, 0);
    const struct sl_cuda *cuda = bench.cuda;
    *(char *)(uintptr_t)bench.address = 'x'; /* memory of the fake driver can be written */
    ck_assert_int_eq(cuda->mem_export(&fd, bench.handle, SL_CUDA_HANDLE_FD, 0), 0);
    ck_assert_int_eq(fstat(fd, &status), 0);
    ck_assert(!S_ISREG(status.st_mode) && status.st_size == 0);
    ck_assert_int_lt(fcntl(fd, F_GET_SEALS), 0);
    ck_assert(!(fcntl(fd, F_GETFD) & FD_CLOEXEC));
    ck_assert_int_eq(cuda->mem_unmap(bench.address, BENCH_BYTES), 0);
    ck_assert_int_eq(cuda->mem_release(bench.handle), 0);
    ck_assert_int_eq(cuda->mem_import(&handle, (void *)(uintptr_t)fd, SL_CUDA_HANDLE_FD), 0);
    ck_assert_int_eq(cuda->mem_map(bench.address, BENCH_BYTES, 0, handle, 0), 0);
    ck_assert_int_eq(set_access(&bench, SL_CUDA_READ), 0);
    ck_assert_int_eq(*(const char *)(uintptr_t)bench.address, 'x');
    close(fd);
}

/* ---- a GPU that nobody has open ------------------------------------------------------------- */

/* What a process becomes that exported memory: it has the descriptor, and has the GPU no more. */
static int import_after_exec(const char *fd)
{
    uint64_t handle;
    const struct sl_cuda *cuda = sl_cuda_open(NULL);
    return cuda ? cuda->mem_import(&handle, (void *)(uintptr_t)strtoul(fd, NULL, 10),
                                   SL_CUDA_HANDLE_FD)
                : 99;
}

enum { NOT_STARTED = 98 }; /* the kernel does not know this program: it is emulated */

static void export_and_exec(void)
{
    struct bench bench;
    char text[16];
    int fd = -1;
    open_bench(&bench, 0);
    ck_assert_int_eq(bench.cuda->mem_export(&fd, bench.handle, SL_CUDA_HANDLE_FD, 0), 0);
    snprintf(text, sizeof(text), "%d", fd);
    setenv("SL_EXPORTED", text, 1);
    execl("/proc/self/exe", "test_fake_cuda", (char *)NULL);
    _exit(NOT_STARTED);
}

/* A process that has the GPU open until it is killed. */
static pid_t start_holder(void)
{
    int ends[2];
    char byte = 0;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        if (!sl_cuda_open(NULL) || write(ends[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    return child;
}

/* As without persistence mode; and as with it, where somebody has it open all along. */
SL_TEST(memory_goes_with_a_gpu_that_nobody_has_open)
{
    char node[] = "/tmp/fake-node-XXXXXX";
    int status;
    close(mkstemp(node));
    setenv("FAKE_CUDA_NODE", node, 1);
    for (int held = 0; held < 2; held++) {
        pid_t holder = held ? start_holder() : 0, child = fork();
        if (child == 0)
            export_and_exec();
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status));
        int code = WEXITSTATUS(status);
        if (holder) {
            kill(holder, SIGKILL);
            waitpid(holder, &status, 0);
        }
        if (code == NOT_STARTED) {
            unlink(node);
            SL_SKIP("a program of this processor cannot be started by another");
        }
        ck_assert_int_eq(code, held ? 0 : SL_CUDA_INVALID_VALUE);
    }
    unlink(node);
}

/* ---- threads ----------------------------------------------------------------------------------
 */

static void *make_and_end_streams(void *arg)
{
    const struct bench *bench = arg;
    struct sl_cuda_stream *stream;
    ck_assert_int_eq(bench->cuda->set_current(bench->context), 0);
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(bench->cuda->stream_create(&stream, SL_CUDA_STREAM_NON_BLOCKING), 0);
        ck_assert_int_eq(bench->cuda->stream_destroy(stream), 0);
    }
    return NULL;
}

/* Each end of a stream frees what has ended, others' streams too. */
SL_TEST(threads_end_their_streams_side_by_side)
{
    struct bench bench;
    pthread_t threads[4];
    open_bench(&bench, 0);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, make_and_end_streams, &bench), 0);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_int_eq(bench.cuda->stream_synchronize(bench.stream), 0);
}

static bool prepare(void)
{
    const char *exported = getenv("SL_EXPORTED");
    if (exported)
        exit(import_after_exec(exported));
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.prepare = prepare)
