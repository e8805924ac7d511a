/* A server of gRPC and time: deadlines, clients that are slow or silent, its socket, its end. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "grpc_case.h"
#include "grpc_client.h"
#include "nghttp2/nghttp2.h"
#include "quiet.h"

static void open_held(void)
{
    fake_clock_hold();
    grpc_case_open();
}

SL_CASE(.setup = open_held, .teardown = grpc_case_close)

static const struct grpc_wish usual = {.path = GRPC_FAST, .message = "x", .bytes = 1};
static const struct grpc_wish held = {.path = GRPC_HOLD, .message = "x", .bytes = 1};

/* The server closes it; nothing is sent. */
static void await_closed(struct grpc_client *client)
{
    SL_AWAIT(!grpc_client_step(client, 0), "the end of the connection");
}

SL_TEST(a_call_ends_at_its_deadline_and_its_work_is_canceled)
{
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    struct grpc_wish request = held;
    request.timeout = "2S";
    int32_t id = grpc_client_begin(client, &request);
    SL_AWAIT((grpc_client_step(client, 0), sl_counter_get(&grpc_case.holding) == 1), "the call");
    fake_clock_turn(2 * SL_NS_PER_S - 1);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    ck_assert(!grpc_client_answer(client, id)->ended);
    fake_clock_turn(1);
    ck_assert(grpc_client_await(client, id));
    ck_assert_int_eq(grpc_client_answer(client, id)->code, SL_GRPC_DEADLINE_EXCEEDED);
    SL_AWAIT(sl_counter_get(&grpc_case.left) == 1, "the cancel");
    grpc_client_close(client);
}

SL_TEST(a_call_that_waits_for_a_worker_ends_at_its_deadline)
{
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    struct grpc_wish request = held;
    for (int i = 0; i < 4; i++)
        grpc_client_begin(client, &held);
    SL_AWAIT((grpc_client_step(client, 0), sl_counter_get(&grpc_case.holding) == 4), "the calls");
    request.timeout = "1M";
    int32_t id = grpc_client_begin(client, &request);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    fake_clock_turn(60 * SL_NS_PER_S);
    ck_assert(grpc_client_await(client, id));
    ck_assert_int_eq(grpc_client_answer(client, id)->code, SL_GRPC_DEADLINE_EXCEEDED);
    ck_assert_uint_eq(sl_counter_get(&grpc_case.holding), 4);
    grpc_client_close(client);
}

SL_TEST(who_does_not_greet_is_closed)
{
    char byte;
    ssize_t got;
    int fd = grpc_client_connect(grpc_case.socket);
    ck_assert_int_gt(recv(fd, &byte, 1, 0), 0); /* SETTINGS come at once */
    fake_clock_turn(11 * SL_NS_PER_S);
    while ((got = recv(fd, &byte, 1, 0)) > 0)
        ;
    ck_assert_int_eq(got, 0);
    close(fd);
}

SL_TEST(a_request_that_does_not_end_is_reset)
{
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    const struct grpc_wish request = {
        .path = GRPC_FAST, .body = "\0", .body_bytes = 1, .open = true};
    int32_t id = grpc_client_begin(client, &request);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    fake_clock_turn(31 * SL_NS_PER_S);
    ck_assert(grpc_client_await(client, id));
    ck_assert_uint_eq(grpc_client_answer(client, id)->reset, NGHTTP2_CANCEL);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    grpc_client_close(client);
}

SL_TEST(an_idle_connection_stays)
{
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
        fake_clock_turn(24 * 3600 * SL_NS_PER_S);
    }
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    grpc_client_close(client);
}

SL_TEST(who_takes_no_answers_is_closed)
{
    static const uint8_t ping[17] = {0, 0, 8, 6};
    sl_autobuf bytes = SL_BUF_INIT(1 << 20);
    int fd = grpc_client_connect(grpc_case.socket);
    grpc_client_bytes(&usual, &bytes);
    ck_assert_int_gt(send(fd, bytes.data, bytes.used, MSG_NOSIGNAL), 0);
    /* A few pings at a time: a thousand that are read at once would be taken for a flood. */
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int)), 0);
    /* Answers fill its buffer, then nothing is read from it, and its own buffer fills. */
    do {
        while (send(fd, ping, sizeof(ping), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
            ;
        SL_AWAIT(quiet_now(), "a server that sleeps");
    } while (send(fd, ping, sizeof(ping), MSG_NOSIGNAL | MSG_DONTWAIT) > 0);
    fake_clock_turn(29 * SL_NS_PER_S);
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    ck_assert_int_eq(send(fd, ping, 1, MSG_NOSIGNAL | MSG_DONTWAIT), -1);
    ck_assert_int_eq(errno, EAGAIN);
    fake_clock_turn(2 * SL_NS_PER_S);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    SL_AWAIT(send(fd, ping, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EPIPE, "its end");
    grpc_client_close(client);
    close(fd);
}

SL_TEST(a_call_that_takes_hours_is_not_idle)
{
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    int32_t id = grpc_client_begin(client, &held);
    SL_AWAIT((grpc_client_step(client, 0), sl_counter_get(&grpc_case.holding) == 1), "the call");
    fake_clock_turn(7200 * SL_NS_PER_S);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    grpc_case_release();
    ck_assert(grpc_client_await(client, id));
    ck_assert_int_eq(grpc_client_answer(client, id)->code, 0);
    grpc_client_close(client);
}

SL_TEST(a_socket_that_vanished_is_made_again)
{
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(unlink(grpc_case.socket), 0);
        ck_assert_int_lt(grpc_client_connect(grpc_case.socket), 0);
        fake_clock_turn(5 * SL_NS_PER_S);
        SL_AWAIT(access(grpc_case.socket, F_OK) == 0, "the socket");
        struct grpc_client *client = grpc_client_open(grpc_case.socket);
        ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
        grpc_client_close(client);
    }
}

static void close_server(void *arg)
{
    (void)arg;
    sl_grpc_close(sl_steal(&grpc_case.grpc), 10000);
}

SL_TEST(calls_under_way_end_before_the_server_does)
{
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    struct fake_clock_work work;
    int32_t id = grpc_client_begin(client, &held);
    SL_AWAIT((grpc_client_step(client, 0), sl_counter_get(&grpc_case.holding) == 1), "the call");
    fake_clock_begin(&work, close_server, NULL);
    SL_AWAIT((grpc_client_step(client, 0), grpc_client_got_goaway(client)), "GOAWAY");
    ck_assert_int_ne(access(grpc_case.socket, F_OK), 0);
    ck_assert(!grpc_client_answer(client, id)->ended);
    grpc_case_release();
    ck_assert(grpc_client_await(client, id));
    ck_assert_int_eq(grpc_client_answer(client, id)->code, 0);
    fake_clock_end(&work);
    await_closed(client);
    grpc_client_close(client);
}

SL_TEST(calls_that_do_not_end_are_cut_when_the_server_ends)
{
    struct grpc_client *client = grpc_client_open(grpc_case.socket);
    struct fake_clock_work work;
    int32_t ids[6];
    for (int i = 0; i < 6; i++)
        ids[i] = grpc_client_begin(client, &held);
    SL_AWAIT((grpc_client_step(client, 0), sl_counter_get(&grpc_case.holding) == 4), "the calls");
    fake_clock_begin(&work, close_server, NULL);
    SL_AWAIT((grpc_client_step(client, 0), grpc_client_got_goaway(client)), "GOAWAY");
    fake_clock_turn(10 * SL_NS_PER_S);
    for (int i = 0; i < 6; i++) {
        ck_assert(grpc_client_await(client, ids[i]));
        ck_assert_int_eq(grpc_client_answer(client, ids[i])->code, SL_GRPC_UNAVAILABLE);
    }
    fake_clock_end(&work);
    ck_assert_uint_eq(sl_counter_get(&grpc_case.left), 4);
    grpc_client_close(client);
}

SL_TEST(what_a_dead_server_left_is_replaced_and_a_living_one_is_not)
{
    struct sl_err err = SL_ERR_INIT;
    char path[SL_SCRATCH_PATH_BYTES + 32];
    ck_assert_ptr_null(grpc_case_serve(grpc_case.socket, &err));
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_ptr_nonnull(strstr(err.message, "another process serves it"));
    sl_grpc_close(sl_steal(&grpc_case.grpc), 0);
    snprintf(path, sizeof(path), "%s/dead.sock", grpc_case.path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%.100s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
    grpc_case.grpc = grpc_case_serve(path, &err);
    ck_assert_msg(grpc_case.grpc != NULL, "%s", err.message);
    struct grpc_client *client = grpc_client_open(path);
    ck_assert_int_eq(grpc_client_call(client, &usual)->code, 0);
    grpc_client_close(client);
}

SL_TEST(paths_that_cannot_be_are_refused_in_words)
{
    struct sl_err err = SL_ERR_INIT;
    char path[SL_SCRATCH_PATH_BYTES + 160];
    int length = snprintf(path, sizeof(path), "%s/", grpc_case.path);
    memset(path + length, 's', (size_t)(108 - length));
    path[108] = 0;
    ck_assert_ptr_null(grpc_case_serve(path, &err));
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    snprintf(path, sizeof(path), "%s/folder", grpc_case.path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_ptr_null(grpc_case_serve(path, &err));
    ck_assert_ptr_nonnull(strstr(err.message, "something else is there"));
}

SL_TEST(opening_fails_cleanly_at_every_allocation)
{
    char path[SL_SCRATCH_PATH_BYTES + 32];
    snprintf(path, sizeof(path), "%s/second.sock", grpc_case.path);
    for (unsigned nth = 1;; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        struct sl_grpc *grpc = grpc_case_serve(path, &err);
        sl_alloc_fail_at(0);
        sl_grpc_close(grpc, 0);
        ck_assert_int_ne(access(path, F_OK), 0);
        if (grpc)
            break;
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
}
