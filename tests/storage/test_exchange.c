/* One exchange: what it sends, which answers it refuses, how it frames bodies and keeps
 * connections. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "exchange.h"
#include "fake_clock.h"
#include "http_head_case.h"
#include "range_blob.h"

static struct sl_server *server;
static struct sl_exchange *exchange;
static const struct sl_connect config = {.stall_seconds = 20}, hasty = {.stall_seconds = 1};

static void setup(void)
{
    struct sl_err err = SL_ERR_INIT;
    server = sl_server_start();
    exchange = sl_exchange_new(&config, &err);
    ck_assert_ptr_nonnull(exchange);
}

static void teardown(void)
{
    sl_exchange_free(exchange);
    sl_server_stop(server);
}

static int get(const char *path, size_t limit, struct sl_answer *answer, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_exchange_simple(
        exchange, &(struct sl_request){.method = "GET", .url = sl_server_url(server, path)}, limit,
        answer, err);
}

/* Answer /x with this head and nothing else. */
static int answer_with(const char *text, struct sl_answer *answer, struct sl_err *err)
{
    SL_SCRIPT(server, {.path = "/x", .fault = SL_FAULT_HEAD, .text = text});
    return get("/x", 1000, answer, err);
}

SL_TEST(any_status_is_an_answer)
{
    struct sl_answer answer;
    struct sl_err err;
    char text[100], cut[6];
    SL_SCRIPT(server, {.fault = SL_FAULT_STATUS,
                       .status = 418,
                       .headers = "X-A:  one \r\nX-A: two\r\nX-Empty:\r\n",
                       .text = "body"});
    ck_assert_int_eq(get("/", 100, &answer, &err), 0);
    ck_assert_int_eq(answer.status, 418);
    ck_assert_str_eq(sl_buf_string(&answer.body), "body");
    ck_assert(sl_answer_header(&answer, "x-a", text, sizeof(text)));
    ck_assert_str_eq(text, "one");
    ck_assert(sl_answer_header(&answer, "x-empty", text, sizeof(text)));
    ck_assert_str_eq(text, "");
    ck_assert(sl_answer_header(&answer, "content-length", cut, 1));
    ck_assert_str_eq(cut, "");
    ck_assert(!sl_answer_header(&answer, "x", text, sizeof(text)));
    sl_answer_release(&answer);
}

SL_TEST(a_request_is_what_it_should_be)
{
    struct sl_answer answer;
    struct sl_err err = SL_ERR_INIT;
    char text[100];
    const char *headers[] = {"X-One: 1", "X-Two: a:b", NULL};
    struct sl_request request = {.method = "POST",
                                 .url = sl_server_url(server, "/p/../q//%2F?x=%20y#gone"),
                                 .headers = headers,
                                 .body = "hello",
                                 .body_bytes = 5};
    ck_assert_int_eq(sl_exchange_simple(exchange, &request, 100, &answer, &err), 0);
    const struct sl_server_request *came = sl_server_request_at(server, 0);
    ck_assert_str_eq(came->method, "POST");
    ck_assert_str_eq(came->target, "/p/../q//%2F?x=%20y");
    ck_assert_str_eq(came->body, "hello");
    ck_assert(sl_server_header(came, "Host", text, sizeof(text)));
    ck_assert_int_eq(strncmp(text, "127.0.0.1:", 10), 0);
    ck_assert(sl_server_header(came, "Accept-Encoding", text, sizeof(text)));
    ck_assert_str_eq(text, "identity");
    ck_assert(sl_server_header(came, "X-Two", text, sizeof(text)));
    ck_assert_str_eq(text, "a:b");
    sl_answer_release(&answer);
}

SL_TEST_LOOP(injected_headers_are_refused, 0, 7)
{
    static const char *const bad[] = {
        "A: b\r\nHost: evil", "A: b\nC: d", "A: b\rC", "no colon", ": b", "A: \x7f", "A: \x01"};
    struct sl_answer answer;
    struct sl_err err = SL_ERR_INIT;
    const char *headers[] = {bad[_i], NULL};
    struct sl_request request = {
        .method = "GET", .url = sl_server_url(server, "/"), .headers = headers};
    ck_assert_int_eq(sl_exchange_simple(exchange, &request, 100, &answer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_uint_eq(sl_server_request_count(server), 0);
}

SL_TEST_LOOP(injected_urls_and_methods_are_refused, 0, 9)
{
    static const char *const urls[] = {"http://127.0.0.1/a\r\nHost: evil",
                                       "http://127.0.0.1/a\n",
                                       "ftp://127.0.0.1/",
                                       "http:///x",
                                       "http://127.0.0.1:0/",
                                       "http://127.0.0.1:99999/",
                                       "http://a b/",
                                       ""};
    struct sl_answer answer;
    struct sl_err err = SL_ERR_INIT;
    struct sl_request request = {.method = _i < 8 ? "GET" : "GET / X",
                                 .url = _i < 8 ? urls[_i] : "http://127.0.0.1/"};
    ck_assert_int_eq(sl_exchange_simple(exchange, &request, 100, &answer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

static const char *const bad_heads[] = {
    "garbage\r\n\r\n",
    "HTTP/2 200 OK\r\n\r\n",
    "HTTP/1.2 200 OK\r\n\r\n",
    "HTTP/1.1 20 OK\r\n\r\n",
    "HTTP/1.1 099 OK\r\n\r\n",
    "HTTP/1.1 2000 OK\r\n\r\n",
    "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
    "HTTP/1.1 200 OK\r\n: b\r\n\r\n",
    "HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
    "HTTP/1.1 200 OK\r\nA : c\r\n\r\n",
    "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    "HTTP/1.1 200 OK\r\nA: \x01\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 0x3\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: "
    "chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 101 Switching\r\n\r\n",
};

SL_TEST_LOOP(ambiguous_heads_are_refused, 0, (int)SL_COUNT(bad_heads))
{
    struct sl_answer answer;
    struct sl_err err;
    ck_assert_int_eq(answer_with(bad_heads[_i], &answer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert(!err.retryable);
}

static const struct {
    const char *text, *body;
    int status;
} good_heads[] = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabcleftover", "abc", 200},
    {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "", 200},
    {"HTTP/1.0 200 OK\r\n\r\nuntil the end", "until the end", 200},
    {"HTTP/1.1 200 OK\n\nbare newlines", "bare newlines", 200},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 404 "
     "No\r\nContent-Length: 1\r\n\r\nx",
     "x", 404},
    {"HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\n", "", 204},
    {"HTTP/1.1 304 Same\r\nTransfer-Encoding: chunked\r\n\r\n", "", 304},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1;a=b\r\nx\r\n00a "
     "\r\n0123456789\r\n0\r\nT: 1\r\n\r\n",
     "x0123456789", 200},
};

SL_TEST_LOOP(good_heads_are_taken, 0, (int)SL_COUNT(good_heads))
{
    struct sl_answer answer;
    struct sl_err err;
    int result = answer_with(good_heads[_i].text, &answer, &err);
    ck_assert_msg(result == 0, "%s", err.message);
    ck_assert_int_eq(answer.status, good_heads[_i].status);
    ck_assert_str_eq(sl_buf_string(&answer.body), good_heads[_i].body);
    sl_answer_release(&answer);
}

static const struct {
    const char *text;
    bool retryable;
} bad_bodies[] = {
    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", true},
    {"HTTP/1.1 200 OK\r\nContent-Le", true},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", true},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n", true},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000000000000000\r\nabc\r\n", false},
    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", false},
};

SL_TEST_LOOP(broken_bodies_are_errors, 0, (int)SL_COUNT(bad_bodies))
{
    struct sl_answer answer;
    struct sl_err err;
    ck_assert_int_eq(answer_with(bad_bodies[_i].text, &answer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_int_eq(err.retryable, bad_bodies[_i].retryable);
}

SL_TEST_LOOP(endless_heads_and_lines_end, 0, 2)
{
    struct sl_answer answer;
    struct sl_err err;
    sl_autofree char *text = calloc(1, 200000);
    const char *begin =
        _i ? "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" : "HTTP/1.1 200 OK\r\nX: ";
    memset(text, 'a', 190000);
    memcpy(text, begin, strlen(begin));
    ck_assert_int_eq(answer_with(text, &answer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert(!err.retryable);
}

SL_TEST(an_answer_beyond_its_limit_is_refused)
{
    struct sl_answer answer;
    struct sl_err err;
    SL_SCRIPT(server, {.fault = SL_FAULT_STATUS, .status = 200, .text = "0123456789"});
    ck_assert_int_eq(get("/", 10, &answer, &err), 0);
    sl_answer_release(&answer);
    ck_assert_int_eq(get("/", 9, &answer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_int_eq(get("/", 10, &answer, &err), 0);
    sl_answer_release(&answer);
}

SL_TEST(head_answers_have_no_body)
{
    struct sl_answer answer;
    struct sl_err err = SL_ERR_INIT;
    sl_server_put(server, "/b", sl_blob(), SL_BLOB_BYTES, NULL);
    struct sl_request request = {.method = "HEAD", .url = sl_server_url(server, "/b")};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(sl_exchange_simple(exchange, &request, 10, &answer, &err), 0);
        ck_assert_uint_eq(answer.body.used, 0);
        sl_answer_release(&answer);
    }
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
}

SL_TEST(connections_are_kept_and_replaced)
{
    struct sl_answer answer;
    struct sl_err err;
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(get("/none", 100, &answer, &err), 0);
        sl_answer_release(&answer);
    }
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
    SL_SCRIPT(server, {.path = "/none", .first = 6, .fault = SL_FAULT_RESET, .after = -1});
    for (int i = 0; i < 3; i++) {
        int result = get("/none", 100, &answer, &err);
        ck_assert_msg(result == 0, "%s", err.message);
        sl_answer_release(&answer);
    }
    ck_assert_uint_eq(sl_server_connection_count(server), 2);
}

static void get_nothing(void *ignored)
{
    struct sl_answer answer;
    struct sl_err err;
    (void)ignored;
    ck_assert_int_eq(get("/", 100, &answer, &err), -1);
    ck_assert_str_eq(err.code, "stall");
    ck_assert(err.retryable);
}

SL_TEST(a_silent_server_stalls)
{
    struct sl_err err;
    struct fake_clock_work work;
    sl_exchange_free(exchange);
    ck_assert_ptr_nonnull(exchange = sl_exchange_new(&hasty, &err));
    SL_SCRIPT(server, {.fault = SL_FAULT_STALL, .after = -1});
    fake_clock_hold();
    fake_clock_begin(&work, get_nothing, NULL);
    fake_clock_pass(&work, SL_NS_PER_S); /* not the usual 30 */
    fake_clock_end(&work);
    ck_assert_uint_eq(work.took_ns, SL_NS_PER_S);
}

static bool raise_cancel(const struct sl_server_request *request, struct sl_server_reply *reply,
                         void *arg)
{
    (void)request;
    (void)reply;
    sl_cancel_raise(arg, SIGTERM);
    return false;
}

static void get_canceled(void *arg)
{
    struct sl_answer answer;
    struct sl_err err;
    (void)arg;
    ck_assert_int_eq(get("/", 100, &answer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
}

/* An answer that was asked for may be awaited for a while after the end was told; no longer. */
SL_TEST(who_lingers_waits_for_an_answer_so_long)
{
    struct sl_err err = SL_ERR_INIT;
    struct fake_clock_work work;
    struct sl_cancel *cancel = sl_cancel_new(&err);
    const struct sl_connect connect = {.stall_seconds = 20, .cancel = cancel};
    sl_exchange_free(exchange);
    ck_assert_ptr_nonnull(exchange = sl_exchange_new(&connect, &err));
    sl_exchange_linger(exchange, 5);
    sl_server_handle(server, raise_cancel, cancel);
    SL_SCRIPT(server, {.fault = SL_FAULT_STALL, .after = -1});
    fake_clock_hold();
    fake_clock_begin(&work, get_canceled, NULL);
    fake_clock_pass(&work, 5 * SL_NS_PER_S);
    fake_clock_end(&work);
    ck_assert_uint_eq(work.took_ns, 5 * SL_NS_PER_S);
    sl_exchange_free(sl_steal(&exchange));
    sl_server_handle(server, NULL, NULL);
    sl_cancel_free(cancel);
}

SL_TEST(every_prefix_of_a_head_is_incomplete)
{
    static const char head[] =
        "HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-1/2\r\nContent-Length: 2\r\n\r\n";
    struct sl_err err = SL_ERR_INIT;
    int status = 0;
    for (size_t bytes = 0; bytes < sizeof(head) - 1; bytes++)
        ck_assert_int_eq(http_head_parse(head, bytes, &status, &err), -1);
    ck_assert_int_eq(http_head_parse(head, sizeof(head) - 1, &status, &err), 0);
    ck_assert_int_eq(status, 206);
}

SL_TEST(statuses_become_kinds)
{
    struct sl_err err = SL_ERR_INIT;
    sl_http_fail(&err, 503, "2", "cannot read 'x'", "SlowDown");
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert(err.retryable);
    ck_assert_uint_eq(err.retry_after_ms, 2000);
    ck_assert_ptr_nonnull(strstr(err.message, "cannot read 'x': the server answered 503 SlowDown"));
    sl_http_fail(&err, 412, NULL, "x", "");
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
    sl_http_fail(&err, 404, NULL, "x", NULL);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    sl_http_fail(&err, 400, NULL, "x", "");
    ck_assert(!err.retryable);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
