/*
 * Every descriptor has a name of its own, since the store keeps no order: when the model was made,
 * which it is, and the number of the file in it, 0 for the index. The names come back with the
 * descriptors in one variable of the environment, which may have 128 KiB: so they are short.
 *
 * What comes back is believed as little as a deposit is: the index is checked byte by byte, and
 * every file must be a memfd that is sealed and of the size that the index tells, or memory of a
 * GPU that the driver knows, at least so large. Sealed memory cannot have changed; memory of a GPU
 * is as safe as it was before, from clients that map it for writing against their promise.
 */
#include "pool_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "peer.h"
#include "pool_files.h"

#define PREFIX "slab."
#define OWNER  "u" /* of a deposit, and its number: behind the rest, too */
/* Behind the rest: it has copies on every GPU, which have names of their own. */
#define ALL "all."
enum { ID_DIGITS = 16, GROUP_BYTES = 58 };

/* ---- keeping -------------------------------------------------------------------------------- */

bool sl_pool_store_exists(void)
{
    const char *socket = getenv("NOTIFY_SOCKET");
    return socket && *socket;
}

/* What all names of a copy begin with. */
static int group_of(const struct sl_pool_copy *copy, char group[GROUP_BYTES], struct sl_err *err)
{
    char id[SL_POOL_ID_TEXT], owner[16] = "";
    struct sl_pool_view view;
    uint32_t uid;
    const struct sl_pool_model *model = sl_pool_copy_model(copy);
    bool is_of_all = sl_placement_count(sl_pool_model_placement(model)) > 1;
    sl_pool_copy_view(copy, &view);
    if (!sl_pool_copy_id(copy, id, err))
        return -1;
    if (sl_pool_model_owner(model, &uid))
        snprintf(owner, sizeof(owner), OWNER "%" PRIu32 ".", uid);
    snprintf(group, GROUP_BYTES, PREFIX "%" PRIx64 ".%.*s.%s%s", (uint64_t)view.made_seconds,
             ID_DIGITS, id, owner, is_of_all ? ALL : "");
    return 0;
}

static const char *name_of(const char *group, size_t number, char name[SL_SYSTEMD_NAME_BYTES])
{
    snprintf(name, SL_SYSTEMD_NAME_BYTES, "%.*s%u", GROUP_BYTES - 1, group, (unsigned)number);
    return name;
}

static void forget(const char *group, size_t count)
{
    char name[SL_SYSTEMD_NAME_BYTES];
    struct sl_err why = SL_ERR_INIT;
    for (size_t i = 0; i < count; i++)
        if (sl_systemd_unstore(name_of(group, i, name), &why) < 0 && why.kind != SL_E_NOT_FOUND) {
            sl_log(SL_LOG_WARN, "memory stays in the descriptor store: %s", why.message);
            return;
        }
}

/* Index, then slabs: the page is made anew. */
static int store(const char *group, const int *fds, size_t count, struct sl_err *err)
{
    char name[SL_SYSTEMD_NAME_BYTES];
    for (size_t i = 0; i < count; i++)
        if (i != 1 && sl_systemd_store(name_of(group, i ? i - 1 : 0, name), fds[i], err) < 0)
            return -1;
    return 0;
}

static int keep(const struct sl_pool_copy *copy, struct sl_err *err)
{
    char group[GROUP_BYTES];
    size_t count = sl_pool_copy_fds(copy, 0, NULL, 0);
    sl_autofree int *fds = sl_alloc_array(count, sizeof(*fds), err);
    if (!fds || group_of(copy, group, err) < 0)
        return -1;
    sl_pool_copy_fds(copy, 0, fds, count);
    if (store(group, fds, count, err) == 0)
        return 0;
    forget(group, count - 1);
    return -1;
}

static void drop(const struct sl_pool_copy *copy)
{
    char group[GROUP_BYTES];
    struct sl_err why = SL_ERR_INIT;
    if (group_of(copy, group, &why) == 0)
        forget(group, 1 + sl_pool_copy_slab_count(copy));
    else
        sl_log(SL_LOG_WARN, "memory of '%s' stays in the descriptor store: %s",
               sl_pool_model_name(sl_pool_copy_model(copy)), why.message);
}

int sl_pool_store_keep(struct sl_pool_model *model, struct sl_err *err)
{
    for (size_t i = 0; i < sl_pool_model_copies(model); i++) {
        if (keep(sl_pool_model_copy(model, i), err) == 0)
            continue;
        while (i--)
            drop(sl_pool_model_copy(model, i));
        return -1;
    }
    return 0;
}

void sl_pool_store_drop(struct sl_pool_model *model)
{
    for (size_t i = 0; sl_pool_store_exists() && i < sl_pool_model_copies(model); i++)
        drop(sl_pool_model_copy(model, i));
}

/* ---- taking back ---------------------------------------------------------------------------- */

/* The number behind the last dot; group: what is before it, with the dot. -1: not a name of ours.
 */
static long parse_name(const char *name, char group[GROUP_BYTES])
{
    const char *dot = strrchr(name, '.');
    size_t bytes = dot ? (size_t)(dot - name) + 1 : 0;
    size_t digits = dot ? strspn(dot + 1, "0123456789") : 0;
    if (strncmp(name, PREFIX, sizeof(PREFIX) - 1) != 0 || bytes < sizeof(PREFIX) ||
        bytes >= GROUP_BYTES || !digits || digits > 5 || dot[1 + digits])
        return -1;
    memcpy(group, name, bytes);
    group[bytes] = 0;
    return strtol(dot + 1, NULL, 10);
}

/* Descriptors of one group, in their order; taken out of what was given. */
struct group {
    char name[GROUP_BYTES];
    int fds[1 + SL_POOL_SLABS_MAX];
    size_t count; /* the highest number and one */
    const char *why;
};

static void add(struct group *group, struct sl_systemd_fd *item, long number)
{
    int fd = item->fd;
    item->fd = -1;
    if (number <= SL_POOL_SLABS_MAX && group->fds[number] < 0) {
        group->fds[number] = fd;
        group->count = SL_MAX(group->count, (size_t)number + 1);
        return;
    }
    group->why = "it has a part too many";
    close(fd);
}

static void collect(struct sl_systemd_sockets *given, unsigned first, struct group *group)
{
    char name[GROUP_BYTES];
    for (unsigned i = first; i < given->count; i++) {
        long number = given->items[i].fd < 0 ? -1 : parse_name(given->items[i].name, name);
        if (number >= 0 && strcmp(name, group->name) == 0)
            add(group, &given->items[i], number);
    }
    for (size_t i = 0; i < group->count && !group->why; i++)
        if (group->fds[i] < 0)
            group->why = "a part of it is missing";
}

static bool is_of_all(const char *name)
{
    size_t bytes = strlen(name), suffix = sizeof(ALL) - 1;
    return bytes > suffix && strcmp(name + bytes - suffix, ALL) == 0;
}

/* A deposit is its owner's, whom the name tells. */
static int take_owner(struct sl_pool_model *model, const char *group, struct sl_err *err)
{
    const char *at = strstr(group, "." OWNER);
    uint32_t owner = at ? (uint32_t)strtoul(at + sizeof("." OWNER) - 1, NULL, 10) : 0;
    if (at)
        sl_pool_model_set_owner(model, owner, sl_peer_user_uid(owner));
    else if (*sl_pool_model_key(model))
        return sl_fail(err, SL_E_INTEGRITY, "nothing says who deposited it: deposit it again");
    return 0;
}

static struct sl_pool_model *adopt(struct group *group, const struct sl_pool_gpus *gpus,
                                   struct sl_err *err)
{
    char own[GROUP_BYTES] = "";
    if (group->why) {
        sl_fail(err, SL_E_INTEGRITY, "%s", group->why);
        return NULL;
    }
    int index_fd = group->fds[0];
    size_t slabs = group->count - 1;
    group->count = 0; /* theirs from here on */
    SL_AUTO(sl_pool_model)
    model = sl_pool_model_adopt_where(gpus, NULL, index_fd, group->fds + 1, slabs, err);
    if (!model)
        return NULL;
    if (is_of_all(group->name))
        sl_pool_model_set_placement(model, SL_PLACEMENT_GPUS);
    sl_pool_model_set_made(model, (int64_t)strtoull(group->name + sizeof(PREFIX) - 1, NULL, 16));
    if (take_owner(model, group->name, err) < 0 ||
        group_of(sl_pool_model_copy(model, 0), own, err) < 0)
        return NULL;
    if (strcmp(own, group->name) != 0) {
        sl_fail(err, SL_E_INTEGRITY, "it is another model than its name says");
        return NULL;
    }
    return sl_steal(&model);
}

static void take_group(struct group *group, const struct sl_pool_gpus *gpus,
                       void (*found)(void *arg, struct sl_pool_model *model), void *arg)
{
    struct sl_err why = SL_ERR_INIT;
    size_t count = group->count;
    struct sl_pool_model *model = adopt(group, gpus, &why);
    if (model) {
        found(arg, model);
        return;
    }
    for (size_t i = 0; i < group->count; i++)
        sl_autoclose_(&group->fds[i]);
    bool left = why.kind == SL_E_NO_SPACE; /* of descriptors or memory: it may be whole */
    sl_log(SL_LOG_WARN, "'%s' of the descriptor store is not used%s: %s", group->name,
           left ? ", and left there for the next start" : "", why.message);
    if (!left)
        forget(group->name, count);
}

void sl_pool_store_scan(struct sl_systemd_sockets *given, const struct sl_pool_gpus *gpus,
                        void (*found)(void *arg, struct sl_pool_model *model), void *arg)
{
    struct sl_err why = SL_ERR_INIT;
    sl_autofree struct group *group = sl_alloc(sizeof(*group), &why);
    if (!group) {
        sl_log(SL_LOG_ERROR, "the descriptor store cannot be read: %s", why.message);
        return;
    }
    for (unsigned i = 0; i < given->count; i++) {
        if (given->items[i].fd < 0 || parse_name(given->items[i].name, group->name) < 0)
            continue;
        for (size_t n = 0; n < SL_COUNT(group->fds); n++)
            group->fds[n] = -1;
        group->count = 0;
        group->why = NULL;
        collect(given, i, group);
        take_group(group, gpus, found, arg);
    }
}
