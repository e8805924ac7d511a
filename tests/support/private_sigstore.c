/* See the header. Certificates and responses are OpenSSL's; what Rekor signs is put together here
 * by the texts of its specification, apart from the code that is tested. Its bundles of dsse 0.0.1,
 * and of hashedrekord 0.0.2 with keys of both kinds, pass `cosign verify-blob-attestation
 * --trusted-root` (3.1.3), too. */
#include "private_sigstore.h"

#include <openssl/ct.h>
#include <openssl/pem.h>
#include <openssl/ts.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum { YEAR = 365 * 86400, LEAVES_MAX = 64 };

static void must(bool good)
{
    if (!good)
        abort();
}

/* ---- texts ----------------------------------------------------------------------------------- */

struct bytes {
    unsigned char data[32 * 1024];
    size_t used;
};

static void put(struct bytes *bytes, const void *data, size_t count)
{
    must(bytes->used + count <= sizeof(bytes->data));
    memcpy(bytes->data + bytes->used, data, count);
    bytes->used += count;
}

static void put_number(struct bytes *bytes, uint64_t value, int count)
{
    for (int i = count - 1; i >= 0; i--)
        put(bytes, (unsigned char[]){(unsigned char)(value >> 8 * i)}, 1);
}

/* Kept to the end of the process, where nobody calls it a leak. */
static char *keep(size_t bytes)
{
    static struct kept {
        struct kept *next;
        char text[];
    } * all;
    struct kept *made = calloc(1, sizeof(*made) + bytes);
    must(made != NULL);
    made->next = all;
    all = made;
    return made->text;
}

static char *base64(const void *data, size_t count)
{
    char *text = keep(count * 2 + 8);
    EVP_EncodeBlock((unsigned char *)text, data, (int)count);
    return text;
}

static char *hex(const unsigned char *data, size_t count)
{
    char *text = keep(2 * count + 1);
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", data[i]);
    return text;
}

static void sha256(const void *data, size_t count, unsigned char digest[32])
{
    must(EVP_Digest(data, count, digest, NULL, EVP_sha256(), NULL) == 1);
}

/* What i2d functions give, as base64. */
#define DER_TEXT(i2d, object)                                                                      \
    ({                                                                                             \
        unsigned char *der_ = NULL;                                                                \
        int bytes_ = i2d(object, &der_);                                                           \
        must(bytes_ > 0);                                                                          \
        char *text_ = base64(der_, (size_t)bytes_);                                                \
        OPENSSL_free(der_);                                                                        \
        text_;                                                                                     \
    })

static void sign(EVP_PKEY *key, const void *data, size_t bytes, struct bytes *signature)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool own = EVP_PKEY_is_a(key, "ED25519");
    signature->used = sizeof(signature->data);
    must(EVP_DigestSignInit(context, NULL, own ? NULL : EVP_sha256(), NULL, key) == 1 &&
         EVP_DigestSign(context, signature->data, &signature->used, data, bytes) == 1);
    EVP_MD_CTX_free(context);
}

/* ---- certificates ---------------------------------------------------------------------------- */

static void add_text(X509 *certificate, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    must(extension && X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
}

static void add_bytes(X509 *certificate, const char *oid, const void *data, size_t bytes)
{
    ASN1_OBJECT *object = OBJ_txt2obj(oid, 1);
    ASN1_OCTET_STRING *value = ASN1_OCTET_STRING_new();
    ASN1_OCTET_STRING_set(value, data, (int)bytes);
    X509_EXTENSION *extension = X509_EXTENSION_create_by_OBJ(NULL, object, 0, value);
    must(extension && X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
    ASN1_OCTET_STRING_free(value);
    ASN1_OBJECT_free(object);
}

static X509 *begin(const char *name, EVP_PKEY *key, const X509 *by, long from, long to)
{
    static long serial;
    X509 *certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
    ASN1_TIME_set(X509_getm_notBefore(certificate), SL_SIGSTORE_AT + from);
    ASN1_TIME_set(X509_getm_notAfter(certificate), SL_SIGSTORE_AT + to);
    X509_set_pubkey(certificate, key);
    X509_NAME *subject = X509_get_subject_name(certificate);
    if (name)
        X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1,
                                   0);
    X509_set_issuer_name(certificate, by ? X509_get_subject_name(by) : subject);
    return certificate;
}

static X509 *make_ca(const char *name, EVP_PKEY *key, const X509 *by, EVP_PKEY *by_key)
{
    X509 *ca = begin(name, key, by, -YEAR, 20 * YEAR);
    add_text(ca, NID_basic_constraints, "critical,CA:TRUE");
    add_text(ca, NID_key_usage, "critical,keyCertSign,cRLSign");
    must(X509_sign(ca, by_key, EVP_sha256()) > 0);
    return ca;
}

void sl_sigstore_init(struct sl_sigstore *sigstore, bool ed25519)
{
    *sigstore = (struct sl_sigstore){
        .ca_key = EVP_EC_gen("P-256"),
        .middle_key = EVP_EC_gen("P-256"),
        .ct_key = EVP_EC_gen("P-256"),
        .log_key = ed25519 ? EVP_PKEY_Q_keygen(NULL, NULL, "ED25519") : EVP_EC_gen("P-256"),
        .tsa_key = EVP_EC_gen("P-256"),
    };
    sigstore->ca = make_ca("fulcio root", sigstore->ca_key, NULL, sigstore->ca_key);
    sigstore->middle =
        make_ca("fulcio intermediate", sigstore->middle_key, sigstore->ca, sigstore->ca_key);
    sigstore->tsa_ca = make_ca("tsa root", sigstore->ca_key, NULL, sigstore->ca_key);
    sigstore->tsa = begin("tsa", sigstore->tsa_key, sigstore->tsa_ca, -YEAR / 2, 20 * YEAR);
    add_text(sigstore->tsa, NID_key_usage, "critical,digitalSignature");
    add_text(sigstore->tsa, NID_ext_key_usage, "critical,timeStamping");
    must(X509_sign(sigstore->tsa, sigstore->ca_key, EVP_sha256()) > 0);
}

void sl_sigstore_release(struct sl_sigstore *sigstore)
{
    EVP_PKEY *keys[] = {sigstore->ca_key, sigstore->middle_key, sigstore->ct_key, sigstore->log_key,
                        sigstore->tsa_key};
    X509 *certificates[] = {sigstore->ca, sigstore->middle, sigstore->tsa_ca, sigstore->tsa};
    for (size_t i = 0; i < COUNT(keys); i++)
        EVP_PKEY_free(keys[i]);
    for (size_t i = 0; i < COUNT(certificates); i++)
        X509_free(certificates[i]);
}

/* ---- the leaf -------------------------------------------------------------------------------- */

static void key_id(EVP_PKEY *key, unsigned char id[32])
{
    unsigned char *der = NULL;
    int bytes = i2d_PUBKEY(key, &der);
    sha256(der, (size_t)bytes, id);
    OPENSSL_free(der);
}

#define LOG_NAME "rekor.example.com"

/* Of Rekor 2 with Ed25519 it is that of a signed note (https://c2sp.org/signed-note). */
static void log_id(EVP_PKEY *key, unsigned char id[32])
{
    unsigned char text[sizeof(LOG_NAME) + 1 + 32] = LOG_NAME "\n\1";
    size_t bytes = 32;
    if (!EVP_PKEY_is_a(key, "ED25519")) {
        key_id(key, id);
        return;
    }
    must(EVP_PKEY_get_raw_public_key(key, text + sizeof(LOG_NAME) + 1, &bytes) == 1);
    sha256(text, sizeof(text), id);
}

/* Of a certificate that is signed but for this. */
static SCT *make_sct(const struct sl_sigstore *sigstore, X509 *leaf, bool changed)
{
    static struct bytes text, signature;
    unsigned char id[32], *der = NULL;
    uint64_t at = (uint64_t)SL_SIGSTORE_AT * 1000;
    text.used = 0;
    put_number(&text, 0, 2);
    put_number(&text, at, 8);
    put_number(&text, 1, 2);
    key_id(sigstore->middle_key, id);
    put(&text, id, 32);
    int bytes = i2d_re_X509_tbs(leaf, &der);
    must(bytes > 0);
    put_number(&text, (uint64_t)bytes, 3);
    put(&text, der, (size_t)bytes);
    OPENSSL_free(der);
    put_number(&text, 0, 2);
    sign(sigstore->ct_key, text.data, text.used, &signature);
    SCT *sct = SCT_new();
    key_id(sigstore->ct_key, id);
    must(SCT_set_version(sct, SCT_VERSION_V1) == 1 && SCT_set1_log_id(sct, id, 32) == 1 &&
         SCT_set_signature_nid(sct, NID_ecdsa_with_SHA256) == 1 &&
         SCT_set1_signature(sct, signature.data, signature.used) == 1);
    SCT_set_timestamp(sct, at + changed);
    return sct;
}

static void add_scts(const struct sl_sigstore *sigstore, X509 *leaf,
                     const struct sl_sigstore_wish *wish)
{
    STACK_OF(SCT) *list = sk_SCT_new_null();
    for (unsigned i = 0; i < 1 + wish->scts_more - wish->scts_less; i++)
        sk_SCT_push(list, make_sct(sigstore, leaf, wish->sct_changed));
    if (sk_SCT_num(list))
        must(X509_add1_ext_i2d(leaf, NID_ct_precert_scts, list, 0, X509V3_ADD_DEFAULT) == 1);
    SCT_LIST_free(list);
}

static X509 *make_leaf(const struct sl_sigstore *sigstore, EVP_PKEY *key,
                       const struct sl_sigstore_wish *wish)
{
    const char *issuer = wish->issuer ? wish->issuer : "https://login.example.com";
    const char *usage = wish->key_usage ? wish->key_usage : "critical,digitalSignature";
    const char *extended = wish->extended_usage ? wish->extended_usage : "codeSigning";
    char san[512];
    struct bytes text = {.used = 0};
    bool times = wish->leaf_begin || wish->leaf_end;
    X509 *leaf = begin(NULL, key, sigstore->middle, times ? wish->leaf_begin : -10,
                       times ? wish->leaf_end : 590);
    snprintf(san, sizeof(san), "critical,%s:%s", wish->san ? wish->san : "email",
             wish->identity ? wish->identity : "signer@example.com");
    if (strcmp(usage, "-") != 0)
        add_text(leaf, NID_key_usage, usage);
    if (strcmp(extended, "-") != 0)
        add_text(leaf, NID_ext_key_usage, extended);
    add_text(leaf, NID_subject_alt_name, san);
    if (!wish->no_issuer)
        add_bytes(leaf, "1.3.6.1.4.1.57264.1.1", issuer, strlen(issuer));
    put_number(&text, 0x0c, 1); /* UTF8String */
    put_number(&text, strlen(issuer), 1);
    put(&text, issuer, strlen(issuer));
    if (!wish->old_issuer && !wish->no_issuer)
        add_bytes(leaf, "1.3.6.1.4.1.57264.1.8", text.data, text.used);
    must(X509_sign(leaf, sigstore->middle_key, EVP_sha256()) > 0);
    add_scts(sigstore, leaf, wish);
    must(X509_sign(leaf, sigstore->middle_key, EVP_sha256()) > 0);
    return leaf;
}

/* ---- the time -------------------------------------------------------------------------------- */

static ASN1_INTEGER *give_serial(TS_RESP_CTX *context, void *arg)
{
    (void)context, (void)arg;
    ASN1_INTEGER *serial = ASN1_INTEGER_new();
    ASN1_INTEGER_set(serial, 7);
    return serial;
}

static int give_time(TS_RESP_CTX *context, void *arg, long *seconds, long *microseconds)
{
    (void)context;
    *seconds = SL_SIGSTORE_AT + ((const struct sl_sigstore_wish *)arg)->timestamp_after;
    *microseconds = 0;
    return 1;
}

static BIO *make_request(const struct bytes *signature, const struct sl_sigstore_wish *wish)
{
    unsigned char digest[32];
    TS_REQ *request = TS_REQ_new();
    TS_MSG_IMPRINT *imprint = TS_MSG_IMPRINT_new();
    X509_ALGOR *algorithm = X509_ALGOR_new();
    BIO *bio = BIO_new(BIO_s_mem());
    sha256(signature->data, signature->used - wish->timestamp_of_other, digest);
    X509_ALGOR_set0(algorithm, OBJ_nid2obj(wish->timestamp_denied ? NID_sha384 : NID_sha256),
                    V_ASN1_NULL, NULL);
    must(TS_REQ_set_version(request, 1) == 1 && TS_MSG_IMPRINT_set_algo(imprint, algorithm) == 1 &&
         TS_MSG_IMPRINT_set_msg(imprint, digest, 32) == 1 &&
         TS_REQ_set_msg_imprint(request, imprint) == 1 &&
         TS_REQ_set_cert_req(request, !wish->timestamp_without_certificate) == 1 &&
         i2d_TS_REQ_bio(bio, request) == 1);
    X509_ALGOR_free(algorithm);
    TS_MSG_IMPRINT_free(imprint);
    TS_REQ_free(request);
    return bio;
}

static char *make_timestamp(const struct sl_sigstore *sigstore, const struct bytes *signature,
                            const struct sl_sigstore_wish *wish)
{
    TS_RESP_CTX *context = TS_RESP_CTX_new();
    ASN1_OBJECT *policy = OBJ_txt2obj("1.3.6.1.4.1.57264.2", 1);
    BIO *request = make_request(signature, wish);
    TS_RESP_CTX_set_time_cb(context, give_time, (void *)wish);
    TS_RESP_CTX_set_serial_cb(context, give_serial, NULL);
    must(TS_RESP_CTX_set_signer_cert(context, sigstore->tsa) == 1 &&
         TS_RESP_CTX_set_signer_key(context, sigstore->tsa_key) == 1 &&
         TS_RESP_CTX_set_signer_digest(context, EVP_sha256()) == 1 &&
         TS_RESP_CTX_set_def_policy(context, policy) == 1 &&
         TS_RESP_CTX_add_md(context, EVP_sha256()) == 1);
    TS_RESP *response = TS_RESP_create_response(context, request);
    must(response != NULL);
    char *text = DER_TEXT(i2d_TS_RESP, response);
    TS_RESP_free(response);
    BIO_free(request);
    ASN1_OBJECT_free(policy);
    TS_RESP_CTX_free(context);
    return text;
}

/* ---- the log --------------------------------------------------------------------------------- */

/* RFC 9162 section 2.1.1: the root of leaves [from, to); on the way, the path of the one at `of`.
 */
static void hash_tree(unsigned char (*leaves)[32], uint64_t from, uint64_t to, uint64_t of,
                      json_t *path, unsigned char root[32])
{
    unsigned char left[32], right[32], both[65] = {1};
    uint64_t half = 1;
    if (to - from == 1) {
        memcpy(root, leaves[from], 32);
        return;
    }
    while (half * 2 < to - from)
        half *= 2;
    bool below = of >= from && of < to, first = of < from + half;
    hash_tree(leaves, from, from + half, of, path, left);
    hash_tree(leaves, from + half, to, of, path, right);
    if (below)
        json_array_append_new(path, json_string(base64(first ? right : left, 32)));
    memcpy(both + 1, left, 32);
    memcpy(both + 33, right, 32);
    sha256(both, sizeof(both), root);
}

static json_t *make_proof(const struct sl_sigstore *sigstore, const struct bytes *body,
                          const struct sl_sigstore_wish *wish)
{
    static unsigned char leaves[LEAVES_MAX][32];
    static struct bytes leaf, signature;
    uint64_t size = wish->size ? wish->size : 11, index = wish->size ? wish->index : 5;
    unsigned char root[32], id[32];
    char note[1024], envelope[2048];
    must(size <= LEAVES_MAX && index < size);
    for (uint64_t i = 0; i < size; i++)
        memset(leaves[i], (int)(i + 1), 32);
    leaf.used = 0;
    put(&leaf, "", 1);
    put(&leaf, body->data, body->used);
    sha256(leaf.data, leaf.used, leaves[index]);
    json_t *path = json_array();
    hash_tree(leaves, 0, size, index, path, root);
    snprintf(note, sizeof(note), LOG_NAME "%s\n%llu\n%s\n", wish->entry ? "" : " - 1",
             (unsigned long long)size, base64(root, 32));
    sign(sigstore->log_key, note, strlen(note), &signature);
    log_id(sigstore->log_key, id);
    leaf.used = 0;
    put(&leaf, id, 4);
    put(&leaf, signature.data, signature.used);
    snprintf(envelope, sizeof(envelope), "%s\n\xe2\x80\x94 " LOG_NAME " %s\n%s", note,
             base64(leaf.data, leaf.used),
             wish->entry ? "\xe2\x80\x94 witness.example.com AAAAAAAA\n" : "");
    char at[24], of[24];
    snprintf(at, sizeof(at), "%llu", (unsigned long long)index);
    snprintf(of, sizeof(of), "%llu", (unsigned long long)size);
    return json_pack("{s:s, s:s, s:s, s:o, s:{s:s}}", "logIndex", at, "rootHash", base64(root, 32),
                     "treeSize", of, "hashes", path, "checkpoint", "envelope", envelope);
}

static json_t *make_promise(const struct sl_sigstore *sigstore, const char *index,
                            const struct bytes *body)
{
    static struct bytes signature;
    char text[24 * 1024];
    unsigned char id[32];
    log_id(sigstore->log_key, id);
    snprintf(text, sizeof(text),
             "{\"body\":\"%s\",\"integratedTime\":%d,\"logID\":\"%s\",\"logIndex\":%s}",
             base64(body->data, body->used), SL_SIGSTORE_AT, hex(id, 32), index);
    sign(sigstore->log_key, text, strlen(text), &signature);
    return json_pack("{s:s}", "signedEntryTimestamp", base64(signature.data, signature.used));
}

/* What a body names. */
struct named {
    const struct bytes *payload, *signed_bytes, *signature, *certificate;
};

static json_t *spec_dsse_1(const struct named *named)
{
    unsigned char digest[32];
    BIO *bio = BIO_new(BIO_s_mem());
    char *pem;
    PEM_write_bio(bio, PEM_STRING_X509, "", named->certificate->data,
                  (long)named->certificate->used);
    long bytes = BIO_get_mem_data(bio, &pem);
    sha256(named->payload->data, named->payload->used, digest);
    char *said = hex(digest, 32);
    json_t *spec =
        json_pack("{s:{s:s, s:s}, s:{s:s, s:s}, s:[{s:s, s:s}]}", "envelopeHash", "algorithm",
                  "sha256", "value", said, "payloadHash", "algorithm", "sha256", "value", said,
                  "signatures", "signature", base64(named->signature->data, named->signature->used),
                  "verifier", base64(pem, (size_t)bytes));
    BIO_free(bio);
    return spec;
}

static json_t *verified(const struct named *named)
{
    return json_pack("{s:s, s:{s:s, s:{s:s}}}", "content",
                     base64(named->signature->data, named->signature->used), "verifier",
                     "keyDetails", "PKIX_ECDSA_P256_SHA_256", "x509Certificate", "rawBytes",
                     base64(named->certificate->data, named->certificate->used));
}

static json_t *digest_of(const struct bytes *bytes)
{
    unsigned char digest[32];
    sha256(bytes->data, bytes->used, digest);
    return json_pack("{s:s, s:s}", "algorithm", "SHA2_256", "digest", base64(digest, 32));
}

static json_t *spec_of(enum sl_sigstore_entry entry, const struct named *named)
{
    if (entry == SL_ENTRY_DSSE)
        return spec_dsse_1(named);
    return json_pack("{s:{s:o, s:o}}", "hashedRekordV002", "data", digest_of(named->signed_bytes),
                     "signature", verified(named));
}

static void make_body(const struct sl_sigstore_wish *wish, const struct named *named,
                      struct bytes *body)
{
    static const char *const kinds[] = {"dsse", "hashedrekord"};
    static struct bytes other = {.data = "other", .used = 5};
    struct named said = *named;
    if (wish->body_of_other_payload)
        said.payload = said.signed_bytes = &other;
    if (wish->body_of_other_signature)
        said.signature = &other;
    if (wish->body_of_other_certificate)
        said.certificate = &other;
    json_t *spec = spec_of(wish->entry, &said);
    json_t *signatures = json_object_get(spec, "signatures");
    if (wish->body_has_two)
        json_array_append(signatures, json_array_get(signatures, 0));
    json_t *all =
        json_pack("{s:s, s:s, s:o}", "apiVersion", wish->entry == SL_ENTRY_DSSE ? "0.0.1" : "0.0.2",
                  "kind", wish->body_kind ? wish->body_kind : kinds[wish->entry], "spec", spec);
    char *text = json_dumps(all, JSON_COMPACT | JSON_SORT_KEYS);
    body->used = 0;
    put(body, text, strlen(text));
    free(text);
    json_decref(all);
}

static json_t *make_entry(const struct sl_sigstore *sigstore, const struct sl_sigstore_wish *wish,
                          const struct named *named)
{
    static struct bytes body;
    unsigned char id[32];
    char time[24];
    make_body(wish, named, &body);
    log_id(sigstore->log_key, id);
    json_t *proof = make_proof(sigstore, &body, wish);
    const char *index = wish->entry == SL_ENTRY_DSSE
                            ? "1005" /* of all trees of the log */
                            : json_string_value(json_object_get(proof, "logIndex"));
    snprintf(time, sizeof(time), "%d", SL_SIGSTORE_AT);
    json_t *entry = json_pack("{s:s, s:{s:s}, s:{s:s, s:s}, s:s, s:o}", "logIndex", index, "logId",
                              "keyId", base64(id, 32), "kindVersion", "kind",
                              wish->entry == SL_ENTRY_HASHED ? "hashedrekord" : "dsse", "version",
                              wish->entry == SL_ENTRY_DSSE ? "0.0.1" : "0.0.2", "canonicalizedBody",
                              base64(body.data, body.used), "inclusionProof", proof);
    if (!wish->no_promise) {
        json_object_set_new(entry, "integratedTime", json_string(time));
        json_object_set_new(entry, "inclusionPromise", make_promise(sigstore, index, &body));
    }
    return entry;
}

/* ---- documents ------------------------------------------------------------------------------- */

static const char type[] = "application/vnd.in-toto+json";

/* DSSE's encoding of a payload. */
static void encode(const char *payload, struct bytes *text)
{
    char head[128];
    text->used = 0;
    snprintf(head, sizeof(head), "DSSEv1 %zu %s %zu ", strlen(type), type, strlen(payload));
    put(text, head, strlen(head));
    put(text, payload, strlen(payload));
}

const char *sl_sigstore_sign(EVP_PKEY *key, const char *text)
{
    static struct bytes signature;
    sign(key, text, strlen(text), &signature);
    return base64(signature.data, signature.used);
}

const char *sl_sigstore_pem(EVP_PKEY *key)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *pem;
    PEM_write_bio_PUBKEY(bio, key);
    long bytes = BIO_get_mem_data(bio, &pem);
    char *text = keep((size_t)bytes + 1);
    memcpy(text, pem, (size_t)bytes);
    BIO_free(bio);
    return text;
}

json_t *sl_sigstore_key_bundle(EVP_PKEY *key, const char *payload)
{
    static struct bytes text, signature;
    encode(payload, &text);
    sign(key, text.data, text.used, &signature);
    return json_pack("{s:s, s:{s:{s:s}, s:[]}, s:{s:s, s:s, s:[{s:s}]}}", "mediaType",
                     "application/vnd.dev.sigstore.bundle.v0.3+json", "verificationMaterial",
                     "publicKey", "hint", "of another kind", "tlogEntries", "dsseEnvelope",
                     "payload", base64(payload, strlen(payload)), "payloadType", type, "signatures",
                     "sig", base64(signature.data, signature.used));
}

json_t *sl_sigstore_bundle(const struct sl_sigstore *sigstore, const struct sl_sigstore_wish *wish)
{
    static const struct sl_sigstore_wish plain;
    static struct bytes payload, text, signature, certificate;
    wish = wish ? wish : &plain;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *leaf = make_leaf(sigstore, key, wish);
    const char *content = wish->payload ? wish->payload : "{}";
    payload.used = 0;
    put(&payload, content, strlen(content));
    encode(content, &text);
    sign(key, text.data, text.used, &signature);
    unsigned char *der = certificate.data;
    certificate.used = (size_t)i2d_X509(leaf, &der);
    const struct named named = {&payload, &text, &signature, &certificate};
    json_t *times = json_array();
    if (!wish->no_timestamp)
        json_array_append_new(times, json_pack("{s:s}", "signedTimestamp",
                                               make_timestamp(sigstore, &signature, wish)));
    json_t *bundle = json_pack(
        "{s:s, s:{s:{s:s}, s:[o], s:{s:o}}, s:{s:s, s:s, s:[{s:s}]}}", "mediaType",
        "application/vnd.dev.sigstore.bundle.v0.3+json", "verificationMaterial", "certificate",
        "rawBytes", base64(certificate.data, certificate.used), "tlogEntries",
        make_entry(sigstore, wish, &named), "timestampVerificationData", "rfc3161Timestamps", times,
        "dsseEnvelope", "payload", base64(payload.data, payload.used), "payloadType", type,
        "signatures", "sig", base64(signature.data, signature.used));
    must(bundle != NULL);
    X509_free(leaf);
    EVP_PKEY_free(key);
    return bundle;
}

static json_t *log_of(EVP_PKEY *key)
{
    unsigned char id[32];
    log_id(key, id);
    return json_pack("{s:s, s:s, s:{s:s, s:s, s:{s:s}}, s:{s:s}}", "baseUrl", "https://" LOG_NAME,
                     "hashAlgorithm", "SHA2_256", "publicKey", "rawBytes",
                     DER_TEXT(i2d_PUBKEY, key), "keyDetails",
                     EVP_PKEY_is_a(key, "ED25519") ? "PKIX_ED25519" : "PKIX_ECDSA_P256_SHA_256",
                     "validFor", "start", "2025-01-01T00:00:00Z", "logId", "keyId", base64(id, 32));
}

static json_t *authority_of(X509 *first, X509 *last)
{
    return json_pack("{s:{s:s, s:s}, s:s, s:{s:[{s:s},{s:s}]}, s:{s:s}}", "subject", "organization",
                     "example.com", "commonName", "authority", "uri", "https://ca.example.com",
                     "certChain", "certificates", "rawBytes", DER_TEXT(i2d_X509, first), "rawBytes",
                     DER_TEXT(i2d_X509, last), "validFor", "start", "2025-01-01T00:00:00.5Z");
}

json_t *sl_sigstore_root(const struct sl_sigstore *sigstore)
{
    json_t *root =
        json_pack("{s:s, s:[o], s:[o], s:[o], s:[o]}", "mediaType",
                  "application/vnd.dev.sigstore.trustedroot+json;version=0.1", "tlogs",
                  log_of(sigstore->log_key), "certificateAuthorities",
                  authority_of(sigstore->middle, sigstore->ca), "ctlogs", log_of(sigstore->ct_key),
                  "timestampAuthorities", authority_of(sigstore->tsa, sigstore->tsa_ca));
    must(root != NULL);
    return root;
}

/* ---- changing them --------------------------------------------------------------------------- */

static json_t *step(json_t *at, const char *name)
{
    return json_is_array(at) ? json_array_get(at, (size_t)strtoul(name, NULL, 10))
                             : json_object_get(at, name);
}

/* The holder of the last name of a path, which is copied to `last`. */
static json_t *walk(json_t *document, const char *path, char last[128])
{
    char copy[512], *rest = copy, *name;
    json_t *at = document;
    snprintf(copy, sizeof(copy), "%s", path);
    while ((name = strsep(&rest, ".")) && rest)
        at = step(at, name);
    must(at != NULL);
    snprintf(last, 128, "%s", name);
    return at;
}

json_t *sl_sigstore_at(json_t *document, const char *path)
{
    char last[128];
    json_t *value = step(walk(document, path, last), last);
    must(value != NULL);
    return value;
}

void sl_sigstore_set(json_t *document, const char *path, json_t *value)
{
    char last[128];
    json_t *holder = walk(document, path, last);
    if (json_is_array(holder) && value)
        json_array_set_new(holder, (size_t)strtoul(last, NULL, 10), value);
    else if (json_is_array(holder))
        json_array_remove(holder, (size_t)strtoul(last, NULL, 10));
    else if (value)
        json_object_set_new(holder, last, value);
    else
        json_object_del(holder, last);
}

void sl_sigstore_flip(json_t *document, const char *path)
{
    const char *text = json_string_value(sl_sigstore_at(document, path));
    size_t chars = strlen(text), bytes = chars / 4 * 3;
    unsigned char *data = malloc(bytes + 1);
    must(EVP_DecodeBlock(data, (const unsigned char *)text, (int)chars) == (int)bytes);
    bytes -= (size_t)(text[chars - 1] == '=') + (text[chars - 2] == '=');
    data[bytes - 1] ^= 1;
    sl_sigstore_set(document, path, json_string(base64(data, bytes)));
    free(data);
}
