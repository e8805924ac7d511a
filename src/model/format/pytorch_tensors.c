/*
 * From the values of a pickle to tensors of an index: containers are walked from the result, and
 * the keys on the way are the tensor's path. Its numbers are checked only here, where an error can
 * name it. A tensor that does not lie row by row keeps its strides; [begin, end) is then what it
 * spans. Kinds that cannot be read are listed and refused only when asked for.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "names.h"
#include "pytorch.h"

enum {
    NODES_MAX = 1000000, /* shared ones count each time: stops "billion laughs" */
    NODES_SPARE = 65536, /* so many more, and twice as many, as the pickle put into containers */
    RANK_MAX = 64,
    DEPTH_MAX = SL_PICKLE_DEPTH_MAX,
    NAME_BYTES_MAX = 65536,
    NUMBER_BYTES = 24, /* a 64-bit number, its sign and the 0 */
    PATH_SHOWN_MAX = 160,
};
static const uint64_t NAMES_BYTES_MAX = UINT64_C(256) << 20, /* of all names and paths */
    TENSOR_BYTES_MAX = UINT64_C(1) << 40,
                      REPEATED_BYTES_MAX = UINT64_C(1)
                                           << 30; /* of all tensors, beside 16 times the object's */
enum { REPEATED_TIMES_MAX = 16 };

struct walk {
    struct sl_pytorch *torch;
    struct sl_path_part path[DEPTH_MAX + 1];
    unsigned depth, bad_keys; /* bad: neither text nor integer */
    uint64_t nodes, nodes_max, name_bytes, tensor_bytes;
};

#define TENSOR_NAME(tensor) SL_NAME_ARGS((tensor)->name, (tensor)->name_bytes)

/* ---- one tensor ------------------------------------------------------------------------------ */

static int bad_tensor(const struct sl_tensor *tensor, const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "pt.tensor", "tensor '%.*s': %s", TENSOR_NAME(tensor),
                        why);
}

/* A tuple of numbers from 0 on into memory of the index. */
static int take_sizes(struct walk *walk, const struct sl_tensor *tensor,
                      const struct sl_pickle_node *from, const uint64_t **out, struct sl_err *err)
{
    uint64_t *sizes;
    if (*out)
        return 0;
    if (from->kind != SL_PICKLE_TUPLE && from->kind != SL_PICKLE_LIST)
        return bad_tensor(tensor, "its shape or strides are not a tuple", err);
    if (from->count > RANK_MAX)
        return bad_tensor(tensor, "it has more than 64 dimensions", err);
    size_t bytes = SL_MAX(from->count, (size_t)1) * sizeof(*sizes);
    if (sl_pickle_charge(walk->torch->pickle, bytes, err) < 0)
        return -1;
    sizes = sl_index_alloc(walk->torch->index, bytes, err);
    if (!sizes)
        return -1;
    for (size_t i = 0; i < from->count; i++) {
        const struct sl_pickle_node *item = from->items[i];
        if (item->kind != SL_PICKLE_INT || item->wide || item->number < 0)
            return bad_tensor(tensor, "a size or stride is not a whole number from 0 on", err);
        sizes[i] = (uint64_t)item->number;
    }
    *out = sizes;
    return 0;
}

/* Elements, and whether any dimension is empty; the product must fit even then. */
static int count_elements(const struct sl_tensor *tensor, uint64_t *elements, struct sl_err *err)
{
    uint64_t product = 1;
    bool empty = false;
    for (unsigned i = 0; i < tensor->rank; i++) {
        empty = empty || tensor->shape[i] == 0;
        if (__builtin_mul_overflow(product, SL_MAX(tensor->shape[i], (uint64_t)1), &product) ||
            product > INT64_MAX)
            return bad_tensor(tensor, "its shape has more than 2^63 elements", err);
    }
    *elements = empty ? 0 : product;
    return 0;
}

static bool is_contiguous(const struct sl_tensor *tensor, const uint64_t *strides)
{
    uint64_t expected = 1;
    for (unsigned i = tensor->rank; i-- > 0;) {
        if (tensor->shape[i] != 1 && strides[i] != expected)
            return false;
        expected *= tensor->shape[i];
    }
    return true;
}

/* Where its bytes lie in the storage. */
static int place(struct sl_tensor *tensor, const struct sl_pytorch_tensor *from,
                 const uint64_t *strides, uint64_t elements, struct sl_err *err)
{
    unsigned item = sl_dtype_row(tensor->dtype)->bits / 8;
    unsigned __int128 last = (uint64_t)from->offset->number;
    uint64_t have = sl_pytorch_storage_bytes(from->storage);
    if (elements == 0)
        return 0;
    for (unsigned i = 0; i < tensor->rank; i++)
        last += (unsigned __int128)(tensor->shape[i] - 1) * strides[i];
    if (elements > TENSOR_BYTES_MAX / item)
        return sl_fail_code(err, SL_E_FORMAT, "pt.limit", "tensor '%.*s' is larger than 1 TiB",
                            TENSOR_NAME(tensor));
    if (last >= have || (last + 1) * item > have)
        return sl_fail_code(err, SL_E_FORMAT, "pt.bounds",
                            "tensor '%.*s' reaches beyond its storage of %" PRIu64 " bytes",
                            TENSOR_NAME(tensor), have);
    tensor->bytes = elements * item;
    tensor->begin = from->storage->begin + (uint64_t)from->offset->number * item;
    tensor->end = from->storage->begin + ((uint64_t)last + 1) * item;
    bool whole = tensor->begin == from->storage->begin && tensor->end == tensor->begin + have;
    tensor->hashes = whole ? from->storage->hash : NULL;
    tensor->hash_count = tensor->hashes != NULL;
    if (!is_contiguous(tensor, strides))
        tensor->strides = strides;
    return 0;
}

/* Views may repeat a few bytes without end: whoever hashes or converts them would work for ever. */
static int count_bytes(struct walk *walk, const struct sl_tensor *tensor, struct sl_err *err)
{
    uint64_t have = walk->torch->object_bytes; /* 0 in tests of pickles */
    walk->tensor_bytes += tensor->bytes;       /* at most a million of at most 1 TiB */
    if (walk->tensor_bytes <= REPEATED_BYTES_MAX ||
        (walk->tensor_bytes - REPEATED_BYTES_MAX) / REPEATED_TIMES_MAX <= have)
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "pt.limit",
                        "up to tensor '%.*s' they are %" PRIu64 " bytes, made of a file of %" PRIu64
                        ", which repeats what it has: save contiguous() tensors, not expanded ones",
                        TENSOR_NAME(tensor), walk->tensor_bytes, have);
}

static int refuse_kind(struct sl_index *index, struct sl_tensor *tensor, const char *kind,
                       struct sl_err *err)
{
    static const char text[] = "a tensor of the kind '%s' cannot be read";
    size_t bytes = sizeof(text) + strlen(kind);
    char *why = sl_index_alloc(index, bytes, err);
    if (!why)
        return -1;
    snprintf(why, bytes, text, kind);
    tensor->refused = SL_E_FORMAT;
    tensor->refused_code = "pt.unsupported";
    tensor->refused_why = why;
    return 0;
}

static int fill_tensor(struct walk *walk, struct sl_tensor *tensor, struct sl_pytorch_tensor *from,
                       struct sl_err *err)
{
    struct sl_index *index = walk->torch->index;
    uint64_t elements = 0;
    if (take_sizes(walk, tensor, from->shape, &from->sizes, err) < 0 ||
        take_sizes(walk, tensor, from->strides, &from->steps, err) < 0)
        return -1;
    if (from->shape->count != from->strides->count)
        return bad_tensor(tensor, "it needs as many strides as dimensions", err);
    if (from->offset->kind != SL_PICKLE_INT || from->offset->wide || from->offset->number < 0)
        return bad_tensor(tensor, "its offset is not a whole number from 0 on", err);
    tensor->rank = (unsigned)from->shape->count;
    tensor->shape = from->sizes;
    if (count_elements(tensor, &elements, err) < 0)
        return -1;
    if (from->kind)
        return refuse_kind(index, tensor, from->kind, err);
    tensor->dtype = from->dtype;
    tensor->dtype_name = sl_dtype_row(from->dtype)->name;
    bool complex =
        from->dtype == SL_DTYPE_C64 || from->dtype == SL_DTYPE_C128 || from->dtype == SL_DTYPE_C32;
    if (walk->torch->big_endian)
        tensor->swap_bytes = sl_dtype_row(from->dtype)->bits / 8 / (complex ? 2 : 1);
    return place(tensor, from, from->steps, elements, err) < 0 ? -1
                                                               : count_bytes(walk, tensor, err);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The path joined with '.', into memory of the index. */
static int name_tensor(struct walk *walk, struct sl_tensor *tensor, struct sl_err *err)
{
    struct sl_index *index = walk->torch->index;
    size_t bytes = sizeof("tensor");
    for (unsigned i = 0; i < walk->depth; i++)
        bytes += walk->path[i].text_bytes + NUMBER_BYTES + 1;
    walk->name_bytes += bytes + walk->depth * sizeof(*walk->path);
    if (sl_pickle_charge(walk->torch->pickle,
                         bytes + walk->depth * sizeof(*walk->path) + 2 * sizeof(*tensor), err) < 0)
        return -1;
    if (bytes > NAME_BYTES_MAX || walk->name_bytes > NAMES_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "pkl.limit",
                            "a name of %zu bytes, limits %d, and 256 MiB for all", bytes,
                            NAME_BYTES_MAX);
    char *name = sl_index_alloc(index, bytes, err), *at = name;
    struct sl_path_part *path = sl_index_alloc(index, SL_MAX(walk->depth, 1u) * sizeof(*path), err);
    if (!name || !path)
        return -1;
    for (unsigned i = 0; i < walk->depth; i++) {
        const struct sl_path_part *part = &walk->path[i];
        path[i] = *part;
        if (i)
            *at++ = '.';
        if (part->text && part->text_bytes)
            memcpy(at, part->text, part->text_bytes);
        if (part->text)
            path[i].text = at; /* a negative key's digits live only during the walk */
        at += part->text ? part->text_bytes
                         : (size_t)snprintf(at, NUMBER_BYTES, "%" PRIu64, part->number);
    }
    if (walk->depth == 0) {
        memcpy(name, "tensor", sizeof("tensor") - 1);
        at += sizeof("tensor") - 1;
    }
    tensor->name = name;
    tensor->name_bytes = (size_t)(at - name);
    tensor->path = path;
    tensor->path_count = walk->depth;
    return 0;
}

static int add_tensor(struct walk *walk, const struct sl_pickle_node *node, struct sl_err *err)
{
    const char *kind = node->what == SL_PYTORCH_STORAGE ? "bare_storage" : node->text;
    if (node->what == SL_PYTORCH_KIND && !kind)
        return 0;
    struct sl_tensor *tensor = sl_index_add_tensor(walk->torch->index, err);
    if (!tensor)
        return -1;
    tensor->dtype_name = "";
    if (name_tensor(walk, tensor, err) < 0)
        return -1;
    if (walk->bad_keys)
        return sl_fail_code(err, SL_E_FORMAT, "pt.key",
                            "tensor '%.*s' lies below a key that is neither text nor integer",
                            TENSOR_NAME(tensor));
    if (node->what == SL_PYTORCH_TENSOR)
        return fill_tensor(walk, tensor, node->data, err);
    return refuse_kind(walk->torch->index, tensor, kind, err);
}

/* ---- the walk -------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    const struct sl_pickle_node *x = *(struct sl_pickle_node *const *)a;
    const struct sl_pickle_node *y = *(struct sl_pickle_node *const *)b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->kind == SL_PICKLE_TEXT)
        return sl_bytes_compare(x->text, x->bytes, y->text, y->bytes);
    return (x->number > y->number) - (x->number < y->number);
}

/* Python keeps the last value of a key, others the first: neither is right. */
static int check_keys(const struct sl_pickle_node *dict, struct sl_err *err)
{
    size_t count = 0;
    sl_autofree struct sl_pickle_node **keys = sl_alloc_array(dict->count / 2, sizeof(*keys), err);
    if (!keys)
        return -1;
    for (size_t i = 0; i < dict->count; i += 2) {
        struct sl_pickle_node *key = dict->items[i];
        if (key->kind == SL_PICKLE_TEXT || (key->kind == SL_PICKLE_INT && !key->wide))
            keys[count++] = key;
    }
    if (count > 1)
        qsort(keys, count, sizeof(*keys), by_key);
    for (size_t i = 1; i < count; i++) {
        if (by_key(&keys[i - 1], &keys[i]) != 0)
            continue;
        if (keys[i]->kind == SL_PICKLE_TEXT)
            return sl_fail_code(err, SL_E_FORMAT, "pt.duplicate-name", "key '%.*s' is set twice",
                                SL_NAME_ARGS(keys[i]->text, keys[i]->bytes));
        return sl_fail_code(err, SL_E_FORMAT, "pt.duplicate-name", "key %" PRId64 " is set twice",
                            keys[i]->number);
    }
    return 0;
}

/* A dict's key as a part of the path; false if it can be none. */
static bool take_key(const struct sl_pickle_node *key, struct sl_path_part *part,
                     char text[NUMBER_BYTES])
{
    *part = (struct sl_path_part){.text = "?", .text_bytes = 1};
    if (key->kind == SL_PICKLE_TEXT) {
        *part = (struct sl_path_part){.text = key->text, .text_bytes = key->bytes};
        return true;
    }
    if (key->kind != SL_PICKLE_INT || key->wide)
        return false;
    if (key->number >= 0) {
        *part = (struct sl_path_part){.number = (uint64_t)key->number};
        return true;
    }
    part->text_bytes = (size_t)snprintf(text, NUMBER_BYTES, "%" PRId64, key->number);
    part->text = text;
    return true;
}

/* What is wrong has no name of its own: where it is found. */
static int below_path(const struct walk *walk, struct sl_err *err)
{
    char text[PATH_SHOWN_MAX + 1];
    size_t used = 0;
    for (unsigned i = 0; i < walk->depth && used < PATH_SHOWN_MAX; i++) {
        const struct sl_path_part *part = &walk->path[i];
        int wrote = part->text ? snprintf(text + used, sizeof(text) - used, "%s%.*s", i ? "." : "",
                                          SL_NAME_ARGS(part->text, part->text_bytes))
                               : snprintf(text + used, sizeof(text) - used, "%s%" PRIu64,
                                          i ? "." : "", part->number);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    text[SL_MIN(used, (size_t)PATH_SHOWN_MAX)] = 0;
    return walk->depth ? sl_wrap(err, "at '%.*s'", sl_names_shown(text, strlen(text)), text) : -1;
}

static int visit(struct walk *walk, struct sl_pickle_node *node, struct sl_err *err);

static int visit_items(struct walk *walk, struct sl_pickle_node *node, struct sl_err *err)
{
    bool dict = node->kind == SL_PICKLE_DICT;
    if (dict && check_keys(node, err) < 0)
        return below_path(walk, err);
    for (size_t i = 0; i < node->count; i += dict ? 2 : 1) {
        char number[NUMBER_BYTES];
        struct sl_path_part *part = &walk->path[walk->depth];
        bool fine = true;
        if (dict)
            fine = take_key(node->items[i], part, number);
        else
            *part = (struct sl_path_part){.number = i};
        walk->depth++;
        walk->bad_keys += !fine;
        int result = visit(walk, node->items[dict ? i + 1 : i], err);
        walk->bad_keys -= !fine;
        walk->depth--;
        if (result < 0)
            return -1;
    }
    return 0;
}

static int visit(struct walk *walk, struct sl_pickle_node *node, struct sl_err *err)
{
    if (++walk->nodes > walk->nodes_max) {
        sl_fail_code(err, SL_E_FORMAT, "pkl.limit",
                     "more than %" PRIu64
                     " values in the result, since it repeats what it refers to: save a "
                     "state_dict()",
                     walk->nodes_max);
        return below_path(walk, err);
    }
    if (node->kind == SL_PICKLE_OTHER)
        return add_tensor(walk, node, err);
    if (node->kind != SL_PICKLE_DICT && node->kind != SL_PICKLE_LIST &&
        node->kind != SL_PICKLE_TUPLE)
        return 0;
    if (node->busy) {
        sl_fail_code(err, SL_E_FORMAT, "pkl.cycle", "a container holds itself");
        return below_path(walk, err);
    }
    if (walk->depth == DEPTH_MAX) {
        sl_fail_code(err, SL_E_FORMAT, "pkl.limit", "containers are nested too deep");
        return below_path(walk, err);
    }
    node->busy = true;
    int result = visit_items(walk, node, err);
    node->busy = false;
    return result;
}

static int check_names(struct sl_index *index, struct sl_err *err)
{
    sl_autofree uint32_t *sorted = sl_names_sort(index->tensors, index->tensor_count, err);
    if (!sorted)
        return -1;
    size_t twice = sl_names_duplicate(index->tensors, sorted, index->tensor_count);
    return twice == SIZE_MAX
               ? 0
               : sl_fail_code(err, SL_E_FORMAT, "pt.duplicate-name", "two tensors are named '%.*s'",
                              TENSOR_NAME(&index->tensors[twice]));
}

int sl_pytorch_tensors(struct sl_pytorch *torch, struct sl_pickle_node *root, struct sl_err *err)
{
    sl_autofree struct walk *walk = sl_alloc(sizeof(*walk), err);
    if (!walk)
        return -1;
    walk->torch = torch;
    walk->nodes_max = SL_MIN(2 * sl_pickle_items(torch->pickle) + NODES_SPARE, (uint64_t)NODES_MAX);
    if (visit(walk, root, err) < 0)
        return -1;
    return check_names(torch->index, err);
}
