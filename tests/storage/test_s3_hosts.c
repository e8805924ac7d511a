/* What the host of an endpoint tells of a store: the region of signatures, how long ranges are to
 * be.
 */
#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "s3_store.h"
#include "stores.h"

static struct sl_s3_options s3;
static struct sl_source_config config;
static struct sl_err err;

static void setup(void)
{
    clearenv();
    s3 = (struct sl_s3_options){.anonymous = true};
    config = (struct sl_source_config){.options = {{&sl_s3_table, &s3}}};
    err = (struct sl_err)SL_ERR_INIT;
}

static void expect_region(const char *url, const char *region)
{
    s3.endpoint = (char *)(uintptr_t)url;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_msg(sl_store_open("s3://models/m", &config, &store, &key, &err) == 0, "%s",
                  err.message);
    ck_assert_str_eq(((struct sl_s3 *)store->impl)->locked.region, region);
}

SL_TEST(stores_that_check_the_region_tell_it_by_their_hosts)
{
    expect_region("https://s3.us-west-004.backblazeb2.com", "us-west-004");
    expect_region("https://s3.eu-central-2.wasabisys.com", "eu-central-2");
    expect_region("https://storage.eu-north1.nebius.cloud:443", "eu-north1");
    expect_region("https://ns.compat.objectstorage.eu-zurich-1.oraclecloud.com", "eu-zurich-1");
    expect_region("https://a.r2.cloudflarestorage.com", "auto");
    expect_region("https://a.eu.r2.cloudflarestorage.com", "auto");
    expect_region("https://s3.wasabisys.com", "us-east-1");
    expect_region("https://models.s3.us-west-004.backblazeb2.com", "us-east-1");
    expect_region("https://s3.US_1.backblazeb2.com", "us-east-1");
    expect_region("https://s3.a.b.backblazeb2.com", "us-east-1");
    expect_region("https://s3.us-west-004.backblazeb2.com.evil.example", "us-east-1");
    expect_region("https://oss-cn-hangzhou.aliyuncs.com", "us-east-1");
    setenv("AWS_REGION", "named", 1);
    expect_region("https://s3.us-west-004.backblazeb2.com", "named");
}

SL_TEST(coreweaves_cache_gets_ranges_of_15_mb_and_more)
{
    static const struct {
        const char *endpoint;
        uint64_t bytes;
    } rows[] = {{"http://cwlota.com", 16 << 20},
                {"https://cwobject.com", 0},
                {"http://cwlota.com.example", 0},
                {NULL, 0}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        SL_AUTO(sl_store) store = NULL;
        sl_autofree char *key = NULL;
        s3.endpoint = (char *)(uintptr_t)rows[i].endpoint;
        ck_assert_int_eq(sl_store_open("s3://models/m", &config, &store, &key, &err), 0);
        ck_assert_uint_eq(sl_store_advice(store).range_bytes_min, rows[i].bytes);
        ck_assert(!sl_store_advice(store).prestage);
    }
}

SL_CASE(.setup = setup)
