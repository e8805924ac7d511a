/*
 * What one user may have of the server, so that there is something left for the others: places for
 * connections, and descriptors. A quarter for each, and the daemon's own user finds some that
 * nobody else can take; root, where that is another, has a share, too. The kernel's limit of open
 * files is the whole of it: a quarter for deposits of one user, half for those of all, and the rest
 * for loads, models and sockets.
 *
 * A place is taken from a connection that is idle, without a lease, and so loses nothing but a
 * greeting. Where none is, the new one is still heard, so that it can be told why it is refused.
 */
#include <sys/resource.h>
#include <unistd.h>

#include "pool_server_parts.h"

enum {
    SHARE = 4,         /* one user has this part of all */
    RESERVED = 16,     /* places that only who is privileged takes */
    OVER_MAX = 64,     /* that wait to be refused */
    IDLE_MS = 1000,    /* before that a connection is about to ask for something */
    FILES_LEAST = 256, /* with less than this nothing is shared out any more */
    FILES_MOST = 1 << 20,
};

/* ---- how much there is ----------------------------------------------------------------------- */

static size_t file_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur == RLIM_INFINITY)
        return FILES_MOST;
    return SL_MAX(SL_MIN((size_t)files.rlim_cur, (size_t)FILES_MOST), (size_t)FILES_LEAST);
}

struct sl_pool_shares sl_pool_shares_find(const struct sl_pool_server_config *config)
{
    size_t files = file_limit();
    unsigned most = (unsigned)SL_MIN((size_t)SL_POOL_CLIENTS_MAX, files / SHARE);
    unsigned clients = config->clients_max ? SL_MIN(config->clients_max, most) : most;
    unsigned reserved = SL_MIN((unsigned)RESERVED, SL_MAX(clients / SHARE, 1u));
    return (struct sl_pool_shares){
        .clients = clients,
        .others_clients = SL_MAX(clients - reserved, 1u),
        .user_clients = SL_MAX(clients / SHARE, 1u),
        .fds = files / SHARE * 3,
        .others_fds = files / 2,
        .user_fds = files / SHARE,
    };
}

/* ---- users ----------------------------------------------------------------------------------- */

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

static void count_limited(struct sl_pool_server *server)
{
    SL_LOCKED(&server->lock);
    server->locked.counts.limited++;
}

/* ---- places ---------------------------------------------------------------------------------- */

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
    count_limited(server);
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
    count_limited(server);
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

/* ---- descriptors on their way to clients ----------------------------------------------------- */

static size_t others_sent(const struct sl_pool_server *server)
{
    size_t count = 0;
    for (const struct sl_pool_user *user = server->users; user; user = user->next)
        count += user->privileged ? 0 : user->sent_fds;
    return count;
}

bool sl_pool_share_may_send(const struct sl_pool_connection *connection, size_t fds)
{
    const struct sl_pool_shares *shares = &connection->server->shares;
    const struct sl_pool_user *user = connection->user;
    if (user->privileged || !user->sent_fds) /* one model goes, however many slabs it has */
        return true;
    return user->sent_fds + fds <= shares->user_fds &&
           others_sent(connection->server) + fds <= shares->others_fds;
}

void sl_pool_share_explain(const struct sl_pool_connection *connection, struct sl_err *err)
{
    const struct sl_pool_user *most = connection->user;
    for (const struct sl_pool_user *user = connection->server->users; user; user = user->next)
        if (user->sent_fds > most->sent_fds)
            most = user;
    sl_fail_code(
        err, SL_E_NO_SPACE, "descriptors",
        "too many descriptors of user %u are on their way, %zu of %zu: they are in answers "
        "that its processes have not taken; ask again when they have, or have ended",
        most->uid, most->sent_fds, others_sent(connection->server));
}

void sl_pool_share_arrived(struct sl_pool_connection *connection)
{
    connection->user->sent_fds -= connection->sent_fds;
    connection->sent_fds = 0;
}

/* ---- descriptors of deposits ----------------------------------------------------------------- */

/* Of those that are open. */
static size_t given(const struct sl_pool_server *server, bool privileged_too)
{
    size_t count = 0;
    for (const struct sl_pool_user *user = server->users; user; user = user->next)
        count += privileged_too || !user->privileged ? user->given_fds : 0;
    return count;
}

int sl_pool_share_take(struct sl_pool_connection *connection, size_t fds, struct sl_err *err)
{
    struct sl_pool_server *server = connection->server;
    const struct sl_pool_shares *shares = &server->shares;
    struct sl_pool_user *user = connection->user;
    size_t kept = 0;
    if (server->handler.deposited_fds)
        kept = server->handler.deposited_fds(server->arg, user->user, user->uid);
    size_t own = user->given_fds + kept;
    size_t most = user->privileged ? shares->others_fds : shares->user_fds;
    bool fits = own <= most && fds <= most - own;
    fits = fits && given(server, true) + fds <= shares->fds &&
           (user->privileged || given(server, false) + fds <= shares->others_fds);
    if (fits) {
        user->given_fds += fds;
        return 0;
    }
    count_limited(server);
    return sl_fail_code(
        err, SL_E_NO_SPACE, "descriptors",
        "too many descriptors of user %u: its deposits have %zu, of at most %zu "
        "(a part of the daemon's limit of open files): make fewer, larger slabs, or "
        "raise the limit",
        user->uid, own, most);
}

void sl_pool_share_give_back(struct sl_pool_connection *connection, size_t fds)
{
    connection->user->given_fds -= fds;
}
