/*
 * The node's volumes as a script, for tests of what calls them: a program that is linked with
 * --wrap=sl_volumes_publish and the like has these in their place. A publish makes its target's
 * folder, an unpublish removes it.
 */
#ifndef SL_FAKE_VOLUMES_H
#define SL_FAKE_VOLUMES_H

#include "thread.h"
#include "volumes.h"

enum { FAKE_VOLUMES_TEXT = 256 };

/** What they are told and what they were asked; any thread, with fake_volumes_lock held. */
struct fake_volumes {
    pthread_mutex_t lock;
    struct sl_err fail;    /* kind set: publishes fail so */
    struct sl_err unready; /* kind set: cannot publish, for this reason */
    bool hold;             /* publishes wait until it is false, or their cancel is raised */
    bool make_folders;
    unsigned publishes, held, canceled, unpublishes;
    char volume_id[FAKE_VOLUMES_TEXT], target[FAKE_VOLUMES_TEXT], mount_group[FAKE_VOLUMES_TEXT];
    char attributes[FAKE_VOLUMES_TEXT], secrets[FAKE_VOLUMES_TEXT]; /* "a=b,c=d" */
    bool readonly, ephemeral;
    uint64_t wait_ms;
};
extern struct fake_volumes fake_volumes;

/** What the last publish asked for, and so on: one value, read under the lock. */
#define FAKE_VOLUMES_GET(member)                                                                   \
    ({                                                                                             \
        pthread_mutex_lock(&fake_volumes.lock);                                                    \
        __typeof__(fake_volumes.member) value_ = fake_volumes.member;                              \
        pthread_mutex_unlock(&fake_volumes.lock);                                                  \
        value_;                                                                                    \
    })
#define FAKE_VOLUMES_SET(member, value)                                                            \
    do {                                                                                           \
        pthread_mutex_lock(&fake_volumes.lock);                                                    \
        fake_volumes.member = (value);                                                             \
        pthread_mutex_unlock(&fake_volumes.lock);                                                  \
    } while (0)

#endif
