/*
 * All locks are taken before a fork and given back after it, by both. Threads take several of them
 * in orders that nobody lists, so none is waited for while others are held: whichever is taken by
 * somebody is waited for alone, and then all are tried anew.
 */
#include "fork_guard.h"

#include <stddef.h>

static struct sl_fork_guard *guards; /* complete before main() */
static pthread_once_t once = PTHREAD_ONCE_INIT;

void sl_fork_guard_add(struct sl_fork_guard *guard)
{
    guard->next = guards;
    guards = guard;
}

/* Up to `end`, but for the one that is held anyway. */
static void give_back(const struct sl_fork_guard *end, const struct sl_fork_guard *held)
{
    for (struct sl_fork_guard *guard = guards; guard != end; guard = guard->next)
        if (guard != held)
            pthread_mutex_unlock(guard->mutex);
}

/* The one that somebody has; NULL: all are ours. */
static struct sl_fork_guard *try_all(const struct sl_fork_guard *held)
{
    for (struct sl_fork_guard *guard = guards; guard; guard = guard->next)
        if (guard != held && pthread_mutex_trylock(guard->mutex) != 0) {
            give_back(guard, held);
            return guard;
        }
    return NULL;
}

static void before(void)
{
    for (struct sl_fork_guard *held = NULL;;) {
        struct sl_fork_guard *busy = try_all(held);
        if (!busy)
            return;
        if (held)
            pthread_mutex_unlock(held->mutex);
        pthread_mutex_lock(busy->mutex);
        held = busy;
    }
}

static void in_parent(void)
{
    give_back(NULL, NULL);
}

static void in_child(void)
{
    for (struct sl_fork_guard *guard = guards; guard; guard = guard->next)
        if (guard->forget)
            guard->forget();
    give_back(NULL, NULL);
}

static void begin(void)
{
    pthread_atfork(before, in_parent, in_child);
}

void sl_fork_guard_begin(void)
{
    pthread_once(&once, begin);
}
