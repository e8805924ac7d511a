/*
 * The plain limit of a workload: what the network path gives to a program that does nothing else.
 *
 *     limit CONNECTIONS RANGE_BYTES < jobs
 *
 * A job is a line "BYTES URL", a URL is http://ADDRESS:PORT/PATH?QUERY, or https, whose certificate
 * is not looked at.
 *
 * Every connection is a thread with one keep-alive socket. Objects are cut into ranges of
 * RANGE_BYTES (0: whole objects), any free thread takes the next, and recv() writes straight into
 * one anonymous mapping that was faulted in before the clock started. No file is written and
 * nothing is checked, so a client that fills new memory does not reach it. Prints {"seconds": …,
 * "cpu": …, "bytes": …}.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { URL_MAX = 2048, HEAD_MAX = 16384, THREADS_MAX = 256 };

struct job {
    char *path; /* with its query */
    struct sockaddr_in address;
    uint64_t begin, end, at; /* range of the object, place in the mapping */
    int whole, tls;
};

struct link {
    int fd;
    SSL *ssl; /* NULL: plain */
};

static struct job *jobs;
static size_t job_count;
static atomic_size_t job_next;
static uint8_t *memory;
static SSL_CTX *tls;

static void fail(const char *what)
{
    fprintf(stderr, "limit: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static struct link connect_to(const struct job *job)
{
    struct link link = {socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), NULL};
    int one = 1;
    if (link.fd < 0 ||
        connect(link.fd, (const struct sockaddr *)&job->address, sizeof(job->address)) < 0)
        fail("connect");
    setsockopt(link.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (job->tls) {
        link.ssl = SSL_new(tls);
        if (!link.ssl || SSL_set_fd(link.ssl, link.fd) != 1 || SSL_connect(link.ssl) != 1)
            fail("TLS");
    }
    return link;
}

static ssize_t take(const struct link *link, void *data, size_t bytes, int flags)
{
    if (!link->ssl)
        return recv(link->fd, data, bytes, flags);
    return SSL_read(link->ssl, data, bytes > 1 << 30 ? 1 << 30 : (int)bytes);
}

static void send_request(const struct link *link, const struct job *job)
{
    char request[URL_MAX + 256], range[96] = "";
    if (!job->whole)
        snprintf(range, sizeof(range), "Range: bytes=%llu-%llu\r\n", (unsigned long long)job->begin,
                 (unsigned long long)job->end - 1);
    int bytes =
        snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n%s\r\n",
                 job->path, ntohs(job->address.sin_port), range);
    if ((link->ssl ? SSL_write(link->ssl, request, bytes)
                   : send(link->fd, request, (size_t)bytes, MSG_NOSIGNAL)) != bytes)
        fail("send");
}

/* Reads the head and what came with it; returns how many body bytes are there already. */
static uint64_t read_head(const struct link *link, uint8_t *body)
{
    char head[HEAD_MAX];
    size_t have = 0;
    for (;;) {
        ssize_t got = take(link, head + have, sizeof(head) - 1 - have, 0);
        if (got <= 0)
            fail("recv of a head");
        have += (size_t)got;
        head[have] = '\0';
        char *end = memmem(head, have, "\r\n\r\n", 4);
        if (!end)
            continue;
        if (strncmp(head, "HTTP/1.1 206", 12) != 0 && strncmp(head, "HTTP/1.1 200", 12) != 0) {
            fprintf(stderr, "limit: %.*s\n", 200, head);
            exit(1);
        }
        size_t rest = have - (size_t)(end + 4 - head);
        memcpy(body, end + 4, rest);
        return rest;
    }
}

static void *reader(void *arg)
{
    struct link link = {-1, NULL};
    (void)arg;
    for (;;) {
        size_t next = atomic_fetch_add(&job_next, 1);
        if (next >= job_count)
            break;
        const struct job *job = &jobs[next];
        if (link.fd < 0)
            link = connect_to(job);
        send_request(&link, job);
        uint64_t bytes = job->end - job->begin, done = read_head(&link, memory + job->at);
        while (done < bytes) {
            ssize_t got = take(&link, memory + job->at + done, bytes - done, MSG_WAITALL);
            if (got <= 0)
                fail("recv of a body");
            done += (uint64_t)got;
        }
    }
    SSL_free(link.ssl);
    if (link.fd >= 0)
        close(link.fd);
    return NULL;
}

/* Cut one object into jobs; returns where the next object goes in the mapping. */
static uint64_t add_object(const char *url, uint64_t bytes, uint64_t range_bytes, uint64_t at)
{
    char host[64], path[URL_MAX] = "/";
    unsigned port = 80;
    int secure = strncmp(url, "https:", 6) == 0;
    if (sscanf(url + 4 + secure, "://%63[0-9.]:%u%2047s", host, &port, path) < 2)
        fail(url);
    uint64_t step = range_bytes ? range_bytes : bytes;
    for (uint64_t begin = 0; begin < bytes; begin += step) {
        jobs = realloc(jobs, (job_count + 1) * sizeof(*jobs));
        if (!jobs)
            fail("memory");
        struct job *job = &jobs[job_count++];
        *job = (struct job){
            .begin = begin, .end = begin + step < bytes ? begin + step : bytes, .at = at + begin};
        job->whole = range_bytes == 0;
        job->tls = secure;
        job->path = strdup(path);
        job->address.sin_family = AF_INET;
        job->address.sin_port = htons((uint16_t)port);
        if (inet_pton(AF_INET, host, &job->address.sin_addr) != 1)
            fail(host);
    }
    return at + bytes;
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    uint64_t range_bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, bytes, total = 0;
    char url[URL_MAX];
    pthread_t ids[THREADS_MAX];
    if (argc != 3 || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: limit CONNECTIONS RANGE_BYTES < jobs\n");
        return 2;
    }
    tls = SSL_CTX_new(TLS_client_method());
    if (!tls)
        fail("TLS");
    while (scanf("%lu %2047s", &bytes, url) == 2)
        total = add_object(url, bytes, range_bytes, total);
    /* A head may bring up to HEAD_MAX bytes of body at once. */
    memory = mmap(NULL, total + HEAD_MAX, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED || !total)
        fail("mmap");
    double start = now(), used = cpu();
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, reader, NULL) != 0)
            fail("thread");
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    printf("{\"seconds\": %.6f, \"cpu\": %.6f, \"bytes\": %llu}\n", now() - start, cpu() - used,
           (unsigned long long)total);
    return 0;
}
