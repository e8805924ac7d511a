/*
 * Any part of a tensor as plaintext: encrypted ones in pieces of many sizes, slices, several
 * readers at a time; and what is said when a piece does not open.
 */
#include "tensor_reader.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "golden.h"
#include "hash.h"
#include "memory_store.h"
#include "seed.h"
#include "stores.h"

enum { MIB = 1024 * 1024, ROWS = 300, COLUMNS = 211 };

static const uint8_t key[SL_KEY_BYTES] = {1, 2, 3};

/* An object whose bytes are the data of tensors that one key encrypts, without any header. */
struct made {
    uint8_t *plain, *cipher;
    size_t bytes;
    struct sl_store *store;
    struct sl_index *index;
    struct sl_keys *keys;
};

static void made_release(struct made *made)
{
    sl_index_free(made->index);
    sl_store_free(made->store);
    sl_keys_free(made->keys);
    sl_memory_clear();
    free(made->plain);
    free(made->cipher);
}

/* Plaintext whose bytes tell where they lie. */
static void made_open(struct made *made, size_t bytes)
{
    memset(made, 0, sizeof(*made));
    ck_assert_int_eq(sl_crypt_init(NULL), 0);
    made->bytes = bytes;
    made->plain = malloc(bytes);
    made->cipher = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        made->plain[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + (i >> 16));
    made->index = sl_index_new("tensorizer", NULL);
    made->index->encrypted = true;
    made->keys = sl_keys_from_key(key, NULL);
}

/* The object as it is now: its source keeps the first byte. */
static void made_source(struct made *made)
{
    struct sl_source *source;
    char *name;
    ck_assert_int_eq(sl_memory_put("made", made->cipher, made->bytes, NULL), 0);
    ck_assert_int_eq(sl_store_open("memory:made", NULL, &made->store, &name, NULL), 0);
    ck_assert_int_eq(sl_source_open(made->store, name, 1, &source, NULL), 0);
    ck_assert_int_eq(sl_index_add_source(made->index, source, NULL), 0);
    free(name);
}

/* A tensor over bytes [begin, begin + rows * columns) in pieces of that size. */
static void made_add(struct made *made, size_t begin, uint64_t rows, uint64_t columns,
                     uint64_t piece_bytes)
{
    struct sl_index *index = made->index;
    struct sl_tensor *tensor = sl_index_add_tensor(index, NULL);
    uint64_t *shape = sl_index_alloc(index, 2 * sizeof(*shape), NULL), bytes = rows * columns;
    struct sl_crypt *crypt = sl_index_alloc(index, sizeof(*crypt), NULL);
    uint64_t count = (bytes - 1) / piece_bytes + 1;
    uint8_t *nonce = sl_index_alloc(index, SL_NONCE_BYTES, NULL),
            *macs = sl_index_alloc(index, count * SL_MAC_BYTES, NULL);
    shape[0] = rows;
    shape[1] = columns;
    sl_index_plain_name(index, tensor, "t", 1, NULL);
    tensor->dtype = SL_DTYPE_U8;
    tensor->dtype_name = "U8";
    tensor->rank = 2;
    tensor->shape = shape;
    tensor->bytes = bytes;
    tensor->begin = begin;
    tensor->end = begin + bytes;
    tensor->encrypted = true;
    sl_test_fill(nonce, SL_NONCE_BYTES);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = begin + i * piece_bytes, left = tensor->end - at;
        sl_crypt_seal(key, nonce, i, made->plain + at, made->cipher + at, SL_MIN(left, piece_bytes),
                      macs + i * SL_MAC_BYTES);
    }
    *crypt = (struct sl_crypt){.piece_bytes = count == 1 ? bytes : piece_bytes,
                               .mac_count = count,
                               .nonce = nonce,
                               .macs = macs};
    tensor->crypt = crypt;
    tensor->refused = SL_E_AUTH;
    tensor->refused_code = "E_KEY_REQUIRED";
    tensor->refused_why = "no key";
    if (index->source_count == 0)
        made_source(made);
}

static void unlock(struct made *made)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_index_unlock(made->index, made->keys, &err) == 0, "%s", err.message);
}

/* Is [begin, end) of tensor `number` what it was? Reads into memory of the exact size. */
static void check_range(struct made *made, struct sl_tensor_reader *reader, size_t number,
                        uint64_t begin, uint64_t end)
{
    const struct sl_tensor *tensor = &made->index->tensors[number];
    struct sl_err err = SL_ERR_INIT;
    uint8_t *out = malloc(end - begin ? end - begin : 1);
    ck_assert_msg(sl_tensor_read(reader, tensor, NULL, begin, end, out, &err) == 0, "%s",
                  err.message);
    ck_assert_msg(memcmp(out, made->plain + tensor->begin + begin, end - begin) == 0,
                  "[%llu, %llu)", (unsigned long long)begin, (unsigned long long)end);
    free(out);
}

static void check_ranges(uint64_t bytes, uint64_t piece_bytes, unsigned times)
{
    struct made made;
    made_open(&made, bytes + 100);
    made_add(&made, 77, 1, bytes, piece_bytes);
    unlock(&made);
    struct sl_tensor_reader *reader = sl_tensor_reader_new(made.index, NULL);
    check_range(&made, reader, 0, 0, bytes);
    check_range(&made, reader, 0, bytes, bytes);
    for (unsigned i = 0; i < times; i++) {
        uint64_t begin = sl_test_pick(bytes), end = begin + sl_test_pick(bytes - begin + 1);
        if (i % 3 == 0) /* whole pieces */
            begin = begin / piece_bytes * piece_bytes;
        uint64_t few = begin + sl_test_pick(3 * piece_bytes);
        if (i % 3 == 1)
            end = SL_MIN(end, few);
        check_range(&made, reader, 0, begin, SL_MAX(begin, end));
    }
    sl_tensor_reader_free(reader);
    made_release(&made);
}

SL_TEST(any_range_of_pieces_of_any_size_is_read)
{
    check_ranges(1, 1024, 3);
    check_ranges(1024, 1024, 20);
    check_ranges(300000, 1024, 300);
    check_ranges(300000, 64 * 999, 300);
    check_ranges(300000, 128 * 1024, 300);
    check_ranges(300000, 1 << 20, 100); /* one MAC */
    check_ranges(5 * MIB + 3, SL_PIECE_BYTES, 10);
}

SL_TEST(pieces_too_large_to_be_held_are_read_in_windows)
{
    check_ranges(17 * MIB + 5, 32 * MIB, 4);           /* one */
    check_ranges(36 * MIB + 64 * 7, 17 * MIB + 64, 4); /* three, not in step with the windows */
}

SL_TEST(ranges_in_order_fetch_each_piece_once)
{
    enum { STEP = 3 * MIB + 1000 };
    struct made made;
    made_open(&made, 20 * MIB);
    made_add(&made, 0, 20, MIB, SL_PIECE_BYTES);
    unlock(&made);
    struct sl_tensor_reader *reader = sl_tensor_reader_own(made.index, NULL);
    for (uint64_t at = 0; at < made.bytes; at += STEP)
        check_range(&made, reader, 0, at, SL_MIN(at + STEP, made.bytes));
    uint64_t object_bytes, requests, bytes;
    sl_index_counts(made.index, &object_bytes, &requests, &bytes);
    ck_assert_uint_le(bytes, object_bytes + 1);
    ck_assert_uint_le(requests, 1 + 3 * (made.bytes / STEP + 1));
    sl_tensor_reader_free(reader);
    made_release(&made);
}

/* ---- slices ---------------------------------------------------------------------------------- */

static void check_slice(struct made *made, struct sl_tensor_reader *reader,
                        const struct sl_slice *slice)
{
    uint64_t shape[2], bytes = sl_slice_bytes(&made->index->tensors[0], slice, shape), used = 0;
    ck_assert_uint_eq(shape[0], slice->end[0] - slice->begin[0]);
    ck_assert_uint_eq(shape[1], slice->end[1] - slice->begin[1]);
    ck_assert_uint_eq(bytes, shape[0] * shape[1]);
    uint8_t *expected = malloc(bytes + 1), *out = malloc(bytes + 1);
    for (uint64_t row = slice->begin[0]; row < slice->end[0]; row++, used += shape[1])
        memcpy(expected + used, made->plain + row * COLUMNS + slice->begin[1], shape[1]);
    for (unsigned i = 0; i < 10; i++) {
        uint64_t begin = i ? sl_test_pick(bytes + 1) : 0,
                 end = i ? begin + sl_test_pick(bytes - begin + 1) : bytes;
        struct sl_err err = SL_ERR_INIT;
        ck_assert_msg(
            sl_tensor_read(reader, &made->index->tensors[0], slice, begin, end, out, &err) == 0,
            "%s", err.message);
        ck_assert_int_eq(memcmp(out, expected + begin, end - begin), 0);
    }
    uint8_t digest[32], expected_digest[32];
    struct sl_sha256 *sha = sl_sha256_new(NULL);
    sl_sha256_update(sha, expected, bytes);
    sl_sha256_finish(sha, expected_digest);
    sl_sha256_free(sha);
    ck_assert_int_eq(sl_slice_digest(made->index, &made->index->tensors[0], slice, digest, NULL),
                     0);
    ck_assert_int_eq(memcmp(digest, expected_digest, 32), 0);
    free(expected);
    free(out);
}

static void check_slices(struct made *made)
{
    struct sl_tensor_reader *reader = sl_tensor_reader_new(made->index, NULL);
    for (unsigned i = 0; i < 60; i += SL_TEST_STEP) {
        struct sl_slice slice = {{0}, {ROWS, COLUMNS}};
        if (i % 3) {
            slice.begin[0] = sl_test_pick(ROWS);
            slice.end[0] = slice.begin[0] + sl_test_pick(ROWS - slice.begin[0] + 1);
        }
        if (i % 2) {
            slice.begin[1] = sl_test_pick(COLUMNS);
            slice.end[1] = slice.begin[1] + sl_test_pick(COLUMNS - slice.begin[1] + 1);
        }
        check_slice(made, reader, &slice);
    }
    sl_tensor_reader_free(reader);
}

SL_TEST(any_part_of_a_slice_is_read_encrypted_or_not)
{
    struct made made;
    made_open(&made, ROWS * COLUMNS);
    made_add(&made, 0, ROWS, COLUMNS, 1024);
    unlock(&made);
    check_slices(&made);
    made.index->tensors[0].encrypted = false;
    memcpy(made.cipher + 1, made.plain + 1, made.bytes - 1);
    made.plain[0] = made.cipher[0]; /* which the source keeps */
    check_slices(&made);
    made_release(&made);
}

SL_TEST(meta_tensors_are_zeros_and_refused_ones_are_refused)
{
    struct made made;
    uint8_t out[100];
    struct sl_err err = SL_ERR_INIT;
    made_open(&made, 100);
    made_add(&made, 0, 1, 100, 1024);
    struct sl_tensor_reader *reader = sl_tensor_reader_new(made.index, NULL);
    ck_assert_int_lt(sl_tensor_read(reader, &made.index->tensors[0], NULL, 0, 100, out, &err), 0);
    ck_assert_str_eq(err.code, "E_KEY_REQUIRED");
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    struct sl_tensor *tensor = &made.index->tensors[0];
    tensor->encrypted = false;
    tensor->refused = 0;
    tensor->meta = true;
    tensor->begin = tensor->end;
    memset(out, 1, sizeof(out));
    ck_assert_int_eq(sl_tensor_read(reader, tensor, NULL, 10, 60, out + 10, &err), 0);
    for (unsigned i = 0; i < sizeof(out); i++)
        ck_assert_int_eq(out[i], i < 10 || i >= 60);
    sl_tensor_reader_free(reader);
    made_release(&made);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Reading fails with E_DECRYPT, says this, and nothing is in out. */
static void expect_failure(struct made *made, size_t number, uint64_t begin, uint64_t end,
                           const char *code, const char *says)
{
    struct sl_tensor_reader *reader = sl_tensor_reader_new(made->index, NULL);
    struct sl_err err = SL_ERR_INIT;
    uint8_t *out = malloc(end - begin), digest[32];
    const struct sl_tensor *tensor = &made->index->tensors[number];
    memset(out, 0xaa, end - begin);
    ck_assert_int_lt(sl_tensor_read(reader, tensor, NULL, begin, end, out, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, code);
    ck_assert_msg(strstr(err.message, says) != NULL, "%s", err.message);
    for (uint64_t i = 0; i < end - begin; i++)
        ck_assert_int_eq(out[i], 0);
    ck_assert_int_lt(sl_tensor_digest(made->index, tensor, false, digest, &err), 0);
    ck_assert_msg(strstr(err.message, says) != NULL, "%s", err.message);
    free(out);
    sl_tensor_reader_free(reader);
}

SL_TEST(damaged_data_are_told_from_a_wrong_key)
{
    struct made made;
    made_open(&made, 100000);
    made_add(&made, 0, 1, 50000, 1024);
    made_add(&made, 50000, 1, 300, 1024);
    unlock(&made);
    made.cipher[20 * 1024 + 5] ^= 1;
    expect_failure(&made, 0, 0, 50000, "E_DECRYPT", "damaged");
    expect_failure(&made, 0, 20 * 1024 + 100, 20 * 1024 + 101, "E_DECRYPT", "piece 21 of 49");
    made.cipher[50000] ^= 1; /* the first piece of all that is tried, and its tensor's only one */
    expect_failure(&made, 1, 0, 300, "E_DECRYPT", "damaged");
    uint8_t wrong[SL_KEY_BYTES] = {9};
    for (size_t i = 0; i < 2; i++)
        made.index->tensors[i].key = wrong;
    expect_failure(&made, 0, 0, 50000, "E_DECRYPT", "the key or passphrase is probably wrong");
    expect_failure(&made, 1, 0, 300, "E_DECRYPT", "the key or passphrase is probably wrong");
    made_release(&made);
}

SL_TEST(what_cannot_be_told_is_not_claimed)
{
    struct made made;
    made_open(&made, 1000);
    made_add(&made, 0, 1, 1000, 1024);
    unlock(&made);
    made.cipher[999] ^= 1;
    expect_failure(&made, 0, 0, 1000, "E_DECRYPT", "nothing to compare with");
    made_release(&made);
}

SL_TEST(a_huge_piece_is_trusted_only_whole_and_only_as_it_was)
{
    enum { BYTES = 18 * MIB };
    struct made made;
    uint8_t *out = malloc(BYTES);
    struct sl_err err = SL_ERR_INIT;
    made_open(&made, BYTES);
    made_add(&made, 0, 1, BYTES, BYTES);
    unlock(&made);
    made.cipher[BYTES - 1] ^= 1;
    expect_failure(&made, 0, 0, 100, "E_DECRYPT", "nothing to compare with");
    made.cipher[BYTES - 1] ^= 1;
    struct sl_tensor_reader *reader = sl_tensor_reader_new(made.index, NULL);
    check_range(&made, reader, 0, 0, 100);
    made.cipher[9 * MIB] ^= 1; /* after it was checked */
    check_range(&made, reader, 0, 5 * MIB, 8 * MIB);
    ck_assert_int_lt(
        sl_tensor_read(reader, &made.index->tensors[0], NULL, 7 * MIB, 10 * MIB, out, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
    ck_assert(out[0] == 0 && memcmp(out, out + 1, 3 * MIB - 1) == 0);
    sl_tensor_reader_free(reader);
    free(out);
    made_release(&made);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int unlock_with(struct made *made, struct sl_keys *keys, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_index_unlock(made->index, keys, err);
}

SL_TEST(keys_and_indexes_must_fit)
{
    struct made made;
    struct sl_err err;
    made_open(&made, 1000);
    made_add(&made, 0, 1, 500, 1024);
    ck_assert_int_lt(unlock_with(&made, NULL, &err), 0);
    ck_assert_str_eq(err.code, "E_KEY_REQUIRED");
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    struct sl_keys *passphrase = sl_keys_from_passphrase("p", 1, NULL);
    ck_assert_int_lt(unlock_with(&made, passphrase, &err), 0);
    ck_assert_str_eq(err.code, "E_KDF"); /* it was made with a key */
    ck_assert_ptr_null(made.index->tensors[0].key);
    ck_assert_int_eq(unlock_with(&made, made.keys, &err), 0);
    ck_assert_int_eq(unlock_with(&made, made.keys, &err), 0); /* twice is once */
    made_add(&made, 500, 1, 500, 1024);
    made.index->tensors[1].encrypted = false; /* smuggled in */
    made.index->tensors[1].refused = 0;
    ck_assert_int_lt(unlock_with(&made, made.keys, &err), 0);
    ck_assert_str_eq(err.code, "E_NOT_ENCRYPTED");
    made.index->encrypted = false;
    ck_assert_int_lt(unlock_with(&made, made.keys, &err), 0);
    ck_assert_str_eq(err.code, "E_NOT_ENCRYPTED");
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_int_eq(unlock_with(&made, NULL, &err), 0);
    sl_keys_free(passphrase);
    made_release(&made);
}

/* Tensors that take turns with `count` derivations. */
static int unlock_derivations(unsigned count, struct sl_err *err)
{
    struct made made;
    struct sl_kdf kdfs[20] = {{0}};
    made_open(&made, 4000);
    for (unsigned i = 0; i < 40; i++) {
        made_add(&made, 100 * i, 1, 100, 1024);
        struct sl_kdf *kdf = &kdfs[i % count];
        *kdf = (struct sl_kdf){.opslimit = 1, .memlimit = 8192, .alg = 2, .salt_bytes = 16};
        kdf->salt[3] = (uint8_t)(i % count);
        ((struct sl_crypt *)(uintptr_t)made.index->tensors[i].crypt)->kdf = kdf;
    }
    struct sl_keys *keys = sl_keys_from_passphrase("p", 1, NULL);
    int result = unlock_with(&made, keys, err);
    if (result == 0)
        ck_assert_ptr_eq(made.index->tensors[0].key, made.index->tensors[count].key);
    made_release(&made);
    sl_keys_free(keys);
    return result;
}

SL_TEST(a_file_may_ask_for_few_derivations)
{
    struct sl_err err;
    ck_assert_int_eq(unlock_derivations(1, &err), 0);
    ck_assert_int_eq(unlock_derivations(16, &err), 0);
    ck_assert_int_lt(unlock_derivations(17, &err), 0);
    ck_assert_str_eq(err.code, "E_KDF");
}

/* ---- threads and failing calls --------------------------------------------------------------- */

static void *read_all(void *arg)
{
    struct made *made = arg;
    struct sl_tensor_reader *reader = sl_tensor_reader_new(made->index, NULL);
    uint8_t *out = malloc(made->bytes);
    const struct sl_tensor *tensor = &made->index->tensors[0];
    int result = sl_tensor_read(reader, tensor, NULL, 0, tensor->bytes, out, NULL);
    bool same = result == 0 && memcmp(out, made->plain, tensor->bytes) == 0;
    free(out);
    sl_tensor_reader_free(reader);
    return same ? arg : NULL;
}

SL_TEST(threads_read_one_index_with_readers_of_their_own)
{
    struct made made;
    pthread_t threads[4];
    made_open(&made, 3 * MIB);
    made_add(&made, 0, 3, MIB, 100 * 1024);
    unlock(&made);
    for (unsigned i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_all, &made), 0);
    for (unsigned i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_eq(result, &made);
    }
    made_release(&made);
}

static int read_some(void *arg, struct sl_err *err)
{
    struct made *made = arg;
    uint8_t out[3000];
    struct sl_slice slice = {{1, 5}, {30, 100}};
    SL_AUTO(sl_tensor_reader) reader = sl_tensor_reader_new(made->index, err);
    if (!reader)
        return -1;
    const struct sl_tensor *tensor = &made->index->tensors[0];
    int result = sl_tensor_read(reader, tensor, NULL, 70000, 73000, out, err);
    if (result == 0)
        result = sl_tensor_read(reader, tensor, &slice, 0, 2000, out, err);
    return result;
}

SL_TEST(every_failing_call_is_reported)
{
    struct made made;
    made_open(&made, 100000);
    made_add(&made, 0, 500, 200, 1024);
    unlock(&made);
    ck_assert_uint_ge(golden_each_allocation(read_some, &made), 4);
    ck_assert_uint_ge(golden_each_read(read_some, &made), 2);
    made_release(&made);
}
