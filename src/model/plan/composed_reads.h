/*
 * Targets that are put together out of reads here and there, of objects that have sidecars: such
 * reads are answered out of whole ranges that were found right.
 */
#ifndef SL_COMPOSED_READS_H
#define SL_COMPOSED_READS_H

#include "mapping.h"
#include "progress.h"

/** Will sidecars prove every byte that a composed target is made of? Computation alone. */
bool sl_plan_proves_composed(const struct sl_plan *plan, const struct sl_mapping *mapping);
/** Before the first of them is read, by one thread; until the plan is freed. progress may be NULL,
 * and outlives the plan's reads. What was read of these objects before is compared. SL_E_INTEGRITY,
 * SL_E_NO_SPACE; as sl_source_read(). */
int sl_plan_guard_composed(const struct sl_plan *plan, struct sl_progress *progress,
                           struct sl_err *err);

#endif
