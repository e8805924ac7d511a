/* A registry for each test, and a holder whose loads end when the test says so. */
#include "registry_case.h"
#include "memory_store.h"

#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"

enum { HOUR_MS = 3600 * 1000, PLACES = 4 };

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
struct registry_fake fake;

void await_admitted(unsigned count)
{
    SL_LOCKED(&lock);
    while (fake.admitted < count)
        pthread_cond_wait(&moved, &lock);
}

void permit(unsigned count)
{
    SL_LOCKED(&lock);
    fake.permits += count;
    pthread_cond_broadcast(&moved);
}

/* With the lock held. */
static void await_permit(const struct sl_holder_job *job)
{
    while (fake.gated && !fake.permits && !sl_cancel_raised(job->cancel)) {
        struct timespec soon; /* a cancellation makes no event here */
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 5000000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&moved, &lock, &soon);
    }
    if (fake.permits)
        fake.permits--;
}

static void open_and_wait(const struct sl_holder_job *job, void *body)
{
    job->opened(job->arg, body);
    SL_LOCKED(&lock);
    await_permit(job);
}

/* The source has changed: what is opened by then is of the first version. */
static int begin_anew(const struct sl_holder_job *job, uint64_t bytes, struct sl_err *why)
{
    const uint8_t identity[32] = {99};
    char version[SL_VERSION_TEXT];
    fake.changes = false;
    open_and_wait(job, &fake.first);
    return job->admit(job->arg, identity, bytes, version, why);
}

/* "memory://m/BYTES/VERSION" */
static int fake_load(void *self, const struct sl_holder_job *job, void **body, struct sl_err *why)
{
    uint8_t identity[32] = {0};
    unsigned long long bytes = 0;
    char version[SL_VERSION_TEXT];
    enum sl_err_kind fail;
    (void)self;
    *body = NULL;
    const char *numbers = strstr(job->spec->source.uri, "m/");
    ck_assert_int_eq(sscanf(numbers, "m/%llu/%hhu", &bytes, identity), 2);
    {
        SL_LOCKED(&lock);
        fake.begun++;
    }
    *job->unversioned = fake.unversioned;
    snprintf(job->shared->with, SL_VERSION_TEXT, "%02x00000000000000", fake.shares_with);
    job->shared->bytes = fake.will_share;
    int there = job->admit(job->arg, identity, bytes, version, why);
    if (there < 0)
        return -1;
    if (there > 0 && holder.shares)
        return 0;
    if (fake.changes && begin_anew(job, bytes, why) < 0)
        return -1;
    if (fake.reopens)
        open_and_wait(job, &fake.earlier);
    if (fake.asks_again && job->admit(job->arg, identity, bytes, version, why) < 0)
        return -1;
    if (fake.open)
        job->opened(job->arg, &fake);
    sl_progress_set_total(job->progress, bytes, 1, 1);
    if (fake.landed)
        sl_progress_add_bytes(job->progress, bytes);
    SL_LOCKED(&lock);
    fake.admitted++;
    fake.running++;
    pthread_cond_broadcast(&moved);
    await_permit(job);
    fake.running--;
    fail = fake.fail;
    if (sl_cancel_check(job->cancel, why) < 0)
        return -1;
    if (fail)
        return sl_fail(why, fail, "the fake fails");
    *body = fake.open ? &fake : NULL;
    job->shared->bytes = fake.share;
    return 0;
}

static int fake_drop(void *self, const char *name, const char *version, void *body,
                     struct sl_err *why)
{
    (void)self;
    (void)version;
    SL_LOCKED(&lock);
    if (body == &fake.earlier) {
        ck_assert_ptr_null(name);
        fake.earlier_dropped++;
        return 0;
    }
    ck_assert_msg(name, "opened twice");
    while (fake.drops_gated && !fake.permits)
        pthread_cond_wait(&moved, &lock);
    if (fake.drops_gated)
        fake.permits--;
    if (fake.drop_fails)
        return sl_fail(why, SL_E_NO_SPACE, "the fake keeps it");
    size_t used = strlen(fake.gone);
    snprintf(fake.gone + used, sizeof(fake.gone) - used, "%s ", name);
    fake.dropped++;
    return 0;
}

static void fake_keep(void *self, void *body)
{
    (void)self;
    (void)body;
    SL_LOCKED(&lock);
    fake.keeping++;
    pthread_cond_broadcast(&moved);
    while (fake.keeps_gated && !fake.permits)
        pthread_cond_wait(&moved, &lock);
    if (fake.keeps_gated)
        fake.permits--;
    fake.kept++;
}

struct sl_holder holder = {.name = "fake",
                           .placement = SL_PLACEMENT(SL_SPACE_HOST),
                           .load = fake_load,
                           .drop = fake_drop,
                           .keep = fake_keep};
struct sl_registry *registry;

/* ---- a test's words ------------------------------------------------------------------------- */

static void open_with(uint64_t budget, unsigned retry_ms, unsigned places)
{
    const struct sl_registry_config config = {.budget_bytes = budget,
                                              .loads_at_once = places,
                                              .retry_ms = retry_ms,
                                              .retry_max_ms = retry_ms};
    memset(&fake, 0, sizeof(fake));
    holder.keeps_partial = holder.shares = false;
    holder.measure = NULL;
    holder.watch = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    registry = sl_registry_new(&config, &err);
    ck_assert_msg(registry != NULL, "%s", err.message);
}

void registry_case_setup(void)
{
    open_with(100, HOUR_MS, PLACES);
}

void registry_case_teardown(void)
{
    sl_alloc_fail_at(0);
    permit(1000);
    sl_registry_free(registry);
    sl_memory_clear(); /* nothing was put: it brings the store of the URIs */
    registry = NULL;
    spec_case_reset();
}

static int define_at(const struct sl_holder *place, const char *name, unsigned bytes,
                     unsigned version, const struct sl_model_options *wanted, const char *replace)
{
    char text[512];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: %s}\n"
             "source: {uri: memory://m/%u/%u}\nsink: {tmpfs: {path: /t, replace: %s}}\n",
             name, bytes, version, replace);
    ck_assert_msg(parse(text) == 0, "%s", err.message);
    return sl_registry_define(registry, &specs.items[0], place, wanted, &err);
}

int define_as(const char *name, unsigned bytes, unsigned version,
              const struct sl_model_options *wanted, const char *replace)
{
    return define_at(&holder, name, bytes, version, wanted, replace);
}

void load_at(const struct sl_holder *place, const char *name, unsigned bytes)
{
    const struct sl_model_options wanted = {SL_MODEL_OF_REQUEST, false, true};
    ck_assert_msg(define_at(place, name, bytes, 1, &wanted, "keep-old") == 0, "%s", err.message);
}

void define(const char *name, unsigned bytes, unsigned version)
{
    const struct sl_model_options wanted = {SL_MODEL_OF_REQUEST, false, false};
    ck_assert_msg(define_as(name, bytes, version, &wanted, "keep-old") == 0, "%s", err.message);
}

void define_config(const char *name, unsigned bytes, unsigned version, bool pin, bool load)
{
    const struct sl_model_options wanted = {SL_MODEL_OF_CONFIG, pin, load};
    ck_assert_msg(define_as(name, bytes, version, &wanted, "keep-old") == 0, "%s", err.message);
}

struct sl_model_ref *ask(const char *name)
{
    err = (struct sl_err)SL_ERR_INIT;
    return sl_registry_wait_until(registry, name, SL_REF_LEASE, "a test", NULL, UINT64_MAX, NULL,
                                  &err);
}

struct sl_model_ref *must(const char *name)
{
    struct sl_model_ref *ref = ask(name);
    ck_assert_msg(ref != NULL, "%s", err.message);
    return ref;
}

void touch(const char *name)
{
    sl_registry_release(registry, must(name));
}

void refused(const char *name, enum sl_err_kind kind, const char *words)
{
    ck_assert_ptr_null(ask(name));
    ck_assert_msg(err.kind == kind && strstr(err.message, words), "%d: %s", err.kind, err.message);
}

struct sl_registry_counts counts(void)
{
    struct sl_registry_counts found;
    sl_registry_counts(registry, &found);
    return found;
}

void reopen_with(uint64_t budget, unsigned retry_ms)
{
    sl_registry_free(registry);
    open_with(budget, retry_ms, PLACES);
}

void reopen_with_places(uint64_t budget, unsigned places)
{
    sl_registry_free(registry);
    open_with(budget, HOUR_MS, places);
}
