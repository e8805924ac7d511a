/*
 * What a model says of itself: texts of safetensors, values of GGUF. Long ones, such as
 * vocabularies, are not kept: they are read from their place in the object once more, by way of its
 * sidecar, if there is one.
 */
#include <inttypes.h>
#include <string.h>

#include "api_memory.h"
#include "open_parts.h"
#include "thread.h"

/* Texts of the metadata come first. */
static int find_value(const struct sluice_source *source, uint64_t number,
                      struct sl_index_value *value, struct sl_err *err)
{
    const struct sl_index *index = sl_open_index(source);
    uint64_t texts = index ? index->metadata_count : 0;
    if (number < texts) {
        const struct sl_meta_pair *pair = &index->metadata[number];
        *value = (struct sl_index_value){.key = pair->key,
                                         .type = SLUICE_VALUE_TEXT,
                                         .count = 1,
                                         .bytes = strlen(pair->value),
                                         .data = (const uint8_t *)pair->value};
        return 0;
    }
    if (!index || number - texts >= index->value_count)
        return sl_fail(err, SL_E_USAGE, "value %" PRIu64 " does not exist: see value_count",
                       number);
    *value = index->values[number - texts];
    return 0;
}

int sluice_source_value(const struct sluice_source *source, uint64_t number,
                        struct sluice_value *value, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_index_value found;
    if (find_value(source, number, &found, &err) < 0 || sl_open_check_size(value, &err) < 0)
        return sl_open_fail(error, &err);
    const struct sluice_value own = {.key = found.key,
                                     .type = found.type,
                                     .element_type = found.element,
                                     .count = found.count,
                                     .bytes = found.bytes,
                                     .data = found.data};
    sl_api_give(value, value->size, &own, sizeof(own));
    return 0;
}

struct value_read {
    struct sluice_source *source;
    const struct sl_index_value *value;
    void *to;
};

/* A source is read by one thread at a time: the lock is that of all that read opened sources. */
static int read_it(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    (void)cancel; /* the source's own */
    const struct value_read *read = arg;
    const struct sl_plan *plan = read->source->plan;
    const struct sl_source *object = sl_open_index(read->source)->sources[0];
    uint32_t number = 0;
    while (plan->sources[number].source != object)
        number++;
    SL_LOCKED(&read->source->lock);
    return sl_plan_read_proved(plan, number, read->value->begin, read->to, read->value->bytes, err);
}

int sluice_source_value_read(struct sluice_source *source, uint64_t number, void *to, int cancel_fd,
                             struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_index_value value;
    const struct sl_open_limits limits = {.cancel_fd = cancel_fd};
    struct value_read read = {.source = source, .value = &value, .to = to};
    if (find_value(source, number, &value, &err) < 0 || sl_open_check_process(source, &err) < 0)
        return sl_open_fail(error, &err);
    if (value.data)
        memcpy(to, value.data, value.bytes);
    else if (sl_open_within(&limits, source->cancel, true, read_it, &read, &err) < 0)
        return sl_open_fail(error, &err);
    return 0;
}
