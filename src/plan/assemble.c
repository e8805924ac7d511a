/*
 * From open objects to files. `verbatim`: each object is one file and one extent. `safetensors`:
 * the tensors of all model files, selected by name, are laid out anew; their new headers are
 * literals, each tensor is an extent, a meta tensor is a hole in a sparse file; whatever is no
 * model (config.json, tokenizers) lies beside, as it is.
 */
#include <inttypes.h>

#include "plan_parts.h"

static int add_source(struct sl_plan *plan, struct sl_source *source, struct sl_index *index,
                      const char *name, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (plan->source_count >= UINT32_MAX)
        return sl_fail(err, SL_E_USAGE, "too many objects");
    if (sl_grow(&plan->sources, &own->source_capacity, plan->source_count + 1,
                sizeof(*plan->sources), err) < 0)
        return -1;
    plan->sources[plan->source_count++] = (struct sl_plan_source){source, index, name};
    return 0;
}

static int add_file(struct sl_plan *plan, const char *name, uint64_t bytes, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (sl_grow(&plan->files, &own->file_capacity, plan->file_count + 1, sizeof(*plan->files),
                err) < 0)
        return -1;
    char *copy = sl_strdup(name, err);
    if (!copy)
        return -1;
    plan->files[plan->file_count++] = (struct sl_plan_file){copy, bytes};
    plan->sink_bytes += bytes;
    return 0;
}

static int add_extent(struct sl_plan *plan, uint32_t source, uint64_t begin, uint64_t end,
                      uint32_t file, uint64_t file_offset, struct sl_err *err)
{
    if (begin >= end)
        return 0;
    if (sl_grow(&plan->extents, &plan->own->extent_capacity, plan->extent_count + 1,
                sizeof(*plan->extents), err) < 0)
        return -1;
    plan->extents[plan->extent_count++] = (struct sl_extent){begin, end, source, file, file_offset};
    return 0;
}

static int add_tensor(struct sl_plan *plan, const struct sl_tensor *tensor, uint32_t file,
                      uint64_t file_offset, struct sl_err *err)
{
    if (sl_grow(&plan->tensors, &plan->own->tensor_capacity, plan->tensor_count + 1,
                sizeof(*plan->tensors), err) < 0)
        return -1;
    plan->tensors[plan->tensor_count++] = (struct sl_plan_tensor){tensor, file, file_offset};
    return 0;
}

static int add_whole(struct sl_plan *plan, uint32_t source, struct sl_err *err)
{
    const struct sl_plan_source *from = &plan->sources[source];
    uint64_t bytes = sl_source_bytes(from->source);
    if (sl_name_check(from->name, strlen(from->name), err) < 0 ||
        add_file(plan, from->name, bytes, err) < 0)
        return -1;
    return add_extent(plan, source, 0, bytes, (uint32_t)(plan->file_count - 1), 0, err);
}

static int add_sources(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    for (size_t i = 0; i < own->candidate_count; i++) {
        const struct sl_candidate *candidate = &own->candidates[i];
        if (!candidate->index) {
            if (add_source(plan, candidate->source, NULL, candidate->name, err) < 0)
                return -1;
            continue;
        }
        for (size_t s = 0; s < candidate->index->source_count; s++)
            if (add_source(plan, candidate->index->sources[s], candidate->index,
                           candidate->index->source_names[s] ? candidate->index->source_names[s]
                                                             : candidate->name,
                           err) < 0)
                return -1;
    }
    return 0;
}

/* The plan's number of an index's first source; the others follow it. */
static uint32_t first_source(const struct sl_plan *plan, const struct sl_index *index)
{
    uint32_t number = 0;
    while (plan->sources[number].index != index)
        number++;
    return number;
}

static int assemble_verbatim(struct sl_plan *plan, struct sl_err *err)
{
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (add_whole(plan, i, err) < 0)
            return -1;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        const struct sl_index *index = plan->sources[i].index;
        if (!index || (i && plan->sources[i - 1].index == index))
            continue;
        for (size_t t = 0; t < index->tensor_count; t++) {
            const struct sl_tensor *tensor = &index->tensors[t];
            if (add_tensor(plan, tensor, i + tensor->source, tensor->begin, err) < 0)
                return -1;
        }
    }
    return 0;
}

static int refuse_unreadable(const struct sl_tensor *tensor, const char *object, struct sl_err *err)
{
    if (tensor->encrypted)
        return sl_fail(err, SL_E_USAGE,
                       "'%s' is encrypted, and decrypting is not offered yet: 'layout: verbatim' "
                       "loads it as it is",
                       object);
    if (tensor->refused)
        return sl_fail_code(
            err, (enum sl_err_kind)tensor->refused,
            tensor->refused_code ? tensor->refused_code : "",
            "tensor '%s' of '%s' cannot be read: %s; leave it out with tensors.exclude",
            tensor->name, object, tensor->refused_why ? tensor->refused_why : "refused");
    return 0;
}

/* Tensors that the spec selects, in the order of objects and offsets. */
struct selection {
    const struct sl_tensor **tensors;
    uint32_t *sources;
    size_t count;
};

static void selection_release(struct selection *selection)
{
    free(selection->tensors);
    free(selection->sources);
}

static int select_from(struct sl_plan *plan, uint32_t first, struct selection *selection,
                       struct sl_err *err)
{
    const struct sl_spec *spec = plan->own->spec;
    const struct sl_index *index = plan->sources[first].index;
    for (size_t t = 0; t < index->tensor_count; t++) {
        const struct sl_tensor *tensor = &index->tensors[t];
        if (!sl_plan_matches(&spec->tensors.include, tensor->name, true) ||
            sl_plan_matches(&spec->tensors.exclude, tensor->name, false))
            continue;
        if (refuse_unreadable(tensor, plan->sources[first + tensor->source].name, err) < 0)
            return -1;
        selection->sources[selection->count] = first + tensor->source;
        selection->tensors[selection->count++] = tensor;
    }
    return 0;
}

static int select_tensors(struct sl_plan *plan, struct selection *selection, struct sl_err *err)
{
    size_t total = 0;
    const struct sl_plan_own *own = plan->own;
    for (size_t i = 0; i < own->candidate_count; i++)
        total += own->candidates[i].index ? own->candidates[i].index->tensor_count : 0;
    if (total == 0)
        return sl_fail(err, SL_E_FORMAT,
                       "no object of '%s' holds tensors in a format that can be read: 'layout: "
                       "verbatim' loads it as it is",
                       sl_store_uri(own->store));
    selection->tensors = sl_alloc_array(total, sizeof(*selection->tensors), err);
    selection->sources = sl_alloc_array(total, sizeof(*selection->sources), err);
    if (!selection->tensors || !selection->sources)
        return -1;
    for (size_t i = 0; i < own->candidate_count; i++)
        if (own->candidates[i].index &&
            select_from(plan, first_source(plan, own->candidates[i].index), selection, err) < 0)
            return -1;
    if (selection->count == 0)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "none of the %zu tensors passes tensors.include and tensors.exclude", total);
    return 0;
}

/* transformers insists on a metadata member "format": ours says pt unless the model brings its own
 * metadata. */
static int lay_out(struct sl_plan *plan, const struct selection *selection, struct sl_err *err)
{
    static const struct sl_meta_pair otherwise[] = {{"format", "pt"}};
    struct sl_plan_own *own = plan->own;
    const struct sl_meta_pair *metadata = otherwise;
    size_t metadata_count = 1;
    for (size_t i = 0; i < own->candidate_count; i++) {
        const struct sl_index *index = own->candidates[i].index;
        if (index && index->metadata_count) {
            metadata = index->metadata;
            metadata_count = index->metadata_count;
            break;
        }
    }
    return sl_safetensors_layout(selection->tensors, selection->count, metadata, metadata_count,
                                 own->spec->sink.tmpfs.shard_bytes, &own->layout, err);
}

static int add_literal(struct sl_plan *plan, uint32_t file, const struct sl_buf *head,
                       struct sl_err *err)
{
    if (head->used == 0)
        return 0;
    if (sl_grow(&plan->literals, &plan->own->literal_capacity, plan->literal_count + 1,
                sizeof(*plan->literals), err) < 0)
        return -1;
    plan->literals[plan->literal_count++] =
        (struct sl_literal){file, 0, (const uint8_t *)head->data, head->used};
    return 0;
}

static int compare_tensors(const void *a, const void *b)
{
    const struct sl_tensor *x = *(const struct sl_tensor *const *)a,
                           *y = *(const struct sl_tensor *const *)b;
    return x < y ? -1 : x > y;
}

/* A layout has its own order; the source of a tensor is found by its address. */
struct origin {
    const struct sl_tensor *tensor;
    uint32_t source;
};

static int add_places(struct sl_plan *plan, const struct selection *selection, struct sl_err *err)
{
    const struct sl_layout *layout = plan->own->layout;
    sl_autofree struct origin *origins = sl_alloc_array(selection->count, sizeof(*origins), err);
    if (!origins)
        return -1;
    for (size_t i = 0; i < selection->count; i++)
        origins[i] = (struct origin){selection->tensors[i], selection->sources[i]};
    qsort(origins, selection->count, sizeof(*origins), compare_tensors);
    for (size_t i = 0; i < layout->place_count; i++) {
        const struct sl_layout_place *place = &layout->places[i];
        const struct sl_tensor *tensor = place->tensor;
        struct origin key = {.tensor = tensor};
        const struct origin *from =
            bsearch(&key, origins, selection->count, sizeof(key), compare_tensors);
        if (add_tensor(plan, tensor, place->file, place->offset, err) < 0)
            return -1;
        if (!tensor->meta && add_extent(plan, from->source, tensor->begin, tensor->end, place->file,
                                        place->offset, err) < 0)
            return -1;
    }
    return 0;
}

static int assemble_safetensors(struct sl_plan *plan, struct sl_err *err)
{
    __attribute__((cleanup(selection_release))) struct selection selection = {0};
    if (select_tensors(plan, &selection, err) < 0 || lay_out(plan, &selection, err) < 0)
        return -1;
    const struct sl_layout *layout = plan->own->layout;
    for (size_t i = 0; i < layout->file_count; i++)
        if (add_file(plan, layout->files[i].name, layout->files[i].bytes, err) < 0 ||
            add_literal(plan, (uint32_t)i, &layout->files[i].head, err) < 0)
            return -1;
    if (add_places(plan, &selection, err) < 0)
        return -1;
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (!plan->sources[i].index && add_whole(plan, i, err) < 0)
            return -1;
    return 0;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp((*(const struct sl_plan_file *const *)a)->name,
                  (*(const struct sl_plan_file *const *)b)->name);
}

/* New files, data files and the shards of an index come from different places and may still meet.
 */
static int refuse_same_names(const struct sl_plan *plan, struct sl_err *err)
{
    sl_autofree const struct sl_plan_file **files =
        sl_alloc_array(plan->file_count, sizeof(*files), err);
    if (!files)
        return -1;
    for (size_t i = 0; i < plan->file_count; i++)
        files[i] = &plan->files[i];
    qsort(files, plan->file_count, sizeof(*files), compare_files);
    for (size_t i = 1; i < plan->file_count; i++)
        if (strcmp(files[i - 1]->name, files[i]->name) == 0)
            return sl_fail_code(err, SL_E_FORMAT, "E_NAME",
                                "two files of the model would be called '%s'", files[i]->name);
    return 0;
}

int sl_plan_assemble(struct sl_plan *plan, struct sl_err *err)
{
    int layout = plan->own->spec->sink.tmpfs.layout;
    if (layout == SL_LAYOUT_TENSORIZER)
        return sl_fail(err, SL_E_USAGE,
                       "'layout: tensorizer' is not offered yet: use verbatim or safetensors");
    if (add_sources(plan, err) < 0)
        return -1;
    int done = layout == SL_LAYOUT_VERBATIM ? assemble_verbatim(plan, err)
                                            : assemble_safetensors(plan, err);
    return done < 0 ? -1 : refuse_same_names(plan, err);
}
