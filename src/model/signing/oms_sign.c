/*
 * The statement is compact JSON, in the specification's order: by code points of the path, which
 * are the bytes of UTF-8, and then by place. Ranges have the algorithm's name that the reference
 * wants ("sha256-sharded-1000") and the shard's size as an integer. What was signed is read back
 * and checked before anybody gets it.
 */
#include "oms_sign.h"

#include <inttypes.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sodium.h>
#include <stdio.h>
#include <time.h>

#include "bundle_parts.h"

enum {
    CHAIN_MAX = 16,
    SIGNATURE_BYTES_MAX = 256,   /* of P-521: 139 */
    PAYLOAD_BYTES_MAX = 6200000, /* its base64, five times, is within SL_JSON_TREE_BYTES_MAX */
    TEXT_BYTES_MAX = 16 * 1024 * 1024
};

struct sl_oms_key {
    EVP_PKEY *key;
    X509 *chain[CHAIN_MAX]; /* the leaf first */
    size_t chain_count;     /* 0: by key alone */
    char hint[65];
    char *who;
};

void sl_oms_key_free(struct sl_oms_key *key)
{
    if (!key)
        return;
    EVP_PKEY_free(key->key); /* wipes */
    for (size_t i = 0; i < key->chain_count; i++)
        X509_free(key->chain[i]);
    free(key->who);
    free(key);
}

const char *sl_oms_key_who(const struct sl_oms_key *key)
{
    return key->who;
}

/* ---- the key --------------------------------------------------------------------------------- */

bool sl_oms_key_is_locked(const char *text)
{
    return strstr(text, "-----BEGIN ENCRYPTED PRIVATE KEY-----") ||
           strstr(text, "Proc-Type: 4,ENCRYPTED");
}

static int give_password(char *buf, int size, int writing, void *arg)
{
    const char *password = arg;
    (void)writing;
    if (!password || strlen(password) >= (size_t)size)
        return -1;
    memcpy(buf, password, strlen(password));
    return (int)strlen(password);
}

static int read_key(const struct sl_oms_key_texts *texts, struct sl_oms_key *key,
                    struct sl_err *err)
{
    bool locked = sl_oms_key_is_locked(texts->key);
    BIO *bio = BIO_new_mem_buf(texts->key, -1);
    if (!bio)
        return sl_signing_no_memory(err);
    key->key = PEM_read_bio_PrivateKey(bio, NULL, give_password, (void *)texts->password);
    BIO_free(bio);
    ERR_clear_error();
    if (!key->key && locked && !texts->password)
        return sl_fail(err, SL_E_USAGE,
                       "the private key is encrypted: give its password with --password-file");
    if (!key->key && locked)
        return sl_fail(err, SL_E_AUTH, "the private key cannot be opened with this password");
    if (!key->key)
        return sl_fail(err, SL_E_USAGE, "it is not a private key in PEM");
    if (!sl_signing_hash(key->key))
        return sl_fail(err, SL_E_USAGE,
                       "a private key of kind %s cannot sign a model: " SL_SIGNING_KINDS
                       "; `openssl ecparam -name prime256v1 -genkey` makes one",
                       EVP_PKEY_get0_type_name(key->key) ? EVP_PKEY_get0_type_name(key->key)
                                                         : "unknown");
    return sl_signing_hint(key->key, key->hint, err);
}

/* ---- certificates ---------------------------------------------------------------------------- */

static int add_certificate(const struct sl_der *der, void *arg, struct sl_err *err)
{
    struct sl_oms_key *key = arg;
    if (key->chain_count == CHAIN_MAX)
        return sl_fail(err, SL_E_USAGE, "more than %d certificates: a chain has a few", CHAIN_MAX);
    X509 *certificate = sl_certificate_parse(der, NULL);
    if (!certificate)
        return sl_fail(err, SL_E_USAGE, "a certificate cannot be read");
    key->chain[key->chain_count++] = certificate;
    return 0;
}

static int check_leaf(const struct sl_oms_key *key, int64_t now, struct sl_err *err)
{
    X509 *leaf = key->chain[0];
    time_t when = (time_t)now;
    bool fits = X509_check_private_key(leaf, key->key) == 1;
    ERR_clear_error();
    if (!fits)
        return sl_fail(err, SL_E_USAGE,
                       "the certificate is of another key: give the one that was issued for this "
                       "key, alone or first in its file");
    if (!sl_certificate_may_sign(leaf))
        return sl_fail(err, SL_E_USAGE,
                       "the certificate may not sign: it has neither the key usage "
                       "digitalSignature nor the extended one codeSigning");
    if (X509_cmp_time(X509_get0_notAfter(leaf), &when) <= 0 ||
        X509_cmp_time(X509_get0_notBefore(leaf), &when) > 0)
        return sl_fail(err, SL_E_USAGE,
                       "the certificate is not valid now: sign with a new one, or look at this "
                       "machine's clock");
    for (size_t i = 1; i < key->chain_count; i++)
        if (X509_check_issued(key->chain[i], key->chain[i - 1]) != X509_V_OK)
            return sl_fail(err, SL_E_USAGE,
                           "certificate %zu of the chain is not the issuer of the one before it: "
                           "the order is from the key's certificate to the root",
                           i + 1);
    return 0;
}

static int read_certificates(const struct sl_oms_key_texts *texts, int64_t now,
                             struct sl_oms_key *key, struct sl_err *err)
{
    if (!texts->certificate && texts->chain)
        return sl_fail(err, SL_E_USAGE, "a chain needs the key's own certificate as well");
    if (!texts->certificate)
        return 0;
    if (sl_pem_blocks(texts->certificate, "CERTIFICATE", CHAIN_MAX, "the certificate",
                      add_certificate, key, err) < 0)
        return -1;
    if (texts->chain && sl_pem_blocks(texts->chain, "CERTIFICATE", CHAIN_MAX, "the chain",
                                      add_certificate, key, err) < 0)
        return -1;
    return check_leaf(key, now, err);
}

static int name_signer(struct sl_oms_key *key, struct sl_err *err)
{
    char fingerprint[65];
    if (key->chain_count == 0) {
        if (sl_signing_fingerprint(key->key, fingerprint, err) < 0)
            return -1;
        key->who = sl_asprintf(err, "key %s", fingerprint);
    } else {
        key->who = sl_certificate_who(key->chain[0], err);
    }
    return key->who ? 0 : -1;
}

int sl_oms_key_open(const struct sl_oms_key_texts *texts, int64_t now, struct sl_oms_key **key,
                    struct sl_err *err)
{
    SL_AUTO(sl_oms_key) made = sl_alloc(sizeof(*made), err);
    if (!made || read_key(texts, made, err) < 0 || read_certificates(texts, now, made, err) < 0 ||
        name_signer(made, err) < 0)
        return -1;
    *key = sl_steal(&made);
    return 0;
}

/* ---- the statement --------------------------------------------------------------------------- */

static void write_resource(const struct sl_oms *oms, const struct sl_oms_resource *resource,
                           struct sl_buf *scratch, struct sl_json *json)
{
    char hex[2 * SL_HASH_BYTES_MAX + 1], algorithm[64] = "sha256";
    scratch->used = 0;
    sl_buf_text(scratch, resource->name, &json->err);
    if (oms->shard_bytes) {
        sl_buf_printf(scratch, &json->err, ":%" PRIu64 ":%" PRIu64, resource->start, resource->end);
        snprintf(algorithm, sizeof(algorithm), "sha256-sharded-%" PRIu64, oms->shard_bytes);
    }
    sl_hex(resource->digest, sl_hash_bytes(resource->kind), hex);
    sl_json_object(json);
    sl_json_key_string(json, "name", sl_buf_string(scratch));
    sl_json_key_string(json, "algorithm", algorithm);
    sl_json_key_string(json, "digest", hex);
    sl_json_end(json);
}

static void write_subject(const struct sl_oms *oms, const char *model, struct sl_sha256 *sha,
                          struct sl_json *json)
{
    uint8_t root[32];
    char hex[65];
    for (size_t i = 0; i < oms->resource_count; i++)
        sl_sha256_update(sha, oms->resources[i].digest, sl_hash_bytes(oms->resources[i].kind));
    sl_sha256_finish(sha, root);
    sl_hex(root, sizeof(root), hex);
    sl_json_key(json, "subject");
    sl_json_array(json);
    sl_json_object(json);
    sl_json_key_string(json, "name", model);
    sl_json_key(json, "digest");
    sl_json_object(json);
    sl_json_key_string(json, "sha256", hex);
    sl_json_end(json);
    sl_json_end(json);
    sl_json_end(json);
}

static void write_serialization(const struct sl_oms *oms, struct sl_json *json)
{
    sl_json_key(json, "serialization");
    sl_json_object(json);
    sl_json_key_string(json, "method", oms->shard_bytes ? "shards" : "files");
    sl_json_key_string(json, "hash_type", "sha256");
    if (oms->shard_bytes)
        sl_json_key_uint(json, "shard_size", oms->shard_bytes);
    sl_json_key_bool(json, "allow_symlinks", oms->links);
    sl_json_key(json, "ignore_paths");
    sl_json_array(json);
    for (size_t i = 0; i < oms->ignored_count; i++)
        sl_json_string(json, oms->ignored[i]);
    sl_json_end(json);
    sl_json_end(json);
}

static void write_statement(const struct sl_oms *oms, const char *model, struct sl_sha256 *sha,
                            struct sl_buf *scratch, struct sl_json *json)
{
    sl_json_object(json);
    sl_json_key_string(json, "_type", SL_OMS_STATEMENT);
    write_subject(oms, model, sha, json);
    sl_json_key_string(json, "predicateType", SL_OMS_PREDICATE);
    sl_json_key(json, "predicate");
    sl_json_object(json);
    write_serialization(oms, json);
    sl_json_key(json, "resources");
    sl_json_array(json);
    for (size_t i = 0; i < oms->resource_count; i++)
        write_resource(oms, &oms->resources[i], scratch, json);
    sl_json_end(json);
    sl_json_end(json);
    sl_json_end(json);
}

/* ---- the bundle ------------------------------------------------------------------------------ */

static int sign_bytes(const struct sl_oms_key *key, const struct sl_buf *bytes,
                      uint8_t signature[SIGNATURE_BYTES_MAX], size_t *signature_bytes,
                      struct sl_err *err)
{
    *signature_bytes = SIGNATURE_BYTES_MAX;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good = context && EVP_PKEY_get_size(key->key) <= SIGNATURE_BYTES_MAX &&
                EVP_DigestSignInit(context, NULL, sl_signing_hash(key->key), NULL, key->key) == 1 &&
                EVP_DigestSign(context, signature, signature_bytes, (const uint8_t *)bytes->data,
                               bytes->used) == 1;
    EVP_MD_CTX_free(context);
    ERR_clear_error();
    return good ? 0 : sl_fail(err, SL_E_INTERNAL, "the private key cannot sign");
}

static void write_base64(const void *data, size_t bytes, struct sl_json *json)
{
    size_t room = sodium_base64_encoded_len(bytes, sodium_base64_VARIANT_ORIGINAL);
    sl_autofree char *text = sl_alloc(room, &json->err);
    if (text)
        sl_json_string(json,
                       sodium_bin2base64(text, room, data, bytes, sodium_base64_VARIANT_ORIGINAL));
}

static void write_chain(const struct sl_oms_key *key, struct sl_json *json)
{
    sl_json_key(json, "x509CertificateChain");
    sl_json_object(json);
    sl_json_key(json, "certificates");
    sl_json_array(json);
    for (size_t i = 0; i < key->chain_count; i++) {
        uint8_t *der = NULL;
        int bytes = i2d_X509(key->chain[i], &der);
        sl_json_object(json);
        sl_json_key(json, "rawBytes");
        if (bytes > 0)
            write_base64(der, (size_t)bytes, json);
        else
            sl_signing_no_memory(&json->err);
        sl_json_end(json);
        OPENSSL_free(der);
    }
    sl_json_end(json);
    sl_json_end(json);
}

static void write_bundle(const struct sl_bundle *bundle, const struct sl_oms_key *key,
                         struct sl_json *json)
{
    sl_json_object(json);
    sl_json_key_string(json, "mediaType", SL_BUNDLE_MEDIA_TYPE);
    sl_json_key(json, "verificationMaterial");
    sl_json_object(json);
    if (key->chain_count) {
        write_chain(key, json);
    } else {
        sl_json_key(json, "publicKey");
        sl_json_object(json);
        sl_json_key_string(json, "hint", key->hint);
        sl_json_end(json);
    }
    sl_json_key(json, "tlogEntries");
    sl_json_array(json);
    sl_json_end(json);
    sl_json_end(json);
    sl_json_key(json, "dsseEnvelope");
    sl_json_object(json);
    sl_json_key(json, "payload");
    write_base64(bundle->payload.data, bundle->payload.bytes, json);
    sl_json_key_string(json, "payloadType", bundle->payload_type);
    sl_json_key(json, "signatures");
    sl_json_array(json);
    sl_json_object(json);
    sl_json_key(json, "sig");
    write_base64(bundle->signature.data, bundle->signature.bytes, json);
    sl_json_key_string(json, "keyid", "");
    sl_json_end(json);
    sl_json_end(json);
    sl_json_end(json);
    sl_json_end(json);
}

/* What cannot be read back is a fault of ours, or too much of something. */
static int read_back(const struct sl_buf *text, struct sl_err *err)
{
    struct sl_bundle *bundle = NULL;
    SL_AUTO(sl_oms) oms = NULL;
    int done = sl_bundle_parse(text->data, text->used, &bundle, err);
    if (done == 0)
        done = sl_oms_peek(bundle, &oms, err);
    sl_bundle_free(bundle);
    return done;
}

static int sign_payload(const char *payload, const struct sl_oms_key *key, struct sl_buf *text,
                        struct sl_err *err)
{
    uint8_t signature[SIGNATURE_BYTES_MAX];
    sl_autobuf bytes = SL_BUF_INIT(PAYLOAD_BYTES_MAX + 256);
    struct sl_bundle bundle = {.payload_type = (char[]){SL_BUNDLE_PAYLOAD_TYPE},
                               .payload = {(uint8_t *)payload, strlen(payload)},
                               .signature = {signature, 0}};
    struct sl_json json;
    if (sl_bundle_signed_bytes(&bundle, &bytes, err) < 0 ||
        sign_bytes(key, &bytes, signature, &bundle.signature.bytes, err) < 0)
        return -1;
    sl_json_init(&json, TEXT_BYTES_MAX);
    write_bundle(&bundle, key, &json);
    const char *made = sl_json_text(&json, err);
    int done = made ? sl_buf_text(text, made, err) : -1;
    sl_json_release(&json);
    return done < 0 ? -1 : read_back(text, err);
}

int sl_oms_sign(struct sl_oms *oms, const char *model, const struct sl_oms_key *key,
                struct sl_buf *text, struct sl_err *err)
{
    struct sl_json json;
    struct sl_err why = SL_ERR_INIT;
    sl_autobuf scratch = SL_BUF_INIT(8192);
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    sl_oms_sort(oms);
    sl_json_init(&json, PAYLOAD_BYTES_MAX);
    write_statement(oms, model, sha, &scratch, &json);
    const char *payload = sl_json_text(&json, &why);
    int done = payload ? sign_payload(payload, key, text, err)
               : json.buf.used > PAYLOAD_BYTES_MAX / 2
                   ? sl_fail(err, SL_E_USAGE,
                             "the signature would list more than 6 MB of names and hashes: choose "
                             "a larger --shard-bytes, or sign fewer files")
                   : sl_fail(err, why.kind, "%s", why.message);
    sl_json_release(&json);
    return done;
}
