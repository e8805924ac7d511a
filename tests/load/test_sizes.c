/*
 * Whoever claims a size (a server, a listing, a file, a header in it) is believed nothing that
 * costs memory or time: claims by sources by commands, all of a small product and as many more from
 * a seed (seed.h). Each run ends soon, in little memory, with one sentence and the code that
 * fits.
 */
#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claim_server.h"
#include "claims.h"
#include "gather.h"
#include "gguf_maker.h"
#include "load.h"
#include "range_server.h"
#include "seed.h"
#include "sizes_case.h"
#include "spec_case.h"
#include "stores.h"
#include "thread.h"
#include "tree.h"

enum { SHARDS = CLAIM_SERVER_OBJECTS, RANDOM_RUNS = 60, RANDOM_RUNS_WHOLE = 600 };

static struct sl_server *server;
static char source[SL_SCRATCH_PATH_BYTES + 64];
static char claim[40];

/* ---- liars ----------------------------------------------------------------------------------- */

/* Before the claim changes: its threads read it no more. */
static void be_silent(void)
{
    sl_server_handle(server, NULL, NULL);
}

static void say_length(void)
{
    static char head[200];
    snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nETag: \"v\"\r\nContent-Length: %s\r\n\r\nbody",
             claim);
    sl_server_handle(server, NULL, NULL);
    SL_SCRIPT(server, {.fault = SL_FAULT_HEAD, .text = head});
}

static uint64_t value_of(const char *text)
{
    return *text == '-' ? 0 : strtoull(text, NULL, 10);
}

static void make_safetensors(const char *name)
{
    char json[300], head[308];
    int bytes =
        snprintf(json, sizeof(json),
                 "{\"w\":{\"dtype\":\"U8\",\"shape\":[%s],\"data_offsets\":[0,%s]}}", claim, claim);
    sl_put_le64((uint8_t *)head, (uint64_t)bytes);
    memcpy(head + 8, json, (size_t)bytes);
    sizes_make_file(name, head, 8 + (size_t)bytes,
                    sl_add_capped(value_of(claim), 8 + (uint64_t)bytes));
}

static void make_gguf(const char *name)
{
    enum { I8 = 24, ALIGNED = 96 };
    struct sl_buf file;
    const uint64_t shape[] = {*claim == '-' ? (uint64_t)strtoll(claim, NULL, 10) : value_of(claim)};
    begin(&file, 1, 0);
    put_tensor(&file, "w", 1, shape, I8, 0);
    put_zeros(&file, ALIGNED - file.used);
    sizes_make_file(name, file.data, file.used, sl_add_capped(value_of(claim), ALIGNED));
    sl_buf_release(&file);
}

/* As many tensors as shards, in a file each, with an index of them. */
static void make_shards(void)
{
    char name[40];
    struct sl_buf index = SL_BUF_INIT(65536);
    ck_assert_int_eq(sl_buf_printf(&index, NULL, "{\"weight_map\":{"), 0);
    for (int i = 0; i < SHARDS; i++) {
        char json[300], head[308];
        snprintf(name, sizeof(name), "s%02d.safetensors", i);
        int bytes = snprintf(json, sizeof(json),
                             "{\"w%d\":{\"dtype\":\"U8\",\"shape\":[%s],\"data_offsets\":[0,%s]}}",
                             i, claim, claim);
        sl_put_le64((uint8_t *)head, (uint64_t)bytes);
        memcpy(head + 8, json, (size_t)bytes);
        sizes_make_file(name, head, 8 + (size_t)bytes,
                        sl_add_capped(value_of(claim), 8 + (uint64_t)bytes));
        ck_assert_int_eq(sl_buf_printf(&index, NULL, "%s\"w%d\":\"%s\"", i ? "," : "", i, name), 0);
    }
    ck_assert_int_eq(sl_buf_printf(&index, NULL, "}}"), 0);
    sizes_make_file("model.safetensors.index.json", index.data, index.used, 0);
    sl_buf_release(&index);
}

/* ---- where the claim is made ----------------------------------------------------------------- */

enum place { RANGE, LENGTH, LISTING, SPARSE, SAFETENSORS, GGUF, INDEX, PLACES };
static const char *const place_names[] = {
    "Content-Range", "Content-Length", "<Size>", "sparse file", "safetensors", "gguf", "shards"};

static void name_file(const char *name)
{
    snprintf(source, sizeof(source), "%s/%s", sizes_folder, name);
}

static void set_scene(enum place place)
{
    sl_server_handle(server, claim_server_lie, claim);
    if (place == RANGE || place == LENGTH)
        snprintf(source, sizeof(source), "%s", sl_server_url(server, "/m.bin"));
    if (place == LENGTH)
        say_length();
    if (place == LISTING)
        snprintf(source, sizeof(source), "s3://b/m/");
    if (place == SPARSE)
        sizes_make_file("m.bin", "", 0, value_of(claim)), name_file("m.bin");
    if (place == SAFETENSORS)
        make_safetensors("m.safetensors"), name_file("m.safetensors");
    if (place == GGUF)
        make_gguf("m.gguf"), name_file("m.gguf");
    if (place == INDEX)
        make_shards(), name_file("model.safetensors.index.json");
}

/* ---- what is done with it -------------------------------------------------------------------- */

enum command { PLAN, LOAD, CONVERT, SEAL, COMMANDS };
static const char *const command_names[] = {"plan", "load", "convert", "convert --encrypt"};

static void run_command(enum command command, struct ran *ran)
{
    char to[sizeof(sizes_folder) + 40], key[sizeof(sizes_folder) + 40];
    snprintf(to, sizeof(to), "%s/%s", sizes_folder,
             command == LOAD   ? "out"
             : command == SEAL ? "out.tensors"
                               : "out.safetensors");
    snprintf(key, sizeof(key), "%s/key", sizes_folder);
    if (command == PLAN)
        RUN(ran, "plan", source, "--attempts", "1");
    else if (command == LOAD)
        RUN(ran, "load", source, "--to", to, "--attempts", "1");
    else if (command == CONVERT)
        RUN(ran, "convert", source, to, "--attempts", "1");
    else
        RUN(ran, "convert", source, to, "--encrypt", "--seal-key-file", key, "--attempts", "1");
}

static int exit_of(enum sl_err_kind kind)
{
    return sl_err_row(kind)->exit_code;
}

/* A number that cannot be a length, or one beyond all: refused as what it is, whatever is done. */
static bool is_absurd(const char *text)
{
    return *text == '-' || strtoull(text, NULL, 10) > SL_OBJECT_BYTES_MAX;
}

/* The code of each claim in their order, where a machine's room does not decide: ROOM. */
enum { ROOM = -1 };
static const int8_t codes[PLACES][CONVERT + 1][SIZES_CLAIMS] = {
    [RANGE] = {{7, 0, 0, ROOM, ROOM, 6, 6, 6, 10, 10, 10, 7},
               {7, 0, 0, ROOM, ROOM, 6, 6, 6, 10, 10, 10, 7},
               {7, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 7}},
    [LENGTH] = {{0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7},
                {0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7},
                {10, 10, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}},
    [LISTING] = {{0, 0, 0, ROOM, ROOM, 10, 10, 10, 10, 10, 10, 10},
                 {0, 0, 0, ROOM, ROOM, 10, 10, 10, 10, 10, 10, 10},
                 {7, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10}},
    [SPARSE] = {{0, 0, 0, ROOM, ROOM, 6, 6, 6, 10, 10, 10, 0},
                {0, 0, 0, ROOM, ROOM, 6, 6, 6, 10, 10, 10, 0},
                {10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10}},
    [SAFETENSORS] = {{0, 0, 0, ROOM, ROOM, 6, 6, 10, 10, 10, 10, 10},
                     {0, 0, 0, ROOM, ROOM, 6, 6, 10, 10, 10, 10, 10},
                     {0, 0, 0, ROOM, ROOM, 6, 6, 10, 10, 10, 10, 10}},
    [GGUF] = {{0, 0, 0, ROOM, ROOM, 6, 6, 10, 10, 10, 10, 10},
              {0, 0, 0, ROOM, ROOM, 6, 6, 10, 10, 10, 10, 10},
              {0, 0, 0, ROOM, ROOM, 6, 6, 10, 10, 10, 10, 10}},
    [INDEX] = {{0, 0, 0, ROOM, ROOM, 10, 10, 10, 10, 10, 10, 10},
               {0, 0, 0, ROOM, ROOM, 10, 10, 10, 10, 10, 10, 10},
               {0, 0, 0, ROOM, ROOM, 10, 10, 10, 10, 10, 10, 10}},
};

/* Where files cannot be as long as a claim, they are refused for another reason. */
static void judge_exactly(enum place place, enum command command, size_t number, int code)
{
    int wanted = codes[place][SL_MIN(command, CONVERT)][number];
    bool other = wanted == ROOM || (place >= SPARSE && sizes_clipped);
    ck_assert_msg(other || code == wanted, "%s of a claim of %s by %s: %d instead of %d",
                  command_names[command], claim, place_names[place], code, wanted);
}

static void judge(enum place place, enum command command, const struct ran *ran)
{
    char what[200];
    int code = ran->exit_code;
    snprintf(what, sizeof(what), "%s of a claim of %s by %s", command_names[command], claim,
             place_names[place]);
    bool known = code == 0 || code == exit_of(SL_E_NO_SPACE) || code == exit_of(SL_E_FORMAT) ||
                 code == exit_of(SL_E_NET) || code == exit_of(SL_E_NOT_FOUND);
    ck_assert_msg(known, "%s: %d: %s", what, code, ran->err);
    bool lies_of_itself = place != SPARSE && place != LENGTH; /* a file is as long as it can be */
    if (is_absurd(claim) && lies_of_itself)
        ck_assert_msg(code == exit_of(SL_E_FORMAT) || code == exit_of(SL_E_NET), "%s: %d: %s", what,
                      code, ran->err);
    if (value_of(claim) >= UINT64_C(100000000000000000) && place != LENGTH)
        ck_assert_msg(code != 0, "%s", what);
    sizes_judge(what, ran, SIZES_PEAK_KIB);
}

static void clear_destination(void)
{
    sl_tree_remove(sizes_scratch, "out");
    unlinkat(sizes_scratch, "out.safetensors", 0);
    unlinkat(sizes_scratch, "out.tensors", 0);
}

/* Honest bytes of that size would be written, and there is room for them on large machines. */
static bool is_costly(enum place place, enum command command)
{
    bool local = place >= SPARSE;
    uint64_t value = value_of(claim);
    return local && command != PLAN && value >= (UINT64_C(1) << 22) && value <= (UINT64_C(1) << 46);
}

/* The code; -1 if it was not tried. */
static int try_one(enum place place, enum command command)
{
    struct ran ran = {0};
    if (is_costly(place, command))
        return -1;
    set_scene(place);
    run_command(command, &ran);
    judge(place, command, &ran);
    int code = ran.exit_code;
    ran_release(&ran);
    clear_destination();
    return code;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void start_server(void)
{
    server = sl_server_start();
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, ""), 1);
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
}

static void setup(void)
{
    sizes_open();
    start_server();
}

static void teardown(void)
{
    sl_server_stop(server);
    sizes_close();
}

SL_TEST_LOOP(every_claim_is_judged_before_it_costs_anything, 0, PLACES)
{
    enum place place = (enum place)_i;
    for (size_t i = (size_t)_i % SL_TEST_STEP; i < SIZES_CLAIMS; i += SL_TEST_STEP)
        for (enum command command = PLAN; command < COMMANDS; command++) {
            be_silent();
            snprintf(claim, sizeof(claim), "%s", sizes_claims[i]);
            int code = try_one(place, command);
            if (code >= 0)
                judge_exactly(place, command, i, code);
        }
}

SL_TEST(claims_from_a_seed_are_judged_too)
{
    uint64_t state = sl_test_seed();
    for (unsigned i = 0; i < sl_test_rounds(RANDOM_RUNS, RANDOM_RUNS_WHOLE); i += SL_TEST_STEP) {
        /* What a server keeps of its requests would be ours when we fork, and then the child's. */
        sl_server_stop(server);
        start_server();
        sizes_random(&state, claim, sizeof(claim));
        enum place place = (enum place)sl_test_draw(&state, PLACES);
        try_one(place, (enum command)sl_test_draw(&state, COMMANDS));
    }
}

/* What a node does: the plan is made, and its size is held against the budget. */
static int admit_none(void *arg, const struct sl_plan *plan, char path[SL_PUBLISH_PATH_MAX],
                      char older[SL_PUBLISH_PATH_MAX], struct sl_err *problem)
{
    (void)path, (void)older;
    *(uint64_t *)arg = plan->sink_bytes;
    return sl_fail_code(problem, SL_E_NO_SPACE, "budget", "the budget is smaller");
}

SL_TEST(a_node_is_asked_for_room_before_anything_grows)
{
    uint64_t asked = 0;
    struct sl_err why = SL_ERR_INIT;
    struct rusage before, after;
    const struct sl_load_place place = {admit_none, &asked};
    be_silent();
    snprintf(claim, sizeof(claim), "100000000000000000");
    set_scene(RANGE);
    sl_autofree char *text = sl_asprintf(
        NULL,
        "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {uri: '%s'}\n"
        "sink: {tmpfs: {path: /unused}}\n",
        source);
    ck_assert_int_eq(parse(text), 0);
    getrusage(RUSAGE_SELF, &before);
    ck_assert_int_eq(sl_load_run_placed(specs.items, &place, NULL, NULL, NULL, &why), -1);
    getrusage(RUSAGE_SELF, &after);
    ck_assert_str_eq(why.code, "budget");
    ck_assert_uint_eq(asked, UINT64_C(100000000000000000));
    ck_assert_uint_lt(sizes_used_ns(&after) - sizes_used_ns(&before),
                      SIZES_SECONDS_MAX * SL_NS_PER_S);
    ck_assert(sizes_sanitized || after.ru_maxrss - before.ru_maxrss < SIZES_PEAK_KIB);
    spec_case_reset();
}

/* A safetensors file of one tensor of this shape, all of it holes. */
static void make_shaped(uint64_t a, uint64_t b, uint64_t c)
{
    char json[300], head[308];
    uint64_t total = a * b * c;
    int bytes = snprintf(json, sizeof(json),
                         "{\"w\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64
                         "],\"data_offsets\":[0,%" PRIu64 "]}}",
                         a, b, c, total);
    sl_put_le64((uint8_t *)head, (uint64_t)bytes);
    memcpy(head + 8, json, (size_t)bytes);
    sizes_make_file("m.safetensors", head, 8 + (size_t)bytes, total + 8 + (uint64_t)bytes);
    name_file("m.safetensors");
}

static int plan_shaped(const char *more, struct sl_plan **plan, struct sl_err *why)
{
    const struct sl_source_config config = {.attempts = 1};
    sl_autofree char *text = sl_asprintf(
        NULL, HEAD "source: {uri: '%s'}\nreaders: {rangeBytes: 64KiB}\n%s", source, more);
    *plan = NULL;
    *why = (struct sl_err)SL_ERR_INIT;
    ck_assert_msg(parse(text) == 0, "%s", sl_buf_string(&complaints));
    const struct sl_plan_output wanted = sl_plan_output_of_spec(specs.items);
    return sl_plan_make(specs.items, &wanted, &config, plan, why);
}

#define HALF                                                                                       \
    "tensors: {shard: {rank: 0, of: 2, rules: [{match: w, dim: 1}]}}\n"                            \
    "sink: {tmpfs: {path: /t, layout: safetensors}}\n"

SL_TEST(there_are_never_too_many_ranges)
{
    enum { RANGES_MAX = 256 * 1024, CUT_AT_PAGES = 2 };
    struct sl_plan *plan;
    struct sl_err why;
    make_shaped(UINT64_C(100000000), 1000000000, 1);
    ck_assert_int_eq(plan_shaped("sink: {tmpfs: {path: /t}}\n", &plan, &why), 0);
    ck_assert_uint_le(plan->range_count, RANGES_MAX + CUT_AT_PAGES);
    ck_assert_uint_ge(plan->range_count, RANGES_MAX / 2);
    ck_assert_uint_eq(plan->fetch_bytes, plan->sink_bytes);
    sl_plan_free(plan);
    make_shaped(UINT64_C(5000000000000000), 2, 10); /* as many runs of 10 bytes: a sparse */
    ck_assert_int_eq(plan_shaped(HALF, &plan, &why), 0);
    ck_assert_uint_le(plan->range_count, RANGES_MAX + CUT_AT_PAGES);
    sl_plan_free(plan);
    make_shaped(UINT64_C(500000000000), 2, 100000); /* runs that would be extents of their own */
    ck_assert_int_eq(plan_shaped(HALF, &plan, &why), -1);
    ck_assert_int_eq(why.kind, SL_E_FORMAT);
    ck_assert_msg(strstr(why.message, "tensor 'w' in 500000000000"), "%s", why.message);
    spec_case_reset();
}

SL_TEST(a_model_that_can_never_fit_does_not_cost_the_old_one)
{
    struct ran ran = {0};
    char to[sizeof(sizes_folder) + 40];
    snprintf(to, sizeof(to), "%s/out", sizes_folder);
    name_file("m.bin");
    sizes_make_file("m.bin", "old", 3, 3);
    RUN(&ran, "load", source, "--to", to);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    sizes_make_file("m.bin", "", 0, UINT64_C(100000000000000000));
    RUN(&ran, "load", source, "--to", to, "--set", "sink.tmpfs.replace=free-first");
    ck_assert_int_eq(ran.exit_code, exit_of(SL_E_NO_SPACE));
    ck_assert_int_eq(faccessat(sizes_scratch, "out/m.bin", R_OK, 0), 0);
    ck_assert_int_eq(faccessat(sizes_scratch, "out/.sluice/ready", R_OK, 0), 0);
    ran_release(&ran);
}

struct stopping {
    struct sl_cancel *cancel;
    unsigned pieces;
};

static int stop_at_first(void *arg, const uint8_t *data, size_t bytes, struct sl_err *why)
{
    struct stopping *stopping = arg;
    (void)data, (void)bytes, (void)why;
    if (!stopping->pieces++)
        sl_cancel_raise(stopping->cancel, 0);
    return 0;
}

/* A local file never keeps its reader waiting, so nothing but a look at the flag would end it. */
SL_TEST(a_signal_ends_the_reading_of_a_file_without_end)
{
    struct sl_err why = SL_ERR_INIT;
    struct stopping stopping = {sl_cancel_new(&why), 0};
    const struct sl_source_config config = {.cancel = stopping.cancel};
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) file = NULL;
    sl_autofree char *key = NULL;
    sizes_make_file("m.bin", "", 0, UINT64_C(1) << 46);
    name_file("m.bin");
    ck_assert_int_eq(sl_store_open(source, &config, &store, &key, &why), 0);
    ck_assert_int_eq(sl_source_open(store, key, 1, &file, &why), 0);
    ck_assert_int_eq(
        sl_gather_stream(file, 1, sl_source_bytes(file), stop_at_first, &stopping, &why), -1);
    ck_assert_int_eq(why.kind, SL_E_CANCELED);
    ck_assert_uint_eq(stopping.pieces, 1);
    sl_source_free(sl_steal(&file));
    sl_store_free(sl_steal(&store));
    sl_cancel_free(stopping.cancel);
}

SL_CASE(.setup = setup, .teardown = teardown)
