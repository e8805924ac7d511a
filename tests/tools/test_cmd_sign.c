/* The command sign as a process: what it writes beside objects, and what others make of it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "hash.h"
#include "model_maker.h"
#include "oms.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"

enum { PATH_BYTES = 512, BYTES = 300 * 1024 };
#define KEY    SL_TEST_DATA "/minisign/plain.key"
#define PUBLIC "verify.minisign.publicKeyFile=" SL_TEST_DATA "/minisign/plain.pub"
#define OTHER  "verify.minisign.publicKeyFile=" SL_TEST_DATA "/minisign/one.pub"

static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static struct ran ran;
static uint8_t *data;

/* A path in the scratch directory, good until four more were asked for. */
static const char *at(const char *name)
{
    static char paths[4][PATH_BYTES];
    static unsigned number;
    char *path = paths[number++ % 4];
    snprintf(path, PATH_BYTES, "%s/%s", scratch, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(at(name), "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
    data = sl_model_noise(BYTES, 9);
    ck_assert_int_eq(mkdir(at("m"), 0777), 0);
    write_file("m/a.bin", data, BYTES);
    write_file("m/empty", "", 0);
}

static void teardown(void)
{
    ran_release(&ran);
    free(data);
    sl_scratch_close(scratch_fd, scratch);
}

#define DO(...)                                                                                    \
    do {                                                                                           \
        ran_release(&ran);                                                                         \
        RUN(&ran, __VA_ARGS__);                                                                    \
    } while (0)
#define EXPECT(code, word)                                                                         \
    ck_assert_msg(ran.exit_code == (code) && (strstr(ran.out, word) || strstr(ran.err, word)),     \
                  "exit code %d\n%s\n%s", ran.exit_code, ran.out, ran.err)

static void damage(void)
{
    data[200 * 1024] ^= 4;
    write_file("m/a.bin", data, BYTES);
}

SL_TEST(what_is_signed_is_right_until_a_bit_changes)
{
    DO("sign", at("m"), "--range-bytes", "64Ki");
    EXPECT(0, "2 objects, 5 ranges");
    DO("sign", "--check", at("m"));
    EXPECT(0, "2 objects, 5 ranges");
    DO("verify", at("m"));
    EXPECT(0, "a.bin: sidecar");
    DO("load", "-v", at("m/"), "--to", at("out"));
    EXPECT(0, "5 hashes checked and right");
    ck_assert_int_eq(access(at("out/a.bin.sluice.json"), F_OK), -1);
    damage();
    DO("sign", "--check", at("m"), "--json");
    EXPECT(5, "\"wrong_ranges\":1");
    EXPECT(5, "bytes 196608 to 262144");
    DO("verify", at("m"));
    EXPECT(5, "bytes 196608 to 262144");
    DO("load", at("m/"), "--to", at("out2"));
    EXPECT(5, "bytes 196608 to 262144");
    DO("sign", at("m"));
    EXPECT(0, "2 objects, 1 range");
    DO("sign", "--check", at("m"));
    EXPECT(0, "ok ");
}

SL_TEST(a_signature_is_made_and_checked)
{
    DO("sign", at("m/a.bin"), "--minisign-key", KEY);
    EXPECT(0, "1 object, 1 range");
    EXPECT(0, "signed");
    DO("sign", "--check", at("m/a.bin"), "--set", PUBLIC);
    EXPECT(0, "ok ");
    DO("sign", "--check", at("m/a.bin"), "--set", OTHER);
    EXPECT(5, "it was signed by key");
    DO("sign", at("m/empty"), "--minisign-key", KEY);
    DO("load", at("m/"), "--to", at("out"), "--set", PUBLIC);
    EXPECT(0, "is in ");
    DO("load", at("m/"), "--to", at("out2"), "--set", OTHER);
    EXPECT(5, "it was signed by key");
    DO("sign", at("m/empty"));
    DO("load", at("m/"), "--to", at("out3"), "--set", PUBLIC);
    EXPECT(5, "object 'empty' has no signature");
}

SL_TEST(what_cannot_be_signed_is_told)
{
    DO("sign", at("none"));
    EXPECT(4, "none");
    DO("sign", at("m"), "--minisign-key", at("m/a.bin"));
    ck_assert_int_ne(ran.exit_code, 0);
    write_file("bad.key", "untrusted comment: x\nRWQ=\n", 25);
    DO("sign", at("m"), "--minisign-key", at("bad.key"));
    EXPECT(2, "not a minisign secret key");
    DO("sign", at("m"), "--check", "--minisign-key", KEY);
    EXPECT(2, "--check signs nothing");
    DO("sign", at("m"), "--range-bytes", "2Gi");
    EXPECT(2, "at most 1 GiB");
    DO("sign", "--check", at("m"));
    EXPECT(4, "a.bin.sluice.json");
    write_file("two\nlines", "x", 1);
    DO("sign", at("two\nlines"), "--minisign-key", KEY);
    EXPECT(10, "control character");
    ck_assert_int_lt(faccessat(scratch_fd, "two\nlines.sluice.json", F_OK, 0), 0);
    write_file("m/a.bin.sluice.json", "{}", 2);
    DO("sign", "--check", at("m/a.bin"));
    EXPECT(5, "a member is missing");
}

static bool take_put(const struct sl_server_request *request, struct sl_server_reply *reply,
                     void *arg)
{
    if (strcmp(request->method, "PUT") != 0)
        return false;
    ck_assert_str_eq(request->target, "/a.bin.sluice.json?token=1");
    (void)arg;
    reply->status = 201;
    return true;
}

SL_TEST(a_sidecar_is_put_beside_an_object_of_a_web_server)
{
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/a.bin", data, BYTES, "\"v1\"");
    sl_server_handle(server, take_put, server);
    DO("sign", sl_server_url(server, "/a.bin?token=1"));
    EXPECT(0, "1 object, 1 range");
    const struct sl_server_request *last =
        sl_server_request_at(server, sl_server_request_count(server) - 1);
    ck_assert_str_eq(last->method, "PUT");
    ck_assert_msg(strstr(last->body, "\"etag\":\"\\\"v1\\\"\"") != NULL, "%s", last->body);
    sl_server_stop(server);
}

/* ---- whole models -----------------------------------------------------------------------------
 */

#define PEM SL_TEST_DATA "/golden/signing/keys/p256.key.pem"

/* model.sig, or another one, opened with the public key; sl_oms_free() it. */
static struct sl_oms *open_signature(const char *path)
{
    struct sl_buf text = SL_BUF_INIT(1 << 20);
    size_t bytes;
    struct sl_err err = SL_ERR_INIT;
    struct sl_oms *oms = NULL;
    char *pem = golden_text("signing/keys/p256.pub.pem", &bytes);
    const struct sl_signing_trust trust = {.method = SL_SIGNED_KEY, .keys_pem = pem};
    ck_assert_int_eq(sl_buf_read_file(&text, path, &err), 0);
    ck_assert_msg(sl_oms_open(text.data, text.used, &trust, 0, &oms, &err) == 0, "%s", err.message);
    sl_buf_release(&text);
    free(pem);
    return oms;
}

/* Its ranges are those of the data. */
static void check_ranges(const struct sl_oms *oms, const char *name)
{
    size_t count;
    const struct sl_oms_resource *found = sl_oms_find(oms, name, &count);
    ck_assert_msg(found, "%s", name);
    for (size_t i = 0; i < count; i++) {
        uint8_t digest[SL_HASH_BYTES_MAX];
        uint64_t end = oms->shards ? found[i].end : BYTES;
        ck_assert_int_eq(sl_digest_of(SL_HASH_SHA256, NULL, 0, data + found[i].start,
                                      end - found[i].start, digest, NULL),
                         0);
        ck_assert_int_eq(memcmp(digest, found[i].digest, 32), 0);
    }
    ck_assert(!oms->shards || found[count - 1].end == BYTES);
}

SL_TEST(a_model_is_signed_as_a_whole)
{
    ck_assert_int_eq(mkdir(at("m/.git"), 0777), 0);
    write_file("m/.git/config", "x", 1);
    DO("sign", at("m"));
    DO("sign", "--format", "oms", "--key", PEM, at("m"));
    EXPECT(0, "/m/model.sig\n2 files, 300 KiB, signed by key ");
    struct sl_oms *oms = open_signature(at("m/model.sig"));
    ck_assert_uint_eq(oms->resource_count, 2);
    check_ranges(oms, "a.bin");
    ck_assert(sl_oms_ignores(oms, "a.bin.sluice.json") && sl_oms_ignores(oms, ".git/config") &&
              sl_oms_ignores(oms, "model.sig") && !sl_oms_ignores(oms, "empty"));
    sl_oms_free(oms);
    DO("inspect", at("m/model.sig"));
    EXPECT(0, "not verified here");
    EXPECT(0, "2 files, whole");
    DO("sign", at("m"));
    ck_assert_int_eq(access(at("m/model.sig.sluice.json"), F_OK), -1);
}

SL_TEST(a_model_is_signed_range_by_range)
{
    DO("sign", "--format", "oms", "--key", PEM, "--shard-bytes", "64Ki", at("m/"), "--json");
    EXPECT(0, "\"files\":2,\"resources\":5,\"bytes\":307200,\"signed_by\":\"key 7394");
    struct sl_oms *oms = open_signature(at("m/model.sig"));
    ck_assert_uint_eq(oms->resource_count, 5);
    check_ranges(oms, "a.bin");
    sl_oms_free(oms);
    DO("inspect", "--json", at("m/model.sig"));
    EXPECT(0, "\"verified\":false");
    EXPECT(0, "\"files\":1,\"resources\":5,\"shard_bytes\":65536,\"bytes\":307200");
    DO("inspect", "--digest", at("m/model.sig"));
    EXPECT(2, "is a signature");
}

SL_TEST(what_a_spec_leaves_out_is_ignored)
{
    DO("sign", "--format", "oms", "--key", PEM, at("m"), "--set", "source.exclude=empty");
    EXPECT(0, "1 file, 300 KiB");
    struct sl_oms *oms = open_signature(at("m/model.sig"));
    ck_assert(sl_oms_ignores(oms, "empty"));
    sl_oms_free(oms);
}

SL_TEST(many_files_are_signed_side_by_side)
{
    enum { FILES = 40 };
    for (int i = 0; i < FILES; i++) {
        char name[32];
        snprintf(name, sizeof(name), "m/%02d.bin", i);
        write_file(name, data, BYTES);
    }
    for (int shards = 0; shards < 2; shards++) {
        DO("sign", "--format", "oms", "--key", PEM, "--shard-bytes", shards ? "32Ki" : "0",
           at("m"));
        EXPECT(0, shards ? "42 files, 410 ranges" : "42 files");
        struct sl_oms *oms = open_signature(at("m/model.sig"));
        for (int i = 0; i < FILES; i++) {
            char name[32];
            snprintf(name, sizeof(name), "%02d.bin", i);
            check_ranges(oms, name);
        }
        sl_oms_free(oms);
    }
}

SL_TEST(what_cannot_be_signed_as_a_model_is_said)
{
    DO("sign", "--format", "oms", at("m"));
    EXPECT(2, "name it with --key");
    DO("sign", "--key", PEM, at("m"));
    EXPECT(2, "are for --format oms");
    DO("sign", "--format", "oms", "--key", PEM, "--check", at("m"));
    EXPECT(2, "`sluice verify`");
    DO("sign", "--format", "oms", "--key", PEM, "--minisign-key", KEY, at("m"));
    EXPECT(2, "leave one out");
    DO("sign", "--format", "oms", "--key", KEY, at("m"));
    EXPECT(2, "not a private key");
    DO("sign", "--format", "oms", "--key", PEM, "--certificate",
       SL_TEST_DATA "/golden/signing/keys/leaf.cert.pem", at("m"));
    EXPECT(2, "of another key");
    DO("sign", "--format", "oms", "--key", PEM, "--shard-bytes", "10", at("m"));
    EXPECT(2, "30720 ranges would be listed, at most 30000");
    DO("sign", "--format", "oms", "--key", PEM, "--shard-bytes", "1Mi", at("m/empty"));
    EXPECT(2, "all files are empty");
    DO("sign", "--format", "oms", "--key", PEM, "hf://org/name");
    EXPECT(2, "no signature can be written beside");
    DO("sign", "--format", "oms", "--key", PEM, at("none"));
    EXPECT(4, "none");
    write_file("m/a.bin.sig", "of another kind", 15);
    DO("sign", "--format", "oms", "--key", PEM, at("m/a.bin"));
    EXPECT(2, "is there and is not a signature of a model");
    ck_assert_int_eq(access(at("m/model.sig"), F_OK), -1);
}

static bool take_signature(const struct sl_server_request *request, struct sl_server_reply *reply,
                           void *arg)
{
    if (strcmp(request->method, "PUT") != 0)
        return false;
    ck_assert_str_eq(request->target, "/a.bin.sig?token=1");
    (void)arg;
    reply->status = 201;
    return true;
}

SL_TEST(a_signature_is_put_beside_an_object_of_a_web_server)
{
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/a.bin", data, BYTES, "\"v1\"");
    sl_server_handle(server, take_signature, server);
    DO("sign", "--format", "oms", "--key", PEM, sl_server_url(server, "/a.bin?token=1"));
    EXPECT(0, "1 file, 300 KiB");
    const struct sl_server_request *last =
        sl_server_request_at(server, sl_server_request_count(server) - 1);
    write_file("put.sig", last->body, strlen(last->body));
    sl_server_stop(server);
    struct sl_oms *oms = open_signature(at("put.sig"));
    ck_assert(oms->single && oms->resource_count == 1);
    check_ranges(oms, ".");
    sl_oms_free(oms);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
