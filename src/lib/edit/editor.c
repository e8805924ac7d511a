/*
 * Editing in place: tensors of a local model file are replaced, appended and deleted, and what
 * stays where it is is not written again. The calls of sluice_edit.h are here:
 *
 *     sluice_edit()     locks the file, completes what an editor before left, reads the index
 *     sluice_replace()  notes what a tensor becomes, as do sluice_append() and sluice_delete();
 *                       nothing is written
 *     sluice_commit()   has the pieces of the new file planned, data or ranges of the present one
 *                       (edit.c), and brings the file there (storage/file, file_edit.h)
 *
 * A plan is a format's, by a row in edit.c and a file of this folder:
 *
 *     edit_safetensors  a new head in the room of the old one; a head that grows moves all data
 *     edit_tensorizer   headers stay with their data; a new metadata block of the same length
 *     edit_pytorch      storages, pickle (edit_pickle) and directory go behind the old end
 *
 * GGUF, distributed checkpoints, encrypted files and models in several files are refused.
 *
 * A crash leaves the old content or one that can be completed, and never a mix: what changes is
 * in a journal beside the file before the file's seal, eight bytes without which no reader takes
 * it for a model, becomes a mark. Before the mark the old content counts, from then on the new one:
 * readers refuse the file until the next editor, or `sluice inspect --complete-edit`, has done
 * what the journal says. Where data that stay would move, a new file is renamed to the name
 * instead. Lock and journal are a service of storage/file, since all readers of files ask for it.
 */
#include <string.h>

#include "edit.h"
#include "file_edit.h"
#include "file_store.h"
#include "given.h"
#include "names.h"
#include "open_call.h"
#include "sluice_edit.h"
#include "stores.h"

struct sluice_editor {
    struct sl_file_edit *file;
    struct sl_store *store;
    struct sl_index *index;
    struct sl_edit_item *items; /* first those of the index, then new ones */
    bool *deleted;              /* of the first ones */
    size_t count, capacity;
    struct sluice_edit_options options;
};

static void editor_free(struct sluice_editor *editor)
{
    if (!editor)
        return;
    sl_index_free(editor->index);
    sl_store_free(editor->store);
    sl_file_edit_free(editor->file);
    free(editor->items);
    free(editor->deleted);
    free(editor);
}

/* ---- begun ----------------------------------------------------------------------------------- */

static int read_index(struct sluice_editor *editor, struct sl_err *err)
{
    const struct sl_source_config config = {0};
    const char *path = sl_file_edit_path(editor->file);
    sl_autofree char *key = NULL;
    struct sl_source *source;
    if (sl_store_open_kind(&sl_file_store, path, &config, &editor->store, &key, err) < 0 ||
        sl_source_open(editor->store, key, SL_INDEX_HEAD_BYTES, &source, err) < 0)
        return -1;
    return sl_format_index_strict(source, key, &editor->index, err);
}

static int keep_items(struct sluice_editor *editor, struct sl_err *err)
{
    size_t count = editor->index->tensor_count;
    editor->deleted = sl_alloc_array(count + 1, sizeof(*editor->deleted), err);
    if (!editor->deleted || sl_index_sort_names(editor->index, err) < 0 ||
        sl_grow(&editor->items, &editor->capacity, count + 1, sizeof(*editor->items), err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        editor->items[i] = (struct sl_edit_item){.old = &editor->index->tensors[i]};
    editor->count = count;
    return 0;
}

static int begin(struct sluice_editor *editor, const char *uri, struct sl_err *err)
{
    const struct sl_store_kind *kind = uri ? sl_stores_find(uri) : NULL;
    if (!uri || !*uri)
        return sl_fail(err, SL_E_USAGE, "there is no path");
    if (kind && kind != &sl_file_store)
        return sl_fail(err, SL_E_USAGE,
                       "only local files are changed in place: write a new model with "
                       "sluice_create()");
    sl_autofree char *path = sl_file_path(uri, err);
    if (!path || sl_file_edit_open(path, &editor->file, err) < 0 || read_index(editor, err) < 0)
        return -1;
    return keep_items(editor, err);
}

int sluice_edit(const char *path, const struct sluice_edit_options *given,
                struct sluice_editor **out, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    sl_open_begin();
    struct sluice_editor *editor = sl_alloc(sizeof(*editor), &err);
    if (!editor)
        return sl_open_fail(error, &err);
    if (sl_open_take(&editor->options, sizeof(editor->options), given, &err) < 0 ||
        sl_open_check_flags(editor->options.flags, SLUICE_EDIT_COPY, &err) < 0 ||
        begin(editor, path, &err) < 0) {
        editor_free(editor);
        return sl_open_fail(error, &err);
    }
    *out = editor;
    return 0;
}

void sluice_edit_abandon(struct sluice_editor *editor)
{
    editor_free(editor);
}

/* ---- wanted ---------------------------------------------------------------------------------- */

static const struct sl_tensor *tensor_of(const struct sl_edit_item *item)
{
    return item->tensor ? item->tensor : item->old;
}

/* The item of a name; -1: there is none. */
static ptrdiff_t find(const struct sluice_editor *editor, const char *name, uint64_t bytes)
{
    for (size_t i = editor->index->tensor_count; i < editor->count; i++)
        if (tensor_of(&editor->items[i])->name_bytes == bytes &&
            memcmp(tensor_of(&editor->items[i])->name, name, bytes) == 0)
            return (ptrdiff_t)i;
    const struct sl_tensor *old = sl_index_find(editor->index, name, bytes, NULL);
    ptrdiff_t number = old ? old - editor->index->tensors : -1;
    return number >= 0 && !editor->deleted[number] ? number : -1;
}

static int no_such(const char *name, uint64_t bytes, struct sl_err *err)
{
    return sl_fail(err, SL_E_NOT_FOUND, "the model has no tensor '%.*s'",
                   SL_NAME_ARGS(name, bytes));
}

/* It has a name; *bytes of it. */
static int take_tensor(const struct sluice_tensor *from, struct sluice_tensor *given,
                       uint64_t *bytes, struct sl_err *err)
{
    if (sl_open_take(given, sizeof(*given), from, err) < 0)
        return -1;
    if (!given->name || given->kind == SLUICE_KIND_FILE)
        return sl_fail(err, SL_E_USAGE,
                       "a tensor needs a name, and must not be of the kind of data files");
    *bytes = given->name_bytes ? given->name_bytes : strlen(given->name);
    return 0;
}

static struct sl_tensor *make_tensor(struct sluice_editor *editor,
                                     const struct sluice_tensor *given, struct sl_err *err)
{
    struct sl_tensor *tensor = sl_index_alloc(editor->index, sizeof(*tensor), err);
    if (!tensor || sl_given_take(editor->index, given, tensor, err) < 0 ||
        sl_given_pairs(editor->index, editor->index->format, tensor, err) < 0 ||
        sl_given_name(editor->index, given, tensor, err) < 0)
        return NULL;
    return tensor;
}

static int replace(struct sluice_editor *editor, const struct sluice_tensor *from,
                   struct sl_err *err)
{
    struct sluice_tensor given;
    uint64_t bytes = 0;
    if (take_tensor(from, &given, &bytes, err) < 0)
        return -1;
    ptrdiff_t number = find(editor, given.name, bytes);
    if (number < 0)
        return no_such(given.name, bytes, err);
    struct sl_edit_item *item = &editor->items[number];
    const struct sl_tensor *old = tensor_of(item);
    struct sl_tensor *tensor = make_tensor(editor, &given, err);
    if (!tensor)
        return sl_wrap(err, "tensor '%.*s'", SL_NAME_ARGS(given.name, bytes));
    tensor->path = old->path;
    tensor->path_count = old->path_count;
    tensor->role = old->role;
    tensor->module_index = old->module_index;
    item->tensor = tensor;
    item->data = given.data;
    return 0;
}

static int append(struct sluice_editor *editor, const struct sluice_tensor *from,
                  struct sl_err *err)
{
    struct sluice_tensor given;
    uint64_t bytes = 0;
    if (take_tensor(from, &given, &bytes, err) < 0)
        return -1;
    if (find(editor, given.name, bytes) >= 0)
        return sl_fail_code(err, SL_E_USAGE, "exists",
                            "the model has a tensor '%.*s': replace it, or name another",
                            SL_NAME_ARGS(given.name, bytes));
    struct sl_tensor *tensor = make_tensor(editor, &given, err);
    if (!tensor)
        return sl_wrap(err, "tensor '%.*s'", SL_NAME_ARGS(given.name, bytes));
    if (sl_grow(&editor->items, &editor->capacity, editor->count + 1, sizeof(*editor->items), err) <
        0)
        return -1;
    editor->items[editor->count++] = (struct sl_edit_item){.tensor = tensor, .data = given.data};
    return 0;
}

int sluice_replace(struct sluice_editor *editor, const struct sluice_tensor *tensor,
                   struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    return replace(editor, tensor, &err) < 0 ? sl_open_fail(error, &err) : 0;
}

int sluice_append(struct sluice_editor *editor, const struct sluice_tensor *tensor,
                  struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    return append(editor, tensor, &err) < 0 ? sl_open_fail(error, &err) : 0;
}

int sluice_delete(struct sluice_editor *editor, const char *name, uint64_t name_bytes,
                  struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t bytes = name_bytes ? name_bytes : strlen(name);
    ptrdiff_t number = find(editor, name, bytes);
    if (number < 0) {
        no_such(name, bytes, &err);
        return sl_open_fail(error, &err);
    }
    if ((size_t)number < editor->index->tensor_count) {
        editor->deleted[number] = true;
    } else {
        struct sl_edit_item *item = &editor->items[number];
        editor->count--;
        memmove(item, item + 1, (editor->count - (size_t)number) * sizeof(*item));
    }
    return 0;
}

/* ---- done ------------------------------------------------------------------------------------ */

/* Items without those that go. */
static void drop_deleted(struct sluice_editor *editor)
{
    size_t kept = 0;
    for (size_t i = 0; i < editor->count; i++)
        if (i >= editor->index->tensor_count || !editor->deleted[i])
            editor->items[kept++] = editor->items[i];
    editor->count = kept;
}

static bool is_changed(const struct sluice_editor *editor)
{
    if (editor->count != editor->index->tensor_count)
        return true;
    for (size_t i = 0; i < editor->count; i++)
        if (editor->items[i].tensor)
            return true;
    return false;
}

static int commit(struct sluice_editor *editor, struct sl_err *err)
{
    drop_deleted(editor);
    if (!is_changed(editor))
        return 0;
    struct sl_edit edit = {.index = editor->index, .items = editor->items, .count = editor->count};
    int done = sl_edit_plan(&edit, err);
    const struct sl_file_content content = {.pieces = edit.pieces,
                                            .count = edit.piece_count,
                                            .seal = edit.seal,
                                            .copy = editor->options.flags & SLUICE_EDIT_COPY};
    if (done == 0)
        done = sl_file_edit_commit(editor->file, &content, err);
    sl_edit_release(&edit);
    return done;
}

int sluice_commit(struct sluice_editor *editor, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    int done = commit(editor, &err);
    editor_free(editor);
    return done < 0 ? sl_open_fail(error, &err) : 0;
}
