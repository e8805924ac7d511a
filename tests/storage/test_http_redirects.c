/* Signed links: one request asks where an object is, all connections use what it was told, and one
 * asks again when the link has expired. */
#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "fetch.h"
#include "http_call.h"
#include "http_store.h"
#include "range_blob.h"
#include "stores.h"

enum { LANES = 8, HEAD_BYTES = 1000, PIECE_BYTES = 100 * 1000 };

static struct sl_server *origin, *target;
static struct sl_store *store;
static const struct sl_source_config config = {
    .attempts = 2, .stall_seconds = 20, .hedge = SL_HEDGE_OFF};

/* "Location: …/cdn/KEY?n" of the nth request. */
static bool give_link(const struct sl_server_request *request, struct sl_server_reply *reply,
                      void *arg)
{
    unsigned *given = arg;
    const char *name = strrchr(request->target, '/') + 1;
    if (strncmp(request->target, "/d/", 3) != 0)
        return false;
    reply->status = 302;
    snprintf(reply->headers, sizeof(reply->headers), "Location: http://127.0.0.1:%u/cdn/%s?%u\r\n",
             sl_server_port(target), name, ++*given);
    return true;
}

/* Links below *oldest have expired. */
static bool refuse_old(const struct sl_server_request *request, struct sl_server_reply *reply,
                       void *arg)
{
    const unsigned *oldest = arg;
    unsigned number = 0;
    const char *query = strchr(request->target, '?');
    if (!query || sscanf(query, "?%u", &number) != 1 || number >= *oldest)
        return false;
    reply->status = 403;
    return true;
}

static unsigned given, oldest;

static void setup(void)
{
    sl_autofree char *key = NULL;
    given = oldest = 0;
    origin = sl_server_start();
    target = sl_server_start();
    sl_server_put(target, "/cdn/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    sl_server_put(target, "/cdn/n", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    sl_server_handle(origin, give_link, &given);
    sl_server_handle(target, refuse_old, &oldest);
    ck_assert_int_eq(sl_store_open(sl_server_url(origin, "/d/m"), &config, &store, &key, NULL), 0);
}

static void teardown(void)
{
    sl_store_free(store);
    sl_server_stop(origin);
    sl_server_stop(target);
}

static struct sl_source *known(const char *name)
{
    static const struct sl_version version = {.etag = "\"v1\""};
    struct sl_source *source = NULL;
    ck_assert_int_eq(sl_source_known(store, name, SL_BLOB_BYTES, &version, &source, NULL), 0);
    return source;
}

struct reading {
    struct sl_fetch *fetch;
    uint8_t data[PIECE_BYTES];
    size_t got;
    bool over;
};

/* What can be read now; the others of a wave have begun before any of them goes on. */
static void step(struct reading *reading, struct pollfd *fds, unsigned *count, struct sl_err *err)
{
    struct pollfd own[SL_IO_POLL_MAX];
    uint64_t deadline_ns;
    enum sl_io_state state = SL_IO_DATA;
    uint8_t beyond;
    while (state == SL_IO_DATA) {
        size_t got, room = sizeof(reading->data) - reading->got;
        state = room ? sl_fetch_read(reading->fetch, reading->data + reading->got, room, &got, err)
                     : sl_fetch_read(reading->fetch, &beyond, 1, &got, err);
        ck_assert_msg(state != SL_IO_FAILED, "%s", err->message);
        reading->got += got;
    }
    reading->over = state == SL_IO_END;
    int waits = reading->over ? 0 : sl_fetch_poll(reading->fetch, own, &deadline_ns);
    for (int i = 0; i < waits; i++)
        fds[(*count)++] = own[i];
}

/* LANES ranges at once, each on a connection of its own, driven by this thread. */
static void read_wave(struct sl_source *source)
{
    struct sl_err err = SL_ERR_INIT;
    struct reading *readings = sl_alloc_array(LANES, sizeof(*readings), &err);
    unsigned left = LANES;
    for (unsigned i = 0; i < LANES; i++) {
        readings[i].fetch = sl_fetch_new(store, &err);
        ck_assert_int_eq(
            sl_fetch_start(readings[i].fetch, source, i * PIECE_BYTES, (i + 1) * PIECE_BYTES, &err),
            0);
    }
    while (left) {
        struct pollfd fds[LANES * SL_IO_POLL_MAX];
        unsigned count = 0;
        left = 0;
        for (unsigned i = 0; i < LANES; i++) {
            if (!readings[i].over)
                step(&readings[i], fds, &count, &err);
            left += !readings[i].over;
        }
        if (left)
            poll(fds, count, 10);
    }
    for (unsigned i = 0; i < LANES; i++) {
        ck_assert_mem_eq(readings[i].data, sl_blob() + i * PIECE_BYTES, PIECE_BYTES);
        sl_fetch_free(readings[i].fetch);
    }
    free(readings);
}

SL_TEST(a_link_is_asked_for_once_for_all_sources_of_an_object)
{
    SL_AUTO(sl_source) opened = NULL;
    ck_assert_int_eq(sl_source_open(store, "m", HEAD_BYTES, &opened, NULL), 0);
    read_wave(opened);
    SL_AUTO(sl_source) again = known("m");
    read_wave(again);
    ck_assert_uint_eq(sl_server_request_count(origin), 1);
    ck_assert_uint_eq(sl_server_request_count(target), 1 + 2 * LANES);
}

SL_TEST(an_expired_link_is_asked_for_again_by_one)
{
    SL_AUTO(sl_source) source = NULL;
    ck_assert_int_eq(sl_source_open(store, "m", HEAD_BYTES, &source, NULL), 0);
    oldest = 2;
    read_wave(source);
    ck_assert_uint_eq(sl_server_request_count(origin), 2);
    oldest = 3;
    read_wave(source);
    ck_assert_uint_eq(sl_server_request_count(origin), 3);
}

/* Where one object led elsewhere, another that a listing told of is asked for by one, too. */
SL_TEST(unopened_objects_of_such_a_store_are_asked_for_once)
{
    SL_AUTO(sl_source) first = NULL;
    ck_assert_int_eq(sl_source_open(store, "m", HEAD_BYTES, &first, NULL), 0);
    SL_AUTO(sl_source) second = known("n");
    read_wave(second);
    ck_assert_uint_eq(sl_server_request_count(origin), 2);
}

/* Whoever asks may be stopped before it has an answer: another one asks then. */
SL_TEST(who_asks_may_give_up)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_source) source = NULL;
    ck_assert_int_eq(sl_source_open(store, "m", HEAD_BYTES, &source, NULL), 0);
    SL_AUTO(sl_source) other = known("n");
    SL_AUTO(sl_fetch) asks = sl_fetch_new(store, &err);
    ck_assert_int_eq(sl_fetch_start(asks, other, 0, 10, &err), 0);
    SL_AUTO(sl_fetch) waits = sl_fetch_new(store, &err);
    ck_assert_int_eq(sl_fetch_start(waits, other, 0, 10, &err), 0);
    struct pollfd fds[SL_IO_POLL_MAX];
    uint64_t deadline_ns;
    ck_assert_int_eq(sl_fetch_poll(waits, fds, &deadline_ns), 1);
    ck_assert_int_eq(poll(fds, 1, 0), 0);
    sl_fetch_abort(asks);
    ck_assert_int_eq(poll(fds, 1, 10000), 1);
    read_wave(other);
    sl_fetch_abort(waits);
}

/* Where nothing is redirected nobody waits for anybody: each of them is at the server. */
SL_TEST(objects_that_lead_nowhere_are_not_waited_for)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_store *plain = NULL;
    struct sl_source *source = NULL;
    struct sl_fetch *fetches[LANES];
    sl_autofree char *key = NULL;
    static const struct sl_version version = {.etag = "\"v1\""};
    SL_SCRIPT(target, {.path = "/cdn/m", .fault = SL_FAULT_STALL, .after = -1});
    ck_assert_int_eq(sl_store_open(sl_server_url(target, "/cdn/m"), &config, &plain, &key, &err),
                     0);
    ck_assert_int_eq(sl_source_known(plain, "m", SL_BLOB_BYTES, &version, &source, &err), 0);
    for (unsigned i = 0; i < LANES; i++) {
        fetches[i] = sl_fetch_new(plain, &err);
        ck_assert_int_eq(sl_fetch_start(fetches[i], source, 0, 10, &err), 0);
    }
    SL_AWAIT(({
                 uint8_t data[10];
                 size_t got;
                 for (unsigned i = 0; i < LANES; i++)
                     sl_fetch_read(fetches[i], data, sizeof(data), &got, NULL);
                 sl_server_request_count(target) == LANES;
             }),
             "every request at the server");
    for (unsigned i = 0; i < LANES; i++)
        sl_fetch_free(fetches[i]);
    sl_source_free(source);
    sl_store_free(plain);
}

static int note_length(void *arg, const char *from, const char *to, int status, struct sl_err *err)
{
    (void)from, (void)status, (void)err;
    *(size_t *)arg = strlen(to);
    return 0;
}

/* Signed links are long, and one that is cut leads elsewhere. */
SL_TEST(a_long_link_is_followed_whole)
{
    enum { LONG = 10000 };
    static const char begin[] = "http://h.io/";
    size_t length = 0;
    unsigned count = 0;
    struct sl_err err = SL_ERR_INIT;
    char path[LONG + 1] = "", head[LONG + 100];
    memset(path, 'x', LONG);
    snprintf(head, sizeof(head), "HTTP/1.1 307 Moved\r\nLocation: %s%s\r\n\r\n", begin, path);
    const struct sl_http_call call = {.what = "a test", .arg = &length, .redirect = note_length};
    const struct sl_answer answer = {.status = 307, .head = head};
    ck_assert_msg(sl_http_follow(&call, "http://h.io/", &answer, &count, &err) == 0, "%s",
                  err.message);
    ck_assert_uint_eq(length, sizeof(begin) - 1 + LONG);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
