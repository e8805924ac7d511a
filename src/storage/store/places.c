/*
 * What is found wrong with an answer has one place: the table. It is read from above, and the first
 * row that fits says what becomes of the place; the range moves on in any case but the first.
 */
#include "places.h"

#include <string.h>

#include "io.h"
#include "log.h"
#include "store_kind.h"

enum { FAILURES_MAX = 3, ABSENT_MAX = 4096 };

/* ---- what moves a range on ------------------------------------------------------------------- */

enum outcome {
    ENDS,   /* nobody else would do better */
    LACKS,  /* this object is not asked of it again */
    COUNTS, /* FAILURES_MAX in a row, and it is left */
    LEAVES, /* it is not asked any more */
};

static const struct {
    enum sl_err_kind kind; /* SL_OK: any */
    const char *code;      /* NULL: any */
    int http_status;       /* 0: any */
    bool retryable;        /* it must be; else any */
    enum outcome outcome;
} rows[] = {
    {.kind = SL_E_CANCELED, .outcome = ENDS},
    {.kind = SL_E_NO_SPACE, .outcome = ENDS},
    {.kind = SL_E_INTERNAL, .outcome = ENDS},
    {.kind = SL_E_NOT_FOUND, .outcome = LACKS},
    /* a cache without it sends all of it as it comes, whatever range was asked for */
    {.code = "range", .http_status = 200, .outcome = LACKS},
    /* they cost too much time for a second try */
    {.code = "stall", .outcome = LEAVES},
    {.code = SL_NET_UNREACHED, .outcome = LEAVES},
    {.code = SL_NET_UNRESOLVED, .outcome = LEAVES},
    /* a connection that breaks, 5xx, 429 */
    {.retryable = true, .outcome = COUNTS},
    /* a refusal, another version, wrong bytes, what breaks the protocol */
    {.outcome = LEAVES},
};

static bool fits(size_t row, const struct sl_err *why)
{
    return (!rows[row].kind || rows[row].kind == why->kind) &&
           (!rows[row].code || strcmp(rows[row].code, why->code) == 0) &&
           (!rows[row].http_status || rows[row].http_status == why->http_status) &&
           (!rows[row].retryable || why->retryable);
}

static enum outcome outcome_of(const struct sl_err *why)
{
    size_t i = 0;
    while (!fits(i, why))
        i++;
    return rows[i].outcome;
}

bool sl_places_move_loads(const struct sl_err *why)
{
    return why->kind == SL_E_NET || why->kind == SL_E_NOT_FOUND || why->kind == SL_E_AUTH ||
           (why->kind == SL_E_USAGE && why->http_status >= 400);
}

/* ---- what is known of each ------------------------------------------------------------------- */

void sl_places_init(struct sl_places *places)
{
    pthread_mutex_init(&places->locked.mutex, NULL);
}

void sl_places_release(struct sl_places *places)
{
    for (unsigned i = 0; i < places->count; i++) {
        struct sl_list *absent = &places->locked.of[i].absent;
        while (absent->count)
            free(absent->items[--absent->count]);
        free(absent->items);
    }
    pthread_mutex_destroy(&places->locked.mutex);
}

const char *sl_places_name(const struct sl_places *places, unsigned number)
{
    return number < places->count ? places->names[number] : places->origin;
}

/* Under the lock. */
static bool has_not(const struct sl_places *places, unsigned number, const char *object)
{
    const struct sl_list *absent = &places->locked.of[number].absent;
    for (size_t i = 0; i < absent->count; i++)
        if (strcmp(absent->items[i], object) == 0)
            return true;
    return false;
}

unsigned sl_places_next(struct sl_places *places, unsigned from, const char *object)
{
    SL_LOCKED(&places->locked.mutex);
    while (from < places->count && (places->locked.of[from].left || has_not(places, from, object)))
        from++;
    return SL_MIN(from, places->count);
}

/* Under the lock: true if it is the first thing that it lacks. */
static bool note_absent(struct sl_places *places, unsigned number, const char *object)
{
    struct sl_list *absent = &places->locked.of[number].absent;
    bool first = !places->locked.of[number].lacks;
    places->locked.of[number].lacks = true;
    if (!has_not(places, number, object) &&
        (absent->count == ABSENT_MAX || sl_list_add(absent, object, strlen(object), NULL) < 0))
        places->locked.of[number].left = true;
    return first;
}

bool sl_places_failed(struct sl_places *places, unsigned number, const char *object,
                      const struct sl_err *why)
{
    enum outcome outcome = outcome_of(why);
    bool said, left;
    if (outcome == ENDS)
        return false;
    {
        SL_LOCKED(&places->locked.mutex);
        bool before = places->locked.of[number].left;
        said = outcome == LACKS && note_absent(places, number, object);
        if (outcome == LEAVES ||
            (outcome == COUNTS && ++places->locked.of[number].failures >= FAILURES_MAX))
            places->locked.of[number].left = true;
        left = places->locked.of[number].left && !before;
    }
    said |= outcome != LACKS && left;
    sl_log(said ? SL_LOG_WARN : SL_LOG_DEBUG, "mirror '%.100s' %s: %s", places->names[number],
           left               ? "is not asked any more"
           : outcome == LACKS ? "lacks something, which is asked for elsewhere"
                              : "failed",
           why->message);
    return true;
}

bool sl_places_believe(struct sl_places *places, const struct sl_err *why)
{
    bool before;
    if (!places->believed || !places->count || why->kind != SL_E_NET || !why->retryable)
        return false;
    {
        SL_LOCKED(&places->locked.mutex);
        before = places->locked.of[places->count].left;
        places->locked.of[places->count].left = true;
    }
    if (!before)
        sl_log(SL_LOG_WARN, "'%.100s' cannot be reached, and its mirrors are believed (%s): %s",
               places->origin, places->believed, why->message);
    return true;
}

void sl_places_gave(struct sl_places *places, unsigned number)
{
    SL_LOCKED(&places->locked.mutex);
    places->locked.of[number].gave = true;
}

void sl_places_did_well(struct sl_places *places, unsigned number)
{
    SL_LOCKED(&places->locked.mutex);
    places->locked.of[number].failures = 0;
}

static bool blame(struct sl_places *places, unsigned number, const struct sl_err *why)
{
    bool blamed, before;
    {
        SL_LOCKED(&places->locked.mutex);
        blamed = places->locked.of[number].gave;
        before = places->locked.of[number].left;
        places->locked.of[number].left |= blamed;
        places->locked.of[number].gave = false;
    }
    if (blamed && !before)
        sl_log(SL_LOG_WARN,
               "mirror '%.100s' is not asked any more, since it sent some of what is wrong: %s",
               places->names[number], why->message);
    return blamed;
}

bool sl_places_blame(struct sl_places *places, const struct sl_err *why)
{
    bool blamed = false;
    for (unsigned i = 0; i < places->count; i++)
        blamed |= blame(places, i, why);
    return blamed;
}

/* ---- the way of a range ---------------------------------------------------------------------- */

/* May others than the origin be believed, unchecked? */
static bool may_believe(const struct sl_places *places, const struct sl_source *source)
{
    return places->believed && source->blob && !source->unchecked;
}

static bool is_origin_left(struct sl_places *places)
{
    SL_LOCKED(&places->locked.mutex);
    return places->locked.of[places->count].left;
}

void sl_places_begin(struct sl_places *places, const struct sl_source *source, bool vouched,
                     struct sl_places_way *way)
{
    way->vouched = vouched && source->blob;
    way->believes = may_believe(places, source) && is_origin_left(places);
    way->at = places->count;
    if (way->vouched || way->believes)
        way->at = sl_places_next(places, 0, source->blob);
}

bool sl_places_move(struct sl_places *places, const struct sl_source *source,
                    struct sl_places_way *way, const struct sl_err *why)
{
    if (way->at < places->count) {
        if (!sl_places_failed(places, way->at, source->blob, why))
            return false;
        way->at = sl_places_next(places, way->at + 1, source->blob);
        return true;
    }
    if (way->vouched || way->believes || !may_believe(places, source) ||
        !sl_places_believe(places, why))
        return false;
    way->believes = true;
    way->at = sl_places_next(places, 0, source->blob);
    return way->at < places->count;
}
