/*
 * Keyless signatures, checked offline: a certificate of minutes by a Fulcio of the trusted root,
 * its SCT, a time by an RFC 3161 authority or Rekor, inclusion in the log, identity and issuer.
 * Any thread.
 */
#ifndef SL_KEYLESS_H
#define SL_KEYLESS_H

#include "bundle.h"

/**
 * Everything but the signature over the DSSE encoding, which sl_bundle_verify() checks with
 * `public_key` of the leaf.
 *
 * @trust   SL_SIGNED_KEYLESS; identity, issuer and trusted_root_json are there.
 * @signer  out: the caller's, filled in whole.
 * @return  0, or -1: SL_E_INTEGRITY, code E_SIGNATURE, one sentence; SL_E_USAGE: the trusted root
 *          itself is wrong.
 */
int sl_keyless_verify(const struct sl_bundle *bundle, const struct sl_signing_trust *trust,
                      struct sl_signing_signer *signer, struct sl_err *err);

#endif
