/*
 * Lists. The owner of the models tells all of them each time; a packet takes as many rows as fit,
 * and the client asks for the rest by number. A list that changes in between may lack or repeat a
 * row, which people can live with.
 */
#include <string.h>

#include "pool_server_parts.h"

struct sl_pool_listing {
    struct sl_pool_server *server;
    uint8_t *data; /* a packet, of SL_WIRE_PACKET_BYTES */
    size_t used;
    uint64_t skip, seen; /* rows before the first that is wanted; rows so far */
    uint32_t count;
    bool full;
    const struct sl_pool_packet *only;              /* stat: the one model */
    struct sl_pool_copy *found[SL_POOL_COPIES_MAX]; /* its copies; borrowed */
    size_t found_count;
    uint32_t owner; /* of what was found */
};

static uint32_t count_leases(struct sl_pool_server *server, const struct sl_pool_copy *copy)
{
    uint32_t count = 0;
    SL_LOCKED(&server->lock);
    for (const struct sl_pool_connection *connection = server->locked.first; connection && copy;
         connection = connection->next)
        for (size_t i = 0; i < connection->lease_count; i++)
            count += connection->leases[i].copy == copy;
    return count;
}

static uint64_t seconds_since(int64_t then)
{
    int64_t now = sl_wall_seconds();
    return now > then ? (uint64_t)(now - then) : 0;
}

/* What the copy itself says. */
static void describe(const struct sl_pool_copy *copy, struct sl_wire_row *row,
                     struct sl_pool_view *view)
{
    sl_pool_copy_view(copy, view);
    row->state = view->state;
    row->tensor_count = (uint32_t)sl_pool_copy_tensor_count(copy);
    row->ready_count = (uint32_t)view->ready_count;
    row->slab_count = (uint32_t)sl_pool_copy_slab_count(copy);
    row->memory_bytes = sl_pool_copy_bytes(copy);
    row->bytes_done = view->bytes_done;
    row->age_seconds = seconds_since(view->made_seconds);
    memcpy(row->identity, sl_pool_model_identity(sl_pool_copy_model(copy)), sizeof(row->identity));
}

static size_t put_text(struct sl_pool_listing *listing, size_t at, const char *text, size_t bytes)
{
    memcpy(listing->data + at, text, bytes);
    return at + bytes;
}

static bool is_wanted(const struct sl_pool_packet *only, const struct sl_pool_entry *entry)
{
    return !only || (strcmp(only->model, entry->name) == 0 && strcmp(only->key, entry->key) == 0);
}

static int put_row(struct sl_pool_listing *listing, const struct sl_pool_entry *entry)
{
    struct sl_pool_view view = {.state = (enum sl_pool_state)SL_WIRE_ABSENT};
    struct sl_wire_row row = {.state = SL_WIRE_ABSENT,
                              .flags = (entry->pinned ? SL_WIRE_PINNED : 0u) |
                                       (*entry->key ? SL_WIRE_OWNED : 0u),
                              .owner = *entry->key ? sl_peer_user_uid(entry->owner) : 0,
                              .idle_seconds = UINT64_MAX};
    const char *memory = entry->copy ? sl_pool_copy_memory(entry->copy) : "";
    const char *error = entry->left_text ? entry->left_text : view.err.message;
    if (entry->copy)
        describe(entry->copy, &row, &view);
    else
        row.memory_bytes = entry->left_bytes;
    if (entry->used_seconds)
        row.idle_seconds = seconds_since(entry->used_seconds);
    row.lease_count = count_leases(listing->server, entry->copy);
    row.name_bytes = (uint16_t)strnlen(entry->name, SL_WIRE_MODEL_BYTES);
    row.key_bytes = (uint16_t)strnlen(entry->key, SL_WIRE_KEY_BYTES);
    row.device_bytes = (uint16_t)strnlen(entry->device, SL_WIRE_DEVICE_BYTES);
    row.memory_text_bytes = (uint16_t)strlen(memory);
    row.error_bytes = (uint16_t)strlen(error);
    size_t bytes = sizeof(row) + row.name_bytes + row.key_bytes + row.device_bytes +
                   row.memory_text_bytes + row.error_bytes;
    row.bytes = (uint32_t)((bytes + 7) & ~(size_t)7);
    if (row.bytes > SL_WIRE_PACKET_BYTES - listing->used) {
        listing->full = true;
        return -1;
    }
    size_t at = listing->used;
    memcpy(listing->data + at, &row, sizeof(row));
    at = put_text(listing, at + sizeof(row), entry->name, row.name_bytes);
    at = put_text(listing, at, entry->key, row.key_bytes);
    at = put_text(listing, at, entry->device, row.device_bytes);
    at = put_text(listing, at, memory, row.memory_text_bytes);
    put_text(listing, at, error, row.error_bytes);
    listing->used += row.bytes;
    listing->count++;
    return 0;
}

/* The one model, on a further GPU: its row, of the first, counts all. */
static int add_copy(struct sl_pool_listing *listing, struct sl_pool_copy *copy)
{
    struct sl_wire_row row;
    struct sl_pool_view view;
    if (!copy || listing->found_count == SL_COUNT(listing->found))
        return 0;
    uint8_t *at = listing->data + sizeof(struct sl_wire_stated);
    memcpy(&row, at, sizeof(row));
    sl_pool_copy_view(copy, &view);
    row.lease_count += count_leases(listing->server, copy);
    row.slab_count += (uint32_t)sl_pool_copy_slab_count(copy);
    row.memory_bytes += sl_pool_copy_bytes(copy);
    row.bytes_done += view.bytes_done;
    memcpy(at, &row, sizeof(row));
    listing->found[listing->found_count++] = copy;
    return 0;
}

int sl_pool_listing_add(struct sl_pool_listing *listing, const struct sl_pool_entry *entry)
{
    if (listing->full)
        return -1;
    if (!is_wanted(listing->only, entry) || listing->seen++ < listing->skip)
        return 0;
    if (listing->only && listing->count)
        return entry->owner == listing->owner ? add_copy(listing, entry->copy) : 0;
    listing->owner = entry->owner;
    listing->found[0] = entry->copy;
    listing->found_count = entry->copy != NULL;
    return put_row(listing, entry);
}

static int ask(struct sl_pool_server *server, struct sl_pool_listing *listing, struct sl_err *err)
{
    if (!server->handler.list)
        return sl_fail(err, SL_E_USAGE, "this pool keeps no list");
    listing->server = server;
    listing->data = sl_alloc(SL_WIRE_PACKET_BYTES, err);
    if (!listing->data)
        return -1;
    server->handler.list(server->arg, listing);
    return 0;
}

int sl_pool_serve_list(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                       struct sl_err *err)
{
    struct sl_pool_listing listing = {.used = sizeof(struct sl_wire_listed), .skip = packet->id};
    if (ask(connection->server, &listing, err) < 0)
        return -1;
    struct sl_wire_listed *listed = (void *)listing.data;
    listed->count = listing.count;
    listed->next = listing.full ? packet->id + listing.count : 0;
    sl_pool_send(connection, SL_WIRE_ANSWER | SL_WIRE_LIST, listing.data, listing.used, NULL, 0);
    free(listing.data);
    return 0;
}

static bool is_found(const struct sl_pool_listing *listing, const struct sl_pool_copy *copy)
{
    for (size_t i = 0; i < listing->found_count; i++)
        if (listing->found[i] == copy)
            return true;
    return false;
}

/* Who has it. */
static uint32_t put_holders(struct sl_pool_listing *listing)
{
    struct sl_pool_server *server = listing->server;
    uint32_t count = 0;
    SL_LOCKED(&server->lock);
    for (const struct sl_pool_connection *connection = server->locked.first;
         connection && listing->found_count; connection = connection->next) {
        for (size_t i = 0; i < connection->lease_count && count < SL_WIRE_HOLDERS_MAX; i++) {
            const struct sl_pool_lease *lease = &connection->leases[i];
            if (!is_found(listing, lease->copy))
                continue;
            struct sl_wire_holder holder = {.lease = lease->id,
                                            .age_ms =
                                                (sl_now_ns() - lease->since_ns) / SL_NS_PER_MS,
                                            .pid = connection->peer.pid,
                                            .uid = connection->peer.uid,
                                            .gid = connection->peer.gid};
            holder.name_bytes = (uint32_t)strlen(connection->peer.name);
            memcpy(holder.name, connection->peer.name, holder.name_bytes);
            memcpy(listing->data + listing->used, &holder, sizeof(holder));
            listing->used += sizeof(holder);
            count++;
        }
    }
    return count;
}

_Static_assert(sizeof(struct sl_wire_stated) + 8192 +
                       SL_WIRE_HOLDERS_MAX * sizeof(struct sl_wire_holder) <
                   SL_WIRE_PACKET_BYTES,
               "a row and all holders fit one packet");

int sl_pool_serve_stat(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                       struct sl_err *err)
{
    struct sl_pool_listing listing = {.used = sizeof(struct sl_wire_stated), .only = packet};
    if (ask(connection->server, &listing, err) < 0)
        return -1;
    sl_autofree uint8_t *data = listing.data;
    if (listing.count != 1)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "the pool has no model '%s'%s%s: `sluice pool ls` shows "
                       "all",
                       packet->model, packet->key[0] ? " with the key " : "", packet->key);
    ((struct sl_wire_stated *)data)->holder_count = put_holders(&listing);
    sl_pool_send(connection, SL_WIRE_ANSWER | SL_WIRE_STAT, data, listing.used, NULL, 0);
    return 0;
}
