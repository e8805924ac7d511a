/* Requests much slower than others: who takes over, how soon, and when nobody must. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "metrics.h"
#include "pace.h"
#include "plan_maker.h"
#include "range_server.h"
#include "reader.h"
#include "retry.h"
#include "scratch.h"
#include "seed.h"
#include "thread.h"

enum { RANGE_BYTES = 256 * 1024, RANGES = 8, OBJECT_BYTES = RANGES * RANGE_BYTES - 777 };
enum { FOR_EVER_SECONDS = 3600 };   /* longer than a test may take: no stall ends a request */
#define LOOK_NS (20 * SL_NS_PER_MS) /* channels are looked at as often as this */

/* One object on a server of its own, to be loaded in RANGES ranges. */
struct scene {
    struct sl_server *server;
    uint8_t *data;
    unsigned connections, threads, stall_seconds;
    enum sl_hedge hedge;
    bool on_files; /* with a journal */
    struct sl_cancel *cancel;
    struct sl_counter come_before; /* out: SL_M_SOURCE_BYTES when the object was open */
    bool same;                     /* out: every byte is right */
    int failed;
    double seconds;
    struct sl_err err;
};

/* Bytes of ranges; for one scene at a time. */
static uint64_t come_since(const struct scene *scene)
{
    uint64_t before = sl_counter_get(&scene->come_before);
    return before ? sl_metric_get(SL_M_SOURCE_BYTES) - before : 0;
}

static void open_scene(struct scene *scene)
{
    scene->server = sl_server_start();
    scene->data = malloc(OBJECT_BYTES);
    sl_made_noise(scene->data, OBJECT_BYTES, 3);
    sl_server_put(scene->server, "/object", scene->data, OBJECT_BYTES, "\"v1\"");
}

static void close_scene(struct scene *scene)
{
    sl_server_stop(scene->server);
    free(scene->data);
}

static void load_made(struct scene *scene, struct sl_made *made)
{
    static const uint8_t identity[32] = "hedge";
    char path[SL_SCRATCH_PATH_BYTES];
    bool resumed;
    int directory = sl_scratch_open(path);
    struct sl_reader_config config = {.connections = scene->connections,
                                      .threads = scene->threads,
                                      .hedge = scene->hedge,
                                      .cancel = scene->cancel};
    struct sl_sink *sink = scene->on_files
                               ? sl_tmpfs_open(directory, made->files, 1, NULL, &scene->err)
                               : sl_heap_open(made->files, 1, &scene->err);
    struct sl_journal *journal =
        scene->on_files ? sl_journal_open(directory, "journal", identity, &resumed, &scene->err)
                        : NULL;
    sl_counter_add(&scene->come_before, sl_metric_get(SL_M_SOURCE_BYTES));
    uint64_t begin_ns = sl_now_ns();
    scene->failed = sl_reader_run(&made->plan, sink, journal, &config, &scene->err);
    scene->seconds = (double)(sl_now_ns() - begin_ns) / (double)SL_NS_PER_S;
    scene->same = !scene->failed && sl_made_compare(made, sink) == 0;
    sl_journal_free(journal);
    sl_sink_free(sink);
    sl_scratch_close(directory, path);
}

/* Runs in threads, too: looks at nothing. */
static void run_scene(void *arg)
{
    struct scene *scene = arg;
    /* What opens the object is not what is tried here. */
    struct sl_source_config source_config = {.stall_seconds = scene->stall_seconds,
                                             .hedge = SL_HEDGE_OFF};
    struct sl_made *made = sl_made_new();
    uint32_t source = sl_made_source(made, sl_server_url(scene->server, "/object"), &source_config);
    sl_made_whole(made, source, "object", RANGE_BYTES, scene->data);
    sl_made_check(made, SL_HASH_SHA256, source, 0, OBJECT_BYTES, 0, 0, scene->data);
    sl_made_check(made, SL_HASH_CRC32, source, 1, OBJECT_BYTES - 1, 0, 1, scene->data + 1);
    load_made(scene, made);
    sl_made_free(made);
}

static void *load_scene(void *arg)
{
    run_scene(arg);
    return NULL;
}

static void must_be_right(const struct scene *scene)
{
    ck_assert_msg(scene->failed == 0, "%u connections, %u threads: %s", scene->connections,
                  scene->threads, scene->err.message);
    ck_assert_msg(scene->same, "bytes differ");
}

/* Request 1 opens the object, 2 to RANGES + 1 fetch its ranges. */
static const struct sl_step slow_steps[] = {
    {.first = 4, .fault = SL_FAULT_STALL, .after = 100000},
    {.first = 4, .fault = SL_FAULT_STALL, .after = -1},
    {.first = RANGES + 1, .fault = SL_FAULT_STALL, .after = RANGE_BYTES / 2},
    {.first = 3, .last = 4, .fault = SL_FAULT_STALL, .after = 0},
    {.first = 5, .fault = SL_FAULT_TRICKLE, .after = 70000},
    {.first = 2, .fault = SL_FAULT_TRICKLE, .after = 0},
    /* What lies in the socket, below what poll() tells of, is more than may be thrown away. */
    {.first = 5, .fault = SL_FAULT_LATE_STALL, .after = 200000},
};

SL_TEST(a_slow_request_is_sent_again)
{
    int64_t before = (int64_t)sl_metric_get(SL_M_SOURCE_HEDGES), requests = 0;
    struct scene scenes[SL_COUNT(slow_steps)] = {0};
    pthread_t threads[SL_COUNT(slow_steps)];
    for (size_t i = 0; i < SL_COUNT(slow_steps); i++) {
        scenes[i].connections = 4;
        scenes[i].stall_seconds = FOR_EVER_SECONDS;
        scenes[i].threads = 1 + i % 2;
        scenes[i].on_files = i % 3 == 0;
        open_scene(&scenes[i]);
        sl_server_script(scenes[i].server, &slow_steps[i], 1);
        pthread_create(&threads[i], NULL, load_scene, &scenes[i]);
    }
    for (size_t i = 0; i < SL_COUNT(slow_steps); i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < SL_COUNT(slow_steps); i++) {
        must_be_right(&scenes[i]);
        ck_assert_uint_ge(sl_server_request_count(scenes[i].server), RANGES + 2);
        requests += sl_server_request_count(scenes[i].server);
        close_scene(&scenes[i]);
    }
    int64_t hedges = (int64_t)sl_metric_get(SL_M_SOURCE_HEDGES) - before;
    ck_assert_int_ge(hedges, SL_COUNT(slow_steps));
    ck_assert_int_le(requests, (RANGES + 1) * (int64_t)SL_COUNT(slow_steps) + hedges);
}

/* Silent for many times what the others wait, before the head and in the body, in the middle of the
 * load and at its end. */
static const struct sl_step late_steps[] = {
    {.first = 4, .fault = SL_FAULT_SLOW, .after = 2000},
    {.first = RANGES + 1, .fault = SL_FAULT_SLOW, .after = 2000},
    {.first = 4, .fault = SL_FAULT_STALL, .after = 100000},
    {.first = 3, .fault = SL_FAULT_TRICKLE, .after = RANGE_BYTES - 100},
};

SL_TEST(where_it_is_off_slow_requests_are_waited_for)
{
    enum { STALL_SECONDS = 3 };
    int64_t before = (int64_t)sl_metric_get(SL_M_SOURCE_HEDGES);
    struct scene scenes[SL_COUNT(late_steps)];
    struct fake_clock_work works[SL_COUNT(late_steps)];
    fake_clock_hold();
    for (size_t i = 0; i < SL_COUNT(late_steps); i++) {
        bool stalls = late_steps[i].fault == SL_FAULT_STALL;
        scenes[i] = (struct scene){.connections = 4,
                                   .threads = 1 + i % 2,
                                   .stall_seconds = stalls ? STALL_SECONDS : FOR_EVER_SECONDS,
                                   .hedge = SL_HEDGE_OFF};
        open_scene(&scenes[i]);
        sl_server_script(scenes[i].server, &late_steps[i], 1);
        fake_clock_begin(&works[i], run_scene, &scenes[i]);
    }
    for (size_t i = 0; i < SL_COUNT(late_steps); i++)
        SL_AWAIT(sl_server_request_count(scenes[i].server) == RANGES + 1, "the last range");
    for (size_t i = 0; i < SL_COUNT(late_steps); i++) {
        fake_clock_turn_until(&works[i].done, LOOK_NS, 1);
        fake_clock_end(&works[i]);
    }
    for (size_t i = 0; i < SL_COUNT(late_steps); i++) {
        bool stalls = late_steps[i].fault == SL_FAULT_STALL;
        unsigned requests = sl_server_request_count(scenes[i].server);
        must_be_right(&scenes[i]);
        ck_assert_msg(scenes[i].seconds >= (stalls ? STALL_SECONDS : 2), "%zu: not waited for", i);
        ck_assert_msg(requests == RANGES + 1u + stalls, "%zu: %u requests", i, requests);
        close_scene(&scenes[i]);
    }
    ck_assert_int_eq((int64_t)sl_metric_get(SL_M_SOURCE_HEDGES), before);
}

struct watch {
    unsigned requests, at;
    struct sl_cancel *raise; /* when request `at` comes */
};

static bool watch(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    struct watch *watch = arg;
    (void)request;
    (void)reply;
    if (++watch->requests == watch->at)
        sl_cancel_raise(watch->raise, 15);
    return false;
}

/* Everybody has looked at what has come, and waits. */
static void look(unsigned threads)
{
    fake_clock_turn(0);
    fake_clock_settle(threads);
}

/*
 * The last range of every connection stalls: that is the link, and time-outs are there for it. Each
 * brings nothing, or a few bytes and then one whenever the clock is turned.
 */
SL_TEST_LOOP(a_slow_link_sends_nothing_again, 0, 2)
{
    enum { TRICKLE_MS = 20, LAST = 4, FEW = 9, THREADS = 2, STALL_SECONDS = 4 };
    const struct sl_step steps[] = {{.first = RANGES - 2,
                                     .last = RANGES + 1,
                                     .fault = _i ? SL_FAULT_TRICKLE : SL_FAULT_STALL,
                                     .after = _i ? FEW : -1}};
    struct scene scene = {.connections = LAST, .threads = THREADS, .stall_seconds = STALL_SECONDS};
    struct fake_clock_work work;
    uint64_t before = sl_metric_get(SL_M_SOURCE_HEDGES);
    open_scene(&scene);
    sl_server_script(scene.server, steps, SL_COUNT(steps));
    fake_clock_hold();
    fake_clock_begin(&work, run_scene, &scene);
    SL_AWAIT(sl_server_request_count(scene.server) == RANGES + 1, "the last ranges");
    if (_i)
        fake_clock_await_all(LAST, TRICKLE_MS * SL_NS_PER_MS);
    look(THREADS);
    for (unsigned ms = TRICKLE_MS; ms < STALL_SECONDS * 1000; ms += TRICKLE_MS) {
        fake_clock_turn(TRICKLE_MS * SL_NS_PER_MS);
        if (_i)
            fake_clock_await_all(LAST, TRICKLE_MS * SL_NS_PER_MS);
        look(THREADS);
        ck_assert_uint_eq(sl_metric_get(SL_M_SOURCE_HEDGES), before);
        ck_assert_uint_eq(sl_server_request_count(scene.server), RANGES + 1);
    }
    fake_clock_turn(TRICKLE_MS * SL_NS_PER_MS);
    look(THREADS);
    fake_clock_turn(SL_RETRY_BASE_MS * SL_NS_PER_MS);
    fake_clock_end(&work);
    must_be_right(&scene);
    ck_assert_uint_eq(sl_metric_get(SL_M_SOURCE_HEDGES), before);
    ck_assert_uint_eq(sl_server_request_count(scene.server), RANGES + 1 + LAST);
    close_scene(&scene);
}

/* A server that asks to wait is not slow. */
SL_TEST(a_retry_that_waits_is_left_alone)
{
    int64_t before = (int64_t)sl_metric_get(SL_M_SOURCE_HEDGES);
    uint64_t retries = sl_metric_get(SL_M_SOURCE_RETRIES);
    struct scene scene = {.connections = 4, .threads = 2};
    struct fake_clock_work work;
    open_scene(&scene);
    SL_SCRIPT(
        scene.server,
        {.first = 5, .fault = SL_FAULT_STATUS, .status = 503, .headers = "Retry-After: 2\r\n"});
    fake_clock_hold();
    fake_clock_begin(&work, run_scene, &scene);
    SL_AWAIT(come_since(&scene) == OBJECT_BYTES - RANGE_BYTES, "the other ranges");
    SL_AWAIT(sl_metric_get(SL_M_SOURCE_RETRIES) > retries, "the answer that asks to wait");
    look(scene.threads);
    for (unsigned ms = 0; ms < 2000; ms += 20) {
        ck_assert_uint_eq(sl_server_request_count(scene.server), RANGES + 1);
        fake_clock_turn(LOOK_NS);
        fake_clock_settle(1);
    }
    fake_clock_turn(SL_RETRY_BASE_MS * SL_NS_PER_MS);
    fake_clock_end(&work);
    must_be_right(&scene);
    ck_assert_int_eq((int64_t)sl_metric_get(SL_M_SOURCE_HEDGES), before);
    ck_assert_uint_eq(sl_server_request_count(scene.server), RANGES + 2);
    close_scene(&scene);
}

SL_TEST(a_lone_connection_helps_itself)
{
    uint64_t hedges = sl_metric_get(SL_M_SOURCE_HEDGES);
    struct scene scene = {.connections = 1, .threads = 1, .stall_seconds = FOR_EVER_SECONDS};
    open_scene(&scene);
    SL_SCRIPT(scene.server, {.first = RANGES + 1, .fault = SL_FAULT_STALL, .after = 1000});
    load_scene(&scene);
    must_be_right(&scene);
    hedges = sl_metric_get(SL_M_SOURCE_HEDGES) - hedges;
    ck_assert_uint_ge(hedges, 1);
    ck_assert_uint_ge(sl_server_request_count(scene.server), RANGES + 2);
    ck_assert_uint_le(sl_server_request_count(scene.server), RANGES + 1 + hedges);
    close_scene(&scene);
}

SL_TEST(stalls_by_chance_harm_no_byte)
{
    static const unsigned connections[] = {1, 2, 3, 8};
    enum { SCENES = 16 };
    struct scene scenes[SCENES] = {0};
    pthread_t threads[SCENES];
    for (size_t i = 0; i < SCENES; i++) {
        struct scene *scene = &scenes[i];
        *scene = (struct scene){.connections = connections[i % 4],
                                .threads = 1 + i / 4 % 2,
                                .stall_seconds = 2,
                                .on_files = i / 8};
        open_scene(scene);
        struct sl_step steps[3];
        for (size_t k = 0; k < SL_COUNT(steps); k++)
            steps[k] = (struct sl_step){.first = 2 + (unsigned)sl_test_pick(RANGES + 3),
                                        .fault = k ? SL_FAULT_STALL : SL_FAULT_TRICKLE,
                                        .after = (int64_t)sl_test_pick(RANGE_BYTES)};
        sl_server_script(scene->server, steps, SL_COUNT(steps));
        pthread_create(&threads[i], NULL, load_scene, scene);
    }
    for (size_t i = 0; i < SCENES; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < SCENES; i++) {
        must_be_right(&scenes[i]);
        close_scene(&scenes[i]);
    }
}

SL_TEST(cancellation_ends_a_load_that_is_helped_out)
{
    struct watch again = {.at = RANGES + 2};
    struct scene scene = {.connections = 3, .threads = 2, .stall_seconds = FOR_EVER_SECONDS};
    open_scene(&scene);
    scene.cancel = again.raise = sl_cancel_new(&scene.err);
    SL_SCRIPT(scene.server, {.first = 4, .fault = SL_FAULT_STALL, .after = 1000},
              {.first = RANGES + 2, .last = 99, .fault = SL_FAULT_STALL, .after = 1000});
    sl_server_handle(scene.server, watch, &again);
    load_scene(&scene);
    ck_assert_int_eq(scene.failed, -1);
    ck_assert_int_eq(scene.err.kind, SL_E_CANCELED);
    close_scene(&scene);
    sl_cancel_free(scene.cancel);
}

/* The thread of the small object has no channel that could be helped. */
SL_TEST(an_idle_thread_takes_over_from_another)
{
    enum { BYTES = 8 * 1024 * 1024 };
    struct scene scene = {.connections = 2, .threads = 2};
    uint8_t *data = malloc(BYTES);
    sl_made_noise(data, BYTES, 5);
    scene.server = sl_server_start();
    sl_server_put(scene.server, "/large", data, BYTES, "\"v1\"");
    sl_server_put(scene.server, "/small", data, RANGE_BYTES, "\"v1\"");
    SL_SCRIPT(scene.server,
              {.path = "/large", .first = 2, .fault = SL_FAULT_STALL, .after = 1000000});
    const struct sl_source_config config = {.stall_seconds = FOR_EVER_SECONDS};
    struct sl_made *made = sl_made_new();
    uint32_t large = sl_made_source(made, sl_server_url(scene.server, "/large"), &config);
    uint32_t small = sl_made_source(made, sl_server_url(scene.server, "/small"), &config);
    uint32_t file = sl_made_file(made, "both", BYTES + RANGE_BYTES);
    sl_made_extent(made, large, 0, BYTES, file, 0, data);
    sl_made_range(made);
    sl_made_extent(made, small, 0, RANGE_BYTES, file, BYTES, data);
    sl_made_range(made);
    sl_made_check(made, SL_HASH_CRC32, large, 0, BYTES, 0, 0, data);
    load_made(&scene, made);
    must_be_right(&scene);
    ck_assert_uint_gt(sl_server_request_count(scene.server), 5);
    sl_made_free(made);
    sl_server_stop(scene.server);
    free(data);
}

SL_TEST(the_pace_is_the_median_of_the_last)
{
    struct sl_pace pace = {0};
    ck_assert_uint_eq(sl_pace_expect(&pace, 100), 0);
    sl_pace_add(&pace, 0, 5);
    ck_assert_uint_eq(sl_pace_expect(&pace, 100), 0);
    sl_pace_add(&pace, 100, 1000);
    ck_assert_uint_eq(sl_pace_expect(&pace, 100), 1001);
    ck_assert_uint_eq(sl_pace_expect(&pace, 200), 2001);
    ck_assert_uint_eq(sl_pace_expect(&pace, 1), 1001);
    sl_pace_add(&pace, 100, 9000000);
    sl_pace_add(&pace, 100, 10);
    ck_assert_uint_eq(sl_pace_expect(&pace, 100), 1001);
    for (int i = 0; i < SL_PACE_SAMPLES; i++)
        sl_pace_add(&pace, 100, 7);
    ck_assert_uint_eq(sl_pace_expect(&pace, 100), 8);
}

SL_CASE(.seconds = 60, .adapts = true)
