/* Where credentials come from, in which order, and what broken ones say. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "creds.h"
#include "ini.h"
#include "range_server.h"

extern char **environ;

static char home[64];
static struct sl_s3_options s3;
static struct sl_source_config config;
static struct sl_err err;

/* An environment that holds nothing of the machine's, and an empty home. */
static void setup(void)
{
    clearenv();
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    snprintf(home, sizeof(home), "/tmp/test_creds.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(home));
    setenv("HOME", home, 1);
    char path[128];
    snprintf(path, sizeof(path), "%s/.aws", home);
    mkdir(path, 0700);
    s3 = (struct sl_s3_options){0};
    config = (struct sl_source_config){.s3 = &s3};
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    static const char *const names[] = {
        ".aws/config", ".aws/credentials", ".s3cfg", "token", ".aws", ""};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", home, names[i]);
        remove(path);
    }
}

static const char *write_file(const char *name, const char *text)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", home, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    return path;
}

static struct sl_creds *open_creds(void)
{
    struct sl_creds *creds = sl_creds_new(&config, &err);
    ck_assert_msg(creds != NULL, "%s", err.message);
    return creds;
}

static void expect_key(const char *access_key, const char *secret_key, const char *token)
{
    SL_AUTO(sl_creds) creds = open_creds();
    sl_autokey key = {0};
    ck_assert_msg(sl_creds_get(creds, &key, &err) == 0, "%s", err.message);
    ck_assert_pstr_eq(key.access_key, access_key);
    ck_assert_pstr_eq(key.secret_key, secret_key);
    ck_assert_pstr_eq(key.session_token, token);
}

static void expect_refusal(enum sl_err_kind kind, const char *text)
{
    SL_AUTO(sl_creds) creds = sl_creds_new(&config, &err);
    sl_autokey key = {0};
    if (creds)
        ck_assert_int_eq(sl_creds_get(creds, &key, &err), -1);
    ck_assert_int_eq(err.kind, kind);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    ck_assert_msg(!strstr(err.message, "hush"), "%s", err.message);
}

/* ---- INI ------------------------------------------------------------------------------------ */

static int collect(const struct sl_ini_item *item, void *arg, struct sl_err *ignored)
{
    return sl_buf_printf(arg, ignored, "%s|%s|%s=%s@%u\n", item->section, item->parent, item->key,
                         item->value, item->line);
}

static void expect_items(enum sl_ini_dialect dialect, const char *text, const char *items)
{
    sl_autobuf out = SL_BUF_INIT(4096);
    ck_assert_int_eq(sl_ini_parse(text, strlen(text), "f", dialect, collect, &out, &err), 0);
    ck_assert_str_eq(sl_buf_string(&out), items);
}

START_TEST(nested_blocks_and_indented_sections_are_told_apart)
{
    expect_items(
        SL_INI_AWS,
        "[default]\r\nregion = r1 # here\ns3 =\n  addressing_style = path\n\n  Endpoint_URL=u\n"
        "x=y\n[ indented ]\n  a = 1\n  b = 2;3\n    c = 4\n    more\n",
        "default||region=r1@2\ndefault||s3=@3\ndefault|s3|addressing_style=path@4\n"
        "default|s3|endpoint_url=u@6\ndefault||x=y@7\nindented||a=1@9\nindented||b=2;3@10\n"
        "indented|b|c=4@11\n");
}
END_TEST

START_TEST(s3cmd_values_keep_percent_and_lose_quotes)
{
    expect_items(
        SL_INI_S3CMD,
        "# c\n[default]\naccess_key = \"a b\"\nhost_bucket = %(bucket)s.h # no comment\n k=\n",
        "default||access_key=a b@3\ndefault||host_bucket=%(bucket)s.h # no comment@4\n"
        "default||k=@5\n");
}
END_TEST

START_TEST(a_broken_line_is_named_and_not_quoted)
{
    static const char *const broken[] = {"[default]\nhush\n", "[default]\n[hush\n",
                                         "[default]\n=hush", "[default]\n[]\n"};
    for (size_t i = 0; i < SL_COUNT(broken); i++) {
        sl_autobuf out = SL_BUF_INIT(4096);
        ck_assert_int_eq(
            sl_ini_parse(broken[i], strlen(broken[i]), "f", SL_INI_AWS, collect, &out, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_msg(strncmp(err.message, "f:2: ", 5) == 0, "%s", err.message);
        ck_assert_ptr_null(strstr(err.message, "hush"));
    }
    ck_assert_int_eq(sl_ini_parse("a=\0b", 4, "f", SL_INI_AWS, collect, NULL, &err), -1);
}
END_TEST

/* ---- static keys ---------------------------------------------------------------------------- */

START_TEST(nothing_found_is_anonymous_and_known_to_be)
{
    SL_AUTO(sl_creds) creds = open_creds();
    sl_autokey key = {0};
    ck_assert_int_eq(sl_creds_get(creds, &key, &err), 0);
    ck_assert_ptr_null(key.access_key);
    ck_assert(sl_creds_none_found(creds));
    ck_assert(sl_creds_current(creds, key.generation));
    ck_assert_str_eq(sl_creds_region(creds), "us-east-1");
}
END_TEST

START_TEST(no_home_is_no_problem)
{
    unsetenv("HOME");
    expect_key(NULL, NULL, NULL);
}
END_TEST

START_TEST(the_environment_comes_before_files)
{
    write_file(".aws/credentials", "[default]\naws_access_key_id=F\naws_secret_access_key=hush1\n");
    expect_key("F", "hush1", NULL);
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush2", 1);
    setenv("AWS_SESSION_TOKEN", "T", 1);
    expect_key("E", "hush2", "T");
}
END_TEST

START_TEST(a_profile_named_by_the_spec_comes_before_the_environment)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    s3.profile = (char[]){"mine"};
    expect_refusal(SL_E_USAGE, "profile 'mine' is neither in");
    write_file(".aws/config",
               "[profile mine]\naws_access_key_id=C\naws_secret_access_key=S\nregion=r1\n");
    expect_key("C", "S", NULL);
    write_file(".aws/credentials", "[mine]\naws_access_key_id=F\naws_secret_access_key=S2\n");
    expect_key("F", "S2", NULL);
    SL_AUTO(sl_creds) creds = open_creds();
    ck_assert_str_eq(sl_creds_region(creds), "r1");
    ck_assert_ptr_nonnull(strstr(sl_creds_origin(creds), "profile 'mine'"));
}
END_TEST

START_TEST(one_key_without_the_other_is_an_error)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    expect_refusal(SL_E_AUTH, "AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY");
    unsetenv("AWS_ACCESS_KEY_ID");
    write_file(".aws/credentials", "[default]\naws_secret_access_key=hush\n");
    expect_refusal(SL_E_AUTH, "aws_secret_access_key without aws_access_key_id");
}
END_TEST

START_TEST(keys_that_would_break_a_header_are_refused)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush\r\nX: y", 1);
    expect_refusal(SL_E_AUTH, "the secret key of the environment");
    setenv("AWS_SECRET_ACCESS_KEY", "x", 1);
    setenv("AWS_SESSION_TOKEN", "hush\n", 1);
    expect_refusal(SL_E_AUTH, "the session token");
    unsetenv("AWS_SESSION_TOKEN");
    setenv("AWS_ACCESS_KEY_ID", "a/b", 1);
    expect_refusal(SL_E_AUTH, "the access key id");
}
END_TEST

START_TEST(expired_keys_of_the_environment_are_refused)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
    setenv("AWS_CREDENTIAL_EXPIRATION", "2020-01-01T00:00:00Z", 1);
    expect_refusal(SL_E_AUTH, "expired at 2020");
    setenv("AWS_CREDENTIAL_EXPIRATION", "soon", 1);
    expect_refusal(SL_E_AUTH, "is no time");
    setenv("AWS_CREDENTIAL_EXPIRATION", "2999-01-01T00:00:00Z", 1);
    expect_key("E", "S", NULL);
}
END_TEST

START_TEST(what_needs_a_program_or_a_browser_is_refused_with_a_way_out)
{
    static const char *const lines[] = {"credential_process = /bin/x", "sso_session = s",
                                        "role_arn = arn:x\nsource_profile = y",
                                        "login_session = z"};
    for (size_t i = 0; i < SL_COUNT(lines); i++) {
        char text[200];
        snprintf(text, sizeof(text), "[default]\n%s\n", lines[i]);
        write_file(".aws/config", text);
        expect_refusal(SL_E_AUTH, "aws configure export-credentials --profile default");
    }
}
END_TEST

START_TEST(profiles_give_endpoints_in_their_order)
{
    s3.anonymous = true;
    write_file(
        ".aws/config",
        "[profile \"a b\"]\nendpoint_url = http://one\ns3 =\n  endpoint_url = http://two\n"
        "  addressing_style = virtual\nservices = sv\n"
        "[services sv]\ns3 = \n  endpoint_url = http://three\nsts =\n  endpoint_url = http://sts\n"
        "[services other]\ns3 =\n  endpoint_url = http://no\n");
    struct sl_profile profile = {0};
    ck_assert_int_eq(sl_profile_read(&profile, "a b", &err), 0);
    ck_assert(profile.found);
    ck_assert_str_eq(sl_profile_endpoint(&profile), "http://three");
    ck_assert_str_eq(profile.services_sts, "http://sts");
    ck_assert_str_eq(profile.s3_endpoint_url, "http://two");
    ck_assert_str_eq(profile.endpoint_url, "http://one");
    ck_assert_str_eq(profile.s3_addressing_style, "virtual");
    sl_profile_release(&profile);
}
END_TEST

START_TEST(a_broken_config_file_is_an_error_with_its_line)
{
    write_file(".aws/config", "[default]\nregion\n");
    expect_refusal(SL_E_USAGE, "/.aws/config:2: ");
}
END_TEST

/* ---- .s3cfg --------------------------------------------------------------------------------- */

START_TEST(the_home_s3cfg_comes_after_profiles)
{
    write_file(".s3cfg",
               "[default]\naccess_key = A\nsecret_key = \"S\"\naccess_token = T\nhost_base = h:1\n"
               "use_https = False\nbucket_location = US\n");
    expect_key("A", "S", "T");
    SL_AUTO(sl_creds) creds = open_creds();
    ck_assert_str_eq(sl_creds_s3cfg(creds)->host_base, "h:1");
    ck_assert(sl_creds_s3cfg(creds)->plain_http);
    ck_assert_str_eq(sl_creds_region(creds), "us-east-1");
    write_file(".aws/credentials", "[default]\naws_access_key_id=F\naws_secret_access_key=S\n");
    expect_key("F", "S", NULL);
}
END_TEST

START_TEST(a_config_file_of_the_spec_comes_first_and_must_be_there)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
    s3.config_file = (char[]){"/nonexistent/s3cfg"};
    expect_refusal(SL_E_NOT_FOUND, "/nonexistent/s3cfg");
    const char *path = write_file(".s3cfg", "[default]\naccess_key=A\nsecret_key=B\n");
    s3.config_file = strdup(path);
    expect_key("A", "B", NULL);
    write_file(".s3cfg", "[default]\nhost_base = own:7480\n");
    expect_key("E", "S", NULL);
    SL_AUTO(sl_creds) creds = open_creds();
    ck_assert_str_eq(sl_creds_s3cfg(creds)->host_base, "own:7480");
    free(s3.config_file);
}
END_TEST

START_TEST(what_s3cfg_asks_for_and_we_do_not_do_is_refused)
{
    static const struct {
        const char *line, *text;
    } rows[] = {
        {"signature_v2 = True", ":2: version 2 signatures"},
        {"use_https = maybe", ":2: 'use_https' must be"},
        {"proxy_host = p", ":2: proxy_host"},
        {"access_key = a", "access_key without secret_key"},
        {"aws_access_key_id = a", "a file of the AWS tools"},
        {"nonsense", ":2: expected"},
    };
    s3.config_file = strdup(write_file(".s3cfg", ""));
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char text[100];
        snprintf(text, sizeof(text), "[default]\n%s\n", rows[i].line);
        write_file(".s3cfg", text);
        expect_refusal(SL_E_USAGE, rows[i].text);
    }
    free(s3.config_file);
}
END_TEST

/* ---- services ------------------------------------------------------------------------------- */

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
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", write_file("token", "jwt\n"), 1);
    return server;
}

START_TEST(a_web_identity_is_exchanged_for_keys_once)
{
    struct sl_server *server = start_sts();
    SL_AUTO(sl_creds) creds = open_creds();
    ck_assert_uint_eq(asked, 0);
    for (int i = 0; i < 3; i++) {
        sl_autokey key = {0};
        ck_assert_msg(sl_creds_get(creds, &key, &err) == 0, "%s", err.message);
        ck_assert_str_eq(key.access_key, "AK1");
        ck_assert_str_eq(key.session_token, "TK");
        ck_assert(sl_creds_current(creds, key.generation));
    }
    sl_server_stop(server);
}
END_TEST

START_TEST(a_refused_key_is_renewed_with_the_token_read_anew)
{
    struct sl_server *server = start_sts();
    SL_AUTO(sl_creds) creds = open_creds();
    sl_autokey key = {0};
    ck_assert_int_eq(sl_creds_get(creds, &key, &err), 0);
    write_file("token", "jwt2");
    ck_assert(sl_creds_renew(creds, key.generation));
    ck_assert(!sl_creds_current(creds, key.generation));
    ck_assert(sl_creds_renew(creds, key.generation));
    ck_assert_int_eq(sl_creds_get(creds, &key, &err), 0);
    ck_assert_str_eq(key.access_key, "AK2");
    ck_assert_uint_eq(asked, 2);
    ck_assert_ptr_nonnull(strstr(sl_server_request_at(server, 1)->body, "=jwt2"));
    ck_assert_msg(sl_creds_renew(creds, key.generation), "renewed a moment ago: worth a try");
    ck_assert_uint_eq(asked, 2);
    sl_server_stop(server);
}
END_TEST

static const char *in_minutes(int minutes, char text[32])
{
    time_t when = time(NULL) + minutes * 60;
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime(&when));
    return text;
}

START_TEST(keys_about_to_expire_are_refreshed_but_not_every_time)
{
    char text[32];
    struct sl_server *server = start_sts();
    expiration = in_minutes(12, text);
    SL_AUTO(sl_creds) creds = open_creds();
    sl_autokey key = {0};
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(sl_creds_get(creds, &key, &err), 0);
    ck_assert_uint_eq(asked, 1);
    sl_server_stop(server);
}
END_TEST

START_TEST(expired_keys_are_not_used_and_the_reason_is_told)
{
    char text[32];
    struct sl_server *server = start_sts();
    expiration = in_minutes(-1, text);
    SL_AUTO(sl_creds) creds = open_creds();
    sl_autokey key = {0};
    ck_assert_int_eq(sl_creds_get(creds, &key, &err), 0);
    write_file("token", "jwtbad");
    ck_assert_int_eq(sl_creds_get(creds, &key, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_ptr_nonnull(strstr(err.message, "cannot assume role 'arn:aws:iam::1:role/r'"));
    ck_assert_ptr_nonnull(strstr(err.message, "403 AccessDenied: Not authorized"));
    ck_assert_ptr_null(strstr(err.message, "jwt"));
    sl_server_stop(server);
}
END_TEST

START_TEST(an_identity_provider_that_stutters_is_asked_again)
{
    struct sl_server *server = start_sts();
    failures = 1;
    expect_key("AK2", "SK", "TK");
    sl_server_stop(server);
}
END_TEST

START_TEST(a_missing_or_empty_token_file_is_named)
{
    struct sl_server *server = start_sts();
    write_file("token", "\n");
    expect_refusal(SL_E_AUTH, "is empty");
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/token", 1);
    expect_refusal(SL_E_AUTH, "/nonexistent/token");
    unsetenv("AWS_ROLE_ARN");
    expect_refusal(SL_E_AUTH, "without AWS_ROLE_ARN");
    sl_server_stop(server);
}
END_TEST

START_TEST(a_profile_can_name_a_web_identity)
{
    struct sl_server *server = start_sts();
    unsetenv("AWS_ROLE_ARN");
    unsetenv("AWS_WEB_IDENTITY_TOKEN_FILE");
    char text[256];
    snprintf(text, sizeof(text),
             "[default]\nrole_arn=arn:aws:iam::1:role/r\nweb_identity_token_file=%s/token\n", home);
    write_file(".aws/config", text);
    expect_key("AK1", "SK", "TK");
    sl_server_stop(server);
}
END_TEST

static void *get_key(void *arg)
{
    sl_autokey key = {0};
    struct sl_err mine = SL_ERR_INIT;
    return sl_creds_get(arg, &key, &mine) == 0 && strcmp(key.access_key, "AK1") == 0 ? arg : NULL;
}

START_TEST(threads_that_need_keys_at_once_ask_once)
{
    struct sl_server *server = start_sts();
    SL_AUTO(sl_creds) creds = open_creds();
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
END_TEST

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

START_TEST(a_container_endpoint_is_asked_with_its_token)
{
    struct sl_server *server = sl_server_start();
    sl_server_handle(server, container, NULL);
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", sl_server_url(server, "/v1/credentials"), 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "ignored", 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", write_file("token", "hush-token\n"), 1);
    setenv("http_proxy", "http://127.0.0.1:9", 1);
    expect_key("AK1", "SK", "TK");
    unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    expect_refusal(SL_E_AUTH, "answers 403");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "hush\r\nX: y", 1);
    expect_refusal(SL_E_AUTH, "line break");
    sl_server_stop(server);
}
END_TEST

START_TEST(container_endpoints_on_other_hosts_are_refused)
{
    static const char *const urls[] = {"http://169.254.169.254/x", "http://example.com/x",
                                       "http://127.0.0.1.example.com/", "http://170.0.0.1/",
                                       "ftp://localhost/"};
    for (size_t i = 0; i < SL_COUNT(urls); i++) {
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", urls[i], 1);
        SL_AUTO(sl_creds) creds = open_creds();
        sl_autokey key = {0};
        ck_assert_int_eq(sl_creds_get(creds, &key, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_AUTH);
    }
}
END_TEST

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
    setenv("http_proxy", "http://127.0.0.1:9", 1);
    return server;
}

START_TEST(instance_metadata_gives_the_keys_of_the_role)
{
    struct sl_server *server = start_instance("good");
    expect_key("AK3", "SK", "TK");
    sl_server_stop(server);
}
END_TEST

START_TEST(an_instance_without_role_or_with_metadata_off_is_anonymous)
{
    struct sl_server *server = start_instance("no role");
    expect_key(NULL, NULL, NULL);
    sl_server_stop(server);
    server = start_instance("off");
    expect_key(NULL, NULL, NULL);
    sl_server_stop(server);
    expect_key(NULL, NULL, NULL); /* nobody there */
}
END_TEST

START_TEST(instance_metadata_that_fails_is_an_error)
{
    struct sl_server *server = start_instance("broken");
    expect_refusal(SL_E_AUTH, "instance metadata gives no keys: Failed");
    sl_server_stop(server);
}
END_TEST

/* ---- the rest ------------------------------------------------------------------------------- */

START_TEST(times_with_fraction_and_offset_are_understood)
{
    int64_t seconds;
    ck_assert_int_eq(sl_parse_time("1970-01-02T00:00:01Z", &seconds), 0);
    ck_assert_int_eq(seconds, 86401);
    ck_assert_int_eq(sl_parse_time("1970-01-01T02:00:00.123+01:30", &seconds), 0);
    ck_assert_int_eq(seconds, 1800);
    static const char *const bad[] = {
        "",  "1970-01-01",           "1970-01-01T00:00:00.Z", "1970-01-01T00:00:00+1",
        "x", "1970-01-01T00:00:00Zx"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_int_eq(sl_parse_time(bad[i], &seconds), -1);
}
END_TEST

START_TEST(files_written_anew_renew_static_keys)
{
    write_file(".aws/credentials", "[default]\naws_access_key_id=F\naws_secret_access_key=S1\n");
    SL_AUTO(sl_creds) creds = open_creds();
    sl_autokey key = {0};
    ck_assert_int_eq(sl_creds_get(creds, &key, &err), 0);
    ck_assert(!sl_creds_renew(creds, key.generation));
    write_file(".aws/credentials", "[default]\naws_access_key_id=F\naws_secret_access_key=S2\n");
    ck_assert(sl_creds_renew(creds, key.generation));
    ck_assert_int_eq(sl_creds_get(creds, &key, &err), 0);
    ck_assert_str_eq(key.secret_key, "S2");
}
END_TEST

START_TEST(every_failing_allocation_is_survived)
{
    write_file(".aws/config", "[default]\nregion=r\ns3=\n endpoint_url=http://e\n");
    write_file(".s3cfg", "[default]\naccess_key = A\nsecret_key = S\nhost_base = h\n");
    for (unsigned nth = 1; nth < 200; nth++) {
        err = (struct sl_err)SL_ERR_INIT;
        sl_autokey key = {0};
        sl_alloc_fail_at(nth);
        SL_AUTO(sl_creds) creds = sl_creds_new(&config, &err);
        int result = creds ? sl_creds_get(creds, &key, &err) : -1;
        unsigned count = sl_alloc_count();
        sl_alloc_fail_at(0);
        if (count < nth) {
            ck_assert_int_eq(result, 0);
            return;
        }
        /* a home path that could not be made is a file that is not there */
        if (result < 0)
            ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
    ck_abort_msg("never succeeded");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("creds");
    TCase *tests = tcase_create("creds");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, nested_blocks_and_indented_sections_are_told_apart);
    tcase_add_test(tests, s3cmd_values_keep_percent_and_lose_quotes);
    tcase_add_test(tests, a_broken_line_is_named_and_not_quoted);
    tcase_add_test(tests, nothing_found_is_anonymous_and_known_to_be);
    tcase_add_test(tests, no_home_is_no_problem);
    tcase_add_test(tests, the_environment_comes_before_files);
    tcase_add_test(tests, a_profile_named_by_the_spec_comes_before_the_environment);
    tcase_add_test(tests, one_key_without_the_other_is_an_error);
    tcase_add_test(tests, keys_that_would_break_a_header_are_refused);
    tcase_add_test(tests, expired_keys_of_the_environment_are_refused);
    tcase_add_test(tests, what_needs_a_program_or_a_browser_is_refused_with_a_way_out);
    tcase_add_test(tests, profiles_give_endpoints_in_their_order);
    tcase_add_test(tests, a_broken_config_file_is_an_error_with_its_line);
    tcase_add_test(tests, the_home_s3cfg_comes_after_profiles);
    tcase_add_test(tests, a_config_file_of_the_spec_comes_first_and_must_be_there);
    tcase_add_test(tests, what_s3cfg_asks_for_and_we_do_not_do_is_refused);
    tcase_add_test(tests, a_web_identity_is_exchanged_for_keys_once);
    tcase_add_test(tests, a_refused_key_is_renewed_with_the_token_read_anew);
    tcase_add_test(tests, keys_about_to_expire_are_refreshed_but_not_every_time);
    tcase_add_test(tests, expired_keys_are_not_used_and_the_reason_is_told);
    tcase_add_test(tests, an_identity_provider_that_stutters_is_asked_again);
    tcase_add_test(tests, a_missing_or_empty_token_file_is_named);
    tcase_add_test(tests, a_profile_can_name_a_web_identity);
    tcase_add_test(tests, threads_that_need_keys_at_once_ask_once);
    tcase_add_test(tests, a_container_endpoint_is_asked_with_its_token);
    tcase_add_test(tests, container_endpoints_on_other_hosts_are_refused);
    tcase_add_test(tests, instance_metadata_gives_the_keys_of_the_role);
    tcase_add_test(tests, an_instance_without_role_or_with_metadata_off_is_anonymous);
    tcase_add_test(tests, instance_metadata_that_fails_is_an_error);
    tcase_add_test(tests, times_with_fraction_and_offset_are_understood);
    tcase_add_test(tests, files_written_anew_renew_static_keys);
    tcase_add_test(tests, every_failing_allocation_is_survived);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
