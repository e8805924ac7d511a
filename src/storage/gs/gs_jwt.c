/* JSON Web Tokens signed with RS256 (RFC 7515, RFC 7518 section 3.3). */
#include <inttypes.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>

#include "gs_creds.h"

enum { LIFETIME_SECONDS = 3600, SIGNATURE_BYTES_MAX = 1024 };

/* Base64 with the alphabet of URLs and without padding (RFC 7515 section 2). */
static char *base64url(const void *data, size_t bytes, struct sl_err *err)
{
    char *text = sl_alloc((bytes + 2) / 3 * 4 + 1, err);
    if (!text)
        return NULL;
    EVP_EncodeBlock((unsigned char *)text, data, (int)bytes);
    for (char *c = text; *c; c++) {
        if (*c == '+')
            *c = '-';
        else if (*c == '/')
            *c = '_';
        else if (*c == '=')
            *c = 0;
    }
    return text;
}

/* Texts go into JSON as they are. */
static bool is_plain(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c <= 0x20 || *c >= 0x7f || *c == '"' || *c == '\\')
            return false;
    return *text && strlen(text) < 512;
}

static EVP_PKEY *read_key(const char *pem, struct sl_err *err)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    /* an empty password: the library must not ask the terminal for one */
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, (char[]){""}) : NULL;
    BIO_free(bio);
    ERR_clear_error();
    if (key && EVP_PKEY_base_id(key) != EVP_PKEY_RSA) {
        EVP_PKEY_free(key);
        key = NULL;
    }
    if (!key)
        sl_fail(err, SL_E_AUTH, "private_key is not an RSA key in PEM without a password");
    return key;
}

static char *sign(const char *text, const char *pem, struct sl_err *err)
{
    uint8_t signature[SIGNATURE_BYTES_MAX];
    size_t bytes = sizeof(signature);
    EVP_PKEY *key = read_key(pem, err);
    if (!key)
        return NULL;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good =
        context && EVP_PKEY_size(key) <= SIGNATURE_BYTES_MAX &&
        EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key) == 1 &&
        EVP_DigestSign(context, signature, &bytes, (const unsigned char *)text, strlen(text)) == 1;
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(key);
    ERR_clear_error();
    if (!good) {
        sl_fail(err, SL_E_AUTH, "private_key cannot sign");
        return NULL;
    }
    return base64url(signature, bytes, err);
}

char *sl_gs_jwt(const char *email, const char *key_id, const char *pem, const char *scope,
                int64_t from, struct sl_err *err)
{
    if (!is_plain(email) || !is_plain(key_id)) {
        sl_fail(err, SL_E_AUTH, "client_email and private_key_id must be plain words");
        return NULL;
    }
    sl_autofree char *head =
        sl_asprintf(err, "{\"alg\":\"RS256\",\"kid\":\"%s\",\"typ\":\"JWT\"}", key_id);
    sl_autofree char *claims = sl_asprintf(err,
                                           "{\"exp\":%" PRId64 ",\"iat\":%" PRId64
                                           ",\"iss\":\"%s\",\"scope\":\"%s\",\"sub\":\"%s\"}",
                                           from + LIFETIME_SECONDS, from, email, scope, email);
    sl_autofree char *a = head ? base64url(head, strlen(head), err) : NULL;
    sl_autofree char *b = a && claims ? base64url(claims, strlen(claims), err) : NULL;
    sl_autofree char *signed_text = b ? sl_asprintf(err, "%s.%s", a, b) : NULL;
    sl_autofree char *signature = signed_text ? sign(signed_text, pem, err) : NULL;
    return signature ? sl_asprintf(err, "%s.%s", signed_text, signature) : NULL;
}
