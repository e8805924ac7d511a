/* What lies between: a proxy that is gone, wants a login or refuses is named, with the code that
 * says whether it may pass. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"
#include "http_case.h"

static struct sl_err err;
static char place[64];
static int answer_status;

static bool refuse(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)request, (void)arg;
    reply->status = answer_status;
    snprintf(reply->headers, sizeof(reply->headers), "Connection: close\r\n");
    return true;
}

static void setup(void)
{
    err = (struct sl_err)SL_ERR_INIT;
    server = sl_server_start();
    sl_server_handle(server, refuse, NULL);
    snprintf(place, sizeof(place), "127.0.0.1:%u", sl_server_port(server));
    fake_clock_run();
}

static void teardown(void)
{
    sl_server_stop(server);
}

static void go_through(const char *at)
{
    char url[128];
    snprintf(url, sizeof(url), "http://user:s3cret@%s", at);
    setenv("http_proxy", url, 1);
    setenv("https_proxy", url, 1);
}

static void read_from(const char *url)
{
    const struct sl_source_config config = {.attempts = 3};
    ck_assert_int_eq(sl_read_blob(url, &config, 10, 1000, &err), -1);
    ck_assert_msg(!strstr(err.message, "s3cret"), "%s", err.message);
}

static const struct {
    const char *url;
    int status;
    enum sl_err_kind kind;
    unsigned requests;
    const char *says; /* behind the proxy's place */
} refusals[] = {
    {"http://store.example/m", 407, SL_E_AUTH, 1,
     "wants a login that it does not have: put user and password into its URL"},
    {"https://store.example/m", 407, SL_E_AUTH, 1,
     "wants a login that it does not have: put user and password into its URL"},
    {"https://store.example/m", 403, SL_E_AUTH, 1, "refuses it (403)"},
    {"https://store.example/m", 503, SL_E_NET, 3, ""},
    {"http://store.example/m", 503, SL_E_NET, 3, NULL},
};

SL_TEST_LOOP(a_proxy_that_refuses_is_named, 0, (int)SL_COUNT(refusals))
{
    answer_status = refusals[_i].status;
    go_through(place);
    read_from(refusals[_i].url);
    ck_assert_msg(err.kind == refusals[_i].kind, "%d: %s", err.kind, err.message);
    ck_assert_uint_eq(sl_server_request_count(server), refusals[_i].requests);
    ck_assert_msg(strstr(err.message, "store.example") != NULL, "%s", err.message);
    if (!refusals[_i].says)
        return;
    const char *proxy = strstr(err.message, place);
    ck_assert_msg(proxy && strstr(proxy, refusals[_i].says), "%s", err.message);
}

SL_TEST_LOOP(a_proxy_that_is_gone_is_named, 0, 2)
{
    go_through("127.0.0.1:1");
    read_from(_i ? "https://store.example/m" : "http://store.example/m");
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_msg(strstr(err.message, "store.example") &&
                      strstr(err.message, "through the proxy '127.0.0.1:1'"),
                  "%s", err.message);
}

SL_TEST(a_proxy_in_capitals_alone_is_told_of)
{
    setenv("HTTP_PROXY", "http://127.0.0.1:1", 1);
    read_from("http://127.0.0.1:1/m");
    ck_assert_msg(strstr(err.message, "HTTP_PROXY is set, but") != NULL, "%s", err.message);
    setenv("NO_PROXY", "127.0.0.1", 1);
    read_from("http://127.0.0.1:1/m");
    ck_assert_msg(!strstr(err.message, "HTTP_PROXY is set"), "%s", err.message);
    unsetenv("NO_PROXY");
    read_from("https://127.0.0.1:1/m");
    ck_assert_msg(!strstr(err.message, "HTTP_PROXY is set"), "%s", err.message);
}

static bool prepare(void)
{
    sl_test_environment();
    unsetenv("NO_PROXY");
    unsetenv("no_proxy");
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
