/*
 * The sink that all sinks share: it checks arguments and counts bytes once, the backends do
 * neither.
 */
#include "sink.h"

#include <inttypes.h>

#include "metrics.h"

static bool inside(const struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes)
{
    return file < sink->file_count && offset <= sink->files[file].bytes &&
           bytes <= sink->files[file].bytes - offset;
}

/* A mistake of ours, but one that would write over other memory: checked in every build. */
static int fail_outside(const struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                        struct sl_err *err)
{
    return sl_fail(err, SL_E_INTERNAL,
                   "%s: %" PRIu64 " bytes at %" PRIu64 " lie outside file %u of %zu",
                   sink->ops->name, bytes, offset, file, sink->file_count);
}

int sl_sink_reserve(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                    struct sl_place *place, struct sl_err *err)
{
    if (!bytes || !inside(sink, file, offset, bytes))
        return fail_outside(sink, file, offset, bytes, err);
    *place = (struct sl_place){.fd = -1, .offset = offset, .bytes = bytes, .file = file};
    return sink->ops->reserve(sink, file, offset, bytes, place, err);
}

bool sl_sink_lends(const struct sl_sink *sink)
{
    return sink->ops->lend;
}

int sl_sink_lend(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                 struct sl_place *place, struct sl_err *err)
{
    if (!bytes || !inside(sink, file, offset, bytes))
        return fail_outside(sink, file, offset, bytes, err);
    *place = (struct sl_place){.fd = -1, .offset = offset, .bytes = bytes, .file = file};
    return sink->ops->lend ? sink->ops->lend(sink, file, offset, bytes, place, err) : 0;
}

int sl_sink_commit(struct sl_sink *sink, const struct sl_place *place, struct sl_err *err)
{
    if (sink->ops->commit(sink, place, err) < 0)
        return -1;
    sl_metric_add(SL_M_SINK_BYTES, (int64_t)place->bytes);
    return 0;
}

void sl_sink_abandon(struct sl_sink *sink, const struct sl_place *place)
{
    sink->ops->abandon(sink, place);
}

int sl_sink_read(struct sl_sink *sink, uint32_t file, uint64_t offset, void *data, size_t bytes,
                 struct sl_err *err)
{
    if (!inside(sink, file, offset, bytes))
        return fail_outside(sink, file, offset, bytes, err);
    return bytes ? sink->ops->read(sink, file, offset, data, bytes, err) : 0;
}

void sl_sink_allocate(struct sl_sink *sink, bool (*more)(const void *arg), const void *arg)
{
    if (sink->ops->allocate)
        sink->ops->allocate(sink, more, arg);
}

int sl_sink_finish(struct sl_sink *sink, struct sl_err *err)
{
    return sink->ops->finish ? sink->ops->finish(sink, err) : 0;
}

void sl_sink_free(struct sl_sink *sink)
{
    if (sink)
        sink->ops->close(sink);
}
