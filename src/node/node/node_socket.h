/* Unix sockets that clients find by a path (unix(7)). A socket is its owner's, for one thread at a
 * time; nothing here waits for a client. */
#ifndef SL_NODE_SOCKET_H
#define SL_NODE_SOCKET_H

#include <stdbool.h>
#include <sys/types.h>

#include "err.h"

/** A socket at a path. Zero but fds, which are -1, before it is opened. */
struct sl_node_socket {
    int fd;        /* listens, does not block, closed on exec; -1 once it was taken */
    int folder_fd; /* where it lies, until sl_node_socket_release() */
    char name[80];
    ino_t inode;
};
struct sl_node_socket_options {
    const char *path;
    int type; /* SOCK_STREAM, SOCK_SEQPACKET */
    int backlog;
    unsigned mode;
    unsigned group;            /* UINT32_MAX leaves it */
    const char *selinux_label; /* NULL leaves it; a kernel that refuses it is a warning */
};
/**
 * Listen at a path, whose folder is made. It appears there with its mode and group, so nobody comes
 * in between, and no path is followed to give it those. What a dead process left is replaced.
 * SL_E_NET: another process serves it, or something else is there; SL_E_USAGE: the path is too
 * long; SL_E_NO_SPACE: the folder is somebody else's (code "owner") or cannot be written.
 */
int sl_node_socket_open(const struct sl_node_socket_options *options, struct sl_node_socket *at,
                        struct sl_err *err);
/** Another mode for it; nothing if it is not there any more, or was never opened here. SL_E_NET. */
int sl_node_socket_set_mode(const struct sl_node_socket *at, unsigned mode, struct sl_err *err);
/** Do clients that follow the path get to it still? Not if it, or a folder on the way, has gone. */
bool sl_node_socket_is_there(const struct sl_node_socket *at, const char *path);
/** Take it away, if it is still that one, and close what was not taken. */
void sl_node_socket_release(struct sl_node_socket *at);

#endif
