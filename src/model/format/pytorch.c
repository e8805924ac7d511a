/*
 * PyTorch checkpoints as torch.save writes them: since 1.6 a ZIP archive with the object as a
 * pickle and each storage as an entry (zip.c), before that a stream (pytorch_legacy.c). The pickle
 * is read by a machine that only makes values (pickle.c, pytorch_rules.c); nothing in a file is
 * ever executed. From the values come tensors (pytorch_tensors.c).
 *
 * A verbatim load does not look into the pickle of an archive: it sees that the end is there, and
 * takes the entries' checksums (pytorch_parts.c).
 */
#include "pytorch.h"

#include <inttypes.h>
#include <string.h>

#include "format.h"
#include "zip.h"

enum {
    SMALL_ENTRY_BYTES_MAX = 64,
    SMALL_ENTRIES_BYTES_MAX = 64 * 1024,
    ALIGNMENT_MAX = 1 << 20,
    TAR_AT = 257
};
static const uint8_t zip_magic[4] = {'P', 'K', 3, 4};
static const uint8_t legacy_magic[12] = {0x8a, 10,   0x6c, 0xfc, 0x9c, 0x46,
                                         0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

static bool is_called_checkpoint(const char *name)
{
    for (const char *const *suffix = sl_pytorch_format.suffixes; *suffix; suffix++)
        if (sl_format_has_suffix(name, *suffix))
            return true;
    return false;
}

static bool contains(const struct sl_format_head *head, const void *what, size_t bytes)
{
    return memmem(head->data, head->bytes, what, bytes) != NULL;
}

static bool is_tar(const struct sl_format_head *head)
{
    return head->bytes >= TAR_AT + 5 && memcmp(head->data + TAR_AT, "ustar", 5) == 0;
}

/*
 * Archives and pickles are common: a name that says checkpoint, or what only torch.save writes at
 * the beginning, must come to it.
 */
static bool probe(const struct sl_format_head *head)
{
    static const char first[] = "/data.pkl";
    if (head->bytes == 0) /* fewer than four may be what is left of one */
        return false;
    bool zip = memcmp(head->data, zip_magic, SL_MIN(head->bytes, sizeof(zip_magic))) == 0;
    bool pickle = head->data[0] == 0x80 && (head->bytes == 1 || head->data[1] <= 5);
    if (is_called_checkpoint(head->name))
        return zip || pickle || is_tar(head);
    return (zip && contains(head, first, sizeof(first) - 1)) ||
           (pickle && contains(head, legacy_magic, sizeof(legacy_magic)));
}

/* ---- archives -------------------------------------------------------------------------------- */

static struct sl_zip_entry *find(struct sl_zip *zip, const char *name)
{
    return sl_zip_find(zip, name, strlen(name));
}

static int check_version(struct sl_zip *zip, struct sl_err *err)
{
    struct sl_zip_entry *entry = find(zip, "version");
    if (!entry)
        entry = find(zip, ".data/version");
    if (!entry)
        return sl_fail_code(err, SL_E_FORMAT, "pt.version", "the archive has no entry 'version'");
    sl_autofree char *text = sl_zip_read(zip, entry, SMALL_ENTRY_BYTES_MAX, err);
    if (!text)
        return -1;
    size_t digits = strspn(text, "0123456789");
    unsigned long version = strtoul(text, NULL, 10);
    bool ended = text[digits] == 0 || strcmp(text + digits, "\n") == 0;
    return digits > 0 && digits < 4 && ended && version >= 1 && version <= 10
               ? 0
               : sl_fail_code(err, SL_E_FORMAT, "pt.version",
                              "the archive is of version '%.*s', known are 1 to 10", (int)digits,
                              text);
}

static int check_byteorder(struct sl_zip *zip, struct sl_pytorch *torch, struct sl_err *err)
{
    struct sl_zip_entry *entry = find(zip, "byteorder");
    if (!entry)
        return 0;
    sl_autofree char *text = sl_zip_read(zip, entry, SMALL_ENTRY_BYTES_MAX, err);
    if (!text)
        return -1;
    torch->big_endian = strcmp(text, "big") == 0;
    return torch->big_endian || strcmp(text, "little") == 0
               ? 0
               : sl_fail_code(err, SL_E_FORMAT, "pt.byteorder",
                              "the byte order is '%s', neither little nor big", text);
}

/* Of payloads; a wrong one costs requests, nothing else. */
static int take_alignment(struct sl_zip *zip, struct sl_err *err)
{
    struct sl_zip_entry *entry = find(zip, ".storage_alignment");
    if (!entry || entry->bytes > SMALL_ENTRY_BYTES_MAX)
        return 0;
    sl_autofree char *text = sl_zip_read(zip, entry, SMALL_ENTRY_BYTES_MAX, err);
    if (!text)
        return -1;
    unsigned long alignment = strtoul(text, NULL, 10);
    if (alignment > 0 && alignment <= ALIGNMENT_MAX)
        zip->alignment = (unsigned)alignment;
    return 0;
}

/* torch writes the pickle first and small entries behind it: one request for all of them. Where the
 * next entry begins is a claim: holes behind a pickle are not read. */
static int keep_head(struct sl_zip *zip, const struct sl_zip_entry *pickle, struct sl_err *err)
{
    if (pickle->header != 0 || pickle->bytes > SL_PYTORCH_PICKLE_BYTES_MAX ||
        pickle->next - pickle->bytes > ALIGNMENT_MAX + SMALL_ENTRIES_BYTES_MAX)
        return 0;
    uint64_t end = pickle->next;
    for (size_t i = 1; i < zip->count && zip->entries[i].bytes <= SMALL_ENTRY_BYTES_MAX &&
                       zip->entries[i].next - pickle->next <= SMALL_ENTRIES_BYTES_MAX;
         i++)
        end = zip->entries[i].next;
    return sl_zip_keep_head(zip, end, err);
}

static int check_script(const struct sl_zip *zip, struct sl_err *err)
{
    static const char *const marks[] = {"constants.pkl", "code/"};
    for (size_t i = 0; i < zip->count; i++) {
        const char *name = zip->entries[i].name + zip->root_bytes + 1;
        size_t bytes = zip->entries[i].name_bytes - zip->root_bytes - 1;
        for (size_t k = 0; k < SL_COUNT(marks); k++)
            if (bytes >= strlen(marks[k]) && memcmp(name, marks[k], strlen(marks[k])) == 0)
                return sl_fail_code(err, SL_E_FORMAT, "pt.torchscript",
                                    "a TorchScript program of torch.jit.save, not a checkpoint: "
                                    "save its state_dict() with torch.save");
    }
    return 0;
}

/* Entries of all storages, in the order of the storages. */
static int place_storages(struct sl_zip *zip, struct sl_pytorch *torch, struct sl_err *err)
{
    sl_autofree struct sl_zip_entry **entries =
        sl_alloc_array(torch->storage_count, sizeof(*entries), err);
    if (!entries || sl_pytorch_storages(torch, err) < 0)
        return -1;
    for (size_t i = 0; i < torch->storage_count; i++) {
        const struct sl_pytorch_storage *storage = torch->storages[i];
        char name[sizeof("data/") + SL_PYTORCH_KEY_BYTES_MAX] = "data/";
        memcpy(name + 5, storage->key, strlen(storage->key) + 1);
        entries[i] = find(zip, name);
        if (!entries[i])
            return sl_fail_code(err, SL_E_FORMAT, "pt.storage-missing",
                                "the archive has no entry '%s', which tensors lie in", name);
        if (entries[i]->bytes != sl_pytorch_storage_bytes(storage))
            return sl_fail_code(err, SL_E_FORMAT, "pt.storage-size",
                                "entry '%s' has %" PRIu64 " bytes, its %s of %" PRIu64
                                " needs %" PRIu64,
                                name, entries[i]->bytes, storage->class_name, storage->count,
                                sl_pytorch_storage_bytes(storage));
        entries[i]->wanted = true;
    }
    if (sl_zip_locate(zip, torch->quick, err) < 0)
        return -1;
    for (size_t i = 0; i < torch->storage_count; i++) {
        struct sl_err why = SL_ERR_INIT;
        torch->storages[i]->begin = zip->base + entries[i]->begin;
        torch->storages[i]->hash = sl_pytorch_entry_hash(torch->index, entries[i], &why);
        if (why.kind) {
            *err = why;
            return -1;
        }
    }
    return 0;
}

static int read_object(struct sl_zip *zip, struct sl_pytorch *torch, const char *data, size_t bytes,
                       struct sl_err *err)
{
    size_t used = 0;
    struct sl_pickle_node *root = sl_pickle_read(torch->pickle, data, bytes, &used, err);
    if (!root)
        return sl_wrap(err, "entry 'data.pkl'");
    if (used != bytes)
        return sl_fail_code(err, SL_E_FORMAT, "pkl.trailing",
                            "entry 'data.pkl': %zu bytes follow the pickle's end", bytes - used);
    if (place_storages(zip, torch, err) < 0)
        return -1;
    return sl_pytorch_tensors(torch, root, err);
}

static int read_archive(struct sl_zip *zip, struct sl_pytorch *torch, struct sl_err *err)
{
    if (check_script(zip, err) < 0)
        return -1;
    struct sl_zip_entry *entry = find(zip, "data.pkl");
    if (!entry)
        return sl_fail_code(err, SL_E_FORMAT, "pt.no-pickle",
                            "the archive has no entry 'data.pkl': torch.save did not write it");
    if (keep_head(zip, entry, err) < 0 || check_version(zip, err) < 0 ||
        check_byteorder(zip, torch, err) < 0 || take_alignment(zip, err) < 0)
        return -1;
    sl_autofree char *data = sl_zip_read(zip, entry, SL_PYTORCH_PICKLE_BYTES_MAX, err);
    struct sl_pickle_rules rules = sl_pytorch_rules;
    rules.arg = torch;
    torch->pickle = data ? sl_pickle_new(&rules, err) : NULL;
    return torch->pickle ? read_object(zip, torch, data, entry->bytes, err) : -1;
}

int sl_pytorch_piece(struct sl_source *source, const struct sl_zip_window *window,
                     struct sl_index *index, struct sl_tensor *tensor, struct sl_err *err)
{
    struct sl_pytorch torch = {.index = index, .object_bytes = window->bytes};
    struct sl_zip zip = {0};
    int result = sl_zip_open_window(&zip, source, window, err);
    if (result == 0)
        result = read_archive(&zip, &torch, err);
    if (result == 0 && (index->tensor_count != 1 || index->tensors[0].path_count != 0))
        result = sl_fail_code(err, SL_E_FORMAT, "pt.tensor", "it is not one tensor");
    if (result == 0)
        *tensor = index->tensors[0];
    index->tensor_count = 0;
    sl_pytorch_release(&torch);
    sl_zip_release(&zip);
    return result;
}

/* ---- the format ------------------------------------------------------------------------------ */

static int not_zip(struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "zip.not-zip",
                        "it is neither a ZIP archive nor a legacy checkpoint: an error page, a "
                        "git-lfs pointer or another format");
}

static int read_index(struct sl_index *index, bool quick, struct sl_err *err)
{
    struct sl_source *source = index->sources[0];
    uint8_t data[SL_FORMAT_PROBE_BYTES];
    struct sl_format_head head = {.data = data,
                                  .bytes = SL_MIN(sl_source_bytes(source), (uint64_t)sizeof(data))};
    struct sl_pytorch torch = {
        .index = index, .quick = quick, .object_bytes = sl_source_bytes(source)};
    struct sl_zip zip = {0};
    int result;
    if (head.bytes > 0 && sl_source_read(source, 0, data, head.bytes, err) < 0)
        return -1;
    if (head.bytes >= 4 && memcmp(data, zip_magic, sizeof(zip_magic)) == 0)
        result = sl_zip_open(&zip, source, err) < 0 ? -1 : read_archive(&zip, &torch, err);
    else if (head.bytes > 0 && data[0] == 0x80)
        result = sl_pytorch_legacy(&torch, err);
    else if (is_tar(&head))
        result = sl_fail_code(err, SL_E_FORMAT, "lg.tar",
                              "a checkpoint in the tar format of torch before 0.1.10: load it with "
                              "an old torch and save it again");
    else
        result = not_zip(err);
    sl_pytorch_release(&torch);
    sl_zip_release(&zip);
    return result;
}

static int open_index(struct sl_source *source, bool quick, struct sl_index **out,
                      struct sl_err *err)
{
    SL_AUTO(sl_index) index = sl_format_begin(SL_PYTORCH, source, err);
    if (!index)
        return -1;
    if (read_index(index, quick, err) < 0)
        return sl_wrap(err, "cannot read '%s' as a PyTorch checkpoint",
                       sl_source_uri(index->sources[0]));
    *out = sl_steal(&index);
    return 0;
}

static int pytorch_index(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return open_index(source, false, out, err);
}

static int pytorch_outline(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return open_index(source, true, out, err);
}

const struct sl_format sl_pytorch_format = {
    .name = SL_PYTORCH,
    .suffixes = {".pt", ".pth", ".ckpt", ".bin"},
    .ambiguous = true,
    .ambiguous_suffix = ".bin",
    .hint = "model",
    .states = {"optimizer", "scheduler", "scaler", "rng_state", "random_states", "training_args"},
    .stem = "pytorch_model",
    .tensors_only = true,
    .fallback = true,
    .index_suffix = ".bin.index.json",
    .probe = probe,
    .index = pytorch_index,
    .outline = pytorch_outline,
    .parts = sl_pytorch_parts,
};
