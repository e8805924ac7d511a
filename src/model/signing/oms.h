/*
 * OpenSSF Model Signing: a bundle whose payload is an in-toto statement that lists every file of a
 * model with its hash, or every range of it. Facts: specification 1.0 of May 2026 and the package
 * model-signing 1.1.1. Texts in memory; reads no objects. Any thread.
 */
#ifndef SL_OMS_H
#define SL_OMS_H

#include "bundle.h"
#include "hash.h"

#define SL_OMS_FILE_NAME "model.sig"
/** Most resources of a signature made here, so that it can be read within the limits of JSON. */
enum { SL_OMS_RESOURCES_MAX = 30000 };

struct sl_oms_resource {
    char *name;             /* relative path, checked: no "..", no empty part, UTF-8 */
    uint64_t start, end;    /* shards: the range; whole files: 0 and UINT64_MAX */
    enum sl_hash_kind kind; /* SL_HASH_SHA256 or SL_HASH_BLAKE2B */
    uint8_t digest[SL_HASH_BYTES_MAX];
};
struct sl_oms {
    bool shards;
    uint64_t shard_bytes;              /* 0: whole files */
    bool links;                        /* allow_symlinks: files may be links to files elsewhere */
    bool single;                       /* one file, called "." by releases before 1.0 */
    struct sl_oms_resource *resources; /* as the statement has them; no name (and range) twice */
    size_t resource_count;
    char **ignored; /* ignore_paths: exact path or folder prefix; the four git names are always */
    size_t ignored_count;
    struct sl_signing_signer signer;
};

/**
 * Verify a bundle and only then parse what it signs: statement, names, ranges without a gap, root.
 *
 * @oms     out: the caller's.
 * @return  0, or -1: SL_E_INTEGRITY, code E_SIGNATURE; SL_E_FORMAT (exit 10) for a hash, a
 *          predicate or a version that is not known here; SL_E_USAGE for a wrong trust.
 */
int sl_oms_open(const char *text, size_t bytes, const struct sl_signing_trust *trust, int64_t now,
                struct sl_oms **oms, struct sl_err *err);
/** The statement of a bundle that nobody has verified: to be shown to people, never believed. Its
 * signer is empty. Errors as above. */
int sl_oms_peek(const struct sl_bundle *bundle, struct sl_oms **oms, struct sl_err *err);
void sl_oms_free(struct sl_oms *oms);
SL_AUTO_DEFINE(sl_oms)
/** Does ignore_paths (or git) cover this path? */
bool sl_oms_ignores(const struct sl_oms *oms, const char *name);
/** The first resource of this name (their order is by name and start after sl_oms_open()), and how
 * many there are; NULL: none. Borrowed from oms. */
const struct sl_oms_resource *sl_oms_find(const struct sl_oms *oms, const char *name,
                                          size_t *count);

#endif
