/* What the files of this room share. Any thread. */
#ifndef SL_BUNDLE_PARTS_H
#define SL_BUNDLE_PARTS_H

#include <openssl/evp.h>
#include <openssl/x509.h>

#include "oms.h"

#define SL_BUNDLE_MEDIA_TYPE   "application/vnd.dev.sigstore.bundle.v0.3+json"
#define SL_BUNDLE_PAYLOAD_TYPE "application/vnd.in-toto+json"
#define SL_OMS_STATEMENT       "https://in-toto.io/Statement/v1"
#define SL_OMS_PREDICATE       "https://model_signing/signature/v1.0"

/** Resources by path (bytes of UTF-8, which are in the order of code points) and start. */
void sl_oms_sort(struct sl_oms *oms);

/** DSSE's bytes in front of the payload; appended. */
int sl_bundle_signed_head(const struct sl_bundle *bundle, struct sl_buf *text, struct sl_err *err);

/** The hash that goes with a key's curve; NULL: a key that the format does not know. */
const EVP_MD *sl_signing_hash(const EVP_PKEY *key);
/** Which kinds it knows, for messages. */
#define SL_SIGNING_KINDS "ECDSA over P-256, P-384 and P-521 is supported"
/** Seconds since 1970, or `broken` where time is NULL or malformed. */
int64_t sl_signing_seconds(const ASN1_TIME *time, int64_t broken);
/** Always -1, SL_E_NO_SPACE: forgets what OpenSSL noted of it. */
int sl_signing_no_memory(struct sl_err *err);
/** Lower-case hex of SHA-256 over the key's PEM text, which is the hint of a bundle. SL_E_NO_SPACE.
 */
int sl_signing_hint(EVP_PKEY *key, char hint[65], struct sl_err *err);
/** The same over a key's DER, or a certificate's. */
int sl_signing_fingerprint(EVP_PKEY *key, char text[65], struct sl_err *err);
int sl_certificate_fingerprint(const X509 *certificate, char text[65], struct sl_err *err);
/** "CN=Example signer,O=Example" (RFC 2253); free() it. NULL: SL_E_NO_SPACE. */
char *sl_certificate_name(const X509_NAME *name, struct sl_err *err);
/** "SUBJECT, by ISSUER" on one line; free() it. NULL: SL_E_NO_SPACE. */
char *sl_certificate_who(const X509 *certificate, struct sl_err *err);
/** Key usage digitalSignature, or the extended one codeSigning. */
bool sl_certificate_may_sign(X509 *certificate);

/** DER that must be one certificate and nothing more; X509_free() it. NULL: SL_E_INTEGRITY. */
X509 *sl_certificate_parse(const struct sl_der *der, struct sl_err *err);

/**
 * PEM blocks of one label, in order.
 *
 * @take  is called for each; 0 to go on, or -1 with err. Its der is borrowed.
 * @what  names the text in messages.
 * @return  0, or -1 with SL_E_USAGE if the text has none, more than `most`, or another block.
 */
int sl_pem_blocks(const char *text, const char *label, size_t most, const char *what,
                  int (*take)(const struct sl_der *der, void *arg, struct sl_err *err), void *arg,
                  struct sl_err *err);

#endif
