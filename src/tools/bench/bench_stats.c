/* Figures of several runs: best, median and worst, since a mean is moved by one run that another
 * tenant of the machine has disturbed. */
#include <stdlib.h>

#include "bench_parts.h"

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double sl_bench_median(double *values, size_t count)
{
    if (!count)
        return 0;
    qsort(values, count, sizeof(*values), compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static int by_seconds(const void *a, const void *b)
{
    const struct sl_bench_sample *left = a, *right = b;
    return compare(&left->seconds, &right->seconds);
}

static int by_cpu(const void *a, const void *b)
{
    const struct sl_bench_sample *left = a, *right = b;
    return compare(&left->cpu_seconds, &right->cpu_seconds);
}

static double rate(uint64_t bytes, double seconds)
{
    return seconds > 0 ? (double)bytes / seconds : 0;
}

void sl_bench_summarize(struct sl_bench_point *point, struct sl_bench_sample *samples, size_t count)
{
    point->runs = count;
    if (!count)
        return;
    size_t low = (count - 1) / 2, high = count / 2;
    qsort(samples, count, sizeof(*samples), by_seconds);
    point->best = rate(point->bytes, samples[0].seconds);
    point->worst = rate(point->bytes, samples[count - 1].seconds);
    point->median =
        (rate(point->bytes, samples[low].seconds) + rate(point->bytes, samples[high].seconds)) / 2;
    qsort(samples, count, sizeof(*samples), by_cpu);
    if (point->bytes)
        point->cpu_seconds_per_gb = (samples[low].cpu_seconds + samples[high].cpu_seconds) / 2 /
                                    ((double)point->bytes / 1e9);
    for (size_t i = 0; i < count; i++)
        point->peak_memory_bytes = SL_MAX(point->peak_memory_bytes, samples[i].peak_memory_bytes);
}

double sl_bench_spread(const struct sl_bench_point *point)
{
    return point->median > 0 ? (point->best - point->worst) / point->median : 0;
}

const struct sl_bench_point *sl_bench_find(const struct sl_bench_result *result,
                                           enum sl_bench_way way, uint64_t range_bytes,
                                           uint32_t connections)
{
    for (size_t i = 0; i < result->point_count; i++) {
        const struct sl_bench_point *point = &result->points[i];
        if (point->way == way && point->range_bytes == range_bytes &&
            point->connections == connections)
            return point;
    }
    return NULL;
}

const struct sl_bench_point *sl_bench_best(const struct sl_bench_result *result,
                                           enum sl_bench_way way)
{
    const struct sl_bench_point *best = NULL;
    for (size_t i = 0; i < result->point_count; i++) {
        const struct sl_bench_point *point = &result->points[i];
        if (point->way == way && point->median > (best ? best->median : 0))
            best = point;
    }
    return best;
}

const struct sl_bench_point *sl_bench_headline(const struct sl_bench_result *result)
{
    const struct sl_bench_point *point = sl_bench_find(result, SL_BENCH_LOAD, 0, 0);
    return point && point->median > 0 ? point : sl_bench_best(result, SL_BENCH_LOAD);
}

double sl_bench_share(const struct sl_bench_result *result, const struct sl_bench_point *point)
{
    const struct sl_bench_point *limit = sl_bench_best(result, SL_BENCH_NETWORK);
    return limit ? point->median / limit->median : 0;
}

void sl_bench_rates(const struct sl_bench_result *result, double *network, double *load)
{
    const struct sl_bench_point *best = sl_bench_best(result, SL_BENCH_NETWORK);
    const struct sl_bench_point *headline = sl_bench_headline(result);
    *network = best ? best->median : 0;
    *load = headline ? headline->median : 0;
}
