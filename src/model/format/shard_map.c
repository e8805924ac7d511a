/*
 * The text of an index: tokens are pulled one by one, names stay where they stand in it. Rows are
 * sorted twice: by file, to number the files, and by tensor, to find one and what is there twice.
 */
#include "shard_map.h"

#include <string.h>

#include "buf.h"
#include "format.h"
#include "json_pull.h"
#include "names.h"

enum { SHARDS_MAX = 100000, SHARD_NAME_BYTES_MAX = 1024 };

void sl_shard_map_release(struct sl_shard_map *map)
{
    free(map->shards);
    free(map->places);
    *map = (struct sl_shard_map){0};
}

/* ---- parsing --------------------------------------------------------------------------------- */

static int json_fail(const struct sl_pull *pull, const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "idx.json", "%s at byte %zu", pull->why ? pull->why : why,
                        pull->at);
}

static int parse_places(struct sl_pull *pull, struct sl_shard_map *map, struct sl_err *err)
{
    if (sl_pull_next(pull) != SL_PULL_OBJECT)
        return json_fail(pull, "weight_map is not an object", err);
    enum sl_pull_token token;
    while ((token = sl_pull_next(pull)) == SL_PULL_KEY) {
        if (sl_grow(&map->places, &map->place_capacity, map->place_count + 1, sizeof(*map->places),
                    err) < 0)
            return -1;
        struct sl_shard_place *place = &map->places[map->place_count++];
        *place =
            (struct sl_shard_place){.tensor = pull->string, .tensor_bytes = pull->string_bytes};
        if (sl_pull_next(pull) != SL_PULL_STRING)
            return json_fail(pull, "a value of weight_map is not a text", err);
        place->shard = pull->string;
        place->shard_bytes = pull->string_bytes;
    }
    return token == SL_PULL_CLOSE ? 0 : json_fail(pull, "weight_map does not end", err);
}

/* {"metadata": {"total_size": 123}}: a hint, whatever else is there. */
static int parse_metadata(struct sl_pull *pull, struct sl_shard_map *map, struct sl_err *err)
{
    enum sl_pull_token token = sl_pull_next(pull);
    if (token != SL_PULL_OBJECT)
        return sl_pull_skip(pull, token, NULL) ? 0 : json_fail(pull, "no JSON", err);
    while ((token = sl_pull_next(pull)) == SL_PULL_KEY) {
        bool total = strcmp(pull->string, "total_size") == 0;
        token = sl_pull_next(pull);
        if (total && token == SL_PULL_NUMBER)
            (void)sl_pull_uint(pull, &map->total_bytes);
        else if (!sl_pull_skip(pull, token, NULL))
            return json_fail(pull, "no JSON", err);
    }
    return token == SL_PULL_CLOSE ? 0 : json_fail(pull, "metadata does not end", err);
}

static int parse_member(struct sl_pull *pull, struct sl_shard_map *map, struct sl_err *err)
{
    if (strcmp(pull->string, "metadata") == 0)
        return parse_metadata(pull, map, err);
    if (strcmp(pull->string, "weight_map") != 0)
        return sl_pull_skip(pull, sl_pull_next(pull), NULL) ? 0 : json_fail(pull, "no JSON", err);
    if (map->is_map)
        return json_fail(pull, "two members weight_map", err);
    map->is_map = true;
    return parse_places(pull, map, err);
}

static int parse_text(char *text, size_t bytes, struct sl_shard_map *map, struct sl_err *err)
{
    struct sl_pull pull;
    if (!sl_is_utf8(text, bytes))
        return sl_fail_code(err, SL_E_FORMAT, "idx.json", "it is not UTF-8");
    sl_pull_init(&pull, text, bytes);
    if (sl_pull_next(&pull) != SL_PULL_OBJECT)
        return json_fail(&pull, "it is not a JSON object", err);
    enum sl_pull_token token;
    while ((token = sl_pull_next(&pull)) == SL_PULL_KEY)
        if (parse_member(&pull, map, err) < 0)
            return -1;
    if (token != SL_PULL_CLOSE || sl_pull_next(&pull) != SL_PULL_DONE)
        return json_fail(&pull, "the object does not end", err);
    return 0;
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
bool sl_shard_name_fits(const char *name, size_t bytes)
{
    bool hostile = bytes == 0 || bytes > SHARD_NAME_BYTES_MAX || strlen(name) != bytes ||
                   name[0] == '/' || strchr(name, '\\') || has_scheme(name) || has_dots(name) ||
                   sl_format_has_suffix(name, SL_SHARD_INDEX_SUFFIX);
    for (size_t i = 0; i < bytes; i++)
        hostile = hostile || (unsigned char)name[i] < 0x20;
    return !hostile;
}

static int check_shard_name(const struct sl_shard_place *place, struct sl_err *err)
{
    return sl_shard_name_fits(place->shard, place->shard_bytes)
               ? 0
               : sl_fail_code(err, SL_E_FORMAT, "idx.path",
                              "tensor '%.*s' is in '%.*s' by the index, which is not a path below "
                              "it",
                              SL_NAME_ARGS(place->tensor, place->tensor_bytes),
                              SL_NAME_ARGS(place->shard, place->shard_bytes));
}

static int by_shard(const void *a, const void *b)
{
    const struct sl_shard_place *x = a, *y = b;
    int order = sl_bytes_compare(x->shard, x->shard_bytes, y->shard, y->shard_bytes);
    return order ? order : sl_bytes_compare(x->tensor, x->tensor_bytes, y->tensor, y->tensor_bytes);
}

static int by_tensor(const void *a, const void *b)
{
    const struct sl_shard_place *x = a, *y = b;
    return sl_bytes_compare(x->tensor, x->tensor_bytes, y->tensor, y->tensor_bytes);
}

/* Number the distinct shards in the order of their names. */
static int number_shards(struct sl_shard_map *map, struct sl_err *err)
{
    if (map->place_count > 1)
        qsort(map->places, map->place_count, sizeof(*map->places), by_shard);
    for (size_t i = 0; i < map->place_count; i++) {
        struct sl_shard_place *place = &map->places[i];
        if (i == 0 || strcmp(place->shard, map->places[i - 1].shard) != 0) {
            if (map->shard_count == SHARDS_MAX)
                return sl_fail_code(err, SL_E_FORMAT, "idx.json", "more than %d files", SHARDS_MAX);
            if (sl_grow(&map->shards, &map->shard_capacity, map->shard_count + 1,
                        sizeof(*map->shards), err) < 0)
                return -1;
            map->shards[map->shard_count++] = place->shard;
        }
        place->shard_number = (uint32_t)map->shard_count - 1;
    }
    return 0;
}

/* Paths, duplicates; leaves places sorted by tensor. */
static int check_map(struct sl_shard_map *map, struct sl_err *err)
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

int sl_shard_map_parse(char *text, size_t bytes, struct sl_shard_map *map, struct sl_err *err)
{
    *map = (struct sl_shard_map){0};
    return parse_text(text, bytes, map, err) < 0 ? -1 : check_map(map, err);
}

struct sl_shard_place *sl_shard_map_find(const struct sl_shard_map *map, const char *tensor,
                                         size_t bytes)
{
    struct sl_shard_place key = {.tensor = tensor, .tensor_bytes = bytes};
    return map->place_count ? bsearch(&key, map->places, map->place_count, sizeof(key), by_tensor)
                            : NULL;
}
