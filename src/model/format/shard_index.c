/*
 * A model in several files: an index (model.safetensors.index.json) maps each tensor's name to the
 * file that holds it. The headers of all shards are read side by side, one round trip for all;
 * then the tensors that the map names move into one index. What a shard holds beyond the map is not
 * part of the model.
 */
#include <inttypes.h>
#include <string.h>

#include "arena.h"
#include "format.h"
#include "log.h"
#include "names.h"
#include "shard_map.h"
#include "side_by_side.h"

struct shard {
    const char *name;
    struct sl_index *index; /* NULL without an error: of no format that is read, or missing */
    bool data;              /* for a load of whole files, which does not look inside */
    bool missing;
};

struct model {
    bool files; /* for a load of whole files */
    bool there; /* what is there is enough */
    struct sl_shard_map map;
    struct shard *shards; /* one for each of the map */
};

static void model_release(struct model *model)
{
    for (size_t i = 0; model->shards && i < model->map.shard_count; i++)
        sl_index_free(model->shards[i].index);
    free(model->shards);
    sl_shard_map_release(&model->map);
}

/* ---- reading the shards ---------------------------------------------------------------------- */

/* Whatever is in it, the object comes along: an index of no tensors. */
static int index_whole_shard(struct sl_source *source, struct shard *shard, struct sl_err *err)
{
    struct sl_store *store = sl_source_store(source);
    struct sl_version version = *sl_source_version(source);
    uint64_t bytes = sl_source_bytes(source);
    struct sl_source *again = NULL;
    if (sl_format_index_files(source, shard->name, &shard->index, err) < 0)
        return -1;
    const struct sl_format *format = shard->index ? sl_format_by_name(shard->index->format) : NULL;
    shard->data = !format || format->tensors_only;
    if (shard->index)
        return 0;
    if (sl_source_known(store, shard->name, bytes, &version, &again, err) < 0)
        return -1;
    shard->index = sl_format_begin(sl_shard_index_format.name, again, err);
    return shard->index ? 0 : -1;
}

static int index_shard(struct sl_source *source, bool files, struct shard *shard,
                       struct sl_err *err)
{
    if (files)
        return index_whole_shard(source, shard, err);
    return sl_format_name_says(shard->name) == SL_SAYS_MODEL
               ? sl_format_index_strict(source, shard->name, &shard->index, err)
               : sl_format_index(source, &shard->index, err);
}

static int read_shard(struct sl_store *store, const struct model *model, struct shard *shard,
                      struct sl_err *err)
{
    struct sl_source *source = NULL;
    struct sl_err why = SL_ERR_INIT;
    if (sl_source_open(store, shard->name, SL_INDEX_HEAD_BYTES, &source, &why) == 0)
        return index_shard(source, model->files, shard, err);
    shard->missing = why.kind == SL_E_NOT_FOUND;
    if (shard->missing && model->there)
        return 0;
    if (shard->missing)
        return sl_fail_code(err, SL_E_FORMAT, "idx.missing-shard",
                            "the index names '%s', which is not there (%.300s): store the "
                            "model again, all of it",
                            shard->name, why.message);
    if (err)
        *err = why;
    return -1;
}

struct shards {
    struct sl_store *store;
    struct model *model;
};

static int read_numbered(void *arg, size_t number, struct sl_err *err)
{
    const struct shards *shards = arg;
    return read_shard(shards->store, shards->model, &shards->model->shards[number], err);
}

static int read_all_shards(struct sl_store *store, struct model *model, struct sl_err *err)
{
    struct shards shards = {store, model};
    size_t count = model->map.shard_count;
    return sl_side_by_side(count, sl_store_openings(store, count), "sl-index", read_numbered,
                           &shards, err);
}

/* ---- one index of all ------------------------------------------------------------------------ */

/* Move what the map names out of a shard, with the shard's source and memory. */
static int merge_shard(struct sl_index *index, struct model *model, uint32_t number,
                       struct sl_err *err)
{
    struct sl_index *shard = model->shards[number].index;
    bool is_first = index->source_count == 1; /* [0] is the index itself */
    struct sl_source *source = shard->sources[0];
    free(shard->source_names[0]);
    shard->source_count = 0;
    int source_number = sl_index_add_source(index, source, err);
    if (source_number < 0)
        return -1;
    for (size_t i = 0; i < shard->tensor_count; i++) {
        bool part = shard->tensors[i].part;
        const struct sl_tensor *from = &shard->tensors[i];
        struct sl_shard_place *place =
            part ? NULL : sl_shard_map_find(&model->map, from->name, from->name_bytes);
        if (!part && (!place || place->shard_number != number))
            continue;
        struct sl_tensor *tensor = sl_index_add_tensor(index, err);
        if (!tensor)
            return -1;
        *tensor = shard->tensors[i];
        tensor->source = (uint32_t)source_number;
        if (place)
            place->found = true;
    }
    for (size_t i = 0; is_first && i < shard->metadata_count; i++)
        if (sl_index_add_meta(index, shard->metadata[i].key, shard->metadata[i].value, err) < 0)
            return -1;
    index->encrypted = index->encrypted || shard->encrypted;
    index->unread = index->unread ? index->unread : shard->unread;
    sl_arena_adopt(index->arena, shard->arena);
    return 0;
}

/* From a file that is there. */
static bool is_missing(const struct model *model, const struct sl_shard_place *place)
{
    const struct shard *shard = &model->shards[place->shard_number];
    return !place->found && !shard->data && !shard->missing;
}

/* Say what is missing, once for each kind: the first, and how many. */
static void warn(const struct sl_index *index, const struct model *model)
{
    const struct sl_shard_map *map = &model->map;
    const char *name = index->source_names[0];
    const struct shard *file = NULL;
    const struct sl_shard_place *tensor = NULL;
    size_t files = 0, tensors = 0;
    for (size_t i = map->shard_count; i-- > 0;)
        if (model->shards[i].missing) {
            file = &model->shards[i];
            files++;
        }
    for (size_t i = map->place_count; i-- > 0;)
        if (is_missing(model, &map->places[i])) {
            tensor = &map->places[i];
            tensors++;
        }
    if (file)
        sl_log(SL_LOG_WARN,
               "the model is not complete: '%s' names '%s', which is not there (missing: %zu of "
               "%zu files)",
               name, file->name, files, map->shard_count);
    if (tensor)
        sl_log(SL_LOG_WARN,
               "the model is not complete: '%s' says that tensor '%.*s' is in '%s', which has no "
               "such tensor (missing: %zu of %zu tensors)",
               name, SL_NAME_ARGS(tensor->tensor, tensor->tensor_bytes), tensor->shard, tensors,
               map->place_count);
}

static int merge(struct sl_index *index, struct model *model, struct sl_err *err)
{
    const struct sl_shard_map *map = &model->map;
    for (uint32_t i = 0; i < map->shard_count; i++)
        if (!model->shards[i].missing && merge_shard(index, model, i, err) < 0)
            return -1;
    if (model->there) {
        warn(index, model);
        return 0;
    }
    for (size_t i = 0; i < map->place_count; i++)
        if (is_missing(model, &map->places[i]))
            return sl_fail_code(err, SL_E_FORMAT, "idx.missing-tensor",
                                "tensor '%.*s' is not in '%s'",
                                SL_NAME_ARGS(map->places[i].tensor, map->places[i].tensor_bytes),
                                map->places[i].shard);
    return 0;
}

/* The index names what lies below its own folder. */
static int name_from_store(struct sl_index *index, struct model *model, struct sl_err *err)
{
    const char *own = sl_source_name(index->sources[0]), *end = strrchr(own, '/');
    size_t folder = end ? (size_t)(end + 1 - own) : 0;
    model->shards = sl_alloc_array(model->map.shard_count, sizeof(*model->shards), err);
    if (!model->shards)
        return -1;
    for (size_t i = 0; i < model->map.shard_count; i++) {
        size_t bytes = strlen(model->map.shards[i]);
        char *name = sl_index_alloc(index, folder + bytes + 1, err);
        if (!name)
            return -1;
        memcpy(name, own, folder);
        memcpy(name + folder, model->map.shards[i], bytes);
        model->shards[i].name = name;
    }
    return 0;
}

static int read_model(struct sl_index *index, struct model *model, struct sl_err *err)
{
    struct sl_source *source = index->sources[0];
    uint64_t bytes = sl_source_bytes(source);
    if (bytes > SL_SHARD_MAP_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "idx.json", "%" PRIu64 " bytes, limit %d", bytes,
                            SL_SHARD_MAP_BYTES_MAX);
    sl_autofree char *text = sl_format_read(source, 0, bytes, err);
    if (!text || sl_index_keep(index, text, err) < 0 ||
        sl_shard_map_parse(sl_steal(&text), bytes, &model->map, err) < 0)
        return -1;
    if (!model->map.is_map)
        return sl_fail_code(err, SL_E_FORMAT, "idx.json", "it has no weight_map");
    if (name_from_store(index, model, err) < 0)
        return -1;
    return read_all_shards(sl_source_store(source), model, err);
}

/* The format that the index's name says, or else that its first object has. */
static void name_format(struct sl_index *index, const struct model *model)
{
    const struct sl_format *format = sl_format_of_index(index->source_names[0]);
    if (format)
        index->format = format->name;
    for (size_t i = 0; !format && model->shards && i < model->map.shard_count; i++)
        if (model->shards[i].index) {
            index->format = model->shards[i].index->format;
            return;
        }
}

/* Of another name, and no map: JSON of somebody else's, which is a fine file. */
static bool is_other_data(const struct sl_index *index, const struct model *model,
                          const struct sl_err *why)
{
    return model->files && strcmp(why->code, "idx.json") == 0 &&
           !sl_format_of_index(index->source_names[0]);
}

int sl_format_index_shards(struct sl_source *source, bool files, bool there, struct sl_index **out,
                           struct sl_err *err)
{
    SL_AUTO(sl_index) index = sl_format_begin(sl_shard_index_format.name, source, err);
    *out = NULL;
    if (!index)
        return -1;
    struct model model = {.files = files, .there = there};
    struct sl_err why = SL_ERR_INIT;
    int result = read_model(index, &model, &why);
    bool known = result == 0;
    for (size_t i = 0; known && i < model.map.shard_count; i++)
        known = model.shards[i].index || model.shards[i].missing;
    name_format(index, &model);
    if (known)
        result = merge(index, &model, &why);
    if (result < 0 && is_other_data(index, &model, &why)) {
        result = 0;
        known = false;
    }
    model_release(&model);
    if (result < 0) {
        if (err)
            *err = why;
        return sl_wrap(err, "cannot read '%s' as an index of a model's files",
                       sl_source_uri(index->sources[0]));
    }
    if (known)
        *out = sl_steal(&index);
    return 0;
}

static int index_tensors(struct sl_source *source, struct sl_index **index, struct sl_err *err)
{
    return sl_format_index_shards(source, false, false, index, err);
}

static int index_files(struct sl_source *source, struct sl_index **index, struct sl_err *err)
{
    return sl_format_index_shards(source, true, false, index, err);
}

/* A JSON object by a name that is kept for such indexes; config.json is none. */
static bool probe(const struct sl_format_head *head)
{
    size_t at = 0;
    while (at < head->bytes && strchr(" \t\r\n", head->data[at]) && head->data[at])
        at++;
    return at < head->bytes && head->data[at] == '{' &&
           sl_format_has_suffix(head->name, SL_SHARD_INDEX_SUFFIX);
}

const struct sl_format sl_shard_index_format = {
    .name = "shard_index",
    .suffixes = {SL_SHARD_INDEX_SUFFIX},
    .probe = probe,
    .index = index_tensors,
    .index_files = index_files,
};
