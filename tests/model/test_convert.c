/*
 * Conversions: threads and blocks, shards, casts and parts, encryption, hashes; what is refused;
 * and that whatever fails leaves nothing behind.
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "claims.h"
#include "convert_case.h"
#include "golden.h"
#include "memory_store.h"
#include "model_maker.h"

SL_TEST(any_number_of_threads_writes_the_same)
{
    size_t bytes, first_bytes = 0;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes), *first = NULL;
    for (unsigned threads = 1; threads <= 6; threads++) {
        struct sl_convert_config config = sl_case_tensorizer;
        config.threads = threads;
        config.block_bytes = threads == 1 ? 0 : SL_CASE_BLOCK * (threads % 3 + 1);
        sl_case_expect("memory:model", sl_case_path("m.tensors", to), &config, NULL);
        if (!first)
            first = sl_model_read(sl_case_scratch, "m.tensors", &first_bytes);
        ck_assert(sl_model_same(sl_case_scratch, "m.tensors", first, first_bytes));
    }
    sl_case_same("memory:model", NULL, to, NULL);
    free(first);
    free(data);
}

SL_TEST(data_begin_where_align_says)
{
    size_t bytes;
    char to[SL_CASE_PATH_BYTES];
    struct sl_convert_config config = sl_case_tensorizer;
    uint8_t *data = sl_case_model(&bytes);
    config.align = 4096;
    sl_case_expect("memory:model", sl_case_path("m.tensors", to), &config, NULL);
    sl_case_same("memory:model", NULL, to, NULL);
    struct sl_case_opened opened;
    ck_assert_int_eq(sl_case_open(&opened, to, NULL, NULL), 0);
    for (size_t i = 0; i < opened.index->tensor_count; i++)
        ck_assert_uint_eq(opened.index->tensors[i].begin % 4096, 0);
    sl_case_close(&opened);
    free(data);
}

SL_TEST(shards_have_an_index_that_names_them)
{
    size_t bytes;
    char to[SL_CASE_PATH_BYTES], index[SL_CASE_PATH_BYTES], back[SL_CASE_PATH_BYTES];
    struct sl_convert_config config = sl_case_safetensors;
    uint8_t *data = sl_case_model(&bytes);
    config.shard_bytes = 25000;
    sl_case_expect("memory:model", sl_case_path("out/", to), &config, NULL);
    ck_assert(sl_model_exists(sl_case_scratch, "out/model-00001-of-00002.safetensors"));
    sl_case_path("out/model.safetensors.index.json", index);
    sl_case_expect(index, sl_case_path("back.safetensors", back), &sl_case_safetensors, NULL);
    sl_case_same("memory:model", NULL, back, NULL);
    free(data);
}

SL_TEST(tensors_are_chosen_cast_and_cut)
{
    size_t bytes;
    char to[SL_CASE_PATH_BYTES];
    struct sl_case_opened opened;
    uint8_t *data = sl_case_model(&bytes);
    static const char *const words[] = {
        "tensors.include=[\"big.*\"]",
        "tensors.cast={\"F32\": \"BF16\"}",
        "tensors.shard.rank=1",
        "tensors.shard.of=3",
        "tensors.shard.rules=[{\"match\": \"big.1\", \"dim\": 0}]",
        NULL,
    };
    sl_case_expect("memory:model", sl_case_path("m.tensors", to), &sl_case_tensorizer, words);
    ck_assert_int_eq(sl_case_open(&opened, to, NULL, NULL), 0);
    ck_assert_uint_eq(opened.index->tensor_count, 2);
    const struct sl_tensor *cut = sl_index_find(opened.index, "big.1", 5, NULL);
    ck_assert_str_eq(cut->dtype_name, "BF16");
    ck_assert_uint_eq(cut->shape[0], SL_CASE_BIG / 3);
    ck_assert_uint_eq(sl_index_find(opened.index, "big.0", 5, NULL)->shape[0], SL_CASE_BIG);
    uint8_t digest[32];
    for (size_t i = 0; i < 2; i++)
        sl_case_digest(opened.index, &opened.index->tensors[i], digest);
    sl_case_close(&opened);
    free(data);
}

/* ---- encryption ------------------------------------------------------------------------------ */

static struct sl_keys *key_of(uint8_t byte)
{
    uint8_t key[SL_KEY_BYTES];
    memset(key, byte, sizeof(key));
    return sl_keys_from_key(key, NULL);
}

static const char *write_key(const char *name, uint8_t byte, char word[SL_CASE_PATH_BYTES + 32])
{
    char path[SL_CASE_PATH_BYTES];
    uint8_t key[SL_KEY_BYTES];
    memset(key, byte, sizeof(key));
    FILE *file = fopen(sl_case_path(name, path), "w");
    ck_assert(file && fwrite(key, 1, sizeof(key), file) == sizeof(key) && fclose(file) == 0);
    snprintf(word, SL_CASE_PATH_BYTES + 32, "decrypt.keyFile=%s", path);
    return word;
}

SL_TEST(what_is_encrypted_is_decrypted_to_the_same_file)
{
    size_t bytes, plain_bytes;
    char plain[SL_CASE_PATH_BYTES], sealed[SL_CASE_PATH_BYTES], word[SL_CASE_PATH_BYTES + 32],
        back[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    struct sl_convert_config config = sl_case_tensorizer;
    SL_AUTO(sl_keys) keys = key_of(7);
    sl_case_expect("memory:model", sl_case_path("p.tensors", plain), &config, NULL);
    config.seal = keys;
    config.plain_only = true;
    sl_case_expect(plain, sl_case_path("s.tensors", sealed), &config, NULL);
    sl_case_same(plain, NULL, sealed, keys);
    config.seal = NULL;
    config.plain_only = false;
    config.encrypted_only = true;
    const char *words[] = {write_key("key", 7, word), NULL};
    sl_case_expect(sealed, sl_case_path("b.tensors", back), &config, words);
    uint8_t *before = sl_model_read(sl_case_scratch, "p.tensors", &plain_bytes);
    ck_assert(sl_model_same(sl_case_scratch, "b.tensors", before, plain_bytes));
    free(before);
    free(data);
}

SL_TEST(a_passphrase_seals_and_opens)
{
    size_t bytes;
    char sealed[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    struct sl_convert_config config = sl_case_tensorizer;
    SL_AUTO(sl_keys) keys = sl_keys_from_passphrase("open sesame", 11, NULL);
    config.seal = keys;
    config.kdf = (struct sl_kdf){.opslimit = 1, .memlimit = 8192, .alg = 2, .salt_bytes = 16};
    sl_crypt_random(config.kdf.salt, sizeof(config.kdf.salt));
    sl_case_expect("memory:model", sl_case_path("s.tensors", sealed), &config, NULL);
    sl_case_same("memory:model", NULL, sealed, keys);
    free(data);
}

static int by_nonce(const void *a, const void *b)
{
    return memcmp(a, b, SL_NONCE_BYTES);
}

SL_TEST(no_two_tensors_have_one_nonce)
{
    size_t bytes;
    char sealed[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes), nonces[32][SL_NONCE_BYTES];
    struct sl_convert_config config = sl_case_tensorizer;
    struct sl_case_opened opened;
    SL_AUTO(sl_keys) keys = key_of(9);
    config.seal = keys;
    sl_case_expect("memory:model", sl_case_path("s.tensors", sealed), &config, NULL);
    ck_assert_int_eq(sl_case_open(&opened, sealed, keys, NULL), 0);
    size_t count = 0;
    for (size_t i = 0; i < opened.index->tensor_count; i++)
        if (opened.index->tensors[i].crypt)
            memcpy(nonces[count++], opened.index->tensors[i].crypt->nonce, SL_NONCE_BYTES);
    ck_assert_uint_eq(count, 22);
    qsort(nonces, count, SL_NONCE_BYTES, by_nonce);
    for (size_t i = 1; i < count; i++)
        ck_assert_int_ne(memcmp(nonces[i - 1], nonces[i], 16), 0);
    sl_case_close(&opened);
    free(data);
}

SL_TEST(keys_and_files_must_fit)
{
    size_t bytes;
    struct sl_err err;
    char plain[SL_CASE_PATH_BYTES], sealed[SL_CASE_PATH_BYTES], out[SL_CASE_PATH_BYTES],
        word[SL_CASE_PATH_BYTES + 32];
    uint8_t *data = sl_case_model(&bytes);
    struct sl_convert_config config = sl_case_tensorizer;
    SL_AUTO(sl_keys) keys = key_of(7);
    sl_case_path("out.tensors", out);
    sl_case_expect("memory:model", sl_case_path("p.tensors", plain), &config, NULL);
    config.seal = keys;
    sl_case_expect(plain, sl_case_path("s.tensors", sealed), &config, NULL);
    config.plain_only = true;
    const char *right[] = {write_key("key", 7, word), NULL};
    ck_assert_int_lt(sl_case_convert(sealed, out, &config, right, NULL, &err), 0);
    ck_assert_msg(strstr(err.message, "encrypted already") != NULL, "%s", err.message);
    config = sl_case_tensorizer;
    config.encrypted_only = true;
    ck_assert_int_lt(sl_case_convert(plain, out, &config, NULL, NULL, &err), 0);
    ck_assert_msg(strstr(err.message, "not encrypted") != NULL, "%s", err.message);
    ck_assert_int_lt(sl_case_convert(sealed, out, &config, NULL, NULL, &err), 0);
    ck_assert_str_eq(err.code, "E_KEY_REQUIRED");
    char other[SL_CASE_PATH_BYTES + 32];
    const char *wrong[] = {write_key("other", 8, other), NULL};
    ck_assert_int_lt(sl_case_convert(sealed, out, &config, wrong, NULL, &err), 0);
    ck_assert_str_eq(err.code, "E_DECRYPT");
    ck_assert_int_lt(sl_case_convert("memory:model", out, &config, NULL, NULL, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert(!sl_model_exists(sl_case_scratch, "out.tensors"));
    free(data);
}

/* ---- hashes ---------------------------------------------------------------------------------- */

/* A .tensors file in memory with one byte of a tensor's data changed. */
static uint8_t *put_damaged(size_t *bytes)
{
    char to[SL_CASE_PATH_BYTES];
    uint8_t *model = sl_case_model(bytes);
    struct sl_case_opened opened;
    sl_case_expect("memory:model", sl_case_path("m.tensors", to), &sl_case_tensorizer, NULL);
    uint8_t *data = sl_model_read(sl_case_scratch, "m.tensors", bytes);
    ck_assert_int_eq(sl_case_open(&opened, to, NULL, NULL), 0);
    data[sl_index_find(opened.index, "big.1", 5, NULL)->begin + 5000] ^= 1;
    sl_case_close(&opened);
    unlink(to);
    free(model);
    sl_memory_clear();
    ck_assert_int_eq(sl_memory_put("damaged.tensors", data, *bytes, NULL), 0);
    return data;
}

SL_TEST(a_wrong_hash_leaves_nothing)
{
    static const char *const modes[] = {"verify.hashes=auto", "verify.hashes=all",
                                        "verify.hashes=require"};
    size_t bytes;
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = put_damaged(&bytes);
    sl_case_path("o.safetensors", to);
    for (size_t i = 0; i < SL_COUNT(modes); i++) {
        const char *words[] = {modes[i], "tensors.cast={\"F32\": \"F16\"}", NULL};
        for (unsigned cast = 0; cast < 2; cast++) {
            words[1] = cast ? words[1] : NULL;
            ck_assert_int_lt(sl_case_convert("memory:damaged.tensors", to, &sl_case_safetensors,
                                             words, NULL, &err),
                             0);
            ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
            ck_assert_msg(strstr(err.message, "big.1") != NULL, "%s", err.message);
            ck_assert_uint_eq(sl_case_files(sl_case_scratch), 0);
            words[1] = "tensors.cast={\"F32\": \"F16\"}";
        }
    }
    const char *off[] = {"verify.hashes=off", NULL};
    sl_case_expect("memory:damaged.tensors", to, &sl_case_safetensors, off);
    free(data);
}

SL_TEST(require_refuses_tensors_without_hashes)
{
    size_t bytes;
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    const char *words[] = {"verify.hashes=require", NULL};
    uint8_t *data = sl_case_model(&bytes);
    ck_assert_int_lt(sl_case_convert("memory:model", sl_case_path("o.tensors", to),
                                     &sl_case_tensorizer, words, NULL, &err),
                     0);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), 0);
    free(data);
}

SL_TEST(checks_are_counted)
{
    size_t bytes;
    struct sl_err err;
    struct sl_convert_result result;
    char plain[SL_CASE_PATH_BYTES], to[SL_CASE_PATH_BYTES];
    const char *all[] = {"verify.hashes=all", NULL};
    uint8_t *data = sl_case_model(&bytes);
    sl_case_expect("memory:model", sl_case_path("p.tensors", plain), &sl_case_tensorizer, NULL);
    sl_case_path("o.safetensors", to);
    ck_assert_int_eq(sl_case_convert(plain, to, &sl_case_safetensors, NULL, &result, &err), 0);
    ck_assert_uint_eq(result.checks, 23);
    ck_assert_uint_eq(result.bytes_read, SL_CASE_BIG * 32 + 20 * SL_CASE_SMALL);
    ck_assert_int_eq(sl_case_convert(plain, to, &sl_case_safetensors, all, &result, &err), 0);
    ck_assert_uint_eq(result.checks, 46);
    free(data);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void expect_refusal(const char *file, const struct sl_convert_config *base, const char *name,
                           const char *word)
{
    size_t bytes;
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = golden_read(file, &bytes);
    ck_assert_int_eq(sl_memory_put("golden", data, bytes, NULL), 0);
    ck_assert_int_lt(
        sl_case_convert("memory:golden", sl_case_path(name, to), base, NULL, NULL, &err), 0);
    ck_assert_msg(strstr(err.message, word) != NULL, "%s", err.message);
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), 0);
    sl_memory_clear();
    free(data);
}

SL_TEST(what_a_format_lacks_is_refused_by_name)
{
    expect_refusal("tensorizer/v4-meta.tensors.gz", &sl_case_safetensors, "o.safetensors",
                   "meta tensor");
    expect_refusal("tensorizer/v2-opaque.tensors.gz", &sl_case_safetensors, "o.safetensors",
                   "no such dtype");
    expect_refusal("gguf/all_types.gguf", &sl_case_tensorizer, "o.tensors", "Q4_0");
}

SL_TEST(a_model_without_tensors_is_told)
{
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    ck_assert_int_eq(sl_memory_put("empty", "\2\0\0\0\0\0\0\0{}", 10, NULL), 0);
    ck_assert_int_lt(sl_case_convert("memory:empty", sl_case_path("m.tensors", to),
                                     &sl_case_tensorizer, NULL, NULL, &err),
                     0);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    ck_assert_msg(strstr(err.message, "'memory:empty' holds no tensors:"), "%s", err.message);
}

SL_TEST(impossible_combinations_are_usage_errors)
{
    size_t bytes;
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    SL_AUTO(sl_keys) keys = key_of(1);
    struct sl_convert_config config = sl_case_safetensors;
    config.shard_bytes = 1000;
    sl_case_path("o.safetensors", to);
    ck_assert_int_lt(sl_case_convert("memory:model", to, &config, NULL, NULL, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    config = sl_case_safetensors;
    config.seal = keys;
    ck_assert_int_lt(sl_case_convert("memory:model", to, &config, NULL, NULL, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    config = sl_case_safetensors;
    config.replace = false;
    sl_case_expect("memory:model", to, &config, NULL);
    ck_assert_int_lt(sl_case_convert("memory:model", to, &config, NULL, NULL, &err), 0);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "exists"), "%s", err.message);
    free(data);
}

SL_TEST(a_mirror_is_tried_when_the_source_cannot_be_opened)
{
    size_t bytes;
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    const char *words[] = {"source.mirrors=[memory:neither,memory:model]", NULL};
    sl_case_expect("memory:none", sl_case_path("m.tensors", to), &sl_case_tensorizer, words);
    sl_case_same("memory:model", NULL, to, NULL);
    words[0] = "source.mirrors=[memory:neither]";
    ck_assert_int_lt(sl_case_convert("memory:none", to, &sl_case_tensorizer, words, NULL, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    free(data);
}

/* ---- what fails leaves nothing --------------------------------------------------------------- */

static int try_once(void *arg, struct sl_err *err)
{
    unsigned files = sl_case_files(sl_case_scratch);
    int done = sl_convert_run(arg, NULL, err);
    if (done < 0) {
        ck_assert_msg(err->kind == SL_E_NO_SPACE || err->kind == SL_E_NET, "%s", err->message);
        ck_assert_uint_eq(sl_case_files(sl_case_scratch), files);
    }
    return done;
}

static void run_attempts(unsigned (*each)(int (*once)(void *, struct sl_err *), void *),
                         struct sl_keys *seal)
{
    size_t bytes;
    char to[SL_CASE_PATH_BYTES];
    struct sl_specs specs;
    uint8_t *data = sl_case_model(&bytes);
    sl_case_spec(&specs, "memory:model", NULL);
    struct sl_convert_config config = sl_case_tensorizer;
    config.spec = &specs.items[0];
    config.to = sl_case_path("m.tensors", to);
    config.threads = 1;
    config.seal = seal;
    ck_assert_uint_gt(each(try_once, &config), 10);
    sl_case_same("memory:model", NULL, to, seal);
    sl_specs_release(&specs);
    free(data);
}

SL_TEST(every_failing_allocation_leaves_nothing)
{
    SL_AUTO(sl_keys) keys = key_of(3);
    run_attempts(golden_each_allocation, keys);
}

SL_TEST(every_failing_read_leaves_nothing)
{
    run_attempts(golden_each_read, NULL);
}

/* Writes fail at one place after another: beyond the limit of a file's size. */
SL_TEST(a_full_destination_leaves_nothing)
{
    size_t bytes;
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 1000; limit < 310000; limit += 10007) {
        const struct rlimit file_size = {limit, RLIM_INFINITY};
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &file_size), 0);
        ck_assert_int_lt(sl_case_convert("memory:model", sl_case_path("m.tensors", to),
                                         &sl_case_tensorizer, NULL, NULL, &err),
                         0);
        ck_assert_msg(err.kind == SL_E_NO_SPACE, "%s", err.message);
        ck_assert_uint_eq(sl_case_files(sl_case_scratch), 0);
    }
    free(data);
}

SL_TEST(a_cancel_leaves_nothing)
{
    size_t bytes;
    struct sl_err err;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    struct sl_convert_config config = sl_case_tensorizer;
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    sl_cancel_raise(cancel, 15);
    config.cancel = cancel;
    ck_assert_int_lt(
        sl_case_convert("memory:model", sl_case_path("m.tensors", to), &config, NULL, NULL, &err),
        0);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), 0);
    sl_cancel_free(cancel);
    free(data);
}

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 120)
