/*
 * The journal of a load: which bytes of the staging files are written. Append-only records, each
 * with its own CRC32C over the record, holding file, begin, end and the CRC32C of those bytes.
 * Bound to a plan's identity: a journal of another plan is discarded. After kill -9 the next load
 * opens it, re-reads what it claims and keeps only what its CRC confirms. One thread at a time, but
 * where it is said otherwise; functions write to a file, or read from one, and fail with
 * SL_E_NO_SPACE.
 */
#ifndef SL_JOURNAL_H
#define SL_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "mem.h"
#include "sink.h"

struct sl_journal;
/**
 * Open a journal, or make it.
 *
 * @directory_fd  where it lies; borrowed for the call.
 * @name          one component; only a file of ours is opened.
 * @identity      of the plan.
 * @resumed       out: an earlier journal of this identity was found. Any other was emptied.
 * @return        the caller's, or NULL.
 */
struct sl_journal *sl_journal_open(int directory_fd, const char *name, const uint8_t identity[32],
                                   bool *resumed, struct sl_err *err);
/** The file stays. NULL is fine. */
void sl_journal_free(struct sl_journal *journal);
SL_AUTO_DEFINE(sl_journal)
/** Whatever ends the load also ends a replay, with SL_E_CANCELED. Borrowed; NULL: nothing does. */
struct sl_cancel;
void sl_journal_set_cancel(struct sl_journal *journal, const struct sl_cancel *cancel);
/**
 * Note that bytes are written.
 *
 * @file        number in the sink.
 * @begin, end  of the file: bytes [begin, end).
 * @crc32c      of these bytes.
 * @return      0, or -1: it is not noted. 0 if the journal is given up, too.
 *
 * Any thread.
 */
int sl_journal_add(struct sl_journal *journal, uint32_t file, uint64_t begin, uint64_t end,
                   uint32_t crc32c, struct sl_err *err);
/**
 * Note that bytes are no longer vouched for, nor is any piece that shares a byte with them. If that
 * cannot be noted, the journal is given up.
 *
 * @file        number in the sink.
 * @begin, end  of the file: bytes [begin, end).
 *
 * Any thread.
 */
void sl_journal_strike(struct sl_journal *journal, uint32_t file, uint64_t begin, uint64_t end);
/** Nothing counts any more, now or for who opens it next, and nothing is noted. Says so once, with
 * the reason. Any thread. */
void sl_journal_give_up(struct sl_journal *journal, const char *why);
/**
 * Read bytes back that were claimed before the journal was opened, check their CRC, and tell which
 * are right; what was noted since is believed. Before reading begins; used by the reader only.
 *
 * @sink    with the files that the journal speaks of.
 * @keep    called for each piece that is right: sorted by file and begin, and merged but for those
 *          noted since, of which crc32c is that of its bytes, else NULL. Not for files that are
 *          inherited.
 * @arg     of keep().
 * @return  0, or -1 with what keep() or reading back fails with, or SL_E_CANCELED.
 */
int sl_journal_replay(struct sl_journal *journal, struct sl_sink *sink,
                      int (*keep)(uint32_t file, uint64_t begin, uint64_t end,
                                  const uint32_t *crc32c, void *arg, struct sl_err *err),
                      void *arg, struct sl_err *err);

/**
 * Put the CRC32C of each file together from the pieces on record; what lies between them is read
 * back.
 *
 * @sink    with the files that the journal speaks of.
 * @crcs    out: one for each file of the sink.
 * @known   out: the same number; false for a file whose pieces overlap, and for all if the
 *          journal is given up.
 * @return  0, or -1.
 *
 * Call it after a run that succeeded, when no other thread uses the journal.
 */
int sl_journal_file_crcs(struct sl_journal *journal, struct sl_sink *sink, uint32_t *crcs,
                         bool *known, struct sl_err *err);
#endif
