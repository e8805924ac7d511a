/*
 * Who may have signed: what a spec or a policy names. Plain data; the texts are the caller's and
 * stay while it is used. Any thread.
 */
#ifndef SL_SIGNING_TRUST_H
#define SL_SIGNING_TRUST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum sl_signing_method { SL_SIGNED_KEY, SL_SIGNED_CERTIFICATE, SL_SIGNED_KEYLESS };

struct sl_signing_trust {
    enum sl_signing_method method;
    /* SL_SIGNED_KEY: public keys (PEM, SubjectPublicKeyInfo; several in one text); any may sign */
    const char *keys_pem;
    /* SL_SIGNED_CERTIFICATE: the only roots, PEM, and intermediates among them; never the system's
     */
    const char *ca_pem;
    const char
        *subject; /* fnmatch pattern over the leaf's SANs and CN; NULL: every leaf of that CA */
    bool allow_expired; /* a leaf that was valid when it began; the caller warns */
    /* SL_SIGNED_KEYLESS: both must be there and are compared byte for byte */
    const char *identity, *issuer;
    const char *trusted_root_json; /* trusted_root.json of Sigstore, public or private */
};

/** The signer that was believed, for people and manifests. */
struct sl_signing_signer {
    enum sl_signing_method method;
    char *who;            /* "key SHA256HEX" | "SUBJECT, by ISSUER" | "IDENTITY, by ISSUER" */
    char fingerprint[65]; /* SHA-256 of the key's or leaf's DER, hex */
    int64_t signed_at;    /* seconds since 1970 where an authority says it (RFC 3161, Rekor); 0 */
    bool expired;         /* allow_expired let it pass */
};
/** Frees what it holds; fine on zeroes. */
void sl_signing_signer_release(struct sl_signing_signer *signer);

#endif
