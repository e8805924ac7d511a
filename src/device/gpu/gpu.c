/*
 * The thread of a GPU takes tasks one after another and, between them, gives each chore (a staging
 * ring with copies under way) its turn. It sleeps until it is poked or the soonest chore wants to
 * come again: completion is asked for, not waited for, so that a device that hangs holds up neither
 * tasks nor the process's end.
 */
#include "gpu_parts.h"

#include <stdarg.h>
#include <stdio.h>

#include "log.h"

/* ---- errors --------------------------------------------------------------------------------- */

static int fail_of(struct sl_err *err, const struct sl_cuda_err *why)
{
    bool full = why->result == SL_CUDA_OUT_OF_MEMORY;
    return sl_fail(err, full ? SL_E_NO_SPACE : SL_E_GPU, "%s", why->message);
}

static void lose(struct sl_gpu *gpu, const struct sl_cuda_err *why)
{
    SL_LOCKED(&gpu->lock);
    if (gpu->locked.lost.kind)
        return;
    sl_fail(&gpu->locked.lost, SL_E_GPU,
            "cuda:%d is lost for this process: %s; what is loaded stays with its users",
            gpu->device.ordinal, why->message);
    sl_log(SL_LOG_ERROR, "%s", gpu->locked.lost.message);
}

/* A device that fell off its bus gives no reason, whatever is asked: so it is asked once more. */
static bool loses(const struct sl_gpu *gpu, int result)
{
    size_t free_bytes, total_bytes;
    if (result == SL_CUDA_UNKNOWN)
        result = gpu->context ? gpu->cuda->mem_info(&free_bytes, &total_bytes) : SL_CUDA_SUCCESS;
    return result == SL_CUDA_UNKNOWN || sl_cuda_is_sticky(result);
}

int sl_gpu_check(struct sl_gpu *gpu, int result, struct sl_err *err, const char *what, ...)
{
    struct sl_cuda_err why;
    char text[160];
    va_list list;
    if (result == SL_CUDA_SUCCESS)
        return 0;
    va_start(list, what);
    vsnprintf(text, sizeof(text), what, list);
    va_end(list);
    sl_cuda_check(gpu->cuda, result, &why, "%s on cuda:%d", text, gpu->device.ordinal);
    if (loses(gpu, result))
        lose(gpu, &why);
    return fail_of(err, &why);
}

bool sl_gpu_is_lost(struct sl_gpu *gpu, struct sl_err *why)
{
    SL_LOCKED(&gpu->lock);
    if (gpu->locked.lost.kind && why)
        *why = gpu->locked.lost;
    return gpu->locked.lost.kind;
}

/* ---- the thread ----------------------------------------------------------------------------- */

void sl_gpu_add_chore(struct sl_gpu *gpu, struct sl_gpu_chore *chore)
{
    chore->next = gpu->chores;
    gpu->chores = chore;
}

void sl_gpu_remove_chore(struct sl_gpu *gpu, const struct sl_gpu_chore *chore)
{
    struct sl_gpu_chore **at = &gpu->chores;
    while (*at && *at != chore)
        at = &(*at)->next;
    if (*at)
        *at = chore->next;
}

static struct sl_gpu_task *take_task(struct sl_gpu *gpu)
{
    SL_LOCKED(&gpu->lock);
    struct sl_gpu_task *task = gpu->locked.first;
    if (task && !(gpu->locked.first = task->next))
        gpu->locked.last = &gpu->locked.first;
    return task;
}

static void run_task(struct sl_gpu *gpu, struct sl_gpu_task *task)
{
    int result = task->run(gpu, task->arg, task->err);
    SL_LOCKED(&gpu->lock);
    task->result = result;
    task->done = true;
    pthread_cond_broadcast(&gpu->finished);
}

/* When the soonest chore wants to come again. */
static uint64_t do_chores(struct sl_gpu *gpu)
{
    uint64_t soonest = SL_GPU_IDLE;
    for (struct sl_gpu_chore *at = gpu->chores; at; at = at->next) {
        uint64_t due = at->turn(at);
        soonest = SL_MIN(soonest, due);
    }
    return soonest;
}

/* False: the end. */
static bool wait_for_work(struct sl_gpu *gpu, uint64_t most_ns)
{
    uint64_t when = sl_now_ns() + most_ns;
    struct timespec at = {(time_t)(when / SL_NS_PER_S), (long)(when % SL_NS_PER_S)};
    int timed_out = 0;
    SL_LOCKED(&gpu->lock);
    while (!gpu->locked.first && !gpu->locked.poked && !gpu->locked.ends && !timed_out)
        timed_out = most_ns == SL_GPU_IDLE ? pthread_cond_wait(&gpu->wake, &gpu->lock)
                                           : pthread_cond_timedwait(&gpu->wake, &gpu->lock, &at);
    gpu->locked.poked = false;
    return gpu->locked.first || !gpu->locked.ends;
}

/* What the thread pins lies where it runs: next to the GPU, if that is known. */
static void stay_near(const struct sl_cuda_device *device)
{
    char path[80];
    if (device->host_node < 0)
        return;
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", device->host_node);
    sl_thread_stay(path);
}

static void *run_gpu(void *arg)
{
    struct sl_gpu *gpu = arg;
    uint64_t next = SL_GPU_IDLE;
    stay_near(&gpu->device);
    while (wait_for_work(gpu, next)) {
        struct sl_gpu_task *task;
        while ((task = take_task(gpu)))
            run_task(gpu, task);
        next = do_chores(gpu);
        next = SL_MIN(next, sl_gpu_cool(gpu));
    }
    sl_gpu_set_warm(gpu, 0);
    sl_gpu_cool(gpu);
    return NULL;
}

void sl_gpu_poke(struct sl_gpu *gpu)
{
    SL_LOCKED(&gpu->lock);
    if (!gpu->locked.poked)
        pthread_cond_signal(&gpu->wake);
    gpu->locked.poked = true;
}

/* -1: it was not begun, since the GPU is lost. */
static int wait_for_task(struct sl_gpu *gpu, struct sl_gpu_task *task, bool always)
{
    SL_LOCKED(&gpu->lock);
    if (gpu->locked.lost.kind && !always) {
        *task->err = gpu->locked.lost;
        return -1;
    }
    *gpu->locked.last = task;
    gpu->locked.last = &task->next;
    pthread_cond_signal(&gpu->wake);
    while (!task->done)
        pthread_cond_wait(&gpu->finished, &gpu->lock);
    return task->result;
}

int sl_gpu_call(struct sl_gpu *gpu, int (*run)(struct sl_gpu *gpu, void *arg, struct sl_err *err),
                void *arg, bool always, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    struct sl_gpu_task task = {.run = run, .arg = arg, .err = &why};
    struct sl_gpu_wait wait;
    sl_gpu_wait_begin(&wait, gpu->device.ordinal);
    int result = wait_for_task(gpu, &task, always);
    sl_gpu_wait_end(&wait);
    if (result < 0 && err)
        *err = why;
    return result;
}

/* ---- life ----------------------------------------------------------------------------------- */

int sl_gpu_count(int *count, struct sl_err *err)
{
    struct sl_cuda_err why;
    struct sl_gpu_wait wait;
    sl_gpu_wait_begin(&wait, -1);
    const struct sl_cuda *cuda = sl_cuda_open(&why);
    int done = cuda ? sl_cuda_device_count(cuda, count, &why) : -1;
    sl_gpu_wait_end(&wait);
    return done == 0 ? 0 : fail_of(err, &why);
}

/* There is no other thread yet. */
static void init_locks(struct sl_gpu *gpu)
{
    pthread_condattr_t clock; /* as sl_now_ns() */
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&gpu->lock, NULL);
    pthread_cond_init(&gpu->wake, &clock);
    pthread_cond_init(&gpu->finished, NULL);
    pthread_condattr_destroy(&clock);
    gpu->locked.last = &gpu->locked.first;
}

/* It may take seconds, and for ever. */
static int open_driver(struct sl_gpu *gpu, int ordinal, struct sl_cuda_err *why)
{
    struct sl_gpu_wait wait;
    sl_gpu_wait_begin(&wait, ordinal);
    gpu->cuda = sl_cuda_open(why);
    int done = gpu->cuda ? sl_cuda_device(gpu->cuda, ordinal, &gpu->device, why) : -1;
    sl_gpu_wait_end(&wait);
    return done;
}

struct sl_gpu *sl_gpu_open(int ordinal, struct sl_err *err)
{
    struct sl_cuda_err why;
    char name[16];
    SL_AUTO(sl_gpu) gpu = sl_alloc(sizeof(*gpu), err);
    if (!gpu)
        return NULL;
    init_locks(gpu);
    if (open_driver(gpu, ordinal, &why) < 0) {
        fail_of(err, &why);
        return NULL;
    }
    snprintf(name, sizeof(name), "sluice-cuda%d", ordinal);
    if (sl_thread_start(&gpu->thread, name, run_gpu, gpu, err) < 0)
        return NULL;
    gpu->has_thread = true;
    return sl_steal(&gpu);
}

static void end_thread(struct sl_gpu *gpu)
{
    struct sl_gpu_wait wait;
    sl_gpu_wait_begin(&wait, gpu->device.ordinal);
    {
        SL_LOCKED(&gpu->lock);
        gpu->locked.ends = true;
        pthread_cond_signal(&gpu->wake);
    }
    pthread_join(gpu->thread, NULL);
    sl_gpu_wait_end(&wait);
}

void sl_gpu_free(struct sl_gpu *gpu)
{
    if (!gpu)
        return;
    if (gpu->has_thread)
        end_thread(gpu);
    pthread_mutex_destroy(&gpu->lock);
    pthread_cond_destroy(&gpu->wake);
    pthread_cond_destroy(&gpu->finished);
    free(gpu);
}

const struct sl_cuda_device *sl_gpu_device(const struct sl_gpu *gpu)
{
    return &gpu->device;
}

const struct sl_cuda *sl_gpu_driver(const struct sl_gpu *gpu)
{
    return gpu->cuda;
}

/* ---- its context ---------------------------------------------------------------------------- */

/*
 * Making one takes longer than many a load, and so do pinning memory and loading kernels into it:
 * so all three stay for a while after the last who used them, as long as sl_gpu_set_warm() says.
 * What a context has goes before it does, and nothing stays of a GPU that is lost. All but the
 * setter is of the GPU's thread.
 */

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
