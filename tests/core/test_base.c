/* The ground everything stands on: allocation, buffers, JSON, cancellation, logs. */
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "json.h"
#include "mem.h"
#include "scratch.h"
#include "skip.h"
#include "thread.h"

SL_TEST(the_nth_allocation_fails_and_only_that)
{
    struct sl_err err = SL_ERR_INIT;
    sl_alloc_fail_at(2);
    sl_autofree void *first = sl_alloc(8, &err);
    sl_autofree void *second = sl_alloc(8, &err);
    sl_autofree void *third = sl_alloc(8, NULL);
    sl_alloc_fail_at(0);
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(second);
    ck_assert_ptr_nonnull(third);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
}

/* What is freed already is looked at by the kernel, as who reads the memory of a process would. */
SL_TEST(a_buffer_that_moves_leaves_no_secret_behind)
{
    static const char secret[] = "hush-hush-hush-hush-hush-hush-16";
    struct sl_err err = SL_ERR_INIT;
    sl_autosecretbuf text = SL_BUF_INIT(1 << 20);
    sl_autoclose int memory = open("/proc/self/mem", O_RDONLY);
    void *behind[100];
    unsigned looks = 0;
    ck_assert_int_ge(memory, 0);
    for (size_t i = 0; i < SL_COUNT(behind); i++) {
        char found[17] = "";
        uintptr_t old = (uintptr_t)text.data;
        ck_assert_int_eq(sl_buf_text(&text, secret, &err), 0);
        if (old && old != (uintptr_t)text.data && pread(memory, found, 16, (off_t)old + 16) == 16) {
            looks++;
            ck_assert_str_ne(found, secret + 16);
        }
        behind[i] = sl_alloc(64, &err); /* so that it cannot grow where it is */
    }
    ck_assert_uint_gt(looks, 0);
    for (size_t i = 0; i < SL_COUNT(behind); i++)
        free(behind[i]);
}

SL_TEST(sizes_that_overflow_are_refused)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_ptr_null(sl_alloc_array(SIZE_MAX / 2, 3, &err));
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    char *items = NULL;
    size_t capacity = 0;
    ck_assert_int_eq(sl_grow(&items, &capacity, SIZE_MAX, 16, &err), -1);
    ck_assert_ptr_null(items);
}

SL_TEST(grown_arrays_keep_their_items_and_are_zeroed)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autofree uint32_t *items = NULL;
    size_t capacity = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        ck_assert_int_eq(sl_grow(&items, &capacity, i + 1, sizeof(*items), &err), 0);
        ck_assert_uint_eq(items[i], 0);
        items[i] = i;
    }
    for (uint32_t i = 0; i < 1000; i++)
        ck_assert_uint_eq(items[i], i);
}

SL_TEST(a_buffer_stops_at_its_limit_and_keeps_what_it_has)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf buf = SL_BUF_INIT(10);
    ck_assert_int_eq(sl_buf_text(&buf, "12345", &err), 0);
    ck_assert_int_eq(sl_buf_text(&buf, "678901", &err), -1);
    ck_assert_int_eq(sl_buf_append(&buf, "x", SIZE_MAX, &err), -1);
    ck_assert_int_eq(sl_buf_printf(&buf, &err, "%s", "67890"), 0);
    ck_assert_int_eq(sl_buf_text(&buf, "1", &err), -1);
    ck_assert_str_eq(sl_buf_string(&buf), "1234567890");
}

SL_TEST(blanks_around_a_text_are_taken_away)
{
    static const char *const rows[][2] = {{"a", "a"},  {" \r\n\ta b\n \n", "a b"}, {"", ""},
                                          {" \n", ""}, {"\xef\xbb", "\xef\xbb"},   {"a \n", "a"},
                                          {"  a", "a"}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_autobuf buf = SL_BUF_INIT(64);
        ck_assert_int_eq(sl_buf_text(&buf, rows[i][0], NULL), 0);
        sl_buf_trim(&buf);
        ck_assert_str_eq(sl_buf_string(&buf), rows[i][1]);
        ck_assert_uint_eq(buf.used, strlen(rows[i][1]));
    }
    sl_autobuf none = SL_BUF_INIT(64), nul = SL_BUF_INIT(64);
    sl_buf_trim(&none);
    ck_assert_int_eq(sl_buf_append(&nul, "\0a\0", 3, NULL), 0); /* no blank */
    sl_buf_trim(&nul);
    ck_assert_uint_eq(nul.used, 3);
}

SL_TEST(text_of_a_server_cannot_forge_lines_in_a_message)
{
    struct sl_err err = SL_ERR_INIT;
    sl_fail_code(&err, SL_E_NET, "a\nb", "bad\r\nsluice: forged\x1b[31m");
    ck_assert_str_eq(err.message, "bad??sluice: forged?[31m");
    ck_assert_str_eq(err.code, "a?b");
    sl_wrap(&err, "in '%s'", "x\ny");
    ck_assert_str_eq(err.message, "in 'x?y': bad??sluice: forged?[31m");
    ck_assert(err.retryable);
}

SL_TEST(long_messages_are_cut_not_overrun)
{
    struct sl_err err = SL_ERR_INIT;
    char text[2000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    sl_fail(&err, SL_E_USAGE, "%s", text);
    for (int i = 0; i < 10; i++)
        sl_wrap(&err, "%s", text);
    ck_assert_uint_lt(strlen(err.message), sizeof(err.message));
    sl_fail_errno(&err, SL_E_USAGE, 2, "%s", text);
    ck_assert_uint_lt(strlen(err.message), sizeof(err.message));
}

SL_TEST(exit_codes_are_those_of_the_table)
{
    const int expected[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    ck_assert_uint_eq(SL_COUNT(expected), SL_ERR_KIND_COUNT);
    for (int kind = 0; kind < SL_ERR_KIND_COUNT; kind++)
        ck_assert_int_eq(sl_err_row((enum sl_err_kind)kind)->exit_code, expected[kind]);
    ck_assert_int_eq(sl_err_row((enum sl_err_kind)999)->exit_code, 1);
}

SL_TEST(hex_goes_both_ways_and_refuses_the_rest)
{
    uint8_t data[4];
    char text[9];
    ck_assert_int_eq(sl_unhex("00fFa910", data, 4), 0);
    sl_hex(data, 4, text);
    ck_assert_str_eq(text, "00ffa910");
    ck_assert_int_eq(sl_unhex("00ffa91", data, 4), -1);
    ck_assert_int_eq(sl_unhex("00ffa9100", data, 4), -1);
    ck_assert_int_eq(sl_unhex("00ffa91g", data, 4), -1);
}

SL_TEST(only_strict_utf8_is_utf8)
{
    ck_assert(sl_is_utf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82", 10));
    const char *bad[] = {"\x80",
                         "\xc0\x80",
                         "\xc1\xbf",
                         "\xc3",
                         "\xe0\x80\x80",
                         "\xed\xa0\x80",
                         "\xf0\x80\x80\x80",
                         "\xf4\x90\x80\x80",
                         "\xf5\x80\x80\x80",
                         "\xff"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_msg(!sl_is_utf8(bad[i], strlen(bad[i])), "case %zu", i);
}

SL_TEST(json_is_written_so_that_it_parses_back)
{
    struct sl_json json;
    struct sl_err err = SL_ERR_INIT;
    sl_json_init(&json, 4096);
    sl_json_object(&json);
    sl_json_key_string(&json, "text", "q\"b\\n\n\x01\xff\xc3\xa9");
    sl_json_key_uint(&json, "most", UINT64_MAX);
    sl_json_key(&json, "list");
    sl_json_array(&json);
    sl_json_double(&json, 1.5);
    sl_json_double(&json, 0.0 / 0.0);
    sl_json_bool(&json, true);
    sl_json_end(&json);
    sl_json_key(&json, "empty");
    sl_json_object(&json);
    sl_json_end(&json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, &err);
    ck_assert_str_eq(
        text,
        "{\"text\":\"q\\\"b\\\\n\\u000a\\u0001\xef\xbf\xbd\xc3\xa9\",\"most\":18446744073709551615,"
        "\"list\":[1.5,null,true],\"empty\":{}}");
    sl_json_release(&json);
}

SL_TEST(json_beyond_its_limit_is_an_error_not_half_a_document)
{
    struct sl_json json;
    struct sl_err err = SL_ERR_INIT;
    sl_json_init(&json, 16);
    sl_json_array(&json);
    for (int i = 0; i < 100; i++)
        sl_json_uint(&json, 1);
    sl_json_end(&json);
    ck_assert_ptr_null(sl_json_text(&json, &err));
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    sl_json_release(&json);
}

SL_TEST(duplicate_keys_are_refused)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_ptr_null(sl_json_parse("{\"a\":1,\"a\":2}", 13, "answer", &err));
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
}

static void *raise_it(void *arg)
{
    sl_cancel_raise(arg, 15);
    sl_cancel_raise(arg, 2);
    return NULL;
}

SL_TEST(cancellation_wakes_a_sleeper_and_keeps_its_first_reason)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(&err);
    ck_assert_ptr_nonnull(cancel);
    ck_assert_int_eq(sl_cancel_check(cancel, &err), 0);
    pthread_t thread;
    ck_assert_int_eq(sl_thread_start(&thread, "raiser", raise_it, cancel, &err), 0);
    ck_assert_int_eq(sl_sleep_ms(100000, cancel, &err), -1);
    pthread_join(thread, NULL);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    ck_assert_int_eq(sl_cancel_signal(cancel), 15);
    struct pollfd fd = {sl_cancel_fd(cancel), POLLIN, 0};
    ck_assert_int_eq(poll(&fd, 1, 0), 1);
    sl_cancel_free(cancel);
}

static void list_cpus(int folder, const char *text)
{
    int fd = openat(folder, "list", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* Of the first processor that this process may use, in lists that have more and less. */
SL_TEST(a_thread_stays_on_the_processors_that_a_list_names)
{
    static const char *const empty[] = {"", "\n", "999999\n", "x\n", "-", "4294967295-4294967295"};
    static const char *const good[] = {"%d\n", "%d", "%d-%d", "100000-100002,%d-%d\n", "%d,99999-"};
    char directory[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 8], text[80];
    int folder = sl_scratch_open(directory), first = 0;
    cpu_set_t before, now;
    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    while (!CPU_ISSET(first, &before))
        first++;
    snprintf(path, sizeof(path), "%s/list", directory);
    ck_assert(!sl_thread_stay(path));
    for (size_t i = 0; i < SL_COUNT(empty); i++) {
        list_cpus(folder, empty[i]);
        ck_assert(!sl_thread_stay(path));
    }
    ck_assert_int_eq(sched_getaffinity(0, sizeof(now), &now), 0);
    ck_assert(CPU_EQUAL(&now, &before));
    for (size_t i = 0; i < SL_COUNT(good); i++) {
        snprintf(text, sizeof(text), good[i], first, first);
        list_cpus(folder, text);
        ck_assert_msg(sl_thread_stay(path), "%s", text);
        ck_assert_int_eq(sched_getaffinity(0, sizeof(now), &now), 0);
        ck_assert_int_eq(CPU_COUNT(&now), 1);
        ck_assert(CPU_ISSET(first, &now));
    }
    sl_scratch_close(folder, directory);
}

SL_TEST(files_are_read_whole_or_refused)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf buf = SL_BUF_INIT(64 * 1024);
    char path[] = "/tmp/sluice-test-XXXXXX";
    sl_autoclose int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    for (int i = 0; i < 65; i++) {
        char block[1000];
        memset(block, i, sizeof(block));
        ck_assert_int_eq(write(fd, block, sizeof(block)), 1000);
    }
    ck_assert_int_eq(sl_buf_read_file(&buf, path, &err), 0);
    ck_assert_uint_eq(buf.used, 65000);
    sl_autobuf small = SL_BUF_INIT(64999);
    ck_assert_int_eq(sl_buf_read_file(&small, path, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    unlink(path);
    ck_assert_int_eq(sl_buf_read_file(&small, path, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
}

SL_TEST(a_file_is_not_blamed_for_descriptors_that_are_short)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf buf = SL_BUF_INIT(1024);
    struct rlimit usual;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &usual), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, usual.rlim_max}), 0);
    int done = sl_buf_read_file(&buf, "/proc/self/status", &err);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &usual), 0);
    ck_assert_int_eq(done, -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
}

/* sysfs says a page for each of its files. */
SL_TEST(a_file_that_says_more_than_it_has_is_read)
{
    static const char path[] = "/sys/devices/system/cpu/online";
    struct sl_err err = SL_ERR_INIT;
    struct stat status;
    sl_autobuf buf = SL_BUF_INIT(1024);
    if (stat(path, &status) < 0 || status.st_size <= 1024)
        SL_SKIP("no sysfs whose files say a page");
    ck_assert_msg(sl_buf_read_file(&buf, path, &err) == 0, "%s", err.message);
    ck_assert_uint_gt(buf.used, 0);
}

SL_TEST(bytes_for_people_have_three_digits)
{
    char text[32];
    ck_assert_str_eq(sl_human_bytes(0, text), "0 bytes");
    ck_assert_str_eq(sl_human_bytes(1, text), "1 byte");
    ck_assert_str_eq(sl_human_bytes(612, text), "612 bytes");
    ck_assert_str_eq(sl_human_bytes(1536, text), "1.50 KiB");
    ck_assert_str_eq(sl_human_bytes(90868376, text), "86.7 MiB");
    ck_assert_str_eq(sl_human_bytes(UINT64_MAX, text), "16.0 EiB");
}

SL_TEST(numbers_of_things_agree)
{
    char text[40];
    ck_assert_str_eq(sl_human_count(0, "file", text), "0 files");
    ck_assert_str_eq(sl_human_count(1, "file", text), "1 file");
    ck_assert_str_eq(sl_human_count(2, "hash", text), "2 hashes");
    ck_assert_str_eq(sl_human_count(UINT64_MAX, "connection", text),
                     "18446744073709551615 connections");
}
