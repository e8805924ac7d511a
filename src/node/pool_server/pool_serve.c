/* What each request does. The first must be hello; rights are judged anew for every request. */
#include <string.h>

#include "pool_server_parts.h"

static int serve_hello(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                       struct sl_err *err)
{
    static const char name[] = "sluice " SLUICE_VERSION;
    struct {
        struct sl_wire_welcome welcome;
        char name[sizeof(name) - 1];
    } answer = {.welcome = {.version = SL_WIRE_VERSION,
                            .leases_max = SL_POOL_LEASES_MAX,
                            .name_bytes = sizeof(name) - 1}};
    if (packet->version_min > SL_WIRE_VERSION || packet->version_max < SL_WIRE_VERSION)
        return sl_fail_code(err, SL_E_USAGE, "protocol",
                            "the client speaks versions %u to %u of the pool's protocol, this "
                            "server %d: update the older of the two",
                            packet->version_min, packet->version_max, SL_WIRE_VERSION);
    sl_pool_connection_enter(connection, SL_POOL_SERVED);
    connection->deadline_ns = 0;
    {
        SL_LOCKED(&connection->server->lock);
        memcpy(connection->peer.name, packet->client, sizeof(connection->peer.name));
        sl_sanitize(connection->peer.name);
    }
    answer.welcome.rights = sl_pool_rights(connection);
    memcpy(answer.name, name, sizeof(answer.name));
    sl_pool_send(connection, SL_WIRE_ANSWER | SL_WIRE_HELLO, &answer,
                 sizeof(answer.welcome) + sizeof(answer.name), NULL, 0);
    return 0;
}

static int serve_attach(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                        struct sl_err *err)
{
    struct sl_pool_server *server = connection->server;
    if (connection->lease_count == SL_POOL_LEASES_MAX)
        return sl_fail(err, SL_E_NO_SPACE,
                       "this connection has %d leases already: detach from one, or open another",
                       SL_POOL_LEASES_MAX);
    struct sl_pool_request *request =
        sl_pool_request_new(server->mailbox, packet, &connection->peer, err);
    if (!request)
        return -1;
    request->connection = connection;
    connection->request = request;
    server->handler.attach(server->arg, request); /* it may be answered already, by the mailbox */
    return 0;
}

static int serve_evict(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                       struct sl_err *err)
{
    struct sl_pool_server *server = connection->server;
    struct sl_wire_evicted evicted = {0};
    if (!server->handler.evict)
        return sl_fail(err, SL_E_USAGE, "this pool evicts nothing on demand");
    if (server->handler.evict(server->arg, packet->model, packet->key, &evicted.bytes, err) < 0)
        return -1;
    sl_pool_send(connection, SL_WIRE_ANSWER | SL_WIRE_EVICT, &evicted, sizeof(evicted), NULL, 0);
    return 0;
}

static int demand(const struct sl_pool_connection *connection, uint32_t right, const char *what,
                  struct sl_err *err)
{
    if (sl_pool_rights(connection) & right)
        return 0;
    return sl_fail(
        err, SL_E_AUTH,
        "user %u (group %u) may not %s this pool: its configuration lists the users that may",
        connection->peer.uid, connection->peer.gid, what);
}

static int serve_greeted(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                         int *fds, struct sl_err *err)
{
    switch (packet->type) {
    case SL_WIRE_ATTACH:
        return demand(connection, SL_WIRE_MAY_ATTACH, "attach to", err) < 0
                   ? -1
                   : serve_attach(connection, packet, err);
    case SL_WIRE_DETACH:
        return sl_pool_serve_detach(connection, packet, err);
    case SL_WIRE_LIST:
        return demand(connection, SL_WIRE_MAY_ATTACH, "look into", err) < 0
                   ? -1
                   : sl_pool_serve_list(connection, packet, err);
    case SL_WIRE_STAT:
        return demand(connection, SL_WIRE_MAY_ATTACH, "look into", err) < 0
                   ? -1
                   : sl_pool_serve_stat(connection, packet, err);
    case SL_WIRE_EVICT:
        return demand(connection, SL_WIRE_MAY_EVICT, "evict from", err) < 0
                   ? -1
                   : serve_evict(connection, packet, err);
    case SL_WIRE_DEPOSIT:
        return demand(connection, SL_WIRE_MAY_DEPOSIT, "deposit into", err) < 0
                   ? -1
                   : sl_pool_serve_deposit(connection, packet, err);
    case SL_WIRE_DEPOSIT_SLABS:
        return demand(connection, SL_WIRE_MAY_DEPOSIT, "deposit into", err) < 0
                   ? -1
                   : sl_pool_serve_deposit_slabs(connection, packet, fds, err);
    case SL_WIRE_COMMIT:
        return demand(connection, SL_WIRE_MAY_DEPOSIT, "deposit into", err) < 0
                   ? -1
                   : sl_pool_serve_commit(connection, packet, fds, err);
    default:
        return sl_pool_serve_abort(connection, packet, err);
    }
}

int sl_pool_serve(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                  int *fds, struct sl_err *err)
{
    bool hello = packet->type == SL_WIRE_HELLO;
    if (hello == (connection->stage == SL_POOL_SERVED))
        return sl_fail_code(err, SL_E_USAGE, "protocol", "a request to the pool is malformed: %s",
                            hello ? "hello comes once" : "hello comes first");
    return hello ? serve_hello(connection, packet, err)
                 : serve_greeted(connection, packet, fds, err);
}
