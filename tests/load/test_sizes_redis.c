/*
 * Every length that a Redis server says, claimed from 0 to 2^64-1: of values, pieces of values,
 * arrays, and of tensors in a table that its STRLEN agrees with. Each command ends soon, in little
 * memory, with the one code that fits. More claims come from a seed (seed.h).
 */
#include <check.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claim_maker.h"
#include "claims.h"
#include "redis_reader.h"
#include "redis_server.h"
#include "seed.h"
#include "sizes_case.h"
#include "source.h"
#include "thread.h"
#include "tree.h"

enum {
    RANDOM_RUNS = 60,
    RANDOM_RUNS_WHOLE = 600,
    VALUE_BYTES = 100000,
    HEADER_BYTES = 100,
    HEAD_BYTES_MAX = 64 << 20,
    LIAR_BYTES = 4 << 20, /* what there is of a tensor that claims more */
};
static const uint64_t DIGITS_18 = UINT64_C(999999999999999999); /* a length has no more */

static struct sl_redis_server *server;
static char claim[40], reply[60];
static uint64_t value;
static bool negative;

/* ---- where the claim is made ----------------------------------------------------------------- */

/* A model of one tensor; what it claims to hold is not there if that is long. */
static void put_model(const struct claim_tensorizer *wanted, size_t there)
{
    static char data[LIAR_BYTES];
    char key[80];
    uint8_t head[16384];
    size_t bytes = claim_tensorizer_head(wanted, head);
    sl_redis_server_put(server, "m:header:0", 10, head, CLAIM_HEADER_AT);
    int key_bytes = snprintf(key, sizeof(key), "m:w:%d", CLAIM_HEADER_AT);
    sl_redis_server_put(server, key, (size_t)key_bytes, head + CLAIM_HEADER_AT,
                        bytes - CLAIM_HEADER_AT);
    key_bytes = snprintf(key, sizeof(key), "m:w:%" PRIu64, CLAIM_HEADER_AT + wanted->header_bytes);
    sl_redis_server_put(server, key, (size_t)key_bytes, data, there);
}

/* The answer to this and all later times that verb comes, behind which the connection ends. */
static void say(const char *verb, unsigned nth, const char *kind)
{
    snprintf(reply, sizeof(reply), "%s%s\r\n", kind, claim);
    sl_redis_server_fault(server, verb, nth, 1000, reply, *kind == ':' ? -1 : (long)strlen(reply));
}

static int code_of(enum sl_err_kind kind)
{
    return sl_err_row(kind)->exit_code;
}

/* A value of that length, where another one is known: `$-1` says that there is none. */
static int other_value(bool none_at_0)
{
    if (negative || (none_at_0 && value == 0))
        return code_of(SL_E_NOT_FOUND);
    return value > DIGITS_18 ? code_of(SL_E_NET) : code_of(SL_E_INTEGRITY);
}

static int claim_head(void)
{
    put_model(&claim_tensorizer, VALUE_BYTES);
    say("GET", 1, "$");
    if (negative)
        return code_of(SL_E_NOT_FOUND);
    bool fine = value && value <= HEAD_BYTES_MAX; /* its bytes never come */
    return fine || value > DIGITS_18 ? code_of(SL_E_NET) : code_of(SL_E_FORMAT);
}

static int claim_header(void)
{
    put_model(&claim_tensorizer, VALUE_BYTES);
    say("GET", 2, "$");
    return value == HEADER_BYTES ? code_of(SL_E_NET) : other_value(true);
}

static int claim_strlen(void)
{
    put_model(&claim_tensorizer, VALUE_BYTES);
    say("STRLEN", 1, ":");
    if (value == VALUE_BYTES)
        return 0;
    if (negative || value == 0)
        return code_of(SL_E_NOT_FOUND);
    return value > INT64_MAX ? code_of(SL_E_NET) : code_of(SL_E_INTEGRITY);
}

static int claim_piece(void)
{
    put_model(&claim_tensorizer, VALUE_BYTES);
    say("GETRANGE", 1, "$");
    return value == VALUE_BYTES ? code_of(SL_E_NET) : other_value(true);
}

static int claim_array(void)
{
    put_model(&claim_tensorizer, VALUE_BYTES);
    say("GET", 1, "*");
    return code_of(SL_E_NET);
}

static int claim_array_of_number(void)
{
    put_model(&claim_tensorizer, VALUE_BYTES);
    say("STRLEN", 1, "*");
    return code_of(SL_E_NET);
}

/* The table says it, and the server says so, too. The first bytes are there. */
static int claim_table(void)
{
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.shape = wanted.data_bytes = value;
    put_model(&wanted, LIAR_BYTES);
    say("STRLEN", 1, ":");
    if (value <= LIAR_BYTES)
        return 0;
    bool too_long = value > SL_OBJECT_BYTES_MAX - 2 * CLAIM_HEADER_AT;
    return too_long ? code_of(SL_E_FORMAT) : -1;
}

static int claim_header_in_table(void)
{
    enum { FIELDS = 30 };
    struct claim_tensorizer wanted = claim_tensorizer;
    wanted.header_bytes = value;
    put_model(&wanted, VALUE_BYTES);
    if (value >= FIELDS + 8 && value <= 4096) /* what claim_maker fills up */
        return 0;
    if (value == FIELDS)
        return code_of(SL_E_FORMAT);
    bool possible = value > 0 && value <= 256 << 20;
    return possible ? code_of(SL_E_INTEGRITY) : code_of(SL_E_FORMAT);
}

static const struct place {
    const char *words;
    int (*make)(void); /* the code that fits; -1: see expect() */
} places[] = {
    {"the length of the table", claim_head},
    {"the length of a tensor's header", claim_header},
    {"STRLEN", claim_strlen},
    {"the length of a piece", claim_piece},
    {"the length of an array", claim_array},
    {"the length of an array for a number", claim_array_of_number},
    {"a tensor in the table", claim_table},
    {"a tensor's header in the table", claim_header_in_table},
};

/* ---- what is done with it -------------------------------------------------------------------- */

enum command { INSPECT, PLAN, LOAD, CONVERT, COMMANDS };
static const char *const command_names[] = {"inspect", "plan", "load", "convert"};

static void run_command(enum command command, struct ran *ran)
{
    char to[sizeof(sizes_folder) + 40];
    const char *source = sl_redis_server_url(server, "m");
    snprintf(to, sizeof(to), "%s/%s", sizes_folder, command == LOAD ? "out" : "out.safetensors");
    if (command == LOAD)
        RUN(ran, "load", source, "--to", to, "--attempts", "1");
    else if (command == CONVERT)
        RUN(ran, "convert", source, to, "--attempts", "1");
    else
        RUN(ran, command_names[command], source, "--attempts", "1");
}

static bool fits(const struct place *place, enum command command, int code, int got)
{
    /* A load begins once more when something changed, and then gets the claim for the table. */
    if (place->make == claim_header && command == LOAD && code == code_of(SL_E_INTEGRITY))
        return got == code || got == code_of(value <= HEAD_BYTES_MAX ? SL_E_NET : SL_E_FORMAT);
    if (code >= 0)
        return got == code;
    if (command == INSPECT)
        return got == 0;
    if (value > UINT64_C(1) << 46)
        return got == code_of(SL_E_NO_SPACE);
    if (command == PLAN)
        return got == 0 || got == code_of(SL_E_NO_SPACE);
    /* Where there is room, the bytes are missed. */
    return got == code_of(SL_E_NO_SPACE) || got == code_of(SL_E_NOT_FOUND) ||
           got == code_of(SL_E_INTEGRITY);
}

/* Returns the ns of a processor that the command took. */
static uint64_t try_one(const struct place *place, enum command command)
{
    char what[300];
    struct ran ran = {0};
    negative = *claim == '-';
    value = negative ? UINT64_MAX : strtoull(claim, NULL, 10);
    server = sl_redis_server_start();
    int code = place->make();
    snprintf(what, sizeof(what), "%s of a claim of %s by %s", command_names[command], claim,
             place->words);
    run_command(command, &ran);
    ck_assert_msg(fits(place, command, code, ran.exit_code), "%s: %d instead of %d: %s", what,
                  ran.exit_code, code, ran.err);
    uint64_t used_ns = sizes_judge(what, &ran, SIZES_PEAK_KIB);
    ran_release(&ran);
    sl_redis_server_stop(server);
    sl_tree_remove(sizes_scratch, "out");
    unlinkat(sizes_scratch, "out.safetensors", 0);
    return used_ns;
}

/* ---- the tests ------------------------------------------------------------------------------- */

SL_TEST_LOOP(every_length_of_redis_is_judged_before_it_costs_anything, 0, (int)SL_COUNT(places))
{
    for (size_t i = (size_t)_i % SL_TEST_STEP; i < SIZES_CLAIMS; i += SL_TEST_STEP)
        for (enum command command = INSPECT; command < COMMANDS; command++) {
            snprintf(claim, sizeof(claim), "%s", sizes_claims[i]);
            try_one(&places[_i], command);
        }
}

/* As many as an int holds: room for so many is taken at once, and looked at when it is freed. */
SL_TEST(no_room_is_made_for_elements_that_are_only_announced)
{
    snprintf(claim, sizeof(claim), "%d", SL_REDIS_ELEMENTS_MAX);
    uint64_t few_ns = try_one(&places[4], INSPECT);
    snprintf(claim, sizeof(claim), "%d", INT_MAX);
    uint64_t many_ns = try_one(&places[4], INSPECT);
    ck_assert_msg(many_ns < 10 * few_ns + SL_NS_PER_S, "%d elements took %u ms", INT_MAX,
                  (unsigned)(many_ns / SL_NS_PER_MS));
}

SL_TEST(lengths_of_redis_from_a_seed_are_judged_too)
{
    uint64_t state = sl_test_seed();
    for (unsigned i = 0; i < sl_test_rounds(RANDOM_RUNS, RANDOM_RUNS_WHOLE); i += SL_TEST_STEP) {
        sizes_random(&state, claim, sizeof(claim));
        const struct place *place = &places[sl_test_draw(&state, SL_COUNT(places))];
        try_one(place, (enum command)sl_test_draw(&state, COMMANDS));
    }
}

SL_CASE(.setup = sizes_open, .teardown = sizes_close)
