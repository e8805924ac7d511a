/*
 * Loads that read from one host at the same time, on links that are simulated in virtual time: what
 * decides is the program's own. Bytes flow as water does; each connection has its part of the link,
 * waits between its requests, and costs processor time, the more of it the more connections there
 * are. Each load has a thread, which can use one processor.
 */
#include "host_growth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "claims.h"
#include "concurrency.h"
#include "mem.h"
#include "thread.h"

#define MIB    1048576.0
#define MB     1e6
#define URI    "http://store.test:80/model"
#define TICK_S 0.002

enum { LOADS = 8, FIXED_MOST = 64, COUNTS = 3, CASES = 4 * COUNTS };
static const unsigned counts[COUNTS] = {2, 4, 8};

struct link {
    double round_trip_s, bytes_per_s, connection_bytes_per_s; /* 0: no limit of each */
    double cpu_s_per_gb;                                      /* with one connection in all */
    double more_cpu_part;                                     /* of it, with each that is added */
    double processors, load_bytes, request_bytes;
    unsigned loads;
    double first_answer_s; /* 0: as any other */
};
struct load {
    struct sl_host_share share;
    struct sl_load_facts facts;
    unsigned wanted;
    double bytes, ends_s;
};
struct outcome {
    double seconds, cpu_s, first_end_s;
    unsigned begun, most, least_of_one;
};

static double cpu_s; /* of the process, in virtual time */

static struct sl_cpu_time cpu(void)
{
    return (struct sl_cpu_time){.used_ns = (uint64_t)(cpu_s * SL_NS_PER_S)};
}

static struct sl_load_facts facts_of(const struct link *link)
{
    double answer_s = link->first_answer_s > 0 ? link->first_answer_s : link->round_trip_s;
    struct sl_load_facts facts = {
        .ranges = (size_t)(link->load_bytes / link->request_bytes),
        .fetch_bytes = (uint64_t)link->load_bytes,
        .host = 1024,
        .first_byte_ns = (uint64_t)(answer_s * SL_NS_PER_S),
        .processors = (unsigned)link->processors,
        .loads = 1,
        .cpu = cpu,
    };
    const struct sl_plan_facts plan = {
        .ranges = facts.ranges, .fetch_bytes = facts.fetch_bytes, .descriptors = 1000};
    facts.planned = sl_concurrency_of_plan(&plan);
    return facts;
}

static void begin(struct load *load, const struct link *link)
{
    struct sl_concurrency is;
    *load = (struct load){.facts = facts_of(link)};
    sl_concurrency_decide(&load->facts, &is);
    load->share.own = is.growth;
    load->wanted = sl_host_growth_join(&load->share, URI);
}

static double rate_of_one(const struct link *link, unsigned open)
{
    double rate = link->bytes_per_s / open;
    if (link->connection_bytes_per_s > 0)
        rate = fmin(rate, link->connection_bytes_per_s);
    return link->request_bytes / (link->request_bytes / rate + link->round_trip_s);
}

/* Bytes that each load has in one tick, and what they cost. */
static void flow(struct load *loads, const struct link *link, unsigned open)
{
    double cost = link->cpu_s_per_gb / 1e9 * (1 + link->more_cpu_part * (open - 1));
    double rate = rate_of_one(link, open), wanted_cpu = 0, rates[LOADS];
    for (unsigned i = 0; i < link->loads; i++) {
        bool over = loads[i].ends_s > 0;
        rates[i] = over ? 0 : fmin(rate * loads[i].wanted, cost > 0 ? 1 / cost : INFINITY);
        wanted_cpu += rates[i] * cost;
    }
    double part = fmin(1, link->processors / fmax(wanted_cpu, 1e-9));
    cpu_s += wanted_cpu * part * TICK_S;
    for (unsigned i = 0; i < link->loads; i++)
        loads[i].bytes += rates[i] * part * TICK_S;
}

static void tick(struct load *load, const struct link *link, double now_s)
{
    struct sl_growth *growth = sl_host_growth_lock(&load->share);
    double answer_s = now_s > link->round_trip_s ? link->round_trip_s : 0;
    sl_concurrency_know_distance(&load->facts, (uint64_t)(answer_s * SL_NS_PER_S), growth);
    load->wanted =
        sl_host_growth_tick(&load->share, 1 + (uint64_t)(now_s * SL_NS_PER_S),
                            (uint64_t)fmin(load->bytes, link->load_bytes), 0, load->wanted);
    sl_host_growth_unlock();
    if (load->bytes < link->load_bytes)
        return;
    load->ends_s = now_s;
    sl_host_growth_leave(&load->share);
}

static unsigned count_open(const struct load *loads, unsigned count)
{
    unsigned open = 0;
    for (unsigned i = 0; i < count; i++)
        open += loads[i].ends_s > 0 ? 0 : loads[i].wanted;
    return open;
}

/* fixed: so many connections of all loads; 0: as the program decides. */
static struct outcome load_all(const struct link *link, unsigned fixed)
{
    struct load loads[LOADS];
    struct outcome is = {.least_of_one = FIXED_MOST};
    cpu_s = 0;
    for (unsigned i = 0; i < link->loads; i++)
        begin(&loads[i], link);
    for (unsigned i = 0; i < link->loads && !fixed; i++) /* joined one after another */
        tick(&loads[i], link, 0);
    is.begun = count_open(loads, link->loads);
    double now_s = 0;
    for (unsigned open; (open = count_open(loads, link->loads)) > 0; now_s += TICK_S) {
        for (unsigned i = 0; i < link->loads; i++)
            loads[i].wanted = fixed ? fixed / link->loads : loads[i].wanted;
        open = count_open(loads, link->loads);
        is.most = SL_MAX(is.most, open);
        flow(loads, link, open);
        for (unsigned i = 0; i < link->loads; i++) {
            if (loads[i].ends_s > 0)
                continue;
            is.least_of_one = SL_MIN(is.least_of_one, loads[i].wanted);
            tick(&loads[i], link, now_s + TICK_S);
            is.first_end_s =
                loads[i].ends_s > 0 && !(is.first_end_s > 0) ? loads[i].ends_s : is.first_end_s;
        }
    }
    is.seconds = now_s;
    is.cpu_s = cpu_s;
    return is;
}

static struct outcome best_fixed(const struct link *link)
{
    struct outcome best = {.seconds = INFINITY};
    for (unsigned each = 1; each * link->loads <= FIXED_MOST; each *= 2) {
        struct outcome is = load_all(link, each * link->loads);
        if (is.seconds < best.seconds * 0.999)
            best = is;
    }
    return best;
}

/* What one load alone would have at most, of as many bytes as all of them. */
static unsigned most_alone(const struct link *link)
{
    struct link one = *link;
    one.loads = 1;
    one.load_bytes *= link->loads;
    return load_all(&one, 0).most;
}

static const struct link near_free = {0.0002, 1250 * MB, 0, 0, 0, 8, 4096 * MIB, 16 * MIB, 1, 0};
static const struct link near_costly = {0.0002, 4000 * MB,  0,        0.5, 0.15,
                                        2,      4096 * MIB, 16 * MIB, 1,   0};
static const struct link near_each = {0.001, 1250 * MB,  100 * MB, 0.3, 0.01,
                                      8,     4096 * MIB, 16 * MIB, 1,   0};
static const struct link distant = {0.03, 1250 * MB,  40 * MB,  0.3, 0.002,
                                    8,    4096 * MIB, 16 * MIB, 1,   0};
static const struct link *const links[] = {&near_free, &near_costly, &near_each, &distant};

SL_TEST_LOOP(loads_together_have_what_one_of_them_would_have, 0, CASES)
{
    struct link link = *links[_i / COUNTS];
    link.loads = counts[_i % COUNTS];
    struct outcome is = load_all(&link, 0), best = best_fixed(&link);
    unsigned alone = most_alone(&link);
    printf("| %u | %.1f | %.0f | %.0f | %.2f s, %.2f cpu | %.2f s, %.2f cpu | %u, %u | %u |\n",
           link.loads, link.round_trip_s * 1e3, link.bytes_per_s / MB,
           link.connection_bytes_per_s / MB, best.seconds, best.cpu_s, is.seconds, is.cpu_s,
           is.begun, is.most, alone);
    ck_assert_uint_le(is.most, SL_MAX(alone, 2 * link.loads)); /* one each, and a step on trial */
    ck_assert_double_le(is.seconds, best.seconds * 1.08);
    ck_assert_double_le(is.cpu_s, best.cpu_s * 1.10 + 0.01);
}

SL_TEST_LOOP(no_load_starves, 0, CASES)
{
    struct link link = *links[_i / COUNTS];
    link.loads = counts[_i % COUNTS];
    struct outcome is = load_all(&link, 0);
    ck_assert_uint_ge(is.least_of_one, 1);
    ck_assert_double_ge(is.first_end_s, is.seconds * 0.8); /* they began at once, and are alike */
}

/* Two loads. What opened their model was answered after 60 ms, the first ranges are at once. */
SL_TEST(a_slow_first_answer_makes_no_load_take_it_for_distant)
{
    struct link link = near_costly;
    link.loads = 2;
    link.first_answer_s = 0.06;
    struct outcome is = load_all(&link, 0);
    link.first_answer_s = 0;
    struct outcome near = load_all(&link, 0);
    ck_assert_uint_le(is.most, 8);
    ck_assert_double_le(is.seconds, near.seconds * 1.05);
    ck_assert_double_le(is.cpu_s, near.cpu_s * 1.10);
}

static void share_begin(struct sl_host_share *share, const char *uri, unsigned first, unsigned most)
{
    *share = (struct sl_host_share){0};
    sl_growth_init(&share->own, first, most);
    sl_host_growth_join(share, uri);
}

static unsigned tick_at(struct sl_host_share *share, uint64_t ms, unsigned throttled)
{
    sl_host_growth_lock(share);
    unsigned wanted = sl_host_growth_tick(share, ms * SL_NS_PER_MS, 1, throttled, 1);
    sl_host_growth_unlock();
    return wanted;
}

SL_TEST(who_comes_and_goes_changes_the_parts)
{
    struct sl_host_share a, b, c;
    share_begin(&a, URI, 4, 64);
    ck_assert_uint_eq(tick_at(&a, 1, 0), 4);
    ck_assert(!a.shared);
    share_begin(&b, URI "/another?x", 4, 64);
    ck_assert_uint_eq(tick_at(&a, 2, 0), 2);
    ck_assert_uint_eq(tick_at(&b, 2, 0), 2);
    ck_assert(a.shared && b.shared);
    share_begin(&c, "http://another.test/model", 4, 64);
    ck_assert_uint_eq(tick_at(&c, 2, 0), 4);
    sl_host_growth_leave(&a);
    ck_assert_uint_eq(tick_at(&b, 3, 0), 4);
    sl_host_growth_leave(&b);
    sl_host_growth_leave(&b); /* once more changes nothing */
    sl_host_growth_leave(&c);
}

static void share_of(struct sl_host_share *share, uint64_t bytes)
{
    *share = (struct sl_host_share){0};
    sl_growth_init(&share->own, 2, 64);
    sl_growth_know_bytes(&share->own, bytes);
    sl_host_growth_join(share, URI);
}

static uint64_t will_land(struct sl_host_share *share)
{
    uint64_t bytes = sl_host_growth_lock(share)->all_bytes;
    sl_host_growth_unlock();
    return bytes;
}

/* What has landed of one that has left, and all of those that are there. */
SL_TEST(how_much_will_land_is_of_all_loads)
{
    struct sl_host_share a, b, c;
    share_of(&a, 100);
    ck_assert_uint_eq(will_land(&a), 100);
    share_of(&b, 1000);
    ck_assert_uint_eq(will_land(&a), 1100);
    share_of(&c, 0);
    ck_assert_uint_eq(will_land(&a), 0);
    tick_at(&a, 1, 0); /* one byte */
    sl_host_growth_leave(&c);
    sl_host_growth_leave(&a);
    ck_assert_uint_eq(will_land(&b), 1001);
    sl_host_growth_leave(&b);
}

SL_TEST(what_one_cannot_use_another_has)
{
    struct sl_host_share a, b;
    share_begin(&a, URI, 8, 64);
    share_begin(&b, URI, 1, 2);
    ck_assert_uint_eq(tick_at(&a, 1, 0), 6);
    ck_assert_uint_eq(tick_at(&b, 1, 0), 2);
    sl_host_growth_leave(&a);
    sl_host_growth_leave(&b);
}

SL_TEST(a_server_that_is_too_busy_is_asked_less_by_all_and_something_by_each)
{
    struct sl_host_share a, b, c;
    share_begin(&a, URI, 4, 64);
    share_begin(&b, URI, 4, 64);
    share_begin(&c, URI, 4, 64);
    ck_assert_uint_eq(tick_at(&a, 10, 1), 1);
    ck_assert_uint_eq(tick_at(&b, 10, 0), 1);
    ck_assert_uint_eq(tick_at(&c, 10, 0), 1);
    sl_host_growth_leave(&a);
    sl_host_growth_leave(&b);
    sl_host_growth_leave(&c);
}

SL_TEST(a_number_that_was_given_is_the_loads_own)
{
    struct sl_host_share a, b;
    share_begin(&a, URI, 4, 64);
    share_begin(&b, URI, 6, 6);
    ck_assert_uint_eq(tick_at(&a, 1, 0), 4);
    ck_assert_uint_eq(tick_at(&b, 1, 0), 6);
    sl_host_growth_leave(&a);
    sl_host_growth_leave(&b);
}

SL_TEST(more_hosts_than_places_are_loads_alone)
{
    static struct sl_host_share many[40];
    char uri[64];
    for (unsigned i = 0; i < SL_COUNT(many); i++) {
        snprintf(uri, sizeof(uri), "http://host-%u.test/", i);
        share_begin(&many[i], uri, 4, 64);
        ck_assert_uint_eq(tick_at(&many[i], 1, 0), 4);
    }
    for (unsigned i = 0; i < SL_COUNT(many); i++)
        sl_host_growth_leave(&many[i]);
}
