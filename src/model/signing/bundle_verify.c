/*
 * Who signed, then what: the key is one of the caller's, or that of the first certificate once a
 * chain leads from it to the caller's roots. Nothing of the bundle is trusted, and no certificate
 * of the system's is: whoever may have a certificate of some public authority is nobody here.
 */
#include <fnmatch.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <time.h>

#include "bundle_parts.h"
#include "keyless.h"

enum { KEYS_MAX = 64, ROOTS_MAX = 1024, SECURITY_LEVEL = 2 /* 112 bits: no SHA-1, no short RSA */ };

static const char *const methods[] = {[SL_SIGNED_KEY] = "a key",
                                      [SL_SIGNED_CERTIFICATE] = "a certificate",
                                      [SL_SIGNED_KEYLESS] = "an identity (keyless)"};

static int refuse(const char *why, struct sl_err *err)
{
    ERR_clear_error();
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE", "%s", why);
}

/* ---- one signature --------------------------------------------------------------------------- */

/* Over `head` and what follows it. */
static bool signed_by(EVP_PKEY *key, const struct sl_der *signature, const struct sl_buf *head,
                      const void *data, size_t bytes)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const EVP_MD *hash = sl_signing_hash(key);
    bool good = context && hash && EVP_DigestVerifyInit(context, NULL, hash, NULL, key) == 1 &&
                EVP_DigestVerifyUpdate(context, sl_buf_string(head), head->used) == 1 &&
                EVP_DigestVerifyUpdate(context, data, bytes) == 1 &&
                EVP_DigestVerifyFinal(context, signature->data, signature->bytes) == 1;
    EVP_MD_CTX_free(context);
    ERR_clear_error();
    return good;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* What is asked of each of the caller's keys. */
struct search {
    const char *hint; /* NULL: any */
    const struct sl_der *signature;
    const struct sl_buf *head;
    const void *data;
    size_t bytes;
    bool hinted, found; /* a key has the hint; one signed */
    char last_hint[65];
    struct sl_signing_signer *signer;
};

static int try_parsed(EVP_PKEY *key, struct search *search, struct sl_err *err)
{
    if (!sl_signing_hash(key))
        return sl_fail(err, SL_E_USAGE,
                       "a public key of kind %s cannot have signed a model: " SL_SIGNING_KINDS,
                       EVP_PKEY_get0_type_name(key) ? EVP_PKEY_get0_type_name(key) : "unknown");
    if (sl_signing_hint(key, search->last_hint, err) < 0)
        return -1;
    if (search->found || (search->hint && strcmp(search->hint, search->last_hint) != 0))
        return 0;
    search->hinted = true;
    if (!signed_by(key, search->signature, search->head, search->data, search->bytes))
        return 0;
    search->found = true;
    return sl_signing_fingerprint(key, search->signer->fingerprint, err);
}

static int try_key(const struct sl_der *der, void *arg, struct sl_err *err)
{
    const uint8_t *at = der->data;
    EVP_PKEY *key = d2i_PUBKEY(NULL, &at, (long)der->bytes);
    ERR_clear_error();
    if (!key)
        return sl_fail(err, SL_E_USAGE, "a public key cannot be read: " SL_SIGNING_KINDS);
    int done = try_parsed(key, arg, err);
    EVP_PKEY_free(key);
    return done;
}

static int search_keys(const struct sl_signing_trust *trust, struct search *search,
                       struct sl_err *err)
{
    if (!trust->keys_pem)
        return sl_fail(err, SL_E_USAGE, "no public key is given to check the signature with");
    if (sl_pem_blocks(trust->keys_pem, "PUBLIC KEY", KEYS_MAX, "the public key", try_key, search,
                      err) < 0)
        return -1;
    if (!search->hinted)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "signed by another key: the signature's hint is %.64s, that of the "
                            "given key %s",
                            search->hint, search->last_hint);
    if (!search->found)
        return refuse("the signature is not right: what is signed was changed, or another key "
                      "signed it",
                      err);
    search->signer->method = SL_SIGNED_KEY;
    search->signer->who = sl_asprintf(err, "key %s", search->signer->fingerprint);
    return search->signer->who ? 0 : -1;
}

int sl_signing_check_bytes(const struct sl_signing_trust *trust, const struct sl_der *signature,
                           const void *data, size_t bytes, struct sl_signing_signer *signer,
                           struct sl_err *err)
{
    const struct sl_buf nothing = SL_BUF_INIT(0);
    struct search search = {
        .signature = signature, .head = &nothing, .data = data, .bytes = bytes, .signer = signer};
    *signer = (struct sl_signing_signer){0};
    if (trust->method != SL_SIGNED_KEY)
        return sl_fail(err, SL_E_USAGE, "a signature of this kind can be checked with a key alone");
    return search_keys(trust, &search, err);
}

/* ---- certificates ---------------------------------------------------------------------------- */

/* The text matches, whole: one with a NUL inside is nobody's name. */
static bool text_matches(const ASN1_STRING *text, const char *pattern)
{
    uint8_t *utf8 = NULL;
    int bytes = ASN1_STRING_to_UTF8(&utf8, text);
    bool same = bytes > 0 && strlen((char *)utf8) == (size_t)bytes &&
                fnmatch(pattern, (char *)utf8, 0) == 0;
    OPENSSL_free(utf8);
    return same;
}

static bool alternative_matches(const X509 *leaf, const char *pattern)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(leaf, NID_subject_alt_name, NULL, NULL);
    bool same = false;
    for (int i = 0; i < sk_GENERAL_NAME_num(names) && !same; i++) {
        int kind;
        const ASN1_STRING *text = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &kind);
        same = (kind == GEN_EMAIL || kind == GEN_URI || kind == GEN_DNS) &&
               text_matches(text, pattern);
    }
    GENERAL_NAMES_free(names);
    return same;
}

static bool subject_matches(const X509 *leaf, const char *pattern)
{
    const X509_NAME *subject = X509_get_subject_name(leaf);
    for (int at = -1; (at = X509_NAME_get_index_by_NID(subject, NID_commonName, at)) >= 0;)
        if (text_matches(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)), pattern))
            return true;
    return alternative_matches(leaf, pattern);
}

static int add_root(const struct sl_der *der, void *arg, struct sl_err *err)
{
    X509 *certificate = sl_certificate_parse(der, err);
    if (!certificate)
        return sl_fail(err, SL_E_USAGE, "a certificate of the trusted ones cannot be read");
    bool added = X509_STORE_add_cert(arg, certificate) == 1;
    X509_free(certificate);
    return added ? 0 : sl_signing_no_memory(err);
}

/* X509_V_OK, or why no chain leads from the leaf to the store at that time. -1: out of memory. */
static int chain_fault(X509_STORE *store, X509 *leaf, STACK_OF(X509) * others, int64_t when)
{
    int fault = -1;
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    if (context && X509_STORE_CTX_init(context, store, leaf, others) == 1) {
        X509_VERIFY_PARAM *rules = X509_STORE_CTX_get0_param(context);
        X509_VERIFY_PARAM_set_time(rules, (time_t)when);
        X509_VERIFY_PARAM_set_auth_level(rules, SECURITY_LEVEL);
        int good = X509_verify_cert(context);
        fault = X509_STORE_CTX_get_error(context);
        if (good != 1 && fault == X509_V_OK)
            fault = X509_V_ERR_UNSPECIFIED;
    }
    X509_STORE_CTX_free(context);
    ERR_clear_error();
    return fault;
}

static int say_fault(int fault, const X509 *leaf, struct sl_err *err)
{
    char from[32] = "?", until[32] = "?";
    struct tm parts;
    if (ASN1_TIME_to_tm(X509_get0_notBefore(leaf), &parts) == 1)
        strftime(from, sizeof(from), "%Y-%m-%dT%H:%M:%SZ", &parts);
    if (ASN1_TIME_to_tm(X509_get0_notAfter(leaf), &parts) == 1)
        strftime(until, sizeof(until), "%Y-%m-%dT%H:%M:%SZ", &parts);
    if (fault < 0)
        return sl_signing_no_memory(err);
    bool late = fault == X509_V_ERR_CERT_HAS_EXPIRED;
    if (late || fault == X509_V_ERR_CERT_NOT_YET_VALID)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "a certificate of the signer %s (the signer's is valid from %s to %s): "
                            "%s",
                            late ? "has expired" : "is not valid yet", from, until,
                            late ? "sign again with a new one, or allow expired ones"
                                 : "look at this machine's clock");
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                        "no chain leads from the signer's certificate to a trusted one: %s; the "
                        "trusted ones must hold the root, and intermediates that the signature "
                        "lacks",
                        X509_verify_cert_error_string(fault));
}

static int check_chain(X509_STORE *store, X509 *leaf, STACK_OF(X509) * others,
                       const struct sl_signing_trust *trust, int64_t now, bool *expired,
                       struct sl_err *err)
{
    int fault = chain_fault(store, leaf, others, now);
    *expired = false;
    if (fault == X509_V_ERR_CERT_HAS_EXPIRED && trust->allow_expired) {
        *expired = true;
        fault = chain_fault(store, leaf, others, sl_signing_seconds(X509_get0_notBefore(leaf), 0));
    }
    return fault == X509_V_OK ? 0 : say_fault(fault, leaf, err);
}

static int check_trust(X509 *leaf, STACK_OF(X509) * others, const struct sl_signing_trust *trust,
                       int64_t now, bool *expired, struct sl_err *err)
{
    X509_STORE *store = X509_STORE_new();
    if (!store)
        return sl_signing_no_memory(err);
    int done = sl_pem_blocks(trust->ca_pem, "CERTIFICATE", ROOTS_MAX, "the trusted certificates",
                             add_root, store, err);
    if (done == 0)
        done = check_chain(store, leaf, others, trust, now, expired, err);
    X509_STORE_free(store);
    return done;
}

static int describe(const X509 *leaf, struct sl_signing_signer *signer, struct sl_err *err)
{
    signer->method = SL_SIGNED_CERTIFICATE;
    signer->who = sl_certificate_who(leaf, err);
    return signer->who ? sl_certificate_fingerprint(leaf, signer->fingerprint, err) : -1;
}

static int check_leaf(X509 *leaf, const struct sl_signing_trust *trust,
                      const struct sl_signing_signer *signer, struct sl_err *err)
{
    if (!sl_certificate_may_sign(leaf))
        return refuse("the signer's certificate may not sign: it has neither the key usage "
                      "digitalSignature nor the extended one codeSigning",
                      err);
    if (trust->subject && !subject_matches(leaf, trust->subject))
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "signed by '%.200s', which does not match '%.200s': none of the "
                            "certificate's alternative names does, nor its common name",
                            signer->who, trust->subject);
    return 0;
}

static STACK_OF(X509) * parse_others(const struct sl_bundle *bundle, struct sl_err *err)
{
    STACK_OF(X509) *others = sk_X509_new_null();
    bool good = others != NULL;
    if (!good)
        sl_signing_no_memory(err);
    for (size_t i = 1; i < bundle->certificate_count && good; i++) {
        X509 *one = sl_certificate_parse(&bundle->certificates[i], err);
        good = one && sk_X509_push(others, one) > 0;
        if (one && !good)
            X509_free(one), sl_signing_no_memory(err);
    }
    if (good)
        return others;
    sk_X509_pop_free(others, X509_free);
    return NULL;
}

static int check_certificate(const struct sl_bundle *bundle, X509 *leaf,
                             const struct sl_signing_trust *trust, int64_t now,
                             struct sl_signing_signer *signer, struct sl_err *err)
{
    if (!trust->ca_pem)
        return sl_fail(err, SL_E_USAGE, "no trusted certificates are given to check the signer's");
    STACK_OF(X509) *others = parse_others(bundle, err);
    if (!others)
        return -1;
    int done = check_trust(leaf, others, trust, now, &signer->expired, err);
    sk_X509_pop_free(others, X509_free);
    if (done < 0 || describe(leaf, signer, err) < 0)
        return -1;
    return check_leaf(leaf, trust, signer, err);
}

/* ---- a bundle -------------------------------------------------------------------------------- */

/* The signature by the leaf's key, once the leaf is believed. */
static int check_with_leaf(const struct sl_bundle *bundle, const X509 *leaf,
                           const struct sl_buf *head, struct sl_err *err)
{
    EVP_PKEY *key = X509_get0_pubkey(leaf);
    if (!key || !sl_signing_hash(key))
        return refuse(
            "the signer's certificate has a key that the format does not know: " SL_SIGNING_KINDS,
            err);
    if (!signed_by(key, &bundle->signature, head, bundle->payload.data, bundle->payload.bytes))
        return refuse("the signature is not right: what is signed was changed, or the "
                      "certificate's key did not sign it",
                      err);
    return 0;
}

static int verify_leaf(const struct sl_bundle *bundle, const struct sl_signing_trust *trust,
                       int64_t now, const struct sl_buf *head, struct sl_signing_signer *signer,
                       struct sl_err *err)
{
    X509 *leaf = sl_certificate_parse(&bundle->certificates[0], err);
    if (!leaf)
        return -1;
    int done = bundle->method == SL_SIGNED_KEYLESS
                   ? sl_keyless_verify(bundle, trust, signer, err)
                   : check_certificate(bundle, leaf, trust, now, signer, err);
    if (done == 0)
        done = check_with_leaf(bundle, leaf, head, err);
    X509_free(leaf);
    return done;
}

static int verify(const struct sl_bundle *bundle, const struct sl_signing_trust *trust, int64_t now,
                  struct sl_signing_signer *signer, struct sl_err *err)
{
    sl_autobuf head = SL_BUF_INIT(256);
    if (bundle->method != trust->method)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "it is signed with %s, but %s is expected", methods[bundle->method],
                            methods[trust->method]);
    if (sl_bundle_signed_head(bundle, &head, err) < 0)
        return -1;
    if (bundle->method != SL_SIGNED_KEY)
        return verify_leaf(bundle, trust, now, &head, signer, err);
    struct search search = {.hint = bundle->hint,
                            .signature = &bundle->signature,
                            .head = &head,
                            .data = bundle->payload.data,
                            .bytes = bundle->payload.bytes,
                            .signer = signer};
    return search_keys(trust, &search, err);
}

int sl_bundle_verify(const struct sl_bundle *bundle, const struct sl_signing_trust *trust,
                     int64_t now, struct sl_signing_signer *signer, struct sl_err *err)
{
    *signer = (struct sl_signing_signer){0};
    if (verify(bundle, trust, now, signer, err) == 0)
        return 0;
    sl_signing_signer_release(signer);
    return -1;
}
