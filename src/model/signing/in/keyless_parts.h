/*
 * What keyless.c is made of: the trusted root, and one file for each kind of proof. Texts in
 * memory, every byte of a bundle hostile. Any thread; nothing blocks. Failures are SL_E_INTEGRITY,
 * code E_SIGNATURE, unless it is said otherwise.
 */
#ifndef SL_KEYLESS_PARTS_H
#define SL_KEYLESS_PARTS_H

#include <openssl/evp.h>
#include <openssl/x509.h>

#include "bundle.h"
#include "hash.h"

enum {
    SL_TRUSTED_ITEMS_MAX = 64, /* authorities, or logs, of one kind */
    SL_TRUSTED_CHAIN_MAX = 8,
    SL_CERTIFICATE_BYTES_MAX = 16 * 1024,
    SL_LOG_ID_BYTES_MAX = 64,
    SL_KEYLESS_TIMES_MAX = 16, /* RFC 3161 responses of a bundle */
};

/* ---- the trusted root (trusted_root.c) ------------------------------------------------------- */

/** Seconds since 1970, both within. */
struct sl_trusted_period {
    int64_t start, end;
};
struct sl_trusted_authority {
    STACK_OF(X509) * chain; /* as the root has it: the anchor is the last */
    struct sl_trusted_period valid;
};
struct sl_trusted_log {
    EVP_PKEY *key;                  /* NULL: of a kind that is not known here */
    uint8_t own[SL_HASH_BYTES_MAX]; /* SHA-256 of the key's DER, in the first 32 */
    uint8_t id[SL_LOG_ID_BYTES_MAX];
    size_t id_bytes;
    struct sl_trusted_period valid;
};
/** sigstore_trustroot.proto of https://github.com/sigstore/protobuf-specs, as JSON. */
struct sl_trusted_root {
    struct sl_trusted_authority *cas, *tsas;
    size_t ca_count, tsa_count;
    struct sl_trusted_log *logs, *ct_logs;
    size_t log_count, ct_log_count;
};
/** SL_E_USAGE says what is wrong with it. Fuzzed. */
int sl_trusted_root_parse(const char *text, struct sl_trusted_root **root, struct sl_err *err);
void sl_trusted_root_free(struct sl_trusted_root *root);
SL_AUTO_DEFINE(sl_trusted_root)
bool sl_trusted_covers(const struct sl_trusted_period *period, int64_t at);

/* ---- what several need (sigstore_text.c) ----------------------------------------------------- */

/** Always -1: E_SIGNATURE. */
int sl_signature_fail(struct sl_err *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/**
 * Decode standard base64, padded.
 *
 * @text    NULL: it is none.
 * @data    out: at most `room` bytes.
 * @bytes   out: how many.
 * @return  false: it is none, or not of 1 to `room` bytes.
 */
bool sl_sigstore_base64(const char *text, uint8_t *data, size_t room, size_t *bytes);
/** "2025-10-10T02:12:20Z" */
const char *sl_sigstore_time(int64_t seconds, char text[32]);
/** An int64 of protobuf's JSON: a string of digits, or a number. false: neither, or negative. */
bool sl_sigstore_number(const json_t *object, const char *key, uint64_t *value);
/**
 * Is this a signature of the bytes with the key's own hash: ECDSA by its curve, RSA (PKCS #1) with
 * SHA-256, Ed25519?
 *
 * @key        NULL, or of another kind: no.
 * @signature  `signature_bytes` bytes.
 * @data       `bytes` bytes.
 * @return     true: it is.
 */
bool sl_sigstore_signed_by(EVP_PKEY *key, const void *signature, size_t signature_bytes,
                           const void *data, size_t bytes);

/* ---- times (timestamp.c) --------------------------------------------------------------------- */

/** When a bundle was signed, as those say whom the root trusts; the first one is shown. */
struct sl_signing_times {
    int64_t at[SL_KEYLESS_TIMES_MAX + 1];
    size_t count;
};
/**
 * Add what an RFC 3161 response over the bundle's signature says.
 *
 * @response   one of the bundle's.
 * @signature  of the bundle.
 * @times      gets one more, if the root has the response's authority. There must be room.
 * @return     0, or -1: it cannot be read, is not granted, or is not by that authority at such a
 *             time over this signature.
 */
int sl_timestamp_check(const struct sl_trusted_root *root, const struct sl_der *response,
                       const struct sl_der *signature, struct sl_signing_times *times,
                       struct sl_err *err);

/* ---- the certificate's log (sct.c) ----------------------------------------------------------- */

/** RFC 6962 section 3.2: the one SCT in the leaf, which `issuer` signed. */
int sl_sct_check(const struct sl_trusted_root *root, X509 *leaf, X509 *issuer, struct sl_err *err);

/* ---- the signature's log (rekor.c, rekor_body.c) --------------------------------------------- */

/** The one entry of a bundle, borrowed from it but for the body. */
struct sl_rekor_entry {
    const json_t *json;
    const struct sl_trusted_log *log;
    const char *kind, *version;
    struct sl_der body; /* canonicalizedBody, decoded */
};
/** Find its log. Release it, after a failure, too. */
int sl_rekor_open(const struct sl_trusted_root *root, const json_t *entries,
                  struct sl_rekor_entry *entry, struct sl_err *err);
void sl_rekor_release(struct sl_rekor_entry *entry);
/** Add integratedTime, where an inclusionPromise binds it; one that is wrong is a failure. */
int sl_rekor_check_promise(const struct sl_rekor_entry *entry, struct sl_signing_times *times,
                           struct sl_err *err);
/** Inclusion proof and checkpoint, and that the log was in use at each of these times. */
int sl_rekor_check_inclusion(const struct sl_rekor_entry *entry,
                             const struct sl_signing_times *times, struct sl_err *err);
/** Is it the entry of this bundle: its payload, signature and certificate? */
int sl_rekor_check_body(const struct sl_rekor_entry *entry, const struct sl_bundle *bundle,
                        struct sl_err *err);

#endif
