/* The volumes that are known, their states, and what is bound for one. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "metrics.h"
#include "node_folder.h"
#include "volumes_parts.h"

void volumes_set(struct volume *volume, enum volume_state to)
{
#ifndef NDEBUG
    static const unsigned steps[] = {
        [VOLUME_ASKED] = 1u << VOLUME_WAITS | 1u << VOLUME_BUSY,
        [VOLUME_WAITS] = 1u << VOLUME_ASKED,
        [VOLUME_BUSY] = 1u << VOLUME_PUBLISHED,
        [VOLUME_PUBLISHED] = 1u << VOLUME_BUSY,
    };
    assert(steps[volume->state] & 1u << to);
#endif
    volume->state = to;
}

#ifndef NDEBUG
void volumes_check(const struct sl_volumes *volumes)
{
    unsigned all = 0;
    for (const struct volume *at = volumes->locked.volumes; at; at = at->next) {
        unsigned own = at->state == VOLUME_WAITS;
        for (const struct volume *other = at->next; other; other = other->next) {
            assert(strcmp(other->record.target, at->record.target) != 0); /* 1 */
            own += other->state == VOLUME_WAITS &&
                   strcmp(other->record.pod_namespace, at->record.pod_namespace) == 0;
        }
        all += at->state == VOLUME_WAITS;
        assert(own <= SL_VOLUMES_WAITS_SHARE); /* 2 */
        assert(at->state != VOLUME_PUBLISHED ||
               !(at->has_credentials || (at->record.pool && at->ref))); /* 3 */
    }
    assert(all <= SL_VOLUMES_WAITS_MAX); /* 2 */
}
#endif

struct volume *volumes_find(struct sl_volumes *volumes, const char *target)
{
    for (struct volume *at = volumes->locked.volumes; at; at = at->next)
        if (strcmp(at->record.target, target) == 0)
            return at;
    return NULL;
}

void volumes_forget(struct sl_volumes *volumes, struct volume *volume)
{
    if (volumes_is_mounted(volume))
        sl_metric_add(SL_M_VOLUMES, -1);
    {
        VOLUMES_LOCKED(volumes);
        struct volume **at = &volumes->locked.volumes;
        while (*at != volume)
            at = &(*at)->next;
        *at = volume->next;
    }
    sl_registry_release(volumes->node->registry, volume->ref);
    free(volume);
}

/* The folder of the pool's socket, which is not there while the daemon is not. */
int volumes_open_pool_folder(const struct sl_volumes *volumes, struct sl_err *err)
{
    if (!volumes->pool_socket)
        return sl_fail(err, SL_E_USAGE,
                       "this node offers no pool: its config does not set pool.socket");
    const char *slash = strrchr(volumes->pool_socket, '/');
    sl_autofree char *folder =
        sl_strndup(volumes->pool_socket, (size_t)SL_MAX(slash - volumes->pool_socket, 1), err);
    bool exposed;
    return folder ? sl_node_folder_reach(folder, &exposed, err) : -1;
}

int volumes_source(struct sl_volumes *volumes, const struct sl_volume_record *record,
                   struct sl_err *err)
{
    return record->pool ? volumes_open_pool_folder(volumes, err)
                        : sl_directory_holder_version(volumes->node->directory, record->model,
                                                      record->version, err);
}

bool volumes_is_proof(const struct sl_err *why)
{
    return why->kind == SL_E_NOT_FOUND || why->kind == SL_E_USAGE || *why->code;
}

void volumes_who(const struct sl_volume_record *record, char who[SL_REF_WHO_BYTES])
{
    if (*record->pod)
        snprintf(who, SL_REF_WHO_BYTES, "pod %.40s/%.48s", record->pod_namespace, record->pod);
    else
        snprintf(who, SL_REF_WHO_BYTES, "volume %.80s", record->id);
}

int volumes_remove(struct sl_volumes *volumes, const struct sl_volume_record *record,
                   struct sl_err *err)
{
    if (sl_mounting_undo(&volumes->mounting, record->target, NULL, 0, err) < 0)
        return -1;
    return sl_volume_record_remove(volumes->records_fd, record, err);
}
