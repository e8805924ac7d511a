/*
 * The JSON header of a safetensors file. Tokens are pulled one by one into tensors; names stay
 * where they stand in the text. Duplicates are forbidden at every level, also among members that
 * nobody knows (the Rust library keeps the last one silently): top-level names and metadata keys
 * are sorted at the end, the members of one entry are logged and sorted when it closes.
 */
#include <string.h>

#include "buf.h"
#include "json_pull.h"
#include "names.h"
#include "safetensors.h"

enum {
    UNKNOWN_KEYS_MAX = 4096, /* of one entry, with all that is nested in it */
    RANK_MAX = 65536,        /* the format has no limit; the header of such a tensor is 128 KiB */
};

/* A member's name and the object it stands in. */
struct key {
    const char *text;
    size_t bytes;
    uint32_t object;
};

struct header {
    struct sl_index *index;
    struct sl_pull pull;
    struct key *keys; /* of the entry that is open */
    size_t key_count, key_capacity;
    uint32_t objects; /* among unknown members so far; 0 is an entry itself */
    uint64_t *sizes;  /* the shape that is being read */
    size_t size_capacity;
    bool metadata_seen;
};

static int json_fail(const struct header *header, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "st.json", "the header is not JSON: %s at byte %zu",
                        header->pull.why ? header->pull.why : "an object was expected",
                        8 + header->pull.at);
}

static int info_fail(const struct header *header, const struct key *name, const char *why,
                     struct sl_err *err)
{
    if (header->pull.why)
        return json_fail(header, err);
    return sl_fail_code(err, SL_E_FORMAT, "st.tensor-info", "tensor '%.*s': %s",
                        SL_NAME_ARGS(name->text, name->bytes), why);
}

static bool is(const struct sl_pull *pull, const char *text)
{
    return pull->string_bytes == strlen(text) &&
           memcmp(pull->string, text, pull->string_bytes) == 0;
}

/* ---- members nobody knows -------------------------------------------------------------------- */

static int log_key(struct header *header, const struct key *name, uint32_t object,
                   struct sl_err *err)
{
    if (header->key_count == UNKNOWN_KEYS_MAX)
        return info_fail(header, name, "more than 4096 unknown members", err);
    if (sl_grow(&header->keys, &header->key_capacity, header->key_count + 1, sizeof(*header->keys),
                err) < 0)
        return -1;
    header->keys[header->key_count++] =
        (struct key){header->pull.string, header->pull.string_bytes, object};
    return 0;
}

/* One value with all that is in it. */
static int skip_value(struct header *header, const struct key *name, struct sl_err *err)
{
    uint32_t object_of[SL_PULL_DEPTH_MAX + 1] = {0};
    unsigned depth = header->pull.depth;
    do {
        switch (sl_pull_next(&header->pull)) {
        case SL_PULL_ERROR:
        case SL_PULL_DONE:
            return json_fail(header, err);
        case SL_PULL_OBJECT:
            object_of[header->pull.depth] = ++header->objects;
            break;
        case SL_PULL_KEY:
            if (log_key(header, name, object_of[header->pull.depth], err) < 0)
                return -1;
            break;
        default:
            break;
        }
    } while (header->pull.depth > depth);
    return 0;
}

static int by_object(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    if (x->object != y->object)
        return x->object < y->object ? -1 : 1;
    return sl_bytes_compare(x->text, x->bytes, y->text, y->bytes);
}

static int check_logged_keys(struct header *header, const struct key *name, struct sl_err *err)
{
    if (header->key_count < 2)
        return 0;
    qsort(header->keys, header->key_count, sizeof(*header->keys), by_object);
    for (size_t i = 1; i < header->key_count; i++)
        if (by_object(&header->keys[i - 1], &header->keys[i]) == 0)
            return sl_fail_code(err, SL_E_FORMAT, "st.duplicate-key",
                                "tensor '%.*s' has two members '%.*s'",
                                SL_NAME_ARGS(name->text, name->bytes),
                                SL_NAME_ARGS(header->keys[i].text, header->keys[i].bytes));
    return 0;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

/* Of a file that is wanted as it is: safetensors_check.c still sees that it is whole. */
static int note_dtype(struct header *header, const struct key *name, struct sl_tensor *tensor,
                      struct sl_err *err)
{
    struct sl_index *index = header->index;
    tensor->dtype = SL_DTYPE_NONE;
    tensor->dtype_name = header->pull.string;
    if (index->unread)
        return 0;
    sl_autofree char *why =
        sl_asprintf(err, "tensor '%.*s' has dtype '%.*s', which this version does not know",
                    SL_NAME_ARGS(name->text, name->bytes),
                    SL_NAME_ARGS(header->pull.string, header->pull.string_bytes));
    if (!why || sl_index_keep(index, why, err) < 0)
        return -1;
    index->unread = sl_steal(&why);
    return 0;
}

static int parse_dtype(struct header *header, const struct key *name, struct sl_tensor *tensor,
                       struct sl_err *err)
{
    enum sl_pull_token token = sl_pull_next(&header->pull);
    if (token == SL_PULL_ERROR)
        return json_fail(header, err);
    if (token != SL_PULL_STRING)
        return sl_fail_code(err, SL_E_FORMAT, "st.dtype", "tensor '%.*s': dtype is not a text",
                            SL_NAME_ARGS(name->text, name->bytes));
    size_t bytes = header->pull.string_bytes;
    tensor->dtype =
        bytes < 64 ? sl_dtype_by_name(header->pull.string, (unsigned)bytes) : SL_DTYPE_NONE;
    if (!sl_dtype_row(tensor->dtype)->safetensors && header->index->files)
        return note_dtype(header, name, tensor, err);
    if (!sl_dtype_row(tensor->dtype)->safetensors)
        return sl_fail_code(
            err, SL_E_FORMAT, "st.dtype",
            "tensor '%.*s': unknown dtype '%.*s' (safetensors' names are exact: F32, "
            "BF16, I64)",
            SL_NAME_ARGS(name->text, name->bytes), SL_NAME_ARGS(header->pull.string, bytes));
    tensor->dtype_name = sl_dtype_row(tensor->dtype)->name;
    return 0;
}

/* An array of integers into header->sizes; at most `limit`. */
static int parse_integers(struct header *header, const struct key *name, const char *why,
                          size_t limit, size_t *count, struct sl_err *err)
{
    *count = 0;
    if (sl_pull_next(&header->pull) != SL_PULL_ARRAY)
        return info_fail(header, name, why, err);
    for (;;) {
        uint64_t value;
        enum sl_pull_token token = sl_pull_next(&header->pull);
        if (token == SL_PULL_CLOSE)
            return 0;
        if (token != SL_PULL_NUMBER || *count == limit || !sl_pull_uint(&header->pull, &value))
            return info_fail(header, name, why, err);
        if (sl_grow(&header->sizes, &header->size_capacity, *count + 1, sizeof(*header->sizes),
                    err) < 0)
            return -1;
        header->sizes[(*count)++] = value;
    }
}

static int parse_shape(struct header *header, const struct key *name, struct sl_tensor *tensor,
                       struct sl_err *err)
{
    size_t rank;
    if (parse_integers(header, name,
                       "shape is not an array of integers from 0 to 2^64-1 (at most 65536)",
                       RANK_MAX, &rank, err) < 0)
        return -1;
    uint64_t *shape = sl_index_alloc(header->index, rank * sizeof(*shape), err);
    if (!shape)
        return -1;
    if (rank)
        memcpy(shape, header->sizes, rank * sizeof(*shape));
    tensor->rank = (unsigned)rank;
    tensor->shape = shape;
    return 0;
}

static int parse_offsets(struct header *header, const struct key *name, struct sl_tensor *tensor,
                         struct sl_err *err)
{
    static const char why[] = "data_offsets are not two integers from 0 to 2^64-1";
    size_t count;
    if (parse_integers(header, name, why, 2, &count, err) < 0)
        return -1;
    if (count != 2)
        return info_fail(header, name, why, err);
    tensor->begin = header->sizes[0];
    tensor->end = header->sizes[1];
    return 0;
}

typedef int member_parser(struct header *header, const struct key *name, struct sl_tensor *tensor,
                          struct sl_err *err);
static const struct {
    const char *name, *missing;
    member_parser *parse;
} members[] = {
    {"dtype", "no dtype", parse_dtype},
    {"shape", "no shape", parse_shape},
    {"data_offsets", "no data_offsets", parse_offsets},
};

/* The key just read, and its value. */
static int parse_member(struct header *header, const struct key *name, struct sl_tensor *tensor,
                        unsigned *seen, struct sl_err *err)
{
    for (unsigned i = 0; i < SL_COUNT(members); i++) {
        if (!is(&header->pull, members[i].name))
            continue;
        if (*seen >> i & 1)
            return sl_fail_code(err, SL_E_FORMAT, "st.duplicate-key",
                                "tensor '%.*s' has two members '%s'",
                                SL_NAME_ARGS(name->text, name->bytes), members[i].name);
        *seen |= 1u << i;
        return members[i].parse(header, name, tensor, err);
    }
    if (log_key(header, name, 0, err) < 0)
        return -1;
    return skip_value(header, name, err);
}

static int parse_tensor(struct header *header, const struct key *name, struct sl_err *err)
{
    struct sl_tensor *tensor = sl_index_add_tensor(header->index, err);
    if (!tensor || sl_index_plain_name(header->index, tensor, name->text, name->bytes, err) < 0)
        return -1;
    if (sl_pull_next(&header->pull) != SL_PULL_OBJECT)
        return info_fail(header, name, "its entry is not an object", err);
    unsigned seen = 0;
    header->key_count = 0;
    enum sl_pull_token token;
    while ((token = sl_pull_next(&header->pull)) == SL_PULL_KEY)
        if (parse_member(header, name, tensor, &seen, err) < 0)
            return -1;
    if (token != SL_PULL_CLOSE)
        return json_fail(header, err);
    for (unsigned i = 0; i < SL_COUNT(members); i++)
        if (!(seen >> i & 1))
            return info_fail(header, name, members[i].missing, err);
    return check_logged_keys(header, name, err);
}

/* ---- __metadata__ ---------------------------------------------------------------------------- */

static int metadata_fail(const struct header *header, struct sl_err *err)
{
    if (header->pull.why)
        return json_fail(header, err);
    return sl_fail_code(err, SL_E_FORMAT, "st.metadata",
                        "'__metadata__' is not an object of texts (no tensor may have that name)");
}

static int by_key(const void *a, const void *b)
{
    const struct sl_meta_pair *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static int parse_metadata(struct header *header, struct sl_err *err)
{
    if (header->metadata_seen)
        return sl_fail_code(err, SL_E_FORMAT, "st.duplicate-key", "two members '__metadata__'");
    header->metadata_seen = true;
    enum sl_pull_token token = sl_pull_next(&header->pull);
    if (token == SL_PULL_NULL)
        return 0;
    if (token != SL_PULL_OBJECT)
        return metadata_fail(header, err);
    while ((token = sl_pull_next(&header->pull)) == SL_PULL_KEY) {
        const char *key = header->pull.string;
        if (sl_pull_next(&header->pull) != SL_PULL_STRING)
            return metadata_fail(header, err);
        if (sl_index_add_meta(header->index, key, header->pull.string, err) < 0)
            return -1;
    }
    if (token != SL_PULL_CLOSE)
        return json_fail(header, err);
    struct sl_index *index = header->index;
    if (index->metadata_count > 1)
        qsort(index->metadata, index->metadata_count, sizeof(*index->metadata), by_key);
    for (size_t i = 1; i < index->metadata_count; i++)
        if (by_key(&index->metadata[i - 1], &index->metadata[i]) == 0)
            return sl_fail_code(err, SL_E_FORMAT, "st.duplicate-key",
                                "'__metadata__' has two members '%.200s'", index->metadata[i].key);
    return 0;
}

/* ---- the header ------------------------------------------------------------------------------ */

static int parse_members(struct header *header, struct sl_err *err)
{
    if (sl_pull_next(&header->pull) != SL_PULL_OBJECT)
        return json_fail(header, err);
    enum sl_pull_token token;
    while ((token = sl_pull_next(&header->pull)) == SL_PULL_KEY) {
        struct key name = {header->pull.string, header->pull.string_bytes, 0};
        int result = is(&header->pull, "__metadata__") ? parse_metadata(header, err)
                                                       : parse_tensor(header, &name, err);
        if (result < 0)
            return -1;
    }
    if (token != SL_PULL_CLOSE || sl_pull_next(&header->pull) != SL_PULL_DONE)
        return json_fail(header, err);
    return 0;
}

static int check_names(const struct sl_index *index, struct sl_err *err)
{
    sl_autofree uint32_t *sorted = sl_names_sort(index->tensors, index->tensor_count, err);
    if (!sorted)
        return -1;
    size_t twice = sl_names_duplicate(index->tensors, sorted, index->tensor_count);
    if (twice == SIZE_MAX)
        return 0;
    const struct sl_tensor *tensor = &index->tensors[twice];
    return sl_fail_code(err, SL_E_FORMAT, "st.duplicate-key", "two tensors are named '%.*s'",
                        SL_NAME_ARGS(tensor->name, tensor->name_bytes));
}

int sl_safetensors_parse(struct sl_index *index, char *json, size_t json_bytes, struct sl_err *err)
{
    if (!sl_is_utf8(json, json_bytes))
        return sl_fail_code(err, SL_E_FORMAT, "st.utf8", "the header is not UTF-8");
    struct header header = {.index = index};
    sl_pull_init(&header.pull, json, json_bytes);
    int result = parse_members(&header, err);
    free(header.keys);
    free(header.sizes);
    return result < 0 ? -1 : check_names(index, err);
}
