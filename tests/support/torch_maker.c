/*
 * Records in torch's order: the pickle, what is small, the storages, the version; payloads at
 * multiples of the alignment behind a padding field, a descriptor behind each; the ZIP64 end
 * records always (formats, section 2).
 */
#include "torch_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "hash.h"

enum { BYTES_MAX = 1 << 30, FLAGS = 0x0808, PAIRS_MAX = 1000 /* that Python sets at once */ };

static void put(struct sl_buf *to, const void *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    if (sl_buf_append(to, data, bytes, &err) < 0)
        abort();
}

static void put_text(struct sl_buf *to, const char *text)
{
    put(to, text, strlen(text));
}

static void put_number(struct sl_buf *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        uint8_t byte = i < sizeof(value) ? value >> 8 * i & 0xff : 0;
        put(to, &byte, 1);
    }
}

/* ---- the archive ----------------------------------------------------------------------------- */

struct archive {
    struct sl_buf file, directory;
    unsigned count, alignment;
    bool unchecked;
};

static void put_fields(struct sl_buf *to, uint64_t flags, uint32_t crc, uint64_t bytes,
                       size_t name_bytes)
{
    put_number(to, flags, 2);
    put_number(to, 0, 2 + 4); /* method, time */
    put_number(to, crc, 4);
    put_number(to, bytes, 4);
    put_number(to, bytes, 4);
    put_number(to, name_bytes, 2);
}

static void add_entry(struct archive *archive, const char *entry, const void *data, size_t bytes)
{
    char name[64];
    size_t name_bytes = (size_t)snprintf(name, sizeof(name), "m/%s", entry);
    struct sl_buf *file = &archive->file, *directory = &archive->directory;
    uint32_t crc = archive->unchecked ? 0 : sl_crc32(0, data, bytes);
    uint64_t header = file->used, begin = header + 30 + name_bytes + 4;
    uint64_t padding = (archive->alignment - begin % archive->alignment) % archive->alignment;
    put_number(file, 0x04034b50, 4);
    put_number(file, 0, 2);
    put_fields(file, FLAGS, 0, 0, name_bytes);
    put_number(file, padding + 4, 2);
    put(file, name, name_bytes);
    put_number(file, 0x4246, 2);
    put_number(file, padding, 2);
    for (uint64_t i = 0; i < padding; i++)
        put(file, "Z", 1);
    put(file, data, bytes);
    put_number(file, 0x08074b50, 4);
    put_number(file, crc, 4);
    put_number(file, bytes, 4);
    put_number(file, bytes, 4);
    put_number(directory, 0x02014b50, 4);
    put_number(directory, 0, 4);
    put_fields(directory, FLAGS, crc, bytes, name_bytes);
    put_number(directory, 0, 2 + 2 + 2 + 2 + 4); /* extra, comment, disk, attributes */
    put_number(directory, header, 4);
    put(directory, name, name_bytes);
    archive->count++;
}

static void end_archive(struct archive *archive)
{
    struct sl_buf *file = &archive->file;
    uint64_t at = file->used, bytes = archive->directory.used, end = at + bytes;
    put(file, archive->directory.data, bytes);
    put_number(file, 0x06064b50, 4);
    put_number(file, 44, 8);
    put_number(file, 0, 4 + 4 + 4);
    put_number(file, archive->count, 8);
    put_number(file, archive->count, 8);
    put_number(file, bytes, 8);
    put_number(file, at, 8);
    put_number(file, 0x07064b50, 4);
    put_number(file, 0, 4);
    put_number(file, end, 8);
    put_number(file, 1, 4);
    put_number(file, 0x06054b50, 4);
    put_number(file, 0, 4);
    put_number(file, archive->count > 0xffff ? 0xffff : archive->count, 2);
    put_number(file, archive->count > 0xffff ? 0xffff : archive->count, 2);
    put_number(file, bytes, 4);
    put_number(file, at, 4);
    put_number(file, 0, 2);
}

/* ---- the pickle ------------------------------------------------------------------------------ */

static void put_string(struct sl_buf *to, const char *text)
{
    put_text(to, "X");
    put_number(to, strlen(text), 4);
    put_text(to, text);
}

static void put_integer(struct sl_buf *to, unsigned value)
{
    put_text(to, "J");
    put_number(to, value, 4);
}

static void put_tensor(struct sl_buf *to, unsigned number, const struct torch_options *wanted)
{
    char name[600], key[32];
    int used = snprintf(name, sizeof(name), "model.layers.%u.weight", number);
    while ((unsigned)used < wanted->name_bytes && used < (int)sizeof(name) - 1)
        name[used++] = '_';
    name[used] = 0;
    snprintf(key, sizeof(key), "%u", wanted->tied ? 0 : number);
    put_string(to, name);
    put_text(to, "h\1((h\4h\2"); /* _rebuild_tensor_v2 of ('storage', FloatStorage, */
    put_string(to, key);
    put_text(to, "h\5");
    put_integer(to, wanted->items);
    put_text(to, "tQK");
    put_number(to, 0, 1);
    put_integer(to, wanted->items);
    put_text(to, "\x85K\1\x85\x89h\3)RtR");
}

static void put_pickle(struct sl_buf *to, const struct torch_options *wanted)
{
    put_text(to, "\x80\2");
    put_text(to, "ctorch._utils\n_rebuild_tensor_v2\nq\1"
                 "0");
    put_text(to, "ctorch\nFloatStorage\nq\2"
                 "0");
    put_text(to, "ccollections\nOrderedDict\nq\3"
                 "0");
    put_string(to, "storage");
    put_text(to, "q\4"
                 "0");
    put_string(to, "cpu");
    put_text(to, "q\5"
                 "0");
    put_text(to, "}");
    for (unsigned i = 0; i < wanted->tensors; i++) {
        if (i % PAIRS_MAX == 0)
            put_text(to, "(");
        put_tensor(to, i, wanted);
        if ((i + 1) % PAIRS_MAX == 0 || i + 1 == wanted->tensors)
            put_text(to, "u");
    }
    put_text(to, ".");
}

uint8_t *torch_make(const struct torch_options *wanted, size_t *bytes)
{
    struct archive archive = {.file = SL_BUF_INIT(BYTES_MAX),
                              .directory = SL_BUF_INIT(BYTES_MAX),
                              .alignment = wanted->alignment ? wanted->alignment : 64,
                              .unchecked = wanted->unchecked};
    struct sl_buf pickle = SL_BUF_INIT(BYTES_MAX);
    char text[32];
    float *items = calloc(wanted->items, sizeof(*items));
    put_pickle(&pickle, wanted);
    add_entry(&archive, "data.pkl", pickle.data, pickle.used);
    if (wanted->alignment) {
        snprintf(text, sizeof(text), "%u", wanted->alignment);
        add_entry(&archive, ".storage_alignment", text, strlen(text));
    }
    add_entry(&archive, "byteorder", "little", 6);
    for (unsigned i = 0; i < (wanted->tied ? 1 : wanted->tensors); i++) {
        snprintf(text, sizeof(text), "data/%u", i);
        for (unsigned k = 0; k < wanted->items; k++)
            items[k] = (float)i;
        add_entry(&archive, text, items, wanted->items * sizeof(*items));
    }
    add_entry(&archive, "version", "3\n", 2);
    add_entry(&archive, ".data/serialization_id", "0123456789012345678901234567890123456789", 40);
    end_archive(&archive);
    free(items);
    sl_buf_release(&pickle);
    sl_buf_release(&archive.directory);
    *bytes = archive.file.used;
    return (uint8_t *)archive.file.data;
}
