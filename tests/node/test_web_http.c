/* The parsers behind shared files: ranges, dates, lists of ETags, paths. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "mem.h"
#include "web_http.h"

SL_TEST(ranges_mean_what_the_rfc_says)
{
    const struct {
        const char *text;
        uint64_t total;
        enum sl_web_range range;
        uint64_t begin, end;
    } cases[] = {
        {NULL, 10, SL_WEB_RANGE_NONE, 0, 0},
        {"bytes=0-0", 10, SL_WEB_RANGE_ONE, 0, 1},
        {"bytes=2-5", 10, SL_WEB_RANGE_ONE, 2, 6},
        {"BYTES= 2-5 ", 10, SL_WEB_RANGE_ONE, 2, 6},
        {"bytes=2-", 10, SL_WEB_RANGE_ONE, 2, 10},
        {"bytes=9-99", 10, SL_WEB_RANGE_ONE, 9, 10},
        {"bytes=0-99999999999999999999999", 10, SL_WEB_RANGE_ONE, 0, 10},
        {"bytes=-3", 10, SL_WEB_RANGE_ONE, 7, 10},
        {"bytes=-30", 10, SL_WEB_RANGE_ONE, 0, 10},
        {"bytes=10-", 10, SL_WEB_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=99999999999999999999999-", 10, SL_WEB_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=-0", 10, SL_WEB_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=0-", 0, SL_WEB_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=-1", 0, SL_WEB_RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=5-2", 10, SL_WEB_RANGE_NONE, 0, 0},
        {"bytes=0-1,4-5", 10, SL_WEB_RANGE_NONE, 0, 0},
        {"bytes=", 10, SL_WEB_RANGE_NONE, 0, 0},
        {"bytes=-", 10, SL_WEB_RANGE_NONE, 0, 0},
        {"bytes=a-b", 10, SL_WEB_RANGE_NONE, 0, 0},
        {"bytes=1", 10, SL_WEB_RANGE_NONE, 0, 0},
        {"bytes=+1-2", 10, SL_WEB_RANGE_NONE, 0, 0},
        {"items=0-1", 10, SL_WEB_RANGE_NONE, 0, 0},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        uint64_t begin = 0, end = 0;
        ck_assert_int_eq(sl_web_range_parse(cases[i].text, cases[i].total, &begin, &end),
                         cases[i].range);
        ck_assert_uint_eq(begin, cases[i].begin);
        ck_assert_uint_eq(end, cases[i].end);
    }
}

SL_TEST(dates_are_read_back_as_written)
{
    char text[32];
    const int64_t times[] = {0, 951782400, 1700000000, 4102444799};
    for (size_t i = 0; i < SL_COUNT(times); i++)
        ck_assert_int_eq(sl_web_date_parse(sl_web_date(times[i], text)), times[i]);
    ck_assert_str_eq(sl_web_date(784111777, text), "Sun, 06 Nov 1994 08:49:37 GMT");
    const char *bad[] = {"",
                         "Sunday, 06-Nov-94 08:49:37 GMT",
                         "Sun Nov  6 08:49:37 1994",
                         "Sun, 06 Nov 1994 08:49:37 UTC",
                         "Sun, 06 Nop 1994 08:49:37 GMT",
                         "Sun, 06 anF 1994 08:49:37 GMT",
                         "Sun, 06 Nov 1994 08:49:37 GMT "};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_int_eq(sl_web_date_parse(bad[i]), -1);
    ck_assert_int_eq(sl_web_date_parse(NULL), -1);
}

SL_TEST(lists_of_etags_are_searched_strongly_or_weakly)
{
    ck_assert(sl_web_etag_listed("\"a\"", "\"a\"", false));
    ck_assert(sl_web_etag_listed("\"b\", \"a\"", "\"a\"", false));
    ck_assert(sl_web_etag_listed("*", "\"a\"", false));
    ck_assert(!sl_web_etag_listed("W/\"a\"", "\"a\"", false));
    ck_assert(sl_web_etag_listed("W/\"b\",W/\"a\"", "\"a\"", true));
    ck_assert(!sl_web_etag_listed("\"ab\"", "\"a\"", true));
    ck_assert(!sl_web_etag_listed("a", "\"a\"", true));
    ck_assert(!sl_web_etag_listed("\"a", "\"a\"", true));
    ck_assert(!sl_web_etag_listed("", "\"a\"", true));
}

SL_TEST(paths_cannot_climb_or_hide)
{
    char path[SL_WEB_PATH_BYTES];
    const struct {
        const char *url;
        int status;
        const char *path;
    } cases[] = {
        {"/", 0, ""},
        {"/a/b", 0, "a/b"},
        {"/a/", 0, "a/"},
        {"/a%20b%2B", 0, "a b+"},
        {"/a?x=/../", 0, "a"},
        {"/..", 404, ""},
        {"/a/../b", 404, ""},
        {"/%2e%2E/b", 404, ""},
        {"/a%2f..%2fb", 404, ""},
        {"/./a", 404, ""},
        {"//a", 404, ""},
        {"/a//b", 404, ""},
        {"/.sluice", 404, ""},
        {"/a/.sluice/ready", 404, ""},
        {"/a/%2esluice", 404, ""},
        {"/.sluiced", 0, ".sluiced"},
        {"/a/.m.sluice-edit", 404, ""},
        {"/.m.sluice%2dnew", 404, ""},
        {"/.m.sluice-lock/x", 404, ""},
        {"/m.sluice-edit", 0, "m.sluice-edit"},
        {"/...", 0, "..."},
        {"", 400, ""},
        {"a", 400, ""},
        {"/%", 400, ""},
        {"/%4", 400, ""},
        {"/%4g", 400, ""},
        {"/a%00b", 400, ""},
        {"http://x/", 400, ""},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        ck_assert_int_eq(sl_web_path_decode(cases[i].url, path), cases[i].status);
        if (!cases[i].status)
            ck_assert_str_eq(path, cases[i].path);
    }
    char url[SL_WEB_PATH_BYTES + 8];
    memset(url, 'a', sizeof(url));
    url[0] = '/';
    url[SL_WEB_PATH_BYTES + 7] = 0;
    ck_assert_int_eq(sl_web_path_decode(url, path), 414);
    url[258] = 0;
    ck_assert_int_eq(sl_web_path_decode(url, path), 404);
    url[256] = 0;
    ck_assert_int_eq(sl_web_path_decode(url, path), 0);
}
