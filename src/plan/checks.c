/*
 * Which hashes are checked. A tensor's own hash covers its header, as it was read when the index
 * was made, and its data. What a .tensors file holds beside that (file header, metadata) has no
 * hash in the format: it was read and cross-checked for the index, and `require` does not ask for
 * more. Meta tensors are left out: writers hash whatever memory they had. Encrypted ones too: their
 * hashes are over the plaintext.
 */
#include <inttypes.h>
#include <stdio.h>

#include "plan_parts.h"

static int add_check(struct sl_plan *plan, const struct sl_check *check, struct sl_err *err)
{
    if (sl_grow(&plan->checks, &plan->own->check_capacity, plan->check_count + 1,
                sizeof(*plan->checks), err) < 0)
        return -1;
    plan->checks[plan->check_count++] = *check;
    return 0;
}

/* The cheapest is CRC32. */
static const struct sl_index_hash *cheapest(const struct sl_tensor *tensor)
{
    const struct sl_index_hash *best = NULL;
    for (unsigned i = 0; i < tensor->hash_count; i++)
        if (!best || (best->sha256 && !tensor->hashes[i].sha256))
            best = &tensor->hashes[i];
    return best;
}

static int add_tensor_hash(struct sl_plan *plan, const struct sl_plan_tensor *place,
                           uint32_t source, const struct sl_index_hash *hash, const char *what,
                           struct sl_err *err)
{
    const struct sl_tensor *tensor = place->tensor;
    struct sl_check check = {
        .kind = hash->sha256 ? SL_HASH_SHA256 : SL_HASH_CRC32,
        .source = source,
        .begin = tensor->begin,
        .end = tensor->end,
        .file = place->file,
        .file_offset = place->file_offset,
        .prefix = hash->prefix,
        .prefix_bytes = hash->prefix_bytes,
        .what = what,
    };
    memcpy(check.expected, hash->expected, sizeof(check.expected));
    return add_check(plan, &check, err);
}

static const char *tensor_text(struct sl_index *index, const struct sl_tensor *tensor,
                               struct sl_err *err)
{
    size_t bytes = tensor->name_bytes + sizeof("tensor ''");
    char *text = sl_index_alloc(index, bytes, err);
    if (text)
        snprintf(text, bytes, "tensor '%s'", tensor->name);
    return text;
}

static int check_tensor(struct sl_plan *plan, const struct sl_plan_tensor *place, uint32_t first,
                        struct sl_index *index, struct sl_err *err)
{
    const struct sl_tensor *tensor = place->tensor;
    int mode = plan->own->spec->verify.hashes;
    if (tensor->begin >= tensor->end || tensor->meta || tensor->hash_count == 0 ||
        tensor->encrypted || mode == SL_HASHES_OFF)
        return 0;
    const char *what = tensor_text(index, tensor, err);
    if (!what)
        return -1;
    uint32_t source = first + tensor->source;
    plan->own->covered[source] += tensor->end - tensor->begin;
    if (mode != SL_HASHES_ALL)
        return add_tensor_hash(plan, place, source, cheapest(tensor), what, err);
    for (unsigned i = 0; i < tensor->hash_count; i++)
        if (add_tensor_hash(plan, place, source, &tensor->hashes[i], what, err) < 0)
            return -1;
    return 0;
}

/* Tensors lie in the arrays of their indexes: the one that holds this address is its index. */
static int find_index(const struct sl_plan *plan, const struct sl_tensor *tensor, uint32_t *first)
{
    for (uint32_t i = 0; i < plan->source_count; i++) {
        const struct sl_index *index = plan->sources[i].index;
        if (index && tensor >= index->tensors && tensor < index->tensors + index->tensor_count) {
            *first = i;
            return 0;
        }
    }
    return -1;
}

static int check_tensors(struct sl_plan *plan, struct sl_err *err)
{
    uint32_t first = 0;
    for (size_t i = 0; i < plan->tensor_count; i++) {
        const struct sl_plan_tensor *place = &plan->tensors[i];
        const struct sl_index *index = plan->sources[first].index;
        bool same = index && place->tensor >= index->tensors &&
                    place->tensor < index->tensors + index->tensor_count;
        if (!same && find_index(plan, place->tensor, &first) < 0)
            return sl_fail(err, SL_E_INTERNAL, "tensor '%s' has no index", place->tensor->name);
        if (check_tensor(plan, place, first, plan->sources[first].index, err) < 0)
            return -1;
    }
    return 0;
}

static int find_source(const struct sl_plan *plan, const char *name, uint32_t *source,
                       struct sl_err *err)
{
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (strcmp(plan->sources[i].name, name) == 0) {
            *source = i;
            return 0;
        }
    const char *nearest = plan->source_count ? plan->sources[0].name : NULL;
    return sl_fail(err, SL_E_USAGE,
                   "verify.sha256 names '%s', which is no object of this load (the first is '%s')",
                   name, nearest ? nearest : "");
}

static int check_object(struct sl_plan *plan, const char *name, const char *hex, struct sl_err *err)
{
    struct sl_check check = {.kind = SL_HASH_SHA256, .given = true};
    if (sl_unhex(hex, check.expected, 32) < 0)
        return sl_fail(err, SL_E_USAGE, "verify.sha256 of '%s' is not 64 hex digits", name);
    if (find_source(plan, name, &check.source, err) < 0)
        return -1;
    const struct sl_plan_source *source = &plan->sources[check.source];
    if (source->index && plan->own->spec->sink.tmpfs.layout != SL_LAYOUT_VERBATIM)
        return sl_fail(err, SL_E_USAGE,
                       "verify.sha256 of '%s' needs the whole object, but only tensors of it are "
                       "read: use 'layout: verbatim'",
                       name);
    for (check.file = 0; check.file < plan->file_count; check.file++)
        if (strcmp(plan->files[check.file].name, name) == 0)
            break;
    check.end = sl_source_bytes(source->source);
    plan->own->covered[check.source] = check.end;
    struct sl_buf *texts = &plan->own->texts;
    check.what = texts->data + texts->used;
    if (sl_buf_printf(texts, err, "object '%s'", name) < 0)
        return -1;
    texts->used++;
    return add_check(plan, &check, err);
}

/* The texts must not move once checks point to them, so their room is made first. */
static int check_objects(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_map *wanted = &plan->own->spec->verify.sha256;
    size_t bytes = 1;
    for (size_t i = 0; i < wanted->count; i++)
        bytes += strlen(wanted->keys[i]) + sizeof("object ''");
    plan->own->texts = (struct sl_buf)SL_BUF_INIT(bytes);
    if (wanted->count &&
        sl_grow(&plan->own->texts.data, &plan->own->texts.capacity, bytes + 1, 1, err) < 0)
        return -1;
    for (size_t i = 0; i < wanted->count; i++)
        if (check_object(plan, wanted->keys[i], wanted->values[i], err) < 0)
            return -1;
    return 0;
}

/* Bytes of a source that `require` wants hashed but no check covers. */
static uint64_t missing_bytes(const struct sl_plan *plan, uint32_t source, uint64_t fetched)
{
    const struct sl_plan_source *from = &plan->sources[source];
    if (!from->index || fetched < plan->own->covered[source])
        return fetched - SL_MIN(fetched, plan->own->covered[source]);
    uint64_t data = 0;
    uint32_t first = source;
    while (first && plan->sources[first - 1].index == from->index)
        first--;
    for (size_t t = 0; t < from->index->tensor_count; t++) {
        const struct sl_tensor *tensor = &from->index->tensors[t];
        if (first + tensor->source == source)
            data += tensor->end - tensor->begin;
    }
    data = SL_MIN(data, fetched);
    return data - SL_MIN(data, plan->own->covered[source]);
}

static int count_unhashed(struct sl_plan *plan, struct sl_err *err)
{
    sl_autofree uint64_t *fetched = sl_alloc_array(plan->source_count + 1, sizeof(*fetched), err);
    if (!fetched)
        return -1;
    for (size_t i = 0; i < plan->extent_count; i++)
        fetched[plan->extents[i].source] += plan->extents[i].end - plan->extents[i].begin;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        uint64_t missing = missing_bytes(plan, i, fetched[i]);
        plan->unhashed_bytes += fetched[i] - SL_MIN(fetched[i], plan->own->covered[i]);
        if (plan->own->spec->verify.hashes == SL_HASHES_REQUIRE && missing)
            return sl_fail(
                err, SL_E_INTEGRITY,
                "'%s' has %" PRIu64
                " bytes without a hash, and verify.hashes is 'require': give its SHA-256 "
                "in verify.sha256, or use 'auto'",
                plan->sources[i].name, missing);
    }
    return 0;
}

int sl_plan_check(struct sl_plan *plan, struct sl_err *err)
{
    plan->own->covered = sl_alloc_array(plan->source_count + 1, sizeof(*plan->own->covered), err);
    if (!plan->own->covered)
        return -1;
    if (check_tensors(plan, err) < 0 || check_objects(plan, err) < 0)
        return -1;
    return count_unhashed(plan, err);
}
