/*
 * Lookups in dtypes.def. Seventy rows are found by walking them: a lookup happens once a tensor,
 * and a walk over rows that fit a few cache lines costs less than what surrounds it.
 */
#include "dtype.h"

#include <string.h>

#include "mem.h"

static const struct sl_dtype_row rows[] = {
    {"", 0, 1, 0, "", ""},
#define SL_DTYPE(id, bits, safetensors, numpy, torch) {#id, bits, 1, safetensors, numpy, torch},
#define SL_DTYPE_BLOCK(id, elements, bytes, ggml)     {#id, (bytes)*8, elements, 0, "", ""},
#include "dtypes.def"
#undef SL_DTYPE
#undef SL_DTYPE_BLOCK
};

const struct sl_dtype_row *sl_dtype_row(enum sl_dtype dtype)
{
    return &rows[(unsigned)dtype < SL_COUNT(rows) ? dtype : SL_DTYPE_NONE];
}

static int equals(const char *row, const char *text, size_t bytes)
{
    return strlen(row) == bytes && memcmp(row, text, bytes) == 0;
}

enum sl_dtype sl_dtype_by_name(const char *name, unsigned bytes)
{
    for (unsigned i = 1; i < SL_COUNT(rows); i++)
        if (equals(rows[i].name, name, bytes))
            return (enum sl_dtype)i;
    return SL_DTYPE_NONE;
}

enum sl_dtype sl_dtype_by_numpy(const char *text, size_t bytes)
{
    static const char prefix[] = "torch.";
    const char *nul = memchr(text, 0, bytes);
    size_t code_bytes = nul ? (size_t)(nul - text) : bytes;
    const char *name = nul ? nul + 1 : NULL;
    size_t name_bytes = nul ? bytes - code_bytes - 1 : 0;
    if (nul) {
        if (name_bytes < sizeof(prefix) - 1 || memcmp(name, prefix, sizeof(prefix) - 1) != 0)
            return SL_DTYPE_NONE;
        name += sizeof(prefix) - 1;
        name_bytes -= sizeof(prefix) - 1;
    }
    for (unsigned i = 1; i < SL_COUNT(rows); i++) {
        const struct sl_dtype_row *row = &rows[i];
        int opaque = strchr(row->numpy, 'V') != NULL;
        if (row->numpy[0] && opaque == (nul != NULL) && equals(row->numpy, text, code_bytes) &&
            (!nul || equals(row->torch, name, name_bytes)))
            return (enum sl_dtype)i;
    }
    return SL_DTYPE_NONE;
}

enum sl_dtype sl_dtype_by_torch(const char *name, size_t bytes)
{
    for (unsigned i = 1; i < SL_COUNT(rows) && bytes; i++)
        if (equals(rows[i].torch, name, bytes))
            return (enum sl_dtype)i;
    return SL_DTYPE_NONE;
}
