/* The reader against plans by chance, both kinds of sink, failures at every point, and kills. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "growth.h"
#include "hash.h"
#include "memory_store.h"
#include "plan_maker.h"
#include "range_server.h"
#include "reader.h"
#include "scratch.h"

static const uint8_t identity[32] = "plan";

static int run(const struct sl_made *made, struct sl_sink *sink, struct sl_journal *journal,
               unsigned connections, unsigned threads, struct sl_err *err)
{
    struct sl_reader_config config = {.connections = connections, .threads = threads};
    memset(err, 0, sizeof(*err));
    return sl_reader_run(&made->plan, sink, journal, &config, err);
}

static struct sl_sink *open_sink(const struct sl_made *made, int directory)
{
    struct sl_err err = SL_ERR_INIT;
    size_t count = made->plan.file_count;
    struct sl_sink *sink = directory < 0 ? sl_heap_open(made->files, count, &err)
                                         : sl_tmpfs_open(directory, made->files, count, NULL, &err);
    ck_assert_msg(sink != NULL, "%s", err.message);
    return sink;
}

static void every_byte_arrives(int directory, unsigned seed, unsigned connections, unsigned threads)
{
    struct sl_err err;
    struct sl_made *made = sl_made_random(seed);
    struct sl_sink *sink = open_sink(made, directory);
    int failed = run(made, sink, NULL, connections, threads, &err);
    ck_assert_msg(failed == 0, "seed %u: %s", seed, err.message);
    ck_assert_msg(sl_made_compare(made, sink) == 0, "seed %u: bytes differ", seed);
    sl_sink_free(sink);
    sl_made_free(made);
    sl_memory_clear();
}

static const struct sl_claim_case served_claims;
static const struct sl_claim_case growth_claims;

SL_TEST(random_plans_arrive_whole)
{
    static const unsigned connections[] = {1, 2, 3, 8, 100};
    for (unsigned seed = 0; seed < 40; seed++) {
        char path[SL_SCRATCH_PATH_BYTES];
        int directory = sl_scratch_open(path);
        unsigned count = connections[seed % SL_COUNT(connections)];
        every_byte_arrives(-1, seed, count, 1 + seed % 3);
        every_byte_arrives(directory, seed, count, 1 + seed % 3);
        sl_scratch_close(directory, path);
    }
}

/* From memory, into files. */
SL_TEST_LOOP(windows_of_a_fast_source_grow_as_far_as_the_memory_goes, 0, 4)
{
    enum { BYTES = 24 * 1024 * 1024 + 4099, USUAL = 256 * 1024, LARGE = 1024 * 1024 };
    static const uint64_t memories[] = {0, USUAL};
    struct sl_err err = SL_ERR_INIT;
    char path[SL_SCRATCH_PATH_BYTES];
    int directory = sl_scratch_open(path);
    uint8_t *data = malloc(BYTES);
    sl_test_adapts();
    sl_made_noise(data, BYTES, 6);
    ck_assert_int_eq(sl_memory_put("fast", data, BYTES, &err), 0);
    struct sl_made *made = sl_made_new();
    uint32_t source = sl_made_source(made, "memory:fast", NULL);
    sl_made_whole(made, source, "object", BYTES / 3, data);
    made->plan.fetch_bytes = BYTES;
    sl_made_check(made, SL_HASH_CRC32, source, 1, BYTES - 1, 0, 1, data + 1);
    struct sl_sink *sink = open_sink(made, directory);
    struct sl_reader_outcome outcome;
    const struct sl_reader_config config = {.connections = 1 + (unsigned)_i / 2,
                                            .threads = 1 + (unsigned)_i / 2,
                                            .memory_bytes = memories[_i % 2] * (1 + _i / 2),
                                            .outcome = &outcome};
    fake_clock_hold(); /* each buffer is full in no time */
    ck_assert_msg(sl_reader_run(&made->plan, sink, NULL, &config, &err) == 0, "%s", err.message);
    fake_clock_release();
    ck_assert_int_eq(sl_made_compare(made, sink), 0);
    ck_assert(outcome.buffer_bytes >= USUAL && outcome.buffer_bytes <= LARGE);
    if (_i % 2)
        ck_assert_uint_eq(outcome.buffer_bytes, USUAL);
    else
        ck_assert_uint_gt(outcome.buffer_bytes, USUAL);
    sl_sink_free(sink);
    sl_made_free(made);
    sl_memory_clear();
    sl_scratch_close(directory, path);
    free(data);
}

SL_TEST(a_plan_of_literals_needs_no_source)
{
    struct sl_err err;
    struct sl_made *made = sl_made_new();
    static const uint8_t bytes[] = "only this";
    sl_made_file(made, "empty", 0);
    sl_made_literal(made, sl_made_file(made, "small", sizeof(bytes)), 0, bytes, sizeof(bytes));
    struct sl_sink *sink = open_sink(made, -1);
    ck_assert_int_eq(run(made, sink, NULL, 3, 2, &err), 0);
    ck_assert_int_eq(sl_made_compare(made, sink), 0);
    sl_sink_free(sink);
    sl_made_free(made);
}

SL_TEST(every_wrong_hash_is_found)
{
    struct sl_err err;
    struct sl_made *made = sl_made_random(3);
    struct sl_sink *sink = open_sink(made, -1);
    ck_assert_uint_gt(made->plan.check_count, 3);
    for (size_t i = 0; i < made->plan.check_count; i++) {
        made->plan.checks[i].expected[3] ^= 1;
        ck_assert_int_eq(run(made, sink, NULL, 1 + i % 4, 1 + i % 2, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
        ck_assert_msg(strncmp(err.code, "E_HASH_", 7) == 0, "%s", err.code);
        ck_assert_msg(strstr(err.message, "tensor 'made'") != NULL, "%s", err.message);
        made->plan.checks[i].expected[3] ^= 1;
    }
    sl_sink_free(sink);
    sl_made_free(made);
    sl_memory_clear();
}

SL_TEST(a_read_that_fails_ends_the_load)
{
    struct sl_err err;
    struct sl_made *made = sl_made_random(5);
    struct sl_sink *sink = open_sink(made, -1);
    for (unsigned nth = 1;; nth += 1 + nth / 8) {
        sl_memory_fail_at(nth);
        int failed = run(made, sink, NULL, 1 + nth % 5, 1 + nth % 2, &err);
        sl_memory_fail_at(0);
        if (!failed)
            break;
        ck_assert_int_eq(err.kind, SL_E_NET);
        ck_assert_uint_lt(nth, 100000);
    }
    ck_assert_int_eq(sl_made_compare(made, sink), 0);
    sl_sink_free(sink);
    sl_made_free(made);
    sl_memory_clear();
}

SL_TEST(an_allocation_that_fails_ends_the_load)
{
    struct sl_err err;
    char path[SL_SCRATCH_PATH_BYTES];
    int directory = sl_scratch_open(path), failed = -1;
    bool resumed;
    struct sl_made *made = sl_made_random(11);
    for (unsigned nth = 1; failed; nth++) {
        memset(&err, 0, sizeof(err));
        sl_alloc_fail_at(nth);
        struct sl_sink *sink =
            sl_tmpfs_open(directory, made->files, made->plan.file_count, NULL, &err);
        struct sl_journal *journal =
            sink ? sl_journal_open(directory, "journal", identity, &resumed, &err) : NULL;
        failed = journal ? run(made, sink, journal, 3, 2, &err) : -1;
        sl_alloc_fail_at(0);
        ck_assert_msg(!failed || err.kind == SL_E_NO_SPACE, "%u: %s", nth, err.message);
        if (!failed)
            ck_assert_int_eq(sl_made_compare(made, sink), 0);
        sl_journal_free(journal);
        sl_sink_free(sink);
    }
    sl_made_free(made);
    sl_memory_clear();
    sl_scratch_close(directory, path);
}

/* A load that a failing read cut off, then one that resumes; returns the bytes of the source read
 * again. */
static void interrupt_and_resume(unsigned seed, unsigned nth)
{
    struct sl_err err;
    char path[SL_SCRATCH_PATH_BYTES];
    int directory = sl_scratch_open(path);
    bool resumed;
    struct sl_made *made = sl_made_random(seed);
    struct sl_sink *sink = open_sink(made, directory);
    struct sl_journal *journal = sl_journal_open(directory, "journal", identity, &resumed, &err);
    ck_assert(!resumed);
    sl_memory_fail_at(nth);
    run(made, sink, journal, 1 + nth % 4, 1, &err);
    sl_memory_fail_at(0);
    sl_journal_free(journal);
    sl_sink_free(sink);

    sink = open_sink(made, directory);
    journal = sl_journal_open(directory, "journal", identity, &resumed, &err);
    ck_assert(resumed);
    ck_assert_msg(run(made, sink, journal, 1 + nth % 3, 1, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_made_compare(made, sink), 0);
    sl_journal_free(journal);
    sl_sink_free(sink);
    sl_made_free(made);
    sl_memory_clear();
    sl_scratch_close(directory, path);
}

SL_TEST(an_interrupted_load_resumes)
{
    for (unsigned seed = 20; seed < 28; seed++)
        for (unsigned nth = 1; nth < 200; nth = nth * 2 + 1)
            interrupt_and_resume(seed, nth);
}

SL_TEST(a_finished_journal_leaves_nothing_to_read)
{
    struct sl_err err = SL_ERR_INIT;
    char path[SL_SCRATCH_PATH_BYTES];
    int directory = sl_scratch_open(path);
    bool resumed;
    struct sl_made *made = sl_made_random(9);
    struct sl_sink *sink = open_sink(made, directory);
    struct sl_journal *journal = sl_journal_open(directory, "journal", identity, &resumed, &err);
    ck_assert_int_eq(run(made, sink, journal, 4, 2, &err), 0);
    sl_journal_free(journal);
    journal = sl_journal_open(directory, "journal", identity, &resumed, &err);
    sl_memory_fail_at(1); /* any read would fail */
    ck_assert_msg(run(made, sink, journal, 4, 2, &err) == 0, "%s", err.message);
    sl_memory_fail_at(0);
    sl_journal_free(journal);
    sl_sink_free(sink);
    sl_made_free(made);
    sl_memory_clear();
    sl_scratch_close(directory, path);
}

SL_TEST(bytes_of_a_wrong_hash_are_read_again)
{
    struct sl_err err = SL_ERR_INIT;
    char path[SL_SCRATCH_PATH_BYTES];
    int directory = sl_scratch_open(path);
    bool resumed;
    enum { BYTES = 3 * 1024 * 1024 };
    uint8_t *data = malloc(BYTES);
    sl_made_noise(data, BYTES, 1);
    sl_memory_put("object", data, BYTES, NULL);
    struct sl_made *made = sl_made_new();
    uint32_t source = sl_made_source(made, "memory:object", NULL);
    sl_made_whole(made, source, "object", 1024 * 1024, data);
    sl_made_check(made, SL_HASH_SHA256, source, 0, BYTES, 0, 0, data);
    struct sl_sink *sink = open_sink(made, directory);
    struct sl_journal *journal = sl_journal_open(directory, "journal", identity, &resumed, &err);
    data[BYTES / 2] ^= 1; /* damaged on its way */
    ck_assert_int_eq(run(made, sink, journal, 2, 1, &err), -1);
    ck_assert_str_eq(err.code, "E_HASH_SHA256");
    sl_journal_free(journal);
    data[BYTES / 2] ^= 1;
    journal = sl_journal_open(directory, "journal", identity, &resumed, &err);
    ck_assert_msg(run(made, sink, journal, 2, 1, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_made_compare(made, sink), 0);
    sl_journal_free(journal);
    sl_sink_free(sink);
    sl_made_free(made);
    sl_memory_clear();
    free(data);
    sl_scratch_close(directory, path);
}

SL_TEST(cancellation_ends_it)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_made *made = sl_made_random(13);
    struct sl_sink *sink = open_sink(made, -1);
    struct sl_cancel *cancel = sl_cancel_new(&err);
    sl_cancel_raise(cancel, 15);
    struct sl_reader_config config = {.connections = 3, .cancel = cancel};
    ck_assert_int_eq(sl_reader_run(&made->plan, sink, NULL, &config, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_cancel_free(cancel);
    sl_sink_free(sink);
    sl_made_free(made);
    sl_memory_clear();
}

/* ---- a server that misbehaves --------------------------------------------------------------- */

enum { OBJECT_BYTES = 3 * 1024 * 1024 + 17 };

/* Load one object in ranges of 256 KiB from a server with this script. */
static int load_from(struct sl_server *server, int directory, unsigned connections, bool compare,
                     struct sl_err *err)
{
    struct sl_source_config source_config = {.attempts = 4};
    uint8_t *data = malloc(OBJECT_BYTES);
    sl_made_noise(data, OBJECT_BYTES, 5);
    sl_server_put(server, "/object", data, OBJECT_BYTES, "\"v1\"");
    struct sl_made *made = sl_made_new();
    uint32_t source = sl_made_source(made, sl_server_url(server, "/object"), &source_config);
    sl_made_whole(made, source, "object", 256 * 1024, data);
    sl_made_check(made, SL_HASH_SHA256, source, 0, OBJECT_BYTES, 0, 0, data);
    sl_made_check(made, SL_HASH_CRC32, source, 1, OBJECT_BYTES - 1, 0, 1, data + 1);
    struct sl_sink *sink = open_sink(made, directory);
    int failed = run(made, sink, NULL, connections, 2, err);
    if (compare && !failed)
        ck_assert_int_eq(sl_made_compare(made, sink), 0);
    sl_sink_free(sink);
    sl_made_free(made);
    free(data);
    return failed;
}

SL_TEST_OF(served_claims, broken_answers_are_resumed)
{
    static const enum sl_fault faults[] = {SL_FAULT_NONE,    SL_FAULT_SHORT,      SL_FAULT_RESET,
                                           SL_FAULT_CHUNKED, SL_FAULT_DROP_AFTER, SL_FAULT_CLOSE};
    for (size_t i = 0; i < SL_COUNT(faults); i++) {
        struct sl_err err;
        char path[SL_SCRATCH_PATH_BYTES];
        int directory = sl_scratch_open(path);
        struct sl_server *server = sl_server_start();
        SL_SCRIPT(server, {.first = 3, .last = 5, .fault = faults[i], .after = 100000});
        int failed = load_from(server, directory, 1 + (unsigned)i % 4, true, &err);
        ck_assert_msg(failed == 0, "fault %d: %s", faults[i], err.message);
        sl_server_stop(server);
        sl_scratch_close(directory, path);
    }
}

/* Of two ranges one comes only behind the other and behind what is taken over of it: if nothing
 * were, this would wait in vain. */
SL_TEST_LOOP_OF(served_claims, an_idle_connection_takes_over_from_a_slow_one, 0, 2)
{
    const struct sl_reader_config config = {.connections = 2, .threads = 1, .hedge = SL_HEDGE_OFF};
    const struct sl_source_config patient = {.stall_seconds = 600};
    struct sl_err err = SL_ERR_INIT;
    char path[SL_SCRATCH_PATH_BYTES];
    int directory = sl_scratch_open(path);
    enum { BYTES = 8 * 1024 * 1024, CUT = BYTES / 2 }; /* either may be the slow one */
    struct sl_server *server = sl_server_start();
    uint8_t *data = malloc(BYTES);
    sl_test_adapts();
    sl_made_noise(data, BYTES, 5);
    sl_server_put(server, "/object", data, BYTES, "\"v1\"");
    SL_SCRIPT(server,
              {.first = 2, .fault = SL_FAULT_BEHIND, .after = _i ? 100000 : 0, .others = 2});
    struct sl_made *made = sl_made_new();
    uint32_t source = sl_made_source(made, sl_server_url(server, "/object"), &patient);
    uint32_t file = sl_made_file(made, "object", BYTES);
    sl_made_extent(made, source, 0, CUT, file, 0, data);
    sl_made_range(made);
    sl_made_extent(made, source, CUT, BYTES, file, CUT, data + CUT);
    sl_made_range(made);
    sl_made_check(made, SL_HASH_CRC32, source, 0, BYTES, 0, 0, data);
    struct sl_sink *sink = open_sink(made, directory);
    ck_assert_msg(sl_reader_run(&made->plan, sink, NULL, &config, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_made_compare(made, sink), 0);
    ck_assert_uint_gt(sl_server_request_count(server), 3);
    sl_sink_free(sink);
    sl_made_free(made);
    free(data);
    sl_server_stop(server);
    sl_scratch_close(directory, path);
}

enum { GROW_FROM = 2, GROW_TO = 8, PACED_RANGE = 16 * 1024, PACED_RANGES = 1600 };

static unsigned used_connections(struct sl_server *server)
{
    bool of[256] = {false};
    unsigned used = 0;
    for (unsigned i = 0; i < sl_server_request_count(server); i++) {
        unsigned at = sl_server_request_at(server, i)->connection % SL_COUNT(of);
        used += !of[at];
        of[at] = true;
    }
    return used;
}

/* Loads of this program have processors, whatever else the machine does: what they do without is
 * for test_growth and test_concurrency. */
struct sl_cpu_time __wrap_sl_cpu_time(void);
struct sl_cpu_time __wrap_sl_cpu_time(void)
{
    return (struct sl_cpu_time){.used_ns = 0, .waited_ns = 0};
}

/* Every answer takes a while, so that twice the connections bring twice as much. Whether a step
 * stays is for test_growth: here the machine's other work has a say. */
SL_TEST_OF(served_claims, connections_grow_by_themselves)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_server *server = sl_server_start();
    sl_test_adapts();
    size_t bytes = (size_t)PACED_RANGES * PACED_RANGE;
    uint8_t *data = malloc(bytes);
    sl_made_noise(data, bytes, 4);
    sl_server_put(server, "/m", data, bytes, "\"1\"");
    struct sl_made *made = sl_made_new();
    uint32_t source = sl_made_source(made, sl_server_url(server, "/m"), NULL);
    sl_made_whole(made, source, "m", PACED_RANGE, data);
    made->plan.connections = (struct sl_connections){.first = GROW_FROM, .most = GROW_TO};
    SL_SCRIPT(server, {.fault = SL_FAULT_SLOW, .after = 4});
    struct sl_sink *sink = open_sink(made, -1);
    const struct sl_reader_config config = {.hedge = SL_HEDGE_OFF}; /* nobody stands in */
    ck_assert_msg(sl_reader_run(&made->plan, sink, NULL, &config, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_made_compare(made, sink), 0);
    ck_assert_uint_ge(used_connections(server), 2 * GROW_FROM);
    sl_sink_free(sink);
    sl_made_free(made);
    sl_server_stop(server);
    free(data);
}

SL_TEST_OF(served_claims, an_object_that_changes_ends_the_load)
{
    static const enum sl_fault faults[] = {SL_FAULT_CHANGED, SL_FAULT_WRONG_ETAG};
    for (size_t i = 0; i < SL_COUNT(faults); i++) {
        struct sl_err err;
        struct sl_server *server = sl_server_start();
        SL_SCRIPT(server, {.first = 6, .last = 6, .fault = faults[i]});
        ck_assert_int_eq(load_from(server, -1, 3, false, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
        ck_assert_str_eq(err.code, "changed");
        sl_server_stop(server);
    }
}

/* ---- growth --------------------------------------------------------------------------------- */

/* A link where each connection brings per_connection bytes/s, all together at most limit. */
static unsigned grow_on_link(unsigned maximum, double per_connection, double limit, double seconds)
{
    struct sl_growth growth;
    double bytes = 1;
    sl_growth_init(&growth, 4, maximum);
    for (uint64_t ms = 1; ms < (uint64_t)(seconds * 1000); ms++) {
        unsigned connections = sl_growth_tick(&growth, ms * SL_NS_PER_MS, (uint64_t)bytes, 0);
        double rate = connections * per_connection;
        bytes += (rate < limit ? rate : limit) / 1000;
    }
    return growth.connections;
}

SL_TEST_OF(growth_claims, growth_stops_where_the_link_is_full)
{
    ck_assert_uint_eq(grow_on_link(64, 40e6, 10e9, 2), 64);
    unsigned full = grow_on_link(256, 40e6, 900e6, 2);
    ck_assert_uint_ge(full, 22);
    ck_assert_uint_le(full, 64);
    ck_assert_uint_eq(grow_on_link(64, 1e9, 1e9, 2), 4);
    ck_assert_uint_eq(grow_on_link(4, 40e6, 10e9, 2), 4);
}

SL_TEST_OF(growth_claims, growth_halves_for_a_busy_server)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 16, 64);
    ck_assert_uint_eq(sl_growth_tick(&growth, SL_NS_PER_S, 1, 3), 8);
    ck_assert_uint_eq(sl_growth_tick(&growth, SL_NS_PER_S + 1, 2, 5), 8);
    ck_assert_uint_eq(sl_growth_tick(&growth, 10 * SL_NS_PER_S, 3, 1), 4);
    for (int i = 0; i < 10; i++)
        sl_growth_tick(&growth, (20 + 10 * i) * SL_NS_PER_S, 4, 1);
    ck_assert_uint_eq(growth.connections, 1);
}

static const struct sl_claim_case served_claims = {.seconds = 0};

static const struct sl_claim_case growth_claims = {.seconds = 0};
