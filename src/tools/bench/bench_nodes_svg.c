/* Many nodes as bars, the slowest on top, since that is the one to look at: sluice's rate in front
 * of what the bare network of the same node did. */
#include <stdio.h>
#include <stdlib.h>

#include "bench_parts.h"

enum { WIDTH = 860, LEFT = 210, RIGHT = 700, TOP = 84, ROW = 24, BARS_MAX = 200 };

struct bar {
    const struct sl_bench_result *result;
    double network, load;
};
struct bars {
    struct bar *items;
    size_t count, shown;
    double full, total;
};

static int by_rate(const void *a, const void *b)
{
    const struct bar *left = a, *right = b;
    int order = (left->load > right->load) - (left->load < right->load);
    return order ? order : strverscmp(left->result->facts.node, right->result->facts.node);
}

static int survey(const struct sl_bench_results *results, struct bars *bars, struct sl_err *err)
{
    bars->items = sl_alloc_array(results->count + 1, sizeof(*bars->items), err);
    if (!bars->items)
        return -1;
    for (size_t i = 0; i < results->count; i++) {
        const struct sl_bench_result *result = &results->items[i];
        const struct sl_bench_point *network = sl_bench_best(result, SL_BENCH_NETWORK);
        const struct sl_bench_point *load = sl_bench_headline(result);
        struct bar *bar = &bars->items[bars->count++];
        *bar = (struct bar){result, network ? network->median : 0, load ? load->median : 0};
        bars->full = SL_MAX(bars->full, SL_MAX(bar->network, bar->load));
        bars->total += bar->load;
    }
    qsort(bars->items, bars->count, sizeof(*bars->items), by_rate);
    bars->shown = SL_MIN(bars->count, (size_t)BARS_MAX);
    bars->full = bars->full > 0 ? bars->full * 1.04 : 1e9;
    return 0;
}

static double x_of(const struct bars *bars, double rate)
{
    return LEFT + rate / bars->full * (RIGHT - LEFT);
}

static int put_head(struct sl_buf *out, const struct bars *bars,
                    const struct sl_bench_results *results, unsigned height, struct sl_err *err)
{
    char text[256];
    snprintf(text, sizeof(text), "%zu results, %.2f GB/s together", bars->count, bars->total / 1e9);
    if (sl_bench_svg_begin(out, WIDTH, height, text, err) < 0 ||
        sl_bench_svg_text(out, "class=\"head\"", 24, 32, text, err) < 0)
        return -1;
    char overlap[64];
    snprintf(text, sizeof(text),
             "GB/s of whole loads, median of each node, the slowest first; behind them the bare "
             "network; %s",
             sl_bench_overlap_text(results, overlap));
    return sl_bench_svg_text(out, "class=\"dim\"", 24, 52, text, err);
}

static int put_axis(struct sl_buf *out, const struct bars *bars, double bottom, struct sl_err *err)
{
    double step = sl_bench_step(bars->full / 1e9);
    for (double at = 0; at * 1e9 <= bars->full; at += step) {
        char text[32];
        double x = x_of(bars, at * 1e9);
        snprintf(text, sizeof(text), "%g", at);
        if (sl_bench_svg_line(out, at > 0 ? "class=\"grid\"" : "class=\"axis\"", x, TOP - 6, x,
                              bottom, err) < 0 ||
            sl_bench_svg_text(out, "class=\"dim\" text-anchor=\"middle\"", x, TOP - 12, text, err) <
                0)
            return -1;
    }
    return 0;
}

static int put_bar(struct sl_buf *out, const struct bars *bars,
                   const struct sl_bench_results *results, size_t number, struct sl_err *err)
{
    const struct bar *bar = &bars->items[number];
    double y = TOP + (double)number * ROW;
    char text[96], name[SL_BENCH_ROW_MAX];
    snprintf(text, sizeof(text), "%.28s", sl_bench_row_name(results, bar->result, name));
    if (sl_bench_svg_text(out, "text-anchor=\"end\"", LEFT - 10, y + 13, text, err) < 0 ||
        sl_buf_printf(out, err,
                      "<rect class=\"band\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"16\"/>\n"
                      "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"10\" fill=\"%s\"/>\n",
                      LEFT, y, x_of(bars, bar->network) - LEFT, LEFT, y + 3,
                      x_of(bars, bar->load) - LEFT, sl_bench_colors[0]) < 0)
        return -1;
    snprintf(text, sizeof(text), bar->network > 0 ? "%.2f of %.2f" : "%.2f", bar->load / 1e9,
             bar->network / 1e9);
    return sl_bench_svg_text(out, "class=\"dim\"", RIGHT + 12, y + 13, text, err);
}

static int draw(struct sl_buf *out, const struct bars *bars, const struct sl_bench_results *results,
                struct sl_err *err)
{
    unsigned height = TOP + (unsigned)bars->shown * ROW + 34;
    if (put_head(out, bars, results, height, err) < 0 || put_axis(out, bars, height - 34, err) < 0)
        return -1;
    for (size_t i = 0; i < bars->shown; i++)
        if (put_bar(out, bars, results, i, err) < 0)
            return -1;
    if (bars->count > bars->shown) {
        char text[64];
        snprintf(text, sizeof(text), "and %zu faster ones", bars->count - bars->shown);
        if (sl_bench_svg_text(out, "class=\"dim\"", LEFT, height - 12, text, err) < 0)
            return -1;
    }
    return sl_buf_text(out, "</svg>\n", err);
}

int sl_bench_nodes_svg(struct sl_buf *out, const struct sl_bench_results *results,
                       struct sl_err *err)
{
    struct bars bars = {0};
    int done = survey(results, &bars, err);
    if (done == 0)
        done = draw(out, &bars, results, err);
    free(bars.items);
    return done;
}
