/*
 * The identity of a plan covers the store, every version, extents before they are cut, files,
 * literals and checks, but not the sizes of ranges or the number of connections: a load may resume
 * with others, and may not take over what was checked less.
 *
 * The identity of a file says the same of one file, whichever plan it is in and whatever its name:
 * which objects, what of them, what becomes of it, by which checks. It decides alone whether a
 * version may take over a file of another one. An object is named by a hash of its bytes that the
 * load checks, or else by its URI and its version, as its store tells it. Hashes of ranges are its
 * name only where they cover all that is read of it: the rest may be another's beside an old
 * sidecar. One that neither names (a weak ETag, a URL with a query) is like no other, and so is
 * every file with bytes of it.
 */
#include "hash.h"
#include "mapping.h"
#include "plan_parts.h"
#include "sidecar.h"
#include "version.h"

static void mix_number(struct sl_sha256 *sha, uint64_t value)
{
    uint8_t bytes[8];
    sl_put_le64(bytes, value);
    sl_sha256_update(sha, bytes, sizeof(bytes));
}

/* With its NUL, so that neighbours cannot flow into each other. */
static void mix_text(struct sl_sha256 *sha, const char *text)
{
    sl_sha256_update(sha, text, strlen(text) + 1);
}

static void mix_sources(struct sl_sha256 *sha, const struct sl_plan *plan)
{
    mix_number(sha, plan->source_count);
    for (size_t i = 0; i < plan->source_count; i++) {
        const struct sl_plan_source *source = &plan->sources[i];
        const struct sl_version *version = sl_source_version(source->source);
        const struct sl_sidecar *sidecar = sl_plan_sidecar(plan, (uint32_t)i);
        mix_text(sha, source->name);
        mix_number(sha, sl_source_bytes(source->source));
        mix_number(sha, source->version);
        if (sidecar) /* the checks may be of its CRCs alone */
            sl_sha256_update(sha, sidecar->tree, sizeof(sidecar->tree));
        if (source->version == SL_PLAN_VERSION_HASH)
            continue; /* it stands among the checks, and what the store says counts for nothing */
        mix_text(sha, version->etag);
        mix_text(sha, version->version_id);
        mix_text(sha, version->last_modified);
        if (version->pin[0])
            mix_text(sha, version->pin);
    }
    sl_sha256_update(sha, plan->own->nonce, sizeof(plan->own->nonce));
}

static void mix_destination(struct sl_sha256 *sha, const struct sl_plan *plan)
{
    mix_number(sha, plan->file_count);
    for (size_t i = 0; i < plan->file_count; i++) {
        mix_text(sha, plan->files[i].name);
        mix_number(sha, plan->files[i].bytes);
    }
    mix_number(sha, plan->extent_count);
    for (size_t i = 0; i < plan->extent_count; i++) {
        const struct sl_extent *extent = &plan->extents[i];
        mix_number(sha, extent->source);
        mix_number(sha, extent->begin);
        mix_number(sha, extent->end);
        mix_number(sha, extent->file);
        mix_number(sha, extent->file_offset);
    }
    mix_number(sha, plan->literal_count);
    for (size_t i = 0; i < plan->literal_count; i++) {
        mix_number(sha, plan->literals[i].file);
        mix_number(sha, plan->literals[i].bytes);
        sl_sha256_update(sha, plan->literals[i].data, plan->literals[i].bytes);
    }
    for (size_t i = 0; i < plan->deferred_header_count; i++)
        sl_sha256_update(sha, plan->deferred_headers[i].header->prefix,
                         plan->deferred_headers[i].header->prefix_bytes);
}

static bool is_plain(const struct sl_plan *plan, size_t target)
{
    const struct sl_mapping *mapping = &plan->mappings[target];
    return !mapping->changes && !plan->targets[target].slice && !mapping->composed;
}

static void mix_chunk(struct sl_sha256 *sha, const struct sl_tensor_chunk *chunk)
{
    const struct sl_tensor *tensor = &chunk->tensor;
    mix_number(sha, tensor->begin);
    mix_number(sha, tensor->swap_bytes);
    for (unsigned d = 0; d < tensor->rank; d++) {
        mix_number(sha, chunk->at[d]);
        mix_number(sha, tensor->shape[d]);
        mix_number(sha, tensor->strides ? tensor->strides[d] : 0);
    }
}

/* file, source: of what the plan says; a file's own identity says them otherwise, as it does those
 * of chunks. */
static void mix_target(struct sl_sha256 *sha, const struct sl_plan *plan, size_t number,
                       uint32_t file, uint32_t source)
{
    const struct sl_target *target = &plan->targets[number];
    const struct sl_tensor *from = target->from;
    mix_number(sha, from->encrypted);
    mix_number(sha, from->swap_bytes);
    mix_number(sha, file);
    mix_number(sha, plan->mappings[number].file_offset);
    mix_number(sha, source);
    mix_number(sha, from->begin);
    mix_text(sha, from->dtype_name);
    mix_number(sha, (uint64_t)target->overflow);
    for (unsigned d = 0; from->strides && d < from->rank; d++)
        mix_number(sha, from->strides[d]);
    for (size_t i = 0; i < from->chunk_count; i++)
        mix_chunk(sha, &from->chunks[i]);
    for (unsigned d = 0; target->slice && d < from->rank; d++) {
        mix_number(sha, target->slice->begin[d]);
        mix_number(sha, target->slice->end[d]);
    }
}

/* The object of a chunk, as the plan counts them: those of an index follow each other. */
static uint32_t source_of_chunk(const struct sl_target *target, size_t chunk)
{
    return target->source - target->from->source + target->from->chunks[chunk].tensor.source;
}

/* What becomes of stored bytes; names, types and shapes are in the headers already. Keys are not:
 * bytes that a wrong one gives never land. */
static void mix_targets(struct sl_sha256 *sha, const struct sl_plan *plan)
{
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++) {
        if (is_plain(plan, i))
            continue; /* its extents say all */
        mix_number(sha, i);
        const struct sl_target *target = &plan->targets[i];
        mix_target(sha, plan, i, plan->mappings[i].file, target->source);
        for (size_t chunk = 0; chunk < target->from->chunk_count; chunk++)
            mix_number(sha, source_of_chunk(target, chunk));
    }
}

/* What the pool's index tells beside the slabs: no header has it. */
static void mix_index(struct sl_sha256 *sha, const struct sl_plan *plan)
{
    if (plan->own->output.layout != SL_LAYOUT_SLABS)
        return;
    for (size_t i = 0; i < plan->target_count; i++) {
        const struct sl_tensor *out = &plan->targets[i].out;
        mix_number(sha, out->name_bytes);
        sl_sha256_update(sha, out->name, out->name_bytes);
        mix_text(sha, out->dtype_name);
        mix_number(sha, out->rank);
        for (unsigned d = 0; d < out->rank; d++)
            mix_number(sha, out->shape[d]);
    }
    mix_number(sha, plan->metadata_count);
    for (size_t i = 0; i < plan->metadata_count; i++) {
        mix_text(sha, plan->metadata[i].key);
        mix_text(sha, plan->metadata[i].value);
    }
}

static void mix_check(struct sl_sha256 *sha, const struct sl_check *check, uint32_t source)
{
    mix_number(sha, check->kind);
    mix_number(sha, source);
    mix_number(sha, check->begin);
    mix_number(sha, check->end);
    sl_sha256_update(sha, check->expected, sl_hash_bytes(check->kind));
}

static void mix_checks(struct sl_sha256 *sha, const struct sl_plan *plan)
{
    mix_number(sha, plan->check_count);
    for (size_t i = 0; i < plan->check_count; i++) {
        const struct sl_check *check = &plan->checks[i];
        if (!check->sample) /* that they are there is in the count */
            mix_check(sha, check, check->source);
    }
}

static int identify_all(struct sl_plan *plan, struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    mix_text(sha, "sluice plan 2");
    mix_text(sha, sl_store_uri(plan->own->store));
    const struct sl_signed_by signed_by = sl_plan_signed_by(plan);
    if (*signed_by.by) { /* what is published says who signed it */
        mix_text(sha, "signed");
        mix_text(sha, signed_by.by);
    }
    mix_sources(sha, plan);
    mix_destination(sha, plan);
    mix_targets(sha, plan);
    mix_index(sha, plan);
    mix_checks(sha, plan);
    sl_sha256_finish(sha, plan->identity);
    return 0;
}

/* ---- files ---------------------------------------------------------------------------------- */

struct object_name {
    bool known;
    uint8_t name[32];
};

/* May equal hashes of this kind stand for equal bytes? A CRC is a number that others have, too. */
static bool is_name(const struct sl_check *check)
{
    bool git = check->kind == SL_HASH_SHA1; /* its prefix says the length */
    return (git || !check->prefix_bytes) &&
           (git || check->kind == SL_HASH_SHA256 || check->kind == SL_HASH_MD5);
}

/* Of each source: the hash of all of it that is checked and names it, a SHA-256 before others;
 * NULL: none is. free() it. */
static const struct sl_check **find_digests(const struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_check **digests = sl_alloc_array(plan->source_count + 1, sizeof(*digests), err);
    for (size_t i = 0; digests && i < plan->check_count; i++) {
        const struct sl_check *check = &plan->checks[i];
        const struct sl_check **known = &digests[check->source];
        if (is_name(check) && !check->begin && !check->sample &&
            check->end == sl_source_bytes(plan->sources[check->source].source) &&
            (!*known || (*known)->kind != SL_HASH_SHA256))
            *known = check;
    }
    return digests;
}

static int name_object(const struct sl_plan *plan, uint32_t number, const struct sl_check *digest,
                       struct object_name *object, struct sl_err *err)
{
    const struct sl_plan_source *source = &plan->sources[number];
    const struct sl_sidecar *sidecar = source->pinned ? sl_plan_sidecar(plan, number) : NULL;
    uint8_t version[32];
    int named = source->version == SL_PLAN_VERSION_STORE
                    ? sl_version_name(source->source, version, err)
                    : 0;
    SL_AUTO(sl_sha256) sha = named < 0 ? NULL : sl_sha256_new(err);
    if (!sha)
        return -1;
    mix_number(sha, sl_source_bytes(source->source));
    object->known = digest || sidecar || named;
    if (digest) {
        mix_text(sha, sl_hash_name(digest->kind));
        sl_sha256_update(sha, digest->expected, sl_hash_bytes(digest->kind));
    } else if (sidecar) {
        mix_text(sha, "tree");
        sl_sha256_update(sha, sidecar->tree, sizeof(sidecar->tree));
    } else if (named) {
        mix_text(sha, "version");
        sl_sha256_update(sha, version, sizeof(version));
    }
    sl_sha256_finish(sha, object->name);
    return 0;
}

static struct object_name *name_objects(const struct sl_plan *plan, struct sl_err *err)
{
    sl_autofree const struct sl_check **digests = find_digests(plan, err);
    sl_autofree struct object_name *names =
        digests ? sl_alloc_array(plan->source_count + 1, sizeof(*names), err) : NULL;
    for (uint32_t i = 0; names && i < plan->source_count; i++)
        if (name_object(plan, i, digests[i], &names[i], err) < 0)
            return NULL;
    return sl_steal(&names);
}

/* What a file is made of. */
enum part { PART_EXTENT, PART_LITERAL, PART_HEADER, PART_TARGET, PART_CHECK, PARTS };

static size_t count_parts(const struct sl_plan *plan, enum part part)
{
    const size_t counts[PARTS] = {
        [PART_EXTENT] = plan->extent_count,
        [PART_LITERAL] = plan->literal_count,
        [PART_HEADER] = plan->deferred_header_count,
        [PART_TARGET] = plan->mappings ? plan->target_count : 0,
        [PART_CHECK] = plan->check_count,
    };
    return counts[part];
}

static uint32_t file_of(const struct sl_plan *plan, enum part part, size_t number)
{
    return part == PART_EXTENT    ? plan->extents[number].file
           : part == PART_LITERAL ? plan->literals[number].file
           : part == PART_HEADER  ? plan->deferred_headers[number].file
           : part == PART_TARGET  ? plan->mappings[number].file
                                  : plan->checks[number].file;
}

/* Chains of the parts of each file, in their order: number + 1, or 0 at the end. */
struct chains {
    uint32_t *first[PARTS], *next[PARTS];
};

static void release_chains(struct chains *chains)
{
    for (int i = 0; i < PARTS; i++) {
        free(chains->first[i]);
        free(chains->next[i]);
    }
}

static int make_chains(const struct sl_plan *plan, struct chains *chains, struct sl_err *err)
{
    for (int i = 0; i < PARTS; i++) {
        size_t count = count_parts(plan, (enum part)i);
        chains->first[i] = sl_alloc_array(plan->file_count + 1, sizeof(uint32_t), err);
        chains->next[i] = sl_alloc_array(count + 1, sizeof(uint32_t), err);
        if (!chains->first[i] || !chains->next[i])
            return -1;
        while (count-- > 0) {
            uint32_t file = file_of(plan, (enum part)i, count);
            chains->next[i][count] = chains->first[i][file];
            chains->first[i][file] = (uint32_t)count + 1;
        }
    }
    return 0;
}

/* true: it is of an object that has a name. */
static bool mix_object(struct sl_sha256 *sha, const struct object_name *object)
{
    sl_sha256_update(sha, object->name, sizeof(object->name));
    return object->known;
}

static bool mix_extent(struct sl_sha256 *sha, const struct sl_extent *extent,
                       const struct object_name *names)
{
    mix_number(sha, extent->begin);
    mix_number(sha, extent->end);
    mix_number(sha, extent->file_offset);
    return mix_object(sha, &names[extent->source]);
}

static bool mix_literal(struct sl_sha256 *sha, const struct sl_literal *literal)
{
    mix_number(sha, literal->file_offset);
    mix_number(sha, literal->bytes);
    sl_sha256_update(sha, literal->data, literal->bytes);
    return true;
}

static bool mix_header(struct sl_sha256 *sha, const struct sl_deferred_header *header)
{
    sl_sha256_update(sha, header->header->prefix, header->header->prefix_bytes);
    return true;
}

static bool mix_file_target(struct sl_sha256 *sha, const struct sl_plan *plan, size_t number,
                            const struct object_name *names)
{
    if (is_plain(plan, number))
        return true;
    const struct sl_target *target = &plan->targets[number];
    mix_target(sha, plan, number, 0, 0);
    bool known = mix_object(sha, &names[target->source]);
    for (size_t i = 0; i < target->from->chunk_count; i++)
        known = mix_object(sha, &names[source_of_chunk(target, i)]) && known;
    return known;
}

static bool mix_file_check(struct sl_sha256 *sha, const struct sl_check *check,
                           const struct object_name *names)
{
    mix_number(sha, check->sample);
    if (!check->sample)
        mix_check(sha, check, 0);
    return mix_object(sha, &names[check->source]);
}

/* false: bytes of an object without a name go into it. */
static bool mix_part(struct sl_sha256 *sha, const struct sl_plan *plan,
                     const struct object_name *names, enum part part, size_t number)
{
    switch (part) {
    case PART_EXTENT:
        return mix_extent(sha, &plan->extents[number], names);
    case PART_LITERAL:
        return mix_literal(sha, &plan->literals[number]);
    case PART_HEADER:
        return mix_header(sha, &plan->deferred_headers[number]);
    case PART_TARGET:
        return mix_file_target(sha, plan, number, names);
    default:
        return mix_file_check(sha, &plan->checks[number], names);
    }
}

/* With a count behind each chain, so that neighbours cannot flow into each other. */
static int identify_file(struct sl_plan *plan, uint32_t number, const struct object_name *names,
                         const struct chains *chains, struct sl_err *err)
{
    struct sl_plan_file *file = &plan->files[number];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    mix_text(sha, "sluice file 1");
    mix_number(sha, file->bytes);
    file->identified = chains->first[PART_EXTENT][number] || chains->first[PART_TARGET][number];
    for (int i = 0; i < PARTS; i++) {
        uint64_t count = 0;
        for (uint32_t at = chains->first[i][number]; at; at = chains->next[i][at - 1], count++)
            if (!mix_part(sha, plan, names, (enum part)i, at - 1))
                file->identified = false;
        mix_number(sha, count);
    }
    sl_sha256_finish(sha, file->identity);
    return 0;
}

static int identify_files(struct sl_plan *plan, struct sl_err *err)
{
    __attribute__((cleanup(release_chains))) struct chains chains = {.first = {NULL}};
    sl_autofree struct object_name *names = name_objects(plan, err);
    if (!names || make_chains(plan, &chains, err) < 0)
        return -1;
    for (uint32_t i = 0; i < plan->file_count; i++)
        if (identify_file(plan, i, names, &chains, err) < 0)
            return -1;
    return 0;
}

int sl_plan_identify(struct sl_plan *plan, struct sl_err *err)
{
    if (identify_all(plan, err) < 0)
        return -1;
    bool files = plan->file_count && plan->own->output.layout != SL_LAYOUT_SLABS;
    return files ? identify_files(plan, err) : 0;
}
