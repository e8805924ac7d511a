/* Connections whose other end does what a well-behaved server does not; both ends are driven from
 * here. */
#include <arpa/inet.h>
#include <check.h>
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "exchange.h"
#include "fake_clock.h"
#include "listen_at.h"
#include "metrics.h"
#include "range_blob.h"

static int listener;
static char url[64];
static struct sl_exchange *exchange;
static const struct sl_connect config = {.stall_seconds = 20, .connect_seconds = 1};

/* A name server that does not answer for one name, and for another when it is told to, tells of two
 * addresses for others, and leads others to where clouds keep keys. */
static sem_t answers;
static bool asked_for_localhost;
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **list)
{
    bool late = node && strcmp(node, "late.test") == 0;
    if (late || (node && strcmp(node, "silent.test") == 0))
        sem_wait(&answers);
    if (node && strcmp(node, "silent.test") == 0)
        return EAI_AGAIN;
    int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "getaddrinfo");
    if (late)
        return next("127.0.0.1", service, hints, list);
    if (node && strcmp(node, "astray.test") == 0)
        return next("169.254.169.254", service, hints, list);
    if (node && strcmp(node, "alibaba.test") == 0)
        return next("100.100.100.200", service, hints, list);
    if (node && strstr(node, "localhost"))
        asked_for_localhost = true;
    bool both = node && strcmp(node, "both.test") == 0;
    if (!node || (!both && strcmp(node, "two.test") != 0))
        return next(node, service, hints, list);
    int failed = next(both ? "::1" : "127.0.0.2", service, hints, list);
    struct addrinfo *last = *list;
    while (!failed && last->ai_next)
        last = last->ai_next;
    return failed ? failed : next("127.0.0.1", service, hints, &last->ai_next);
}

static void setup(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    struct sl_err err = SL_ERR_INIT;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, bytes), 0);
    ck_assert_int_eq(listen(listener, 8), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/", ntohs(address.sin_port));
    exchange = sl_exchange_new(&config, &err);
    ck_assert_ptr_nonnull(exchange);
}

static void teardown(void)
{
    sl_exchange_free(exchange);
    close(listener);
}

static void begin(void)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_request request = {.method = "GET", .url = url};
    ck_assert_int_eq(sl_exchange_start(exchange, &request, &err), 0);
}

/* Drive the exchange until the descriptor has something to read. */
static void until_readable(int fd)
{
    struct sl_err err = SL_ERR_INIT;
    struct pollfd peer = {fd, POLLIN, 0};
    SL_AWAIT(poll(&peer, 1, 0) != 0 || sl_exchange_head(exchange, &err) != SL_IO_WAIT,
             "what is to be read");
    ck_assert_msg(peer.revents & POLLIN, "nothing came: %s", err.message);
}

/* The server's end of the next connection, its request read. */
static int accept_request(void)
{
    char text[1024];
    until_readable(listener);
    int peer = accept(listener, NULL, NULL);
    until_readable(peer);
    ck_assert_int_gt(recv(peer, text, sizeof(text), 0), 0);
    return peer;
}

static void say(int peer, const char *text)
{
    ck_assert_int_eq(send(peer, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static void assert_head(void)
{
    struct sl_err err = SL_ERR_INIT;
    enum sl_io_state state;
    struct pollfd fds[SL_IO_POLL_MAX];
    uint64_t deadline_ns;
    while ((state = sl_exchange_head(exchange, &err)) == SL_IO_WAIT)
        poll(fds, (nfds_t)sl_exchange_poll(exchange, fds, &deadline_ns), 100);
    ck_assert_msg(state == SL_IO_DATA, "%s", err.message);
}

SL_TEST(stray_bytes_are_not_taken_for_the_next_answer)
{
    struct sl_err err = SL_ERR_INIT;
    char data[20];
    size_t got;
    begin();
    int peer = accept_request();
    say(peer, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
    assert_head();
    ck_assert_int_eq(sl_exchange_body(exchange, data, sizeof(data), &got, &err), SL_IO_WAIT);
    say(peer, "0123456789");
    ck_assert_int_eq(sl_exchange_body(exchange, data, sizeof(data), &got, &err), SL_IO_DATA);
    ck_assert_uint_eq(got, 10);
    ck_assert_int_eq(sl_exchange_body(exchange, data, sizeof(data), &got, &err), SL_IO_END);
    say(peer, "stray");
    begin();
    int second = accept_request();
    say(second, "HTTP/1.1 204 OK\r\n\r\n");
    assert_head();
    ck_assert_int_eq(sl_exchange_status(exchange), 204);
    close(second);
    close(peer);
}

/* A try to connect that comes to nothing, and what is said of it. */
struct vain {
    const char *at, *says;
    struct fake_clock_work work;
};

static void give_up(void *arg)
{
    const struct vain *vain = arg;
    struct sl_answer answer;
    struct sl_err err = SL_ERR_INIT;
    const struct sl_request request = {.method = "GET", .url = vain->at};
    ck_assert_int_eq(sl_exchange_simple(exchange, &request, 100, &answer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_msg(strstr(err.message, vain->says) != NULL, "%s", err.message);
}

static void assert_gives_up(const char *at, const char *says)
{
    struct vain vain = {.at = at, .says = says};
    fake_clock_hold(); /* at once */
    fake_clock_begin(&vain.work, give_up, &vain);
    fake_clock_end(&vain.work);
}

/* It is curl that gives up, by its own clock: after what is left when the name has been found. */
SL_TEST(a_port_that_is_silent_to_tls_is_given_up)
{
    static const struct sl_connect patient = {.stall_seconds = 20, .connect_seconds = 3600};
    char secure[80];
    struct sl_err err = SL_ERR_INIT;
    struct vain vain = {.at = secure, .says = "is the port right, and is it https?"};
    snprintf(secure, sizeof(secure), "https://late.test%s", strrchr(url, ':'));
    sl_exchange_free(exchange);
    ck_assert_ptr_nonnull(exchange = sl_exchange_new(&patient, &err));
    sem_init(&answers, 0, 0);
    fake_clock_hold();
    fake_clock_begin(&vain.work, give_up, &vain);
    fake_clock_await(60 * SL_NS_PER_S); /* and looks again */
    fake_clock_turn(3599 * SL_NS_PER_S);
    fake_clock_release();
    sem_post(&answers);
    fake_clock_end(&vain.work);
    ck_assert_uint_ge(vain.work.took_ns, 3600 * SL_NS_PER_S);
}

SL_TEST(a_silent_name_server_holds_nobody_up)
{
    struct vain vain = {.at = "http://silent.test/", .says = "silent.test"};
    sem_init(&answers, 0, 0);
    fake_clock_hold();
    fake_clock_begin(&vain.work, give_up, &vain);
    fake_clock_pass(&vain.work, SL_NS_PER_S); /* not the usual 10 */
    fake_clock_end(&vain.work);
    sem_post(&answers);
}

SL_TEST(a_name_does_not_lead_to_metadata_services)
{
    assert_gives_up("http://astray.test/", "a cloud's metadata address");
    assert_gives_up("http://alibaba.test/", "a cloud's metadata address");
}

static void answer_one(int number)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    char request[4096];
    ck_assert_int_gt(recv(number, request, sizeof(request), 0), 0);
    ck_assert_int_gt(send(number, answer, sizeof(answer) - 1, MSG_NOSIGNAL), 0);
}

static void *serve_one(void *arg)
{
    int number = accept(listener, NULL, NULL);
    (void)arg;
    ck_assert_int_ge(number, 0);
    answer_one(number);
    close(number);
    return NULL;
}

/* RFC 6761 section 6.3 */
SL_TEST(names_below_localhost_are_this_machine_without_a_name_server)
{
    static const char *const names[] = {"store.localhost", "localhost", "a.b.localhost",
                                        "store.localhost."};
    struct sl_err err = SL_ERR_INIT;
    unsigned port = 0;
    ck_assert_int_eq(sscanf(url, "http://127.0.0.1:%u/", &port), 1);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        char at[100];
        pthread_t thread;
        struct sl_answer answer = {0};
        snprintf(at, sizeof(at), "http://%s:%u/", names[i], port);
        const struct sl_request request = {.method = "GET", .url = at};
        ck_assert_int_eq(pthread_create(&thread, NULL, serve_one, NULL), 0);
        int done = sl_exchange_simple(exchange, &request, 100, &answer, &err);
        ck_assert_msg(done == 0, "%s: %s", names[i], err.message);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        sl_answer_release(&answer);
    }
    ck_assert(!asked_for_localhost);
    assert_gives_up("http://silentlocalhost.test/", "cannot be resolved");
}

/* Let it listen, but take no connection: its queue is full, so nothing is ever answered. */
static void fill_queue(int silent, const struct sockaddr *address, socklen_t bytes, int waiting[4])
{
    ck_assert_int_eq(listen(silent, 0), 0);
    for (int i = 0; i < 4; i++) {
        waiting[i] = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)!connect(waiting[i], address, bytes);
    }
}

/* 127.0.0.2 */
static int make_silent_address(int waiting[4])
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof(address);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(silent, (struct sockaddr *)&address, bytes), 0);
    fill_queue(silent, (struct sockaddr *)&address, bytes, waiting);
    return silent;
}

/* Drive the exchange until the other address has been connected to; what it took. */
static uint64_t until_connected(void)
{
    struct sl_err err = SL_ERR_INIT;
    struct pollfd peer = {listener, POLLIN, 0};
    SL_AWAIT(sl_exchange_head(exchange, &err) != SL_IO_WAIT || sl_metric_get(SL_M_SOURCE_CONNECTS),
             "the addresses");
    uint64_t began_ns = sl_now_ns();
    while (poll(&peer, 1, 0) == 0) {
        fake_clock_turn(SL_NS_PER_MS);
        ck_assert_msg(sl_exchange_head(exchange, &err) == SL_IO_WAIT, "%s", err.message);
    }
    return sl_now_ns() - began_ns;
}

SL_TEST_LOOP(a_silent_address_among_two_is_left_before_the_time_to_connect, 0, 2)
{
    static const struct sl_connect patient = {.stall_seconds = 60, .connect_seconds = 10};
    struct sl_err err = SL_ERR_INIT;
    struct sl_request request = {.method = "GET"};
    int waiting[4], silent = make_silent_address(waiting);
    char two[64];
    snprintf(two, sizeof(two), "http://two.test%s", strrchr(url, ':'));
    request.url = two;
    sl_exchange_free(exchange);
    ck_assert_ptr_nonnull(exchange = sl_exchange_new(&patient, &err));
    fake_clock_hold();
    ck_assert_int_eq(sl_exchange_start(exchange, &request, &err), 0);
    ck_assert_uint_le(until_connected(), 2100 * SL_NS_PER_MS); /* a fifth of it */
    int peer = accept_request();
    say(peer, "HTTP/1.1 204 OK\r\n\r\n");
    assert_head();
    ck_assert_int_eq(sl_exchange_status(exchange), 204);
    for (int i = 0; i < 4; i++)
        close(waiting[i]);
    close(silent);
    close(peer);
}

/* Whichever of the two is first. */
SL_TEST_LOOP(an_address_that_refuses_is_passed_by_at_once, 0, 8)
{
    struct sl_err err = SL_ERR_INIT;
    char two[64];
    snprintf(two, sizeof(two), "http://two.test%s", strrchr(url, ':'));
    const struct sl_request request = {.method = "GET", .url = two};
    fake_clock_hold(); /* no time passes */
    ck_assert_int_eq(sl_exchange_start(exchange, &request, &err), 0);
    int peer = accept_request();
    say(peer, "HTTP/1.1 204 OK\r\n\r\n");
    assert_head();
    ck_assert_int_eq(sl_exchange_status(exchange), 204);
    close(peer);
}

SL_TEST(an_address_that_is_silent_is_given_up_in_time)
{
    int waiting[4], silent = make_silent_address(waiting);
    char at[64];
    struct vain vain = {.at = at, .says = "it does not answer in time"};
    snprintf(at, sizeof(at), "http://127.0.0.2%s", strrchr(url, ':'));
    fake_clock_hold();
    fake_clock_begin(&vain.work, give_up, &vain);
    fake_clock_await_between(SL_NS_PER_MS, SL_NS_PER_S + SL_NS_PER_MS); /* its time has begun */
    fake_clock_turn(SL_NS_PER_S + SL_NS_PER_MS);
    fake_clock_end(&vain.work);
    for (int i = 0; i < 4; i++)
        close(waiting[i]);
    close(silent);
}

SL_TEST(an_address_where_nobody_listens_says_so)
{
    char at[64];
    snprintf(at, sizeof(at), "http://127.0.0.2%s", strrchr(url, ':'));
    assert_gives_up(at, "connection refused, nothing listens on that port");
}

SL_TEST(without_a_descriptor_the_limit_is_named)
{
    struct rlimit limit;
    int next = dup(listener);
    close(next);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = (rlim_t)next;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_gives_up(url, "too many open files: raise the limit (ulimit -n)");
}

/* Each address in both families: one is silent, and the other is tried beside it. */
SL_TEST_LOOP(the_other_family_does_not_wait_for_a_silent_address, 0, 8)
{
    static const struct sl_connect patient = {.stall_seconds = 60, .connect_seconds = 3600};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    struct sl_err err = SL_ERR_INIT;
    struct sl_request request = {.method = "GET"};
    int waiting[4], silent = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char both[64];
    six.sin6_port = htons((uint16_t)strtoul(strrchr(url, ':') + 1, NULL, 10));
    if (silent < 0 || bind(silent, (struct sockaddr *)&six, sizeof(six)) != 0)
        SL_SKIP("no IPv6 here");
    fill_queue(silent, (struct sockaddr *)&six, sizeof(six), waiting);
    snprintf(both, sizeof(both), "http://both.test%s", strrchr(url, ':'));
    request.url = both;
    sl_exchange_free(exchange);
    ck_assert_ptr_nonnull(exchange = sl_exchange_new(&patient, &err));
    fake_clock_hold();
    ck_assert_int_eq(sl_exchange_start(exchange, &request, &err), 0);
    ck_assert_uint_le(until_connected(), 300 * SL_NS_PER_MS);
    int peer = accept_request();
    say(peer, "HTTP/1.1 204 OK\r\n\r\n");
    assert_head();
    for (int i = 0; i < 4; i++)
        close(waiting[i]);
    close(silent);
    close(peer);
}

/* Who needs no TLS and no tunnel does not pay for the library that makes them. */
SL_TEST(a_plain_connection_opens_no_libcurl)
{
    if (!*SLUICE_CURL_SONAME)
        SL_SKIP("libcurl is inside the program");
    begin();
    int peer = accept_request();
    say(peer, "HTTP/1.1 204 OK\r\n\r\n");
    assert_head();
    ck_assert_ptr_null(dlopen(SLUICE_CURL_SONAME, RTLD_NOW | RTLD_NOLOAD));
    close(peer);
}

SL_TEST_LOOP(a_proxy_that_is_gone_is_a_network_error, 0, 2)
{
    static const char *const uris[] = {"http://h.example/m", "https://h.example/m"};
    const struct sl_source_config twice = {.attempts = 2};
    struct sl_err err = SL_ERR_INIT;
    unsigned port = 0;
    char gone[64];
    int held = sl_port_hold("127.0.0.1", &port);
    snprintf(gone, sizeof(gone), "http://127.0.0.1:%u/", port);
    setenv("http_proxy", gone, 1);
    setenv("https_proxy", gone, 1);
    ck_assert_int_eq(sl_read_blob(uris[_i], &twice, 1000, 1000, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_msg(strstr(err.message, "proxy settings") != NULL, "%s", err.message);
    close(held);
}

static int pending_pipes(void)
{
    sigset_t set;
    sigpending(&set);
    return sigismember(&set, SIGPIPE);
}

/* In every mask that a program may have: nothing is delivered, and what waited before still does.
 */
SL_TEST_LOOP(signals_of_the_program_are_left_alone, 0, 3)
{
    sigset_t set, after;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    signal(SIGPIPE, SIG_DFL);
    pthread_sigmask(_i ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
    if (_i == 2)
        raise(SIGPIPE);
    begin();
    int peer = accept_request();
    close(peer);
    sl_exchange_abort(exchange);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    ck_assert_int_eq(sigismember(&after, SIGPIPE), _i > 0);
    ck_assert_int_eq(pending_pipes(), _i == 2);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60, .prepare = prepare)
