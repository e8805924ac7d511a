/* Between the files of the GGUF reader. */
#ifndef SL_GGUF_H
#define SL_GGUF_H

#include "index.h"

enum {
    SL_GGUF_COUNT_MAX = 1 << 20,                  /* tensors, and keys */
    SL_GGUF_HEADER_BYTES_MAX = 512 * 1024 * 1024, /* all in front of the data */
    SL_GGUF_LENGTH_MAX = 64 * 1024 * 1024,        /* of a text in bytes, of an array in elements */
    SL_GGUF_TAKE_BYTES_MAX = 64 * 1024,           /* of one sl_gguf_take() */
};

/** A walk over the header, from its begin to its end. Release it with sl_gguf_walk_release(). */
struct sl_gguf_walk {
    struct sl_source *source;
    uint64_t object_bytes, at; /* at: what is taken next */
    uint8_t *window;           /* the last bytes read: [begin, begin + bytes) */
    uint64_t window_begin;
    size_t window_bytes;
};

void sl_gguf_walk_release(struct sl_gguf_walk *walk);

/**
 * The next bytes, at most SL_GGUF_TAKE_BYTES_MAX; lent until the next call. NULL with gg.truncated,
 * gg.limit (the header is too long) or what reading fails with. `what` names them in messages.
 */
const uint8_t *sl_gguf_take(struct sl_gguf_walk *walk, size_t bytes, const char *what,
                            struct sl_err *err);
int sl_gguf_take_u32(struct sl_gguf_walk *walk, const char *what, uint32_t *value,
                     struct sl_err *err);
int sl_gguf_take_u64(struct sl_gguf_walk *walk, const char *what, uint64_t *value,
                     struct sl_err *err);
/** The length of a text whose bytes are all there: gg.limit, gg.truncated. */
int sl_gguf_take_length(struct sl_gguf_walk *walk, const char *what, uint64_t *bytes,
                        struct sl_err *err);
/** Step over bytes without reading them. */
int sl_gguf_skip(struct sl_gguf_walk *walk, uint64_t bytes, const char *what, struct sl_err *err);

/**
 * Step over the keys and keep what matters of them in the index: its values and its part.
 *
 * @walk       at the first key; then behind the last.
 * @count      of the keys.
 * @alignment  the format's default; out: what a key says instead.
 * @return     0, or -1: SL_E_FORMAT with a code gg.*; as sl_gguf_take().
 */
int sl_gguf_keys(struct sl_index *index, struct sl_gguf_walk *walk, uint64_t count,
                 uint32_t *alignment, struct sl_err *err);

/**
 * Add the tensors to the index, with their places.
 *
 * @walk       behind the keys; then behind the tensors' entries.
 * @count      of the tensors.
 * @alignment  of the data, from sl_gguf_keys().
 * @return     0, or -1: SL_E_FORMAT with a code gg.*; as sl_gguf_take().
 */
int sl_gguf_tensors(struct sl_index *index, struct sl_gguf_walk *walk, uint64_t count,
                    uint32_t alignment, struct sl_err *err);

/** The name of another part of the index's set, after its own; free() it. Code gg.split. */
char *sl_gguf_part_name(const struct sl_index *index, uint32_t number, struct sl_err *err);
/** Are all sets whole that these parts belong to? Code gg.split. */
int sl_gguf_check_sets(const struct sl_index *const *parts, size_t count, struct sl_err *err);

#endif
