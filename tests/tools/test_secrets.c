/*
 * A table: what lets into each store, and each place where people and programs look. What was given
 * as a secret, and what stores gave for it, is in none of them.
 */
#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "hash.h"
#include "hf_hub.h"
#include "http_client.h"
#include "listen_at.h"
#include "mem.h"
#include "model_maker.h"
#include "ms_hub.h"
#include "range_server.h"
#include "redis_server.h"
#include "run_sluice.h"
#include "scratch.h"
#include "skip.h"

enum { PATH_BYTES = 512, URI_BYTES = 400 };

static char scratch[SL_SCRATCH_PATH_BYTES], target[PATH_BYTES], message[PATH_BYTES];
static char uri[URI_BYTES], program[PATH_BYTES];
static int scratch_fd;
static struct sl_server *server;
static struct sl_hub hub;
static struct sl_ms_hub ms;
static struct sl_redis_server *redis;
static struct ran ran;
static uint8_t *data;
static size_t bytes;
static bool refuses;
static char digest[72];

/* All secrets of this file begin so, those that a store gives out too; as they are, in base64, and
 * in base64 behind "user:". A signature of Azure is one that was made of a key. */
static const char *const secrets[] = {"hush", "aHVza", "dXNlcjpodXNo", "sig=", "Signature="};

static void check_text(const char *text, const char *place)
{
    for (size_t i = 0; text && i < SL_COUNT(secrets); i++) {
        const char *found = strstr(text, secrets[i]);
        ck_assert_msg(!found, "%s in %s: %.200s", secrets[i], place,
                      found && found - text > 60 ? found - 60 : text);
    }
}

/* ---- stores ---------------------------------------------------------------------------------- */

static void say(struct sl_server_reply *reply, int status, const char *text)
{
    reply->status = status;
    reply->body = strdup(text);
    reply->body_bytes = strlen(text);
}

static char token_url[64];

/* Tokens of Google and of registries, a manifest, and what refuses. Objects are the server's. */
static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    char text[512] = "";
    (void)arg;
    if (refuses && strncmp(request->target, "/token", 6) != 0) {
        say(reply, 403, "{\"errors\": [{\"code\": \"DENIED\", \"message\": \"no\"}]}");
    } else if (strncmp(request->target, "/token", 6) == 0) {
        say(reply, 200,
            "{\"access_token\": \"hush-given\", \"token\": \"hush-given\", \"expires_in\": 3600}");
    } else if (strncmp(request->target, "/v2/", 4) == 0 &&
               !sl_server_header(request, "Authorization", text, sizeof(text))) {
        say(reply, 401, "");
        snprintf(reply->headers, sizeof(reply->headers),
                 "WWW-Authenticate: Bearer realm=\"%s\",service=\"s\"\r\n", token_url);
    } else if (strstr(request->target, "/manifests/")) {
        snprintf(text, sizeof(text),
                 "{\"layers\":[{\"mediaType\":\"x\",\"size\":%zu,\"digest\":\"%s\","
                 "\"annotations\":{\"org.opencontainers.image.title\":\"m.safetensors\"}}]}",
                 bytes, digest);
        say(reply, 200, text);
    } else {
        return false;
    }
    return true;
}

static const char *write_file(const char *name, const char *text)
{
    static char path[PATH_BYTES];
    snprintf(path, sizeof(path), "%s/%s", scratch, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

static const char *authority(void)
{
    return strstr(sl_server_url(server, ""), "//") + 2;
}

static void by_s3_keys(void)
{
    setenv("AWS_ACCESS_KEY_ID", "AKEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush-key", 1);
    setenv("AWS_SESSION_TOKEN", "hush-session", 1);
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, ""), 1);
    snprintf(uri, sizeof(uri), "s3://bucket/m.safetensors");
}

static void by_signed_url(void)
{
    snprintf(uri, sizeof(uri),
             "http://%s/bucket/m.safetensors?X-Amz-Signature=hush&X-Amz-Credential=hush",
             authority());
}

static void by_user_of_url(void)
{
    snprintf(uri, sizeof(uri), "http://user:hush-password@%s/bucket/m.safetensors", authority());
}

static void by_gs_user(void)
{
    char text[500];
    snprintf(text, sizeof(text),
             "{\"type\": \"authorized_user\", \"client_id\": \"id\", \"client_secret\": "
             "\"hush-client\", \"refresh_token\": \"hush-refresh\", \"token_uri\": \"%s\"}",
             sl_server_url(server, "/token"));
    setenv("GOOGLE_APPLICATION_CREDENTIALS", write_file("user.json", text), 1);
    setenv("STORAGE_EMULATOR_HOST", authority(), 1);
    snprintf(uri, sizeof(uri), "gs://bucket/m.safetensors");
}

static void by_az(const char *secret, const char *query)
{
    char text[500];
    snprintf(text, sizeof(text), "BlobEndpoint=%s;AccountName=acct;%s",
             sl_server_url(server, "/acct"), secret);
    setenv("AZURE_STORAGE_CONNECTION_STRING", text, 1);
    snprintf(uri, sizeof(uri), "az://bucket/m.safetensors%s", query);
}

static void by_az_key(void)
{
    by_az("AccountKey=aHVzaC1rZXktb2YtYW4tYWNjb3VudA==", "");
}

static void by_az_sas(void)
{
    by_az("SharedAccessSignature=sv=2023-11-03&sig=hush", "");
}

static void by_az_uri(void)
{
    by_az("", "?sv=2023-11-03&sig=hush");
}

/* Its threads see what was set up: its lock was taken since. */
static void hand_over(struct sl_server *origin)
{
    ck_assert_uint_eq(sl_server_request_count(origin), 0);
}

static void by_hf_token(void)
{
    setenv("HF_TOKEN", hub.token = "hush-hub", 1);
    setenv("HF_ENDPOINT", sl_hub_url(&hub), 1);
    hub.refuse_status = refuses ? 403 : 0;
    hand_over(hub.origin);
    snprintf(uri, sizeof(uri), "hf://org/name/m.safetensors");
}

static void by_ms_token(void)
{
    setenv("MODELSCOPE_API_TOKEN", ms.token = "hush-scope", 1);
    setenv("MODELSCOPE_ENDPOINT", sl_server_url(ms.origin, ""), 1);
    ms.refuse_status = refuses ? 403 : 0;
    hand_over(ms.origin);
    snprintf(uri, sizeof(uri), "ms://org/name/m.safetensors");
}

static void by_oci_login(void)
{
    char text[300];
    snprintf(text, sizeof(text), "{\"auths\": {\"%s\": {\"auth\": \"dXNlcjpodXNoLWxvZ2lu\"}}}",
             authority());
    setenv("REGISTRY_AUTH_FILE", write_file("auth.json", text), 1);
    snprintf(uri, sizeof(uri), "oci://%s/org/m:v1/m.safetensors", authority());
}

/* What is written there is written with the password, too. */
static void by_redis_password(void)
{
    char model[PATH_BYTES];
    sl_redis_server_password(redis, "hush-redis");
    snprintf(uri, sizeof(uri), "redis://:hush-redis@127.0.0.1:%d/model",
             sl_redis_server_port(redis));
    snprintf(model, sizeof(model), "%s/m.safetensors", scratch);
    RUN(&ran, "convert", model, uri, "--log-level", "trace");
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    check_text(ran.err, "the log of convert");
    if (refuses)
        sl_redis_server_password(redis, "another");
}

static const struct {
    const char *name;
    void (*prepare)(void);
} stores[] = {{"S3 keys", by_s3_keys},
              {"a signed URL", by_signed_url},
              {"a URL with a password", by_user_of_url},
              {"a user of Google", by_gs_user},
              {"a key of Azure", by_az_key},
              {"a SAS of Azure", by_az_sas},
              {"a SAS in a URI", by_az_uri},
              {"a token of a hub", by_hf_token},
              {"a token of ModelScope", by_ms_token},
              {"a login of a registry", by_oci_login},
              {"a password of Redis", by_redis_password}};
enum { STORES = SL_COUNT(stores) };

static void put_objects(void)
{
    static const char *const paths[] = {"/bucket/m.safetensors", "/acct/bucket/m.safetensors"};
    uint8_t sum[SL_HASH_BYTES_MAX];
    char blob[128];
    for (size_t i = 0; i < SL_COUNT(paths); i++)
        sl_server_put(server, paths[i], data, bytes, "\"v\"");
    sl_digest_of(SL_HASH_SHA256, NULL, 0, data, bytes, sum, NULL);
    memcpy(digest, "sha256:", 7);
    sl_hex(sum, 32, digest + 7);
    snprintf(blob, sizeof(blob), "/v2/org/m/blobs/%s", digest);
    sl_server_put(server, blob, data, bytes, "\"v\"");
    sl_hub_put(&hub, "m.safetensors", data, bytes, true);
    sl_ms_hub_put(&ms, "m.safetensors", data, bytes, true);
    FILE *file = fopen(write_file("m.safetensors", ""), "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* The program's own environment, without anybody's credentials. */
static void setup(void)
{
    if (!*program)
        snprintf(program, sizeof(program), "%s", getenv("SLUICE"));
    clearenv();
    setenv("SLUICE", program, 1);
    setenv("HOME", "/nonexistent", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    setenv("NO_GCE_CHECK", "true", 1);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(target, sizeof(target), "%s/model", scratch);
    snprintf(message, sizeof(message), "%s/message", scratch);
    setenv("SLUICE_TERMINATION_LOG", message, 1);
    refuses = false;
    server = sl_server_start();
    snprintf(token_url, sizeof(token_url), "%s", sl_server_url(server, "/token"));
    sl_server_handle(server, answer, NULL);
    sl_hub_start(&hub);
    sl_ms_hub_start(&ms);
    redis = sl_redis_server_start();
    data = sl_model_safetensors("a,b", 50000, &bytes);
    put_objects();
}

static void teardown(void)
{
    ran_release(&ran);
    sl_server_stop(server);
    sl_hub_stop(&hub);
    sl_ms_hub_stop(&ms);
    sl_redis_server_stop(redis);
    sl_scratch_close(scratch_fd, scratch);
    free(sl_steal(&data));
}

/* ---- places ---------------------------------------------------------------------------------- */

static void check_run(int store, bool succeeds, const char *place)
{
    char what[128];
    snprintf(what, sizeof(what), "%s, %s", stores[store].name, place);
    ck_assert_msg((ran.exit_code == 0) == succeeds, "%s: exit code %d: %s", what, ran.exit_code,
                  ran.err);
    check_text(ran.out, what);
    check_text(ran.err, what);
    char *text = (char *)sl_model_read(scratch, "message", &(size_t){0});
    check_text(text, what);
    free(text);
}

/* Every file below: the manifest, the marker, what a next load knows. */
static void check_files(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char below[2 * PATH_BYTES];
        size_t count;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
        check_text(below, "a name");
        check_files(below);
        char *text = (char *)sl_model_read(path, entry->d_name, &count);
        for (size_t at = 0; text && at < count; at += strlen(text + at) + 1)
            check_text(text + at, below);
        free(text);
    }
    if (folder)
        closedir(folder);
}

static void prepare_store(int number)
{
    stores[number].prepare();
    hand_over(server);
}

SL_TEST_LOOP(no_secret_is_in_logs_results_and_files_of_a_load, 0, 2 * (int)STORES)
{
    prepare_store(_i / 2);
    RUN(&ran, "load", uri, "--to", target, "--log-level", "trace", "--log-format",
        _i % 2 ? "json" : "text", "--json");
    check_run(_i / 2, true, "a load");
    ck_assert_msg(strstr(ran.out, "\"uri\"") != NULL, "%s", ran.out);
    check_files(target);
    RUN(&ran, "models", scratch, "--json");
    check_run(_i / 2, true, "models");
    RUN(&ran, "verify", target, "--json");
    check_run(_i / 2, true, "verify");
}

SL_TEST_LOOP(no_secret_is_in_what_is_asked_about_a_model, 0, (int)STORES)
{
    static const char *const commands[] = {"plan", "inspect", "doctor"};
    prepare_store(_i);
    for (size_t i = 0; i < SL_COUNT(commands); i++) {
        RUN(&ran, commands[i], uri, "--log-level", "trace");
        check_run(_i, true, commands[i]);
    }
}

SL_TEST_LOOP(no_secret_is_in_a_refusal, 0, 2 * (int)STORES)
{
    refuses = true;
    prepare_store(_i / 2);
    RUN(&ran, "load", uri, "--to", target, "--log-level", "trace", "--log-format",
        _i % 2 ? "json" : "text", "--json", "--attempts", "2");
    check_run(_i / 2, false, "a refusal");
    ck_assert_msg(ran.exit_code == 3 || ran.exit_code == 4, "%d: %s", ran.exit_code, ran.err);
}

SL_TEST_LOOP(no_secret_is_served, 0, (int)STORES)
{
    static const char *const paths[] = {"/",          "/metrics", "/v1/loads",
                                        "/v1/models", "/readyz",  "/healthz"};
    char listen[64];
    unsigned port = 0;
    struct http_reply reply;
    prepare_store(_i);
    int held = sl_port_hold("127.0.0.1", &port);
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", port);
    pid_t pid = start_sluice(
        (const char *const[]){"load", uri, "--to", target, "--stay", "--listen", listen, NULL},
        "/dev/null", "/dev/null");
    SL_AWAIT(sl_model_exists(target, ".sluice/ready"), "the load");
    SL_AWAIT(http_ask(port, "GET", "/readyz", "", &reply) == 0 &&
                 (http_release(&reply), reply.status == 200),
             "the port");
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        ck_assert_int_eq(http_ask(port, "GET", paths[i], "", &reply), 0);
        check_text(reply.head, paths[i]);
        check_text(reply.body, paths[i]);
        http_release(&reply);
    }
    kill(pid, SIGTERM);
    ck_assert_int_eq(wait_sluice(pid), 0);
    close(held);
}

static bool is_in(unsigned port, const char *state)
{
    struct http_reply reply;
    if (http_ask(port, "GET", "/v1/models/m", "", &reply) < 0)
        return false;
    bool is = strstr(reply.body, state) != NULL;
    http_release(&reply);
    return is;
}

/* A node with this model, which has it when this returns, or was refused. */
static pid_t serve(const char *log_path, unsigned *port)
{
    char text[3 * PATH_BYTES], config[PATH_BYTES];
    int held = sl_port_hold("127.0.0.1", port);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 64MiB\n"
             "listen: 127.0.0.1:%u\n---\napiVersion: sluice/v1alpha1\nkind: Model\n"
             "metadata: {name: m}\nsource: {uri: \"%s\"}\n",
             scratch, *port, uri);
    snprintf(config, sizeof(config), "%s", write_file("node.yaml", text));
    pid_t pid = start_sluice((const char *const[]){"serve", config, "--log-level", "trace",
                                                   "--log-format", "json", NULL},
                             "/dev/null", log_path);
    unsigned at = *port;
    SL_AWAIT(is_in(at, refuses ? "\"failed\"" : "\"ready\""), "the node's model");
    close(held);
    return pid;
}

/* What a kubelet writes into a pod's events of a volume that cannot be published is the message of
 * the model, too (csi_server.c). */
SL_TEST_LOOP(no_secret_is_told_by_a_node, 0, 2 * (int)STORES)
{
    static const char *const paths[] = {"/", "/metrics", "/v1/loads", "/v1/models", "/v1/models/m"};
    struct http_reply reply;
    unsigned port = 0;
    char log_path[PATH_BYTES];
    refuses = _i % 2;
    prepare_store(_i / 2);
    snprintf(log_path, sizeof(log_path), "%s/log", scratch);
    pid_t pid = serve(log_path, &port);
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        ck_assert_int_eq(http_ask(port, "GET", paths[i], "", &reply), 0);
        ck_assert_int_eq(reply.status, 200);
        check_text(reply.body, paths[i]);
        http_release(&reply);
    }
    kill(pid, SIGTERM);
    ck_assert_int_eq(wait_sluice(pid), 0);
    char *log = (char *)sl_model_read(scratch, "log", &(size_t){0});
    ck_assert_msg(log && strstr(log, refuses ? "model 'm': " : "'m' is in"), "%s", log ? log : "");
    check_text(log, "the log of serve");
    free(log);
    char models[PATH_BYTES];
    snprintf(models, sizeof(models), "%s/models", scratch);
    check_files(models);
}

/* Does this system write a core file for whoever lets it? */
static bool leaves_cores(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    return waitpid(child, &status, 0) == child && WCOREDUMP(status);
}

/* A sidecar that has its model when this returns. */
static pid_t load_and_stay(void)
{
    pid_t pid =
        start_sluice((const char *const[]){"load", uri, "--to", target, "--stay", "-q", NULL},
                     "/dev/null", "/dev/null");
    SL_AWAIT(sl_model_exists(target, ".sluice/ready"), "the load");
    return pid;
}

SL_TEST_LOOP(what_stays_leaves_no_core, 0, 2)
{
    const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    char place[PATH_BYTES];
    unsigned port = 0;
    int status;
    ck_assert_ptr_nonnull(getcwd(place, sizeof(place)));
    ck_assert_int_eq(chdir(scratch), 0);
    bool can = setrlimit(RLIMIT_CORE, &all) == 0 && leaves_cores();
    if (can) {
        by_s3_keys();
        pid_t pid = _i ? load_and_stay() : serve("/dev/null", &port);
        kill(pid, SIGABRT);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && !WCOREDUMP(status));
    }
    ck_assert_int_eq(chdir(place), 0);
    if (!can)
        SL_SKIP("this system leaves no core file");
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 120, .starts = true)
