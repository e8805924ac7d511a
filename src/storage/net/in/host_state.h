/* What host.c says to links: where connections may lead. */
#ifndef SL_HOST_STATE_H
#define SL_HOST_STATE_H

#include <netinet/in.h>
#include <pthread.h>

#include "host.h"

union sl_host_sockaddr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/** Guards all that is known of hosts. */
extern pthread_mutex_t sl_hosts_lock;
/** Addresses, the best first, with port 0; the permit counts for the first of them. `avoid` as of
 * sl_host_choose(). Their count; 0: only curl knows where the name leads. */
unsigned sl_host_addresses(struct sl_permit *permit, uint32_t avoid,
                           union sl_host_sockaddr addresses[SL_HOST_ADDRESSES_MAX]);

#endif
