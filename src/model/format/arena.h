/* Memory that is freed all at once: what the tensors of an index point to. One thread at a
 * time; what fails does so with SL_E_NO_SPACE. */
#ifndef SL_ARENA_H
#define SL_ARENA_H

#include <stddef.h>

#include "err.h"
#include "mem.h"

struct sl_arena;
struct sl_arena *sl_arena_new(struct sl_err *err);
void sl_arena_free(struct sl_arena *arena);
SL_AUTO_DEFINE(sl_arena)

/** Zeroed, aligned for any type, alive until the arena is freed. NULL with SL_E_NO_SPACE. */
void *sl_arena_alloc(struct sl_arena *arena, size_t bytes, struct sl_err *err);

/** free() this memory with the arena. On failure it stays the caller's. */
int sl_arena_keep(struct sl_arena *arena, void *memory, struct sl_err *err);

/** All memory of `other` lives as long as arena from now on; `other` is empty. Cannot fail. */
void sl_arena_adopt(struct sl_arena *arena, struct sl_arena *other);

#endif
