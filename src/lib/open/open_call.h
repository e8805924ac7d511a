/* What calls of libsluice do first and last. Any thread; nothing blocks. */
#ifndef SL_OPEN_CALL_H
#define SL_OPEN_CALL_H

#include "err.h"
#include "sluice.h"

/** Once, before anything else of the library: its log is silent. */
void sl_open_begin(void);
/** A caller's struct tells its size, in its first member. SL_E_USAGE: that is too small for one. */
int sl_open_check_size(const void *theirs, struct sl_err *err);
/** A copy of it, with zeros for what it does not have; NULL: zeros alone. SL_E_USAGE. */
int sl_open_take(void *to, size_t bytes, const void *theirs, struct sl_err *err);
/** SL_E_USAGE: some of the flags are none that this library knows. */
int sl_open_check_flags(uint32_t flags, uint32_t known, struct sl_err *err);
/** Always -1: our error as the caller's. error may be NULL. */
int sl_open_fail(struct sluice_error *error, const struct sl_err *err);

#endif
