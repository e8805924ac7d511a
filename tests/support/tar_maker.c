/* ustar headers by hand, so that tests can make each field wrong. */
#include "tar_maker.h"

#include <check.h>
#include <stdio.h>
#include <zlib.h>

enum { BLOCK = 512 };

void tar_sum(struct sl_buf *out, size_t at)
{
    uint8_t *head = (uint8_t *)out->data + at;
    unsigned sum = 0;
    memset(head + 148, ' ', 8);
    for (size_t i = 0; i < BLOCK; i++)
        sum += head[i];
    snprintf((char *)head + 148, 8, "%06o", sum);
}

void tar_entry(struct sl_buf *out, char type, const char *name, const char *link, const void *data,
               size_t bytes)
{
    static const char zeros[BLOCK];
    char head[BLOCK] = "";
    struct sl_err err = SL_ERR_INIT;
    memcpy(head, name, SL_MIN(strlen(name), (size_t)100));
    snprintf(head + 100, 8, "%07o", 0644);
    snprintf(head + 124, 12, "%011zo", bytes);
    head[156] = type;
    if (link)
        memcpy(head + 157, link, SL_MIN(strlen(link), (size_t)100));
    memcpy(head + 257, "ustar\00000", 8);
    size_t at = out->used;
    ck_assert_int_eq(sl_buf_append(out, head, BLOCK, &err), 0);
    tar_sum(out, at);
    ck_assert_int_eq(sl_buf_append(out, data ? data : zeros, bytes, &err), 0);
    ck_assert_int_eq(sl_buf_append(out, zeros, (BLOCK - bytes % BLOCK) % BLOCK, &err), 0);
}

void tar_end(struct sl_buf *out)
{
    static const char zeros[2 * BLOCK];
    ck_assert_int_eq(sl_buf_append(out, zeros, sizeof(zeros), NULL), 0);
}

uint8_t *tar_gzip(const void *data, size_t bytes, size_t *packed)
{
    z_stream stream = {.next_in = (uint8_t *)(uintptr_t)data, .avail_in = (unsigned)bytes};
    ck_assert_int_eq(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY),
                     Z_OK);
    size_t room = deflateBound(&stream, bytes) + 64;
    uint8_t *out = malloc(room);
    ck_assert_ptr_nonnull(out);
    stream.next_out = out;
    stream.avail_out = (unsigned)room;
    ck_assert_int_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    *packed = room - stream.avail_out;
    deflateEnd(&stream);
    return out;
}
