/* What a signature of cosign is over is parsed once it is known to be signed. Everybody may attach
 * signatures to a manifest, so that one of them is wrong says nothing about the next. */
#include "cosign.h"

#include "keyless_parts.h"

enum { SIGNATURE_BYTES_MAX = 4096 };

static bool says(const json_t *object, const char *key, const char *expected)
{
    const char *text = sl_json_get_string(object, key);
    return text && strcmp(text, expected) == 0;
}

static int other_manifest(struct sl_err *err)
{
    return sl_signature_fail(err, "it is a signature of another manifest");
}

/* ---- bundles --------------------------------------------------------------------------------- */

static int check_statement(const json_t *statement, const char *digest, struct sl_err *err)
{
    const json_t *subjects = json_object_get(statement, "subject");
    if (!says(statement, "_type", "https://in-toto.io/Statement/v1") ||
        !says(statement, "predicateType", "https://sigstore.dev/cosign/sign/v1"))
        return sl_signature_fail(err, "it is not a signature of cosign, but a statement of another "
                                      "kind");
    for (size_t i = 0; i < json_array_size(subjects); i++)
        if (says(json_object_get(json_array_get(subjects, i), "digest"), "sha256",
                 digest + sizeof("sha256:") - 1))
            return 0;
    return other_manifest(err);
}

static int check_payload(const struct sl_bundle *bundle, const char *digest, struct sl_err *err)
{
    json_t *statement = sl_json_parse((const char *)bundle->payload.data, bundle->payload.bytes,
                                      "the statement", err);
    int result = statement ? check_statement(statement, digest, err) : -1;
    json_decref(statement);
    return result;
}

static int check_bundle(const struct sl_store_signature *item, const struct sl_signing_trust *trust,
                        int64_t now, struct sl_signing_signer *signer, struct sl_err *err)
{
    struct sl_bundle *bundle = NULL;
    int result = sl_bundle_parse(item->text, item->bytes, &bundle, err);
    if (result == 0)
        free(sl_steal(&bundle->hint)); /* cosign's is made in another way */
    if (result == 0)
        result = sl_bundle_verify(bundle, trust, now, signer, err);
    if (result == 0)
        result = check_payload(bundle, item->digest, err);
    sl_bundle_free(bundle);
    return result;
}

/* ---- before version 3 ------------------------------------------------------------------------ */

static int check_document(const struct sl_store_signature *item, struct sl_err *err)
{
    json_t *document = sl_json_parse(item->text, item->bytes, "what is signed", err);
    if (!document)
        return -1;
    const json_t *critical = json_object_get(document, "critical");
    int result = 0;
    if (!says(critical, "type", "cosign container image signature"))
        result = sl_signature_fail(err, "it is not a signature of cosign, but a document of "
                                        "another kind");
    else if (!says(json_object_get(critical, "image"), "docker-manifest-digest", item->digest))
        result = other_manifest(err);
    json_decref(document);
    return result;
}

static int check_simple(const struct sl_store_signature *item, const struct sl_signing_trust *trust,
                        struct sl_signing_signer *signer, struct sl_err *err)
{
    uint8_t data[SIGNATURE_BYTES_MAX];
    struct sl_der signature = {.data = data};
    if (trust->method != SL_SIGNED_KEY)
        return sl_signature_fail(err, "it is of cosign before version 3, which is checked with a "
                                      "public key alone: sign it again with cosign 3");
    if (!sl_sigstore_base64(item->signature, data, sizeof(data), &signature.bytes))
        return sl_signature_fail(err, "its signature is not base64");
    if (sl_signing_check_bytes(trust, &signature, item->text, item->bytes, signer, err) < 0)
        return -1;
    return check_document(item, err);
}

/* ---- any ------------------------------------------------------------------------------------- */

static int check(const struct sl_store_signature *item, const struct sl_signing_trust *trust,
                 int64_t now, struct sl_signing_signer *signer, struct sl_err *err)
{
    *signer = (struct sl_signing_signer){0};
    int result = item->signature ? check_simple(item, trust, signer, err)
                                 : check_bundle(item, trust, now, signer, err);
    if (result < 0)
        sl_signing_signer_release(signer);
    return result;
}

int sl_cosign_verify(const struct sl_store_signatures *found, const struct sl_signing_trust *trust,
                     int64_t now, struct sl_signing_signer *signer, struct sl_err *err)
{
    struct sl_err first = SL_ERR_INIT;
    char count[40];
    *signer = (struct sl_signing_signer){0};
    if (!found->count)
        return sl_signature_fail(err,
                                 "manifest %s is not signed: its registry has no signature of "
                                 "cosign for it; sign it with `cosign sign`",
                                 found->digest);
    for (size_t i = 0; i < found->count; i++) {
        struct sl_err why = SL_ERR_INIT;
        if (check(&found->items[i], trust, now, signer, &why) == 0)
            return 0;
        bool broken = why.kind != SL_E_INTEGRITY && why.kind != SL_E_FORMAT;
        if (!i || broken)
            first = why;
        if (broken)
            break;
    }
    if (err)
        *err = first;
    if (first.kind == SL_E_INTEGRITY || first.kind == SL_E_FORMAT)
        return sl_signature_fail(err,
                                 "manifest %s has %s of cosign, and not one that is asked "
                                 "for: %s",
                                 found->digest, sl_human_count(found->count, "signature", count),
                                 first.message);
    return -1;
}
