/*
 * How many of everything a load has: connections to begin with, at most and ahead of need, threads,
 * buffers. All of it is decided here: facts go in, numbers come out, without a clock or a file, so
 * that a table can test it. Whoever needs such a number asks here or is told.
 *
 * A load asks as its facts become known: sl_concurrency_preconnect() and sl_concurrency_per_host()
 * before it plans, sl_concurrency_of_plan() when it has planned, sl_concurrency_decide() when it
 * begins to read. While it reads growth.h moves the number of connections, and
 * sl_concurrency_share() says how many of them are a thread's. A load that is pinned (fixed.h) is
 * told its numbers, or has constants in their place, and they stay.
 *
 * Loads share processors: sl_concurrency_open_load() and sl_concurrency_take_threads() count who
 * has them, for the process. Those that read from one host share its connections (host_growth.h).
 *
 * Any thread; none blocks but for a lock. Nothing is kept but these counts.
 */
#ifndef SL_CONCURRENCY_H
#define SL_CONCURRENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fixed.h"
#include "growth.h"
#include "weigh.h"

/** Why a load begins with this many connections. */
enum sl_connections_why {
    SL_CONNECTIONS_USUAL,   /* nothing in particular */
    SL_CONNECTIONS_NEAR,    /* the server begins an answer at once */
    SL_CONNECTIONS_GIVEN,   /* readers.connections */
    SL_CONNECTIONS_LOCAL,   /* files of this machine */
    SL_CONNECTIONS_SMALL,   /* small requests: mostly waited for */
    SL_CONNECTIONS_DISTANT, /* the server takes long to begin an answer */
    SL_CONNECTIONS_KNOWN,   /* an earlier load of this process needed so many there */
    SL_CONNECTIONS_CACHES,  /* blocks lie at different ones, however near each is */
    SL_CONNECTIONS_IN_ORDER /* a second one would be sent what the first one was */
};
/** The limit that keeps a load from more connections. */
enum sl_connections_bound {
    SL_BOUND_AUTO,        /* the most that auto takes, or the number that was given */
    SL_BOUND_RANGES,      /* there is no more to ask for */
    SL_BOUND_DESCRIPTORS, /* of the process */
    SL_BOUND_MEMORY,      /* readers.memoryBytes */
    SL_BOUND_HOST         /* readers.connectionsPerHost */
};
/** Why there are this many threads. */
enum sl_threads_why {
    SL_THREADS_GIVEN,
    SL_THREADS_PROCESSORS,
    SL_THREADS_CONNECTIONS, /* two connections a thread or more, of local files one */
    SL_THREADS_LOADS        /* other loads have processors, too */
};
/** "usual", "near", …; "auto", "ranges", …; "rose", "same", …; "given", "processors", …. */
const char *sl_connections_why_name(enum sl_connections_why why);
const char *sl_connections_bound_name(enum sl_connections_bound bound);
const char *sl_growth_why_name(enum sl_growth_why why);
const char *sl_threads_why_name(enum sl_threads_why why);

/* ---- before there is a plan ------------------------------------------------------------------ */

/** Connections of the process to one host. Both as in the spec: SL_AUTO_VALUE or a number. */
unsigned sl_concurrency_per_host(uint64_t per_host, uint64_t connections);
/** Connections to make to a distant server while its first answer is on its way, beside the one
 * that waits for it. connections: as in the spec; descriptors: connections that these allow. */
unsigned sl_concurrency_preconnect(uint64_t connections, unsigned descriptors);
/** How many small requests a load may have on their way at a time. Both as above. */
unsigned sl_concurrency_small(uint64_t connections, unsigned descriptors);
/** How many small requests a load that is pinned sends side by side while it opens objects; 0: it
 * is not. connections: as in the spec. */
unsigned sl_concurrency_openings(const struct sl_fixed *fixed, uint64_t connections);

/* ---- a plan ---------------------------------------------------------------------------------- */

struct sl_connections {
    unsigned first, most; /* 1 <= first <= most */
    enum sl_connections_why why;
    enum sl_connections_bound bound;
};
struct sl_plan_facts {
    uint64_t given; /* connections, as in the spec; 0 is auto, too */
    bool local;     /* the store is this machine's files */
    size_t ranges;
    uint64_t fetch_bytes; /* of the ranges */
    size_t composed;      /* blocks that are asked for beside the ranges */
    unsigned descriptors; /* connections that these allow */
    uint64_t requests;    /* that bring the ranges; 0: one a range */
    bool rows;            /* it may turn out that rows are better asked for one by one */
    bool caches;          /* caches stand between */
    bool in_order;        /* the store has its objects only from their beginnings on */
    bool fixed;           /* it stays with those it begins with */
};
/** As far as the plan alone says. */
struct sl_connections sl_concurrency_of_plan(const struct sl_plan_facts *facts);

/* ---- a load that begins to read -------------------------------------------------------------- */

enum { SL_THREADS_MAX = 64 /* of a load */ };

struct sl_load_facts {
    unsigned connections, threads;   /* as the caller wants them; 0: auto */
    uint64_t memory_bytes;           /* bound on all buffers; 0: auto */
    struct sl_connections planned;   /* sl_concurrency_of_plan() */
    size_t ranges;                   /* of the plan */
    uint64_t fetch_bytes;            /* of them */
    bool grows;                      /* bytes become more on their way: two buffers a connection */
    bool one_file;                   /* most go into one, whose writers take turns */
    unsigned host;                   /* connections of the process to the host; 0: any number */
    uint64_t first_byte_ns;          /* time until the server began an answer; 0: not known */
    unsigned processors;             /* of the machine */
    double processor_limit;          /* of the control group; 0: none */
    struct sl_cpu_time (*cpu)(void); /* of the process; NULL: not known */
    unsigned loads, threads_of_all;  /* of the process, now; this load counts as one */
    unsigned known; /* connections that the host's last load needed; 0: not known */
    struct sl_fixed fixed;
};
struct sl_concurrency {
    struct sl_connections connections;
    unsigned stand_ins;  /* more than `most`, while as many stall */
    size_t buffer_bytes; /* of one connection */
    size_t large_bytes;  /* of those, `large` of them, that may have more while they are fast */
    unsigned large;
    unsigned threads;
    bool one_each; /* local files into several, or memory: a connection keeps a thread busy */
    enum sl_threads_why threads_why;
    struct sl_growth growth; /* how the number of connections goes on from here */
};
/**
 * Give the pins that repeat this load.
 *
 * @facts         as the load began with them.
 * @concurrency   what was decided by them.
 * @last          its last number of connections.
 * @window_bytes  its longest window; shorter where so many connections would need too much memory.
 * @return        without the stages, which are the caller's to fill in.
 */
struct sl_fixed sl_concurrency_decided(const struct sl_load_facts *facts,
                                       const struct sl_concurrency *concurrency, unsigned last,
                                       size_t window_bytes);
/** *out is filled in whole. */
void sl_concurrency_decide(const struct sl_load_facts *facts, struct sl_concurrency *out);
/** It became known later what the server takes to begin an answer, in ns: as
 * sl_growth_know_distance(), by whoever has the growth. */
void sl_concurrency_know_distance(const struct sl_load_facts *facts, uint64_t first_byte_ns,
                                  struct sl_growth *growth);

/* ---- while it reads -------------------------------------------------------------------------- */

/** How many connections of this thread may have a large buffer. */
unsigned sl_concurrency_large(const struct sl_concurrency *concurrency, unsigned thread);
/**
 * The length of the next window, in bytes, after one of `bytes` that took ns to fill. It doubles
 * where bytes come fast, so that threads that fill one file take fewer turns; it halves where they
 * come slowly.
 */
size_t sl_concurrency_window(const struct sl_concurrency *concurrency, size_t bytes, uint64_t ns);
/** Connections that one thread has room for: its part of all, and stand-ins beside them. */
struct sl_thread_room {
    unsigned most, stand_ins;
};
struct sl_thread_room sl_concurrency_room(const struct sl_concurrency *concurrency);

struct sl_share_facts {
    unsigned thread;                 /* its number */
    unsigned wanted;                 /* sl_growth_tick() */
    unsigned doubtful;               /* of its connections: they seem to stall */
    unsigned all_doubtful, all_open; /* of the load */
    bool crowded;                    /* sl_growth_is_crowded() */
};
/** Connections that a thread shall have now: its part of those wanted, and some that stand in for
 * those in doubt, unless most are or it is crowded. */
unsigned sl_concurrency_share(const struct sl_concurrency *concurrency,
                              const struct sl_share_facts *facts);

/* ---- the process ----------------------------------------------------------------------------- */

/** A load runs, from here to sl_concurrency_close_load(). Any thread. */
void sl_concurrency_open_load(void);
void sl_concurrency_close_load(void);
/**
 * Decide about threads alone, with the loads and threads that the process has now (those in facts
 * do not count), and have them until sl_concurrency_return_threads(). Any thread.
 */
void sl_concurrency_take_threads(const struct sl_load_facts *facts, struct sl_concurrency *out);
void sl_concurrency_return_threads(unsigned count);

#endif
