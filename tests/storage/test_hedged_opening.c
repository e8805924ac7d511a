/* Requests without siblings, which a whole load waits for: when they are sent twice, when not, and
 * what is done meanwhile. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "exchange.h"
#include "fake_clock.h"
#include "fetch.h"
#include "log.h"
#include "metrics.h"
#include "progress.h"
#include "range_blob.h"
#include "retry.h"
#include "s3_options.h"
#include "stores.h"
#include "thread.h"

/* An answer is waited for a second, by a machine that is as fast as this clock: connecting takes no
 * time. */
#define PATIENCE_NS SL_NS_PER_S
enum { HEAD_BYTES = 1000, STALL_SECONDS = 5, FOR_EVER_SECONDS = 600 };
#define STALL_NS   (STALL_SECONDS * SL_NS_PER_S)
#define BACKOFF_NS (SL_RETRY_BASE_MS * SL_NS_PER_MS)

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
    fake_clock_hold();
}

static void teardown(void)
{
    sl_server_stop(server);
}

static uint64_t hedges(void)
{
    return sl_metric_get(SL_M_SOURCE_HEDGES) - hedges_before;
}

/* ---- work that the test turns the clock for --------------------------------------------------
 */

static struct fake_clock_work work;

static void begin(void (*run)(void *ignored))
{
    fake_clock_begin(&work, run, NULL);
}

static void end(void)
{
    fake_clock_end(&work);
}

static void await_requests(unsigned count)
{
    SL_AWAIT(sl_server_request_count(server) >= count, "the request");
}

/* What has been sent is all, just before the time comes. Then the time comes. */
static void pass_in_silence(uint64_t ns)
{
    unsigned requests = sl_server_request_count(server);
    fake_clock_await(ns);
    fake_clock_turn(ns - 1);
    fake_clock_settle(1);
    ck_assert_uint_eq(sl_server_request_count(server), requests);
    fake_clock_pass(&work, 1);
}

/* The second request has been sent when an answer was due, and not before. */
static void pass_patience(void)
{
    await_requests(1);
    uint64_t before = hedges();
    pass_in_silence(PATIENCE_NS);
    SL_AWAIT(hedges() > before, "the second request");
}

static void must_be_sent_twice(void)
{
    ck_assert_uint_eq(hedges(), 1);
    ck_assert_uint_eq(sl_server_request_count(server), 2);
}

struct reading {
    struct sl_store *store;
    struct sl_source *source;
};
static struct reading opened;

static void open_reading(void *ignored)
{
    (void)ignored;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/m"), &config, &opened.store, &key, &err),
                     0);
    int result = sl_source_open(opened.store, key, HEAD_BYTES, &opened.source, &err);
    ck_assert_msg(result == 0, "%s", err.message);
}

static void close_reading(void)
{
    sl_source_free(opened.source);
    sl_store_free(opened.store);
}

/* The head has come, or comes without another wait; and it is right. */
static void end_reading(void)
{
    uint8_t head[HEAD_BYTES];
    end();
    ck_assert_uint_eq(sl_source_bytes(opened.source), SL_BLOB_BYTES);
    ck_assert_int_eq(sl_source_read(opened.source, 0, head, HEAD_BYTES, &err), 0);
    ck_assert_mem_eq(head, sl_blob(), HEAD_BYTES);
    close_reading();
}

/* ---- requests that are sent twice ------------------------------------------------------------ */

SL_TEST(a_silent_first_answer_is_asked_for_once_more_after_a_second)
{
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1});
    begin(open_reading);
    pass_patience();
    end_reading();
    ck_assert_uint_eq(work.took_ns, PATIENCE_NS);
    must_be_sent_twice();
    ck_assert_uint_eq(sl_server_connection_count(server), 2);
    ck_assert_uint_eq(sl_metric_get(SL_M_SOURCE_WASTED_BYTES), wasted_before);
}

/* Else a load would take its server for one that is a second away. */
SL_TEST(it_tells_nothing_of_the_distance)
{
    uint64_t requests, bytes;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1});
    begin(open_reading);
    pass_patience();
    end();
    sl_source_counts(opened.source, &requests, &bytes);
    ck_assert_uint_eq(requests, 2);
    ck_assert_uint_eq(sl_store_first_byte_ns(opened.store), 0);
    close_reading();
}

SL_TEST(it_is_counted_in_the_result)
{
    struct sl_progress *progress = sl_progress_new("m", "u", "p", &err);
    struct sl_progress_view view;
    config.progress = progress;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1});
    begin(open_reading);
    pass_patience();
    end_reading();
    sl_progress_view(progress, &view);
    ck_assert_uint_eq(view.hedged, 1);
    sl_progress_free(progress);
}

/* The second has a time of its own to be a stall. */
SL_TEST(where_both_are_silent_it_is_a_stall_and_tried_again)
{
    config.stall_seconds = STALL_SECONDS;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .last = 2, .fault = SL_FAULT_STALL, .after = -1});
    begin(open_reading);
    pass_patience();
    await_requests(2);
    pass_in_silence(STALL_NS - PATIENCE_NS);
    pass_in_silence(PATIENCE_NS);
    fake_clock_turn_until(&work.done, BACKOFF_NS / 4, 1);
    end_reading();
    ck_assert_uint_eq(sl_server_request_count(server), 3);
    ck_assert_uint_eq(hedges(), 1);
}

SL_TEST(where_the_first_breaks_off_the_second_is_waited_for)
{
    config.stall_seconds = STALL_SECONDS;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1},
              {.path = "/m", .first = 2, .fault = SL_FAULT_SLOW, .after = 4500});
    begin(open_reading);
    pass_patience();
    await_requests(2);
    fake_clock_await(4500 * SL_NS_PER_MS); /* the server's answer */
    pass_in_silence(STALL_NS - PATIENCE_NS);
    pass_in_silence(500 * SL_NS_PER_MS);
    end_reading();
    ck_assert_uint_eq(work.took_ns, PATIENCE_NS + 4500 * SL_NS_PER_MS);
    must_be_sent_twice();
}

SL_TEST(where_the_second_breaks_off_the_first_is_waited_for)
{
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_BEHIND, .others = 1},
              {.path = "/m", .first = 2, .fault = SL_FAULT_RESET, .after = -1});
    begin(open_reading);
    pass_patience();
    end_reading();
    must_be_sent_twice();
}

enum { READS = 4, LONGER_MS = 3000 };

static void read_some(void *ignored)
{
    uint8_t piece[HEAD_BYTES];
    open_reading(ignored);
    for (size_t i = 1; i < READS; i++) {
        ck_assert_int_eq(sl_source_read(opened.source, i * HEAD_BYTES, piece, HEAD_BYTES, &err), 0);
        ck_assert_mem_eq(piece, sl_blob() + i * HEAD_BYTES, HEAD_BYTES);
    }
}

/* Every answer takes longer than we wait: the first request is sent twice, by then it is known. */
SL_TEST(a_slow_but_honest_server_is_asked_twice_once)
{
    SL_SCRIPT(server, {.path = "/m", .fault = SL_FAULT_SLOW, .after = LONGER_MS});
    begin(read_some);
    fake_clock_await(LONGER_MS * SL_NS_PER_MS);
    pass_patience();
    await_requests(2);
    fake_clock_await(LONGER_MS * SL_NS_PER_MS);
    fake_clock_turn(LONGER_MS * SL_NS_PER_MS - PATIENCE_NS);
    for (unsigned i = 1; i < READS; i++) {
        await_requests(2 + i);
        pass_in_silence(LONGER_MS * SL_NS_PER_MS);
    }
    end();
    ck_assert_uint_eq(work.took_ns, READS * LONGER_MS * SL_NS_PER_MS);
    ck_assert_uint_eq(hedges(), 1);
    ck_assert_uint_eq(sl_server_request_count(server), 1 + READS);
    close_reading();
}

/* Silent at once for many times what we wait; and within it, until that is a stall. */
SL_TEST_LOOP(where_it_is_off_the_first_answer_is_waited_for, 0, 2)
{
    static const struct sl_step steps[] = {
        {.path = "/m", .first = 1, .fault = SL_FAULT_SLOW, .after = 30 * 1000},
        {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = 400}};
    config.hedge = SL_HEDGE_OFF;
    config.stall_seconds = _i ? 30 : FOR_EVER_SECONDS;
    sl_server_script(server, &steps[_i], 1);
    begin(open_reading);
    await_requests(1);
    pass_in_silence(30 * SL_NS_PER_S);
    if (_i)
        fake_clock_turn_until(&work.done, BACKOFF_NS / 4, 1);
    end_reading();
    ck_assert_uint_eq(sl_server_request_count(server), _i ? 2 : 1);
    ck_assert_uint_eq(hedges(), 0);
}

/* What is less than poll() tells of is taken by who looks again. */
static bool has_come(uint64_t bytes)
{
    fake_clock_turn(0);
    return sl_metric_get(SL_M_SOURCE_BYTES) == bytes;
}

SL_TEST(a_small_answer_that_falls_silent_goes_on_elsewhere)
{
    char range[64];
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = 400});
    uint64_t before = sl_metric_get(SL_M_SOURCE_BYTES);
    begin(open_reading);
    SL_AWAIT(has_come(before + 400), "what comes of the first");
    pass_patience();
    fake_clock_turn_until(&work.done, BACKOFF_NS / 4, 1);
    end_reading();
    must_be_sent_twice();
    ck_assert(sl_server_header(sl_server_request_at(server, 1), "Range", range, sizeof(range)));
    ck_assert_str_eq(range, "bytes=400-999");
}

SL_TEST(where_the_host_has_no_second_place_the_first_makes_room)
{
    config.host_connections = 1;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_STALL, .after = -1});
    begin(open_reading);
    pass_patience();
    end_reading();
    must_be_sent_twice();
}

static int count_entry(const struct sl_entry *entry, void *arg, struct sl_err *ignored)
{
    (void)ignored;
    *(unsigned *)arg += entry->bytes == 5;
    return 0;
}

static void list_page(void *ignored)
{
    (void)ignored;
    struct sl_s3_options s3 = {.anonymous = true, .endpoint = (char *)sl_server_url(server, "")};
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    unsigned count = 0;
    config.options[0] = (struct sl_store_options){&sl_s3_table, &s3};
    ck_assert_int_eq(sl_store_open("s3://b/m/", &config, &store, &key, &err), 0);
    int result = sl_store_list(store, count_entry, &count, &err);
    ck_assert_msg(result == 0, "%s", err.message);
    ck_assert_uint_eq(count, 1);
}

/* A page of a listing, which is read whole: silent at once, and in its middle. */
SL_TEST_LOOP(a_page_of_a_listing_is_asked_for_once_more, 0, 2)
{
    static const char page[] = "<ListBucketResult><Contents><Key>m/a</Key><Size>5</Size></Contents>"
                               "</ListBucketResult>";
    sl_server_put(server, "/b", page, sizeof(page) - 1, "\"l\"");
    SL_SCRIPT(server, {.first = 1, .fault = SL_FAULT_STALL, .after = _i ? 20 : -1});
    begin(list_page);
    if (!_i)
        pass_patience();
    fake_clock_turn_until(&work.done, BACKOFF_NS / 4, 1);
    end();
    must_be_sent_twice();
    ck_assert_uint_ge(work.took_ns, PATIENCE_NS);
}

static void post(void *ignored)
{
    (void)ignored;
    const struct sl_connect connect = {.stall_seconds = STALL_SECONDS};
    struct sl_answer answer;
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, &err);
    const struct sl_request request = {
        .method = "POST", .url = sl_server_url(server, "/m"), .hedge = 1};
    ck_assert_int_eq(sl_exchange_simple(exchange, &request, 1000, &answer, &err), -1);
    ck_assert_str_eq(err.code, "stall");
}

SL_TEST(what_changes_something_is_never_sent_twice)
{
    SL_SCRIPT(server, {.fault = SL_FAULT_STALL, .after = -1});
    begin(post);
    await_requests(1);
    pass_in_silence(STALL_NS);
    end();
    ck_assert_uint_eq(sl_server_request_count(server), 1);
}

/* ---- connections ahead ----------------------------------------------------------------------- */

enum { AHEAD = 3, DISTANT_MS = 200, NEAR_MS = 20 };

/* The first answer takes as long as that of a distant server. */
static void open_distant(void)
{
    config.preconnect = AHEAD;
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_SLOW, .after = DISTANT_MS});
    begin(open_reading);
    fake_clock_await(DISTANT_MS * SL_NS_PER_MS);
    pass_in_silence(NEAR_MS * SL_NS_PER_MS);
    fake_clock_await(PATIENCE_NS - NEAR_MS * SL_NS_PER_MS);
    fake_clock_turn((DISTANT_MS - NEAR_MS) * SL_NS_PER_MS);
    end();
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
        if (state != SL_IO_WAIT)
            continue;
        nfds_t count = (nfds_t)sl_fetch_poll(fetch, fds, &deadline_ns);
        poll(fds, count, deadline_ns > sl_now_ns() ? -1 : 0);
    }
}

/* As many fetches at once as there are connections, or more; behind the head, which is there. */
static void fetch_at_once(size_t count)
{
    struct sl_fetch *fetches[2 * AHEAD];
    for (size_t i = 0; i < count; i++) {
        fetches[i] = sl_fetch_new(opened.store, &err);
        int result = sl_fetch_start(fetches[i], opened.source, (i + 1) * HEAD_BYTES,
                                    (i + 2) * HEAD_BYTES, &err);
        ck_assert_msg(result == 0, "%s", err.message);
    }
    for (size_t i = 0; i < count; i++)
        drain(fetches[i]);
    for (size_t i = 0; i < count; i++)
        sl_fetch_free(fetches[i]);
}

SL_TEST(connections_are_made_while_a_distant_answer_is_on_its_way)
{
    open_distant();
    fetch_at_once(1 + AHEAD);
    ck_assert_uint_eq(sl_server_request_count(server), 2 + AHEAD);
    ck_assert_uint_eq(sl_server_connection_count(server), 1 + AHEAD);
    ck_assert_uint_eq(hedges(), 0);
    close_reading();
}

SL_TEST(no_more_of_them_than_the_host_may_have)
{
    config.host_connections = 2;
    open_distant();
    fetch_at_once(2);
    ck_assert_uint_le(sl_server_connection_count(server), 2);
    close_reading();
}

SL_TEST(those_that_nobody_needs_are_closed)
{
    open_distant();
    close_reading();
}

SL_TEST(those_that_died_meanwhile_cost_no_try)
{
    open_distant();
    unsigned port = sl_server_port(server);
    int held = sl_server_leave(server);
    server = sl_server_start_at("127.0.0.1", port);
    ck_assert_ptr_nonnull(server);
    close(held);
    sl_server_put(server, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    uint64_t retries = sl_metric_get(SL_M_SOURCE_RETRIES);
    fetch_at_once(2 * AHEAD);
    ck_assert_uint_eq(sl_metric_get(SL_M_SOURCE_RETRIES), retries);
    close_reading();
}

static void fail_one_after_another(void *ignored)
{
    (void)ignored;
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

SL_TEST(every_failing_allocation_is_survived)
{
    config.preconnect = 2;
    begin(fail_one_after_another);
    fake_clock_turn_until(&work.done, PATIENCE_NS / 4, 1);
    end();
}

static bool prepare(void)
{
    sl_test_environment();
    sl_log_setup(SL_LOG_ERROR, false);
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60, .prepare = prepare)
