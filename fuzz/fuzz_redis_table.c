/* The first key of a model in Redis, which names all others. */
#include <stdlib.h>

#include "redis_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_redis_table table;
    struct sl_buf key = SL_BUF_INIT(SL_REDIS_KEY_BYTES_MAX);
    if (sl_redis_table_parse(data, bytes, &table, NULL) < 0)
        return 0;
    uint64_t at = 0;
    for (size_t i = 0; i < table.count; i++) {
        const struct sl_redis_part *part = &table.parts[i];
        if (part->begin != at || part->end < at ||
            (part->end > at && sl_redis_table_find(&table, at) != i) ||
            sl_redis_key(&key, "p", part->name, part->name_bytes, part->begin, NULL) < 0)
            abort();
        at = part->end;
    }
    if (table.bytes != at + SL_REDIS_TERMINATOR_BYTES ||
        sl_redis_table_find(&table, at) != table.count)
        abort();
    sl_buf_release(&key);
    sl_redis_table_release(&table);
    return 0;
}
