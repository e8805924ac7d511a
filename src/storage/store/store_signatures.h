/*
 * Signatures that a store keeps beside what it has open, as registries do for manifests, which name
 * everything else by digests. Texts of strangers: who judges them knows about keys.
 */
#ifndef SL_STORE_SIGNATURES_H
#define SL_STORE_SIGNATURES_H

#include "source.h"

enum {
    SL_STORE_SIGNATURES_MAX = 64, /* what is beyond is not looked at */
    SL_STORE_SIGNATURE_BYTES_MAX = 1024 * 1024,
    SL_STORE_DIGEST_BYTES = 72, /* "sha256:" and 64 hex digits */
};

/** One of them. */
struct sl_store_signature {
    char digest[SL_STORE_DIGEST_BYTES]; /* of what it was found beside: what it must be of */
    char *text;                         /* a Sigstore bundle, or what `signature` is over */
    size_t bytes;
    char *signature; /* base64, of cosign before version 3; NULL: the text is a bundle */
};
struct sl_store_signatures {
    char digest[SL_STORE_DIGEST_BYTES]; /* of the manifest that is open */
    struct sl_store_signature *items;
    size_t count, capacity;
};

/**
 * Ask for the signatures of what a store has open: a tag means one manifest for each store.
 *
 * @found   out: the caller's, to be released, after a failure, too. None at all is not an error.
 * @return  0, or -1: SL_E_USAGE without traits.signatures, errors of the store.
 *
 * Blocks. Any thread.
 */
int sl_store_signatures(struct sl_store *store, struct sl_store_signatures *found,
                        struct sl_err *err);
/** Frees what it holds; fine on zeroes. Any thread. */
void sl_store_signatures_release(struct sl_store_signatures *found);

#endif
