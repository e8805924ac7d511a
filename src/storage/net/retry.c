/*
 * Exponential back-off with full jitter: the wait is random between 0 and base * 2^n, so that a
 * thousand ranges which failed together do not come back together. A try that brought bytes starts
 * the count anew: a server that cuts every answer after a while is slow, not broken. The caller
 * turns the wait into a deadline; nothing here sleeps.
 */
#include "retry.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mem.h"
#include "thread.h"

static uint64_t next_random(uint64_t *state)
{
    if (!*state)
        *state = ((sl_now_ns() ^ (uint64_t)(uintptr_t)state) * 0x9e3779b97f4a7c15ull) | 1;
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

bool sl_retry_again(struct sl_retry *retry, const struct sl_err *why, uint64_t progress,
                    uint64_t *wait_ms)
{
    if (!why->retryable)
        return false;
    if (progress >= SL_RETRY_PROGRESS_BYTES)
        retry->failed = 0;
    if (++retry->failed >= retry->limit)
        return false;

    unsigned shift = SL_MIN(retry->failed - 1, 16u);
    uint64_t ceiling = SL_MIN((uint64_t)SL_RETRY_BASE_MS << shift, (uint64_t)SL_RETRY_CAP_MS);
    *wait_ms = next_random(&retry->random) % (ceiling + 1);
    uint64_t asked = SL_MIN(why->retry_after_ms, (uint32_t)SL_RETRY_AFTER_CAP_MS);
    if (*wait_ms < asked)
        *wait_ms = asked + *wait_ms % (SL_RETRY_BASE_MS + 1);
    return true;
}

bool sl_retry_status(int status)
{
    return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504);
}

uint32_t sl_retry_after_ms(const char *value, int64_t now)
{
    char *end;
    unsigned long seconds = strtoul(value, &end, 10);
    if (end != value && (*end == 0 || *end == ' ') && value[0] != '-')
        return (uint32_t)SL_MIN(seconds, 86400ul) * 1000;
    struct tm tm = {0};
    const char *rest = strptime(value, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    if (!rest)
        return 0;
    int64_t left = (int64_t)timegm(&tm) - now;
    return left <= 0 ? 0 : (uint32_t)SL_MIN(left, 86400) * 1000;
}
