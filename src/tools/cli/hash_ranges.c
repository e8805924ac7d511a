/*
 * A few threads take one range after another, each with a source of its own at the one version that
 * the first opening found: an object that changes meanwhile is noticed by every one of them. Who
 * takes the first range of an object opens it; others who have a range of it wait for that.
 */
#include "hash_ranges.h"

#include <inttypes.h>

#include "hash.h"
#include "thread.h"

enum { THREADS_MAX = 8, PIECE_BYTES = 8 * 1024 * 1024 };

struct hashing {
    struct sl_store *store;
    struct sl_hashed_range *ranges;
    size_t count;
    pthread_mutex_t lock;
    pthread_cond_t opened;
    struct {
        size_t next;
        struct sl_err err;
    } locked; /* and what changes of objects */
};

static void fail(struct hashing *hashing, const struct sl_err *err)
{
    SL_LOCKED(&hashing->lock);
    if (!hashing->locked.err.kind)
        hashing->locked.err = *err;
    pthread_cond_broadcast(&hashing->opened);
}

/* ---- objects --------------------------------------------------------------------------------- */

/* May this thread go on with the object: it is open now, or, with *opens, this thread opens it. */
static bool wait_for(struct hashing *hashing, struct sl_hashed_object *object, bool *opens)
{
    SL_LOCKED(&hashing->lock);
    while (object->opening && !hashing->locked.err.kind)
        pthread_cond_wait(&hashing->opened, &hashing->lock);
    *opens = !object->source;
    object->opening = object->opening || *opens;
    return !hashing->locked.err.kind;
}

static int open_object(struct hashing *hashing, struct sl_hashed_object *object, struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    if (sl_source_open(hashing->store, object->name, 1, &source, err) < 0)
        return -1;
    if (sl_source_bytes(source) != object->bytes)
        return sl_fail(err, SL_E_INTEGRITY,
                       "'%s' changed: it had %" PRIu64 " bytes when it was listed and has %" PRIu64,
                       object->name, object->bytes, sl_source_bytes(source));
    SL_LOCKED(&hashing->lock);
    object->source = sl_steal(&source);
    object->opening = false;
    pthread_cond_broadcast(&hashing->opened);
    return 0;
}

static int enter_object(struct hashing *hashing, struct sl_hashed_object *object,
                        struct sl_source **source, struct sl_err *err)
{
    bool opens;
    if (!wait_for(hashing, object, &opens))
        return sl_fail(err, SL_E_CANCELED, "another range could not be read");
    if (opens && open_object(hashing, object, err) < 0)
        return -1;
    return sl_source_known(hashing->store, object->name, object->bytes,
                           sl_source_version(object->source), source, err);
}

static void leave_object(struct hashing *hashing, struct sl_hashed_object *object)
{
    struct sl_source *last = NULL;
    {
        SL_LOCKED(&hashing->lock);
        if (--object->left == 0)
            last = sl_steal(&object->source);
    }
    sl_source_free(last);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static int hash_range(struct sl_source *source, uint8_t *piece, struct sl_hashed_range *range,
                      struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    range->crc32c = 0;
    for (uint64_t at = range->begin; at < range->end;) {
        size_t bytes = (size_t)SL_MIN(range->end - at, (uint64_t)PIECE_BYTES);
        if (sl_source_read(source, at, piece, bytes, err) < 0)
            return -1;
        range->crc32c = sl_crc32c(range->crc32c, piece, bytes);
        sl_sha256_update(sha, piece, bytes);
        at += bytes;
    }
    sl_sha256_finish(sha, range->sha256);
    return 0;
}

static struct sl_hashed_range *take(struct hashing *hashing)
{
    SL_LOCKED(&hashing->lock);
    if (hashing->locked.err.kind || hashing->locked.next == hashing->count)
        return NULL;
    return &hashing->ranges[hashing->locked.next++];
}

/* One range after another; the source is kept while they are of one object. */
static int hash_many(struct hashing *hashing, struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    const struct sl_hashed_object *of = NULL;
    sl_autofree uint8_t *piece = sl_alloc_aligned(4096, PIECE_BYTES, err);
    if (!piece)
        return -1;
    for (struct sl_hashed_range *range; (range = take(hashing));) {
        if (range->object != of) {
            sl_source_free(sl_steal(&source));
            if (enter_object(hashing, range->object, &source, err) < 0)
                return -1;
        }
        of = range->object;
        if (hash_range(source, piece, range, err) < 0)
            return -1;
        leave_object(hashing, range->object);
    }
    return 0;
}

static void *run(void *arg)
{
    struct hashing *hashing = arg;
    struct sl_err err = SL_ERR_INIT;
    if (hash_many(hashing, &err) < 0)
        fail(hashing, &err);
    return NULL;
}

/* This thread hashes too, so one that cannot start costs time only. */
int sl_cli_hash_ranges(struct sl_store *store, struct sl_hashed_range *ranges, size_t count,
                       struct sl_err *err)
{
    struct hashing hashing = {.store = store,
                              .ranges = ranges,
                              .count = count,
                              .lock = PTHREAD_MUTEX_INITIALIZER,
                              .opened = PTHREAD_COND_INITIALIZER};
    pthread_t threads[THREADS_MAX];
    size_t wanted = SL_MIN(count, (size_t)THREADS_MAX), started = 0;
    for (size_t i = 0; i < count; i++)
        ranges[i].object->left++;
    while (started + 1 < wanted &&
           sl_thread_start(&threads[started], "sl-sign", run, &hashing, NULL) == 0)
        started++;
    run(&hashing);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < count; i++) /* after a failure some are open still */
        sl_source_free(sl_steal(&ranges[i].object->source));
    if (!hashing.locked.err.kind)
        return 0;
    *err = hashing.locked.err; /* no other thread is left */
    return -1;
}
