/* A few places, since few origins refuse at once; a new one takes the place that opens first. */
#include "http_window.h"

#include <stdio.h>
#include <string.h>

#include "fork_guard.h"
#include "thread.h"

enum { WINDOWS_MAX = 16, NAME_BYTES = SL_URL_AUTHORITY_MAX + 1 };

static struct {
    pthread_mutex_t mutex;
    struct window {
        char name[NAME_BYTES];
        uint64_t opens_ns;
    } windows[WINDOWS_MAX];
} locked = {.mutex = PTHREAD_MUTEX_INITIALIZER};
SL_FORK_GUARD(&locked.mutex, NULL)

static void name_of(const struct sl_url *origin, char name[NAME_BYTES])
{
    char authority[SL_URL_AUTHORITY_MAX];
    snprintf(name, NAME_BYTES, "%c%s", origin->tls ? 's' : 'h',
             sl_url_authority(origin, authority));
}

/* Under the lock. NULL: it has none. */
static struct window *find(const char *name)
{
    for (unsigned i = 0; i < WINDOWS_MAX; i++)
        if (strcmp(locked.windows[i].name, name) == 0)
            return &locked.windows[i];
    return NULL;
}

void sl_http_window_close(const struct sl_url *origin, uint64_t ms)
{
    char name[NAME_BYTES];
    name_of(origin, name);
    uint64_t opens_ns = sl_now_ns() + ms * SL_NS_PER_MS;
    SL_LOCKED(&locked.mutex);
    struct window *window = find(name);
    for (unsigned i = 0; !window && i < WINDOWS_MAX; i++)
        window = locked.windows[i].name[0] ? NULL : &locked.windows[i];
    if (!window) {
        window = &locked.windows[0];
        for (unsigned i = 1; i < WINDOWS_MAX; i++)
            if (locked.windows[i].opens_ns < window->opens_ns)
                window = &locked.windows[i];
    }
    if (strcmp(window->name, name) != 0)
        window->opens_ns = 0;
    memcpy(window->name, name, sizeof(name));
    window->opens_ns = SL_MAX(window->opens_ns, opens_ns);
}

uint64_t sl_http_window_opens_ns(const struct sl_url *origin)
{
    char name[NAME_BYTES];
    name_of(origin, name);
    SL_LOCKED(&locked.mutex);
    const struct window *window = find(name);
    return window ? window->opens_ns : 0;
}
