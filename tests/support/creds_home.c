/* Every test runs in a process of its own, so the environment is the test's own, too. */
#include "creds_home.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "s3_options.h"

struct sl_creds_home sl_creds_home;

void sl_creds_home_setup(void)
{
    clearenv();
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    snprintf(sl_creds_home.path, sizeof(sl_creds_home.path), "/tmp/test_creds.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(sl_creds_home.path));
    setenv("HOME", sl_creds_home.path, 1);
    char path[128];
    snprintf(path, sizeof(path), "%s/.aws", sl_creds_home.path);
    mkdir(path, 0700);
    sl_creds_home.s3 = (struct sl_s3_options){0};
    sl_creds_home.config =
        (struct sl_source_config){.options = {{&sl_s3_table, &sl_creds_home.s3}}};
    sl_creds_home.err = (struct sl_err)SL_ERR_INIT;
}

void sl_creds_home_teardown(void)
{
    static const char *const names[] = {
        ".aws/config", ".aws/credentials", ".s3cfg", "token", ".aws", ""};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        char path[128];
        snprintf(path, sizeof(path), "%s/%s", sl_creds_home.path, names[i]);
        remove(path);
    }
}

const char *sl_creds_home_write(const char *name, const char *text)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", sl_creds_home.path, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    return path;
}

struct sl_creds *sl_creds_home_open(void)
{
    struct sl_creds *creds = sl_creds_new(&sl_creds_home.config, &sl_creds_home.err);
    ck_assert_msg(creds != NULL, "%s", sl_creds_home.err.message);
    return creds;
}

void sl_creds_home_expect(const char *access_key, const char *secret_key, const char *token)
{
    SL_AUTO(sl_creds) creds = sl_creds_home_open();
    sl_autokey key = {0};
    ck_assert_msg(sl_creds_get(creds, &key, &sl_creds_home.err) == 0, "%s",
                  sl_creds_home.err.message);
    ck_assert_pstr_eq(key.access_key, access_key);
    ck_assert_pstr_eq(key.secret_key, secret_key);
    ck_assert_pstr_eq(key.session_token, token);
}

void sl_creds_home_refuse(enum sl_err_kind kind, const char *text)
{
    SL_AUTO(sl_creds) creds = sl_creds_new(&sl_creds_home.config, &sl_creds_home.err);
    sl_autokey key = {0};
    if (creds)
        ck_assert_int_eq(sl_creds_get(creds, &key, &sl_creds_home.err), -1);
    ck_assert_int_eq(sl_creds_home.err.kind, kind);
    ck_assert_msg(strstr(sl_creds_home.err.message, text) != NULL, "%s", sl_creds_home.err.message);
    ck_assert_msg(!strstr(sl_creds_home.err.message, "hush"), "%s", sl_creds_home.err.message);
}
