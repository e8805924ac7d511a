/* What is published, in a file each on the node's tmpfs, so that the next daemon knows it. */
#ifndef SL_VOLUME_RECORD_H
#define SL_VOLUME_RECORD_H

#include "holder.h"
#include "mounting.h"

enum { SL_VOLUME_ID_MAX = 1024, SL_VOLUME_NAME_MAX = 254, SL_VOLUME_DIGEST = 32 };

/** No secrets are in it. */
struct sl_volume_record {
    char id[SL_VOLUME_ID_MAX], target[SL_TARGET_MAX];
    char model[64], version[SL_VERSION_TEXT]; /* "" of the pool's folder */
    bool pool;
    char pod[SL_VOLUME_NAME_MAX], pod_namespace[SL_VOLUME_NAME_MAX], pod_uid[SL_VOLUME_NAME_MAX];
    uint8_t arguments[SL_VOLUME_DIGEST]; /* of what was asked for, secrets left out */
};
/** Written beside its place and renamed to it. SL_E_NO_SPACE. */
int sl_volume_record_write(int folder_fd, const struct sl_volume_record *record,
                           struct sl_err *err);
/** One that is not there is fine. */
int sl_volume_record_remove(int folder_fd, const struct sl_volume_record *record,
                            struct sl_err *err);
/** Every good one. What is not ours, or says what cannot be, is logged and removed. */
int sl_volume_record_each(int folder_fd,
                          int (*each)(void *arg, const struct sl_volume_record *record,
                                      struct sl_err *err),
                          void *arg, struct sl_err *err);
/** Parse one: SL_E_FORMAT. */
int sl_volume_record_parse(const char *text, size_t bytes, struct sl_volume_record *record,
                           struct sl_err *err);

#endif
