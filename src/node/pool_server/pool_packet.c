/*
 * A request is a struct of pool_wire.h and, for some, texts after it, one after another, which fill
 * the packet to its last byte: what is too short or too long is refused, not guessed at.
 */
#include "pool_packet.h"

#include <string.h>

#include "buf.h"

/* What is left of the packet. */
struct rest {
    const uint8_t *data;
    size_t bytes;
};

static int refuse(struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_USAGE, "protocol", "a request to the pool is malformed: %s", why);
}

/* The fixed part; what follows stays. */
static int take(struct rest *rest, void *part, size_t bytes, struct sl_err *err)
{
    if (rest->bytes < bytes)
        return refuse(err, "it is shorter than its type says");
    memcpy(part, rest->data, bytes);
    rest->data += bytes;
    rest->bytes -= bytes;
    return 0;
}

static int take_text(struct rest *rest, size_t bytes, char *text, size_t most, struct sl_err *err)
{
    if (bytes > most)
        return refuse(err, "a text is too long");
    if (take(rest, text, bytes, err) < 0)
        return -1;
    text[bytes] = 0;
    for (size_t i = 0; i < bytes; i++)
        if ((uint8_t)text[i] < 0x20 || text[i] == 0x7f)
            return refuse(err, "a text holds control characters");
    return sl_is_utf8(text, bytes) ? 0 : refuse(err, "a text is not UTF-8");
}

static int parse_hello(struct rest *rest, struct sl_pool_packet *packet, struct sl_err *err)
{
    struct sl_wire_hello hello = {0};
    if (take(rest, &hello, sizeof(hello), err) < 0)
        return -1;
    if (hello.magic != SL_WIRE_MAGIC || hello.reserved)
        return refuse(err, "it does not speak this protocol");
    packet->version_min = hello.version_min;
    packet->version_max = hello.version_max;
    return take_text(rest, hello.name_bytes, packet->client, SL_WIRE_CLIENT_BYTES, err);
}

static int take_texts(struct rest *rest, struct sl_pool_packet *packet, uint16_t model_bytes,
                      uint16_t key_bytes, uint16_t device_bytes, struct sl_err *err)
{
    if (take_text(rest, model_bytes, packet->model, SL_WIRE_MODEL_BYTES, err) < 0 ||
        take_text(rest, key_bytes, packet->key, SL_WIRE_KEY_BYTES, err) < 0 ||
        take_text(rest, device_bytes, packet->device, SL_WIRE_DEVICE_BYTES, err) < 0)
        return -1;
    return model_bytes ? 0 : refuse(err, "it names no model");
}

static int parse_attach(struct rest *rest, struct sl_pool_packet *packet, struct sl_err *err)
{
    struct sl_wire_attach attach = {0};
    if (take(rest, &attach, sizeof(attach), err) < 0)
        return -1;
    if ((attach.flags & ~(uint32_t)SL_WIRE_PRESENT_ONLY) || attach.reserved || attach.reserved2)
        return refuse(err, "it has flags of a later version");
    packet->flags = attach.flags;
    return take_texts(rest, packet, attach.model_bytes, attach.key_bytes, attach.device_bytes, err);
}

static int parse_ask(struct rest *rest, struct sl_pool_packet *packet, struct sl_err *err)
{
    struct sl_wire_ask ask = {0};
    if (take(rest, &ask, sizeof(ask), err) < 0)
        return -1;
    if (ask.reserved)
        return refuse(err, "a reserved field is not 0");
    return take_texts(rest, packet, ask.model_bytes, ask.key_bytes, 0, err);
}

static int parse_deposit(struct rest *rest, struct sl_pool_packet *packet, struct sl_err *err)
{
    struct sl_wire_deposit deposit = {0};
    if (take(rest, &deposit, sizeof(deposit), err) < 0)
        return -1;
    if (deposit.reserved)
        return refuse(err, "a reserved field is not 0");
    packet->bytes = deposit.bytes;
    memcpy(packet->identity, deposit.identity, sizeof(packet->identity));
    if (take_texts(rest, packet, deposit.model_bytes, deposit.key_bytes, deposit.device_bytes,
                   err) < 0)
        return -1;
    return packet->key[0] ? 0 : refuse(err, "a derived model needs a key");
}

static int parse_id(struct rest *rest, struct sl_pool_packet *packet, struct sl_err *err)
{
    struct sl_wire_id id = {0};
    if (take(rest, &id, sizeof(id), err) < 0)
        return -1;
    packet->id = id.id;
    return 0;
}

static int parse_slabs(struct rest *rest, struct sl_pool_packet *packet, struct sl_err *err)
{
    struct sl_wire_slabs slabs = {0};
    if (take(rest, &slabs, sizeof(slabs), err) < 0)
        return -1;
    packet->id = slabs.id;
    packet->first = slabs.first;
    packet->count = slabs.count;
    return 0;
}

static int parse_commit(struct rest *rest, struct sl_pool_packet *packet, struct sl_err *err)
{
    struct sl_wire_commit commit = {0};
    if (take(rest, &commit, sizeof(commit), err) < 0)
        return -1;
    packet->id = commit.id;
    packet->bytes = commit.index_bytes;
    return 0;
}

static int parse_type(struct rest *rest, struct sl_pool_packet *packet, struct sl_err *err)
{
    switch (packet->type) {
    case SL_WIRE_HELLO:
        return parse_hello(rest, packet, err);
    case SL_WIRE_ATTACH:
        return parse_attach(rest, packet, err);
    case SL_WIRE_DETACH:
    case SL_WIRE_LIST:
    case SL_WIRE_ABORT:
        return parse_id(rest, packet, err);
    case SL_WIRE_STAT:
    case SL_WIRE_EVICT:
        return parse_ask(rest, packet, err);
    case SL_WIRE_DEPOSIT:
        return parse_deposit(rest, packet, err);
    case SL_WIRE_DEPOSIT_SLABS:
        return parse_slabs(rest, packet, err);
    case SL_WIRE_COMMIT:
        return parse_commit(rest, packet, err);
    default:
        return refuse(err, "its type is unknown");
    }
}

int sl_pool_packet_parse(const void *data, size_t bytes, size_t fd_count,
                         struct sl_pool_packet *packet, struct sl_err *err)
{
    struct sl_wire_head head = {0};
    struct rest rest = {data, bytes};
    memset(packet, 0, sizeof(*packet));
    if (bytes < sizeof(head))
        return refuse(err, "it is shorter than its head");
    memcpy(&head, data, sizeof(head));
    packet->type = head.type;
    packet->serial = head.serial;
    if (head.bytes != bytes || head.reserved || head.zero)
        return refuse(err, "its head does not fit");
    size_t wanted = 0;
    if (parse_type(&rest, packet, err) < 0)
        return -1;
    if (rest.bytes)
        return refuse(err, "it is longer than its type says");
    if (packet->type == SL_WIRE_DEPOSIT_SLABS)
        wanted = packet->count;
    else if (packet->type == SL_WIRE_COMMIT)
        wanted = 1;
    return fd_count == wanted ? 0 : refuse(err, "it came with another number of descriptors");
}
