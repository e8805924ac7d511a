/* The token reader: strict RFC 8259, decoded in place, bounded depth. */
#include "json_pull.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "mem.h"

/* Reads all of text (an exact copy, for the address sanitizer); the last token: DONE or ERROR. */
static enum sl_pull_token read_all(const char *text, size_t bytes)
{
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, text, bytes);
    struct sl_pull pull;
    enum sl_pull_token token;
    unsigned tokens = 0;
    sl_pull_init(&pull, copy, bytes);
    do {
        token = sl_pull_next(&pull);
        ck_assert_uint_lt(++tokens, 10000);
    } while (token != SL_PULL_DONE && token != SL_PULL_ERROR);
    ck_assert_int_eq(sl_pull_next(&pull), token); /* sticks */
    ck_assert_int_eq(token == SL_PULL_ERROR, pull.why != NULL);
    ck_assert_uint_le(pull.at, bytes);
    free(copy);
    return token;
}

SL_TEST(json_is_accepted)
{
    static const char *const texts[] = {"{}",
                                        " [ ] ",
                                        "0",
                                        "-0.5e+10",
                                        "\"\"",
                                        "[1,2,[3]]",
                                        "{\"a\":{}}",
                                        "true",
                                        "null\n",
                                        "\"\\u00e9\\ud83d\\udc0d\"",
                                        "[false,\"a\\n\"]",
                                        "1E9",
                                        "{\"a\":1,\"b\":[{}]}"};
    for (unsigned i = 0; i < SL_COUNT(texts); i++)
        ck_assert_msg(read_all(texts[i], strlen(texts[i])) == SL_PULL_DONE, "%s", texts[i]);
}

SL_TEST(what_is_no_json_is_refused)
{
    static const char *const texts[] = {"",
                                        " ",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "[1,]",
                                        "{\"a\":1,}",
                                        "{,}",
                                        "[,]",
                                        "{\"a\"}",
                                        "{\"a\":}",
                                        "{1:2}",
                                        "{\"a\" 1}",
                                        "01",
                                        "-",
                                        "1.",
                                        ".5",
                                        "1e",
                                        "+1",
                                        "NaN",
                                        "Infinity",
                                        "tru",
                                        "nulll",
                                        "'a'",
                                        "\"a",
                                        "\"\\x\"",
                                        "\"\\u12\"",
                                        "\"\\ud800\"",
                                        "\"\\udc00\"",
                                        "\"\\ud800\\u0041\"",
                                        "\"\t\"",
                                        "[1 2]",
                                        "[1}",
                                        "{\"a\":1]",
                                        "1 2",
                                        "{} x",
                                        "/**/{}",
                                        "\xef\xbb\xbf{}",
                                        "[\"a\",]",
                                        "{\"a\":1 \"b\":2}",
                                        "\"\\",
                                        "\"\\u"};
    for (unsigned i = 0; i < SL_COUNT(texts); i++)
        ck_assert_msg(read_all(texts[i], strlen(texts[i])) == SL_PULL_ERROR, "%s", texts[i]);
    ck_assert_int_eq(read_all("{}\0", 3), SL_PULL_ERROR);
}

SL_TEST(every_prefix_is_refused)
{
    static const char text[] =
        "{\"a\\u00e9\":[1,-2.5e3,{\"b\":null}],\"c\":\"\\ud83d\\udc0d\\n\",\"d\":true}";
    for (size_t cut = 0; cut < sizeof(text) - 1; cut++)
        ck_assert_int_eq(read_all(text, cut), SL_PULL_ERROR);
    ck_assert_int_eq(read_all(text, sizeof(text) - 1), SL_PULL_DONE);
}

SL_TEST(sixty_four_levels_and_not_one_more)
{
    char text[130];
    for (size_t levels = 64; levels <= 65; levels++) {
        memset(text, '[', levels);
        memset(text + levels, ']', levels);
        ck_assert_int_eq(read_all(text, 2 * levels), levels == 64 ? SL_PULL_DONE : SL_PULL_ERROR);
    }
}

SL_TEST(strings_are_decoded_in_place)
{
    char text[] = "{\"k\\u00e9y\":\"a\\u0000\\\"\\/\\ud83d\\udc0d\"}";
    struct sl_pull pull;
    sl_pull_init(&pull, text, strlen(text));
    ck_assert_int_eq(sl_pull_next(&pull), SL_PULL_OBJECT);
    ck_assert_int_eq(sl_pull_next(&pull), SL_PULL_KEY);
    const char *key = pull.string;
    ck_assert_int_eq(sl_pull_next(&pull), SL_PULL_STRING);
    ck_assert_uint_eq(pull.string_bytes, 8);
    ck_assert_mem_eq(pull.string, "a\0\"/\xf0\x9f\x90\x8d", 9);
    ck_assert_str_eq(key, "k\xc3\xa9y"); /* still there */
    ck_assert_int_eq(sl_pull_next(&pull), SL_PULL_CLOSE);
    ck_assert_int_eq(sl_pull_next(&pull), SL_PULL_DONE);
}

SL_TEST(integers_are_plain_and_have_64_bits)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t value;
    } cases[] = {{"0", true, 0},
                 {"18446744073709551615", true, UINT64_MAX},
                 {"18446744073709551616", false, 0},
                 {"-1", false, 0},
                 {"-0", false, 0},
                 {"1.0", false, 0},
                 {"1e2", false, 0},
                 {"99999999999999999999", false, 0}};
    for (unsigned i = 0; i < SL_COUNT(cases); i++) {
        char text[32] = {0};
        memcpy(text, cases[i].text, strlen(cases[i].text));
        struct sl_pull pull;
        uint64_t value = 0;
        sl_pull_init(&pull, text, strlen(text));
        ck_assert_int_eq(sl_pull_next(&pull), SL_PULL_NUMBER);
        ck_assert_int_eq(sl_pull_uint(&pull, &value), cases[i].good);
        ck_assert(!cases[i].good || value == cases[i].value);
    }
}
