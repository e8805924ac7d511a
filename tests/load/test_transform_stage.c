/* Tensors that are decrypted, cut and cast on their way: by chance, with broken answers, wrong
 * keys, damage, kills, and failures at every point. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "form_maker.h"
#include "memory_store.h"
#include "metrics.h"
#include "range_server.h"
#include "reader.h"
#include "scratch.h"
#include "seed.h"
#include "thread.h"

static const unsigned connection_counts[] = {1, 2, 3, 8};

static int run_hedging(struct sl_form *form, struct sl_sink *sink, struct sl_journal *journal,
                       unsigned connections, enum sl_hedge hedge, struct sl_err *err)
{
    struct sl_reader_config config = {
        .connections = connections, .threads = connections > 2 ? 2 : connections, .hedge = hedge};
    memset(err, 0, sizeof(*err));
    return sl_reader_run(sl_form_planned(form), sink, journal, &config, err);
}

static int run(struct sl_form *form, struct sl_sink *sink, struct sl_journal *journal,
               unsigned connections, struct sl_err *err)
{
    return run_hedging(form, sink, journal, connections, SL_HEDGE_AUTO, err);
}

static struct sl_sink *open_sink(const struct sl_form *form, int directory)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_sink *sink = directory < 0
                               ? sl_heap_open(sl_form_file(form), 1, &err)
                               : sl_tmpfs_open(directory, sl_form_file(form), 1, NULL, &err);
    ck_assert_msg(sink != NULL, "%s", err.message);
    return sink;
}

static void plan_it(struct sl_form *form, int hashes, uint64_t range_bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_form_options wanted = {.hashes = hashes, .range_bytes = range_bytes};
    int failed = sl_form_plan(form, &wanted, &err);
    ck_assert_msg(failed == 0, "%s", err.message);
}

static void arrives(unsigned seed, bool encrypted, int hashes, int directory)
{
    static const uint64_t range_bytes[] = {0, 1, 4096, 70000, 1 << 20};
    struct sl_err err = SL_ERR_INIT;
    struct sl_form *form = sl_form_new();
    sl_form_add_random(form, seed, encrypted);
    plan_it(form, hashes, range_bytes[seed % SL_COUNT(range_bytes)]);
    struct sl_sink *sink = open_sink(form, directory);
    int failed = run(form, sink, NULL, connection_counts[seed % 4], &err);
    ck_assert_msg(failed == 0, "seed %u: %s", seed, err.message);
    ck_assert_msg(sl_form_matches(form, sink), "seed %u: bytes differ", seed);
    sl_sink_free(sink);
    sl_form_free(form);
    sl_memory_clear();
}

SL_TEST(tensors_by_chance_arrive_as_they_should)
{
    for (unsigned seed = 0; seed < 80; seed += SL_TEST_STEP) {
        char path[SL_SCRATCH_PATH_BYTES];
        int directory = sl_scratch_open(path);
        static const int hashes[] = {SL_HASHES_AUTO, SL_HASHES_ALL, SL_HASHES_OFF};
        arrives(seed, seed % 2, hashes[seed % 3], seed % 4 == 3 ? -1 : directory);
        sl_scratch_close(directory, path);
    }
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* Ranks of a matrix cut along `dim`; what they hold, put together, is the whole, and each fetches
 * its own part and at most `more` bytes beside. */
static void ranks_make_the_whole(struct sl_form_tensor wanted, unsigned dim, unsigned ranks,
                                 uint64_t more)
{
    uint64_t size = wanted.shape[dim], taken = 0;
    wanted.sliced = true;
    for (unsigned rank = 0; rank < ranks; rank++) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_form *form = sl_form_new();
        for (unsigned i = 0; i < wanted.rank; i++) {
            wanted.begin[i] = i == dim ? size * rank / ranks : 0;
            wanted.end[i] = i == dim ? size * (rank + 1) / ranks : wanted.shape[i];
        }
        sl_form_add(form, &wanted);
        plan_it(form, SL_HASHES_AUTO, 0);
        const struct sl_plan *plan = sl_form_planned(form);
        ck_assert_msg(
            plan->fetch_bytes <= sl_form_taken(form) + more, "rank %u fetches %llu bytes for %llu",
            rank, (unsigned long long)plan->fetch_bytes, (unsigned long long)sl_form_taken(form));
        struct sl_sink *sink = open_sink(form, -1);
        ck_assert_msg(run(form, sink, NULL, 3, &err) == 0, "%s", err.message);
        ck_assert_msg(sl_form_matches(form, sink), "rank %u differs", rank);
        taken += sl_form_taken(form);
        sl_sink_free(sink);
        sl_form_free(form);
        sl_memory_clear();
    }
    ck_assert_uint_eq(taken, size * wanted.shape[!dim] * 4);
}

SL_TEST(every_rank_fetches_its_part)
{
    struct sl_form_tensor plain = {.dtype = SL_DTYPE_F32, .rank = 2, .shape = {400, 1999}};
    struct sl_form_tensor sealed = plain;
    struct sl_form_tensor down = plain;
    sealed.encrypted = true;
    sealed.piece_bytes = 4096;
    down.cast = SL_DTYPE_BF16;
    for (unsigned ranks = 1; ranks <= 8; ranks += ranks) {
        ranks_make_the_whole(plain, 0, ranks, 0);
        ranks_make_the_whole(plain, 1, ranks, 0);
        ranks_make_the_whole(down, 1, ranks, 0);
        ranks_make_the_whole(sealed, 0, ranks, 2 * 4096);
    }
    ranks_make_the_whole(sealed, 1, 8, 400 * 1999 * 4); /* all pieces hold something of each */
}

SL_TEST(a_sparse_range_needs_no_list)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_form *form = sl_form_new();
    struct sl_form_tensor wanted = {.dtype = SL_DTYPE_U8,
                                    .rank = 3,
                                    .shape = {16, 256, 4096},
                                    .sliced = true,
                                    .end = {16, 256, 512}};
    sl_form_add(form, &wanted);
    plan_it(form, SL_HASHES_AUTO, 0);
    const struct sl_plan *plan = sl_form_planned(form);
    ck_assert_uint_eq(plan->fetch_bytes, 16 * 256 * 512);
    ck_assert_uint_lt(plan->extent_count, 16 * 256 / 8);
    const struct sl_plan_rows *rows = &plan->rows;
    ck_assert_uint_eq(rows->least.requests, 16 * 256);
    ck_assert_uint_eq(rows->least.bytes, plan->fetch_bytes);
    ck_assert_uint_eq(rows->whole.requests, plan->range_count);
    ck_assert_uint_eq(rows->wanted.requests, rows->whole.requests); /* 3,584 bytes are worth less */
    ck_assert_uint_eq(sl_plan_expected_bytes(plan), rows->whole.bytes);
    struct sl_sink *sink = open_sink(form, -1);
    ck_assert_msg(run(form, sink, NULL, 4, &err) == 0, "%s", err.message);
    ck_assert(sl_form_matches(form, sink));
    sl_sink_free(sink);
    sl_form_free(form);
    sl_memory_clear();
}

/* ---- what must not pass ---------------------------------------------------------------------- */

static struct sl_form *sealed_model(void)
{
    struct sl_form *form = sl_form_new();
    struct sl_form_tensor wanted = {.dtype = SL_DTYPE_F32,
                                    .rank = 1,
                                    .shape = {5000},
                                    .encrypted = true,
                                    .piece_bytes = 1024,
                                    .sha256 = true,
                                    .gap = 100};
    sl_form_add(form, &wanted);
    wanted.piece_bytes = 0; /* one piece, of several windows */
    wanted.shape[0] = 200000;
    sl_form_add(form, &wanted);
    wanted.piece_bytes = 1 << 20;
    wanted.cast = SL_DTYPE_F16;
    wanted.shape[0] = 400000;
    sl_form_add(form, &wanted);
    return form;
}

static void must_not_open(struct sl_form *form, const char *tensor, const char *words, bool counts)
{
    struct sl_err err;
    struct sl_sink *sink = open_sink(form, -1);
    ck_assert_int_eq(run(form, sink, NULL, 1, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "E_DECRYPT");
    ck_assert_msg(strstr(err.message, words) && (!counts || strstr(err.message, tensor)), "%s",
                  err.message);
    sl_sink_free(sink);
}

SL_TEST(a_wrong_key_is_called_that)
{
    static const uint8_t wrong[SL_KEY_BYTES] = "another key";
    struct sl_err err = SL_ERR_INIT;
    struct sl_form *form = sealed_model();
    struct sl_form_options wanted = {.key = wrong};
    ck_assert_int_eq(sl_form_plan(form, &wanted, &err), 0);
    must_not_open(form, "'t0'", "probably wrong", true);
    sl_form_free(form);
    sl_memory_clear();
}

SL_TEST(a_damaged_byte_names_its_tensor)
{
    static const struct {
        unsigned tensor;
        uint64_t at; /* in its data */
        const char *words;
    } flips[] = {{0, 3, "cannot be decrypted"}, {0, 1500, "piece 2 of 20"},
                 {0, 19999, "piece 20 of 20"},  {1, 0, "piece 1 of 1 "},
                 {1, 799999, "piece 1 of 1 "},  {2, 1 << 20, "piece 2 of 2"},
                 {2, 1599999, "piece 2 of 2"},  {2, 70000, "piece 1 of 2"}};
    for (size_t i = 0; i < SL_COUNT(flips); i++) {
        size_t bytes;
        char name[8];
        struct sl_form *form = sealed_model();
        uint8_t *object = sl_form_object(form, &bytes);
        object[sl_form_begin(form, flips[i].tensor) + flips[i].at] ^= 0x10;
        plan_it(form, SL_HASHES_OFF, 0);
        snprintf(name, sizeof(name), "'t%u'", flips[i].tensor);
        must_not_open(form, name, flips[i].words, true);
        sl_form_free(form);
        sl_memory_clear();
    }
}

SL_TEST(hashes_are_over_the_plaintext_before_a_cast)
{
    for (unsigned i = 0; i < 8; i++) {
        struct sl_err err;
        size_t bytes;
        struct sl_form *form = sl_form_new();
        struct sl_form_tensor wanted = {.dtype = SL_DTYPE_F32,
                                        .rank = 1,
                                        .shape = {700000},
                                        .crc32 = true,
                                        .sha256 = i & 1,
                                        .swapped = i & 2,
                                        .cast = i & 4 ? SL_DTYPE_F64 : SL_DTYPE_BF16};
        sl_form_add(form, &wanted);
        plan_it(form, SL_HASHES_ALL, 65536);
        ck_assert_uint_eq(sl_form_planned(form)->check_count, 1 + (i & 1));
        uint8_t *object = sl_form_object(form, &bytes);
        object[bytes - 100000] ^= 1;
        struct sl_sink *sink = open_sink(form, -1);
        ck_assert_int_eq(run(form, sink, NULL, 3, &err), -1);
        ck_assert_msg(strncmp(err.code, "E_HASH_", 7) == 0 && strstr(err.message, "'t0'"), "%s: %s",
                      err.code, err.message);
        object[bytes - 100000] ^= 1;
        ck_assert_msg(run(form, sink, NULL, 3, &err) == 0, "%s", err.message);
        ck_assert(sl_form_matches(form, sink));
        sl_sink_free(sink);
        sl_form_free(form);
        sl_memory_clear();
    }
}

static void must_be_refused(struct sl_form_tensor wanted, const char *words)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_form_options require = {.hashes = SL_HASHES_REQUIRE};
    struct sl_form *form = sl_form_new();
    wanted.dtype = SL_DTYPE_F32;
    wanted.rank = 1;
    wanted.shape[0] = 100;
    wanted.end[0] = 50;
    sl_form_add(form, &wanted);
    int failed = sl_form_plan(form, &require, &err);
    ck_assert_int_eq(failed, words ? -1 : 0);
    ck_assert_msg(!words || (strstr(err.message, words) && strstr(err.message, "'t0'")), "%s",
                  err.message);
    ck_assert_uint_eq(words ? 0 : sl_form_planned(form)->unhashed_bytes, 0);
    sl_form_free(form);
    sl_memory_clear();
}

SL_TEST(hashes_that_are_required_may_be_macs)
{
    must_be_refused((struct sl_form_tensor){.gap = 0}, "without a hash");
    must_be_refused((struct sl_form_tensor){.crc32 = true, .sliced = true}, "only a part");
    must_be_refused((struct sl_form_tensor){.crc32 = true, .cast = SL_DTYPE_F16}, NULL);
    must_be_refused((struct sl_form_tensor){.encrypted = true}, NULL);
    must_be_refused((struct sl_form_tensor){.encrypted = true, .sliced = true}, NULL);
}

/* ---- failures on the way --------------------------------------------------------------------- */

SL_TEST(a_failing_allocation_ends_it)
{
    struct sl_err err;
    int failed = -1;
    struct sl_form *form = sl_form_new();
    sl_form_add_random(form, 7, true);
    sl_form_add_random(form, 8, false);
    plan_it(form, SL_HASHES_ALL, 65536);
    for (unsigned nth = 1; failed; nth += SL_TEST_STEP) {
        memset(&err, 0, sizeof(err));
        struct sl_sink *sink = open_sink(form, -1);
        sl_alloc_fail_at(nth);
        failed = run(form, sink, NULL, 3, &err);
        sl_alloc_fail_at(0);
        ck_assert_msg(!failed || err.kind == SL_E_NO_SPACE, "%u: %s", nth, err.message);
        ck_assert(failed || sl_form_matches(form, sink));
        sl_sink_free(sink);
    }
    sl_form_free(form);
    sl_memory_clear();
}

/* Cut off by the nth read that fails, then resumed. */
static void interrupt_and_resume(unsigned seed, unsigned nth)
{
    static const uint8_t identity[32] = "plan";
    struct sl_err err;
    char path[SL_SCRATCH_PATH_BYTES];
    bool resumed;
    int directory = sl_scratch_open(path);
    struct sl_form *form = sl_form_new();
    sl_form_add_random(form, seed, seed % 2);
    plan_it(form, seed % 3 ? SL_HASHES_AUTO : SL_HASHES_ALL, seed % 5 ? 65536 : 4096);
    for (int again = 0; again < 2; again++) {
        struct sl_sink *sink = open_sink(form, directory);
        struct sl_journal *journal =
            sl_journal_open(directory, "journal", identity, &resumed, &err);
        sl_memory_fail_at(again ? 0 : nth);
        int failed = run(form, sink, journal, 1 + nth % 4, &err);
        sl_memory_fail_at(0);
        ck_assert_msg(!again || !failed, "seed %u, read %u: %s", seed, nth, err.message);
        ck_assert_msg(failed || sl_form_matches(form, sink), "seed %u, read %u", seed, nth);
        sl_journal_free(journal);
        sl_sink_free(sink);
    }
    sl_form_free(form);
    sl_memory_clear();
    sl_scratch_close(directory, path);
}

SL_TEST(an_interrupted_load_resumes)
{
    for (unsigned seed = 40; seed < 52; seed += SL_TEST_STEP)
        for (unsigned nth = 2; nth < 120; nth = nth * 2 + 1)
            interrupt_and_resume(seed, nth);
}

/* All that came the first time, and nothing may be read the second time. */
static void nothing_is_left(struct sl_form *form)
{
    static const uint8_t identity[32] = "plan";
    struct sl_err err;
    char path[SL_SCRATCH_PATH_BYTES];
    bool resumed;
    int directory = sl_scratch_open(path);
    plan_it(form, SL_HASHES_AUTO, 0);
    struct sl_sink *sink = open_sink(form, directory);
    struct sl_journal *journal = sl_journal_open(directory, "journal", identity, &resumed, &err);
    ck_assert_int_eq(run(form, sink, journal, 2, &err), 0);
    sl_journal_free(journal);
    journal = sl_journal_open(directory, "journal", identity, &resumed, &err);
    sl_memory_fail_at(1); /* any read would fail */
    ck_assert_msg(run(form, sink, journal, 2, &err) == 0, "%s", err.message);
    sl_memory_fail_at(0);
    ck_assert(sl_form_matches(form, sink));
    sl_journal_free(journal);
    sl_sink_free(sink);
    sl_form_free(form);
    sl_memory_clear();
    sl_scratch_close(directory, path);
}

SL_TEST(what_a_mac_vouched_for_is_not_read_again)
{
    nothing_is_left(sealed_model());
}

SL_TEST(views_that_are_there_are_not_read_again)
{
    struct sl_form *form = sl_form_new();
    struct sl_form_tensor wanted = {.dtype = SL_DTYPE_F32,
                                    .rank = 2,
                                    .shape = {1100, 1000},
                                    .turned = true,
                                    .swapped = true,
                                    .cast = SL_DTYPE_F64};
    sl_form_add(form, &wanted); /* several blocks */
    wanted.sliced = true;
    wanted.begin[1] = 500;
    wanted.end[0] = 1100;
    wanted.end[1] = 750;
    sl_form_add(form, &wanted);
    nothing_is_left(form);
}

/* ---- a server that misbehaves ---------------------------------------------------------------- */

struct scene {
    struct sl_step step;
    struct sl_server *server;
    struct sl_form *form;
    unsigned connections;
    uint64_t range_bytes; /* 0: 1 MiB */
    unsigned stall_seconds;
    enum sl_hedge hedge;
    bool least_bytes;
    uint64_t worth_bytes; /* of a request; 0: as it is measured */
    int failed;
    bool same;
    struct sl_err err;
};

/* Two large tensors in pieces, one in a single piece, columns of a fourth. */
static void open_scene(struct scene *scene, unsigned connections)
{
    size_t bytes;
    struct sl_form_tensor wanted = {.dtype = SL_DTYPE_F32,
                                    .rank = 1,
                                    .shape = {900000},
                                    .encrypted = true,
                                    .piece_bytes = 256 * 1024,
                                    .sha256 = true};
    scene->form = sl_form_new();
    sl_form_add(scene->form, &wanted);
    wanted.cast = SL_DTYPE_F64;
    sl_form_add(scene->form, &wanted);
    wanted.piece_bytes = 0;
    wanted.shape[0] = 300000;
    sl_form_add(scene->form, &wanted);
    sl_form_add(scene->form, &(struct sl_form_tensor){.dtype = SL_DTYPE_F32,
                                                      .rank = 2,
                                                      .shape = {200, 2000},
                                                      .sliced = true,
                                                      .begin = {0, 300},
                                                      .end = {200, 800},
                                                      .cast = SL_DTYPE_BF16});
    uint8_t *object = sl_form_object(scene->form, &bytes);
    scene->server = sl_server_start();
    scene->connections = connections;
    sl_server_put(scene->server, "/object", object, bytes, "\"v1\"");
    sl_server_script(scene->server, &scene->step, 1);
}

static void *load_scene(void *arg)
{
    struct scene *scene = arg;
    struct sl_source_config config = {
        .attempts = 8, .stall_seconds = scene->stall_seconds ? scene->stall_seconds : 5};
    struct sl_form_options wanted = {
        .uri = sl_server_url(scene->server, "/object"),
        .config = &config,
        .hashes = scene->connections % 2 ? SL_HASHES_ALL : SL_HASHES_AUTO,
        .range_bytes = scene->range_bytes ? scene->range_bytes : 1 << 20,
        .least_bytes = scene->least_bytes};
    scene->failed = sl_form_plan(scene->form, &wanted, &scene->err);
    if (scene->failed)
        return NULL;
    struct sl_sink *sink = sl_heap_open(sl_form_file(scene->form), 1, &scene->err);
    if (scene->worth_bytes)
        sl_weigh_init(&sl_form_planned(scene->form)->weigh,
                      &(struct sl_worth_facts){.least = scene->least_bytes,
                                               .fixed_bytes = scene->worth_bytes},
                      SL_WORTH_FIXED);
    scene->failed =
        run_hedging(scene->form, sink, NULL, scene->connections, scene->hedge, &scene->err);
    scene->same = !scene->failed && sl_form_matches(scene->form, sink);
    sl_sink_free(sink);
    return NULL;
}

static void close_scene(struct scene *scene)
{
    sl_form_free(scene->form);
    sl_server_stop(scene->server);
}

SL_TEST(pieces_that_break_off_are_made_whole)
{
    static const struct sl_step steps[] = {
        {.first = 2, .last = 4, .fault = SL_FAULT_SHORT, .after = 300001},
        {.first = 3, .last = 5, .fault = SL_FAULT_RESET, .after = 70003},
        {.first = 2, .last = 0, .fault = SL_FAULT_CHUNKED},
        {.first = 4, .fault = SL_FAULT_STALL, .after = 400001},
        {.first = 5, .fault = SL_FAULT_STALL, .after = 1},
        {.first = 3, .fault = SL_FAULT_TRICKLE, .after = 333333},
        {.first = 6, .fault = SL_FAULT_STALL, .after = 655555},
        {.first = 12, .last = 18, .fault = SL_FAULT_SHORT, .after = 777},
    };
    static struct scene scenes[SL_COUNT(steps)];
    uint64_t hedges = sl_metric_get(SL_M_SOURCE_HEDGES);
    pthread_t threads[SL_COUNT(steps)];
    fake_clock_run();
    for (size_t i = 0; i < SL_COUNT(steps); i++) {
        scenes[i].step = steps[i];
        open_scene(&scenes[i], connection_counts[1 + i % 3]);
        pthread_create(&threads[i], NULL, load_scene, &scenes[i]);
    }
    for (size_t i = 0; i < SL_COUNT(steps); i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < SL_COUNT(steps); i++) {
        ck_assert_msg(!scenes[i].failed, "step %zu: %s", i, scenes[i].err.message);
        ck_assert_msg(scenes[i].same, "step %zu: bytes differ", i);
        close_scene(&scenes[i]);
    }
    ck_assert_uint_gt(sl_metric_get(SL_M_SOURCE_HEDGES), hedges); /* in the middle of pieces */
}

/* The journal knows of what the first load brought; what the second one has to bring. */
static uint64_t resumed_of(struct scene *scene, unsigned connections)
{
    static const uint8_t identity[32] = "plan";
    char path[SL_SCRATCH_PATH_BYTES];
    bool resumed;
    struct sl_reader_outcome outcome = {0};
    struct sl_source_config config = {.attempts = 1, .stall_seconds = 600};
    struct sl_form_options wish = {.uri = sl_server_url(scene->server, "/object"),
                                   .config = &config,
                                   .hashes = SL_HASHES_AUTO,
                                   .range_bytes = 1 << 20};
    ck_assert_msg(sl_form_plan(scene->form, &wish, &scene->err) == 0, "%s", scene->err.message);
    int directory = sl_scratch_open(path);
    for (int again = 0; again < 2; again++) {
        struct sl_reader_config reading = {
            .connections = connections, .hedge = SL_HEDGE_OFF, .outcome = &outcome};
        scene->step.first = sl_server_request_count(scene->server) + 1;
        sl_server_script(scene->server, &scene->step, !again);
        struct sl_sink *sink = open_sink(scene->form, directory);
        struct sl_journal *journal =
            sl_journal_open(directory, "journal", identity, &resumed, &scene->err);
        int failed =
            sl_reader_run(sl_form_planned(scene->form), sink, journal, &reading, &scene->err);
        ck_assert_msg(failed == (again ? 0 : -1), "%s", scene->err.message);
        ck_assert(failed || sl_form_matches(scene->form, sink));
        sl_journal_free(journal);
        sl_sink_free(sink);
    }
    sl_scratch_close(directory, path);
    return outcome.resumed;
}

/* Two pieces and a half came of the first range. */
SL_TEST(pieces_of_an_unfinished_range_are_kept_whole_or_not_at_all)
{
    struct scene scene = {.step = {.last = 1000, .fault = SL_FAULT_SHORT, .after = 655555}};
    open_scene(&scene, 2);
    ck_assert_uint_eq(resumed_of(&scene, 1), 2 * 256 * 1024);
    close_scene(&scene);
}

SL_TEST(an_object_that_changes_ends_it)
{
    struct scene scene = {.step = {.first = 4, .fault = SL_FAULT_CHANGED}};
    open_scene(&scene, 3);
    load_scene(&scene);
    ck_assert_int_eq(scene.failed, -1);
    ck_assert_str_eq(scene.err.code, "changed");
    close_scene(&scene);
}

/* The second connection soon has nothing to do: it is given the rest of the sparse's only range,
 * from the middle of a row or of a gap, and the first half comes only behind it. */
static void half_a_sparse_range_arrives(uint64_t begin, uint64_t end, bool least_bytes)
{
    enum { ROWS = 1500, COLUMNS = 4096 };
    /* One of these may be that of the small tensor. */
    struct scene scene = {
        .connections = 2,
        .stall_seconds = 600,
        .hedge = SL_HEDGE_OFF,
        .least_bytes = least_bytes,
        .worth_bytes = least_bytes ? SL_WORTH_BYTES_MIN : 64 * 1024, /* whatever the rate is */
        .step = {.begin = COLUMNS + begin, .fault = SL_FAULT_BEHIND, .others = 2}};
    size_t bytes;
    scene.form = sl_form_new();
    sl_form_add(scene.form, &(struct sl_form_tensor){.dtype = SL_DTYPE_U8,
                                                     .rank = 2,
                                                     .shape = {ROWS, COLUMNS},
                                                     .sliced = true,
                                                     .begin = {0, begin},
                                                     .end = {ROWS, end}});
    sl_form_add(scene.form,
                &(struct sl_form_tensor){
                    .dtype = SL_DTYPE_U8, .rank = 1, .shape = {COLUMNS}, .gap = 100000});
    uint8_t *object = sl_form_object(scene.form, &bytes);
    scene.server = sl_server_start();
    sl_server_put(scene.server, "/object", object, bytes, "\"v1\"");
    sl_server_script(scene.server, &scene.step, 1);
    scene.range_bytes = 1 << 30;
    load_scene(&scene);
    ck_assert_msg(scene.failed == 0, "%s", scene.err.message);
    ck_assert(scene.same);
    unsigned requests = sl_server_request_count(scene.server);
    if (least_bytes)
        ck_assert_uint_eq(requests, 1 + ROWS + 1); /* none was given up */
    else
        ck_assert_uint_lt(requests, ROWS / 10); /* rows with what lies between them */
    close_scene(&scene);
}

SL_TEST(a_sparse_range_is_parted_wherever_its_middle_is)
{
    for (int least = 0; least <= 1; least++) {
        half_a_sparse_range_arrives(1000, 2000, least);
        half_a_sparse_range_arrives(0, 1024, least);
        half_a_sparse_range_arrives(2596, 4096, least);
        half_a_sparse_range_arrives(1000, 3048, least);
    }
}
