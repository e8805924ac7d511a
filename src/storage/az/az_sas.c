/*
 * A SAS covers a container for a while: it goes into the URL and lets every range in, which a
 * signature by SharedKey would not, since that covers Range and If-Match.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#include "az_creds.h"
#include "url.h"

enum { KEY_BYTES_MAX = 256 };

static int decode_key(const char *key, uint8_t out[KEY_BYTES_MAX], size_t *bytes,
                      struct sl_err *err)
{
    size_t length = strlen(key), padding = 0;
    while (padding < 2 && length > padding && key[length - 1 - padding] == '=')
        padding++;
    int got = length && length % 4 == 0 && length / 4 * 3 <= KEY_BYTES_MAX
                  ? EVP_DecodeBlock(out, (const unsigned char *)key, (int)length)
                  : -1;
    if (got <= (int)padding)
        return sl_fail(err, SL_E_AUTH, "the account key is not the base64 text that Azure shows");
    *bytes = (size_t)got - padding;
    return 0;
}

static int hmac_text(const char *text, const char *key, char out[48], struct sl_err *err)
{
    uint8_t bytes[KEY_BYTES_MAX], digest[EVP_MAX_MD_SIZE];
    size_t count = 0;
    unsigned digest_bytes = 0;
    if (decode_key(key, bytes, &count, err) < 0)
        return -1;
    bool good = HMAC(EVP_sha256(), bytes, (int)count, (const unsigned char *)text, strlen(text),
                     digest, &digest_bytes) != NULL;
    OPENSSL_cleanse(bytes, sizeof(bytes));
    if (!good)
        return sl_fail(err, SL_E_INTERNAL, "the crypto library has no HMAC-SHA-256");
    EVP_EncodeBlock((unsigned char *)out, digest, (int)digest_bytes);
    return 0;
}

char *sl_az_sas_sign(const struct sl_az_sas *sas, const char *key, struct sl_err *err)
{
    char signature[48];
    const char *protocol = sas->tls ? "https" : "";
    sl_autofree char *text = sl_asprintf(
        err, "%s\n%s\n%s\n/blob/%s/%s%s%s\n\n\n%s\n2023-11-03\n%s\n\n\n\n\n\n\n", sas->rights,
        sas->begins, sas->end, sas->account, sas->container, sas->blob ? "/" : "",
        sas->blob ? sas->blob : "", protocol, sas->blob ? "b" : "c");
    if (!text || hmac_text(text, key, signature, err) < 0)
        return NULL;
    sl_autofree char *sig = sl_url_encode(signature, false, err);
    sl_autofree char *from = sl_url_encode(sas->begins, false, err);
    sl_autofree char *end = sl_url_encode(sas->end, false, err);
    if (!sig || !from || !end)
        return NULL;
    return sl_asprintf(err, "sv=2023-11-03&sr=%s&sp=%s%s%s&se=%s%s&sig=%s", sas->blob ? "b" : "c",
                       sas->rights, *from ? "&st=" : "", from, end, sas->tls ? "&spr=https" : "",
                       sig);
}
