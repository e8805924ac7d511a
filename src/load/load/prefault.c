/*
 * New connections to a server 30 ms away bring nothing for 60 ms: one round trip to connect, one to
 * ask. Zeroing pages and finding them is half of what a tmpfs costs, and in that time a processor
 * does it for a tenth of a gigabyte. It is a guess from the time that the server took to begin its
 * answers so far, and ends by the clock, since it must never hold back a writer for long.
 */
#include "prefault.h"

#include "thread.h"

enum {
    WAITS = 2,                    /* to connect, to ask */
    FILE_BYTES_MIN = 1024 * 1024, /* smaller ones are opened for nothing */
};
#define NEAR_NS (8 * SL_NS_PER_MS)
#define MOST_NS (200 * SL_NS_PER_MS)

static bool is_early(const void *arg)
{
    return sl_now_ns() < ((const struct sl_prefault *)arg)->until_ns;
}

static void *allocate(void *arg)
{
    struct sl_prefault *prefault = arg;
    sl_sink_allocate(prefault->sink, is_early, prefault);
    return NULL;
}

void sl_prefault_start(struct sl_prefault *prefault, struct sl_sink *sink,
                       const struct sl_plan *plan)
{
    *prefault = (struct sl_prefault){.sink = sink};
    if (!sink->ops->allocate || !plan->source_count ||
        plan->sink_bytes / SL_MAX(plan->file_count, (size_t)1) < FILE_BYTES_MIN ||
        sl_cpu_count() < 2)
        return;
    uint64_t first_ns = sl_store_first_byte_ns(sl_source_store(plan->sources[0].source));
    if (first_ns < NEAR_NS)
        return;
    prefault->until_ns = sl_now_ns() + SL_MIN(WAITS * first_ns, (uint64_t)MOST_NS);
    prefault->started =
        sl_thread_start(&prefault->thread, "sluice-prefault", allocate, prefault, NULL) == 0;
}

void sl_prefault_end(struct sl_prefault *prefault)
{
    if (prefault->started)
        pthread_join(prefault->thread, NULL);
    prefault->started = false;
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
