/* One sluice_read() on its way: what is asked, and the pieces that it becomes. Made by
 * read_parts.c, carried out by read.c into read_sink.c. */
#ifndef SL_READING_H
#define SL_READING_H

#include "open_parts.h"
#include "read_device.h"
#include "sink.h"

/**
 * What a plan's file is for: bytes of one read. Where the slice has steps the file is what lies
 * between its first and last element, in memory of its own until the elements are taken out. What
 * is for a GPU is in such memory, too, until it is checked.
 */
struct sl_piece {
    size_t read;           /* of the caller's array */
    uint8_t *to;           /* the caller's memory; of a GPU, if there is one */
    uint64_t bytes;        /* of the file */
    struct sl_slice slice; /* of the tensor */
    bool whole;            /* all of the tensor: the slice does not count */
    bool steps;            /* elements are taken out: the rest is of these */
    uint64_t step[SL_SLICE_RANK_MAX];
    unsigned rank, last; /* last: dimension that has a step */
    uint64_t run_bytes;  /* of one element of the last one, and all that lies in it */
    bool aside;          /* the file is not where it goes, but */
    uint8_t *between;    /* guarded by the lock: here */
    bool keeps;          /* a check may look at it again */
};
struct sl_reading {
    struct sluice_source *source;
    const struct sluice_read *reads; /* copied */
    size_t count;
    struct sluice_read_options options;
    struct sl_read_device *device; /* where all of it goes; NULL: the host */
    struct sl_piece *pieces;
    size_t piece_count, piece_capacity;
    uint32_t *pieces_left; /* guarded by the lock: one a read */
    uint64_t bytes_total;
    pthread_mutex_t lock;
    struct {
        uint64_t bytes_done;
        bool canceled;     /* a callback said so, or */
        struct sl_err why; /* that, if it has a kind */
    } locked;
};

/** The pieces of all reads. SL_E_USAGE, SL_E_FORMAT. */
int sl_reading_part(struct sl_reading *reading, struct sl_err *err);
/** All of the file has landed: take the elements out. What follows the last one. */
uint8_t *sl_piece_take_out(const struct sl_piece *piece, uint8_t *to);

/** The pieces as files. All borrowed; sl_sink_free() it. SL_E_NO_SPACE. */
struct sl_sink *sl_read_sink_open(struct sl_reading *reading, const struct sl_sink_file *files,
                                  struct sl_err *err);

#endif
