/* SO_PEERCRED tells the user and the first group, SO_PEERGROUPS (Linux 4.13) the others; without it
 * there are none. */
#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "mem.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

enum { GROUPS_MAX = 65536 };

static int find_groups(int fd, struct sl_peer *peer, struct sl_err *err)
{
    socklen_t bytes = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) == 0 || errno != ERANGE ||
        bytes > GROUPS_MAX * sizeof(uint32_t))
        return 0;
    peer->groups = sl_alloc(bytes, err);
    if (!peer->groups)
        return -1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer->groups, &bytes) == 0)
        peer->group_count = bytes / sizeof(uint32_t);
    return 0;
}

int sl_peer_find(int fd, struct sl_peer *peer, struct sl_err *err)
{
    struct ucred credentials;
    socklen_t bytes = sizeof(credentials);
    memset(peer, 0, sizeof(*peer));
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) < 0)
        return sl_fail_errno(err, SL_E_AUTH, errno, "cannot see who is at the other end");
    peer->pid = credentials.pid;
    peer->uid = credentials.uid;
    peer->gid = credentials.gid;
    return find_groups(fd, peer, err);
}

void sl_peer_release(struct sl_peer *peer)
{
    free(peer->groups);
    memset(peer, 0, sizeof(*peer));
}

bool sl_peer_is_in(const struct sl_peer *peer, uint32_t gid)
{
    if (peer->gid == gid)
        return true;
    for (size_t i = 0; i < peer->group_count; i++)
        if (peer->groups[i] == gid)
            return true;
    return false;
}
