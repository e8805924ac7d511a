/* Retry, resume, back-off: every failure that may pass, and those that may not. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "fetch.h"
#include "io.h"
#include "log.h"
#include "metrics.h"
#include "range_blob.h"
#include "retry.h"
#include "stores.h"

static struct sl_server *server;
static struct sl_source_config config = {.attempts = 3, .stall_seconds = 20};

static void setup(void)
{
    server = sl_server_start();
    sl_server_put(server, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
}

static void teardown(void)
{
    sl_server_stop(server);
}

static int load(struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(sl_server_url(server, "/m"), &config, 1000, SL_BLOB_BYTES, err);
}

static void load_anyway(void *ignored)
{
    struct sl_err err;
    (void)ignored;
    int result = load(&err);
    ck_assert_msg(result == 0, "%s", err.message);
}

static void assert_loads(void)
{
    struct sl_err err;
    int result = load(&err);
    ck_assert_msg(result == 0, "%s", err.message);
}

/* The Range header of the nth request. */
static const char *range_of(unsigned nth)
{
    static char text[64];
    ck_assert(sl_server_header(sl_server_request_at(server, nth), "Range", text, sizeof(text)));
    return text;
}

static const struct sl_claim_case rules_claims;

SL_TEST(one_connection_brings_all_ranges)
{
    assert_loads();
    ck_assert_uint_eq(sl_server_request_count(server), 2);
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
    ck_assert_str_eq(range_of(0), "bytes=0-999");
    ck_assert_str_eq(range_of(1), "bytes=1000-999999");
}

SL_TEST(a_reset_resumes_at_the_first_missing_byte)
{
    SL_SCRIPT(server, {.path = "/m", .first = 2, .fault = SL_FAULT_SHORT, .after = 500000});
    assert_loads();
    ck_assert_uint_eq(sl_server_request_count(server), 3);
    ck_assert_str_eq(range_of(2), "bytes=501000-999999");
    char match[64];
    ck_assert(sl_server_header(sl_server_request_at(server, 2), "If-Match", match, sizeof(match)));
    ck_assert_str_eq(match, "\"v1\"");
}

static const struct sl_step passing[] = {
    {.fault = SL_FAULT_RESET, .after = -1},
    {.fault = SL_FAULT_RESET, .after = 0},
    {.fault = SL_FAULT_RESET, .after = 70000},
    {.fault = SL_FAULT_SHORT, .after = -1},
    {.fault = SL_FAULT_SHORT, .after = 0},
    {.fault = SL_FAULT_SHORT, .after = 999},
    {.fault = SL_FAULT_STALL, .after = -1},
    {.fault = SL_FAULT_STALL, .after = 500},
    {.fault = SL_FAULT_TRICKLE, .after = 500},
    {.fault = SL_FAULT_STATUS, .status = 408},
    {.fault = SL_FAULT_STATUS, .status = 429},
    {.fault = SL_FAULT_STATUS, .status = 500},
    {.fault = SL_FAULT_STATUS, .status = 502},
    {.fault = SL_FAULT_STATUS, .status = 503, .text = "slow down"},
    {.fault = SL_FAULT_STATUS, .status = 504},
    {.fault = SL_FAULT_SLOW},
    {.fault = SL_FAULT_CLOSE},
    {.fault = SL_FAULT_CHUNKED},
    {.fault = SL_FAULT_UNTIL_CLOSE},
    {.fault = SL_FAULT_DROP_AFTER},
};

/* _i: which failure, and whether it strikes the opening or a range. */
SL_TEST_LOOP(what_may_pass_is_tried_again, 0, 2 * (int)SL_COUNT(passing))
{
    struct sl_step step = passing[_i / 2];
    step.path = "/m";
    step.first = 1 + (unsigned)_i % 2;
    config.stall_seconds = 1;
    fake_clock_run();
    sl_server_script(server, &step, 1);
    assert_loads();
    config.stall_seconds = 20;
}

SL_TEST(tries_end)
{
    struct sl_err err;
    SL_SCRIPT(server, {.path = "/m", .fault = SL_FAULT_STATUS, .status = 503});
    ck_assert_int_eq(load(&err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_int_eq(err.http_status, 503);
    ck_assert_uint_eq(sl_server_request_count(server), 3);
    ck_assert_ptr_nonnull(strstr(err.message, "gave up after 3 tries"));
}

SL_TEST_LOOP(a_range_that_lacks_only_its_end_mark_is_complete, 0, 2)
{
    static const char *const frames[] = {
        "Transfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n",
        "Transfer-Encoding: chunked\r\n\r\nA\r\n0123456789",
    };
    char text[256];
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    uint8_t data[10];
    snprintf(text, sizeof(text),
             "HTTP/1.1 206 OK\r\nETag: \"v1\"\r\nContent-Range: bytes 0-9/10\r\n%s", frames[_i]);
    SL_SCRIPT(server, {.path = "/m", .first = 1, .fault = SL_FAULT_HEAD, .text = text});
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/m"), &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_source_read(source, 0, data, 10, &err), 0);
    ck_assert_mem_eq(data, "0123456789", 10);
    ck_assert_uint_eq(sl_server_request_count(server), 1);
}

SL_TEST(tries_that_bring_bytes_are_not_counted)
{
    SL_SCRIPT(server,
              {.path = "/m", .first = 2, .last = 1000, .fault = SL_FAULT_SHORT, .after = 70000});
    fake_clock_run();
    assert_loads();
    ck_assert_uint_ge(sl_server_request_count(server), 15);
}

SL_TEST(a_drip_of_bytes_does_not_go_on_for_ever)
{
    struct sl_err err;
    SL_SCRIPT(server,
              {.path = "/m", .first = 2, .last = 1000, .fault = SL_FAULT_SHORT, .after = 1000});
    ck_assert_int_eq(load(&err), -1);
    ck_assert_uint_eq(sl_server_request_count(server), 4);
}

static const struct {
    int status;
    enum sl_err_kind kind;
} final[] = {{400, SL_E_USAGE}, {401, SL_E_AUTH},  {403, SL_E_AUTH},      {404, SL_E_NOT_FOUND},
             {405, SL_E_USAGE}, {422, SL_E_USAGE}, {410, SL_E_NOT_FOUND}, {501, SL_E_NET}};

SL_TEST_LOOP(what_can_not_pass_is_not_tried_again, 0, (int)SL_COUNT(final))
{
    struct sl_err err;
    SL_SCRIPT(server, {.path = "/m", .fault = SL_FAULT_STATUS, .status = final[_i].status});
    ck_assert_int_eq(load(&err), -1);
    ck_assert_int_eq(err.http_status, final[_i].status);
    ck_assert_int_eq(err.kind, final[_i].kind);
    ck_assert_uint_eq(sl_server_request_count(server), 1);
}

SL_TEST(retry_after_is_obeyed)
{
    SL_SCRIPT(server, {.path = "/m",
                       .first = 1,
                       .fault = SL_FAULT_STATUS,
                       .status = 503,
                       .headers = "Retry-After: 1\r\n"});
    const uint64_t jitter_ns = SL_RETRY_BASE_MS * SL_NS_PER_MS;
    uint64_t retries = sl_metric_get(SL_M_SOURCE_RETRIES);
    struct fake_clock_work work;
    fake_clock_hold();
    fake_clock_begin(&work, load_anyway, NULL);
    SL_AWAIT(sl_metric_get(SL_M_SOURCE_RETRIES) > retries, "the answer that asks to wait");
    fake_clock_await_between(SL_NS_PER_S, SL_NS_PER_S + jitter_ns + SL_NS_PER_MS);
    fake_clock_turn(SL_NS_PER_S - 1);
    fake_clock_settle(1);
    ck_assert_uint_eq(sl_server_request_count(server), 1);
    fake_clock_turn(1 + jitter_ns);
    fake_clock_end(&work);
}

SL_TEST(a_closed_idle_connection_is_no_failure)
{
    uint64_t retries = sl_metric_get(SL_M_SOURCE_RETRIES),
             errors = sl_metric_get(SL_M_SOURCE_ERRORS);
    SL_SCRIPT(server, {.path = "/m", .fault = SL_FAULT_DROP_AFTER});
    assert_loads();
    SL_SCRIPT(server, {.path = "/m", .fault = SL_FAULT_CLOSE});
    assert_loads();
    ck_assert_uint_eq(sl_metric_get(SL_M_SOURCE_RETRIES), retries);
    ck_assert_uint_eq(sl_metric_get(SL_M_SOURCE_ERRORS), errors);
    ck_assert_uint_eq(sl_server_connection_count(server), 4);
}

SL_TEST(a_busy_server_is_told)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/m"), &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 10, &source, &err), 0);
    SL_SCRIPT(server, {.path = "/m", .first = 2, .fault = SL_FAULT_STATUS, .status = 429});
    SL_AUTO(sl_fetch) fetch = sl_fetch_new(store, &err);
    ck_assert_int_eq(sl_fetch_start(fetch, source, 10, 5000, &err), 0);
    uint8_t data[5000];
    size_t got = 0, used = 0;
    enum sl_io_state state;
    while ((state = sl_fetch_read(fetch, data + used, sizeof(data) - used, &got, &err)) !=
           SL_IO_END) {
        ck_assert_int_ne(state, SL_IO_FAILED);
        used += got;
        struct pollfd fds[SL_IO_POLL_MAX];
        uint64_t deadline;
        if (state == SL_IO_WAIT) {
            int count = sl_fetch_poll(fetch, fds, &deadline);
            ck_assert_int_le(count, SL_IO_POLL_MAX);
            poll(fds, (nfds_t)count, 5);
        }
    }
    ck_assert_uint_eq(used, 4990);
    ck_assert_mem_eq(data, sl_blob() + 10, 4990);
    ck_assert_uint_eq(sl_fetch_take_throttled(fetch), 1);
    ck_assert_uint_eq(sl_fetch_take_throttled(fetch), 0);
}

SL_TEST(an_abandoned_range_harms_no_other)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/m"), &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 10, &source, &err), 0);
    SL_AUTO(sl_fetch) fetch = sl_fetch_new(store, &err);
    uint8_t data[100];
    size_t got = 0;
    ck_assert_int_eq(sl_fetch_start(fetch, source, 10, SL_BLOB_BYTES, &err), 0);
    while (sl_fetch_read(fetch, data, sizeof(data), &got, &err) == SL_IO_WAIT)
        ;
    sl_fetch_abort(fetch);
    ck_assert_int_eq(sl_fetch_start(fetch, source, 500, 600, &err), 0);
    sl_fetch_free(sl_steal(&fetch));
    ck_assert_int_eq(sl_source_read(source, 600, data, 100, &err), 0);
    ck_assert_mem_eq(data, sl_blob() + 600, 100);
}

static void read_until_canceled(void *cancel)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_source_config own = {.cancel = cancel};
    ck_assert_int_eq(sl_read_blob(sl_server_url(server, "/m"), &own, 10, 1000, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
}

SL_TEST(cancel_ends_a_stalled_read)
{
    struct sl_err err = SL_ERR_INIT;
    struct fake_clock_work work;
    struct sl_cancel *cancel = sl_cancel_new(&err);
    SL_SCRIPT(server, {.fault = SL_FAULT_STALL, .after = -1});
    fake_clock_hold(); /* nothing else can end it */
    fake_clock_begin(&work, read_until_canceled, cancel);
    SL_AWAIT(sl_server_request_count(server), "the request that stalls");
    sl_cancel_raise(cancel, 15);
    fake_clock_end(&work);
    sl_cancel_free(cancel);
}

SL_TEST(nobody_there_is_a_clear_error)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_source_config own = {.attempts = 2};
    ck_assert_int_eq(sl_read_blob("http://127.0.0.1:1/m", &own, 10, 1000, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_ptr_nonnull(strstr(err.message, "127.0.0.1:1"));
    ck_assert_int_eq(sl_read_blob("http://nothing.invalid/m", &own, 10, 1000, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
}

struct reader {
    struct sl_store *store;
    struct sl_source *shared;
    struct sl_err err;
};

static void *read_much(void *arg)
{
    struct reader *reader = arg;
    sl_autofree uint8_t *data = malloc(100000);
    for (unsigned i = 0; i < 5 && reader->err.kind == SL_OK; i++) {
        SL_AUTO(sl_source) own = NULL;
        SL_AUTO(sl_fetch) fetch = sl_fetch_new(reader->store, &reader->err);
        if (sl_source_open(reader->store, "m", 1000, &own, &reader->err) < 0 ||
            sl_source_read(own, 5000, data, 100000, &reader->err) < 0 ||
            sl_fetch_start(fetch, reader->shared, i * 1000, i * 1000 + 50000, &reader->err) < 0)
            break;
        size_t used = 0, got;
        enum sl_io_state state;
        while ((state = sl_fetch_read(fetch, data + used, 100000 - used, &got, &reader->err)) !=
               SL_IO_END) {
            if (state == SL_IO_FAILED)
                return NULL;
            used += got;
        }
        if (used != 50000 || memcmp(data, sl_blob() + i * 1000, used) != 0)
            sl_fail(&reader->err, SL_E_INTERNAL, "wrong bytes");
    }
    return NULL;
}

SL_TEST(threads_share_a_store_and_a_source)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    char location[100];
    sl_blob();
    snprintf(location, sizeof(location), "Location: %s\r\n", sl_server_url(server, "/m"));
    SL_SCRIPT(server,
              {.path = "/d/m", .fault = SL_FAULT_STATUS, .status = 302, .headers = location},
              {.path = "/m", .first = 9, .last = 12, .fault = SL_FAULT_STATUS, .status = 403},
              {.path = "/m", .first = 15, .fault = SL_FAULT_RESET, .after = 100});
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/d/m"), &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, "m", 1000, &source, &err), 0);
    struct reader readers[4] = {0};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        readers[i].store = store;
        readers[i].shared = source;
        ck_assert_int_eq(sl_thread_start(&threads[i], "reader", read_much, &readers[i], &err), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(readers[i].err.kind == SL_OK || readers[i].err.http_status == 403, "%s",
                      readers[i].err.message);
}

SL_TEST(every_failing_allocation_is_an_error)
{
    SL_SCRIPT(server, {.path = "/m", .first = 2, .last = 10000, .fault = SL_FAULT_CHUNKED});
    for (unsigned nth = 1; nth < 500; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        int result = sl_read_blob(sl_server_url(server, "/m"), &config, 1000, SL_BLOB_BYTES, &err);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(0);
        ck_assert_msg(result == 0 || err.kind == SL_E_NO_SPACE, "allocation %u: %s", nth,
                      err.message);
        if (!reached)
            return;
    }
    ck_abort_msg("more than 500 allocations");
}

SL_TEST_OF(rules_claims, waits_grow_with_jitter_and_have_a_cap)
{
    struct sl_err why = {.kind = SL_E_NET, .retryable = true};
    struct sl_retry retry = {.limit = 30};
    uint64_t wait, largest = 0;
    for (unsigned i = 1; i < 30; i++) {
        ck_assert(sl_retry_again(&retry, &why, 0, &wait));
        ck_assert_uint_le(wait, i < 9 ? 100ull << (i - 1) : 20000);
        largest = SL_MAX(largest, wait);
    }
    ck_assert_uint_gt(largest, 1000);
    ck_assert(!sl_retry_again(&retry, &why, 0, &wait));
    ck_assert(sl_retry_again(&retry, &why, SL_RETRY_PROGRESS_BYTES, &wait));
    ck_assert_uint_le(wait, 100);
    why.retry_after_ms = 3600 * 1000;
    ck_assert(sl_retry_again(&retry, &why, 0, &wait));
    ck_assert_uint_ge(wait, SL_RETRY_AFTER_CAP_MS);
    ck_assert_uint_le(wait, SL_RETRY_AFTER_CAP_MS + 200);
    why.retryable = false;
    ck_assert(!sl_retry_again(&retry, &why, 0, &wait));
}

/* A server that starts anew refuses for longer than eight tries take. */
SL_TEST_OF(rules_claims, what_reaches_nothing_is_tried_for_its_time_and_costs_no_try)
{
    struct sl_err refused = {.kind = SL_E_NET, .retryable = true, .code = SL_NET_UNREACHED};
    struct sl_err broken = {.kind = SL_E_NET, .retryable = true};
    struct sl_retry retry = {.limit = 3, .unreachable_ns = 60 * SL_NS_PER_S};
    uint64_t wait, begin = (fake_clock_hold(), sl_now_ns());
    unsigned tries = 0;
    for (; sl_retry_again(&retry, &refused, 0, &wait); tries++) {
        ck_assert_uint_le(wait, SL_RETRY_UNREACHED_CAP_MS);
        fake_clock_turn((wait ? wait : 1) * SL_NS_PER_MS);
    }
    ck_assert_uint_ge(sl_now_ns() - begin, 60 * SL_NS_PER_S);
    ck_assert_uint_le(sl_now_ns() - begin, 60 * SL_NS_PER_S + 2 * SL_NS_PER_MS);
    ck_assert_uint_ge(tries, 60 / 5);
    ck_assert_uint_eq(sl_retry_tries(&retry), tries + 1);

    retry = (struct sl_retry){.limit = 3, .unreachable_ns = 60 * SL_NS_PER_S};
    ck_assert(sl_retry_again(&retry, &broken, 0, &wait));
    ck_assert_uint_eq(sl_retry_most(&retry), 3);
    for (unsigned i = 0; i < 10; i++)
        ck_assert(sl_retry_again(&retry, &refused, 0, &wait));
    ck_assert_msg(!sl_retry_most(&retry), "time ends it");
    ck_assert(sl_retry_again(&retry, &broken, 0, &wait));
    ck_assert_msg(!sl_retry_again(&retry, &broken, 0, &wait), "others have their three tries");

    retry = (struct sl_retry){.limit = 1000, .unreachable_ns = 2 * SL_NS_PER_S};
    for (begin = sl_now_ns(); sl_retry_again(&retry, &refused, 0, &wait);)
        fake_clock_turn((wait ? wait : 1) * SL_NS_PER_MS);
    ck_assert_uint_le(sl_now_ns() - begin, 2 * SL_NS_PER_S + 2 * SL_NS_PER_MS);

    struct sl_err unknown = {.kind = SL_E_NET, .retryable = true, .code = SL_NET_UNRESOLVED};
    static const unsigned names[][3] = {{10, 2, 2}, {10, 0, 10}, {1, 2, 1}};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        retry = (struct sl_retry){.limit = 3,
                                  .unreachable_ns = names[i][0] * SL_NS_PER_S,
                                  .unresolved_ns = names[i][1] * SL_NS_PER_S};
        for (begin = sl_now_ns(); sl_retry_again(&retry, &unknown, 0, &wait);)
            fake_clock_turn((wait ? wait : 1) * SL_NS_PER_MS);
        ck_assert_uint_ge(sl_now_ns() - begin, names[i][2] * SL_NS_PER_S);
        ck_assert_uint_le(sl_now_ns() - begin, names[i][2] * SL_NS_PER_S + 2 * SL_NS_PER_MS);
    }

    retry = (struct sl_retry){.limit = 3};
    ck_assert(sl_retry_again(&retry, &refused, 0, &wait));
    ck_assert_uint_eq(sl_retry_most(&retry), 3);
    ck_assert(sl_retry_again(&retry, &refused, 0, &wait));
    ck_assert_msg(!sl_retry_again(&retry, &refused, 0, &wait), "no time was given");
    fake_clock_release();
}

/* Told every few seconds, to who asks; in the log it is once, until it is another cause. */
SL_TEST_OF(rules_claims, a_cause_is_in_the_log_once)
{
    struct sl_err refused = {.kind = SL_E_NET,
                             .retryable = true,
                             .code = SL_NET_UNREACHED,
                             .message = "connection refused"};
    struct sl_retry retry = {.limit = 3, .unreachable_ns = 55 * SL_NS_PER_S};
    char text[8192], last[256];
    uint64_t wait;
    int ends[2];
    ck_assert(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    sl_log_setup(SL_LOG_WARN, false);
    fake_clock_hold();
    ck_assert(!sl_retry_logged(&refused));
    while (sl_retry_again(&retry, &refused, 0, &wait))
        fake_clock_turn((wait ? wait : 1) * SL_NS_PER_MS);
    ck_assert(sl_retry_logged(&refused));
    ck_assert_uint_ge(sl_retry_waits_for(last, sizeof(last)), 5);
    retry = (struct sl_retry){.limit = 3, .unreachable_ns = 20 * SL_NS_PER_S};
    snprintf(refused.message, sizeof(refused.message), "no route");
    while (sl_retry_again(&retry, &refused, 0, &wait))
        fake_clock_turn((wait ? wait : 1) * SL_NS_PER_MS);
    fake_clock_release();
    ssize_t bytes = read(ends[0], text, sizeof(text) - 1);
    ck_assert_int_gt(bytes, 0);
    text[bytes] = 0;
    const char *line = strstr(text, "connection refused");
    ck_assert_ptr_nonnull(line);
    ck_assert_ptr_null(strstr(line + 1, "connection refused"));
    line = strstr(text, "no route");
    ck_assert_ptr_nonnull(line);
    ck_assert_ptr_null(strstr(line + 1, "no route"));
}

SL_TEST_OF(rules_claims, retry_after_is_seconds_or_a_date)
{
    ck_assert_uint_eq(sl_retry_after_ms("7", 0), 7000);
    ck_assert_uint_eq(sl_retry_after_ms("Sat, 21 Nov 2026 05:00:10 GMT", 1795237200), 10000);
    ck_assert_uint_eq(sl_retry_after_ms("Sat, 21 Nov 2026 05:00:10 GMT", 1795237300), 0);
    ck_assert_uint_eq(sl_retry_after_ms("99999999999999999999", 0), 86400000);
    ck_assert_uint_eq(sl_retry_after_ms("-5", 0), 0);
    ck_assert_uint_eq(sl_retry_after_ms("soon", 0), 0);
    ck_assert_uint_eq(sl_retry_after_ms("", 0), 0);
}

static const struct sl_claim_case rules_claims = {.seconds = 0};

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
