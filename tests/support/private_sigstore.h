/*
 * A Sigstore of the test's own: a CA, a log of certificates, a Rekor and a time stamping authority
 * of one process, with new keys and times that are asked for. Each signature is right but for what
 * the test wishes otherwise; texts of bundles and of the trusted root are JSON that a test may
 * change.
 */
#ifndef SL_PRIVATE_SIGSTORE_H
#define SL_PRIVATE_SIGSTORE_H

#include <jansson.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <stdint.h>

enum { SL_SIGSTORE_AT = 1760062340 }; /* when everything is signed, unless it is said otherwise */

enum sl_sigstore_entry { SL_ENTRY_DSSE, SL_ENTRY_HASHED };

/** What a signature is to be like; zeros are a good one of Rekor 1. */
struct sl_sigstore_wish {
    const char *identity, *issuer; /* NULL: "signer@example.com", "https://login.example.com" */
    const char *san;               /* "URI", "DNS" …; NULL: "email" */
    const char *key_usage, *extended_usage; /* "-": none; NULL: right ones */
    bool old_issuer;                        /* the extension of before 2023 alone */
    bool no_issuer;
    long leaf_begin, leaf_end;     /* seconds after SL_SIGSTORE_AT; zeros: -10, 590 */
    unsigned scts_less, scts_more; /* than one */
    bool sct_changed;
    enum sl_sigstore_entry entry;
    bool no_promise, no_timestamp, timestamp_without_certificate;
    long timestamp_after;    /* seconds after SL_SIGSTORE_AT */
    bool timestamp_of_other; /* over another signature */
    bool timestamp_denied;   /* a response without a token */
    const char *payload;     /* NULL: "{}" */
    const char *body_kind;   /* that the body says; NULL: the right one */
    bool body_of_other_payload, body_of_other_signature, body_of_other_certificate;
    bool body_has_two;    /* signatures */
    uint64_t index, size; /* of the log's tree; 0, 0: 5 of 11 */
};

struct sl_sigstore {
    EVP_PKEY *ca_key, *middle_key, *ct_key, *log_key, *tsa_key;
    X509 *ca, *middle, *tsa_ca, *tsa;
};
/** ed25519: Rekor's key is one, else it is of P-256. Release it. */
void sl_sigstore_init(struct sl_sigstore *sigstore, bool ed25519);
void sl_sigstore_release(struct sl_sigstore *sigstore);
/** trusted_root.json; json_decref() it. */
json_t *sl_sigstore_root(const struct sl_sigstore *sigstore);
/** A bundle; json_decref() it. wish may be NULL. */
json_t *sl_sigstore_bundle(const struct sl_sigstore *sigstore, const struct sl_sigstore_wish *wish);

/** A bundle by a key alone; json_decref() it. */
json_t *sl_sigstore_key_bundle(EVP_PKEY *key, const char *payload);
/** Base64 of a signature of SHA-256 over a text, and the public key as PEM. Borrowed, for good. */
const char *sl_sigstore_sign(EVP_PKEY *key, const char *text);
const char *sl_sigstore_pem(EVP_PKEY *key);

/** The member at a path such as "tlogs.0.publicKey"; aborts where there is none. Borrowed. */
json_t *sl_sigstore_at(json_t *document, const char *path);
/** Put a value there, which is taken over; NULL: remove it. */
void sl_sigstore_set(json_t *document, const char *path, json_t *value);
/** Change the last byte of what is base64 there. */
void sl_sigstore_flip(json_t *document, const char *path);

#endif
