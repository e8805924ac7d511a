/* Requests that change something: who may, what is refused and how, and what they do. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "claims.h"
#include "http_client.h"
#include "memory_store.h"
#include "model_maker.h"
#include "node.h"
#include "registry_settle.h"
#include "scratch.h"
#include "tree.h"
#include "web.h"

#define TOKEN  "0123456789abcdef"
#define BEARER "Authorization: Bearer " TOKEN "\r\n"
#define MODEL(name)                                                                                \
    "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                             \
    "}\nsource: {uri: \"memory://m/\"}\n"

static char path[SL_SCRATCH_PATH_BYTES], control_path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch;
static struct sl_err err;
static struct sl_node *node;
static struct sl_web *web, *control;

static void open_node(bool with_token)
{
    char text[2048];
    struct sl_node_config config;
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1MiB\n"
             "%s%s%s\n---\n" MODEL("m"),
             path, with_token ? "control: {tokenFile: " : "", with_token ? path : "",
             with_token ? "/token}" : "");
    ck_assert_int_eq(sl_tree_write(scratch, "node.yaml", text, strlen(text), &err), 0);
    snprintf(text, sizeof(text), "%s/node.yaml", path);
    ck_assert_msg(sl_node_config_read(text, &config, &complaints, &err) == 0, "%s", err.message);
    node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    ck_assert_msg(node != NULL, "%s", err.message);
    sl_node_config_release(&config);
    const struct sl_web_socket at = {control_path, 0600, UINT32_MAX};
    const struct sl_web_config tcp = {.listen = "127.0.0.1:0", .node = node};
    const struct sl_web_config local = {.control = &at, .node = node};
    web = sl_web_start(&tcp, &err);
    control = sl_web_start(&local, &err);
    ck_assert_msg(web && control, "%s", err.message);
    sl_registry_settle(node->registry);
}

static void setup(void)
{
    scratch = sl_scratch_open(path);
    snprintf(control_path, sizeof(control_path), "%s/run/control", path);
    ck_assert_int_eq(sl_tree_write(scratch, "token", TOKEN "\n", strlen(TOKEN) + 1, &err), 0);
    ck_assert_int_eq(sl_memory_put("m/config.json", "{}", 2, NULL), 0);
    open_node(true);
}

static void close_node(void)
{
    sl_web_free(control);
    sl_web_free(web);
    sl_node_free(node);
}

static void teardown(void)
{
    close_node();
    sl_memory_clear();
    sl_scratch_close(scratch, path);
}

/* One request; its status. A body gets its length. */
static int ask_at(int fd, const char *method, const char *target, const char *headers,
                  const char *body, struct http_reply *reply)
{
    char text[8192], length[64] = "";
    if (body)
        snprintf(length, sizeof(length), "Content-Length: %zu\r\n", strlen(body));
    snprintf(text, sizeof(text), "%s %s HTTP/1.1\r\nHost: x\r\n%s%s\r\n%s", method, target, headers,
             length, body ? body : "");
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(http_send(fd, text), 0);
    ck_assert_int_eq(http_receive(fd, 0, reply), 0);
    close(fd);
    return reply->status;
}

static int local(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", control_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static int far(void)
{
    return http_connect(sl_web_port(web));
}

static void expect(int fd, const char *method, const char *target, const char *headers,
                   const char *body, int status, const char *words)
{
    struct http_reply reply = {0};
    int got = ask_at(fd, method, target, headers, body, &reply);
    ck_assert_msg(got == status && strstr(reply.body, words), "%s %s: %d %s", method, target, got,
                  reply.body);
    http_release(&reply);
}

/* ---- who ------------------------------------------------------------------------------------ */

static const struct {
    const char *method, *target, *body;
    int status; /* for who may */
} requests[] = {
    {"POST", "/v1/loads", MODEL("r"), 202},    {"POST", "/v1/models", MODEL("r"), 202},
    {"POST", "/v1/models/r/load", NULL, 202},  {"POST", "/v1/models/r/pin", NULL, 202},
    {"POST", "/v1/models/r/unpin", NULL, 202}, {"POST", "/v1/models/r/evict", NULL, 202},
    {"DELETE", "/v1/models/r", NULL, 202},
};

SL_TEST(without_a_token_nothing_can_be_changed_over_tcp)
{
    for (size_t i = 0; i < SL_COUNT(requests); i++) {
        expect(far(), requests[i].method, requests[i].target, "", requests[i].body, 401,
               "a bearer token is needed");
        expect(far(), requests[i].method, requests[i].target,
               "Authorization: Bearer 0123456789abcdeF\r\n", requests[i].body, 401,
               "bearer token is wrong");
        expect(far(), requests[i].method, requests[i].target, "Authorization: Basic " TOKEN "\r\n",
               requests[i].body, 401, "is needed");
    }
    struct sl_registry_counts counts;
    sl_registry_counts(node->registry, &counts);
    ck_assert_uint_eq(counts.models, 1);
}

SL_TEST(the_token_opens_all_of_it)
{
    for (size_t i = 0; i < SL_COUNT(requests); i++) {
        expect(far(), requests[i].method, requests[i].target, BEARER, requests[i].body,
               requests[i].status, "");
        sl_registry_settle(node->registry);
    }
}

SL_TEST(so_does_the_control_socket)
{
    for (size_t i = 0; i < SL_COUNT(requests); i++) {
        expect(local(), requests[i].method, requests[i].target, "", requests[i].body,
               requests[i].status, "");
        sl_registry_settle(node->registry);
    }
    expect(local(), "GET", "/v1/models/m", "", NULL, 200, "\"state\":\"ready\"");
    expect(local(), "GET", "/healthz", "", NULL, 200, "ok");
}

SL_TEST(without_a_token_file_there_is_only_the_socket)
{
    close_node();
    open_node(false);
    expect(far(), "POST", "/v1/models/m/load", BEARER, NULL, 403, "control socket");
    expect(local(), "POST", "/v1/models/m/load", "", NULL, 202, "\"m\"");
}

SL_TEST(a_token_file_that_is_gone_opens_nothing)
{
    ck_assert_int_eq(unlinkat(scratch, "token", 0), 0);
    expect(far(), "POST", "/v1/models/m/load", BEARER, NULL, 503, "the log says why");
}

/* ---- what ----------------------------------------------------------------------------------- */

SL_TEST(what_is_asked_wrongly_is_refused_with_its_reason)
{
    expect(local(), "POST", "/v1/loads", "", "kind: [", 400, "USAGE");
    expect(local(), "POST", "/v1/loads", "", MODEL("r") "extra: 1\n", 400,
           "request:5:1: unknown key 'extra'");
    expect(local(), "POST", "/v1/loads", "", NULL, 411, "Content-Length");
    expect(local(), "POST", "/v1/loads", "Transfer-Encoding: chunked\r\n", NULL, 411, "");
    expect(local(), "POST", "/v1/loads", "Content-Length: 1048577\r\n", NULL, 413,
           "at most 1048576 bytes");
    expect(local(), "POST", "/v1/models/m/pin", "", "x", 413, "takes no body");
    expect(local(), "POST", "/v1/models/none/pin", "", NULL, 404, "'none'");
    expect(local(), "DELETE", "/v1/models/none", "", NULL, 404, "'none'");
    expect(local(), "POST", "/v1/nothing", "", NULL, 404, "to change");
    expect(local(), "PUT", "/v1/models/m", "", NULL, 405, "PUT");
    expect(local(), "GET", "/v1/models/none", "", NULL, 404, "'none'");
}

SL_TEST(what_is_not_possible_now_is_a_conflict)
{
    expect(local(), "DELETE", "/v1/models/m", "", NULL, 409, "\"code\":\"config\"");
    expect(local(), "POST", "/v1/models/m/evict", "", NULL, 409, "\"code\":\"pinned\"");
    expect(local(), "POST", "/v1/loads", "", MODEL("m") "readers: {attempts: 3}\n", 409,
           "\"code\":\"exists\"");
    expect(
        local(), "POST", "/v1/loads", "",
        MODEL("r") "---\n" MODEL("m") "readers: {attempts: 3}\n---\n" MODEL("s"), 409,
        "the first 1 of 3 models will be loaded, the others not: the model 'm' is in the config");
    expect(local(), "GET", "/v1/models/s", "", NULL, 404, "'s'");
    struct sl_model_ref *ref = sl_registry_wait_until(node->registry, "r", SL_REF_DIRECTORY,
                                                      "a test", NULL, UINT64_MAX, NULL, &err);
    ck_assert_ptr_nonnull(ref);
    expect(local(), "DELETE", "/v1/models/r", "", NULL, 409, "\"code\":\"busy\"");
    expect(local(), "GET", "/v1/models/r", "", NULL, 200, "\"who\":\"a test\"");
    sl_registry_release(node->registry, ref);
    expect(local(), "DELETE", "/v1/models/r", "", NULL, 202, "forgotten");
}

SL_TEST(a_refusal_says_how_to_ask)
{
    struct http_reply reply = {0};
    ck_assert_int_eq(ask_at(far(), "DELETE", "/v1/models/m", "", NULL, &reply), 401);
    ck_assert_str_eq(http_header(&reply, "WWW-Authenticate"), "Bearer realm=\"sluice\"");
    http_release(&reply);
    ck_assert_int_eq(ask_at(local(), "PUT", "/v1/loads", "", NULL, &reply), 405);
    ck_assert_str_eq(http_header(&reply, "Allow"), "GET, HEAD, POST");
    http_release(&reply);
    /* what is only read, and what is only changed, is known by its path, whatever the method */
    static const struct {
        const char *method, *target, *allow;
    } others[] = {
        {"POST", "/healthz", "GET, HEAD"},
        {"OPTIONS", "/metrics", "GET, HEAD"},
        {"PUT", "/", "GET, HEAD"},
        {"DELETE", "/v1/loads/1", "GET, HEAD"},
        {"POST", "/v1/errors/NET", "GET, HEAD"},
        {"GET", "/v1/models/m/pin", "POST"},
    };
    for (size_t i = 0; i < SL_COUNT(others); i++) {
        ck_assert_msg(ask_at(i % 2 ? local() : far(), others[i].method, others[i].target, "", NULL,
                             &reply) == 405,
                      "%s %s: %d", others[i].method, others[i].target, reply.status);
        ck_assert_str_eq(http_header(&reply, "Allow"), others[i].allow);
        http_release(&reply);
    }
    expect(far(), "GET", "/v1/models/m/other", "", NULL, 404, "there is no");
    expect(far(), "POST", "/v1/models/m/other", "", NULL, 404, "there is no");
}

static void *post_pieces(void *arg)
{
    struct http_reply reply = {0};
    int fd = local();
    (void)arg;
    ck_assert_int_eq(
        http_send(fd, "POST /v1/loads HTTP/1.1\r\nHost: x\r\nContent-Length: 93\r\n\r\n"), 0);
    for (const char *at = MODEL("piece"); *at; at++) {
        char one[2] = {*at, 0};
        ck_assert_int_eq(http_send(fd, one), 0);
    }
    ck_assert_int_eq(http_receive(fd, 0, &reply), 0);
    ck_assert_msg(reply.status == 202, "%d %s", reply.status, reply.body);
    http_release(&reply);
    close(fd);
    return NULL;
}

SL_TEST(a_body_may_come_in_pieces_and_from_many)
{
    pthread_t threads[8];
    ck_assert_uint_eq(strlen(MODEL("piece")), 93);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, post_pieces, NULL), 0);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    sl_registry_settle(node->registry);
    struct sl_registry_counts counts;
    sl_registry_counts(node->registry, &counts);
    ck_assert_uint_eq(counts.loads, 2); /* of m and of piece */
}

SL_TEST(a_socket_that_somebody_serves_is_left_alone)
{
    const struct sl_web_socket at = {control_path, 0600, UINT32_MAX};
    const struct sl_web_config config = {.control = &at, .node = node};
    ck_assert_ptr_null(sl_web_start(&config, &err));
    ck_assert_ptr_nonnull(strstr(err.message, "another process serves it"));
    expect(local(), "GET", "/healthz", "", NULL, 200, "ok");
}

SL_TEST(who_asks_learns_what_it_may_change)
{
    const char *wrong = "Authorization: Bearer 0123456789abcdee\r\n";
    expect(far(), "GET", "/v1/status", "", NULL, 200, "\"changes\":\"token\"");
    expect(far(), "GET", "/v1/status", wrong, NULL, 200, "\"changes\":\"token\"");
    expect(far(), "GET", "/v1/status", BEARER, NULL, 200, "\"changes\":\"allowed\"");
    expect(local(), "GET", "/v1/status", "", NULL, 200, "\"changes\":\"allowed\"");
    expect(local(), "GET", "/v1/status", "", NULL, 200, "\"serves\":\"node\"");
    close_node();
    open_node(false);
    expect(far(), "GET", "/v1/status", BEARER, NULL, 200, "\"changes\":\"off\"");
}

SL_TEST(readiness_is_that_of_the_config)
{
    expect(far(), "GET", "/readyz", "", NULL, 200, "\"published\":1");
    sl_web_drain(web, 0);
    expect(far(), "GET", "/readyz", "", NULL, 503, "about to end");
    expect(far(), "GET", "/metrics", "", NULL, 200, "sluice_node_models_ready 1");
}

SL_CASE(.setup = setup, .teardown = teardown)
