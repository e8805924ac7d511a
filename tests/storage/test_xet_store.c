/* Files of a hub that are on Xet: which way each range goes, what is verified, and what happens
 * when the content store does not answer, or answers wrong. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "hf_hub.h"
#include "hf_store.h"
#include "http_case.h"
#include "progress.h"
#include "stores.h"
#include "xet_store.h"

static struct sl_hub hub;
static struct sl_xet_store xet;
static struct sl_hf_options options;
static struct sl_source_config config;
static const char model[] = "hf://org/name/model.safetensors";

static void put(const uint8_t *data)
{
    sl_xet_store_put(&xet, data, SL_BLOB_BYTES);
    sl_hub_put(&hub, "model.safetensors", data, SL_BLOB_BYTES, true);
    memcpy(hub.files[0].xet, xet.file_hash, sizeof(xet.file_hash));
}

static void start(void)
{
    sl_hub_start(&hub);
    sl_xet_store_start(&xet);
    setenv("HF_TOKEN", "hf_secret", 1);
    hub.token = "hf_secret";
    hub.xet_url = sl_server_url(xet.cas, "");
    options = (struct sl_hf_options){.endpoint = strdup(sl_hub_url(&hub)), .xet = SL_XET_ON};
    config = (struct sl_source_config){.attempts = 4,
                                       .stall_seconds = 20,
                                       .hedge = SL_HEDGE_OFF,
                                       .options[0] = {&sl_hf_table, &options}};
}

static void setup(void)
{
    start();
    put(sl_blob());
}

static void teardown(void)
{
    ck_assert_uint_eq(hub.leaked_tokens, 0);
    ck_assert_uint_eq(xet.leaked_tokens, 0);
    sl_hub_stop(&hub);
    sl_xet_store_stop(&xet);
    free(options.endpoint);
}

static int read_model(size_t piece_bytes, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(model, &config, 1000, piece_bytes, err);
}

static unsigned by_links(void)
{
    return sl_server_request_count(hub.cdn);
}

/* ---- the right way --------------------------------------------------------------------------- */

/* Borders of ranges, of chunks, of terms and of the caller's memory are all in other places. */
SL_TEST_LOOP(a_file_is_read_whatever_its_ranges_are, 0, 6)
{
    static const size_t pieces[] = {999, 8192, 100001, 131072, 400000, SL_BLOB_BYTES};
    struct sl_err err;
    if (_i == 0)
        config.attempts = 1;
    ck_assert_msg(read_model(pieces[_i], &err) == 0, "%s", err.message);
    ck_assert_uint_eq(by_links(), 0);
    ck_assert_uint_eq(hub.xet_tokens, 1);
    ck_assert_uint_eq(sl_hub_count(&hub, "/org/name/resolve/"), 1);
}

/* All in one range: each xorb is asked for once, by exactly the range that was signed. */
SL_TEST(a_xorb_is_fetched_once)
{
    struct sl_err err = SL_ERR_INIT;
    static uint8_t data[SL_BLOB_BYTES];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    unsigned before = sl_xet_store_fetched(&xet), asked = xet.asked;
    ck_assert_int_eq(sl_source_read_past(source, 0, data, sizeof(data), &err), 0);
    ck_assert_mem_eq(data, sl_blob(), sizeof(data));
    ck_assert_uint_eq(xet.asked, asked + 1);
    for (unsigned i = before; i < sl_xet_store_fetched(&xet); i++)
        for (unsigned k = before; k < i; k++)
            ck_assert_str_ne(sl_server_request_at(xet.cdn, i)->target,
                             sl_server_request_at(xet.cdn, k)->target);
}

/* A cache has blocks of files, and none of xorbs. _i: auto, on, off. */
SL_TEST_LOOP(caches_have_what_links_lead_to, 0, 3)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t data[1000];
    struct sl_server *cache = sl_server_start();
    const char *const url = sl_server_url(cache, "");
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    options.xet = _i;
    config.through = (struct sl_through_options){.urls = &url, .count = 1};
    sl_server_put(cache, "/model.safetensors", sl_blob(), SL_BLOB_BYTES, NULL);
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_source_read_checked(source, 5000, data, sizeof(data), false, &err), 0);
    ck_assert_mem_eq(data, sl_blob() + 5000, sizeof(data));
    ck_assert_uint_eq(sl_server_request_count(cache), _i != SL_XET_ON);
    ck_assert_uint_eq(hub.xet_tokens, _i == SL_XET_ON);
    sl_source_free(sl_steal(&source));
    sl_store_free(sl_steal(&store));
    sl_server_stop(cache);
}

/* No SHA-256 would check what comes by links. */
SL_TEST(a_bucket_is_read_through_xet_whatever_caches_there_are)
{
    struct sl_err err = SL_ERR_INIT;
    static const char *const url = "http://127.0.0.1:9";
    sl_hub_keep(&hub, "m.bin", sl_blob(), SL_BLOB_BYTES, xet.file_hash);
    options.xet = SL_XET_AUTO;
    config.through = (struct sl_through_options){.urls = &url, .count = 1};
    ck_assert_msg(sl_read_blob("hf://buckets/org/name/m.bin", &config, 1000, 400000, &err) == 0,
                  "%s", err.message);
    ck_assert_uint_eq(hub.xet_tokens, 1);
    ck_assert_uint_eq(by_links(), 0);
}

static int take(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)entry;
    (void)arg;
    (void)err;
    return 0;
}

/* Questions cost something each, so ranges are longer where they are asked: from the first file on
 * that is on it. */
SL_TEST(ranges_are_longer_where_xet_is_asked)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open("hf://org/name", &config, &store, &key, &err), 0);
    ck_assert_uint_eq(sl_store_advice(store).range_factor, 0);
    ck_assert_msg(sl_store_list(store, take, NULL, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_store_advice(store).range_factor, 4);
}

/* The hub's first answer tells the hash, so that the bytes of the opening come from Xet, too; a
 * listing tells it before that. */
SL_TEST(a_listed_file_costs_the_hub_no_request)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t data[1000];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    struct sl_version version = {.pin = SL_HUB_COMMIT};
    ck_assert_int_eq(sl_store_open("hf://org/name", &config, &store, &key, &err), 0);
    ck_assert_msg(sl_store_list(store, take, NULL, &err) == 0, "%s", err.message);
    ck_assert_int_eq(
        sl_source_known(store, "model.safetensors", SL_BLOB_BYTES, &version, &source, &err), 0);
    ck_assert_msg(sl_source_read(source, 500000, data, sizeof(data), &err) == 0, "%s", err.message);
    ck_assert_mem_eq(data, sl_blob() + 500000, sizeof(data));
    ck_assert_uint_eq(sl_hub_count(&hub, "/org/name/resolve/"), 0);
}

/* Of one commit, so nothing can have changed: where nothing but Xet will do, that is an error. */
SL_TEST_LOOP(a_hub_that_contradicts_itself_is_not_believed, 0, 4)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    struct sl_progress *progress = sl_progress_new("it", model, "", NULL);
    config.progress = progress;
    options.xet = _i & 1 ? SL_XET_AUTO : SL_XET_ON;
    ck_assert_int_eq(sl_store_open("hf://org/name", &config, &store, &key, &err), 0);
    ck_assert_msg(sl_store_list(store, take, NULL, &err) == 0, "%s", err.message);
    hub.files[0].xet[5] = _i & 2 ? 'x' : hub.files[0].xet[5] == '0' ? '1' : '0';
    ck_assert_int_eq(sl_store_list(store, take, NULL, &err), _i & 1 ? 0 : -1);
    ck_assert_str_eq(err.code, _i & 1 ? "" : "xet");
    ck_assert_int_eq(sl_progress_counts(progress).fallbacks, _i == 1);
    if (!(_i & 1))
        ck_assert_msg(strstr(err.message, _i ? "makes no sense" : "two hashes") != NULL, "%s",
                      err.message);
    sl_progress_free(progress);
}

SL_TEST_LOOP(without_xet_the_links_are_read, 0, 2)
{
    struct sl_err err;
    options.xet = _i ? SL_XET_OFF : SL_XET_AUTO;
    if (_i == 0)
        setenv("HF_HUB_DISABLE_XET", "1", 1);
    ck_assert_msg(read_model(400000, &err) == 0, "%s", err.message);
    ck_assert_uint_gt(by_links(), 0);
    ck_assert_uint_eq(hub.xet_tokens, 0);
}

/* ---- faults that pass ------------------------------------------------------------------------ */

SL_TEST(a_signed_url_that_has_expired_is_asked_for_anew)
{
    struct sl_err err;
    xet.oldest_signed = 3; /* the opening's, and the first of the rest */
    config.attempts = 1;
    ck_assert_int_eq(read_model(400000, &err), -1);
    xet.oldest_signed = xet.signatures + 2;
    ck_assert_msg(read_model(400000, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(by_links(), 0);
}

SL_TEST(a_token_that_is_refused_is_renewed)
{
    struct sl_err err;
    xet.oldest_token = 2;
    config.attempts = 1;
    ck_assert_msg(read_model(400000, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(hub.xet_tokens, 2);
}

static const enum sl_fault passing[] = {SL_FAULT_RESET,      SL_FAULT_SHORT, SL_FAULT_CHUNKED,
                                        SL_FAULT_DROP_AFTER, SL_FAULT_CLOSE, SL_FAULT_UNTIL_CLOSE};

SL_TEST_LOOP(what_passes_is_got_over, 0, 2 * (int)SL_COUNT(passing))
{
    struct sl_err err;
    fake_clock_run();
    SL_SCRIPT(xet.cdn, {.first = 2, .fault = passing[_i / 2], .after = _i % 2 ? 900 : -1});
    ck_assert_msg(read_model(400000, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(by_links(), 0);
}

SL_TEST_LOOP(a_store_that_is_busy_is_waited_for, 0, 3)
{
    static const int statuses[] = {429, 503, 500};
    struct sl_err err;
    xet.refuse_status = statuses[_i];
    fake_clock_run();
    xet.refuse_times = 2;
    options.xet = _i ? SL_XET_ON : SL_XET_AUTO;
    ck_assert_msg(read_model(400000, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(by_links(), 0);
}

/* ---- faults that last ------------------------------------------------------------------------ */

enum broken {
    NO_TOKEN,
    BAD_TOKEN,
    TO_KEYS,
    NO_STORE,
    UNREACHED,
    BAD_ANSWER,
    TOO_SHORT,
    EXPIRED,
    REFUSED,
    SPOILT,
    WHOLE,
    BARE
};

static void break_xet(enum broken what)
{
    static char nowhere[64];
    if (what == NO_TOKEN)
        hub.xet_url = NULL;
    else if (what == UNREACHED)
        hub.xet_url = "http://127.0.0.1:1";
    else if (what == BAD_TOKEN)
        hub.xet_answer = "{\"casUrl\": \"http://127.0.0.1:1\"}";
    else if (what == TO_KEYS)
        xet.answer =
            "{\"offset_into_first_range\": 0, \"terms\": [{\"hash\": \"a\", "
            "\"unpacked_length\": 9000000, \"range\": {\"start\": 0, \"end\": 99}}], "
            "\"fetch_info\": {\"a\": [{\"range\": {\"start\": 0, \"end\": 99}, \"url\": "
            "\"http://169.254.169.254/keys\", \"url_range\": {\"start\": 0, \"end\": 9}}]}}";
    else if (what == BAD_ANSWER)
        xet.answer = "{\"xorbs\": {}}";
    else if (what == TOO_SHORT)
        xet.answer = "{\"offset_into_first_range\": 0, \"terms\": [{\"hash\": \"a\", "
                     "\"unpacked_length\": 9, \"range\": {\"start\": 0, \"end\": 1}}], "
                     "\"fetch_info\": {\"a\": [{\"range\": {\"start\": 0, \"end\": 1}, \"url\": "
                     "\"http://127.0.0.1:1/\", \"url_range\": {\"start\": 0, \"end\": 9}}]}}";
    else if (what == EXPIRED)
        xet.oldest_signed = 1000;
    else if (what == REFUSED)
        xet.oldest_token = 1000;
    else if (what == SPOILT)
        sl_xet_store_spoil(&xet, true);
    else if (what == WHOLE || what == BARE)
        SL_SCRIPT(xet.cdn, {.fault = what == WHOLE ? SL_FAULT_WHOLE : SL_FAULT_BARE});
    if (what == NO_STORE) {
        snprintf(nowhere, sizeof(nowhere), "http://127.0.0.1:%u/elsewhere",
                 sl_server_port(xet.cdn));
        hub.xet_url = nowhere;
        xet.leaked_tokens = 0;
    }
}

/* Once for a store: what follows goes by links at once. */
SL_TEST_LOOP(what_lasts_leads_back_to_the_links, NO_TOKEN, BARE + 1)
{
    struct sl_err err;
    struct sl_progress *progress = sl_progress_new("it", model, "", NULL);
    config.progress = progress;
    options.xet = SL_XET_AUTO;
    config.attempts = _i == UNREACHED ? 2 : config.attempts; /* nobody waits for it twice */
    fake_clock_run();
    break_xet((enum broken)_i);
    ck_assert_msg(read_model(400000, &err) == 0, "%s", err.message);
    ck_assert_uint_gt(by_links(), 0);
    ck_assert_uint_eq(sl_progress_counts(progress).fallbacks, 1);
    sl_progress_free(progress);
    if (_i == NO_STORE)
        xet.leaked_tokens = 0; /* the token went where the hub said that the store is */
}

SL_TEST_LOOP(what_lasts_is_an_error_where_xet_is_asked_for, NO_TOKEN, BARE + 1)
{
    struct sl_err err;
    fake_clock_run();
    break_xet((enum broken)_i);
    ck_assert_int_eq(read_model(400000, &err), -1);
    ck_assert_uint_eq(by_links(), 0);
    ck_assert_msg(strstr(err.message, "hf://org/name/") != NULL, "%s", err.message);
    ck_assert_msg(!strstr(err.message, "sig=") && !strstr(err.message, "xet-1"), "%s", err.message);
    if (_i == NO_STORE)
        xet.leaked_tokens = 0;
}

/* ---- answers without a range ----------------------------------------------------------------- */

/* Whatever the bytes are, nobody says of which place: they are not looked at, nor asked for again.
 */
SL_TEST_LOOP(a_xorb_without_its_range_is_refused_at_once, WHOLE, BARE + 1)
{
    struct sl_err err;
    break_xet((enum broken)_i);
    ck_assert_int_eq(read_model(400000, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_str_eq(err.code, "range");
    ck_assert_msg(
        strstr(err.message, "cannot read 'hf://org/name/model.safetensors' through Xet") &&
            strstr(err.message, "200 instead of 206"),
        "%s", err.message);
    ck_assert_uint_eq(sl_xet_store_fetched(&xet), 1);
}

/* Of xorbs that are wanted whole, 200 brings just that. */
SL_TEST(a_whole_xorb_needs_no_range)
{
    struct sl_err err = SL_ERR_INIT;
    static uint8_t data[SL_BLOB_BYTES];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    struct sl_version version = {.pin = SL_HUB_COMMIT};
    sl_xet_store_stop(&xet);
    sl_xet_store_start(&xet);
    hub.xet_url = sl_server_url(xet.cas, "");
    hub.file_count = 0;
    xet.shares_nothing = true;
    put(sl_blob());
    SL_SCRIPT(xet.cdn, {.fault = SL_FAULT_WHOLE});
    ck_assert_int_eq(sl_store_open("hf://org/name", &config, &store, &key, &err), 0);
    ck_assert_msg(sl_store_list(store, take, NULL, &err) == 0, "%s", err.message);
    ck_assert_int_eq(
        sl_source_known(store, "model.safetensors", SL_BLOB_BYTES, &version, &source, &err), 0);
    ck_assert_msg(sl_source_read(source, 0, data, sizeof(data), &err) == 0, "%s", err.message);
    ck_assert_mem_eq(data, sl_blob(), sizeof(data));
    ck_assert_uint_eq(by_links(), 0);
}

/* ---- wrong bytes ----------------------------------------------------------------------------- */

/* A chunk that is not compressed has nothing of its own that tells. What is read by links after
 * that is not Xet's. */
SL_TEST_LOOP(a_file_with_another_hash_is_refused, 0, 2)
{
    struct sl_err err = SL_ERR_INIT;
    static uint8_t data[SL_BLOB_BYTES];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    options.xet = _i ? SL_XET_AUTO : SL_XET_ON;
    fake_clock_run();
    sl_xet_store_spoil(&xet, false);
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 10, &source, &err), 0);
    ck_assert_int_eq(sl_source_read_past(source, 300000, data, 700000, &err), 0);
    ck_assert_int_eq(sl_source_read_past(source, 0, data, 350000, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "xet-hash");
    ck_assert_msg(strstr(err.message, "source.hf.xet") != NULL, "%s", err.message);
    ck_assert_uint_eq(by_links(), 0);
    ck_assert_int_eq(sl_source_read_past(source, 0, data, 350000, &err), _i ? 0 : -1);
    ck_assert_int_eq(by_links() > 0, _i);
}

/* A chunk that both ranges need. Nobody else checks the bytes, so links do not help. */
SL_TEST_LOOP(a_chunk_that_comes_wrong_once_is_read_again, 0, 4)
{
    struct sl_err err = SL_ERR_INIT;
    static uint8_t data[SL_BLOB_BYTES];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    options.xet = _i & 1 ? SL_XET_AUTO : SL_XET_ON;
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 10, &source, &err), 0);
    ck_assert_int_eq(sl_source_read_past(source, 0, data, 50000, &err), 0);
    fake_clock_run();
    sl_xet_store_spoil(&xet, false);
    if (_i < 2)
        xet.heals_at = xet.asked + 2;
    ck_assert_int_eq(sl_source_read_past(source, 0, data, sizeof(data), &err), _i < 2 ? 0 : -1);
    ck_assert_str_eq(err.code, _i < 2 ? "" : "xet-hash");
    if (_i < 2)
        ck_assert_mem_eq(data, sl_blob(), sizeof(data));
    ck_assert_uint_eq(by_links(), 0);
}

/* ---- what was checked ------------------------------------------------------------------------ */

struct opened {
    struct sl_store *store;
    struct sl_source *source;
    char *key;
};

static void open_model(struct opened *opened)
{
    struct sl_err err = SL_ERR_INIT;
    *opened = (struct opened){.store = NULL};
    ck_assert_int_eq(sl_store_open(model, &config, &opened->store, &opened->key, &err), 0);
    ck_assert_msg(sl_source_open(opened->store, opened->key, 10, &opened->source, &err) == 0, "%s",
                  err.message);
}

static void close_model(struct opened *opened)
{
    sl_source_free(opened->source);
    sl_store_free(opened->store);
    free(opened->key);
}

static int read_part(struct opened *opened, uint64_t begin, size_t bytes, struct sl_err *err)
{
    static uint8_t data[SL_BLOB_BYTES];
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_source_read_past(opened->source, begin, data, bytes, err);
}

/* When its last chunk has come, and not before; what comes again is compared. */
SL_TEST(a_file_is_checked_when_all_of_it_came_through_xet)
{
    struct sl_err err;
    struct opened opened;
    open_model(&opened);
    ck_assert_int_eq(read_part(&opened, 300000, 700000, &err), 0);
    ck_assert_int_eq(sl_source_delivery(opened.source), SL_DELIVERY_CHECKING);
    ck_assert_int_eq(read_part(&opened, 0, SL_BLOB_BYTES, &err), 0);
    ck_assert_int_eq(sl_source_delivery(opened.source), SL_DELIVERY_CHECKED);
    ck_assert_int_eq(read_part(&opened, 1000, 200000, &err), 0);
    ck_assert_int_eq(sl_source_delivery(opened.source), SL_DELIVERY_CHECKED);
    close_model(&opened);
}

SL_TEST(a_file_that_changes_after_it_was_right_is_noticed)
{
    struct sl_err err;
    struct opened opened;
    open_model(&opened);
    ck_assert_int_eq(read_part(&opened, 0, SL_BLOB_BYTES, &err), 0);
    sl_xet_store_spoil(&xet, false);
    ck_assert_int_eq(read_part(&opened, 0, SL_BLOB_BYTES, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "xet-hash");
    close_model(&opened);
}

/* The rest comes by links: what Xet checked is no longer all of it. */
SL_TEST(a_file_that_came_both_ways_is_not_checked)
{
    struct sl_err err;
    struct opened opened;
    options.xet = SL_XET_AUTO;
    open_model(&opened);
    ck_assert_int_eq(read_part(&opened, 300000, 700000, &err), 0);
    xet.answer = "{}";
    ck_assert_msg(read_part(&opened, 0, 300000, &err) == 0, "%s", err.message);
    ck_assert_uint_gt(by_links(), 0);
    ck_assert_int_eq(sl_source_delivery(opened.source), SL_DELIVERY_UNCHECKED);
    close_model(&opened);
}

/* Even where Xet has brought all of it, before or after. */
SL_TEST(a_file_that_was_read_by_links_too_is_not_checked)
{
    struct sl_err err;
    struct opened opened;
    options.xet = SL_XET_AUTO;
    open_model(&opened);
    ck_assert_int_eq(read_part(&opened, 0, SL_BLOB_BYTES, &err), 0);
    ck_assert_int_eq(sl_source_delivery(opened.source), SL_DELIVERY_CHECKED);
    xet.answer = "{}";
    ck_assert_msg(read_part(&opened, 0, 300000, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_source_delivery(opened.source), SL_DELIVERY_UNCHECKED);
    close_model(&opened);
}

/* ---- buckets --------------------------------------------------------------------------------- */

static const char kept[] = "hf://buckets/org/name/m.bin";

/* By its hash, which is its pin: the hub is asked which one it is, and for a token, and whatever
 * the file has become since, what was opened is read. */
SL_TEST(a_file_of_a_bucket_is_read_by_its_hash)
{
    struct sl_err err = SL_ERR_INIT;
    static uint8_t data[SL_BLOB_BYTES];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    sl_hub_keep(&hub, "m.bin", sl_blob(), SL_BLOB_BYTES, xet.file_hash);
    ck_assert_int_eq(sl_store_open(kept, &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    ck_assert_str_eq(sl_source_version(source)->pin, xet.file_hash);
    ck_assert_int_eq(sl_source_delivery(source), SL_DELIVERY_CHECKING);
    sl_hub_keep(&hub, "m.bin", "other", 5, NULL);
    ck_assert_msg(sl_source_read_past(source, 0, data, sizeof(data), &err) == 0, "%s", err.message);
    ck_assert_mem_eq(data, sl_blob(), sizeof(data));
    ck_assert_int_eq(sl_source_delivery(source), SL_DELIVERY_CHECKED);
    ck_assert_uint_eq(by_links(), 0);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/buckets/org/name/paths-info"), 1);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/buckets/org/name/xet-read-token"), 1);
    ck_assert_uint_eq(sl_server_request_count(hub.origin), 2);
}

/* By the link of the same content, or not at all. */
SL_TEST_LOOP(what_xet_does_not_bring_of_a_bucket_comes_by_the_link_of_its_content, 0, 2)
{
    struct sl_err err = SL_ERR_INIT;
    static uint8_t data[SL_BLOB_BYTES];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    options.xet = SL_XET_AUTO;
    sl_hub_keep(&hub, "m.bin", sl_blob(), SL_BLOB_BYTES, xet.file_hash);
    ck_assert_int_eq(sl_store_open(kept, &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    xet.answer = "{}";
    if (_i)
        sl_hub_keep(&hub, "m.bin", "other", 5, NULL);
    ck_assert_int_eq(sl_source_read_past(source, 0, data, sizeof(data), &err), _i ? -1 : 0);
    ck_assert_str_eq(err.code, _i ? "changed" : "");
    if (_i == 0)
        ck_assert_mem_eq(data, sl_blob(), sizeof(data));
    ck_assert_int_eq(by_links() > 0, _i == 0);
}

/* ---- bytes that repeat ----------------------------------------------------------------------- */

/* Nearly every term needs the same chunks: they come once, and are used again and again. */
static void setup_repeating(void)
{
    static uint8_t data[SL_BLOB_BYTES];
    enum { PERIOD = 100001 + 8192 + 50000 + 3 + 131072 + 65537 + 1 };
    start();
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = sl_blob()[i % PERIOD];
    put(data);
}

static const struct sl_claim_case repeating = {.setup = setup_repeating, .teardown = teardown};

SL_TEST_OF(repeating, what_several_terms_need_comes_once)
{
    struct sl_err err = SL_ERR_INIT;
    static uint8_t data[SL_BLOB_BYTES];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    unsigned before = sl_xet_store_fetched(&xet);
    ck_assert_msg(sl_source_read_past(source, 0, data, sizeof(data), &err) == 0, "%s", err.message);
    ck_assert_mem_eq(data, sl_blob(), 300000);
    ck_assert_mem_eq(data + 354806, sl_blob(), 300000);
    ck_assert_uint_le(sl_xet_store_fetched(&xet) - before, 5);
}

/* ---- memory ---------------------------------------------------------------------------------- */

SL_TEST(every_allocation_may_fail)
{
    unsigned failed = 0, nth = 1;
    config.attempts = 1;
    for (;; nth++) {
        struct sl_err err = SL_ERR_INIT;
        uint8_t data[3000];
        SL_AUTO(sl_store) store = NULL;
        SL_AUTO(sl_source) source = NULL;
        sl_autofree char *key = NULL;
        sl_alloc_fail_at(nth);
        int result = sl_store_open(model, &config, &store, &key, &err);
        if (result == 0)
            result = sl_source_open(store, key, 10, &source, &err);
        if (result == 0)
            result = sl_source_read(source, 99000, data, sizeof(data), &err);
        bool over = sl_alloc_count() < nth;
        sl_alloc_fail_at(0);
        failed += result < 0;
        if (result == 0)
            ck_assert_mem_eq(data, sl_blob() + 99000, sizeof(data));
        if (over)
            break;
    }
    ck_assert_uint_gt(failed, 20);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
