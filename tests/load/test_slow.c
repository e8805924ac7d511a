/* When a request is slow, and that one that stalls in the middle of a load holds nobody up. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"
#include "metrics.h"
#include "plan_maker.h"
#include "range_server.h"
#include "reader_parts.h"

#define MS SL_NS_PER_MS

/* ---- patience ------------------------------------------------------------------------------- */

static struct sl_pace paced(uint64_t first_ns, uint64_t gap_ns)
{
    struct sl_pace pace = {0};
    for (int i = 0; i < 2 * SL_PACE_SAMPLES; i++) {
        sl_waits_add(&pace.first, first_ns);
        sl_waits_add(&pace.gaps, gap_ns);
    }
    return pace;
}

SL_TEST(nine_of_ten_waits_are_usual)
{
    struct sl_waits waits = {0};
    for (unsigned i = 0; i < 3; i++) {
        sl_waits_add(&waits, 5);
        ck_assert_uint_eq(sl_waits_usual(&waits), 0);
    }
    for (unsigned i = 0; i < SL_PACE_SAMPLES; i++)
        sl_waits_add(&waits, 1000 - i);
    ck_assert_uint_eq(sl_waits_usual(&waits), 1000 - 4 + 1);
}

SL_TEST(patience_follows_the_link)
{
    struct sl_pace near = paced(MS / 2, MS), far = paced(30 * MS, 40 * MS);
    struct sl_latency_delays patience = sl_pace_delays(&near, MS);
    ck_assert_uint_eq(patience.first_ns, 25 * MS);
    ck_assert_uint_eq(patience.fresh_ns, 250 * MS);
    ck_assert_uint_eq(patience.gap_ns, 100 * MS);
    for (int i = 0; i < SL_PACE_SAMPLES; i++)
        sl_waits_add(&near.fresh, 2 * MS);
    ck_assert_uint_eq(sl_pace_delays(&near, MS).fresh_ns, 150 * MS);
    patience = sl_pace_delays(&far, 30 * MS);
    ck_assert_uint_eq(patience.first_ns / MS, 120);
    ck_assert_uint_eq(patience.fresh_ns / MS, 360);
    ck_assert_uint_eq(patience.gap_ns / MS, 160);
}

/* Before anything is known of the load, what the store showed while it was opened has to do. */
SL_TEST(a_load_that_begins_is_patient)
{
    struct sl_pace none = {0};
    ck_assert_uint_eq(sl_pace_delays(&none, 0).first_ns, 250 * MS);
    ck_assert_uint_eq(sl_pace_delays(&none, MS).first_ns, 250 * MS);
    ck_assert_uint_eq(sl_pace_delays(&none, 100 * MS).first_ns, 800 * MS);
    ck_assert_uint_ge(sl_pace_delays(&none, 0).gap_ns, 250 * MS);
}

SL_TEST(one_that_stalls_changes_nothing_and_many_make_patient)
{
    struct sl_pace pace = paced(MS, MS);
    sl_waits_add(&pace.first, 5000 * MS);
    ck_assert_uint_eq(sl_pace_delays(&pace, MS).first_ns, 25 * MS);
    for (int i = 0; i < SL_PACE_SAMPLES / 4; i++)
        sl_waits_add(&pace.first, 25 * MS);
    ck_assert_uint_ge(sl_pace_delays(&pace, MS).first_ns, 100 * MS);
}

/* ---- is it the request? --------------------------------------------------------------------- */

struct desk {
    struct sl_plan plan;
    struct sl_range ranges[1000];
    struct sl_extent extent; /* of all of them */
    struct sl_reader reader;
};

static struct desk *open_desk(unsigned slots)
{
    struct desk *desk = calloc(1, sizeof(*desk));
    ck_assert_ptr_nonnull(desk);
    desk->reader.plan = &desk->plan;
    pthread_mutex_init(&desk->reader.lock, NULL);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_file_queues_init(&desk->reader.locked.queues, desk->ranges,
                                         SL_COUNT(desk->ranges), &desk->extent, 1, &err),
                     0);
    desk->reader.locked.slots = slots;
    desk->reader.locked.hedge_credit = SL_HEDGE_CREDIT;
    sl_counter_add(&desk->reader.landed, 100);
    return desk;
}

static void close_desk(struct desk *desk)
{
    sl_file_queues_release(&desk->reader.locked.queues);
    pthread_mutex_destroy(&desk->reader.lock);
    free(desk);
}

static const struct sl_slow slow = {.landed_then = 100, .quiet_ns = 25 * MS};

SL_TEST(only_where_others_land_is_it_the_request)
{
    struct desk *desk = open_desk(4);
    sl_reader_count_doubtful(&desk->reader, 1);
    ck_assert(!sl_reader_may_hedge(&desk->reader, &slow));
    sl_counter_add(&desk->reader.landed, 1);
    ck_assert(sl_reader_may_hedge(&desk->reader, &slow));
    sl_reader_count_doubtful(&desk->reader, 2);
    ck_assert_msg(!sl_reader_may_hedge(&desk->reader, &slow), "most are slow");
    close_desk(desk);
}

SL_TEST(where_most_stall_a_whole_range_must_have_landed)
{
    struct desk *desk = open_desk(4);
    struct sl_slow stuck = slow;
    stuck.range_bytes = 1000;
    sl_reader_count_doubtful(&desk->reader, 3);
    sl_counter_add(&desk->reader.landed, 1000);
    stuck.stuck = true;
    ck_assert(!sl_reader_may_hedge(&desk->reader, &stuck));
    sl_counter_add(&desk->reader.landed, 1);
    ck_assert(sl_reader_may_hedge(&desk->reader, &stuck));
    stuck.stuck = false;
    ck_assert_msg(!sl_reader_may_hedge(&desk->reader, &stuck), "it is only slow");
    close_desk(desk);
}

SL_TEST(those_who_have_ended_speak_for_the_link)
{
    struct desk *desk = open_desk(4);
    sl_reader_count_doubtful(&desk->reader, 2);
    sl_reader_count_idle(&desk->reader, 2);
    ck_assert(sl_reader_may_hedge(&desk->reader, &slow));
    sl_reader_count_idle(&desk->reader, -1);
    ck_assert_msg(!sl_reader_may_hedge(&desk->reader, &slow), "one more reads, and lands nothing");
    close_desk(desk);
}

SL_TEST(alone_it_must_be_stuck)
{
    struct desk *desk = open_desk(1);
    struct sl_slow stuck = slow;
    stuck.stuck = true;
    sl_reader_count_doubtful(&desk->reader, 1);
    ck_assert(!sl_reader_may_hedge(&desk->reader, &slow));
    ck_assert(sl_reader_may_hedge(&desk->reader, &stuck));
    close_desk(desk);
}

static unsigned hedges_in_a_row(struct desk *desk, const struct sl_slow *why)
{
    unsigned count = 0;
    while (count < 1000 && sl_reader_may_hedge(&desk->reader, why))
        count++;
    return count;
}

SL_TEST(requests_sent_again_are_few_beside_ranges)
{
    struct desk *desk = open_desk(4);
    struct sl_reader_job job;
    sl_counter_add(&desk->reader.landed, 1);
    ck_assert_uint_eq(hedges_in_a_row(desk, &slow), 8);
    for (int i = 0; i < 100; i++)
        ck_assert(sl_reader_take(&desk->reader, 0, &job));
    ck_assert_uint_eq(hedges_in_a_row(desk, &slow), 6);
    for (int i = 0; i < 900; i++)
        ck_assert(sl_reader_take(&desk->reader, 0, &job));
    ck_assert_uint_eq(hedges_in_a_row(desk, &slow), 32);
    close_desk(desk);
}

/* 2 % of the load, with what the buffers of both ends may hold, and a little for small ones. */
SL_TEST(what_comes_in_vain_is_bounded)
{
    enum { UNREAD = 1000 * 1000 };
    for (uint64_t mb = 0; mb <= 2000; mb += 1000) {
        struct desk *desk = open_desk(4);
        desk->plan.fetch_bytes = mb * 1000 * 1000;
        uint64_t times = 0;
        while (times < 1000 && sl_reader_may_waste(&desk->reader, UNREAD))
            times++;
        ck_assert_uint_eq(times, (desk->plan.fetch_bytes / 50 + 256 * 1024) / (3 * UNREAD + 65536));
        struct sl_slow full = slow;
        full.unread = UNREAD;
        sl_counter_add(&desk->reader.landed, 1);
        ck_assert(!sl_reader_may_hedge(&desk->reader, &full));
        ck_assert_msg(sl_reader_may_hedge(&desk->reader, &slow), "nothing came of it: free");
        close_desk(desk);
    }
}

/* ---- a stall in the middle of a load -------------------------------------------------------- */

enum { RANGE_BYTES = 8 * 1024, RANGES = 768, BYTES = RANGES * RANGE_BYTES, STALLS = 3 };

/* Some answers stall for good. Their ranges must be asked for again before the load is through, and
 * until all have been it goes on slowly, so that there is a middle. */
struct middle {
    unsigned requests;
    char stalled[STALLS][64]; /* the end of the header Range */
    unsigned again[STALLS];   /* the request that asked for it again; 0: none yet */
    struct sl_counter settled;
};
static const unsigned stalls_at[STALLS] = {40, 80, 120};

static bool note(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    struct middle *middle = arg;
    char range[128] = "";
    (void)reply;
    middle->requests++;
    sl_server_header(request, "Range", range, sizeof(range));
    const char *end = strchr(range, '-');
    for (int i = 0; end && i < STALLS; i++) {
        if (middle->requests == stalls_at[i]) {
            snprintf(middle->stalled[i], sizeof(middle->stalled[i]), "%.60s", end);
        } else if (!middle->again[i] && strcmp(middle->stalled[i], end) == 0) {
            middle->again[i] = middle->requests;
            sl_counter_add(&middle->settled, 1);
        }
    }
    return false;
}

static void go_slowly(void *arg, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct middle *middle = arg;
    (void)file, (void)offset, (void)bytes;
    if (sl_counter_get(&middle->settled) < STALLS)
        sl_sleep_ms(4, NULL, NULL);
}

static void agreed(void *arg, const struct sl_check *check)
{
    (void)arg, (void)check;
}

/* Not a byte of the answer, some of it, and the same with TLS. */
static const int64_t stall_after[] = {-1, 0, 100, 100};

SL_TEST_LOOP(a_stall_in_mid_load_holds_nobody_up, 0, SL_COUNT(stall_after))
{
    sl_test_adapts();
    struct sl_err err = SL_ERR_INIT;
    bool secure = _i % 2;
    struct sl_server *server = secure ? sl_server_start_tls() : sl_server_start();
    uint8_t *data = malloc(BYTES);
    struct middle middle = {0};
    struct sl_step steps[STALLS];
    sl_made_noise(data, BYTES, 9);
    sl_server_put(server, "/object", data, BYTES, "\"v1\"");
    for (int i = 0; i < STALLS; i++)
        steps[i] = (struct sl_step){
            .first = stalls_at[i], .fault = SL_FAULT_STALL, .after = stall_after[_i]};
    sl_server_script(server, steps, STALLS);
    sl_server_handle(server, note, &middle);

    struct sl_tls_options tls = {.ca_file = (char *)(secure ? sl_server_ca(server) : NULL),
                                 .verify = true};
    struct sl_source_config source_config = {.tls = secure ? &tls : NULL};
    struct sl_made *made = sl_made_new();
    uint32_t source = sl_made_source(made, sl_server_url(server, "/object"), &source_config);
    sl_made_whole(made, source, "object", RANGE_BYTES, data);
    struct sl_sink *sink = sl_heap_open(made->files, 1, &err);
    struct sl_stage_device device = {.events = {go_slowly, agreed, &middle}};
    struct sl_reader_config config = {.connections = 4, .threads = 1 + _i / 2, .device = &device};
    fake_clock_run(); /* a slow machine would make requests slow that no script does */
    uint64_t hedges = sl_metric_get(SL_M_SOURCE_HEDGES),
             retries = sl_metric_get(SL_M_SOURCE_RETRIES),
             wasted = sl_metric_get(SL_M_SOURCE_WASTED_BYTES);
    ck_assert_msg(sl_reader_run(&made->plan, sink, NULL, &config, &err) == 0, "%s", err.message);
    hedges = sl_metric_get(SL_M_SOURCE_HEDGES) - hedges;
    retries = sl_metric_get(SL_M_SOURCE_RETRIES) - retries;
    wasted = sl_metric_get(SL_M_SOURCE_WASTED_BYTES) - wasted;
    fake_clock_release();
    sl_server_stop(server); /* its threads count no more */

    ck_assert_int_eq(sl_made_compare(made, sink), 0);
    for (int i = 0; i < STALLS; i++) {
        ck_assert_uint_gt(middle.again[i], stalls_at[i]);
        ck_assert_msg(middle.again[i] < RANGES, "request %u was sent again as number %u",
                      stalls_at[i], middle.again[i]);
    }
    ck_assert_uint_ge(hedges, STALLS);
    /* One that was given up may not have reached the server. */
    ck_assert_uint_ge(middle.requests, 1 + RANGES + STALLS);
    ck_assert_uint_le(middle.requests, 1 + RANGES + hedges + retries);
    ck_assert_uint_le(wasted, hedges * RANGE_BYTES);
    sl_sink_free(sink);
    sl_made_free(made);
    free(data);
}

SL_CASE(.seconds = 60)
