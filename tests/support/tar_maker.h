/* Archives for tests, right ones and others. */
#ifndef SL_TAR_MAKER_H
#define SL_TAR_MAKER_H

#include "buf.h"

/** One entry: a header, its data, padding. type as in tar; link may be NULL. */
void tar_entry(struct sl_buf *out, char type, const char *name, const char *link, const void *data,
               size_t bytes);
/** The checksum of the header that begins at `at` is made right again, after a change. */
void tar_sum(struct sl_buf *out, size_t at);
/** Two blocks of zeros. */
void tar_end(struct sl_buf *out);
/** gzip of all of it, free() it. */
uint8_t *tar_gzip(const void *data, size_t bytes, size_t *packed);

#endif
