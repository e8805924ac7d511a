/* Models that stay open while a mirror of their registry wants a login that a program keeps: it is
 * asked when it is needed, again when its login has ended, and a read waits for it no longer than
 * it may. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "mirror_case.h"
#include "model_maker.h"
#include "open_case.h"
#include "scratch.h"

enum { ITEMS = 50000, TENSOR_BYTES = 4 * ITEMS };

static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static uint8_t *data;
static size_t bytes;
static const char *wanted; /* of the mirror: the value of Authorization */
static unsigned refused;

static bool guard(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    char sent[256] = "";
    (void)arg;
    sl_server_header(request, "Authorization", sent, sizeof(sent));
    if (strcmp(sent, wanted) == 0)
        return false;
    refused++;
    reply->status = 401;
    snprintf(reply->headers, sizeof(reply->headers), "WWW-Authenticate: Basic realm=\"x\"\r\n");
    return true;
}

static const char *at(const char *name)
{
    static char paths[4][SL_SCRATCH_PATH_BYTES + 64];
    static unsigned next;
    char *path = paths[next++ % SL_COUNT(paths)];
    snprintf(path, sizeof(paths[0]), "%s/%s", scratch, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(at(name), "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void helper_says(const char *password)
{
    char text[200];
    snprintf(text, sizeof(text), "{\"ServerURL\":\"x\",\"Username\":\"n\",\"Secret\":\"%s\"}\n",
             password);
    write_file("login", text);
}

/* How often it was asked. */
static long helper_asked(void)
{
    struct stat status;
    return stat(at("asked"), &status) == 0 ? (long)status.st_size : 0;
}

/* It hangs as long as there is a file `hangs`. */
static void make_helper(void)
{
    char text[4 * sizeof(scratch)];
    snprintf(text, sizeof(text),
             "#!/bin/sh\ncd '%s'\nprintf . >> asked\ntest ! -e hangs || exec sleep 1000\n"
             "exec cat login\n",
             scratch);
    write_file("docker-credential-x", text);
    ck_assert_int_eq(chmod(at("docker-credential-x"), 0755), 0);
    snprintf(text, sizeof(text), "%s:/usr/bin:/bin", scratch);
    setenv("PATH", text, 1);
    snprintf(text, sizeof(text), "{\"credHelpers\":{\"127.0.0.1:%u\":\"x\"}}",
             sl_server_port(mirrors.near));
    write_file("config.json", text);
}

static void setup(void)
{
    mirror_case_begin();
    scratch_fd = sl_scratch_open(scratch);
    data = sl_model_safetensors("a,b,c", ITEMS, &bytes);
    mirror_case_publish(data, bytes, "x",
                        ",\"annotations\":{\"org.opencontainers.image.title\":\"m.safetensors\"}");
    make_helper();
    helper_says("one");
    wanted = "Basic bjpvbmU="; /* n:one */
    refused = 0;
    sl_server_handle(mirrors.near, guard, NULL);
}

static void teardown(void)
{
    mirror_case_end();
    sl_scratch_close(scratch_fd, scratch);
    free(data);
}

/* Opened from its registry, which does not answer from then on. */
static struct sluice_source *open_and_hide_registry(void)
{
    char uri[300], spec[1024];
    snprintf(uri, sizeof(uri), "oci://127.0.0.1:%u/org/m:v1/m.safetensors",
             sl_server_port(mirrors.registry));
    snprintf(
        spec, sizeof(spec),
        "readers: {attempts: 2}\nsource: {oci: {mirrors: [\"%s\", \"%s\"], trustMirrors: true, "
        "credentialHelpers: true, dockerConfig: \"%s\"}}",
        mirrors.names[0], mirrors.names[1], at("config.json"));
    struct sluice_open_options options = {.size = sizeof(options), .spec = spec};
    struct sluice_source *source = open_it(uri, &options);
    ck_assert_int_eq(helper_asked(), 0); /* nobody wanted a login */
    SL_SCRIPT(mirrors.registry, {.fault = SL_FAULT_STATUS, .status = 503});
    return source;
}

static void check_tensor(struct sluice_source *source, uint64_t number)
{
    uint8_t *read = whole(source, number);
    ck_assert_mem_eq(read, data + bytes - (3 - number) * TENSOR_BYTES, TENSOR_BYTES);
    free(read);
}

SL_TEST(a_login_that_has_ended_is_asked_for_again)
{
    struct sluice_source *source = open_and_hide_registry();
    check_tensor(source, 0);
    check_tensor(source, 1);
    ck_assert_int_eq(helper_asked(), 1);
    wanted = "Basic bjp0d28="; /* n:two */
    helper_says("two");
    check_tensor(source, 2);
    check_tensor(source, 0);
    ck_assert_int_eq(helper_asked(), 2);
    ck_assert_uint_eq(refused, 2);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.far), 0);
    sluice_close(source);
}

SL_TEST(a_mirror_whose_helper_has_gone_is_left_for_the_next)
{
    struct sluice_source *source = open_and_hide_registry();
    ck_assert_int_eq(remove(at("docker-credential-x")), 0);
    check_tensor(source, 0);
    check_tensor(source, 1);
    ck_assert_uint_gt(mirror_case_blobs(mirrors.far), 0);
    sluice_close(source);
}

/* It is asked for the first login, or for another one. */
SL_TEST_LOOP(a_read_ends_with_its_time_though_a_helper_hangs, 0, 2)
{
    struct sluice_source *source = open_and_hide_registry();
    if (_i) {
        check_tensor(source, 0);
        wanted = "Basic bjp0d28="; /* n:two */
        helper_says("two");
    }
    uint8_t *room = malloc(TENSOR_BYTES);
    const struct sluice_read read = {
        .size = sizeof(read), .number = 1, .to = room, .bytes = TENSOR_BYTES};
    const struct sluice_read_options options = {.size = sizeof(options), .timeout_ms = 300};
    write_file("hangs", "");
    ck_assert_int_eq(sluice_read(source, &read, 1, &options, &error), -1);
    ck_assert_msg(error.kind == SLUICE_TIMEOUT, "%s", error.message);
    ck_assert_int_eq(remove(at("hangs")), 0);
    check_tensor(source, 1);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.far), 0);
    sluice_close(source);
    free(room);
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = mirror_case_prepare)
