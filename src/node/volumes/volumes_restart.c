/*
 * After a restart the records say what was published, and the mounts themselves whether it is. A
 * reference is taken for each before anything can be evicted. What was broken off is taken away:
 * nobody was told that it is there, and the kubelet asks for it again. Nothing else is taken from a
 * pod unless it is proven wrong: what cannot be looked at just now stays, and is looked at later. A
 * mount of ours that has no record, and a volume whose pod has gone, are nobody's: the kubelet does
 * not promise to say so.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "log.h"
#include "metrics.h"
#include "volumes_parts.h"

enum { SWEEP_MS = 30000, ORPHANS_MAX = 4096 };

/* ---- records -------------------------------------------------------------------------------- */

static int adopt(struct sl_volumes *volumes, const struct sl_volume_record *record,
                 struct sl_model_ref *ref, struct sl_err *err)
{
    struct volume *volume = sl_alloc(sizeof(*volume), err);
    if (!volume) {
        sl_registry_release(volumes->node->registry, ref);
        return -1;
    }
    volume->record = *record;
    volume->ref = ref;
    volume->state = VOLUME_PUBLISHED;
    VOLUMES_LOCKED(volumes);
    volume->next = volumes->locked.volumes;
    volumes->locked.volumes = volume;
    sl_metric_add(SL_M_VOLUMES, 1);
    return 0;
}

static struct sl_model_ref *hold(struct sl_volumes *volumes, const struct sl_volume_record *record,
                                 bool whole)
{
    char who[SL_REF_WHO_BYTES];
    volumes_who(record, who);
    return record->pool
               ? NULL
               : sl_registry_hold_version(volumes->node->registry, record->model, record->version,
                                          whole, SL_REF_VOLUME, who, NULL);
}

/* Is what the record says not so any more? why tells. */
static bool is_wrong(struct sl_volumes *volumes, const struct sl_volume_record *record,
                     struct sl_err *why)
{
    sl_autoclose int source_fd = volumes_source(volumes, record, why);
    if (source_fd < 0)
        return volumes_is_proof(why);
    enum sl_mounted at = sl_mounting_look(&volumes->mounting, record->target, source_fd);
    if (at == SL_MOUNTED_RIGHT || at == SL_MOUNTED_UNKNOWN)
        return false;
    sl_fail(why, SL_E_NOT_FOUND, "it was not mounted completely");
    return true;
}

/* Its model, which is whole, or of which it cannot be told; false: it is proven not to be. */
static bool is_there(struct sl_volumes *volumes, const struct sl_volume_record *record,
                     struct sl_model_ref **ref, struct sl_err *why)
{
    uint64_t bytes;
    const struct sl_node *node = volumes->node;
    *ref = hold(volumes, record, true);
    if (record->pool || *ref)
        return true;
    enum sl_wholeness is =
        sl_directory_holder_look(node->directory, record->model, record->version, &bytes);
    if (is == SL_WHOLENESS_NOT) {
        sl_fail(why, SL_E_NOT_FOUND, "version %s of '%s' is not whole", record->version,
                record->model);
        return false;
    }
    const struct sl_registry_found found = {.name = record->model,
                                            .version = record->version,
                                            .bytes = bytes,
                                            .ready = is == SL_WHOLENESS_WHOLE};
    sl_registry_adopt(node->registry, sl_directory_holder_ops(node->directory), &found, NULL);
    *ref = hold(volumes, record, false); /* as the node found it, or as it is adopted here */
    return true;
}

static int take_record(void *arg, const struct sl_volume_record *record, struct sl_err *err)
{
    struct sl_volumes *volumes = arg;
    struct sl_model_ref *ref;
    struct sl_err why = SL_ERR_INIT;
    if (sl_mounting_check(&volumes->mounting, record->target, &why) < 0) {
        sl_log(SL_LOG_WARN, "removing the record of a volume: %s", why.message);
        return sl_volume_record_remove(volumes->records_fd, record, err);
    }
    if (!is_wrong(volumes, record, &why) && is_there(volumes, record, &ref, &why))
        return adopt(volumes, record, ref, err);
    sl_log(SL_LOG_INFO, "removing volume '%.80s' at '%s': %s", record->id, record->target,
           why.message);
    struct sl_err stays = SL_ERR_INIT;
    if (volumes_remove(volumes, record, &stays) < 0)
        sl_log(SL_LOG_WARN, "cannot remove the rest of volume '%.80s': %s", record->id,
               stays.message);
    return 0;
}

/* ---- mounts without a record ---------------------------------------------------------------- */

struct orphans {
    struct sl_volumes *volumes;
    char *root; /* of the models in their file system, with a slash */
    dev_t device;
    struct sl_list targets;
    struct sl_err err;
};

static bool is_below(const char *path, const char *folder)
{
    size_t bytes = strlen(folder);
    return strncmp(path, folder, bytes) == 0 && path[bytes] == '/';
}

/* The mount that the models are on: the last one whose point is a beginning of their path. */
static void note_root(void *arg, const struct sl_mount_line *line)
{
    struct orphans *orphans = arg;
    const char *models = sl_directory_holder_path(orphans->volumes->node->directory);
    bool whole = strcmp(line->point, "/") == 0;
    if (line->device != orphans->device ||
        (!whole && strcmp(models, line->point) != 0 && !is_below(models, line->point)))
        return;
    const char *rest = models + (whole ? 0 : strlen(line->point));
    free(orphans->root);
    orphans->root =
        sl_asprintf(&orphans->err, "%s%s", strcmp(line->root, "/") == 0 ? "" : line->root, rest);
}

static void note_orphan(void *arg, const struct sl_mount_line *line)
{
    struct orphans *orphans = arg;
    const struct sl_mounting *mounting = &orphans->volumes->mounting;
    if (line->device != orphans->device || !is_below(line->root, orphans->root) ||
        !is_below(line->point, mounting->real) || orphans->targets.count >= ORPHANS_MAX)
        return;
    sl_autofree char *target =
        sl_asprintf(&orphans->err, "%s%s", mounting->path, line->point + strlen(mounting->real));
    VOLUMES_LOCKED(orphans->volumes);
    if (target && !volumes_find(orphans->volumes, target))
        sl_list_add(&orphans->targets, target, strlen(target), &orphans->err);
}

static int clean_orphans(struct sl_volumes *volumes, struct sl_err *err)
{
    struct orphans orphans = {.volumes = volumes};
    struct stat status;
    if (fstat(volumes->records_fd, &status) < 0)
        return 0;
    orphans.device = status.st_dev;
    int done = sl_mount_table_each(note_root, &orphans, err);
    if (done == 0 && orphans.root)
        done = sl_mount_table_each(note_orphan, &orphans, err);
    for (size_t i = 0; i < orphans.targets.count; i++) {
        const char *target = orphans.targets.items[i];
        struct sl_err why = SL_ERR_INIT;
        sl_metric_add(SL_M_VOLUME_ORPHANS, 1);
        if (sl_mounting_check(&volumes->mounting, target, &why) == 0 &&
            sl_mounting_undo(&volumes->mounting, target, &orphans.device, 1, &why) == 0)
            sl_log(SL_LOG_INFO, "removed a mount at '%s' that belongs to no volume", target);
        else
            sl_log(SL_LOG_WARN, "cannot remove a mount that belongs to no volume: %s", why.message);
        free(orphans.targets.items[i]);
    }
    free(orphans.targets.items);
    free(orphans.root);
    if (done == 0 && orphans.err.kind) {
        if (err)
            *err = orphans.err;
        return -1;
    }
    return done;
}

int volumes_take_over(struct sl_volumes *volumes, struct sl_err *err)
{
    if (sl_volume_record_each(volumes->records_fd, take_record, volumes, err) < 0)
        return -1;
    return clean_orphans(volumes, err);
}

/* ---- pods that have gone -------------------------------------------------------------------- */

/* The kubelet keeps a folder for a pod as long as it knows it; a target that is nowhere below one
 * goes with the folder that holds it. */
static bool pod_is_gone(const struct sl_volumes *volumes, const struct sl_volume_record *record)
{
    const char *relative = record->target + strlen(volumes->mounting.path) + 1;
    const char *end = strrchr(relative, '/');
    if (strncmp(relative, "pods/", 5) == 0 && strchr(relative + 5, '/'))
        end = strchr(relative + 5, '/');
    sl_autofree char *folder = end ? sl_strndup(relative, (size_t)(end - relative), NULL) : NULL;
    return folder && sl_mounting_lacks_folder(&volumes->mounting, folder);
}

/* One whose pod has gone, claimed. */
static struct volume *take_gone(struct sl_volumes *volumes)
{
    VOLUMES_LOCKED(volumes);
    for (struct volume *at = volumes->locked.volumes; at; at = at->next)
        if (at->state == VOLUME_PUBLISHED && pod_is_gone(volumes, &at->record)) {
            volumes_set(at, VOLUME_BUSY);
            return at;
        }
    return NULL;
}

void volumes_sweep(struct sl_volumes *volumes)
{
    for (struct volume *volume; (volume = take_gone(volumes));) {
        struct sl_err why = SL_ERR_INIT;
        sl_log(SL_LOG_INFO, "removing volume '%.80s': its pod '%s/%s' is gone", volume->record.id,
               volume->record.pod_namespace, volume->record.pod);
        if (volumes_remove(volumes, &volume->record, &why) < 0)
            sl_log(SL_LOG_WARN, "cannot remove the rest of it: %s", why.message);
        sl_metric_add(SL_M_VOLUME_ORPHANS, 1);
        volumes_forget(volumes, volume);
    }
    volumes_drop_credentials(volumes);
}

void *volumes_sweeper(void *arg)
{
    struct sl_volumes *volumes = arg;
    while (sl_sleep_ms(SWEEP_MS, volumes->ending, NULL) == 0)
        volumes_sweep(volumes);
    return NULL;
}
