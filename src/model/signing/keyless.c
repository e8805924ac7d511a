/*
 * Keyless signatures, in the order of what each step rests on: when it was signed, whose
 * certificate it was then, whether certificate and signature are in their logs, and at last who the
 * certificate names. Everything that these steps need is in the bundle and in the trusted root; no
 * step asks anybody. The bundle's certificate is worth nothing by our own clock: it lives for
 * minutes.
 */
#include "keyless.h"

#include <inttypes.h>
#include <openssl/err.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include "bundle_parts.h"
#include "keyless_parts.h"

enum { ISSUER_BYTES_MAX = 4096 };

struct checking {
    const struct sl_bundle *bundle;
    const struct sl_signing_trust *trust;
    struct sl_trusted_root *root;
    struct sl_rekor_entry entry;
    X509 *leaf, *issuer; /* issuer: of the first chain that was good */
    struct sl_signing_times times;
};

/* ---- when ------------------------------------------------------------------------------------ */

static int find_times(struct checking *checking, struct sl_err *err)
{
    const struct sl_bundle *bundle = checking->bundle;
    if (bundle->timestamp_count > SL_KEYLESS_TIMES_MAX)
        return sl_signature_fail(err, "the bundle has %zu timestamps, and at most %d are read",
                                 bundle->timestamp_count, SL_KEYLESS_TIMES_MAX);
    for (size_t i = 0; i < bundle->timestamp_count; i++)
        if (sl_timestamp_check(checking->root, &bundle->timestamps[i], &bundle->signature,
                               &checking->times, err) < 0)
            return -1;
    if (sl_rekor_check_promise(&checking->entry, &checking->times, err) < 0)
        return -1;
    if (!checking->times.count)
        return sl_signature_fail(err,
                                 "no authority of the trusted root says when it was signed: the "
                                 "bundle needs a timestamp of one (RFC 3161), or a promise of "
                                 "its log");
    return 0;
}

/* ---- the certificate ------------------------------------------------------------------------- */

static int open_leaf(struct checking *checking, struct sl_err *err)
{
    const struct sl_bundle *bundle = checking->bundle;
    if (bundle->certificate_count != 1)
        return sl_signature_fail(err, "the bundle has not exactly one certificate");
    checking->leaf = sl_certificate_parse(&bundle->certificates[0], err);
    return checking->leaf ? 0 : -1;
}

static int check_validity(const X509 *leaf, int64_t at, struct sl_err *err)
{
    char when[32], from[32], to[32];
    int64_t start = sl_signing_seconds(X509_get0_notBefore(leaf), INT64_MIN),
            end = sl_signing_seconds(X509_get0_notAfter(leaf), INT64_MIN);
    if (start != INT64_MIN && start <= at && at < end) /* as OpenSSL has it */
        return 0;
    return sl_signature_fail(err,
                             "its certificate was not valid when it was signed, at %s: it is from "
                             "%s to %s",
                             sl_sigstore_time(at, when), sl_sigstore_time(start, from),
                             sl_sigstore_time(end, to));
}

/* Does the leaf lead to this authority's last certificate, at that time? *issuer: who signed it, to
 * be freed, where there is none yet; NULL: it is not wanted. */
static bool is_chained(X509 *leaf, const struct sl_trusted_authority *authority, int64_t at,
                       X509 **issuer)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    X509 *anchor = sk_X509_value(authority->chain, sk_X509_num(authority->chain) - 1);
    bool good = store && context && X509_STORE_add_cert(store, anchor) == 1 &&
                X509_STORE_CTX_init(context, store, leaf, authority->chain) == 1;
    if (good) {
        X509_VERIFY_PARAM *rules = X509_STORE_CTX_get0_param(context);
        X509_VERIFY_PARAM_set_time(rules, (time_t)at);
        X509_VERIFY_PARAM_set_flags(rules, X509_V_FLAG_PARTIAL_CHAIN);
        X509_VERIFY_PARAM_set_auth_level(rules, 2);
        good = X509_verify_cert(context) == 1;
    }
    const STACK_OF(X509) *chain = good ? X509_STORE_CTX_get0_chain(context) : NULL;
    good = good && sk_X509_num(chain) > 1;
    if (good && issuer && !*issuer) {
        *issuer = sk_X509_value(chain, 1);
        X509_up_ref(*issuer);
    }
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    ERR_clear_error();
    return good;
}

static int check_chain(struct checking *checking, int64_t at, struct sl_err *err)
{
    const struct sl_trusted_root *root = checking->root;
    char when[32];
    bool unused = false;
    if (check_validity(checking->leaf, at, err) < 0)
        return -1;
    for (size_t i = 0; i < root->ca_count; i++) {
        bool valid = sl_trusted_covers(&root->cas[i].valid, at);
        if (!is_chained(checking->leaf, &root->cas[i], at, valid ? &checking->issuer : NULL))
            continue;
        if (valid)
            return 0;
        unused = true;
    }
    sl_sigstore_time(at, when);
    return unused ? sl_signature_fail(err,
                                      "the CA of its certificate was not in use when it was "
                                      "signed, at %s: validFor of the trusted root",
                                      when)
                  : sl_signature_fail(err,
                                      "its certificate does not lead to a CA of the trusted root "
                                      "as of %s, when it was signed",
                                      when);
}

static int check_usage(X509 *leaf, struct sl_err *err)
{
    uint32_t flags = X509_get_extension_flags(leaf);
    if (flags & EXFLAG_INVALID || !(flags & EXFLAG_KUSAGE) ||
        !(X509_get_key_usage(leaf) & KU_DIGITAL_SIGNATURE))
        return sl_signature_fail(err, "its certificate is not for signatures: no KeyUsage "
                                      "digitalSignature");
    if (!(flags & EXFLAG_XKUSAGE) || !(X509_get_extended_key_usage(leaf) & XKU_CODE_SIGN))
        return sl_signature_fail(err, "its certificate is not for code: no ExtendedKeyUsage "
                                      "codeSigning");
    return 0;
}

/* ---- who ------------------------------------------------------------------------------------- */

static bool is_text(const ASN1_STRING *string, const char *text)
{
    size_t bytes = (size_t)ASN1_STRING_length(string);
    return strlen(text) == bytes && memcmp(ASN1_STRING_get0_data(string), text, bytes) == 0;
}

static int check_identity(X509 *leaf, const char *identity, struct sl_err *err)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(leaf, NID_subject_alt_name, NULL, NULL);
    const ASN1_STRING *first = NULL;
    bool found = false;
    for (int i = 0; !found && i < sk_GENERAL_NAME_num(names); i++) {
        int type;
        const ASN1_STRING *value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);
        if (type != GEN_EMAIL && type != GEN_URI)
            continue;
        first = first ? first : value;
        found = is_text(value, identity);
    }
    int result = found ? 0 : -1;
    if (!found && first)
        sl_signature_fail(err,
                          "it is signed by '%.*s', and '%.200s' is asked for: another identity",
                          SL_MIN(ASN1_STRING_length(first), 200),
                          (const char *)ASN1_STRING_get0_data(first), identity);
    else if (!found)
        sl_signature_fail(err,
                          "its certificate names no e-mail address or URI, and '%.200s' is "
                          "asked for",
                          identity);
    GENERAL_NAMES_free(names);
    ERR_clear_error();
    return result;
}

/* The value of an extension by its OID; NULL: it is not there. Borrowed from the leaf. */
static const ASN1_OCTET_STRING *find_extension(X509 *leaf, const char *oid)
{
    ASN1_OBJECT *object = OBJ_txt2obj(oid, 1);
    int at = object ? X509_get_ext_by_OBJ(leaf, object, -1) : -1;
    ASN1_OBJECT_free(object);
    return at < 0 ? NULL : X509_EXTENSION_get_data(X509_get_ext(leaf, at));
}

/* Fulcio's extension for it, a UTF8String in DER, or the older one, a bare text
 * (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md). */
static bool find_issuer(X509 *leaf, char issuer[ISSUER_BYTES_MAX], int *bytes)
{
    const ASN1_OCTET_STRING *der = find_extension(leaf, "1.3.6.1.4.1.57264.1.8");
    const ASN1_OCTET_STRING *bare = find_extension(leaf, "1.3.6.1.4.1.57264.1.1");
    const unsigned char *at = der ? ASN1_STRING_get0_data(der) : NULL;
    const unsigned char *end = der ? at + ASN1_STRING_length(der) : NULL;
    ASN1_UTF8STRING *text = der ? d2i_ASN1_UTF8STRING(NULL, &at, ASN1_STRING_length(der)) : NULL;
    const ASN1_STRING *value = der ? (text && at == end ? text : NULL) : bare;
    bool good = value && ASN1_STRING_length(value) < ISSUER_BYTES_MAX;
    ERR_clear_error();
    if (good) {
        *bytes = ASN1_STRING_length(value);
        memcpy(issuer, ASN1_STRING_get0_data(value), (size_t)*bytes);
    }
    ASN1_UTF8STRING_free(text);
    return good;
}

static int check_issuer(X509 *leaf, const char *issuer, struct sl_err *err)
{
    char said[ISSUER_BYTES_MAX];
    int bytes;
    if (!find_issuer(leaf, said, &bytes))
        return sl_signature_fail(err, "its certificate does not say which issuer knew the signer");
    if (strlen(issuer) == (size_t)bytes && memcmp(said, issuer, (size_t)bytes) == 0)
        return 0;
    return sl_signature_fail(
        err, "the issuer '%.*s' says who signed it, and '%.200s' is asked for: another issuer",
        SL_MIN(bytes, 200), said, issuer);
}

static int name_signer(const struct checking *checking, struct sl_signing_signer *signer,
                       struct sl_err *err)
{
    *signer = (struct sl_signing_signer){
        .method = SL_SIGNED_KEYLESS,
        .who = sl_asprintf(err, "%s, by %s", checking->trust->identity, checking->trust->issuer),
        .signed_at = checking->times.at[0],
    };
    if (!signer->who)
        return -1;
    sl_sanitize(signer->who);
    return sl_certificate_fingerprint(checking->leaf, signer->fingerprint, err);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int check(struct checking *checking, struct sl_err *err)
{
    const struct sl_signing_trust *trust = checking->trust;
    const struct sl_bundle *bundle = checking->bundle;
    if (sl_trusted_root_parse(trust->trusted_root_json, &checking->root, err) < 0 ||
        open_leaf(checking, err) < 0 ||
        sl_rekor_open(checking->root, bundle->entries, &checking->entry, err) < 0 ||
        find_times(checking, err) < 0)
        return -1;
    for (size_t i = 0; i < checking->times.count; i++)
        if (check_chain(checking, checking->times.at[i], err) < 0)
            return -1;
    if (check_usage(checking->leaf, err) < 0 ||
        sl_sct_check(checking->root, checking->leaf, checking->issuer, err) < 0 ||
        sl_rekor_check_inclusion(&checking->entry, &checking->times, err) < 0 ||
        sl_rekor_check_body(&checking->entry, bundle, err) < 0 ||
        check_identity(checking->leaf, trust->identity, err) < 0)
        return -1;
    return check_issuer(checking->leaf, trust->issuer, err);
}

int sl_keyless_verify(const struct sl_bundle *bundle, const struct sl_signing_trust *trust,
                      struct sl_signing_signer *signer, struct sl_err *err)
{
    struct checking checking = {.bundle = bundle, .trust = trust};
    if (bundle->method != SL_SIGNED_KEYLESS)
        return sl_signature_fail(err,
                                 "it is not a keyless signature: the bundle has no certificate "
                                 "of its own");
    if (!trust->identity || !*trust->identity || !trust->issuer || !*trust->issuer ||
        !trust->trusted_root_json)
        return sl_fail(err, SL_E_USAGE,
                       "a keyless signature needs identity, issuer and a trusted "
                       "root to be checked");
    int result = check(&checking, err);
    if (result == 0 && name_signer(&checking, signer, err) < 0) {
        sl_signing_signer_release(signer);
        result = -1;
    }
    sl_rekor_release(&checking.entry);
    X509_free(checking.leaf);
    X509_free(checking.issuer);
    sl_trusted_root_free(checking.root);
    return result;
}
