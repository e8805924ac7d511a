/*
 * Objects that are bytes of this process, for the tests of everything above. The registry is a list
 * under one mutex; data is the test's. Every put makes a new version, so a test can change an
 * object under a reader.
 */
#include "memory_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stores.h"

struct blob {
    struct blob *next;
    char *name;
    const uint8_t *data;
    size_t bytes;
    unsigned generation;
};

static struct {
    pthread_mutex_t mutex;
    struct blob *first;
    unsigned generation, fail_in;
} locked = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Under the lock. */
static struct blob *find(const char *base, const char *name)
{
    size_t base_bytes = strlen(base);
    struct blob *plain = NULL;
    for (struct blob *blob = locked.first; blob; blob = blob->next) {
        if (strncmp(blob->name, base, base_bytes) == 0 &&
            strcmp(blob->name + base_bytes, name) == 0)
            return blob;
        if (strcmp(blob->name, name) == 0)
            plain = blob;
    }
    return plain;
}

int sl_memory_put(const char *name, const void *data, size_t bytes, struct sl_err *err)
{
    SL_LOCKED(&locked.mutex);
    struct blob *blob = find("", name);
    if (!blob) {
        blob = sl_alloc(sizeof(*blob), err);
        if (!blob)
            return -1;
        blob->name = sl_strdup(name, err);
        if (!blob->name) {
            free(blob);
            return -1;
        }
        struct blob **end = &locked.first;
        while (*end)
            end = &(*end)->next;
        *end = blob;
    }
    blob->data = data;
    blob->bytes = bytes;
    blob->generation = ++locked.generation;
    return 0;
}

void sl_memory_fail_at(unsigned nth)
{
    SL_LOCKED(&locked.mutex);
    locked.fail_in = nth;
}

void sl_memory_clear(void)
{
    SL_LOCKED(&locked.mutex);
    while (locked.first) {
        struct blob *blob = locked.first;
        locked.first = blob->next;
        free(blob->name);
        free(blob);
    }
    locked.fail_in = 0;
}

/* memory:a/b is object b of base a/, memory:a/ is base a/; memory://a/ is the same, and a base that
 * names nothing is all. */
static int memory_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    const char *path = strchr(uri, ':') + 1;
    if (strncmp(path, "//", 2) == 0)
        path += 2;
    const char *slash = strrchr(path, '/');
    size_t base_bytes = slash ? (size_t)(slash - path) + 1 : 0;
    store->impl = sl_strndup(path, base_bytes, err);
    store->uri = store->impl ? sl_asprintf(err, "memory:%s", (char *)store->impl) : NULL;
    *key = store->uri ? sl_strdup(path + base_bytes, err) : NULL;
    return *key ? 0 : -1;
}

static void memory_close(struct sl_store *store)
{
    free(store->impl);
}

static int memory_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err)
{
    const char *base = store->impl;
    size_t base_bytes = strlen(base), known = 0;
    pthread_mutex_lock(&locked.mutex);
    for (struct blob *blob = locked.first; blob; blob = blob->next)
        known += strncmp(blob->name, base, base_bytes) == 0;
    if (!known)
        base_bytes = 0;
    unsigned count = 0;
    for (struct blob *blob = locked.first; blob; blob = blob->next) {
        if (strncmp(blob->name, base, base_bytes) != 0)
            continue;
        struct sl_entry entry = {.name = blob->name + base_bytes, .bytes = blob->bytes, .etag = ""};
        count++;
        pthread_mutex_unlock(&locked.mutex);
        if (listing->each(&entry, listing->arg, err) < 0)
            return -1;
        pthread_mutex_lock(&locked.mutex);
    }
    pthread_mutex_unlock(&locked.mutex);
    return count ? 0 : sl_fail(err, SL_E_NOT_FOUND, "no object below '%s'", store->uri);
}

static int memory_locate(struct sl_source *source, struct sl_err *err)
{
    source->uri = sl_asprintf(err, "memory:%s%s", (char *)source->store->impl, source->name);
    return source->uri ? 0 : -1;
}

struct sl_channel {
    const uint8_t *data;
    uint64_t left;
};

static struct sl_channel *memory_channel_new(struct sl_store *store, struct sl_err *err)
{
    (void)store;
    return sl_alloc(sizeof(struct sl_channel), err);
}

static void memory_channel_free(struct sl_channel *channel)
{
    free(channel);
}

static int memory_channel_start(struct sl_channel *channel, struct sl_source *source,
                                const struct sl_try *try, struct sl_err *err)
{
    SL_LOCKED(&locked.mutex);
    if (locked.fail_in && --locked.fail_in == 0) {
        sl_fail(err, SL_E_NET, "cannot read '%s': the test wants it to fail", source->uri);
        err->retryable = false;
        return -1;
    }
    const struct blob *blob = find(source->store->impl, source->name);
    if (!blob)
        return sl_fail(err, SL_E_NOT_FOUND, "there is no '%s'", source->uri);
    char etag[32];
    snprintf(etag, sizeof(etag), "\"memory-%u\"", blob->generation);
    if (try->first) {
        source->bytes = blob->bytes;
        memcpy(source->version.etag, etag, sizeof(etag));
    } else if (strcmp(etag, source->version.etag) != 0) {
        return sl_fail_code(err, SL_E_INTEGRITY, "changed", "'%s' changed while it was read",
                            source->uri);
    }
    channel->data = blob->data + SL_MIN(try->begin, blob->bytes);
    channel->left = SL_MIN(try->end, blob->bytes) - SL_MIN(try->begin, blob->bytes);
    return 0;
}

static enum sl_io_state memory_channel_read(struct sl_channel *channel, void *data, size_t bytes,
                                            size_t *got, struct sl_err *err)
{
    (void)err;
    *got = SL_MIN(bytes, channel->left);
    if (!*got)
        return SL_IO_END;
    memcpy(data, channel->data, *got);
    channel->data += *got;
    channel->left -= *got;
    return SL_IO_DATA;
}

static int memory_channel_poll(struct sl_channel *channel, struct pollfd fds[SL_IO_POLL_MAX],
                               uint64_t *deadline_ns)
{
    (void)channel, (void)fds;
    *deadline_ns = 0;
    return 0;
}

static void memory_channel_abort(struct sl_channel *channel)
{
    channel->left = 0;
}

static const struct sl_transport transport = {
    .channel_new = memory_channel_new,
    .channel_free = memory_channel_free,
    .channel_start = memory_channel_start,
    .channel_read = memory_channel_read,
    .channel_poll = memory_channel_poll,
    .channel_abort = memory_channel_abort,
};

static const struct sl_store_kind memory_store = {
    .name = "memory",
    .schemes = {"memory"},
    .bare = true,
    .example = "memory:name",
    .help = "bytes of this process, for tests",
    .traits = {.listing = true, .folders = true},
    .open = memory_open,
    .close = memory_close,
    .locate = memory_locate,
    .transport = &transport,
    .list = memory_list,
};

/* Before main(), so that every program that has this file reads memory: URIs. */
__attribute__((constructor)) static void register_store(void)
{
    if (sl_stores_register(&memory_store, NULL) < 0)
        abort();
}
