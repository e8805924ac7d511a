/*
 * What the registry shows: gauges, updated after every change as differences, and JSON, written
 * with the lock held into a buffer with a limit.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "metrics.h"
#include "peer.h"
#include "registry_parts.h"

enum { REFS_SHOWN_MAX = 64, REASON_BYTES = 1024, LEFT_TEXT_BYTES = 600 };

static const char *const kind_names[SL_REF_KIND_COUNT] = {"caller", "lease", "directory", "volume"};
static const char *const state_names[] = {"loading", "ready",   "partial",
                                          "failed",  "leaving", "leaving"};

static const char *state_name(const struct model *model)
{
    if (model->current)
        return "ready";
    if (registry_is_running(model) || registry_follows(model))
        return "loading";
    if (registry_is_queued(model))
        return "queued";
    return model->err.kind ? "failed" : "absent";
}

/* ---- counts --------------------------------------------------------------------------------- */

static void count_model(const struct model *model, struct sl_registry_counts *counts)
{
    counts->models++;
    counts->ready += model->current != NULL;
    counts->loading += registry_is_running(model) || registry_follows(model);
    counts->queued += registry_is_queued(model);
    counts->failed += model->err.kind != SL_OK;
    counts->pinned += registry_pinned(model);
    for (const struct resident *at = model->residents; at; at = at->next) {
        counts->residents++;
        counts->partial += at->state == RESIDENT_PARTIAL;
        counts->references += at->ref_count;
    }
}

static void count_all(struct sl_registry *registry, struct sl_registry_counts *counts)
{
    const struct sl_registry_counts *ever = &registry->locked.counts;
    *counts = (struct sl_registry_counts){.held_bytes = registry_held(registry, SL_SPACE_HOST),
                                          .left_bytes = registry_left(registry, SL_SPACE_HOST),
                                          .budget_bytes = registry->locked.budgets[SL_SPACE_HOST],
                                          .loads = ever->loads,
                                          .joined = ever->joined,
                                          .evictions = ever->evictions,
                                          .refusals = ever->refusals};
    for (struct model *model = registry->locked.models; model; model = model->next)
        count_model(model, counts);
}

void sl_registry_counts(struct sl_registry *registry, struct sl_registry_counts *counts)
{
    REGISTRY_LOCKED(registry);
    count_all(registry, counts);
}

void registry_update_gauges(struct sl_registry *registry)
{
    static const struct {
        enum sl_metric metric;
        size_t offset;
    } gauges[] = {
#define GAUGE(metric, member) {SL_M_NODE_##metric, offsetof(struct sl_registry_counts, member)}
        GAUGE(MODELS, models),
        GAUGE(READY, ready),
        GAUGE(LOADING, loading),
        GAUGE(QUEUED, queued),
        GAUGE(FAILED, failed),
        GAUGE(PINNED, pinned),
        GAUGE(HELD_BYTES, held_bytes),
        GAUGE(LEFT_BYTES, left_bytes),
        GAUGE(BUDGET_BYTES, budget_bytes),
        GAUGE(REFERENCES, references),
        GAUGE(LOADS, loads),
        GAUGE(JOINED, joined),
        GAUGE(EVICTIONS, evictions),
        GAUGE(REFUSALS, refusals),
#undef GAUGE
    };
    struct sl_registry_counts now;
    count_all(registry, &now);
    for (size_t i = 0; i < SL_COUNT(gauges); i++) {
        uint64_t new, old;
        memcpy(&new, (const char *)&now + gauges[i].offset, sizeof(new));
        memcpy(&old, (const char *)&registry->locked.shown + gauges[i].offset, sizeof(old));
        if (new != old)
            sl_metric_add(gauges[i].metric, (int64_t)(new - old));
    }
    registry->locked.shown = now;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

bool registry_is_public(const struct model *model)
{
    return model->box && !model->of_volume;
}

static bool is_shown(const struct model *model, bool all)
{
    return all || registry_is_public(model);
}

static double seconds_since(uint64_t then_ns)
{
    return (double)(sl_now_ns() - then_ns) / (double)SL_NS_PER_S;
}

static void write_refs(struct sl_json *json, const struct resident *resident, bool all)
{
    unsigned shown = 0;
    sl_json_key_uint(json, "reference_count", resident->ref_count);
    sl_json_key(json, "references");
    sl_json_array(json);
    for (const struct sl_model_ref *ref = resident->refs; ref && shown++ < REFS_SHOWN_MAX;
         ref = ref->next) {
        sl_json_object(json);
        sl_json_key_string(json, "kind", kind_names[ref->kind]);
        if (all || ref->kind != SL_REF_VOLUME)
            sl_json_key_string(json, "who", ref->who);
        sl_json_key_double(json, "age_seconds", seconds_since(ref->since_ns));
        sl_json_end(json);
    }
    sl_json_end(json);
}

/* Whose memory it is, too. */
static void write_shared(struct sl_json *json, const struct resident *resident, bool all)
{
    if (!registry_is_shared(resident))
        return;
    sl_json_key(json, "shared_with");
    sl_json_array(json);
    for (const struct resident *at = resident->share_next; at != resident; at = at->share_next)
        if (is_shown(at->model, all))
            sl_json_string(json, at->model->name);
    sl_json_end(json);
}

static void write_resident(struct sl_json *json, const struct sl_registry *registry,
                           const struct resident *resident, bool all)
{
    unsigned copies = registry_copies(registry, resident);
    char path[SL_PUBLISH_PATH_MAX] = "";
    char device[16];
    const struct sl_holder *holder = resident->holder;
    if (holder->where)
        holder->where(holder->self, resident->model->name, resident->version, path);
    sl_json_object(json);
    sl_json_key_string(json, "version", resident->version);
    if (resident->key)
        sl_json_key_string(json, "key", resident->key);
    if (resident->key)
        sl_json_key_uint(json, "owner", sl_peer_user_uid(resident->owner));
    sl_json_key_string(json, "state", state_names[resident->state]);
    sl_json_key_bool(json, "current", resident->model->current == resident);
    sl_json_key_uint(json, "bytes", copies * resident->bytes);
    sl_json_key_string(json, "holder", holder->name);
    sl_json_key_string(json, "device", sl_placement_name(holder->placement, device));
    if (sl_placement_count(holder->placement) > 1)
        sl_json_key_uint(json, "copies", copies);
    if (*path)
        sl_json_key_string(json, "path", path);
    if (*resident->signed_by.by)
        sl_signed_by_json(json, &resident->signed_by);
    write_shared(json, resident, all);
    sl_json_key_double(json, "idle_seconds",
                       resident->ref_count ? 0 : seconds_since(resident->used_ns));
    write_refs(json, resident, all);
    sl_json_end(json);
}

static void write_left(struct sl_json *json, const struct sl_registry *registry)
{
    char device[16];
    sl_json_key(json, "left");
    sl_json_array(json);
    for (const struct left *at = registry->locked.left; at; at = at->next) {
        sl_json_object(json);
        sl_json_key_string(json, "name", at->name);
        sl_json_key_string(json, "version", at->version);
        sl_json_key_bool(json, "derived", at->derived);
        sl_json_key_string(json, "device", sl_placement_name(at->holder->placement, device));
        sl_json_key_uint(json, "bytes", at->bytes);
        sl_json_key_double(json, "seconds", seconds_since(at->since_ns));
        sl_json_key(json, "had");
        sl_json_array(json);
        for (unsigned i = 0; i < HAD_MAX && i < at->had.count; i++)
            sl_json_string(json, at->had.who[i]);
        sl_json_end(json);
        sl_json_end(json);
    }
    sl_json_end(json);
}

static void write_error(struct sl_json *json, const struct model *model)
{
    uint64_t now = sl_now_ns();
    sl_json_key(json, "error");
    sl_json_object(json);
    sl_json_key_string(json, "kind", sl_err_row(model->err.kind)->name);
    sl_json_key_string(json, "code", model->err.code);
    sl_json_key_string(json, "message", model->err.message);
    sl_json_key_uint(json, "tries", model->failures);
    sl_json_key_double(json, "since_seconds", seconds_since(model->failing_since_ns));
    if (model->wanted)
        sl_json_key_double(json, "retry_in_seconds",
                           model->retry_ns > now ? (double)(model->retry_ns - now) / 1e9 : 0);
    sl_json_end(json);
}

static void write_model(struct sl_json *json, const struct sl_registry *registry,
                        const struct model *model, bool all)
{
    uint64_t waiting = 0, bytes = 0;
    for (const struct waiter *at = model->waiters; at; at = at->next)
        waiting++;
    for (const struct resident *at = model->residents; at; at = at->next)
        bytes += registry_copies(registry, at) * at->bytes;
    sl_json_object(json);
    sl_json_key_string(json, "name", model->name);
    sl_json_key_string(json, "state", state_name(model));
    sl_json_key_string(json, "origin",
                       model->name_state == NAME_RETIRED  ? "removed"
                       : model->name_state == NAME_CONFIG ? "config"
                                                          : "request");
    sl_json_key_bool(json, "pinned", registry_pinned(model));
    if (registry_pinned(model))
        sl_json_key_string(json, "pinned_by", model->pinned_by_config ? "config" : "request");
    sl_json_key_bool(json, "busy", model->work != WORK_NONE);
    sl_json_key_uint(json, "waiting", waiting);
    sl_json_key_uint(json, "bytes", bytes);
    if (model->progress) {
        struct sl_progress_view view;
        sl_progress_view(registry_followed(model)->progress, &view);
        sl_json_key_uri(json, "uri", view.uri);
        sl_json_key_uint(json, "load", view.id);
    }
    if (model->current) {
        char path[SL_PUBLISH_PATH_MAX] = "";
        const struct sl_holder *holder = model->current->holder;
        if (holder->where)
            holder->where(holder->self, model->name, model->current->version, path);
        sl_json_key_string(json, "version", model->current->version);
        if (*path)
            sl_json_key_string(json, "path", path);
    }
    if (model->err.kind)
        write_error(json, model);
    sl_json_key(json, "versions");
    sl_json_array(json);
    for (const struct resident *at = model->residents; at; at = at->next)
        write_resident(json, registry, at, all);
    sl_json_end(json);
    sl_json_end(json);
}

bool sl_registry_model_json(struct sl_registry *registry, const char *name, bool all,
                            struct sl_json *json)
{
    REGISTRY_LOCKED(registry);
    const struct model *model = registry_find(registry, name);
    if (!model || !is_shown(model, all))
        return false;
    write_model(json, registry, model, all);
    return true;
}

/* Those that were opened. */
static void write_gpus(struct sl_json *json, const struct sl_registry *registry)
{
    char device[16];
    sl_json_key(json, "gpus");
    sl_json_array(json);
    for (unsigned space = SL_SPACE_GPU; space < SL_SPACES_MAX; space++) {
        if (!sl_placement_has(registry->locked.opened, space))
            continue;
        sl_json_object(json);
        sl_json_key_string(json, "device", sl_space_name(space, device));
        sl_json_key_uint(json, "held_bytes", registry_held(registry, space));
        sl_json_key_uint(json, "budget_bytes", registry->locked.budgets[space]);
        sl_json_end(json);
    }
    sl_json_end(json);
}

static int compare_models(const void *a, const void *b)
{
    const struct model *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

/* Those that wait for a load, in their order, and why each does. */
static void write_queue(struct sl_json *json, const struct sl_registry *registry, bool all)
{
    char reason[REASON_BYTES];
    sl_json_key(json, "queue");
    sl_json_array(json);
    for (const struct model *at = registry->locked.queue; at; at = at->queue_next) {
        if (!is_shown(at, all))
            continue;
        registry_describe_wait(registry, at, all, reason, sizeof(reason));
        sl_json_object(json);
        sl_json_key_string(json, "name", at->name);
        sl_json_key_string(json, "reason", reason);
        sl_json_end(json);
    }
    sl_json_end(json);
}

void sl_registry_json(struct sl_registry *registry, bool all, struct sl_json *json)
{
    REGISTRY_LOCKED(registry);
    size_t count = 0;
    sl_autofree const struct model **sorted =
        sl_alloc_array(registry->locked.model_count, sizeof(*sorted), &json->err);
    for (struct model *model = registry->locked.models; sorted && model; model = model->next)
        if (model->name_state != NAME_FORGOTTEN && is_shown(model, all))
            sorted[count++] = model;
    if (sorted)
        qsort(sorted, count, sizeof(*sorted), compare_models);
    sl_json_key_uint(json, "held_bytes", registry_held(registry, SL_SPACE_HOST));
    sl_json_key_uint(json, "left_bytes", registry_left(registry, SL_SPACE_HOST));
    sl_json_key_uint(json, "budget_bytes", registry->locked.budgets[SL_SPACE_HOST]);
    write_gpus(json, registry);
    write_left(json, registry);
    write_queue(json, registry, all);
    sl_json_key(json, "models");
    sl_json_array(json);
    for (size_t i = 0; i < count; i++)
        write_model(json, registry, sorted[i], all);
    sl_json_end(json);
}

uint32_t sl_registry_placement(struct sl_registry *registry, const char *name)
{
    REGISTRY_LOCKED(registry);
    const struct model *model = registry_find(registry, name);
    return model && model->holder && !model->of_volume ? model->holder->placement : 0;
}

static const struct resident *shown_resident(const struct model *model)
{
    for (const struct resident *at = model->residents; !model->current && at; at = at->next)
        if (at->state == RESIDENT_LOADING && at->body)
            return at;
    return model->current;
}

static void fill_entry(struct sl_registry_entry *entry, const struct resident *resident)
{
    if (!resident)
        return;
    entry->body = resident->body;
    entry->placement = resident->holder->placement;
    entry->used_seconds = sl_wall_seconds() - (int64_t)seconds_since(resident->used_ns);
}

/* Stale ones too, as long as they take memory. */
static int each_derived(const struct model *model, const char *holder,
                        int (*each)(void *arg, const struct sl_registry_entry *entry), void *arg)
{
    int done = 0;
    for (const struct resident *at = model->residents; at && done == 0; at = at->next) {
        if (!at->key || at->state != RESIDENT_READY || strcmp(at->holder->name, holder) != 0)
            continue;
        struct sl_registry_entry entry = {.name = model->name,
                                          .key = at->key,
                                          .owner = at->owner,
                                          .placement = at->holder->placement};
        fill_entry(&entry, at);
        done = each(arg, &entry);
    }
    return done;
}

static void each_left(const struct sl_registry *registry, const char *holder,
                      int (*each)(void *arg, const struct sl_registry_entry *entry), void *arg)
{
    int done = 0;
    for (const struct left *at = registry->locked.left; at && done == 0; at = at->next) {
        char text[LEFT_TEXT_BYTES] = "";
        if (strcmp(at->holder->name, holder) != 0)
            continue;
        registry_describe_left(at, text, sizeof(text));
        const struct sl_registry_entry entry = {.name = at->name,
                                                .key = "",
                                                .placement = at->holder->placement,
                                                .left_bytes = at->bytes,
                                                .left_text = text};
        done = each(arg, &entry);
    }
}

void sl_registry_each(struct sl_registry *registry, const char *holder,
                      int (*each)(void *arg, const struct sl_registry_entry *entry), void *arg)
{
    REGISTRY_LOCKED(registry);
    int done = 0;
    for (struct model *model = registry->locked.models; model && done == 0; model = model->next) {
        if (!model->holder || strcmp(model->holder->name, holder) != 0 ||
            model->name_state == NAME_FORGOTTEN)
            continue;
        struct sl_registry_entry entry = {.name = model->name,
                                          .key = "",
                                          .pinned = registry_pinned(model),
                                          .placement = model->holder->placement};
        fill_entry(&entry, shown_resident(model));
        done = each(arg, &entry);
        if (done == 0)
            done = each_derived(model, holder, each, arg);
    }
    if (done == 0)
        each_left(registry, holder, each, arg);
}

/* ---- readiness ------------------------------------------------------------------------------ */

static void describe_reason(const struct model *model, char text[REASON_BYTES])
{
    struct sl_progress_view view = {0};
    if (model->progress)
        sl_progress_view(registry_followed(model)->progress, &view);
    if (model->err.kind)
        snprintf(text, REASON_BYTES, "'%s' failed: %s", model->name, model->err.message);
    else if (view.bytes_total)
        snprintf(text, REASON_BYTES, "'%s' is %s: %" PRIu64 " of %" PRIu64 " bytes", model->name,
                 sl_load_state_name(view.state), view.bytes_done, view.bytes_total);
    else
        snprintf(text, REASON_BYTES, "'%s' is %s", model->name, state_name(model));
}

bool sl_registry_is_ready(struct sl_registry *registry, unsigned max,
                          void (*reason)(void *arg, const char *text), void *arg,
                          uint64_t *published, uint64_t *expected)
{
    REGISTRY_LOCKED(registry);
    *published = *expected = 0;
    for (const struct model *model = registry->locked.models; model; model = model->next) {
        if (model->name_state != NAME_CONFIG)
            continue;
        ++*expected;
        if (model->was_ready) {
            ++*published;
            continue;
        }
        char text[REASON_BYTES];
        describe_reason(model, text);
        if (max && max--)
            reason(arg, text);
    }
    return *published == *expected;
}
