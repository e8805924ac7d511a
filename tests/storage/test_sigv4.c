/* Signatures against the published examples of AWS and vectors made with botocore. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "sigv4.h"

static const char access_key[] = "AKIAIOSFODNN7EXAMPLE";
static const char secret_key[] = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
static const char amazon[] = "examplebucket.s3.amazonaws.com";

struct vector {
    const char *method, *host, *path, *query, *region, *extra_name, *extra_value, *signature;
};
static const struct vector vectors[] = {
    {"GET", amazon, "/test.txt", "", "us-east-1", "range", "bytes=0-9",
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
    {"GET", amazon, "/", "max-keys=2&prefix=J", "us-east-1", NULL, NULL,
     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
    {"GET", amazon, "/", "lifecycle", "us-east-1", NULL, NULL,
     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
    {"GET", amazon, "/test.txt", "", "us-east-1", NULL, NULL,
     "df548e2ce037944d03f3e68682813b093763996d597cf890ca3d9037fd231eb4"},
    {"GET", "127.0.0.1:9000", "/bucket/models/a%20b%2Bc%3Dd%2525/~%C3%A9%281%29%27.tensors", "",
     "us-east-1", NULL, NULL, "8ba737ade8080906cff1675fc02f616dfb4e38364c59379bae800e057621abd7"},
    {"GET", amazon, "/a//../b/./c%2A%21.bin", "", "us-east-1", "x-amz-security-token",
     "FwoGZXIvYXdzEXAMPLE", "0ab2b0d15fa0ceebf91d9542414a7ac0e84bb031a7726d4afd7dfdeb6e21aa20"},
    {"GET", "examplebucket.s3.eu-central-1.amazonaws.com", "/",
     "continuation-token=1ueGcxLPRx1Tr%2FXYExHnhbYLgveDs2J%2Fwm36Hy4vbOwM%3D&encoding-type=url&"
     "list-type=2&max-keys=1000&prefix=models%2Fa%20b%2F",
     "eu-central-1", NULL, NULL,
     "532b1eef57c6450aafa1f4347ca67e41ad6b921402f6fc12073adbc44ff987e3"},
    {"POST", amazon, "/big.tensors", "uploads=", "us-east-1", NULL, NULL,
     "f8fdbba0cb9614f66a1710be33a362e7e3567f95afdaec0b7c6f5cc9067b86be"},
};

static char *sign(const struct vector *v, struct sl_sigv4_key *cache)
{
    const struct sl_sigv4_header headers[] = {
        {"x-amz-date", "20130524T000000Z"},
        {"x-amz-content-sha256", sl_sigv4_empty},
        {"host", v->host},
        {v->extra_name, v->extra_value},
    };
    const struct sl_sigv4_request request = {
        .method = v->method,
        .path = v->path,
        .query = v->query,
        .headers = headers,
        .header_count = v->extra_name ? 4 : 3,
        .payload = sl_sigv4_empty,
        .date = "20130524T000000Z",
        .region = v->region,
        .service = "s3",
    };
    struct sl_err err = SL_ERR_INIT;
    char *authorization = sl_sigv4_sign_cached(&request, access_key, secret_key, cache, &err);
    ck_assert_msg(authorization != NULL, "%s", err.message);
    return authorization;
}

static void expect(const struct vector *v, const char *authorization)
{
    const char *signature = strstr(authorization, ", Signature=");
    ck_assert_ptr_nonnull(signature);
    ck_assert_str_eq(signature + 12, v->signature);
}

SL_TEST_LOOP(every_vector_is_signed_as_others_sign_it, 0, SL_COUNT(vectors))
{
    sl_autofree char *authorization = sign(&vectors[_i], NULL);
    expect(&vectors[_i], authorization);
}

SL_TEST(the_header_names_key_scope_and_signed_headers)
{
    sl_autofree char *authorization = sign(&vectors[0], NULL);
    ck_assert_str_eq(
        authorization,
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

SL_TEST(a_kept_key_is_not_used_for_another_region_or_secret)
{
    struct sl_sigv4_key cache = {0};
    struct sl_err err = SL_ERR_INIT;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < SL_COUNT(vectors); i++) {
            sl_autofree char *authorization = sign(&vectors[i], &cache);
            expect(&vectors[i], authorization);
        }
    const struct sl_sigv4_request request = {
        "GET", "/", "", NULL, 0, sl_sigv4_empty, "20130524T000000Z", "us-east-1", "s3"};
    sl_autofree char *a = sl_sigv4_sign_cached(&request, "A", "one", &cache, &err);
    sl_autofree char *b = sl_sigv4_sign_cached(&request, "A", "two", &cache, &err);
    ck_assert_str_ne(a, b);
}

SL_TEST(queries_are_sorted_by_name_then_value_and_bare_names_get_a_value)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_sigv4_header headers[] = {{"b", "  two   words\t x "}, {"a", ""}};
    const struct sl_sigv4_request request = {
        "GET", "/x", "b=2&a&b=1&a-b=3&a=", headers, 2, "P", "20130524T000000Z", "r", "s3"};
    sl_autofree char *text = sl_sigv4_canonical(&request, &err);
    ck_assert_str_eq(text, "GET\n/x\na=&a=&a-b=3&b=1&b=2\na:\nb:two words x\n\na;b\nP");
}

SL_TEST(too_many_parameters_and_too_long_regions_are_refused)
{
    struct sl_err err = SL_ERR_INIT;
    char query[3 * SL_SIGV4_QUERY_MAX + 8] = "";
    for (int i = 0; i <= SL_SIGV4_QUERY_MAX; i++)
        memcpy(query + 2 * i, "a&", 3);
    struct sl_sigv4_request request = {
        "GET", "/", query, NULL, 0, sl_sigv4_empty, "20130524T000000Z", "r", "s3"};
    ck_assert_ptr_null(sl_sigv4_sign_cached(&request, "A", "B", NULL, &err));
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    char region[200];
    memset(region, 'x', sizeof(region) - 1);
    region[sizeof(region) - 1] = 0;
    request.query = "";
    request.region = region;
    ck_assert_ptr_null(sl_sigv4_sign_cached(&request, "A", "B", NULL, &err));
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

SL_TEST(every_failing_allocation_is_survived)
{
    const struct sl_sigv4_header header = {"host", "h"};
    const struct sl_sigv4_request request = {
        "GET", "/", "a=b", &header, 1, sl_sigv4_empty, "20130524T000000Z", "r", "s3"};
    for (unsigned nth = 1; nth < 50; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        sl_autofree char *text = sl_sigv4_sign_cached(&request, "A", "B", NULL, &err);
        sl_alloc_fail_at(0);
        if (text) {
            ck_assert_uint_gt(nth, 1);
            return;
        }
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
    ck_abort_msg("never succeeded");
}

SL_TEST(dates_are_those_of_utc)
{
    char text[SL_SIGV4_DATE];
    ck_assert_str_eq(sl_sigv4_date(1369353600, text), "20130524T000000Z");
    ck_assert_str_eq(sl_sigv4_date(1709210096, text), "20240229T123456Z");
    ck_assert_str_eq(sl_sigv4_date(INT64_MAX, text), "19700101T000000Z");
}
