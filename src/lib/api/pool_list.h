/* Rows of lists as they come, one by one; the fuzzer feeds them, too. */
#ifndef SL_POOL_LIST_H
#define SL_POOL_LIST_H

#include "pool_link.h"

/** The row at data, of which `left` bytes are there; *used: how long it is. 1 if each() has had
 * enough, or -1. */
int sl_pool_row_take(const uint8_t *data, size_t left, size_t *used,
                     int (*each)(void *arg, const struct sluice_row *row), void *arg,
                     struct sluice_error *error);
int sl_pool_holder_take(const uint8_t *data, size_t left,
                        int (*each)(void *arg, const struct sluice_holder *holder), void *arg,
                        struct sluice_error *error);

#endif
