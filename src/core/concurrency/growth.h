/* How many connections: begin with a few, add while the goodput rises and there are processors left
 * for them, halve when the server is too busy. A distant
 * server gets many at once as soon as the few have brought enough to share among them.
 * Computation alone: no clock is read. A struct is for one thread at a time, or under its owner's
 * lock. */
#ifndef SL_GROWTH_H
#define SL_GROWTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu_time.h"

/** Why there are as many as there are. */
enum sl_growth_why {
    SL_GROWTH_BEGUN,      /* it has not been tried yet whether more bring more */
    SL_GROWTH_ROSE,       /* more brought more */
    SL_GROWTH_SAME,       /* more brought no more, and were taken back */
    SL_GROWTH_PROCESSORS, /* the process, or the machine, has no processor left for more */
    SL_GROWTH_BUSY,       /* the server said that they are too many */
    SL_GROWTH_NEARER,     /* connections for a distant server were taken back: it is near */
    SL_GROWTH_MOST        /* there may not be more */
};
struct sl_growth {
    unsigned connections; /* wanted now */
    unsigned maximum;
    enum sl_growth_why why;
    /* the rest is its own */
    unsigned before;         /* the step on trial began here; 0: none */
    unsigned near;           /* as many a server that is near begins with */
    bool fixed;              /* it never changes, but where the server is too busy */
    unsigned ceiling;        /* a server said that more is too many; 0: none */
    uint64_t window_ns;      /* when this window began; 0: not yet */
    uint64_t window_bytes;   /* bytes landed until then */
    uint64_t quiet_until_ns; /* no step before */
    double rate;             /* bytes/s before the step on trial */
    uint64_t settle_ns;      /* until connections that were added have got going */
    uint64_t quantum;        /* bytes that a connection lands at a time; 0: not known */
    bool distance_known, distant;
    unsigned target; /* connections that fill an ordinary link at this distance; 0: nothing to reach
                        for */
    double share;    /* bytes/s that each connection must have to be worth having, until tried */
    bool fed;        /* each had its share when it was looked at last */
    uint64_t answer_ns; /* that the server takes to begin an answer */
    uint64_t request_bytes;
    uint64_t began_ns; /* the first call */
    uint64_t first_ns; /* when bytes first landed, and how many; 0: not yet */
    uint64_t first_bytes;
    uint64_t reached_ns;             /* when the step to the target was begun */
    size_t requests;                 /* that the load will make, 0: not known */
    uint64_t all_bytes;              /* that will land, 0: not known */
    struct sl_cpu_time (*cpu)(void); /* of the process so far; NULL: not known */
    struct sl_cpu_time window_cpu;
    bool looked;                   /* whether an answer had to wait for a processor: it had */
    uint64_t now_ns, looked_ns;    /* of the last call; of that look */
    uint64_t landed;               /* by the last call */
    struct sl_cpu_time looked_cpu; /* at that look */
    double processors;
    unsigned second_thread; /* connections of which a second thread has some; 0: there is none */
};

/** maximum >= connections >= 1. A maximum equal to connections never changes. */
void sl_growth_init(struct sl_growth *growth, unsigned connections, unsigned maximum);
/** A connection's bytes count only once this many have landed: rates are measured over several
 * times that. */
void sl_growth_know_quantum(struct sl_growth *growth, uint64_t bytes);
/** How many bytes will land in all (0: not known; so it is once more have landed): near a server
 * no step is tried where they will be there before it is known what it brings. */
void sl_growth_know_bytes(struct sl_growth *growth, uint64_t bytes);
/** How many requests the load will make: none of the connections that it begins with shall be left
 * over in the last turn. Before sl_growth_know_distance(). */
void sl_growth_know_requests(struct sl_growth *growth, size_t requests);
/**
 * How long the server takes to begin an answer (0: not known yet), and how large requests are on
 * average. Far from a server every connection waits more than it brings, so a load begins with a
 * few more, and goes on to as many as fill an ordinary link once bytes come fast enough for so
 * many. The first call that knows counts; and one by which a server that seemed distant is near:
 * then what it got for its distance is taken back, unless more have brought more by then.
 */
void sl_growth_know_distance(struct sl_growth *growth, uint64_t first_byte_ns,
                             uint64_t request_bytes);
/** Requests are for so many bytes from now on, and no more: as many connections as that needs at
 * this distance, as above. */
void sl_growth_know_smaller(struct sl_growth *growth, uint64_t first_byte_ns,
                            uint64_t request_bytes);
/** Let it see how busy the process is, and the machine: cpu is called a few times a second;
 * processors: those that the process may use. */
void sl_growth_watch_cpu(struct sl_growth *growth, struct sl_cpu_time (*cpu)(void),
                         double processors);
/** Whether threads that used and waited so long lack processors: they waited for half of it. */
bool sl_growth_waits(struct sl_cpu_time cpu);
/** With so many connections a second thread has some of them; 0: one thread has all. While the one
 * thread is busy all the time another connection of its own brings nothing, so the next step is to
 * these. */
void sl_growth_know_threads(struct sl_growth *growth, unsigned second_thread);
/** Another load came or went: what is on trial can no longer be judged. It is taken back, but for
 * what a distance has brought. */
void sl_growth_restart(struct sl_growth *growth);
/** Beside so many that are open another one would only take from them: the server said that they
 * are too many, or they have less than their share each. */
bool sl_growth_is_crowded(const struct sl_growth *growth, unsigned open);
/**
 * Look at what has come, and decide how many connections there are to be. Call it often.
 *
 * @now_ns     sl_now_ns() scale.
 * @bytes      landed since the beginning.
 * @throttled  answers 429 and 503 since the last call.
 * @return     the connections wanted.
 */
unsigned sl_growth_tick(struct sl_growth *growth, uint64_t now_ns, uint64_t bytes,
                        unsigned throttled);

#endif
