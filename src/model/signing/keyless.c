/* Keyless signatures: to be written. */
#include "keyless.h"

int sl_keyless_verify(const struct sl_bundle *bundle, const struct sl_signing_trust *trust,
                      struct sl_signing_signer *signer, struct sl_err *err)
{
    (void)bundle, (void)trust, (void)signer;
    return sl_fail(err, SL_E_FORMAT, "keyless signatures cannot be checked yet");
}
