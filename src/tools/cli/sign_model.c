/*
 * The listing says what there is and how long it is, so it is known before a byte is read how much
 * the signature lists. Large files begin first: one of whole files is read in order, by one thread.
 */
#include "sign_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "file_store.h"
#include "hash_ranges.h"
#include "own_names.h"
#include "plan.h"
#include "sidecar.h"
#include "signing.h"
#include "stores.h"
#include "uri_text.h"

enum { OBJECTS_MAX = 50000, IGNORED_MAX = 10000 };

struct model {
    const struct sl_spec *spec;
    struct sl_hashed_object *objects; /* their names are owned */
    size_t count, capacity;
    struct sl_list ignored;
    uint64_t shard_bytes;
};

static void release(struct model *model)
{
    for (size_t i = 0; i < model->count; i++)
        free((char *)model->objects[i].name);
    free(model->objects);
    for (size_t i = 0; i < model->ignored.count; i++)
        free(model->ignored.items[i]);
    free(model->ignored.items);
}

/* ---- which files ----------------------------------------------------------------------------- */

static int ignore(struct model *model, const char *path, struct sl_err *err)
{
    if (model->ignored.count == IGNORED_MAX)
        return sl_fail(err, SL_E_USAGE,
                       "more than %d files are left out, each of which a signature names: give "
                       "them a folder of their own",
                       IGNORED_MAX);
    return sl_list_add(&model->ignored, path, strlen(path), err);
}

static int add_object(struct model *model, const char *name, uint64_t bytes, struct sl_err *err)
{
    if (!sl_is_utf8(name, strlen(name)))
        return sl_fail(err, SL_E_USAGE,
                       "the name '%.200s' is not UTF-8, so it cannot be signed: rename the file",
                       name);
    if (model->count == OBJECTS_MAX)
        return sl_fail(err, SL_E_USAGE, "more than %d files: name a longer prefix", OBJECTS_MAX);
    if (sl_grow(&model->objects, &model->capacity, model->count + 1, sizeof(*model->objects), err) <
        0)
        return -1;
    char *copy = sl_strdup(name, err);
    if (!copy)
        return -1;
    model->objects[model->count++] = (struct sl_hashed_object){.name = copy, .bytes = bytes};
    return 0;
}

static int take_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    static const struct sl_oms nothing;
    struct model *model = arg;
    const char *name = entry->name;
    if (strcmp(name, SL_OMS_FILE_NAME) == 0 || sl_oms_ignores(&nothing, name) ||
        sl_own_name(name, strlen(name)))
        return 0; /* take_all() ignores them */
    if (sl_name_check(name, strlen(name), err) < 0)
        return -1;
    if (sl_ends_with(name, SL_SIDECAR_SUFFIX) || sl_ends_with(name, ".minisig") ||
        !sl_plan_matches(&model->spec->source.include, name, true) ||
        sl_plan_matches(&model->spec->source.exclude, name, false))
        return ignore(model, name, err);
    return add_object(model, name, entry->bytes, err);
}

static int take_one(struct model *model, struct sl_store *store, const char *key,
                    struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    if (sl_source_open(store, key, 1, &source, err) < 0)
        return -1;
    return add_object(model, key, sl_source_bytes(source), err);
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int by_bytes(const void *a, const void *b)
{
    const struct sl_hashed_object *x = a, *y = b;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static int take_all(struct model *model, struct sl_store *store, const char *key,
                    struct sl_err *err)
{
    static const char *const always[] = {".git",       ".gitattributes", ".github",
                                         ".gitignore", ".sluice",        SL_OMS_FILE_NAME};
    for (size_t i = 0; i < SL_COUNT(always); i++)
        if (ignore(model, always[i], err) < 0)
            return -1;
    int done =
        *key ? take_one(model, store, key, err) : sl_store_list(store, take_entry, model, err);
    if (done < 0)
        return -1;
    if (model->count == 0)
        return sl_fail(err, SL_E_NOT_FOUND, "nothing to sign lies below '%s'", sl_store_uri(store));
    qsort(model->objects, model->count, sizeof(*model->objects), by_bytes);
    qsort(model->ignored.items, model->ignored.count, sizeof(char *), compare_text);
    return 0;
}

/* ---- hashes ---------------------------------------------------------------------------------- */

/* As many as an object gives: an empty one has no ranges, but is a file. */
static uint64_t count_of(const struct model *model, const struct sl_hashed_object *object)
{
    return model->shard_bytes
               ? object->bytes / model->shard_bytes + (object->bytes % model->shard_bytes != 0)
               : 1;
}

static int count_all(const struct model *model, size_t *count, struct sl_err *err)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < model->count; i++)
        sum = sl_add_capped(sum, count_of(model, &model->objects[i]));
    if (sum > SL_OMS_RESOURCES_MAX)
        return sl_fail(err, SL_E_USAGE, "%" PRIu64 " %s would be listed, at most %d are: %s", sum,
                       model->shard_bytes ? "ranges" : "files", SL_OMS_RESOURCES_MAX,
                       model->shard_bytes ? "choose a larger --shard-bytes"
                                          : "leave some out, or pack them");
    if (sum == 0)
        return sl_fail(err, SL_E_USAGE,
                       "all files are empty, of which no range can be signed: leave out "
                       "--shard-bytes");
    *count = (size_t)sum;
    return 0;
}

static void cut(const struct model *model, struct sl_hashed_range *ranges)
{
    for (size_t i = 0; i < model->count; i++) {
        struct sl_hashed_object *object = &model->objects[i];
        uint64_t bytes = model->shard_bytes ? model->shard_bytes : object->bytes;
        for (uint64_t k = 0; k < count_of(model, object); k++, ranges++) {
            ranges->object = object;
            ranges->begin = k * bytes;
            ranges->end = SL_MIN(object->bytes - ranges->begin, bytes) + ranges->begin;
        }
    }
}

/* single: the reference calls a model that is one file ".", whatever the file's name. */
static struct sl_oms *make_statement(const struct model *model, bool single,
                                     const struct sl_hashed_range *ranges, size_t count,
                                     struct sl_err *err)
{
    SL_AUTO(sl_oms) oms = sl_alloc(sizeof(*oms), err);
    if (!oms)
        return NULL;
    oms->shard_bytes = model->shard_bytes;
    oms->resources = sl_alloc_array(count, sizeof(*oms->resources), err);
    oms->ignored = sl_alloc_array(model->ignored.count, sizeof(*oms->ignored), err);
    if (!oms->resources || !oms->ignored)
        return NULL;
    for (; oms->ignored_count < model->ignored.count; oms->ignored_count++)
        if (!(oms->ignored[oms->ignored_count] =
                  sl_strdup(model->ignored.items[oms->ignored_count], err)))
            return NULL;
    for (; oms->resource_count < count; oms->resource_count++) {
        const struct sl_hashed_range *range = &ranges[oms->resource_count];
        struct sl_oms_resource *resource = &oms->resources[oms->resource_count];
        resource->name = sl_strdup(single ? "." : range->object->name, err);
        if (!resource->name)
            return NULL;
        resource->start = range->begin;
        resource->end = range->end;
        resource->kind = SL_HASH_SHA256;
        memcpy(resource->digest, range->sha256, sizeof(range->sha256));
    }
    return sl_steal(&oms);
}

/* Files that are links, of a local folder: the reference refuses them unless the signature says
 * so. */
static bool has_links(const struct model *model, const char *uri)
{
    struct sl_err ignored = SL_ERR_INIT;
    sl_autofree char *folder =
        sl_stores_find(uri) == &sl_file_store ? sl_file_path(uri, &ignored) : NULL;
    for (size_t i = 0; folder && i < model->count; i++) {
        struct stat status;
        sl_autofree char *path = sl_asprintf(&ignored, "%s/%s", folder, model->objects[i].name);
        if (path && lstat(path, &status) == 0 && S_ISLNK(status.st_mode))
            return true;
    }
    return false;
}

/* ---- one source ------------------------------------------------------------------------------ */

/* What people call it: the last part of a name or a prefix. free() it. */
static char *name_of(const char *text, struct sl_err *err)
{
    size_t end = strlen(text);
    while (end && text[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin && text[begin - 1] != '/')
        begin--;
    bool empty = strspn(text + begin, ".") >= end - begin;
    return empty ? sl_strdup("model", err) : sl_strndup(text + begin, end - begin, err);
}

/* single: the name of the one object; "": the model is all below the store's base. */
static int hash_and_sign(struct sl_model_signing *signing, struct model *model,
                         struct sl_store *store, const char *uri, const char *single,
                         struct sl_buf *text, struct sl_err *err)
{
    size_t count = 0;
    if (count_all(model, &count, err) < 0)
        return -1;
    sl_autofree struct sl_hashed_range *ranges = sl_alloc_array(count, sizeof(*ranges), err);
    if (!ranges)
        return -1;
    cut(model, ranges);
    if (sl_cli_hash_ranges(store, ranges, count, err) < 0)
        return -1;
    SL_AUTO(sl_oms) oms = make_statement(model, *single, ranges, count, err);
    sl_autofree char *name = name_of(*single ? single : sl_store_uri(store), err);
    if (!oms || !name)
        return -1;
    oms->links = !*single && has_links(model, uri);
    signing->objects += model->count;
    signing->ranges += count;
    for (size_t i = 0; i < model->count; i++)
        signing->bytes += model->objects[i].bytes;
    return sl_oms_sign(oms, name, signing->key, text, err);
}

static int check_store(const char *uri, struct sl_err *err)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    if (kind && kind->upload && !kind->traits.tensors)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "no signature can be written beside '%s': sign a copy in a folder or a bucket",
                   uri);
}

/* Is what lies at the place one of these signatures? Others end in .sig as well, and none of them
 * is replaced. What cannot be read is left to the writing. */
static int check_place(const char *to, const struct sl_source_config *config, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    struct sl_bundle *bundle = NULL;
    if (sl_store_open(to, config, &store, &key, &why) < 0 ||
        sl_source_open(store, key, 64 * 1024, &source, &why) < 0)
        return 0;
    uint64_t bytes = SL_MIN(sl_source_bytes(source), (uint64_t)SL_BUNDLE_BYTES_MAX + 1);
    sl_autofree char *text = sl_alloc((size_t)bytes + 1, err);
    if (!text)
        return -1;
    if (bytes <= SL_BUNDLE_BYTES_MAX &&
        (sl_source_read(source, 0, text, (size_t)bytes, &why) < 0 ||
         sl_bundle_parse(text, (size_t)bytes, &bundle, &why) == 0)) {
        sl_bundle_free(bundle);
        return 0;
    }
    return sl_fail(err, SL_E_USAGE,
                   "'%s' is there and is not a signature of a model: move it out of the way",
                   sl_source_uri(source));
}

static bool is_folder(const char *uri)
{
    struct stat status;
    return !strstr(uri, "://") && stat(uri, &status) == 0 && S_ISDIR(status.st_mode);
}

int sl_cli_sign_model(struct sl_model_signing *signing, const struct sl_spec *spec,
                      struct sl_cancel *cancel, char **place, struct sl_err *err)
{
    struct sl_source_config config;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL, *to = NULL;
    sl_autobuf text = SL_BUF_INIT(SL_BUNDLE_BYTES_MAX);
    struct model model = {.spec = spec, .shard_bytes = signing->shard_bytes};
    sl_spec_source_config(spec, cancel, NULL, &config);
    sl_autofree char *uri =
        sl_asprintf(err, "%s%s", spec->source.uri,
                    is_folder(spec->source.uri) && !sl_ends_with(spec->source.uri, "/") ? "/" : "");
    if (!uri || check_store(uri, err) < 0 || sl_store_open(uri, &config, &store, &key, err) < 0)
        return -1;
    to = *key ? sl_cli_beside(uri, ".sig", err) : sl_asprintf(err, "%s" SL_OMS_FILE_NAME, uri);
    int done = to ? check_place(to, &config, err) : -1;
    if (done == 0)
        done = take_all(&model, store, key, err);
    if (done == 0)
        done = hash_and_sign(signing, &model, store, uri, key, &text, err);
    release(&model);
    if (done < 0)
        return -1;
    if (sl_cli_put(to, &config, &text, err) < 0)
        return sl_wrap(err, "cannot write the signature");
    *place = sl_uri_sanitize(to, err);
    return *place ? 0 : -1;
}
