/*
 * The models of one machine: one load of each version whoever asks, references, pins, a memory
 * budget, eviction of what nobody uses, least recently used first.
 *
 * A model has a name and a spec; each version of it that lies in memory is a resident version. What
 * callers hold are references: while there is one, its resident stays. Every function may be called
 * from any thread, and none blocks for longer than a lock but where it says so.
 */
#ifndef SL_REGISTRY_H
#define SL_REGISTRY_H

#include "deferred_call.h"
#include "holder.h"
#include "json.h"

enum {
    SL_REGISTRY_MODELS_MAX = 4096,
    SL_REGISTRY_DERIVED_MAX = 256,   /* of a model */
    SL_REGISTRY_DERIVED_SHARE = 64,  /* of these, of one user */
    SL_REGISTRY_PASSING_MAX = 1024,  /* models that are forgotten by themselves */
    SL_REGISTRY_PASSING_SHARE = 256, /* of these, of one user */
    SL_REF_WHO_BYTES = 96,
    SL_SHARER_BYTES = 96,
};

struct sl_registry_config {
    uint64_t budget_bytes; /* of all residents on the host, those being loaded included */
    unsigned loads_at_once;
    unsigned retry_ms, retry_max_ms; /* before the first next try, doubled each time; 0: defaults */
};

struct sl_registry;
/** Starts its threads. config is copied. SL_E_NO_SPACE. */
struct sl_registry *sl_registry_new(const struct sl_registry_config *config, struct sl_err *err);
/**
 * Cancel all loads (they resume later), answer all who wait, end the threads. Blocks. Residents
 * stay where they are; bodies are dropped. References must have been released.
 */
void sl_registry_free(struct sl_registry *registry);
SL_AUTO_DEFINE(sl_registry)
/** The first half of it: nothing begins any more, and who waits is answered. Blocks. */
void sl_registry_stop(struct sl_registry *registry);
/** Of residents on the host. What is over it, and nobody uses, goes, by a thread of the registry.
 */
void sl_registry_set_budget(struct sl_registry *registry, uint64_t budget_bytes);
/** While held, no load begins: of what is changed meanwhile none is done by half. Loads that run go
 * on. */
void sl_registry_hold(struct sl_registry *registry, bool held);
/** The same of residents on cuda:`ordinal`; 0 unless set. */
void sl_registry_set_gpu_budget(struct sl_registry *registry, unsigned ordinal,
                                uint64_t budget_bytes);
/**
 * Tell how full a GPU is.
 *
 * @ordinal       of cuda:`ordinal`.
 * @held_bytes    out: what residents there take, those being loaded or dropped included, and what
 *                was dropped and somebody still has.
 * @budget_bytes  out: as sl_registry_set_gpu_budget() set it.
 */
void sl_registry_gpu_bytes(struct sl_registry *registry, unsigned ordinal, uint64_t *held_bytes,
                           uint64_t *budget_bytes);

/* ---- which models there are ----------------------------------------------------------------- */

enum sl_model_origin { SL_MODEL_OF_CONFIG, SL_MODEL_OF_REQUEST };
struct sl_model_options {
    enum sl_model_origin origin;
    bool pin;     /* of the config */
    bool load;    /* begin now, and try again if it fails */
    bool passing; /* forgotten as soon as nothing of it is in memory */
    /** Of a passing model: who asks, "user 4001", "namespace 'a'", in whose share its name counts
     * if nobody else waits for it and there is room; NULL: in none. Copied, up to
     * SL_SHARER_BYTES. */
    const char *sharer;
    /** Volumes asked for it: nobody is told of it, nor of its loads, but who may see all. No reason
     * that others are given names it, and who asks by its name for anything but a volume finds
     * nothing. */
    bool of_volume;
    /** Of a passing model: its load ends when nobody has asked, or waited, for so long; 0: it goes
     * on. */
    unsigned lapse_ms;
};
/**
 * Say what a name means. With another spec than before the model is loaded again, and the versions
 * that are in memory stay until they are evicted.
 *
 * @spec     moved out of, also on failure.
 * @holder   outlives the registry.
 * @options  copied.
 * @return   0, or -1: SL_E_USAGE, code "exists", if a request means to change a model of the
 *           config, "full" if there are too many; SL_E_NO_SPACE.
 */
int sl_registry_define(struct sl_registry *registry, struct sl_spec *spec,
                       const struct sl_holder *holder, const struct sl_model_options *options,
                       struct sl_err *err);
/** A version that lies in memory after a restart. */
struct sl_registry_found {
    const char *name, *version;
    const char *key; /* of a derived model, which is whole; NULL: a version that was loaded */
    uint32_t owner;  /* of a derived model: the user who deposited it */
    const uint8_t *identity; /* 32 bytes; NULL: not known beyond the version */
    uint64_t bytes;
    struct sl_holder_shared shared; /* with one that was adopted before */
    bool ready;                     /* whole; else it is what an interrupted load left */
    bool current;                   /* the one that is asked for by name */
    void *body;                     /* handed over, not on failure; or NULL */
};
/** Take it over, before or after the name is defined. SL_E_USAGE, codes "exists", "full";
 * SL_E_NO_SPACE. */
int sl_registry_adopt(struct sl_registry *registry, const struct sl_holder *holder,
                      const struct sl_registry_found *found, struct sl_err *err);
/**
 * The config was read: of its models those that are not in names go: no pin, no new references,
 * forgotten when their memory is needed. So do models that were found and that nobody defined.
 */
void sl_registry_keep_only(struct sl_registry *registry, const char *const *names, size_t count);

/* ---- references ----------------------------------------------------------------------------- */

enum sl_ref_kind {
    SL_REF_CALLER,
    SL_REF_LEASE,
    SL_REF_DIRECTORY,
    SL_REF_VOLUME,
    SL_REF_KIND_COUNT
};
struct sl_model_ref;
struct sl_ask {
    const char *name;
    enum sl_ref_kind kind;
    const char *who; /* for people: "pid 12 uid 1000"; copied */
    /** As of sl_model_options. While it waits a passing model counts in its share of the names:
     * SL_E_USAGE, code "full". The load has a place of whoever waits and has one left. */
    const char *sharer;
    bool early;   /* a model that is still being loaded will do, where it can be used */
    bool present; /* do not begin a load: SL_E_NOT_FOUND, code "absent" */
    /** Called once: with a reference, to be released, or NULL and the reason. From this call or
     * from a thread of the registry; must be quick, and may call the registry. */
    void (*answer)(void *arg, struct sl_model_ref *ref, const struct sl_err *err);
    void *arg;
};
/**
 * Ask for a model. Joins a load that is under way, begins one if there is none; a model that failed
 * a moment ago fails with the same error until it may be tried again (err->retry_after_ms).
 * SL_E_NOT_FOUND for a name that is not defined. The answer comes also on failure; -1 only if there
 * is not memory to ask, and then no answer comes.
 */
int sl_registry_ask(struct sl_registry *registry, const struct sl_ask *ask, struct sl_err *err);
/**
 * Who asked with this arg does not want an answer any more. True: none comes. Where nobody else
 * waits for a passing model of which nothing is known yet, its load ends, so that a source that
 * does not answer holds up nobody.
 */
bool sl_registry_withdraw(struct sl_registry *registry, const void *arg);
/**
 * As sl_registry_ask(), waiting for the answer: blocks.
 *
 * @kind      of the reference.
 * @who       whose it is, for listings.
 * @sharer    whose share its load and its name count for.
 * @until_ns  by sl_now_ns(), UINT64_MAX: never; then SL_E_TIMEOUT, code "waiting", and the load
 *            goes on.
 * @cancel    may be NULL.
 * @return    the reference, the caller's. NULL also with SL_E_CANCELED: cancel was raised, which
 *            leaves the load to others, or the node ends; SL_E_NO_SPACE: no descriptor or memory
 *            to wait with.
 */
struct sl_model_ref *sl_registry_wait_until(struct sl_registry *registry, const char *name,
                                            enum sl_ref_kind kind, const char *who,
                                            const char *sharer, uint64_t until_ns,
                                            struct sl_cancel *cancel, struct sl_err *err);
/**
 * Take a reference to a version that is in memory, whether the name still stands for it or not.
 * Nothing is loaded, and it stays where it is.
 *
 * @version  of the model `name`.
 * @whole    only one that is whole; false: also one of which that is not known, or that is being
 *           loaded.
 * @kind     of the reference.
 * @who      whose it is, for listings.
 * @return   the reference, the caller's. NULL: SL_E_NOT_FOUND, SL_E_NO_SPACE.
 */
struct sl_model_ref *sl_registry_hold_version(struct sl_registry *registry, const char *name,
                                              const char *version, bool whole,
                                              enum sl_ref_kind kind, const char *who,
                                              struct sl_err *err);
/** The reference is gone then. The last of a body that another has replaced gives that back by a
 * thread of the registry. */
void sl_registry_release(struct sl_registry *registry, struct sl_model_ref *ref);
/** Of a reference; borrowed until it is released. */
const char *sl_model_ref_name(const struct sl_model_ref *ref);
const char *sl_model_ref_version(const struct sl_model_ref *ref);
void *sl_model_ref_body(const struct sl_model_ref *ref);
/** What it takes of the budget of each space that it lies in. */
uint64_t sl_model_ref_bytes(const struct sl_model_ref *ref);
/** Of its holder: a set of spaces (space.h). */
uint32_t sl_model_ref_placement(const struct sl_model_ref *ref);
/** Where its version is, "" if in no file. */
void sl_model_ref_path(const struct sl_model_ref *ref, char path[SL_PUBLISH_PATH_MAX]);

/* ---- derived models ------------------------------------------------------------------------- */

/**
 * Whose derived models somebody finds by a key: its own, and those of users who are trusted. Others
 * may have some with the same key, which are nothing to it: so nobody gets bytes of a stranger, and
 * no stranger takes a key first.
 */
struct sl_derived_view {
    uint32_t uid;            /* as whom it counts (sl_peer_user), as all owners are told */
    const uint32_t *trusted; /* borrowed for the call */
    size_t trusted_count;
};
/** What a client wants to deposit: tensors that it made from a version of a model. */
struct sl_derived_offer {
    const char *name, *key;      /* copied */
    struct sl_derived_view view; /* of its owner: what it finds already is not deposited again */
    /** For what its owner has in this memory, this one included: SL_AUTO_VALUE is half of the
     * budget; 0: no limit, also none for how many there are. What it has itself and does not use
     * goes for it, the least recently used first. */
    uint64_t owner_bytes_max;
    const char *holder;         /* the model must be held by one of this name */
    const struct sl_holder *on; /* which gets the body, of this name, too; NULL: the model's own */
    uint8_t identity[32];       /* of what it was made from */
    uint64_t bytes;
    const char *who; /* deposits it, for people; copied; may be NULL */
    uint64_t id;     /* of the caller's choice, unique */
    /** Called once, from another thread, where 1 was returned: err is NULL, or why it is refused
     * after all. NULL: nothing is answered later, sl_registry_deposit_begin() blocks instead. */
    void (*answer)(void *arg, const struct sl_err *err);
    void *arg;
};
/**
 * Reserve its bytes in the budget. 1: what goes for them is still being dropped, which may take
 * seconds; offer->answer() follows, from sl_registry_deposit_abort() at the latest. SL_E_INTEGRITY,
 * code "stale", if the model is of another version; SL_E_USAGE, codes "exists", "busy" (somebody
 * else is at it), "full", "files"; SL_E_NO_SPACE, codes "budget", "share" (of its owner).
 */
int sl_registry_deposit_begin(struct sl_registry *registry, const struct sl_derived_offer *offer,
                              struct sl_err *err);
/**
 * End a deposit well: whoever knows the key finds it from now on.
 *
 * @id      as it was begun with.
 * @body    the holder's from now on; on failure it remains the caller's.
 * @bytes   what the body has.
 * @return  0, or -1, and the deposit is gone as if aborted: SL_E_NOT_FOUND: there is no such
 *          deposit; SL_E_INTEGRITY, code "stale", as above; SL_E_NO_SPACE.
 */
int sl_registry_deposit_commit(struct sl_registry *registry, uint64_t id, void *body,
                               uint64_t bytes, struct sl_err *err);
/** Its room is free again; one that is over is fine. */
void sl_registry_deposit_abort(struct sl_registry *registry, uint64_t id);
/**
 * Take a lease of a derived model.
 *
 * @name    of the model that it was made from.
 * @key     of the deposit.
 * @view    which deposits the asker may find.
 * @who     whose the lease is, for listings.
 * @return  the lease, the caller's. NULL: SL_E_NO_SPACE; SL_E_NOT_FOUND, codes "absent", "busy"
 *          (it is being deposited), "stale" (the one that there is was made from another version).
 */
struct sl_model_ref *sl_registry_hold_derived(struct sl_registry *registry, const char *name,
                                              const char *key, const struct sl_derived_view *view,
                                              const char *who, struct sl_err *err);
/**
 * Begin to take derived models out of memory, as sl_registry_evict() does, whoever deposited them.
 *
 * @name    of the model that they were made from.
 * @key     of those that go.
 * @bytes   out: how much; not NULL.
 * @return  0, or -1: SL_E_USAGE, code "busy", while one is in use, and all stay; SL_E_NOT_FOUND,
 *          code "absent".
 */
int sl_registry_evict_derived(struct sl_registry *registry, const char *name, const char *key,
                              uint64_t *bytes, struct sl_err *err);

/* ---- what people may do --------------------------------------------------------------------- */

/** Look at the source again, and load a new version if there is one: by a thread of the registry.
 * Here and below -1 is SL_E_NOT_FOUND for an unknown name, or SL_E_USAGE with a code for what is
 * not possible now. */
int sl_registry_load(struct sl_registry *registry, const char *name, struct sl_err *err);
/** By hand, beside a pin of the config, which stays: SL_E_USAGE, code "config". */
int sl_registry_pin(struct sl_registry *registry, const char *name, bool pin, struct sl_err *err);
/** Begin to take every version that was loaded out of memory; *bytes (may be NULL): how much. Codes
 * "busy", "pinned", "loading". */
int sl_registry_evict(struct sl_registry *registry, const char *name, uint64_t *bytes,
                      struct sl_err *err);
/** As sl_registry_evict(); a load under way ends, too, and the name goes. Codes "busy", "config".
 */
int sl_registry_forget(struct sl_registry *registry, const char *name, struct sl_err *err);

/* ---- looking -------------------------------------------------------------------------------- */

struct sl_registry_counts {
    uint64_t models, ready, loading, queued, failed; /* by state */
    uint64_t residents, partial, references, pinned;
    uint64_t held_bytes, budget_bytes;
    uint64_t left_bytes; /* of held_bytes: was dropped, and somebody still has it */
    uint64_t loads, joined, evictions, refusals; /* ever */
};
/** As they are at one moment. */
void sl_registry_counts(struct sl_registry *registry, struct sl_registry_counts *counts);
/** A model, or a derived one, and what callers would get of it. Borrowed for the call. */
struct sl_registry_entry {
    const char *name;
    const char *key; /* of a derived model; else "" */
    uint32_t owner;  /* of a derived model */
    void *body;      /* NULL: not in memory */
    bool pinned;
    uint32_t placement;    /* of its holder */
    int64_t used_seconds;  /* wall clock; 0: never */
    uint64_t left_bytes;   /* it was dropped, and somebody still has so much … */
    const char *left_text; /* … which this tells; else NULL */
};
/** What a name stands for. */
struct sl_registry_meaning {
    bool of_config;     /* and not of a request or a client */
    bool busy;          /* a load of it is queued or runs */
    const char *holder; /* by its name, for good; NULL: found in memory, not defined */
};
/** False: nobody defined it. */
bool sl_registry_meaning(struct sl_registry *registry, const char *name,
                         struct sl_registry_meaning *meaning);
/** Which memory the model of this name is for; 0: there is none. */
uint32_t sl_registry_placement(struct sl_registry *registry, const char *name);
/**
 * Look at every model of a holder, its derived ones, and what was dropped there and somebody still
 * has.
 *
 * @holder  the name of it, or of several.
 * @each    gets each, until it does not return 0. The lock is held: it must be quick, and must not
 *          call the registry.
 * @arg     what `each` gets.
 */
void sl_registry_each(struct sl_registry *registry, const char *holder,
                      int (*each)(void *arg, const struct sl_registry_entry *entry), void *arg);
/**
 * Write one model as JSON, a value.
 *
 * @name    of the model.
 * @all     hidden ones, too, and those that nobody has defined yet, and which pods have volumes;
 *          here and below.
 * @json    where to.
 * @return  false, with nothing written, if there is none.
 */
bool sl_registry_model_json(struct sl_registry *registry, const char *name, bool all,
                            struct sl_json *json);
/** Members of an open object: "models", budget, bytes. */
void sl_registry_json(struct sl_registry *registry, bool all, struct sl_json *json);
/**
 * Find out whether everything that the config preloads was there once.
 *
 * @max                  the most reasons to tell.
 * @reason               gets each reason why not, with `arg`.
 * @published, expected  out: how many were there, of how many.
 */
bool sl_registry_is_ready(struct sl_registry *registry, unsigned max,
                          void (*reason)(void *arg, const char *text), void *arg,
                          uint64_t *published, uint64_t *expected);
/** Have call->run(call) called soon, by the thread that gives memory back. Any thread; never
 * blocks but at the registry's end, when it is done at once. */
void sl_registry_defer(struct sl_registry *registry, struct sl_deferred_call *call);

#endif
