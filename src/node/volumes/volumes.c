/*
 * A publish, in this order: whose rights, which model, its reference, the record, the mount. So a
 * record is there before its mount, and whatever is broken off can be found and taken away. An
 * unpublish goes the other way, and the reference goes last: nothing is evicted below a mount.
 *
 * One call at a time works with a target; a second one is told to come again. Different targets of
 * one volume (pods that share a persistent volume) do not wait for each other.
 */
#include "volumes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "log.h"
#include "metrics.h"
#include "node_folder.h"
#include "tree.h"
#include "volumes_parts.h"

enum { ANSWER_MS = 200 /* of wait_ms: for the mount and the answer */ };
#define RECORDS ".volumes"
#define SALT    "salt"

/* ---- the list ------------------------------------------------------------------------------- */

static int fail_busy(const char *target, struct sl_err *err)
{
    sl_fail_code(err, SL_E_TIMEOUT, "aborted", "another call is working on the volume at '%.300s'",
                 target);
    if (err)
        err->retryable = true;
    return -1;
}

/* 0: *volume is the caller's, new. 1: it was there, and is the caller's. */
static int claim(struct sl_volumes *volumes, const struct sl_volume_record *wanted,
                 struct volume **volume, struct sl_err *err)
{
    VOLUMES_LOCKED(volumes);
    struct volume *found = volumes_find(volumes, wanted->target);
    *volume = found;
    if (found && found->state != VOLUME_PUBLISHED)
        return fail_busy(wanted->target, err);
    if (found && (strcmp(found->record.id, wanted->id) != 0 ||
                  memcmp(found->record.arguments, wanted->arguments, SL_VOLUME_DIGEST) != 0))
        return sl_fail_code(err, SL_E_USAGE, "exists",
                            "'%.300s' is already published with other arguments", wanted->target);
    if (found) {
        volumes_set(found, VOLUME_BUSY);
        return 1;
    }
    *volume = sl_alloc(sizeof(**volume), err);
    if (!*volume)
        return -1;
    (*volume)->record = *wanted;
    (*volume)->next = volumes->locked.volumes;
    volumes->locked.volumes = *volume;
    return 0;
}

static void yield(struct sl_volumes *volumes, struct volume *volume)
{
    VOLUMES_LOCKED(volumes);
    volume->has_credentials = false;
    volumes_set(volume, VOLUME_PUBLISHED);
}

/* A reference stays as long as there is a mount. */
static void note_mounted(struct sl_volumes *volumes, struct volume *volume)
{
    VOLUMES_LOCKED(volumes);
    if (volumes_is_mounted(volume))
        return;
    volumes_set(volume, VOLUME_BUSY);
    sl_metric_add(SL_M_VOLUMES, 1);
}

/* ---- what is bound -------------------------------------------------------------------------- */

/* A pod is to see the socket, and nothing else. */
static int check_pool_folder(const struct sl_volumes *volumes, int folder_fd, struct sl_err *err)
{
    const char *name = strrchr(volumes->pool_socket, '/') + 1;
    if (sl_mounting_holds_only(folder_fd, name))
        return 0;
    return sl_fail_code(err, SL_E_NO_SPACE, "folder",
                        "the folder of '%.300s' must hold the pool's socket and nothing else: give "
                        "pool.socket a folder of its own",
                        volumes->pool_socket);
}

enum { DEVICES = 2 };

/* Every file system of which volumes are: the models', the pool's socket's. */
static size_t list_devices(struct sl_volumes *volumes, dev_t devices[DEVICES])
{
    struct stat status;
    size_t count = 0;
    if (fstat(volumes->records_fd, &status) == 0)
        devices[count++] = status.st_dev;
    sl_autoclose int fd = volumes->pool_socket ? volumes_open_pool_folder(volumes, NULL) : -1;
    if (fd >= 0 && fstat(fd, &status) == 0)
        devices[count++] = status.st_dev;
    return count;
}

/* ---- publishing ----------------------------------------------------------------------------- */

static int check_ask(const struct sl_volumes *volumes, const struct sl_volume_ask *ask,
                     struct sl_err *err)
{
    if (!ask->volume_id || !*ask->volume_id)
        return sl_fail(err, SL_E_USAGE, "the volume id is missing");
    if (strlen(ask->volume_id) >= SL_VOLUME_ID_MAX)
        return sl_fail(err, SL_E_USAGE, "the volume id has %zu bytes, the limit is %d",
                       strlen(ask->volume_id), SL_VOLUME_ID_MAX - 1);
    return sl_mounting_check(&volumes->mounting, ask->target, err);
}

static int read_ask(struct sl_volumes *volumes, const struct sl_volume_ask *ask,
                    struct sl_volume_request *request, struct sl_volume_record *record,
                    struct sl_err *err)
{
    memset(record, 0, sizeof(*record));
    if (check_ask(volumes, ask, err) < 0 ||
        sl_volume_request_read(ask->attributes, ask->attribute_count, request, err) < 0)
        return -1;
    if (!ask->readonly &&
        ask->ephemeral) /* of others the claim says it; they are mounted so anyway */
        return sl_fail(err, SL_E_USAGE, "volumes of models are read-only: set readOnly: true");
    bool has_rows;
    {
        VOLUMES_LOCKED(volumes);
        has_rows = volumes->locked.rights.count > 0;
    }
    if ((ask->ephemeral || has_rows || request->uri || request->pod_uid) &&
        sl_volume_request_check_pod(request, volumes->driver_name, err) < 0)
        return -1;
    snprintf(record->id, sizeof(record->id), "%s", ask->volume_id);
    snprintf(record->target, sizeof(record->target), "%s", ask->target);
    snprintf(record->pod, sizeof(record->pod), "%s", request->pod ? request->pod : "");
    snprintf(record->pod_namespace, sizeof(record->pod_namespace), "%s",
             request->pod_namespace ? request->pod_namespace : "");
    snprintf(record->pod_uid, sizeof(record->pod_uid), "%s",
             request->pod_uid ? request->pod_uid : "");
    record->pool = request->pool;
    return volumes_digest(request, ask, record->arguments, err);
}

static int mount_volume(struct sl_volumes *volumes, struct volume *volume, struct sl_err *err)
{
    sl_autoclose int source_fd = volumes_source(volumes, &volume->record, err);
    if (source_fd < 0 || (volume->record.pool && check_pool_folder(volumes, source_fd, err) < 0) ||
        sl_volume_record_write(volumes->records_fd, &volume->record, err) < 0)
        return -1;
    if (sl_mounting_bind(&volumes->mounting, volume->record.target, source_fd, err) == 0)
        return 0;
    enum sl_mounted left = sl_mounting_look(&volumes->mounting, volume->record.target, source_fd);
    if (left == SL_MOUNTED_RIGHT || left == SL_MOUNTED_WRITABLE || left == SL_MOUNTED_UNKNOWN)
        note_mounted(volumes, volume);
    else
        sl_volume_record_remove(volumes->records_fd, &volume->record, NULL);
    return -1;
}

static int publish_new(struct sl_volumes *volumes, const struct sl_volume_ask *ask,
                       const struct sl_volume_request *request, struct volume *volume,
                       uint64_t until_ns, struct sl_cancel *cancel, struct sl_err *err)
{
    if (volumes_resolve(volumes, request, ask, volume, err) < 0 ||
        (!request->pool &&
         volumes_hold(volumes, volume, request->uri, until_ns, cancel, err) < 0) ||
        mount_volume(volumes, volume, err) < 0)
        return -1;
    sl_log(SL_LOG_INFO, "volume '%.80s' of pod '%s/%s': %s%s%s is mounted at '%s'",
           volume->record.id, volume->record.pod_namespace, volume->record.pod,
           volume->record.pool ? "the pool" : volume->record.model,
           *volume->record.version ? " " : "", volume->record.version, volume->record.target);
    return 0;
}

/* The same again: what is mounted stays, and what was taken away is put back. */
static int publish_again(struct sl_volumes *volumes, struct volume *volume, struct sl_err *err)
{
    sl_autoclose int source_fd = volumes_source(volumes, &volume->record, err);
    if (source_fd < 0)
        return -1;
    enum sl_mounted at = sl_mounting_look(&volumes->mounting, volume->record.target, source_fd);
    if (at == SL_MOUNTED_RIGHT)
        return 0;
    if (at == SL_MOUNTED_UNKNOWN)
        return sl_fail(err, SL_E_NO_SPACE, "cannot look at '%.300s' now: try again",
                       volume->record.target);
    if (at == SL_MOUNTED_WRITABLE &&
        sl_mounting_undo(&volumes->mounting, volume->record.target, NULL, 0, err) < 0)
        return -1;
    return mount_volume(volumes, volume, err);
}

static void count_publish(uint64_t begin_ns, int done, const struct sl_err *err)
{
    bool waits = done < 0 && strcmp(err->code, "aborted") == 0;
    sl_metric_add(done == 0 ? SL_M_VOLUME_PUBLISHES
                  : waits   ? SL_M_VOLUME_WAITS
                            : SL_M_VOLUME_REFUSALS,
                  1);
    if (done == 0)
        sl_metric_observe(SL_M_VOLUME_SECONDS,
                          (double)(sl_now_ns() - begin_ns) / (double)SL_NS_PER_S);
}

static int publish(struct sl_volumes *volumes, const struct sl_volume_ask *ask, uint64_t begin_ns,
                   struct sl_cancel *cancel, struct sl_err *err)
{
    struct sl_volume_request request;
    struct sl_volume_record wanted;
    struct volume *volume;
    if (read_ask(volumes, ask, &request, &wanted, err) < 0)
        return -1;
    int found = claim(volumes, &wanted, &volume, err);
    if (found < 0)
        return -1;
    uint64_t wait_ms = ask->wait_ms - SL_MIN(ask->wait_ms, (uint64_t)ANSWER_MS);
    int done = found ? publish_again(volumes, volume, err)
                     : publish_new(volumes, ask, &request, volume,
                                   begin_ns + wait_ms * SL_NS_PER_MS, cancel, err);
    if (done == 0)
        note_mounted(volumes, volume);
    if (volumes_is_mounted(volume)) /* what could not be undone is kept, too */
        yield(volumes, volume);
    else
        volumes_forget(volumes, volume);
    volumes_drop_credentials(volumes);
    return done;
}

int sl_volumes_publish(struct sl_volumes *volumes, const struct sl_volume_ask *ask,
                       struct sl_cancel *cancel, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    uint64_t begin_ns = sl_now_ns();
    sl_metric_add(SL_M_VOLUMES_PUBLISHING, 1);
    int done = publish(volumes, ask, begin_ns, cancel, &why);
    sl_metric_add(SL_M_VOLUMES_PUBLISHING, -1);
    count_publish(begin_ns, done, &why);
    if (done < 0 && err)
        *err = why;
    return done;
}

/* ---- unpublishing --------------------------------------------------------------------------- */

/* Of a volume that nobody knows: after a reboot its folder is still there, and has to go. So has
 * whatever is mounted there, since the place is this driver's alone and its pod cannot end before:
 * the daemon may have had another node.directory. */
static int remove_unknown(struct sl_volumes *volumes, const char *target, struct sl_err *err)
{
    dev_t devices[DEVICES];
    struct sl_err why = SL_ERR_INIT;
    size_t count = list_devices(volumes, devices);
    if (sl_mounting_undo(&volumes->mounting, target, devices, count, &why) == 0)
        return 0;
    if (strcmp(why.code, "precondition") == 0) {
        sl_log(SL_LOG_WARN, "an unknown volume is unpublished: %s", why.message);
        why = (struct sl_err)SL_ERR_INIT;
        if (sl_mounting_undo(&volumes->mounting, target, NULL, 0, &why) == 0)
            return 0;
    }
    if (strcmp(why.code, "precondition") == 0)
        return 0; /* nothing is mounted, but something lies there: the kubelet would ask for ever */
    if (err)
        *err = why;
    return -1;
}

int sl_volumes_unpublish(struct sl_volumes *volumes, const char *volume_id, const char *target,
                         struct sl_err *err)
{
    struct volume *volume;
    if (!volume_id || !*volume_id)
        return sl_fail(err, SL_E_USAGE, "the volume id is missing");
    if (sl_mounting_check(&volumes->mounting, target, err) < 0)
        return -1;
    {
        VOLUMES_LOCKED(volumes);
        volume = volumes_find(volumes, target);
        if (volume && volume->state != VOLUME_PUBLISHED)
            return fail_busy(target, err);
        if (volume && strcmp(volume->record.id, volume_id) != 0)
            return 0; /* it is another one's, and stays */
        if (volume)
            volumes_set(volume, VOLUME_BUSY);
    }
    if (!volume)
        return remove_unknown(volumes, target, err);
    if (volumes_remove(volumes, &volume->record, err) < 0) {
        yield(volumes, volume);
        return -1;
    }
    sl_log(SL_LOG_INFO, "volume '%.80s' of pod '%s/%s' is unmounted from '%s'", volume->record.id,
           volume->record.pod_namespace, volume->record.pod, target);
    volumes_forget(volumes, volume);
    return 0;
}

/* ---- looking -------------------------------------------------------------------------------- */

static void set_abnormal(struct sl_volume_stats *stats, const char *text)
{
    stats->abnormal = true;
    snprintf(stats->message, sizeof(stats->message), "%s", text);
}

/* What is proven; a load that works with the model would say itself what it lacks. */
static bool is_damaged(struct sl_volumes *volumes, const struct sl_volume_record *record,
                       uint64_t *bytes)
{
    struct sl_registry_meaning meaning;
    return !record->pool &&
           sl_directory_holder_look(volumes->node->directory, record->model, record->version,
                                    bytes) == SL_WHOLENESS_NOT &&
           !(sl_registry_meaning(volumes->node->registry, record->model, &meaning) && meaning.busy);
}

static void look(struct sl_volumes *volumes, const struct sl_volume_record *record,
                 struct sl_volume_stats *stats)
{
    uint64_t bytes = 0;
    struct sl_err why = SL_ERR_INIT;
    sl_autoclose int source_fd = volumes_source(volumes, record, &why);
    enum sl_mounted at = source_fd < 0
                             ? SL_MOUNTED_UNKNOWN
                             : sl_mounting_look(&volumes->mounting, record->target, source_fd);
    if ((source_fd < 0 && volumes_is_proof(&why)) || is_damaged(volumes, record, &bytes))
        set_abnormal(stats,
                     "the model's files are damaged or gone: delete the pod, so that they are "
                     "loaded again");
    else if (at != SL_MOUNTED_RIGHT && at != SL_MOUNTED_UNKNOWN)
        set_abnormal(
            stats,
            "another process has unmounted it, or mounted something over it: delete the pod");
    stats->total_bytes = stats->used_bytes = SL_MAX(bytes, stats->total_bytes);
}

int sl_volumes_stats(struct sl_volumes *volumes, const char *volume_id, const char *path,
                     struct sl_volume_stats *stats, struct sl_err *err)
{
    struct sl_volume_record record;
    memset(stats, 0, sizeof(*stats));
    if (!volume_id || !*volume_id || !path || !*path)
        return sl_fail(err, SL_E_USAGE, "the volume id or its path is missing");
    {
        VOLUMES_LOCKED(volumes);
        const struct volume *volume = volumes_find(volumes, path);
        if (!volume || !volumes_is_mounted(volume) || strcmp(volume->record.id, volume_id) != 0)
            return sl_fail(err, SL_E_NOT_FOUND, "no volume '%.80s' is published at '%.300s'",
                           volume_id, path);
        record = volume->record;
        stats->total_bytes = volume->ref ? sl_model_ref_bytes(volume->ref) : 0;
    }
    look(volumes, &record, stats);
    return 0;
}

int sl_volumes_check(struct sl_volumes *volumes, const struct sl_volume_pair *attributes,
                     size_t count, struct sl_err *err)
{
    struct sl_volume_request request;
    if (sl_volume_request_read(attributes, count, &request, err) < 0)
        return -1;
    {
        VOLUMES_LOCKED(volumes);
        struct sl_err why = SL_ERR_INIT;
        if (sl_volume_rights_conceivable(&volumes->locked.rights, &request, &why) < 0)
            return sl_fail(err, SL_E_USAGE, "%s", why.message);
    }
    struct sl_registry_meaning meaning;
    if (request.model && (!sl_registry_meaning(volumes->node->registry, request.model, &meaning) ||
                          !meaning.of_config))
        return sl_fail(err, SL_E_USAGE, "the config of this node has no model '%s'", request.model);
    return 0;
}

void sl_volumes_json(struct sl_volumes *volumes, struct sl_json *json)
{
    VOLUMES_LOCKED(volumes);
    sl_json_key(json, "volumes");
    sl_json_array(json);
    for (const struct volume *at = volumes->locked.volumes; at; at = at->next) {
        if (!volumes_is_mounted(at))
            continue;
        sl_json_object(json);
        sl_json_key_string(json, "volume", at->record.id);
        sl_json_key_string(json, "namespace", at->record.pod_namespace);
        sl_json_key_string(json, "pod", at->record.pod);
        if (at->record.pool) {
            sl_json_key_bool(json, "pool", true);
        } else {
            sl_json_key_string(json, "model", at->record.model);
            sl_json_key_string(json, "version", at->record.version);
        }
        sl_json_end(json);
    }
    sl_json_end(json);
}

bool sl_volumes_ready(struct sl_volumes *volumes, struct sl_err *why_not)
{
    struct stat status;
    if (fstat(volumes->mounting.fd, &status) == 0 && status.st_nlink > 0)
        return true;
    sl_fail(why_not, SL_E_NO_SPACE, "the kubelet's directory '%s' was removed: restart the daemon",
            volumes->mounting.path);
    return false;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* The same for as long as the tmpfs lives, so that names of models stay. */
static int take_salt(struct sl_volumes *volumes, struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(SL_VOLUME_SALT);
    struct sl_err why = SL_ERR_INIT;
    if (sl_node_read_own(volumes->records_fd, SALT, &text, &why) == 0 &&
        text.used == SL_VOLUME_SALT) {
        memcpy(volumes->salt, text.data, SL_VOLUME_SALT);
        return 0;
    }
    if (why.kind == SL_E_NO_SPACE && !*why.code) { /* it may be good */
        if (err)
            *err = why;
        return -1;
    }
    if (getrandom(volumes->salt, SL_VOLUME_SALT, 0) != SL_VOLUME_SALT)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make random bytes");
    return sl_tree_write_own(volumes->records_fd, SALT, volumes->salt, SL_VOLUME_SALT, err);
}

static int open_records(struct sl_volumes *volumes, struct sl_err *err)
{
    volumes->records_fd = sl_directory_holder_beside(volumes->node->directory, RECORDS, err);
    if (volumes->records_fd < 0)
        return -1;
    if (fchmod(volumes->records_fd, 0700) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "cannot make the records of volumes private");
    return take_salt(volumes, err);
}

static int take_spec(struct sl_volumes *volumes, const struct sl_node_spec *spec,
                     struct sl_err *err)
{
    volumes->driver_name = sl_strdup(spec->csi.driver_name, err);
    if (!volumes->driver_name ||
        (spec->pool.socket && !(volumes->pool_socket = sl_strdup(spec->pool.socket, err))))
        return -1;
    if (sl_volumes_reload(volumes, spec, err) < 0)
        return -1;
    return sl_mounting_open(spec->csi.kubelet_directory, &volumes->mounting, err);
}

struct sl_volumes *sl_volumes_open(struct sl_node *node, const struct sl_node_spec *spec,
                                   struct sl_err *err)
{
    SL_AUTO(sl_volumes) volumes = sl_alloc(sizeof(*volumes), err);
    if (!volumes)
        return NULL;
    volumes->node = node;
    volumes->records_fd = volumes->mounting.fd = -1;
    pthread_mutex_init(&volumes->lock, NULL);
    volumes->ending = sl_cancel_new(err);
    if (!volumes->ending || take_spec(volumes, spec, err) < 0 || open_records(volumes, err) < 0 ||
        volumes_take_over(volumes, err) < 0 ||
        sl_thread_start(&volumes->sweeper, "volumes", volumes_sweeper, volumes, err) < 0)
        return NULL;
    volumes->has_sweeper = true;
    return sl_steal(&volumes);
}

int sl_volumes_reload(struct sl_volumes *volumes, const struct sl_node_spec *spec,
                      struct sl_err *err)
{
    struct sl_volume_rights rights;
    if (sl_volume_rights_copy(&spec->csi, &rights, err) < 0)
        return -1;
    {
        VOLUMES_LOCKED(volumes);
        struct sl_volume_rights old = volumes->locked.rights;
        volumes->locked.rights = rights;
        rights = old;
    }
    sl_volume_rights_release(&rights);
    return 0;
}

void sl_volumes_free(struct sl_volumes *volumes)
{
    if (!volumes)
        return;
    if (volumes->has_sweeper) {
        sl_cancel_raise(volumes->ending, 0);
        pthread_join(volumes->sweeper, NULL);
    }
    while (volumes->locked.volumes)
        volumes_forget(volumes, volumes->locked.volumes);
    for (size_t i = 0; i < volumes->locked.credentials.count; i++) {
        sl_caller_credentials_drop(volumes->locked.credentials.items[i]);
        free(volumes->locked.credentials.items[i]);
    }
    free(volumes->locked.credentials.items);
    sl_volume_rights_release(&volumes->locked.rights);
    sl_mounting_release(&volumes->mounting);
    sl_autoclose_(&volumes->records_fd);
    free(volumes->driver_name);
    free(volumes->pool_socket);
    sl_cancel_free(volumes->ending);
    pthread_mutex_destroy(&volumes->lock);
    free(volumes);
}
