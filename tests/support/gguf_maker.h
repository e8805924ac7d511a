/* Writes small GGUF files, right or wrong, piece by piece. */
#ifndef SL_GGUF_MAKER_H
#define SL_GGUF_MAKER_H

#include <check.h>
#include <string.h>

#include "buf.h"

static void put(struct sl_buf *file, const void *data, size_t bytes)
{
    ck_assert_int_eq(sl_buf_append(file, data, bytes, NULL), 0);
}

static void put_number(struct sl_buf *file, uint64_t value, size_t bytes)
{
    uint8_t data[8];
    sl_put_le64(data, value);
    put(file, data, bytes);
}

static void put_string(struct sl_buf *file, const char *text)
{
    put_number(file, strlen(text), 8);
    put(file, text, strlen(text));
}

static void put_zeros(struct sl_buf *file, size_t bytes)
{
    static const char zeros[4096];
    for (; bytes > 0; bytes -= SL_MIN(bytes, sizeof(zeros)))
        put(file, zeros, SL_MIN(bytes, sizeof(zeros)));
}

static void begin(struct sl_buf *file, uint64_t tensors, uint64_t keys)
{
    *file = (struct sl_buf)SL_BUF_INIT(256 * 1024 * 1024);
    put(file, "GGUF\3\0\0\0", 8);
    put_number(file, tensors, 8);
    put_number(file, keys, 8);
}

__attribute__((unused)) static void put_key(struct sl_buf *file, const char *name, uint32_t type,
                                            uint64_t value, size_t bytes)
{
    put_string(file, name);
    put_number(file, type, 4);
    put_number(file, value, bytes);
}

static void put_tensor(struct sl_buf *file, const char *name, unsigned rank, const uint64_t *ne,
                       uint32_t type, uint64_t offset)
{
    put_string(file, name);
    put_number(file, rank, 4);
    for (unsigned i = 0; i < rank; i++)
        put_number(file, ne[i], 8);
    put_number(file, type, 4);
    put_number(file, offset, 8);
}

#endif
