/* Do two specs say the same? */
#ifndef SL_SPEC_DIGEST_H
#define SL_SPEC_DIGEST_H

#include <stdint.h>

#include "spec.h"

/** SHA-256 over every value of a spec, by the rows that parse it. SL_E_NO_SPACE. */
int sl_spec_digest(const struct sl_spec *spec, uint8_t digest[32], struct sl_err *err);

/** Of the node's rule for who signs it; zeros: there is none. */
int sl_spec_rule_digest(const struct sl_spec *spec, uint8_t digest[32], struct sl_err *err);
/** The same over where a model comes from, with which rights and with which keys. */
int sl_spec_origin_digest(const struct sl_spec *spec, uint8_t digest[32], struct sl_err *err);

#endif
