/* Loads of a layer of which a byte comes wrong: from a mirror or from everywhere, in the pass that
 * hashes the layer or in the one that reads its files. None is published; what the registry has
 * right is loaded. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "claims.h"
#include "hash.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"
#include "tar_maker.h"

enum { FILE_BYTES = 3000000, GZIP, ZSTD, PLAIN, PACKINGS = 2, PASSES = 2 };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *registry, *mirror;
static uint8_t *file, *layer;
static size_t layer_bytes, last_header;
static char blob[128];
static bool spoils_tar;
static struct sl_err err;
static struct sl_load_result result;

/* From its nth answer with this byte on a server sends it wrong; 0: never. */
struct liar {
    uint64_t at;
    unsigned from, most; /* so many times; 0: always */
    unsigned answers, lies;
};
static struct liar liars[2]; /* the registry's, the mirror's; under their servers' locks */

static bool lie(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    struct liar *liar = arg;
    uint64_t begin, end;
    const char *query = strchr(request->target, '?');
    size_t bytes = query ? (size_t)(query - request->target) : strlen(request->target);
    if (bytes != strlen(blob) || strncmp(request->target, blob, bytes) != 0 ||
        !sl_server_range(request, layer_bytes, &begin, &end))
        return false;
    if (liar->at < begin || liar->at >= end || !liar->from || ++liar->answers < liar->from ||
        (liar->most && liar->lies == liar->most))
        return false;
    liar->lies++;
    sl_server_reply_range(reply, layer, begin, end, layer_bytes, "\"b\"");
    reply->body[liar->at - begin] ^= 4;
    return true;
}

static void pack(int packing, const struct sl_buf *tar)
{
    if (packing == GZIP) {
        layer = tar_gzip(tar->data, tar->used, &layer_bytes);
        return;
    }
    if (packing == PLAIN) {
        layer = memcpy(malloc(tar->used), tar->data, tar->used);
        layer_bytes = tar->used;
        return;
    }
    size_t room = ZSTD_compressBound(tar->used);
    layer = malloc(room);
    layer_bytes = ZSTD_compress(layer, room, tar->data, tar->used, 1);
    ck_assert(!ZSTD_isError(layer_bytes));
}

static void put_layer(int packing)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    char hex[65], manifest[400];
    sl_autobuf tar = SL_BUF_INIT(2 * FILE_BYTES);
    tar_entry(&tar, '0', "models/m.bin", NULL, file, FILE_BYTES);
    tar_entry(&tar, '0', "models/last", NULL, "last", 4);
    last_header = tar.used - 1024;
    tar_end(&tar);
    tar.data[last_header + 3] ^= spoils_tar;
    pack(packing, &tar);
    sl_digest_of(SL_HASH_SHA256, NULL, 0, layer, layer_bytes, digest, NULL);
    sl_hex(digest, 32, hex);
    snprintf(blob, sizeof(blob), "/v2/org/m/blobs/sha256:%s", hex);
    snprintf(manifest, sizeof(manifest),
             "{\"layers\":[{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\","
             "\"size\":%zu,\"digest\":\"sha256:%s\"}]}",
             layer_bytes, hex);
    sl_server_put(registry, "/v2/org/m/manifests/v1", manifest, strlen(manifest), "\"m\"");
    sl_server_put(registry, blob, layer, layer_bytes, "\"b\"");
    sl_server_put(mirror, blob, layer, layer_bytes, "\"b\"");
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    setenv("HOME", "/nonexistent", 1);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    memset(liars, 0, sizeof(liars));
    registry = sl_server_start();
    mirror = sl_server_start();
    sl_server_handle(registry, lie, &liars[0]);
    sl_server_handle(mirror, lie, &liars[1]);
    file = sl_model_noise(FILE_BYTES, 3);
    for (size_t i = 0; i < FILE_BYTES; i++)
        file[i] &= 0x1f; /* so that there is something to pack */
}

static void teardown(void)
{
    sl_server_stop(registry);
    sl_server_stop(mirror);
    sl_scratch_close(scratch_fd, scratch);
    free(sl_steal(&file));
    free(sl_steal(&layer));
}

static const char *more = ""; /* of the spec */

static int load_with(const char *options)
{
    struct sl_specs specs;
    char text[500];
    snprintf(text, sizeof(text), "source: {uri: \"oci://127.0.0.1:%u/org/m:v1\", oci: {%s}}\n%s",
             sl_server_port(registry), options, more);
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, text);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    ck_assert(done < 0 || sl_model_same(path, "m.bin", file, FILE_BYTES));
    return done;
}

static int load(bool mirrored)
{
    char mirrors[64] = "";
    if (mirrored)
        snprintf(mirrors, sizeof(mirrors), "mirrors: [\"127.0.0.1:%u\"]", sl_server_port(mirror));
    return load_with(mirrors);
}

/* Packing and pass. */
SL_TEST_LOOP(a_wrong_byte_of_a_packed_layer_is_never_published, 0, PACKINGS *PASSES)
{
    put_layer(GZIP + _i % PACKINGS);
    liars[0] = (struct liar){.at = layer_bytes / 2, .from = 1 + (unsigned)_i / PACKINGS};
    ck_assert_int_eq(load(false), -1);
    ck_assert_uint_ge(liars[0].lies, 1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY, "%d: %s", err.kind, err.message);
    ck_assert(!sl_model_exists(path, "m.bin") && !sl_model_exists(path, ".sluice/ready"));
}

/* ---- headers of tars ------------------------------------------------------------------------- */

enum { HEADER_PLACES = 4, CHECKED = 2 };

/* Of a layer that is checked before its files are read, and of one that is too large for that. */
static const char *check_up_to(int number)
{
    return number % CHECKED ? "checkLayersUpTo: 1Ki" : "";
}

/* A name, a checksum, the header behind the data, the mark of the end. */
static uint64_t header_place(int number)
{
    const uint64_t places[HEADER_PLACES] = {3, 150, last_header + 3, last_header + 1024};
    return places[number / CHECKED];
}

/* Nobody is to look for a mistake of whoever made the image. */
SL_TEST_LOOP(a_wrong_byte_of_a_tars_header_is_told_from_a_wrong_tar, 0, HEADER_PLACES *CHECKED)
{
    put_layer(PLAIN);
    liars[0] = (struct liar){.at = header_place(_i), .from = 1};
    ck_assert_int_eq(load_with(check_up_to(_i)), -1);
    ck_assert_uint_ge(liars[0].lies, 1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, "its bytes are sha256:"),
                  "%d: %s", err.kind, err.message);
    ck_assert(!sl_model_exists(path, "m.bin") && !sl_model_exists(path, ".sluice/ready"));
}

SL_TEST_LOOP(a_wrong_tar_is_one_whatever_its_size, 0, CHECKED)
{
    spoils_tar = true;
    put_layer(PLAIN);
    spoils_tar = false;
    ck_assert_int_eq(load_with(check_up_to(_i)), -1);
    ck_assert_msg(err.kind == SL_E_FORMAT && strstr(err.message, "checksum is wrong"), "%d: %s",
                  err.kind, err.message);
}

/* Where the digest is not asked for before: it is then, and what agrees with it is loaded. */
SL_TEST(a_header_that_comes_wrong_once_is_read_again)
{
    put_layer(PLAIN);
    liars[0] = (struct liar){.at = last_header + 3, .from = 1, .most = 1};
    ck_assert_msg(load_with(check_up_to(1)) == 0, "%s", err.message);
    ck_assert_uint_eq(liars[0].lies, 1);
    ck_assert(sl_model_same(path, "last", (const uint8_t *)"last", 4));
}

/* ---- without hashes -------------------------------------------------------------------------- */

/* What the refusal of bytes without a hash says is what helps. */
SL_TEST(a_layer_that_is_not_checked_has_hashes_where_the_option_says_so)
{
    put_layer(PLAIN);
    more = "verify: {hashes: require}\n";
    int large = load_with(check_up_to(1));
    const struct sl_err why = err;
    int small = load_with("checkLayersUpTo: 1Gi");
    more = "";
    ck_assert_int_eq(large, -1);
    ck_assert_msg(why.kind == SL_E_INTEGRITY && strstr(why.message, "source.oci.checkLayersUpTo"),
                  "%s", why.message);
    ck_assert_msg(small == 0, "%s", err.message);
    ck_assert_uint_eq(result.unhashed, 0);
}

/* ---- mirrors --------------------------------------------------------------------------------- */

SL_TEST_LOOP(a_wrong_byte_of_a_mirror_in_a_packed_layer_is_read_from_the_registry, 0,
             PACKINGS *PASSES)
{
    put_layer(GZIP + _i % PACKINGS);
    liars[1] = (struct liar){.at = layer_bytes / 2, .from = 1 + (unsigned)_i / PACKINGS};
    ck_assert_msg(load(true) == 0, "%s", err.message);
    ck_assert_uint_ge(liars[1].lies, 1);
}

/* ---- caches ---------------------------------------------------------------------------------- */

static int load_through(const char *options)
{
    struct sl_specs specs;
    char text[600];
    snprintf(text, sizeof(text),
             "source: {uri: \"oci://127.0.0.1:%u/org/m:v1\", oci: {%s}, through: {caches: "
             "[\"http://127.0.0.1:%u\"], blockBytes: 64Ki}}\n",
             sl_server_port(registry), options, sl_server_port(mirror));
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, text);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    ck_assert(done < 0 || sl_model_same(path, "m.bin", file, FILE_BYTES));
    return done;
}

/* The digest is of all of it: nobody knows whose byte it was. _i: the packing, a good cache or a
 * bad one. */
SL_TEST_LOOP(a_wrong_byte_of_a_cache_in_a_layer_is_read_from_the_registry, 0, 2 * (PACKINGS + 1))
{
    put_layer(GZIP + _i / 2);
    if (_i % 2)
        liars[1] = (struct liar){.at = layer_bytes / 2, .from = 1};
    ck_assert_msg(load_through("") == 0, "%s", err.message);
    ck_assert_uint_gt(sl_server_request_count(mirror), 0);
    ck_assert_int_eq(liars[1].lies > 0, _i % 2);
}

SL_TEST(a_layer_without_hashes_is_refused_with_what_gives_it_some)
{
    put_layer(PLAIN);
    ck_assert_int_eq(load_through(check_up_to(1)), -1);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "source.through") &&
                      strstr(err.message, "raise source.oci.checkLayersUpTo"),
                  "%s", err.message);
}

SL_CASE(.setup = setup, .teardown = teardown)
