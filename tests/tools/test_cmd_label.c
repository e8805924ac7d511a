/* sluice label as a process: one server is the daemon and the API server. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "buf.h"
#include "claims.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"

#define MODELS "/v1/models"
#define NODE   "/api/v1/nodes/n1"
#define CSI    "/apis/storage.k8s.io/v1/csinodes/n1"
#define WHOLE                                                                                      \
    "{\"models\": [{\"name\": \"alpha\", \"origin\": \"config\", \"version\": \"1\"},"             \
    " {\"name\": \"beta\", \"origin\": \"config\"},"                                               \
    " {\"name\": \"uri-1\", \"origin\": \"request\", \"version\": \"1\"}]}"

static struct sl_server *server;
static struct ran ran;
static char scratch[SL_SCRATCH_PATH_BYTES], url[128], out[600], log_[600];
static int scratch_fd;
/* What is answered, by a thread of the server; no models: 503. */
static const char *_Atomic models, *_Atomic labels, *_Atomic taints, *_Atomic drivers;
static _Atomic int status; /* of the API server */
static _Atomic unsigned asked, looked, patched;
static char patch[4096]; /* written before patched is counted: whoever reads it reads that first */
static char patch_type[64];

static char *copy(const char *text)
{
    char *made = strdup(text);
    ck_assert_ptr_nonnull(made);
    return made;
}

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    char token[64], text[4096];
    (void)arg;
    if (strcmp(request->target, MODELS) == 0) {
        const char *now = models;
        asked++;
        reply->status = now ? 200 : 503;
        reply->body = copy(now ? now : "");
        reply->body_bytes = strlen(reply->body);
        return true;
    }
    ck_assert(sl_server_header(request, "Authorization", token, sizeof(token)));
    ck_assert_str_eq(token, "Bearer of-the-account");
    if (strcmp(request->target, CSI) == 0) {
        snprintf(text, sizeof(text), "{\"spec\": {\"drivers\": %s}}", drivers);
        reply->status = 200;
        reply->body = copy(text);
        reply->body_bytes = strlen(text);
        return true;
    }
    ck_assert_str_eq(request->target, NODE);
    if (strcmp(request->method, "PATCH") == 0) {
        ck_assert(sl_server_header(request, "Content-Type", patch_type, sizeof(patch_type)));
        snprintf(patch, sizeof(patch), "%s", request->body);
        patched++;
    } else {
        looked++;
    }
    snprintf(text, sizeof(text),
             status == 200 ? "{\"metadata\": {\"labels\": %s}, \"spec\": {\"taints\": %s}}"
                           : "{\"message\": \"nodes \\\"n1\\\" is forbidden\", \"x\": %s, "
                             "\"y\": %s}",
             labels, taints);
    reply->status = status;
    reply->body = copy(text);
    reply->body_bytes = strlen(text);
    return true;
}

static void write_file(const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", scratch, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    server = sl_server_start();
    snprintf(url, sizeof(url), "%s", sl_server_url(server, ""));
    snprintf(out, sizeof(out), "%s/out", scratch);
    snprintf(log_, sizeof(log_), "%s/log", scratch);
    write_file("token", "of-the-account\n");
    write_file("ca.crt", "");
    sl_server_handle(server, answer, NULL);
    models = WHOLE;
    labels = "{}";
    taints = drivers = "[]";
    status = 200;
    asked = looked = patched = 0;
    setenv("SLUICE_TERMINATION_LOG", "off", 1);
    setenv("NODE_NAME", "n1", 1);
    unsetenv("KUBERNETES_SERVICE_HOST");
}

static void teardown(void)
{
    sl_server_stop(server);
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

static void once(int exit_code, const char *word)
{
    RUN(&ran, "label", "--daemon", url, "--api", url, "--account", scratch, "--every-seconds", "0");
    ck_assert_msg(ran.exit_code == exit_code, "%d: %s", ran.exit_code, ran.err);
    ck_assert_msg(strstr(ran.err, word) != NULL, "%s", ran.err);
}

SL_TEST(a_model_that_is_whole_is_a_label)
{
    once(0, "");
    ck_assert_uint_eq(patched, 1);
    ck_assert_str_eq(patch,
                     "{\"metadata\":{\"labels\":{\"model.csi.sluice.dev/alpha\":\"ready\"}}}");
}

SL_TEST(addresses_are_judged_before_anything_is_asked)
{
    static const struct {
        const char *daemon, *api, *word;
    } bad[] = {
        {"unix:/run/sluice.sock", "https://127.0.0.1:1", "--daemon: bad URL"},
        {"127.0.0.1:9464", "https://127.0.0.1:1", "--daemon: bad URL"},
        {"http://127.0.0.1:1", "ftp://127.0.0.1", "--api: bad URL"},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) { /* without an end, but for the mistake */
        RUN(&ran, "label", "--daemon", bad[i].daemon, "--api", bad[i].api, "--account", scratch);
        ck_assert_msg(ran.exit_code == 2 && strstr(ran.err, bad[i].word), "%d: %s", ran.exit_code,
                      ran.err);
    }
    snprintf(url, sizeof(url), "%s//", sl_server_url(server, ""));
    once(0, "");
    ck_assert_uint_eq(patched, 1);
}

SL_TEST(what_is_right_already_is_not_written)
{
    labels = "{\"model.csi.sluice.dev/alpha\": \"ready\", \"zone\": \"a\"}";
    once(0, "");
    ck_assert_uint_eq(looked, 1);
    ck_assert_uint_eq(patched, 0);
}

SL_TEST(labels_with_its_prefix_and_no_others_go)
{
    labels = "{\"model.csi.sluice.dev/gone\": \"ready\", \"model.csi.sluice.dev/beta\": \"maybe\","
             " \"model.csi.sluice.dev/alpha\": \"maybe\", \"model.csi.sluice.developer/x\": \"a\","
             " \"model.csi.sluice.dev\": \"b\", \"zone\": \"a\"}";
    once(0, "");
    ck_assert_uint_eq(patched, 1);
    ck_assert_str_eq(patch, "{\"metadata\":{\"labels\":{\"model.csi.sluice.dev/alpha\":\"ready\","
                            "\"model.csi.sluice.dev/gone\":null,"
                            "\"model.csi.sluice.dev/beta\":null}}}");
}

SL_TEST(a_node_that_has_nothing_loses_its_labels)
{
    models = "{\"models\": []}";
    labels = "{\"model.csi.sluice.dev/alpha\": \"ready\"}";
    once(0, "");
    ck_assert_uint_eq(patched, 1);
    ck_assert_str_eq(patch, "{\"metadata\":{\"labels\":{\"model.csi.sluice.dev/alpha\":null}}}");
}

SL_TEST(a_daemon_that_does_not_answer_changes_nothing)
{
    static const char *const bad[] = {"", "[]", "{}", "{\"models\": {}}",
                                      "{\"models\": [{\"name\": \"a\"}"};
    models = NULL;
    once(7, "503");
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        models = bad[i];
        once(10, "the daemon's answer");
    }
    ck_assert_uint_eq(looked + patched, 0);
}

SL_TEST(names_that_no_label_may_have_get_none)
{
    models = "{\"models\": [{\"name\": \"a/b\", \"origin\": \"config\", \"version\": \"1\"},"
             " {\"name\": \"-a\", \"origin\": \"config\", \"version\": \"1\"},"
             " {\"name\": \"a.\", \"origin\": \"config\", \"version\": \"1\"},"
             " {\"name\": \"\", \"origin\": \"config\", \"version\": \"1\"},"
             " {\"name\": 7, \"origin\": \"config\", \"version\": \"1\"}, 7, null,"
             " {\"name\": \"a12345678901234567890123456789012345678901234567890123456789012z\","
             " \"origin\": \"config\", \"version\": \"1\"}]}";
    once(0, "'a/b' gets no label");
    ck_assert_uint_eq(patched, 0);
}

SL_TEST(more_models_than_a_node_may_be_labelled_with_are_refused)
{
    sl_autobuf text = SL_BUF_INIT(65536);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_buf_text(&text, "{\"models\": [null", &err), 0);
    for (int i = 0; i < 257; i++)
        ck_assert_int_eq(sl_buf_printf(&text, &err,
                                       ",{\"name\":\"m%d\",\"origin\":\"config\","
                                       "\"version\":\"1\"}",
                                       i),
                         0);
    ck_assert_int_eq(sl_buf_text(&text, "]}", &err), 0);
    models = sl_buf_string(&text);
    once(2, "more than 256");
    ck_assert_uint_eq(looked + patched, 0);
}

SL_TEST(an_api_server_that_refuses_is_quoted)
{
    status = 403;
    once(3, "nodes \"n1\" is forbidden");
    status = 404;
    once(4, "404");
    status = 500;
    once(7, "500");
    ck_assert_uint_eq(patched, 0);
}

SL_TEST(answers_that_are_no_node_are_survived)
{
    labels = "7";
    once(0, "");
    ck_assert_uint_eq(patched, 1);
    labels = "{";
    once(10, "the API server's answer");
    ck_assert_uint_eq(patched, 1);
}

SL_TEST(what_it_needs_is_asked_for)
{
    RUN(&ran, "label", "--node", "../secrets", "--api", url);
    ck_assert_int_eq(ran.exit_code, 2);
    RUN(&ran, "label", "--prefix", "Models", "--api", url);
    ck_assert_int_eq(ran.exit_code, 2);
    RUN(&ran, "label");
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(ran.err, "--api"));
    RUN(&ran, "label", "--api", "http://10.96.0.1", "--account", scratch);
    ck_assert_int_eq(ran.exit_code, 3); /* its token would go over the wire */
    unsetenv("NODE_NAME");
    RUN(&ran, "label", "--api", url);
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(ran.err, "NODE_NAME"));
    setenv("NODE_NAME", "n1", 1);
    RUN(&ran, "label", "--daemon", url, "--api", url, "--account", "/absent", "--every-seconds",
        "0");
    ck_assert_int_eq(ran.exit_code, 3);
    ck_assert_uint_eq(looked + patched, 0);
}

#define OURS     "{\"key\":\"csi.sluice.dev/agent-not-ready\",\"effect\":\"NoExecute\"}"
#define ANOTHERS "{\"key\":\"example.com/agent-not-ready\",\"effect\":\"NoSchedule\"}"

static void once_with_taint(int exit_code, const char *word)
{
    RUN(&ran, "label", "--daemon", url, "--api", url, "--account", scratch, "--every-seconds", "0",
        "--startup-taint", "csi.sluice.dev/agent-not-ready");
    ck_assert_msg(ran.exit_code == exit_code, "%d: %s", ran.exit_code, ran.err);
    ck_assert_msg(strstr(ran.err, word) != NULL, "%s", ran.err);
}

/* By its place, and only if that still has it: others change taints, too. */
SL_TEST(a_startup_taint_goes_when_the_driver_is_registered)
{
    labels = "{\"model.csi.sluice.dev/alpha\": \"ready\"}";
    taints = "[" OURS "," ANOTHERS "," OURS ",7]";
    drivers = "[{\"name\": \"ebs.csi.aws.com\"}, {\"name\": \"csi.sluice.dev\"}]";
    once_with_taint(0, "has lost the taint 'csi.sluice.dev/agent-not-ready'");
    ck_assert_uint_eq(patched, 1);
    ck_assert_str_eq(patch_type, "application/json-patch+json");
    ck_assert_str_eq(patch, "[{\"op\":\"test\",\"path\":\"/spec/taints/2\",\"value\":" OURS "},"
                            "{\"op\":\"remove\",\"path\":\"/spec/taints/2\"},"
                            "{\"op\":\"test\",\"path\":\"/spec/taints/0\",\"value\":" OURS "},"
                            "{\"op\":\"remove\",\"path\":\"/spec/taints/0\"}]");
}

SL_TEST(a_startup_taint_stays_until_then)
{
    labels = "{\"model.csi.sluice.dev/alpha\": \"ready\"}";
    taints = "[" ANOTHERS "," OURS "]";
    drivers = "[{\"name\": \"ebs.csi.aws.com\"}, {\"name\": 7}, null]";
    once_with_taint(8, "keeps the taint 'csi.sluice.dev/agent-not-ready'");
    drivers = "7";
    once_with_taint(8, "has not registered the CSI driver 'csi.sluice.dev' yet");
    models = NULL; /* a daemon that does not answer can mount nothing */
    drivers = "[{\"name\": \"csi.sluice.dev\"}]";
    once_with_taint(7, "503");
    ck_assert_uint_eq(patched, 0);
}

SL_TEST(taints_are_left_alone_unless_one_is_named)
{
    labels = "{\"model.csi.sluice.dev/alpha\": \"ready\"}";
    taints = "[" OURS "]";
    drivers = "[{\"name\": \"csi.sluice.dev\"}]";
    once(0, "");
    taints = "[" ANOTHERS "]";
    once_with_taint(0, "");
    ck_assert_uint_eq(patched, 0);
}

SL_TEST(it_follows_until_it_is_told_to_end)
{
    models = NULL;
    pid_t pid =
        start_sluice((const char *const[]){"label", "--daemon", url, "--api", url, "--account",
                                           scratch, "--every-seconds", "1", NULL},
                     out, log_);
    SL_AWAIT(asked >= 2, "two questions to a daemon that is not up");
    ck_assert_uint_eq(looked, 0);
    models = WHOLE;
    SL_AWAIT(patched == 1, "the label");
    labels = "{\"model.csi.sluice.dev/alpha\": \"ready\"}";
    unsigned before = asked;
    SL_AWAIT(asked >= before + 2, "two more questions");
    ck_assert_uint_eq(looked, 1); /* nothing changed: the API server is left alone */
    models = "{\"models\": []}";
    SL_AWAIT(patched == 2, "the label's end");
    kill(pid, SIGTERM);
    ck_assert_int_eq(wait_sluice(pid), 0);
}

SL_CASE(.setup = setup, .teardown = teardown)
