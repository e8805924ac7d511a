/*
 * A slice of a row-major tensor is a set of equally long runs: the innermost dimensions that are
 * taken whole, and the range in front of them, lie together; all dimensions before those count the
 * runs off like an odometer. Runs are fetched in batches, neighbours with small gaps in one
 * request, and hashed in order.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "gather.h"
#include "hash.h"
#include "index.h"
#include "names.h"
#include "strided.h"

enum { BATCH_BYTES = 4 * 1024 * 1024, BATCH_RUNS = 16384 };

size_t sl_slice_name_bytes(const char *text)
{
    size_t bytes = strlen(text);
    const char *bracket = strrchr(text, '[');
    return bracket && bytes && text[bytes - 1] == ']' ? (size_t)(bracket - text) : bytes;
}

/* ---- parsing --------------------------------------------------------------------------------- */

static int slice_fail(const char *text, const char *why, struct sl_err *err)
{
    return sl_fail(err, SL_E_USAGE, "no slice '%.300s': %s; write 'NAME[0:4,:,2:]'", text, why);
}

/* A number at *at, or `otherwise` if there is none. */
static int take_number(const char **at, uint64_t otherwise, uint64_t *value)
{
    *value = otherwise;
    if (!isdigit((unsigned char)**at))
        return 0;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(*at, &end, 10);
    *at = end;
    *value = number;
    return errno ? -1 : 1;
}

static int take_range(const char **at, uint64_t size, uint64_t *begin, uint64_t *end)
{
    while (**at == ' ')
        ++*at;
    int begin_given = take_number(at, 0, begin), end_given = 0;
    if (**at == ':') {
        ++*at;
        end_given = take_number(at, size, end);
    } else if (begin_given == 1) {
        *end = *begin == UINT64_MAX ? *begin : *begin + 1;
    } else {
        return -1;
    }
    while (**at == ' ')
        ++*at;
    return begin_given < 0 || end_given < 0 ? -1 : 0;
}

static int out_of_range(const char *text, const struct sl_tensor *tensor, unsigned dimension,
                        struct sl_err *err)
{
    if (dimension >= tensor->rank)
        return sl_fail_code(err, SL_E_FORMAT, "st.slice",
                            "slice '%.300s' has more ranges than the tensor has dimensions (%u)",
                            text, tensor->rank);
    return sl_fail_code(err, SL_E_FORMAT, "st.slice",
                        "slice '%.300s' leaves dimension %u of size %" PRIu64, text, dimension,
                        tensor->shape[dimension]);
}

int sl_slice_parse(const char *text, const struct sl_tensor *tensor, struct sl_slice *slice,
                   struct sl_err *err)
{
    if (tensor->rank > SL_SLICE_RANK_MAX)
        return sl_fail_code(
            err, SL_E_FORMAT, "st.slice",
            "slice '%.300s': the tensor has %u dimensions, at most 64 can be sliced", text,
            tensor->rank);
    for (unsigned i = 0; i < tensor->rank; i++) {
        slice->begin[i] = 0;
        slice->end[i] = tensor->shape[i];
    }
    const char *at = text + sl_slice_name_bytes(text);
    if (*at != '[')
        return slice_fail(text, "it has no [ranges] at the end", err);
    at++;
    for (unsigned i = 0; *at != ']'; i++) {
        uint64_t begin, end;
        if (i >= tensor->rank)
            return out_of_range(text, tensor, i, err);
        if (take_range(&at, tensor->shape[i], &begin, &end) < 0 || (*at != ',' && *at != ']'))
            return slice_fail(text, "a range is no 'a:b', 'a:', ':b', ':' or 'a'", err);
        bool whole = begin == 0 && end == tensor->shape[i]; /* also of an empty dimension */
        if (begin > end || end > tensor->shape[i] || (begin >= tensor->shape[i] && !whole))
            return out_of_range(text, tensor, i, err);
        slice->begin[i] = begin;
        slice->end[i] = end;
        at += *at == ',';
    }
    return 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The runs of a slice, in bits of the tensor's data. */
struct runs {
    const struct sl_tensor *tensor;
    const struct sl_slice *slice;
    unsigned outer; /* dimensions that count runs */
    bool cuts_block;
    uint64_t run_bits, count, next;
    uint64_t stride_bits[SL_SLICE_RANK_MAX];
    uint64_t first_bits;            /* of the innermost range */
    uint64_t at[SL_SLICE_RANK_MAX]; /* the odometer */
};

static uint64_t width(const struct sl_slice *slice, unsigned dimension)
{
    return slice->end[dimension] - slice->begin[dimension];
}

/* Elements of a dimension that cannot be parted: quantised types lie in blocks along the last. */
static uint64_t unit(const struct sl_tensor *tensor, unsigned dimension)
{
    return dimension + 1 == tensor->rank ? sl_dtype_row(tensor->dtype)->block : 1;
}

static void plan_runs(struct runs *runs, const struct sl_tensor *tensor,
                      const struct sl_slice *slice)
{
    memset(runs, 0, sizeof(*runs));
    runs->tensor = tensor;
    runs->slice = slice;
    uint64_t stride = sl_dtype_row(tensor->dtype)->bits;
    for (unsigned i = tensor->rank; i-- > 0;) {
        runs->stride_bits[i] = stride;
        stride *= tensor->shape[i] / unit(tensor, i);
    }
    unsigned cut = tensor->rank; /* dimensions from cut on are whole */
    while (cut > 0 && width(slice, cut - 1) == tensor->shape[cut - 1])
        cut--;
    runs->outer = cut > 0 ? cut - 1 : 0;
    runs->run_bits = stride;
    if (cut > 0) {
        uint64_t block = unit(tensor, cut - 1);
        runs->run_bits = width(slice, cut - 1) / block * runs->stride_bits[cut - 1];
        runs->first_bits = slice->begin[cut - 1] / block * runs->stride_bits[cut - 1];
        runs->cuts_block = slice->begin[cut - 1] % block || slice->end[cut - 1] % block;
    }
    runs->count = runs->run_bits ? 1 : 0;
    for (unsigned i = 0; i < runs->outer; i++) {
        runs->count *= width(slice, i);
        runs->at[i] = slice->begin[i];
    }
}

static uint64_t run_begin_bits(const struct runs *runs)
{
    uint64_t bits = runs->first_bits;
    for (unsigned i = 0; i < runs->outer; i++)
        bits += runs->at[i] * runs->stride_bits[i];
    return bits;
}

static void step(struct runs *runs)
{
    runs->next++;
    for (unsigned i = runs->outer; i-- > 0;) {
        if (++runs->at[i] < runs->slice->end[i])
            return;
        runs->at[i] = runs->slice->begin[i];
    }
}

static int misaligned(const struct sl_tensor *tensor, struct sl_err *err)
{
    return sl_fail_code(
        err, SL_E_FORMAT, "st.misaligned",
        "tensor '%.*s': the slice does not begin and end at whole bytes, as %s would need",
        SL_NAME_ARGS(tensor->name, tensor->name_bytes), tensor->dtype_name);
}

/* Every run begins and ends at a byte if the first does and all strides of the odometer are whole
 * bytes. */
static int check_alignment(const struct runs *runs, struct sl_err *err)
{
    if (runs->cuts_block)
        return sl_fail_code(
            err, SL_E_FORMAT, "gg.block",
            "tensor '%.*s': the slice cuts through a block of %s: begin and end at multiples of %u",
            SL_NAME_ARGS(runs->tensor->name, runs->tensor->name_bytes), runs->tensor->dtype_name,
            sl_dtype_row(runs->tensor->dtype)->block);
    bool whole = runs->run_bits % 8 == 0 && run_begin_bits(runs) % 8 == 0;
    for (unsigned i = 0; i < runs->outer; i++)
        whole = whole && (runs->stride_bits[i] % 8 == 0 || width(runs->slice, i) == 1);
    return whole || runs->count == 0 ? 0 : misaligned(runs->tensor, err);
}

/* ---- fetching -------------------------------------------------------------------------------- */

struct batch {
    struct sl_source *source;
    struct sl_gather_item *items;
    uint8_t *data;
    uint64_t runs; /* that fit */
};

/* As many runs as a batch takes; they are short. */
static int digest_batch(struct runs *runs, const struct batch *batch, struct sl_sha256 *sha,
                        struct sl_err *err)
{
    uint64_t run_bytes = runs->run_bits / 8;
    size_t count = 0;
    for (; runs->next < runs->count && count < batch->runs; count++) {
        uint64_t begin = runs->tensor->begin + run_begin_bits(runs) / 8;
        batch->items[count] =
            (struct sl_gather_item){begin, begin + run_bytes, batch->data + count * run_bytes};
        step(runs);
    }
    if (sl_gather(batch->source, batch->items, count, err) < 0)
        return -1;
    sl_sha256_update(sha, batch->data, count * run_bytes);
    return 0;
}

static int hash_piece(void *sha, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    (void)err;
    sl_sha256_update(sha, data, bytes);
    return 0;
}

static int digest_runs(struct sl_index *index, struct runs *runs, struct sl_sha256 *sha,
                       struct sl_err *err)
{
    struct sl_source *source = index->sources[runs->tensor->source];
    uint64_t run_bytes = runs->run_bits / 8;
    if (run_bytes > BATCH_BYTES / 4) { /* long runs: one request each, hashed as they come */
        for (; runs->next < runs->count; step(runs)) {
            uint64_t begin = runs->tensor->begin + run_begin_bits(runs) / 8;
            if (sl_gather_stream(source, begin, begin + run_bytes, hash_piece, sha, err) < 0)
                return -1;
        }
        return 0;
    }
    uint64_t batch_runs =
        SL_MIN(SL_MIN(runs->count, BATCH_RUNS), BATCH_BYTES / SL_MAX(run_bytes, 1));
    sl_autofree struct sl_gather_item *items = sl_alloc_array(batch_runs, sizeof(*items), err);
    sl_autofree uint8_t *data = sl_alloc(batch_runs * run_bytes, err);
    if (!items || !data)
        return -1;
    struct batch batch = {source, items, data, batch_runs};
    while (runs->next < runs->count)
        if (digest_batch(runs, &batch, sha, err) < 0)
            return -1;
    return 0;
}

/* A meta tensor has nothing to fetch. */
static int digest_zeros(const struct runs *runs, struct sl_sha256 *sha, struct sl_err *err)
{
    static const uint8_t zeros[64 * 1024];
    if (runs->tensor->bytes > UINT64_C(64) << 30)
        return sl_fail_code(err, SL_E_FORMAT, "E_LENGTH", "a slice of more than 64 GiB of zeros");
    for (uint64_t left = runs->run_bits / 8 * runs->count; left > 0;) {
        size_t piece = SL_MIN(left, sizeof(zeros));
        sl_sha256_update(sha, zeros, piece);
        left -= piece;
    }
    return 0;
}

int sl_slice_digest(struct sl_index *index, const struct sl_tensor *tensor,
                    const struct sl_slice *slice, uint8_t digest[32], struct sl_err *err)
{
    if (tensor->refused)
        return sl_fail_code(err, (enum sl_err_kind)tensor->refused, tensor->refused_code,
                            "tensor '%.*s': %s", SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                            tensor->refused_why);
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (sl_is_strided(tensor)) {
        if (!sha || sl_strided_hash(index, tensor, slice, sha, err) < 0)
            return -1;
        sl_sha256_finish(sha, digest);
        return 0;
    }
    struct runs runs;
    plan_runs(&runs, tensor, slice);
    if (!sha || check_alignment(&runs, err) < 0)
        return -1;
    int result = tensor->meta ? digest_zeros(&runs, sha, err) : digest_runs(index, &runs, sha, err);
    if (result == 0)
        sl_sha256_finish(sha, digest);
    return result;
}
