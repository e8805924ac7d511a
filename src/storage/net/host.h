/*
 * One name and port as this process sees it: its addresses, how they do, and the connections there.
 *
 * A host is looked up once and then anew every few minutes, in a thread of its own. Connections go
 * to the address that has fewest for what it brings; one that refuses, breaks off or is much slower
 * than its siblings gets none for a while. All loads of the process share what is known, and the
 * permits for connections where those are limited. Any thread; none blocks but for a lock.
 */
#ifndef SL_HOST_H
#define SL_HOST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "buf.h"
#include "err.h"
#include "mem.h"

enum {
    SL_HOST_ADDRESSES_MAX = 16, /* of a name; more are left out */
    SL_HOST_RESOLVE_BYTES = SL_HOST_ADDRESSES_MAX * 48 + 300,
};

struct sl_host;

/** The right to one connection to a host; zeroed: none. Its owner thread alone calls with it. */
struct sl_permit {
    struct sl_host *host; /* NULL: none */
    const void *owner;    /* whose load it serves */
    unsigned limit;       /* connections of this process to the host; 0: any number */
    bool held;            /* else it waits */
    int address;          /* number among the host's, -1: not known */
    uint64_t asked_ns;
    struct sl_permit *next, *before; /* of the host, in the order of coming */
};

/**
 * Ask for a permit; sl_host_is_permitted() says when it is given.
 *
 * @permit  any earlier one is left; stays where it is as long as it is asked for or held.
 * @name    of the host; copied.
 * @port    of it.
 * @owner   whose load it serves; only compared.
 * @limit   connections of this process to the host; 0: any number.
 * @return  0, or -1 with SL_E_NO_SPACE.
 */
int sl_host_ask_permit(struct sl_permit *permit, const char *name, unsigned port, const void *owner,
                       unsigned limit, struct sl_err *err);
/** Whether the permit is given: ask again every 20 ms. First come, first served. */
bool sl_host_is_permitted(struct sl_permit *permit);
/** Whether it would be, and nobody has to make room or wait. */
bool sl_host_has_room(const struct sl_permit *permit);
/** One that is given, of another load from now on, with that one's limit; none is fine. */
void sl_host_pass_permit(struct sl_permit *permit, const void *owner, unsigned limit);
/** Give up the permit, or the waiting for it; none is fine. */
void sl_host_leave(struct sl_permit *permit);
/** Another load waits for a permit here and has far fewer: between two requests this one should
 * close its connection. */
bool sl_host_should_yield(const struct sl_permit *permit);
/** Who can close idle connections is told when one is wanted at a host, by the thread that asks for
 * it. Set once. */
void sl_host_on_want(void (*shed)(const struct sl_host *host));

/* ---- addresses ------------------------------------------------------------------------------ */

enum sl_host_state { SL_HOST_FAILED = -1, SL_HOST_WAIT, SL_HOST_KNOWN };
/**
 * Are the addresses known? WAIT: sl_host_fd() becomes readable when they are, or cannot be found.
 * A host whose name is an address is always KNOWN. FAILED: SL_E_NET, code
 * SL_NET_UNRESOLVED if there is no such name; the next call looks again.
 */
enum sl_host_state sl_host_look_up(struct sl_permit *permit, struct sl_err *err);
/** For poll() alone; the host's, as long as the permit is. */
int sl_host_fd(const struct sl_permit *permit);
/** "name:port:address,address…", the best first, for CURLOPT_RESOLVE; the permit counts for the
 * first of them. false: the name is an address itself. `avoid`: bits of addresses that come last.
 */
bool sl_host_choose(struct sl_permit *permit, uint32_t avoid, char text[SL_HOST_RESOLVE_BYTES]);
/** The number of an address, -1 if it is none of the host's. */
int sl_host_number(const struct sl_permit *permit, const struct sockaddr *address);
/** Whether there is one that does well and is not among these bits. */
bool sl_host_has_other(const struct sl_permit *permit, uint32_t avoid);
/**
 * List addresses of the host: "127.0.0.2, 127.0.0.3".
 *
 * @bits         those to list, by their numbers.
 * @text, bytes  out: cut to bytes - 1; "" where the name is an address, or without a host.
 * @return       text.
 */
const char *sl_host_names(const struct sl_permit *permit, uint32_t bits, char *text, size_t bytes);

/** The connection stands, at this address. */
void sl_host_connected(struct sl_permit *permit, int address);
/** An address did not take a connection in time, or refused. */
void sl_host_refused(struct sl_permit *permit, int address);
/** The connection broke, stalled, or its answer was that of a server that is ill. */
void sl_host_troubled(struct sl_permit *permit);
/**
 * Tell that a request was answered, or given up.
 *
 * @bytes  of its answer that came.
 * @ns     the time that they took.
 * @whole  all of the answer came.
 */
void sl_host_answered(struct sl_permit *permit, uint64_t bytes, uint64_t ns, bool whole);
/** A request that was not to be sent twice in vain took so long until its answer began. */
void sl_host_waited(struct sl_permit *permit, uint64_t ns);
/** What is known of that by now (sl_latency_host_add()); 0: nothing. */
uint64_t sl_host_answer_delay(const struct sl_permit *permit);
/** A request was given up after it had fallen silent: the next connections had better go elsewhere.
 */
void sl_host_doubted(struct sl_permit *permit);
/** The permit's address is out of favour, and another does well: the next request is better off on
 * a new connection. */
bool sl_host_outdone(const struct sl_permit *permit);

/** Rates and errors of the addresses of the process, as metrics. SL_E_NO_SPACE. */
int sl_host_metrics(struct sl_buf *out, int openmetrics, struct sl_err *err);

#endif
