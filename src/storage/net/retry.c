/*
 * Exponential back-off with full jitter: the wait is random between 0 and base * 2^n, so that a
 * thousand ranges which failed together do not come back together. A try that brought bytes starts
 * the count anew: a server that cuts every answer after a while is slow, not broken. The caller
 * turns the wait into a deadline; nothing here sleeps.
 *
 * A server that refuses connections, or whose name is not known, may be about to start: tries that
 * reach nothing are quickly over, so they go by time and use up none of the others.
 */
#include "retry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fork_guard.h"
#include "io.h"
#include "log.h"
#include "mem.h"
#include "thread.h"

enum {
    WARN_FROM = 3, /* tries: what passes at once is not a news */
    RECOVERIES_MAX = 2,
    HEDGED_TRIES_MAX = 3
};
#define WARN_NS (5 * SL_NS_PER_S)
#define LOG_NS  (60 * SL_NS_PER_S)

static uint64_t next_random(uint64_t *state)
{
    if (!*state)
        *state = ((sl_now_ns() ^ (uint64_t)(uintptr_t)state) * 0x9e3779b97f4a7c15ull) | 1;
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

unsigned sl_retry_tries(const struct sl_retry *retry)
{
    return retry->failed + retry->unreached;
}

unsigned sl_retry_most(const struct sl_retry *retry)
{
    return retry->unreached && retry->unreachable_ns ? 0 : retry->limit;
}

static struct {
    pthread_mutex_t mutex;
    uint64_t warned_ns, warned; /* when, and how often */
    uint64_t logged_ns;
    char why[sizeof(((struct sl_err *)NULL)->message)]; /* as it is in the log */
    char text[sizeof(((struct sl_err *)NULL)->message) + 100];
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER};
SL_FORK_GUARD(&process.mutex, NULL)

bool sl_retry_unreached(const struct sl_err *why)
{
    return strcmp(why->code, SL_NET_UNREACHED) == 0 || strcmp(why->code, SL_NET_UNRESOLVED) == 0;
}

/* How long tries that reach nothing go on. */
static uint64_t patience_ns(const struct sl_retry *retry)
{
    return retry->unresolved && retry->unresolved_ns
               ? SL_MIN(retry->unresolved_ns, retry->unreachable_ns)
               : retry->unreachable_ns;
}

/* A log has each cause once: again when it is another one, or was last said long ago. */
static bool is_news(const char *why, uint64_t now_ns)
{
    if (process.logged_ns && now_ns < process.logged_ns + LOG_NS && strcmp(process.why, why) == 0)
        return false;
    process.logged_ns = now_ns;
    snprintf(process.why, sizeof(process.why), "%s", why);
    return true;
}

/* Now and then, for all ranges and loads together: what is waited for, and until when. */
static void warn_unreached(const struct sl_retry *retry, const struct sl_err *why, uint64_t now_ns)
{
    uint64_t end_ns = retry->unreached_since_ns + patience_ns(retry);
    if (retry->unreached < WARN_FROM || patience_ns(retry) <= WARN_NS || end_ns <= now_ns)
        return; /* what ends soon says why at its end */
    char text[sizeof(process.text)], clock[16] = "";
    time_t until = (time_t)(sl_wall_seconds() + (int64_t)((end_ns - now_ns) / SL_NS_PER_S));
    struct tm tm;
    if (localtime_r(&until, &tm))
        strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
    snprintf(text, sizeof(text), "%s; try %u, going on until %s (readers.unreachableSeconds)",
             why->message, retry->unreached, clock);
    bool news;
    {
        SL_LOCKED(&process.mutex);
        if (process.warned_ns && now_ns < process.warned_ns + WARN_NS)
            return;
        process.warned_ns = now_ns;
        process.warned++;
        memcpy(process.text, text, sizeof(text));
        news = is_news(why->message, now_ns);
    }
    if (news)
        sl_log(SL_LOG_WARN, "%s", text);
}

bool sl_retry_logged(const struct sl_err *why)
{
    SL_LOCKED(&process.mutex);
    return process.logged_ns && sl_now_ns() < process.logged_ns + LOG_NS &&
           strcmp(process.why, why->message) == 0;
}

uint64_t sl_retry_waits_for(char *text, size_t bytes)
{
    SL_LOCKED(&process.mutex);
    bool lately = process.warned && sl_now_ns() < process.warned_ns + 2 * WARN_NS;
    snprintf(text, bytes, "%s", lately ? process.text : "");
    sl_sanitize_message(text, bytes);
    return lately ? process.warned : 0;
}

/* One more try failed: whether there are more. */
static bool has_tries(struct sl_retry *retry, const struct sl_err *why, uint64_t now_ns)
{
    if (!sl_retry_unreached(why)) {
        retry->unreached = 0;
        return ++retry->failed < retry->limit;
    }
    if (!retry->unreached++)
        retry->unreached_since_ns = now_ns;
    retry->unresolved = strcmp(why->code, SL_NET_UNRESOLVED) == 0;
    if (!retry->unreachable_ns)
        return sl_retry_tries(retry) < retry->limit;
    return now_ns - retry->unreached_since_ns < patience_ns(retry);
}

/* The last try comes when the time is over, and not long before or after. */
static uint64_t last_wait_ms(const struct sl_retry *retry, uint64_t wait_ms, uint64_t now_ns)
{
    uint64_t end_ns = retry->unreached_since_ns + patience_ns(retry);
    if (!retry->unreached || end_ns <= now_ns)
        return wait_ms;
    return SL_MIN(wait_ms, (end_ns - now_ns) / SL_NS_PER_MS + 1);
}

bool sl_retry_again(struct sl_retry *retry, const struct sl_err *why, uint64_t progress,
                    uint64_t *wait_ms)
{
    uint64_t now_ns = sl_now_ns();
    if (!why->retryable)
        return false;
    if (progress >= SL_RETRY_PROGRESS_BYTES)
        retry->failed = retry->unreached = 0;
    if (!has_tries(retry, why, now_ns))
        return false;

    unsigned shift = SL_MIN(sl_retry_tries(retry) - 1, 16u);
    uint64_t cap =
        retry->unreached && retry->unreachable_ns ? SL_RETRY_UNREACHED_CAP_MS : SL_RETRY_CAP_MS;
    uint64_t ceiling = SL_MIN((uint64_t)SL_RETRY_BASE_MS << shift, cap);
    *wait_ms = last_wait_ms(retry, next_random(&retry->random) % (ceiling + 1), now_ns);
    uint64_t asked = SL_MIN(why->retry_after_ms, (uint32_t)SL_RETRY_AFTER_CAP_MS);
    if (*wait_ms < asked)
        *wait_ms = asked + *wait_ms % (SL_RETRY_BASE_MS + 1);
    warn_unreached(retry, why, now_ns);
    return true;
}

unsigned sl_retry_hedge(const struct sl_retry *retry)
{
    unsigned failed = sl_retry_tries(retry);
    bool last = failed + 1 >= retry->limit || failed >= HEDGED_TRIES_MAX;
    return last ? 0 : 1u << failed;
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

bool sl_retry_may_recover(const struct sl_retry *retry, const struct sl_err *why)
{
    return retry->recovered == 0 ||
           (retry->recovered < RECOVERIES_MAX && why->http_status != retry->recovered_status);
}

void sl_retry_note_recovered(struct sl_retry *retry, const struct sl_err *why)
{
    retry->recovered++;
    retry->recovered_status = why->http_status;
}
