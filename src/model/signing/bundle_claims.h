/* What a bundle says of who signed it and when, of which nothing is verified: for people. Any
 * thread. */
#ifndef SL_BUNDLE_CLAIMS_H
#define SL_BUNDLE_CLAIMS_H

#include "bundle.h"

struct sl_bundle_claims {
    char *subject, *issuer; /* certificate: names (RFC 2253); keyless: identity and who vouched for
                               it; NULL: by a key */
    char fingerprint[65];   /* SHA-256 of the leaf's DER, hex; "": by a key */
    int64_t valid_from, valid_until; /* of the leaf, seconds since 1970; 0: none */
    int64_t logged_at;               /* by its entry in a log; 0: none */
};

/** Read them; 0, or -1 with SL_E_INTEGRITY, SL_E_NO_SPACE. Release the claims either way. */
int sl_bundle_claims_read(const struct sl_bundle *bundle, struct sl_bundle_claims *claims,
                          struct sl_err *err);
void sl_bundle_claims_release(struct sl_bundle_claims *claims);

#endif
