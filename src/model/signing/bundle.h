/*
 * Sigstore bundles (media type application/vnd.dev.sigstore.bundle.v0.3+json) with a DSSE envelope.
 * Texts in memory; every byte is hostile. Any thread; a bundle is read by any once it is made.
 */
#ifndef SL_BUNDLE_H
#define SL_BUNDLE_H

#include "buf.h"
#include "json.h"
#include "signing_trust.h"

enum { SL_BUNDLE_BYTES_MAX = 64 * 1024 * 1024 };

struct sl_der {
    uint8_t *data;
    size_t bytes;
};
struct sl_bundle {
    enum sl_signing_method method;
    char *hint;                  /* SL_SIGNED_KEY: hex, NULL if absent */
    struct sl_der *certificates; /* DER, leaf first; keyless: the leaf alone */
    size_t certificate_count;
    struct sl_der *timestamps; /* RFC 3161 responses, DER */
    size_t timestamp_count;
    json_t *entries; /* tlogEntries, an array; NULL: none */
    char *payload_type;
    struct sl_der payload;   /* decoded */
    struct sl_der signature; /* the one of the envelope, decoded (DER of ECDSA) */
};

/** Parse; nothing is believed yet. SL_E_INTEGRITY, code E_SIGNATURE, says what is wrong; what is
 * right but not known (another media type's version) is SL_E_FORMAT. */
int sl_bundle_parse(const char *text, size_t bytes, struct sl_bundle **bundle, struct sl_err *err);
void sl_bundle_free(struct sl_bundle *bundle);
/** DSSE's encoding of payload type and payload, which is what is signed; appended. SL_E_NO_SPACE.
 */
int sl_bundle_signed_bytes(const struct sl_bundle *bundle, struct sl_buf *text, struct sl_err *err);
/**
 * Is it signed by one whom `trust` names? Checks method, key or chain, times and the signature over
 * the DSSE encoding.
 *
 * @now     seconds since 1970.
 * @signer  out: the caller's, to be released.
 * @return  0, or -1: SL_E_INTEGRITY, code E_SIGNATURE; SL_E_USAGE for a trust that is itself wrong.
 */
int sl_bundle_verify(const struct sl_bundle *bundle, const struct sl_signing_trust *trust,
                     int64_t now, struct sl_signing_signer *signer, struct sl_err *err);
/**
 * Check one signature over bytes by one of the trust's keys: for formats without a bundle.
 *
 * @trust      its method is SL_SIGNED_KEY.
 * @signature  DER of ECDSA.
 * @data       `bytes` bytes.
 * @signer     out: the caller's, to be released.
 * @return     0, or -1: as sl_bundle_verify(); SL_E_USAGE for another method, too.
 */
int sl_signing_check_bytes(const struct sl_signing_trust *trust, const struct sl_der *signature,
                           const void *data, size_t bytes, struct sl_signing_signer *signer,
                           struct sl_err *err);

#endif
