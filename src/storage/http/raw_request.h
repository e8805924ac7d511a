/* The request that a range would be asked by, as text: for measuring a server without our data
 * path. */
#ifndef SL_RAW_REQUEST_H
#define SL_RAW_REQUEST_H

#include "buf.h"
#include "source.h"

/** Are its objects asked for by HTTP? Any thread. */
bool sl_store_asks_by_http(const struct sl_store *store);
/**
 * GET of [begin, end) of an opened source by HTTP/1.1, signed and authorized as its store does it,
 * keep-alive, without preconditions. *url: malloc'ed, where it goes (redirects that opening found
 * are followed). text: appended to, the caller's. SL_E_USAGE for stores that are not asked by HTTP
 * (file, redis). May block while credentials are asked for. Any thread.
 */
int sl_source_raw_request(struct sl_source *source, uint64_t begin, uint64_t end, char **url,
                          struct sl_buf *text, struct sl_err *err);

#endif
