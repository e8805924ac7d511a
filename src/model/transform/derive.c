/*
 * The caller and the thread share the work; whoever leaves it last frees it:
 *
 *     RUNNING -> ENDED    the thread is done: the caller takes the key and frees
 *     RUNNING -> LEFT     the caller was canceled: the thread frees, and the next may begin
 */
#include "derive.h"

#include <assert.h>
#include <inttypes.h>
#include <sodium.h>
#include <string.h>

#include "fork_guard.h"
#include "secret_pages.h"
#include "thread_cancel.h"

struct work {
    struct sl_derivation derivation; /* its passphrase lies behind this struct */
    uint8_t key[SL_DERIVE_KEY_MAX];
    size_t key_bytes;
    bool failed;
    enum { RUNNING, ENDED, LEFT } state; /* guarded by `lock` */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_cond_t changed; /* an end, of any */
static unsigned left_behind;   /* those that are LEFT */

static void init(void)
{
    sl_thread_cancel_cond_init(&changed);
}

/* Its threads are the parent's. */
static void forget(void)
{
    left_behind = 0;
    init();
}
SL_FORK_GUARD(&lock, forget)

static struct work *work_new(const struct sl_derivation *derivation, size_t key_bytes,
                             struct sl_err *err)
{
    struct work *work;
    assert(key_bytes <= SL_DERIVE_KEY_MAX);
    size_t bytes = sizeof(*work) + derivation->passphrase_bytes;
    work = sl_secret_pages_new(bytes, err);
    if (!work)
        return NULL;
    work->derivation = *derivation;
    work->key_bytes = key_bytes;
    work->derivation.passphrase = work + 1;
    memcpy(work + 1, derivation->passphrase, derivation->passphrase_bytes);
    return work;
}

static void work_free(struct work *work)
{
    sl_secret_pages_free(work, sizeof(*work) + work->derivation.passphrase_bytes);
}

static bool make(struct work *work)
{
    const struct sl_derivation *of = &work->derivation;
    if (of->kind == SL_DERIVE_SCRYPT)
        return crypto_pwhash_scryptsalsa208sha256(work->key, work->key_bytes, of->passphrase,
                                                  of->passphrase_bytes, of->salt, of->opslimit,
                                                  (size_t)of->memlimit) == 0;
    return crypto_pwhash(work->key, work->key_bytes, of->passphrase, of->passphrase_bytes, of->salt,
                         of->opslimit, (size_t)of->memlimit, crypto_pwhash_ALG_ARGON2ID13) == 0;
}

static void *run(void *arg)
{
    struct work *work = arg;
    bool made = make(work), left;
    {
        SL_LOCKED(&lock);
        left = work->state == LEFT;
        if (left)
            left_behind--;
        work->failed = !made;
        work->state = ENDED;
        pthread_cond_broadcast(&changed);
    }
    if (left)
        work_free(work);
    return NULL;
}

/* SL_E_CANCELED: nobody wants it any more. */
static int check_wanted(struct sl_cancel *cancel, const struct sl_counter *unwanted,
                        struct sl_err *err)
{
    if (sl_cancel_check(sl_thread_cancel(cancel), err) < 0)
        return -1;
    if (unwanted && sl_counter_get(unwanted))
        return sl_fail(err, SL_E_CANCELED, "the key is not wanted any more");
    return 0;
}

/* With the lock. */
static int await_change(struct sl_cancel *cancel, const struct sl_counter *unwanted,
                        struct sl_err *err)
{
    if (sl_thread_cancel_look(&changed, &lock, cancel, err) < 0)
        return -1;
    return check_wanted(cancel, unwanted, err);
}

static int start(struct work *work, struct sl_err *err)
{
    pthread_t thread;
    if (sl_thread_start(&thread, "derive", run, work, err) < 0)
        return -1;
    pthread_detach(thread);
    return 0;
}

/* True: the thread has it. One that ends while the caller is told to go is the caller's. */
static bool await_end(struct work *work, struct sl_cancel *cancel,
                      const struct sl_counter *unwanted, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    SL_LOCKED(&lock);
    while (work->state == RUNNING) {
        if (await_change(cancel, unwanted, &why) == 0 || work->state != RUNNING)
            continue;
        work->state = LEFT;
        left_behind++;
        if (err)
            *err = why;
        return true;
    }
    return false;
}

static int await_others(struct sl_cancel *cancel, const struct sl_counter *unwanted,
                        struct sl_err *err)
{
    SL_LOCKED(&lock);
    while (left_behind)
        if (await_change(cancel, unwanted, err) < 0)
            return -1;
    return 0;
}

/* -1: the work is somebody else's, or was not done; it is the caller's otherwise. */
static int do_apart(struct work *work, struct sl_cancel *cancel, const struct sl_counter *unwanted,
                    struct sl_err *err)
{
    if (start(work, err) < 0) {
        work_free(work);
        return -1;
    }
    return await_end(work, cancel, unwanted, err) ? -1 : 0;
}

static int take_key(const struct work *work, uint8_t *key, struct sl_err *err)
{
    if (work->failed)
        return sl_fail(err, SL_E_NO_SPACE,
                       "cannot derive the key from the passphrase: that takes %" PRIu64
                       " MiB of memory",
                       work->derivation.memlimit >> 20);
    memcpy(key, work->key, work->key_bytes);
    return 0;
}

int sl_derive(const struct sl_derivation *derivation, uint8_t *key, size_t key_bytes,
              struct sl_cancel *cancel, const struct sl_counter *unwanted, struct sl_err *err)
{
    pthread_once(&once, init);
    if (check_wanted(cancel, unwanted, err) < 0 || await_others(cancel, unwanted, err) < 0)
        return -1;
    struct work *work = work_new(derivation, key_bytes, err);
    if (!work)
        return -1;
    if (!unwanted && !sl_thread_cancel(cancel))
        work->failed = !make(work); /* nothing ends it, so it needs no thread */
    else if (do_apart(work, cancel, unwanted, err) < 0)
        return -1;
    int done = take_key(work, key, err);
    work_free(work);
    return done;
}
