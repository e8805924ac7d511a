/*
 * Sidecars: NAME.sluice.json beside an object, with a CRC32C and a SHA-256 for each range of it, a
 * tree hash over them and, if it was signed, a signature of minisign. docs/sidecars.md is the
 * format. Texts in memory; reads no objects. Any thread; a sidecar is for one at a time while it is
 * filled in, then for any.
 */
#ifndef SL_SIDECAR_H
#define SL_SIDECAR_H

#include "buf.h"
#include "minisign.h"
#include "source.h"

#define SL_SIDECAR_SUFFIX ".sluice.json"
enum {
    SL_SIDECAR_RANGE_BYTES = 8 * 1024 * 1024, /* unless asked for otherwise */
    SL_SIDECAR_RANGE_BYTES_MIN = 64 * 1024,
    SL_SIDECAR_RANGE_BYTES_MAX = 1024 * 1024 * 1024,
    SL_SIDECAR_RANGES_MAX = 256 * 1024,
    SL_SIDECAR_TEXT_BYTES_MAX = 24 * 1024 * 1024,
    SL_SIDECAR_NAME_BYTES_MAX = 1024,
};

/** Range i is [i * range_bytes, (i + 1) * range_bytes) of the object, the last one shorter. */
struct sl_sidecar_range {
    uint32_t crc32c;
    union {
        uint8_t sha256[32];
        uint8_t blake2b[SL_HASH_BYTES_MAX]; /* sl_sidecar.blake2b */
    };
};
struct sl_sidecar {
    char *name;                  /* the last part of the object's name */
    uint64_t bytes, range_bytes; /* of the object; of a range */
    struct sl_version made_from; /* the store's statements about it then; members may be "" */
    struct sl_sidecar_range *ranges;
    size_t range_count; /* bytes / range_bytes, rounded up */
    /* It is no file, but what a signature of the model says of the object: it has no CRC32C, */
    bool of_signature;
    bool blake2b; /* and maybe these hashes instead of SHA-256. */
    uint8_t tree[32];
    char *signature; /* the text of a .minisig file over sl_sidecar_signed_text(); NULL: none */
};

/**
 * Make the sidecar of an object, its ranges still to be filled in.
 *
 * @name         of the object; its last part is taken.
 * @bytes        of the object.
 * @range_bytes  of each range but the last.
 * @return       NULL: SL_E_USAGE if that is more than SL_SIDECAR_RANGES_MAX ranges; SL_E_NO_SPACE.
 */
struct sl_sidecar *sl_sidecar_new(const char *name, uint64_t bytes, uint64_t range_bytes,
                                  struct sl_err *err);
/** NULL is fine. */
void sl_sidecar_free(struct sl_sidecar *sidecar);
SL_AUTO_DEFINE(sl_sidecar)
/** The range's end; its begin is i * range_bytes. */
uint64_t sl_sidecar_range_end(const struct sl_sidecar *sidecar, size_t i);
/** Which hash of its ranges proves their bytes: SHA-256 or BLAKE2b; or, where that is enough
 * (`strong` is false) and it has them, CRC32C. */
enum sl_hash_kind sl_sidecar_hash(const struct sl_sidecar *sidecar, bool strong);
/** The hash of a range, of the check's kind (as above), into what the check expects. */
struct sl_check;
void sl_sidecar_expect(const struct sl_sidecar_range *range, struct sl_check *check);
/** The hash over all ranges, from `ranges`. */
void sl_sidecar_tree(const struct sl_sidecar *sidecar, uint8_t tree[32]);
/** The signed text: a few lines with name, sizes and `tree`, appended. SL_E_NO_SPACE. */
int sl_sidecar_signed_text(const struct sl_sidecar *sidecar, struct sl_buf *text,
                           struct sl_err *err);
/** The file, appended. SL_E_NO_SPACE. */
int sl_sidecar_write(const struct sl_sidecar *sidecar, struct sl_buf *text, struct sl_err *err);
/**
 * Parse a file: every number is held against its limit and against the others, and the tree
 * against the ranges. Does not look at the signature.
 *
 * @text     changed.
 * @sidecar  out: the caller's; keeps nothing of the text.
 * @return   0, or -1 with SL_E_INTEGRITY, code E_SIDECAR: what is wrong.
 */
int sl_sidecar_parse(char *text, size_t bytes, struct sl_sidecar **sidecar, struct sl_err *err);
/** Is it signed by this key, for an object of this name? SL_E_INTEGRITY, code E_SIGNATURE. */
int sl_sidecar_check_signature(const struct sl_sidecar *sidecar, const char *name,
                               const struct sl_minisign_key *key, struct sl_err *err);
/**
 * Find out whether a sidecar speaks of these bytes: equal lengths, no two strong ETags or version
 * ids that differ.
 *
 * @text    out: why not, for people; holds 256.
 * @return  text, borrowed; NULL if nothing says otherwise.
 */
const char *sl_sidecar_stale(const struct sl_sidecar *sidecar, uint64_t bytes,
                             const struct sl_version *version, char text[256]);

#endif
