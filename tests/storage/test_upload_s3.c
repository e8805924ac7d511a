/* New objects of S3: one PUT or parts, what is retried, what is refused, what remains of a failure.
 */
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "fake_s3.h"
#include "stores.h"
#include "upload.h"

enum { KIB = 1024, SMALL = 60000, PART = 64 * KIB, LARGE = 4 * PART + 777, PARTS = 5 };
static uint8_t *data;
static struct sl_fake_s3 fake;
static struct sl_source_config source;
static struct sl_tls_options tls;
static struct sl_upload_config config;
static struct sl_err err;

static void setup(void)
{
    clearenv();
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    data = malloc(LARGE);
    for (size_t i = 0; i < LARGE; i++)
        data[i] = (uint8_t)(i * 7 + i / 251 + i / 65537);
    fake = (struct sl_fake_s3){0};
    source = (struct sl_source_config){.attempts = 3};
    config = (struct sl_upload_config){
        .source = &source, .memory_bytes = 4 * PART, .part_bytes = PART, .connections = 3};
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    if (fake.server)
        sl_fake_s3_stop(&fake);
    free(data);
}

/* In blocks, the first bytes last. */
static int upload(const char *uri, size_t bytes)
{
    enum { BLOCK = 12345, HEAD = 100 };
    SL_AUTO(sl_upload) to = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    if (sl_upload_open(uri, bytes, &config, &to, &err) < 0)
        return -1;
    for (size_t at = SL_MIN(HEAD, bytes); at < bytes; at += BLOCK)
        if (sl_upload_admit(to, &err) < 0 ||
            sl_upload_write(to, at, data + at, SL_MIN(BLOCK, bytes - at), &err) < 0)
            return -1;
    if (sl_upload_write(to, 0, data, SL_MIN(HEAD, bytes), &err) < 0)
        return -1;
    return sl_upload_finish(to, &err);
}

static void expect_object(const char *key, size_t bytes)
{
    size_t have = 0;
    const char *object = sl_fake_s3_object(&fake, key, &have);
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(have, bytes);
    ck_assert(memcmp(object, data, bytes) == 0);
    ck_assert_uint_eq(fake.open_uploads, 0);
}

static void expect_upload(const char *uri, const char *key, size_t bytes)
{
    ck_assert_msg(upload(uri, bytes) == 0, "%s", err.message);
    expect_object(key, bytes);
}

/* A failure leaves neither an object nor an unfinished upload. */
static void expect_refusal(const char *uri, size_t bytes, enum sl_err_kind kind, const char *text)
{
    ck_assert_int_eq(upload(uri, bytes), -1);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    ck_assert_msg(err.kind == kind, "kind %d: %s", err.kind, err.message);
    ck_assert_ptr_null(strstr(err.message, "hush"));
    ck_assert_uint_eq(fake.open_uploads, 0);
}

/* ---- what works ------------------------------------------------------------------------------ */

SL_TEST(small_objects_are_one_put)
{
    sl_fake_s3_start(&fake, false);
    expect_upload("s3://b/dir/a b+c%.bin", "/b/dir/a%20b%2Bc%25.bin", SMALL);
    expect_upload("s3://b/empty", "/b/empty", 0);
    ck_assert_uint_eq(fake.puts, 2);
    ck_assert_uint_eq(fake.creates, 0);
}

SL_TEST(large_objects_are_parts)
{
    sl_fake_s3_start(&fake, false);
    expect_upload("s3://b/large", "/b/large", LARGE);
    ck_assert_uint_eq(fake.part_puts, PARTS);
    ck_assert_uint_eq(fake.puts, 0);
    ck_assert_uint_eq(fake.aborts, 0);
}

SL_TEST(within_tls_payloads_are_unsigned_and_checksummed)
{
    sl_fake_s3_start(&fake, true);
    tls = (struct sl_tls_options){.verify = true,
                                  .ca_file = (char *)(uintptr_t)sl_server_ca(fake.server)};
    source.tls = &tls;
    expect_upload("s3://b/large", "/b/large", LARGE);
    expect_upload("s3://b/small", "/b/small", SMALL);
    char text[128];
    unsigned parts = 0;
    for (unsigned i = 0; i < sl_server_request_count(fake.server); i++) {
        const struct sl_server_request *request = sl_server_request_at(fake.server, i);
        if (strcmp(request->method, "PUT") != 0)
            continue;
        ck_assert(sl_server_header(request, "x-amz-content-sha256", text, sizeof(text)));
        ck_assert_str_eq(text, "UNSIGNED-PAYLOAD");
        ck_assert(sl_server_header(request, "x-amz-checksum-crc64nvme", text, sizeof(text)));
        parts++;
    }
    ck_assert_uint_eq(parts, PARTS + 1);
}

SL_TEST(stores_that_ignore_checksums_get_none)
{
    sl_fake_s3_start(&fake, false);
    fake.ignores_checksums = true;
    expect_upload("s3://b/large", "/b/large", LARGE);
}

SL_TEST(stores_that_refuse_checksums_get_none)
{
    sl_fake_s3_start(&fake, false);
    fake.refuses_checksums = true;
    expect_upload("s3://b/large", "/b/large", LARGE);
    expect_upload("s3://b/small", "/b/small", SMALL);
    ck_assert_uint_eq(fake.creates, 2);
}

SL_TEST(within_tls_they_get_an_md5)
{
    sl_fake_s3_start(&fake, true);
    tls = (struct sl_tls_options){.verify = true,
                                  .ca_file = (char *)(uintptr_t)sl_server_ca(fake.server)};
    source.tls = &tls;
    fake.refuses_checksums = true;
    expect_upload("s3://b/large", "/b/large", LARGE);
    char text[128];
    for (unsigned i = 0; i < sl_server_request_count(fake.server); i++) {
        const struct sl_server_request *request = sl_server_request_at(fake.server, i);
        if (strcmp(request->method, "PUT") == 0)
            ck_assert(sl_server_header(request, "content-md5", text, sizeof(text)));
    }
}

SL_TEST(session_tokens_are_sent)
{
    setenv("AWS_SESSION_TOKEN", "token", 1);
    sl_fake_s3_start(&fake, false);
    expect_upload("s3://b/large", "/b/large", LARGE);
    char text[64];
    for (unsigned i = 0; i < sl_server_request_count(fake.server); i++)
        ck_assert(sl_server_header(sl_server_request_at(fake.server, i), "x-amz-security-token",
                                   text, sizeof(text)));
}

/* ---- what passes ----------------------------------------------------------------------------- */

SL_TEST(parts_are_tried_again_alone)
{
    sl_fake_s3_start(&fake, false);
    fake.faults[0] = (struct sl_fake_fault){"PUT", "partNumber=2&", 1, 503, "SlowDown"};
    fake.faults[1] = (struct sl_fake_fault){"PUT", "partNumber=3&", 1, 0};
    fake.faults[2] = (struct sl_fake_fault){"PUT", "partNumber=4&", 2, 500, "InternalError"};
    fake.faults[3] = (struct sl_fake_fault){"PUT", "partNumber=5&", 1, 400, "BadDigest"};
    expect_upload("s3://b/large", "/b/large", LARGE);
    ck_assert_uint_eq(fake.part_puts, PARTS);
}

SL_TEST(a_late_error_of_completing_is_tried_again)
{
    sl_fake_s3_start(&fake, false);
    fake.faults[0] = (struct sl_fake_fault){.method = "POST",
                                            .part = "uploadId",
                                            .times = 1,
                                            .status = 200,
                                            .code = "InternalError",
                                            .space = true};
    expect_upload("s3://b/large", "/b/large", LARGE);
    ck_assert_uint_eq(fake.completes, 1);
}

SL_TEST(an_answer_that_was_lost_is_found_out)
{
    sl_fake_s3_start(&fake, false);
    fake.faults[0] =
        (struct sl_fake_fault){.method = "POST", .part = "uploadId", .times = 1, .after = true};
    fake.faults[1] =
        (struct sl_fake_fault){.method = "PUT", .part = "/b/small", .times = 1, .after = true};
    expect_upload("s3://b/large", "/b/large", LARGE);
    expect_upload("s3://b/small", "/b/small", SMALL);
    fake.ignores_checksums = true; /* by ETag */
    fake.faults[1].times = 1;
    fake.object_count = 1;
    expect_upload("s3://b/small", "/b/small", SMALL);
}

SL_TEST(expired_credentials_are_renewed)
{
    char path[] = "/tmp/test_upload_s3.XXXXXX";
    static const char old[] = "[default]\naws_access_key_id=A\naws_secret_access_key=x\n";
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, old, sizeof(old) - 1), (ssize_t)sizeof(old) - 1);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    sl_fake_s3_start(&fake, false);
    SL_AUTO(sl_upload) to = NULL;
    ck_assert_int_eq(sl_upload_open("s3://b/large", LARGE, &config, &to, &err), 0);
    ck_assert_int_eq(pwrite(fd, "y", 1, sizeof(old) - 3), 1); /* another secret */
    close(fd);
    fake.faults[0] = (struct sl_fake_fault){"PUT", "partNumber=1&", 1, 400, "ExpiredToken"};
    ck_assert_int_eq(sl_upload_write(to, 0, data, LARGE, &err), 0);
    ck_assert_msg(sl_upload_finish(to, &err) == 0, "%s", err.message);
    expect_object("/b/large", LARGE);
    unlink(path);
}

SL_TEST(a_bucket_in_another_region_is_found)
{
    sl_fake_s3_start(&fake, false);
    fake.faults[0] = (struct sl_fake_fault){"HEAD", "/b/large", 1, 400, NULL};
    fake.faults[1] = (struct sl_fake_fault){"GET",
                                            "/b/large",
                                            1,
                                            400,
                                            "AuthorizationHeaderMalformed",
                                            "x-amz-bucket-region: eu-west-7\r\n"};
    expect_upload("s3://b/large", "/b/large", LARGE);
    const struct sl_server_request *last =
        sl_server_request_at(fake.server, sl_server_request_count(fake.server) - 1);
    char text[512];
    ck_assert(sl_server_header(last, "Authorization", text, sizeof(text)));
    ck_assert_ptr_nonnull(strstr(text, "/eu-west-7/s3/"));
}

/* ---- what is refused ------------------------------------------------------------------------- */

SL_TEST(what_is_there_is_kept_unless_it_is_to_be_replaced)
{
    sl_fake_s3_start(&fake, false);
    sl_fake_s3_put(&fake, "/b/k", "old", 3);
    expect_refusal("s3://b/k", LARGE, SL_E_USAGE, "'s3://b/k' exists");
    expect_refusal("s3://b/k", SMALL, SL_E_USAGE, "'s3://b/k' exists");
    ck_assert_str_eq(err.code, "exists");
    ck_assert_uint_eq(fake.creates + fake.puts, 0);
    config.replace = true;
    expect_upload("s3://b/k", "/b/k", LARGE);
    expect_upload("s3://b/k", "/b/k", SMALL);
}

SL_TEST(what_appears_meanwhile_is_kept_too)
{
    sl_fake_s3_start(&fake, false);
    for (size_t bytes = SMALL; bytes <= LARGE; bytes += LARGE - SMALL) {
        SL_AUTO(sl_upload) to = NULL;
        fake.object_count = 0;
        ck_assert_int_eq(sl_upload_open("s3://b/k", bytes, &config, &to, &err), 0);
        ck_assert_int_eq(sl_upload_write(to, 0, data, bytes, &err), 0);
        sl_fake_s3_put(&fake, "/b/k", "theirs", 6);
        ck_assert_int_eq(sl_upload_finish(to, &err), -1);
        ck_assert_str_eq(err.code, "exists");
        sl_upload_free(sl_steal(&to));
        ck_assert_uint_eq(fake.open_uploads, 0);
        ck_assert_mem_eq(sl_fake_s3_object(&fake, "/b/k", &(size_t){0}), "theirs", 6);
    }
}

SL_TEST(stores_without_conditions_are_asked_again)
{
    sl_fake_s3_start(&fake, false);
    fake.refuses_conditions = true;
    expect_upload("s3://b/large", "/b/large", LARGE);
    expect_upload("s3://b/small", "/b/small", SMALL);
}

SL_TEST(refusals_come_before_the_first_byte_and_say_what_to_do)
{
    sl_fake_s3_start(&fake, false);
    fake.faults[0] = (struct sl_fake_fault){"POST", "uploads", 1, 403, "AccessDenied"};
    expect_refusal("s3://b/large", LARGE, SL_E_AUTH, "grant s3:PutObject");
    fake.faults[0] = (struct sl_fake_fault){"POST", "uploads", 1, 404, "NoSuchBucket"};
    expect_refusal("s3://b/large", LARGE, SL_E_NOT_FOUND, "check the bucket's name");
    expect_refusal("s3://b", LARGE, SL_E_USAGE, "names no object");
    expect_refusal("s3://b/dir/", LARGE, SL_E_USAGE, "names a folder");
    expect_refusal("s3:///k", LARGE, SL_E_USAGE, "names no bucket");
    expect_refusal("s3://b/k", UINT64_C(1) << 56, SL_E_USAGE, "more than S3 takes");
    ck_assert_uint_eq(fake.part_puts, 0);
}

SL_TEST(a_part_that_is_refused_aborts_the_upload)
{
    sl_fake_s3_start(&fake, false);
    fake.faults[0] = (struct sl_fake_fault){"PUT", "partNumber=3&", 100, 403, "QuotaExceeded"};
    expect_refusal("s3://b/large", LARGE, SL_E_NO_SPACE, "part 3 of 5: 403 QuotaExceeded");
    ck_assert_uint_eq(fake.aborts, 1);
    ck_assert_uint_eq(fake.object_count, 0);
}

SL_TEST(a_part_that_never_passes_aborts_the_upload)
{
    sl_fake_s3_start(&fake, false);
    fake.faults[0] = (struct sl_fake_fault){"PUT", "partNumber=4&", 100, 503, "SlowDown"};
    expect_refusal("s3://b/large", LARGE, SL_E_NET, "SlowDown");
    ck_assert_uint_eq(fake.aborts, 1);
}

SL_TEST(completing_that_fails_late_aborts_the_upload)
{
    sl_fake_s3_start(&fake, false);
    fake.faults[0] = (struct sl_fake_fault){.method = "POST",
                                            .part = "uploadId",
                                            .times = 100,
                                            .status = 200,
                                            .code = "InvalidPart",
                                            .space = true};
    expect_refusal("s3://b/large", LARGE, SL_E_NET, "InvalidPart");
    ck_assert_uint_eq(fake.aborts, 1);
    ck_assert_uint_eq(fake.object_count, 0);
    fake.faults[0].code = NULL; /* nothing at all */
    expect_refusal("s3://b/large", LARGE, SL_E_NET, "cannot write");
    ck_assert_uint_eq(fake.aborts, 2);
}

/* ---- giving up ------------------------------------------------------------------------------- */

SL_TEST(an_upload_that_is_not_finished_is_aborted)
{
    SL_AUTO(sl_upload) to = NULL;
    sl_fake_s3_start(&fake, false);
    ck_assert_int_eq(sl_upload_open("s3://b/large", LARGE, &config, &to, &err), 0);
    ck_assert_int_eq(sl_upload_write(to, 0, data, LARGE / 2, &err), 0);
    sl_upload_free(sl_steal(&to));
    ck_assert_uint_eq(fake.aborts, 1);
    ck_assert_uint_eq(fake.open_uploads, 0);
    ck_assert_uint_eq(fake.object_count, 0);
}

/* What the store has begun has a name that only its answer tells. */
SL_TEST(cancellation_before_the_upload_has_a_name_aborts_it)
{
    SL_AUTO(sl_upload) to = NULL;
    source.cancel = sl_cancel_new(&err);
    sl_fake_s3_start(&fake, false);
    fake.cancels = source.cancel;
    int opened = sl_upload_open("s3://b/large", LARGE, &config, &to, &err);
    ck_assert(opened < 0 || sl_upload_write(to, 0, data, LARGE / 2, &err) < 0);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_upload_free(sl_steal(&to));
    sl_cancel_free(source.cancel);
    ck_assert_uint_eq(fake.creates, 1);
    ck_assert_uint_eq(fake.aborts, 1);
    ck_assert_uint_eq(fake.open_uploads, 0);
}

SL_TEST(cancellation_aborts_it)
{
    SL_AUTO(sl_upload) to = NULL;
    source.cancel = sl_cancel_new(&err);
    sl_fake_s3_start(&fake, false);
    ck_assert_int_eq(sl_upload_open("s3://b/large", LARGE, &config, &to, &err), 0);
    ck_assert_int_eq(sl_upload_write(to, 0, data, LARGE / 2, &err), 0);
    sl_cancel_raise(source.cancel, SIGTERM);
    ck_assert_int_eq(sl_upload_write(to, LARGE / 2, data, 1, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_upload_free(sl_steal(&to));
    sl_cancel_free(source.cancel);
    ck_assert_uint_eq(fake.aborts, 1);
    ck_assert_uint_eq(fake.open_uploads, 0);
}

SL_TEST(giving_up_ends_long_waits)
{
    SL_AUTO(sl_upload) to = NULL;
    fake_clock_hold(); /* no wait ends by itself */
    sl_fake_s3_start(&fake, false);
    ck_assert_int_eq(sl_upload_open("s3://b/large", LARGE, &config, &to, &err), 0);
    fake.faults[0] =
        (struct sl_fake_fault){"PUT", "partNumber", 100, 503, "SlowDown", "Retry-After: 50\r\n"};
    ck_assert_int_eq(sl_upload_write(to, 0, data, LARGE / 2, &err), 0);
    SL_AWAIT(sl_server_request_count(fake.server) >= 3, "the third request");
    sl_upload_free(sl_steal(&to));
    ck_assert_uint_eq(fake.aborts, 1);
}

SL_TEST(every_failing_allocation_leaves_nothing)
{
    sl_fake_s3_start(&fake, false);
    for (size_t bytes = SMALL; bytes <= LARGE; bytes += 2 * PART - SMALL) {
        int result = -1;
        for (unsigned nth = 1; result < 0; nth++) {
            SL_AUTO(sl_upload) to = NULL;
            sl_fake_s3_reset(&fake);
            err = (struct sl_err)SL_ERR_INIT;
            sl_alloc_fail_at(nth);
            result = sl_upload_open("s3://b/k", bytes, &config, &to, &err);
            if (result == 0)
                result = sl_upload_write(to, 0, data, bytes, &err);
            if (result == 0)
                result = sl_upload_finish(to, &err);
            sl_alloc_fail_at(0);
            ck_assert(result == 0 || err.kind == SL_E_NO_SPACE || err.kind == SL_E_AUTH);
            ck_assert(result == 0 || fake.object_count == 0);
            ck_assert_uint_lt(nth, 2000);
            sl_upload_free(sl_steal(&to));
            if (result == 0)
                expect_object("/b/k", bytes);
        }
        if (bytes != SMALL)
            break;
    }
}

SL_CASE(.setup = setup, .teardown = teardown)
