/*
 * A driver without a GPU: a shared object with the name libcuda.so.1 that keeps the real one's
 * rules. "Device memory" is memfds, so descriptors go to other processes as the real ones do; a
 * copy is done by a thread later than it is asked for, and reads its source then; what must not be
 * touched is PROT_NONE and crashes. Nothing waits that a device does not wait for: memory that is
 * unmapped or unpinned under work that was asked for is a fault, which some later call tells. A
 * descriptor is not a file and has no size. What it cannot show: rates, and what only hardware
 * does.
 *
 * Another process finds it through LD_LIBRARY_PATH; a test takes it by use_fake_cuda.h. Knobs of a
 * process that is not the test itself are in its environment:
 *
 *    FAKE_CUDA_DEVICES     number of GPUs, 1; 0: cuInit says there is none
 *    FAKE_CUDA_VISIBLE     "1,0": the GPUs that this process sees, in this order; all
 *    FAKE_CUDA_VERSION     12080
 *    FAKE_CUDA_LACKS       "cuMemCreate,…": functions that this driver has not
 *    FAKE_CUDA_BYTES       of memory on each GPU, 1 GiB
 *    FAKE_CUDA_DELAY_US    how long a copy or kernel takes beside its work, 20
 *    FAKE_CUDA_LINK_MBPS   copies take their bytes at this rate, one after another; 0: no time
 *    FAKE_CUDA_COPIES      "none": copies take their time, and nothing is copied
 *    FAKE_CUDA_CONTEXT_US  how long it takes to make a context, and to destroy it, 0
 *    FAKE_CUDA_REGISTER    "any", "writable" (read-only memory cannot be pinned), "none" (no memory
 *                          of the process can); any
 *    FAKE_CUDA_RDMA        0: network cards cannot read its memory, 1
 *    FAKE_CUDA_HOST_NODE   the NUMA node next to the GPUs, -1: none
 *    FAKE_CUDA_MAP         "exact": a map is as large as its memory, "smaller": or smaller,
 *                          "larger": or larger; exact
 *    FAKE_CUDA_IMPORTED    the ordinal that the properties of imported memory tell; the right one
 *    FAKE_CUDA_NODE        a file: the GPU loses its state, and exported memory, when no process
 *                          of those with this file has it open, as without persistence mode
 *    FAKE_CUDA_FAIL        "cuMemCreate:3:2,*:17:700": the third call of that fails with result 2,
 *                          the 17th call of all with 700, from 1 on; after 4, 700 and 714 to 719
 *                          every later call for that device fails, too
 *    FAKE_CUDA_HANG        a function that never returns; stderr says so when it is called
 *    FAKE_CUDA_REPORT      a file to which a line of counts is added when the process ends
 */
#ifndef SL_FAKE_CUDA_H
#define SL_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** What the process has of the driver now. */
struct fake_cuda_counts {
    uint64_t handles, mappings, reservations, contexts, streams, events, modules, host_buffers;
    uint64_t bytes; /* of allocations that a handle, a mapping or a descriptor keeps alive */
    uint64_t left;  /* things that a context still had when it was released for the last time */
    uint64_t contexts_made; /* that were not there */
    uint64_t unpinned;      /* copies from or to memory that is not pinned: slow on a real device */
    uint64_t copies, copied_bytes, launches; /* that were done */
    uint64_t calls;
};

enum fake_map_rule { FAKE_MAP_EXACT, FAKE_MAP_SMALLER, FAKE_MAP_LARGER };

/** The symbol `fake_cuda_control`. */
struct fake_cuda_control {
    /** As in a new process: knobs from the environment, no faults, counts that only grow are 0.
     * What the process still has stays. */
    void (*reset)(void);
    void (*counts)(struct fake_cuda_counts *counts);
    /** The nth call from now on (1: the next one) of this function, or of all ("*"), fails so. */
    void (*fail_call)(const char *name, uint64_t nth, int result);
    /** Calls of a function ("*": all) since the process began or reset. */
    uint64_t (*calls)(const char *name);
    /** From now on every call for this device fails so: it fell off its bus. */
    void (*lose)(int device, int result);
    void (*set_devices)(int count);
    void (*set_version)(int version);
    void (*set_bytes)(uint64_t bytes);
    void (*set_delay_us)(unsigned us);
    /** Copies and kernels that were asked for stay undone until false. */
    void (*hold)(bool hold);
    /** The same of kernels alone. */
    void (*hold_kernels)(bool hold);
    /** The next so many copies to the device of at least so many bytes bring their first byte
     * wrong. */
    void (*spoil)(unsigned times, size_t bytes);
    void (*set_context_us)(unsigned us);
    /** Whoever retains a context waits until false. */
    void (*hold_contexts)(bool hold);
    /** Whoever calls this function waits until NULL. The name is borrowed. */
    void (*hold_call)(const char *name);
    /** fail_call() and hold_call() are for threads of this name alone, until NULL. It is borrowed.
     */
    void (*set_thread)(const char *name);
    /** Threads that hold_call() keeps waiting now. */
    unsigned (*holding)(void);
    /** Whoever works in this device's context, or retains it, waits until -1. */
    void (*hold_device)(int device);
    /** Can memory of the process be pinned, and such that is mapped read-only? */
    void (*set_registers)(bool any, bool read_only);
    /** Can network cards read memory of the GPUs? */
    void (*set_rdma)(bool has);
    /** The NUMA node next to the GPUs; -1: none, -2: the driver knows no such attribute. */
    void (*set_host_node)(int node);
    void (*set_map_rule)(enum fake_map_rule rule);
    void (*set_imported)(int ordinal);
    /** The memory behind a descriptor as a file, which is the caller's; -1: there is none. */
    int (*file)(int fd);
};

/**
 * A kernel's double on the host. params are those of cuLaunchKernel, copied when it was launched,
 * of the sizes that the row says; device pointers can be used as they are. It runs on a stream's
 * thread, alone: loop over grid and block.
 */
enum { FAKE_PARAMS_MAX = 2, FAKE_PARAM_BYTES_MAX = 2048 };
struct fake_kernel {
    const char *name;     /* as cuModuleGetFunction is asked for it */
    unsigned threads_max; /* of a block: what it was compiled for */
    unsigned param_count;
    uint16_t param_bytes[FAKE_PARAMS_MAX];
    void (*run)(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                void **params);
};
/** fake_cuda_kernels.c: the last row has no name. */
extern const struct fake_kernel fake_kernels[];

#endif
