/* Inside gpu/: a GPU, tasks of its thread, and what that does between them. */
#ifndef SL_GPU_PARTS_H
#define SL_GPU_PARTS_H

#include "gpu_task.h"
#include "thread.h"

struct sl_gpu_task {
    int (*run)(struct sl_gpu *gpu, void *arg, struct sl_err *err);
    void *arg;
    struct sl_err *err;
    int result;
    bool done;
    struct sl_gpu_task *next;
};

struct sl_gpu {
    const struct sl_cuda *cuda;
    struct sl_cuda_device device;
    pthread_t thread;
    bool has_thread;
    /* The thread's own: */
    struct sl_cuda_context *context; /* NULL: there is none */
    unsigned users;                  /* of the context */
    uint64_t idle_since_ns;          /* there is a context, and no user of it */
    struct {
        void *data; /* NULL: nothing is kept */
        size_t bytes;
        uint64_t since_ns;
    } pinned; /* kept for the next caller that needs this size */
    struct {
        void *thing;
        void (*free)(void *thing);
    } beside;
    struct sl_gpu_chore *chores;
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    struct {
        struct sl_gpu_task *first, **last;
        bool poked, ends;
        uint64_t warm_ns;   /* that what is idle stays */
        struct sl_err lost; /* kind not 0: the context is lost */
    } locked;
};

/** Somebody waits for the driver from here on; on the stack of who does. */
struct sl_gpu_wait {
    int ordinal; /* -1: of no GPU in particular */
    struct sl_gpu_wait *next;
};
void sl_gpu_wait_begin(struct sl_gpu_wait *wait, int ordinal);
void sl_gpu_wait_end(const struct sl_gpu_wait *wait);

/** The GPU's thread alone: what was idle for long enough goes. When to come again, as a chore
 * says. */
uint64_t sl_gpu_cool(struct sl_gpu *gpu);

#endif
