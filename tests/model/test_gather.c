/* Many small ranges over HTTP: every item gets its bytes, gaps are merged, faults are mended or
 * reported. */
#include "gather.h"

#include <check.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"
#include "index.h"
#include "mem.h"
#include "range_server.h"
#include "stores.h"

enum { OBJECT_BYTES = 4 * 1024 * 1024, ITEMS = 24, DISTANT_MS = 200 };

static uint8_t object[OBJECT_BYTES];

static void fill_object(void)
{
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof(object); i++) {
        state = state * 1664525u + 1013904223u;
        object[i] = (uint8_t)(state >> 24);
    }
}

struct remote {
    struct sl_server *server;
    struct sl_store *store;
    struct sl_source *source;
};

static void remote_open(struct remote *remote, const struct sl_source_config *config)
{
    char *key;
    remote->server = sl_server_start();
    sl_server_put(remote->server, "/o", object, sizeof(object), "\"1\"");
    if (config && config->preconnect) /* the first answer takes as long as from far away */
        SL_SCRIPT(remote->server,
                  {.path = "/o", .first = 1, .fault = SL_FAULT_SLOW, .after = DISTANT_MS});
    ck_assert_int_eq(
        sl_store_open(sl_server_url(remote->server, "/o"), config, &remote->store, &key, NULL), 0);
    ck_assert_int_eq(sl_source_open(remote->store, key, SL_INDEX_HEAD_BYTES, &remote->source, NULL),
                     0);
    free(key);
}

static void remote_close(struct remote *remote)
{
    sl_source_free(remote->source);
    sl_store_free(remote->store);
    sl_server_stop(remote->server);
}

/* ITEMS items of 100 bytes, `stride` bytes apart, in reverse order. */
static void make_items(struct sl_gather_item *items, uint8_t (*data)[100], uint64_t first,
                       uint64_t stride)
{
    memset(data, 0, ITEMS * 100);
    for (size_t i = 0; i < ITEMS; i++) {
        uint64_t begin = first + (ITEMS - 1 - i) * stride;
        items[i] = (struct sl_gather_item){begin, begin + 100, data[i]};
    }
}

static void check_items(const struct sl_gather_item *items)
{
    for (size_t i = 0; i < ITEMS; i++)
        ck_assert_mem_eq(items[i].data, object + items[i].begin, 100);
}

static uint64_t requests_of(const struct remote *remote)
{
    uint64_t requests, bytes;
    sl_source_counts(remote->source, &requests, &bytes);
    return requests;
}

SL_TEST(ranges_far_apart_are_fetched_one_by_one)
{
    struct remote remote;
    struct sl_gather_item items[ITEMS];
    uint8_t data[ITEMS][100];
    remote_open(&remote, NULL);
    make_items(items, data, 200000, 101 + SL_GATHER_GAP_BYTES); /* one byte more than is merged */
    ck_assert_int_eq(sl_gather(remote.source, items, ITEMS, NULL), 0);
    check_items(items);
    ck_assert_uint_eq(requests_of(&remote), 1 + ITEMS);
    remote_close(&remote);
}

/* How many connections as many items take, each a request of its own. */
static unsigned connections_for(size_t count, const struct sl_source_config *config)
{
    enum { MOST = 300, STRIDE = SL_GATHER_GAP_BYTES + 2 };
    static uint8_t data[MOST];
    struct sl_gather_item items[MOST];
    struct remote remote;
    uint8_t *large = calloc(count, STRIDE);
    for (size_t i = 0; i < count; i++) {
        large[i * STRIDE] = (uint8_t)(i % 255 + 1);
        items[i] = (struct sl_gather_item){i * STRIDE, i * STRIDE + 1, &data[i]};
    }
    remote_open(&remote, config);
    sl_server_put(remote.server, "/large", large, count * STRIDE, "\"2\"");
    SL_AUTO(sl_source) source = NULL;
    ck_assert_int_eq(sl_source_open(remote.store, "large", 1, &source, NULL), 0);
    ck_assert_int_eq(sl_gather(source, items, count, NULL), 0);
    for (size_t i = 0; i < count; i++)
        ck_assert_uint_eq(data[i], i % 255 + 1);
    unsigned connections = sl_server_connection_count(remote.server);
    sl_source_free(sl_steal(&source));
    remote_close(&remote);
    free(large);
    return connections;
}

SL_TEST(many_ranges_use_more_connections_and_more_of_a_store_far_away)
{
    const struct sl_source_config far = {.preconnect = 1};
    fake_clock_run();
    ck_assert_uint_le(connections_for(64, NULL), 9);
    unsigned hundreds = connections_for(300, NULL);
    ck_assert_uint_gt(hundreds, 9);
    ck_assert_uint_le(hundreds, SL_GATHER_CONNECTIONS_MAX + 1);
    ck_assert_uint_gt(connections_for(64, &far), 20);
    ck_assert_uint_le(connections_for(16, &far), 10);
}

SL_TEST(ranges_with_small_gaps_share_a_request)
{
    struct remote remote;
    struct sl_gather_item items[ITEMS];
    uint8_t data[ITEMS][100];
    remote_open(&remote, NULL);
    make_items(items, data, 200000, 100 + SL_GATHER_GAP_BYTES);
    ck_assert_int_eq(sl_gather(remote.source, items, ITEMS, NULL), 0);
    check_items(items);
    ck_assert_uint_eq(requests_of(&remote), 2);
    remote_close(&remote);
}

SL_TEST(what_the_head_holds_is_not_fetched_again)
{
    struct remote remote;
    struct sl_gather_item items[ITEMS];
    uint8_t data[ITEMS][100];
    remote_open(&remote, NULL);
    make_items(items, data, 0, 5000);
    ck_assert_int_eq(sl_gather(remote.source, items, ITEMS, NULL), 0);
    check_items(items);
    ck_assert_uint_eq(requests_of(&remote), 1);
    remote_close(&remote);
}

SL_TEST(without_a_head_its_ranges_share_requests_too)
{
    struct remote remote;
    struct sl_gather_item items[ITEMS];
    uint8_t data[ITEMS][100];
    remote_open(&remote, NULL);
    struct sl_source *headless;
    ck_assert_int_eq(sl_source_known(remote.store, sl_source_name(remote.source), OBJECT_BYTES,
                                     sl_source_version(remote.source), &headless, NULL),
                     0);
    ck_assert_uint_eq(sl_source_held(headless), 0);
    sl_source_free(remote.source);
    remote.source = headless;
    make_items(items, data, 10, 1000);
    ck_assert_int_eq(sl_gather(remote.source, items, ITEMS, NULL), 0);
    check_items(items);
    ck_assert_uint_eq(requests_of(&remote), 1);
    remote_close(&remote);
}

SL_TEST(broken_answers_are_mended)
{
    struct remote remote;
    struct sl_gather_item items[ITEMS];
    uint8_t data[ITEMS][100];
    remote_open(&remote, NULL);
    SL_SCRIPT(remote.server, {.first = 3, .last = 3, .fault = SL_FAULT_RESET, .after = 50},
              {.first = 7, .last = 8, .fault = SL_FAULT_SHORT, .after = 10});
    make_items(items, data, 200000, 150000);
    ck_assert_int_eq(sl_gather(remote.source, items, ITEMS, NULL), 0);
    check_items(items);
    remote_close(&remote);
}

SL_TEST(a_changed_object_is_reported)
{
    struct remote remote;
    struct sl_gather_item items[ITEMS];
    uint8_t data[ITEMS][100];
    struct sl_err err = SL_ERR_INIT;
    remote_open(&remote, NULL);
    SL_SCRIPT(remote.server, {.first = 5, .last = 5, .fault = SL_FAULT_CHANGED});
    make_items(items, data, 200000, 150000);
    ck_assert_int_lt(sl_gather(remote.source, items, ITEMS, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    remote_close(&remote);
}

SL_TEST(a_canceled_wait_ends)
{
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    const struct sl_source_config config = {.cancel = cancel};
    struct remote remote;
    struct sl_gather_item items[ITEMS];
    uint8_t data[ITEMS][100];
    struct sl_err err = SL_ERR_INIT;
    remote_open(&remote, &config);
    SL_SCRIPT(remote.server, {.fault = SL_FAULT_STALL, .after = 10});
    make_items(items, data, 200000, 150000);
    sl_cancel_raise(cancel, 0);
    ck_assert_int_lt(sl_gather(remote.source, items, ITEMS, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    remote_close(&remote);
    sl_cancel_free(cancel);
}

/* Compares a stream with the object. */
static int compare_piece(void *at, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    uint64_t *position = at;
    (void)err;
    ck_assert_mem_eq(data, object + *position, bytes);
    *position += bytes;
    return 0;
}

SL_TEST(a_stream_brings_every_byte_once_and_in_order)
{
    struct remote remote;
    remote_open(&remote, NULL);
    SL_SCRIPT(remote.server, {.first = 2, .last = 2, .fault = SL_FAULT_SHORT, .after = 1000000});
    uint64_t at = 1000; /* the head holds the first 127 KiB of it */
    ck_assert_int_eq(sl_gather_stream(remote.source, 1000, OBJECT_BYTES, compare_piece, &at, NULL),
                     0);
    ck_assert_uint_eq(at, OBJECT_BYTES);
    remote_close(&remote);
}

static bool prepare(void)
{
    fill_object();
    return true;
}

SL_CASE(.prepare = prepare)
