/*
 * Reads of an object that has a sidecar, for who reads here and there: every read is answered out
 * of whole ranges that were fetched and found right. A range that came wrong is fetched again.
 */
#ifndef SL_VERIFIED_READER_H
#define SL_VERIFIED_READER_H

#include "check.h"
#include "progress.h"
#include "sidecar.h"

enum {
    SL_VERIFIED_READER_RANGE_BYTES_MAX =
        64 * 1024 * 1024, /* sidecars of larger ranges cannot be used */
    SL_VERIFIED_READER_BYTES_MAX = 96 * 1024 * 1024,
};

struct sl_verified_reader;
/**
 * Set a verified reader on a source, whose clones share it: sl_index_clone_source(). What the
 * source holds of its head is checked here.
 *
 * @source        not to be read once the reader is freed; it may be freed first.
 * @sidecar       borrowed until the free, as is progress.
 * @strong        check by SHA-256, else by CRC32C.
 * @memory_bytes  of ranges kept, but always two; 0: SL_VERIFIED_READER_BYTES_MAX.
 * @progress      may be NULL.
 * @return        free it. NULL: SL_E_INTEGRITY; SL_E_USAGE: the ranges are too large;
 *                SL_E_NO_SPACE; and as sl_source_read().
 *
 * Reads may come from any thread and block while another one fetches the same range.
 */
struct sl_verified_reader *sl_verified_reader_new(struct sl_source *source,
                                                  const struct sl_sidecar *sidecar, bool strong,
                                                  uint64_t memory_bytes,
                                                  struct sl_progress *progress, struct sl_err *err);
/** What was read of the source before, as far as no range that was fetched has shown it: -1 if it
 * was not what the sidecar says. When nobody reads; SL_E_INTEGRITY, and as sl_source_read(). */
int sl_verified_reader_prove(struct sl_verified_reader *verified, struct sl_source *source,
                             struct sl_err *err);
/** When nobody reads any more; the source must not be read afterwards. */
void sl_verified_reader_free(struct sl_verified_reader *verified);
SL_AUTO_DEFINE(sl_verified_reader)

#endif
