/*
 * What bench tells: golden texts from fixed figures, JSON that is read back, drawings that are
 * well-formed whatever a name holds, and no allocation whose failure is not told.
 */
#include <check.h>
#include <expat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "bench_maker.h"
#include "bench_parts.h"
#include "claims.h"

static struct sl_bench_results one, nodes;

static void setup(void)
{
    sl_bench_sample_result(&one);
    sl_bench_sample_nodes(&nodes, 5);
}

static void teardown(void)
{
    sl_bench_results_release(&one);
    sl_bench_results_release(&nodes);
}

/* ---- golden texts --------------------------------------------------------------------------- */

static int table_unicode(struct sl_buf *out, const struct sl_bench_results *results,
                         struct sl_err *err)
{
    return sl_bench_table(out, results, true, err);
}

static int table_plain(struct sl_buf *out, const struct sl_bench_results *results,
                       struct sl_err *err)
{
    return sl_bench_table(out, results, false, err);
}

static int json_lines(struct sl_buf *out, const struct sl_bench_results *results,
                      struct sl_err *err)
{
    for (size_t i = 0; i < results->count; i++) {
        struct sl_json json;
        sl_json_init(&json, SL_BENCH_TEXT_MAX);
        sl_bench_json(&json, &results->items[i]);
        const char *text = sl_json_text(&json, err);
        int done = text ? sl_buf_printf(out, err, "%s\n", text) : -1;
        sl_json_release(&json);
        if (done < 0)
            return -1;
    }
    return 0;
}

static int summary(struct sl_buf *out, const struct sl_bench_results *results, struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, SL_BENCH_TEXT_MAX);
    int done = sl_bench_summary_json(&json, results, err);
    const char *text = done == 0 ? sl_json_text(&json, err) : NULL;
    done = text ? sl_buf_printf(out, err, "%s\n", text) : -1;
    sl_json_release(&json);
    return done;
}

static const struct {
    const char *name;
    int (*write)(struct sl_buf *out, const struct sl_bench_results *results, struct sl_err *err);
    bool many;
} texts[] = {
    {"one.txt", table_unicode, false},      {"one-plain.txt", table_plain, false},
    {"one.json", json_lines, false},        {"one.csv", sl_bench_csv, false},
    {"one.svg", sl_bench_svg, false},       {"nodes.txt", table_unicode, true},
    {"nodes-plain.txt", table_plain, true}, {"nodes.json", summary, true},
    {"nodes.csv", sl_bench_csv, true},      {"nodes.svg", sl_bench_svg, true},
};

SL_TEST_LOOP(fixed_figures_give_the_golden_text, 0, (int)SL_COUNT(texts))
{
    sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(texts[_i].write(&text, texts[_i].many ? &nodes : &one, &err) == 0, "%s",
                  err.message);
    sl_bench_expect_golden(texts[_i].name, &text);
}

/* jansson allocates by itself and is asked for nothing here; every other failure comes out. */
SL_TEST_LOOP(every_failing_allocation_is_told, 0, (int)SL_COUNT(texts))
{
    const struct sl_bench_results *results = texts[_i].many ? &nodes : &one;
    for (unsigned nth = 1;; nth++) {
        sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        int done = texts[_i].write(&text, results, &err);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(0);
        if (!reached) {
            ck_assert_int_eq(done, 0);
            break;
        }
        ck_assert_int_eq(done, -1);
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
}

/* ---- JSON ----------------------------------------------------------------------------------- */

SL_TEST(what_is_written_is_read_back)
{
    sl_autobuf line = SL_BUF_INIT(SL_BENCH_TEXT_MAX), again = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    struct sl_bench_results read = {0};
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(json_lines(&line, &one, &err), 0);
    ck_assert_int_eq(strncmp(sl_buf_string(&line), SL_BENCH_MARKER, strlen(SL_BENCH_MARKER)), 0);
    struct sl_bench_result *result = sl_bench_results_add(&read, &err);
    ck_assert_msg(sl_bench_json_read(line.data, line.used - 1, result, &err) == 0, "%s",
                  err.message);
    ck_assert_uint_eq(result->point_count, one.items[0].point_count);
    ck_assert_int_eq(json_lines(&again, &read, &err), 0);
    ck_assert_str_eq(sl_buf_string(&again), sl_buf_string(&line));
    sl_bench_results_release(&read);
}

/* ---- drawings and rows of hostile names ------------------------------------------------------ */

static int parse_xml(const struct sl_buf *text)
{
    XML_Parser parser = XML_ParserCreate("UTF-8");
    int good = XML_Parse(parser, text->data, (int)text->used, 1) == XML_STATUS_OK;
    if (!good)
        fprintf(stderr, "%s\n", XML_ErrorString(XML_GetErrorCode(parser)));
    XML_ParserFree(parser);
    return good ? 0 : -1;
}

static const char *const hostile[] = {
    "</text><script>alert(1)</script>",
    "\"&amp;'<![CDATA[",
    "=HYPERLINK(\"http://x\")",
    "a,b\"c\nd",
    "\xff\xfe",
    "",
};

SL_TEST_LOOP(no_name_breaks_out_of_a_drawing, 0, 2 * (int)SL_COUNT(hostile))
{
    struct sl_bench_results *results = _i % 2 ? &nodes : &one;
    const char *name = hostile[_i / 2];
    sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    snprintf(results->items[0].facts.node, SL_BENCH_NAME_MAX, "%s", name);
    snprintf(results->items[0].source, SL_BENCH_URI_MAX, "s3://b/%s", name);
    snprintf(results->items[0].points[0].client, 32, "%.31s", name);
    results->items[0].points[0].way = SL_BENCH_PEER;
    ck_assert_int_eq(sl_bench_svg(&text, results, NULL), 0);
    ck_assert_int_eq(parse_xml(&text), 0);
    ck_assert_ptr_null(strstr(sl_buf_string(&text), "<script"));
}

/* What stands right of the plane is nowhere on top of something else, nor beyond the edge. */
SL_TEST(a_drawing_names_its_unit_and_each_of_its_lines)
{
    static const char *const words[] = {">GB/s<",
                                        ">size of ranges<",
                                        "class=\"line store\"",
                                        ">the store, without a destination<",
                                        "class=\"range\"",
                                        ">worst to best run<",
                                        "class=\"band\"",
                                        ">the bare network<",
                                        ">loads, checked and published<",
                                        ">sluice, as it comes<"};
    sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    ck_assert_int_eq(sl_bench_svg(&text, &one, NULL), 0);
    const char *drawing = sl_buf_string(&text), *label = drawing;
    for (size_t i = 0; i < SL_COUNT(words); i++)
        ck_assert_msg(strstr(drawing, words[i]), "%s", words[i]);
    double before = 0;
    size_t count = 0;
    for (; (label = strstr(label, "<polyline class=\"lead\"")); count++) {
        double x, y;
        label = strstr(label, "<text ");
        ck_assert_ptr_nonnull(label);
        ck_assert_int_eq(sscanf(label, "<text x=\"%lf\" y=\"%lf\"", &x, &y), 2);
        ck_assert_msg(y - before >= 17.9, "%.1f is too close to %.1f", y, before);
        label = strchr(label, '>');
        ck_assert_msg(x + 6.5 * (double)strcspn(label + 1, "<") <= 860, "%.40s", label);
        before = y;
    }
    ck_assert_uint_ge(count, 4);
}

SL_TEST(no_text_is_a_formula_or_two_cells)
{
    sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    snprintf(nodes.items[0].facts.node, SL_BENCH_NAME_MAX, "=cmd|'a'!A1");
    snprintf(nodes.items[0].facts.pod, SL_BENCH_NAME_MAX, "a,\"b\"");
    ck_assert_int_eq(sl_bench_csv(&text, &nodes, NULL), 0);
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&text), "\n\"'=cmd|'a'!A1\",\"a,\"\"b\"\"\","));
}

SL_TEST(an_empty_result_is_drawn_and_told)
{
    struct sl_bench_results empty = {0}, bare = {0};
    sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    ck_assert_int_eq(sl_bench_svg(&text, &empty, NULL), 0);
    ck_assert_int_eq(parse_xml(&text), 0);
    ck_assert_int_eq(sl_bench_table(&text, &empty, true, NULL), 0);
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&text), "no results"));
    text.used = 0;
    ck_assert_ptr_nonnull(sl_bench_results_add(&bare, NULL));
    ck_assert_int_eq(sl_bench_svg(&text, &bare, NULL), 0);
    ck_assert_int_eq(parse_xml(&text), 0);
    ck_assert_int_eq(sl_bench_table(&text, &bare, true, NULL), 0);
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&text), "nothing was measured"));
    sl_bench_results_release(&bare);
}

SL_TEST(thousands_of_nodes_are_drawn_up_to_a_limit)
{
    sl_bench_results_release(&nodes);
    sl_bench_sample_nodes(&nodes, 1000);
    sl_autobuf text = SL_BUF_INIT(SL_BENCH_TEXT_MAX);
    ck_assert_int_eq(sl_bench_svg(&text, &nodes, NULL), 0);
    ck_assert_int_eq(parse_xml(&text), 0);
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&text), "and 800 faster ones"));
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&text), "worker-3<"));
}

SL_TEST(a_bar_is_as_long_as_its_share)
{
    sl_autobuf text = SL_BUF_INIT(4096);
    ck_assert_int_eq(sl_bench_bar(&text, 1, 2, 4, true, NULL), 0);
    ck_assert_str_eq(sl_buf_string(&text), "██");
    text.used = 0;
    ck_assert_int_eq(sl_bench_bar(&text, 9, 32, 4, true, NULL), 0);
    ck_assert_str_eq(sl_buf_string(&text), "█▏");
    text.used = 0;
    ck_assert_int_eq(sl_bench_bar(&text, 7, 4, 4, false, NULL), 0);
    ck_assert_str_eq(sl_buf_string(&text), "####");
    text.used = 0;
    ck_assert_int_eq(sl_bench_bar(&text, -1, 4, 4, true, NULL), 0);
    ck_assert_int_eq(sl_bench_bar(&text, 1, 0, 4, true, NULL), 0);
    ck_assert_uint_eq(text.used, 0);
}

SL_CASE(.setup = setup, .teardown = teardown)
