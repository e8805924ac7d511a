/*
 * A server that knows the truth: objects of several versions, told apart by validators of every
 * kind, or by none, and replaced, refused or killed for at a request that was chosen before. What a
 * load may make of it is for the test to judge: the world says what it had and what it sent.
 */
#ifndef SL_VERSION_WORLD_H
#define SL_VERSION_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "range_server.h"
#include "thread.h"

enum {
    SL_WORLD_RANGE = 64 * 1024, /* what the tests let loads ask for at once */
    SL_WORLD_RANGES = 6,
    SL_WORLD_VERSIONS = 4,
    SL_WORLD_BYTES_MAX = (SL_WORLD_RANGES + 1) * SL_WORLD_RANGE,
    SL_WORLD_PLACES = 2,
    SL_WORLD_CONNECTIONS = 64, /* of one load that are told apart */
};

/** What its answers say of an object. */
enum sl_world_style {
    SL_WORLD_STRONG,    /* an ETag of each version */
    SL_WORLD_OLD_DATE,  /* a Last-Modified of each version, long before Date */
    SL_WORLD_ID,        /* a version id of each version, and nothing else */
    SL_WORLD_WEAK,      /* a weak ETag, the same for all, and an old Last-Modified that is, too */
    SL_WORLD_WEAK_EACH, /* a weak ETag of each version */
    SL_WORLD_NEW_DATE,  /* a Last-Modified of the second of Date, the same for all */
    SL_WORLD_NULL_ID,   /* the version id of a bucket that keeps no versions */
    SL_WORLD_EMPTY_TAG, /* ETag: "" */
    SL_WORLD_NONE,
    SL_WORLD_VANISHING, /* strong, but now and then an answer comes without */
    SL_WORLD_FORMS,     /* strong, and now and then weak */
    SL_WORLD_STYLES
};
const char *sl_world_style_name(enum sl_world_style style);
/** Do equal texts mean equal bytes there? */
bool sl_world_style_shows_change(enum sl_world_style style);
/** Does it say the same in every answer about one version? */
bool sl_world_style_is_steady(enum sl_world_style style);

/** One copy of the object. */
struct sl_world_place {
    enum sl_world_style style;
    unsigned current;             /* version that is there */
    bool seen[SL_WORLD_VERSIONS]; /* was there since sl_world_begin() */
};

/** What happens at the nth request for bytes of the object since sl_world_begin(), 0: never. */
struct sl_world_plan {
    unsigned replace_at, replace_by; /* the version that comes */
    unsigned cancel_at;
    unsigned gone_at; /* place 0 answers 404 from then on */
    bool redirects;   /* the object is elsewhere, by a link that is good for a few requests */
    bool ignores_conditions;
};

struct sl_world {
    struct sl_server *server;
    uint8_t *data[SL_WORLD_VERSIONS];
    size_t bytes[SL_WORLD_VERSIONS];
    char *sidecars[SL_WORLD_VERSIONS];
    char sha256[SL_WORLD_VERSIONS][65];
    struct {
        struct sl_world_place places[SL_WORLD_PLACES];
        struct sl_world_plan plan;
        struct sl_cancel *cancel;
        unsigned earlier; /* connections of loads before this one */
        pid_t victim;     /* killed instead of canceling; 0: none */
        unsigned sidecar; /* version of which there is one */
        unsigned answers; /* for bytes of the object */
        uint64_t sent;    /* of its bytes */
        unsigned whole;   /* answers before the one that was cut off by cancel_at */
        unsigned taken;   /* of these: whose connection asked again, so they were read to the end */
        unsigned answered[SL_WORLD_CONNECTIONS], answered_count; /* connections with an answer */
        uint64_t noise;                                          /* of styles that are not steady */
    } locked; /* by the server's lock: between loads it is the test's */
};

/** equal_lengths: of all versions. */
void sl_world_start(struct sl_world *world, bool equal_lengths);
void sl_world_stop(struct sl_world *world);
/** Before each load; it answers nothing but 404 outside of them. */
void sl_world_begin(struct sl_world *world, const struct sl_world_plan *plan,
                    struct sl_cancel *cancel, pid_t victim);
/** After it: what comes late, of a load that was killed, finds nothing, and the world is the
 * test's. */
void sl_world_end(struct sl_world *world);
/** The version of these bytes, -1: of none. */
int sl_world_version_of(const struct sl_world *world, const void *data, size_t bytes);

#endif
