/* Tensors whose elements do not lie in the order of their numbers: views, other byte orders. */
#ifndef SL_STRIDED_H
#define SL_STRIDED_H

#include "hash.h"
#include "index.h"

/** Are the bytes [begin, end) something else than the tensor's plaintext? */
bool sl_is_strided(const struct sl_tensor *tensor);

/**
 * Feed the plaintext of a slice (NULL: all of it) of such a tensor to a hash. Memory: what the
 * slice spans in storage, at most SL_STRIDED_SPAN_BYTES_MAX; beyond that SL_E_FORMAT, code
 * pt.limit, unless rows can be taken one after another.
 */
int sl_strided_hash(struct sl_index *index, const struct sl_tensor *tensor,
                    const struct sl_slice *slice, struct sl_sha256 *sha, struct sl_err *err);
enum { SL_STRIDED_SPAN_BYTES_MAX = 1 << 30 };

#endif
