/* Models that stay open while the keys of their store end: each read after that goes on with the
 * new ones, of a file or of a service. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "hf_hub.h"
#include "model_maker.h"
#include "open_case.h"
#include "range_server.h"
#include "scratch.h"
#include "sluice.h"

enum { ITEMS = 100000, TENSOR_BYTES = 4 * ITEMS, TENSORS = 4 };

static struct sl_server *server;
static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 32];
static int scratch_fd;
static uint8_t *data;
static size_t bytes;
static const char *token; /* that is let in */
static unsigned refused;  /* requests that came with another one */
static unsigned services; /* times that the service was asked */

static void say(struct sl_server_reply *reply, int status, const char *body)
{
    reply->status = status;
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

static bool store(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    char text[256] = "";
    (void)arg;
    if (strcmp(request->target, "/service") == 0) {
        services++;
        snprintf(text, sizeof(text),
                 "{\"AccessKeyId\":\"AK\",\"SecretAccessKey\":\"SK\",\"Token\":\"%s\","
                 "\"Expiration\":\"2999-01-01T00:00:00Z\"}",
                 token);
        say(reply, 200, text);
        return true;
    }
    sl_server_header(request, "x-amz-security-token", text, sizeof(text));
    if (strcmp(text, token) == 0)
        return false;
    refused++;
    say(reply, 400,
        "<?xml version=\"1.0\"?><Error><Code>ExpiredToken</Code><Message>The provided token has "
        "expired.</Message></Error>");
    return true;
}

static void write_keys(const char *with_token)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file,
            "[default]\naws_access_key_id = AK\naws_secret_access_key = SK\n"
            "aws_session_token = %s\n",
            with_token);
    fclose(file);
}

static void setup(void)
{
    clearenv();
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/credentials", scratch);
    server = sl_server_start();
    data = sl_model_safetensors("a,b,c,d", ITEMS, &bytes);
    sl_server_put(server, "/bucket/m.safetensors", data, bytes, "\"1\"");
    sl_server_handle(server, store, NULL);
    setenv("HOME", scratch, 1);
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, ""), 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    token = "first";
    refused = services = 0;
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    free(data);
}

static void check_tensor(struct sluice_source *source, uint64_t number)
{
    uint8_t *read = whole(source, number);
    ck_assert_mem_eq(read, data + bytes - (TENSORS - number) * TENSOR_BYTES, TENSOR_BYTES);
    free(read);
}

/* All of the tensors, each by a slice of it, too. */
static void check_all(struct sluice_source *source)
{
    for (uint64_t i = 0; i < TENSORS; i++) {
        float rows[100];
        const struct sluice_range range = {5000, 5100, 1};
        const struct sluice_read read = {
            .size = sizeof(read), .number = i, .slice = &range, .to = rows, .bytes = sizeof(rows)};
        ck_assert_msg(sluice_read(source, &read, 1, NULL, &error) == 0, "%s", error.message);
        ck_assert_mem_eq(rows, data + bytes - (TENSORS - i) * TENSOR_BYTES + 20000, sizeof(rows));
        check_tensor(source, i);
    }
}

static void check_refused(struct sluice_source *source)
{
    uint8_t *room = malloc(TENSOR_BYTES);
    const struct sluice_read read = {
        .size = sizeof(read), .number = 1, .to = room, .bytes = TENSOR_BYTES};
    ck_assert_int_eq(sluice_read(source, &read, 1, NULL, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_AUTH);
    ck_assert_msg(strstr(error.message, "expired"), "%s", error.message);
    free(room);
}

SL_TEST(keys_that_are_replaced_in_their_file_are_used_by_what_is_open)
{
    write_keys("first");
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    struct sluice_source *source = open_it("s3://bucket/m.safetensors", NULL);
    check_all(source);
    ck_assert_uint_eq(refused, 0);
    token = "second";
    check_refused(source); /* the file is as it was */
    write_keys("second");
    check_all(source);
    sluice_close(source);
}

SL_TEST(keys_of_a_service_that_end_before_their_time_are_asked_for_again)
{
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", sl_server_url(server, "/service"), 1);
    struct sluice_source *source = open_it("s3://bucket/m.safetensors", NULL);
    check_all(source);
    ck_assert_uint_eq(services, 1);
    token = "second";
    check_all(source);
    ck_assert_uint_eq(services, 2);
    sluice_close(source);
}

/* ---- tokens of a hub ------------------------------------------------------------------------- */

static void write_token(const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%s\n", text);
    fclose(file);
}

/* A small file, which the hub itself gives, so that each range shows the token. */
SL_TEST(a_token_of_a_hub_that_is_replaced_in_its_file_is_used_by_what_is_open)
{
    struct sl_hub hub;
    char spec[2 * SL_SCRATCH_PATH_BYTES];
    sl_hub_start(&hub);
    sl_hub_put(&hub, "m.safetensors", data, bytes, false);
    write_token(hub.token = "first");
    snprintf(spec, sizeof(spec), "source: {hf: {endpoint: \"%s\", tokenFile: \"%s\"}}\n",
             sl_hub_url(&hub), path);
    const struct sluice_open_options options = {.size = sizeof(options), .spec = spec};
    struct sluice_source *source = open_it("hf://org/name/m.safetensors", &options);
    check_all(source);
    hub.token = "second";
    uint8_t *room = malloc(TENSOR_BYTES);
    const struct sluice_read read = {
        .size = sizeof(read), .number = 1, .to = room, .bytes = TENSOR_BYTES};
    ck_assert_int_eq(sluice_read(source, &read, 1, NULL, &error), -1); /* the file is as it was */
    ck_assert_int_eq(error.kind, SLUICE_AUTH);
    free(room);
    write_token("second");
    check_all(source);
    ck_assert_uint_eq(hub.leaked_tokens, 0);
    sluice_close(source);
    sl_hub_stop(&hub);
}

SL_CASE(.setup = setup, .teardown = teardown)
