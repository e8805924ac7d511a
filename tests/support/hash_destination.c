/* Each byte counts by its place, so that readers may bring them in any order. */
#include "hash_destination.h"

#include <pthread.h>
#include <string.h>

struct block {
    struct block *next;
    uint8_t data[];
};
struct hash_sink {
    struct sl_sink base;
    pthread_mutex_t lock;
    struct {
        struct block *blocks; /* until the end: a reader may look at what it has committed */
        uint64_t sum, bytes;
    } locked;
};

uint64_t hash_sum(uint32_t file, uint64_t offset, const uint8_t *data, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes; i++)
        sum += (data[i] + 1) * ((offset + i + ((uint64_t)file << 48) + 1) * 0x9e3779b97f4a7c15);
    return sum;
}

static int hash_reserve(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                        struct sl_place *place, struct sl_err *err)
{
    struct hash_sink *hash = (struct hash_sink *)sink;
    struct block *block = sl_alloc(sizeof(*block) + bytes, err);
    (void)file, (void)offset;
    if (!block)
        return -1;
    SL_LOCKED(&hash->lock);
    block->next = hash->locked.blocks;
    hash->locked.blocks = block;
    place->memory = block->data;
    return 0;
}

static int hash_commit(struct sl_sink *sink, const struct sl_place *place, struct sl_err *err)
{
    struct hash_sink *hash = (struct hash_sink *)sink;
    uint64_t sum = hash_sum(place->file, place->offset, place->memory, place->bytes);
    (void)err;
    SL_LOCKED(&hash->lock);
    hash->locked.sum += sum;
    hash->locked.bytes += place->bytes;
    return 0;
}

static void hash_abandon(struct sl_sink *sink, const struct sl_place *place)
{
    (void)sink, (void)place;
}

static int hash_read(struct sl_sink *sink, uint32_t file, uint64_t offset, void *data, size_t bytes,
                     struct sl_err *err)
{
    (void)sink, (void)file, (void)offset, (void)data, (void)bytes;
    return sl_fail(err, SL_E_INTERNAL, "no byte is kept");
}

static void hash_close(struct sl_sink *sink)
{
    struct hash_sink *hash = (struct hash_sink *)sink;
    while (hash->locked.blocks) {
        struct block *next = hash->locked.blocks->next;
        free(hash->locked.blocks);
        hash->locked.blocks = next;
    }
    pthread_mutex_destroy(&hash->lock);
    free(hash);
}

static const struct sl_sink_ops hash_sink_ops = {
    .name = "hash",
    .reserve = hash_reserve,
    .lend = hash_reserve,
    .commit = hash_commit,
    .abandon = hash_abandon,
    .read = hash_read,
    .close = hash_close,
};

/* ---- the destination ------------------------------------------------------------------------ */

static int open_it(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                   struct sl_err *err)
{
    (void)err;
    ((struct hash_destination *)to)->opened += attempt->plan == NULL;
    return 0;
}

static int prepare(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                   struct sl_err *err)
{
    (void)err;
    ((struct hash_destination *)to)->prepared += attempt->plan != NULL;
    return 0;
}

static int begin(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                 struct sl_reader_config *config, struct sl_err *err)
{
    struct hash_destination *hash = (struct hash_destination *)to;
    (void)config;
    hash->begun++;
    hash->files = sl_plan_sink_files(attempt->plan, err);
    struct hash_sink *sink = hash->files ? sl_alloc(sizeof(*sink), err) : NULL;
    if (!sink)
        return -1;
    pthread_mutex_init(&sink->lock, NULL);
    sink->base = (struct sl_sink){&hash_sink_ops, hash->files, attempt->plan->file_count};
    to->sink = &sink->base;
    return 0;
}

static int finish(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                  struct sl_err *err)
{
    struct hash_destination *hash = (struct hash_destination *)to;
    const struct hash_sink *sink = (const struct hash_sink *)to->sink;
    hash->finished++;
    if (sl_sink_finish(to->sink, err) < 0 || sl_cancel_check(attempt->cancel, err) < 0)
        return -1;
    hash->sum = sink->locked.sum;
    hash->bytes = sink->locked.bytes;
    hash->published = true;
    return 0;
}

static void end(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                const struct sl_err *why)
{
    struct hash_destination *hash = (struct hash_destination *)to;
    (void)attempt;
    hash->ended++;
    hash->why = why ? why->kind : 0;
    sl_sink_free(sl_steal(&to->sink));
    free(sl_steal(&hash->files));
}

static void close_it(struct sl_load_destination *to)
{
    ((struct hash_destination *)to)->closed++;
}

static const struct sl_load_destination_ops hash_destination_ops = {
    .name = "hash",
    .open = open_it,
    .prepare = prepare,
    .begin = begin,
    .finish = finish,
    .end = end,
    .close = close_it,
};

struct hash_destination hash_destination(enum sl_sink_layout layout)
{
    return (struct hash_destination){.base = {.ops = &hash_destination_ops,
                                              .output = {layout, .part_bytes = UINT64_MAX / 2},
                                              .path = ""}};
}
