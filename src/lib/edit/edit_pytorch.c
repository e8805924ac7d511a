/*
 * A checkpoint with other tensors. Torch finds everything by the directory at an archive's end. So
 * new storages, a new pickle and a new directory are put behind the old end record, and what was
 * there stays where it is: it is read no more, and takes room until the file is saved anew. An
 * archive that does not begin with an entry of its directory is refused by many readers, ours too,
 * so where that was the pickle it stays one, by another name, for which torch's padding has room.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "edit.h"
#include "edit_pickle.h"
#include "hash.h"
#include "layout.h"
#include "names.h"
#include "zip.h"

enum {
    EXTRA_HEAD_BYTES = 4,
    ALIGNMENT = 64,
    NAME_BYTES_MAX = 512,
    VALUE_BYTES_MAX = 4096, /* opcodes of one tensor */
    RANK_MAX = 64,
    ZIP64_VERSION = 45,
};
static const uint64_t NARROW_MAX = 0xffffffff;
static const char pickle_name[] = "data.pkl";

struct work {
    struct sl_edit *edit;
    struct sl_zip zip;
    struct sl_zip_entry *pickle;
    char *text; /* of the pickle */
    struct sl_edit_pickle_change *changes;
    size_t change_count;
    uint64_t next_key;
    struct sl_buf directory;
    size_t entry_count;
    uint64_t at; /* where the next piece begins */
};

/* ---- little-endian numbers ------------------------------------------------------------------- */

static int put_number(struct sl_buf *out, uint64_t value, unsigned bytes, struct sl_err *err)
{
    uint8_t text[8];
    sl_put_le64(text, value);
    return sl_buf_append(out, text, bytes, err);
}

struct field {
    uint64_t value;
    unsigned bytes;
};

static int put_fields(struct sl_buf *out, const struct field *fields, size_t count,
                      struct sl_err *err)
{
    for (size_t i = 0; i < count; i++)
        if (put_number(out, fields[i].value, fields[i].bytes, err) < 0)
            return -1;
    return 0;
}
#define PUT(out, err, ...)                                                                         \
    put_fields(out, (const struct field[]){__VA_ARGS__},                                           \
               sizeof((const struct field[]){__VA_ARGS__}) / sizeof(struct field), err)

/* ---- pickled tensors ------------------------------------------------------------------------- */

static int put_text(struct sl_buf *out, const char *text, struct sl_err *err)
{
    size_t bytes = strlen(text);
    if (PUT(out, err, {'X', 1}, {bytes, 4}) < 0)
        return -1;
    return sl_buf_append(out, text, bytes, err);
}

static int put_int(struct sl_buf *out, uint64_t value, struct sl_err *err)
{
    if (value <= INT32_MAX)
        return PUT(out, err, {'J', 1}, {value, 4});
    return PUT(out, err, {0x8a, 1}, {9, 1}, {value, 8}, {0, 1});
}

/* ('storage', class, key, 'cpu', count), made a storage. */
static int put_storage(struct sl_buf *out, const char *class_name, const char *key, uint64_t count,
                       struct sl_err *err)
{
    if (sl_buf_append(out, "(", 1, err) < 0 || put_text(out, "storage", err) < 0 ||
        sl_buf_printf(out, err, "c%s\n", class_name) < 0 || put_text(out, key, err) < 0 ||
        put_text(out, "cpu", err) < 0 || put_int(out, count, err) < 0)
        return -1;
    return sl_buf_append(out, "tQ", 2, err);
}

static int put_sizes(struct sl_buf *out, const struct sl_tensor *tensor, bool strides,
                     struct sl_err *err)
{
    uint64_t steps[RANK_MAX], step = 1;
    for (unsigned i = tensor->rank; i-- > 0;) {
        steps[i] = step;
        step *= SL_MAX(tensor->shape[i], (uint64_t)1);
    }
    if (sl_buf_append(out, "(", 1, err) < 0)
        return -1;
    for (unsigned i = 0; i < tensor->rank; i++)
        if (put_int(out, strides ? steps[i] : tensor->shape[i], err) < 0)
            return -1;
    return sl_buf_append(out, "t", 1, err);
}

/* What torch.save writes of a tensor that lies row by row in a storage of its own. */
static int put_tensor(struct sl_buf *out, const struct sl_tensor *tensor, const char *key,
                      struct sl_err *err)
{
    const struct sl_dtype_row *row = sl_dtype_row(tensor->dtype);
    const char *storage = sl_pytorch_storage_class(tensor->dtype);
    sl_autofree char *class_name = storage ? sl_asprintf(err, "torch\n%s", storage)
                                           : sl_strdup("torch.storage\nUntypedStorage", err);
    uint64_t count = storage ? tensor->bytes / (row->bits / 8) : tensor->bytes;
    if (!class_name ||
        sl_buf_printf(out, err, "ctorch._utils\n_rebuild_tensor_v%d\n(", storage ? 2 : 3) < 0 ||
        put_storage(out, class_name, key, count, err) < 0 || put_int(out, 0, err) < 0 ||
        put_sizes(out, tensor, false, err) < 0 || put_sizes(out, tensor, true, err) < 0 ||
        sl_buf_append(out,
                      "\x89"
                      "ccollections\nOrderedDict\n)R",
                      28, err) < 0)
        return -1;
    if (!storage && sl_buf_printf(out, err, "ctorch\n%s\n", row->torch) < 0)
        return -1;
    return sl_buf_append(out, "tR", 2, err);
}

static int check_tensor(const struct sl_tensor *tensor, struct sl_err *err)
{
    if (sl_dtype_row(tensor->dtype)->torch[0] && tensor->rank <= RANK_MAX &&
        sl_is_utf8(tensor->name, tensor->name_bytes))
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "pt.unsupported",
                        "tensor '%.*s' of dtype %s cannot be in a PyTorch checkpoint",
                        SL_NAME_ARGS(tensor->name, tensor->name_bytes), tensor->dtype_name);
}

/* ---- entries --------------------------------------------------------------------------------- */

static int add(struct work *work, const uint8_t *data, uint64_t from, uint64_t bytes,
               struct sl_err *err)
{
    work->at += bytes;
    return sl_edit_add(work->edit, data, from, bytes, err);
}

/* A copy of the bytes that lives as long as the index. */
static int add_copy(struct work *work, const struct sl_buf *bytes, struct sl_err *err)
{
    uint8_t *copy = sl_index_alloc(work->edit->index, bytes->used + 1, err);
    if (!copy)
        return -1;
    memcpy(copy, bytes->data, bytes->used);
    return add(work, copy, 0, bytes->used, err);
}

static int row_of(struct work *work, const char *name, size_t name_bytes, uint32_t crc,
                  uint64_t bytes, uint64_t header, struct sl_err *err)
{
    struct sl_buf *out = &work->directory;
    bool big = bytes >= NARROW_MAX, far = header >= NARROW_MAX;
    unsigned wide = (big ? 16u : 0u) + (far ? 8u : 0u), version = wide ? ZIP64_VERSION : 0;
    work->entry_count++;
    if (PUT(out, err, {SL_ZIP_CENTRAL_MAGIC, 4}, {version, 2}, {version, 2}, {0, 8}, {crc, 4},
            {big ? NARROW_MAX : bytes, 4}, {big ? NARROW_MAX : bytes, 4}, {name_bytes, 2},
            {wide ? wide + EXTRA_HEAD_BYTES : 0, 2}, {0, 8}, {0, 2},
            {far ? NARROW_MAX : header, 4}) < 0 ||
        sl_buf_append(out, name, name_bytes, err) < 0)
        return -1;
    if (wide && PUT(out, err, {1, 2}, {wide, 2}) < 0)
        return -1;
    if (big && PUT(out, err, {bytes, 8}, {bytes, 8}) < 0)
        return -1;
    return far ? put_number(out, header, 8, err) : 0;
}

/* Its payload begins at a multiple of 64, as torch has it. */
static int add_entry(struct work *work, const char *name, const uint8_t *data, uint64_t bytes,
                     struct sl_err *err)
{
    sl_autobuf head = SL_BUF_INIT(2 * NAME_BYTES_MAX);
    char whole[NAME_BYTES_MAX];
    int length =
        snprintf(whole, sizeof(whole), "%.*s/%s", (int)work->zip.root_bytes, work->zip.root, name);
    if (length < 0 || (size_t)length >= sizeof(whole))
        return sl_fail_code(err, SL_E_FORMAT, "zip.name",
                            "the archive's folder has too long a name");
    uint64_t header = work->at;
    bool big = bytes >= NARROW_MAX;
    unsigned wide = big ? 16 + EXTRA_HEAD_BYTES : 0;
    uint64_t fixed = header + SL_ZIP_LOCAL_BYTES + (unsigned)length + wide + EXTRA_HEAD_BYTES;
    unsigned padding = (unsigned)(-fixed & (ALIGNMENT - 1));
    uint32_t crc = sl_crc32(0, data, bytes);
    static const uint8_t zeros[ALIGNMENT];
    if (PUT(&head, err, {SL_ZIP_LOCAL_MAGIC, 4}, {big ? ZIP64_VERSION : 0, 2}, {0, 8}, {crc, 4},
            {big ? NARROW_MAX : bytes, 4}, {big ? NARROW_MAX : bytes, 4}, {(unsigned)length, 2},
            {wide + EXTRA_HEAD_BYTES + padding, 2}) < 0 ||
        sl_buf_append(&head, whole, (size_t)length, err) < 0 ||
        (big && PUT(&head, err, {1, 2}, {16, 2}, {bytes, 8}, {bytes, 8}) < 0) ||
        PUT(&head, err, {'F' | 'B' << 8, 2}, {padding, 2}) < 0 ||
        sl_buf_append(&head, zeros, padding, err) < 0 || add_copy(work, &head, err) < 0 ||
        add(work, data, 0, bytes, err) < 0)
        return -1;
    return row_of(work, whole, (size_t)length, crc, bytes, header, err);
}

static size_t row_bytes(const struct sl_zip_entry *entry)
{
    const uint8_t *row = (const uint8_t *)entry->name - SL_ZIP_CENTRAL_BYTES;
    return SL_ZIP_CENTRAL_BYTES + entry->name_bytes + sl_get_le16(row + 30) + sl_get_le16(row + 32);
}

/* ---- what was there -------------------------------------------------------------------------- */

static int other_writer(struct sl_err *err)
{
    return sl_fail(err, SL_E_USAGE,
                   "torch.save did not write this archive: save it again with torch.save, then it "
                   "can be changed");
}

/* The first entry's name gets `more` bytes from its padding: none is left, or a field of some. */
static const char *suffix_of(unsigned extra_bytes)
{
    return extra_bytes >= 2 * EXTRA_HEAD_BYTES ? ".old"
           : extra_bytes == 4                  ? ".old"
           : extra_bytes == 5                  ? ".old1"
           : extra_bytes == 6                  ? ".old12"
           : extra_bytes == 7                  ? ".old123"
                                               : NULL;
}

/* The pickle that the archive begins with, by another name: its local header, and its row. */
static int rename_first(struct work *work, struct sl_err *err)
{
    const struct sl_zip_entry *entry = work->pickle;
    uint8_t fixed[SL_ZIP_LOCAL_BYTES];
    struct sl_source *source = work->edit->index->sources[0];
    if (sl_source_read(source, 0, fixed, sizeof(fixed), err) < 0)
        return -1;
    unsigned extra = sl_get_le16(fixed + 28);
    const char *suffix = suffix_of(extra);
    size_t name = entry->name_bytes, more = suffix ? strlen(suffix) : 0;
    size_t bytes = SL_ZIP_LOCAL_BYTES + name + extra;
    uint8_t *head = sl_index_alloc(work->edit->index, bytes + more, err);
    if (!head)
        return -1;
    if (!suffix || sl_source_read(source, 0, head, bytes, err) < 0 ||
        memcmp(head + SL_ZIP_LOCAL_BYTES + name, "FB", 2) != 0 ||
        sl_get_le16(head + SL_ZIP_LOCAL_BYTES + name + 2) != extra - EXTRA_HEAD_BYTES)
        return other_writer(err);
    uint8_t *field = head + SL_ZIP_LOCAL_BYTES + name;
    memset(field, 0, extra);
    memcpy(field, suffix, more);
    head[26] = (uint8_t)(name + more);
    head[27] = (uint8_t)((name + more) >> 8);
    head[28] = (uint8_t)(extra - more);
    head[29] = (uint8_t)((extra - more) >> 8);
    if (extra > more) {
        memcpy(field + more, "FB", 2);
        field[more + 2] = (uint8_t)(extra - more - EXTRA_HEAD_BYTES);
    }
    if (sl_zip_find(&work->zip, (const char *)head + SL_ZIP_LOCAL_BYTES + work->zip.root_bytes + 1,
                    name + more - work->zip.root_bytes - 1))
        return other_writer(err);
    return add(work, head, 0, bytes, err) < 0
               ? -1
               : row_of(work, (const char *)head + SL_ZIP_LOCAL_BYTES, name + more, entry->crc,
                        entry->bytes, 0, err);
}

/* Rows of all entries but the pickle. */
static int keep_rows(struct work *work, struct sl_err *err)
{
    for (size_t i = 0; i < work->zip.count; i++) {
        const struct sl_zip_entry *entry = &work->zip.entries[i];
        if (entry == work->pickle)
            continue;
        work->entry_count++;
        if (sl_buf_append(&work->directory, entry->name - SL_ZIP_CENTRAL_BYTES, row_bytes(entry),
                          err) < 0)
            return -1;
    }
    return 0;
}

static int keep_old(struct work *work, struct sl_err *err)
{
    struct sl_source *source = work->edit->index->sources[0];
    uint64_t bytes = sl_source_bytes(source);
    uint8_t end[SL_ZIP_END_BYTES];
    if (sl_source_read(source, bytes - SL_ZIP_END_BYTES, end, sizeof(end), err) < 0)
        return -1;
    if (sl_get_le32(end) != SL_ZIP_END_MAGIC || sl_get_le16(end + 20) != 0)
        return other_writer(err);
    work->edit->seal = bytes - SL_ZIP_END_BYTES + 1 - SL_FILE_SEAL_BYTES; /* its first byte last */
    if (work->pickle->header == 0 && rename_first(work, err) < 0)
        return -1;
    return add(work, NULL, work->at, bytes - work->at, err) < 0 ? -1 : keep_rows(work, err);
}

/* ---- what is new ----------------------------------------------------------------------------- */

/* One more than all keys of storages that are numbers. */
static void find_key(struct work *work)
{
    for (size_t i = 0; i < work->zip.count; i++) {
        const struct sl_zip_entry *entry = &work->zip.entries[i];
        const char *name = entry->name + work->zip.root_bytes + 1;
        size_t bytes = entry->name_bytes - work->zip.root_bytes - 1;
        uint64_t key = 0;
        if (bytes <= 5 || bytes > 5 + 18 || memcmp(name, "data/", 5) != 0)
            continue;
        for (size_t k = 5; k < bytes && name[k] >= '0' && name[k] <= '9'; k++)
            key = key * 10 + (uint64_t)(name[k] - '0');
        work->next_key = SL_MAX(work->next_key, key + 1);
    }
}

static int add_tensor(struct work *work, const struct sl_edit_item *item, struct sl_err *err)
{
    char name[5 + 24];
    const uint8_t *data = sl_edit_data(work->edit, item, err);
    struct sl_edit_pickle_change *change = &work->changes[work->change_count++];
    sl_autobuf value = SL_BUF_INIT(VALUE_BYTES_MAX);
    snprintf(name, sizeof(name), "data/%" PRIu64, work->next_key++);
    if (!data || check_tensor(item->tensor, err) < 0 ||
        put_tensor(&value, item->tensor, name + 5, err) < 0)
        return -1;
    uint8_t *copy = sl_index_alloc(work->edit->index, value.used, err);
    if (!copy)
        return -1;
    memcpy(copy, value.data, value.used);
    *change = (struct sl_edit_pickle_change){.path = item->tensor->path,
                                             .path_count = item->tensor->path_count,
                                             .fresh = !item->old,
                                             .value = copy,
                                             .value_bytes = value.used};
    return add_entry(work, name, data, item->tensor->bytes, err);
}

/* Tensors of the index that no item has. */
static int add_deletions(struct work *work, struct sl_err *err)
{
    const struct sl_index *index = work->edit->index;
    sl_autofree bool *kept = sl_alloc_array(index->tensor_count + 1, sizeof(*kept), err);
    if (!kept)
        return -1;
    for (size_t i = 0; i < work->edit->count; i++)
        if (work->edit->items[i].old)
            kept[work->edit->items[i].old - index->tensors] = true;
    for (size_t i = 0; i < index->tensor_count; i++)
        if (!kept[i])
            work->changes[work->change_count++] = (struct sl_edit_pickle_change){
                .path = index->tensors[i].path, .path_count = index->tensors[i].path_count};
    return 0;
}

static int add_pickle(struct work *work, struct sl_err *err)
{
    struct sl_buf *out = sl_index_alloc(work->edit->index, sizeof(*out), err);
    if (!out)
        return -1;
    *out = (struct sl_buf)SL_BUF_INIT(SL_PYTORCH_PICKLE_BYTES_MAX);
    int done = sl_edit_pickle(work->text, work->pickle->bytes, work->changes, work->change_count,
                              out, err);
    if (done == 0 && (done = sl_index_keep(work->edit->index, out->data, err)) == 0)
        return add_entry(work, pickle_name, (const uint8_t *)out->data, out->used, err);
    sl_buf_release(out);
    return -1;
}

static int add_end(struct work *work, struct sl_err *err)
{
    sl_autobuf wide = SL_BUF_INIT(SL_ZIP_END64_BYTES + SL_ZIP_LOCATOR_BYTES),
               end = SL_BUF_INIT(SL_ZIP_END_BYTES);
    uint64_t begin = work->at, bytes = work->directory.used, count = work->entry_count;
    if (add_copy(work, &work->directory, err) < 0)
        return -1;
    uint64_t place = work->at;
    bool is_wide = begin >= NARROW_MAX || bytes >= NARROW_MAX || count >= 0xffff;
    if (is_wide &&
        (PUT(&wide, err, {SL_ZIP_END64_MAGIC, 4}, {SL_ZIP_END64_BYTES - 12, 8}, {ZIP64_VERSION, 2},
             {ZIP64_VERSION, 2}, {0, 8}, {count, 8}, {count, 8}, {bytes, 8}, {begin, 8},
             {SL_ZIP_LOCATOR_MAGIC, 4}, {0, 4}, {place, 8}, {1, 4}) < 0 ||
         add_copy(work, &wide, err) < 0))
        return -1;
    if (PUT(&end, err, {SL_ZIP_END_MAGIC, 4}, {0, 4}, {SL_MIN(count, (uint64_t)0xffff), 2},
            {SL_MIN(count, (uint64_t)0xffff), 2}, {SL_MIN(bytes, NARROW_MAX), 4},
            {SL_MIN(begin, NARROW_MAX), 4}, {0, 2}) < 0)
        return -1;
    return add_copy(work, &end, err);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int open_archive(struct work *work, struct sl_err *err)
{
    struct sl_source *source = work->edit->index->sources[0];
    uint8_t magic[4];
    if (sl_source_read(source, 0, magic, sizeof(magic), err) < 0)
        return -1;
    if (sl_get_le32(magic) != SL_ZIP_LOCAL_MAGIC)
        return sl_fail(err, SL_E_USAGE,
                       "a checkpoint of torch before 1.6 is not changed in place: save it again "
                       "with torch.save");
    if (sl_zip_open(&work->zip, source, err) < 0)
        return -1;
    work->pickle = sl_zip_find(&work->zip, pickle_name, sizeof(pickle_name) - 1);
    struct sl_zip_entry *order = sl_zip_find(&work->zip, "byteorder", 9);
    sl_autofree char *text = order ? sl_zip_read(&work->zip, order, 64, err) : NULL;
    if (!work->pickle || (order && !text))
        return work->pickle ? -1 : other_writer(err);
    if (text && strcmp(text, "little") != 0)
        return sl_fail(err, SL_E_USAGE, "a checkpoint of a big-endian machine is not changed");
    work->text = sl_zip_read(&work->zip, work->pickle, SL_PYTORCH_PICKLE_BYTES_MAX, err);
    return work->text ? 0 : -1;
}

static int plan(struct work *work, struct sl_err *err)
{
    const struct sl_edit *edit = work->edit;
    if (open_archive(work, err) < 0 || keep_old(work, err) < 0)
        return -1;
    work->changes =
        sl_alloc_array(edit->count + edit->index->tensor_count + 1, sizeof(*work->changes), err);
    if (!work->changes || add_deletions(work, err) < 0)
        return -1;
    find_key(work);
    for (size_t i = 0; i < edit->count; i++)
        if (edit->items[i].tensor && add_tensor(work, &edit->items[i], err) < 0)
            return -1;
    return add_pickle(work, err) < 0 ? -1 : add_end(work, err);
}

int sl_edit_pytorch(struct sl_edit *edit, struct sl_err *err)
{
    struct work work = {.edit = edit, .directory = SL_BUF_INIT(SL_ZIP_DIRECTORY_BYTES_MAX)};
    int done = plan(&work, err);
    sl_buf_release(&work.directory);
    free(work.changes);
    free(work.text);
    sl_zip_release(&work.zip);
    return done;
}
