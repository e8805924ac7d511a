/*
 * One version is one copy, whatever names it is asked for by. Each name has a resident of its own,
 * with its own references and pin; those whose memory is one and the same are in a ring. One of
 * them stands for the memory in the budget, the others borrow. The memory goes when all of them
 * may, and is given back with the last.
 * (A table of memory beside the names would have every rule on eviction look into two places.)
 *
 * Those that share have the same identity, in the same holder, and come from the same place with
 * the same rights and keys: the identity alone does not say who may read it, nor what opened it.
 *
 * A load whose version another one is loading already does not load. It follows that one: its place
 * is given back, and it ends with it. Where the other ends because it was canceled, those who
 * follow begin anew.
 */
#include <string.h>

#include "registry_parts.h"

/* ---- the ring ------------------------------------------------------------------------------- */

bool registry_is_shared(const struct resident *resident)
{
    return resident->share_next != resident;
}

void registry_pass_memory(struct resident *resident)
{
    struct resident *at = resident->share_next;
    while (at != resident && at->state == RESIDENT_DROPPING)
        at = at->share_next;
    if (at == resident || resident->borrows)
        return;
    resident->borrows = true;
    at->borrows = false;
    at->bytes = resident->bytes;
}

void registry_part(struct resident *resident)
{
    struct resident *before = resident->share_next;
    if (before == resident)
        return;
    while (before->share_next != resident)
        before = before->share_next;
    registry_pass_memory(resident);
    if (!resident->borrows) /* all others are on their way out, too */
        before->borrows = false;
    if (!before->borrows)
        before->bytes = resident->bytes;
    for (unsigned i = 0; i < HAD_MAX && i < resident->had.count; i++)
        registry_note_had(before, resident->had.who[i]);
    before->share_next = resident->share_next;
    resident->share_next = resident;
    resident->borrows = false;
    resident->bytes = 0;
    resident->body = NULL;
}

static const uint8_t *origin_of(const struct resident *resident)
{
    return resident->has_origin   ? resident->origin
           : resident->model->box ? resident->model->box->origin
                                  : NULL;
}

static bool can_share(const struct resident *at, const struct resident *wanting)
{
    static const uint8_t unknown[32];
    const uint8_t *origin = origin_of(at);
    bool there = at->state == RESIDENT_READY && at->body;
    bool coming = at->state == RESIDENT_LOADING && at->busy;
    return (there || coming) && !at->key && at->holder == wanting->holder && at->holder->shares &&
           memcmp(at->identity, unknown, 32) != 0 &&
           memcmp(at->identity, wanting->identity, 32) == 0 && origin &&
           memcmp(origin, wanting->origin, 32) == 0;
}

bool registry_share(struct sl_registry *registry, struct resident *resident)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next) {
            if (model == resident->model || !can_share(at, resident))
                continue;
            resident->share_next = at->share_next;
            at->share_next = resident;
            resident->borrows = true;
            resident->bytes = at->bytes;
            resident->body = at->body;
            resident->state = at->state;
            resident->ready_seconds = at->ready_seconds;
            return true;
        }
    return false;
}

/* ---- loads that follow another --------------------------------------------------------------- */

/* One that follows the load of this resident; those that a worker has yet, or any. */
static struct resident *find_follower(const struct resident *resident, bool at_work)
{
    for (struct resident *at = resident->share_next; at != resident; at = at->share_next)
        if (at->state == RESIDENT_LOADING && (!at_work || at->model->work == WORK_RUNNING))
            return at;
    return NULL;
}

const struct model *registry_followed(const struct model *model)
{
    const struct resident *own = model->residents;
    while (own && (own->key || own->state != RESIDENT_LOADING || !own->borrows))
        own = own->next;
    const struct resident *at = own;
    while (at && at->borrows && at->share_next != own)
        at = at->share_next;
    return at ? at->model : model;
}

struct waiter *registry_chain(struct waiter *first, struct waiter *second)
{
    struct waiter **end = &first;
    while (*end)
        end = &(*end)->next;
    *end = second;
    return first;
}

struct waiter *registry_open_followers(struct resident *resident)
{
    struct waiter *all = NULL;
    for (struct resident *at = resident->share_next; at != resident; at = at->share_next) {
        if (at->state != RESIDENT_LOADING)
            continue;
        at->body = resident->body;
        at->bytes = resident->bytes;
        all = registry_chain(all, registry_take_waiters(at->model, true, at, NULL));
    }
    return all;
}

void registry_close_followers(struct resident *resident)
{
    for (struct resident *at = resident->share_next; at != resident; at = at->share_next)
        if (at->state == RESIDENT_LOADING)
            at->body = NULL;
}

void registry_await_followers(struct sl_registry *registry, const struct resident *resident)
{
    while (find_follower(resident, true))
        pthread_cond_wait(&registry->changed, &registry->lock);
}

/* It shares nothing with the load that it followed any more, but for what its callers have. */
static void leave_load(struct resident *follower)
{
    if (follower->ref_count)
        follower->state = RESIDENT_GONE;
    else
        registry_remove_resident(follower);
}

static void follow_to_end(struct resident *follower, const struct resident *leader)
{
    follower->state = RESIDENT_READY;
    follower->ready_seconds = leader->ready_seconds;
    follower->body = leader->body;
    follower->bytes = leader->bytes;
    registry_note_current(follower);
}

struct waiter *registry_end_followers(struct sl_registry *registry, struct resident *resident,
                                      int done, const struct sl_err *err)
{
    struct waiter *all = NULL;
    for (struct resident *at; (at = find_follower(resident, false));) {
        struct model *model = at->model;
        bool again = model->load_again || (done < 0 && err->kind == SL_E_CANCELED);
        at->busy--;
        model->work = WORK_NONE;
        if (done == 0)
            follow_to_end(at, resident);
        else
            leave_load(at);
        if (done < 0 && err->kind != SL_E_CANCELED)
            registry_note_error(registry, model, err);
        model->load_again = false;
        if (again)
            registry_queue(registry, model);
        else
            all = registry_chain(all,
                                 registry_take_waiters(model, false, done == 0 ? at : NULL, err));
    }
    return all;
}
