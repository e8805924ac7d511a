/* Peaks are those of all children so far: a test that passes says them of each. */
#include "sizes_case.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "mem.h"
#include "seed.h"
#include "thread.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const bool sizes_sanitized = true;
#else
const bool sizes_sanitized = false;
#endif

const char *const sizes_claims[SIZES_CLAIMS] = {
    "0",
    "1",
    "100000",
    "2147483648",
    "1099511627776",
    "100000000000000000",
    "999999999999999999",
    "1152921504606846976",
    "4611686018427387904",
    "9223372036854775807",
    "18446744073709551615",
    "-1",
};

char sizes_folder[SL_SCRATCH_PATH_BYTES];
int sizes_scratch = -1;
bool sizes_clipped;

void sizes_open(void)
{
    char key[32] = "0123456789abcdef0123456789abcde";
    sizes_scratch = sl_scratch_open(sizes_folder);
    sizes_make_file("key", key, sizeof(key), sizeof(key));
}

void sizes_close(void)
{
    sl_scratch_close(sizes_scratch, sizes_folder);
}

void sizes_random(uint64_t *state, char *claim, size_t bytes)
{
    uint64_t value = sl_test_draw(state, UINT64_MAX);
    snprintf(claim, bytes, "%" PRIu64, value >> sl_test_draw(state, 64));
}

uint64_t sizes_make_file(const char *name, const void *head, size_t head_bytes, uint64_t bytes)
{
    int fd = openat(sizes_scratch, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, head, head_bytes), (ssize_t)head_bytes);
    bytes = SL_MIN(SL_MAX(bytes, (uint64_t)head_bytes), (uint64_t)INT64_MAX);
    sizes_clipped = false;
    while (ftruncate(fd, (off_t)bytes) < 0) {
        bytes /= 2;
        sizes_clipped = true;
    }
    close(fd);
    return bytes;
}

void sizes_patch_file(const char *name, uint64_t at, const void *data, size_t bytes)
{
    int fd = openat(sizes_scratch, name, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, data, bytes, (off_t)at), (ssize_t)bytes);
    close(fd);
}

static unsigned count(const char *text, const char *word)
{
    unsigned found = 0;
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        found++;
    return found;
}

static uint64_t in_ns(const struct timeval *time)
{
    return (uint64_t)time->tv_sec * SL_NS_PER_S + (uint64_t)time->tv_usec * 1000;
}

uint64_t sizes_used_ns(const struct rusage *usage)
{
    return in_ns(&usage->ru_utime) + in_ns(&usage->ru_stime);
}

uint64_t sizes_judge(const char *what, const struct ran *ran, long peak_kib)
{
    static uint64_t before_ns; /* of the children that were judged before */
    struct rusage usage;
    ck_assert_int_eq(getrusage(RUSAGE_CHILDREN, &usage), 0);
    uint64_t ns = sizes_used_ns(&usage) - before_ns;
    before_ns += ns;
    ck_assert_msg(ran->exit_code == 0 || count(ran->err, "sluice: error: ") == 1, "%s: %s", what,
                  ran->err);
    ck_assert_msg(!strstr(ran->err, "out of memory"), "%s: %s", what, ran->err);
    ck_assert_msg(ns < SIZES_SECONDS_MAX * SL_NS_PER_S, "%s took %u ms of a processor", what,
                  (unsigned)(ns / SL_NS_PER_MS));
    ck_assert_msg(sizes_sanitized || usage.ru_maxrss <= peak_kib, "%s took %ld KiB", what,
                  usage.ru_maxrss);
    return ns;
}
