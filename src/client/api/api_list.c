/* For people: rows and holders, unpacked one by one. Every length is judged before it is used. */
#include <string.h>

#include "pool_list.h"

enum { LIST_TIMEOUT_MS = 30000 };

/* ---- unpacking ------------------------------------------------------------------------------- */

/* Texts of a row as strings. */
struct texts {
    char name[SL_WIRE_MODEL_BYTES + 1], key[SL_WIRE_KEY_BYTES + 1];
    char device[SL_WIRE_DEVICE_BYTES + 1], memory[256], error[SL_WIRE_TEXT_BYTES + 1];
};

static int malformed(struct sluice_error *error)
{
    return sl_api_fail(error, SLUICE_INTERNAL, "a list of the pool cannot be read");
}

static bool take_text(const uint8_t **at, size_t *left, size_t bytes, char *text, size_t room)
{
    if (bytes > *left || bytes >= room)
        return false;
    memcpy(text, *at, bytes);
    text[bytes] = 0;
    *at += bytes;
    *left -= bytes;
    return true;
}

static bool take_texts(const struct sl_wire_row *row, const uint8_t *data, struct texts *texts)
{
    const uint8_t *at = data + sizeof(*row);
    size_t left = row->bytes - sizeof(*row);
    return take_text(&at, &left, row->name_bytes, texts->name, sizeof(texts->name)) &&
           take_text(&at, &left, row->key_bytes, texts->key, sizeof(texts->key)) &&
           take_text(&at, &left, row->device_bytes, texts->device, sizeof(texts->device)) &&
           take_text(&at, &left, row->memory_text_bytes, texts->memory, sizeof(texts->memory)) &&
           take_text(&at, &left, row->error_bytes, texts->error, sizeof(texts->error));
}

int sl_pool_row_take(const uint8_t *data, size_t left, size_t *used,
                     int (*each)(void *arg, const struct sluice_row *row), void *arg,
                     struct sluice_error *error)
{
    struct sl_wire_row row;
    struct texts texts;
    if (left < sizeof(row))
        return malformed(error);
    memcpy(&row, data, sizeof(row));
    if (row.bytes < sizeof(row) || row.bytes > left || !take_texts(&row, data, &texts))
        return malformed(error);
    struct sluice_row own = {.size = sizeof(own),
                             .name = texts.name,
                             .key = texts.key,
                             .device = texts.device,
                             .memory = texts.memory,
                             .error = texts.error,
                             .state = (int32_t)row.state,
                             .pinned = (row.flags & SL_WIRE_PINNED) != 0,
                             .tensor_count = row.tensor_count,
                             .ready_count = row.ready_count,
                             .slab_count = row.slab_count,
                             .lease_count = row.lease_count,
                             .bytes = row.memory_bytes,
                             .bytes_done = row.bytes_done,
                             .age_seconds = row.age_seconds,
                             .idle_seconds = row.idle_seconds,
                             .owner = row.flags & SL_WIRE_OWNED ? (int64_t)row.owner : -1};
    memcpy(own.identity, row.identity, sizeof(own.identity));
    *used = row.bytes;
    return each && each(arg, &own) ? 1 : 0;
}

int sl_pool_holder_take(const uint8_t *data, size_t left,
                        int (*each)(void *arg, const struct sluice_holder *holder), void *arg,
                        struct sluice_error *error)
{
    struct sl_wire_holder holder;
    char name[sizeof(holder.name) + 1] = "";
    if (left < sizeof(holder))
        return malformed(error);
    memcpy(&holder, data, sizeof(holder));
    if (holder.name_bytes > sizeof(holder.name))
        return malformed(error);
    memcpy(name, holder.name, holder.name_bytes);
    struct sluice_holder own = {.size = sizeof(own),
                                .lease = holder.lease,
                                .age_ms = holder.age_ms,
                                .pid = holder.pid,
                                .uid = holder.uid,
                                .gid = holder.gid,
                                .name = name};
    return each && each(arg, &own) ? 1 : 0;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* One packet of rows; *next goes on. 1: the caller has had enough. */
static int take_page(const struct sl_pool_reply *reply, uint64_t *next,
                     int (*each)(void *arg, const struct sluice_row *row), void *arg,
                     struct sluice_error *error)
{
    const struct sl_wire_listed *listed = sl_pool_reply_data(reply);
    const uint8_t *data = (const uint8_t *)(listed + 1);
    size_t left = reply->bytes - sizeof(*listed), used = 0;
    if (listed->next && (listed->next <= *next || !listed->count))
        return malformed(error);
    for (uint32_t i = 0; i < listed->count; i++) {
        int done = sl_pool_row_take(data, left, &used, each, arg, error);
        if (done)
            return done < 0 ? -1 : 1;
        data += used;
        left -= used;
    }
    *next = listed->next;
    return 0;
}

int sluice_list(const char *socket, int (*each)(void *arg, const struct sluice_row *row), void *arg,
                struct sluice_error *error)
{
    struct sl_pool_link link;
    uint64_t next = 0;
    int done = sl_pool_link_open(&link, socket, NULL, sl_limit_make(LIST_TIMEOUT_MS, -1), error);
    if (done < 0)
        return -1;
    do {
        struct sl_wire_id ask = {.id = next};
        struct sl_pool_reply reply;
        done = sl_pool_link_ask(&link, SL_WIRE_LIST, &ask, sizeof(ask), NULL, 0,
                                sizeof(struct sl_wire_listed), &reply, error);
        if (done < 0)
            break;
        done = take_page(&reply, &next, each, arg, error);
        sl_pool_reply_release(&reply);
    } while (done == 0 && next);
    sl_pool_link_close(&link);
    return done < 0 ? -1 : 0;
}

static int ask_for(struct sl_pool_link *link, uint16_t type, const char *model, const char *key,
                   size_t least, struct sl_pool_reply *reply, struct sluice_error *error)
{
    union {
        struct sl_wire_ask ask;
        char bytes[sizeof(struct sl_wire_ask) + SL_WIRE_MODEL_BYTES + SL_WIRE_KEY_BYTES];
    } packet = {0};
    key = key ? key : "";
    if (sl_pool_check_texts(model, key, "", error) < 0)
        return -1;
    packet.ask.model_bytes = (uint16_t)strlen(model);
    packet.ask.key_bytes = (uint16_t)strlen(key);
    size_t bytes = sl_pool_put_text(&packet, sizeof(packet.ask), model);
    bytes = sl_pool_put_text(&packet, bytes, key);
    return sl_pool_link_ask(link, type, &packet, bytes, NULL, 0, least, reply, error);
}

static int take_stat(const struct sl_pool_reply *reply,
                     int (*row)(void *arg, const struct sluice_row *row),
                     int (*holder)(void *arg, const struct sluice_holder *holder), void *arg,
                     struct sluice_error *error)
{
    const struct sl_wire_stated *stated = sl_pool_reply_data(reply);
    const uint8_t *data = (const uint8_t *)(stated + 1);
    size_t left = reply->bytes - sizeof(*stated), used = 0;
    int done = sl_pool_row_take(data, left, &used, row, arg, error);
    for (uint32_t i = 0; i < stated->holder_count && done == 0; i++) {
        data += used;
        left -= used;
        used = sizeof(struct sl_wire_holder);
        done = sl_pool_holder_take(data, left, holder, arg, error);
    }
    return done < 0 ? -1 : 0;
}

int sluice_stat(const char *socket, const char *model, const char *key,
                int (*row)(void *arg, const struct sluice_row *row),
                int (*holder)(void *arg, const struct sluice_holder *holder), void *arg,
                struct sluice_error *error)
{
    struct sl_pool_link link;
    struct sl_pool_reply reply;
    if (sl_pool_link_open(&link, socket, NULL, sl_limit_make(LIST_TIMEOUT_MS, -1), error) < 0)
        return -1;
    int done =
        ask_for(&link, SL_WIRE_STAT, model, key, sizeof(struct sl_wire_stated), &reply, error);
    if (done == 0) {
        done = take_stat(&reply, row, holder, arg, error);
        sl_pool_reply_release(&reply);
    }
    sl_pool_link_close(&link);
    return done;
}

int sluice_evict(const char *socket, const char *model, const char *key, uint64_t *bytes,
                 struct sluice_error *error)
{
    struct sl_pool_link link;
    struct sl_pool_reply reply;
    if (sl_pool_link_open(&link, socket, NULL, sl_limit_make(LIST_TIMEOUT_MS, -1), error) < 0)
        return -1;
    int done =
        ask_for(&link, SL_WIRE_EVICT, model, key, sizeof(struct sl_wire_evicted), &reply, error);
    if (done == 0) {
        const struct sl_wire_evicted *evicted = sl_pool_reply_data(&reply);
        if (bytes)
            *bytes = evicted->bytes;
        sl_pool_reply_release(&reply);
    }
    sl_pool_link_close(&link);
    return done;
}
