/* All of 127.0.0.0/8 is this machine's, so a test can have as many addresses as it likes. */
#include "listen_at.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

int sl_port_hold(const char *name, unsigned *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((in_port_t)*port)};
    socklen_t bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), again = 1;
    if (fd < 0)
        return -1;
    /* Else nobody can have the port of a server that has just ended, for a minute: connections of
     * this one, which inherit it, are still open at their clients. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &again, sizeof(again));
    if (inet_pton(AF_INET, name, &address.sin_addr) != 1 ||
        bind(fd, (struct sockaddr *)&address, bytes) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) < 0) {
        close(fd);
        return -1;
    }
    *port = ntohs(address.sin_port);
    return fd;
}

int sl_listen_at(const char *name, unsigned *port)
{
    int fd = sl_port_hold(name, port);
    if (fd >= 0 && listen(fd, 256) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}
