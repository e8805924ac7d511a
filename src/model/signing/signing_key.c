/* Keys and certificates as OpenSSL has them, with the few questions that are asked of them here. */
#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <time.h>

#include "bundle_parts.h"
#include "hash.h"

const EVP_MD *sl_signing_hash(const EVP_PKEY *key)
{
    static const struct {
        const char *curve;
        const EVP_MD *(*hash)(void);
    } rows[] = {{"prime256v1", EVP_sha256}, {"secp384r1", EVP_sha384}, {"secp521r1", EVP_sha512}};
    char curve[32] = "";
    if (!EVP_PKEY_is_a(key, "EC") || EVP_PKEY_get_group_name(key, curve, sizeof(curve), NULL) != 1)
        return NULL;
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (strcmp(curve, rows[i].curve) == 0)
            return rows[i].hash();
    return NULL;
}

int64_t sl_signing_seconds(const ASN1_TIME *time, int64_t broken)
{
    struct tm parts;
    return time && ASN1_TIME_to_tm(time, &parts) == 1 ? (int64_t)timegm(&parts) : broken;
}

int sl_signing_no_memory(struct sl_err *err)
{
    ERR_clear_error();
    return sl_fail(err, SL_E_NO_SPACE, "out of memory");
}

static int hash_text(const void *data, int bytes, char text[65], struct sl_err *err)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    if (!data || bytes <= 0)
        return sl_signing_no_memory(err);
    if (sl_digest_of(SL_HASH_SHA256, NULL, 0, data, (size_t)bytes, digest, err) < 0)
        return -1;
    sl_hex(digest, SHA256_DIGEST_LENGTH, text);
    return 0;
}

int sl_signing_hint(EVP_PKEY *key, char hint[65], struct sl_err *err)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *pem = NULL;
    /* Points may be written in a short form; a hint is of the long one. */
    bool written =
        bio &&
        EVP_PKEY_set_utf8_string_param(key, OSSL_PKEY_PARAM_EC_POINT_CONVERSION_FORMAT,
                                       OSSL_PKEY_EC_POINT_CONVERSION_FORMAT_UNCOMPRESSED) == 1 &&
        PEM_write_bio_PUBKEY(bio, key) == 1;
    long bytes = written ? BIO_get_mem_data(bio, &pem) : 0;
    int done = hash_text(pem, (int)bytes, hint, err);
    BIO_free(bio);
    return done;
}

int sl_signing_fingerprint(EVP_PKEY *key, char text[65], struct sl_err *err)
{
    uint8_t *der = NULL;
    int bytes = i2d_PUBKEY(key, &der);
    int done = hash_text(der, bytes, text, err);
    OPENSSL_free(der);
    return done;
}

int sl_certificate_fingerprint(const X509 *certificate, char text[65], struct sl_err *err)
{
    uint8_t *der = NULL;
    int bytes = i2d_X509(certificate, &der);
    int done = hash_text(der, bytes, text, err);
    OPENSSL_free(der);
    return done;
}

char *sl_certificate_name(const X509_NAME *name, struct sl_err *err)
{
    char *text = NULL, *copy = NULL;
    BIO *bio = BIO_new(BIO_s_mem());
    if (bio && X509_NAME_print_ex(bio, name, 0, XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB) >= 0) {
        long bytes = BIO_get_mem_data(bio, &text);
        copy = sl_strndup(text ? text : "", bytes > 0 ? (size_t)bytes : 0, err);
    } else {
        sl_signing_no_memory(err);
    }
    BIO_free(bio);
    return copy;
}

char *sl_certificate_who(const X509 *certificate, struct sl_err *err)
{
    sl_autofree char *subject = sl_certificate_name(X509_get_subject_name(certificate), err),
                     *issuer = sl_certificate_name(X509_get_issuer_name(certificate), err);
    if (!subject || !issuer)
        return NULL;
    char *who = sl_asprintf(err, "%.512s, by %.512s", *subject ? subject : "no subject", issuer);
    if (who)
        sl_sanitize(who);
    return who;
}

X509 *sl_certificate_parse(const struct sl_der *der, struct sl_err *err)
{
    const uint8_t *at = der->data;
    X509 *certificate = d2i_X509(NULL, &at, (long)der->bytes);
    ERR_clear_error();
    if (certificate && at == der->data + der->bytes)
        return certificate;
    X509_free(certificate);
    sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                 "a certificate of the signature bundle is not one");
    return NULL;
}

bool sl_certificate_may_sign(X509 *leaf)
{
    uint32_t flags = X509_get_extension_flags(leaf);
    if (flags & EXFLAG_INVALID)
        return false;
    return ((flags & EXFLAG_KUSAGE) && (X509_get_key_usage(leaf) & KU_DIGITAL_SIGNATURE)) ||
           ((flags & EXFLAG_XKUSAGE) && (X509_get_extended_key_usage(leaf) & XKU_CODE_SIGN));
}

/* ---- PEM ------------------------------------------------------------------------------------- */

static int wrong_pem(const char *what, const char *label, const char *why, struct sl_err *err)
{
    return sl_fail(err, SL_E_USAGE,
                   "%s: %s; blocks of PEM that begin with -----BEGIN %s----- are "
                   "expected, and nothing else",
                   what, why, label);
}

int sl_pem_blocks(const char *text, const char *label, size_t most, const char *what,
                  int (*take)(const struct sl_der *der, void *arg, struct sl_err *err), void *arg,
                  struct sl_err *err)
{
    size_t count = 0;
    int done = 0;
    BIO *bio = BIO_new_mem_buf(text, -1);
    if (!bio)
        return sl_signing_no_memory(err);
    while (done == 0) {
        struct sl_der der = {0};
        char *name = NULL, *header = NULL;
        long bytes = 0;
        ERR_clear_error();
        if (PEM_read_bio(bio, &name, &header, &der.data, &bytes) != 1)
            break;
        der.bytes = (size_t)bytes;
        if (strcmp(name, label) != 0)
            done = wrong_pem(what, label, "it holds something else", err);
        else if (count++ == most)
            done = wrong_pem(what, label, "it holds too many", err);
        else
            done = take(&der, arg, err);
        OPENSSL_clear_free(der.data, der.bytes); /* a private key, maybe */
        OPENSSL_free(name);
        OPENSSL_free(header);
    }
    bool whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
    ERR_clear_error();
    BIO_free(bio);
    if (done == 0 && (!whole || count == 0))
        return wrong_pem(what, label, count ? "a block of it is broken" : "it holds none", err);
    return done;
}
