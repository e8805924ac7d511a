/*
 * What holds the bytes of a model: a published directory on a tmpfs, or slabs of the pool. The
 * registry decides what is loaded and what goes; a holder does it, and knows nothing of budgets.
 * Its functions are called by several threads at once, though never for the same body, and without
 * the registry's lock, but for where(); -1 comes with an error.
 */
#ifndef SL_HOLDER_H
#define SL_HOLDER_H

#include "load.h"
#include "space.h"

enum { SL_VERSION_TEXT = 17 }; /* of a version: 16 hex digits of the plan's identity */

/** What a version has in common with another one of its model, and takes no memory for. */
struct sl_holder_shared {
    char with[SL_VERSION_TEXT];
    uint64_t bytes; /* 0: nothing */
};

/** One load, as the holder sees it; borrowed for the call. */
struct sl_holder_job {
    const char *name;
    const struct sl_spec *spec;
    struct sl_cancel *cancel;
    struct sl_progress *progress; /* finished by the load */
    void *arg;
    /**
     * To be called when the version and its size are known and nothing is allocated; again when the
     * load starts over. 0: go on. 1: this version is there and ready. -1: refused. version is
     * filled in. It may take time: others are evicted meanwhile. SL_E_NO_SPACE (the budget),
     * SL_E_CANCELED.
     */
    int (*admit)(void *arg, const uint8_t identity[32], uint64_t bytes,
                 char version[SL_VERSION_TEXT], struct sl_err *err);
    struct sl_holder_shared *shared; /* zeroed: to be set before admit(), to what the load will take
                                        over, and when it is complete, to what it has taken over */
    bool *unversioned; /* the source gives no version: set it, and what a load that breaks off
                          leaves is not kept */
    /** Callers can use it from now on, although it is not complete, and it is the registry's. May
     * be left out, or called again as the load starts over: nobody new gets what was opened before,
     * which is dropped when those who have it have gone. */
    void (*opened)(void *arg, void *body);
};

/** Memory that was let go of and that somebody may still have. */
struct sl_left_memory {
    /** How much of it is: 0 for ever once it is 0. May block; by one thread at a time. */
    uint64_t (*look)(struct sl_left_memory *left);
    void (*free)(struct sl_left_memory *left);
};

struct sl_holder {
    const char *name;   /* "directory", "pool" */
    uint32_t placement; /* whose memory it takes: of one space, or the same of each GPU that was
                           opened, of its set of all */
    bool keeps_partial; /* what a load brought before it broke off is good for the next one */
    bool shares;        /* a body is good for every name that its version is asked for by */
    void *self;
    /**
     * Blocks until the model is complete. *body: what callers get, handed over, the same if it was
     * opened; NULL where the version says it all, and where admit said that it is there. On failure
     * drop() follows, unless what it brought is kept. Errors as sl_load_run().
     */
    int (*load)(void *self, const struct sl_holder_job *job, void **body, struct sl_err *err);
    /** How many bytes the source lists for a model, without a plan: about what a load brings,
     * *bytes 0 where it does not tell. Blocks, and gives up soon. May be left out: not known. */
    int (*measure)(const struct sl_spec *spec, struct sl_cancel *cancel, uint64_t *bytes,
                   struct sl_err *err);
    /** Give the memory back, if there is any; nobody uses it. Blocks; body may be NULL. name and
     * version NULL: of a body that another one has replaced. */
    int (*drop)(void *self, const char *name, const char *version, void *body, struct sl_err *err);
    /** Before drop(), or before an opened body is replaced: what tells when its memory has really
     * gone. NULL, or left out: it goes with drop(), or cannot be watched. */
    struct sl_left_memory *(*watch)(void *self, void *body);
    /** The process ends, and a whole version stays for the next one where that is possible: let go
     * of its body. May be left out: then it is dropped. */
    void (*leave)(void *self, void *body);
    /** Keep a body that a caller brought for the next process, if that is possible. Blocks; may be
     * left out. */
    void (*keep)(void *self, void *body);
    /** Where a version can be found, for people and callers; "" if in no file. Must be
     * quick: the registry's lock may be held. */
    void (*where)(void *self, const char *name, const char *version,
                  char path[SL_PUBLISH_PATH_MAX]);
};

/** As metadata.name of a spec: no dot in front, no slash. Any thread. */
bool sl_is_model_name(const char *name);
/** The version of an identity (32 bytes, sl_plan.identity); returns version. */
const char *sl_version_text(const uint8_t identity[32], char version[SL_VERSION_TEXT]);

#endif
