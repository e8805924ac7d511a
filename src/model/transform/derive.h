/*
 * A key from a passphrase. No library stops a derivation half way, and the largest that files may
 * ask for take twenty seconds and 2 GiB: each runs on a thread of its own, which is left behind
 * when its caller is canceled, and wipes what it has at its end. While one is left behind no other
 * begins in this process, so that a row of canceled loads never takes more memory than one.
 */
#ifndef SL_DERIVE_H
#define SL_DERIVE_H

#include "thread.h"

enum { SL_DERIVE_SALT_MAX = 32, SL_DERIVE_KEY_MAX = 128 };

struct sl_derivation {
    enum { SL_DERIVE_ARGON2ID, SL_DERIVE_SCRYPT } kind; /* libsodium's crypto_pwhash_* */
    const void *passphrase;                             /* copied */
    size_t passphrase_bytes;
    uint64_t opslimit, memlimit; /* which the caller has judged; passes, bytes */
    uint8_t salt[SL_DERIVE_SALT_MAX];
};

/**
 * Derive a key; block until it is made.
 *
 * @derivation  borrowed for the call.
 * @key         out, with 0 alone: `key_bytes` bytes, at most SL_DERIVE_KEY_MAX.
 * @cancel      may be NULL.
 * @unwanted    other than 0: nobody waits for the key any more; may be NULL.
 * @return      0, or -1: SL_E_NO_SPACE: no memory for it; SL_E_CANCELED, at most
 *              SL_THREAD_CANCEL_LOOK_MS late: cancel, or what ends this thread's work, was raised,
 *              or it is unwanted.
 *
 * Any thread, after sl_crypt_init().
 */
int sl_derive(const struct sl_derivation *derivation, uint8_t *key, size_t key_bytes,
              struct sl_cancel *cancel, const struct sl_counter *unwanted, struct sl_err *err);

#endif
