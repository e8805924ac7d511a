/* Models are planned from a memory source and filled by hand, so that a test decides what is ready
 * when. */
#include "pool_case.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "await.h"
#include "memory_store.h"
#include "model_maker.h"
#include "pool_index.h"
#include "scratch.h"

static char directory[SL_SCRATCH_PATH_BYTES];
static int directory_fd = -1;

/* ---- the owner ------------------------------------------------------------------------------- */

static struct sl_pool_model *find(struct pool_case *pool, const char *name, const char *key)
{
    for (int i = 0; i < POOL_CASE_MODELS; i++) {
        struct sl_pool_model *model = pool->locked.models[i];
        if (model && strcmp(sl_pool_model_name(model), name) == 0 &&
            strcmp(sl_pool_model_key(model), key) == 0)
            return model;
    }
    return NULL;
}

static bool is_owned(const struct pool_case *pool, const struct sl_pool_model *model)
{
    for (int i = 0; i < POOL_CASE_MODELS; i++)
        if (pool->locked.models[i] == model)
            return true;
    for (const struct pool_case_lease *at = pool->locked.leases; at; at = at->next)
        if (at->model == model)
            return true;
    return false;
}

/* The cookie is back, or was never given. */
static void end_lease(struct pool_case *pool, struct pool_case_lease *lease)
{
    SL_LOCKED(&pool->lock);
    struct pool_case_lease **at = &pool->locked.leases;
    while (*at && *at != lease)
        at = &(*at)->next;
    ck_assert_msg(*at, "a cookie comes back that is not out");
    *at = lease->next;
    if (!is_owned(pool, lease->model))
        sl_pool_model_free(lease->model);
    free(lease);
}

bool pool_case_grant(struct pool_case *pool, struct sl_pool_request *request,
                     struct sl_pool_model *model)
{
    struct pool_case_lease *lease = malloc(sizeof(*lease));
    ck_assert_ptr_nonnull(lease);
    {
        SL_LOCKED(&pool->lock);
        *lease = (struct pool_case_lease){pool->locked.leases, model};
        pool->locked.leases = lease;
        pool->locked.granted++; /* the lease may be over before the grant has returned */
    }
    if (sl_pool_request_grant(request, sl_pool_model_copy(model, 0), lease))
        return true;
    {
        SL_LOCKED(&pool->lock);
        pool->locked.granted--;
    }
    end_lease(pool, lease);
    return false;
}

/* NULL: it is held, or there is no such model. */
static struct sl_pool_model *hold_or_find(struct pool_case *pool, struct sl_pool_request *request,
                                          bool *held)
{
    const struct sl_pool_attach_args *wanted = sl_pool_request_args(request);
    SL_LOCKED(&pool->lock);
    *held = pool->locked.hold;
    if (!*held)
        return find(pool, wanted->model, wanted->key);
    ck_assert_uint_lt(pool->locked.held_count, SL_COUNT(pool->locked.held));
    pool->locked.held[pool->locked.held_count++] = request;
    return NULL;
}

static void on_attach(void *arg, struct sl_pool_request *request)
{
    bool held;
    struct sl_err err = SL_ERR_INIT;
    struct sl_pool_model *model = hold_or_find(arg, request, &held);
    if (held)
        return;
    if (model) {
        pool_case_grant(arg, request, model);
        return;
    }
    sl_fail(&err, SL_E_NOT_FOUND, "no model '%s'", sl_pool_request_args(request)->model);
    sl_pool_request_refuse(request, &err);
}

static void on_withdrawn(void *arg, struct sl_pool_request *request)
{
    struct pool_case *pool = arg;
    (void)request;
    SL_LOCKED(&pool->lock);
    pool->locked.withdrawn++;
}

static void on_released(void *arg, void *cookie)
{
    struct pool_case *pool = arg;
    end_lease(pool, cookie);
    SL_LOCKED(&pool->lock);
    pool->locked.released++;
}

static void on_list(void *arg, struct sl_pool_listing *listing)
{
    struct pool_case *pool = arg;
    SL_LOCKED(&pool->lock);
    for (int i = 0; i < POOL_CASE_MODELS; i++) {
        struct sl_pool_model *model = pool->locked.models[i];
        if (!model)
            continue;
        const struct sl_pool_entry entry = {.name = sl_pool_model_name(model),
                                            .key = sl_pool_model_key(model),
                                            .device = "host",
                                            .copy = sl_pool_model_copy(model, 0),
                                            .pinned = i == 0};
        if (sl_pool_listing_add(listing, &entry) < 0)
            return;
    }
}

static int on_evict(void *arg, const char *name, const char *key, uint64_t *bytes,
                    struct sl_err *err)
{
    struct pool_case *pool = arg;
    SL_LOCKED(&pool->lock);
    struct sl_pool_model *model = find(pool, name, key);
    if (!model)
        return sl_fail(err, SL_E_NOT_FOUND, "no model '%s'", name);
    *bytes = sl_pool_model_bytes(model);
    for (int i = 0; i < POOL_CASE_MODELS; i++)
        if (pool->locked.models[i] == model)
            pool->locked.models[i] = NULL;
    if (!is_owned(pool, model))
        sl_pool_model_free(model);
    pool->locked.evicted++;
    return 0;
}

static int on_begin(void *arg, const struct sl_pool_offer *offer, struct sl_err *err)
{
    struct pool_case *pool = arg;
    SL_LOCKED(&pool->lock);
    if (pool->locked.refuse_deposits)
        return sl_fail(err, SL_E_NO_SPACE, "the budget is used up");
    if (find(pool, offer->model, offer->key))
        return sl_fail_code(err, SL_E_INTEGRITY, "exists", "there is one");
    pool->locked.begun++;
    return 0;
}

static void keep(struct pool_case *pool, struct sl_pool_model *model)
{
    for (int i = 0; i < POOL_CASE_MODELS; i++)
        if (!pool->locked.models[i]) {
            pool->locked.models[i] = model;
            return;
        }
    ck_abort_msg("too many models");
}

static int on_commit(void *arg, const struct sl_pool_offer *offer, struct sl_pool_model *model,
                     struct sl_err *err)
{
    struct pool_case *pool = arg;
    (void)offer, (void)err;
    SL_LOCKED(&pool->lock);
    keep(pool, model);
    pool->locked.committed++;
    return 0;
}

static void on_abort(void *arg, const struct sl_pool_offer *offer)
{
    struct pool_case *pool = arg;
    (void)offer;
    SL_LOCKED(&pool->lock);
    pool->locked.aborted++;
}

static void on_defer(void *arg, struct sl_deferred_call *call)
{
    struct pool_case *pool = arg;
    bool hold;
    {
        SL_LOCKED(&pool->lock);
        hold = pool->locked.hold_laters;
        if (hold) {
            call->next = pool->locked.deferred;
            pool->locked.deferred = call;
        }
    }
    if (!hold)
        call->run(call);
}

unsigned pool_case_run_laters(struct pool_case *pool)
{
    unsigned count = 0;
    SL_LOCKED(&pool->lock);
    while (pool->locked.deferred) {
        struct sl_deferred_call *call = pool->locked.deferred;
        pool->locked.deferred = call->next;
        call->run(call);
        count++;
    }
    return count;
}

/* ---- life ------------------------------------------------------------------------------------ */

void pool_case_init(struct pool_case *pool)
{
    memset(pool, 0, sizeof(*pool));
    pthread_mutex_init(&pool->lock, NULL);
    directory_fd = sl_scratch_open(directory);
    snprintf(pool->socket, sizeof(pool->socket), "%s/pool.sock", directory);
    pool->config = (struct sl_pool_server_config){.listen_fd = -1};
    pool->listening.fd = pool->listening.folder_fd = -1;
}

static size_t on_deposited_fds(void *arg, uint32_t user, uint32_t uid)
{
    const struct pool_case *pool = arg;
    (void)user;
    return uid == pool->kept_uid ? pool->kept_fds : 0;
}

void pool_case_start(struct pool_case *pool)
{
    static const struct sl_pool_handler handler = {.attach = on_attach,
                                                   .withdrawn = on_withdrawn,
                                                   .released = on_released,
                                                   .list = on_list,
                                                   .evict = on_evict,
                                                   .deposit_begin = on_begin,
                                                   .deposit_commit = on_commit,
                                                   .deposit_abort = on_abort,
                                                   .deposited_fds = on_deposited_fds,
                                                   .defer = on_defer};
    struct sl_err err = SL_ERR_INIT;
    const struct sl_node_socket_options wanted = {pool->socket, SOCK_SEQPACKET, 512, 0666,
                                                  UINT32_MAX};
    ck_assert_msg(sl_node_socket_open(&wanted, &pool->listening, &err) == 0, "%s", err.message);
    pool->config.listen_fd = pool->listening.fd;
    pool->listening.fd = -1;
    pool->server = sl_pool_server_start(&pool->config, &handler, pool, &err);
    ck_assert_msg(pool->server != NULL, "%s", err.message);
}

void pool_case_stop(struct pool_case *pool)
{
    sl_pool_server_free(sl_steal(&pool->server));
    sl_node_socket_release(&pool->listening);
}

void pool_case_release(struct pool_case *pool)
{
    struct sl_err gone = {.kind = SL_E_CANCELED};
    pool_case_stop(pool);
    for (unsigned i = 0; i < pool->locked.held_count; i++)
        sl_pool_request_refuse(pool->locked.held[i], &gone);
    ck_assert_ptr_null(pool->locked.leases);
    for (int i = 0; i < POOL_CASE_MODELS; i++)
        sl_pool_model_free(pool->locked.models[i]);
    pthread_mutex_destroy(&pool->lock);
    sl_scratch_close(directory_fd, directory);
}

/* ---- models ---------------------------------------------------------------------------------- */

struct sl_pool_model *pool_case_add(struct pool_case *pool, const char *name, const char *tensors,
                                    unsigned items, uint64_t slab_bytes)
{
    struct sl_specs specs;
    struct sl_slab_place place;
    struct sl_err err = SL_ERR_INIT;
    size_t bytes;
    uint8_t *blob = sl_model_safetensors(tensors, items, &bytes);
    ck_assert_int_eq(sl_memory_put("m.safetensors", blob, bytes, NULL), 0);
    sl_model_spec(&specs, "memory://m.safetensors", "/t", "");
    const struct sl_plan_output wanted = sl_slabs_output(slab_bytes);
    SL_AUTO(sl_plan) plan = NULL;
    ck_assert_int_eq(sl_model_plan_as(&specs, &wanted, &plan, &err), 0);
    sl_slab_place_probe(-1, &place);
    struct sl_pool_model *model = sl_pool_model_plan(name, plan, &place, 1, &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    {
        SL_LOCKED(&pool->lock);
        keep(pool, model);
    }
    sl_plan_free(sl_steal(&plan));
    sl_specs_release(&specs);
    sl_memory_clear();
    free(blob);
    return model;
}

void pool_case_publish(struct pool_case *pool, struct sl_pool_model *model)
{
    SL_LOCKED(&pool->lock);
    struct sl_pool_model *before = pool->locked.models[0];
    pool->locked.models[0] = model;
    if (!is_owned(pool, before))
        sl_pool_model_free(before);
}

void pool_case_fill(struct sl_pool_model *model, size_t number, float value)
{
    struct sl_pool_copy *copy = model->copies[0];
    char why[SL_POOL_WHY_BYTES];
    struct sl_pool_index index;
    sl_autofree uint64_t *data = malloc(copy->index_bytes);
    ck_assert_int_eq(pread(copy->index_fd, data, copy->index_bytes, 0), (ssize_t)copy->index_bytes);
    ck_assert_int_eq(sl_pool_index_check(data, copy->index_bytes, &index, why), 0);
    const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&index, (uint32_t)number);
    const struct sl_slab *slab = &copy->slabs[tensor->slab];
    uint8_t *map = sl_pool_copy_map(copy, slab);
    for (uint64_t at = 0; at < tensor->bytes; at += sizeof(value))
        if (map)
            memcpy(map + tensor->offset + at, &value, sizeof(value));
        else
            ck_assert_int_eq(pwrite(slab->fd, &value, sizeof(value), (off_t)(tensor->offset + at)),
                             sizeof(value));
    sl_pool_copy_set_ready(copy, number);
}

void pool_case_fill_all(struct sl_pool_model *model)
{
    struct sl_err err = SL_ERR_INIT;
    for (size_t i = 0; i < model->copies[0]->tensor_count; i++)
        pool_case_fill(model, i, (float)(i + 1));
    ck_assert_int_eq(sl_pool_model_finish(model, &err), 0);
}

/* ---- waiting --------------------------------------------------------------------------------- */

void pool_case_await(struct pool_case *pool, const unsigned *counter, unsigned value)
{
    char what[64];
    snprintf(what, sizeof(what), "a counter of %u", value);
    SL_AWAIT(pool_case_count(pool, counter) == value, what);
}

void pool_case_counts(struct pool_case *pool, struct sl_pool_counts *counts)
{
    SL_LOCKED(&pool->server->lock);
    *counts = pool->server->locked.counts;
}

static bool has_counts(struct pool_case *pool, uint64_t clients, uint64_t leases)
{
    struct sl_pool_counts counts;
    pool_case_counts(pool, &counts);
    return counts.clients == clients && counts.leases == leases;
}

void pool_case_settle(struct pool_case *pool, uint64_t clients, uint64_t leases)
{
    char what[96];
    snprintf(what, sizeof(what), "%llu clients with %llu leases", (unsigned long long)clients,
             (unsigned long long)leases);
    SL_AWAIT(has_counts(pool, clients, leases), what);
}

unsigned pool_case_count_fds(void)
{
    unsigned count = 0;
    DIR *fds = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(fds);
    while (readdir(fds))
        count++;
    closedir(fds);
    return count;
}

int pool_case_try(struct pool_case *pool, const char *name, struct sluice_model **model,
                  struct sluice_error *error)
{
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = name,
                                                  .socket = pool->socket,
                                                  .client = "test",
                                                  .timeout_ms = 60000};
    return sluice_attach(&options, model, error);
}

struct sluice_model *pool_case_attach(struct pool_case *pool, const char *name)
{
    struct sluice_error error = {0};
    struct sluice_model *model = NULL;
    int done = pool_case_try(pool, name, &model, &error);
    ck_assert_msg(done == 0, "%s", error.message);
    return model;
}

unsigned pool_case_count(struct pool_case *pool, const unsigned *count)
{
    SL_LOCKED(&pool->lock);
    return *count;
}
