/* When to try again: which failures may pass, and how long to wait. */
#ifndef SL_RETRY_H
#define SL_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

enum {
    SL_RETRY_BASE_MS = 100,
    SL_RETRY_CAP_MS = 20 * 1000,
    SL_RETRY_AFTER_CAP_MS = 60 * 1000,   /* a Retry-After beyond it is cut to it */
    SL_RETRY_PROGRESS_BYTES = 64 * 1024, /* an attempt that brought so much is not counted */
};

/** The tries of one range. Zero-initialise; one thread. */
struct sl_retry {
    unsigned limit;  /* tries in all */
    unsigned failed; /* tries that failed without progress */
    uint64_t random; /* state of the jitter; 0: seeded on first use */
    bool recovered;
};

/**
 * A try failed after `progress` bytes. true: try again after *wait_ms (exponential from the number
 * of failures, full jitter, never less than the server's Retry-After). false: give up.
 */
bool sl_retry_again(struct sl_retry *retry, const struct sl_err *why, uint64_t progress,
                    uint64_t *wait_ms);
/** The statuses that may pass: 408 429 500 502 503 504. */
bool sl_retry_status(int status);
/** Milliseconds of a Retry-After value: seconds, or an HTTP date against `now` (seconds since
 * 1970); 0 if it is neither. */
uint32_t sl_retry_after_ms(const char *value, int64_t now);

#endif
