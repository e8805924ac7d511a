/*
 * What clients send to a server of gRPC: the input is the bytes of one connection, behind preface
 * and SETTINGS if its first byte is even. Whatever comes, the server answers or closes, and a probe
 * after each input gets its answer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "fuzz_folder.h"
#include "grpc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define GREETING "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
/* A request of /f.F/F with an empty message: HEADERS without compression, DATA. */
#define PROBE_HEADERS                                                                              \
    "\x83\x86\x04\x06/f.F/F\x0f\x10\x10"                                                           \
    "application/grpc"

static struct sl_grpc *server;
static char path[300];

static enum sl_grpc_code echo(void *arg, const struct sl_grpc_method *method,
                              struct sl_grpc_call *call)
{
    (void)arg, (void)method;
    if (call->request_bytes > SL_GRPC_REQUEST_BYTES)
        abort();
    if (call->request_bytes > 1000) {
        memcpy(call->text, call->request, sizeof(call->text) - 1);
        return (enum sl_grpc_code)call->request[0];
    }
    return sl_buf_append(&call->response, call->request, call->request_bytes, NULL) == 0
               ? SL_GRPC_OK
               : SL_GRPC_RESOURCE_EXHAUSTED;
}

static void stop(void)
{
    sl_grpc_close(server, 0);
}

static void start(void)
{
    static const struct sl_grpc_method methods[] = {
        {.path = "/f.F/F", .fast = true, .answer = echo},
        {.path = "/f.F/W", .answer = echo, .at_once = 1},
    };
    struct sl_err err = SL_ERR_INIT;
    fuzz_folder_put("unused", NULL, 0, (const uint8_t *)"", 0);
    snprintf(path, sizeof(path), "%s/f.sock", fuzz_folder_path);
    const struct sl_grpc_config config = {
        .socket = path, .methods = methods, .method_count = 2, .workers = 2, .name = "fuzz"};
    if (!(server = sl_grpc_open(&config, &err)) || atexit(stop) != 0)
        abort();
}

static int connect_raw(unsigned ms)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        abort();
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    return fd;
}

static void talk(const uint8_t *data, size_t bytes)
{
    uint8_t answer[4096];
    int fd = connect_raw(50);
    if (data[0] % 2 == 0)
        send(fd, GREETING, sizeof(GREETING) - 1, MSG_NOSIGNAL);
    send(fd, data + 1, bytes - 1, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    while (recv(fd, answer, sizeof(answer), 0) > 0)
        ;
    close(fd);
}

/* Until the trailers of the answer are there. */
static void probe(void)
{
    static const char head[] = {0, 0, sizeof(PROBE_HEADERS) - 1, 1, 4, 0, 0, 0, 1};
    static const char body[] = {0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0};
    static const char empty[] = {0, 0, 5, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0};
    char answer[4096];
    size_t used = 0;
    ssize_t got;
    int fd = connect_raw(10000);
    send(fd, GREETING, sizeof(GREETING) - 1, MSG_NOSIGNAL);
    send(fd, head, sizeof(head), MSG_NOSIGNAL);
    send(fd, PROBE_HEADERS, sizeof(PROBE_HEADERS) - 1, MSG_NOSIGNAL);
    send(fd, body, sizeof(body), MSG_NOSIGNAL);
    while (!memmem(answer, used, empty, sizeof(empty))) {
        got = recv(fd, answer + used, sizeof(answer) - used, 0);
        if (got <= 0)
            abort();
        used += (size_t)got;
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!server)
        start();
    if (bytes)
        talk(data, bytes);
    probe();
    return 0;
}
