/*
 * A distant server: every request is held back, every connection is paced.
 *
 *     shape LISTEN_PORT SERVER_PORT DELAY_MS BYTES_PER_SECOND [STALL_EVERY STALL_MS COUNTERS]
 *
 * Both on 127.0.0.1. Each request waits DELAY_MS, a round trip. The first of a connection waits
 * until two have passed since it was accepted, if that is later: over a distance a client may send
 * only when its connection stands, a round trip after it began; here it stands at once. So who
 * connects before there is anything to ask gains by it what it would gain over a distance. Answers
 * of a connection come at most at BYTES_PER_SECOND. A connection is a thread; answers go through a
 * pipe by splice(), so that the proxy costs little. Clients must not send a request before the last
 * answer has come.
 *
 * Every STALL_EVERY-th request (0: none) is held back for STALL_MS, in turn before its answer and
 * in the middle of it. COUNTERS is a file of three 64-bit numbers: bytes sent to clients, requests,
 * stalls.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIPE_BYTES = 256 * 1024, PIECE_BYTES = 128 * 1024, STACK_BYTES = 256 * 1024 };
#define NS_PER_S 1000000000ull

static uint16_t server_port;
static uint64_t delay_ns, bytes_per_second, stall_every, stall_ns;
static struct counters {
    _Atomic uint64_t bytes, requests, stalls;
} own_counters, *counters = &own_counters;

static void fail(const char *what)
{
    fprintf(stderr, "shape: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

static int socket_to(uint16_t port, int listens)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, listens ? SOL_SOCKET : IPPROTO_TCP, listens ? SO_REUSEADDR : TCP_NODELAY, &one,
               sizeof(one));
    int done = listens ? bind(fd, (struct sockaddr *)&address, sizeof(address))
                       : connect(fd, (struct sockaddr *)&address, sizeof(address));
    if (done == 0 && (!listens || listen(fd, 1024) == 0))
        return fd;
    close(fd);
    return -1;
}

enum stall { NO_STALL, STALL_BEFORE, STALL_WITHIN };

static enum stall stall_of(uint64_t request)
{
    if (!stall_every || request % stall_every != stall_every / 2)
        return NO_STALL;
    atomic_fetch_add(&counters->stalls, 1);
    return request / stall_every % 2 ? STALL_WITHIN : STALL_BEFORE;
}

/* A request, or a part of one, goes on after its delay, not before this time. 0 at the end. */
static int pass_request(int client, int server, uint64_t earliest_ns, enum stall *stall)
{
    char data[65536];
    ssize_t got = recv(client, data, sizeof(data), 0);
    if (got <= 0)
        return 0;
    *stall = stall_of(atomic_fetch_add(&counters->requests, 1));
    uint64_t at_ns = now_ns() + delay_ns;
    sleep_until((at_ns > earliest_ns ? at_ns : earliest_ns) +
                (*stall == STALL_BEFORE ? stall_ns : 0));
    return send(server, data, (size_t)got, MSG_NOSIGNAL) == got;
}

/* A piece of an answer, not before its time. 0 at the end. */
static int pass_answer(int server, int client, int ends[2], uint64_t *free_ns, enum stall *stall)
{
    ssize_t got = splice(server, NULL, ends[1], NULL, PIECE_BYTES, SPLICE_F_MOVE);
    if (got <= 0)
        return 0;
    uint64_t now = now_ns();
    if (*free_ns < now)
        *free_ns = now;
    sleep_until(*free_ns);
    *free_ns += (uint64_t)got * NS_PER_S / bytes_per_second;
    for (ssize_t left = got; left > 0;) {
        ssize_t put = splice(ends[0], NULL, client, NULL, (size_t)left, SPLICE_F_MOVE);
        if (put <= 0)
            return 0;
        left -= put;
        atomic_fetch_add(&counters->bytes, (uint64_t)put);
    }
    if (*stall == STALL_WITHIN)
        sleep_until(now_ns() + stall_ns);
    *stall = NO_STALL;
    return 1;
}

struct accepted {
    int client;
    uint64_t ns;
};

static void *serve(void *arg)
{
    struct accepted accepted = *(struct accepted *)arg;
    free(arg);
    int client = accepted.client, server = socket_to(server_port, 0), ends[2] = {-1, -1}, one = 1;
    uint64_t free_ns = 0;
    enum stall stall = NO_STALL;
    int going = server >= 0 && pipe2(ends, O_CLOEXEC) == 0;
    if (going)
        (void)fcntl(ends[0], F_SETPIPE_SZ, PIPE_BYTES);
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    while (going) {
        struct pollfd fds[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
        if (poll(fds, 2, -1) < 0)
            break;
        if (fds[0].revents)
            going = pass_request(client, server, accepted.ns + 2 * delay_ns, &stall);
        if (going && fds[1].revents)
            going = pass_answer(server, client, ends, &free_ns, &stall);
    }
    int fds[] = {client, server, ends[0], ends[1]};
    for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return NULL;
}

static void *count_in(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct counters)) < 0)
        fail(path);
    void *memory = mmap(NULL, sizeof(struct counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        fail(path);
    close(fd);
    return memory;
}

int main(int argc, char **argv)
{
    if (argc != 5 && argc != 8) {
        fprintf(stderr, "usage: shape LISTEN_PORT SERVER_PORT DELAY_MS BYTES_PER_SECOND "
                        "[STALL_EVERY STALL_MS COUNTERS]\n");
        return 2;
    }
    if (argc == 8) {
        stall_every = strtoull(argv[5], NULL, 10);
        stall_ns = strtoull(argv[6], NULL, 10) * 1000000;
        counters = count_in(argv[7]);
    }
    signal(SIGPIPE, SIG_IGN);
    server_port = (uint16_t)strtoul(argv[2], NULL, 10);
    delay_ns = strtoull(argv[3], NULL, 10) * 1000000;
    bytes_per_second = strtoull(argv[4], NULL, 10);
    int listener = socket_to((uint16_t)strtoul(argv[1], NULL, 10), 1);
    if (listener < 0 || bytes_per_second == 0)
        fail("listen");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (;;) {
        pthread_t thread;
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0)
            continue;
        struct accepted *accepted = malloc(sizeof(*accepted));
        if (accepted)
            *accepted = (struct accepted){client, now_ns()};
        if (!accepted || pthread_create(&thread, &attributes, serve, accepted) != 0) {
            free(accepted);
            close(client);
        }
    }
}
