/* Inside the fake driver. */
#ifndef SL_FAKE_CUDA_PARTS_H
#define SL_FAKE_CUDA_PARTS_H

#include <pthread.h>

#include "cuda.h"
#include "fake_cuda.h"

enum {
    FAKE_DEVICES_MAX = 16,
    FAKE_GRANULARITY = 2 * 1024 * 1024,
    FAKE_REGISTER_MAX_GIB = 512,
};

struct sl_cuda_context {
    int device; /* the physical one */
    unsigned refs;
    uint64_t things; /* streams, events, modules and host buffers that belong to it */
};

/* Of modules: fake_cuda_modules.c. */
struct sl_cuda_function {
    const struct fake_kernel *kernel;
    const struct sl_cuda_module *module;
};
enum { FUNCTIONS_MAX = 16 };
struct sl_cuda_module {
    struct sl_cuda_context *context;
    struct sl_cuda_function functions[FUNCTIONS_MAX]; /* by the rows of fake_kernels */
};

struct fake {
    pthread_mutex_t lock; /* of everything here */
    bool initialised;
    int device_count, version;
    int visible[FAKE_DEVICES_MAX], visible_count;
    uint64_t bytes_each;
    unsigned delay_us;
    unsigned spoil_times;
    size_t spoil_bytes;
    bool held, kernels_held, contexts_held;
    const char *held_call;    /* NULL: none */
    unsigned holding;         /* threads that it keeps waiting */
    const char *meant_thread; /* whom held_call and faults are for; NULL: anybody */
    int held_device;          /* -1: none */
    pthread_cond_t unheld;
    uint64_t link_mbps, link_free_ns; /* free_ns: when the last copy ends */
    bool copies_nothing;
    unsigned context_us; /* what it takes to make one, and to destroy it */
    int map_rule;        /* enum fake_map_rule */
    int import_ordinal;  /* that properties of an import tell; -1: the right one */
    bool registers, registers_read_only, has_rdma;
    int host_node;              /* -1: none, -2: the driver does not know the attribute */
    unsigned touching;          /* works that are in memory now */
    pthread_cond_t moved;       /* anything of any stream */
    int sticky;                 /* the result that every call has from now on */
    int lost[FAKE_DEVICES_MAX]; /* … and those for this device alone */
    struct sl_cuda_context contexts[FAKE_DEVICES_MAX];
    struct fake_cuda_counts counts;
};
extern struct fake fake;

struct allocation;
struct handle {
    uint64_t number;
    struct allocation *allocation;
    unsigned refs;
    bool imported;
    struct handle *next;
};

enum { FAKE_EARLY = 1, FAKE_CONTEXT = 2 }; /* before cuInit, too; needs a context */

/** At the begin of every function, without the lock: 0, or the result that the call has. */
int fake_enter(const char *name, int needs);
#define FAKE_ENTER(name, needs)                                                                    \
    do {                                                                                           \
        int entered = fake_enter(name, needs);                                                     \
        if (entered)                                                                               \
            return entered;                                                                        \
    } while (0)

/** The result of every call for this device, which is lost; 0: it is not. With the lock. */
int fake_lost(int device);
/** This thread's; NULL: none. */
struct sl_cuda_context *fake_current(void);
void fake_set_current(struct sl_cuda_context *context);
/** The physical device with this ordinal, -1: there is none. With the lock. */
int fake_device(int ordinal);

/** fake_cuda_memory.c: is all of it mapped, with at least this access for this device? With the
 * lock. */
bool fake_is_mapped(uint64_t address, size_t bytes, int device, int access);
uint64_t fake_used(int device);
void fake_memory_counts(struct fake_cuda_counts *counts);
/** mmap() from a file's begin, and munmap(), past a sanitizer, which would touch several pages of
 * its own for each of the many that are mapped here and never used. */
void *fake_mmap(void *at, size_t bytes, int protection, int flags, int fd);
void fake_munmap(void *at, size_t bytes);
/** fake_cuda_host.c: is all of it pinned? With the lock. */
bool fake_is_pinned(const void *data, size_t bytes);
/** fake_cuda_stream.c: wait until nothing is on its way in this context; NULL: in any. Without the
 * lock. */
void fake_drain(const struct sl_cuda_context *context);
/** Before memory goes: nothing is in it at this moment. What is asked for and not begun is not
 * waited for, as on a device. With the lock. */
void fake_untouched(void);
/** Is anything on its way in this context? With the lock. */
bool fake_is_busy(const struct sl_cuda_context *context);

/** fake_cuda_share.c: a descriptor that carries this one, and says as little as a device's; -1. */
int fake_carry(int fd, int device, size_t bytes);
/** What a descriptor carries, which is the caller's; -1: it is none of ours, or its memory went
 * with the GPU's state. */
int fake_carried(int fd, int *device, size_t *bytes);
/** At cuInit: this process has the GPUs open from now on. Where nobody had, what was exported
 * before is gone. */
void fake_open_node(void);

#endif
