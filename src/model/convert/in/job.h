/*
 * Inside convert: one conversion, its new objects, its tensors, and who does what. Filled by
 * convert.c, handed out by schedule.c, worked by worker.c and tally.c, written by output.c
 * and outputs_run.c.
 */
#ifndef SL_JOB_H
#define SL_JOB_H

#include "chunk_check.h"
#include "convert.h"
#include "hash.h"
#include "progress.h"
#include "tensor_reader.h"
#include "thread.h"

enum {
    SL_CONVERT_BLOCK_BYTES = 4 * 1024 * 1024,
    SL_CONVERT_THREADS_MAX = 64,
    /* Bytes between the first unfinished tensor and a new one that is begun: of stores that hold
     * the parts in between in memory. */
    SL_CONVERT_WINDOW_BYTES = 64 * 1024 * 1024,
};

/** Objects of one folder that are one model, and how it is laid out anew. */
struct sl_component {
    char *folder;        /* "" or "unet/": below source and destination */
    char *stem;          /* "model" */
    struct sl_spec spec; /* strings borrowed from the caller's, except uri and include */
    char *uri;
    struct sl_list include;
    struct sl_plan *plan;
    bool given;    /* the plan is the caller's */
    unsigned rank; /* of those that are written; 0 of one alone */
    struct sl_layout *layout;
    struct sl_verified_reader **verified; /* one a source of the plan; NULL: it has no sidecar */
    size_t verified_count;
};

/** A new object. */
struct sl_output {
    char *name, *uri;
    uint64_t bytes;
    const struct sl_layout_file *file; /* NULL: a data file */
    struct sl_source *source;          /* of a data file; owned */
    struct sl_item *first_item;        /* NULL: it holds no tensors */
    struct sl_upload *upload;
    uint64_t tail; /* behind it nothing but zeros */
    struct {
        size_t items_left;
        uint64_t position; /* uploads in order: what has been written */
    } locked;              /* by the job's lock */
};

/** A tensor on its way. */
struct sl_item {
    const struct sl_target *target;
    const struct sl_layout_header *header; /* .tensors; else NULL */
    struct sl_output *output;
    uint64_t gap;        /* zeros from here to the header, or to the data */
    uint64_t begin;      /* of the data in the output */
    uint64_t data_bytes; /* stored: 0 for tensors that stay meta */
    uint64_t raw_bytes;  /* read from the source, before a cast */
    const struct sl_index_hash *crc_check, *sha_check; /* hashes that came with it, NULL: none */
    struct sl_chunk_check *chunk_check; /* of a tensor in chunks that have some; NULL: none */
    struct {
        uint64_t assigned, hashed, done;
        unsigned workers;
        uint32_t crc, raw_crc; /* see tally.c */
    } locked;                  /* by the job's lock */
    /* For who begins the tensor, then for whose turn it is: sl_item_await_turn(). */
    struct sl_sha256 *sha, *raw_sha;
};

enum sl_pass {
    SL_PASS_WRITE,   /* data, then headers */
    SL_PASS_MEASURE, /* only hashes, for headers */
    SL_PASS_ORDER,   /* everything in the order of the bytes, headers known */
};

struct sl_job {
    const struct sl_convert_config *config;
    struct sl_source_config source_config;
    struct sl_component *components;
    size_t component_count, component_capacity;
    struct sl_store *store;    /* of a folder: where data files are */
    struct sl_output *outputs; /* data files, then each component's files, its index last */
    size_t output_count, output_capacity;
    struct sl_item *items;
    size_t item_count;
    const uint8_t *key; /* borrowed from config->seal; NULL: plain */
    uint64_t block_bytes, piece_bytes;
    uint64_t window_bytes;
    uint64_t wanted_bytes; /* of the tensors of all components so far */
    bool in_order;
    enum sl_pass pass;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    struct {
        size_t next;       /* the first item that nobody has begun */
        size_t first_open; /* every item before it is done */
        bool failed;
        struct sl_err err;
        uint64_t checks, bytes_read;
    } locked;
};

/** A thread's own. */
struct sl_worker {
    struct sl_job *job;
    uint8_t *plain, *other; /* block_bytes and a little each; raw bytes of casts, ciphertext */
    struct sl_item *item;   /* whose blocks it takes */
    struct {
        struct sl_index *index;
        struct sl_tensor_reader *reader;
    } * readers;
    size_t reader_count, reader_capacity;
    struct {
        const struct sl_index *index;
        uint32_t number;
        struct sl_source *source;
    } * clones;
    size_t clone_count, clone_capacity;
    struct {
        uint64_t begin, end; /* end 0: nothing */
        uint32_t source;
    } ahead; /* of a batch: these bytes are in `other` */
};

/** One block of a tensor, hashed: where it is in what is written and in what is read. */
struct sl_tally {
    uint64_t begin, end, raw_end;
    uint32_t crc, raw_crc;
};

/** A thread's next work: whole tensors that follow each other, or a part of a large one. */
struct sl_block {
    struct sl_item *first;
    size_t count; /* 1 for a part */
    bool part;
    uint64_t begin, end; /* of a part: of the tensor's data */
};

/* ---- folder.c -------------------------------------------------------------------------------- */

/** Components of the source, and the data files of a folder as outputs without upload. */
int sl_job_find(struct sl_job *job, struct sl_err *err);
/** An object of the folder that goes along as it is; opened here. */
int sl_job_add_data_file(struct sl_job *job, const char *name, struct sl_err *err);

/* ---- rank_parts.c --------------------------------------------------------------------------- */

/** For config->ranks: each component as many times, each with its part and its names. */
int sl_job_part_ranks(struct sl_job *job, struct sl_err *err);

/* ---- verified_sources.c --------------------------------------------------------------------- */

/** Sources of the open plan that have a sidecar are checked by it. SL_E_INTEGRITY. */
int sl_component_verify_reads(struct sl_job *job, struct sl_component *component,
                              struct sl_err *err);
/** What tells where the tensors lie, as far as reading them has not shown that it is right: before
 * anything is made visible, when nobody reads. SL_E_INTEGRITY. */
int sl_job_prove_indexes(struct sl_job *job, struct sl_err *err);
/** What a component holds. */
void sl_component_release(struct sl_component *component);
/** When their sources are gone. */
void sl_component_release_readers(struct sl_component *component);

/* ---- convert_room.c -------------------------------------------------------------------------- */

/** Before the tensors of one more plan are laid out: do they and those before fit? SL_E_NO_SPACE;
 * SL_E_FORMAT: sealed they would be more than anybody has. */
int sl_job_check_room(struct sl_job *job, const struct sl_plan *plan, struct sl_err *err);
/** May as many files be open as are written side by side? SL_E_NO_SPACE. */
int sl_job_check_descriptors(const struct sl_job *job, struct sl_err *err);

/* ---- leftovers.c ----------------------------------------------------------------------------- */

/** Are all files of the same models at the destination ones that are written anew? SL_E_USAGE. */
int sl_job_check_leftovers(const struct sl_job *job, struct sl_err *err);

/* ---- convert_layout.c ------------------------------------------------------------------------ */

/** Plans, layouts, outputs and items of all components. */
int sl_job_lay_out(struct sl_job *job, struct sl_err *err);

/* ---- schedule.c ------------------------------------------------------------------------------ */

/** The next block, or count 0 when there is nothing left to do or the job failed. Blocks. */
void sl_job_take(struct sl_job *job, struct sl_worker *worker, struct sl_block *block);
/** Items are begun anew: before each pass. */
void sl_job_rewind(struct sl_job *job);
/** Keep the first failure and wake everybody. Always -1. */
int sl_job_fail(struct sl_job *job, const struct sl_err *err);
/** -1 if the job failed elsewhere: err is its failure. */
int sl_job_check(struct sl_job *job, struct sl_err *err);
/** Bytes that an item and what stands before it take in the new object. */
uint64_t sl_item_span(const struct sl_item *item);

/* ---- tally.c --------------------------------------------------------------------------------- */

/** Which hashes of the source are checked. SL_E_INTEGRITY for `require` and none. */
int sl_item_choose_checks(struct sl_item *item, const struct sl_spec *spec, struct sl_err *err);
/** Make what hashes of an item in order need. */
int sl_item_begin(struct sl_item *item, struct sl_err *err);
bool sl_item_in_turns(const struct sl_item *item);
/** Wait until all before `begin` is hashed. -1 if the job failed. */
int sl_item_await_turn(struct sl_job *job, struct sl_item *item, uint64_t begin,
                       struct sl_err *err);
/**
 * Hash what is written of an item, when it is our turn, and let the next one.
 *
 * @data  `bytes` bytes of plaintext, behind those that were hashed before.
 */
void sl_item_hash(struct sl_job *job, struct sl_item *item, const uint8_t *data, size_t bytes);
/** It is our turn: hash what is read, before a cast. */
void sl_item_hash_raw(struct sl_item *item, const uint8_t *data, size_t bytes);
bool sl_item_needs_crc(const struct sl_item *item);
bool sl_item_needs_raw_crc(const struct sl_item *item);
/** Count a block; true for the one that makes the item complete. */
bool sl_item_count(struct sl_job *job, struct sl_item *item, const struct sl_tally *tally);
/** Checks of the source, and hashes into the header. */
int sl_item_complete(struct sl_job *job, struct sl_item *item, struct sl_err *err);
void sl_item_release(struct sl_item *item);

/* ---- pull.c ---------------------------------------------------------------------------------- */

/** Of a batch: read all of it at once, if it lies together. */
int sl_worker_read_ahead(struct sl_worker *worker, const struct sl_block *block,
                         struct sl_err *err);
/**
 * Read a part of what is written of an item, as plaintext.
 *
 * @out     room for the part, borrowed.
 * @tally   begin and end of the part; out: raw_end, and the CRCs that the item needs.
 * @return  0, or -1, naming the tensor: as sl_tensor_read().
 */
int sl_worker_read(struct sl_worker *worker, const struct sl_item *item, uint8_t *out,
                   struct sl_tally *tally, struct sl_err *err);
void sl_worker_release_readers(struct sl_worker *worker);

/* ---- worker.c -------------------------------------------------------------------------------- */

/** Carry out one pass. */
int sl_job_work(struct sl_job *job, struct sl_err *err);

/* ---- output.c -------------------------------------------------------------------------------- */

/**
 * Add an output at the end of job->outputs, whose addresses change.
 *
 * @folder  what its name begins with: "", or ends in '/'.
 * @name    of the object in that folder; copied.
 * @bytes   that it will have.
 * @return  0, or -1; what is there of it goes with the job.
 */
int sl_job_add_output(struct sl_job *job, const char *folder, const char *name, uint64_t bytes,
                      struct sl_err *err);
/** The destination, and its head. */
int sl_output_open(struct sl_job *job, struct sl_output *output, struct sl_err *err);
int sl_output_write_head(struct sl_job *job, struct sl_output *output, struct sl_err *err);
/** Before a block is read: wait for room. */
int sl_output_admit(struct sl_job *job, const struct sl_block *block, struct sl_err *err);
/**
 * Write bytes of a new object; in a pass that measures they are only counted.
 *
 * @offset  of the bytes in the object.
 * @data    `bytes` bytes.
 * @return  0, or -1: errors of uploads, or the job's failure.
 *
 * Blocks: objects that are written in order wait for their turn.
 */
int sl_output_write(struct sl_job *job, struct sl_output *output, uint64_t offset, const void *data,
                    size_t bytes, struct sl_err *err);
/**
 * As sl_output_write(), of zeros.
 *
 * @begin, end  in the object; equal: nothing is written.
 * @return      0, or -1: errors of uploads, or the job's failure.
 */
int sl_output_zeros(struct sl_job *job, struct sl_output *output, uint64_t begin, uint64_t end,
                    struct sl_err *err);
/** This many items are written whole; the end of the object follows the last one. */
int sl_output_items_done(struct sl_job *job, struct sl_output *output, size_t count,
                         struct sl_err *err);
void sl_output_release(struct sl_output *output);

/* ---- outputs_run.c --------------------------------------------------------------------------- */

/** Write all of them and make them visible. */
int sl_outputs_run(struct sl_job *job, struct sl_err *err);

#endif
