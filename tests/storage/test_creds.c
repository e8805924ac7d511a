/* Where credentials come from, in which order, and what broken ones say. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "creds_home.h"
#include "ini.h"

/* ---- INI ------------------------------------------------------------------------------------ */

static int collect(const struct sl_ini_item *item, void *arg, struct sl_err *ignored)
{
    return sl_buf_printf(arg, ignored, "%s|%s|%s=%s@%u\n", item->section, item->parent, item->key,
                         item->value, item->line);
}

static void expect_items(enum sl_ini_dialect dialect, const char *text, const char *items)
{
    sl_autobuf out = SL_BUF_INIT(4096);
    ck_assert_int_eq(
        sl_ini_parse(text, strlen(text), "f", dialect, collect, &out, &sl_creds_home.err), 0);
    ck_assert_str_eq(sl_buf_string(&out), items);
}

SL_TEST(nested_blocks_and_indented_sections_are_told_apart)
{
    expect_items(
        SL_INI_AWS,
        "[default]\r\nregion = r1 # here\ns3 =\n  addressing_style = path\n\n  Endpoint_URL=u\n"
        "x=y\n[ indented ]\n  a = 1\n  b = 2;3\n    c = 4\n    more\n",
        "default||region=r1@2\ndefault||s3=@3\ndefault|s3|addressing_style=path@4\n"
        "default|s3|endpoint_url=u@6\ndefault||x=y@7\nindented||a=1@9\nindented||b=2;3@10\n"
        "indented|b|c=4@11\n");
}

SL_TEST(s3cmd_values_keep_percent_and_lose_quotes)
{
    expect_items(
        SL_INI_S3CMD,
        "# c\n[default]\naccess_key = \"a b\"\nhost_bucket = %(bucket)s.h # no comment\n k=\n",
        "default||access_key=a b@3\ndefault||host_bucket=%(bucket)s.h # no comment@4\n"
        "default||k=@5\n");
}

SL_TEST(a_broken_line_is_named_and_not_quoted)
{
    static const char *const broken[] = {"[default]\nhush\n", "[default]\n[hush\n",
                                         "[default]\n=hush", "[default]\n[]\n"};
    for (size_t i = 0; i < SL_COUNT(broken); i++) {
        sl_autobuf out = SL_BUF_INIT(4096);
        ck_assert_int_eq(sl_ini_parse(broken[i], strlen(broken[i]), "f", SL_INI_AWS, collect, &out,
                                      &sl_creds_home.err),
                         -1);
        ck_assert_int_eq(sl_creds_home.err.kind, SL_E_USAGE);
        ck_assert_msg(strncmp(sl_creds_home.err.message, "f:2: ", 5) == 0, "%s",
                      sl_creds_home.err.message);
        ck_assert_ptr_null(strstr(sl_creds_home.err.message, "hush"));
    }
    ck_assert_int_eq(sl_ini_parse("a=\0b", 4, "f", SL_INI_AWS, collect, NULL, &sl_creds_home.err),
                     -1);
}

/* Who does not ask why is not told. */
SL_TEST(an_answer_that_is_no_json_needs_no_reason)
{
    struct sl_key key = {0};
    sl_autobuf text = SL_BUF_INIT(16);
    ck_assert_int_eq(sl_buf_text(&text, "{", NULL), 0);
    ck_assert_int_eq(sl_key_from_json(&key, &text, "Token", "a test", NULL), -1);
}

/* ---- static keys ---------------------------------------------------------------------------- */

SL_TEST(nothing_found_is_anonymous_and_known_to_be)
{
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    sl_autokey key = {0};
    ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), 0);
    ck_assert_ptr_null(key.access_key);
    ck_assert(sl_creds_none_found(creds));
    ck_assert(sl_creds_current(creds, key.generation));
    ck_assert_str_eq(sl_creds_region(creds), "us-east-1");
}

SL_TEST(no_home_is_no_problem)
{
    unsetenv("HOME");
    sl_creds_home_expect(NULL, NULL, NULL);
}

SL_TEST(the_environment_comes_before_files)
{
    sl_creds_home_write(".aws/credentials",
                        "[default]\naws_access_key_id=F\naws_secret_access_key=hush1\n");
    sl_creds_home_expect("F", "hush1", NULL);
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush2", 1);
    setenv("AWS_SESSION_TOKEN", "T", 1);
    sl_creds_home_expect("E", "hush2", "T");
}

SL_TEST(a_profile_named_by_the_spec_comes_before_the_environment)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    sl_creds_home.s3.profile = (char[]){"mine"};
    sl_creds_home_refuse(SL_E_USAGE, "profile 'mine' is neither in");
    sl_creds_home_write(
        ".aws/config", "[profile mine]\naws_access_key_id=C\naws_secret_access_key=S\nregion=r1\n");
    sl_creds_home_expect("C", "S", NULL);
    sl_creds_home_write(".aws/credentials",
                        "[mine]\naws_access_key_id=F\naws_secret_access_key=S2\n");
    sl_creds_home_expect("F", "S2", NULL);
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    ck_assert_str_eq(sl_creds_region(creds), "r1");
    ck_assert_ptr_nonnull(strstr(sl_creds_origin(creds), "profile 'mine'"));
}

SL_TEST(one_key_without_the_other_is_an_error)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    sl_creds_home_refuse(SL_E_AUTH, "AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY");
    unsetenv("AWS_ACCESS_KEY_ID");
    sl_creds_home_write(".aws/credentials", "[default]\naws_secret_access_key=hush\n");
    sl_creds_home_refuse(SL_E_AUTH, "aws_secret_access_key without aws_access_key_id");
}

SL_TEST(keys_that_would_break_a_header_are_refused)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush\r\nX: y", 1);
    sl_creds_home_refuse(SL_E_AUTH, "the secret key of the environment");
    setenv("AWS_SECRET_ACCESS_KEY", "x", 1);
    setenv("AWS_SESSION_TOKEN", "hush\n", 1);
    sl_creds_home_refuse(SL_E_AUTH, "the session token");
    unsetenv("AWS_SESSION_TOKEN");
    setenv("AWS_ACCESS_KEY_ID", "a/b", 1);
    sl_creds_home_refuse(SL_E_AUTH, "the access key id");
}

SL_TEST(expired_keys_of_the_environment_are_refused)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
    setenv("AWS_CREDENTIAL_EXPIRATION", "2020-01-01T00:00:00Z", 1);
    sl_creds_home_refuse(SL_E_AUTH, "expired at 2020");
    setenv("AWS_CREDENTIAL_EXPIRATION", "soon", 1);
    sl_creds_home_refuse(SL_E_AUTH, "is not a time");
    setenv("AWS_CREDENTIAL_EXPIRATION", "2999-01-01T00:00:00Z", 1);
    sl_creds_home_expect("E", "S", NULL);
}

SL_TEST(what_needs_a_program_or_a_browser_is_refused_with_a_way_out)
{
    static const char *const lines[] = {"credential_process = /bin/x", "sso_session = s",
                                        "role_arn = arn:x\nsource_profile = y",
                                        "login_session = z"};
    for (size_t i = 0; i < SL_COUNT(lines); i++) {
        char text[200];
        snprintf(text, sizeof(text), "[default]\n%s\n", lines[i]);
        sl_creds_home_write(".aws/config", text);
        sl_creds_home_refuse(SL_E_AUTH, "aws configure export-credentials --profile default");
    }
}

/* ---- programs ------------------------------------------------------------------------------- */

#define PRINTS(more) "{\\\"Version\\\": 1, " more "}\""
#define KEYS         "\\\"AccessKeyId\\\": \\\"A\\\", \\\"SecretAccessKey\\\": \\\"S\\\""
#define UNTIL(time)  ", \\\"SessionToken\\\": \\\"T\\\", \\\"Expiration\\\": \\\"" time "\\\""

static const struct {
    const char *line, *token, *says; /* says NULL: keys come out */
} programs[] = {
    {"/bin/echo \"" PRINTS(KEYS), NULL, NULL},
    {"echo  \"" PRINTS(KEYS UNTIL("2999-01-01T00:00:00Z")), "T", NULL},
    {"'/bin/ech'o\t'{\"Version\": 1, \"AccessKeyId\": \"A\", \"SecretAccessKey\": \"S\"}'", NULL,
     NULL},
    {"/bin/\\echo "
     "{\\\"Version\\\":1,\\\"AccessKeyId\\\":\\\"A\\\",\\\"SecretAccessKey\\\":\\\"S\\\"}",
     NULL, NULL},
    {"echo \"" PRINTS(KEYS UNTIL("2020-01-01T00:00:00Z")), NULL, "have expired"},
    {"echo \"" PRINTS(KEYS UNTIL("soon")), NULL, "which is not a time"},
    {"echo \"" PRINTS("\\\"AccessKeyId\\\": \\\"hush\\\""), NULL,
     "without AccessKeyId or SecretAccessKey"},
    {"echo {\\\"Version\\\":2}", NULL, "JSON of version 1"},
    {"echo hush", NULL, "JSON of version 1"},
    {"true", NULL, "JSON of version 1"},
    {"false hush", NULL, "ended with an error"},
    {"cat /dev/zero", NULL, "more than 64 KiB"},
    {"/nonexistent/hush", NULL, "cannot be started"},
    {"./echo hush", NULL, "no absolute path"},
    {"echo \"hush", NULL, "quotes do not pair"},
    {"echo 'hush", NULL, "quotes do not pair"},
    {"echo hush\\", NULL, "quotes do not pair"},
};

SL_TEST_LOOP(a_program_prints_keys_where_that_is_allowed, 0, SL_COUNT(programs))
{
    char text[400];
    snprintf(text, sizeof(text), "[default]\ncredential_process = %s\n", programs[_i].line);
    sl_creds_home_write(".aws/config", text);
    setenv("PATH", "here:/usr/bin:/bin", 1);
    sl_creds_home_refuse(SL_E_AUTH, "source.s3.credentialProcess: true");
    sl_creds_home.s3.credential_process = true;
    sl_creds_home.err = (struct sl_err)SL_ERR_INIT;
    if (strstr(programs[_i].line, "nonexistent") && !sl_missing_program_is_told())
        SL_SKIP("an emulated process is not told that a program is missing");
    if (programs[_i].says)
        sl_creds_home_refuse(SL_E_AUTH, programs[_i].says);
    else
        sl_creds_home_expect("A", "S", programs[_i].token);
}

/* As in a host that waits for its children with handlers of its own. */
SL_TEST(a_program_is_heard_where_nobody_is_told_of_its_end)
{
    sl_creds_home.s3.credential_process = true;
    sl_creds_home_write(".aws/config",
                        "[default]\ncredential_process = /bin/echo {\\\"Version\\\":1,"
                        "\\\"AccessKeyId\\\":\\\"A\\\",\\\"SecretAccessKey\\\":"
                        "\\\"S\\\"}\n");
    signal(SIGCHLD, SIG_IGN);
    sl_creds_home_expect("A", "S", NULL);
    signal(SIGCHLD, SIG_DFL);
}

SL_TEST(a_program_is_asked_again_when_its_keys_are_refused)
{
    sl_creds_home.s3.credential_process = true;
    sl_creds_home_write("token", "1");
    sl_creds_home_write(".aws/config",
                        "[default]\ncredential_process = /bin/sh -c \"read n <$HOME/token; "
                        "echo {\\\\\\\"Version\\\\\\\":1,\\\\\\\"AccessKeyId\\\\\\\":\\\\\\\"A$n"
                        "\\\\\\\",\\\\\\\"SecretAccessKey\\\\\\\":\\\\\\\"S\\\\\\\"}\"\n");
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    sl_autokey key = {0};
    ck_assert_msg(sl_creds_get(creds, &key, &sl_creds_home.err) == 0, "%s",
                  sl_creds_home.err.message);
    ck_assert_str_eq(key.access_key, "A1");
    sl_creds_home_write("token", "2");
    ck_assert(sl_creds_renew(creds, key.generation));
    ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), 0);
    ck_assert_str_eq(key.access_key, "A2");
}

SL_TEST(profiles_give_endpoints_in_their_order)
{
    sl_creds_home.s3.anonymous = true;
    sl_creds_home_write(
        ".aws/config",
        "[profile \"a b\"]\nendpoint_url = http://one\ns3 =\n  endpoint_url = http://two\n"
        "  addressing_style = virtual\nservices = sv\n"
        "[services sv]\ns3 = \n  endpoint_url = http://three\nsts =\n  endpoint_url = http://sts\n"
        "[services other]\ns3 =\n  endpoint_url = http://no\n");
    struct sl_profile profile = {0};
    ck_assert_int_eq(sl_profile_read(&profile, "a b", &sl_creds_home.err), 0);
    ck_assert(profile.found);
    ck_assert_str_eq(sl_profile_endpoint(&profile), "http://three");
    ck_assert_str_eq(profile.services_sts, "http://sts");
    ck_assert_str_eq(profile.s3_endpoint_url, "http://two");
    ck_assert_str_eq(profile.endpoint_url, "http://one");
    ck_assert_str_eq(profile.s3_addressing_style, "virtual");
    sl_profile_release(&profile);
}

SL_TEST(a_broken_config_file_is_an_error_with_its_line)
{
    sl_creds_home_write(".aws/config", "[default]\nregion\n");
    sl_creds_home_refuse(SL_E_USAGE, "/.aws/config:2: ");
}

/* ---- .s3cfg --------------------------------------------------------------------------------- */

SL_TEST(the_home_s3cfg_comes_after_profiles)
{
    sl_creds_home_write(
        ".s3cfg",
        "[default]\naccess_key = A\nsecret_key = \"S\"\naccess_token = T\nhost_base = h:1\n"
        "use_https = False\nbucket_location = US\n");
    sl_creds_home_expect("A", "S", "T");
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    ck_assert_str_eq(sl_creds_s3cfg(creds)->host_base, "h:1");
    ck_assert(sl_creds_s3cfg(creds)->plain_http);
    ck_assert_str_eq(sl_creds_region(creds), "us-east-1");
    sl_creds_home_write(".aws/credentials",
                        "[default]\naws_access_key_id=F\naws_secret_access_key=S\n");
    sl_creds_home_expect("F", "S", NULL);
}

SL_TEST(a_config_file_of_the_spec_comes_first_and_must_be_there)
{
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
    sl_creds_home.s3.config_file = (char[]){"/nonexistent/s3cfg"};
    sl_creds_home_refuse(SL_E_NOT_FOUND, "/nonexistent/s3cfg");
    const char *path = sl_creds_home_write(".s3cfg", "[default]\naccess_key=A\nsecret_key=B\n");
    sl_creds_home.s3.config_file = strdup(path);
    sl_creds_home_expect("A", "B", NULL);
    sl_creds_home_write(".s3cfg", "[default]\nhost_base = own:7480\n");
    sl_creds_home_expect("E", "S", NULL);
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    ck_assert_str_eq(sl_creds_s3cfg(creds)->host_base, "own:7480");
    free(sl_creds_home.s3.config_file);
}

SL_TEST(what_s3cfg_asks_for_and_we_do_not_do_is_refused)
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
    sl_creds_home.s3.config_file = strdup(sl_creds_home_write(".s3cfg", ""));
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char text[100];
        snprintf(text, sizeof(text), "[default]\n%s\n", rows[i].line);
        sl_creds_home_write(".s3cfg", text);
        sl_creds_home_refuse(SL_E_USAGE, rows[i].text);
    }
    free(sl_creds_home.s3.config_file);
}

/* ---- the rest ------------------------------------------------------------------------------- */

SL_TEST(times_with_fraction_and_offset_are_understood)
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

SL_TEST(files_written_anew_renew_static_keys)
{
    sl_creds_home_write(".aws/credentials",
                        "[default]\naws_access_key_id=F\naws_secret_access_key=S1\n");
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    sl_autokey key = {0};
    ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), 0);
    ck_assert(!sl_creds_renew(creds, key.generation));
    sl_creds_home_write(".aws/credentials",
                        "[default]\naws_access_key_id=F\naws_secret_access_key=S2\n");
    ck_assert(sl_creds_renew(creds, key.generation));
    ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), 0);
    ck_assert_str_eq(key.secret_key, "S2");
}

SL_TEST(every_failing_allocation_is_survived)
{
    sl_creds_home_write(".aws/config", "[default]\nregion=r\ns3=\n endpoint_url=http://e\n");
    sl_creds_home_write(".s3cfg", "[default]\naccess_key = A\nsecret_key = S\nhost_base = h\n");
    for (unsigned nth = 1; nth < 200; nth++) {
        sl_creds_home.err = (struct sl_err)SL_ERR_INIT;
        sl_autokey key = {0};
        sl_alloc_fail_at(nth);
        SL_AUTO(sl_creds) creds = sl_creds_new(&sl_creds_home.config, &sl_creds_home.err);
        int result = creds ? sl_creds_get(creds, &key, &sl_creds_home.err) : -1;
        unsigned count = sl_alloc_count();
        sl_alloc_fail_at(0);
        if (count < nth) {
            ck_assert_int_eq(result, 0);
            return;
        }
        /* a home path that could not be made is a file that is not there */
        if (result < 0)
            ck_assert_int_eq(sl_creds_home.err.kind, SL_E_NO_SPACE);
    }
    ck_abort_msg("never succeeded");
}

SL_CASE(.setup = sl_creds_home_setup, .teardown = sl_creds_home_teardown)
