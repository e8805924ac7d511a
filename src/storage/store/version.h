/* What makes objects equal beyond one load. */
#ifndef SL_VERSION_H
#define SL_VERSION_H

#include "source.h"

/**
 * A name for the bytes of an object: equal names mean equal bytes, at whatever time they were
 * opened. It is made of the content's own name (a digest), or of URI, length and version: its pin,
 * else its strong ETag, which says that bytes are equal though they were stored once more, else its
 * version id, else its date.
 *
 * @name    out.
 * @return  1; 0 if it has none: no version, a URL with a query, a piece without a pin; -1 with
 *          SL_E_NO_SPACE. Any thread.
 */
int sl_version_name(const struct sl_source *source, uint8_t name[32], struct sl_err *err);

#endif
