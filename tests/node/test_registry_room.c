/* Room for deposits: what goes for one is dropped by another thread, and nobody waits for it but
 * the depositor. Room for loads: a refusal is remembered only as long as it is true. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "registry_case.h"
#include "registry_settle.h"

static struct {
    unsigned count;
    struct sl_err err;
} answered; /* guarded by lock */

static void on_answer(void *arg, const struct sl_err *why)
{
    (void)arg;
    SL_LOCKED(&lock);
    answered.count++;
    answered.err = why ? *why : (struct sl_err)SL_ERR_INIT;
    pthread_cond_broadcast(&moved);
}

static void await_answer(void)
{
    SL_LOCKED(&lock);
    while (!answered.count)
        pthread_cond_wait(&moved, &lock);
    ck_assert_uint_eq(answered.count, 1);
}

static unsigned answers(void)
{
    SL_LOCKED(&lock);
    return answered.count;
}

static const struct sl_derived_offer offer = {.name = "m",
                                              .key = "k",
                                              .holder = "fake",
                                              .identity = {1},
                                              .bytes = 50,
                                              .id = 7,
                                              .answer = on_answer};

/* m is in use, a and b are not: one of them has to go for the offer. */
static struct sl_model_ref *fill(void)
{
    memset(&answered, 0, sizeof(answered));
    define("m", 20, 1);
    define("a", 30, 2);
    define("b", 30, 3);
    struct sl_model_ref *ref = must("m");
    touch("a");
    touch("b");
    return ref;
}

SL_TEST(a_deposit_is_answered_when_there_is_room)
{
    struct sl_model_ref *ref = fill();
    fake.drops_gated = true;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &offer, &err), 1);
    ck_assert_uint_eq(answers(), 0);
    touch("m"); /* others are served meanwhile */
    touch("b");
    ck_assert_uint_eq(counts().held_bytes, 130); /* what goes is still there */
    permit(1);
    await_answer();
    ck_assert_uint_eq(counts().held_bytes, 100);
    ck_assert_int_eq(answered.err.kind, SL_OK);
    ck_assert_str_eq(fake.gone, "a ");
    ck_assert_int_eq(sl_registry_deposit_commit(registry, 7, NULL, 50, &err), 0);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.kept, 1);
    sl_registry_release(registry, ref);
}

/* Its bytes are being given to the service manager. */
static void deposit_and_keep(void)
{
    fake.keeps_gated = true;
    define("m", 20, 1);
    touch("m");
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &offer, &err), 0);
    ck_assert_int_eq(sl_registry_deposit_commit(registry, 7, NULL, 50, &err), 0);
    SL_LOCKED(&lock);
    while (!fake.keeping)
        pthread_cond_wait(&moved, &lock);
}

SL_TEST(what_is_evicted_while_it_is_kept_goes_when_it_is)
{
    uint64_t bytes = 0;
    deposit_and_keep();
    ck_assert_int_eq(sl_registry_evict_derived(registry, "m", "k", &bytes, &err), 0);
    ck_assert_uint_eq(bytes, 50);
    ck_assert_uint_eq(counts().held_bytes, 70);
    permit(1);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.kept, 1);
    ck_assert_uint_eq(fake.dropped, 1);
    ck_assert_uint_eq(counts().held_bytes, 20);
}

SL_TEST(what_somebody_has_by_then_stays)
{
    uint64_t bytes;
    const struct sl_derived_view view = {0};
    deposit_and_keep();
    ck_assert_int_eq(sl_registry_evict_derived(registry, "m", "k", &bytes, &err), 0);
    struct sl_model_ref *ref = sl_registry_hold_derived(registry, "m", "k", &view, "a test", &err);
    ck_assert_msg(ref, "%s", err.message);
    permit(1);
    sl_registry_settle(registry);
    ck_assert_uint_eq(fake.dropped, 0);
    sl_registry_release(registry, ref);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().held_bytes, 70);
    ck_assert_int_eq(sl_registry_evict_derived(registry, "m", "k", &bytes, &err), 0);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().held_bytes, 20);
}

SL_TEST(one_that_ends_meanwhile_is_answered_at_once)
{
    struct sl_model_ref *ref = fill();
    fake.drops_gated = true;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &offer, &err), 1);
    sl_registry_deposit_abort(registry, 7);
    await_answer();
    ck_assert_int_eq(answered.err.kind, SL_E_CANCELED);
    permit(1);
    sl_registry_settle(registry);
    ck_assert_uint_eq(answers(), 1);
    ck_assert_uint_eq(counts().held_bytes, 50);
    ck_assert_int_eq(sl_registry_deposit_commit(registry, 7, NULL, 50, &err), -1);
    sl_registry_release(registry, ref);
}

SL_TEST(what_cannot_be_dropped_refuses_it)
{
    struct sl_model_ref *ref = fill();
    fake.drop_fails = true;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &offer, &err), 1);
    await_answer();
    ck_assert_int_eq(answered.err.kind, SL_E_NO_SPACE);
    sl_registry_settle(registry);
    ck_assert_int_eq(sl_registry_deposit_commit(registry, 7, NULL, 50, &err), -1);
    ck_assert_uint_eq(counts().held_bytes, 80);
    sl_registry_release(registry, ref);
}

SL_TEST(several_that_go_are_awaited_together)
{
    struct sl_model_ref *ref = fill();
    struct sl_derived_offer large = offer;
    large.bytes = 75;
    fake.drops_gated = true;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &large, &err), 1);
    permit(1);
    SL_AWAIT(counts().residents == 3, "the end of one"); /* m, the other, and the deposit stay */
    ck_assert_uint_eq(answers(), 0);
    permit(1);
    await_answer();
    ck_assert_uint_eq(fake.dropped, 2);
    sl_registry_deposit_abort(registry, 7);
    ck_assert_uint_eq(answers(), 1);
    sl_registry_release(registry, ref);
}

/* As many as there are, however small. */
SL_TEST(hundreds_that_go_for_one_go)
{
    enum { SMALL = 300 };
    char name[16];
    reopen_with(SMALL, 1);
    for (unsigned i = 0; i < SMALL; i++) {
        snprintf(name, sizeof(name), "s%u", i);
        define(name, 1, i % 200);
        touch(name);
    }
    ck_assert_uint_eq(counts().held_bytes, SMALL);
    define("large", SMALL, 201);
    touch("large");
    ck_assert_uint_eq(counts().evictions, SMALL);
    ck_assert_uint_eq(counts().held_bytes, SMALL);
    ck_assert_uint_eq(counts().refusals, 0);
}

/* It needs nobody to go, but its room is still being given back. */
SL_TEST(what_others_drop_is_awaited_too)
{
    struct sl_model_ref *ref = fill();
    fake.drops_gated = true;
    ck_assert_int_eq(sl_registry_evict(registry, "a", NULL, &err), 0);
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &offer, &err), 1);
    ck_assert_uint_eq(answers(), 0);
    ck_assert_uint_eq(counts().held_bytes, 130);
    permit(1);
    await_answer();
    ck_assert_int_eq(answered.err.kind, SL_OK);
    ck_assert_uint_eq(counts().held_bytes, 100);
    sl_registry_deposit_abort(registry, 7);
    sl_registry_release(registry, ref);
}

SL_TEST(the_end_of_the_registry_leaves_the_answer_to_the_abort)
{
    struct sl_model_ref *ref = fill();
    fake.drops_gated = true;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &offer, &err), 1);
    permit(1);
    sl_registry_stop(registry);
    sl_registry_deposit_abort(registry, 7);
    ck_assert_uint_eq(answers(), 1);
    sl_registry_release(registry, ref);
}

SL_TEST(who_needs_no_room_is_not_answered_later)
{
    struct sl_derived_offer small = offer;
    struct sl_model_ref *ref = fill();
    small.bytes = 20;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &small, &err), 0);
    sl_registry_deposit_abort(registry, 7);
    ck_assert_uint_eq(answers(), 0);
    small.bytes = 101;
    ck_assert_int_eq(sl_registry_deposit_begin(registry, &small, &err), -1);
    ck_assert_str_eq(err.code, "budget");
    ck_assert_uint_eq(answers(), 0);
    sl_registry_release(registry, ref);
}

/* ---- a refusal ends with its reason ---------------------------------------------------------- */

/* There is no room for c while somebody has a; it is asked for once, and not again for an hour. */
static struct sl_model_ref *refuse_c(void)
{
    define("a", 60, 1);
    define("c", 60, 2);
    struct sl_model_ref *ref = must("a");
    refused("c", SL_E_NO_SPACE, "'a' 60 bytes (1 reference)");
    ck_assert_ptr_null(strstr(err.message, "a moment ago"));
    refused("c", SL_E_NO_SPACE, "a moment ago");
    ck_assert_uint_eq(fake.begun, 2);
    return ref;
}

SL_TEST(who_was_refused_room_is_served_when_a_reference_has_ended)
{
    sl_registry_release(registry, refuse_c());
    touch("c");
    ck_assert_str_eq(fake.gone, "a ");
}

SL_TEST(who_was_refused_room_is_served_when_the_budget_was_raised)
{
    struct sl_model_ref *ref = refuse_c();
    sl_registry_set_budget(registry, 119);
    refused("c", SL_E_NO_SPACE, "a moment ago");
    sl_registry_set_budget(registry, 120);
    touch("c");
    sl_registry_release(registry, ref);
}

/* What a new budget says on stderr. */
static void set_budget(uint64_t bytes, char text[1024])
{
    int kept = dup(STDERR_FILENO), file = memfd_create("log", MFD_CLOEXEC);
    ck_assert(kept >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    sl_registry_set_budget(registry, bytes);
    dup2(kept, STDERR_FILENO);
    ssize_t got = pread(file, text, 1023, 0);
    ck_assert_int_ge(got, 0);
    text[got] = 0;
    close(kept);
    close(file);
}

SL_TEST(a_budget_below_what_stays_says_so)
{
    char text[1024];
    define_config("b", 40, 1, true, true);
    define("a", 40, 1);
    touch("b");
    touch("a");
    set_budget(60, text); /* "a" goes */
    ck_assert_str_eq(text, "");
    set_budget(39, text);
    ck_assert_ptr_nonnull(strstr(text, "a budget of 39 bytes is less than the 40 bytes that cannot "
                                       "be evicted: 'b' 40 bytes (pinned by the config)"));
    set_budget(40, text);
    ck_assert_str_eq(text, "");
}

SL_TEST(who_was_refused_room_is_served_when_something_was_unpinned)
{
    define("a", 60, 1);
    define("c", 60, 2);
    touch("a");
    ck_assert_int_eq(sl_registry_pin(registry, "a", true, &err), 0);
    refused("c", SL_E_NO_SPACE, "(pinned)");
    refused("c", SL_E_NO_SPACE, "a moment ago");
    ck_assert_int_eq(sl_registry_pin(registry, "a", false, &err), 0);
    touch("c");
}

SL_TEST(who_was_refused_room_is_served_when_a_load_has_ended)
{
    fake.gated = true;
    define_config("a", 60, 1, false, true);
    await_admitted(1);
    define("c", 60, 2);
    refused("c", SL_E_NO_SPACE, "(being loaded)");
    permit(2);
    sl_registry_settle(registry);
    touch("c");
}

/* Its client used it and went, a moment before its load has ended. */
SL_TEST(a_load_that_is_about_to_end_is_awaited)
{
    fake_clock_hold(); /* half a second lasts as long as it takes */
    fake.gated = fake.landed = true;
    define_config("a", 60, 1, false, true);
    await_admitted(1);
    define("c", 60, 2);
    ck_assert_int_eq(sl_registry_load(registry, "c", &err), 0);
    fake_clock_await(500 * SL_NS_PER_MS);
    permit(2);
    sl_registry_settle(registry);
    touch("c");
    ck_assert_str_eq(fake.gone, "a ");
    fake_clock_release();
}

SL_TEST(what_failed_for_another_reason_is_not_tried_for_room)
{
    sl_registry_release(registry, refuse_c());
    fake.fail = SL_E_INTEGRITY;
    refused("c", SL_E_INTEGRITY, "the fake fails");
    fake.fail = SL_OK;
    refused("c", SL_E_INTEGRITY, "a moment ago");
}

/* ---- what volumes asked for ------------------------------------------------------------------ */

static struct sl_model_ref *hold_for_a_volume(const char *name, unsigned bytes)
{
    const struct sl_model_options wanted = {
        .origin = SL_MODEL_OF_REQUEST, .passing = true, .of_volume = true};
    ck_assert_int_eq(define_as(name, bytes, 9, &wanted, "keep-old"), 0);
    struct sl_model_ref *ref = sl_registry_wait_until(registry, name, SL_REF_VOLUME, "a pod", NULL,
                                                      UINT64_MAX, NULL, &err);
    ck_assert_msg(ref, "%s", err.message);
    return ref;
}

/* The name is a hash of the URI, which confirms one that was guessed. */
SL_TEST(a_refusal_names_nothing_that_volumes_asked_for)
{
    struct sl_model_ref *first = hold_for_a_volume("uri-1234", 40);
    struct sl_model_ref *second = hold_for_a_volume("uri-5678", 10);
    define("a", 20, 1);
    define("c", 60, 2);
    struct sl_model_ref *ref = must("a");
    refused("c", SL_E_NO_SPACE, "'a' 20 bytes (1 reference), 2 models of volumes 50 bytes;");
    ck_assert_ptr_null(strstr(err.message, "uri-"));
    sl_registry_release(registry, first);
    sl_registry_release(registry, second);
    sl_registry_release(registry, ref);
}

/* Its name is a hash, which tells nobody anything. */
SL_TEST(a_refusal_says_by_which_uri_a_model_was_asked_for)
{
    const struct sl_model_options wanted = {.origin = SL_MODEL_OF_REQUEST, .passing = true};
    ck_assert_int_eq(define_as("uri-1234", 200, 9, &wanted, "keep-old"), 0);
    refused("uri-1234", SL_E_NO_SPACE,
            "the model 'memory://m/200/9' needs 200 bytes, and the budget of all models is 100 "
            "bytes: raise budgetBytes (node.budget of the chart)");
    ck_assert_int_eq(define_as("uri-5678", 70, 9, &wanted, "keep-old"), 0);
    struct sl_model_ref *ref = must("uri-5678");
    define("c", 60, 2);
    refused("c", SL_E_NO_SPACE, "'memory://m/70/9' 70 bytes (1 reference); release or unpin one");
    sl_registry_release(registry, ref);
}

SL_TEST(who_asks_by_its_name_finds_nothing_that_volumes_asked_for)
{
    struct sl_derived_offer wanted = offer;
    wanted.name = "uri-1234";
    struct sl_model_ref *ref = hold_for_a_volume(wanted.name, 40);
    refused(wanted.name, SL_E_NOT_FOUND, "no model is called 'uri-1234' here: define it in");
    ck_assert_uint_eq(sl_registry_placement(registry, wanted.name), 0);
    ck_assert_int_lt(sl_registry_deposit_begin(registry, &wanted, &err), 0);
    ck_assert_str_eq(err.message, "no model is called 'uri-1234' here");
    ck_assert_ptr_null(
        sl_registry_hold_derived(registry, wanted.name, "k", &wanted.view, "", &err));
    ck_assert_str_eq(err.message, "no model is called 'uri-1234' here");
    sl_registry_release(registry, ref);
}

SL_CASE(.setup = registry_case_setup, .teardown = registry_case_teardown)
