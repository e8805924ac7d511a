/*
 * A model in several files: an index (model.safetensors.index.json) maps each tensor's name to the
 * file that holds it. The map is hostile: file names must stay below the index, names must not
 * repeat. The headers of all shards are read side by side, one round trip instead of one for each;
 * then the tensors that the map names move into one index. What a shard holds beyond the map is not
 * part of the model.
 */
#include <inttypes.h>
#include <string.h>

#include "arena.h"
#include "buf.h"
#include "format.h"
#include "json_pull.h"
#include "names.h"
#include "side_by_side.h"

enum {
    MAP_BYTES_MAX = 100 * 1000 * 1000,
    SHARDS_MAX = 100000,
    SHARD_NAME_BYTES_MAX = 1024,
};

/* One row of the map. */
struct place {
    const char *tensor;
    size_t tensor_bytes;
    const char *shard;
    size_t shard_bytes;
    uint32_t shard_number;
    bool found;
};

struct shard {
    const char *name;
    struct sl_index *index; /* NULL without an error: of no format that is read */
    bool data;              /* for a load of whole files, which does not look inside */
};

struct map {
    bool files; /* for a load of whole files */
    struct place *places;
    size_t place_count, place_capacity;
    struct shard *shards;
    size_t shard_count;
};

static void map_release(struct map *map)
{
    for (size_t i = 0; i < map->shard_count; i++)
        sl_index_free(map->shards[i].index);
    free(map->shards);
    free(map->places);
}

/* ---- parsing --------------------------------------------------------------------------------- */

static int json_fail(const struct sl_pull *pull, const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "idx.json", "%s at byte %zu", pull->why ? pull->why : why,
                        pull->at);
}

static int skip_value(struct sl_pull *pull, struct sl_err *err)
{
    unsigned depth = pull->depth;
    do {
        enum sl_pull_token token = sl_pull_next(pull);
        if (token == SL_PULL_ERROR || token == SL_PULL_DONE)
            return json_fail(pull, "no JSON", err);
    } while (pull->depth > depth);
    return 0;
}

static int parse_places(struct sl_pull *pull, struct map *map, struct sl_err *err)
{
    if (sl_pull_next(pull) != SL_PULL_OBJECT)
        return json_fail(pull, "weight_map is not an object", err);
    enum sl_pull_token token;
    while ((token = sl_pull_next(pull)) == SL_PULL_KEY) {
        if (sl_grow(&map->places, &map->place_capacity, map->place_count + 1, sizeof(*map->places),
                    err) < 0)
            return -1;
        struct place *place = &map->places[map->place_count++];
        *place = (struct place){.tensor = pull->string, .tensor_bytes = pull->string_bytes};
        if (sl_pull_next(pull) != SL_PULL_STRING)
            return json_fail(pull, "a value of weight_map is not a text", err);
        place->shard = pull->string;
        place->shard_bytes = pull->string_bytes;
    }
    return token == SL_PULL_CLOSE ? 0 : json_fail(pull, "weight_map does not end", err);
}

static int parse_map(char *text, size_t bytes, struct map *map, struct sl_err *err)
{
    struct sl_pull pull;
    bool found = false;
    if (!sl_is_utf8(text, bytes))
        return sl_fail_code(err, SL_E_FORMAT, "idx.json", "it is not UTF-8");
    sl_pull_init(&pull, text, bytes);
    if (sl_pull_next(&pull) != SL_PULL_OBJECT)
        return json_fail(&pull, "it is not a JSON object", err);
    enum sl_pull_token token;
    while ((token = sl_pull_next(&pull)) == SL_PULL_KEY) {
        bool is_map = strcmp(pull.string, "weight_map") == 0;
        if (is_map && found)
            return json_fail(&pull, "two members weight_map", err);
        found = found || is_map;
        if ((is_map ? parse_places(&pull, map, err) : skip_value(&pull, err)) < 0)
            return -1;
    }
    if (token != SL_PULL_CLOSE || sl_pull_next(&pull) != SL_PULL_DONE)
        return json_fail(&pull, "the object does not end", err);
    return found ? 0 : sl_fail_code(err, SL_E_FORMAT, "idx.json", "it has no weight_map");
}

/* ---- shard names ----------------------------------------------------------------------------- */

/* "http://…", "C:…": a scheme or drive in front of the first slash. */
static bool has_scheme(const char *name)
{
    const char *colon = strchr(name, ':'), *slash = strchr(name, '/');
    return colon && (!slash || colon < slash);
}

static bool has_dots(const char *name)
{
    for (const char *part = name; part; part = strchr(part, '/')) {
        part += *part == '/';
        size_t bytes = strcspn(part, "/");
        if (bytes == 0 || (bytes == 1 && part[0] == '.') ||
            (bytes == 2 && part[0] == '.' && part[1] == '.'))
            return true;
    }
    return false;
}

/* An index that names an index is refused too: it could name itself. */
static int check_shard_name(const struct place *place, struct sl_err *err)
{
    const char *name = place->shard;
    bool hostile = place->shard_bytes == 0 || place->shard_bytes > SHARD_NAME_BYTES_MAX ||
                   strlen(name) != place->shard_bytes || name[0] == '/' || strchr(name, '\\') ||
                   has_scheme(name) || has_dots(name) ||
                   sl_format_has_suffix(name, sl_shard_index_format.suffixes[0]);
    for (size_t i = 0; i < place->shard_bytes; i++)
        hostile = hostile || (unsigned char)name[i] < 0x20;
    return hostile ? sl_fail_code(
                         err, SL_E_FORMAT, "idx.path",
                         "tensor '%.*s' is in '%.*s' by the index, which is not a path below it",
                         SL_NAME_ARGS(place->tensor, place->tensor_bytes),
                         SL_NAME_ARGS(name, place->shard_bytes))
                   : 0;
}

static int by_shard(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int order = sl_bytes_compare(x->shard, x->shard_bytes, y->shard, y->shard_bytes);
    return order ? order : sl_bytes_compare(x->tensor, x->tensor_bytes, y->tensor, y->tensor_bytes);
}

static int by_tensor(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return sl_bytes_compare(x->tensor, x->tensor_bytes, y->tensor, y->tensor_bytes);
}

/* Number the distinct shards in the order of their names. */
static int number_shards(struct map *map, struct sl_err *err)
{
    if (map->place_count > 1)
        qsort(map->places, map->place_count, sizeof(*map->places), by_shard);
    size_t capacity = 0;
    for (size_t i = 0; i < map->place_count; i++) {
        struct place *place = &map->places[i];
        if (i == 0 || strcmp(place->shard, map->places[i - 1].shard) != 0) {
            if (map->shard_count == SHARDS_MAX)
                return sl_fail_code(err, SL_E_FORMAT, "idx.json", "more than %d files", SHARDS_MAX);
            if (sl_grow(&map->shards, &capacity, map->shard_count + 1, sizeof(*map->shards), err) <
                0)
                return -1;
            map->shards[map->shard_count++] = (struct shard){.name = place->shard};
        }
        place->shard_number = (uint32_t)map->shard_count - 1;
    }
    return 0;
}

/* Paths, duplicates; leaves places sorted by tensor. */
static int check_map(struct map *map, struct sl_err *err)
{
    for (size_t i = 0; i < map->place_count; i++)
        if (check_shard_name(&map->places[i], err) < 0)
            return -1;
    if (number_shards(map, err) < 0)
        return -1;
    if (map->place_count > 1)
        qsort(map->places, map->place_count, sizeof(*map->places), by_tensor);
    for (size_t i = 1; i < map->place_count; i++)
        if (by_tensor(&map->places[i - 1], &map->places[i]) == 0)
            return sl_fail_code(err, SL_E_FORMAT, "idx.json", "tensor '%.*s' is mapped twice",
                                SL_NAME_ARGS(map->places[i].tensor, map->places[i].tensor_bytes));
    return 0;
}

/* ---- reading the shards ---------------------------------------------------------------------- */

/* An index of no tensors, for the object alone. */
static int take_data(struct sl_source *source, struct shard *shard, struct sl_err *err)
{
    shard->data = true;
    shard->index = sl_format_begin(sl_shard_index_format.name, source, err);
    return shard->index ? 0 : -1;
}

static int index_shard(struct sl_source *source, bool files, struct shard *shard,
                       struct sl_err *err)
{
    if (sl_format_name_says(shard->name) == SL_SAYS_MODEL)
        return sl_format_index_strict(source, shard->name, &shard->index, err);
    if (!files)
        return sl_format_index(source, &shard->index, err);
    struct sl_err why = SL_ERR_INIT;
    const struct sl_format *format = sl_format_recognise(source, &why);
    if (format && !format->tensors_only)
        return sl_format_index_files(source, &shard->index, err);
    shard->data = format || why.kind == SL_OK;
    if (format)
        return format->parts(source, &shard->index, err);
    if (why.kind == SL_OK)
        return take_data(source, shard, err);
    sl_source_free(source);
    *err = why;
    return -1;
}

static int read_shard(struct sl_store *store, bool files, struct shard *shard, struct sl_err *err)
{
    struct sl_source *source = NULL;
    if (sl_source_open(store, shard->name, SL_INDEX_HEAD_BYTES, &source, err) < 0) {
        if (err && err->kind == SL_E_NOT_FOUND) {
            char why[sizeof(err->message)];
            memcpy(why, err->message, sizeof(why));
            return sl_fail_code(err, SL_E_FORMAT, "idx.missing-shard",
                                "the index names '%s', which is not there (%.300s): store the "
                                "model again, all of it",
                                shard->name, why);
        }
        return -1;
    }
    return index_shard(source, files, shard, err);
}

struct shards {
    struct sl_store *store;
    struct map *map;
};

static int read_numbered(void *arg, size_t number, struct sl_err *err)
{
    const struct shards *shards = arg;
    return read_shard(shards->store, shards->map->files, &shards->map->shards[number], err);
}

static int read_all_shards(struct sl_store *store, struct map *map, struct sl_err *err)
{
    struct shards shards = {store, map};
    return sl_side_by_side(map->shard_count, sl_store_openings(store, map->shard_count), "sl-index",
                           read_numbered, &shards, err);
}

/* ---- one index of all ------------------------------------------------------------------------ */

static struct place *find_place(const struct map *map, const struct sl_tensor *tensor)
{
    struct place key = {.tensor = tensor->name, .tensor_bytes = tensor->name_bytes};
    return map->place_count ? bsearch(&key, map->places, map->place_count, sizeof(key), by_tensor)
                            : NULL;
}

/* Move what the map names out of a shard, with the shard's source and memory. */
static int merge_shard(struct sl_index *index, struct map *map, uint32_t number, struct sl_err *err)
{
    struct sl_index *shard = map->shards[number].index;
    struct sl_source *source = shard->sources[0];
    free(shard->source_names[0]);
    shard->source_count = 0;
    int source_number = sl_index_add_source(index, source, err);
    if (source_number < 0)
        return -1;
    for (size_t i = 0; i < shard->tensor_count; i++) {
        bool part = shard->tensors[i].part;
        struct place *place = part ? NULL : find_place(map, &shard->tensors[i]);
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
    for (size_t i = 0; number == 0 && i < shard->metadata_count; i++)
        if (sl_index_add_meta(index, shard->metadata[i].key, shard->metadata[i].value, err) < 0)
            return -1;
    index->encrypted = index->encrypted || shard->encrypted;
    sl_arena_adopt(index->arena, shard->arena);
    return 0;
}

static int merge(struct sl_index *index, struct map *map, struct sl_err *err)
{
    for (uint32_t i = 0; i < map->shard_count; i++)
        if (merge_shard(index, map, i, err) < 0)
            return -1;
    for (size_t i = 0; i < map->place_count; i++)
        if (!map->places[i].found && !map->shards[map->places[i].shard_number].data)
            return sl_fail_code(err, SL_E_FORMAT, "idx.missing-tensor",
                                "tensor '%.*s' is not in '%s'",
                                SL_NAME_ARGS(map->places[i].tensor, map->places[i].tensor_bytes),
                                map->places[i].shard);
    return 0;
}

/* The index names what lies below its own folder. */
static int name_from_store(struct sl_index *index, struct map *map, struct sl_err *err)
{
    const char *own = sl_source_name(index->sources[0]), *end = strrchr(own, '/');
    for (size_t i = 0; end && i < map->shard_count; i++) {
        size_t folder = (size_t)(end + 1 - own), bytes = strlen(map->shards[i].name);
        char *name = sl_index_alloc(index, folder + bytes + 1, err);
        if (!name)
            return -1;
        memcpy(name, own, folder);
        memcpy(name + folder, map->shards[i].name, bytes);
        map->shards[i].name = name;
    }
    return 0;
}

static int read_model(struct sl_index *index, struct map *map, struct sl_err *err)
{
    struct sl_source *source = index->sources[0];
    uint64_t bytes = sl_source_bytes(source);
    if (bytes > MAP_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "idx.json", "%" PRIu64 " bytes, limit %d", bytes,
                            MAP_BYTES_MAX);
    sl_autofree char *text = sl_format_read(source, 0, bytes, err);
    if (!text || sl_index_keep(index, text, err) < 0)
        return -1;
    if (parse_map(sl_steal(&text), bytes, map, err) < 0 || check_map(map, err) < 0)
        return -1;
    if (name_from_store(index, map, err) < 0)
        return -1;
    return read_all_shards(sl_source_store(source), map, err);
}

/* The format that the index's name says, or else that its first object has. */
static void name_format(struct sl_index *index, const struct map *map)
{
    const struct sl_format *format = sl_format_of_index(index->source_names[0]);
    if (format)
        index->format = format->name;
    else if (map->shard_count > 0 && map->shards[0].index)
        index->format = map->shards[0].index->format;
}

static int read_index(bool files, struct sl_source *source, struct sl_index **out,
                      struct sl_err *err)
{
    SL_AUTO(sl_index) index = sl_format_begin(sl_shard_index_format.name, source, err);
    if (!index)
        return -1;
    struct map map = {.files = files};
    bool known = true;
    int result = read_model(index, &map, err);
    for (size_t i = 0; i < map.shard_count && result == 0; i++)
        known = known && map.shards[i].index;
    name_format(index, &map);
    if (result == 0 && known)
        result = merge(index, &map, err);
    map_release(&map);
    if (result < 0)
        return sl_wrap(err, "cannot read '%s' as an index of a model's files",
                       sl_source_uri(index->sources[0]));
    if (known)
        *out = sl_steal(&index);
    return 0;
}

static int index_tensors(struct sl_source *source, struct sl_index **index, struct sl_err *err)
{
    return read_index(false, source, index, err);
}

static int index_files(struct sl_source *source, struct sl_index **index, struct sl_err *err)
{
    return read_index(true, source, index, err);
}

/* A JSON object by a name that is kept for such indexes; config.json is none. */
static bool probe(const struct sl_format_head *head)
{
    size_t at = 0;
    while (at < head->bytes && strchr(" \t\r\n", head->data[at]) && head->data[at])
        at++;
    return at < head->bytes && head->data[at] == '{' &&
           sl_format_has_suffix(head->name, sl_shard_index_format.suffixes[0]);
}

const struct sl_format sl_shard_index_format = {
    .name = "shard_index",
    .suffixes = {".index.json"},
    .probe = probe,
    .index = index_tensors,
    .index_files = index_files,
};
