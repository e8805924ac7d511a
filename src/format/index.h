/*
 * Where tensors lie inside objects. A format turns a source into an index; the index knows names, dtypes, shapes, byte ranges
 * and hashes, and nothing of networks.
 */
#ifndef SL_INDEX_H
#define SL_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "dtype.h"
#include "err.h"
#include "mem.h"
#include "source.h"

/** A hash that came with a tensor: over `prefix` (bytes of its header, prepared) and then the tensor's stored bytes. */
struct sl_index_hash {
    bool sha256;         /* else CRC32 */
    uint8_t expected[32]; /* CRC32: first four, big-endian */
    const uint8_t *prefix; /* owned by the index; may be shared by the hashes of one tensor */
    size_t prefix_bytes;
};

/** One component of a tensor's path: a string, or a list index. */
struct sl_path_part {
    const char *text; /* NULL: number counts */
    size_t text_bytes;
    uint64_t number;
};

struct sl_tensor {
    const char *name;       /* for people and filters: plain name, or parts joined with '.'; may hold any byte but is NUL-terminated */
    size_t name_bytes;
    const struct sl_path_part *path;
    unsigned path_count;
    enum sl_dtype dtype;
    const char *dtype_name; /* canonical spelling, also of opaque types */
    unsigned rank;
    const uint64_t *shape;
    uint64_t bytes;         /* plaintext, row-major: product of shape and item size */
    uint32_t source;        /* which of index->sources */
    uint64_t begin, end;    /* stored range in that source; empty for meta and zero-element tensors */
    bool meta;              /* no stored bytes although bytes > 0: reads as zeros */
    const struct sl_index_hash *hashes;
    unsigned hash_count;
    int refused;            /* listed but cannot be read: the enum sl_err_kind, 0 if readable */
    const char *refused_code, *refused_why;
};

struct sl_meta_pair {
    const char *key, *value;
};

struct sl_index {
    const char *format;     /* row of formats.def: "safetensors" */
    unsigned format_version; /* tensorizer's data version; 0 where there is none */
    bool encrypted;
    struct sl_source **sources; /* the objects it was read from: [0] first; shards follow. Owned by the index */
    char **source_names;        /* relative names */
    size_t source_count, source_capacity;
    struct sl_tensor *tensors;  /* in file order */
    size_t tensor_count, tensor_capacity;
    struct sl_meta_pair *metadata; /* safetensors' __metadata__ */
    size_t metadata_count, metadata_capacity;
    struct sl_arena *arena;     /* everything the tensors point to */
};

struct sl_index *sl_index_new(const char *format, struct sl_err *err);
void sl_index_free(struct sl_index *index);
SL_AUTO_DEFINE(sl_index)
/** Zeroed memory that lives as long as the index. */
void *sl_index_alloc(struct sl_index *index, size_t bytes, struct sl_err *err);
/** The source becomes the index's, also on failure. Returns its number or -1. */
int sl_index_add_source(struct sl_index *index, struct sl_source *source, struct sl_err *err);
/** A zeroed tensor at the end; valid until the next call. */
struct sl_tensor *sl_index_add_tensor(struct sl_index *index, struct sl_err *err);
/** By exact name, through a hash made on first use; NULL if absent. */
const struct sl_tensor *sl_index_find(struct sl_index *index, const char *name, size_t name_bytes);

/** How many bytes to ask for when opening an object whose format is not known: one request indexes most files. */
enum { SL_INDEX_HEAD_BYTES = 128 * 1024 };

/**
 * Find the format from the first bytes (and, for *.index.json, that it is a JSON object with weight_map) and index the object.
 * The source is consumed, also on failure. *index is NULL, with 0, if the bytes are of no format that is read (verbatim data).
 * SL_E_FORMAT with the format's own code for a file that is of a format but breaks its rules.
 */
int sl_format_index(struct sl_source *source, struct sl_index **index, struct sl_err *err);
/** As above but refuses unknown bytes too: SL_E_FORMAT, code "E_UNKNOWN". name_hint (may be NULL) decides between formats
 *  for files too short to have a magic: golden cut-off files are refused with their format's code. */
int sl_format_index_strict(struct sl_source *source, const char *name_hint, struct sl_index **index, struct sl_err *err);

/**
 * SHA-256 of a tensor's plaintext, row-major, little-endian (zeros for meta tensors), checking the hashes it came with
 * first if verify. Reads in bounded memory.
 */
int sl_tensor_digest(struct sl_index *index, const struct sl_tensor *tensor, bool verify, uint8_t digest[32], struct sl_err *err);

/** "NAME[0:4,:,2:]" against a tensor: half-open ranges per dimension. SL_E_USAGE, or SL_E_FORMAT code "st.slice". */
struct sl_slice {
    uint64_t begin[64], end[64];
};
int sl_slice_parse(const char *text, const struct sl_tensor *tensor, struct sl_slice *slice, struct sl_err *err);
int sl_slice_digest(struct sl_index *index, const struct sl_tensor *tensor, const struct sl_slice *slice, uint8_t digest[32],
                    struct sl_err *err);

#endif
