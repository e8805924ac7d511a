/* The inside of a host, shared by host.c (places), host_lookup.c (names) and host_score.c (how
 * addresses do). All of it is guarded by one lock. */
#ifndef SL_HOST_STATE_H
#define SL_HOST_STATE_H

#include <netinet/in.h>

#include "host.h"
#include "thread.h"

union sl_host_place {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

struct sl_host_address {
    union sl_host_place place;
    char text[INET6_ADDRSTRLEN];
    bool gone;                 /* the last look-up did not tell of it */
    unsigned links;            /* connections there, or on their way */
    unsigned strikes;          /* troubles in a row */
    unsigned refusals;         /* connections in a row that did not come about */
    uint64_t bad_until_ns;     /* out of favour */
    uint64_t doubted_until_ns; /* a request fell silent there lately: others come first */
    double bytes, seconds;     /* of answers, those of long ago less */
    unsigned samples;
    uint64_t connects, errors, received; /* for metrics */
};

struct sl_host {
    struct sl_host *next;
    char *name;
    unsigned port;
    bool numeric;  /* the name is an address */
    bool loopback; /* localhost, or a name below it: its addresses are known */
    unsigned users, held, waiting;
    struct sl_permit *permits, *permits_last;

    int fd;       /* readable when a look-up has ended; -1 for addresses */
    bool looking; /* a thread looks it up */
    bool failed;  /* the last look-up, of which nobody has heard yet */
    bool unknown; /* since there is no such name */
    char trouble[128];
    uint64_t answer_delay_ns; /* sl_latency_host_add() */
    uint64_t looked_ns;       /* when it was found last, 0: never */
    struct sl_host_address addresses[SL_HOST_ADDRESSES_MAX];
    unsigned count;
};

extern pthread_mutex_t sl_hosts_lock;
/** With the lock held. */
void sl_hosts_each(void (*visit)(struct sl_host *host, void *arg), void *arg);
/** Addresses, the best first, with port 0; the permit counts for the first of them. `avoid` as of
 * sl_host_choose(). Their count; 0: only curl knows where the name leads. */
unsigned sl_host_places(struct sl_permit *permit, uint32_t avoid,
                        union sl_host_place places[SL_HOST_ADDRESSES_MAX]);
/** A new host: find out whether its name is an address. */
int sl_host_prepare(struct sl_host *host, struct sl_err *err);
/** The permit counts for its address, or no more: with the lock held. */
void sl_host_count(struct sl_permit *permit, int change);
/** Every address that does well is gone or out of favour: with the lock held. */
bool sl_host_is_down(const struct sl_host *host, uint64_t now_ns);

#endif
