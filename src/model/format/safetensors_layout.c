/*
 * A new safetensors file: order, header, places. Sorted by dtype descending in the format's order,
 * then by name, every tensor is aligned to its own size as long as the data begin at a multiple of
 * 8; here they begin at a multiple of 64. Shards are filled in that order, so that equal tensors
 * always give equal files.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "json.h"
#include "layout.h"
#include "names.h"

enum {
    HEADER_ALIGN_BYTES = 64,
    BARE_ALIGN_BYTES = 8,
    LENGTH_BYTES = 8,
    RANK_MAX = 64,
    SHARDS_MAX = 99999
};

void sl_layout_free(struct sl_layout *layout)
{
    if (!layout)
        return;
    for (size_t i = 0; i < layout->file_count; i++) {
        free(layout->files[i].name);
        sl_buf_release(&layout->files[i].head);
    }
    free(layout->files);
    free(layout->places);
    sl_arena_free(layout->arena);
    free(layout);
}

static int by_type_and_name(const void *a, const void *b)
{
    const struct sl_tensor *x = ((const struct sl_layout_place *)a)->tensor;
    const struct sl_tensor *y = ((const struct sl_layout_place *)b)->tensor;
    int order = sl_dtype_row(y->dtype)->safetensors - sl_dtype_row(x->dtype)->safetensors;
    return order ? order : sl_bytes_compare(x->name, x->name_bytes, y->name, y->name_bytes);
}

static int by_name(const void *a, const void *b)
{
    const struct sl_tensor *x = *(const struct sl_tensor *const *)a,
                           *y = *(const struct sl_tensor *const *)b;
    return sl_bytes_compare(x->name, x->name_bytes, y->name, y->name_bytes);
}

/* ---- what can be written --------------------------------------------------------------------- */

static int check_tensor(const struct sl_tensor *tensor, struct sl_err *err)
{
    static const char metadata_name[] = "__metadata__";
    const char *why = NULL, *code = "st.json";
    if (tensor->refused)
        return sl_fail_code(err, (enum sl_err_kind)tensor->refused, tensor->refused_code,
                            "tensor '%.*s': %s", SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                            tensor->refused_why);
    if (!sl_dtype_row(tensor->dtype)->safetensors) {
        why = "safetensors has no such dtype: leave it out with tensors.exclude";
        code = "st.dtype";
    } else if (tensor->rank > RANK_MAX) {
        why = "more than 64 dimensions";
        code = "st.tensor-info";
    } else if (tensor->name_bytes == sizeof(metadata_name) - 1 &&
               memcmp(tensor->name, metadata_name, tensor->name_bytes) == 0) {
        why = "a name that safetensors keeps for itself";
        code = "st.metadata";
    } else if (!sl_is_utf8(tensor->name, tensor->name_bytes)) {
        why = "a name that is not UTF-8";
        code = "st.utf8";
    }
    return why ? sl_fail_code(err, SL_E_FORMAT, code,
                              "cannot write tensor '%.*s' of dtype %s as safetensors: %s",
                              SL_NAME_ARGS(tensor->name, tensor->name_bytes), tensor->dtype_name,
                              why)
               : 0;
}

static int check_tensors(const struct sl_tensor *const *tensors, size_t count, struct sl_err *err)
{
    for (size_t i = 0; i < count; i++)
        if (check_tensor(tensors[i], err) < 0)
            return -1;
    sl_autofree const struct sl_tensor **sorted = sl_alloc_array(count, sizeof(*sorted), err);
    if (!sorted)
        return -1;
    if (count)
        memcpy(sorted, tensors, count * sizeof(*sorted));
    if (count > 1)
        qsort(sorted, count, sizeof(*sorted), by_name);
    for (size_t i = 1; i < count; i++)
        if (by_name(&sorted[i - 1], &sorted[i]) == 0)
            return sl_fail_code(
                err, SL_E_FORMAT, "st.duplicate-key",
                "cannot write two tensors of the name '%.*s' into one safetensors model",
                SL_NAME_ARGS(sorted[i]->name, sorted[i]->name_bytes));
    return 0;
}

/* ---- one file -------------------------------------------------------------------------------- */

static void write_metadata(struct sl_json *json, const struct sl_meta_pair *metadata, size_t count,
                           bool bare)
{
    if (bare && count == 0)
        return;
    sl_json_key(json, "__metadata__");
    sl_json_object(json);
    for (size_t i = 0; i < count; i++)
        sl_json_key_string(json, metadata[i].key, metadata[i].value);
    if (count == 0)
        sl_json_key_string(json, "format", "pt");
    sl_json_end(json);
}

/* sl_json_key() takes C strings; names may hold NUL. */
static void write_name(struct sl_json *json, const struct sl_tensor *tensor)
{
    sl_json_key_n(json, tensor->name, tensor->name_bytes);
}

static void write_entry(struct sl_json *json, const struct sl_tensor *tensor, uint64_t begin)
{
    write_name(json, tensor);
    sl_json_object(json);
    sl_json_key_string(json, "dtype", sl_dtype_row(tensor->dtype)->name);
    sl_json_key(json, "shape");
    sl_json_array(json);
    for (unsigned i = 0; i < tensor->rank; i++)
        sl_json_uint(json, tensor->shape[i]);
    sl_json_end(json);
    sl_json_key(json, "data_offsets");
    sl_json_array(json);
    sl_json_uint(json, begin);
    sl_json_uint(json, begin + tensor->bytes);
    sl_json_end(json);
    sl_json_end(json);
}

/* Length, JSON, blanks up to the alignment. */
static int finish_head(struct sl_buf *head, struct sl_json *json, bool bare, struct sl_err *err)
{
    static const char blanks[HEADER_ALIGN_BYTES] =
        "                                                                ";
    const char *text = sl_json_text(json, err);
    if (!text)
        return sl_wrap(err, "cannot write the safetensors header");
    size_t text_bytes = strlen(text);
    size_t align = bare ? BARE_ALIGN_BYTES : HEADER_ALIGN_BYTES;
    size_t padding = (align - (LENGTH_BYTES + text_bytes) % align) % align;
    uint8_t length[LENGTH_BYTES];
    sl_put_le64(length, text_bytes + padding);
    *head = (struct sl_buf)SL_BUF_INIT(LENGTH_BYTES + text_bytes + padding);
    if (sl_buf_append(head, length, sizeof(length), err) < 0 ||
        sl_buf_append(head, text, text_bytes, err) < 0)
        return -1;
    return padding ? sl_buf_append(head, blanks, padding, err) : 0;
}

/* The JSON of tensors that follow each other, and the metadata. */
static void write_head(struct sl_json *json, const struct sl_tensor *const *tensors, size_t count,
                       const struct sl_meta_pair *metadata, size_t metadata_count, bool bare)
{
    uint64_t end = 0;
    sl_json_init(json, SL_SAFETENSORS_JSON_BYTES_MAX - HEADER_ALIGN_BYTES);
    sl_json_object(json);
    write_metadata(json, metadata, metadata_count, bare);
    for (size_t i = 0; i < count; i++) {
        write_entry(json, tensors[i], end);
        end += tensors[i]->bytes;
    }
    sl_json_end(json);
}

int sl_safetensors_head(const struct sl_tensor *const *tensors, size_t count,
                        const struct sl_meta_pair *metadata, size_t metadata_count,
                        struct sl_buf *head, struct sl_err *err)
{
    struct sl_json json;
    if (check_tensors(tensors, count, err) < 0)
        return -1;
    write_head(&json, tensors, count, metadata, metadata_count, true);
    int result = finish_head(head, &json, true, err);
    sl_json_release(&json);
    return result;
}

/* Header and places of the tensors places[0 .. count) in file number `number`. */
static int lay_file(struct sl_layout *layout, uint32_t number, struct sl_layout_place *places,
                    size_t count, const struct sl_meta_pair *metadata, size_t metadata_count,
                    bool bare, struct sl_err *err)
{
    struct sl_layout_file *file = &layout->files[number];
    struct sl_json json;
    sl_autofree const struct sl_tensor **tensors = sl_alloc_array(count + 1, sizeof(*tensors), err);
    if (!tensors)
        return -1;
    for (size_t i = 0; i < count; i++)
        tensors[i] = places[i].tensor;
    write_head(&json, tensors, count, metadata, metadata_count, bare);
    int result = finish_head(&file->head, &json, bare, err);
    sl_json_release(&json);
    if (result < 0)
        return -1;
    file->bytes = file->head.used;
    for (size_t i = 0; i < count; i++) {
        places[i].file = number;
        places[i].offset = file->bytes;
        places[i].bytes = places[i].tensor->bytes;
        file->bytes += places[i].bytes;
    }
    return 0;
}

/* ---- shards ---------------------------------------------------------------------------------- */

/* How many of places[0 .. count) go into one shard: at least one. */
static size_t shard_length(const struct sl_layout_place *places, size_t count, uint64_t shard_bytes)
{
    uint64_t total = 0;
    size_t length = 0;
    while (length < count && (length == 0 || places[length].tensor->bytes <=
                                                 shard_bytes - SL_MIN(total, shard_bytes)))
        total += places[length++].tensor->bytes;
    return length;
}

static size_t count_shards(const struct sl_layout *layout, uint64_t shard_bytes)
{
    size_t shards = 0;
    for (size_t done = 0; done < layout->place_count; shards++)
        done += shard_length(layout->places + done, layout->place_count - done, shard_bytes);
    return shards;
}

/* STEM.safetensors.index.json, all of it as the head of its file. */
static int lay_index(struct sl_layout *layout, uint32_t number, const char *stem,
                     struct sl_err *err)
{
    struct sl_layout_file *file = &layout->files[number];
    struct sl_json json;
    uint64_t total = 0;
    sl_json_init(&json, SL_SAFETENSORS_JSON_BYTES_MAX);
    sl_json_object(&json);
    for (size_t i = 0; i < layout->place_count; i++)
        total += layout->places[i].tensor->bytes;
    sl_json_key(&json, "metadata");
    sl_json_object(&json);
    sl_json_key_uint(&json, "total_size", total);
    sl_json_end(&json);
    sl_json_key(&json, "weight_map");
    sl_json_object(&json);
    for (size_t i = 0; i < layout->place_count; i++) {
        write_name(&json, layout->places[i].tensor);
        sl_json_string(&json, layout->files[layout->places[i].file].name);
    }
    sl_json_end(&json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, err);
    size_t bytes = text ? strlen(text) : 0;
    file->head = (struct sl_buf)SL_BUF_INIT(bytes + 1);
    file->name = text ? sl_asprintf(err, "%s.safetensors.index.json", stem) : NULL;
    int result = file->name ? sl_buf_append(&file->head, text, bytes, err) : -1;
    file->bytes = file->head.used;
    sl_json_release(&json);
    return result;
}

static char *shard_name(const struct sl_safetensors_options *options, uint32_t number,
                        size_t shards, struct sl_err *err)
{
    if (options->parts)
        return sl_asprintf(err, "%s-part-%u.safetensors", options->stem, number);
    if (shards == 1)
        return sl_asprintf(err, "%s.safetensors", options->stem);
    return sl_asprintf(err, "%s-%05u-of-%05zu.safetensors", options->stem, number + 1, shards);
}

static int lay_shards(struct sl_layout *layout, size_t shards,
                      const struct sl_safetensors_options *options,
                      const struct sl_meta_pair *metadata, size_t metadata_count,
                      struct sl_err *err)
{
    size_t done = 0;
    for (uint32_t i = 0; i < shards; i++) {
        struct sl_layout_place *places = layout->places + done;
        size_t left = layout->place_count - done;
        size_t count = shards == 1 ? left : shard_length(places, left, options->shard_bytes);
        layout->files[i].name = shard_name(options, i, shards, err);
        if (!layout->files[i].name ||
            lay_file(layout, i, places, count, metadata, metadata_count, options->bare, err) < 0)
            return -1;
        done += count;
    }
    return shards == 1 ? 0 : lay_index(layout, (uint32_t)shards, options->stem, err);
}

int sl_safetensors_layout(const struct sl_tensor *const *tensors, size_t count,
                          const struct sl_meta_pair *metadata, size_t metadata_count,
                          uint64_t shard_bytes, struct sl_layout **out, struct sl_err *err)
{
    const struct sl_safetensors_options options = {.shard_bytes = shard_bytes};
    return sl_safetensors_layout_as(tensors, count, metadata, metadata_count, &options, out, err);
}

int sl_safetensors_layout_as(const struct sl_tensor *const *tensors, size_t count,
                             const struct sl_meta_pair *metadata, size_t metadata_count,
                             const struct sl_safetensors_options *wanted, struct sl_layout **out,
                             struct sl_err *err)
{
    struct sl_safetensors_options options = *wanted;
    if (!options.stem)
        options.stem = "model";
    if (check_tensors(tensors, count, err) < 0)
        return -1;
    SL_AUTO(sl_layout) layout = sl_alloc(sizeof(*layout), err);
    if (!layout)
        return -1;
    layout->places = sl_alloc_array(count, sizeof(*layout->places), err);
    if (!layout->places)
        return -1;
    layout->place_count = count;
    for (size_t i = 0; i < count; i++)
        layout->places[i].tensor = tensors[i];
    if (count > 1)
        qsort(layout->places, count, sizeof(*layout->places), by_type_and_name);
    size_t shards = options.shard_bytes && count ? count_shards(layout, options.shard_bytes) : 1;
    if (shards > SHARDS_MAX)
        return sl_fail(err, SL_E_USAGE, "%zu shards, at most %d: make shardBytes larger", shards,
                       SHARDS_MAX);
    size_t files = shards == 1 ? 1 : shards + 1;
    layout->files = sl_alloc_array(files, sizeof(*layout->files), err);
    layout->file_count = layout->files ? files : 0;
    if (!layout->files || lay_shards(layout, shards, &options, metadata, metadata_count, err) < 0)
        return -1;
    *out = sl_steal(&layout);
    return 0;
}
