/*
 * What clients send to our own HTTP server. Whatever one sends, the server answers or closes, never
 * a byte from outside the shared directory, and goes on: a probe after each input gets its 200.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "fuzz_folder.h"
#include "fuzz_peer.h"
#include "web.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define OUTSIDE "root:x:0:0" /* of /etc/passwd */

static struct sl_web *web;

static void stop_web(void)
{
    sl_web_free(web);
}

static void start_web(void)
{
    struct sl_err err = SL_ERR_INIT;
    fuzz_folder_put("model", NULL, 0, (const uint8_t *)"weights", 7);
    const struct sl_web_config config = {.listen = "127.0.0.1:0",
                                         .share_directory = fuzz_folder_path,
                                         .share_prefix = "/",
                                         .idle_seconds = 5};
    if (!(web = sl_web_start(&config, &err)) || atexit(stop_web) != 0)
        abort();
}

/* Bytes of the answer, at most what fits; an answer that does not end, as events, is left. */
static size_t ask(const void *data, size_t bytes, unsigned ms, char *answer, size_t capacity)
{
    const struct linger reset = {.l_onoff = 1}; /* no port stays taken for a minute */
    struct timeval patience = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)sl_web_port(web))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t used = 0;
    ssize_t got;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        abort();
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    send(fd, data, bytes, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    while (used < capacity && (got = recv(fd, answer + used, capacity - used, 0)) > 0)
        used += (size_t)got;
    close(fd);
    return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char probe[] = "GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    char answer[64 * 1024];
    if (!web)
        start_web();
    size_t used = ask(data, bytes, 50, answer, sizeof(answer));
    if (memmem(answer, used, OUTSIDE, strlen(OUTSIDE)) &&
        !memmem(data, bytes, OUTSIDE, strlen(OUTSIDE)))
        abort();
    used = ask(probe, sizeof(probe) - 1, 10000, answer, sizeof(answer));
    if (used < 12 || memcmp(answer, "HTTP/1.1 200", 12) != 0)
        abort();
    return 0;
}
