/* `sluice inspect` of the signature of a model. */
#ifndef SL_INSPECT_SIGNATURE_H
#define SL_INSPECT_SIGNATURE_H

#include "json.h"
#include "source.h"

/** Does its name say so (model.sig)? */
bool sl_inspect_is_signature(const char *name);
/**
 * Read it and show who signed what and how much, none of which is verified.
 *
 * @json  gets one object; NULL: a table on stdout.
 * @return  0, or -1: SL_E_INTEGRITY, SL_E_FORMAT for what is not a signature of a model, errors of
 *          the store.
 */
int sl_inspect_signature(struct sl_store *store, const char *name, struct sl_json *json,
                         struct sl_err *err);

#endif
