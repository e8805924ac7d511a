/*
 * Staging, the lock, and making a load visible: PATH/.sluice/{lock,staging/,manifest.json,ready}.
 *
 * Order: ready goes away, files are renamed into place one by one, files of the old version that the new one lacks are removed,
 * manifest.json, then ready. A commit marker in .sluice lets a killed publish be completed by the next load.
 */
#ifndef SL_PUBLISH_H
#define SL_PUBLISH_H

#include "plan.h"

struct sl_publish;
/**
 * Make PATH and PATH/.sluice, take the lock (flock; waits while another load holds it, telling `waiting` once; ends on cancel),
 * finish an interrupted publish. SL_E_NO_SPACE if not writable, with what to do. Links in the way are refused.
 */
struct sl_publish *sl_publish_open(const char *path, struct sl_cancel *cancel, void (*waiting)(void *arg), void *arg, struct sl_err *err);
void sl_publish_free(struct sl_publish *publish);
SL_AUTO_DEFINE(sl_publish)
/** Is exactly this plan published, complete and untouched (sizes and times of all files as the manifest says)? */
bool sl_publish_is_current(struct sl_publish *publish, const struct sl_plan *plan);
/** The staging directory, made on demand; borrowed. */
int sl_publish_staging(struct sl_publish *publish, struct sl_err *err);
/** Throw the staging directory away. */
int sl_publish_discard(struct sl_publish *publish, struct sl_err *err);
/** replace: free-first: take the published version away before reading. */
int sl_publish_withdraw(struct sl_publish *publish, struct sl_err *err);
/** All files of the plan are complete and checked in staging: make them visible. */
int sl_publish_commit(struct sl_publish *publish, const struct sl_plan *plan, const struct sl_spec *spec, struct sl_err *err);

/** Does it fit? Checks statvfs of the destination and every cgroup limit (v1, v2, parents) against bytes. SL_E_NO_SPACE with figures
 *  and what to set. `limits` (may be NULL) gets what `sluice plan` prints. already: bytes that staging holds. */
struct sl_room_limit {
    char what[160];        /* "tmpfs /models", "cgroup /kubepods/…: memory.max" */
    uint64_t available;    /* UINT64_MAX: no limit */
    uint64_t limit;
};
struct sl_room {
    struct sl_room_limit limits[16];
    unsigned count;
    uint64_t needed;
};
int sl_room_check(const char *path, uint64_t bytes, uint64_t already, struct sl_room *room, struct sl_err *err);

/** Read PATH/.sluice/manifest.json. json_decref() it. SL_E_NOT_FOUND if nothing is published. */
json_t *sl_manifest_read(const char *path, struct sl_err *err);
/** Block until PATH/.sluice/ready exists (inotify); timeout_seconds 0 is forever. */
int sl_publish_wait(const char *path, unsigned timeout_seconds, struct sl_cancel *cancel, struct sl_err *err);
/** Hash every published file against its manifest. SL_E_INTEGRITY names the first wrong file or tensor; `each` sees every file. */
int sl_publish_verify(const char *path, void (*each)(const char *name, bool good, void *arg), void *arg, struct sl_cancel *cancel,
                      struct sl_err *err);
#endif
