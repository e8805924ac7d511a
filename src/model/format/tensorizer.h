/* .tensors files as readers and writers share them. Numbers of sections and checks are those of the
 * specification. Any thread, one at a time for an index; failures are SL_E_FORMAT with its codes.
 */
#ifndef SL_TENSORIZER_H
#define SL_TENSORIZER_H

#include <inttypes.h>

#include "index.h"
#include "names.h"

enum {
    SL_TZR_METADATA_AT = 73, /* magic 5, version 4, flags 32, sizes 3 * 8, metadata_length 8, ... */
    SL_TZR_METADATA_BYTES_MAX = 1 << 30, /* section 14 */
    SL_TZR_HEADER_BYTES_MIN = 30,
    /* Section 14 allows 64 MiB; the longest fields and the widest alignment that we write need 1.2.
     * Encrypted: and a thousandth of the data. */
    SL_TZR_HEADER_BYTES_MAX = 4 * 1024 * 1024,
    SL_TZR_TYPE_STATE_DICT = 2,
    SL_TZR_RECORD_SEPARATOR = 0x1e, /* begins names that are JSON */
};

/** Steps 1 and 2 as far as the file header says. */
struct sl_tzr_file {
    uint32_t version;
    bool encrypted, tagged;
    uint64_t tensor_count, metadata_bytes, object_bytes;
    const struct sl_kdf *kdf; /* of the last tensor that had one: those of a file are alike */
};

/** Checks 1 to 8: read it. */
int sl_tzr_file_header(struct sl_source *source, struct sl_tzr_file *file, struct sl_err *err);

/** One metadata entry. Pointers lie in memory of the index. */
struct sl_tzr_entry {
    const char *name; /* as stored, RS form included */
    uint16_t name_bytes;
    uint8_t type, dtype_bytes, rank;
    bool wide; /* dimensions are u64 */
    const char *dtype;
    const uint8_t *shape; /* as stored */
    uint64_t header_offset, data_offset, data_length;
    const struct sl_path_part *path;
    unsigned path_count;
};

/**
 * Read and parse the metadata block: step 2.
 *
 * @index    its first source is read; its memory is what entries point into.
 * @file     of sl_tzr_file_header().
 * @entries  out: free() them.
 * @count    out: how many there are.
 * @return   0, or -1: SL_E_FORMAT with a code of the specification; as sl_source_read().
 */
int sl_tzr_metadata(struct sl_index *index, const struct sl_tzr_file *file,
                    struct sl_tzr_entry **entries, size_t *count, struct sl_err *err);

/** Section 6: the path that a stored name means. SL_E_FORMAT, E_NAME. */
int sl_tzr_path(struct sl_index *index, struct sl_tzr_entry *entry, struct sl_err *err);
/** Check 12 over all entries: E_DUPLICATE, E_NAME. */
int sl_tzr_check_paths(const struct sl_tzr_entry *entries, size_t count, struct sl_err *err);

/** The reverse: name and path of the entry from the tensor's path (without one: its name). The
 * name lies in the arena or is the tensor's. E_NAME for what section 6 does not allow. */
struct sl_arena;
int sl_tzr_store_name(struct sl_arena *arena, const struct sl_tensor *tensor,
                      struct sl_tzr_entry *entry, struct sl_err *err);

/**
 * Fetch every tensor header, check it, and add the tensor to the index: step 3.
 *
 * @file     of sl_tzr_file_header(); its kdf is set here.
 * @entries  `count` of them, in the order of the metadata, with their paths.
 * @return   0, or -1: SL_E_FORMAT with a code of the specification; as sl_source_read().
 */
int sl_tzr_headers(struct sl_index *index, struct sl_tzr_file *file,
                   const struct sl_tzr_entry *entries, size_t count, struct sl_err *err);
/** In how many places, far apart, do the headers lie? In the order of the metadata. */
size_t sl_tzr_header_runs(const struct sl_tzr_entry *entries, size_t count);
/**
 * Add tensors that only can be shown, without reading headers: checks 13, 14, 21 of every entry.
 *
 * @file     of sl_tzr_file_header().
 * @entries  `count` of them, in the order of the metadata, with their paths.
 * @return   0, or -1: SL_E_FORMAT with a code of the specification.
 */
int sl_tzr_outline(struct sl_index *index, struct sl_tzr_file *file,
                   const struct sl_tzr_entry *entries, size_t count, struct sl_err *err);

/** Names are cut in messages. */
#define SL_TZR_NAME(entry) SL_NAME_ARGS((entry)->name, (entry)->name_bytes)

/** Bytes with a position: what is read must be there. */
struct sl_cursor {
    const uint8_t *data;
    size_t bytes, at;
};
/** The next n bytes, or NULL if there are fewer. */
static inline const uint8_t *sl_take(struct sl_cursor *cursor, size_t n)
{
    if (cursor->bytes - cursor->at < n)
        return NULL;
    cursor->at += n;
    return cursor->data + cursor->at - n;
}

#endif
