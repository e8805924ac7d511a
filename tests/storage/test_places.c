/* What becomes of a place whose answer is wrong, and where the range goes on. */
#include <check.h>
#include <string.h>

#include "claims.h"
#include "places.h"
#include "store_kind.h"

static struct sl_places places;

static void setup(void)
{
    places = (struct sl_places){.count = 2, .names = {"near", "far"}, .origin = "origin"};
    sl_places_init(&places);
}

static void teardown(void)
{
    sl_places_release(&places);
}

enum { AGAIN = 1 << 0, OTHERS = 1 << 1 }; /* it is asked for the same once more; for other things */

static const struct {
    struct sl_err why;
    bool moves;
    unsigned then, third; /* after one, and after three of them */
} rows[] = {
    {{.kind = SL_E_CANCELED}, false, AGAIN | OTHERS, AGAIN | OTHERS},
    {{.kind = SL_E_NO_SPACE}, false, AGAIN | OTHERS, AGAIN | OTHERS},
    {{.kind = SL_E_INTERNAL}, false, AGAIN | OTHERS, AGAIN | OTHERS},
    {{.kind = SL_E_NOT_FOUND, .http_status = 404}, true, OTHERS, OTHERS},
    {{.kind = SL_E_NET, .http_status = 200, .code = "range"}, true, OTHERS, OTHERS},
    {{.kind = SL_E_NET, .code = "range"}, true, 0, 0},
    {{.kind = SL_E_NET, .code = "stall", .retryable = true}, true, 0, 0},
    {{.kind = SL_E_NET, .code = SL_NET_UNREACHED, .retryable = true}, true, 0, 0},
    {{.kind = SL_E_NET, .retryable = true}, true, AGAIN | OTHERS, 0},
    {{.kind = SL_E_NET, .http_status = 429, .retryable = true}, true, AGAIN | OTHERS, 0},
    {{.kind = SL_E_NET, .http_status = 503, .retryable = true}, true, AGAIN | OTHERS, 0},
    {{.kind = SL_E_AUTH, .http_status = 403}, true, 0, 0},
    {{.kind = SL_E_INTEGRITY, .code = "changed"}, true, 0, 0},
    {{.kind = SL_E_FORMAT}, true, 0, 0},
};

static unsigned asked(void)
{
    return (sl_places_next(&places, 0, "a") == 0 ? AGAIN : 0) |
           (sl_places_next(&places, 0, "b") == 0 ? OTHERS : 0);
}

SL_TEST_LOOP(a_failure_says_what_becomes_of_a_place, 0, (int)SL_COUNT(rows))
{
    for (unsigned i = 0; i < 3; i++) {
        ck_assert(sl_places_failed(&places, 0, "a", &rows[_i].why) == rows[_i].moves);
        if (i != 1)
            ck_assert_uint_eq(asked(), i ? rows[_i].third : rows[_i].then);
    }
    ck_assert_uint_eq(sl_places_next(&places, 1, "a"), 1);
}

SL_TEST(what_goes_well_in_between_makes_good)
{
    const struct sl_err why = {.kind = SL_E_NET, .retryable = true};
    for (unsigned i = 0; i < 6; i++) {
        sl_places_failed(&places, 0, "a", &why);
        if (i % 2)
            sl_places_did_well(&places, 0);
    }
    ck_assert_uint_eq(asked(), AGAIN | OTHERS);
}

SL_TEST(who_gave_is_blamed_once)
{
    const struct sl_err why = {.kind = SL_E_INTEGRITY};
    ck_assert(!sl_places_blame(&places, &why));
    sl_places_gave(&places, 1);
    ck_assert(sl_places_blame(&places, &why));
    ck_assert(!sl_places_blame(&places, &why));
    ck_assert_uint_eq(sl_places_next(&places, 0, "a"), 0);
    ck_assert_uint_eq(sl_places_next(&places, 1, "a"), places.count);
}

SL_TEST(a_range_ends_at_the_origin)
{
    const struct sl_err why = {.kind = SL_E_NET, .code = "stall", .retryable = true};
    const struct sl_source source = {.blob = (char[]){"a"}};
    struct sl_places_way way;
    sl_places_begin(&places, &source, false, &way);
    ck_assert_uint_eq(way.at, 2);
    sl_places_begin(&places, &source, true, &way);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_uint_eq(way.at, i);
        ck_assert(sl_places_move(&places, &source, &way, &why));
    }
    ck_assert_str_eq(sl_places_name(&places, way.at), "origin");
    ck_assert(!sl_places_move(&places, &source, &way, &why));
}

/* 2: of an object of which nobody knows what places call it. */
SL_TEST_LOOP(where_the_user_says_so_others_are_believed, 0, 3)
{
    const struct sl_err refused = {.kind = SL_E_AUTH}, gone = {.kind = SL_E_NET, .retryable = true};
    const struct sl_source source = {.blob = _i == 2 ? NULL : (char[]){"a"}, .unchecked = _i == 1};
    struct sl_places_way way;
    bool believed = _i == 0;
    places.believed = "source.toy.trust";
    sl_places_begin(&places, &source, false, &way);
    ck_assert(!sl_places_move(&places, &source, &way, &refused));
    ck_assert(sl_places_move(&places, &source, &way, &gone) == believed);
    sl_places_begin(&places, &source, false, &way);
    ck_assert_uint_eq(way.at, believed ? 0 : 2);
}

SL_CASE(.setup = setup, .teardown = teardown)
