/* Places beside the usual ones: small models that pass large ones (which may, that one does at a
 * time and takes nobody's place, and the questions to sources on which that depends), and models of
 * the host, or of a GPU, beside loads onto other GPUs. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "registry_case.h"
#include "registry_settle.h"

enum { USER = 4001, OTHER = 4002 };

/* Sources that are asked how large a model is; guarded by lock. */
static struct {
    unsigned asked, ended;
    bool silent; /* they do not answer, until nobody wants to know any more … */
} sources;

/* … and never tell the size of a model that is called so. */
static const char mute[] = "mute";

static int measure(const struct sl_spec *spec, struct sl_cancel *cancel, uint64_t *bytes,
                   struct sl_err *why)
{
    unsigned long long size = 0;
    struct pollfd canceled = {sl_cancel_fd(cancel), POLLIN, 0};
    bool silent;
    {
        SL_LOCKED(&lock);
        silent = sources.silent;
        sources.asked++;
        pthread_cond_broadcast(&moved);
    }
    if (silent)
        poll(&canceled, 1, -1);
    ck_assert_int_eq(sscanf(spec->source.uri, "memory://m/%llu/", &size), 1);
    *bytes = size;
    SL_LOCKED(&lock);
    sources.ended++;
    pthread_cond_broadcast(&moved);
    if (sl_cancel_check(cancel, why) < 0)
        return -1;
    return strcmp(spec->metadata.name, mute) == 0 ? sl_fail(why, SL_E_NET, "the source is mute")
                                                  : 0;
}

static void await_sources(const unsigned *counter, unsigned count)
{
    SL_LOCKED(&lock);
    while (*counter < count)
        pthread_cond_wait(&moved, &lock);
}

static void load(const char *name, unsigned bytes)
{
    const struct sl_model_options wanted = {.origin = SL_MODEL_OF_REQUEST, .load = true};
    ck_assert_msg(define_as(name, bytes, 1, &wanted, "keep-old") == 0, "%s", err.message);
}

/* Two places, both of them taken by loads that do not end. */
static void setup(void)
{
    registry_case_setup();
    reopen_with_places(10000, 2);
    memset(&sources, 0, sizeof(sources));
    holder.measure = measure;
    fake.gated = true;
    load("big-a", 400);
    load("big-b", 400);
    await_admitted(2);
}

static void teardown(void)
{
    registry_case_teardown();
}

static bool shows_to(bool all, const char *part)
{
    struct sl_json json;
    sl_json_init(&json, 1 << 20);
    sl_json_object(&json);
    sl_registry_json(registry, all, &json);
    sl_json_end(&json);
    bool found = strstr(sl_json_text(&json, &err), part) != NULL;
    sl_json_release(&json);
    return found;
}

static bool shows(const char *part)
{
    return shows_to(true, part);
}

static bool is(const char *name, const char *state)
{
    char part[256];
    snprintf(part, sizeof(part), "{\"name\":\"%s\",\"state\":\"%s\"", name, state);
    return shows(part);
}

SL_TEST(a_small_model_passes_large_ones)
{
    load("large", 51); /* more than an eighth of 400 */
    load("small", 50);
    await_admitted(3);
    ck_assert(is("small", "loading"));
    ck_assert(shows("\"queue\":[{\"name\":\"large\",\"reason\":\"all 2 places for loads are "
                    "taken\"}]"));
    permit(4);
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().ready, 4);
    ck_assert_uint_eq(sources.asked, 2); /* never of who has a place at once */
}

SL_TEST(one_place_is_told_of_as_one)
{
    permit(2);
    sl_registry_settle(registry);
    reopen_with_places(10000, 1);
    holder.measure = measure;
    fake.gated = true;
    load("first", 400);
    await_admitted(1);
    load("second", 400);
    ck_assert(shows("{\"name\":\"second\",\"reason\":\"the one place for loads is taken\"}"));
    permit(2);
    sl_registry_settle(registry);
}

SL_TEST(who_waits_first_has_the_next_place)
{
    load("large", 100);
    load("small", 1);
    await_admitted(3);
    ck_assert(is("large", "queued"));
    load("late", 100);
    load("tiny", 1);
    ck_assert_int_eq(sl_registry_forget(registry, "big-a", &err), 0);
    await_admitted(4);
    ck_assert(is("large", "loading") && is("small", "loading"));
    ck_assert(is("late", "queued") && is("tiny", "queued")); /* one at a time, by the other place */
}

/* And nobody of what a volume asked for. */
SL_TEST_LOOP(what_waits_for_the_small_place_is_told_so, 0, 2)
{
    const struct sl_model_options wanted = {
        .origin = SL_MODEL_OF_REQUEST, .load = true, .passing = true, .of_volume = _i};
    reopen_with_places(10000, 2);
    holder.measure = measure;
    fake.gated = true;
    load("big-a", 400);
    load("mid", 100);
    await_admitted(2);
    load("big-c", 400);
    ck_assert_int_eq(define_as("small", 20, 1, &wanted, "keep-old"), 0);
    load("next", 20);
    await_sources(&sources.ended, 3);
    ck_assert(is("small", "queued")); /* beside one of 100 it is not small */
    ck_assert_int_eq(sl_registry_forget(registry, "mid", &err), 0);
    await_admitted(4);
    ck_assert(is("big-c", "loading") && is("small", "loading"));
    ck_assert(shows("{\"name\":\"next\",\"reason\":\"all 2 places for loads are taken, and 'small' "
                    "has the one for small models\"}"));
    ck_assert(shows_to(false, _i ? "all 2 places for loads are taken, and so is the one for small "
                                   "models"
                                 : "and 'small' has the one for small models"));
    ck_assert_int_eq(shows_to(false, "'small'"), !_i);
}

SL_TEST(what_does_not_tell_its_size_waits_its_turn)
{
    load(mute, 1);
    load("small", 1);
    await_admitted(3);
    ck_assert(is(mute, "queued") && is("small", "loading"));
    ck_assert_uint_eq(sources.asked, 2);
    ck_assert_int_eq(sl_registry_forget(registry, "big-a", &err), 0);
    await_admitted(4);
    ck_assert(is(mute, "loading"));
}

SL_TEST(a_source_is_not_asked_of_what_has_a_place_by_now)
{
    sources.silent = true;
    load("small", 1);
    await_sources(&sources.asked, 1);
    ck_assert_int_eq(sl_registry_forget(registry, "big-a", &err), 0);
    await_sources(&sources.ended, 1);
    await_admitted(3);
    ck_assert(is("small", "loading"));
}

SL_TEST(a_source_is_not_asked_of_what_is_forgotten_nor_at_the_end)
{
    sources.silent = true;
    load("small", 1);
    await_sources(&sources.asked, 1);
    ck_assert_int_eq(sl_registry_forget(registry, "small", &err), 0);
    await_sources(&sources.ended, 1);
    load("other", 1);
    await_sources(&sources.asked, 2);
    sl_registry_stop(registry);
    ck_assert_uint_eq(sources.ended, 2);
}

SL_TEST(another_spec_is_another_question)
{
    sources.silent = true;
    load("changing", 100);
    await_sources(&sources.asked, 1);
    {
        SL_LOCKED(&lock);
        sources.silent = false;
    }
    load("changing", 10);
    await_admitted(3);
    ck_assert(is("changing", "loading"));
    ck_assert_uint_eq(sources.asked, 2);
}

/* A driver that hangs never gives a place back. */
SL_TEST(models_of_the_host_go_beside_loads_onto_gpus)
{
    static struct sl_holder on_gpu; /* outlives the test */
    on_gpu = holder;
    on_gpu.placement = SL_PLACEMENT(SL_SPACE_GPU);
    reopen_with_places(10000, 2);
    sl_registry_set_gpu_budget(registry, 0, 10000);
    fake.gated = true;
    load_at(&on_gpu, "gpu-a", 400);
    load("host-a", 400);
    await_admitted(2);
    load_at(&on_gpu, "gpu-b", 400);
    load("host-b", 400);
    ck_assert(is("gpu-b", "queued") && is("host-b", "queued")); /* a usual place will be free */
    ck_assert_int_eq(sl_registry_forget(registry, "host-a", &err), 0);
    await_admitted(4);
    ck_assert(is("gpu-b", "loading") && is("host-b", "loading"));
    load_at(&on_gpu, "gpu-c", 400);
    load("host-c", 400);
    ck_assert(is("gpu-c", "queued") && is("host-c", "queued")); /* one at a time */
    ck_assert_int_eq(sl_registry_forget(registry, "host-b", &err), 0);
    await_admitted(5);
    ck_assert(is("gpu-c", "queued") && is("host-c", "loading"));
}

static struct sl_holder on_gpus[3]; /* outlive the test */

static void reopen_with_gpus(void)
{
    reopen_with_places(10000, 2);
    for (unsigned gpu = 0; gpu < SL_COUNT(on_gpus); gpu++) {
        on_gpus[gpu] = holder;
        on_gpus[gpu].placement = SL_PLACEMENT(SL_SPACE_GPU + gpu);
        sl_registry_set_gpu_budget(registry, gpu, 10000);
    }
    fake.gated = true;
}

static void load_onto(unsigned gpu, const char *name)
{
    load_at(&on_gpus[gpu], name, 400);
}

SL_TEST(a_gpu_goes_beside_loads_onto_others)
{
    reopen_with_gpus();
    load_onto(0, "a");
    load_onto(0, "b");
    await_admitted(2);
    load_onto(0, "c");
    load_onto(1, "d");
    await_admitted(3);
    ck_assert(is("c", "queued") && is("d", "loading"));
    load_onto(1, "e");
    load_onto(2, "f");
    load("g", 400);
    await_admitted(5);
    ck_assert(is("c", "queued") && is("e", "queued") && is("f", "loading") && is("g", "loading"));
    ck_assert_int_eq(sl_registry_forget(registry, "d", &err), 0);
    await_admitted(6);
    ck_assert(is("c", "queued") && is("e", "loading"));
}

SL_TEST(a_gpu_waits_where_a_place_will_be_free)
{
    reopen_with_gpus();
    load("host", 400);
    load_onto(0, "a");
    await_admitted(2);
    load_onto(1, "b");
    ck_assert(is("b", "queued"));
    ck_assert_int_eq(sl_registry_forget(registry, "host", &err), 0);
    await_admitted(3);
    ck_assert(is("b", "loading"));
}

/* Where a driver hangs, people give what waits for it another GPU. */
SL_TEST(what_waits_goes_beside_where_its_new_spec_says)
{
    reopen_with_gpus();
    load_onto(0, "a");
    load_onto(0, "b");
    await_admitted(2);
    load_onto(0, "to-gpu");
    load_onto(0, "to-host");
    ck_assert(is("to-gpu", "queued") && is("to-host", "queued"));
    load_at(&on_gpus[1], "to-gpu", 300);
    await_admitted(3);
    ck_assert(is("to-gpu", "loading"));
    load("to-host", 300);
    await_admitted(4);
    ck_assert(is("to-host", "loading"));
}

SL_TEST(a_load_counts_where_it_is_whatever_its_new_spec_says)
{
    reopen_with_gpus();
    load_onto(0, "a");
    load_onto(0, "b");
    await_admitted(2);
    load("a", 300); /* when its load onto the GPU ends, which hangs */
    load("host", 400);
    load_onto(1, "gpu");
    await_admitted(4);
    ck_assert(is("host", "loading") && is("gpu", "loading"));
}

static void ask_by_uri(const char *name, unsigned bytes, uint32_t uid)
{
    char sharer[SL_SHARER_BYTES];
    snprintf(sharer, sizeof(sharer), "user %u", uid);
    const struct sl_model_options wanted = {
        .origin = SL_MODEL_OF_REQUEST, .load = true, .passing = true, .sharer = sharer};
    ck_assert_int_eq(define_as(name, bytes, 1, &wanted, "keep-old"), 0);
}

SL_TEST(nobody_gets_more_than_a_users_share_by_small_models)
{
    reopen_with_places(10000, 4);
    holder.measure = measure;
    fake.gated = true;
    load("big-a", 400);
    load("big-b", 400);
    ask_by_uri("c", 400, USER);
    ask_by_uri("d", 400, USER);
    await_admitted(4);
    ask_by_uri("more", 1, USER);
    ask_by_uri("of-another", 1, OTHER);
    await_admitted(5);
    ck_assert(is("of-another", "loading"));
    ck_assert(
        shows("{\"name\":\"more\",\"reason\":\"user 4001 has all places that it may take\"}"));
}

/* Its places are counted wherever its loads are. */
SL_TEST(a_user_has_its_place_again_when_a_small_load_ends)
{
    ask_by_uri("small", 1, USER);
    await_admitted(3);
    ask_by_uri("next", 400, USER);
    ck_assert_int_eq(sl_registry_forget(registry, "big-a", &err), 0);
    ck_assert_int_eq(sl_registry_forget(registry, "big-b", &err), 0);
    SL_AWAIT(counts().loading == 1, "the end of the large ones");
    ck_assert(is("small", "loading") && is("next", "queued"));
    permit(1);
    await_admitted(4);
    ck_assert(is("next", "loading"));
}

SL_TEST(all_are_loaded_whoever_passes_whom)
{
    char name[16];
    permit(2);
    sl_registry_settle(registry);
    fake.gated = false;
    for (unsigned i = 0; i < 60; i++) {
        snprintf(name, sizeof(name), "m-%u", i);
        load(name, i % 3 ? 1 : 80);
    }
    sl_registry_settle(registry);
    ck_assert_uint_eq(counts().ready, 62);
}

SL_CASE(.setup = setup, .teardown = teardown)
