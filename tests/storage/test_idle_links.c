/* Connections that outlive who made them: who goes on with one, who must not, and when they end. */
#include <check.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "exchange.h"
#include "fake_clock.h"
#include "fetch.h"
#include "fork_guard.h"
#include "http_case.h"
#include "idle_links.h"
#include "metrics.h"
#include "stores.h"
#include "tls.h"

enum { IDLE_SECONDS = 15, ORIGINS = 5, THREADS = 4, ROUNDS = 8 };

static const struct sl_connect keeping = {.stall_seconds = 20, .idle_seconds = IDLE_SECONDS};
static const struct sl_source_config kept = {
    .attempts = 2, .stall_seconds = 20, .idle_seconds = IDLE_SECONDS};

static uint64_t idle(void)
{
    return sl_metric_get(SL_M_SOURCE_IDLE);
}

static void setup(void)
{
    server = sl_server_start();
    sl_server_put(server, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
}

static void teardown(void)
{
    sl_server_stop(server);
}

SL_CASE(.setup = setup, .teardown = teardown)

/* An exchange that has had one answer. */
static struct sl_exchange *asked(const char *url, const struct sl_connect *connect)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_answer answer;
    struct sl_exchange *exchange = sl_exchange_new(connect, &err);
    const struct sl_request request = {.method = "HEAD", .url = url};
    ck_assert_msg(sl_exchange_simple(exchange, &request, 1000, &answer, &err) == 0, "%s",
                  err.message);
    ck_assert_int_eq(answer.status, 200);
    sl_answer_release(&answer);
    return exchange;
}

static void ask(const struct sl_connect *connect)
{
    sl_exchange_free(asked(sl_server_url(server, "/m"), connect));
}

static void read_blob(const struct sl_source_config *config)
{
    struct sl_err err;
    ck_assert_msg(load("/m", config, &err) == 0, "%s", err.message);
}

SL_TEST(the_next_store_goes_on_with_the_connection_of_the_last)
{
    for (int i = 0; i < 3; i++)
        read_blob(&kept);
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
    ck_assert_uint_eq(idle(), 1);
}

SL_TEST(who_does_not_say_so_keeps_none_and_takes_none)
{
    read_blob(&plain);
    ck_assert_uint_eq(idle(), 0);
    read_blob(&kept);
    read_blob(&plain);
    ck_assert_uint_eq(sl_server_connection_count(server), 3);
    ck_assert_uint_eq(idle(), 1);
}

SL_TEST(one_ends_when_its_time_is_over_and_not_before)
{
    fake_clock_hold();
    ask(&keeping);
    fake_clock_await(IDLE_SECONDS * SL_NS_PER_S);
    fake_clock_turn(IDLE_SECONDS * SL_NS_PER_S - 1);
    ask(&keeping);
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
    fake_clock_await(IDLE_SECONDS * SL_NS_PER_S);
    fake_clock_turn(IDLE_SECONDS * SL_NS_PER_S);
    sl_server_quiet(server); /* it was closed, though nobody asked for it */
    ck_assert_uint_eq(idle(), 0);
    ask(&keeping);
    ck_assert_uint_eq(sl_server_connection_count(server), 2);
}

SL_TEST(one_that_its_server_closed_is_dropped_before_it_is_used)
{
    struct sl_exchange *exchange = asked(sl_server_url(server, "/m"), &keeping);
    unsigned port = sl_server_port(server);
    sl_exchange_free(exchange);
    ck_assert_uint_eq(idle(), 1);
    int held = sl_server_leave(server);
    server = sl_server_start_at("127.0.0.1", port);
    ck_assert_ptr_nonnull(server);
    close(held);
    sl_server_put(server, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    struct sl_link *link = sl_idle_links_take(&keeping, sl_server_url(server, "/"), "");
    ck_assert_ptr_null(link);
    ck_assert_uint_eq(idle(), 0);
    ask(&keeping);
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
}

SL_TEST(there_are_so_many_to_an_origin_and_so_many_in_all)
{
    struct sl_server *servers[ORIGINS] = {server};
    for (int i = 0; i < ORIGINS; i++) {
        struct sl_exchange *exchanges[SL_IDLE_LINKS_ORIGIN_MAX + 2];
        if (i)
            servers[i] = sl_server_start();
        sl_server_put(servers[i], "/m", sl_blob(), 1, "\"v1\"");
        for (size_t k = 0; k < SL_COUNT(exchanges); k++)
            exchanges[k] = asked(sl_server_url(servers[i], "/m"), &keeping);
        for (size_t k = 0; k < SL_COUNT(exchanges); k++)
            sl_exchange_free(exchanges[k]);
        ck_assert_uint_eq(idle(), SL_MIN((i + 1) * SL_IDLE_LINKS_ORIGIN_MAX, SL_IDLE_LINKS_MAX));
    }
    sl_exchange_free(asked(sl_server_url(servers[0], "/m"),
                           &keeping)); /* all of the first went for those of the last */
    ck_assert_uint_eq(sl_server_connection_count(servers[0]), SL_IDLE_LINKS_ORIGIN_MAX + 3);
    sl_exchange_free(asked(sl_server_url(servers[1], "/m"), &keeping));
    ck_assert_uint_eq(sl_server_connection_count(servers[1]), SL_IDLE_LINKS_ORIGIN_MAX + 2);
    for (int i = 1; i < ORIGINS; i++)
        sl_server_stop(servers[i]);
}

SL_TEST(who_trusts_others_makes_a_connection_of_its_own)
{
    sl_server_stop(server);
    server = sl_server_start_tls();
    sl_server_put(server, "/m", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    struct sl_tls_options checks = {.ca_file = (char *)sl_server_ca(server), .verify = true},
                          trusts_all = {.ca_file = (char *)sl_server_ca(server)},
                          system = {.verify = true};
    struct sl_source_config config = kept;
    struct sl_err err;
    config.tls = &checks;
    read_blob(&config);
    read_blob(&config);
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
    config.tls = &trusts_all;
    read_blob(&config);
    ck_assert_uint_eq(sl_server_connection_count(server), 2);
    config.tls = &system;
    ck_assert_int_eq(load("/m", &config, &err), -1);
    config.tls = &checks;
    read_blob(&config);
    config.tls = &trusts_all;
    read_blob(&config);
    ck_assert_uint_eq(sl_server_connection_count(server), 3);
    ck_assert_uint_eq(idle(), 2);
}

SL_TEST(one_is_for_those_who_come_by_the_same_way)
{
    struct sl_connect direct = keeping;
    struct sl_link *link;
    const char *url = sl_server_url(server, "/");
    direct.direct = true;
    ask(&keeping);
    ck_assert_ptr_null(sl_idle_links_take(&direct, url, ""));
    ck_assert_ptr_null(sl_idle_links_take(&keeping, url, "http://u:p@127.0.0.1:1"));
    ck_assert_ptr_null(sl_idle_links_take(&keeping, "http://127.0.0.1:1/", ""));
    ck_assert_ptr_nonnull(link = sl_idle_links_take(&keeping, url, ""));
    ck_assert_ptr_null(sl_idle_links_take(&keeping, url, ""));
    sl_link_free(link);
}

SL_TEST(one_goes_when_somebody_waits_for_its_place)
{
    struct sl_source_config one = kept, other = plain;
    one.host_connections = other.host_connections = 1;
    one.idle_seconds = 3600; /* it does not end by itself */
    read_blob(&one);
    ck_assert_uint_eq(idle(), 1);
    read_blob(&other);
    ck_assert_uint_eq(idle(), 0);
    ck_assert_uint_eq(sl_server_connection_count(server), 2);
}

SL_TEST(after_a_failure_and_for_bytes_that_came_wrong_there_is_a_new_one)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_store *store;
    struct sl_source *source;
    char *key;
    ask(&keeping);
    SL_SCRIPT(server, {.path = "/m", .first = 2, .fault = SL_FAULT_SHORT, .after = 10});
    read_blob(&kept); /* on what was kept, and then anew */
    ck_assert_uint_eq(sl_server_connection_count(server), 2);
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/m"), &kept, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, 1, &source, &err), 0);
    ck_assert_uint_eq(sl_server_connection_count(server), 2);
    struct sl_fetch *apart = sl_fetch_new_apart(store, &err);
    uint8_t byte;
    size_t got = 0;
    ask(&keeping);
    unsigned before = sl_server_connection_count(server);
    ck_assert_uint_ge(idle(), 1);
    ck_assert_int_eq(sl_fetch_start(apart, source, 10, 11, &err), 0);
    while (!got && sl_fetch_read(apart, &byte, 1, &got, &err) == SL_IO_WAIT)
        sl_fetch_wait(apart, true, &err);
    ck_assert_uint_eq(got, 1);
    ck_assert_uint_eq(sl_server_connection_count(server), before + 1);
    sl_fetch_free(apart);
    sl_source_free(source);
    sl_store_free(store);
    free(key);
}

SL_TEST(a_child_has_none_of_its_parent_and_leaves_them_alone)
{
    int status;
    const char *url = sl_server_url(server, "/");
    sl_fork_guard_begin();
    ask(&keeping);
    pid_t child = fork();
    if (child == 0)
        _exit(idle() || sl_idle_links_take(&keeping, url, "") ? 1 : 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ask(&keeping);
    ck_assert_uint_eq(sl_server_connection_count(server), 1);
}

static void *go_on(void *url)
{
    for (int i = 0; i < ROUNDS; i++)
        sl_exchange_free(asked(url, &keeping));
    return NULL;
}

SL_TEST(threads_share_them)
{
    pthread_t threads[THREADS];
    const char *url = sl_server_url(server, "/m");
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, go_on, (void *)url), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_le(sl_server_connection_count(server), THREADS);
    ck_assert_uint_eq(idle(), sl_server_connection_count(server));
}
