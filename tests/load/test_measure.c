/* How large a model is, asked without a plan: what counts, and where nothing is asked. */
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "skip.h"

static struct sl_err err;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    err = (struct sl_err)SL_ERR_INIT;
}

static void put(const char *name, size_t bytes)
{
    static const char data[1000];
    ck_assert_uint_le(bytes, sizeof(data));
    ck_assert_int_eq(sl_memory_put(name, data, bytes, NULL), 0);
}

static int measure(const char *uri, const char *more, uint64_t *bytes)
{
    struct sl_specs specs;
    sl_model_spec(&specs, uri, "/t", more);
    int done = sl_load_measure(&specs.items[0], NULL, bytes, &err);
    sl_specs_release(&specs);
    return done;
}

static void expect_bytes(const char *uri, const char *more, uint64_t wanted)
{
    uint64_t bytes = 77;
    ck_assert_msg(measure(uri, more, &bytes) == 0, "%s", err.message);
    ck_assert_uint_eq(bytes, wanted);
}

SL_TEST(objects_that_the_spec_chooses_count)
{
    put("m/a.safetensors", 1000);
    put("m/b.bin", 100);
    put("m/c.txt", 10);
    put("other", 5);
    expect_bytes("memory://m/", "", 1110);
    expect_bytes("memory://m/",
                 "source: {uri: 'memory://m/', include: ['*.safetensors', '*.txt']}\n", 1010);
    expect_bytes("memory://m/", "source: {uri: 'memory://m/', exclude: ['*.bin']}\n", 1010);
    expect_bytes("memory://m/b.bin", "", 100);
}

SL_TEST(what_stands_for_other_objects_tells_nothing)
{
    put("m/model.safetensors.index.json", 10);
    put("m/m-00001-of-00002.gguf", 10);
    expect_bytes("memory://m/model.safetensors.index.json", "", 0);
    expect_bytes("memory://m/m-00001-of-00002.gguf", "", 0);
}

SL_TEST(a_store_that_reads_to_list_is_not_asked)
{
    expect_bytes("oci://127.0.0.1:1/org/model:v1", "", 0); /* nobody answers there */
}

SL_TEST(what_is_not_there_is_an_error)
{
    uint64_t bytes;
    ck_assert_int_eq(measure("memory://m/none", "", &bytes), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_uint_eq(bytes, 0);
    ck_assert_int_eq(measure("http://127.0.0.1:1/m", "", &bytes), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
}

SL_CASE(.setup = setup, .teardown = sl_memory_clear)
