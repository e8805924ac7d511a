/*
 * Rows of lists as they come, one by one; the fuzzer feeds them, too. Any thread; none blocks. What
 * each() is given lasts for its call; it may be NULL.
 */
#ifndef SL_POOL_LIST_H
#define SL_POOL_LIST_H

#include "pool_link.h"

/**
 * Take one row of a list.
 *
 * @data    begins with the row; `left` bytes are there.
 * @used    out: how many bytes the row has.
 * @each    gets it, with `arg`; other than 0: that was enough.
 * @return  0; 1 if each() has had enough; -1 with SLUICE_INTERNAL: not a row.
 */
int sl_pool_row_take(const uint8_t *data, size_t left, size_t *used,
                     int (*each)(void *arg, const struct sluice_row *row), void *arg,
                     struct sluice_error *error);
/**
 * Take one holder, which has sizeof(struct sl_wire_holder) bytes.
 *
 * @data    begins with the holder; `left` bytes are there.
 * @each    gets it, with `arg`; other than 0: that was enough.
 * @return  0; 1 if each() has had enough; -1 with SLUICE_INTERNAL: not a holder.
 */
int sl_pool_holder_take(const uint8_t *data, size_t left,
                        int (*each)(void *arg, const struct sluice_holder *holder), void *arg,
                        struct sluice_error *error);

#endif
