/*
 * From the path to the store: the blob first, which nobody knows yet, then its name, if there is
 * none (If-None-Match). Of many pods that save the same set one writes the name; the others find it
 * there before they pack anything, or at the end.
 */
#include <string.h>
#include <unistd.h>

#include "metrics.h"
#include "sets_parts.h"

struct saving {
    const struct sl_spec *spec;
    bool replace;
    struct sl_source_config config;
    struct sl_sets_saved *saved;
    char *facts; /* of the key */
};

/* A set that nobody would use is in the way until it is replaced. */
static int look(struct saving *saving, struct sl_err *err)
{
    struct sl_sets_saved *saved = saving->saved;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO_NAME name = {.bytes = 0};
    struct sl_err why = SL_ERR_INIT;
    if (sl_sets_store_open(saving->spec, &saving->config, &store, err) < 0)
        return -1;
    if (sl_sets_store_name(store, saved->key, &name, &why) == 0)
        saved->there = sl_sets_name_judge(&name, &saving->spec->sink.caches, saved->key, &why) == 0;
    else if (why.kind == SL_E_NOT_FOUND)
        return 0;
    if (saved->there)
        return 0;
    *err = why;
    if (why.kind != SL_E_FORMAT && why.kind != SL_E_INTEGRITY) /* nothing is known of the set */
        return -1;
    return sl_wrap(err,
                   "the store's set %.16s is not used, and only 'sluice caches save --replace' "
                   "replaces it",
                   saved->key);
}

/* By a key that the spec does not trust nobody would use it. */
static int sign(const struct saving *saving, struct sl_sets_name *name, struct sl_err *err)
{
    const struct sl_spec_sets *sets = &saving->spec->sink.caches;
    if (sl_sets_name_sign(name, sets, err) < 0)
        return -1;
    return sl_sets_name_judge(name, sets, name->key, err) < 0
               ? sl_wrap(err, "'secretKeyFile' and the public key of 'sink.caches' are not a pair")
               : 0;
}

static int save_as_named(struct saving *saving, int fd, struct sl_err *err)
{
    struct sl_sets_saved *saved = saving->saved;
    SL_AUTO_NAME name = {.bytes = saved->packed_bytes,
                         .files = saved->files,
                         .created_seconds = (uint64_t)sl_wall_seconds(),
                         .facts = sl_strdup(saving->facts, err)};
    struct sl_err why = SL_ERR_INIT;
    memcpy(name.key, saved->key, sizeof(name.key));
    memcpy(name.sha256, saved->sha256, sizeof(name.sha256));
    if (!name.facts || sign(saving, &name, err) < 0 ||
        sl_sets_store_put_blob(saving->spec, &saving->config, &name, fd, saving->replace, err) < 0)
        return -1;
    if (sl_sets_store_put_name(saving->spec, &saving->config, &name, saving->replace, &why) == 0) {
        sl_metric_add(SL_M_SETS_SAVED, 1);
        return 0;
    }
    saved->lost = strcmp(why.code, "exists") == 0;
    if (saved->lost)
        return 0;
    *err = why;
    return -1;
}

static int pack_and_send(struct saving *saving, struct sl_err *err)
{
    SL_AUTO_FOLDER folder;
    if (sl_sets_folder_open(&folder, saving->spec->sink.caches.path, err) < 0)
        return -1;
    sl_autoclose int fd = sl_sets_folder_file(&folder, err);
    if (fd < 0 || sl_sets_pack(folder.fd, fd, saving->config.cancel, saving->saved, err) < 0)
        return -1;
    return save_as_named(saving, fd, err);
}

int sl_sets_save(const struct sl_spec *spec, bool replace, struct sl_cancel *cancel,
                 struct sl_sets_saved *saved, struct sl_err *err)
{
    struct sl_sets_machine machine;
    sl_autobuf facts = SL_BUF_INIT(SL_SETS_NAME_BYTES_MAX);
    struct saving saving = {.spec = spec, .replace = replace, .saved = saved};
    *saved = (struct sl_sets_saved){.there = false};
    if (!spec->sink.caches.save)
        return sl_fail(err, SL_E_USAGE,
                       "'sink.caches' says nothing of saving: write 'save: true' in it");
    sl_sets_look(&machine);
    if (sl_sets_key(spec, &machine, &facts, saved->key, err) < 0)
        return -1;
    saving.facts = facts.data;
    sl_sets_source_config(spec, cancel, &saving.config);
    if (!replace && look(&saving, err) < 0)
        return -1;
    return saved->there ? 0 : pack_and_send(&saving, err);
}
