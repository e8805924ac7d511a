/* What every step of planning asks of a plan, and what they all add to it. */
#include <fnmatch.h>
#include <string.h>

#include "plan_parts.h"

const char *sl_plan_uri(const struct sl_plan *plan)
{
    if (plan->own->single && plan->source_count)
        return sl_source_uri(plan->sources[0].source);
    return sl_store_uri(plan->own->store);
}

const struct sl_sidecar *sl_plan_sidecar(const struct sl_plan *plan, uint32_t source)
{
    return plan->own->sidecars ? plan->own->sidecars[source] : NULL;
}

bool sl_plan_is_signed(const struct sl_spec *spec)
{
    return spec->verify.minisign.public_key || spec->verify.minisign.public_key_file;
}

bool sl_plan_matches(const struct sl_list *patterns, const char *name, bool empty_matches)
{
    if (patterns->count == 0)
        return empty_matches;
    for (size_t i = 0; i < patterns->count; i++)
        if (fnmatch(patterns->items[i], name, 0) == 0)
            return true;
    return false;
}

int sl_plan_add_check(struct sl_plan *plan, const struct sl_check *check, struct sl_err *err)
{
    if (sl_grow(&plan->checks, &plan->own->check_capacity, plan->check_count + 1,
                sizeof(*plan->checks), err) < 0)
        return -1;
    plan->checks[plan->check_count++] = *check;
    return 0;
}

int sl_plan_object_text(struct sl_plan *plan, const char *name, const char **what,
                        struct sl_err *err)
{
    struct sl_buf *texts = &plan->own->texts;
    *what = texts->data + texts->used;
    if (sl_buf_printf(texts, err, "object '%s'", name) < 0)
        return -1;
    texts->used++;
    return 0;
}

uint32_t sl_plan_whole_file(const struct sl_plan *plan, uint32_t source)
{
    uint32_t file = plan->mappings ? 0 : source;
    while (plan->mappings && file < plan->file_count &&
           strcmp(plan->files[file].name, plan->sources[source].name) != 0)
        file++;
    return file;
}

int sl_plan_read_text(struct sl_plan *plan, struct sl_source *source, struct sl_buf *text,
                      struct sl_err *err)
{
    uint64_t requests, bytes = sl_source_bytes(source);
    if (sl_grow(&text->data, &text->capacity, bytes + 1, 1, err) < 0 ||
        sl_source_read(source, 0, text->data, (size_t)bytes, err) < 0)
        return -1;
    text->used = (size_t)bytes;
    sl_source_counts(source, &requests, &bytes);
    plan->index_requests += requests;
    plan->index_bytes += bytes;
    return 0;
}

int sl_plan_add_bytes(uint64_t *sum, uint64_t bytes, const struct sl_plan *plan, struct sl_err *err)
{
    *sum = sl_add_capped(*sum, bytes);
    if (*sum <= SL_PLAN_BYTES_MAX)
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "size",
                        "'%s' would be more than 1 EiB, larger than any model: check the sizes "
                        "that the store and its files claim",
                        sl_plan_uri(plan));
}
