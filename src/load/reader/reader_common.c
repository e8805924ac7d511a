/* What threads, slots and repairs ask of the reader that they belong to. */
#include "metrics.h"
#include "reader_parts.h"

void sl_reader_fail(struct sl_reader *reader, const struct sl_err *err)
{
    {
        SL_LOCKED(&reader->lock);
        if (!reader->locked.err.kind)
            reader->locked.err = *err;
    }
    sl_cancel_raise(reader->stop, 0);
}

enum sl_vouch sl_reader_vouch(const struct sl_reader *reader, uint32_t source)
{
    return reader->vouches ? reader->vouches[source] : SL_VOUCH_NONE;
}

void sl_reader_count_inherited(struct sl_reader *reader, uint64_t bytes)
{
    sl_counter_add(&reader->inherited, bytes);
    sl_progress_add_inherited(reader->config->progress, bytes);
    sl_metric_add(SL_M_INHERITED_BYTES, (int64_t)bytes);
}

bool sl_reader_composes(const struct sl_plan *plan)
{
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++)
        if (sl_mapping_composed(&plan->mappings[i]))
            return true;
    return false;
}

uint64_t sl_reader_first_byte_ns(const struct sl_reader *reader)
{
    const struct sl_plan *plan = reader->plan;
    return plan->source_count ? sl_store_first_byte_ns(sl_source_store(plan->sources[0].source))
                              : 0;
}
