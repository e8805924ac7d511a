/*
 * One thread asks for one object after another, in the order in which they are read: its requests
 * are small, and so it is soon ahead of the readers. Nobody waits for it, unless the load is
 * pinned: how far it gets before the load ends is a matter of time.
 */
#include "prestage.h"

#include <stdlib.h>

#include "log.h"
#include "thread.h"

static void *ask(void *arg)
{
    struct sl_prestage *prestage = arg;
    struct sl_err err = SL_ERR_INIT;
    if (prestage->begin(prestage->store, prestage->names, prestage->count, prestage->stop, &err) <
            0 &&
        err.kind != SL_E_CANCELED)
        sl_log(SL_LOG_WARN, "%s; the load goes on without", err.message);
    return NULL;
}

void sl_prestage_start(struct sl_prestage *prestage, const struct sl_plan *plan)
{
    *prestage = (struct sl_prestage){.count = plan->source_count};
    if (!plan->source_count)
        return;
    prestage->store = sl_source_store(plan->sources[0].source);
    prestage->begin = sl_store_advice(prestage->store).prestage;
    if (!prestage->begin)
        return;
    prestage->names = sl_alloc_array(plan->source_count, sizeof(*prestage->names), NULL);
    prestage->stop = sl_cancel_new(NULL);
    if (!prestage->names || !prestage->stop)
        return;
    for (uint32_t i = 0; i < plan->source_count; i++)
        prestage->names[i] = sl_source_name(plan->sources[i].source);
    if (plan->fixed.on)
        ask(prestage);
    else
        prestage->started =
            sl_thread_start(&prestage->thread, "sl-prestage", ask, prestage, NULL) == 0;
}

void sl_prestage_end(struct sl_prestage *prestage)
{
    if (prestage->started) {
        sl_cancel_raise(prestage->stop, 0);
        pthread_join(prestage->thread, NULL);
    }
    sl_cancel_free(prestage->stop);
    free(prestage->names);
    *prestage = (struct sl_prestage){0};
}
