/*
 * The file of a secret key has a comment and the base64 of: algorithm, how it is encrypted, how its
 * checksum is made (2 bytes each), salt and costs of scrypt, and id, key and checksum, which are
 * XORed with what scrypt makes of the password. The checksum is the BLAKE2b-256 of algorithm, id
 * and key, and tells a wrong password.
 */
#include "minisign_secret.h"

#include <sodium.h>
#include <string.h>

#include "crypt.h"
#include "derive.h"

enum {
    ALGORITHM_BYTES = 2,
    SALT_BYTES = 32,
    CHECKSUM_BYTES = 32,
    SEALED_BYTES = SL_MINISIGN_ID_BYTES + SL_MINISIGN_SECRET_BYTES + CHECKSUM_BYTES,
    SALT_AT = 3 * ALGORITHM_BYTES,
    OPSLIMIT_AT = SALT_AT + SALT_BYTES,
    MEMLIMIT_AT = OPSLIMIT_AT + 8,
    SEALED_AT = MEMLIMIT_AT + 8,
    FILE_BYTES = SEALED_AT + SEALED_BYTES,
    MEMLIMIT_MAX = 1024 * 1024 * 1024,
};
#define OPSLIMIT_MAX (UINT64_C(1) << 30)

static const char COMMENT[] = "untrusted comment: ";

/* The base64 of the file's one line behind its comment. */
static bool decode(const char *text, size_t bytes, uint8_t data[FILE_BYTES])
{
    const char *end = text + bytes, *stop;
    size_t got;
    if (bytes > strlen(COMMENT) && memcmp(text, COMMENT, strlen(COMMENT)) == 0) {
        const char *line = memchr(text, '\n', bytes);
        text = line ? line + 1 : end;
    }
    while (end > text && (end[-1] == '\n' || end[-1] == '\r'))
        end--;
    return sodium_base642bin(data, FILE_BYTES, text, (size_t)(end - text), NULL, &got, &stop,
                             sodium_base64_VARIANT_ORIGINAL) == 0 &&
           got == FILE_BYTES && stop == end && memcmp(data, "Ed", 2) == 0 &&
           (memcmp(data + 2, "Sc", 2) == 0 || memcmp(data + 2, "\0\0", 2) == 0) &&
           memcmp(data + 4, "B2", 2) == 0;
}

bool sl_minisign_secret_is_locked(const char *text, size_t bytes)
{
    uint8_t data[FILE_BYTES];
    bool locked = decode(text, bytes, data) && data[2] == 'S';
    sodium_memzero(data, sizeof(data));
    return locked;
}

static int unlock(uint8_t data[FILE_BYTES], const char *password, struct sl_cancel *cancel,
                  struct sl_err *err)
{
    uint8_t stream[SEALED_BYTES];
    if (!password)
        return sl_fail(err, SL_E_USAGE,
                       "the secret key is encrypted: give its password with --password-file FILE");
    struct sl_derivation derivation = {.kind = SL_DERIVE_SCRYPT,
                                       .passphrase = password,
                                       .passphrase_bytes = strlen(password),
                                       .opslimit = sl_get_le64(data + OPSLIMIT_AT),
                                       .memlimit = sl_get_le64(data + MEMLIMIT_AT)};
    if (derivation.opslimit > OPSLIMIT_MAX || derivation.memlimit > MEMLIMIT_MAX)
        return sl_fail(err, SL_E_USAGE,
                       "the secret key wants more than 1 GiB to be opened, which is refused");
    memcpy(derivation.salt, data + SALT_AT, SALT_BYTES);
    if (sl_derive(&derivation, stream, sizeof(stream), cancel, NULL, err) < 0)
        return -1;
    for (int i = 0; i < SEALED_BYTES; i++)
        data[SEALED_AT + i] ^= stream[i];
    sodium_memzero(stream, sizeof(stream));
    return 0;
}

static bool is_right(const uint8_t data[FILE_BYTES])
{
    uint8_t text[ALGORITHM_BYTES + SEALED_BYTES - CHECKSUM_BYTES], checksum[CHECKSUM_BYTES];
    memcpy(text, data, ALGORITHM_BYTES);
    memcpy(text + ALGORITHM_BYTES, data + SEALED_AT, sizeof(text) - ALGORITHM_BYTES);
    crypto_generichash(checksum, sizeof(checksum), text, sizeof(text), NULL, 0);
    sodium_memzero(text, sizeof(text));
    return sodium_memcmp(checksum, data + FILE_BYTES - CHECKSUM_BYTES, sizeof(checksum)) == 0;
}

/* The key's second half is its public half; that of an unencrypted one has no checksum. */
static bool is_whole(const uint8_t data[FILE_BYTES])
{
    uint8_t public[SL_MINISIGN_KEY_BYTES], secret[SL_MINISIGN_SECRET_BYTES];
    const uint8_t *key = data + SEALED_AT + SL_MINISIGN_ID_BYTES;
    crypto_sign_seed_keypair(public, secret, key);
    bool whole = sodium_memcmp(secret, key, sizeof(secret)) == 0;
    sodium_memzero(secret, sizeof(secret));
    return whole;
}

static int parse(const char *text, size_t bytes, const char *password, uint8_t data[FILE_BYTES],
                 struct sl_cancel *cancel, struct sl_err *err)
{
    if (!decode(text, bytes, data))
        return sl_fail(err, SL_E_USAGE,
                       "not a minisign secret key: one is the file that `minisign -G` writes "
                       "beside the .pub file, a comment and one line");
    bool locked = data[2] == 'S';
    if (locked && unlock(data, password, cancel, err) < 0)
        return -1;
    if (locked ? is_right(data) : is_whole(data))
        return 0;
    return sl_fail(err, locked ? SL_E_AUTH : SL_E_USAGE,
                   locked ? "the password does not open the secret key"
                          : "the secret key is damaged: its halves do not belong together");
}

int sl_minisign_secret_parse(const char *text, size_t bytes, const char *password,
                             struct sl_cancel *cancel, struct sl_minisign_secret *secret,
                             struct sl_err *err)
{
    uint8_t data[FILE_BYTES];
    if (sl_crypt_init(err) < 0)
        return -1;
    int done = parse(text, bytes, password, data, cancel, err);
    if (done == 0) {
        memcpy(secret->id, data + SEALED_AT, sizeof(secret->id));
        memcpy(secret->key, data + SEALED_AT + sizeof(secret->id), sizeof(secret->key));
    }
    sodium_memzero(data, sizeof(data));
    return done;
}

void sl_minisign_secret_release(struct sl_minisign_secret *secret)
{
    sodium_memzero(secret, sizeof(*secret));
}

static int append_base64(struct sl_buf *text, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    char line[sodium_base64_ENCODED_LEN(128, sodium_base64_VARIANT_ORIGINAL)];
    sodium_bin2base64(line, sizeof(line), data, bytes, sodium_base64_VARIANT_ORIGINAL);
    return sl_buf_printf(text, err, "%s\n", line);
}

int sl_minisign_sign(const struct sl_minisign_secret *secret, const void *data, size_t bytes,
                     const char *comment, struct sl_buf *text, struct sl_err *err)
{
    enum { HEAD = ALGORITHM_BYTES + SL_MINISIGN_ID_BYTES };
    uint8_t digest[64], line[HEAD + SL_MINISIGN_SIGNATURE_BYTES];
    uint8_t global[SL_MINISIGN_SIGNATURE_BYTES];
    sl_autobuf trusted = SL_BUF_INIT(SL_MINISIGN_FILE_BYTES_MAX / 2);
    char id[17];
    crypto_generichash(digest, sizeof(digest), data, bytes, NULL, 0);
    memcpy(line, "ED", ALGORITHM_BYTES);
    memcpy(line + ALGORITHM_BYTES, secret->id, SL_MINISIGN_ID_BYTES);
    crypto_sign_detached(line + HEAD, NULL, digest, sizeof(digest), secret->key);
    if (sl_buf_append(&trusted, line + HEAD, SL_MINISIGN_SIGNATURE_BYTES, err) < 0 ||
        sl_buf_text(&trusted, comment, err) < 0)
        return -1;
    crypto_sign_detached(global, NULL, (const uint8_t *)trusted.data, trusted.used, secret->key);
    sl_minisign_id_text(secret->id, id);
    if (sl_buf_printf(text, err, "%ssigned by sluice with key %s\n", COMMENT, id) < 0 ||
        append_base64(text, line, sizeof(line), err) < 0 ||
        sl_buf_printf(text, err, "trusted comment: %s\n", comment) < 0)
        return -1;
    return append_base64(text, global, sizeof(global), err);
}
