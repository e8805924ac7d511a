/* S3 objects: where they are, how requests are signed, what refusals mean, what is mended. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "range_server.h"
#include "s3_options.h"
#include "s3_store.h"
#include "source.h"
#include "stores.h"
#include "xml.h"

static struct sl_s3_options s3;
static struct sl_source_config config;
static struct sl_err err;
static struct sl_server *server;
static char data[300000];

static void setup(void)
{
    clearenv();
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    s3 = (struct sl_s3_options){0};
    config = (struct sl_source_config){.options = {{&sl_s3_table, &s3}}, .attempts = 3};
    err = (struct sl_err)SL_ERR_INIT;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (char)(i * 7 + i / 251);
    server = NULL;
}

static void teardown(void)
{
    if (server)
        sl_server_stop(server);
}

/* A server without a script; a script is not replaced, since its text may still be on its way. */
static void start(void)
{
    if (server)
        sl_server_stop(server);
    server = sl_server_start();
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, ""), 1);
}

/* Open, read and compare; the error stays in err. */
static int load(const char *uri, uint64_t bytes)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    SL_AUTO(sl_source) source = NULL;
    if (sl_store_open(uri, &config, &store, &key, &err) < 0 ||
        sl_source_open(store, key, 100, &source, &err) < 0)
        return -1;
    ck_assert_uint_eq(sl_source_bytes(source), bytes);
    sl_autofree char *got = malloc(bytes + 1);
    if (sl_source_read(source, 0, got, bytes, &err) < 0)
        return -1;
    ck_assert_mem_eq(got, data, bytes);
    return 0;
}

static void expect_load(const char *uri, uint64_t bytes)
{
    ck_assert_msg(load(uri, bytes) == 0, "%s", err.message);
}

static void expect_refusal(const char *uri, enum sl_err_kind kind, const char *text)
{
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(load(uri, 0), -1);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    ck_assert_msg(err.kind == kind, "kind %d: %s", err.kind, err.message);
    ck_assert_ptr_null(strstr(err.message, "hush"));
}

/* ---- endpoints ------------------------------------------------------------------------------ */

static void expect_place(const char *bucket, const char *region, const char *origin,
                         const char *base)
{
    SL_AUTO(sl_creds) creds = sl_creds_new(&config, &err);
    ck_assert_msg(creds != NULL, "%s", err.message);
    struct sl_s3_endpoint endpoint = {0};
    ck_assert_msg(sl_s3_endpoint_find(&endpoint, &s3, creds, bucket, region, &err) == 0, "%s",
                  err.message);
    ck_assert_str_eq(endpoint.origin, origin);
    ck_assert_str_eq(endpoint.base, base);
    ck_assert_str_eq(endpoint.authority, strstr(origin, "://") + 3);
    sl_s3_endpoint_release(&endpoint);
}

SL_TEST(amazon_gets_virtual_hosts_for_labels_and_paths_for_the_rest)
{
    expect_place("models", "us-east-1", "https://models.s3.us-east-1.amazonaws.com", "");
    expect_place("models", "cn-north-1", "https://models.s3.cn-north-1.amazonaws.com.cn", "");
    expect_place("my.models", "eu-west-1", "https://s3.eu-west-1.amazonaws.com", "/my.models");
    expect_place("Models_1", "us-east-1", "https://s3.us-east-1.amazonaws.com", "/Models_1");
    expect_place("ab", "us-east-1", "https://s3.us-east-1.amazonaws.com", "/ab");
    s3.addressing = SL_S3_ADDRESSING_PATH;
    expect_place("models", "us-east-1", "https://s3.us-east-1.amazonaws.com", "/models");
}

#define POINT "arn:aws:s3:us-west-2:123456789012:accesspoint"

SL_TEST(access_points_have_a_host_and_a_region_of_their_own)
{
    expect_place(POINT "/my-ap", "us-west-2",
                 "https://my-ap-123456789012.s3-accesspoint.us-west-2.amazonaws.com", "");
    expect_place(POINT ":my-ap", "us-west-2",
                 "https://my-ap-123456789012.s3-accesspoint.us-west-2.amazonaws.com", "");
    expect_place("arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/ap1", "cn-north-1",
                 "https://ap1-123456789012.s3-accesspoint.cn-north-1.amazonaws.com.cn", "");
    static const struct {
        const char *uri, *base, *key;
    } rows[] = {
        {"s3://" POINT "/my-ap/m/a.bin", "s3://" POINT "/my-ap/m/", "a.bin"},
        {"s3://" POINT ":my-ap/a.bin", "s3://" POINT ":my-ap/", "a.bin"},
        {"s3://" POINT "/my-ap", "s3://" POINT "/my-ap/", ""},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        SL_AUTO(sl_store) store = NULL;
        sl_autofree char *key = NULL;
        ck_assert_msg(sl_store_open(rows[i].uri, &config, &store, &key, &err) == 0, "%s",
                      err.message);
        ck_assert_str_eq(sl_store_uri(store), rows[i].base);
        ck_assert_str_eq(key, rows[i].key);
        ck_assert_str_eq(((struct sl_s3 *)store->impl)->locked.region, "us-west-2");
    }
}

/* Before any request, in words. */
SL_TEST(what_of_amazon_is_not_read_is_said)
{
    static const char *const rows[][2] = {
        {"s3://arn:aws:s3::123456789012:accesspoint/abc.mrap/m", "several regions"},
        {"s3://arn:aws:s3-object-lambda:us-west-2:123456789012:accesspoint/ap1/m", "Object Lambda"},
        {"s3://arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-1/accesspoint/ap1/m",
         "s3-outposts"},
        {"s3://arn:aws:s3:us-west-2:12345:accesspoint/ap1/m", "names no access point"},
        {"s3://arn:aws:s3:us-west-2:123456789012:accesspoint/a_b/m", "names no access point"},
        {"s3://arn:aws:s3:us-west-2:123456789012:bucket/b/m", "names no access point"},
        {"s3://arn:aws:s3:us/../x:123456789012:accesspoint/ap1/m", "names no access point"},
        {"s3://arn:", "names no access point"},
        {"s3://arn:aws:s3:us-west-2:123456789012:accesspoint", "names no access point"},
        {"s3://models--usw2-az1--x-s3/m", "directory bucket"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        expect_refusal(rows[i][0], SL_E_USAGE, rows[i][1]);
    s3.endpoint = (char[]){"http://127.0.0.1:1"};
    expect_refusal("s3://" POINT "/my-ap/m", SL_E_USAGE, "source.s3.endpoint names another store");
}

SL_TEST(own_endpoints_get_paths_and_coreweave_virtual_hosts)
{
    setenv("AWS_ENDPOINT_URL", "http://Minio.local:80/", 1);
    expect_place("models", "r", "http://minio.local", "/models");
    setenv("AWS_ENDPOINT_URL_S3", "[::1]:9000", 1);
    expect_place("models", "r", "https://[::1]:9000", "/models");
    s3.endpoint = (char[]){"http://cwlota.com"};
    expect_place("models", "r", "http://models.cwlota.com", "");
    s3.endpoint = (char[]){"https://oss-cn-hangzhou.aliyuncs.com"};
    expect_place("models", "r", "https://models.oss-cn-hangzhou.aliyuncs.com", "");
    s3.endpoint = (char[]){"https://s3.oss-cn-hangzhou.aliyuncs.com"};
    expect_place("models", "r", "https://models.s3.oss-cn-hangzhou.aliyuncs.com", "");
    s3.endpoint = (char[]){"https://cos.ap-guangzhou.myqcloud.com"};
    expect_place("models-125", "r", "https://models-125.cos.ap-guangzhou.myqcloud.com", "");
    s3.endpoint = (char[]){"https://models.oss-cn-hangzhou.aliyuncs.com"};
    expect_place("models", "r", "https://models.oss-cn-hangzhou.aliyuncs.com", "/models");
    s3.endpoint = (char[]){"https://a.r2.cloudflarestorage.com"};
    expect_place("models", "r", "https://a.r2.cloudflarestorage.com", "/models");
    s3.endpoint = (char[]){"cwobject.com"};
    expect_place("models", "r", "https://models.cwobject.com", "");
    s3.endpoint = (char[]){"https://x.cwobject.com"};
    expect_place("models", "r", "https://x.cwobject.com", "/models");
    s3.endpoint = (char[]){"http://gw:81/s3/"};
    expect_place("t:b", "r", "http://gw:81", "/s3/t%3Ab");
    s3.addressing = SL_S3_ADDRESSING_VIRTUAL;
    expect_place("my.models", "r", "http://my.models.gw:81", "/s3");
    s3.addressing = SL_S3_ADDRESSING_AUTO;
    s3.endpoint = NULL;
    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true", 1);
    expect_place("models", "r", "https://models.s3.r.amazonaws.com", "");
}

static void expect_s3cfg(const char *text, const char *origin, const char *base)
{
    char path[] = "/tmp/test_s3.XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    s3.config_file = path;
    if (origin) {
        expect_place("models", "r", origin, base);
    } else {
        SL_AUTO(sl_creds) creds = sl_creds_new(&config, &err);
        struct sl_s3_endpoint endpoint = {0};
        ck_assert_int_eq(sl_s3_endpoint_find(&endpoint, &s3, creds, "models", "r", &err), -1);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
    }
    unlink(path);
    s3.config_file = NULL;
}

SL_TEST(an_s3cfg_gives_endpoint_and_addressing)
{
    setenv("AWS_ENDPOINT_URL", "http://unused", 1);
#define KEYS "[default]\naccess_key=a\nsecret_key=b\n"
    expect_s3cfg(KEYS "host_base=h:1\nuse_https=False\n", "http://h:1", "/models");
    expect_s3cfg(KEYS "host_base=h:1\nhost_bucket=%(bucket)s.h:1\n", "https://models.h:1", "");
    expect_s3cfg(KEYS "host_base=h:1\nhost_bucket=%(bucket)s.s3.amazonaws.com\n", "https://h:1",
                 "/models");
    expect_s3cfg(KEYS "host_base=cwobject.com\nhost_bucket=cwobject.com\n", "https://cwobject.com",
                 "/models");
    expect_s3cfg(KEYS "host_base=h\nhost_bucket=x-%(bucket)s.h\n", NULL, NULL);
    expect_s3cfg(KEYS "host_base=s3.amazonaws.com\n", "http://unused", "/models");
}

SL_TEST(impossible_places_are_refused)
{
    s3.endpoint = (char[]){"http://user:hush@h"};
    expect_refusal("s3://models/x", SL_E_USAGE, "without user");
    s3.endpoint = (char[]){"http://h/#x"};
    expect_refusal("s3://models/x", SL_E_USAGE, "without user, query or fragment");
    s3.endpoint = (char[]){"ftp://h"};
    expect_refusal("s3://models/x", SL_E_USAGE, "source.s3.endpoint");
    s3.endpoint = NULL;
    s3.addressing = SL_S3_ADDRESSING_VIRTUAL;
    expect_refusal("s3://My_Models/x", SL_E_USAGE, "addressing to path");
    expect_refusal("s3:///x", SL_E_USAGE, "names no bucket");
    expect_refusal("s3://a\nb/x", SL_E_USAGE, "names no bucket");
    s3.region = (char[]){"us east"};
    expect_refusal("s3://models/x", SL_E_USAGE, "is not a region name, such as us-east-1");
}

SL_TEST(uris_are_split_at_the_last_slash_and_not_decoded)
{
    static const struct {
        const char *uri, *base, *key;
    } rows[] = {
        {"s3://b/k", "s3://b/", "k"},
        {"s3://b", "s3://b/", ""},
        {"S3://b/", "s3://b/", ""},
        {"s3://b/p/q/", "s3://b/p/q/", ""},
        {"s3://b/p//a%2Fb?c#d", "s3://b/p//", "a%2Fb?c#d"},
        {"s3://b/p/a.b#c.d", "s3://b/p/", "a.b#c.d"},
        {"s3://b/p/m.bin?versionId=3/L4k.q", "s3://b/p/", "m.bin"},
        {"s3://b/p/m.bin#v1", "s3://b/p/", "m.bin"},
        {"s3://b/m#Kc.Tdl3yHWMx9c_VPxJgnSzwYgAEp5-R", "s3://b/", "m"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        SL_AUTO(sl_store) store = NULL;
        sl_autofree char *key = NULL;
        ck_assert_int_eq(sl_store_open(rows[i].uri, &config, &store, &key, &err), 0);
        ck_assert_str_eq(sl_store_uri(store), rows[i].base);
        ck_assert_str_eq(key, rows[i].key);
    }
}

/* ---- requests ------------------------------------------------------------------------------- */

static unsigned judged;
static char last_region[64];

/* Sign what came once more and compare, as a store does; the blob is served by the server. */
static bool judge(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    (void)reply;
    (void)arg;
    char host[64], date[64], authorization[1024], path[4096], region[64];
    ck_assert(sl_server_header(request, "Host", host, sizeof(host)));
    ck_assert(sl_server_header(request, "x-amz-date", date, sizeof(date)));
    ck_assert(sl_server_header(request, "Authorization", authorization, sizeof(authorization)));
    snprintf(path, sizeof(path), "%s", request->target);
    char *query = strchr(path, '?');
    if (query)
        *query++ = 0;
    ck_assert_int_eq(sscanf(authorization,
                            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/%*8s/%63[^/]/",
                            region),
                     1);
    const struct sl_sigv4_header headers[] = {
        {"host", host}, {"x-amz-content-sha256", sl_sigv4_empty}, {"x-amz-date", date}};
    const struct sl_sigv4_request again = {
        request->method, path, query ? query : "", headers, 3, sl_sigv4_empty, date, region, "s3"};
    struct sl_err local = SL_ERR_INIT;
    sl_autofree char *expected =
        sl_sigv4_sign_cached(&again, "AKIAIOSFODNN7EXAMPLE", "hush", NULL, &local);
    ck_assert_str_eq(authorization, expected);
    memcpy(last_region, region, sizeof(region));
    judged++;
    return false;
}

SL_TEST(keys_with_blanks_plus_percent_and_unicode_are_signed_as_sent)
{
    start();
    sl_server_handle(server, judge, NULL);
    sl_server_put(server, "/bucket/a%20b%2Bc%3Dd%2525//../~%C3%A9%281%29%27%3F%26", data,
                  sizeof(data), "\"e\"");
    expect_load("s3://bucket/a b+c=d%25//../~é(1)'?&", sizeof(data));
    ck_assert_uint_ge(judged, 2);
}

SL_TEST(all_ranges_of_an_object_share_one_signature_and_one_version)
{
    start();
    sl_server_put(server, "/bucket/m", data, sizeof(data), "\"e\"");
    expect_load("s3://bucket/m", sizeof(data));
    ck_assert_uint_eq(sl_server_request_count(server), 2);
    char first[1024], second[1024], match[64];
    ck_assert(
        sl_server_header(sl_server_request_at(server, 0), "Authorization", first, sizeof(first)));
    ck_assert(
        sl_server_header(sl_server_request_at(server, 1), "Authorization", second, sizeof(second)));
    ck_assert_str_eq(first, second);
    ck_assert(sl_server_header(sl_server_request_at(server, 1), "If-Match", match, sizeof(match)));
    ck_assert_str_eq(match, "\"e\"");
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
}

static bool by_version(const struct sl_server_request *request, struct sl_server_reply *reply,
                       void *arg)
{
    (void)arg;
    if (!strstr(request->target, "?versionId=v%2F1")) {
        reply->status = 404;
        reply->body = strdup("");
        return true;
    }
    return judge(request, reply, NULL);
}

SL_TEST(a_version_that_is_named_is_read)
{
    start();
    sl_server_handle(server, by_version, NULL);
    sl_server_put(server, "/bucket/m.bin", data, sizeof(data), "\"e\"");
    expect_load("s3://bucket/m.bin?versionId=v/1", sizeof(data));
    ck_assert_uint_ge(judged, 2);
    expect_refusal("s3://bucket/m.bin?versionId=", SL_E_USAGE, "a version is of one object");
    expect_refusal("s3://bucket/p/?versionId=v1", SL_E_USAGE, "a version is of one object");
}

SL_TEST(who_asks_may_pay)
{
    char text[64];
    start();
    sl_server_put(server, "/bucket/m", data, sizeof(data), "\"e\"");
    expect_load("s3://bucket/m", sizeof(data));
    ck_assert(!sl_server_header(sl_server_request_at(server, 0), "x-amz-request-payer", text,
                                sizeof(text)));
    s3.request_payer = SL_S3_REQUESTER_PAYS;
    unsigned before = sl_server_request_count(server);
    expect_load("s3://bucket/m", sizeof(data));
    for (unsigned i = before; i < sl_server_request_count(server); i++) {
        char authorization[1024];
        const struct sl_server_request *request = sl_server_request_at(server, i);
        ck_assert(sl_server_header(request, "x-amz-request-payer", text, sizeof(text)));
        ck_assert_str_eq(text, "requester");
        ck_assert(sl_server_header(request, "Authorization", authorization, sizeof(authorization)));
        ck_assert_ptr_nonnull(strstr(authorization, ";x-amz-request-payer,"));
    }
}

SL_TEST(anonymous_requests_carry_no_signature)
{
    char text[64];
    start();
    s3.anonymous = true;
    sl_server_put(server, "/bucket/m", data, 1000, "\"e\"");
    expect_load("s3://bucket/m", 1000);
    ck_assert(
        !sl_server_header(sl_server_request_at(server, 0), "Authorization", text, sizeof(text)));
    ck_assert(!sl_server_header(sl_server_request_at(server, 0), "x-amz-date", text, sizeof(text)));
}

SL_TEST(session_tokens_are_sent_and_signed)
{
    char text[1024];
    start();
    setenv("AWS_SESSION_TOKEN", "tok", 1);
    sl_server_put(server, "/bucket/m", data, 1000, "\"e\"");
    expect_load("s3://bucket/m", 1000);
    const struct sl_server_request *request = sl_server_request_at(server, 0);
    ck_assert(sl_server_header(request, "x-amz-security-token", text, sizeof(text)));
    ck_assert_str_eq(text, "tok");
    ck_assert(sl_server_header(request, "Authorization", text, sizeof(text)));
    ck_assert_ptr_nonnull(strstr(text, "x-amz-date;x-amz-security-token,"));
}

#define FAULT(code, more) "<?xml version=\"1.0\"?>\n<Error><Code>" code "</Code>" more "</Error>"

SL_TEST(empty_objects_of_stores_that_refuse_their_range_are_opened)
{
    char text[64];
    start();
    SL_SCRIPT(server,
              {"/bucket/e", 1, 1, SL_FAULT_STATUS, 0, 416, "",
               FAULT("InvalidRange", "<ActualObjectSize>0</ActualObjectSize>")},
              {"/bucket/e", 2, 0, SL_FAULT_STATUS, 0, 200, "ETag: \"empty\"\r\n", ""});
    expect_load("s3://bucket/e", 0);
    ck_assert_uint_eq(sl_server_request_count(server), 2);
    ck_assert(!sl_server_header(sl_server_request_at(server, 1), "Range", text, sizeof(text)));
}

/* ---- refusals ------------------------------------------------------------------------------- */

struct refusal {
    int status;
    const char *body, *text;
    enum sl_err_kind kind;
    unsigned requests;
};
static const struct refusal refusals[] = {
    {404, FAULT("NoSuchKey", "<Message>gone</Message><RequestId>R1</RequestId>"),
     "cannot read 's3://bucket/m': 404 NoSuchKey (gone), request R1: check the key", SL_E_NOT_FOUND,
     1},
    {404, FAULT("NoSuchBucket", ""), "check the bucket's name", SL_E_NOT_FOUND, 1},
    {404, "", "404", SL_E_NOT_FOUND, 1},
    {403, FAULT("AccessDenied", ""), "may not read it, or it does not exist", SL_E_AUTH, 1},
    {403, "", "may not read it, or it does not exist", SL_E_AUTH, 1},
    {403, FAULT("SignatureDoesNotMatch", ""),
     "the secret key does not fit the access key: set both again, as the store gave them out "
     "(credentials: the environment)",
     SL_E_AUTH, 1},
    {403, FAULT("InvalidAccessKeyId", ""),
     "does not know this access key: check that it is of this store, and was not deleted "
     "(credentials: the environment)",
     SL_E_AUTH, 1},
    {403, FAULT("InvalidObjectState", ""), "archived: restore it", SL_E_AUTH, 1},
    {400, FAULT("ExpiredToken", ""), "get new credentials (credentials: the", SL_E_AUTH, 1},
    {400, FAULT("KMS.DisabledException", ""), "encrypted by KMS", SL_E_AUTH, 1},
    {400,
     FAULT("InvalidRequest", "<Message>The object was stored using a form of Server Side "
                             "Encryption.</Message>"),
     "(SSE-C)", SL_E_USAGE, 1},
    {400, FAULT("RequestTimeout", ""), "gave up after 3 tries", SL_E_NET, 3},
    {400, FAULT("InvalidArgument", ""), "takes no such request", SL_E_USAGE, 1},
    {405, FAULT("MethodNotAllowed", ""), "takes no such request", SL_E_USAGE, 1},
    {422, "", "takes no such request", SL_E_USAGE, 1},
    {409, FAULT("OperationAborted", ""), "OperationAborted", SL_E_NET, 3},
    {503, FAULT("SlowDown", ""), "SlowDown", SL_E_NET, 3},
    {500, FAULT("InternalError", ""), "InternalError", SL_E_NET, 3},
    {502, "<html>bad gateway", "502", SL_E_NET, 3},
    {403, "<!DOCTYPE x [<!ENTITY a \"b\">]><Error><Code>&a;</Code></Error>", "403", SL_E_AUTH, 1},
    {403, FAULT("Two words\n\x1b[31m", ""), "403", SL_E_AUTH, 1},
    {404, FAULT("Unheard.Of", "<Message>m</Message>"), "Unheard.Of (m)", SL_E_NOT_FOUND, 1},
};

SL_TEST_LOOP(every_refusal_says_what_it_is_and_what_to_do, 0, SL_COUNT(refusals))
{
    const struct refusal *r = &refusals[_i];
    start();
    SL_SCRIPT(server, {NULL, 0, 0, SL_FAULT_STATUS, 0, r->status, "", r->body});
    expect_refusal("s3://bucket/m", r->kind, r->text);
    ck_assert_uint_eq(sl_server_request_count(server), r->requests);
    ck_assert_int_eq(err.http_status, r->status);
}

SL_TEST(a_bucket_that_stands_in_the_endpoint_too_is_told_of)
{
    start();
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, "/bucket"), 1);
    SL_SCRIPT(server, {NULL, 0, 0, SL_FAULT_STATUS, 0, 404, "", FAULT("NoSuchKey", "")});
    expect_refusal("s3://bucket/m", SL_E_NOT_FOUND, "the endpoint ends in '/bucket', as the");
    SL_SCRIPT(server, {NULL, 0, 0, SL_FAULT_STATUS, 0, 404, "", ""});
    expect_refusal("s3://bucket/m", SL_E_NOT_FOUND, "the endpoint ends in '/bucket', as the");
    expect_refusal("s3://ucket/m", SL_E_NOT_FOUND, "check the name");
    ck_assert_ptr_null(strstr(err.message, "the endpoint ends in"));
}

SL_TEST(a_refusal_without_credentials_says_that_there_were_none)
{
    start();
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    SL_SCRIPT(server, {NULL, 0, 0, SL_FAULT_STATUS, 0, 403, "", FAULT("AccessDenied", "")});
    expect_refusal("s3://bucket/m", SL_E_AUTH, "no credentials were found");
    s3.anonymous = true;
    expect_refusal("s3://bucket/m", SL_E_AUTH, "as source.s3.anonymous asks");
}

SL_TEST(a_changed_object_is_an_integrity_error)
{
    start();
    sl_server_put(server, "/bucket/m", data, sizeof(data), "\"e\"");
    SL_SCRIPT(server, {NULL, 2, 2, SL_FAULT_CHANGED});
    ck_assert_int_eq(load("s3://bucket/m", sizeof(data)), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
}

/* ---- mending -------------------------------------------------------------------------------- */

SL_TEST(another_region_is_learned_once_and_location_never_followed)
{
    static const struct {
        int status;
        const char *headers, *body;
    } rows[] = {
        {400, "", FAULT("AuthorizationHeaderMalformed", "<Region>eu-west-7</Region>")},
        {301, "x-amz-bucket-region: eu-west-7\r\nLocation: http://127.0.0.1:9/evil\r\n",
         FAULT("PermanentRedirect", "<Endpoint>evil</Endpoint>")},
        {400, "x-amz-bucket-region: eu-west-7\r\n",
         FAULT("IllegalLocationConstraintException", "")},
        {307, "x-amz-bucket-region: eu-west-7\r\nLocation: http://127.0.0.1:9/evil\r\n", ""},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        start();
        sl_server_handle(server, judge, NULL);
        sl_server_put(server, "/bucket/m", data, sizeof(data), "\"e\"");
        SL_SCRIPT(server,
                  {NULL, 1, 1, SL_FAULT_STATUS, 0, rows[i].status, rows[i].headers, rows[i].body});
        expect_load("s3://bucket/m", sizeof(data));
        ck_assert_uint_eq(sl_server_request_count(server), 3);
        ck_assert_str_eq(last_region, "eu-west-7");
    }
}

static bool region_by_head(const struct sl_server_request *request, struct sl_server_reply *reply,
                           void *arg)
{
    (void)arg;
    if (strcmp(request->method, "HEAD") == 0) {
        ck_assert_str_eq(request->target, "/bucket");
        snprintf(reply->headers, sizeof(reply->headers), "x-amz-bucket-region: eu-west-7\r\n");
        reply->status = 403;
        return true;
    }
    return judge(request, reply, arg);
}

SL_TEST(a_redirect_that_names_no_region_leads_to_a_head_of_the_bucket)
{
    start();
    sl_server_handle(server, region_by_head, NULL);
    sl_server_put(server, "/bucket/m", data, 1000, "\"e\"");
    SL_SCRIPT(server,
              {"/bucket/m", 1, 1, SL_FAULT_STATUS, 0, 301, "", FAULT("PermanentRedirect", "")});
    expect_load("s3://bucket/m", 1000);
    ck_assert_str_eq(last_region, "eu-west-7");
}

SL_TEST(a_store_that_sends_us_in_circles_is_given_up)
{
    start();
    SL_SCRIPT(server, {NULL, 0, 0, SL_FAULT_STATUS, 0, 301, "x-amz-bucket-region: eu-west-7\r\n",
                       FAULT("PermanentRedirect", "")});
    expect_refusal("s3://bucket/m", SL_E_USAGE, "is not at this endpoint in region 'eu-west-7'");
    ck_assert_uint_eq(sl_server_request_count(server), 2);
    start();
    SL_SCRIPT(server, {NULL, 0, 0, SL_FAULT_STATUS, 0, 301, "x-amz-bucket-region: ../evil\r\n",
                       FAULT("PermanentRedirect", "<Region>a b</Region>")});
    expect_refusal("s3://bucket/m", SL_E_USAGE, "301");
}

SL_TEST(a_skewed_clock_is_corrected_from_the_answer)
{
    char date[128], text[64], day[9];
    time_t later = time(NULL) / 86400 * 86400 + 40 * 86400 + 43200; /* noon: it stays that day */
    strftime(date, sizeof(date), "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime(&later));
    strftime(day, sizeof(day), "%Y%m%d", gmtime(&later));
    start();
    sl_server_handle(server, judge, NULL);
    sl_server_put(server, "/bucket/m", data, 1000, "\"e\"");
    SL_SCRIPT(server,
              {NULL, 1, 1, SL_FAULT_STATUS, 0, 403, date, FAULT("RequestTimeTooSkewed", "")});
    expect_load("s3://bucket/m", 1000);
    ck_assert(sl_server_header(sl_server_request_at(server, 1), "x-amz-date", text, sizeof(text)));
    ck_assert_int_eq(strncmp(text, day, 8), 0);
}

static unsigned issued;
static bool issue_keys(const struct sl_server_request *request, struct sl_server_reply *reply,
                       void *arg)
{
    (void)arg;
    if (strcmp(request->target, "/creds") != 0)
        return false;
    ck_assert_int_gt(
        asprintf(&reply->body,
                 "{\"AccessKeyId\":\"AK%u\",\"SecretAccessKey\":\"SK\",\"Token\":\"T\","
                 "\"Expiration\":\"2999-01-01T00:00:00Z\"}",
                 ++issued),
        0);
    reply->body_bytes = strlen(reply->body);
    return true;
}

SL_TEST(expired_credentials_are_refreshed_once_in_mid_load)
{
    char text[1024];
    start();
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", sl_server_url(server, "/creds"), 1);
    sl_server_handle(server, issue_keys, NULL);
    sl_server_put(server, "/bucket/m", data, sizeof(data), "\"e\"");
    SL_SCRIPT(server, {"/bucket/m", 2, 2, SL_FAULT_STATUS, 0, 400, "", FAULT("ExpiredToken", "")});
    expect_load("s3://bucket/m", sizeof(data));
    ck_assert_uint_eq(issued, 2);
    unsigned last = sl_server_request_count(server) - 1;
    ck_assert(
        sl_server_header(sl_server_request_at(server, last), "Authorization", text, sizeof(text)));
    ck_assert_ptr_nonnull(strstr(text, "Credential=AK2/"));
    issued = 0;
    start();
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", sl_server_url(server, "/creds"), 1);
    sl_server_handle(server, issue_keys, NULL);
    SL_SCRIPT(server, {"/bucket/m", 0, 0, SL_FAULT_STATUS, 0, 400, "", FAULT("ExpiredToken", "")});
    expect_refusal("s3://bucket/m", SL_E_AUTH, "ExpiredToken");
    ck_assert_uint_eq(issued, 2);
}

/* ---- XML ------------------------------------------------------------------------------------ */

static int count_elements(const char *path, const char *value, void *arg, struct sl_err *ignored)
{
    (void)path;
    (void)value;
    (void)ignored;
    ++*(unsigned *)arg;
    return 0;
}

SL_TEST(xml_with_entities_depth_or_rubbish_is_refused)
{
    static const char *const bad[] = {
        "<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>",
        "<!DOCTYPE a SYSTEM \"file:///etc/passwd\"><a/>",
        "<a><b></a></b>",
        "",
        "<a>\xff</a>",
        "<a>&x;</a>",
        "<a/><b/>",
        "<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>x</a></a></a></a></a></a></a></a></a></"
        "a></a></a></a></a>"
        "</a></a></a>",
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        unsigned count = 0;
        err = (struct sl_err)SL_ERR_INIT;
        ck_assert_int_eq(sl_xml_parse(bad[i], strlen(bad[i]), "w", count_elements, &count, &err),
                         -1);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
    }
    sl_autobuf big = SL_BUF_INIT(1 << 20);
    unsigned count = 0;
    sl_buf_text(&big, "<a>", &err);
    for (int i = 0; i <= SL_XML_TEXT_MAX / 64; i++)
        sl_buf_printf(&big, &err, "%064d", i);
    sl_buf_text(&big, "</a>", &err);
    ck_assert_int_eq(sl_xml_parse(big.data, big.used, "w", count_elements, &count, &err), -1);
    ck_assert_uint_eq(count, 0);
}

SL_TEST(every_failing_allocation_is_survived)
{
    start();
    sl_server_put(server, "/bucket/m", data, 1000, "\"e\"");
    for (unsigned nth = 1; nth < 400; nth++) {
        err = (struct sl_err)SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        int result = load("s3://bucket/m", 1000);
        unsigned count = sl_alloc_count();
        sl_alloc_fail_at(0);
        if (count < nth) {
            ck_assert_msg(result == 0, "%s", err.message);
            return;
        }
        if (result < 0)
            ck_assert_msg(err.kind == SL_E_NO_SPACE, "%s", err.message);
    }
    ck_abort_msg("never succeeded");
}

SL_CASE(.setup = setup, .teardown = teardown)
