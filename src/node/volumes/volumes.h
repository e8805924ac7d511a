/*
 * Models at paths of pods: what CSI asks of a node. A publish loads a model, or joins its load, and
 * binds the folder of its version, read-only, at the target; a reference of the registry keeps that
 * version in memory until the unpublish. Nothing here knows gRPC. Any thread, but open and free.
 *
 * How an err becomes a status: its `code` first ("aborted", "exists", "precondition"), else its
 * kind, as err.def says.
 */
#ifndef SL_VOLUMES_H
#define SL_VOLUMES_H

#include "node.h"

/* Publishes that wait for a load at a time, and those of one namespace. Whoever is beyond, and
 * whose model is not there yet, is told at once to ask again, so that what is there is never
 * behind. */
enum { SL_VOLUMES_WAITS_MAX = 40, SL_VOLUMES_WAITS_SHARE = 20 };

struct sl_volumes;
/**
 * Take over what an earlier daemon published, then be ready for more; a thread of its own sweeps up
 * behind pods that went without a word. Blocks for reading records and mounts. node: outlives the
 * volumes; spec: what of its `csi` and `pool` sections is needed is copied. SL_E_USAGE: the
 * kubelet's directory; SL_E_NO_SPACE.
 */
struct sl_volumes *sl_volumes_open(struct sl_node *node, const struct sl_node_spec *spec,
                                   struct sl_err *err);
/** Rights of namespaces as a new config has them, for what is asked for from now on. SL_E_NO_SPACE:
 * they stay as they were. */
int sl_volumes_reload(struct sl_volumes *volumes, const struct sl_node_spec *spec,
                      struct sl_err *err);
/** Everything that is published stays mounted. No call may be under way. Blocks until its thread
 * has ended. */
void sl_volumes_free(struct sl_volumes *volumes);
SL_AUTO_DEFINE(sl_volumes)

struct sl_volume_pair {
    const char *key, *value;
};
/** A publish; everything is borrowed for the call, and none of it is trusted. */
struct sl_volume_ask {
    const char *volume_id, *target;
    const struct sl_volume_pair *attributes; /* volume_context */
    size_t attribute_count;
    const struct sl_volume_pair *secrets;
    size_t secret_count;
    const char *mount_group; /* volume_mount_group; "" */
    bool readonly, ephemeral;
    uint64_t wait_ms; /* answer within this, whatever happens */
};
/**
 * Blocks up to wait_ms. 0: the model is whole and visible, read-only, at target; again for what is
 * there already. Code "aborted": another call works with the volume, or the model is still being
 * loaded, which goes on as long as somebody asks, or too many wait already: try again. Code
 * "exists": other arguments than before. SL_E_USAGE, SL_E_AUTH, SL_E_NOT_FOUND, SL_E_NO_SPACE, or
 * what the load failed with; code "precondition": something else is at target. SL_E_CANCELED:
 * cancel (may be NULL) was raised.
 */
int sl_volumes_publish(struct sl_volumes *volumes, const struct sl_volume_ask *ask,
                       struct sl_cancel *cancel, struct sl_err *err);
/** Unmount and remove the target; what is not there is fine, and what is another volume's stays.
 * Blocks for the kernel's unmounting. Code "aborted" as above; SL_E_USAGE, also with code
 * "precondition"; SL_E_NO_SPACE. */
int sl_volumes_unpublish(struct sl_volumes *volumes, const char *volume_id, const char *target,
                         struct sl_err *err);

struct sl_volume_stats {
    uint64_t total_bytes, used_bytes, available_bytes;
    bool abnormal; /* the published version is damaged or gone; message says how */
    char message[256];
};
/**
 * Say how a volume is. Looks at the version's files, reading none.
 *
 * @volume_id  of the volume; not trusted.
 * @path       where it was published; not trusted.
 * @stats      out: zeros after a failure.
 * @return     0, or -1 with SL_E_NOT_FOUND (not a volume, or not its path) or SL_E_USAGE (no id or
 *             no path).
 */
int sl_volumes_stats(struct sl_volumes *volumes, const char *volume_id, const char *path,
                     struct sl_volume_stats *stats, struct sl_err *err);
/**
 * Parameters of a volume class or attributes of a persistent volume: could they ever be published?
 * SL_E_USAGE says what is wrong with them.
 */
int sl_volumes_check(struct sl_volumes *volumes, const struct sl_volume_pair *attributes,
                     size_t count, struct sl_err *err);
/** Members of an open object: "volumes", with who has what. Never blocks but for a lock. */
void sl_volumes_json(struct sl_volumes *volumes, struct sl_json *json);
/** Can a publish work? why_not: what keeps it from it, SL_E_NO_SPACE. Never blocks. */
bool sl_volumes_ready(struct sl_volumes *volumes, struct sl_err *why_not);

#endif
