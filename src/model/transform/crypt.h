/*
 * XSalsa20-Poly1305 as .tensors files use it (libsodium's secretbox, detached): one 32-byte key for
 * a file, data in pieces, each with its own MAC and the nonce nonce_0 + number of the piece. Sizes
 * and layout: the specification of the format, section 11.
 *
 * A piece is opened as a stream: the MAC is computed over the ciphertext and the plaintext made in
 * the same pass, while the bytes are in cache, so that no piece is ever held whole. Whoever opens
 * one must not let its plaintext be seen before sl_opening_end() has agreed.
 *
 * Any thread, an opening by one at a time; nothing allocates beyond an opening, and nothing blocks.
 */
#ifndef SL_CRYPT_H
#define SL_CRYPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum {
    SL_KEY_BYTES = 32,
    SL_NONCE_BYTES = 24,
    SL_MAC_BYTES = 16,
    SL_SALT_BYTES = 16,
    SL_PIECE_BYTES = 2 * 1024 * 1024, /* the writers' default */
};

/** How a key is derived from a passphrase: Argon2id 1.3, as libsodium's crypto_pwhash(). */
struct sl_kdf {
    uint64_t opslimit, memlimit; /* passes; bytes */
    int32_t alg;                 /* 2; others are refused by sl_keys_find() */
    uint16_t salt_bytes;         /* as stored; 16 or it is refused by sl_keys_find() */
    uint8_t salt[SL_SALT_BYTES];
};

/** How the data of one tensor are encrypted. */
struct sl_crypt {
    uint64_t
        piece_bytes;    /* of every piece but the last; at least 1; with one MAC: all of the data */
    uint64_t mac_count; /* pieces */
    const uint8_t *nonce;     /* of piece 0: SL_NONCE_BYTES; owned by the index */
    const uint8_t *macs;      /* SL_MAC_BYTES each; owned by the index */
    const struct sl_kdf *kdf; /* NULL: the key was not derived from a passphrase */
};

/** Call once before anything else here; any thread, cheap. SL_E_INTERNAL if the library fails. */
int sl_crypt_init(struct sl_err *err);

/** The keystream of one piece: its Salsa20 key and nonce. */
struct sl_keystream {
    uint8_t key[32], nonce[8];
};

/**
 * One piece on its way from ciphertext to plaintext. sl_opening_end() releases what
 * sl_opening_begin() took and wipes it; a piece that is given up before needs sl_opening_release().
 */
struct sl_opening {
    uint64_t at; /* bytes of the piece so far */
    struct sl_keystream stream;
    void *mac;                       /* OpenSSL's; NULL: libsodium's, in state */
    _Alignas(64) uint8_t state[256]; /* of libsodium's MAC */
};
/**
 * Begin a piece of encrypted data. Cannot fail.
 *
 * @key      of the data.
 * @nonce_0  of its first piece.
 * @number   of this piece, from 0 on.
 */
void sl_opening_begin(struct sl_opening *opening, const uint8_t key[SL_KEY_BYTES],
                      const uint8_t nonce_0[SL_NONCE_BYTES], uint64_t number);
/**
 * Take the next bytes of the piece, in order; any number, fastest in multiples of 64 KiB.
 *
 * @cipher  `bytes` bytes.
 * @plain   out: is cipher or does not overlap it; NULL to compute the MAC alone.
 */
void sl_opening_update(struct sl_opening *opening, const uint8_t *cipher, uint8_t *plain,
                       size_t bytes);
/** All bytes came: does the MAC agree (compared in constant time)? The opening is released. */
bool sl_opening_end(struct sl_opening *opening, const uint8_t mac[SL_MAC_BYTES]);
/** As sl_opening_end(), but hand the MAC out: for data that shall come again as they were. */
void sl_opening_mac(struct sl_opening *opening, uint8_t mac[SL_MAC_BYTES]);
/** Give up; also of an opening that is all zeros or ended. */
void sl_opening_release(struct sl_opening *opening);
/**
 * Decrypt plaintext bytes [at, at + bytes) of a piece whose MAC has been checked before.
 *
 * @key, nonce_0  of the data.
 * @number        of the piece.
 * @at            any place within it.
 * @plain         out: is cipher or does not overlap it.
 */
void sl_crypt_xor(const uint8_t key[SL_KEY_BYTES], const uint8_t nonce_0[SL_NONCE_BYTES],
                  uint64_t number, uint64_t at, const uint8_t *cipher, uint8_t *plain,
                  size_t bytes);
/**
 * Encrypt a piece, whole.
 *
 * @key, nonce_0  of the data.
 * @number        of the piece.
 * @cipher        out: is plain or does not overlap it.
 * @mac           out.
 */
void sl_crypt_seal(const uint8_t key[SL_KEY_BYTES], const uint8_t nonce_0[SL_NONCE_BYTES],
                   uint64_t number, const uint8_t *plain, uint8_t *cipher, size_t bytes,
                   uint8_t mac[SL_MAC_BYTES]);
/** Random bytes fit for keys, salts and nonces. */
void sl_crypt_random(void *data, size_t bytes);
/** Overwrite a secret; the compiler does not leave it out. */
void sl_crypt_wipe(void *data, size_t bytes);

#endif
