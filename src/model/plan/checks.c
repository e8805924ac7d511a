/*
 * Which hashes are checked. A tensor's own hash covers its header, as it was read when the index
 * was made, and its data. What a .tensors file holds beside that (file header, metadata) has no
 * hash in the format: it was read and cross-checked for the index, and `require` does not ask for
 * more. Meta tensors are left out: writers hash whatever memory they had.
 *
 * Of encrypted tensors every piece has a MAC, which is checked whatever the spec says and covers
 * its bytes; their hashes are over the plaintext, so only decrypted tensors can be hashed, and only
 * `all` asks for it. A slice cannot be hashed. What is cast is hashed before: CRC32 in any order,
 * SHA-256 (and all hashes of decrypted tensors, since a piece may come twice) in order, by one
 * reader.
 */
#include <inttypes.h>
#include <stdio.h>

#include "composed_reads.h"
#include "mapping.h"
#include "plan_parts.h"

/* The cheapest is CRC32. */
static const struct sl_index_hash *cheapest(const struct sl_tensor *tensor)
{
    const struct sl_index_hash *best = NULL;
    for (unsigned i = 0; i < tensor->hash_count; i++)
        if (!best || (best->sha256 && !tensor->hashes[i].sha256))
            best = &tensor->hashes[i];
    return best;
}

static const char *tensor_text(struct sl_index *index, const struct sl_tensor *tensor,
                               struct sl_err *err)
{
    const char *kind = tensor->part ? "entry" : "tensor";
    size_t bytes = tensor->name_bytes + strlen(kind) + sizeof(" ''");
    char *text = sl_index_alloc(index, bytes, err);
    if (text)
        snprintf(text, bytes, "%s '%s'", kind, tensor->name);
    return text;
}

/* Where the stored bytes of a tensor are and where they go. */
struct spot {
    const struct sl_tensor *tensor;
    struct sl_index *index;
    uint32_t source, file;
    uint64_t file_offset;
};

static int add_tensor_hash(struct sl_plan *plan, const struct spot *spot,
                           const struct sl_index_hash *hash, const char *what, struct sl_err *err)
{
    struct sl_check check = {
        .kind = hash->sha256 ? SL_HASH_SHA256 : SL_HASH_CRC32,
        .source = spot->source,
        .begin = spot->tensor->begin,
        .end = spot->tensor->end,
        .file = spot->file,
        .file_offset = spot->file_offset,
        .prefix = hash->prefix,
        .prefix_bytes = hash->prefix_bytes,
        .placed = plan->mappings != NULL,
        .what = what,
    };
    memcpy(check.expected, hash->expected, sizeof(hash->expected));
    return sl_plan_add_check(plan, &check, err);
}

/* `auto` and `require` take the cheapest, `all` all there are. */
static int add_tensor_hashes(struct sl_plan *plan, const struct spot *spot, struct sl_err *err)
{
    const struct sl_tensor *tensor = spot->tensor;
    const char *what = tensor_text(spot->index, tensor, err);
    if (!what)
        return -1;
    if (plan->own->spec->verify.hashes != SL_HASHES_ALL)
        return add_tensor_hash(plan, spot, cheapest(tensor), what, err);
    for (unsigned i = 0; i < tensor->hash_count; i++)
        if (add_tensor_hash(plan, spot, &tensor->hashes[i], what, err) < 0)
            return -1;
    return 0;
}

static bool has_hashes(const struct sl_plan *plan, const struct sl_tensor *tensor)
{
    return tensor->begin < tensor->end && !tensor->meta && tensor->hash_count &&
           plan->own->spec->verify.hashes != SL_HASHES_OFF;
}

/* Tensors may share their bytes, so the sum may be more than the object is. */
static void cover(struct sl_plan *plan, uint32_t source, uint64_t bytes)
{
    plan->own->covered[source] = sl_add_capped(plan->own->covered[source], bytes);
}

/* ---- layout verbatim: every tensor lies where it lay ----------------------------------------- */

static int check_index(struct sl_plan *plan, uint32_t first, struct sl_err *err)
{
    struct sl_index *index = plan->sources[first].index;
    for (size_t i = 0; i < index->tensor_count; i++) {
        const struct sl_tensor *tensor = &index->tensors[i];
        uint32_t source = first + tensor->source;
        struct spot spot = {tensor, index, source, source, tensor->begin};
        if (!has_hashes(plan, tensor) || tensor->encrypted)
            continue;
        if (sl_plan_sidecar(plan, source) && plan->own->spec->verify.hashes != SL_HASHES_ALL)
            continue; /* its ranges have hashes as cheap */
        cover(plan, source, tensor->end - tensor->begin);
        if (add_tensor_hashes(plan, &spot, err) < 0)
            return -1;
    }
    return 0;
}

static int check_indexes(struct sl_plan *plan, struct sl_err *err)
{
    for (uint32_t i = 0; i < plan->source_count; i++) {
        const struct sl_index *index = plan->sources[i].index;
        if (index && (i == 0 || plan->sources[i - 1].index != index) &&
            check_index(plan, i, err) < 0)
            return -1;
    }
    return 0;
}

/* ---- other layouts: targets ------------------------------------------------------------------ */

/* Hashes that verify cannot see in any order, or find again in what has landed. */
static void put_in_order(struct sl_plan *plan, struct sl_mapping *mapping)
{
    const struct sl_tensor *from = mapping->target->from;
    bool as_it_is = from->dtype == mapping->target->out.dtype && !mapping->swap_bytes;
    bool ordered = false;
    for (uint32_t i = 0; i < mapping->check_count && !as_it_is; i++)
        ordered = ordered || from->encrypted ||
                  plan->checks[mapping->check_first + i].kind == SL_HASH_SHA256;
    for (uint32_t i = 0; i < mapping->check_count; i++)
        plan->checks[mapping->check_first + i].ordered = ordered;
    mapping->ordered = ordered;
    if (ordered)
        mapping->unit = mapping->end - mapping->begin;
}

static int require_hash(const struct sl_plan *plan, const struct sl_mapping *mapping,
                        struct sl_err *err)
{
    const struct sl_tensor *from = mapping->target->from;
    if (plan->own->spec->verify.hashes != SL_HASHES_REQUIRE || from->encrypted ||
        (sl_plan_sidecar(plan, mapping->source) && !mapping->composed) ||
        sl_plan_proves_composed(plan, mapping) || mapping->check_count ||
        (from->begin >= from->end && !from->chunks) || from->meta || mapping->selected.total == 0)
        return 0;
    if (from->hash_count && mapping->composed)
        return sl_fail(err, SL_E_INTEGRITY,
                       "tensor '%s' is put together from bytes that lie in another order, so its "
                       "hash cannot be checked on the way, and verify.hashes is 'require': use "
                       "'auto', and `sluice verify` before",
                       from->name);
    if (from->hash_count)
        return sl_fail(err, SL_E_INTEGRITY,
                       "only a part of tensor '%s' is read, so its hash cannot be checked, and "
                       "verify.hashes is 'require': use 'auto'",
                       from->name);
    return sl_fail(err, SL_E_INTEGRITY,
                   "tensor '%s' of '%s' has %" PRIu64
                   " bytes without a hash, and verify.hashes is 'require': use 'auto', or "
                   "'layout: verbatim' with verify.sha256",
                   from->name, plan->sources[mapping->source].name, from->bytes);
}

static int check_target(struct sl_plan *plan, struct sl_mapping *mapping, struct sl_err *err)
{
    const struct sl_target *target = mapping->target;
    const struct sl_tensor *from = target->from;
    struct spot spot = {from, target->index, mapping->source, mapping->file, mapping->file_offset};
    bool whole = mapping->selected.total == from->bytes && !mapping->composed;
    if (whole && has_hashes(plan, from) &&
        (!from->encrypted || plan->own->spec->verify.hashes == SL_HASHES_ALL)) {
        mapping->check_first = (uint32_t)plan->check_count;
        if (add_tensor_hashes(plan, &spot, err) < 0)
            return -1;
        mapping->check_count = (uint32_t)plan->check_count - mapping->check_first;
        if (!from->encrypted)
            cover(plan, mapping->source, from->end - from->begin);
        put_in_order(plan, mapping);
    }
    return require_hash(plan, mapping, err);
}

static int check_targets(struct sl_plan *plan, struct sl_err *err)
{
    if (sl_plan_decide_composed(plan, err) < 0)
        return -1;
    for (size_t i = 0; i < plan->target_count; i++) {
        if (check_target(plan, &plan->mappings[i], err) < 0)
            return -1;
        if (!sl_plan_proves_composed(plan, &plan->mappings[i]))
            plan->unhashed_bytes =
                sl_add_capped(plan->unhashed_bytes, sl_mapping_composed(&plan->mappings[i]));
    }
    for (size_t i = 0; i < plan->extent_count; i++) {
        const struct sl_mapping *mapping = sl_extent_mapping(plan, &plan->extents[i]);
        if (mapping && mapping->piece_bytes)
            cover(plan, mapping->source, sl_extent_bytes(plan, &plan->extents[i]));
    }
    return 0;
}

/* ---- whole objects --------------------------------------------------------------------------- */

static int find_source(const struct sl_plan *plan, const char *name, uint32_t *source,
                       struct sl_err *err)
{
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (strcmp(plan->sources[i].name, name) == 0) {
            *source = i;
            return 0;
        }
    const char *nearest = plan->source_count ? plan->sources[0].name : NULL;
    return sl_fail(
        err, SL_E_USAGE,
        "verify.sha256 names '%s', which is not an object of this load (the first is '%s')", name,
        nearest ? nearest : "");
}

static int check_object(struct sl_plan *plan, const char *name, const char *hex, struct sl_err *err)
{
    struct sl_check check = {.kind = SL_HASH_SHA256, .given = true};
    if (sl_unhex(hex, check.expected, 32) < 0)
        return sl_fail(err, SL_E_USAGE, "verify.sha256 of '%s' is not 64 hex digits", name);
    if (find_source(plan, name, &check.source, err) < 0)
        return -1;
    const struct sl_plan_source *source = &plan->sources[check.source];
    if (source->index && plan->own->output.layout != SL_LAYOUT_VERBATIM)
        return sl_fail(err, SL_E_USAGE,
                       "verify.sha256 of '%s' needs the whole object, but only tensors of it are "
                       "read: use 'layout: verbatim'",
                       name);
    check.file = sl_plan_whole_file(plan, check.source);
    check.end = sl_source_bytes(source->source);
    plan->own->covered[check.source] = check.end;
    if (sl_plan_object_text(plan, name, &check.what, err) < 0)
        return -1;
    return sl_plan_add_check(plan, &check, err);
}

/* The texts must not move once checks point to them, so their room is made first. */
static int make_room(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_map *wanted = &plan->own->spec->verify.sha256;
    size_t bytes = 1;
    for (size_t i = 0; i < wanted->count; i++)
        bytes += strlen(wanted->keys[i]) + sizeof("object ''");
    size_t texts = 2 + sl_plan_is_signed(plan->own->spec) + sl_spec_is_signed(plan->own->spec);
    /* ranges or the store; samples; signatures */
    for (size_t i = 0; i < plan->source_count; i++)
        bytes += texts * (strlen(plan->sources[i].name) + sizeof("object ''")) +
                 sizeof("blob 18446744073709551615");
    plan->own->texts = (struct sl_buf)SL_BUF_INIT(bytes);
    return sl_grow(&plan->own->texts.data, &plan->own->texts.capacity, bytes + 1, 1, err);
}

static int check_objects(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_map *wanted = &plan->own->spec->verify.sha256;
    if (make_room(plan, err) < 0)
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
            data = sl_add_capped(data, tensor->end - tensor->begin);
    }
    data = SL_MIN(data, fetched);
    return data - SL_MIN(data, plan->own->covered[source]);
}

static int refuse_unhashed(const struct sl_plan *plan, uint32_t source, uint64_t missing,
                           struct sl_err *err)
{
    const char *advice = sl_store_advice(plan->own->store).hash_advice;
    return sl_fail(err, SL_E_INTEGRITY,
                   "'%s' has %" PRIu64
                   " bytes without a hash that can be checked, and verify.hashes is "
                   "'require': %s%sgive its SHA-256 in verify.sha256, make sidecars "
                   "(`sluice sign`) and set verify.sidecar to 'require', or use 'auto'",
                   plan->sources[source].name, missing, advice ? advice : "", advice ? ", " : "");
}

static int count_unhashed(struct sl_plan *plan, struct sl_err *err)
{
    sl_autofree uint64_t *fetched = sl_alloc_array(plan->source_count + 1, sizeof(*fetched), err);
    if (!fetched)
        return -1;
    for (size_t i = 0; i < plan->extent_count; i++)
        fetched[plan->extents[i].source] = sl_add_capped(fetched[plan->extents[i].source],
                                                         sl_extent_bytes(plan, &plan->extents[i]));
    for (uint32_t i = 0; i < plan->source_count; i++) {
        uint64_t missing = missing_bytes(plan, i, fetched[i]);
        plan->unhashed_bytes = sl_add_capped(
            plan->unhashed_bytes, fetched[i] - SL_MIN(fetched[i], plan->own->covered[i]));
        if (plan->own->spec->verify.hashes == SL_HASHES_REQUIRE && missing)
            return refuse_unhashed(plan, i, missing, err);
    }
    return 0;
}

uint64_t sl_plan_unhashed(const struct sl_plan *plan)
{
    uint64_t unhashed = plan->unhashed_bytes;
    for (uint32_t i = 0; i < plan->source_count && !plan->mappings && unhashed; i++) {
        const struct sl_source *source = plan->sources[i].source;
        if (sl_source_delivery(source) != SL_DELIVERY_CHECKED)
            continue;
        uint64_t bytes = sl_source_bytes(source);
        unhashed -= SL_MIN(unhashed, bytes - SL_MIN(bytes, plan->own->covered[i]));
    }
    return unhashed;
}

int sl_plan_check(struct sl_plan *plan, struct sl_err *err)
{
    plan->own->covered = sl_alloc_array(plan->source_count + 1, sizeof(*plan->own->covered), err);
    if (!plan->own->covered)
        return -1;
    int done = plan->mappings ? check_targets(plan, err) : check_indexes(plan, err);
    if (done < 0 || check_objects(plan, err) < 0 || sl_plan_check_signatures(plan, err) < 0 ||
        sl_plan_check_by_signature(plan, err) < 0 || sl_plan_check_stores(plan, err) < 0 ||
        sl_plan_check_ranges(plan, err) < 0)
        return -1;
    return count_unhashed(plan, err) < 0 ? -1 : sl_plan_judge_through(plan, err);
}
