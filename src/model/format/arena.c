/*
 * Blocks in a list; the newest is cut up from the front. An index of a hundred thousand tensors is
 * a million small pieces that live equally long, so freeing and bookkeeping one by one would cost
 * more than reading the header. Blocks double in size, since all of one is zeroed and most indexes
 * are short. A piece that is large for a block gets a block of its own.
 */
#include "arena.h"

#include <stdint.h>

enum { FIRST_BYTES = 4 * 1024, BLOCK_BYTES = 64 * 1024, ALIGN_BYTES = 16 };

struct block {
    struct block *next;
    size_t used, capacity;
    void *kept; /* of the caller's, freed with the block */
    _Alignas(ALIGN_BYTES) uint8_t data[];
};

struct sl_arena {
    struct block *blocks; /* the first is the one that is cut up */
};

struct sl_arena *sl_arena_new(struct sl_err *err)
{
    return sl_alloc(sizeof(struct sl_arena), err);
}

void sl_arena_free(struct sl_arena *arena)
{
    while (arena && arena->blocks) {
        struct block *block = arena->blocks;
        arena->blocks = block->next;
        free(block->kept);
        free(block);
    }
    free(arena);
}

static struct block *add_block(struct sl_arena *arena, size_t capacity, struct sl_err *err)
{
    struct block *block = sl_alloc(sizeof(*block) + capacity, err);
    if (!block)
        return NULL;
    block->capacity = capacity;
    if (arena->blocks && capacity > BLOCK_BYTES) { /* keep cutting up the one in front */
        block->next = arena->blocks->next;
        arena->blocks->next = block;
    } else {
        block->next = arena->blocks;
        arena->blocks = block;
    }
    return block;
}

void *sl_arena_alloc(struct sl_arena *arena, size_t bytes, struct sl_err *err)
{
    if (bytes > SIZE_MAX / 2) {
        sl_fail(err, SL_E_NO_SPACE, "out of memory for %zu bytes", bytes);
        return NULL;
    }
    bytes = (bytes + ALIGN_BYTES - 1) & ~(size_t)(ALIGN_BYTES - 1);
    struct block *block = arena->blocks;
    if (!block || block->capacity - block->used < bytes) {
        size_t twice = SL_MIN(block ? 2 * block->capacity : 0, (size_t)BLOCK_BYTES);
        block = add_block(arena, SL_MAX(SL_MAX(bytes, twice), (size_t)FIRST_BYTES), err);
    }
    if (!block)
        return NULL;
    void *memory = block->data + block->used;
    block->used += bytes;
    return memory;
}

int sl_arena_keep(struct sl_arena *arena, void *memory, struct sl_err *err)
{
    struct block *block = sl_alloc(sizeof(*block), err);
    if (!block)
        return -1;
    block->kept = memory;
    struct block **where = arena->blocks ? &arena->blocks->next : &arena->blocks;
    block->next = *where;
    *where = block;
    return 0;
}

void sl_arena_adopt(struct sl_arena *arena, struct sl_arena *other)
{
    struct block **end = &arena->blocks;
    while (*end)
        end = &(*end)->next;
    *end = other->blocks;
    other->blocks = NULL;
}
