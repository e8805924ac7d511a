/*
 * One request brings the whole blob, which is hashed and unpacked as it comes: at no time is more
 * of it in memory than two buffers, some points, and the heads of files. What it is unpacked to is
 * bounded by its size. A connection that breaks is taken up again by the fetch where it broke.
 *
 * A point of gzip costs 32 KiB, so a layer has a bounded number of them: where there are too many,
 * each second one goes, and they are twice as far apart from then on.
 */
#include "oci_unpack.h"

#include <inttypes.h>
#include <string.h>

#include "fetch.h"
#include "log.h"

enum {
    PACKED_BYTES = 256 * 1024,
    UNPACKED_BYTES = 256 * 1024,
    POINTS_MAX = 1024, /* of a layer of that size or more: */
    LARGE_BYTES = 1024 * 1024 * 1024,
    POINTS_MIN = 4,         /* of a small one, */
    SPARE_POINTS_MAX = 256, /* as long as there are not too many of those */
    SPAN_BYTES_MIN = 1024 * 1024,
    GAP_BYTES_MAX = 16 * 1024 * 1024, /* that is unpacked in vain for a range */
    GAPS = 64,                        /* or such a part of all */
};

#define BLAME_BYTES_MAX (UINT64_C(1024) * 1024 * 1024) /* of a layer that is read to its end */

struct unpacking {
    struct sl_oci_layer *layer;
    struct sl_fetch *fetch;
    struct sl_sha256 *sha;
    struct sl_packed_stream *stream;
    uint64_t at;    /* unpacked bytes that were taken */
    uint64_t limit; /* of them */
    uint64_t span;  /* between two points */
    size_t points_max;
    size_t used, have;   /* of packed */
    size_t given, ready; /* of unpacked */
    bool ended;          /* there are no more packed bytes */
    uint8_t packed[PACKED_BYTES], unpacked[UNPACKED_BYTES];
};

/* ---- points ---------------------------------------------------------------------------------- */

/* By its size. */
static size_t own_points(const struct sl_oci_layer *layer)
{
    uint64_t bytes = SL_MIN(layer->bytes, (uint64_t)LARGE_BYTES);
    return (size_t)(bytes * POINTS_MAX / LARGE_BYTES);
}

/* A manifest may name 25,000 layers of a few KiB that unpack to much. */
static size_t points_max(const struct sl_oci_layer *layer, const struct sl_oci_packed *all)
{
    size_t own = own_points(layer),
           spare = SPARE_POINTS_MAX - SL_MIN(all->spare_points, (size_t)SPARE_POINTS_MAX);
    return own < POINTS_MIN ? own + SL_MIN(POINTS_MIN - own, spare) : own;
}

static void thin_out(struct unpacking *unpacking)
{
    struct sl_oci_layer *layer = unpacking->layer;
    size_t kept = 0;
    for (size_t i = 0; i < layer->point_count; i++)
        if (i % 2)
            layer->points[kept++] = layer->points[i];
        else
            sl_packed_point_release(&layer->points[i]);
    layer->point_count = kept;
    unpacking->span *= 2;
}

static int note_point(struct unpacking *unpacking, struct sl_err *err)
{
    struct sl_oci_layer *layer = unpacking->layer;
    size_t count = layer->point_count;
    uint64_t last = count ? layer->points[count - 1].out : 0;
    if (!sl_packed_stream_is_point(unpacking->stream) ||
        sl_packed_stream_out(unpacking->stream) < last + unpacking->span)
        return 0;
    if (sl_grow(&layer->points, &layer->point_capacity, count + 1, sizeof(*layer->points), err) < 0)
        return -1;
    if (sl_packed_stream_mark(unpacking->stream, &layer->points[count], err) < 0)
        return -1;
    layer->point_count++;
    if (layer->point_count > unpacking->points_max)
        thin_out(unpacking);
    return 0;
}

bool sl_oci_is_in_order(const struct sl_oci_layer *layer)
{
    uint64_t last = 0, gap = 0;
    for (size_t i = 0; i < layer->point_count; i++) {
        gap = SL_MAX(gap, layer->points[i].out - last);
        last = layer->points[i].out;
    }
    gap = SL_MAX(gap, layer->unpacked_bytes - last);
    return layer->packing != SL_PACKING_NONE &&
           gap > SL_MAX((uint64_t)GAP_BYTES_MAX, layer->unpacked_bytes / GAPS);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* More packed bytes, hashed. */
static int feed(struct unpacking *unpacking, struct sl_err *err)
{
    for (;;) {
        enum sl_io_state state =
            sl_fetch_read(unpacking->fetch, unpacking->packed, PACKED_BYTES, &unpacking->have, err);
        unpacking->used = 0;
        if (state == SL_IO_FAILED)
            return -1;
        unpacking->ended = state == SL_IO_END;
        sl_sha256_update(unpacking->sha, unpacking->packed, unpacking->have);
        if (sl_fetch_wait(unpacking->fetch, state == SL_IO_WAIT, err) < 0)
            return -1;
        if (unpacking->have || unpacking->ended)
            return 0;
    }
}

/* Some unpacked bytes; none at the end. */
static int unpack_some(struct unpacking *unpacking, struct sl_err *err)
{
    unpacking->given = 0;
    for (;;) {
        size_t taken;
        if (sl_packed_stream_run(unpacking->stream, unpacking->packed + unpacking->used,
                                 unpacking->have - unpacking->used, &taken, unpacking->unpacked,
                                 UNPACKED_BYTES, &unpacking->ready, err) < 0 ||
            note_point(unpacking, err) < 0)
            return -1;
        unpacking->used += taken;
        if (sl_packed_stream_out(unpacking->stream) > unpacking->limit)
            return sl_fail_code(err, SL_E_FORMAT, "archive.ratio",
                                "its %" PRIu64 " bytes, and those of the layers before it, unpack "
                                "to more than %d times as many: push the model's files one by one",
                                unpacking->layer->bytes, SL_PACKED_RATIO_MAX);
        if (unpacking->ready)
            return 0;
        if (taken)
            continue;
        if (unpacking->ended)
            return sl_packed_stream_end(unpacking->stream, err);
        if (feed(unpacking, err) < 0)
            return -1;
    }
}

/* sl_tar_input.read */
static int read_on(void *arg, void *data, uint64_t bytes, uint64_t *got, struct sl_err *err)
{
    struct unpacking *unpacking = arg;
    *got = 0;
    while (*got < bytes) {
        if (unpacking->given == unpacking->ready && unpack_some(unpacking, err) < 0)
            return -1;
        size_t part = (size_t)SL_MIN(bytes - *got, (uint64_t)(unpacking->ready - unpacking->given));
        if (!part)
            return 0;
        if (data)
            memcpy((uint8_t *)data + *got, unpacking->unpacked + unpacking->given, part);
        unpacking->given += part;
        unpacking->at += part;
        *got += part;
    }
    return 0;
}

int sl_oci_check_layer(const struct sl_oci_layer *layer, struct sl_sha256 *sha, struct sl_err *err)
{
    char own[SL_OCI_DIGEST_BYTES] = "sha256:";
    uint8_t digest[32];
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), own + 7);
    if (strcmp(own, layer->digest) == 0)
        return 0;
    return sl_fail(err, SL_E_INTEGRITY,
                   "its bytes are %s: push it again, if nothing between here and the registry "
                   "changes what it sends",
                   own);
}

bool sl_oci_may_be_changed(const struct sl_oci_layer *layer, const struct sl_err *err)
{
    return err && err->kind == SL_E_FORMAT && strcmp(err->code, "archive.ratio") != 0 &&
           layer->bytes <= BLAME_BYTES_MAX;
}

static int find_blame(struct unpacking *unpacking, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (!sl_oci_may_be_changed(unpacking->layer, err))
        return -1;
    while (!unpacking->ended)
        if (feed(unpacking, &why) < 0) {
            if (why.kind == SL_E_CANCELED)
                *err = why;
            return -1;
        }
    if (sl_oci_check_layer(unpacking->layer, unpacking->sha, &why) < 0)
        *err = why;
    return -1;
}

static int unpack(struct unpacking *unpacking, struct sl_source *source, struct sl_oci_tree *tree,
                  struct sl_err *err)
{
    struct sl_oci_layer *layer = unpacking->layer;
    const struct sl_tar_input input = {read_on, unpacking};
    SL_AUTO(sl_fetch) fetch = sl_fetch_new(sl_source_store(source), err);
    SL_AUTO(sl_sha256) sha = fetch ? sl_sha256_new(err) : NULL;
    SL_AUTO(sl_packed_stream) stream = sha ? sl_packed_stream_new(layer->packing, err) : NULL;
    if (!stream || sl_fetch_start(fetch, source, 0, layer->bytes, err) < 0)
        return -1;
    unpacking->fetch = fetch;
    unpacking->sha = sha;
    unpacking->stream = stream;
    if (sl_oci_tree_add(tree, layer, &input, &unpacking->at, true, err) < 0)
        return find_blame(unpacking, err);
    layer->unpacked_bytes = unpacking->at;
    return sl_oci_check_layer(layer, sha, err);
}

int sl_oci_unpack_layer(struct sl_source *source, struct sl_oci_layer *layer,
                        struct sl_oci_tree *tree, struct sl_err *err)
{
    sl_autofree struct unpacking *unpacking = sl_alloc(sizeof(*unpacking), err);
    if (!unpacking)
        return -1;
    struct sl_oci_packed *all = sl_oci_tree_packed(tree);
    unpacking->layer = layer;
    unpacking->span = SPAN_BYTES_MIN;
    unpacking->points_max = points_max(layer, all);
    all->bytes = sl_add_capped(all->bytes, layer->bytes);
    unpacking->limit = sl_packed_limit(all->bytes) - all->unpacked_bytes;
    sl_log(SL_LOG_INFO,
           "layer %.19s… is packed by %s: its %" PRIu64 " bytes are read once to find its files, "
           "and again by the load; a layer without compression is read once",
           layer->digest, sl_packing_name(layer->packing), layer->bytes);
    if (unpack(unpacking, source, tree, err) < 0)
        return -1;
    all->unpacked_bytes += layer->unpacked_bytes;
    all->spare_points += layer->point_count - SL_MIN(layer->point_count, own_points(layer));
    return 0;
}
