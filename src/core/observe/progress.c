/*
 * Counters are atomics that the load's threads add to; what is set rarely (the state's end, the
 * error) is behind the progress's own lock. The rate is a ring of fifths of a second: each add goes
 * into the slot of its time, and the rate is what lies in the slots of the last five seconds. Two
 * threads that open the same slot at once can lose one add from the rate, never from the totals.
 */
#include "progress.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "fork_guard.h"
#include "mem.h"
#include "metrics_write.h"
#include "progress_show.h"
#include "thread.h"

#define SLOT_NS (200 * SL_NS_PER_MS)
enum { SLOT_COUNT = 32, WINDOW_SLOTS = 25 };
_Static_assert(WINDOW_SLOTS + 1 < SLOT_COUNT, "the slot being filled is not one being read");

struct slot {
    _Atomic uint64_t epoch;
    _Atomic int64_t bytes;
};

struct sl_progress {
    uint64_t id, began_ns;
    char name[64], uri[512], path[512];
    bool hidden;
    _Atomic int state;
    _Atomic uint64_t bytes_total, bytes_resumed, bytes_inherited, bytes_fetched, bytes_verified;
    _Atomic int64_t bytes_done;
    _Atomic uint64_t tensors_total, objects_total, retries, refetched, hedged, wasted, fallbacks,
        mirrored, cached;
    _Atomic uint64_t first_byte_ns; /* when the first byte landed; 0 before */
    _Atomic unsigned connections;
    _Atomic bool troubled;
    struct slot slots[SLOT_COUNT];
    pthread_mutex_t lock;
    struct {
        uint64_t ended_ns; /* 0 while it runs, as is: */
        int64_t ended_at;
        struct sl_err err;
        char trouble[SL_TROUBLE_BYTES]; /* counts while `troubled`, as does: */
        bool trouble_logged;
        char decided[SL_DECIDED_BYTES];
        struct sl_signed_by signed_by;
        double rate; /* of an ended one, as its load measured it; 0: it did not */
        struct sl_suppliers suppliers;
    } locked;
    struct sl_progress *next; /* guarded by the list's lock */
};

static struct {
    pthread_mutex_t lock;
    struct {
        struct sl_progress *first, *last; /* by id */
        uint64_t last_id;
    } locked;
} list = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A load of the parent's may have its own lock taken for ever. */
static void forget(void)
{
    list.locked.first = list.locked.last = NULL;
}
SL_FORK_GUARD(&list.lock, forget)

static _Atomic uint64_t generation;
static void (*_Atomic on_finish)(const struct sl_progress_view *view);

/* Cut where a character ends, so that what is shown stays UTF-8. */
static void copy_text(char *to, size_t capacity, const char *from)
{
    size_t bytes = strlen(from);
    if (bytes >= capacity) {
        bytes = capacity - 1;
        while (bytes > 0 && ((unsigned char)from[bytes] & 0xc0) == 0x80)
            bytes--;
    }
    memcpy(to, from, bytes);
    to[bytes] = 0;
}

static struct sl_progress *make(const char *name, const char *uri, const char *path, bool hidden,
                                struct sl_err *err)
{
    struct sl_progress *progress = sl_alloc(sizeof(*progress), err);
    if (!progress)
        return NULL;
    copy_text(progress->name, sizeof(progress->name), name ? name : "");
    copy_text(progress->uri, sizeof(progress->uri), uri ? uri : "");
    copy_text(progress->path, sizeof(progress->path), path ? path : "");
    pthread_mutex_init(&progress->lock, NULL);
    progress->began_ns = sl_now_ns();
    progress->hidden = hidden;
    SL_LOCKED(&list.lock);
    progress->id = ++list.locked.last_id;
    if (list.locked.last)
        list.locked.last->next = progress;
    else
        list.locked.first = progress;
    list.locked.last = progress;
    atomic_fetch_add(&generation, 1);
    return progress;
}

struct sl_progress *sl_progress_new(const char *name, const char *uri, const char *path,
                                    struct sl_err *err)
{
    return make(name, uri, path, false, err);
}

struct sl_progress *sl_progress_new_hidden(const char *name, const char *uri, struct sl_err *err)
{
    return make(name, uri, "", true, err);
}

static void unlink_progress(struct sl_progress *progress)
{
    SL_LOCKED(&list.lock);
    struct sl_progress *before = NULL;
    struct sl_progress **place = &list.locked.first;
    while (*place && *place != progress) {
        before = *place;
        place = &before->next;
    }
    if (!*place)
        return;
    *place = progress->next;
    if (list.locked.last == progress)
        list.locked.last = before;
}

void sl_progress_free(struct sl_progress *progress)
{
    if (!progress)
        return;
    unlink_progress(progress);
    atomic_fetch_add(&generation, 1);
    pthread_mutex_destroy(&progress->lock);
    free(progress);
}

void sl_progress_set_state(struct sl_progress *progress, enum sl_load_state state)
{
    if (!progress)
        return;
    int old = atomic_load(&progress->state);
    do
        if (old == (int)state || old == SL_LOAD_PUBLISHED || old == SL_LOAD_FAILED)
            return; /* an end is final: a late reader thread cannot take it back */
    while (!atomic_compare_exchange_weak(&progress->state, &old, (int)state));
    atomic_store(&progress->troubled, false);
    atomic_fetch_add(&generation, 1);
}

void sl_progress_set_total(struct sl_progress *progress, uint64_t bytes, uint64_t tensors,
                           uint64_t objects)
{
    if (!progress)
        return;
    atomic_store(&progress->bytes_total, bytes);
    atomic_store(&progress->tensors_total, tensors);
    atomic_store(&progress->objects_total, objects);
    atomic_fetch_add(&generation, 1);
}

static void add(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

static void count_rate(struct sl_progress *progress, int64_t bytes)
{
    uint64_t now = sl_now_ns(), epoch = now / SLOT_NS, none = 0;
    atomic_compare_exchange_strong(&progress->first_byte_ns, &none, now);
    struct slot *slot = &progress->slots[epoch % SLOT_COUNT];
    uint64_t old = atomic_load(&slot->epoch);
    if (old != epoch && atomic_compare_exchange_strong(&slot->epoch, &old, epoch))
        atomic_store(&slot->bytes, 0);
    atomic_fetch_add(&slot->bytes, bytes);
}

void sl_progress_add_bytes(struct sl_progress *progress, uint64_t bytes)
{
    if (!progress)
        return;
    atomic_fetch_add(&progress->bytes_done, (int64_t)bytes);
    count_rate(progress, (int64_t)bytes);
}

void sl_progress_begin_again(struct sl_progress *progress)
{
    if (!progress)
        return;
    count_rate(progress, -atomic_exchange(&progress->bytes_done, 0));
    atomic_store(&progress->bytes_resumed, 0);
    atomic_store(&progress->bytes_inherited, 0);
    atomic_store(&progress->bytes_verified, 0);
}

static void add_kept(struct sl_progress *progress, _Atomic uint64_t *of, uint64_t bytes)
{
    add(of, bytes);
    atomic_fetch_add(&progress->bytes_done, (int64_t)bytes);
}

void sl_progress_add_resumed(struct sl_progress *progress, uint64_t bytes)
{
    if (progress)
        add_kept(progress, &progress->bytes_resumed, bytes);
}

void sl_progress_add_inherited(struct sl_progress *progress, uint64_t bytes)
{
    if (progress)
        add_kept(progress, &progress->bytes_inherited, bytes);
}

void sl_progress_add_fetched(struct sl_progress *progress, uint64_t bytes)
{
    if (!progress)
        return;
    add(&progress->bytes_fetched, bytes);
    if (atomic_load_explicit(&progress->troubled, memory_order_relaxed))
        atomic_store(&progress->troubled, false);
}

void sl_progress_add_verified(struct sl_progress *progress, uint64_t bytes)
{
    if (progress)
        add(&progress->bytes_verified, bytes);
}

void sl_progress_add_refetched(struct sl_progress *progress)
{
    if (progress)
        add(&progress->refetched, 1);
}

void sl_progress_add_hedge(struct sl_progress *progress)
{
    if (progress)
        add(&progress->hedged, 1);
}

void sl_progress_add_wasted(struct sl_progress *progress, uint64_t bytes)
{
    if (progress)
        add(&progress->wasted, bytes);
}

void sl_progress_add_mirrored(struct sl_progress *progress, uint64_t bytes)
{
    if (progress)
        add(&progress->mirrored, bytes);
}

void sl_progress_add_cached(struct sl_progress *progress, uint64_t bytes)
{
    if (progress)
        add(&progress->cached, bytes);
}

void sl_progress_add_fallback(struct sl_progress *progress)
{
    if (progress)
        add(&progress->fallbacks, 1);
}

void sl_progress_add_retry(struct sl_progress *progress)
{
    if (progress)
        add(&progress->retries, 1);
}

/* What failed, without the advice behind it, which is for the end. */
void sl_progress_note_retry(struct sl_progress *progress, unsigned next, unsigned most,
                            const struct sl_err *why, bool logged)
{
    char of[24] = "";
    if (!progress)
        return;
    sl_progress_add_retry(progress);
    if (most >= next)
        snprintf(of, sizeof(of), " of %u", most);
    SL_LOCKED(&progress->lock);
    snprintf(progress->locked.trouble, sizeof(progress->locked.trouble), "try %u%s: %.*s", next, of,
             (int)SL_MIN(strcspn(why->message, ";"), (size_t)SL_TROUBLE_BYTES - 64), why->message);
    progress->locked.trouble_logged = logged;
    atomic_store(&progress->troubled, true);
}

/* Who is left is news. What a hidden load reads from is not for everybody. */
void sl_progress_add_supplied(struct sl_progress *progress, const struct sl_supplied *supplied)
{
    struct sl_supplied shown = *supplied;
    if (progress && progress->hidden && shown.name && !sl_metrics_shows_hidden())
        shown.name = SL_SUPPLIER_OTHERS;
    sl_suppliers_count(&shown);
    if (!progress)
        return;
    SL_LOCKED(&progress->lock);
    sl_suppliers_add(&progress->locked.suppliers, supplied);
    if (supplied->wrong)
        atomic_fetch_add(&generation, 1);
}

size_t sl_progress_suppliers(struct sl_progress *progress, struct sl_supplier *copies, size_t limit)
{
    if (!progress)
        return 0;
    SL_LOCKED(&progress->lock);
    return sl_suppliers_copy(&progress->locked.suppliers, copies, limit);
}

void sl_progress_set_connections(struct sl_progress *progress, unsigned count)
{
    if (progress)
        atomic_store(&progress->connections, count);
}

void sl_progress_set_decided(struct sl_progress *progress, const char *text)
{
    if (!progress)
        return;
    SL_LOCKED(&progress->lock);
    snprintf(progress->locked.decided, sizeof(progress->locked.decided), "%s", text);
}

void sl_progress_set_signed(struct sl_progress *progress, const struct sl_signed_by *signed_by)
{
    if (!progress)
        return;
    SL_LOCKED(&progress->lock);
    progress->locked.signed_by = *signed_by;
}

void sl_progress_set_rate(struct sl_progress *progress, double rate)
{
    SL_LOCKED(&progress->lock);
    progress->locked.rate = rate;
}

static bool end(struct sl_progress *progress, const struct sl_err *err)
{
    SL_LOCKED(&progress->lock);
    if (progress->locked.ended_ns)
        return false;
    progress->locked.ended_ns = sl_now_ns();
    progress->locked.ended_at = sl_wall_seconds();
    if (err)
        progress->locked.err = *err;
    return true;
}

void sl_progress_finish(struct sl_progress *progress, const struct sl_err *err)
{
    if (!progress || !end(progress, err))
        return;
    atomic_store(&progress->connections, 0);
    atomic_store(&progress->state, err ? SL_LOAD_FAILED : SL_LOAD_PUBLISHED);
    atomic_fetch_add(&generation, 1);
    void (*call)(const struct sl_progress_view *) = atomic_load(&on_finish);
    if (call) {
        struct sl_progress_view view;
        sl_progress_view(progress, &view);
        call(&view);
    }
}

void sl_progress_on_finish(void (*call)(const struct sl_progress_view *view))
{
    atomic_store(&on_finish, call);
}

/* Bytes of the slots that lie in the window, over the part of the window since the first byte. */
static double rate_now(struct sl_progress *progress, uint64_t now)
{
    uint64_t first_ns = atomic_load(&progress->first_byte_ns), epoch = now / SLOT_NS;
    int64_t bytes = 0;
    for (unsigned i = 0; i < SLOT_COUNT; i++) {
        uint64_t of = atomic_load(&progress->slots[i].epoch);
        if (of <= epoch && of + WINDOW_SLOTS >= epoch)
            bytes += atomic_load(&progress->slots[i].bytes);
    }
    if (!first_ns || bytes <= 0)
        return 0;
    uint64_t window_ns = now - (epoch - WINDOW_SLOTS) * SLOT_NS;
    uint64_t span_ns = SL_MIN(window_ns, now > first_ns ? now - first_ns : 0);
    return (double)bytes * 1e9 / (double)SL_MAX(span_ns, SLOT_NS);
}

/* Over the whole load: what an ended one shows. */
static double rate_total(const struct sl_progress_view *view)
{
    uint64_t kept = view->bytes_resumed + view->bytes_inherited;
    uint64_t own = view->bytes_done > kept ? view->bytes_done - kept : 0;
    return view->seconds > 0 ? (double)own / view->seconds : 0;
}

struct sl_progress_counts sl_progress_counts(const struct sl_progress *progress)
{
    if (!progress)
        return (struct sl_progress_counts){0};
    return (struct sl_progress_counts){.fetched = atomic_load(&progress->bytes_fetched),
                                       .verified = atomic_load(&progress->bytes_verified),
                                       .retries = atomic_load(&progress->retries),
                                       .refetched = atomic_load(&progress->refetched),
                                       .hedged = atomic_load(&progress->hedged),
                                       .wasted = atomic_load(&progress->wasted),
                                       .fallbacks = atomic_load(&progress->fallbacks),
                                       .mirrored = atomic_load(&progress->mirrored),
                                       .cached = atomic_load(&progress->cached)};
}

static void view_counters(struct sl_progress *progress, struct sl_progress_view *view)
{
    int64_t done = atomic_load(&progress->bytes_done);
    view->bytes_done = done > 0 ? (uint64_t)done : 0;
    view->bytes_total = atomic_load(&progress->bytes_total);
    view->bytes_resumed = atomic_load(&progress->bytes_resumed);
    view->bytes_inherited = atomic_load(&progress->bytes_inherited);
    struct sl_progress_counts counts = sl_progress_counts(progress);
    view->bytes_fetched = counts.fetched;
    view->bytes_verified = counts.verified;
    view->tensors_total = atomic_load(&progress->tensors_total);
    view->objects_total = atomic_load(&progress->objects_total);
    view->retries = counts.retries;
    view->refetched = counts.refetched;
    view->hedged = counts.hedged;
    view->wasted = counts.wasted;
    view->fallbacks = counts.fallbacks;
    view->cached = counts.cached;
    view->connections = atomic_load(&progress->connections);
    view->state = (enum sl_load_state)atomic_load(&progress->state);
}

void sl_progress_view(struct sl_progress *progress, struct sl_progress_view *view)
{
    memset(view, 0, sizeof(*view));
    view->id = progress->id;
    view->hidden = progress->hidden;
    memcpy(view->name, progress->name, sizeof(view->name));
    memcpy(view->uri, progress->uri, sizeof(view->uri));
    memcpy(view->path, progress->path, sizeof(view->path));
    view_counters(progress, view);
    uint64_t now = sl_now_ns(), ended_ns;
    double rate;
    {
        SL_LOCKED(&progress->lock);
        ended_ns = progress->locked.ended_ns;
        view->ended_at = progress->locked.ended_at;
        rate = progress->locked.rate;
        view->err = progress->locked.err;
        view->supplier_count = (unsigned)sl_suppliers_copy(&progress->locked.suppliers,
                                                           view->suppliers, SL_SUPPLIERS_SHOWN);
        memcpy(view->decided, progress->locked.decided, sizeof(view->decided));
        view->signed_by = progress->locked.signed_by;
        if (!ended_ns && atomic_load(&progress->troubled)) {
            memcpy(view->trouble, progress->locked.trouble, sizeof(view->trouble));
            view->trouble_logged = progress->locked.trouble_logged;
        }
    }
    view->seconds = (double)((ended_ns ? ended_ns : now) - progress->began_ns) / 1e9;
    if (!ended_ns)
        rate = rate_now(progress, now);
    view->bytes_per_second = ended_ns && rate <= 0 ? rate_total(view) : rate;
    view->seconds_left = -1;
    if (ended_ns)
        view->seconds_left = 0;
    else if (view->bytes_total >= view->bytes_done && view->bytes_per_second >= 1 &&
             view->bytes_total)
        view->seconds_left =
            (double)(view->bytes_total - view->bytes_done) / view->bytes_per_second;
}

static bool view_after(uint64_t id, struct sl_progress_view *view)
{
    SL_LOCKED(&list.lock);
    struct sl_progress *progress = list.locked.first;
    while (progress && progress->id <= id)
        progress = progress->next;
    if (progress)
        sl_progress_view(progress, view);
    return progress;
}

void sl_progress_each(void (*call)(const struct sl_progress_view *view, void *arg), void *arg)
{
    struct sl_progress_view view;
    for (uint64_t id = 0; view_after(id, &view); id = view.id)
        call(&view, arg);
}

uint64_t sl_progress_generation(void)
{
    return atomic_load(&generation);
}

static void json_error(struct sl_json *json, const struct sl_err *err)
{
    sl_json_key(json, "error");
    if (!err->kind) {
        sl_json_null(json);
        return;
    }
    sl_json_object(json);
    sl_json_key_string(json, "kind", sl_err_row(err->kind)->name);
    sl_json_key_string(json, "code", err->code);
    sl_json_key_string(json, "message", err->message);
    sl_json_end(json);
}

void sl_progress_json(struct sl_json *json, const struct sl_progress_view *view)
{
    sl_json_object(json);
    sl_json_key_uint(json, "id", view->id);
    sl_json_key_string(json, "name", view->name);
    sl_json_key_string(json, "state", sl_load_state_name(view->state));
    sl_json_key_uri(json, "uri", view->uri);
    sl_json_key_uri(json, "path", view->path);
    sl_json_key_uint(json, "percent", sl_progress_percent(view));
    sl_json_key_uint(json, "bytes_total", view->bytes_total);
    sl_json_key_uint(json, "bytes_done", view->bytes_done);
    sl_json_key_uint(json, "bytes_resumed", view->bytes_resumed);
    sl_json_key_uint(json, "bytes_inherited", view->bytes_inherited);
    sl_json_key_uint(json, "bytes_fetched", view->bytes_fetched);
    sl_json_key_uint(json, "bytes_verified", view->bytes_verified);
    sl_json_key_uint(json, "tensors_total", view->tensors_total);
    sl_json_key_uint(json, "objects_total", view->objects_total);
    sl_json_key_uint(json, "retries", view->retries);
    sl_json_key_uint(json, "refetched_ranges", view->refetched);
    sl_json_key_uint(json, "hedged", view->hedged);
    sl_json_key_uint(json, "wasted_bytes", view->wasted);
    sl_json_key_uint(json, "fallbacks", view->fallbacks);
    sl_json_key_uint(json, "cached", view->cached);
    sl_json_key_uint(json, "place_count", view->supplier_count);
    sl_json_key(json, "places");
    sl_suppliers_json(json, view->suppliers,
                      SL_MIN(view->supplier_count, (unsigned)SL_SUPPLIERS_SHOWN));
    sl_json_key_uint(json, "connections", view->connections);
    sl_json_key_string(json, "decided", *view->decided ? view->decided : NULL);
    sl_signed_by_json(json, &view->signed_by);
    sl_json_key_string(json, "trouble", *view->trouble ? view->trouble : NULL);
    sl_json_key_double(json, "seconds", view->seconds);
    sl_json_key(json, "ended_unix_seconds");
    if (view->ended_at)
        sl_json_uint(json, (uint64_t)view->ended_at);
    else
        sl_json_null(json);
    sl_json_key_double(json, "bytes_per_second", view->bytes_per_second);
    sl_json_key(json, "seconds_left");
    if (view->seconds_left < 0)
        sl_json_null(json);
    else
        sl_json_double(json, view->seconds_left);
    json_error(json, &view->err);
    sl_json_end(json);
}
