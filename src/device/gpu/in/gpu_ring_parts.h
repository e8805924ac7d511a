/* What the files of the staging ring share. Not for others. */
#ifndef SL_GPU_RING_PARTS_H
#define SL_GPU_RING_PARTS_H

#include "gpu_parts.h"
#include "gpu_ring.h"

enum { SL_RING_BUFFERS_MAX = 128, SL_RING_COPIES_MAX = 256, SL_RING_BOUNCE_BYTES = 1024 * 1024 };
enum sl_gpu_buffer_state { SL_BUFFER_FREE, SL_BUFFER_OPEN, SL_BUFFER_CLOSED };

struct sl_gpu_buffer {
    uint8_t *data;
    uint64_t skipped; /* bytes of its memory before data, which have gone as a part */
    uint64_t floor;   /* there are writers: the first byte that may not be written yet */
    enum sl_gpu_buffer_state state;
    bool closes; /* as soon as nobody writes into it */
    bool lent;   /* its writer may take long */
    unsigned writers;
    uint32_t file;
    const struct sl_gpu_shape *shape;  /* NULL: bytes stay as they are */
    uint64_t offset, used;             /* in the file; bytes here */
    uint64_t number, opened_ns, order; /* order: of closing, of copying */
    uint32_t queues;                   /* that it is for, a bit each */
    uint32_t begun, landed;            /* CLOSED: copies of each queue, a bit each */
};
/** A piece of scratch memory: what is in it was copied, what was in it has its shape. */
struct sl_gpu_scratch {
    uint64_t address;
    struct sl_cuda_event *copied, *shaped;
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
    struct sl_cuda_event *events[SL_RING_COPIES_MAX]; /* of each buffer */
    /* Of a ring with scratch memory. The GPU's thread's: */
    struct sl_cuda_stream *shaping;
    struct sl_gpu_scratch scratches[SL_GPU_RING_SCRATCHES];
    struct sl_gpu_scratch *last_shaped; /* NULL: none was, since anything was copied as it is */
    unsigned shaped_count;
    bool acquired;
    struct { /* by the ring's lock */
        struct sl_gpu_waiting_note *notes;
        size_t first_note, note_count, note_capacity;
        bool delivering; /* one that was taken from the list */
        unsigned works;  /* that notes have begun */
    } locked;
};
struct sl_gpu_ring {
    size_t file_count;
    struct sl_cancel *cancel;
    unsigned count;  /* buffers, which have memory */
    unsigned copies; /* and behind them, for parts of those, some that have none */
    uint64_t buffer_bytes, age_ns, scratch;
    uint8_t *pinned, *bounce; /* one piece: the buffers, then what reading back takes */
    struct sl_gpu_queue queues[SL_GPU_RING_QUEUES_MAX];
    unsigned queue_count; /* set before anything is put */
    pthread_mutex_t lock;
    pthread_cond_t moved; /* a copy has landed, a note is told, or it failed */
    pthread_cond_t freed; /* there is a buffer for one who waits, or it failed */
    struct {
        struct sl_gpu_buffer buffers[SL_RING_COPIES_MAX];
        uint64_t last_number, last_order;
        struct sl_err err;
    } locked;
};

#ifdef NDEBUG
static inline void gpu_ring_invariants(const struct sl_gpu_ring *ring)
{
    (void)ring;
}
#else
/** What holds whenever nobody has the lock, numbered. */
void gpu_ring_invariants(const struct sl_gpu_ring *ring);
#endif
SL_LOCKED_DEFINE(sl_gpu_ring, gpu_ring_invariants)
/** Hold the lock to the end of the scope. */
#define RING_LOCKED(ring) SL_LOCKED_CHECKED(sl_gpu_ring, ring)

/** gpu_ring.c, with the ring's lock; of a place in the file: behind a buffer's last byte. */
uint64_t sl_gpu_buffer_end(const struct sl_gpu_buffer *buffer);
/** Is it on its way to this queue's GPU? */
bool sl_gpu_ring_is_outstanding(const struct sl_gpu_buffer *buffer,
                                const struct sl_gpu_queue *queue);
/** The lowest number of what is not on the device yet; UINT64_MAX: nothing is. */
uint64_t sl_gpu_ring_lowest(const struct sl_gpu_queue *queue);
/** An open one goes as soon as nobody writes into it. */
void sl_gpu_ring_close(struct sl_gpu_ring *ring, struct sl_gpu_buffer *buffer);
/** 0, or -1 with why it has ended. */
int sl_gpu_ring_going(struct sl_gpu_ring *ring, struct sl_err *err);
/** Until something has moved, or a while has passed. */
void sl_gpu_ring_wait(struct sl_gpu_ring *ring);
/** As sl_gpu_ring_reserve() of a ring that works, for who must not wait: NULL where that would. */
uint8_t *sl_gpu_ring_try(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, uint64_t bytes);
/** There is something for its GPUs; with or without the lock. */
void sl_gpu_ring_poke(const struct sl_gpu_ring *ring);
/** gpu_ring.c: one round of a queue's copies and notes; the GPU's thread. */
uint64_t sl_gpu_queue_turn(struct sl_gpu_chore *chore);

#endif
