/* What the files of the staging ring share. Not for others. */
#ifndef SL_GPU_RING_PARTS_H
#define SL_GPU_RING_PARTS_H

#include "gpu_parts.h"
#include "gpu_ring.h"

enum { SL_RING_BUFFERS_MAX = 256, SL_RING_BOUNCE_BYTES = 1024 * 1024 };
enum sl_gpu_buffer_state { SL_BUFFER_FREE, SL_BUFFER_OPEN, SL_BUFFER_CLOSED };

struct sl_gpu_buffer {
    uint8_t *data;
    enum sl_gpu_buffer_state state;
    bool closes; /* as soon as nobody writes into it */
    unsigned writers;
    uint32_t file;
    const struct sl_gpu_shape *shape;  /* NULL: bytes stay as they are */
    uint64_t offset, used;             /* in the file; bytes here */
    uint64_t number, opened_ns, order; /* order: of closing, of copying */
    uint32_t queues;                   /* that it is for, a bit each */
    uint32_t begun, landed;            /* CLOSED: copies of each queue, a bit each */
};
struct sl_gpu_waiting_note {
    struct sl_gpu_note note;
    uint64_t upto; /* number */
};
/** The way to one GPU. */
struct sl_gpu_queue {
    struct sl_gpu_chore chore; /* first */
    struct sl_gpu_ring *ring;
    struct sl_gpu *gpu;
    uint32_t bit; /* of this queue in a buffer's begun and landed */
    const uint64_t *addresses, *zeroed;
    struct sl_cuda_stream *stream;
    struct sl_cuda_event *events[SL_RING_BUFFERS_MAX]; /* of each buffer */
    bool acquired;
    struct { /* by the ring's lock */
        struct sl_gpu_waiting_note *notes;
        size_t first_note, note_count, note_capacity;
        bool telling; /* one that was taken from the list */
    } locked;
};
struct sl_gpu_ring {
    size_t file_count;
    struct sl_cancel *cancel;
    unsigned count;
    uint64_t buffer_bytes, age_ns, scratch;
    uint8_t *pinned, *bounce; /* one piece: the buffers, then what reading back takes */
    struct sl_gpu_queue queues[SL_GPU_RING_QUEUES_MAX];
    unsigned queue_count; /* set before anything is put */
    pthread_mutex_t lock;
    pthread_cond_t moved; /* a buffer is free, a note told, or it failed */
    struct {
        struct sl_gpu_buffer buffers[SL_RING_BUFFERS_MAX];
        uint64_t last_number, last_order;
        struct sl_err err;
    } locked;
};

/** gpu_ring.c: one round of a queue's copies and notes; the GPU's thread. */
uint64_t sl_gpu_queue_turn(struct sl_gpu_chore *chore);

#endif
