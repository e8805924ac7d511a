/*
 * What the names in a checkpoint mean. The list of allowed globals is complete (formats, section
 * 4): a name that is not here is refused where it stands, used or not. A call of one of them makes
 * a value of ours (section 5), a persistent id a storage (section 6).
 */
#include <inttypes.h>
#include <string.h>

#include "names.h"
#include "pytorch.h"

enum { METADATA_ITEMS_MAX = 4 /* conj and neg: looked through by every call */ };

enum meaning {
    ORDERED_DICT,
    COUNTER,
    IGNORED, /* called: something that holds no tensor */
    NUMPY,   /* called: the same, and its state may be built */
    RECORD,  /* an object is made: attributes, in which no tensor is looked for */
    MAPPING, /* the same of a kind of dict */
    ENCODE,
    SIZE,
    REBUILD,
    REBUILD_V2,
    REBUILD_V3,
    PARAMETER,
    PARAMETER_STATE,
    FROM_TYPE,
    KIND, /* called: a tensor of a kind that cannot be read */
    TENSOR_TYPE,
    STORAGE,
    DTYPE,
    NAME_ONLY,
};

struct row {
    const char *module, *name;
    enum meaning meaning;
    const char *detail; /* KIND, NUMPY: the kind; STORAGE, DTYPE: torch's name of the type */
    unsigned item_bytes;
};

#define UTILS "torch._utils"
static const struct row rows[] = {
    {"collections", "OrderedDict", ORDERED_DICT, NULL, 0},
    {"collections", "Counter", COUNTER, NULL, 0},
    {"builtins", "set", IGNORED, NULL, 0},
    {"builtins", "frozenset", IGNORED, NULL, 0},
    {"builtins", "complex", IGNORED, NULL, 0},
    {"builtins", "bytearray", IGNORED, NULL, 0},
    {"_codecs", "encode", ENCODE, NULL, 0},
    {"torch", "Size", SIZE, NULL, 0},
    {"torch", "device", IGNORED, NULL, 0},
    {"torch.serialization", "_get_layout", IGNORED, NULL, 0},
    {UTILS, "_rebuild_tensor", REBUILD, NULL, 0},
    {UTILS, "_rebuild_tensor_v2", REBUILD_V2, NULL, 0},
    {UTILS, "_rebuild_tensor_v3", REBUILD_V3, NULL, 0},
    {UTILS, "_rebuild_parameter", PARAMETER, NULL, 0},
    {UTILS, "_rebuild_parameter_with_state", PARAMETER_STATE, NULL, 0},
    {UTILS, "_rebuild_qtensor", KIND, "quantized", 0},
    {UTILS, "_rebuild_sparse_tensor", KIND, "sparse_coo", 0},
    {UTILS, "_rebuild_sparse_csr_tensor", KIND, "sparse_csr", 0},
    {UTILS, "_rebuild_nested_tensor", KIND, "nested", 0},
    {UTILS, "_rebuild_meta_tensor_no_storage", KIND, "meta", 0},
    {UTILS, "_rebuild_wrapper_subclass", KIND, "wrapper_subclass", 0},
    {UTILS, "_rebuild_device_tensor_from_numpy", KIND, "device_copy", 0},
    {UTILS, "_rebuild_xla_tensor", KIND, "device_copy", 0},
    {UTILS, "_rebuild_device_tensor_from_cpu_tensor", KIND, "device_copy", 0},
    {"torch._tensor", "_rebuild_from_type_v2", FROM_TYPE, NULL, 0},
    {"torch", "Tensor", TENSOR_TYPE, NULL, 0},
    {"torch.nn.parameter", "Parameter", TENSOR_TYPE, NULL, 0},
    {"torch", "DoubleStorage", STORAGE, "float64", 8},
    {"torch", "FloatStorage", STORAGE, "float32", 4},
    {"torch", "HalfStorage", STORAGE, "float16", 2},
    {"torch", "BFloat16Storage", STORAGE, "bfloat16", 2},
    {"torch", "LongStorage", STORAGE, "int64", 8},
    {"torch", "IntStorage", STORAGE, "int32", 4},
    {"torch", "ShortStorage", STORAGE, "int16", 2},
    {"torch", "CharStorage", STORAGE, "int8", 1},
    {"torch", "ByteStorage", STORAGE, "uint8", 1},
    {"torch", "BoolStorage", STORAGE, "bool", 1},
    {"torch", "ComplexFloatStorage", STORAGE, "complex64", 8},
    {"torch", "ComplexDoubleStorage", STORAGE, "complex128", 16},
    {"torch", "QInt8Storage", STORAGE, "", 1},
    {"torch", "QUInt8Storage", STORAGE, "", 1},
    {"torch", "QInt32Storage", STORAGE, "", 4},
    {"torch", "QUInt4x2Storage", STORAGE, "", 1},
    {"torch", "QUInt2x4Storage", STORAGE, "", 1},
    {"torch", "UntypedStorage", STORAGE, "uint8", 1},
    {"torch.storage", "UntypedStorage", STORAGE, "uint8", 1},
    {"torch", "double", DTYPE, "float64", 0},
    {"torch", "float", DTYPE, "float32", 0},
    {"torch", "half", DTYPE, "float16", 0},
    {"torch", "long", DTYPE, "int64", 0},
    {"torch", "int", DTYPE, "int32", 0},
    {"torch", "short", DTYPE, "int16", 0},
    {"torch", "chalf", DTYPE, "complex32", 0},
    {"torch", "cfloat", DTYPE, "complex64", 0},
    {"torch", "cdouble", DTYPE, "complex128", 0},
    {"torch", "qint8", DTYPE, "", 0},
    {"torch", "quint8", DTYPE, "", 0},
    {"torch", "qint32", DTYPE, "", 0},
    {"torch", "quint4x2", DTYPE, "", 0},
    {"torch", "quint2x4", DTYPE, "", 0},
    {"torch", "per_tensor_affine", NAME_ONLY, NULL, 0},
    {"torch", "per_tensor_symmetric", NAME_ONLY, NULL, 0},
    {"torch", "per_channel_affine", NAME_ONLY, NULL, 0},
    {"torch", "per_channel_symmetric", NAME_ONLY, NULL, 0},
    {"torch", "per_channel_affine_float_qparams", NAME_ONLY, NULL, 0},
    /* Settings beside the weights: values that hold none, whatever their classes do elsewhere. */
    {"argparse", "Namespace", RECORD, NULL, 0},
    {"types", "SimpleNamespace", RECORD, NULL, 0},
    {"lightning_fabric.utilities.data", "AttributeDict", MAPPING, NULL, 0},
    {"lightning.fabric.utilities.data", "AttributeDict", MAPPING, NULL, 0},
    {"pytorch_lightning.utilities.parsing", "AttributeDict", MAPPING, NULL, 0},
    {"lightning.pytorch.utilities.parsing", "AttributeDict", MAPPING, NULL, 0},
    {"pathlib", "PosixPath", IGNORED, NULL, 0},
    {"pathlib", "PurePosixPath", IGNORED, NULL, 0},
    {"pathlib", "WindowsPath", IGNORED, NULL, 0},
    {"pathlib", "PureWindowsPath", IGNORED, NULL, 0},
    {"pathlib._local", "PosixPath", IGNORED, NULL, 0},
    {"pathlib._local", "WindowsPath", IGNORED, NULL, 0},
    {"datetime", "datetime", IGNORED, NULL, 0},
    {"datetime", "timedelta", IGNORED, NULL, 0},
    {"pytorch_lightning.utilities.enums", "AMPType", IGNORED, NULL, 0},
    {"pytorch_lightning.utilities.enums", "DeviceType", IGNORED, NULL, 0},
    {"pytorch_lightning.utilities.enums", "DistributedType", IGNORED, NULL, 0},
    {"pytorch_lightning.utilities.enums", "GradClipAlgorithmType", IGNORED, NULL, 0},
    {"pytorch_lightning.utilities.enums", "PrecisionType", IGNORED, NULL, 0},
    {"lightning.pytorch.utilities.enums", "GradClipAlgorithmType", IGNORED, NULL, 0},
    {"transformers.trainer_utils", "EvaluationStrategy", IGNORED, NULL, 0},
    {"transformers.trainer_utils", "FSDPOption", IGNORED, NULL, 0},
    {"transformers.trainer_utils", "HubStrategy", IGNORED, NULL, 0},
    {"transformers.trainer_utils", "IntervalStrategy", IGNORED, NULL, 0},
    {"transformers.trainer_utils", "SaveStrategy", IGNORED, NULL, 0},
    {"transformers.trainer_utils", "SchedulerType", IGNORED, NULL, 0},
    {"transformers.training_args", "OptimizerNames", IGNORED, NULL, 0},
    {"transformers.debug_utils", "DebugOption", IGNORED, NULL, 0},
    {"numpy", "dtype", NUMPY, NULL, 0},
    {"numpy", "ndarray", NAME_ONLY, NULL, 0},
    {"numpy.core.multiarray", "scalar", IGNORED, NULL, 0},
    {"numpy.core.multiarray", "_reconstruct", NUMPY, "numpy_array", 0},
    {"numpy._core.multiarray", "scalar", IGNORED, NULL, 0},
    {"numpy._core.multiarray", "_reconstruct", NUMPY, "numpy_array", 0},
    {"torch", "", DTYPE, NULL, 0}, /* any name of dtypes.def: the last row */
};

static bool equals(const char *row, const char *text, size_t bytes)
{
    return strlen(row) == bytes && memcmp(row, text, bytes) == 0;
}

const char *sl_pytorch_storage_class(enum sl_dtype dtype)
{
    const char *name = sl_dtype_row(dtype)->torch;
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (rows[i].meaning == STORAGE && strcmp(rows[i].detail, name) == 0)
            return rows[i].name;
    return NULL;
}

static bool same_module(const struct row *row, const char *module, size_t bytes)
{
    return equals(row->module, module, bytes) ||
           (strcmp(row->module, "builtins") == 0 && equals("__builtin__", module, bytes)) ||
           (strcmp(row->module, "torch._tensor") == 0 && equals("torch.tensor", module, bytes)) ||
           (row->meaning == STORAGE && equals("torch.cuda", module, bytes) &&
            strcmp(row->module, "torch") == 0);
}

static struct sl_pickle_node *global(struct sl_pickle *pickle, const char *module,
                                     size_t module_bytes, const char *name, size_t name_bytes,
                                     struct sl_err *err)
{
    unsigned number = 0;
    const unsigned last = SL_COUNT(rows) - 1;
    while (number < last && !(equals(rows[number].name, name, name_bytes) &&
                              same_module(&rows[number], module, module_bytes)))
        number++;
    enum sl_dtype dtype = number == last && equals("torch", module, module_bytes) && name_bytes
                              ? sl_dtype_by_torch(name, name_bytes)
                              : SL_DTYPE_NONE;
    if (number == last && dtype == SL_DTYPE_NONE) {
        sl_fail_code(err, SL_E_FORMAT, "pkl.global",
                     "%.*s.%.*s is not in the list of allowed globals (save model.state_dict() "
                     "instead of a module?)",
                     SL_NAME_ARGS(module, module_bytes), SL_NAME_ARGS(name, name_bytes));
        return NULL;
    }
    struct sl_pickle_node *node = sl_pickle_node(pickle, SL_PICKLE_GLOBAL, err);
    if (!node)
        return NULL;
    node->what = number;
    node->number = dtype;
    return node;
}

static const struct row *row_of(const struct sl_pickle_node *node)
{
    return node->kind == SL_PICKLE_GLOBAL ? &rows[node->what] : NULL;
}

static enum sl_dtype dtype_of(const struct sl_pickle_node *node)
{
    const char *name = rows[node->what].detail;
    return name ? sl_dtype_by_torch(name, strlen(name)) : (enum sl_dtype)node->number;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct sl_pickle_node *bad_call(const struct row *row, struct sl_err *err)
{
    sl_fail_code(err, SL_E_FORMAT, "pkl.call",
                 "%s.%s is called in a way that torch.save does not write", row->module, row->name);
    return NULL;
}

static struct sl_pickle_node *make_kind(struct sl_pickle *pickle, const char *kind, bool buildable,
                                        struct sl_err *err)
{
    struct sl_pickle_node *node = sl_pickle_node(pickle, SL_PICKLE_OTHER, err);
    if (!node)
        return NULL;
    node->what = SL_PYTORCH_KIND;
    node->text = kind;
    node->number = buildable;
    return node;
}

static bool is_other(const struct sl_pickle_node *node, enum sl_pytorch_what what)
{
    return node->kind == SL_PICKLE_OTHER && node->what == what;
}

/* OrderedDict(), OrderedDict([[key, value], …]). */
static struct sl_pickle_node *make_dict(struct sl_pickle *pickle, const struct row *row,
                                        const struct sl_pickle_node *args, struct sl_err *err)
{
    if (args->count > 1 || (args->count == 1 && args->items[0]->kind != SL_PICKLE_LIST))
        return bad_call(row, err);
    struct sl_pickle_node *dict = sl_pickle_node(pickle, SL_PICKLE_DICT, err);
    if (!dict)
        return NULL;
    dict->what = 1; /* its state may be built */
    const struct sl_pickle_node *list = args->count ? args->items[0] : NULL;
    if (!list)
        return dict;
    for (size_t i = 0; i < list->count; i++) {
        const struct sl_pickle_node *pair = list->items[i];
        bool fine = (pair->kind == SL_PICKLE_LIST || pair->kind == SL_PICKLE_TUPLE) &&
                    pair->count == 2 && pair->items[0]->kind < SL_PICKLE_LIST;
        if (!fine)
            return bad_call(row, err);
        if (sl_pickle_add(pickle, dict, pair->items[0], err) < 0 ||
            sl_pickle_add(pickle, dict, pair->items[1], err) < 0)
            return NULL;
    }
    return dict;
}

/* Are the bytes not the values? NULL if they are; "" if the metadata are malformed. */
static const char *metadata_kind(const struct sl_pickle_node *metadata)
{
    const char *kind = NULL;
    if (metadata->kind == SL_PICKLE_NONE)
        return NULL;
    if (metadata->kind != SL_PICKLE_DICT || metadata->count > METADATA_ITEMS_MAX)
        return "";
    for (size_t i = 0; i < metadata->count; i += 2) {
        const struct sl_pickle_node *key = metadata->items[i], *value = metadata->items[i + 1];
        bool conj = sl_pickle_is_text(key, "conj"), neg = sl_pickle_is_text(key, "neg");
        if ((!conj && !neg) || value->kind != SL_PICKLE_BOOL)
            return "";
        if (value->number)
            kind = conj ? "conj" : "neg";
    }
    return kind;
}

static struct sl_pickle_node *make_tensor(struct sl_pickle *pickle, const struct row *row,
                                          const struct sl_pickle_node *args, struct sl_err *err)
{
    size_t least = row->meaning == REBUILD ? 4 : row->meaning == REBUILD_V2 ? 6 : 7;
    size_t most = least + (row->meaning != REBUILD);
    if (args->count < least || args->count > most || !is_other(args->items[0], SL_PYTORCH_STORAGE))
        return bad_call(row, err);
    const char *kind = args->count > least ? metadata_kind(args->items[least]) : NULL;
    const struct row *dtype = row->meaning == REBUILD_V3 ? row_of(args->items[6]) : NULL;
    if ((kind && !*kind) || (row->meaning == REBUILD_V3 && (!dtype || dtype->meaning != DTYPE)))
        return bad_call(row, err);
    struct sl_pytorch_tensor *tensor = sl_pickle_alloc(pickle, sizeof(*tensor), err);
    struct sl_pickle_node *node = sl_pickle_node(pickle, SL_PICKLE_OTHER, err);
    if (!tensor || !node)
        return NULL;
    struct sl_pytorch_storage *storage = args->items[0]->data;
    *tensor = (struct sl_pytorch_tensor){.storage = storage,
                                         .dtype = dtype ? dtype_of(args->items[6]) : storage->dtype,
                                         .kind = kind,
                                         .offset = args->items[1],
                                         .shape = args->items[2],
                                         .strides = args->items[3]};
    if (!kind && tensor->dtype == SL_DTYPE_NONE)
        tensor->kind = "quantized";
    else if (!kind && tensor->dtype >= SL_DTYPE_UINT1 && tensor->dtype <= SL_DTYPE_INT7)
        tensor->kind = "subbyte";
    node->what = SL_PYTORCH_TENSOR;
    node->data = tensor;
    return node;
}

static struct sl_pickle_node *call(struct sl_pickle *pickle, struct sl_pickle_node *callee,
                                   struct sl_pickle_node *args, bool nested, struct sl_err *err);

/* _rebuild_from_type_v2(function, type, args, state) */
static struct sl_pickle_node *from_type(struct sl_pickle *pickle, const struct row *row,
                                        struct sl_pickle_node *args, bool nested,
                                        struct sl_err *err)
{
    if (nested || args->count != 4)
        return bad_call(row, err);
    const struct row *function = row_of(args->items[0]), *type = row_of(args->items[1]);
    if (!function || !type || strcmp(function->module, UTILS) != 0 ||
        type->meaning != TENSOR_TYPE || args->items[2]->kind != SL_PICKLE_TUPLE)
        return bad_call(row, err);
    return call(pickle, args->items[0], args->items[2], true, err);
}

/* A call that returns one of its arguments. */
static struct sl_pickle_node *pass(const struct row *row, struct sl_pickle_node *args,
                                   struct sl_err *err)
{
    struct sl_pickle_node *first = args->count ? args->items[0] : NULL;
    bool fine = first != NULL;
    if (row->meaning == SIZE)
        fine = fine && args->count == 1 && first->kind == SL_PICKLE_TUPLE;
    else if (row->meaning == COUNTER)
        fine = fine && args->count == 1 && first->kind == SL_PICKLE_DICT;
    else
        fine = fine && args->count == (row->meaning == PARAMETER ? 3 : 4) &&
               (is_other(first, SL_PYTORCH_TENSOR) || is_other(first, SL_PYTORCH_KIND));
    return fine ? first : bad_call(row, err);
}

static struct sl_pickle_node *call(struct sl_pickle *pickle, struct sl_pickle_node *callee,
                                   struct sl_pickle_node *args, bool nested, struct sl_err *err)
{
    const struct row *row = row_of(callee);
    switch (row->meaning) {
    case ORDERED_DICT:
        return make_dict(pickle, row, args, err);
    case IGNORED:
        return make_kind(pickle, NULL, false, err);
    case NUMPY:
        return make_kind(pickle, row->detail, true, err);
    case ENCODE:
        if (args->count != 2 || args->items[0]->kind != SL_PICKLE_TEXT ||
            !sl_pickle_is_text(args->items[1], "latin1"))
            return bad_call(row, err);
        return make_kind(pickle, NULL, false, err); /* bytes: no key, no tensor */
    case COUNTER:
        if (args->count == 0)
            return make_dict(pickle, row, args, err);
        return pass(row, args, err);
    case SIZE:
    case PARAMETER:
    case PARAMETER_STATE:
        return pass(row, args, err);
    case REBUILD:
    case REBUILD_V2:
    case REBUILD_V3:
        return make_tensor(pickle, row, args, err);
    case FROM_TYPE:
        return from_type(pickle, row, args, nested, err);
    case KIND:
        return make_kind(pickle, row->detail, false, err);
    default:
        return bad_call(row, err);
    }
}

/* Classes whose objects are made without arguments, and get attributes or items then. */
static struct sl_pickle_node *make(struct sl_pickle *pickle, struct sl_pickle_node *class,
                                   struct sl_pickle_node *args, struct sl_err *err)
{
    const struct row *row = row_of(class);
    if (args->count || (row->meaning != RECORD && row->meaning != MAPPING)) {
        sl_fail_code(err, SL_E_FORMAT, "pkl.call",
                     "an object of %s.%s is made (save a state_dict instead?)", row->module,
                     row->name);
        return NULL;
    }
    if (row->meaning == RECORD)
        return make_kind(pickle, NULL, true, err);
    struct sl_pickle_node *dict = sl_pickle_node(pickle, SL_PICKLE_DICT, err);
    if (dict)
        dict->what = 1; /* its state may be built */
    return dict;
}

static struct sl_pickle_node *reduce(struct sl_pickle *pickle, struct sl_pickle_node *callee,
                                     struct sl_pickle_node *args, struct sl_err *err)
{
    return call(pickle, callee, args, false, err);
}

static int build(struct sl_pickle *pickle, struct sl_pickle_node *target,
                 struct sl_pickle_node *state, struct sl_err *err)
{
    (void)pickle;
    bool fine = (target->kind == SL_PICKLE_DICT && target->what && state->kind == SL_PICKLE_DICT) ||
                (is_other(target, SL_PYTORCH_KIND) && target->number);
    return fine ? 0
                : sl_fail_code(err, SL_E_FORMAT, "pkl.build",
                               "a state is set on something that has none to be set");
}

/* ---- storages -------------------------------------------------------------------------------- */

static struct sl_pickle_node *bad_id(const char *why, const struct sl_pickle_node *text,
                                     struct sl_err *err)
{
    bool shown = text && (text->kind == SL_PICKLE_TEXT || text->kind == SL_PICKLE_BYTES);
    sl_fail_code(err, SL_E_FORMAT, "pkl.persid", "a persistent id %s%s%.*s%s", why,
                 shown ? ": '" : "", shown ? sl_names_shown(text->text, text->bytes) : 0,
                 shown ? text->text : "", shown ? "'" : "");
    return NULL;
}

static bool is_digits(const struct sl_pickle_node *key)
{
    if (key->kind != SL_PICKLE_TEXT || key->bytes == 0 || key->bytes > SL_PYTORCH_KEY_BYTES_MAX)
        return false;
    for (size_t i = 0; i < key->bytes; i++)
        if (key->text[i] < '0' || key->text[i] > '9')
            return false;
    return true;
}

/* ('storage', class, key, location, count [, view]) */
static struct sl_pickle_node *persistent(struct sl_pickle *pickle, struct sl_pickle_node *id,
                                         struct sl_err *err)
{
    struct sl_pytorch *torch = sl_pickle_arg(pickle);
    if (id->kind != SL_PICKLE_TUPLE || id->count == 0)
        return bad_id("is not a tuple", NULL, err);
    if (!sl_pickle_is_text(id->items[0], "storage"))
        return bad_id("is of no storage (save model.state_dict())", id->items[0], err);
    if (id->count != (torch->legacy ? 6 : 5))
        return bad_id("has too few or too many items", NULL, err);
    const struct row *class = row_of(id->items[1]);
    if (!class || class->meaning != STORAGE)
        return bad_id("names no storage class", id->items[1], err);
    if (!is_digits(id->items[2]))
        return bad_id("has a key that is not a number", id->items[2], err);
    const struct sl_pickle_node *count = id->items[4];
    if (id->items[3]->kind != SL_PICKLE_TEXT || count->kind != SL_PICKLE_INT || count->wide ||
        count->number < 0 || count->number >= INT64_C(1) << 59 ||
        (torch->legacy && id->items[5]->kind != SL_PICKLE_NONE))
        return bad_id("has a location, size or view that cannot be", NULL, err);

    struct sl_pytorch_storage *storage = sl_pickle_alloc(pickle, sizeof(*storage), err);
    struct sl_pickle_node *node = sl_pickle_node(pickle, SL_PICKLE_OTHER, err);
    if (!storage || !node ||
        sl_pickle_grow(pickle, &torch->storages, &torch->storage_capacity, torch->storage_count + 1,
                       sizeof(struct sl_pytorch_storage *), err) < 0)
        return NULL;
    memcpy(storage->key, id->items[2]->text, id->items[2]->bytes);
    storage->class_name = class->name;
    storage->dtype = dtype_of(id->items[1]);
    storage->item_bytes = class->item_bytes;
    storage->count = (uint64_t)count->number;
    torch->storages[torch->storage_count++] = storage;
    node->what = SL_PYTORCH_STORAGE;
    node->data = storage;
    return node;
}

const struct sl_pickle_rules sl_pytorch_rules = {
    .global = global, .reduce = reduce, .make = make, .persistent = persistent, .build = build};

uint64_t sl_pytorch_storage_bytes(const struct sl_pytorch_storage *storage)
{
    return storage->count * storage->item_bytes; /* below 2^63 by persistent() */
}

static int by_key(const void *a, const void *b)
{
    const struct sl_pytorch_storage *x = *(struct sl_pytorch_storage *const *)a;
    const struct sl_pytorch_storage *y = *(struct sl_pytorch_storage *const *)b;
    return strcmp(x->key, y->key);
}

int sl_pytorch_storages(struct sl_pytorch *torch, struct sl_err *err)
{
    if (torch->storage_count > 1)
        qsort(torch->storages, torch->storage_count, sizeof(struct sl_pytorch_storage *), by_key);
    for (size_t i = 1; i < torch->storage_count; i++) {
        const struct sl_pytorch_storage *x = torch->storages[i - 1], *y = torch->storages[i];
        if (strcmp(x->key, y->key) == 0 &&
            (x->count != y->count || strcmp(x->class_name, y->class_name) != 0))
            return sl_fail_code(err, SL_E_FORMAT, "pt.storage-type",
                                "storage '%s' is a %s of %" PRIu64 " and a %s of %" PRIu64, x->key,
                                x->class_name, x->count, y->class_name, y->count);
    }
    return 0;
}

void sl_pytorch_release(struct sl_pytorch *torch)
{
    sl_pickle_free(torch->pickle);
    free(torch->storages);
    torch->pickle = NULL;
    torch->storages = NULL;
}
