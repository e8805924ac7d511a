/* Loads of Azure's blobs that come with an MD5: which are checked, what a wrong one ends, and what
 * a crypto library without MD5 leaves out. */
#include <check.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
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
static char md5[32], header[96];
static struct sl_err err;
static struct sl_load_result result;

/* tests/CMakeLists.txt has it called in the place of OpenSSL's. */
const EVP_MD *__real_EVP_md5(void);
const EVP_MD *__wrap_EVP_md5(void);
static bool fips;
const EVP_MD *__wrap_EVP_md5(void)
{
    return fips ? NULL : __real_EVP_md5();
}

static void say_md5(uint8_t flip)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    ck_assert_int_eq(sl_digest_of(SL_HASH_MD5, NULL, 0, data, BYTES, digest, &err), 0);
    digest[3] ^= flip;
    EVP_EncodeBlock((unsigned char *)md5, digest, 16);
    snprintf(header, sizeof(header), "x-ms-blob-content-md5: %s\r\n", md5);
    SL_SCRIPT(server, {.headers = header});
}

static void setup(void)
{
    clearenv();
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    server = sl_server_start();
    setenv("AZURE_TOKEN_CREDENTIALS", "none", 1);
    setenv("AZURE_STORAGE_ACCOUNT", "acc", 1);
    setenv("AZURE_STORAGE_ENDPOINT", sl_server_url(server, ""), 1);
    data = sl_model_noise(BYTES, 6);
    sl_server_put(server, "/acc/models/m.bin", data, BYTES, "\"0x1\"");
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    free(data);
}

static void begin_anew(void)
{
    sl_scratch_close(scratch_fd, scratch);
    scratch_fd = sl_scratch_open(scratch);
}

static int load(const char *uri, const char *hashes)
{
    struct sl_specs specs;
    char more[128];
    snprintf(more, sizeof(more),
             "verify: {hashes: %s}\nreaders: {rangeBytes: 100Ki, attempts: 3}\n", hashes);
    err = (struct sl_err)SL_ERR_INIT;
    snprintf(path, sizeof(path), "%s/model", scratch);
    sl_model_spec(&specs, uri, path, more);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    ck_assert(done < 0 || sl_model_same(path, "m.bin", data, BYTES));
    return done;
}

static const char *const hashes[] = {"auto", "require", "all"};

SL_TEST_LOOP(the_md5_of_the_blob_is_compared_with_our_ranges, 0, 3)
{
    say_md5(0);
    ck_assert_msg(load("az://models/m.bin", hashes[_i]) == 0, "%s", err.message);
    ck_assert_uint_eq(result.checks, 1);
    ck_assert_uint_eq(result.unhashed, 0);
    ck_assert_uint_eq(result.verified, BYTES);
}

SL_TEST_LOOP(a_wrong_md5_fails_the_load, 0, 3)
{
    say_md5(1);
    ck_assert_int_eq(load("az://models/m.bin", hashes[_i]), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "E_HASH_MD5");
    ck_assert_msg(strstr(err.message, "object 'm.bin': its md5 is "), "%s", err.message);
    ck_assert_msg(strstr(err.message, "the bytes are damaged; load again"), "%s", err.message);
    ck_assert(!sl_model_exists(path, "m.bin"));
    begin_anew();
    ck_assert_msg(load("az://models/m.bin", "off") == 0, "%s", err.message);
    ck_assert_uint_eq(result.checks, 0);
}

SL_TEST(without_an_md5_it_is_loaded_unless_a_hash_is_required)
{
    ck_assert_msg(load("az://models/m.bin", "auto") == 0, "%s", err.message);
    ck_assert_uint_eq(result.checks, 0);
    ck_assert_uint_eq(result.unhashed, BYTES);
    begin_anew();
    ck_assert_int_eq(load("az://models/m.bin", "require"), -1);
    ck_assert_msg(strstr(err.message, "without a hash"), "%s", err.message);
}

/* What it cannot compute it does not take for right. */
SL_TEST(a_crypto_library_without_md5_leaves_it_out)
{
    say_md5(1);
    fips = true;
    ck_assert(!sl_hash_is_available(SL_HASH_MD5) && sl_hash_is_available(SL_HASH_SHA256));
    ck_assert_msg(load("az://models/m.bin", "auto") == 0, "%s", err.message);
    ck_assert_uint_eq(result.checks, 0);
    ck_assert_uint_eq(result.unhashed, BYTES);
    begin_anew();
    ck_assert_int_eq(load("az://models/m.bin", "require"), -1);
    ck_assert_msg(strstr(err.message, "without a hash"), "%s", err.message);
}

static bool page(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    static char text[512];
    (void)arg;
    if (!strstr(request->target, "comp=list"))
        return false;
    snprintf(text, sizeof(text),
             "<EnumerationResults><Blobs><Blob><Name>d/m.bin</Name><Properties><Content-Length>%d"
             "</Content-Length><Etag>0x1</Etag><Content-MD5>%s</Content-MD5></Properties></Blob>"
             "</Blobs><NextMarker/></EnumerationResults>",
             BYTES, md5);
    reply->status = 200;
    reply->body = strdup(text);
    reply->body_bytes = strlen(text);
    return true;
}

/* Answers to ranges need not tell it again. */
SL_TEST_LOOP(a_listing_tells_it_before_the_first_range, 0, 2)
{
    say_md5((uint8_t)_i);
    sl_server_script(server, NULL, 0);
    sl_server_put(server, "/acc/models/d/m.bin", data, BYTES, "\"0x1\"");
    sl_server_handle(server, page, NULL);
    ck_assert_int_eq(load("az://models/d/", "auto"), _i ? -1 : 0);
    ck_assert_str_eq(err.code, _i ? "E_HASH_MD5" : "");
    ck_assert_uint_eq(result.checks, 1);
}

/* Each range is hashed once, in order, however often it was begun. Both broken answers may be one
 * range's: it has a third try. */
SL_TEST(broken_answers_and_a_load_that_goes_on_do_not_confuse_it)
{
    say_md5(0);
    SL_SCRIPT(server, {.first = 2, .fault = SL_FAULT_RESET, .after = 1000, .headers = header},
              {.first = 3, .fault = SL_FAULT_SHORT, .after = 5000, .headers = header},
              {.first = 4, .last = 1000, .fault = SL_FAULT_STATUS, .status = 404},
              {.headers = header});
    ck_assert_int_eq(load("az://models/m.bin", "auto"), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    say_md5(0);
    ck_assert_msg(load("az://models/m.bin", "auto") == 0, "%s", err.message);
    ck_assert_uint_eq(result.unhashed, 0);
    begin_anew();
    SL_SCRIPT(server, {.begin = 102400, .fault = SL_FAULT_WRONG_ETAG, .headers = header},
              {.headers = header});
    ck_assert_int_eq(load("az://models/m.bin", "auto"), -1);
    ck_assert_str_eq(err.code, "changed");
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
