/*
 * What a request is worth, in bytes: a gap that is shorter is fetched and dropped rather than asked
 * around. And while a load reads: what it saw of the store changes that, and a change that did not
 * help is taken back. Computation alone: no clock is read. A struct is for one thread at a time, or
 * under its owner's lock.
 */
#ifndef SL_WEIGH_H
#define SL_WEIGH_H

#include <stdbool.h>
#include <stdint.h>

/** Bounds of what a request is worth: its own head and that of its answer; and a range. */
enum { SL_WORTH_BYTES_MIN = 1024, SL_WORTH_BYTES_MAX = 8 * 1024 * 1024 };

/** Why it is worth that. */
enum sl_worth_why {
    SL_WORTH_LEAST,    /* readers.slices: least-bytes, or a store without a way to it */
    SL_WORTH_ASSUMED,  /* from the time of an answer, over a link of 10 Gbit/s */
    SL_WORTH_KNOWN,    /* from what an earlier load of this process had of the host */
    SL_WORTH_MEASURED, /* from what this load has */
    SL_WORTH_FIXED     /* the load is pinned */
};
/** "least", "assumed", "known", "measured", "fixed". */
const char *sl_worth_why_name(enum sl_worth_why why);

struct sl_worth_facts {
    bool least;           /* as few bytes as can be */
    uint64_t wait_ns;     /* from a request to its answer; 0: not known */
    double bytes_per_s;   /* of all connections together; 0: not known */
    unsigned connections; /* that a load may have: so many requests wait at the same time */
    unsigned processors;  /* that it may use; at least 1 */
    uint64_t price_bytes; /* cost of a request beside its time */
    uint64_t fixed_bytes; /* worth of a request, pinned; 0: not pinned */
};
/** Bytes that a request for `row` bytes is worth: a shorter gap before it is fetched. */
uint64_t sl_request_worth(const struct sl_worth_facts *facts, uint64_t row);

/** The same while a load reads. */
struct sl_weigh {
    struct sl_worth_facts facts; /* by which it weighs now */
    enum sl_worth_why why;
    /* the rest is its own */
    bool seen;                         /* the link was measured */
    bool settled;                      /* it has been tried */
    uint64_t window_ns;                /* when this window began; 0: not yet */
    uint64_t come, landed;             /* bytes until then */
    unsigned windows;                  /* that were measured, of these requests */
    double come_most, landed_most;     /* bytes/s, of the best of them */
    bool tries;                        /* the measured value is on trial */
    double rate_before, landed_before; /* until then */
};
void sl_weigh_init(struct sl_weigh *weigh, const struct sl_worth_facts *facts,
                   enum sl_worth_why why);
/** How many bytes a request may span: few while it is not known whether gaps are worth it. */
uint64_t sl_weigh_span(const struct sl_weigh *weigh);
/**
 * Look at what has come, and weigh anew. Call it often.
 *
 * @now_ns   sl_now_ns() scale.
 * @come     bytes that came since the beginning, dropped ones too.
 * @landed   those of them that were wanted.
 * @wait_ns  of the shortest answer; 0: not known.
 * @return   true: from now on requests are worth less.
 */
bool sl_weigh_tick(struct sl_weigh *weigh, uint64_t now_ns, uint64_t come, uint64_t landed,
                   uint64_t wait_ns);

#endif
