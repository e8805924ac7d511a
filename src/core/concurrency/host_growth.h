/*
 * Loads of this process that read from one host at the same time need together what one of them
 * would need alone. So they have one growth: it sees the bytes of all, and says how many
 * connections all have, which are parted among them, one each at least. A load that comes or goes
 * changes the parts; what was on trial then is not judged.
 *
 * One owner (a reader, under its lock) for each share; any thread; none blocks but for a lock.
 */
#ifndef SL_HOST_GROWTH_H
#define SL_HOST_GROWTH_H

#include "growth.h"

struct sl_reading_host;
/** One load's share of its host. The caller fills in own; the rest is zeroed. */
struct sl_host_share {
    struct sl_growth
        own;     /* as the load would have it alone; after leaving what it had in the end */
    bool shared; /* there were other loads beside it */
    /* the rest is its own */
    struct sl_reading_host *host; /* NULL: not joined, or alone */
    struct sl_host_share *next;   /* of the same host */
    uint64_t bytes;               /* that it has landed */
    unsigned open, part;          /* connections: open; that it may have */
};
/** Begin to read from the host of uri, of a store; NULL, or a number of connections that is fixed:
 * the load stays alone. Returns the connections of this load. */
unsigned sl_host_growth_join(struct sl_host_share *share, const char *uri);
void sl_host_growth_leave(struct sl_host_share *share);

/** The growth that decides, until sl_host_growth_unlock(): what is known of the server goes there.
 */
struct sl_growth *sl_host_growth_lock(struct sl_host_share *share);
void sl_host_growth_unlock(void);
/**
 * Do as sl_growth_tick() for all loads of the host. The lock is held (sl_host_growth_lock()).
 *
 * @now_ns     sl_now_ns() scale.
 * @bytes      that this load landed since it began.
 * @throttled  answers 429 and 503 to this load since its last call.
 * @open       connections of this load.
 * @return     the connections that this load may have.
 */
unsigned sl_host_growth_tick(struct sl_host_share *share, uint64_t now_ns, uint64_t bytes,
                             unsigned throttled, unsigned open);
/** As sl_growth_is_crowded(), without the lock: so many of this load are open. */
bool sl_host_growth_is_crowded(struct sl_host_share *share, unsigned open);

#endif
