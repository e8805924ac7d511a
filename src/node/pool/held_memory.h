/*
 * Memory of models that this process has let go of, and that others may still have: descriptors,
 * mappings, a service manager's store. Told when the last of them has gone. Any thread; how:
 * inotify(7), F_SETLEASE of fcntl(2).
 */
#ifndef SL_HELD_MEMORY_H
#define SL_HELD_MEMORY_H

#include "pool_model.h"

struct sl_held_watcher;
/** Never fails for want of inotify: then what it knows comes from leases of files, and is less.
 * SL_E_NO_SPACE: no memory. */
struct sl_held_watcher *sl_held_watcher_new(struct sl_err *err);
/** After everything that it watches. */
void sl_held_watcher_free(struct sl_held_watcher *watcher);
SL_AUTO_DEFINE(sl_held_watcher)

struct sl_held_memory;
/**
 * Before a model is freed: its slabs on the host. Memory of a GPU cannot be watched, nor what the
 * system lends nothing to watch with: it counts as gone. NULL: there is nothing, or no memory to
 * watch it with. The caller's.
 */
struct sl_held_memory *sl_held_memory_watch(struct sl_held_watcher *watcher,
                                            const struct sl_pool_model *model);
/** Bytes that somebody still has; 0 for ever once it is 0. Not from two threads at once. It may be
 * the last who has them, and block for as long as the kernel takes to free them. */
uint64_t sl_held_memory_look(struct sl_held_memory *memory);
void sl_held_memory_free(struct sl_held_memory *memory);

#endif
