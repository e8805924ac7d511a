/* What a set depends on is in its key, and nothing else is. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "sets.h"
#include "use_fake_cuda.h"

static const struct sl_sets_machine usual = {
    .gpu = "NVIDIA H100", .capability = "9.0", .driver = "550.54.14", .arch = "x86_64"};
static struct sl_specs specs;

static void teardown(void)
{
    sl_specs_release(&specs);
}
SL_CASE(.teardown = teardown)

/* The key of a spec with these values; borrowed until the fourth after it. */
static const char *key_of(const char *uri, const char *path, const char *keys,
                          const struct sl_sets_machine *machine)
{
    static char texts[4][SL_SETS_KEY_BYTES];
    static unsigned next;
    char text[2048], *key = texts[next++ % 4];
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf complaints = SL_BUF_INIT(64 * 1024), facts = SL_BUF_INIT(64 * 1024);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
             "source: {uri: '%s'}\nsink:\n  tmpfs: {path: /out}\n"
             "  caches: {path: %s, %s}\n",
             uri, path, keys);
    sl_specs_release(&specs);
    ck_assert_msg(sl_spec_parse(text, strlen(text), "m.yaml", NULL, 0, &specs, &complaints, &err) ==
                      0,
                  "%s", sl_buf_string(&complaints));
    ck_assert_int_eq(sl_sets_key(&specs.items[0], machine, &facts, key, &err), 0);
    return key;
}

#define URL "url: 's3://b/sets/', trust: store"
static const char plain[] = URL ", variant: tp8, labels: {engine: vllm-1, torch: 2.11}";

static const char *usual_key(void)
{
    return key_of("s3://b/m/", "/c/e", plain, &usual);
}

SL_TEST(each_fact_is_in_the_key)
{
    static const struct {
        const char *uri, *path, *keys;
        struct sl_sets_machine machine;
    } rows[] = {
        {"s3://b/n/", "/c/e", plain, usual},
        {"s3://b/m/", "/c/f", plain, usual},
        {"s3://b/m/", "/c/e", URL ", variant: tp4, labels: {engine: vllm-1, torch: 2.11}", usual},
        {"s3://b/m/", "/c/e", URL ", labels: {engine: vllm-1, torch: 2.11}", usual},
        {"s3://b/m/", "/c/e", URL ", variant: tp8, labels: {engine: vllm-2, torch: 2.11}", usual},
        {"s3://b/m/", "/c/e", URL ", variant: tp8, labels: {engine: vllm-1}", usual},
        {"s3://b/m/", "/c/e", URL ", variant: tp8, labels: {engine: 2.11, torch: vllm-1}", usual},
        {"s3://b/m/", "/c/e", plain, {"NVIDIA H200", "9.0", "550.54.14", "x86_64"}},
        {"s3://b/m/", "/c/e", plain, {"NVIDIA H100", "10.0", "550.54.14", "x86_64"}},
        {"s3://b/m/", "/c/e", plain, {"NVIDIA H100", "9.0", "551.00", "x86_64"}},
        {"s3://b/m/", "/c/e", plain, {"NVIDIA H100", "9.0", "550.54.14", "aarch64"}},
        {"s3://b/m/", "/c/e", plain, {"cpu", "", "", "x86_64"}},
    };
    char whole[SL_SETS_KEY_BYTES];
    snprintf(whole, sizeof(whole), "%s", usual_key());
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg(
            strcmp(whole, key_of(rows[i].uri, rows[i].path, rows[i].keys, &rows[i].machine)) != 0,
            "row %zu", i);
}

SL_TEST(nothing_else_is)
{
    static const char *const others[] = {
        URL ", variant: tp8, labels: {torch: 2.11, engine: vllm-1}",
        URL ", variant: tp8, labels: {engine: vllm-1, torch: 2.11}, save: true, ready: 'http://h/'",
        "url: 's3://other/', trust: store, restoreSeconds: 5, variant: tp8, "
        "labels: {engine: vllm-1, torch: 2.11}",
    };
    char whole[SL_SETS_KEY_BYTES];
    snprintf(whole, sizeof(whole), "%s", usual_key());
    for (size_t i = 0; i < SL_COUNT(others); i++)
        ck_assert_str_eq(key_of("s3://b/m/", "/c/e", others[i], &usual), whole);
}

/* Sets that are in stores are found by every later version. */
SL_TEST(a_key_stays_what_it_is)
{
    ck_assert_str_eq(usual_key(),
                     "7ef2314924c248030c06c14ed2c2c0ac93101c1a7b16d16b28c1f4b00a53bb8a");
}

SL_TEST(secrets_of_a_uri_are_not_in_it)
{
    ck_assert_str_eq(key_of("https://me:hush@h/m/", "/c/e", plain, &usual),
                     key_of("https://me:other@h/m/", "/c/e", plain, &usual));
}

SL_TEST(without_a_gpu_it_is_the_processors)
{
    struct sl_sets_machine machine;
    sl_sets_look(&machine);
    ck_assert_str_ne(machine.arch, "");
    ck_assert_str_eq(machine.gpu, "cpu");
}

SL_TEST(a_gpu_is_known_by_name_capability_and_driver)
{
    struct sl_sets_machine machine;
    use_fake_cuda();
    sl_sets_look(&machine);
    ck_assert_str_eq(machine.gpu, "Fake 0");
    ck_assert_ptr_nonnull(strchr(machine.capability, '.'));
    ck_assert_str_ne(machine.driver, "");
}

static int note(void *arg, const char *name, const char *value)
{
    return sl_buf_printf(arg, NULL, "%s=%s\n", name, value);
}

SL_TEST(variables_of_the_caller_stay)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf text = SL_BUF_INIT(8192);
    clearenv();
    setenv("TRITON_CACHE_DIR", "/mine", 1);
    ck_assert_int_eq(sl_sets_each_variable("/c/e", note, &text, &err), 0);
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&text), "VLLM_CACHE_ROOT=/c/e/vllm\n"));
    ck_assert_ptr_null(strstr(sl_buf_string(&text), "TRITON_CACHE_DIR"));
    ck_assert_int_eq(sl_sets_export("/c/e", &err), 0);
    ck_assert_str_eq(getenv("TRITON_CACHE_DIR"), "/mine");
    ck_assert_str_eq(getenv("CUDA_CACHE_PATH"), "/c/e/cuda");
}
