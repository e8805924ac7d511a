/* A store whose objects are pieces of memory, one after another: each is called by its number. */
#include "held.h"

#include <stdio.h>
#include <string.h>

#include "lower_bound.h"
#include "store_kind.h"

int sl_held_add(struct sl_held_object *object, const void *data, uint64_t bytes, struct sl_err *err)
{
    if (!bytes)
        return 0;
    if (sl_grow(&object->pieces, &object->capacity, object->count + 1, sizeof(*object->pieces),
                err) < 0)
        return -1;
    object->pieces[object->count++] = (struct sl_held_piece){object->bytes, bytes, data};
    object->bytes += bytes;
    return 0;
}

static int held_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    store->uri = sl_strdup(uri, err);
    *key = store->uri ? sl_strdup("", err) : NULL;
    return *key ? 0 : -1;
}

static void held_close(struct sl_store *store)
{
    (void)store;
}

static int held_locate(struct sl_source *source, struct sl_err *err)
{
    const struct sl_held_object *objects = source->store->impl;
    source->impl = (void *)(uintptr_t)&objects[strtoull(source->name, NULL, 10)];
    source->uri = sl_strdup(source->store->uri, err);
    return source->uri ? 0 : -1;
}

struct sl_channel {
    const struct sl_held_object *object;
    uint64_t at, end;
};

static struct sl_channel *held_channel_new(struct sl_store *store, struct sl_err *err)
{
    (void)store;
    return sl_alloc(sizeof(struct sl_channel), err);
}

static void held_channel_free(struct sl_channel *channel)
{
    free(channel);
}

static int held_channel_start(struct sl_channel *channel, struct sl_source *source,
                              const struct sl_try *try, struct sl_err *err)
{
    (void)err; /* it is known, and the caller has checked the range */
    *channel = (struct sl_channel){source->impl, try->begin, try->end};
    return 0;
}

static enum sl_io_state held_channel_read(struct sl_channel *channel, void *data, size_t bytes,
                                          size_t *got, struct sl_err *err)
{
    const struct sl_held_object *object = channel->object;
    (void)err;
    if (channel->at >= channel->end)
        return SL_IO_END;
    size_t number = SL_LOWER_BOUND(
        i, object->count, object->pieces[i].begin + object->pieces[i].bytes <= channel->at);
    const struct sl_held_piece *piece = &object->pieces[number];
    uint64_t within = channel->at - piece->begin;
    *got = SL_MIN(bytes, SL_MIN(channel->end - channel->at, piece->bytes - within));
    memcpy(data, piece->data + within, *got);
    channel->at += *got;
    return SL_IO_DATA;
}

static int held_channel_poll(struct sl_channel *channel, struct pollfd fds[SL_IO_POLL_MAX],
                             uint64_t *deadline_ns)
{
    (void)channel, (void)fds;
    *deadline_ns = 0;
    return 0;
}

static void held_channel_abort(struct sl_channel *channel)
{
    channel->at = channel->end;
}

static const struct sl_transport transport = {
    .channel_new = held_channel_new,
    .channel_free = held_channel_free,
    .channel_start = held_channel_start,
    .channel_read = held_channel_read,
    .channel_poll = held_channel_poll,
    .channel_abort = held_channel_abort,
};
static const struct sl_store_kind kind = {
    .name = "held",
    .traits = {.local = true},
    .open = held_open,
    .close = held_close,
    .locate = held_locate,
    .transport = &transport,
};

int sl_held_open(const struct sl_held_object *objects, struct sl_store **store, struct sl_err *err)
{
    sl_autofree char *key = NULL;
    if (sl_store_open_kind(&kind, "memory of this program", NULL, store, &key, err) < 0)
        return -1;
    (*store)->impl = (void *)(uintptr_t)objects;
    return 0;
}

int sl_held_source(struct sl_store *store, size_t number, struct sl_source **source,
                   struct sl_err *err)
{
    const struct sl_held_object *objects = store->impl;
    const struct sl_version version = {.pin = "held"};
    char name[32];
    snprintf(name, sizeof(name), "%zu", number);
    return sl_source_known(store, name, objects[number].bytes, &version, source, err);
}
