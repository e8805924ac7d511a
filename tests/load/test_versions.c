/*
 * Loads of objects that change, from servers that say so in every way or not at all: generated
 * combinations of what tells versions apart, when the object is replaced, when the load is killed,
 * and what the user gave. Whatever comes together, the published bytes are wholly one version that
 * the server had meanwhile, never an old one without a word; and where there is a version, a killed
 * load goes on and a second one reads nothing.
 *
 * Which combinations and how many: seed.h. SLUICE_VERSIONS_RUN chooses one alone.
 */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "scratch.h"
#include "seed.h"
#include "store_kind.h"
#include "version_world.h"

/* The thread sanitizer lets no copy of a process with threads make threads: there, loads that would
 * be killed are canceled. */
#ifdef __SANITIZE_THREAD__
#define CAN_FORK 0
#else
#define CAN_FORK 1
#endif

enum {
    RUNS = 250,          /* combinations in the gate, and … */
    RUNS_WHOLE = 2000,   /* … where another seed is wanted */
    RUNS_TELLING = 200,  /* from so many on, all that may happen has happened */
    LOADS = 3,           /* of each combination */
    REQUESTS_MAX = 9000, /* of one world, whose server keeps them all */
    CONNECTIONS_MAX = 3500,
    HEAD = 128 * 1024, /* most that an opening reads */
};
enum scheme { HTTP, S3_OBJECT, S3_PREFIX, SCHEMES };
enum pin { NO_PIN, SHA256, SIDECAR, PINS };

/* What happens in one load, and before it. */
struct step {
    int put; /* version that is put before it, -1: none */
    struct sl_world_plan plan;
    bool killed; /* by SIGKILL, not canceled */
};
struct combination {
    uint64_t number;
    enum scheme scheme;
    enum sl_world_style style, mirror_style;
    enum pin pin;
    unsigned pinned; /* version */
    bool equal_lengths, mirror;
    unsigned mirror_version;
    unsigned connections;
    struct step steps[LOADS];
};

/* What is known of the load before. */
struct past {
    bool any, complete, killed;
    unsigned taken;    /* answers that it had read before it was killed */
    bool still;        /* one version from its begin until now */
    bool source_alone; /* no mirror came in */
    int published;     /* version that is there, -1: none, -2: something else */
};

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_world worlds[2]; /* of lengths that differ, and equal ones */
static struct {
    unsigned loads, published, already, resumed, refused, killed, blind;
} counts;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    for (int i = 0; i < 2; i++)
        sl_world_start(&worlds[i], i);
}

static void teardown(void)
{
    for (int i = 0; i < 2; i++)
        sl_world_stop(&worlds[i]);
    sl_scratch_close(scratch_fd, scratch);
}

/* ---- combinations ---------------------------------------------------------------------------- */

static bool chance(uint64_t *state, unsigned percent)
{
    return sl_test_draw(state, 100) < percent;
}

static void draw_step(uint64_t *state, const struct combination *c, unsigned number,
                      struct step *step)
{
    bool last = number == LOADS - 1;
    *step = (struct step){.put = -1};
    if (number && chance(state, 30))
        step->put = (int)sl_test_draw(state, SL_WORLD_VERSIONS);
    if (!last && chance(state, 25)) {
        step->plan.replace_at = 1 + (unsigned)sl_test_draw(state, SL_WORLD_RANGES + 2);
        step->plan.replace_by = (unsigned)sl_test_draw(state, SL_WORLD_VERSIONS);
    }
    if (!last && chance(state, number ? 25 : 60)) {
        step->plan.cancel_at = 1 + (unsigned)sl_test_draw(state, SL_WORLD_RANGES + 2);
        step->killed = CAN_FORK && chance(state, 10);
    }
    if (c->mirror && !last && chance(state, 70))
        step->plan.gone_at = 1 + (unsigned)sl_test_draw(state, SL_WORLD_RANGES + 2);
    step->plan.redirects = c->scheme == HTTP && chance(state, 25);
    step->plan.ignores_conditions = chance(state, 30);
}

static struct combination make_combination(uint64_t seed, uint64_t number)
{
    uint64_t state = seed ^ (number + 1) * 0xd1342543de82ef95u;
    struct combination c = {.number = number};
    c.scheme = (enum scheme)sl_test_draw(&state, SCHEMES);
    c.style = (enum sl_world_style)sl_test_draw(&state, SL_WORLD_STYLES);
    c.mirror_style = (enum sl_world_style)sl_test_draw(&state, SL_WORLD_STYLES);
    c.pin = chance(&state, 50) ? NO_PIN : (enum pin)(1 + sl_test_draw(&state, PINS - 1));
    c.pinned = chance(&state, 70) ? 0 : (unsigned)sl_test_draw(&state, SL_WORLD_VERSIONS);
    c.equal_lengths = chance(&state, 70);
    c.mirror = chance(&state, 20);
    c.mirror_version = chance(&state, 50) ? 0 : (unsigned)sl_test_draw(&state, SL_WORLD_VERSIONS);
    c.connections = chance(&state, 60) ? 1 : 3;
    for (unsigned i = 0; i < LOADS; i++)
        draw_step(&state, &c, i, &c.steps[i]);
    return c;
}

static const char *describe(const struct combination *c, unsigned number)
{
    static char text[1024];
    static const char *const schemes[] = {"http", "s3 object", "s3 prefix"};
    static const char *const pins[] = {"no hash", "sha256", "sidecar"};
    const struct step *step = &c->steps[number];
    snprintf(text, sizeof(text),
             "combination %" PRIu64 ", load %u: %s, %s, %s of version %u, %s lengths, %u "
             "connections, mirror: %s (version %u); put %d, replaced at %u by %u, %s at %u, gone "
             "at %u, %s%s",
             c->number, number + 1, schemes[c->scheme], sl_world_style_name(c->style), pins[c->pin],
             c->pinned, c->equal_lengths ? "equal" : "different", c->connections,
             c->mirror ? sl_world_style_name(c->mirror_style) : "none", c->mirror_version,
             step->put, step->plan.replace_at, step->plan.replace_by,
             step->killed ? "killed" : "canceled", step->plan.cancel_at, step->plan.gone_at,
             step->plan.redirects ? "redirected " : "",
             step->plan.ignores_conditions ? "ignores conditions" : "");
    return text;
}

/* ---- one load -------------------------------------------------------------------------------- */

static void write_place(struct sl_world *world, enum scheme scheme, unsigned place, char *text,
                        size_t bytes)
{
    if (scheme == HTTP)
        snprintf(text, bytes, "http://127.0.0.1:%u/bucket/%u/weights.bin",
                 sl_server_port(world->server), place);
    else
        snprintf(text, bytes, "s3://bucket/%u/%s", place, scheme == S3_OBJECT ? "weights.bin" : "");
}

static void make_spec(struct sl_world *world, const struct combination *c, struct sl_specs *specs)
{
    char source[256], mirror[256], more[2048];
    write_place(world, c->scheme, 0, source, sizeof(source));
    write_place(world, c->scheme, 1, mirror, sizeof(mirror));
    int used =
        snprintf(more, sizeof(more),
                 "source: {uri: \"%s\", s3: {anonymous: true, addressing: path, endpoint: "
                 "\"http://127.0.0.1:%u\"}%s%s%s}\n"
                 "readers: {connections: %u, rangeBytes: %d, attempts: 3, hedge: off}\n",
                 source, sl_server_port(world->server), c->mirror ? ", mirrors: [\"" : "",
                 c->mirror ? mirror : "", c->mirror ? "\"]" : "", c->connections, SL_WORLD_RANGE);
    if (c->pin == SHA256)
        used += snprintf(more + used, sizeof(more) - (size_t)used,
                         "verify: {sha256: {weights.bin: \"%s\"}}\n", world->sha256[c->pinned]);
    if (c->pin == SIDECAR)
        snprintf(more + used, sizeof(more) - (size_t)used, "verify: {sidecar: require}\n");
    sl_model_spec(specs, "", path, more);
}

struct outcome {
    int done; /* of the load; -2: it was killed */
    struct sl_load_result result;
    struct sl_err err;
};

/* In a process of its own, which the server kills at the request of the plan. */
static void load_in_child(struct sl_world *world, const struct sl_spec *spec,
                          const struct step *step, struct outcome *outcome)
{
    int go[2], status;
    char byte = 0;
    ck_assert_int_eq(pipe(go), 0);
    for (size_t i = 0; i < SL_COUNT(worlds); i++)
        sl_server_quiet(worlds[i].server);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        close(go[1]);
        if (read(go[0], &byte, 1) != 1)
            _exit(3);
        _exit(sl_load_run(spec, NULL, NULL, NULL, NULL) < 0 ? 1 : 0);
    }
    sl_world_begin(world, &step->plan, NULL, child);
    ck_assert_int_eq(write(go[1], "x", 1), 1);
    close(go[0]);
    close(go[1]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    outcome->done = WIFSIGNALED(status) ? -2 : WEXITSTATUS(status) == 0 ? 0 : -1;
}

static void load(struct sl_world *world, const struct combination *c, const struct step *step,
                 struct outcome *outcome)
{
    struct sl_specs specs;
    *outcome = (struct outcome){.err = SL_ERR_INIT};
    make_spec(world, c, &specs);
    if (step->killed) {
        load_in_child(world, &specs.items[0], step, outcome);
    } else {
        struct sl_cancel *cancel = sl_cancel_new(NULL);
        sl_world_begin(world, &step->plan, cancel, 0);
        outcome->done = sl_load_run(&specs.items[0], cancel, NULL, &outcome->result, &outcome->err);
        sl_world_end(world);
        if (outcome->done < 0 && outcome->err.kind == SL_E_CANCELED)
            outcome->done = -2;
        sl_cancel_free(cancel);
    }
    sl_world_end(world);
    sl_specs_release(&specs);
}

/* ---- the judgement --------------------------------------------------------------------------- */

static bool has_ready(void)
{
    return sl_model_exists(path, ".sluice/ready");
}

/* -1: nothing is there; -2: no version of all. */
static int published_version(const struct sl_world *world)
{
    size_t bytes;
    if (!has_ready())
        return -1;
    sl_autofree uint8_t *data = sl_model_read(path, "weights.bin", &bytes);
    int version = data ? sl_world_version_of(world, data, bytes) : -1;
    return version < 0 ? -2 : version;
}

static bool was_there(const struct sl_world *world, int version)
{
    return version >= 0 &&
           (world->locked.places[0].seen[version] || world->locked.places[1].seen[version]);
}

static unsigned versions_seen(const struct sl_world_place *place)
{
    unsigned count = 0;
    for (unsigned i = 0; i < SL_WORLD_VERSIONS; i++)
        count += place->seen[i];
    return count;
}

/* May a change in this load have gone unnoticed? Nobody can promise more, but it must be told. */
static bool is_blind(const struct combination *c, const struct sl_world_place *place)
{
    return c->pin == NO_PIN && c->equal_lengths && versions_seen(place) > 1 &&
           !sl_world_style_shows_change(place->style) && place->style != SL_WORLD_WEAK_EACH &&
           place->style != SL_WORLD_FORMS;
}

#define MUST(condition)                                                                            \
    ck_assert_msg(condition, "%s: not true that %s; published %d, before %d, result %d: %s",       \
                  describe(c, number), #condition, published, past->published, outcome->done,      \
                  outcome->err.message)

static void judge_published(const struct combination *c, unsigned number,
                            const struct sl_world *world, const struct past *past,
                            const struct outcome *outcome, int published)
{
    const struct step *step = &c->steps[number];
    const struct sl_load_result *result = &outcome->result;
    bool told = !step->killed; /* a child tells nothing but that it ended well */
    const struct sl_world_place *places = world->locked.places;
    bool blind = is_blind(c, &places[0]) || (c->mirror && is_blind(c, &places[1]));
    MUST(has_ready());
    if (c->pin != NO_PIN) {
        MUST(published == (int)c->pinned); /* kept bytes of it are as good as the server's */
    } else if (blind) {
        counts.blind += published == -2;
        MUST(!told || result->unversioned > 0 || was_there(world, published));
    } else {
        MUST(was_there(world, published));
    }
    if (!told)
        return;
    bool known = sl_world_style_shows_change(c->style) || c->pin != NO_PIN;
    if (!step->plan.gone_at) {
        MUST(!known || !result->unversioned);
        MUST(known || !sl_world_style_is_steady(c->style) || result->unversioned);
    }
    if (result->already || result->resumed)
        MUST(result->unversioned == 0);
    counts.already += result->already;
}

/* Nothing kept this load from its end. */
static bool must_succeed(const struct combination *c, unsigned number, const struct sl_world *world)
{
    const struct step *step = &c->steps[number];
    if (!sl_world_style_is_steady(c->style) || (step->plan.gone_at && !c->mirror))
        return false;
    if (step->plan.redirects && c->connections > 1)
        return false; /* a link may expire while its connection waits for a processor, again */
    if (step->plan.gone_at && !sl_world_style_is_steady(c->mirror_style))
        return false;
    for (unsigned i = 0; i < SL_WORLD_VERSIONS; i++)
        if (c->pin != NO_PIN && i != c->pinned &&
            (world->locked.places[0].seen[i] ||
             (step->plan.gone_at && world->locked.places[1].seen[i])))
            return false;
    return true;
}

/* Where a version is known, nothing is read twice. */
static void judge_thrift(const struct combination *c, unsigned number, struct sl_world *world,
                         const struct past *past, const struct outcome *outcome, int published)
{
    const struct step *step = &c->steps[number];
    const struct sl_load_result *result = &outcome->result;
    bool known = sl_world_style_shows_change(c->style) ||
                 (c->pin != NO_PIN && sl_world_style_is_steady(c->style));
    if (!past->any || !past->still || !past->source_alone || !known || step->plan.gone_at ||
        step->killed || versions_seen(&world->locked.places[0]) != 1)
        return;
    uint64_t total = world->bytes[world->locked.places[0].current];
    if (past->complete) {
        MUST(result->already);
        MUST(world->locked.sent <= HEAD);
    } else if (past->killed && !result->already && c->connections == 1 && past->taken >= 4) {
        MUST(result->resumed >= (past->taken - 3) * (uint64_t)SL_WORLD_RANGE);
        MUST(world->locked.sent <= total - result->resumed + HEAD);
    }
}

static void judge(const struct combination *c, unsigned number, struct sl_world *world,
                  const struct past *past, const struct outcome *outcome)
{
    int published = published_version(world);
    counts.loads++;
    counts.published += outcome->done == 0;
    counts.refused += outcome->done == -1;
    counts.killed += outcome->done == -2;
    counts.resumed += outcome->result.resumed > 0;
    if (outcome->done == -2) {
        MUST(world->locked.whole + 1 == c->steps[number].plan.cancel_at);
    } else if (must_succeed(c, number, world)) {
        MUST(outcome->done == 0);
    }
    if (outcome->done == 0) {
        judge_published(c, number, world, past, outcome, published);
        judge_thrift(c, number, world, past, outcome, published);
    } else {
        MUST(published == past->published || was_there(world, published));
        MUST(published != -2 || past->published == -2);
    }
}

static void remember(const struct sl_world *world, const struct step *step,
                     const struct outcome *outcome, struct past *past)
{
    *past = (struct past){.any = true,
                          .complete = outcome->done == 0,
                          .killed = outcome->done == -2,
                          .taken = world->locked.taken,
                          .still = versions_seen(&world->locked.places[0]) == 1,
                          .source_alone = !step->plan.gone_at,
                          .published = published_version(world)};
}

static void put_version(struct sl_world *world, int version, struct past *past)
{
    if (version < 0)
        return;
    past->still &= world->locked.places[0].current == (unsigned)version;
    world->locked.places[0].current = (unsigned)version;
}

static void run(const struct combination *c)
{
    struct sl_world *world = &worlds[c->equal_lengths];
    struct past past = {.published = -1};
    sl_scratch_close(scratch_fd, scratch);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    world->locked.places[0] = (struct sl_world_place){.style = c->style};
    world->locked.places[1] =
        (struct sl_world_place){.style = c->mirror_style, .current = c->mirror_version};
    world->locked.sidecar = c->pinned;
    world->locked.noise = c->number;
    for (unsigned i = 0; i < LOADS; i++) {
        struct outcome outcome;
        put_version(world, c->steps[i].put, &past);
        load(world, c, &c->steps[i], &outcome);
        judge(c, i, world, &past, &outcome);
        remember(world, &c->steps[i], &outcome, &past);
    }
    if (sl_server_request_count(world->server) > REQUESTS_MAX ||
        sl_server_connection_count(world->server) > CONNECTIONS_MAX) {
        sl_world_stop(world);
        sl_world_start(world, c->equal_lengths);
    }
}

static const struct sl_claim_case crossing_claims;

SL_TEST_OF(crossing_claims, whatever_comes_together_one_version_is_published)
{
    const char *wanted = getenv("SLUICE_VERSIONS_RUN");
    uint64_t seed = sl_test_seed(), first = wanted ? strtoull(wanted, NULL, 10) : 0;
    unsigned runs = wanted ? 1 : sl_test_rounds(RUNS, RUNS_WHOLE);
    for (uint64_t i = 0; i < runs; i += SL_TEST_STEP) {
        struct combination c = make_combination(seed, first + i);
        run(&c);
    }
    printf("%u loads: %u published, of these %u were there already and %u resumed; %u refused, %u "
           "killed; %u mixed where nobody could know, and told so\n",
           counts.loads, counts.published, counts.already, counts.resumed, counts.refused,
           counts.killed, counts.blind);
    if (runs / SL_TEST_STEP >= RUNS_TELLING) {
        ck_assert_uint_gt(counts.already, counts.loads / 20);
        ck_assert_uint_gt(counts.resumed, counts.loads / 40);
        ck_assert_uint_gt(counts.killed, counts.loads / 20);
    }
}

/* ---- one by one ------------------------------------------------------------------------------ */

static struct combination simple(enum sl_world_style style, enum pin pin)
{
    struct combination c = {.style = style, .pin = pin, .equal_lengths = true, .connections = 1};
    for (unsigned i = 0; i < LOADS; i++)
        c.steps[i].put = -1;
    return c;
}

/* Those that tell nothing and do not change in between. */
static const enum sl_world_style bare[] = {SL_WORLD_WEAK,    SL_WORLD_WEAK_EACH, SL_WORLD_NEW_DATE,
                                           SL_WORLD_NULL_ID, SL_WORLD_EMPTY_TAG, SL_WORLD_NONE};

SL_TEST_LOOP(a_killed_load_without_a_version_begins_anew, 0, (int)SL_COUNT(bare))
{
    struct combination c = simple(bare[_i], NO_PIN);
    c.steps[0].plan.cancel_at = SL_WORLD_RANGES;
    c.steps[1].plan.cancel_at = SL_WORLD_RANGES;
    c.steps[1].killed = CAN_FORK;
    c.steps[2].put = 1;
    run(&c);
    ck_assert_uint_eq(counts.killed, 2);
    ck_assert_uint_eq(counts.resumed, 0);
    ck_assert_int_eq(published_version(&worlds[1]), 1);
}

SL_TEST_LOOP(an_update_of_equal_length_is_seen_without_a_version, 0, (int)SL_COUNT(bare))
{
    struct combination c = simple(bare[_i], NO_PIN);
    c.steps[1].put = 1;
    run(&c);
    ck_assert_uint_eq(counts.published, LOADS);
    ck_assert_uint_eq(counts.already, 0);
    ck_assert_int_eq(published_version(&worlds[1]), 1);
}

SL_TEST_LOOP(a_hash_of_the_user_stands_in_for_a_version, 0, (int)SL_COUNT(bare))
{
    struct combination c = simple(bare[_i], SHA256);
    for (c.pin = SHA256; c.pin < PINS; c.pin++) {
        memset(&counts, 0, sizeof(counts));
        c.steps[0].plan.cancel_at = SL_WORLD_RANGES;
        run(&c);
        ck_assert_uint_eq(counts.resumed, 1);
        ck_assert_uint_eq(counts.already, 1);
        ck_assert_int_eq(published_version(&worlds[1]), 0);
    }
}

SL_TEST_LOOP(kept_bytes_of_another_version_do_not_fail_the_load, 0, (int)SL_COUNT(bare))
{
    struct combination c = simple(bare[_i], SHA256);
    for (c.pin = SHA256; c.pin < PINS; c.pin++) {
        memset(&counts, 0, sizeof(counts));
        c.pinned = 1;
        c.steps[0].plan.cancel_at = SL_WORLD_RANGES;
        c.steps[1].put = 1;
        run(&c);
        ck_assert_uint_eq(counts.published, 2);
        ck_assert_uint_eq(counts.already, 1);
        ck_assert_int_eq(published_version(&worlds[1]), 1);
    }
}

SL_TEST(bytes_that_match_no_hash_are_not_kept)
{
    struct combination c = simple(SL_WORLD_STRONG, SHA256);
    c.pinned = 1; /* the server has another version, all of which comes */
    c.steps[2].put = 1;
    run(&c);
    ck_assert_uint_eq(counts.refused, 2);
    ck_assert_uint_eq(counts.resumed, 0);
    ck_assert_int_eq(published_version(&worlds[1]), 1);
}

SL_TEST(a_date_counts_when_it_is_old)
{
    static const char then[] = "Sun, 22 Nov 2026 10:00:00 GMT";
    ck_assert(!sl_version_date_settled(then, then));
    ck_assert(!sl_version_date_settled(then, "Sun, 22 Nov 2026 10:00:01 GMT"));
    ck_assert(sl_version_date_settled(then, "Sun, 22 Nov 2026 10:00:02 GMT"));
    ck_assert(!sl_version_date_settled(then, "Sun, 22 Nov 2026 09:00:00 GMT"));
    ck_assert(!sl_version_date_settled(then, "just now"));
    ck_assert(!sl_version_date_settled("", then));
    ck_assert(!sl_version_date_settled("yesterday", then));
    ck_assert(sl_version_date_settled("Sun, 06 Nov 1994 08:49:37 GMT", "")); /* by our clock */
    ck_assert(!sl_version_date_settled("Fri, 31 Dec 2199 23:59:59 GMT", ""));
}

static const struct sl_claim_case crossing_claims = {
    .setup = setup, .teardown = teardown, .seconds = 150};

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
