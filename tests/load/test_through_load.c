/*
 * Whole loads through caches: whatever a cache does to the bytes, nothing wrong is published, and
 * whoever did it is named. One origin and up to three caches, all of them range servers with the
 * same objects.
 *
 * The clock runs by itself (fake_clock_run()): a cache counts as silent when nothing goes on, and
 * not when the machine is slow, so requests can be counted.
 */
#include <check.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "crc64.h"
#include "fake_clock.h"
#include "hash.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_blob.h"
#include "range_server.h"
#include "routes.h"
#include "run_sluice.h"
#include "scratch.h"
#include "sidecar.h"
#include "tree.h"

enum { CACHES = 3, BLOCK = 64 * 1024, BLOCKS = 24, BYTES = BLOCKS * BLOCK - 777, FILES = 4 };
enum { TEXT_BYTES = 8192, MANY = 1000000 };
/* What the planner reads of an object, and what may come with it. */
enum { HEAD = 5 * BLOCK };

/* How it is known that bytes are right. */
enum kind { WHOLE, RANGES, SUM, KINDS };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *origin, *caches[CACHES];
static uint8_t *data, *wrong; /* wrong: one bit in each block */
static char sum[512];         /* what the store says of its checksum */
static struct sl_err err;
static struct sl_load_result result;
static char *said;               /* by the last load */
static struct sl_cancel *cancel; /* of loads; NULL: none */

static bool answer_head(const struct sl_server_request *request, struct sl_server_reply *reply,
                        void *arg)
{
    (void)arg;
    if (strcmp(request->method, "HEAD") != 0)
        return false;
    reply->status = 200;
    snprintf(reply->headers, sizeof(reply->headers), "ETag: \"v1\"\r\n%s", sum);
    return true;
}

static void make_sum(void)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    char base64[64];
    sl_crc_digest(SL_HASH_CRC32C, sl_crc_of(SL_HASH_CRC32C, 0, data, BYTES), digest);
    EVP_EncodeBlock((unsigned char *)base64, digest, (int)sl_hash_bytes(SL_HASH_CRC32C));
    snprintf(sum, sizeof(sum), "x-amz-checksum-type: FULL_OBJECT\r\nx-amz-checksum-crc32c: %s\r\n",
             base64);
}

/* At the origin and in all caches. */
static void put(const char *name, const void *bytes, size_t count)
{
    sl_server_put(origin, name, bytes, count, "\"v1\"");
    for (unsigned i = 0; i < CACHES; i++)
        sl_server_put(caches[i], name, bytes, count, "\"v1\"");
}

static void digest_of(const uint8_t *of, size_t bytes, uint8_t digest[32])
{
    struct sl_sha256 *sha = sl_sha256_new(&err);
    sl_sha256_update(sha, of, bytes);
    sl_sha256_finish(sha, digest);
    sl_sha256_free(sha);
}

static void put_sidecar(const char *target, const char *name, const uint8_t *of, size_t bytes)
{
    char beside[128];
    sl_autobuf text = SL_BUF_INIT(1024 * 1024);
    struct sl_sidecar *sidecar = sl_sidecar_new(name, bytes, BLOCK, &err);
    for (size_t i = 0; i < sidecar->range_count; i++) {
        size_t begin = i * BLOCK, end = (size_t)sl_sidecar_range_end(sidecar, i);
        sidecar->ranges[i].crc32c = sl_crc32c(0, of + begin, end - begin);
        digest_of(of + begin, end - begin, sidecar->ranges[i].sha256);
    }
    sl_sidecar_tree(sidecar, sidecar->tree);
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    sl_sidecar_free(sidecar);
    snprintf(beside, sizeof(beside), "%s.sluice.json", target);
    sl_server_put(origin, beside, text.data, text.used, "\"s\"");
}

/* A copy with one bit wrong in each block; free() it. */
static uint8_t *spoil(const uint8_t *of, size_t bytes)
{
    uint8_t *copy = malloc(bytes);
    memcpy(copy, of, bytes);
    for (size_t at = BLOCK / 3; at < bytes; at += BLOCK)
        copy[at] ^= 4;
    return copy;
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    origin = sl_server_start();
    for (unsigned i = 0; i < CACHES; i++)
        caches[i] = sl_server_start();
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(origin, ""), 1);
    setenv("AWS_ACCESS_KEY_ID", "k", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    data = sl_model_noise(BYTES, 11);
    wrong = spoil(data, BYTES);
    make_sum();
    put("/bucket/m.bin", data, BYTES);
    put_sidecar("/bucket/m.bin", "m.bin", data, BYTES);
    sl_server_handle(origin, answer_head, NULL);
}

static void teardown(void)
{
    sl_server_stop(origin);
    for (unsigned i = 0; i < CACHES; i++)
        sl_server_stop(caches[i]);
    sl_scratch_close(scratch_fd, scratch);
    free(sl_steal(&said));
    free(data);
    free(wrong);
}

static void begin_anew(void)
{
    sl_scratch_close(scratch_fd, scratch);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
}

/* ---- one load -------------------------------------------------------------------------------- */

/* Its result, and in `said` what it warned of. */
static int run_spec(const struct sl_spec *spec)
{
    char name[] = "/tmp/sluice-said-XXXXXX";
    int fd = mkstemp(name), before = dup(STDERR_FILENO);
    ck_assert(fd >= 0 && before >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    sl_log_setup(SL_LOG_WARN, false);
    fake_clock_run();
    err = (struct sl_err)SL_ERR_INIT;
    int done = sl_load_run(spec, cancel, NULL, &result, &err);
    fake_clock_release();
    dup2(before, STDERR_FILENO);
    struct sl_err why = SL_ERR_INIT;
    sl_autobuf text = SL_BUF_INIT(1024 * 1024);
    ck_assert_int_eq(sl_buf_read_file(&text, name, &why), 0);
    close(fd);
    close(before);
    unlink(name);
    free(said);
    said = sl_strdup(sl_buf_string(&text), NULL);
    return done;
}

/* count: of the caches; how: more keys of `through`; more: of the spec. */
static void make_spec(struct sl_specs *specs, const char *uri, unsigned count, const char *how,
                      const char *more)
{
    char text[TEXT_BYTES], names[256] = "";
    for (unsigned i = 0; i < count; i++)
        snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s\"%s\"", i ? ", " : "",
                 sl_server_url(caches[i], ""));
    snprintf(text, sizeof(text),
             "source: {uri: \"%s\", through: {caches: [%s], blockBytes: 64Ki%s}}\n%s", uri, names,
             how, more);
    sl_model_spec(specs, "", path, text);
}

static int load(const char *uri, unsigned count, const char *how, const char *more)
{
    struct sl_specs specs;
    make_spec(&specs, uri, count, how, more);
    int done = run_spec(&specs.items[0]);
    sl_specs_release(&specs);
    return done;
}

static const char *uri_of(enum kind kind)
{
    return kind == SUM ? "s3://bucket/m.bin" : sl_server_url(origin, "/bucket/m.bin");
}

static const char *check_of(enum kind kind)
{
    static char text[256];
    uint8_t digest[32];
    char hex[65];
    if (kind == RANGES)
        return "verify: {sidecar: require}\n";
    if (kind == SUM)
        return "verify: {hashes: require}\n";
    digest_of(data, BYTES, digest);
    sl_hex(digest, sizeof(digest), hex);
    snprintf(text, sizeof(text), "verify: {sha256: {m.bin: %s}}\n", hex);
    return text;
}

static void must_load_kind(enum kind kind, unsigned count)
{
    ck_assert_msg(load(uri_of(kind), count, "", check_of(kind)) == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_msg(sl_publish_verify(path, NULL, NULL, NULL, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(result.unhashed, 0);
}

static bool range_of(const struct sl_server_request *request, uint64_t *begin)
{
    char text[128];
    return sl_server_header(request, "Range", text, sizeof(text)) &&
           sscanf(text, "bytes=%" SCNu64 "-", begin) == 1;
}

/* How many ranges of an object beyond what the planner reads were asked for there, from request
 * `first` on. */
static unsigned ranges_at(struct sl_server *server, unsigned first)
{
    unsigned count = 0;
    uint64_t begin;
    for (unsigned i = first; i < sl_server_request_count(server); i++)
        count += range_of(sl_server_request_at(server, i), &begin) && begin >= HEAD;
    return count;
}

static unsigned ranges_at_caches(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < CACHES; i++)
        count += ranges_at(caches[i], 0);
    return count;
}

static unsigned asked_of_caches(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < CACHES; i++)
        count += sl_server_request_count(caches[i]);
    return count;
}

/* Was it said that this cache gave wrong bytes? */
static bool is_named(unsigned cache)
{
    char words[128];
    snprintf(words, sizeof(words), "the cache '%s' gave bytes that are wrong",
             sl_server_url(caches[cache], ""));
    return strstr(said, words) != NULL;
}

/* ---- good caches ----------------------------------------------------------------------------- */

/* _i: the kind of the check, with one cache or three. */
SL_TEST_LOOP(blocks_come_from_caches_alone, 0, 2 * KINDS)
{
    must_load_kind(_i / 2, _i % 2 ? CACHES : 1);
    ck_assert_uint_eq(ranges_at(origin, 0), 0);
    ck_assert_uint_eq(ranges_at_caches(), BLOCKS - HEAD / BLOCK);
    ck_assert_str_eq(said, "");
    if (_i % 2)
        for (unsigned i = 0; i < CACHES; i++)
            ck_assert_uint_gt(sl_server_request_count(caches[i]), 0);
}

/* A load through one cache that ends when half of its blocks have come; returns how many blocks
 * those are. serve: has the cache serve wrong bytes meanwhile; NULL: right ones. */
static unsigned break_off(const char *uri, const char *check, void (*serve)(bool wrong))
{
    char more[1024];
    snprintf(more, sizeof(more), "%sreaders: {connections: 1, attempts: 1}\n", check);
    ck_assert_msg(load(uri, 1, "", more) == 0, "%s", err.message);
    unsigned asked = sl_server_request_count(origin), half = sl_server_request_count(caches[0]) / 2;
    begin_anew();
    if (serve)
        serve(true);
    SL_SCRIPT(caches[0], {.first = sl_server_request_count(caches[0]) + half + 1,
                          .last = MANY,
                          .fault = SL_FAULT_STATUS,
                          .status = 503});
    SL_SCRIPT(origin, {.first = 2 * asked + 1,
                       .last = MANY,
                       .fault = SL_FAULT_STATUS,
                       .status = 404,
                       .unhandled = true});
    ck_assert_int_eq(load(uri, 1, "", more), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
    sl_server_script(caches[0], NULL, 0);
    sl_server_script(origin, NULL, 0);
    if (serve)
        serve(false);
    return half;
}

SL_TEST_LOOP(a_load_that_was_broken_off_goes_on_through_caches, 0, KINDS)
{
    unsigned half = break_off(uri_of(_i), check_of(_i), NULL);
    unsigned before = sl_server_request_count(origin), asked = sl_server_request_count(caches[0]);
    must_load_kind(_i, 1);
    ck_assert_uint_ge(result.resumed, half * BLOCK);
    ck_assert_uint_eq(ranges_at(origin, before), 0);
    ck_assert_uint_le(sl_server_request_count(caches[0]) - asked, half + 2);
    ck_assert_uint_gt(sl_server_request_count(caches[0]), asked);
}

/* ---- bad ones -------------------------------------------------------------------------------- */

/* As few as there are: each block once more, and each object once more as a whole. */
enum { AGAIN_MOST = 2 * BLOCKS };

/* _i: the kind of the check, with one cache or three, the second of which is bad. */
SL_TEST_LOOP(a_cache_that_flips_bits_is_named_and_does_no_harm, 0, 2 * KINDS)
{
    unsigned count = _i % 2 ? CACHES : 1, bad = _i % 2;
    enum kind kind = _i / 2;
    sl_server_put(caches[bad], "/bucket/m.bin", wrong, BYTES, "\"v1\"");
    must_load_kind(kind, count);
    ck_assert_msg(is_named(bad), "%s", said);
    ck_assert_uint_gt(sl_server_request_count(caches[bad]), 0);
    ck_assert_uint_le(ranges_at(origin, 0), AGAIN_MOST);
    for (unsigned i = 0; i < count && kind == RANGES; i++)
        ck_assert_msg(i == bad || !is_named(i), "%s", said);
}

static void serve_one(bool spoilt)
{
    sl_server_put(caches[0], "/bucket/m.bin", spoilt ? wrong : data, BYTES, "\"v1\"");
}

/* Wrong blocks are kept by a load that ends before anybody finds them. */
SL_TEST_LOOP(what_a_bad_cache_left_behind_is_found_later, 0, KINDS)
{
    break_off(uri_of(_i), check_of(_i), serve_one);
    unsigned before = sl_server_request_count(origin);
    must_load_kind(_i, 1);
    ck_assert_uint_le(ranges_at(origin, before), AGAIN_MOST);
}

SL_TEST_LOOP(wrong_bytes_everywhere_are_refused, 0, KINDS)
{
    put("/bucket/m.bin", wrong, BYTES);
    ck_assert_int_eq(load(uri_of(_i), CACHES, "", check_of(_i)), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_msg(strncmp(err.code, "E_HASH_", 7) == 0, "%s", err.message);
    ck_assert(!sl_model_exists(path, ".sluice/ready") && !sl_model_exists(path, "m.bin"));
}

/* ---- what a liar costs ----------------------------------------------------------------------- */

/* Ways not to give what the origin has; a_failure_has_its_kind() has those of a cache that stalls.
 */
static const struct lie {
    struct sl_step step; /* what else becomes of its answers */
    const char *etag;
    bool flips, other; /* one bit of each block, or all of them */
    unsigned cost;     /* ranges that it may have fetched again */
} lies[] = {
    {.etag = "\"v1\"", .flips = true, .cost = 1},
    {.etag = "\"v1\"", .other = true, .cost = 1},
    {.etag = "\"v0\"", .other = true},
    {.etag = "\"v1\"", .step = {.fault = SL_FAULT_RESET, .after = BLOCK / 2}},
    {.etag = "\"v1\"",
     .step = {.fault = SL_FAULT_RESET, .after = BLOCK / 2},
     .flips = true,
     .cost = 1},
};

static void let_lie(struct sl_server *cache, const struct lie *lie)
{
    struct sl_step step = lie->step;
    sl_autofree uint8_t *other = sl_model_noise(BYTES, 12);
    const uint8_t *bytes = lie->other ? other : data;
    sl_server_put(cache, "/bucket/m.bin", lie->flips ? wrong : bytes, BYTES, lie->etag);
    step.first = 1;
    step.last = MANY;
    if (step.fault)
        sl_server_script(cache, &step, 1);
}

static unsigned count_said(const char *words)
{
    unsigned count = 0;
    for (const char *at = said; (at = strstr(at, words)); at += strlen(words))
        count++;
    return count;
}

static unsigned fetched_again(void)
{
    return count_said("fetching them again") + count_said("fetching that range again");
}

static void must_name(unsigned cache, const struct lie *lie)
{
    char words[128];
    snprintf(words, sizeof(words), "the cache '%s' ", sl_server_url(caches[cache], ""));
    ck_assert_msg(lie->cost ? is_named(cache) : strstr(said, words) && !is_named(cache), "%s",
                  said);
}

/* _i: the lie; how many of three caches tell it; over how many connections. */
SL_TEST_LOOP(a_liar_costs_one_range, 0, SL_COUNT(lies) * CACHES * 4)
{
    static const unsigned counts[] = {1, 2, 8, 32};
    const struct lie *lie = &lies[_i / 4 / CACHES];
    unsigned liars = _i / 4 % CACHES + 1, connections = counts[_i % 4];
    char more[128];
    snprintf(more, sizeof(more), "%sreaders: {connections: %u}\n", check_of(RANGES), connections);
    for (unsigned i = 0; i < liars; i++)
        let_lie(caches[i], lie);
    ck_assert_msg(load(uri_of(RANGES), CACHES, "", more) == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_msg(fetched_again() <= liars * lie->cost, "%u liars, %u again:\n%s", liars,
                  fetched_again(), said);
    for (unsigned i = 0; i < liars; i++)
        must_name(i, lie);
    for (unsigned i = liars; i < CACHES && !lie->step.fault; i++)
        ck_assert_msg(!is_named(i), "%s", said);
}

/* ---- who gave what --------------------------------------------------------------------------- */

static const struct sl_supplier *place_of(const char *name)
{
    for (size_t i = 0; i < result.place_count; i++)
        if (strcmp(result.places[i].name, name) == 0)
            return &result.places[i];
    return NULL;
}

static const struct sl_supplier *place_of_cache(unsigned cache)
{
    return place_of(sl_server_url(caches[cache], ""));
}

/* Every byte that came is somebody's, and once. */
static void must_add_up(void)
{
    uint64_t bytes = 0, cached = 0;
    for (size_t i = 0; i < result.place_count; i++) {
        bytes += result.places[i].bytes;
        cached += result.places[i].kind == SL_SUPPLIER_CACHE ? result.places[i].bytes : 0;
    }
    ck_assert_uint_eq(bytes, result.fetched);
    ck_assert_uint_eq(cached, result.cached);
}

static const char *summary_of(void)
{
    static char text[512];
    return sl_load_summary(&result, text);
}

SL_TEST_LOOP(each_place_has_what_it_gave, 0, KINDS)
{
    must_load_kind(_i, CACHES);
    must_add_up();
    ck_assert_uint_eq(result.place_count, CACHES + 1);
    for (unsigned i = 0; i < CACHES; i++) {
        ck_assert_uint_eq(place_of_cache(i)->ranges, sl_server_request_count(caches[i]));
        ck_assert_uint_eq(sl_supplier_failures(place_of_cache(i)), 0);
    }
    ck_assert_msg(strstr(summary_of(), " % from 3 caches"), "%s", summary_of());
    ck_assert_ptr_null(strstr(summary_of(), "left"));
}

SL_TEST_LOOP(wrong_bytes_are_their_givers, 0, KINDS)
{
    char words[128];
    sl_server_put(caches[1], "/bucket/m.bin", wrong, BYTES, "\"v1\"");
    must_load_kind(_i, CACHES);
    must_add_up();
    ck_assert_uint_gt(place_of_cache(1)->wrong, 0);
    snprintf(words, sizeof(words), "%s was left: wrong bytes", sl_server_url(caches[1], ""));
    ck_assert_msg(_i != RANGES || strstr(summary_of(), words), "%s", summary_of());
    ck_assert_msg(strstr(summary_of(), " was left: wrong bytes"), "%s", summary_of());
}

/* What a cache does, and what it is counted as. */
static const struct {
    struct sl_step step;
    enum sl_supplier_failure failure;
} failing[] = {
    {{.fault = SL_FAULT_STATUS, .status = 503}, SL_SUPPLIER_BUSY},
    {{.fault = SL_FAULT_STATUS, .status = 429}, SL_SUPPLIER_BUSY},
    {{.fault = SL_FAULT_STATUS, .status = 403}, SL_SUPPLIER_REFUSED},
    {{.fault = SL_FAULT_CHANGED}, SL_SUPPLIER_VERSION},
    {{.fault = SL_FAULT_WRONG_ETAG}, SL_SUPPLIER_VERSION},
    {{.fault = SL_FAULT_RESET, .after = 1000}, SL_SUPPLIER_BROKEN},
    {{.fault = SL_FAULT_STALL, .after = -1}, SL_SUPPLIER_SILENT},
    {{.fault = SL_FAULT_WRONG_RANGE}, SL_SUPPLIER_OTHER},
};

SL_TEST_LOOP(a_failure_has_its_kind, 0, SL_COUNT(failing))
{
    struct sl_step step = failing[_i].step;
    step.first = 1;
    step.last = MANY;
    sl_server_script(caches[0], &step, 1);
    must_load_kind(RANGES, 2);
    must_add_up();
    const struct sl_supplier *place = place_of_cache(0);
    ck_assert_ptr_nonnull(place);
    ck_assert_uint_gt(place->failures[failing[_i].failure], 0);
    ck_assert_uint_eq(sl_supplier_failures(place), place->failures[failing[_i].failure]);
    ck_assert_uint_eq(place->ranges, 0);
    ck_assert_uint_eq(sl_supplier_failures(place_of("origin")), 0);
    ck_assert_msg(strstr(summary_of(), sl_server_url(caches[0], "")), "%s", summary_of());
}

SL_TEST(a_place_without_caches_is_the_origin)
{
    ck_assert_int_eq(load(uri_of(WHOLE), 0, "", check_of(WHOLE)), 0);
    must_add_up();
    ck_assert_uint_eq(result.place_count, 1);
    ck_assert_str_eq(result.places[0].name, "origin");
    ck_assert_ptr_null(strstr(summary_of(), "cache"));
}

/* ---- what a plan says of them ------------------------------------------------------------------
 */

static struct sl_routes planned;

static void plan(const char *uri, unsigned count, const char *how, const char *more)
{
    struct sl_specs specs;
    struct sl_source_config config;
    SL_AUTO(sl_plan) made = NULL;
    make_spec(&specs, uri, count, how, more);
    const struct sl_plan_output output = sl_plan_output_of_spec(&specs.items[0]);
    sl_spec_source_config(&specs.items[0], NULL, NULL, &config);
    ck_assert_msg(sl_plan_make(&specs.items[0], &output, &config, &made, &err) == 0, "%s",
                  err.message);
    ck_assert_int_eq(sl_plan_routes(made, &planned, &err), 0);
    sl_plan_free(sl_steal(&made));
    sl_specs_release(&specs);
}

/* Each cache gives what the plan said, to a byte and a block, and the rest comes past them. */
SL_TEST_LOOP(a_plan_says_what_a_load_asks_of_each_cache, 0, KINDS)
{
    plan(uri_of(_i), CACHES, "", check_of(_i));
    ck_assert_uint_eq(planned.count, CACHES);
    must_load_kind(_i, CACHES);
    for (unsigned i = 0; i < CACHES; i++) {
        ck_assert_str_eq(planned.caches[i].name, sl_server_url(caches[i], ""));
        ck_assert_uint_eq(planned.caches[i].bytes, place_of_cache(i)->bytes);
        ck_assert_uint_eq(planned.caches[i].blocks, place_of_cache(i)->ranges);
    }
    ck_assert_uint_eq(planned.cached, result.cached);
    for (unsigned i = 0; i < SL_PAST_COUNT; i++)
        ck_assert_uint_eq(planned.past[i], 0);
    sl_routes_release(&planned);
}

SL_TEST(a_plan_without_caches_has_no_routes)
{
    plan(uri_of(WHOLE), 0, "", check_of(WHOLE));
    ck_assert_uint_eq(planned.count + planned.cached, 0);
    sl_routes_release(&planned);
}

static void must_be_past(enum sl_past why)
{
    ck_assert_msg(planned.cached == 0, "%s: %" PRIu64 " bytes", sl_past_name(why), planned.cached);
    for (unsigned i = 0; i < SL_PAST_COUNT; i++)
        ck_assert_msg((planned.past[i] > 0) == (i == why), "%s: %" PRIu64 " bytes", sl_past_name(i),
                      planned.past[i]);
    sl_routes_release(&planned);
}

SL_TEST(a_plan_says_why_bytes_do_not_come_by_caches)
{
    char whole[256];
    snprintf(whole, sizeof(whole), "%s", check_of(WHOLE));
    plan(uri_of(WHOLE), 1, ", unverified: direct", "");
    must_be_past(SL_PAST_UNCHECKED);
    sl_server_put(origin, "/bucket/m.bin", data, BYTES, "W/\"v1\"");
    plan(uri_of(WHOLE), 1, "", whole);
    must_be_past(SL_PAST_UNVERSIONED);
}

/* A token goes to a store with TLS, and so to caches with TLS alone. */
SL_TEST(a_plan_says_that_tokens_are_not_for_caches)
{
    char how[SL_SCRATCH_PATH_BYTES * 2 + 256], more[256], uri[128];
    struct sl_server *hidden = sl_server_start_tls();
    sl_server_put(hidden, "/m.bin", data, BYTES, "\"v1\"");
    ck_assert_int_eq(sl_tree_write(scratch_fd, "token", "t", 1, &err), 0);
    snprintf(uri, sizeof(uri), "%s", sl_server_url(hidden, "/m.bin"));
    snprintf(more, sizeof(more), "%s", check_of(WHOLE));
    snprintf(how, sizeof(how), "}, tls: {caFile: \"%s\"}, http: {bearerTokenFile: \"%s/token\"",
             sl_server_ca(hidden), scratch);
    plan(uri, 1, how, more);
    must_be_past(SL_PAST_HIDDEN);
    sl_server_stop(hidden);
}

/* ---- what nothing checks --------------------------------------------------------------------- */

SL_TEST_LOOP(what_nothing_checks_is_refused, 0, 2)
{
    ck_assert_int_eq(load(uri_of(WHOLE), CACHES, _i ? ", unverified: refuse" : "", ""), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, "source.through: ") &&
                      strstr(err.message, " bytes of 'm.bin' have no hash") &&
                      strstr(err.message, "source.through.unverified"),
                  "%s", err.message);
    ck_assert(!sl_model_exists(path, ".sluice/ready") && !sl_model_exists(path, "m.bin"));
    ck_assert_uint_eq(asked_of_caches(), 0);
    ck_assert_uint_eq(ranges_at(origin, 0), 0);
}

SL_TEST(what_nothing_checks_comes_with_a_warning_where_the_spec_says_so)
{
    ck_assert_msg(load(uri_of(WHOLE), CACHES, ", unverified: warn", "") == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_msg(strstr(said, " bytes of 'm.bin' come through caches and have no hash"), "%s",
                  said);
    ck_assert_uint_eq(ranges_at_caches(), BLOCKS - HEAD / BLOCK);
}

/* Samples are taken anywhere, and what is there is of the same version all the same. */
SL_TEST(what_came_with_samples_is_not_loaded_again)
{
    ck_assert_msg(load(uri_of(WHOLE), CACHES, ", unverified: warn", "") == 0, "%s", err.message);
    ck_assert(!result.already);
    unsigned before = asked_of_caches();
    ck_assert_msg(load(uri_of(WHOLE), CACHES, ", unverified: warn", "") == 0, "%s", err.message);
    ck_assert(result.already);
    ck_assert_uint_eq(asked_of_caches(), before);
}

/* They are of what the source has now, and so tell of no version, though they may be all of it. */
SL_TEST(what_has_no_version_is_loaded_again_whatever_its_samples_cover)
{
    const char *uri = sl_server_url(origin, "/bucket/small.bin");
    for (unsigned i = 0; i < 2; i++) {
        sl_server_put(origin, "/bucket/small.bin", data + i, BLOCK / 2, "W/\"same\"");
        ck_assert_msg(load(uri, 1, ", unverified: warn", "") == 0, "%s", err.message);
        ck_assert(!result.already);
        ck_assert_uint_eq(result.unversioned, 1);
        ck_assert(sl_model_same(path, "small.bin", data + i, BLOCK / 2));
    }
}

/* Samples are compared: it gives other bytes in each block. */
SL_TEST(what_nothing_checks_is_not_of_a_cache_that_gives_something_else)
{
    sl_server_put(caches[0], "/bucket/m.bin", wrong, BYTES, "\"v1\"");
    ck_assert_msg(load(uri_of(WHOLE), 1, ", unverified: warn", "") == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_msg(strstr(said, "gave bytes that are wrong"), "%s", said);
}

SL_TEST(what_nothing_checks_comes_directly_where_the_spec_says_so)
{
    sl_server_put(caches[0], "/bucket/m.bin", wrong, BYTES, "\"v1\"");
    ck_assert_msg(load(uri_of(WHOLE), 1, ", unverified: direct", "") == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_uint_eq(asked_of_caches(), 0);
    ck_assert_str_eq(said, "");
}

/* What is checked goes through caches, whatever becomes of what is not. */
SL_TEST_LOOP(what_is_checked_is_not_what_nothing_checks, 0, 3)
{
    static const char *const how[] = {", unverified: refuse", ", unverified: warn",
                                      ", unverified: direct"};
    ck_assert_msg(load(uri_of(RANGES), CACHES, how[_i], check_of(RANGES)) == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_uint_eq(ranges_at_caches(), BLOCKS - HEAD / BLOCK);
    ck_assert_str_eq(said, "");
}

/* ---- several files --------------------------------------------------------------------------- */

static size_t bytes_of(unsigned file)
{
    return file ? (file + 6) * (size_t)BLOCK + 99 : 2000;
}

static bool answer_listing(const struct sl_server_request *request, struct sl_server_reply *reply,
                           void *arg)
{
    (void)arg;
    if (!strstr(request->target, "list-type=2"))
        return false;
    sl_autobuf text = SL_BUF_INIT(65536);
    sl_buf_text(&text, "<ListBucketResult><IsTruncated>false</IsTruncated>", NULL);
    for (unsigned i = 0; i < FILES; i++)
        sl_buf_printf(&text, NULL,
                      "<Contents><Key>d/f%u</Key><Size>%zu</Size><ETag>&quot;v1&quot;</ETag>"
                      "</Contents>",
                      i, bytes_of(i));
    sl_buf_text(&text, "</ListBucketResult>", NULL);
    reply->status = 200;
    reply->body_bytes = text.used;
    reply->body = sl_buf_steal(&text, NULL);
    return true;
}

static const char *name_of(unsigned file)
{
    static char name[16];
    snprintf(name, sizeof(name), "f%u", file);
    return name;
}

static void serve_files(struct sl_server *server, bool spoilt)
{
    char target[64];
    for (unsigned i = 0; i < FILES; i++) {
        sl_autofree uint8_t *copy = spoil(data + i, bytes_of(i));
        snprintf(target, sizeof(target), "/bucket/d/%s", name_of(i));
        sl_server_put(server, target, spoilt ? copy : data + i, bytes_of(i), "\"v1\"");
    }
}

static void serve_all(bool spoilt)
{
    serve_files(caches[0], spoilt);
}

/* Of the listing; returns what they are checked by. */
static const char *put_files(void)
{
    static char more[1024];
    uint8_t digest[32];
    char hex[65];
    size_t used = (size_t)snprintf(more, sizeof(more), "verify: {sha256: {");
    serve_files(origin, false);
    for (unsigned i = 0; i < CACHES; i++)
        serve_files(caches[i], false);
    for (unsigned i = 0; i < FILES; i++) {
        digest_of(data + i, bytes_of(i), digest);
        sl_hex(digest, sizeof(digest), hex);
        used += (size_t)snprintf(more + used, sizeof(more) - used, "%s%s: %s", i ? ", " : "",
                                 name_of(i), hex);
    }
    snprintf(more + used, sizeof(more) - used, "}}\n");
    sl_server_handle(origin, answer_listing, NULL);
    return more;
}

static void must_load_files(unsigned count, const char *more)
{
    ck_assert_msg(load("s3://bucket/d/", count, "", more) == 0, "%s\n%s", err.message, said);
    ck_assert_uint_eq(result.files, FILES);
    for (unsigned i = 0; i < FILES; i++)
        ck_assert(sl_model_same(path, name_of(i), data + i, bytes_of(i)));
    ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, &err), 0);
}

/* _i: good ones; one of three is bad. */
SL_TEST_LOOP(several_files_come_through_caches, 0, 2)
{
    const char *more = put_files();
    serve_files(caches[2], _i);
    must_load_files(CACHES, more);
    ck_assert_uint_gt(asked_of_caches(), 0);
    ck_assert_msg(is_named(2) == (_i == 1), "%s", said);
    ck_assert_uint_le(ranges_at(origin, 0), _i ? FILES * AGAIN_MOST : 0);
}

/* _i: a good cache, one that was bad. */
SL_TEST_LOOP(several_files_go_on_where_they_were, 0, 2)
{
    const char *more = put_files();
    break_off("s3://bucket/d/", more, _i ? serve_all : NULL);
    must_load_files(1, more);
    if (!_i)
        ck_assert_uint_gt(result.resumed, 0);
}

static unsigned asked_for(struct sl_server *server, const char *target)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sl_server_request_count(server); i++)
        count += strcmp(sl_server_request_at(server, i)->target, target) == 0;
    return count;
}

/* Of each file one block beyond what the planner reads, spoilt; then nobody answers. */
static void leave_wrong_blocks(const char *checks)
{
    static char paths[FILES][64];
    struct sl_step steps[FILES];
    char more[1200];
    snprintf(more, sizeof(more), "%sreaders: {connections: %d, attempts: 1}\n", checks, FILES);
    ck_assert_int_eq(load("s3://bucket/d/", 1, "", more), 0);
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(paths[i], sizeof(paths[i]), "/bucket/d/%s", name_of(i));
        steps[i] = (struct sl_step){.path = paths[i],
                                    .first = asked_for(caches[0], paths[i]) + 2,
                                    .last = MANY,
                                    .fault = SL_FAULT_STATUS,
                                    .status = 503};
    }
    unsigned asked = sl_server_request_count(origin);
    begin_anew();
    serve_all(true);
    sl_server_script(caches[0], steps, FILES);
    SL_SCRIPT(origin, {.first = 2 * asked + 1,
                       .last = MANY,
                       .fault = SL_FAULT_STATUS,
                       .status = 404,
                       .unhandled = true});
    ck_assert_int_eq(load("s3://bucket/d/", 1, "", more), -1);
    sl_server_script(origin, NULL, 0);
}

/* The next load asks no cache, so none can be blamed: each file that is wrong would end it. */
SL_TEST(what_a_bad_cache_left_in_several_files_is_read_again_by_one_load)
{
    const char *more = put_files();
    leave_wrong_blocks(more);
    must_load_files(0, more);
}

/* ---- tensors --------------------------------------------------------------------------------- */

enum { ITEMS = 3 * BLOCK / 4, TENSOR_BYTES = 4 * ITEMS };
enum { HEADERS = 3 }; /* of tensors in a .tensors file, which the planner reads beyond HEAD */

/* As sl_model_safetensors(), with a header of one block: so the ranges of a sidecar end where
 * tensors do. */
static uint8_t *make_model(size_t *bytes)
{
    size_t found;
    sl_autofree uint8_t *model = sl_model_safetensors("a0,b0,a1,b1", ITEMS, &found);
    uint64_t header;
    memcpy(&header, model, 8);
    size_t begin = 8 + (size_t)header;
    *bytes = BLOCK + found - begin;
    uint8_t *padded = malloc(*bytes);
    memset(padded, ' ', BLOCK);
    memcpy(padded + 8, model + 8, (size_t)header);
    header = BLOCK - 8;
    memcpy(padded, &header, 8);
    memcpy(padded + BLOCK, model + begin, found - begin);
    return padded;
}

/* So many of the tensors of make_model() were loaded, each with its bytes. */
static void must_have_tensors(const uint8_t *model, size_t bytes, size_t count)
{
    static const char *const names[] = {"a0", "b0", "a1", "b1"};
    size_t found_bytes;
    sl_autofree uint8_t *found = sl_model_read(path, "model.safetensors", &found_bytes);
    ck_assert_ptr_nonnull(found);
    json_t *manifest = sl_model_manifest(path);
    json_t *tensors = json_object_get(manifest, "tensors");
    ck_assert_uint_eq(json_array_size(tensors), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *tensor = json_array_get(tensors, i);
        size_t offset = sl_json_get_uint(tensor, "offset", 0), number = 0;
        while (strcmp(sl_json_get_string(tensor, "name"), names[number]) != 0)
            ck_assert_uint_lt(++number, SL_COUNT(names));
        ck_assert_uint_le(offset + TENSOR_BYTES, found_bytes);
        ck_assert_mem_eq(found + offset, model + bytes - (4 - number) * TENSOR_BYTES, TENSOR_BYTES);
    }
    json_decref(manifest);
}

/* _i: a good cache, a bad one. */
SL_TEST_LOOP(tensors_that_are_chosen_come_through_caches, 0, 2)
{
    size_t bytes;
    char more[SL_SCRATCH_PATH_BYTES + 256];
    sl_autofree uint8_t *model = make_model(&bytes);
    sl_autofree uint8_t *copy = spoil(model, bytes);
    put("/bucket/model.safetensors", model, bytes);
    put_sidecar("/bucket/model.safetensors", "model.safetensors", model, bytes);
    if (_i)
        sl_server_put(caches[0], "/bucket/model.safetensors", copy, bytes, "\"v1\"");
    snprintf(more, sizeof(more),
             "sink: {tmpfs: {path: \"%s\", layout: safetensors}}\ntensors: {include: [\"a*\"]}\n"
             "verify: {sidecar: require}\n",
             path);
    ck_assert_msg(load(sl_server_url(origin, "/bucket/model.safetensors"), 1, "", more) == 0, "%s",
                  err.message);
    ck_assert_uint_eq(result.tensors, 2);
    must_have_tensors(model, bytes, 2);
    ck_assert_uint_gt(asked_of_caches(), 0);
    ck_assert_msg(is_named(0) == (_i == 1), "%s", said);
    ck_assert_uint_le(ranges_at(origin, 0), _i ? AGAIN_MOST : 0);
}

static const char *at(const char *name)
{
    static char texts[4][SL_SCRATCH_PATH_BYTES + 32];
    static unsigned turn;
    char *text = texts[turn++ % SL_COUNT(texts)];
    snprintf(text, sizeof(texts[0]), "%s/%s", scratch, name);
    return text;
}

static void must_run(const char *const *arguments)
{
    struct ran ran = {0};
    run_sluice(&ran, arguments);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    ran_release(&ran);
}
#define MUST_RUN(...) must_run((const char *const[]){__VA_ARGS__, NULL})

/* m.tensors and sealed.tensors, by the key in "key", of the model that is returned. */
static uint8_t *make_both_tensors(size_t *bytes)
{
    uint8_t *plain = make_model(bytes);
    ck_assert_int_eq(sl_tree_write(scratch_fd, "m.safetensors", plain, *bytes, &err), 0);
    MUST_RUN("convert", at("m.safetensors"), at("m.tensors"));
    MUST_RUN("keygen", at("key"));
    MUST_RUN("encrypt", at("m.tensors"), at("sealed.tensors"), "--key-file", at("key"));
    return plain;
}

/* What does not open need not be the cache's fault. */
SL_TEST(a_wrong_key_names_no_cache)
{
    size_t plain_bytes, bytes;
    char more[2 * SL_SCRATCH_PATH_BYTES + 256];
    sl_autofree uint8_t *plain = make_both_tensors(&plain_bytes);
    MUST_RUN("keygen", at("other"));
    sl_autofree uint8_t *sealed = sl_model_read(scratch, "sealed.tensors", &bytes);
    put("/bucket/m.tensors", sealed, bytes);
    snprintf(more, sizeof(more),
             "sink: {tmpfs: {path: \"%s\", layout: safetensors}}\ndecrypt: {keyFile: \"%s\"}\n"
             "tensors: {include: [\"*\"]}\n",
             path, at("other"));
    ck_assert_int_eq(load(sl_server_url(origin, "/bucket/m.tensors"), 1, "", more), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_uint_gt(asked_of_caches(), 0);
    ck_assert_msg(!is_named(0), "%s", said);
}

/* A .tensors file, each tensor of which has a hash; sealed: or pieces with MACs. */
static void must_load_tensors(bool sealed_one, bool bad)
{
    size_t plain_bytes, bytes;
    char more[2 * SL_SCRATCH_PATH_BYTES + 256];
    sl_autofree uint8_t *plain = make_both_tensors(&plain_bytes);
    sl_autofree uint8_t *sealed =
        sl_model_read(scratch, sealed_one ? "sealed.tensors" : "m.tensors", &bytes);
    sl_autofree uint8_t *copy = spoil(sealed, bytes);
    put("/bucket/m.tensors", sealed, bytes);
    if (bad)
        sl_server_put(caches[0], "/bucket/m.tensors", copy, bytes, "\"v1\"");
    snprintf(
        more, sizeof(more),
        "sink: {tmpfs: {path: \"%s\", layout: safetensors}}\n%s%s%s"
        "tensors: {include: [\"*\"]}\n", /* else so small a file is read whole by the planner */
        path, sealed_one ? "decrypt: {keyFile: \"" : "", sealed_one ? at("key") : "",
        sealed_one ? "\"}\n" : "");
    ck_assert_msg(load(sl_server_url(origin, "/bucket/m.tensors"), 1, "", more) == 0, "%s",
                  err.message);
    must_have_tensors(plain, plain_bytes, 4);
    ck_assert_uint_gt(asked_of_caches(), 0);
    ck_assert_msg(is_named(0) == bad, "%s", said);
    ck_assert_uint_le(ranges_at(origin, 0), bad ? AGAIN_MOST : HEADERS);
}

/* _i: a good cache, a bad one. */
SL_TEST_LOOP(an_encrypted_file_comes_through_a_cache, 0, 2)
{
    must_load_tensors(true, _i);
}

SL_TEST_LOOP(tensors_with_hashes_of_their_own_come_through_a_cache, 0, 2)
{
    must_load_tensors(false, _i);
}

/* ---- with what else a spec may say ----------------------------------------------------------- */

static const char *file_with(const char *name, const char *text, size_t text_bytes)
{
    ck_assert_int_eq(sl_tree_write(scratch_fd, name, text, text_bytes, &err), 0);
    return at(name);
}

static void use_tls(struct sl_server **server)
{
    sl_server_stop(*server);
    *server = sl_server_start_tls();
}

/* Both certificates are of an authority of their own. _i: does the cache have one? */
SL_TEST_LOOP(a_token_goes_to_a_cache_with_tls_alone, 0, 2)
{
    char how[3 * SL_SCRATCH_PATH_BYTES], header[64];
    sl_autobuf authorities = SL_BUF_INIT(65536);
    use_tls(&origin);
    if (_i)
        use_tls(&caches[0]);
    put("/bucket/m.bin", data, BYTES);
    put_sidecar("/bucket/m.bin", "m.bin", data, BYTES);
    ck_assert_int_eq(sl_buf_read_file(&authorities, sl_server_ca(origin), &err), 0);
    if (_i)
        ck_assert_int_eq(sl_buf_read_file(&authorities, sl_server_ca(caches[0]), &err), 0);
    snprintf(how, sizeof(how), "}, tls: {caFile: \"%s\"}, http: {bearerTokenFile: \"%s\"",
             file_with("ca.pem", authorities.data, authorities.used), file_with("token", "t0", 2));
    ck_assert_msg(load(sl_server_url(origin, "/bucket/m.bin"), 1, how, check_of(RANGES)) == 0, "%s",
                  err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_uint_eq(ranges_at(caches[0], 0), _i ? BLOCKS - HEAD / BLOCK : 0);
    ck_assert_msg((strstr(said, "is not read through caches") == NULL) == _i, "%s", said);
    for (unsigned i = 0; i < sl_server_request_count(caches[0]); i++) {
        ck_assert(sl_server_header(sl_server_request_at(caches[0], i), "Authorization", header,
                                   sizeof(header)));
        ck_assert_str_eq(header, "Bearer t0");
    }
}

/* It would open the object for whoever has it. */
SL_TEST(a_customers_key_goes_to_no_cache)
{
    static const char key[] = "x-amz-server-side-encryption-customer-key: a2V5\n";
    char how[2 * SL_SCRATCH_PATH_BYTES];
    snprintf(how, sizeof(how), "}, http: {headersFile: \"%s\"",
             file_with("headers", key, strlen(key)));
    ck_assert_msg(load(uri_of(RANGES), CACHES, how, check_of(RANGES)) == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_uint_eq(asked_of_caches(), 0);
    ck_assert_msg(strstr(said, "is not read through caches"), "%s", said);
}

/* source.mirrors: a whole load goes elsewhere, by the same caches. _i: good ones, bad ones. */
SL_TEST_LOOP(a_load_from_a_mirror_comes_through_caches, 0, 2)
{
    char how[256];
    if (_i)
        sl_server_put(caches[0], "/bucket/m.bin", wrong, BYTES, "\"v1\"");
    snprintf(how, sizeof(how), "}, mirrors: [\"%s\"], http: {",
             sl_server_url(origin, "/bucket/m.bin"));
    ck_assert_msg(load(sl_server_url(origin, "/gone/m.bin"), 1, how, check_of(RANGES)) == 0, "%s",
                  err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_uint_gt(asked_of_caches(), 0);
    ck_assert_msg(is_named(0) == (_i == 1), "%s", said);
    if (!_i)
        ck_assert_uint_eq(ranges_at(origin, 0), 0);
}

/* The store is asked by the proxy, which has what it has, and the caches are not. */
SL_TEST(a_proxy_is_not_on_the_way_to_caches)
{
    char url[128];
    struct sl_server *at_origin = origin;
    struct sl_server *proxy = origin = sl_server_start();
    snprintf(url, sizeof(url), "%s", sl_server_url(at_origin, "/bucket/m.bin"));
    sl_server_put(proxy, url, data, BYTES, "\"v1\"");
    put_sidecar(url, "m.bin", data, BYTES);
    origin = at_origin;
    setenv("http_proxy", sl_server_url(proxy, ""), 1);
    ck_assert_msg(load(url, CACHES, "", check_of(RANGES)) == 0, "%s", err.message);
    unsetenv("http_proxy");
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_uint_eq(sl_server_request_count(origin), 0);
    ck_assert_uint_eq(ranges_at(proxy, 0), 0);
    ck_assert_uint_gt(sl_server_request_count(proxy), 0);
    ck_assert_uint_eq(ranges_at_caches(), BLOCKS - HEAD / BLOCK);
    sl_server_stop(proxy);
}

/* ---- side by side, and ended ----------------------------------------------------------------- */

static bool end_at_tenth(const struct sl_server_request *request, struct sl_server_reply *reply,
                         void *arg)
{
    unsigned *count = arg;
    (void)request;
    (void)reply;
    if (++*count == 10)
        sl_cancel_raise(cancel, 0);
    return false;
}

SL_TEST(a_load_that_was_ended_goes_on_through_caches)
{
    static unsigned count;
    char more[512];
    snprintf(more, sizeof(more), "%sreaders: {connections: 1}\n", check_of(RANGES));
    cancel = sl_cancel_new(&err);
    sl_server_handle(caches[0], end_at_tenth, &count);
    ck_assert_int_eq(load(uri_of(RANGES), 1, "", more), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_server_handle(caches[0], NULL, NULL);
    sl_cancel_free(sl_steal(&cancel));
    unsigned before = ranges_at(origin, 0);
    must_load_kind(RANGES, 1);
    ck_assert_uint_ge(result.resumed, BLOCK);
    ck_assert_uint_eq(ranges_at(origin, 0), before);
}

struct beside {
    struct sl_specs specs;
    struct sl_load_result result;
    struct sl_err err;
    int done;
};

static void *load_beside(void *arg)
{
    struct beside *beside = arg;
    beside->done = sl_load_run(&beside->specs.items[0], NULL, NULL, &beside->result, &beside->err);
    return NULL;
}

/* As a node has them. One of the caches is bad: each load finds it by itself. */
SL_TEST(loads_side_by_side_come_through_the_same_caches)
{
    enum { LOADS = 3 };
    static struct beside loads[LOADS];
    pthread_t threads[LOADS];
    char text[1024], names[LOADS][16];
    serve_one(true);
    for (unsigned i = 0; i < LOADS; i++) {
        snprintf(names[i], sizeof(names[i]), "model%u", i);
        snprintf(text, sizeof(text),
                 "source: {uri: \"%s\", through: {caches: [\"%s\", \"%s\"], blockBytes: 64Ki}}\n%s",
                 uri_of(RANGES), sl_server_url(caches[0], ""), sl_server_url(caches[1], ""),
                 check_of(RANGES));
        sl_model_spec(&loads[i].specs, "", at(names[i]), text);
    }
    fake_clock_run();
    for (unsigned i = 0; i < LOADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, load_beside, &loads[i]), 0);
    for (unsigned i = 0; i < LOADS; i++)
        pthread_join(threads[i], NULL);
    fake_clock_release();
    for (unsigned i = 0; i < LOADS; i++) {
        ck_assert_msg(loads[i].done == 0, "%s", loads[i].err.message);
        ck_assert(sl_model_same(at(names[i]), "m.bin", data, BYTES));
        ck_assert_uint_gt(loads[i].result.cached, 0);
        sl_specs_release(&loads[i].specs);
    }
}

static bool prepare(void)
{
    sl_test_environment();
    unsetenv("SLUICE_THROUGH");
    return true;
}

SL_CASE(.seconds = 60, .setup = setup, .teardown = teardown, .prepare = prepare)
