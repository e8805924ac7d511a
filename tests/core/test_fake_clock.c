/* The clock in a test's hand: what it shows, and what waits by it. */
#include "fake_clock.h"

#include <check.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "deadline.h"
#include "quiet.h"
#include "thread.h"

enum { SECONDS = 5 };
#define LONG_NS (SECONDS * SL_NS_PER_S)

/* A thread that waits once, in one of several ways. */
struct waiter {
    void (*way)(struct waiter *);
    pthread_t thread;
    int pipe[2];
    struct sl_cancel *cancel;
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    struct sl_counter looks; /* how often it read the time */
    struct sl_counter over;
    int result;
    uint64_t took_ns;
};

static uint64_t look(struct waiter *waiter)
{
    sl_counter_add(&waiter->looks, 1);
    return sl_now_ns();
}

static void wait_by_poll(struct waiter *waiter)
{
    uint64_t end_ns = look(waiter) + LONG_NS, now_ns;
    while (!waiter->result && (now_ns = look(waiter)) < end_ns) {
        struct pollfd fd = {waiter->pipe[0], POLLIN, 0};
        waiter->result = poll(&fd, 1, (int)((end_ns - now_ns + SL_NS_PER_MS - 1) / SL_NS_PER_MS));
    }
}

static void wait_by_condition(struct waiter *waiter)
{
    uint64_t end_ns = look(waiter) + LONG_NS;
    struct timespec end = {(time_t)(end_ns / SL_NS_PER_S), (long)(end_ns % SL_NS_PER_S)};
    SL_LOCKED(&waiter->mutex);
    while (look(waiter) < end_ns)
        waiter->result = pthread_cond_timedwait(&waiter->condition, &waiter->mutex, &end);
}

static void wait_by_sleep(struct waiter *waiter)
{
    waiter->result = sl_sleep_ms(SECONDS * 1000, waiter->cancel, NULL);
}

static int wait_for_cancel(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    struct pollfd fd = {sl_cancel_fd(cancel), POLLIN, 0};
    (void)arg;
    while (poll(&fd, 1, -1) < 1)
        ;
    return sl_cancel_check(cancel, err);
}

static void wait_by_deadline(struct waiter *waiter)
{
    struct sl_err err = SL_ERR_INIT;
    waiter->result = sl_deadline_run(SECONDS, NULL, wait_for_cancel, NULL, &err);
    ck_assert_int_eq(err.kind, SL_E_TIMEOUT);
}

static void (*const ways[])(struct waiter *) = {wait_by_poll, wait_by_sleep, wait_by_condition,
                                                wait_by_deadline};

static void *run(void *arg)
{
    struct waiter *waiter = arg;
    uint64_t begin_ns = sl_now_ns();
    waiter->way(waiter);
    waiter->took_ns = sl_now_ns() - begin_ns;
    sl_counter_add(&waiter->over, 1);
    return NULL;
}

static void begin(struct waiter *waiter, void (*how)(struct waiter *))
{
    struct sl_err err = SL_ERR_INIT;
    *waiter = (struct waiter){.way = how,
                              .mutex = PTHREAD_MUTEX_INITIALIZER,
                              .condition = PTHREAD_COND_INITIALIZER,
                              .cancel = sl_cancel_new(&err)};
    ck_assert_int_eq(pipe(waiter->pipe), 0);
    ck_assert_int_eq(sl_thread_start(&waiter->thread, "waiter", run, waiter, &err), 0);
}

static void end(struct waiter *waiter)
{
    pthread_join(waiter->thread, NULL);
    close(waiter->pipe[0]);
    close(waiter->pipe[1]);
    sl_cancel_free(waiter->cancel);
}

SL_TEST(it_goes_until_it_is_held)
{
    uint64_t then_ns = sl_now_ns();
    SL_AWAIT(sl_now_ns() > then_ns, "a later time");
    fake_clock_hold();
    then_ns = sl_now_ns();
    uint64_t real_ns = fake_clock_real_ns();
    SL_AWAIT(fake_clock_real_ns() > real_ns + 20 * SL_NS_PER_MS, "a later time of the machine");
    ck_assert_uint_eq(sl_now_ns(), then_ns);
    fake_clock_release();
    SL_AWAIT(sl_now_ns() > then_ns, "a later time");
}

SL_TEST(it_is_turned_by_what_is_asked_for)
{
    fake_clock_hold();
    uint64_t then_ns = sl_now_ns();
    int64_t then = sl_wall_seconds();
    fake_clock_turn(1);
    ck_assert_uint_eq(sl_now_ns(), then_ns + 1);
    fake_clock_turn(3600 * SL_NS_PER_S);
    ck_assert_uint_eq(sl_now_ns(), then_ns + 3600 * SL_NS_PER_S + 1);
    ck_assert_int_ge(sl_wall_seconds(), then + 3599);
    fake_clock_release();
    ck_assert_uint_ge(sl_now_ns(), then_ns + 3600 * SL_NS_PER_S + 1);
    fake_clock_turn(3600 * SL_NS_PER_S);
    ck_assert_uint_ge(sl_now_ns(), then_ns + 7200 * SL_NS_PER_S + 1);
    ck_assert_int_ge(sl_wall_seconds(), then + 7199);
}

SL_TEST_LOOP(a_wait_ends_when_its_time_has_come_and_not_before, 0, 4)
{
    struct waiter waiter;
    fake_clock_hold();
    begin(&waiter, ways[_i]);
    fake_clock_await(LONG_NS);
    fake_clock_turn(LONG_NS - 1);
    fake_clock_settle(1);
    ck_assert_uint_eq(sl_counter_get(&waiter.over), 0);
    fake_clock_turn(1);
    end(&waiter);
    ck_assert_uint_eq(waiter.took_ns, LONG_NS);
}

SL_TEST_LOOP(what_comes_ends_a_wait_without_a_turn, 0, 2)
{
    struct waiter waiter;
    fake_clock_hold();
    begin(&waiter, _i ? wait_by_sleep : wait_by_poll);
    fake_clock_await(LONG_NS);
    if (_i)
        sl_cancel_raise(waiter.cancel, 0);
    else
        ck_assert_int_eq((int)write(waiter.pipe[1], "x", 1), 1);
    end(&waiter);
    ck_assert_int_eq(waiter.result, _i ? -1 : 1);
    ck_assert_uint_eq(waiter.took_ns, 0);
}

SL_TEST(a_turn_makes_those_who_wait_look_again)
{
    struct waiter waiters[3];
    fake_clock_hold();
    for (int i = 0; i < 3; i++)
        begin(&waiters[i], wait_by_poll);
    fake_clock_settle(3);
    for (int i = 0; i < 100; i++) {
        uint64_t looks = sl_counter_get(&waiters[i % 3].looks);
        fake_clock_turn(1);
        fake_clock_settle(3);
        ck_assert_uint_gt(sl_counter_get(&waiters[i % 3].looks), looks);
    }
    fake_clock_turn(LONG_NS);
    for (int i = 0; i < 3; i++) {
        end(&waiters[i]);
        ck_assert_uint_eq(waiters[i].took_ns, LONG_NS + 100);
    }
}

SL_TEST_LOOP(a_wait_goes_by_a_clock_that_was_put_forward, 0, 4)
{
    struct waiter waiter;
    fake_clock_turn(SL_NS_PER_MS);
    begin(&waiter, ways[_i]);
    fake_clock_settle(1);
    fake_clock_turn(LONG_NS);
    end(&waiter);
    ck_assert_uint_ge(waiter.took_ns, LONG_NS);
}

static void *pause_five_seconds(void *over)
{
    ck_assert_int_eq(fake_clock_poll(NULL, 0, SECONDS * 1000), 0);
    sl_counter_add(over, 1);
    return NULL;
}

SL_TEST(a_server_s_pause_lasts_as_long_as_the_clock_says)
{
    pthread_t thread;
    struct sl_counter over = {0};
    struct waiter waiter;
    struct sl_err err = SL_ERR_INIT;
    fake_clock_hold();
    ck_assert_int_eq(sl_thread_start(&thread, "pause", pause_five_seconds, &over, &err), 0);
    begin(&waiter, wait_by_poll);
    fake_clock_await_all(2, LONG_NS);
    fake_clock_turn(SL_NS_PER_S);
    fake_clock_settle(1); /* the waiter alone */
    ck_assert_uint_eq(sl_counter_get(&over), 0);
    fake_clock_turn(LONG_NS);
    end(&waiter);
    SL_AWAIT(sl_counter_get(&over), "the end of the pause");
    pthread_join(thread, NULL);
}

/* ---- a clock that runs ----------------------------------------------------------------------- */

SL_TEST_LOOP(a_clock_that_runs_brings_what_is_waited_for, 0, 4)
{
    struct waiter waiter;
    fake_clock_run();
    uint64_t begin_ns = fake_clock_real_ns();
    for (int i = 0; i < 20; i++) {
        begin(&waiter, ways[_i]);
        end(&waiter);
        ck_assert_uint_ge(waiter.took_ns, LONG_NS);
        ck_assert_uint_le(waiter.took_ns, LONG_NS + SL_NS_PER_MS); /* waits are whole ones */
    }
    ck_assert_uint_lt(fake_clock_real_ns() - begin_ns, 20 * LONG_NS);
}

static void *pause_a_second(void *took_ns)
{
    uint64_t begin_ns = sl_now_ns();
    ck_assert_int_eq(fake_clock_poll(NULL, 0, 1000), 0);
    *(uint64_t *)took_ns = sl_now_ns() - begin_ns;
    return NULL;
}

SL_TEST(it_stops_at_what_is_waited_for_first)
{
    pthread_t thread;
    struct waiter waiter;
    struct sl_err err = SL_ERR_INIT;
    uint64_t took_ns = 0;
    quiet_busy_begin();
    fake_clock_run();
    begin(&waiter, wait_by_condition);
    ck_assert_int_eq(sl_thread_start(&thread, "pause", pause_a_second, &took_ns, &err), 0);
    fake_clock_await(LONG_NS);
    fake_clock_await(SL_NS_PER_S);
    quiet_busy_end();
    pthread_join(thread, NULL);
    ck_assert_uint_eq(took_ns, SL_NS_PER_S);
    end(&waiter);
    ck_assert_uint_eq(waiter.took_ns, LONG_NS);
}

static void work(uint64_t ns)
{
    uint64_t end_ns = fake_clock_real_ns() + ns;
    while (fake_clock_real_ns() < end_ns)
        ;
}

SL_TEST(it_stands_still_while_a_thread_works)
{
    struct waiter waiter;
    quiet_busy_begin();
    fake_clock_run();
    begin(&waiter, wait_by_poll);
    fake_clock_await(LONG_NS);
    quiet_busy_end(); /* this thread works */
    work(300 * SL_NS_PER_MS);
    ck_assert_int_eq((int)write(waiter.pipe[1], "x", 1), 1);
    end(&waiter);
    ck_assert_int_eq(waiter.result, 1);
    ck_assert_uint_eq(waiter.took_ns, 0);
}

SL_TEST(it_stands_still_while_an_event_is_awaited)
{
    struct waiter waiter;
    fake_clock_run();
    uint64_t begin_ns = fake_clock_real_ns(), then_ns = sl_now_ns();
    begin(&waiter, wait_by_poll);
    SL_AWAIT(fake_clock_real_ns() > begin_ns + 200 * SL_NS_PER_MS, "a later time of the machine");
    ck_assert_uint_eq(sl_now_ns(), then_ns);
    end(&waiter);
    ck_assert_uint_eq(waiter.took_ns, LONG_NS);
}

/* Two that give each other a byte by TCP, and wait a second for it. */
enum { ROUNDS = 2000, PAIRS = 4 };

static void *give_and_take(void *arg)
{
    struct pollfd fd = {*(const int *)arg, POLLIN, 0};
    char byte = 0;
    for (int i = 0; i < ROUNDS; i++) {
        ck_assert_int_eq((int)send(fd.fd, &byte, 1, MSG_NOSIGNAL), 1);
        int ready = poll(&fd, 1, 1000);
        if (!ready) /* the first wait after a turn */
            ready = poll(&fd, 1, 1000);
        ck_assert_int_eq(ready, 1);
        ck_assert_int_eq((int)recv(fd.fd, &byte, 1, 0), 1);
    }
    return NULL;
}

static void connect_pair(int pair[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(listening, (struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(listening, 1), 0);
    ck_assert_int_eq(getsockname(listening, (struct sockaddr *)&address, &bytes), 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(pair[0], (struct sockaddr *)&address, bytes), 0);
    pair[1] = accept(listening, NULL, NULL);
    ck_assert_int_ge(pair[1], 0);
    close(listening);
}

SL_TEST(it_stands_still_while_bytes_are_on_their_way)
{
    int pairs[PAIRS][2];
    pthread_t threads[PAIRS][2];
    struct sl_err err = SL_ERR_INIT;
    fake_clock_run();
    uint64_t begin_ns = sl_now_ns();
    for (int i = 0; i < PAIRS; i++)
        connect_pair(pairs[i]);
    for (int i = 0; i < 2 * PAIRS; i++)
        ck_assert_int_eq(sl_thread_start(&threads[i / 2][i % 2], "player", give_and_take,
                                         &pairs[i / 2][i % 2], &err),
                         0);
    for (int i = 0; i < 2 * PAIRS; i++)
        pthread_join(threads[i / 2][i % 2], NULL);
    ck_assert_uint_eq(sl_now_ns(), begin_ns);
}

/* A server that works for a while before it answers. */
static void *answer_late(void *arg)
{
    int fd = *(const int *)arg;
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) {
        work(20 * SL_NS_PER_MS);
        ck_assert_int_eq((int)send(fd, &byte, 1, MSG_NOSIGNAL), 1);
    }
    return NULL;
}

/* It waits a second for each answer, which is there before the second turn. */
static void ask(void *arg)
{
    struct pollfd fd = {*(const int *)arg, POLLIN, 0};
    char byte = 0;
    for (int i = 0; i < 10; i++) {
        uint64_t begin_ns = sl_now_ns();
        ck_assert_int_eq((int)send(fd.fd, &byte, 1, MSG_NOSIGNAL), 1);
        while (!poll(&fd, 1, 1000))
            ;
        ck_assert_uint_le(sl_now_ns() - begin_ns, SL_NS_PER_S);
        ck_assert_int_eq((int)recv(fd.fd, &byte, 1, 0), 1);
        ck_assert_int_eq(sl_sleep_ms(1000, NULL, NULL), 0);
    }
}

SL_TEST(a_server_answers_between_two_turns)
{
    int pair[2];
    pthread_t server;
    struct fake_clock_work client;
    struct sl_err err = SL_ERR_INIT;
    connect_pair(pair);
    fake_clock_hold();
    ck_assert_int_eq(sl_thread_start(&server, "server", answer_late, &pair[1], &err), 0);
    fake_clock_begin(&client, ask, &pair[0]);
    fake_clock_turn_until(&client.done, SL_NS_PER_S, 1);
    fake_clock_end(&client);
    close(pair[0]);
    pthread_join(server, NULL);
    close(pair[1]);
}

/* More than the two sockets hold, to one who reads after each second. */
enum { MUCH = 24 << 20, BITE = 4 << 20 };

static void *send_much(void *arg)
{
    char *bytes = calloc(1, MUCH);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_int_eq((int)send(*(const int *)arg, bytes, MUCH, MSG_NOSIGNAL), MUCH);
    free(bytes);
    return NULL;
}

static void read_slowly(void *arg)
{
    char *bytes = malloc(BITE);
    ck_assert_ptr_nonnull(bytes);
    for (int i = 0; i < MUCH / BITE; i++) {
        ck_assert_int_eq(sl_sleep_ms(1000, NULL, NULL), 0);
        ck_assert_int_eq((int)recv(*(const int *)arg, bytes, BITE, MSG_WAITALL), BITE);
    }
    free(bytes);
}

SL_TEST(what_waits_for_its_reader_is_not_under_way)
{
    int pair[2];
    pthread_t sender;
    struct fake_clock_work reader;
    struct sl_err err = SL_ERR_INIT;
    connect_pair(pair);
    fake_clock_hold();
    ck_assert_int_eq(sl_thread_start(&sender, "sender", send_much, &pair[1], &err), 0);
    fake_clock_begin(&reader, read_slowly, &pair[0]);
    fake_clock_turn_until(&reader.done, SL_NS_PER_S, 1);
    fake_clock_end(&reader);
    ck_assert_uint_ge(reader.took_ns, MUCH / BITE * SL_NS_PER_S);
    pthread_join(sender, NULL);
    close(pair[0]);
    close(pair[1]);
}

SL_TEST(it_can_be_held_again)
{
    struct waiter waiter;
    fake_clock_run();
    begin(&waiter, wait_by_poll);
    end(&waiter);
    fake_clock_hold();
    begin(&waiter, wait_by_poll);
    fake_clock_await(LONG_NS);
    work(100 * SL_NS_PER_MS);
    ck_assert_uint_eq(sl_counter_get(&waiter.over), 0);
    fake_clock_turn(LONG_NS);
    end(&waiter);
    ck_assert_uint_eq(waiter.took_ns, LONG_NS);
}

SL_CASE(.seconds = 60)
