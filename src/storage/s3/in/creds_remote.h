/* Services that give out temporary credentials: STS, container endpoints, instance metadata. */
#ifndef SL_CREDS_REMOTE_H
#define SL_CREDS_REMOTE_H

#include "creds.h"

/** Web identity: a token is exchanged for keys at an STS. Strings are borrowed. */
struct sl_web_identity {
    const char *role_arn, *session_name;
    const char *token, *token_file; /* token NULL: what the file holds */
    const char *endpoint;           /* NULL: Amazon's of the region */
    const char *region;
};
/**
 * Exchange a token for keys.
 *
 * @identity  as whom; borrowed for the call.
 * @tls       NULL: the system's certificates.
 * @cancel    ends the wait; NULL: nothing does.
 * @key       zeroed before; out.
 * @return    0, or -1: SL_E_AUTH, also where nobody answers; SL_E_CANCELED, SL_E_NO_SPACE.
 *
 * Tries again what may pass. Blocks.
 */
int sl_creds_from_sts(const struct sl_web_identity *identity, const struct sl_tls_options *tls,
                      struct sl_cancel *cancel, struct sl_key *key, struct sl_err *err);

/** From AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI, one of which is set. */
int sl_creds_from_container(struct sl_cancel *cancel, struct sl_key *key, struct sl_err *err);

/** Instance metadata v2. *none: nobody answers there, or the machine has no role (0 is returned,
 * key stays as it is). */
int sl_creds_from_instance(struct sl_cancel *cancel, struct sl_key *key, bool *none,
                           struct sl_err *err);

#endif
