/* Web servers that know no ranges, or no lengths: what they send is read in order, by as few
 * requests as there are ways through an object. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"
#include "http_case.h"
#include "stores.h"

enum { HEAD_BYTES = 1000, PIECE_BYTES = 100 * 1000 };

static struct sl_source_config config;
static struct sl_err err;

static void setup(void)
{
    server = sl_server_start();
    sl_server_put(server, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    config = (struct sl_source_config){.attempts = 3, .hedge = SL_HEDGE_OFF};
    err = (struct sl_err)SL_ERR_INIT;
    fake_clock_run();
}

static void teardown(void)
{
    sl_server_stop(server);
}

static const struct sl_step kinds[] = {
    {.whole = true},
    {.whole = true, .fault = SL_FAULT_CHUNKED},
    {.whole = true, .fault = SL_FAULT_UNTIL_CLOSE},
};

/* One to open, which where the length is not told is for all of it and comes twice, and one for all
 * that follows. */
SL_TEST_LOOP(a_server_without_ranges_is_read_in_order, 0, (int)SL_COUNT(kinds))
{
    sl_server_script(server, &kinds[_i], 1);
    ck_assert_msg(
        sl_read_blob(sl_server_url(server, "/m"), &config, HEAD_BYTES, PIECE_BYTES, &err) == 0,
        "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(server), _i ? 3 : 2);
    char range[64];
    ck_assert(sl_server_header(sl_server_request_at(server, 0), "Range", range, sizeof(range)));
    ck_assert(
        !sl_server_header(sl_server_request_at(server, _i ? 2 : 1), "Range", range, sizeof(range)));
}

SL_TEST_LOOP(small_and_empty_objects_of_such_servers_are_read, 0, 3 * (int)SL_COUNT(kinds))
{
    static const size_t sizes[] = {0, 1, HEAD_BYTES};
    size_t bytes = sizes[_i / 3];
    uint8_t data[HEAD_BYTES];
    sl_server_put(server, "/small", sl_blob(), bytes, "\"v1\"");
    sl_server_script(server, &kinds[_i % 3], 1);
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/small"), &config, &store, &key, &err),
                     0);
    ck_assert_msg(sl_source_open(store, key, HEAD_BYTES, &source, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_source_bytes(source), bytes);
    if (!bytes)
        return;
    ck_assert_int_eq(sl_source_read_past(source, 0, data, bytes, &err), 0);
    ck_assert_mem_eq(data, sl_blob(), bytes);
}

static void open_both(struct sl_store **store, struct sl_source **source)
{
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/m"), &config, store, &key, &err), 0);
    ck_assert_msg(sl_source_open(*store, key, HEAD_BYTES, source, &err) == 0, "%s", err.message);
}

static void read_at(struct sl_source *source, uint64_t offset)
{
    uint8_t data[HEAD_BYTES];
    ck_assert_msg(sl_source_read_past(source, offset, data, sizeof(data), &err) == 0, "%s",
                  err.message);
    ck_assert_mem_eq(data, sl_blob() + offset, sizeof(data));
}

SL_TEST(what_lies_behind_is_asked_for_anew_and_gaps_are_passed_over)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    SL_SCRIPT(server, {.whole = true});
    open_both(&store, &source);
    ck_assert(sl_store_advice(store).in_order);
    read_at(source, 5000);
    read_at(source, 700000);
    ck_assert_uint_eq(sl_server_request_count(server), 2);
    read_at(source, 699000);
    ck_assert_uint_eq(sl_server_request_count(server), 3);
    read_at(source, SL_BLOB_BYTES - HEAD_BYTES);
    ck_assert_uint_eq(sl_server_request_count(server), 3);
}

SL_TEST(a_broken_answer_goes_on_where_it_was)
{
    SL_SCRIPT(server, {.first = 1, .whole = true},
              {.first = 2, .whole = true, .fault = SL_FAULT_RESET, .after = 300000},
              {.first = 3, .whole = true, .fault = SL_FAULT_SHORT, .after = 600000},
              {.whole = true});
    ck_assert_msg(
        sl_read_blob(sl_server_url(server, "/m"), &config, HEAD_BYTES, PIECE_BYTES, &err) == 0,
        "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(server), 4);
}

/* Nobody gets the rest of an answer that is of another version. */
SL_TEST(an_object_that_changes_meanwhile_is_not_mixed)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    SL_AUTO(sl_source) later = NULL;
    sl_autofree uint8_t *other = calloc(1, SL_BLOB_BYTES);
    uint8_t data[HEAD_BYTES];
    SL_SCRIPT(server, {.whole = true});
    open_both(&store, &source);
    read_at(source, 0);
    sl_server_put(server, "/m", other, SL_BLOB_BYTES, "\"v2\"");
    ck_assert_int_eq(sl_source_open(store, "m", HEAD_BYTES, &later, &err), 0);
    ck_assert_int_eq(sl_source_read_past(later, 2000, data, sizeof(data), &err), 0);
    ck_assert_mem_eq(data, other, sizeof(data));
    ck_assert_int_eq(sl_source_read_past(source, 5000, data, sizeof(data), &err), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY, "%s", err.message);
}

/* It may be a cache that has forgotten; where ranges were given nobody counts on order. */
SL_TEST(a_server_that_gave_ranges_must_go_on)
{
    SL_SCRIPT(server, {.first = 2, .last = 99, .whole = true});
    ck_assert_int_eq(
        sl_read_blob(sl_server_url(server, "/m"), &config, HEAD_BYTES, PIECE_BYTES, &err), -1);
    ck_assert_msg(strstr(err.message, "does not support range requests") != NULL, "%s",
                  err.message);
}

/* ---- labels ---------------------------------------------------------------------------------- */

static const struct {
    const char *headers;
    bool label; /* else the bytes are packed */
} encodings[] = {
    {"Content-Encoding: aws-chunked\r\n", true},
    {"Content-Encoding: utf-8\r\n", true},
    {"Content-Encoding: identity\r\n", true},
    {"Content-Encoding: gzip\r\nx-amz-request-id: 1\r\n", true},
    {"Content-Encoding: aws-chunked,gzip\r\nx-ms-request-id: 1\r\n", true},
    {"Content-Encoding: gzip\r\n", false},
    {"Content-Encoding: BR\r\n", false},
    {"Content-Encoding: aws-chunked, zstd\r\n", false},
};

SL_TEST_LOOP(a_stored_content_encoding_is_a_label, 0, (int)SL_COUNT(encodings))
{
    SL_SCRIPT(server, {.headers = encodings[_i].headers});
    int done = sl_read_blob(sl_server_url(server, "/m"), &config, HEAD_BYTES, PIECE_BYTES, &err);
    ck_assert_msg((done == 0) == encodings[_i].label, "%s: %s", encodings[_i].headers, err.message);
    if (done < 0)
        ck_assert_msg(strstr(err.message, "turn compression off") != NULL, "%s", err.message);
}

/* ---- links that have ended ------------------------------------------------------------------- */

static const struct {
    const char *query, *body, *says;
    int status;
} ended[] = {
    {"X-Amz-Date=20251006T100000Z&X-Amz-Expires=3600&X-Amz-Signature=s3cret",
     "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
     "AccessDenied (Request has expired); the link expired at 2025-10-06 11:00:00 UTC, ", 403},
    {"X-Amz-Date=20251006T100000Z&X-Amz-Expires=3600&X-Amz-Signature=s3cret", "",
     "expired at 2025-10-06 11:00:00 UTC", 403},
    {"X-Amz-Date=20251006T100000Z&X-Amz-Expires=3600&X-Amz-Signature=s3cret",
     "<Error><Code>ExpiredRequest</Code><Message>Request has expired</Message></Error>",
     "expired at 2025-10-06 11:00:00 UTC", 400},
    {"X-Goog-Date=20251006T100000Z&X-Goog-Expires=60&X-Goog-Signature=s3cret", "",
     "expired at 2025-10-06 10:01:00 UTC", 400},
    {"Expires=1759744800&Signature=s3cret&Key-Pair-Id=k", "", "expired at 2025-10-06 10:00:00 UTC",
     403},
    {"sv=2023-11-03&se=2025-10-06T11%3A00%3A00Z&sig=s3cret",
     "\xef\xbb\xbf<Error><Code>AuthenticationFailed</Code><Message>Server failed to authenticate "
     "the request.\nRequestId:1</Message></Error>",
     "AuthenticationFailed (Server failed to authenticate the request.); the link expired at "
     "2025-10-06 11:00:00 UTC",
     403},
    {"token=s3cret",
     "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>",
     "the link has expired: ask for a new one", 403},
    {"X-Amz-Date=20991006T100000Z&X-Amz-Expires=3600&X-Amz-Signature=s3cret", "",
     "the server answered 403; the server refuses the credentials", 403},
};

SL_TEST_LOOP(a_link_that_has_ended_says_when, 0, (int)SL_COUNT(ended))
{
    char path[256];
    snprintf(path, sizeof(path), "/m?%s", ended[_i].query);
    SL_SCRIPT(server, {.fault = SL_FAULT_STATUS,
                       .status = ended[_i].status,
                       .headers = "Content-Type: application/xml\r\n",
                       .text = ended[_i].body});
    ck_assert_int_eq(
        sl_read_blob(sl_server_url(server, path), &config, HEAD_BYTES, PIECE_BYTES, &err), -1);
    ck_assert_msg(err.kind == SL_E_AUTH && !err.retryable && strstr(err.message, ended[_i].says),
                  "%s", err.message);
    ck_assert_msg(!strstr(err.message, "s3cret"), "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(server), 1);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
