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
 * no network. The index must outlive it. SL_E_NO_SPACE.
 */
struct sl_tensor_reader *sl_tensor_reader_new(struct sl_index *index, struct sl_err *err);
/** Closes its connections. NULL is fine. */
void sl_tensor_reader_free(struct sl_tensor_reader *reader);
SL_AUTO_DEFINE(sl_tensor_reader)

/**
 * Read plaintext of a tensor in row-major little-endian order; zeros for meta tensors. Hashes are
 * not checked here. Blocks.
 *
 * @slice       NULL: of the whole tensor.
 * @begin, end  of the tensor's plaintext, or of the slice's.
 * @out         out: end - begin bytes.
 * @return      0, or -1: a refused tensor fails with its own kind and code; a wrong MAC is
 *              SL_E_INTEGRITY, E_DECRYPT; others as sl_source_read().
 *
 * Fetches what it must: the pieces of encrypted data that the range touches (whole, since only
 * whole pieces can be checked), the rows of a slice. Callers gain by asking for ranges of several
 * MiB in order, whose begins are multiples of SL_PIECE_BYTES.
 */
int sl_tensor_read(struct sl_tensor_reader *reader, const struct sl_tensor *tensor,
                   const struct sl_slice *slice, uint64_t begin, uint64_t end, void *out,
                   struct sl_err *err);

/**
 * As sl_tensor_reader_new(), on the index's own connections: for one thread that has the index to
 * itself. What it fetches is counted as the index's.
 */
struct sl_tensor_reader *sl_tensor_reader_own(struct sl_index *index, struct sl_err *err);

struct sl_sha256;
/**
 * Feed the plaintext of a tensor, or of a slice of it, to a hash, some MiB at a time. For who has
 * the index to itself.
 *
 * @slice   NULL: all of it.
 * @sha     begun.
 * @return  0, or -1: as sl_tensor_read(); SL_E_NO_SPACE.
 */
int sl_tensor_hash(struct sl_index *index, const struct sl_tensor *tensor,
                   const struct sl_slice *slice, struct sl_sha256 *sha, struct sl_err *err);

/** Tell a check of what is read of chunks from now on, but for slices; NULL: nobody. It belongs to
 * the tensor that is read. */
struct sl_chunk_check;
void sl_tensor_reader_check(struct sl_tensor_reader *reader, struct sl_chunk_check *check);

/** Another source of the same object and version; sl_source_free() it. Any thread, no network.
 * SL_E_NO_SPACE. */
struct sl_source *sl_index_clone_source(const struct sl_index *index, uint32_t number,
                                        struct sl_err *err);

/**
 * What to say of a piece whose MAC does not agree: a few small pieces of other places are fetched
 * to tell a wrong key (none opens) from damaged data. Always -1, with SL_E_INTEGRITY, E_DECRYPT.
 * Any thread, which it blocks; for an index that sl_index_unlock() has passed.
 */
int sl_tensor_blame(const struct sl_index *index, const struct sl_tensor *tensor, uint64_t number,
                    struct sl_err *err);

/** How many bytes a slice has, and its shape (rank numbers; may be NULL). */
uint64_t sl_slice_bytes(const struct sl_tensor *tensor, const struct sl_slice *slice,
                        uint64_t *shape);

/** Can it be read: does it begin and end at whole bytes (SL_E_FORMAT, st.misaligned), and at whole
 * blocks of quantised types (gg.block)? */
int sl_slice_check(const struct sl_tensor *tensor, const struct sl_slice *slice,
                   struct sl_err *err);

#endif
