/* What `sluice load` does with engine caches: the command finds them, and no load fails or waits
 * for them. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "claims.h"
#include "range_server.h"
#include "run_sluice.h"
#include "sets_case.h"

static char file[SL_SCRATCH_PATH_BYTES + 32];

static void setup(void)
{
    sets_case_setup();
    snprintf(file, sizeof(file), "%s/m.yaml", sets_scratch);
}

SL_CASE(.setup = setup, .teardown = sets_case_teardown)

/* A spec of a model that is there, or not, with these keys of `sink.caches`. */
static void write_spec(bool there, const char *keys)
{
    char path[SL_SCRATCH_PATH_BYTES + 32];
    (void)mkdirat(sets_scratch_fd, "model", 0755);
    snprintf(path, sizeof(path), "%s/model/m.bin", sets_scratch);
    FILE *out = there ? fopen(path, "w") : NULL;
    if (out) {
        fputs("weights", out);
        fclose(out);
    }
    out = fopen(file, "w");
    fprintf(out,
            "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {uri: '%s'}\n"
            "readers: {attempts: 2}\nsink:\n  tmpfs: {path: '%s/out'}\n"
            "  caches: {path: '%s', url: '%s', trust: store, %s}\n",
            path, sets_scratch, sets_path, sets_store, keys);
    fclose(out);
}

SL_TEST(the_command_finds_its_caches_by_the_environment)
{
    struct ran ran = {0};
    char wanted[SL_SCRATCH_PATH_BYTES + 64];
    snprintf(sets_store, sizeof(sets_store), "%s/store/sets/", sets_scratch);
    write_spec(true, "save: true");
    RUN(&ran, "load", file, "--", "sh", "-c",
        "mkdir -p $VLLM_CACHE_ROOT && echo code >$VLLM_CACHE_ROOT/x && env");
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    snprintf(wanted, sizeof(wanted), "TRITON_CACHE_DIR=%s/triton\n", sets_path);
    ck_assert_msg(strstr(ran.out, wanted) != NULL, "%s", ran.out);
    RUN(&ran, "caches", "save", file);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    sets_forget();
    RUN(&ran, "load", file, "--", "sh", "-c", "cat $VLLM_CACHE_ROOT/x");
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    ck_assert_str_eq(ran.out, "code\n");
    ran_release(&ran);
}

/* The engine would run what others can write there. */
SL_TEST(a_command_is_not_led_to_a_folder_of_others)
{
    struct ran ran = {0};
    snprintf(sets_store, sizeof(sets_store), "%s/store/sets/", sets_scratch);
    write_spec(true, "variant: a");
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches", 0755), 0);
    ck_assert_int_eq(fchmodat(sets_scratch_fd, "caches", 0777, 0), 0);
    RUN(&ran, "load", file, "--", "env");
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    ck_assert_ptr_null(strstr(ran.out, "TRITON_CACHE_DIR"));
    ck_assert_msg(strstr(ran.err, "the engine starts cold") != NULL, "%s", ran.err);
    ran_release(&ran);
}

/* The time for them is a day: the test would not end. */
SL_TEST(a_load_that_failed_waits_for_no_caches)
{
    struct ran ran = {0};
    struct sl_server *server = sl_server_start();
    SL_SCRIPT(server, {.fault = SL_FAULT_STALL, .after = -1});
    snprintf(sets_store, sizeof(sets_store), "%s", sl_server_url(server, "/sets/"));
    write_spec(false, "restoreSeconds: 86400");
    RUN(&ran, "load", file, "--attempts", "1000", "--stall-seconds", "3600");
    ck_assert_msg(ran.exit_code == 4, "%d: %s", ran.exit_code, ran.err);
    sl_server_stop(server);
    ran_release(&ran);
}
