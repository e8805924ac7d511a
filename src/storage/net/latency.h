/*
 * How long to wait for a server: what connecting, a first byte and the next one usually take here,
 * and from that when a request is worth sending once more, and when it has failed.
 *
 * Computation alone: lengths of time in ns go in and come out, no clock is read, so that tables can
 * test it. Any thread; an estimate belongs to whoever holds it (a host, a load), under its lock.
 */
#ifndef SL_LATENCY_H
#define SL_LATENCY_H

#include <stdbool.h>
#include <stdint.h>

/* ---- limits: who reaches one has failed -------------------------------------------------------
 */

/** To connect, names and TLS included. seconds: as configured; 0: 10 s. */
uint64_t sl_latency_connect_limit(unsigned seconds);
/** For 64 KiB of a transfer, in seconds. seconds: as configured; 0: 30. */
unsigned sl_latency_stall_seconds(unsigned seconds);
/** A request that is given up after so long without a byte had fallen silent: its address is to be
 * avoided for a while. */
bool sl_latency_is_silent(uint64_t quiet_ns);

/* ---- connecting ------------------------------------------------------------------------------ */

/** An address that has not taken a connection for so long is left for another that does well. */
uint64_t sl_latency_address_delay(unsigned connect_seconds);
/** Whoever takes longer to connect, or to begin an answer, is far away, or busy: a load connects
 * ahead of need there. A busy server nearby answers within this at most times. */
#define SL_LATENCY_NEAR_NS UINT64_C(20000000)

/* ---- answers that have no siblings ----------------------------------------------------------- */

/** What is known of a host, when an answer began so long after its request (or was given up then):
 * twice what such answers take; what they took long ago counts less. 0 at first. */
uint64_t sl_latency_host_add(uint64_t host_ns, uint64_t waited_ns);

/** The least, unless a test shortens it. */
#define SL_LATENCY_ANSWER_LEAST_NS UINT64_C(1000000000)
/** After so long without an answer a request without siblings is sent once more: several times what
 * connecting took, what its host needs (sl_latency_host_add()), and no less than least_ns. */
uint64_t sl_latency_answer_delay(uint64_t connect_ns, uint64_t host_ns, uint64_t least_ns);
/**
 * The same for one request: `hedge` times delay_ns (the number doubles from try to try), 0 for
 * never. It is never where that is not a sooner than the stall limit that was configured (0: none).
 */
uint64_t sl_latency_hedge_delay(unsigned hedge, uint64_t delay_ns, unsigned stall_seconds);

/* ---- ranges, which are judged by their siblings ---------------------------------------------- */

enum { SL_WAITS_SAMPLES = 32 };
/** How long requests of one kind waited, the last times. Zeroed: nothing is known yet. */
struct sl_waits {
    uint64_t ns[SL_WAITS_SAMPLES];
    unsigned count; /* of all that there were */
};
void sl_waits_add(struct sl_waits *waits, uint64_t ns);
/** What nine of ten of the last stayed within, at least 1 ns; 0 while there are too few to tell. */
uint64_t sl_waits_usual(const struct sl_waits *waits);

/** How long to bear without a byte before a request counts as slow. */
struct sl_latency_delays {
    uint64_t first_ns; /* for the first byte, on a connection that has brought some before */
    uint64_t fresh_ns; /* on one that has yet to be made */
    uint64_t gap_ns;   /* between two bytes */
};
/**
 * Choose the delays of a load's ranges by what others waited.
 *
 * @first     for first bytes, on connections that had brought some before.
 * @fresh     for first bytes, on connections that were new.
 * @gaps      between two bytes.
 * @store_ns  the shortest time to a first byte that the store has shown; 0: not known.
 * @return    delays that bear more where little is known.
 */
struct sl_latency_delays sl_latency_range_delays(const struct sl_waits *first,
                                                 const struct sl_waits *fresh,
                                                 const struct sl_waits *gaps, uint64_t store_ns);

#endif
