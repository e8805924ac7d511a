/* One header is a block of ustar; what does not fit into it goes before it, as a record of pax. */
#include "tar_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK_BYTES = 512, NAME_ROOM = 100, OCTAL_BYTES_BITS = 33 };

size_t sl_tar_padding(uint64_t bytes)
{
    return (size_t)((BLOCK_BYTES - bytes % BLOCK_BYTES) % BLOCK_BYTES);
}

/* Eleven octal digits, or eight bytes of base 256, as GNU has them. */
static void put_size(uint8_t field[12], uint64_t bytes)
{
    if (bytes >> OCTAL_BYTES_BITS == 0) {
        snprintf((char *)field, 12, "%011" PRIo64, bytes);
        return;
    }
    field[0] = 0x80;
    for (unsigned i = 0; i < 8; i++)
        field[11 - i] = (uint8_t)(bytes >> (8 * i));
}

static char type_of(enum sl_tar_kind kind)
{
    return kind == SL_TAR_FOLDER ? '5' : kind == SL_TAR_SYMLINK ? '2' : '0';
}

static int put_block(const struct sl_tar_entry *entry, char type, struct sl_buf *out,
                     struct sl_err *err)
{
    uint8_t block[BLOCK_BYTES] = {0};
    unsigned sum = 0, mode = entry->kind == SL_TAR_FOLDER || entry->executable ? 0755 : 0644;
    memcpy(block, entry->name, SL_MIN(entry->name_bytes, (size_t)NAME_ROOM));
    snprintf((char *)block + 100, 8, "%07o", mode);
    memcpy(block + 108, "0000000", 7); /* user and group */
    memcpy(block + 116, "0000000", 7);
    put_size(block + 124, entry->bytes);
    put_size(block + 136, entry->seconds > 0 ? (uint64_t)entry->seconds : 0);
    block[156] = (uint8_t)type;
    memcpy(block + 157, entry->link, SL_MIN(entry->link_bytes, (size_t)NAME_ROOM));
    memcpy(block + 257, "ustar\00000", 8);
    memset(block + 148, ' ', 8);
    for (size_t i = 0; i < BLOCK_BYTES; i++)
        sum += block[i];
    snprintf((char *)block + 148, 8, "%06o", sum);
    return sl_buf_append(out, block, BLOCK_BYTES, err);
}

/* "LENGTH KEY=VALUE\n", where LENGTH counts its own digits. */
static int put_record(struct sl_buf *out, const char *key, const char *value, size_t bytes,
                      struct sl_err *err)
{
    size_t rest = 1 + strlen(key) + 1 + bytes + 1, length = rest + 1;
    char digits[24];
    while (rest + (size_t)snprintf(digits, sizeof(digits), "%zu", length) != length)
        length = rest + strlen(digits);
    if (sl_buf_printf(out, err, "%zu %s=", length, key) < 0 ||
        sl_buf_append(out, value, bytes, err) < 0)
        return -1;
    return sl_buf_text(out, "\n", err);
}

int sl_tar_write_head(const struct sl_tar_entry *entry, struct sl_buf *out, struct sl_err *err)
{
    static const char zeros[BLOCK_BYTES];
    sl_autobuf records = SL_BUF_INIT(1024 * 1024);
    if (entry->name_bytes > NAME_ROOM &&
        put_record(&records, "path", entry->name, entry->name_bytes, err) < 0)
        return -1;
    if (entry->link_bytes > NAME_ROOM &&
        put_record(&records, "linkpath", entry->link, entry->link_bytes, err) < 0)
        return -1;
    const struct sl_tar_entry more = {
        .name = "more", .name_bytes = 4, .link = "", .bytes = records.used};
    if (records.used && (put_block(&more, 'x', out, err) < 0 ||
                         sl_buf_append(out, records.data, records.used, err) < 0 ||
                         sl_buf_append(out, zeros, sl_tar_padding(records.used), err) < 0))
        return -1;
    return put_block(entry, type_of(entry->kind), out, err);
}
