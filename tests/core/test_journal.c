/* What a killed load may leave behind, byte by byte. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "hash.h"
#include "journal.h"
#include "scratch.h"
#include "thread.h"

enum { FILE_BYTES = 4096, KEPT_MAX = 64 };
static const struct sl_sink_file files[] = {{"a", FILE_BYTES}, {"b", FILE_BYTES}};
static const uint8_t identity[32] = "this plan", other[32] = "another plan";
static int directory;
static char path[SL_SCRATCH_PATH_BYTES];
static struct sl_sink *sink;
static uint8_t bytes[FILE_BYTES];

static struct kept {
    uint32_t file;
    uint64_t begin, end;
    bool known; /* crc32c is */
    uint32_t crc32c;
} kept[KEPT_MAX];
static size_t kept_count;

static void begin(void)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_place place;
    directory = sl_scratch_open(path);
    sink = sl_heap_open(files, SL_COUNT(files), &err);
    for (size_t i = 0; i < FILE_BYTES; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    for (uint32_t file = 0; file < SL_COUNT(files); file++) {
        sl_sink_reserve(sink, file, 0, FILE_BYTES, &place, &err);
        memcpy(place.memory, bytes, FILE_BYTES);
        sl_sink_commit(sink, &place, &err);
    }
}

static void end(void)
{
    sl_sink_free(sink);
    sl_scratch_close(directory, path);
}

static int keep(uint32_t file, uint64_t from, uint64_t to, const uint32_t *crc32c, void *arg,
                struct sl_err *err)
{
    (void)arg, (void)err;
    ck_assert_uint_lt(kept_count, KEPT_MAX);
    kept[kept_count++] = (struct kept){file, from, to, crc32c != NULL, crc32c ? *crc32c : 0};
    return 0;
}

static struct sl_journal *open_journal(const uint8_t whose[32], bool expected)
{
    struct sl_err err = SL_ERR_INIT;
    bool resumed = !expected;
    struct sl_journal *journal = sl_journal_open(directory, "journal", whose, &resumed, &err);
    ck_assert_msg(journal != NULL, "%s", err.message);
    ck_assert_int_eq(resumed, expected);
    return journal;
}

static void replay(struct sl_journal *journal)
{
    struct sl_err err = SL_ERR_INIT;
    kept_count = 0;
    ck_assert_msg(sl_journal_replay(journal, sink, keep, NULL, &err) == 0, "%s", err.message);
}

static void add(struct sl_journal *journal, uint32_t file, uint64_t from, uint64_t to)
{
    struct sl_err err = SL_ERR_INIT;
    uint32_t crc = sl_crc32c(0, bytes + from, to - from);
    ck_assert_int_eq(sl_journal_add(journal, file, from, to, crc, &err), 0);
}

static void expect(size_t at, uint32_t file, uint64_t from, uint64_t to)
{
    ck_assert_uint_lt(at, kept_count);
    ck_assert_uint_eq(kept[at].file, file);
    ck_assert_uint_eq(kept[at].begin, from);
    ck_assert_uint_eq(kept[at].end, to);
}

SL_TEST(pieces_come_back_merged_and_sorted)
{
    struct sl_journal *journal = open_journal(identity, false);
    add(journal, 1, 0, 100);
    add(journal, 0, 300, 400);
    add(journal, 0, 100, 200);
    add(journal, 0, 200, 300);
    add(journal, 0, 150, 350);
    add(journal, 0, 1000, 1001);
    sl_journal_free(journal);
    journal = open_journal(identity, true);
    replay(journal);
    ck_assert_uint_eq(kept_count, 3);
    expect(0, 0, 100, 400);
    expect(1, 0, 1000, 1001);
    expect(2, 1, 0, 100);
    sl_journal_free(journal);
}

SL_TEST(another_plan_begins_anew)
{
    struct sl_journal *journal = open_journal(identity, false);
    add(journal, 0, 0, 10);
    sl_journal_free(journal);
    journal = open_journal(other, false);
    replay(journal);
    ck_assert_uint_eq(kept_count, 0);
    sl_journal_free(journal);
    sl_journal_free(open_journal(identity, false));
}

SL_TEST(bytes_that_were_not_written_are_not_believed)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_journal *journal = open_journal(identity, false);
    add(journal, 0, 0, 100);
    sl_journal_add(journal, 0, 100, 200, 0x12345678, &err);
    add(journal, 0, 200, 300);
    sl_journal_free(journal);
    journal = open_journal(identity, true);
    replay(journal);
    ck_assert_uint_eq(kept_count, 2);
    expect(0, 0, 0, 100);
    expect(1, 0, 200, 300);
    sl_journal_free(journal);
}

/* Who writes knows what it wrote: that is not read back, and stays apart with its CRC32C. */
SL_TEST(what_was_noted_since_is_believed)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_journal *journal = open_journal(identity, false);
    add(journal, 0, 0, 100);
    add(journal, 0, 100, 200);
    add(journal, 0, 600, 700);
    sl_journal_free(journal);
    journal = open_journal(identity, true);
    sl_journal_add(journal, 0, 200, 300, 0x12345678, &err);
    sl_journal_add(journal, 0, 300, 400, 0x9abcdef0, &err);
    sl_journal_add(journal, 0, 650, 800, 0x12345678, &err);
    replay(journal);
    ck_assert_uint_eq(kept_count, 4);
    expect(0, 0, 0, 200);
    expect(1, 0, 200, 300);
    expect(2, 0, 300, 400);
    expect(3, 0, 600, 800); /* no byte twice */
    ck_assert(!kept[0].known && !kept[3].known);
    ck_assert(kept[1].known && kept[1].crc32c == 0x12345678);
    ck_assert(kept[2].known && kept[2].crc32c == 0x9abcdef0);
    sl_journal_free(journal);
}

SL_TEST(struck_bytes_are_forgotten_until_added_again)
{
    struct sl_journal *journal = open_journal(identity, false);
    add(journal, 0, 0, 100);
    add(journal, 0, 100, 200);
    add(journal, 1, 100, 200);
    sl_journal_strike(journal, 0, 50, 60);
    replay(journal);
    ck_assert_uint_eq(kept_count, 2);
    expect(0, 0, 100, 200);
    add(journal, 0, 0, 50);
    replay(journal);
    ck_assert_uint_eq(kept_count, 3);
    expect(0, 0, 0, 50);
    sl_journal_free(journal);
}

SL_TEST(records_out_of_bounds_are_passed_over)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_journal *journal = open_journal(identity, false);
    sl_journal_add(journal, 7, 0, 10, 0, &err);
    sl_journal_add(journal, 0, 0, FILE_BYTES + 1, 0, &err);
    sl_journal_add(journal, 0, 10, 10, 0, &err);
    sl_journal_add(journal, 0, 20, 10, 0, &err);
    sl_journal_add(journal, 0, UINT64_MAX - 1, UINT64_MAX, 0, &err);
    add(journal, 1, 5, 6);
    replay(journal);
    ck_assert_uint_eq(kept_count, 1);
    expect(0, 1, 5, 6);
    sl_journal_free(journal);
}

static off_t journal_bytes(void)
{
    struct stat status;
    ck_assert_int_eq(fstatat(directory, "journal", &status, 0), 0);
    return status.st_size;
}

static void make_ten(void)
{
    struct sl_journal *journal = open_journal(identity, false);
    for (uint64_t i = 0; i < 10; i++)
        add(journal, 0, i * 100, i * 100 + 50);
    sl_journal_free(journal);
}

SL_TEST(a_journal_cut_off_anywhere_keeps_its_whole_records)
{
    make_ten();
    off_t whole = journal_bytes();
    for (off_t cut = whole; cut >= 0; cut--) {
        unlinkat(directory, "journal", 0);
        make_ten();
        int fd = openat(directory, "journal", O_RDWR);
        ck_assert_int_eq(ftruncate(fd, cut), 0);
        close(fd);
        struct sl_journal *journal = open_journal(identity, cut >= 64);
        replay(journal);
        ck_assert_uint_eq(kept_count, cut < 64 ? 0 : (size_t)(cut - 64) / 40);
        add(journal, 1, 1, 2); /* and it can be continued */
        replay(journal);
        ck_assert_uint_eq(kept_count, (cut < 64 ? 0 : (size_t)(cut - 64) / 40) + 1);
        sl_journal_free(journal);
    }
}

SL_TEST(a_flipped_bit_costs_one_record)
{
    make_ten();
    off_t whole = journal_bytes();
    int fd = openat(directory, "journal", O_RDWR);
    for (off_t at = 64; at < whole; at++) {
        uint8_t byte;
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
        struct sl_journal *journal = open_journal(identity, true);
        replay(journal);
        ck_assert_uint_eq(kept_count, 9);
        sl_journal_free(journal);
        byte ^= 0x10;
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

SL_TEST(links_and_directories_are_no_journal)
{
    struct sl_err err = SL_ERR_INIT;
    bool resumed;
    ck_assert_int_eq(symlinkat("elsewhere", directory, "journal"), 0);
    ck_assert_ptr_null(sl_journal_open(directory, "journal", identity, &resumed, &err));
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    unlinkat(directory, "journal", 0);
    ck_assert_int_eq(mkdirat(directory, "journal", 0700), 0);
    ck_assert_ptr_null(sl_journal_open(directory, "journal", identity, &resumed, &err));
}

SL_TEST(cancellation_ends_a_replay)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(&err);
    make_ten();
    struct sl_journal *journal = open_journal(identity, true);
    sl_journal_set_cancel(journal, cancel);
    sl_cancel_raise(cancel, 15);
    ck_assert_int_eq(sl_journal_replay(journal, sink, keep, NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_journal_free(journal);
    sl_cancel_free(cancel);
}

SL_TEST(digests_of_files_fill_gaps_and_refuse_overlaps)
{
    struct sl_err err = SL_ERR_INIT;
    uint32_t crcs[2] = {0};
    bool known[2] = {false};
    struct sl_journal *journal = open_journal(identity, false);
    add(journal, 0, 100, 1000);
    add(journal, 0, 1000, 2000);
    add(journal, 0, 3000, FILE_BYTES - 1);
    add(journal, 0, 3000, FILE_BYTES - 1); /* written again */
    ck_assert_int_eq(sl_journal_file_crcs(journal, sink, crcs, known, &err), 0);
    for (int file = 0; file < 2; file++) { /* of the second nothing is on record */
        ck_assert(known[file]);
        ck_assert_uint_eq(crcs[file], sl_crc32c(0, bytes, FILE_BYTES));
    }
    add(journal, 1, 0, 100);
    add(journal, 1, 99, FILE_BYTES);
    ck_assert_int_eq(sl_journal_file_crcs(journal, sink, crcs, known, &err), 0);
    ck_assert(known[0] && !known[1]);
    sl_journal_free(journal);
}

/* Of the same journal, and for who opens it next. */
static void expect_nothing(struct sl_journal *journal)
{
    struct sl_err err = SL_ERR_INIT;
    uint32_t crcs[2];
    bool known[2] = {true, true};
    add(journal, 1, 0, 100); /* nor does what comes later count */
    replay(journal);
    ck_assert_uint_eq(kept_count, 0);
    ck_assert_int_eq(sl_journal_file_crcs(journal, sink, crcs, known, &err), 0);
    ck_assert(!known[0] && !known[1]);
    sl_journal_free(journal);
    journal = open_journal(identity, false);
    replay(journal);
    ck_assert_uint_eq(kept_count, 0);
    add(journal, 0, 0, 100); /* it is as good as any */
    replay(journal);
    ck_assert_uint_eq(kept_count, 1);
    sl_journal_free(journal);
}

SL_TEST(a_strike_that_cannot_be_written_strikes_everything)
{
    struct rlimit before, full;
    struct sl_journal *journal = open_journal(identity, false);
    add(journal, 0, 0, 100);
    add(journal, 1, 0, 100);
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    full = before;
    full.rlim_cur = (rlim_t)journal_bytes();
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &full), 0);
    sl_journal_strike(journal, 0, 50, 60);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_nothing(journal);
}

enum { RECORDS_MAX = 4 * 1024 * 1024 };

static void lengthen(uint64_t records)
{
    sl_autoclose int fd = openat(directory, "journal", O_RDWR);
    ck_assert_int_eq(ftruncate(fd, (off_t)(64 + 40 * records)), 0); /* holes are wrong records */
}

SL_TEST(a_journal_that_is_full_says_nothing)
{
    make_ten();
    lengthen(RECORDS_MAX);
    struct sl_journal *journal = open_journal(identity, true);
    sl_journal_strike(journal, 0, 0, FILE_BYTES);
    expect_nothing(journal);
}

SL_TEST(a_journal_that_is_longer_than_ours_is_begun_anew)
{
    make_ten();
    lengthen(RECORDS_MAX + 1);
    struct sl_journal *journal = open_journal(identity, false);
    replay(journal);
    ck_assert_uint_eq(kept_count, 0);
    sl_journal_free(journal);
}

SL_TEST(every_failing_allocation_is_survived)
{
    struct sl_err err = SL_ERR_INIT;
    bool resumed;
    make_ten();
    int failed = -1;
    for (unsigned nth = 1; failed; nth++) {
        kept_count = 0;
        sl_alloc_fail_at(nth);
        struct sl_journal *journal =
            sl_journal_open(directory, "journal", identity, &resumed, &err);
        failed = journal ? sl_journal_replay(journal, sink, keep, NULL, &err) : -1;
        sl_alloc_fail_at(0);
        ck_assert(!failed || err.kind == SL_E_NO_SPACE);
        sl_journal_free(journal);
        ck_assert_uint_lt(nth, 100);
    }
    ck_assert_uint_eq(kept_count, 10);
}

SL_CASE(.setup = begin, .teardown = end)
