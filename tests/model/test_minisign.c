/*
 * Signatures made by the minisign program (data/minisign/, `minisign -S` and `-S -l` of version
 * 0.11), parsed, and held against objects on their way through a plan.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "hash.h"
#include "load.h"
#include "memory_store.h"
#include "minisign.h"
#include "model_maker.h"
#include "scratch.h"

static struct sl_err err;
static struct sl_minisign_key key;

/* A file of data/minisign; freed at the end of the program. */
static char *fixture(const char *name, size_t *bytes)
{
    char path[512];
    struct sl_buf text = SL_BUF_INIT(1024 * 1024);
    snprintf(path, sizeof(path), SL_TEST_DATA "/minisign/%s", name);
    ck_assert_int_eq(sl_buf_read_file(&text, path, NULL), 0);
    *bytes = text.used;
    return text.data;
}

static void use_key(const char *name)
{
    size_t bytes;
    char *text = fixture(name, &bytes);
    ck_assert_int_eq(sl_minisign_key_parse(text, bytes, &key, NULL), 0);
    free(text);
}

static void setup(void)
{
    err = (struct sl_err)SL_ERR_INIT;
    use_key("one.pub");
}

static void teardown(void)
{
    sl_memory_clear();
    sl_alloc_fail_at(0);
}

SL_TEST(signatures_of_minisign_are_right)
{
    size_t bytes, object_bytes;
    struct sl_minisign_signature signature;
    uint8_t digest[SL_HASH_BYTES_MAX];
    char *object = fixture("object", &object_bytes), *text = fixture("prehashed.minisig", &bytes);
    struct sl_hasher *hasher = sl_hasher_new(SL_HASH_BLAKE2B, NULL);
    sl_hasher_update(hasher, object, object_bytes);
    sl_hasher_finish(hasher, digest);
    sl_hasher_free(hasher);
    ck_assert_msg(sl_minisign_parse(text, bytes, &key, &signature, &err) == 0, "%s", err.message);
    ck_assert(signature.prehashed);
    ck_assert(sl_minisign_matches(key.key, signature.signature, digest, 64));
    digest[63] ^= 1;
    ck_assert(!sl_minisign_matches(key.key, signature.signature, digest, 64));
    free(text);
    text = fixture("legacy.minisig", &bytes);
    ck_assert_int_eq(sl_minisign_parse(text, bytes, &key, &signature, &err), 0);
    ck_assert(!signature.prehashed);
    ck_assert(sl_minisign_matches(key.key, signature.signature, object, object_bytes));
    free(text);
    free(object);
}

SL_TEST(every_prefix_and_every_changed_byte_is_refused)
{
    size_t bytes;
    struct sl_minisign_signature signature;
    char *text = fixture("prehashed.minisig", &bytes);
    const size_t comment_end = (size_t)(strchr(text, '\n') - text);
    for (size_t i = 0; i < bytes - 1; i++) {
        char *copy = malloc(i + 1); /* so that reading on is seen */
        memcpy(copy, text, i);
        ck_assert_int_eq(sl_minisign_parse(copy, i, &key, &signature, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
        free(copy);
    }
    ck_assert_int_eq(sl_minisign_parse(text, bytes - 1, &key, &signature, &err), 0);
    for (size_t i = 0; i < bytes; i++) {
        text[i] ^= 1;
        bool free_text = i >= strlen("untrusted comment: ") && i < comment_end;
        struct sl_minisign_signature changed;
        int done = sl_minisign_parse(text, bytes, &key, &changed, &err);
        ck_assert_msg(done == (free_text ? 0 : -1), "byte %zu", i);
        text[i] ^= 1;
    }
    free(text);
}

SL_TEST(what_is_wrong_with_a_signature_is_said)
{
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"", "first line"},
        {"comment\n", "first line"},
        {"untrusted comment: \n", "second line"},
        {"untrusted comment: \nRUSj\n", "second line"},
        {"untrusted comment: \r\n%s\r\ntrusted comment: \r\n", "fourth line"},
    };
    struct sl_minisign_signature signature;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        char text[512];
        snprintf(text, sizeof(text), bad[i].text,
                 "RUSjX+vT03Ch0AQkVeXgYQ2AjXADRNYeH3tnEMJEEf0gJqjhU30K/arDrLwaoPR16CtBXovKw/"
                 "OQDMyo0F9NgTvU7QPZT1TpqgQ=");
        ck_assert_int_eq(sl_minisign_parse(text, strlen(text), &key, &signature, &err), -1);
        ck_assert_msg(strstr(err.message, bad[i].word), "%s", err.message);
        ck_assert_str_eq(err.code, "E_SIGNATURE");
    }
    size_t bytes;
    char *text = fixture("other.minisig", &bytes);
    ck_assert_int_eq(sl_minisign_parse(text, bytes, &key, &signature, &err), -1);
    ck_assert_msg(strstr(err.message, "signed by key 20F94F40CB621343, expected D0A170D3D3EB5FA3"),
                  "%s", err.message);
    char *more = calloc(1, bytes + 2);
    memcpy(more, text, bytes);
    more[bytes] = '\n';
    use_key("two.pub");
    ck_assert_int_eq(sl_minisign_parse(text, bytes, &key, &signature, &err), 0);
    ck_assert_int_eq(sl_minisign_parse(more, bytes + 1, &key, &signature, &err), -1);
    ck_assert_msg(strstr(err.message, "more than four"), "%s", err.message);
    free(more);
    free(text);
}

SL_TEST(keys_are_read_with_and_without_their_comment)
{
    static const char line[] = "RWSjX+vT03Ch0DgtZtIIdzTx/p7H9qoyCqagFt4DGylixxdqt9+dAZ28";
    struct sl_minisign_key other;
    ck_assert_int_eq(sl_minisign_key_parse(line, strlen(line), &other, &err), 0);
    ck_assert(memcmp(&other, &key, sizeof(key)) == 0);
    static const char *const bad[] = {"", "untrusted comment: x\n", "RW",
                                      "untrusted comment: \nRW\n"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_int_eq(sl_minisign_key_parse(bad[i], strlen(bad[i]), &other, &err), -1);
    ck_assert_int_eq(sl_minisign_key_parse(line, strlen(line) - 1, &other, &err), -1);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "56 characters"), "%s",
                  err.message);
}

/* ---- loads ------------------------------------------------------------------------------------
 */

#define WITH_KEY "verify: {minisign: {publicKeyFile: \"" SL_TEST_DATA "/minisign/one.pub\"}}\n"

static char *texts[4]; /* memory objects are borrowed */

static void put_fixture(unsigned slot, const char *object, const char *name)
{
    size_t bytes;
    free(texts[slot]);
    texts[slot] = fixture(name, &bytes);
    ck_assert_int_eq(sl_memory_put(object, texts[slot], bytes, NULL), 0);
}

/* Load memory://m/ with more YAML; 0 or -1. */
static int load(const char *uri, const char *more)
{
    char path[SL_SCRATCH_PATH_BYTES], place[SL_SCRATCH_PATH_BYTES + 8];
    int directory = sl_scratch_open(path);
    struct sl_specs specs;
    struct sl_load_result result;
    err = (struct sl_err)SL_ERR_INIT;
    snprintf(place, sizeof(place), "%s/m", path);
    sl_model_spec(&specs, uri, place, more);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    sl_scratch_close(directory, path);
    return done;
}

static void expect_refusal(const char *word)
{
    ck_assert_int_eq(load("memory://m/", WITH_KEY), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, word), "%d: %s", err.kind,
                  err.message);
    ck_assert_str_eq(err.code, "E_SIGNATURE");
}

SL_TEST(signed_objects_are_loaded)
{
    static const char *const kinds[] = {"prehashed.minisig", "legacy.minisig"};
    put_fixture(0, "m/object", "object");
    for (unsigned i = 0; i < 2; i++) {
        put_fixture(1, "m/object.minisig", kinds[i]);
        ck_assert_msg(load("memory://m/", WITH_KEY) == 0, "%s", err.message);
        ck_assert_msg(load("memory:m/object", WITH_KEY "\n") == 0, "%s", err.message);
    }
    ck_assert_int_eq(load("memory://m/",
                          "verify: {hashes: require, minisign: {publicKey: "
                          "RWSjX+vT03Ch0DgtZtIIdzTx/p7H9qoyCqagFt4DGylixxdqt9+dAZ28}}\n"),
                     0);
}

SL_TEST(what_is_not_signed_is_not_loaded)
{
    put_fixture(0, "m/object", "object");
    expect_refusal("object 'object' has no signature");
    put_fixture(1, "m/object.minisig", "other.minisig");
    expect_refusal("signed by key 20F94F40CB621343");
    put_fixture(1, "m/object.minisig", "object");
    expect_refusal("not a minisign signature");
    put_fixture(1, "m/object.minisig", "prehashed.minisig");
    put_fixture(2, "m/stray.minisig", "legacy.minisig"); /* signs nothing here */
    expect_refusal("object 'stray.minisig' has no signature");
}

SL_TEST(changed_objects_are_not_loaded)
{
    static const char *const kinds[] = {"prehashed.minisig", "legacy.minisig"};
    put_fixture(0, "m/object", "object");
    texts[0][100] ^= 1;
    for (unsigned i = 0; i < 2; i++) {
        put_fixture(1, "m/object.minisig", kinds[i]);
        expect_refusal("its signature does not match these bytes");
    }
}

SL_TEST(large_objects_want_the_newer_kind)
{
    size_t bytes = 64 * 1024 * 1024 + 1;
    char *large = calloc(1, bytes);
    put_fixture(1, "m/object.minisig", "legacy.minisig");
    ck_assert_int_eq(sl_memory_put("m/object", large, bytes, NULL), 0);
    expect_refusal("minisign -S -H");
    sl_memory_clear();
    free(large);
}

SL_TEST(only_whole_objects_are_signed)
{
    struct sl_specs specs;
    struct sl_plan *plan = NULL;
    static const struct sl_source_config config;
    sl_model_spec(&specs, "memory://m/", "/n", WITH_KEY);
    ck_assert_int_eq(sl_plan_make_targets(&specs.items[0], &config, &plan, &err), -1);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "whole objects"), "%s",
                  err.message);
    sl_specs_release(&specs);
}

static int once(void *arg, struct sl_err *why)
{
    static const struct sl_source_config config;
    struct sl_plan *plan = NULL;
    const struct sl_plan_output wanted = sl_plan_output_of_spec(arg);
    int done = sl_plan_make(arg, &wanted, &config, &plan, why);
    sl_plan_free(plan);
    return done;
}

SL_TEST(every_failing_allocation_is_survived)
{
    struct sl_specs specs;
    put_fixture(0, "m/object", "object");
    put_fixture(1, "m/object.minisig", "prehashed.minisig");
    put_fixture(2, "m/old", "object");
    put_fixture(3, "m/old.minisig", "legacy.minisig");
    sl_model_spec(&specs, "memory://m/", "/n", WITH_KEY);
    ck_assert_uint_gt(golden_each_allocation(once, &specs.items[0]), 10);
    ck_assert_uint_gt(golden_each_read(once, &specs.items[0]), 2);
    sl_specs_release(&specs);
}

SL_CASE(.setup = setup, .teardown = teardown)
