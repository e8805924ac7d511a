/* The names below PREFIX/sets/, each read and judged. */
#include <stdio.h>
#include <string.h>

#include "sets_parts.h"

enum { LISTED_MAX = 100000 };
static const char BEGIN[] = "sets/", END[] = "/latest.json";

struct keys {
    char (*items)[SL_SETS_KEY_BYTES];
    size_t count, capacity;
};

/* sets/KEY/latest.json, and nothing else. */
static int take(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct keys *keys = arg;
    const char *key = entry->name + strlen(BEGIN);
    if (strncmp(entry->name, BEGIN, strlen(BEGIN)) != 0 ||
        strspn(key, "0123456789abcdef") != SL_SETS_KEY_BYTES - 1 ||
        strcmp(key + SL_SETS_KEY_BYTES - 1, END) != 0)
        return 0;
    if (keys->count == LISTED_MAX)
        return sl_fail(err, SL_E_USAGE, "more than %d sets", LISTED_MAX);
    if (sl_grow(&keys->items, &keys->capacity, keys->count + 1, sizeof(*keys->items), err) < 0)
        return -1;
    snprintf(keys->items[keys->count++], SL_SETS_KEY_BYTES, "%.64s", key);
    return 0;
}

struct listing {
    const struct sl_spec *spec;
    struct sl_store *store;
    char own[SL_SETS_KEY_BYTES];
    int (*each)(const struct sl_sets_entry *entry, void *arg, struct sl_err *err);
    void *arg;
};

static int show(const struct listing *listing, const char *key, struct sl_err *err)
{
    SL_AUTO_NAME name = {.bytes = 0};
    struct sl_err why = SL_ERR_INIT;
    if (sl_sets_store_name(listing->store, key, &name, &why) < 0 && why.kind != SL_E_FORMAT) {
        if (why.kind == SL_E_NOT_FOUND) /* it went meanwhile */
            return 0;
        *err = why;
        return -1;
    }
    if (!why.kind)
        sl_sets_name_judge(&name, &listing->spec->sink.caches, key, &why);
    const struct sl_sets_entry entry = {
        .key = key,
        .sha256 = name.sha256,
        .facts = name.facts ? name.facts : "{}",
        .bytes = name.bytes,
        .files = name.files,
        .created_seconds = (int64_t)name.created_seconds,
        .own = strcmp(key, listing->own) == 0,
        .bad = why.kind ? why.message : NULL,
    };
    return listing->each(&entry, listing->arg, err);
}

int sl_sets_list(const struct sl_spec *spec, struct sl_cancel *cancel,
                 int (*each)(const struct sl_sets_entry *entry, void *arg, struct sl_err *err),
                 void *arg, struct sl_err *err)
{
    struct sl_source_config config;
    struct sl_sets_machine machine;
    struct listing listing = {.spec = spec, .each = each, .arg = arg};
    struct keys keys = {.count = 0};
    sl_autobuf facts = SL_BUF_INIT(SL_SETS_NAME_BYTES_MAX);
    SL_AUTO(sl_store) store = NULL;
    sl_sets_look(&machine);
    sl_sets_source_config(spec, cancel, &config);
    if (sl_sets_key(spec, &machine, &facts, listing.own, err) < 0 ||
        sl_sets_store_open(spec, &config, &store, err) < 0)
        return -1;
    listing.store = store;
    struct sl_err why = SL_ERR_INIT;
    int done = sl_store_list_begin(store, BEGIN, take, &keys, &why);
    if (done < 0 && why.kind == SL_E_NOT_FOUND)
        done = 0; /* nothing was saved yet */
    else if (done < 0)
        *err = why;
    for (size_t i = 0; i < keys.count && done == 0; i++)
        done = show(&listing, keys.items[i], err);
    free(keys.items);
    return done;
}
