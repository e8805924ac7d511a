/*
 * A table, the newest first. One that somebody holds stays; of the others a few are kept, since a
 * load's connections come and go.
 */
#include "trust.h"

#include <openssl/x509_vfy.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fork_guard.h"
#include "mem.h"
#include "thread.h"

enum { KEPT_MAX = 8 };

/* What a file or a folder is known by; zeros: there is none. */
struct identity {
    dev_t device;
    ino_t number;
    off_t bytes;
    struct timespec changed, modified;
};

struct cache {
    CURLSH *handle;
    pthread_mutex_t mutexes[CURL_LOCK_DATA_LAST];
};

struct sl_trust {
    struct sl_trust *next;
    unsigned holders;
    char *file, *directory; /* NULL: none */
    struct identity of_file, of_directory;
    struct cache caches[2]; /* [1]: of tunnels */
    pthread_mutex_t reading;
    X509_STORE *store; /* NULL: not read yet */
};

static struct {
    pthread_mutex_t mutex;
    struct sl_trust *first;
} table = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void forget(void)
{
    table.first = NULL;
}
SL_FORK_GUARD(&table.mutex, forget)

/* ---- what is what ---------------------------------------------------------------------------- */

static struct identity identify(const char *path)
{
    struct identity identity;
    struct stat is;
    memset(&identity, 0, sizeof(identity));
    if (!path || stat(path, &is) != 0)
        return identity;
    identity.device = is.st_dev;
    identity.number = is.st_ino;
    identity.bytes = is.st_size;
    identity.changed = is.st_ctim;
    identity.modified = is.st_mtim;
    return identity;
}

static bool is_same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool is_same(const struct identity *a, const struct identity *b)
{
    return a->device == b->device && a->number == b->number && a->bytes == b->bytes &&
           is_same_time(a->changed, b->changed) && is_same_time(a->modified, b->modified);
}

static bool is_same_name(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_of(const struct sl_trust *trust, const struct sl_ca_choice *choice,
                  const struct identity *file, const struct identity *directory)
{
    return is_same_name(trust->file, choice->file) &&
           is_same_name(trust->directory, choice->directory) && is_same(&trust->of_file, file) &&
           is_same(&trust->of_directory, directory);
}

/* ---- making and freeing ---------------------------------------------------------------------- */

static void lock_cache(CURL *easy, curl_lock_data data, curl_lock_access access, void *mutexes)
{
    (void)easy, (void)access;
    pthread_mutex_lock((pthread_mutex_t *)mutexes + data);
}

static void unlock_cache(CURL *easy, curl_lock_data data, void *mutexes)
{
    (void)easy;
    pthread_mutex_unlock((pthread_mutex_t *)mutexes + data);
}

static void open_cache(struct cache *cache, bool tunnel)
{
    for (unsigned i = 0; i < CURL_LOCK_DATA_LAST; i++)
        pthread_mutex_init(&cache->mutexes[i], NULL);
    CURLSH *handle = cache->handle = sl_libcurl.share_init();
    if (!handle)
        return; /* every connection has its own, then */
    sl_libcurl.share_setopt(handle, CURLSHOPT_LOCKFUNC, lock_cache);
    sl_libcurl.share_setopt(handle, CURLSHOPT_UNLOCKFUNC, unlock_cache);
    sl_libcurl.share_setopt(handle, CURLSHOPT_USERDATA, cache->mutexes);
    sl_libcurl.share_setopt(handle, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
    if (tunnel)
        sl_libcurl.share_setopt(handle, CURLSHOPT_SHARE, CURL_LOCK_DATA_DNS);
}

static void close_cache(struct cache *cache)
{
    if (cache->handle)
        sl_libcurl.share_cleanup(cache->handle);
    for (unsigned i = 0; i < CURL_LOCK_DATA_LAST; i++)
        pthread_mutex_destroy(&cache->mutexes[i]);
}

static void free_trust(struct sl_trust *trust)
{
    if (!trust)
        return;
    for (unsigned i = 0; i < SL_COUNT(trust->caches); i++)
        close_cache(&trust->caches[i]);
    pthread_mutex_destroy(&trust->reading);
    X509_STORE_free(trust->store);
    free(trust->file);
    free(trust->directory);
    free(trust);
}

static int copy(char **to, const char *text, struct sl_err *err)
{
    *to = text ? sl_strdup(text, err) : NULL;
    return text && !*to ? -1 : 0;
}

static struct sl_trust *new_trust(const struct sl_ca_choice *choice, struct sl_err *err)
{
    struct sl_trust *trust = sl_alloc(sizeof(*trust), err);
    if (!trust)
        return NULL;
    pthread_mutex_init(&trust->reading, NULL);
    for (unsigned i = 0; i < SL_COUNT(trust->caches); i++)
        open_cache(&trust->caches[i], i == 1);
    if (copy(&trust->file, choice->file, err) == 0 &&
        copy(&trust->directory, choice->directory, err) == 0)
        return trust;
    free_trust(trust);
    return NULL;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void drop_old(void)
{
    unsigned count = 0;
    for (struct sl_trust **at = &table.first; *at;) {
        struct sl_trust *trust = *at;
        if (++count <= KEPT_MAX || trust->holders) {
            at = &trust->next;
            continue;
        }
        *at = trust->next;
        free_trust(trust);
    }
}

struct sl_trust *sl_trust_take(const struct sl_ca_choice *choice, struct sl_err *err)
{
    struct identity file = identify(choice->file), directory = identify(choice->directory);
    SL_LOCKED(&table.mutex);
    for (struct sl_trust *trust = table.first; trust; trust = trust->next) {
        if (is_of(trust, choice, &file, &directory)) {
            trust->holders++;
            return trust;
        }
    }
    struct sl_trust *trust = new_trust(choice, err);
    if (!trust)
        return NULL;
    trust->of_file = file;
    trust->of_directory = directory;
    trust->holders = 1;
    trust->next = table.first;
    table.first = trust;
    drop_old();
    return trust;
}

void sl_trust_release(struct sl_trust *trust)
{
    if (!trust)
        return;
    SL_LOCKED(&table.mutex);
    trust->holders--;
}

/* ---- the certificates ------------------------------------------------------------------------ */

/* As libcurl has it: a certificate of the file is trusted though its issuer is not there. */
static X509_STORE *read_store(const struct sl_trust *trust)
{
    X509_STORE *store = X509_STORE_new();
    if (store && (!trust->file || X509_STORE_load_locations(store, trust->file, NULL) == 1) &&
        (!trust->directory || X509_STORE_load_locations(store, NULL, trust->directory) == 1)) {
        X509_STORE_set_flags(store, X509_V_FLAG_TRUSTED_FIRST | X509_V_FLAG_PARTIAL_CHAIN);
        return store;
    }
    X509_STORE_free(store);
    return NULL;
}

X509_STORE *sl_trust_store(struct sl_trust *trust)
{
    SL_LOCKED(&trust->reading);
    if (!trust->store)
        trust->store = read_store(trust);
    return trust->store;
}

CURLSH *sl_trust_cache(struct sl_trust *trust, bool tunnel)
{
    return trust->caches[tunnel ? 1 : 0].handle;
}
