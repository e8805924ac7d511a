/*
 * tar: blocks of 512 bytes, a header for each entry, its data behind it. Three dialects are read:
 * ustar, GNU (long names, sizes in base 256), pax (names and sizes of any length). POSIX.1-2024,
 * pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format".
 *
 * Sparse files, devices and parts of several volumes are refused, and so is an archive without its
 * end mark: cut at a block it would look whole, with files missing.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "packed_file.h"
#include "unpack.h"

enum {
    BLOCK_BYTES = 512,
    COPY_BYTES = 256 * 1024,
    EXTRA_BYTES_MAX = 1024 * 1024,
    EAT_BYTES = 4 * 1024 * 1024, /* at a time */
    PAX_RECORD_BYTES_MIN = 5,
    HEADERS_BYTES_MAX = 1024 * 1024 * 1024
};

struct tar {
    struct sl_packed_file *file;
    struct sl_unpack *unpack;
    uint8_t *buffer; /* COPY_BYTES */
    /* what an extended header said of the next entry; empty: nothing */
    struct sl_buf path, link;
    bool has_size;
    uint64_t size;
    uint64_t read_bytes, read_bytes_max; /* headers, data and what lies between */
    int fd;
    uint64_t eaten; /* of its file */
};

struct entry {
    uint64_t bytes;
    char type;
    unsigned mode;
    char name[BLOCK_BYTES], link[BLOCK_BYTES];
};

static int broken(struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "tar", "the archive is no tar that can be read: %s", why);
}

/* At the end of the file less comes. */
static int read_some(struct tar *tar, void *data, size_t bytes, size_t *got, struct sl_err *err)
{
    tar->read_bytes += bytes;
    if (tar->read_bytes > tar->read_bytes_max)
        return sl_fail_code(err, SL_E_FORMAT, "archive.ratio",
                            "the archive unpacks to far more than its own size");
    uint64_t offset = sl_packed_file_offset(tar->file) / EAT_BYTES * EAT_BYTES;
    if (offset > tar->eaten) {
        sl_unpack_eaten(tar->unpack, tar->fd, tar->eaten, offset);
        tar->eaten = offset;
    }
    return sl_packed_file_read(tar->file, data, bytes, got, err);
}

static int read_exactly(struct tar *tar, void *data, size_t bytes, struct sl_err *err)
{
    size_t got = 0;
    if (read_some(tar, data, bytes, &got, err) < 0)
        return -1;
    return got == bytes ? 0 : broken(err, "it ends inside an entry, so it was cut off");
}

/* ---- one header ----------------------------------------------------------------------------- */

static int parse_number(const uint8_t *field, size_t bytes, uint64_t *value)
{
    *value = 0;
    size_t i = 0;
    if (field[0] & 0x80) { /* GNU: base 256 */
        if (field[0] != 0x80)
            return -1;
        for (i = 1; i < bytes; i++) {
            if (*value >> 55)
                return -1;
            *value = *value << 8 | field[i];
        }
        return 0;
    }
    while (i < bytes && field[i] == ' ')
        i++;
    for (; i < bytes && field[i] >= '0' && field[i] <= '7'; i++)
        *value = *value << 3 | (uint64_t)(field[i] - '0'); /* 12 digits at most */
    return i == bytes || field[i] == 0 || field[i] == ' ' ? 0 : -1;
}

static bool sum_is_right(const uint8_t *block)
{
    uint64_t expected;
    int64_t plain = 0, with_sign = 0; /* some old writers added signed characters */
    for (size_t i = 0; i < BLOCK_BYTES; i++) {
        uint8_t byte = i >= 148 && i < 156 ? ' ' : block[i];
        plain += byte;
        with_sign += (int8_t)byte;
    }
    return parse_number(block + 148, 8, &expected) == 0 &&
           ((int64_t)expected == plain || (int64_t)expected == with_sign);
}

static int parse_header(const uint8_t *block, struct entry *entry, struct sl_err *err)
{
    uint64_t mode;
    if (!sum_is_right(block))
        return broken(err, "a header's checksum is wrong");
    if (parse_number(block + 124, 12, &entry->bytes) < 0)
        return broken(err, "a size is no number");
    entry->mode = parse_number(block + 100, 8, &mode) < 0 ? 0644 : (unsigned)mode;
    entry->type = (char)block[156];
    bool ustar = memcmp(block + 257, "ustar", 6) == 0;
    snprintf(entry->name, sizeof(entry->name), "%.*s%s%.100s", ustar ? 155 : 0,
             (const char *)block + 345, ustar && block[345] ? "/" : "", (const char *)block);
    snprintf(entry->link, sizeof(entry->link), "%.100s", (const char *)block + 157);
    return 0;
}

/* ---- extended headers ------------------------------------------------------------------------ */

/* To a whole number of blocks. */
static uint64_t padding(uint64_t bytes)
{
    return (BLOCK_BYTES - bytes % BLOCK_BYTES) % BLOCK_BYTES;
}

static int skip_padding(struct tar *tar, uint64_t bytes, struct sl_err *err)
{
    uint8_t block[BLOCK_BYTES];
    return read_exactly(tar, block, (size_t)padding(bytes), err);
}

/* An extended header's own data, whole; one byte more, 0, follows. */
static char *read_extra(struct tar *tar, uint64_t bytes, struct sl_err *err)
{
    if (bytes > EXTRA_BYTES_MAX) {
        broken(err, "an extended header is larger than 1 MiB");
        return NULL;
    }
    sl_autofree char *data = sl_alloc(bytes + 1, err);
    if (!data || read_exactly(tar, data, bytes, err) < 0 || skip_padding(tar, bytes, err) < 0)
        return NULL;
    return sl_steal(&data);
}

static int keep(struct sl_buf *buf, const char *text, size_t bytes, struct sl_err *err)
{
    buf->used = 0;
    return sl_buf_append(buf, text, bytes, err);
}

static int take_pair(struct tar *tar, const char *key, const char *value, size_t bytes,
                     struct sl_err *err)
{
    if (strcmp(key, "path") == 0)
        return keep(&tar->path, value, bytes, err);
    if (strcmp(key, "linkpath") == 0)
        return keep(&tar->link, value, bytes, err);
    if (strncmp(key, "GNU.sparse.", 11) == 0)
        return broken(err, "it holds sparse files: write it without --sparse");
    if (strcmp(key, "size") != 0)
        return 0;
    tar->size = 0;
    tar->has_size = true;
    for (size_t i = 0; i < bytes; i++) {
        if (value[i] < '0' || value[i] > '9' || tar->size > UINT64_MAX / 16 - 10)
            return broken(err, "a size is no number");
        tar->size = tar->size * 10 + (uint64_t)(value[i] - '0');
    }
    return bytes ? 0 : broken(err, "a size is no number");
}

/* Of what is said of all entries only this matters, since it is refused. */
static bool never_of_all(const char *key)
{
    return strcmp(key, "size") == 0 || strncmp(key, "GNU.sparse.", 11) == 0;
}

/* Records "LENGTH KEY=VALUE\n", where LENGTH counts all of it. */
static int take_pax(struct tar *tar, char *data, size_t bytes, bool global, struct sl_err *err)
{
    for (size_t at = 0; at < bytes;) {
        size_t length = 0, digits = at;
        for (; digits < bytes && data[digits] >= '0' && data[digits] <= '9' &&
               length < EXTRA_BYTES_MAX;
             digits++)
            length = length * 10 + (size_t)(data[digits] - '0');
        char *equals = memchr(data + digits, '=', bytes - digits);
        if (length < PAX_RECORD_BYTES_MIN || length > bytes - at || data[digits] != ' ' ||
            !equals || equals >= data + at + length - 1 || data[at + length - 1] != '\n')
            return broken(err, "an extended header is damaged");
        *equals = 0;
        const char *key = data + digits + 1, *value = equals + 1;
        size_t value_bytes = (size_t)(data + at + length - 1 - value);
        if ((!global || never_of_all(key)) && take_pair(tar, key, value, value_bytes, err) < 0)
            return -1;
        if (global && tar->has_size)
            return broken(err, "one size is said of all entries");
        at += length;
    }
    return 0;
}

static int take_extended(struct tar *tar, const struct entry *entry, struct sl_err *err)
{
    sl_autofree char *data = read_extra(tar, entry->bytes, err);
    if (!data)
        return -1;
    size_t bytes = (size_t)entry->bytes;
    if (entry->type == 'L')
        return keep(&tar->path, data, strnlen(data, bytes), err);
    if (entry->type == 'K')
        return keep(&tar->link, data, strnlen(data, bytes), err);
    return take_pax(tar, data, bytes, entry->type == 'g', err);
}

/* ---- entries -------------------------------------------------------------------------------- */

static int take_file(struct tar *tar, const char *name, size_t name_bytes,
                     const struct entry *entry, struct sl_err *err)
{
    uint64_t left = entry->bytes;
    if (sl_unpack_begin(tar->unpack, name, name_bytes, left, entry->mode & 0100, err) < 0)
        return -1;
    while (left) {
        size_t part = (size_t)SL_MIN(left, (uint64_t)COPY_BYTES);
        if (read_exactly(tar, tar->buffer, part, err) < 0 ||
            sl_unpack_write(tar->unpack, tar->buffer, part, err) < 0)
            return -1;
        left -= part;
    }
    return sl_unpack_end(tar->unpack, err) < 0 ? -1 : skip_padding(tar, entry->bytes, err);
}

static int refuse_type(const char *name, size_t name_bytes, char type, struct sl_err *err)
{
    const char *what = type == '3' || type == '4' ? "a device"
                       : type == '6'              ? "a pipe"
                       : type == 'S'              ? "a sparse file"
                       : type == 'M'              ? "part of several volumes"
                                                  : "of a kind that is not known";
    return sl_fail_code(err, SL_E_FORMAT, "archive.type",
                        "the archive's entry '%.*s' is %s: nothing of it was taken",
                        (int)SL_MIN(name_bytes, (size_t)200), name, what);
}

static int take_entry(struct tar *tar, struct entry *entry, struct sl_err *err)
{
    const char *name = tar->path.used ? sl_buf_string(&tar->path) : entry->name;
    size_t name_bytes = tar->path.used ? tar->path.used : strlen(name);
    const char *link = tar->link.used ? sl_buf_string(&tar->link) : entry->link;
    size_t link_bytes = tar->link.used ? tar->link.used : strlen(link);
    bool folder_name = name_bytes && name[name_bytes - 1] == '/';
    switch (entry->type) {
    case 0:
    case '0':
    case '7':
        if (folder_name) /* as before POSIX */
            return sl_unpack_folder(tar->unpack, name, name_bytes, err);
        return take_file(tar, name, name_bytes, entry, err);
    case '1':
        return sl_unpack_hard_link(tar->unpack, name, name_bytes, link, link_bytes, err);
    case '2':
        return sl_unpack_symlink(tar->unpack, name, name_bytes, link, link_bytes, err);
    case '5':
        return sl_unpack_folder(tar->unpack, name, name_bytes, err);
    case 'V': /* GNU: the volume's label */
        return entry->bytes ? broken(err, "its label is damaged") : 0;
    default:
        return refuse_type(name, name_bytes, entry->type, err);
    }
}

static int take_block(struct tar *tar, const uint8_t *block, struct sl_err *err)
{
    struct entry entry;
    if (parse_header(block, &entry, err) < 0)
        return -1;
    if (entry.type == 'x' || entry.type == 'X' || entry.type == 'g' || entry.type == 'L' ||
        entry.type == 'K')
        return take_extended(tar, &entry, err);
    if (tar->has_size)
        entry.bytes = tar->size;
    if (entry.bytes > INT64_MAX)
        return broken(err, "a size is beyond all bounds");
    int done = take_entry(tar, &entry, err);
    tar->path.used = tar->link.used = 0;
    tar->has_size = false;
    return done;
}

static bool is_zero(const uint8_t *block)
{
    return block[0] == 0 && memcmp(block, block + 1, BLOCK_BYTES - 1) == 0;
}

/* To the end of the file, so that what gzip says of all of it is checked. */
static int drain(struct tar *tar, struct sl_err *err)
{
    size_t got;
    do {
        if (read_some(tar, tar->buffer, COPY_BYTES, &got, err) < 0)
            return -1;
    } while (got);
    return 0;
}

static int read_blocks(struct tar *tar, struct sl_err *err)
{
    uint8_t block[BLOCK_BYTES];
    for (bool first = true;; first = false) {
        size_t got = 0;
        if (read_some(tar, block, BLOCK_BYTES, &got, err) < 0)
            return -1;
        if (got < BLOCK_BYTES)
            return broken(err, first ? "it is shorter than one header"
                                     : "its end mark is missing, so it was cut off");
        if (is_zero(block))
            return first ? broken(err, "it holds nothing") : drain(tar, err);
        if (take_block(tar, block, err) < 0)
            return -1;
    }
}

int sl_untar(int fd, uint64_t bytes, struct sl_unpack *unpack, struct sl_err *err)
{
    struct tar tar = {.unpack = unpack,
                      .fd = fd,
                      .read_bytes_max = sl_unpack_limit(unpack) + HEADERS_BYTES_MAX,
                      .path = SL_BUF_INIT(EXTRA_BYTES_MAX + 1),
                      .link = SL_BUF_INIT(EXTRA_BYTES_MAX + 1)};
    SL_AUTO(sl_packed_file) file = sl_packed_file_open(fd, bytes, err);
    sl_autofree uint8_t *buffer = file ? sl_alloc(COPY_BYTES, err) : NULL;
    tar.file = file;
    tar.buffer = buffer;
    int done = buffer ? read_blocks(&tar, err) : -1;
    sl_buf_release(&tar.path);
    sl_buf_release(&tar.link);
    return done;
}
