/* From what a volume asks for to a model that the registry knows. */
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "log.h"
#include "progress.h"
#include "uri_text.h"
#include "volumes_parts.h"

enum { TITLE_BYTES = 200 }; /* what a model is called to people */

static void put(struct sl_sha256 *sha, const char *text)
{
    text = text ? text : "";
    sl_sha256_update(sha, text, strlen(text) + 1);
}

int volumes_digest(const struct sl_volume_request *request, const struct sl_volume_ask *ask,
                   uint8_t digest[SL_VOLUME_DIGEST], struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    put(sha, request->model);
    put(sha, request->uri);
    put(sha, request->pool ? "pool" : "");
    put(sha, request->pod_namespace);
    put(sha, request->pod_uid);
    put(sha, request->account);
    put(sha, ask->mount_group);
    sl_sha256_finish(sha, digest);
    return 0;
}

/* ---- named models --------------------------------------------------------------------------- */

static int resolve_name(struct sl_volumes *volumes, const char *name, struct sl_err *err)
{
    struct sl_registry_meaning meaning;
    if (!sl_registry_meaning(volumes->node->registry, name, &meaning) || !meaning.of_config)
        return sl_fail(err, SL_E_NOT_FOUND,
                       "the config of this node has no model '%s': add it there, or check the "
                       "volume's attribute",
                       name);
    if (!meaning.holder || strcmp(meaning.holder, "directory") != 0)
        return sl_fail(err, SL_E_USAGE,
                       "the model '%s' is in the pool and has no files to mount: use the volume "
                       "attribute 'pool', or remove sink.pool from its spec",
                       name);
    return 0;
}

/* ---- models by URI -------------------------------------------------------------------------- */

static int note_credentials(struct sl_volumes *volumes, const char *name, struct sl_err *err)
{
    for (size_t i = 0; i < volumes->locked.credentials.count; i++)
        if (strcmp(volumes->locked.credentials.items[i], name) == 0)
            return 0;
    return sl_list_add(&volumes->locked.credentials, name, strlen(name), err);
}

/* Of one load alone: first noted, so that they are wiped whatever comes. */
static int keep_credentials(struct sl_volumes *volumes, struct volume *volume, const char *name,
                            const struct sl_volume_grant *grant, struct sl_err *err)
{
    VOLUMES_LOCKED(volumes);
    snprintf(volume->record.model, sizeof(volume->record.model), "%s", name);
    volume->has_credentials = grant->has_credentials;
    if (!grant->has_credentials)
        return 0;
    if (note_credentials(volumes, name, err) < 0)
        return -1;
    return sl_caller_credentials_keep(name, &grant->credentials, err);
}

static int resolve_uri(struct sl_volumes *volumes, const struct sl_volume_request *request,
                       const struct sl_volume_grant *grant, struct volume *volume,
                       struct sl_err *err)
{
    char name[SL_NODE_URI_NAME];
    const struct sl_node_files_options files = {.uri = request->uri,
                                                .prefix_bytes = grant->prefix_bytes,
                                                .sharing = grant->sharing,
                                                .name_space = volume->record.pod_namespace,
                                                .has_credentials = grant->has_credentials};
    if (sl_node_define_files(volumes->node, &files, name, err) < 0)
        return -1;
    return keep_credentials(volumes, volume, name, grant, err);
}

int volumes_resolve(struct sl_volumes *volumes, const struct sl_volume_request *request,
                    const struct sl_volume_ask *ask, struct volume *volume, struct sl_err *err)
{
    struct sl_volume_grant grant;
    {
        VOLUMES_LOCKED(volumes);
        if (sl_volume_rights_grant(&volumes->locked.rights, request, ask->secrets,
                                   ask->secret_count, volumes->salt, &grant, err) < 0)
            return -1;
    }
    int done = 0;
    if (request->model) {
        done = resolve_name(volumes, request->model, err);
        snprintf(volume->record.model, sizeof(volume->record.model), "%s", request->model);
    } else if (request->uri) {
        done = resolve_uri(volumes, request, &grant, volume, err);
    }
    sl_caller_credentials_release(&grant.credentials);
    return done;
}

/* With the lock held: does a publish or a load still need them? */
static bool is_needed(struct sl_volumes *volumes, const char *name)
{
    struct sl_registry_meaning meaning;
    for (const struct volume *at = volumes->locked.volumes; at; at = at->next)
        if (at->has_credentials && strcmp(at->record.model, name) == 0)
            return true;
    return sl_registry_meaning(volumes->node->registry, name, &meaning) && meaning.busy;
}

void volumes_drop_credentials(struct sl_volumes *volumes)
{
    VOLUMES_LOCKED(volumes);
    struct sl_list *names = &volumes->locked.credentials;
    for (size_t i = 0; i < names->count;) {
        if (is_needed(volumes, names->items[i])) {
            i++;
            continue;
        }
        sl_caller_credentials_drop(names->items[i]);
        free(names->items[i]);
        names->items[i] = names->items[--names->count];
    }
}

/* ---- a load that goes on -------------------------------------------------------------------- */

struct latest {
    const char *name;
    bool found;
    struct sl_progress_view view;
};

static void take_latest(const struct sl_progress_view *view, void *arg)
{
    struct latest *latest = arg;
    if (strcmp(view->name, latest->name) != 0 || view->state >= SL_LOAD_PUBLISHED)
        return;
    latest->found = true;
    latest->view = *view;
}

int volumes_fail_loading(const char *model, const char *title, struct sl_err *err)
{
    struct latest latest = {.name = model};
    char there[32], total[32], rate[32], left[48] = "";
    sl_progress_each(take_latest, &latest);
    const struct sl_progress_view *view = &latest.view;
    const char *trouble = latest.found ? view->trouble : "";
    if (*trouble)
        sl_log(SL_LOG_WARN, "a volume waits for model %s: %s", title, trouble);
    if (!latest.found || !view->bytes_total) {
        sl_fail_code(err, SL_E_TIMEOUT, "aborted",
                     "model %s: its load has not started to read yet%s%s", title,
                     *trouble ? ": " : "", trouble);
    } else {
        uint64_t done = SL_MIN(view->bytes_done, view->bytes_total);
        if (view->seconds_left >= 0)
            snprintf(left, sizeof(left), ", %.0f s left", view->seconds_left);
        if (*trouble)
            snprintf(left, sizeof(left), ": ");
        /* without a per cent sign: the kubelet takes the text of an event for a format */
        sl_fail_code(err, SL_E_TIMEOUT, "aborted", "model %s: %s of %s, %s/s%s%s", title,
                     sl_human_bytes(done, there), sl_human_bytes(view->bytes_total, total),
                     sl_human_bytes((uint64_t)view->bytes_per_second, rate), left, trouble);
    }
    if (err)
        err->retryable = true;
    return -1;
}

/* ---- waiting for it -------------------------------------------------------------------------- */

/* May it wait for its model? So that some of the threads that call are always left. */
static bool may_wait(struct sl_volumes *volumes, struct volume *volume)
{
    unsigned all = 0, own = 0;
    VOLUMES_LOCKED(volumes);
    for (const struct volume *at = volumes->locked.volumes; at; at = at->next) {
        all += at->state == VOLUME_WAITS;
        own += at->state == VOLUME_WAITS &&
               strcmp(at->record.pod_namespace, volume->record.pod_namespace) == 0;
    }
    if (all >= SL_VOLUMES_WAITS_MAX || own >= SL_VOLUMES_WAITS_SHARE)
        return false;
    volumes_set(volume, VOLUME_WAITS);
    return true;
}

static void end_wait(struct sl_volumes *volumes, struct volume *volume)
{
    VOLUMES_LOCKED(volumes);
    volumes_set(volume, VOLUME_ASKED);
}

static int fail_waits(const struct volume *volume, const char *title, struct sl_err *err)
{
    sl_fail_code(
        err, SL_E_TIMEOUT, "aborted",
        "model %s is being loaded, and %d volumes of namespace '%.63s', or %d of all, wait "
        "for models already: ask again",
        title, SL_VOLUMES_WAITS_SHARE, volume->record.pod_namespace, SL_VOLUMES_WAITS_MAX);
    if (err)
        err->retryable = true;
    return -1;
}

int volumes_hold(struct sl_volumes *volumes, struct volume *volume, const char *uri,
                 uint64_t until_ns, struct sl_cancel *cancel, struct sl_err *err)
{
    char who[SL_REF_WHO_BYTES], sharer[SL_SHARER_BYTES], title[TITLE_BYTES];
    struct sl_err why = SL_ERR_INIT;
    snprintf(title, sizeof(title), "%s", uri ? uri : volume->record.model);
    sl_uri_hide(title, sizeof(title));
    volumes_who(&volume->record, who);
    bool waits = may_wait(volumes, volume);
    volume->ref =
        sl_registry_wait_until(volumes->node->registry, volume->record.model, SL_REF_VOLUME, who,
                               sl_node_sharer_of_namespace(volume->record.pod_namespace, sharer),
                               waits ? until_ns : 0, cancel, &why);
    if (waits)
        end_wait(volumes, volume);
    if (volume->ref) {
        snprintf(volume->record.version, sizeof(volume->record.version), "%s",
                 sl_model_ref_version(volume->ref));
        return 0;
    }
    if (why.kind == SL_E_TIMEOUT && strcmp(why.code, "waiting") == 0 && !waits)
        return fail_waits(volume, title, err);
    if (why.kind == SL_E_TIMEOUT && strcmp(why.code, "waiting") == 0)
        return volumes_fail_loading(volume->record.model, title, err);
    sl_wrap(&why, "model %s", title);
    if (err)
        *err = why;
    return -1;
}
