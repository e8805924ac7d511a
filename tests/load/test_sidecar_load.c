/* Loads of objects with sidecars from a server that sends wrong bytes: what is found, what is
 * fetched again, and that nothing wrong is ever published. */
#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "dcp_maker.h"
#include "hash.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "metrics.h"
#include "minisign_secret.h"
#include "model_maker.h"
#include "plan.h"
#include "publish.h"
#include "range_server.h"
#include "scratch.h"
#include "sidecar.h"
#include "thread.h"

enum { RANGE = 64 * 1024, RANGES = 24, BYTES = RANGES * RANGE - 777 };
static const char ETAG[] = "\"v1\"", REQUIRED[] = "verify: {sidecar: require}\n";

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static uint8_t *data;
static struct sl_err err;
static struct sl_load_result result;

/* One bit, wrong in the next `times` answers that hold it. */
static struct flip {
    uint64_t at;
    unsigned times;
} flips[RANGES];
static unsigned flip_count;
static pthread_mutex_t flips_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t range_bytes;

static void flip_one(uint64_t at, unsigned times)
{
    SL_LOCKED(&flips_lock);
    flip_count = times > 0;
    flips[0] = (struct flip){at, times};
}

static bool flip_bits(const struct sl_server_request *request, struct sl_server_reply *reply,
                      void *arg)
{
    uint64_t begin, end;
    bool flipped = false;
    (void)arg;
    if (strcmp(request->target, "/m.bin") != 0 || !sl_server_range(request, BYTES, &begin, &end))
        return false;
    SL_LOCKED(&flips_lock);
    for (unsigned i = 0; i < flip_count; i++)
        flipped = flipped || (flips[i].times && flips[i].at >= begin && flips[i].at < end);
    if (!flipped)
        return false;
    sl_server_reply_range(reply, data, begin, end, BYTES, ETAG);
    for (unsigned i = 0; i < flip_count; i++)
        if (flips[i].times && flips[i].at >= begin && flips[i].at < end) {
            reply->body[flips[i].at - begin] ^= 1 << i % 8;
            flips[i].times--;
        }
    return true;
}

static struct sl_sidecar *make_sidecar(const char *name, const uint8_t *of, uint64_t bytes)
{
    struct sl_sidecar *sidecar = sl_sidecar_new(name, bytes, range_bytes, &err);
    for (size_t i = 0; i < sidecar->range_count; i++) {
        uint64_t begin = i * range_bytes, end = sl_sidecar_range_end(sidecar, i);
        sidecar->ranges[i].crc32c = sl_crc32c(0, of + begin, (size_t)(end - begin));
        struct sl_sha256 *one = sl_sha256_new(&err);
        sl_sha256_update(one, of + begin, (size_t)(end - begin));
        sl_sha256_finish(one, sidecar->ranges[i].sha256);
        sl_sha256_free(one);
    }
    sl_sidecar_tree(sidecar, sidecar->tree);
    return sidecar;
}

static void put_sidecar(struct sl_sidecar *sidecar)
{
    sl_autobuf text = SL_BUF_INIT(1024 * 1024);
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    sl_server_put(server, "/m.bin.sluice.json", text.data, text.used, "\"s\"");
    sl_sidecar_free(sidecar);
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    err = (struct sl_err)SL_ERR_INIT;
    flip_one(0, 0);
    range_bytes = RANGE;
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    server = sl_server_start();
    data = sl_model_noise(BYTES, 5);
    sl_server_put(server, "/m.bin", data, BYTES, ETAG);
    put_sidecar(make_sidecar("m.bin", data, BYTES));
    sl_server_handle(server, flip_bits, NULL);
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    sl_memory_clear();
    free(data);
}

static unsigned fail_at;

static int load(const char *uri, const char *more)
{
    struct sl_specs specs;
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, uri, path, more);
    sl_alloc_fail_at(fail_at);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    return done;
}

static void must_load(const char *more)
{
    ck_assert_msg(load(sl_server_url(server, "/m.bin"), more) == 0, "%s: %s", more, err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_msg(sl_publish_verify(path, NULL, NULL, NULL, &err) == 0, "%s", err.message);
    ck_assert(!sl_model_exists(path, "m.bin.sluice.json"));
}

static void must_not_load(const char *more)
{
    ck_assert_msg(load(sl_server_url(server, "/m.bin"), more) < 0, "%s loads", more);
    ck_assert(!sl_model_exists(path, ".sluice/ready") && !sl_model_exists(path, "m.bin"));
}

static void remove_model(void)
{
    sl_scratch_close(scratch_fd, scratch);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
}

/* In every third range, but those that the planner looks into. */
static void flip_some(unsigned times)
{
    SL_LOCKED(&flips_lock);
    flip_count = 0;
    for (unsigned i = 5; i < RANGES; i += 3)
        flips[flip_count++] = (struct flip){i * (uint64_t)RANGE + i * 1000, times};
}

/* With `times` wrong answers for each: every one is fetched again once, and nothing else. Another
 * request for the same bytes would take the wrong ones to nobody. */
static void must_fetch_again(const char *more, unsigned times)
{
    int64_t before = (int64_t)sl_metric_get(SL_M_REFETCHED_RANGES);
    flip_some(times);
    must_load(more);
    ck_assert_int_eq((int64_t)sl_metric_get(SL_M_REFETCHED_RANGES) - before,
                     (int64_t)result.refetched_ranges);
    ck_assert_uint_eq(result.refetched_ranges, times * flip_count);
    ck_assert_uint_le(result.fetched, BYTES + times * flip_count * RANGE + 320 * 1024);
}

SL_TEST(every_flipped_bit_is_found_and_its_range_alone_is_fetched_again)
{
    static const char *const more[] = {
        "verify: {sidecar: require}\nreaders: {connections: 1}\n",
        "verify: {sidecar: require}\nreaders: {connections: 4}\n",
        "verify: {sidecar: require}\nreaders: {connections: 3, rangeBytes: 64Ki}\n",
        "verify: {sidecar: require}\nreaders: {connections: 2, rangeBytes: 100Ki}\n",
        "verify: {sidecar: require, hashes: all}\n",
        "verify: {sidecar: require, hashes: off}\n",
        "verify: {sidecar: require, hashes: require}\n",
    };
    for (size_t i = 0; i < SL_COUNT(more); i++) {
        must_fetch_again(more[i], 1);
        ck_assert_uint_eq(result.sidecars, 1);
        ck_assert_uint_eq(result.checks, RANGES);
        ck_assert_uint_eq(result.verified, BYTES);
        ck_assert_uint_eq(result.unhashed, 0);
        remove_model();
    }
}

SL_TEST(a_range_that_comes_wrong_twice_is_fetched_a_third_time)
{
    must_fetch_again(REQUIRED, 2);
}

/* Made from the right bytes: what is given for the whole object is judged again. */
SL_TEST(hashes_of_the_whole_object_are_judged_when_its_ranges_are_right)
{
    char hex[65], more[256];
    uint8_t digest[32];
    struct sl_sha256 *sha = sl_sha256_new(&err);
    sl_sha256_update(sha, data, BYTES);
    sl_sha256_finish(sha, digest);
    sl_sha256_free(sha);
    sl_hex(digest, 32, hex);
    snprintf(more, sizeof(more), "verify: {sidecar: require, sha256: {m.bin: %s}}\n", hex);
    must_fetch_again(more, 1);
    remove_model();
    hex[0] = hex[0] == '0' ? '1' : '0';
    snprintf(more, sizeof(more), "verify: {sidecar: require, sha256: {m.bin: %s}}\n", hex);
    flip_some(1);
    must_not_load(more);
    ck_assert_str_eq(err.code, "E_HASH_SHA256");
}

SL_TEST(a_range_that_stays_wrong_fails_the_load_and_says_which)
{
    char expected[16];
    flip_one(5 * RANGE + 9, UINT32_MAX);
    must_not_load(REQUIRED);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "E_HASH_CRC32C");
    snprintf(expected, sizeof(expected), "%08" PRIx32, sl_crc32c(0, data + 5 * RANGE, RANGE));
    ck_assert_msg(strstr(err.message, "object 'm.bin', bytes 327680 to 393216") &&
                      strstr(err.message, expected) && strstr(err.message, "fetched 4 times"),
                  "%s", err.message);
    ck_assert_uint_eq(result.refetched_ranges, 3);
    flip_one(0, 0); /* the server is mended: the next load reads again what lay around the range */
    must_load(REQUIRED);
    ck_assert_msg(result.fetched <= BYTES + 320 * 1024, "%" PRIu64 " bytes", result.fetched);
}

SL_TEST(a_server_that_flips_always_ends_the_load_soon)
{
    flip_some(UINT32_MAX);
    must_not_load(REQUIRED);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_uint_le(result.refetched_ranges, 4);
}

SL_TEST(a_sidecar_of_another_version_is_refused_where_it_is_needed)
{
    struct sl_sidecar *sidecar = make_sidecar("m.bin", data, BYTES);
    snprintf(sidecar->made_from.etag, sizeof(sidecar->made_from.etag), "\"v0\"");
    put_sidecar(sidecar);
    must_not_load(REQUIRED);
    ck_assert_str_eq(err.code, "E_SIDECAR");
    ck_assert_msg(strstr(err.message, "another version") && strstr(err.message, "v0"), "%s",
                  err.message);
    put_sidecar(make_sidecar("m.bin", data, BYTES - 1));
    must_not_load(REQUIRED);
    sl_server_put(server, "/m.bin.sluice.json", "{\"a\": 1}", 8, "\"s\"");
    must_not_load(REQUIRED);
    ck_assert_str_eq(err.code, "E_SIDECAR");
}

SL_TEST(where_none_is_there_it_is_required_or_not_asked_for)
{
    SL_SCRIPT(
        server,
        {.path = "/m.bin.sluice.json", .fault = SL_FAULT_STATUS, .status = 404, .text = "none"});
    must_not_load(REQUIRED);
    ck_assert_str_eq(err.code, "E_SIDECAR");
    ck_assert_msg(strstr(err.message, "sluice sign"), "%s", err.message);
    unsigned before = sl_server_request_count(server);
    must_load("");
    ck_assert_uint_eq(result.sidecars, 0);
    for (unsigned i = before; i < sl_server_request_count(server); i++)
        ck_assert_str_eq(sl_server_request_at(server, i)->target, "/m.bin");
}

/* What the refusal of bytes without a hash says is what helps, where the store has none. */
SL_TEST(the_advice_for_a_store_without_hashes_is_enough)
{
    must_not_load("verify: {hashes: require}\n");
    ck_assert_msg(strstr(err.message, "sluice sign") &&
                      strstr(err.message, "set verify.sidecar to 'require'"),
                  "%s", err.message);
    must_load("verify: {hashes: require, sidecar: require}\n");
    ck_assert_uint_eq(result.unhashed, 0);
}

/* Half of a range came wrong, the other half not before the end. */
SL_TEST(a_load_that_was_broken_off_finds_wrong_bytes_in_what_it_keeps)
{
    range_bytes = 2 * RANGE;
    put_sidecar(make_sidecar("m.bin", data, BYTES));
    flip_one(8 * RANGE + 5, 1);
    SL_SCRIPT(server, {.path = "/m.bin", .first = 11, .fault = SL_FAULT_RESET, .after = 100});
    must_not_load("verify: {sidecar: require}\n"
                  "readers: {connections: 1, rangeBytes: 64Ki, attempts: 1}\n");
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_uint_eq(result.refetched_ranges, 0);
    SL_SCRIPT(server, {.path = "/none"});
    must_load("verify: {sidecar: require}\nreaders: {connections: 2}\n");
    ck_assert_uint_gt(result.resumed, 8 * RANGE);
    ck_assert_uint_eq(result.refetched_ranges, 1);
}

/* Of a slow request what is left is sent again. */
SL_TEST(hedged_ranges_are_checked_like_others)
{
    sl_test_adapts();
    SL_SCRIPT(server, {.path = "/m.bin", .first = 5, .fault = SL_FAULT_STALL, .after = 30000},
              {.path = "/m.bin", .first = 9, .fault = SL_FAULT_SHORT, .after = 5000});
    must_fetch_again("verify: {sidecar: require}\nreaders: {connections: 4, rangeBytes: 128Ki}\n",
                     1);
}

/* ---- in a listing ---------------------------------------------------------------------------- */

static void put_listed(const char *name, struct sl_sidecar *sidecar)
{
    static struct sl_buf texts[8];
    static unsigned used;
    struct sl_buf *text = &texts[used++ % 8];
    sl_buf_release(text);
    *text = (struct sl_buf)SL_BUF_INIT(1024 * 1024);
    ck_assert_int_eq(sl_sidecar_write(sidecar, text, &err), 0);
    ck_assert_int_eq(sl_memory_put(name, text->data, text->used, NULL), 0);
    sl_sidecar_free(sidecar);
}

SL_TEST(those_of_a_listing_are_used_and_not_published)
{
    ck_assert_int_eq(sl_memory_put("p/a", data, BYTES, NULL), 0);
    ck_assert_int_eq(sl_memory_put("p/a.b", data, 1000, NULL), 0);
    ck_assert_int_eq(sl_memory_put("p/c", data, 2000, NULL), 0);
    ck_assert_int_eq(sl_memory_put("p/alone.sluice.json", "{}", 2, NULL), 0);
    put_listed("p/a.sluice.json", make_sidecar("a", data, BYTES));
    put_listed("p/a.b.sluice.json", make_sidecar("a.b", data, 1000));
    ck_assert_msg(load("memory://p/", "") == 0, "%s", err.message);
    ck_assert_uint_eq(result.sidecars, 2);
    ck_assert_uint_eq(result.files, 4);
    ck_assert_uint_eq(result.unhashed, 2002);
    ck_assert(sl_model_exists(path, "alone.sluice.json"));
    ck_assert(!sl_model_exists(path, "a.sluice.json"));
    ck_assert_int_lt(load("memory://p/", REQUIRED), 0);
    ck_assert_msg(strstr(err.message, "'alone.sluice.json' has no sidecar"), "%s", err.message);
    ck_assert_msg(load("memory://p/", "verify: {sidecar: off}\n") == 0, "%s", err.message);
    ck_assert_uint_eq(result.sidecars, 0);
    ck_assert(sl_model_exists(path, "a.sluice.json"));
}

/* What has no hash of its own: a tensor that is put together of two files. */
SL_TEST(chunks_of_a_distributed_checkpoint_are_proved)
{
    static const char *const names[] = {".metadata", "a.distcp", "b.distcp"};
    static const struct dcp_made made = {
        .shape = "4 3",
        .chunks = {{.at = "0 0", .size = "2 3", .path = "a.distcp"},
                   {.at = "2 0", .size = "2 3", .path = "b.distcp"}}};
    static const float values[] = {3, 4, 5};
    char more[512], name[64];
    sl_autobuf metadata = SL_BUF_INIT(1 << 20), a = SL_BUF_INIT(1 << 20), b = SL_BUF_INIT(1 << 20);
    const struct sl_buf *const texts[] = {&metadata, &a, &b};
    range_bytes = 4 * RANGE;
    dcp_make(&made, &metadata, &a);
    ck_assert_int_eq(sl_buf_append(&b, a.data, a.used, NULL), 0);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "d/%s", names[i]);
        ck_assert_int_eq(sl_memory_put(name, texts[i]->data, texts[i]->used, NULL), 0);
        snprintf(name, sizeof(name), "d/%s.sluice.json", names[i]);
        put_listed(name, make_sidecar(names[i], (uint8_t *)texts[i]->data, texts[i]->used));
    }
    snprintf(more, sizeof(more),
             "sink: {tmpfs: {path: \"%s\", layout: safetensors}}\nverify: {hashes: require}\n",
             path);
    ck_assert_msg(load("memory://d/", more) == 0, "%s", err.message);
    ck_assert_uint_eq(result.unhashed, 0);
    char small[600]; /* two ranges of each file take more than half of it */
    snprintf(small, sizeof(small), "%sreaders: {memoryBytes: 1MiB}\n", more);
    ck_assert_int_lt(load("memory://d/", small), 0);
    ck_assert_msg(strstr(err.message, "hash"), "%s", err.message);
    size_t count;
    sl_autofree uint8_t *before = sl_model_read(path, "model.safetensors", &count);
    ck_assert_ptr_nonnull(before);
    char *first = memmem(b.data, b.used, values, sizeof(values)); /* of a's rows */
    char *last = memmem(first + 1, b.used - (size_t)(first + 1 - b.data), values, sizeof(values));
    ck_assert_ptr_nonnull(last);
    last[0] ^= 1;
    ck_assert_int_eq(sl_memory_put("d/b.distcp", b.data, b.used, NULL), 0);
    *strstr(more, "verify") = '\0';
    ck_assert_int_lt(load("memory://d/", more), 0);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, "b.distcp"), "%s", err.message);
    ck_assert(sl_model_same(path, "model.safetensors", before, count));
}

/* Patterns are about objects; a sidecar goes with its object. */
SL_TEST(what_chooses_objects_leaves_their_sidecars)
{
    ck_assert_int_eq(sl_memory_put("p/a", data, BYTES, NULL), 0);
    ck_assert_int_eq(sl_memory_put("p/b", data, 1000, NULL), 0);
    put_listed("p/a.sluice.json", make_sidecar("a", data, BYTES));
    put_listed("p/b.sluice.json", make_sidecar("b", data, 1000));
    struct sl_specs specs;
    sl_model_spec(&specs, "memory://p/", path, "verify: {sidecar: require}\n");
    char *include[] = {(char *)(uintptr_t) "a"};
    specs.items[0].source.include = (struct sl_list){include, 1};
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    specs.items[0].source.include = (struct sl_list){NULL, 0};
    sl_specs_release(&specs);
    ck_assert_msg(done == 0, "%s", err.message);
    ck_assert_uint_eq(result.sidecars, 1);
    ck_assert_uint_eq(result.files, 1);
}

SL_TEST(a_listed_one_of_another_version_is_left_aside_and_a_wrong_one_refuses)
{
    ck_assert_int_eq(sl_memory_put("p/a", data, BYTES, NULL), 0);
    put_listed("p/a.sluice.json", make_sidecar("a", data, BYTES - 1));
    ck_assert_msg(load("memory://p/", "") == 0, "%s", err.message);
    ck_assert_uint_eq(result.sidecars, 0);
    remove_model();
    struct sl_sidecar *wrong = make_sidecar("a", data, BYTES);
    wrong->ranges[3].crc32c ^= 1;
    sl_sidecar_tree(wrong, wrong->tree);
    put_listed("p/a.sluice.json", wrong);
    ck_assert_int_lt(load("memory://p/", ""), 0);
    ck_assert_str_eq(err.code, "E_HASH_CRC32C");
}

/* ---- signed ---------------------------------------------------------------------------------- */

static struct sl_minisign_secret secret;

static void sign(struct sl_sidecar *sidecar)
{
    sl_autobuf file = SL_BUF_INIT(4096), text = SL_BUF_INIT(4096), signature = SL_BUF_INIT(4096);
    ck_assert_int_eq(sl_buf_read_file(&file, SL_TEST_DATA "/minisign/plain.key", &err), 0);
    ck_assert_int_eq(sl_minisign_secret_parse(file.data, file.used, NULL, NULL, &secret, &err), 0);
    ck_assert_int_eq(sl_sidecar_signed_text(sidecar, &text, &err), 0);
    ck_assert_int_eq(sl_minisign_sign(&secret, text.data, text.used, "c", &signature, &err), 0);
    free(sidecar->signature);
    sidecar->signature = sl_buf_steal(&signature, &err);
}

#define SIGNED                                                                                     \
    "verify: {sidecar: require, minisign: {publicKeyFile: " SL_TEST_DATA "/minisign/plain.pub}}\n"

SL_TEST(a_signed_sidecar_stands_for_a_signature_and_its_sha256_are_checked)
{
    struct sl_sidecar *sidecar = make_sidecar("m.bin", data, BYTES);
    sign(sidecar);
    put_sidecar(sidecar);
    must_fetch_again(SIGNED, 1);
    remove_model();
    sidecar = make_sidecar("m.bin", data, BYTES);
    sidecar->ranges[2].sha256[0] ^= 1;
    sl_sidecar_tree(sidecar, sidecar->tree);
    sign(sidecar);
    put_sidecar(sidecar);
    must_not_load(SIGNED);
    ck_assert_str_eq(err.code, "E_HASH_SHA256");
    sidecar = make_sidecar("m.bin", data, BYTES);
    sign(sidecar);
    sidecar->ranges[2].sha256[0] ^= 1;
    sl_sidecar_tree(sidecar, sidecar->tree);
    put_sidecar(sidecar);
    must_not_load(SIGNED);
    ck_assert_str_eq(err.code, "E_SIGNATURE");
    sidecar = make_sidecar("other.bin", data, BYTES);
    sign(sidecar);
    put_sidecar(sidecar);
    must_not_load(SIGNED);
    ck_assert_str_eq(err.code, "E_SIGNATURE");
}

/* ---- resources ------------------------------------------------------------------------------- */

SL_TEST(every_failing_allocation_ends_cleanly)
{
    unsigned step = 1;
    for (unsigned nth = 1;; nth += step) {
        flip_one(3 * RANGE, 1);
        fail_at = nth;
        int done = load(sl_server_url(server, "/m.bin"), REQUIRED);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(fail_at = 0);
        if (done == 0)
            ck_assert(sl_model_same(path, "m.bin", data, BYTES));
        else
            ck_assert(!sl_model_exists(path, ".sluice/ready"));
        remove_model();
        if (!reached)
            break;
    }
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)

/* ---- another version ------------------------------------------------------------------------ */

static void put_version(const char *etag)
{
    sl_server_put(server, "/m.bin", data, BYTES, etag);
    put_sidecar(make_sidecar("m.bin", data, BYTES));
}

/* A byte of range 9 of what is published, without a trace. */
static void damage_in_secret(const char *name)
{
    struct stat status;
    ck_assert_int_eq(stat(name, &status), 0);
    ck_assert_int_eq(chmod(name, 0644), 0);
    int fd = open(name, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, "?", 1, 9 * RANGE + 5), 1);
    ck_assert_int_eq(futimens(fd, (struct timespec[]){status.st_mtim, status.st_mtim}), 0);
    close(fd);
    ck_assert_int_eq(chmod(name, 0444), 0);
}

static void cut(const char *name)
{
    ck_assert_int_eq(chmod(name, 0644), 0);
    ck_assert_int_eq(truncate(name, 20 * RANGE + 1), 0);
}

static void touch(const char *name)
{
    ck_assert_int_eq(utimensat(AT_FDCWD, name, NULL, 0), 0);
}

static void put_a_link(const char *name)
{
    char target[sizeof(path) + 32];
    snprintf(target, sizeof(target), "%s/elsewhere", scratch);
    ck_assert_int_eq(rename(name, target), 0);
    ck_assert_int_eq(symlink(target, name), 0);
}

static void do_nothing(const char *name)
{
    (void)name;
}

static const struct {
    const char *first, *next;
    void (*damage)(const char *name);
    unsigned lost; /* ranges, besides the two that are new */
} befores[] = {
    {"verify: {sidecar: require}\n", "verify: {sidecar: require}\n", do_nothing, 0},
    {"verify: {sidecar: off}\n", "verify: {sidecar: require}\n", do_nothing, RANGES - 2},
    {"verify: {sidecar: require}\n", "verify: {sidecar: require, hashes: all}\n", do_nothing, 0},
    {"verify: {sidecar: require}\n", "verify: {sidecar: require}\n", damage_in_secret, 1},
    {"verify: {sidecar: require}\n", "verify: {sidecar: require}\n", cut, RANGES - 2},
    {"verify: {sidecar: require}\n", "verify: {sidecar: require}\n", touch, RANGES - 2},
    {"verify: {sidecar: require}\n", "verify: {sidecar: require}\n", put_a_link, RANGES - 2},
    {"verify: {sidecar: require}\n", "verify: {sidecar: off}\n", do_nothing, RANGES - 2},
};

/* What `sluice plan` would say, of which *taken comes from the version before. */
static uint64_t planned_bytes(const char *more, uint64_t *taken)
{
    struct sl_specs specs;
    struct sl_source_config config;
    struct sl_inheritable there;
    struct sl_plan *plan;
    sl_model_spec(&specs, sl_server_url(server, "/m.bin"), path, more);
    const struct sl_plan_output output = sl_plan_output_of_spec(&specs.items[0]);
    sl_spec_source_config(&specs.items[0], NULL, NULL, &config);
    ck_assert_int_eq(sl_plan_make(&specs.items[0], &output, &config, &plan, &err), 0);
    ck_assert_int_eq(sl_publish_inheritable(path, plan, &specs.items[0].sink.tmpfs, &there, &err),
                     0);
    ck_assert_uint_eq(there.link_bytes, 0);
    uint64_t left = sl_plan_expected_bytes(plan) - there.fetch_bytes;
    sl_plan_free(plan);
    sl_specs_release(&specs);
    *taken = there.bytes;
    return left;
}

/* Bytes of the object that the server was asked for since; the first request is the plan's look at
 * its head. */
static uint64_t asked_bytes(unsigned since)
{
    uint64_t bytes = 0, begin, end;
    bool head = true;
    for (unsigned i = since; i < sl_server_request_count(server); i++) {
        const struct sl_server_request *request = sl_server_request_at(server, i);
        if (strcmp(request->target, "/m.bin") != 0 ||
            !sl_server_range(request, BYTES, &begin, &end))
            continue;
        bytes += head ? 0 : end - begin;
        head = false;
    }
    return bytes;
}

/* Neighbours, and the last range, which is shorter; the hole of one range costs a request. */
SL_TEST_LOOP(a_plan_tells_the_bytes_of_ranges_that_the_load_then_fetches, 0, 3)
{
    static const char *const specs[] = {"verify: {sidecar: require}\n",
                                        "verify: {sidecar: require, hashes: all}\n",
                                        "verify: {sidecar: require}\n"};
    char more[sizeof(path) + 128];
    uint64_t taken;
    bool free_first = _i == 2;
    must_load(REQUIRED);
    static const unsigned changed[] = {2, 3, 5, 9, RANGES - 1};
    for (size_t i = 0; i < SL_COUNT(changed); i++)
        data[changed[i] * RANGE + 7] ^= 1;
    put_version("\"v2\"");
    snprintf(more, sizeof(more), "%s%s", specs[_i], "readers: {connections: 1}\n");
    if (free_first)
        snprintf(more, sizeof(more), "%ssink: {tmpfs: {path: \"%s\", replace: free-first}}\n",
                 specs[_i], path);
    uint64_t left = planned_bytes(more, &taken);
    ck_assert_uint_eq(left, free_first ? BYTES : 5 * RANGE - 777);
    ck_assert_uint_eq(taken, BYTES - left);
    unsigned since = sl_server_request_count(server);
    must_load(more);
    ck_assert_uint_eq(result.inherited, taken);
    ck_assert_uint_eq(asked_bytes(since), left);
}

/* By both sidecars, and if the old file is what was published. */
SL_TEST_LOOP(ranges_that_did_not_change_are_copied_from_the_version_before, 0, SL_COUNT(befores))
{
    char name[sizeof(path) + 32];
    must_load(befores[_i].first);
    snprintf(name, sizeof(name), "%s/m.bin", path);
    befores[_i].damage(name);
    data[3 * RANGE + 7] ^= 1;
    data[17 * RANGE] ^= 1;
    put_version("\"v2\"");
    must_load(befores[_i].next);
    uint64_t lost = (befores[_i].lost + 2) * (uint64_t)RANGE;
    uint64_t most = BYTES > lost ? BYTES - lost : 0; /* the last is shorter */
    ck_assert_uint_eq(result.inherited, most);
    ck_assert_uint_eq(result.resumed, 0);
    ck_assert_uint_le(result.fetched, BYTES - most + 320 * 1024);
}

/* By its URI and ETag it is another object. */
SL_TEST(an_object_with_its_sidecar_is_the_same_under_another_prefix)
{
    sl_autobuf text = SL_BUF_INIT(1024 * 1024);
    struct sl_sidecar *sidecar = make_sidecar("m.bin", data, BYTES);
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    sl_sidecar_free(sidecar);
    sl_server_put(server, "/v2/m.bin", data, BYTES, "\"other\"");
    sl_server_put(server, "/v2/m.bin.sluice.json", text.data, text.used, "\"s2\"");
    must_load(REQUIRED);
    ck_assert_msg(load(sl_server_url(server, "/v2/m.bin"), REQUIRED) == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert_uint_eq(result.inherited, BYTES);
}

/* What an earlier try has fetched is not copied over. */
SL_TEST(changed_ranges_that_were_fetched_are_kept)
{
    static const char more[] = "verify: {sidecar: require}\n"
                               "readers: {connections: 1, rangeBytes: 64Ki}\n";
    must_load(more);
    data[5 * RANGE + 7] ^= 1;
    data[17 * RANGE] ^= 1;
    put_version("\"v2\"");
    SL_SCRIPT(server, {.path = "/m.bin",
                       .begin = 17 * RANGE,
                       .fault = SL_FAULT_STATUS,
                       .status = 403,
                       .text = "no"});
    ck_assert_int_eq(load(sl_server_url(server, "/m.bin"), more), -1);
    sl_server_script(server, NULL, 0);
    must_load(more);
    ck_assert_uint_eq(result.resumed, RANGE);
    ck_assert_uint_eq(result.inherited, BYTES - 2 * RANGE);
    ck_assert_uint_le(result.fetched, RANGE + 320 * 1024);
}
