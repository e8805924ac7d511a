/*
 * What clients send to the pool. The input is packets, each after its length in two bytes: they go
 * through the parser, and to a server over its socket, greeted or not. Whatever comes, the server
 * answers or closes, and greets the next.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "pool_link.h"
#include "pool_packet.h"
#include "pool_start.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void refuse(void *arg, struct sl_pool_request *request)
{
    struct sl_err err = SL_ERR_INIT;
    (void)arg;
    if (strlen(sl_pool_request_args(request)->model) > SL_WIRE_MODEL_BYTES)
        abort();
    sl_fail(&err, SL_E_NOT_FOUND, "there is none");
    sl_pool_request_refuse(request, &err);
}

static void list_nothing(void *arg, struct sl_pool_listing *listing)
{
    (void)arg, (void)listing;
}

static int begin(void *arg, const struct sl_pool_offer *offer, struct sl_err *err)
{
    (void)arg, (void)err;
    return offer->key[0] ? 0 : -1;
}

static int commit(void *arg, const struct sl_pool_offer *offer, struct sl_pool_model *model,
                  struct sl_err *err)
{
    (void)arg, (void)offer, (void)model, (void)err;
    return 0;
}

static void start(void)
{
    static const struct sl_pool_handler handler = {
        .attach = refuse, .list = list_nothing, .deposit_begin = begin, .deposit_commit = commit};
    start_pool(&handler, (struct sl_pool_server_config){.attach = {.all = true}});
}

static int connect_raw(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_usec = 20000};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, path, strlen(path));
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        abort();
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    return fd;
}

/* An even first byte: with a greeting first. */
static void talk(const uint8_t *data, size_t bytes)
{
    const struct sl_wire_hello hello = {
        .head = {.bytes = sizeof(hello), .type = SL_WIRE_HELLO},
        .magic = SL_WIRE_MAGIC,
        .version_min = SL_WIRE_VERSION,
        .version_max = SL_WIRE_VERSION,
    };
    static uint8_t answer[SL_WIRE_PACKET_BYTES];
    int fd = connect_raw();
    bool open = true;
    if (data[0] % 2 == 0)
        open = send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) > 0 &&
               recv(fd, answer, sizeof(answer), 0) > 0;
    for (size_t at = 1; open && at + 2 <= bytes;) {
        size_t length = (size_t)data[at] | (size_t)data[at + 1] << 8;
        struct sl_pool_packet packet;
        at += 2;
        length = length < bytes - at ? length : bytes - at;
        sl_pool_packet_parse(data + at, length, 0, &packet, NULL);
        open = length && send(fd, data + at, length, MSG_NOSIGNAL) > 0 &&
               recv(fd, answer, sizeof(answer), 0) > 0;
        at += length;
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_pool_link link;
    if (!server)
        start();
    if (bytes)
        talk(data, bytes);
    if (sl_pool_link_open(&link, path, "probe", sl_limit_make(60000, -1), NULL) < 0)
        abort();
    sl_pool_link_close(&link);
    return 0;
}
