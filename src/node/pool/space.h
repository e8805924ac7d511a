/*
 * Spaces: the kinds of memory that models lie in, each with a budget of its own. A space is a
 * number: the host, or a GPU as this process counts them. Where a model lies is a set of spaces, a
 * bit each: one of them, or those of all GPUs, however many there are. Any thread.
 */
#ifndef SL_SPACE_H
#define SL_SPACE_H

#include <stdbool.h>
#include <stdint.h>

enum { SL_SPACE_HOST = 0, SL_SPACE_GPU = 1, SL_SPACES_MAX = 17 };

/** Of sets of spaces. */
#define SL_PLACEMENT(space) (UINT32_C(1) << (space))
#define SL_PLACEMENT_GPUS   ((SL_PLACEMENT(SL_SPACES_MAX) - 1) & ~SL_PLACEMENT(SL_SPACE_HOST))

static inline bool sl_placement_has(uint32_t placement, unsigned space)
{
    return placement & SL_PLACEMENT(space);
}
static inline unsigned sl_placement_count(uint32_t placement)
{
    return (unsigned)__builtin_popcount(placement);
}
/** "host", "cuda:0"; returns name. */
const char *sl_space_name(unsigned space, char name[16]);
/** The same of a set, "cuda:all" of all GPUs. */
const char *sl_placement_name(uint32_t placement, char name[16]);

#endif
