/*
 * What one user may have of the server, so that there is something left for the others: places for
 * connections, and descriptors. A quarter for each, and the daemon's own user finds some that
 * nobody else can take; root, where that is another, has a share, too. The kernel's limit of open
 * files is the whole of it: a quarter for deposits of one user, half for those of all, and the rest
 * for loads, models and sockets.
 */
#include <sys/resource.h>

#include "pool_server_parts.h"

enum {
    SHARE = 4,         /* one user has this part of all */
    RESERVED = 16,     /* places that only who is privileged takes */
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

void sl_pool_count_limited(struct sl_pool_server *server)
{
    SL_LOCKED(&server->lock);
    server->locked.counts.limited++;
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
    sl_pool_count_limited(server);
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
