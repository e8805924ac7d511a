/* The rows are walked, and each value goes into the hash with its length, so that no two lists of
 * values look alike. */
#include "spec_digest.h"

#include <string.h>

#include "hash.h"

static void put_number(struct sl_sha256 *sha, uint64_t value)
{
    uint8_t bytes[8];
    sl_put_le64(bytes, value);
    sl_sha256_update(sha, bytes, sizeof(bytes));
}

static void put_text(struct sl_sha256 *sha, const char *text)
{
    size_t bytes = text ? strlen(text) : 0;
    put_number(sha, bytes);
    sl_sha256_update(sha, text ? text : "", bytes);
}

static void put_table(struct sl_sha256 *sha, const struct sl_option_table *table,
                      const void *values);

static void put_value(struct sl_sha256 *sha, const struct sl_option *row, const void *value)
{
    const struct sl_list *list = value;
    const struct sl_map *map = value;
    const struct sl_items *items = value;
    switch (row->type) {
    case SL_OPTION_BOOL:
        put_number(sha, *(const bool *)value);
        break;
    case SL_OPTION_CHOICE:
        put_number(sha, (uint64_t) * (const int *)value);
        break;
    case SL_OPTION_UINT:
    case SL_OPTION_BYTES:
    case SL_OPTION_RATE:
        put_number(sha, *(const uint64_t *)value);
        break;
    case SL_OPTION_STRING:
        put_text(sha, *(char *const *)value);
        break;
    case SL_OPTION_LIST:
        put_number(sha, list->count);
        for (size_t i = 0; i < list->count; i++)
            put_text(sha, list->items[i]);
        break;
    case SL_OPTION_MAP:
        put_number(sha, map->count);
        for (size_t i = 0; i < map->count; i++) {
            put_text(sha, map->keys[i]);
            put_text(sha, map->values[i]);
        }
        break;
    case SL_OPTION_SECTION:
        put_table(sha, row->section, value);
        break;
    case SL_OPTION_ITEMS:
        put_number(sha, items->count);
        for (size_t i = 0; i < items->count; i++)
            put_table(sha, row->section,
                      (const char *)items->items + i * row->section->struct_bytes);
        break;
    }
}

static void put_table(struct sl_sha256 *sha, const struct sl_option_table *table,
                      const void *values)
{
    for (const struct sl_option *row = table->rows; row->member; row++)
        put_value(sha, row, (const char *)values + row->offset);
}

int sl_spec_origin_digest(const struct sl_spec *spec, uint8_t digest[32], struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    for (const struct sl_option *row = sl_spec_table()->rows; row->member; row++)
        if (row->offset == offsetof(struct sl_spec, source) ||
            row->offset == offsetof(struct sl_spec, decrypt))
            put_value(sha, row, (const char *)spec + row->offset);
    put_text(sha, spec->source.credentials);
    sl_sha256_finish(sha, digest);
    return 0;
}

int sl_spec_rule_digest(const struct sl_spec *spec, uint8_t digest[32], struct sl_err *err)
{
    memset(digest, 0, 32);
    if (!sl_spec_signing_is_set(&spec->verify.rule))
        return 0;
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    put_table(sha, &sl_spec_signing_table, &spec->verify.rule);
    sl_sha256_finish(sha, digest);
    return 0;
}

int sl_spec_digest(const struct sl_spec *spec, uint8_t digest[32], struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    put_number(sha, spec->has_pool);
    if (spec->source.beneath_bytes)
        put_number(sha, spec->source.beneath_bytes);
    put_table(sha, sl_spec_table(), spec);
    if (sl_spec_signing_is_set(&spec->verify.rule))
        put_table(sha, &sl_spec_signing_table, &spec->verify.rule);
    sl_sha256_finish(sha, digest);
    return 0;
}
