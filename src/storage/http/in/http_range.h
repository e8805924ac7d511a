/* What http_channel.c needs of an answer to a range: its Content-Range, and its body up to there.
 * Any thread, one for each exchange; nothing blocks. */
#ifndef SL_HTTP_RANGE_H
#define SL_HTTP_RANGE_H

#include "exchange.h"

/**
 * Read a Content-Range (RFC 9110 section 14.4): "bytes a-b/total".
 *
 * @text         the header's value.
 * @unsatisfied  it is that of a 416, with '*' for a-b: both are left alone.
 * @a, b         out: first and last byte; a <= b.
 * @total        out: of the object; left alone without one. Nothing says that b lies within.
 * @known        out: false for a total of '*'.
 * @return       false: it is none.
 */
bool sl_content_range_parse(const char *text, bool unsatisfied, uint64_t *a, uint64_t *b,
                            uint64_t *total, bool *known);
/**
 * Read bytes of a body, one window after another, and forget them.
 *
 * @skip         how many; what is left of them.
 * @data, bytes  where they are read into meanwhile, at least 1.
 * @return       DATA: done; END: the body ended before; WAIT, FAILED as sl_exchange_body().
 */
enum sl_io_state sl_http_pass_over(struct sl_exchange *exchange, uint64_t *skip, void *data,
                                   size_t bytes, struct sl_err *err);

#endif
