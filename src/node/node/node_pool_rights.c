/*
 * Without any list the socket's mode of 0660 says who attaches: its group. Its owner root is also
 * what containers run as, so that is judged here once more. With a list for something else the
 * socket is open to all, so that those who are listed reach it; attaching stays with the group,
 * and with those who deposit, since they attach first. Group 0, which containers have, too, counts
 * where it is written.
 */
#include "node_pool_rights.h"

#include <string.h>

#include "node_pool_parts.h"

unsigned sl_node_pool_ids(const struct sl_list *list, uint32_t ids[SL_POOL_RIGHTS_MAX])
{
    unsigned count = 0;
    for (size_t i = 0; i < list->count && count < SL_POOL_RIGHTS_MAX; i++)
        count += sl_node_spec_id(list->items[i], &ids[count], NULL) == 0;
    return count;
}

static void take_right(const struct sl_list *uids, const struct sl_list *gids,
                       struct sl_pool_right *right)
{
    right->uid_count = sl_node_pool_ids(uids, right->uids);
    right->gid_count = sl_node_pool_ids(gids, right->gids);
}

static void keep_to_group(uint32_t socket_gid, bool written, struct sl_pool_server_config *config)
{
    struct sl_pool_right *attach = &config->attach;
    *attach = config->deposit;
    if (socket_gid || written)
        attach->gids[attach->gid_count++] = socket_gid;
}

int sl_node_pool_rights(const struct sl_node_spec *spec, struct sl_node_pool_door *door,
                        struct sl_pool_server_config *config, struct sl_err *err)
{
    bool opened;
    if (sl_node_spec_pool_mode(spec, &door->mode, &opened, err) < 0)
        return -1;
    take_right(&spec->pool.uids, &spec->pool.gids, &config->attach);
    config->attach.all = !spec->pool.uids.count && !spec->pool.gids.count;
    take_right(&spec->pool.deposit_uids, &spec->pool.deposit_gids, &config->deposit);
    take_right(&spec->control.uids, &spec->control.gids, &config->evict);
    bool closed = opened || !(door->mode & 0006);
    if (closed && config->attach.all && door->own)
        keep_to_group(door->gid, spec->pool.group, config);
    return 0;
}

void sl_node_pool_find_view(struct sl_node_pool *pool, uint32_t user,
                            struct sl_node_pool_view *view)
{
    SL_LOCKED(&pool->lock);
    memcpy(view->trusted, pool->locked.trusted, sizeof(view->trusted));
    view->view = (struct sl_derived_view){user, view->trusted, pool->locked.trusted_count};
}

int sl_node_pool_find_device(const struct sl_node_pool *pool, const char *device, unsigned *space,
                             struct sl_err *err)
{
    *space = SL_SPACE_HOST;
    if (pool->gpus)
        return sl_gpu_holders_find(pool->gpus, device, space, err);
    if (!*device || strcmp(device, "host") == 0)
        return 0;
    return sl_fail_code(err, SL_E_NOT_FOUND, "absent", "the pool has nothing on '%.80s'", device);
}
