/*
 * Reads of an object that has a sidecar, for who reads here and there: every read is answered out
 * of whole ranges that were fetched and found right. A range that came wrong is fetched again.
 */
#ifndef SL_GUARD_H
#define SL_GUARD_H

#include "check.h"
#include "progress.h"
#include "sidecar.h"

enum {
    SL_GUARD_RANGE_BYTES_MAX = 64 * 1024 * 1024, /* sidecars of larger ranges cannot be used */
    SL_GUARD_BYTES_MAX = 96 * 1024 * 1024,
};

struct sl_guard;
/**
 * Set it on the source, whose clones share it: sl_index_clone_source(). What the source holds of
 * its head is checked here. sidecar and progress (may be NULL) are borrowed until free; strong: by
 * SHA-256, else CRC32C; memory_bytes: of ranges kept, but always two; 0: SL_GUARD_BYTES_MAX.
 * SL_E_INTEGRITY; SL_E_USAGE: the ranges are too large. Reads may come from
 * any thread and block while another one fetches the same range.
 */
struct sl_guard *sl_guard_new(struct sl_source *source, const struct sl_sidecar *sidecar,
                              bool strong, uint64_t memory_bytes, struct sl_progress *progress,
                              struct sl_err *err);
/** When nobody reads any more; the source must not be read afterwards. */
void sl_guard_free(struct sl_guard *guard);
SL_AUTO_DEFINE(sl_guard)

#endif
