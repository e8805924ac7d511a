/* The terminal: a table of settings, the network, the store and sluice side by side, then peers,
 * then bars. */
#include <stdio.h>

#include "bench_parts.h"

static int put_head(struct sl_buf *out, const struct sl_bench_result *result, struct sl_err *err)
{
    const struct sl_bench_facts *facts = &result->facts;
    char size[32], limit[32], cpus[40];
    if (sl_buf_printf(out, err, "%s: %s, %s", facts->node, sl_human_count(facts->cpus, "cpu", cpus),
                      sl_human_bytes(facts->memory_bytes, size)) < 0)
        return -1;
    if (facts->memory_limit &&
        sl_buf_printf(out, err, " (limit %s)", sl_human_bytes(facts->memory_limit, limit)) < 0)
        return -1;
    return sl_buf_printf(out, err,
                         ", kernel %s, sluice %s\n%s: %.1f MB in %llu object%s, %llu round%s\n\n",
                         facts->kernel, facts->version, result->source, (double)result->bytes / 1e6,
                         (unsigned long long)result->objects, result->objects == 1 ? "" : "s",
                         (unsigned long long)result->rounds, result->rounds == 1 ? "" : "s");
}

/* ---- settings ------------------------------------------------------------------------------- */

static const struct sl_bench_point empty_point;

static const struct sl_bench_point *at(const struct sl_bench_result *result, enum sl_bench_way way,
                                       const struct sl_bench_point *setting)
{
    const struct sl_bench_point *point =
        sl_bench_find(result, way, setting->range_bytes, setting->connections);
    return point ? point : &empty_point;
}

/* "-" where it was not measured. */
static const char *figure(const char *format, double value, char text[32])
{
    if (value > 0)
        snprintf(text, 32, format, value);
    else
        snprintf(text, 32, "-");
    return text;
}

static int put_setting(struct sl_buf *out, const struct sl_bench_result *result,
                       const struct sl_bench_point *setting, struct sl_err *err)
{
    char size[32], count[32], text[8][32];
    const struct sl_bench_point *network = at(result, SL_BENCH_NETWORK, setting);
    const struct sl_bench_point *store = at(result, SL_BENCH_STORE, setting);
    const struct sl_bench_point *load = at(result, SL_BENCH_LOAD, setting);
    return sl_buf_printf(
        out, err, "%10s %5s  %8s %8s %8s %8s %7s %6s %9s %7s\n",
        sl_bench_size_text(setting->range_bytes, size),
        sl_bench_count_text(setting->connections, count),
        sl_bench_rate_text(network->median, text[0]), sl_bench_rate_text(store->median, text[1]),
        sl_bench_rate_text(load->median, text[2]), sl_bench_rate_text(load->best, text[3]),
        figure("%.0f %%", sl_bench_spread(load) * 100, text[4]),
        figure("%.2f", load->median > 0 ? sl_bench_share(result, load) : 0, text[5]),
        figure("%.2f", load->cpu_seconds_per_gb, text[6]),
        figure("%.0f", (double)load->peak_memory_bytes / 1e6, text[7]));
}

/* Each setting once: where its first way stands. */
static bool is_first(const struct sl_bench_result *result, size_t number)
{
    const struct sl_bench_point *point = &result->points[number];
    for (size_t i = 0; i < number; i++)
        if (result->points[i].way < SL_BENCH_MEMORY &&
            result->points[i].range_bytes == point->range_bytes &&
            result->points[i].connections == point->connections)
            return false;
    return point->way < SL_BENCH_MEMORY;
}

static int put_settings(struct sl_buf *out, const struct sl_bench_result *result,
                        struct sl_err *err)
{
    if (sl_buf_text(
            out,
            "                  network    store   sluice   sluice  sluice  share    sluice  "
            "sluice\n"
            "    ranges conns     GB/s     GB/s     GB/s     best  spread         CPU s/GB  "
            "   MB\n",
            err) < 0)
        return -1;
    for (size_t i = 0; i < result->point_count; i++)
        if (is_first(result, i) && put_setting(out, result, &result->points[i], err) < 0)
            return -1;
    return 0;
}

/* ---- memory and peers, which choose for themselves ------------------------------------------ */

static int put_peer(struct sl_buf *out, const struct sl_bench_result *result,
                    const struct sl_bench_point *point, struct sl_err *err)
{
    char text[6][32];
    if (point->median <= 0)
        return sl_buf_printf(out, err, "%-12s %s\n", point->client,
                             *point->why ? point->why : "not measured");
    return sl_buf_printf(out, err, "%-12s %22s %8s %8s %7s %6s %9s %7s%s%s\n",
                         point->way == SL_BENCH_MEMORY ? "into memory" : point->client, "",
                         sl_bench_rate_text(point->median, text[0]),
                         sl_bench_rate_text(point->best, text[1]),
                         figure("%.0f %%", sl_bench_spread(point) * 100, text[2]),
                         figure("%.2f", sl_bench_share(result, point), text[3]),
                         figure("%.2f", point->cpu_seconds_per_gb, text[4]),
                         figure("%.0f", (double)point->peak_memory_bytes / 1e6, text[5]),
                         *point->why ? "  " : "", point->why);
}

static int put_one(struct sl_buf *out, const struct sl_bench_result *result, bool utf8,
                   struct sl_err *err)
{
    if (put_head(out, result, err) < 0 || put_settings(out, result, err) < 0)
        return -1;
    for (size_t i = 0; i < result->point_count; i++)
        if (result->points[i].way >= SL_BENCH_MEMORY &&
            put_peer(out, result, &result->points[i], err) < 0)
            return -1;
    return sl_buf_text(out, "\n", err) < 0 ? -1 : sl_bench_bars(out, result, utf8, err);
}

int sl_bench_table(struct sl_buf *out, const struct sl_bench_results *results, bool utf8,
                   struct sl_err *err)
{
    if (results->count != 1)
        return sl_bench_nodes_table(out, results, utf8, err);
    return put_one(out, &results->items[0], utf8, err);
}
