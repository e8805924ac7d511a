/*
 * Where the bytes of a store's objects may be asked for: places in order, such as mirrors, and
 * behind them the origin, which the store's URI names. Each range goes its own way: from the first
 * place that may have its object on, and what fails at one goes on at the next at once, from the
 * first byte that is missing. What is counted against a place is known to all ranges of the store.
 *
 * Another place than the origin is asked for what a digest of the whole object is compared with
 * (SL_VOUCH_WHOLE). And, where the user says so, it is believed for as long as the origin cannot be
 * reached.
 *
 * What is not locked is set before other threads know the store; any thread.
 */
#ifndef SL_PLACES_H
#define SL_PLACES_H

#include <pthread.h>

#include "source.h"

enum { SL_PLACES_MAX = 8 };

struct sl_places {
    unsigned count;                            /* without the origin, whose number this is */
    const char *names[SL_PLACES_MAX], *origin; /* for people; borrowed */
    const char *believed;                      /* the option that says so; NULL: they are not */
    struct {
        pthread_mutex_t mutex;
        struct {
            unsigned failures;     /* in a row, that may pass */
            bool left;             /* it is not asked any more */
            bool gave;             /* bytes came from it */
            bool lacks;            /* something: it was said */
            struct sl_list absent; /* objects */
        } of[SL_PLACES_MAX + 1];
    } locked;
};
void sl_places_init(struct sl_places *places);
void sl_places_release(struct sl_places *places);

/** The first from that number on that may have this object; places->count: the origin. */
unsigned sl_places_next(struct sl_places *places, unsigned from, const char *object);
/**
 * Tell that what was asked of a place failed. The place is left for good, with a warning, unless
 * this may pass, or it only lacks this object.
 *
 * @number  of the place; not the origin's.
 * @object  that was asked for.
 * @why     how it failed.
 * @return  false: nobody else would do better.
 */
bool sl_places_failed(struct sl_places *places, unsigned number, const char *object,
                      const struct sl_err *why);
/** The origin failed so: are the others believed from now on? With a warning. */
bool sl_places_believe(struct sl_places *places, const struct sl_err *why);
/** Bytes came from it; a range came to its end. */
void sl_places_gave(struct sl_places *places, unsigned number);
void sl_places_did_well(struct sl_places *places, unsigned number);
/** A hash did not agree: those that bytes came from are left. true: there are such. */
bool sl_places_blame(struct sl_places *places, const struct sl_err *why);

/** The way of one range of a source, from place to place. Of one thread. */
struct sl_places_way {
    unsigned at; /* the one in hand */
    bool vouched, believes;
};
/**
 * Begin a way, from the first place that may be asked.
 *
 * @source   whose range it is.
 * @vouched  the caller checks all bytes, so that they may come from anybody.
 * @way      out.
 */
void sl_places_begin(struct sl_places *places, const struct sl_source *source, bool vouched,
                     struct sl_places_way *way);
/**
 * Tell that the place in hand failed, and go on to the next.
 *
 * @source  whose range it is.
 * @way     moved on.
 * @why     how it failed.
 * @return  false: there is no other one.
 */
bool sl_places_move(struct sl_places *places, const struct sl_source *source,
                    struct sl_places_way *way, const struct sl_err *why);
/** For people; borrowed. */
const char *sl_places_name(const struct sl_places *places, unsigned number);

/** May another URI of the spec (source.mirrors) do better, where a whole load cannot begin at, or
 * read, what it names? It was not reached, refused, or has no such thing; after a wrong hash, and
 * where the spec is wrong by itself, never. */
bool sl_places_move_loads(const struct sl_err *why);

#endif
