/* Whose rights a volume is made with: rows of namespaces, and the credentials that it brings. */
#ifndef SL_VOLUME_RIGHTS_H
#define SL_VOLUME_RIGHTS_H

#include "caller_credentials.h"
#include "volume_request.h"

enum { SL_VOLUME_SALT = 32 };

/** A copy of `csi.namespaces`. */
struct sl_volume_rights {
    struct sl_node_spec_namespace *rows;
    size_t count;
};
int sl_volume_rights_copy(const struct sl_node_spec_csi *csi, struct sl_volume_rights *rights,
                          struct sl_err *err);
void sl_volume_rights_release(struct sl_volume_rights *rights);

/** What was granted. Release credentials. */
struct sl_volume_grant {
    size_t prefix_bytes;  /* of the URI */
    char sharing[64 * 2]; /* as of sl_node_files_options */
    bool has_credentials;
    struct sl_caller_credentials credentials;
};
/**
 * Find out whether a pod of a namespace may have what it asks for, and with which credentials.
 *
 * @rights                 the node's.
 * @request                what is asked for; its texts are not trusted.
 * @secrets, secret_count  what the volume brings.
 * @salt                   of this node, so that nobody can tell a guessed secret by a name.
 * @grant                  out: release its credentials. After a failure there are none.
 * @return                 0, or -1 with SL_E_AUTH: no, and what the config or the volume would
 *                         need; SL_E_USAGE.
 */
int sl_volume_rights_grant(const struct sl_volume_rights *rights,
                           const struct sl_volume_request *request,
                           const struct sl_volume_pair *secrets, size_t secret_count,
                           const uint8_t salt[SL_VOLUME_SALT], struct sl_volume_grant *grant,
                           struct sl_err *err);
/** For a volume that is not asked for yet: could any namespace have it? SL_E_AUTH. */
int sl_volume_rights_conceivable(const struct sl_volume_rights *rights,
                                 const struct sl_volume_request *request, struct sl_err *err);

#endif
