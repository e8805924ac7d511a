/*
 * Places for connections, of which one user has a quarter at most. A place is taken from a
 * connection that is idle, without a lease, and so loses nothing but a greeting. Where none is, the
 * new one is still heard, so that it can be told why it is refused.
 */
#include <unistd.h>

#include "pool_server_parts.h"

enum {
    OVER_MAX = 64,  /* that wait to be refused */
    IDLE_MS = 1000, /* before that a connection is about to ask for something */
};

static struct sl_pool_user *find_user(struct sl_pool_server *server,
                                      const struct sl_pool_peer *peer, struct sl_err *err)
{
    for (struct sl_pool_user *user = server->users; user; user = user->next)
        if (user->user == peer->user && user->uid == peer->uid)
            return user;
    struct sl_pool_user *user = sl_alloc(sizeof(*user), err);
    if (!user)
        return NULL;
    user->user = peer->user;
    user->uid = peer->uid;
    user->privileged = peer->user == SL_PEER_PRIVILEGED && peer->uid == geteuid();
    user->next = server->users;
    server->users = user;
    return user;
}

static void drop_user(struct sl_pool_server *server, struct sl_pool_user *user)
{
    struct sl_pool_user **at = &server->users;
    if (user->connections)
        return;
    while (*at != user)
        at = &(*at)->next;
    *at = user->next;
    free(user);
}

static unsigned places(const struct sl_pool_server *server, bool privileged_too)
{
    unsigned count = 0;
    for (const struct sl_pool_user *user = server->users; user; user = user->next)
        count += privileged_too || !user->privileged ? user->places : 0;
    return count;
}

/* Does it lose nothing but its greeting? */
static bool can_go(const struct sl_pool_connection *connection, uint64_t now)
{
    return connection->stage < SL_POOL_LEFT && !connection->over && !connection->lease_count &&
           !connection->deposit && !connection->request && !connection->out.data &&
           now - connection->idle_ns >= IDLE_MS * SL_NS_PER_MS;
}

/* The longest idle one, of this user or of all but the privileged, goes. No other thread changes
 * the list. */
static bool make_place(struct sl_pool_server *server, const struct sl_pool_user *user)
{
    struct sl_pool_connection *idlest = NULL;
    uint64_t now = sl_now_ns();
    for (struct sl_pool_connection *at = server->locked.first; at; at = at->next)
        if ((user ? at->user == user : !at->user->privileged) && can_go(at, now) &&
            (!idlest || at->idle_ns < idlest->idle_ns))
            idlest = at;
    if (!idlest)
        return false;
    idlest->user->places--;
    idlest->over = true; /* it has no place any more */
    server->over_count++;
    sl_pool_count_limited(server);
    sl_pool_connection_close(idlest);
    return true;
}

static bool find_place(struct sl_pool_server *server, const struct sl_pool_user *user)
{
    const struct sl_pool_shares *shares = &server->shares;
    if (!user->privileged && user->places >= shares->user_clients && !make_place(server, user))
        return false;
    if (!user->privileged && places(server, false) >= shares->others_clients &&
        !make_place(server, NULL))
        return false;
    return places(server, true) < shares->clients || make_place(server, NULL);
}

bool sl_pool_share_is_open(struct sl_pool_server *server)
{
    uint64_t now = sl_now_ns();
    if (places(server, true) < server->shares.clients)
        return true;
    for (const struct sl_pool_connection *at = server->locked.first; at; at = at->next)
        if (!at->user->privileged && can_go(at, now))
            return true;
    return false;
}

int sl_pool_share_enter(struct sl_pool_connection *connection, struct sl_err *err)
{
    struct sl_pool_server *server = connection->server;
    struct sl_pool_user *user = find_user(server, &connection->peer, err);
    if (!user)
        return -1;
    connection->user = user;
    user->connections++;
    connection->over = !find_place(server, user);
    if (!connection->over) {
        user->places++;
        return 0;
    }
    sl_pool_count_limited(server);
    server->over_count++;
    if (server->over_count <= OVER_MAX)
        return 0;
    sl_pool_share_leave(connection);
    return sl_fail(err, SL_E_NO_SPACE, "too many connections of uid %u", connection->peer.uid);
}

void sl_pool_share_leave(struct sl_pool_connection *connection)
{
    struct sl_pool_server *server = connection->server;
    struct sl_pool_user *user = sl_steal(&connection->user);
    if (!user)
        return;
    if (connection->over)
        server->over_count--;
    else
        user->places--;
    user->sent_fds -= connection->sent_fds;
    connection->sent_fds = 0;
    user->connections--;
    drop_user(server, user);
}

int sl_pool_share_refuse(const struct sl_pool_connection *connection, struct sl_err *err)
{
    const struct sl_pool_server *server = connection->server;
    const struct sl_pool_user *user = connection->user;
    if (user->places >= server->shares.user_clients)
        return sl_fail_code(err, SL_E_NO_SPACE, "full",
                            "too many connections of user %u: the pool takes %u of one user, and "
                            "each has a lease or is at work: close some, or let several leases "
                            "share a connection",
                            user->uid, server->shares.user_clients);
    return sl_fail_code(err, SL_E_NO_SPACE, "full",
                        "too many connections: the pool takes %u, and each has a lease or is in "
                        "use: try again when some have ended",
                        server->shares.others_clients);
}
