/*
 * From opened models to what is written: a plan and a layout for each component, an output for each
 * file, an item for each tensor, in the order of the bytes. What lies between them is zeros: slack
 * for alignment, the terminator of a .tensors file.
 */
#include <stdlib.h>
#include <string.h>

#include "format.h"
#include "job.h"
#include "names.h"
#include "stores.h"
#include "url.h"

static bool is_tensorizer(const struct sl_job *job)
{
    return job->config->format == SL_CONVERT_TENSORIZER;
}

/* ---- models ---------------------------------------------------------------------------------- */

static int refuse_encrypted(const char *uri, struct sl_err *err)
{
    sl_autofree char *clean = sl_uri_sanitize(uri, err);
    if (!clean)
        return -1;
    return sl_fail(err, SL_E_USAGE,
                   "'%s' is encrypted already: `sluice decrypt` it first, or give `sluice convert "
                   "--encrypt` the old key and the new one",
                   clean);
}

/* encrypt and decrypt are for files of one kind. */
static int check_encryption(const struct sl_job *job, const struct sl_component *component,
                            struct sl_err *err)
{
    const struct sl_convert_config *config = job->config;
    const char *uri = sl_plan_uri(component->plan);
    for (size_t i = 0; i < component->plan->source_count; i++) {
        const struct sl_index *index = component->plan->sources[i].index;
        if (!index || !(config->encrypted_only || config->plain_only))
            continue;
        const struct sl_format *format = sl_format_by_name(index->format);
        if (!format || !format->encrypts)
            return sl_fail(err, SL_E_USAGE,
                           "'%s' is a %s model and not a .tensors file: `sluice convert` makes one "
                           "of it, encrypted with --encrypt",
                           uri, index->format);
        if (config->encrypted_only && !index->encrypted)
            return sl_fail_code(err, SL_E_USAGE, "E_NOT_ENCRYPTED",
                                "'%s' is not encrypted: there is nothing to decrypt", uri);
        if (config->plain_only && index->encrypted)
            return refuse_encrypted(uri, err);
    }
    return 0;
}

static int refuse_meta(const struct sl_target *target, struct sl_err *err)
{
    return sl_fail(err, SL_E_FORMAT,
                   "tensor '%.*s' is a meta tensor, a shape without data, which safetensors cannot "
                   "say: leave it out with --exclude, or convert to .tensors",
                   SL_NAME_ARGS(target->out.name, target->out.name_bytes));
}

static int lay_out_tensors(const struct sl_job *job, struct sl_component *component,
                           const struct sl_tensor *const *tensors, struct sl_err *err)
{
    const struct sl_convert_config *config = job->config;
    const struct sl_plan *plan = component->plan;
    if (!is_tensorizer(job)) {
        const struct sl_safetensors_options options = {
            .shard_bytes = config->shard_bytes,
            .stem = component->stem,
            .parts = config->ranks > 0,
            .bare = config->bare_head,
        };
        return sl_safetensors_layout_as(tensors, plan->target_count, plan->metadata,
                                        plan->metadata_count, &options, &component->layout, err);
    }
    sl_autofree char *name = sl_asprintf(err, "%s.tensors", component->stem);
    struct sl_tensorizer_options options = {
        .encrypt = config->seal != NULL,
        .kdf = config->seal && sl_keys_have_passphrase(config->seal) ? &config->kdf : NULL,
        .piece_bytes = job->piece_bytes,
        .align = config->align,
        .name = name,
    };
    return name ? sl_tensorizer_layout(tensors, plan->target_count, &options, &component->layout,
                                       err)
                : -1;
}

static int open_component(struct sl_job *job, struct sl_component *component, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (job->config->given) {
        component->plan = job->config->given->plan;
        component->given = true;
        return 0;
    }
    if (sl_plan_make_targets(&component->spec, &job->source_config, &component->plan, &why) == 0) {
        sl_plan_warn_of_versions(component->plan, "and what is written may be of two versions");
        return 0;
    }
    if (job->config->plain_only && strcmp(why.code, "E_KEY_REQUIRED") == 0)
        return refuse_encrypted(component->spec.source.uri, err);
    *err = why;
    return -1;
}

static int lay_out_component(struct sl_job *job, struct sl_component *component, struct sl_err *err)
{
    if (open_component(job, component, err) < 0 ||
        sl_job_check_room(job, component->plan, err) < 0 ||
        sl_component_verify_reads(job, component, err) < 0 ||
        check_encryption(job, component, err) < 0)
        return -1;
    const struct sl_plan *plan = component->plan;
    sl_autofree const struct sl_tensor **tensors =
        sl_alloc_array(plan->target_count, sizeof(*tensors), err);
    if (!tensors)
        return -1;
    for (size_t i = 0; i < plan->target_count; i++) {
        tensors[i] = &plan->targets[i].out;
        if (tensors[i]->meta && !is_tensorizer(job))
            return refuse_meta(&plan->targets[i], err);
    }
    if (lay_out_tensors(job, component, tensors, err) < 0)
        return *component->folder ? sl_wrap(err, "'%s'", component->folder) : -1;
    return 0;
}

/* ---- outputs --------------------------------------------------------------------------------- */

static int refuse_several(const struct sl_job *job, struct sl_err *err)
{
    sl_autofree char *to = sl_uri_sanitize(job->config->to, err);
    if (!to)
        return -1;
    return sl_fail(err, SL_E_USAGE,
                   "%zu files would be written, but '%s' is one object: name a folder, with a '/' "
                   "at the end",
                   job->output_count, to);
}

static int add_outputs(struct sl_job *job, struct sl_err *err)
{
    for (size_t i = 0; i < job->component_count; i++) {
        const struct sl_component *component = &job->components[i];
        for (size_t f = 0; f < component->layout->file_count; f++) {
            const struct sl_layout_file *file = &component->layout->files[f];
            if (sl_job_add_output(job, component->folder, file->name, file->bytes, err) < 0)
                return -1;
            job->outputs[job->output_count - 1].file = file;
        }
    }
    const char *to = job->config->to;
    size_t bytes = strlen(to);
    if (job->output_count > 1 && (bytes == 0 || to[bytes - 1] != '/'))
        return refuse_several(job, err);
    for (size_t i = 0; i < job->output_count; i++)
        for (size_t other = 0; other < i; other++)
            if (strcmp(job->outputs[i].name, job->outputs[other].name) == 0)
                return sl_fail(err, SL_E_USAGE,
                               "two files would be written to '%s': leave one out with --set "
                               "source.exclude=NAME, or use --no-data-files",
                               job->outputs[i].name);
    job->in_order = sl_uri_takes_in_order(to);
    return sl_job_check_descriptors(job, err);
}

/* ---- items ----------------------------------------------------------------------------------- */

static struct sl_output *output_of(struct sl_job *job, const struct sl_layout_file *file)
{
    for (size_t i = 0; i < job->output_count; i++)
        if (job->outputs[i].file == file)
            return &job->outputs[i];
    return NULL;
}

static uint64_t item_front(const struct sl_item *item)
{
    return item->header ? item->header->offset : item->begin;
}

static int by_place(const void *a, const void *b)
{
    const struct sl_item *x = a, *y = b;
    if (x->output != y->output)
        return x->output < y->output ? -1 : 1;
    if (item_front(x) != item_front(y))
        return item_front(x) < item_front(y) ? -1 : 1;
    return (x->data_bytes > y->data_bytes) - (x->data_bytes < y->data_bytes);
}

static int add_item(struct sl_job *job, const struct sl_component *component,
                    const struct sl_layout_place *place, struct sl_err *err)
{
    struct sl_item *item = &job->items[job->item_count++];
    const struct sl_target *target = (const struct sl_target *)(const void *)place->tensor;
    const struct sl_tensor *from = target->from;
    *item = (struct sl_item){
        .target = target,
        .header = place->header,
        .output = output_of(job, &component->layout->files[place->file]),
        .begin = place->offset,
        .data_bytes = place->header ? place->bytes : place->tensor->bytes,
    };
    item->raw_bytes = target->slice ? sl_slice_bytes(from, target->slice, NULL) : from->bytes;
    if (item->data_bytes == 0)
        item->raw_bytes = 0;
    if (item->header && item->header->nonce_at)
        sl_crypt_random(item->header->data + item->header->nonce_at, SL_NONCE_BYTES);
    return sl_item_choose_checks(item, job->config->spec, err);
}

/* What is before each tensor, and behind the last. */
static void find_gaps(struct sl_job *job)
{
    for (size_t i = 0; i < job->output_count; i++)
        job->outputs[i].tail = job->outputs[i].file ? job->outputs[i].file->head.used : 0;
    for (size_t i = 0; i < job->item_count; i++) {
        struct sl_item *item = &job->items[i];
        struct sl_output *output = item->output;
        item->gap = output->tail;
        output->tail = item->begin + item->data_bytes;
        if (!output->first_item)
            output->first_item = item;
    }
}

static int add_items(struct sl_job *job, struct sl_err *err)
{
    size_t count = 0;
    for (size_t i = 0; i < job->component_count; i++)
        count += job->components[i].layout->place_count;
    job->items = sl_alloc_array(count, sizeof(*job->items), err);
    if (!job->items)
        return -1;
    for (size_t i = 0; i < job->component_count; i++) {
        const struct sl_layout *layout = job->components[i].layout;
        for (size_t p = 0; p < layout->place_count; p++)
            if (add_item(job, &job->components[i], &layout->places[p], err) < 0)
                return -1;
    }
    if (job->item_count > 1)
        qsort(job->items, job->item_count, sizeof(*job->items), by_place);
    find_gaps(job);
    return 0;
}

/* What was called like a model, or large, and is none. */
static int add_data_files(struct sl_job *job, const struct sl_component *component,
                          struct sl_err *err)
{
    for (size_t i = 0; i < component->plan->source_count; i++) {
        const struct sl_plan_source *source = &component->plan->sources[i];
        if (source->index || !job->config->data_files || component->rank)
            continue;
        sl_autofree char *name = sl_asprintf(err, "%s%s", component->folder, source->name);
        if (!name || sl_job_add_data_file(job, name, err) < 0)
            return -1;
    }
    return 0;
}

int sl_job_lay_out(struct sl_job *job, struct sl_err *err)
{
    for (size_t i = 0; i < job->component_count; i++)
        if (lay_out_component(job, &job->components[i], err) < 0 ||
            add_data_files(job, &job->components[i], err) < 0)
            return -1;
    return add_outputs(job, err) < 0 ? -1 : add_items(job, err);
}
