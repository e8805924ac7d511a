/* Caches before every kind of store that has ranges over HTTP: what they are asked for, by which
 * name, and what becomes of links and tokens that expire on the way. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "cloud_case.h"
#include "fake_clock.h"
#include "hash.h"
#include "http_through.h"
#include "mirror_case.h"
#include "stores.h"
#include "tar_maker.h"

enum { CACHES = 2, BLOCK = 64 * 1024, HEAD = 1000, SOME = 4 * BLOCK };

static struct sl_server *caches[CACHES];
static char urls[CACHES][64];
static const char *names[CACHES] = {urls[0], urls[1]};
static struct sl_source_config *config;
static struct sl_store *store;
static struct sl_source *source;
static struct sl_err err;

/* ---- the stores ------------------------------------------------------------------------------ */

static void start_plain(void)
{
    cloud.api = sl_server_start();
    cloud.config = (struct sl_source_config){.attempts = 5, .stall_seconds = 20};
    sl_server_put(cloud.api, "/models/m.bin", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    fake_clock_run();
}

static void start_s3(void)
{
    start_plain();
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(cloud.api, ""), 1);
    setenv("AWS_ACCESS_KEY_ID", "k", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
}

/* Those of the cloud, and two more. */
static const struct {
    const char *uri;
    void (*start)(void);
} more[] = {{"s3://models/m.bin", start_s3}, {"http://127.0.0.1:%u/models/m.bin", start_plain}};
enum { ROWS = CLOUD_STORES + SL_COUNT(more) };

static const char *uri_of(int row)
{
    return row < CLOUD_STORES ? cloud_stores[row].uri : more[row - CLOUD_STORES].uri;
}

/* The blob, wherever a store's requests and links lead to; another object, if it is not the blob.
 */
static void put_in_cache(struct sl_server *cache, const uint8_t *data, int row)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    char hex[65], lfs[80];
    sl_digest_of(SL_HASH_SHA256, NULL, 0, sl_blob(), SL_BLOB_BYTES, digest, NULL);
    sl_hex(digest, 32, hex);
    snprintf(lfs, sizeof(lfs), "/lfs/%s", hex);
    const char *const paths[] = {"/m.bin", lfs, "/models/m.bin", "/sluicetest/models/m.bin",
                                 "/blob"};
    for (size_t i = 0; i < SL_COUNT(paths); i++)
        sl_server_put(cache, paths[i], data, SL_BLOB_BYTES, "\"v1\"");
    SL_SCRIPT(cache, {.headers = row < CLOUD_STORES ? cloud_stores[row].headers : NULL});
}

static void start_caches(int row)
{
    for (unsigned i = 0; i < CACHES; i++) {
        caches[i] = sl_server_start();
        put_in_cache(caches[i], sl_blob(), row);
        snprintf(urls[i], sizeof(urls[i]), "http://127.0.0.1:%u", sl_server_port(caches[i]));
    }
    config->through = (struct sl_through_options){names, CACHES, BLOCK, SL_UNVERIFIED_REFUSE};
}

static void begin(int row)
{
    if (row < CLOUD_STORES) {
        cloud_begin(row);
    } else {
        more[row - CLOUD_STORES].start();
        snprintf(cloud.uri, sizeof(cloud.uri), more[row - CLOUD_STORES].uri,
                 sl_server_port(cloud.api));
    }
    config = &cloud.config;
    start_caches(row);
}

static void open_at(const char *uri)
{
    sl_autofree char *key = NULL;
    ck_assert_msg(sl_store_open(uri, config, &store, &key, &err) == 0, "%s", err.message);
    ck_assert_msg(sl_source_open(store, key, HEAD, &source, &err) == 0, "%s", err.message);
}

static void close_source(void)
{
    sl_source_free(sl_steal(&source));
    sl_store_free(sl_steal(&store));
}

static void end(int row)
{
    close_source();
    for (unsigned i = 0; i < CACHES; i++)
        sl_server_stop(caches[i]);
    if (row < CLOUD_STORES)
        cloud_end(row);
    else
        sl_server_stop(cloud.api);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* As a load reads what is checked: 0 if it is right, 1 if not. again: it came wrong. */
static int read_some(uint64_t at, bool again)
{
    static uint8_t data[SOME];
    ck_assert_msg(sl_source_read_checked(source, at, data, SOME, again, &err) == 0, "%s",
                  err.message);
    return memcmp(data, sl_blob() + at, SOME) != 0;
}

static unsigned asked_of_caches(void)
{
    return sl_server_request_count(caches[0]) + sl_server_request_count(caches[1]);
}

static unsigned asked_of_origin(void)
{
    return sl_server_request_count(cloud.api) +
           (cloud.cdn ? sl_server_request_count(cloud.cdn) : 0);
}

static uint64_t failures(void)
{
    struct sl_through_state states[CACHES];
    ck_assert_uint_eq(sl_through_states(sl_store_through(store), states, CACHES), CACHES);
    return states[0].failures + states[1].failures;
}

/* The name that all requests of caches have from this one of each on. */
static void name_of(const unsigned from[CACHES], char name[80])
{
    char text[80];
    *name = 0;
    for (unsigned i = 0; i < CACHES; i++)
        for (unsigned k = from[i]; k < sl_server_request_count(caches[i]); k++) {
            const struct sl_server_request *request = sl_server_request_at(caches[i], k);
            ck_assert(sl_server_header(request, SL_HTTP_THROUGH_KEY, text, sizeof(text)));
            if (!*name)
                memcpy(name, text, sizeof(text));
            ck_assert_str_eq(name, text);
        }
    ck_assert_uint_eq(strlen(name), 64);
}

/* ---- every store ----------------------------------------------------------------------------- */

SL_TEST(every_store_that_has_ranges_over_http_is_here)
{
    const struct sl_store_kind *kind;
    for (size_t i = 0; (kind = sl_stores_at(i)); i++) {
        bool is_here = false;
        for (int row = 0; row < (int)ROWS; row++)
            is_here |= sl_stores_find(uri_of(row)) == kind;
        ck_assert_msg(is_here || !kind->transport->channel_exchange, "%s", kind->name);
    }
}

/* Each opening has links of its own, and tokens. */
SL_TEST_LOOP(blocks_come_from_caches_by_one_name_for_all_links, 0, ROWS)
{
    char first[80], second[80];
    begin(_i);
    open_at(cloud.uri);
    unsigned before = asked_of_origin();
    ck_assert_uint_eq(asked_of_caches(), 0);
    ck_assert_int_eq(read_some(BLOCK, false), 0);
    ck_assert_uint_eq(asked_of_origin(), before);
    ck_assert_uint_eq(asked_of_caches(), SOME / BLOCK);
    const unsigned none[CACHES] = {0}, from[CACHES] = {sl_server_request_count(caches[0]),
                                                       sl_server_request_count(caches[1])};
    name_of(none, first);
    close_source();
    open_at(cloud.uri);
    ck_assert_int_eq(read_some(BLOCK, false), 0);
    name_of(from, second);
    ck_assert_str_eq(first, second);
    end(_i);
}

SL_TEST_LOOP(what_a_cache_has_wrong_comes_from_the_store, 0, ROWS)
{
    static uint8_t wrong[SL_BLOB_BYTES];
    memcpy(wrong, sl_blob(), SL_BLOB_BYTES);
    for (size_t at = 0; at < SL_BLOB_BYTES; at += BLOCK / 2)
        wrong[at] ^= 1;
    begin(_i);
    put_in_cache(caches[0], wrong, _i);
    config->through.count = 1;
    open_at(cloud.uri);
    ck_assert_int_eq(read_some(BLOCK, false), 1);
    unsigned before = asked_of_caches();
    sl_source_doubt(source, BLOCK, BLOCK + SOME);
    ck_assert_int_eq(read_some(BLOCK, true), 0);
    sl_source_settle(source, BLOCK, BLOCK + SOME, true);
    ck_assert_int_eq(read_some(BLOCK, false), 0); /* who gave wrong ones is left */
    ck_assert_uint_eq(asked_of_caches(), before);
    end(_i);
}

/* A link, or a token, that has a number. */
static bool refuse_old(const struct sl_server_request *request, struct sl_server_reply *reply,
                       void *arg)
{
    const unsigned *oldest = arg;
    char text[256] = "";
    const char *query = strchr(request->target, '?');
    unsigned number = query ? (unsigned)strtoul(query + 1, NULL, 10) : 0;
    if (!query && sl_server_header(request, "Authorization", text, sizeof(text)))
        sscanf(text, "Bearer t%u", &number);
    if (number >= *oldest)
        return false;
    reply->status = query ? 403 : 401;
    return true;
}

/* What a cache passes on is not its own refusal: it is asked again, by another link. */
SL_TEST_LOOP(what_expires_in_mid_load_is_not_the_caches_fault, 0, CLOUD_STORES)
{
    static unsigned oldest;
    begin(_i);
    open_at(cloud.uri);
    cloud_stores[_i].expire(oldest = 2);
    for (unsigned i = 0; i < CACHES; i++)
        sl_server_handle(caches[i], refuse_old, &oldest);
    ck_assert_int_eq(read_some(BLOCK, false), 0);
    ck_assert_uint_eq(failures(), 0);
    ck_assert_uint_eq(asked_of_caches(), SOME / BLOCK + 1);
    end(_i);
}

/* One that refuses everything costs each block one question more, and no load. */
SL_TEST_LOOP(a_cache_that_always_refuses_is_passed_by, 0, ROWS)
{
    static const int statuses[] = {401, 403, 404, 410};
    for (size_t i = 0; i < SL_COUNT(statuses); i++) {
        begin(_i);
        open_at(cloud.uri);
        for (unsigned k = 0; k < CACHES; k++)
            SL_SCRIPT(caches[k], {.fault = SL_FAULT_STATUS, .status = statuses[i]});
        ck_assert_int_eq(read_some(BLOCK, false), 0);
        ck_assert_uint_ge(failures(), 1);
        ck_assert_uint_le(asked_of_caches(), CACHES * (SOME / BLOCK + 1));
        end(_i);
    }
}

/* ---- registries ------------------------------------------------------------------------------ */

static void begin_registry(void)
{
    mirror_case_begin();
    config = &mirrors.config;
    mirrors.options.mirrors.count = 0;
    start_caches(CLOUD_STORES);
    fake_clock_run();
}

static void end_registry(void)
{
    fake_clock_release();
    close_source();
    sl_server_stop(caches[0]);
    sl_server_stop(caches[1]);
    mirror_case_end();
}

static void put_blob_in_caches(const void *data, size_t bytes)
{
    for (unsigned i = 0; i < CACHES; i++)
        sl_server_put(caches[i], mirrors.blob, data, bytes, NULL);
}

/* [begin, end) as what a digest of the whole is compared with. */
static void must_read_whole(uint64_t begin, uint64_t end)
{
    sl_autofree uint8_t *data = malloc(end - begin);
    size_t used = 0, got;
    SL_AUTO(sl_fetch) fetch = sl_fetch_new(store, &err);
    sl_fetch_vouch(fetch, SL_VOUCH_WHOLE);
    ck_assert_int_eq(sl_fetch_start(fetch, source, begin, end, &err), 0);
    for (enum sl_io_state state = SL_IO_WAIT; state != SL_IO_END; used += got) {
        uint8_t beyond;
        bool full = used == end - begin;
        state = sl_fetch_read(fetch, full ? &beyond : data + used, full ? 1 : end - begin - used,
                              &got, &err);
        ck_assert_msg(state != SL_IO_FAILED, "%s", err.message);
        ck_assert_int_eq(sl_fetch_wait(fetch, state == SL_IO_WAIT, &err), 0);
    }
    ck_assert_mem_eq(data, sl_blob() + begin, end - begin);
}

/* _i: mirrors that have it; one breaks in the middle of the third block, the other lacks it. */
SL_TEST_LOOP(mirrors_come_before_caches, 0, 2)
{
    begin_registry();
    put_blob_in_caches(sl_blob(), SL_BLOB_BYTES);
    mirrors.options.mirrors.count = 2;
    open_at(mirrors.uri);
    if (_i) {
        SL_SCRIPT(mirrors.near, {.first = 1, .fault = SL_FAULT_SHORT, .after = 5 * BLOCK / 2},
                  {.first = 2, .last = 99, .fault = SL_FAULT_STATUS, .status = 500});
        SL_SCRIPT(mirrors.far, {.fault = SL_FAULT_STATUS, .status = 404});
    }
    unsigned before = sl_server_request_count(mirrors.registry);
    must_read_whole(BLOCK, 9 * BLOCK);
    ck_assert_uint_eq(asked_of_caches(), _i ? 6 : 0);
    ck_assert_uint_eq(sl_server_request_count(mirrors.registry), before);
    end_registry();
}

/* Else mirrors would be believed. */
SL_TEST(a_cache_that_fails_is_not_a_registry_that_cannot_be_reached)
{
    begin_registry();
    mirrors.options.mirrors.count = 2;
    mirrors.options.trust_mirrors = true;
    open_at(mirrors.uri);
    for (unsigned i = 0; i < CACHES; i++)
        SL_SCRIPT(caches[i], {.fault = SL_FAULT_STATUS, .status = 503});
    ck_assert_int_eq(read_some(BLOCK, false), 0);
    ck_assert_uint_ge(failures(), 2);
    ck_assert_uint_eq(mirror_case_blobs(mirrors.near) + mirror_case_blobs(mirrors.far), 0);
    end_registry();
}

/* A 200 with all of it: that is the cache's fault. */
SL_TEST(a_cache_that_knows_no_ranges_says_nothing_of_the_registry)
{
    begin_registry();
    put_blob_in_caches(sl_blob(), SL_BLOB_BYTES);
    open_at(mirrors.uri);
    for (unsigned i = 0; i < CACHES; i++)
        SL_SCRIPT(caches[i], {.whole = true});
    ck_assert_int_eq(read_some(BLOCK, false), 0);
    ck_assert(!sl_store_advice(store).in_order);
    ck_assert_uint_ge(failures(), 2);
    end_registry();
}

/* Two files of one layer, packed or not. */
static void publish_layer(bool packed)
{
    sl_autobuf tar = SL_BUF_INIT(4 * SL_BLOB_BYTES);
    size_t bytes;
    tar_entry(&tar, '0', "models/a.bin", NULL, sl_blob(), SL_BLOB_BYTES / 2);
    tar_entry(&tar, '0', "models/b.bin", NULL, sl_blob(), SL_BLOB_BYTES / 2);
    tar_end(&tar);
    sl_autofree uint8_t *gzip = tar_gzip(tar.data, tar.used, &bytes);
    if (packed)
        mirror_case_publish(gzip, bytes, "application/vnd.oci.image.layer.v1.tar+gzip", "");
    else
        mirror_case_publish(tar.data, tar.used, "application/vnd.oci.image.layer.v1.tar", "");
    put_blob_in_caches(packed ? (const char *)gzip : tar.data, packed ? bytes : tar.used);
}

static void open_file(const char *name)
{
    char uri[300];
    snprintf(uri, sizeof(uri), "oci://127.0.0.1:%u/org/m:v1/%s", sl_server_port(mirrors.registry),
             name);
    open_at(uri);
}

SL_TEST(files_of_one_layer_share_what_caches_have_of_it)
{
    char name[80];
    const unsigned none[CACHES] = {0};
    begin_registry();
    mirrors.options.check_layers_up_to = UINT64_MAX;
    publish_layer(false);
    for (unsigned i = 0; i < 2; i++) {
        open_file(i ? "b.bin" : "a.bin");
        unsigned before = asked_of_caches();
        ck_assert_int_eq(read_some(BLOCK, false), 0);
        ck_assert_uint_eq(asked_of_caches(), before + SOME / BLOCK + 1); /* blocks of the layer */
        close_source();
    }
    name_of(none, name);
    end_registry();
}

SL_TEST(a_packed_layer_is_read_past_caches)
{
    begin_registry();
    publish_layer(true);
    open_file("a.bin"); /* the layer comes through caches, to find its files */
    unsigned before = asked_of_caches();
    ck_assert_int_eq(read_some(BLOCK, false), 0);
    ck_assert_uint_eq(asked_of_caches(), before);
    ck_assert(sl_source_is_past_caches(source));
    end_registry();
}

static bool lead_to_far(const struct sl_server_request *request, struct sl_server_reply *reply,
                        void *arg)
{
    (void)arg;
    if (!strstr(request->target, "/blobs/"))
        return false;
    reply->status = 307;
    snprintf(reply->headers, sizeof(reply->headers), "Location: https://127.0.0.1:%u%s?sig=1\r\n",
             sl_server_port(mirrors.far), mirrors.blob);
    return true;
}

/* Of a public model its link tells nobody anything. _i: without a login, with one. */
SL_TEST_LOOP(links_of_whoever_logs_in_go_by_no_cache_without_tls, 0, 2)
{
    char path[] = "/tmp/sluice-login-XXXXXX";
    struct sl_tls_options tls = {.verify = true};
    begin_registry();
    sl_server_stop(mirrors.far);
    mirrors.far = sl_server_start_tls();
    sl_server_put(mirrors.far, mirrors.blob, sl_blob(), SL_BLOB_BYTES, "\"edge\"");
    sl_server_handle(mirrors.registry, lead_to_far, NULL);
    put_blob_in_caches(sl_blob(), SL_BLOB_BYTES);
    tls.ca_file = (char *)(uintptr_t)sl_server_ca(mirrors.far);
    config->tls = &tls;
    int fd = mkstemp(path);
    dprintf(fd, "{\"auths\": {\"127.0.0.1:%u\": {\"auth\": \"dTpw\"}}}",
            sl_server_port(mirrors.registry));
    mirrors.options.docker_config = _i ? path : NULL;
    open_at(mirrors.uri);
    ck_assert_int_eq(read_some(BLOCK, false), 0);
    ck_assert_uint_eq(asked_of_caches(), _i ? 0 : SOME / BLOCK);
    close(fd);
    unlink(path);
    end_registry();
}

SL_CASE(.prepare = cloud_prepare)
