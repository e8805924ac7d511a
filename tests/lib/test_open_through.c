/* Models that a library opens where caches are named: what hashes cover comes through them, and the
 * rest from the store itself, since nobody would be there to read an error of `unverified`. */
#include "claims.h"
#include "open_case.h"
#include "range_blob.h"
#include "signed_model.h"
#include "sluice.h"

enum { ITEMS = 3 * RANGE / 4, TENSOR_BYTES = 4 * ITEMS, TENSORS = 2 };

static struct sl_server *cache;

/* A header of one range, so that the ranges of a sidecar end where tensors do. */
static void put_aligned(void)
{
    put_model("a,b", ITEMS);
    sl_autofree uint8_t *model = sl_steal(&data);
    size_t found = bytes;
    uint64_t header;
    memcpy(&header, model, 8);
    bytes = RANGE + TENSORS * TENSOR_BYTES;
    data = malloc(bytes);
    memset(data, ' ', RANGE);
    memcpy(data + 8, model + 8, (size_t)header);
    memcpy(data + RANGE, model + found - TENSORS * TENSOR_BYTES, TENSORS * TENSOR_BYTES);
    header = RANGE - 8;
    memcpy(data, &header, 8);
    sl_server_put(server, "/m.safetensors", data, bytes, ETAG);
}

static void serve_by_cache(bool spoilt)
{
    sl_autofree uint8_t *copy = malloc(bytes);
    memcpy(copy, data, bytes);
    for (size_t at = RANGE / 3; spoilt && at < bytes; at += RANGE)
        copy[at] ^= 4;
    sl_server_put(cache, "/m.safetensors", copy, bytes, ETAG);
}

static void setup(void)
{
    server = sl_server_start();
    cache = sl_server_start();
    put_aligned();
    sl_server_handle(server, flip_bit, NULL);
    flip(0, 0);
    setenv("SLUICE_THROUGH", sl_server_url(cache, ""), 1);
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_server_stop(cache);
    free(sl_steal(&data));
}

static void must_read_all(struct sluice_source *source)
{
    for (unsigned i = 0; i < TENSORS; i++) {
        sl_autofree uint8_t *tensor = whole(source, i);
        ck_assert_mem_eq(tensor, data + RANGE + i * TENSOR_BYTES, TENSOR_BYTES);
    }
}

/* _i: a good cache, one that flips a bit in each range. */
SL_TEST_LOOP(tensors_that_hashes_cover_come_through_caches, 0, 2)
{
    put_sidecar(data);
    serve_by_cache(_i);
    const struct sluice_open_options options = {.size = sizeof(options),
                                                .spec = "verify: {sidecar: require}\n"};
    struct sluice_source *source = open_it(sl_server_url(server, "/m.safetensors"), &options);
    unsigned before = sl_server_request_count(server);
    must_read_all(source);
    ck_assert_uint_gt(sl_server_request_count(cache), 0);
    if (!_i)
        ck_assert_uint_eq(sl_server_request_count(server), before);
    sluice_close(source);
}

/* Not refused either, as a load does by itself. */
SL_TEST(tensors_without_hashes_come_from_the_store)
{
    serve_by_cache(true);
    struct sluice_source *source = open_it(sl_server_url(server, "/m.safetensors"), NULL);
    must_read_all(source);
    ck_assert_uint_eq(sl_server_request_count(cache), 0);
    sluice_close(source);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
