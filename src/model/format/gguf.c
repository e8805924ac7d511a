/*
 * GGUF, versions 2 and 3, as ggml writes them: keys (gguf_keys.c), a directory of tensors
 * (gguf_tensors.c), the data. The header is read through a window (gguf_walk.c). Where the text of
 * the format and ggml's reader differ, ggml's rule holds: that is what writers were tested against.
 * What it fails to notice (products that wrap to zero) is refused.
 *
 * A part of a split set is an index of its own; whether the parts fit together is gguf_set.c's.
 */
#include "gguf.h"

#include <inttypes.h>
#include <string.h>

#include "buf.h"
#include "format.h"

enum { MAGIC_BYTES = 4, ALIGNMENT_DEFAULT = 32, VERSION_MIN = 2, VERSION_MAX = 3 };
static const char magic[] = "GGUF", magic_swapped[] = "FUGG";

static bool probe(const struct sl_format_head *head)
{
    return head->bytes >= MAGIC_BYTES && memcmp(head->data, magic, MAGIC_BYTES) == 0;
}

static int big_endian(struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "gg.endian",
                        "the file is big-endian: convert it to little-endian");
}

static int check_magic(struct sl_gguf_walk *walk, struct sl_err *err)
{
    const uint8_t *data = sl_gguf_take(walk, MAGIC_BYTES, "the magic", err);
    if (!data)
        return -1;
    if (memcmp(data, magic_swapped, MAGIC_BYTES) == 0)
        return big_endian(err);
    if (memcmp(data, magic, MAGIC_BYTES) != 0)
        return sl_fail_code(err, SL_E_FORMAT, "gg.magic", "the file does not begin with GGUF");
    return 0;
}

static int take_version(struct sl_gguf_walk *walk, uint32_t *version, struct sl_err *err)
{
    if (sl_gguf_take_u32(walk, "the version", version, err) < 0)
        return -1;
    if (*version && (*version & 0xffff) == 0)
        return big_endian(err);
    if (*version < VERSION_MIN || *version > VERSION_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.version",
                            "version %" PRIu32 ", known are 2 and 3", *version);
    return 0;
}

static int take_count(struct sl_gguf_walk *walk, const char *what, uint64_t *count,
                      struct sl_err *err)
{
    if (sl_gguf_take_u64(walk, what, count, err) < 0)
        return -1;
    if (*count > SL_GGUF_COUNT_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.limit", "%s is %" PRIu64 ", limit %d", what,
                            *count, SL_GGUF_COUNT_MAX);
    return 0;
}

static int read_header(struct sl_index *index, struct sl_gguf_walk *walk, struct sl_err *err)
{
    uint64_t tensors, keys;
    uint32_t version, alignment = ALIGNMENT_DEFAULT;
    if (check_magic(walk, err) < 0 || take_version(walk, &version, err) < 0 ||
        take_count(walk, "the number of tensors", &tensors, err) < 0 ||
        take_count(walk, "the number of keys", &keys, err) < 0)
        return -1;
    index->format_version = version;
    if (sl_gguf_keys(index, walk, keys, &alignment, err) < 0)
        return -1;
    return sl_gguf_tensors(index, walk, tensors, alignment, err);
}

static int open_index(struct sl_source *source, bool files, struct sl_index **out,
                      struct sl_err *err)
{
    SL_AUTO(sl_index) index = sl_format_begin(sl_gguf_format.name, source, err);
    if (!index)
        return -1;
    index->files = files;
    struct sl_gguf_walk walk = {.source = source, .object_bytes = sl_source_bytes(source)};
    int result = read_header(index, &walk, err);
    sl_gguf_walk_release(&walk);
    if (result < 0)
        return sl_wrap(err, "cannot read '%s' as GGUF", sl_source_uri(index->sources[0]));
    *out = sl_steal(&index);
    return 0;
}

static int gguf_index(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return open_index(source, false, out, err);
}

static int index_files(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return open_index(source, true, out, err);
}

const struct sl_format sl_gguf_format = {
    .name = "gguf",
    .suffixes = {".gguf"},
    .probe = probe,
    .index = gguf_index,
    .index_files = index_files,
    .unread = {"gg.version", "gg.endian", "gg.kv-type", "gg.key", "gg.name"},
    .part_name = sl_gguf_part_name,
    .check_sets = sl_gguf_check_sets,
};
