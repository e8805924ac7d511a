/* Requests without siblings, which a whole load waits for: when they are sent twice, when not, and
 * what is done meanwhile. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "exchange.h"
#include "fetch.h"
#include "link.h"
#include "log.h"
#include "metrics.h"
#include "progress.h"
#include "range_blob.h"
#include "skip.h"
#include "thread.h"

enum { HEAD_BYTES = 1000, PATIENCE_MS = 100, FOR_EVER_SECONDS = 600 };

static struct sl_server *server;
static struct sl_source_config config;
static struct sl_err err;
static uint64_t hedges_before, wasted_before;

static void setup(void)
{
    server = sl_server_start();
    sl_server_put(server, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    config = (struct sl_source_config){.attempts = 4, .stall_seconds = FOR_EVER_SECONDS};
    err = (struct sl_err)SL_ERR_INIT;
    hedges_before = sl_metric_get(SL_M_SOURCE_HEDGES);
    wasted_before = sl_metric_get(SL_M_SOURCE_WASTED_BYTES);
    sl_link_set_patience(PATIENCE_MS * SL_NS_PER_MS);
}

static void teardown(void)
{
    sl_link_set_patience(0);
    sl_server_stop(server);
}

static uint64_t hedges(void)
{
    return sl_metric_get(SL_M_SOURCE_HEDGES) - hedges_before;
}

/* Once more than it would have been, or, where the machine is busy, even more often: each of these
 * is counted. */
static void must_be_sent_again(void)
{
    ck_assert_uint_ge(hedges(), 1);
    ck_assert_uint_eq(sl_server_request_count(server), 1 + hedges());
}

struct reading {
    struct sl_store *store;
    struct sl_source *source;
};

static void open_reading(struct reading *reading)
{
    sl_autofree char *key = NULL;
    ck_assert_int_eq(
        sl_store_open(sl_server_url(server, "/m"), &config, &reading->store, &key, &err), 0);
    int result = sl_source_open(reading->store, key, HEAD_BYTES, &reading->source, &err);
    ck_assert_msg(result == 0, "%s", err.message);
}

static void close_reading(struct reading *reading)
{
    sl_source_free(reading->source);
    sl_store_free(reading->store);
}

/* Open the object, compare its head; what it took in ms. */
static uint64_t open_blob(void)
{
    struct reading reading;
    uint8_t head[HEAD_BYTES];
    uint64_t begin_ns = sl_now_ns();
    open_reading(&reading);
    uint64_t took_ns = sl_now_ns() - begin_ns;
    ck_assert_uint_eq(sl_source_bytes(reading.source), SL_BLOB_BYTES);
    ck_assert_int_eq(sl_source_read(reading.source, 0, head, HEAD_BYTES, &err), 0);
    ck_assert_mem_eq(head, sl_blob(), HEAD_BYTES);
    close_reading(&reading);
    return took_ns / SL_NS_PER_MS;
}

SL_TEST(a_silent_first_answer_is_asked_for_once_more)
{
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1});
    ck_assert_uint_ge(open_blob(), PATIENCE_MS);
    must_be_sent_again();
    ck_assert_uint_eq(sl_server_connection_count(server), sl_server_request_count(server));
    ck_assert_uint_eq(sl_metric_get(SL_M_SOURCE_WASTED_BYTES), wasted_before);
}

SL_TEST(by_itself_it_is_not_sooner_than_after_a_second)
{
    sl_link_set_patience(0);
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1});
    ck_assert_uint_ge(open_blob(), 1000);
    must_be_sent_again();
}

/* Else a load would take its server for one that is a second away. */
SL_TEST(it_tells_nothing_of_the_distance)
{
    struct reading reading;
    uint64_t requests, bytes;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1});
    open_reading(&reading);
    sl_source_counts(reading.source, &requests, &bytes);
    ck_assert_uint_eq(requests, sl_server_request_count(server));
    if (hedges() == 1) /* nothing else was late */
        ck_assert_uint_eq(sl_store_first_byte_ns(reading.store), 0);
    close_reading(&reading);
}

SL_TEST(it_is_counted_in_the_result)
{
    struct sl_progress *progress = sl_progress_new("m", "u", "p", &err);
    struct sl_progress_view view;
    config.progress = progress;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1});
    open_blob();
    sl_progress_view(progress, &view);
    ck_assert_uint_ge(view.hedged, 1);
    ck_assert_uint_eq(view.hedged, hedges());
    sl_progress_free(progress);
}

SL_TEST(where_both_are_silent_it_is_a_stall_and_tried_again)
{
    config.stall_seconds = 1;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .last = 2, .fault = SL_FAULT_STALL, .after = -1});
    open_blob();
    ck_assert_uint_ge(sl_server_request_count(server), 3);
    ck_assert_uint_le(sl_server_request_count(server), 2 * 3);
}

SL_TEST(where_the_first_breaks_off_the_second_is_waited_for)
{
    config.stall_seconds = 1;
    const struct sl_step steps[] = {
        {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1},
        {.path = "/m", .first = 2, .fault = SL_FAULT_SLOW, .after = 1000 - PATIENCE_MS / 2}};
    sl_server_script(server, steps, SL_COUNT(steps));
    open_blob();
    ck_assert_uint_ge(sl_server_request_count(server), 2);
}

SL_TEST(where_the_second_breaks_off_the_first_is_waited_for)
{
    const struct sl_step steps[] = {
        {.path = "/m", .first = 1, .fault = SL_FAULT_BEHIND, .others = 1},
        {.path = "/m", .first = 2, .fault = SL_FAULT_RESET, .after = -1}};
    sl_server_script(server, steps, SL_COUNT(steps));
    open_blob();
    must_be_sent_again();
}

/* Every answer takes longer than we wait: the first request is sent twice, by then it is known. A
 * busy machine may make it more, but never more than two for one. */
SL_TEST(a_slow_but_honest_server_is_not_asked_more_than_twice)
{
    enum { READS = 4, LONGER_MS = 4 * PATIENCE_MS };
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    uint8_t piece[HEAD_BYTES];
    sl_link_set_patience(LONGER_MS * SL_NS_PER_MS);
    /* How long connecting took counts, too, which a busy machine draws out: the first waits for the
     * second, however late that is. */
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_BEHIND, .others = 1},
              {.path = "/m", .fault = SL_FAULT_SLOW, .after = 3 * LONGER_MS / 2});
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/m"), &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, HEAD_BYTES, &source, &err), 0);
    must_be_sent_again();
    for (size_t i = 1; i < READS; i++) {
        ck_assert_int_eq(sl_source_read(source, i * HEAD_BYTES, piece, HEAD_BYTES, &err), 0);
        ck_assert_mem_eq(piece, sl_blob() + i * HEAD_BYTES, HEAD_BYTES);
    }
    ck_assert_uint_le(hedges(), READS);
    /* One that was overtaken may not have reached the server. */
    ck_assert_uint_le(sl_server_request_count(server), READS + hedges());
}

/* Silent at once for several times what we wait; and within it, until that is a stall. */
SL_TEST_LOOP(where_it_is_off_the_first_answer_is_waited_for, 0, 2)
{
    static const struct sl_step steps[] = {
        {.path = "/m", .first = 1, .fault = SL_FAULT_SLOW, .after = 10 * PATIENCE_MS},
        {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = 400}};
    config.hedge = SL_HEDGE_OFF;
    config.stall_seconds = _i ? 2 : FOR_EVER_SECONDS;
    sl_server_script(server, &steps[_i], 1);
    ck_assert_uint_ge(open_blob(), _i ? 2000 : 10 * PATIENCE_MS);
    ck_assert_uint_eq(sl_server_request_count(server), _i ? 2 : 1);
    ck_assert_uint_eq(hedges(), 0);
}

SL_TEST(a_small_answer_that_falls_silent_goes_on_elsewhere)
{
    char range[64];
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = 400});
    open_blob();
    ck_assert_uint_ge(sl_server_request_count(server), 2);
    ck_assert(sl_server_header(sl_server_request_at(server, 1), "Range", range, sizeof(range)));
    ck_assert_str_eq(range, "bytes=400-999");
    ck_assert_uint_ge(hedges(), 1);
}

SL_TEST(where_the_host_has_no_second_place_the_first_makes_room)
{
    config.host_connections = 1;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1});
    open_blob();
    must_be_sent_again();
}

static int count_entry(const struct sl_entry *entry, void *arg, struct sl_err *ignored)
{
    (void)ignored;
    *(unsigned *)arg += entry->bytes == 5;
    return 0;
}

/* A page of a listing, which is read whole: silent at once, and in its middle. */
SL_TEST_LOOP(a_page_of_a_listing_is_asked_for_once_more, 0, 2)
{
    static const char page[] = "<ListBucketResult><Contents><Key>m/a</Key><Size>5</Size></Contents>"
                               "</ListBucketResult>";
    sl_server_put(server, "/b", page, sizeof(page) - 1, "\"l\"");
    SL_SCRIPT(server, {.first = 1, .fault = SL_FAULT_STALL, .after = _i ? 20 : -1});
    struct sl_s3_options s3 = {.anonymous = true, .endpoint = (char *)sl_server_url(server, "")};
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    unsigned count = 0;
    config.s3 = &s3;
    ck_assert_int_eq(sl_store_open("s3://b/m/", &config, &store, &key, &err), 0);
    int result = sl_store_list(store, count_entry, &count, &err);
    ck_assert_msg(result == 0, "%s", err.message);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_ge(sl_server_request_count(server), 2);
    ck_assert_uint_ge(hedges(), 1);
}

SL_TEST(what_changes_something_is_never_sent_twice)
{
    const struct sl_connect connect = {.stall_seconds = 1};
    struct sl_answer answer;
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, &err);
    SL_SCRIPT(server, {.fault = SL_FAULT_STALL, .after = -1});
    const struct sl_request request = {
        .method = "POST", .url = sl_server_url(server, "/m"), .hurry = 1};
    ck_assert_int_eq(sl_exchange_simple(exchange, &request, 1000, &answer, &err), -1);
    ck_assert_uint_eq(sl_server_request_count(server), 1);
}

/* ---- connections ahead ----------------------------------------------------------------------- */

enum { AHEAD = 3 };

/* The first answer takes as long as that of a distant server. */
static void open_distant(struct reading *reading)
{
    sl_link_set_patience(0);
    config.ahead = AHEAD;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_SLOW, .after = 200});
    open_reading(reading);
}

static void drain(struct sl_fetch *fetch)
{
    uint8_t piece[HEAD_BYTES];
    enum sl_io_state state;
    size_t got;
    while ((state = sl_fetch_read(fetch, piece, sizeof(piece), &got, &err)) != SL_IO_END) {
        struct pollfd fds[SL_IO_POLL_MAX];
        uint64_t deadline_ns;
        ck_assert_msg(state != SL_IO_FAILED, "%s", err.message);
        if (state == SL_IO_WAIT)
            poll(fds, (nfds_t)sl_fetch_poll(fetch, fds, &deadline_ns), 10);
    }
}

/* As many fetches at once as there are connections, or more. */
static void fetch_at_once(struct reading *reading, size_t count)
{
    struct sl_fetch *fetches[2 * AHEAD];
    for (size_t i = 0; i < count; i++) {
        fetches[i] = sl_fetch_new(reading->store, &err);
        int result =
            sl_fetch_start(fetches[i], reading->source, i * HEAD_BYTES, (i + 1) * HEAD_BYTES, &err);
        ck_assert_msg(result == 0, "%s", err.message);
    }
    for (size_t i = 0; i < count; i++)
        drain(fetches[i]);
    for (size_t i = 0; i < count; i++)
        sl_fetch_free(fetches[i]);
}

SL_TEST(connections_are_made_while_a_distant_answer_is_on_its_way)
{
    struct reading reading;
    open_distant(&reading);
    fetch_at_once(&reading, 1 + AHEAD);
    ck_assert_uint_eq(sl_server_request_count(server), 2 + AHEAD + hedges());
    ck_assert_uint_eq(sl_server_connection_count(server), 1 + AHEAD + hedges());
    close_reading(&reading);
}

SL_TEST(no_more_of_them_than_the_host_may_have)
{
    struct reading reading;
    config.host_connections = 2;
    open_distant(&reading);
    fetch_at_once(&reading, 2);
    ck_assert_uint_le(sl_server_connection_count(server), 2 + hedges());
    close_reading(&reading);
}

SL_TEST(those_that_nobody_needs_are_closed)
{
    struct reading reading;
    open_distant(&reading);
    close_reading(&reading);
}

SL_TEST(those_that_died_meanwhile_cost_no_try)
{
    struct reading reading;
    config.attempts = 1;
    open_distant(&reading);
    unsigned port = sl_server_port(server);
    sl_server_stop(server);
    server = sl_server_start_at("127.0.0.1", port);
    if (!server) {
        server = sl_server_start();
        close_reading(&reading);
        SL_SKIP("another program took the port meanwhile");
    }
    sl_server_put(server, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    fetch_at_once(&reading, 2 * AHEAD);
    close_reading(&reading);
}

SL_TEST(every_failing_allocation_is_survived)
{
    config.ahead = 2;
    sl_link_set_patience(20 * SL_NS_PER_MS);
    config.stall_seconds = 1;
    for (unsigned nth = 1, reached = 1; reached; nth++) {
        unsigned sent = sl_server_request_count(server);
        SL_SCRIPT(server, {.path = "/m", .first = sent + 1, .fault = SL_FAULT_STALL, .after = -1});
        err = (struct sl_err)SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        int result =
            sl_read_blob(sl_server_url(server, "/m"), &config, HEAD_BYTES, SL_BLOB_BYTES, &err);
        reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(0);
        ck_assert_msg(result == 0 || err.kind == SL_E_NO_SPACE, "allocation %u: %s", nth,
                      err.message);
        ck_assert_uint_lt(nth, 500);
    }
}

static bool prepare(void)
{
    sl_test_environment();
    sl_log_setup(SL_LOG_ERROR, false);
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60, .prepare = prepare)
