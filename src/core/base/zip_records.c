/*
 * The records at the end of a ZIP archive are believed only if they agree: what other readers
 * tolerate (bytes behind the end, two ends, two counts) lets one file mean different things to
 * different readers. PKWARE APPNOTE 6.3.10, sections 4.3 and 4.5.
 */
#include "zip_records.h"

#include <inttypes.h>
#include <stdbool.h>

#include "buf.h"

enum {
    ROW_BYTES_MAX = SL_ZIP_CENTRAL_BYTES + 3 * 65535, /* with name, extra field and comment */
    COMMENT_BYTES_MAX = 65535,
    MADE_BY_UNIX = 3,
};

static int end_fail(const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "zip.eocd", "the archive's end records disagree: %s",
                        why);
}

/* ---- end records ----------------------------------------------------------------------------- */

/* The one end record whose comment ends the object. Others take whatever looks like one last. */
static int find_end(const struct sl_zip_tail *tail, size_t *at, struct sl_err *err)
{
    unsigned found = 0;
    bool seen = false;
    size_t last = 0;
    for (size_t i = tail->bytes < SL_ZIP_END_BYTES ? 0 : tail->bytes - SL_ZIP_END_BYTES + 1;
         i-- > 0;) {
        if (tail->bytes - i > SL_ZIP_END_BYTES + COMMENT_BYTES_MAX)
            break;
        if (sl_get_le32(tail->data + i) != SL_ZIP_END_MAGIC)
            continue;
        if (!seen)
            last = i;
        seen = true;
        if (i + SL_ZIP_END_BYTES + sl_get_le16(tail->data + i + 20) != tail->bytes)
            continue;
        *at = i;
        found++;
    }
    if (found == 1 && *at == last)
        return 0;
    if (found)
        return end_fail("there are two", err);
    return seen
               ? sl_fail_code(err, SL_E_FORMAT, "zip.trailing",
                              "bytes follow the archive's end record: something was appended")
               : sl_fail_code(err, SL_E_FORMAT, "zip.no-eocd",
                              "the archive has no end record: the file is cut off, store it again");
}

/* A field of 16 or 32 bits repeats the one of 64 bits or says that it cannot. */
static bool agrees(uint64_t narrow, uint64_t marker, uint64_t wide)
{
    return narrow == wide || narrow == marker;
}

static int read_end64(const struct sl_zip_tail *tail, size_t at, struct sl_zip_ends *ends,
                      struct sl_err *err)
{
    const uint8_t *end = tail->data + at, *locator = end - SL_ZIP_LOCATOR_BYTES;
    if (at < SL_ZIP_LOCATOR_BYTES + SL_ZIP_END64_BYTES)
        return end_fail("there is a locator, but no record in front of it", err);
    const uint8_t *wide = locator - SL_ZIP_END64_BYTES;
    uint64_t place = tail->begin + at - SL_ZIP_LOCATOR_BYTES - SL_ZIP_END64_BYTES;
    if (sl_get_le32(locator + 4) != 0 || sl_get_le32(locator + 16) != 1)
        return sl_fail_code(err, SL_E_FORMAT, "zip.multidisk", "the archive spans several disks");
    if (sl_get_le64(locator + 8) != place || sl_get_le32(wide) != SL_ZIP_END64_MAGIC ||
        sl_get_le64(wide + 4) != SL_ZIP_END64_BYTES - 12)
        return end_fail("the locator does not point at the record in front of it", err);
    if (sl_get_le32(wide + 16) != 0 || sl_get_le32(wide + 20) != 0)
        return sl_fail_code(err, SL_E_FORMAT, "zip.multidisk", "the archive spans several disks");
    uint64_t count = sl_get_le64(wide + 32), bytes = sl_get_le64(wide + 40),
             directory = sl_get_le64(wide + 48);
    if (sl_get_le64(wide + 24) != count || !agrees(ends->count, 0xffff, count) ||
        !agrees(ends->directory_bytes, 0xffffffff, bytes) ||
        !agrees(ends->directory, 0xffffffff, directory))
        return end_fail("the ZIP64 record holds other numbers", err);
    *ends = (struct sl_zip_ends){directory, bytes, count, place};
    return 0;
}

int sl_pkzip_read_ends(const struct sl_zip_tail *tail, uint64_t bytes_max, uint64_t count_max,
                       struct sl_zip_ends *ends, struct sl_err *err)
{
    size_t at = 0;
    if (find_end(tail, &at, err) < 0)
        return -1;
    const uint8_t *end = tail->data + at;
    *ends = (struct sl_zip_ends){sl_get_le32(end + 16), sl_get_le32(end + 12),
                                 sl_get_le16(end + 10), tail->begin + at};
    bool wide = at >= SL_ZIP_LOCATOR_BYTES &&
                sl_get_le32(end - SL_ZIP_LOCATOR_BYTES) == SL_ZIP_LOCATOR_MAGIC;
    bool disks = !agrees(sl_get_le16(end + 4), wide ? 0xffff : 0, 0) ||
                 !agrees(sl_get_le16(end + 6), wide ? 0xffff : 0, 0);
    if (disks)
        return sl_fail_code(err, SL_E_FORMAT, "zip.multidisk", "the archive spans several disks");
    if (sl_get_le16(end + 8) != ends->count)
        return end_fail("two counts of entries", err);
    if (wide && read_end64(tail, at, ends, err) < 0)
        return -1;
    if (ends->directory > ends->end || ends->end - ends->directory != ends->directory_bytes)
        return end_fail("the directory does not end where they begin", err);
    if (ends->directory_bytes > bytes_max || ends->count > count_max)
        return sl_fail_code(err, SL_E_FORMAT, "zip.limit",
                            "a directory of %" PRIu64 " bytes with %" PRIu64
                            " entries, limits %" PRIu64 " and %" PRIu64,
                            ends->directory_bytes, ends->count, bytes_max, count_max);
    if (ends->count > ends->directory_bytes / SL_ZIP_CENTRAL_BYTES)
        return sl_fail_code(err, SL_E_FORMAT, "zip.cd",
                            "%" PRIu64 " entries do not fit a directory of %" PRIu64 " bytes",
                            ends->count, ends->directory_bytes);
    if (ends->directory_bytes > ends->count * ROW_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "zip.cd",
                            "%" PRIu64 " entries cannot fill a directory of %" PRIu64 " bytes",
                            ends->count, ends->directory_bytes);
    return 0;
}

/* ---- the directory --------------------------------------------------------------------------- */

/* The ZIP64 field of a directory entry: sizes and offset, each only if its own field is full. */
static int read_extra(const uint8_t *extra, size_t bytes, uint64_t values[3], struct sl_err *err)
{
    bool done = false;
    while (bytes >= 4 && !done) {
        size_t length = sl_get_le16(extra + 2);
        if (length > bytes - 4)
            break;
        if (sl_get_le16(extra) == 1) {
            const uint8_t *at = extra + 4;
            for (unsigned i = 0; i < 3; i++) {
                if (values[i] != 0xffffffff)
                    continue;
                if ((size_t)(extra + 4 + length - at) < 8)
                    return sl_fail_code(err, SL_E_FORMAT, "zip.cd", "a ZIP64 field is too short");
                values[i] = sl_get_le64(at);
                at += 8;
            }
            done = true;
        }
        extra += 4 + length;
        bytes -= 4 + length;
    }
    return 0;
}

int sl_pkzip_next_row(const uint8_t **at, size_t *left, struct sl_zip_row *row, struct sl_err *err)
{
    const uint8_t *data = *at;
    if (*left < SL_ZIP_CENTRAL_BYTES || sl_get_le32(data) != SL_ZIP_CENTRAL_MAGIC)
        return sl_fail_code(err, SL_E_FORMAT, "zip.cd", "an entry is not in the directory");
    size_t name = sl_get_le16(data + 28), extra = sl_get_le16(data + 30),
           length = SL_ZIP_CENTRAL_BYTES + name + extra + sl_get_le16(data + 32);
    if (length > *left)
        return sl_fail_code(err, SL_E_FORMAT, "zip.cd", "the directory ends inside an entry");
    uint64_t values[3] = {sl_get_le32(data + 24), sl_get_le32(data + 20), sl_get_le32(data + 42)};
    if (read_extra(data + SL_ZIP_CENTRAL_BYTES + name, extra, values, err) < 0)
        return -1;
    *row = (struct sl_zip_row){.name = (const char *)data + SL_ZIP_CENTRAL_BYTES,
                               .name_bytes = name,
                               .bytes = values[0],
                               .packed = values[1],
                               .header = values[2],
                               .crc = sl_get_le32(data + 16),
                               .flags = sl_get_le16(data + 8),
                               .method = sl_get_le16(data + 10),
                               .disk = sl_get_le16(data + 34),
                               .attributes = sl_get_le32(data + 38),
                               .mode = data[5] == MADE_BY_UNIX ? sl_get_le16(data + 40) : 0};
    *at += length;
    *left -= length;
    return 0;
}
