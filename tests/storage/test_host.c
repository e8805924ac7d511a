/* Several addresses of a name: who gets connections, who gets none, and what is limited. */
#include "host.h"

#include <arpa/inet.h>
#include <check.h>
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "fetch.h"
#include "mem.h"
#include "range_blob.h"
#include "stores.h"
#include "thread.h"

enum { PORT = 80, SEATS = 8 };

/* pair.test has two addresses, nowhere.test none. */
static struct sl_counter look_ups;
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **list)
{
    int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "getaddrinfo");
    sl_counter_add(&look_ups, 1);
    if (node && strcmp(node, "nowhere.test") == 0)
        return EAI_NONAME;
    if (!node || strcmp(node, "pair.test") != 0)
        return next(node, service, hints, list);
    int failed = next("127.0.0.2", service, hints, list);
    struct addrinfo *last = *list;
    while (!failed && last->ai_next)
        last = last->ai_next;
    return failed ? failed : next("127.0.0.3", service, hints, &last->ai_next);
}

/* ---- permits -----------------------------------------------------------------------------------
 */

static struct sl_permit permits[SEATS];
static int load_a, load_b; /* two owners */

static void sit(unsigned number, const char *name, const void *owner, unsigned limit)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_host_ask_permit(&permits[number], name, PORT, owner, limit, &err), 0);
}

static void must_know(struct sl_permit *permit)
{
    struct sl_err err = SL_ERR_INIT;
    enum sl_host_state state;
    struct pollfd fd = {sl_host_fd(permit), POLLIN, 0};
    while ((state = sl_host_look_up(permit, &err)) == SL_HOST_WAIT)
        poll(&fd, 1, 60000);
    ck_assert_msg(state == SL_HOST_KNOWN, "%s", err.message);
}

/* A connection to pair.test: the address that comes first, and that it is. */
static int connect_permit(unsigned number)
{
    char text[SL_HOST_RESOLVE_BYTES], first[64];
    struct in_addr address;
    sit(number, "pair.test", &load_a, 0);
    ck_assert(sl_host_is_permitted(&permits[number]));
    must_know(&permits[number]);
    ck_assert(sl_host_choose(&permits[number], 0, text));
    ck_assert_msg(sscanf(text, "pair.test:80:%63[0-9.],", first) == 1, "%s", text);
    ck_assert_int_eq(inet_pton(AF_INET, first, &address), 1);
    const struct sockaddr_in place = {.sin_family = AF_INET, .sin_addr = address};
    int found = sl_host_number(&permits[number], (const struct sockaddr *)&place);
    sl_host_connected(&permits[number], found);
    return found;
}

static void leave_all(void)
{
    for (unsigned i = 0; i < SEATS; i++)
        sl_host_leave(&permits[i]);
}

SL_TEST(connections_are_spread_over_all_addresses)
{
    unsigned counts[2] = {0};
    uint64_t before = sl_counter_get(&look_ups);
    for (unsigned i = 0; i < SEATS; i++)
        counts[connect_permit(i)]++;
    ck_assert_uint_eq(counts[0], SEATS / 2);
    ck_assert_uint_eq(counts[1], SEATS / 2);
    ck_assert_uint_eq(sl_counter_get(&look_ups) - before, 1);
}

SL_TEST(an_address_that_refuses_gets_none_for_a_while)
{
    int dead = connect_permit(0);
    sl_host_refused(&permits[0], dead);
    sl_host_leave(&permits[0]);
    for (unsigned i = 1; i < SEATS; i++)
        ck_assert_int_ne(connect_permit(i), dead);
    ck_assert(!sl_host_has_other(&permits[1], UINT32_C(1) << !dead));
}

SL_TEST(one_that_fails_again_and_again_is_left)
{
    int bad = connect_permit(0);
    connect_permit(1);
    for (int i = 0; i < 2; i++)
        sl_host_troubled(&permits[0]);
    ck_assert(!sl_host_outdone(&permits[0]));
    sl_host_answered(&permits[0], 1 << 20, SL_NS_PER_MS, true); /* it does well again */
    for (int i = 0; i < 3; i++) {
        ck_assert(!sl_host_outdone(&permits[0]));
        sl_host_troubled(&permits[0]);
    }
    ck_assert(sl_host_outdone(&permits[0]));
    ck_assert(!sl_host_outdone(&permits[1]));
    for (unsigned i = 2; i < SEATS; i++)
        ck_assert_int_ne(connect_permit(i), bad);
}

/* A third of the rate: fewer connections. A tenth: none. */
SL_TEST(a_slow_one_gets_fewer_then_none)
{
    int slow = connect_permit(0), fast = connect_permit(1);
    unsigned there = 0;
    for (int i = 0; i < 10; i++) {
        sl_host_answered(&permits[0], 1 << 20, 30 * SL_NS_PER_MS, true);
        sl_host_answered(&permits[1], 1 << 20, 10 * SL_NS_PER_MS, true);
    }
    ck_assert_int_ne(slow, fast);
    ck_assert(!sl_host_outdone(&permits[0]));
    for (unsigned i = 2; i < SEATS; i++)
        there += connect_permit(i) == slow;
    ck_assert_uint_ge(there, 1);
    ck_assert_uint_le(there, 2);
    for (int i = 0; i < 10; i++)
        sl_host_answered(&permits[0], 1 << 20, 300 * SL_NS_PER_MS, true);
    ck_assert(sl_host_outdone(&permits[0]));
    sl_host_leave(&permits[2]);
    ck_assert_int_eq(connect_permit(2), fast);
}

SL_TEST(one_where_a_request_fell_silent_comes_last)
{
    int silent = connect_permit(0);
    sl_host_doubted(&permits[0]);
    for (unsigned i = 1; i < SEATS; i++)
        ck_assert_int_ne(connect_permit(i), silent);
    ck_assert(!sl_host_outdone(&permits[0]));
}

SL_TEST(where_all_are_bad_all_are_tried)
{
    char text[SL_HOST_RESOLVE_BYTES];
    connect_permit(0);
    sl_host_refused(&permits[0], 0);
    sl_host_refused(&permits[0], 1);
    ck_assert(!sl_host_outdone(&permits[0]));
    ck_assert(sl_host_choose(&permits[0], 0, text));
    ck_assert_ptr_nonnull(strstr(text, "127.0.0.2"));
    ck_assert_ptr_nonnull(strstr(text, "127.0.0.3"));
}

SL_TEST(a_name_without_addresses_is_an_error_and_looked_up_again)
{
    struct sl_err err = SL_ERR_INIT;
    enum sl_host_state state;
    sit(0, "nowhere.test", &load_a, 0);
    for (int i = 0; i < 2; i++) {
        struct pollfd fd = {sl_host_fd(&permits[0]), POLLIN, 0};
        uint64_t before = sl_counter_get(&look_ups);
        while ((state = sl_host_look_up(&permits[0], &err)) == SL_HOST_WAIT)
            poll(&fd, 1, 60000);
        ck_assert_int_eq(state, SL_HOST_FAILED);
        ck_assert_int_eq(err.kind, SL_E_NET);
        ck_assert_uint_eq(sl_counter_get(&look_ups) - before, 1);
    }
}

SL_TEST(an_address_needs_no_look_up)
{
    static const char *const names[] = {"127.0.0.1", "::1", "2130706433", "fe80::1%eth0"};
    char text[SL_HOST_RESOLVE_BYTES];
    uint64_t before = sl_counter_get(&look_ups);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        struct sl_err err = SL_ERR_INIT;
        sit(0, names[i], &load_a, 0);
        ck_assert_int_eq(sl_host_look_up(&permits[0], &err), SL_HOST_KNOWN);
        ck_assert(!sl_host_choose(&permits[0], 0, text));
    }
    ck_assert_uint_eq(sl_counter_get(&look_ups), before);
}

SL_TEST(places_are_given_in_the_order_of_coming)
{
    for (unsigned i = 0; i < 4; i++)
        sit(i, "127.0.0.1", &load_a, 2);
    ck_assert(sl_host_is_permitted(&permits[0]));
    ck_assert(sl_host_is_permitted(&permits[1]));
    ck_assert(!sl_host_is_permitted(&permits[2]));
    ck_assert(!sl_host_is_permitted(&permits[3]));
    sl_host_leave(&permits[0]);
    ck_assert(!sl_host_is_permitted(&permits[3]));
    ck_assert(sl_host_is_permitted(&permits[2]));
    sl_host_leave(&permits[2]);
    ck_assert(sl_host_is_permitted(&permits[3]));
    ck_assert(sl_host_is_permitted(&permits[1])); /* it stays */
    sit(4, "127.0.0.1", &load_b, 0);
    ck_assert(sl_host_is_permitted(&permits[4])); /* no limit of its own */
}

SL_TEST(a_load_that_has_many_makes_room_for_one_that_has_none)
{
    for (unsigned i = 0; i < 4; i++) {
        sit(i, "127.0.0.1", &load_a, 4);
        ck_assert(sl_host_is_permitted(&permits[i]));
        ck_assert(!sl_host_should_yield(&permits[i]));
    }
    sit(4, "127.0.0.1", &load_a, 4); /* its own load's: no reason to close anything */
    ck_assert(!sl_host_is_permitted(&permits[4]));
    ck_assert(!sl_host_should_yield(&permits[0]));
    sl_host_leave(&permits[4]);
    sit(4, "127.0.0.1", &load_b, 4);
    sit(5, "127.0.0.1", &load_b, 4);
    ck_assert(!sl_host_is_permitted(&permits[4]));
    ck_assert(sl_host_should_yield(&permits[0]));
    sl_host_leave(&permits[0]);
    ck_assert(sl_host_is_permitted(&permits[4]));
    ck_assert(sl_host_should_yield(&permits[1]));
    sl_host_leave(&permits[1]);
    ck_assert(sl_host_is_permitted(&permits[5]));
    ck_assert(!sl_host_should_yield(&permits[2])); /* two each */
}

SL_TEST(every_failing_allocation_is_an_error)
{
    struct sl_err err = SL_ERR_INIT;
    unsigned failing = 1;
    for (;; failing++) {
        sl_alloc_fail_at(failing);
        int failed = sl_host_ask_permit(&permits[0], "pair.test", PORT, &load_a, 0, &err);
        sl_alloc_fail_at(0);
        if (!failed)
            break;
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
        ck_assert_ptr_null(permits[0].host);
    }
    ck_assert_uint_gt(failing, 1);
}

SL_TEST(rates_and_errors_of_addresses_are_shown)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf out = SL_BUF_INIT(64 * 1024);
    int dead = connect_permit(0);
    sl_host_answered(&permits[0], 1000000, SL_NS_PER_S, true);
    sl_host_refused(&permits[0], dead);
    ck_assert_int_eq(sl_host_metrics(&out, 0, &err), 0);
    const char *text = sl_buf_string(&out);
    char line[200];
    snprintf(
        line, sizeof(line),
        "sluice_address_errors_total{host=\"pair.test\",port=\"80\",address=\"127.0.0.%d\"} 1\n",
        strstr(text, "0.0.2\"} 1000000\n") ? 2 : 3);
    ck_assert_msg(strstr(text, line) != NULL, "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "\"} 1000000\n"));
}

/* ---- connections ----------------------------------------------------------------------------- */

/* A server on each address of pair.test. */
static struct sl_server *pair[2];
static char pair_url[64];

static void open_pair(void)
{
    for (int tries = 0; !pair[1] && tries < 20; tries++) {
        if (pair[0])
            sl_server_stop(pair[0]);
        pair[0] = sl_server_start_at("127.0.0.2", 0);
        pair[1] = sl_server_start_at("127.0.0.3", sl_server_port(pair[0]));
    }
    ck_assert_ptr_nonnull(pair[1]);
    for (int i = 0; i < 2; i++)
        sl_server_put(pair[i], "/blob", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    snprintf(pair_url, sizeof(pair_url), "http://pair.test:%u/blob", sl_server_port(pair[0]));
}

static void close_pair(void)
{
    for (int i = 0; i < 2; i++)
        if (pair[i])
            sl_server_stop(pair[i]);
    pair[0] = pair[1] = NULL;
}

struct reading {
    struct sl_store *store;
    struct sl_source *source;
};

static void open_reading(struct reading *reading, const struct sl_source_config *config)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(pair_url, config, &reading->store, &key, &err), 0);
    ck_assert_msg(sl_source_open(reading->store, key, 1, &reading->source, &err) == 0, "%s",
                  err.message);
}

static void close_reading(struct reading *reading)
{
    sl_source_free(reading->source);
    sl_store_free(reading->store);
}

static struct sl_fetch *begin(struct reading *reading, bool apart)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_fetch *fetch =
        apart ? sl_fetch_new_apart(reading->store, &err) : sl_fetch_new(reading->store, &err);
    ck_assert_ptr_nonnull(fetch);
    ck_assert_int_eq(sl_fetch_start(fetch, reading->source, 1000, 900000, &err), 0);
    return fetch;
}

/* Take something, for at most so long: whether the range has ended. */
static bool drive(struct sl_fetch *fetch, unsigned ms)
{
    static uint8_t data[64 * 1024];
    struct sl_err err = SL_ERR_INIT;
    uint64_t end_ns = sl_now_ns() + ms * SL_NS_PER_MS, deadline_ns;
    for (;;) {
        size_t got;
        struct pollfd fds[SL_IO_POLL_MAX];
        enum sl_io_state state = sl_fetch_read(fetch, data, sizeof(data), &got, &err);
        ck_assert_msg(state != SL_IO_FAILED, "%s", err.message);
        if (state == SL_IO_END)
            return true;
        if (state == SL_IO_DATA)
            continue;
        if (sl_now_ns() >= end_ns)
            return false;
        poll(fds, (nfds_t)sl_fetch_poll(fetch, fds, &deadline_ns), 5);
    }
}

SL_TEST(both_servers_get_connections)
{
    const struct sl_source_config config = {.attempts = 1};
    struct reading reading;
    struct sl_fetch *fetches[6];
    open_pair();
    open_reading(&reading, &config);
    for (size_t i = 0; i < SL_COUNT(fetches); i++) {
        fetches[i] = begin(&reading, true);
        ck_assert(drive(fetches[i], 60000));
    }
    for (size_t i = 0; i < SL_COUNT(fetches); i++)
        sl_fetch_free(fetches[i]);
    ck_assert_uint_ge(sl_server_connection_count(pair[0]), 3);
    ck_assert_uint_ge(sl_server_connection_count(pair[1]), 3);
    close_reading(&reading);
    close_pair();
}

SL_TEST_LOOP(a_dead_address_among_two_costs_no_try, 0, 2)
{
    const struct sl_source_config config = {.attempts = 1};
    struct sl_err err = SL_ERR_INIT;
    open_pair();
    int held = sl_server_leave(sl_steal(&pair[_i]));
    for (int i = 0; i < 4; i++)
        ck_assert_msg(sl_read_blob(pair_url, &config, 1000, 300000, &err) == 0, "%s", err.message);
    close(held);
    close_pair();
}

SL_TEST(when_all_are_dead_they_are_named)
{
    const struct sl_source_config config = {.attempts = 2};
    struct sl_err err = SL_ERR_INIT;
    int held[2];
    open_pair();
    for (int i = 0; i < 2; i++)
        held[i] = sl_server_leave(sl_steal(&pair[i]));
    ck_assert_int_eq(sl_read_blob(pair_url, &config, 1000, 300000, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_msg(strstr(err.message, "127.0.0.2") && strstr(err.message, "127.0.0.3") &&
                      strstr(err.message, "pair.test"),
                  "%s", err.message);
    for (int i = 0; i < 2; i++)
        close(held[i]);
}

SL_TEST(a_request_that_falls_silent_is_sent_again_elsewhere)
{
    const struct sl_source_config config = {.attempts = 1};
    struct reading reading;
    open_pair();
    open_reading(&reading, &config);
    int silent = sl_server_request_count(pair[0]) ? 1 : 0; /* the next connection goes there */
    SL_SCRIPT(pair[silent], {.fault = SL_FAULT_STALL, .after = -1});
    struct sl_fetch *fetch = begin(&reading, true);
    while (!sl_server_request_count(pair[silent]))
        ck_assert(!drive(fetch, 10));
    ck_assert(!drive(fetch, 400));
    sl_fetch_free(fetch);
    fetch = begin(&reading, true);
    ck_assert(drive(fetch, 60000));
    ck_assert_uint_eq(sl_server_request_count(pair[silent]), 1);
    sl_fetch_free(fetch);
    close_reading(&reading);
    close_pair();
}

/* Nothing else is known of the addresses: either may be the one that is asked first. */
SL_TEST_LOOP(a_silent_opening_is_asked_for_elsewhere, 0, 2)
{
    const struct sl_source_config config = {.attempts = 2, .stall_seconds = 600};
    struct reading reading;
    open_pair();
    fake_clock_run();
    SL_SCRIPT(pair[_i], {.fault = SL_FAULT_STALL, .after = -1});
    open_reading(&reading, &config);
    ck_assert_uint_le(sl_server_request_count(pair[_i]), 1);
    ck_assert_uint_eq(sl_server_request_count(pair[!_i]), 1);
    close_reading(&reading);
    close_pair();
}

SL_TEST(patience_follows_what_answers_take)
{
    sit(0, "127.0.0.1", &load_a, 0);
    ck_assert_uint_eq(sl_host_answer_delay(&permits[0]), 0);
    sl_host_waited(&permits[0], 3 * SL_NS_PER_S);
    ck_assert_uint_eq(sl_host_answer_delay(&permits[0]), 6 * SL_NS_PER_S);
    sit(1, "127.0.0.1", &load_b, 0); /* another load knows it, too */
    ck_assert_uint_eq(sl_host_answer_delay(&permits[1]), 6 * SL_NS_PER_S);
    for (int i = 0; i < 20; i++)
        sl_host_waited(&permits[1], 3 * SL_NS_PER_S);
    ck_assert_uint_eq(sl_host_answer_delay(&permits[0]), 6 * SL_NS_PER_S);
    for (int i = 0; i < 40; i++)
        sl_host_waited(&permits[1], SL_NS_PER_MS);
    ck_assert_uint_eq(sl_host_answer_delay(&permits[0]), 2 * SL_NS_PER_MS);
}

SL_TEST(a_connection_to_an_ill_address_is_left)
{
    const struct sl_source_config config = {.attempts = 8};
    struct reading reading;
    open_pair();
    open_reading(&reading, &config);
    int ill = sl_server_request_count(pair[0]) ? 0 : 1;
    SL_SCRIPT(pair[ill], {.fault = SL_FAULT_STATUS, .status = 500});
    struct sl_fetch *fetch = begin(&reading, false); /* on the connection that is there */
    ck_assert(drive(fetch, 60000));
    ck_assert_uint_eq(sl_server_request_count(pair[ill]), 1 + 3);
    ck_assert_uint_eq(sl_server_request_count(pair[!ill]), 1);
    sl_fetch_free(fetch);
    close_reading(&reading);
    close_pair();
}

/* ---- places for connections ------------------------------------------------------------------ */

SL_TEST(idle_connections_make_room_for_another_load)
{
    const struct sl_source_config config = {.attempts = 1, .host_connections = 1};
    struct reading one, other;
    open_pair();
    open_reading(&one, &config); /* and leaves its connection idle */
    open_reading(&other, &config);
    struct sl_fetch *fetch = begin(&one, false);
    ck_assert(drive(fetch, 60000));
    struct sl_fetch *waiting = begin(&other, false);
    ck_assert(!drive(waiting, 100));
    sl_fetch_rest(fetch);
    ck_assert(drive(waiting, 60000));
    sl_fetch_free(waiting);
    ck_assert_int_eq(sl_fetch_start(fetch, one.source, 1000, 2000, &(struct sl_err)SL_ERR_INIT), 0);
    ck_assert(drive(fetch, 60000));
    sl_fetch_free(fetch);
    close_reading(&one);
    close_reading(&other);
    close_pair();
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.teardown = leave_all, .seconds = 60, .prepare = prepare)
