/*
 * What a source holds: numbers, names, places. Tensors come in the order of the plan's targets,
 * data files after them; the order by name is made when the source is opened.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "names.h"
#include "open_parts.h"
#include "pool_index_write.h"

/* ---- tables ---------------------------------------------------------------------------------- */

const struct sl_target *sl_open_target(const struct sluice_source *source, uint64_t number)
{
    const struct sl_plan *plan = source->plan;
    return number < plan->target_count ? &plan->targets[number] : NULL;
}

uint32_t sl_open_object(const struct sluice_source *source, uint64_t number)
{
    const struct sl_target *target = sl_open_target(source, number);
    return target ? target->source : source->files[number - source->plan->target_count];
}

static const struct sl_plan_source *object_of(const struct sluice_source *source, uint64_t number)
{
    return &source->plan->sources[sl_open_object(source, number)];
}

static const char *name_of(const struct sluice_source *source, uint64_t number, size_t *bytes)
{
    const struct sl_target *target = sl_open_target(source, number);
    const char *name = target ? target->out.name : object_of(source, number)->name;
    *bytes = target ? target->out.name_bytes : strlen(name);
    return name;
}

static int compare_names(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int order = memcmp(a, b, SL_MIN(a_bytes, b_bytes));
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int by_name(const void *a, const void *b, void *arg)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    size_t x_bytes, y_bytes;
    const char *x_name = name_of(arg, x, &x_bytes), *y_name = name_of(arg, y, &y_bytes);
    int order = compare_names(x_name, x_bytes, y_name, y_bytes);
    return order ? order : (x > y) - (x < y);
}

static int sort_names(struct sluice_source *source, struct sl_err *err)
{
    if (source->count > UINT32_MAX)
        return sl_fail(err, SL_E_FORMAT, "too many tensors");
    source->by_name = sl_alloc_array(source->count + 1, sizeof(*source->by_name), err);
    if (!source->by_name)
        return -1;
    for (size_t i = 0; i < source->count; i++)
        source->by_name[i] = (uint32_t)i;
    qsort_r(source->by_name, source->count, sizeof(*source->by_name), by_name, source);
    return 0;
}

/* Objects that are whole local files: their bytes can be mapped. */
static int find_paths(struct sluice_source *source, struct sl_err *err)
{
    const struct sl_plan *plan = source->plan;
    source->paths = sl_alloc_array(plan->source_count + 1, sizeof(*source->paths), err);
    for (size_t i = 0; source->paths && i < plan->source_count; i++) {
        const struct sl_source *object = plan->sources[i].source;
        const char *path = sl_source_uri(object);
        struct stat status;
        if (!sl_store_traits(sl_source_store(object))->local || stat(path, &status) < 0 ||
            !S_ISREG(status.st_mode) || (uint64_t)status.st_size != sl_source_bytes(object))
            continue;
        if (!(source->paths[i] = sl_strdup(path, err)))
            return -1;
    }
    return source->paths ? 0 : -1;
}

int sl_open_tables(struct sluice_source *source, struct sl_err *err)
{
    const struct sl_plan *plan = source->plan;
    source->files = sl_alloc_array(plan->source_count + 1, sizeof(*source->files), err);
    source->sizes = sl_alloc_array(plan->source_count + 1, sizeof(*source->sizes), err);
    if (!source->files || !source->sizes)
        return -1;
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (source->as_files || !plan->sources[i].index) {
            source->sizes[source->file_count] = sl_source_bytes(plan->sources[i].source);
            source->files[source->file_count++] = i;
        }
    source->count = plan->target_count + source->file_count;
    return find_paths(source, err) < 0 ? -1 : sort_names(source, err);
}

int sl_open_check_number(const struct sluice_source *source, uint64_t number, struct sl_err *err)
{
    if (number < source->count)
        return 0;
    return sl_fail(err, SL_E_USAGE, "there is no tensor %" PRIu64 ", only %zu", number,
                   source->count);
}

const uint64_t *sl_open_shape(const struct sluice_source *source, uint64_t number, unsigned *rank)
{
    const struct sl_target *target = sl_open_target(source, number);
    *rank = target ? target->out.rank : 1;
    return target ? target->out.shape : &source->sizes[number - source->plan->target_count];
}

uint64_t sl_open_bytes(const struct sluice_source *source, uint64_t number)
{
    const struct sl_target *target = sl_open_target(source, number);
    return target ? target->out.bytes : sl_source_bytes(object_of(source, number)->source);
}

/* Stored as it is read. */
static bool is_verbatim(const struct sl_target *target)
{
    const struct sl_tensor *from = target->from;
    return !target->slice && !from->strides && !from->swap_bytes && !from->encrypted &&
           !from->meta && !from->refused && from->dtype == target->out.dtype &&
           from->end - from->begin == from->bytes;
}

/* Is there something that says what its bytes are, or must there be? Then they are read, and
 * checked. A hash of the tensor's own is the caller's to weigh: it is told. */
static bool is_checked(const struct sluice_source *source, uint32_t object)
{
    int hashes = source->specs.items->verify.hashes;
    if (hashes == SL_HASHES_OFF)
        return false;
    return hashes == SL_HASHES_REQUIRE || sl_plan_sidecar(source->plan, object);
}

const char *sl_open_place(const struct sluice_source *source, uint64_t number, uint64_t *offset)
{
    const struct sl_target *target = sl_open_target(source, number);
    bool verbatim = !target || is_verbatim(target);
    *offset = target && verbatim ? target->from->begin : 0;
    uint32_t object = sl_open_object(source, number);
    return verbatim && !is_checked(source, object) ? source->paths[object] : NULL;
}

/* ---- what is told ---------------------------------------------------------------------------- */

static void describe_target(const struct sl_target *target, struct sluice_tensor *tensor)
{
    const struct sl_tensor *out = &target->out, *from = target->from;
    const struct sl_dtype_row *row = sl_dtype_row(out->dtype);
    const struct sl_pool_dtype *known = sl_pool_dtype_find(out->dtype_name);
    tensor->name = out->name;
    tensor->name_bytes = out->name_bytes;
    tensor->dtype = out->dtype_name;
    tensor->kind = SLUICE_KIND_TENSOR;
    if (known) {
        tensor->dlpack_code = known->dlpack_code;
        tensor->dlpack_bits = known->dlpack_bits;
        tensor->dlpack_lanes = known->dlpack_lanes;
    }
    bool parts = row->block <= 1 && row->bits % 8; /* an element is less than a byte */
    tensor->block_elements = parts ? 0 : row->block;
    tensor->block_bytes = row->bits / 8;
    tensor->role = out->role;
    tensor->module = out->module_index;
    tensor->path_count = out->path_count;
    tensor->encrypted = from->encrypted;
    tensor->meta = from->meta;
    if (from->refused) {
        const struct sl_err why = {.kind = (enum sl_err_kind)from->refused};
        tensor->refused = sl_err_exit(&why);
        tensor->refused_why = from->refused_why ? from->refused_why : "it cannot be read";
    }
}

static void describe(const struct sluice_source *source, uint64_t number,
                     struct sluice_tensor *tensor)
{
    size_t bytes;
    const struct sl_target *target = sl_open_target(source, number);
    struct sluice_tensor own = {.number = number,
                                .dtype = "",
                                .kind = SLUICE_KIND_FILE,
                                .dlpack_code = 1,
                                .dlpack_bits = 8,
                                .dlpack_lanes = 1,
                                .block_elements = 1,
                                .block_bytes = 1,
                                .bytes = sl_open_bytes(source, number),
                                .device = -1,
                                .refused_why = ""};
    own.name = name_of(source, number, &bytes);
    own.name_bytes = bytes;
    own.shape = sl_open_shape(source, number, &own.rank);
    if (target) {
        own.dlpack_code = own.dlpack_bits = 0;
        own.dlpack_lanes = 0;
        describe_target(target, &own);
    }
    own.object = sl_open_object(source, number);
    own.file = sl_open_place(source, number, &own.offset);
    sl_api_give(tensor, tensor->size, &own, sizeof(own));
}

int sluice_source_tensor(const struct sluice_source *source, uint64_t number,
                         struct sluice_tensor *tensor, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    if (sl_open_check_size(tensor, &err) < 0 || sl_open_check_number(source, number, &err) < 0)
        return sl_open_fail(error, &err);
    describe(source, number, tensor);
    return 0;
}

int sluice_source_find(const struct sluice_source *source, const char *name, uint64_t name_bytes,
                       struct sluice_tensor *tensor, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    if (sl_open_check_size(tensor, &err) < 0)
        return sl_open_fail(error, &err);
    size_t low = 0, high = source->count, bytes = name_bytes ? name_bytes : strlen(name), own;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *there = name_of(source, source->by_name[middle], &own);
        if (compare_names(there, own, name, bytes) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const char *found = low < source->count ? name_of(source, source->by_name[low], &own) : NULL;
    if (found && compare_names(found, own, name, bytes) == 0) {
        describe(source, source->by_name[low], tensor);
        return 0;
    }
    sl_fail(&err, SL_E_NOT_FOUND, "the model has no tensor '%.*s'", SL_NAME_ARGS(name, bytes));
    return sl_open_fail(error, &err);
}

const struct sl_index *sl_open_index(const struct sluice_source *source)
{
    if (source->as_files)
        return NULL;
    for (size_t i = 0; i < source->plan->source_count; i++)
        if (source->plan->sources[i].index)
            return source->plan->sources[i].index;
    return NULL;
}

static void count_requests(const struct sluice_source *source, struct sluice_source_info *info)
{
    for (size_t i = 0; i < source->plan->source_count; i++) {
        uint64_t requests, bytes;
        sl_source_counts(source->plan->sources[i].source, &requests, &bytes);
        info->requests += requests;
    }
    info->bytes_fetched = sl_progress_counts(source->progress).fetched;
}

void sluice_source_info(const struct sluice_source *source, struct sluice_source_info *info)
{
    const struct sl_index *index = sl_open_index(source);
    struct sluice_source_info own = {
        .uri = source->uri,
        .format = index ? index->format : "",
        .tensor_count = source->count,
        .meta_count = index ? index->metadata_count : 0,
        .object_count = source->plan->source_count,
        .format_version = index ? index->format_version : 0,
        .versioned = source->plan->unversioned == 0,
        .value_count = index ? index->metadata_count + index->value_count : 0,
    };
    memcpy(own.identity, source->plan->identity, sizeof(own.identity));
    for (size_t i = 0; i < source->count; i++)
        own.bytes = sl_add_capped(own.bytes, sl_open_bytes(source, i));
    for (size_t i = 0; i < source->plan->target_count; i++)
        own.encrypted |= source->plan->targets[i].from->encrypted;
    if (sl_open_check_process(source, NULL) == 0) /* they are under locks */
        count_requests(source, &own);
    sl_api_give(info, info->size, &own, sizeof(own));
}

int sluice_source_meta(const struct sluice_source *source, uint64_t number,
                       struct sluice_meta *meta, struct sluice_error *error)
{
    const struct sl_index *index = sl_open_index(source);
    struct sl_err err = SL_ERR_INIT;
    if (!index || number >= index->metadata_count)
        sl_fail(&err, SL_E_USAGE, "there is no metadata %" PRIu64, number);
    if (err.kind || sl_open_check_size(meta, &err) < 0)
        return sl_open_fail(error, &err);
    const struct sl_meta_pair *pair = &index->metadata[number];
    const struct sluice_meta own = {.key = pair->key,
                                    .value = pair->value,
                                    .key_bytes = strlen(pair->key),
                                    .value_bytes = strlen(pair->value)};
    sl_api_give(meta, meta->size, &own, sizeof(own));
    return 0;
}

/* NULL with the error if the number is not a tensor's. */
static const struct sl_target *target_of(const struct sluice_source *source, uint64_t number,
                                         struct sl_err *err)
{
    if (sl_open_check_number(source, number, err) < 0)
        return NULL;
    const struct sl_target *target = sl_open_target(source, number);
    if (!target)
        sl_fail(err, SL_E_NOT_FOUND, "'%s' is a data file", object_of(source, number)->name);
    return target;
}

int sluice_source_hash(const struct sluice_source *source, uint64_t number, uint32_t which,
                       struct sluice_hash *hash, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_target *target = target_of(source, number, &err);
    if (target && which >= target->from->hash_count)
        sl_fail(&err, SL_E_NOT_FOUND, "tensor '%.*s' has %u hashes",
                SL_NAME_ARGS(target->out.name, target->out.name_bytes), target->from->hash_count);
    if (err.kind || sl_open_check_size(hash, &err) < 0)
        return sl_open_fail(error, &err);
    const struct sl_index_hash *found = &target->from->hashes[which];
    const struct sluice_hash own = {.kind = found->sha256 ? "sha256" : "crc32",
                                    .value = found->expected,
                                    .value_bytes = found->sha256 ? 32 : 4,
                                    .prefix = found->prefix,
                                    .prefix_bytes = found->prefix_bytes};
    sl_api_give(hash, hash->size, &own, sizeof(own));
    return 0;
}

int sluice_source_path(const struct sluice_source *source, uint64_t number, uint32_t which,
                       struct sluice_path_part *part, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_target *target = target_of(source, number, &err);
    if (target && which >= target->out.path_count)
        sl_fail(&err, SL_E_NOT_FOUND, "the name of tensor '%.*s' has %u parts",
                SL_NAME_ARGS(target->out.name, target->out.name_bytes), target->out.path_count);
    if (err.kind || sl_open_check_size(part, &err) < 0)
        return sl_open_fail(error, &err);
    const struct sl_path_part *found = &target->out.path[which];
    const struct sluice_path_part own = {
        .text = found->text, .text_bytes = found->text_bytes, .index = found->number};
    sl_api_give(part, part->size, &own, sizeof(own));
    return 0;
}
