/*
 * Files are kept by name; what of them has come, by the place of each chunk. The hash of a file is
 * known when its chunks cover it without a gap, whichever channel brought them and in which order;
 * a chunk that lies across the border of two ranges comes twice.
 */
#include "xet.h"

#include <inttypes.h>
#include <string.h>

#include "hf_store.h"
#include "log.h"
#include "lower_bound.h"
#include "progress.h"
#include "thread.h"

enum {
    BUCKETS = 16384,
    NOTED_MAX = 131072,
    CHUNKS_LEAST = 64,
    FAILURES_MAX = 3,
    DOUBTS_MAX = 3,
    RANGE_FACTOR = 4
};

struct chunk {
    uint64_t offset;
    uint32_t bytes; /* 0: nothing is here */
    uint8_t hash[SL_XET_HASH_BYTES];
};

/* What stays of a chunk of a file that is right: enough to tell another one. */
struct kept {
    uint64_t offset;
    uint8_t hash[16];
};

struct sl_xet_file {
    struct sl_xet_file *next; /* in its bucket */
    char *key;                /* "COMMIT NAME" */
    char hash[SL_XET_HASH_TEXT];
    uint64_t bytes;
    enum sl_xet_mode mode;
    struct {
        pthread_mutex_t mutex;
        struct chunk *chunks; /* by offset, hashed; NULL once all is known */
        size_t capacity, count;
        struct kept *kept; /* sorted, `count` of them, once all is known */
        uint64_t covered;
        enum { COLLECTS, IS_RIGHT, IS_WRONG } state;
        bool unchecked;  /* bytes came in another way, or wrong */
        bool over;       /* it was wrong, and is collected anew */
        unsigned doubts; /* chunks that came twice and were not the same */
    } locked;
};

struct sl_xet {
    struct sl_hf *hf;
    enum sl_xet_mode mode;
    struct sl_store xorbs;
    struct sl_tokens *tokens;
    struct {
        pthread_mutex_t mutex;
        struct sl_xet_file *files[BUCKETS];
        unsigned failures; /* since the last success */
        unsigned noted;    /* files that are on it */
        bool off;
    } locked;
};

/* ---- signed URLs ----------------------------------------------------------------------------- */

static int prepare(struct sl_source *source, struct sl_range_request *request, struct sl_err *err)
{
    const struct sl_xorb *xorb = source->impl;
    if (sl_xet_check_place(source->store->impl, xorb->url, err) < 0)
        return sl_wrap(err, "cannot read '%s'", source->uri);
    request->url = sl_strdup(xorb->url, err);
    return request->url ? 0 : -1;
}

/* 206, or 200 where a whole xorb was asked for. Bytes of a range that come with 200 may be of any
 * place. */
static int answered(struct sl_source *source, const struct sl_exchange *exchange,
                    struct sl_version *version, struct sl_err *err)
{
    const struct sl_xorb *xorb = source->impl;
    (void)version;
    int status = sl_exchange_status(exchange);
    int64_t length = sl_exchange_content_length(exchange);
    if (status == 206 || (xorb->begin == 0 && length >= 0 && (uint64_t)length == xorb->end))
        return 0;
    sl_fail_code(err, SL_E_NET, "range",
                 "cannot read '%.300s' through Xet: a server of xorbs answered %d instead of 206 "
                 "Partial Content: it does not support range requests",
                 source->uri, status);
    if (err) {
        err->retryable = false;
        err->http_status = status;
    }
    return -1;
}

static const struct sl_http_hooks hooks = {.prepare = prepare, .answered = answered};
static const struct sl_store_kind xorb_kind = {
    .name = "xet", .transport = &sl_http_transport, .hooks = &hooks};

struct sl_store *sl_xet_xorbs(struct sl_xet *xet)
{
    return &xet->xorbs;
}

/* ---- it -------------------------------------------------------------------------------------- */

struct sl_xet *sl_xet_new(struct sl_hf *hf, enum sl_xet_mode mode, struct sl_err *err)
{
    SL_AUTO(sl_xet) xet = sl_alloc(sizeof(*xet), err);
    if (!xet)
        return NULL;
    xet->hf = hf;
    xet->mode = mode;
    xet->xorbs = (struct sl_store){.kind = &xorb_kind,
                                   .transport = &sl_http_transport,
                                   .config = hf->store->config,
                                   .impl = hf};
    xet->xorbs.config.preconnect = 0;
    pthread_mutex_init(&xet->xorbs.locked.mutex, NULL);
    pthread_mutex_init(&xet->locked.mutex, NULL);
    xet->tokens = sl_xet_tokens_new(hf, err);
    return xet->tokens ? sl_steal(&xet) : NULL;
}

static void file_free(struct sl_xet_file *file)
{
    pthread_mutex_destroy(&file->locked.mutex);
    free(file->locked.chunks);
    free(file->locked.kept);
    free(file->key);
    free(file);
}

void sl_xet_free(struct sl_xet *xet)
{
    if (!xet)
        return;
    for (unsigned i = 0; i < BUCKETS; i++)
        while (xet->locked.files[i]) {
            struct sl_xet_file *file = xet->locked.files[i];
            xet->locked.files[i] = file->next;
            file_free(file);
        }
    sl_tokens_free(xet->tokens);
    pthread_mutex_destroy(&xet->xorbs.locked.mutex);
    pthread_mutex_destroy(&xet->locked.mutex);
    free(xet);
}

int sl_xet_access(struct sl_xet *xet, struct sl_xet_access *access, struct sl_err *err)
{
    *access = (struct sl_xet_access){.url = NULL};
    if (sl_tokens_get(xet->tokens, &access->url, &access->generation, err) < 0)
        return -1;
    access->token = strchr(access->url, ' ');
    *access->token++ = 0;
    return 0;
}

void sl_xet_access_release(struct sl_xet_access *access)
{
    if (access->token)
        explicit_bzero(access->token, strlen(access->token));
    free(access->url);
    *access = (struct sl_xet_access){.url = NULL};
}

bool sl_xet_access_renew(struct sl_xet *xet, unsigned generation)
{
    return sl_tokens_renew(xet->tokens, generation);
}

/* ---- files ----------------------------------------------------------------------------------- */

static struct sl_xet_file **bucket_of(struct sl_xet *xet, const char *key)
{
    uint32_t hash = 2166136261;
    for (const char *at = key; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619;
    return &xet->locked.files[hash % BUCKETS];
}

/* Under the lock. */
static struct sl_xet_file *find(struct sl_xet *xet, const char *key)
{
    struct sl_xet_file *file = *bucket_of(xet, key);
    while (file && strcmp(file->key, key) != 0)
        file = file->next;
    return file;
}

/* A question comes before each range that is read through it. */
static void advise_ranges(struct sl_store *store, unsigned factor)
{
    SL_LOCKED(&store->locked.mutex);
    store->locked.range_factor = factor;
}

/* Under the lock. */
static void turn_off(struct sl_xet *xet, const char *why)
{
    if (xet->locked.off)
        return;
    xet->locked.off = true;
    advise_ranges(xet->hf->store, 1);
    sl_progress_add_fallback(xet->xorbs.config.progress);
    sl_log(SL_LOG_WARN,
           "Xet is not used any more for '%s', the hub's own links are: %s (source.hf.xet)",
           xet->hf->store->uri, why);
}

/* Under the lock. The key becomes the file's. */
static int add_file(struct sl_xet *xet, char **key, const char *hash, uint64_t bytes,
                    struct sl_err *err)
{
    struct sl_xet_file **bucket = bucket_of(xet, *key), *file = sl_alloc(sizeof(*file), err);
    if (!file)
        return -1;
    file->key = sl_steal(key);
    memcpy(file->hash, hash, sizeof(file->hash));
    file->bytes = bytes;
    file->mode = xet->mode;
    pthread_mutex_init(&file->locked.mutex, NULL);
    file->next = *bucket;
    *bucket = file;
    xet->locked.noted++;
    if (!xet->locked.off)
        advise_ranges(xet->hf->store, RANGE_FACTOR);
    return 0;
}

/* It cannot be read through Xet: an error where nothing else will do. */
static int leave(const struct sl_xet *xet, const char *name, const char *why, struct sl_err *err)
{
    if (xet->mode != SL_XET_ON)
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "xet",
                        "cannot read '%.300s' of '%s' through Xet: the hub %s; set source.hf.xet "
                        "to auto to read it by links",
                        name, xet->hf->store->uri, why);
}

int sl_xet_note(struct sl_xet *xet, const char *commit, const char *name, const char *hash,
                uint64_t bytes, struct sl_err *err)
{
    if (!sl_xet_is_hash(hash) || bytes > SL_OBJECT_BYTES_MAX)
        return leave(xet, name, "gives a hash or a size for it that makes no sense", err);
    sl_autofree char *key = sl_asprintf(err, "%s %s", commit, name);
    if (!key)
        return -1;
    SL_LOCKED(&xet->locked.mutex);
    const struct sl_xet_file *file = find(xet, key);
    if (!file && xet->locked.noted == NOTED_MAX)
        return leave(xet, name, "lists too many files", err); /* wanted or not */
    if (!file)
        return add_file(xet, &key, hash, bytes, err);
    if (strcmp(file->hash, hash) == 0 && file->bytes == bytes)
        return 0;
    if (leave(xet, name, "gives two hashes or sizes for it", err) < 0)
        return -1;
    turn_off(xet, "the hub gives two hashes or sizes for one file");
    return 0;
}

/* Used or not any more. */
static struct sl_xet_file *find_noted(struct sl_xet *xet, const char *commit, const char *name,
                                      bool *off)
{
    sl_autofree char *key = sl_asprintf(NULL, "%s %s", commit, name);
    SL_LOCKED(&xet->locked.mutex);
    *off = xet->locked.off;
    return key ? find(xet, key) : NULL;
}

struct sl_xet_file *sl_xet_find(struct sl_xet *xet, const char *commit, const char *name,
                                bool again)
{
    bool off;
    struct sl_xet_file *file = find_noted(xet, commit, name, &off);
    if (xet->mode == SL_XET_ON || !file)
        return file;
    SL_LOCKED(&file->locked.mutex);
    return off || again || file->locked.state == IS_WRONG ? NULL : file;
}

enum sl_delivery sl_xet_delivery(struct sl_xet *xet, const char *commit, const char *name)
{
    bool off;
    struct sl_xet_file *file = find_noted(xet, commit, name, &off);
    if (!file)
        return SL_DELIVERY_UNCHECKED;
    SL_LOCKED(&file->locked.mutex);
    if (file->locked.unchecked || file->locked.state == IS_WRONG)
        return SL_DELIVERY_UNCHECKED;
    if (file->locked.state == IS_RIGHT)
        return SL_DELIVERY_CHECKED;
    return off ? SL_DELIVERY_UNCHECKED : SL_DELIVERY_CHECKING;
}

void sl_xet_read_elsewhere(struct sl_xet *xet, const char *commit, const char *name)
{
    bool off;
    struct sl_xet_file *file = find_noted(xet, commit, name, &off);
    if (!file)
        return;
    SL_LOCKED(&file->locked.mutex);
    file->locked.unchecked = true;
}

const char *sl_xet_file_hash_text(const struct sl_xet_file *file)
{
    return file->hash;
}

uint64_t sl_xet_file_bytes(const struct sl_xet_file *file)
{
    return file->bytes;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Where the chunk of this offset is, or belongs. */
static struct chunk *place_of(struct chunk *chunks, size_t capacity, uint64_t offset)
{
    size_t at = (size_t)((offset * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (capacity - 1);
    while (chunks[at].bytes && chunks[at].offset != offset)
        at = (at + 1) & (capacity - 1);
    return &chunks[at];
}

/* Under the lock: room for one more. */
static int make_room(struct sl_xet_file *file, struct sl_err *err)
{
    if (2 * (file->locked.count + 1) <= file->locked.capacity)
        return 0;
    size_t capacity = SL_MAX(2 * file->locked.capacity, (size_t)CHUNKS_LEAST);
    struct chunk *chunks = sl_alloc_array(capacity, sizeof(*chunks), err);
    if (!chunks)
        return -1;
    for (size_t i = 0; i < file->locked.capacity; i++)
        if (file->locked.chunks[i].bytes)
            *place_of(chunks, capacity, file->locked.chunks[i].offset) = file->locked.chunks[i];
    free(file->locked.chunks);
    file->locked.chunks = chunks;
    file->locked.capacity = capacity;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct chunk *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int wrong(struct sl_err *err, const char *why)
{
    sl_fail_code(err, SL_E_INTEGRITY, "xet-hash",
                 "%s: what Xet gives is not the file that the hub lists; set source.hf.xet to off "
                 "to read it without Xet",
                 why);
    return -1;
}

/* Under the lock: the sorted chunks become what is kept of them, in their own memory. */
static void keep(struct sl_xet_file *file, size_t count)
{
    struct chunk *chunks = sl_steal(&file->locked.chunks);
    struct kept *kept = (void *)chunks;
    for (size_t i = 0; i < count; i++) {
        struct kept one = {.offset = chunks[i].offset};
        memcpy(one.hash, chunks[i].hash, sizeof(one.hash));
        kept[i] = one;
    }
    struct kept *shorter = realloc(kept, count * sizeof(*kept));
    file->locked.kept = shorter ? shorter : kept;
    file->locked.capacity = 0;
}

/* Another try may bring what is right. */
static int wrong_for_now(struct sl_err *err, const char *why)
{
    wrong(err, why);
    if (err)
        err->retryable = true;
    return -1;
}

/* Under the lock: all of it came, and is wrong. Which bytes are is not known, so only a hash of
 * somebody else's can tell when all is right: it is read by links, or, where that will not do,
 * through Xet once more. */
static int leave_file(struct sl_xet_file *file, const char *why, bool vouched, struct sl_err *err)
{
    bool again = vouched && file->mode == SL_XET_ON && !file->locked.over;
    file->locked.unchecked = true;
    file->locked.state = again ? COLLECTS : IS_WRONG;
    if (!again)
        return vouched && file->mode != SL_XET_ON ? wrong_for_now(err, why) : wrong(err, why);
    free(sl_steal(&file->locked.chunks));
    free(sl_steal(&file->locked.kept));
    file->locked.capacity = file->locked.count = 0;
    file->locked.covered = 0;
    file->locked.over = true;
    return wrong_for_now(err, why);
}

/* Under the lock: a chunk is not what it was before. One of both is wrong. */
static int doubt(struct sl_xet_file *file, bool vouched, struct sl_err *err)
{
    static const char why[] = "a chunk has changed";
    if (++file->locked.doubts < DOUBTS_MAX)
        return wrong_for_now(err, why);
    file->locked.doubts = 0;
    return leave_file(file, why, vouched, err);
}

/* Under the lock: its chunks in order, whose bytes add up to the file's. */
static int check_file(struct sl_xet_file *file, bool vouched, struct sl_err *err)
{
    struct chunk *chunks = file->locked.chunks;
    size_t count = 0;
    uint64_t end = 0;
    uint8_t hash[SL_XET_HASH_BYTES];
    char text[SL_XET_HASH_TEXT];
    for (size_t i = 0; i < file->locked.capacity; i++)
        if (chunks[i].bytes)
            chunks[count++] = chunks[i];
    qsort(chunks, count, sizeof(*chunks), by_offset);
    sl_autofree struct sl_xet_node *nodes = sl_alloc_array(count, sizeof(*nodes), err);
    if (!nodes)
        return -1;
    for (size_t i = 0; i < count; end += chunks[i++].bytes) {
        if (chunks[i].offset != end)
            return leave_file(file, "its chunks overlap", vouched, err);
        memcpy(nodes[i].hash, chunks[i].hash, SL_XET_HASH_BYTES);
        nodes[i].bytes = chunks[i].bytes;
    }
    sl_xet_file_hash(nodes, count, hash);
    sl_xet_hash_text(hash, text);
    if (strcmp(text, file->hash) != 0)
        return leave_file(file, "its hash does not match", vouched, err);
    keep(file, count);
    file->locked.state = IS_RIGHT;
    return 0;
}

/* Under the lock: a chunk of a file that is right came once more. */
static int compare_again(struct sl_xet_file *file, const struct chunk *chunk, bool vouched,
                         struct sl_err *err)
{
    const struct kept *kept = file->locked.kept;
    size_t at = SL_LOWER_BOUND(i, file->locked.count, kept[i].offset < chunk->offset);
    bool same = at < file->locked.count && kept[at].offset == chunk->offset &&
                memcmp(kept[at].hash, chunk->hash, sizeof(kept[at].hash)) == 0;
    return same ? 0 : doubt(file, vouched, err);
}

int sl_xet_file_add(struct sl_xet_file *file, uint64_t offset, const void *data, size_t bytes,
                    bool vouched, struct sl_err *err)
{
    struct chunk chunk = {.offset = offset, .bytes = (uint32_t)bytes};
    sl_xet_chunk_hash(data, bytes, chunk.hash);
    SL_LOCKED(&file->locked.mutex);
    if (file->locked.state == IS_RIGHT)
        return compare_again(file, &chunk, vouched, err);
    if (file->locked.state == IS_WRONG)
        return vouched && file->mode != SL_XET_ON ? wrong_for_now(err, "its hash does not match")
                                                  : wrong(err, "its hash does not match");
    if (make_room(file, err) < 0)
        return -1;
    struct chunk *place = place_of(file->locked.chunks, file->locked.capacity, offset);
    if (place->bytes)
        return memcmp(place, &chunk, sizeof(chunk)) == 0 ? 0 : doubt(file, vouched, err);
    *place = chunk;
    file->locked.count++;
    file->locked.covered += bytes;
    return file->locked.covered < file->bytes ? 0 : check_file(file, vouched, err);
}

/* ---- whether it works ------------------------------------------------------------------------ */

/* What another way to the same bytes cannot make better, or has been decided for its file. */
static bool is_final(const struct sl_err *err)
{
    return err->kind == SL_E_CANCELED || err->kind == SL_E_NO_SPACE ||
           strcmp(err->code, "xet-hash") == 0;
}

void sl_xet_note_failure(struct sl_xet *xet, struct sl_err *err)
{
    if (err->retryable && strcmp(err->code, "xet-hash") == 0)
        sl_log(SL_LOG_WARN, "%s: reading it again", err->message);
    if (is_final(err) || xet->mode == SL_XET_ON)
        return;
    bool unreached = sl_retry_unreached(err);
    SL_LOCKED(&xet->locked.mutex);
    if (!err->retryable || unreached || ++xet->locked.failures >= FAILURES_MAX)
        turn_off(xet, err->message);
    err->retryable = true;
}

void sl_xet_note_success(struct sl_xet *xet)
{
    SL_LOCKED(&xet->locked.mutex);
    xet->locked.failures = 0;
}
