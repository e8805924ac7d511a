/*
 * The index is an array of tensors whose names, shapes and prefixes lie in one arena, so that it is
 * built by appending and freed in one go. Names are looked up by binary search in an array of
 * numbers that is sorted once: unlike a hash table it has no bad case that a hostile file could aim
 * at.
 */
#include "index.h"

#include "arena.h"
#include "lower_bound.h"
#include "names.h"

struct sl_index *sl_index_new(const char *format, struct sl_err *err)
{
    SL_AUTO(sl_index) index = sl_alloc(sizeof(*index), err);
    if (!index)
        return NULL;
    index->format = format;
    index->arena = sl_arena_new(err);
    return index->arena ? sl_steal(&index) : NULL;
}

struct sl_index *sl_index_view(const struct sl_index *index, struct sl_err *err)
{
    struct sl_index *view = sl_index_new(index->format, err);
    if (!view)
        return NULL;
    struct sl_arena *arena = view->arena;
    *view = *index;
    view->arena = arena;
    view->by_name = NULL;
    view->by_name_count = 0;
    view->view = true;
    return view;
}

static void free_content(struct sl_index *index)
{
    for (size_t i = 0; i < index->source_count; i++) {
        sl_source_free(index->sources[i]);
        free(index->source_names[i]);
    }
    free(index->sources);
    free(index->source_names);
    free(index->tensors);
    free(index->metadata);
    free(index->values);
}

void sl_index_free(struct sl_index *index)
{
    if (!index)
        return;
    if (!index->view)
        free_content(index);
    free(index->by_name);
    sl_arena_free(index->arena);
    free(index);
}

void *sl_index_alloc(struct sl_index *index, size_t bytes, struct sl_err *err)
{
    return sl_arena_alloc(index->arena, bytes, err);
}

int sl_index_keep(struct sl_index *index, void *memory, struct sl_err *err)
{
    return sl_arena_keep(index->arena, memory, err);
}

int sl_index_add_source(struct sl_index *index, struct sl_source *source, struct sl_err *err)
{
    SL_AUTO(sl_source) held = source;
    sl_autofree char *name = sl_strdup(sl_source_name(source), err);
    size_t capacity = index->source_capacity;
    if (!name || sl_grow(&index->sources, &capacity, index->source_count + 1,
                         sizeof(*index->sources), err) < 0)
        return -1;
    capacity = index->source_capacity;
    if (sl_grow(&index->source_names, &capacity, index->source_count + 1,
                sizeof(*index->source_names), err) < 0)
        return -1;
    index->source_capacity = capacity;
    index->sources[index->source_count] = sl_steal(&held);
    index->source_names[index->source_count] = sl_steal(&name);
    return (int)index->source_count++;
}

struct sl_tensor *sl_index_add_tensor(struct sl_index *index, struct sl_err *err)
{
    if (index->tensor_count >= UINT32_MAX) {
        sl_fail(err, SL_E_FORMAT, "more than %u tensors", UINT32_MAX);
        return NULL;
    }
    if (sl_grow(&index->tensors, &index->tensor_capacity, index->tensor_count + 1,
                sizeof(*index->tensors), err) < 0)
        return NULL;
    struct sl_tensor *tensor = &index->tensors[index->tensor_count++];
    *tensor = (struct sl_tensor){0}; /* there may have been another one */
    return tensor;
}

int sl_index_plain_name(struct sl_index *index, struct sl_tensor *tensor, const char *name,
                        size_t name_bytes, struct sl_err *err)
{
    struct sl_path_part *part = sl_index_alloc(index, sizeof(*part), err);
    if (!part)
        return -1;
    *part = (struct sl_path_part){.text = name, .text_bytes = name_bytes};
    tensor->name = name;
    tensor->name_bytes = name_bytes;
    tensor->path = part;
    tensor->path_count = 1;
    return 0;
}

int sl_index_add_meta(struct sl_index *index, const char *key, const char *value,
                      struct sl_err *err)
{
    if (sl_grow(&index->metadata, &index->metadata_capacity, index->metadata_count + 1,
                sizeof(*index->metadata), err) < 0)
        return -1;
    index->metadata[index->metadata_count++] = (struct sl_meta_pair){key, value};
    return 0;
}

void sl_index_counts(const struct sl_index *index, uint64_t *object_bytes, uint64_t *requests,
                     uint64_t *bytes)
{
    *object_bytes = *requests = *bytes = 0;
    for (size_t i = 0; i < index->source_count; i++) {
        uint64_t source_requests, source_bytes;
        sl_source_counts(index->sources[i], &source_requests, &source_bytes);
        *object_bytes += sl_source_bytes(index->sources[i]);
        *requests += source_requests;
        *bytes += source_bytes;
    }
}

static int compare_name(const struct sl_index *index, size_t number, const char *name,
                        size_t name_bytes)
{
    const struct sl_tensor *tensor = &index->tensors[number];
    return sl_bytes_compare(tensor->name, tensor->name_bytes, name, name_bytes);
}

int sl_index_sort_names(struct sl_index *index, struct sl_err *err)
{
    if (index->by_name && index->by_name_count == index->tensor_count)
        return 0;
    free(index->by_name);
    index->by_name = sl_names_sort(index->tensors, index->tensor_count, err);
    index->by_name_count = index->by_name ? index->tensor_count : 0;
    return index->by_name ? 0 : -1;
}

const struct sl_tensor *sl_index_find(struct sl_index *index, const char *name, size_t name_bytes,
                                      struct sl_err *err)
{
    if (sl_index_sort_names(index, err) < 0)
        return NULL;
    size_t at = SL_LOWER_BOUND(i, index->by_name_count,
                               compare_name(index, index->by_name[i], name, name_bytes) < 0);
    if (at < index->by_name_count && compare_name(index, index->by_name[at], name, name_bytes) == 0)
        return &index->tensors[index->by_name[at]];
    sl_fail_code(err, SL_E_NOT_FOUND, "st.not-found", "no tensor '%.*s' in '%s'",
                 SL_NAME_ARGS(name, name_bytes),
                 index->source_count ? sl_source_uri(index->sources[0]) : "");
    return NULL;
}
