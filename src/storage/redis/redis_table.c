/*
 * A walk over the metadata block that takes only names and places. The format's own reader
 * (format/tensorizer.c) cannot serve here: it reads an object, and this finds out what the object
 * is made of; it checks everything else later, from the bytes that these keys hold.
 *
 * Parts must follow each other without gap and overlap, in whatever order the entries stand: real
 * writers leave none, and a byte that no key holds could only be made up.
 */
#include "redis_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lower_bound.h"
#include "mem.h"

enum { METADATA_AT = 73, ENTRY_BYTES_MIN = 29, TAG_BYTES = 4 };

struct walk {
    const uint8_t *data;
    size_t bytes, at;
};

/* The next n bytes, NULL if there are fewer. */
static const uint8_t *take(struct walk *walk, size_t n)
{
    if (walk->bytes - walk->at < n)
        return NULL;
    walk->at += n;
    return walk->data + walk->at - n;
}

static int bad(struct sl_err *err, const char *code, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, code, "the header of the model in Redis %s", why);
}

/* Checks 1 to 8 of the format, as far as they concern the keys. */
static int check_head(const uint8_t *head, size_t bytes, struct sl_err *err)
{
    if (bytes < METADATA_AT)
        return bad(err, "E_TRUNCATED", "is cut off");
    if (memcmp(head, "|TZR|", 5) != 0)
        return bad(err, "E_MAGIC", "does not begin with |TZR|");
    uint32_t version = sl_get_le32(head + 5);
    if (version < 1 || version > 5)
        return bad(err, "E_VERSION", "has an unknown data version: a newer sluice may read it");
    if (head[9] > 3 || (head[9] & 2 && version < 5))
        return bad(err, "E_FLAGS", "has feature flags that are not known");
    uint64_t count = sl_get_le64(head + 57), metadata = sl_get_le64(head + 65);
    if (!count || !metadata)
        return bad(err, "E_EMPTY", "lists no tensors: its writer may have died");
    if (metadata != bytes - METADATA_AT)
        return bad(err, "E_TRUNCATED",
                   "is not as long as it says: parts of two models may be mixed");
    if (count > metadata / (ENTRY_BYTES_MIN + (head[9] & 2 ? TAG_BYTES : 0)))
        return bad(err, "E_METADATA", "counts more tensors than it has room for");
    return 0;
}

/* One entry as two parts. */
static int take_entry(struct walk *walk, bool tagged, struct sl_redis_part parts[2],
                      struct sl_err *err)
{
    static const char over[] = "has an entry that runs over its end";
    size_t item = 4;
    const uint8_t *field;
    if (tagged) {
        field = take(walk, TAG_BYTES);
        uint32_t tag = field ? sl_get_le32(field) : 0;
        if (tag != 1 && tag != 5)
            return bad(err, "E_METADATA", "has an entry with an unknown tag");
        item = tag == 5 ? 8 : 4;
    }
    if (!(field = take(walk, 2)))
        return bad(err, "E_METADATA", over);
    uint16_t name_bytes = sl_get_le16(field);
    const char *name = (const char *)take(walk, name_bytes);
    if (!name || !(field = take(walk, 2)) || !take(walk, field[1]) || !(field = take(walk, 1)) ||
        !take(walk, item * field[0]) || !(field = take(walk, 24)))
        return bad(err, "E_METADATA", over);
    if (!name_bytes)
        return bad(err, "E_NAME", "has a tensor without a name");
    uint64_t begin = sl_get_le64(field), middle = sl_get_le64(field + 8),
             bytes = sl_get_le64(field + 16);
    if (begin >= middle || middle > INT64_MAX || bytes > INT64_MAX - middle)
        return bad(err, "E_OFFSET", "puts a tensor where none can be");
    parts[0] = (struct sl_redis_part){begin, middle, name, name_bytes, false, 0};
    parts[1] = (struct sl_redis_part){middle, middle + bytes, name, name_bytes, true, 0};
    return 0;
}

/* A part without bytes comes before what begins at its place. */
static int by_place(const void *a, const void *b)
{
    const struct sl_redis_part *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Give each tensor header its place among what is kept. */
static int join(struct sl_redis_table *table, struct sl_err *err)
{
    qsort(table->parts, table->count, sizeof(*table->parts), by_place);
    for (size_t i = 1; i < table->count; i++) {
        struct sl_redis_part *part = &table->parts[i];
        if (part->begin != part[-1].end)
            return bad(err, "E_OFFSET",
                       part->begin < part[-1].end
                           ? "has tensors that overlap"
                           : "has bytes between tensors, which no key holds");
        if (part->data)
            continue;
        part->kept_at = table->kept_bytes;
        table->kept_bytes += part->end - part->begin;
        if (part->end - part->begin > SL_REDIS_KEPT_BYTES_MAX ||
            table->kept_bytes > SL_REDIS_KEPT_BYTES_MAX)
            return bad(err, "E_OFFSET", "lists tensor headers of more than 256 MiB");
    }
    table->bytes = table->parts[table->count - 1].end + SL_REDIS_TERMINATOR_BYTES;
    return 0;
}

int sl_redis_table_parse(const uint8_t *head, size_t bytes, struct sl_redis_table *table,
                         struct sl_err *err)
{
    *table = (struct sl_redis_table){0};
    if (check_head(head, bytes, err) < 0)
        return -1;
    size_t tensors = (size_t)sl_get_le64(head + 57);
    table->parts = sl_alloc_array(1 + 2 * tensors, sizeof(*table->parts), err);
    if (!table->parts)
        return -1;
    table->parts[0] = (struct sl_redis_part){0, bytes, "header", 6, false, 0};
    table->count = 1;
    struct walk walk = {head, bytes, METADATA_AT};
    int result = 0;
    for (size_t i = 0; i < tensors && result == 0; i++, table->count += 2)
        result = take_entry(&walk, head[9] & 2, &table->parts[table->count], err);
    if (result == 0)
        result = join(table, err);
    if (result < 0)
        sl_redis_table_release(table);
    return result;
}

void sl_redis_table_release(struct sl_redis_table *table)
{
    free(table->parts);
    *table = (struct sl_redis_table){0};
}

size_t sl_redis_table_find(const struct sl_redis_table *table, uint64_t at)
{
    return SL_LOWER_BOUND(i, table->count, table->parts[i].end <= at);
}

int sl_redis_key(struct sl_buf *key, const char *prefix, const char *name, size_t name_bytes,
                 uint64_t begin, struct sl_err *err)
{
    key->used = 0;
    if (sl_buf_printf(key, err, "%s:", prefix) < 0 || sl_buf_append(key, name, name_bytes, err) < 0)
        return -1;
    return sl_buf_printf(key, err, ":%" PRIu64, begin);
}
