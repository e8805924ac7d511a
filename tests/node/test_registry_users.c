/* The registry when one user asks for much, or for what never comes, by URI: others have places and
 * names all the same, and what nobody waits for any more ends. */
#include <stdio.h>
#include <string.h>

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

static void ask_as(struct asker *asker, const char *name)
{
    const struct sl_ask ask = {
        .name = name, .kind = SL_REF_LEASE, .who = "a test", .answer = on_answer, .arg = asker};
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
    char sharer[SL_SHARER_BYTES];
    const struct sl_model_options wanted = {
        .origin = SL_MODEL_OF_REQUEST, .passing = true, .sharer = sharer};
    snprintf(sharer, sizeof(sharer), "user %u", uid);
    return define_as(name, 10, 1, &wanted, "keep-old");
}

SL_TEST(what_nobody_waits_for_any_more_ends)
{
    struct asker asker;
    fake.gated = true;
    ck_assert_int_eq(define_passing("silent", USER), 0);
    ask_as(&asker, "silent");
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
    ask_as(&first, "m");
    ask_as(&second, "m");
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
    ask_as(&asker, "m");
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
    ask_as(&first, "m");
    await_admitted(1);
    {
        SL_LOCKED(&lock); /* the load cannot see meanwhile that it was canceled */
        ck_assert(sl_registry_withdraw(registry, &first));
        const struct sl_ask ask = {.name = "m",
                                   .kind = SL_REF_LEASE,
                                   .who = "a test",
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

SL_TEST(one_user_has_half_of_the_places)
{
    struct asker askers[4];
    char name[2] = "a";
    fake.gated = true;
    for (int i = 0; i < 4; i++, name[0]++) {
        ck_assert_int_eq(define_passing(name, USER), 0);
        ask_as(&askers[i], name);
    }
    await_admitted(2); /* of four places */
    struct asker other, own;
    ck_assert_int_eq(define_passing("other", OTHER), 0);
    ask_as(&other, "other");
    await_admitted(3);
    define("config", 10, 1);
    ask_as(&own, "config");
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
        ask_as(&askers[i], name);
    }
    await_admitted(3); /* of four places */
    define("named", 10, 1);
    ask_as(&named, "named");
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
        ask_as(&askers[i], name);
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

static void *wait_a_second(void *arg)
{
    struct sl_err *why = arg;
    ck_assert_ptr_null(sl_registry_wait_until(registry, "m", SL_REF_VOLUME, "a pod",
                                              sl_now_ns() + SL_NS_PER_S, NULL, why));
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
        ask_as(&askers[i], name);
    }
    await_admitted(2);
    define("named", 10, 1);
    ask_as(&named, "named");
    await_admitted(3);
    permit(5);
    for (int i = 0; i < 4; i++)
        sl_registry_release(registry, answer(&askers[i]));
    sl_registry_release(registry, answer(&named));
}

SL_CASE(.setup = registry_case_setup, .teardown = registry_case_teardown)
