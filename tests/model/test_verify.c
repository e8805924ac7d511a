/* Checks over bytes that come in any order. */
#include <check.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "hash.h"
#include "thread.h"
#include "verify.h"

enum { BYTES = 1024 * 1024, SOURCES = 2, CHECKS_MAX = 4096 };
static uint8_t data[SOURCES][BYTES];
static struct sl_check checks[CHECKS_MAX];
static size_t check_count;
static unsigned mismatches;
static int read_fails;

static void begin(void)
{
    uint64_t state = 99;
    for (int source = 0; source < SOURCES; source++)
        for (size_t i = 0; i < BYTES; i++)
            data[source][i] = (uint8_t)((state = state * 6364136223846793005u + 1) >> 56);
    check_count = mismatches = 0;
    read_fails = 0;
}

/* The files of this test are the sources. */
static int read_back(void *arg, uint32_t file, uint64_t offset, void *into, size_t bytes,
                     struct sl_err *err)
{
    (void)arg;
    if (read_fails)
        return sl_fail(err, SL_E_NO_SPACE, "reading back fails");
    memcpy(into, data[file] + offset, bytes);
    return 0;
}

static void on_mismatch(void *arg, const struct sl_check *check)
{
    (void)check;
    __atomic_add_fetch((unsigned *)arg, 1, __ATOMIC_SEQ_CST);
}

static struct sl_check *add(enum sl_hash_kind kind, uint32_t source, uint64_t from, uint64_t to)
{
    static const uint8_t prefix[5] = "head";
    struct sl_check *check = &checks[check_count++];
    *check = (struct sl_check){.kind = kind,
                               .source = source,
                               .begin = from,
                               .end = to,
                               .file = source,
                               .file_offset = from,
                               .prefix = prefix,
                               .prefix_bytes = from % 2 ? 5 : 0,
                               .what = "tensor 'x'"};
    if (kind == SL_HASH_SHA256) {
        struct sl_sha256 *sha = sl_sha256_new(NULL);
        sl_sha256_update(sha, prefix, check->prefix_bytes);
        sl_sha256_update(sha, data[source] + from, to - from);
        sl_sha256_finish(sha, check->expected);
        sl_sha256_free(sha);
        return check;
    }
    uint32_t (*crc_of)(uint32_t, const void *, size_t) =
        kind == SL_HASH_CRC32 ? sl_crc32 : sl_crc32c;
    uint32_t crc = crc_of(crc_of(0, prefix, check->prefix_bytes), data[source] + from, to - from);
    for (int i = 0; i < 4; i++)
        check->expected[i] = (uint8_t)(crc >> (24 - 8 * i));
    return check;
}

static struct sl_verify *make(struct sl_err *err)
{
    struct sl_verify_config config = {
        .read = read_back, .mismatch = on_mismatch, .arg = &mismatches, .threads = 3};
    return sl_verify_new(checks, check_count, &config, err);
}

static int feed(struct sl_verify *verify, uint32_t source, uint64_t from, uint64_t to,
                struct sl_err *err)
{
    return sl_verify_feed(verify, source, from, data[source] + from, to - from, err);
}

/* All bytes in pieces of `step`, every third first, then the others backwards. */
static int feed_all(struct sl_verify *verify, uint64_t step, struct sl_err *err)
{
    for (uint32_t source = 0; source < SOURCES; source++) {
        uint64_t pieces = (BYTES + step - 1) / step;
        for (uint64_t i = 0; i < pieces; i += 3)
            if (feed(verify, source, i * step, SL_MIN((i + 1) * step, (uint64_t)BYTES), err) < 0)
                return -1;
        for (uint64_t i = pieces; i-- > 0;)
            if (i % 3 &&
                feed(verify, source, i * step, SL_MIN((i + 1) * step, (uint64_t)BYTES), err) < 0)
                return -1;
    }
    return 0;
}

/* Whole objects, tensors, parts of tensors, empty ones. */
static void add_many(void)
{
    for (uint32_t source = 0; source < SOURCES; source++) {
        add(SL_HASH_SHA256, source, 0, BYTES);
        add(SL_HASH_CRC32, source, 0, BYTES);
        for (uint64_t at = 1, bytes = 1; at + bytes < BYTES;
             at += bytes, bytes = bytes * 3 / 2 + 1) {
            add(SL_HASH_CRC32C, source, at, at + bytes);
            add(SL_HASH_SHA256, source, at, at + bytes / 2);
            add(SL_HASH_CRC32, source, at + bytes / 3, at + bytes);
            add(SL_HASH_CRC32, source, at, at);
        }
    }
}

SL_TEST(any_order_and_any_size_of_pieces_is_right)
{
    static const uint64_t steps[] = {BYTES, BYTES - 1, 262144, 65536, 10007, 997};
    add_many();
    for (size_t i = 0; i < SL_COUNT(steps); i++) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_verify *verify = make(&err);
        ck_assert_msg(feed_all(verify, steps[i], &err) == 0, "%s", err.message);
        ck_assert_msg(sl_verify_finish(verify, NULL, &err) == 0, "%s", err.message);
        sl_verify_free(verify);
    }
    ck_assert_uint_eq(mismatches, 0);
}

SL_TEST(bytes_of_an_earlier_load_are_read_back)
{
    struct sl_err err = SL_ERR_INIT;
    add_many();
    struct sl_verify *verify = make(&err);
    for (uint32_t source = 0; source < SOURCES; source++) {
        ck_assert_int_eq(sl_verify_feed_landed(verify, source, 5000, BYTES - 9000, &err), 0);
        ck_assert_int_eq(feed(verify, source, 0, 5000, &err), 0);
        ck_assert_int_eq(feed(verify, source, BYTES - 4000, BYTES, &err), 0);
    }
    ck_assert_msg(sl_verify_finish(verify, NULL, &err) == 0, "%s", err.message);
    sl_verify_free(verify);
}

/* ---- checked as they came -------------------------------------------------------------------- */

static enum sl_delivery delivered;
static unsigned asked;

static enum sl_delivery delivery_of(void *arg, const struct sl_check *check)
{
    (void)arg;
    ck_assert(check->delivery);
    asked++;
    return delivered;
}

static struct sl_verify *make_delivered(struct sl_err *err)
{
    struct sl_verify_config config = {.read = read_back, .delivery = delivery_of, .threads = 2};
    asked = 0;
    add(SL_HASH_SHA256, 0, 0, BYTES)->delivery = true;
    return sl_verify_new(checks, check_count, &config, err);
}

/* Nothing is read back, though reading back would fail. */
SL_TEST(a_delivery_that_was_checked_is_not_hashed)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_verify) verify = make_delivered(&err);
    read_fails = 1;
    delivered = SL_DELIVERY_CHECKING;
    ck_assert_int_eq(feed(verify, 0, 5000, BYTES, &err), 0);
    delivered = SL_DELIVERY_CHECKED;
    ck_assert_int_eq(feed(verify, 0, 0, 4000, &err), 0);
    ck_assert_int_eq(feed(verify, 0, 4000, 5000, &err), 0);
    ck_assert_msg(sl_verify_finish(verify, NULL, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(asked, 3);
}

/* Whatever it was before: that it is not checked, or not yet, when all has landed decides. */
SL_TEST_LOOP(a_delivery_that_was_not_checked_is_hashed_whole, 0, 4)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_verify) verify = make_delivered(&err);
    data[0][150] ^= _i % 2 ? 1 : 0;
    delivered = SL_DELIVERY_CHECKING;
    ck_assert_int_eq(feed(verify, 0, 5000, BYTES, &err), 0);
    delivered = _i < 2 ? SL_DELIVERY_CHECKING : SL_DELIVERY_UNCHECKED;
    int failed = feed(verify, 0, 0, 4000, &err);
    delivered = SL_DELIVERY_CHECKING;
    failed = failed ? failed : feed(verify, 0, 4000, 5000, &err);
    failed = failed ? failed : sl_verify_finish(verify, NULL, &err);
    data[0][150] ^= _i % 2 ? 1 : 0;
    ck_assert_int_eq(failed, _i % 2 ? -1 : 0);
    ck_assert_str_eq(err.code, _i % 2 ? "E_HASH_SHA256" : "");
}

/* Of what an earlier load landed nothing is known. */
SL_TEST(a_delivery_in_two_loads_is_hashed)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_verify) verify = make_delivered(&err);
    delivered = SL_DELIVERY_CHECKED;
    data[0][150] ^= 1;
    int failed = sl_verify_feed_landed(verify, 0, 0, 5000, &err);
    failed = failed ? failed : feed(verify, 0, 5000, BYTES, &err);
    failed = failed ? failed : sl_verify_finish(verify, NULL, &err);
    data[0][150] ^= 1;
    ck_assert_int_eq(failed, -1);
    ck_assert_str_eq(err.code, "E_HASH_SHA256");
}

SL_TEST(a_wrong_hash_names_what_how_and_both_values)
{
    static const char *const codes[] = {"E_HASH_CRC32", "E_HASH_CRC32C", "E_HASH_SHA256"};
    for (int kind = 0; kind < 3; kind++) {
        for (uint64_t step = 1000; step <= BYTES; step *= 10) {
            struct sl_err err = SL_ERR_INIT;
            check_count = mismatches = 0;
            struct sl_check *check = add((enum sl_hash_kind)kind, 0, 100, 200000);
            char hex[65];
            sl_hex(check->expected, sl_hash_bytes(check->kind), hex);
            data[0][150] ^= 1;
            struct sl_verify *verify = make(&err);
            int failed = feed_all(verify, step, &err);
            if (!failed)
                failed = sl_verify_finish(verify, NULL, &err);
            data[0][150] ^= 1;
            ck_assert_int_eq(failed, -1);
            ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
            ck_assert_str_eq(err.code, codes[kind]);
            ck_assert_msg(strstr(err.message, "tensor 'x'") && strstr(err.message, hex) &&
                              strstr(err.message, sl_hash_name(check->kind)),
                          "%s", err.message);
            sl_verify_free(verify);
            ck_assert_uint_eq(mismatches, 1);
        }
    }
}

SL_TEST(an_empty_check_can_be_wrong)
{
    struct sl_err err = SL_ERR_INIT;
    add(SL_HASH_SHA256, 0, 7, 7)->expected[0] ^= 1;
    struct sl_verify *verify = make(&err);
    ck_assert_ptr_nonnull(verify);
    ck_assert_int_eq(sl_verify_finish(verify, NULL, &err), -1);
    ck_assert_str_eq(err.code, "E_HASH_SHA256");
    sl_verify_free(verify);
}

SL_TEST(bytes_that_never_came_are_missed)
{
    struct sl_err err = SL_ERR_INIT;
    add(SL_HASH_SHA256, 0, 0, 1000);
    add(SL_HASH_CRC32, 0, 0, 1000);
    struct sl_verify *verify = make(&err);
    ck_assert_int_eq(feed(verify, 0, 0, 500, &err), 0);
    ck_assert_int_eq(feed(verify, 0, 600, 1000, &err), 0);
    ck_assert_int_eq(sl_verify_finish(verify, NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    sl_verify_free(verify);
}

SL_TEST(bytes_that_came_twice_are_noticed)
{
    struct sl_err err = SL_ERR_INIT;
    add(SL_HASH_CRC32, 0, 0, 1000);
    struct sl_verify *verify = make(&err);
    ck_assert_int_eq(feed(verify, 0, 0, 500, &err), 0);
    ck_assert_int_eq(feed(verify, 0, 499, 600, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    sl_verify_free(verify);
}

SL_TEST(a_failing_sink_ends_it)
{
    struct sl_err err = SL_ERR_INIT;
    add(SL_HASH_SHA256, 0, 0, BYTES);
    struct sl_verify *verify = make(&err);
    read_fails = 1;
    int failed = feed_all(verify, 65536, &err);
    if (!failed)
        failed = sl_verify_finish(verify, NULL, &err);
    ck_assert_int_eq(failed, -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    sl_verify_free(verify);
}

SL_TEST(cancellation_and_early_freeing_end_the_threads)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(&err);
    add(SL_HASH_SHA256, 0, 0, BYTES);
    add(SL_HASH_SHA256, 1, 0, BYTES);
    struct sl_verify *verify = make(&err);
    ck_assert_int_eq(feed(verify, 0, 0, BYTES - 1, &err), 0);
    sl_cancel_raise(cancel, 0);
    ck_assert_int_eq(sl_verify_finish(verify, cancel, &err), -1);
    sl_verify_free(verify);
    sl_cancel_free(cancel);
}

SL_TEST(every_failing_allocation_is_survived)
{
    add_many();
    int failed = -1;
    for (unsigned nth = 1; failed; nth += 1 + nth / 16) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        struct sl_verify *verify = make(&err);
        failed = verify ? feed_all(verify, 100000, &err) : -1;
        if (!failed)
            failed = sl_verify_finish(verify, NULL, &err);
        sl_alloc_fail_at(0);
        ck_assert_msg(!failed || err.kind == SL_E_NO_SPACE, "%u: %s", nth, err.message);
        sl_verify_free(verify);
    }
}

SL_TEST(verified_bytes_are_counted_once)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *progress = sl_progress_new("m", "u", "p", &err);
    struct sl_verify_config config = {.read = read_back, .progress = progress};
    add(SL_HASH_CRC32, 0, 0, 1000);
    add(SL_HASH_SHA256, 0, 0, 1000);
    add(SL_HASH_CRC32, 0, 500, 2000);
    add(SL_HASH_CRC32, 1, 0, 10);
    struct sl_verify *verify = sl_verify_new(checks, check_count, &config, &err);
    ck_assert_int_eq(feed_all(verify, 700, &err), 0);
    ck_assert_int_eq(sl_verify_finish(verify, NULL, &err), 0);
    struct sl_progress_view view;
    sl_progress_view(progress, &view);
    ck_assert_uint_eq(view.bytes_verified, 2010);
    sl_verify_free(verify);
    sl_progress_free(progress);
}

/* Right and once; *arg counts. */
static int on_computed(void *arg, const struct sl_check *check, const uint8_t *digest,
                       struct sl_err *err)
{
    if (memcmp(digest, check->expected, sl_hash_bytes(check->kind)) != 0)
        return sl_fail(err, SL_E_INTERNAL, "another hash was told");
    __atomic_add_fetch((unsigned *)arg, 1, __ATOMIC_SEQ_CST);
    return 0;
}

SL_TEST(computed_hashes_are_told_once_whatever_the_pieces)
{
    begin();
    add_many();
    for (size_t i = 0; i < check_count; i++)
        checks[i].computed = true;
    for (uint64_t step = 4099; step < 2 * BYTES; step *= 5) {
        struct sl_err err = SL_ERR_INIT;
        unsigned told = 0;
        struct sl_verify_config config = {.read = read_back, .computed = on_computed, .arg = &told};
        SL_AUTO(sl_verify) verify = sl_verify_new(checks, check_count, &config, &err);
        ck_assert_ptr_nonnull(verify);
        ck_assert_msg(feed_all(verify, step, &err) == 0, "%s", err.message);
        ck_assert_msg(sl_verify_finish(verify, NULL, &err) == 0, "%s", err.message);
        ck_assert_uint_eq(told, check_count);
    }
}

SL_TEST(who_is_told_a_hash_can_fail_the_load)
{
    begin();
    struct sl_check *check = add(SL_HASH_CRC32, 0, 0, 100);
    struct sl_err err = SL_ERR_INIT;
    unsigned told = 0;
    struct sl_verify_config config = {.read = read_back, .computed = on_computed, .arg = &told};
    check->computed = true;
    check->expected[0] ^= 1;
    SL_AUTO(sl_verify) verify = sl_verify_new(checks, check_count, &config, &err);
    ck_assert_ptr_nonnull(verify);
    ck_assert_int_eq(feed(verify, 0, 0, 100, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    ck_assert_int_eq(sl_verify_finish(verify, NULL, &err), -1);
    ck_assert_uint_eq(told, 0);
}

SL_CASE(.setup = begin)
