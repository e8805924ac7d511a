/* The registry when loads fail, when the config changes, when it ends, when memory is short. */
#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "registry_case.h"
#include "registry_settle.h"

/* ---- failures ------------------------------------------------------------------------------- */

SL_TEST(a_failed_load_leaves_nothing_and_is_not_tried_at_once)
{
    define("m", 30, 1);
    fake.fail = SL_E_NOT_FOUND;
    refused("m", SL_E_NOT_FOUND, "the fake fails");
    ck_assert_uint_eq(counts().residents, 0);
    ck_assert_uint_eq(fake.dropped, 1);
    fake.fail = SL_OK;
    refused("m", SL_E_NOT_FOUND, "a moment ago: the fake fails");
    ck_assert_uint_gt(err.retry_after_ms, 1000);
    ck_assert_uint_eq(fake.begun, 1);
    ck_assert_int_eq(sl_registry_load(registry, "m", &err), 0); /* by hand: now */
    touch("m");
}

SL_TEST(the_next_ask_tries_again_when_the_time_has_come)
{
    reopen_with(100, 1);
    define("m", 30, 1);
    fake.fail = SL_E_NET;
    refused("m", SL_E_NET, "the fake fails");
    {
        SL_LOCKED(&lock);
        fake.fail = SL_OK;
    }
    struct sl_model_ref *ref = NULL;
    SL_AWAIT((ref = ask("m")) || err.kind != SL_E_NET, "the next try");
    ck_assert_msg(ref, "%s", err.message);
    sl_registry_release(registry, ref);
}

SL_TEST(a_model_of_the_config_is_tried_again_by_itself)
{
    reopen_with(100, 1);
    fake.fail = SL_E_NET;
    define_config("m", 30, 1, true, true);
    await_admitted(3);
    {
        SL_LOCKED(&lock);
        fake.fail = SL_OK;
    }
    SL_AWAIT(counts().ready, "the load that works");
}

SL_TEST(what_a_broken_load_left_is_used_by_the_next_one)
{
    holder.keeps_partial = true;
    define("m", 30, 1);
    fake.fail = SL_E_NET;
    refused("m", SL_E_NET, "the fake fails");
    ck_assert_uint_eq(counts().partial, 1);
    ck_assert_uint_eq(counts().held_bytes, 30);
    fake.fail = SL_OK;
    ck_assert_int_eq(sl_registry_load(registry, "m", &err), 0);
    touch("m");
    ck_assert_uint_eq(counts().held_bytes, 30);
    ck_assert_uint_eq(fake.dropped, 0);
}

SL_TEST(what_a_broken_load_without_a_version_left_is_dropped)
{
    holder.keeps_partial = fake.unversioned = true;
    define("m", 30, 1);
    fake.fail = SL_E_NET;
    refused("m", SL_E_NET, "the fake fails");
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().partial, 0);
    ck_assert_uint_eq(counts().held_bytes, 0);
    ck_assert_uint_eq(fake.dropped, 1);
}

static void *ask_in_thread(void *arg)
{
    struct sl_err why = SL_ERR_INIT;
    (void)arg;
    return sl_registry_wait_until(registry, "m", SL_REF_LEASE, "thread", NULL, UINT64_MAX, NULL,
                                  &why);
}

SL_TEST(the_end_answers_who_waits)
{
    pthread_t thread;
    void *ref;
    fake.gated = true;
    define("m", 10, 1);
    ck_assert_int_eq(sl_thread_start(&thread, "ask", ask_in_thread, NULL, &err), 0);
    await_admitted(1);
    sl_registry_stop(registry);
    pthread_join(thread, &ref);
    ck_assert_ptr_null(ref);
    refused("m", SL_E_CANCELED, "about to end");
}

/* ---- the config changes --------------------------------------------------------------------- */

SL_TEST(what_left_the_config_keeps_its_leases_and_gets_no_new_ones)
{
    const char *names[] = {"b"};
    define_config("a", 40, 1, true, true);
    define_config("b", 40, 1, true, true);
    struct sl_model_ref *ref = must("a");
    touch("b");
    sl_registry_keep_only(registry, names, 1);
    refused("a", SL_E_NOT_FOUND, "'a'");
    define("c", 60, 1);
    refused("c", SL_E_NO_SPACE, "'a' 40 bytes (1 reference)");
    sl_registry_release(registry, ref);
    ck_assert_int_eq(sl_registry_load(registry, "c", &err), 0);
    touch("c");
    ck_assert_str_eq(fake.gone, "a ");
    SL_AWAIT(counts().models <= 2, "the end of its name"); /* it goes with its memory */
}

SL_TEST(a_model_that_comes_back_to_the_config_is_not_loaded_again)
{
    define_config("a", 40, 1, true, true);
    touch("a");
    sl_registry_keep_only(registry, NULL, 0);
    define_config("a", 40, 1, true, true);
    touch("a");
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().loads, 1);
}

SL_TEST(a_request_cannot_change_a_model_of_the_config)
{
    const struct sl_model_options wanted = {SL_MODEL_OF_REQUEST, false, true};
    define_config("a", 40, 1, true, true);
    touch("a");
    ck_assert_int_eq(define_as("a", 40, 2, &wanted, "keep-old"), -1);
    ck_assert_str_eq(err.code, "exists");
    ck_assert_int_eq(define_as("a", 40, 1, &wanted, "keep-old"), 0);
    ck_assert_int_eq(sl_registry_forget(registry, "a", &err), -1);
    ck_assert_str_eq(err.code, "config");
}

SL_TEST(a_forgotten_model_is_gone_with_its_load)
{
    define("a", 40, 1);
    touch("a");
    ck_assert_int_eq(sl_registry_forget(registry, "a", &err), 0);
    sl_registry_settle(registry);
    ck_assert_str_eq(fake.gone, "a ");
    fake.gated = true;
    define("b", 40, 1);
    ck_assert_int_eq(sl_registry_load(registry, "b", &err), 0);
    await_admitted(2);
    ck_assert_int_eq(sl_registry_forget(registry, "b", &err), 0);
    refused("b", SL_E_NOT_FOUND, "'b'");
    SL_AWAIT(!counts().models, "the end of a model that was forgotten");
    ck_assert_uint_eq(counts().held_bytes, 0);
}

static void count_reason(void *arg, const char *text)
{
    (void)text;
    ++*(unsigned *)arg;
}

SL_TEST(it_is_ready_when_every_model_of_the_config_was_there)
{
    uint64_t published, expected;
    unsigned reasons = 0;
    fake.gated = true;
    define_config("a", 40, 1, false, true);
    define("b", 70, 1);
    ck_assert(!sl_registry_is_ready(registry, 8, count_reason, &reasons, &published, &expected));
    ck_assert_uint_eq(reasons, 1);
    permit(8);
    touch("a");
    ck_assert(sl_registry_is_ready(registry, 8, count_reason, &reasons, &published, &expected));
    touch("b"); /* evicts a, which had its time */
    ck_assert(sl_registry_is_ready(registry, 8, count_reason, &reasons, &published, &expected));
    ck_assert_uint_eq(expected, 1);
}

SL_TEST(the_queue_is_shown_in_its_order_with_reasons)
{
    struct sl_json json;
    const char *names[] = {"a", "b", "c", "d", "y", "x"}; /* four are loaded at once */
    fake.gated = true;
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        define_config(names[i], 1, 1, false, true);
        if (i == 3)
            await_admitted(4);
    }
    sl_json_init(&json, 1 << 20);
    sl_json_object(&json);
    sl_registry_json(registry, true, &json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, &err);
    ck_assert_msg(strstr(text, "\"queue\":[{\"name\":\"y\",\"reason\":\"all 4 places for loads are "
                               "taken\"},{\"name\":\"x\","),
                  "%s", text);
    sl_json_release(&json);
    permit(SL_COUNT(names));
    sl_registry_settle(registry);
}

SL_TEST(what_people_see_is_json)
{
    struct sl_json json;
    sl_json_init(&json, 1 << 20);
    define("a", 40, 1);
    struct sl_model_ref *ref = must("a");
    sl_json_object(&json);
    sl_registry_json(registry, true, &json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, &err);
    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_nonnull(strstr(text, "\"state\":\"ready\""));
    ck_assert_ptr_nonnull(strstr(text, "{\"kind\":\"lease\",\"who\":\"a test\""));
    sl_json_release(&json);
    sl_registry_release(registry, ref);
}

SL_TEST(every_failing_allocation_is_told)
{
    const struct sl_model_options wanted = {SL_MODEL_OF_REQUEST, false, false};
    reopen_with(100, 1);
    for (unsigned n = 1;; n++) {
        char text[512];
        snprintf(text, sizeof(text),
                 "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m%u}\n"
                 "source: {uri: memory://m/1/%u}\nsink: {tmpfs: {path: /t}}\n",
                 n, n);
        ck_assert_int_eq(parse(text), 0);
        char name[16];
        snprintf(name, sizeof(name), "m%u", n);
        struct sl_model_ref *ref = NULL;
        err = (struct sl_err)SL_ERR_INIT;
        sl_alloc_fail_at(n);
        int done = sl_registry_define(registry, &specs.items[0], &holder, &wanted, &err);
        if (done == 0)
            ref = ask(name);
        unsigned used = sl_alloc_count();
        sl_alloc_fail_at(0);
        if (!ref)
            ck_assert_msg(err.kind == SL_E_NO_SPACE, "%u: %s", n, err.message);
        if (ref)
            sl_registry_release(registry, ref);
        sl_registry_settle(registry);
        ck_assert_uint_eq(counts().references, 0);
        if (ref && used < n)
            break;
        ck_assert_uint_lt(n, 200);
    }
}

/* ---- names that come again ------------------------------------------------------------------- */

/* A holder drops by name and version: what a new load of both has made would go, too. */
SL_TEST(what_is_forgotten_has_gone_before_the_same_version_is_loaded)
{
    enum { LOOKS = 100 };
    define("m", 10, 1);
    touch("m");
    fake.drops_gated = true;
    ck_assert_int_eq(sl_registry_forget(registry, "m", &err), 0);
    define("m", 10, 1);
    ck_assert_int_eq(sl_registry_load(registry, "m", &err), 0);
    for (int i = 0; i < LOOKS; i++) { /* the new load would be admitted at once */
        sl_sleep_ms(1, NULL, NULL);
        SL_LOCKED(&lock);
        ck_assert_uint_eq(fake.admitted, 1);
    }
    permit(1);
    await_admitted(2);
    ck_assert_uint_eq(fake.dropped, 1);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().ready, 1);
}

SL_TEST(another_version_need_not_wait_for_what_is_forgotten)
{
    define("m", 10, 1);
    touch("m");
    fake.drops_gated = true;
    ck_assert_int_eq(sl_registry_forget(registry, "m", &err), 0);
    define("m", 10, 2);
    touch("m");
    ck_assert_uint_eq(fake.dropped, 0);
    permit(1);
    sl_registry_settle(registry);
    ck_assert_str_eq(fake.gone, "m ");
}

SL_TEST(what_cannot_be_dropped_holds_no_load_of_its_name_up)
{
    define("m", 10, 1);
    touch("m");
    fake.drop_fails = true;
    ck_assert_int_eq(sl_registry_forget(registry, "m", &err), 0);
    define("m", 10, 1);
    touch("m");
    fake.drop_fails = false;
}

/* ---- what is left to the janitor --------------------------------------------------------------
 */

struct errand {
    struct sl_deferred_call call; /* first */
    pthread_t by;
    bool done;
};

static void run_errand(struct sl_deferred_call *call)
{
    struct errand *errand = (struct errand *)call;
    errand->by = pthread_self();
    errand->done = true;
}

SL_TEST(what_is_left_to_the_janitor_is_done_by_it)
{
    struct errand errands[3] = {{.call.run = run_errand}};
    for (int i = 0; i < 3; i++) {
        errands[i].call.run = run_errand;
        sl_registry_defer(registry, &errands[i].call);
    }
    sl_registry_settle(registry);
    for (int i = 0; i < 3; i++) {
        ck_assert(errands[i].done);
        ck_assert(!pthread_equal(errands[i].by, pthread_self()));
    }
}

SL_TEST(what_comes_at_the_end_is_done_at_once)
{
    struct errand before = {.call.run = run_errand}, after = {.call.run = run_errand};
    sl_registry_defer(registry, &before.call);
    sl_registry_stop(registry);
    ck_assert(before.done);
    sl_registry_defer(registry, &after.call);
    ck_assert(after.done);
}

SL_CASE(.setup = registry_case_setup, .teardown = registry_case_teardown)
