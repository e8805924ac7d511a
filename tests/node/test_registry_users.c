/* The registry when one user asks for much, or for what never comes, by URI: others have places and
 * names all the same, and what nobody waits for any more ends. */
#include <stdio.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "registry_case.h"
#include "registry_settle.h"

enum { USER = 4001, OTHER = 4002 };

/* Somebody who asked. */
struct asker {
    struct sl_model_ref *ref; /* guarded by lock */
    struct sl_err err;
    bool answered;
};

static void on_answer(void *arg, struct sl_model_ref *ref, const struct sl_err *why)
{
    struct asker *asker = arg;
    SL_LOCKED(&lock);
    asker->ref = ref;
    if (why)
        asker->err = *why;
    asker->answered = true;
    pthread_cond_broadcast(&moved);
}

static const char *sharer_of(uint32_t uid)
{
    static char text[4][SL_SHARER_BYTES];
    char *own = text[uid % 4];
    snprintf(own, sizeof(text[0]), "user %u", uid);
    return own;
}

static void ask_as(struct asker *asker, const char *name, uint32_t uid)
{
    const struct sl_ask ask = {.name = name,
                               .kind = SL_REF_LEASE,
                               .who = "a test",
                               .sharer = sharer_of(uid),
                               .answer = on_answer,
                               .arg = asker};
    *asker = (struct asker){0};
    ck_assert_int_eq(sl_registry_ask(registry, &ask, &err), 0);
}

static struct sl_model_ref *answer(struct asker *asker)
{
    SL_LOCKED(&lock);
    while (!asker->answered)
        pthread_cond_wait(&moved, &lock);
    return asker->ref;
}

static int define_passing(const char *name, uint32_t uid)
{
    const struct sl_model_options wanted = {
        .origin = SL_MODEL_OF_REQUEST, .passing = true, .sharer = sharer_of(uid)};
    return define_as(name, 10, 1, &wanted, "keep-old");
}

SL_TEST(what_nobody_waits_for_any_more_ends)
{
    struct asker asker;
    fake.gated = true;
    ck_assert_int_eq(define_passing("silent", USER), 0);
    ask_as(&asker, "silent", USER);
    await_admitted(1);
    ck_assert(sl_registry_withdraw(registry, &asker));
    ck_assert(!sl_registry_withdraw(registry, &asker));
    sl_registry_settle(registry); /* without a permit */
    ck_assert_uint_eq(counts().residents, 0);
    ck_assert(!asker.answered);
    permit(1);
    ck_assert_int_eq(define_passing("silent", USER), 0);
    touch("silent"); /* not "a moment ago" */
}

SL_TEST(a_load_for_which_another_waits_goes_on)
{
    struct asker first, second;
    fake.gated = true;
    ck_assert_int_eq(define_passing("m", USER), 0);
    ask_as(&first, "m", USER);
    ask_as(&second, "m", USER);
    await_admitted(1);
    ck_assert(sl_registry_withdraw(registry, &first));
    permit(1);
    ck_assert_ptr_nonnull(answer(&second));
    ck_assert_uint_eq(fake.begun, 1);
    sl_registry_release(registry, second.ref);
}

SL_TEST(a_load_that_is_not_of_a_request_goes_on_alone)
{
    struct asker asker;
    fake.gated = true;
    define("m", 10, 1);
    ask_as(&asker, "m", USER);
    await_admitted(1);
    ck_assert(sl_registry_withdraw(registry, &asker));
    permit(1);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().ready, 1);
}

SL_TEST(who_asks_for_what_was_just_abandoned_gets_a_new_load)
{
    struct asker first, second;
    fake.gated = true;
    ck_assert_int_eq(define_passing("m", USER), 0);
    ask_as(&first, "m", USER);
    await_admitted(1);
    {
        SL_LOCKED(&lock); /* the load cannot see meanwhile that it was canceled */
        ck_assert(sl_registry_withdraw(registry, &first));
        const struct sl_ask ask = {.name = "m",
                                   .kind = SL_REF_LEASE,
                                   .who = "a test",
                                   .sharer = sharer_of(USER),
                                   .answer = on_answer,
                                   .arg = &second};
        second = (struct asker){0};
        ck_assert_int_eq(sl_registry_ask(registry, &ask, &err), 0);
    }
    await_admitted(2);
    permit(1);
    ck_assert_msg(answer(&second) != NULL, "%s", second.err.message);
    sl_registry_release(registry, second.ref);
}

/* With the lock held: the load cannot see meanwhile that it was canceled. */
static void abandon(struct asker *asker)
{
    ck_assert(sl_registry_withdraw(registry, asker));
    fake.gated = false;
}

static void begin_alone(struct asker *asker)
{
    fake.gated = true;
    ck_assert_int_eq(define_passing("m", USER), 0);
    ask_as(asker, "m", USER);
    await_admitted(1);
}

SL_TEST(what_people_load_just_after_it_was_abandoned_is_loaded)
{
    struct asker asker;
    begin_alone(&asker);
    {
        SL_LOCKED(&lock);
        abandon(&asker);
        ck_assert_int_eq(sl_registry_load(registry, "m", &err), 0);
    }
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().ready, 1);
}

SL_TEST(what_is_defined_to_be_loaded_just_after_it_was_abandoned_is_loaded)
{
    struct asker asker;
    begin_alone(&asker);
    {
        SL_LOCKED(&lock);
        abandon(&asker);
        const struct sl_model_options wanted = {.origin = SL_MODEL_OF_REQUEST, .load = true};
        ck_assert_int_eq(define_as("m", 10, 1, &wanted, "keep-old"), 0);
    }
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().ready, 1);
}

SL_TEST(who_asks_again_and_leaves_again_has_no_load_begun)
{
    struct asker first, second;
    begin_alone(&first);
    {
        SL_LOCKED(&lock);
        abandon(&first);
        ask_as(&second, "m", USER);
        ck_assert(sl_registry_withdraw(registry, &second));
    }
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.begun, 1);
}

SL_TEST(one_user_has_half_of_the_places)
{
    struct asker askers[4];
    char name[2] = "a";
    fake.gated = true;
    for (int i = 0; i < 4; i++, name[0]++) {
        ck_assert_int_eq(define_passing(name, USER), 0);
        ask_as(&askers[i], name, USER);
    }
    await_admitted(2); /* of four places */
    struct asker other, own;
    ck_assert_int_eq(define_passing("other", OTHER), 0);
    ask_as(&other, "other", OTHER);
    await_admitted(3);
    define("config", 10, 1);
    ask_as(&own, "config", USER);
    await_admitted(4);
    {
        SL_LOCKED(&lock);
        ck_assert_uint_eq(fake.begun, 4);
    }
    permit(6);
    for (int i = 0; i < 4; i++) {
        ck_assert_msg(answer(&askers[i]) != NULL, "%s", askers[i].err.message);
        sl_registry_release(registry, askers[i].ref);
    }
    sl_registry_release(registry, answer(&other));
    sl_registry_release(registry, answer(&own));
}

SL_TEST(all_users_together_leave_a_place_for_models_with_names)
{
    struct asker askers[4], named;
    char name[2] = "a";
    fake.gated = true;
    for (int i = 0; i < 4; i++, name[0]++) {
        ck_assert_int_eq(define_passing(name, i % 2 ? OTHER : USER), 0);
        ask_as(&askers[i], name, i % 2 ? OTHER : USER);
    }
    await_admitted(3); /* of four places */
    define("named", 10, 1);
    ask_as(&named, "named", USER);
    await_admitted(4);
    for (int i = 3; i >= 0; i--) /* the one that waits first: the others' places become free */
        ck_assert(sl_registry_withdraw(registry, &askers[i]));
    permit(4); /* a load that ends canceled takes one, too */
    ck_assert_msg(answer(&named) != NULL, "%s", named.err.message);
    sl_registry_release(registry, named.ref);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.begun, 4); /* the fourth URI never had a place */
}

SL_TEST(what_waits_for_a_place_of_its_user_can_be_withdrawn)
{
    struct asker askers[3];
    char name[2] = "a";
    fake.gated = true;
    for (int i = 0; i < 3; i++, name[0]++) {
        ck_assert_int_eq(define_passing(name, USER), 0);
        ask_as(&askers[i], name, USER);
    }
    await_admitted(2);
    for (int i = 2; i >= 0; i--)
        ck_assert(sl_registry_withdraw(registry, &askers[i]));
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.begun, 2);
    ck_assert_uint_eq(counts().residents, 0);
}

SL_TEST(one_user_has_a_quarter_of_the_names)
{
    char name[64];
    int done = 0;
    for (int i = 0; done == 0; i++) { /* those that nobody asks for go after a second */
        ck_assert_int_lt(i, 100000);
        snprintf(name, sizeof(name), "uri-%d", i);
        done = define_passing(name, USER);
    }
    ck_assert_str_eq(err.code, "full");
    ck_assert_msg(strstr(err.message, "user 4001 has asked for 256 models") != NULL, "%s",
                  err.message);
    ck_assert_int_eq(define_passing("other", OTHER), 0);
}

/* How many of 256 names of this kind could be defined, or asked for. */
static int define_many(char kind, uint32_t uid)
{
    char name[64];
    int count = 0;
    for (int i = 0; i < SL_REGISTRY_PASSING_SHARE; i++) {
        snprintf(name, sizeof(name), "uri-%c%d", kind, i);
        count += define_passing(name, uid) == 0;
    }
    return count;
}

static bool is_refused(struct asker *asker, const char *name, uint32_t uid)
{
    ask_as(asker, name, uid);
    SL_LOCKED(&lock);
    return asker->answered && strcmp(asker->err.code, "full") == 0;
}

SL_TEST(two_users_together_have_two_shares_of_the_names)
{
    struct asker asker;
    fake_clock_hold(); /* no name goes */
    ck_assert_int_eq(define_many('a', USER), 256);
    ck_assert_int_eq(define_many('a', OTHER), 256); /* which makes them its own */
    ck_assert_int_eq(define_many('b', USER), 256);
    ck_assert_int_eq(define_many('b', OTHER), 256); /* but no more than its share */
    ck_assert_int_eq(define_many('c', USER), 0);
    ck_assert_int_eq(define_many('c', OTHER), 0);
    ck_assert(is_refused(&asker, "uri-b0", OTHER));
    ck_assert(!is_refused(&asker, "uri-a0", OTHER));
    sl_registry_release(registry, answer(&asker));
    fake_clock_release();
}

SL_TEST(a_name_counts_for_who_still_waits_for_it)
{
    struct asker first, second;
    fake.gated = true;
    fake_clock_hold();
    ck_assert_int_eq(define_passing("m", USER), 0);
    ask_as(&first, "m", USER);
    ck_assert_int_eq(define_many('a', USER), 255);
    ck_assert_int_eq(define_passing("m", OTHER), 0);
    ask_as(&second, "m", OTHER);
    ck_assert_int_lt(define_passing("one-more", USER), 0);
    ck_assert_int_eq(define_many('b', OTHER), 255); /* it counts for both */
    ck_assert(sl_registry_withdraw(registry, &first));
    ck_assert_int_eq(define_passing("one-more", USER), 0);
    ck_assert_int_lt(define_passing("another", OTHER), 0);
    fake_clock_release();
    permit(1);
    sl_registry_release(registry, answer(&second));
}

/* 4001 has its two places of four, a third user one; what waits is the second user's. */
static void fill_places(struct asker askers[3], uint32_t third)
{
    static const char *const names[] = {"a", "b", "c"};
    fake.gated = true;
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(define_passing(names[i], i < 2 ? USER : third), 0);
        ask_as(&askers[i], names[i], i < 2 ? USER : third);
        await_admitted(i + 1);
    }
}

SL_TEST(nobody_parks_in_a_used_up_share_what_another_asked_for)
{
    struct asker askers[3], own, parking;
    fill_places(askers, 4003);
    ck_assert_int_eq(define_passing("m", OTHER), 0);
    ask_as(&own, "m", OTHER);
    ck_assert_int_eq(define_passing("m", USER), 0);
    ask_as(&parking, "m", USER);
    ck_assert(sl_registry_withdraw(registry, &askers[2]));
    SL_AWAIT(counts().queued == 0, "the place of the third for what the second asked for");
    permit(3);
    for (int i = 0; i < 2; i++)
        sl_registry_release(registry, answer(&askers[i]));
    sl_registry_release(registry, answer(&own));
    sl_registry_release(registry, answer(&parking));
}

static bool shows(const char *words)
{
    struct sl_json json;
    sl_json_init(&json, 1024 * 1024);
    sl_json_object(&json);
    sl_registry_json(registry, true, &json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, &err);
    bool found = text && strstr(text, words);
    sl_json_release(&json);
    return found;
}

/* Else one that has no place asks through another, who leaves at once. */
SL_TEST(a_place_counts_for_who_still_waits_for_the_load)
{
    struct asker askers[3], own, helper, more;
    fill_places(askers, 4003);
    ck_assert(sl_registry_withdraw(registry, &askers[2]));
    SL_AWAIT(counts().loading == 2, "the end of the third's load");
    ck_assert_int_eq(define_passing("m", USER), 0);
    ask_as(&own, "m", USER);
    ck_assert(shows("{\"name\":\"m\",\"reason\":\"user 4001 has all places"));
    ck_assert_int_eq(define_passing("m", OTHER), 0);
    ask_as(&helper, "m", OTHER);
    await_admitted(4);
    ck_assert(sl_registry_withdraw(registry, &helper));
    ck_assert(sl_registry_withdraw(registry, &askers[0]));
    SL_AWAIT(counts().loading == 2, "the end of its first");
    ck_assert_int_eq(define_passing("more", USER), 0);
    ask_as(&more, "more", USER);
    ck_assert(shows("{\"name\":\"more\",\"reason\":\"user 4001 has all places"));
    permit(3);
    sl_registry_release(registry, answer(&askers[1]));
    sl_registry_release(registry, answer(&own));
    sl_registry_release(registry, answer(&more));
}

/* Its process may not run for a while: between the two steps of a request, too. */
SL_TEST(a_name_waits_for_who_is_late_to_ask)
{
    fake_clock_hold();
    ck_assert_int_eq(define_passing("m", USER), 0);
    define("other", 10, 1);
    touch("other"); /* the janitor looks around */
    fake_clock_turn(50 * SL_NS_PER_S);
    fake_clock_settle(1);
    touch("m");
    fake_clock_release();
}

static void *wait_a_second(void *arg)
{
    struct sl_err *why = arg;
    ck_assert_ptr_null(sl_registry_wait_until(registry, "m", SL_REF_VOLUME, "a pod",
                                              "namespace 'a'", sl_now_ns() + SL_NS_PER_S, NULL,
                                              why));
    return NULL;
}

/* As a kubelet asks: it waits for a while, and comes again. */
SL_TEST(a_load_that_nobody_asks_for_any_more_ends_after_a_while)
{
    const struct sl_model_options wanted = {.origin = SL_MODEL_OF_REQUEST,
                                            .passing = true,
                                            .sharer = "namespace 'a'",
                                            .lapse_ms = 300 * 1000};
    fake.gated = true;
    fake_clock_hold();
    ck_assert_int_eq(define_as("m", 10, 1, &wanted, "keep-old"), 0);
    for (int again = 0; again < 3; again++) {
        struct sl_err why = SL_ERR_INIT;
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, wait_a_second, &why), 0);
        fake_clock_await(SL_NS_PER_S);
        fake_clock_turn(SL_NS_PER_S);
        pthread_join(thread, NULL);
        ck_assert_str_eq(why.code, "waiting");
        await_admitted(1);
        fake_clock_await(300 * SL_NS_PER_S); /* the janitor */
        if (again < 2)
            fake_clock_turn(200 * SL_NS_PER_S);
        ck_assert_uint_eq(counts().loading, 1);
    }
    fake_clock_turn(300 * SL_NS_PER_S);
    sl_registry_settle(registry); /* without a permit */
    ck_assert_uint_eq(counts().loading, 0);
    fake_clock_release();
    fake.gated = false;
    ck_assert_int_eq(define_as("m", 10, 1, &wanted, "keep-old"), 0);
    touch("m"); /* who comes all the same gets it */
}

SL_TEST(of_two_places_two_namespaces_have_one_each_and_names_one_beside)
{
    struct asker askers[4], named;
    char name[2] = "a";
    reopen_with_places(1000, 2);
    fake.gated = true;
    for (int i = 0; i < 4; i++, name[0]++) {
        ck_assert_int_eq(define_passing(name, i < 2 ? USER : OTHER), 0);
        ask_as(&askers[i], name, i < 2 ? USER : OTHER);
    }
    await_admitted(2);
    define("named", 10, 1);
    ask_as(&named, "named", USER);
    await_admitted(3);
    permit(5);
    for (int i = 0; i < 4; i++)
        sl_registry_release(registry, answer(&askers[i]));
    sl_registry_release(registry, answer(&named));
}

SL_CASE(.setup = registry_case_setup, .teardown = registry_case_teardown)
