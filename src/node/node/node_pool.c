/*
 * A lease is a reference of the registry, which goes to the server as the cookie of a grant and
 * comes back when the lease ends: the client may be gone before the grant has returned, so nothing
 * of the reference is touched after it.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "node_pool_parts.h"
#include "selinux_label.h"

enum { POOL_BACKLOG = 512 };

/* An attach that waits, from its request to its answer. */
struct attach {
    struct sl_deferred_call call; /* first: to find its GPU */
    struct sl_node_pool *pool;
    struct sl_pool_request *request;
    unsigned space; /* where it is wanted */
    /* Guarded by the pool: */
    struct attach *next;
    bool gone; /* its client */
};

/* ---- attach --------------------------------------------------------------------------------- */

/* With the lock held: where the attach of a request is, or would be. A request may have been freed:
 * only its address is looked at. */
static struct attach **find_attach(struct sl_node_pool *pool, const struct sl_pool_request *request)
{
    uint64_t mixed = (uint64_t)(uintptr_t)request * UINT64_C(0x9e3779b97f4a7c15);
    struct attach **at = &pool->locked.attaches[(mixed >> 32) % SL_NODE_POOL_ATTACHES];
    while (*at && (*at)->request != request)
        at = &(*at)->next;
    return at;
}

/* With the lock held: it is about to be answered. */
static void take_attach(struct sl_node_pool *pool, const struct attach *attach)
{
    struct attach **at = find_attach(pool, attach->request);
    if (*at)
        *at = attach->next;
}

static void leave_list(struct attach *attach)
{
    SL_LOCKED(&attach->pool->lock);
    take_attach(attach->pool, attach);
}

/* It is in no list any more. */
static void refuse(struct attach *attach, const struct sl_err *why)
{
    sl_pool_request_refuse(attach->request, why);
    free(attach);
}

static void leave_and_refuse(struct attach *attach, const struct sl_err *why)
{
    leave_list(attach);
    refuse(attach, why);
}

static void refuse_place(const char *name, uint32_t placement, struct sl_err *err)
{
    char place[16];
    sl_placement_name(placement, place);
    if (sl_placement_count(placement) > 1) {
        sl_fail_code(err, SL_E_USAGE, "device",
                     "the model '%.100s' is on each GPU that the pool sees ('%s'), and not there: "
                     "attach to it on one of them",
                     name, place);
        return;
    }
    sl_fail_code(err, SL_E_USAGE, "device",
                 "the model '%.100s' is in memory of '%s': attach to it there", name, place);
}

static void on_answer(void *arg, struct sl_model_ref *ref, const struct sl_err *why)
{
    struct attach *attach = arg;
    struct sl_node_pool *pool = attach->pool;
    struct sl_err err = SL_ERR_INIT;
    char path[SL_PUBLISH_PATH_MAX];
    leave_list(attach);
    if (!ref) {
        refuse(attach, why);
        return;
    }
    struct sl_pool_model *model = sl_model_ref_body(ref);
    if (!model) {
        sl_model_ref_path(ref, path);
        sl_fail_code(&err, SL_E_USAGE, "files",
                     "the model '%s' is held as files in '%.300s', not in the pool: give its spec "
                     "'sink: {pool: {}}'",
                     sl_model_ref_name(ref), path);
        sl_registry_release(pool->registry, ref);
        refuse(attach, &err);
        return;
    }
    struct sl_pool_copy *copy = sl_pool_model_copy_in(model, attach->space);
    if (!copy) {
        refuse_place(sl_model_ref_name(ref), sl_model_ref_placement(ref), &err);
        sl_registry_release(pool->registry, ref);
        refuse(attach, &err);
        return;
    }
    if (!sl_pool_request_grant(attach->request, copy, ref))
        sl_registry_release(pool->registry, ref);
    free(attach);
}

static void run_attach(struct sl_deferred_call *call);

static struct attach *new_attach(struct sl_node_pool *pool, struct sl_pool_request *request,
                                 struct sl_err *err)
{
    struct attach *attach = sl_alloc(sizeof(*attach), err);
    if (!attach)
        return NULL;
    attach->call.run = run_attach;
    attach->pool = pool;
    attach->request = request;
    attach->space = SL_SPACE_HOST;
    SL_LOCKED(&pool->lock);
    *find_attach(pool, request) = attach;
    return attach;
}

/* The name of what a client means: as it is, or that of a URI, which is known from now on, there.
 */
static int find_name(struct sl_node_pool *pool, const char *model, unsigned space, uint32_t user,
                     char name[SL_NODE_URI_NAME], const char **found, struct sl_err *err)
{
    struct sl_node *node;
    char device[16];
    *found = model;
    if (!sl_node_is_uri(model))
        return 0;
    {
        SL_LOCKED(&pool->lock);
        node = pool->locked.node;
    }
    *found = name;
    return node ? sl_node_define_uri(node, model, sl_space_name(space, device), user, name, err)
                : sl_fail(err, SL_E_AUTH, "this pool takes no URIs: ask for a model by its name");
}

/* On a GPU there may be what was made from the same URI on the host, too. */
static void attach_derived(struct attach *attach, const struct sl_pool_attach_args *wanted,
                           const char *name, const char *who)
{
    struct sl_node_pool *pool = attach->pool;
    struct sl_err err = SL_ERR_INIT, why = SL_ERR_INIT;
    char on_host[SL_NODE_URI_NAME];
    struct sl_node_pool_view view;
    sl_node_pool_find_view(pool, wanted->peer.user, &view);
    struct sl_model_ref *ref =
        sl_registry_hold_derived(pool->registry, name, wanted->key, &view.view, who, &err);
    if (!ref && err.kind == SL_E_NOT_FOUND && attach->space != SL_SPACE_HOST &&
        find_name(pool, wanted->model, SL_SPACE_HOST, wanted->peer.user, on_host, &name, &why) == 0)
        ref = sl_registry_hold_derived(pool->registry, name, wanted->key, &view.view, who, &err);
    on_answer(attach, ref, &err);
}

/* Where it is wanted. A load is not begun only to find that it is elsewhere. */
static int find_space(struct sl_node_pool *pool, const struct sl_pool_attach_args *wanted,
                      unsigned *space, struct sl_err *err)
{
    if (sl_node_pool_find_device(pool, wanted->device, space, err) < 0)
        return -1;
    uint32_t own = *wanted->key ? 0 : sl_registry_placement(pool->registry, wanted->model);
    if (!own || sl_placement_has(own, *space))
        return 0;
    refuse_place(wanted->model, own, err);
    return -1;
}

static bool is_gone(const struct attach *attach)
{
    SL_LOCKED(&attach->pool->lock);
    return attach->gone;
}

/* Its place, and its name there; nothing is defined for a client that has left. */
static int find_wanted(struct attach *attach, char of_uri[SL_NODE_URI_NAME], const char **name,
                       struct sl_err *err)
{
    const struct sl_pool_attach_args *wanted = sl_pool_request_args(attach->request);
    if (find_space(attach->pool, wanted, &attach->space, err) < 0)
        return -1;
    if (is_gone(attach))
        return sl_fail(err, SL_E_CANCELED, "its client has gone");
    return find_name(attach->pool, wanted->model, attach->space, wanted->peer.user, of_uri, name,
                     err);
}

/* While the lock is held no answer frees it. goes: its client has just gone. NULL: that has not, or
 * the answer is on its way, or nothing was asked yet and so the registry knows nothing of it. */
static struct attach *withdraw(struct sl_node_pool *pool, const struct sl_pool_request *request,
                               bool goes)
{
    SL_LOCKED(&pool->lock);
    struct attach *attach = *find_attach(pool, request);
    if (!attach)
        return NULL;
    attach->gone |= goes;
    if (!attach->gone || !sl_registry_withdraw(pool->registry, attach))
        return NULL;
    take_attach(pool, attach);
    return attach;
}

static void refuse_gone(struct attach *attach)
{
    static const struct sl_err why = {.kind = SL_E_CANCELED, .message = "its client has gone"};
    if (attach)
        refuse(attach, &why);
}

static void ask(struct attach *attach, const char *name, const char *who)
{
    char sharer[SL_SHARER_BYTES];
    struct sl_node_pool *pool = attach->pool;
    const struct sl_pool_request *request = attach->request;
    const struct sl_pool_attach_args *args = sl_pool_request_args(request);
    struct sl_err err = SL_ERR_INIT;
    const struct sl_ask wanted = {.name = name,
                                  .kind = SL_REF_LEASE,
                                  .who = who,
                                  .sharer = sl_node_sharer(args->peer.user, sharer),
                                  .early = true,
                                  .present = args->present_only,
                                  .answer = on_answer,
                                  .arg = attach};
    if (sl_registry_ask(pool->registry, &wanted, &err) < 0)
        leave_and_refuse(attach, &err);
    else
        refuse_gone(withdraw(pool, request, false)); /* it may have gone just before */
}

static void begin(struct attach *attach)
{
    const struct sl_pool_attach_args *wanted = sl_pool_request_args(attach->request);
    struct sl_err err = SL_ERR_INIT;
    char who[SL_REF_WHO_BYTES], of_uri[SL_NODE_URI_NAME];
    const char *name;
    snprintf(who, sizeof(who), "pid %d uid %u %.40s", wanted->peer.pid, wanted->peer.uid,
             wanted->peer.name);
    if (find_wanted(attach, of_uri, &name, &err) < 0)
        leave_and_refuse(attach, &err);
    else if (*wanted->key)
        attach_derived(attach, wanted, name, who);
    else
        ask(attach, name, who);
}

static void run_attach(struct sl_deferred_call *call)
{
    begin((struct attach *)call);
}

/* The driver may take seconds to open GPUs, or hang: a thread that does nothing else asks it, so
 * that the server goes on, and so do those who wait for memory. */
static void attach(void *arg, struct sl_pool_request *request)
{
    struct sl_node_pool *pool = arg;
    struct sl_err err = SL_ERR_INIT;
    struct attach *waiting = new_attach(pool, request, &err);
    if (!waiting)
        sl_pool_request_refuse(request, &err);
    else if (pool->gpus && sl_gpu_holders_opens(pool->gpus, sl_pool_request_args(request)->device))
        sl_deferred_thread_add(pool->drivers[SL_GPUS_MAX], &waiting->call);
    else
        begin(waiting);
}

static void withdrawn(void *arg, struct sl_pool_request *request)
{
    refuse_gone(withdraw(arg, request, true));
}

static void released(void *arg, void *cookie)
{
    const struct sl_node_pool *pool = arg;
    sl_registry_release(pool->registry, cookie);
}

static void defer(void *arg, struct sl_deferred_call *what)
{
    const struct sl_node_pool *pool = arg;
    sl_registry_defer(pool->registry, what);
}

static void ask_driver(void *arg, const struct sl_gpu *gpu, struct sl_deferred_call *what)
{
    const struct sl_node_pool *pool = arg;
    sl_deferred_thread_add(pool->drivers[sl_gpu_device(gpu)->ordinal], what);
}

/* ---- lists and eviction --------------------------------------------------------------------- */

static int add_row(struct sl_pool_listing *listing, const struct sl_registry_entry *entry,
                   const char *device, struct sl_pool_copy *copy)
{
    const struct sl_pool_entry listed = {.name = entry->name,
                                         .key = entry->key,
                                         .device = device,
                                         .copy = copy,
                                         .owner = entry->owner,
                                         .pinned = entry->pinned,
                                         .used_seconds = entry->used_seconds,
                                         .left_bytes = entry->left_bytes,
                                         .left_text = entry->left_text};
    return sl_pool_listing_add(listing, &listed);
}

/* A row for each copy, once it is there. */
static int add_entry(void *arg, const struct sl_registry_entry *entry)
{
    char device[16];
    int done = 0;
    if (!entry->body)
        return add_row(arg, entry, sl_placement_name(entry->placement, device), NULL);
    for (size_t i = 0; done == 0 && i < sl_pool_model_copies(entry->body); i++) {
        struct sl_pool_copy *copy = sl_pool_model_copy(entry->body, i);
        done = add_row(arg, entry, sl_space_name(sl_pool_copy_space(copy), device), copy);
    }
    return done;
}

static void list(void *arg, struct sl_pool_listing *listing)
{
    const struct sl_node_pool *pool = arg;
    sl_registry_each(pool->registry, "pool", add_entry, listing);
}

static int evict(void *arg, const char *model, const char *key, uint64_t *bytes, struct sl_err *err)
{
    const struct sl_node_pool *pool = arg;
    if (*key)
        return sl_registry_evict_derived(pool->registry, model, key, bytes, err);
    return sl_registry_evict(pool->registry, model, bytes, err);
}

/* ---- the server ----------------------------------------------------------------------------- */

/* What is said of deposits beside the right to make them. */
static void take_deposits(struct sl_node_pool *pool, const struct sl_node_spec *spec)
{
    SL_LOCKED(&pool->lock);
    pool->locked.trusted[0] = SL_PEER_PRIVILEGED;
    pool->locked.trusted_count =
        1 + sl_node_pool_ids(&spec->pool.shared_uids, pool->locked.trusted + 1);
    pool->locked.deposit_bytes = spec->pool.deposit_bytes;
}

static int listen_at_path(struct sl_node_pool *pool, const struct sl_node_spec *spec, int *fd,
                          struct sl_err *err)
{
    const struct sl_node_socket_options socket = {spec->pool.socket,
                                                  SOCK_SEQPACKET,
                                                  POOL_BACKLOG,
                                                  pool->door.mode,
                                                  spec->pool.group ? pool->door.gid : UINT32_MAX,
                                                  sl_selinux_label(spec)};
    if (sl_node_socket_open(&socket, &pool->socket, err) < 0)
        return -1;
    *fd = pool->socket.fd;
    pool->socket.fd = -1;
    return 0;
}

/* All but its server. */
static struct sl_node_pool *new_pool(const struct sl_node_spec *spec, bool own_socket,
                                     struct sl_pool_server_config *config, struct sl_err *err)
{
    sl_autofree struct sl_node_pool *pool = sl_alloc(sizeof(*pool), err);
    if (!pool)
        return NULL;
    pool->door = (struct sl_node_pool_door){.own = own_socket, .gid = (uint32_t)getegid()};
    if ((spec->pool.group && sl_node_spec_id(spec->pool.group, &pool->door.gid, err) < 0) ||
        sl_node_pool_rights(spec, &pool->door, config, err) < 0)
        return NULL;
    pool->socket.fd = pool->socket.folder_fd = -1;
    pthread_mutex_init(&pool->lock, NULL);
    take_deposits(pool, spec);
    return sl_steal(&pool);
}

/* Their threads begin when there is something to ask. */
static int make_drivers(struct sl_node_pool *pool, struct sl_err *err)
{
    for (unsigned i = 0; i < SL_COUNT(pool->drivers); i++)
        if (!(pool->drivers[i] = sl_deferred_thread_new("sluice-driver", err)))
            return -1;
    return 0;
}

struct sl_node_pool *sl_node_pool_start_with(struct sl_registry *registry,
                                             struct sl_gpu_holders *gpus,
                                             const struct sl_node_spec *spec, int listen_fd,
                                             struct sl_err *err)
{
    static const struct sl_pool_handler handler = {.attach = attach,
                                                   .withdrawn = withdrawn,
                                                   .released = released,
                                                   .list = list,
                                                   .evict = evict,
                                                   .deposit_begin = sl_node_deposit_begin,
                                                   .deposit_gpu = sl_node_deposit_gpu,
                                                   .deposit_commit = sl_node_deposit_commit,
                                                   .deposit_abort = sl_node_deposit_abort,
                                                   .deposited_fds = sl_node_deposited_fds,
                                                   .defer = defer,
                                                   .ask_driver = ask_driver};
    struct sl_pool_server_config config = {.listen_fd = listen_fd};
    SL_AUTO(sl_node_pool) pool = new_pool(spec, listen_fd < 0, &config, err);
    if (!pool || make_drivers(pool, err) < 0 ||
        (listen_fd < 0 && listen_at_path(pool, spec, &config.listen_fd, err) < 0)) {
        sl_autoclose_(&listen_fd);
        return NULL;
    }
    pool->registry = registry;
    pool->gpus = gpus;
    pool->server = sl_pool_server_start(&config, &handler, pool, err);
    return pool->server ? sl_steal(&pool) : NULL;
}

void sl_node_pool_free(struct sl_node_pool *pool)
{
    if (!pool)
        return;
    sl_pool_server_free(pool->server);
    for (unsigned i = 0; i < SL_COUNT(pool->drivers); i++)
        sl_deferred_thread_free(pool->drivers[i]);
    sl_node_socket_release(&pool->socket);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void sl_node_pool_allow_uris(struct sl_node_pool *pool, struct sl_node *node)
{
    SL_LOCKED(&pool->lock);
    pool->locked.node = node;
}

void sl_node_pool_reload(struct sl_node_pool *pool, const struct sl_node_spec *spec)
{
    struct sl_pool_server_config config = {.listen_fd = -1};
    struct sl_err why = SL_ERR_INIT;
    if (sl_node_pool_rights(spec, &pool->door, &config, &why) < 0) {
        sl_log(SL_LOG_ERROR, "the rights of the new config are not applied: %s", why.message);
        return;
    }
    take_deposits(pool, spec);
    sl_pool_server_set_rights(pool->server, &config);
    if (sl_node_socket_set_mode(&pool->socket, pool->door.mode, &why) < 0)
        sl_log(SL_LOG_WARN, "%s: the old one stays in force", why.message);
}
