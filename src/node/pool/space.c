/* What spaces and sets of them are called: in configs, lists and refusals. */
#include "space.h"

#include <stdio.h>

const char *sl_space_name(unsigned space, char name[16])
{
    if (space == SL_SPACE_HOST)
        snprintf(name, 16, "host");
    else
        snprintf(name, 16, "cuda:%u", space - SL_SPACE_GPU);
    return name;
}

const char *sl_placement_name(uint32_t placement, char name[16])
{
    if (sl_placement_count(placement) == 1)
        return sl_space_name((unsigned)__builtin_ctz(placement), name);
    snprintf(name, 16, "cuda:all");
    return name;
}
