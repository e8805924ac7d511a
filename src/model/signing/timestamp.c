/*
 * Times by RFC 3161, of authorities of the trusted root. The signer must be the first certificate
 * of an authority, whose chain is checked at the very time that the response claims: an authority's
 * certificate that has expired since was good then.
 */
#include <openssl/err.h>
#include <openssl/ts.h>

#include "bundle_parts.h"
#include "keyless_parts.h"

/* ---- what it says ---------------------------------------------------------------------------- */

static bool is_granted(TS_RESP *response)
{
    const ASN1_INTEGER *status = TS_STATUS_INFO_get0_status(TS_RESP_get_status_info(response));
    long value = status ? ASN1_INTEGER_get(status) : -1;
    return (value == TS_STATUS_GRANTED || value == TS_STATUS_GRANTED_WITH_MODS) &&
           TS_RESP_get_token(response) && TS_RESP_get_tst_info(response) &&
           TS_TST_INFO_get_version(TS_RESP_get_tst_info(response)) == 1;
}

/* Is it over this signature? */
static bool is_of(TS_RESP *response, const struct sl_der *signature)
{
    TS_MSG_IMPRINT *imprint = TS_TST_INFO_get_msg_imprint(TS_RESP_get_tst_info(response));
    ASN1_OCTET_STRING *said = imprint ? TS_MSG_IMPRINT_get_msg(imprint) : NULL;
    X509_ALGOR *algorithm = imprint ? TS_MSG_IMPRINT_get_algo(imprint) : NULL;
    const ASN1_OBJECT *object = NULL;
    uint8_t own[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    if (!said || !algorithm)
        return false;
    X509_ALGOR_get0(&object, NULL, NULL, algorithm);
    int nid = OBJ_obj2nid(object);
    if (nid != NID_sha256 && nid != NID_sha384 && nid != NID_sha512)
        return false;
    return EVP_Digest(signature->data, signature->bytes, own, &bytes, EVP_get_digestbynid(nid),
                      NULL) == 1 &&
           (unsigned)ASN1_STRING_length(said) == bytes &&
           memcmp(ASN1_STRING_get0_data(said), own, bytes) == 0;
}

static bool read_claim(TS_RESP *response, int64_t *at)
{
    *at = sl_signing_seconds(TS_TST_INFO_get_time(TS_RESP_get_tst_info(response)), 0);
    return *at > 0;
}

/* ---- who says it ----------------------------------------------------------------------------- */

static bool is_signer(PKCS7 *token, X509 *certificate)
{
    STACK_OF(PKCS7_SIGNER_INFO) *signers = PKCS7_get_signer_info(token);
    if (!signers || sk_PKCS7_SIGNER_INFO_num(signers) != 1)
        return false;
    const PKCS7_ISSUER_AND_SERIAL *who = sk_PKCS7_SIGNER_INFO_value(signers, 0)->issuer_and_serial;
    return X509_NAME_cmp(X509_get_issuer_name(certificate), who->issuer) == 0 &&
           ASN1_INTEGER_cmp(X509_get0_serialNumber(certificate), who->serial) == 0;
}

/* The authority's last certificate alone is believed, at that time. */
static X509_STORE *make_store(const struct sl_trusted_authority *authority, int64_t at)
{
    X509_STORE *store = X509_STORE_new();
    X509 *anchor = sk_X509_value(authority->chain, sk_X509_num(authority->chain) - 1);
    if (!store || X509_STORE_add_cert(store, anchor) != 1) {
        X509_STORE_free(store);
        return NULL;
    }
    X509_VERIFY_PARAM *rules = X509_STORE_get0_param(store);
    X509_VERIFY_PARAM_set_time(rules, (time_t)at);
    X509_VERIFY_PARAM_set_flags(rules, X509_V_FLAG_PARTIAL_CHAIN);
    X509_VERIFY_PARAM_set_auth_level(rules, 2);
    return store;
}

static bool is_signed_by(TS_RESP *response, const struct sl_trusted_authority *authority,
                         int64_t at)
{
    X509_STORE *store = make_store(authority, at);
    X509 *signer = NULL;
    bool good = store &&
                TS_RESP_verify_signature(TS_RESP_get_token(response), authority->chain, store,
                                         &signer) == 1 &&
                X509_cmp(signer, sk_X509_value(authority->chain, 0)) == 0;
    X509_free(signer);
    X509_STORE_free(store);
    ERR_clear_error();
    return good;
}

static int check(const struct sl_trusted_root *root, TS_RESP *response,
                 const struct sl_der *signature, struct sl_signing_times *times, struct sl_err *err)
{
    bool known = false, valid = false;
    int64_t at;
    char text[32];
    if (!is_granted(response) || !read_claim(response, &at))
        return sl_signature_fail(err, "a timestamp of the signature is not a granted response "
                                      "(RFC 3161)");
    for (size_t i = 0; i < root->tsa_count; i++) {
        const struct sl_trusted_authority *authority = &root->tsas[i];
        if (!is_signer(TS_RESP_get_token(response), sk_X509_value(authority->chain, 0)))
            continue;
        known = true;
        if (!sl_trusted_covers(&authority->valid, at))
            continue;
        valid = true;
        if (!is_signed_by(response, authority, at))
            continue;
        if (!is_of(response, signature))
            return sl_signature_fail(err, "the timestamp is of another signature");
        times->at[times->count++] = at;
        return 0;
    }
    if (!known)
        return 0;
    sl_sigstore_time(at, text);
    return valid ? sl_signature_fail(err,
                                     "the timestamp is not signed by the authority of the trusted "
                                     "root that it names")
                 : sl_signature_fail(err,
                                     "the timestamp says %s, when its authority was not in use: "
                                     "validFor of the trusted root",
                                     text);
}

int sl_timestamp_check(const struct sl_trusted_root *root, const struct sl_der *response,
                       const struct sl_der *signature, struct sl_signing_times *times,
                       struct sl_err *err)
{
    const unsigned char *at = response->data;
    TS_RESP *read = d2i_TS_RESP(NULL, &at, (long)response->bytes);
    ERR_clear_error();
    int result = !read || at != response->data + response->bytes
                     ? sl_signature_fail(err, "a timestamp of the signature cannot be read")
                     : check(root, read, signature, times, err);
    TS_RESP_free(read);
    return result;
}
