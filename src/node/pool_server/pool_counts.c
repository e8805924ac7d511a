/* What the server counts, and what the metrics show of it: told after every turn as differences, so
 * that counting itself is a line wherever something happens. */
#include <string.h>

#include "metrics.h"
#include "pool_server_parts.h"

/* With the lock held. It changes with the leases only. */
static uint64_t oldest_lease(const struct sl_pool_server *server)
{
    uint64_t oldest_ns = UINT64_MAX;
    for (const struct sl_pool_connection *connection = server->locked.first; connection;
         connection = connection->next)
        for (size_t i = 0; i < connection->lease_count; i++)
            oldest_ns = SL_MIN(oldest_ns, connection->leases[i].since_ns);
    if (oldest_ns == UINT64_MAX)
        return 0;
    return (uint64_t)sl_wall_seconds() - (sl_now_ns() - oldest_ns) / SL_NS_PER_S;
}

static uint64_t member(const struct sl_pool_counts *counts, size_t offset)
{
    uint64_t value;
    memcpy(&value, (const char *)counts + offset, sizeof(value));
    return value;
}

void sl_pool_server_update_metrics(struct sl_pool_server *server)
{
    static const struct {
        enum sl_metric metric;
        size_t offset;
    } rows[] = {
#define ROW(metric, name) {SL_M_POOL_##metric, offsetof(struct sl_pool_counts, name)}
        ROW(CLIENTS, clients),
        ROW(LEASES, leases),
        ROW(DEPOSITING, deposits),
        ROW(OLDEST_LEASE, oldest_lease_seconds),
        ROW(CONNECTS, connects),
        ROW(ATTACHES, attaches),
        ROW(DEPOSITS, commits),
        ROW(REFUSALS, refusals),
        ROW(PROTOCOL_ERRORS, protocol_errors),
        ROW(LIMITED, limited),
#undef ROW
    };
    SL_LOCKED(&server->lock);
    struct sl_pool_counts *now = &server->locked.counts, *shown = &server->locked.shown;
    if (now->attaches != shown->attaches || now->leases != shown->leases)
        now->oldest_lease_seconds = oldest_lease(server);
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        uint64_t new = member(now, rows[i].offset), old = member(shown, rows[i].offset);
        if (new != old)
            sl_metric_add(rows[i].metric, (int64_t)(new - old));
    }
    *shown = *now;
}
