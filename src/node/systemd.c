/* A few lines instead of a library: one datagram to the socket that NOTIFY_SOCKET names, and
 * descriptors from 3 on. Variables meant for another process (LISTEN_PID, WATCHDOG_PID) do not
 * count. */
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

void sl_systemd_notify(const char *text)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address;
    socklen_t bytes;
    if (!path || !*path)
        return;
    sl_autoclose int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (notify_address(path, &address, &bytes) < 0 || fd < 0 ||
        sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&address, bytes) < 0)
        sl_log(SL_LOG_WARN, "the service manager at '%s' cannot be told '%s': %s", path, text,
               strerror(errno));
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

void sl_systemd_sockets(struct sl_systemd_sockets *sockets)
{
    const char *count_text = getenv("LISTEN_FDS"), *name = getenv("LISTEN_FDNAMES");
    long count = count_text && is_ours("LISTEN_PID") ? strtol(count_text, NULL, 10) : 0;
    sockets->count = 0;
    for (long i = 0; i < count && i < SL_SYSTEMD_SOCKETS_MAX; i++) {
        size_t bytes = name ? strcspn(name, ":") : 0;
        int fd = FIRST_FD + (int)i;
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) {
            sockets->items[sockets->count].fd = fd;
            snprintf(sockets->items[sockets->count++].name, sizeof(sockets->items[0].name), "%.*s",
                     (int)SL_MIN(bytes, (size_t)63), name ? name : "");
        }
        if (name)
            name += bytes + (name[bytes] == ':');
    }
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
    sockets->count = 0;
    return closed;
}
