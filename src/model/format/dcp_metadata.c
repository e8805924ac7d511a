/*
 * The pickle of a distributed checkpoint: objects of a few dataclasses, whose attributes are kept
 * as the values that they are. A class that is not in the list is refused by name, used or not.
 *
 *     state_dict_metadata   {name: TensorStorageMetadata(properties, size, chunks)}
 *     storage_data          {MetadataIndex(name, offset): _StorageInfo(path, offset, length)}
 *
 * A chunk is looked for by its tensor's name and by where it begins.
 */
#include <inttypes.h>
#include <string.h>

#include "dcp.h"
#include "names.h"
#include "pickle.h"
#include "shard_map.h"

enum { RANK_MAX = 64, NAME_BYTES_MAX = 65536, SHOWN_MAX = 80 };

enum meaning {
    /* classes */
    METADATA,
    TENSOR,
    NO_TENSOR,
    PROPERTIES,
    CHUNK,
    KEY,
    PLACE,
    OF_NO_USE, /* an object */
    /* functions, and values */
    SIZE,
    LAYOUT,
    DTYPE,
    ORDERED_DICT,
    VALUE_OF_NO_USE, /* called */
};

#define CHECKPOINT     "torch.distributed.checkpoint"
#define OLD_CHECKPOINT "torch.distributed._shard.checkpoint"
#define SHARDED        "torch.distributed._shard.sharded_tensor.metadata"

static const struct row {
    const char *module, *name;
    enum meaning meaning;
} rows[] = {
    {CHECKPOINT ".metadata", "Metadata", METADATA},
    {CHECKPOINT ".metadata", "TensorStorageMetadata", TENSOR},
    {CHECKPOINT ".metadata", "BytesStorageMetadata", NO_TENSOR},
    {CHECKPOINT ".metadata", "TensorProperties", PROPERTIES},
    {CHECKPOINT ".metadata", "ChunkStorageMetadata", CHUNK},
    {CHECKPOINT ".metadata", "MetadataIndex", KEY},
    {CHECKPOINT ".metadata", "StorageMeta", OF_NO_USE},
    {CHECKPOINT ".metadata", "_MEM_FORMAT_ENCODING", VALUE_OF_NO_USE},
    {CHECKPOINT ".filesystem", "_StorageInfo", PLACE},
    {OLD_CHECKPOINT ".metadata", "Metadata", METADATA},
    {OLD_CHECKPOINT ".metadata", "TensorStorageMetadata", TENSOR},
    {OLD_CHECKPOINT ".metadata", "BytesStorageMetadata", NO_TENSOR},
    {OLD_CHECKPOINT ".metadata", "ChunkStorageMetadata", CHUNK},
    {OLD_CHECKPOINT ".metadata", "MetadataIndex", KEY},
    {OLD_CHECKPOINT ".filesystem", "_StorageInfo", PLACE},
    {SHARDED, "TensorProperties", PROPERTIES},
    {SHARDED, "MEM_FORMAT_ENCODING", VALUE_OF_NO_USE},
    {"torch", "Size", SIZE},
    {"torch.serialization", "_get_layout", LAYOUT},
    {"collections", "OrderedDict", ORDERED_DICT},
    {"pathlib", "PosixPath", VALUE_OF_NO_USE},
    {"pathlib", "PurePosixPath", VALUE_OF_NO_USE},
    {"pathlib", "WindowsPath", VALUE_OF_NO_USE},
    {"pathlib._local", "PosixPath", VALUE_OF_NO_USE},
    {"pathlib._local", "WindowsPath", VALUE_OF_NO_USE},
    {"torch", "", DTYPE}, /* any name of a type: the last row */
};

/* ---- what names in the pickle mean ----------------------------------------------------------- */

static bool equals(const char *row, const char *text, size_t bytes)
{
    return strlen(row) == bytes && memcmp(row, text, bytes) == 0;
}

static struct sl_pickle_node *global(struct sl_pickle *pickle, const char *module,
                                     size_t module_bytes, const char *name, size_t name_bytes,
                                     struct sl_err *err)
{
    unsigned number = 0;
    const unsigned last = SL_COUNT(rows) - 1;
    while (number < last && !(equals(rows[number].name, name, name_bytes) &&
                              equals(rows[number].module, module, module_bytes)))
        number++;
    enum sl_dtype dtype = SL_DTYPE_NONE;
    if (number == last && equals("torch", module, module_bytes) && name_bytes)
        dtype = sl_dtype_by_torch(name, name_bytes);
    if (number == last && dtype == SL_DTYPE_NONE) {
        sl_fail_code(err, SL_E_FORMAT, "pkl.global",
                     "%.*s.%.*s is not in the list of classes that a distributed checkpoint is "
                     "made of",
                     SL_NAME_ARGS(module, module_bytes), SL_NAME_ARGS(name, name_bytes));
        return NULL;
    }
    struct sl_pickle_node *node = sl_pickle_node(pickle, SL_PICKLE_GLOBAL, err);
    if (!node)
        return NULL;
    node->what = rows[number].meaning;
    node->number = dtype;
    return node;
}

static struct sl_pickle_node *bad_call(struct sl_err *err)
{
    sl_fail_code(err, SL_E_FORMAT, "pkl.call",
                 "something is called in a way that torch does not write");
    return NULL;
}

/* An object whose attributes are still to come: data. */
static struct sl_pickle_node *object(struct sl_pickle *pickle, unsigned meaning, struct sl_err *err)
{
    struct sl_pickle_node *node = sl_pickle_node(pickle, SL_PICKLE_OTHER, err);
    if (node)
        node->what = meaning;
    return node;
}

static struct sl_pickle_node *reduce(struct sl_pickle *pickle, struct sl_pickle_node *callee,
                                     struct sl_pickle_node *args, struct sl_err *err)
{
    struct sl_pickle_node *first = args->count ? args->items[0] : NULL;
    switch (callee->what) {
    case SIZE:
        return args->count == 1 && first->kind == SL_PICKLE_TUPLE ? first : bad_call(err);
    case LAYOUT:
        return args->count == 1 && first->kind == SL_PICKLE_TEXT ? first : bad_call(err);
    case ORDERED_DICT:
        return args->count == 0 ? sl_pickle_node(pickle, SL_PICKLE_DICT, err) : bad_call(err);
    case VALUE_OF_NO_USE:
        return object(pickle, VALUE_OF_NO_USE, err);
    default:
        return bad_call(err);
    }
}

static struct sl_pickle_node *make(struct sl_pickle *pickle, struct sl_pickle_node *class,
                                   struct sl_pickle_node *args, struct sl_err *err)
{
    return args->count == 0 && class->what <= OF_NO_USE ? object(pickle, class->what, err)
                                                        : bad_call(err);
}

static struct sl_pickle_node *persistent(struct sl_pickle *pickle, struct sl_pickle_node *id,
                                         struct sl_err *err)
{
    (void)pickle, (void)id;
    sl_fail_code(err, SL_E_FORMAT, "pkl.persid",
                 "there is a persistent id, which torch writes "
                 "into no .metadata");
    return NULL;
}

static int build(struct sl_pickle *pickle, struct sl_pickle_node *target,
                 struct sl_pickle_node *state, struct sl_err *err)
{
    (void)pickle;
    bool fine = target->kind == SL_PICKLE_OTHER && target->what <= OF_NO_USE && !target->data &&
                state->kind == (target->what == PROPERTIES ? SL_PICKLE_TUPLE : SL_PICKLE_DICT);
    if (!fine)
        return sl_fail_code(err, SL_E_FORMAT, "pkl.build",
                            "a state is set on something that has none to be set");
    target->data = state;
    return 0;
}

static const struct sl_pickle_rules rules = {
    .global = global, .reduce = reduce, .make = make, .persistent = persistent, .build = build};

/* ---- values ---------------------------------------------------------------------------------- */

static int fail(const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "dcp.metadata", "%s, as torch never writes", why);
}

static bool is_object(const struct sl_pickle_node *node, enum meaning meaning)
{
    return node && node->kind == SL_PICKLE_OTHER && node->what == meaning && node->data;
}

/* An attribute; NULL where there is none, or, with err filled, there are two. */
static const struct sl_pickle_node *attribute(const struct sl_pickle_node *node, const char *name,
                                              struct sl_err *err)
{
    const struct sl_pickle_node *state = node->data, *found = NULL;
    for (size_t i = 0; i + 1 < state->count; i += 2) {
        if (!sl_pickle_is_text(state->items[i], name))
            continue;
        if (found) {
            fail("an attribute is set twice", err);
            return NULL;
        }
        found = state->items[i + 1];
    }
    return found;
}

/* One of this kind. */
static const struct sl_pickle_node *need(const struct sl_pickle_node *node, const char *name,
                                         enum sl_pickle_kind kind, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    const struct sl_pickle_node *found = attribute(node, name, &why);
    if (found && found->kind == kind)
        return found;
    if (why.kind)
        *err = why;
    else
        sl_fail_code(err, SL_E_FORMAT, "dcp.metadata",
                     "an object has no '%s' of the type that torch writes", name);
    return NULL;
}

static bool is_number(const struct sl_pickle_node *node)
{
    return node->kind == SL_PICKLE_INT && !node->wide && node->number >= 0;
}

static int need_number(const struct sl_pickle_node *node, const char *name, uint64_t *value,
                       struct sl_err *err)
{
    const struct sl_pickle_node *found = need(node, name, SL_PICKLE_INT, err);
    if (!found)
        return -1;
    if (!is_number(found))
        return fail("an offset or a length is negative, or has more than 64 bits", err);
    *value = (uint64_t)found->number;
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Where a chunk is, by its key. */
struct stored {
    const struct sl_pickle_node *name, *offset, *place;
};

struct reading {
    struct sl_dcp *dcp;
    struct sl_pickle *pickle;
    struct stored *stored; /* sorted */
    size_t stored_count;
};

static int wrong_numbers(struct sl_err *err)
{
    return fail("a shape or an offset is not a tuple of at most 64 numbers from 0 on", err);
}

static bool are_numbers(const struct sl_pickle_node *node)
{
    bool fine = node->kind == SL_PICKLE_TUPLE && node->count <= RANK_MAX;
    for (size_t i = 0; fine && i < node->count; i++)
        fine = is_number(node->items[i]);
    return fine;
}

static const uint64_t *take_numbers(struct reading *reading, const struct sl_pickle_node *node,
                                    struct sl_err *err)
{
    size_t bytes = SL_MAX(node->count, (size_t)1) * sizeof(uint64_t);
    if (sl_pickle_charge(reading->pickle, bytes, err) < 0)
        return NULL;
    uint64_t *numbers = sl_index_alloc(reading->dcp->index, bytes, err);
    for (size_t i = 0; numbers && i < node->count; i++)
        numbers[i] = (uint64_t)node->items[i]->number;
    return numbers;
}

static char *take_text(struct reading *reading, const struct sl_pickle_node *node,
                       struct sl_err *err)
{
    if (sl_pickle_charge(reading->pickle, node->bytes + 1, err) < 0)
        return NULL;
    char *text = sl_index_alloc(reading->dcp->index, node->bytes + 1, err);
    if (text && node->bytes)
        memcpy(text, node->text, node->bytes);
    return text;
}

static int by_key(const void *a, const void *b)
{
    const struct stored *x = a, *y = b;
    int order = sl_bytes_compare(x->name->text, x->name->bytes, y->name->text, y->name->bytes);
    if (!order && x->offset->count != y->offset->count)
        order = x->offset->count < y->offset->count ? -1 : 1;
    for (size_t i = 0; !order && i < x->offset->count; i++) {
        int64_t one = x->offset->items[i]->number, two = y->offset->items[i]->number;
        order = (one > two) - (one < two);
    }
    return order;
}

/* Entries without an offset are of what is no tensor. */
static int add_stored(struct reading *reading, const struct sl_pickle_node *key,
                      const struct sl_pickle_node *place, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (!is_object(key, KEY) || !is_object(place, PLACE))
        return fail("storage_data has something else than places", err);
    const struct sl_pickle_node *name = need(key, "fqn", SL_PICKLE_TEXT, err);
    const struct sl_pickle_node *offset = name ? attribute(key, "offset", &why) : NULL;
    if (!name || why.kind) {
        if (why.kind)
            *err = why;
        return -1;
    }
    if (!offset || offset->kind == SL_PICKLE_NONE)
        return 0;
    if (!are_numbers(offset))
        return wrong_numbers(err);
    reading->stored[reading->stored_count++] = (struct stored){name, offset, place};
    return 0;
}

static int list_stored(struct reading *reading, const struct sl_pickle_node *dict,
                       struct sl_err *err)
{
    size_t count = dict->count / 2;
    if (sl_pickle_charge(reading->pickle, count * sizeof(*reading->stored), err) < 0 ||
        !(reading->stored = sl_alloc_array(count, sizeof(*reading->stored), err)))
        return -1;
    for (size_t i = 0; i < count; i++)
        if (add_stored(reading, dict->items[2 * i], dict->items[2 * i + 1], err) < 0)
            return -1;
    if (reading->stored_count > 1)
        qsort(reading->stored, reading->stored_count, sizeof(*reading->stored), by_key);
    for (size_t i = 1; i < reading->stored_count; i++)
        if (by_key(&reading->stored[i - 1], &reading->stored[i]) == 0)
            return sl_fail_code(
                err, SL_E_FORMAT, "dcp.metadata",
                "a chunk of tensor '%.*s' is stored in two places",
                SL_NAME_ARGS(reading->stored[i].name->text, reading->stored[i].name->bytes));
    return 0;
}

static int refuse_extension(const struct sl_pickle_node *list, struct sl_err *err)
{
    const struct sl_pickle_node *first = list->items[0];
    bool shown = first->kind == SL_PICKLE_TEXT;
    return sl_fail_code(err, SL_E_FORMAT, "dcp.extension",
                        "its chunks went through an extension of the writer%s%.*s: save it "
                        "without extensions",
                        shown ? ", " : "",
                        shown ? sl_names_shown(first->text, SL_MIN(first->bytes, SHOWN_MAX)) : 0,
                        shown ? first->text : "");
}

static int take_place(struct reading *reading, const struct sl_pickle_node *place,
                      struct sl_dcp_chunk *chunk, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    const struct sl_pickle_node *path = need(place, "relative_path", SL_PICKLE_TEXT, err);
    if (!path || need_number(place, "offset", &chunk->begin, err) < 0 ||
        need_number(place, "length", &chunk->bytes, err) < 0)
        return -1;
    const struct sl_pickle_node *through = attribute(place, "transform_descriptors", &why);
    if (why.kind) {
        *err = why;
        return -1;
    }
    if (through && (through->kind == SL_PICKLE_LIST || through->kind == SL_PICKLE_TUPLE) &&
        through->count)
        return refuse_extension(through, err);
    chunk->file = take_text(reading, path, err);
    if (!chunk->file)
        return -1;
    return sl_shard_name_fits(chunk->file, path->bytes)
               ? 0
               : sl_fail_code(err, SL_E_FORMAT, "dcp.path",
                              "it is stored in '%.*s', which is not a path below the checkpoint",
                              SL_NAME_ARGS(path->text, path->bytes));
}

static bool is_empty(const struct sl_pickle_node *sizes)
{
    for (size_t i = 0; i < sizes->count; i++)
        if (sizes->items[i]->number == 0)
            return true;
    return false;
}

/* Ranks that have nothing of a tensor write an empty chunk. */
static int add_chunk(struct reading *reading, const struct sl_pickle_node *name,
                     const struct sl_pickle_node *node, struct sl_err *err)
{
    struct sl_dcp *dcp = reading->dcp;
    const struct sl_tensor *tensor = &dcp->index->tensors[dcp->index->tensor_count - 1];
    if (!is_object(node, CHUNK))
        return fail("chunks has something else than chunks", err);
    const struct sl_pickle_node *at = need(node, "offsets", SL_PICKLE_TUPLE, err);
    const struct sl_pickle_node *sizes = at ? need(node, "sizes", SL_PICKLE_TUPLE, err) : NULL;
    if (!sizes)
        return -1;
    if (!are_numbers(at) || !are_numbers(sizes))
        return wrong_numbers(err);
    if (at->count != tensor->rank || sizes->count != tensor->rank)
        return fail("a chunk has more or fewer dimensions than its tensor", err);
    if (is_empty(sizes))
        return 0;
    const struct stored key = {name, at, NULL};
    const struct stored *found =
        reading->stored_count
            ? bsearch(&key, reading->stored, reading->stored_count, sizeof(key), by_key)
            : NULL;
    if (!found)
        return fail("a chunk is stored nowhere", err);
    if (sl_pickle_grow(reading->pickle, &dcp->chunks, &dcp->chunk_capacity, dcp->chunk_count + 1,
                       sizeof(*dcp->chunks), err) < 0)
        return -1;
    struct sl_dcp_chunk *chunk = &dcp->chunks[dcp->chunk_count++];
    *chunk = (struct sl_dcp_chunk){.tensor = (uint32_t)(dcp->index->tensor_count - 1)};
    chunk->at = take_numbers(reading, at, err);
    chunk->shape = chunk->at ? take_numbers(reading, sizes, err) : NULL;
    return chunk->shape ? take_place(reading, found->place, chunk, err) : -1;
}

/* (dtype, layout, …) */
static int take_dtype(struct sl_tensor *tensor, const struct sl_pickle_node *properties,
                      struct sl_err *err)
{
    const struct sl_pickle_node *state =
        is_object(properties, PROPERTIES) ? properties->data : NULL;
    if (!state || state->count < 2 || state->items[0]->kind != SL_PICKLE_GLOBAL ||
        state->items[0]->what != DTYPE || state->items[1]->kind != SL_PICKLE_TEXT)
        return fail("a tensor has no properties", err);
    tensor->dtype = (enum sl_dtype)state->items[0]->number;
    tensor->dtype_name = sl_dtype_row(tensor->dtype)->name;
    if (!sl_pickle_is_text(state->items[1], "torch.strided"))
        return sl_fail_code(err, SL_E_FORMAT, "dcp.unsupported", "it is of the layout '%.*s'",
                            SL_NAME_ARGS(state->items[1]->text, state->items[1]->bytes));
    return sl_dtype_row(tensor->dtype)->bits % 8 == 0
               ? 0
               : sl_fail_code(err, SL_E_FORMAT, "dcp.unsupported",
                              "an element of its type, %s, is less than a byte",
                              tensor->dtype_name);
}

static int count_bytes(struct sl_tensor *tensor, struct sl_err *err)
{
    uint64_t product = sl_dtype_row(tensor->dtype)->bits / 8;
    bool empty = false;
    for (unsigned i = 0; i < tensor->rank; i++) {
        empty = empty || tensor->shape[i] == 0;
        if (__builtin_mul_overflow(product, SL_MAX(tensor->shape[i], UINT64_C(1)), &product) ||
            product > SL_OBJECT_BYTES_MAX)
            return fail("its shape has more than 2^60 bytes", err);
    }
    tensor->bytes = empty ? 0 : product;
    return 0;
}

static int fill_tensor(struct reading *reading, const struct sl_pickle_node *name,
                       const struct sl_pickle_node *node, struct sl_err *err)
{
    struct sl_index *index = reading->dcp->index;
    struct sl_tensor *tensor = &index->tensors[index->tensor_count - 1];
    const struct sl_pickle_node *properties = need(node, "properties", SL_PICKLE_OTHER, err);
    const struct sl_pickle_node *size =
        properties ? need(node, "size", SL_PICKLE_TUPLE, err) : NULL;
    const struct sl_pickle_node *chunks = size ? need(node, "chunks", SL_PICKLE_LIST, err) : NULL;
    if (!chunks || take_dtype(tensor, properties, err) < 0)
        return -1;
    if (!are_numbers(size))
        return wrong_numbers(err);
    tensor->rank = (unsigned)size->count;
    tensor->shape = take_numbers(reading, size, err);
    if (!tensor->shape || count_bytes(tensor, err) < 0)
        return -1;
    for (size_t i = 0; i < chunks->count; i++)
        if (add_chunk(reading, name, chunks->items[i], err) < 0)
            return -1;
    return 0;
}

static int add_entry(struct reading *reading, const struct sl_pickle_node *name,
                     const struct sl_pickle_node *node, struct sl_err *err)
{
    struct sl_dcp *dcp = reading->dcp;
    if (name->kind != SL_PICKLE_TEXT || name->bytes > NAME_BYTES_MAX)
        return fail("a name is not a text, or longer than 64 KiB", err);
    char *text = take_text(reading, name, err);
    if (!text)
        return -1;
    bool empty = node->kind == SL_PICKLE_OTHER && node->what == NO_TENSOR; /* it has no attribute */
    if (empty) {
        dcp->other = dcp->other_count++ ? dcp->other : text;
        return 0;
    }
    if (!is_object(node, TENSOR))
        return fail("state_dict_metadata has something else than tensors and bytes", err);
    if (sl_pickle_charge(reading->pickle, 2 * sizeof(struct sl_tensor), err) < 0)
        return -1;
    struct sl_tensor *tensor = sl_index_add_tensor(dcp->index, err);
    if (!tensor || sl_index_plain_name(dcp->index, tensor, text, name->bytes, err) < 0)
        return -1;
    return fill_tensor(reading, name, node, err) < 0
               ? sl_wrap(err, "tensor '%.*s'", SL_NAME_ARGS(text, name->bytes))
               : 0;
}

static int read_root(struct reading *reading, const struct sl_pickle_node *root, struct sl_err *err)
{
    if (!is_object(root, METADATA))
        return fail("it holds something else than Metadata", err);
    const struct sl_pickle_node *entries = need(root, "state_dict_metadata", SL_PICKLE_DICT, err);
    const struct sl_pickle_node *places =
        entries ? need(root, "storage_data", SL_PICKLE_DICT, err) : NULL;
    if (!places || list_stored(reading, places, err) < 0)
        return -1;
    for (size_t i = 0; i + 1 < entries->count; i += 2)
        if (add_entry(reading, entries->items[i], entries->items[i + 1], err) < 0)
            return -1;
    struct sl_index *index = reading->dcp->index;
    sl_autofree uint32_t *sorted = sl_names_sort(index->tensors, index->tensor_count, err);
    if (!sorted)
        return -1;
    size_t twice = sl_names_duplicate(index->tensors, sorted, index->tensor_count);
    return twice == SIZE_MAX ? 0 : fail("two tensors have one name", err);
}

int sl_dcp_metadata(struct sl_dcp *dcp, const void *data, size_t bytes, struct sl_err *err)
{
    SL_AUTO(sl_pickle) pickle = sl_pickle_new(&rules, err);
    size_t used;
    struct sl_pickle_node *root = pickle ? sl_pickle_read(pickle, data, bytes, &used, err) : NULL;
    if (!root)
        return -1;
    if (used != bytes)
        return sl_fail_code(err, SL_E_FORMAT, "pkl.trailing",
                            "%zu bytes follow the pickle's end: store it again", bytes - used);
    struct reading reading = {.dcp = dcp, .pickle = pickle};
    int done = read_root(&reading, root, err);
    free(reading.stored);
    return done;
}
