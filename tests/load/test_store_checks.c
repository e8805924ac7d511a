/* Checksums that an S3 store keeps of whole objects: used where they can be, passed over else. */
#include <check.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "crc64.h"
#include "hash.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"

enum { BYTES = 1500 * 1000 };
static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static uint8_t *data;
static char answer[1024]; /* more headers of a HEAD */
static int status;
static unsigned heads;
static struct sl_err err;
static struct sl_load_result result;

static bool answer_head(const struct sl_server_request *request, struct sl_server_reply *reply,
                        void *arg)
{
    char mode[32];
    (void)arg;
    if (strcmp(request->method, "HEAD") != 0)
        return false;
    heads++;
    ck_assert(sl_server_header(request, "x-amz-checksum-mode", mode, sizeof(mode)));
    ck_assert_str_eq(mode, "ENABLED");
    reply->status = status;
    snprintf(reply->headers, sizeof(reply->headers), "%s", answer);
    return true;
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    server = sl_server_start();
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, ""), 1);
    setenv("AWS_ACCESS_KEY_ID", "k", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    data = sl_model_noise(BYTES, 6);
    sl_server_put(server, "/bucket/m.bin", data, BYTES, "\"v1\"");
    sl_server_handle(server, answer_head, NULL);
    status = 200;
    heads = 0;
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    free(data);
}

/* "Name: base64\r\n" of the hash of all bytes, xor'ed with `flip`. */
static const char *sum(enum sl_hash_kind kind, uint8_t flip)
{
    static char lines[8][160];
    static unsigned number;
    uint8_t digest[SL_HASH_BYTES_MAX];
    char base64[128];
    if (sl_hash_is_ordered(kind)) {
        struct sl_hasher *hasher = sl_hasher_new(kind, &err);
        sl_hasher_update(hasher, data, BYTES);
        sl_hasher_finish(hasher, digest);
        sl_hasher_free(hasher);
    } else {
        sl_crc_digest(kind, sl_crc_of(kind, 0, data, BYTES), digest);
    }
    digest[1] ^= flip;
    EVP_EncodeBlock((unsigned char *)base64, digest, (int)sl_hash_bytes(kind));
    char *line = lines[number++ % 8];
    snprintf(line, 160, "x-amz-checksum-%s: %s\r\n", sl_hash_name(kind), base64);
    return line;
}

static void say(const char *etag, const char *type, const char *a, const char *b)
{
    snprintf(answer, sizeof(answer), "ETag: %s\r\n%s%s%s%s%s", etag,
             type ? "x-amz-checksum-type: " : "", type ? type : "", type ? "\r\n" : "", a, b);
}

static int load(const char *hashes)
{
    struct sl_specs specs;
    char more[128];
    snprintf(more, sizeof(more), "verify: {hashes: %s}\nreaders: {rangeBytes: 100Ki}\n", hashes);
    err = (struct sl_err)SL_ERR_INIT;
    sl_scratch_close(scratch_fd, scratch);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    sl_model_spec(&specs, "s3://bucket/m.bin", path, more);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    ck_assert(done < 0 || sl_model_same(path, "m.bin", data, BYTES));
    return done;
}

static const enum sl_hash_kind kinds[] = {SL_HASH_CRC32, SL_HASH_CRC32C, SL_HASH_CRC64NVME,
                                          SL_HASH_SHA256};

SL_TEST(the_hash_of_the_whole_object_is_compared_with_our_ranges)
{
    for (size_t i = 0; i < SL_COUNT(kinds); i++) {
        char code[32];
        say("\"v1\"", "FULL_OBJECT", sum(kinds[i], 0), "");
        ck_assert_msg(load("require") == 0, "%s: %s", sl_hash_name(kinds[i]), err.message);
        ck_assert_uint_eq(result.unhashed, 0);
        ck_assert_uint_eq(result.checks, 1);
        ck_assert_uint_eq(result.verified, BYTES);
        say("\"v1\"", "FULL_OBJECT", sum(kinds[i], 1), "");
        ck_assert_int_lt(load("require"), 0);
        ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
        snprintf(code, sizeof(code), "E_HASH_%s", sl_hash_name(kinds[i]));
        ck_assert_msg(strcasecmp(err.code, code) == 0, "%s", err.code);
        ck_assert(!sl_model_exists(path, "m.bin"));
    }
}

SL_TEST(the_cheapest_is_taken_unless_all_are_wanted)
{
    say("\"v1\"", "FULL_OBJECT", sum(SL_HASH_CRC64NVME, 0), sum(SL_HASH_CRC32C, 0));
    ck_assert_msg(load("require") == 0, "%s", err.message);
    ck_assert_uint_eq(result.checks, 1);
    ck_assert_msg(load("all") == 0, "%s", err.message);
    ck_assert_uint_eq(result.checks, 2);
    say("\"v1\"", "FULL_OBJECT", sum(SL_HASH_CRC64NVME, 1), sum(SL_HASH_CRC32C, 0));
    ck_assert_msg(load("require") == 0, "%s", err.message);
    ck_assert_int_lt(load("all"), 0);
    heads = 0;
    ck_assert_msg(load("auto") == 0, "%s", err.message); /* not worth a request */
    ck_assert_msg(load("off") == 0, "%s", err.message);
    ck_assert_uint_eq(heads, 0);
}

SL_TEST(what_cannot_be_compared_is_passed_over)
{
    static const struct {
        const char *etag, *type, *line;
    } cases[] = {
        {"\"v1\"", "COMPOSITE", "x-amz-checksum-crc32c: AAAAAA==-3\r\n"},
        {"\"v1\"", "COMPOSITE", "x-amz-checksum-crc32c: AAAAAA==\r\n"},
        {"\"v1\"", "FULL_OBJECT", "x-amz-checksum-crc32c: AAAAAA==-3\r\n"},
        {"\"v1\"", "FULL_OBJECT", "x-amz-checksum-crc32c: A\r\n"},
        {"\"v1\"", "FULL_OBJECT", "x-amz-checksum-crc32c: !!!!====\r\n"},
        {"\"v1\"", "FULL_OBJECT", "x-amz-checksum-sha256: AAAAAA==\r\n"},
        {"\"v2\"", "FULL_OBJECT", "x-amz-checksum-crc32c: AAAAAA==\r\n"},
        {"\"v1-2\"", NULL, "x-amz-checksum-crc32c: AAAAAA==\r\n"},
        {"\"v1\"", NULL, ""},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        say(cases[i].etag, cases[i].type, cases[i].line, "");
        ck_assert_msg(load("all") == 0, "case %zu: %s", i, err.message);
        ck_assert_uint_eq(result.checks, 0);
        ck_assert_int_lt(load("require"), 0);
        ck_assert_msg(strstr(err.message, "without a hash"), "%s", err.message);
    }
    status = 403; /* it may be read, but not asked about */
    ck_assert_msg(load("all") == 0, "%s", err.message);
    ck_assert_uint_eq(result.checks, 0);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)

/* ---- the same bytes under another prefix ----------------------------------------------------- */

static const struct moved {
    const char *source; /* with v%d for the prefix, %s for the server */
    enum sl_hash_kind kind;
    bool shared, none;
    const char *headers; /* of gets, if the store says it there */
} moves[] = {
    {"uri: s3://bucket/v%d/m.bin", SL_HASH_CRC32, false, true, NULL}, /* an ETag alone */
    {"uri: s3://bucket/v%d/m.bin", SL_HASH_CRC32, false, false, NULL},
    {"uri: s3://bucket/v%d/m.bin", SL_HASH_CRC32C, false, false, NULL},
    {"uri: s3://bucket/v%d/m.bin", SL_HASH_CRC64NVME, false, false, NULL},
    {"uri: s3://bucket/v%d/m.bin", SL_HASH_SHA256, true, false, NULL},
    {"uri: gs://bucket/v%d/m.bin, gs: {endpoint: '%s', anonymous: true}", SL_HASH_CRC32C, false,
     false, "x-goog-generation: 7\r\nx-goog-hash: crc32c="},
    {"uri: az://bucket/v%d/m.bin, az: {account: acc, endpoint: '%s', anonymous: true}", SL_HASH_MD5,
     true, false, "x-ms-blob-content-md5: "},
};

static void load_moved(const struct moved *row, int prefix)
{
    struct sl_specs specs;
    char source[512], more[1024];
    snprintf(source, sizeof(source), row->source, prefix, sl_server_url(server, ""));
    snprintf(more, sizeof(more), "source: {%s}\nverify: {hashes: %s}\n", source,
             row->none ? "auto" : "require");
    sl_model_spec(&specs, "", path, more);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    ck_assert_msg(done == 0, "%s: %s", source, err.message);
    sl_specs_release(&specs);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
}

SL_TEST_LOOP(the_same_bytes_under_another_prefix_are_shared_by_what_proves_them, 0, SL_COUNT(moves))
{
    const struct moved *row = &moves[_i];
    const char *base64 = strchr(sum(row->kind, 0), ' ') + 1;
    char headers[256] = "";
    if (!row->none)
        say("\"v1\"", "FULL_OBJECT", sum(row->kind, 0), "");
    if (row->headers)
        snprintf(headers, sizeof(headers), "%s%s", row->headers, base64);
    SL_SCRIPT(server, {.headers = headers});
    for (int prefix = 1; prefix <= 2; prefix++) {
        char name[64];
        snprintf(name, sizeof(name), "%s/bucket/v%d/m.bin", row->kind == SL_HASH_MD5 ? "/acc" : "",
                 prefix);
        sl_server_put(server, name, data, BYTES, "\"v1\"");
        load_moved(row, prefix);
    }
    ck_assert_uint_eq(result.inherited, row->shared ? BYTES : 0);
}
