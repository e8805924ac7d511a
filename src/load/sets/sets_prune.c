/*
 * What no set names any more, and sets that are too old. Blobs are listed before names are read: of
 * a set that is saved meanwhile the blob is not in the list, or its name is seen. Between a blob
 * and its name a saver has a moment in which the blob would go, so nobody should save meanwhile.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "removal.h"
#include "sets_parts.h"

enum { BLOBS_MAX = 100000, SECONDS_A_DAY = 86400 };
static const char BEGIN[] = "blobs/", END[] = ".tar.zst";

struct blob {
    char sha256[65];
    uint64_t bytes;
    bool named;
};
struct pruning {
    const struct sl_spec *spec;
    const struct sl_sets_prune *how;
    struct sl_source_config config;
    struct blob *blobs;
    size_t count, capacity;
};
#define AUTO_PRUNING __attribute__((cleanup(release))) struct pruning

static void release(struct pruning *pruning)
{
    free(pruning->blobs);
}

/* blobs/SHA256.tar.zst, and nothing else. */
static int take_blob(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct pruning *pruning = arg;
    const char *sha256 = entry->name + strlen(BEGIN);
    if (strncmp(entry->name, BEGIN, strlen(BEGIN)) != 0 ||
        strspn(sha256, "0123456789abcdef") != 64 || strcmp(sha256 + 64, END) != 0)
        return 0;
    if (pruning->count == BLOBS_MAX)
        return sl_fail(err, SL_E_USAGE, "more than %d blobs", BLOBS_MAX);
    if (sl_grow(&pruning->blobs, &pruning->capacity, pruning->count + 1, sizeof(*pruning->blobs),
                err) < 0)
        return -1;
    struct blob *blob = &pruning->blobs[pruning->count++];
    *blob = (struct blob){.bytes = entry->bytes};
    snprintf(blob->sha256, sizeof(blob->sha256), "%.64s", sha256);
    return 0;
}

static int list_blobs(struct pruning *pruning, struct sl_err *err)
{
    SL_AUTO(sl_store) store = NULL;
    struct sl_err why = SL_ERR_INIT;
    if (sl_sets_store_open(pruning->spec, &pruning->config, &store, err) < 0)
        return -1;
    if (sl_store_list_begin(store, BEGIN, take_blob, pruning, &why) == 0 ||
        why.kind == SL_E_NOT_FOUND)
        return 0;
    *err = why;
    return -1;
}

static int drop(const struct pruning *pruning, const char *name, uint64_t bytes, const char *why,
                struct sl_err *err)
{
    const struct sl_sets_prune *how = pruning->how;
    sl_autofree char *uri = sl_asprintf(err, "%s%s", pruning->spec->sink.caches.url, name);
    if (!uri || (how->remove && sl_removal_of(uri, &pruning->config, err) < 0))
        return -1;
    return how->each(how->arg, name, bytes, why, err);
}

/* A set whose latest.json cannot be read keeps nothing, and stays. */
static int take_set(const struct sl_sets_entry *entry, void *arg, struct sl_err *err)
{
    struct pruning *pruning = arg;
    char name[160];
    int64_t age = sl_wall_seconds() - entry->created_seconds;
    bool old = pruning->how->older_days && entry->created_seconds > 0 &&
               age > (int64_t)pruning->how->older_days * SECONDS_A_DAY;
    if (old) {
        snprintf(name, sizeof(name), "sets/%.64s/latest.json", entry->key);
        return drop(pruning, name, 0, "older than that", err);
    }
    for (size_t i = 0; i < pruning->count; i++)
        pruning->blobs[i].named |= strcmp(pruning->blobs[i].sha256, entry->sha256) == 0;
    return 0;
}

int sl_sets_prune(const struct sl_spec *spec, const struct sl_sets_prune *how,
                  struct sl_cancel *cancel, struct sl_err *err)
{
    AUTO_PRUNING pruning = {.spec = spec, .how = how};
    char name[160];
    sl_sets_source_config(spec, cancel, &pruning.config);
    if (list_blobs(&pruning, err) < 0 || sl_sets_list(spec, cancel, take_set, &pruning, err) < 0)
        return -1;
    for (size_t i = 0; i < pruning.count; i++) {
        const struct blob *blob = &pruning.blobs[i];
        snprintf(name, sizeof(name), "%s%s%s", BEGIN, blob->sha256, END);
        if (!blob->named && drop(&pruning, name, blob->bytes, "no set names it", err) < 0)
            return -1;
    }
    return 0;
}
