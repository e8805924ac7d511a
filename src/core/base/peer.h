/* Who is at the other end of a unix socket, as the kernel says it (SO_PEERCRED of unix(7)). Any
 * thread. */
#ifndef SL_PEER_H
#define SL_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

#define SL_PEER_PRIVILEGED UINT32_MAX /* no user has this number */
/** As it was when it connected. */
struct sl_peer {
    int32_t pid; /* 0: of a PID namespace that is not seen from here */
    uint32_t uid, gid;
    bool home;        /* of our users: it is in our user and PID namespaces; else unknown */
    uint32_t *groups; /* beside the first; owned */
    size_t group_count;
};
/** SL_E_AUTH: the kernel does not say; SL_E_NO_SPACE. Release it in any case. */
int sl_peer_find(int fd, struct sl_peer *peer, struct sl_err *err);
/**
 * Is it root, or this process's own user, and at home? The same number in a container says nothing
 * of who it is: images run as root unless somebody said otherwise. In doubt it is not.
 */
bool sl_peer_is_privileged(const struct sl_peer *peer);
/** As whom it counts: SL_PEER_PRIVILEGED, or its uid. */
uint32_t sl_peer_user(const struct sl_peer *peer);
/** For people: the uid of such a user. */
uint32_t sl_peer_user_uid(uint32_t user);
/**
 * Tell whether two processes are in the same namespaces, by what /proc says of them.
 *
 * @own_status  the text of our own /proc/PID/status.
 * @own_map     the text of our own /proc/PID/uid_map.
 * @status      the other's.
 * @map         the other's.
 * @return      false in doubt: either is in a nested PID namespace, or our map is "".
 */
bool sl_peer_shares_home(const char *own_status, const char *own_map, const char *status,
                         const char *map);
/** Zeroed ones are fine. */
void sl_peer_release(struct sl_peer *peer);
/** Is it a member of this group, by its first or by another one? */
bool sl_peer_is_in(const struct sl_peer *peer, uint32_t gid);

#endif
