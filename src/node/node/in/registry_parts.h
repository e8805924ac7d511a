/* What the files of the registry share. Not for others. */
#ifndef SL_REGISTRY_PARTS_H
#define SL_REGISTRY_PARTS_H

#include <pthread.h>

#include "registry.h"
#include "thread.h"

enum { RETRY_MS = 1000, RETRY_MAX_MS = 60000, PASSING_MS = 60000, LOADS_MAX = 64 };

/* A spec outlives its definition while a load works with it. Count: under the lock. */
struct spec_box {
    struct sl_spec spec;
    uint8_t digest[32];
    uint8_t origin[32]; /* where it comes from, with which rights and keys */
    uint8_t rule[32];   /* of the node, for who signs it; zeros: there is none */
    unsigned count;
};

/* Who had references, for people: the last few. */
enum { HAD_MAX = 4, LEFT_LOOK_MS = 100, LEFT_GRACE_MS = 500 };
struct had {
    char who[HAD_MAX][SL_REF_WHO_BYTES];
    unsigned count; /* the next takes the place count % HAD_MAX */
};

/*
 * A resident:
 *
 *          +----------> READY -----------+
 *          |                             |
 *       LOADING --> GONE ------------+   |
 *        ^  |                        v   v
 *        |  |                    MARKED <--> DROPPING --> removed
 *        v  +------------------------^          |
 *      PARTIAL <--------------------------------+
 *          +-------------------------^
 *
 *     LOADING   take_resident(): a load is admitted, also one that goes on with what is PARTIAL;
 *               reserve(): a deposit begins; share(): with the load of another name
 *     READY     note_success(), follow_to_end(), sl_registry_deposit_commit(); share(): with what
 *               is there; take_found(): an earlier daemon left it
 *     PARTIAL   note_failure(): it broke off and can be resumed; take_found(): it is not whole;
 *               note_dropped(): it cannot be dropped
 *     GONE      note_failure(), leave_resident(), leave_load(): it failed, and somebody has it
 *     MARKED    registry_mark(): evicted, replaced, forgotten, over the budget, for the janitor;
 *               registry_leave_to_janitor(): by whom it was to be dropped
 *     DROPPING  registry_mark(): by who marks it; take_dropping(): by the janitor
 *     removed   registry_drop(); a deposit that ends early, whose memory is not ours yet; what
 *               gets no room, or followed a load that failed, and nobody has
 *
 * A load that starts over with another version leaves the first one as one that failed. Only READY
 * and PARTIAL ones that nobody has and no job works with go for others.
 */
enum resident_state {
    RESIDENT_LOADING,
    RESIDENT_READY,
    RESIDENT_PARTIAL,  /* what an interrupted load left, or of which nothing is known; a volume of
                          an earlier daemon may have it all the same */
    RESIDENT_GONE,     /* its load failed; it waits for its last reference */
    RESIDENT_MARKED,   /* the janitor is to give its memory back */
    RESIDENT_DROPPING, /* somebody gives it back */
};
struct resident {
    struct model *model; /* this and the next two never change: references read them unlocked */
    const struct sl_holder *holder;
    char version[SL_VERSION_TEXT];
    uint8_t identity[32]; /* zeros: found as files, not known */
    char *key;            /* of a derived model; NULL: a version that was loaded */
    uint32_t owner;       /* of a derived model: who deposited it */
    uint64_t deposit;     /* of a derived model, until it is committed: which */
    enum resident_state state;
    unsigned busy;                  /* jobs that work with it */
    bool stuck;                     /* it could not be dropped */
    bool to_keep;                   /* READY: its holder is to keep it for the next process */
    bool to_evict;                  /* once it is kept, unless somebody has it by then */
    struct sl_holder_shared shared; /* while that is there, it counts there alone */
    bool was_current; /* found: as what the name stood for when its holder had it last */
    struct { /* of a deposit that waits for what is being dropped; err: what could not be */
        struct sl_err err;
        void (*answer)(void *arg, const struct sl_err *err);
        void *arg;
    } awaits;
    uint64_t bytes, used_ns;
    int64_t ready_seconds; /* wall clock */
    void *body;
    uint8_t origin[32];            /* as of the spec that it was loaded by … */
    bool has_origin;               /* … or not known */
    uint8_t rule[32];              /* of the last spec whose load found it right */
    struct sl_signed_by signed_by; /* as of that load */
    struct resident *share_next;   /* of those with this memory, in a ring; itself: it is alone */
    bool borrows;                  /* another of these stands for the memory in the budget */
    struct sl_model_ref *refs;
    unsigned ref_count;
    struct had had;
    bool chosen;                  /* to go for another … */
    struct resident *victim_next; /* … with this one */
    struct resident *next;
};

/* What was dropped, and is still held by somebody. Only the janitor takes it out of the list. */
struct left {
    struct left *next;
    struct sl_left_memory *memory;
    char name[64], version[SL_VERSION_TEXT];
    bool derived;
    const struct sl_holder *holder;
    uint64_t bytes, since_ns;
    struct had had;
};

struct sl_model_ref {
    struct sl_deferred_call call; /* first: of the last one that has a body which was replaced */
    struct sl_registry *registry;
    struct resident *resident;
    const struct sl_holder *holder; /* of the resident, when it ends */
    enum sl_ref_kind kind;
    char who[SL_REF_WHO_BYTES];
    uint64_t since_ns;
    void *body; /* the resident's when it was given; by now that may have another */
    struct sl_model_ref *next;
};

/* Somebody who waits; the reference that it will get is there already. */
struct waiter {
    struct waiter *next;
    struct sl_model_ref *ref;
    struct sl_err err; /* when it is answered without a reference */
    bool early;
    char sharer[SL_SHARER_BYTES]; /* of a passing model: in whose share it waits; "": in none */
    void (*answer)(void *arg, struct sl_model_ref *ref, const struct sl_err *err);
    void *arg;
};

/*
 * A name:
 *
 *     FOUND ---> PASSING ---> REQUEST ---> CONFIG ---> RETIRED         some may be passed over
 *                   ^            ^           ^            |
 *                   +------------+-----------+------------+
 *
 *     all but CONFIG ---> FORGOTTEN ---> freed
 *
 *     FOUND                     take_found(): an earlier daemon left it
 *     CONFIG, REQUEST, PASSING  take_definition(): no request changes what the config says, and
 *                               what was defined to stay stays
 *     RETIRED                   sl_registry_keep_only(): what is CONFIG, or FOUND, goes
 *     FORGOTTEN                 sl_registry_forget()
 *     freed                     free_forgotten(), of the janitor: of the last three, when its time
 *                               has come
 */
enum name_state {
    NAME_FOUND,     /* in memory; nobody has said what it means */
    NAME_CONFIG,    /* defined by the config … */
    NAME_REQUEST,   /* … by a request, for good … */
    NAME_PASSING,   /* … or until nothing of it is in memory, and passing_ns has come */
    NAME_RETIRED,   /* it left the config: takes no new references, and goes with its memory */
    NAME_FORGOTTEN, /* nobody finds it; it goes as soon as nothing works with it */
};

/*
 * The load of a model:
 *
 *     NONE --> QUEUED ------> RUNNING --------> FOLLOWS
 *               |  ^          |  ^  |            |  ^
 *               |  |          v  |  |            v  |
 *               |  |         AGAIN -|------> FOLLOWS_AGAIN
 *               v  |          |  ^  |
 *             UNWANTED        v  |  v
 *                  +-------> ABANDONED          all but QUEUED and UNWANTED --> NONE
 *
 *     QUEUED                registry_queue()
 *     RUNNING               begin_job()
 *     FOLLOWS               follow(), also from AGAIN to FOLLOWS_AGAIN
 *     UNWANTED, ABANDONED   registry_abandon(): nobody waits any more; begin_job(), from one to
 *                           the other
 *     AGAIN, FOLLOWS_AGAIN  take_definition(): the spec is another by now
 *     back                  want_load(), of what is UNWANTED to QUEUED, of what is ABANDONED to
 *                           AGAIN; end_load(): what ends is not begun anew
 *     NONE                  end_job(), end_followers(); what was AGAIN is queued at once
 */
enum work {
    WORK_NONE,
    WORK_QUEUED,
    WORK_UNWANTED, /* queued, but nobody waits any more: it ends when it is its turn */
    WORK_RUNNING,
    WORK_ABANDONED, /* running, but to its end, since nobody waits any more */
    WORK_AGAIN,     /* running, and once more when it has ended */
    WORK_FOLLOWS,   /* no worker has it: it ends with the load of another model */
    WORK_FOLLOWS_AGAIN,
};
enum load_place { PLACE_USUAL, PLACE_SMALL, PLACE_BESIDE };
struct model {
    char name[64];
    struct spec_box *box; /* NULL: found in memory, not defined */
    const struct sl_holder *holder;
    enum name_state name_state;
    enum work work;
    bool pinned_by_config, pinned_by_hand;
    bool wanted; /* tried again after a failure */
    uint64_t passing_ns;
    char sharer[SL_SHARER_BYTES]; /* PASSING: in whose share its name counts; "": in none */
    char payer[SL_SHARER_BYTES];  /* the same of the place of the running load */
    uint64_t asked_ns, lapse_ns;  /* somebody last asked or waited; how long its load outlives that;
                                     0: as long as it takes */
    bool was_ready, of_volume;
    enum load_place place;     /* that the running load has */
    uint32_t loads_into;       /* the placement that it was begun for */
    bool measured;             /* while queued: its source was asked … */
    uint64_t measured_bytes;   /* … and says so; 0: it does not tell */
    struct sl_err err;         /* of the last load; SL_OK: it went well, or there was none */
    unsigned failures;         /* of loads, one after another … */
    uint64_t failing_since_ns; /* … since the first of them */
    uint64_t retry_ns;
    uint64_t refused_bytes;       /* it failed because there was no room for so much; else 0 */
    struct sl_cancel *cancel;     /* of the running load */
    struct sl_progress *progress; /* of the latest */
    struct resident *residents, *current;
    uint8_t identity[32]; /* of the last load that went well, or of what was found */
    bool has_identity;
    struct waiter *waiters;
    struct model *next, *queue_next;
};

/* RETIRED or FORGOTTEN: nothing new begins with it. */
static inline bool registry_name_ended(const struct model *model)
{
    return model->name_state >= NAME_RETIRED;
}
/** registry.c: was it found right by a load under the rule that the node has for the model now? */
bool registry_obeys(const struct model *model, const struct resident *resident);
static inline bool registry_is_queued(const struct model *model)
{
    return model->work == WORK_QUEUED || model->work == WORK_UNWANTED;
}
/** A worker has it. */
static inline bool registry_is_running(const struct model *model)
{
    return model->work >= WORK_RUNNING && model->work <= WORK_AGAIN;
}
static inline bool registry_follows(const struct model *model)
{
    return model->work >= WORK_FOLLOWS;
}
/** It is, or is about to be, given back. */
static inline bool registry_is_going(const struct resident *resident)
{
    return resident->state >= RESIDENT_MARKED;
}

/* A thread for loads into one space, while other GPUs have all usual places. */
struct beside {
    struct sl_registry *registry; /* NULL: it was not started */
    unsigned space;
    pthread_t thread;
};

/*
 * What holds whenever the lock is free (registry_check()):
 *
 *  1. There are model_count models. What was defined, and is not FORGOTTEN, has a spec, what is
 *     FOUND has none, and who has a spec has a holder.
 *  2. A pin by the config is of a CONFIG name. What is RETIRED or FORGOTTEN is not wanted.
 *  3. The queue has all that are QUEUED or UNWANTED, each once.
 *  4. A load can be canceled only while a worker has it.
 *  5. Nobody waits for what is UNWANTED or ABANDONED, nor is it wanted by itself.
 *  6. Who waits, waits for a load, but at the end.
 *  7. Only loads of PASSING names have a payer, or of such that were forgotten.
 *  8. What FOLLOWS borrows memory from what a worker is loading for another name.
 *  9. A resident has ref_count references, each of which is to it.
 * 10. A job works with what is LOADING; neither job nor reference has what is MARKED or DROPPING,
 *     of which there are as many as `dropping`.
 * 11. The current resident is one of the model's, READY, and has no key.
 * 12. Of those in a ring one does not borrow; they are of one holder and identity.
 * 13. Who awaits room deposits.
 * 14. All that run in usual places are `taken`, of which there are no more than loads_at_once.
 * 15. What is being measured is QUEUED, and the question can be canceled.
 * 16. No more than later_count calls are deferred.
 */
struct sl_registry {
    unsigned loads_at_once, retry_ms, retry_max_ms;
    pthread_t workers[LOADS_MAX], small_worker, janitor;
    struct beside besides[SL_SPACES_MAX]; /* the host's from the start, GPUs' under the lock */
    unsigned worker_count;
    bool has_small_worker, has_janitor;
    pthread_mutex_t lock;
    pthread_cond_t work, beside, clean, changed; /* for workers; for those with a place of their
                                                    own; for the janitor; for who waits */
    struct {
        struct model *models;
        size_t model_count;
        struct model *queue, **queue_end;
        unsigned taken;                     /* places for loads */
        const struct model *measuring;      /* whose source is asked how large it is; or NULL */
        struct sl_cancel *measuring_cancel; /* of that */
        uint64_t budgets[SL_SPACES_MAX];    /* of the spaces of holders */
        uint32_t opened;                    /* GPUs whose budgets were set: their spaces */
        bool stopping, held;
        unsigned dropping; /* drops under way */
        struct left *left;
        bool look_at_left; /* now */
        uint64_t looked_ns;
        struct sl_deferred_call *deferred, **deferred_end;
        unsigned later_count;             /* queued or running */
        struct sl_registry_counts counts; /* what has ever been … */
        struct sl_registry_counts shown;  /* … and what the gauges show */
    } locked;
};

/* All of these: with the lock held, unless they say otherwise. */

/** registry.c */
struct model *registry_find(struct sl_registry *registry, const char *name);
/** Nothing works with it, and it has no residents. */
void registry_free_model(struct sl_registry *registry, struct model *model);
void registry_box_free(struct spec_box *box);
struct resident *registry_resident(struct model *model, const char *version,
                                   const struct sl_holder *holder);
struct resident *registry_new_resident(struct model *model, const char *version,
                                       const struct sl_holder *holder, struct sl_err *err);
void registry_remove_resident(struct resident *resident);
/** A reference to nothing yet; without the lock too. */
struct sl_model_ref *registry_new_ref(struct sl_registry *registry, enum sl_ref_kind kind,
                                      const char *who, struct sl_err *err);
void registry_link_ref(struct sl_model_ref *ref, struct resident *resident);
/** Does any reference have this body? */
bool registry_is_used(const struct resident *resident, const void *body);
/** Without the lock: nobody has this body any more, which another has replaced. */
void registry_drop_replaced(const struct sl_holder *holder, void *body);
/** Take all waiters (only the early ones, unless the spec says another memory by now) out of the
 * model; they get references to the resident, or err. */
struct waiter *registry_take_waiters(struct model *model, bool early, struct resident *resident,
                                     const struct sl_err *err);
/** Any number of waiters, without the lock; frees them. */
void registry_answer(struct waiter *waiters);
/** Its load ends, if nobody waits for it and nothing of it is of use yet. */
void registry_abandon(struct sl_registry *registry, struct model *model);
/** A model is for this memory, which may need a place of its own. */
void registry_need_beside(struct sl_registry *registry, uint32_t placement);

/** registry_states.c */
/** The only ways to change a state; a step that is not drawn above is our mistake. */
void registry_set_name(struct model *model, enum name_state to);
void registry_set_work(struct model *model, enum work to);
void registry_set_resident(struct resident *resident, enum resident_state to);
/** Does all hold that must? In builds with asserts; without the lock it is never called. */
#ifdef NDEBUG
static inline void registry_check(const struct sl_registry *registry)
{
    (void)registry;
}
#else
void registry_check(const struct sl_registry *registry);
#endif
SL_LOCKED_DEFINE(sl_registry, registry_check)
/** Hold the registry's lock to the end of the scope. */
#define REGISTRY_LOCKED(registry) SL_LOCKED_CHECKED(sl_registry, registry)
/** With the lock, which is given up meanwhile: until the condition is signaled, or sl_now_ns() is
 * until_ns; UINT64_MAX: never. */
void registry_wait(struct sl_registry *registry, pthread_cond_t *condition, uint64_t until_ns);

/** registry_loads.c */
/** To be loaded; one that waits already keeps its turn, and goes where its spec says by now. */
void registry_queue(struct sl_registry *registry, struct model *model);
/** What is asked about this model is of no use any more. */
void registry_stop_measuring(struct sl_registry *registry, const struct model *model);
/** Does it count in the share of this one: by its name, or since that waits? */
bool registry_counts_for(const struct model *model, const char *sharer);
/** Of those who wait some came or went: its name and its place count for one who does. */
void registry_pass_shares(struct sl_registry *registry, struct model *model);
/**
 * Say why a queued model waits. With the lock held.
 *
 * @model           queued.
 * @all             also by the names of what not everybody is told of.
 * @text, capacity  out: cut off where it does not fit.
 */
void registry_describe_wait(const struct sl_registry *registry, const struct model *model, bool all,
                            char *text, size_t capacity);
/** Has another name the same memory? */
bool registry_is_shared(const struct resident *resident);
/** It is about to go: another one stands for the memory, if one stays. */
void registry_pass_memory(struct resident *resident);
/** The memory is that of the others alone: it has none any more. */
void registry_part(struct resident *resident);
/** Whose load a model that follows waits for; else itself. */
const struct model *registry_followed(const struct model *model);
/** Threads. */
void *registry_worker(void *registry);
void *registry_small_worker(void *registry);
void *registry_beside_worker(void *beside);

/** registry_budget.c */
/** Without the lock: how the memory of a resident that is to be dropped is watched, or NULL. */
struct left *registry_watch(struct sl_registry *registry, struct resident *resident, void *body);
/** Without the lock: it was dropped. What nobody has any more is freed, the rest is counted. */
void registry_leave(struct sl_registry *registry, struct left *left);
/** The registry ends. */
void registry_free_left(struct sl_registry *registry);
/** Of a space. */
uint64_t registry_left(const struct sl_registry *registry, unsigned space);
void registry_note_had(struct resident *resident, const char *who);
/** "'m' 64.0 MiB (evicted, but …)", behind what is in text. */
void registry_describe_left(const struct left *left, char *text, size_t capacity);
/** With the lock, which is given up meanwhile: have everything that is left looked at; false once
 * it is later than until_ns, or there is nothing. */
bool registry_await_left(struct sl_registry *registry, uint64_t until_ns);
/** Bytes of all residents in a space, what is being dropped and what is left of others included. */
uint64_t registry_held(const struct sl_registry *registry, unsigned space);
/** Bytes that a resident of this size takes, without shared ones. */
uint64_t registry_own_bytes(const struct resident *resident, uint64_t bytes);
/** In how many spaces a resident takes its bytes. */
unsigned registry_copies(const struct sl_registry *registry, const struct resident *resident);
bool registry_pinned(const struct model *model);
/* In the order in which they are to be dropped. One that was dropped is gone: take the next before.
 */
struct victims {
    struct resident *first, *last;
};
/**
 * Make room in every space that a resident lies in: mark what must go as DROPPING, for the caller
 * to drop without the lock. With the lock held.
 *
 * @resident  which wants the room.
 * @bytes     that it will have in all.
 * @victims   out: what was marked.
 * @return    0, or -1 with SL_E_NO_SPACE, code "budget": refused and counted, nothing marked.
 */
int registry_make_room(struct sl_registry *registry, struct resident *resident, uint64_t bytes,
                       struct victims *victims, struct sl_err *err);
/** Would there be room now for what the model was refused? */
bool registry_would_fit(const struct sl_registry *registry, const struct model *model);
/** Is a load about to end, all bytes of which are there, and which nobody has? */
bool registry_is_ending(const struct sl_registry *registry);
/** With the lock, which is given up meanwhile: wait for a change where one is; false once it is
 * later than until_ns, or there is none. */
bool registry_await_end(struct sl_registry *registry, uint64_t until_ns);
/** Is what lies where it lies within the budget, what is being dropped included? */
bool registry_has_room(const struct sl_registry *registry, const struct resident *resident);
/** What was dropped for a resident has gone: is there room, or does somebody keep it? */
int registry_check_room(struct sl_registry *registry, struct resident *resident,
                        struct sl_err *err);
/** Nobody will ask for it again, and nobody has it any more. With the lock held. */
bool registry_is_abandoned(const struct resident *resident);
/** Mark a resident as one that goes: MARKED for the janitor, or DROPPING for the caller to drop. */
void registry_mark(struct sl_registry *registry, struct resident *resident, bool for_janitor);
/** Somebody wants it out of memory, and nobody has it: as soon as nobody works with it. */
void registry_evict(struct sl_registry *registry, struct resident *resident);
/** What was marked to be dropped by the caller is the janitor's. */
void registry_leave_to_janitor(struct sl_registry *registry, const struct victims *victims);
/** Without the lock: drop a DROPPING resident, then remove it; kept as PARTIAL on failure. */
int registry_drop(struct sl_registry *registry, struct resident *resident, struct sl_err *err);
/** Over the budget, because it became smaller: mark for the janitor what may go. */
void registry_enforce(struct sl_registry *registry);
/** Without the lock: whatever the janitor was left and has not done. */
void registry_run_laters(struct sl_registry *registry);
void *registry_janitor(void *registry);

/** registry_derived.c: is this what the model's name stands for, or soon will? */
bool registry_is_source(const struct model *model, const uint8_t identity[32]);
/** With the lock: something that deposits may wait for could not be dropped. */
void registry_note_stuck(struct sl_registry *registry, const struct sl_err *why);
/** Without the lock, after every drop: answer the deposits for which there is room now, and all if
 * nothing is being dropped any more. */
void registry_answer_deposits(struct sl_registry *registry);

/** registry_view.c: after every change. */
void registry_update_gauges(struct sl_registry *registry);
/** May strangers learn of it? */
bool registry_is_public(const struct model *model);

#endif
