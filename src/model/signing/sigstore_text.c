/* Numbers, times and signatures as Sigstore's files have them. */
#include <openssl/err.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "keyless_parts.h"

int sl_signature_fail(struct sl_err *err, const char *format, ...)
{
    char text[sizeof(err->message)];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE", "%s", text);
}

bool sl_sigstore_base64(const char *text, uint8_t *data, size_t room, size_t *bytes)
{
    *bytes = 0;
    return text &&
           sodium_base642bin(data, room, text, strlen(text), NULL, bytes, NULL,
                             sodium_base64_VARIANT_ORIGINAL) == 0 &&
           *bytes;
}

const char *sl_sigstore_time(int64_t seconds, char text[32])
{
    time_t at = (time_t)seconds;
    struct tm tm;
    if (!gmtime_r(&at, &tm) || !strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &tm))
        snprintf(text, 32, "%lld", (long long)seconds);
    return text;
}

bool sl_sigstore_number(const json_t *object, const char *key, uint64_t *value)
{
    const json_t *member = json_object_get(object, key);
    *value = 0;
    if (json_is_integer(member)) {
        *value = (uint64_t)json_integer_value(member);
    } else {
        const char *text = sl_json_get_string(object, key);
        if (!text || !sl_take_digits(&text, value) || *text)
            return false;
    }
    return *value <= INT64_MAX;
}

/* NULL: the key's kind has a hash of its own, or none is known for it (*known: false). */
static const EVP_MD *hash_of(EVP_PKEY *key, bool *known)
{
    int bits = EVP_PKEY_get_bits(key);
    *known = true;
    if (EVP_PKEY_is_a(key, "ED25519"))
        return NULL;
    if (EVP_PKEY_is_a(key, "RSA"))
        return EVP_sha256();
    *known = EVP_PKEY_is_a(key, "EC");
    return bits > 384 ? EVP_sha512() : bits > 256 ? EVP_sha384() : EVP_sha256();
}

bool sl_sigstore_signed_by(EVP_PKEY *key, const void *signature, size_t signature_bytes,
                           const void *data, size_t bytes)
{
    bool known;
    const EVP_MD *hash = key ? hash_of(key, &known) : NULL;
    EVP_MD_CTX *context = key && known ? EVP_MD_CTX_new() : NULL;
    bool good = context && EVP_DigestVerifyInit(context, NULL, hash, NULL, key) == 1 &&
                EVP_DigestVerify(context, signature, signature_bytes, data, bytes) == 1;
    EVP_MD_CTX_free(context);
    ERR_clear_error();
    return good;
}
