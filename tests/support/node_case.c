/* A node that ends and comes back, and who keeps something for it meanwhile. */
#include "node_case.h"

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "registry_settle.h"
#include "tree.h"

enum { TIMEOUT_MS = 300000 };

void node_case_init(struct node_case *c)
{
    memset(c, 0, sizeof(*c));
    sl_log_setup(SL_LOG_ERROR, false);
    c->scratch = sl_scratch_open(c->path);
    snprintf(c->socket, sizeof(c->socket), "%s/pool.sock", c->path);
}

void node_case_release(struct node_case *c)
{
    sl_alloc_fail_at(0);
    node_case_end(c);
    sl_memory_clear();
    for (size_t i = 0; i < c->blob_count; i++)
        free(c->blobs[i]);
    sl_scratch_close(c->scratch, c->path);
}

void node_case_put(struct node_case *c, const char *name, unsigned items)
{
    char object[128];
    size_t bytes;
    ck_assert_uint_lt(c->blob_count, NODE_CASE_BLOBS);
    uint8_t *blob = sl_model_safetensors("a,b", items, &bytes);
    c->blobs[c->blob_count++] = blob;
    snprintf(object, sizeof(object), "m/%s", name);
    ck_assert_int_eq(sl_memory_put(object, blob, bytes, NULL), 0);
}

static int configure(struct node_case *c, const char *keys, const char *models,
                     struct sl_node_config *config, struct sl_err *err)
{
    char text[4096];
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1MiB\n"
             "pool: {socket: %s%s}\n%s",
             c->path, c->socket, keys, models);
    ck_assert_int_eq(sl_tree_write(c->scratch, "node.yaml", text, strlen(text), err), 0);
    snprintf(text, sizeof(text), "%s/node.yaml", c->path);
    return sl_node_config_read(text, config, &complaints, err);
}

int node_case_try(struct node_case *c, const char *keys, const char *models,
                  struct sl_systemd_sockets *given, struct sl_err *err)
{
    struct sl_node_config config;
    if (configure(c, keys, models, &config, err) < 0) {
        sl_node_config_release(&config);
        return -1;
    }
    const struct sl_node_opening opening = {.given = given};
    c->node = sl_node_open(&config, &opening, err);
    c->pool = c->node
                  ? sl_node_pool_start_with(c->node->registry, c->node->gpus, &config.spec, -1, err)
                  : NULL;
    if (c->pool)
        sl_node_pool_allow_uris(c->pool, c->node);
    sl_node_config_release(&config);
    if (given)
        sl_systemd_close(given);
    return c->pool ? 0 : -1;
}

void node_case_open(struct node_case *c, const char *keys, const char *models,
                    struct sl_systemd_sockets *given)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(node_case_try(c, keys, models, given, &err) == 0, "%s", err.message);
    sl_registry_settle(c->node->registry);
}

void node_case_reload(struct node_case *c, const char *keys, const char *models)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_node_config config;
    ck_assert_msg(configure(c, keys, models, &config, &err) == 0, "%s", err.message);
    sl_node_pool_reload(c->pool, &config.spec);
    sl_node_config_release(&config);
}

void node_case_end(struct node_case *c)
{
    if (c->node)
        sl_registry_stop(c->node->registry);
    sl_node_pool_free(sl_steal(&c->pool));
    sl_node_free(sl_steal(&c->node));
}

struct sl_registry_counts node_case_counts(struct node_case *c)
{
    struct sl_registry_counts found;
    sl_registry_counts(c->node->registry, &found);
    return found;
}

static struct sluice_model *attach(struct node_case *c, const char *name, const char *key,
                                   unsigned flags)
{
    struct sluice_model *model = NULL;
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = name,
                                                  .key = key,
                                                  .socket = c->socket,
                                                  .flags = flags | SLUICE_KEEP_FDS,
                                                  .timeout_ms = TIMEOUT_MS};
    memset(&c->error, 0, sizeof(c->error));
    return sluice_attach(&options, &model, &c->error) < 0 ? NULL : model;
}

struct sluice_model *node_case_load(struct node_case *c, const char *name)
{
    return attach(c, name, NULL, 0);
}

struct sluice_model *node_case_attach(struct node_case *c, const char *name, const char *key)
{
    return attach(c, name, key, SLUICE_PRESENT_ONLY);
}

uint64_t node_case_inode(struct node_case *c, const char *name, const char *key)
{
    struct sluice_model *model = node_case_attach(c, name, key);
    const void *data;
    uint64_t bytes;
    struct stat status;
    int fd = -1;
    if (!model)
        return 0;
    ck_assert_int_eq(sluice_slab(model, 0, &data, &bytes, &fd, &c->error), 0);
    ck_assert_int_eq(fstat(fd, &status), 0);
    sluice_detach(model);
    SL_AWAIT(!node_case_counts(c).references, "the end of the last reference");
    return status.st_ino;
}

void node_case_deposit(struct node_case *c, const char *name, const char *key, uint64_t count)
{
    struct sluice_model *model = node_case_attach(c, name, NULL);
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sluice_deposit *deposit;
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = name,
                                             .key = key,
                                             .socket = c->socket,
                                             .bytes = (count * sizeof(float) + 4095) & ~4095ul,
                                             .timeout_ms = TIMEOUT_MS};
    void *data;
    ck_assert_msg(model != NULL, "%s", c->error.message);
    sluice_model_info(model, &info);
    memcpy(options.identity, info.identity, sizeof(options.identity));
    sluice_detach(model);
    ck_assert_msg(sluice_deposit_begin(&options, &deposit, &c->error) == 0 &&
                      sluice_deposit_add(deposit, "t", "F32", 1, &count, NULL,
                                         count * sizeof(float), &data, &c->error) == 0 &&
                      sluice_deposit_commit(deposit, &c->error) == 0,
                  "%s", c->error.message);
    sluice_deposit_end(deposit);
}

/* ---- the service manager -------------------------------------------------------------------- */

static void store(struct manager *manager, const char *name, int fd)
{
    unsigned at = manager->locked.count++;
    ck_assert_uint_lt(at, NODE_CASE_STORED_MAX);
    ck_assert_int_ge(fd, 0);
    manager->locked.stored[at].fd = fd;
    snprintf(manager->locked.stored[at].name, sizeof(manager->locked.stored[at].name), "%s", name);
}

static void unstore(struct manager *manager, const char *name)
{
    for (unsigned i = 0; i < manager->locked.count;)
        if (strcmp(manager->locked.stored[i].name, name) == 0) {
            close(manager->locked.stored[i].fd);
            manager->locked.stored[i] = manager->locked.stored[--manager->locked.count];
        } else {
            i++;
        }
}

#define SYNC "SYNC=1" /* in the order of what was sent */

static void take(struct manager *manager, const char *text, int fd)
{
    const char *name = strstr(text, "FDNAME=");
    SL_LOCKED(&manager->lock);
    if (name && strncmp(text, "FDSTORE=1\n", 10) == 0)
        store(manager, name + 7, fd);
    else if (name && strncmp(text, "FDSTOREREMOVE=1\n", 16) == 0)
        unstore(manager, name + 7);
    manager->locked.synced += strcmp(text, SYNC) == 0;
    pthread_cond_broadcast(&manager->changed);
}

static void *serve(void *arg)
{
    struct manager *manager = arg;
    for (;;) {
        union {
            char bytes[CMSG_SPACE(sizeof(int))];
            struct cmsghdr aligned;
        } control;
        char text[1024];
        struct iovec part = {text, sizeof(text) - 1};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof(control.bytes)};
        ssize_t bytes = recvmsg(manager->fd, &message, MSG_CMSG_CLOEXEC);
        struct cmsghdr *header = bytes < 0 ? NULL : CMSG_FIRSTHDR(&message);
        int fd = -1;
        if (header)
            memcpy(&fd, CMSG_DATA(header), sizeof(fd));
        if (bytes <= 0)
            return NULL;
        text[bytes] = 0;
        take(manager, text, fd);
    }
}

void manager_start(struct manager *manager, const struct node_case *c)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(manager, 0, sizeof(*manager));
    snprintf(manager->path, sizeof(manager->path), "%s/notify", c->path);
    ck_assert_uint_lt(strlen(manager->path), sizeof(address.sun_path));
    memcpy(address.sun_path, manager->path, strlen(manager->path));
    pthread_mutex_init(&manager->lock, NULL);
    pthread_cond_init(&manager->changed, NULL);
    manager->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(manager->fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(pthread_create(&manager->thread, NULL, serve, manager), 0);
    setenv("NOTIFY_SOCKET", manager->path, 1);
}

void manager_stop(struct manager *manager)
{
    shutdown(manager->fd, SHUT_RDWR);
    unsetenv("NOTIFY_SOCKET");
    pthread_join(manager->thread, NULL);
    for (unsigned i = 0; i < manager->locked.count; i++)
        close(manager->locked.stored[i].fd);
    close(manager->fd);
    pthread_cond_destroy(&manager->changed);
    pthread_mutex_destroy(&manager->lock);
}

/* It has heard all that was sent by now, as systemd has before it starts the next process. */
static void sync_manager(struct manager *manager)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, manager->path, strlen(manager->path));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    SL_LOCKED(&manager->lock);
    unsigned before = manager->locked.synced;
    ck_assert_int_gt(
        sendto(fd, SYNC, strlen(SYNC), 0, (struct sockaddr *)&address, sizeof(address)), 0);
    close(fd);
    while (manager->locked.synced == before)
        pthread_cond_wait(&manager->changed, &manager->lock);
}

void manager_await(struct manager *manager, unsigned count)
{
    sync_manager(manager);
    SL_LOCKED(&manager->lock);
    while (manager->locked.count != count)
        pthread_cond_wait(&manager->changed, &manager->lock);
}

void manager_give(struct manager *manager, struct sl_systemd_sockets *given)
{
    sync_manager(manager);
    SL_LOCKED(&manager->lock);
    given->count = 0;
    given->items = sl_alloc_array(manager->locked.count + 1, sizeof(*given->items), NULL);
    ck_assert_ptr_nonnull(given->items);
    for (unsigned i = 0; i < manager->locked.count; i++) {
        struct sl_systemd_fd *item = &given->items[given->count++];
        item->fd = fcntl(manager->locked.stored[i].fd, F_DUPFD_CLOEXEC, 0);
        snprintf(item->name, sizeof(item->name), "%s", manager->locked.stored[i].name);
    }
}
