/*
 * A new model is put together as an index over memory, and then converted, like a model of any
 * store: layouts, hashes, encryption and uploads are those of `sluice convert`. What is not
 * borrowed waits in a file without a name, which is mapped in the end: both formats begin with what
 * is known last, and uploads take bytes in the order of the new object.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "convert.h"
#include "exact_io.h"
#include "given.h"
#include "held.h"
#include "names.h"
#include "open_parts.h"
#include "stores.h"

struct file {
    char *name;
    uint64_t bytes;
};
struct sluice_writer {
    char *to;
    enum sl_convert_format format;
    struct sl_specs specs;
    struct sl_open_secret secret;
    struct sluice_create_options options; /* its texts are copied, or not looked at again */
    struct sl_index *index;
    uint64_t tensor_bytes; /* stored, of all tensors so far */
    struct file *files;
    size_t file_count, file_capacity;
    int spool; /* -1: nothing was copied yet */
    uint64_t spool_bytes;
    uint8_t *map;                   /* of the spool */
    struct sl_held_object *objects; /* of tensors, then one a file; data NULL: in the spool */
    size_t object_count, object_capacity;
    struct sl_progress *progress;
};

static void writer_free(struct sluice_writer *writer)
{
    if (!writer)
        return;
    for (size_t i = 0; i < writer->file_count; i++)
        free(writer->files[i].name);
    for (size_t i = 0; i < writer->object_count; i++)
        free(writer->objects[i].pieces);
    free(writer->files);
    free(writer->objects);
    free(writer->to);
    if (writer->map)
        munmap(writer->map, writer->spool_bytes);
    if (writer->spool >= 0)
        close(writer->spool);
    sl_index_free(writer->index);
    sl_specs_release(&writer->specs);
    sl_open_secret_release(&writer->secret);
    sl_progress_free(writer->progress);
    free(writer);
}

/* ---- begun ----------------------------------------------------------------------------------- */

static int choose_format(struct sluice_writer *writer, const char *wanted, struct sl_err *err)
{
    const struct sl_store_kind *kind = sl_stores_find(writer->to);
    bool tensors = sl_ends_with(writer->to, ".tensors") || (kind && kind->traits.tensors);
    bool safetensors = sl_ends_with(writer->to, ".safetensors");
    if (wanted) {
        tensors = strcmp(wanted, "tensorizer") == 0;
        safetensors = strcmp(wanted, "safetensors") == 0;
        if (!tensors && !safetensors)
            return sl_fail(err, SL_E_USAGE,
                           "format '%.80s': models are written as 'tensorizer' or 'safetensors'",
                           wanted);
    }
    if (!tensors && !safetensors && !sl_ends_with(writer->to, "/"))
        return sl_fail(err, SL_E_USAGE,
                       "the URI does not say the format: let it end in .tensors, "
                       ".safetensors or '/', or name a format");
    writer->format = tensors ? SL_CONVERT_TENSORIZER : SL_CONVERT_SAFETENSORS;
    return 0;
}

static int keep_metadata(struct sluice_writer *writer, struct sl_err *err)
{
    const uint8_t *at = (const uint8_t *)writer->options.metadata;
    if (writer->options.metadata_count && writer->format == SL_CONVERT_TENSORIZER)
        return sl_fail(err, SL_E_USAGE, ".tensors files have no room for metadata");
    for (uint64_t i = 0; i < writer->options.metadata_count; i++) {
        struct sluice_meta meta;
        if (sl_open_take(&meta, sizeof(meta), at, err) < 0)
            return -1;
        at += meta.size;
        uint64_t key_bytes = meta.key_bytes ? meta.key_bytes : strlen(meta.key),
                 value_bytes = meta.value_bytes ? meta.value_bytes : strlen(meta.value);
        if (memchr(meta.key, 0, key_bytes) || memchr(meta.value, 0, value_bytes))
            return sl_fail(err, SL_E_USAGE, "metadata '%.80s' has a NUL in it", meta.key);
        const char *key = sl_given_text(writer->index, meta.key, key_bytes, err);
        const char *value = key ? sl_given_text(writer->index, meta.value, value_bytes, err) : NULL;
        if (!value || sl_index_add_meta(writer->index, key, value, err) < 0)
            return -1;
    }
    return 0;
}

static int add_object(struct sluice_writer *writer, struct sl_err *err)
{
    if (sl_grow(&writer->objects, &writer->object_capacity, writer->object_count + 1,
                sizeof(*writer->objects), err) < 0)
        return -1;
    writer->objects[writer->object_count++] = (struct sl_held_object){0};
    return 0;
}

static int begin(struct sluice_writer *writer, const char *uri, struct sl_err *err)
{
    const struct sluice_create_options *options = &writer->options;
    const struct sl_open_wanted wanted = {.uri = uri, .spec = options->spec};
    if (sl_open_spec(&wanted, &writer->specs, err) < 0 ||
        sl_open_secret_take(options->key, &writer->secret, err) < 0)
        return -1;
    writer->to = sl_uri_is_of_models(uri) ? sl_uri_of_model(uri, err) : sl_open_uri(uri, err);
    writer->index = writer->to ? sl_index_new("memory", err) : NULL;
    if (!writer->index || choose_format(writer, options->format, err) < 0 ||
        keep_metadata(writer, err) < 0)
        return -1;
    writer->progress = sl_progress_new("model", "", "", err);
    return writer->progress ? add_object(writer, err) : -1;
}

int sluice_create(const char *uri, const struct sluice_create_options *given,
                  struct sluice_writer **out, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    sl_open_begin();
    struct sluice_writer *writer = sl_alloc(sizeof(*writer), &err);
    if (!writer)
        return sl_open_fail(error, &err);
    writer->spool = -1;
    if (sl_open_take(&writer->options, sizeof(writer->options), given, &err) < 0 ||
        sl_open_check_flags(writer->options.flags,
                            SLUICE_REPLACE | SLUICE_BORROW | SLUICE_BARE_HEAD, &err) < 0 ||
        begin(writer, uri, &err) < 0) {
        writer_free(writer);
        return sl_open_fail(error, &err);
    }
    *out = writer;
    return 0;
}

void sluice_abandon(struct sluice_writer *writer)
{
    writer_free(writer);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int open_spool(struct sluice_writer *writer, struct sl_err *err)
{
    const char *folder = getenv("TMPDIR");
    if (!folder || !*folder)
        folder = "/var/tmp";
    writer->spool = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (writer->spool >= 0)
        return 0;
    return sl_fail_errno(
        err, SL_E_NO_SPACE, errno,
        "cannot make a temporary file in '%s': set TMPDIR to a folder where this user can write",
        folder);
}

/* The data at the end of object `number`, borrowed or copied. */
static int keep_data(struct sluice_writer *writer, size_t number, const void *data, uint64_t bytes,
                     struct sl_err *err)
{
    bool borrow = writer->options.flags & SLUICE_BORROW;
    if (!bytes || borrow)
        return sl_held_add(&writer->objects[number], data, bytes, err);
    if (writer->spool < 0 && open_spool(writer, err) < 0)
        return -1;
    if (sl_write_at(writer->spool, data, bytes, writer->spool_bytes) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno,
                             "cannot write to the temporary file: make room in TMPDIR");
    /* where it is, until there is a mapping */
    const uint8_t *place = (const uint8_t *)(uintptr_t)writer->spool_bytes;
    if (sl_held_add(&writer->objects[number], place, bytes, err) < 0)
        return -1;
    writer->spool_bytes += bytes;
    return 0;
}

static int add_tensor(struct sluice_writer *writer, const struct sluice_tensor *given,
                      struct sl_tensor *tensor, struct sl_err *err)
{
    const char *format = writer->format == SL_CONVERT_TENSORIZER ? "tensorizer" : "safetensors";
    if (sl_given_take(writer->index, given, tensor, err) < 0 ||
        sl_given_pairs(writer->index, format, tensor, err) < 0)
        return -1;
    tensor->begin = tensor->end = writer->objects[0].bytes;
    if (tensor->meta)
        return 0;
    tensor->end += given->bytes;
    return keep_data(writer, 0, given->data, given->bytes, err);
}

static int write_tensor(struct sluice_writer *writer, const struct sluice_tensor *given,
                        int (*name)(struct sl_index *index, struct sl_tensor *tensor,
                                    const void *arg, struct sl_err *err),
                        const void *arg, struct sl_err *err)
{
    struct sl_index *index = writer->index;
    struct sl_tensor *tensor = sl_index_add_tensor(index, err);
    if (!tensor)
        return -1;
    memset(tensor, 0, sizeof(*tensor));
    if (name(index, tensor, arg, err) == 0 && add_tensor(writer, given, tensor, err) == 0)
        return 0;
    index->tensor_count--;
    return tensor->name
               ? sl_wrap(err, "tensor '%.*s'", SL_NAME_ARGS(tensor->name, tensor->name_bytes))
               : -1;
}

static int plain_name(struct sl_index *index, struct sl_tensor *tensor, const void *arg,
                      struct sl_err *err)
{
    return sl_given_name(index, arg, tensor, err);
}

static int write_file(struct sluice_writer *writer, const struct sluice_tensor *given,
                      struct sl_err *err)
{
    uint64_t bytes = given->name_bytes ? given->name_bytes : strlen(given->name);
    if (!sl_ends_with(writer->to, "/"))
        return sl_fail(err, SL_E_USAGE, "data files go into a folder: end the URI with '/'");
    if (sl_name_check(given->name, bytes, err) < 0 || add_object(writer, err) < 0 ||
        sl_grow(&writer->files, &writer->file_capacity, writer->file_count + 1,
                sizeof(*writer->files), err) < 0)
        return -1;
    char *name = sl_strndup(given->name, bytes, err);
    if (!name)
        return -1;
    writer->files[writer->file_count++] = (struct file){name, given->bytes};
    return keep_data(writer, writer->object_count - 1, given->data, given->bytes, err);
}

int sluice_write(struct sluice_writer *writer, const struct sluice_tensor *tensor,
                 struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    struct sluice_tensor given;
    int done = -1;
    if (sl_open_take(&given, sizeof(given), tensor, &err) < 0)
        return sl_open_fail(error, &err);
    if (!given.name)
        sl_fail(&err, SL_E_USAGE, "a tensor needs a name");
    else if (given.kind == SLUICE_KIND_FILE)
        done = write_file(writer, &given, &err);
    else
        done = write_tensor(writer, &given, plain_name, &given, &err);
    return done < 0 ? sl_open_fail(error, &err) : 0;
}

struct parts {
    const struct sluice_path_part *items;
    uint32_t count;
};

static int join_parts(struct sl_index *index, struct sl_tensor *tensor,
                      const struct sl_path_part *path, uint32_t count, struct sl_err *err)
{
    sl_autobuf name = SL_BUF_INIT(SL_TENSORIZER_HEADERS_BYTES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        int done = i ? sl_buf_append(&name, ".", 1, err) : 0;
        if (done == 0)
            done = path[i].text ? sl_buf_append(&name, path[i].text, path[i].text_bytes, err)
                                : sl_buf_printf(&name, err, "%" PRIu64, path[i].number);
        if (done < 0)
            return -1;
    }
    tensor->name = sl_given_text(index, name.data, name.used, err);
    tensor->name_bytes = name.used;
    return tensor->name ? 0 : -1;
}

static int path_name(struct sl_index *index, struct sl_tensor *tensor, const void *arg,
                     struct sl_err *err)
{
    const struct parts *parts = arg;
    const uint8_t *at = (const uint8_t *)parts->items;
    struct sl_path_part *path = sl_index_alloc(index, (parts->count + 1) * sizeof(*path), err);
    for (uint32_t i = 0; path && i < parts->count; i++) {
        struct sluice_path_part part;
        if (sl_open_take(&part, sizeof(part), at, err) < 0)
            return -1;
        at += part.size;
        path[i].number = part.index;
        path[i].text_bytes = part.text_bytes;
        if (part.text && !(path[i].text = sl_given_text(index, part.text, part.text_bytes, err)))
            return -1;
    }
    tensor->path = path;
    tensor->path_count = parts->count;
    return path ? join_parts(index, tensor, path, parts->count, err) : -1;
}

int sluice_write_path(struct sluice_writer *writer, const struct sluice_tensor *tensor,
                      const struct sluice_path_part *items, uint32_t count,
                      struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    struct sluice_tensor given;
    const struct parts parts = {items, count};
    int done = -1;
    if (sl_open_take(&given, sizeof(given), tensor, &err) < 0)
        return sl_open_fail(error, &err);
    if (!count || writer->format != SL_CONVERT_TENSORIZER)
        sl_fail(&err, SL_E_USAGE,
                "names of parts are for .tensors files, and need at least one part");
    else
        done = write_tensor(writer, &given, path_name, &parts, &err);
    return done < 0 ? sl_open_fail(error, &err) : 0;
}

/* ---- written --------------------------------------------------------------------------------- */

/* What was copied lies in the mapping. */
static int map_spool(struct sluice_writer *writer, struct sl_err *err)
{
    if (!writer->spool_bytes)
        return 0;
    void *map = mmap(NULL, writer->spool_bytes, PROT_READ, MAP_SHARED, writer->spool, 0);
    if (map == MAP_FAILED)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot map the temporary file");
    writer->map = map;
    for (size_t i = 0; i < writer->object_count; i++)
        for (size_t p = 0; p < writer->objects[i].count; p++)
            writer->objects[i].pieces[p].data =
                writer->map + (uintptr_t)writer->objects[i].pieces[p].data;
    return 0;
}

/* Everything that a conversion points to. */
struct writing {
    struct sluice_writer *writer;
    struct sl_store *store; /* of the data files; that of the tensors is the plan's */
    struct sl_plan *plan;
    struct sl_source **files;
    const char **names;
    struct sl_keys *seal;
    struct sl_convert_config config;
};

static void writing_release(struct writing *writing)
{
    for (size_t i = 0; writing->files && i < writing->writer->file_count; i++)
        sl_source_free(writing->files[i]);
    free(writing->files);
    free(writing->names);
    sl_store_free(writing->store);
    sl_plan_free(writing->plan);
    sl_keys_free(writing->seal);
}

static int open_files(struct writing *writing, struct sl_err *err)
{
    const struct sluice_writer *writer = writing->writer;
    writing->files = sl_alloc_array(writer->file_count + 1, sizeof(*writing->files), err);
    writing->names = sl_alloc_array(writer->file_count + 1, sizeof(*writing->names), err);
    if (!writing->files || !writing->names)
        return -1;
    for (size_t i = 0; i < writer->file_count; i++) {
        writing->names[i] = writer->files[i].name;
        if (sl_held_source(writing->store, i + 1, &writing->files[i], err) < 0)
            return -1;
    }
    return 0;
}

static int make_plan(struct writing *writing, struct sl_err *err)
{
    struct sluice_writer *writer = writing->writer;
    SL_AUTO(sl_store) store = NULL;
    struct sl_source *source;
    if (sl_held_open(writer->objects, &writing->store, err) < 0 || open_files(writing, err) < 0 ||
        sl_held_open(writer->objects, &store, err) < 0 ||
        sl_held_source(store, 0, &source, err) < 0)
        return -1;
    struct sl_index *index = sl_steal(&writer->index);
    if (sl_index_add_source(index, source, err) < 0) {
        sl_index_free(index);
        return -1;
    }
    return sl_plan_make_given(writer->specs.items, sl_steal(&store), index, &writing->plan, err);
}

static int make_keys(struct writing *writing, struct sl_err *err)
{
    const struct sl_open_secret *secret = &writing->writer->secret;
    struct sl_kdf *kdf = &writing->config.kdf;
    if (sl_crypt_init(err) < 0)
        return -1;
    if (!secret->bytes)
        return 0;
    writing->seal = secret->secret.key
                        ? sl_keys_from_key(secret->secret.key, err)
                        : sl_keys_from_passphrase(secret->secret.passphrase,
                                                  secret->secret.passphrase_bytes, err);
    *kdf = secret->kdf;
    if (!secret->salted)
        sl_crypt_random(kdf->salt, SL_SALT_BYTES);
    return writing->seal ? 0 : -1;
}

static int convert_it(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    struct writing *writing = arg;
    writing->config.cancel = cancel;
    return sl_convert_run(&writing->config, NULL, err);
}

static int finish(struct writing *writing, struct sl_err *err)
{
    struct sluice_writer *writer = writing->writer;
    const struct sluice_create_options *options = &writer->options;
    const struct sl_open_limits limits = {.timeout_ms = options->timeout_ms,
                                          .cancel_fd = options->cancel_fd,
                                          .progress = options->progress,
                                          .arg = options->arg,
                                          .of = writer->progress};
    if (map_spool(writer, err) < 0 || make_keys(writing, err) < 0 || make_plan(writing, err) < 0)
        return -1;
    const struct sl_convert_given given = {writing->plan, writing->files, writing->names,
                                           writer->file_count};
    struct sl_convert_config *config = &writing->config;
    config->spec = writer->specs.items;
    config->given = &given;
    config->to = writer->to;
    config->format = writer->format;
    config->shard_bytes = options->shard_bytes;
    config->seal = writing->seal;
    config->align = options->align;
    config->replace = options->flags & SLUICE_REPLACE;
    config->bare_head = options->flags & SLUICE_BARE_HEAD;
    config->progress = writer->progress;
    return sl_open_within(&limits, NULL, false, convert_it, writing, err);
}

int sluice_finish(struct sluice_writer *writer, struct sluice_error *error)
{
    struct sl_err err = SL_ERR_INIT;
    struct writing writing = {.writer = writer};
    int done = finish(&writing, &err);
    writing_release(&writing);
    writer_free(writer);
    return done < 0 ? sl_open_fail(error, &err) : 0;
}
