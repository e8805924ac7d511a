/*
 * Slices as people write them, and their digests: what a tensor reader gives of them, hashed in
 * order. Long runs of plain bytes go past it, since one request each brings them.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "gather.h"
#include "hash.h"
#include "index.h"
#include "names.h"
#include "slice_runs.h"
#include "strided.h"
#include "tensor_reader.h"

enum { STEP_BYTES = 4 * 1024 * 1024, LONG_RUN_BYTES = STEP_BYTES / 4 };

size_t sl_slice_name_bytes(const char *text)
{
    size_t bytes = strlen(text);
    const char *bracket = strrchr(text, '[');
    return bracket && bytes && text[bytes - 1] == ']' ? (size_t)(bracket - text) : bytes;
}

/* ---- parsing --------------------------------------------------------------------------------- */

static int slice_fail(const char *text, const char *why, struct sl_err *err)
{
    return sl_fail(err, SL_E_USAGE, "'%.300s' is not a slice: %s; write 'NAME[0:4,:,2:]'", text,
                   why);
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
            return slice_fail(text, "a range is not a 'a:b', 'a:', ':b', ':' or 'a'", err);
        bool whole = begin == 0 && end == tensor->shape[i]; /* also of an empty dimension */
        if (begin > end || end > tensor->shape[i] || (begin >= tensor->shape[i] && !whole))
            return out_of_range(text, tensor, i, err);
        slice->begin[i] = begin;
        slice->end[i] = end;
        at += *at == ',';
    }
    return 0;
}

/* ---- digests --------------------------------------------------------------------------------- */

static int hash_piece(void *sha, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    (void)err;
    sl_sha256_update(sha, data, bytes);
    return 0;
}

/* Long runs of plain bytes: one request each, hashed as they come. */
static int stream_runs(struct sl_index *index, struct sl_slice_runs *runs, struct sl_sha256 *sha,
                       struct sl_err *err)
{
    const struct sl_tensor *tensor = runs->tensor;
    for (; runs->next < runs->count; sl_slice_runs_step(runs)) {
        uint64_t begin = tensor->begin + sl_slice_runs_begin(runs);
        if (sl_gather_stream(index->sources[tensor->source], begin, begin + runs->run_bits / 8,
                             hash_piece, sha, err) < 0)
            return -1;
    }
    return 0;
}

/* Everything else, some MiB at a time. */
static int read_slice(struct sl_index *index, const struct sl_slice_runs *runs,
                      struct sl_sha256 *sha, struct sl_err *err)
{
    uint64_t bytes = runs->run_bits / 8 * runs->count;
    if (runs->tensor->meta && bytes > SL_META_DIGEST_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "E_LENGTH",
                            "a slice of more than 1 GiB of zeros, which are not hashed");
    return sl_tensor_hash(index, runs->tensor, runs->slice, sha, err);
}

static int hash_slice(struct sl_index *index, const struct sl_tensor *tensor,
                      const struct sl_slice *slice, struct sl_sha256 *sha, struct sl_err *err)
{
    if (sl_is_strided(tensor))
        return sl_strided_hash(index, tensor, slice, sha, err);
    struct sl_slice_runs runs;
    sl_slice_runs_plan(&runs, tensor, slice);
    if (sl_slice_runs_check(&runs, err) < 0)
        return -1;
    bool stream = !tensor->meta && !tensor->encrypted && !tensor->chunks &&
                  runs.run_bits / 8 > LONG_RUN_BYTES;
    return stream ? stream_runs(index, &runs, sha, err) : read_slice(index, &runs, sha, err);
}

int sl_slice_digest(struct sl_index *index, const struct sl_tensor *tensor,
                    const struct sl_slice *slice, uint8_t digest[32], struct sl_err *err)
{
    if (tensor->refused)
        return sl_fail_code(err, (enum sl_err_kind)tensor->refused, tensor->refused_code,
                            "tensor '%.*s': %s", SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                            tensor->refused_why);
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha || hash_slice(index, tensor, slice, sha, err) < 0)
        return -1;
    sl_sha256_finish(sha, digest);
    return 0;
}
