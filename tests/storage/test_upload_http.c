/* New objects of web servers: one PUT, what is refused before its body, what remains of a failure.
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "http_store.h"
#include "range_server.h"
#include "stores.h"
#include "upload.h"
#include "upload_backend.h"

enum { MIB = 1024 * 1024, SMALL = 300000, LARGE = 9 * MIB + 77 };
static uint8_t *data;
static struct sl_server *server;
static struct sl_source_config source;
static struct sl_http_options http;
static struct sl_upload_config config;
static struct sl_err err;

/* A folder of a web server with one object; PUTs are answered so, the first times. */
static struct {
    char *object;
    size_t bytes;
    unsigned times; /* of the misbehaviour below */
    const char *method;
    int status; /* 0: reset */
    const char *headers;
    bool after; /* it is carried out all the same */
    unsigned puts;
} dav;

static bool misbehave(struct sl_server_reply *reply)
{
    dav.times--;
    free(reply->body);
    *reply = (struct sl_server_reply){.status = dav.status};
    snprintf(reply->headers, sizeof(reply->headers), "%s", dav.headers ? dav.headers : "");
    return dav.status != 0;
}

static void carry_out(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    char text[16];
    if (strcmp(request->method, "PUT") == 0) {
        bool condition = sl_server_header(request, "If-None-Match", text, sizeof(text));
        dav.puts++;
        reply->status = condition && dav.object ? 412 : 201;
        if (reply->status == 412)
            return;
        free(dav.object);
        dav.object = malloc(request->body_bytes + 1);
        memcpy(dav.object, request->body, request->body_bytes);
        dav.bytes = request->body_bytes;
    } else if (!dav.object) {
        reply->status = 404;
    } else {
        reply->body = malloc(dav.bytes + 1);
        memcpy(reply->body, dav.object, dav.bytes);
        reply->body_bytes = dav.bytes;
    }
}

static bool handle(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)arg;
    bool wrong = dav.times && strcmp(request->method, dav.method) == 0;
    if (!wrong || dav.after)
        carry_out(request, reply);
    return wrong ? misbehave(reply) : true;
}

static void setup(void)
{
    clearenv();
    data = malloc(LARGE);
    for (size_t i = 0; i < LARGE; i++)
        data[i] = (uint8_t)(i * 7 + i / 251 + i / 65537);
    memset(&dav, 0, sizeof(dav));
    dav.method = "PUT";
    source = (struct sl_source_config){.attempts = 3, .options = {{&sl_http_table, &http}}};
    http = (struct sl_http_options){0};
    config = (struct sl_upload_config){.source = &source};
    err = (struct sl_err)SL_ERR_INIT;
    server = sl_server_start();
    SL_SCRIPT(server, {.fault = SL_FAULT_RESET, .after = -1});
    sl_server_handle(server, handle, NULL);
}

static void teardown(void)
{
    sl_server_stop(server);
    free(dav.object);
    free(data);
}

static int upload(const char *uri, size_t bytes)
{
    enum { BLOCK = MIB + 12345 };
    SL_AUTO(sl_upload) to = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    if (sl_upload_open(uri, bytes, &config, &to, &err) < 0)
        return -1;
    ck_assert(to->ops->in_order);
    ck_assert_str_eq(to->kind->name, "http");
    for (size_t at = 0; at < bytes; at += BLOCK)
        if (sl_upload_admit(to, &err) < 0 ||
            sl_upload_write(to, at, data + at, SL_MIN(BLOCK, bytes - at), &err) < 0)
            return -1;
    return sl_upload_finish(to, &err);
}

static void expect_object(size_t bytes)
{
    ck_assert_ptr_nonnull(dav.object);
    ck_assert_uint_eq(dav.bytes, bytes);
    ck_assert(memcmp(dav.object, data, bytes) == 0);
}

static void expect_upload(size_t bytes)
{
    ck_assert_msg(upload(sl_server_url(server, "/dir/a%20b"), bytes) == 0, "%s", err.message);
    expect_object(bytes);
}

static void expect_refusal(size_t bytes, enum sl_err_kind kind, const char *text)
{
    ck_assert_int_eq(upload(sl_server_url(server, "/dir/k"), bytes), -1);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    ck_assert_msg(err.kind == kind, "kind %d: %s", err.kind, err.message);
    ck_assert_ptr_null(strstr(err.message, "sesame"));
}

static void answer_puts(unsigned times, int status, const char *headers)
{
    dav.times = times, dav.status = status, dav.headers = headers;
}

/* ---- what works ------------------------------------------------------------------------------ */

SL_TEST_LOOP(an_object_is_one_put, 0, 4)
{
    static const size_t sizes[] = {SMALL, LARGE, 0, 1};
    char text[64];
    expect_upload(sizes[_i]);
    ck_assert_uint_eq(dav.puts, 1);
    const struct sl_server_request *put = sl_server_request_at(server, 1);
    ck_assert_str_eq(put->target, "/dir/a%20b");
    ck_assert(sl_server_header(put, "If-None-Match", text, sizeof(text)));
    ck_assert_str_eq(text, "*");
}

SL_TEST(credentials_are_sent)
{
    char uri[128], text[64], path[] = "/tmp/test_upload_http.XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, "sesame\n", 7), 7);
    close(fd);
    http.bearer_token_file = path;
    expect_upload(LARGE);
    ck_assert(sl_server_header(sl_server_request_at(server, 1), "Authorization", text, 64));
    ck_assert_str_eq(text, "Bearer sesame");
    http.bearer_token_file = NULL;
    config.replace = true;
    snprintf(uri, sizeof(uri), "http://u:sesame@127.0.0.1:%u/x", sl_server_port(server));
    ck_assert_int_eq(upload(uri, SMALL), 0);
    ck_assert(sl_server_header(sl_server_request_at(server, 2), "Authorization", text, 64));
    ck_assert_str_eq(text, "Basic dTpzZXNhbWU=");
    unlink(path);
}

SL_TEST(nothing_is_visible_before_the_end)
{
    SL_AUTO(sl_upload) to = NULL;
    for (size_t bytes = SMALL; bytes <= LARGE; bytes += LARGE - SMALL) {
        ck_assert_int_eq(sl_upload_open(sl_server_url(server, "/k"), bytes, &config, &to, &err), 0);
        ck_assert_int_eq(sl_upload_write(to, 0, data, bytes, &err), 0);
        sl_upload_free(sl_steal(&to));
    }
    sl_server_stop(server); /* whatever was on its way has come */
    server = sl_server_start();
    ck_assert_ptr_null(dav.object);
}

static void upload_large(void *ignored)
{
    (void)ignored;
    expect_upload(LARGE);
}

SL_TEST(a_silent_server_gets_the_body_after_three_seconds)
{
    struct fake_clock_work work;
    sl_server_expect(server, SL_EXPECT_SILENT, 0);
    fake_clock_hold();
    fake_clock_begin(&work, upload_large, NULL);
    fake_clock_pass(&work, 3 * SL_NS_PER_S);
    fake_clock_end(&work);
    ck_assert_uint_eq(work.took_ns, 3 * SL_NS_PER_S);
}

SL_TEST(bytes_out_of_order_are_our_own_mistake)
{
    SL_AUTO(sl_upload) to = NULL;
    ck_assert_int_eq(sl_upload_open(sl_server_url(server, "/k"), LARGE, &config, &to, &err), 0);
    ck_assert_int_eq(sl_upload_write(to, 10, data, 10, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTERNAL);
}

/* ---- redirects ------------------------------------------------------------------------------- */

SL_TEST(a_put_follows_redirects_that_keep_it)
{
    for (size_t bytes = SMALL; bytes <= LARGE; bytes += LARGE - SMALL) {
        config.replace = true;
        sl_server_expect(server, SL_EXPECT_ANSWER, 1); /* large: before the body */
        answer_puts(1, 307, "Location: /else/where\r\n");
        SL_AUTO(sl_upload) to = NULL;
        unsigned before = sl_server_request_count(server);
        ck_assert_int_eq(sl_upload_open(sl_server_url(server, "/k"), bytes, &config, &to, &err), 0);
        ck_assert_msg(sl_upload_write(to, 0, data, bytes, &err) == 0, "%s", err.message);
        ck_assert_msg(sl_upload_finish(to, &err) == 0, "%s", err.message);
        expect_object(bytes);
        ck_assert_str_eq(sl_server_request_at(server, before + 1)->target, "/else/where");
    }
}

/* As nginx does with "return 307": it says 100 Continue first. */
SL_TEST(a_stream_follows_a_redirect_that_comes_after_it_began)
{
    sl_server_expect(server, SL_EXPECT_EARLY, 2);
    answer_puts(2, 307, "Location: /else/where\r\n");
    unsigned before = sl_server_request_count(server);
    expect_upload(LARGE);
    ck_assert_uint_eq(sl_server_request_count(server), before + 4); /* HEAD, three PUTs */
    ck_assert_str_eq(sl_server_request_at(server, before + 3)->target, "/else/where");
}

SL_TEST(a_stream_is_not_sent_round_in_circles)
{
    sl_server_expect(server, SL_EXPECT_EARLY, 0);
    answer_puts(99, 307, "Location: /round\r\n");
    expect_refusal(LARGE, SL_E_NET, "in a circle");
}

SL_TEST(a_stream_that_is_moved_too_late_is_refused)
{
    answer_puts(1, 307, "Location: /else/where\r\n"); /* after the whole body */
    expect_refusal(LARGE, SL_E_USAGE, "name that place");
}

SL_TEST(other_redirects_of_a_put_are_refused)
{
    config.replace = true;
    answer_puts(9, 302, "Location: /else\r\n");
    expect_refusal(SMALL, SL_E_USAGE, "name that place");
    answer_puts(99, 307, "Location: /round\r\n");
    expect_refusal(SMALL, SL_E_NET, "in a circle");
    ck_assert_ptr_null(dav.object);
}

/* ---- what is refused ------------------------------------------------------------------------- */

SL_TEST(what_is_there_is_kept_unless_it_is_to_be_replaced)
{
    dav.object = strdup("old");
    dav.bytes = 3;
    expect_refusal(SMALL, SL_E_USAGE, "exists");
    expect_refusal(LARGE, SL_E_USAGE, "exists");
    ck_assert_str_eq(err.code, "exists");
    ck_assert_uint_eq(dav.puts, 0);
    config.replace = true;
    expect_upload(LARGE);
    expect_upload(SMALL);
}

SL_TEST(what_appears_meanwhile_is_kept_too)
{
    for (size_t bytes = SMALL; bytes <= LARGE; bytes += LARGE - SMALL) {
        SL_AUTO(sl_upload) to = NULL;
        free(sl_steal(&dav.object));
        ck_assert_int_eq(sl_upload_open(sl_server_url(server, "/k"), bytes, &config, &to, &err), 0);
        dav.object = strdup("theirs");
        dav.bytes = 6;
        ck_assert_int_eq(sl_upload_write(to, 0, data, bytes, &err), 0);
        ck_assert_int_eq(sl_upload_finish(to, &err), -1);
        ck_assert_str_eq(err.code, "exists");
        ck_assert_str_eq(dav.object, "theirs");
    }
}

SL_TEST_LOOP(refusals_say_what_to_do, 0, 8)
{
    static const struct {
        int status;
        enum sl_err_kind kind;
        const char *text;
    } rows[] = {
        {401, SL_E_AUTH, "check the credentials"}, {403, SL_E_AUTH, "may not write"},
        {404, SL_E_NOT_FOUND, "folder"},           {405, SL_E_USAGE, "dav_methods PUT"},
        {409, SL_E_USAGE, "create_full_put_path"}, {413, SL_E_NO_SPACE, "client_max_body_size"},
        {507, SL_E_NO_SPACE, "disk is full"},      {418, SL_E_USAGE, "answered 418"},
    };
    answer_puts(99, rows[_i].status, NULL);
    expect_refusal(SMALL, rows[_i].kind, rows[_i].text);
    sl_server_expect(server, SL_EXPECT_ANSWER, 0);
    answer_puts(99, rows[_i].status, NULL);
    expect_refusal(LARGE, rows[_i].kind, rows[_i].text);
    ck_assert_ptr_null(dav.object);
}

SL_TEST(a_folder_is_no_object)
{
    ck_assert_int_eq(upload(sl_server_url(server, "/dir/"), SMALL), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_int_eq(upload("http://127.0.0.1:1", SMALL), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

/* ---- what breaks ----------------------------------------------------------------------------- */

SL_TEST(small_objects_are_sent_again)
{
    answer_puts(1, 503, "Retry-After: 0\r\n");
    expect_upload(SMALL);
    free(sl_steal(&dav.object));
    answer_puts(1, 0, NULL);
    expect_upload(SMALL);
}

SL_TEST(an_answer_that_was_lost_is_found_out)
{
    answer_puts(1, 0, NULL);
    dav.after = true;
    expect_upload(SMALL);
    ck_assert_uint_eq(dav.puts, 2); /* the second was refused: it exists, and is ours */
}

SL_TEST(a_stream_that_is_refused_before_its_body_is_offered_again)
{
    SL_AUTO(sl_upload) to = NULL;
    ck_assert_int_eq(sl_upload_open(sl_server_url(server, "/k"), LARGE, &config, &to, &err), 0);
    answer_puts(2, 503, NULL);
    sl_server_expect(server, SL_EXPECT_ANSWER, 0);
    ck_assert_int_eq(sl_upload_write(to, 0, data, LARGE, &err), -1); /* the third has no body */
    ck_assert_ptr_nonnull(strstr(err.message, "answered 201 before"));
    ck_assert_uint_eq(sl_server_request_count(server), 4);
}

SL_TEST(a_stream_that_breaks_off_says_what_to_do)
{
    answer_puts(1, 0, NULL); /* after the body */
    expect_refusal(LARGE, SL_E_NET, "cannot be resumed");
    ck_assert(!err.retryable);
}

SL_TEST(refusals_after_the_body_are_heard)
{
    answer_puts(1, 507, NULL);
    expect_refusal(LARGE, SL_E_NO_SPACE, "disk is full");
}

SL_TEST(refusals_in_mid_body_are_heard)
{
    sl_server_expect(server, SL_EXPECT_EARLY, 0);
    answer_puts(9, 413, NULL);
    expect_refusal(LARGE, SL_E_NO_SPACE, "client_max_body_size");
}

SL_TEST(streams_go_through_tls)
{
    static struct sl_tls_options tls;
    sl_server_stop(server);
    server = sl_server_start_tls();
    sl_server_handle(server, handle, NULL);
    tls =
        (struct sl_tls_options){.verify = true, .ca_file = (char *)(uintptr_t)sl_server_ca(server)};
    source.tls = &tls;
    expect_upload(LARGE);
    config.replace = true;
    expect_upload(SMALL);
    sl_server_expect(server, SL_EXPECT_EARLY, 0);
    answer_puts(9, 507, NULL);
    expect_refusal(LARGE, SL_E_NO_SPACE, "disk is full");
}

SL_TEST(cancellation_ends_it)
{
    SL_AUTO(sl_upload) to = NULL;
    source.cancel = sl_cancel_new(&err);
    ck_assert_int_eq(sl_upload_open(sl_server_url(server, "/k"), LARGE, &config, &to, &err), 0);
    ck_assert_int_eq(sl_upload_write(to, 0, data, MIB, &err), 0);
    sl_cancel_raise(source.cancel, SIGTERM);
    ck_assert_int_eq(sl_upload_write(to, MIB, data, MIB, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_upload_free(sl_steal(&to));
    sl_cancel_free(source.cancel);
    ck_assert_ptr_null(dav.object);
}

SL_TEST(every_failing_allocation_is_an_error)
{
    for (size_t bytes = SMALL; bytes <= LARGE; bytes += LARGE - SMALL) {
        int result = -1;
        for (unsigned nth = 1; result < 0; nth++) {
            free(sl_steal(&dav.object));
            sl_alloc_fail_at(nth);
            result = upload(sl_server_url(server, "/k"), bytes);
            sl_alloc_fail_at(0);
            ck_assert(result == 0 || err.kind == SL_E_NO_SPACE);
            ck_assert_uint_lt(nth, 500);
        }
        expect_object(bytes);
    }
}

SL_CASE(.setup = setup, .teardown = teardown)
