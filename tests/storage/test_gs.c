/* Google Cloud Storage: addresses, tokens of every source, generations, hashes, refusals. The mock
 * is strict: a request that Google would refuse fails the test. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "gs_store.h"
#include "hash.h"
#include "range_server.h"
#include "scratch.h"
#include "source.h"
#include "stores.h"

enum { BYTES = 100000 };
#define STEPS(...) SL_SCRIPT(server, __VA_ARGS__)

/* Made for stores of tests, in no use anywhere. */
static const char key_base64[] =
    "MIICdgIBADANBgkqhkiG9w0BAQEFAASCAmAwggJcAgEAAoGBALRUYyeftEbngq4q2Rd+9SkJme2/+g4gER4e+aZ4c7D4"
    "XFUPo4atAy8rwTPXzM6ohalB4WAsQfvLDfVVgN9Ev0wdYlt3qbYndOIy5f6oRqkcJvtOxykHV+ZWBiNgfDQzU6lk6ZDa"
    "Ez4uoXOcKYe9OUsqfqO+Hr6PI2T+hwj166sPAgMBAAECgYAO6pANHgO+fbXsjDTK4cCLtXSbGu8nLfXchPlnkL0ZHWId"
    "0x5WrIb/5uGjVS1mxr/PoVhwKRkIJ+KusXTogvpDwObmhjdMmlfF85KwcU1YVsxaSYObKMb6/LH6XbaaWMGPw/w/y0k+"
    "R//rTmcSAPS9j+VyCbiI1gR2XStbenTC+QJBAOWSO5/eHGS4JlPGuSt9yov8bRZ2Ub4qOI0XP6GxpBeMqDWMD1Qvrvds"
    "/rqv4wFYHOkW8ejx4Ga0+rfRSFv0TpsCQQDJFvCdGsGWVELSGvksm9W5vNnIxz8QyWL/blf6P1gtugpqQKmjTrsHHyTq"
    "bg3ye3vETxgcjPEdpnOk1w/N8sKdAkARh1TeJAtu9VCX3PiOhZBNl/yMVoRvTLH8s+W75uBsm+TMEeGpv+pQIhZhEsT2"
    "eU/bzFC0RKOps+/g0S4BN2o5AkBTyLUUIFPMeOsmc4qiZYOVUfRDzZCfQ+l1l9ocMExjMQKp5qtHmcQfYYCWFKjHAWA+"
    "GN5o9uh3fCTu55R0MNOZAkEAwKKH5urZl3/5FeA9CiW23v+aieoyuDTKNXGBB04NQt23VpNscmVLEvAIWyJeigsagWEU"
    "3H62YN3Lw4MlmyvcFQ==";
static const char email[] = "loader@sluice-test.iam.gserviceaccount.com";

static struct sl_gs_options gs;
static struct sl_source_config config;
static struct sl_err err;
static struct sl_server *server;
static uint8_t data[BYTES];

/* What the mock asks of a request, and says. */
static struct {
    const char *token;      /* that lets in; NULL: none may come */
    const char *generation; /* of the object */
    const char *hash;
    const char *more;         /* headers */
    unsigned asked;           /* for tokens */
    unsigned refuse_token_at; /* the token of this number is not good any more */
    bool bearer_is_numbered;  /* "tokenN" */
    unsigned expires_in;
    char seen[4096]; /* the last form that asked for a token */
} mock;

static char *pem_key(const char *newline)
{
    sl_autobuf pem = SL_BUF_INIT(4096);
    sl_buf_printf(&pem, NULL, "-----BEGIN PRIVATE KEY-----%s", newline);
    for (size_t at = 0; at < strlen(key_base64); at += 64)
        sl_buf_printf(&pem, NULL, "%.64s%s", key_base64 + at, newline);
    sl_buf_printf(&pem, NULL, "-----END PRIVATE KEY-----%s", newline);
    return sl_buf_steal(&pem, NULL);
}

static void say(struct sl_server_reply *reply, int status, const char *body)
{
    reply->status = status;
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

static bool expects_token(const struct sl_server_request *request)
{
    char authorization[8192] = "", wanted[8192];
    sl_server_header(request, "Authorization", authorization, sizeof(authorization));
    if (!mock.token)
        return !*authorization;
    if (mock.bearer_is_numbered)
        snprintf(wanted, sizeof(wanted), "Bearer %s%u", mock.token, mock.asked);
    else
        snprintf(wanted, sizeof(wanted), "Bearer %s", mock.token);
    return strcmp(authorization, wanted) == 0;
}

static bool object(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    unsigned long begin, end;
    char range[64] = "", pin[64];
    const char *query = strchr(request->target, '?');
    snprintf(pin, sizeof(pin), "?generation=%s", mock.generation);
    if (query && strcmp(query, pin) != 0) {
        say(reply, 404, "<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>");
        return true;
    }
    ck_assert(!sl_server_header(request, "If-Match", range, sizeof(range)));
    ck_assert(sl_server_header(request, "Range", range, sizeof(range)));
    ck_assert_int_eq(sscanf(range, "bytes=%lu-%lu", &begin, &end), 2);
    end = end < BYTES ? end + 1 : BYTES;
    reply->status = 206;
    snprintf(reply->headers, sizeof(reply->headers),
             "Content-Range: bytes %lu-%lu/%d\r\nETag: \"%u\"\r\nx-goog-generation: %s\r\n"
             "x-goog-hash: crc32c=%s,md5=WfCHd/zRqiuODI+JLPquCQ==\r\n%s",
             begin, end - 1, BYTES, mock.asked, mock.generation, mock.hash,
             mock.more ? mock.more : "");
    reply->body = malloc(end - begin);
    memcpy(reply->body, data + begin, end - begin);
    reply->body_bytes = end - begin;
    return true;
}

static bool token_service(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    char body[256];
    snprintf(mock.seen, sizeof(mock.seen), "%s", request->body ? request->body : "");
    mock.asked++;
    snprintf(body, sizeof(body),
             "{\"access_token\": \"token%u\", \"expires_in\": \"%u\", \"token_type\": \"Bearer\"}",
             mock.asked, mock.expires_in);
    say(reply, 200, body);
    snprintf(reply->headers, sizeof(reply->headers), "Metadata-Flavor: Google\r\n");
    return true;
}

static bool google(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)arg;
    if (strncmp(request->target, "/token", 6) == 0 ||
        strncmp(request->target, "/computeMetadata/", 17) == 0)
        return token_service(request, reply);
    if (strncmp(request->target, "/models/", 8) != 0)
        return false;
    if (!expects_token(request) || (mock.refuse_token_at && mock.asked == mock.refuse_token_at)) {
        say(reply, 401, "<Error><Code>AuthenticationRequired</Code></Error>");
        return true;
    }
    return object(request, reply);
}

static void setup(void)
{
    clearenv();
    setenv("NO_GCE_CHECK", "true", 1);
    gs = (struct sl_gs_options){0};
    config = (struct sl_source_config){.options = {{&sl_gs_table, &gs}}, .attempts = 3};
    err = (struct sl_err)SL_ERR_INIT;
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(7 * i + 3);
    server = sl_server_start();
    memset(&mock, 0, sizeof(mock));
    mock.generation = "1369353600123456";
    mock.hash = "lvMdxg==";
    mock.expires_in = 3600;
    sl_server_handle(server, google, NULL);
    setenv("STORAGE_EMULATOR_HOST", strstr(sl_server_url(server, ""), "//") + 2, 1);
}

static void teardown(void)
{
    sl_server_stop(server);
}

static int load(const char *uri)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    static uint8_t got[BYTES];
    err = (struct sl_err)SL_ERR_INIT;
    if (sl_store_open(uri, &config, &store, &name, &err) < 0 ||
        sl_source_open(store, name, 100, &source, &err) < 0 ||
        sl_source_read(source, 0, got, BYTES, &err) < 0)
        return -1;
    ck_assert_uint_eq(sl_source_bytes(source), BYTES);
    ck_assert_mem_eq(got, data, BYTES);
    return 0;
}

static void expect_load(const char *uri)
{
    ck_assert_msg(load(uri) == 0, "%s", err.message);
}

static void expect_refusal(const char *uri, enum sl_err_kind kind, const char *text)
{
    ck_assert_int_eq(load(uri), -1);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    ck_assert_msg(err.kind == kind, "kind %d: %s", err.kind, err.message);
    ck_assert_ptr_null(strstr(err.message, "hush"));
}

static char folder[SL_SCRATCH_PATH_BYTES];
static int folder_fd = -1;

/* Write a file of the scratch directory; its path, until the next call. */
static const char *write_file(const char *name, const char *text)
{
    static char path[SL_SCRATCH_PATH_BYTES + 64];
    if (folder_fd < 0)
        folder_fd = sl_scratch_open(folder);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    fclose(file);
    return path;
}

static void use_credentials(const char *text)
{
    setenv("GOOGLE_APPLICATION_CREDENTIALS", write_file("credentials.json", text), 1);
}

/* ---- addresses and answers ------------------------------------------------------------------- */

SL_TEST(public_objects_are_read_without_a_token)
{
    expect_load("gs://models/a/m.bin");
    char value[64];
    ck_assert_uint_ge(sl_server_request_count(server), 2);
    for (unsigned i = 0; i < sl_server_request_count(server); i++)
        ck_assert(!sl_server_header(sl_server_request_at(server, i), "Authorization", value, 64));
}

SL_TEST(names_are_encoded_and_every_later_range_names_the_generation)
{
    expect_load("gs://models/a b+c%/\xc3\xa9?x.bin");
    ck_assert_str_eq(sl_server_request_at(server, 0)->target,
                     "/models/a%20b%2Bc%25/%C3%A9%3Fx.bin");
    for (unsigned i = 1; i < sl_server_request_count(server); i++)
        ck_assert_str_eq(sl_server_request_at(server, i)->target,
                         "/models/a%20b%2Bc%25/%C3%A9%3Fx.bin?generation=1369353600123456");
}

SL_TEST(a_generation_in_the_uri_is_asked_for_from_the_first_request_on)
{
    expect_load("gs://models/m.bin#1369353600123456");
    ck_assert_str_eq(sl_server_request_at(server, 0)->target,
                     "/models/m.bin?generation=1369353600123456");
    expect_refusal("gs://models/m.bin#7", SL_E_NOT_FOUND, "404");
}

SL_TEST(an_object_that_is_replaced_in_mid_load_is_changed)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    uint8_t got[100];
    ck_assert_int_eq(sl_store_open("gs://models/m.bin", &config, &store, &name, &err), 0);
    ck_assert_int_eq(sl_source_open(store, name, 10, &source, &err), 0);
    ck_assert_str_eq(sl_source_version(source)->pin, "generation=1369353600123456");
    ck_assert_str_eq(sl_source_version(source)->etag, "");
    mock.generation = "8";
    ck_assert_int_eq(sl_source_read(source, 5000, got, sizeof(got), &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
}

SL_TEST(the_crc32c_of_the_first_answer_is_known_without_a_request)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    struct sl_checksums sums;
    uint8_t crc[SL_HASH_BYTES_MAX];
    ck_assert_int_eq(sl_store_open("gs://models/m.bin", &config, &store, &name, &err), 0);
    ck_assert_int_eq(sl_source_open(store, name, 10, &source, &err), 0);
    unsigned before = sl_server_request_count(server);
    ck_assert_int_eq(sl_source_checksums(source, &sums, &err), 0);
    ck_assert_uint_eq(sl_server_request_count(server), before);
    ck_assert_uint_eq(sums.count, 1);
    ck_assert_int_eq(sums.items[0].kind, SL_HASH_CRC32C);
    sl_crc_digest(SL_HASH_CRC32C, sl_crc32c(0, data, BYTES), crc);
    ck_assert_mem_eq(sums.items[0].value, crc, 4);
}

SL_TEST(objects_that_google_unpacks_are_refused)
{
    mock.more = "x-goog-stored-content-encoding: gzip\r\n";
    expect_refusal("gs://models/m.bin", SL_E_USAGE, "stored with Content-Encoding 'gzip'");
    ck_assert_ptr_nonnull(strstr(err.message, "--clear-content-encoding"));
}

SL_TEST(other_encodings_at_google_are_labels)
{
    mock.more = "x-goog-stored-content-encoding: utf-8\r\nContent-Encoding: utf-8\r\n";
    expect_load("gs://models/m.bin");
}

SL_TEST(an_empty_object_is_read_without_a_range)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_server_put(server, "/empties/e", "", 0, NULL);
    STEPS({.path = "/empties/e",
           .first = 1,
           .fault = SL_FAULT_STATUS,
           .status = 416,
           .text = "<Error><Code>InvalidRange</Code></Error>"},
          {.path = "/empties/e", .headers = "x-goog-generation: 4\r\n"});
    ck_assert_int_eq(sl_store_open("gs://empties/e", &config, &store, &name, &err), 0);
    ck_assert_msg(sl_source_open(store, name, 10, &source, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_source_bytes(source), 0);
}

SL_TEST(what_names_no_object_is_refused)
{
    static const char *const bad[] = {"gs://", "gs:///x", "gs://UP/x", "gs://b/x", "gs://a b/x"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_int_eq(sl_source_check_uri(bad[i], &err), -1);
    ck_assert_int_eq(sl_source_check_uri("gs://models/x", &err), 0);
    gs.user_project = (char[]){"a&b"};
    expect_refusal("gs://models/x", SL_E_USAGE, "is not a project id");
    gs.user_project = NULL;
    gs.endpoint = (char[]){"http://user:hush@127.0.0.1"};
    expect_refusal("gs://models/x", SL_E_USAGE, "without user, query or fragment");
    gs.endpoint = (char[]){"http://127.0.0.1?x"};
    expect_refusal("gs://models/x", SL_E_USAGE, "without user, query or fragment");
    gs.endpoint = (char[]){"http://127.0.0.1#x"};
    expect_refusal("gs://models/x", SL_E_USAGE, "without user, query or fragment");
}

SL_TEST(refusals_say_what_to_do)
{
    static const struct {
        int status;
        const char *body, *project;
        enum sl_err_kind kind;
        const char *text;
    } rows[] = {
        {403, "<Error><Code>AccessDenied</Code><Message>no</Message></Error>", NULL, SL_E_AUTH,
         "no credentials were found"},
        {400, "<Error><Code>UserProjectMissing</Code></Error>", NULL, SL_E_AUTH,
         "set source.gs.userProject"},
        {400,
         "{\"error\": {\"code\": 400, \"message\": \"Bucket is a requester pays bucket but no user "
         "project provided.\", \"errors\": [{\"domain\": \"global\", \"reason\": \"required\"}]}}",
         NULL, SL_E_AUTH, "set source.gs.userProject"},
        {404, "<Error><Code>NoSuchBucket</Code></Error>", NULL, SL_E_NOT_FOUND, "NoSuchBucket"},
        {403, "{\"error\": {\"message\": \"m\", \"errors\": [{\"reason\": \"forbidden\"}]}}", NULL,
         SL_E_AUTH, "forbidden (m)"},
        {301, "", NULL, SL_E_NET, "301"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        STEPS({.path = "/others/x",
               .fault = SL_FAULT_STATUS,
               .status = rows[i].status,
               .text = rows[i].body});
        sl_server_put(server, "/others/x", "x", 1, NULL);
        expect_refusal("gs://others/x", rows[i].kind, rows[i].text);
    }
}

SL_TEST(every_failure_that_may_pass_is_tried_again)
{
    static const struct sl_step faults[] = {
        {.fault = SL_FAULT_RESET, .after = -1},
        {.fault = SL_FAULT_RESET, .after = 10},
        {.fault = SL_FAULT_SHORT, .after = 10},
        {.fault = SL_FAULT_SHORT, .after = -1},
        {.fault = SL_FAULT_STATUS, .status = 429, .text = "slow down"},
        {.fault = SL_FAULT_STATUS, .status = 503, .text = ""},
        {.fault = SL_FAULT_STATUS, .status = 500, .text = ""},
        {.fault = SL_FAULT_STALL, .after = 10},
        {.fault = SL_FAULT_DROP_AFTER},
        {.fault = SL_FAULT_CHUNKED},
    };
    fake_clock_run();
    for (size_t i = 0; i < SL_COUNT(faults); i++)
        for (unsigned nth = 1; nth <= 2; nth++) {
            teardown();
            setup();
            sl_server_put(server, "/others/x", data, BYTES, "\"e\"");
            struct sl_step bad = faults[i];
            config.stall_seconds = bad.fault == SL_FAULT_STALL; /* else 0: 30 */
            bad.path = "/others/x";
            bad.first = bad.last = nth;
            bad.headers = "x-goog-generation: 4\r\n";
            STEPS(bad, {.path = "/others/x", .headers = "x-goog-generation: 4\r\n"});
            expect_load("gs://others/x");
        }
}

SL_TEST(answers_that_break_the_contract_are_refused)
{
    static const struct sl_step faults[] = {
        {.fault = SL_FAULT_WRONG_RANGE}, {.fault = SL_FAULT_NO_RANGE},  {.fault = SL_FAULT_LONG},
        {.fault = SL_FAULT_GZIP},        {.fault = SL_FAULT_MULTIPART},
    };
    for (size_t i = 0; i < SL_COUNT(faults); i++) {
        sl_server_put(server, "/others/x", data, BYTES, "\"e\"");
        struct sl_step bad = faults[i];
        bad.path = "/others/x";
        STEPS(bad);
        ck_assert_int_eq(load("gs://others/x"), -1);
        ck_assert_msg(err.kind == SL_E_NET || err.kind == SL_E_INTEGRITY, "%s", err.message);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

SL_TEST(a_service_account_signs_as_googles_own_library)
{
    sl_autofree char *pem = pem_key("\n");
    sl_autosecret char *jwt =
        sl_gs_jwt(email, "sluice-test-key-1", pem,
                  "https://www.googleapis.com/auth/devstorage.read_only", 1369353600, &err);
    ck_assert_msg(jwt != NULL, "%s", err.message);
    ck_assert_str_eq(
        strrchr(jwt, '.') + 1,
        "iE6AT-SA0P-iNlqVQprO4lugO0kSWwLAWnCkQjLwzz6YXWoM4cTBCGkjl57X6tu-ziGSUScdPY0Mfl"
        "bNqDKuEUwuXCswr_SRsTsjGULnU06m8U4DRE-3uEB2xujH-5ZdKw-hhk7UheGV1rsYS21TdSOQsl3M"
        "9hSMKgueqWSiOGs");
    ck_assert_ptr_null(sl_gs_jwt("a\"b", "k", pem, "s", 0, &err));
    ck_assert_ptr_null(sl_gs_jwt("a", "k", "-----BEGIN hush", "s", 0, &err));
    ck_assert_ptr_null(strstr(err.message, "hush"));
}

static void use_service_account(void)
{
    sl_autofree char *pem = pem_key("\\n"), *text = NULL;
    text = sl_asprintf(NULL,
                       "{\"type\": \"service_account\", \"client_email\": \"%s\", "
                       "\"private_key_id\": \"k1\", \"private_key\": \"%s\"}",
                       email, pem);
    use_credentials(text);
}

static bool takes_jwt(const struct sl_server_request *request, struct sl_server_reply *reply,
                      void *arg)
{
    char authorization[8192];
    ck_assert(sl_server_header(request, "Authorization", authorization, sizeof(authorization)));
    ck_assert_int_eq(strncmp(authorization, "Bearer eyJhbGciOiJSUzI1NiIsImtpZCI6ImsxIi", 41), 0);
    snprintf(arg, 8192, "%s", authorization);
    return object(request, reply);
}

SL_TEST(a_service_account_needs_no_exchange_and_one_token)
{
    char seen[8192];
    use_service_account();
    sl_server_handle(server, takes_jwt, seen);
    expect_load("gs://models/m.bin");
    for (unsigned i = 0; i < sl_server_request_count(server); i++) {
        char one[8192];
        sl_server_header(sl_server_request_at(server, i), "Authorization", one, sizeof(one));
        ck_assert_str_eq(one, seen);
    }
}

static void use_user(void)
{
    char text[512];
    snprintf(text, sizeof(text),
             "{\"type\": \"authorized_user\", \"client_id\": \"id\", \"client_secret\": \"hush\", "
             "\"refresh_token\": \"r/hush\", \"token_uri\": \"%s\"}",
             sl_server_url(server, "/token"));
    use_credentials(text);
    mock.token = "token";
    mock.bearer_is_numbered = true;
}

SL_TEST(an_authorised_user_asks_for_a_token_once)
{
    use_user();
    expect_load("gs://models/m.bin");
    ck_assert_uint_eq(mock.asked, 1);
    ck_assert_str_eq(mock.seen, "grant_type=refresh_token&client_id=id&client_secret=hush&"
                                "refresh_token=r%2Fhush");
}

SL_TEST(a_token_that_is_refused_in_mid_load_is_replaced_once)
{
    use_user();
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    SL_AUTO(sl_source) source = NULL;
    uint8_t got[100];
    ck_assert_int_eq(sl_store_open("gs://models/m.bin", &config, &store, &name, &err), 0);
    ck_assert_msg(sl_source_open(store, name, 10, &source, &err) == 0, "%s", err.message);
    mock.refuse_token_at = 1;
    ck_assert_msg(sl_source_read(source, 5000, got, 100, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(mock.asked, 2);
    ck_assert_mem_eq(got, data + 5000, 100);
    mock.refuse_token_at = 2;
    ck_assert_int_eq(sl_source_read(source, 6000, got, 100, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_ptr_nonnull(strstr(err.message, "credentials.json' (GOOGLE_APPLICATION_CREDENTIALS)"
                                              " is not accepted"));
    ck_assert_uint_eq(mock.asked, 2);
}

/* As it stands there, with the blanks that an editor left, or as a member of JSON. */
SL_TEST_LOOP(workload_identity_exchanges_the_token_of_a_file, 0, 2)
{
    char text[1024], path[SL_SCRATCH_PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s",
             write_file("subject", _i ? " \n\thush-jwt\r\n" : " {\"t\": \"hush-jwt\"}"));
    snprintf(text, sizeof(text),
             "{\"type\": \"external_account\", \"audience\": \"//iam/pools/p\", "
             "\"subject_token_type\": \"urn:ietf:params:oauth:token-type:jwt\", "
             "\"token_url\": \"%s\", \"credential_source\": {\"file\": \"%s\", "
             "\"format\": {\"type\": \"%s\", \"subject_token_field_name\": \"t\"}}}",
             sl_server_url(server, "/token"), path, _i ? "text" : "json");
    use_credentials(text);
    mock.token = "token";
    mock.bearer_is_numbered = true;
    expect_load("gs://models/m.bin");
    ck_assert_str_eq(mock.seen,
                     "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange&"
                     "audience=%2F%2Fiam%2Fpools%2Fp&scope=https%3A%2F%2Fwww.googleapis.com%2Fauth"
                     "%2Fdevstorage.read_only&requested_token_type=urn%3Aietf%3Aparams%3Aoauth%3A"
                     "token-type%3Aaccess_token&subject_token=hush-jwt&subject_token_type="
                     "urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Ajwt");
}

SL_TEST(the_metadata_server_is_asked_where_nothing_is_named)
{
    unsetenv("NO_GCE_CHECK");
    setenv("GCE_METADATA_HOST", strstr(sl_server_url(server, ""), "//") + 2, 1);
    mock.token = "token";
    mock.bearer_is_numbered = true;
    expect_load("gs://models/m.bin");
    char flavor[32];
    const struct sl_server_request *first = sl_server_request_at(server, 0);
    ck_assert_str_eq(first->target, "/computeMetadata/v1/instance/service-accounts/default/token");
    ck_assert(sl_server_header(first, "Metadata-Flavor", flavor, sizeof(flavor)));
    ck_assert_str_eq(flavor, "Google");
}

SL_TEST(who_asks_for_no_credentials_gets_none)
{
    use_user();
    mock.token = NULL;
    gs.anonymous = true;
    gs.user_project = (char[]){"payer-1"};
    expect_load("gs://models/m.bin");
    ck_assert_uint_eq(mock.asked, 0);
    char project[32];
    ck_assert(sl_server_header(sl_server_request_at(server, 1), "x-goog-user-project", project,
                               sizeof(project)));
    ck_assert_str_eq(project, "payer-1");
}

SL_TEST(no_token_goes_over_plain_http_to_another_machine)
{
    use_user();
    setenv("STORAGE_EMULATOR_HOST", "http://emulator.example:80", 1);
    expect_refusal("gs://models/m.bin", SL_E_AUTH, "over plain http to another machine");
    char text[300];
    snprintf(text, sizeof(text),
             "{\"type\": \"authorized_user\", \"client_id\": \"id\", \"client_secret\": \"hush\", "
             "\"refresh_token\": \"hush\", \"token_uri\": \"http://tokens.example/\"}");
    use_credentials(text);
    setenv("STORAGE_EMULATOR_HOST", sl_server_url(server, ""), 1);
    expect_refusal("gs://models/m.bin", SL_E_AUTH, "'tokens.example' is plain http");
}

SL_TEST(broken_credentials_are_refused_by_name)
{
    static const struct {
        const char *text;
        enum sl_err_kind kind;
        const char *says;
    } rows[] = {
        {"", SL_E_USAGE, "is not a credentials file of Google"},
        {"[\"hush\"]", SL_E_USAGE, "is not a credentials file of Google"},
        {"{\"type\": \"service_account\", \"private_key\": \"hush\"}", SL_E_USAGE,
         "has no text 'client_email'"},
        {"{\"type\": \"service_account\", \"client_email\": \"a\", \"private_key_id\": \"b\", "
         "\"private_key\": \"hush\"}",
         SL_E_AUTH, "private_key is not an RSA key"},
        {"{\"type\": \"other\"}", SL_E_AUTH, "of unknown type 'other'"},
        {"{\"type\": \"external_account\", \"audience\": \"a\", \"subject_token_type\": \"t\", "
         "\"token_url\": \"https://x\", \"credential_source\": {\"executable\": {}}}",
         SL_E_AUTH, "from a program or a certificate"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        use_credentials(rows[i].text);
        expect_refusal("gs://models/m.bin", rows[i].kind, rows[i].says);
    }
    setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/c.json", 1);
    expect_refusal("gs://models/m.bin", SL_E_NOT_FOUND, "/nowhere/c.json");
}

SL_TEST(every_allocation_may_fail)
{
    use_user();
    for (unsigned nth = 1; nth < 600; nth++) {
        mock.asked = 0;
        sl_alloc_fail_at(nth);
        int result = load("gs://models/m.bin");
        unsigned count = sl_alloc_count();
        sl_alloc_fail_at(0);
        if (count < nth) {
            ck_assert_msg(result == 0, "%s", err.message);
            return;
        }
        if (result < 0)
            ck_assert_msg(err.kind == SL_E_NO_SPACE || err.kind == SL_E_AUTH, "%s", err.message);
    }
    ck_abort_msg("never succeeded");
}

static void close_all(void)
{
    teardown();
    if (folder_fd >= 0)
        sl_scratch_close(folder_fd, folder);
}

SL_CASE(.setup = setup, .teardown = close_all, .seconds = 60)
