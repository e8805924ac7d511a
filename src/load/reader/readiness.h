/*
 * When is a tensor complete? Who reads a plan into memory that others look at while it goes on asks
 * this, with the events of the run (stage_device.h). Any thread may bring events.
 */
#ifndef SL_READINESS_H
#define SL_READINESS_H

#include "plan.h"
#include "stage_device.h"

/** Something that becomes complete: where its bytes land, and where they come from. */
struct sl_readiness_item {
    uint32_t file, source;
    uint64_t offset, bytes; /* in the file; bytes: that will land */
    uint64_t begin, end;    /* in the source: checks of any of these are waited for */
};
struct sl_readiness;
/**
 * Find out when each of these items is complete.
 *
 * @plan    borrowed until the free.
 * @items   `count` of them, sorted by file and offset; copied.
 * @ready   called with `arg` and the item's number, once for each that is complete: from whatever
 *          thread brings the last event, one at a time; from within this call for what has nothing
 *          to wait for.
 * @return  free it. NULL: SL_E_NO_SPACE.
 */
struct sl_readiness *sl_readiness_new(const struct sl_plan *plan,
                                      const struct sl_readiness_item *items, size_t count,
                                      void (*ready)(void *arg, size_t item), void *arg,
                                      struct sl_err *err);
void sl_readiness_free(struct sl_readiness *readiness);
SL_AUTO_DEFINE(sl_readiness)
struct sl_stage_events sl_readiness_events(struct sl_readiness *readiness);
/** How many are not complete. */
size_t sl_readiness_left(struct sl_readiness *readiness);

#endif
