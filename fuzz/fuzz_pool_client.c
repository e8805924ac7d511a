/*
 * What the daemon sends to libsluice: an index, and answers. The first byte says what the rest is.
 * An index that passes its check is walked, every text, number and place of it.
 */
#include <stdlib.h>
#include <string.h>

#include "pool_index.h"
#include "pool_link.h"
#include "pool_list.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile uint64_t sum; /* so that reading is not left out */

static void walk_tensor(const struct sl_pool_index *index, uint32_t number)
{
    const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(index, number);
    const uint64_t *shape = sl_pool_index_shape(index, tensor);
    const uint64_t *strides = sl_pool_index_strides(index, tensor);
    sum += strlen(sl_pool_index_text(index, tensor->name_at));
    sum += strlen(sl_pool_index_text(index, tensor->dtype_at));
    for (uint32_t i = 0; i < tensor->rank; i++)
        sum += shape[i] + (strides ? strides[i] : 0);
    if (tensor->bytes && (tensor->slab >= index->head->slab_count ||
                          tensor->offset > index->slabs[tensor->slab].bytes ||
                          tensor->bytes > index->slabs[tensor->slab].bytes - tensor->offset))
        abort();
}

static void read_index(const void *data, size_t bytes)
{
    struct sl_pool_index index;
    char why[SL_POOL_WHY_BYTES];
    if (sl_pool_index_check(data, bytes, &index, why) < 0)
        return;
    sum += strlen(sl_pool_index_text(&index, index.head->name_at));
    for (uint32_t i = 0; i < index.head->meta_count; i++)
        sum += strlen(sl_pool_index_text(&index, index.metas[i].value_at));
    for (uint32_t i = 0; i < index.head->tensor_count; i++)
        walk_tensor(&index, i);
}

static int see_row(void *arg, const struct sluice_row *row)
{
    (void)arg;
    sum += strlen(row->name) + strlen(row->key) + strlen(row->error) + row->bytes;
    return 0;
}

static int see_holder(void *arg, const struct sluice_holder *holder)
{
    (void)arg;
    sum += strlen(holder->name);
    return 0;
}

static void read_answer(const uint8_t *data, size_t bytes)
{
    static struct sl_pool_reply reply;
    struct sluice_error error;
    reply.bytes = bytes < sizeof(reply.storage) ? bytes : sizeof(reply.storage);
    memcpy(reply.storage, data, reply.bytes);
    sl_pool_reply_check(&reply, SL_WIRE_ANSWER | SL_WIRE_LIST, 0, 0, &error);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t used;
    if (!bytes)
        return 0;
    size_t rest = bytes - 1;
    uint64_t *copy = malloc(rest + 1); /* aligned, and of exactly this size */
    memcpy(copy, data + 1, rest);
    switch (data[0] % 4) {
    case 0:
        read_index(copy, rest);
        break;
    case 1:
        read_answer(data + 1, rest);
        break;
    case 2:
        sl_pool_row_take(data + 1, rest, &used, see_row, NULL, NULL);
        break;
    default:
        sl_pool_holder_take(data + 1, rest, see_holder, NULL, NULL);
    }
    free(copy);
    return 0;
}
