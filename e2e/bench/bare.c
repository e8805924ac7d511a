/*
 * The least that filling a new file costs: what sluice does with a plain object, and nothing else.
 *
 *     bare CONNECTIONS RANGE_BYTES FILE < job
 *
 * The job is one line "BYTES URL", a URL is http://ADDRESS:PORT/PATH?QUERY. One thread polls the
 * keep-alive connections, receives into a buffer of 256 KiB for each, which stays in cache, and
 * writes it to the file with pwrite(): of all ways that were tried the one with least CPU per byte.
 * No hash, no journal, no second try, no check of the answer but its status. The difference
 * between this and the limit is the price of new pages; that between sluice and this is sluice's.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { URL_MAX = 2048, HEAD_MAX = 8192, LINKS_MAX = 256, WINDOW_BYTES = 256 * 1024 };

struct link {
    uint8_t *window;
    size_t filled;
    uint64_t at, end; /* of its range: of the window's first byte; of its last */
    int head;         /* the answer's head has not come yet */
};

static char path[URL_MAX] = "/";
static struct sockaddr_in address = {.sin_family = AF_INET};
static uint64_t total, next_byte, range_bytes;
static struct link links[LINKS_MAX];
static struct pollfd polls[LINKS_MAX];
static int file;

static void fail(const char *what)
{
    fprintf(stderr, "bare: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void ask(unsigned i)
{
    char request[URL_MAX + 256];
    struct link *link = &links[i];
    link->at = next_byte;
    link->end = next_byte + range_bytes < total ? next_byte + range_bytes : total;
    next_byte = link->end;
    link->filled = 0;
    link->head = 1;
    int bytes = snprintf(request, sizeof(request),
                         "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nRange: bytes=%llu-%llu\r\n\r\n",
                         path, ntohs(address.sin_port), (unsigned long long)link->at,
                         (unsigned long long)link->end - 1);
    if (send(polls[i].fd, request, (size_t)bytes, MSG_NOSIGNAL) != bytes)
        fail("send");
}

static void open_link(unsigned i)
{
    int one = 1;
    polls[i] = (struct pollfd){socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), POLLIN, 0};
    if (polls[i].fd < 0 ||
        connect(polls[i].fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        fail("connect");
    setsockopt(polls[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    links[i].window = aligned_alloc(4096, WINDOW_BYTES);
    if (!links[i].window)
        fail("memory");
    ask(i);
}

/* Take the head alone; 0 if it has not come wholly. */
static int read_head(unsigned i)
{
    char head[HEAD_MAX];
    ssize_t got = recv(polls[i].fd, head, sizeof(head), MSG_PEEK);
    if (got <= 0)
        fail("recv of a head");
    char *end = memmem(head, (size_t)got, "\r\n\r\n", 4);
    if (!end)
        return 0;
    if (strncmp(head, "HTTP/1.1 206", 12) != 0) {
        fprintf(stderr, "bare: %.*s\n", 200, head);
        exit(1);
    }
    if (recv(polls[i].fd, head, (size_t)(end + 4 - head), 0) != end + 4 - head)
        fail("recv of a head");
    links[i].head = 0;
    return 1;
}

static void write_window(struct link *link)
{
    if (pwrite(file, link->window, link->filled, (off_t)link->at) != (ssize_t)link->filled)
        fail("pwrite");
    link->at += link->filled;
    link->filled = 0;
}

/* What has come; 0 when there is nothing more for this connection. */
static int serve(unsigned i)
{
    struct link *link = &links[i];
    if (link->head && !read_head(i))
        return 1;
    while (link->at < link->end) {
        uint64_t left = link->end - link->at - link->filled;
        size_t room = WINDOW_BYTES - link->filled;
        ssize_t got =
            recv(polls[i].fd, link->window + link->filled, left < room ? left : room, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN)
            return 1;
        if (got <= 0)
            fail("recv of a body");
        link->filled += (size_t)got;
        if (link->filled == WINDOW_BYTES || (uint64_t)got == left)
            write_window(link);
    }
    if (next_byte == total)
        return 0;
    ask(i);
    return 1;
}

int main(int argc, char **argv)
{
    char url[URL_MAX], host[64];
    unsigned port, count = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    range_bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    if (argc != 4 || count < 1 || count > LINKS_MAX || !range_bytes ||
        scanf("%lu %2047s", &total, url) != 2 || !total) {
        fprintf(stderr, "usage: bare CONNECTIONS RANGE_BYTES FILE < job\n");
        return 2;
    }
    if (sscanf(url, "http://%63[0-9.]:%u%2047s", host, &port, path) < 2 ||
        inet_pton(AF_INET, host, &address.sin_addr) != 1)
        fail(url);
    address.sin_port = htons((uint16_t)port);
    file = open(argv[3], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)total) < 0)
        fail(argv[3]);
    unsigned busy = 0;
    for (; busy < count && next_byte < total; busy++)
        open_link(busy);
    for (unsigned open = busy; busy;) {
        if (poll(polls, open, -1) < 0)
            fail("poll");
        for (unsigned i = 0; i < open; i++)
            if (polls[i].revents && !serve(i)) {
                close(polls[i].fd);
                polls[i].fd = -1;
                busy--;
            }
    }
    return 0;
}
