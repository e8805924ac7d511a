/*
 * NVIDIA's driver, found at run time: libcuda.so.1 is opened when somebody wants a GPU, and a
 * machine without it is a normal state with an error that says so. Nothing of NVIDIA's is needed to
 * build; names, numbers and layouts below are those of its driver API, cited from CUDA 11.8
 * to 13.0. Needs libc alone, so that libsluice can have it too.
 *
 *     struct sl_cuda_err err;
 *     const struct sl_cuda *cuda = sl_cuda_open(&err);
 *     if (cuda && sl_cuda_check(cuda, cuda->mem_release(handle), &err, "release %d bytes", n) == 0)
 *
 * Whoever calls anything but VMM and device functions has a context current on its thread
 * (set_current of primary_retain). Errors: 0, or -1 with err filled; err may be NULL. Any thread;
 * what the driver does blocks as long as it takes.
 *
 * The driver's API: docs.nvidia.com/cuda/cuda-driver-api.
 */
#ifndef SL_CUDA_H
#define SL_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SL_CUDA_VERSION_MIN = 11040 }; /* driver 470 */

/** The results that sluice tells apart (CUresult). */
enum sl_cuda_result {
    SL_CUDA_SUCCESS = 0,
    SL_CUDA_INVALID_VALUE = 1,
    SL_CUDA_OUT_OF_MEMORY = 2,
    SL_CUDA_NOT_INITIALIZED = 3,
    SL_CUDA_DEINITIALIZED = 4,
    SL_CUDA_STUB_LIBRARY = 34,
    SL_CUDA_INSUFFICIENT_DRIVER = 35,
    SL_CUDA_CALL_REQUIRES_NEWER_DRIVER = 36,
    SL_CUDA_DEVICE_UNAVAILABLE = 46,
    SL_CUDA_NO_DEVICE = 100,
    SL_CUDA_INVALID_DEVICE = 101,
    SL_CUDA_INVALID_IMAGE = 200,
    SL_CUDA_INVALID_CONTEXT = 201,
    SL_CUDA_NO_BINARY_FOR_GPU = 209,
    SL_CUDA_ECC_UNCORRECTABLE = 214,
    SL_CUDA_NVLINK_UNCORRECTABLE = 220,
    SL_CUDA_UNSUPPORTED_PTX_VERSION = 222,
    SL_CUDA_CONTAINED = 226, /* a memory error that ends those who met it */
    SL_CUDA_OPERATING_SYSTEM = 304,
    SL_CUDA_INVALID_HANDLE = 400,
    SL_CUDA_NOT_FOUND = 500,
    SL_CUDA_NOT_READY = 600, /* not an error: of event_query */
    SL_CUDA_ILLEGAL_ADDRESS = 700,
    SL_CUDA_LAUNCH_TIMEOUT = 702,
    SL_CUDA_CONTEXT_IS_DESTROYED = 709,
    SL_CUDA_ASSERT = 710,
    SL_CUDA_HOST_MEMORY_ALREADY_REGISTERED = 712,
    SL_CUDA_HARDWARE_STACK_ERROR = 714, /* … 719: kernels that broke off */
    SL_CUDA_LAUNCH_FAILED = 719,
    SL_CUDA_TENSOR_MEMORY_LEAK = 721,
    SL_CUDA_NOT_SUPPORTED = 801,
    SL_CUDA_SYSTEM_NOT_READY = 802,
    SL_CUDA_SYSTEM_DRIVER_MISMATCH = 803,
    SL_CUDA_UNKNOWN = 999,
};

/** Attributes of a device (CUdevice_attribute). */
enum sl_cuda_attribute {
    SL_CUDA_MULTIPROCESSORS = 16,
    SL_CUDA_COMPUTE_MAJOR = 75,
    SL_CUDA_COMPUTE_MINOR = 76,
    SL_CUDA_HOST_REGISTER = 99,
    SL_CUDA_VMM = 102,
    SL_CUDA_FD_HANDLES = 103,
    SL_CUDA_RDMA = 110, /* of memory as ours is */
    SL_CUDA_READ_ONLY_HOST_REGISTER = 113,
    SL_CUDA_HOST_NODE = 134, /* -1: none; drivers from 12.2 on */
};

struct sl_cuda_context;
struct sl_cuda_stream;
struct sl_cuda_event;
struct sl_cuda_module;
struct sl_cuda_function;

struct sl_cuda_uuid {
    uint8_t bytes[16];
};
enum { SL_CUDA_LOCATION_DEVICE = 1 };
struct sl_cuda_location {
    int32_t type, id; /* id: the device's ordinal */
};
enum { SL_CUDA_PINNED = 1, SL_CUDA_HANDLE_FD = 1, SL_CUDA_GRANULARITY_MINIMUM = 0 };
/** CUmemAllocationProp */
struct sl_cuda_prop {
    int32_t type;         /* SL_CUDA_PINNED */
    int32_t handle_types; /* SL_CUDA_HANDLE_FD: it can be exported as a descriptor */
    struct sl_cuda_location location;
    void *win32;
    uint8_t compression, rdma; /* rdma: 1 if network cards may read it */
    uint8_t other[6];
};
enum { SL_CUDA_READ = 1, SL_CUDA_READ_WRITE = 3 };
/** CUmemAccessDesc */
struct sl_cuda_access {
    struct sl_cuda_location location;
    int32_t flags;
};
_Static_assert(sizeof(struct sl_cuda_prop) == 32 && sizeof(struct sl_cuda_access) == 12 &&
                   sizeof(struct sl_cuda_uuid) == 16 && sizeof(void *) == 8,
               "layouts are those of the driver's 64-bit ABI");

enum {
    SL_CUDA_HOST_PORTABLE = 1,           /* of host_alloc, host_register */
    SL_CUDA_HOST_REGISTER_READ_ONLY = 8, /* of host_register, for memory mapped read-only */
    SL_CUDA_STREAM_NON_BLOCKING = 1,     /* does not wait for the legacy default stream */
    SL_CUDA_EVENT_BLOCKING_SYNC = 1,
    SL_CUDA_EVENT_DISABLE_TIMING = 2,
};

/** The driver: its functions by the rows of cuda.def. One that is OPTIONAL may be NULL. */
struct sl_cuda {
    int version; /* what the driver can do: 12040 is CUDA 12.4 */
#define SL_CUDA(member, name, symbol, since, need, arguments) int(*member) arguments;
#include "cuda.def"
#undef SL_CUDA
};

struct sl_cuda_err {
    int result;        /* enum sl_cuda_result; 0: the driver was never asked (there is none) */
    char message[480]; /* one line, says what to do */
};

/**
 * The driver, opened and initialised; the same for everybody, never closed. NULL: there is none, it
 * is too old, it sees no GPU, or it fails; asked again later it is tried anew. Any thread; not in a
 * process that forked after it was opened.
 */
const struct sl_cuda *sl_cuda_open(struct sl_cuda_err *err);
/**
 * Judge the result of a call: a failure fills err with "cannot WHAT: NAME (NUMBER, TEXT): what to
 * do".
 *
 * @result  what the driver returned. SL_CUDA_NOT_READY is a failure, too: callers handle it before.
 * @what    was tried, as of printf(); at most 199 bytes are shown.
 * @return  0 for success, else -1.
 */
int sl_cuda_check(const struct sl_cuda *cuda, int result, struct sl_cuda_err *err, const char *what,
                  ...) __attribute__((format(printf, 4, 5)));
/**
 * Fill an error with a message of our own.
 *
 * @result  enum sl_cuda_result; 0: the driver was never asked.
 * @format  of the message, as of printf().
 * @return  -1.
 */
int sl_cuda_fail(struct sl_cuda_err *err, int result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** After such a result every later call of the process fails in the same way. */
bool sl_cuda_is_sticky(int result);

/* ---- devices -------------------------------------------------------------------------------- */

struct sl_cuda_device {
    int ordinal, handle; /* as this process sees it; CUdevice */
    uint8_t uuid[16];    /* the same in every process */
    char name[96];
    uint64_t total_bytes;
    uint64_t granularity; /* of sizes and addresses of shareable memory */
    int major, minor;     /* compute capability */
    int multiprocessors;
    bool registers_read_only; /* it pins memory of the host that is mapped to be read */
    bool has_rdma;            /* network cards can read its memory (GPUDirect RDMA) */
    int host_node;            /* the NUMA node of the host that is next to it; -1: not known */
};
/** SL_CUDA_INVALID_DEVICE: there is none with this ordinal; 0 without VMM or descriptors. */
int sl_cuda_device(const struct sl_cuda *cuda, int ordinal, struct sl_cuda_device *device,
                   struct sl_cuda_err *err);
/** How many this process sees. */
int sl_cuda_device_count(const struct sl_cuda *cuda, int *count, struct sl_cuda_err *err);

/** Memory that can be shared. */
static inline struct sl_cuda_prop sl_cuda_shareable(int ordinal)
{
    return (struct sl_cuda_prop){.type = SL_CUDA_PINNED,
                                 .handle_types = SL_CUDA_HANDLE_FD,
                                 .location = {SL_CUDA_LOCATION_DEVICE, ordinal}};
}
/** What every allocation that is to be shared is made with: whoever maps it may register it with a
 * network card, where the device can do that. */
static inline struct sl_cuda_prop sl_cuda_shared(const struct sl_cuda_device *device)
{
    struct sl_cuda_prop prop = sl_cuda_shareable(device->ordinal);
    prop.rdma = device->has_rdma;
    return prop;
}

#endif
