/*
 * The memory of a pickle's values, its stack, and its bytes, all within limits. A reference to a
 * value that was made before is two bytes of a pickle, and a call can copy all that it refers to:
 * so what is allocated is counted, against the bytes that were read so far. Items of lists and
 * dicts are arrays of their own, which grow; those of tuples, and all else, lie in the arena.
 */
#include <inttypes.h>
#include <string.h>

#include "pickle_parts.h"

enum {
    NODES_MAX = 1 << 22,
    STACK_MAX = 65536,
    LINE_BYTES_MAX = 65536,
    GROWN_MIN = 8, /* items that sl_grow() begins with */
};

uint64_t sl_pickle_items(const struct sl_pickle *pickle)
{
    return pickle->items;
}

int sl_pickle_charge(struct sl_pickle *pickle, uint64_t bytes, struct sl_err *err)
{
    uint64_t allowed =
        SL_PICKLE_MEMORY_BASE + (pickle->read + pickle->at) * SL_PICKLE_MEMORY_PER_BYTE;
    allowed = SL_MIN(allowed, (uint64_t)SL_PICKLE_MEMORY_MAX);
    if (pickle->charged > allowed || bytes > allowed - pickle->charged)
        return sl_fail_code(err, SL_E_FORMAT, "pkl.limit",
                            "the values up to byte %" PRIu64
                            " of the pickle need more than %" PRIu64
                            " MiB of memory, since it repeats what it refers to, as torch.save "
                            "never does: do not trust the file",
                            pickle->read + pickle->at, allowed >> 20);
    pickle->charged += bytes;
    return 0;
}

void *sl_pickle_alloc(struct sl_pickle *pickle, size_t bytes, struct sl_err *err)
{
    return sl_pickle_charge(pickle, bytes, err) < 0 ? NULL
                                                    : sl_arena_alloc(pickle->arena, bytes, err);
}

int sl_pickle_grow(struct sl_pickle *pickle, void *array_pointer, size_t *capacity, size_t need,
                   size_t size, struct sl_err *err)
{
    uint64_t wanted = SL_MAX(*capacity, (size_t)GROWN_MIN);
    if (need <= *capacity)
        return 0;
    while (wanted < need)
        wanted *= 2;
    if (sl_pickle_charge(pickle, (wanted - *capacity) * size, err) < 0)
        return -1;
    return sl_grow(array_pointer, capacity, need, size, err);
}

struct sl_pickle_node *sl_pickle_node(struct sl_pickle *pickle, enum sl_pickle_kind kind,
                                      struct sl_err *err)
{
    if (pickle->nodes++ >= NODES_MAX) {
        sl_pickle_limit(pickle, "more than 4194304 values", err);
        return NULL;
    }
    struct sl_pickle_node *node = sl_pickle_alloc(pickle, sizeof(*node), err);
    if (!node)
        return NULL;
    node->kind = kind;
    if (kind >= SL_PICKLE_LIST && kind <= SL_PICKLE_SET)
        node->depth = 1;
    if (kind == SL_PICKLE_LIST || kind == SL_PICKLE_DICT) { /* they grow */
        node->next_container = pickle->containers;
        pickle->containers = node;
    }
    return node;
}

int sl_pickle_add(struct sl_pickle *pickle, struct sl_pickle_node *into,
                  struct sl_pickle_node *item, struct sl_err *err)
{
    if (sl_pickle_grow(pickle, &into->items, &into->capacity, into->count + 1, sizeof(*into->items),
                       err) < 0)
        return -1;
    into->items[into->count++] = item;
    pickle->items++;
    if (into->depth <= item->depth)
        into->depth = item->depth + 1;
    return into->depth > SL_PICKLE_DEPTH_MAX
               ? sl_pickle_limit(pickle, "containers are nested more than 1000 deep", err)
               : 0;
}

int sl_pickle_limit(const struct sl_pickle *pickle, const char *what, struct sl_err *err)
{
    return sl_pickle_fail(pickle, "pkl.limit", what, err);
}

int sl_pickle_fail(const struct sl_pickle *pickle, const char *code, const char *why,
                   struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, code, "%s at byte %zu of the pickle", why, pickle->at);
}

int sl_pickle_push(struct sl_pickle *pickle, struct sl_pickle_node *node, struct sl_err *err)
{
    if (!node)
        return -1;
    if (pickle->height == STACK_MAX)
        return sl_pickle_limit(pickle, "more than 65536 values on the stack", err);
    if (sl_pickle_grow(pickle, &pickle->stack, &pickle->stack_capacity, pickle->height + 1,
                       sizeof(struct sl_pickle_node *), err) < 0)
        return -1;
    pickle->stack[pickle->height++] = node;
    return 0;
}

const uint8_t *sl_pickle_take(struct sl_pickle *pickle, uint64_t bytes, struct sl_err *err)
{
    if (bytes > pickle->bytes - pickle->at) {
        sl_fail_code(err, SL_E_FORMAT, "pkl.truncated",
                     "%" PRIu64 " bytes are wanted at byte %zu of the pickle, %zu are left", bytes,
                     pickle->at, pickle->bytes - pickle->at);
        return NULL;
    }
    pickle->at += bytes;
    return pickle->data + pickle->at - bytes;
}

const char *sl_pickle_take_line(struct sl_pickle *pickle, size_t *bytes, struct sl_err *err)
{
    size_t left = SL_MIN(pickle->bytes - pickle->at, (size_t)LINE_BYTES_MAX);
    const uint8_t *begin = pickle->data + pickle->at,
                  *end = left ? memchr(begin, '\n', left) : NULL;
    if (!end) {
        if (left == LINE_BYTES_MAX)
            sl_pickle_limit(pickle, "a line is too long", err);
        else
            sl_pickle_fail(pickle, "pkl.truncated", "a line does not end", err);
        return NULL;
    }
    *bytes = (size_t)(end - begin);
    pickle->at += *bytes + 1;
    return (const char *)begin;
}

/* A little-endian number of 1 to 8 bytes. */
int sl_pickle_take_number(struct sl_pickle *pickle, unsigned bytes, uint64_t *value,
                          struct sl_err *err)
{
    const uint8_t *data = sl_pickle_take(pickle, bytes, err);
    *value = 0;
    for (unsigned i = bytes; data && i-- > 0;)
        *value = *value << 8 | data[i];
    return data ? 0 : -1;
}
