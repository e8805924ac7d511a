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
 * Open or make `name` in directory_fd. *resumed tells whether an earlier journal of this identity
 * was found. directory_fd is borrowed for the call.
 */
struct sl_journal *sl_journal_open(int directory_fd, const char *name, const uint8_t identity[32],
                                   bool *resumed, struct sl_err *err);
/** The file stays. NULL is fine. */
void sl_journal_free(struct sl_journal *journal);
SL_AUTO_DEFINE(sl_journal)
/** Whatever ends the load also ends a replay, with SL_E_CANCELED. Borrowed; NULL: nothing does. */
struct sl_cancel;
void sl_journal_set_cancel(struct sl_journal *journal, const struct sl_cancel *cancel);
/** Any thread: file bytes [begin, end) are written and have this CRC32C. */
int sl_journal_add(struct sl_journal *journal, uint32_t file, uint64_t begin, uint64_t end,
                   uint32_t crc32c, struct sl_err *err);
/** Any thread: these bytes are no longer vouched for. */
int sl_journal_strike(struct sl_journal *journal, uint32_t file, uint64_t begin, uint64_t end,
                      struct sl_err *err);
/**
 * Before reading begins: read the claimed bytes back from the sink, check their CRC and call `keep`
 * for each piece that is right (merged, sorted by file and begin). Used by the reader only.
 * SL_E_CANCELED, or what keep() says.
 */
int sl_journal_replay(struct sl_journal *journal, struct sl_sink *sink,
                      int (*keep)(uint32_t file, uint64_t begin, uint64_t end, void *arg,
                                  struct sl_err *err),
                      void *arg, struct sl_err *err);

/**
 * CRC32C of every file of the sink, put together from the pieces on record; what lies between them
 * is read back; known[i] is false for a file whose pieces overlap. Call it after a run that
 * succeeded, when no other thread uses the journal.
 */
int sl_journal_file_crcs(struct sl_journal *journal, struct sl_sink *sink, uint32_t *crcs,
                         bool *known, struct sl_err *err);
#endif
