/*
 * Any part of any tensor as plaintext, pulled: whatever its strides, byte order, encryption. For
 * conversions and for tensors that no plain range of bytes gives.
 */
#ifndef SL_TENSOR_READER_H
#define SL_TENSOR_READER_H

#include "index.h"

struct sl_tensor_reader;
/**
 * A reader with connections of its own: one a thread; several may read one index at a time. Touches
 * no network. The index must outlive it.
 */
struct sl_tensor_reader *sl_tensor_reader_new(struct sl_index *index, struct sl_err *err);
void sl_tensor_reader_free(struct sl_tensor_reader *reader);
SL_AUTO_DEFINE(sl_tensor_reader)

/**
 * Bytes [begin, end) of the tensor's (or, if slice is not NULL, of the slice's) plaintext in
 * row-major little-endian order into out. Zeros for meta tensors. Fetches what it must: the pieces
 * of encrypted data that the range touches (whole, since only whole pieces can be checked), the
 * rows of a slice. Callers gain by asking for ranges of several MiB in order, whose begins are
 * multiples of SL_PIECE_BYTES. A refused tensor fails with its own kind and code; a wrong MAC is
 * SL_E_INTEGRITY, E_DECRYPT. Hashes are not checked here. Blocks.
 */
int sl_tensor_read(struct sl_tensor_reader *reader, const struct sl_tensor *tensor,
                   const struct sl_slice *slice, uint64_t begin, uint64_t end, void *out,
                   struct sl_err *err);

/** How many bytes a slice has, and its shape (rank numbers; may be NULL). */
uint64_t sl_slice_bytes(const struct sl_tensor *tensor, const struct sl_slice *slice,
                        uint64_t *shape);

#endif
