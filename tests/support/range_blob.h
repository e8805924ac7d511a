/* What the tests of the network share: a blob on a range server, read whole through a source and
 * compared. */
#ifndef SL_RANGE_BLOB_H
#define SL_RANGE_BLOB_H

#include "range_server.h"
#include "source.h"

enum { SL_BLOB_BYTES = 1000 * 1000 };

/** SL_BLOB_BYTES that differ everywhere; the same ones always. */
const uint8_t *sl_blob(void);
/** No proxies, CA files, logins of the machine. Call first in main(). */
void sl_test_environment(void);
/**
 * Open url with head_bytes, read the rest in pieces of piece_bytes, compare with sl_blob(). 0, or
 * -1 with err. Aborts the test on wrong bytes.
 */
int sl_read_blob(const char *url, const struct sl_source_config *config, size_t head_bytes,
                 size_t piece_bytes, struct sl_err *err);

#endif
