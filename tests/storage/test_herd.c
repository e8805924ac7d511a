/* Many machines at once, by the rules of caches.c: how long they take and what the origin sends.
 * Virtual time, so the figures are the same on every machine. */
#include <check.h>

#include "claims.h"
#include "herd.h"

/* The network namespaces of e2e/fanout. */
static const struct herd spaces = {.nodes = 16,
                                   .blocks = 256,
                                   .block_bytes = 256 << 10,
                                   .quanta = 16,
                                   .node_mbit = 100,
                                   .origin_mbit = 200,
                                   .origin_ms = 2,
                                   .poll_ms = 500,
                                   .served = 4096,
                                   .connections = 32,
                                   .origin_share = 0.25,
                                   .slow_part = 10,
                                   .seed = 7};
/* 16 GiB, at the speed of machines. */
static const struct herd rack = {.nodes = 16,
                                 .blocks = 2048,
                                 .block_bytes = 8 << 20,
                                 .quanta = 4,
                                 .node_mbit = 25000,
                                 .origin_mbit = 100000,
                                 .connection_mbit = 1000,
                                 .origin_ms = 30,
                                 .poll_ms = 500,
                                 .served = 4096,
                                 .connections = 32,
                                 .origin_share = 0.25,
                                 .slow_part = 10,
                                 .seed = 7};
static void expect(const struct herd *herd, double times, double copies)
{
    struct herd_result result;
    herd_run(herd, &result);
    ck_assert_msg(result.worst <= times * result.alone && result.copies <= copies,
                  "%.2f times one node alone and %.2f copies, at most %.2f and %.2f are expected",
                  result.worst / result.alone, result.copies, times, copies);
}

SL_TEST(a_ring_of_sixteen_takes_little_more_than_one_node_alone)
{
    struct herd herd = spaces;
    expect(&herd, 1.25, 1.05);
    herd.spread_ms = 1000;
    expect(&herd, 1.25, 1.05);
    herd.spread_ms = 0;
    herd.late = 4;
    expect(&herd, 1.25, 1.05);
    herd.late = 0;
    herd.warm = true;
    expect(&herd, 1.05, 0);
}

/* Whether it loads itself or not. */
SL_TEST(one_slow_link_does_not_hold_up_the_others)
{
    struct herd herd = spaces;
    herd.slow = 1;
    expect(&herd, 1.3, 1.25);
    herd.idle = true;
    expect(&herd, 1.3, 1.2);
    herd.warm = true;
    expect(&herd, 1.15, 0.05);
    herd = rack;
    herd.slow = 1;
    expect(&herd, 1.5, 1.1);
}

/* 0: its cache is killed, 1: the machine is cut off. */
SL_TEST_LOOP(one_that_goes_costs_its_part, 0, 2)
{
    struct herd herd = spaces;
    herd.dead = 1;
    herd.refuses = _i == 0;
    expect(&herd, 1.35, 1.25);
}

/* All caches are slow then, and none is to blame. */
SL_TEST(a_slow_store_is_not_taken_for_slow_caches)
{
    struct herd herd = rack;
    herd.origin_mbit = 10000;
    expect(&herd, 1.35, 1.05);
}

/* They go all at once: what the origin has to serve at a time is a part of what the nodes ask for,
 * and all end. */
SL_TEST(nodes_whose_caches_went_do_not_all_turn_to_the_store)
{
    struct herd herd = spaces;
    struct herd_result result;
    herd.dead = herd.nodes;
    herd.refuses = true;
    herd_run(&herd, &result);
    unsigned filling = 2 * herd.nodes; /* when they went */
    ck_assert_uint_le(result.origin_most, herd.nodes * herd.connections / 4 + filling);
    ck_assert(result.copies <= herd.nodes);
    herd.origin_share = 1;
    herd_run(&herd, &result);
    ck_assert_uint_gt(result.origin_most, herd.nodes * herd.connections / 2);
}

SL_TEST(a_hundred_and_twenty_eight_share_a_ring)
{
    struct herd herd = rack;
    herd.nodes = 128;
    expect(&herd, 1.45, 1.05);
    herd.slow = 2;
    expect(&herd, 1.6, 1.1);
}

SL_CASE(.seconds = 60)
