/* What sluice doctor says of caches: one that lacks nothing, and for each lack one that has it. The
 * store is S3, or a web server that asks nobody who they are; the cache is the test's own. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache_doctor.h"
#include "claims.h"
#include "json.h"
#include "listen_at.h"
#include "model_maker.h"
#include "range_server.h"
#include "run_sluice.h"

enum { BLOCK = 64 * 1024, BYTES = 3 * BLOCK + 777, KEPT_MAX = 64 };

static struct sl_server *origin, *cache;
static uint8_t *data;
static struct ran ran;

/* How the cache behaves: what it lacks, or SL_CACHE_LACK_COUNT. Under its server's lock. */
static struct {
    enum sl_cache_lack lack;
    bool open; /* the store asks nobody who they are, but has one object alone */
    unsigned first_connection, asked_of_second;
    struct {
        char key[128];
        unsigned connection; /* that fetched it, and has asked for nothing else since; 0: it has */
    } kept[KEPT_MAX];
    unsigned kept_count;
} at;

/* ---- the store ------------------------------------------------------------------------------- */

/* Signatures are of GET. */
static bool is_let_in(const struct sl_server_request *request)
{
    char text[1024];
    if (at.open)
        return strcmp(request->target, "/bucket/m.bin") == 0;
    return strcmp(request->method, "GET") == 0 &&
           sl_server_header(request, "Authorization", text, sizeof(text));
}

static bool refuse(struct sl_server_reply *reply)
{
    reply->status = at.open ? 404 : 403;
    return true;
}

static bool answer_origin(const struct sl_server_request *request, struct sl_server_reply *reply,
                          void *arg)
{
    (void)arg;
    return !is_let_in(request) && refuse(reply);
}

/* ---- the cache ------------------------------------------------------------------------------- */

static bool lacks(enum sl_cache_lack lack)
{
    return at.lack == lack;
}

static void make_key(const struct sl_server_request *request, uint64_t begin, char key[128])
{
    char name[80] = "";
    sl_server_header(request, "X-Sluice-Version", name, sizeof(name));
    bool slices = !lacks(SL_CACHE_LACK_NOT_SLICED) && !lacks(SL_CACHE_LACK_KEY_RANGE);
    snprintf(key, 128, "%s %" PRIu64, lacks(SL_CACHE_LACK_KEY_VERSION) ? "" : name,
             slices ? begin / BLOCK : 0);
}

/* A fetch has ended when who asked for it asks for something else. */
static bool is_kept(const char *key, bool waits)
{
    for (unsigned i = 0; i < at.kept_count; i++)
        if (strcmp(at.kept[i].key, key) == 0)
            return waits || !at.kept[i].connection;
    return false;
}

static void keep(const char *key, unsigned connection)
{
    if (is_kept(key, true) || lacks(SL_CACHE_LACK_NOT_KEPT) || at.kept_count == KEPT_MAX)
        return;
    snprintf(at.kept[at.kept_count].key, sizeof(at.kept->key), "%s", key);
    at.kept[at.kept_count++].connection = connection;
}

static void end_fetches(unsigned connection)
{
    for (unsigned i = 0; i < at.kept_count; i++)
        if (at.kept[i].connection == connection)
            at.kept[i].connection = 0;
}

static void give(struct sl_server_reply *reply, uint64_t begin, uint64_t end)
{
    uint64_t shift = lacks(SL_CACHE_LACK_RANGE);
    reply->status = 206;
    snprintf(reply->headers, sizeof(reply->headers),
             "ETag: \"v1\"\r\nContent-Range: bytes %" PRIu64 "-%" PRIu64 "/%d\r\n", begin - shift,
             end - shift, BYTES);
    reply->body_bytes = end + 1 - begin;
    reply->body = malloc(reply->body_bytes);
    memcpy(reply->body, data + begin, reply->body_bytes);
    if (lacks(SL_CACHE_LACK_WRONG))
        reply->body[0] ^= 4;
}

/* Lacks that the first answer shows. */
static bool answer_at_once(const struct sl_server_request *request, struct sl_server_reply *reply)
{
    if (lacks(SL_CACHE_LACK_HEAD) && strcmp(request->method, "HEAD") == 0)
        reply->status = 206;
    else if (lacks(SL_CACHE_LACK_REFUSES))
        reply->status = 403;
    else if (lacks(SL_CACHE_LACK_UPSTREAM))
        reply->status = 502;
    else if (lacks(SL_CACHE_LACK_WHOLE)) {
        reply->status = 200;
        reply->body_bytes = BYTES;
        reply->body = malloc(BYTES);
        memcpy(reply->body, data, BYTES);
    } else
        return false;
    return true;
}

/* Two at once, the second of which may not read it: whichever comes first, a lock may let the other
 * one in before. These come by the second connection, behind its first request. */
static bool is_second_of_two(const struct sl_server_request *request)
{
    if (!at.first_connection)
        at.first_connection = request->connection;
    return request->connection != at.first_connection && at.asked_of_second++ > 0;
}

static bool answer_cache(const struct sl_server_request *request, struct sl_server_reply *reply,
                         void *arg)
{
    char range[64] = "", name[80], key[128];
    uint64_t begin = 0, end = 0;
    bool second = is_second_of_two(request), may = is_let_in(request);
    (void)arg;
    end_fetches(request->connection);
    if (answer_at_once(request, reply))
        return true;
    if (!sl_server_header(request, "Range", range, sizeof(range)) ||
        sscanf(range, "bytes=%" SCNu64 "-%" SCNu64, &begin, &end) != 2 || end >= BYTES)
        return refuse(reply);
    make_key(request, begin, key);
    bool named = sl_server_header(request, "X-Sluice-Version", name, sizeof(name)) ||
                 lacks(SL_CACHE_LACK_UNPINNED);
    bool locks = !lacks(SL_CACHE_LACK_NO_LOCK);
    bool has = named && (is_kept(key, locks) || (locks && second));
    if (has && lacks(SL_CACHE_LACK_KEY_RANGE) && begin / BLOCK != (BYTES - 1) / BLOCK) {
        reply->status = 500;
        return true;
    }
    if (!has && !may)
        return refuse(reply);
    if (named)
        keep(key, request->connection);
    give(reply, begin, end);
    return true;
}

/* ---- one run --------------------------------------------------------------------------------- */

static void setup(void)
{
    origin = sl_server_start();
    cache = sl_server_start();
    data = sl_model_noise(BYTES, 3);
    sl_server_put(origin, "/bucket/m.bin", data, BYTES, "\"v1\"");
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(origin, ""), 1);
    setenv("AWS_ACCESS_KEY_ID", "k", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    unsetenv("SLUICE_THROUGH");
}

static void teardown(void)
{
    sl_server_stop(origin);
    sl_server_stop(cache);
    ran_release(&ran);
    free(data);
}

/* The servers see it from now on: their locks are taken last. */
static void behave(enum sl_cache_lack lack, bool open)
{
    at.lack = lack;
    at.open = open;
    sl_server_handle(origin, answer_origin, NULL);
    sl_server_handle(cache, answer_cache, NULL);
}

static void doctor(const char *uri, const char *through)
{
    RUN(&ran, "doctor", uri, "--through", through, "--set", "source.through.blockBytes=64Ki");
}

/* How often doctor says this of caches. */
static unsigned count_said(const char *verdict, const char *words)
{
    unsigned count = 0;
    sl_autofree char *text = sl_strdup(ran.out, NULL);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));)
        count += strncmp(line, verdict, strlen(verdict)) == 0 && strstr(line, " cache  ") &&
                 strstr(line, words);
    return count;
}

SL_TEST(a_cache_that_lacks_nothing_is_praised)
{
    behave(SL_CACHE_LACK_COUNT, false);
    doctor("s3://bucket/m.bin", sl_server_url(cache, ""));
    ck_assert_msg(ran.exit_code == 0, "%s%s", ran.out, ran.err);
    ck_assert_msg(count_said("ok", "keeps ranges by version and fetches each once") == 1, "%s",
                  ran.out);
    ck_assert_uint_eq(count_said("FAIL", "") + count_said("warn", ""), 0);
}

/* _i: the lack. It is said, with what mends it, and no other. */
SL_TEST_LOOP(a_lack_is_named_alone, 0, SL_CACHE_LACK_COUNT)
{
    behave((enum sl_cache_lack)_i, false);
    doctor("s3://bucket/m.bin", sl_server_url(cache, ""));
    const char *verdict = _i == SL_CACHE_LACK_HEAD ? "warn" : "FAIL";
    ck_assert_msg(count_said(verdict, sl_cache_lack_text((enum sl_cache_lack)_i)) == 1, "%s%s",
                  ran.out, ran.err);
    ck_assert_msg(count_said("", "") == 1, "%s", ran.out);
    ck_assert_int_eq(ran.exit_code, _i == SL_CACHE_LACK_HEAD ? 0 : 2);
}

/* Nothing is asked by a name that a load uses, and no request with credentials in words. */
SL_TEST(what_is_asked_leaves_nothing_behind)
{
    behave(SL_CACHE_LACK_COUNT, false);
    doctor("s3://bucket/m.bin", sl_server_url(cache, ""));
    char first[80] = "", name[80];
    unsigned names = 0, count = sl_server_request_count(cache);
    for (unsigned i = 0; i < count; i++) {
        const struct sl_server_request *request = sl_server_request_at(cache, i);
        if (!sl_server_header(request, "X-Sluice-Version", name, sizeof(name)))
            continue;
        ck_assert_uint_eq(strlen(name), 64);
        names += strcmp(name, first) != 0;
        memcpy(first, name, sizeof(first));
    }
    ck_assert_uint_gt(names, 2);
    ck_assert_uint_le(count, 24);
    doctor("s3://bucket/m.bin", sl_server_url(cache, "")); /* others, each time */
    ck_assert(sl_server_header(sl_server_request_at(cache, count), "X-Sluice-Version", name,
                               sizeof(name)));
    ck_assert(
        sl_server_header(sl_server_request_at(cache, 0), "X-Sluice-Version", first, sizeof(first)));
    ck_assert_str_ne(name, first);
}

/* A store that asks nobody who they are refuses what is not there. _i: a cache that lacks nothing,
 * one whose key lacks the version. */
SL_TEST_LOOP(a_store_without_credentials_tells_as_much, 0, 2)
{
    behave(_i ? SL_CACHE_LACK_KEY_VERSION : SL_CACHE_LACK_COUNT, true);
    doctor(sl_server_url(origin, "/bucket/m.bin"), sl_server_url(cache, ""));
    ck_assert_int_eq(ran.exit_code, _i ? 2 : 0);
    ck_assert_msg(count_said(_i ? "FAIL" : "ok",
                             _i ? sl_cache_lack_text(SL_CACHE_LACK_KEY_VERSION) : "keeps") == 1,
                  "%s%s", ran.out, ran.err);
}

SL_TEST(a_cache_that_is_not_there_is_named)
{
    char gone[64];
    unsigned port = 0;
    int held = sl_port_hold("127.0.0.1", &port);
    snprintf(gone, sizeof(gone), "http://127.0.0.1:%u", port);
    behave(SL_CACHE_LACK_COUNT, false);
    doctor("s3://bucket/m.bin", gone);
    ck_assert_int_eq(ran.exit_code, 7);
    ck_assert_msg(count_said("FAIL", gone) == 1, "%s%s", ran.out, ran.err);
    close(held);
}

/* Each of a spec's, as JSON; the good one beside the bad. */
SL_TEST(each_cache_of_a_spec_has_its_row)
{
    char text[512], name[] = "/tmp/sluice-doctor-XXXXXX.yaml";
    int fd = mkstemps(name, 5);
    behave(SL_CACHE_LACK_COUNT, false);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
             "source: {uri: \"s3://bucket/m.bin\", through: {caches: [\"%s\", "
             "\"http://127.0.0.1:1\"], blockBytes: 64Ki}}\nsink: {tmpfs: {path: /tmp/none}}\n",
             sl_server_url(cache, ""));
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    RUN(&ran, "doctor", name, "--json");
    unlink(name);
    struct sl_err err = SL_ERR_INIT;
    json_t *rows = sl_json_parse(ran.out, strcspn(ran.out, "\n"), "doctor", &err);
    ck_assert_msg(json_is_array(rows), "%s%s", ran.out, ran.err);
    unsigned good = 0, bad = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (strcmp(sl_json_get_string(row, "check"), "cache") != 0)
            continue;
        good += strcmp(sl_json_get_string(row, "state"), "ok") == 0;
        bad += strcmp(sl_json_get_string(row, "state"), "failed") == 0;
    }
    ck_assert_uint_eq(good, 1);
    ck_assert_uint_eq(bad, 1);
    json_decref(rows);
}

SL_CASE(.setup = setup, .teardown = teardown)
