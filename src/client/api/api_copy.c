/*
 * Copies to a GPU of memory that its driver may not want to pin. What is not pinned is copied by
 * the driver through its own buffers, at half the speed and with the caller waiting; here it goes
 * through two pinned pieces, of which one is filled while the other is on its way.
 *
 * A stage, these two, is taken for a call and given back: so several threads have several, and each
 * only waits for its own. A piece on its way stays so after the call. Whoever takes the stage next
 * begins with the other one, so that calls of one piece each overlap as well, and waits for the
 * event first.
 */
#include <stdlib.h>
#include <string.h>

#include "api_memory.h"
#include "api_parts.h"

enum { PIECE_BYTES = 4 * 1024 * 1024, PIECES = 2 };

struct sl_api_stage {
    struct sl_cuda_context *context; /* of the events */
    uint8_t *pieces[PIECES];         /* one allocation, the first one's */
    struct sl_cuda_event *events[PIECES];
    bool used[PIECES]; /* its event was recorded */
    int piece;         /* the next: it was on its way before the other */
    struct sl_api_stage *next;
};

/* ---- stages; their context is current -------------------------------------------------------- */

static void free_stage(const struct sl_cuda *cuda, struct sl_api_stage *stage)
{
    for (int i = 0; i < PIECES; i++) {
        if (stage->used[i])
            cuda->event_synchronize(stage->events[i]);
        if (stage->events[i])
            cuda->event_destroy(stage->events[i]);
    }
    if (stage->pieces[0])
        cuda->host_free(stage->pieces[0]);
    free(stage);
}

static int fill_stage(const struct sl_cuda *cuda, struct sl_api_stage *stage,
                      struct sl_cuda_err *err)
{
    enum { EVENT = SL_CUDA_EVENT_DISABLE_TIMING | SL_CUDA_EVENT_BLOCKING_SYNC };
    void *data = NULL;
    if (sl_cuda_check(cuda, cuda->host_alloc(&data, PIECES * PIECE_BYTES, SL_CUDA_HOST_PORTABLE),
                      err, "pin %d bytes", PIECES * PIECE_BYTES) < 0)
        return -1;
    for (int i = 0; i < PIECES; i++) {
        stage->pieces[i] = (uint8_t *)data + (size_t)i * PIECE_BYTES;
        if (sl_cuda_check(cuda, cuda->event_create(&stage->events[i], EVENT), err,
                          "make an event") < 0)
            return -1;
    }
    return 0;
}

static struct sl_api_stage *take_stage(struct sluice_model *model, struct sl_cuda_context *context)
{
    struct sl_api_stage **at = &model->stages, *found;
    pthread_mutex_lock(&model->lock);
    while (*at && (*at)->context != context)
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&model->lock);
    return found;
}

static struct sl_api_stage *find_stage(struct sluice_model *model, struct sl_cuda_context *context,
                                       struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    struct sl_api_stage *stage = take_stage(model, context);
    if (stage)
        return stage;
    stage = sl_api_alloc(sizeof(*stage));
    if (!stage) {
        sl_api_fail(error, SLUICE_NO_SPACE, "out of memory");
        return NULL;
    }
    stage->context = context;
    if (fill_stage(model->device.cuda, stage, &err) == 0)
        return stage;
    free_stage(model->device.cuda, stage);
    sl_api_device_fail(&err, error);
    return NULL;
}

static void give_stage(struct sluice_model *model, struct sl_api_stage *stage)
{
    pthread_mutex_lock(&model->lock);
    stage->next = model->stages;
    model->stages = stage;
    pthread_mutex_unlock(&model->lock);
}

/* A context that its owner has destroyed took its events and its pinned memory with it. */
void sl_api_stages_free(struct sluice_model *model)
{
    const struct sl_cuda *cuda = model->device.cuda;
    struct sl_cuda_context *before = NULL;
    if (!model->stages)
        return;
    cuda->get_current(&before);
    while (model->stages) {
        struct sl_api_stage *stage = model->stages;
        model->stages = stage->next;
        if (cuda->set_current(stage->context) == 0)
            free_stage(cuda, stage);
        else
            free(stage);
    }
    cuda->set_current(before);
}

/* ---- copies ---------------------------------------------------------------------------------- */

struct copying {
    uint64_t to;
    const uint8_t *from;
    uint64_t bytes;
    struct sl_cuda_stream *stream;
};

static int send(const struct sl_cuda *cuda, const struct copying *copying, const void *from,
                uint64_t at, uint64_t bytes, struct sl_cuda_err *err)
{
    return sl_cuda_check(cuda, cuda->copy_to_device(copying->to + at, from, bytes, copying->stream),
                         err, "copy %llu bytes to a GPU", (unsigned long long)bytes);
}

static int send_piece(const struct sl_cuda *cuda, struct sl_api_stage *stage, int piece,
                      const struct copying *copying, uint64_t at, struct sl_cuda_err *err)
{
    uint64_t left = copying->bytes - at, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
    if (stage->used[piece] && sl_cuda_check(cuda, cuda->event_synchronize(stage->events[piece]),
                                            err, "wait for a copy to a GPU") < 0)
        return -1;
    stage->used[piece] = false;
    memcpy(stage->pieces[piece], copying->from + at, bytes);
    if (send(cuda, copying, stage->pieces[piece], at, bytes, err) < 0)
        return -1;
    stage->used[piece] = true;
    return sl_cuda_check(cuda, cuda->event_record(stage->events[piece], copying->stream), err,
                         "record an event");
}

static int copy_staged(struct sluice_model *model, const struct copying *copying,
                       struct sl_cuda_context *context, struct sluice_error *error)
{
    const struct sl_cuda *cuda = model->device.cuda;
    struct sl_cuda_err err = {0};
    struct sl_api_stage *stage = find_stage(model, context, error);
    int done = 0;
    if (!stage)
        return -1;
    for (uint64_t at = 0; at < copying->bytes && done == 0; at += PIECE_BYTES) {
        done = send_piece(cuda, stage, stage->piece, copying, at, &err);
        stage->piece = !stage->piece;
    }
    if (done < 0) { /* what of it is on its way is not known */
        cuda->stream_synchronize(copying->stream);
        free_stage(cuda, stage);
        return sl_api_device_fail(&err, error);
    }
    give_stage(model, stage);
    return 0;
}

static bool is_ours(const struct sluice_model *model, const void *from, uint64_t bytes)
{
    for (size_t i = 0; i < model->slab_count; i++) {
        const struct sl_api_slab *slab = &model->slabs[i];
        uint64_t at = (uint64_t)((const uint8_t *)from - (const uint8_t *)slab->map);
        if (at <= slab->bytes && bytes <= slab->bytes - at)
            return true;
    }
    return false;
}

static int copy(struct sluice_model *model, const struct copying *copying,
                struct sl_cuda_context *context, struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    if (*model->unpinned)
        return copy_staged(model, copying, context, error);
    return send(model->device.cuda, copying, copying->from, 0, copying->bytes, &err) < 0
               ? sl_api_device_fail(&err, error)
               : 0;
}

int sluice_copy(struct sluice_model *model, uint64_t to, const void *from, uint64_t bytes,
                void *stream, struct sluice_error *error)
{
    const struct copying copying = {to, from, bytes, stream};
    struct sl_cuda_err err = {0};
    if (!(model->flags & SLUICE_REGISTER))
        return sl_api_fail(error, SLUICE_USAGE,
                           "the model was not attached to with SLUICE_REGISTER");
    if (!is_ours(model, from, bytes))
        return sl_api_fail(error, SLUICE_USAGE, "the bytes to copy are not in the model's memory");
    const struct sl_cuda *cuda = model->device.cuda;
    struct sl_cuda_context *before = NULL;
    cuda->get_current(&before);
    if (!before && sl_cuda_check(cuda, cuda->set_current(model->device.context), &err,
                                 "use cuda:%d", model->device.info.ordinal) < 0)
        return sl_api_device_fail(&err, error);
    int done = bytes ? copy(model, &copying, before ? before : model->device.context, error) : 0;
    if (!before)
        cuda->set_current(NULL);
    return done;
}
