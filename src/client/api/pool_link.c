/*
 * Requests are small and the server takes them at once, so sending hardly ever waits; answers may
 * take as long as a model takes to be found. Waiting is poll() on the socket and the caller's own
 * descriptor. An answer that is not what was asked for ends the connection: nothing is guessed.
 */
#include "pool_link.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SOCKET_PAUSE_MS = 50 };

/* ---- errors ---------------------------------------------------------------------------------- */

int sl_api_fail(struct sluice_error *error, int kind, const char *format, ...)
{
    va_list list;
    if (!error)
        return -1;
    memset(error, 0, sizeof(*error));
    error->kind = kind;
    va_start(list, format);
    vsnprintf(error->message, sizeof(error->message), format, list);
    va_end(list);
    return -1;
}

int sl_api_fail_errno(struct sluice_error *error, int kind, const char *format, ...)
{
    int number = errno;
    va_list list;
    if (!error)
        return -1;
    memset(error, 0, sizeof(*error));
    error->kind = kind;
    va_start(list, format);
    int used = vsnprintf(error->message, sizeof(error->message), format, list);
    va_end(list);
    if (used >= 0 && (size_t)used < sizeof(error->message))
        snprintf(error->message + used, sizeof(error->message) - (size_t)used, ": %s",
                 strerror(number));
    return -1;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct sl_limit sl_limit_make(int timeout_ms, int cancel_fd)
{
    struct sl_limit limit = {.cancel_fd = cancel_fd > 0 ? cancel_fd : -1};
    if (timeout_ms >= 0)
        limit.deadline_ns = now_ns() + (uint64_t)timeout_ms * 1000000u;
    return limit;
}

int sl_limit_left(const struct sl_limit *limit, int most, struct sluice_error *error)
{
    struct pollfd cancel = {.fd = limit->cancel_fd, .events = POLLIN};
    if (limit->cancel_fd >= 0 && poll(&cancel, 1, 0) > 0)
        return sl_api_fail(error, SLUICE_CANCELED, "canceled");
    if (!limit->deadline_ns)
        return most;
    uint64_t now = now_ns();
    if (now >= limit->deadline_ns)
        return sl_api_fail(error, SLUICE_TIMEOUT, "the time limit of the call was exceeded");
    uint64_t left = (limit->deadline_ns - now + 999999u) / 1000000u;
    return left < (uint64_t)most ? (int)left : most;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static int wait_for(struct sl_pool_link *link, short events, struct sluice_error *error)
{
    struct pollfd fds[2] = {{.fd = link->fd, .events = events},
                            {.fd = link->limit.cancel_fd, .events = POLLIN}};
    for (;;) {
        int left = sl_limit_left(&link->limit, 60000, error);
        if (left < 0)
            return -1;
        if (poll(fds, 2, left) > 0 && fds[0].revents)
            return 0;
    }
}

bool sl_pool_link_lost(const struct sl_pool_link *link)
{
    struct pollfd socket = {.fd = link->fd, .events = POLLRDHUP};
    return poll(&socket, 1, 0) > 0 && (socket.revents & (POLLHUP | POLLERR | POLLRDHUP));
}

/* ---- sending --------------------------------------------------------------------------------- */

/* A process that was forked has the parent's socket: what it sent would be the parent's word. */
int sl_pool_link_check_process(const struct sl_pool_link *link, struct sluice_error *error)
{
    if (link->process == getpid())
        return 0;
    sl_api_fail(error, SLUICE_USAGE,
                "the connection to the pool was made before this process was forked: attach here");
    if (error)
        memccpy(error->code, "forked", 0, sizeof(error->code));
    return -1;
}

int sl_pool_link_send(struct sl_pool_link *link, uint16_t type, void *packet, size_t bytes,
                      const int *fds, size_t fd_count, struct sluice_error *error)
{
    if (sl_pool_link_check_process(link, error) < 0)
        return -1;
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SL_WIRE_FDS_MAX)];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {packet, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct sl_wire_head *head = packet;
    *head = (struct sl_wire_head){.bytes = (uint32_t)bytes, .type = type, .serial = ++link->serial};
    if (fd_count) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
    }
    while (sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        if (errno == ETOOMANYREFS)
            poll(NULL, 0, 10);
        else if (errno != EAGAIN && errno != EINTR)
            return sl_api_fail_errno(error, SLUICE_NETWORK, "the pool's daemon has gone");
        if (wait_for(link, POLLOUT, error) < 0)
            return -1;
    }
    return 0;
}

size_t sl_pool_put_text(void *packet, size_t bytes, const char *text)
{
    size_t length = strlen(text);
    memcpy((char *)packet + bytes, text, length);
    return bytes + length;
}

int sl_api_check_size(size_t size, struct sluice_error *error)
{
    if (size > sizeof(size))
        return 0;
    return sl_api_fail(error, SLUICE_USAGE,
                       "the size in a struct is %zu: set its first member to the sizeof of the "
                       "struct",
                       size);
}

int sl_api_check_flags(uint32_t flags, uint32_t known, struct sluice_error *error)
{
    if (!(flags & ~known))
        return 0;
    return sl_api_fail(error, SLUICE_USAGE,
                       "flags has 0x%x, which this version of the library does not know: leave it "
                       "out",
                       flags & ~known);
}

int sl_pool_check_texts(const char *model, const char *key, const char *device,
                        struct sluice_error *error)
{
    if (!model || !*model || strlen(model) > SL_WIRE_MODEL_BYTES)
        return sl_api_fail(error, SLUICE_USAGE, "a model's name has 1 to %d bytes",
                           SL_WIRE_MODEL_BYTES);
    if (strlen(key) > SL_WIRE_KEY_BYTES)
        return sl_api_fail(error, SLUICE_USAGE, "a key has at most %d bytes", SL_WIRE_KEY_BYTES);
    if (strlen(device) > SL_WIRE_DEVICE_BYTES)
        return sl_api_fail(error, SLUICE_USAGE, "a device's name has at most %d bytes",
                           SL_WIRE_DEVICE_BYTES);
    return 0;
}

/* ---- receiving ------------------------------------------------------------------------------- */

void sl_pool_reply_release(struct sl_pool_reply *reply)
{
    for (size_t i = 0; i < reply->fd_count; i++)
        if (reply->fds[i] >= 0)
            close(reply->fds[i]);
    reply->fd_count = 0;
}

static void take_fds(struct msghdr *message, struct sl_pool_reply *reply)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && reply->fd_count < SL_WIRE_FDS_MAX; i++)
            memcpy(&reply->fds[reply->fd_count++], CMSG_DATA(header) + i * sizeof(int),
                   sizeof(int));
    }
}

/* 1: a packet. 0: none yet. */
static int receive(struct sl_pool_link *link, struct sl_pool_reply *reply,
                   struct sluice_error *error)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SL_WIRE_FDS_MAX)];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {reply->storage, sizeof(reply->storage)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t got = recvmsg(link->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        return sl_api_fail(error, SLUICE_NETWORK, "the pool's daemon has gone");
    take_fds(&message, reply);
    reply->bytes = (size_t)got;
    if (message.msg_flags & MSG_CTRUNC)
        return sl_api_fail(error, SLUICE_NO_SPACE,
                           "this process may not open the %zu files of the model: raise its limit "
                           "of open files (ulimit -n)",
                           reply->fd_count);
    if (message.msg_flags & MSG_TRUNC)
        return sl_api_fail(error, SLUICE_INTERNAL, "an answer of the pool is too large");
    return 1;
}

static int take_error(const struct sl_pool_reply *reply, struct sluice_error *error)
{
    const struct sl_wire_error *refusal = sl_pool_reply_data(reply);
    if (reply->bytes < sizeof(*refusal) || refusal->text_bytes != reply->bytes - sizeof(*refusal) ||
        refusal->text_bytes > SL_WIRE_TEXT_BYTES)
        return sl_api_fail(error, SLUICE_INTERNAL, "an error of the pool cannot be read");
    sl_api_fail(error, refusal->kind ? (int)refusal->kind : SLUICE_INTERNAL, "%.*s",
                (int)refusal->text_bytes, (const char *)(refusal + 1));
    if (error)
        memcpy(error->code, refusal->code, sizeof(error->code) - 1);
    return -1;
}

int sl_pool_reply_check(const struct sl_pool_reply *reply, uint16_t type, uint32_t serial,
                        size_t least, struct sluice_error *error)
{
    const struct sl_wire_head *head = sl_pool_reply_data(reply);
    if (reply->bytes < sizeof(*head) || head->bytes != reply->bytes)
        return sl_api_fail(error, SLUICE_INTERNAL, "an answer of the pool is cut off");
    if (head->type == SL_WIRE_ERROR)
        return take_error(reply, error);
    if (head->type != type || head->serial != serial || reply->bytes < least)
        return sl_api_fail(error, SLUICE_INTERNAL, "the pool's answer does not fit the request");
    return 0;
}

int sl_pool_link_receive(struct sl_pool_link *link, uint16_t type, size_t least,
                         struct sl_pool_reply *reply, struct sluice_error *error)
{
    int got;
    reply->fd_count = 0;
    while ((got = receive(link, reply, error)) == 0)
        if (wait_for(link, POLLIN, error) < 0)
            return -1;
    if (got > 0 && sl_pool_reply_check(reply, type, link->serial, least, error) == 0)
        return 0;
    sl_pool_reply_release(reply);
    return -1;
}

int sl_pool_link_ask(struct sl_pool_link *link, uint16_t type, void *packet, size_t bytes,
                     const int *fds, size_t fd_count, size_t least, struct sl_pool_reply *reply,
                     struct sluice_error *error)
{
    if (sl_pool_link_send(link, type, packet, bytes, fds, fd_count, error) < 0)
        return -1;
    return sl_pool_link_receive(link, SL_WIRE_ANSWER | type, least, reply, error);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static const char *choose_socket(const char *socket)
{
    const char *given = socket && *socket ? socket : secure_getenv("SLUICE_POOL_SOCKET");
    return given && *given ? given : SL_WIRE_SOCKET_PATH;
}

/* Nobody listens there yet. 1: look again. 0: that is not to be waited for any longer. */
static int await_socket(const struct sl_pool_link *link, struct sluice_error *error)
{
    struct sluice_error own;
    if (!link->limit.awaits_socket)
        return 0;
    int left = sl_limit_left(&link->limit, SOCKET_PAUSE_MS, &own);
    if (left < 0 && own.kind == SLUICE_CANCELED)
        return sl_api_fail(error, SLUICE_CANCELED, "canceled");
    if (left >= 0)
        poll(NULL, 0, left);
    return left >= 0;
}

/* After a connect() that failed. 0: try it again. */
static int judge_refusal(const struct sl_pool_link *link, const char *path,
                         struct sluice_error *error)
{
    int number = errno;
    if (number == EINTR)
        return 0;
    if (number == EAGAIN) { /* too many others are connecting */
        poll(NULL, 0, 2);
        return sl_limit_left(&link->limit, 1, error) < 0 ? -1 : 0;
    }
    if (number == EACCES || number == EPERM)
        return sl_api_fail_errno(error, SLUICE_AUTH,
                                 "cannot connect to the pool at '%s': the socket's group and mode "
                                 "do not allow this user",
                                 path);
    if (number == ENOENT || number == ECONNREFUSED) {
        int waits = await_socket(link, error);
        if (waits != 0)
            return waits > 0 ? 0 : -1;
    }
    errno = number;
    if (number == EPROTOTYPE)
        return sl_api_fail(error, SLUICE_USAGE,
                           "'%s' is not a pool's socket: name the one that the daemon's config has "
                           "in `pool: {socket: …}`",
                           path);
    if (number == ENOENT)
        return sl_api_fail(error, SLUICE_NETWORK, "no socket '%s': is `sluice serve` running?",
                           path);
    return sl_api_fail_errno(error, SLUICE_NETWORK,
                             "cannot connect to the pool at '%s': is `sluice serve` running?",
                             path);
}

static int connect_to(struct sl_pool_link *link, const char *path, struct sluice_error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return sl_api_fail(error, SLUICE_USAGE, "the socket's path '%s' has more than %zu bytes",
                           path, sizeof(address.sun_path) - 1);
    memcpy(address.sun_path, path, strlen(path));
    link->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0)
        return sl_api_fail_errno(error, SLUICE_NO_SPACE, "cannot make a socket");
    while (connect(link->fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
        if (judge_refusal(link, path, error) < 0)
            return -1;
    return 0;
}

static int greet(struct sl_pool_link *link, const char *client, struct sluice_error *error)
{
    union {
        struct sl_wire_hello hello;
        char bytes[sizeof(struct sl_wire_hello) + SL_WIRE_CLIENT_BYTES];
    } packet = {0};
    struct sl_pool_reply reply;
    const char *name = client ? client : program_invocation_short_name;
    size_t length = strnlen(name, SL_WIRE_CLIENT_BYTES);
    for (size_t i = 0; i < length; i++) /* any program may have any name */
        packet.bytes[sizeof(packet.hello) + i] = name[i] > 0x20 && name[i] < 0x7f ? name[i] : '?';
    packet.hello.magic = SL_WIRE_MAGIC;
    packet.hello.version_min = packet.hello.version_max = SL_WIRE_VERSION;
    packet.hello.name_bytes = (uint32_t)length;
    if (sl_pool_link_ask(link, SL_WIRE_HELLO, &packet, sizeof(packet.hello) + length, NULL, 0,
                         sizeof(struct sl_wire_welcome), &reply, error) < 0)
        return -1;
    const struct sl_wire_welcome *welcome = sl_pool_reply_data(&reply);
    link->rights = welcome->rights;
    int spoken = welcome->version;
    sl_pool_reply_release(&reply);
    if (spoken != SL_WIRE_VERSION)
        return sl_api_fail(error, SLUICE_USAGE,
                           "the pool speaks version %d of its protocol, this library version %d: "
                           "update the older of the two",
                           spoken, SL_WIRE_VERSION);
    return 0;
}

int sl_pool_link_open(struct sl_pool_link *link, const char *socket, const char *client,
                      struct sl_limit limit, struct sluice_error *error)
{
    *link = (struct sl_pool_link){.fd = -1, .process = getpid(), .limit = limit};
    if (connect_to(link, choose_socket(socket), error) == 0 && greet(link, client, error) == 0)
        return 0;
    sl_pool_link_close(link);
    return -1;
}

void sl_pool_link_close(struct sl_pool_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
}
