/*
 * The caches of a store by their names, under a lock, with words for whoever reads the log;
 * caches.c decides.
 *
 * A cache is known by what a connection to it is made with, "http://host:port" in one form for all
 * machines, and keeps its number as long as the store is open: what was said of it stays said when
 * its name is looked up anew.
 *
 * Names are looked up by a thread of its own, since resolvers block. Until it has an answer, and
 * where a certificate is made out to the name (https), the name itself is the cache.
 */
#include "through.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "progress.h"
#include "thread.h"
#include "thread_cancel.h"
#include "url.h"

enum {
    BLOCK_BYTES = 8 * 1024 * 1024,
    LOOK_SECONDS = 30,
};

struct place {
    char via[SL_THROUGH_VIA_BYTES];
    const struct sl_url *name; /* it is an address of this; NULL: it was given itself */
    uint64_t bytes, failures, wrong;
    bool blamed; /* of these bytes */
};

struct sl_through {
    uint64_t block_bytes;
    struct sl_progress *progress; /* told who is left; NULL: metrics alone are */
    struct sl_url *names;         /* whose addresses are looked up */
    unsigned name_count;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    struct {
        unsigned holders; /* the store, and the thread */
        bool ends;
        bool warned_of_past;
        struct sl_caches caches;
        struct place **places; /* of each of the caches */
        size_t capacity;
    } locked;
};

/* ---- places ---------------------------------------------------------------------------------- */

/* With the lock. SL_THROUGH_ORIGIN: there is none. */
static int find_place(const struct sl_through *through, const char *via)
{
    for (size_t i = 0; i < through->locked.caches.count; i++)
        if (strcmp(through->locked.places[i]->via, via) == 0)
            return (int)i;
    return SL_THROUGH_ORIGIN;
}

static int add_place(struct sl_through *through, const char *via, const struct sl_url *name,
                     struct sl_err *err)
{
    struct sl_caches *caches = &through->locked.caches;
    int found = find_place(through, via);
    if (found != SL_THROUGH_ORIGIN) {
        sl_caches_set_there(caches, found, true);
        return 0;
    }
    if (sl_grow(&through->locked.places, &through->locked.capacity, caches->count + 1,
                sizeof(*through->locked.places), err) < 0)
        return -1;
    sl_autofree struct place *place = sl_alloc(sizeof(*place), err);
    if (!place || sl_caches_add(caches, sl_caches_hash(via), err) < 0)
        return -1;
    snprintf(place->via, sizeof(place->via), "%s", via);
    place->name = name;
    through->locked.places[caches->count - 1] = sl_steal(&place);
    return 0;
}

static void free_places(struct sl_through *through)
{
    for (size_t i = 0; i < through->locked.caches.count; i++)
        free(through->locked.places[i]);
    free(through->locked.places);
    sl_caches_release(&through->locked.caches);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void let_go(struct sl_through *through)
{
    bool last;
    {
        SL_LOCKED(&through->mutex);
        last = --through->locked.holders == 0;
    }
    if (!last)
        return;
    free_places(through);
    for (unsigned i = 0; i < through->name_count; i++)
        sl_url_release(&through->names[i]);
    free(through->names);
    pthread_cond_destroy(&through->ended);
    pthread_mutex_destroy(&through->mutex);
    free(through);
}

/* "http://10.0.0.7:8080" */
static void name_address(const struct addrinfo *address, uint16_t port,
                         char via[SL_THROUGH_VIA_BYTES])
{
    char host[64], authority[SL_URL_AUTHORITY_MAX];
    *via = 0;
    if (getnameinfo(address->ai_addr, address->ai_addrlen, host, sizeof(host), NULL, 0,
                    NI_NUMERICHOST) != 0)
        return;
    const struct sl_url url = {.host = host, .port = port, .ipv6 = address->ai_family == AF_INET6};
    snprintf(via, SL_THROUGH_VIA_BYTES, "http://%s", sl_url_authority(&url, authority));
}

static bool is_among(const char *via, const struct sl_url *name, const struct addrinfo *list)
{
    char address[SL_THROUGH_VIA_BYTES];
    for (; list; list = list->ai_next) {
        name_address(list, name->port, address);
        if (strcmp(address, via) == 0)
            return true;
    }
    return false;
}

static void take_addresses(struct sl_through *through, const struct sl_url *name,
                           const struct addrinfo *list)
{
    char via[SL_THROUGH_VIA_BYTES];
    SL_LOCKED(&through->mutex);
    for (size_t i = 0; i < through->locked.caches.count; i++) {
        const struct place *place = through->locked.places[i];
        if (place->name == name && !is_among(place->via, name, list))
            sl_caches_set_there(&through->locked.caches, (int)i, false);
    }
    for (; list; list = list->ai_next) {
        name_address(list, name->port, via);
        if (*via)
            add_place(through, via, name, NULL);
    }
}

/* A name that leads nowhere now keeps the addresses that it had. */
static void look_up(struct sl_through *through, const struct sl_url *name)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct addrinfo *list = NULL;
    if (getaddrinfo(name->host, NULL, &hints, &list) != 0 || !list)
        return;
    take_addresses(through, name, list);
    freeaddrinfo(list);
}

/* False: the store is closed. */
static bool rest(struct sl_through *through)
{
    SL_LOCKED(&through->mutex);
    uint64_t until = sl_now_ns() + LOOK_SECONDS * SL_NS_PER_S;
    const struct timespec at = {(time_t)(until / SL_NS_PER_S), (long)(until % SL_NS_PER_S)};
    while (!through->locked.ends && sl_now_ns() < until)
        pthread_cond_timedwait(&through->ended, &through->mutex, &at);
    return !through->locked.ends;
}

void sl_through_look_up(struct sl_through *through)
{
    for (unsigned i = 0; i < through->name_count; i++)
        look_up(through, &through->names[i]);
}

static void *look_up_all(void *arg)
{
    struct sl_through *through = arg;
    do
        sl_through_look_up(through);
    while (rest(through));
    let_go(through);
    return NULL;
}

static int start(struct sl_through *through, struct sl_err *err)
{
    pthread_t thread;
    if (!through->name_count)
        return 0;
    through->locked.holders++;
    if (sl_thread_start(&thread, "sluice-caches", look_up_all, through, err) < 0) {
        through->locked.holders--;
        return -1;
    }
    pthread_detach(thread);
    return 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_address(const struct sl_url *url)
{
    uint8_t bytes[16];
    return url->ipv6 || inet_pton(AF_INET, url->host, bytes) == 1;
}

static int take_url(struct sl_through *through, const char *text, struct sl_err *err)
{
    char authority[SL_URL_AUTHORITY_MAX], via[SL_THROUGH_VIA_BYTES];
    sl_autourl url = {0};
    if (sl_url_parse(text, &url, err) < 0)
        return sl_wrap(err, "source.through");
    if (!sl_url_is_host(&url))
        return sl_fail(err, SL_E_USAGE,
                       "source.through: '%s://%s' and no more is the URL of a cache: leave out "
                       "what comes before and after it",
                       url.tls ? "https" : "http", sl_url_authority(&url, authority));
    snprintf(via, sizeof(via), "%s://%s", url.tls ? "https" : "http",
             sl_url_authority(&url, authority));
    struct sl_url *name = &through->names[through->name_count];
    bool itself = url.tls || is_address(&url);
    if (add_place(through, via, itself ? NULL : name, err) < 0)
        return -1;
    if (itself)
        return 0;
    *name = url;
    url = (struct sl_url){0};
    through->name_count++;
    return 0;
}

struct sl_through *sl_through_new(const struct sl_through_options *options, struct sl_err *err)
{
    struct sl_through *through = sl_alloc(sizeof(*through), err);
    if (!through)
        return NULL;
    through->locked.holders = 1;
    sl_caches_init(&through->locked.caches, options->origin_share > 0 ? options->origin_share : 1);
    through->locked.caches.waits = options->waits;
    through->block_bytes = options->block_bytes ? options->block_bytes : BLOCK_BYTES;
    pthread_mutex_init(&through->mutex, NULL);
    sl_thread_cancel_cond_init(&through->ended);
    through->names = sl_alloc_array(options->count, sizeof(*through->names), err);
    int failed = through->names ? 0 : -1;
    for (unsigned i = 0; !failed && i < options->count; i++)
        failed = take_url(through, options->urls[i], err);
    if (!failed && start(through, err) == 0)
        return through;
    let_go(through);
    return NULL;
}

void sl_through_free(struct sl_through *through)
{
    if (!through)
        return;
    {
        SL_LOCKED(&through->mutex);
        through->locked.ends = true;
        pthread_cond_broadcast(&through->ended);
    }
    let_go(through);
}

void sl_through_report(struct sl_through *through, struct sl_progress *progress)
{
    through->progress = progress;
}

uint64_t sl_through_block_bytes(const struct sl_through *through)
{
    return through->block_bytes;
}

/* ---- choosing -------------------------------------------------------------------------------- */

struct sl_caches_map *sl_through_map_new(const struct sl_through *through, uint64_t key,
                                         uint64_t object_bytes)
{
    return sl_caches_map_new(key, object_bytes / through->block_bytes + 1);
}

void sl_through_choose(struct sl_through *through, struct sl_caches_map *map, uint64_t block,
                       bool proves, struct sl_caches_ask *ask, char via[SL_THROUGH_VIA_BYTES])
{
    SL_LOCKED(&through->mutex);
    *via = 0;
    sl_caches_choose(&through->locked.caches, map, block, proves, ask, sl_now_ns());
    if (ask->asked == SL_ASKED_CACHE)
        memcpy(via, through->locked.places[ask->cache]->via, SL_THROUGH_VIA_BYTES);
}

int sl_through_owner(struct sl_through *through, struct sl_caches_map *map, uint64_t block)
{
    SL_LOCKED(&through->mutex);
    return sl_caches_owner(&through->locked.caches, map, block);
}

size_t sl_through_count(struct sl_through *through)
{
    SL_LOCKED(&through->mutex);
    return through->locked.caches.count;
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* Two caches give a block where one breaks off, and nobody knows then whose a wrong byte is. */
static void note_giver(uint16_t givers[SL_CACHES_TURNS], int giver)
{
    for (unsigned i = 0; i < SL_CACHES_TURNS; i++)
        if (givers[i] == giver)
            return;
    memmove(givers + 1, givers, (SL_CACHES_TURNS - 1) * sizeof(*givers));
    givers[0] = (uint16_t)giver;
}

void sl_through_came(struct sl_through *through, const struct sl_caches_ask *ask,
                     struct sl_caches_map *map, uint64_t block, uint64_t bytes)
{
    SL_LOCKED(&through->mutex);
    struct place *from = through->locked.places[ask->cache];
    from->bytes += bytes;
    from->blamed = false;
    sl_caches_came(&through->locked.caches, ask, bytes, sl_now_ns());
    if (map && block < map->count)
        note_giver(map->blocks[block].givers, ask->cache + 1);
}

void sl_through_agreed(struct sl_through *through, const struct sl_caches_map *map, uint64_t begin,
                       uint64_t end)
{
    uint64_t block = begin / through->block_bytes;
    if (!map || block >= map->count)
        return;
    SL_LOCKED(&through->mutex);
    const uint16_t *givers = map->blocks[block].givers;
    if (givers[0] && !givers[1])
        sl_caches_agreed(&through->locked.caches, givers[0] - 1, end - begin);
}

void sl_through_done(struct sl_through *through, struct sl_caches_ask *ask, bool whole)
{
    SL_LOCKED(&through->mutex);
    sl_caches_done(&through->locked.caches, ask, whole, sl_now_ns());
}

void sl_through_drop(struct sl_through *through, struct sl_caches_ask *ask)
{
    SL_LOCKED(&through->mutex);
    sl_caches_drop(&through->locked.caches, ask);
}

/* With the lock. Said of each once. */
static void note_failure(struct sl_through *through, int number, const char *what,
                         const char *message)
{
    struct place *from = through->locked.places[number];
    enum sl_cache_state state = through->locked.caches.of[number].state;
    if (!from->failures++ && (state == SL_CACHE_IN_USE || state == SL_CACHE_RESTS))
        sl_log(SL_LOG_WARN, "the cache '%s' %s%s", from->via, what, message);
}

void sl_through_failed(struct sl_through *through, struct sl_caches_ask *ask,
                       const struct sl_err *why)
{
    SL_LOCKED(&through->mutex);
    note_failure(through, ask->cache,
                 "does not answer as it should, others are asked: ", why->message);
    sl_caches_failed(&through->locked.caches, ask, sl_now_ns());
}

bool sl_through_lacks(struct sl_through *through, struct sl_caches_ask *ask,
                      struct sl_caches_map *map)
{
    SL_LOCKED(&through->mutex);
    return sl_caches_lacks(&through->locked.caches, ask, map);
}

enum sl_caches_verdict sl_through_judge(struct sl_through *through, struct sl_caches_ask *ask)
{
    SL_LOCKED(&through->mutex);
    int cache = ask->cache;
    enum sl_caches_verdict verdict = sl_caches_judge(&through->locked.caches, ask, sl_now_ns());
    if (verdict != SL_CACHES_FINE)
        note_failure(through, cache,
                     verdict == SL_CACHES_SILENT ? "is silent, others are asked"
                                                 : "takes much longer than usual, others are asked",
                     "");
    return verdict;
}

uint64_t sl_through_judge_ns(struct sl_through *through, const struct sl_caches_ask *ask)
{
    SL_LOCKED(&through->mutex);
    return sl_caches_judge_ns(&through->locked.caches, ask);
}

void sl_through_past(struct sl_through *through, const char *object, const char *why)
{
    SL_LOCKED(&through->mutex);
    if (!through->locked.warned_of_past)
        sl_log(SL_LOG_WARN, "'%s' is not read through caches: %s", object, why);
    through->locked.warned_of_past = true;
}

/* With the lock. */
static void leave(struct sl_through *through, int number, const struct sl_err *why)
{
    struct place *place = through->locked.places[number];
    const struct sl_supplied wrong = {.kind = SL_SUPPLIER_CACHE,
                                      .name = place->via,
                                      .wrong = 1,
                                      .failure = SL_SUPPLIER_FAILURE_COUNT};
    sl_progress_add_supplied(through->progress, &wrong);
    if (sl_caches_leave(&through->locked.caches, number))
        sl_log(SL_LOG_WARN, "the cache '%s' gave bytes that are wrong, and is asked no more: %s",
               place->via, why->message);
    place->wrong++;
}

/* What becomes of whoever gave any of the blocks of these bytes. why: they are wrong. */
static void judge_givers(struct sl_through *through, struct sl_caches_map *map, uint64_t begin,
                         uint64_t end, void (*judge)(struct sl_caches *caches, int cache),
                         const struct sl_err *why)
{
    if (!map || begin >= end)
        return;
    SL_LOCKED(&through->mutex);
    uint64_t last = SL_MIN((end - 1) / through->block_bytes, (uint64_t)map->count - 1);
    for (uint64_t i = begin / through->block_bytes; i <= last; i++) {
        uint16_t *givers = map->blocks[i].givers;
        for (unsigned k = 0; k < SL_CACHES_TURNS; k++) {
            if (givers[k] && why)
                leave(through, givers[k] - 1, why);
            else if (givers[k])
                judge(&through->locked.caches, givers[k] - 1);
            givers[k] = why ? 0 : givers[k];
        }
    }
}

void sl_through_doubt(struct sl_through *through, struct sl_caches_map *map, uint64_t begin,
                      uint64_t end)
{
    judge_givers(through, map, begin, end, sl_caches_doubt, NULL);
}

void sl_through_settle(struct sl_through *through, struct sl_caches_map *map, uint64_t begin,
                       uint64_t end, bool wrong, const char *object)
{
    struct sl_err why = SL_ERR_INIT;
    sl_fail(&why, SL_E_INTEGRITY, "bytes %" PRIu64 "-%" PRIu64 " of '%s'", begin, end - 1, object);
    judge_givers(through, map, begin, end, sl_caches_believe, wrong ? &why : NULL);
}

bool sl_through_blame(struct sl_through *through, const struct sl_err *why)
{
    bool any = false;
    SL_LOCKED(&through->mutex);
    for (size_t i = 0; i < through->locked.caches.count; i++) {
        struct place *place = through->locked.places[i];
        if (!place->bytes || place->blamed)
            continue;
        place->blamed = any = true;
        leave(through, (int)i, why);
    }
    return any;
}

unsigned sl_through_states(struct sl_through *through, struct sl_through_state *states,
                           unsigned limit)
{
    SL_LOCKED(&through->mutex);
    for (size_t i = 0; i < SL_MIN(through->locked.caches.count, (size_t)limit); i++) {
        const struct place *place = through->locked.places[i];
        states[i] =
            (struct sl_through_state){.via = place->via,
                                      .bytes = place->bytes,
                                      .failures = place->failures,
                                      .wrong = place->wrong,
                                      .left = through->locked.caches.of[i].state == SL_CACHE_LEFT,
                                      .gone = through->locked.caches.of[i].state == SL_CACHE_GONE};
    }
    return (unsigned)through->locked.caches.count;
}
