/*
 * What it costs to open checkpoints that lie far away: requests and bytes, for archives as torch
 * lays them out (formats, section 9).
 */
#include <check.h>
#include <stdio.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "memory_store.h"
#include "range_server.h"
#include "stores.h"
#include "torch_maker.h"

static struct sl_index *open_index(const char *uri, uint64_t head_bytes, bool outline,
                                   struct sl_store **store)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_source *source = NULL;
    struct sl_index *index = NULL;
    char *key = NULL;
    ck_assert_msg(sl_store_open(uri, NULL, store, &key, &err) == 0, "%s", err.message);
    ck_assert_msg(sl_source_open(*store, key, head_bytes, &source, &err) == 0, "%s", err.message);
    int done = (outline ? sl_format_outline : sl_format_index_strict)(source, key, &index, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    free(key);
    return index;
}

static void expect_cost(struct torch_options wanted, bool outline, uint64_t requests_max,
                        uint64_t bytes_max)
{
    size_t object_bytes;
    uint64_t all, requests, bytes;
    uint8_t *data = torch_make(&wanted, &object_bytes);
    SL_AUTO(sl_store) store = NULL;
    ck_assert_int_eq(sl_memory_put("x.pt", data, object_bytes, NULL), 0);
    SL_AUTO(sl_index) index = open_index("memory:x.pt", SL_INDEX_HEAD_BYTES, outline, &store);
    ck_assert_uint_eq(index->tensor_count, wanted.tensors);
    sl_index_counts(index, &all, &requests, &bytes);
    ck_assert_msg(requests <= requests_max, "%u tensors: %u requests", wanted.tensors,
                  (unsigned)requests);
    ck_assert_msg(bytes <= bytes_max, "%u tensors: %u bytes", wanted.tensors, (unsigned)bytes);
    sl_index_free(sl_steal(&index));
    free(data);
}

SL_TEST(a_checkpoint_is_shown_in_few_requests)
{
    expect_cost((struct torch_options){.tensors = 291, .items = 4096}, true, 2, 400000);
    expect_cost((struct torch_options){.tensors = 723, .items = 4096, .name_bytes = 64}, true, 2,
                400000);
    expect_cost((struct torch_options){.tensors = 1164, .items = 1024, .name_bytes = 64}, true, 3,
                400000);
}

/* To read tensors: one more request, or one for each storage that lies far from the others. */
SL_TEST(local_headers_are_read_side_by_side)
{
    expect_cost((struct torch_options){.tensors = 291, .items = 1024}, false, 3, 1600 * 1000);
    expect_cost((struct torch_options){.tensors = 40, .items = 32 * 1024}, false, 42, 400000);
}

SL_TEST(other_alignments_cost_nothing)
{
    expect_cost((struct torch_options){.tensors = 291, .items = 4096, .alignment = 4096}, true, 2,
                400000);
}

/* Head, tail, the rest of the pickle, the rest of the directory. */
SL_TEST(even_a_hundred_thousand_tensors_take_four_requests)
{
    expect_cost((struct torch_options){.tensors = 100000, .items = 16}, true, 4, 22 * 1000 * 1000);
}

SL_TEST(tensors_are_where_they_are)
{
    struct torch_options wanted = {.tensors = 3000, .items = 50, .name_bytes = 100};
    size_t bytes;
    uint8_t *data = torch_make(&wanted, &bytes);
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    ck_assert_int_eq(sl_memory_put("x.pt", data, bytes, NULL), 0);
    SL_AUTO(sl_index) index = open_index("memory:x.pt", SL_INDEX_HEAD_BYTES, false, &store);
    for (unsigned i = 0; i < wanted.tensors; i += 7) {
        const struct sl_tensor *tensor = &index->tensors[i];
        float first;
        ck_assert_int_eq(sl_source_read(index->sources[0], tensor->begin, &first, 4, &err), 0);
        ck_assert_msg(first == (float)i, "tensor %u begins with %f", i, (double)first);
        ck_assert_uint_eq(tensor->end - tensor->begin, wanted.items * 4);
    }
    sl_index_free(sl_steal(&index));
    free(data);
}

SL_TEST(a_view_costs_its_own_bytes)
{
    size_t bytes;
    uint8_t *data = golden_read("pytorch/small_view_of_big_storage.pt", &bytes);
    json_t *expected = golden_json("pytorch/small_view_of_big_storage.pt.expect.json");
    uint64_t most =
        (uint64_t)json_integer_value(json_object_get(expected, "max_tensor_bytes_needed"));
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    uint8_t digest[32];
    uint64_t all, requests, before, after;
    ck_assert_uint_gt(most, 0);
    ck_assert_int_eq(sl_memory_put("x.pt", data, bytes, NULL), 0);
    SL_AUTO(sl_index) index = open_index("memory:x.pt", 1, false, &store);
    sl_index_counts(index, &all, &requests, &before);
    for (size_t i = 0; i < index->tensor_count; i++)
        ck_assert_int_eq(sl_tensor_digest(index, &index->tensors[i], true, digest, &err), 0);
    sl_index_counts(index, &all, &requests, &after);
    ck_assert_msg(after - before <= most, "%u bytes, %u are needed", (unsigned)(after - before),
                  (unsigned)most);
    sl_index_free(sl_steal(&index));
    json_decref(expected);
    free(data);
}

SL_TEST(a_web_server_is_asked_twice)
{
    struct torch_options wanted = {.tensors = 291, .items = 1024};
    size_t bytes;
    uint8_t *data = torch_make(&wanted, &bytes);
    struct sl_server *server = sl_server_start();
    struct sl_store *store = NULL;
    sl_server_put(server, "/m/pytorch_model.bin", data, bytes, "\"1\"");
    struct sl_index *index = open_index(sl_server_url(server, "/m/pytorch_model.bin"),
                                        SL_INDEX_HEAD_BYTES, true, &store);
    ck_assert_uint_eq(index->tensor_count, wanted.tensors);
    ck_assert_uint_le(sl_server_request_count(server), 2);
    sl_index_free(index);
    sl_store_free(store);
    sl_server_stop(server);
    free(data);
}

SL_CASE(.seconds = 60)
