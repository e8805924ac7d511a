/*
 * A bundle is JSON of a few members, of which those that are known are judged and the others passed
 * over. What is a blob in it is the base64 of DER, or of the statement, whose bytes are kept as
 * they are: what is signed is made of them, not of the JSON.
 */
#include "bundle.h"

#include <sodium.h>

#include "bundle_parts.h"

enum { ITEMS_MAX = 32 }; /* certificates, timestamps, entries of a log: of each a few are usual */

static const char ANY_MEDIA_TYPE[] = "application/vnd.dev.sigstore.bundle";

void sl_bundle_free(struct sl_bundle *bundle)
{
    if (!bundle)
        return;
    for (size_t i = 0; i < bundle->certificate_count; i++)
        free(bundle->certificates[i].data);
    for (size_t i = 0; i < bundle->timestamp_count; i++)
        free(bundle->timestamps[i].data);
    free(bundle->hint);
    free(bundle->certificates);
    free(bundle->timestamps);
    json_decref(bundle->entries);
    free(bundle->payload_type);
    free(bundle->payload.data);
    free(bundle->signature.data);
    free(bundle);
}

static int refuse(const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE", "not a signature bundle: %s", why);
}

/* ---- members --------------------------------------------------------------------------------- */

/* A member that is there; null is absent, as for protobuf. */
static const json_t *member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static int take_base64(const json_t *text, const char *what, struct sl_der *out, struct sl_err *err)
{
    size_t length = json_string_length(text), room = length / 4 * 3;
    const char *end;
    if (length == 0)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "not a signature bundle: %s is missing", what);
    out->data = sl_alloc(room + 1, err);
    if (!out->data)
        return -1;
    if (sodium_base642bin(out->data, room, json_string_value(text), length, NULL, &out->bytes, &end,
                          sodium_base64_VARIANT_ORIGINAL) != 0 ||
        end != json_string_value(text) + length)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "not a signature bundle: %s is not base64", what);
    return 0;
}

/* An array of objects with one member of base64 each. */
static int take_list(const json_t *array, const char *key, struct sl_der **items, size_t *count,
                     struct sl_err *err)
{
    if (!array)
        return 0;
    if (!json_is_array(array) || json_array_size(array) > ITEMS_MAX)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "not a signature bundle: of %s it may have a list of up to %d", key,
                            ITEMS_MAX);
    *items = sl_alloc_array(json_array_size(array), sizeof(**items), err);
    if (!*items)
        return -1;
    while (*count < json_array_size(array)) {
        const json_t *item = member(json_array_get(array, *count), key);
        if (take_base64(item, key, &(*items)[(*count)++], err) < 0)
            return -1;
    }
    return 0;
}

/* ---- who signed ------------------------------------------------------------------------------ */

static int take_key(const json_t *key, struct sl_bundle *bundle, struct sl_err *err)
{
    const json_t *hint = member(key, "hint");
    bundle->method = SL_SIGNED_KEY;
    if (!json_is_object(key) || (hint && !json_is_string(hint)))
        return refuse("its publicKey is not an object with a hint", err);
    if (json_string_length(hint) == 0) /* releases before 1.1 */
        return 0;
    bundle->hint = sl_strdup(json_string_value(hint), err);
    return bundle->hint ? 0 : -1;
}

static int take_chain(const json_t *chain, struct sl_bundle *bundle, struct sl_err *err)
{
    bundle->method = SL_SIGNED_CERTIFICATE;
    if (take_list(member(chain, "certificates"), "rawBytes", &bundle->certificates,
                  &bundle->certificate_count, err) < 0)
        return -1;
    return bundle->certificate_count ? 0 : refuse("its chain has no certificate", err);
}

static int take_leaf(const json_t *certificate, struct sl_bundle *bundle, struct sl_err *err)
{
    bundle->method = SL_SIGNED_KEYLESS;
    bundle->certificates = sl_alloc_array(1, sizeof(*bundle->certificates), err);
    if (!bundle->certificates)
        return -1;
    bundle->certificate_count = 1;
    return take_base64(member(certificate, "rawBytes"), "rawBytes", bundle->certificates, err);
}

/* Of Rekor and of timestamp authorities: only keyless signatures need them. */
static int take_witnesses(const json_t *material, struct sl_bundle *bundle, struct sl_err *err)
{
    const json_t *entries = member(material, "tlogEntries"),
                 *times = member(material, "timestampVerificationData");
    if (entries && (!json_is_array(entries) || json_array_size(entries) > ITEMS_MAX))
        return refuse("its tlogEntries are not a list of a few", err);
    if (!entries && bundle->method == SL_SIGNED_KEYLESS)
        return refuse("it has no tlogEntries, which a signature without a key needs", err);
    bundle->entries = json_incref((json_t *)entries);
    if (times && !json_is_object(times))
        return refuse("its timestampVerificationData is not an object", err);
    return take_list(member(times, "rfc3161Timestamps"), "signedTimestamp", &bundle->timestamps,
                     &bundle->timestamp_count, err);
}

static int take_material(const json_t *material, struct sl_bundle *bundle, struct sl_err *err)
{
    const json_t *key = member(material, "publicKey"),
                 *chain = member(material, "x509CertificateChain"),
                 *leaf = member(material, "certificate");
    if (!json_is_object(material))
        return refuse("it has no verificationMaterial", err);
    if ((key != NULL) + (chain != NULL) + (leaf != NULL) != 1)
        return refuse("its verificationMaterial must have one of publicKey, x509CertificateChain "
                      "and certificate",
                      err);
    int done = key     ? take_key(key, bundle, err)
               : chain ? take_chain(chain, bundle, err)
                       : take_leaf(leaf, bundle, err);
    return done < 0 ? -1 : take_witnesses(material, bundle, err);
}

/* ---- what is signed -------------------------------------------------------------------------- */

static int take_envelope(const json_t *envelope, struct sl_bundle *bundle, struct sl_err *err)
{
    const char *type = json_string_value(member(envelope, "payloadType"));
    const json_t *signatures = member(envelope, "signatures");
    if (!json_is_object(envelope))
        return refuse("it has no dsseEnvelope", err);
    if (!type || strcmp(type, SL_BUNDLE_PAYLOAD_TYPE) != 0)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "not a signature bundle: its payloadType is '%.100s', expected %s",
                            type ? type : "", SL_BUNDLE_PAYLOAD_TYPE);
    if (!json_is_array(signatures) || json_array_size(signatures) != 1)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "not a signature bundle: it has %zu signatures, expected one",
                            json_array_size(signatures));
    bundle->payload_type = sl_strdup(type, err);
    if (!bundle->payload_type ||
        take_base64(member(envelope, "payload"), "its payload", &bundle->payload, err) < 0)
        return -1;
    return take_base64(member(json_array_get(signatures, 0), "sig"), "its signature",
                       &bundle->signature, err);
}

static int check_type(const json_t *document, struct sl_err *err)
{
    const char *type = json_string_value(member(document, "mediaType"));
    if (!type || strncmp(type, ANY_MEDIA_TYPE, strlen(ANY_MEDIA_TYPE)) != 0)
        return refuse("its mediaType is not that of Sigstore's bundles", err);
    if (strcmp(type, SL_BUNDLE_MEDIA_TYPE) != 0)
        return sl_fail(err, SL_E_FORMAT,
                       "the signature bundle is of type '%.100s', only %s is read: sign again with "
                       "a tool of 2025 or later",
                       type, SL_BUNDLE_MEDIA_TYPE);
    return 0;
}

static int take_document(const json_t *document, struct sl_bundle *bundle, struct sl_err *err)
{
    if (check_type(document, err) < 0)
        return -1;
    if (member(document, "messageSignature"))
        return refuse("it signs the bytes of one file, not a statement about a model", err);
    if (take_material(member(document, "verificationMaterial"), bundle, err) < 0)
        return -1;
    return take_envelope(member(document, "dsseEnvelope"), bundle, err);
}

int sl_bundle_parse(const char *text, size_t bytes, struct sl_bundle **bundle, struct sl_err *err)
{
    char size[32];
    if (bytes > SL_BUNDLE_BYTES_MAX)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "not a signature bundle: it has %s, at most 64 MiB are taken",
                            sl_human_bytes(bytes, size));
    struct sl_err why = SL_ERR_INIT;
    json_t *document = sl_json_parse(text, bytes, "its JSON", &why);
    if (!document)
        return why.kind == SL_E_NO_SPACE ? sl_fail(err, why.kind, "%s", why.message)
                                         : refuse(why.message, err);
    struct sl_bundle *made = sl_alloc(sizeof(*made), err);
    int done = made ? take_document(document, made, err) : -1;
    json_decref(document);
    if (done < 0)
        sl_bundle_free(made);
    else
        *bundle = made;
    return done;
}

int sl_bundle_signed_head(const struct sl_bundle *bundle, struct sl_buf *text, struct sl_err *err)
{
    return sl_buf_printf(text, err, "DSSEv1 %zu %s %zu ", strlen(bundle->payload_type),
                         bundle->payload_type, bundle->payload.bytes);
}

int sl_bundle_signed_bytes(const struct sl_bundle *bundle, struct sl_buf *text, struct sl_err *err)
{
    if (sl_bundle_signed_head(bundle, text, err) < 0)
        return -1;
    return sl_buf_append(text, bundle->payload.data, bundle->payload.bytes, err);
}
