/*
 * For layers that have a GPU do work of their own: tasks that its thread runs, and what they need.
 *
 * Errors are those of gpu.h. A task must not wait for other tasks of the same GPU, nor for long:
 * copies that are under way for loads are looked after between tasks.
 */
#ifndef SL_GPU_TASK_H
#define SL_GPU_TASK_H

#include "gpu.h"

/**
 * Run something on the GPU's thread, and wait for it.
 *
 * @run     the task.
 * @arg     what it gets; borrowed for the call.
 * @always  also on a GPU that is lost, for what gives back; else that fails at once.
 * @return  what `run` returned, with its error if that is negative; or -1 with SL_E_GPU: the GPU is
 *          lost, and nothing was run. err may be NULL.
 *
 * Any thread but the GPU's.
 */
int sl_gpu_call(struct sl_gpu *gpu, int (*run)(struct sl_gpu *gpu, void *arg, struct sl_err *err),
                void *arg, bool always, struct sl_err *err);
/** The driver's functions, to be called on the GPU's thread; borrowed. */
const struct sl_cuda *sl_gpu_driver(const struct sl_gpu *gpu);

/** There is something for a chore. Any thread. */
void sl_gpu_poke(struct sl_gpu *gpu);

/* All from here on: the GPU's thread alone. */

/**
 * Judge what a function of the driver returned, and remember a context that is lost.
 *
 * @result  of the driver's function.
 * @what    a format: what could not be done. The message is "cannot WHAT on cuda:N: …".
 * @return  0, or -1 with SL_E_NO_SPACE (the device's memory is full) or SL_E_GPU.
 */
int sl_gpu_check(struct sl_gpu *gpu, int result, struct sl_err *err, const char *what, ...)
    __attribute__((format(printf, 4, 5)));
/** The context is needed, and is no more: each acquire that went well has its release. */
int sl_gpu_acquire(struct sl_gpu *gpu, struct sl_err *err);
void sl_gpu_release(struct sl_gpu *gpu);

/** Pinned memory of the host that every GPU can copy from; what was in it is not known. The context
 * is acquired, until it is given back. */
int sl_gpu_pin(struct sl_gpu *gpu, size_t bytes, void **data, struct sl_err *err);
/** Nothing copies from it or to it any more. */
void sl_gpu_unpin(struct sl_gpu *gpu, void *data, size_t bytes);
/** One thing that a layer above keeps in the context, for whoever acquires it: given to `free` on
 * this thread before the context goes. NULL: there is none. */
void *sl_gpu_beside(const struct sl_gpu *gpu);
/** There is none yet, and the context is acquired. */
void sl_gpu_set_beside(struct sl_gpu *gpu, void *thing, void (*free)(void *thing));

/** Something that the thread looks after as long as it is in the list. */
struct sl_gpu_chore {
    /** One round; returns when to come again: SL_GPU_IDLE, or in so many nanoseconds at most. */
    uint64_t (*turn)(struct sl_gpu_chore *chore);
    struct sl_gpu_chore *next;
};
#define SL_GPU_IDLE UINT64_MAX

/** The GPU's thread alone; not from a turn. */
void sl_gpu_add_chore(struct sl_gpu *gpu, struct sl_gpu_chore *chore);
void sl_gpu_remove_chore(struct sl_gpu *gpu, const struct sl_gpu_chore *chore);

#endif
