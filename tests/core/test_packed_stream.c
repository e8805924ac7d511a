/* What gzip and zstd packed, unpacked as it comes: from its beginning or from a point. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "buf.h"
#include "claims.h"
#include "packed_stream.h"
#include "tar_maker.h"

enum { PLAIN_BYTES = 3 * 1024 * 1024, POINTS_MAX = 64, SPAN = 100000, SMALL = 3000 };

static struct sl_err err;
static uint8_t *plain;

static void setup(void)
{
    uint32_t seed = 1;
    err = (struct sl_err)SL_ERR_INIT;
    plain = malloc(PLAIN_BYTES);
    for (size_t i = 0; i < PLAIN_BYTES; i++) { /* neither noise nor zeros */
        seed = seed * 1664525 + 1013904223;
        plain[i] = (uint8_t)((seed >> 24) & (i / 1000 % 2 ? 0x0f : 0xff));
    }
}

static void teardown(void)
{
    free(plain);
}

static uint8_t *pack(enum sl_packing packing, const void *data, size_t bytes, size_t *packed)
{
    if (packing == SL_PACKING_GZIP)
        return tar_gzip(data, bytes, packed);
    size_t room = ZSTD_compressBound(bytes);
    uint8_t *out = malloc(room);
    *packed = ZSTD_compress(out, room, data, bytes, 3);
    ck_assert(!ZSTD_isError(*packed));
    return out;
}

/* All of it from where the stream is, in pieces of these sizes; 0 or -1. */
static int unpack(struct sl_packed_stream *stream, const uint8_t *in, size_t in_bytes,
                  size_t in_step, size_t out_step, struct sl_buf *out)
{
    uint8_t room[70000];
    size_t used = 0, taken, got;
    for (;;) {
        size_t part = SL_MIN(in_step, in_bytes - used);
        if (sl_packed_stream_run(stream, in + used, part, &taken, room,
                                 SL_MIN(out_step, sizeof(room)), &got, &err) < 0)
            return -1;
        used += taken;
        ck_assert_int_eq(sl_buf_append(out, room, got, NULL), 0);
        if (!taken && !got && used == in_bytes)
            return sl_packed_stream_end(stream, &err);
        ck_assert(taken || got || part < in_bytes - used || !part);
    }
}

/* As a caller does that has all of it at hand. */
static int unpack_all(enum sl_packing packing, const void *in, size_t in_bytes, struct sl_buf *out)
{
    err = (struct sl_err)SL_ERR_INIT;
    SL_AUTO(sl_packed_stream) stream = sl_packed_stream_new(packing, &err);
    return unpack(stream, in, in_bytes, in_bytes ? in_bytes : 1, 70000, out);
}

static const enum sl_packing packings[] = {SL_PACKING_GZIP, SL_PACKING_ZSTD};

SL_TEST_LOOP(what_was_packed_comes_out_in_pieces_of_any_size, 0, 6)
{
    static const size_t steps[][2] = {{1000000, 70000}, {1, 70000}, {777, 13}};
    enum sl_packing packing = packings[_i % 2];
    size_t bytes, wanted = _i / 2 ? 200000 : PLAIN_BYTES;
    sl_autobuf out = SL_BUF_INIT(PLAIN_BYTES + 1);
    sl_autofree uint8_t *packed = pack(packing, plain, wanted, &bytes);
    SL_AUTO(sl_packed_stream) stream = sl_packed_stream_new(packing, &err);
    ck_assert_msg(unpack(stream, packed, bytes, steps[_i / 2][0], steps[_i / 2][1], &out) == 0,
                  "%s", err.message);
    ck_assert_uint_eq(out.used, wanted);
    ck_assert_mem_eq(out.data, plain, wanted);
    ck_assert_uint_eq(sl_packed_stream_in(stream), bytes);
    ck_assert_uint_eq(sl_packed_stream_out(stream), wanted);
}

SL_TEST_LOOP(every_prefix_is_refused, 0, 2)
{
    size_t bytes;
    sl_autofree uint8_t *packed = pack(packings[_i], plain, SMALL, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        sl_autobuf out = SL_BUF_INIT(PLAIN_BYTES);
        ck_assert_msg(unpack_all(packings[_i], packed, i, &out) < 0, "%zu of %zu bytes", i, bytes);
        ck_assert_str_eq(err.code, sl_packing_name(packings[_i]));
    }
}

SL_TEST_LOOP(every_changed_byte_is_refused_or_changes_nothing_beyond, 0, 2)
{
    size_t bytes;
    sl_autofree uint8_t *packed = pack(packings[_i], plain, SMALL, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        sl_autobuf out = SL_BUF_INIT(PLAIN_BYTES);
        packed[i] ^= 0x40;
        unpack_all(packings[_i], packed, bytes, &out); /* the sanitizers judge */
        packed[i] ^= 0x40;
    }
}

SL_TEST_LOOP(members_may_follow_one_another_and_nothing_else_may, 0, 2)
{
    size_t bytes;
    sl_autobuf two = SL_BUF_INIT(PLAIN_BYTES), out = SL_BUF_INIT(PLAIN_BYTES);
    sl_autofree uint8_t *packed = pack(packings[_i], plain, SMALL, &bytes);
    ck_assert_int_eq(sl_buf_append(&two, packed, bytes, NULL), 0);
    ck_assert_int_eq(sl_buf_append(&two, packed, bytes, NULL), 0);
    ck_assert_msg(unpack_all(packings[_i], two.data, two.used, &out) == 0, "%s", err.message);
    ck_assert_uint_eq(out.used, 2 * SMALL);
    ck_assert_mem_eq(out.data + SMALL, plain, SMALL);
    ck_assert_int_eq(sl_buf_append(&two, "!", 1, NULL), 0);
    ck_assert_int_eq(unpack_all(packings[_i], two.data, two.used, &out), -1);
    ck_assert_str_eq(err.code, sl_packing_name(packings[_i]));
}

/* Points that are far enough from one another, as whoever reads a stream once notes them. */
static size_t note(struct sl_packed_stream *stream, const uint8_t *in, size_t in_bytes,
                   struct sl_packed_point points[POINTS_MAX])
{
    uint8_t room[5000];
    size_t used = 0, count = 0, taken, got;
    do {
        ck_assert_int_eq(sl_packed_stream_run(stream, in + used, SL_MIN(in_bytes - used, 1000),
                                              &taken, room, sizeof(room), &got, &err),
                         0);
        used += taken;
        uint64_t last = count ? points[count - 1].out : 0;
        if (sl_packed_stream_is_point(stream) && sl_packed_stream_out(stream) >= last + SPAN &&
            count < POINTS_MAX)
            ck_assert_int_eq(sl_packed_stream_mark(stream, &points[count++], &err), 0);
    } while (taken || got);
    return count;
}

SL_TEST_LOOP(a_stream_goes_on_from_any_of_its_points, 0, 2)
{
    struct sl_packed_point points[POINTS_MAX];
    size_t bytes, half = PLAIN_BYTES / 2;
    sl_autobuf two = SL_BUF_INIT(2 * PLAIN_BYTES);
    for (size_t i = 0; i < 2; i++) { /* two members */
        sl_autofree uint8_t *packed = pack(packings[_i], plain + i * half, half, &bytes);
        ck_assert_int_eq(sl_buf_append(&two, packed, bytes, NULL), 0);
    }
    const uint8_t *in = (const uint8_t *)two.data;
    SL_AUTO(sl_packed_stream) stream = sl_packed_stream_new(packings[_i], &err);
    size_t count = note(stream, in, two.used, points);
    ck_assert_uint_ge(count, packings[_i] == SL_PACKING_GZIP ? 10 : 1);
    for (size_t i = count; i-- > 0;) {
        sl_autobuf out = SL_BUF_INIT(PLAIN_BYTES);
        ck_assert_int_eq(sl_packed_stream_seek(stream, &points[i], &err), 0);
        ck_assert_uint_eq(sl_packed_stream_out(stream), points[i].out);
        ck_assert_msg(
            unpack(stream, in + points[i].in, two.used - points[i].in, 5000, 7000, &out) == 0, "%s",
            err.message);
        ck_assert_uint_eq(out.used, PLAIN_BYTES - points[i].out);
        ck_assert_mem_eq(out.data, plain + points[i].out, out.used);
        sl_packed_point_release(&points[i]);
    }
    sl_autobuf out = SL_BUF_INIT(PLAIN_BYTES);
    ck_assert_int_eq(sl_packed_stream_seek(stream, NULL, &err), 0);
    ck_assert_int_eq(unpack(stream, in, two.used, 5000, 7000, &out), 0);
    ck_assert_uint_eq(out.used, PLAIN_BYTES);
}

SL_TEST(a_failed_stream_can_begin_again)
{
    size_t bytes;
    sl_autobuf out = SL_BUF_INIT(PLAIN_BYTES);
    for (size_t i = 0; i < 2; i++) {
        sl_autofree uint8_t *packed = pack(packings[i], plain, SMALL, &bytes);
        SL_AUTO(sl_packed_stream) stream = sl_packed_stream_new(packings[i], &err);
        ck_assert_int_eq(unpack(stream, (const uint8_t *)"\x1f\x8bnonsense", 10, 10, 10, &out), -1);
        ck_assert_int_eq(sl_packed_stream_seek(stream, NULL, &err), 0);
        out.used = 0;
        ck_assert_int_eq(unpack(stream, packed, bytes, 100, 100, &out), 0);
        ck_assert_uint_eq(out.used, SMALL);
    }
}

SL_TEST(names_and_limits)
{
    enum sl_packing packing;
    for (unsigned i = 0; i < SL_PACKING_COUNT; i++)
        ck_assert(sl_packing_find(sl_packing_name((enum sl_packing)i), &packing) && packing == i);
    ck_assert(!sl_packing_find("xz", &packing));
    ck_assert_uint_eq(sl_packed_limit(0), SL_PACKED_FREE_BYTES);
    ck_assert_uint_eq(sl_packed_limit(10), 10 * SL_PACKED_RATIO_MAX + SL_PACKED_FREE_BYTES);
    ck_assert_uint_lt(sl_packed_limit(UINT64_MAX), (uint64_t)INT64_MAX);
}

SL_CASE(.setup = setup, .teardown = teardown)
