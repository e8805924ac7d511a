/* `source.through` of a spec: in brief and at length, with settings over it, and the caches that
 * the environment names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "spec_case.h"
#include "through.h"

#define THROUGH(text) HEAD "source: {uri: /m/, through: " text "}\nsink: {tmpfs: {path: /t}}\n"
#define AT_LENGTH     "{caches: ['http://a:1', 'http://b:2'], blockBytes: 1Mi, unverified: warn}"

static void setup(void)
{
    spec_case_setup();
    unsetenv("SLUICE_THROUGH");
}

/* "http://a:1 http://b:2" */
static const char *caches(void)
{
    static char text[512];
    const struct sl_list *list = &specs.items[0].source.through.caches;
    *text = 0;
    for (size_t i = 0; i < list->count; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? " " : "",
                 list->items[i]);
    return text;
}

static void must_be(const char *wanted, uint64_t block_bytes, enum sl_unverified unverified)
{
    const struct sl_spec_through *through = &specs.items[0].source.through;
    ck_assert_str_eq(caches(), wanted);
    ck_assert_uint_eq(through->block_bytes, block_bytes);
    ck_assert_int_eq((int)through->unverified, (int)unverified);
}

static void must_parse(const char *text)
{
    ck_assert_msg(parse(text) == 0, "%s: %s", text, err.message);
}

static void must_set(const char *text, const char *path, const char *value)
{
    const struct sl_spec_setting setting = {path, value, "--flag"};
    ck_assert_msg(parse_with(text, &setting, 1) == 0, "%s: %s", text, err.message);
}

enum { USUAL = 8 << 20 };

SL_TEST(caches_are_a_text_or_a_list_or_a_section)
{
    struct sl_source_config config;
    must_parse(GOOD);
    must_be("", USUAL, SL_UNVERIFIED_REFUSE);
    must_parse(THROUGH("'http://a:1'"));
    must_be("http://a:1", USUAL, SL_UNVERIFIED_REFUSE);
    must_parse(THROUGH("['http://a:1', 'https://b']"));
    must_be("http://a:1 https://b", USUAL, SL_UNVERIFIED_REFUSE);
    must_parse(THROUGH("['http://[::1]:80/', 'http://${BUCKET}']"));
    must_be("http://[::1]:80/ http://models", USUAL, SL_UNVERIFIED_REFUSE);
    must_parse(THROUGH(AT_LENGTH));
    must_be("http://a:1 http://b:2", 1 << 20, SL_UNVERIFIED_WARN);
    sl_spec_source_config(specs.items, NULL, NULL, &config);
    ck_assert_uint_eq(config.through.count, 2);
    ck_assert_str_eq(config.through.urls[1], "http://b:2");
    ck_assert_uint_eq(config.through.block_bytes, 1 << 20);
    ck_assert_int_eq((int)config.through.unverified, SL_UNVERIFIED_WARN);
    must_parse(THROUGH("{unverified: direct}"));
    must_be("", USUAL, SL_UNVERIFIED_DIRECT);
}

SL_TEST(a_quarter_of_the_blocks_may_be_asked_of_the_origin_unless_said)
{
    static const struct {
        const char *text;
        double share;
    } rows[] = {{THROUGH("'http://a:1'"), 0.25},
                {THROUGH("{originShare: 1}"), 1},
                {THROUGH("{originShare: 0.05}"), 0.05},
                {THROUGH("{originShare: .5}"), 0.5}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_source_config config;
        must_parse(rows[i].text);
        sl_spec_source_config(specs.items, NULL, NULL, &config);
        ck_assert_double_eq(config.through.origin_share, rows[i].share);
    }
}

SL_TEST(loads_without_hedges_wait_for_slow_caches)
{
    static const struct {
        const char *text;
        bool waits;
    } rows[] = {{THROUGH("'http://a:1'"), false},
                {THROUGH("'http://a:1'") "readers: {hedge: off}\n", true},
                {THROUGH("'http://a:1'") "readers: {fixed: connections=4}\n", true}};
    unsetenv("SLUICE_FIXED");
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_source_config config;
        must_parse(rows[i].text);
        sl_spec_source_config(specs.items, NULL, NULL, &config);
        ck_assert(config.through.waits == rows[i].waits);
    }
}

SL_TEST(nothing_is_no_cache)
{
    static const char *const none[] = {THROUGH(""), THROUGH("[]"), THROUGH("{}"),
                                       THROUGH("{caches: []}"), THROUGH("{caches: }")};
    for (size_t i = 0; i < SL_COUNT(none); i++) {
        must_parse(none[i]);
        must_be("", USUAL, SL_UNVERIFIED_REFUSE);
    }
}

static const char *const forms[] = {GOOD, THROUGH("'http://a:1'"), THROUGH("['http://a:1']"),
                                    THROUGH(AT_LENGTH)};

SL_TEST(the_flag_names_all_caches_and_leaves_the_rest)
{
    for (size_t i = 0; i < SL_COUNT(forms); i++) {
        bool at_length = i == SL_COUNT(forms) - 1;
        uint64_t block = at_length ? 1 << 20 : USUAL;
        enum sl_unverified unverified = at_length ? SL_UNVERIFIED_WARN : SL_UNVERIFIED_REFUSE;
        must_set(forms[i], "source.through.caches", "http://c:3");
        must_be("http://c:3", block, unverified);
        must_set(forms[i], "source.through.caches", "http://c:3,http://d:4");
        must_be("http://c:3 http://d:4", block, unverified);
        must_set(forms[i], "source.through.caches", "['http://c:3', 'http://d:4']");
        must_be("http://c:3 http://d:4", block, unverified);
        must_set(forms[i], "source.through.caches", "");
        must_be("", block, unverified);
    }
}

/* Whoever sets how long a block is has not said that there are no caches. */
SL_TEST(a_setting_beside_the_caches_leaves_them)
{
    static const char *const kept[] = {"", "http://a:1", "http://a:1", "http://a:1 http://b:2"};
    for (size_t i = 0; i < SL_COUNT(forms); i++) {
        bool at_length = i == SL_COUNT(forms) - 1;
        must_set(forms[i], "source.through.blockBytes", "2Mi");
        must_be(kept[i], 2 << 20, at_length ? SL_UNVERIFIED_WARN : SL_UNVERIFIED_REFUSE);
        must_set(forms[i], "source.through.unverified", "direct");
        must_be(kept[i], at_length ? 1 << 20 : USUAL, SL_UNVERIFIED_DIRECT);
    }
}

SL_TEST(the_environment_names_caches_where_the_spec_names_none)
{
    setenv("SLUICE_THROUGH", "http://e:5,http://f:6", 1);
    must_parse(GOOD);
    must_be("http://e:5 http://f:6", USUAL, SL_UNVERIFIED_REFUSE);
    must_parse(THROUGH("{blockBytes: 1Mi, unverified: warn}"));
    must_be("http://e:5 http://f:6", 1 << 20, SL_UNVERIFIED_WARN);
    must_parse(THROUGH("'http://a:1'"));
    must_be("http://a:1", USUAL, SL_UNVERIFIED_REFUSE);
    must_set(GOOD, "source.through.caches", "http://c:3");
    must_be("http://c:3", USUAL, SL_UNVERIFIED_REFUSE);
    must_parse(THROUGH("[]"));
    must_be("", USUAL, SL_UNVERIFIED_REFUSE);
    must_parse(THROUGH("{caches: [], blockBytes: 1Mi}"));
    must_be("", 1 << 20, SL_UNVERIFIED_REFUSE);
    must_set(THROUGH("'http://a:1'"), "source.through.caches", "");
    must_be("", USUAL, SL_UNVERIFIED_REFUSE);
    setenv("SLUICE_THROUGH", "", 1);
    must_parse(GOOD);
    must_be("", USUAL, SL_UNVERIFIED_REFUSE);
    setenv("SLUICE_THROUGH", "http://e:5/models", 1);
    expect(GOOD, "SLUICE_THROUGH: a cache is named as http://HOST:PORT, and no more\n");
    setenv("SLUICE_THROUGH", "e:5", 1);
    expect(GOOD, "SLUICE_THROUGH: bad URL 'e:5': it begins with neither http:// nor https://\n");
}

static struct sl_list some = {(char *[]){(char[]){"http://n:1"}, (char[]){"http://n:2"}}, 2};

/* What a spec says itself, and of a default that names everything, or nothing, what is taken. */
SL_TEST(a_default_is_for_what_a_spec_leaves_open)
{
    static char share[] = "0.5";
    const struct sl_spec_through all = {
        some, 2 << 20, SL_UNVERIFIED_WARN, share, {true, true, true, true}};
    const struct sl_spec_through rest = {
        {0}, 2 << 20, SL_UNVERIFIED_WARN, share, {false, true, true, true}};
    const struct sl_spec_through none = {{0}, USUAL, SL_UNVERIFIED_REFUSE, share, {true}};
    static const struct sl_spec_through nothing;
    static const char two[] = "http://n:1 http://n:2", environment[] = "http://e:5";
    const struct {
        const char *text;
        const struct sl_spec_through *from;
        const char *caches;
        uint64_t block_bytes;
        enum sl_unverified unverified;
        const char *share;
    } rows[] = {
        {GOOD, &all, two, 2 << 20, SL_UNVERIFIED_WARN, "0.5"},
        {THROUGH(""), &all, two, 2 << 20, SL_UNVERIFIED_WARN, "0.5"},
        {THROUGH("{unverified: direct}"), &all, two, 2 << 20, SL_UNVERIFIED_DIRECT, "0.5"},
        {THROUGH("{blockBytes: 1Mi, originShare: 1}"), &all, two, 1 << 20, SL_UNVERIFIED_WARN, "1"},
        {THROUGH("[]"), &all, "", USUAL, SL_UNVERIFIED_REFUSE, "0.25"},
        {THROUGH("'http://a:1'"), &all, "http://a:1", USUAL, SL_UNVERIFIED_REFUSE, "0.25"},
        {GOOD, &rest, environment, 2 << 20, SL_UNVERIFIED_WARN, "0.5"},
        {GOOD, &none, "", USUAL, SL_UNVERIFIED_REFUSE, "0.25"},
        {GOOD, &nothing, environment, USUAL, SL_UNVERIFIED_REFUSE, "0.25"},
    };
    setenv("SLUICE_THROUGH", environment, 1);
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        must_parse(rows[i].text);
        ck_assert_int_eq(sl_spec_inherit_through(specs.items, rows[i].from, &err), 0);
        must_be(rows[i].caches, rows[i].block_bytes, rows[i].unverified);
        ck_assert_str_eq(specs.items->source.through.origin_share, rows[i].share);
    }
}

SL_TEST(what_is_no_cache_is_told_with_its_place)
{
#define NO_MORE "a cache is named as http://HOST:PORT, and no more\n"
#define NO_URL  "it begins with neither http:// nor https://\n"
    static const struct {
        const char *text, *wanted;
    } rows[] = {
        {THROUGH("'http://a:1/models'"), "m.yaml:4:29: 'caches': " NO_MORE},
        {THROUGH("'http://a:1?x=1'"), "m.yaml:4:29: 'caches': " NO_MORE},
        {THROUGH("'http://a:1#x'"), "m.yaml:4:29: 'caches': " NO_MORE},
        {THROUGH("'http://a:1/#'"), "m.yaml:4:29: 'caches': " NO_MORE},
        {THROUGH("['http://a', 'http://u:secret@b']"), "m.yaml:4:42: 'caches': " NO_MORE},
        {THROUGH("{caches: ['http://a/b']}"), "m.yaml:4:39: 'caches': " NO_MORE},
        {THROUGH("'ftp://a'"), "m.yaml:4:29: 'caches': bad URL 'ftp://a': " NO_URL},
        {THROUGH("''"), "m.yaml:4:29: 'caches': bad URL '': " NO_URL},
        {THROUGH("8080"), "m.yaml:4:29: 'caches': bad URL '8080': " NO_URL},
        {THROUGH("['a:8080']"), "m.yaml:4:30: 'caches': bad URL 'a:8080': " NO_URL},
        {THROUGH("'http://'"), "m.yaml:4:29: 'caches': bad URL 'http://': it names no host\n"},
        {THROUGH("'http://a,http://b'"),
         "m.yaml:4:29: 'caches': bad URL 'http://a,http://b': the host name has characters that "
         "host names do not have, or is too long\n"},
        {THROUGH("[['http://a']]"),
         "m.yaml:4:30: 'source.through' must be a list of texts, not a list\n"},
        {THROUGH("[{a: b}]"),
         "m.yaml:4:30: 'source.through' must be a list of texts, not a mapping\n"},
        {THROUGH("{caches: 'http://a'}"),
         "m.yaml:4:38: 'source.through.caches' must be a list such as [one, two], not a text\n"},
        {THROUGH("{caches: {a: b}}"),
         "m.yaml:4:38: 'source.through.caches' must be a list such as [one, two], not a "
         "mapping\n"},
        {THROUGH("{cache: ['http://a']}"),
         "m.yaml:4:30: unknown key 'cache' in 'source.through', did you mean 'caches'?\n"},
        {THROUGH("{blockBytes: 1Ki}"),
         "m.yaml:4:42: 'blockBytes': expected a size from 64 KiB to 1 GiB, not '1Ki'\n"},
        {THROUGH("{blockBytes: 2Gi}"),
         "m.yaml:4:42: 'blockBytes': expected a size from 64 KiB to 1 GiB, not '2Gi'\n"},
        {THROUGH("{originShare: 0}"),
         "m.yaml:4:43: 'originShare': expected a number above 0 and at most 1, such as 0.25\n"},
        {THROUGH("{originShare: 1.5}"),
         "m.yaml:4:43: 'originShare': expected a number above 0 and at most 1, such as 0.25\n"},
        {THROUGH("{originShare: 1e-1}"),
         "m.yaml:4:43: 'originShare': expected a number above 0 and at most 1, such as 0.25\n"},
        {THROUGH("{originShare: -0.5}"),
         "m.yaml:4:43: 'originShare': expected a number above 0 and at most 1, such as 0.25\n"},
        {THROUGH("{unverified: maybe}"),
         "m.yaml:4:42: 'unverified': expected one of refuse|warn|direct, not 'maybe'\n"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        expect(rows[i].text, rows[i].wanted);
}

SL_TEST(a_wrong_setting_is_told_by_its_name)
{
    static const struct {
        const char *path, *value, *wanted;
    } rows[] = {
        {"source.through.caches", "http://a/b", "--flag: " NO_MORE},
        {"source.through.caches", "a:1", "--flag: bad URL 'a:1': " NO_URL},
        {"source.through", "http://a",
         "--flag: 'source.through' is a section: name one of its keys, such as "
         "'source.through.KEY'\n"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        const struct sl_spec_setting setting = {rows[i].path, rows[i].value, "--flag"};
        ck_assert_int_eq(parse_with(GOOD, &setting, 1), -1);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_str_eq(sl_buf_string(&complaints), rows[i].wanted);
    }
}

SL_CASE(.setup = setup, .teardown = spec_case_reset)
