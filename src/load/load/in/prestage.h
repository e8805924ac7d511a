/* Stores that are told of the objects of a load while it begins to read them. */
#ifndef SL_PRESTAGE_H
#define SL_PRESTAGE_H

#include <pthread.h>

#include "plan.h"

struct sl_prestage {
    struct sl_store *store;
    int (*begin)(struct sl_store *store, const char *const *names, size_t count,
                 struct sl_cancel *stop, struct sl_err *err); /* sl_store_advice.prestage */
    const char **names;                                       /* the plan's */
    size_t count;
    struct sl_cancel *stop;
    pthread_t thread;
    bool started;
};

/** Begin, if the plan's store wants it; the plan must live until sl_prestage_end(). Never fails: a
 * load does without, and a warning says so. */
void sl_prestage_start(struct sl_prestage *prestage, const struct sl_plan *plan);
/** What was not asked for yet is left out: it has been read. */
void sl_prestage_end(struct sl_prestage *prestage);

#endif
