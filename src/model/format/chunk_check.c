/*
 * Threads read a tensor's blocks in any order, and a chunk's bytes come as pieces of them. Each
 * piece has its CRC32; neighbours become one, so that few are kept: about one a thread.
 */
#include "chunk_check.h"

#include <pthread.h>
#include <string.h>

#include "hash.h"
#include "names.h"
#include "thread.h"

struct piece {
    uint64_t begin, end;
    uint32_t crc;
};

struct pieces {
    struct piece *items; /* sorted, none next to another */
    size_t count, capacity;
};

struct sl_chunk_check {
    const struct sl_tensor *tensor;
    pthread_mutex_t lock;
    struct {
        struct pieces *chunks; /* one for each */
        size_t passed;
        uint64_t bytes;
    } locked;
};

struct sl_chunk_check *sl_chunk_check_new(const struct sl_tensor *tensor, struct sl_err *err)
{
    struct sl_chunk_check *check = sl_alloc(sizeof(*check), err);
    if (!check)
        return NULL;
    check->tensor = tensor;
    check->locked.chunks = sl_alloc_array(tensor->chunk_count, sizeof(struct pieces), err);
    if (!check->locked.chunks) {
        free(check);
        return NULL;
    }
    pthread_mutex_init(&check->lock, NULL);
    return check;
}

void sl_chunk_check_free(struct sl_chunk_check *check)
{
    if (!check)
        return;
    for (size_t i = 0; i < check->tensor->chunk_count; i++)
        free(check->locked.chunks[i].items);
    free(check->locked.chunks);
    pthread_mutex_destroy(&check->lock);
    free(check);
}

static bool is_checked(const struct sl_tensor *tensor)
{
    return tensor->hash_count && !tensor->hashes[0].sha256 && !tensor->strides &&
           tensor->swap_bytes <= 1;
}

size_t sl_chunk_check_possible(const struct sl_tensor *tensor)
{
    size_t count = 0;
    for (size_t i = 0; i < tensor->chunk_count; i++)
        count += is_checked(&tensor->chunks[i].tensor);
    return count;
}

/* The second one follows the first. */
static void join(struct pieces *pieces, size_t first)
{
    struct piece *one = &pieces->items[first], *two = one + 1;
    one->crc = sl_crc32_combine(one->crc, two->crc, two->end - two->begin);
    one->end = two->end;
    pieces->count--;
    memmove(two, two + 1, (pieces->count - first - 1) * sizeof(*two));
}

static int insert(struct pieces *pieces, const struct piece *piece, struct sl_err *err)
{
    size_t at = pieces->count;
    if (sl_grow(&pieces->items, &pieces->capacity, pieces->count + 1, sizeof(*piece), err) < 0)
        return -1;
    for (; at > 0 && pieces->items[at - 1].begin > piece->begin; at--)
        pieces->items[at] = pieces->items[at - 1];
    pieces->items[at] = *piece;
    pieces->count++;
    if (at + 1 < pieces->count && pieces->items[at + 1].begin == piece->end)
        join(pieces, at);
    if (at > 0 && pieces->items[at - 1].end == piece->begin)
        join(pieces, at - 1);
    return 0;
}

static int judge(const struct sl_tensor *tensor, uint32_t crc, struct sl_err *err)
{
    const uint8_t *bytes = tensor->hashes[0].expected;
    uint32_t expected =
        (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    return crc == expected
               ? 0
               : sl_fail_code(err, SL_E_INTEGRITY, "E_HASH_CRC32",
                              "tensor '%.*s': the CRC32 of one of its chunks is %08x, the file "
                              "says %08x: the bytes are damaged; store the file again",
                              SL_NAME_ARGS(tensor->name, tensor->name_bytes), crc, expected);
}

int sl_chunk_check_add(struct sl_chunk_check *check, const struct sl_tensor_chunk *chunk,
                       uint64_t begin, const void *data, size_t bytes, struct sl_err *err)
{
    const struct sl_tensor *tensor = &chunk->tensor;
    if (!is_checked(tensor) || bytes == 0)
        return 0;
    const struct piece piece = {begin, begin + bytes, sl_crc32(0, data, bytes)};
    SL_LOCKED(&check->lock);
    struct pieces *pieces = &check->locked.chunks[chunk - check->tensor->chunks];
    if (insert(pieces, &piece, err) < 0)
        return -1;
    if (pieces->count != 1 || pieces->items[0].begin || pieces->items[0].end != tensor->bytes)
        return 0;
    pieces->count = 0;
    check->locked.passed++;
    check->locked.bytes += tensor->bytes;
    return judge(tensor, pieces->items[0].crc, err);
}

size_t sl_chunk_check_take(struct sl_chunk_check *check, uint64_t *bytes)
{
    SL_LOCKED(&check->lock);
    size_t passed = check->locked.passed;
    *bytes = check->locked.bytes;
    check->locked.passed = 0;
    check->locked.bytes = 0;
    return passed;
}
