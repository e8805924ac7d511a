/* When to try again: which failures may pass, and how long to wait. Nothing here waits; but for
 * struct sl_retry any thread. */
#ifndef SL_RETRY_H
#define SL_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

enum {
    SL_RETRY_BASE_MS = 100,
    SL_RETRY_CAP_MS = 20 * 1000,
    SL_RETRY_AFTER_CAP_MS = 60 * 1000,    /* a Retry-After beyond it is cut to it */
    SL_RETRY_UNREACHED_CAP_MS = 5 * 1000, /* a server that starts anew is soon found */
    SL_RETRY_PROGRESS_BYTES = 64 * 1024,  /* an attempt that brought so much is not counted */
};

/** The tries of one range. Zero-initialise; one thread. */
struct sl_retry {
    unsigned limit;              /* tries in all */
    uint64_t unreachable_ns;     /* as long as nothing is reached it goes on for this time, at least
                                    twice; 0: `limit` counts these tries, too */
    uint64_t unresolved_ns;      /* the same while the host's name does not exist, if that is
                                    shorter; 0: as unreachable_ns */
    unsigned failed;             /* tries that failed without progress, those that reached nothing
                                    (sl_retry_unreached()) left out */
    unsigned unreached;          /* these, since something was reached */
    bool unresolved;             /* the last of these */
    uint64_t unreached_since_ns; /* sl_now_ns() scale */
    uint64_t random;             /* state of the jitter; 0: seeded on first use */
    unsigned recovered;          /* how often something was done about a refusal */
    int recovered_status;        /* of the last one */
};

/**
 * Decide what comes after a failed try.
 *
 * @why       its error.
 * @progress  bytes that it brought.
 * @wait_ms   out: how long to wait before the next: exponential from the number of failures, full
 *            jitter, never less than the server's Retry-After.
 * @return    true: try again; false: give up.
 *
 * While nothing is reached a warning says so, one in a few seconds for the whole process; in the
 * log, one of each cause in a minute.
 */
bool sl_retry_again(struct sl_retry *retry, const struct sl_err *why, uint64_t progress,
                    uint64_t *wait_ms);
/** The last of those warnings, if it is of the last seconds, cut to bytes - 1; "" if there is none.
 * Returns its number, from 1 on; 0: none. Any thread. */
uint64_t sl_retry_waits_for(char *text, size_t bytes);
/** Has the log had this cause in the last minute? Any thread. */
bool sl_retry_logged(const struct sl_err *why);
/** Was no connection made, so that no request was sent? */
bool sl_retry_unreached(const struct sl_err *why);
/** May something be done about a refusal, and the request sent once more? Once for a status, and
 * for two in a row: a link and the token that leads to a new one may have ended together. */
bool sl_retry_may_recover(const struct sl_retry *retry, const struct sl_err *why);
/** It was done. */
void sl_retry_note_recovered(struct sl_retry *retry, const struct sl_err *why);
/** Tries that failed, for people. */
unsigned sl_retry_tries(const struct sl_retry *retry);
/** Tries in all; 0 while nothing is reached, since it is time that ends that. */
unsigned sl_retry_most(const struct sl_retry *retry);
/** As sl_request.hedge of the next try: each time twice as patient. 0 for the last one, and after
 * some: an answer that simply takes long is waited for in the end. */
unsigned sl_retry_hedge(const struct sl_retry *retry);
/** The statuses of HTTP that may pass: 408 429 500 502 503 504. */
bool sl_retry_status(int status);
/** Milliseconds of a Retry-After value (RFC 9110 section 10.2.3): seconds, or an HTTP date against
 * `now` (seconds since 1970); 0 if it is neither. */
uint32_t sl_retry_after_ms(const char *value, int64_t now);

#endif
