/*
 * Who waits for a driver. Nothing can end such a wait when a driver hangs: a process that has to
 * end asks here whether that is why it does not.
 */
#include "gpu_parts.h"

static pthread_mutex_t waits_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sl_gpu_wait *waits; /* guarded by it */

void sl_gpu_wait_begin(struct sl_gpu_wait *wait, int ordinal)
{
    SL_LOCKED(&waits_lock);
    wait->ordinal = ordinal;
    wait->next = waits;
    waits = wait;
}

void sl_gpu_wait_end(const struct sl_gpu_wait *wait)
{
    SL_LOCKED(&waits_lock);
    struct sl_gpu_wait **at = &waits;
    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
}

bool sl_gpu_is_waited_for(int *ordinal)
{
    SL_LOCKED(&waits_lock);
    if (waits)
        *ordinal = waits->ordinal;
    return waits;
}
