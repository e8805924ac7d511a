/*
 * The signed certificate timestamp that a Fulcio's certificate carries: its log has seen it before
 * it was given out. OpenSSL's own check wants the logs in a file, so what is signed is put together
 * here: the certificate as it was before the SCT was put in.
 */
#include <openssl/ct.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "keyless_parts.h"

enum { TBS_BYTES_MAX = 64 * 1024 };

static int put_number(struct sl_buf *buf, uint64_t value, unsigned bytes, struct sl_err *err)
{
    uint8_t text[8];
    for (unsigned i = 0; i < bytes; i++)
        text[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
    return sl_buf_append(buf, text, bytes, err);
}

/* SHA-256 of the issuer's public key. */
static int put_issuer(struct sl_buf *buf, X509 *issuer, struct sl_err *err)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    unsigned char *der = NULL;
    int bytes = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(issuer), &der);
    int result = bytes <= 0
                     ? sl_signature_fail(err, "the issuer's key cannot be read")
                     : sl_digest_of(SL_HASH_SHA256, NULL, 0, der, (size_t)bytes, digest, err);
    OPENSSL_free(der);
    return result < 0 ? -1 : sl_buf_append(buf, digest, 32, err);
}

/* The leaf's own part without the SCT. */
static int put_certificate(struct sl_buf *buf, X509 *leaf, struct sl_err *err)
{
    X509 *before = X509_dup(leaf);
    unsigned char *der = NULL;
    int at = before ? X509_get_ext_by_NID(before, NID_ct_precert_scts, -1) : -1, bytes = -1;
    if (at >= 0) {
        X509_EXTENSION_free(X509_delete_ext(before, at));
        bytes = i2d_re_X509_tbs(before, &der);
    }
    int result = bytes <= 0 || bytes > TBS_BYTES_MAX
                     ? sl_signature_fail(err, "its certificate cannot be written without its SCT")
                     : put_number(buf, (uint64_t)bytes, 3, err);
    if (result == 0)
        result = sl_buf_append(buf, der, (size_t)bytes, err);
    OPENSSL_free(der);
    X509_free(before);
    return result;
}

/* RFC 6962 section 3.2, of a precert_entry. */
static int put_signed(struct sl_buf *buf, const SCT *sct, X509 *leaf, X509 *issuer,
                      struct sl_err *err)
{
    unsigned char *extensions;
    size_t bytes = SCT_get0_extensions(sct, &extensions);
    if (put_number(buf, 0, 2, err) < 0 || put_number(buf, SCT_get_timestamp(sct), 8, err) < 0 ||
        put_number(buf, 1, 2, err) < 0 || put_issuer(buf, issuer, err) < 0 ||
        put_certificate(buf, leaf, err) < 0 || put_number(buf, bytes, 2, err) < 0)
        return -1;
    return sl_buf_append(buf, extensions, bytes, err);
}

static const struct sl_trusted_log *find_log(const struct sl_trusted_root *root, const SCT *sct,
                                             bool *known)
{
    unsigned char *id;
    size_t bytes = SCT_get0_log_id(sct, &id);
    int64_t at = (int64_t)(SCT_get_timestamp(sct) / 1000);
    for (size_t i = 0; i < root->ct_log_count; i++) {
        const struct sl_trusted_log *log = &root->ct_logs[i];
        if (bytes != 32 || memcmp(id, log->own, bytes) != 0)
            continue;
        *known = true;
        if (sl_trusted_covers(&log->valid, at))
            return log;
    }
    return NULL;
}

static int check(const struct sl_trusted_root *root, const SCT *sct, X509 *leaf, X509 *issuer,
                 struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(2 * TBS_BYTES_MAX);
    bool known = false;
    unsigned char *signature;
    const struct sl_trusted_log *log = find_log(root, sct, &known);
    if (!log)
        return sl_signature_fail(err, "the log of its certificate (SCT) %s",
                                 known ? "was not in use then: validFor of the trusted root"
                                       : "is not in the trusted root");
    if (put_signed(&text, sct, leaf, issuer, err) < 0)
        return -1;
    size_t bytes = SCT_get0_signature(sct, &signature);
    if (!sl_sigstore_signed_by(log->key, signature, bytes, text.data, text.used))
        return sl_signature_fail(err, "the SCT of its certificate is not signed by its log");
    return 0;
}

int sl_sct_check(const struct sl_trusted_root *root, X509 *leaf, X509 *issuer, struct sl_err *err)
{
    STACK_OF(SCT) *scts = X509_get_ext_d2i(leaf, NID_ct_precert_scts, NULL, NULL);
    int count = scts ? sk_SCT_num(scts) : 0;
    ERR_clear_error();
    int result = count != 1 || SCT_get_version(sk_SCT_value(scts, 0)) != SCT_VERSION_V1
                     ? sl_signature_fail(
                           err, "its certificate has not exactly one SCT of a log, but %d", count)
                     : check(root, sk_SCT_value(scts, 0), leaf, issuer, err);
    SCT_LIST_free(scts);
    return result;
}
