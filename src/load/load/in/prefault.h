/*
 * Memory of the destination that the system finds while the load has nothing else to do: until the
 * first bytes of a distant server come, and while a key is derived.
 */
#ifndef SL_PREFAULT_H
#define SL_PREFAULT_H

#include <pthread.h>

#include "plan.h"
#include "sink.h"

struct sl_prefault {
    struct sl_sink *sink;
    uint64_t until_ns;
    pthread_t thread;
    bool started;
};

/** Begin, if the plan's server is so far away that it pays and a processor is free. The sink must
 * live until sl_prefault_end(). Never fails: without it the writing finds the memory. */
void sl_prefault_start(struct sl_prefault *prefault, struct sl_sink *sink,
                       const struct sl_plan *plan);
void sl_prefault_end(struct sl_prefault *prefault);

/** On the calling thread, until the plan's key is there. */
void sl_prefault_during_key(struct sl_sink *sink, const struct sl_plan *plan);

#endif
