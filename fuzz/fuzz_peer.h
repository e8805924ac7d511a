/*
 * A peer for parsers that sit behind a connection: a thread that listens on 127.0.0.1 and answers
 * every connection with the bytes it was given, whatever is asked, then closes it in order. The
 * whole way is fuzzed: connect, head, framing, what is made of the body.
 */
#ifndef SL_FUZZ_PEER_H
#define SL_FUZZ_PEER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
    int listener;
    unsigned port;
    pthread_mutex_t lock;
    const uint8_t *data; /* under the lock, with bytes */
    size_t bytes;
} fuzz_peer = {.listener = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

static void fuzz_peer_answer(int fd)
{
    char request[16 * 1024];
    if (recv(fd, request, sizeof(request), 0) > 0) {
        pthread_mutex_lock(&fuzz_peer.lock);
        for (size_t at = 0; at < fuzz_peer.bytes;) {
            ssize_t sent = send(fd, fuzz_peer.data + at, fuzz_peer.bytes - at, MSG_NOSIGNAL);
            if (sent <= 0)
                break;
            at += (size_t)sent;
        }
        pthread_mutex_unlock(&fuzz_peer.lock);
    }
    shutdown(fd, SHUT_WR);
    while (recv(fd, request, sizeof(request), 0) > 0)
        ;
    close(fd);
}

static void *fuzz_peer_run(void *arg)
{
    (void)arg;
    for (;;) {
        int fd = accept(fuzz_peer.listener, NULL, NULL);
        if (fd >= 0)
            fuzz_peer_answer(fd);
    }
    return NULL;
}

/* Once per process; its port. */
static inline unsigned fuzz_peer_start(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    pthread_t thread;
    if (fuzz_peer.listener >= 0)
        return fuzz_peer.port;
    fuzz_peer.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fuzz_peer.listener < 0 ||
        bind(fuzz_peer.listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        listen(fuzz_peer.listener, 64) < 0 ||
        getsockname(fuzz_peer.listener, (struct sockaddr *)&address, &length) < 0 ||
        pthread_create(&thread, NULL, fuzz_peer_run, NULL) != 0)
        abort();
    fuzz_peer.port = ntohs(address.sin_port);
    return fuzz_peer.port;
}

/* What the next connections are answered with; borrowed until it is set again. */
static inline void fuzz_peer_say(const uint8_t *data, size_t bytes)
{
    pthread_mutex_lock(&fuzz_peer.lock);
    fuzz_peer.data = data;
    fuzz_peer.bytes = bytes;
    pthread_mutex_unlock(&fuzz_peer.lock);
}

#endif
