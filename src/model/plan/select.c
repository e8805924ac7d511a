/*
 * Which tensors, and as what: from the indexes of the opened objects to plan->targets. A tensor
 * gets its prefix, passes include and exclude by that name, is renamed, cut by the rule for its new
 * name, and cast. Targets keep the order of objects and of tensors in them.
 */
#include <string.h>

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

/* Of the sources of an index that one which has the object's name: shards are others. */
static int pass_checksums(const struct sl_candidate *candidate, struct sl_err *err)
{
    const struct sl_index *index = candidate->index;
    struct sl_source *itself = candidate->source;
    for (size_t s = 0; index && s < index->source_count; s++)
        if (strcmp(sl_source_name(index->sources[s]), candidate->name) == 0)
            itself = index->sources[s];
    return candidate->sums && itself ? sl_source_set_checksums(itself, candidate->sums, err) : 0;
}

int sl_plan_add_sources(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    for (size_t i = 0; i < own->candidate_count; i++) {
        const struct sl_candidate *candidate = &own->candidates[i];
        struct sl_index *index = candidate->index;
        if (pass_checksums(candidate, err) < 0)
            return -1;
        if (!index && add_source(plan, candidate->source, NULL, candidate->name, err) < 0)
            return -1;
        for (size_t s = 0; index && s < index->source_count; s++)
            if (add_source(plan, index->sources[s], index,
                           index->source_names[s] ? index->source_names[s] : candidate->name,
                           err) < 0)
                return -1;
    }
    return 0;
}

int sl_plan_refuse_unreadable(const struct sl_tensor *tensor, const char *object,
                              struct sl_err *err)
{
    if (sl_tensor_waits_for_key(tensor))
        return sl_fail_code(err, SL_E_AUTH, "E_KEY_REQUIRED",
                            "tensor '%s' of '%s' is encrypted: give its key with --key-file or its "
                            "passphrase with --passphrase-file",
                            tensor->name, object);
    if (tensor->refused)
        return sl_fail_code(
            err, (enum sl_err_kind)tensor->refused,
            tensor->refused_code ? tensor->refused_code : "",
            "tensor '%s' of '%s' cannot be read: %s; leave it out with tensors.exclude",
            tensor->name, object, tensor->refused_why ? tensor->refused_why : "refused");
    return 0;
}

/* The tensor as it is, but for where and how it is stored. */
static struct sl_tensor bare(const struct sl_tensor *tensor)
{
    return (struct sl_tensor){
        .name = tensor->name,
        .name_bytes = tensor->name_bytes,
        .path = tensor->path,
        .path_count = tensor->path_count,
        .dtype = tensor->dtype,
        .dtype_name = tensor->dtype_name,
        .rank = tensor->rank,
        .shape = tensor->shape,
        .bytes = tensor->bytes,
        .role = tensor->role,
        .module_index = tensor->module_index,
        .meta = tensor->meta,
    };
}

/* What is done to every tensor that is selected. */
struct changes {
    struct sl_renaming *renaming;
    struct sl_reshaping *reshaping;
};

/* The folder of its object goes in front of its name. */
static int add_prefix(const struct sl_plan *plan, uint32_t source, struct sl_index *index,
                      struct sl_tensor *tensor, struct sl_err *err)
{
    const char *object = plan->sources[source].name, *end = strrchr(object, '/');
    if (!end || plan->own->spec->tensors.prefix != SL_PREFIX_OBJECT)
        return 0;
    size_t folder = (size_t)(end + 1 - object), bytes = folder + tensor->name_bytes;
    char *name = sl_index_alloc(index, bytes + 1, err);
    if (!name)
        return -1;
    memcpy(name, object, folder);
    memcpy(name + folder, tensor->name, tensor->name_bytes);
    return sl_index_plain_name(index, tensor, name, bytes, err);
}

static int add_target(struct sl_plan *plan, uint32_t source, struct sl_index *index,
                      const struct sl_tensor *tensor, const struct sl_tensor *out,
                      const struct changes *changes, struct sl_err *err)
{
    struct sl_target *target = &plan->targets[plan->target_count++];
    *target = (struct sl_target){.out = *out, .from = tensor, .index = index, .source = source};
    if (sl_rename(changes->renaming, index, &target->out, err) < 0)
        return -1;
    return sl_reshape(changes->reshaping, target, err);
}

/* Tensors of the index whose first source is this one. */
static int select_from(struct sl_plan *plan, uint32_t first, const struct changes *changes,
                       struct sl_err *err)
{
    const struct sl_spec_tensors *wanted = &plan->own->spec->tensors;
    struct sl_index *index = plan->sources[first].index;
    for (size_t t = 0; t < index->tensor_count; t++) {
        const struct sl_tensor *tensor = &index->tensors[t];
        uint32_t source = first + tensor->source;
        struct sl_tensor out = bare(tensor);
        if (add_prefix(plan, source, index, &out, err) < 0)
            return -1;
        if (!sl_plan_matches(&wanted->include, out.name, true) ||
            sl_plan_matches(&wanted->exclude, out.name, false))
            continue;
        if (!plan->own->lists &&
            sl_plan_refuse_unreadable(tensor, plan->sources[source].name, err) < 0)
            return -1;
        if (add_target(plan, source, index, tensor, &out, changes, err) < 0)
            return -1;
    }
    return 0;
}

/* transformers insists on a metadata member "format": ours says pt unless the model brings its own
 * metadata. */
static void select_metadata(struct sl_plan *plan)
{
    static const struct sl_meta_pair otherwise[] = {{"format", "pt"}};
    const struct sl_plan_own *own = plan->own;
    plan->metadata = otherwise;
    plan->metadata_count = SL_COUNT(otherwise);
    for (size_t i = 0; i < own->candidate_count; i++) {
        const struct sl_index *index = own->candidates[i].index;
        if (!index || !index->metadata_count)
            continue;
        plan->metadata = index->metadata;
        plan->metadata_count = index->metadata_count;
        return;
    }
}

/* Whether the index of source i begins there; further sources of it follow. */
static bool begins_index(const struct sl_plan *plan, uint32_t i)
{
    const struct sl_index *index = plan->sources[i].index;
    return index && (i == 0 || plan->sources[i - 1].index != index);
}

static int check_sum(const struct sl_plan *plan, struct sl_err *err)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < plan->target_count; i++)
        if (sl_plan_add_bytes(&sum, plan->targets[i].out.bytes, plan, err) < 0)
            return -1;
    return 0;
}

static int select_all(struct sl_plan *plan, const struct changes *changes, size_t total,
                      struct sl_err *err)
{
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (begins_index(plan, i) && select_from(plan, i, changes, err) < 0)
            return -1;
    if (plan->target_count == 0)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "no tensor of %zu passes tensors.include and tensors.exclude", total);
    sl_renaming_warn(changes->renaming);
    sl_reshaping_warn(changes->reshaping);
    return check_sum(plan, err) < 0 ? -1 : sl_plan_check_names(plan, err);
}

static int fail_without_tensors(const struct sl_plan *plan, struct sl_err *err)
{
    size_t models = 0;
    for (size_t i = 0; i < plan->source_count; i++)
        models += plan->sources[i].index != NULL;
    return sl_fail(err, SL_E_FORMAT,
                   "'%s' holds no tensors%s: a load with 'layout: verbatim' takes it as it is",
                   sl_plan_uri(plan), models ? "" : " in a format that can be read");
}

int sl_plan_select(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_spec_tensors *wanted = &plan->own->spec->tensors;
    size_t total = 0;
    for (uint32_t i = 0; i < plan->source_count; i++)
        total += begins_index(plan, i) ? plan->sources[i].index->tensor_count : 0;
    if (total == 0)
        return fail_without_tensors(plan, err);
    SL_AUTO(sl_renaming) renaming = sl_renaming_new(&wanted->rename, err);
    SL_AUTO(sl_reshaping) reshaping = renaming ? sl_reshaping_new(wanted, err) : NULL;
    plan->targets = sl_alloc_array(total, sizeof(*plan->targets), err);
    if (!plan->targets || !reshaping)
        return -1;
    struct changes changes = {renaming, reshaping};
    if (select_all(plan, &changes, total, err) < 0)
        return -1;
    select_metadata(plan);
    return 0;
}
