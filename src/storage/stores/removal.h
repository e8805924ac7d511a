/* Objects are removed, where their kind of store can. Any thread; blocks. */
#ifndef SL_REMOVAL_H
#define SL_REMOVAL_H

#include "source.h"

/** Remove the object of this URI; one that is not there is fine. -1: SL_E_USAGE where nothing can
 * be removed, errors of the store. */
int sl_removal_of(const char *uri, const struct sl_source_config *config, struct sl_err *err);

#endif
