/* What the files of the volumes share. Not for others. */
#ifndef SL_VOLUMES_PARTS_H
#define SL_VOLUMES_PARTS_H

#include "deferred_call.h"
#include "mounting.h"
#include "thread.h"
#include "volume_record.h"
#include "volume_rights.h"
#include "volumes.h"

/*
 * A volume:
 *
 *     WAITS <---> ASKED ---> BUSY <---> PUBLISHED
 *                   |          |
 *                   +----------+---> removed
 *
 *     ASKED      claim(): a publish has it, and nothing is mounted yet
 *     WAITS      may_wait(): … for a load, in its namespace's share; back: end_wait()
 *     BUSY       note_mounted(): it is mounted, or what is left of that is still to be taken away;
 *                claim(), sl_volumes_unpublish(), take_gone(): a call has it
 *     PUBLISHED  yield(): no call has it; adopt(): an earlier daemon left it
 *     removed    volumes_forget()
 *
 * What is not PUBLISHED one call works with, and others are told to come again.
 */
enum volume_state { VOLUME_ASKED, VOLUME_WAITS, VOLUME_BUSY, VOLUME_PUBLISHED };
struct volume {
    struct volume *next;
    struct sl_volume_record record;
    enum volume_state state;
    bool has_credentials; /* kept under its model's name while a call has it */
    struct sl_model_ref *ref;
};
static inline bool volumes_is_mounted(const struct volume *volume)
{
    return volume->state >= VOLUME_BUSY;
}
/*
 * What holds whenever the lock is free (volumes_check()):
 *
 * 1. No two have one target.
 * 2. No more than SL_VOLUMES_WAITS_MAX wait, of one namespace no more than its share.
 * 3. What is PUBLISHED has no credentials kept, and no reference if it is the pool's folder.
 */
struct sl_volumes {
    struct sl_node *node;
    struct sl_mounting mounting;
    int records_fd;
    uint8_t salt[SL_VOLUME_SALT];
    char *driver_name, *pool_socket; /* pool_socket NULL: there is no pool */
    pthread_t sweeper;
    bool has_sweeper;
    struct sl_cancel *ending;
    pthread_mutex_t lock;
    struct {
        struct sl_volume_rights rights;
        struct volume *volumes;
        struct sl_list credentials; /* names under which some are kept */
    } locked;
};

/** volumes_table.c */
#ifdef NDEBUG
static inline void volumes_check(const struct sl_volumes *volumes)
{
    (void)volumes;
}
#else
void volumes_check(const struct sl_volumes *volumes);
#endif
SL_LOCKED_DEFINE(sl_volumes, volumes_check)
/** Hold the lock to the end of the scope. */
#define VOLUMES_LOCKED(volumes) SL_LOCKED_CHECKED(sl_volumes, volumes)
/** With the lock held: the only way to change a state. */
void volumes_set(struct volume *volume, enum volume_state to);
/** With the lock held. */
struct volume *volumes_find(struct sl_volumes *volumes, const char *target);
/** Unlink and free; its reference goes. */
void volumes_forget(struct sl_volumes *volumes, struct volume *volume);
/** Take away mount, target, record: what is done of it stays done, and it can be repeated. */
int volumes_remove(struct sl_volumes *volumes, const struct sl_volume_record *record,
                   struct sl_err *err);
/** The folder of the pool's socket, which is not there while the daemon is not; -1. */
int volumes_open_pool_folder(const struct sl_volumes *volumes, struct sl_err *err);
/** What the target of a record is bound to, as a descriptor. */
int volumes_source(struct sl_volumes *volumes, const struct sl_volume_record *record,
                   struct sl_err *err);
/** Does this error of volumes_source() show that it is not there, or another's? Else it only cannot
 * be looked at just now. */
bool volumes_is_proof(const struct sl_err *why);
/** For people: who has a model. */
void volumes_who(const struct sl_volume_record *record, char who[SL_REF_WHO_BYTES]);

/**
 * Find out which model a volume is of, and make it known to the registry; its credentials are kept
 * (volumes_ask.c).
 *
 * @request  whose model, URI or pool it is.
 * @ask      which brings the secrets.
 * @volume   its record gets the model's name.
 * @return   0, or -1 with the errors of sl_volume_rights_grant() and sl_node_define_files();
 *           SL_E_NOT_FOUND: the config has no such model; SL_E_USAGE: it has no files.
 */
int volumes_resolve(struct sl_volumes *volumes, const struct sl_volume_request *request,
                    const struct sl_volume_ask *ask, struct volume *volume, struct sl_err *err);
/** … and what of it nobody needs any more is wiped. */
void volumes_drop_credentials(struct sl_volumes *volumes);
/** Of everything that must stay the same when it is published again. */
int volumes_digest(const struct sl_volume_request *request, const struct sl_volume_ask *ask,
                   uint8_t digest[SL_VOLUME_DIGEST], struct sl_err *err);
/** "model m: 53.7 GiB of 131 GiB, …", code "aborted"; title: what people call it. */
int volumes_fail_loading(const char *model, const char *title, struct sl_err *err);
/**
 * Get a volume's model in memory, with a reference.
 *
 * @volume    resolved; gets the reference and the text of its version.
 * @uri       by which it was asked for, for messages; NULL: by its name.
 * @until_ns  by sl_now_ns(): the load goes on then.
 * @cancel    may be NULL.
 * @return    0, or -1. Code "aborted": it is still being loaded, "model m: 53.7 GiB of 131 GiB, …",
 *            or too many wait already; else as sl_registry_wait_until().
 *
 * Blocks until then, or until_ns; where too many wait already, not at all.
 */
int volumes_hold(struct sl_volumes *volumes, struct volume *volume, const char *uri,
                 uint64_t until_ns, struct sl_cancel *cancel, struct sl_err *err);

/** volumes_restart.c */
int volumes_take_over(struct sl_volumes *volumes, struct sl_err *err);
/** Volumes of pods that have gone. */
void volumes_sweep(struct sl_volumes *volumes);
void *volumes_sweeper(void *volumes);

#endif
