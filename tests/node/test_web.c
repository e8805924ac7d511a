/* Health, metrics, loads, events and the page over real sockets; and clients that mean no good. */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "http_client.h"
#include "mem.h"
#include "metrics.h"
#include "skip.h"
#include "thread.h"
#include "web.h"
#include "web_http.h"

static struct sl_web *web;
static unsigned port;

static void start(unsigned expected)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_web_config config = {
        .listen = "127.0.0.1:0", .expected_loads = expected, .idle_seconds = 3600};
    web = sl_web_start(&config, &err);
    ck_assert_msg(web != NULL, "%s", err.message);
    port = sl_web_port(web);
    ck_assert_uint_ne(port, 0);
}

static void start_one(void)
{
    start(1);
}

static void stop(void)
{
    sl_web_free(web);
    web = NULL;
}

static int status_of(const char *method, const char *path)
{
    struct http_reply reply;
    int result = http_ask(port, method, path, "", &reply);
    http_release(&reply);
    return result < 0 ? -1 : reply.status;
}

static json_t *get_json(const char *path, int status)
{
    struct http_reply reply;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(http_ask(port, "GET", path, "", &reply), 0);
    ck_assert_int_eq(reply.status, status);
    ck_assert_str_eq(http_header(&reply, "Content-Type"), "application/json");
    json_t *json = sl_json_parse(reply.body, reply.bytes, path, &err);
    ck_assert_msg(json != NULL, "%s", err.message);
    http_release(&reply);
    return json;
}

static struct sl_progress *make(const char *name)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *progress = sl_progress_new(name, "s3://m/x/", "/models", &err);
    sl_progress_set_total(progress, 100, 3, 2);
    sl_progress_set_state(progress, SL_LOAD_READING);
    return progress;
}

/* ---- answers -------------------------------------------------------------------------------- */

static const struct sl_claim_case starting_claims;

SL_TEST(ready_means_everything_is_published)
{
    ck_assert_int_eq(status_of("GET", "/healthz"), 200);
    ck_assert_int_eq(status_of("GET", "/startupz"), 503);
    json_t *json = get_json("/readyz", 503);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(json, "reasons"), 0)),
                     "not every load has started");
    json_decref(json);
    struct sl_progress *progress = make("m");
    sl_progress_add_bytes(progress, 40);
    json = get_json("/readyz", 503);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(json, "reasons"), 0)),
                     "'m' is reading: 40 of 100 bytes");
    json_decref(json);
    sl_progress_finish(progress, NULL);
    json_decref(get_json("/readyz", 200));
    ck_assert_int_eq(status_of("GET", "/startupz"), 200);
    sl_progress_free(progress);
    ck_assert_int_eq(status_of("GET", "/readyz"), 503);
    ck_assert_int_eq(status_of("GET", "/startupz"), 200);
}

/* Loads go on without it. */
SL_TEST(a_cache_that_does_badly_is_told_and_changes_no_readiness)
{
    const struct sl_supplied wrong = {.kind = SL_SUPPLIER_CACHE,
                                      .name = "http://10.0.0.7:8080",
                                      .wrong = 1,
                                      .failure = SL_SUPPLIER_FAILURE_COUNT};
    struct sl_progress *progress = make("m");
    sl_progress_add_supplied(progress, &wrong);
    json_t *json = get_json("/v1/loads/1", 200);
    json_t *place = json_array_get(json_object_get(json, "places"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(place, "name")), "http://10.0.0.7:8080");
    ck_assert_int_eq(json_integer_value(json_object_get(place, "wrong")), 1);
    json_decref(json);
    sl_progress_finish(progress, NULL);
    json = get_json("/readyz", 200);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(json, "degraded"), 0)),
                     "http://10.0.0.7:8080 was left: wrong bytes");
    ck_assert_uint_eq(json_array_size(json_object_get(json, "reasons")), 0);
    json_decref(json);
    sl_progress_free(progress);
}

SL_TEST(a_failed_load_is_never_ready_and_says_why)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *progress = make("m");
    sl_fail(&err, SL_E_AUTH, "cannot open 's3://m/x': 403");
    sl_progress_finish(progress, &err);
    json_t *json = get_json("/readyz", 503);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(json, "reasons"), 0)),
                     "'m' failed: cannot open 's3://m/x': 403");
    json_decref(json);
    sl_progress_free(progress);
}

SL_TEST(metrics_come_in_the_format_that_is_asked_for)
{
    struct http_reply reply;
    ck_assert_int_eq(http_ask(port, "GET", "/metrics", "", &reply), 0);
    ck_assert_str_eq(http_header(&reply, "Content-Type"),
                     "text/plain; version=0.0.4; charset=utf-8");
    ck_assert_ptr_nonnull(strstr(reply.body, "# TYPE sluice_source_bytes_total counter"));
    http_release(&reply);
    ck_assert_int_eq(
        http_ask(port, "GET", "/metrics",
                 "Accept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1\r\n", &reply),
        0);
    ck_assert_str_eq(http_header(&reply, "Content-Type"),
                     "application/openmetrics-text; version=1.0.0; charset=utf-8");
    ck_assert_str_eq(reply.body + reply.bytes - 6, "# EOF\n");
    http_release(&reply);
}

SL_TEST(loads_and_models_are_listed_and_found)
{
    struct sl_progress *first = make("a"), *second = make("b"), *third = make("b");
    sl_progress_finish(second, NULL);
    sl_progress_finish(third, NULL);
    json_t *json = get_json("/v1/loads", 200);
    ck_assert_uint_eq(json_array_size(json_object_get(json, "loads")), 3);
    json_decref(json);
    json = get_json("/v1/loads/1", 200);
    ck_assert_str_eq(sl_json_get_string(json, "name"), "a");
    json_decref(json);
    json = get_json("/v1/models", 200);
    ck_assert_uint_eq(json_array_size(json_object_get(json, "models")), 1);
    ck_assert_uint_eq(
        sl_json_get_uint(json_array_get(json_object_get(json, "models"), 0), "load", 0), 3);
    json_decref(json);
    json = get_json("/v1/models/%62", 200);
    ck_assert_uint_eq(sl_json_get_uint(json, "bytes", 0), 100);
    json_decref(json);
    const char *missing[] = {"/v1/models/a",
                             "/v1/loads/4",
                             "/v1/loads/x",
                             "/v1/loads/01",
                             "/v1/loads/99999999999999999999",
                             "/v1/loads/",
                             "/v1",
                             "/nothing",
                             "/healthz/",
                             "/%2e%2e/healthz",
                             "/%00healthz",
                             "/%zz",
                             "//healthz"};
    for (size_t i = 0; i < SL_COUNT(missing); i++) {
        json = get_json(missing[i], 404);
        ck_assert_str_eq(sl_json_get_string(json_object_get(json, "error"), "kind"), "NOT_FOUND");
        json_decref(json);
    }
    sl_progress_free(first);
    sl_progress_free(second);
    sl_progress_free(third);
}

SL_TEST(many_loads_are_cut_to_the_latest)
{
    struct sl_progress *all[400];
    for (int i = 0; i < 400; i++)
        all[i] = make("m");
    json_t *json = get_json("/v1/loads", 200), *loads = json_object_get(json, "loads");
    ck_assert_uint_eq(json_array_size(loads), 256);
    ck_assert_uint_eq(sl_json_get_uint(json_array_get(loads, 255), "id", 0), 400);
    ck_assert_uint_eq(sl_json_get_uint(json, "load_count", 0), 400);
    json_decref(json);
    for (int i = 0; i < 400; i++)
        sl_progress_free(all[i]);
}

SL_TEST(only_get_and_head_are_answered)
{
    const char *methods[] = {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "X"};
    struct http_reply reply;
    for (size_t i = 0; i < SL_COUNT(methods); i++) {
        ck_assert_int_eq(http_ask(port, methods[i], "/healthz", "Content-Length: 3\r\n", &reply),
                         0);
        ck_assert_int_eq(reply.status, 405);
        ck_assert_str_eq(http_header(&reply, "Allow"), "GET, HEAD");
        http_release(&reply);
    }
    const char *paths[] = {"/", "/healthz", "/metrics", "/v1/loads", "/v1/events"};
    for (size_t i = 0; i < SL_COUNT(paths); i++)
        ck_assert_int_eq(status_of("HEAD", paths[i]), 200);
    ck_assert_int_eq(status_of("HEAD", "/readyz"), 503);
}

SL_TEST(the_page_loads_nothing_from_elsewhere)
{
    struct http_reply reply;
    ck_assert_int_eq(http_ask(port, "GET", "/", "", &reply), 0);
    ck_assert_int_eq(reply.status, 200);
    ck_assert_str_eq(http_header(&reply, "Content-Type"), "text/html; charset=utf-8");
    ck_assert_ptr_null(strstr(reply.body, "://"));
    ck_assert_ptr_null(strstr(reply.body, "src="));
    ck_assert_ptr_null(strstr(reply.body, " style="));
    ck_assert_ptr_null(strstr(reply.body, "innerHTML"));
    const char *policy = http_header(&reply, "Content-Security-Policy");
    ck_assert_ptr_nonnull(strstr(policy, "default-src 'none'; style-src 'sha256-"));
    ck_assert_ptr_null(strstr(policy, "unsafe"));
    ck_assert_str_eq(http_header(&reply, "X-Content-Type-Options"), "nosniff");
    ck_assert_str_eq(http_header(&reply, "Cache-Control"), "no-store");
    http_release(&reply);
}

SL_TEST(a_page_learns_what_serves_it_and_what_came_before)
{
    json_t *json = get_json("/v1/status", 200);
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    ck_assert_str_eq(sl_json_get_string(json, "node"), host);
    ck_assert_str_eq(sl_json_get_string(json, "version"), SLUICE_VERSION);
    ck_assert_str_eq(sl_json_get_string(json, "serves"), "loads");
    ck_assert_str_eq(sl_json_get_string(json, "changes"), "off");
    ck_assert(json_is_number(json_object_get(json, "uptime_seconds")));
    json_decref(json);
    json = get_json("/v1/history", 200);
    ck_assert_uint_eq(sl_json_get_uint(json, "step_seconds", 0), 2);
    ck_assert(json_is_array(json_object_get(json, "bytes")));
    json_decref(json);
}

SL_TEST(an_error_is_explained_and_leads_to_its_runbook)
{
    json_t *json = get_json("/v1/errors/NOT_FOUND", 200);
    ck_assert_str_eq(sl_json_get_string(json, "meaning"), sl_err_row(SL_E_NOT_FOUND)->meaning);
    ck_assert_str_eq(sl_json_get_string(json, "runbook"), "docs/troubleshooting.md#by-exit-code");
    json_decref(json);
    setenv("SLUICE_DOCS_URL", "https://docs.example/sluice/", 1);
    json = get_json("/v1/status", 200);
    ck_assert_str_eq(sl_json_get_string(json, "runbooks"),
                     "https://docs.example/sluice/troubleshooting.md#by-exit-code");
    json_decref(json);
    setenv("SLUICE_DOCS_URL", "javascript:alert(1)", 1);
    json = get_json("/v1/status", 200);
    ck_assert(json_is_null(json_object_get(json, "runbooks")));
    json_decref(json);
    json_decref(get_json("/v1/errors/NOT", 404));
}

/* ---- events --------------------------------------------------------------------------------- */

static void read_until(int fd, const char *text, char *all, size_t capacity)
{
    size_t used = strlen(all);
    while (!strstr(all, text)) {
        ssize_t got = recv(fd, all + used, capacity - used - 1, 0);
        ck_assert_msg(got > 0, "'%s' never came, but '%s'", text, all);
        used += (size_t)got;
        all[used] = 0;
    }
}

static int open_events(void)
{
    int fd = http_connect(port);
    ck_assert_int_eq(http_send(fd, "GET /v1/events HTTP/1.1\r\nHost: t\r\n\r\n"), 0);
    return fd;
}

SL_TEST(events_tell_changes_as_they_happen)
{
    sl_autofree char *all = calloc(1, 1 << 20);
    struct sl_progress *progress = make("m");
    int fd = open_events();
    read_until(fd, "event: state\ndata: {", all, 1 << 20);
    read_until(fd, "\"state\":\"reading\"", all, 1 << 20);
    ck_assert_ptr_nonnull(strstr(all, "Content-Type: text/event-stream"));
    read_until(fd, "event: progress\n", all, 1 << 20);
    sl_progress_finish(progress, NULL);
    read_until(fd, "\"state\":\"published\"", all, 1 << 20);
    close(fd);
    sl_progress_free(progress);
}

SL_TEST(readers_of_events_are_counted_and_leave_when_told)
{
    int fds[32];
    for (int i = 0; i < 32; i++) {
        char all[4096] = "";
        fds[i] = open_events();
        read_until(fds[i], "event: state", all, sizeof(all));
    }
    ck_assert_int_eq(status_of("GET", "/v1/events"), 503);
    ck_assert_int_eq(status_of("GET", "/healthz"), 200);
    stop();
    for (int i = 0; i < 32; i++)
        close(fds[i]);
}

SL_TEST(readers_that_go_away_make_room)
{
    struct sl_progress *progress = make("m");
    for (int i = 0; i < 100; i++) {
        int fd = open_events();
        shutdown(fd, SHUT_WR);
        close(fd);
    }
    int status = 503;
    for (int i = 0; i < 600 && status == 503; i++) {
        char all[4096] = "";
        int fd = open_events();
        read_until(fd, "\r\n\r\n", all, sizeof(all));
        ck_assert_int_eq(sscanf(all, "HTTP/1.1 %d", &status), 1);
        close(fd);
        if (status == 503) {
            sl_progress_set_state(progress, i % 2 ? SL_LOAD_READING : SL_LOAD_CHECKING);
            sl_sleep_ms(50, NULL, NULL); /* what it waits for is a client's timer tick */
        }
    }
    ck_assert_int_eq(status, 200);
    sl_progress_free(progress);
}

/* ---- hostile clients ------------------------------------------------------------------------ */

SL_TEST(requests_that_are_too_big_are_refused)
{
    sl_autofree char *big = malloc(70000);
    memset(big, 'a', 69999);
    big[69999] = 0;
    sl_autofree char *path = sl_asprintf(NULL, "/%s", big);
    sl_autofree char *header = sl_asprintf(NULL, "X-Big: %s\r\n", big);
    struct http_reply reply;
    if (http_ask(port, "GET", path, "", &reply) == 0)
        ck_assert_int_ge(reply.status, 400);
    http_release(&reply);
    if (http_ask(port, "GET", "/healthz", header, &reply) == 0)
        ck_assert_int_ge(reply.status, 400);
    http_release(&reply);
    ck_assert_int_eq(status_of("GET", "/healthz"), 200);
}

SL_TEST(a_body_is_never_read)
{
    int fd = http_connect(port);
    struct http_reply reply;
    ck_assert_int_eq(http_send(fd, "POST /v1/loads HTTP/1.1\r\nHost: t\r\n"
                                   "Content-Length: 99999999999\r\n\r\n"),
                     0);
    ck_assert_int_eq(http_receive(fd, 0, &reply), 0);
    ck_assert_int_eq(reply.status, 405);
    http_release(&reply);
    close(fd);
}

SL_TEST(bytes_that_are_no_http_end_only_their_own_connection)
{
    const char *nonsense[] = {"\r\n\r\n\r\n\r\n",
                              "\x16\x03\x01\x02",
                              "GET\r\n\r\n",
                              "GET / HTTP/9.9\r\n\r\n",
                              "GET / HTTP/1.1\r\nHost\r\n\r\n",
                              "GET / HTTP/1.1\r\n: x\r\n\r\n",
                              "GET healthz HTTP/1.1\r\nHost: t\r\n\r\n"};
    for (size_t i = 0; i < SL_COUNT(nonsense); i++) {
        int fd = http_connect(port);
        http_send(fd, nonsense[i]);
        shutdown(fd, SHUT_WR);
        struct timeval limit = {.tv_usec = 200 * 1000}; /* half a request may keep its place */
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
        char text[4096];
        while (recv(fd, text, sizeof(text), 0) > 0)
            ;
        close(fd);
    }
    ck_assert_int_eq(status_of("GET", "/healthz"), 200);
}

/* Each holds a half-sent request; the server serves on, and lets the oldest go. */
SL_TEST(a_thousand_slow_clients_keep_no_probe_out)
{
    enum { CLIENTS = 1000 };
    static int fds[CLIENTS];
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = SL_MIN(files.rlim_max, (rlim_t)4096);
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < 4096)
        SL_SKIP("fewer than 4096 descriptors are allowed");
    stop();
    start(1);
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = http_connect(port);
        ck_assert_int_ge(fds[i], 0);
        http_send(fds[i], "GET /metrics HTTP/1.1\r\nX: ");
        if (i % 100 == 99)
            ck_assert_int_eq(status_of("GET", "/healthz"), 200);
    }
    unsigned gone = 0;
    for (int i = 0; i < CLIENTS; i++) {
        struct pollfd wait = {fds[i], POLLIN, 0}; /* the oldest go, the last 256 may stay */
        gone += poll(&wait, 1, i < CLIENTS - 256 ? 30000 : 0) == 1;
        close(fds[i]);
    }
    ck_assert_uint_ge(gone, CLIENTS - 256);
}

static bool is_cut_off(int fd)
{
    struct pollfd wait = {fd, POLLIN, 0};
    http_send(fd, "G");
    return poll(&wait, 1, 100) == 1;
}

/* A byte now and then keeps a connection busy; it is the whole time that counts. */
SL_TEST(a_client_that_trickles_is_cut_off)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_web_config config = {.listen = "127.0.0.1:0", .idle_seconds = 1};
    stop();
    web = sl_web_start(&config, &err);
    ck_assert_ptr_nonnull(web);
    int fd = http_connect(sl_web_port(web));
    SL_AWAIT(is_cut_off(fd), "the end of the connection");
    close(fd);
}

SL_TEST(a_connection_serves_many_requests)
{
    int fd = http_connect(port);
    for (int i = 0; i < 200; i++) {
        struct http_reply reply;
        ck_assert_int_eq(http_send(fd, "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"), 0);
        ck_assert_int_eq(http_receive(fd, 0, &reply), 0);
        ck_assert_int_eq(reply.status, 200);
        http_release(&reply);
    }
    close(fd);
}

static void *ask_often(void *arg)
{
    const char *paths[] = {"/metrics", "/v1/loads", "/readyz", "/", "/v1/models"};
    for (int i = 0; i < 60; i++) {
        struct http_reply reply;
        if (http_ask(port, i % 7 ? "GET" : "HEAD", paths[i % 5], "", &reply) < 0)
            *(int *)arg += 1;
        http_release(&reply);
    }
    return NULL;
}

SL_TEST(many_clients_ask_while_loads_change)
{
    pthread_t threads[6];
    int failed[6] = {0};
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, ask_often, &failed[i]), 0);
    int events = open_events();
    for (int i = 0; i < 300; i++) {
        struct sl_progress *progress = make("m");
        sl_progress_add_bytes(progress, 10);
        sl_progress_finish(progress, NULL);
        sl_progress_free(progress);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(failed[i], 0);
    }
    close(events);
}

/* ---- starting ------------------------------------------------------------------------------- */

SL_TEST_OF(starting_claims, addresses_are_read_as_people_write_them)
{
    struct sl_err err = SL_ERR_INIT;
    char host[256];
    unsigned number;
    const struct {
        const char *text, *host;
        unsigned port;
    } good[] = {{"127.0.0.1:9464", "127.0.0.1", 9464},
                {":80", "", 80},
                {"[::]:0", "::", 0},
                {"[fe80::1]:65535", "fe80::1", 65535},
                {"localhost:1", "localhost", 1}};
    for (size_t i = 0; i < SL_COUNT(good); i++) {
        ck_assert_int_eq(sl_web_address_parse(good[i].text, host, &number, &err), 0);
        ck_assert_str_eq(host, good[i].host);
        ck_assert_uint_eq(number, good[i].port);
    }
    const char *bad[] = {"",           "9464",    "host",    "host:", "host:x",
                         "host:65536", "::1:80",  "[::1:80", "[]:80", "host:99999999999999999999",
                         "host:-1",    "host: 80"};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        ck_assert_int_eq(sl_web_address_parse(bad[i], host, &number, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
    }
}

SL_TEST_OF(starting_claims, an_address_in_use_is_named)
{
    struct sl_err err = SL_ERR_INIT;
    char text[32];
    start(0);
    snprintf(text, sizeof(text), "127.0.0.1:%u", port);
    const struct sl_web_config config = {.listen = text};
    ck_assert_ptr_null(sl_web_start(&config, &err));
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_ptr_nonnull(strstr(err.message, text));
    stop();
}

SL_TEST_OF(starting_claims, too_few_descriptors_are_told_of_at_every_step)
{
    const struct sl_web_config config = {.listen = "127.0.0.1:0", .share_directory = "/tmp"};
    struct rlimit usual, scarce;
    start(0); /* its library is open from now on */
    stop();
    getrlimit(RLIMIT_NOFILE, &usual);
    scarce = usual;
    unsigned refused = 0;
    for (scarce.rlim_cur = 3; !web; scarce.rlim_cur++) {
        struct sl_err err = SL_ERR_INIT;
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &scarce), 0);
        web = sl_web_start(&config, &err);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &usual), 0);
        ck_assert_msg(web || strstr(err.message, "(ulimit -n)"), "%s", err.message);
        ck_assert_msg(web || err.kind == SL_E_NO_SPACE, "%s", err.message);
        refused += !web;
    }
    ck_assert_uint_gt(refused, 5);
    stop();
}

SL_TEST_OF(starting_claims, every_address_takes_both_families)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_web_config config = {.listen = ":0"};
    web = sl_web_start(&config, &err);
    ck_assert_msg(web != NULL, "%s", err.message);
    port = sl_web_port(web);
    ck_assert_int_eq(status_of("GET", "/readyz"), 200);
    stop();
}

SL_TEST_OF(starting_claims, a_failing_allocation_starts_nothing_and_leaks_nothing)
{
    for (unsigned nth = 1; nth < 50; nth++) {
        struct sl_err err = SL_ERR_INIT;
        const struct sl_web_config config = {.listen = "127.0.0.1:0", .share_directory = "/tmp"};
        sl_alloc_fail_at(nth);
        struct sl_web *started = sl_web_start(&config, &err);
        unsigned made = sl_alloc_count();
        sl_alloc_fail_at(0);
        sl_web_free(started);
        if (made < nth) {
            ck_assert_ptr_nonnull(started);
            return;
        }
        if (!started)
            ck_assert_int_ne(err.kind, SL_OK);
    }
    ck_abort_msg("it never started");
}

SL_TEST(a_request_that_finds_no_memory_harms_no_other)
{
    const char *paths[] = {"/metrics", "/v1/loads", "/v1/models", "/readyz", "/v1/events"};
    struct sl_progress *progress = make("m");
    for (size_t i = 0; i < SL_COUNT(paths); i++)
        for (unsigned nth = 1; nth < 12; nth++) {
            struct http_reply reply;
            int fd = http_connect(port);
            sl_alloc_fail_at(nth);
            sl_autofree char *request = NULL;
            ck_assert_int_gt(asprintf(&request, "HEAD %s HTTP/1.0\r\n\r\n", paths[i]), 0);
            if (http_send(fd, request) == 0 && http_receive(fd, 1, &reply) == 0)
                ck_assert_int_ge(reply.status, 200);
            sl_alloc_fail_at(0);
            http_release(&reply);
            close(fd);
            ck_assert_int_eq(status_of("GET", "/healthz"), 200);
        }
    sl_progress_free(progress);
}

static const struct sl_claim_case starting_claims = {.seconds = 0};

SL_CASE(.setup = start_one, .teardown = stop)
