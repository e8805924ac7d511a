/*
 * A cap on the bytes that the loads of this process take from the network in a second.
 *
 * Whoever has a cap asks before it reads, and is given bytes or a time to come back. Loads that
 * name the same rate keep to it together; loads with different rates keep to their own, and all
 * together to the largest.
 */
#ifndef SL_BANDWIDTH_H
#define SL_BANDWIDTH_H

#include <stddef.h>
#include <stdint.h>

/** One reader of bytes; zeroed at first. */
struct sl_bandwidth {
    uint64_t turn_ns; /* when it may come back, 0: it does not wait */
};

/** An unused allowance is kept for this time. */
#define SL_BANDWIDTH_BURST_NS (40 * UINT64_C(1000000))

/**
 * Ask how much may be read now. What was read is to be told by sl_bandwidth_used().
 *
 * @rate    its cap in bytes/s, at least 1.
 * @bytes   that it would read, at least 1.
 * @now_ns  sl_now_ns() scale.
 * @return  at most `bytes`; 0: nothing before reader->turn_ns.
 *
 * Any thread.
 */
size_t sl_bandwidth_ask(struct sl_bandwidth *reader, uint64_t rate, size_t bytes, uint64_t now_ns);
void sl_bandwidth_used(uint64_t rate, size_t bytes, uint64_t now_ns);

#endif
