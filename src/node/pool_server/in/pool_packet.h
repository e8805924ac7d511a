/* What a client sends, checked before anything else sees it. */
#ifndef SL_POOL_PACKET_H
#define SL_POOL_PACKET_H

#include <stddef.h>

#include "err.h"
#include "pool_wire.h"

/** A request; members that its type lacks are zero. Texts are UTF-8 without control characters. */
struct sl_pool_packet {
    uint16_t type;
    uint32_t serial;
    uint16_t version_min, version_max; /* hello */
    uint32_t flags;                    /* attach */
    uint64_t id;                       /* lease, deposit, or row to begin with */
    uint32_t first, count;             /* slabs */
    uint64_t bytes;                    /* deposit, commit */
    uint8_t identity[32];              /* deposit */
    char client[SL_WIRE_CLIENT_BYTES + 1];
    char model[SL_WIRE_MODEL_BYTES + 1];
    char key[SL_WIRE_KEY_BYTES + 1];
    char device[SL_WIRE_DEVICE_BYTES + 1];
};
/**
 * Check a packet of a client, and read it.
 *
 * @data, bytes  the whole packet; not trusted.
 * @fd_count     descriptors that came with it.
 * @packet       out: a copy; after a failure only type and serial, if they could be read.
 * @return       0, or -1 with SL_E_USAGE, code "protocol".
 */
int sl_pool_packet_parse(const void *data, size_t bytes, size_t fd_count,
                         struct sl_pool_packet *packet, struct sl_err *err);

#endif
