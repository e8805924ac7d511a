/*
 * The registry owns each model: from when it can be attached to, while it is still being filled,
 * until it is dropped. What clients have are references of the registry.
 */
#include "pool_holder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entries.h"
#include "fill.h"
#include "held_memory.h"
#include "log.h"
#include "node_folder.h"
#include "node_lock.h"
#include "pool_files.h"
#include "pool_store.h"
#include "rejoin.h"
#include "tree.h"

struct sl_pool_holder {
    struct sl_node_folder folder; /* fd -1: there is none */
    int lock_fd;
    struct sl_held_watcher *watcher;
    struct sl_slab_place place;
    struct sl_holder ops;
};

struct filling {
    const struct sl_holder_job *job;
};

static int admit(void *arg, uint64_t bytes, const uint8_t identity[32], struct sl_err *err)
{
    struct filling *filling = arg;
    char version[SL_VERSION_TEXT];
    return filling->job->admit(filling->job->arg, identity, bytes, version, err);
}

static bool planned(void *arg, struct sl_pool_model *model)
{
    struct filling *filling = arg;
    filling->job->opened(filling->job->arg, model);
    return true;
}

/* ---- for the next process ------------------------------------------------------------------- */

static void keep(void *self, void *body)
{
    const struct sl_pool_holder *holder = self;
    struct sl_err why = SL_ERR_INIT;
    int done = 0;
    if (sl_pool_model_kind(body) == SL_SLAB_TMPFS)
        done = sl_pool_files_keep(holder->folder.fd, body, &why);
    else if (sl_pool_model_kind(body) == SL_SLAB_MEMFD && sl_pool_store_exists())
        done = sl_pool_store_keep(body, &why);
    if (done < 0)
        sl_log(SL_LOG_WARN, "'%s' will not outlive this daemon: %s", sl_pool_model_name(body),
               why.message);
}

static void leave(void *self, void *body)
{
    (void)self;
    sl_pool_model_free(body);
}

/* ---- what clients keep ---------------------------------------------------------------------- */

struct kept_by_others {
    struct sl_left_memory base; /* first */
    struct sl_held_memory *memory;
};

static uint64_t look(struct sl_left_memory *left)
{
    return sl_held_memory_look(((struct kept_by_others *)left)->memory);
}

static void free_watched(struct sl_left_memory *left)
{
    sl_held_memory_free(((struct kept_by_others *)left)->memory);
    free(left);
}

static struct sl_left_memory *watch(void *self, void *body)
{
    const struct sl_pool_holder *holder = self;
    struct kept_by_others *kept = sl_alloc(sizeof(*kept), NULL);
    if (kept && !(kept->memory = sl_held_memory_watch(holder->watcher, body))) {
        free(kept);
        return NULL;
    }
    if (kept)
        kept->base = (struct sl_left_memory){.look = look, .free = free_watched};
    return kept ? &kept->base : NULL;
}

static int drop(void *self, const char *name, const char *version, void *body, struct sl_err *err)
{
    const struct sl_pool_holder *holder = self;
    struct sl_pool_view view = {.state = SL_POOL_FAILED};
    (void)name;
    (void)version;
    (void)err;
    if (body)
        sl_pool_model_view(body, &view);
    if (view.state == SL_POOL_READY && sl_pool_model_kind(body) == SL_SLAB_TMPFS)
        sl_pool_files_drop(holder->folder.fd, body);
    else if (view.state == SL_POOL_READY && sl_pool_model_kind(body) == SL_SLAB_MEMFD)
        sl_pool_store_drop(body);
    sl_pool_model_free(body);
    return 0;
}

/* ---- loading -------------------------------------------------------------------------------- */

static int load(void *self, const struct sl_holder_job *job, void **body, struct sl_err *err)
{
    const struct sl_pool_holder *holder = self;
    struct filling filling = {.job = job};
    const struct sl_fill_config config = {.name = job->name,
                                          .places = &holder->place,
                                          .place_count = 1,
                                          .admit = admit,
                                          .planned = planned,
                                          .arg = &filling,
                                          .cancel = job->cancel,
                                          .progress = job->progress};
    struct sl_load_result result;
    struct sl_pool_model *model = NULL;
    char where[128];
    *body = NULL;
    if (sl_fill_run(job->spec, &config, &model, &result, err) < 0)
        return -1;
    if (!model)
        return 0; /* it was there */
    *body = model;
    keep(self, model);
    snprintf(where, sizeof(where), "the pool (%s)", sl_pool_model_memory(model));
    sl_load_say(&result, job->progress, job->name, where);
    return 0;
}

/* ---- after a restart ------------------------------------------------------------------------ */

struct found {
    struct sl_pool_model **models; /* owned */
    size_t count, capacity;
};

static void note(void *arg, struct sl_pool_model *model)
{
    struct found *found = arg;
    if (sl_grow(&found->models, &found->capacity, found->count + 1, sizeof(*found->models), NULL) <
        0) {
        sl_log(SL_LOG_ERROR, "'%s' is not taken over: out of memory", sl_pool_model_name(model));
        sl_pool_model_free(model);
        return;
    }
    found->models[found->count++] = model;
}

static int64_t made_seconds(const struct sl_pool_model *model)
{
    struct sl_pool_view view;
    sl_pool_model_view(model, &view);
    return view.made_seconds;
}

static int by_age(const void *a, const void *b)
{
    int64_t x = made_seconds(*(struct sl_pool_model *const *)a);
    int64_t y = made_seconds(*(struct sl_pool_model *const *)b);
    return x < y ? -1 : x > y;
}

static struct sl_gpu *find_gpu(void *arg, const uint8_t uuid[16], struct sl_err *err)
{
    return sl_gpu_holders_by_uuid(arg, uuid, err);
}

/* Whose it is now. */
static const struct sl_holder *holder_of(struct sl_pool_holder *holder, struct sl_gpu_holders *gpus,
                                         const struct sl_pool_model *model)
{
    uint32_t placement = sl_pool_model_placement(model);
    unsigned first = (unsigned)__builtin_ctz(placement);
    if (sl_placement_count(placement) > 1)
        return sl_gpu_holders_all(gpus);
    return first == SL_SPACE_HOST ? &holder->ops : sl_gpu_holders_ops(gpus, first - SL_SPACE_GPU);
}

static int adopt(const struct sl_holder *holder, struct sl_registry *registry,
                 struct sl_pool_model *model, struct sl_err *err)
{
    char version[SL_VERSION_TEXT];
    const char *key = sl_pool_model_key(model);
    uint32_t owner = 0;
    if (!sl_pool_model_owner(model, &owner) && *key)
        return sl_fail(err, SL_E_INTEGRITY, "a deposit of '%.80s' has no owner",
                       sl_pool_model_name(model));
    const struct sl_registry_found found = {
        .name = sl_pool_model_name(model),
        .version = sl_version_text(sl_pool_model_identity(model), version),
        .key = *key ? key : NULL,
        .owner = owner,
        .identity = sl_pool_model_identity(model),
        .bytes = *key ? sl_pool_model_bytes(model) : sl_slabs_taken(model),
        .ready = true,
        .current = true, /* the one that was made last stays so */
        .body = model};
    if (!sl_is_model_name(found.name))
        return sl_fail(err, SL_E_FORMAT, "'%.80s' is not a name of a model", found.name);
    if (sl_registry_adopt(registry, holder, &found, err) < 0)
        return -1;
    sl_log(SL_LOG_INFO, "'%s' is in the pool (%s), as the daemon before left it", found.name,
           sl_pool_model_memory(model));
    return 0;
}

static void take(struct sl_pool_holder *holder, struct sl_gpu_holders *gpus,
                 struct sl_registry *registry, struct sl_pool_model *model, unsigned gpu_count)
{
    struct sl_err why = SL_ERR_INIT;
    const struct sl_holder *own = holder_of(holder, gpus, model);
    if (!sl_rejoin_is_whole(model, gpu_count))
        sl_fail(&why, SL_E_INTEGRITY, "'%.80s' was on every GPU, and is not on each of %u now",
                sl_pool_model_name(model), gpu_count);
    else if (adopt(own, registry, model, &why) == 0)
        return;
    sl_log(SL_LOG_WARN, "a model of the daemon before is not taken over: %s", why.message);
    own->drop(own->self, NULL, NULL, model, NULL);
}

static unsigned count_gpus(const struct found *found)
{
    int count = 0;
    for (size_t i = 0; i < found->count; i++)
        if (sl_placement_count(sl_pool_model_placement(found->models[i])) > 1)
            return sl_gpu_count(&count, NULL) < 0 ? 0 : (unsigned)count;
    return 0;
}

void sl_pool_holder_scan(struct sl_pool_holder *holder, struct sl_gpu_holders *gpus,
                         struct sl_registry *registry, struct sl_systemd_sockets *given)
{
    const struct sl_pool_gpus where = {find_gpu, gpus};
    struct found found = {NULL};
    if (holder->place.kind == SL_SLAB_TMPFS)
        sl_pool_files_scan(&holder->place, note, &found);
    if (given)
        sl_pool_store_scan(given, &where, note, &found);
    if (found.count)
        qsort(found.models, found.count, sizeof(*found.models), by_age);
    unsigned gpu_count = count_gpus(&found);
    sl_rejoin(found.models, found.count, gpu_count);
    for (size_t i = 0; i < found.count; i++)
        if (found.models[i])
            take(holder, gpus, registry, found.models[i], gpu_count);
    free(found.models);
}

/* ---- the holder ----------------------------------------------------------------------------- */

static bool is_id(const char *name)
{
    return strlen(name) == SL_POOL_ID_TEXT - 1 &&
           strspn(name, "0123456789abcdef") == SL_POOL_ID_TEXT - 1;
}

/* Under a name that no scan looks at. */
static void set_aside(int directory_fd, const char *name)
{
    char hidden[300];
    snprintf(hidden, sizeof(hidden), ".foreign-%.255s", name);
    if (renameat(directory_fd, name, directory_fd, hidden) < 0)
        sl_log(SL_LOG_ERROR, "'%.100s' in the pool's directory cannot be removed: %s", name,
               strerror(errno));
}

/* Only what others planted before the folder was closed to them: nobody can now. What cannot be
 * looked at stays. */
static bool is_foreign(int directory_fd, const char *id)
{
    struct sl_err why = SL_ERR_INIT;
    sl_autoclose int fd = sl_node_open_own(directory_fd, id, false, id, &why);
    if (fd >= 0)
        sl_node_check_entries(fd, id, &why);
    return strcmp(why.code, "owner") == 0;
}

static void remove_foreign(const struct sl_node_folder *folder)
{
    int fd = openat(folder->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries)
        sl_autoclose_(&fd);
    for (struct dirent *entry; entries && (entry = sl_next_entry(entries));) {
        if (!is_id(entry->d_name) || !is_foreign(folder->fd, entry->d_name))
            continue;
        sl_log(SL_LOG_WARN, "'%.100s' in the pool's directory was made by another user: removed",
               entry->d_name);
        if (sl_tree_remove(folder->fd, entry->d_name) < 0)
            set_aside(folder->fd, entry->d_name);
    }
    if (entries && errno)
        sl_log(SL_LOG_WARN, "what others made in '%s' may still be there: it cannot be read: %s",
               folder->path, strerror(errno));
    if (entries)
        closedir(entries);
}

static int open_directory(struct sl_pool_holder *holder, const char *path, struct sl_err *err)
{
    if (sl_node_folder_open(path, &holder->folder, err) < 0)
        return -1;
    holder->lock_fd = sl_node_lock(holder->folder.fd, holder->folder.path, err);
    if (holder->lock_fd < 0)
        return -1;
    remove_foreign(&holder->folder);
    return 0;
}

struct sl_pool_holder *sl_pool_holder_new(const char *directory, struct sl_err *err)
{
    SL_AUTO(sl_pool_holder) holder = sl_alloc(sizeof(*holder), err);
    if (!holder)
        return NULL;
    holder->folder.fd = holder->lock_fd = -1;
    holder->watcher = sl_held_watcher_new(err);
    if (!holder->watcher)
        return NULL;
    if (directory && open_directory(holder, directory, err) < 0)
        return NULL;
    sl_slab_place_probe(holder->folder.fd, &holder->place);
    sl_log(directory && holder->place.kind != SL_SLAB_TMPFS ? SL_LOG_WARN : SL_LOG_DEBUG,
           "the pool's memory: %s", holder->place.why);
    holder->ops = (struct sl_holder){.name = "pool",
                                     .placement = SL_PLACEMENT(SL_SPACE_HOST),
                                     .shares = true,
                                     .self = holder,
                                     .load = load,
                                     .measure = sl_load_measure,
                                     .drop = drop,
                                     .watch = watch,
                                     .leave = leave,
                                     .keep = keep};
    return sl_steal(&holder);
}

void sl_pool_holder_free(struct sl_pool_holder *holder)
{
    if (!holder)
        return;
    sl_node_folder_release(&holder->folder);
    sl_autoclose_(&holder->lock_fd);
    sl_held_watcher_free(holder->watcher);
    free(holder);
}

const struct sl_holder *sl_pool_holder_ops(struct sl_pool_holder *holder)
{
    return &holder->ops;
}
