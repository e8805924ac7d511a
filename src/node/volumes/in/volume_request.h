/* What a publish asks for, out of attributes that any author of a pod may write. */
#ifndef SL_VOLUME_REQUEST_H
#define SL_VOLUME_REQUEST_H

#include "volumes.h"

enum {
    SL_VOLUME_PAIRS_MAX = 64,
    SL_VOLUME_TEXT_MAX = 1024, /* of an attribute */
    SL_VOLUME_TOKENS_MAX = 64 * 1024,
};

/** Borrows every text of the attributes; NULL: not given. */
struct sl_volume_request {
    const char *model, *uri; /* one of them, unless pool */
    bool pool;
    const char *pod, *pod_namespace, *pod_uid, *account; /* as the kubelet says */
    const char *tokens; /* of the pod's service account, JSON: a secret */
};
/**
 * Read the attributes of a volume, with what the kubelet adds about the pod. SL_E_USAGE: what is
 * not known, not taken or missing, in one sentence.
 */
int sl_volume_request_read(const struct sl_volume_pair *attributes, size_t count,
                           struct sl_volume_request *request, struct sl_err *err);
/** For the publish of a volume: the pod must be known. As above. */
int sl_volume_request_check_pod(const struct sl_volume_request *request, const char *driver,
                                struct sl_err *err);

#endif
