/* What is written as tar and packed comes back by our readers; other programs read it in e2e. */
#include <check.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "packed_stream.h"
#include "packer.h"
#include "tar_write.h"

struct reading {
    struct sl_buf *from;
    size_t at;
};

static int read_some(void *arg, void *data, uint64_t bytes, uint64_t *got, struct sl_err *err)
{
    struct reading *reading = arg;
    (void)err;
    *got = SL_MIN(bytes, (uint64_t)(reading->from->used - reading->at));
    if (data)
        memcpy(data, reading->from->data + reading->at, (size_t)*got);
    reading->at += (size_t)*got;
    return 0;
}

static char names[3][2048];

/* Of every length about the header's room, and far beyond it. */
SL_TEST(every_header_comes_back)
{
    static const size_t lengths[] = {1, 99, 100, 101, 155, 256, 999, 1000, 1024};
    static const char zeros[SL_TAR_ZERO_BYTES];
    struct sl_err err = SL_ERR_INIT;
    for (size_t i = 0; i < SL_COUNT(lengths); i++) {
        sl_autobuf tar = SL_BUF_INIT(1024 * 1024);
        memset(names[0], 'n', lengths[i]);
        memset(names[1], 'l', lengths[i]);
        const struct sl_tar_entry entries[] = {
            {SL_TAR_FOLDER, names[0], "", lengths[i], 0, 0, true, 5},
            {SL_TAR_SYMLINK, names[0], names[1], lengths[i], lengths[i], 0, false, 1},
            {SL_TAR_FILE, names[0], "", lengths[i], 0, UINT64_C(1) << 33, true, 1 << 30},
            {SL_TAR_FILE, names[0], "", lengths[i], 0, 0, false, 0},
        };
        for (size_t e = 0; e < SL_COUNT(entries); e++) {
            tar.used = 0;
            ck_assert_int_eq(sl_tar_write_head(&entries[e], &tar, &err), 0);
            ck_assert_int_eq(sl_buf_append(&tar, zeros, sizeof(zeros), &err), 0);
            struct reading reading = {&tar, 0};
            struct sl_tar_entry got;
            SL_AUTO(sl_tar) in = sl_tar_new(&(struct sl_tar_input){read_some, &reading}, &err);
            ck_assert_msg(sl_tar_next(in, &got, &err) == 1, "%s", err.message);
            ck_assert_int_eq(got.kind, entries[e].kind);
            ck_assert_uint_eq(got.name_bytes, lengths[i]);
            ck_assert_int_eq(memcmp(got.name, names[0], lengths[i]), 0);
            ck_assert_uint_eq(got.link_bytes, entries[e].link_bytes);
            ck_assert_int_eq(memcmp(got.link, names[1], got.link_bytes), 0);
            ck_assert_uint_eq(got.bytes, entries[e].bytes);
            ck_assert_int_eq(got.seconds, entries[e].seconds);
            ck_assert(got.kind != SL_TAR_FILE || got.executable == entries[e].executable);
        }
    }
}

SL_TEST(padding_fills_a_block)
{
    static const struct {
        uint64_t bytes;
        size_t padding;
    } rows[] = {{0, 0}, {1, 511}, {511, 1}, {512, 0}, {513, 511}, {UINT64_MAX, 1}};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_uint_eq(sl_tar_padding(rows[i].bytes), rows[i].padding);
}

/* ---- packing --------------------------------------------------------------------------------- */

static int append(void *arg, const void *data, size_t bytes, struct sl_err *err)
{
    return sl_buf_append(arg, data, bytes, err);
}

SL_TEST(what_is_packed_in_pieces_comes_out_whole)
{
    enum { BYTES = 3 * 1024 * 1024 };
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf packed = SL_BUF_INIT(2 * BYTES);
    sl_autofree uint8_t *data = sl_alloc(BYTES, &err), *out = sl_alloc(BYTES + 1, &err);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)((i * 2654435761u) >> 13);
    SL_AUTO(sl_packer) packer = sl_packer_new(&(struct sl_packer_output){append, &packed}, &err);
    for (size_t at = 0, piece = 1; at < BYTES; at += piece, piece = SL_MIN(piece * 3, BYTES - at))
        ck_assert_int_eq(sl_packer_write(packer, data + at, piece, &err), 0);
    ck_assert_int_eq(sl_packer_end(packer, &err), 0);
    SL_AUTO(sl_packed_stream) stream = sl_packed_stream_new(SL_PACKING_ZSTD, &err);
    size_t used = 0, have = 0, taken, got;
    do {
        ck_assert_int_eq(sl_packed_stream_run(stream, packed.data + used, packed.used - used,
                                              &taken, out + have, BYTES + 1 - have, &got, &err),
                         0);
        used += taken;
        have += got;
    } while (taken || got);
    ck_assert_int_eq(sl_packed_stream_end(stream, &err), 0);
    ck_assert_uint_eq(have, BYTES);
    ck_assert_int_eq(memcmp(data, out, BYTES), 0);
}

SL_TEST(an_output_that_fails_ends_the_packing)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf packed = SL_BUF_INIT(4);
    SL_AUTO(sl_packer) packer = sl_packer_new(&(struct sl_packer_output){append, &packed}, &err);
    ck_assert_int_eq(sl_packer_write(packer, "text", 4, &err), 0);
    ck_assert_int_eq(sl_packer_end(packer, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
}
