/* What does not depend on each other is asked for at the same time: no answer comes before all
 * questions have. So far from a store a model of many shards costs a few round trips. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "hash.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"
#include "sidecar.h"

enum { SHARDS = 24, RANGE = 64 * 1024 };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static struct sl_err err;
static size_t bytes[SHARDS], sidecar_bytes[SHARDS];

static bool answer_listing(const struct sl_server_request *request, struct sl_server_reply *reply,
                           void *arg)
{
    (void)arg;
    if (!strstr(request->target, "list-type=2"))
        return false;
    sl_autobuf text = SL_BUF_INIT(65536);
    sl_buf_text(&text, "<ListBucketResult><IsTruncated>false</IsTruncated>", NULL);
    for (unsigned i = 0; i < SHARDS; i++)
        sl_buf_printf(&text, NULL,
                      "<Contents><Key>m/model-%u.safetensors</Key><Size>%zu</Size></Contents>"
                      "<Contents><Key>m/model-%u.safetensors.sluice.json</Key><Size>%zu</Size>"
                      "</Contents>",
                      i, bytes[i], i, sidecar_bytes[i]);
    sl_buf_text(&text, "</ListBucketResult>", NULL);
    reply->status = 200;
    reply->body_bytes = text.used;
    reply->body = sl_buf_steal(&text, NULL);
    return true;
}

static void put_sidecar(unsigned i, const char *name, const uint8_t *data)
{
    char place[96];
    sl_autobuf text = SL_BUF_INIT(65536);
    struct sl_sidecar *sidecar = sl_sidecar_new(name, bytes[i], RANGE, &err);
    ck_assert_uint_eq(sidecar->range_count, 1);
    sidecar->ranges[0].crc32c = sl_crc32c(0, data, bytes[i]);
    struct sl_sha256 *sha = sl_sha256_new(&err);
    sl_sha256_update(sha, data, bytes[i]);
    sl_sha256_finish(sha, sidecar->ranges[0].sha256);
    sl_sha256_free(sha);
    sl_sidecar_tree(sidecar, sidecar->tree);
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    sl_sidecar_free(sidecar);
    snprintf(place, sizeof(place), "/bucket/m/%s.sluice.json", name);
    sl_server_put(server, place, text.data, text.used, "\"s\"");
    sidecar_bytes[i] = text.used;
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    server = sl_server_start();
    for (unsigned i = 0; i < SHARDS; i++) {
        char name[40], place[64], tensor[16];
        snprintf(tensor, sizeof(tensor), "t%u", i);
        snprintf(name, sizeof(name), "model-%u.safetensors", i);
        snprintf(place, sizeof(place), "/bucket/m/%s", name);
        uint8_t *data = sl_model_safetensors(tensor, 5000, &bytes[i]);
        sl_server_put(server, place, data, bytes[i], "\"v\"");
        put_sidecar(i, name, data);
        free(data);
    }
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
}

SL_CASE(.setup = setup, .teardown = teardown)

/* Of the requests from this one on, `count` are answered in the opposite order: the first when all
 * others have been. */
static void answer_backwards(unsigned first, unsigned count)
{
    struct sl_step steps[2 * SHARDS];
    ck_assert_uint_le(count, 2 * SHARDS);
    for (unsigned i = 0; i < count; i++)
        steps[i] = (struct sl_step){.first = first + i,
                                    .last = first + i,
                                    .fault = SL_FAULT_BEHIND,
                                    .others = count - 1 - i};
    sl_server_script(server, steps, count);
}

static void load(const char *spec, struct sl_load_result *result)
{
    struct sl_specs specs;
    sl_model_spec(&specs, "", path, spec);
    int done = sl_load_run(&specs.items[0], NULL, NULL, result, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    sl_specs_release(&specs);
}

SL_TEST(shards_and_their_sidecars_are_opened_in_one_round_trip)
{
    struct sl_load_result result;
    char spec[400];
    sl_server_handle(server, answer_listing, NULL);
    answer_backwards(2, 2 * SHARDS);
    snprintf(spec, sizeof(spec),
             "source: {uri: \"s3://bucket/m/\", s3: {endpoint: \"%s\", region: r, addressing: "
             "path, anonymous: true}}\n",
             sl_server_url(server, ""));
    load(spec, &result);
    ck_assert_uint_eq(result.files, SHARDS);
    ck_assert_uint_eq(result.sidecars, SHARDS);
    ck_assert_uint_eq(result.index_requests, 1 + 2 * SHARDS);
}

SL_TEST(shards_that_an_index_names_are_opened_in_one_round_trip)
{
    struct sl_load_result result;
    char spec[200];
    sl_autobuf text = SL_BUF_INIT(65536);
    sl_buf_text(&text, "{\"weight_map\": {", NULL);
    for (unsigned i = 0; i < SHARDS; i++)
        sl_buf_printf(&text, NULL, "%s\"t%u\": \"model-%u.safetensors\"", i ? ", " : "", i, i);
    sl_buf_text(&text, "}}", NULL);
    sl_server_put(server, "/bucket/m/model.safetensors.index.json", text.data, text.used, "\"i\"");
    answer_backwards(2, SHARDS);
    snprintf(spec, sizeof(spec), "source: {uri: \"%s\"}\n",
             sl_server_url(server, "/bucket/m/model.safetensors.index.json"));
    load(spec, &result);
    ck_assert_uint_eq(result.tensors, SHARDS);
    ck_assert_uint_eq(result.index_requests, 1 + SHARDS);
}
