/* What the command line says: lists of sizes and counts, ways, and when to begin. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bench_parts.h"

enum { START_SECONDS_MAX = 24 * 3600 };
static const uint64_t RANGE_MIN = 64 * 1024, RANGE_MAX = UINT64_C(5) << 30;

static const char *const way_names[] = {"network", "store", "load", "memory", "peer"};

const char *sl_bench_way_name(enum sl_bench_way way)
{
    return way_names[way];
}

const char *sl_bench_way_title(enum sl_bench_way way)
{
    return way == SL_BENCH_LOAD ? "sluice" : way_names[way];
}

int sl_bench_parse_ways(const char *text, bool ways[SL_BENCH_WAY_COUNT], struct sl_err *err)
{
    memset(ways, 0, SL_BENCH_WAY_COUNT * sizeof(*ways));
    for (const char *at = text; *at;) {
        size_t bytes = strcspn(at, ",");
        int way = SL_BENCH_NETWORK;
        while (way < SL_BENCH_PEER &&
               (strlen(way_names[way]) != bytes || memcmp(at, way_names[way], bytes) != 0))
            way++;
        if (way == SL_BENCH_PEER)
            return sl_fail(err, SL_E_USAGE,
                           "--measure: expected network, store, load, memory or several of them "
                           "with commas, not '%.80s'",
                           text);
        ways[way] = true;
        at += bytes + (at[bytes] == ',');
    }
    return 0;
}

/* ---- lists ---------------------------------------------------------------------------------- */

struct kind {
    const char *flag, *expected;
    uint64_t minimum, maximum;
    bool size;
};
static const struct kind sizes = {"--range-bytes", "sizes of 64KiB to 5GiB such as 1MiB,8MiB", 0, 0,
                                  true};
static const struct kind counts = {"--connections", "numbers of 1 to 256 such as 1,4,16", 1,
                                   SL_BENCH_CONNECTIONS_MAX, false};

static int fail_list(const struct kind *kind, const char *text, struct sl_err *err)
{
    return sl_fail(err, SL_E_USAGE, "%s: expected %s, or a range that doubles (%s), not '%.100s'",
                   kind->flag, kind->expected, kind->size ? "256KiB..256MiB" : "1..64", text);
}

static int parse_one(const struct kind *kind, const char *text, size_t bytes, uint64_t *value)
{
    char item[40], rest;
    if (!bytes || bytes >= sizeof(item))
        return -1;
    snprintf(item, sizeof(item), "%.*s", (int)bytes, text);
    if (kind->size)
        return sl_parse_bytes(item, value) < 0 || *value < RANGE_MIN || *value > RANGE_MAX ? -1 : 0;
    if (strspn(item, "0123456789") != bytes || sscanf(item, "%9" SCNu64 "%c", value, &rest) != 1)
        return -1;
    return *value < kind->minimum || *value > kind->maximum ? -1 : 0;
}

static int add(const struct kind *kind, uint64_t value, uint64_t *items, size_t *count,
               struct sl_err *err)
{
    for (size_t i = 0; i < *count; i++)
        if (items[i] == value)
            return 0;
    if (*count == SL_BENCH_LIST_MAX)
        return sl_fail(err, SL_E_USAGE, "%s: at most %d", kind->flag, SL_BENCH_LIST_MAX);
    items[(*count)++] = value;
    return 0;
}

/* "A" or "A..B". */
static int add_item(const struct kind *kind, const char *text, const char *item, size_t bytes,
                    uint64_t *items, size_t *count, struct sl_err *err)
{
    uint64_t first, last;
    const char *dots = memmem(item, bytes, "..", 2);
    size_t head = dots ? (size_t)(dots - item) : bytes;
    if (parse_one(kind, item, head, &first) < 0)
        return fail_list(kind, text, err);
    last = first;
    if (dots && (parse_one(kind, dots + 2, bytes - head - 2, &last) < 0 || last < first))
        return fail_list(kind, text, err);
    for (uint64_t value = first; value <= last; value *= 2)
        if (add(kind, value, items, count, err) < 0)
            return -1;
    return 0;
}

static int parse_list(const struct kind *kind, const char *text, uint64_t *items, size_t *count,
                      struct sl_err *err)
{
    *count = 0;
    for (const char *at = text; *at;) {
        size_t bytes = strcspn(at, ",");
        if (add_item(kind, text, at, bytes, items, count, err) < 0)
            return -1;
        at += bytes + (at[bytes] == ',');
    }
    return *count ? 0 : fail_list(kind, text, err);
}

int sl_bench_parse_sizes(const char *text, uint64_t *items, size_t *count, struct sl_err *err)
{
    return parse_list(&sizes, text, items, count, err);
}

int sl_bench_parse_counts(const char *text, uint32_t *items, size_t *count, struct sl_err *err)
{
    uint64_t wide[SL_BENCH_LIST_MAX];
    if (parse_list(&counts, text, wide, count, err) < 0)
        return -1;
    for (size_t i = 0; i < *count; i++)
        items[i] = (uint32_t)wide[i];
    return 0;
}

/* ---- when to begin -------------------------------------------------------------------------- */

static int parse_seconds(const char *text, uint64_t *seconds)
{
    char rest;
    return strspn(text, "0123456789") == strlen(text) &&
                   sscanf(text, "%9" SCNu64 "%c", seconds, &rest) == 1
               ? 0
               : -1;
}

static int parse_time(const char *text, double *start)
{
    struct tm when = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &when);
    if (!rest || *rest)
        return -1;
    *start = (double)timegm(&when);
    return 0;
}

int sl_bench_parse_start(const char *text, double now, double *start, struct sl_err *err)
{
    uint64_t seconds = 0;
    int done;
    if (*text == '+') {
        done = parse_seconds(text + 1, &seconds);
        *start = now + (double)seconds;
    } else if (*text == '/') {
        done = parse_seconds(text + 1, &seconds);
        done = seconds ? done : -1;
        *start = seconds ? ceil(now / (double)seconds) * (double)seconds : 0;
    } else {
        done = parse_time(text, start);
    }
    if (done < 0)
        return sl_fail(err, SL_E_USAGE,
                       "--start-at: expected +SECONDS, /SECONDS (the next full multiple of the "
                       "clock) or a time such as 2026-11-21T12:00:00Z, not '%.80s'",
                       text);
    if (*start > now + START_SECONDS_MAX)
        return sl_fail(err, SL_E_USAGE, "--start-at: '%.80s' is more than a day away", text);
    return 0;
}
