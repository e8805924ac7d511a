/*
 * Work on the memory of a GPU: casts, views and slices, CRC32, decryption. What a function here is
 * asked for is put on a stream and done later, in the stream's order; it waits for nothing. The
 * arithmetic is that of the host's functions, bit for bit: sl_cast(), sl_strided_read(),
 * sl_crc32(), sl_opening_end().
 *
 * Addresses are of the device. Whatever is named stays valid until the stream has passed it. All
 * calls come from threads on which the device's context is current. Errors: SL_E_GPU from the
 * driver; SL_E_INTERNAL where what was asked for reaches out of its memory. But for loading and
 * freeing nothing blocks.
 */
#ifndef SL_KERNELS_H
#define SL_KERNELS_H

#include "cast.h"
#include "cuda.h"
#include "err.h"
#include "hash.h"
#include "mem.h"

struct sl_kernels;

/** Can this build have kernels for such a GPU? Else -1 with SL_E_GPU, which says what to do. Any
 * thread, context or not. */
int sl_kernels_check(const struct sl_cuda_device *device, struct sl_err *err);
/**
 * Load them into the current context. `cuda` is borrowed; the device is copied. One struct may be
 * used by several threads; give it back in the same context, before that is released.
 * SL_E_NO_SPACE too.
 */
struct sl_kernels *sl_kernels_load(const struct sl_cuda *cuda, const struct sl_cuda_device *device,
                                   struct sl_err *err);
/** No stream has any of its work ahead. NULL is fine. */
void sl_kernels_free(struct sl_kernels *kernels);
SL_AUTO_DEFINE(sl_kernels)

/**
 * Cast elements, as sl_cast() does.
 *
 * @stream    on which it is done.
 * @from, to  types of a pair that sl_cast_offered() knows; else SL_E_INTERNAL.
 * @overflow  what becomes of values that do not fit.
 * @in, out   addresses. The same memory for types of the same size; else they must not overlap,
 *            SL_E_INTERNAL. Fastest where both are aligned to 16 bytes.
 * @count     of elements; may be 0.
 * @return    0, or -1.
 */
int sl_kernels_cast(struct sl_kernels *kernels, struct sl_cuda_stream *stream, enum sl_dtype from,
                    enum sl_dtype to, enum sl_cast_overflow overflow, uint64_t in, uint64_t out,
                    uint64_t count, struct sl_err *err);

/** Items of a box that lies in memory with strides: a view, a slice, or both. */
struct sl_gather_box {
    uint64_t in, in_bytes;   /* the tensor as it is stored */
    uint64_t first;          /* byte of it where item 0 of the box begins */
    unsigned item_bytes;     /* 1 to 16 */
    unsigned swap_bytes;     /* its bytes are reversed in parts of so many; 0 or 1: they are not */
    unsigned rank;           /* at most 64 */
    const uint64_t *widths;  /* the outermost dimension first; for the call */
    const uint64_t *strides; /* bytes */
    uint64_t begin, count;   /* which of its items, counted row-major */
    uint64_t out, out_bytes; /* where they go, one after another; does not overlap `in` */
};
/** SL_E_INTERNAL if any item of the whole box lies outside of `in`, or the wanted ones do not fit
 * into `out`. */
int sl_kernels_gather(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                      const struct sl_gather_box *box, struct sl_err *err);

/** Bytes of scratch memory, aligned to 4, that sl_kernels_crc() wants for a range. */
uint64_t sl_kernels_crc_scratch(const struct sl_kernels *kernels, uint64_t bytes);
/**
 * Compute the CRC of a range, as sl_crc32(0, …) gives it.
 *
 * @stream     on which it is done.
 * @kind       SL_HASH_CRC32 or SL_HASH_CRC32C.
 * @in, bytes  the range; may be empty. Fastest where `in` is aligned to 4.
 * @scratch    sl_kernels_crc_scratch() bytes, aligned to 4.
 * @out        gets a 32-bit word; aligned to 4.
 * @return     0, or -1; SL_E_INTERNAL also for another kind, or what is not aligned.
 */
int sl_kernels_crc(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                   enum sl_hash_kind kind, uint64_t in, uint64_t bytes, uint64_t scratch,
                   uint64_t out, struct sl_err *err);

/** Pieces of ciphertext (crypt.h) that lie one after another. */
struct sl_kernel_box {
    const uint8_t *key, *nonce; /* 32 and 24 bytes of the host, for the call: of the tensor */
    uint64_t first;             /* number of the first piece that is here */
    uint64_t data, bytes;       /* becomes plaintext in place */
    uint64_t piece_bytes;       /* only the last piece that is here may be shorter */
    uint64_t piece_count;       /* bytes / piece_bytes, rounded up; 1 if bytes is 0 */
    uint64_t macs;              /* 16 bytes each */
    uint64_t verdicts;          /* a 32-bit word each, aligned to 4 */
    uint64_t scratch;           /* sl_kernels_box_scratch() bytes, aligned to 4 */
};
/** Bytes of scratch memory that sl_kernels_open() wants; UINT64_MAX: there cannot be so much. */
uint64_t sl_kernels_box_scratch(uint64_t bytes, uint64_t piece_bytes, uint64_t piece_count);
/**
 * Decrypt and check. When the stream has passed, a verdict is SL_KERNEL_BOX_GOOD or
 * SL_KERNEL_BOX_BAD; before, 0. The data of a piece are nobody's before its verdict was read and is
 * good: bad pieces, too, have been turned over. What was derived from the key is wiped from
 * `scratch`.
 */
int sl_kernels_open(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                    const struct sl_kernel_box *box, struct sl_err *err);
enum { SL_KERNEL_BOX_GOOD = 1, SL_KERNEL_BOX_BAD = 2 };

#endif
