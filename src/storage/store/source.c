/*
 * Stores and sources of every kind: opening, blocking reads, counting.
 *
 * Opening is the first range request: its answer tells length and version, and its bytes are kept,
 * since indexes and small files need them again. Blocking reads drive a fetch with poll(), so retry
 * and cancellation are those of fetch.c.
 */
#include "source.h"

#include <inttypes.h>
#include <string.h>

#include "cgroup.h"
#include "fetch.h"
#include "fork_guard.h"
#include "hash.h"
#include "idle_links.h"
#include "log.h"
#include "metrics.h"
#include "places.h"
#include "store_kind.h"

/* The spec may ask for it, or an .s3cfg, which the kind has read by now. */
static void warn_of_unverified(const struct sl_store *store)
{
    const struct sl_tls_options *tls = store->config.tls;
    if (tls && !tls->verify && !store->kind->traits.local)
        sl_log(SL_LOG_WARN,
               "certificates are not verified (source.tls.verify, or an .s3cfg): anyone "
               "on the way to the source can read and change the model");
}

/* ---- connections that nobody uses ------------------------------------------------------------ */

static struct {
    pthread_mutex_t mutex;
    struct sl_store *first;
} open_stores = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t wired_once = PTHREAD_ONCE_INIT;

/* A child that closed an idle connection of its parent's would end it for the parent, too (TLS). */
static void forget(void)
{
    open_stores.first = NULL;
}
SL_FORK_GUARD(&open_stores.mutex, forget)

static struct sl_channel *take_leading_to(struct sl_store *store, const struct sl_host *host)
{
    SL_LOCKED(&store->locked.mutex);
    for (unsigned i = 0; store->transport->channel_leads_to && i < store->locked.channel_count;
         i++) {
        struct sl_channel *channel = store->locked.channels[i];
        if (store->transport->channel_leads_to(channel, host)) {
            store->locked.channels[i] = store->locked.channels[--store->locked.channel_count];
            return channel;
        }
    }
    return NULL;
}

/* Somebody waits for a place at this host: close one that is idle, whichever load it is of. */
static void shed_idle(const struct sl_host *host)
{
    if (sl_idle_links_shed(host))
        return;
    SL_LOCKED(&open_stores.mutex);
    for (struct sl_store *store = open_stores.first; store; store = store->next) {
        struct sl_channel *channel = take_leading_to(store, host);
        if (channel) {
            store->transport->channel_free(channel);
            return;
        }
    }
}

static void wire(void)
{
    sl_host_on_want(shed_idle);
    sl_metrics_add_writer(sl_host_metrics);
}

static void enter_store(struct sl_store *store)
{
    pthread_once(&wired_once, wire);
    SL_LOCKED(&open_stores.mutex);
    store->next = open_stores.first;
    open_stores.first = store;
}

static void remove_store(struct sl_store *store)
{
    SL_LOCKED(&open_stores.mutex);
    for (struct sl_store **at = &open_stores.first; *at; at = &(*at)->next)
        if (*at == store) {
            *at = store->next;
            return;
        }
}

/* ---- stores ---------------------------------------------------------------------------------- */

const void *sl_source_options(const struct sl_source_config *config,
                              const struct sl_option_table *table)
{
    for (unsigned i = 0; i < SL_STORE_KINDS_MAX; i++)
        if (config->options[i].table == table)
            return config->options[i].values;
    return NULL;
}

static int open_through(struct sl_store *store, struct sl_err *err)
{
    const struct sl_through_options *options = &store->config.through;
    if (!options->count || store->kind->traits.local || store->config.no_mirrors)
        return 0;
    if (!store->transport->channel_via) {
        sl_log(SL_LOG_WARN,
               "source.through: '%s' is read past the caches: its bytes do not come by HTTP ranges "
               "of whole objects (Redis, and Xet where source.hf.xet is on)",
               store->uri);
        return 0;
    }
    store->through = sl_through_new(options, err);
    if (!store->through)
        return -1;
    sl_through_report(store->through, store->config.progress);
    return 0;
}

int sl_store_open_kind(const struct sl_store_kind *kind, const char *uri,
                       const struct sl_source_config *config, struct sl_store **out, char **key,
                       struct sl_err *err)
{
    *out = NULL;
    *key = NULL;
    if (config && config->credentials && !kind->traits.caller_credentials)
        return sl_fail(err, SL_E_AUTH, "credentials of a caller cannot be used for '%s' sources",
                       kind->name);
    SL_AUTO(sl_store) store = sl_alloc(sizeof(*store), err);
    if (!store)
        return -1;
    store->kind = kind;
    store->transport = kind->transport;
    pthread_mutex_init(&store->locked.mutex, NULL);
    if (config)
        store->config = *config;
    if (kind->open(store, uri, key, err) < 0 || open_through(store, err) < 0) {
        free(*key);
        *key = NULL;
        return -1;
    }
    warn_of_unverified(store);
    enter_store(store);
    *out = sl_steal(&store);
    return 0;
}

/* Who gave how much, for people who look why a load was slow. */
static void log_caches(const struct sl_store *store)
{
    struct sl_through_state states[64];
    unsigned count = sl_through_states(store->through, states, SL_COUNT(states));
    for (unsigned i = 0; i < SL_MIN(count, (unsigned)SL_COUNT(states)); i++)
        if (states[i].bytes || states[i].failures)
            sl_log(SL_LOG_DEBUG,
                   "cache '%s': %" PRIu64 " bytes, failed %" PRIu64 " times, wrong %" PRIu64
                   " times%s",
                   states[i].via, states[i].bytes, states[i].failures, states[i].wrong,
                   states[i].left ? ", and left" : "");
}

void sl_store_free(struct sl_store *store)
{
    if (!store)
        return;
    remove_store(store);
    for (unsigned i = 0; i < store->locked.channel_count; i++)
        store->transport->channel_free(store->locked.channels[i]);
    store->kind->close(store);
    if (store->through)
        log_caches(store);
    sl_through_free(store->through);
    pthread_mutex_destroy(&store->locked.mutex);
    free(store->uri);
    free(store);
}

const char *sl_store_uri(const struct sl_store *store)
{
    return store->uri;
}

const char *sl_store_kind(const struct sl_store *store)
{
    return store->kind->name;
}

void sl_store_describe(struct sl_store *store,
                       void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    if (store->kind->describe)
        store->kind->describe(store, row, arg);
}

const struct sl_store_traits *sl_store_traits(const struct sl_store *store)
{
    return &store->kind->traits;
}

struct sl_store_advice sl_store_advice(struct sl_store *store)
{
    struct sl_store_advice advice = store->advice;
    SL_LOCKED(&store->locked.mutex);
    advice.in_order = store->locked.in_order;
    advice.range_factor = store->locked.range_factor;
    return advice;
}

uint64_t sl_store_first_byte_ns(struct sl_store *store)
{
    SL_LOCKED(&store->locked.mutex);
    return store->locked.first_byte_ns;
}

unsigned sl_store_host_connections(const struct sl_store *store)
{
    return store->config.host_connections;
}

unsigned sl_store_openings(const struct sl_store *store, size_t count)
{
    unsigned most = store->config.openings ? store->config.openings : (unsigned)SL_OPENINGS_MAX;
    return (unsigned)SL_MIN(count, (size_t)most);
}

unsigned sl_store_preconnected(struct sl_store *store)
{
    SL_LOCKED(&store->locked.mutex);
    return store->locked.preconnected ? store->config.preconnect : 0;
}

/* Lanes for whoever will read: the store keeps them until they are taken. */
static void preconnect(void *arg, const struct sl_exchange *like)
{
    struct sl_store *store = arg;
    {
        SL_LOCKED(&store->locked.mutex);
        if (store->locked.preconnected)
            return;
        store->locked.preconnected = true;
    }
    for (unsigned i = 0; i < store->config.preconnect; i++) {
        struct sl_channel *channel = store->transport->channel_new(store, NULL);
        if (!channel)
            return;
        if (store->transport->channel_connect(channel, like, NULL) < 0) {
            store->transport->channel_free(channel);
            return;
        }
        sl_store_give_channel(store, channel);
    }
}

struct sl_connect sl_store_connect(struct sl_store *store)
{
    bool ahead = store->config.preconnect && store->transport->channel_connect;
    return (struct sl_connect){
        .distant = ahead ? preconnect : NULL,
        .distant_arg = store,
        .distant_always = store->config.preconnect_always,
        .tls = store->config.tls,
        .cancel = store->config.cancel,
        .stall_seconds = store->config.stall_seconds,
        .once = store->config.hedge == SL_HEDGE_OFF,
        .owner = &store->config,
        .host_connections = store->config.host_connections,
        .idle_seconds = store->config.idle_seconds,
        .bandwidth = store->config.bandwidth,
        .progress = store->config.progress,
    };
}

void sl_store_note_in_order(struct sl_store *store, bool sized)
{
    SL_LOCKED(&store->locked.mutex);
    if (!store->locked.in_order)
        sl_log(SL_LOG_WARN,
               "'%s' sends whole files where ranges are asked for: its files are read in order, on "
               "one connection, and what was read before is sent again after a failure",
               store->uri);
    if (!sized && !store->locked.unsized)
        sl_log(SL_LOG_WARN,
               "'%s' does not say how long its files are: each is read twice, to learn it",
               store->uri);
    store->locked.in_order = true;
    store->locked.unsized |= !sized;
}

bool sl_store_blame_mirrors(struct sl_store *store, const struct sl_err *why)
{
    bool caches = store->through && sl_through_blame(store->through, why);
    return (store->places && sl_places_blame(store->places, why)) || caches;
}

struct sl_through *sl_store_through(const struct sl_store *store)
{
    return store->through;
}

struct sl_cancel *sl_store_cancel(const struct sl_store *store)
{
    return store->config.cancel;
}

static int check_size(const char *place, const char *name, uint64_t bytes, struct sl_err *err)
{
    if (bytes <= SL_OBJECT_BYTES_MAX)
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "size",
                        "'%s%s' has %" PRIu64 " bytes by the store's answer, and no object has "
                        "more than 1 EiB: check the object at the store",
                        place, name, bytes);
}

enum { LISTED_MAX = 10 * 1000 * 1000 }; /* wanted or not */

struct wanted {
    const struct sl_store *store;
    const struct sl_listing *listing;
    unsigned listed;
};

/* Of an empty object that Hadoop's older tools leave for a folder. */
static bool is_mark_name(const char *name)
{
    static const char suffix[] = "_$folder$";
    size_t bytes = strlen(name), tail = sizeof(suffix) - 1;
    return bytes >= tail && strcmp(name + bytes - tail, suffix) == 0;
}

/* What a store lists beside what it was asked for is passed over. */
static int take_wanted(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct wanted *wanted = arg;
    if (sl_cancel_check(wanted->store->config.cancel, err) < 0)
        return -1;
    if (++wanted->listed > LISTED_MAX)
        return sl_fail(err, SL_E_FORMAT, "the listing of '%s' has more than %d entries",
                       wanted->store->uri, LISTED_MAX);
    const char *begin = wanted->listing->begin;
    if (strncmp(entry->name, begin, strlen(begin)) != 0 ||
        (entry->bytes == 0 && is_mark_name(entry->name)))
        return 0;
    if (check_size(wanted->store->uri, entry->name, entry->bytes, err) < 0)
        return -1;
    return wanted->listing->each(entry, wanted->listing->arg, err);
}

int sl_store_list_begin(struct sl_store *store, const char *begin,
                        int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                        void *arg, struct sl_err *err)
{
    const struct sl_listing asked = {begin, each, arg};
    struct wanted wanted = {.store = store, .listing = &asked};
    const struct sl_listing listing = {begin, take_wanted, &wanted};
    if (!store->kind->list)
        return sl_fail(err, SL_E_USAGE,
                       "'%s' has no listing: name an object, or an index such as "
                       "model.safetensors.index.json",
                       store->uri);
    if (sl_cancel_check(store->config.cancel, err) < 0)
        return -1;
    return store->kind->list(store, &listing, err);
}

int sl_store_list(struct sl_store *store,
                  int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                  void *arg, struct sl_err *err)
{
    return sl_store_list_begin(store, "", each, arg, err);
}

/* Drive the fetch to the end of its range; data takes limit bytes, *got came. */
static int drain(struct sl_fetch *fetch, uint8_t *data, size_t limit, size_t *got,
                 struct sl_err *err)
{
    uint8_t beyond;
    *got = 0;
    for (;;) {
        size_t came = 0, room = limit - *got;
        enum sl_io_state state = room ? sl_fetch_read(fetch, data + *got, room, &came, err)
                                      : sl_fetch_read(fetch, &beyond, 1, &came, err);
        if (state == SL_IO_FAILED)
            return -1;
        if (state == SL_IO_END)
            return 0;
        if (state == SL_IO_DATA && !room)
            return sl_fail(err, SL_E_INTERNAL, "a range brought more bytes than were asked for");
        *got += came;
        if (sl_fetch_wait(fetch, state == SL_IO_WAIT, err) < 0)
            return -1;
    }
}

static int read_head(struct sl_source *source, uint64_t head_bytes, struct sl_err *err)
{
    if (source->opened) /* by resolve */
        head_bytes = SL_MIN(head_bytes, source->bytes);
    if (head_bytes == 0 || source->head)
        return 0;
    SL_AUTO(sl_fetch) fetch = sl_fetch_new(source->store, err);
    if (!fetch)
        return -1;
    sl_fetch_hedge(fetch);
    source->head = sl_alloc_aligned(64, head_bytes, err);
    if (!source->head || sl_fetch_start(fetch, source, 0, head_bytes, err) < 0)
        return -1;
    return drain(fetch, source->head, head_bytes, &source->head_bytes, err);
}

int sl_source_open(struct sl_store *store, const char *name, uint64_t head_bytes,
                   struct sl_source **out, struct sl_err *err)
{
    *out = NULL;
    if (sl_cancel_check(store->config.cancel, err) < 0)
        return -1;
    SL_AUTO(sl_source) source = sl_alloc(sizeof(*source), err);
    if (!source)
        return -1;
    source->store = store;
    source->notes_reads = store->notes_reads;
    source->name = sl_strdup(name, err);
    if (!source->name || store->kind->locate(source, err) < 0)
        return -1;
    if (store->kind->resolve && store->kind->resolve(source, err) < 0)
        return -1;
    if (read_head(source, SL_MAX(head_bytes, 1), err) < 0 ||
        check_size(source->uri, "", source->bytes, err) < 0)
        return -1;
    if (source->head_bytes < head_bytes) {
        uint8_t *shorter = realloc(source->head, source->head_bytes + 1);
        source->head = shorter ? shorter : source->head;
    }
    sl_log(SL_LOG_TRACE, "opened '%s': %" PRIu64 " bytes, ETag %s", source->uri, source->bytes,
           source->version.etag[0] ? source->version.etag : "none");
    *out = sl_steal(&source);
    return 0;
}

int sl_source_known(struct sl_store *store, const char *name, uint64_t bytes,
                    const struct sl_version *version, struct sl_source **out, struct sl_err *err)
{
    SL_AUTO(sl_source) source = sl_alloc(sizeof(*source), err);
    if (!source)
        return -1;
    source->store = store;
    source->bytes = bytes;
    source->version = *version;
    source->opened = true;
    source->name = sl_strdup(name, err);
    if (!source->name || store->kind->locate(source, err) < 0)
        return -1;
    *out = sl_steal(&source);
    return 0;
}

void sl_source_free(struct sl_source *source)
{
    if (!source)
        return;
    if (source->store->kind->forget)
        source->store->kind->forget(source);
    free(source->name);
    free(source->uri);
    free(source->blob);
    free(source->head);
    free(source->checksums);
    free(source->caches);
    free(source->notes);
    free(source);
}

const char *sl_source_name(const struct sl_source *source)
{
    return source->name;
}

const char *sl_source_uri(const struct sl_source *source)
{
    return source->uri;
}

uint64_t sl_source_bytes(const struct sl_source *source)
{
    return source->bytes;
}

const struct sl_version *sl_source_version(const struct sl_source *source)
{
    return &source->version;
}

bool sl_source_is_past_caches(const struct sl_source *source)
{
    return source->past_caches && source->store->through;
}

struct sl_store *sl_source_store(const struct sl_source *source)
{
    return source->store;
}

void sl_source_counts(const struct sl_source *source, uint64_t *requests, uint64_t *bytes)
{
    *requests = sl_counter_get(&source->requests);
    *bytes = sl_counter_get(&source->received);
}

bool sl_source_is_folder(struct sl_source *source)
{
    const struct sl_store_kind *kind = source->store->kind;
    if (is_mark_name(source->name))
        return kind->traits.listing && !kind->traits.local;
    if (!kind->is_folder)
        return false;
    sl_counter_add(&source->requests, 1);
    sl_metric_add(SL_M_SOURCE_REQUESTS, 1);
    return kind->is_folder(source);
}

int sl_source_checksums(struct sl_source *source, struct sl_checksums *sums, struct sl_err *err)
{
    const struct sl_store_advice advice = sl_store_advice(source->store);
    memset(sums, 0, sizeof(*sums));
    if (source->checksums)
        *sums = *source->checksums;
    if (source->checksums || !advice.checksums)
        return 0;
    sl_counter_add(&source->requests, 1);
    sl_metric_add(SL_M_SOURCE_REQUESTS, 1);
    return advice.checksums(source, sums, err);
}

struct sl_checksums *sl_checksums_copy(const struct sl_checksums *sums, struct sl_err *err)
{
    struct sl_checksums *copy = sums ? sl_alloc(sizeof(*copy), err) : NULL;
    if (copy)
        *copy = *sums;
    return copy;
}

int sl_source_set_checksums(struct sl_source *source, const struct sl_checksums *sums,
                            struct sl_err *err)
{
    struct sl_checksums *copy = sl_checksums_copy(sums, err);
    if (!copy)
        return -1;
    free(source->checksums);
    source->checksums = copy;
    return 0;
}

const struct sl_checksums *sl_source_known_checksums(const struct sl_source *source)
{
    return source->checksums;
}

enum sl_delivery sl_source_delivery(const struct sl_source *source)
{
    const struct sl_store_advice advice = sl_store_advice(source->store);
    return advice.delivery ? advice.delivery(source) : SL_DELIVERY_UNCHECKED;
}

uint64_t sl_source_held(const struct sl_source *source)
{
    return source->head_bytes;
}

/* Beside what is kept there is room for what it becomes, and for as much again twice. */
enum { HELD_PART = 4 };

void sl_store_hold_for(struct sl_store *store, uint64_t bytes)
{
    if (store->config.hold_bytes && bytes > sl_memory_available() / HELD_PART)
        store->config.hold_bytes = 0;
}

bool sl_source_may_hold(struct sl_source *source)
{
    struct sl_store *store = source->store;
    if (sl_store_traits(store)->local || source->in_order ||
        source->bytes > sl_memory_available() / HELD_PART)
        return false;
    SL_LOCKED(&store->locked.mutex);
    if (source->bytes > store->config.hold_bytes - store->locked.held_bytes)
        return false;
    store->locked.held_bytes += source->bytes;
    return true;
}

void sl_source_hold(struct sl_source *source, uint8_t *data)
{
    free(source->head);
    source->head = data;
    source->head_bytes = source->bytes;
}

void sl_source_forget(struct sl_source *source)
{
    free(source->head);
    source->head = NULL;
    source->head_bytes = 0;
}

/* fetch: owned; NULL: it failed. */
static int read_past(struct sl_source *source, uint64_t offset, void *data, size_t bytes,
                     struct sl_fetch *fetch, struct sl_err *err)
{
    SL_AUTO(sl_fetch) owned = fetch;
    size_t got;
    if (!owned || sl_cancel_check(source->store->config.cancel, err) < 0)
        return -1;
    sl_fetch_hedge(owned);
    if (sl_fetch_start(owned, source, offset, offset + bytes, err) < 0)
        return -1;
    return drain(owned, data, bytes, &got, err);
}

int sl_source_read(struct sl_source *source, uint64_t offset, void *data, size_t bytes,
                   struct sl_err *err)
{
    if (offset > source->bytes || bytes > source->bytes - offset)
        return sl_fail_code(err, SL_E_FORMAT, "truncated",
                            "'%s' ends at byte %" PRIu64 ", but bytes %" PRIu64 " to %" PRIu64
                            " are needed",
                            source->uri, source->bytes, offset, offset + bytes);
    uint8_t *at = data;
    if (offset < source->head_bytes) {
        size_t kept = SL_MIN(bytes, source->head_bytes - offset);
        memcpy(at, source->head + offset, kept);
        at += kept, offset += kept, bytes -= kept;
    }
    if (!bytes)
        return 0;
    if (source->verifier)
        return source->verifier->read(source->verifier, source, offset, at, bytes, err);
    return sl_source_read_past(source, offset, at, bytes, err) < 0
               ? -1
               : sl_source_note(source, offset, at, bytes, err);
}

void sl_store_note_reads(struct sl_store *store)
{
    store->notes_reads = true;
}

void sl_source_end_notes(struct sl_source *source, bool keep)
{
    source->notes_reads = false;
    if (keep)
        return;
    free(source->notes);
    source->notes = NULL;
    source->note_count = source->note_capacity = 0;
}

int sl_source_note(struct sl_source *source, uint64_t begin, const void *data, size_t bytes,
                   struct sl_err *err)
{
    if (!source->notes_reads || source->verifier || bytes == 0)
        return 0;
    uint8_t digest[SL_HASH_BYTES_MAX];
    struct sl_source_note note = {.begin = begin, .end = begin + bytes};
    if (sl_grow(&source->notes, &source->note_capacity, source->note_count + 1, sizeof(note), err) <
            0 ||
        sl_digest_of(SL_HASH_SHA256, NULL, 0, data, bytes, digest, err) < 0)
        return -1;
    memcpy(note.sha256, digest, sizeof(note.sha256));
    source->notes[source->note_count++] = note;
    return 0;
}

struct sl_source_note *sl_source_take_notes(struct sl_source *source, size_t *count)
{
    *count = source->note_count;
    source->note_count = source->note_capacity = 0;
    return sl_steal(&source->notes);
}

int sl_source_read_past(struct sl_source *source, uint64_t offset, void *data, size_t bytes,
                        struct sl_err *err)
{
    return read_past(source, offset, data, bytes, sl_fetch_new(source->store, err), err);
}

int sl_source_read_checked(struct sl_source *source, uint64_t offset, void *data, size_t bytes,
                           bool again, struct sl_err *err)
{
    struct sl_store *store = source->store;
    struct sl_fetch *fetch = again ? sl_fetch_new_apart(store, err) : sl_fetch_new(store, err);
    if (fetch)
        sl_fetch_vouch(fetch, SL_VOUCH_RANGES);
    return read_past(source, offset, data, bytes, fetch, err);
}

void sl_source_set_verifier(struct sl_source *source, struct sl_source_verifier *verifier)
{
    source->verifier = verifier;
}

struct sl_source_verifier *sl_source_verifier(const struct sl_source *source)
{
    return source->verifier;
}
