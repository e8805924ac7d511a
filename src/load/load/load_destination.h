/*
 * Where a load goes. A load (load.c) plans, waits for keys, reads and decides what a failure is
 * worth; a destination has the place, the memory or files in it, and the moment at which others see
 * them. One file and one row of destinations.def each:
 *
 * - directory (load/directory.c): the one that the spec names, locked before anything is asked;
 * - chosen (load/directory.c): one that the caller names once version and size are known;
 * - slabs (pool/fill.c): memory that others map, of which this layer knows nothing.
 *
 * Order of calls, all from the thread of the load:
 *
 *   open, then for each attempt [(planning) prepare current begin (reading) finish end], then close
 *
 * A failure or a cancel leaves out what lies between it and end(); so does current() that says yes.
 * There is a further attempt when the object changed in mid-load, when bytes may be of two
 * versions, and for each mirror.
 */
#ifndef SL_LOAD_DESTINATION_H
#define SL_LOAD_DESTINATION_H

#include "plan.h"
#include "progress.h"
#include "publish.h"
#include "reader.h"

/** The subject of a load, as far as it is known. */
struct sl_load_attempt {
    const struct sl_spec *spec; /* its source.uri is the one of this attempt */
    /* NULL in open(), and in end() where there is none. begin() may note in it who does its work
     * (plan/stages.h); nothing else changes it. */
    struct sl_plan *plan;
    struct sl_cancel *cancel; /* of the whole load, its time limit included */
    struct sl_progress *progress;
    bool worthless; /* in end(): nothing that was read is worth keeping */
    bool afresh;    /* in begin(): nothing is taken over from another version */
};

struct sl_load_destination;
/** int functions return 0, or -1 with the error, which ends the attempt. What an attempt points to
 * is borrowed for the call. */
struct sl_load_destination_ops {
    const char *name;
    bool resumes;    /* a later load goes on where one ended, and knows what is there already */
    bool lands_late; /* the read bytes may land only in finish(): its time counts as reading */
    /** Before the source is asked: refuse, or take the place. May wait. NULL: nothing to do. */
    int (*open)(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                struct sl_err *err);
    /** Version and size are known, no tensor is read and no memory taken: refuse, or take the
     * place. May wait. NULL: nothing to do. */
    int (*prepare)(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                   struct sl_err *err);
    /** Is what a listing tells of (sl_plan.asked) there? Then *facts says what is, no object is
     * opened, and current() is called with a plan that has plan->there and no files. NULL: never.
     */
    bool (*there)(struct sl_load_destination *to, const uint8_t asked[32],
                  struct sl_publish_facts *facts);
    /** Is exactly this plan there? 1: yes, and nothing remains to be done; 0; -1. NULL: never. */
    int (*current)(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                   struct sl_err *err);
    /** Set to->sink for the files of the plan, and to->journal if there is one to resume from. May
     * add to the reader's config. The plan's keys need not be there yet. */
    int (*begin)(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                 struct sl_reader_config *config, struct sl_err *err);
    /** All bytes are in the sink and all checks agreed: finish the sink, and let others see it. */
    int (*finish)(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                  struct sl_err *err);
    /** Ends every attempt, also one without a plan: gives back what prepare() and begin() took,
     * whichever of them came. why: NULL if it went well. After a failure nobody sees anything of
     * it; what is worth a resume stays. */
    void (*end)(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                const struct sl_err *why);
    /** Gives back what open() took, if it was called, however it ended. NULL: nothing to do. */
    void (*close)(struct sl_load_destination *to);
};
/** The first member of whatever a destination needs. Lives longer than the load. */
struct sl_load_destination {
    const struct sl_load_destination_ops *ops;
    struct sl_plan_output output; /* how plans for it are laid out */
    const char *path;             /* its directory, "" if it is none or not chosen yet; borrowed */
    struct sl_sink *sink;         /* from begin() to end() */
    struct sl_journal *journal; /* the same; NULL: what was read is not kept for another attempt */
};

#define SL_DESTINATION(name, key, options, table, text, refusal)                                   \
    extern const struct sl_load_destination_ops sl_##name##_destination;
#define SL_DESTINATION_OF_CALLER(name)                                                             \
    extern const struct sl_load_destination_ops sl_##name##_destination;
#include "destinations.def"
#undef SL_DESTINATION
#undef SL_DESTINATION_OF_CALLER

#endif
