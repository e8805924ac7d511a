/* Layers that gzip or zstd has packed, and registries that know no ranges: read in order. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "claims.h"
#include "fake_clock.h"
#include "hash.h"
#include "http_case.h"
#include "oci_options.h"
#include "oci_store.h"
#include "packed_stream.h"
#include "store_kind.h"
#include "stores.h"
#include "tar_maker.h"

enum { READ_BYTES = 1000 };

static struct sl_server *registry;
static struct sl_source_config config;
static struct sl_oci_options options;
static char model[80], blob[128], manifest[1024];
static struct sl_buf tar, layer; /* as it is, and as it is packed */

static void setup(void)
{
    static char folder[] = "models";
    registry = sl_server_start();
    snprintf(model, sizeof(model), "oci://127.0.0.1:%u/org/m:v1/m.bin", sl_server_port(registry));
    setenv("HOME", "/nonexistent", 1);
    options = (struct sl_oci_options){.image_folder = folder};
    config = (struct sl_source_config){.attempts = 3, .stall_seconds = 20, .hedge = SL_HEDGE_OFF};
    config.options[0] = (struct sl_store_options){&sl_oci_table, &options};
    tar = (struct sl_buf)SL_BUF_INIT(4 * SL_BLOB_BYTES);
    layer = (struct sl_buf)SL_BUF_INIT(4 * SL_BLOB_BYTES);
}

static void teardown(void)
{
    sl_server_stop(registry);
    sl_buf_release(&tar);
    sl_buf_release(&layer);
}

/* The registry's blob, and a manifest with it and what else is said of it. */
static void put(const void *data, size_t bytes, const char *type, const char *more)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    char hex[65];
    sl_digest_of(SL_HASH_SHA256, NULL, 0, data, bytes, digest, NULL);
    sl_hex(digest, 32, hex);
    snprintf(blob, sizeof(blob), "/v2/org/m/blobs/sha256:%s", hex);
    snprintf(manifest, sizeof(manifest),
             "{\"layers\":[{\"mediaType\":\"%s\",\"size\":%zu,\"digest\":\"sha256:%s\"%s}]}", type,
             bytes, hex, more);
    sl_server_put(registry, "/v2/org/m/manifests/v1", manifest, strlen(manifest), "\"m\"");
    sl_server_put(registry, blob, data, bytes, "\"b\"");
}

static void pack(enum sl_packing packing, const void *data, size_t bytes)
{
    size_t room = ZSTD_compressBound(bytes), packed = 0;
    sl_autofree uint8_t *out =
        packing == SL_PACKING_GZIP ? tar_gzip(data, bytes, &packed) : malloc(room);
    if (packing == SL_PACKING_ZSTD)
        packed = ZSTD_compress(out, room, data, bytes, 1);
    ck_assert(!ZSTD_isError(packed));
    ck_assert_int_eq(sl_buf_append(&layer, out, packed, NULL), 0);
}

static const enum sl_packing packings[] = {SL_PACKING_GZIP, SL_PACKING_ZSTD};

/* An image whose layer is packed so; its media type says nothing of it. */
static void make_car(enum sl_packing packing)
{
    tar.used = layer.used = 0;
    tar_entry(&tar, '0', "bin/sh", NULL, sl_blob(), SL_BLOB_BYTES);
    tar_entry(&tar, '0', "models/first", NULL, "first", 5);
    tar_entry(&tar, '0', "models/m.bin", NULL, sl_blob(), SL_BLOB_BYTES);
    tar_entry(&tar, '2', "models/link", "m.bin", NULL, 0);
    tar_end(&tar);
    pack(packing, tar.data, tar.used);
    put(layer.data, layer.used, "application/vnd.oci.image.layer.v1.tar", "");
}

struct opened {
    struct sl_store *store;
    struct sl_source *source;
};

static int open_model(struct opened *opened, struct sl_err *err)
{
    sl_autofree char *key = NULL;
    *opened = (struct opened){NULL};
    *err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_store_open(model, &config, &opened->store, &key, err), 0);
    return sl_source_open(opened->store, key, 10, &opened->source, err);
}

static void close_model(struct opened *opened)
{
    sl_source_free(opened->source);
    sl_store_free(opened->store);
}

static int read_at(struct opened *opened, uint64_t offset, struct sl_err *err)
{
    uint8_t data[READ_BYTES];
    *err = (struct sl_err)SL_ERR_INIT;
    if (sl_source_read_past(opened->source, offset, data, sizeof(data), err) < 0)
        return -1;
    ck_assert_mem_eq(data, sl_blob() + offset, sizeof(data));
    return 0;
}

/* Onwards, back, the last bytes, the first. */
static void read_about(struct opened *opened)
{
    static const uint64_t places[] = {
        5000, 6000, 300, SL_BLOB_BYTES / 2, SL_BLOB_BYTES - READ_BYTES, SL_BLOB_BYTES / 3, 0};
    struct sl_err err;
    for (size_t i = 0; i < SL_COUNT(places); i++)
        ck_assert_msg(read_at(opened, places[i], &err) == 0, "%s", err.message);
}

/* ---- packed layers --------------------------------------------------------------------------- */

SL_TEST_LOOP(a_file_of_a_packed_layer_is_read_anywhere, 0, 2)
{
    struct sl_err err;
    struct opened opened;
    uint8_t digest[SL_HASH_BYTES_MAX];
    make_car(packings[_i]);
    ck_assert_msg(open_model(&opened, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_source_bytes(opened.source), SL_BLOB_BYTES);
    const struct sl_checksums *told = sl_source_known_checksums(opened.source);
    sl_digest_of(SL_HASH_SHA256, NULL, 0, sl_blob(), SL_BLOB_BYTES, digest, NULL);
    ck_assert(told && told->count == 1);
    ck_assert_mem_eq(told->items[0].value, digest, 32);
    read_about(&opened);
    close_model(&opened);
}

/* The heads of files are kept: whoever opens many of them would else begin anew for each. */
SL_TEST_LOOP(opening_a_file_of_a_packed_layer_asks_for_nothing, 0, 2)
{
    struct sl_err err;
    struct opened opened;
    uint8_t head[READ_BYTES];
    make_car(packings[_i]);
    ck_assert_msg(open_model(&opened, &err) == 0, "%s", err.message);
    unsigned before = sl_server_request_count(registry);
    struct sl_source *again = NULL;
    ck_assert_int_eq(sl_source_open(opened.store, "m.bin", READ_BYTES, &again, &err), 0);
    ck_assert_int_eq(sl_source_read(again, 0, head, sizeof(head), &err), 0);
    ck_assert_mem_eq(head, sl_blob(), sizeof(head));
    ck_assert_uint_eq(sl_server_request_count(registry), before);
    sl_source_free(again);
    close_model(&opened);
}

/* A reader makes a source of what an earlier one told, in another process perhaps, where nobody
 * knows the layer's points. */
SL_TEST_LOOP(a_file_of_a_packed_layer_is_known_by_its_pin, 0, 2)
{
    struct sl_err err;
    struct opened opened, other = {NULL};
    sl_autofree char *key = NULL;
    make_car(packings[_i]);
    ck_assert_msg(open_model(&opened, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_store_open(model, &config, &other.store, &key, &err), 0);
    ck_assert_int_eq(sl_source_known(other.store, "m.bin", SL_BLOB_BYTES,
                                     sl_source_version(opened.source), &other.source, &err),
                     0);
    read_about(&other);
    close_model(&other);
    close_model(&opened);
}

static const enum sl_fault passing[] = {SL_FAULT_RESET, SL_FAULT_SHORT, SL_FAULT_DROP_AFTER};

SL_TEST_LOOP(a_packed_layer_that_breaks_off_is_taken_up_again, 0, 2 * (int)SL_COUNT(passing))
{
    struct sl_err err;
    struct opened opened;
    make_car(packings[_i % 2]);
    fake_clock_run();
    SL_SCRIPT(registry, {.first = 3, .fault = passing[_i / 2], .after = 5000});
    ck_assert_msg(open_model(&opened, &err) == 0, "%s", err.message);
    unsigned before = sl_server_request_count(registry);
    SL_SCRIPT(registry, {.first = before + 1, .fault = passing[_i / 2], .after = 5000});
    read_about(&opened);
    close_model(&opened);
}

static int open_wrong(struct sl_err *err)
{
    struct opened opened;
    int result = open_model(&opened, err);
    close_model(&opened);
    return result;
}

SL_TEST_LOOP(a_packed_layer_that_is_cut_off_is_refused, 0, 2)
{
    struct sl_err err;
    make_car(packings[_i]);
    for (size_t bytes = layer.used; bytes > 0; bytes -= SL_MIN(bytes, layer.used / 7 + 1)) {
        put(layer.data, bytes - 1, "application/vnd.oci.image.layer.v1.tar+gzip", "");
        ck_assert_msg(open_wrong(&err) < 0, "%zu bytes", bytes - 1);
        ck_assert_msg(err.kind == SL_E_FORMAT || err.kind == SL_E_NOT_FOUND, "%d: %s", err.kind,
                      err.message);
    }
}

/* A byte behind the end of gzip is padding: only the digest tells. */
SL_TEST(a_packed_layer_is_held_to_its_digest)
{
    struct sl_err err;
    make_car(SL_PACKING_GZIP);
    ck_assert_int_eq(sl_buf_append(&layer, "\0\0", 2, NULL), 0);
    put(layer.data, layer.used - 1, "application/vnd.oci.image.layer.v1.tar+gzip", "");
    ck_assert_int_eq(open_wrong(&err), 0);
    layer.data[4] ^= 1; /* its time of day: nothing that unpacking looks at */
    sl_server_put(registry, blob, layer.data, layer.used - 1, "\"b\"");
    ck_assert_int_eq(open_wrong(&err), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, "its bytes are sha256:"), "%s",
                  err.message);
}

SL_TEST(what_unpacks_to_far_too_much_is_refused)
{
    struct sl_err err;
    enum { ZEROS = 70 * 1024 * 1024 };
    sl_autofree uint8_t *zeros = calloc(1, ZEROS);
    sl_autobuf large = SL_BUF_INIT(ZEROS + 4096);
    tar_entry(&large, '0', "etc/zeros", NULL, zeros, ZEROS);
    tar_end(&large);
    pack(SL_PACKING_ZSTD, large.data, large.used);
    put(layer.data, layer.used, "application/vnd.oci.image.layer.v1.tar+zstd", "");
    ck_assert_int_eq(open_wrong(&err), -1);
    ck_assert_msg(err.kind == SL_E_FORMAT && strcmp(err.code, "archive.ratio") == 0, "%s",
                  err.message);
}

/* The same layer so many times: what does not pack, then zeros, and that again. */
static void put_many(unsigned count, unsigned parts, size_t noise, size_t zeros,
                     struct sl_buf *text)
{
    char one[256];
    size_t bytes = parts * (noise + zeros);
    sl_autofree uint8_t *file = calloc(1, bytes);
    sl_autobuf large = SL_BUF_INIT(bytes + 4096);
    ck_assert_uint_le(parts * noise, SL_BLOB_BYTES);
    for (size_t i = 0; i < parts; i++)
        memcpy(file + i * (noise + zeros), sl_blob() + i * noise, noise);
    tar_entry(&large, '0', "models/m.bin", NULL, file, bytes);
    tar_end(&large);
    pack(SL_PACKING_GZIP, large.data, large.used);
    put(layer.data, layer.used, "application/vnd.oci.image.layer.v1.tar+gzip", "");
    snprintf(one, sizeof(one), "%.*s", (int)(strlen(manifest) - strlen("{\"layers\":[]}")),
             manifest + strlen("{\"layers\":["));
    ck_assert_int_eq(sl_buf_text(text, "{\"layers\":[", NULL), 0);
    for (unsigned i = 0; i < count; i++)
        ck_assert_int_eq(sl_buf_printf(text, NULL, "%s%s", i ? "," : "", one), 0);
    ck_assert_int_eq(sl_buf_text(text, "]}", NULL), 0);
    sl_server_put(registry, "/v2/org/m/manifests/v1", text->data, text->used, "\"m\"");
}

/* What is free for one layer is free once. */
SL_TEST_LOOP(what_layers_unpack_to_together_is_limited, 1, 3)
{
    struct sl_err err;
    sl_autobuf text = SL_BUF_INIT(4096);
    put_many((unsigned)_i, 1, 1, 40 << 20, &text);
    ck_assert_int_eq(open_wrong(&err), _i == 1 ? 0 : -1);
    ck_assert_str_eq(err.code, _i == 1 ? "" : "archive.ratio");
}

/* A point takes 32 KiB. */
SL_TEST(many_small_layers_have_few_points)
{
    enum { LAYERS = 150, POINTS = 4, ALL = 256 };
    struct sl_err err;
    struct opened opened;
    size_t points = 0;
    sl_autobuf text = SL_BUF_INIT(64 << 10);
    put_many(LAYERS, 5, 64 << 10, 1 << 20, &text);
    ck_assert_msg(open_model(&opened, &err) == 0, "%s", err.message);
    const struct sl_oci *oci = opened.store->impl;
    ck_assert_uint_eq(oci->locked.manifest.layer_count, LAYERS);
    ck_assert_uint_gt(oci->locked.manifest.layers[0].point_count, 1);
    ck_assert_uint_le(oci->locked.manifest.layers[0].point_count, POINTS);
    for (size_t i = 0; i < LAYERS; i++)
        points += oci->locked.manifest.layers[i].point_count;
    ck_assert_uint_le(points, ALL);
    ck_assert_uint_eq(oci->locked.manifest.layers[LAYERS - 1].point_count, 0);
    ck_assert_int_eq(read_at(&opened, 300, &err), 0);
    close_model(&opened);
}

SL_TEST(what_else_a_layer_is_packed_by_is_refused)
{
    struct sl_err err;
    put("BZh91AY&SY........", 18, "application/vnd.oci.image.layer.v1.tar", "");
    ck_assert_int_eq(open_wrong(&err), -1);
    ck_assert_msg(err.kind == SL_E_FORMAT && strstr(err.message, "packed by bzip2"), "%s",
                  err.message);
}

/* The registry's bytes changed after the layer was checked. */
SL_TEST(what_does_not_unpack_any_more_is_an_error)
{
    struct sl_err err;
    struct opened opened;
    make_car(SL_PACKING_GZIP);
    ck_assert_msg(open_model(&opened, &err) == 0, "%s", err.message);
    memset(layer.data + layer.used / 2, 0xff, layer.used / 2);
    sl_server_put(registry, blob, layer.data, layer.used, "\"b\"");
    ck_assert_int_eq(read_at(&opened, SL_BLOB_BYTES - READ_BYTES, &err), -1);
    ck_assert_msg(strstr(err.message, "is not what it was"), "%s", err.message);
    close_model(&opened);
}

/* ---- registries without ranges --------------------------------------------------------------- */

static void make_plain(bool in_tar)
{
    tar_entry(&tar, '0', "models/m.bin", NULL, sl_blob(), SL_BLOB_BYTES);
    tar_end(&tar);
    if (in_tar)
        put(tar.data, tar.used, "application/vnd.oci.image.layer.v1.tar", "");
    else
        put(sl_blob(), SL_BLOB_BYTES, "x",
            ",\"annotations\":{\"org.opencontainers.image.title\":\"m.bin\"}");
}

SL_TEST_LOOP(a_registry_without_ranges_is_read_in_order, 0, 2)
{
    struct sl_err err;
    struct opened opened;
    make_plain(_i == 1);
    SL_SCRIPT(registry, {.first = 2, .last = 999, .fault = SL_FAULT_WHOLE});
    ck_assert_msg(open_model(&opened, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_source_bytes(opened.source), SL_BLOB_BYTES);
    ck_assert(sl_store_advice(opened.store).in_order);
    read_about(&opened);
    close_model(&opened);
}

/* Nothing is asked for twice that comes in order. */
SL_TEST(without_ranges_one_answer_brings_all)
{
    struct sl_err err;
    struct opened opened;
    make_plain(false);
    SL_SCRIPT(registry, {.first = 2, .last = 999, .fault = SL_FAULT_WHOLE});
    ck_assert_msg(open_model(&opened, &err) == 0, "%s", err.message);
    ck_assert_int_eq(read_at(&opened, 100, &err), 0);
    unsigned before = sl_server_request_count(registry);
    for (uint64_t at = 2000; at + READ_BYTES < SL_BLOB_BYTES; at += 40000)
        ck_assert_msg(read_at(&opened, at, &err) == 0, "%s", err.message);
    ck_assert_uint_le(sl_server_request_count(registry), before + 1);
    close_model(&opened);
}

SL_TEST(a_store_with_ranges_is_not_read_in_order)
{
    struct sl_err err;
    struct opened opened;
    make_plain(true);
    ck_assert_msg(open_model(&opened, &err) == 0, "%s", err.message);
    ck_assert(!sl_store_advice(opened.store).in_order);
    close_model(&opened);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
