/* Sidecars and the signatures in them: what is written is read, and nothing else is taken. */
#include "sidecar.h"

#include <check.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "crypt.h"
#include "golden.h"
#include "minisign_secret.h"

enum { RANGE = 64 * 1024 };
static struct sl_err err;
static struct sl_buf text;

static void setup(void)
{
    err = (struct sl_err)SL_ERR_INIT;
    text = (struct sl_buf)SL_BUF_INIT(SL_SIDECAR_TEXT_BYTES_MAX);
    ck_assert_int_eq(sl_crypt_init(&err), 0);
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    sl_buf_release(&text);
}

/* With hashes that tell the ranges apart. */
static struct sl_sidecar *make(uint64_t bytes)
{
    struct sl_sidecar *sidecar = sl_sidecar_new("a/model.gguf", bytes, RANGE, &err);
    ck_assert_msg(sidecar != NULL, "%s", err.message);
    for (size_t i = 0; i < sidecar->range_count; i++) {
        sidecar->ranges[i].crc32c = 0x01020304u + (uint32_t)i;
        memset(sidecar->ranges[i].sha256, (int)i + 1, 32);
    }
    snprintf(sidecar->made_from.etag, sizeof(sidecar->made_from.etag), "\"abc\"");
    sl_sidecar_tree(sidecar, sidecar->tree);
    return sidecar;
}

/* The text of a sidecar in which one thing is another; NULL is refused. */
static struct sl_sidecar *parse_with(uint64_t bytes, const char *old, const char *new)
{
    struct sl_sidecar *sidecar = make(bytes), *parsed = NULL;
    sl_buf_release(&text);
    text = (struct sl_buf)SL_BUF_INIT(SL_SIDECAR_TEXT_BYTES_MAX);
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    sl_sidecar_free(sidecar);
    char *at = old ? strstr(text.data, old) : text.data, *changed;
    ck_assert_msg(at != NULL, "no '%s'", old);
    if (!old)
        old = new = "";
    changed = malloc(text.used + strlen(new) + 1);
    int used = snprintf(changed, text.used + strlen(new) + 1, "%.*s%s%s", (int)(at - text.data),
                        text.data, new, at + strlen(old));
    err = (struct sl_err)SL_ERR_INIT;
    if (sl_sidecar_parse(changed, (size_t)used, &parsed, &err) == 0)
        ck_assert(parsed != NULL);
    else
        ck_assert(parsed == NULL && err.kind == SL_E_INTEGRITY);
    free(changed);
    return parsed;
}

static void refuse(uint64_t bytes, const char *old, const char *new, const char *why)
{
    ck_assert_msg(parse_with(bytes, old, new) == NULL, "'%s' for '%s' was taken", new, old);
    ck_assert_msg(strstr(err.message, why) != NULL, "'%s' says: %s", new, err.message);
    ck_assert_str_eq(err.code, "E_SIDECAR");
}

static const struct sl_claim_case signatures_claims;

SL_TEST(what_is_written_is_read_again)
{
    static const uint64_t sizes[] = {0, 1, RANGE, RANGE + 1, 5 * RANGE, 7 * RANGE + 3};
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        struct sl_sidecar *made = make(sizes[i]), *read = parse_with(sizes[i], NULL, NULL);
        ck_assert_msg(read != NULL, "%s", err.message);
        ck_assert_str_eq(read->name, "model.gguf");
        ck_assert_uint_eq(read->bytes, sizes[i]);
        ck_assert_uint_eq(read->range_count, (sizes[i] + RANGE - 1) / RANGE);
        ck_assert_str_eq(read->made_from.etag, "\"abc\"");
        ck_assert_mem_eq(read->tree, made->tree, 32);
        for (size_t r = 0; r < read->range_count; r++)
            ck_assert_mem_eq(&read->ranges[r], &made->ranges[r], sizeof(made->ranges[r]));
        sl_sidecar_free(read);
        sl_sidecar_free(made);
    }
}

/* By hand: three leaves, of which the last one is alone. */
SL_TEST(the_tree_is_as_it_is_written_down)
{
    struct sl_sidecar *sidecar = make(2 * RANGE + 5);
    uint8_t hashes[3][32], node[65] = {1};
    for (unsigned i = 0; i < 3; i++) {
        uint8_t leaf[53] = {0};
        sl_put_le64(leaf + 1, i * (uint64_t)RANGE);
        sl_put_le64(leaf + 9, i < 2 ? (i + 1) * (uint64_t)RANGE : 2 * RANGE + 5);
        memcpy(leaf + 17, "\1\2\3", 3);
        leaf[20] = (uint8_t)(4 + i);
        memset(leaf + 21, (int)i + 1, 32);
        crypto_hash_sha256(hashes[i], leaf, sizeof(leaf));
    }
    memcpy(node + 1, hashes[0], 64);
    crypto_hash_sha256(hashes[0], node, sizeof(node));
    memcpy(node + 1, hashes[0], 32);
    memcpy(node + 33, hashes[2], 32);
    crypto_hash_sha256(hashes[0], node, sizeof(node));
    ck_assert_mem_eq(hashes[0], sidecar->tree, 32);
    sl_sidecar_free(sidecar);
}

SL_TEST(hostile_numbers_are_refused)
{
    refuse(3 * RANGE, "\"bytes\":196608", "\"bytes\":196609", "as many hashes");
    refuse(3 * RANGE, "\"bytes\":196608", "\"bytes\":131072", "as many hashes");
    refuse(3 * RANGE, "\"bytes\":196608", "\"bytes\":18446744073709551615", "more than an object");
    refuse(3 * RANGE, "\"bytes\":196608", "\"bytes\":-1", "not a number");
    refuse(3 * RANGE, "\"bytes\":196608", "\"bytes\":1e9", "not a number");
    refuse(3 * RANGE, "\"range_bytes\":65536", "\"range_bytes\":0", "between 64 KiB and 1 GiB");
    refuse(3 * RANGE, "\"range_bytes\":65536", "\"range_bytes\":1073741825", "between 64 KiB");
    refuse(3 * RANGE, "\"range_bytes\":65536", "\"range_bytes\":65537", "tree_sha256");
    refuse(3 * RANGE, "\"sluice_sidecar\":1", "\"sluice_sidecar\":2", "version");
    refuse(3 * RANGE, "\"name\":\"model.gguf\"", "\"name\":\"../m\"", "not a name");
    refuse(3 * RANGE, "\"name\":\"model.gguf\"", "\"name\":\"a\\nb\"", "not a name");
    refuse(3 * RANGE, "\"name\":\"model.gguf\"", "\"name\":\"a\\u0000b\"", "not a name");
    refuse(3 * RANGE, "\"name\":\"model.gguf\"", "\"bytes\":196608", "twice");
    refuse(3 * RANGE, "\"name\":\"model.gguf\"", "\"other\":[1,{\"a\":2}]", "missing");
}

SL_TEST(hostile_hashes_are_refused)
{
    refuse(3 * RANGE, "\"01020304\",", "", "as many hashes");
    refuse(3 * RANGE, "\"01020304\",", "\"01020304\",\"01020304\",", "as many hashes");
    refuse(3 * RANGE, "\"01020304\"", "\"0102030\"", "8 hex digits");
    refuse(3 * RANGE, "\"01020304\"", "16909060", "not a string");
    refuse(3 * RANGE, "\"01020304\"", "\"01020305\"", "tree_sha256");
    refuse(3 * RANGE, "\"0101", "\"01", "64 hex digits");
    refuse(3 * RANGE, "\"0101", "\"1101", "tree_sha256");
    refuse(3 * RANGE, "\"crc32c\":[", "\"crc32c\":[[", "not a string");
    refuse(3 * RANGE, "\"etag\":\"", "\"etag\":4,\"x\":\"", "not a version");
}

SL_TEST(what_it_does_not_know_is_passed_over)
{
    struct sl_sidecar *sidecar =
        parse_with(RANGE, "\"name\"", "\"new\":{\"a\":[1,2,{}]},\"more\":null,\"name\"");
    ck_assert_msg(sidecar != NULL, "%s", err.message);
    sl_sidecar_free(sidecar);
}

SL_TEST(every_prefix_and_every_changed_byte_is_refused_or_harmless)
{
    struct sl_sidecar *sidecar = parse_with(2 * RANGE, NULL, NULL), *other = NULL;
    char *copy = malloc(text.used);
    for (size_t bytes = 0; bytes + 1 < text.used; bytes++) {
        memcpy(copy, text.data, bytes);
        ck_assert_msg(sl_sidecar_parse(copy, bytes, &other, &err) < 0, "%zu bytes were taken",
                      bytes);
    }
    for (size_t at = 0; at < text.used; at++) {
        memcpy(copy, text.data, text.used);
        copy[at] ^= 1;
        if (sl_sidecar_parse(copy, text.used, &other, &err) < 0)
            continue;
        for (size_t r = 0; r < 2; r++) /* not the hashes */
            ck_assert_mem_eq(&other->ranges[r], &sidecar->ranges[r], sizeof(other->ranges[r]));
        sl_sidecar_free(sl_steal(&other));
    }
    free(copy);
    sl_sidecar_free(sidecar);
}

SL_TEST(too_many_ranges_are_refused)
{
    uint64_t most = (uint64_t)SL_SIDECAR_RANGES_MAX * RANGE;
    ck_assert(sl_sidecar_new("m", most + 1, RANGE, &err) == NULL);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, "--range-bytes"), "%s", err.message);
    sl_sidecar_free(sl_sidecar_new("m", most, RANGE, &err));
}

SL_TEST(another_version_is_found_out)
{
    struct sl_sidecar *sidecar = make(RANGE);
    struct sl_version same = {.etag = "\"abc\""}, other = {.etag = "\"abd\""},
                      weak = {.etag = "W/\"1\""};
    char why[256];
    ck_assert(sl_sidecar_stale(sidecar, RANGE, &same, why) == NULL);
    ck_assert(sl_sidecar_stale(sidecar, RANGE, &weak, why) == NULL);
    ck_assert(sl_sidecar_stale(sidecar, RANGE, &(struct sl_version){0}, why) == NULL);
    ck_assert(sl_sidecar_stale(sidecar, RANGE, &other, why) != NULL);
    ck_assert(sl_sidecar_stale(sidecar, RANGE + 1, &same, why) != NULL);
    sl_sidecar_free(sidecar);
}

/* ---- signatures ------------------------------------------------------------------------------ */

static struct sl_minisign_secret secret;
static struct sl_minisign_key key;

static void use_key(void)
{
    sl_autobuf file = SL_BUF_INIT(4096), pub = SL_BUF_INIT(4096);
    ck_assert_int_eq(sl_buf_read_file(&file, SL_TEST_DATA "/minisign/plain.key", &err), 0);
    ck_assert_int_eq(sl_buf_read_file(&pub, SL_TEST_DATA "/minisign/plain.pub", &err), 0);
    ck_assert(!sl_minisign_secret_is_locked(file.data, file.used));
    ck_assert_msg(sl_minisign_secret_parse(file.data, file.used, NULL, NULL, &secret, &err) == 0,
                  "%s", err.message);
    ck_assert_int_eq(sl_minisign_key_parse(pub.data, pub.used, &key, &err), 0);
}

static struct sl_sidecar *make_signed(void)
{
    struct sl_sidecar *sidecar = make(3 * RANGE);
    sl_autobuf signed_text = SL_BUF_INIT(4096), signature = SL_BUF_INIT(4096);
    ck_assert_int_eq(sl_sidecar_signed_text(sidecar, &signed_text, &err), 0);
    ck_assert_int_eq(sl_minisign_sign(&secret, signed_text.data, signed_text.used, "timestamp:1",
                                      &signature, &err),
                     0);
    sidecar->signature = sl_buf_steal(&signature, &err);
    return sidecar;
}

SL_TEST_OF(signatures_claims, our_signature_is_of_the_key_and_of_nothing_else)
{
    use_key();
    struct sl_sidecar *sidecar = make_signed();
    struct sl_minisign_key ours;
    memcpy(ours.id, secret.id, sizeof(ours.id));
    crypto_sign_ed25519_sk_to_pk(ours.key, secret.key);
    ck_assert_mem_eq(&ours, &key, sizeof(key));
    ck_assert_msg(sl_sidecar_check_signature(sidecar, "b/model.gguf", &key, &err) == 0, "%s",
                  err.message);
    ck_assert_int_lt(sl_sidecar_check_signature(sidecar, "b/other.gguf", &key, &err), 0);
    ck_assert_str_eq(err.code, "E_SIGNATURE");
    sidecar->bytes++;
    ck_assert_int_lt(sl_sidecar_check_signature(sidecar, "model.gguf", &key, &err), 0);
    sidecar->bytes--;
    sidecar->tree[31] ^= 1;
    ck_assert_int_lt(sl_sidecar_check_signature(sidecar, "model.gguf", &key, &err), 0);
    sidecar->tree[31] ^= 1;
    key.key[0] ^= 1;
    ck_assert_int_lt(sl_sidecar_check_signature(sidecar, "model.gguf", &key, &err), 0);
    key.key[0] ^= 1;
    free(sl_steal(&sidecar->signature));
    ck_assert_int_lt(sl_sidecar_check_signature(sidecar, "model.gguf", &key, &err), 0);
    ck_assert_msg(strstr(err.message, "not signed"), "%s", err.message);
    sl_sidecar_free(sidecar);
}

/* As `minisign -G` would, but with costs that a test can pay. */
static void lock_key(uint8_t data[158], const char *password, char line[256])
{
    uint8_t stream[104], sum_of[2 + 72];
    memcpy(data + 2, "Sc", 2);
    memset(data + 6, 7, 32);
    sl_put_le64(data + 38, 32768);
    sl_put_le64(data + 46, 16 * 1024 * 1024);
    memcpy(sum_of, data, 2);
    memcpy(sum_of + 2, data + 54, 72);
    crypto_generichash(data + 126, 32, sum_of, sizeof(sum_of), NULL, 0);
    ck_assert_int_eq(crypto_pwhash_scryptsalsa208sha256(stream, sizeof(stream), password,
                                                        strlen(password), data + 6, 32768,
                                                        16 * 1024 * 1024),
                     0);
    for (int i = 0; i < 104; i++)
        data[54 + i] ^= stream[i];
    sodium_bin2base64(line, 256, data, 158, sodium_base64_VARIANT_ORIGINAL);
}

static void read_key_bytes(uint8_t data[158])
{
    sl_autobuf file = SL_BUF_INIT(4096);
    ck_assert_int_eq(sl_buf_read_file(&file, SL_TEST_DATA "/minisign/plain.key", &err), 0);
    const char *line = strchr(file.data, '\n') + 1;
    ck_assert_int_eq(sodium_base642bin(data, 158, line, strlen(line), "\n", NULL, NULL, 1), 0);
}

SL_TEST_OF(signatures_claims, a_password_opens_a_key_and_a_wrong_one_does_not)
{
    uint8_t data[158];
    char line[256];
    struct sl_minisign_secret opened;
    use_key();
    read_key_bytes(data);
    lock_key(data, "correct horse", line);
    ck_assert(sl_minisign_secret_is_locked(line, strlen(line)));
    ck_assert_msg(
        sl_minisign_secret_parse(line, strlen(line), "correct horse", NULL, &opened, &err) == 0,
        "%s", err.message);
    ck_assert_mem_eq(&opened, &secret, sizeof(secret));
    ck_assert_int_lt(sl_minisign_secret_parse(line, strlen(line), "wrong", NULL, &opened, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_int_lt(sl_minisign_secret_parse(line, strlen(line), NULL, NULL, &opened, &err), 0);
    ck_assert_msg(strstr(err.message, "--password-file"), "%s", err.message);
    sl_minisign_secret_release(&opened);
    ck_assert_uint_eq(opened.key[0] | opened.key[63], 0);
}

SL_TEST_OF(signatures_claims, broken_secret_keys_are_refused)
{
    uint8_t data[158];
    char line[256];
    struct sl_minisign_secret opened;
    read_key_bytes(data);
    data[70] ^= 1;
    sodium_bin2base64(line, sizeof(line), data, sizeof(data), sodium_base64_VARIANT_ORIGINAL);
    ck_assert_int_lt(sl_minisign_secret_parse(line, strlen(line), NULL, NULL, &opened, &err), 0);
    for (size_t bytes = 0; bytes < strlen(line); bytes++)
        ck_assert_int_lt(sl_minisign_secret_parse(line, bytes, NULL, NULL, &opened, &err), 0);
    read_key_bytes(data);
    memcpy(data + 2, "Sc", 2);
    sl_put_le64(data + 46, UINT64_MAX);
    sodium_bin2base64(line, sizeof(line), data, sizeof(data), sodium_base64_VARIANT_ORIGINAL);
    ck_assert_int_lt(sl_minisign_secret_parse(line, strlen(line), "p", NULL, &opened, &err), 0);
    ck_assert_msg(strstr(err.message, "1 GiB"), "%s", err.message);
}

SL_TEST_OF(signatures_claims, every_failing_allocation_is_reported)
{
    use_key();
    for (unsigned nth = 1;; nth++) {
        struct sl_sidecar *made = make_signed(), *read = NULL;
        sl_buf_release(&text);
        text = (struct sl_buf)SL_BUF_INIT(SL_SIDECAR_TEXT_BYTES_MAX);
        sl_alloc_fail_at(nth);
        int failed = sl_sidecar_write(made, &text, &err);
        if (!failed)
            failed = sl_sidecar_parse(text.data, text.used, &read, &err);
        if (!failed)
            failed = sl_sidecar_check_signature(read, "model.gguf", &key, &err);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(0);
        sl_sidecar_free(read);
        sl_sidecar_free(made);
        if (!reached)
            break;
        ck_assert_int_lt(failed, 0);
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
}

static const struct sl_claim_case signatures_claims = {.setup = setup, .teardown = teardown};

SL_CASE(.setup = setup, .teardown = teardown)
