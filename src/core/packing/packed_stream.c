/*
 * zlib checks each member's CRC32 and length; libzstd a frame's checksum where it has one. Behind
 * a point of gzip the data are raw deflate, without the member's head, so its CRC32 is not
 * compared: whoever goes there checks what came by a hash of his own.
 *
 * inflate() stops between two blocks (Z_BLOCK): there a point is 32 KiB of what came last and the
 * bits of a byte that is half used, as in zlib's example of random access. zstd has no such places
 * but the beginnings of frames.
 */
#include "packed_stream.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

enum {
    WINDOW_BYTES = 32 * 1024,
    TRAILER_BYTES = 8, /* of a member of gzip */
    STEP_BYTES_MAX = 1 << 30,
    ZSTD_WINDOW_LOG_MAX = 27, /* 128 MiB, as the zstd program has it */
};

struct sl_packed_stream {
    enum sl_packing packing;
    uint64_t in, out;
    bool between;     /* a member or frame has ended, and no other has begun */
    bool at_point;    /* between two blocks */
    bool raw;         /* behind a point */
    unsigned trailer; /* bytes to pass over, behind raw data */
    uint8_t last;     /* packed byte that was taken */
    z_stream gzip;
    bool gzip_ready;
    ZSTD_DCtx *zstd;
};

static const char *const names[SL_PACKING_COUNT] = {"none", "gzip", "zstd"};

const char *sl_packing_name(enum sl_packing packing)
{
    return names[packing];
}

bool sl_packing_find(const char *name, enum sl_packing *packing)
{
    for (unsigned i = 0; i < SL_PACKING_COUNT; i++)
        if (strcmp(names[i], name) == 0) {
            *packing = (enum sl_packing)i;
            return true;
        }
    return false;
}

uint64_t sl_packed_limit(uint64_t packed_bytes)
{
    uint64_t ratio = SL_PACKED_RATIO_MAX, most = (uint64_t)INT64_MAX / 2;
    return SL_MIN(packed_bytes, most / ratio) * ratio + SL_PACKED_FREE_BYTES;
}

void sl_packed_point_release(struct sl_packed_point *point)
{
    free(point->window);
    *point = (struct sl_packed_point){0};
}

static int broken(const struct sl_packed_stream *stream, struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, names[stream->packing], "it cannot be unpacked: %s", why);
}

static int no_memory(struct sl_err *err)
{
    return sl_fail(err, SL_E_NO_SPACE, "out of memory for unpacking");
}

struct sl_packed_stream *sl_packed_stream_new(enum sl_packing packing, struct sl_err *err)
{
    SL_AUTO(sl_packed_stream) stream = sl_alloc(sizeof(*stream), err);
    if (!stream)
        return NULL;
    stream->packing = packing;
    if (packing == SL_PACKING_GZIP)
        stream->gzip_ready = inflateInit2(&stream->gzip, 16 + MAX_WBITS) == Z_OK;
    if (packing == SL_PACKING_ZSTD)
        stream->zstd = ZSTD_createDCtx();
    if (stream->zstd)
        ZSTD_DCtx_setParameter(stream->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG_MAX);
    if (packing == SL_PACKING_NONE || stream->gzip_ready || stream->zstd)
        return sl_steal(&stream);
    no_memory(err);
    return NULL;
}

void sl_packed_stream_free(struct sl_packed_stream *stream)
{
    if (!stream)
        return;
    if (stream->gzip_ready)
        inflateEnd(&stream->gzip);
    ZSTD_freeDCtx(stream->zstd);
    free(stream);
}

uint64_t sl_packed_stream_in(const struct sl_packed_stream *stream)
{
    return stream->in;
}

uint64_t sl_packed_stream_out(const struct sl_packed_stream *stream)
{
    return stream->out;
}

/* ---- gzip ------------------------------------------------------------------------------------ */

/* Behind a member: the next one begins, or padding goes on to the end. */
static int pass_between(struct sl_packed_stream *stream, const uint8_t *in, size_t bytes,
                        size_t *taken, struct sl_err *err)
{
    for (; *taken < bytes && stream->trailer; stream->trailer--)
        ++*taken;
    while (*taken < bytes && !in[*taken])
        ++*taken;
    if (*taken == bytes)
        return 0;
    if (in[*taken] != 0x1f)
        return broken(stream, err, "something follows its end");
    stream->between = false;
    stream->raw = false;
    return inflateReset2(&stream->gzip, 16 + MAX_WBITS) == Z_OK ? 0 : no_memory(err);
}

static int run_gzip(struct sl_packed_stream *stream, const uint8_t *in, size_t in_bytes,
                    size_t *taken, void *out, size_t room, size_t *got, struct sl_err *err)
{
    z_stream *gzip = &stream->gzip;
    if (stream->between && pass_between(stream, in, in_bytes, taken, err) < 0)
        return -1;
    if (stream->between || *taken == in_bytes)
        return 0;
    unsigned step = (unsigned)SL_MIN(in_bytes - *taken, (size_t)STEP_BYTES_MAX);
    unsigned place = (unsigned)SL_MIN(room, (size_t)STEP_BYTES_MAX);
    gzip->next_in = (uint8_t *)in + *taken;
    gzip->avail_in = step;
    gzip->next_out = out;
    gzip->avail_out = place;
    int state;
    do /* what ends between two blocks may have moved by bits alone */
        state = inflate(gzip, Z_BLOCK);
    while ((state == Z_OK || state == Z_BUF_ERROR) && gzip->avail_in == step &&
           gzip->avail_out == place && place);
    *taken += step - gzip->avail_in;
    *got = place - gzip->avail_out;
    if (state == Z_MEM_ERROR)
        return no_memory(err);
    if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR)
        return broken(stream, err, gzip->msg ? gzip->msg : "its gzip data are wrong");
    stream->between = state == Z_STREAM_END;
    stream->trailer = stream->between && stream->raw ? TRAILER_BYTES : 0;
    stream->at_point = state == Z_OK && (gzip->data_type & 128) && !(gzip->data_type & 64);
    return stream->trailer ? pass_between(stream, in, in_bytes, taken, err) : 0;
}

static int mark_gzip(struct sl_packed_stream *stream, struct sl_packed_point *point,
                     struct sl_err *err)
{
    unsigned bytes = 0;
    point->window = sl_alloc(WINDOW_BYTES, err);
    if (!point->window)
        return -1;
    if (inflateGetDictionary(&stream->gzip, point->window, &bytes) != Z_OK) {
        sl_packed_point_release(point);
        return no_memory(err);
    }
    point->window_bytes = bytes;
    point->bits = stream->gzip.data_type & 7;
    point->byte = stream->last;
    return 0;
}

static int seek_gzip(struct sl_packed_stream *stream, const struct sl_packed_point *point)
{
    z_stream *gzip = &stream->gzip;
    stream->raw = point && point->window;
    stream->trailer = 0;
    if (!stream->raw)
        return inflateReset2(gzip, 16 + MAX_WBITS);
    int state = inflateReset2(gzip, -MAX_WBITS);
    if (state == Z_OK && point->bits)
        state = inflatePrime(gzip, point->bits, point->byte >> (8 - point->bits));
    if (state == Z_OK && point->window_bytes)
        state = inflateSetDictionary(gzip, point->window, (unsigned)point->window_bytes);
    return state;
}

/* ---- zstd ------------------------------------------------------------------------------------ */

static int run_zstd(struct sl_packed_stream *stream, const uint8_t *in, size_t in_bytes,
                    size_t *taken, void *out, size_t room, size_t *got, struct sl_err *err)
{
    ZSTD_inBuffer input = {in, in_bytes, 0};
    ZSTD_outBuffer output = {out, room, 0};
    size_t state = ZSTD_decompressStream(stream->zstd, &output, &input);
    *taken = input.pos;
    *got = output.pos;
    if (ZSTD_isError(state) && ZSTD_getErrorCode(state) == ZSTD_error_memory_allocation)
        return no_memory(err);
    if (ZSTD_isError(state))
        return broken(stream, err, ZSTD_getErrorName(state));
    if (input.pos || output.pos)
        stream->at_point = stream->between = state == 0;
    return 0;
}

/* ---- both ------------------------------------------------------------------------------------ */

static int run_plain(const uint8_t *in, size_t in_bytes, size_t *taken, void *out, size_t room,
                     size_t *got)
{
    *taken = *got = SL_MIN(in_bytes, room);
    if (*got)
        memcpy(out, in, *got);
    return 0;
}

int sl_packed_stream_run(struct sl_packed_stream *stream, const void *in, size_t in_bytes,
                         size_t *taken, void *out, size_t room, size_t *got, struct sl_err *err)
{
    int result;
    *taken = *got = 0;
    stream->at_point = false;
    if (stream->packing == SL_PACKING_GZIP)
        result = run_gzip(stream, in, in_bytes, taken, out, room, got, err);
    else if (stream->packing == SL_PACKING_ZSTD)
        result = run_zstd(stream, in, in_bytes, taken, out, room, got, err);
    else
        result = run_plain(in, in_bytes, taken, out, room, got);
    stream->in += *taken;
    stream->out += *got;
    if (*taken)
        stream->last = ((const uint8_t *)in)[*taken - 1];
    return result;
}

int sl_packed_stream_end(const struct sl_packed_stream *stream, struct sl_err *err)
{
    if (stream->packing == SL_PACKING_NONE || (stream->between && !stream->trailer))
        return 0;
    return broken(stream, err, "it is cut off: store it again");
}

bool sl_packed_stream_is_point(const struct sl_packed_stream *stream)
{
    return stream->at_point;
}

int sl_packed_stream_mark(struct sl_packed_stream *stream, struct sl_packed_point *point,
                          struct sl_err *err)
{
    *point = (struct sl_packed_point){.in = stream->in, .out = stream->out};
    return stream->packing == SL_PACKING_GZIP ? mark_gzip(stream, point, err) : 0;
}

int sl_packed_stream_seek(struct sl_packed_stream *stream, const struct sl_packed_point *point,
                          struct sl_err *err)
{
    stream->in = point ? point->in : 0;
    stream->out = point ? point->out : 0;
    stream->at_point = false;
    stream->between = point && stream->packing == SL_PACKING_ZSTD;
    if (stream->packing == SL_PACKING_GZIP && seek_gzip(stream, point) != Z_OK)
        return no_memory(err);
    if (stream->packing == SL_PACKING_ZSTD)
        ZSTD_DCtx_reset(stream->zstd, ZSTD_reset_session_only);
    return 0;
}
