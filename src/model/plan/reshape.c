/*
 * What a target is like once it is cut and cast: shape, bytes and type of `out`, and the slice to
 * take. A cut is made before a cast, so its borders are those of stored elements: parts of packed
 * types (several elements in a byte or a block) must be whole bytes, or whole blocks.
 *
 * A slice takes a KiB, and models repeat a few shapes in every layer, so tensors that are cut alike
 * share one.
 */
#include <fnmatch.h>
#include <inttypes.h>

#include "cast.h"
#include "log.h"
#include "plan_parts.h"

enum { SHARED_MAX = 64 };

struct sl_reshaping {
    const struct sl_spec_tensors *wanted;
    enum sl_dtype casts[SL_DTYPE_COUNT]; /* SL_DTYPE_NONE: stays */
    uint64_t cast_used[SL_DTYPE_COUNT];
    uint64_t *rule_used; /* of the shard's rules */
    struct {
        const struct sl_slice *slice;
        unsigned rank;
    } shared[SHARED_MAX]; /* the last ones */
    size_t shared_count;
};

void sl_reshaping_free(struct sl_reshaping *reshaping)
{
    if (!reshaping)
        return;
    free(reshaping->rule_used);
    free(reshaping);
}

struct sl_reshaping *sl_reshaping_new(const struct sl_spec_tensors *wanted, struct sl_err *err)
{
    SL_AUTO(sl_reshaping) reshaping = sl_alloc(sizeof(*reshaping), err);
    if (!reshaping)
        return NULL;
    reshaping->wanted = wanted;
    reshaping->rule_used =
        sl_alloc_array(wanted->shard.rules.count, sizeof(*reshaping->rule_used), err);
    if (!reshaping->rule_used)
        return NULL;
    for (size_t i = 0; i < wanted->cast.count; i++) {
        const char *from = wanted->cast.keys[i], *to = wanted->cast.values[i];
        enum sl_dtype from_type = sl_dtype_by_name(from, (unsigned)strlen(from)),
                      to_type = sl_dtype_by_name(to, (unsigned)strlen(to));
        if (!sl_cast_offered(from_type, to_type)) {
            sl_fail(err, SL_E_USAGE, "tensors.cast: '%s' cannot be cast to '%s'", from, to);
            return NULL;
        }
        reshaping->casts[from_type] = to_type;
    }
    return sl_steal(&reshaping);
}

/* ---- cut --------------------------------------------------------------------------------------
 */

static const struct sl_spec_shard_rule *find_rule(struct sl_reshaping *reshaping, const char *name)
{
    const struct sl_spec_shard *shard = &reshaping->wanted->shard;
    const struct sl_spec_shard_rule *rules = shard->rules.items;
    for (size_t i = 0; i < shard->rules.count; i++)
        if (fnmatch(rules[i].match, name, 0) == 0) {
            reshaping->rule_used[i]++;
            return &rules[i];
        }
    return NULL;
}

static int check_cut(const struct sl_tensor *tensor, uint64_t dim, uint64_t parts,
                     struct sl_err *err)
{
    const struct sl_dtype_row *row = sl_dtype_row(tensor->dtype);
    if (dim >= tensor->rank)
        return sl_fail(err, SL_E_USAGE,
                       "tensors.shard: tensor '%s' has %u dimensions, so there is no dimension "
                       "%" PRIu64 " to cut",
                       tensor->name, tensor->rank, dim);
    uint64_t size = tensor->shape[dim];
    if (size % parts)
        return sl_fail(err, SL_E_USAGE,
                       "tensors.shard: dimension %" PRIu64 " of tensor '%s' has size %" PRIu64
                       ", which cannot be cut into %" PRIu64 " equal parts",
                       dim, tensor->name, size, parts);
    uint64_t run = size / parts; /* elements that lie together in one part */
    for (unsigned i = (unsigned)dim + 1; i < tensor->rank; i++)
        run *= tensor->shape[i]; /* the whole tensor has a size, so no part overflows */
    if (row->block > 1 ? dim + 1 == tensor->rank && (size / parts) % row->block
                       : run % 8 * row->bits % 8)
        return sl_fail(err, SL_E_USAGE,
                       "tensors.shard: dimension %" PRIu64 " of tensor '%s' (%s, size %" PRIu64
                       ") cut into %" PRIu64 " parts would split %s: cut another dimension",
                       dim, tensor->name, tensor->dtype_name, size, parts,
                       row->block > 1 ? "its blocks" : "bytes");
    return 0;
}

static bool same_slice(const struct sl_slice *a, const struct sl_slice *b, unsigned rank)
{
    return memcmp(a->begin, b->begin, rank * sizeof(*a->begin)) == 0 &&
           memcmp(a->end, b->end, rank * sizeof(*a->end)) == 0;
}

static const struct sl_slice *keep_slice(struct sl_reshaping *reshaping, struct sl_index *index,
                                         const struct sl_slice *slice, unsigned rank,
                                         struct sl_err *err)
{
    size_t known = SL_MIN(reshaping->shared_count, (size_t)SHARED_MAX);
    for (size_t i = 0; i < known; i++)
        if (reshaping->shared[i].rank == rank &&
            same_slice(reshaping->shared[i].slice, slice, rank))
            return reshaping->shared[i].slice;
    struct sl_slice *kept = sl_index_alloc(index, sizeof(*kept), err);
    if (!kept)
        return NULL;
    *kept = *slice;
    size_t at = reshaping->shared_count++ % SHARED_MAX;
    reshaping->shared[at].slice = kept;
    reshaping->shared[at].rank = rank;
    return kept;
}

static int cut(struct sl_reshaping *reshaping, struct sl_target *target, struct sl_err *err)
{
    const struct sl_spec_shard *shard = &reshaping->wanted->shard;
    struct sl_tensor *out = &target->out;
    const struct sl_spec_shard_rule *rule = find_rule(reshaping, out->name);
    if (!rule && shard->others == SL_OTHERS_REFUSE)
        return sl_fail(err, SL_E_USAGE,
                       "no rule says how tensor '%s' is cut: add one with its dimension, or with "
                       "'whole: true'",
                       out->name);
    if (!rule || rule->whole || shard->of < 2)
        return 0;
    if (check_cut(out, rule->dim, shard->of, err) < 0)
        return -1;
    uint64_t part = out->shape[rule->dim] / shard->of;
    struct sl_slice slice = {0};
    uint64_t *shape = sl_index_alloc(target->index, out->rank * sizeof(*shape), err);
    if (!shape)
        return -1;
    for (unsigned i = 0; i < out->rank; i++)
        slice.end[i] = shape[i] = out->shape[i];
    slice.begin[rule->dim] = shard->rank * part;
    slice.end[rule->dim] = slice.begin[rule->dim] + part;
    shape[rule->dim] = part;
    target->slice = keep_slice(reshaping, target->index, &slice, out->rank, err);
    out->shape = shape;
    out->bytes /= shard->of;
    return target->slice ? 0 : -1;
}

/* ---- cast -------------------------------------------------------------------------------------
 */

static int cast(struct sl_reshaping *reshaping, struct sl_target *target, struct sl_err *err)
{
    struct sl_tensor *out = &target->out;
    enum sl_dtype to = reshaping->casts[out->dtype];
    reshaping->cast_used[out->dtype]++;
    if (to == SL_DTYPE_NONE || to == out->dtype)
        return 0;
    uint64_t elements = out->bytes / (sl_dtype_row(out->dtype)->bits / 8);
    if (__builtin_mul_overflow(elements, sl_dtype_row(to)->bits / 8, &out->bytes) ||
        out->bytes > INT64_MAX)
        return sl_fail(err, SL_E_FORMAT, "tensor '%s' would be too large as %s", out->name,
                       sl_dtype_row(to)->name);
    target->overflow = reshaping->wanted->cast_overflow;
    out->dtype = to;
    out->dtype_name = sl_dtype_row(to)->name;
    return 0;
}

int sl_reshape(struct sl_reshaping *reshaping, struct sl_target *target, struct sl_err *err)
{
    return cut(reshaping, target, err) < 0 ? -1 : cast(reshaping, target, err);
}

void sl_reshaping_warn(const struct sl_reshaping *reshaping)
{
    const struct sl_spec_shard *shard = &reshaping->wanted->shard;
    const struct sl_spec_shard_rule *rules = shard->rules.items;
    for (size_t i = 0; i < shard->rules.count; i++)
        if (!reshaping->rule_used[i] && shard->others == SL_OTHERS_WHOLE)
            sl_log(
                SL_LOG_WARN,
                "tensors.shard: '%s' is not a tensor's rule: it matches none, or rules before it "
                "match the same",
                rules[i].match);
    for (int type = 0; type < SL_DTYPE_COUNT; type++)
        if (reshaping->casts[type] && !reshaping->cast_used[type])
            sl_log(SL_LOG_WARN, "tensors.cast: no tensor is of type %s",
                   sl_dtype_row((enum sl_dtype)type)->name);
}
