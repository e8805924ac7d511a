/*
 * Many nodes at once: what each reached and what they reached together. The rate of a fleet is the
 * sum of its nodes' medians, which is one of the same time only as far as their runs overlap, so
 * that is told too. Figures of one setting are compared with those of the same setting alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_parts.h"

enum { BAR_WIDTH = 30 };

/* ---- settings over nodes -------------------------------------------------------------------- */

static bool is_same(const struct sl_bench_point *a, const struct sl_bench_point *b)
{
    return a->way == b->way && a->range_bytes == b->range_bytes &&
           a->connections == b->connections && strcmp(a->client, b->client) == 0;
}

static struct sl_bench_group *find_group(struct sl_bench_groups *groups,
                                         const struct sl_bench_point *point)
{
    for (size_t i = 0; i < groups->count; i++)
        if (is_same(&groups->items[i].key, point))
            return &groups->items[i];
    return NULL;
}

static int add_to_group(struct sl_bench_groups *groups, const struct sl_bench_result *result,
                        const struct sl_bench_point *point, struct sl_err *err)
{
    if (point->median <= 0)
        return 0;
    struct sl_bench_group *group = find_group(groups, point);
    if (!group) {
        if (sl_grow(&groups->items, &groups->capacity, groups->count + 1, sizeof(*groups->items),
                    err) < 0)
            return -1;
        group = &groups->items[groups->count++];
        *group = (struct sl_bench_group){.key = *point};
    }
    group->nodes++;
    group->total += point->median;
    group->fastest = SL_MAX(group->fastest, point->median);
    if (group->nodes == 1 || point->median < group->slowest) {
        group->slowest = point->median;
        group->slowest_result = result;
    }
    return 0;
}

/* The median over nodes needs their values side by side. */
static void find_median(struct sl_bench_group *group, const struct sl_bench_results *results,
                        double *values)
{
    size_t count = 0;
    for (size_t i = 0; i < results->count; i++)
        for (size_t p = 0; p < results->items[i].point_count && count < group->nodes; p++) {
            const struct sl_bench_point *point = &results->items[i].points[p];
            if (point->median > 0 && is_same(&group->key, point))
                values[count++] = point->median;
        }
    group->median = sl_bench_median(values, count);
}

/* In the order in which settings first appear. Release with free(groups->items). */
static int group_all(const struct sl_bench_results *results, struct sl_bench_groups *groups,
                     struct sl_err *err)
{
    size_t most = 1;
    for (size_t i = 0; i < results->count; i++)
        for (size_t p = 0; p < results->items[i].point_count; p++)
            if (add_to_group(groups, &results->items[i], &results->items[i].points[p], err) < 0)
                return -1;
    for (size_t g = 0; g < groups->count; g++)
        most = SL_MAX(most, groups->items[g].nodes);
    sl_autofree double *values = sl_alloc_array(most, sizeof(*values), err);
    for (size_t g = 0; values && g < groups->count; g++)
        find_median(&groups->items[g], results, values);
    return values ? 0 : -1;
}

double sl_bench_overlap(const struct sl_bench_results *results)
{
    double begin = 0, end = 0;
    for (size_t i = 0; i < results->count; i++) {
        const struct sl_bench_result *result = &results->items[i];
        double ends = result->started_at + result->seconds;
        begin = SL_MAX(begin, result->started_at);
        end = i == 0 || ends < end ? ends : end;
    }
    return end > begin ? end - begin : 0;
}

const char *sl_bench_overlap_text(const struct sl_bench_results *results, char text[64])
{
    double seconds = sl_bench_overlap(results);
    snprintf(text, 64, seconds > 0 ? "all ran at once for %.0f s" : "they did not all run at once",
             seconds);
    return text;
}

static int by_node(const void *a, const void *b, void *arg)
{
    const struct sl_bench_results *results = arg;
    const struct sl_bench_result *left = &results->items[*(const size_t *)a];
    const struct sl_bench_result *right = &results->items[*(const size_t *)b];
    int order = strverscmp(left->facts.node, right->facts.node);
    if (!order)
        order = strcmp(left->facts.pod, right->facts.pod);
    if (!order)
        order = strcmp(left->source, right->source);
    return order ? order : strcmp(left->started, right->started);
}

/* Results of nodes that measured something, sorted by node and source: indexes into items. */
static size_t *bench_sorted(const struct sl_bench_results *results, struct sl_err *err)
{
    size_t *order = sl_alloc_array(results->count + 1, sizeof(*order), err);
    if (!order)
        return NULL;
    for (size_t i = 0; i < results->count; i++)
        order[i] = i;
    qsort_r(order, results->count, sizeof(*order), by_node, (void *)(uintptr_t)results);
    return order;
}

/* ---- for people ----------------------------------------------------------------------------- */

static double rate_of(const struct sl_bench_point *point)
{
    return point ? point->median : 0;
}

static int put_node(struct sl_buf *out, const struct sl_bench_results *results,
                    const struct sl_bench_result *result, double full, bool utf8,
                    struct sl_err *err)
{
    char text[5][32], name[SL_BENCH_ROW_MAX];
    const struct sl_bench_point *load = sl_bench_headline(result);
    double share = load ? sl_bench_share(result, load) : 0;
    snprintf(text[3], 32, share > 0 ? "%.2f" : "-", share);
    if (sl_buf_printf(out, err, "%-24.24s %8s %8s %8s %6s %8.2f  ",
                      sl_bench_row_name(results, result, name),
                      sl_bench_rate_text(rate_of(sl_bench_best(result, SL_BENCH_NETWORK)), text[0]),
                      sl_bench_rate_text(rate_of(sl_bench_best(result, SL_BENCH_STORE)), text[1]),
                      sl_bench_rate_text(rate_of(load), text[2]), text[3],
                      load ? load->cpu_seconds_per_gb : 0) < 0 ||
        sl_bench_bar(out, rate_of(load), full, BAR_WIDTH, utf8, err) < 0)
        return -1;
    return sl_buf_text(out, "\n", err);
}

static int put_nodes(struct sl_buf *out, const struct sl_bench_results *results, bool utf8,
                     struct sl_err *err)
{
    double full = 0, total[3] = {0};
    char text[3][32];
    sl_autofree size_t *order = bench_sorted(results, err);
    if (!order ||
        sl_buf_text(out,
                    "                          network    store   sluice  share   sluice\n"
                    "node                         GB/s     GB/s     GB/s        CPU s/GB\n",
                    err) < 0)
        return -1;
    for (size_t i = 0; i < results->count; i++) {
        const struct sl_bench_result *result = &results->items[i];
        total[0] += rate_of(sl_bench_best(result, SL_BENCH_NETWORK));
        total[1] += rate_of(sl_bench_best(result, SL_BENCH_STORE));
        total[2] += rate_of(sl_bench_headline(result));
        full = SL_MAX(full, rate_of(sl_bench_headline(result)));
    }
    for (size_t i = 0; i < results->count; i++)
        if (put_node(out, results, &results->items[order[i]], full, utf8, err) < 0)
            return -1;
    return sl_buf_printf(
        out, err, "%-24s %8s %8s %8s\n\n", "together", sl_bench_rate_text(total[0], text[0]),
        sl_bench_rate_text(total[1], text[1]), sl_bench_rate_text(total[2], text[2]));
}

static int put_group(struct sl_buf *out, const struct sl_bench_results *results,
                     const struct sl_bench_group *group, struct sl_err *err)
{
    const struct sl_bench_point *key = &group->key;
    char size[32], count[32], text[3][32], row[SL_BENCH_ROW_MAX];
    const char *name = key->way == SL_BENCH_PEER ? key->client : sl_bench_way_title(key->way);
    return sl_buf_printf(
        out, err, "%-12s %10s %5s %6zu %9s %8s %8s %7.0f %%  %s\n", name,
        sl_bench_size_text(key->range_bytes, size), sl_bench_count_text(key->connections, count),
        group->nodes, sl_bench_rate_text(group->total, text[0]),
        sl_bench_rate_text(group->median, text[1]), sl_bench_rate_text(group->slowest, text[2]),
        (group->fastest - group->slowest) / group->median * 100,
        sl_bench_row_name(results, group->slowest_result, row));
}

int sl_bench_nodes_table(struct sl_buf *out, const struct sl_bench_results *results, bool utf8,
                         struct sl_err *err)
{
    struct sl_bench_groups groups = {0};
    if (!results->count)
        return sl_buf_text(out, "no results\n", err);
    char overlap[64];
    int done = sl_buf_printf(out, err, "%zu results; %s\n\n", results->count,
                             sl_bench_overlap_text(results, overlap));
    if (done == 0)
        done = put_nodes(out, results, utf8, err);
    if (done == 0)
        done = group_all(results, &groups, err);
    if (done == 0)
        done = sl_buf_text(out,
                           "                                       together   median  slowest\n"
                           "                 ranges conns  nodes      GB/s     GB/s     GB/s   "
                           "spread  slowest node\n",
                           err);
    for (size_t i = 0; done == 0 && i < groups.count; i++)
        done = put_group(out, results, &groups.items[i], err);
    free(groups.items);
    return done;
}

/* ---- for programs --------------------------------------------------------------------------- */

static void write_group(struct sl_json *json, const struct sl_bench_group *group)
{
    sl_json_object(json);
    sl_json_key_string(json, "way", sl_bench_way_name(group->key.way));
    sl_json_key_string(json, "client", group->key.client);
    sl_json_key_uint(json, "range_bytes", group->key.range_bytes);
    sl_json_key_uint(json, "connections", group->key.connections);
    sl_json_key_uint(json, "nodes", group->nodes);
    sl_json_key_double(json, "total_bytes_per_second", group->total);
    sl_json_key_double(json, "median_bytes_per_second", group->median);
    sl_json_key_double(json, "slowest_bytes_per_second", group->slowest);
    sl_json_key_double(json, "fastest_bytes_per_second", group->fastest);
    sl_json_key_string(json, "slowest_node", group->slowest_result->facts.node);
    sl_json_key_string(json, "slowest_pod", group->slowest_result->facts.pod);
    sl_json_end(json);
}

static void write_node(struct sl_json *json, const struct sl_bench_result *result)
{
    const struct sl_bench_point *load = sl_bench_headline(result);
    sl_json_object(json);
    sl_json_key_string(json, "node", result->facts.node);
    sl_json_key_string(json, "pod", result->facts.pod);
    sl_json_key_uri(json, "source", result->source);
    sl_json_key_string(json, "started", result->started);
    sl_json_key_double(json, "network_bytes_per_second",
                       rate_of(sl_bench_best(result, SL_BENCH_NETWORK)));
    sl_json_key_double(json, "store_bytes_per_second",
                       rate_of(sl_bench_best(result, SL_BENCH_STORE)));
    sl_json_key_double(json, "load_bytes_per_second", rate_of(load));
    sl_json_key_double(json, "share_of_network", load ? sl_bench_share(result, load) : 0);
    sl_json_end(json);
}

int sl_bench_summary_json(struct sl_json *json, const struct sl_bench_results *results,
                          struct sl_err *err)
{
    struct sl_bench_groups groups = {0};
    sl_autofree size_t *order = bench_sorted(results, err);
    if (!order || group_all(results, &groups, err) < 0) {
        free(groups.items);
        return -1;
    }
    sl_json_object(json);
    sl_json_key_uint(json, "results", results->count);
    sl_json_key_uint(json, "wrong_lines", results->wrong_lines);
    sl_json_key_double(json, "overlap_seconds", sl_bench_overlap(results));
    sl_json_key(json, "nodes");
    sl_json_array(json);
    for (size_t i = 0; i < results->count; i++)
        write_node(json, &results->items[order[i]]);
    sl_json_end(json);
    sl_json_key(json, "settings");
    sl_json_array(json);
    for (size_t i = 0; i < groups.count; i++)
        write_group(json, &groups.items[i]);
    sl_json_end(json);
    sl_json_end(json);
    free(groups.items);
    return 0;
}
