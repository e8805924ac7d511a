/*
 * Where a read lands: the caller's memory, or, of a slice with steps and of what is for a GPU,
 * memory that is there from its first byte until it was taken from.
 */
#include <string.h>

#include "reading.h"

struct read_sink {
    struct sl_sink base;
    struct sl_reading *reading;
};

/* The lock is held. */
static int canceled(const struct sl_reading *reading, struct sl_err *err)
{
    if (!reading->locked.why.kind)
        return sl_fail(err, SL_E_CANCELED, "a callback ended the read");
    *err = reading->locked.why;
    return -1;
}

static int read_reserve(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                        struct sl_place *place, struct sl_err *err)
{
    struct sl_reading *reading = ((struct read_sink *)sink)->reading;
    struct sl_piece *piece = &reading->pieces[file];
    (void)bytes;
    SL_LOCKED(&reading->lock);
    if (reading->locked.canceled)
        return canceled(reading, err);
    if (piece->aside && !piece->between && !(piece->between = sl_alloc(piece->bytes, err)))
        return -1;
    place->memory = (piece->aside ? piece->between : piece->to) + offset;
    return 0;
}

static int read_commit(struct sl_sink *sink, const struct sl_place *place, struct sl_err *err)
{
    (void)sink, (void)place, (void)err;
    return 0;
}

static void read_abandon(struct sl_sink *sink, const struct sl_place *place)
{
    (void)sink, (void)place;
}

static int read_back(struct sl_sink *sink, uint32_t file, uint64_t offset, void *data, size_t bytes,
                     struct sl_err *err)
{
    struct sl_reading *reading = ((struct read_sink *)sink)->reading;
    const struct sl_piece *piece = &reading->pieces[file];
    const uint8_t *from = piece->aside ? piece->between : piece->to;
    if (!from)
        return sl_fail(err, SL_E_INTERNAL, "these bytes were given away");
    memcpy(data, from + offset, bytes);
    return 0;
}

static void read_close(struct sl_sink *sink)
{
    free(sink);
}

static const struct sl_sink_ops read_sink_ops = {
    .name = "read",
    .reserve = read_reserve,
    .lend = read_reserve,
    .commit = read_commit,
    .abandon = read_abandon,
    .read = read_back,
    .close = read_close,
};

struct sl_sink *sl_read_sink_open(struct sl_reading *reading, const struct sl_sink_file *files,
                                  struct sl_err *err)
{
    struct read_sink *sink = sl_alloc(sizeof(*sink), err);
    if (!sink)
        return NULL;
    *sink = (struct read_sink){{&read_sink_ops, files, reading->piece_count}, reading};
    return &sink->base;
}
