/*
 * A new .tensors file. All lengths follow from names, dtypes and shapes, so that every tensor has
 * its place before a byte is read: first the version and the metadata block, whose size moves all
 * else, then the headers one after another (tensorizer_compose.c). What the reference writer makes
 * of the same tensors comes out bit for bit; only `align` and more metadata than 256 KiB leave its
 * ways, and every release reads both.
 */
#include <string.h>

#include "arena.h"
#include "layout.h"
#include "tensorizer_compose.h"

enum {
    METADATA_BYTES = 256 * 1024, /* what the reference writer always reserves */
    METADATA_STEP = 4096,
    RANK_MAX = 64,
    PIECE_BYTES_MIN = 1024,
    PIECE_BYTES_STEP = 64,
    TERMINATOR_BYTES = 8,
};

void sl_layout_header_hashes(struct sl_layout_header *header, uint32_t crc32,
                             const uint8_t sha256[32])
{
    for (int i = 0; header->crc32_at && i < 4; i++)
        header->data[header->crc32_at + i] = (uint8_t)(crc32 >> (8 * i));
    if (header->sha256_at)
        memcpy(header->data + header->sha256_at, sha256, 32);
}

/* ---- what can be written --------------------------------------------------------------------- */

static int check_options(const struct sl_tensorizer_options *options, struct sl_err *err)
{
    if (options->piece_bytes &&
        (options->piece_bytes < PIECE_BYTES_MIN || options->piece_bytes % PIECE_BYTES_STEP ||
         options->piece_bytes > INT64_MAX))
        return sl_fail(err, SL_E_USAGE,
                       "pieces of %" PRIu64 " bytes: encrypted .tensors files have pieces of a "
                       "multiple of %d bytes, at least %d",
                       options->piece_bytes, PIECE_BYTES_STEP, PIECE_BYTES_MIN);
    if ((options->align & (options->align - 1)) || options->align > SL_TENSORIZER_ALIGN_MAX)
        return sl_fail(err, SL_E_USAGE,
                       "cannot align data to %" PRIu64 " bytes: give a power of two up to %d",
                       options->align, SL_TENSORIZER_ALIGN_MAX);
    if (options->kdf && options->kdf->salt_bytes != SL_SALT_BYTES)
        return sl_fail_code(err, SL_E_FORMAT, "E_KDF", "a salt of %u bytes, it must have %d",
                            options->kdf->salt_bytes, SL_SALT_BYTES);
    return 0;
}

static int check_tensor(const struct sl_tensor *tensor, struct sl_err *err)
{
    const char *why = NULL, *code = NULL;
    if (tensor->refused)
        return sl_fail_code(err, (enum sl_err_kind)tensor->refused, tensor->refused_code,
                            "tensor '%.*s': %s", SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                            tensor->refused_why);
    if (!sl_dtype_row(tensor->dtype)->numpy[0]) {
        why = ".tensors files have no such dtype: leave it out, or keep the file as it is";
        code = "E_DTYPE";
    } else if (tensor->rank > RANK_MAX) {
        why = "more than 64 dimensions";
        code = "E_METADATA";
    } else if (tensor->bytes > INT64_MAX) {
        why = "2^63 bytes or more";
        code = "E_LENGTH";
    }
    return why ? sl_fail_code(err, SL_E_FORMAT, code,
                              "cannot write tensor '%.*s' of dtype %s as tensorizer: %s",
                              SL_NAME_ARGS(tensor->name, tensor->name_bytes), tensor->dtype_name,
                              why)
               : 0;
}

/* ---- the file as a whole --------------------------------------------------------------------- */

/* "<f4", or "<V2" NUL "torch.bfloat16". */
static void fill_dtype(struct sl_tzr_entry *entry, const struct sl_dtype_row *row, char *text)
{
    static const char torch[] = "torch.";
    size_t used = strlen(row->numpy), name_bytes = strlen(row->torch);
    memcpy(text, row->numpy, used);
    if (strchr(row->numpy, 'V')) {
        text[used++] = '\0';
        memcpy(text + used, torch, sizeof(torch) - 1);
        used += sizeof(torch) - 1;
        memcpy(text + used, row->torch, name_bytes);
        used += name_bytes;
    }
    entry->dtype = text;
    entry->dtype_bytes = (uint8_t)used;
}

int sl_tzr_fill_entry(struct sl_tzr_draft *draft, const struct sl_tensor *tensor,
                      struct sl_tzr_entry *entry, struct sl_err *err)
{
    if (check_tensor(tensor, err) < 0 ||
        sl_tzr_store_name(draft->layout->arena, tensor, entry, err) < 0)
        return -1;
    char *dtype = sl_arena_alloc(draft->layout->arena, SL_TZR_DTYPE_BYTES_MAX, err);
    if (!dtype)
        return -1;
    fill_dtype(entry, sl_dtype_row(tensor->dtype), dtype);
    bool plain = entry->path_count == 1 && entry->path->text;
    entry->type = !plain                              ? SL_TZR_TYPE_STATE_DICT
                  : tensor->role == SL_ROLE_PARAMETER ? 0
                  : tensor->role == SL_ROLE_BUFFER    ? 1
                                                      : SL_TZR_TYPE_STATE_DICT;
    entry->rank = (uint8_t)tensor->rank;
    for (unsigned i = 0; i < tensor->rank; i++)
        entry->wide = entry->wide || tensor->shape[i] > UINT32_MAX;
    entry->data_length = tensor->meta && tensor->rank > 0 ? 0 : tensor->bytes;
    return 0;
}

/* Section 4. */
void sl_tzr_choose_version(struct sl_tzr_draft *draft)
{
    draft->version = SL_MAX(draft->version, draft->options.encrypt ? 3u : 1u);
    for (size_t i = 0; i < draft->layout->place_count; i++) {
        const struct sl_tzr_entry *entry = &draft->entries[i];
        const struct sl_tensor *tensor = draft->layout->places[i].tensor;
        bool meta = entry->data_length == 0 && tensor->bytes > 0;
        bool opaque = memchr(entry->dtype, 0, entry->dtype_bytes) != NULL;
        uint32_t needed = entry->wide ? 5 : meta ? 4 : opaque ? 2 : 1;
        draft->version = SL_MAX(draft->version, needed);
    }
    draft->tagged = draft->version == 5;
}

int sl_tzr_size_metadata(struct sl_tzr_draft *draft, struct sl_err *err)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < draft->layout->place_count; i++)
        bytes += sl_tzr_entry_bytes(&draft->entries[i], draft->tagged);
    if (bytes <= draft->metadata_bytes)
        return 0;
    bytes = (SL_MAX(bytes, METADATA_BYTES) + METADATA_STEP - 1) / METADATA_STEP * METADATA_STEP;
    if (bytes > SL_TZR_METADATA_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "E_METADATA",
                            "%zu tensors need %" PRIu64 " bytes of metadata in one .tensors file, "
                            "at most %d",
                            draft->layout->place_count, bytes, SL_TZR_METADATA_BYTES_MAX);
    draft->metadata_bytes = bytes;
    return 0;
}

/* A reader adds them up likewise, and would refuse the file. */
static int too_many_headers(struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "E_HEADER",
                        "the tensor headers are longer than %d bytes together: choose a smaller "
                        "--align, or fewer tensors with --include",
                        SL_TENSORIZER_HEADERS_BYTES_MAX);
}

/* Headers and places in order; the file's length. */
static int place_tensors(struct sl_tzr_draft *draft, struct sl_err *err)
{
    struct sl_layout *layout = draft->layout;
    uint64_t at = SL_TZR_METADATA_AT + draft->metadata_bytes, headers = 0;
    for (size_t i = 0; i < layout->place_count; i++) {
        struct sl_layout_place *place = &layout->places[i];
        struct sl_tzr_entry *entry = &draft->entries[i];
        entry->header_offset = at;
        if (!(place->header = sl_tzr_compose_header(draft, place->tensor, entry, err)))
            return -1;
        headers = sl_add_capped(headers, place->header->bytes);
        if (headers > SL_TENSORIZER_HEADERS_BYTES_MAX)
            return too_many_headers(err);
        place->offset = entry->data_offset;
        place->bytes = entry->data_length;
        if (__builtin_add_overflow(place->offset, place->bytes, &at) || at > INT64_MAX)
            return sl_fail_code(err, SL_E_FORMAT, "E_LENGTH",
                                "the tensors need 2^63 bytes or more in one .tensors file");
        draft->tensor_bytes += place->bytes;
    }
    layout->files[0].bytes = at + TERMINATOR_BYTES;
    return 0;
}

static int lay_out(struct sl_tzr_draft *draft, struct sl_err *err)
{
    struct sl_layout *layout = draft->layout;
    for (size_t i = 0; i < layout->place_count; i++)
        if (sl_tzr_fill_entry(draft, layout->places[i].tensor, &draft->entries[i], err) < 0)
            return -1;
    if (sl_tzr_check_paths(draft->entries, layout->place_count, err) < 0)
        return sl_wrap(err, "cannot write a .tensors file");
    sl_tzr_choose_version(draft);
    if (sl_tzr_size_metadata(draft, err) < 0 || place_tensors(draft, err) < 0)
        return -1;
    return sl_tzr_compose_start(draft, &layout->files[0].head, err);
}

static struct sl_layout *new_layout(const struct sl_tensor *const *tensors, size_t count,
                                    const char *name, struct sl_err *err)
{
    SL_AUTO(sl_layout) layout = sl_alloc(sizeof(*layout), err);
    if (!layout || !(layout->files = sl_alloc_array(1, sizeof(*layout->files), err)))
        return NULL;
    layout->file_count = 1;
    if (!(layout->places = sl_alloc_array(count, sizeof(*layout->places), err)) ||
        !(layout->arena = sl_arena_new(err)) ||
        !(layout->files[0].name = sl_strdup(name ? name : "model.tensors", err)))
        return NULL;
    layout->place_count = count;
    for (size_t i = 0; i < count; i++)
        layout->places[i].tensor = tensors[i];
    return sl_steal(&layout);
}

int sl_tensorizer_layout(const struct sl_tensor *const *tensors, size_t count,
                         const struct sl_tensorizer_options *options, struct sl_layout **out,
                         struct sl_err *err)
{
    struct sl_tzr_draft draft = {0};
    if (options)
        draft.options = *options;
    if (check_options(&draft.options, err) < 0)
        return -1;
    if (draft.options.piece_bytes == 0)
        draft.options.piece_bytes = SL_PIECE_BYTES;
    if (count == 0)
        return sl_fail_code(err, SL_E_FORMAT, "E_EMPTY",
                            "there are no tensors to write, and a .tensors file needs one");
    SL_AUTO(sl_layout) layout = new_layout(tensors, count, draft.options.name, err);
    sl_autofree struct sl_tzr_entry *entries = sl_alloc_array(count, sizeof(*entries), err);
    if (!layout || !entries)
        return -1;
    draft.layout = layout;
    draft.entries = entries;
    if (lay_out(&draft, err) < 0)
        return -1;
    *out = sl_steal(&layout);
    return 0;
}
