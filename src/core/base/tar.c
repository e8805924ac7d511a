/* One header after another. What an extended header says (a long name, a size) is kept for the
 * entry that follows it. */
#include "tar.h"

#include <stdio.h>
#include <string.h>

#include "buf.h"

enum {
    BLOCK_BYTES = 512,
    EXTRA_BYTES_MAX = 1024 * 1024,
    PAX_RECORD_BYTES_MIN = 5,
};

struct sl_tar {
    struct sl_tar_input input;
    /* what an extended header said of the next entry; empty: nothing */
    struct sl_buf path, link;
    bool has_size;
    uint64_t size;
    uint64_t left, padding;                              /* of the data of the file in hand */
    char name_text[BLOCK_BYTES], link_text[BLOCK_BYTES]; /* of its header */
};

/* As a header has it. */
struct header {
    uint64_t bytes;
    char type;
    unsigned mode;
    uint64_t seconds;
};

struct sl_tar *sl_tar_new(const struct sl_tar_input *input, struct sl_err *err)
{
    struct sl_tar *tar = sl_alloc(sizeof(*tar), err);
    if (!tar)
        return NULL;
    tar->input = *input;
    tar->path.limit = tar->link.limit = EXTRA_BYTES_MAX + 1;
    return tar;
}

void sl_tar_free(struct sl_tar *tar)
{
    if (!tar)
        return;
    sl_buf_release(&tar->path);
    sl_buf_release(&tar->link);
    free(tar);
}

static int broken(struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "tar", "the archive is not a tar that can be read: %s",
                        why);
}

/* NULL: pass over them. */
static int read_exactly(struct sl_tar *tar, void *data, uint64_t bytes, struct sl_err *err)
{
    uint64_t got = 0;
    if (bytes && tar->input.read(tar->input.arg, data, bytes, &got, err) < 0)
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

static int parse_header(struct sl_tar *tar, const uint8_t *block, struct header *header,
                        struct sl_err *err)
{
    uint64_t mode;
    if (!sum_is_right(block))
        return broken(err, "a header's checksum is wrong");
    if (parse_number(block + 124, 12, &header->bytes) < 0)
        return broken(err, "a size is not a number");
    header->mode = parse_number(block + 100, 8, &mode) < 0 ? 0644 : (unsigned)mode;
    if (parse_number(block + 136, 12, &header->seconds) < 0 || header->seconds > INT64_MAX)
        header->seconds = 0;
    header->type = (char)block[156];
    bool ustar = memcmp(block + 257, "ustar", 6) == 0;
    snprintf(tar->name_text, sizeof(tar->name_text), "%.*s%s%.100s", ustar ? 155 : 0,
             (const char *)block + 345, ustar && block[345] ? "/" : "", (const char *)block);
    snprintf(tar->link_text, sizeof(tar->link_text), "%.100s", (const char *)block + 157);
    return 0;
}

/* ---- extended headers ------------------------------------------------------------------------ */

/* To a whole number of blocks. */
static uint64_t padding(uint64_t bytes)
{
    return (BLOCK_BYTES - bytes % BLOCK_BYTES) % BLOCK_BYTES;
}

/* An extended header's own data, whole; one byte more, 0, follows. */
static char *read_extra(struct sl_tar *tar, uint64_t bytes, struct sl_err *err)
{
    if (bytes > EXTRA_BYTES_MAX) {
        broken(err, "an extended header is larger than 1 MiB");
        return NULL;
    }
    sl_autofree char *data = sl_alloc(bytes + 1, err);
    if (!data || read_exactly(tar, data, bytes, err) < 0 ||
        read_exactly(tar, NULL, padding(bytes), err) < 0)
        return NULL;
    return sl_steal(&data);
}

static int keep(struct sl_buf *buf, const char *text, size_t bytes, struct sl_err *err)
{
    buf->used = 0;
    return sl_buf_append(buf, text, bytes, err);
}

static int take_pair(struct sl_tar *tar, const char *key, const char *value, size_t bytes,
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
            return broken(err, "a size is not a number");
        tar->size = tar->size * 10 + (uint64_t)(value[i] - '0');
    }
    return bytes ? 0 : broken(err, "a size is not a number");
}

/* Of what is said of all entries only this matters, since it is refused. */
static bool never_of_all(const char *key)
{
    return strcmp(key, "size") == 0 || strncmp(key, "GNU.sparse.", 11) == 0;
}

/* Records "LENGTH KEY=VALUE\n", where LENGTH counts all of it. */
static int take_pax(struct sl_tar *tar, char *data, size_t bytes, bool global, struct sl_err *err)
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
            return broken(err, "an extended header gives one size to all entries");
        at += length;
    }
    return 0;
}

static int take_extended(struct sl_tar *tar, const struct header *header, struct sl_err *err)
{
    sl_autofree char *data = read_extra(tar, header->bytes, err);
    if (!data)
        return -1;
    size_t bytes = (size_t)header->bytes;
    if (header->type == 'L')
        return keep(&tar->path, data, strnlen(data, bytes), err);
    if (header->type == 'K')
        return keep(&tar->link, data, strnlen(data, bytes), err);
    return take_pax(tar, data, bytes, header->type == 'g', err);
}

/* ---- entries -------------------------------------------------------------------------------- */

int sl_tar_refuse(const struct sl_tar_entry *entry, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "archive.type",
                        "the archive's entry '%.*s' is %s: nothing of it was taken",
                        (int)SL_MIN(entry->name_bytes, (size_t)200), entry->name,
                        entry->kind == SL_TAR_DEVICE ? "a device" : "a pipe");
}

static int refuse_type(const struct sl_tar_entry *entry, char type, struct sl_err *err)
{
    const char *what = type == 'S'   ? "a sparse file"
                       : type == 'M' ? "part of several volumes"
                                     : "of a kind that is not known";
    return sl_fail_code(err, SL_E_FORMAT, "archive.type",
                        "the archive's entry '%.*s' is %s: nothing of it was taken",
                        (int)SL_MIN(entry->name_bytes, (size_t)200), entry->name, what);
}

/* The data of a file comes next, to be read or passed over. */
static int begin_file(struct sl_tar *tar, const struct header *header, struct sl_tar_entry *entry)
{
    entry->kind = SL_TAR_FILE;
    entry->bytes = tar->left = header->bytes;
    tar->padding = padding(header->bytes);
    return 1;
}

/* 1: an entry. 0: nothing that anybody needs. */
static int name_kind(struct sl_tar *tar, const struct header *header, struct sl_tar_entry *entry,
                     struct sl_err *err)
{
    bool folder_name = entry->name_bytes && entry->name[entry->name_bytes - 1] == '/';
    switch (header->type) {
    case 0:
    case '0':
    case '7':
        if (!folder_name)
            return begin_file(tar, header, entry);
        entry->kind = SL_TAR_FOLDER; /* as before POSIX */
        return 1;
    case '1':
        entry->kind = SL_TAR_HARD_LINK;
        return 1;
    case '2':
        entry->kind = SL_TAR_SYMLINK;
        return 1;
    case '3':
    case '4':
        entry->kind = SL_TAR_DEVICE;
        return 1;
    case '5':
        entry->kind = SL_TAR_FOLDER;
        return 1;
    case '6':
        entry->kind = SL_TAR_PIPE;
        return 1;
    case 'V': /* GNU: the volume's label */
        return header->bytes ? broken(err, "its label is damaged") : 0;
    default:
        return refuse_type(entry, header->type, err);
    }
}

static int take_entry(struct sl_tar *tar, struct header *header, struct sl_tar_entry *entry,
                      struct sl_err *err)
{
    if (tar->has_size)
        header->bytes = tar->size;
    if (header->bytes > INT64_MAX)
        return broken(err, "a size is beyond all bounds");
    *entry = (struct sl_tar_entry){
        .executable = header->mode & 0100,
        .seconds = (int64_t)header->seconds,
        .name = tar->path.used ? sl_buf_string(&tar->path) : tar->name_text,
        .name_bytes = tar->path.used ? tar->path.used : strlen(tar->name_text),
        .link = tar->link.used ? sl_buf_string(&tar->link) : tar->link_text,
        .link_bytes = tar->link.used ? tar->link.used : strlen(tar->link_text)};
    int kind = name_kind(tar, header, entry, err);
    tar->path.used = tar->link.used = 0; /* what is borrowed stays until the next header */
    tar->has_size = false;
    return kind;
}

static bool is_extended(char type)
{
    return type == 'x' || type == 'X' || type == 'g' || type == 'L' || type == 'K';
}

static bool is_zero(const uint8_t *block)
{
    return block[0] == 0 && memcmp(block, block + 1, BLOCK_BYTES - 1) == 0;
}

static int pass_rest(struct sl_tar *tar, struct sl_err *err)
{
    uint64_t rest = tar->left + tar->padding;
    tar->left = tar->padding = 0;
    return read_exactly(tar, NULL, rest, err);
}

int sl_tar_next(struct sl_tar *tar, struct sl_tar_entry *entry, struct sl_err *err)
{
    uint8_t block[BLOCK_BYTES];
    if (pass_rest(tar, err) < 0)
        return -1;
    for (;;) {
        struct header header = {0};
        uint64_t got = 0;
        if (tar->input.read(tar->input.arg, block, BLOCK_BYTES, &got, err) < 0)
            return -1;
        if (got < BLOCK_BYTES)
            return broken(err, "its end mark is missing, so it was cut off");
        if (is_zero(block))
            return 0;
        if (parse_header(tar, block, &header, err) < 0)
            return -1;
        int taken = is_extended(header.type) ? take_extended(tar, &header, err)
                                             : take_entry(tar, &header, entry, err);
        if (taken)
            return taken;
    }
}

int sl_tar_read(struct sl_tar *tar, void *data, size_t bytes, struct sl_err *err)
{
    if (bytes > tar->left)
        return sl_fail(err, SL_E_INTERNAL, "more is read of an entry than it has");
    tar->left -= bytes;
    return read_exactly(tar, data, bytes, err);
}

/* ---- what is around it ----------------------------------------------------------------------- */

const char *sl_tar_packing(const uint8_t *head, size_t bytes)
{
    static const struct {
        const char *name;
        size_t bytes;
        uint8_t magic[6];
    } rows[] = {
        {"gzip", 2, {0x1f, 0x8b}},
        {"bzip2", 3, {'B', 'Z', 'h'}},
        {"xz", 6, {0xfd, '7', 'z', 'X', 'Z', 0}},
        {"zstd", 4, {0x28, 0xb5, 0x2f, 0xfd}},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (bytes >= rows[i].bytes && memcmp(head, rows[i].magic, rows[i].bytes) == 0)
            return rows[i].name;
    return NULL;
}

/* ---- names ----------------------------------------------------------------------------------- */

const char *sl_tar_clean_name(const char *name, size_t bytes, char *clean, size_t room)
{
    size_t used = 0;
    if (memchr(name, 0, bytes))
        return "has a NUL byte in its name";
    for (size_t begin = 0; begin < bytes;) {
        const char *component = name + begin, *slash = memchr(component, '/', bytes - begin);
        size_t length = slash ? (size_t)(slash - component) : bytes - begin;
        begin += length + 1;
        if (length == 0 || (length == 1 && *component == '.'))
            continue;
        if (length == 2 && memcmp(component, "..", 2) == 0)
            return "leads out of the archive by '..'";
        if (used + (used > 0) + length >= room)
            return "has a name longer than 1024 bytes";
        if (used)
            clean[used++] = '/';
        memcpy(clean + used, component, length);
        used += length;
    }
    clean[used] = 0;
    return NULL;
}
