/*
 * The directory at the end of a ZIP archive is believed only if everything agrees: the end records
 * with each other, the directory with them, the entries with the directory. What other readers
 * tolerate (prefixes, bytes behind the end, two entries of one name) lets one file mean different
 * things to different readers, so it is refused. Layout and codes: formats, section 2.
 *
 * A payload's place stands only in its local header, behind padding. torch pads to 64 bytes, so the
 * place can be computed, and the computation be checked: payload and descriptor must end exactly
 * where the next header begins. Where they do not, the local header is read.
 */
#include "zip.h"

#include <inttypes.h>
#include <string.h>

#include "buf.h"
#include "format.h"
#include "gather.h"
#include "hash.h"
#include "lower_bound.h"
#include "names.h"

enum {
    TAIL_BYTES = 128 * 1024,
    ALIGNMENT = 64,
    FRONT_BYTES = 8 * 1024,  /* fetched in front of a directory: torch's last entries are small */
    ATTRIBUTE_FOLDER = 0x10, /* of DOS; torch reads no byte of such an entry */
};

#define ENTRY_NAME(entry) SL_NAME_ARGS((entry)->name, (entry)->name_bytes)

/* ---- the directory --------------------------------------------------------------------------- */

static bool has_climb(const char *name, size_t bytes)
{
    for (size_t i = 0; i + 2 <= bytes; i++)
        if (memcmp(name + i, "..", 2) == 0 && (i == 0 || name[i - 1] == '/') &&
            (i + 2 == bytes || name[i + 2] == '/'))
            return true;
    return false;
}

static int check_name(struct sl_zip *zip, const struct sl_zip_entry *entry, struct sl_err *err)
{
    const char *slash = memchr(entry->name, '/', entry->name_bytes);
    bool fine = entry->name_bytes > 0 && !memchr(entry->name, 0, entry->name_bytes) &&
                sl_is_utf8(entry->name, entry->name_bytes) && slash && slash != entry->name &&
                !has_climb(entry->name, entry->name_bytes);
    if (fine && !zip->root) {
        zip->root = entry->name;
        zip->root_bytes = (size_t)(slash - entry->name);
    }
    fine = fine && (size_t)(slash - entry->name) == zip->root_bytes &&
           memcmp(zip->root, entry->name, zip->root_bytes) == 0;
    return fine ? 0
                : sl_fail_code(err, SL_E_FORMAT, "zip.name",
                               "entry '%.*s' does not lie in the archive's one folder: "
                               "torch.save writes no such archive",
                               ENTRY_NAME(entry));
}

static int check_entry(struct sl_zip *zip, const struct sl_zip_entry *entry,
                       const struct sl_zip_row *row, struct sl_err *err)
{
    if (check_name(zip, entry, err) < 0)
        return -1;
    if (row->flags & SL_ZIP_FLAG_ENCRYPTED)
        return sl_fail_code(err, SL_E_FORMAT, "zip.encrypted", "entry '%.*s' is encrypted",
                            ENTRY_NAME(entry));
    if (row->method != SL_ZIP_STORED || row->packed != entry->bytes)
        return sl_fail_code(err, SL_E_FORMAT, "zip.compressed",
                            "entry '%.*s' is compressed: save it again with torch.save",
                            ENTRY_NAME(entry));
    if (row->attributes & ATTRIBUTE_FOLDER && entry->bytes)
        return sl_fail_code(err, SL_E_FORMAT, "zip.cd",
                            "entry '%.*s' is marked as a folder, but has %" PRIu64
                            " bytes: torch would not read them; ask who made the file",
                            ENTRY_NAME(entry), entry->bytes);
    if (row->disk != 0)
        return sl_fail_code(err, SL_E_FORMAT, "zip.multidisk", "entry '%.*s' is on another disk",
                            ENTRY_NAME(entry));
    uint64_t end;
    if (__builtin_add_overflow(entry->header, SL_ZIP_LOCAL_BYTES + entry->name_bytes, &end) ||
        __builtin_add_overflow(end, entry->bytes, &end) || end > zip->directory_begin)
        return sl_fail_code(err, SL_E_FORMAT, "zip.bounds",
                            "entry '%.*s' reaches beyond the archive's data", ENTRY_NAME(entry));
    return 0;
}

static int read_directory(struct sl_zip *zip, size_t bytes, struct sl_err *err)
{
    const uint8_t *at = (const uint8_t *)zip->directory;
    for (size_t i = 0; i < zip->count; i++) {
        struct sl_zip_row row;
        if (sl_pkzip_next_row(&at, &bytes, &row, err) < 0)
            return sl_wrap(err, "entry %zu of %zu", i + 1, zip->count);
        struct sl_zip_entry *entry = &zip->entries[i];
        *entry = (struct sl_zip_entry){.name = row.name,
                                       .name_bytes = row.name_bytes,
                                       .header = row.header,
                                       .crc = row.crc,
                                       .bytes = row.bytes};
        if (check_entry(zip, entry, &row, err) < 0)
            return -1;
    }
    return bytes == 0 ? 0
                      : sl_fail_code(err, SL_E_FORMAT, "zip.cd",
                                     "%zu bytes of the directory belong to no entry", bytes);
}

static int by_header(const void *a, const void *b)
{
    const struct sl_zip_entry *x = a, *y = b;
    return (x->header > y->header) - (x->header < y->header);
}

static int by_name(const void *a, const void *b, void *entries)
{
    const struct sl_zip_entry *x = (const struct sl_zip_entry *)entries + *(const uint32_t *)a;
    const struct sl_zip_entry *y = (const struct sl_zip_entry *)entries + *(const uint32_t *)b;
    return sl_bytes_compare(x->name, x->name_bytes, y->name, y->name_bytes);
}

static int check_names(struct sl_zip *zip, struct sl_err *err)
{
    zip->by_name = sl_alloc_array(zip->count, sizeof(*zip->by_name), err);
    if (!zip->by_name)
        return -1;
    for (size_t i = 0; i < zip->count; i++)
        zip->by_name[i] = (uint32_t)i;
    if (zip->count > 1)
        qsort_r(zip->by_name, zip->count, sizeof(*zip->by_name), by_name, zip->entries);
    for (size_t i = 1; i < zip->count; i++)
        if (by_name(&zip->by_name[i - 1], &zip->by_name[i], zip->entries) == 0)
            return sl_fail_code(err, SL_E_FORMAT, "zip.duplicate", "two entries are named '%.*s'",
                                ENTRY_NAME(&zip->entries[zip->by_name[i]]));
    return 0;
}

static int check_places(struct sl_zip *zip, struct sl_err *err)
{
    for (size_t i = 0; i < zip->count; i++) {
        struct sl_zip_entry *entry = &zip->entries[i];
        entry->next = i + 1 < zip->count ? entry[1].header : zip->directory_begin;
        if (entry->next - entry->header < SL_ZIP_LOCAL_BYTES + entry->name_bytes + entry->bytes)
            return sl_fail_code(err, SL_E_FORMAT, "zip.overlap",
                                "entries '%.*s' and '%.*s' overlap", ENTRY_NAME(entry),
                                ENTRY_NAME(i + 1 < zip->count ? entry + 1 : entry));
    }
    if (zip->count && zip->entries[0].header != 0)
        return sl_fail_code(err, SL_E_FORMAT, "zip.bounds",
                            "no entry begins at the archive's first byte");
    return 0;
}

static bool is_held(const struct sl_zip *zip, uint64_t begin, size_t bytes)
{
    return begin >= zip->tail_begin || begin + bytes <= zip->head_bytes;
}

/* Bytes of the archive, from head or tail if they hold them. */
static int read_bytes(const struct sl_zip *zip, uint64_t begin, void *data, size_t bytes,
                      struct sl_err *err)
{
    if (begin >= zip->tail_begin)
        memcpy(data, zip->tail + (begin - zip->tail_begin), bytes);
    else if (is_held(zip, begin, bytes))
        memcpy(data, zip->head + begin, bytes);
    else
        return sl_source_read(zip->source, zip->base + begin, data, bytes, err);
    return 0;
}

/* Put what lies between `begin` and the tail in front of it, before names point there. */
static int extend_tail(struct sl_zip *zip, uint64_t begin, struct sl_err *err)
{
    if (begin >= zip->tail_begin)
        return 0;
    size_t more = zip->tail_begin - begin;
    sl_autofree char *tail = sl_alloc(more + zip->tail_bytes + 1, err);
    if (!tail || sl_source_read(zip->source, zip->base + begin, tail, more, err) < 0)
        return -1;
    memcpy(tail + more, zip->tail, zip->tail_bytes);
    free(zip->tail);
    zip->tail = sl_steal(&tail);
    zip->tail_bytes += more;
    zip->tail_begin = begin;
    return 0;
}

int sl_zip_keep_head(struct sl_zip *zip, uint64_t end, struct sl_err *err)
{
    if (end <= zip->head_bytes || zip->base + end <= sl_source_held(zip->source))
        return 0;
    char *head = sl_format_read(zip->source, zip->base, end, err);
    if (!head)
        return -1;
    free(zip->head);
    zip->head = head;
    zip->head_bytes = end;
    return 0;
}

static char *copy_bytes(const uint8_t *data, size_t bytes, struct sl_err *err)
{
    char *copy = sl_alloc(bytes, err);
    if (copy)
        memcpy(copy, data, bytes);
    return copy;
}

/* What is in memory already, and the end. */
static int take_window(struct sl_zip *zip, const struct sl_zip_window *window, struct sl_err *err)
{
    if (window->head_bytes) {
        zip->head = copy_bytes(window->head, window->head_bytes, err);
        if (!zip->head)
            return -1;
        zip->head_bytes = window->head_bytes;
    }
    zip->tail_bytes = SL_MIN(window->bytes, (uint64_t)TAIL_BYTES);
    if (window->tail_bytes)
        zip->tail_bytes = window->tail_bytes;
    zip->tail_begin = window->bytes - zip->tail_bytes;
    zip->tail = window->tail_bytes ? copy_bytes(window->tail, window->tail_bytes, err)
                                   : sl_format_read(zip->source, zip->base + zip->tail_begin,
                                                    zip->tail_bytes, err);
    return zip->tail ? 0 : -1;
}

int sl_zip_open(struct sl_zip *zip, struct sl_source *source, struct sl_err *err)
{
    const struct sl_zip_window all = {.bytes = sl_source_bytes(source)};
    return sl_zip_open_window(zip, source, &all, err);
}

int sl_zip_open_window(struct sl_zip *zip, struct sl_source *source,
                       const struct sl_zip_window *window, struct sl_err *err)
{
    uint64_t bytes = window->bytes;
    struct sl_zip_ends ends = {0};
    *zip = (struct sl_zip){.source = source, .base = window->begin, .alignment = ALIGNMENT};
    if (take_window(zip, window, err) < 0)
        return -1;
    if (zip->tail_begin == 0 &&
        (bytes < 4 || sl_get_le32((uint8_t *)zip->tail) != SL_ZIP_LOCAL_MAGIC))
        return sl_fail_code(err, SL_E_FORMAT, "zip.not-zip", "it does not begin like an archive");
    const struct sl_zip_tail tail = {(uint8_t *)zip->tail, zip->tail_bytes, zip->tail_begin};
    if (sl_pkzip_read_ends(&tail, SL_ZIP_DIRECTORY_BYTES_MAX, SL_ZIP_ENTRIES_MAX, &ends, err) < 0)
        return -1;
    zip->directory_begin = ends.directory;
    zip->entries = sl_alloc_array(ends.count, sizeof(*zip->entries), err);
    if (!zip->entries)
        return -1;
    if (ends.directory < zip->tail_begin &&
        extend_tail(zip, ends.directory - SL_MIN(ends.directory, (uint64_t)FRONT_BYTES), err) < 0)
        return -1;
    zip->directory = zip->tail + (ends.directory - zip->tail_begin);
    zip->count = ends.count;
    if (read_directory(zip, ends.directory_bytes, err) < 0)
        return -1;
    if (zip->count > 1)
        qsort(zip->entries, zip->count, sizeof(*zip->entries), by_header);
    return check_names(zip, err) < 0 || check_places(zip, err) < 0 ? -1 : 0;
}

void sl_zip_release(struct sl_zip *zip)
{
    free(zip->entries);
    free(zip->by_name);
    free(zip->head);
    free(zip->tail);
    memset(zip, 0, sizeof(*zip));
}

/* Compare an entry with root/NAME without joining them. */
static int compare_name(const struct sl_zip *zip, const struct sl_zip_entry *entry,
                        const char *name, size_t name_bytes)
{
    size_t skip = zip->root_bytes + 1;
    return sl_bytes_compare(entry->name + skip, entry->name_bytes - skip, name, name_bytes);
}

struct sl_zip_entry *sl_zip_find(struct sl_zip *zip, const char *name, size_t name_bytes)
{
    size_t at = SL_LOWER_BOUND(
        i, zip->count, compare_name(zip, &zip->entries[zip->by_name[i]], name, name_bytes) < 0);
    struct sl_zip_entry *entry = at < zip->count ? &zip->entries[zip->by_name[at]] : NULL;
    return entry && compare_name(zip, entry, name, name_bytes) == 0 ? entry : NULL;
}

/* ---- payloads -------------------------------------------------------------------------------- */

/* Where torch puts the payload, 0 if the next header says that torch did not write this. */
static uint64_t predict(const struct sl_zip_entry *entry, uint64_t alignment)
{
    bool big = entry->bytes >= UINT32_MAX, far = entry->header >= UINT32_MAX;
    uint64_t extra = (big ? 16 : 0) + (far ? 8 : 0) + (big || far ? 4 : 0);
    uint64_t begin = entry->header + SL_ZIP_LOCAL_BYTES + entry->name_bytes + extra + 4;
    begin = (begin + alignment - 1) / alignment * alignment;
    uint64_t descriptor = entry->bytes == 0 ? 0 : extra ? 24 : 16;
    return begin + entry->bytes + descriptor == entry->next ? begin : 0;
}

static int check_local(struct sl_zip_entry *entry, const uint8_t *local, struct sl_err *err)
{
    uint32_t stored = sl_get_le32(local + 18), size = sl_get_le32(local + 22);
    bool late = sl_get_le16(local + 6) & SL_ZIP_FLAG_DESCRIPTOR;
    bool sizes = (late && stored == 0 && size == 0) || stored == UINT32_MAX || size == UINT32_MAX ||
                 (stored == entry->bytes && size == entry->bytes);
    if (sl_get_le32(local) != SL_ZIP_LOCAL_MAGIC || sl_get_le16(local + 8) != 0 || !sizes ||
        sl_get_le16(local + 6) & SL_ZIP_FLAG_ENCRYPTED ||
        sl_get_le16(local + 26) != entry->name_bytes ||
        memcmp(local + SL_ZIP_LOCAL_BYTES, entry->name, entry->name_bytes) != 0)
        return sl_fail_code(err, SL_E_FORMAT, "zip.local-mismatch",
                            "the local header of entry '%.*s' says something else than the "
                            "directory",
                            ENTRY_NAME(entry));
    entry->begin = entry->header + SL_ZIP_LOCAL_BYTES + entry->name_bytes + sl_get_le16(local + 28);
    if (entry->begin > entry->next || entry->next - entry->begin < entry->bytes)
        return sl_fail_code(err, SL_E_FORMAT, "zip.overlap",
                            "entry '%.*s' reaches into what follows it", ENTRY_NAME(entry));
    return 0;
}

/* Local headers of all entries that are still without a place. */
static int read_locals(struct sl_zip *zip, size_t count, size_t bytes, struct sl_err *err)
{
    sl_autofree struct sl_gather_item *items = sl_alloc_array(count, sizeof(*items), err);
    sl_autofree uint8_t *data = items ? sl_alloc(bytes, err) : NULL;
    if (!data)
        return -1;
    uint8_t *at = data;
    size_t number = 0;
    for (size_t i = 0; i < zip->count; i++) {
        const struct sl_zip_entry *entry = &zip->entries[i];
        if (!entry->wanted || entry->begin)
            continue;
        size_t length = SL_ZIP_LOCAL_BYTES + entry->name_bytes;
        uint64_t begin = zip->base + entry->header;
        if (!is_held(zip, entry->header, length))
            items[number++] = (struct sl_gather_item){begin, begin + length, at};
        else if (read_bytes(zip, entry->header, at, length, err) < 0)
            return -1;
        at += length;
    }
    if (number && sl_gather(zip->source, items, number, err) < 0)
        return -1;
    at = data;
    for (size_t i = 0; i < zip->count; i++) {
        struct sl_zip_entry *entry = &zip->entries[i];
        if (!entry->wanted || entry->begin)
            continue;
        if (check_local(entry, at, err) < 0)
            return -1;
        at += SL_ZIP_LOCAL_BYTES + entry->name_bytes;
    }
    return 0;
}

bool sl_zip_has_crc(const struct sl_zip_entry *entry)
{
    return entry->crc && entry->bytes;
}

int sl_zip_locate(struct sl_zip *zip, bool quick, struct sl_err *err)
{
    size_t count = 0, bytes = 0;
    for (size_t i = 0; i < zip->count; i++) {
        struct sl_zip_entry *entry = &zip->entries[i];
        if (!entry->wanted || entry->begin)
            continue;
        entry->begin = quick ? predict(entry, zip->alignment) : 0;
        if (entry->begin)
            continue;
        count++;
        bytes += SL_ZIP_LOCAL_BYTES + entry->name_bytes;
    }
    return count ? read_locals(zip, count, bytes, err) : 0;
}

static int check_crc(const struct sl_zip_entry *entry, const char *data, struct sl_err *err)
{
    uint32_t crc = sl_crc32(0, data, entry->bytes);
    if (crc == entry->crc || !sl_zip_has_crc(entry))
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "E_HASH_CRC32",
                        "entry '%.*s' is damaged: its CRC32 is %08" PRIx32
                        ", the archive's directory says %08" PRIx32 ": store the file again",
                        ENTRY_NAME(entry), crc, entry->crc);
}

char *sl_zip_read(struct sl_zip *zip, struct sl_zip_entry *entry, uint64_t bytes_max,
                  struct sl_err *err)
{
    if (entry->bytes > bytes_max) {
        sl_fail_code(err, SL_E_FORMAT, "zip.limit",
                     "entry '%.*s' has %" PRIu64 " bytes, limit %" PRIu64, ENTRY_NAME(entry),
                     entry->bytes, bytes_max);
        return NULL;
    }
    size_t length = SL_ZIP_LOCAL_BYTES + entry->name_bytes;
    sl_autofree uint8_t *local = sl_alloc(length, err);
    if (!local || read_bytes(zip, entry->header, local, length, err) < 0 ||
        check_local(entry, local, err) < 0)
        return NULL;
    sl_autofree char *data = sl_alloc(entry->bytes + 1, err);
    if (!data || (entry->bytes && read_bytes(zip, entry->begin, data, entry->bytes, err) < 0))
        return NULL;
    return check_crc(entry, data, err) < 0 ? NULL : sl_steal(&data);
}
