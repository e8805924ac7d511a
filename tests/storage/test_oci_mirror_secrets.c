/* A registry and its mirrors that want tokens and logins: each sees its own, and nobody is shown
 * one.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "http_case.h"
#include "mirror_case.h"

static struct guard {
    struct sl_server *server;
    const char *own;            /* the token that it gives out */
    unsigned asked, renewed_at; /* so many tokens were given; older ones are refused */
    struct sl_server *leads_to; /* blobs redirect there; NULL: they are here */
} guards[3];
static unsigned strays; /* requests with a secret that is not this server's */

static void look_for_strays(const struct guard *guard, const char *sent)
{
    for (unsigned i = 0; i < SL_COUNT(guards); i++)
        if (&guards[i] != guard && guards[i].own && strstr(sent, guards[i].own))
            strays++;
}

static bool guarded(const struct sl_server_request *request, struct sl_server_reply *reply,
                    void *arg)
{
    struct guard *guard = arg;
    char sent[256] = "", want[64], text[300];
    if (sl_server_header(request, "Authorization", sent, sizeof(sent)))
        look_for_strays(guard, sent);
    if (strncmp(request->target, "/token?", 7) == 0) {
        snprintf(text, sizeof(text), "{\"token\": \"%s%u\", \"expires_in\": 300}", guard->own,
                 ++guard->asked);
        reply->body = strdup(text);
        reply->body_bytes = strlen(text);
        return true;
    }
    snprintf(want, sizeof(want), "Bearer %s%u", guard->own ? guard->own : "", guard->asked);
    if (guard->own &&
        (!guard->asked || strcmp(sent, want) != 0 || guard->renewed_at >= guard->asked)) {
        reply->status = 401;
        snprintf(reply->headers, sizeof(reply->headers),
                 "WWW-Authenticate: Bearer realm=\"%s\",service=\"s\"\r\n",
                 sl_server_url(guard->server, "/token"));
        return true;
    }
    if (!guard->own && *sent)
        strays++;
    if (!guard->leads_to || !strstr(request->target, "/blobs/"))
        return false;
    reply->status = 307;
    snprintf(reply->headers, sizeof(reply->headers), "Location: %s\r\n",
             sl_server_url(guard->leads_to, mirrors.blob));
    return true;
}

static void guard_all(void)
{
    strays = 0;
    guards[0] = (struct guard){.server = mirrors.registry, .own = "of-registry-"};
    guards[1] = (struct guard){.server = mirrors.near, .own = "of-near-"};
    guards[2] = (struct guard){.server = mirrors.far};
    for (unsigned i = 0; i < SL_COUNT(guards); i++)
        sl_server_handle(guards[i].server, guarded, &guards[i]);
}

SL_TEST(each_endpoint_gets_its_own_token)
{
    guard_all();
    struct mirror_opened opened = mirror_case_open();
    mirror_case_must_read(&opened, 5000, true);
    ck_assert_uint_eq(guards[1].asked, 1);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.registry), 1);
    ck_assert_uint_eq(sl_server_request_count(mirrors.far), 0);
    ck_assert_uint_eq(strays, 0);
    mirror_case_close(&opened);
}

/* To a host that wants none, and to the registry itself. */
SL_TEST_LOOP(a_mirrors_token_follows_no_redirect, 0, 2)
{
    guard_all();
    struct mirror_opened opened = mirror_case_open();
    guards[1].leads_to = _i ? mirrors.registry : mirrors.far;
    mirror_case_must_read(&opened, 5000, true);
    mirror_case_must_read(&opened, 6000, true);
    ck_assert_uint_eq(strays, 0);
    mirror_case_close(&opened);
}

SL_TEST(a_token_of_a_mirror_that_is_refused_is_replaced)
{
    guard_all();
    mirrors.config.attempts = 3;
    struct mirror_opened opened = mirror_case_open();
    mirror_case_must_read(&opened, 5000, true);
    ck_assert_uint_eq(sl_server_request_count(mirrors.near), 3); /* refused, the token, the range */
    ck_assert_uint_eq(sl_server_request_count(mirrors.far), 0);
    guards[1].renewed_at = 99; /* whatever it is given, it is refused */
    mirror_case_must_read(&opened, 6000, true);
    ck_assert_uint_eq(strays, 0);
    ck_assert_uint_eq(sl_server_request_count(mirrors.far), 1);
    mirror_case_close(&opened);
}

/* One for both hosts in a file: each gets its own alone. */
SL_TEST(a_login_goes_to_its_own_host)
{
    char text[400], sent[256];
    static const char challenge[] = "WWW-Authenticate: Basic realm=\"x\"\r\n";
    snprintf(text, sizeof(text),
             "{\"auths\":{\"127.0.0.1:%u\":{\"username\":\"r\",\"password\":\"r\"},"
             "\"127.0.0.1:%u\":{\"username\":\"n\",\"password\":\"n\"}}}",
             sl_server_port(mirrors.registry), sl_server_port(mirrors.near));
    mirrors.options.docker_config = (char *)(uintptr_t)file_with(text);
    SL_SCRIPT(mirrors.registry,
              {.first = 1, .fault = SL_FAULT_STATUS, .status = 401, .headers = challenge});
    SL_SCRIPT(mirrors.near,
              {.first = 1, .fault = SL_FAULT_STATUS, .status = 401, .headers = challenge});
    SL_SCRIPT(mirrors.far,
              {.first = 1, .fault = SL_FAULT_STATUS, .status = 401, .headers = challenge});
    struct mirror_opened opened = mirror_case_open();
    mirror_case_must_read(&opened, 5000, true);
    remove(mirrors.options.docker_config);
    ck_assert(header_of(mirrors.registry, 1, "Authorization", sent));
    ck_assert_str_eq(sent, "Basic cjpy");
    ck_assert(header_of(mirrors.near, 1, "Authorization", sent));
    ck_assert_str_eq(sent, "Basic bjpu");
    mirror_case_close(&opened);
}

struct told {
    char text[2000];
};

static void tell(void *arg, const char *what, const char *text)
{
    struct told *told = arg;
    size_t used = strlen(told->text);
    snprintf(told->text + used, sizeof(told->text) - used, "%s: %s\n", what, text);
}

SL_TEST(who_asks_is_told_of_every_endpoint_and_no_secret)
{
    char text[300];
    struct told told = {""};
    snprintf(text, sizeof(text),
             "{\"auths\":{\"127.0.0.1:%u\":{\"username\":\"u\",\"password\":\"s3cret\"}}}",
             sl_server_port(mirrors.near));
    mirrors.options.docker_config = (char *)(uintptr_t)file_with(text);
    struct mirror_opened opened = mirror_case_open();
    sl_store_describe(opened.store, tell, &told);
    ck_assert_msg(strstr(told.text, "endpoint: http://127.0.0.1") &&
                      strstr(told.text, mirrors.names[0]) &&
                      strstr(told.text, "(repository 'hub/org/m')") &&
                      strstr(told.text, mirrors.options.docker_config),
                  "%s", told.text);
    ck_assert_msg(!strstr(told.text, "s3cret"), "%s", told.text);
    remove(mirrors.options.docker_config);
    mirror_case_close(&opened);
}

SL_CASE(.setup = mirror_case_begin, .teardown = mirror_case_end, .prepare = mirror_case_prepare)
