/*
 * One listing of what begins with the path decides everything, as with KServe's own initializer;
 * the load that follows is given the chosen objects and lists no more. Usually the path is a
 * folder: then the load's names are relative to it and nothing is left to do. Only if a neighbour
 * begins likewise (`model` and `model-v2`) are names relative to the folder above, and cut
 * afterwards.
 */
#include "choosing.h"

#include <string.h>

#include "log.h"
#include "stores.h"
#include "weights.h"

enum { OBJECTS_MAX = 50000 };

static void release_object(struct sl_chosen_object *object)
{
    free(object->name);
    free(object->etag);
    free(object->pin);
    free(object->sums);
}

void sl_choosing_release(struct sl_choice *choice)
{
    for (size_t i = 0; i < choice->objects.count; i++)
        release_object(&choice->objects.items[i]);
    free(choice->objects.items);
    for (size_t i = 0; i < choice->objects.passed_count; i++)
        free(choice->objects.passed[i]);
    free(choice->objects.passed);
    free(choice->base_uri);
    free(choice->strip);
    *choice = (struct sl_choice){0};
}

const char *sl_choosing_file(const struct sl_choice *choice, const char *name)
{
    size_t bytes = strlen(choice->strip);
    if (bytes == 0)
        return name;
    name += bytes;
    return name + strspn(name, "/");
}

struct listing {
    struct sl_choice *choice;
    const struct sl_patterns *patterns;
    const char *path; /* of the URI, below the bucket */
    size_t path_bytes;
    bool strict, local;
    bool exact;      /* the object of exactly this name was found */
    uint64_t passed; /* seen, but left out */
};

/* ---- the listing ---------------------------------------------------------------------------- */

static int add(struct sl_chosen *objects, const struct sl_entry *entry, struct sl_err *err)
{
    if (objects->count == OBJECTS_MAX)
        return sl_fail(err, SL_E_USAGE,
                       "more than %d objects: name a longer prefix, or set STORAGE_ALLOW_PATTERNS",
                       OBJECTS_MAX);
    if (sl_grow(&objects->items, &objects->capacity, objects->count + 1, sizeof(*objects->items),
                err) < 0)
        return -1;
    struct sl_chosen_object *object = &objects->items[objects->count];
    *object = (struct sl_chosen_object){.bytes = entry->bytes};
    object->name = sl_strdup(entry->name, err);
    object->etag = object->name ? sl_strdup(entry->etag, err) : NULL;
    object->pin = entry->pin && object->etag ? sl_strdup(entry->pin, err) : NULL;
    object->sums = sl_checksums_copy(entry->sums, err);
    bool whole = object->etag && !object->pin == !entry->pin && !object->sums == !entry->sums;
    if (!whole)
        release_object(object);
    objects->count += whole;
    return whole ? 0 : -1;
}

/* There on purpose or not: what is not missing, since it was left out. */
static int note_passed(struct sl_chosen *objects, const struct sl_entry *entry, struct sl_err *err)
{
    if (objects->passed_count == OBJECTS_MAX)
        return 0;
    if (sl_grow(&objects->passed, &objects->passed_capacity, objects->passed_count + 1,
                sizeof(*objects->passed), err) < 0)
        return -1;
    char *name = sl_strdup(entry->name, err);
    if (!name)
        return -1;
    objects->passed[objects->passed_count++] = name;
    return 0;
}

static void drop_all(struct sl_chosen *objects)
{
    for (size_t i = 0; i < objects->count; i++)
        release_object(&objects->items[i]);
    objects->count = 0;
}

static bool is_wanted(const struct listing *listing, const struct sl_entry *entry)
{
    const char *rest = entry->name + listing->path_bytes;
    if (entry->name[strlen(entry->name) - 1] == '/')
        return false;
    if (listing->local) /* as shells and Python's glob see a directory */
        return *entry->name != '.' && sl_patterns_want(listing->patterns, entry->name);
    bool below = listing->path_bytes == 0 || rest[-1] == '/' || *rest == '/';
    bool mark = entry->bytes == 0 && !sl_weights_named(entry->name);
    if (mark || (listing->strict && !below))
        return false;
    return sl_patterns_want(listing->patterns, rest + strspn(rest, "/"));
}

static int take(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct listing *listing = arg;
    struct sl_chosen *objects = &listing->choice->objects;
    if (listing->exact)
        return 0;
    if (!listing->local && (entry->bytes || sl_weights_named(entry->name)) &&
        strcmp(entry->name, listing->path) == 0 && listing->path_bytes &&
        listing->path[listing->path_bytes - 1] != '/') {
        listing->exact = true;
        drop_all(objects);
        return add(objects, entry, err);
    }
    if (!is_wanted(listing, entry)) {
        listing->passed++;
        return note_passed(objects, entry, err);
    }
    return add(objects, entry, err);
}

/* ---- names ---------------------------------------------------------------------------------- */

/* Everything lies below the path as a folder. */
static bool is_folder(const struct listing *listing)
{
    const struct sl_chosen *objects = &listing->choice->objects;
    if (listing->path_bytes == 0 || listing->path[listing->path_bytes - 1] == '/')
        return true;
    for (size_t i = 0; i < objects->count; i++)
        if (objects->items[i].name[listing->path_bytes] != '/')
            return false;
    return !listing->exact;
}

/* The folder that the load's names are relative to, and what is cut off them afterwards. */
static int settle_base(struct listing *listing, const char *root, struct sl_err *err)
{
    struct sl_choice *choice = listing->choice;
    const char *slash = strrchr(listing->path, '/');
    size_t base = slash ? (size_t)(slash - listing->path) + 1 : 0;
    bool folder = is_folder(listing);
    if (folder)
        base = listing->path_bytes;
    bool slash_missing = folder && base && listing->path[base - 1] != '/';
    choice->base_uri =
        sl_asprintf(err, "%s%.*s%s", root, (int)base, listing->path, slash_missing ? "/" : "");
    choice->strip = sl_strdup(folder || listing->exact ? "" : listing->path + base, err);
    if (!choice->base_uri || !choice->strip)
        return -1;
    base += slash_missing;
    for (size_t i = 0; i < choice->objects.passed_count; i++) {
        char *name = choice->objects.passed[i];
        bool below = strlen(name) > base && (base == 0 || name[base - 1] == '/');
        size_t cut = below ? base : strlen(name);
        memmove(name, name + cut, strlen(name + cut) + 1);
    }
    for (size_t i = 0; i < choice->objects.count; i++) {
        char *name = choice->objects.items[i].name;
        memmove(name, name + base, strlen(name + base) + 1);
        choice->bytes += choice->objects.items[i].bytes;
    }
    return 0;
}

struct named {
    const char *file, *object;
};

static int by_file(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->file, ((const struct named *)b)->file);
}

static int two_in_one(const struct named *a, const struct named *b, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "E_NAME",
                        "the objects '%.200s' and '%.200s' would both be '%.200s': end the URI "
                        "with '/' or use --strict-prefix",
                        a->object, b->object, a->file);
}

/* Cutting can make two names one, or one the folder of another; the load judges the others. */
static int judge_cut_names(const struct sl_choice *choice, struct sl_err *err)
{
    size_t count = choice->objects.count;
    if (!*choice->strip)
        return 0;
    sl_autofree struct named *names = sl_alloc_array(count, sizeof(*names), err);
    if (!names)
        return -1;
    for (size_t i = 0; i < count; i++) {
        names[i].object = choice->objects.items[i].name;
        names[i].file = sl_choosing_file(choice, names[i].object);
        if (sl_name_check(names[i].file, strlen(names[i].file), err) < 0)
            return -1;
    }
    qsort(names, count, sizeof(*names), by_file);
    for (size_t i = 0; i < count; i++) {
        if (i && strcmp(names[i - 1].file, names[i].file) == 0)
            return two_in_one(&names[i - 1], &names[i], err);
        for (const char *slash = names[i].file; (slash = strchr(slash, '/')); slash++) {
            sl_autofree char *folder =
                sl_strndup(names[i].file, (size_t)(slash - names[i].file), err);
            if (!folder)
                return -1;
            struct named key = {.file = folder};
            const struct named *file = bsearch(&key, names, count, sizeof(key), by_file);
            if (file)
                return two_in_one(file, &names[i], err);
        }
    }
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static int found_none(const struct listing *listing, const char *uri, struct sl_err *err)
{
    if (listing->passed && (listing->patterns->allow.count || listing->patterns->ignore.count))
        return sl_fail(err, SL_E_NOT_FOUND,
                       "no model found in '%.400s': none of its objects passes "
                       "STORAGE_ALLOW_PATTERNS and STORAGE_IGNORE_PATTERNS",
                       uri);
    return sl_fail(err, SL_E_NOT_FOUND, "no model found in '%.400s': %s", uri,
                   listing->passed ? "what is there is empty, a folder marker, or a neighbour"
                                   : "check the bucket and the path, they are case-sensitive");
}

static int list(struct listing *listing, const char *root, const char *uri,
                const struct sl_source_config *config, struct sl_err *err)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    struct sl_err why = SL_ERR_INIT;
    if (sl_store_open(root, config, &store, &key, err) < 0)
        return -1;
    if (sl_store_list_begin(store, listing->path, take, listing, &why) < 0 &&
        why.kind != SL_E_NOT_FOUND) {
        *err = why;
        return -1;
    }
    if (why.kind == SL_E_NOT_FOUND && *why.code) { /* the bucket itself is missing */
        *err = why;
        return -1;
    }
    return listing->choice->objects.count ? 0 : found_none(listing, uri, err);
}

int sl_choose(const char *uri, const struct sl_source_config *config, bool strict,
              const struct sl_patterns *patterns, struct sl_choice *choice, struct sl_err *err)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    bool flat = kind && !kind->traits.folders; /* names below a bucket may begin with the path */
    const char *place = flat ? strstr(uri, "://") + 3 : uri;
    size_t root_bytes = flat ? (size_t)(place - uri) + strcspn(place, "/") : strlen(uri);
    const char *path = uri + root_bytes;
    path += strspn(path, "/");
    sl_autofree char *root = sl_asprintf(err, "%.*s%s", (int)root_bytes, uri, flat ? "/" : "");
    if (!root)
        return -1;
    struct listing listing = {.choice = choice,
                              .patterns = patterns,
                              .path = path,
                              .path_bytes = strlen(path),
                              .strict = strict,
                              .local = !flat};
    if (list(&listing, root, uri, config, err) < 0 || settle_base(&listing, root, err) < 0)
        return -1;
    return judge_cut_names(choice, err);
}
