/*
 * What a log entry is about: of Rekor 1 an envelope (dsse 0.0.1), of Rekor 2 the hash of what the
 * envelope's signature is over (hashedrekord 0.0.2). Both name the signature and the certificate.
 *
 * https://github.com/sigstore/rekor/tree/main/pkg/types/dsse/v0.0.1,
 * https://github.com/sigstore/rekor-tiles (api/proto/rekor/v2)
 */
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sodium.h>

#include "keyless_parts.h"

enum { TEXT_BYTES_MAX = 2 * SL_CERTIFICATE_BYTES_MAX }; /* as PEM */

/* Of less than TEXT_BYTES_MAX bytes. */
static bool is_base64_of(const char *text, const void *data, size_t bytes)
{
    uint8_t said[TEXT_BYTES_MAX];
    size_t said_bytes;
    return sl_sigstore_base64(text, said, sizeof(said), &said_bytes) && said_bytes == bytes &&
           memcmp(said, data, bytes) == 0;
}

static int check_signature(const struct sl_bundle *bundle, const char *text, struct sl_err *err)
{
    if (is_base64_of(text, bundle->signature.data, bundle->signature.bytes))
        return 0;
    return sl_signature_fail(err, "the log entry is of another signature");
}

static int other_certificate(struct sl_err *err)
{
    return sl_signature_fail(err, "the log entry is of another certificate");
}

static int other_content(struct sl_err *err)
{
    return sl_signature_fail(err, "the log entry is of another payload");
}

/* ---- dsse 0.0.1 ------------------------------------------------------------------------------ */

/* As PEM, in lines of 64 characters, as the log wrote it. */
static bool is_pem_of(const char *text, const struct sl_der *der)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *pem = NULL;
    bool equal = false;
    if (bio && PEM_write_bio(bio, PEM_STRING_X509, "", der->data, (long)der->bytes) > 0) {
        long bytes = BIO_get_mem_data(bio, &pem);
        equal = bytes > 0 && is_base64_of(text, pem, (size_t)bytes);
    }
    BIO_free(bio);
    ERR_clear_error();
    return equal;
}

static int check_dsse(const json_t *spec, const struct sl_bundle *bundle, struct sl_err *err)
{
    uint8_t own[SL_HASH_BYTES_MAX], said[32];
    const json_t *hash = json_object_get(spec, "payloadHash");
    const json_t *signatures = json_object_get(spec, "signatures");
    const json_t *only = json_array_get(signatures, 0);
    const char *algorithm = sl_json_get_string(hash, "algorithm");
    const char *value = sl_json_get_string(hash, "value");
    if (sl_digest_of(SL_HASH_SHA256, NULL, 0, bundle->payload.data, bundle->payload.bytes, own,
                     err) < 0)
        return -1;
    if (!algorithm || strcmp(algorithm, "sha256") != 0 || !value ||
        sl_unhex(value, said, sizeof(said)) < 0 || memcmp(own, said, sizeof(said)) != 0)
        return other_content(err);
    if (json_array_size(signatures) != 1)
        return sl_signature_fail(err, "the log entry has not exactly one signature");
    if (check_signature(bundle, sl_json_get_string(only, "signature"), err) < 0)
        return -1;
    return is_pem_of(sl_json_get_string(only, "verifier"), &bundle->certificates[0])
               ? 0
               : other_certificate(err);
}

/* ---- hashedrekord 0.0.2 ---------------------------------------------------------------------- */

/* {"algorithm": "SHA2_256", "digest": B64}, of these bytes. */
static int check_digest(const json_t *said, const void *data, size_t bytes, struct sl_err *err)
{
    static const struct {
        const char *name, *openssl;
    } kinds[] = {{"SHA2_256", "SHA256"}, {"SHA2_384", "SHA384"}, {"SHA2_512", "SHA512"}};
    const char *algorithm = sl_json_get_string(said, "algorithm");
    uint8_t own[EVP_MAX_MD_SIZE];
    size_t own_bytes = 0;
    for (size_t i = 0; algorithm && i < SL_COUNT(kinds); i++)
        if (strcmp(algorithm, kinds[i].name) == 0 &&
            EVP_Q_digest(NULL, kinds[i].openssl, NULL, data, bytes, own, &own_bytes) == 1 &&
            is_base64_of(sl_json_get_string(said, "digest"), own, own_bytes))
            return 0;
    return other_content(err);
}

/* {"content": B64, "verifier": {"x509Certificate": {"rawBytes": B64}}} */
static int check_signed(const json_t *said, const struct sl_bundle *bundle, struct sl_err *err)
{
    const struct sl_der *leaf = &bundle->certificates[0];
    const json_t *verifier = json_object_get(said, "verifier");
    if (check_signature(bundle, sl_json_get_string(said, "content"), err) < 0)
        return -1;
    return is_base64_of(
               sl_json_get_string(json_object_get(verifier, "x509Certificate"), "rawBytes"),
               leaf->data, leaf->bytes)
               ? 0
               : other_certificate(err);
}

static int check_hashed(const json_t *spec, const struct sl_bundle *bundle, struct sl_err *err)
{
    const json_t *record = json_object_get(spec, "hashedRekordV002");
    sl_autobuf text = SL_BUF_INIT(SL_BUNDLE_BYTES_MAX);
    if (sl_bundle_signed_bytes(bundle, &text, err) < 0 ||
        check_digest(json_object_get(record, "data"), text.data, text.used, err) < 0)
        return -1;
    return check_signed(json_object_get(record, "signature"), bundle, err);
}

/* ---- any ------------------------------------------------------------------------------------- */

static bool says(const json_t *object, const char *key, const char *expected)
{
    const char *text = sl_json_get_string(object, key);
    return text && strcmp(text, expected) == 0;
}

int sl_rekor_check_body(const struct sl_rekor_entry *entry, const struct sl_bundle *bundle,
                        struct sl_err *err)
{
    static const struct {
        const char *kind, *version;
        int (*check)(const json_t *spec, const struct sl_bundle *bundle, struct sl_err *err);
    } kinds[] = {{"dsse", "0.0.1", check_dsse}, {"hashedrekord", "0.0.2", check_hashed}};
    json_t *body =
        sl_json_parse((const char *)entry->body.data, entry->body.bytes, "the log entry", NULL);
    if (!body)
        return sl_signature_fail(err, "the log entry's body is not JSON");
    int result;
    if (!says(body, "kind", entry->kind) || !says(body, "apiVersion", entry->version)) {
        result = sl_signature_fail(err, "the log entry is of another kind than it says");
    } else {
        result = 1;
        for (size_t i = 0; result == 1 && i < SL_COUNT(kinds); i++)
            if (strcmp(entry->kind, kinds[i].kind) == 0 &&
                strcmp(entry->version, kinds[i].version) == 0)
                result = kinds[i].check(json_object_get(body, "spec"), bundle, err);
        if (result == 1)
            result = sl_signature_fail(err,
                                       "log entries of the kind '%.40s' %.20s are not known "
                                       "here: dsse 0.0.1 and hashedrekord 0.0.2 are",
                                       entry->kind, entry->version);
    }
    json_decref(body);
    return result;
}
