/* A gateway that sends readers to the node that has the object, as AIStore's does: followed to
 * hosts that are named, with the same request, and to no others. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "listen_at.h"
#include "range_server.h"
#include "s3_store.h"
#include "stores.h"

enum { BYTES = 100000 };

static struct sl_source_config config;
static struct sl_s3_options s3;
static struct sl_err err;
static struct sl_server *gateway, *node;
static uint8_t data[BYTES];
static struct {
    unsigned asked;
    const char *first; /* where the first request is sent; NULL: as all */
    const char *to;
} sends;

static bool send_on(const struct sl_server_request *request, struct sl_server_reply *reply,
                    void *arg)
{
    (void)arg;
    if (strcmp(request->method, "GET") != 0 || strcmp(request->target, "/s3/bucket/m.bin") != 0)
        return false;
    reply->status = 307;
    snprintf(reply->headers, sizeof(reply->headers), "Location: %s\r\n",
             sends.asked++ == 0 && sends.first ? sends.first : sends.to);
    return true;
}

static void setup(void)
{
    clearenv();
    setenv("AWS_ACCESS_KEY_ID", "AKID", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    setenv("AWS_SESSION_TOKEN", "hush-token", 1);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(7 * i + 3);
    memset(&sends, 0, sizeof(sends));
    gateway = sl_server_start();
    node = sl_server_start_at("127.0.0.2", 0);
    sl_server_handle(gateway, send_on, NULL);
    sl_server_put(node, "/s3/bucket/m.bin", data, BYTES, "\"e\"");
    static char to[128], hosts[] = "node.example, 127.0.0.2";
    snprintf(to, sizeof(to), "http://127.0.0.2:%u/s3/bucket/m.bin?pid=p&utm=1",
             sl_server_port(node));
    sends.to = to;
    s3 = (struct sl_s3_options){.endpoint = (char *)(uintptr_t)sl_server_url(gateway, "/s3"),
                                .follow_redirects = hosts};
    config = (struct sl_source_config){.options = {{&sl_s3_table, &s3}}, .attempts = 3};
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    sl_server_stop(gateway);
    sl_server_stop(node);
}

static int load(void)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    SL_AUTO(sl_source) source = NULL;
    static uint8_t got[BYTES];
    err = (struct sl_err)SL_ERR_INIT;
    if (sl_store_open("s3://bucket/m.bin", &config, &store, &key, &err) < 0 ||
        sl_source_open(store, key, 100, &source, &err) < 0)
        return -1;
    for (size_t at = 0; at < BYTES; at += 25000)
        if (sl_source_read(source, at, got + at, 25000, &err) < 0)
            return -1;
    ck_assert_mem_eq(got, data, BYTES);
    return 0;
}

static void expect_load(void)
{
    ck_assert_msg(load() == 0, "%s", err.message);
}

static void expect_refusal(enum sl_err_kind kind, const char *text)
{
    ck_assert_int_eq(load(), -1);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    ck_assert_msg(err.kind == kind, "kind %d: %s", err.kind, err.message);
    ck_assert_ptr_null(strstr(err.message, "hush"));
    ck_assert_ptr_null(strstr(err.message, "pid=")); /* no query of a place is shown */
}

SL_TEST(the_same_request_goes_to_the_node_that_has_the_object)
{
    static const char *const same[] = {"Authorization", "x-amz-date", "x-amz-content-sha256",
                                       "x-amz-security-token"};
    char there[1024], here[1024];
    expect_load();
    ck_assert_uint_eq(sends.asked, 1); /* the place is kept */
    ck_assert_uint_ge(sl_server_request_count(node), 4);
    for (unsigned i = 0; i < sl_server_request_count(node); i++) {
        const struct sl_server_request *request = sl_server_request_at(node, i);
        ck_assert_str_eq(request->target, "/s3/bucket/m.bin?pid=p&utm=1");
        ck_assert_int_eq(sl_server_header(request, "If-Match", there, sizeof(there)), i > 0);
        for (size_t j = 0; j < SL_COUNT(same); j++) {
            ck_assert(sl_server_header(request, same[j], there, sizeof(there)));
            ck_assert(sl_server_header(sl_server_request_at(gateway, 0), same[j], here, 1024));
            ck_assert_str_eq(there, here);
        }
    }
}

SL_TEST(hosts_that_are_not_named_get_nothing)
{
    s3.follow_redirects = (char[]){"node.example,10.0.0.0/8"};
    expect_refusal(SL_E_USAGE, "sends its readers on to '127.0.0.2', which "
                               "source.s3.followRedirects does not name");
    s3.follow_redirects = (char[]){""};
    expect_refusal(SL_E_USAGE, "it sends its readers on to '127.0.0.2': if that is a node of the "
                               "same store, as of AIStore, name its host in "
                               "source.s3.followRedirects");
    ck_assert_uint_eq(sl_server_request_count(node), 0);
    s3.follow_redirects = (char[]){"127.0.0.0/8"};
    expect_load();
}

SL_TEST(services_of_this_machine_are_no_nodes)
{
    s3.follow_redirects = (char[]){"*"};
    sends.to = "http://169.254.169.254/latest/meta-data/";
    expect_refusal(SL_E_NET, "a cloud's metadata address");
}

SL_TEST(redirects_that_go_in_a_circle_end)
{
    static char back[128];
    snprintf(back, sizeof(back), "%s", sl_server_url(gateway, "/s3/bucket/m.bin"));
    s3.follow_redirects = (char[]){"*"};
    sends.to = back;
    expect_refusal(SL_E_NET, "the redirects go in a circle");
}

/* The cluster has moved the object, or lost the node. */
SL_TEST(a_node_that_has_it_no_more_is_left_for_the_gateway)
{
    SL_SCRIPT(node, {.first = 3, .fault = SL_FAULT_STATUS, .status = 404, .text = ""});
    expect_load();
    ck_assert_uint_eq(sends.asked, 2);
}

SL_TEST(a_node_that_is_gone_is_left_for_the_gateway)
{
    static char nowhere[128];
    unsigned port = 0;
    int held = sl_port_hold("127.0.0.1", &port);
    snprintf(nowhere, sizeof(nowhere), "http://127.0.0.1:%u/s3/bucket/m.bin", port);
    s3.follow_redirects = (char[]){"*"};
    sends.first = nowhere;
    expect_load();
    ck_assert_uint_eq(sends.asked, 2);
    close(held);
}

SL_TEST(broken_answers_of_a_node_are_resumed)
{
    static const struct sl_step faults[] = {
        {.fault = SL_FAULT_RESET, .after = -1},
        {.fault = SL_FAULT_RESET, .after = 10},
        {.fault = SL_FAULT_SHORT, .after = 10},
        {.fault = SL_FAULT_STATUS, .status = 503, .text = ""},
        {.fault = SL_FAULT_DROP_AFTER},
        {.fault = SL_FAULT_CHUNKED},
    };
    for (size_t i = 0; i < SL_COUNT(faults); i++)
        for (unsigned nth = 1; nth <= 2; nth++) {
            teardown();
            setup();
            struct sl_step bad = faults[i];
            bad.first = bad.last = nth;
            SL_SCRIPT(node, bad);
            expect_load();
        }
}

SL_TEST(an_object_that_changes_on_its_node_is_changed)
{
    SL_SCRIPT(node, {.first = 3, .last = 100, .fault = SL_FAULT_WRONG_ETAG});
    ck_assert_int_eq(load(), -1);
    ck_assert_str_eq(err.code, "changed");
}

SL_TEST(nothing_goes_from_https_to_http)
{
    struct sl_server *secure = sl_server_start_tls();
    const struct sl_tls_options tls = {.verify = true,
                                       .ca_file = (char *)(uintptr_t)sl_server_ca(secure)};
    sl_server_handle(secure, send_on, NULL);
    s3.endpoint = (char *)(uintptr_t)sl_server_url(secure, "/s3");
    config.tls = &tls;
    expect_refusal(SL_E_NET, "from https to http");
    ck_assert_uint_eq(sl_server_request_count(node), 0);
    sl_server_stop(secure);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
