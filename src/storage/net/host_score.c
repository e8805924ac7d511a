/*
 * How the addresses of a host do, and which is next.
 *
 * An address is worth what its answers bring beside the best of its siblings; connections go where
 * there are fewest for that worth. A refusal puts an address out of favour at once, other troubles
 * when they come several in a row, a rate far below the siblings' when there are samples enough:
 * for some seconds, longer each time, and then it gets a connection again to show itself. Where all
 * are out of favour, the one whose time ends first is as good as any.
 *
 * The lock is held for a few instructions, once or twice a request.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "host_state.h"
#include "latency.h"
#include "log.h"
#include "metrics_write.h"

enum {
    SAMPLES_MIN = 4,              /* before a rate counts */
    STRIKES_MAX = 3,              /* troubles in a row */
    SHOWN_MAX = 64,               /* addresses in the metrics */
    ANSWER_BYTES_MIN = 64 * 1024, /* a smaller answer tells nothing of the rate */
};
#define DOUBT_NS    (5 * SL_NS_PER_S)
#define BAD_NS      (5 * SL_NS_PER_S)
#define BAD_NS_MAX  (300 * SL_NS_PER_S)
#define GIVEN_UP_NS (500 * SL_NS_PER_MS) /* a request that is given up later was too slow */
static const double MEMORY = 0.8, SLOW = 0.25, WORTH_MIN = 0.05;

static bool is_good(const struct sl_host_address *address, uint64_t now_ns)
{
    return !address->gone && address->bad_until_ns <= now_ns;
}

bool sl_host_is_down(const struct sl_host *host, uint64_t now_ns)
{
    for (unsigned i = 0; i < host->count; i++)
        if (is_good(&host->addresses[i], now_ns))
            return false;
    return true;
}

void sl_host_count(struct sl_permit *permit, int change)
{
    if (permit->address >= 0)
        permit->host->addresses[permit->address].links += (unsigned)change;
}

static void move_to(struct sl_permit *permit, int address)
{
    sl_host_count(permit, -1);
    permit->address = address;
    sl_host_count(permit, 1);
}

static double rate_of(const struct sl_host_address *address)
{
    return address->samples >= SAMPLES_MIN && address->seconds > 0
               ? address->bytes / address->seconds
               : 0;
}

static double best_rate(const struct sl_host *host, uint64_t now_ns)
{
    double best = 0;
    for (unsigned i = 0; i < host->count; i++)
        if (is_good(&host->addresses[i], now_ns))
            best = SL_MAX(best, rate_of(&host->addresses[i]));
    return best;
}

/* ---- choosing ------------------------------------------------------------------------------- */

/* Low is good: the kind first, then connections for what they bring. */
struct rank {
    unsigned kind;
    double load;
};

static struct rank rank_of(const struct sl_host *host, unsigned number, uint32_t avoid, double best,
                           uint64_t now_ns)
{
    const struct sl_host_address *address = &host->addresses[number];
    double rate = rate_of(address), worth = best > 0 && rate > 0 ? rate / best : 1;
    if (address->strikes || address->refusals)
        worth *= 0.5;
    worth = SL_MIN(SL_MAX(worth, WORTH_MIN), 1.0);
    bool bad = address->bad_until_ns > now_ns;
    bool doubted = address->doubted_until_ns > now_ns;
    return (struct rank){(avoid >> number & 1) * 4 + bad * 2 + doubted,
                         bad ? (double)address->bad_until_ns
                             : (double)(address->links + 1) / worth};
}

static bool is_before(struct rank a, struct rank b)
{
    return a.kind != b.kind ? a.kind < b.kind : a.load < b.load;
}

/* Numbers of the addresses that are not gone, the best first. */
static unsigned sort_addresses(const struct sl_host *host, uint32_t avoid,
                               unsigned order[SL_HOST_ADDRESSES_MAX])
{
    struct rank ranks[SL_HOST_ADDRESSES_MAX];
    uint64_t now_ns = sl_now_ns();
    double best = best_rate(host, now_ns);
    unsigned count = 0;
    for (unsigned i = 0; i < host->count; i++) {
        if (host->addresses[i].gone)
            continue;
        struct rank rank = rank_of(host, i, avoid, best, now_ns);
        unsigned at = count++;
        for (; at && is_before(rank, ranks[at - 1]); at--) {
            ranks[at] = ranks[at - 1];
            order[at] = order[at - 1];
        }
        ranks[at] = rank;
        order[at] = i;
    }
    return count;
}

unsigned sl_host_places(struct sl_permit *permit, uint32_t avoid,
                        union sl_host_place places[SL_HOST_ADDRESSES_MAX])
{
    struct sl_host *host = permit->host;
    unsigned order[SL_HOST_ADDRESSES_MAX];
    SL_LOCKED(&sl_hosts_lock);
    unsigned count = sort_addresses(host, avoid, order);
    move_to(permit, count ? (int)order[0] : -1);
    for (unsigned i = 0; i < count; i++)
        places[i] = host->addresses[order[i]].place;
    return count;
}

bool sl_host_choose(struct sl_permit *permit, uint32_t avoid, char text[SL_HOST_RESOLVE_BYTES])
{
    struct sl_host *host = permit->host;
    unsigned order[SL_HOST_ADDRESSES_MAX];
    SL_LOCKED(&sl_hosts_lock);
    unsigned count = sort_addresses(host, avoid, order);
    move_to(permit, count ? (int)order[0] : -1);
    if (host->numeric || !count)
        return false;
    int used = snprintf(text, SL_HOST_RESOLVE_BYTES, "%s:%u:", host->name, host->port);
    for (unsigned i = 0; i < count && used < SL_HOST_RESOLVE_BYTES; i++) {
        const struct sl_host_address *address = &host->addresses[order[i]];
        bool v6 = address->place.any.sa_family == AF_INET6;
        used += snprintf(text + used, (size_t)(SL_HOST_RESOLVE_BYTES - used), "%s%s%s%s",
                         i ? "," : "", v6 ? "[" : "", address->text, v6 ? "]" : "");
    }
    return used < SL_HOST_RESOLVE_BYTES;
}

bool sl_host_has_other(const struct sl_permit *permit, uint32_t avoid)
{
    const struct sl_host *host = permit->host;
    if (!host)
        return false;
    SL_LOCKED(&sl_hosts_lock);
    uint64_t now_ns = sl_now_ns();
    for (unsigned i = 0; i < host->count; i++)
        if (!(avoid >> i & 1) && is_good(&host->addresses[i], now_ns))
            return true;
    return false;
}

const char *sl_host_names(const struct sl_permit *permit, uint32_t bits, char *text, size_t bytes)
{
    const struct sl_host *host = permit->host;
    size_t used = 0;
    text[0] = 0;
    if (!host)
        return text;
    SL_LOCKED(&sl_hosts_lock);
    for (unsigned i = 0; !host->numeric && i < host->count && used < bytes; i++)
        if (bits >> i & 1)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "",
                                     host->addresses[i].text);
    return text;
}

/* ---- scoring -------------------------------------------------------------------------------- */

static void put_out(struct sl_host *host, struct sl_host_address *address, unsigned times,
                    const char *why)
{
    uint64_t now_ns = sl_now_ns();
    uint64_t ns = SL_MIN(BAD_NS << SL_MIN(times - 1, 8u), BAD_NS_MAX);
    address->bad_until_ns = now_ns + ns;
    if (!host->numeric)
        sl_log(SL_LOG_DEBUG,
               "address %s of '%s' %s: no connections there for %" PRIu64
               " s (rate %.1f MB/s, the best %.1f; %" PRIu64 " errors)",
               address->text, host->name, why, (uint64_t)(ns / SL_NS_PER_S), rate_of(address) / 1e6,
               best_rate(host, now_ns) / 1e6, address->errors);
}

void sl_host_connected(struct sl_permit *permit, int number)
{
    if (!permit->host)
        return;
    SL_LOCKED(&sl_hosts_lock);
    move_to(permit, number);
    if (number < 0)
        return;
    struct sl_host_address *address = &permit->host->addresses[number];
    address->connects++;
    address->refusals = 0;
}

void sl_host_refused(struct sl_permit *permit, int number)
{
    if (!permit->host || number < 0)
        return;
    SL_LOCKED(&sl_hosts_lock);
    struct sl_host_address *address = &permit->host->addresses[number];
    address->errors++;
    if (address->bad_until_ns <= sl_now_ns()) /* else it is the same trouble, told twice */
        put_out(permit->host, address, ++address->refusals, "takes no connection");
}

void sl_host_troubled(struct sl_permit *permit)
{
    if (!permit->host || permit->address < 0)
        return;
    SL_LOCKED(&sl_hosts_lock);
    struct sl_host_address *address = &permit->host->addresses[permit->address];
    address->errors++;
    if (++address->strikes >= STRIKES_MAX && address->bad_until_ns <= sl_now_ns())
        put_out(permit->host, address, address->strikes - STRIKES_MAX + 1, "fails");
}

/* Much slower than the best, again and again. */
static void judge_rate(struct sl_host *host, struct sl_host_address *address)
{
    uint64_t now_ns = sl_now_ns();
    double rate = rate_of(address);
    if (address->samples < SAMPLES_MIN || address->bad_until_ns > now_ns ||
        rate >= SLOW * best_rate(host, now_ns))
        return;
    put_out(host, address, 1, "is slow");
    address->samples = 0; /* when it is back it is measured anew */
    address->bytes = address->seconds = 0;
}

void sl_host_answered(struct sl_permit *permit, uint64_t bytes, uint64_t ns, bool whole)
{
    if (!permit->host || permit->address < 0)
        return;
    SL_LOCKED(&sl_hosts_lock);
    struct sl_host_address *address = &permit->host->addresses[permit->address];
    address->received += bytes;
    if (whole)
        address->strikes = 0;
    if (bytes < ANSWER_BYTES_MIN && (whole || ns < GIVEN_UP_NS))
        return;
    address->bytes = address->bytes * MEMORY + (double)bytes;
    address->seconds = address->seconds * MEMORY + (double)ns / (double)SL_NS_PER_S;
    address->samples++;
    judge_rate(permit->host, address);
}

void sl_host_waited(struct sl_permit *permit, uint64_t ns)
{
    if (!permit->host)
        return;
    SL_LOCKED(&sl_hosts_lock);
    permit->host->answer_delay_ns = sl_latency_host_add(permit->host->answer_delay_ns, ns);
}

uint64_t sl_host_answer_delay(const struct sl_permit *permit)
{
    if (!permit->host)
        return 0;
    SL_LOCKED(&sl_hosts_lock);
    return permit->host->answer_delay_ns;
}

void sl_host_doubted(struct sl_permit *permit)
{
    if (!permit->host || permit->address < 0)
        return;
    SL_LOCKED(&sl_hosts_lock);
    permit->host->addresses[permit->address].doubted_until_ns = sl_now_ns() + DOUBT_NS;
}

bool sl_host_outdone(const struct sl_permit *permit)
{
    if (!permit->host || permit->address < 0)
        return false;
    bool bad;
    {
        SL_LOCKED(&sl_hosts_lock);
        bad = !is_good(&permit->host->addresses[permit->address], sl_now_ns());
    }
    return bad && sl_host_has_other(permit, UINT32_C(1) << permit->address);
}

/* ---- metrics -------------------------------------------------------------------------------- */

struct table {
    struct sl_buf *out;
    unsigned family, shown;
    int failed;
};
static const struct {
    const char *name, *type, *unit, *help;
} families[] = {
    {"sluice_address_rate_bytes", "gauge", "bytes",
     "Bytes that a connection to this address brings in a second, lately"},
    {"sluice_address_connections", "gauge", "", "Connections to this address now"},
    {"sluice_address_errors_total", "counter", "",
     "Connections and answers of this address that failed"},
};

static double value_of(const struct sl_host_address *address, unsigned family)
{
    if (family == 0)
        return address->seconds > 0 ? address->bytes / address->seconds : 0;
    return (double)(family == 1 ? address->links : address->errors);
}

static void write_host(struct sl_host *host, void *arg)
{
    struct table *table = arg;
    for (unsigned i = 0; i < host->count && table->shown < SHOWN_MAX; i++, table->shown++)
        table->failed |=
            sl_buf_printf(table->out, NULL, "%s{host=\"%s\",port=\"%u\",address=\"%s\"} %.17g\n",
                          families[table->family].name, host->name, host->port,
                          host->addresses[i].text, value_of(&host->addresses[i], table->family));
}

int sl_host_metrics(struct sl_buf *out, int openmetrics, struct sl_err *err)
{
    for (unsigned i = 0; i < SL_COUNT(families); i++) {
        struct table table = {.out = out, .family = i};
        if (sl_metrics_head(out, openmetrics, families[i].name, families[i].type, families[i].unit,
                            families[i].help, err) < 0)
            return -1;
        {
            SL_LOCKED(&sl_hosts_lock);
            sl_hosts_each(write_host, &table);
        }
        if (table.failed)
            return sl_fail(err, SL_E_NO_SPACE, "metrics are too large");
    }
    return 0;
}
