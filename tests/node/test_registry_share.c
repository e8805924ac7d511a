/* One version is one copy whatever its names: what two names share, and what each has alone. */
#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "registry_case.h"
#include "registry_settle.h"

static void setup(void)
{
    registry_case_setup();
    holder.shares = fake.open = true;
}

/* Two names of one version of 30 bytes. */
static void define_both(void)
{
    define("a", 30, 1);
    define("b", 30, 1);
}

/* ---- one after the other --------------------------------------------------------------------- */

SL_TEST(a_second_name_is_a_reference_to_what_is_there)
{
    define_both();
    struct sl_model_ref *a = must("a"), *b = must("b");
    ck_assert_ptr_eq(sl_model_ref_body(a), sl_model_ref_body(b));
    ck_assert_str_eq(sl_model_ref_version(a), sl_model_ref_version(b));
    ck_assert_str_eq(sl_model_ref_name(b), "b");
    ck_assert_uint_eq(sl_model_ref_bytes(b), 30);
    ck_assert_uint_eq(fake.admitted, 1);
    ck_assert_uint_eq(counts().loads, 1);
    ck_assert_uint_eq(counts().joined, 1);
    ck_assert_uint_eq(counts().held_bytes, 30);
    ck_assert_uint_eq(counts().ready, 2);
    sl_registry_release(registry, a);
    sl_registry_release(registry, b);
}

SL_TEST(another_version_is_another_copy)
{
    define("a", 30, 1);
    define("b", 30, 2);
    touch("a");
    touch("b");
    ck_assert_uint_eq(fake.admitted, 2);
    ck_assert_uint_eq(counts().held_bytes, 60);
}

static void define_with(const char *name, const char *more)
{
    const struct sl_model_options wanted = {SL_MODEL_OF_REQUEST, false, false};
    char text[512];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: %s}\n"
             "source: {uri: memory://m/30/1}\nsink: {tmpfs: {path: /t}}\n%s",
             name, more);
    ck_assert_msg(parse(text) == 0, "%s", err.message);
    ck_assert_int_eq(sl_registry_define(registry, &specs.items[0], &holder, &wanted, &err), 0);
}

/* What opened it for one is nothing that another has shown. */
SL_TEST(other_keys_or_rights_are_another_copy)
{
    define_with("a", "");
    define_with("key", "decrypt: {keyFile: /key}\n");
    define_with("readers", "readers: {connections: 3}\n");
    touch("a");
    touch("key");
    ck_assert_uint_eq(fake.admitted, 2);
    touch("readers"); /* how it is read makes no difference */
    ck_assert_uint_eq(fake.admitted, 2);
    ck_assert_uint_eq(counts().held_bytes, 60);
}

SL_TEST(credentials_of_a_caller_are_of_its_name_alone)
{
    const struct sl_model_options wanted = {SL_MODEL_OF_REQUEST, false, false};
    for (int i = 0; i < 2; i++) {
        char text[256];
        snprintf(text, sizeof(text),
                 "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m%d}\n"
                 "source: {uri: memory://m/30/1}\nsink: {tmpfs: {path: /t}}\n",
                 i);
        ck_assert_msg(parse(text) == 0, "%s", err.message);
        snprintf(specs.items[0].source.credentials, sizeof(specs.items[0].source.credentials),
                 "m%d", i);
        ck_assert_int_eq(sl_registry_define(registry, &specs.items[0], &holder, &wanted, &err), 0);
    }
    touch("m0");
    touch("m1");
    ck_assert_uint_eq(fake.admitted, 2);
}

/* ---- who keeps it, who goes ------------------------------------------------------------------ */

SL_TEST(one_name_is_evicted_and_the_other_keeps_the_memory)
{
    uint64_t bytes = 1;
    define_both();
    touch("a");
    struct sl_model_ref *b = must("b");
    ck_assert_int_eq(sl_registry_evict(registry, "a", &bytes, &err), 0);
    ck_assert_uint_eq(bytes, 0); /* nothing is free by that */
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.dropped, 0);
    ck_assert_uint_eq(counts().held_bytes, 30);
    ck_assert_uint_eq(counts().residents, 1);
    touch("a"); /* shares again */
    ck_assert_uint_eq(fake.admitted, 1);
    sl_registry_release(registry, b);
    ck_assert_int_eq(sl_registry_evict(registry, "b", NULL, &err), 0);
    ck_assert_int_eq(sl_registry_evict(registry, "a", NULL, &err), 0);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.dropped, 1);
    ck_assert_uint_eq(counts().held_bytes, 0);
}

SL_TEST(a_name_is_forgotten_and_the_other_keeps_the_memory)
{
    define_both();
    touch("a");
    touch("b");
    ck_assert_int_eq(sl_registry_forget(registry, "a", &err), 0);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.dropped, 0);
    ck_assert_uint_eq(counts().held_bytes, 30);
    touch("b");
    ck_assert_uint_eq(fake.admitted, 1);
}

SL_TEST(a_reference_by_any_name_keeps_it_from_eviction)
{
    define_both();
    touch("a");
    struct sl_model_ref *b = must("b");
    define("big", 80, 2);
    refused("big", SL_E_NO_SPACE, "'a' and 'b' 30 bytes (1 reference)");
    sl_registry_release(registry, b);
    touch("big");
    ck_assert_uint_eq(fake.dropped, 1); /* both names at once */
    ck_assert_uint_eq(counts().held_bytes, 80);
    ck_assert_uint_eq(counts().residents, 1);
}

SL_TEST(a_pin_of_any_name_keeps_it_from_eviction)
{
    define_both();
    touch("a");
    touch("b");
    ck_assert_int_eq(sl_registry_pin(registry, "b", true, &err), 0);
    define("big", 80, 2);
    refused("big", SL_E_NO_SPACE, "(pinned)");
    ck_assert_int_eq(sl_registry_evict(registry, "a", NULL, &err), 0);
    sl_registry_settle(registry);
    refused("big", SL_E_NO_SPACE, "'b' 30 bytes (pinned)");
    ck_assert_int_eq(sl_registry_pin(registry, "b", false, &err), 0);
    touch("big");
    ck_assert_uint_eq(fake.dropped, 1);
}

/* It was used as lately as any of its names. */
SL_TEST(the_last_use_by_any_name_counts)
{
    define_both();
    define("c", 30, 2);
    touch("a");
    touch("b");
    touch("c");
    touch("b");
    define("d", 50, 3);
    touch("d");
    ck_assert_str_eq(fake.gone, "c ");
    ck_assert_uint_eq(counts().held_bytes, 80);
}

/* Nothing is begun in the place of memory that some of them keep. */
SL_TEST(one_of_hundreds_of_names_goes_with_all)
{
    enum { NAMES = 300 };
    char name[16];
    const struct sl_derived_offer offer = {
        .name = "m", .key = "k", .holder = "fake", .identity = {2}, .bytes = 60, .id = 7};
    define("m", 5, 2);
    touch("m");
    struct sl_model_ref *ref = must("m");
    for (unsigned i = 0; i < NAMES; i++) {
        snprintf(name, sizeof(name), "n%u", i);
        define(name, 60, 1);
        touch(name);
    }
    ck_assert_uint_eq(counts().held_bytes, 65);
    ck_assert_msg(sl_registry_deposit_begin(registry, &offer, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(counts().held_bytes, 65);
    ck_assert_uint_eq(counts().residents, 2);
    sl_registry_deposit_abort(registry, 7);
    sl_registry_release(registry, ref);
}

SL_TEST(a_smaller_budget_drops_it_with_all_names)
{
    define_both();
    touch("a");
    touch("b");
    sl_registry_set_budget(registry, 20);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.dropped, 1);
    ck_assert_uint_eq(counts().residents, 0);
    ck_assert_uint_eq(counts().held_bytes, 0);
}

SL_TEST(one_name_that_means_something_else_leaves_the_other_as_it_is)
{
    define_both();
    touch("a");
    touch("b");
    define("a", 20, 2);
    ck_assert_int_eq(sl_registry_load(registry, "a", &err), 0);
    sl_registry_settle(registry);
    struct sl_model_ref *a = must("a"), *b = must("b");
    ck_assert_str_eq(sl_model_ref_version(a), "0200000000000000");
    ck_assert_str_eq(sl_model_ref_version(b), "0100000000000000");
    ck_assert_uint_eq(counts().held_bytes, 50);
    sl_registry_release(registry, b);
    define("big", 80, 3);
    touch("big"); /* which is old for a is what b stands for: it is not a leftover, but may go */
    ck_assert_uint_eq(counts().held_bytes, 100);
    sl_registry_release(registry, a);
}

/* ---- deposits -------------------------------------------------------------------------------- */

SL_TEST(a_deposit_serves_every_name_of_its_version)
{
    const struct sl_derived_view own = {.uid = 7};
    const struct sl_derived_offer offer = {.name = "a",
                                           .key = "k",
                                           .view = {.uid = 7},
                                           .holder = "fake",
                                           .identity = {1},
                                           .bytes = 10};
    define_both();
    touch("a");
    touch("b");
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &offer, &err), 0);
    ck_assert_int_eq(sl_registry_deposit_commit(registry, 0, NULL, 10, &err), 0);
    struct sl_derived_offer again = offer;
    again.name = "b";
    again.id = 1;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &again, &err), -1);
    ck_assert_str_eq(err.code, "exists");
    struct sl_model_ref *ref = sl_registry_hold_derived(registry, "b", "k", &own, "a test", &err);
    ck_assert_msg(ref != NULL, "%s", err.message);
    sl_registry_release(registry, ref);
    define("a", 20, 2); /* its deposits are of another version then */
    ck_assert_int_eq(sl_registry_load(registry, "a", &err), 0);
    sl_registry_settle(registry);
    struct sl_derived_offer newer = offer;
    newer.identity[0] = 2;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &newer, &err), 0);
    ck_assert_int_eq(sl_registry_deposit_commit(registry, 0, NULL, 10, &err), 0);
    ck_assert_ptr_null(sl_registry_hold_derived(registry, "b", "k", &own, "a test", &err));
}

/* ---- at the same time ------------------------------------------------------------------------ */

struct caller {
    const char *name;
    pthread_t thread;
    struct sl_model_ref *ref;
    struct sl_err err;
};

static void *ask_in_thread(void *arg)
{
    struct caller *caller = arg;
    caller->ref = sl_registry_wait_until(registry, caller->name, SL_REF_LEASE, "thread", NULL,
                                         UINT64_MAX, NULL, &caller->err);
    return NULL;
}

static struct caller begin(const char *name)
{
    return (struct caller){.name = name, .err = SL_ERR_INIT};
}

/* The first loads, and the second has come to follow it. */
static void ask_both(struct caller callers[2])
{
    fake.gated = true;
    define_both();
    callers[0] = begin("a");
    callers[1] = begin("b");
    ck_assert_int_eq(sl_thread_start(&callers[0].thread, "a", ask_in_thread, &callers[0], &err), 0);
    await_admitted(1);
    ck_assert_int_eq(sl_thread_start(&callers[1].thread, "b", ask_in_thread, &callers[1], &err), 0);
    SL_AWAIT(counts().joined == 1, "the second load");
}

static void join(struct caller callers[2])
{
    for (int i = 0; i < 2; i++)
        pthread_join(callers[i].thread, NULL);
}

SL_TEST(two_names_at_once_make_one_load)
{
    struct caller callers[2];
    ask_both(callers);
    ck_assert_uint_eq(counts().loading, 2);
    ck_assert_uint_eq(counts().held_bytes, 30);
    ck_assert_int_eq(sl_registry_evict(registry, "b", NULL, &err), -1);
    ck_assert_str_eq(err.code, "loading");
    permit(1);
    join(callers);
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(callers[i].ref != NULL, "%s", callers[i].err.message);
        ck_assert_ptr_eq(sl_model_ref_body(callers[i].ref), &fake);
        sl_registry_release(registry, callers[i].ref);
    }
    ck_assert_uint_eq(fake.admitted, 1);
    ck_assert_uint_eq(counts().loads, 1);
    ck_assert_uint_eq(counts().held_bytes, 30);
}

SL_TEST(who_follows_takes_no_place_of_a_load)
{
    char name[8];
    fake.gated = true;
    for (int i = 0; i < 6; i++) { /* there are four places */
        snprintf(name, sizeof(name), "m%d", i);
        define(name, 10, 1);
        ck_assert_int_eq(sl_registry_load(registry, name, &err), 0);
    }
    SL_AWAIT(counts().joined == 5, "five that follow");
    define("other", 10, 2);
    ck_assert_int_eq(sl_registry_load(registry, "other", &err), 0);
    await_admitted(2);
    permit(2);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().ready, 7);
    ck_assert_uint_eq(counts().held_bytes, 20);
}

SL_TEST(both_are_told_why_the_load_failed)
{
    struct caller callers[2];
    ask_both(callers);
    fake.fail = SL_E_INTEGRITY;
    permit(1);
    join(callers);
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_null(callers[i].ref);
        ck_assert_msg(strstr(callers[i].err.message, "the fake fails"), "%s",
                      callers[i].err.message);
    }
    sl_registry_settle(registry);
    refused("b", SL_E_INTEGRITY, "a moment ago");
    ck_assert_uint_eq(fake.begun, 2);
    ck_assert_uint_eq(counts().held_bytes, 0);
    ck_assert_uint_eq(counts().residents, 0);
}

/* The one that loads is taken away: that is not a failure of the other. */
SL_TEST(who_follows_a_load_that_is_canceled_loads_itself)
{
    struct caller callers[2];
    ask_both(callers);
    ck_assert_int_eq(sl_registry_forget(registry, "a", &err), 0);
    await_admitted(2);
    permit(1);
    join(callers);
    ck_assert_ptr_null(callers[0].ref);
    ck_assert_int_eq(callers[0].err.kind, SL_E_CANCELED);
    ck_assert_msg(callers[1].ref != NULL, "%s", callers[1].err.message);
    sl_registry_release(registry, callers[1].ref);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().held_bytes, 30);
}

SL_TEST(who_follows_may_be_taken_away)
{
    struct caller callers[2];
    ask_both(callers);
    ck_assert_int_eq(sl_registry_forget(registry, "b", &err), 0);
    permit(1);
    join(callers);
    ck_assert_ptr_nonnull(callers[0].ref);
    sl_registry_release(registry, callers[0].ref);
    sl_registry_release(registry, callers[1].ref);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.dropped, 0);
    ck_assert_uint_eq(counts().residents, 1);
    ck_assert_uint_eq(counts().held_bytes, 30);
}

static void take_nothing(void *arg, struct sl_model_ref *ref, const struct sl_err *why)
{
    (void)arg;
    (void)why;
    sl_registry_release(registry, ref);
}

/* A load that was asked for by URI ends when nobody waits for it; but somebody does. */
SL_TEST(who_leaves_ends_no_load_that_another_name_waits_for)
{
    const struct sl_model_options passing = {SL_MODEL_OF_REQUEST, false, false, true};
    int me;
    const struct sl_ask asked = {.name = "uri", .answer = take_nothing, .arg = &me};
    fake.gated = true;
    fake.open = false;
    ck_assert_int_eq(define_as("uri", 30, 1, &passing, "keep-old"), 0);
    define("b", 30, 1);
    ck_assert_int_eq(sl_registry_ask(registry, &asked, &err), 0);
    await_admitted(1);
    ck_assert_int_eq(sl_registry_load(registry, "b", &err), 0);
    SL_AWAIT(counts().joined == 1, "the second load");
    ck_assert(sl_registry_withdraw(registry, &me));
    permit(1);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.admitted, 1);
    ck_assert_uint_eq(counts().ready, 2);
}

static void take_early(void *arg, struct sl_model_ref *ref, const struct sl_err *why)
{
    SL_LOCKED(&lock);
    ck_assert_msg(ref != NULL, "%s", why ? why->message : "");
    *(struct sl_model_ref **)arg = ref;
    pthread_cond_broadcast(&moved);
}

static struct sl_model_ref *ask_early(const char *name)
{
    struct sl_model_ref *early = NULL;
    const struct sl_ask asked = {
        .name = name, .early = true, .answer = take_early, .arg = &early, .who = "early"};
    ck_assert_int_eq(sl_registry_ask(registry, &asked, &err), 0);
    SL_LOCKED(&lock);
    while (!early)
        pthread_cond_wait(&moved, &lock);
    return early;
}

SL_TEST(both_may_have_it_while_it_is_loaded)
{
    fake.gated = true;
    define_both();
    struct sl_model_ref *a = ask_early("a"), *b = ask_early("b");
    ck_assert_ptr_eq(sl_model_ref_body(a), &fake);
    ck_assert_ptr_eq(sl_model_ref_body(b), &fake);
    fake.fail = SL_E_INTEGRITY;
    permit(1);
    sl_registry_settle(registry);
    sl_registry_release(registry, a);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.dropped, 0); /* as long as somebody has it by any name */
    ck_assert_uint_eq(counts().held_bytes, 30);
    sl_registry_release(registry, b);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.dropped, 1);
    ck_assert_uint_eq(counts().held_bytes, 0);
}

SL_TEST(who_follows_is_opened_with_the_load)
{
    fake.gated = fake.reopens = true;
    define_both();
    struct sl_model_ref *a = ask_early("a"), *b = ask_early("b");
    ck_assert_ptr_eq(sl_model_ref_body(b), &fake.earlier);
    permit(1);
    await_admitted(1);
    struct sl_model_ref *late = ask_early("b");
    ck_assert_ptr_eq(sl_model_ref_body(late), &fake);
    sl_registry_release(registry, a);
    ck_assert_uint_eq(fake.earlier_dropped, 0);
    permit(1);
    sl_registry_settle(registry);
    sl_registry_release(registry, b);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.earlier_dropped, 1);
    sl_registry_release(registry, late);
}

SL_TEST(who_follows_a_version_that_comes_no_more_asks_anew)
{
    fake.gated = fake.changes = true;
    define_both();
    struct sl_model_ref *a = ask_early("a"), *b = ask_early("b");
    ck_assert_ptr_eq(sl_model_ref_body(b), &fake.first);
    permit(1); /* a goes on with version 99, and b loads what it finds, which is the first */
    await_admitted(2);
    permit(2);
    sl_registry_settle(registry);
    struct sl_model_ref *new = must("b");
    ck_assert_str_eq(sl_model_ref_version(new), "0100000000000000");
    ck_assert_ptr_eq(sl_model_ref_body(new), &fake);
    sl_registry_release(registry, new);
    sl_registry_release(registry, b);
    sl_registry_release(registry, a);
}

SL_TEST(the_end_of_the_registry_ends_both)
{
    struct caller callers[2];
    ask_both(callers);
    sl_registry_stop(registry);
    join(callers);
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_null(callers[i].ref);
        ck_assert_int_eq(callers[i].err.kind, SL_E_CANCELED);
    }
}

/* ---- after a restart ------------------------------------------------------------------------- */

SL_TEST(what_was_found_is_shared_with_who_has_the_same_rights)
{
    const struct sl_registry_found found = {.name = "a",
                                            .version = "0100000000000000",
                                            .identity = (const uint8_t[32]){1},
                                            .bytes = 30,
                                            .ready = true,
                                            .current = true,
                                            .body = &fake};
    ck_assert_int_eq(sl_registry_adopt(registry, &holder, &found, &err), 0);
    define_with("key", "decrypt: {keyFile: /key}\n");
    define_both();
    touch("b");
    ck_assert_uint_eq(fake.admitted, 0);
    ck_assert_uint_eq(counts().held_bytes, 30);
    touch("key");
    ck_assert_uint_eq(fake.admitted, 1);
}

SL_TEST(what_nobody_defined_is_shared_with_nobody)
{
    const struct sl_registry_found found = {.name = "a",
                                            .version = "0100000000000000",
                                            .identity = (const uint8_t[32]){1},
                                            .bytes = 30,
                                            .ready = true,
                                            .current = true,
                                            .body = &fake};
    ck_assert_int_eq(sl_registry_adopt(registry, &holder, &found, &err), 0);
    define("b", 30, 1);
    touch("b");
    ck_assert_uint_eq(fake.admitted, 1);
}

/* ---- what is shown, what fails --------------------------------------------------------------- */

SL_TEST(each_name_says_whom_it_shares_with)
{
    struct sl_json json;
    define_both();
    touch("a");
    touch("b");
    sl_json_init(&json, 1 << 16);
    sl_json_object(&json);
    sl_registry_json(registry, true, &json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, &err);
    ck_assert_ptr_nonnull(text);
    ck_assert_msg(strstr(text, "\"shared_with\":[\"b\"]") &&
                      strstr(text, "\"shared_with\":[\"a\"]"),
                  "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "\"held_bytes\":30,"));
    sl_json_release(&json);
}

/* '@' of a revision or a digest is not that of a password. */
SL_TEST(each_name_says_where_it_comes_from)
{
    struct sl_json json;
    const struct sl_model_options wanted = {SL_MODEL_OF_REQUEST, false, false};
    ck_assert_int_eq(parse("apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: a}\n"
                           "source: {uri: \"memory://user:hush@m/30/1@sha256:0a?b\"}\n"
                           "sink: {tmpfs: {path: /t}}\n"),
                     0);
    ck_assert_int_eq(sl_registry_define(registry, &specs.items[0], &holder, &wanted, &err), 0);
    sl_registry_release(registry, ask("a"));
    sl_json_init(&json, 1 << 16);
    sl_json_object(&json);
    sl_registry_json(registry, true, &json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, &err);
    ck_assert_ptr_nonnull(text);
    ck_assert_msg(strstr(text, "\"uri\":\"memory://m/30/1@sha256:0a?b\"") != NULL, "%s", text);
    sl_json_release(&json);
}

SL_TEST(every_failing_allocation_leaves_the_other_name_alone)
{
    reopen_with(100, 1);
    holder.shares = fake.open = true;
    define_both();
    struct sl_model_ref *a = must("a");
    for (unsigned n = 1;; n++) {
        sl_alloc_fail_at(n);
        struct sl_model_ref *b = ask("b");
        unsigned used = sl_alloc_count();
        sl_alloc_fail_at(0);
        ck_assert(b || err.kind == SL_E_NO_SPACE);
        sl_registry_release(registry, b);
        sl_registry_settle(registry);
        ck_assert_uint_eq(counts().held_bytes, 30);
        if (b && used < n)
            break;
        sl_registry_evict(registry, "b", NULL, &err);
        sl_registry_settle(registry);
        sl_sleep_ms(2, NULL, NULL); /* until it may be tried again */
        ck_assert_uint_lt(n, 100);
    }
    ck_assert_uint_eq(fake.admitted, 1);
    sl_registry_release(registry, a);
}

SL_CASE(.setup = setup, .teardown = registry_case_teardown)
