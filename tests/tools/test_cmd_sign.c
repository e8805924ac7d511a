/* The command sign as a process: what it writes beside objects, and what others make of it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "model_maker.h"
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

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
