/* One suite for every sink, and what only a directory can get wrong. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "option.h"
#include "scratch.h"
#include "sink.h"

static int directory;
static char path[SL_SCRATCH_PATH_BYTES];

static void begin(void)
{
    directory = sl_scratch_open(path);
}

static void end(void)
{
    sl_scratch_close(directory, path);
}

static int write_place(struct sl_sink *sink, uint32_t file, uint64_t offset, const void *data,
                       size_t bytes, struct sl_err *err)
{
    struct sl_place place;
    if (sl_sink_reserve(sink, file, offset, bytes, &place, err) < 0)
        return -1;
    ck_assert_uint_eq(place.bytes, bytes);
    ck_assert_uint_eq(place.file, file);
    ck_assert_int_eq(place.memory != NULL, sink->ops->lend != NULL);
    if (place.memory)
        memcpy(place.memory, data, bytes);
    else
        ck_assert_int_eq(pwrite(place.fd, data, bytes, (off_t)place.offset), (ssize_t)bytes);
    return sl_sink_commit(sink, &place, err);
}

/* ---- every sink ----------------------------------------------------------------------------- */

static const struct sl_sink_file few[] = {{"a", 10}, {"d/e/b", 3}, {"empty", 0}, {"d/c", 70000}};

static struct sl_sink *open_one(int kind, const struct sl_sink_file *files, size_t count,
                                struct sl_err *err)
{
    return kind ? sl_tmpfs_open(directory, files, count, NULL, err)
                : sl_heap_open(files, count, err);
}

static const struct sl_claim_case every_claims;

SL_TEST_LOOP_OF(every_claims, what_is_written_is_read_back, 0, 2)
{
    struct sl_err err = SL_ERR_INIT;
    char back[16];
    struct sl_sink *sink = open_one(_i, few, SL_COUNT(few), &err);
    ck_assert_ptr_nonnull(sink);
    for (uint32_t i = 0; _i == 0 && i < SL_COUNT(few); i++)
        ck_assert_uint_eq((uintptr_t)sl_heap_data(sink, i) % 4096, 0);
    ck_assert_int_eq(write_place(sink, 0, 5, "fghij", 5, &err), 0);
    ck_assert_int_eq(write_place(sink, 0, 0, "abcde", 5, &err), 0);
    ck_assert_int_eq(write_place(sink, 1, 0, "xyz", 3, &err), 0);
    ck_assert_int_eq(sl_sink_read(sink, 0, 0, back, 10, &err), 0);
    ck_assert_int_eq(memcmp(back, "abcdefghij", 10), 0);
    ck_assert_int_eq(sl_sink_read(sink, 1, 1, back, 2, &err), 0);
    ck_assert_int_eq(memcmp(back, "yz", 2), 0);
    ck_assert_int_eq(sl_sink_read(sink, 3, 69990, back, 10, &err), 0);
    ck_assert_int_eq(memcmp(back, "\0\0\0\0\0\0\0\0\0\0", 10), 0);
    ck_assert_int_eq(sl_sink_finish(sink, &err), 0);
    sl_sink_free(sink);
}

SL_TEST_LOOP_OF(every_claims, places_outside_a_file_are_refused, 0, 2)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_place place;
    char back[4];
    struct sl_sink *sink = open_one(_i, few, SL_COUNT(few), &err);
    ck_assert_int_eq(sl_sink_reserve(sink, 0, 5, 6, &place, &err), -1);
    ck_assert_int_eq(sl_sink_reserve(sink, 0, UINT64_MAX, 2, &place, &err), -1);
    ck_assert_int_eq(sl_sink_reserve(sink, 0, 0, 0, &place, &err), -1);
    ck_assert_int_eq(sl_sink_reserve(sink, 4, 0, 1, &place, &err), -1);
    ck_assert_int_eq(sl_sink_read(sink, 0, 8, back, 3, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    sl_sink_free(sink);
}

SL_TEST_LOOP_OF(every_claims, every_failing_allocation_is_survived, 0, 2)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_sink *sink = NULL;
    for (unsigned nth = 1; !sink; nth++) {
        sl_alloc_fail_at(nth);
        sink = open_one(_i, few, SL_COUNT(few), &err);
        sl_alloc_fail_at(0);
        ck_assert(sink || err.kind == SL_E_NO_SPACE);
        ck_assert_uint_lt(nth, 100);
    }
    sl_sink_free(sink);
}

/* ---- directories ---------------------------------------------------------------------------- */

SL_TEST(files_have_their_size_at_once_and_are_read_only_in_the_end)
{
    struct sl_err err = SL_ERR_INIT;
    struct stat status;
    struct sl_sink *sink = sl_tmpfs_open(directory, few, SL_COUNT(few), NULL, &err);
    ck_assert_int_eq(fstatat(directory, "d/c", &status, 0), 0);
    ck_assert_int_eq(status.st_size, 70000);
    ck_assert_int_eq(sl_sink_finish(sink, &err), 0);
    sl_sink_free(sink);
    ck_assert_int_eq(fstatat(directory, "d/c", &status, 0), 0);
    ck_assert_uint_eq(status.st_mode & 07777, 0444);
    ck_assert_int_eq(fstatat(directory, "empty", &status, 0), 0);
    ck_assert_uint_eq(status.st_mode & 07777, 0444);
}

static bool count_down(const void *left)
{
    return (*(int *)(uintptr_t)left)-- > 0;
}

SL_TEST(memory_is_found_piece_by_piece_and_bytes_stay)
{
    static const struct sl_sink_file large[] = {{"a", 9 << 20}, {"empty", 0}, {"b", 20 << 20}};
    struct sl_err err = SL_ERR_INIT;
    struct stat status;
    char back[3];
    int pieces = 3;
    struct sl_sink *sink = sl_tmpfs_open(directory, large, SL_COUNT(large), NULL, &err);
    ck_assert_int_eq(write_place(sink, 2, 100, "xyz", 3, &err), 0);
    sl_sink_allocate(sink, count_down, &pieces);
    ck_assert_int_eq(pieces, -1);
    ck_assert_int_eq(fstatat(directory, "a", &status, 0), 0);
    ck_assert_int_ge(status.st_blocks * 512, 9 << 20);
    ck_assert_int_eq(fstatat(directory, "b", &status, 0), 0);
    ck_assert_int_ge(status.st_blocks * 512, 8 << 20);
    ck_assert_int_lt(status.st_blocks * 512, 9 << 20);
    ck_assert_int_eq(sl_sink_read(sink, 2, 100, back, 3, &err), 0);
    ck_assert_mem_eq(back, "xyz", 3);
    sl_sink_free(sink);
}

SL_TEST(an_interrupted_load_finds_its_files)
{
    struct sl_err err = SL_ERR_INIT;
    char back[3];
    struct sl_sink *sink = sl_tmpfs_open(directory, few, SL_COUNT(few), NULL, &err);
    ck_assert_int_eq(write_place(sink, 1, 0, "xyz", 3, &err), 0);
    ck_assert_int_eq(sl_sink_finish(sink, &err), 0);
    sl_sink_free(sink);
    sink = sl_tmpfs_open(directory, few, SL_COUNT(few), NULL, &err);
    ck_assert_msg(sink != NULL, "%s", err.message);
    ck_assert_int_eq(sl_sink_read(sink, 1, 0, back, 3, &err), 0);
    ck_assert_int_eq(memcmp(back, "xyz", 3), 0);
    sl_sink_free(sink);
}

static void refuse(const char *advice)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_ptr_null(sl_tmpfs_open(directory, few, SL_COUNT(few), NULL, &err));
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_msg(strstr(err.message, advice) != NULL, "%s", err.message);
}

SL_TEST(links_are_never_followed)
{
    ck_assert_int_eq(symlinkat("/tmp", directory, "d"), 0);
    refuse("in the way");
    unlinkat(directory, "d", 0);
    unlinkat(directory, "a", 0);
    ck_assert_int_eq(symlinkat("elsewhere", directory, "a"), 0);
    refuse("in the way");
    ck_assert_int_eq(faccessat(directory, "elsewhere", F_OK, 0), -1);
}

SL_TEST(other_things_in_the_way_are_refused)
{
    ck_assert_int_eq(mkfifoat(directory, "a", 0600), 0);
    refuse("regular file");
    unlinkat(directory, "a", 0);
    unlinkat(directory, "d", AT_REMOVEDIR);
    close(openat(directory, "d", O_CREAT | O_WRONLY, 0600));
    refuse("in the way");
}

SL_TEST(a_file_beyond_the_limit_is_refused_with_advice)
{
    struct rlimit limit = {60000, 60000};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    refuse("ulimit -f");
}

SL_TEST(thousands_of_files_need_few_descriptors)
{
    enum { FILES = 1500 };
    struct sl_err err = SL_ERR_INIT;
    struct rlimit limit = {200, 200};
    static struct sl_sink_file many[FILES];
    static char names[FILES][16];
    for (int i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof(names[i]), "%d/%d", i % 7, i);
        many[i] = (struct sl_sink_file){names[i], 4};
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    struct sl_sink *sink = sl_tmpfs_open(directory, many, FILES, NULL, &err);
    ck_assert_msg(sink != NULL, "%s", err.message);
    for (uint32_t i = 0; i < FILES; i++)
        ck_assert_int_eq(write_place(sink, i * 7 % FILES, 0, &i, 4, &err), 0);
    for (uint32_t i = 0, back; i < FILES; i++) {
        ck_assert_int_eq(sl_sink_read(sink, i * 7 % FILES, 0, &back, 4, &err), 0);
        ck_assert_uint_eq(back, i);
    }
    ck_assert_int_eq(sl_sink_finish(sink, &err), 0);
    sl_sink_free(sink);
}

/* Making them takes a while, in which nothing is read. */
SL_TEST(most_of_many_files_are_made_when_they_are_used_or_at_the_end)
{
    enum { FILES = 1500 };
    struct sl_err err = SL_ERR_INIT;
    struct stat status;
    static struct sl_sink_file many[FILES];
    static char names[FILES][16];
    for (int i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof(names[i]), "%d/%d", i % 7, i);
        many[i] = (struct sl_sink_file){names[i], i % 5 ? 4 : 0};
    }
    struct sl_sink *sink = sl_tmpfs_open(directory, many, FILES, NULL, &err);
    ck_assert_msg(sink != NULL, "%s", err.message);
    ck_assert_int_eq(fstatat(directory, names[0], &status, 0), 0);
    ck_assert_int_eq(fstatat(directory, names[FILES - 1], &status, 0), -1);
    ck_assert_int_eq(write_place(sink, FILES - 1, 0, "abcd", 4, &err), 0);
    ck_assert_int_eq(fstatat(directory, names[FILES - 1], &status, 0), 0);
    ck_assert_int_eq(sl_sink_finish(sink, &err), 0);
    for (int i = 0; i < FILES; i++) {
        ck_assert_int_eq(fstatat(directory, names[i], &status, 0), 0);
        ck_assert_int_eq(status.st_size, i % 5 ? 4 : 0);
        ck_assert_int_eq(status.st_mode & 0777, 0444);
    }
    sl_sink_free(sink);
}

SL_TEST(more_places_than_descriptors_kept_are_lent)
{
    enum { FILES = 150 };
    struct sl_err err = SL_ERR_INIT;
    static struct sl_sink_file many[FILES];
    static char names[FILES][16];
    static struct sl_place places[FILES];
    for (int i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof(names[i]), "%d", i);
        many[i] = (struct sl_sink_file){names[i], 4};
    }
    struct sl_sink *sink = sl_tmpfs_open(directory, many, FILES, NULL, &err);
    for (uint32_t i = 0; i < FILES; i++)
        ck_assert_int_eq(sl_sink_reserve(sink, i, 0, 4, &places[i], &err), 0);
    for (uint32_t i = 0; i < FILES; i++) {
        ck_assert_int_eq(pwrite(places[i].fd, &i, 4, 0), 4);
        if (i % 2)
            sl_sink_abandon(sink, &places[i]);
        else
            ck_assert_int_eq(sl_sink_commit(sink, &places[i], &err), 0);
    }
    ck_assert_int_eq(sl_sink_finish(sink, &err), 0);
    sl_sink_free(sink);
}

SL_TEST(a_file_that_was_taken_away_is_not_made_again)
{
    enum { FILES = 200 };
    struct sl_err err = SL_ERR_INIT;
    static struct sl_sink_file many[FILES];
    static char names[FILES][16];
    for (int i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof(names[i]), "%d", i);
        many[i] = (struct sl_sink_file){names[i], 4};
    }
    struct sl_sink *sink = sl_tmpfs_open(directory, many, FILES, NULL, &err);
    for (uint32_t i = 0; i < FILES; i++)
        ck_assert_int_eq(write_place(sink, i, 0, &i, 4, &err), 0);
    for (int i = 0; i < FILES; i++)
        ck_assert_int_eq(unlinkat(directory, names[i], 0), 0);
    int failed = 0;
    for (uint32_t i = 0; !failed && i < FILES; i++)
        failed = write_place(sink, i, 0, &i, 4, &err);
    ck_assert_int_eq(failed, -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    sl_sink_free(sink);
}

SL_TEST(owners_are_numbers)
{
    struct sl_err err = SL_ERR_INIT;
    struct stat status;
    char owner[] = "root";
    struct sl_tmpfs_options options = {.owner = owner};
    ck_assert_ptr_null(sl_tmpfs_open(directory, few, SL_COUNT(few), &options, &err));
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    char own[16];
    snprintf(own, sizeof(own), "%u", getgid());
    options = (struct sl_tmpfs_options){.group = own};
    struct sl_sink *sink = sl_tmpfs_open(directory, few, SL_COUNT(few), &options, &err);
    ck_assert_ptr_nonnull(sink);
    ck_assert_int_eq(sl_sink_finish(sink, &err), 0);
    ck_assert_int_eq(fstatat(directory, "a", &status, 0), 0);
    ck_assert_uint_eq(status.st_gid, getgid());
    sl_sink_free(sink);
}

static const struct sl_claim_case every_claims = {.setup = begin, .teardown = end};

SL_CASE(.setup = begin, .teardown = end)
