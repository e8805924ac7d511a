/* A few lines instead of a library: a datagram to the socket that NOTIFY_SOCKET names, a descriptor
 * to be kept beside it, and descriptors from 3 on. Variables meant for another process (LISTEN_PID,
 * WATCHDOG_PID) do not count. */
#include "systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "log.h"
#include "mem.h"
#include "thread.h"

enum { FIRST_FD = 3 };

static int notify_address(const char *path, struct sockaddr_un *address, socklen_t *bytes)
{
    size_t length = strlen(path);
    if ((*path != '/' && *path != '@') || length < 2 || length >= sizeof(address->sun_path))
        return -1;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, length);
    if (*path == '@')
        address->sun_path[0] = 0; /* the abstract name space */
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return 0;
}

/* fd: sent along, if there is one. 1: there is no manager. */
static int notify(const char *text, int fd, struct sl_err *err)
{
    const char *path = getenv("NOTIFY_SOCKET");
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct sockaddr_un address;
    struct iovec part = {(char *)text, strlen(text)};
    struct msghdr message = {.msg_name = &address, .msg_iov = &part, .msg_iovlen = 1};
    if (!path || !*path)
        return 1;
    if (fd >= 0) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(int));
    }
    sl_autoclose int own = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (notify_address(path, &address, &message.msg_namelen) < 0 || own < 0 ||
        sendmsg(own, &message, MSG_NOSIGNAL) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "cannot notify the service manager at '%.100s' of '%.100s'", path,
                             text);
    return 0;
}

void sl_systemd_notify(const char *text)
{
    struct sl_err why = SL_ERR_INIT;
    if (notify(text, -1, &why) < 0)
        sl_log(SL_LOG_WARN, "%s", why.message);
}

static int notify_store(const char *verb, const char *name, int fd, struct sl_err *err)
{
    char text[128 + SL_SYSTEMD_NAME_BYTES];
    snprintf(text, sizeof(text), "%s\nFDNAME=%s", verb, name);
    int sent = notify(text, fd, err);
    return sent > 0 ? sl_fail(err, SL_E_NOT_FOUND, "there is no service manager") : sent;
}

int sl_systemd_store(const char *name, int fd, struct sl_err *err)
{
    return notify_store("FDSTORE=1\nFDPOLL=0", name, fd, err);
}

int sl_systemd_unstore(const char *name, struct sl_err *err)
{
    return notify_store("FDSTOREREMOVE=1", name, -1, err);
}

void sl_systemd_reloading(void)
{
    char text[64];
    snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, sl_now_ns() / 1000);
    sl_systemd_notify(text);
}

static bool is_ours(const char *variable)
{
    const char *text = getenv(variable);
    return text && strtol(text, NULL, 10) == (long)getpid();
}

unsigned sl_systemd_watchdog_ms(void)
{
    const char *text = getenv("WATCHDOG_USEC");
    uint64_t microseconds = text ? strtoull(text, NULL, 10) : 0;
    if (!microseconds || (getenv("WATCHDOG_PID") && !is_ours("WATCHDOG_PID")))
        return 0;
    return (unsigned)SL_MAX(1u, SL_MIN(microseconds / 2000, (uint64_t)600000));
}

static void take_fds(struct sl_systemd_sockets *sockets, long count, const char *name)
{
    struct sl_err why = SL_ERR_INIT;
    sockets->items = sl_alloc_array((size_t)count, sizeof(*sockets->items), &why);
    if (!sockets->items) {
        sl_log(SL_LOG_ERROR, "what the service manager gives cannot be taken: %s", why.message);
        return;
    }
    for (long i = 0; i < count; i++) {
        size_t bytes = name ? strcspn(name, ":") : 0;
        int fd = FIRST_FD + (int)i;
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) {
            struct sl_systemd_fd *item = &sockets->items[sockets->count++];
            item->fd = fd;
            snprintf(item->name, sizeof(item->name), "%.*s",
                     (int)SL_MIN(bytes, sizeof(item->name) - 1), name ? name : "");
        }
        if (name)
            name += bytes + (name[bytes] == ':');
    }
}

void sl_systemd_sockets(struct sl_systemd_sockets *sockets)
{
    const char *text = getenv("LISTEN_FDS");
    long count = text && is_ours("LISTEN_PID") ? strtol(text, NULL, 10) : 0;
    *sockets = (struct sl_systemd_sockets){.count = 0};
    if (count > 0)
        take_fds(sockets, SL_MIN(count, (long)SL_SYSTEMD_FDS_MAX), getenv("LISTEN_FDNAMES"));
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDNAMES");
}

int sl_systemd_take(struct sl_systemd_sockets *sockets, const char *name)
{
    for (unsigned i = 0; i < sockets->count; i++) {
        int fd = sockets->items[i].fd;
        if (fd < 0 || strcmp(sockets->items[i].name, name) != 0)
            continue;
        sockets->items[i].fd = -1;
        return fd;
    }
    return -1;
}

unsigned sl_systemd_close(struct sl_systemd_sockets *sockets)
{
    unsigned closed = 0;
    for (unsigned i = 0; i < sockets->count; i++) {
        closed += sockets->items[i].fd >= 0;
        sl_autoclose_(&sockets->items[i].fd);
    }
    free(sl_steal(&sockets->items));
    sockets->count = 0;
    return closed;
}
