/* See the header: metadata as the format has them, noise for the rest. */
#include "redis_model_maker.h"

#include <stdlib.h>
#include <string.h>

#include "buf.h"

enum { METADATA_AT = 73, METADATA_BYTES = 262144, TERMINATOR_BYTES = 8 };

static size_t header_bytes(const struct made_tensor *tensor)
{
    return 66 + tensor->name_bytes + 3 + 4;
}

static uint8_t *put(uint8_t *at, const void *data, size_t bytes)
{
    memcpy(at, data, bytes);
    return at + bytes;
}

static uint8_t *put_entry(uint8_t *at, const struct made_tensor *tensor, size_t offset)
{
    uint32_t length = (uint32_t)tensor->bytes;
    *at++ = (uint8_t)tensor->name_bytes;
    *at++ = 0;
    at = put(at, tensor->name, tensor->name_bytes);
    at = put(at, "\x02\x03|u1\x01", 6);
    for (int i = 0; i < 4; i++)
        *at++ = (uint8_t)(length >> (8 * i));
    sl_put_le64(at, offset);
    sl_put_le64(at + 8, offset + header_bytes(tensor));
    sl_put_le64(at + 16, tensor->bytes);
    return at + 24;
}

uint8_t *make_tensors(const struct made_tensor *tensors, size_t count, size_t *bytes)
{
    size_t at = METADATA_AT + METADATA_BYTES, total = at + TERMINATOR_BYTES;
    for (size_t i = 0; i < count; i++)
        total += header_bytes(&tensors[i]) + tensors[i].bytes;
    uint8_t *data = calloc(1, total);
    if (!data)
        abort();
    memcpy(data, "|TZR|\x01", 6);
    sl_put_le64(data + 57, count);
    sl_put_le64(data + 65, METADATA_BYTES);
    uint8_t *entry = data + METADATA_AT;
    for (size_t i = 0; i < count; i++) {
        size_t end = at + header_bytes(&tensors[i]) + tensors[i].bytes;
        entry = put_entry(entry, &tensors[i], at);
        for (uint32_t state = (uint32_t)at | 1; at < end; at++) {
            state = state * 1664525u + 1013904223u;
            data[at] = (uint8_t)(state >> 24);
        }
    }
    *bytes = total;
    return data;
}
