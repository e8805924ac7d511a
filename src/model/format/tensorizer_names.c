/*
 * From a path to the name that a .tensors file stores (section 6): one text is stored as it is, any
 * other path as 0x1E and a JSON array in pure ASCII, spelled exactly as the reference writer spells
 * it, so that equal paths give equal files. The length is counted first, by the same walk.
 */
#include <stdio.h>
#include <string.h>

#include "arena.h"
#include "buf.h"
#include "tensorizer.h"

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
