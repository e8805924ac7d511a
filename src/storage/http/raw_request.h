/* The request that a range would be asked by, as text: for measuring a server without our data
 * path. */
#ifndef SL_RAW_REQUEST_H
#define SL_RAW_REQUEST_H

#include "buf.h"
#include "source.h"

/** Are its objects asked for by HTTP? Any thread. */
bool sl_store_asks_by_http(const struct sl_store *store);
/**
 * Write down the GET of a range of an opened source by HTTP/1.1, signed and authorized as its store
 * does it, keep-alive, without preconditions.
 *
 * @begin, end  bytes [begin, end) of the source.
 * @url         out: malloc'ed, where it goes (redirects that opening found are followed).
 * @text        out: appended to.
 * @return      0, or -1: SL_E_USAGE for stores that are not asked by HTTP (file, redis), and errors
 *              of credentials.
 *
 * May block while credentials are asked for. Any thread.
 */
int sl_source_raw_request(struct sl_source *source, uint64_t begin, uint64_t end, char **url,
                          struct sl_buf *text, struct sl_err *err);

#endif
