/* Many small ranges of one object, fetched with few requests over several connections. */
#ifndef SL_GATHER_H
#define SL_GATHER_H

#include "source.h"

/** Bytes [begin, end) and where they go; data holds end - begin bytes. */
struct sl_gather_item {
    uint64_t begin, end;
    uint8_t *data;
};

enum {
    SL_GATHER_GAP_BYTES = 64 * 1024, /* read and thrown away rather than asked for separately */
    SL_GATHER_CONNECTIONS_MAX = 32,
};

/**
 * Fetch all items; they are sorted by begin, must not overlap, and end within the source. Items in
 * the head that the source holds cost no request. Blocks; memory: 64 KiB for each connection.
 */
int sl_gather(struct sl_source *source, struct sl_gather_item *items, size_t count,
              struct sl_err *err);

/**
 * Instead of fetching `runs` small parts of an object that will be read whole: all of it now, if
 * that takes fewer requests and its source may hold it, for all reads to come; else nothing is
 * done. Blocks; memory as above.
 */
int sl_gather_hold(struct sl_source *source, size_t runs, struct sl_err *err);

/**
 * Read [begin, end) in one request and hand the bytes on piece by piece, in order.
 *
 * @begin, end  in the source; nothing is read where end is not behind begin.
 * @each        gets the pieces, with `arg`; -1 (err filled) stops.
 * @return      0, or -1: errors of the source, or what each() says.
 *
 * Blocks. As sl_gather(): what the source holds costs no request.
 */
int sl_gather_stream(struct sl_source *source, uint64_t begin, uint64_t end,
                     int (*each)(void *arg, const uint8_t *data, size_t bytes, struct sl_err *err),
                     void *arg, struct sl_err *err);

#endif
