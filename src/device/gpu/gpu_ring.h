/*
 * A bounded ring of pinned buffers through which a model's files get into memory of a GPU, or of
 * several: each buffer is filled once and copied to all.
 *
 * Readers put bytes into it (reserve, write, commit); bytes that follow one another in a file are
 * gathered in one buffer, and each buffer is one asynchronous copy. When the copy's event has come
 * the buffer is free again. Who puts bytes waits only for copies, which end without its help.
 *
 * Errors are those of gpu.h, and SL_E_CANCELED. One thread, no GPU's, makes, leaves, finishes and
 * frees it.
 */
#ifndef SL_GPU_RING_H
#define SL_GPU_RING_H

#include "gpu.h"
#include "thread.h"

enum {
    SL_GPU_RING_BUFFER_BYTES = 2 * 1024 * 1024,
    SL_GPU_RING_SCRATCHES = 2, /* one is copied into while what is in the other takes its shape */
};

struct sl_gpu_ring;
/** A change of bytes on their way: each item of in_bytes becomes one of out_bytes on the device. */
struct sl_gpu_shape {
    unsigned in_bytes, out_bytes;
    /** Have `count` items made; done in the stream's order. The GPU's thread. */
    int (*start)(void *arg, const struct sl_gpu_shape *shape, struct sl_cuda_stream *stream,
                 uint64_t in, uint64_t out, uint64_t count, struct sl_err *err);
    void *arg;
};
struct sl_gpu_ring_config {
    const uint64_t *addresses; /* where each file begins on the device; borrowed for its life */
    const uint64_t *bytes; /* of each, zeroed first; only read by sl_gpu_ring_new(). NULL: not */
    size_t file_count;
    unsigned buffers;         /* 0: 64 */
    uint64_t buffer_bytes;    /* 0: SL_GPU_RING_BUFFER_BYTES. What is put at once is never more */
    unsigned age_ms;          /* after so long a buffer goes though it is not full; 0: 5 */
    struct sl_cancel *cancel; /* borrowed; may be NULL */
    uint64_t scratch; /* SL_GPU_RING_SCRATCHES times buffer_bytes of the device, aligned to 16, for
                         what has a shape; 0: nothing has. Only for a ring of one GPU */
};
/** Pins its memory, which takes a moment: blocks. The GPU outlives it; the config is copied. */
struct sl_gpu_ring *sl_gpu_ring_new(struct sl_gpu *gpu, const struct sl_gpu_ring_config *config,
                                    struct sl_err *err);
enum { SL_GPU_RING_QUEUES_MAX = 16 };
/**
 * Send the same bytes to one more GPU, before anything is put.
 *
 * @gpu        outlives the ring.
 * @addresses  where each of the ring's files begins there; borrowed for the ring's life.
 * @bytes      of each file, zeroed first; borrowed for the call. NULL: nothing is zeroed.
 * @return     the number of its queue, for notes, from 1 on; or -1 as sl_gpu_ring_new(), and
 *             SL_E_INTERNAL beyond SL_GPU_RING_QUEUES_MAX. Then the ring is good for nothing.
 *
 * A copy that fails on one GPU fails the ring. Blocks.
 */
int sl_gpu_ring_add(struct sl_gpu_ring *ring, struct sl_gpu *gpu, const uint64_t *addresses,
                    const uint64_t *bytes, struct sl_err *err);
/** This queue ends, as with sl_gpu_ring_free(): no note of it is told any more. The ring can only
 * be freed then. */
void sl_gpu_ring_leave(struct sl_gpu_ring *ring, unsigned queue);
/** Copies under way are waited for, others are dropped. NULL is fine. */
void sl_gpu_ring_free(struct sl_gpu_ring *ring);
SL_AUTO_DEFINE(sl_gpu_ring)

/**
 * Get pinned memory for bytes [offset, offset + bytes) of a file, to be written and committed by
 * this thread before it reserves again.
 *
 * @file    number of the file.
 * @bytes   at most what a buffer has: SL_E_INTERNAL.
 * @data    out: the ring's.
 * @return  0, or -1 once any copy has failed, and when canceled.
 *
 * Any thread. Blocks while every buffer is on its way.
 */
int sl_gpu_ring_reserve(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, uint64_t bytes,
                        uint8_t **data, struct sl_err *err);
/**
 * Lend out pinned memory without an end in sight, for bytes that are received there.
 *
 * @file           number of the file.
 * @offset, bytes  which bytes of it; at most what a buffer has, else SL_E_INTERNAL.
 * @data           out: the ring's, to be committed. NULL: there is none to spare, since some
 *                 buffers are kept for those who reserve; always so in a ring with scratch memory.
 * @return         0, or -1 as sl_gpu_ring_reserve().
 *
 * Any thread, which may have many of them, and reserve meanwhile. Never blocks.
 */
int sl_gpu_ring_lend(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, uint64_t bytes,
                     uint8_t **data, struct sl_err *err);
/** They are written, and on their way when it is time. The thread that reserved them; never blocks.
 */
void sl_gpu_ring_commit(struct sl_gpu_ring *ring, const uint8_t *data);
/**
 * Reserve as sl_gpu_ring_reserve() does, for items that take another shape on the device.
 *
 * @shape   what becomes of them; stays until the ring ends.
 * @file    number of the file.
 * @offset  where what becomes of the first item lies in it.
 * @bytes   of what is written here: whole items, at most what a buffer has.
 * @data    out: the ring's, to be committed.
 * @return  0, or -1 as sl_gpu_ring_reserve().
 *
 * Any thread. Blocks while every buffer is on its way. Only in a ring with scratch memory.
 */
int sl_gpu_ring_reserve_shaped(struct sl_gpu_ring *ring, const struct sl_gpu_shape *shape,
                               uint32_t file, uint64_t offset, uint64_t bytes, uint8_t **data,
                               struct sl_err *err);
/**
 * Reserve as sl_gpu_ring_reserve() does, for one GPU alone, over what it has there.
 *
 * @queue          the GPU's: 0, or as sl_gpu_ring_add() returned it.
 * @file           number of the file.
 * @offset, bytes  which bytes of it; at most what a buffer has.
 * @data           out: the ring's, to be committed.
 * @return         0, or -1 as sl_gpu_ring_reserve().
 *
 * Any thread. Blocks while every buffer is on its way.
 */
int sl_gpu_ring_reserve_alone(struct sl_gpu_ring *ring, unsigned queue, uint32_t file,
                              uint64_t offset, uint64_t bytes, uint8_t **data, struct sl_err *err);

/**
 * Have `tell` called when everything that was committed until now is on the device: from the GPU's
 * thread, in the order of these calls; must be quick. Never if a copy fails. A note like the one
 * before it that continues it becomes one with it. Any thread. Without memory for it the ring
 * fails.
 */
struct sl_gpu_note {
    void (*deliver)(void *arg, const struct sl_gpu_note *note);
    void *arg;
    const void *subject; /* the caller's; not NULL: a note for itself */
    uint32_t file;
    uint64_t offset, bytes;
    unsigned queue; /* whose device and thread are meant; 0: that of the ring's first GPU */
};
void sl_gpu_ring_note(struct sl_gpu_ring *ring, const struct sl_gpu_note *note);

/** From within deliver() on, until its end: what this queue was told of is not done yet, and
 * whoever finishes waits for it. Any thread. */
void sl_gpu_ring_begin_work(struct sl_gpu_ring *ring, unsigned queue);
void sl_gpu_ring_end_work(struct sl_gpu_ring *ring, unsigned queue);

/** End it with this failure: for notes that cannot be carried out. Any thread. */
void sl_gpu_ring_fail(struct sl_gpu_ring *ring, const struct sl_err *why);

/** 0 while it works; else its failure, or SL_E_CANCELED. Any thread. */
int sl_gpu_ring_check(struct sl_gpu_ring *ring, struct sl_err *err);

/**
 * Read what the first GPU has there, committed bytes included, which is all that it may be asked
 * for.
 *
 * @file    number of the file.
 * @data    out: bytes [offset, offset + bytes) of it. Any thread; blocks.
 */
int sl_gpu_ring_read(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, void *data,
                     size_t bytes, struct sl_err *err);
/** Everything is on every device and every note told; or the first failure. Blocks. */
int sl_gpu_ring_finish(struct sl_gpu_ring *ring, struct sl_err *err);

#endif
