/* A signed model from a server that sends wrong bytes when told to, for tests of what sidecars
 * find. */
#ifndef SL_SIGNED_MODEL_H
#define SL_SIGNED_MODEL_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "hash.h"
#include "model_maker.h"
#include "range_server.h"
#include "sidecar.h"
#include "thread.h"

enum { RANGE = 64 * 1024, MODEL_MAX = 4 * 1024 * 1024 };
static const char ETAG[] = "\"v1\"";

static struct sl_server *server;
static uint8_t *data; /* the model, as it should be */
static size_t bytes;
static struct sl_err err;

static pthread_mutex_t flip_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t flip_at; /* one bit, wrong in the next flip_times answers that hold it */
static unsigned flip_times;

static void flip(uint64_t at, unsigned times)
{
    SL_LOCKED(&flip_lock);
    flip_at = at;
    flip_times = times;
}

static bool flip_bit(const struct sl_server_request *request, struct sl_server_reply *reply,
                     void *arg)
{
    uint64_t begin, end;
    (void)arg;
    if (strcmp(request->target, "/m.safetensors") != 0 ||
        !sl_server_range(request, bytes, &begin, &end))
        return false;
    SL_LOCKED(&flip_lock);
    if (!flip_times || flip_at < begin || flip_at >= end)
        return false;
    flip_times--;
    sl_server_reply_range(reply, data, begin, end, bytes, ETAG);
    reply->body[flip_at - begin] ^= 4;
    return true;
}

static struct sl_sidecar *make_sidecar_of(const char *name, const uint8_t *of, size_t count)
{
    struct sl_sidecar *sidecar = sl_sidecar_new(name, count, RANGE, &err);
    for (size_t i = 0; i < sidecar->range_count; i++) {
        uint64_t begin = i * RANGE, end = sl_sidecar_range_end(sidecar, i);
        sidecar->ranges[i].crc32c = sl_crc32c(0, of + begin, (size_t)(end - begin));
        struct sl_sha256 *one = sl_sha256_new(&err);
        sl_sha256_update(one, of + begin, (size_t)(end - begin));
        sl_sha256_finish(one, sidecar->ranges[i].sha256);
        sl_sha256_free(one);
    }
    sl_sidecar_tree(sidecar, sidecar->tree);
    return sidecar;
}

static inline struct sl_sidecar *make_sidecar(const uint8_t *of)
{
    return make_sidecar_of("m.safetensors", of, bytes);
}

static void put_sidecar_of(const char *name, const uint8_t *of, size_t count)
{
    char target[256];
    sl_autobuf text = SL_BUF_INIT(1024 * 1024);
    struct sl_sidecar *sidecar = make_sidecar_of(name, of, count);
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    snprintf(target, sizeof(target), "/%s.sluice.json", name);
    sl_server_put(server, target, text.data, text.used, "\"s\"");
    sl_sidecar_free(sidecar);
}

/* Of these bytes, which need not be those that are served. */
static void put_sidecar(const uint8_t *of)
{
    put_sidecar_of("m.safetensors", of, bytes);
}

/* Serve a model of F32 vectors with its sidecar. */
static void put_model(const char *names, unsigned items)
{
    free(data);
    data = sl_model_safetensors(names, items, &bytes);
    ck_assert_uint_le(bytes, MODEL_MAX);
    sl_server_put(server, "/m.safetensors", data, bytes, ETAG);
    put_sidecar(data);
}

#endif
