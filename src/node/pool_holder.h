/* Models as slabs of shareable memory: a model that is held is a struct sl_pool_model. What a load
 * brought goes with it if it fails, and everything goes with the process. */
#ifndef SL_POOL_HOLDER_H
#define SL_POOL_HOLDER_H

#include "holder.h"

struct sl_pool_holder;
/** huge_directory: a tmpfs with huge pages for slabs, or NULL: memfds. SL_E_NO_SPACE. */
struct sl_pool_holder *sl_pool_holder_new(const char *huge_directory, struct sl_err *err);
void sl_pool_holder_free(struct sl_pool_holder *holder);
SL_AUTO_DEFINE(sl_pool_holder)
/** As long as the holder lives. Bodies are counts of struct sl_pool_model. */
const struct sl_holder *sl_pool_holder_ops(struct sl_pool_holder *holder);

#endif
