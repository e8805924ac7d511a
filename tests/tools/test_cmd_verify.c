/* The command verify as a process: what it reads, what it says, how it exits. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "hf_hub.h"
#include "json.h"
#include "model_maker.h"
#include "range_blob.h"
#include "run_sluice.h"
#include "scratch.h"
#include "xet_store.h"

enum { PATH_BYTES = 512 };
static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static struct ran ran;

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

/* A path in the scratch directory, good until four more were asked for. */
static const char *at(const char *name)
{
    static char paths[4][PATH_BYTES];
    static unsigned number;
    char *path = paths[number++ % 4];
    snprintf(path, PATH_BYTES, "%s/%s", scratch, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(at(name), "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

static void copy_fixture(const char *name, const char *as)
{
    char path[PATH_BYTES];
    struct sl_buf text = SL_BUF_INIT(1024 * 1024);
    snprintf(path, sizeof(path), SL_TEST_DATA "/minisign/%s", name);
    ck_assert_int_eq(sl_buf_read_file(&text, path, NULL), 0);
    write_file(as, text.data, text.used);
    sl_buf_release(&text);
}

#define VERIFY(...)                                                                                \
    do {                                                                                           \
        ran_release(&ran);                                                                         \
        RUN(&ran, "verify", __VA_ARGS__);                                                          \
    } while (0)
#define EXPECT(code, word)                                                                         \
    ck_assert_msg(ran.exit_code == (code) && (strstr(ran.out, word) || strstr(ran.err, word)),     \
                  "exit code %d\n%s\n%s", ran.exit_code, ran.out, ran.err)

SL_TEST(what_has_no_hash_is_said_and_fails_only_if_required)
{
    size_t bytes;
    uint8_t *data = sl_model_safetensors("a,b", 500, &bytes);
    write_file("m.safetensors", data, bytes);
    free(data);
    VERIFY(at("m.safetensors"));
    EXPECT(0, "0 right, 0 wrong, 1 without a hash");
    EXPECT(0, "nothing was verified");
    VERIFY(at("m.safetensors"), "--require");
    EXPECT(5, "hashes are required");
    VERIFY(at("m.safetensors"), "--set", "verify.hashes=require");
    EXPECT(5, "hashes are required");
    VERIFY(at("m.safetensors"), "--set",
           "verify.sha256.m.safetensors="
           "0000000000000000000000000000000000000000000000000000000000000000");
    EXPECT(5, "expected 0000");
}

/* A spec may let a load compare them; what is read here comes from the source itself. */
SL_TEST_LOOP(samples_of_what_may_come_through_caches_are_no_hashes, 0, 2)
{
    size_t bytes;
    struct sl_server *server = sl_server_start();
    uint8_t *data = sl_model_safetensors("a,b", 500, &bytes);
    sl_server_put(server, "/m.safetensors", data, bytes, "\"v1\"");
    free(data);
    VERIFY(sl_server_url(server, "/m.safetensors"), "--through", sl_server_url(server, ""), "--set",
           _i ? "source.through.unverified=warn" : "source.through.unverified=refuse");
    EXPECT(0, "0 right, 0 wrong, 1 without a hash");
    EXPECT(0, "nothing was verified");
    sl_server_stop(server);
}

SL_TEST(every_wrong_tensor_is_told)
{
    size_t bytes;
    uint8_t *data = golden_read("tensorizer/v1-module.tensors.gz", &bytes);
    write_file("m.tensors", data, bytes);
    VERIFY(at("m.tensors"), "--require");
    EXPECT(0, " 0 wrong, 0 without a hash");
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(golden_index(&open, "m.tensors", data, bytes, &err), 0);
    unsigned changed = 0, right = 0;
    for (size_t i = 0; i < open.index->tensor_count; i++) {
        const struct sl_tensor *tensor = &open.index->tensors[i];
        if (tensor->begin == tensor->end || changed == 2) {
            right++;
            continue;
        }
        data[tensor->begin] ^= 1;
        changed++;
    }
    golden_release(&open);
    write_file("m.tensors", data, bytes);
    free(data);
    VERIFY(at("m.tensors"), "--json");
    EXPECT(5, "the file says");
    /* a line of results, a line of the error */
    json_t *result = sl_json_parse(ran.out, strcspn(ran.out, "\n"), "result", NULL);
    ck_assert_ptr_nonnull(result);
    ck_assert_uint_eq(sl_json_get_uint(result, "bad", 0), 2);
    ck_assert_uint_eq(sl_json_get_uint(result, "good", 0), right);
    json_decref(result);
}

/* The first bytes of a tensor's stored hash, changed. */
static void damage_hash(const char *object, uint8_t *data, size_t bytes, const char *tensor)
{
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(golden_index(&open, object, data, bytes, &err), 0);
    for (size_t i = 0; i < open.index->tensor_count; i++) {
        const struct sl_tensor *t = &open.index->tensors[i];
        if (strcmp(t->name, tensor) != 0)
            continue;
        ck_assert_uint_gt(t->hash_count, 0);
        uint8_t *hash = memmem(data, bytes, t->hashes[0].expected, t->hashes[0].sha256 ? 32 : 4);
        if (!hash) { /* stored with its first byte last */
            uint8_t turned[4];
            for (int k = 0; k < 4; k++)
                turned[k] = t->hashes[0].expected[3 - k];
            hash = memmem(data, bytes, turned, sizeof(turned));
        }
        ck_assert_ptr_nonnull(hash);
        hash[0] ^= 1;
    }
    golden_release(&open);
}

SL_TEST(tensors_without_data_are_checked_by_their_headers)
{
    static const char *const files[] = {"v4-meta", "v4-meta-only", "v4-meta-opaque"};
    static const char *const names[] = {"m", "only", "m"};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        char path[PATH_BYTES];
        size_t bytes;
        snprintf(path, sizeof(path), "tensorizer/%s.tensors.gz", files[i]);
        uint8_t *data = golden_read(path, &bytes);
        write_file("m.tensors", data, bytes);
        VERIFY(at("m.tensors"), "--require");
        EXPECT(0, " 0 wrong, 0 without a hash");
        damage_hash("m.tensors", data, bytes, names[i]);
        write_file("m.tensors", data, bytes);
        VERIFY(at("m.tensors"));
        EXPECT(5, " 1 wrong, 0 without a hash");
        free(data);
    }
}

SL_TEST(a_published_meta_tensor_that_is_no_longer_zero_is_found)
{
    size_t bytes;
    uint8_t *data = golden_read("tensorizer/v4-meta.tensors.gz", &bytes);
    write_file("m.tensors", data, bytes);
    free(data);
    ran_release(&ran);
    RUN(&ran, "load", at("m.tensors"), "--to", at("to"), "--set", "sink.tmpfs.layout=safetensors");
    EXPECT(0, "");
    VERIFY(at("to"));
    EXPECT(0, "1 right, 0 wrong");
    chmod(at("to/model.safetensors"), 0644);
    FILE *published = fopen(at("to/model.safetensors"), "r+");
    ck_assert_ptr_nonnull(published); /* its last five bytes are m8, which has none in m.tensors */
    ck_assert(fseek(published, -3, SEEK_END) == 0 && fputc(1, published) == 1);
    fclose(published);
    VERIFY(at("to"));
    EXPECT(5, "does not match its CRC32C");
}

SL_TEST(encrypted_tensors_are_checked_with_their_key)
{
    size_t bytes;
    uint8_t key[32];
    uint8_t *data = golden_read("tensorizer/v3-key.tensors.gz", &bytes);
    sl_unhex("030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dc", key, 32);
    write_file("key", key, 32);
    write_file("m.tensors", data, bytes);
    VERIFY(at("m.tensors"));
    EXPECT(0, "0 right, 0 wrong, 7 without a hash");
    EXPECT(0, "encrypted: give its key");
    VERIFY(at("m.tensors"), "--key-file", at("key"), "--require");
    EXPECT(0, "7 right, 0 wrong, 0 without a hash");
    key[0] ^= 1;
    write_file("wrong", key, 32);
    VERIFY(at("m.tensors"), "--key-file", at("wrong"));
    EXPECT(5, "key");
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(golden_index(&open, "m.tensors", data, bytes, &err), 0);
    data[open.index->tensors[0].begin] ^= 1;
    golden_release(&open);
    write_file("m.tensors", data, bytes);
    free(data);
    VERIFY(at("m.tensors"), "--key-file", at("key"));
    EXPECT(5, "6 right, 1 wrong");
    EXPECT(5, "'f32'");
}

SL_TEST(a_key_for_what_is_plain_is_a_mistake)
{
    size_t bytes;
    uint8_t *data = golden_read("tensorizer/v1-module.tensors.gz", &bytes);
    write_file("m.tensors", data, bytes);
    write_file("key", data, 32);
    free(data);
    VERIFY(at("m.tensors"), "--key-file", at("key"));
    EXPECT(2, "is not encrypted");
}

SL_TEST(signatures_and_given_hashes_of_a_spec_are_checked)
{
    char text[2048];
    copy_fixture("object", "object");
    copy_fixture("prehashed.minisig", "object.minisig");
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
             "source: {uri: \"%s\"}\nsink: {tmpfs: {path: /nowhere}}\n"
             "verify: {hashes: require, minisign: {publicKeyFile: \"%s\"}}\n",
             at("object"), SL_TEST_DATA "/minisign/one.pub");
    write_file("m.yaml", text, strlen(text));
    VERIFY(at("m.yaml"));
    EXPECT(0, "signature of minisign");
    copy_fixture("other.minisig", "object.minisig");
    VERIFY(at("m.yaml"));
    EXPECT(5, "signed by key 20F94F40CB621343");
    copy_fixture("legacy.minisig", "object.minisig");
    VERIFY(at("m.yaml"));
    EXPECT(0, "1 right, 0 wrong, 0 without a hash");
    copy_fixture("prehashed.minisig", "object.minisig");
    copy_fixture("one.pub", "object");
    VERIFY(at("m.yaml"));
    EXPECT(5, "its signature does not match these bytes");
}

SL_TEST(a_name_cannot_forge_a_line)
{
    size_t bytes;
    struct ran convert = {0};
    uint8_t *data = sl_model_safetensors("a\\nok       tensor  b,\\u001b[2J", 16, &bytes);
    write_file("m.safetensors", data, bytes);
    free(data);
    RUN(&convert, "convert", at("m.safetensors"), at("m.tensors"));
    ck_assert_int_eq(convert.exit_code, 0);
    ran_release(&convert);
    VERIFY(at("m.tensors"));
    EXPECT(0, "tensor  a?ok       tensor  b\n");
    EXPECT(0, "tensor  ?[2J\n");
}

SL_TEST(other_formats_are_listed_as_bare)
{
    size_t bytes;
    uint8_t *data = golden_read("gguf/all_types.gguf", &bytes);
    write_file("m.gguf", data, bytes);
    free(data);
    VERIFY(at("m.gguf"));
    EXPECT(0, "m.gguf: its format carries none");
    VERIFY(at("nothing.gguf"));
    EXPECT(4, "nothing.gguf");
}

/* A hub lists hashes of what has none of its own: SHA-256 and git's, right ones and wrong ones. */
SL_TEST_LOOP(what_a_store_lists_is_compared, 0, 2)
{
    struct sl_hub hub;
    size_t bytes;
    uint8_t *data = sl_model_safetensors("a,b", 500, &bytes);
    sl_hub_start(&hub);
    sl_hub_put(&hub, "model.safetensors", data, bytes, true);
    sl_hub_put(&hub, "config.json", "{}", 2, false);
    if (_i)
        hub.files[0].hash[7] = hub.files[0].hash[7] == '0' ? '1' : '0';
    setenv("HF_ENDPOINT", sl_hub_url(&hub), 1);
    VERIFY("hf://org/name", "--require");
    EXPECT(_i ? 5 : 0,
           _i ? "1 right, 1 wrong, 0 without" : "model.safetensors: sha256 of the store");
    EXPECT(_i ? 5 : 0, "config.json: sha1 of the store");
    sl_hub_stop(&hub);
    free(data);
}

/* A file of a bucket has none but that of Xet, which checks what comes through it. */
SL_TEST_LOOP(what_was_checked_as_it_came_is_right, 0, 3)
{
    struct sl_hub hub;
    struct sl_xet_store xet;
    sl_hub_start(&hub);
    sl_xet_store_start(&xet);
    sl_xet_store_put(&xet, sl_blob(), SL_BLOB_BYTES);
    hub.xet_url = sl_server_url(xet.cas, "");
    sl_hub_keep(&hub, "m.dat", sl_blob(), SL_BLOB_BYTES, xet.file_hash);
    setenv("HF_ENDPOINT", sl_hub_url(&hub), 1);
    if (_i == 2)
        sl_xet_store_spoil(&xet, false);
    VERIFY("hf://buckets/org/name", "--set", _i == 1 ? "source.hf.xet=off" : "source.hf.xet=on");
    if (_i == 0)
        EXPECT(0, "m.dat: the store's hash, as it came\n1 right");
    else
        EXPECT(_i == 1 ? 0 : 5, _i == 1 ? "0 right, 0 wrong, 1 without" : "what Xet gives is not");
    sl_hub_stop(&hub);
    sl_xet_store_stop(&xet);
}

SL_CASE(.setup = setup, .teardown = teardown)
