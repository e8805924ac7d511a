/* Functions in place of those of volumes.h, by the linker's --wrap. */
#include "fake_volumes.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fake_volumes fake_volumes = {.lock = PTHREAD_MUTEX_INITIALIZER, .make_folders = true};

int __wrap_sl_volumes_publish(struct sl_volumes *volumes, const struct sl_volume_ask *ask,
                              struct sl_cancel *cancel, struct sl_err *err);
int __wrap_sl_volumes_unpublish(struct sl_volumes *volumes, const char *volume_id,
                                const char *target, struct sl_err *err);
int __wrap_sl_volumes_stats(struct sl_volumes *volumes, const char *volume_id, const char *path,
                            struct sl_volume_stats *stats, struct sl_err *err);
int __wrap_sl_volumes_check(struct sl_volumes *volumes, const struct sl_volume_pair *attributes,
                            size_t count, struct sl_err *err);
bool __wrap_sl_volumes_ready(struct sl_volumes *volumes, struct sl_err *why_not);

static void write_pairs(char text[FAKE_VOLUMES_TEXT], const struct sl_volume_pair *pairs,
                        size_t count)
{
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < count && used < FAKE_VOLUMES_TEXT; i++)
        used += (size_t)snprintf(text + used, FAKE_VOLUMES_TEXT - used, "%s%s=%s", i ? "," : "",
                                 pairs[i].key, pairs[i].value);
}

static int wait_for_release(struct sl_cancel *cancel, struct sl_err *err)
{
    while (FAKE_VOLUMES_GET(hold)) {
        struct pollfd fd = {.fd = sl_cancel_fd(cancel), .events = POLLIN};
        poll(&fd, 1, 5);
        if (sl_cancel_check(cancel, err) < 0) {
            FAKE_VOLUMES_SET(canceled, fake_volumes.canceled + 1);
            return -1;
        }
    }
    return 0;
}

int __wrap_sl_volumes_publish(struct sl_volumes *volumes, const struct sl_volume_ask *ask,
                              struct sl_cancel *cancel, struct sl_err *err)
{
    struct fake_volumes *fake = &fake_volumes;
    struct sl_err fail;
    (void)volumes;
    {
        SL_LOCKED(&fake->lock);
        snprintf(fake->volume_id, sizeof(fake->volume_id), "%s", ask->volume_id);
        snprintf(fake->target, sizeof(fake->target), "%s", ask->target);
        snprintf(fake->mount_group, sizeof(fake->mount_group), "%s", ask->mount_group);
        write_pairs(fake->attributes, ask->attributes, ask->attribute_count);
        write_pairs(fake->secrets, ask->secrets, ask->secret_count);
        fake->readonly = ask->readonly;
        fake->ephemeral = ask->ephemeral;
        fake->wait_ms = ask->wait_ms;
        fake->publishes++;
        fake->held += fake->hold;
        fail = fake->fail;
    }
    if (wait_for_release(cancel, err) < 0)
        return -1;
    if (fail.kind) {
        *err = fail;
        return -1;
    }
    if (FAKE_VOLUMES_GET(make_folders) && mkdir(ask->target, 0700) < 0 && errno != EEXIST)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot make '%s'", ask->target);
    return 0;
}

int __wrap_sl_volumes_unpublish(struct sl_volumes *volumes, const char *volume_id,
                                const char *target, struct sl_err *err)
{
    (void)volumes, (void)volume_id;
    FAKE_VOLUMES_SET(unpublishes, fake_volumes.unpublishes + 1);
    if (FAKE_VOLUMES_GET(make_folders) && rmdir(target) < 0 && errno != ENOENT)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot remove '%s'", target);
    return 0;
}

int __wrap_sl_volumes_stats(struct sl_volumes *volumes, const char *volume_id, const char *path,
                            struct sl_volume_stats *stats, struct sl_err *err)
{
    (void)volumes;
    SL_LOCKED(&fake_volumes.lock);
    if (strcmp(volume_id, fake_volumes.volume_id) != 0 || strcmp(path, fake_volumes.target) != 0)
        return sl_fail(err, SL_E_NOT_FOUND, "volume '%.128s' is not there", volume_id);
    *stats = (struct sl_volume_stats){.total_bytes = UINT64_MAX, .used_bytes = 7, .abnormal = true};
    snprintf(stats->message, sizeof(stats->message), "damaged");
    return 0;
}

/* One attribute is wrong: "bad". */
int __wrap_sl_volumes_check(struct sl_volumes *volumes, const struct sl_volume_pair *attributes,
                            size_t count, struct sl_err *err)
{
    (void)volumes;
    for (size_t i = 0; i < count; i++)
        if (strcmp(attributes[i].key, "bad") == 0)
            return sl_fail(err, SL_E_USAGE, "attribute 'bad' is not known");
    return 0;
}

bool __wrap_sl_volumes_ready(struct sl_volumes *volumes, struct sl_err *why_not)
{
    (void)volumes;
    SL_LOCKED(&fake_volumes.lock);
    if (fake_volumes.unready.kind && why_not)
        *why_not = fake_volumes.unready;
    return !fake_volumes.unready.kind;
}
