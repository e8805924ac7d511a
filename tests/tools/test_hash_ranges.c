/* Ranges of several objects, hashed side by side. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "golden.h"
#include "hash.h"
#include "hash_ranges.h"
#include "memory_store.h"
#include "model_maker.h"
#include "stores.h"

enum { BYTES = 10000, RANGE_BYTES = 3000, OBJECTS = 3, RANGES = 4 * OBJECTS };

static const char *const names[OBJECTS] = {"m/a", "m/b", "m/c"};
static uint8_t *data;
static struct sl_hashed_object objects[OBJECTS];
static struct sl_hashed_range ranges[RANGES];

static void setup(void)
{
    data = sl_model_noise(OBJECTS * BYTES, 5);
    for (int i = 0; i < OBJECTS; i++)
        ck_assert_int_eq(sl_memory_put(names[i], data + i * BYTES, BYTES, NULL), 0);
}

static void teardown(void)
{
    sl_memory_clear();
    free(data);
}

static void cut(void)
{
    for (int i = 0; i < OBJECTS; i++)
        objects[i] = (struct sl_hashed_object){.name = names[i] + 2, .bytes = BYTES};
    for (int i = 0; i < RANGES; i++) {
        uint64_t begin = (uint64_t)(i % 4) * RANGE_BYTES;
        ranges[i] = (struct sl_hashed_range){.object = &objects[i / 4],
                                             .begin = begin,
                                             .end = SL_MIN(begin + RANGE_BYTES, (uint64_t)BYTES)};
    }
}

static int hash_once(void *arg, struct sl_err *err)
{
    static const struct sl_source_config config;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    (void)arg;
    cut();
    if (sl_store_open("memory://m/", &config, &store, &key, err) < 0)
        return -1;
    return sl_cli_hash_ranges(store, ranges, RANGES, err);
}

SL_TEST(every_range_has_its_hashes)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(hash_once(NULL, &err) == 0, "%s", err.message);
    for (int i = 0; i < RANGES; i++) {
        const uint8_t *begin = data + i / 4 * BYTES + ranges[i].begin;
        size_t bytes = (size_t)(ranges[i].end - ranges[i].begin);
        uint8_t digest[SL_HASH_BYTES_MAX];
        ck_assert_int_eq(sl_digest_of(SL_HASH_SHA256, NULL, 0, begin, bytes, digest, NULL), 0);
        ck_assert_int_eq(memcmp(digest, ranges[i].sha256, 32), 0);
        ck_assert_uint_eq(sl_crc32c(0, begin, bytes), ranges[i].crc32c);
    }
    for (int i = 0; i < OBJECTS; i++)
        ck_assert(!objects[i].source && objects[i].left == 0);
}

/* Whichever thread has it, the whole fails, and nothing stays open. */
SL_TEST(each_read_and_each_allocation_may_fail)
{
    ck_assert_uint_ge(golden_each_read(hash_once, NULL), RANGES);
    ck_assert_uint_ge(golden_each_allocation(hash_once, NULL), 10);
    for (int i = 0; i < OBJECTS; i++)
        ck_assert_ptr_null(objects[i].source);
}

SL_TEST(an_object_that_has_another_length_now_is_refused)
{
    static const struct sl_source_config config;
    struct sl_err err = SL_ERR_INIT;
    struct sl_store *store = NULL;
    char *key = NULL;
    cut();
    ck_assert_int_eq(sl_store_open("memory://m/", &config, &store, &key, &err), 0);
    objects[1].bytes = BYTES + 1;
    ck_assert_int_eq(sl_cli_hash_ranges(store, ranges, RANGES, &err), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, "'b' changed"), "%s",
                  err.message);
    sl_store_free(store);
    free(key);
}

SL_CASE(.setup = setup, .teardown = teardown)
