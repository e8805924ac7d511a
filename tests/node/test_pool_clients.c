/* The pool's clients for people and for Python, against a pool of the test: `sluice pool`, and the
 * module in python/ on the shared library of this build. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "log.h"
#include "model_maker.h"
#include "pool_case.h"
#include "run_sluice.h"
#include "scratch.h"
#include "skip.h"

enum { OUTPUT_BYTES = 8192 };

static struct pool_case pool;
static char output[OUTPUT_BYTES];

static void setup(void)
{
    struct sl_err why = SL_ERR_INIT;
    sl_log_setup(SL_LOG_ERROR, false);
    pool_case_init(&pool);
    pool_case_fill_all(pool_case_add(&pool, "m", "a,b,c", 1000, 1 << 20));
    pool_case_fill(pool_case_add(&pool, "loading", "a,b", 1500, 1 << 20), 0, 1);
    sl_fail(&why, SL_E_TIMEOUT, "the load took longer than readers.timeoutSeconds");
    sl_pool_model_fail(pool_case_add(&pool, "late", "a,b", 1000, 1 << 20), &why);
    pool_case_start(&pool);
}

static void teardown(void)
{
    pool_case_release(&pool);
}

/* Its exit code; what it printed is in output. */
static int run(const char *program, const char *const *arguments)
{
    struct ran ran = {0};
    run_program(&ran, program, arguments);
    int code = ran.exit_code;
    snprintf(output, sizeof(output), "%s%s", ran.out ? ran.out : "", ran.err ? ran.err : "");
    ran_release(&ran);
    return code;
}

static int run_pool(const char *verb, const char *name, const char *more)
{
    const char *const words[] = {"pool", "--socket", pool.socket, verb, name, more, NULL};
    return run(getenv("SLUICE"), words);
}

static void expect_output(const char *text)
{
    ck_assert_msg(strstr(output, text) != NULL, "'%s' is not in: %s", text, output);
}

SL_TEST(people_see_what_is_there)
{
    if (!getenv("SLUICE"))
        SL_SKIP("SLUICE does not name the program");
    ck_assert_int_eq(run_pool("ls", NULL, NULL), 0);
    expect_output("loading");
    expect_output("ready");
    ck_assert_int_eq(run_pool("stat", "m", NULL), 0);
    expect_output("3 of 3 tensors");
    ck_assert_int_eq(run_pool("stat", "m", "--json"), 0);
    expect_output("\"holders\"");
    ck_assert_int_eq(run_pool("attach", "m", NULL), 0);
    expect_output("3 tensors");
    ck_assert_int_eq(run_pool("evict", "m", NULL), 0);
    ck_assert_int_eq(run_pool("stat", "m", NULL), 4);
    ck_assert_int_eq(run_pool("hug", "m", NULL), 2);
    pool_case_settle(&pool, 0, 0);
}

SL_TEST(a_command_holds_the_model_while_it_runs)
{
    const char *sluice = getenv("SLUICE");
    if (!sluice)
        SL_SKIP("SLUICE does not name the program");
    const char *words[] = {"pool", "--socket", pool.socket, "attach", "m", "--", sluice,
                           "pool", "--socket", pool.socket, "stat",   "m", NULL};
    ck_assert_int_eq(run(sluice, words), 0);
    expect_output("1 lease");
    words[10] = "hug";
    ck_assert_int_ne(run(sluice, words), 0);
    pool_case_settle(&pool, 0, 0);
}

SL_TEST(a_command_may_be_one_text_for_the_shell)
{
    const char *sluice = getenv("SLUICE");
    char text[600];
    if (!sluice)
        SL_SKIP("SLUICE does not name the program");
    snprintf(text, sizeof(text), "'%s' pool --socket '%s' stat m && exit 3", sluice, pool.socket);
    const char *words[] = {"pool",   "--socket", pool.socket, "attach", "m",
                           "--exec", text,       NULL,        "true",   NULL};
    ck_assert_int_eq(run(sluice, words), 3);
    expect_output("1 lease");
    words[7] = "--";
    ck_assert_int_eq(run(sluice, words), 2);
    expect_output("exclude each other");
    const char *idle[] = {"pool", "--socket", pool.socket, "ls", "--exec", "true", NULL};
    ck_assert_int_eq(run(sluice, idle), 2);
    pool_case_settle(&pool, 0, 0);
}

SL_TEST(a_command_ends_as_it_would_alone)
{
    static const struct {
        const char *script;
        int code;
    } cases[] = {
        {"exit 7", 7},
        {"kill -KILL $$", 128 + SIGKILL},
        {"trap 'exit 5' TERM; kill -TERM $PPID; while :; do sleep 0.01; done", 5},
        {"trap 'exit 6' INT; kill -INT $PPID; while :; do sleep 0.01; done", 6},
        {"kill -HUP $PPID; exec sleep 60", 128 + SIGHUP},
        {"trap 'exit 8' TERM; trap : HUP; kill -HUP $PPID; kill -HUP $PPID; kill -TERM $PPID; "
         "while :; do sleep 0.01; done",
         8},
    };
    if (!getenv("SLUICE"))
        SL_SKIP("SLUICE does not name the program");
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        const char *const words[] = {"pool", "--socket", pool.socket, "attach",        "m",
                                     "--",   "sh",       "-c",        cases[i].script, NULL};
        ck_assert_int_eq(run(getenv("SLUICE"), words), cases[i].code);
        ck_assert_str_eq(output, "");
        pool_case_settle(&pool, 0, 0);
    }
}

static bool holds_a_lease(void)
{
    struct sl_pool_counts counts;
    pool_case_counts(&pool, &counts);
    return counts.leases == 1;
}

/* The second half of this model never comes. */
SL_TEST(who_stops_waiting_for_a_model_is_told_so)
{
    static const struct {
        int signal;
        const char *words;
    } cases[] = {{SIGTERM, "attaching to 'loading': stopped by SIGTERM"},
                 {SIGINT, "attaching to 'loading': interrupted"}};
    if (!getenv("SLUICE"))
        SL_SKIP("SLUICE does not name the program");
    char folder[SL_SCRATCH_PATH_BYTES], out[SL_SCRATCH_PATH_BYTES + 8],
        log[SL_SCRATCH_PATH_BYTES + 8];
    int scratch = sl_scratch_open(folder);
    snprintf(out, sizeof(out), "%s/out", folder);
    snprintf(log, sizeof(log), "%s/log", folder);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        size_t bytes;
        const char *const words[] = {"pool", "--socket", pool.socket, "attach", "loading", NULL};
        pid_t pid = start_sluice(words, out, log);
        SL_AWAIT(holds_a_lease(), "the lease");
        kill(pid, cases[i].signal);
        ck_assert_int_eq(wait_sluice(pid), 128 + cases[i].signal);
        char *said = (char *)sl_model_read(folder, "log", &bytes);
        ck_assert_msg(said && strstr(said, cases[i].words), "%s", said ? said : "");
        free(said);
        pool_case_settle(&pool, 0, 0);
    }
    sl_scratch_close(scratch, folder);
}

SL_TEST(python_sees_the_same_memory)
{
    struct ran ran = {0};
    if (run_python(&ran, "pool_client.py", pool.socket) < 0)
        SL_SKIP("no Python that can open this build's library");
    ck_assert_msg(ran.exit_code == 0 && strcmp(ran.out, "ok\n") == 0 && !*ran.err, "%s%s", ran.out,
                  ran.err);
    ran_release(&ran);
    pool_case_settle(&pool, 0, 0);
}

/* Both lie on one page, and a page that was written to is a copy. */
SL_TEST(what_comes_later_is_not_hidden_by_a_write)
{
    struct sluice_error error;
    struct sluice_model *model = NULL;
    struct sluice_tensor a = {.size = sizeof(a)}, b = {.size = sizeof(b)};
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = "loading",
                                                  .socket = pool.socket,
                                                  .flags = SLUICE_PRIVATE,
                                                  .timeout_ms = 60000};
    ck_assert_msg(sluice_attach(&options, &model, &error) == 0, "%s", error.message);
    ck_assert_int_eq(sluice_find(model, "a", &a, &error), 0);
    ck_assert_int_eq(sluice_find(model, "b", &b, &error), 0);
    ck_assert_int_eq(sluice_wait_read(model, a.number, 60000, -1, &error), 0);
    ck_assert_int_eq(sluice_wait(model, a.number, 20, -1, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_TIMEOUT);
    pool_case_fill(pool.locked.models[1], 1, 2);
    ck_assert_int_eq(sluice_wait(model, a.number, 60000, -1, &error), 0);
    float *last = (float *)(uintptr_t)a.data + 1499;
    *last = 42;
    ck_assert(*(const float *)b.data == 2);
    sluice_detach(model);
    pool_case_settle(&pool, 0, 0);
}

/* DLPack's deleter, as a consumer calls it, at any time and from any thread. */
SL_TEST(a_dlpack_tensor_owns_its_model)
{
    struct managed { /* DLManagedTensor */
        struct {
            void *data;
            int32_t device[2], rank;
            uint8_t code, bits;
            uint16_t lanes;
            int64_t *shape, *strides;
            uint64_t offset;
        } tensor;
        void *context;
        void (*deleter)(struct managed *self);
    };
    struct sluice_error error;
    struct sluice_model *model = NULL;
    struct sluice_tensor a = {.size = sizeof(a)};
    const struct sluice_attach_options options = {
        .size = sizeof(options), .model = "m", .socket = pool.socket, .timeout_ms = 60000};
    ck_assert_msg(sluice_attach(&options, &model, &error) == 0, "%s", error.message);
    ck_assert_int_eq(sluice_find(model, "a", &a, &error), 0);
    const int64_t shape[] = {1000}, strides[] = {1};
    struct sluice_dlpack request = {.size = sizeof(request),
                                    .model = model,
                                    .data = (void *)(uintptr_t)a.data,
                                    .device_type = 1,
                                    .code = a.dlpack_code,
                                    .bits = a.dlpack_bits,
                                    .lanes = a.dlpack_lanes,
                                    .rank = 65,
                                    .shape = shape,
                                    .strides = strides};
    ck_assert_ptr_null(sluice_dlpack(&request, &error));
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    request.rank = 1;
    struct managed *managed = sluice_dlpack(&request, &error);
    ck_assert_ptr_nonnull(managed);
    sluice_detach(model);
    ck_assert_int_eq(managed->tensor.rank, 1);
    ck_assert_int_eq(managed->tensor.shape[0], 1000);
    ck_assert(((const float *)managed->tensor.data)[999] == 1); /* still mapped */
    managed->deleter(managed);
    pool_case_settle(&pool, 0, 0);
}

static void check_usage(int done, const char *phrase, struct sluice_error *error)
{
    ck_assert_int_eq(done, -1);
    ck_assert_int_eq(error->kind, SLUICE_USAGE);
    ck_assert_msg(strstr(error->message, phrase), "%s", error->message);
    memset(error, 0, sizeof(*error));
}

SL_TEST(structs_without_their_size_and_unknown_flags_are_refused)
{
    struct sluice_error error = {0};
    struct sluice_model *model = NULL;
    struct sluice_deposit *deposit = NULL;
    struct sluice_tensor tensor = {0};
    struct sluice_meta meta = {0};
    struct sluice_dlpack dlpack = {.device_type = 1};
    struct sluice_attach_options attach = {.model = "m", .socket = pool.socket};
    const struct sluice_deposit_options deposits = {
        .model = "m", .key = "k", .socket = pool.socket, .bytes = 8};
    check_usage(sluice_attach(&attach, &model, &error), "sizeof", &error);
    check_usage(sluice_deposit_begin(&deposits, &deposit, &error), "sizeof", &error);
    check_usage(sluice_dlpack(&dlpack, &error) ? 0 : -1, "sizeof", &error);
    dlpack = (struct sluice_dlpack){.size = sizeof(dlpack), .device_type = 1, .flags = 4};
    check_usage(sluice_dlpack(&dlpack, &error) ? 0 : -1, "flags has 0x4", &error);
    attach.size = sizeof(attach);
    attach.flags = 0x100;
    check_usage(sluice_attach(&attach, &model, &error), "flags has 0x100", &error);
    attach.flags = 0;
    ck_assert_msg(sluice_attach(&attach, &model, &error) == 0, "%s", error.message);
    check_usage(sluice_tensor_at(model, 0, &tensor, &error), "sizeof", &error);
    check_usage(sluice_find(model, "a", &tensor, &error), "sizeof", &error);
    check_usage(sluice_meta_at(model, 0, &meta, &error), "sizeof", &error);
    sluice_detach(model);
}

SL_CASE(.setup = setup, .teardown = teardown)
