/* Patterns mean what they mean to Python, and mistakes in them are named. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "golden.h"
#include "patterns.h"

static struct sl_err err;

static void setup(void)
{
    err = (struct sl_err)SL_ERR_INIT;
    unsetenv("STORAGE_ALLOW_PATTERNS");
    unsetenv("STORAGE_IGNORE_PATTERNS");
}

/* The answers are those of fnmatch.fnmatch(name, pattern) of Python 3.11. */
SL_TEST(names_match_as_they_do_in_python)
{
    static const struct {
        const char *pattern, *name;
        bool matches;
    } rows[] = {
        {"*.json", "a.json", true},
        {"*.json", "sub/a.json", true},
        {"*.json", "a.jsonl", false},
        {"sub/*", "sub/a/b", true},
        {"?.bin", "é.bin", true},
        {"?.bin", "ab.bin", false},
        {"[ab].bin", "a.bin", true},
        {"[!ab].bin", "a.bin", false},
        {"[!ab].bin", "c.bin", true},
        {"[^ab].bin", "c.bin", false},
        {"[^ab].bin", "a.bin", true},
        {"[a-c]x", "bx", true},
        {"[c-a]x", "bx", false},
        {"[]]x", "]x", true},
        {"[!]]x", "]x", false},
        {"[x", "[x", true},
        {"a\\*", "a\\bc", true},
        {"a\\*", "a*", false},
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"**", "a/b", true},
        {"*a*b*c*", "xxaxxbxxc", true},
        {"*a*b*c*", "xxaxxcxxb", false},
        {"[a-]x", "-x", true},
        {"[--0]x", ".x", true},
        {"[é-ü]x", "öx", true},
        {"*.bin", "A.BIN", false},
        {"model-*-of-*.safetensors", "model-1-of-2.safetensors", true},
        {"[!a-c]", "d", true},
        {"a[b", "a[b", true},
        {"[]", "[]", true},
        {"[!]", "[!]", true},
        {"a]b", "a]b", true},
        {"*[0-9].bin", "w10.bin", true},
        {"??", "模型", true},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg(sl_pattern_matches(rows[i].pattern, rows[i].name) == rows[i].matches,
                      "'%s' '%s'", rows[i].pattern, rows[i].name);
}

SL_TEST(bytes_that_are_no_text_match_themselves)
{
    ck_assert(sl_pattern_matches("?\xc3", "\xff\xc3"));
    ck_assert(sl_pattern_matches("[\xc3]", "\xc3"));
    ck_assert(!sl_pattern_matches("\xe4\xbd", "\xe4"));
    ck_assert(sl_pattern_matches("*\xe4", "\xe4\xbd\xe4"));
}

SL_TEST(hostile_patterns_end_soon)
{
    char pattern[SL_PATTERN_BYTES_MAX], name[SL_PATTERN_BYTES_MAX];
    for (size_t i = 0; i + 2 < sizeof(pattern); i += 2)
        memcpy(pattern + i, "*a", 3);
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    ck_assert(sl_pattern_matches(pattern, name));
    name[sizeof(name) - 2] = 'b';
    ck_assert(!sl_pattern_matches(pattern, name));
}

static const char *parsed(const char *text)
{
    static char joined[4096];
    struct sl_list list = {0};
    joined[0] = 0;
    err = (struct sl_err)SL_ERR_INIT;
    int done = sl_patterns_parse("VARIABLE", text, &list, &err);
    for (size_t i = 0; i < list.count; i++) {
        strncat(joined, list.items[i], sizeof(joined) - strlen(joined) - 2);
        strncat(joined, "|", 2);
        free(list.items[i]);
    }
    free(list.items);
    return done < 0 ? err.message : joined;
}

SL_TEST(lists_are_json_or_have_commas)
{
    ck_assert_str_eq(parsed(NULL), "");
    ck_assert_str_eq(parsed("  "), "");
    ck_assert_str_eq(parsed("[\"*.json\", \" a b \", \"\"]"), "*.json|a b|");
    ck_assert_str_eq(parsed(" *.json , x,,"), "*.json|x|");
    ck_assert_str_eq(parsed("[]"), "");
    ck_assert_str_eq(parsed("\"*.json\""), "*.json|");
    ck_assert_str_eq(parsed("[ab].json,[0-9]*"), "[ab].json|[0-9]*|");
}

SL_TEST(lists_that_are_neither_are_refused_by_name)
{
    static const char *const texts[] = {"[\"*.json\"", "{\"a\": 1}", "\"x", "[\"a\",]"};
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        ck_assert_msg(strstr(parsed(texts[i]), "VARIABLE is not a list"), "%s", parsed(texts[i]));
    ck_assert_ptr_nonnull(strstr(parsed("[\"a\", 5]"), "VARIABLE: item 2 is not a string"));
    char many[4096];
    memset(many, ',', sizeof(many) - 1);
    for (size_t i = 0; i < sizeof(many) - 1; i += 2)
        many[i] = 'a';
    many[sizeof(many) - 1] = 0;
    ck_assert_ptr_nonnull(strstr(parsed(many), "pattern 1001 is one too many"));
    memset(many, 'a', 2000);
    ck_assert_ptr_nonnull(strstr(parsed(many), "pattern 1 is longer than 1024 bytes"));
}

static int read_both(void *arg, struct sl_err *why)
{
    struct sl_patterns patterns = {0};
    (void)arg;
    int done = sl_patterns_read(&patterns, why);
    if (done == 0) {
        ck_assert(sl_patterns_want(&patterns, "a.json"));
        ck_assert(!sl_patterns_want(&patterns, "old.json"));
        ck_assert(!sl_patterns_want(&patterns, "a.bin"));
    }
    sl_patterns_release(&patterns);
    return done;
}

SL_TEST(both_variables_count_and_failing_allocations_are_survived)
{
    struct sl_patterns none = {0};
    ck_assert(sl_patterns_want(&none, "anything"));
    setenv("STORAGE_ALLOW_PATTERNS", "[\"*.json\"]", 1);
    setenv("STORAGE_IGNORE_PATTERNS", "old*,x", 1);
    ck_assert_uint_ge(golden_each_allocation(read_both, NULL), 3);
}

SL_CASE(.setup = setup)
