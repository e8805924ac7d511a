/*
 * Slices along inner dimensions take a row here and a row there. What is known of the store says
 * which gaps between them cost less than a request for each row; the reader goes on from there with
 * what it sees. Nothing of this is in the plan's identity: the same bytes land either way.
 */
#include "cgroup.h"
#include "descriptors.h"
#include "host_memory.h"
#include "mapping.h"
#include "plan_parts.h"
#include "thread.h"

enum { FIXED_WORTH_BYTES = 64 * 1024 };

static unsigned processors(void)
{
    double limit = sl_cgroup_cpus_recent();
    unsigned all = SL_MAX(sl_cpu_count(), 1u);
    return limit > 0 && limit < all ? SL_MAX((unsigned)limit, 1u) : all;
}

/* Of a load that is pinned. */
static void fix_worth(struct sl_plan *plan, bool least)
{
    const struct sl_spec_readers *readers = &plan->own->spec->readers;
    uint64_t usual =
        least ? (uint64_t)SL_WORTH_BYTES_MIN
              : SL_MIN(FIXED_WORTH_BYTES + readers->request_price, (uint64_t)SL_WORTH_BYTES_MAX);
    const struct sl_worth_facts facts = {
        .least = least, .fixed_bytes = sl_fixed_or(plan->fixed.request_worth, usual)};
    sl_weigh_init(&plan->weigh, &facts, SL_WORTH_FIXED);
}

void sl_plan_weigh(struct sl_plan *plan)
{
    const struct sl_spec_readers *readers = &plan->own->spec->readers;
    struct sl_store *store = plan->own->store;
    struct sl_host_needs needs = {0};
    bool least = readers->slices == SL_SLICES_LEAST_BYTES || sl_store_traits(store)->local;
    if (plan->fixed.on) {
        fix_worth(plan, least);
        return;
    }
    bool known = sl_host_memory_recall(sl_store_uri(store), &needs);
    struct sl_worth_facts facts = {
        .least = least,
        .wait_ns = sl_store_first_byte_ns(store),
        .bytes_per_s = needs.bytes_per_s,
        .connections = sl_concurrency_small(readers->connections, sl_descriptors_for_connections()),
        .processors = processors(),
        .price_bytes = readers->request_price,
    };
    sl_weigh_init(&plan->weigh, &facts,
                  known && needs.bytes_per_s > 0 ? SL_WORTH_KNOWN : SL_WORTH_ASSUMED);
}

/* Stored bytes from one of the runs' to another, both included. */
static uint64_t span(const struct sl_runs *rows, uint64_t first, uint64_t last)
{
    uint64_t left;
    return sl_runs_at(rows, last, &left) + 1 - sl_runs_at(rows, first, &left);
}

/* What bytes [at, end) of the rows cost if gaps of up to so many bytes are fetched. */
static void add_cost(struct sl_plan_cost *cost, const struct sl_runs *rows, uint64_t at,
                     uint64_t end, uint64_t gap)
{
    uint64_t group = sl_runs_group(rows, gap), first = at / group, last = (end - 1) / group;
    uint64_t bytes = span(rows, at, SL_MIN(end, (first + 1) * group) - 1);
    if (last > first)
        bytes = sl_add_capped(bytes, span(rows, last * group, end - 1));
    if (last > first + 1)
        bytes = sl_add_capped(bytes, (last - first - 1) * span(rows, 0, group - 1));
    cost->requests = sl_add_capped(cost->requests, last - first + 1);
    cost->bytes = sl_add_capped(cost->bytes, bytes);
}

static void add_rows(struct sl_plan_rows *total, const struct sl_mapping *sparse,
                     const struct sl_range *range, const struct sl_worth_facts *facts)
{
    const struct sl_runs *rows = &sparse->fetched;
    uint64_t at = sl_runs_before(rows, range->begin - sparse->begin);
    uint64_t end = sl_runs_before(rows, range->end - sparse->begin);
    if (at == end)
        return;
    add_cost(&total->least, rows, at, end, 0);
    add_cost(&total->wanted, rows, at, end, sl_request_worth(facts, rows->bytes));
    total->whole.requests++;
    total->whole.bytes = sl_add_capped(total->whole.bytes, span(rows, at, end - 1));
    total->rows = total->least.requests;
}

void sl_plan_count_rows(struct sl_plan *plan)
{
    for (size_t i = 0; i < plan->range_count; i++) {
        const struct sl_range *range = &plan->ranges[i];
        const struct sl_mapping *sparse =
            sl_extent_sparse(plan, &plan->extents[range->extent_first]);
        if (sparse)
            add_rows(&plan->rows, sparse, range, &plan->weigh.facts);
    }
}

uint64_t sl_plan_expected_bytes(const struct sl_plan *plan)
{
    return sl_add_capped(plan->fetch_bytes - SL_MIN(plan->rows.least.bytes, plan->fetch_bytes),
                         plan->rows.wanted.bytes);
}

uint64_t sl_plan_row_bytes(const struct sl_plan *plan)
{
    return plan->rows.least.bytes / plan->rows.least.requests;
}
