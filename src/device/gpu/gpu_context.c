/*
 * A GPU's context. Making one takes longer than many a load, and so do pinning memory and loading
 * kernels into it: so all three stay for a while after the last who used them, as long as
 * sl_gpu_set_warm() says. What a context has goes before it does, and nothing stays of a GPU that
 * is lost. All but the setter is of the GPU's thread.
 */
#include "gpu_parts.h"

/* ---- going ---------------------------------------------------------------------------------- */

static void drop_pinned(struct sl_gpu *gpu)
{
    if (gpu->pinned.data)
        gpu->cuda->host_free(gpu->pinned.data);
    gpu->pinned.data = NULL;
}

static void drop_context(struct sl_gpu *gpu)
{
    drop_pinned(gpu);
    if (gpu->beside.thing)
        gpu->beside.free(gpu->beside.thing);
    gpu->beside.thing = NULL;
    gpu->cuda->set_current(NULL);
    gpu->cuda->primary_release(gpu->device.handle);
    gpu->context = NULL;
}

/* Nanoseconds until what is idle since then goes; 0: now. */
static uint64_t left_of(struct sl_gpu *gpu, uint64_t since_ns)
{
    uint64_t age_ns = sl_now_ns() - since_ns;
    SL_LOCKED(&gpu->lock);
    bool goes = age_ns >= gpu->locked.warm_ns || gpu->locked.lost.kind;
    return goes ? 0 : gpu->locked.warm_ns - age_ns;
}

uint64_t sl_gpu_cool(struct sl_gpu *gpu)
{
    uint64_t next = SL_GPU_IDLE;
    if (gpu->pinned.data && (next = left_of(gpu, gpu->pinned.since_ns)) == 0) {
        drop_pinned(gpu);
        next = SL_GPU_IDLE;
    }
    if (!gpu->context || gpu->users)
        return next;
    uint64_t left = left_of(gpu, gpu->idle_since_ns);
    if (left)
        return SL_MIN(next, left);
    drop_context(gpu);
    return SL_GPU_IDLE;
}

void sl_gpu_set_warm(struct sl_gpu *gpu, uint64_t ns)
{
    {
        SL_LOCKED(&gpu->lock);
        gpu->locked.warm_ns = ns;
    }
    sl_gpu_poke(gpu);
}

/* ---- the context ---------------------------------------------------------------------------- */

int sl_gpu_acquire(struct sl_gpu *gpu, struct sl_err *err)
{
    const struct sl_cuda *cuda = gpu->cuda;
    if (gpu->users++ || gpu->context)
        return 0;
    if (sl_gpu_check(gpu, cuda->primary_retain(&gpu->context, gpu->device.handle), err,
                     "make a context") == 0) {
        if (sl_gpu_check(gpu, cuda->set_current(gpu->context), err, "use a context") == 0)
            return 0;
        cuda->primary_release(gpu->device.handle);
    }
    gpu->context = NULL;
    gpu->users--;
    return -1;
}

void sl_gpu_release(struct sl_gpu *gpu)
{
    if (--gpu->users)
        return;
    gpu->idle_since_ns = sl_now_ns();
    sl_gpu_cool(gpu);
}

static int hold_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    (void)arg;
    return sl_gpu_acquire(gpu, err);
}

int sl_gpu_hold(struct sl_gpu *gpu, struct sl_err *err)
{
    return sl_gpu_call(gpu, hold_task, NULL, false, err);
}

static int unhold_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    (void)arg, (void)err;
    sl_gpu_release(gpu);
    return 0;
}

void sl_gpu_unhold(struct sl_gpu *gpu)
{
    sl_gpu_call(gpu, unhold_task, NULL, true, NULL);
}

/* ---- what is in it -------------------------------------------------------------------------- */

int sl_gpu_pin(struct sl_gpu *gpu, size_t bytes, void **data, struct sl_err *err)
{
    if (gpu->pinned.data && gpu->pinned.bytes == bytes) {
        *data = sl_steal(&gpu->pinned.data);
        return 0;
    }
    return sl_gpu_check(gpu, gpu->cuda->host_alloc(data, bytes, SL_CUDA_HOST_PORTABLE), err,
                        "pin %zu bytes of host memory", bytes);
}

void sl_gpu_unpin(struct sl_gpu *gpu, void *data, size_t bytes)
{
    drop_pinned(gpu);
    gpu->pinned.data = data;
    gpu->pinned.bytes = bytes;
    gpu->pinned.since_ns = sl_now_ns();
    sl_gpu_cool(gpu);
}

void *sl_gpu_beside(const struct sl_gpu *gpu)
{
    return gpu->beside.thing;
}

void sl_gpu_set_beside(struct sl_gpu *gpu, void *thing, void (*free)(void *thing))
{
    gpu->beside.thing = thing;
    gpu->beside.free = free;
}
