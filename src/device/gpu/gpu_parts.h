/* Inside gpu/: tasks of the GPU's thread, and what it does between them. */
#ifndef SL_GPU_PARTS_H
#define SL_GPU_PARTS_H

#include "gpu.h"
#include "thread.h"

struct sl_gpu_task {
    int (*run)(struct sl_gpu *gpu, void *arg, struct sl_err *err);
    void *arg;
    struct sl_err *err;
    int result;
    bool done;
    struct sl_gpu_task *next;
};

/** Something that the thread looks after as long as it is in the list. */
struct sl_gpu_chore {
    /** One round; returns when to come again: SL_GPU_IDLE, or in so many nanoseconds at most. */
    uint64_t (*turn)(struct sl_gpu_chore *chore);
    struct sl_gpu_chore *next;
};
#define SL_GPU_IDLE UINT64_MAX

/** Bytes a second that were measured (pool/gpu_rates.c, which knows what of). */
struct sl_gpu_rates {
    bool measured;
    double host[4], gpu[4];
};

struct sl_gpu {
    const struct sl_cuda *cuda;
    struct sl_cuda_device device;
    pthread_t thread;
    bool has_thread;
    /* The thread's own: */
    struct sl_cuda_context *context; /* NULL: not needed now */
    unsigned users;                  /* of the context */
    struct sl_gpu_chore *chores;
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    struct {
        struct sl_gpu_task *first, **last;
        bool poked, ends;
        struct sl_gpu_rates rates;
        struct sl_err lost; /* kind not 0: the context is lost */
    } locked;
};

/** Run something on the GPU's thread and wait for it. A lost GPU fails at once, unless `always`. */
int sl_gpu_call(struct sl_gpu *gpu, int (*run)(struct sl_gpu *gpu, void *arg, struct sl_err *err),
                void *arg, bool always, struct sl_err *err);
/** There is something for a chore. */
void sl_gpu_poke(struct sl_gpu *gpu);

/* All from here on: the GPU's thread alone. */

/** 0, or -1 with err; remembers a lost context. `what` is what could not be done. */
int sl_gpu_check(struct sl_gpu *gpu, int result, struct sl_err *err, const char *what, ...)
    __attribute__((format(printf, 4, 5)));
/** The context is needed, and is no more. */
int sl_gpu_acquire(struct sl_gpu *gpu, struct sl_err *err);
void sl_gpu_release(struct sl_gpu *gpu);
void sl_gpu_add_chore(struct sl_gpu *gpu, struct sl_gpu_chore *chore);
void sl_gpu_remove_chore(struct sl_gpu *gpu, const struct sl_gpu_chore *chore);

#endif
