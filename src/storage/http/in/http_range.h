/* What http_channel.c needs of an answer to a range: its Content-Range, and its body up to there.
 * Any thread, one for each exchange; nothing blocks. */
#ifndef SL_HTTP_RANGE_H
#define SL_HTTP_RANGE_H

#include "exchange.h"

/** "bytes a-b/total", *known false for a total of '*'; or, with unsatisfied, "bytes * /total".
 * RFC 9110 section 14.4. */
bool sl_content_range_parse(const char *text, bool unsatisfied, uint64_t *a, uint64_t *b,
                            uint64_t *total, bool *known);
/** Read *skip bytes of a body into data, one window after another, and forget them. DATA: done;
 * END: the body ended before; WAIT, FAILED as sl_exchange_body(). */
enum sl_io_state sl_http_pass_over(struct sl_exchange *exchange, uint64_t *skip, void *data,
                                   size_t bytes, struct sl_err *err);

#endif
