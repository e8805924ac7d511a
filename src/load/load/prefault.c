/*
 * New connections to a server 30 ms away bring nothing for 60 ms: one round trip to connect, one to
 * ask. Zeroing pages and finding them is half of what a tmpfs costs, and in that time a processor
 * does it for a tenth of a gigabyte. It is a guess from the time that the server took to begin its
 * answers so far, and ends by the clock, since it must never hold back a writer for long.
 */
#include "prefault.h"

#include <string.h>

#include "thread.h"

enum {
    WAITS = 2,                    /* to connect, to ask */
    FILE_BYTES_MIN = 1024 * 1024, /* smaller ones are opened for nothing */
};
#define NEAR_NS (8 * SL_NS_PER_MS)
#define MOST_NS (200 * SL_NS_PER_MS)

static struct sl_counter lengthened; /* by tests: the least, in ns */

void sl_prefault_set_least(uint64_t ns)
{
    sl_counter_add(&lengthened, ns - sl_counter_get(&lengthened));
}

static bool is_early(const void *arg)
{
    return sl_now_ns() < ((const struct sl_prefault *)arg)->until_ns;
}

static void *allocate(void *arg)
{
    struct sl_prefault *ahead = arg;
    sl_sink_allocate(ahead->sink, is_early, ahead);
    return NULL;
}

void sl_prefault_start(struct sl_prefault *ahead, struct sl_sink *sink, const struct sl_plan *plan)
{
    *ahead = (struct sl_prefault){.sink = sink};
    if (!sink->ops->allocate || !plan->source_count ||
        plan->sink_bytes / SL_MAX(plan->file_count, (size_t)1) < FILE_BYTES_MIN ||
        sl_cpu_count() < 2)
        return;
    uint64_t first_ns = sl_store_first_byte_ns(sl_source_store(plan->sources[0].source));
    if (first_ns < NEAR_NS)
        return;
    uint64_t most_ns = SL_MIN(WAITS * first_ns, (uint64_t)MOST_NS);
    ahead->until_ns = sl_now_ns() + SL_MAX(most_ns, sl_counter_get(&lengthened));
    ahead->started = sl_thread_start(&ahead->thread, "sluice-ahead", allocate, ahead, NULL) == 0;
}

void sl_prefault_end(struct sl_prefault *ahead)
{
    if (ahead->started)
        pthread_join(ahead->thread, NULL);
    ahead->started = false;
}

static bool is_key_awaited(const void *plan)
{
    return sl_plan_keys_busy(plan);
}

void sl_prefault_during_key(struct sl_sink *sink, const struct sl_plan *plan)
{
    if (sl_cpu_count() > 1)
        sl_sink_allocate(sink, is_key_awaited, plan);
}
