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
 * Take the text of a secret key's file apart. An encrypted one takes the seconds and the memory
 * that it says, and blocks so long.
 *
 * @text      `bytes` bytes.
 * @password  opens an encrypted one; NULL: there is none.
 * @cancel    ends that; may be NULL.
 * @secret    out: release it.
 * @return    0, or -1. SL_E_USAGE: the text is not a secret key, it wants more than 1 GiB of
 *            memory, or it is encrypted and no password is given. SL_E_AUTH: the password is
 *            wrong. Or SL_E_NO_SPACE, SL_E_CANCELED.
 */
int sl_minisign_secret_parse(const char *text, size_t bytes, const char *password,
                             struct sl_cancel *cancel, struct sl_minisign_secret *secret,
                             struct sl_err *err);
/** Wipes it. */
void sl_minisign_secret_release(struct sl_minisign_secret *secret);
/**
 * Append the text of a .minisig file over these bytes.
 *
 * @data     `bytes` bytes.
 * @comment  the trusted one: a line without its end; that it is one is not checked.
 * @text     gets it; after a failure perhaps a part of it.
 * @return   0, or -1 with SL_E_NO_SPACE.
 */
int sl_minisign_sign(const struct sl_minisign_secret *secret, const void *data, size_t bytes,
                     const char *comment, struct sl_buf *text, struct sl_err *err);

#endif
