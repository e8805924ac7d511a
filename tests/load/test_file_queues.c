/* Which thread reads what: one file each as long as there are files. */
#include "file_queues.h"

#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "mem.h"
#include "memory_store.h"
#include "plan_maker.h"
#include "reader.h"

enum { RANGES_MAX = 1024, FILES_MAX = 128 };

/* Files of so many ranges each, in the order of the plan. */
struct desk {
    struct sl_range ranges[RANGES_MAX];
    struct sl_extent extents[RANGES_MAX];
    size_t count, files;
    struct sl_file_queues queues;
    size_t taken[FILES_MAX]; /* ranges of each file */
    unsigned times[RANGES_MAX];
};

static struct desk *open_desk(const unsigned *ranges, size_t files)
{
    struct desk *desk = calloc(1, sizeof(*desk));
    struct sl_err err = SL_ERR_INIT;
    ck_assert_ptr_nonnull(desk);
    ck_assert_uint_le(files, FILES_MAX);
    for (desk->files = 0; desk->files < files; desk->files++) {
        for (unsigned i = 0; i < ranges[desk->files]; i++) {
            ck_assert_uint_lt(desk->count, RANGES_MAX);
            desk->extents[desk->count].file = (uint32_t)desk->files;
            desk->ranges[desk->count] =
                (struct sl_range){.extent_first = (uint32_t)desk->count, .extent_count = 1};
            desk->count++;
        }
    }
    ck_assert_int_eq(
        sl_file_queues_init(&desk->queues, desk->ranges, desk->count, desk->extents, files, &err),
        0);
    return desk;
}

static void close_desk(struct desk *desk)
{
    sl_file_queues_release(&desk->queues);
    free(desk);
}

/* The number of the range that this thread reads next; -1: none. */
static int take(struct desk *desk, unsigned thread)
{
    const struct sl_range *range = sl_file_queues_take(&desk->queues, thread);
    if (!range)
        return -1;
    size_t number = (size_t)(range - desk->ranges);
    ck_assert_uint_lt(number, desk->count);
    ck_assert_uint_eq(desk->times[number]++, 0);
    desk->taken[desk->extents[number].file]++;
    return (int)number;
}

/* The file of it. */
static int take_file(struct desk *desk, unsigned thread)
{
    int number = take(desk, thread);
    return number < 0 ? -1 : (int)desk->extents[number].file;
}

SL_TEST(one_thread_reads_in_the_order_of_the_plan)
{
    static const unsigned ranges[] = {1, 1, 5, 3, 1, 7};
    struct desk *desk = open_desk(ranges, SL_COUNT(ranges));
    for (int i = 0; i < (int)desk->count; i++)
        ck_assert_int_eq(take(desk, 0), i);
    ck_assert_int_eq(take(desk, 0), -1);
    ck_assert(!sl_file_queues_left(&desk->queues));
    ck_assert_uint_eq(desk->queues.shared_count, 0);
    close_desk(desk);
}

SL_TEST(files_of_one_range_are_read_in_the_order_of_the_plan)
{
    unsigned ranges[FILES_MAX];
    for (size_t i = 0; i < FILES_MAX; i++)
        ranges[i] = 1;
    struct desk *desk = open_desk(ranges, FILES_MAX);
    for (int i = 0; i < FILES_MAX; i++)
        ck_assert_int_eq(take(desk, (unsigned)i * 7 % SL_THREADS_MAX), i);
    ck_assert_uint_eq(desk->queues.shared_count, 0);
    close_desk(desk);
}

static size_t files_begun(const struct desk *desk)
{
    size_t begun = 0;
    for (size_t i = 0; i < desk->files; i++)
        begun += desk->taken[i] > 0;
    return begun;
}

/* In any order: nobody joins another one while a file has not been begun. */
static void read_by(struct desk *desk, unsigned threads, unsigned seed)
{
    int last[SL_THREADS_MAX];
    for (unsigned i = 0; i < threads; i++)
        last[i] = -1;
    while (sl_file_queues_left(&desk->queues)) {
        unsigned thread = (unsigned)rand_r(&seed) % threads;
        size_t begun = files_begun(desk);
        int file = take_file(desk, thread);
        for (unsigned i = 0; i < threads && begun < desk->files; i++)
            ck_assert_msg(i == thread || last[i] != file || desk->taken[file] == 1,
                          "thread %u reads file %d of thread %u, of %zu files %zu are begun",
                          thread, file, i, desk->files, begun);
        last[thread] = file;
    }
    for (size_t i = 0; i < desk->count; i++)
        ck_assert_uint_eq(desk->times[i], 1);
}

SL_TEST(threads_keep_to_their_files_while_there_are_files)
{
    static const unsigned threads[] = {1, 2, 3, 8, SL_THREADS_MAX};
    for (unsigned seed = 0; seed < 100; seed++) {
        unsigned ranges[24], random = seed, count = threads[seed % SL_COUNT(threads)];
        for (size_t i = 0; i < SL_COUNT(ranges); i++)
            ranges[i] = 1 + (unsigned)rand_r(&random) % 40;
        struct desk *desk = open_desk(ranges, SL_COUNT(ranges));
        read_by(desk, count, seed);
        /* Only those that were left when the last one was begun. */
        ck_assert_uint_le(desk->queues.shared_count, count == 1 ? 0 : count);
        close_desk(desk);
    }
}

SL_TEST(whoever_finds_no_file_helps_with_the_longest)
{
    static const unsigned ranges[] = {3, 10, 6};
    struct desk *desk = open_desk(ranges, SL_COUNT(ranges));
    ck_assert_int_eq(take_file(desk, 0), 0);
    ck_assert_int_eq(take_file(desk, 1), 1);
    ck_assert_int_eq(take_file(desk, 2), 2);
    ck_assert_int_eq(take_file(desk, 3), 1);
    ck_assert_int_eq(take_file(desk, 3), 1);
    ck_assert_int_eq(take_file(desk, 0), 0);
    ck_assert_int_eq(take_file(desk, 0), 0);
    ck_assert_uint_eq(desk->queues.shared_count, 1);
    for (int i = 0; i < 3; i++) /* it stays with the file that it chose */
        ck_assert_int_eq(take_file(desk, 0), 1);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(take_file(desk, 1), 1);
    ck_assert_int_eq(take_file(desk, 1), 2);
    ck_assert_uint_eq(desk->queues.shared_count, 2);
    close_desk(desk);
}

SL_TEST(a_large_file_is_not_left_to_one_thread)
{
    static const unsigned ranges[] = {1, 1, 40, 1, 1};
    struct desk *desk = open_desk(ranges, SL_COUNT(ranges));
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(take_file(desk, 0), i);
    ck_assert_int_eq(take_file(desk, 1), 3);
    ck_assert_int_eq(take_file(desk, 1), 4);
    for (unsigned i = 0; i < 39; i++)
        ck_assert_int_eq(take_file(desk, i % 4), 2);
    ck_assert_int_eq(take_file(desk, 2), -1);
    close_desk(desk);
}

SL_TEST(what_a_thread_leaves_comes_before_new_files)
{
    static const unsigned ranges[] = {4, 4, 4, 4};
    struct desk *desk = open_desk(ranges, SL_COUNT(ranges));
    ck_assert_int_eq(take(desk, 0), 0);
    ck_assert_int_eq(take(desk, 1), 4);
    sl_file_queues_leave(&desk->queues, 1);
    sl_file_queues_leave(&desk->queues, 1);
    sl_file_queues_leave(&desk->queues, 0);
    ck_assert_int_eq(take(desk, 2), 1);
    ck_assert_int_eq(take(desk, 3), 5);
    ck_assert_int_eq(take(desk, 0), 8);
    ck_assert_uint_eq(desk->queues.shared_count, 2);
    close_desk(desk);
}

/* A part of a range that came from another thread. */
SL_TEST(what_is_given_away_counts_as_shared)
{
    static const unsigned ranges[] = {2, 2};
    struct desk *desk = open_desk(ranges, SL_COUNT(ranges));
    ck_assert_int_eq(take(desk, 0), 0);
    ck_assert_int_eq(take(desk, 1), 2);
    sl_file_queues_note(&desk->queues, 0, &desk->ranges[1]);
    ck_assert_uint_eq(desk->queues.shared_count, 0);
    for (int i = 0; i < 3; i++)
        sl_file_queues_note(&desk->queues, 1, &desk->ranges[0]);
    ck_assert_uint_eq(desk->queues.shared_count, 1);
    close_desk(desk);
}

/* ---- a load ---------------------------------------------------------------------------------- */

enum { SHARDS = 24, SHARD_BYTES = 12 * 8192, SHARD_RANGE_BYTES = 8192 };

SL_TEST_LOOP(a_load_of_shards_has_few_files_with_two_writers, 1, 5)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_made *made = sl_made_new();
    static char names[SHARDS][32];
    static uint8_t data[SHARDS][SHARD_BYTES];
    for (int i = 0; i < SHARDS; i++) {
        char uri[64];
        snprintf(names[i], sizeof(names[i]), "shard-%d", i);
        snprintf(uri, sizeof(uri), "memory:%s", names[i]);
        sl_made_noise(data[i], SHARD_BYTES, (unsigned)i);
        ck_assert_int_eq(sl_memory_put(names[i], data[i], SHARD_BYTES, NULL), 0);
        sl_made_whole(made, sl_made_source(made, uri, NULL), names[i], SHARD_RANGE_BYTES, data[i]);
    }
    struct sl_sink *sink = sl_heap_open(made->files, SHARDS, &err);
    struct sl_reader_outcome outcome;
    struct sl_reader_config config = {
        .connections = 8, .threads = (unsigned)_i, .outcome = &outcome};
    ck_assert_msg(sl_reader_run(&made->plan, sink, NULL, &config, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_made_compare(made, sink), 0);
    ck_assert_uint_le(outcome.shared_files, _i == 1 ? 0 : (unsigned)_i);
    sl_sink_free(sink);
    sl_made_free(made);
    sl_memory_clear();
}
