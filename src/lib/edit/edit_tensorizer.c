/*
 * A .tensors file with other tensors. Readers walk from header to header, so nothing may lie
 * between them: tensors stay where they are as long as each before them keeps its length, and new
 * ones take the place of the terminator. Headers of tensors that stay are copied with their data,
 * since nothing in them, nor in their hashes, says where they are; the metadata block does, and is
 * written anew. New data begin at the alignment that all data of the file have.
 */
#include <string.h>

#include "edit.h"
#include "hash.h"
#include "tensorizer_compose.h"

enum { TERMINATOR_BYTES = 8, ALIGN_MIN = 64, ALIGN_MAX = 4096 };

struct work {
    struct sl_edit *edit;
    struct sl_tzr_file file;
    struct sl_tzr_entry *there; /* of the file, in the order of the index's tensors */
    size_t there_count;
    struct sl_tzr_entry *entries; /* of the new file */
    struct sl_layout_place *places;
    struct sl_layout layout; /* of places, and the arena */
    struct sl_tzr_draft draft;
};

/* What the data of all tensors are aligned to; 0: to nothing worth keeping. */
static uint64_t alignment(const struct work *work)
{
    uint64_t bits = ALIGN_MAX;
    for (size_t i = 0; i < work->there_count; i++)
        if (work->there[i].data_length)
            bits |= work->there[i].data_offset;
    uint64_t lowest = bits & (~bits + 1);
    return lowest >= ALIGN_MIN ? lowest : 0;
}

static int add_whole(struct work *work, const uint8_t *data, uint64_t from, uint64_t bytes,
                     uint64_t *at, struct sl_err *err)
{
    if (__builtin_add_overflow(*at, bytes, at) || *at > INT64_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "E_LENGTH",
                            "the tensors need 2^63 bytes or more in one .tensors file");
    return sl_edit_add(work->edit, data, from, bytes, err);
}

/* A tensor that stays: header and data, wherever they come to lie. */
static int keep(struct work *work, struct sl_tzr_entry *entry, uint64_t *at, struct sl_err *err)
{
    uint64_t from = entry->header_offset, header_bytes = entry->data_offset - from;
    entry->header_offset = *at;
    entry->data_offset = *at + header_bytes;
    return add_whole(work, NULL, from, header_bytes + entry->data_length, at, err);
}

static int hash_data(struct sl_layout_header *header, const uint8_t *data, uint64_t bytes,
                     struct sl_err *err)
{
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    sl_sha256_update(sha, header->prefix, header->prefix_bytes);
    sl_sha256_update(sha, data, bytes);
    sl_sha256_finish(sha, digest);
    uint32_t crc = sl_crc32(0, header->prefix, header->prefix_bytes);
    sl_layout_header_hashes(header, sl_crc32(crc, data, bytes), digest);
    return 0;
}

static int write_new(struct work *work, size_t number, uint64_t *at, struct sl_err *err)
{
    const struct sl_edit_item *item = &work->edit->items[number];
    struct sl_tzr_entry *entry = &work->entries[number];
    entry->header_offset = *at;
    struct sl_layout_header *header = sl_tzr_compose_header(&work->draft, item->tensor, entry, err);
    if (!header || (entry->data_length && !item->tensor->meta &&
                    hash_data(header, item->data, entry->data_length, err) < 0))
        return -1;
    if (add_whole(work, header->data, 0, header->bytes, at, err) < 0)
        return -1;
    static const uint8_t zeros[16]; /* a meta tensor without dimensions is one zero */
    return add_whole(work, item->tensor->meta ? zeros : item->data, 0, entry->data_length, at, err);
}

/* Entries of tensors that stay are those that were read, byte for byte. */
static int fill_entries(struct work *work, struct sl_err *err)
{
    const struct sl_edit *edit = work->edit;
    for (size_t i = 0; i < edit->count; i++) {
        const struct sl_edit_item *item = &edit->items[i];
        work->places[i].tensor = item->tensor ? item->tensor : item->old;
        if (!item->tensor)
            work->entries[i] = work->there[item->old - edit->index->tensors];
        else if (sl_tzr_fill_entry(&work->draft, item->tensor, &work->entries[i], err) < 0)
            return -1;
    }
    return sl_tzr_check_paths(work->entries, edit->count, err);
}

static int place_all(struct work *work, struct sl_err *err)
{
    static const uint8_t zeros[TERMINATOR_BYTES];
    struct sl_edit *edit = work->edit;
    uint64_t at = 0;
    struct sl_buf head = SL_BUF_INIT(0);
    /* The block's length is known, its content is not yet. */
    uint64_t head_bytes = SL_TZR_METADATA_AT + work->draft.metadata_bytes;
    uint8_t *start = sl_index_alloc(edit->index, head_bytes, err);
    if (!start || add_whole(work, start, 0, head_bytes, &at, err) < 0)
        return -1;
    for (size_t i = 0; i < edit->count; i++) {
        int done = edit->items[i].tensor ? write_new(work, i, &at, err)
                                         : keep(work, &work->entries[i], &at, err);
        if (done < 0)
            return -1;
        work->draft.tensor_bytes += work->entries[i].data_length;
    }
    if (add_whole(work, zeros, 0, sizeof(zeros), &at, err) < 0 ||
        sl_tzr_compose_start(&work->draft, &head, err) < 0)
        return -1;
    memcpy(start, head.data, head_bytes);
    sl_buf_release(&head);
    return 0;
}

static int plan(struct work *work, struct sl_err *err)
{
    struct sl_edit *edit = work->edit;
    if (sl_tzr_file_header(edit->index->sources[0], &work->file, err) < 0 ||
        sl_tzr_metadata(edit->index, &work->file, &work->there, &work->there_count, err) < 0)
        return -1;
    work->entries = sl_alloc_array(edit->count, sizeof(*work->entries), err);
    work->places = sl_alloc_array(edit->count, sizeof(*work->places), err);
    if (!work->entries || !work->places)
        return -1;
    work->layout = (struct sl_layout){
        .places = work->places, .place_count = edit->count, .arena = edit->index->arena};
    work->draft = (struct sl_tzr_draft){.layout = &work->layout,
                                        .options = {.align = alignment(work)},
                                        .entries = work->entries,
                                        .version = work->file.version,
                                        .metadata_bytes = work->file.metadata_bytes};
    work->draft.options.piece_bytes = SL_PIECE_BYTES;
    if (fill_entries(work, err) < 0)
        return sl_wrap(err, "cannot change the .tensors file");
    sl_tzr_choose_version(&work->draft);
    if (sl_tzr_size_metadata(&work->draft, err) < 0)
        return -1;
    return place_all(work, err);
}

int sl_edit_tensorizer(struct sl_edit *edit, struct sl_err *err)
{
    struct work work = {.edit = edit};
    if (!edit->count)
        return sl_fail_code(err, SL_E_FORMAT, "E_EMPTY",
                            "no tensor would be left, and a .tensors file needs one");
    int done = plan(&work, err);
    free(work.there);
    free(work.entries);
    free(work.places);
    edit->seal = 0;
    return done;
}
