/*
 * Detached signatures as minisign makes them (https://jedisct1.github.io/minisign/, "Signature
 * format"): Ed25519 over the BLAKE2b-512 of a file ("ED", the default) or over the file itself
 * ("Ed", older), a comment that is signed too, and the id of the key. Texts in memory; reads no
 * files. Any thread; every text is hostile.
 */
#ifndef SL_MINISIGN_H
#define SL_MINISIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum {
    SL_MINISIGN_KEY_BYTES = 32,
    SL_MINISIGN_SIGNATURE_BYTES = 64,
    SL_MINISIGN_ID_BYTES = 8,
    SL_MINISIGN_FILE_BYTES_MAX = 16 * 1024, /* of a .minisig or .pub file */
};

struct sl_minisign_key {
    uint8_t id[SL_MINISIGN_ID_BYTES], key[SL_MINISIGN_KEY_BYTES];
};
struct sl_minisign_signature {
    bool prehashed; /* over the BLAKE2b-512 */
    uint8_t id[SL_MINISIGN_ID_BYTES], signature[SL_MINISIGN_SIGNATURE_BYTES];
};

/**
 * A public key: its 56 characters, or the text of a .pub file (a comment's line before them).
 * SL_E_USAGE says what it should be.
 */
int sl_minisign_key_parse(const char *text, size_t bytes, struct sl_minisign_key *key,
                          struct sl_err *err);
/**
 * Read the text of a .minisig file, which must be of this key: ids are compared, and the signature
 * of signature and trusted comment is checked. What it signs is not looked at.
 *
 * @text       `bytes` bytes.
 * @signature  out: believe nothing of it after a failure.
 * @return     0, or -1 with SL_E_INTEGRITY, code E_SIGNATURE.
 */
int sl_minisign_parse(const char *text, size_t bytes, const struct sl_minisign_key *key,
                      struct sl_minisign_signature *signature, struct sl_err *err);
/**
 * Is it a signature of these bytes (or their hash) by this key? Any thread.
 *
 * @data    `bytes` bytes: what was signed, or for a prehashed signature its BLAKE2b-512.
 * @return  true: it is.
 */
bool sl_minisign_matches(const uint8_t key[SL_MINISIGN_KEY_BYTES],
                         const uint8_t signature[SL_MINISIGN_SIGNATURE_BYTES], const void *data,
                         size_t bytes);
/** The id as minisign shows it: 16 hex digits, most significant first. */
void sl_minisign_id_text(const uint8_t id[SL_MINISIGN_ID_BYTES], char text[17]);

#endif
