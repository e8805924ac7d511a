/* Conversions from and to web servers: a PUT takes bytes in order only. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "convert_case.h"
#include "memory_store.h"
#include "model_maker.h"
#include "range_server.h"

enum { OBJECTS_MAX = 16 };
static struct sl_server *server;
/* What was PUT; and where a byte of the model changes when a destination is asked for. */
static struct {
    struct {
        char target[4096];
        uint8_t *data;
        size_t bytes;
    } objects[OBJECTS_MAX];
    size_t count;
    uint8_t *flip;
    unsigned asked;
    int status;        /* of PUTs */
    const char *there; /* what exists already */
} dav;

static bool handle(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)arg;
    reply->status = 404;
    if (dav.there && strcmp(request->method, "HEAD") == 0 &&
        strcmp(request->target, dav.there) == 0)
        reply->status = 200;
    if (dav.flip && ++dav.asked == 2) /* once before all, once at its turn */
        *dav.flip ^= 1;
    if (strcmp(request->method, "PUT") != 0)
        return true;
    reply->status = dav.status;
    if (dav.status != 201 || dav.count == OBJECTS_MAX)
        return true;
    snprintf(dav.objects[dav.count].target, sizeof(dav.objects[0].target), "%s", request->target);
    dav.objects[dav.count].data = malloc(request->body_bytes + 1);
    memcpy(dav.objects[dav.count].data, request->body, request->body_bytes);
    dav.objects[dav.count++].bytes = request->body_bytes;
    return true;
}

static void setup(void)
{
    sl_case_setup();
    memset(&dav, 0, sizeof(dav));
    dav.status = 201;
    server = sl_server_start();
    sl_server_handle(server, handle, NULL);
}

static void teardown(void)
{
    sl_server_stop(server);
    for (size_t i = 0; i < dav.count; i++)
        free(dav.objects[i].data);
    sl_case_teardown();
}

static const char *url(const char *path, char text[SL_CASE_PATH_BYTES])
{
    snprintf(text, SL_CASE_PATH_BYTES, "%s", sl_server_url(server, path));
    return text;
}

/* The bytes that the same conversion puts into a file. */
static void expect_like_file(const struct sl_convert_config *config, const char *name,
                             const char *target)
{
    char to[SL_CASE_PATH_BYTES];
    sl_case_expect("memory:model", url(target, to), config, NULL);
    ck_assert_uint_eq(dav.count, 1);
    ck_assert_str_eq(dav.objects[0].target, target);
    sl_case_expect("memory:model", sl_case_path(name, to), config, NULL);
    ck_assert(sl_model_same(sl_case_scratch, name, dav.objects[0].data, dav.objects[0].bytes));
}

SL_TEST(a_put_has_the_bytes_of_a_file)
{
    size_t bytes;
    uint8_t *data = sl_case_model(&bytes);
    struct sl_convert_config config = sl_case_tensorizer;
    config.threads = 4;
    expect_like_file(&config, "m.tensors", "/m.tensors");
    free(data);
}

SL_TEST(safetensors_are_read_once)
{
    size_t bytes;
    uint8_t *data = sl_case_model(&bytes);
    expect_like_file(&sl_case_safetensors, "m.safetensors", "/m.safetensors");
    free(data);
}

SL_TEST(what_is_encrypted_can_be_put)
{
    size_t bytes;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes), key[SL_KEY_BYTES] = {5};
    SL_AUTO(sl_keys) keys = sl_keys_from_key(key, NULL);
    struct sl_convert_config config = sl_case_tensorizer;
    config.seal = keys;
    config.threads = 3;
    sl_case_expect("memory:model", url("/m.tensors", to), &config, NULL);
    ck_assert_uint_eq(dav.count, 1);
    ck_assert_int_eq(sl_memory_put("sealed", dav.objects[0].data, dav.objects[0].bytes, NULL), 0);
    sl_case_same("memory:model", NULL, "memory:sealed", keys);
    free(data);
}

SL_TEST(the_index_of_shards_comes_last)
{
    size_t bytes;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    struct sl_convert_config config = sl_case_safetensors;
    config.shard_bytes = 10000;
    sl_case_expect("memory:model", url("/a%20b/", to), &config, NULL);
    ck_assert_uint_eq(dav.count, 4);
    ck_assert(strstr(dav.objects[0].target, "/a%20b/model-0000"));
    ck_assert_str_eq(dav.objects[3].target, "/a%20b/model.safetensors.index.json");
    free(data);
}

SL_TEST(a_source_that_changes_between_the_readings_is_found)
{
    size_t bytes;
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes), key[SL_KEY_BYTES] = {5};
    SL_AUTO(sl_keys) keys = sl_keys_from_key(key, NULL);
    struct sl_convert_config config = sl_case_tensorizer;
    config.replace = false; /* so that the object is asked for */
    for (unsigned sealed = 0; sealed < 2; sealed++) {
        dav.flip = data + bytes - SL_CASE_SMALL * 20 - 5000;
        dav.asked = 0;
        config.seal = sealed ? keys : NULL;
        ck_assert_int_lt(
            sl_case_convert("memory:model", url("/m.tensors", to), &config, NULL, NULL, &err), 0);
        ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
        ck_assert_str_eq(err.code, "changed");
        ck_assert_msg(strstr(err.message, "big.1") != NULL, "%s", err.message);
        ck_assert_uint_eq(dav.count, 0);
    }
    free(data);
}

/* Of three shards the second is there. */
SL_TEST(what_is_in_the_way_is_told_before_anything_is_read_or_sent)
{
    size_t bytes;
    struct sl_err err;
    struct sl_convert_result result;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    struct sl_convert_config config = sl_case_safetensors;
    config.replace = false;
    config.shard_bytes = 10000;
    dav.there = "/f/model-00002-of-00003.safetensors";
    ck_assert_int_lt(sl_case_convert("memory:model", url("/f/", to), &config, NULL, &result, &err),
                     0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_str_eq(err.code, "exists");
    ck_assert_uint_eq(dav.count, 0);
    free(data);
}

SL_TEST(a_refused_put_is_told)
{
    size_t bytes;
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    struct sl_convert_config config = sl_case_tensorizer;
    dav.status = 403;
    ck_assert_int_lt(
        sl_case_convert("memory:model", url("/m.tensors", to), &config, NULL, NULL, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    free(data);
}

SL_TEST(the_whole_may_take_so_long)
{
    size_t bytes;
    struct sl_err err;
    char from[SL_CASE_PATH_BYTES], to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_model_safetensors("a,b", 200000, &bytes);
    const char *words[] = {"readers.timeoutSeconds=1", NULL};
    SL_SCRIPT(server, {.first = 2, .last = 1000, .fault = SL_FAULT_STALL, .after = 1000});
    sl_server_handle(server, NULL, NULL);
    sl_server_put(server, "/slow", data, bytes, "\"one\"");
    ck_assert_int_lt(sl_case_convert(url("/slow", from), sl_case_path("m.tensors", to),
                                     &sl_case_tensorizer, words, NULL, &err),
                     0);
    ck_assert_int_eq(err.kind, SL_E_TIMEOUT);
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), 0);
    free(data);
}

/* Small tensors that lie together are asked for together. */
SL_TEST(small_tensors_cost_few_requests)
{
    size_t bytes;
    char from[SL_CASE_PATH_BYTES], to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_model_safetensors("a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t", 4096, &bytes);
    struct sl_convert_config config = sl_case_tensorizer;
    config.block_bytes = 0;
    sl_server_handle(server, NULL, NULL);
    sl_server_put(server, "/many", data, bytes, "\"one\"");
    sl_case_expect(url("/many", from), sl_case_path("m.tensors", to), &config, NULL);
    ck_assert_uint_le(sl_server_request_count(server), 3);
    ck_assert_int_eq(sl_memory_put("many", data, bytes, NULL), 0);
    sl_case_same("memory:many", NULL, to, NULL);
    free(data);
}

SL_CASE(.setup = setup, .teardown = teardown)
