/* KServe's environment: every variable and field becomes what it means, and each wrong one is
 * named. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "az_options.h"
#include "claims.h"
#include "golden.h"
#include "gs_options.h"
#include "hf_options.h"
#include "http_store.h"
#include "ms_options.h"
#include "oci_options.h"
#include "range_server.h"
#include "redis_options.h"
#include "s3_options.h"
#include "scratch.h"
#include "storage_env.h"
#include "storage_uri.h"

static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static struct sl_err err;

static void setup(void)
{
    clearenv();
    scratch_fd = sl_scratch_open(scratch);
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    sl_scratch_close(scratch_fd, scratch);
}

/* "path=value;" of all settings, or the error's message. A file in memory is its content. */
static const char *told(int done, struct sl_storage_env *env)
{
    static char text[8192];
    text[0] = 0;
    for (size_t i = 0; done == 0 && i < env->count; i++) {
        sl_autobuf content = SL_BUF_INIT(4096);
        const char *value = env->items[i].value;
        if (strncmp(value, "/proc/self/fd/", 14) == 0) {
            ck_assert_int_eq(sl_buf_read_file(&content, value, &err), 0);
            value = sl_buf_string(&content);
        }
        size_t used = strlen(text);
        snprintf(text + used, sizeof(text) - used, "%s=%s;", env->items[i].path, value);
    }
    if (done < 0)
        snprintf(text, sizeof(text), "%s", err.message);
    sl_storage_env_release(env);
    return text;
}

SL_TEST(variables_of_other_loaders_choose_googles_credentials)
{
    struct sl_storage_env env = {0};
    const struct sl_storage_uri uri = {.text = "gs://models/m", .store = &sl_gs_store};
    setenv("RUNAI_STREAMER_GCS_CREDENTIAL_FILE", "/f.json", 1);
    setenv("RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS", "true", 1);
    ck_assert_str_eq(told(sl_storage_env_of(&env, &uri, &err), &env),
                     "source.gs.anonymous=true;source.gs.credentialsFile=/f.json;");
}

SL_TEST(a_number_that_kserve_wants_for_azure_must_be_one)
{
    static const char *const rows[][2] = {{"4", ""},
                                          {"many", "AZURE_MAX_FILE_CONCURRENCY is 'many'"}};
    const struct sl_storage_uri uri = {.text = "az://models/m", .store = &sl_az_store};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_storage_env env = {0};
        setenv("AZURE_MAX_FILE_CONCURRENCY", rows[i][0], 1);
        const char *text = told(sl_storage_env_of(&env, &uri, &err), &env);
        ck_assert_msg(strncmp(text, rows[i][1], strlen(rows[i][1])) == 0, "%s", text);
    }
}

static const char *s3(void)
{
    struct sl_storage_env env = {0};
    return told(sl_storage_env_s3(&env, &err), &env);
}

static const char *http(const char *uri)
{
    struct sl_storage_env env = {0};
    return told(sl_storage_env_http(&env, uri, &err), &env);
}

static void set_all(const char *const *pairs)
{
    clearenv();
    for (; *pairs; pairs += 2)
        setenv(pairs[0], pairs[1], 1);
}
#define ENV(...) set_all((const char *const[]){__VA_ARGS__, NULL})

SL_TEST(variables_of_s3_secrets_become_settings)
{
    static const struct {
        const char *env[7], *settings;
    } rows[] = {
        {{"UNRELATED", "1"}, ""},
        {{"AWS_ENDPOINT_URL", "http://minio:9000", "S3_ENDPOINT", "other:1"},
         "source.s3.endpoint=http://minio:9000;"},
        {{"S3_ENDPOINT", "minio:9000", "S3_USE_HTTPS", "0"},
         "source.s3.endpoint=http://minio:9000;"},
        {{"S3_ENDPOINT", "minio:9000"}, "source.s3.endpoint=https://minio:9000;"},
        {{"AWS_ENDPOINT_URL", "minio:9000", "S3_USE_HTTPS", "1"},
         "source.s3.endpoint=https://minio:9000;"},
        {{"AWS_ENDPOINT_URL", "https://s3.amazonaws.com", "AWS_DEFAULT_REGION", "eu-west-1"},
         "source.s3.region=eu-west-1;"},
        {{"S3_ENDPOINT", "s3.amazonaws.com"}, ""},
        {{"S3_USER_VIRTUAL_BUCKET", "True"}, "source.s3.addressing=virtual;"},
        {{"S3_USER_VIRTUAL_BUCKET", "1"}, ""},
        {{"S3_USE_ACCELERATE", "true"},
         "source.s3.endpoint=https://s3-accelerate.amazonaws.com;source.s3.addressing=virtual;"},
        {{"awsAnonymousCredential", "TRUE"}, "source.s3.anonymous=true;"},
        {{"awsAnonymousCredential", "false"}, ""},
        {{"S3_VERIFY_SSL", "0"}, "source.tls.verify=false;"},
        {{"S3_VERIFY_SSL", "False", "AWS_CA_BUNDLE", "/none"}, "source.tls.verify=false;"},
        {{"S3_VERIFY_SSL", "1"}, ""},
        {{"S3_READ_TIMEOUT", "60", "S3_MAX_ATTEMPTS", "0"},
         "readers.stallSeconds=60;readers.unreachableSeconds=0;readers.attempts=1;"},
        {{"S3_CONNECT_TIMEOUT", "5", "S3_MAX_FILE_CONCURRENCY", "2", "S3_MAX_ATTEMPTS", "3"},
         "readers.unreachableSeconds=0;readers.attempts=4;"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        set_all(rows[i].env);
        const char *settings = s3();
        ck_assert_msg(strcmp(settings, rows[i].settings) == 0, "row %zu: %s", i, settings);
    }
}

SL_TEST(wrong_variables_are_named)
{
    static const struct {
        const char *env[5], *text;
    } rows[] = {
        {{"S3_MAX_ATTEMPTS", "many"}, "S3_MAX_ATTEMPTS is 'many'"},
        {{"S3_READ_TIMEOUT", "-1"}, "S3_READ_TIMEOUT is '-1'"},
        {{"S3_CONNECT_TIMEOUT", "1.5"}, "S3_CONNECT_TIMEOUT is '1.5'"},
        {{"S3_MAX_FILE_CONCURRENCY", "99999999999999999999"}, "S3_MAX_FILE_CONCURRENCY"},
        {{"AWS_CA_BUNDLE", "/none/ca.crt"}, "'/none/ca.crt', which AWS_CA_BUNDLE names"},
        {{"CA_BUNDLE_CONFIGMAP_NAME", "x", "CA_BUNDLE_VOLUME_MOUNT_POINT", "/none"},
         "'/none/cabundle.crt', which CA_BUNDLE_CONFIGMAP_NAME names"},
        {{"AWS_CA_BUNDLE_CONFIGMAP", "x"},
         "'/etc/ssl/custom-certs/cabundle.crt', which AWS_CA_BUNDLE_CONFIGMAP names"},
        {{"S3_USE_ACCELERATE", "true", "AWS_ENDPOINT_URL", "http://minio"},
         "AWS_ENDPOINT_URL names another store"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        set_all(rows[i].env);
        const char *text = s3();
        ck_assert_msg(strstr(text, rows[i].text) != NULL, "row %zu: %s", i, text);
    }
}

static void write_bundle(const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/cabundle.crt", scratch);
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

SL_TEST(bundles_of_config_maps_are_trusted)
{
    char expected[512];
    write_bundle("MOUNTED");
    ENV("CA_BUNDLE_CONFIGMAP_NAME", "x", "CA_BUNDLE_VOLUME_MOUNT_POINT", scratch);
    snprintf(expected, sizeof(expected), "source.tls.caFile=%s/cabundle.crt;", scratch);
    ck_assert_str_eq(s3(), expected);
    /* for web servers beside what is trusted already */
    char own[512];
    snprintf(own, sizeof(own), "%s/cabundle.crt", scratch);
    setenv("SSL_CERT_FILE", own, 1);
    ck_assert_str_eq(http("https://host/x"), "source.tls.caFile=MOUNTED\nMOUNTED\n;");
    setenv("REQUESTS_CA_BUNDLE", "/own.crt", 1);
    ck_assert_str_eq(http("https://host/x"), "source.tls.caFile=/own.crt;");
    ENV("CA_BUNDLE_CONFIGMAP_NAME", "x", "CA_BUNDLE_VOLUME_MOUNT_POINT", "/none");
    ck_assert_str_eq(http("https://host/x"), ""); /* best effort, as upstream */
    ENV("AWS_CA_BUNDLE", "/s3.crt", "SSL_CERT_FILE", "/web.crt");
    ck_assert_str_eq(http("https://host/x"), "source.tls.caFile=/web.crt;");
}

SL_TEST(headers_are_of_their_host_alone)
{
    ENV("host.example-headers", "{\"Authorization\": \"Bearer x\", \"X-A\": \"b: c\"}");
    ck_assert_str_eq(http("https://HOST.example:8443/x"),
                     "source.http.headersFile=Authorization: Bearer x\nX-A: b: c\n;");
    ck_assert_str_eq(http("https://other.example/x"), "");
    ENV("h-headers", "{}");
    ck_assert_str_eq(http("http://h/x"), "");
}

SL_TEST(wrong_headers_are_named_and_never_told)
{
    static const char *const texts[] = {"[]",
                                        "{\"a\": \"sesame",
                                        "{\"a\": 5}",
                                        "{\"a\": \"sesame\\r\\nb: c\"}",
                                        "{\"a b\": \"sesame\"}",
                                        "{\"\": \"sesame\"}",
                                        "{\"a\": \"sesame\", \"a\": \"sesame\"}"};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        ENV("h-headers", texts[i]);
        const char *text = http("http://h/x");
        ck_assert_msg(strstr(text, "h-headers") && !strstr(text, "sesame"), "%zu: %s", i, text);
    }
}

/* ---- STORAGE_CONFIG -------------------------------------------------------------------------- */

SL_TEST(storage_config_becomes_environment)
{
    ENV("STORAGE_CONFIG",
        "{\"type\":\"s3\",\"endpoint_url\":\"http://a\",\"access_key_id\":\"k\","
        "\"secret_access_key\":\"s\",\"region\":\"r\",\"verify_ssl\":false,\"anonymous\":\"true\","
        "\"ca_bundle\":\"/ca\",\"bucket\":\"b\",\"more\":[1]}",
        "STORAGE_OVERRIDE_CONFIG", "{\"region\":\"other\"}", "AWS_ACCESS_KEY_ID", "old");
    ck_assert_int_eq(sl_storage_env_apply(&err), 0);
    ck_assert_str_eq(getenv("AWS_ENDPOINT_URL"), "http://a");
    ck_assert_str_eq(getenv("AWS_ACCESS_KEY_ID"), "k");
    ck_assert_str_eq(getenv("AWS_SECRET_ACCESS_KEY"), "s");
    ck_assert_str_eq(getenv("AWS_DEFAULT_REGION"), "other");
    ck_assert_str_eq(getenv("S3_VERIFY_SSL"), "false");
    ck_assert_str_eq(getenv("awsAnonymousCredential"), "true");
    ck_assert_str_eq(getenv("AWS_CA_BUNDLE"), "/ca");
}

SL_TEST(storage_config_of_another_type_is_not_looked_at)
{
    static const char *const texts[] = {"{\"type\":\"gs\",\"region\":\"r\"}", "{\"region\":\"r\"}",
                                        "{}", "", "  "};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        ENV("STORAGE_CONFIG", texts[i]);
        ck_assert_int_eq(sl_storage_env_apply(&err), 0);
        ck_assert_ptr_null(getenv("AWS_DEFAULT_REGION"));
    }
}

SL_TEST(wrong_storage_config_is_named_and_never_told)
{
    static const struct {
        const char *config, *override, *text;
    } rows[] = {
        {"{\"type\":\"s3\",\"access_key_id\":7}", "", "STORAGE_CONFIG: 'access_key_id'"},
        {"{\"type\":\"s3\"}", "{\"verify_ssl\":1}", "STORAGE_OVERRIDE_CONFIG: 'verify_ssl'"},
        {"{\"type\":3}", "", "STORAGE_CONFIG: 'type'"},
        {"{}", "{\"type\":[]}", "STORAGE_OVERRIDE_CONFIG: 'type'"},
        {"[]", "", "STORAGE_CONFIG is not a JSON object"},
        {"\"sesame\"", "", "STORAGE_CONFIG is not JSON"},
        {"{\"secret_access_key\":\"sesame\"", "", "STORAGE_CONFIG is not JSON: line 1"},
        {"{\"secret_access_key\":sesame}", "", "STORAGE_CONFIG is not JSON: line 1"},
        {"{\"a\":\"sesame\",\"a\":\"sesame\"}", "", "STORAGE_CONFIG is not JSON"},
        {"{}", "{", "STORAGE_OVERRIDE_CONFIG is not JSON: line 1"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        ENV("STORAGE_CONFIG", rows[i].config, "STORAGE_OVERRIDE_CONFIG", rows[i].override);
        err = (struct sl_err)SL_ERR_INIT;
        ck_assert_int_eq(sl_storage_env_apply(&err), -1);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_msg(strstr(err.message, rows[i].text) && !strstr(err.message, "sesame"),
                      "%zu: %s", i, err.message);
    }
}

SL_TEST(an_endpoint_of_amazon_is_not_that_of_sts)
{
    static const struct {
        const char *all, *own, *expected_all, *expected_own;
    } rows[] = {
        {"https://s3.amazonaws.com/", "", NULL, ""},
        {"https://s3.eu-west-1.amazonaws.com", NULL, NULL, "https://s3.eu-west-1.amazonaws.com"},
        {"https://s3.eu-west-1.AMAZONAWS.com:443/x", "http://own", NULL, "http://own"},
        {"https://s3.amazonaws.com.evil.example", NULL, "https://s3.amazonaws.com.evil.example",
         NULL},
        {"https://amazonaws.com", NULL, "https://amazonaws.com", NULL},
        {"http://minio:9000", NULL, "http://minio:9000", NULL},
        {"http://minio:9000", "https://s3.amazonaws.com", "http://minio:9000", NULL},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        ENV("AWS_ENDPOINT_URL", rows[i].all);
        if (rows[i].own)
            setenv("AWS_ENDPOINT_URL_S3", rows[i].own, 1);
        ck_assert_int_eq(sl_storage_env_apply(&err), 0);
        ck_assert_pstr_eq(getenv("AWS_ENDPOINT_URL"), rows[i].expected_all);
        ck_assert_pstr_eq(getenv("AWS_ENDPOINT_URL_S3"), rows[i].expected_own);
    }
}

static int settings_once(void *arg, struct sl_err *why)
{
    struct sl_storage_env env = {0};
    int done = arg ? sl_storage_env_http(&env, arg, why) : sl_storage_env_s3(&env, why);
    sl_storage_env_release(&env);
    return done;
}

SL_TEST(every_failing_allocation_is_survived)
{
    char uri[] = "http://h/x";
    write_bundle("MOUNTED");
    ENV("S3_ENDPOINT", "minio", "AWS_DEFAULT_REGION", "r", "S3_READ_TIMEOUT", "3",
        "S3_MAX_ATTEMPTS", "2", "CA_BUNDLE_CONFIGMAP_NAME", "x", "CA_BUNDLE_VOLUME_MOUNT_POINT",
        scratch, "h-headers", "{\"a\":\"b\"}");
    ck_assert_uint_ge(golden_each_allocation(settings_once, NULL), 4);
    ck_assert_uint_ge(golden_each_allocation(settings_once, uri), 5);
}

/* ---- URIs ----------------------------------------------------------------------------------- */

SL_TEST(uris_are_told_apart)
{
    static const struct {
        const char *argument, *text;
        int kind; /* -1: refused */
        const struct sl_store_kind *store;
    } rows[] = {
        {"s3://b/k", "s3://b/k", SL_STORAGE_REMOTE, &sl_s3_store},
        {"sluice+s3://b/k", "s3://b/k", SL_STORAGE_REMOTE, &sl_s3_store},
        {"sluice-big-1+https://h/k", "https://h/k", SL_STORAGE_REMOTE, &sl_http_store},
        {"sluice+https:h/k?x=y", "https://h/k?x=y", SL_STORAGE_REMOTE, &sl_http_store},
        {"sluice-a+http:h:80/k", "http://h:80/k", SL_STORAGE_REMOTE, &sl_http_store},
        {"sluice+https:/h/k", NULL, -1},
        {"sluice+https:", NULL, -1},
        {"https:h/k", NULL, -1},
        {"sluice+hf://o/m", "hf://o/m", SL_STORAGE_REMOTE, &sl_hf_store},
        {"sluice+gs://b/k", "gs://b/k", SL_STORAGE_REMOTE, &sl_gs_store},
        {"sluice+az://b/k", "az://b/k", SL_STORAGE_REMOTE, &sl_az_store},
        {"sluice-BIG+s3://b/k", NULL, -1},
        {"sluice+", NULL, -1},
        {"/", "/", SL_STORAGE_LOCAL},
        {"file:///", "file:///", SL_STORAGE_LOCAL},
        {"/mnt/models/x", "/mnt/models/x", SL_STORAGE_MOUNTED},
        {"/mnt/pvc/x", NULL, -1},
        {"file:///none/x", NULL, -1},
        {"gs://b/k", "gs://b/k", SL_STORAGE_REMOTE, &sl_gs_store},
        {"hf://o/m", "hf://o/m", SL_STORAGE_REMOTE, &sl_hf_store},
        {"hf://o/m:main", "hf://o/m:main", SL_STORAGE_REMOTE, &sl_hf_store},
        {"modelscope://o/m:v1", "modelscope://o/m:v1", SL_STORAGE_REMOTE, &sl_ms_store},
        {"ms://o/m", "ms://o/m", SL_STORAGE_REMOTE, &sl_ms_store},
        {"hdfs://h/p", NULL, -1},
        {"webhdfs://h/p", NULL, -1},
        {"oci://h.io/r", "oci://h.io/r", SL_STORAGE_REMOTE, &sl_oci_store},
        {"oci+native://r/i", NULL, -1},
        {"pvc://claim/p", NULL, -1},
        {"https://a.blob.core.windows.net/con/p", "https://a.blob.core.windows.net/con/p",
         SL_STORAGE_REMOTE, &sl_az_store},
        {"https://a.z12.file.storage.azure.net/c/p", NULL, -1},
        {"https://h/repository.git", NULL, -1},
        {"https://raw.githubusercontent.com/f.bin", "https://raw.githubusercontent.com/f.bin",
         SL_STORAGE_REMOTE, &sl_http_store},
        {"https://h/", NULL, -1},
        {"https://h", NULL, -1},
        {"http://h/d/?x=/y", NULL, -1},
        {"redis://h/p/", "redis://h/p/", SL_STORAGE_REMOTE, &sl_redis_store},
        {"", NULL, -1},
        {"model", NULL, -1},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_storage_uri uri;
        int done = sl_storage_uri_parse(rows[i].argument, &uri, &err);
        ck_assert_msg((done == 0) == (rows[i].kind >= 0), "%s", rows[i].argument);
        if (done == 0) {
            ck_assert_str_eq(uri.text, rows[i].text);
            ck_assert_int_eq((int)uri.kind, rows[i].kind);
            ck_assert_ptr_eq(uri.store, rows[i].store);
            sl_storage_uri_release(&uri);
        }
    }
}

static void check_prefix(const char *prefix, const char *scheme, const char *slashes)
{
    bool local = strcmp(scheme, "file") == 0;
    const char *rest = local ? "/" : "h.io/a/b";
    char plain[64], argument[96];
    snprintf(plain, sizeof(plain), "%s://%s", scheme, rest);
    snprintf(argument, sizeof(argument), "%s+%s:%s%s", prefix, scheme, slashes, rest);
    struct sl_storage_uri uri;
    ck_assert_msg(sl_storage_uri_parse(argument, &uri, &err) == 0, "%s: %s", argument, err.message);
    ck_assert_str_eq(uri.text, plain);
    ck_assert_int_eq(uri.kind, local ? SL_STORAGE_LOCAL : SL_STORAGE_REMOTE);
    ck_assert_ptr_eq(uri.store, local ? NULL : sl_stores_find(plain));
    sl_storage_uri_release(&uri);
}

SL_TEST(a_prefix_leads_to_every_store)
{
    const char *schemes[SL_STORES_SCHEMES_MAX];
    size_t count = sl_stores_schemes(schemes);
    ck_assert_uint_ge(count, 14);
    for (size_t i = 0; i < count; i++) {
        check_prefix("sluice", schemes[i], "//");
        check_prefix("sluice-big", schemes[i], "//");
        if (strncmp(schemes[i], "http", 4) == 0)
            check_prefix("sluice", schemes[i], "");
    }
}

SL_TEST(refusals_tell_no_secrets)
{
    struct sl_storage_uri uri;
    ck_assert_int_eq(sl_storage_uri_parse(
                         "https://user:sesame@a.file.core.windows.net/c?sig=sesame", &uri, &err),
                     -1);
    ck_assert_ptr_null(strstr(err.message, "sesame"));
    ck_assert_int_eq(sl_storage_uri_parse("https://user:sesame@host/", &uri, &err), -1);
    ck_assert_ptr_null(strstr(err.message, "sesame"));
    ck_assert_int_eq(sl_storage_uri_parse("ftp://user:sesame@host/x", &uri, &err), -1);
    ck_assert_ptr_null(strstr(err.message, "sesame"));
}

SL_TEST(archives_are_known_by_name_as_in_python)
{
    static const struct {
        const char *name;
        enum sl_archive kind;
    } rows[] = {
        {"m.tar", SL_ARCHIVE_TAR},     {"m.TAR", SL_ARCHIVE_TAR},
        {"m.tar.gz", SL_ARCHIVE_TAR},  {"m.tgz", SL_ARCHIVE_TAR},
        {"m.tar.xz", SL_ARCHIVE_TAR},  {"m.tbz2", SL_ARCHIVE_TAR},
        {"m.zip", SL_ARCHIVE_ZIP},     {"m.gz", SL_ARCHIVE_NONE},
        {"m.bin.gz", SL_ARCHIVE_NONE}, {"m.tar.bin", SL_ARCHIVE_NONE},
        {"tar", SL_ARCHIVE_NONE},      {".zip", SL_ARCHIVE_NONE},
        {"m.zip.gz", SL_ARCHIVE_NONE}, {"m.tar.GZ", SL_ARCHIVE_NONE},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg(sl_archive_kind(rows[i].name) == rows[i].kind, "%s", rows[i].name);
    ck_assert_int_eq(sl_archive_kind_of_url("https://h/m.zip?x=y"), SL_ARCHIVE_ZIP);
    ck_assert_int_eq(sl_archive_kind_of_url("https://h/get?file=m.tgz"), SL_ARCHIVE_TAR);
    ck_assert_int_eq(sl_archive_kind_of_url("https://h/get?file=m"), SL_ARCHIVE_NONE);
}

SL_CASE(.setup = setup, .teardown = teardown)
