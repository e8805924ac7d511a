/*
 * A server of one file for ranges, at a distance that is set:
 *
 *     delayed PORT FILE DELAY_US CONNECTION_BYTES_PER_S LINK_BYTES_PER_S COUNTERS
 *
 * On 127.0.0.1; PORT 0 is any, and the one that it got is printed. Each request is held back by
 * DELAY_US, a round trip. Answers come at most at CONNECTION_BYTES_PER_S each, and at
 * LINK_BYTES_PER_S all together; 0 is not a bound. A connection is a thread. COUNTERS is a file of
 * four 64-bit numbers: requests, bytes of answers, connections that are open, and the most that
 * were open at a time. Whoever sets the last two to 0 counts anew.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE_BYTES = 128 * 1024, HEAD_BYTES = 8192, STACK_BYTES = 256 * 1024 };
#define NS_PER_S 1000000000ull

struct counters {
    _Atomic uint64_t requests, bytes, open, most;
};
static int file;
static uint64_t file_bytes, delay_ns, each_rate, link_rate;
static struct counters *counters;
static _Atomic uint64_t link_free_ns;

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
    const struct timespec time = {(time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S)};
    while (ns > now_ns() && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0)
        ;
}

/* When so many bytes have gone through what was free from *free_ns on. */
static uint64_t take(_Atomic uint64_t *free_ns, uint64_t bytes, uint64_t rate)
{
    uint64_t free = atomic_load(free_ns), next;
    do {
        uint64_t now = now_ns();
        next = (free > now ? free : now) + bytes * NS_PER_S / rate;
    } while (!atomic_compare_exchange_weak(free_ns, &free, next));
    return next;
}

static int send_body(int fd, uint64_t begin, uint64_t end)
{
    _Atomic uint64_t own_free_ns = 0;
    off_t at = (off_t)begin;
    while ((uint64_t)at < end) {
        uint64_t bytes = end - (uint64_t)at < PIECE_BYTES ? end - (uint64_t)at : PIECE_BYTES;
        uint64_t due = link_rate ? take(&link_free_ns, bytes, link_rate) : 0;
        if (each_rate) {
            uint64_t own = take(&own_free_ns, bytes, each_rate);
            due = own > due ? own : due;
        }
        sleep_until(due);
        for (uint64_t stop = (uint64_t)at + bytes; (uint64_t)at < stop;)
            if (sendfile(fd, file, &at, stop - (uint64_t)at) <= 0)
                return -1;
    }
    return 0;
}

/* One request; -1: the connection is to end. */
static int answer(int fd, const char *head)
{
    uint64_t begin = 0, end = file_bytes;
    char text[512];
    const char *range = strcasestr(head, "\nrange: bytes=");
    if (range) {
        char *rest;
        begin = strtoull(range + 14, &rest, 10);
        if (rest[1] >= '0' && rest[1] <= '9')
            end = strtoull(rest + 1, NULL, 10) + 1;
    }
    end = end < file_bytes ? end : file_bytes;
    begin = begin < end ? begin : end;
    atomic_fetch_add(&counters->requests, 1);
    sleep_until(now_ns() + delay_ns);
    int bytes = snprintf(text, sizeof(text),
                         "HTTP/1.1 %s\r\nContent-Length: %llu\r\nContent-Range: bytes "
                         "%llu-%llu/%llu\r\nETag: \"one\"\r\nAccept-Ranges: bytes\r\n\r\n",
                         range ? "206 Partial Content" : "200 OK",
                         (unsigned long long)(end - begin), (unsigned long long)begin,
                         (unsigned long long)(end - 1), (unsigned long long)file_bytes);
    if (send(fd, text, (size_t)bytes, MSG_NOSIGNAL | MSG_MORE) != bytes)
        return -1;
    atomic_fetch_add(&counters->bytes, end - begin);
    return strncmp(head, "HEAD", 4) == 0 ? 0 : send_body(fd, begin, end);
}

static void *serve(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char head[HEAD_BYTES + 1];
    size_t used = 0;
    prctl(PR_SET_TIMERSLACK, 1000);
    uint64_t open = atomic_fetch_add(&counters->open, 1) + 1, most = atomic_load(&counters->most);
    while (open > most && !atomic_compare_exchange_weak(&counters->most, &most, open))
        ;
    for (;;) {
        ssize_t got = recv(fd, head + used, HEAD_BYTES - used, 0);
        if (got <= 0)
            break;
        used += (size_t)got;
        head[used] = '\0';
        if (!strstr(head, "\r\n\r\n"))
            continue;
        used = 0;
        if (answer(fd, head) < 0)
            break;
    }
    atomic_fetch_sub(&counters->open, 1);
    close(fd);
    return NULL;
}

static void *map_counters(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct counters)) < 0)
        return MAP_FAILED;
    return mmap(NULL, sizeof(struct counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static int listen_on(const char *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)strtoul(port, NULL, 10)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    socklen_t bytes = sizeof(address);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 1024) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) < 0)
        return -1;
    printf("%u\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv)
{
    struct stat status;
    if (argc != 7)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    file = open(argv[2], O_RDONLY);
    delay_ns = strtoull(argv[3], NULL, 10) * 1000;
    each_rate = strtoull(argv[4], NULL, 10);
    link_rate = strtoull(argv[5], NULL, 10);
    counters = map_counters(argv[6]);
    int listening = listen_on(argv[1]);
    if (file < 0 || fstat(file, &status) < 0 || counters == MAP_FAILED || listening < 0)
        return perror("delayed"), 1;
    file_bytes = (uint64_t)status.st_size;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (;;) {
        pthread_t thread;
        int fd = accept(listening, NULL, NULL), on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        if (fd >= 0 && pthread_create(&thread, &attributes, serve, (void *)(intptr_t)fd) != 0)
            close(fd);
    }
}
