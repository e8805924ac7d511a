/*
 * Names of .tensors files (section 6): a byte string is one component, or 0x1E and a JSON array of
 * strings and integers. That no path is twice there, none is a prefix of another and no level mixes
 * texts with numbers is seen between neighbours once the paths are sorted, numbers before texts and
 * prefixes first.
 *
 * What is written is spelled exactly as the reference writer spells it, in pure ASCII, so that
 * equal paths give equal files. The length is counted first, by the same walk.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "buf.h"
#include "json_pull.h"
#include "names.h"
#include "tensorizer.h"

/* ---- from a name to a path ------------------------------------------------------------------- */

static int name_fail(const struct sl_tzr_entry *entry, const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "E_NAME", "tensor name '%.*s': %s", SL_TZR_NAME(entry),
                        why);
}

/* The components of `text` into path, or only counted if path is NULL; -1 if it is not a path. */
static int take_parts(char *text, size_t bytes, struct sl_path_part *path)
{
    struct sl_pull pull;
    sl_pull_init(&pull, text, bytes);
    if (sl_pull_next(&pull) != SL_PULL_ARRAY)
        return -1;
    for (int count = 0;; count++) {
        struct sl_path_part part = {0};
        switch (sl_pull_next(&pull)) {
        case SL_PULL_STRING:
            part.text = pull.string;
            part.text_bytes = pull.string_bytes;
            break;
        case SL_PULL_NUMBER:
            if (!sl_pull_uint(&pull, &part.number) || part.number > INT64_MAX)
                return -1;
            break;
        case SL_PULL_CLOSE:
            return sl_pull_next(&pull) == SL_PULL_DONE ? count : -1;
        default:
            return -1;
        }
        if (path)
            path[count] = part;
    }
}

static int structured_path(struct sl_index *index, struct sl_tzr_entry *entry, struct sl_err *err)
{
    size_t bytes = entry->name_bytes - 1u;
    const char *stored = entry->name + 1;
    if (bytes < 2 || stored[0] != '[' || stored[bytes - 1] != ']' || memchr(stored, '\n', bytes) ||
        memchr(stored, '\r', bytes))
        return name_fail(entry, "not a JSON array on one line", err);
    /* Parsing decodes in place: once to count, in a copy that is thrown away, once to keep. */
    sl_autofree char *copy = sl_strndup(stored, bytes, err);
    char *text = sl_index_alloc(index, bytes + 1, err);
    if (!copy || !text)
        return -1;
    memcpy(text, stored, bytes);
    int count = take_parts(copy, bytes, NULL);
    if (count < 1)
        return name_fail(entry, "not a path of texts and integers from 0 to 2^63-1", err);
    if (entry->type < SL_TZR_TYPE_STATE_DICT)
        return name_fail(entry, "a structured name on a parameter or buffer", err);
    struct sl_path_part *path = sl_index_alloc(index, (size_t)count * sizeof(*path), err);
    if (!path)
        return -1;
    take_parts(text, bytes, path);
    entry->path = path;
    entry->path_count = (unsigned)count;
    return 0;
}

int sl_tzr_path(struct sl_index *index, struct sl_tzr_entry *entry, struct sl_err *err)
{
    if (entry->name_bytes == 0)
        return name_fail(entry, "it is empty", err);
    if (!sl_is_utf8(entry->name, entry->name_bytes))
        return sl_fail_code(err, SL_E_FORMAT, "E_NAME", "a tensor name of %u bytes is not UTF-8",
                            entry->name_bytes);
    if (entry->name[0] == SL_TZR_RECORD_SEPARATOR)
        return structured_path(index, entry, err);
    struct sl_path_part *part = sl_index_alloc(index, sizeof(*part), err);
    if (!part)
        return -1;
    *part = (struct sl_path_part){.text = entry->name, .text_bytes = entry->name_bytes};
    entry->path = part;
    entry->path_count = 1;
    return 0;
}

/* ---- all paths together ---------------------------------------------------------------------- */

static int compare_parts(const struct sl_path_part *a, const struct sl_path_part *b)
{
    if (!a->text != !b->text)
        return a->text ? 1 : -1;
    if (!a->text)
        return (a->number > b->number) - (a->number < b->number);
    return sl_bytes_compare(a->text, a->text_bytes, b->text, b->text_bytes);
}

/* How many components the two share in front. */
static unsigned shared_parts(const struct sl_tzr_entry *a, const struct sl_tzr_entry *b)
{
    unsigned shared = 0, limit = SL_MIN(a->path_count, b->path_count);
    while (shared < limit && compare_parts(&a->path[shared], &b->path[shared]) == 0)
        shared++;
    return shared;
}

static int by_path(const void *a, const void *b)
{
    const struct sl_tzr_entry *x = *(const struct sl_tzr_entry *const *)a;
    const struct sl_tzr_entry *y = *(const struct sl_tzr_entry *const *)b;
    unsigned shared = shared_parts(x, y);
    if (shared == x->path_count || shared == y->path_count)
        return (x->path_count > y->path_count) - (x->path_count < y->path_count);
    return compare_parts(&x->path[shared], &y->path[shared]);
}

static int check_pair(const struct sl_tzr_entry *a, const struct sl_tzr_entry *b,
                      struct sl_err *err)
{
    unsigned shared = shared_parts(a, b);
    if (shared == a->path_count && shared == b->path_count)
        return sl_fail_code(err, SL_E_FORMAT, "E_DUPLICATE", "two tensors are named '%.*s'",
                            SL_TZR_NAME(b));
    if (shared == a->path_count || shared == b->path_count)
        return name_fail(b, "another tensor's path is the beginning of it", err);
    if (!a->path[shared].text != !b->path[shared].text)
        return name_fail(b, "texts and numbers are mixed on one level", err);
    return 0;
}

int sl_tzr_check_paths(const struct sl_tzr_entry *entries, size_t count, struct sl_err *err)
{
    sl_autofree const struct sl_tzr_entry **sorted = sl_alloc_array(count, sizeof(*sorted), err);
    if (!sorted)
        return -1;
    for (size_t i = 0; i < count; i++)
        sorted[i] = &entries[i];
    qsort(sorted, count, sizeof(*sorted), by_path);
    for (size_t i = 1; i < count; i++)
        if (check_pair(sorted[i - 1], sorted[i], err) < 0)
            return -1;
    return 0;
}

/* ---- from a path to a name ------------------------------------------------------------------- */

/* Bytes that are written, or only counted while data is NULL. */
struct out {
    char *data;
    size_t used;
};

static void put(struct out *out, const char *text, size_t bytes)
{
    if (out->data)
        memcpy(out->data + out->used, text, bytes);
    out->used += bytes;
}

static void put_unit(struct out *out, unsigned unit)
{
    char text[8];
    int length = snprintf(text, sizeof(text), "\\u%04x", unit);
    put(out, text, (size_t)length);
}

/* One character above 0x7F, of UTF-8 that has been checked; the bytes it took. */
static size_t put_wide(struct out *out, const uint8_t *at)
{
    size_t bytes = *at >= 0xf0 ? 4 : *at >= 0xe0 ? 3 : 2;
    unsigned code = *at & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++)
        code = code << 6 | (at[i] & 0x3f);
    if (code > 0xffff) {
        put_unit(out, 0xd800 + ((code - 0x10000) >> 10));
        put_unit(out, 0xdc00 + ((code - 0x10000) & 0x3ff));
    } else {
        put_unit(out, code);
    }
    return bytes;
}

static size_t put_character(struct out *out, const uint8_t *at)
{
    static const char plain[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    const char *special = *at ? strchr(plain, *at) : NULL;
    if (*at > 0x7f)
        return put_wide(out, at);
    if (special) {
        const char escape[2] = {'\\', letters[special - plain]};
        put(out, escape, 2);
    } else if (*at < 0x20) {
        put_unit(out, *at);
    } else {
        put(out, (const char *)at, 1);
    }
    return 1;
}

static void put_part(struct out *out, const struct sl_path_part *part)
{
    char number[24];
    if (!part->text) {
        int length = snprintf(number, sizeof(number), "%" PRIu64, part->number);
        put(out, number, (size_t)length);
        return;
    }
    put(out, "\"", 1);
    for (size_t at = 0; at < part->text_bytes;)
        at += put_character(out, (const uint8_t *)part->text + at);
    put(out, "\"", 1);
}

static void put_path(struct out *out, const struct sl_tzr_entry *entry)
{
    put(out, "\x1e[", 2);
    for (unsigned i = 0; i < entry->path_count; i++) {
        if (i > 0)
            put(out, ",", 1);
        put_part(out, &entry->path[i]);
    }
    put(out, "]", 1);
}

static const char *why_refused(const struct sl_tzr_entry *entry)
{
    const struct sl_path_part *first = entry->path;
    for (unsigned i = 0; i < entry->path_count; i++) {
        const struct sl_path_part *part = &entry->path[i];
        if (part->text && !sl_is_utf8(part->text, part->text_bytes))
            return "its name is not UTF-8";
        if (!part->text && part->number > INT64_MAX)
            return "a number of 2^63 or more in its name";
    }
    if (entry->path_count == 1 && first->text && first->text_bytes == 0)
        return "its name is empty";
    if (entry->path_count == 1 && first->text && first->text[0] == SL_TZR_RECORD_SEPARATOR)
        return "its name begins with U+001E, which marks other names there";
    return NULL;
}

int sl_tzr_store_name(struct sl_arena *arena, const struct sl_tensor *tensor,
                      struct sl_tzr_entry *entry, struct sl_err *err)
{
    struct sl_path_part *whole = sl_arena_alloc(arena, sizeof(*whole), err);
    if (!whole)
        return -1;
    *whole = (struct sl_path_part){.text = tensor->name, .text_bytes = tensor->name_bytes};
    entry->path = tensor->path_count ? tensor->path : whole;
    entry->path_count = tensor->path_count ? tensor->path_count : 1;
    bool plain = entry->path_count == 1 && entry->path->text;
    const char *why = why_refused(entry);
    struct out out = {0};
    if (!why && plain)
        out.used = entry->path->text_bytes;
    else if (!why)
        put_path(&out, entry);
    if (out.used > UINT16_MAX)
        why = "its name takes more than 65535 bytes";
    if (why)
        return sl_fail_code(err, SL_E_FORMAT, "E_NAME", "cannot write tensor '%.*s': %s",
                            SL_NAME_ARGS(tensor->name, tensor->name_bytes), why);
    entry->name_bytes = (uint16_t)out.used;
    entry->name = entry->path->text;
    if (plain)
        return 0;
    out.data = sl_arena_alloc(arena, out.used + 1, err);
    if (!out.data)
        return -1;
    out.used = 0;
    put_path(&out, entry);
    entry->name = out.data;
    return 0;
}
