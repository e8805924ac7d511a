/* Tensors whose elements do not lie in the order of their numbers: views, other byte orders. */
#ifndef SL_STRIDED_H
#define SL_STRIDED_H

#include "hash.h"
#include "index.h"

/** Are the bytes [begin, end) something else than the tensor's plaintext? */
bool sl_is_strided(const struct sl_tensor *tensor);

struct sl_strided;
/**
 * For reading such a tensor, or a slice of it (copied; NULL: all), from a source of its object.
 * Source and tensor are borrowed until sl_strided_free(). Touches no network. One thread.
 */
struct sl_strided *sl_strided_new(struct sl_source *source, const struct sl_tensor *tensor,
                                  const struct sl_slice *slice, struct sl_err *err);
void sl_strided_free(struct sl_strided *strided);
SL_AUTO_DEFINE(sl_strided)

/** Length of the plaintext. */
uint64_t sl_strided_bytes(const struct sl_strided *strided);

/**
 * Read bytes [begin, end) of the plaintext, row-major and little-endian.
 *
 * @begin, end  of the plaintext, at most sl_strided_bytes().
 * @out         out: end - begin bytes.
 * @return      0, or -1: as sl_source_read(); SL_E_NO_SPACE.
 *
 * Blocks. At most SL_STRIDED_BYTES_MAX are held, however far the elements lie apart; what was read
 * too much is kept for the next call, so ranges in order cost least, and large ones less than small
 * ones.
 */
int sl_strided_read(struct sl_strided *strided, uint64_t begin, uint64_t end, void *out,
                    struct sl_err *err);
enum { SL_STRIDED_BYTES_MAX = 64 * 1024 * 1024 };

/**
 * Feed the plaintext of such a tensor, or of a slice of it, to a hash, in the same bounded memory.
 *
 * @index   the tensor's, whose source is read.
 * @slice   NULL: all of it.
 * @sha     begun.
 * @return  0, or -1: as sl_strided_read().
 */
int sl_strided_hash(struct sl_index *index, const struct sl_tensor *tensor,
                    const struct sl_slice *slice, struct sl_sha256 *sha, struct sl_err *err);

#endif
