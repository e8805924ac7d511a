/* What a client may do: by its user, or by any group that it is in. */
#include "pool_server_parts.h"
#include "pool_wire.h"

int sl_pool_peer_find(struct sl_pool_connection *connection, struct sl_err *err)
{
    if (sl_peer_find(connection->fd, &connection->who, err) < 0)
        return sl_wrap(err, "a client of the pool");
    connection->peer.pid = connection->who.pid;
    connection->peer.uid = connection->who.uid;
    connection->peer.user = sl_peer_user(&connection->who);
    connection->peer.gid = connection->who.gid;
    return 0;
}

static bool may(const struct sl_pool_connection *connection, const struct sl_pool_right *right)
{
    uint32_t uid = connection->peer.uid;
    if (right->all || sl_peer_is_privileged(&connection->who))
        return true;
    for (unsigned i = 0; i < right->uid_count; i++)
        if (right->uids[i] == uid)
            return true;
    for (unsigned i = 0; i < right->gid_count; i++)
        if (sl_peer_is_in(&connection->who, right->gids[i]))
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
