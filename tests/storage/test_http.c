/* The range contract, redirects, credentials, TLS: what the http source takes, refuses and keeps to
 * itself. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "fake_clock.h"
#include "http_case.h"
#include "http_store.h"
#include "range_certificate.h"
#include "stores.h"

static struct sl_server *other;

static void setup(void)
{
    server = sl_server_start();
    other = sl_server_start();
    sl_server_put(server, "/d/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    sl_server_put(other, "/cdn/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_server_stop(other);
}

/* ---- the contract ---------------------------------------------------------------------------- */

static const struct {
    enum sl_fault fault;
    const char *says;
} breaches[] = {
    {SL_FAULT_WRONG_RANGE, "another range"},
    {SL_FAULT_NO_RANGE, "without Content-Range"},
    {SL_FAULT_WHOLE, "does not support range requests"},
    {SL_FAULT_LONG, "body of"},
    {SL_FAULT_GZIP, "Content-Encoding 'gzip'"},
    {SL_FAULT_MULTIPART, "multipart/byteranges"},
};

SL_TEST_LOOP(a_broken_contract_is_named_and_not_tried_again, 0, 2 * (int)SL_COUNT(breaches))
{
    struct sl_err err;
    unsigned first = 1 + (unsigned)_i % 2;
    if (first == 1 && breaches[_i / 2].fault == SL_FAULT_WHOLE)
        return; /* it is a server without ranges: test_http_in_order.c */
    SL_SCRIPT(server,
              {.path = "/d/m", .first = first, .last = 99, .fault = breaches[_i / 2].fault});
    ck_assert_int_eq(load("/d/m", NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert(!err.retryable);
    ck_assert_msg(strstr(err.message, breaches[_i / 2].says) != NULL, "%s", err.message);
    char had[64];
    snprintf(had, sizeof(had), "', which had %d bytes: ", SL_BLOB_BYTES);
    ck_assert_msg((strstr(err.message, had) != NULL) == (first == 2), "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(server), first);
}

SL_TEST_LOOP(a_changed_object_is_an_integrity_error, 0, 3)
{
    static const enum sl_fault faults[] = {SL_FAULT_CHANGED, SL_FAULT_WRONG_ETAG,
                                           SL_FAULT_WRONG_TOTAL};
    struct sl_err err;
    SL_SCRIPT(server, {.path = "/d/m", .first = 2, .last = 99, .fault = faults[_i]});
    ck_assert_int_eq(load("/d/m", NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
    if (faults[_i] == SL_FAULT_CHANGED) /* what it was is said */
        ck_assert_msg(strstr(err.message, "its version"), "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(server), 2);
}

SL_TEST(an_object_replaced_between_ranges_is_noticed)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t data[100];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/d/m"), &plain, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 100, &source, &err), 0);
    sl_server_put(server, "/d/m", sl_blob() + 1, SL_BLOB_BYTES - 1, "\"v2\"");
    ck_assert_int_eq(sl_source_read(source, 0, data, 100, &err), 0);
    ck_assert_int_eq(sl_source_read(source, 500, data, 100, &err), -1);
    ck_assert_str_eq(err.code, "changed");
    ck_assert_int_eq(sl_source_read(source, SL_BLOB_BYTES - 1, data, 100, &err), -1);
    ck_assert_str_eq(err.code, "truncated");
}

SL_TEST_LOOP(an_object_that_shrinks_is_a_change, 0, 2)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t data[100];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/d/m"), &plain, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 100, &source, &err), 0);
    sl_server_put(server, "/d/m", sl_blob(), 1000, _i ? "\"v1\"" : NULL);
    ck_assert_int_eq(sl_source_read(source, SL_BLOB_BYTES - 100, data, 100, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
    char lengths[64];
    snprintf(lengths, sizeof(lengths), "its length was %d, is 1000", SL_BLOB_BYTES);
    ck_assert_msg(strstr(err.message, _i ? lengths : "its version was") != NULL, "%s", err.message);
}

SL_TEST(a_weak_etag_is_not_sent_in_if_match)
{
    struct sl_err err;
    char text[256];
    sl_server_put(server, "/d/m", sl_blob(), SL_BLOB_BYTES, "W/\"v1\"");
    ck_assert_int_eq(load("/d/m", NULL, &err), 0);
    ck_assert(!header_of(server, 1, "If-Match", text));
    ck_assert(header_of(server, 1, "If-Unmodified-Since", text));
    ck_assert_str_eq(text, "Sat, 21 Nov 2026 05:00:00 GMT");
    SL_SCRIPT(server, {.path = "/d/m", .first = 6, .fault = SL_FAULT_WRONG_ETAG});
    ck_assert_int_eq(load("/d/m", NULL, &err), -1);
    ck_assert_str_eq(err.code, "changed");
}

SL_TEST(an_object_without_etag_is_held_to_its_date)
{
    struct sl_err err;
    sl_server_put(server, "/d/m", sl_blob(), SL_BLOB_BYTES, NULL);
    ck_assert_int_eq(load("/d/m", NULL, &err), 0);
}

static int open_bytes(const char *path, uint64_t head_bytes, uint64_t *bytes, struct sl_err *err)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    *err = (struct sl_err)SL_ERR_INIT;
    if (sl_store_open(sl_server_url(server, path), &plain, &store, &key, err) < 0 ||
        sl_source_open(store, key, head_bytes, &source, err) < 0)
        return -1;
    *bytes = sl_source_bytes(source);
    return 0;
}

SL_TEST(empty_and_short_objects_are_fine)
{
    struct sl_err err;
    uint64_t bytes = 99;
    sl_server_put(server, "/empty", "", 0, "\"e\"");
    ck_assert_int_eq(open_bytes("/empty", 1000, &bytes, &err), 0);
    ck_assert_uint_eq(bytes, 0);
    sl_server_put(server, "/short", "abc", 3, "\"e\"");
    ck_assert_int_eq(open_bytes("/short", 1000, &bytes, &err), 0);
    ck_assert_uint_eq(bytes, 3);
    ck_assert_int_eq(open_bytes("/short", 1, &bytes, &err), 0);
    ck_assert_uint_eq(bytes, 3);
    SL_SCRIPT(server, {.path = "/empty", .fault = SL_FAULT_WHOLE},
              {.path = "/short", .fault = SL_FAULT_WHOLE});
    ck_assert_int_eq(open_bytes("/empty", 10, &bytes, &err), 0);
    ck_assert_uint_eq(bytes, 0);
    ck_assert_int_eq(open_bytes("/short", 3, &bytes, &err), 0);
    ck_assert_uint_eq(bytes, 3);
    ck_assert_int_eq(open_bytes("/short", 2, &bytes, &err), 0);
    ck_assert_uint_eq(bytes, 3);
}

SL_TEST(a_server_may_say_why)
{
    struct sl_err err;
    SL_SCRIPT(server, {.path = "/d/m",
                       .fault = SL_FAULT_STATUS,
                       .status = 403,
                       .headers = "Content-Type: text/plain\r\n",
                       .text = "come back\x1b[31m with a ticket\nsecond line"});
    ck_assert_int_eq(load("/d/m", NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_ptr_nonnull(strstr(err.message, "come back?[31m with a ticket"));
}

/* ---- names ----------------------------------------------------------------------------------- */

SL_TEST(the_named_object_keeps_its_query_and_siblings_are_encoded)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    SL_AUTO(sl_source) sibling = NULL;
    sl_autofree char *key = NULL;
    sl_server_put(server, "/d/a%20b+.bin", "one", 3, "\"1\"");
    sl_server_put(server, "/d/s%C3%BC%20%2B%25/x", "two", 3, "\"2\"");
    const char *url = sl_server_url(server, "/d/a%20b+.bin?X-Sig=a%2Fb&x=1");
    ck_assert_int_eq(sl_store_open(url, &plain, &store, &key, &err), 0);
    ck_assert_str_eq(key, "a b+.bin");
    ck_assert_int_eq(sl_source_open(store, key, 10, &source, &err), 0);
    ck_assert_str_eq(sl_server_request_at(server, 0)->target, "/d/a%20b+.bin?X-Sig=a%2Fb&x=1");
    ck_assert_ptr_null(strchr(sl_source_uri(source), '?'));
    ck_assert_ptr_null(strchr(sl_store_uri(store), '?'));
    ck_assert_msg(sl_source_open(store, "s\xc3\xbc +%/x", 10, &sibling, &err) == 0, "%s",
                  err.message);
    ck_assert_str_eq(sl_server_request_at(server, 1)->target, "/d/s%C3%BC%20%2B%25/x");
}

/* ---- redirects and credentials --------------------------------------------------------------- */

static char location[300];

static const char *location_to(struct sl_server *to, const char *path)
{
    snprintf(location, sizeof(location), "Location: %s\r\n", sl_server_url(to, path));
    return location;
}

SL_TEST_LOOP(redirects_are_followed_and_remembered, 0, 5)
{
    static const int statuses[] = {301, 302, 303, 307, 308};
    struct sl_err err;
    SL_SCRIPT(server, {.path = "/d/m",
                       .fault = SL_FAULT_STATUS,
                       .status = statuses[_i],
                       .headers = location_to(other, "/cdn/m")});
    ck_assert_int_eq(load("/d/m", NULL, &err), 0);
    ck_assert_uint_eq(sl_server_request_count(server), 1);
    ck_assert_uint_eq(sl_server_request_count(other), 4);
}

SL_TEST(relative_redirects_are_resolved)
{
    struct sl_err err;
    SL_SCRIPT(server, {.path = "/x/y/m",
                       .fault = SL_FAULT_STATUS,
                       .status = 302,
                       .headers = "Location: ../.././d/m\r\n"});
    ck_assert_int_eq(load("/x/y/m", NULL, &err), 0);
}

SL_TEST(an_expired_link_is_resolved_again)
{
    struct sl_err err;
    SL_SCRIPT(server, {.path = "/d/m",
                       .fault = SL_FAULT_STATUS,
                       .status = 302,
                       .headers = location_to(other, "/cdn/m")});
    SL_SCRIPT(other, {.path = "/cdn/m", .first = 3, .fault = SL_FAULT_STATUS, .status = 403});
    ck_assert_int_eq(load("/d/m", NULL, &err), 0);
    ck_assert_uint_eq(sl_server_request_count(server), 2);
    SL_SCRIPT(other, {.path = "/cdn/m", .fault = SL_FAULT_STATUS, .status = 403});
    ck_assert_int_eq(load("/d/m", NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_uint_eq(sl_server_request_count(server), 4);
}

SL_TEST(a_redirect_to_a_place_that_is_gone_is_resolved_again)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t data[100];
    sl_autofree char *key = NULL;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    struct sl_server *gone = sl_server_start();
    sl_server_put(gone, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    SL_SCRIPT(server,
              {.fault = SL_FAULT_STATUS, .status = 307, .headers = location_to(gone, "/m")});
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/d/m"), &plain, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 10, &source, &err), 0);
    int held = sl_server_leave(gone);
    ck_assert_int_eq(sl_source_read(source, 50, data, 100, &err), -1);
    ck_assert_msg(strstr(err.message, "cannot connect") != NULL, "%s", err.message);
    close(held);
    SL_SCRIPT(server,
              {.fault = SL_FAULT_STATUS, .status = 307, .headers = location_to(other, "/cdn/m")});
    int result = sl_source_read(source, 50, data, 100, &err);
    ck_assert_msg(result == 0, "%s", err.message);
    ck_assert_mem_eq(data, sl_blob() + 50, 100);
}

SL_TEST_LOOP(redirects_that_lead_astray_are_refused, 0, 5)
{
    static const char *const headers[] = {"Location: ftp://127.0.0.1/x\r\n",
                                          "Location: file:///etc/passwd\r\n", "",
                                          "Location: http://\r\n", "Location: m\r\n"};
    struct sl_err err;
    SL_SCRIPT(server,
              {.path = "/d/m", .fault = SL_FAULT_STATUS, .status = 302, .headers = headers[_i]});
    ck_assert_int_eq(load("/d/m", NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert(!err.retryable);
    ck_assert_uint_eq(sl_server_request_count(server), _i == 4 ? 11 : 1);
}

SL_TEST(credentials_stay_with_their_host)
{
    struct sl_err err;
    char text[256];
    const char *token = file_with("tok-123\n"),
               *headers = file_with("X-Token: s3cret\r\n\r\nX-Other:  two words \n");
    struct sl_http_options http = {.bearer_token_file = (char *)token,
                                   .headers_file = (char *)headers};
    struct sl_source_config config = {.options = {{&sl_http_table, &http}}, .attempts = 2};
    SL_SCRIPT(server, {.path = "/d/m",
                       .first = 2,
                       .last = 99,
                       .fault = SL_FAULT_STATUS,
                       .status = 302,
                       .headers = location_to(other, "/cdn/m")});
    ck_assert_int_eq(load("/d/m", &config, &err), 0);
    ck_assert(header_of(server, 0, "Authorization", text));
    ck_assert_str_eq(text, "Bearer tok-123");
    ck_assert(header_of(server, 0, "X-Token", text));
    ck_assert_str_eq(text, "s3cret");
    ck_assert(header_of(server, 1, "X-Other", text));
    for (unsigned i = 0; i < sl_server_request_count(other); i++) {
        ck_assert(!header_of(other, i, "Authorization", text));
        ck_assert(!header_of(other, i, "X-Token", text));
        ck_assert(!header_of(other, i, "X-Other", text));
    }
    ck_assert_uint_gt(sl_server_request_count(other), 0);
    unlink(token);
    unlink(headers);
}

SL_TEST(a_renewed_token_file_is_read_again)
{
    struct sl_err err;
    char text[256];
    const char *token = file_with("old");
    struct sl_http_options http = {.bearer_token_file = (char *)token};
    struct sl_source_config config = {.options = {{&sl_http_table, &http}}, .attempts = 2};
    SL_SCRIPT(server, {.path = "/d/m", .first = 2, .fault = SL_FAULT_STATUS, .status = 401});
    ck_assert_int_eq(load("/d/m", &config, &err), 0);
    ck_assert(header_of(server, 2, "Authorization", text));
    ck_assert_str_eq(text, "Bearer old");
    unlink(token);
    ck_assert_int_eq(load("/d/m", &config, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_ptr_nonnull(strstr(err.message, "bearerTokenFile"));
}

SL_TEST_LOOP(bad_header_files_are_refused, 0, 6)
{
    static const char *const texts[] = {"no colon", ": empty",         "A b: c",
                                        "A: b\x01", "Ok: 1\nA: b\x7f", "A:b\n B: folded"};
    struct sl_err err;
    const char *path = file_with(texts[_i]);
    struct sl_http_options http = {.headers_file = (char *)path};
    struct sl_source_config config = {.options = {{&sl_http_table, &http}}};
    ck_assert_int_eq(load("/d/m", &config, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_uint_eq(sl_server_request_count(server), 0);
    unlink(path);
}

SL_TEST(user_and_password_of_the_url_are_sent_but_not_shown)
{
    struct sl_err err = SL_ERR_INIT;
    char text[256], url[200];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    snprintf(url, sizeof(url), "http://me:pa%%20ss@127.0.0.1:%u/d/m", sl_server_port(server));
    ck_assert_int_eq(sl_store_open(url, &plain, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 10, &source, &err), 0);
    ck_assert(header_of(server, 0, "Authorization", text));
    ck_assert_str_eq(text, "Basic bWU6cGEgc3M=");
    ck_assert_ptr_null(strstr(sl_source_uri(source), "pa"));
    ck_assert_ptr_null(strstr(sl_store_uri(store), "me"));
    struct sl_source *none;
    ck_assert_int_eq(sl_source_open(store, "none", 10, &none, &err), -1);
    ck_assert_ptr_null(strstr(err.message, "pa%20ss"));
}

SL_TEST(netrc_serves_hosts_without_other_credentials)
{
    struct sl_err err;
    char text[256];
    const char *path = file_with(
        "machine elsewhere login x password y\nmachine 127.0.0.1 login me password \"p w\"\n");
    setenv("NETRC", path, 1);
    ck_assert_int_eq(load("/d/m", NULL, &err), 0);
    ck_assert(header_of(server, 0, "Authorization", text));
    ck_assert_str_eq(text, "Basic bWU6cCB3");
    unlink(path);
}

/* ---- proxies --------------------------------------------------------------------------------- */

SL_TEST(plain_http_goes_to_the_proxy_in_absolute_form)
{
    struct sl_err err = SL_ERR_INIT;
    char text[256], proxy[100];
    snprintf(proxy, sizeof(proxy), "http://u:p%%40@127.0.0.1:%u", sl_server_port(server));
    setenv("http_proxy", proxy, 1);
    sl_server_put(server, "http://h.example:81/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    int result = sl_read_blob("http://h.example:81/m", &plain, 1000, 400000, &err);
    ck_assert_msg(result == 0, "%s", err.message);
    ck_assert_str_eq(sl_server_request_at(server, 0)->target, "http://h.example:81/m");
    ck_assert(header_of(server, 0, "Host", text));
    ck_assert_str_eq(text, "h.example:81");
    ck_assert(header_of(server, 0, "Proxy-Authorization", text));
    ck_assert_str_eq(text, "Basic dTpwQA==");
    setenv("no_proxy", "127.0.0.1", 1);
    ck_assert_int_eq(load("/d/m", NULL, &err), 0);
    ck_assert(!header_of(server, sl_server_request_count(server) - 1, "Proxy-Authorization", text));
}

SL_TEST(https_through_a_proxy_asks_for_a_tunnel)
{
    struct sl_err err = SL_ERR_INIT;
    char proxy[100];
    snprintf(proxy, sizeof(proxy), "http://127.0.0.1:%u", sl_server_port(server));
    setenv("https_proxy", proxy, 1);
    SL_SCRIPT(server, {.fault = SL_FAULT_STATUS, .status = 407});
    ck_assert_int_eq(sl_read_blob("https://h.example/m", &plain, 1000, 400000, &err), -1);
    ck_assert_str_eq(sl_server_request_at(server, 0)->method, "CONNECT");
    ck_assert_str_eq(sl_server_request_at(server, 0)->target, "h.example:443");
    ck_assert_msg(err.kind == SL_E_AUTH, "%s", err.message);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
    int status;
    enum sl_err_kind kind;
} refusals[] = {
    {400, SL_E_USAGE}, {405, SL_E_USAGE}, {406, SL_E_USAGE},     {414, SL_E_USAGE},
    {422, SL_E_USAGE}, {451, SL_E_USAGE}, {499, SL_E_USAGE},     {401, SL_E_AUTH},
    {403, SL_E_AUTH},  {407, SL_E_AUTH},  {404, SL_E_NOT_FOUND}, {410, SL_E_NOT_FOUND},
    {408, SL_E_NET},   {409, SL_E_NET},   {416, SL_E_NET},       {423, SL_E_NET},
    {425, SL_E_NET},   {429, SL_E_NET},   {500, SL_E_NET},       {501, SL_E_NET},
    {599, SL_E_NET},
};

SL_TEST_LOOP(a_refusal_says_whether_it_may_pass, 0, (int)SL_COUNT(refusals))
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_source_config once = plain;
    once.attempts = 1;
    SL_SCRIPT(server, {.fault = SL_FAULT_STATUS, .status = refusals[_i].status});
    ck_assert_int_eq(sl_read_blob(sl_server_url(server, "/m"), &once, 1000, 400000, &err), -1);
    ck_assert_msg(err.kind == refusals[_i].kind && err.http_status == refusals[_i].status,
                  "%d: %d: %s", refusals[_i].status, err.kind, err.message);
}

/* ---- TLS ------------------------------------------------------------------------------------- */

SL_TEST(tls_needs_a_certificate_that_is_trusted)
{
    struct sl_server *secure = sl_server_start_tls();
    struct sl_err err = SL_ERR_INIT;
    sl_server_put(secure, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    const char *url = sl_server_url(secure, "/m");
    ck_assert_int_eq(sl_read_blob(url, &plain, 1000, 300000, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_ptr_nonnull(strstr(err.message, "source.tls.caFile"));
    ck_assert_uint_eq(sl_server_connection_count(secure), 1);

    struct sl_tls_options tls = {.ca_file = (char *)sl_server_ca(secure), .verify = true};
    struct sl_source_config config = {.tls = &tls, .attempts = 2, .stall_seconds = 20};
    int result = sl_read_blob(url, &config, 1000, 300000, &err);
    ck_assert_msg(result == 0, "%s", err.message);
    ck_assert_uint_eq(sl_server_connection_count(secure), 2);

    SL_SCRIPT(secure, {.first = 6, .fault = SL_FAULT_RESET, .after = 100000},
              {.first = 8, .fault = SL_FAULT_CHUNKED}, {.first = 9, .fault = SL_FAULT_DROP_AFTER});
    result = sl_read_blob(url, &config, 1000, 300000, &err);
    ck_assert_msg(result == 0, "%s", err.message);

    tls.ca_file = NULL;
    tls.verify = false;
    result = sl_read_blob(url, &config, 1000, 300000, &err);
    ck_assert_msg(result == 0, "%s", err.message);
    tls.verify = true;
    setenv("SSL_CERT_FILE", sl_server_ca(secure), 1);
    ck_assert_int_eq(sl_read_blob(url, &config, 1000, 300000, &err), 0);
    char nowhere[] = "/nonexistent.pem";
    tls.ca_file = nowhere;
    ck_assert_int_eq(sl_read_blob(url, &config, 1000, 300000, &err), -1);
    ck_assert(!err.retryable);
    sl_server_stop(secure);
}

/* Each is mended in another place: nobody is sent to the wrong one. */
SL_TEST(each_wrong_certificate_has_its_own_advice)
{
    static const struct {
        enum sl_certificate_fault fault;
        const char *says;
    } cases[] = {{SL_CERT_EXPIRED, "has expired: renew it"},
                 {SL_CERT_EARLY, "is not valid yet: set this machine's clock"},
                 {SL_CERT_OTHER_NAME, "is for another name"}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_server_certificate_fault(cases[i].fault);
        struct sl_server *secure = sl_server_start_tls();
        struct sl_tls_options tls = {.ca_file = (char *)sl_server_ca(secure), .verify = true};
        struct sl_source_config config = {.tls = &tls, .attempts = 1};
        struct sl_err err = SL_ERR_INIT;
        ck_assert_int_eq(sl_read_blob(sl_server_url(secure, "/m"), &config, 10, 10, &err), -1);
        ck_assert_msg(strstr(err.message, cases[i].says) && !strstr(err.message, "caFile"), "%s",
                      err.message);
        ck_assert(!err.retryable);
        sl_server_stop(secure);
    }
}

SL_TEST(the_file_of_trusted_certificates_is_named)
{
    struct sl_server *secure = sl_server_start_tls();
    struct sl_err err = SL_ERR_INIT;
    setenv("SSL_CERT_FILE", "/nonexistent.pem", 1);
    ck_assert_int_eq(sl_read_blob(sl_server_url(secure, "/m"), &plain, 10, 10, &err), -1);
    ck_assert_msg(strstr(err.message, "'/nonexistent.pem' (from SSL_CERT_FILE)"), "%s",
                  err.message);
    setenv("SSL_CERT_FILE", sl_server_ca(secure), 1);
    setenv("AWS_CA_BUNDLE", "/nonexistent.pem", 1); /* of S3 alone */
    sl_server_put(secure, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    int result = sl_read_blob(sl_server_url(secure, "/m"), &plain, 1000, 300000, &err);
    unsetenv("AWS_CA_BUNDLE");
    unsetenv("SSL_CERT_FILE");
    ck_assert_msg(result == 0, "%s", err.message);
    sl_server_stop(secure);
}

/* How far a server of TLS is, in ms, that takes so long for a handshake and for an answer. */
static uint64_t distance_of(unsigned handshake_ms, unsigned answer_ms, const char **suite)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    struct sl_err err = SL_ERR_INIT;
    struct sl_server *secure = sl_server_start_tls();
    struct sl_tls_options tls = {.ca_file = (char *)sl_server_ca(secure), .verify = true};
    struct sl_source_config config = {.tls = &tls, .stall_seconds = 20};
    sl_server_put(secure, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    sl_server_tls_delay(secure, handshake_ms);
    if (handshake_ms)
        fake_clock_hold();
    if (answer_ms)
        SL_SCRIPT(secure, {.fault = SL_FAULT_SLOW, .after = answer_ms});
    ck_assert_int_eq(sl_store_open(sl_server_url(secure, "/m"), &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 1000, &source, &err) == 0, "%s", err.message);
    *suite = sl_server_last_suite(secure);
    uint64_t ns = sl_store_first_byte_ns(store);
    ck_assert_uint_gt(ns, 0);
    if (handshake_ms)
        fake_clock_release();
    sl_source_free(sl_steal(&source));
    sl_store_free(sl_steal(&store));
    sl_server_stop(secure);
    return ns / SL_NS_PER_MS;
}

/* Ranges on connections that are there do without: a near server would seem far away. */
SL_TEST(a_handshake_is_no_distance)
{
    const char *suite;
    ck_assert_uint_eq(distance_of(600, 0, &suite), 0); /* no time passes but that */
    ck_assert_str_eq(suite, "TLS_AES_128_GCM_SHA256");
    ck_assert_uint_ge(distance_of(0, 300, &suite), 300);
}

SL_TEST(https_is_not_left_for_http)
{
    struct sl_server *secure = sl_server_start_tls();
    struct sl_err err = SL_ERR_INIT;
    struct sl_tls_options tls = {.ca_file = (char *)sl_server_ca(secure), .verify = true};
    struct sl_source_config config = {.tls = &tls, .attempts = 2};
    SL_SCRIPT(secure,
              {.fault = SL_FAULT_STATUS, .status = 302, .headers = location_to(server, "/d/m")});
    ck_assert_int_eq(sl_read_blob(sl_server_url(secure, "/m"), &config, 1000, 300000, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "from https to http"));
    ck_assert_uint_eq(sl_server_request_count(server), 0);
    SL_SCRIPT(server, {.path = "/up",
                       .fault = SL_FAULT_STATUS,
                       .status = 302,
                       .headers = location_to(secure, "/m2")});
    sl_server_put(secure, "/m2", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    SL_SCRIPT(secure, {.path = "/none"});
    ck_assert_int_eq(load("/up", &config, &err), 0);
    sl_server_stop(secure);
}

SL_TEST(plain_http_on_a_tls_port_is_a_network_error)
{
    struct sl_server *secure = sl_server_start_tls();
    struct sl_err err = SL_ERR_INIT;
    char url[100];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/m", sl_server_port(secure));
    ck_assert_int_eq(sl_read_blob(url, &plain, 10, 10, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    sl_server_stop(secure);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
