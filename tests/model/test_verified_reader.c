/* Conversions of objects that have a sidecar, from a server that sends wrong bytes: nothing that
 * was not found right is written, and a wrong range is fetched again. */
#include <check.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "convert_case.h"
#include "log.h"
#include "metrics.h"
#include "signed_model.h"
#include "stores.h"
#include "verified_reader.h"

enum { ITEMS = 100000, RANGES = 25 };
static const char *const required[] = {"verify.sidecar=require", NULL};

static unsigned threads;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    err = (struct sl_err)SL_ERR_INIT;
    flip(0, 0);
    threads = 2;
    sl_case_setup();
    server = sl_server_start();
    put_model("a,b,c,d", ITEMS);
    sl_server_handle(server, flip_bit, NULL);
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_case_teardown();
    free(data);
    data = NULL;
}

static int convert(const char *const *words)
{
    char path[SL_CASE_PATH_BYTES];
    struct sl_convert_config config = sl_case_safetensors;
    config.block_bytes = 48 * 1024; /* ranges are met by halves */
    config.threads = threads;
    err = (struct sl_err)SL_ERR_INIT;
    return sl_case_convert(sl_server_url(server, "/m.safetensors"),
                           sl_case_path("new.safetensors", path), &config, words, NULL, &err);
}

/* The tensors keep their order. */
static bool is_right(void)
{
    size_t found, count = bytes - 8 - (size_t)sl_get_le64(data);
    uint8_t *file = sl_model_read(sl_case_scratch, "new.safetensors", &found);
    bool same =
        file && found > count && memcmp(file + found - count, data + bytes - count, count) == 0;
    free(file);
    return same;
}

SL_TEST(a_wrong_bit_is_fetched_again)
{
    static const char *const all[] = {"verify.sidecar=require", "verify.hashes=all", NULL};
    for (uint64_t at = bytes - 1; at > 3 * RANGE; at -= 4 * RANGE + 1000) {
        uint64_t before = (uint64_t)sl_metric_get(SL_M_REFETCHED_RANGES);
        flip(at, at % 2 ? 1 : 3);
        ck_assert_msg(convert(at % 3 ? required : all) == 0, "%s", err.message);
        ck_assert(is_right());
        ck_assert_uint_eq((uint64_t)sl_metric_get(SL_M_REFETCHED_RANGES) - before, at % 2 ? 1 : 3);
    }
}

SL_TEST(each_range_is_fetched_once)
{
    unsigned before = sl_server_request_count(server);
    threads = 1; /* of several one may fall behind by more ranges than are kept */
    ck_assert_msg(convert(required) == 0, "%s", err.message);
    /* beside them: the object's head, its sidecar */
    ck_assert_uint_le(sl_server_request_count(server) - before, RANGES + 3);
    ck_assert(is_right());
}

SL_TEST(one_that_stays_wrong_is_never_written)
{
    char path[SL_CASE_PATH_BYTES];
    flip(bytes - 100, 1000);
    ck_assert_int_lt(convert(required), 0);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_msg(strstr(err.message, "fetched 4 times") && strstr(err.message, "bytes "), "%s",
                  err.message);
    ck_assert_int_ne(access(sl_case_path("new.safetensors", path), F_OK), 0);
}

/* The first answer, of which the index is made, was wrong; or the sidecar is of another head. */
SL_TEST(a_wrong_head_is_found)
{
    uint8_t *name = memmem(data, 200, "\"b\"", 3);
    ck_assert_ptr_nonnull(name);
    flip((uint64_t)(name + 1 - data), 1);
    ck_assert_int_lt(convert(required), 0);
    ck_assert_msg(err.kind == SL_E_INTEGRITY || err.kind == SL_E_FORMAT, "%s", err.message);
    name[1] = 'f';
    put_sidecar(data);
    name[1] = 'b';
    ck_assert_int_lt(convert(required), 0);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
}

/* Longer than what is read of an object at once. */
static void put_long_header(void)
{
    enum { PADDING = 4 * RANGE, HEADER = 6 * RANGE, TENSOR = RANGE };
    free(data);
    bytes = HEADER + 2 * TENSOR;
    data = sl_model_noise(bytes, 3);
    char *header = (char *)data + 8;
    sl_put_le64(data, HEADER - 8);
    memset(header, ' ', HEADER - 8);
    int used = snprintf(header, RANGE, "{\"__metadata__\": {\"x\": \"");
    memset(header + used, 'x', PADDING);
    used += PADDING;
    used +=
        snprintf(header + used, RANGE,
                 "\"}, \"a\": {\"dtype\": \"F32\", \"shape\": [%d], \"data_offsets\": [0, %d]}, "
                 "\"b\": {\"dtype\": \"F32\", \"shape\": [%d], \"data_offsets\": [%d, %d]}}",
                 TENSOR / 4, TENSOR, TENSOR / 4, TENSOR, 2 * TENSOR);
    header[used] = ' ';
    sl_server_put(server, "/m.safetensors", data, bytes, ETAG);
    put_sidecar(data);
}

/* The file is named by itself, or by an index of shards. */
SL_TEST(a_wrong_byte_of_a_long_header_is_found)
{
    static const char name[] = "model.safetensors.index.json",
                      text[] = "{\"weight_map\": {\"a\": \"m.safetensors\", \"b\": "
                               "\"m.safetensors\"}}";
    char target[64], path[SL_CASE_PATH_BYTES];
    snprintf(target, sizeof(target), "/%s", name);
    put_long_header();
    sl_server_put(server, target, text, strlen(text), ETAG);
    put_sidecar_of(name, (const uint8_t *)text, strlen(text));
    sl_case_path("new.safetensors", path);
    for (int i = 0; i < 4; i++) {
        const char *uri = sl_server_url(server, i % 2 ? target : "/m.safetensors");
        flip(3 * RANGE + 5, i < 2); /* of the metadata, which go along */
        err = (struct sl_err)SL_ERR_INIT;
        int done = sl_case_convert(uri, path, &sl_case_safetensors, required, NULL, &err);
        ck_assert_msg((done == 0) == (i >= 2), "%d: %s", i, err.message);
    }
}

SL_TEST(where_none_is_there_it_is_required_or_not_asked_for)
{
    sl_server_put(server, "/n.safetensors", data, bytes, ETAG);
    char path[SL_CASE_PATH_BYTES];
    const char *uri = sl_server_url(server, "/n.safetensors");
    ck_assert_int_lt(sl_case_convert(uri, sl_case_path("n.safetensors", path), &sl_case_safetensors,
                                     required, NULL, &err),
                     0);
    ck_assert_str_eq(err.code, "E_SIDECAR");
    sl_case_expect(uri, path, &sl_case_safetensors, NULL);
}

/* ---- a reader alone ----------------------------------------------------------------------------
 */

static struct sl_source *source;
static struct sl_store *store;

/* All of the object in odd pieces, from a place of its own. */
static void *read_around(void *arg)
{
    struct sl_err why = SL_ERR_INIT;
    struct sl_source *clone = NULL;
    enum { PIECE = 10007 };
    uint8_t *piece = malloc(PIECE);
    bool right = sl_source_known(store, sl_source_name(source), bytes, sl_source_version(source),
                                 &clone, &why) == 0;
    if (right)
        sl_source_set_verifier(clone, sl_source_verifier(source));
    for (uint64_t done = 0; right && done < bytes; done += PIECE) {
        uint64_t at = (done + (uintptr_t)arg * bytes / 4) % bytes;
        size_t count = (size_t)SL_MIN((uint64_t)PIECE, bytes - at);
        right = sl_source_read(clone, at, piece, count, &why) == 0 &&
                memcmp(piece, data + at, count) == 0;
    }
    sl_source_free(clone);
    free(piece);
    return right ? arg : &err;
}

SL_TEST(two_ranges_in_memory_are_enough_for_many_threads)
{
    struct sl_source_config config = {.attempts = 2};
    pthread_t readers[4];
    char *key = NULL;
    struct sl_sidecar *sidecar = make_sidecar(data);
    ck_assert_int_eq(
        sl_store_open(sl_server_url(server, "/m.safetensors"), &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 100000, &source, &err), 0);
    struct sl_verified_reader *verified =
        sl_verified_reader_new(source, sidecar, true, 2 * RANGE, NULL, &err);
    ck_assert_msg(verified != NULL, "%s", err.message);
    flip(bytes - 100, 1);
    for (uintptr_t i = 0; i < SL_COUNT(readers); i++)
        ck_assert_int_eq(pthread_create(&readers[i], NULL, read_around, (void *)i), 0);
    for (uintptr_t i = 0; i < SL_COUNT(readers); i++) {
        void *result;
        pthread_join(readers[i], &result);
        ck_assert_ptr_eq(result, (void *)i);
    }
    sl_verified_reader_free(verified);
    sl_source_free(source);
    sl_store_free(store);
    sl_sidecar_free(sidecar);
    free(key);
}

SL_TEST(every_failing_allocation_ends_cleanly)
{
    unsigned step = 1;
    char path[SL_CASE_PATH_BYTES];
    struct sl_specs specs;
    struct sl_convert_config config = sl_case_safetensors;
    sl_case_spec(&specs, sl_server_url(server, "/m.safetensors"), required);
    config.spec = &specs.items[0];
    config.to = sl_case_path("new.safetensors", path);
    config.block_bytes = 48 * 1024;
    for (unsigned nth = 1;; nth += step) {
        err = (struct sl_err)SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        int done = sl_convert_run(&config, NULL, &err);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(0);
        if (done == 0)
            ck_assert(is_right());
        if (!reached)
            break;
        ck_assert(done == 0 || err.kind != SL_OK);
        step = 1 + nth / 12; /* those of the conversion itself have their tests */
    }
    sl_specs_release(&specs);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 120)
