/*
 * One range of a file after another, through Xet: asked for, its xorbs fetched, chunks decoded into
 * the caller's memory, and each whole chunk told to the file, which checks its hash.
 *
 * One thread at a time; nothing blocks but the token, where it has to be asked for. Errors: those
 * of xet.h, and of what the servers do. Retry is the caller's: the next start starts over.
 */
#ifndef SL_XET_RANGE_H
#define SL_XET_RANGE_H

#include "xet.h"

struct sl_xet_range;
/** SL_E_NO_SPACE, SL_E_INTERNAL. */
struct sl_xet_range *sl_xet_range_new(struct sl_xet *xet, struct sl_err *err);
void sl_xet_range_free(struct sl_xet_range *range);
/**
 * Begin with a range of a file.
 *
 * @file    borrowed until the range has ended.
 * @uri     for messages; borrowed until the range has ended.
 * @try     begin < end <= bytes of the file; hedge and vouch count, too. Borrowed for the call.
 * @return  0, or -1.
 */
int sl_xet_range_start(struct sl_xet_range *range, struct sl_xet_file *file, char *uri,
                       const struct sl_try *try, struct sl_err *err);
/**
 * Take what has come, as sl_transport.channel_read().
 *
 * @data, bytes  room for what comes.
 * @got          out: how many came; 0 with FAILED.
 * @return       the state of the range.
 */
enum sl_io_state sl_xet_range_read(struct sl_xet_range *range, void *data, size_t bytes,
                                   size_t *got, struct sl_err *err);
int sl_xet_range_poll(struct sl_xet_range *range, struct pollfd fds[SL_IO_POLL_MAX],
                      uint64_t *deadline_ns);
void sl_xet_range_abort(struct sl_xet_range *range);
bool sl_xet_range_leads_to(struct sl_xet_range *range, const struct sl_host *host);
/** How its bytes were asked for; twice: or where they are. */
struct sl_answered sl_xet_range_answered(struct sl_xet_range *range);

#endif
