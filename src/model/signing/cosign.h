/*
 * Manifests of registries that cosign has signed: by version 3 as a bundle whose statement is about
 * the manifest's digest, before that as a small document that names it, with a bare signature by a
 * key. The manifest names everything else by digests.
 *
 * https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md, SIGNATURE_SPEC.md
 */
#ifndef SL_COSIGN_H
#define SL_COSIGN_H

#include "bundle.h"
#include "store_signatures.h"

/**
 * Is one of these signatures by one whom `trust` names, and of the manifest that it was found
 * beside?
 *
 * @now     seconds since 1970.
 * @signer  out: the caller's, to be released.
 * @return  0, or -1: SL_E_INTEGRITY, code E_SIGNATURE: none is, with what is wrong with the first
 *          one; SL_E_USAGE for a trust that is itself wrong.
 *
 * Any thread; nothing blocks.
 */
int sl_cosign_verify(const struct sl_store_signatures *found, const struct sl_signing_trust *trust,
                     int64_t now, struct sl_signing_signer *signer, struct sl_err *err);

#endif
