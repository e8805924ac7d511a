/* Checksums of a tensor's chunks, while the tensor is read piece by piece. */
#ifndef SL_CHUNK_CHECK_H
#define SL_CHUNK_CHECK_H

#include "index.h"

struct sl_chunk_check;
/** For a tensor in chunks, which is borrowed. NULL: SL_E_NO_SPACE. */
struct sl_chunk_check *sl_chunk_check_new(const struct sl_tensor *tensor, struct sl_err *err);
void sl_chunk_check_free(struct sl_chunk_check *check);
SL_AUTO_DEFINE(sl_chunk_check)

/** How many of the tensor's chunks have a CRC32 over the bytes as they are read. */
size_t sl_chunk_check_possible(const struct sl_tensor *tensor);

/**
 * Plaintext bytes [begin, begin + bytes) of a chunk were read; each byte comes once. The last ones
 * of a chunk are followed by its verdict, and it may come anew.
 *
 * @return  0, or -1: SL_E_INTEGRITY, code E_HASH_CRC32; SL_E_NO_SPACE. Any thread.
 */
int sl_chunk_check_add(struct sl_chunk_check *check, const struct sl_tensor_chunk *chunk,
                       uint64_t begin, const void *data, size_t bytes, struct sl_err *err);

/** How many chunks were found right since the last call, and their bytes. Any thread. */
size_t sl_chunk_check_take(struct sl_chunk_check *check, uint64_t *bytes);

#endif
