/*
 * Messages to the driver. The first byte of an input chooses the call, the rest is its message as
 * it comes: the driver answers or refuses it, and what reaches the volumes is within its limits.
 */
#include <stdlib.h>
#include <string.h>

#include "csi_parts.h"
#include "log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum {
    ROW_COUNT = 0
#define SL_CSI_METHOD(...) +1
#include "csi_methods.def"
#undef SL_CSI_METHOD
};

/* The volumes, by the linker's --wrap. */
int __wrap_sl_volumes_publish(struct sl_volumes *volumes, const struct sl_volume_ask *ask,
                              struct sl_cancel *cancel, struct sl_err *err);
int __wrap_sl_volumes_unpublish(struct sl_volumes *volumes, const char *volume_id,
                                const char *target, struct sl_err *err);
int __wrap_sl_volumes_stats(struct sl_volumes *volumes, const char *volume_id, const char *path,
                            struct sl_volume_stats *stats, struct sl_err *err);
int __wrap_sl_volumes_check(struct sl_volumes *volumes, const struct sl_volume_pair *attributes,
                            size_t count, struct sl_err *err);
bool __wrap_sl_volumes_ready(struct sl_volumes *volumes, struct sl_err *why_not);

static void check_text(const char *text, size_t limit)
{
    size_t bytes = strnlen(text, limit + 1);
    if (!bytes || bytes > limit || !sl_is_utf8(text, bytes) || strpbrk(text, "\n\r\x1b\x7f"))
        abort();
}

static void check_pairs(const struct sl_volume_pair *pairs, size_t count, size_t limit)
{
    if (count > SL_CSI_PAIRS_MAX)
        abort();
    for (size_t i = 0; i < count; i++) {
        check_text(pairs[i].key, SL_CSI_KEY_BYTES);
        if (strlen(pairs[i].value) > limit || (i && strcmp(pairs[i - 1].key, pairs[i].key) >= 0))
            abort();
    }
}

static void check_target(const char *volume_id, const char *target)
{
    check_text(volume_id, SL_CSI_ID_BYTES);
    check_text(target, SL_CSI_PATH_BYTES);
    if (target[0] != '/' || strstr(target, "/../"))
        abort();
}

int __wrap_sl_volumes_publish(struct sl_volumes *volumes, const struct sl_volume_ask *ask,
                              struct sl_cancel *cancel, struct sl_err *err)
{
    (void)volumes, (void)cancel, (void)err;
    check_target(ask->volume_id, ask->target);
    check_pairs(ask->attributes, ask->attribute_count, SL_CSI_VALUE_BYTES);
    check_pairs(ask->secrets, ask->secret_count, SL_CSI_SECRET_BYTES);
    if (strlen(ask->mount_group) > SL_CSI_ID_BYTES)
        abort();
    return 0;
}

int __wrap_sl_volumes_unpublish(struct sl_volumes *volumes, const char *volume_id,
                                const char *target, struct sl_err *err)
{
    (void)volumes, (void)err;
    check_target(volume_id, target);
    return 0;
}

int __wrap_sl_volumes_stats(struct sl_volumes *volumes, const char *volume_id, const char *path,
                            struct sl_volume_stats *stats, struct sl_err *err)
{
    (void)volumes, (void)stats, (void)err;
    check_text(volume_id, SL_CSI_ID_BYTES);
    check_text(path, SL_CSI_PATH_BYTES);
    return 0;
}

int __wrap_sl_volumes_check(struct sl_volumes *volumes, const struct sl_volume_pair *attributes,
                            size_t count, struct sl_err *err)
{
    (void)volumes, (void)err;
    check_pairs(attributes, count, SL_CSI_VALUE_BYTES);
    return 0;
}

bool __wrap_sl_volumes_ready(struct sl_volumes *volumes, struct sl_err *why_not)
{
    (void)volumes, (void)why_not;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct sl_csi csi = {.lock = PTHREAD_MUTEX_INITIALIZER,
                                .config = {.driver_name = "fuzz",
                                           .node_id = "node",
                                           .socket = "/s",
                                           .registration = "/r",
                                           .version = "1"}};
    struct sl_grpc_call call = {.request = data + 1,
                                .deadline_ns = UINT64_MAX,
                                .response = SL_BUF_INIT(SL_GRPC_RESPONSE_BYTES)};
    if (!bytes)
        return 0;
    sl_log_setup(SL_LOG_ERROR, false);
    call.request_bytes = bytes - 1;
    enum sl_grpc_code code = sl_csi_call_row(&csi, data[0] % ROW_COUNT, &call);
    if ((unsigned)code >= SL_GRPC_CODE_COUNT || (code != SL_GRPC_OK && !call.text[0]))
        abort();
    csi.locked.refused.kind = SL_OK;
    sl_buf_release(&call.response);
    return 0;
}
