/* After a restart: copies of a model on every GPU, which were kept one by one, are one model again.
 */
#ifndef SL_REJOIN_H
#define SL_REJOIN_H

#include "pool_model.h"

/**
 * Join what belongs together: what became a copy of another is NULL in the list then. A model on
 * all GPUs that has not a copy on each of so many, in their order, is not whole, as
 * sl_rejoin_is_whole() tells.
 */
void sl_rejoin(struct sl_pool_model **models, size_t count, unsigned gpu_count);
bool sl_rejoin_is_whole(struct sl_pool_model *model, unsigned gpu_count);

#endif
