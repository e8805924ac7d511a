/*
 * The keys of a GGUF file. Only the alignment and the three keys of a split set matter here;
 * hyperparameters and vocabularies are stepped over, strings one length at a time, arrays of
 * numbers in one jump. Nothing is allocated by a count: a count is first compared with the least
 * room that so many elements need. Of each value the index has the place, for who asks what the
 * file says, and of a short one the bytes.
 */
#include <inttypes.h>
#include <string.h>

#include "buf.h"
#include "gguf.h"
#include "names.h"

enum {
    KEY_BYTES_MAX = 65535,
    ALIGNMENT_MAX = 1 << 20,
    PARTS_MAX = 65535,                 /* split.count is a u16 */
    DEPTH_MAX = 4,                     /* of arrays in arrays; ggml has none */
    KEPT_BYTES_MAX = 16 * 1024 * 1024, /* of all values; of one SL_GGUF_TAKE_BYTES_MAX */
    STRING_BYTES_MIN = 8,
    ARRAY_BYTES_MIN = 12,
};

enum value_type { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };

/* Of a value; of strings and arrays the least. */
static const uint8_t value_bytes[TYPES] = {[U8] = 1,
                                           [I8] = 1,
                                           [U16] = 2,
                                           [I16] = 2,
                                           [U32] = 4,
                                           [I32] = 4,
                                           [F32] = 4,
                                           [BOOL] = 1,
                                           [U64] = 8,
                                           [I64] = 8,
                                           [F64] = 8,
                                           [STRING] = STRING_BYTES_MIN,
                                           [ARRAY] = ARRAY_BYTES_MIN};

struct key {
    const char *text;
    size_t bytes;
};

/* ---- stepping over values -------------------------------------------------------------------- */

static int unknown_type(const struct key *key, uint32_t type, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "gg.kv-type",
                        "key '%.*s' has values of type %" PRIu32 ", known are 0 to 12",
                        SL_NAME_ARGS(key->text, key->bytes), type);
}

static int skip_string(struct sl_gguf_walk *walk, struct sl_err *err)
{
    static const char what[] = "a text";
    uint64_t bytes;
    if (sl_gguf_take_length(walk, what, &bytes, err) < 0)
        return -1;
    return sl_gguf_skip(walk, bytes, what, err);
}

static int skip_bools(struct sl_gguf_walk *walk, const struct key *key, uint64_t count,
                      struct sl_err *err)
{
    while (count > 0) {
        size_t piece = SL_MIN(count, (uint64_t)SL_GGUF_TAKE_BYTES_MAX);
        const uint8_t *data = sl_gguf_take(walk, piece, "a boolean", err);
        if (!data)
            return -1;
        for (size_t i = 0; i < piece; i++)
            if (data[i] > 1)
                return sl_fail_code(err, SL_E_FORMAT, "gg.kv-type",
                                    "key '%.*s' has a boolean that is %u, neither 0 nor 1",
                                    SL_NAME_ARGS(key->text, key->bytes), data[i]);
        count -= piece;
    }
    return 0;
}

static int take_array(struct sl_gguf_walk *walk, const struct key *key, uint32_t *type,
                      uint64_t *count, struct sl_err *err)
{
    static const char what[] = "an array";
    if (sl_gguf_take_u32(walk, what, type, err) < 0 || sl_gguf_take_u64(walk, what, count, err) < 0)
        return -1;
    if (*type >= TYPES)
        return unknown_type(key, *type, err);
    if (*count > SL_GGUF_LENGTH_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.limit",
                            "key '%.*s' has an array of %" PRIu64 " elements, limit %d",
                            SL_NAME_ARGS(key->text, key->bytes), *count, SL_GGUF_LENGTH_MAX);
    if (*count * value_bytes[*type] > walk->object_bytes - walk->at)
        return sl_gguf_skip(walk, *count * value_bytes[*type], what, err); /* fails */
    return 0;
}

static int skip_value(struct sl_gguf_walk *walk, const struct key *key, uint32_t type,
                      unsigned depth, struct sl_err *err);

static int skip_elements(struct sl_gguf_walk *walk, const struct key *key, uint32_t type,
                         uint64_t count, unsigned depth, struct sl_err *err)
{
    if (type == BOOL)
        return skip_bools(walk, key, count, err);
    if (type != STRING && type != ARRAY)
        return sl_gguf_skip(walk, count * value_bytes[type], "an array", err);
    for (uint64_t i = 0; i < count; i++)
        if (skip_value(walk, key, type, depth + 1, err) < 0)
            return -1;
    return 0;
}

/* The depth bounds the recursion. */
static int skip_array(struct sl_gguf_walk *walk, const struct key *key, unsigned depth,
                      struct sl_err *err)
{
    uint32_t type;
    uint64_t count;
    if (depth == DEPTH_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.limit",
                            "key '%.*s' has arrays nested more than %d deep",
                            SL_NAME_ARGS(key->text, key->bytes), DEPTH_MAX);
    if (take_array(walk, key, &type, &count, err) < 0)
        return -1;
    return skip_elements(walk, key, type, count, depth, err);
}

static int skip_value(struct sl_gguf_walk *walk, const struct key *key, uint32_t type,
                      unsigned depth, struct sl_err *err)
{
    if (type >= TYPES)
        return unknown_type(key, type, err);
    if (type == STRING)
        return skip_string(walk, err);
    if (type == ARRAY)
        return skip_array(walk, key, depth, err);
    if (type == BOOL)
        return skip_bools(walk, key, 1, err);
    return sl_gguf_skip(walk, value_bytes[type], "a value", err);
}

/* ---- values that matter ---------------------------------------------------------------------- */

static bool is(const struct key *key, const char *text)
{
    return key->bytes == strlen(text) && memcmp(key->text, text, key->bytes) == 0;
}

static int take_alignment(struct sl_gguf_walk *walk, uint32_t type, uint32_t *alignment,
                          struct sl_err *err)
{
    if (type != U32)
        return sl_fail_code(err, SL_E_FORMAT, "gg.alignment",
                            "'general.alignment' has type %" PRIu32 " instead of %d", type, U32);
    if (sl_gguf_take_u32(walk, "the alignment", alignment, err) < 0)
        return -1;
    if (*alignment == 0 || *alignment & (*alignment - 1) || *alignment > ALIGNMENT_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.alignment",
                            "'general.alignment' is %" PRIu32 ", not a power of two up to %d",
                            *alignment, ALIGNMENT_MAX);
    return 0;
}

/* An integer of any type, not negative, at most 2^31 - 1. */
static int take_number(struct sl_gguf_walk *walk, const struct key *key, uint32_t type,
                       uint32_t *number, struct sl_err *err)
{
    bool integer = type <= I32 || type == U64 || type == I64;
    uint64_t value = 0;
    if (integer) {
        const uint8_t *data = sl_gguf_take(walk, value_bytes[type], "a value", err);
        if (!data)
            return -1;
        for (unsigned i = value_bytes[type]; i-- > 0;)
            value = value << 8 | data[i];
    }
    bool negative = integer && (type == I8 || type == I16 || type == I32 || type == I64) &&
                    value >> (8 * value_bytes[type] - 1);
    if (!integer || negative || value > INT32_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.split",
                            "'%.*s' is not a number from 0 to 2^31 - 1",
                            SL_NAME_ARGS(key->text, key->bytes));
    *number = (uint32_t)value;
    return 0;
}

/* Step over a value, and note where it begins. */
static int pass_value(struct sl_gguf_walk *walk, const struct key *key,
                      struct sl_index_value *value, struct sl_err *err)
{
    uint64_t bytes;
    if (value->type == ARRAY) {
        if (take_array(walk, key, &value->element, &value->count, err) < 0)
            return -1;
        value->begin = walk->at;
        return skip_elements(walk, key, value->element, value->count, 0, err);
    }
    if (value->type == STRING) {
        if (sl_gguf_take_length(walk, "a text", &bytes, err) < 0)
            return -1;
        value->begin = walk->at;
        return sl_gguf_skip(walk, bytes, "a text", err);
    }
    return skip_value(walk, key, value->type, 0, err);
}

static int take_value(struct sl_index *index, struct sl_gguf_walk *walk, const struct key *key,
                      struct sl_index_value *value, uint32_t *alignment, struct sl_err *err)
{
    if (sl_gguf_take_u32(walk, "the type of a value", &value->type, err) < 0)
        return -1;
    value->begin = walk->at;
    if (is(key, "general.alignment"))
        return take_alignment(walk, value->type, alignment, err);
    if (is(key, "split.no"))
        return take_number(walk, key, value->type, &index->part.number, err);
    if (is(key, "split.count"))
        return take_number(walk, key, value->type, &index->part.count, err);
    if (is(key, "split.tensors.count"))
        return take_number(walk, key, value->type, &index->part.tensors, err);
    return pass_value(walk, key, value, err);
}

/* The walk stands behind the value: back to its begin, and over it once more. A window that begins
 * behind that is not given up. */
static int keep_value(struct sl_index *index, struct sl_gguf_walk *walk,
                      struct sl_index_value *value, uint64_t *kept, struct sl_err *err)
{
    if (value->begin < walk->window_begin || value->bytes > SL_GGUF_TAKE_BYTES_MAX ||
        value->bytes > KEPT_BYTES_MAX - *kept)
        return 0;
    walk->at = value->begin;
    const uint8_t *data = sl_gguf_take(walk, value->bytes, "a value", err);
    uint8_t *copy = data ? sl_index_alloc(index, value->bytes + 1, err) : NULL;
    if (!copy)
        return -1;
    memcpy(copy, data, value->bytes);
    value->data = copy;
    *kept += value->bytes;
    return 0;
}

static int note_value(struct sl_index *index, struct sl_gguf_walk *walk, const struct key *key,
                      uint32_t *alignment, uint64_t *kept, struct sl_err *err)
{
    struct sl_index_value value = {.key = key->text, .count = 1};
    if (take_value(index, walk, key, &value, alignment, err) < 0)
        return -1;
    value.bytes = walk->at - value.begin;
    if (keep_value(index, walk, &value, kept, err) < 0 ||
        sl_grow(&index->values, &index->value_capacity, index->value_count + 1,
                sizeof(*index->values), err) < 0)
        return -1;
    index->values[index->value_count++] = value;
    return 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int take_key(struct sl_index *index, struct sl_gguf_walk *walk, struct key *key,
                    struct sl_err *err)
{
    uint64_t bytes;
    if (sl_gguf_take_length(walk, "a key", &bytes, err) < 0)
        return -1;
    if (bytes == 0 || bytes > KEY_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.key", "a key of %" PRIu64 " bytes, 1 to %d fit",
                            bytes, KEY_BYTES_MAX);
    const uint8_t *data = sl_gguf_take(walk, bytes, "a key", err);
    if (!data)
        return -1;
    for (size_t i = 0; i < bytes; i++)
        if (data[i] < 0x20 || data[i] > 0x7e)
            return sl_fail_code(err, SL_E_FORMAT, "gg.key",
                                "a key holds the byte 0x%02x, which is not printable ASCII",
                                data[i]);
    char *text = sl_index_alloc(index, bytes + 1, err);
    if (!text)
        return -1;
    memcpy(text, data, bytes);
    *key = (struct key){text, bytes};
    return 0;
}

static int by_text(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    return sl_bytes_compare(x->text, x->bytes, y->text, y->bytes);
}

static int refuse_twice(struct key *keys, size_t count, struct sl_err *err)
{
    if (count > 1)
        qsort(keys, count, sizeof(*keys), by_text);
    for (size_t i = 1; i < count; i++)
        if (by_text(&keys[i - 1], &keys[i]) == 0)
            return sl_fail_code(err, SL_E_FORMAT, "gg.duplicate-key", "two keys are '%.*s'",
                                SL_NAME_ARGS(keys[i].text, keys[i].bytes));
    return 0;
}

static int check_part(const struct sl_index *index, struct sl_err *err)
{
    if (index->part.count && index->part.number >= index->part.count)
        return sl_fail_code(err, SL_E_FORMAT, "gg.split",
                            "'split.no' is %" PRIu32 " although 'split.count' is %" PRIu32,
                            index->part.number, index->part.count);
    if (index->part.count > PARTS_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.split", "'split.count' is %" PRIu32 ", limit %d",
                            index->part.count, PARTS_MAX);
    return 0;
}

int sl_gguf_keys(struct sl_index *index, struct sl_gguf_walk *walk, uint64_t count,
                 uint32_t *alignment, struct sl_err *err)
{
    sl_autofree struct key *keys = NULL;
    size_t capacity = 0;
    uint64_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (sl_grow(&keys, &capacity, i + 1, sizeof(*keys), err) < 0 ||
            take_key(index, walk, &keys[i], err) < 0 ||
            note_value(index, walk, &keys[i], alignment, &kept, err) < 0)
            return -1;
    }
    return refuse_twice(keys, count, err) < 0 ? -1 : check_part(index, err);
}
