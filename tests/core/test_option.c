/* Option rows: text to values, bounds, defaults, ownership, suggestions. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "mem.h"
#include "option.h"

struct inner {
    char *word;
    uint64_t depth;
};
struct outer {
    bool flag;
    char *text;
    uint64_t number, size, rate;
    int mode;
    struct sl_list list;
    struct sl_map map;
    struct inner inner;
    struct sl_items rules;
};
static int check_short(const char *text, struct sl_err *err)
{
    return strlen(text) <= 8 ? 0 : sl_fail(err, SL_E_USAGE, "'%s' is longer than 8", text);
}
static const struct sl_option inner_rows[] = {
    SL_OPTION(inner, word, STRING, "hello", "a word", .check = check_short),
    SL_OPTION(inner, depth, UINT, "3", "a depth", .minimum = 1, .maximum = 9),
    SL_OPTION_END,
};
static const struct sl_option_table inner_table = {"inner", sizeof(struct inner), inner_rows};
static const struct sl_option outer_rows[] = {
    SL_OPTION(outer, flag, BOOL, "true", "a flag"),
    SL_OPTION(outer, text, STRING, "", "a text"),
    SL_OPTION(outer, number, UINT, "auto", "a number", .minimum = 1, .maximum = 100),
    SL_OPTION(outer, size, BYTES, "64Mi", "a size", .minimum = 1024, .maximum = 1ull << 40),
    SL_OPTION(outer, rate, RATE, "0", "a rate"),
    SL_OPTION(outer, mode, CHOICE, "auto", "a mode", .choices = "auto|all|off"),
    SL_OPTION(outer, list, LIST, "a,b", "a list"),
    SL_OPTION(outer, map, MAP, "", "a map", .check = check_short),
    SL_OPTION(outer, inner, SECTION, "", "a section", .section = &inner_table),
    SL_OPTION(outer, rules, ITEMS, "", "a list of sections", .section = &inner_table),
    SL_OPTION_END,
};
static const struct sl_option_table outer_table = {"outer", sizeof(struct outer), outer_rows};

static struct sl_err err;
static struct outer values;

static void setup(void)
{
    memset(&err, 0, sizeof(err));
    ck_assert_int_eq(sl_options_init(&outer_table, &values, &err), 0);
}
static void teardown(void)
{
    sl_options_release(&outer_table, &values);
}
/* "inner.depth": the row, and the struct that holds it. */
static const struct sl_option *find(struct outer *all, const char *path, void **holder,
                                    struct sl_err *why)
{
    const struct sl_option_table *table = &outer_table;
    char *at = (char *)all;
    for (;; path += strcspn(path, ".") + 1) {
        size_t bytes = strcspn(path, ".");
        const struct sl_option *row = sl_options_row(table, path, bytes);
        if (!row || !path[bytes]) {
            char key[64];
            snprintf(key, sizeof(key), "%.*s", (int)bytes, path);
            *holder = at;
            if (!row)
                sl_options_unknown(table, key, why);
            return row;
        }
        if (row->type != SL_OPTION_SECTION) {
            sl_fail(why, SL_E_USAGE, "'%.*s' has no keys below it", (int)bytes, path);
            return NULL;
        }
        at += row->offset;
        table = row->section;
    }
}
static int set(const char *path, const char *text)
{
    void *holder;
    const struct sl_option *row = find(&values, path, &holder, &err);
    return row ? sl_option_set(row, holder, text, false, &err) : -1;
}

SL_TEST(defaults_fill_every_member)
{
    ck_assert(values.flag);
    ck_assert_ptr_null(values.text);
    ck_assert_uint_eq(values.number, SL_AUTO_VALUE);
    ck_assert_uint_eq(values.size, 64 << 20);
    ck_assert_int_eq(values.mode, 0);
    ck_assert_uint_eq(values.list.count, 2);
    ck_assert_str_eq(values.list.items[1], "b");
    ck_assert_str_eq(values.inner.word, "hello");
    ck_assert_uint_eq(values.inner.depth, 3);
}

SL_TEST(a_size_is_read_exactly_or_not_at_all)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"64Ki", 65536},
                {"64KiB", 65536},
                {"64k", 64000},
                {"8M", 8000000},
                {"8MB", 8000000},
                {"1.5GiB", 1610612736},
                {"1.5 GiB", 1610612736},
                {"2Ti", 2199023255552},
                {"15Ei", 15ull << 60},
                {"100B", 100}};
    static const char *const bad[] = {"",
                                      "-1",
                                      "1.5",
                                      "64Kx",
                                      "KiB",
                                      "1e6",
                                      "1.GiB",
                                      "16Ei",
                                      "18446744073709551615",
                                      "99999999999999999999",
                                      "1.1234567Gi",
                                      " 1",
                                      "0x10",
                                      "1i"};
    uint64_t bytes;
    for (size_t i = 0; i < SL_COUNT(good); i++) {
        ck_assert_msg(sl_parse_bytes(good[i].text, &bytes) == 0, "%s", good[i].text);
        ck_assert_uint_eq(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_msg(sl_parse_bytes(bad[i], &bytes) < 0, "%s", bad[i]);
}

SL_TEST(rates_are_bytes_or_bits_in_a_second)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"2GB/s", 2000000000},    {"500MiB/s", 500ull << 20}, {"16Gbit/s", 2000000000},
                {"10Gbps", 1250000000},   {"1.5G/s", 1500000000},     {"1000", 1000},
                {"3GB", 3000000000},      {"800bit/s", 100},          {"0", 0},
                {"64 KiB/s", 64ull << 10}};
    static const char *const bad[] = {"",     "/s",    "bit/s",  "2GBps",  "2GBbit/s",
                                      "2G/h", "-1B/s", "2 /s/s", "fast/s", "2GB//s"};
    uint64_t bytes;
    for (size_t i = 0; i < SL_COUNT(good); i++) {
        ck_assert_msg(sl_parse_rate(good[i].text, &bytes) == 0, "%s", good[i].text);
        ck_assert_uint_eq(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_msg(sl_parse_rate(bad[i], &bytes) < 0, "%s", bad[i]);
}

SL_TEST(a_slow_rate_needs_its_unit)
{
    ck_assert_int_eq(set("rate", "5"), -1);
    ck_assert_str_eq(err.message,
                     "'rate': '5' without a unit is bytes per second: write 5MB/s if that is "
                     "meant, else 5B/s");
    ck_assert_int_eq(set("rate", "65535"), -1);
    ck_assert_int_eq(set("rate", "65536"), 0);
    ck_assert_int_eq(set("rate", "500000000"), 0);
    ck_assert_int_eq(set("rate", "5B/s"), 0);
    ck_assert_uint_eq(values.rate, 5);
    ck_assert_int_eq(set("rate", "0"), 0);
    ck_assert_uint_eq(values.rate, 0);
}

SL_TEST(a_number_outside_its_bounds_is_refused)
{
    ck_assert_int_eq(set("number", "1"), 0);
    ck_assert_int_eq(set("number", "100"), 0);
    ck_assert_int_lt(set("number", "0"), 0);
    ck_assert_str_eq(err.message, "'number': expected a number from 1 to 100 or 'auto', not '0'");
    ck_assert_int_lt(set("number", "101"), 0);
    ck_assert_uint_eq(values.number, 100);
    ck_assert_int_eq(set("number", "auto"), 0);
    ck_assert_uint_eq(values.number, SL_AUTO_VALUE);
    ck_assert_int_lt(set("size", "1023"), 0);
    ck_assert_str_eq(err.message, "'size': expected a size from 1 KiB to 1 TiB, not '1023'");
}

SL_TEST(a_number_is_whole_and_decimal)
{
    static const char *const bad[] = {"",
                                      "-1",
                                      "+1",
                                      "1.0",
                                      "0x1",
                                      "1 ",
                                      " 1",
                                      "ten",
                                      "18446744073709551615",
                                      "18446744073709551616"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_msg(set("number", bad[i]) < 0, "%s", bad[i]);
    ck_assert_int_lt(set("inner.depth", "auto"), 0);
    ck_assert_str_eq(err.message, "'depth': expected a whole number, not 'auto'");
}

SL_TEST(yaml_spellings_of_truth_are_good)
{
    static const char *const yes[] = {"true", "True", "yes", "ON", "y"}, *const no[] = {"false",
                                                                                        "No", "off",
                                                                                        "OFF", "n"};
    for (size_t i = 0; i < SL_COUNT(yes); i++) {
        ck_assert_int_eq(set("flag", no[i]), 0);
        ck_assert(!values.flag);
        ck_assert_int_eq(set("flag", yes[i]), 0);
        ck_assert(values.flag);
    }
    ck_assert_int_lt(set("flag", "1"), 0);
    ck_assert_int_lt(set("flag", ""), 0);
}

SL_TEST(off_may_be_spelt_as_false)
{
    ck_assert_int_eq(set("mode", "false"), 0);
    ck_assert_int_eq(values.mode, 2);
    ck_assert_int_eq(set("mode", "all"), 0);
    ck_assert_int_eq(set("mode", "no"), 0);
    ck_assert_int_eq(values.mode, 2);
    ck_assert_int_lt(set("mode", "yes"), 0);
}

SL_TEST(an_unknown_choice_names_the_nearest)
{
    ck_assert_int_lt(set("mode", "al"), 0);
    ck_assert_str_eq(err.message,
                     "'mode': expected one of auto|all|off, not 'al', did you mean 'all'?");
    ck_assert_int_lt(set("mode", "zebra"), 0);
    ck_assert_str_eq(err.message, "'mode': expected one of auto|all|off, not 'zebra'");
}

SL_TEST(an_unknown_key_names_its_section_and_the_nearest)
{
    ck_assert_int_lt(set("inner.wrod", "x"), 0);
    ck_assert_str_eq(err.message, "unknown key 'wrod' in 'inner', did you mean 'word'?");
    ck_assert_int_lt(set("quite.else", "x"), 0);
    ck_assert_str_eq(err.message, "unknown key 'quite' in 'outer'");
    ck_assert_int_lt(set("text.below", "x"), 0);
    ck_assert_int_lt(set("inner", "x"), 0);
}

SL_TEST(a_list_is_split_or_appended)
{
    void *holder;
    const struct sl_option *row = find(&values, "list", &holder, &err);
    ck_assert_int_eq(sl_option_set(row, holder, "x,y,z", false, &err), 0);
    ck_assert_uint_eq(values.list.count, 3);
    ck_assert_int_eq(sl_option_set(row, holder, "q,r", true, &err), 0);
    ck_assert_uint_eq(values.list.count, 4);
    ck_assert_str_eq(values.list.items[3], "q,r");
}

SL_TEST(a_map_replaces_the_value_of_a_key)
{
    ck_assert_int_eq(set("map", "a=1,b=2,a=3"), 0);
    ck_assert_uint_eq(values.map.count, 2);
    ck_assert_str_eq(values.map.keys[0], "a");
    ck_assert_str_eq(values.map.values[0], "3");
    ck_assert_int_lt(set("map", "a"), 0);
    ck_assert_int_lt(set("map", "=a"), 0);
    ck_assert_int_lt(set("map", "a=123456789"), 0);
    ck_assert_str_eq(err.message, "'map': '123456789' is longer than 8");
}

SL_TEST(many_items_keep_their_order)
{
    struct sl_list list = {0};
    char text[16];
    for (int i = 0; i < 10000; i++) {
        snprintf(text, sizeof(text), "%d", i);
        ck_assert_int_eq(sl_list_add(&list, text, strlen(text), &err), 0);
    }
    ck_assert_int_lt(sl_list_add(&list, "x", 1, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    for (int i = 0; i < 10000; i++) {
        ck_assert_int_eq(strtol(list.items[i], NULL, 10), i);
        free(list.items[i]);
    }
    free(list.items);
}

SL_TEST(spellings_follow_the_member)
{
    static const struct sl_option row = {
        .member = "range_bytes_max", .initial = "auto", .type = SL_OPTION_BYTES};
    char text[64];
    ck_assert_str_eq(sl_option_key(&row, text), "rangeBytesMax");
    ck_assert_str_eq(sl_option_kebab(&row, text), "range-bytes-max");
    ck_assert_str_eq(sl_option_value_name(&row), "SIZE|auto");
    ck_assert_str_eq(sl_exact_bytes(64 << 10, text), "64 KiB");
    ck_assert_str_eq(sl_exact_bytes(1025, text), "1025 bytes");
}

SL_TEST(the_nearest_word_is_a_typo_away)
{
    static const char *const words[] = {"include", "exclude", "connections", "range-bytes"};
    ck_assert_str_eq(sl_nearest("includes", words, 4), "include");
    ck_assert_str_eq(sl_nearest("inculde", words, 4), "include");
    ck_assert_str_eq(sl_nearest("rangeBytes", words, 4), "range-bytes");
    ck_assert_str_eq(sl_nearest("range_bytes", words, 4), "range-bytes");
    ck_assert_str_eq(sl_nearest("conection", words, 4), "connections");
    ck_assert_ptr_null(sl_nearest("zebra", words, 4));
    ck_assert_ptr_null(sl_nearest("", words, 4));
    char word[300];
    memset(word, 'a', sizeof(word) - 1);
    word[sizeof(word) - 1] = 0;
    ck_assert_ptr_null(sl_nearest(word, words, 4));
}

static int collect(const struct sl_option *row, const char *path, void *arg)
{
    (void)row;
    strncat(arg, path, 400 - strlen(arg));
    strncat(arg, " ", 400 - strlen(arg));
    return 0;
}

SL_TEST(a_walk_names_every_path)
{
    char paths[512] = "";
    sl_options_walk(&outer_table, collect, paths);
    ck_assert_str_eq(
        paths,
        "flag text number size rate mode list map inner inner.word inner.depth rules rules[].word "
        "rules[].depth ");
}

static int use_everything(struct sl_err *why)
{
    struct outer all;
    memset(&all, 0, sizeof(all));
    int done = sl_options_init(&outer_table, &all, why);
    static const char *const texts[][2] = {{"text", "some text"},
                                           {"list", "a,b,c,d,e,f,g,h,i,j"},
                                           {"map", "a=1,b=2,c=3"},
                                           {"inner.word", "other"}};
    for (size_t i = 0; i < SL_COUNT(texts) && done == 0; i++) {
        void *holder;
        const struct sl_option *row = find(&all, texts[i][0], &holder, why);
        done = row ? sl_option_set(row, holder, texts[i][1], false, why) : -1;
    }
    for (int i = 0; i < 10 && done == 0; i++)
        done = sl_items_add(&all.rules, &inner_table, why) ? 0 : -1;
    sl_options_release(&outer_table, &all);
    return done;
}

SL_TEST(every_failing_allocation_is_survived)
{
    sl_alloc_fail_at(0);
    ck_assert_int_eq(use_everything(&err), 0);
    unsigned count = sl_alloc_count();
    ck_assert_uint_gt(count, 20);
    for (unsigned nth = 1; nth <= count; nth++) {
        struct sl_err why = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        ck_assert_int_lt(use_everything(&why), 0);
        ck_assert_int_eq(why.kind, SL_E_NO_SPACE);
    }
    sl_alloc_fail_at(0);
}

SL_CASE(.setup = setup, .teardown = teardown)
