/*
 * Secret keys of minisign, and signatures made with them: Ed25519 over a BLAKE2b-512, as `minisign
 * -S` makes them. https://jedisct1.github.io/minisign/, "Secret key format". Texts in memory. Any
 * thread.
 */
#ifndef SL_MINISIGN_SECRET_H
#define SL_MINISIGN_SECRET_H

#include "buf.h"
#include "minisign.h"
#include "thread.h"

enum { SL_MINISIGN_SECRET_BYTES = 64 };

/** Wiped by release; lives where its owner keeps it. */
struct sl_minisign_secret {
    uint8_t id[SL_MINISIGN_ID_BYTES], key[SL_MINISIGN_SECRET_BYTES];
};

/** Does the text of a secret key's file say that it is encrypted? */
bool sl_minisign_secret_is_locked(const char *text, size_t bytes);
/**
 * Take it apart; password (NULL: none) opens an encrypted one, which takes the seconds and the
 * memory that its file says, at most 1 GiB, and blocks so long, or until cancel (may be NULL) is
 * raised. SL_E_USAGE: it is not a secret key; SL_E_AUTH: wrong password; SL_E_NO_SPACE;
 * SL_E_CANCELED. Release the secret.
 */
int sl_minisign_secret_parse(const char *text, size_t bytes, const char *password,
                             struct sl_cancel *cancel, struct sl_minisign_secret *secret,
                             struct sl_err *err);
/** Wipes it. */
void sl_minisign_secret_release(struct sl_minisign_secret *secret);
/** Append the text of a .minisig file over these bytes; comment is the trusted one, a line.
 * SL_E_NO_SPACE. */
int sl_minisign_sign(const struct sl_minisign_secret *secret, const void *data, size_t bytes,
                     const char *comment, struct sl_buf *text, struct sl_err *err);

#endif
