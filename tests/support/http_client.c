/* Blocking, one connection at a time; grows its buffer as bytes come, up to a limit. */
#include "http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { BODY_BYTES_MAX = 256 << 20 };

int http_connect(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval patience = {60, 0};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

int http_send(int fd, const char *text)
{
    size_t bytes = strlen(text);
    while (bytes) {
        ssize_t sent = send(fd, text, bytes, MSG_NOSIGNAL);
        if (sent <= 0)
            return -1;
        text += sent;
        bytes -= (size_t)sent;
    }
    return 0;
}

static int receive_head(int fd, struct http_reply *reply)
{
    size_t used = 0;
    while (used + 1 < sizeof(reply->head)) {
        if (recv(fd, reply->head + used, 1, 0) != 1)
            return -1;
        reply->head[++used] = 0;
        if (used >= 4 && memcmp(reply->head + used - 4, "\r\n\r\n", 4) == 0)
            return sscanf(reply->head, "HTTP/1.%*d %d", &reply->status) == 1 ? 0 : -1;
    }
    return -1;
}

/* bytes SIZE_MAX: until the end of the connection. */
static int receive_body(int fd, size_t bytes, struct http_reply *reply)
{
    size_t start = reply->bytes;
    while (reply->bytes - start < bytes) {
        size_t want = bytes - (reply->bytes - start);
        if (want > 1 << 20)
            want = 1 << 20;
        char *grown =
            reply->bytes > BODY_BYTES_MAX ? NULL : realloc(reply->body, reply->bytes + want + 1);
        if (!grown)
            return -1;
        reply->body = grown;
        ssize_t got = recv(fd, reply->body + reply->bytes, want, 0);
        if (got <= 0)
            return got == 0 && bytes == SIZE_MAX ? 0 : -1;
        reply->bytes += (size_t)got;
        reply->body[reply->bytes] = 0;
    }
    return 0;
}

static int receive_chunks(int fd, struct http_reply *reply)
{
    for (;;) {
        char line[32] = "";
        size_t used = 0;
        while (used + 1 < sizeof(line) && !strchr(line, '\n')) {
            if (recv(fd, line + used, 1, 0) != 1)
                return -1;
            line[++used] = 0;
        }
        size_t bytes = strtoul(line, NULL, 16), before = reply->bytes;
        if (receive_body(fd, bytes + 2, reply) < 0)
            return -1;
        reply->bytes = before + bytes;
        reply->body[reply->bytes] = 0;
        if (!bytes)
            return 0;
    }
}

int http_receive(int fd, int head_only, struct http_reply *reply)
{
    memset(reply, 0, sizeof(*reply));
    reply->body = calloc(1, 1);
    if (receive_head(fd, reply) < 0)
        return -1;
    if (head_only || reply->status == 304)
        return 0;
    const char *length = http_header(reply, "Content-Length");
    if (length)
        return receive_body(fd, strtoull(length, NULL, 10), reply);
    if (http_header(reply, "Transfer-Encoding"))
        return receive_chunks(fd, reply);
    return receive_body(fd, SIZE_MAX, reply);
}

void http_release(struct http_reply *reply)
{
    free(reply->body);
    reply->body = NULL;
}

int http_ask(unsigned port, const char *method, const char *path, const char *headers,
             struct http_reply *reply)
{
    char *request = NULL;
    int fd = http_connect(port), result = -1;
    memset(reply, 0, sizeof(*reply));
    if (fd >= 0 &&
        asprintf(&request, "%s %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\n%s\r\n", method,
                 path, headers) > 0 &&
        http_send(fd, request) == 0)
        result = http_receive(fd, strcmp(method, "HEAD") == 0, reply);
    free(request);
    if (fd >= 0)
        close(fd);
    return result;
}

const char *http_header(const struct http_reply *reply, const char *name)
{
    static _Thread_local char value[1024];
    size_t name_bytes = strlen(name);
    for (const char *line = reply->head; (line = strstr(line, "\r\n"));) {
        line += 2;
        if (strncasecmp(line, name, name_bytes) != 0 || line[name_bytes] != ':')
            continue;
        line += name_bytes + 1;
        line += strspn(line, " ");
        snprintf(value, sizeof(value), "%.*s", (int)strcspn(line, "\r"), line);
        return value;
    }
    return NULL;
}
