/* Rows for spreadsheets: RFC 4180, but lines end in LF. A text that a spreadsheet would take for a
 * formula gets an apostrophe in front. */
#include <string.h>

#include "bench_parts.h"

static const char header[] =
    "node,pod,region,link_speed,index,started,source,cpus,way,client,range_bytes,connections,bytes,"
    "runs,failed,best_bytes_per_second,median_bytes_per_second,worst_bytes_per_second,spread,"
    "share_of_network,cpu_seconds_per_gb,peak_memory_bytes\n";

static int put_text(struct sl_buf *out, const char *text, struct sl_err *err)
{
    bool formula = *text && strchr("=+-@", *text);
    if (!formula && !strpbrk(text, ",\"\r\n"))
        return sl_buf_printf(out, err, "%s,", text);
    if (sl_buf_text(out, formula ? "\"'" : "\"", err) < 0)
        return -1;
    for (; *text; text++)
        if (sl_buf_append(out, *text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1, err) < 0)
            return -1;
    return sl_buf_text(out, "\",", err);
}

static int put_result(struct sl_buf *out, const struct sl_bench_result *result,
                      const struct sl_bench_point *point, struct sl_err *err)
{
    const struct sl_bench_facts *facts = &result->facts;
    const char *const texts[] = {facts->node, facts->pod, facts->region, facts->link_speed};
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        if (put_text(out, texts[i], err) < 0)
            return -1;
    if (facts->indexed && sl_buf_printf(out, err, "%llu", (unsigned long long)facts->index) < 0)
        return -1;
    if (sl_buf_text(out, ",", err) < 0 || put_text(out, result->started, err) < 0 ||
        put_text(out, result->source, err) < 0 || sl_buf_printf(out, err, "%u,", facts->cpus) < 0)
        return -1;
    return sl_buf_printf(out, err, "%s,", sl_bench_way_name(point->way)) < 0
               ? -1
               : put_text(out, point->client, err);
}

static int put_point(struct sl_buf *out, const struct sl_bench_result *result,
                     const struct sl_bench_point *point, struct sl_err *err)
{
    if (put_result(out, result, point, err) < 0)
        return -1;
    return sl_buf_printf(out, err, "%llu,%u,%llu,%llu,%llu,%.0f,%.0f,%.0f,%.4f,%.4f,%.4f,%llu\n",
                         (unsigned long long)point->range_bytes, point->connections,
                         (unsigned long long)point->bytes, (unsigned long long)point->runs,
                         (unsigned long long)point->failed, point->best, point->median,
                         point->worst, sl_bench_spread(point), sl_bench_share(result, point),
                         point->cpu_seconds_per_gb, (unsigned long long)point->peak_memory_bytes);
}

int sl_bench_csv(struct sl_buf *out, const struct sl_bench_results *results, struct sl_err *err)
{
    if (sl_buf_text(out, header, err) < 0)
        return -1;
    for (size_t i = 0; i < results->count; i++)
        for (size_t p = 0; p < results->items[i].point_count; p++)
            if (put_point(out, &results->items[i], &results->items[i].points[p], err) < 0)
                return -1;
    return 0;
}
