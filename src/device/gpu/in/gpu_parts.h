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

/** Something that the thread looks after as long as it is in the list. */
struct sl_gpu_chore {
    /** One round; returns when to come again: SL_GPU_IDLE, or in so many nanoseconds at most. */
    uint64_t (*turn)(struct sl_gpu_chore *chore);
    struct sl_gpu_chore *next;
};
#define SL_GPU_IDLE UINT64_MAX

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
        void *fact;         /* sl_gpu_keep() */
        struct sl_err lost; /* kind not 0: the context is lost */
    } locked;
};

/** There is something for a chore. */
void sl_gpu_poke(struct sl_gpu *gpu);

/** The GPU's thread alone. */
void sl_gpu_add_chore(struct sl_gpu *gpu, struct sl_gpu_chore *chore);
void sl_gpu_remove_chore(struct sl_gpu *gpu, const struct sl_gpu_chore *chore);

#endif
