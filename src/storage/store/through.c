/*
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
#include "thread.h"
#include "thread_cancel.h"
#include "url.h"

#define PATIENCE_NS (2 * SL_NS_PER_S) /* at least */

enum {
    BLOCK_BYTES = 8 * 1024 * 1024,
    PLACES_MAX = 4096, /* as many addresses as a name has in an answer of 64 KiB */
    LOOK_SECONDS = 30,
    REST_MS = 1000,
    REST_MS_MAX = 30 * 1000,
    SLACK_PART = 64, /* so much more than its share may one own, rounded up */
    LATE_TIMES = 4,
    LATE_PART = 8, /* of the blocks may be late, and a few at first */
    LATE_FIRST = 4,
};

struct place {
    char via[SL_THROUGH_VIA_BYTES];
    uint64_t hash;
    const struct sl_url *name; /* it is an address of this; NULL: it was given itself */
    enum {
        PLACE_IN_USE,
        PLACE_GONE, /* its name has it no more, or has addresses in its place */
        PLACE_LEFT, /* it gave what is wrong */
    } state;
    uint64_t rests_until_ns;
    unsigned failed; /* times in a row */
    uint64_t came_ns;
    uint64_t bytes, failures, wrong;
    bool blamed; /* of these bytes */
};

struct sl_through {
    uint64_t block_bytes;
    struct sl_url *names; /* whose addresses are looked up */
    unsigned name_count;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    struct {
        unsigned holders; /* the store, and the thread */
        bool ends;
        bool warned_of_unseen;
        uint64_t usual_ns; /* of a block; 0: none has come */
        unsigned late_credit;
        uint64_t epoch; /* counts changes of who is there, from 1 on */
        struct place **places;
        size_t count, capacity;
    } locked;
};

struct sl_through_map {
    uint64_t key;
    size_t count;
    uint64_t epoch; /* of the owners; 0: there are none yet */
    struct {
        uint16_t owner, giver; /* a cache's number and 1, or 0 */
    } blocks[];
};

/* ---- places ---------------------------------------------------------------------------------- */

/* The finalizer of MurmurHash3 (Austin Appleby, public domain): all bits of the input reach all of
 * the output. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

uint64_t sl_through_rank(uint64_t cache, uint64_t key, uint64_t block)
{
    return mix(cache ^ mix(key ^ mix(block + 1)));
}

/* FNV-1a. */
uint64_t sl_through_hash(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return mix(hash);
}

/* With the lock. */
static struct place *find_place(struct sl_through *through, const char *via)
{
    for (size_t i = 0; i < through->locked.count; i++)
        if (strcmp(through->locked.places[i]->via, via) == 0)
            return through->locked.places[i];
    return NULL;
}

static int add_place(struct sl_through *through, const char *via, const struct sl_url *name,
                     struct sl_err *err)
{
    struct place *place = find_place(through, via);
    if (place) {
        if (place->state == PLACE_GONE) {
            place->state = PLACE_IN_USE;
            through->locked.epoch++;
        }
        return 0;
    }
    if (through->locked.count == PLACES_MAX)
        return sl_fail(err, SL_E_USAGE, "source.through: more than %d caches", PLACES_MAX);
    if (sl_grow(&through->locked.places, &through->locked.capacity, through->locked.count + 1,
                sizeof(*through->locked.places), err) < 0 ||
        !(place = sl_alloc(sizeof(*place), err)))
        return -1;
    snprintf(place->via, sizeof(place->via), "%s", via);
    place->hash = sl_through_hash(via);
    place->name = name;
    through->locked.places[through->locked.count++] = place;
    through->locked.epoch++;
    return 0;
}

static void free_places(struct sl_through *through)
{
    for (size_t i = 0; i < through->locked.count; i++)
        free(through->locked.places[i]);
    free(through->locked.places);
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
    for (size_t i = 0; i < through->locked.count; i++) {
        struct place *place = through->locked.places[i];
        if (place->name != name || place->state != PLACE_IN_USE || is_among(place->via, name, list))
            continue;
        place->state = PLACE_GONE;
        through->locked.epoch++;
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

static void *look_up_all(void *arg)
{
    struct sl_through *through = arg;
    do
        for (unsigned i = 0; i < through->name_count; i++)
            look_up(through, &through->names[i]);
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
    if (url.userinfo || strcmp(url.target, "/") != 0)
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
    through->locked.late_credit = LATE_FIRST * LATE_PART;
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

uint64_t sl_through_block_bytes(const struct sl_through *through)
{
    return through->block_bytes;
}

/* ---- choosing -------------------------------------------------------------------------------- */

static bool may_ask(const struct place *place, uint64_t now_ns)
{
    return place->state == PLACE_IN_USE && place->rests_until_ns <= now_ns;
}

static bool was_tried(const struct sl_through_tried *tried, size_t number)
{
    for (unsigned i = 0; i < tried->count; i++)
        if (tried->places[i] == (int)number)
            return true;
    return false;
}

/* The highest that may be asked; SL_THROUGH_ORIGIN: there is none. */
static int find_highest(const struct sl_through *through, uint64_t key, uint64_t block,
                        const struct sl_through_tried *tried)
{
    uint64_t highest = 0, now = sl_now_ns();
    int found = SL_THROUGH_ORIGIN;
    for (size_t i = 0; i < through->locked.count; i++) {
        const struct place *place = through->locked.places[i];
        uint64_t rank = sl_through_rank(place->hash, key, block) | 1;
        if (rank <= highest || was_tried(tried, i) || !may_ask(place, now))
            continue;
        highest = rank;
        found = (int)i;
    }
    return found;
}

struct sl_through_map *sl_through_map_new(const struct sl_through *through, uint64_t key,
                                          uint64_t object_bytes)
{
    uint64_t blocks = object_bytes / through->block_bytes + 1;
    struct sl_through_map *map = sl_alloc(sizeof(*map) + blocks * sizeof(*map->blocks), NULL);
    if (!map)
        return NULL;
    map->key = key;
    map->count = blocks;
    return map;
}

/* Whoever is there counts, also while it rests or was left: other machines do not know of that. */
static void find_owners(const struct sl_through *through, struct sl_through_map *map)
{
    size_t there = 0;
    sl_autofree size_t *owned = sl_alloc_array(through->locked.count, sizeof(*owned), NULL);
    map->epoch = through->locked.epoch;
    for (size_t i = 0; i < through->locked.count; i++)
        there += through->locked.places[i]->state != PLACE_GONE;
    size_t most = there ? (map->count + map->count / SLACK_PART + there - 1) / there : 0;
    for (size_t block = 0; owned && block < map->count; block++) {
        uint64_t highest = 0;
        size_t owner = 0;
        for (size_t i = 0; i < through->locked.count; i++) {
            const struct place *place = through->locked.places[i];
            uint64_t rank = sl_through_rank(place->hash, map->key, block) | 1;
            if (rank <= highest || place->state == PLACE_GONE || owned[i] >= most)
                continue;
            highest = rank;
            owner = i;
        }
        map->blocks[block].owner = (uint16_t)(highest ? owner + 1 : 0);
        owned[owner]++;
    }
}

/* SL_THROUGH_ORIGIN: it is not there, or was asked. */
static int find_owner(struct sl_through *through, struct sl_through_map *map, uint64_t block,
                      const struct sl_through_tried *tried)
{
    if (map->epoch != through->locked.epoch)
        find_owners(through, map);
    int owner = block < map->count ? map->blocks[block].owner - 1 : SL_THROUGH_ORIGIN;
    bool asked = owner != SL_THROUGH_ORIGIN && !was_tried(tried, (size_t)owner) &&
                 may_ask(through->locked.places[owner], sl_now_ns());
    return asked ? owner : SL_THROUGH_ORIGIN;
}

void sl_through_choose(struct sl_through *through, struct sl_through_map *map, uint64_t block,
                       const struct sl_through_tried *tried, struct sl_through_pick *pick)
{
    *pick = (struct sl_through_pick){.place = SL_THROUGH_ORIGIN};
    if (tried->count == SL_THROUGH_TURNS)
        return;
    SL_LOCKED(&through->mutex);
    if (map)
        pick->place = find_owner(through, map, block, tried);
    if (pick->place == SL_THROUGH_ORIGIN)
        pick->place = find_highest(through, map ? map->key : 0, block, tried);
    if (pick->place != SL_THROUGH_ORIGIN)
        memcpy(pick->via, through->locked.places[pick->place]->via, SL_THROUGH_VIA_BYTES);
}

/* ---- what came of it ------------------------------------------------------------------------- */

uint64_t sl_through_came_ns(struct sl_through *through, int place)
{
    SL_LOCKED(&through->mutex);
    return through->locked.places[place]->came_ns;
}

void sl_through_came(struct sl_through *through, int place, struct sl_through_map *map,
                     uint64_t block, uint64_t bytes)
{
    SL_LOCKED(&through->mutex);
    struct place *from = through->locked.places[place];
    from->bytes += bytes;
    from->failed = 0;
    from->blamed = false;
    from->came_ns = sl_now_ns();
    if (map && block < map->count)
        map->blocks[block].giver = (uint16_t)(place + 1);
}

static void give_rest(struct place *place)
{
    uint64_t ms = (uint64_t)REST_MS << SL_MIN(place->failed, 5u);
    place->failed++;
    place->rests_until_ns = sl_now_ns() + SL_MIN(ms, (uint64_t)REST_MS_MAX) * SL_NS_PER_MS;
}

void sl_through_took(struct sl_through *through, uint64_t ns)
{
    SL_LOCKED(&through->mutex);
    uint64_t usual = through->locked.usual_ns;
    if (ns > usual) /* soon, when all of them become slower; slowly, when some are fast */
        usual += (ns - usual + 3) / 4;
    else
        usual -= (usual - ns) / 16;
    through->locked.usual_ns = usual;
    through->locked.late_credit++;
}

uint64_t sl_through_patience_ns(struct sl_through *through)
{
    SL_LOCKED(&through->mutex);
    uint64_t usual = through->locked.usual_ns;
    return usual ? SL_MAX(usual * LATE_TIMES, (uint64_t)PATIENCE_NS) : UINT64_MAX;
}

bool sl_through_late(struct sl_through *through, int place)
{
    SL_LOCKED(&through->mutex);
    if (through->locked.late_credit < LATE_PART)
        return false;
    through->locked.late_credit -= LATE_PART;
    struct place *from = through->locked.places[place];
    if (!from->failures++)
        sl_log(SL_LOG_WARN,
               "the cache '%s' is much slower than the others, which are asked instead", from->via);
    give_rest(from);
    return true;
}

void sl_through_unseen(struct sl_through *through, const char *object)
{
    SL_LOCKED(&through->mutex);
    if (!through->locked.warned_of_unseen)
        sl_log(
            SL_LOG_WARN,
            "'%s' is not read through caches: a token, a login, a signed link or a key goes with "
            "its requests, which a cache sees only by https, and the key of SSE-C none",
            object);
    through->locked.warned_of_unseen = true;
}

void sl_through_failed(struct sl_through *through, int place, const struct sl_err *why)
{
    SL_LOCKED(&through->mutex);
    struct place *from = through->locked.places[place];
    if (!from->failures++ && from->state == PLACE_IN_USE)
        sl_log(SL_LOG_WARN, "the cache '%s' does not answer as it should, others are asked: %s",
               from->via, why->message);
    give_rest(from);
}

/* With the lock. */
static void leave(struct place *place, const struct sl_err *why)
{
    if (place->state != PLACE_LEFT)
        sl_log(SL_LOG_WARN, "the cache '%s' gave bytes that are wrong, and is asked no more: %s",
               place->via, why->message);
    place->state = PLACE_LEFT;
    place->wrong++;
}

void sl_through_wrong(struct sl_through *through, struct sl_through_map *map, uint64_t begin,
                      uint64_t end, const char *object)
{
    struct sl_err why = SL_ERR_INIT;
    if (!map || begin >= end)
        return;
    sl_fail(&why, SL_E_INTEGRITY, "bytes %" PRIu64 "-%" PRIu64 " of '%s'", begin, end - 1, object);
    SL_LOCKED(&through->mutex);
    uint64_t last = SL_MIN((end - 1) / through->block_bytes, (uint64_t)map->count - 1);
    for (uint64_t i = begin / through->block_bytes; i <= last; i++) {
        if (map->blocks[i].giver)
            leave(through->locked.places[map->blocks[i].giver - 1], &why);
        map->blocks[i].giver = 0;
    }
}

bool sl_through_blame(struct sl_through *through, const struct sl_err *why)
{
    bool any = false;
    SL_LOCKED(&through->mutex);
    for (size_t i = 0; i < through->locked.count; i++) {
        struct place *place = through->locked.places[i];
        if (!place->bytes || place->blamed)
            continue;
        place->blamed = any = true;
        leave(place, why);
    }
    return any;
}

unsigned sl_through_states(struct sl_through *through, struct sl_through_state *states,
                           unsigned limit)
{
    SL_LOCKED(&through->mutex);
    for (size_t i = 0; i < SL_MIN(through->locked.count, (size_t)limit); i++) {
        const struct place *place = through->locked.places[i];
        states[i] = (struct sl_through_state){.via = place->via,
                                              .bytes = place->bytes,
                                              .failures = place->failures,
                                              .wrong = place->wrong,
                                              .left = place->state == PLACE_LEFT};
    }
    return (unsigned)through->locked.count;
}
