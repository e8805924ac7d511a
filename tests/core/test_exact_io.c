/*
 * Reads and writes of all bytes: beside real files, calls that are scripted (the linker's --wrap),
 * since a file system takes a part of a write when it likes.
 */
#include "exact_io.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "claims.h"
#include "mem.h"

enum { CALLS_MAX = 8, WHOLE = 1000 };

/* ---- what calls answer ----------------------------------------------------------------------- */

/* For each call to come: how many bytes it may take, 0, or -errno. */
static struct {
    int answers[CALLS_MAX];
    unsigned count, made;
} script;

ssize_t __real_pread64(int fd, void *data, size_t bytes, off_t offset);
ssize_t __real_pwrite64(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_pread64(int fd, void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);

/* How many bytes this call may move; *done: it moves none, and errno is set. */
static size_t next_answer(size_t bytes, ssize_t *result, bool *done)
{
    *done = false;
    if (script.made == script.count)
        return bytes;
    int answer = script.answers[script.made++];
    if (answer <= 0) {
        *done = true;
        errno = -answer;
        *result = answer ? -1 : 0;
    }
    return answer > 0 && (size_t)answer < bytes ? (size_t)answer : bytes;
}

ssize_t __wrap_pread64(int fd, void *data, size_t bytes, off_t offset)
{
    bool done;
    ssize_t result;
    bytes = next_answer(bytes, &result, &done);
    return done ? result : __real_pread64(fd, data, bytes, offset);
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t bytes, off_t offset)
{
    bool done;
    ssize_t result;
    bytes = next_answer(bytes, &result, &done);
    return done ? result : __real_pwrite64(fd, data, bytes, offset);
}

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    bool done;
    ssize_t result;
    bytes = next_answer(bytes, &result, &done);
    return done ? result : __real_write(fd, data, bytes);
}

#define SCRIPT(...)                                                                                \
    do {                                                                                           \
        const int answers_[] = {__VA_ARGS__};                                                      \
        memcpy(script.answers, answers_, sizeof(answers_));                                        \
        script.count = sizeof(answers_) / sizeof(*answers_);                                       \
        script.made = 0;                                                                           \
    } while (0)

static void end_script(void)
{
    unsigned left = script.count - script.made;
    script.count = script.made = 0;
    ck_assert_uint_eq(left, 0);
}

/* ---- a file ---------------------------------------------------------------------------------- */

static uint8_t bytes[WHOLE], got[WHOLE];
static int fd;

static void setup(void)
{
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    memset(got, 0, sizeof(got));
    fd = memfd_create("exact", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
}

static void teardown(void)
{
    close(fd);
}

static void check_file(uint64_t offset, size_t count)
{
    ck_assert_int_eq(lseek(fd, 0, SEEK_END), (off_t)(offset + count));
    ck_assert_int_eq(__real_pread64(fd, got, count, (off_t)offset), (ssize_t)count);
    ck_assert_mem_eq(got, bytes, count);
}

SL_TEST(what_is_written_is_read)
{
    ck_assert_int_eq(sl_write_at(fd, bytes, WHOLE, 5000), 0);
    ck_assert_int_eq(sl_read_at(fd, got, WHOLE, 5000), 0);
    ck_assert_mem_eq(got, bytes, WHOLE);
    ck_assert_int_eq(sl_read_at(fd, got, 10, 5990), 0);
    ck_assert_mem_eq(got, bytes + 990, 10);
}

SL_TEST(parts_and_signals_go_on)
{
    SCRIPT(1, -EINTR, 10, -EINTR, -EINTR, 500);
    ck_assert_int_eq(sl_write_at(fd, bytes, WHOLE, 3), 0);
    end_script();
    check_file(3, WHOLE);
    memset(got, 0, sizeof(got));
    SCRIPT(-EINTR, 1, 998, -EINTR, 7);
    ck_assert_int_eq(sl_read_at(fd, got, WHOLE, 3), 0);
    end_script();
    ck_assert_mem_eq(got, bytes, WHOLE);
}

SL_TEST(a_stream_takes_all_of_it)
{
    SCRIPT(100, -EINTR, 899);
    ck_assert_int_eq(sl_write_all(fd, bytes, WHOLE), 0);
    end_script();
    check_file(0, WHOLE);
    SCRIPT(100, -EPIPE);
    ck_assert_int_eq(sl_write_all(fd, bytes, WHOLE), -1);
    ck_assert_int_eq(errno, EPIPE);
    end_script();
    SCRIPT(100, 0);
    ck_assert_int_eq(sl_write_all(fd, bytes, WHOLE), -1);
    ck_assert_int_eq(errno, ENOSPC);
    end_script();
}

SL_TEST(a_file_that_ends_before_has_no_data)
{
    ck_assert_int_eq(sl_write_at(fd, bytes, 10, 0), 0);
    ck_assert_int_eq(sl_read_at(fd, got, 11, 0), -1);
    ck_assert_int_eq(errno, ENODATA);
    ck_assert_int_eq(sl_read_at(fd, got, 1, 10), -1);
    ck_assert_int_eq(errno, ENODATA);
    ck_assert_int_eq(sl_read_at(fd, got, 1, INT64_MAX - 1), -1);
    ck_assert_int_eq(errno, ENODATA);
}

SL_TEST(a_call_that_fails_says_why)
{
    SCRIPT(500, -ENOSPC);
    ck_assert_int_eq(sl_write_at(fd, bytes, WHOLE, 0), -1);
    ck_assert_int_eq(errno, ENOSPC);
    end_script();
    SCRIPT(0);
    ck_assert_int_eq(sl_write_at(fd, bytes, WHOLE, 0), -1);
    ck_assert_int_eq(errno, ENOSPC); /* it would try for ever */
    end_script();
    SCRIPT(10, -EIO);
    ck_assert_int_eq(sl_read_at(fd, got, 20, 0), -1);
    ck_assert_int_eq(errno, EIO);
    end_script();
    ck_assert_int_eq(sl_read_at(-1, got, 1, 0), -1);
    ck_assert_int_eq(errno, EBADF);
    ck_assert_int_eq(sl_write_at(-1, bytes, 1, 0), -1);
    ck_assert_int_eq(errno, EBADF);
    ck_assert_int_eq(sl_write_all(-1, bytes, 1), -1);
    ck_assert_int_eq(errno, EBADF);
}

SL_TEST(nothing_needs_no_call)
{
    ck_assert_int_eq(sl_read_at(-1, NULL, 0, 0), 0);
    ck_assert_int_eq(sl_read_at(-1, NULL, 0, INT64_MAX), 0);
    ck_assert_int_eq(sl_write_at(-1, NULL, 0, 0), 0);
    ck_assert_int_eq(sl_write_all(-1, NULL, 0), 0);
}

SL_TEST(places_that_no_file_has_are_refused)
{
    static const struct {
        uint64_t offset;
        size_t count;
    } beyond[] = {{INT64_MAX, 1}, {UINT64_MAX, 0},        {UINT64_MAX, 1},
                  {1, INT64_MAX}, {UINT64_MAX, SIZE_MAX}, {(uint64_t)INT64_MAX + 1, 0}};
    for (size_t i = 0; i < sizeof(beyond) / sizeof(*beyond); i++) {
        errno = 0;
        ck_assert_int_eq(sl_read_at(fd, got, beyond[i].count, beyond[i].offset), -1);
        ck_assert_int_eq(errno, EOVERFLOW);
        errno = 0;
        ck_assert_int_eq(sl_write_at(fd, bytes, beyond[i].count, beyond[i].offset), -1);
        ck_assert_int_eq(errno, EOVERFLOW);
    }
    ck_assert_int_eq(lseek(fd, 0, SEEK_END), 0);
}

SL_CASE(.setup = setup, .teardown = teardown)
