/*
 * One result as lines: rate over range size, a line for each number of connections; what the bare
 * network did as a band behind them; the load as it comes and the peers, which have no range size,
 * as level lines. Names stand at the right end, moved apart where they would overlap;
 * below, each kind of line once with what it means.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_parts.h"
#include "buf.h"

enum { WIDTH = 860, HEIGHT = 460, LEFT = 64, RIGHT = 712, TOP = 84, BOTTOM = 386 };
enum { LABELS_MAX = 64, LABEL_GAP = 18, TICKS_MAX = 12 };

struct label {
    double y, place; /* of what it names; where it stands */
    char text[64];
    const char *color; /* NULL: as text */
};
struct drawing {
    struct sl_buf *out;
    const struct sl_bench_result *result;
    double full;                        /* bytes per second at the top */
    uint64_t sizes[SL_BENCH_LIST_MAX];  /* of ranges, ascending */
    uint32_t counts[SL_BENCH_LIST_MAX]; /* of connections, ascending */
    size_t size_count, count_count;
    struct label labels[LABELS_MAX];
    size_t label_count;
};

/* ---- scales --------------------------------------------------------------------------------- */

static double y_of(const struct drawing *drawing, double rate)
{
    return BOTTOM - rate / drawing->full * (BOTTOM - TOP);
}

static double x_of(const struct drawing *drawing, uint64_t size)
{
    double low = log2((double)drawing->sizes[0]);
    double high = log2((double)drawing->sizes[drawing->size_count - 1]);
    if (high <= low)
        return (LEFT + RIGHT) / 2.0;
    return LEFT + 20 + (log2((double)size) - low) / (high - low) * (RIGHT - LEFT - 40);
}

static void add_sorted(uint64_t *items, size_t *count, uint64_t value)
{
    size_t at = 0;
    while (at < *count && items[at] < value)
        at++;
    if (*count == SL_BENCH_LIST_MAX || (at < *count && items[at] == value))
        return;
    memmove(items + at + 1, items + at, (*count - at) * sizeof(*items));
    items[at] = value;
    (*count)++;
}

static void survey(struct drawing *drawing)
{
    uint64_t counts[SL_BENCH_LIST_MAX];
    double highest = 0;
    for (size_t i = 0; i < drawing->result->point_count; i++) {
        const struct sl_bench_point *point = &drawing->result->points[i];
        highest = SL_MAX(highest, point->best);
        if (point->range_bytes)
            add_sorted(drawing->sizes, &drawing->size_count, point->range_bytes);
        if (point->connections)
            add_sorted(counts, &drawing->count_count, point->connections);
    }
    for (size_t i = 0; i < drawing->count_count; i++)
        drawing->counts[i] = (uint32_t)counts[i];
    drawing->full = highest > 0 ? highest * 1.06 : 1e9;
}

static void add_label(struct drawing *drawing, double rate, const char *text, const char *color)
{
    if (drawing->label_count == LABELS_MAX)
        return;
    struct label *label = &drawing->labels[drawing->label_count++];
    *label = (struct label){.y = y_of(drawing, rate), .color = color};
    snprintf(label->text, sizeof(label->text), "%s", text);
}

/* ---- the plane ------------------------------------------------------------------------------ */

static int put_head(struct drawing *drawing, struct sl_err *err)
{
    const struct sl_bench_result *result = drawing->result;
    char text[SL_BENCH_URI_MAX + SL_BENCH_NAME_MAX + 64], objects[40], rounds[40], cpus[40];
    snprintf(text, sizeof(text), "%s on %s", sl_bench_label(result), result->facts.node);
    if (sl_bench_svg_begin(drawing->out, WIDTH, HEIGHT, text, err) < 0 ||
        sl_bench_svg_text(drawing->out, "class=\"head\"", 24, 32, text, err) < 0)
        return -1;
    snprintf(text, sizeof(text), "%.1f MB in %s, median of %s; %s, sluice %s, %s",
             (double)result->bytes / 1e6, sl_human_count(result->objects, "object", objects),
             sl_human_count(result->rounds, "round", rounds),
             sl_human_count(result->facts.cpus, "cpu", cpus), result->facts.version,
             result->started);
    return sl_bench_svg_text(drawing->out, "class=\"dim\"", 24, 52, text, err);
}

static int put_y_axis(struct drawing *drawing, struct sl_err *err)
{
    double step = sl_bench_step(drawing->full / 1e9);
    if (sl_bench_svg_text(drawing->out, "class=\"dim\" text-anchor=\"end\"", LEFT - 8, TOP - 10,
                          "GB/s", err) < 0)
        return -1;
    for (double at = 0; at * 1e9 <= drawing->full; at += step) {
        char text[32];
        double y = y_of(drawing, at * 1e9);
        snprintf(text, sizeof(text), "%g", round(at * 1e6) / 1e6);
        if (sl_bench_svg_line(drawing->out, at > 0 ? "class=\"grid\"" : "class=\"axis\"", LEFT, y,
                              RIGHT, y, err) < 0 ||
            sl_bench_svg_text(drawing->out, "class=\"dim\" text-anchor=\"end\"", LEFT - 8, y + 4,
                              text, err) < 0)
            return -1;
    }
    return 0;
}

static int put_x_axis(struct drawing *drawing, struct sl_err *err)
{
    size_t every = (drawing->size_count + TICKS_MAX - 1) / TICKS_MAX;
    for (size_t i = 0; i < drawing->size_count; i += every) {
        char text[32];
        double x = x_of(drawing, drawing->sizes[i]);
        if (sl_bench_svg_line(drawing->out, "class=\"axis\"", x, BOTTOM, x, BOTTOM + 5, err) < 0 ||
            sl_bench_svg_text(drawing->out, "class=\"dim\" text-anchor=\"middle\"", x, BOTTOM + 20,
                              sl_bench_size_text(drawing->sizes[i], text), err) < 0)
            return -1;
    }
    return sl_bench_svg_text(drawing->out, "class=\"dim\" text-anchor=\"end\"", RIGHT, BOTTOM + 38,
                             "size of ranges", err);
}

/* Each kind of line as it is drawn, before its words; those of a level stand beside it. */
static int put_key(struct drawing *drawing, struct sl_err *err)
{
    static const struct {
        int x;
        const char *sample, *words;
    } keys[] = {
        {24, "class=\"line\" stroke=\"#59636e\"", "loads, checked and published"},
        {258, "class=\"line store\" stroke=\"#59636e\"", "the store, without a destination"},
        {496, "class=\"range\" stroke=\"#59636e\"", "worst to best run"},
        {656, "class=\"band key\"", "the bare network"},
    };
    double y = HEIGHT - 16;
    for (size_t i = 0; i < SL_COUNT(keys); i++) {
        bool upright = strstr(keys[i].sample, "range") != NULL;
        int x = keys[i].x, middle = x + 14;
        if (sl_bench_svg_line(drawing->out, keys[i].sample, upright ? middle : x,
                              upright ? y - 10 : y - 4, upright ? middle : x + 28,
                              upright ? y + 2 : y - 4, err) < 0 ||
            sl_bench_svg_text(drawing->out, "class=\"dim\"", x + 34, y, keys[i].words, err) < 0)
            return -1;
    }
    return 0;
}

/* ---- what was measured ---------------------------------------------------------------------- */

static int put_network(struct drawing *drawing, struct sl_err *err)
{
    const struct sl_bench_point *point = sl_bench_best(drawing->result, SL_BENCH_NETWORK);
    if (!point)
        return 0;
    double top = y_of(drawing, point->best), y = y_of(drawing, point->median);
    add_label(drawing, point->median, "network: the limit", NULL);
    if (sl_buf_printf(drawing->out, err,
                      "<rect class=\"band\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"/>\n",
                      LEFT, top, RIGHT - LEFT, SL_MAX(y_of(drawing, point->worst) - top, 1.0)) < 0)
        return -1;
    return sl_bench_svg_line(drawing->out, "class=\"limit\"", LEFT, y, RIGHT, y, err);
}

static int put_level(struct drawing *drawing, const struct sl_bench_point *point, const char *name,
                     const char *attributes, struct sl_err *err)
{
    if (!point || point->median <= 0)
        return 0;
    double y = y_of(drawing, point->median);
    add_label(drawing, point->median, name, NULL);
    return sl_bench_svg_line(drawing->out, attributes, LEFT, y, RIGHT, y, err);
}

/* Worst to best run of each point, and a dot at the median. */
static int put_dots(struct drawing *drawing, uint32_t connections, const char *color,
                    struct sl_err *err)
{
    char attributes[64];
    snprintf(attributes, sizeof(attributes), "class=\"range\" stroke=\"%s\"", color);
    for (size_t i = 0; i < drawing->size_count; i++) {
        const struct sl_bench_point *point =
            sl_bench_find(drawing->result, SL_BENCH_LOAD, drawing->sizes[i], connections);
        if (!point || point->median <= 0)
            continue;
        double x = x_of(drawing, drawing->sizes[i]);
        if (sl_bench_svg_line(drawing->out, attributes, x, y_of(drawing, point->worst), x,
                              y_of(drawing, point->best), err) < 0 ||
            sl_buf_printf(drawing->out, err,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x,
                          y_of(drawing, point->median), color) < 0)
            return -1;
    }
    return 0;
}

static int put_line(struct drawing *drawing, enum sl_bench_way way, uint32_t connections,
                    const char *color, struct sl_err *err)
{
    const struct sl_bench_point *last = NULL;
    bool begun = false;
    for (size_t i = 0; i < drawing->size_count; i++) {
        const struct sl_bench_point *point =
            sl_bench_find(drawing->result, way, drawing->sizes[i], connections);
        if (!point || point->median <= 0)
            continue;
        last = point;
        if (!begun &&
            sl_buf_printf(drawing->out, err, "<polyline class=\"line%s\" stroke=\"%s\" points=\"",
                          way == SL_BENCH_STORE ? " store" : "", color) < 0)
            return -1;
        if (sl_buf_printf(drawing->out, err, "%s%.1f,%.1f", begun ? " " : "",
                          x_of(drawing, drawing->sizes[i]), y_of(drawing, point->median)) < 0)
            return -1;
        begun = true;
    }
    if (!begun)
        return 0;
    char text[64];
    snprintf(text, sizeof(text), "%u connection%s", connections, connections == 1 ? "" : "s");
    if (way == SL_BENCH_LOAD)
        add_label(drawing, last->median, text, color);
    return sl_buf_text(drawing->out, "\"/>\n", err);
}

static int put_lines(struct drawing *drawing, struct sl_err *err)
{
    for (size_t i = 0; i < drawing->count_count; i++) {
        const char *color = sl_bench_colors[i % SL_BENCH_COLORS];
        uint32_t connections = drawing->counts[i];
        if (put_line(drawing, SL_BENCH_STORE, connections, color, err) < 0 ||
            put_line(drawing, SL_BENCH_LOAD, connections, color, err) < 0 ||
            put_dots(drawing, connections, color, err) < 0)
            return -1;
    }
    return 0;
}

static int put_levels(struct drawing *drawing, struct sl_err *err)
{
    const struct sl_bench_result *result = drawing->result;
    if (put_level(drawing, sl_bench_find(result, SL_BENCH_LOAD, 0, 0), "sluice, as it comes",
                  "class=\"flat\"", err) < 0)
        return -1;
    for (size_t i = 0; i < result->point_count; i++)
        if (result->points[i].way == SL_BENCH_PEER &&
            put_level(drawing, &result->points[i], result->points[i].client, "class=\"peer\"",
                      err) < 0)
            return -1;
    return 0;
}

/* ---- names ---------------------------------------------------------------------------------- */

static int by_height(const void *a, const void *b)
{
    double left = ((const struct label *)a)->y, right = ((const struct label *)b)->y;
    return (left > right) - (left < right);
}

/* Downwards until none overlaps, then up again from the bottom. */
static void move_apart(struct drawing *drawing)
{
    struct label *labels = drawing->labels;
    double free_from = TOP - 6, free_to = BOTTOM + 4;
    double gap = SL_MIN((double)LABEL_GAP,
                        (free_to - free_from) / SL_MAX((double)drawing->label_count - 1, 1.0));
    qsort(labels, drawing->label_count, sizeof(*labels), by_height);
    for (size_t i = 0; i < drawing->label_count; i++) {
        labels[i].place = SL_MAX(labels[i].y, free_from);
        free_from = labels[i].place + gap;
    }
    for (size_t i = drawing->label_count; i-- > 0;) {
        labels[i].place = SL_MIN(labels[i].place, free_to);
        free_to = labels[i].place - gap;
    }
}

static int put_labels(struct drawing *drawing, struct sl_err *err)
{
    move_apart(drawing);
    for (size_t i = 0; i < drawing->label_count; i++) {
        const struct label *label = &drawing->labels[i];
        char attributes[64] = "";
        if (label->color)
            snprintf(attributes, sizeof(attributes), "style=\"fill:%s\"", label->color);
        if (sl_buf_printf(drawing->out, err,
                          "<polyline class=\"lead\" points=\"%d,%.1f %d,%.1f %d,%.1f\"/>\n",
                          RIGHT + 2, label->y, RIGHT + 12, label->place, RIGHT + 18,
                          label->place) < 0 ||
            sl_bench_svg_text(drawing->out, attributes, RIGHT + 22, label->place + 4, label->text,
                              err) < 0)
            return -1;
    }
    return 0;
}

static int draw(struct drawing *drawing, struct sl_err *err)
{
    survey(drawing);
    if (put_head(drawing, err) < 0 || put_y_axis(drawing, err) < 0 ||
        put_x_axis(drawing, err) < 0 || put_network(drawing, err) < 0 ||
        put_levels(drawing, err) < 0 || put_lines(drawing, err) < 0 ||
        put_labels(drawing, err) < 0 || put_key(drawing, err) < 0)
        return -1;
    return sl_buf_text(drawing->out, "</svg>\n", err);
}

int sl_bench_svg(struct sl_buf *out, const struct sl_bench_results *results, struct sl_err *err)
{
    if (results->count != 1)
        return sl_bench_nodes_svg(out, results, err);
    sl_autofree struct drawing *drawing = sl_alloc(sizeof(*drawing), err);
    if (!drawing)
        return -1;
    drawing->out = out;
    drawing->result = &results->items[0];
    return draw(drawing, err);
}
