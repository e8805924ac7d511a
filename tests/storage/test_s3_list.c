/* Listings: paging, encoding, folders, and pages that lie. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "range_server.h"
#include "s3_options.h"
#include "s3_store.h"
#include "stores.h"
#include "xml.h"

static struct sl_source_config config;
static struct sl_s3_options s3;
static struct sl_err err;

static void setup(void)
{
    clearenv();
    s3 = (struct sl_s3_options){.anonymous = true};
    config = (struct sl_source_config){.options = {{&sl_s3_table, &s3}}, .attempts = 3};
    err = (struct sl_err)SL_ERR_INIT;
}

static int collect(const struct sl_entry *entry, void *arg, struct sl_err *ignored)
{
    return sl_buf_printf(arg, ignored, "%s=%" PRIu64 "%s%s\n", entry->name, entry->bytes,
                         *entry->etag ? " " : "", entry->etag);
}

#define PAGE(frame, contents)                                                                      \
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult "                               \
    "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">" frame contents "</ListBucketResult>"
#define ENTRY(key, size)                                                                           \
    "<Contents><Key>" key "</Key><LastModified>2026</LastModified><ETag>&quot;e&quot;</ETag>"      \
    "<Size>" size "</Size><Owner><ID>x</ID></Owner></Contents>"
#define URL_ENCODED "<EncodingType>url</EncodingType>"

/* ---- one page ------------------------------------------------------------------------------- */

static int parse(const char *text, const char *prefix, struct sl_buf *out, char **token)
{
    uint64_t entries;
    struct sl_s3_next next;
    int result = sl_s3_page_parse(text, strlen(text), "s3://b/p/", prefix, collect, out, &next,
                                  &entries, &err);
    *token = next.text;
    ck_assert(!next.is_key);
    return result;
}

static void expect_page(const char *text, const char *prefix, const char *lines,
                        const char *expected_token)
{
    sl_autobuf out = SL_BUF_INIT(64 * 1024);
    sl_autofree char *token = NULL;
    ck_assert_msg(parse(text, prefix, &out, &token) == 0, "%s", err.message);
    ck_assert_str_eq(sl_buf_string(&out), lines);
    ck_assert_pstr_eq(token, expected_token);
}

SL_TEST(keys_are_decoded_only_when_the_page_says_so)
{
    expect_page(PAGE("", ENTRY("p/a+b%20c", "1")), "p/", "a+b%20c=1 \"e\"\n", NULL);
    expect_page(PAGE(URL_ENCODED, ENTRY("p%2Fa+b%20c%2b%c3%A9", "1")), "p/",
                "a b c+\xc3\xa9=1 \"e\"\n", NULL);
    expect_page(PAGE("", ENTRY("p/a+b%20c", "1") URL_ENCODED), "p/", "a b c=1 \"e\"\n", NULL);
    expect_page(PAGE("", ENTRY("a&amp;b&lt;&#xe9;", "0")), "", "a&b<\xc3\xa9=0 \"e\"\n", NULL);
}

SL_TEST(folder_markers_are_left_out_and_empty_files_are_kept)
{
    expect_page(PAGE("<KeyCount>4</KeyCount>", ENTRY("p/", "0") ENTRY("p/sub/", "0") ENTRY(
                                                   "p/sub/__init__.py", "0") ENTRY("p/odd/", "3")),
                "p/", "sub/__init__.py=0 \"e\"\nodd/=3 \"e\"\n", NULL);
}

SL_TEST(the_token_is_taken_as_it_is_and_only_if_there_is_more)
{
    expect_page(PAGE(URL_ENCODED "<IsTruncated>true</IsTruncated>"
                                 "<NextContinuationToken>1+/%20=</NextContinuationToken>",
                     ENTRY("p/a", "1")),
                "p/", "a=1 \"e\"\n", "1+/%20=");
    expect_page(
        PAGE("<IsTruncated>false</IsTruncated><NextContinuationToken>x</NextContinuationToken>",
             ""),
        "", "", NULL);
}

SL_TEST(common_prefixes_and_foreign_elements_are_no_objects)
{
    expect_page(PAGE("<Prefix>p/</Prefix><CommonPrefixes><Prefix>p/z/</Prefix></CommonPrefixes>",
                     "<Other><Contents><Key>x</Key></Contents></Other>" ENTRY("p/a", "1")),
                "p/", "a=1 \"e\"\n", NULL);
}

SL_TEST(hostile_pages_are_refused)
{
    static const char *const pages[] = {
        PAGE("", ENTRY("q/a", "1")),
        PAGE("", ENTRY("p", "1")),
        PAGE("", ENTRY("p/", "1")),
        PAGE("", ENTRY("p/a", "")),
        PAGE("", ENTRY("p/a", "-1")),
        PAGE("", ENTRY("p/a", "1e3")),
        PAGE("", ENTRY("p/a", "99999999999999999999")),
        PAGE("", ENTRY("", "1")),
        PAGE("", "<Contents><Key>p/a</Key></Contents>"),
        PAGE("", "<Contents><Size>1</Size></Contents>"),
        PAGE(URL_ENCODED, ENTRY("p/%00", "1")),
        PAGE(URL_ENCODED, ENTRY("p/%", "1")),
        PAGE(URL_ENCODED, ENTRY("p/%4", "1")),
        PAGE(URL_ENCODED, ENTRY("p/%g0", "1")),
        PAGE("<IsTruncated>true</IsTruncated>", ""),
        PAGE("<IsTruncated>true</IsTruncated><NextContinuationToken/>", ""),
        "<Error><Code>NoSuchKey</Code></Error>",
        "<html><body>It works!</body></html>",
        "{}",
        "",
    };
    for (size_t i = 0; i < SL_COUNT(pages); i++) {
        sl_autobuf out = SL_BUF_INIT(64 * 1024);
        sl_autofree char *token = NULL;
        err = (struct sl_err)SL_ERR_INIT;
        ck_assert_msg(parse(pages[i], "p/", &out, &token) == -1, "%s", pages[i]);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        ck_assert_ptr_nonnull(strstr(err.message, "cannot list 's3://b/p/'"));
        ck_assert_ptr_null(token);
    }
}

SL_TEST(keys_of_1024_bytes_are_taken_and_longer_ones_refused)
{
    for (int bytes = SL_S3_KEY_BYTES_MAX; bytes <= SL_S3_KEY_BYTES_MAX + 1; bytes++) {
        char key[SL_S3_KEY_BYTES_MAX + 2] = "", text[4096];
        memset(key, 'k', (size_t)bytes);
        snprintf(text, sizeof(text), PAGE("", ENTRY("%s", "1")), key);
        sl_autobuf out = SL_BUF_INIT(64 * 1024);
        sl_autofree char *token = NULL;
        ck_assert_int_eq(parse(text, "", &out, &token), bytes > SL_S3_KEY_BYTES_MAX ? -1 : 0);
    }
}

SL_TEST(every_prefix_of_a_page_is_refused)
{
    static const char page[] = PAGE(URL_ENCODED, ENTRY("p/a", "1") ENTRY("p/b", "2"));
    for (size_t bytes = 0; bytes < sizeof(page) - 1; bytes++) {
        sl_autobuf out = SL_BUF_INIT(64 * 1024);
        struct sl_s3_next next;
        uint64_t entries;
        ck_assert_int_eq(
            sl_s3_page_parse(page, bytes, "s3://b/p/", "p/", collect, &out, &next, &entries, &err),
            -1);
        ck_assert_ptr_null(next.text);
        ck_assert_uint_eq(out.used, 0);
    }
}

SL_TEST(every_failing_allocation_is_survived)
{
    static const char page[] =
        PAGE("<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>",
             ENTRY("p/a", "1"));
    for (unsigned nth = 1; nth < 50; nth++) {
        sl_autobuf out = SL_BUF_INIT(64 * 1024);
        sl_autofree char *token = NULL;
        sl_alloc_fail_at(nth);
        int result = parse(page, "p/", &out, &token);
        sl_alloc_fail_at(0);
        if (result == 0) {
            ck_assert_uint_gt(nth, 1);
            return;
        }
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
    ck_abort_msg("never succeeded");
}

/* ---- all pages ------------------------------------------------------------------------------ */

enum mode { HONEST, SAME_TOKEN, CIRCLE, EMPTY, NOTHING };
struct bucket {
    enum mode mode;
    unsigned pages, asked;
};

/* Answers with page N for the token "t+/N"; the last one is bucket->pages. */
static bool bucket(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    struct bucket *b = arg;
    unsigned page = 0;
    char next[64] = "", contents[256] = "";
    const char *token = strstr(request->target, "continuation-token=");
    ck_assert_int_eq(strncmp(request->target, "/bucket?", 8), 0);
    ck_assert_ptr_nonnull(
        strstr(request->target, "encoding-type=url&list-type=2&max-keys=1000&prefix=m%20%2B%2F"));
    if (token)
        ck_assert_int_eq(sscanf(token, "continuation-token=t%%2B%%2F%u&", &page), 1);
    if (!b->asked++)
        return false; /* the script's */
    unsigned number = b->mode == SAME_TOKEN ? 7 : b->mode == CIRCLE ? (page + 1) % 5 : page + 1;
    bool last = b->mode == NOTHING || (b->mode == HONEST && page + 1 == b->pages);
    if (!last)
        snprintf(next, sizeof(next), "<NextContinuationToken>t+/%u</NextContinuationToken>",
                 number);
    if (b->mode != EMPTY && b->mode != NOTHING)
        snprintf(contents, sizeof(contents), ENTRY("m+%%2B/f%u", "5"), page);
    ck_assert_int_gt(asprintf(&reply->body,
                              PAGE(URL_ENCODED "<IsTruncated>%s</IsTruncated>%s", "%s"),
                              last ? "false" : "true", next, contents),
                     0);
    reply->body_bytes = strlen(reply->body);
    return true;
}

static int list(enum mode mode, unsigned pages, struct sl_buf *out, unsigned *asked)
{
    struct bucket b = {.mode = mode, .pages = pages};
    struct sl_server *server = sl_server_start();
    sl_server_handle(server, bucket, &b);
    SL_SCRIPT(server, {.fault = SL_FAULT_STATUS,
                       .status = 503,
                       .headers = "",
                       .text = "<Error><Code>SlowDown</Code></Error>"});
    s3.endpoint = (char *)sl_server_url(server, "");
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open("s3://bucket/m +/", &config, &store, &key, &err), 0);
    ck_assert_str_eq(key, "");
    int result = sl_store_list(store, collect, out, &err);
    sl_server_stop(server);
    *asked = b.asked;
    return result;
}

SL_TEST(all_pages_are_listed_and_a_busy_store_is_asked_again)
{
    sl_autobuf out = SL_BUF_INIT(64 * 1024);
    unsigned asked;
    ck_assert_msg(list(HONEST, 12, &out, &asked) == 0, "%s", err.message);
    ck_assert_uint_eq(asked, 13);
    for (unsigned i = 0; i < 12; i++) {
        char line[32];
        snprintf(line, sizeof(line), "f%u=5 \"e\"\n", i);
        ck_assert_ptr_nonnull(strstr(out.data, line));
    }
}

SL_TEST(pages_that_go_in_circles_are_noticed)
{
    static const enum mode modes[] = {SAME_TOKEN, CIRCLE, EMPTY};
    for (size_t i = 0; i < SL_COUNT(modes); i++) {
        sl_autobuf out = SL_BUF_INIT(64 * 1024);
        unsigned asked;
        ck_assert_int_eq(list(modes[i], 0, &out, &asked), -1);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        ck_assert_ptr_nonnull(strstr(err.message, "in a circle"));
        ck_assert_uint_lt(asked, modes[i] == EMPTY ? 1100 : 30);
    }
}

/* A store that passes over list-type: two keys a page, and no tokens. */
struct first_version {
    unsigned asked;
    bool stuck; /* passes over the marker, too */
};

static bool first_version(const struct sl_server_request *request, struct sl_server_reply *reply,
                          void *arg)
{
    static const char *const keys[] = {"m/a%2B%20", "m/b+%26", "m/c", "m/d%2F", "m/e"};
    struct first_version *store = arg;
    const char *query = strchr(request->target, '?') + 1, *size = "5";
    unsigned first = 0;
    char contents[1024];
    if (store->asked++)
        ck_assert_int_eq(strncmp(query, "encoding-type=url&marker=m%2F", 29), 0);
    else
        ck_assert_str_eq(query, "encoding-type=url&list-type=2&max-keys=1000&prefix=m%2F");
    if (strstr(query, "&marker=m%2Fb%20%26&max-keys=1000&prefix=m%2F"))
        first = 2;
    else if (strstr(query, "&marker=m%2Fd%2F&"))
        first = 4;
    if (store->stuck)
        first = 0;
    snprintf(contents, sizeof(contents), ENTRY("%s", "5"), keys[first]);
    if (first < 4) {
        size_t used = strlen(contents);
        size = first == 2 ? "0" : "5"; /* a folder's marker is the last of its page */
        snprintf(contents + used, sizeof(contents) - used, ENTRY("%s", "%s"), keys[first + 1],
                 size);
    }
    ck_assert_int_gt(asprintf(&reply->body, PAGE(URL_ENCODED "<IsTruncated>%s</IsTruncated>", "%s"),
                              first < 4 ? "true" : "false", contents),
                     0);
    reply->body_bytes = strlen(reply->body);
    return true;
}

SL_TEST_LOOP(a_store_of_the_first_version_is_listed_by_markers, 0, 2)
{
    struct first_version pages = {.stuck = _i};
    struct sl_server *server = sl_server_start();
    sl_server_handle(server, first_version, &pages);
    s3.endpoint = (char *)sl_server_url(server, "");
    sl_autobuf out = SL_BUF_INIT(64 * 1024);
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open("s3://bucket/m/", &config, &store, &key, &err), 0);
    int result = sl_store_list(store, collect, &out, &err);
    sl_server_stop(server);
    ck_assert_msg(result == -_i, "%s", err.message);
    if (_i)
        ck_assert_ptr_nonnull(strstr(err.message, "in a circle"));
    else
        ck_assert_str_eq(sl_buf_string(&out), "a+ =5 \"e\"\nb &=5 \"e\"\nc=5 \"e\"\ne=5 \"e\"\n");
}

SL_TEST(a_prefix_without_objects_is_not_found)
{
    sl_autobuf out = SL_BUF_INIT(64 * 1024);
    unsigned asked;
    ck_assert_int_eq(list(NOTHING, 0, &out, &asked), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.message, "no object below 's3://bucket/m +/'"));
}

/* Lists more than it was asked for. */
static bool generous(const struct sl_server_request *request, struct sl_server_reply *reply,
                     void *arg)
{
    *(bool *)arg = strstr(request->target, "&prefix=m%2Fpart%20") != NULL;
    ck_assert_int_gt(asprintf(&reply->body, PAGE("", ENTRY("m/part 1", "1") ENTRY("m/other", "1"))),
                     0);
    reply->body_bytes = strlen(reply->body);
    return true;
}

SL_TEST(the_store_is_asked_for_names_that_begin_as_wanted_and_gives_no_others)
{
    struct sl_server *server = sl_server_start();
    bool asked = false;
    sl_server_handle(server, generous, &asked);
    s3.endpoint = (char *)sl_server_url(server, "");
    sl_autobuf out = SL_BUF_INIT(64 * 1024);
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open("s3://bucket/m/", &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_store_list_begin(store, "part ", collect, &out, &err), 0);
    ck_assert_str_eq(sl_buf_string(&out), "part 1=1 \"e\"\n");
    ck_assert(asked);
    sl_server_stop(server);
}

static int stop_at_first(const struct sl_entry *entry, void *arg, struct sl_err *why)
{
    ++*(unsigned *)arg;
    return sl_fail(why, SL_E_USAGE, "enough of %s", entry->name);
}

SL_TEST(refusals_of_listings_name_the_right_that_is_missing)
{
    static const struct {
        int status;
        const char *body, *text;
    } rows[] = {
        {403, "<Error><Code>AccessDenied</Code></Error>", "grant s3:ListBucket"},
        {404, "<Error><Code>NoSuchBucket</Code></Error>", "check the bucket's name"},
        {200, PAGE("", ENTRY("m/a", "1") ENTRY("m/b", "1")), "enough of a"},
    };
    setenv("AWS_ACCESS_KEY_ID", "A", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_server *server = sl_server_start();
        SL_SCRIPT(server, {.fault = SL_FAULT_STATUS,
                           .status = rows[i].status,
                           .headers = "",
                           .text = rows[i].body});
        s3 = (struct sl_s3_options){.endpoint = (char *)sl_server_url(server, "")};
        SL_AUTO(sl_store) store = NULL;
        sl_autofree char *key = NULL;
        unsigned calls = 0;
        ck_assert_int_eq(sl_store_open("s3://bucket/m/", &config, &store, &key, &err), 0);
        ck_assert_int_eq(sl_store_list(store, stop_at_first, &calls, &err), -1);
        ck_assert_msg(strstr(err.message, rows[i].text) != NULL, "%s", err.message);
        ck_assert_uint_eq(calls, rows[i].status == 200);
        sl_server_stop(server);
    }
}

SL_CASE(.setup = setup)
