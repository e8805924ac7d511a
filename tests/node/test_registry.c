/* The registry with a holder that loads nothing: who waits, who goes, who is refused. */
#include <stdio.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "registry_case.h"
#include "registry_settle.h"

/* ---- one load ------------------------------------------------------------------------------- */

static void *ask_in_thread(void *arg)
{
    struct sl_err why = SL_ERR_INIT;
    (void)arg;
    return sl_registry_wait_until(registry, "m", SL_REF_LEASE, "thread", NULL, UINT64_MAX, NULL,
                                  &why);
}

SL_TEST(eight_callers_make_one_load)
{
    pthread_t threads[8];
    fake.gated = true;
    define("m", 10, 1);
    for (unsigned i = 0; i < 8; i++)
        ck_assert_int_eq(sl_thread_start(&threads[i], "ask", ask_in_thread, NULL, &err), 0);
    await_admitted(1);
    SL_AWAIT(counts().joined >= 7, "the eighth caller");
    permit(1);
    for (unsigned i = 0; i < 8; i++) {
        void *ref;
        pthread_join(threads[i], &ref);
        ck_assert_ptr_nonnull(ref);
        ck_assert_str_eq(sl_model_ref_version(ref), "0100000000000000");
        sl_registry_release(registry, ref);
    }
    ck_assert_uint_eq(fake.begun, 1);
    touch("m");
    ck_assert_uint_eq(fake.begun, 1);
    ck_assert_uint_eq(counts().references, 0);
}

SL_TEST(who_waits_may_leave_and_the_load_goes_on)
{
    struct sl_cancel *cancel = sl_cancel_new(&err);
    fake.gated = true;
    define("m", 10, 1);
    sl_cancel_raise(cancel, 0);
    ck_assert_ptr_null(
        sl_registry_wait_until(registry, "m", SL_REF_LEASE, "", NULL, UINT64_MAX, cancel, &err));
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_cancel_free(cancel);
    permit(1);
    touch("m");
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.begun, 1);
    /* What the one who left would have is given back by the thread that answers. */
    SL_AWAIT(counts().references == 0, "the end of every reference");
}

SL_TEST(names_that_nobody_defined_are_not_found)
{
    refused("nobody", SL_E_NOT_FOUND, "'nobody'");
    define("m", 10, 1);
    ck_assert_int_eq(sl_registry_pin(registry, "nobody", true, &err), -1);
    ck_assert_int_eq(sl_registry_evict(registry, "nobody", NULL, &err), -1);
    ck_assert_int_eq(sl_registry_forget(registry, "nobody", &err), -1);
    ck_assert_int_eq(sl_registry_load(registry, "nobody", &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
}

static void take_early(void *arg, struct sl_model_ref *ref, const struct sl_err *why)
{
    SL_LOCKED(&lock);
    (void)why;
    *(struct sl_model_ref **)arg = ref;
    pthread_cond_broadcast(&moved);
}

/* *early is the answer, once there is one. */
static void begin_to_ask(struct sl_model_ref **early)
{
    *early = NULL;
    const struct sl_ask asked = {.name = "m",
                                 .kind = SL_REF_LEASE,
                                 .who = "early",
                                 .early = true,
                                 .answer = take_early,
                                 .arg = early};
    ck_assert_int_eq(sl_registry_ask(registry, &asked, &err), 0);
}

static struct sl_model_ref *await_answer(struct sl_model_ref *const *early)
{
    SL_LOCKED(&lock);
    while (!*early)
        pthread_cond_wait(&moved, &lock);
    return *early;
}

static struct sl_model_ref *ask_early(void)
{
    static struct sl_model_ref *early;
    begin_to_ask(&early);
    return await_answer(&early);
}

SL_TEST(an_early_caller_has_the_model_while_it_is_loaded)
{
    fake.gated = fake.open = true;
    define("m", 10, 1);
    struct sl_model_ref *first = ask_early(), *second = ask_early();
    ck_assert_ptr_eq(sl_model_ref_body(first), &fake);
    ck_assert_uint_eq(counts().loading, 1);
    permit(1);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().ready, 1);
    sl_registry_release(registry, first);
    sl_registry_release(registry, second);
    ck_assert_uint_eq(fake.dropped, 0);
}

SL_TEST(what_fails_goes_when_its_early_callers_have_gone)
{
    fake.gated = fake.open = true;
    fake.fail = SL_E_INTEGRITY;
    define("m", 10, 1);
    struct sl_model_ref *ref = ask_early();
    permit(1);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().held_bytes, 10); /* as long as they have it */
    ck_assert_uint_eq(fake.dropped, 0);
    sl_registry_release(registry, ref);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().held_bytes, 0);
    ck_assert_uint_eq(fake.dropped, 1);
    ck_assert_uint_eq(counts().residents, 0);
}

/* A load that starts over gives what it opened before to nobody new. */
SL_TEST(what_was_replaced_goes_with_the_last_who_has_it)
{
    fake.gated = fake.open = fake.reopens = true;
    define("m", 10, 1);
    struct sl_model_ref *first = ask_early(), *second = ask_early();
    ck_assert_ptr_eq(sl_model_ref_body(first), &fake.earlier);
    permit(1);
    await_admitted(1);
    struct sl_model_ref *third = ask_early();
    ck_assert_ptr_eq(sl_model_ref_body(third), &fake);
    ck_assert_ptr_eq(sl_model_ref_body(second), &fake.earlier);
    permit(1);
    sl_registry_release(registry, first);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.earlier_dropped, 0);
    sl_registry_release(registry, second);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.earlier_dropped, 1);
    sl_registry_release(registry, third);
    ck_assert_uint_eq(fake.dropped, 0);
    ck_assert_uint_eq(counts().held_bytes, 10);
}

SL_TEST(what_was_replaced_goes_at_once_where_nobody_has_it)
{
    fake.open = fake.reopens = true;
    define("m", 10, 1);
    touch("m");
    ck_assert_uint_eq(fake.earlier_dropped, 1);
    ck_assert_uint_eq(fake.dropped, 0);
}

/* Memory of a GPU is taken whole, and there may be no room for two. */
SL_TEST(what_failed_goes_before_a_load_takes_memory_again)
{
    fake.gated = fake.reopens = fake.asks_again = true;
    define("m", 10, 1);
    ck_assert_int_eq(sl_registry_load(registry, "m", &err), 0);
    permit(1);
    await_admitted(1);
    {
        SL_LOCKED(&lock);
        ck_assert_uint_eq(fake.earlier_dropped, 1);
    }
    ck_assert_uint_eq(counts().held_bytes, 10);
    permit(1);
    touch("m");
}

SL_TEST(what_failed_stays_with_those_who_have_it)
{
    fake.gated = fake.open = fake.reopens = fake.asks_again = true;
    define("m", 10, 1);
    struct sl_model_ref *ref = ask_early();
    permit(2);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.earlier_dropped, 0);
    sl_registry_release(registry, ref);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.earlier_dropped, 1);
}

static uint64_t look_at_nothing(struct sl_left_memory *left)
{
    (void)left;
    return 0;
}

static void free_nothing(struct sl_left_memory *left)
{
    (void)left;
}

static struct sl_left_memory *watch_nothing(void *self, void *body)
{
    static struct sl_left_memory nothing; /* outlives the test */
    (void)self;
    (void)body;
    nothing = (struct sl_left_memory){.look = look_at_nothing, .free = free_nothing};
    return &nothing;
}

/* For the thread sanitizer: who had it is noted meanwhile. */
SL_TEST(callers_go_while_what_they_have_is_replaced)
{
    fake.gated = fake.open = fake.reopens = true;
    holder.watch = watch_nothing;
    define("m", 10, 1);
    struct sl_model_ref *ref = ask_early();
    permit(2);
    sl_registry_release(registry, ref);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.earlier_dropped, 1);
}

/* At the end there is no other thread to do it. */
SL_TEST(what_was_replaced_goes_after_the_end_too)
{
    fake.gated = fake.open = fake.reopens = true;
    define("m", 10, 1);
    struct sl_model_ref *ref = ask_early();
    permit(2);
    sl_registry_settle(registry);
    sl_registry_stop(registry);
    ck_assert_uint_eq(fake.earlier_dropped, 0);
    sl_registry_release(registry, ref);
    ck_assert_uint_eq(fake.earlier_dropped, 1);
}

/* ---- the budget ----------------------------------------------------------------------------- */

SL_TEST(more_than_the_budget_is_refused_before_anything_goes)
{
    define("a", 90, 1);
    touch("a");
    define("b", 101, 1);
    refused("b", SL_E_NO_SPACE, "'b' needs 101 bytes, and the budget of all models is 100 bytes");
    ck_assert_str_eq(err.code, "budget");
    ck_assert_uint_eq(fake.dropped, 0);
    ck_assert_uint_eq(counts().held_bytes, 90);
    ck_assert_uint_eq(counts().refusals, 1);
}

SL_TEST(loads_under_way_count_with_what_they_will_take)
{
    fake.gated = true;
    define_config("a", 60, 1, false, true);
    await_admitted(1);
    define("b", 60, 1);
    refused("b", SL_E_NO_SPACE, "'a' 60 bytes (being loaded)");
    ck_assert_uint_eq(counts().held_bytes, 60);
    permit(1);
}

SL_TEST(the_least_recently_used_goes_first)
{
    define("a", 30, 1);
    define("b", 30, 1);
    define("c", 30, 1);
    touch("a");
    touch("b");
    touch("c");
    touch("a");
    define("d", 40, 1);
    touch("d");
    ck_assert_str_eq(fake.gone, "b ");
    define("e", 60, 1);
    touch("e");
    ck_assert_str_eq(fake.gone, "b c a ");
    ck_assert_uint_eq(counts().evictions, 3);
    touch("b"); /* comes back */
    ck_assert_uint_eq(counts().held_bytes, 90);
}

SL_TEST(what_is_referenced_or_pinned_stays)
{
    define("a", 40, 1);
    define_config("b", 40, 1, true, true);
    struct sl_model_ref *ref = must("a");
    touch("b");
    define("c", 30, 1);
    refused("c", SL_E_NO_SPACE, "'b' 40 bytes (pinned by the config), 'a' 40 bytes (1 reference)");
    ck_assert_str_eq(fake.gone, "");
    ck_assert_int_eq(sl_registry_evict(registry, "a", NULL, &err), -1);
    ck_assert_str_eq(err.code, "busy");
    ck_assert_int_eq(sl_registry_evict(registry, "b", NULL, &err), -1);
    ck_assert_str_eq(err.code, "pinned");
    ck_assert_int_eq(sl_registry_pin(registry, "b", false, &err), -1);
    ck_assert_str_eq(err.code, "config");
    sl_registry_release(registry, ref);
    ck_assert_int_eq(sl_registry_pin(registry, "a", true, &err), 0);
    ck_assert_int_eq(sl_registry_evict(registry, "a", NULL, &err), -1);
    ck_assert_int_eq(sl_registry_pin(registry, "a", false, &err), 0);
    uint64_t bytes;
    ck_assert_int_eq(sl_registry_evict(registry, "a", &bytes, &err), 0);
    ck_assert_uint_eq(bytes, 40);
    sl_registry_settle(registry);
    ck_assert_str_eq(fake.gone, "a ");
}

SL_TEST(a_smaller_budget_evicts_what_it_can)
{
    define("a", 40, 1);
    define("b", 40, 1);
    touch("a");
    touch("b");
    struct sl_model_ref *ref = must("a");
    sl_registry_set_budget(registry, 30);
    sl_registry_settle(registry);
    ck_assert_str_eq(fake.gone, "b ");
    ck_assert_uint_eq(counts().held_bytes, 40);
    sl_registry_release(registry, ref);
    sl_registry_settle(registry); /* the rest, as soon as nobody uses it */
    ck_assert_str_eq(fake.gone, "b a ");
    ck_assert_uint_eq(counts().held_bytes, 0);
}

SL_TEST(what_cannot_be_dropped_still_counts)
{
    define("a", 60, 1);
    touch("a");
    fake.drop_fails = true;
    define("b", 60, 1);
    refused("b", SL_E_NO_SPACE, "the fake keeps it");
    ck_assert_uint_ge(counts().held_bytes, 60);
    fake.drop_fails = false;
}

/* ---- versions ------------------------------------------------------------------------------- */

SL_TEST(a_new_version_comes_beside_the_old_one_which_goes_first)
{
    define("m", 30, 1);
    struct sl_model_ref *old = must("m");
    define("m", 30, 2);
    ck_assert_int_eq(sl_registry_load(registry, "m", &err), 0);
    sl_registry_settle(registry);
    struct sl_model_ref *new = must("m");
    ck_assert_str_eq(sl_model_ref_version(old), "0100000000000000");
    ck_assert_str_eq(sl_model_ref_version(new), "0200000000000000");
    ck_assert_uint_eq(counts().held_bytes, 60);
    sl_registry_release(registry, old);
    sl_registry_release(registry, new);
    ck_assert_int_eq(sl_registry_pin(registry, "m", true, &err), 0);
    define("other", 60, 1);
    touch("other");
    ck_assert_uint_eq(counts().held_bytes, 90);
    ck_assert_str_eq(fake.gone, "m ");
    touch("m");
    ck_assert_uint_eq(fake.begun, 3);
}

SL_TEST(free_first_lets_go_of_a_pinned_old_version)
{
    const struct sl_model_options wanted = {SL_MODEL_OF_CONFIG, true, true};
    ck_assert_int_eq(define_as("m", 80, 1, &wanted, "free-first"), 0);
    touch("m");
    ck_assert_int_eq(define_as("m", 80, 2, &wanted, "free-first"), 0);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().held_bytes, 80);
    struct sl_model_ref *ref = must("m");
    ck_assert_str_eq(sl_model_ref_version(ref), "0200000000000000");
    sl_registry_release(registry, ref);
}

/* Of version 2, with version 1. */
static void share(uint64_t will_share, uint64_t shares)
{
    SL_LOCKED(&lock);
    fake.shares_with = 1;
    fake.will_share = will_share;
    fake.share = shares;
}

static void load_version_2(unsigned bytes)
{
    define("m", bytes, 2);
    ck_assert_int_eq(sl_registry_load(registry, "m", &err), 0);
    sl_registry_settle(registry);
}

SL_TEST(what_two_versions_share_counts_once_and_stays_with_either)
{
    define("m", 80, 1);
    struct sl_model_ref *old = must("m");
    share(70, 70);
    load_version_2(80);
    ck_assert_uint_eq(counts().held_bytes, 90);
    struct sl_model_ref *new = must("m");
    ck_assert_str_eq(sl_model_ref_version(new), "0200000000000000");
    sl_registry_release(registry, old);
    sl_registry_release(registry, new);
    share(0, 0);
    define("other", 20, 1);
    touch("other"); /* the old one gives what is its own */
    ck_assert_uint_eq(counts().held_bytes, 100);
    ck_assert_str_eq(fake.gone, "m ");
    define("more", 25, 1);
    touch("more"); /* the new one has all of it now */
    ck_assert_uint_eq(counts().held_bytes, 45);
    ck_assert_str_eq(fake.gone, "m m ");
}

SL_TEST(both_versions_go_where_one_gives_too_little)
{
    define("m", 60, 1);
    touch("m");
    share(50, 50);
    load_version_2(60);
    ck_assert_uint_eq(counts().held_bytes, 70);
    share(0, 0);
    define("other", 100, 1);
    touch("other");
    ck_assert_uint_eq(counts().held_bytes, 100);
    ck_assert_str_eq(fake.gone, "m m ");
}

SL_TEST(where_both_versions_have_no_room_the_old_one_goes_and_nothing_is_shared)
{
    define("m", 80, 1);
    touch("m");
    share(70, 0);
    load_version_2(95);
    ck_assert_uint_eq(counts().held_bytes, 95);
    ck_assert_str_eq(fake.gone, "m ");
}

SL_TEST(an_old_version_stays_while_its_files_are_taken_over)
{
    define("m", 60, 1);
    touch("m");
    fake.gated = true;
    share(50, 50);
    define("m", 60, 2);
    ck_assert_int_eq(sl_registry_load(registry, "m", &err), 0);
    await_admitted(2);
    ck_assert_uint_eq(counts().held_bytes, 70);
    define("other", 35, 1);
    refused("other", SL_E_NO_SPACE, "'m' 60 bytes (a load takes over its files)");
    permit(1);
    sl_registry_settle(registry);
    share(0, 0);
    {
        SL_LOCKED(&lock);
        fake.gated = false;
    }
    define("next", 35, 1);
    touch("next");
    ck_assert_uint_eq(counts().held_bytes, 95);
    ck_assert_str_eq(fake.gone, "m ");
}

/* A file that was to be linked had other bytes: the budget is held all the same. */
SL_TEST(what_was_promised_and_not_shared_counts)
{
    define("m", 60, 1);
    struct sl_model_ref *old = must("m");
    define("other", 20, 1);
    touch("other");
    share(50, 30);
    load_version_2(60);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().held_bytes, 90);
    ck_assert_str_eq(fake.gone, "other ");
    sl_registry_release(registry, old);
}

SL_TEST(the_same_version_again_loads_nothing)
{
    define("m", 80, 1);
    touch("m");
    ck_assert_int_eq(sl_registry_load(registry, "m", &err), 0);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().loads, 1);
    ck_assert_uint_eq(counts().held_bytes, 80);
    ck_assert_str_eq(fake.gone, "");
}

static void found(const char *name, const char *version, uint64_t bytes, bool whole)
{
    const struct sl_registry_found version_found = {
        .name = name, .version = version, .bytes = bytes, .ready = whole, .current = whole};
    ck_assert_int_eq(sl_registry_adopt(registry, &holder, &version_found, &err), 0);
}

/* As files and in the pool: both lie in memory of the host. */
SL_TEST(what_one_holder_has_is_not_there_for_another)
{
    static struct sl_holder other; /* outlives the test */
    other = holder;
    load_at(&holder, "m", 30);
    struct sl_model_ref *ref = must("m");
    load_at(&other, "m", 31);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().held_bytes, 30 + 31);
    sl_registry_release(registry, ref);
    touch("m");
    ck_assert_uint_eq(fake.admitted, 2);
}

/* What another memory has does not do for who asks where the spec says. */
SL_TEST(who_asks_where_a_model_goes_waits_for_it)
{
    static struct sl_holder other; /* outlives the test */
    other = holder;
    load_at(&holder, "m", 30);
    touch("m");
    fake.gated = true;
    load_at(&other, "m", 31);
    ck_assert_ptr_null(sl_registry_wait_until(registry, "m", SL_REF_LEASE, "a test", NULL,
                                              sl_now_ns() + 10 * SL_NS_PER_MS, NULL, &err));
    ck_assert_str_eq(err.code, "waiting");
    permit(1);
    sl_registry_settle(registry);
    touch("m");
    fake.fail = SL_E_AUTH;
    load_at(&holder, "m", 32);
    permit(1);
    sl_registry_settle(registry);
    refused("m", SL_E_AUTH, "a moment ago: the fake fails");
}

SL_TEST(who_asks_early_where_a_model_goes_waits_for_it)
{
    static struct sl_holder other;     /* outlive the test */
    static struct sl_model_ref *early; /* … */
    other = holder;
    fake.gated = fake.open = fake.reopens = true;
    load_at(&holder, "m", 30);
    SL_AWAIT(counts().held_bytes == 30, "the first load");
    load_at(&other, "m", 31);
    begin_to_ask(&early); /* there is something, but not where it is wanted */
    permit(1);
    await_admitted(1);
    {
        SL_LOCKED(&lock);
        ck_assert_ptr_null(early);
        fake.reopens = false;
    }
    permit(2);
    struct sl_model_ref *ref = await_answer(&early);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.admitted, 2);
    ck_assert_uint_eq(sl_model_ref_bytes(ref), 31);
    sl_registry_release(registry, ref);
}

SL_TEST(what_was_found_after_a_restart_is_there_at_once)
{
    found("m", "0100000000000000", 30, true);
    found("lost", "0100000000000000", 20, true);
    found("m", "0300000000000000", 10, false);
    fake.gated = true;
    define_config("m", 30, 1, true, true);
    const char *names[] = {"m"};
    sl_registry_keep_only(registry, names, 1);
    touch("m"); /* although the source is still being asked */
    refused("lost", SL_E_NOT_FOUND, "'lost'");
    ck_assert_uint_eq(counts().held_bytes, 60);
    permit(2);
    sl_registry_settle(registry);
    define("big", 70, 1);
    touch("big"); /* what an interrupted load left goes first, then what nobody can ask for */
    ck_assert_str_eq(fake.gone, "m lost ");
}

/* 64 bits of an identity are its version; they can be made equal on purpose. */
SL_TEST(a_derived_model_belongs_to_all_bytes_of_an_identity)
{
    const struct sl_derived_view own = {0};
    struct sl_registry_found version_found = {.name = "m",
                                              .version = "0100000000000000",
                                              .identity = (const uint8_t[32]){1},
                                              .bytes = 30,
                                              .ready = true,
                                              .current = true};
    struct sl_derived_offer offer = {
        .name = "m", .key = "k", .holder = "fake", .identity = {[0] = 1, [31] = 1}, .bytes = 10};
    ck_assert_int_eq(sl_registry_adopt(registry, &holder, &version_found, &err), 0);
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &offer, &err), -1);
    ck_assert_str_eq(err.code, "stale");
    offer.identity[31] = 0;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &offer, &err), 0);
    ck_assert_int_eq(sl_registry_deposit_commit(registry, 0, NULL, 10, &err), 0);
    version_found.version = "0100000000000001";
    version_found.identity = (const uint8_t[32]){[0] = 1, [31] = 2};
    ck_assert_int_eq(sl_registry_adopt(registry, &holder, &version_found, &err), 0);
    ck_assert_ptr_null(sl_registry_hold_derived(registry, "m", "k", &own, "a test", &err));
    ck_assert_str_eq(err.code, "stale");
    version_found.key = "k";
    ck_assert_int_eq(sl_registry_adopt(registry, &holder, &version_found, &err), 0);
    ck_assert_int_eq(sl_registry_adopt(registry, &holder, &version_found, &err), -1);
    ck_assert_str_eq(err.code, "exists");
    struct sl_model_ref *ref = sl_registry_hold_derived(registry, "m", "k", &own, "a test", &err);
    ck_assert_msg(ref != NULL, "%s", err.message);
    sl_registry_release(registry, ref);
}

SL_CASE(.setup = registry_case_setup, .teardown = registry_case_teardown)
