/* Keys from services: web identity, container endpoints, instance metadata; refreshing them. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "claims.h"
#include "creds_home.h"
#include "range_server.h"

static unsigned asked;
static int failures;
static const char *expiration = "2999-01-01T00:00:00Z";

static void answer(struct sl_server_reply *reply, int status, char *body)
{
    reply->status = status;
    reply->body = body;
    reply->body_bytes = body ? strlen(body) : 0;
}

static char *json_keys(void)
{
    char *body;
    ck_assert_int_gt(
        asprintf(&body,
                 "{\"Code\":\"Success\",\"AccessKeyId\":\"AK%u\",\"SecretAccessKey\":\"SK\","
                 "\"Token\":\"TK\",\"Expiration\":\"%s\"}",
                 asked, expiration),
        0);
    return body;
}

static bool sts(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    (void)arg;
    asked++;
    ck_assert_str_eq(request->method, "POST");
    ck_assert_ptr_nonnull(strstr(request->body,
                                 "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&"
                                 "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&"));
    ck_assert_ptr_nonnull(strstr(request->body, "&WebIdentityToken=jwt"));
    if (failures-- > 0) {
        answer(reply, 400,
               strdup("<ErrorResponse><Error><Code>IDPCommunicationError</Code></Error></"
                      "ErrorResponse>"));
        return true;
    }
    if (strstr(request->body, "jwtbad")) {
        answer(reply, 403,
               strdup("<ErrorResponse xmlns='x'><Error><Type>Sender</Type><Code>AccessDenied</Code>"
                      "<Message>Not authorized</Message></Error></ErrorResponse>"));
        return true;
    }
    char *body;
    ck_assert_int_gt(
        asprintf(
            &body,
            "<AssumeRoleWithWebIdentityResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>"
            "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AK%u</AccessKeyId>"
            "<SecretAccessKey>SK</SecretAccessKey><SessionToken>TK</SessionToken>"
            "<Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
            "</AssumeRoleWithWebIdentityResponse>",
            asked, expiration),
        0);
    answer(reply, 200, body);
    return true;
}

static struct sl_server *start_sts(void)
{
    struct sl_server *server = sl_server_start();
    sl_server_handle(server, sts, NULL);
    setenv("AWS_ENDPOINT_URL_STS", sl_server_url(server, ""), 1);
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", sl_creds_home_write("token", " \njwt\n"), 1);
    return server;
}

SL_TEST(a_web_identity_is_exchanged_for_keys_once)
{
    struct sl_server *server = start_sts();
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    ck_assert_uint_eq(asked, 0);
    for (int i = 0; i < 3; i++) {
        sl_autokey key = {0};
        ck_assert_msg(sl_creds_get(creds, &key, &sl_creds_home.err) == 0, "%s",
                      sl_creds_home.err.message);
        ck_assert_str_eq(key.access_key, "AK1");
        ck_assert_str_eq(key.session_token, "TK");
        ck_assert(sl_creds_current(creds, key.generation));
    }
    sl_server_stop(server);
}

SL_TEST(a_refused_key_is_renewed_with_the_token_read_anew)
{
    struct sl_server *server = start_sts();
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    sl_autokey key = {0};
    ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), 0);
    sl_creds_home_write("token", "jwt2");
    ck_assert(sl_creds_renew(creds, key.generation));
    ck_assert(!sl_creds_current(creds, key.generation));
    ck_assert(sl_creds_renew(creds, key.generation));
    ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), 0);
    ck_assert_str_eq(key.access_key, "AK2");
    ck_assert_uint_eq(asked, 2);
    ck_assert_ptr_nonnull(strstr(sl_server_request_at(server, 1)->body, "=jwt2"));
    ck_assert_msg(sl_creds_renew(creds, key.generation), "renewed a moment ago: worth a try");
    ck_assert_uint_eq(asked, 2);
    sl_server_stop(server);
}

static const char *in_minutes(int minutes, char text[32])
{
    time_t when = time(NULL) + minutes * 60;
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime(&when));
    return text;
}

SL_TEST(keys_about_to_expire_are_refreshed_but_not_every_time)
{
    char text[32];
    struct sl_server *server = start_sts();
    expiration = in_minutes(12, text);
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    sl_autokey key = {0};
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), 0);
    ck_assert_uint_eq(asked, 1);
    sl_server_stop(server);
}

SL_TEST(expired_keys_are_not_used_and_the_reason_is_told)
{
    char text[32];
    struct sl_server *server = start_sts();
    expiration = in_minutes(-1, text);
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    sl_autokey key = {0};
    ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), 0);
    sl_creds_home_write("token", "jwtbad");
    ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), -1);
    ck_assert_int_eq(sl_creds_home.err.kind, SL_E_AUTH);
    ck_assert_ptr_nonnull(
        strstr(sl_creds_home.err.message, "cannot assume role 'arn:aws:iam::1:role/r'"));
    ck_assert_ptr_nonnull(strstr(sl_creds_home.err.message, "403 AccessDenied: Not authorized"));
    ck_assert_ptr_null(strstr(sl_creds_home.err.message, "jwt"));
    sl_server_stop(server);
}

SL_TEST(an_identity_provider_that_stutters_is_asked_again)
{
    struct sl_server *server = start_sts();
    failures = 1;
    sl_creds_home_expect("AK2", "SK", "TK");
    sl_server_stop(server);
}

SL_TEST(a_missing_or_empty_token_file_is_named)
{
    struct sl_server *server = start_sts();
    sl_creds_home_write("token", "\n");
    sl_creds_home_refuse(SL_E_AUTH, "is empty");
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/token", 1);
    sl_creds_home_refuse(SL_E_AUTH, "/nonexistent/token");
    unsetenv("AWS_ROLE_ARN");
    sl_creds_home_refuse(SL_E_AUTH, "without AWS_ROLE_ARN");
    sl_server_stop(server);
}

SL_TEST(a_profile_can_name_a_web_identity)
{
    struct sl_server *server = start_sts();
    unsetenv("AWS_ROLE_ARN");
    unsetenv("AWS_WEB_IDENTITY_TOKEN_FILE");
    char text[256];
    snprintf(text, sizeof(text),
             "[default]\nrole_arn=arn:aws:iam::1:role/r\nweb_identity_token_file=%s/token\n",
             sl_creds_home.path);
    sl_creds_home_write(".aws/config", text);
    sl_creds_home_expect("AK1", "SK", "TK");
    sl_server_stop(server);
}

static void *get_key(void *arg)
{
    sl_autokey key = {0};
    struct sl_err mine = SL_ERR_INIT;
    return sl_creds_get(arg, &key, &mine) == 0 && strcmp(key.access_key, "AK1") == 0 ? arg : NULL;
}

SL_TEST(threads_that_need_keys_at_once_ask_once)
{
    struct sl_server *server = start_sts();
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    pthread_t threads[8];
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        pthread_create(&threads[i], NULL, get_key, creds);
    for (size_t i = 0; i < SL_COUNT(threads); i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_nonnull(result);
    }
    ck_assert_uint_eq(asked, 1);
    sl_server_stop(server);
}

static bool container(const struct sl_server_request *request, struct sl_server_reply *reply,
                      void *arg)
{
    (void)arg;
    char text[64] = "";
    asked++;
    sl_server_header(request, "Authorization", text, sizeof(text));
    bool good = strcmp(text, "hush-token") == 0;
    answer(reply, good ? 200 : 403, good ? json_keys() : NULL);
    return true;
}

SL_TEST(a_container_endpoint_is_asked_with_its_token)
{
    struct sl_server *server = sl_server_start();
    sl_server_handle(server, container, NULL);
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", sl_server_url(server, "/v1/credentials"), 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "ignored", 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
           sl_creds_home_write("token", " \nhush-token\n"), 1);
    setenv("http_proxy", "http://127.0.0.1:9", 1);
    sl_creds_home_expect("AK1", "SK", "TK");
    unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    sl_creds_home_refuse(SL_E_AUTH, "answers 403");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hush\r\nX: y", 1);
    sl_creds_home_refuse(SL_E_AUTH, "line break");
    sl_server_stop(server);
}

SL_TEST(container_endpoints_on_other_hosts_are_refused)
{
    static const char *const urls[] = {"http://169.254.169.254/x", "http://example.com/x",
                                       "http://127.0.0.1.example.com/", "http://170.0.0.1/",
                                       "ftp://localhost/"};
    for (size_t i = 0; i < SL_COUNT(urls); i++) {
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", urls[i], 1);
        SL_AUTO(sl_creds) creds = sl_creds_home_open();
        sl_autokey key = {0};
        ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), -1);
        ck_assert_int_eq(sl_creds_home.err.kind, SL_E_AUTH);
    }
}

static bool instance(const struct sl_server_request *request, struct sl_server_reply *reply,
                     void *arg)
{
    const char *mode = arg;
    char text[64] = "";
    asked++;
    if (strcmp(request->method, "PUT") == 0) {
        ck_assert_str_eq(request->target, "/latest/api/token");
        ck_assert(
            sl_server_header(request, "x-aws-ec2-metadata-token-ttl-seconds", text, sizeof(text)));
        answer(reply, strcmp(mode, "off") == 0 ? 403 : 200, strdup("session"));
        return true;
    }
    sl_server_header(request, "x-aws-ec2-metadata-token", text, sizeof(text));
    ck_assert_str_eq(text, "session");
    if (strcmp(request->target, "/latest/meta-data/iam/security-credentials/") == 0) {
        bool role = strcmp(mode, "no role") != 0;
        answer(reply, role ? 200 : 404, role ? strdup("my-role\nother") : NULL);
    } else {
        ck_assert_str_eq(request->target, "/latest/meta-data/iam/security-credentials/my-role");
        answer(reply, 200,
               strcmp(mode, "broken") == 0 ? strdup("{\"Code\":\"Failed\"}") : json_keys());
    }
    return true;
}

static struct sl_server *start_instance(const char *mode)
{
    struct sl_server *server = sl_server_start();
    sl_server_handle(server, instance, (void *)mode);
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", sl_server_url(server, "/"), 1);
    setenv("AWS_EC2_METADATA_DISABLED", "false", 1);
    setenv("AWS_METADATA_SERVICE_TIMEOUT", "20", 1); /* the second that is usual is short here */
    setenv("http_proxy", "http://127.0.0.1:9", 1);
    return server;
}

SL_TEST(instance_metadata_gives_the_keys_of_the_role)
{
    struct sl_server *server = start_instance("good");
    sl_creds_home_expect("AK3", "SK", "TK");
    sl_server_stop(server);
}

SL_TEST(an_instance_without_role_or_with_metadata_off_is_anonymous)
{
    struct sl_server *server = start_instance("no role");
    sl_creds_home_expect(NULL, NULL, NULL);
    sl_server_stop(server);
    server = start_instance("off");
    sl_creds_home_expect(NULL, NULL, NULL);
    int held = sl_server_leave(server);
    sl_creds_home_expect(NULL, NULL, NULL); /* nobody there */
    close(held);
}

SL_TEST(instance_metadata_that_fails_is_an_error)
{
    struct sl_server *server = start_instance("broken");
    sl_creds_home_refuse(SL_E_AUTH, "instance metadata gives no keys: Failed");
    sl_server_stop(server);
}

SL_CASE(.setup = sl_creds_home_setup, .teardown = sl_creds_home_teardown)
