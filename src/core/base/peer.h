/* Who is at the other end of a unix socket, as the kernel says it (SO_PEERCRED of unix(7)). Any
 * thread. */
#ifndef SL_PEER_H
#define SL_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

/** As it was when it connected. */
struct sl_peer {
    int32_t pid; /* 0: of a PID namespace that is not seen from here */
    uint32_t uid, gid;
    uint32_t *groups; /* beside the first; owned */
    size_t group_count;
};
/** SL_E_AUTH: the kernel does not say; SL_E_NO_SPACE. Release it in any case. */
int sl_peer_find(int fd, struct sl_peer *peer, struct sl_err *err);
/** Zeroed ones are fine. */
void sl_peer_release(struct sl_peer *peer);
/** Is it a member of this group, by its first or by another one? */
bool sl_peer_is_in(const struct sl_peer *peer, uint32_t gid);

#endif
