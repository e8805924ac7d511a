/* Loads of signed models (OpenSSF Model Signing): what is refused and by which words, what is
 * fetched again, and that nothing that was not signed is ever published. */
#include <check.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "dcp_maker.h"
#include "golden.h"
#include "hash.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "minisign_secret.h"
#include "model_maker.h"
#include "oms_maker.h"
#include "private_sigstore.h"
#include "range_server.h"
#include "scratch.h"
#include "sidecar.h"
#include "thread.h"
#include "torch_maker.h"
#include "tree.h"

enum { RANGE = 64 * 1024, RANGES = 24, BYTES = RANGES * RANGE - 777 };
static const char ETAG[] = "\"v1\"";

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static char key_file[SL_SCRATCH_PATH_BYTES + 16], source[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static uint8_t *data;
static EVP_PKEY *key;
static struct sl_err err;
static struct sl_load_result result;
static unsigned fail_at;

/* One bit, wrong in the next flip_times answers that hold it. */
static pthread_mutex_t flip_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t flip_at;
static unsigned flip_times, flipped_requests;

static void flip(uint64_t at, unsigned times)
{
    SL_LOCKED(&flip_lock);
    flip_at = at;
    flip_times = times;
    flipped_requests = 0;
}

static bool flip_bit(const struct sl_server_request *request, struct sl_server_reply *reply,
                     void *arg)
{
    uint64_t begin, end;
    (void)arg;
    if (strcmp(request->target, "/m.bin") != 0 || !sl_server_range(request, BYTES, &begin, &end))
        return false;
    SL_LOCKED(&flip_lock);
    flipped_requests += flip_at >= begin && flip_at < end;
    if (!flip_times || flip_at < begin || flip_at >= end)
        return false;
    flip_times--;
    sl_server_reply_range(reply, data, begin, end, BYTES, ETAG);
    reply->body[flip_at - begin] ^= 4;
    return true;
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    err = (struct sl_err)SL_ERR_INIT;
    flip(0, 0);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    snprintf(key_file, sizeof(key_file), "%s/key.pem", scratch);
    snprintf(source, sizeof(source), "%s/source", scratch);
    mkdir(source, 0755);
    server = sl_server_start();
    data = sl_model_noise(BYTES, 7);
    key = oms_key();
    oms_put_key(key, key_file, false);
    sl_server_put(server, "/m.bin", data, BYTES, ETAG);
    sl_server_handle(server, flip_bit, NULL);
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    sl_memory_clear();
    EVP_PKEY_free(key);
    free(data);
}

/* ---- of one object, from a server ------------------------------------------------------------ */

static void put_signature(const struct oms_wanted *wanted)
{
    sl_autofree char *bundle = oms_sign(wanted, key);
    sl_server_put(server, "/model.sig", bundle, strlen(bundle), "\"s\"");
}

static void sign_object(uint64_t shard_bytes, const char *hash)
{
    const struct oms_file file = {"m.bin", data, BYTES};
    put_signature(
        &(struct oms_wanted){.files = &file, .count = 1, .shard_bytes = shard_bytes, .hash = hash});
}

/* more: behind the section, at its level, or further sections; of the source what is to be chosen.
 */
static int load_from(const char *uri, const char *more)
{
    static const char SOURCE[] = "source: {";
    const char *chosen = strstr(more, SOURCE);
    struct sl_specs specs;
    char yaml[4096];
    err = (struct sl_err)SL_ERR_INIT;
    int used = snprintf(yaml, sizeof(yaml), "verify:\n  modelSigning:\n    publicKeyFile: \"%s\"\n",
                        key_file);
    if (chosen)
        snprintf(yaml + used, sizeof(yaml) - (size_t)used, "%suri: \"%s\", %s", SOURCE, uri,
                 chosen + sizeof(SOURCE) - 1);
    else
        snprintf(yaml + used, sizeof(yaml) - (size_t)used, "%s", more);
    sl_model_spec(&specs, uri, path, yaml);
    sl_alloc_fail_at(fail_at);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    return done;
}

static int load(const char *more)
{
    return load_from(sl_server_url(server, "/m.bin"), more);
}

static void must_load(const char *more)
{
    ck_assert_msg(load(more) == 0, "%s: %s", more, err.message);
    ck_assert(sl_model_same(path, "m.bin", data, BYTES));
    ck_assert(!sl_model_exists(path, "model.sig"));
    ck_assert_msg(sl_publish_verify(path, NULL, NULL, NULL, &err) == 0, "%s", err.message);
}

static void must_refuse(const char *more, enum sl_err_kind kind, const char *words)
{
    ck_assert_msg(load(more) < 0, "%s loads", more);
    ck_assert_msg(err.kind == kind && strstr(err.message, words), "%d %s: %s", err.kind, err.code,
                  err.message);
    ck_assert(!sl_model_exists(path, ".sluice/ready") && !sl_model_exists(path, "m.bin"));
}

static void remove_model(void)
{
    struct sl_err why = SL_ERR_INIT;
    struct sl_publish *publish = sl_publish_open(path, NULL, NULL, NULL, &why);
    ck_assert_msg(publish && sl_publish_remove(publish, &why) == 0, "%s", why.message);
    sl_publish_free(publish);
}

SL_TEST(a_signed_object_loads_and_says_who_signed_it)
{
    static const char *const hashes[] = {"sha256", "blake2b"};
    for (int i = 0; i < 4; i++) {
        sign_object(i < 2 ? 0 : RANGE, hashes[i % 2]);
        must_load("");
        ck_assert_msg(strncmp(result.signed_by.by, "key ", 4) == 0, "%s", result.signed_by.by);
        ck_assert_str_eq(result.signed_by.file, "model.sig");
        ck_assert_uint_eq(result.signed_by.resources, 1);
        ck_assert_uint_eq(result.signed_by.loaded, 1);
        ck_assert_uint_eq(result.verified, BYTES);
        ck_assert_uint_eq(result.unhashed, 0);
        ck_assert_uint_eq(result.checks, i < 2 ? 1 : RANGES);
        remove_model();
    }
}

SL_TEST(a_wrong_range_is_fetched_again_alone)
{
    static const char *const hashes[] = {"sha256", "blake2b"};
    for (int i = 0; i < 2; i++) {
        sign_object(RANGE, hashes[i]);
        flip(9 * RANGE + 5, 2);
        must_load("readers: {connections: 1, hedge: \"off\"}\n");
        ck_assert_uint_eq(result.refetched_ranges, 2);
        ck_assert_uint_eq(flipped_requests, 3);
        ck_assert_uint_le(result.fetched, BYTES + 2 * RANGE + 320 * 1024);
        remove_model();
    }
}

SL_TEST(a_range_that_stays_wrong_is_named)
{
    sign_object(RANGE, NULL);
    flip(9 * RANGE + 5, UINT32_MAX);
    must_refuse("", SL_E_INTEGRITY, "object 'm.bin', bytes 589824 to 655360");
    ck_assert_str_eq(err.code, "E_HASH_SHA256");
}

SL_TEST(a_changed_file_is_named)
{
    sign_object(0, NULL);
    flip(9 * RANGE + 5, UINT32_MAX);
    must_refuse("", SL_E_INTEGRITY, "object 'm.bin'");
    sign_object(0, "blake2b");
    must_refuse("", SL_E_INTEGRITY, "object 'm.bin'");
    data[3] ^= 1; /* signed, but not what the server has */
    flip(0, 0);
    sign_object(0, NULL);
    data[3] ^= 1;
    must_refuse("", SL_E_INTEGRITY, "object 'm.bin'");
}

SL_TEST(other_lengths_than_the_signed_ones_are_refused)
{
    const struct oms_file shorter = {"m.bin", data, BYTES - 1}, first = {"m.bin", data, 3 * RANGE};
    put_signature(&(struct oms_wanted){.files = &shorter, .count = 1, .shard_bytes = RANGE});
    must_refuse("", SL_E_INTEGRITY, "were signed");
    put_signature(&(struct oms_wanted){.files = &first, .count = 1, .shard_bytes = RANGE});
    must_refuse("", SL_E_INTEGRITY, "were signed");
}

SL_TEST(without_a_signature_nothing_loads)
{
    must_refuse("", SL_E_INTEGRITY, "the model is not signed: there is no 'model.sig'");
    ck_assert_str_eq(err.code, "E_SIGNATURE");
    sl_server_put(server, "/model.sig", "{}", 2, "\"s\"");
    must_refuse("", SL_E_INTEGRITY, "signature 'model.sig'");
    must_refuse("    unsigned: allow\n", SL_E_INTEGRITY, "signature 'model.sig'");
    must_refuse("    file: elsewhere/other.sig\n", SL_E_INTEGRITY, "no 'elsewhere/other.sig'");
    must_refuse("    file: a/../model.sig\n", SL_E_FORMAT, "modelSigning.file");
}

SL_TEST(another_key_is_refused_and_a_second_one_is_taken)
{
    EVP_PKEY *other = oms_key();
    sign_object(0, NULL);
    oms_put_key(other, key_file, false);
    must_refuse("", SL_E_INTEGRITY, "signature 'model.sig'");
    oms_put_key(key, key_file, true);
    must_load("");
    EVP_PKEY_free(other);
}

SL_TEST(a_key_that_is_none_is_a_mistake_of_the_spec)
{
    sign_object(0, NULL);
    FILE *file = fopen(key_file, "w");
    fclose(file);
    must_refuse("", SL_E_USAGE, "signature 'model.sig'");
    unlink(key_file);
    must_refuse("", SL_E_NOT_FOUND, "verify.modelSigning.publicKeyFile");
}

SL_TEST(hashes_and_versions_that_are_not_known_are_told_so)
{
    sign_object(0, "blake3");
    must_refuse("", SL_E_FORMAT, "blake3");
    const struct oms_file file = {"m.bin", data, BYTES};
    put_signature(&(struct oms_wanted){
        .files = &file, .count = 1, .predicate = "https://model_signing/signature/v9.9"});
    must_refuse("", SL_E_FORMAT, "v9.9");
}

/* ---- folders --------------------------------------------------------------------------------- */

static void put_file(const char *name, const void *bytes, size_t count)
{
    char whole[1024];
    snprintf(whole, sizeof(whole), "%s/%s", source, name);
    for (char *slash = strchr(whole + strlen(source) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(whole, 0755);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    ck_assert(file && fwrite(bytes, 1, count, file) == count);
    fclose(file);
}

static struct oms_file files[] = {
    {"a.bin", "first", 5}, {"b/c.txt", "second", 6}, {"config.json", "{}", 2}, {"empty", "", 0}};

/* All files, and a signature over them, with what `wanted` says of it. */
static void put_folder(struct oms_wanted wanted)
{
    for (size_t i = 0; i < SL_COUNT(files); i++)
        put_file(files[i].name, files[i].data, files[i].bytes);
    wanted.files = files;
    wanted.count = SL_COUNT(files);
    sl_autofree char *bundle = oms_sign(&wanted, key);
    put_file("model.sig", bundle, strlen(bundle));
}

static int load_folder(const char *more)
{
    char uri[SL_SCRATCH_PATH_BYTES + 32];
    snprintf(uri, sizeof(uri), "%s/", source);
    return load_from(uri, more);
}

static void folder_must_load(const char *more)
{
    ck_assert_msg(load_folder(more) == 0, "%s: %s", more, err.message);
    ck_assert(!sl_model_exists(path, "model.sig"));
}

/* What was there before stays. */
static void folder_must_refuse(const char *more, const char *words)
{
    bool there = sl_model_exists(path, ".sluice/ready");
    ck_assert_msg(load_folder(more) < 0, "%s loads", more);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, words), "%d %s: %s", err.kind,
                  err.code, err.message);
    ck_assert_int_eq(sl_model_exists(path, ".sluice/ready"), there);
}

SL_TEST(every_file_of_a_folder_is_signed_or_it_is_refused)
{
    for (uint64_t shard = 0; shard <= 4; shard += 4) {
        put_folder((struct oms_wanted){.shard_bytes = shard});
        folder_must_load("");
        ck_assert_uint_eq(result.signed_by.resources, shard ? 3 : 4); /* nothing is said of empty */
        ck_assert(sl_model_same(path, "b/c.txt", "second", 6) && sl_model_exists(path, "empty"));
        put_file("b/more", "x", 1);
        folder_must_refuse("", "does not name 'b/more'");
        put_file("A.bin", "first", 5); /* another name is another file */
        folder_must_refuse("", "does not name 'A.bin', 'b/more': these 2 were not signed");
        folder_must_load("    unsigned: allow\n");
        ck_assert_uint_eq(result.signed_by.strangers, 2);
        folder_must_load("source: {exclude: [b/more, A.bin]}\n");
        ck_assert_uint_eq(result.signed_by.strangers, 0);
        char name[SL_SCRATCH_PATH_BYTES + 32];
        snprintf(name, sizeof(name), "%s/b/more", source);
        unlink(name);
        snprintf(name, sizeof(name), "%s/A.bin", source);
        unlink(name);
        remove_model();
    }
}

SL_TEST(names_are_byte_exact)
{
    put_folder((struct oms_wanted){0});
    put_file("na\xc3\xafve", "x", 1); /* composed; decomposed below */
    const struct oms_file one[] = {{"nai\xcc\x88ve", "x", 1}};
    sl_autofree char *bundle = oms_sign(&(struct oms_wanted){.files = one, .count = 1}, key);
    put_file("model.sig", bundle, strlen(bundle));
    folder_must_refuse("source: {include: [\"na*\"]}\n", "which is not there");
}

SL_TEST(ten_strangers_are_named)
{
    put_folder((struct oms_wanted){0});
    for (int i = 10; i < 30; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        put_file(name, "x", 1);
    }
    folder_must_refuse("", "'n18', 'n19', …: these 20 were not signed");
}

SL_TEST(what_the_signer_ignored_is_taken_and_counted)
{
    put_folder((struct oms_wanted){.ignored = "notes"});
    put_file("notes/todo", "x", 1);
    put_file(".gitattributes", "x", 1);
    folder_must_load("");
    ck_assert_uint_eq(result.signed_by.strangers, 2);
    put_file("notes2", "x", 1);
    folder_must_refuse("", "does not name 'notes2': these 1");
}

SL_TEST(a_missing_file_is_refused_unless_the_spec_leaves_it_out)
{
    char name[SL_SCRATCH_PATH_BYTES + 32];
    put_folder((struct oms_wanted){0});
    folder_must_load("source: {exclude: [\"b/*\"]}\n");
    ck_assert_uint_eq(result.signed_by.resources, 4);
    ck_assert_uint_eq(result.signed_by.loaded, 3);
    ck_assert(!sl_model_exists(path, "b/c.txt"));
    folder_must_load("source: {include: [a.bin]}\n");
    ck_assert_uint_eq(result.signed_by.loaded, 1);
    snprintf(name, sizeof(name), "%s/b/c.txt", source);
    unlink(name);
    remove_model();
    folder_must_refuse("", "the signature names 'b/c.txt', which is not there");
    folder_must_load("source: {exclude: [\"b/*\"]}\n");
}

SL_TEST(each_changed_file_is_refused)
{
    for (uint64_t shard = 0; shard <= 4; shard += 4)
        for (size_t i = 0; i < SL_COUNT(files); i++) {
            put_folder((struct oms_wanted){.shard_bytes = shard});
            put_file(files[i].name, "?", 1);
            folder_must_refuse("", files[i].name);
            put_file(files[i].name, "secon?", files[i].bytes);
            if (files[i].bytes)
                folder_must_refuse("", files[i].name);
        }
}

SL_TEST(a_signature_may_lie_elsewhere)
{
    char more[SL_SCRATCH_PATH_BYTES + 64], from[SL_SCRATCH_PATH_BYTES + 32];
    put_folder((struct oms_wanted){0});
    snprintf(from, sizeof(from), "%s/model.sig", source);
    snprintf(more, sizeof(more), "%s/up.sig", scratch);
    ck_assert_int_eq(rename(from, more), 0);
    folder_must_refuse("", "no 'model.sig'");
    snprintf(more, sizeof(more), "    file: %s/up.sig\n", scratch);
    folder_must_load(more);
    remove_model();
    folder_must_load("    file: ../up.sig\n");
    remove_model();
    snprintf(more, sizeof(more), "    file: ../up.sig\n");
    ck_assert_msg(load_from(source, more) == 0, "%s", err.message); /* without its slash */
    remove_model();
    snprintf(more, sizeof(more), "    file: file://%s/up.sig\n", scratch);
    folder_must_load(more);
}

/* A file of the model that is called like a signature is one of its files. */
SL_TEST(only_the_signature_that_was_used_is_left_out)
{
    char more[SL_SCRATCH_PATH_BYTES + 64], from[SL_SCRATCH_PATH_BYTES + 32];
    put_folder((struct oms_wanted){0});
    snprintf(from, sizeof(from), "%s/model.sig", source);
    snprintf(more, sizeof(more), "%s/other.sig", source);
    ck_assert_int_eq(rename(from, more), 0);
    put_file("model.sig", "{}", 2);
    folder_must_refuse("    file: other.sig\n", "does not name 'model.sig'");
}

SL_TEST(what_an_earlier_load_published_unsigned_is_not_taken_for_signed)
{
    struct sl_specs specs;
    char uri[SL_SCRATCH_PATH_BYTES + 32];
    put_folder((struct oms_wanted){0});
    put_file("a.bin", "fir?t", 5);
    snprintf(uri, sizeof(uri), "%s/", source);
    char name[SL_SCRATCH_PATH_BYTES + 32];
    snprintf(name, sizeof(name), "%s/model.sig", source);
    unlink(name);
    sl_model_spec(&specs, uri, path, "");
    ck_assert_int_eq(sl_load_run(&specs.items[0], NULL, NULL, &result, &err), 0);
    ck_assert(!*result.signed_by.by);
    sl_specs_release(&specs);
    ck_assert_int_lt(load_folder(""), 0);
    put_folder((struct oms_wanted){0});
    put_file("a.bin", "fir?t", 5);
    ck_assert_int_lt(load_folder(""), 0);
    ck_assert_msg(strstr(err.message, "'a.bin'"), "%s", err.message);
    put_file("a.bin", "first", 5);
    folder_must_load("");
    folder_must_load("");
    ck_assert(result.already && *result.signed_by.by);
}

SL_TEST(the_manifest_says_who_signed)
{
    struct sl_publish_facts facts;
    bool there;
    put_folder((struct oms_wanted){0});
    folder_must_load("source: {exclude: [empty]}\n");
    ck_assert_int_eq(sl_publish_look(path, &facts, &there, &err), 0);
    ck_assert_str_eq(facts.signed_by.by, result.signed_by.by);
    ck_assert_uint_eq(facts.signed_by.resources, 4);
    ck_assert_uint_eq(facts.signed_by.loaded, 3);
}

/* Resigned by another key: nothing is fetched, and the manifest tells of the new one. */
SL_TEST(a_new_signer_is_a_new_version_of_the_same_files)
{
    char before[320];
    put_folder((struct oms_wanted){0});
    folder_must_load("");
    snprintf(before, sizeof(before), "%s", result.signed_by.by);
    EVP_PKEY_free(key);
    key = oms_key();
    put_folder((struct oms_wanted){0});
    ck_assert_int_lt(load_folder(""), 0);
    oms_put_key(key, key_file, false);
    folder_must_load("");
    ck_assert(!result.already && strcmp(before, result.signed_by.by) != 0);
}

static void drop_model(void)
{
    sl_scratch_close(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), path);
}

SL_TEST_LOOP(every_failing_allocation_publishes_what_was_signed_or_nothing, 0, 2)
{
    put_folder((struct oms_wanted){.shard_bytes = _i ? 4 : 0, .ignored = "n"});
    put_file("n", "x", 1);
    for (unsigned nth = 1;; nth++) {
        fail_at = nth;
        int done = load_folder("");
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(fail_at = 0);
        if (done == 0)
            ck_assert(*result.signed_by.by && sl_model_same(path, "a.bin", "first", 5));
        else
            ck_assert(!sl_model_exists(path, ".sluice/ready"));
        if (sl_model_exists(path, ".sluice"))
            drop_model();
        if (!reached)
            break;
    }
}

/* ---- by the reference and its releases ------------------------------------------------------- */

#define GOLDEN SL_TEST_DATA "/golden/signing/released/"
#define KEYLESS(identity)                                                                          \
    "file: " GOLDEN "v1.1.0-sigstore.sig, keyless: {identity: " identity ", issuer: "              \
    "\"https://sigstore.verify.ibm.com/oauth2\", trustedRootFile: " GOLDEN "trusted_root.json}"

static const struct {
    const char *uri, *signing, *by; /* or what the refusal says */
    bool refused;
    uint64_t resources, strangers;
    int64_t at;
} golden[] = {
    {"", KEYLESS("stefanb@us.ibm.com"), "stefanb@us.ibm.com", false, 2, 1, 1760062340},
    {"", KEYLESS("other@us.ibm.com"), "another identity", true, 0, 0, 0},
    {"",
     "file: " GOLDEN "v1.1.0-certificate.sig, certificates: {caFile: " GOLDEN
     "ca-cert.pem, expired: allow}",
     "", false, 2, 1, 0},
    {"", "file: " GOLDEN "v1.1.0-certificate.sig, publicKeyFile: " GOLDEN "signing-key-pub.pem",
     "signature '", true, 0, 0, 0},
    {"single",
     "file: " GOLDEN "v0.3.1-elliptic-key.sig, publicKeyFile: " GOLDEN "signing-key-pub.pem",
     "key ", false, 1, 0, 0},
};

SL_TEST_LOOP(what_releases_of_the_reference_signed_loads_or_is_refused, 0, (int)SL_COUNT(golden))
{
    struct sl_specs specs;
    char yaml[2048], uri[SL_SCRATCH_PATH_BYTES + 32];
    put_file("signme-1", "signme-1", 8);
    put_file("signme-2", "signme-2", 8);
    put_file("ignore-me", "", 0);
    snprintf(uri, sizeof(uri), "%s/%s", scratch, *golden[_i].uri ? golden[_i].uri : "source/");
    if (*golden[_i].uri)
        ck_assert_int_eq(sl_tree_write(scratch_fd, golden[_i].uri, "signme-1\n", 9, &err), 0);
    snprintf(yaml, sizeof(yaml), "verify: {modelSigning: {%s}}\n", golden[_i].signing);
    sl_model_spec(&specs, uri, path, yaml);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    ck_assert_msg((done < 0) == golden[_i].refused, "%s", err.message);
    if (golden[_i].refused) {
        ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, golden[_i].by), "%s",
                      err.message);
        return;
    }
    ck_assert_msg(strstr(result.signed_by.by, golden[_i].by) && *result.signed_by.by, "%s",
                  result.signed_by.by);
    ck_assert_uint_eq(result.signed_by.resources, golden[_i].resources);
    ck_assert_uint_eq(result.signed_by.strangers, golden[_i].strangers);
    ck_assert_int_eq(result.signed_by.at, golden[_i].at);
}

/* ---- beside other checks --------------------------------------------------------------------- */

static void put_sidecar_of(const char *name, const uint8_t *of, uint64_t bytes, bool right)
{
    char target[64];
    struct sl_sidecar *sidecar = sl_sidecar_new(name, bytes, RANGE, &err);
    sl_autobuf text = SL_BUF_INIT(1024 * 1024);
    for (size_t i = 0; i < sidecar->range_count; i++) {
        uint64_t begin = i * RANGE, end = sl_sidecar_range_end(sidecar, i);
        sidecar->ranges[i].crc32c = sl_crc32c(!right, of + begin, (size_t)(end - begin));
        crypto_hash_sha256(sidecar->ranges[i].sha256, of + begin, end - begin);
    }
    sl_sidecar_tree(sidecar, sidecar->tree);
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    snprintf(target, sizeof(target), "/%s.sluice.json", name);
    sl_server_put(server, target, text.data, text.used, "\"c\"");
    sl_sidecar_free(sidecar);
}

static void put_sidecar(bool right)
{
    put_sidecar_of("m.bin", data, BYTES, right);
}

SL_TEST(sidecars_mend_what_is_signed_as_a_whole)
{
    sign_object(0, NULL);
    put_sidecar(true);
    flip(9 * RANGE + 5, 1);
    must_load("  sidecar: require\n");
    ck_assert_uint_eq(result.refetched_ranges, 1);
    ck_assert_uint_eq(result.sidecars, 1);
    ck_assert_uint_eq(result.checks, RANGES + 1);
}

/* The ranges are the signature's: what a sidecar says of them is not asked. */
SL_TEST(a_signature_of_ranges_takes_the_place_of_sidecars)
{
    static const char *const modes[] = {"  sidecar: require\n", "  sidecar: auto\n",
                                        "  sidecar: \"off\"\n"};
    sign_object(RANGE, NULL);
    put_sidecar(false);
    for (size_t i = 0; i < SL_COUNT(modes); i++) {
        flip(9 * RANGE + 5, 1);
        must_load(modes[i]);
        ck_assert_uint_eq(result.refetched_ranges, 1);
        ck_assert_uint_eq(result.sidecars, 0);
        ck_assert_uint_eq(result.checks, RANGES);
        remove_model();
    }
}

SL_TEST(hashes_of_the_spec_are_checked_beside_the_signature)
{
    char more[160], hex[65];
    uint8_t digest[32];
    crypto_hash_sha256(digest, data, BYTES);
    sl_hex(digest, 32, hex);
    for (int shards = 0; shards <= 1; shards++) {
        sign_object(shards ? RANGE : 0, NULL);
        snprintf(more, sizeof(more), "  sha256: {m.bin: %s}\n  hashes: require\n", hex);
        must_load(more);
        remove_model();
        hex[0] = hex[0] == '0' ? '1' : '0';
        snprintf(more, sizeof(more), "  sha256: {m.bin: %s}\n", hex);
        must_refuse(more, SL_E_INTEGRITY, "object 'm.bin'");
        hex[0] = "0123456789abcdef"[digest[0] >> 4];
    }
}

SL_TEST(a_signature_is_checked_with_hashes_off)
{
    sign_object(0, NULL);
    flip(9 * RANGE + 5, UINT32_MAX);
    must_refuse("  hashes: \"off\"\n", SL_E_INTEGRITY, "object 'm.bin'");
}

SL_TEST(a_load_that_broke_off_goes_on_and_proves_what_it_kept)
{
    for (int shards = 0; shards <= 1; shards++) {
        sign_object(shards ? RANGE : 0, NULL);
        flip(20 * RANGE + 5, UINT32_MAX);
        ck_assert_int_lt(load("readers: {connections: 1}\n"), 0);
        flip(0, 0);
        must_load("");
        ck_assert_uint_eq(result.unhashed, 0);
        if (shards)
            ck_assert_uint_gt(result.resumed, 0);
        remove_model();
    }
}

/* The version that is published has the file, unchanged: its hash is another than the signed one.
 */
SL_TEST(what_another_version_has_is_taken_over_only_if_it_was_signed)
{
    struct oms_file others[SL_COUNT(files)];
    put_folder((struct oms_wanted){0});
    folder_must_load("");
    memcpy(others, files, sizeof(files));
    others[0].data = "fIrst";
    sl_autofree char *bundle =
        oms_sign(&(struct oms_wanted){.files = others, .count = SL_COUNT(files)}, key);
    put_file("model.sig", bundle, strlen(bundle));
    folder_must_refuse("", "'a.bin'");
    others[0].data = "first";
    others[2].data = "[]";
    sl_autofree char *second =
        oms_sign(&(struct oms_wanted){.files = others, .count = SL_COUNT(files)}, key);
    put_file("model.sig", second, strlen(second));
    put_file("config.json", "[]", 2);
    folder_must_load("");
    ck_assert(sl_model_same(path, "a.bin", "first", 5));
    ck_assert(sl_model_same(path, "config.json", "[]", 2));
}

SL_TEST(what_is_signed_may_come_through_caches)
{
    char more[256];
    for (int i = 0; i < 4; i++) {
        sign_object(i < 2 ? RANGE : 0, i % 2 ? "blake2b" : NULL);
        snprintf(more, sizeof(more), "source: {through: {caches: [\"%s\"], blockBytes: 64Ki}}\n",
                 sl_server_url(server, ""));
        must_load(more);
        remove_model();
    }
}

#define MINISIGN "  minisign: {publicKeyFile: " SL_TEST_DATA "/minisign/plain.pub}\n"

static void sign_by_minisign(const void *of, size_t count, struct sl_buf *signature)
{
    struct sl_minisign_secret secret;
    sl_autobuf file = SL_BUF_INIT(4096);
    ck_assert_int_eq(sl_buf_read_file(&file, SL_TEST_DATA "/minisign/plain.key", &err), 0);
    ck_assert_int_eq(sl_minisign_secret_parse(file.data, file.used, NULL, NULL, &secret, &err), 0);
    ck_assert_int_eq(sl_minisign_sign(&secret, of, count, "c", signature, &err), 0);
    sl_minisign_secret_release(&secret);
}

SL_TEST(both_kinds_of_signatures_are_checked_where_both_are_asked_for)
{
    sl_autobuf good = SL_BUF_INIT(4096), bad = SL_BUF_INIT(4096), small = SL_BUF_INIT(4096);
    sign_by_minisign(data, BYTES, &good);
    sign_by_minisign(data, BYTES - 1, &bad);
    for (int shards = 0; shards <= 1; shards++) {
        sign_object(shards ? RANGE : 0, NULL);
        must_refuse(MINISIGN, SL_E_INTEGRITY, shards ? "not a minisign" : "has no signature");
        sl_server_put(server, "/m.bin.minisig", bad.data, bad.used, "\"m\"");
        must_refuse(MINISIGN, SL_E_INTEGRITY, "m.bin");
        sl_server_put(server, "/m.bin.minisig", good.data, good.used, "\"m2\"");
        must_load(MINISIGN);
        ck_assert_uint_eq(result.checks, shards ? RANGES + 1 : 2);
        remove_model();
        sl_server_put(server, "/m.bin.minisig", "", 0, NULL);
    }
    const struct oms_file one = {"a.bin", "first", 5};
    sl_autofree char *bundle = oms_sign(&(struct oms_wanted){.files = &one, .count = 1}, key);
    sign_by_minisign("first", 5, &small);
    put_file("a.bin", "first", 5);
    put_file("a.bin.minisig", small.data, small.used);
    put_file("model.sig", bundle, strlen(bundle));
    folder_must_refuse("", "does not name 'a.bin.minisig'");
    folder_must_load(MINISIGN);
    ck_assert(!sl_model_exists(path, "a.bin.minisig"));
}

static void put_rank(const char *name)
{
    size_t count;
    sl_autofree uint8_t *model = sl_model_safetensors("a", 4, &count);
    put_file(name, model, count);
}

SL_TEST(a_rank_loads_its_part_of_what_was_signed)
{
    size_t count;
    sl_autofree uint8_t *model = sl_model_safetensors("a", 4, &count);
    const struct oms_file ranks[] = {{"config.json", "{}", 2},
                                     {"model-rank-0-part-0.safetensors", model, count},
                                     {"model-rank-1-part-0.safetensors", model, count}};
    sl_autofree char *bundle = oms_sign(&(struct oms_wanted){.files = ranks, .count = 3}, key);
    put_file("config.json", "{}", 2);
    put_rank(ranks[1].name);
    put_rank(ranks[2].name);
    put_file("model.sig", bundle, strlen(bundle));
    folder_must_load("source: {rank: {index: 1, of: 2}}\n");
    ck_assert_uint_eq(result.signed_by.resources, 3);
    ck_assert_uint_eq(result.signed_by.loaded, 2);
    ck_assert(!sl_model_exists(path, ranks[1].name) && sl_model_exists(path, ranks[2].name));
}

/* ---- where only tensors are read ------------------------------------------------------------- */

enum { ITEMS = 64 * 1024 };
#define PICK "sink: {tmpfs: {path: \"%s\", layout: safetensors}}\n"

static int load_tensors(const char *more)
{
    char text[1024];
    int used = snprintf(text, sizeof(text), PICK, path);
    snprintf(text + used, sizeof(text) - (size_t)used, "%s", more);
    return load_from(sl_server_url(server, "/t.safetensors"), text);
}

/* signed_bytes: what was signed; served: what the server has. */
static void put_tensors(const uint8_t *signed_bytes, const uint8_t *served, size_t count,
                        uint64_t shard_bytes)
{
    const struct oms_file file = {"t.safetensors", signed_bytes, count};
    put_signature(&(struct oms_wanted){.files = &file, .count = 1, .shard_bytes = shard_bytes});
    sl_server_put(server, "/t.safetensors", served, count, ETAG);
}

SL_TEST(ranges_are_checked_where_only_tensors_are_read)
{
    size_t count;
    sl_autofree uint8_t *model = sl_model_safetensors("a,b,c", ITEMS, &count);
    put_tensors(model, model, count, RANGE);
    ck_assert_msg(load_tensors("") == 0, "%s", err.message);
    ck_assert_uint_eq(result.unhashed, 0);
    ck_assert_uint_eq(result.signed_by.loaded, 1);
    remove_model();
    ck_assert_int_lt(load_tensors("tensors: {cast: {F32: BF16}}\n"), 0);
    ck_assert_msg(strcmp(err.code, "E_SIGNATURE") == 0 && strstr(err.message, "cannot check"), "%s",
                  err.message);
    ck_assert_int_lt(load_tensors("tensors: {include: [b]}\n"), 0);
    ck_assert_msg(strstr(err.message, "cannot check"), "%s", err.message);
    put_tensors(model, model, count, 0);
    ck_assert_int_lt(load_tensors(""), 0);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "signs whole files"), "%s",
                  err.message);
}

/* Names of two tensors exchanged: no byte of a tensor is another. */
SL_TEST(a_changed_header_is_refused)
{
    size_t count;
    sl_autofree uint8_t *model = sl_model_safetensors("a,b,c", ITEMS, &count);
    sl_autofree uint8_t *served = malloc(count);
    static const uint64_t shards[] = {64, 4096, RANGE, 1024 * 1024};
    memcpy(served, model, count);
    uint8_t *a = memmem(served, 400, "\"a\"", 3), *b = memmem(served, 400, "\"b\"", 3);
    ck_assert(a && b);
    a[1] = 'b';
    b[1] = 'a';
    for (size_t i = 0; i < SL_COUNT(shards); i++) {
        put_tensors(model, served, count, shards[i]);
        ck_assert_int_lt(load_tensors(""), 0);
        ck_assert_msg(err.kind == SL_E_INTEGRITY, "%s", err.message);
        put_tensors(model, model, count, shards[i]);
        ck_assert_msg(load_tensors("") == 0, "%s", err.message);
        remove_model();
    }
}

/* An index of shards lands nowhere, and says which tensor is where. */
SL_TEST(a_long_index_of_shards_is_proved)
{
    enum { TEXT = 300 * 1024 };
    size_t count[2];
    sl_autofree uint8_t *one = sl_model_safetensors("a", ITEMS, &count[0]),
                        *two = sl_model_safetensors("b", ITEMS, &count[1]);
    sl_autofree char *text = malloc(TEXT);
    memset(text, ' ', TEXT);
    int used = snprintf(text, TEXT,
                        "{\"metadata\": {}, \"weight_map\": {\"a\": "
                        "\"model-00001-of-00002.safetensors\", ");
    text[used] = ' ';
    snprintf(text + TEXT - 60, 60, "%58s", "\"b\": \"model-00002-of-00002.safetensors\"}}");
    text[TEXT - 2] = text[TEXT - 1] = ' ';
    const struct oms_file shards[] = {{"model-00001-of-00002.safetensors", one, count[0]},
                                      {"model-00002-of-00002.safetensors", two, count[1]},
                                      {"model.safetensors.index.json", text, TEXT}};
    char more[1024];
    snprintf(more, sizeof(more), PICK, path);
    for (int i = 0; i < 3; i++)
        put_file(shards[i].name, shards[i].data, shards[i].bytes);
    sl_autofree char *bundle =
        oms_sign(&(struct oms_wanted){.files = shards, .count = 3, .shard_bytes = RANGE}, key);
    put_file("model.sig", bundle, strlen(bundle));
    folder_must_load(more);
    ck_assert_uint_eq(result.unhashed, 0);
    remove_model();
    text[TEXT - 1] = '\n';
    put_file(shards[2].name, text, TEXT);
    folder_must_refuse(more, "model.safetensors.index.json");
}

/* A header that is longer than what is read of an object at once, and ends where a range does: no
 * range of tensors has a byte of it, so all of it is held. Then its names are exchanged. */
SL_TEST(a_long_header_is_proved)
{
    enum { HEADER = 4 * RANGE, PADDING = 3 * RANGE, TENSOR = RANGE, COUNT = HEADER + 2 * TENSOR };
    sl_autofree uint8_t *model = sl_model_noise(COUNT, 3), *served = malloc(COUNT);
    char *header = (char *)model + 8;
    memset(header, ' ', HEADER - 8);
    sl_put_le64(model, HEADER - 8);
    int used = snprintf(header, HEADER - 8, "{\"__metadata__\": {\"x\": \"");
    memset(header + used, 'x', PADDING);
    used += PADDING;
    used +=
        snprintf(header + used, RANGE / 2,
                 "\"}, \"a\": {\"dtype\": \"F32\", \"shape\": [%d], \"data_offsets\": [0, %d]}, "
                 "\"b\": {\"dtype\": \"F32\", \"shape\": [%d], \"data_offsets\": [%d, %d]}}",
                 TENSOR / 4, TENSOR, TENSOR / 4, TENSOR, 2 * TENSOR);
    header[used] = ' ';
    memcpy(served, model, COUNT);
    put_tensors(model, served, COUNT, RANGE);
    ck_assert_msg(load_tensors("readers: {memoryBytes: 1Mi}\n") == 0, "%s", err.message);
    ck_assert_uint_eq(result.unhashed, 0);
    remove_model();
    uint8_t *a = memmem(served + PADDING, RANGE, "\"a\"", 3),
            *b = memmem(served + PADDING, RANGE, "\"b\"", 3);
    ck_assert(a && b);
    a[1] = 'b';
    b[1] = 'a';
    put_tensors(model, served, COUNT, RANGE);
    ck_assert_int_lt(load_tensors("readers: {memoryBytes: 1Mi}\n"), 0);
    ck_assert_msg(err.kind == SL_E_INTEGRITY, "%s", err.message);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
    struct sl_specs specs;
    char yaml[1024];
    put_sidecar_of("t.safetensors", model, COUNT, true);
    snprintf(yaml, sizeof(yaml), PICK "readers: {memoryBytes: 1Mi}\nverify: {sidecar: require}\n",
             path);
    sl_model_spec(&specs, sl_server_url(server, "/t.safetensors"), path, yaml);
    ck_assert_int_lt(sl_load_run(&specs.items[0], NULL, NULL, &result, &err), 0);
    ck_assert_msg(err.kind == SL_E_INTEGRITY, "%s", err.message);
    sl_specs_release(&specs);
}

/* ---- formats --------------------------------------------------------------------------------- */

enum form { SEVERAL, TORCH, CHUNKS, GGUF, SEALED, FORMS };
static const struct oms_file *make_form(enum form form, size_t *count, uint8_t *made[3])
{
    static const struct dcp_made dcp = {
        .shape = "4 3",
        .chunks = {{.at = "0 0", .size = "2 3", .path = "a.distcp"},
                   {.at = "2 0", .size = "2 3", .path = "b.distcp"}}};
    static const struct torch_options torch = {.tensors = 3, .items = ITEMS};
    static struct oms_file out[3];
    sl_autobuf metadata = SL_BUF_INIT(1 << 20), file = SL_BUF_INIT(1 << 20);
    size_t bytes = 0;
    *count = 1;
    switch (form) {
    case SEVERAL:
        made[0] = sl_model_safetensors("a", ITEMS, &bytes);
        made[1] = sl_model_safetensors("b", ITEMS, &bytes);
        out[0] = (struct oms_file){"model-00001-of-00002.safetensors", made[0], bytes};
        out[1] = (struct oms_file){"model-00002-of-00002.safetensors", made[1], bytes};
        *count = 2;
        break;
    case TORCH:
        made[0] = torch_make(&torch, &bytes);
        out[0] = (struct oms_file){"pytorch_model.bin", made[0], bytes};
        break;
    case CHUNKS:
        dcp_make(&dcp, &metadata, &file);
        made[0] = malloc(metadata.used);
        made[1] = malloc(file.used);
        made[2] = malloc(file.used);
        memcpy(made[0], metadata.data, metadata.used);
        memcpy(made[1], file.data, file.used);
        memcpy(made[2], file.data, file.used);
        out[0] = (struct oms_file){".metadata", made[0], metadata.used};
        out[1] = (struct oms_file){"a.distcp", made[1], file.used};
        out[2] = (struct oms_file){"b.distcp", made[2], file.used};
        *count = 3;
        break;
    case GGUF:
        made[0] = golden_read("gguf/dims.gguf", &bytes);
        out[0] = (struct oms_file){"model.gguf", made[0], bytes};
        break;
    default:
        made[0] = golden_read("tensorizer/tolerated-encrypted-aligned.tensors.gz", &bytes);
        out[0] = (struct oms_file){"model.tensors", made[0], bytes};
    }
    return out;
}

/* Of a file of that form, one of several, one bit. _i: the form, whole files or ranges. */
SL_TEST_LOOP(each_format_is_proved_as_it_was_signed, 0, 2 * FORMS)
{
    size_t count;
    uint8_t *made[3] = {NULL};
    char more[512];
    bool ranges = _i % 2;
    enum form form = (enum form)(_i / 2);
    const struct oms_file *signs = make_form(form, &count, made);
    sl_autofree char *bundle = oms_sign(
        &(struct oms_wanted){.files = signs, .count = count, .shard_bytes = ranges ? RANGE : 0},
        key);
    put_file("model.sig", bundle, strlen(bundle));
    for (size_t i = 0; i < count; i++)
        put_file(signs[i].name, signs[i].data, signs[i].bytes);
    folder_must_load("");
    ck_assert_uint_eq(result.unhashed, 0);
    ck_assert_uint_eq(result.signed_by.loaded, count);
    for (size_t i = 0; i < count; i++)
        ck_assert(sl_model_same(path, signs[i].name, signs[i].data, signs[i].bytes));
    snprintf(more, sizeof(more), PICK, path);
    if (form == SEVERAL && ranges)
        folder_must_load(more);
    else
        ck_assert_msg(load_folder(more) < 0 &&
                          strstr(err.message,
                                 form == SEALED && ranges ? "give its key" : "'layout: verbatim'"),
                      "%d: %s", _i, err.message);
    put_file("stranger.bin", "x", 1);
    folder_must_refuse("", "does not name 'stranger.bin'");
    put_file("stranger.bin", "", 0);
    remove_model();
    made[count - 1][signs[count - 1].bytes / 2] ^= 4;
    put_file(signs[count - 1].name, signs[count - 1].data, signs[count - 1].bytes);
    folder_must_refuse("source: {exclude: [stranger.bin]}\n", ""); /* by the first that sees it */
    for (int i = 0; i < 3; i++)
        free(made[i]);
}

/* ---- manifests of registries ----------------------------------------------------------------- */

static void put_at_registry(const char *kind, const char *name, const char *text)
{
    char target[256];
    snprintf(target, sizeof(target), "/v2/m/%s/%s", kind, name);
    sl_server_put(server, target, text, strlen(text), NULL);
}

static void put_blob(const char *kind, const char *tag, const char *text, char hex[65])
{
    char name[80];
    uint8_t digest[32];
    crypto_hash_sha256(digest, (const uint8_t *)text, strlen(text));
    sl_hex(digest, 32, hex);
    snprintf(name, sizeof(name), "sha256:%s", hex);
    put_at_registry(kind, name, text);
    if (tag)
        put_at_registry(kind, tag, text);
}

/* One file, as ORAS pushes it; signed (by may be NULL) as cosign did before version 3. */
static void push(const char *text, EVP_PKEY *by)
{
    char layer[65], model[65], blob[65], document[512], manifest[1024], tag[96];
    put_blob("blobs", NULL, text, layer);
    snprintf(manifest, sizeof(manifest),
             "{\"schemaVersion\": 2, \"layers\": [{\"mediaType\": \"x/raw\", \"digest\": "
             "\"sha256:%s\", \"size\": %zu, \"annotations\": "
             "{\"org.opencontainers.image.title\": \"m.bin\"}}]}",
             layer, strlen(text));
    put_blob("manifests", "v1", manifest, model);
    if (!by)
        return;
    snprintf(document, sizeof(document),
             "{\"critical\": {\"identity\": {\"docker-reference\": \"r/m\"}, \"image\": "
             "{\"docker-manifest-digest\": \"sha256:%s\"}, \"type\": \"cosign container image "
             "signature\"}, \"optional\": null}",
             model);
    put_blob("blobs", NULL, document, blob);
    snprintf(manifest, sizeof(manifest),
             "{\"schemaVersion\": 2, \"layers\": [{\"mediaType\": "
             "\"application/vnd.dev.cosign.simplesigning.v1+json\", \"digest\": \"sha256:%s\", "
             "\"size\": %zu, \"annotations\": {\"dev.cosignproject.cosign/signature\": \"%s\"}}]}",
             blob, strlen(document), sl_sigstore_sign(by, document));
    snprintf(tag, sizeof(tag), "sha256-%s.sig", model);
    put_blob("manifests", tag, manifest, blob);
}

static int load_image(const char *more)
{
    char uri[64];
    snprintf(uri, sizeof(uri), "oci://127.0.0.1:%u/m:v1", sl_server_port(server));
    return load_from(uri, more);
}

static void image_must_refuse(const char *more, const char *words)
{
    ck_assert_int_lt(load_image(more), 0);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, words), "%s", err.message);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
}

SL_TEST(a_signed_manifest_stands_for_all_its_files)
{
    char target[96], hex[65];
    uint8_t digest[32];
    EVP_PKEY *other = oms_key();
    setenv("HOME", "/nonexistent", 1);
    push("weights", NULL);
    image_must_refuse("", "signature");
    push("weights", other);
    image_must_refuse("", "signature 'sha256:");
    push("weights", key);
    ck_assert_msg(load_image("") == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", "weights", 7));
    ck_assert_msg(strncmp(result.signed_by.file, "sha256:", 7) == 0, "%s", result.signed_by.file);
    ck_assert_uint_eq(result.signed_by.loaded, 1);
    ck_assert_uint_eq(result.unhashed, 0);
    remove_model();
    crypto_hash_sha256(digest, (const uint8_t *)"weights", 7);
    sl_hex(digest, 32, hex);
    snprintf(target, sizeof(target), "/v2/m/blobs/sha256:%s", hex);
    sl_server_put(server, target, "wEights", 7, NULL);
    image_must_refuse("  hashes: \"off\"\n", "m.bin");
    EVP_PKEY_free(other);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
