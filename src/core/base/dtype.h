/* Element types and their spellings: one row each in dtypes.def, canonical spelling that of
 * safetensors. Constants; any thread. */
#ifndef SL_DTYPE_H
#define SL_DTYPE_H

#include <stddef.h>
#include <stdint.h>

enum sl_dtype {
    SL_DTYPE_NONE,
#define SL_DTYPE(id, bits, safetensors, numpy, torch) SL_DTYPE_##id,
#define SL_DTYPE_BLOCK(id, elements, bytes, ggml)     SL_DTYPE_##id,
#include "dtypes.def"
#undef SL_DTYPE
#undef SL_DTYPE_BLOCK
    SL_DTYPE_COUNT
};

struct sl_dtype_row {
    const char *name;  /* F32 */
    unsigned bits;     /* of one block as stored */
    unsigned block;    /* elements that lie together: 1, and more only for quantised types */
    int safetensors;   /* rank in safetensors' order, 0 if the format lacks it */
    const char *numpy; /* <f4, or "" */
    const char *torch; /* float32, or "" */
};

/** The row of a type; SL_DTYPE_NONE has the name "" and blocks of no bits. Never NULL. */
const struct sl_dtype_row *sl_dtype_row(enum sl_dtype dtype);

/** By canonical name, exact and case-sensitive; SL_DTYPE_NONE if unknown. */
enum sl_dtype sl_dtype_by_name(const char *name, unsigned bytes);

/**
 * By the string of a .tensors file: "<f4", or "<V2" NUL "torch.bfloat16" (formats/tensorizer.md,
 * section 7). SL_DTYPE_NONE if unknown or if code and name do not belong together.
 */
enum sl_dtype sl_dtype_by_numpy(const char *text, size_t bytes);

/** By torch's name, "float32"; SL_DTYPE_NONE if unknown. */
enum sl_dtype sl_dtype_by_torch(const char *name, size_t bytes);

#endif
