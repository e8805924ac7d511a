/*
 * secretbox in one pass. libsodium's own call opens a message that lies whole in memory and reads
 * it twice, first for the MAC; here both halves run over the same steps, so that each byte is
 * fetched into the cache once and a piece may come in any number of updates.
 *
 * The construction (NaCl): HSalsa20 of key and the first 16 bytes of the nonce gives the key of a
 * Salsa20 stream whose nonce is the other 8. Bytes 0 to 31 of that stream are the key of Poly1305,
 * data begin at byte 32: the data of a piece are always half a block off. Of every update only the
 * first half block needs care; the rest begins at a block.
 *
 * Poly1305 is OpenSSL's, whose vector code is three times as fast as libsodium's (figures:
 * e2e/bench/crypt_speed.c); libsodium's takes over where OpenSSL has none or no memory.
 */
#include "crypt.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "salsa20.h"

enum {
    BLOCK_BYTES = 64,
    DATA_AT = 32,           /* where data begin in the stream: behind the key of Poly1305 */
    STEP_BYTES = 64 * 1024, /* hashed and decrypted while they are in cache */
};

_Static_assert(crypto_secretbox_KEYBYTES == SL_KEY_BYTES, "key");
_Static_assert(crypto_secretbox_NONCEBYTES == SL_NONCE_BYTES, "nonce");
_Static_assert(crypto_secretbox_MACBYTES == SL_MAC_BYTES, "MAC");
_Static_assert(sizeof(crypto_onetimeauth_state) <= sizeof(((struct sl_opening *)0)->state),
               "room for the MAC");

static EVP_MAC *poly1305; /* NULL: OpenSSL has none */
static bool sodium_ready;
static pthread_once_t init_once = PTHREAD_ONCE_INIT;

static void init(void)
{
    sodium_ready = sodium_init() >= 0;
    if (sodium_ready)
        sl_salsa20_init();
    poly1305 = EVP_MAC_fetch(NULL, "POLY1305", NULL);
}

int sl_crypt_init(struct sl_err *err)
{
    pthread_once(&init_once, init);
    return sodium_ready ? 0 : sl_fail(err, SL_E_INTERNAL, "libsodium cannot be started");
}

void sl_crypt_random(void *data, size_t bytes)
{
    randombytes_buf(data, bytes);
}

void sl_crypt_wipe(void *data, size_t bytes)
{
    sodium_memzero(data, bytes);
}

/* ---- the stream ------------------------------------------------------------------------------ */

static void stream_begin(struct sl_keystream *stream, const uint8_t key[SL_KEY_BYTES],
                         const uint8_t nonce_0[SL_NONCE_BYTES], uint64_t number)
{
    uint8_t nonce[SL_NONCE_BYTES], add[SL_NONCE_BYTES] = {0};
    memcpy(nonce, nonce_0, sizeof(nonce));
    for (int i = 0; i < 8; i++)
        add[i] = (uint8_t)(number >> (8 * i));
    sodium_add(nonce, add, sizeof(nonce)); /* modulo 2^192 */
    crypto_core_hsalsa20(stream->key, nonce, key, NULL);
    memcpy(stream->nonce, nonce + 16, sizeof(stream->nonce));
}

/* Data bytes from `at` on: up to 63 of a block that is begun, then from a block on. */
static void stream_xor(const struct sl_keystream *stream, uint64_t at, const uint8_t *in,
                       uint8_t *out, size_t bytes)
{
    uint64_t block = (at + DATA_AT) / BLOCK_BYTES;
    size_t skip = (at + DATA_AT) % BLOCK_BYTES;
    if (skip > 0 && bytes > 0) {
        uint8_t pad[BLOCK_BYTES] = {0};
        size_t head = SL_MIN(bytes, BLOCK_BYTES - skip);
        memcpy(pad + skip, in, head);
        crypto_stream_salsa20_xor_ic(pad, pad, sizeof(pad), stream->nonce, block, stream->key);
        memcpy(out, pad + skip, head);
        sodium_memzero(pad, sizeof(pad));
        in += head;
        out += head;
        bytes -= head;
        block++;
    }
    if (bytes > 0)
        sl_salsa20_xor(stream->key, stream->nonce, block, in, out, bytes);
}

/* ---- the MAC --------------------------------------------------------------------------------- */

static crypto_onetimeauth_state *sodium_mac(struct sl_opening *opening)
{
    return (crypto_onetimeauth_state *)opening->state;
}

static void mac_begin(struct sl_opening *opening)
{
    uint8_t key[crypto_onetimeauth_KEYBYTES];
    crypto_stream_salsa20(key, sizeof(key), opening->stream.nonce, opening->stream.key);
    EVP_MAC_CTX *context = poly1305 ? EVP_MAC_CTX_new(poly1305) : NULL;
    if (context && !EVP_MAC_init(context, key, sizeof(key), NULL)) {
        EVP_MAC_CTX_free(context);
        context = NULL;
    }
    opening->mac = context;
    if (!context)
        crypto_onetimeauth_init(sodium_mac(opening), key);
    sodium_memzero(key, sizeof(key));
}

/* A context that is begun cannot fail; a MAC that is not one must never be compared. */
static void mac_update(struct sl_opening *opening, const uint8_t *data, size_t bytes)
{
    if (!opening->mac)
        crypto_onetimeauth_update(sodium_mac(opening), data, bytes);
    else if (!EVP_MAC_update(opening->mac, data, bytes))
        abort();
}

static void mac_end(struct sl_opening *opening, uint8_t mac[SL_MAC_BYTES])
{
    size_t bytes = 0;
    if (!opening->mac)
        crypto_onetimeauth_final(sodium_mac(opening), mac);
    else if (!EVP_MAC_final(opening->mac, mac, &bytes, SL_MAC_BYTES) || bytes != SL_MAC_BYTES)
        abort();
}

/* ---- opening and sealing --------------------------------------------------------------------- */

void sl_opening_begin(struct sl_opening *opening, const uint8_t key[SL_KEY_BYTES],
                      const uint8_t nonce_0[SL_NONCE_BYTES], uint64_t number)
{
    opening->at = 0;
    stream_begin(&opening->stream, key, nonce_0, number);
    mac_begin(opening);
}

void sl_opening_update(struct sl_opening *opening, const uint8_t *cipher, uint8_t *plain,
                       size_t bytes)
{
    while (bytes > 0) {
        size_t step = SL_MIN(bytes, (size_t)STEP_BYTES);
        mac_update(opening, cipher, step);
        if (plain) {
            stream_xor(&opening->stream, opening->at, cipher, plain, step);
            plain += step;
        }
        cipher += step;
        bytes -= step;
        opening->at += step;
    }
}

void sl_opening_mac(struct sl_opening *opening, uint8_t mac[SL_MAC_BYTES])
{
    mac_end(opening, mac);
    sl_opening_release(opening);
}

bool sl_opening_end(struct sl_opening *opening, const uint8_t mac[SL_MAC_BYTES])
{
    uint8_t actual[SL_MAC_BYTES];
    sl_opening_mac(opening, actual);
    return sodium_memcmp(actual, mac, sizeof(actual)) == 0;
}

void sl_opening_release(struct sl_opening *opening)
{
    EVP_MAC_CTX_free(opening->mac);
    sodium_memzero(opening, sizeof(*opening));
}

void sl_crypt_xor(const uint8_t key[SL_KEY_BYTES], const uint8_t nonce_0[SL_NONCE_BYTES],
                  uint64_t number, uint64_t at, const uint8_t *cipher, uint8_t *plain, size_t bytes)
{
    struct sl_keystream stream;
    stream_begin(&stream, key, nonce_0, number);
    stream_xor(&stream, at, cipher, plain, bytes);
    sodium_memzero(&stream, sizeof(stream));
}

void sl_crypt_seal(const uint8_t key[SL_KEY_BYTES], const uint8_t nonce_0[SL_NONCE_BYTES],
                   uint64_t number, const uint8_t *plain, uint8_t *cipher, size_t bytes,
                   uint8_t mac[SL_MAC_BYTES])
{
    struct sl_opening sealing;
    sl_opening_begin(&sealing, key, nonce_0, number);
    while (sealing.at < bytes) {
        size_t step = SL_MIN(bytes - sealing.at, (size_t)STEP_BYTES);
        stream_xor(&sealing.stream, sealing.at, plain + sealing.at, cipher + sealing.at, step);
        mac_update(&sealing, cipher + sealing.at, step);
        sealing.at += step;
    }
    sl_opening_mac(&sealing, mac);
}
