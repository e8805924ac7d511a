/* Which cache is asked, and what becomes of a slow one: in a test's own time. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "caches.h"
#include "claims.h"
#include "mem.h"
#include "thread.h"

enum {
    CACHES = 16,
    BLOCKS = 1024,
    HAND = 32,
    LATE_FIRST = 8,
    LATE_PART = 8,
    SLOW_MOST = CACHES / 4
};
#define USUAL_NS (SL_NS_PER_S / 2)
#define LATE_NS  (4 * USUAL_NS)
#define STILL_NS (10 * SL_NS_PER_S)

static struct sl_caches caches;
static struct sl_caches_map *map;
static struct sl_caches_ask asks[HAND];
static uint64_t now;

static void begin(size_t count, double origin_share)
{
    sl_caches_init(&caches, origin_share);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(sl_caches_add(&caches, sl_caches_rank(i, 1, 2), NULL), 0);
    map = sl_caches_map_new(3, BLOCKS);
    memset(asks, 0, sizeof(asks));
    now = SL_NS_PER_S;
}

static void setup(void)
{
    begin(CACHES, 0.25);
}

static void teardown(void)
{
    for (size_t i = 0; i < HAND; i++)
        sl_caches_drop(&caches, &asks[i]);
    ck_assert_uint_eq(caches.in_hand, 0);
    ck_assert_uint_eq(caches.at_origin, 0);
    free(map);
    sl_caches_release(&caches);
}

static void begin_anew(size_t count, double origin_share)
{
    teardown();
    begin(count, origin_share);
}

static enum sl_caches_asked choose(struct sl_caches_ask *ask, uint64_t block)
{
    sl_caches_choose(&caches, map, block, false, ask, now);
    return ask->asked;
}

/* A block of that cache. */
static uint64_t block_of(int cache, uint64_t from)
{
    while (sl_caches_owner(&caches, map, from) != cache)
        from++;
    return from;
}

static void give_usual(int cache)
{
    struct sl_caches_ask ask = {.in_hand = false};
    sl_caches_choose(&caches, map, block_of(cache, 0), false, &ask, now - USUAL_NS);
    ck_assert_int_eq(ask.cache, cache);
    sl_caches_came(&caches, &ask, 1, now);
    sl_caches_done(&caches, &ask, true, now);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void order_of(uint64_t seed, uint32_t order[BLOCKS])
{
    int owners[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++)
        owners[i] = sl_caches_owner(&caches, map, i);
    ck_assert_int_eq(sl_caches_order(owners, BLOCKS, CACHES, seed, order, NULL), 0);
}

/* Each once; in each round as many of each cache, so that none is busier than others. */
SL_TEST(blocks_are_read_in_rounds_of_all_caches)
{
    enum { ROUND = 128, EACH = ROUND / CACHES, ALIKE = BLOCKS * 7 / 8 };
    uint32_t order[BLOCKS];
    bool seen[BLOCKS] = {false};
    order_of(1, order);
    for (unsigned i = 0; i < BLOCKS; i++) {
        ck_assert(!seen[order[i]]);
        seen[order[i]] = true;
    }
    for (unsigned begin = 0; begin + ROUND <= ALIKE; begin += ROUND) {
        unsigned of[CACHES] = {0};
        for (unsigned i = begin; i < begin + ROUND; i++)
            of[sl_caches_owner(&caches, map, order[i])]++;
        for (unsigned i = 0; i < CACHES; i++)
            ck_assert_msg(of[i] == EACH, "round at %u: %u of cache %u", begin, of[i], i);
    }
}

SL_TEST(no_two_machines_have_one_order)
{
    uint32_t one[BLOCKS], other[BLOCKS];
    unsigned alike = 0;
    order_of(1, one);
    order_of(2, other);
    for (unsigned i = 0; i < BLOCKS; i++)
        alike += one[i] == other[i];
    ck_assert_uint_le(alike, BLOCKS / 16);
    order_of(1, other);
    ck_assert_mem_eq(one, other, sizeof(one));
}

/* ---- slow ones ------------------------------------------------------------------------------- */

SL_TEST(a_late_block_is_asked_of_the_next_and_its_cache_rests)
{
    give_usual(1);
    ck_assert_int_eq(choose(&asks[0], block_of(0, 0)), SL_ASKED_CACHE);
    ck_assert_int_eq(asks[0].cache, 0);
    ck_assert_uint_eq(sl_caches_judge_ns(&caches, &asks[0]), now + LATE_NS);
    now += LATE_NS - 1;
    sl_caches_came(&caches, &asks[0], 1, now);
    ck_assert_int_eq(sl_caches_judge(&caches, &asks[0], now), SL_CACHES_FINE);
    now++;
    ck_assert_int_eq(sl_caches_judge(&caches, &asks[0], now), SL_CACHES_LATE);
    ck_assert_int_eq(choose(&asks[0], block_of(0, 0)), SL_ASKED_CACHE);
    ck_assert_int_ne(asks[0].cache, 0);
    ck_assert_int_eq(choose(&asks[1], block_of(0, 1)), SL_ASKED_CACHE);
    ck_assert_int_ne(asks[1].cache, 0);
}

/* Else it depended on time whom it asks. Who is silent is left all the same. */
SL_TEST(a_load_that_decides_by_no_time_waits_for_late_blocks)
{
    caches.waits = true;
    give_usual(1);
    ck_assert_int_eq(choose(&asks[0], block_of(0, 0)), SL_ASKED_CACHE);
    now += LATE_NS;
    sl_caches_came(&caches, &asks[0], 1, now);
    ck_assert_int_eq(sl_caches_judge(&caches, &asks[0], now), SL_CACHES_FINE);
    now += SL_CACHES_SILENCE_MS * SL_NS_PER_MS;
    ck_assert_uint_eq(sl_caches_judge_ns(&caches, &asks[0]), now);
    ck_assert_int_eq(sl_caches_judge(&caches, &asks[0], now), SL_CACHES_SILENT);
}

/* All blocks of all caches are late: it is the link. */
SL_TEST(no_more_than_a_quarter_of_the_caches_are_slow)
{
    unsigned moved = 0, rest = 0;
    for (unsigned i = 0; i < 12; i++)
        give_usual((int)(i % CACHES));
    for (int i = 0; i < CACHES; i++)
        choose(&asks[i], block_of(i, 0));
    now += LATE_NS;
    for (int i = 0; i < CACHES; i++) {
        sl_caches_came(&caches, &asks[i], 1, now);
        moved += sl_caches_judge(&caches, &asks[i], now) == SL_CACHES_LATE;
    }
    for (int i = 0; i < CACHES; i++)
        rest += caches.of[i].state == SL_CACHE_RESTS;
    ck_assert_uint_eq(moved, SLOW_MOST);
    ck_assert_uint_eq(rest, SLOW_MOST);
    ck_assert_uint_gt(sl_caches_judge_ns(&caches, &asks[CACHES - 1]), now);
}

/* However many are late at one. */
SL_TEST(no_more_than_one_block_in_eight_is_late)
{
    unsigned moved = 0;
    uint64_t block = 0;
    for (unsigned i = 0; i < LATE_PART; i++)
        give_usual(1);
    for (int i = 0; i < HAND; i++, block++) {
        block = block_of(0, block);
        choose(&asks[i], block);
        ck_assert_int_eq(asks[i].cache, 0);
    }
    now += LATE_NS;
    for (int i = 0; i < HAND; i++) {
        sl_caches_came(&caches, &asks[i], 1, now);
        moved += sl_caches_judge(&caches, &asks[i], now) == SL_CACHES_LATE;
    }
    ck_assert_uint_eq(moved, LATE_FIRST + 1);
}

/* A few that take very long do not make the others' patience longer. */
SL_TEST(slow_blocks_do_not_tell_what_is_usual)
{
    for (unsigned i = 0; i < 40; i++)
        give_usual((int)(i % CACHES));
    uint64_t usual = caches.usual_ns;
    for (unsigned i = 0; i < 2; i++) {
        choose(&asks[0], block_of(3, 0));
        now += 100 * USUAL_NS;
        sl_caches_done(&caches, &asks[0], true, now);
    }
    ck_assert_uint_le(caches.usual_ns, usual + usual / 3);
}

/* ---- the origin ------------------------------------------------------------------------------ */

/* No cache answers: of 32 blocks in hand a quarter is asked of the origin, and another only when
 * one of these has ended. */
SL_TEST(a_part_of_the_blocks_is_asked_of_the_origin)
{
    unsigned at_origin = 0;
    for (int i = 0; i < HAND; i++)
        while (choose(&asks[i], (uint64_t)i) == SL_ASKED_CACHE)
            sl_caches_failed(&caches, &asks[i], now);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < HAND; i++)
            if (asks[i].asked == SL_ASKED_WAITS)
                choose(&asks[i], (uint64_t)i);
    for (int i = 0; i < HAND; i++)
        at_origin += asks[i].asked == SL_ASKED_ORIGIN;
    ck_assert_uint_eq(at_origin, HAND / 4);
    int waits = 0, asked = 0;
    while (asks[waits].asked != SL_ASKED_WAITS)
        waits++;
    while (asks[asked].asked != SL_ASKED_ORIGIN)
        asked++;
    ck_assert_int_eq(choose(&asks[waits], 7), SL_ASKED_WAITS);
    sl_caches_done(&caches, &asks[asked], true, now);
    ck_assert_int_eq(choose(&asks[waits], 7), SL_ASKED_ORIGIN);
}

/* At least one, and with 1 all of them. */
SL_TEST(a_load_never_waits_for_nothing)
{
    begin_anew(1, 0.01);
    choose(&asks[0], 0);
    sl_caches_failed(&caches, &asks[0], now);
    ck_assert_int_eq(choose(&asks[0], 0), SL_ASKED_ORIGIN);
    begin_anew(1, 1);
    choose(&asks[0], 0);
    sl_caches_failed(&caches, &asks[0], now);
    for (int i = 0; i < HAND; i++)
        ck_assert_int_eq(choose(&asks[i], 0), SL_ASKED_ORIGIN);
}

/* As when somebody takes a stream piece by piece, and reads a tensor in between: the stream holds
 * the one place at the origin, and would never give it back. */
SL_TEST(what_does_not_move_at_the_origin_keeps_nobody_waiting)
{
    begin_anew(1, 0.01);
    sl_caches_set_there(&caches, 0, false);
    ck_assert_int_eq(choose(&asks[0], 0), SL_ASKED_ORIGIN);
    ck_assert_int_eq(choose(&asks[1], 1), SL_ASKED_WAITS);
    now += STILL_NS - 1;
    ck_assert_int_eq(choose(&asks[1], 1), SL_ASKED_WAITS);
    now++;
    ck_assert_int_eq(choose(&asks[1], 1), SL_ASKED_ORIGIN);
    ck_assert_int_eq(choose(&asks[2], 2), SL_ASKED_WAITS);
    ck_assert_int_eq(choose(&asks[3], 3), SL_ASKED_WAITS);
    now += STILL_NS - 1;
    sl_caches_done(&caches, &asks[1], true, now++);
    ck_assert_int_eq(choose(&asks[2], 2), SL_ASKED_WAITS);
}

/* Caches are asked again when they are back. */
SL_TEST(who_waits_for_the_origin_takes_a_cache_that_is_back)
{
    begin_anew(1, 0.01);
    choose(&asks[0], 0);
    sl_caches_failed(&caches, &asks[0], now);
    choose(&asks[0], 0);
    ck_assert_int_eq(choose(&asks[1], 1), SL_ASKED_WAITS);
    now += SL_NS_PER_S;
    ck_assert_int_eq(choose(&asks[1], 1), SL_ASKED_CACHE);
}

/* ---- whose wrong bytes are ------------------------------------------------------------------- */

static int asked_for(uint64_t block)
{
    sl_caches_drop(&caches, &asks[0]);
    choose(&asks[0], block);
    return asks[0].cache;
}

/* _i: it turns out to have given what the origin gives, or what it does not. */
SL_TEST_LOOP(a_cache_that_is_doubted_is_asked_for_nothing, 0, 2)
{
    uint64_t block = block_of(5, 0);
    ck_assert_int_eq(choose(&asks[1], block), SL_ASKED_CACHE);
    ck_assert_int_eq(asks[1].cache, 5);
    sl_caches_doubt(&caches, 5);
    for (uint64_t i = 0; i < BLOCKS; i++)
        ck_assert_int_ne(asked_for(i), 5);
    now += 3600 * SL_NS_PER_S; /* time tells nothing */
    ck_assert_int_ne(asked_for(block), 5);
    sl_caches_came(&caches, &asks[1], 1, now); /* what it was asked for before may come */
    sl_caches_done(&caches, &asks[1], true, now);
    ck_assert_int_ne(asked_for(block), 5);
    ck_assert_int_eq(sl_caches_owner(&caches, map, block), 5);
    if (_i)
        ck_assert(sl_caches_leave(&caches, 5));
    sl_caches_believe(&caches, 5);
    ck_assert_int_eq(asked_for(block) == 5, _i == 0);
}

/* It rests, and would be tried with one block. */
SL_TEST(a_cache_that_rests_is_doubted_all_the_same)
{
    uint64_t block = block_of(5, 0);
    choose(&asks[0], block);
    sl_caches_failed(&caches, &asks[0], now);
    sl_caches_doubt(&caches, 5);
    now += 3600 * SL_NS_PER_S;
    ck_assert_int_ne(asked_for(block), 5);
    sl_caches_believe(&caches, 5);
    ck_assert_int_eq(asked_for(block), 5);
}

/* ---- on trial -------------------------------------------------------------------------------- */

enum { BLOCK_BYTES = 1000 };
#define TRIAL_NS (SL_NS_PER_S / 2)

/* A block that it gives is checked. */
static enum sl_caches_asked choose_checked(struct sl_caches_ask *ask, int cache)
{
    sl_caches_choose(&caches, map, block_of(cache, 0), true, ask, now);
    return ask->asked;
}

static void give_block(struct sl_caches_ask *ask)
{
    sl_caches_came(&caches, ask, BLOCK_BYTES, now);
    sl_caches_done(&caches, ask, true, now);
}

/* Those that wait come again soon, and ever less often. */
static uint64_t waits_ns(int cache)
{
    ck_assert_int_eq(choose_checked(&asks[HAND - 1], cache), SL_ASKED_WAITS);
    return asks[HAND - 1].again_ns - now;
}

SL_TEST(a_cache_that_has_proved_nothing_is_asked_for_one_block)
{
    ck_assert_int_eq(choose_checked(&asks[0], 5), SL_ASKED_CACHE);
    ck_assert_int_eq(choose_checked(&asks[1], 6), SL_ASKED_CACHE);
    ck_assert_uint_eq(waits_ns(5), SL_NS_PER_MS);
    now += TRIAL_NS - 1;
    ck_assert_uint_gt(waits_ns(5), 10 * SL_NS_PER_MS);
    give_block(&asks[0]);
    ck_assert_uint_gt(waits_ns(5), 0);
    sl_caches_agreed(&caches, 5, BLOCK_BYTES - 1); /* a range of several */
    ck_assert_uint_gt(waits_ns(5), 0);
    sl_caches_agreed(&caches, 5, 1);
    for (int i = 2; i < HAND; i++)
        ck_assert_int_eq(choose_checked(&asks[i], 5), SL_ASKED_CACHE);
}

/* Hashes are known before the answer has its end, or part by part as it comes. */
SL_TEST(what_is_right_in_part_proves_nothing_yet)
{
    choose_checked(&asks[0], 5);
    sl_caches_came(&caches, &asks[0], 1, now);
    sl_caches_agreed(&caches, 5, 1);
    ck_assert_uint_gt(waits_ns(5), 0);
    sl_caches_came(&caches, &asks[0], 1, now);
    sl_caches_agreed(&caches, 5, 1);
    sl_caches_done(&caches, &asks[0], true, now);
    ck_assert_int_eq(choose_checked(&asks[1], 5), SL_ASKED_CACHE);
    ck_assert_int_eq(choose_checked(&asks[2], 5), SL_ASKED_CACHE);
}

/* Its block may be of a reader that waits for who waits for it; one that failed is tried anew. */
SL_TEST(a_trial_has_an_end)
{
    choose_checked(&asks[0], 5);
    now += TRIAL_NS;
    ck_assert_int_eq(choose_checked(&asks[1], 5), SL_ASKED_CACHE);
    ck_assert_uint_gt(waits_ns(5), 0);
    choose_checked(&asks[2], 6);
    sl_caches_drop(&caches, &asks[2]);
    ck_assert_int_eq(choose_checked(&asks[2], 6), SL_ASKED_CACHE);
    sl_caches_failed(&caches, &asks[2], now);
    now += SL_NS_PER_S;
    ck_assert_int_eq(choose_checked(&asks[3], 6), SL_ASKED_CACHE);
    ck_assert_int_eq(asks[3].cache, 6);
}

/* With a digest of the whole there is nothing to wait for. */
SL_TEST(what_cannot_be_proved_early_is_asked_for_at_once)
{
    for (int i = 0; i < HAND; i++)
        ck_assert_int_eq(choose(&asks[i], block_of(5, 0)), SL_ASKED_CACHE);
}

/* A model may have both kinds of files: those without hashes of ranges neither begin a trial, nor
 * end one, nor count in it. */
SL_TEST(what_proves_nothing_is_no_trial)
{
    choose(&asks[0], block_of(5, 0));
    ck_assert_int_eq(choose_checked(&asks[1], 5), SL_ASKED_CACHE);
    ck_assert_int_eq(choose(&asks[2], block_of(5, 0)), SL_ASKED_CACHE);
    ck_assert_uint_gt(waits_ns(5), 0);
    give_block(&asks[0]);
    ck_assert_uint_gt(waits_ns(5), 0);
    sl_caches_failed(&caches, &asks[2], now);
    now += SL_NS_PER_S / 4;
    sl_caches_set_there(&caches, 5, true);
    sl_caches_came(&caches, &asks[1], BLOCK_BYTES, now);
    choose(&asks[3], block_of(5, 0));
    sl_caches_drop(&caches, &asks[3]);
    sl_caches_agreed(&caches, 5, BLOCK_BYTES);
    ck_assert(!caches.of[5].proved);
    sl_caches_done(&caches, &asks[1], true, now);
    ck_assert(caches.of[5].proved);
    for (int i = 4; i < HAND - 1; i++)
        ck_assert_int_eq(choose_checked(&asks[i], 5), SL_ASKED_CACHE);
}

/* ---- rests ----------------------------------------------------------------------------------- */

static void must_rest(int cache, uint64_t ns)
{
    now += ns - 1;
    ck_assert_int_ne(asked_for(block_of(cache, 0)), cache);
    now++;
    ck_assert_int_eq(asked_for(block_of(cache, 0)), cache);
}

/* Else one that is back after a moment were left for half a minute where it is the only one. */
SL_TEST(many_blocks_that_fail_together_are_one_failure)
{
    for (int i = 1; i < HAND; i++)
        choose(&asks[i], block_of(5, 0));
    for (int i = 1; i < HAND; i++)
        sl_caches_failed(&caches, &asks[i], now);
    must_rest(5, SL_NS_PER_S);
    now++;
    sl_caches_failed(&caches, &asks[0], now);
    must_rest(5, 2 * SL_NS_PER_S);
}

/* A machine that is gone is not there a second later, and each try costs 2 s. */
SL_TEST(a_silent_cache_rests_longer_than_one_that_refuses)
{
    choose(&asks[1], block_of(5, 0));
    now += SL_CACHES_SILENCE_MS * SL_NS_PER_MS;
    ck_assert_int_eq(sl_caches_judge(&caches, &asks[1], now), SL_CACHES_SILENT);
    must_rest(5, 8 * SL_NS_PER_S);
}

SL_CASE(.setup = setup, .teardown = teardown)
