/* Figures for people, and the arrays that hold results. */
#include <stdio.h>
#include <string.h>

#include "bench_parts.h"

const char *sl_bench_size_text(uint64_t bytes, char text[32])
{
    if (!bytes)
        snprintf(text, 32, "auto");
    else
        sl_exact_bytes(bytes, text);
    return text;
}

const char *sl_bench_count_text(uint32_t count, char text[32])
{
    snprintf(text, 32, count ? "%u" : "auto", count);
    return text;
}

const char *sl_bench_rate_text(double bytes_per_second, char text[32])
{
    snprintf(text, 32, bytes_per_second > 0 ? "%.2f" : "-", bytes_per_second / 1e9);
    return text;
}

const char *sl_bench_label(const struct sl_bench_result *result)
{
    const char *slash = strrchr(result->source, '/');
    return slash && slash[1] ? slash + 1 : result->source;
}

const char *sl_bench_row_name(const struct sl_bench_results *results,
                              const struct sl_bench_result *result, char *text)
{
    const struct sl_bench_facts *facts = &result->facts;
    bool other = false, crowded = false;
    char index[32] = "";
    for (size_t i = 0; i < results->count; i++) {
        const struct sl_bench_result *item = &results->items[i];
        bool same = strcmp(item->source, result->source) == 0;
        other |= !same;
        crowded |= item != result && same && strcmp(item->facts.node, facts->node) == 0;
    }
    if (crowded && facts->indexed)
        snprintf(index, sizeof(index), " #%llu", (unsigned long long)facts->index);
    snprintf(text, SL_BENCH_ROW_MAX, "%s%s%s%s", facts->node, index, other ? " " : "",
             other ? sl_bench_label(result) : "");
    return text;
}

struct sl_bench_point *sl_bench_point_add(struct sl_bench_result *result,
                                          const struct sl_bench_point *point, struct sl_err *err)
{
    if (result->point_count >= SL_BENCH_POINTS_MAX) {
        sl_fail(err, SL_E_FORMAT, "over %d points in one result", SL_BENCH_POINTS_MAX);
        return NULL;
    }
    if (sl_grow(&result->points, &result->point_capacity, result->point_count + 1,
                sizeof(*result->points), err) < 0)
        return NULL;
    result->points[result->point_count] = *point;
    return &result->points[result->point_count++];
}

struct sl_bench_result *sl_bench_results_add(struct sl_bench_results *results, struct sl_err *err)
{
    if (results->count >= SL_BENCH_RESULTS_MAX) {
        sl_fail(err, SL_E_FORMAT, "over %d results: gather fewer at once", SL_BENCH_RESULTS_MAX);
        return NULL;
    }
    if (sl_grow(&results->items, &results->capacity, results->count + 1, sizeof(*results->items),
                err) < 0)
        return NULL;
    struct sl_bench_result *result = &results->items[results->count++];
    *result = (struct sl_bench_result){0};
    return result;
}

void sl_bench_results_release(struct sl_bench_results *results)
{
    for (size_t i = 0; i < results->count; i++)
        free(results->items[i].points);
    free(results->items);
    *results = (struct sl_bench_results){0};
}
