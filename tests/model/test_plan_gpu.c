/* sluice plan of a model for memory of a GPU: what it takes there and what is free, or what is
 * missing. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "model_maker.h"
#include "run_sluice.h"
#include "scratch.h"
#include "tree.h"
#include "use_fake_cuda.h"

static char directory[SL_SCRATCH_PATH_BYTES], spec[SL_SCRATCH_PATH_BYTES + 16];
static int scratch;
static struct ran ran;

static void setup(void)
{
    struct sl_err err = SL_ERR_INIT;
    char text[1024];
    size_t bytes;
    scratch = sl_scratch_open(directory);
    uint8_t *model = sl_model_safetensors("a", 600 * 1024, &bytes); /* 2.4 MiB */
    ck_assert_int_eq(sl_tree_write(scratch, "m.safetensors", (const char *)model, bytes, &err), 0);
    free(model);
    snprintf(spec, sizeof(spec), "%s/spec.yaml", directory);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {uri: "
             "\"file://%s/m.safetensors\"}\nsink: {pool: {device: \"cuda:0\"}}\n",
             directory);
    ck_assert_int_eq(sl_tree_write(scratch, "spec.yaml", text, strlen(text), &err), 0);
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch, directory);
}

static void check_said(int exit_code, const char *text, const char *words)
{
    ck_assert_msg(ran.exit_code == exit_code, "%d: %s", ran.exit_code, ran.err);
    ck_assert_msg(strstr(text, words), "no '%s' in: %s", words, text);
}

SL_TEST(a_plan_tells_what_is_free_on_the_gpu)
{
    setenv("FAKE_CUDA_BYTES", "8388608", 1);
    RUN(&ran, "plan", spec);
    check_said(0, ran.out, "to the pool on cuda:0");
    check_said(0, ran.out, "destination        4.00 MiB"); /* in whole pieces of 2 MiB */
    check_said(0, ran.out, "memory of cuda:0, Fake 0");
    RUN(&ran, "plan", "--json", spec);
    check_said(0, ran.out, "\"destination_bytes\":4194304");
    check_said(0, ran.out, "\"fits\":true");
}

static void write_for_all(const char *more)
{
    struct sl_err err = SL_ERR_INIT;
    char text[1024];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {uri: "
             "\"file://%s/m.safetensors\"}\nsink: {pool: {device: \"cuda:all\"}}\n%s",
             directory, more);
    ck_assert_int_eq(sl_tree_write(scratch, "spec.yaml", text, strlen(text), &err), 0);
}

SL_TEST(a_plan_for_all_gpus_tells_of_each)
{
    setenv("FAKE_CUDA_DEVICES", "3", 1);
    setenv("FAKE_CUDA_BYTES", "8388608", 1);
    write_for_all("");
    RUN(&ran, "plan", spec);
    check_said(0, ran.out, "to the pool on cuda:all");
    check_said(0, ran.out, "destination        12.0 MiB");
    check_said(0, ran.out, "memory of cuda:0, Fake 0");
    check_said(0, ran.out, "memory of cuda:2, Fake 2");
    setenv("FAKE_CUDA_BYTES", "2097152", 1);
    RUN(&ran, "plan", spec);
    check_said(6, ran.err, "needs 4194304 bytes of memory of cuda:0, and 2097152 are free");
    write_for_all("tensors: {shard: {rank: 0, of: 2}}\n");
    RUN(&ran, "plan", spec);
    check_said(2, ran.err, "'shard' does not go with 'device: cuda:all'");
}

SL_TEST(a_gpu_that_is_too_small_is_6)
{
    setenv("FAKE_CUDA_BYTES", "2097152", 1);
    RUN(&ran, "plan", spec);
    check_said(6, ran.err, "needs 4194304 bytes of memory of cuda:0, and 2097152 are free");
}

SL_TEST(what_is_missing_is_9)
{
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    RUN(&ran, "plan", spec);
    check_said(9, ran.err, "CUDA_ERROR_NO_DEVICE");
    setenv("FAKE_CUDA_VERSION", "11020", 1);
    RUN(&ran, "plan", spec);
    check_said(9, ran.err, "NVIDIA's driver is too old");
}

SL_TEST(a_load_into_the_pool_is_the_daemons)
{
    RUN(&ran, "load", spec);
    check_said(2, ran.err, "only `sluice serve` takes 'pool'");
}

static bool prepare(void)
{
    use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
