/*
 * From open objects and targets to files. `verbatim`, `hf-cache`: each object is one file and one
 * extent.
 * `safetensors`, `tensorizer`: the targets are laid out anew; their new headers are literals (but
 * see assemble_tensorizer.c), each tensor is an extent, a meta tensor is a hole in a sparse file;
 * whatever is not a model (config.json, tokenizers) lies beside, as it is.
 */
#include "mapping.h"
#include "plan_parts.h"

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
    return sl_plan_add_bytes(&plan->sink_bytes, bytes, plan, err);
}

static int add_extent(struct sl_plan *plan, uint32_t source, uint64_t begin, uint64_t end,
                      uint32_t file, uint64_t file_offset, struct sl_err *err)
{
    if (begin >= end)
        return 0;
    if (sl_grow(&plan->extents, &plan->own->extent_capacity, plan->extent_count + 1,
                sizeof(*plan->extents), err) < 0)
        return -1;
    plan->extents[plan->extent_count++] =
        (struct sl_extent){begin, end, source, file, file_offset, 0};
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

static int add_whole(struct sl_plan *plan, uint32_t source, const char *folder, struct sl_err *err)
{
    const struct sl_plan_source *from = &plan->sources[source];
    uint64_t bytes = sl_source_bytes(from->source);
    sl_autofree char *name = sl_asprintf(err, "%s%s", folder, from->name);
    if (!name || sl_name_check(name, strlen(name), err) < 0 || add_file(plan, name, bytes, err) < 0)
        return -1;
    return add_extent(plan, source, 0, bytes, (uint32_t)(plan->file_count - 1), 0, err);
}

/* folder: of all files, with its last '/', or "". */
static int assemble_verbatim(struct sl_plan *plan, const char *folder, struct sl_err *err)
{
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (add_whole(plan, i, folder, err) < 0)
            return -1;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        const struct sl_index *index = plan->sources[i].index;
        if (!index || index->unread || (i && plan->sources[i - 1].index == index))
            continue;
        for (size_t t = 0; t < index->tensor_count; t++) {
            const struct sl_tensor *tensor = &index->tensors[t];
            if (!tensor->part &&
                add_tensor(plan, tensor, i + tensor->source, tensor->begin, err) < 0)
                return -1;
        }
    }
    return 0;
}

/* data: owned by the plan. */
static int add_literal(struct sl_plan *plan, uint32_t file, const void *data, size_t bytes,
                       struct sl_err *err)
{
    if (bytes == 0)
        return 0;
    if (sl_grow(&plan->literals, &plan->own->literal_capacity, plan->literal_count + 1,
                sizeof(*plan->literals), err) < 0)
        return -1;
    plan->literals[plan->literal_count++] = (struct sl_literal){file, 0, data, bytes};
    return 0;
}

/* The file of a ref, without a newline: with one the client finds nothing. It comes last, so that
 * whoever finds it finds the snapshot that it names. */
static int add_ref(struct sl_plan *plan, const char *folder, const char *revision,
                   const char *commit, struct sl_err *err)
{
    sl_autofree char *name = sl_asprintf(err, "%srefs/%s", folder, revision);
    if (!name || sl_name_check(name, strlen(name), err) < 0 ||
        add_file(plan, name, strlen(commit), err) < 0)
        return -1;
    return add_literal(plan, (uint32_t)(plan->file_count - 1), commit, strlen(commit), err);
}

static const char *last_part(const char *path, size_t *bytes)
{
    size_t end = strlen(path);
    while (end && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin && path[begin - 1] != '/')
        begin--;
    *bytes = end - begin;
    return path + begin;
}

/* snapshots/COMMIT/ has the objects as they are; plain files do, where nothing is shared. */
static int assemble_cache(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_cache_place *place = sl_store_advice(plan->own->store).cache;
    const char *commit = plan->source_count ? sl_source_version(plan->sources[0].source)->pin : "";
    size_t bytes;
    const char *last = last_part(plan->own->output.cache, &bytes);
    if (!place)
        return sl_fail(
            err, SL_E_USAGE,
            "layout hf-cache is for repositories of a hub (hf://ORG/NAME), which '%.300s' is "
            "not: use layout verbatim",
            sl_store_uri(plan->own->store));
    bool within = strlen(place->folder) == bytes && strncmp(place->folder, last, bytes) == 0;
    sl_autofree char *folder =
        sl_asprintf(err, "%s%s", within ? "" : place->folder, within ? "" : "/");
    sl_autofree char *snapshot =
        folder ? sl_asprintf(err, "%ssnapshots/%s/%s", folder, commit, place->below) : NULL;
    if (!snapshot || assemble_verbatim(plan, snapshot, err) < 0)
        return -1;
    return add_ref(plan, folder, strcmp(place->revision, commit) == 0 ? "main" : place->revision,
                   commit, err);
}

/* A layout has its own order; a place's tensor is the `out` of a target. */
static int add_places(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_layout *layout = plan->own->layout;
    plan->mappings = sl_alloc_array(plan->target_count, sizeof(*plan->mappings), err);
    if (!plan->mappings)
        return -1;
    for (size_t i = 0; i < layout->place_count; i++) {
        const struct sl_layout_place *place = &layout->places[i];
        const struct sl_target *target = (const struct sl_target *)place->tensor;
        if (add_tensor(plan, &target->out, place->file, place->offset, err) < 0 ||
            sl_plan_place(plan, target, place->file, place->offset, err) < 0)
            return -1;
    }
    return 0;
}

static int lay_out(struct sl_plan *plan, struct sl_err *err)
{
    sl_autofree const struct sl_tensor **tensors =
        sl_alloc_array(plan->target_count, sizeof(*tensors), err);
    if (!tensors)
        return -1;
    for (size_t i = 0; i < plan->target_count; i++)
        tensors[i] = &plan->targets[i].out;
    if (plan->own->output.layout == SL_LAYOUT_TENSORIZER)
        return sl_plan_lay_tensorizer(plan, tensors, err);
    if (plan->own->output.layout == SL_LAYOUT_SLABS)
        return sl_plan_lay_slabs(plan, tensors, err);
    return sl_safetensors_layout(tensors, plan->target_count, plan->metadata, plan->metadata_count,
                                 plan->own->output.part_bytes, &plan->own->layout, err);
}

static int assemble_new(struct sl_plan *plan, struct sl_err *err)
{
    if (lay_out(plan, err) < 0)
        return -1;
    const struct sl_layout *layout = plan->own->layout;
    for (size_t i = 0; i < layout->file_count; i++)
        if (add_file(plan, layout->files[i].name, layout->files[i].bytes, err) < 0 ||
            add_literal(plan, (uint32_t)i, layout->files[i].head.data, layout->files[i].head.used,
                        err) < 0)
            return -1;
    if (add_places(plan, err) < 0)
        return -1;
    if (plan->own->output.layout == SL_LAYOUT_TENSORIZER &&
        sl_plan_add_deferred_headers(plan, err) < 0)
        return -1;
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (!plan->sources[i].index && add_whole(plan, i, "", err) < 0)
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
    enum sl_sink_layout layout = plan->own->output.layout;
    int done = plan->own->output.cache        ? assemble_cache(plan, err)
               : layout == SL_LAYOUT_VERBATIM ? assemble_verbatim(plan, "", err)
                                              : assemble_new(plan, err);
    return done < 0 ? -1 : refuse_same_names(plan, err);
}
