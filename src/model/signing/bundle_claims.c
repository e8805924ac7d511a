/* Names of a certificate as Fulcio writes them: https://github.com/sigstore/fulcio, oid-info. */
#include "bundle_claims.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#include "bundle_parts.h"

static const char ISSUER_OID[] = "1.3.6.1.4.1.57264.1.8"; /* UTF8String */

void sl_bundle_claims_release(struct sl_bundle_claims *claims)
{
    free(claims->subject);
    free(claims->issuer);
    *claims = (struct sl_bundle_claims){0};
}

static char *copy_text(const ASN1_STRING *text, struct sl_err *err)
{
    char *copy = sl_strndup((const char *)ASN1_STRING_get0_data(text),
                            (size_t)ASN1_STRING_length(text), err);
    if (copy)
        sl_sanitize(copy);
    return copy;
}

/* The first name that is a mail address or a URI; NULL without an error: none. */
static char *first_name(const X509 *leaf, struct sl_err *err)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(leaf, NID_subject_alt_name, NULL, NULL);
    char *found = NULL;
    for (int i = 0; i < sk_GENERAL_NAME_num(names) && !found; i++) {
        int kind;
        const ASN1_STRING *text = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &kind);
        if (kind == GEN_EMAIL || kind == GEN_URI)
            found = copy_text(text, err);
    }
    GENERAL_NAMES_free(names);
    return found;
}

static char *identity_issuer(const X509 *leaf, struct sl_err *err)
{
    ASN1_OBJECT *oid = OBJ_txt2obj(ISSUER_OID, 1);
    int at = oid ? X509_get_ext_by_OBJ(leaf, oid, -1) : -1;
    char *found = NULL;
    ASN1_OBJECT_free(oid);
    if (at >= 0) {
        const ASN1_OCTET_STRING *value = X509_EXTENSION_get_data(X509_get_ext(leaf, at));
        const uint8_t *der = ASN1_STRING_get0_data(value);
        ASN1_UTF8STRING *text = d2i_ASN1_UTF8STRING(NULL, &der, ASN1_STRING_length(value));
        found = text ? copy_text(text, err) : NULL;
        ASN1_UTF8STRING_free(text);
    }
    return found;
}

static int read_leaf(const struct sl_bundle *bundle, const X509 *leaf,
                     struct sl_bundle_claims *claims, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (bundle->method == SL_SIGNED_KEYLESS) {
        claims->subject = first_name(leaf, &why);
        claims->issuer = why.kind ? NULL : identity_issuer(leaf, &why);
    } else {
        claims->subject = sl_certificate_name(X509_get_subject_name(leaf), &why);
        claims->issuer = why.kind ? NULL : sl_certificate_name(X509_get_issuer_name(leaf), &why);
    }
    if (why.kind)
        return sl_fail(err, why.kind, "%s", why.message);
    claims->valid_from = sl_signing_seconds(X509_get0_notBefore(leaf), 0);
    claims->valid_until = sl_signing_seconds(X509_get0_notAfter(leaf), 0);
    return sl_certificate_fingerprint(leaf, claims->fingerprint, err);
}

int sl_bundle_claims_read(const struct sl_bundle *bundle, struct sl_bundle_claims *claims,
                          struct sl_err *err)
{
    const char *logged = sl_json_get_string(json_array_get(bundle->entries, 0), "integratedTime");
    uint64_t seconds;
    *claims = (struct sl_bundle_claims){0};
    if (logged && sl_take_digits(&logged, &seconds) && *logged == 0 && seconds < 1ull << 40)
        claims->logged_at = (int64_t)seconds;
    if (bundle->method == SL_SIGNED_KEY)
        return 0;
    X509 *leaf = sl_certificate_parse(&bundle->certificates[0], err);
    if (!leaf)
        return -1;
    int done = read_leaf(bundle, leaf, claims, err);
    X509_free(leaf);
    ERR_clear_error();
    return done;
}

void sl_signing_signer_release(struct sl_signing_signer *signer)
{
    free(signer->who);
    *signer = (struct sl_signing_signer){0};
}
