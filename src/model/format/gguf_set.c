/*
 * Split sets of GGUF files. Every part says which one it is and how many there are; its name says
 * the same again, because that is how the other parts are found. A set is whole when all of that
 * agrees, no tensor is in two parts, and as many tensors are there as each part says.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "format.h"
#include "gguf.h"
#include "names.h"

enum { ENDING_BYTES_MAX = 64 };

struct part {
    const struct sl_index *index;
    const char *name;
    size_t prefix_bytes; /* of the name */
};

static int find_prefix(const struct sl_index *index, struct part *part, struct sl_err *err)
{
    char ending[ENDING_BYTES_MAX];
    snprintf(ending, sizeof(ending), "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", index->part.number + 1,
             index->part.count);
    *part = (struct part){.index = index, .name = index->source_names[0]};
    if (!sl_format_has_suffix(part->name, ending))
        return sl_fail_code(err, SL_E_FORMAT, "gg.split",
                            "'%.300s' is part %" PRIu32 " of %" PRIu32
                            " by its keys, and its name does not end in '%s': give it the name "
                            "that it was written with",
                            part->name, index->part.number + 1, index->part.count, ending);
    part->prefix_bytes = strlen(part->name) - strlen(ending);
    return 0;
}

char *sl_gguf_part_name(const struct sl_index *index, uint32_t number, struct sl_err *err)
{
    struct part part;
    if (find_prefix(index, &part, err) < 0)
        return NULL;
    return sl_asprintf(err, "%.*s-%05" PRIu32 "-of-%05" PRIu32 ".gguf", (int)part.prefix_bytes,
                       part.name, number + 1, index->part.count);
}

/* ---- one set --------------------------------------------------------------------------------- */

static int check_numbers(const struct part *parts, size_t count, struct sl_err *err)
{
    const struct sl_index_part *first = &parts[0].index->part;
    uint64_t tensors = 0;
    for (uint32_t i = 0; i < first->count; i++) {
        const struct sl_index_part *part = i < count ? &parts[i].index->part : NULL;
        if (!part || part->number != i)
            return sl_fail_code(err, SL_E_FORMAT, "gg.split",
                                "part %" PRIu32 " of %" PRIu32 " of '%.*s' is missing", i + 1,
                                first->count, (int)SL_MIN(parts[0].prefix_bytes, (size_t)300),
                                parts[0].name);
        if (part->tensors != first->tensors)
            return sl_fail_code(err, SL_E_FORMAT, "gg.split",
                                "'%.300s' says that its set has %" PRIu32
                                " tensors, '%.300s' says %" PRIu32,
                                parts[0].name, first->tensors, parts[i].name, part->tensors);
        tensors += parts[i].index->tensor_count;
    }
    if (tensors != first->tensors)
        return sl_fail_code(err, SL_E_FORMAT, "gg.split",
                            "the set of '%.300s' has %" PRIu64 " tensors, its parts say %" PRIu32,
                            parts[0].name, tensors, first->tensors);
    return 0;
}

static int check_tensor_names(const struct part *parts, size_t count, struct sl_err *err)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += parts[i].index->tensor_count;
    sl_autofree struct sl_tensor *tensors = sl_alloc_array(total, sizeof(*tensors), err);
    if (!tensors)
        return -1;
    total = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < parts[i].index->tensor_count; k++)
            tensors[total++] = parts[i].index->tensors[k];
    sl_autofree uint32_t *sorted = sl_names_sort(tensors, total, err);
    if (!sorted)
        return -1;
    size_t twice = sl_names_duplicate(tensors, sorted, total);
    if (twice == SIZE_MAX)
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "gg.split",
                        "tensor '%s' is in two parts of the set of '%.300s'", tensors[twice].name,
                        parts[0].name);
}

/* ---- all sets -------------------------------------------------------------------------------- */

static int compare_sets(const struct part *x, const struct part *y)
{
    int order = sl_bytes_compare(x->name, x->prefix_bytes, y->name, y->prefix_bytes);
    uint32_t a = x->index->part.count, b = y->index->part.count;
    return order ? order : (a > b) - (a < b);
}

static int by_set_and_number(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int order = compare_sets(x, y);
    uint32_t m = x->index->part.number, n = y->index->part.number;
    return order ? order : (m > n) - (m < n);
}

int sl_gguf_check_sets(const struct sl_index *const *indexes, size_t count, struct sl_err *err)
{
    sl_autofree struct part *parts = sl_alloc_array(count, sizeof(*parts), err);
    if (!parts)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (find_prefix(indexes[i], &parts[i], err) < 0)
            return -1;
    if (count > 1)
        qsort(parts, count, sizeof(*parts), by_set_and_number);
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && compare_sets(&parts[first], &parts[end]) == 0;)
            end++;
        if (check_numbers(parts + first, end - first, err) < 0 ||
            check_tensor_names(parts + first, end - first, err) < 0)
            return -1;
    }
    return 0;
}
