/*
 * Credentials that a caller brought for one model. They are kept in the memory of this process
 * alone, under the model's name, which is all that its spec holds: no spec, manifest, log line or
 * metric has them. Any thread.
 */
#ifndef SL_CALLER_CREDENTIALS_H
#define SL_CALLER_CREDENTIALS_H

#include <stdbool.h>

#include "err.h"

/** Either keys, or a role with the token that is exchanged for them; the rest is NULL. */
struct sl_caller_credentials {
    char *access_key, *secret_key, *session_token;
    char *role_arn, *identity_token;
};
/** Wipes and frees the texts; zeroed afterwards. */
void sl_caller_credentials_release(struct sl_caller_credentials *credentials);
/** Copy them, in place of what was kept under the name. SL_E_NO_SPACE. */
int sl_caller_credentials_keep(const char *name, const struct sl_caller_credentials *credentials,
                               struct sl_err *err);
/** A copy, to be released. SL_E_AUTH: nothing is kept under the name; SL_E_NO_SPACE. */
int sl_caller_credentials_get(const char *name, struct sl_caller_credentials *credentials,
                              struct sl_err *err);
/** Wipe what is kept under the name; nothing is fine. */
void sl_caller_credentials_drop(const char *name);

#endif
