/* Names that engines give to the files of ranks. */
#ifndef SL_RANK_NAME_H
#define SL_RANK_NAME_H

#include <stdbool.h>
#include <stddef.h>

/** Where in a name its rank stands. */
struct sl_rank_name {
    size_t prefix_bytes; /* of the name in front of the number, the folder included */
    const char *suffix;  /* behind it; into the name */
    unsigned long number;
};
/** The rank of an object of weights, or of an index of them, by its name; false: it has none. */
bool sl_rank_name(const char *name, struct sl_rank_name *rank);

#endif
