/*
 * What is dropped goes with whoever has it last: a client that keeps descriptors or mappings after
 * its lease has ended keeps the memory, too, which still counts for us and for the machine. So it
 * stays in the budget until it has gone, under the names of those who had it.
 *
 * The janitor looks, several times a second while there is anything, and at once for a load that
 * needs the room; whoever drops looks first, for what nobody has is gone by then.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "log.h"
#include "registry_parts.h"

void registry_note_had(struct resident *resident, const char *who)
{
    struct had *had = &resident->had;
    for (unsigned i = 0; i < HAD_MAX && i < had->count; i++)
        if (strcmp(had->who[i], who) == 0)
            return;
    snprintf(had->who[had->count++ % HAD_MAX], sizeof(had->who[0]), "%s", who);
}

struct left *registry_watch(struct sl_registry *registry, struct resident *resident, void *body)
{
    const struct sl_holder *holder = resident->holder;
    struct left *left = body && holder->watch ? sl_alloc(sizeof(*left), NULL) : NULL;
    if (!left)
        return NULL;
    left->memory = holder->watch(holder->self, body);
    if (!left->memory) {
        free(left);
        return NULL;
    }
    snprintf(left->name, sizeof(left->name), "%s", resident->model->name);
    snprintf(left->version, sizeof(left->version), "%s", resident->version);
    left->derived = resident->key;
    left->holder = holder;
    left->since_ns = sl_now_ns();
    SL_LOCKED(&registry->lock);
    left->had = resident->had;
    return left;
}

static void free_left(struct left *left)
{
    left->memory->free(left->memory);
    free(left);
}

void registry_leave(struct sl_registry *registry, struct left *left)
{
    if (!left)
        return;
    left->bytes = left->memory->look(left->memory);
    if (!left->bytes) {
        free_left(left);
        return;
    }
    SL_LOCKED(&registry->lock);
    left->next = registry->locked.left;
    registry->locked.left = left;
    registry_update_gauges(registry);
    pthread_cond_signal(&registry->clean);
}

uint64_t registry_left(const struct sl_registry *registry, unsigned space)
{
    uint64_t bytes = 0;
    for (const struct left *at = registry->locked.left; at; at = at->next)
        bytes += sl_placement_has(at->holder->placement, space) ? at->bytes : 0;
    return bytes;
}

void registry_describe_left(const struct left *left, char *text, size_t capacity)
{
    char bytes[32];
    size_t used = strlen(text);
    snprintf(text + used, capacity - used,
             "%s'%s' %s (evicted, and still held by its clients:", used ? ", " : "", left->name,
             sl_human_bytes(left->bytes, bytes));
    for (unsigned i = 0; i < HAD_MAX && i < left->had.count; i++) {
        used = strlen(text);
        snprintf(text + used, capacity - used, "%s %s", i ? "," : "", left->had.who[i]);
    }
    used = strlen(text);
    snprintf(text + used, capacity - used, left->had.count ? ")" : " unknown)");
}

void registry_free_left(struct sl_registry *registry)
{
    for (struct left *at; (at = registry->locked.left);) {
        registry->locked.left = at->next;
        free_left(at);
    }
}

/* ---- looking ----------------------------------------------------------------------------------
 */

static void note_look(struct sl_registry *registry, struct left *left, uint64_t bytes)
{
    SL_LOCKED(&registry->lock);
    left->bytes = bytes;
    if (bytes)
        return;
    struct left **at = &registry->locked.left;
    while (*at != left)
        at = &(*at)->next;
    *at = left->next;
}

void registry_look_at_left(struct sl_registry *registry)
{
    struct left *next;
    {
        SL_LOCKED(&registry->lock);
        next = registry->locked.left; /* others only put something in front */
        registry->locked.look_at_left = false;
    }
    for (struct left *at; (at = next);) {
        next = at->next;
        uint64_t bytes = at->memory->look(at->memory);
        note_look(registry, at, bytes);
        if (!bytes)
            free_left(at);
    }
    SL_LOCKED(&registry->lock);
    registry->locked.looked_ns = sl_now_ns();
    registry_update_gauges(registry);
    pthread_cond_broadcast(&registry->changed);
}

uint64_t registry_next_look(const struct sl_registry *registry)
{
    if (!registry->locked.left)
        return UINT64_MAX;
    return registry->locked.look_at_left ? 0
                                         : registry->locked.looked_ns + LEFT_LOOK_MS * SL_NS_PER_MS;
}

bool registry_await_left(struct sl_registry *registry, uint64_t until_ns)
{
    struct timespec until = {(time_t)(until_ns / SL_NS_PER_S), (long)(until_ns % SL_NS_PER_S)};
    if (!registry->locked.left || registry->locked.stopping || sl_now_ns() >= until_ns)
        return false;
    registry->locked.look_at_left = registry->locked.looked_ns == 0 ||
                                    sl_now_ns() - registry->locked.looked_ns > 10 * SL_NS_PER_MS;
    pthread_cond_signal(&registry->clean);
    pthread_cond_timedwait(&registry->changed, &registry->lock, &until);
    return true;
}
