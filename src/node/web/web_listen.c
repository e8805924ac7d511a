/*
 * Sockets that listen: at an address, at a path, or one that the service manager has opened.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node_socket.h"
#include "web_http.h"
#include "web_parts.h"

enum { LISTEN_BACKLOG = 1024 };

static int fail_listen(struct sl_err *err, int number, const char *text)
{
    const char *next = number == EADDRINUSE      ? "another process has it: give another port"
                       : number == EADDRNOTAVAIL ? "no interface here has this address"
                       : number == EACCES ? "ports below 1024 are for root: give a higher one"
                                          : "give another address";
    if (sl_errno_is_short(number))
        return sl_fail_errno(err, SL_E_NO_SPACE, number, "cannot listen on '%s'", text);
    return sl_fail_errno(err, SL_E_NET, number, "cannot listen on '%s': %s", text, next);
}

static int listen_at(const struct addrinfo *address, const char *text, struct sl_err *err)
{
    int one = 1, zero = 0;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail_listen(err, errno, text);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (address->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    if (bind(fd, address->ai_addr, address->ai_addrlen) < 0 || listen(fd, LISTEN_BACKLOG) < 0) {
        int number = errno;
        close(fd);
        fail_listen(err, number, text);
        errno = number;
        return -1;
    }
    return fd;
}

static int open_listener(const char *text, struct sl_err *err)
{
    char host[256], service[8];
    unsigned port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    if (sl_web_address_parse(text, host, &port, err) < 0)
        return -1;
    snprintf(service, sizeof(service), "%u", port);
    /* Every address: the IPv6 wildcard takes IPv4 too, but a kernel without IPv6 has only the
     * other. */
    int failed = getaddrinfo(*host ? host : "::", service, &hints, &found);
    if (failed)
        return sl_fail(err, SL_E_USAGE, "cannot listen on '%s': host '%s': %s", text, host,
                       gai_strerror(failed));
    int fd = listen_at(found, text, err);
    freeaddrinfo(found);
    if (fd >= 0 || *host || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL))
        return fd;
    if (getaddrinfo("0.0.0.0", service, &hints, &found) != 0)
        return -1;
    fd = listen_at(found, text, err);
    freeaddrinfo(found);
    return fd;
}

static unsigned port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) < 0)
        return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

/* ---- what the config asks for --------------------------------------------------------------- */

static int listen_unix(const struct sl_web_socket *at, struct sl_node_socket *socket,
                       struct sl_err *err)
{
    const struct sl_node_socket_options options = {at->path, SOCK_STREAM, LISTEN_BACKLOG, at->mode,
                                                   at->group};
    if (sl_node_socket_open(&options, socket, err) < 0)
        return -1;
    int fd = socket->fd;
    socket->fd = -1;
    return fd;
}

int web_listen(const struct sl_web_config *config, struct sl_node_socket *socket, unsigned *port,
               struct sl_err *err)
{
    *port = 0;
    int fd = config->listen_fd > 0 ? config->listen_fd
             : config->control     ? listen_unix(config->control, socket, err)
                                   : open_listener(config->listen, err);
    if (fd >= 0 && !config->control)
        *port = port_of(fd);
    return fd;
}
