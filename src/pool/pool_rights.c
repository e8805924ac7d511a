/* Who a client is, as the kernel says it (SO_PEERCRED, SO_PEERGROUPS), and what it may do. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pool_server_parts.h"
#include "pool_wire.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

enum { GROUPS_MAX = 65536 };

/* The supplementary groups; none if the kernel does not tell. */
static int find_groups(struct sl_pool_connection *connection, struct sl_err *err)
{
    socklen_t bytes = 0;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) == 0 ||
        errno != ERANGE || bytes > GROUPS_MAX * sizeof(uint32_t))
        return 0;
    connection->groups = sl_alloc(bytes, err);
    if (!connection->groups)
        return -1;
    if (getsockopt(connection->fd, SOL_SOCKET, SO_PEERGROUPS, connection->groups, &bytes) == 0)
        connection->group_count = bytes / sizeof(uint32_t);
    return 0;
}

int sl_pool_peer_find(struct sl_pool_connection *connection, struct sl_err *err)
{
    struct ucred credentials;
    socklen_t bytes = sizeof(credentials);
    if (getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) < 0)
        return sl_fail_errno(err, SL_E_AUTH, errno, "cannot see who a client of the pool is");
    connection->peer.pid = credentials.pid;
    connection->peer.uid = credentials.uid;
    connection->peer.gid = credentials.gid;
    return find_groups(connection, err);
}

static bool has_group(const struct sl_pool_connection *connection, uint32_t gid)
{
    if (connection->peer.gid == gid)
        return true;
    for (size_t i = 0; i < connection->group_count; i++)
        if (connection->groups[i] == gid)
            return true;
    return false;
}

static bool may(const struct sl_pool_connection *connection, const struct sl_pool_right *right)
{
    uint32_t uid = connection->peer.uid;
    if (right->all || uid == 0 || uid == geteuid())
        return true;
    for (unsigned i = 0; i < right->uid_count; i++)
        if (right->uids[i] == uid)
            return true;
    for (unsigned i = 0; i < right->gid_count; i++)
        if (has_group(connection, right->gids[i]))
            return true;
    return false;
}

uint32_t sl_pool_rights(const struct sl_pool_connection *connection)
{
    struct sl_pool_server *server = connection->server;
    SL_LOCKED(&server->lock);
    return (may(connection, &server->locked.attach) ? SL_WIRE_MAY_ATTACH : 0u) |
           (may(connection, &server->locked.deposit) ? SL_WIRE_MAY_DEPOSIT : 0u) |
           (may(connection, &server->locked.evict) ? SL_WIRE_MAY_EVICT : 0u);
}
