/* Bars of text: with Unicode to an eighth of a character, else of '#'. */
#include <stdio.h>

#include "bench_parts.h"

enum { BAR_WIDTH = 44 };

int sl_bench_bar(struct sl_buf *out, double value, double full, unsigned width, bool utf8,
                 struct sl_err *err)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    double share = full > 0 ? value / full : 0;
    unsigned parts = (unsigned)((share < 0 ? 0 : share > 1 ? 1 : share) * width * 8 + 0.5);
    for (unsigned i = 0; i < parts / 8; i++)
        if (sl_buf_text(out, utf8 ? "█" : "#", err) < 0)
            return -1;
    if (!utf8)
        return parts % 8 >= 4 ? sl_buf_text(out, "#", err) : 0;
    return sl_buf_text(out, eighths[parts % 8], err);
}

static void label_of(const struct sl_bench_point *point, char text[64])
{
    char size[32], count[32];
    if (point->way == SL_BENCH_PEER)
        snprintf(text, 64, "%s", point->client);
    else if (point->way == SL_BENCH_MEMORY)
        snprintf(text, 64, "sluice, into memory");
    else if (!point->range_bytes && !point->connections)
        snprintf(text, 64, "sluice, as it comes");
    else
        snprintf(text, 64, "%s %s x %s", sl_bench_way_title(point->way),
                 sl_bench_size_text(point->range_bytes, size),
                 sl_bench_count_text(point->connections, count));
}

static int put_bar(struct sl_buf *out, const struct sl_bench_point *point, double full, bool utf8,
                   struct sl_err *err)
{
    char label[64], rate[32];
    if (!point || point->median <= 0)
        return 0;
    label_of(point, label);
    if (sl_buf_printf(out, err, "%-26s %6s ", label, sl_bench_rate_text(point->median, rate)) < 0 ||
        sl_bench_bar(out, point->median, full, BAR_WIDTH, utf8, err) < 0)
        return -1;
    return sl_buf_text(out, "\n", err);
}

/* The best of each way, the load as it comes, and every peer. */
int sl_bench_bars(struct sl_buf *out, const struct sl_bench_result *result, bool utf8,
                  struct sl_err *err)
{
    const struct sl_bench_point *comes = sl_bench_find(result, SL_BENCH_LOAD, 0, 0);
    const struct sl_bench_point *best = sl_bench_best(result, SL_BENCH_LOAD);
    double full = 0;
    for (size_t i = 0; i < result->point_count; i++)
        full = SL_MAX(full, result->points[i].median);
    if (full <= 0)
        return sl_buf_text(out, "nothing was measured\n", err);
    if (sl_buf_text(out, "                             GB/s (median, the best setting of each)\n",
                    err) < 0 ||
        put_bar(out, sl_bench_best(result, SL_BENCH_NETWORK), full, utf8, err) < 0 ||
        put_bar(out, sl_bench_best(result, SL_BENCH_STORE), full, utf8, err) < 0 ||
        put_bar(out, best == comes ? NULL : best, full, utf8, err) < 0 ||
        put_bar(out, comes, full, utf8, err) < 0 ||
        put_bar(out, sl_bench_find(result, SL_BENCH_MEMORY, 0, 0), full, utf8, err) < 0)
        return -1;
    for (size_t i = 0; i < result->point_count; i++)
        if (result->points[i].way == SL_BENCH_PEER &&
            put_bar(out, &result->points[i], full, utf8, err) < 0)
            return -1;
    return 0;
}
