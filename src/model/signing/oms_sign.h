/*
 * Signing models: a statement out of hashes that the caller made, and a bundle with its signature
 * by a private key. ECDSA over P-256, P-384 or P-521. Texts in memory; any thread.
 */
#ifndef SL_OMS_SIGN_H
#define SL_OMS_SIGN_H

#include "oms.h"

/** A private key, and the certificates that say whose it is. */
struct sl_oms_key;

/** The sources of a key. Borrowed for the call; the caller wipes the secrets. */
struct sl_oms_key_texts {
    const char *key;         /* PEM, PKCS #8 or SEC 1, encrypted or not */
    const char *password;    /* NULL: none */
    const char *certificate; /* PEM, the key's; NULL: signatures are by the key alone */
    const char *chain;       /* PEM, from the certificate's issuer on; NULL: none */
};
/**
 * @now  seconds since 1970, at which the certificate must be valid.
 * @key  out: the caller's, wiped when it is freed.
 * @return  0, or -1: SL_E_USAGE says what of the texts is wrong, SL_E_AUTH: the password is;
 *          SL_E_NO_SPACE.
 */
int sl_oms_key_open(const struct sl_oms_key_texts *texts, int64_t now, struct sl_oms_key **key,
                    struct sl_err *err);
/** NULL is fine. */
void sl_oms_key_free(struct sl_oms_key *key);
SL_AUTO_DEFINE(sl_oms_key)
/** Does the text of a private key say that it is encrypted? */
bool sl_oms_key_is_locked(const char *text);
/** "key SHA256HEX", or the certificate's subject and issuer; borrowed. */
const char *sl_oms_key_who(const struct sl_oms_key *key);

/**
 * Sign.
 *
 * @oms    shard_bytes, links, resources and ignored of it; the resources are sorted by this.
 * @model  its name, for people.
 * @text   appended: the bundle, which is then read back.
 * @return 0, or -1 with SL_E_USAGE (too much to list), SL_E_NO_SPACE, SL_E_INTERNAL.
 */
int sl_oms_sign(struct sl_oms *oms, const char *model, const struct sl_oms_key *key,
                struct sl_buf *text, struct sl_err *err);

#endif
