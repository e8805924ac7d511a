/*
 * Many machines that load one model through a ring of caches, in virtual time: each decision about
 * caches is one of storage/store/caches.c, as in a load; links, caches and the origin are models.
 *
 * A block goes over links in quanta. A link sends those of its flows in turn, a flow has a few on
 * their way, and the receiver's link takes them as they come: about what TCP does between machines
 * that are near one another. A cache that lacks a block asks the origin for it once; who asked
 * first gets it as it comes, the others look after it every `poll_ms`, as nginx's proxy_cache_lock
 * does. A cache on the same machine needs no link. Not there: processors, packets that are lost,
 * other traffic.
 *
 * The same settings give the same figures on every machine. One thread.
 */
#ifndef SL_HERD_H
#define SL_HERD_H

#include <stdbool.h>
#include <stdint.h>

struct herd {
    unsigned nodes, blocks, block_bytes;
    unsigned quanta; /* of a block; at most 64: more are exacter, and take longer */
    double node_mbit, origin_mbit;
    double connection_mbit;   /* most that the origin gives one connection; 0: any */
    unsigned origin_ms;       /* until it begins an answer */
    unsigned poll_ms;         /* of who waits for a block that is being fetched; at least 1 */
    unsigned served;          /* requests that a cache serves at once; others wait */
    unsigned connections;     /* of a node's load */
    bool direct;              /* no caches: all ask the origin */
    bool warm;                /* caches have everything */
    unsigned slow, slow_part; /* the last nodes have a link of that part */
    bool idle;                /* these load nothing themselves */
    unsigned dead;            /* the first caches die when a quarter of the time of one node alone
                                 has passed */
    bool refuses;             /* and refuse, where they are killed and the machine lives on */
    unsigned late;            /* nodes that begin when half of that time has passed */
    unsigned spread_ms;       /* all others begin within it */
    double origin_share;      /* source.through.originShare */
    uint64_t seed;
};

struct herd_result {
    double alone;         /* seconds of one node at the origin */
    double worst;         /* of the nodes that are neither slow nor dead, each from its own start */
    double median;        /* of all these */
    double copies;        /* that left the origin */
    unsigned origin_most; /* requests that the origin served at once */
};
void herd_run(const struct herd *herd, struct herd_result *result);

#endif
