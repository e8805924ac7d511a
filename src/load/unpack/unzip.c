/*
 * ZIP: the directory at the end says what there is; each entry's own header, which may differ, says
 * only where its data begin. Both must agree on the name, entries may not overlap, and nothing may
 * follow the end record, so that no two programs read different files out of one archive. PKWARE
 * APPNOTE 6.3.10, sections 4.3 and 4.5.
 *
 * Entries are taken in the order of the directory; the size and the CRC32 of what comes out are
 * checked.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "buf.h"
#include "hash.h"
#include "unpack.h"
#include "zip_records.h"

enum {
    DIRECTORY_BYTES_MAX = 64 * 1024 * 1024,
    COPY_BYTES = 256 * 1024,
};

struct entry {
    const char *name;
    size_t name_bytes;
    uint64_t packed, bytes, header, data;
    uint32_t crc;
    unsigned method;
    mode_t mode; /* 0: not said */
};
struct zip {
    int fd;
    uint64_t bytes, directory, count;
    char *rows; /* the directory */
    size_t row_bytes;
    struct entry *entries;
    struct sl_unpack *unpack;
    uint8_t *input, *output; /* COPY_BYTES each */
};

static int broken(struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "zip", "the archive is not a ZIP that can be read: %s",
                        why);
}

static int read_at(const struct zip *zip, uint64_t offset, void *data, size_t bytes,
                   struct sl_err *err)
{
    if (offset > zip->bytes || bytes > zip->bytes - offset)
        return broken(err, "it points beyond its end");
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(zip->fd, (uint8_t *)data + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return sl_fail_errno(err, SL_E_NO_SPACE, got < 0 ? errno : EIO,
                                 "cannot read the archive back");
        done += (size_t)got;
    }
    return 0;
}

/* ---- its directory --------------------------------------------------------------------------- */

static int read_ends(const struct zip *zip, struct sl_zip_ends *ends, struct sl_err *err)
{
    size_t bytes = (size_t)SL_MIN(zip->bytes, (uint64_t)SL_ZIP_TAIL_BYTES);
    sl_autofree uint8_t *data = sl_alloc(bytes, err);
    const struct sl_zip_tail tail = {data, bytes, zip->bytes - bytes};
    struct sl_err why = SL_ERR_INIT;
    if (!data || read_at(zip, tail.begin, data, bytes, err) < 0)
        return -1;
    return sl_pkzip_read_ends(&tail, DIRECTORY_BYTES_MAX, SL_UNPACK_ENTRIES_MAX, ends, &why) < 0
               ? broken(err, why.message)
               : 0;
}

static int read_directory(struct zip *zip, struct sl_err *err)
{
    struct sl_zip_ends ends;
    if (read_ends(zip, &ends, err) < 0)
        return -1;
    zip->directory = ends.directory;
    zip->count = ends.count;
    zip->row_bytes = (size_t)ends.directory_bytes;
    zip->rows = sl_alloc(zip->row_bytes, err);
    zip->entries = sl_alloc_array((size_t)zip->count, sizeof(*zip->entries), err);
    if (!zip->rows || !zip->entries)
        return -1;
    return read_at(zip, zip->directory, zip->rows, zip->row_bytes, err);
}

static int refuse(const struct entry *entry, const char *code, const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, code,
                        "the archive's entry '%.*s' %s: nothing of it was taken",
                        (int)SL_MIN(entry->name_bytes, (size_t)200), entry->name, why);
}

static int judge_row(const struct zip *zip, const struct sl_zip_row *row, struct entry *entry,
                     struct sl_err *err)
{
    if (row->flags & SL_ZIP_FLAG_ENCRYPTED)
        return refuse(entry, "archive.encrypted", "is encrypted", err);
    if (row->disk)
        return refuse(entry, "zip", "is on another disk", err);
    if (entry->method != SL_ZIP_STORED && entry->method != SL_ZIP_DEFLATED)
        return refuse(entry, "archive.packing", "is packed by another method than deflate", err);
    if (entry->mode && !S_ISREG(entry->mode) && !S_ISDIR(entry->mode))
        return refuse(entry, "archive.type", "is a link or a device", err);
    if (entry->method == SL_ZIP_STORED && entry->packed != entry->bytes)
        return refuse(entry, "zip", "has two sizes", err);
    if (entry->header > zip->directory || entry->packed > zip->directory - entry->header)
        return refuse(entry, "zip", "lies behind the directory", err);
    return 0;
}

static int read_rows(struct zip *zip, struct sl_err *err)
{
    const uint8_t *at = (const uint8_t *)zip->rows;
    size_t left = zip->row_bytes;
    for (uint64_t i = 0; i < zip->count; i++) {
        struct sl_zip_row row;
        struct sl_err why = SL_ERR_INIT;
        if (sl_pkzip_next_row(&at, &left, &row, &why) < 0)
            return broken(err, why.message);
        struct entry *entry = &zip->entries[i];
        *entry = (struct entry){.name = row.name,
                                .name_bytes = row.name_bytes,
                                .packed = row.packed,
                                .bytes = row.bytes,
                                .header = row.header,
                                .crc = row.crc,
                                .method = row.method,
                                .mode = row.mode & S_IFMT ? row.mode : 0};
        if (judge_row(zip, &row, entry, err) < 0)
            return -1;
    }
    return left ? broken(err, "its directory holds more than its entries") : 0;
}

/* Where the data begin. */
static int locate(const struct zip *zip, struct entry *entry, struct sl_err *err)
{
    uint8_t head[SL_ZIP_LOCAL_BYTES];
    if (read_at(zip, entry->header, head, SL_ZIP_LOCAL_BYTES, err) < 0)
        return -1;
    size_t name = sl_get_le16(head + 26);
    sl_autofree char *own = sl_alloc(name, err);
    if (!own || read_at(zip, entry->header + SL_ZIP_LOCAL_BYTES, own, name, err) < 0)
        return -1;
    if (sl_get_le32(head) != SL_ZIP_LOCAL_MAGIC || name != entry->name_bytes ||
        memcmp(own, entry->name, name) != 0 || sl_get_le16(head + 8) != entry->method)
        return refuse(entry, "zip", "is another one in front of its data", err);
    entry->data = entry->header + SL_ZIP_LOCAL_BYTES + name + sl_get_le16(head + 28);
    if (entry->data > zip->directory || entry->packed > zip->directory - entry->data)
        return refuse(entry, "zip", "reaches into the directory", err);
    return 0;
}

static int by_header(const void *a, const void *b)
{
    const struct entry *x = *(const struct entry *const *)a, *y = *(const struct entry *const *)b;
    return (x->header > y->header) - (x->header < y->header);
}

/* Many entries that share data are how few bytes unpack to many. */
static int refuse_overlap(struct zip *zip, struct sl_err *err)
{
    sl_autofree const struct entry **order =
        sl_alloc_array((size_t)zip->count, sizeof(*order), err);
    if (!order)
        return -1;
    for (uint64_t i = 0; i < zip->count; i++)
        order[i] = &zip->entries[i];
    if (zip->count)
        qsort(order, (size_t)zip->count, sizeof(*order), by_header);
    for (uint64_t i = 1; i < zip->count; i++)
        if (order[i]->header < order[i - 1]->data + order[i - 1]->packed)
            return refuse(order[i], "zip", "shares its data with another one", err);
    return 0;
}

/* ---- data ----------------------------------------------------------------------------------- */

static int put(struct zip *zip, const void *data, size_t bytes, uint32_t *crc, struct sl_err *err)
{
    *crc = sl_crc32(*crc, data, bytes);
    return sl_unpack_write(zip->unpack, data, bytes, err);
}

static int copy(struct zip *zip, const struct entry *entry, uint32_t *crc, struct sl_err *err)
{
    for (uint64_t done = 0; done < entry->packed;) {
        size_t part = (size_t)SL_MIN(entry->packed - done, (uint64_t)COPY_BYTES);
        if (read_at(zip, entry->data + done, zip->input, part, err) < 0 ||
            put(zip, zip->input, part, crc, err) < 0)
            return -1;
        sl_unpack_eaten(zip->unpack, zip->fd, entry->data + done, entry->data + done + part);
        done += part;
    }
    return 0;
}

/* The part of the packed data that was taken last. */
static void eat_part(struct zip *zip, const struct entry *entry, uint64_t taken)
{
    uint64_t part = taken ? (taken - 1) % COPY_BYTES + 1 : 0;
    sl_unpack_eaten(zip->unpack, zip->fd, entry->data + taken - part, entry->data + taken);
}

/* One round of inflate, with more input if it has none. */
static int inflate_some(struct zip *zip, const struct entry *entry, z_stream *stream,
                        uint64_t *taken, struct sl_err *err)
{
    if (stream->avail_in == 0 && *taken < entry->packed) {
        size_t part = (size_t)SL_MIN(entry->packed - *taken, (uint64_t)COPY_BYTES);
        eat_part(zip, entry, *taken);
        if (read_at(zip, entry->data + *taken, zip->input, part, err) < 0)
            return -1;
        stream->next_in = zip->input;
        stream->avail_in = (unsigned)part;
        *taken += part;
    }
    stream->next_out = zip->output;
    stream->avail_out = COPY_BYTES;
    int state = inflate(stream, Z_NO_FLUSH);
    if (state == Z_MEM_ERROR)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory for unpacking");
    if (state != Z_OK && state != Z_STREAM_END)
        return refuse(entry, "zip", "has damaged data", err);
    return state == Z_STREAM_END;
}

static int inflate_entry(struct zip *zip, const struct entry *entry, uint32_t *crc,
                         struct sl_err *err)
{
    z_stream stream = {0};
    uint64_t taken = 0;
    int ended = 0;
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory for unpacking");
    while (ended == 0) {
        ended = inflate_some(zip, entry, &stream, &taken, err);
        if (ended >= 0 && put(zip, zip->output, COPY_BYTES - stream.avail_out, crc, err) < 0)
            ended = -1;
    }
    bool whole = taken == entry->packed && stream.avail_in == 0;
    inflateEnd(&stream);
    eat_part(zip, entry, taken);
    if (ended < 0)
        return -1;
    return whole ? 0 : refuse(entry, "zip", "has bytes behind its data", err);
}

static int take_entry(struct zip *zip, const struct entry *entry, struct sl_err *err)
{
    uint32_t crc = 0;
    if (entry->name_bytes && entry->name[entry->name_bytes - 1] == '/')
        return sl_unpack_folder(zip->unpack, entry->name, entry->name_bytes, err);
    if (sl_unpack_begin(zip->unpack, entry->name, entry->name_bytes, entry->bytes, false, err) < 0)
        return -1;
    int done = entry->method == SL_ZIP_DEFLATED ? inflate_entry(zip, entry, &crc, err)
                                                : copy(zip, entry, &crc, err);
    if (done < 0 || sl_unpack_end(zip->unpack, err) < 0)
        return -1;
    if (crc == entry->crc)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "zip.crc",
                        "the archive's entry '%.*s' has CRC32 %08x, not %08x: store it again",
                        (int)SL_MIN(entry->name_bytes, (size_t)200), entry->name, crc, entry->crc);
}

static int unzip(struct zip *zip, struct sl_err *err)
{
    if (read_directory(zip, err) < 0 || read_rows(zip, err) < 0)
        return -1;
    for (uint64_t i = 0; i < zip->count; i++)
        if (locate(zip, &zip->entries[i], err) < 0)
            return -1;
    if (refuse_overlap(zip, err) < 0)
        return -1;
    zip->input = sl_alloc(COPY_BYTES, err);
    zip->output = zip->input ? sl_alloc(COPY_BYTES, err) : NULL;
    if (!zip->output)
        return -1;
    for (uint64_t i = 0; i < zip->count; i++)
        if (take_entry(zip, &zip->entries[i], err) < 0)
            return -1;
    return 0;
}

int sl_unzip(int fd, uint64_t bytes, struct sl_unpack *unpack, struct sl_err *err)
{
    struct zip zip = {.fd = fd, .bytes = bytes, .unpack = unpack};
    int done = unzip(&zip, err);
    free(zip.rows);
    free(zip.entries);
    free(zip.input);
    free(zip.output);
    return done;
}
