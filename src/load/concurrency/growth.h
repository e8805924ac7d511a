/* How many connections: begin with a few, add while the goodput rises and there are processors left
 * for them, do with fewer where these bring the same, halve when the server is too busy.
 * Computation alone: no clock is read. A struct is for one thread at a time, or under its owner's
 * lock. */
#ifndef SL_GROWTH_H
#define SL_GROWTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Why there are as many as there are. */
enum sl_growth_why {
    SL_GROWTH_BEGUN,      /* it has not been tried yet whether more bring more */
    SL_GROWTH_ROSE,       /* more brought more */
    SL_GROWTH_SAME,       /* more brought no more, and were taken back */
    SL_GROWTH_FEWER,      /* fewer brought the same */
    SL_GROWTH_PROCESSORS, /* the process has no processor left for more */
    SL_GROWTH_BUSY,       /* the server said that they are too many */
    SL_GROWTH_MOST        /* there may not be more */
};
struct sl_growth {
    unsigned connections; /* wanted now */
    unsigned maximum;
    enum sl_growth_why why;
    /* the rest is its own */
    unsigned before;         /* the step on trial began here; 0: none */
    unsigned least;          /* no step goes below */
    bool down;               /* the step on trial, or the next one, goes down */
    unsigned ceiling;        /* a server said that more is too many; 0: none */
    uint64_t window_ns;      /* when this window began; 0: not yet */
    uint64_t window_bytes;   /* bytes landed until then */
    uint64_t quiet_until_ns; /* no step before */
    double rate;             /* bytes/s before the step on trial */
    uint64_t settle_ns;      /* until connections that were added have got going */
    uint64_t quantum;        /* bytes that a connection lands at a time; 0: not known */
    bool distance_known;
    bool doubted; /* it began with many for a distant server, and what they bring is not known */
    uint64_t began_ns; /* since when they bring bytes; 0: not yet */
    uint64_t began_bytes;
    size_t requests;          /* that the load will make, 0: not known */
    uint64_t (*cpu_ns)(void); /* that the process has used so far; NULL: not known */
    uint64_t window_cpu_ns;
    double processors;
};

/** maximum >= connections >= 1. A maximum equal to connections never changes. */
void sl_growth_init(struct sl_growth *growth, unsigned connections, unsigned maximum);
/** What a connection brings counts only when so many bytes of it have landed: a rate is measured
 * over several times that. */
void sl_growth_know_quantum(struct sl_growth *growth, uint64_t bytes);
/** How many requests the load will make: none of the connections that it begins with shall be left
 * over in the last turn. Before sl_growth_know_distance(). */
void sl_growth_know_requests(struct sl_growth *growth, size_t requests);
/**
 * How long the server takes to begin an answer (0: not known yet), and how large requests are on
 * average. Far from a server every connection waits more than it brings, so a load begins with as
 * many as fill an ordinary link. Only the first call that knows counts.
 */
void sl_growth_know_distance(struct sl_growth *growth, uint64_t first_byte_ns,
                             uint64_t request_bytes);
/** Requests are for so many bytes from now on, and no more: as many connections as that needs at
 * this distance. */
void sl_growth_know_smaller(struct sl_growth *growth, uint64_t first_byte_ns,
                            uint64_t request_bytes);
/** Let it see how busy the process is: cpu_ns is called a few times a second; processors: those
 * that the process may use. */
void sl_growth_watch_cpu(struct sl_growth *growth, uint64_t (*cpu_ns)(void), double processors);
/** CPU time of this process in ns. Any thread. */
uint64_t sl_growth_process_cpu_ns(void);
/**
 * Call often. now_ns: sl_now_ns() scale; bytes: landed since the beginning; throttled: answers 429
 * and 503 since the last call. Returns the connections wanted.
 */
unsigned sl_growth_tick(struct sl_growth *growth, uint64_t now_ns, uint64_t bytes,
                        unsigned throttled);

#endif
