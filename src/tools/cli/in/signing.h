/* What `sluice sign` does to one object: hash its ranges, write or check its sidecar. */
#ifndef SL_SIGNING_H
#define SL_SIGNING_H

#include "minisign_secret.h"
#include "sidecar.h"

struct sl_cli_signing {
    struct sl_store *store;
    const struct sl_source_config *config;
    const char *uri; /* of the store's prefix, with a slash at its end; or of the one object */
    bool single;
    uint64_t range_bytes;
    const struct sl_minisign_secret *secret; /* NULL: unsigned */
    const struct sl_minisign_key *key;       /* to check with; NULL: signatures are not looked at */
    uint64_t objects, ranges, bytes, wrong;  /* counts; wrong: ranges, when checking */
};

/** Hash an object's ranges with several connections and write its sidecar, which replaces one that
 * is there. */
int sl_cli_sign_object(struct sl_cli_signing *signing, const char *name, struct sl_err *err);
/** Read its sidecar and hold it against the object. SL_E_INTEGRITY names the first range that
 * differs. */
int sl_cli_check_object(struct sl_cli_signing *signing, const char *name, struct sl_err *err);
/** The URI with a suffix behind its name, which is before a query; free() it. NULL: SL_E_NO_SPACE.
 */
char *sl_cli_beside(const char *uri, const char *suffix, struct sl_err *err);
/** Write a small object, which replaces one that is there. Errors of the store. */
int sl_cli_put(const char *uri, const struct sl_source_config *config, const struct sl_buf *text,
               struct sl_err *err);

#endif
