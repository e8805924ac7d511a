/*
 * Bytes that gzip or zstd has packed, unpacked in order as they come.
 *
 * Everything is a stranger's. Members of gzip (RFC 1952) and frames of zstd (RFC 8878) may follow
 * one another; zero bytes behind the last member of gzip are padding, anything else that follows
 * is refused. A stream belongs to one thread at a time and does no I/O. Refusals are SL_E_FORMAT,
 * code "gzip" or "zstd".
 */
#ifndef SL_PACKED_STREAM_H
#define SL_PACKED_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "mem.h"

enum sl_packing { SL_PACKING_NONE, SL_PACKING_GZIP, SL_PACKING_ZSTD };
enum { SL_PACKING_COUNT = 3 };
/** "none", "gzip", "zstd". */
const char *sl_packing_name(enum sl_packing packing);
/** Of such a name; false: it is another. */
bool sl_packing_find(const char *name, enum sl_packing *packing);

/** As many bytes as these may be unpacked to: a few packed ones can stand for any number, and no
 * model is packed to a hundredth. */
enum { SL_PACKED_RATIO_MAX = 100, SL_PACKED_FREE_BYTES = 64 * 1024 * 1024 };
uint64_t sl_packed_limit(uint64_t packed_bytes);

/** A place from which a stream can be unpacked without what came before. */
struct sl_packed_point {
    uint64_t in, out; /* packed and unpacked bytes before it */
    uint8_t bits;     /* of the packed byte before it, that belong to what follows */
    uint8_t byte;     /* that one */
    uint8_t *window;  /* unpacked bytes before it, malloc'ed; NULL: it needs none */
    size_t window_bytes;
};
void sl_packed_point_release(struct sl_packed_point *point);

struct sl_packed_stream;
/** At its beginning. SL_PACKING_NONE: bytes as they are. SL_E_NO_SPACE. */
struct sl_packed_stream *sl_packed_stream_new(enum sl_packing packing, struct sl_err *err);
void sl_packed_stream_free(struct sl_packed_stream *stream);
SL_AUTO_DEFINE(sl_packed_stream)
/** Packed bytes that were taken so far, and unpacked ones that came of them. */
uint64_t sl_packed_stream_in(const struct sl_packed_stream *stream);
uint64_t sl_packed_stream_out(const struct sl_packed_stream *stream);
/**
 * Take some of the next packed bytes and give some unpacked ones.
 *
 * @in, in_bytes  what comes next.
 * @taken         out: how many of them were taken.
 * @out, room     where unpacked bytes go, and how many fit.
 * @got           out: how many came.
 * @return        0, or -1 with SL_E_FORMAT or SL_E_NO_SPACE.
 *
 * It ends where either is used up, and earlier at places that may be points; without progress the
 * input is used up.
 */
int sl_packed_stream_run(struct sl_packed_stream *stream, const void *in, size_t in_bytes,
                         size_t *taken, void *out, size_t room, size_t *got, struct sl_err *err);
/** The input has ended: is it whole? */
int sl_packed_stream_end(const struct sl_packed_stream *stream, struct sl_err *err);

/** Is this a place that a point can be made of? */
bool sl_packed_stream_is_point(const struct sl_packed_stream *stream);
/** Make it; to be released. SL_E_NO_SPACE. */
int sl_packed_stream_mark(struct sl_packed_stream *stream, struct sl_packed_point *point,
                          struct sl_err *err);
/** Go to a point of the same packed bytes; NULL: to the beginning. After a failure, too.
 * SL_E_NO_SPACE. */
int sl_packed_stream_seek(struct sl_packed_stream *stream, const struct sl_packed_point *point,
                          struct sl_err *err);

#endif
