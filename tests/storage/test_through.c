/* Caches between a load and its origin: which is asked for what, and what becomes of a bad one. */
#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "fetch.h"
#include "http_through.h"
#include "mem.h"
#include "progress.h"
#include "range_blob.h"
#include "stores.h"
#include "through.h"

enum { CACHES = 3, BLOCK_BYTES = 64 * 1024, HEAD_BYTES = 1000 };

static struct sl_server *origin, *caches[CACHES];
static char urls[CACHES][64];
static const char *names[CACHES] = {urls[0], urls[1], urls[2]};
static struct sl_source_config config;
static struct sl_store *store;
static struct sl_source *source;
static struct sl_err err;

static void setup(void)
{
    origin = sl_server_start();
    sl_server_put(origin, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    for (unsigned i = 0; i < CACHES; i++) {
        caches[i] = sl_server_start();
        sl_server_put(caches[i], "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
        snprintf(urls[i], sizeof(urls[i]), "http://127.0.0.1:%u", sl_server_port(caches[i]));
    }
    config = (struct sl_source_config){
        .attempts = 3,
        .stall_seconds = 20,
        .through = {.urls = names, .count = CACHES, .block_bytes = BLOCK_BYTES}};
    err = (struct sl_err)SL_ERR_INIT;
    store = NULL;
    source = NULL;
}

static void teardown(void)
{
    sl_source_free(source);
    sl_store_free(store);
    sl_server_stop(origin);
    for (unsigned i = 0; i < CACHES; i++)
        sl_server_stop(caches[i]);
}

static void open_blob(void)
{
    char *key;
    ck_assert_msg(sl_store_open(sl_server_url(origin, "/m"), &config, &store, &key, &err) == 0,
                  "%s", err.message);
    ck_assert_msg(sl_source_open(store, key, HEAD_BYTES, &source, &err) == 0, "%s", err.message);
    free(key);
}

/* Checked bytes, as a load reads them. again: they came wrong. */
static int read_range(uint64_t begin, uint64_t end, bool again)
{
    sl_autofree uint8_t *data = malloc(end - begin);
    if (sl_source_read_checked(source, begin, data, end - begin, again, &err) < 0)
        return -1;
    return memcmp(data, sl_blob() + begin, end - begin) ? 1 : 0;
}

static void read_all(void)
{
    ck_assert_msg(read_range(0, SL_BLOB_BYTES, false) == 0, "%s", err.message);
}

static unsigned asked_of_caches(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < CACHES; i++)
        count += sl_server_request_count(caches[i]);
    return count;
}

static void script_all_caches(struct sl_step step)
{
    for (unsigned i = 0; i < CACHES; i++)
        sl_server_script(caches[i], &step, 1);
}

/* ---- who is asked ---------------------------------------------------------------------------- */

SL_TEST(the_origin_is_asked_to_open_and_caches_for_blocks)
{
    char range[64], version[80], again[80], match[64];
    open_blob();
    ck_assert_uint_eq(sl_server_request_count(origin), 1);
    ck_assert_uint_eq(asked_of_caches(), 0);
    read_all();
    ck_assert_uint_eq(sl_server_request_count(origin), 1);
    ck_assert_uint_eq(asked_of_caches(), (SL_BLOB_BYTES + BLOCK_BYTES - 1) / BLOCK_BYTES);
    for (unsigned i = 0; i < CACHES; i++)
        for (unsigned k = 0; k < sl_server_request_count(caches[i]); k++) {
            const struct sl_server_request *request = sl_server_request_at(caches[i], k);
            unsigned begin;
            ck_assert(sl_server_header(request, "Range", range, sizeof(range)));
            ck_assert_int_eq(sscanf(range, "bytes=%u-", &begin), 1);
            ck_assert_uint_eq(begin % BLOCK_BYTES, 0);
            ck_assert(sl_server_header(request, "If-Match", match, sizeof(match)));
            ck_assert_str_eq(match, "\"v1\"");
            ck_assert(sl_server_header(request, "Host", match, sizeof(match)));
            ck_assert_ptr_nonnull(strstr(sl_server_url(origin, ""), match));
            ck_assert(sl_server_header(request, SL_HTTP_THROUGH_KEY, again, sizeof(again)));
            ck_assert_uint_eq(strlen(again), 64);
            if (*version == 0 || (!i && !k))
                snprintf(version, sizeof(version), "%s", again);
            ck_assert_str_eq(again, version);
        }
}

/* Only what somebody checks. */
SL_TEST(what_nobody_checks_comes_from_the_origin)
{
    uint8_t data[100];
    open_blob();
    ck_assert_int_eq(sl_source_read(source, 5000, data, sizeof(data), &err), 0);
    ck_assert_uint_eq(asked_of_caches(), 0);
    ck_assert_uint_eq(sl_server_request_count(origin), 2);
}

SL_TEST(a_second_version_has_another_name)
{
    char first[80], second[80];
    config.through.count = 1;
    open_blob();
    read_all();
    sl_server_header(sl_server_request_at(caches[0], 0), SL_HTTP_THROUGH_KEY, first, sizeof(first));
    unsigned before = sl_server_request_count(caches[0]);
    sl_source_free(sl_steal(&source));
    sl_store_free(sl_steal(&store));
    sl_server_put(origin, "/m", sl_blob(), SL_BLOB_BYTES, "\"v2\"");
    sl_server_put(caches[0], "/m", sl_blob(), SL_BLOB_BYTES, "\"v2\"");
    open_blob();
    read_all();
    sl_server_header(sl_server_request_at(caches[0], before), SL_HTTP_THROUGH_KEY, second,
                     sizeof(second));
    ck_assert_str_ne(first, second);
}

/* ---- bad ones -------------------------------------------------------------------------------- */

#define BYTE_MORE "1\r\nx\r\n0\r\n\r\n" /* instead of a last chunk */

static const struct sl_step bad[] = {
    {.fault = SL_FAULT_STATUS, .status = 403},
    {.fault = SL_FAULT_STATUS, .status = 404},
    {.fault = SL_FAULT_STATUS, .status = 429},
    {.fault = SL_FAULT_STATUS, .status = 500},
    {.fault = SL_FAULT_STATUS, .status = 503},
    {.fault = SL_FAULT_STATUS, .status = 400},
    {.fault = SL_FAULT_RESET, .after = -1},
    {.fault = SL_FAULT_RESET, .after = 5000},
    {.fault = SL_FAULT_SHORT, .after = 5000},
    {.fault = SL_FAULT_STALL, .after = -1},
    {.fault = SL_FAULT_STALL, .after = 5000},
    {.fault = SL_FAULT_WRONG_RANGE},
    {.fault = SL_FAULT_WRONG_TOTAL},
    {.fault = SL_FAULT_NO_RANGE},
    {.fault = SL_FAULT_WRONG_ETAG},
    {.fault = SL_FAULT_CHANGED},
    {.fault = SL_FAULT_LONG},
    {.fault = SL_FAULT_GZIP},
    {.fault = SL_FAULT_MULTIPART},
    {.fault = SL_FAULT_HEAD, .text = "nonsense"},
    {.fault = SL_FAULT_CHUNKED, .text = BYTE_MORE},
};

/* _i: which fault, of one cache or of all. */
SL_TEST_LOOP(another_is_asked_at_once, 0, 2 * (int)SL_COUNT(bad))
{
    open_blob();
    fake_clock_run();
    if (_i % 2)
        script_all_caches(bad[_i / 2]);
    else
        sl_server_script(caches[0], &bad[_i / 2], 1);
    read_all();
    fake_clock_release();
    struct sl_through_state states[CACHES];
    ck_assert_uint_eq(sl_through_states(sl_store_through(store), states, CACHES), CACHES);
    ck_assert_uint_ge(states[0].failures, 1);
    ck_assert(!states[0].left);
    unsigned of_origin = sl_server_request_count(origin) - 1;
    ck_assert(_i % 2 ? of_origin > 0 : of_origin == 0);
}

/* All that was asked for came: nothing is left to ask another for. */
SL_TEST(a_cache_that_goes_on_behind_a_range_fails_alone)
{
    open_blob();
    script_all_caches((struct sl_step){.fault = SL_FAULT_CHUNKED, .text = BYTE_MORE});
    ck_assert_msg(read_range(0, BLOCK_BYTES, false) == 0, "%s", err.message);
    struct sl_through_state states[CACHES];
    uint64_t failures = 0;
    sl_through_states(sl_store_through(store), states, CACHES);
    for (unsigned i = 0; i < CACHES; i++)
        failures += states[i].failures;
    ck_assert_uint_eq(failures, 1);
    ck_assert_uint_eq(sl_server_request_count(origin), 1);
}

/* What a progress knows of the first cache. */
static struct sl_supplier counted_of_first(struct sl_progress *progress)
{
    struct sl_supplier all[SL_SUPPLIERS_MAX];
    size_t count = sl_progress_suppliers(progress, all, SL_SUPPLIERS_MAX);
    for (size_t i = 0; i < count; i++)
        if (strcmp(all[i].name, sl_server_url(caches[0], "")) == 0)
            return all[i];
    return (struct sl_supplier){.bytes = 0};
}

/* As a share that has other models: that is no failure. */
SL_TEST(who_lacks_an_object_is_asked_for_it_once)
{
    struct sl_through_state states[CACHES];
    open_blob();
    script_all_caches((struct sl_step){.fault = SL_FAULT_STATUS, .status = 421});
    read_all();
    ck_assert_uint_eq(asked_of_caches(), CACHES);
    sl_through_states(sl_store_through(store), states, CACHES);
    for (unsigned i = 0; i < CACHES; i++)
        ck_assert(states[i].failures == 0 && !states[i].left);
}

/* The common name, beside an ETag of its own: a share has none of the store's. */
SL_TEST_LOOP(who_names_the_object_says_which_version_it_is, 0, 2)
{
    char name[SL_SOURCE_NAME_BYTES], headers[128];
    config.through.count = 1;
    open_blob();
    ck_assert(sl_source_common_name(source, name));
    name[0] ^= _i; /* another one */
    snprintf(headers, sizeof(headers), "%s: %s\r\n", SL_HTTP_THROUGH_NAME, name);
    SL_SCRIPT(caches[0], {.fault = SL_FAULT_WRONG_ETAG, .headers = headers});
    read_all();
    ck_assert_uint_eq(sl_server_request_count(origin) > 1, _i);
}

/* It sends its bytes, and keeps all others waiting: they are asked of the next after a while. */
SL_TEST(a_slow_cache_is_left_behind)
{
    struct sl_through_state states[CACHES];
    struct sl_progress *progress = sl_progress_new("m", "", "", &err);
    config.progress = progress;
    open_blob();
    read_all();
    fake_clock_run();
    unsigned of_origin = sl_server_request_count(origin);
    SL_SCRIPT(caches[0], {.fault = SL_FAULT_TRICKLE, .after = 1000});
    read_all();
    fake_clock_release();
    sl_through_states(sl_store_through(store), states, CACHES);
    ck_assert_uint_ge(states[0].failures, 1);
    ck_assert_uint_eq(sl_server_request_count(origin), of_origin);
    const struct sl_supplier counted = counted_of_first(progress);
    ck_assert_uint_eq(counted.failures[SL_SUPPLIER_LATE], states[0].failures);
    ck_assert_uint_eq(sl_supplier_failures(&counted), states[0].failures);
    ck_assert_uint_eq(counted.bytes, states[0].bytes);
    sl_source_free(sl_steal(&source));
    sl_store_free(sl_steal(&store));
    sl_progress_free(progress);
}

SL_TEST(caches_that_are_not_there_cost_nothing_but_a_look)
{
    int held[CACHES];
    for (unsigned i = 0; i < CACHES; i++)
        held[i] = sl_server_leave(sl_steal(&caches[i]));
    open_blob();
    read_all();
    for (unsigned i = 0; i < CACHES; i++) {
        close(held[i]);
        caches[i] = sl_server_start();
    }
}

static enum sl_io_state drive(struct sl_fetch *fetch, uint8_t *data, size_t bytes, uint64_t ns)
{
    uint64_t until = sl_now_ns() + ns;
    enum sl_io_state state = SL_IO_WAIT;
    for (size_t at = 0, got; sl_now_ns() < until; at += got) {
        state = sl_fetch_read(fetch, data + at, bytes - at, &got, &err);
        if (state == SL_IO_END || state == SL_IO_FAILED || at + got == bytes)
            break;
        if (state == SL_IO_WAIT && sl_fetch_wait(fetch, true, &err) < 0)
            return SL_IO_FAILED;
    }
    return state;
}

/* Its caches have gone, and one block is with the origin, which keeps it waiting. */
SL_TEST(beyond_its_share_of_the_origin_a_block_waits)
{
    sl_autofree uint8_t *data = malloc(BLOCK_BYTES);
    config.through.origin_share = 0.01;
    open_blob();
    script_all_caches((struct sl_step){.fault = SL_FAULT_STATUS, .status = 503});
    fake_clock_hold();
    struct sl_fetch *first = sl_fetch_new(store, &err), *second = sl_fetch_new(store, &err);
    sl_fetch_vouch(first, SL_VOUCH_RANGES);
    sl_fetch_vouch(second, SL_VOUCH_RANGES);
    SL_SCRIPT(origin, {.fault = SL_FAULT_STALL, .after = -1});
    ck_assert_int_eq(sl_fetch_start(first, source, 0, BLOCK_BYTES, &err), 0);
    for (size_t got; sl_server_request_count(origin) < 2; sched_yield())
        ck_assert_int_eq(sl_fetch_read(first, data, BLOCK_BYTES, &got, &err), SL_IO_WAIT);
    fake_clock_run();
    sl_server_script(origin, NULL, 0);
    ck_assert_int_eq(sl_fetch_start(second, source, BLOCK_BYTES, 2 * BLOCK_BYTES, &err), 0);
    ck_assert_int_eq(drive(second, data, BLOCK_BYTES, SL_NS_PER_S / 4), SL_IO_WAIT);
    ck_assert_uint_eq(sl_server_request_count(origin), 2);
    sl_fetch_free(first);
    drive(second, data, BLOCK_BYTES, 10 * SL_NS_PER_S);
    ck_assert_mem_eq(data, sl_blob() + BLOCK_BYTES, BLOCK_BYTES);
    ck_assert_uint_eq(sl_server_request_count(origin), 3);
    sl_fetch_free(second);
    fake_clock_release();
}

SL_TEST(who_gave_wrong_bytes_is_left)
{
    struct sl_through_state states[CACHES];
    static uint8_t wrong[SL_BLOB_BYTES];
    memcpy(wrong, sl_blob(), SL_BLOB_BYTES);
    for (size_t i = 0; i < SL_BLOB_BYTES; i += BLOCK_BYTES / 2)
        wrong[i] ^= 1;
    open_blob();
    sl_server_put(caches[1], "/m", wrong, SL_BLOB_BYTES, "\"v1\"");
    unsigned again = 0;
    for (uint64_t at = 0; at < SL_BLOB_BYTES; at += BLOCK_BYTES) {
        uint64_t end = SL_MIN(at + BLOCK_BYTES, (uint64_t)SL_BLOB_BYTES);
        if (read_range(at, end, false) == 0)
            continue;
        again++;
        sl_source_doubt(source, at, end);
        ck_assert_msg(read_range(at, end, true) == 0, "%s", err.message);
        sl_source_settle(source, at, end, true);
    }
    ck_assert_uint_eq(again, 1);
    sl_through_states(sl_store_through(store), states, CACHES);
    ck_assert(states[1].left);
    ck_assert_uint_eq(states[1].wrong, 1);
    ck_assert(!states[0].left && !states[2].left);
    ck_assert_uint_eq(sl_server_request_count(origin), 2);
}

SL_TEST(when_nobody_knows_whose_they_are_all_are_left)
{
    struct sl_err why = SL_ERR_INIT;
    open_blob();
    ck_assert(!sl_store_blame_mirrors(store, &why));
    read_all();
    unsigned before = asked_of_caches();
    ck_assert(sl_store_blame_mirrors(store, &why));
    ck_assert(!sl_store_blame_mirrors(store, &why));
    read_all();
    ck_assert_uint_eq(asked_of_caches(), before);
}

/* ---- secrets --------------------------------------------------------------------------------- */

/* A link with a query may be signed. */
SL_TEST(what_a_cache_may_not_see_is_read_past_it)
{
    char *key;
    struct sl_tls_options tls = {.verify = true};
    sl_server_stop(origin);
    origin = sl_server_start_tls();
    sl_server_put(origin, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    tls.ca_file = (char *)sl_server_ca(origin);
    config.tls = &tls;
    for (unsigned i = 0; i < 2; i++) {
        const char *url = sl_server_url(origin, i ? "/m" : "/m?sig=1");
        ck_assert_msg(sl_store_open(url, &config, &store, &key, &err) == 0, "%s", err.message);
        ck_assert_msg(sl_source_open(store, key, HEAD_BYTES, &source, &err) == 0, "%s",
                      err.message);
        free(key);
        read_all();
        ck_assert_int_eq(asked_of_caches() > 0, i);
        sl_source_free(sl_steal(&source));
        sl_store_free(sl_steal(&store));
    }
}

SL_TEST(a_cache_without_tls_sees_no_token_that_tls_hides)
{
    static const struct {
        const char *url, *header;
        bool secret, plain, tls; /* may one without, with TLS see it? */
    } rows[] = {
        {"https://s/m", "Authorization: AWS4-HMAC-SHA256 Credential=…", false, true, true},
        {"https://s/m", "x-amz-security-token: t", false, true, true},
        {"https://s/m", "Authorization: Bearer t", false, false, true},
        {"https://s/m", "authorization: bearer t", false, false, true},
        {"https://s/m", "Authorization: Basic t", false, false, true},
        {"https://s/m", "Cookie: m_session_id=t", false, false, true},
        {"https://s/m?sig=x", "X: y", true, false, true},
        {"http://s/m?sig=x", "X: y", true, true, true},
        {"http://s/m", "Authorization: Bearer t", false, true, true},
        {"https://s/m", "x-amz-server-side-encryption-customer-key: k", false, false, false},
        {"http://s/m", "X-Amz-Server-Side-Encryption-Customer-Key: k", false, false, false},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_range_request request = {.url = (char *)rows[i].url, .secret = rows[i].secret};
        request.headers[request.header_count++] = (char *)rows[i].header;
        ck_assert_msg(sl_http_through_may_see(&request, "http://c:1") == rows[i].plain, "%zu", i);
        ck_assert_msg(sl_http_through_may_see(&request, "https://c:1") == rows[i].tls, "%zu", i);
    }
}

/* ---- blocks and owners ----------------------------------------------------------------------- */

enum { MANY = 16, BLOCKS = 256, NEW = 64 };

static struct sl_through *make(unsigned count, struct sl_caches_map **map)
{
    static char texts[MANY][64];
    static const char *all[MANY];
    for (unsigned i = 0; i < MANY; i++) {
        snprintf(texts[i], sizeof(texts[i]), "http://10.0.0.%u:8080", i + 1);
        all[i] = texts[i];
    }
    const struct sl_through_options options = {all, count, BLOCK_BYTES, SL_UNVERIFIED_REFUSE, 1};
    struct sl_through *through = sl_through_new(&options, &err);
    ck_assert_msg(through != NULL, "%s", err.message);
    *map = sl_through_map_new(through, 42, (uint64_t)BLOCKS * BLOCK_BYTES - 1);
    return through;
}

/* A cache that is asked; the origin; nobody yet. */
enum { ORIGIN = SL_CACHES_NONE, NOBODY_YET = -2 };
static int ask_for(struct sl_through *through, struct sl_caches_map *map, uint64_t block,
                   struct sl_caches_ask *ask)
{
    char via[SL_THROUGH_VIA_BYTES];
    sl_through_choose(through, map, block, false, ask, via);
    ck_assert((ask->asked == SL_ASKED_CACHE) == !!*via);
    return ask->asked == SL_ASKED_CACHE   ? ask->cache
           : ask->asked == SL_ASKED_WAITS ? NOBODY_YET
                                          : ORIGIN;
}

static int owner(struct sl_through *through, struct sl_caches_map *map, uint64_t block)
{
    struct sl_caches_ask ask = {.in_hand = false};
    int found = ask_for(through, map, block, &ask);
    sl_through_drop(through, &ask);
    return found;
}

SL_TEST(no_cache_owns_much_more_than_its_share)
{
    for (unsigned count = 1; count <= MANY; count++) {
        unsigned owned[MANY] = {0};
        struct sl_caches_map *map;
        SL_AUTO(sl_through) through = make(count, &map);
        for (uint64_t block = 0; block < BLOCKS; block++)
            owned[owner(through, map, block)]++;
        for (unsigned i = 0; i < count; i++)
            ck_assert_uint_le(owned[i], (BLOCKS + BLOCKS / 64 + count - 1) / count);
        free(map);
    }
}

/* Else every node that comes or goes would empty all caches. */
SL_TEST(when_one_goes_the_others_keep_most_of_theirs)
{
    struct sl_caches_map *map, *fewer_map;
    SL_AUTO(sl_through) through = make(MANY, &map);
    SL_AUTO(sl_through) fewer = make(MANY - 1, &fewer_map);
    unsigned moved = 0;
    for (uint64_t block = 0; block < BLOCKS; block++) {
        int before = owner(through, map, block);
        moved += before != MANY - 1 && before != owner(fewer, fewer_map, block);
    }
    ck_assert_uint_le(moved, BLOCKS / 5);
    free(map);
    free(fewer_map);
}

SL_TEST(after_two_it_is_the_origins_turn)
{
    const struct sl_err why = {.kind = SL_E_NET};
    struct sl_caches_map *map;
    SL_AUTO(sl_through) through = make(MANY, &map);
    fake_clock_hold();
    for (uint64_t block = 0; block < 4; block++) {
        struct sl_caches_ask ask = {.in_hand = false};
        int first = ask_for(through, map, block, &ask);
        sl_through_failed(through, &ask, &why);
        ck_assert_int_ne(ask_for(through, map, block, &ask), first);
        sl_through_failed(through, &ask, &why);
        ck_assert_int_eq(ask_for(through, map, block, &ask), ORIGIN);
        sl_through_drop(through, &ask);
        fake_clock_turn(SL_NS_PER_S);
    }
    fake_clock_release();
    free(map);
}

/* One block shows whether it has recovered. */
SL_TEST(one_that_failed_rests_longer_each_time)
{
    const struct sl_err why = {.kind = SL_E_NET};
    struct sl_caches_map *map;
    struct sl_caches_ask ask = {.in_hand = false};
    SL_AUTO(sl_through) through = make(2, &map);
    fake_clock_hold();
    int first = ask_for(through, map, 7, &ask);
    for (uint64_t seconds = 1; seconds <= NEW; seconds *= 2) {
        uint64_t rest = SL_MIN(seconds, UINT64_C(30)) * SL_NS_PER_S;
        sl_through_failed(through, &ask, &why);
        sl_through_drop(through, &ask);
        fake_clock_turn(rest - 1);
        ck_assert_int_ne(owner(through, map, 7), first);
        fake_clock_turn(1);
        ck_assert_int_eq(ask_for(through, map, 7, &ask), first);
        ck_assert_int_ne(owner(through, map, 7), first);
    }
    sl_through_done(through, &ask, true);
    ck_assert_int_eq(owner(through, map, 7), first);
    ck_assert_int_eq(ask_for(through, map, 7, &ask), first);
    sl_through_failed(through, &ask, &why);
    sl_through_drop(through, &ask);
    fake_clock_turn(SL_NS_PER_S);
    ck_assert_int_eq(owner(through, map, 7), first);
    fake_clock_release();
    free(map);
}

SL_TEST(a_name_is_as_many_caches_as_it_has_addresses)
{
    static const char *const name[] = {"http://localhost:8080"};
    const struct sl_through_options options = {name, 1, BLOCK_BYTES, SL_UNVERIFIED_REFUSE, 1};
    SL_AUTO(sl_through) through = sl_through_new(&options, &err);
    struct sl_caches_map *map = sl_through_map_new(through, 1, 10 * BLOCK_BYTES);
    struct sl_caches_ask ask = {.in_hand = false};
    char via[SL_THROUGH_VIA_BYTES];
    SL_AWAIT((sl_through_drop(through, &ask), sl_through_choose(through, map, 0, false, &ask, via),
              !strstr(via, "localhost")),
             "the addresses of localhost");
    ck_assert(strcmp(via, "http://127.0.0.1:8080") == 0 || strcmp(via, "http://[::1]:8080") == 0);
    sl_through_drop(through, &ask);
    free(map);
}

SL_TEST(what_is_no_cache_is_refused_with_words)
{
    static const struct {
        const char *url, *words;
    } rows[] = {
        {"cache:8080", "source.through"},
        {"ftp://cache", "source.through"},
        {"http://cache/models", "source.through: 'http://cache' and no more is the URL of a cache"},
        {"http://u:p@cache", "source.through: 'http://cache' and no more is the URL of a cache"},
        {"http://cache?x=1", "source.through: 'http://cache' and no more is the URL of a cache"},
        {"http://cache#x", "source.through: 'http://cache' and no more is the URL of a cache"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        const struct sl_through_options options = {&rows[i].url, 1, 0, SL_UNVERIFIED_REFUSE, 1};
        struct sl_err why = SL_ERR_INIT;
        ck_assert_ptr_null(sl_through_new(&options, &why));
        ck_assert_int_eq(why.kind, SL_E_USAGE);
        ck_assert_msg(strstr(why.message, rows[i].words) != NULL, "%s", why.message);
        ck_assert_ptr_null(strstr(why.message, "u:p"));
    }
}

SL_CASE(.setup = setup, .teardown = teardown)
