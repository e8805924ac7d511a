/* Levels are made in place: a group of nodes becomes the node of its first. Where a group ends, the
 * hashes themselves say, so that a change in a file leaves most of the tree as it was. */
#include "xet_hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"

enum {
    GROUP_LEAST = 3, /* a hash may end a group from here on */
    GROUP_MOST = 9,
    GROUP_DIVISOR = 4, /* of hashes that end one */
    LINE_BYTES = SL_XET_HASH_TEXT + 24,
};
static const uint8_t data_key[SL_XET_HASH_BYTES] = {
    0x66, 0x97, 0xf5, 0x77, 0x5b, 0x95, 0x50, 0xde, 0x31, 0x35, 0xcb, 0xac, 0xa5, 0x97, 0x18, 0x1c,
    0x9d, 0xe4, 0x21, 0x10, 0x9b, 0xeb, 0x2b, 0x58, 0xb4, 0xd0, 0xb0, 0x4b, 0x93, 0xad, 0xf2, 0x29};
static const uint8_t node_key[SL_XET_HASH_BYTES] = {
    0x01, 0x7e, 0xc5, 0xc7, 0xa5, 0x47, 0x29, 0x96, 0xfd, 0x94, 0x66, 0x66, 0xb4, 0x8a, 0x02, 0xe6,
    0x5d, 0xdd, 0x53, 0x6f, 0x37, 0xc7, 0x6d, 0xd2, 0xf8, 0x63, 0x52, 0xe6, 0x4a, 0x53, 0x71, 0x3f};
static const uint8_t file_key[SL_XET_HASH_BYTES];

void sl_xet_chunk_hash(const void *data, size_t bytes, uint8_t hash[SL_XET_HASH_BYTES])
{
    sl_blake3_keyed(data_key, data, bytes, hash);
}

void sl_xet_hash_text(const uint8_t hash[SL_XET_HASH_BYTES], char text[SL_XET_HASH_TEXT])
{
    for (unsigned i = 0; i < 4; i++)
        snprintf(text + (size_t)16 * i, 17, "%016" PRIx64, sl_get_le64(hash + (size_t)8 * i));
}

bool sl_xet_is_hash(const char *text)
{
    return strlen(text) == SL_XET_HASH_TEXT - 1 &&
           strspn(text, "0123456789abcdef") == SL_XET_HASH_TEXT - 1;
}

/* How many of the nodes make the next group. */
static size_t group_of(const struct sl_xet_node *nodes, size_t count)
{
    size_t most = SL_MIN(count, (size_t)GROUP_MOST);
    for (size_t i = GROUP_LEAST - 1; i < most; i++)
        if (sl_get_le64(nodes[i].hash + 24) % GROUP_DIVISOR == 0)
            return i + 1;
    return most;
}

static struct sl_xet_node join(const struct sl_xet_node *nodes, size_t count)
{
    char lines[GROUP_MOST * LINE_BYTES], text[SL_XET_HASH_TEXT];
    struct sl_xet_node joined = {.bytes = 0};
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        sl_xet_hash_text(nodes[i].hash, text);
        used += (size_t)snprintf(lines + used, sizeof(lines) - used, "%s : %" PRIu64 "\n", text,
                                 nodes[i].bytes);
        joined.bytes += nodes[i].bytes;
    }
    sl_blake3_keyed(node_key, lines, used, joined.hash);
    return joined;
}

void sl_xet_file_hash(struct sl_xet_node *nodes, size_t count, uint8_t hash[SL_XET_HASH_BYTES])
{
    if (!count) {
        memset(hash, 0, SL_XET_HASH_BYTES);
        return;
    }
    while (count > 1) {
        size_t made = 0, group;
        for (size_t at = 0; at < count; at += group) {
            group = group_of(nodes + at, count - at);
            nodes[made++] = join(nodes + at, group);
        }
        count = made;
    }
    sl_blake3_keyed(file_key, nodes[0].hash, SL_XET_HASH_BYTES, hash);
}
