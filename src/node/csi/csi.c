/*
 * The driver from its beginning to its end.
 */
#include "csi.h"

#include <string.h>

#include "csi_parts.h"

static bool is_letter(char one)
{
    return (one >= 'a' && one <= 'z') || (one >= 'A' && one <= 'Z');
}

static int check_driver_name(const char *name, struct sl_err *err)
{
    size_t bytes = strlen(name);
    bool right =
        bytes && bytes <= SL_CSI_DRIVER_BYTES && is_letter(name[0]) && is_letter(name[bytes - 1]);
    for (size_t i = 0; i < bytes; i++)
        right &= is_letter(name[i]) || (name[i] >= '0' && name[i] <= '9') || name[i] == '.' ||
                 name[i] == '-';
    return right ? 0
                 : sl_fail(err, SL_E_USAGE,
                           "'%.80s' is not a driver name: at most %d letters, digits, '-' and '.', "
                           "the first and the last a letter",
                           name, SL_CSI_DRIVER_BYTES);
}

static int copy_config(struct sl_csi *csi, const struct sl_csi_config *config, struct sl_err *err)
{
    struct sl_csi_config *own = &csi->config;
    *own = (struct sl_csi_config){.wait_ms = config->wait_ms, .stop = config->stop};
    if (check_driver_name(config->driver_name, err) < 0 ||
        sl_csi_check_id("the node's id", config->node_id, SL_CSI_NODE_BYTES, err) < 0)
        return -1;
    own->driver_name = sl_strdup(config->driver_name, err);
    own->node_id = sl_strdup(config->node_id, err);
    own->socket = sl_strdup(config->socket, err);
    own->registration = sl_strdup(config->registration ? config->registration : "", err);
    own->version = sl_strdup(config->version, err);
    return own->driver_name && own->node_id && own->socket && own->registration && own->version
               ? 0
               : -1;
}

static void forget(struct sl_csi *csi)
{
    const char *const texts[] = {csi->config.driver_name, csi->config.node_id, csi->config.socket,
                                 csi->config.registration, csi->config.version};
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        free((char *)texts[i]);
    pthread_mutex_destroy(&csi->lock);
    free(csi);
}

struct sl_csi *sl_csi_open(struct sl_volumes *volumes, const struct sl_csi_config *config,
                           struct sl_err *err)
{
    struct sl_csi *csi = sl_alloc(sizeof(*csi), err);
    if (!csi)
        return NULL;
    csi->volumes = volumes;
    pthread_mutex_init(&csi->lock, NULL);
    if (copy_config(csi, config, err) == 0 &&
        (csi->services = sl_csi_serve(csi, SL_CSI_SERVICES, err)) &&
        (!csi->config.registration[0] ||
         (csi->registration = sl_csi_serve(csi, SL_CSI_REGISTRATION, err))))
        return csi;
    sl_grpc_close(csi->services, 0);
    forget(csi);
    return NULL;
}

void sl_csi_close(struct sl_csi *csi, unsigned drain_ms)
{
    if (!csi)
        return;
    sl_grpc_close(csi->registration, SL_MIN(drain_ms, SL_CSI_CALLS_DRAIN_MS));
    sl_grpc_close(csi->services, drain_ms);
    forget(csi);
}

int sl_csi_refused(struct sl_csi *csi, struct sl_err *err)
{
    SL_LOCKED(&csi->lock);
    if (csi->locked.refused.kind == SL_OK)
        return 0;
    if (err)
        *err = csi->locked.refused;
    return -1;
}
