/*
 * From the store to the path:
 *
 *     latest.json ──judge──▶ blob ──size, SHA-256──▶ file ──untar──▶ staging ──rename──▶ path
 *
 * Whatever goes wrong leaves an empty folder, with which the engine starts cold.
 */
#include <inttypes.h>

#include "deadline.h"
#include "log.h"
#include "metrics.h"
#include "sets_parts.h"
#include "unpack.h"

struct restoring {
    const struct sl_spec *spec;
    struct sl_sets_folder *folder;
    struct sl_sets_result *result;
};

const char *sl_sets_outcome_name(enum sl_sets_outcome outcome)
{
    static const char *const names[] = {
        [SL_SETS_RESTORED] = "restored", [SL_SETS_KEPT] = "kept",
        [SL_SETS_MISSED] = "missed",     [SL_SETS_REFUSED] = "refused",
        [SL_SETS_NO_PLACE] = "no place",
    };
    return names[outcome];
}

static int unpack(const struct restoring *restoring, int fd, uint64_t bytes,
                  struct sl_cancel *cancel, struct sl_err *err)
{
    struct sl_sets_folder *folder = restoring->folder;
    if (sl_sets_folder_stage(folder, err) < 0)
        return -1;
    SL_AUTO(sl_unpack) tree = sl_unpack_new(folder->staging, folder->path, bytes, cancel, err);
    if (!tree)
        return -1;
    sl_unpack_keep_times(tree);
    if (sl_untar(fd, bytes, tree, err) < 0 || sl_unpack_finish(tree, err) < 0)
        return -1;
    restoring->result->bytes = sl_unpack_bytes(tree);
    return 0;
}

/* Files keep the times of the machine that saved them, whose clock may be ahead: what is later than
 * all of them the engine wrote. */
static int note_newest(const struct sl_sets_folder *folder, struct sl_sets_result *result,
                       struct sl_cancel *cancel, struct sl_err *err)
{
    struct sl_sets_count count;
    if (sl_sets_count(folder->staging, INT64_MAX, cancel, &count, err) < 0)
        return -1;
    result->newest_ns = count.newest_file_ns;
    result->files = count.files; /* with links, as the saver counts */
    return 0;
}

static int fetch(const struct restoring *restoring, struct sl_store *store,
                 const struct sl_sets_name *name, struct sl_cancel *cancel, struct sl_err *err)
{
    sl_autoclose int fd = sl_sets_folder_file(restoring->folder, err);
    if (fd < 0 || sl_sets_store_fetch(store, name, fd, err) < 0)
        return -1;
    restoring->result->packed_bytes = name->bytes;
    return unpack(restoring, fd, name->bytes, cancel, err) < 0
               ? -1
               : note_newest(restoring->folder, restoring->result, cancel, err);
}

/* sl_deadline_run()'s work: the outcome is set where it is not a failure. */
static int restore(void *arg, struct sl_cancel *cancel, struct sl_err *err)
{
    const struct restoring *restoring = arg;
    struct sl_sets_result *result = restoring->result;
    struct sl_source_config config;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO_NAME name = {.bytes = 0};
    sl_sets_source_config(restoring->spec, cancel, &config);
    if (sl_sets_store_open(restoring->spec, &config, &store, err) < 0)
        return -1;
    if (sl_sets_store_name(store, result->key, &name, err) < 0) {
        if (err->kind != SL_E_NOT_FOUND)
            return -1;
        result->outcome = SL_SETS_MISSED;
        return 0;
    }
    if (sl_sets_name_judge(&name, &restoring->spec->sink.caches, result->key, err) < 0 ||
        fetch(restoring, store, &name, cancel, err) < 0)
        return -1;
    int meanwhile = sl_sets_folder_publish(restoring->folder, err);
    if (meanwhile >= 0)
        result->outcome = meanwhile ? SL_SETS_KEPT : SL_SETS_RESTORED;
    return meanwhile < 0 ? -1 : 0;
}

static void restore_into(const struct sl_spec *spec, struct sl_cancel *cancel,
                         struct sl_sets_folder *folder, struct sl_sets_result *result)
{
    struct sl_sets_machine machine;
    sl_autobuf facts = SL_BUF_INIT(SL_SETS_NAME_BYTES_MAX);
    struct restoring restoring = {spec, folder, result};
    uint64_t seconds = spec->sink.caches.restore_seconds;
    result->outcome = SL_SETS_REFUSED;
    sl_sets_look(&machine);
    if (sl_sets_key(spec, &machine, &facts, result->key, &result->why) < 0)
        return;
    if (sl_sets_folder_is_used(folder)) {
        result->outcome = SL_SETS_KEPT;
        return;
    }
    if (sl_deadline_run(seconds, cancel, restore, &restoring, &result->why) < 0 &&
        result->why.kind == SL_E_TIMEOUT)
        sl_fail(&result->why, SL_E_TIMEOUT, "it took longer than 'restoreSeconds' (%" PRIu64 " s)",
                seconds);
    sl_sets_folder_clear(folder); /* of a set that is in its place nothing is staged any more */
}

static void count(const struct sl_sets_result *result)
{
    bool restored = result->outcome == SL_SETS_RESTORED;
    bool refused = result->outcome == SL_SETS_REFUSED || result->outcome == SL_SETS_NO_PLACE;
    sl_metric_add(SL_M_SETS_RESTORED, restored);
    sl_metric_add(SL_M_SETS_MISSED, result->outcome == SL_SETS_MISSED);
    sl_metric_add(SL_M_SETS_REFUSED, refused);
    if (!restored)
        return;
    sl_metric_add(SL_M_SETS_BYTES, (int64_t)result->bytes);
    sl_metric_observe(SL_M_SETS_SECONDS, result->seconds);
}

static void log_end(const struct sl_spec *spec, const struct sl_sets_result *result)
{
    const char *path = spec->sink.caches.path;
    if (result->why.kind == SL_E_CANCELED) /* no engine starts */
        return;
    char bytes[32], packed[32], files[40];
    switch (result->outcome) {
    case SL_SETS_RESTORED:
        sl_log(SL_LOG_INFO, "engine caches: restored %s, %s (%s packed), to '%s' in %.2f s",
               sl_human_count(result->files, "file", files), sl_human_bytes(result->bytes, bytes),
               sl_human_bytes(result->packed_bytes, packed), path, result->seconds);
        break;
    case SL_SETS_KEPT:
        sl_log(SL_LOG_INFO, "engine caches: '%s' has files already, which stay", path);
        break;
    case SL_SETS_MISSED:
        sl_log(SL_LOG_INFO, "engine caches: the store has no set %.16s yet, the engine starts cold",
               result->key);
        break;
    case SL_SETS_REFUSED:
        sl_log(SL_LOG_WARN, "engine caches: the set %.16s is not used, the engine starts cold: %s",
               result->key, result->why.message);
        break;
    case SL_SETS_NO_PLACE:
        sl_log(SL_LOG_WARN, "engine caches: not used, the engine starts cold: %s",
               result->why.message);
        break;
    }
}

void sl_sets_restore(const struct sl_spec *spec, struct sl_cancel *cancel,
                     struct sl_sets_result *result)
{
    SL_AUTO_FOLDER folder;
    uint64_t began = sl_now_ns();
    *result = (struct sl_sets_result){.outcome = SL_SETS_NO_PLACE};
    if (sl_sets_folder_open(&folder, spec->sink.caches.path, &result->why) == 0)
        restore_into(spec, cancel, &folder, result);
    result->seconds = (double)(sl_now_ns() - began) / (double)SL_NS_PER_S;
    count(result);
    log_end(spec, result);
}

void sl_sets_result_json(struct sl_json *json, const struct sl_sets_result *result)
{
    sl_json_key_string(json, "outcome", sl_sets_outcome_name(result->outcome));
    sl_json_key_string(json, "key", result->key);
    sl_json_key_uint(json, "files", result->files);
    sl_json_key_uint(json, "bytes", result->bytes);
    sl_json_key_uint(json, "packed_bytes", result->packed_bytes);
    sl_json_key_double(json, "seconds", result->seconds);
    if (result->why.kind)
        sl_json_key_string(json, "message", result->why.message);
}
