/* Statement, DSSE envelope and bundle, put together as text: what is signed is that text. */
#include "oms_maker.h"

#include <check.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "mem.h"

enum { TEXT_MAX = 64 * 1024 * 1024 };
static const char TYPE[] = "application/vnd.in-toto+json";

EVP_PKEY *oms_key(void)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    ck_assert_ptr_nonnull(key);
    return key;
}

void oms_put_key(EVP_PKEY *key, const char *path, bool append)
{
    FILE *file = fopen(path, append ? "a" : "w");
    ck_assert(file && PEM_write_PUBKEY(file, key) == 1);
    fclose(file);
}

static const char *hash_of(const struct oms_wanted *wanted)
{
    return wanted->hash ? wanted->hash : "sha256";
}

static size_t digest(const struct oms_wanted *wanted, const void *data, size_t bytes,
                     uint8_t out[64])
{
    unsigned length = 0;
    const EVP_MD *kind = strcmp(hash_of(wanted), "blake2b") == 0 ? EVP_blake2b512() : EVP_sha256();
    ck_assert_int_eq(EVP_Digest(data, bytes, out, &length, kind, NULL), 1);
    return length;
}

struct statement {
    const struct oms_wanted *wanted;
    struct sl_buf resources, digests;
};

static void add(struct statement *statement, const char *name, const void *data, size_t bytes)
{
    uint8_t raw[64];
    char hex[129];
    size_t length = digest(statement->wanted, data, bytes, raw);
    sl_hex(raw, length, hex);
    ck_assert_int_eq(sl_buf_append(&statement->digests, raw, length, NULL), 0);
    sl_buf_printf(&statement->resources, NULL,
                  "%s{\"name\": \"%s\", \"algorithm\": \"%s\", \"digest\": \"%s\"}",
                  statement->resources.used ? ", " : "", name, hash_of(statement->wanted), hex);
}

static void add_file(struct statement *statement, const struct oms_file *file)
{
    uint64_t step = statement->wanted->shard_bytes;
    char name[512];
    if (!step)
        add(statement, file->name, file->data, file->bytes);
    for (uint64_t at = 0; step && at < file->bytes; at += step) {
        uint64_t end = SL_MIN(at + step, (uint64_t)file->bytes);
        snprintf(name, sizeof(name), "%s:%llu:%llu", file->name, (unsigned long long)at,
                 (unsigned long long)end);
        add(statement, name, (const char *)file->data + at, (size_t)(end - at));
    }
}

static void write_statement(struct statement *statement, struct sl_buf *out)
{
    const struct oms_wanted *wanted = statement->wanted;
    uint8_t root[32];
    char hex[65], shard[64] = "";
    for (size_t i = 0; i < wanted->count; i++)
        add_file(statement, &wanted->files[i]);
    crypto_hash_sha256(root, (const uint8_t *)statement->digests.data, statement->digests.used);
    sl_hex(root, 32, hex);
    if (wanted->shard_bytes)
        snprintf(shard, sizeof(shard), ", \"shard_size\": %llu",
                 (unsigned long long)wanted->shard_bytes);
    sl_buf_printf(
        out, NULL,
        "{\"_type\": \"https://in-toto.io/Statement/v1\", \"subject\": [{\"name\": \"m\", "
        "\"digest\": {\"sha256\": \"%s\"}}], \"predicateType\": \"%s\", \"predicate\": "
        "{\"serialization\": {\"method\": \"%s\", \"hash_type\": \"%s\", "
        "\"allow_symlinks\": false, \"ignore_paths\": [%s%s%s]%s}, \"resources\": [%s]}}",
        hex, wanted->predicate ? wanted->predicate : "https://model_signing/signature/v1.0",
        wanted->shard_bytes ? "shards" : "files", hash_of(wanted), wanted->ignored ? "\"" : "",
        wanted->ignored ? wanted->ignored : "", wanted->ignored ? "\"" : "", shard,
        statement->resources.used ? sl_buf_string(&statement->resources) : "");
}

static char *base64(const void *data, size_t bytes)
{
    size_t room = sodium_base64_encoded_len(bytes, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(room);
    ck_assert_ptr_nonnull(
        sodium_bin2base64(text, room, data, bytes, sodium_base64_VARIANT_ORIGINAL));
    return text;
}

char *oms_sign(const struct oms_wanted *wanted, EVP_PKEY *key)
{
    struct statement statement = {
        .wanted = wanted, .resources = SL_BUF_INIT(TEXT_MAX), .digests = SL_BUF_INIT(TEXT_MAX)};
    sl_autobuf payload = SL_BUF_INIT(TEXT_MAX), pae = SL_BUF_INIT(TEXT_MAX),
               bundle = SL_BUF_INIT(TEXT_MAX);
    uint8_t signature[128];
    size_t bytes = sizeof(signature);
    write_statement(&statement, &payload);
    sl_buf_printf(&pae, NULL, "DSSEv1 %zu %s %zu %s", sizeof(TYPE) - 1, TYPE, payload.used,
                  sl_buf_string(&payload));
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    ck_assert_int_eq(EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key), 1);
    ck_assert_int_eq(
        EVP_DigestSign(context, signature, &bytes, (const uint8_t *)pae.data, pae.used), 1);
    EVP_MD_CTX_free(context);
    sl_autofree char *body = base64(payload.data, payload.used), *sig = base64(signature, bytes);
    sl_buf_printf(&bundle, NULL,
                  "{\"mediaType\": \"application/vnd.dev.sigstore.bundle.v0.3+json\", "
                  "\"verificationMaterial\": {\"publicKey\": {}, \"tlogEntries\": []}, "
                  "\"dsseEnvelope\": {\"payload\": \"%s\", \"payloadType\": \"%s\", "
                  "\"signatures\": [{\"sig\": \"%s\", \"keyid\": \"\"}]}}",
                  body, TYPE, sig);
    sl_buf_release(&statement.resources);
    sl_buf_release(&statement.digests);
    return strdup(sl_buf_string(&bundle));
}
