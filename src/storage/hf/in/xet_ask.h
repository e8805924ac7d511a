/* One question to Xet: what a range of a file is made of. One thread at a time; nothing blocks but
 * the token, where it has to be asked for. */
#ifndef SL_XET_ASK_H
#define SL_XET_ASK_H

#include "xet.h"
#include "xet_plan.h"

struct sl_xet_ask;
/** NULL: SL_E_NO_SPACE, SL_E_INTERNAL. */
struct sl_xet_ask *sl_xet_ask_new(struct sl_xet *xet, struct sl_err *err);
void sl_xet_ask_free(struct sl_xet_ask *ask);
/**
 * Ask what a range of a file is made of.
 *
 * @file        borrowed until the question has ended.
 * @begin, end  bytes [begin, end) of it.
 * @hedge       as sl_request.hedge.
 * @what        the subject of errors; borrowed until the question has ended.
 * @return      0, or -1.
 */
int sl_xet_ask_start(struct sl_xet_ask *ask, const struct sl_xet_file *file, uint64_t begin,
                     uint64_t end, unsigned hedge, const char *what, struct sl_err *err);
/** DATA: *plan has come, release it. WAIT, or FAILED. */
enum sl_io_state sl_xet_ask_step(struct sl_xet_ask *ask, struct sl_xet_plan *plan,
                                 struct sl_err *err);
void sl_xet_ask_abort(struct sl_xet_ask *ask);
/** Its connection, for polling and the like; borrowed. */
struct sl_exchange *sl_xet_ask_exchange(struct sl_xet_ask *ask);

#endif
