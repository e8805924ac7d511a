/* A small table, searched from its begin; the oldest place is given away. */
#include "host_memory.h"

#include <stdint.h>
#include <string.h>

#include "fork_guard.h"
#include "mem.h"
#include "thread.h"

enum { HOSTS = 32 };

static struct {
    pthread_mutex_t mutex;
    struct {
        char key[SL_HOST_KEY_BYTES]; /* "": free */
        uint64_t used;
        struct sl_host_needs needs;
    } hosts[HOSTS];
    uint64_t uses;
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER};
SL_FORK_GUARD(&table.mutex, NULL)

void sl_host_memory_key(const char *uri, char key[SL_HOST_KEY_BYTES])
{
    const char *host = strstr(uri, "://");
    size_t bytes = host ? (size_t)(host - uri) + 3 + strcspn(host + 3, "/?#") : strlen(uri);
    bytes = SL_MIN(bytes, (size_t)SL_HOST_KEY_BYTES - 1);
    memcpy(key, uri, bytes);
    key[bytes] = '\0';
}

/* With the lock: its place, or the one to be given away. */
static unsigned find(const char *key)
{
    unsigned oldest = 0;
    for (unsigned i = 0; i < HOSTS; i++) {
        if (strcmp(table.hosts[i].key, key) == 0)
            return i;
        if (table.hosts[i].used < table.hosts[oldest].used)
            oldest = i;
    }
    return oldest;
}

bool sl_host_memory_recall(const char *uri, struct sl_host_needs *needs)
{
    char key[SL_HOST_KEY_BYTES];
    sl_host_memory_key(uri, key);
    SL_LOCKED(&table.mutex);
    unsigned place = find(key);
    if (!*key || strcmp(table.hosts[place].key, key) != 0)
        return false;
    table.hosts[place].used = ++table.uses;
    *needs = table.hosts[place].needs;
    return true;
}

void sl_host_memory_note(const char *uri, const struct sl_host_needs *needs)
{
    char key[SL_HOST_KEY_BYTES];
    sl_host_memory_key(uri, key);
    if (!*key)
        return;
    SL_LOCKED(&table.mutex);
    unsigned place = find(key);
    struct sl_host_needs *kept = &table.hosts[place].needs;
    if (strcmp(table.hosts[place].key, key) != 0) {
        memcpy(table.hosts[place].key, key, sizeof(key));
        *kept = (struct sl_host_needs){0};
    }
    table.hosts[place].used = ++table.uses;
    if (needs->bytes_per_s > 0)
        kept->bytes_per_s = needs->bytes_per_s;
    kept->connections = needs->connections ? needs->connections : kept->connections;
}
