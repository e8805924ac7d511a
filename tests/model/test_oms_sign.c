/*
 * Signatures of models that are made here: opened again by the same rules as those of others, and
 * what cannot sign is refused. The keys and certificates are those of data/golden/signing/keys.
 */
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "golden.h"
#include "oms_sign.h"

enum { NOW = 1796083200 }; /* 2026-12-01, when the certificates are valid */

static struct sl_err err;
static struct sl_buf text = SL_BUF_INIT(1 << 20);

static char *read_key(const char *name)
{
    char path[256];
    size_t bytes;
    snprintf(path, sizeof(path), "signing/keys/%s.pem", name);
    return golden_text(path, &bytes);
}

static void teardown(void)
{
    sl_buf_release(&text);
}

/* A statement over `names`, in that order, each with a digest of its number. */
static struct sl_oms *make(const char *const *names, size_t count, uint64_t shard_bytes)
{
    struct sl_oms *oms = calloc(1, sizeof(*oms));
    oms->shard_bytes = shard_bytes;
    oms->resources = calloc(count, sizeof(*oms->resources));
    oms->ignored = calloc(1, sizeof(*oms->ignored));
    oms->ignored[oms->ignored_count++] = strdup("notes");
    for (size_t i = 0; i < count; i++) {
        struct sl_oms_resource *resource = &oms->resources[oms->resource_count++];
        *resource = (struct sl_oms_resource){.name = strdup(names[i]), .kind = SL_HASH_SHA256};
        resource->start = shard_bytes * i;
        resource->end = shard_bytes * (i + 1);
        memset(resource->digest, (int)i + 1, 32);
    }
    return oms;
}

static int open_key(const char *name, const char *certificate, const char *chain,
                    struct sl_oms_key **key)
{
    char *pem = read_key(name), *leaf = certificate ? read_key(certificate) : NULL,
         *others = chain ? read_key(chain) : NULL;
    const struct sl_oms_key_texts texts = {.key = pem, .certificate = leaf, .chain = others};
    int done = sl_oms_key_open(&texts, NOW, key, &err);
    free(pem);
    free(leaf);
    free(others);
    return done;
}

static struct sl_oms *open_again(const char *public, const char *root)
{
    struct sl_oms *oms = NULL;
    char *pem = read_key(public ? public : root);
    struct sl_signing_trust trust = {
        .method = public ? SL_SIGNED_KEY : SL_SIGNED_CERTIFICATE, .keys_pem = pem, .ca_pem = pem};
    ck_assert_msg(sl_oms_open(text.data, text.used, &trust, NOW, &oms, &err) == 0, "%s",
                  err.message);
    free(pem);
    return oms;
}

static const char *const names[] = {"a/two", "naïve – 模型.txt", "a-b/one", "a/b.c/three",
                                    "a.b",   "Z \"quoted\""};
static const char *const sorted[] = {"Z \"quoted\"", "a-b/one", "a.b",
                                     "a/b.c/three",  "a/two",   "naïve – 模型.txt"};

static void check_order(void)
{
    struct sl_bundle *bundle = NULL;
    ck_assert_int_eq(sl_bundle_parse(text.data, text.used, &bundle, &err), 0);
    json_t *statement =
        sl_json_parse((char *)bundle->payload.data, bundle->payload.bytes, "it", &err);
    const json_t *resources = json_object_get(json_object_get(statement, "predicate"), "resources");
    for (size_t i = 0; i < SL_COUNT(sorted); i++)
        ck_assert_str_eq(sl_json_get_string(json_array_get(resources, i), "name"), sorted[i]);
    json_decref(statement);
    sl_bundle_free(bundle);
}

SL_TEST(what_is_signed_is_opened_again_by_the_key)
{
    static const char *const curves[] = {"p256", "p384", "p521"};
    for (size_t i = 0; i < SL_COUNT(curves); i++) {
        char file[32];
        struct sl_oms_key *key = NULL;
        struct sl_oms *oms = make(names, SL_COUNT(names), 0);
        snprintf(file, sizeof(file), "%s.key", curves[i]);
        ck_assert_msg(open_key(file, NULL, NULL, &key) == 0, "%s", err.message);
        text.used = 0;
        ck_assert_msg(sl_oms_sign(oms, "model", key, &text, &err) == 0, "%s", err.message);
        sl_oms_free(oms);
        check_order();
        snprintf(file, sizeof(file), "%s.pub", curves[i]);
        oms = open_again(file, NULL);
        size_t count;
        const struct sl_oms_resource *found = sl_oms_find(oms, "a-b/one", &count);
        ck_assert(found && count == 1 && found->digest[31] == 3 && !oms->shards);
        ck_assert(sl_oms_ignores(oms, "notes/x") && !oms->links);
        ck_assert_str_eq(oms->signer.who, sl_oms_key_who(key));
        sl_oms_free(oms);
        sl_oms_key_free(key);
    }
}

SL_TEST(ranges_are_written_as_the_reference_reads_them)
{
    static const char *const one[] = {"m:x", "m:x", "m:x"};
    struct sl_oms_key *key = NULL;
    struct sl_bundle *bundle = NULL;
    struct sl_oms *oms = make(one, SL_COUNT(one), 1000);
    oms->links = true;
    ck_assert_int_eq(open_key("p256.key", NULL, NULL, &key), 0);
    ck_assert_msg(sl_oms_sign(oms, "model", key, &text, &err) == 0, "%s", err.message);
    sl_oms_free(oms);
    ck_assert_int_eq(sl_bundle_parse(text.data, text.used, &bundle, &err), 0);
    const char *payload = (char *)bundle->payload.data;
    ck_assert_ptr_nonnull(strstr(payload, "\"shard_size\":1000,"));
    ck_assert_ptr_nonnull(
        strstr(payload, "{\"name\":\"m:x:1000:2000\",\"algorithm\":\"sha256-sharded-1000\""));
    sl_bundle_free(bundle);
    oms = open_again("p256.pub", NULL);
    size_t count;
    const struct sl_oms_resource *found = sl_oms_find(oms, "m:x", &count);
    ck_assert(found && count == 3 && found[2].end == 3000 && oms->shards && oms->links);
    sl_oms_free(oms);
    sl_oms_key_free(key);
}

SL_TEST(a_certificate_and_its_chain_go_along)
{
    struct sl_oms_key *key = NULL;
    struct sl_oms *oms = make(names, SL_COUNT(names), 0);
    ck_assert_msg(open_key("leaf.key", "leaf.cert", "intermediate.cert", &key) == 0, "%s",
                  err.message);
    ck_assert_int_eq(sl_oms_sign(oms, "model", key, &text, &err), 0);
    sl_oms_free(oms);
    oms = open_again(NULL, "root.cert");
    ck_assert_str_eq(oms->signer.who, sl_oms_key_who(key));
    ck_assert_ptr_nonnull(strstr(oms->signer.who, "CN=Example signer"));
    sl_oms_free(oms);
    sl_oms_key_free(key);
}

SL_TEST(what_cannot_sign_is_refused)
{
    static const struct {
        const char *key, *certificate, *chain, *word;
    } cases[] = {
        {"p256.pub", NULL, NULL, "not a private key"},
        {"root.cert", NULL, NULL, "not a private key"},
        {"leaf.key", NULL, "intermediate.cert", "needs the key's own certificate"},
        {"p256.key", "leaf.cert", NULL, "of another key"},
        {"leaf.key", "intermediate.cert", NULL, "of another key"},
        {"leaf.key", "leaf.key", NULL, "BEGIN CERTIFICATE"},
        {"leaf.key", "nousage.cert", NULL, "may not sign"},
        {"leaf.key", "tlsonly.cert", NULL, "may not sign"},
        {"leaf.key", "short.cert", NULL, "not valid now"},
        {"leaf.key", "leaf.cert", "root.cert", "certificate 2 of the chain is not the issuer"},
        {"leaf.key", "leaf.cert", "p256.pub", "BEGIN CERTIFICATE"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_oms_key *key = NULL;
        ck_assert_int_eq(open_key(cases[i].key, cases[i].certificate, cases[i].chain, &key), -1);
        ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, cases[i].word), "%zu: %s", i,
                      err.message);
    }
}

/* A new private key's PEM, encrypted by the password if there is one; free() it. */
static char *new_key(const char *type, const char *curve, const char *password)
{
    EVP_PKEY *key =
        curve ? EVP_PKEY_Q_keygen(NULL, NULL, type, curve) : EVP_PKEY_Q_keygen(NULL, NULL, type);
    BIO *bio = BIO_new(BIO_s_mem());
    char *pem;
    ck_assert_int_eq(PEM_write_bio_PKCS8PrivateKey(bio, key, password ? EVP_aes_256_cbc() : NULL,
                                                   password, password ? (int)strlen(password) : 0,
                                                   NULL, NULL),
                     1);
    long bytes = BIO_get_mem_data(bio, &pem);
    char *copy = strndup(pem, (size_t)bytes);
    BIO_free(bio);
    EVP_PKEY_free(key);
    return copy;
}

SL_TEST(keys_of_other_kinds_are_named)
{
    static const char *const kinds[][3] = {{"ED25519", NULL, "kind ED25519"},
                                           {"EC", "secp256k1", "kind EC"},
                                           {"X25519", NULL, "kind X25519"}};
    for (size_t i = 0; i < SL_COUNT(kinds); i++) {
        struct sl_oms_key *key = NULL;
        char *pem = new_key(kinds[i][0], kinds[i][1], NULL);
        const struct sl_oms_key_texts texts = {.key = pem};
        ck_assert_int_eq(sl_oms_key_open(&texts, NOW, &key, &err), -1);
        ck_assert_msg(strstr(err.message, kinds[i][2]) && strstr(err.message, "P-384"), "%s",
                      err.message);
        free(pem);
    }
}

SL_TEST(an_encrypted_key_wants_its_password)
{
    char *pem = new_key("EC", "prime256v1", "secret");
    static const struct {
        const char *password;
        enum sl_err_kind kind;
    } cases[] = {{NULL, SL_E_USAGE}, {"wrong", SL_E_AUTH}, {"secret", SL_OK}};
    ck_assert(sl_oms_key_is_locked(pem));
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_oms_key *key = NULL;
        const struct sl_oms_key_texts texts = {.key = pem, .password = cases[i].password};
        err = (struct sl_err)SL_ERR_INIT;
        ck_assert_int_eq(sl_oms_key_open(&texts, NOW, &key, &err), cases[i].kind ? -1 : 0);
        ck_assert_msg(err.kind == cases[i].kind, "%s", err.message);
        sl_oms_key_free(key);
    }
    free(pem);
    char *open = new_key("EC", "prime256v1", NULL);
    ck_assert(!sl_oms_key_is_locked(open));
    free(open);
}

/* ---- certificates that are made here -----------------------------------------------------------
 */

struct made {
    EVP_PKEY *key;
    X509 *certificate;
};

/* A certificate of a key, by an issuer (NULL: itself), valid around NOW. */
static struct made make_certificate(EVP_PKEY *key, const char *name, const struct made *issuer,
                                    const EVP_MD *hash, const char *alternative)
{
    X509 *certificate = X509_new();
    X509_NAME *subject = X509_get_subject_name(certificate);
    const char *const rows[][2] = {{"basicConstraints", issuer ? "CA:FALSE" : "CA:TRUE"},
                                   {"keyUsage", "digitalSignature,keyCertSign"},
                                   {"subjectAltName", alternative}};
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 7);
    ASN1_TIME_set(X509_getm_notBefore(certificate), NOW - 1000);
    ASN1_TIME_set(X509_getm_notAfter(certificate), NOW + 1000);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const uint8_t *)name, -1, -1, 0);
    X509_set_issuer_name(certificate,
                         issuer ? X509_get_subject_name(issuer->certificate) : subject);
    X509_set_pubkey(certificate, key);
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        X509_EXTENSION *extension =
            rows[i][1] ? X509V3_EXT_conf(NULL, NULL, rows[i][0], rows[i][1]) : NULL;
        if (extension)
            X509_add_ext(certificate, extension, -1);
        X509_EXTENSION_free(extension);
    }
    ck_assert_int_gt(X509_sign(certificate, issuer ? issuer->key : key, hash), 0);
    return (struct made){key, certificate};
}

static char *pem_of(X509 *certificate, EVP_PKEY *key)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *pem;
    ck_assert_int_eq(certificate
                         ? PEM_write_bio_X509(bio, certificate)
                         : PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL),
                     1);
    long bytes = BIO_get_mem_data(bio, &pem);
    char *copy = strndup(pem, (size_t)bytes);
    BIO_free(bio);
    return copy;
}

static void release_made(struct made *made)
{
    X509_free(made->certificate);
    EVP_PKEY_free(made->key);
}

/* Sign by the leaf into `text`. */
static void sign_by(const struct made *leaf)
{
    struct sl_oms_key *key = NULL;
    struct sl_oms *oms = make(names, SL_COUNT(names), 0);
    char *pem = pem_of(NULL, leaf->key), *certificate = pem_of(leaf->certificate, NULL);
    const struct sl_oms_key_texts texts = {.key = pem, .certificate = certificate};
    ck_assert_msg(sl_oms_key_open(&texts, NOW, &key, &err) == 0, "%s", err.message);
    text.used = 0;
    ck_assert_int_eq(sl_oms_sign(oms, "model", key, &text, &err), 0);
    sl_oms_free(oms);
    sl_oms_key_free(key);
    free(pem);
    free(certificate);
}

static int open_by(const struct made *root, const char *subject)
{
    struct sl_oms *oms = NULL;
    char *pem = pem_of(root->certificate, NULL);
    const struct sl_signing_trust trust = {
        .method = SL_SIGNED_CERTIFICATE, .ca_pem = pem, .subject = subject};
    err = (struct sl_err)SL_ERR_INIT;
    int done = sl_oms_open(text.data, text.used, &trust, NOW, &oms, &err);
    sl_oms_free(oms);
    free(pem);
    return done;
}

SL_TEST(a_subject_may_be_any_name_of_the_leaf)
{
    struct made root = make_certificate(EVP_EC_gen("P-256"), "root", NULL, EVP_sha256(), NULL);
    struct made leaf = make_certificate(EVP_EC_gen("P-256"), "ci", &root, EVP_sha256(),
                                        "URI:https://example.com/team/release,email:a@example.com,"
                                        "DNS:build.example.com,IP:127.0.0.1");
    static const struct {
        const char *pattern;
        int done;
    } cases[] = {{"ci", 0},
                 {"https://example.com/team/*", 0},
                 {"a@example.com", 0},
                 {"*@example.com", 0},
                 {"build.example.com", 0},
                 {"root", -1},
                 {"https://example.com/team", -1},
                 {"*@example.org", -1},
                 {"127.0.0.1", -1}};
    sign_by(&leaf);
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        ck_assert_msg(open_by(&root, cases[i].pattern) == cases[i].done, "%s: %s", cases[i].pattern,
                      err.message);
    release_made(&leaf);
    release_made(&root);
}

SL_TEST(a_chain_of_weak_hashes_is_refused)
{
    struct made root = make_certificate(EVP_EC_gen("P-256"), "root", NULL, EVP_sha256(), NULL);
    struct made leaf = make_certificate(EVP_EC_gen("P-256"), "ci", &root, EVP_sha1(), NULL);
    sign_by(&leaf);
    ck_assert_int_eq(open_by(&root, NULL), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, "too weak"), "%s", err.message);
    release_made(&leaf);
    release_made(&root);
}

SL_TEST(a_certificate_that_is_trusted_itself_is_a_chain)
{
    struct made own = make_certificate(EVP_EC_gen("P-384"), "own", NULL, EVP_sha384(), NULL);
    struct made other = make_certificate(EVP_EC_gen("P-384"), "own", NULL, EVP_sha384(), NULL);
    sign_by(&own);
    ck_assert_msg(open_by(&own, "own") == 0, "%s", err.message);
    ck_assert_int_eq(open_by(&other, "own"), -1);
    release_made(&own);
    release_made(&other);
}

/* An issuer's rights are the root's to give: a leaf cannot be one. */
SL_TEST(a_leaf_is_not_an_issuer)
{
    struct made root = make_certificate(EVP_EC_gen("P-256"), "root", NULL, EVP_sha256(), NULL);
    struct made leaf = make_certificate(EVP_EC_gen("P-256"), "leaf", &root, EVP_sha256(), NULL);
    struct made below = make_certificate(EVP_EC_gen("P-256"), "below", &leaf, EVP_sha256(), NULL);
    struct sl_oms_key *key = NULL;
    struct sl_oms *oms = make(names, SL_COUNT(names), 0);
    char *pem = pem_of(NULL, below.key), *certificate = pem_of(below.certificate, NULL),
         *chain = pem_of(leaf.certificate, NULL);
    const struct sl_oms_key_texts texts = {.key = pem, .certificate = certificate, .chain = chain};
    ck_assert_int_eq(sl_oms_key_open(&texts, NOW, &key, &err), 0);
    ck_assert_int_eq(sl_oms_sign(oms, "model", key, &text, &err), 0);
    ck_assert_int_eq(open_by(&root, NULL), -1);
    ck_assert_msg(strstr(err.message, "no chain leads"), "%s", err.message);
    sl_oms_free(oms);
    sl_oms_key_free(key);
    free(pem);
    free(certificate);
    free(chain);
    release_made(&below);
    release_made(&leaf);
    release_made(&root);
}

SL_TEST(too_much_to_list_is_refused)
{
    enum { COUNT = 3000, NAME_BYTES = 2500 };
    static char long_names[COUNT][NAME_BYTES];
    static const char *all[COUNT];
    struct sl_oms_key *key = NULL;
    for (size_t i = 0; i < COUNT; i++) {
        memset(long_names[i], 'x', NAME_BYTES - 1);
        snprintf(long_names[i], 8, "%06zu", i);
        long_names[i][6] = 'x';
        all[i] = long_names[i];
    }
    struct sl_oms *oms = make(all, COUNT, 0);
    ck_assert_int_eq(open_key("p256.key", NULL, NULL, &key), 0);
    ck_assert_int_eq(sl_oms_sign(oms, "model", key, &text, &err), -1);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "larger --shard-bytes"), "%s",
                  err.message);
    sl_oms_free(oms);
    sl_oms_key_free(key);
}

/* As many as are signed at most, with names as long as they may be then: who reads can. */
SL_TEST(as_much_as_is_signed_is_read)
{
    static char many_names[SL_OMS_RESOURCES_MAX][97];
    static const char *all[SL_OMS_RESOURCES_MAX];
    struct sl_oms_key *key = NULL;
    text.limit = SL_BUNDLE_BYTES_MAX;
    for (size_t i = 0; i < SL_OMS_RESOURCES_MAX; i++) {
        snprintf(many_names[i], sizeof(many_names[i]), "m/%094zu", i);
        all[i] = many_names[i];
    }
    struct sl_oms *oms = make(all, SL_OMS_RESOURCES_MAX, 0);
    ck_assert_int_eq(open_key("p256.key", NULL, NULL, &key), 0);
    ck_assert_msg(sl_oms_sign(oms, "model", key, &text, &err) == 0, "%s", err.message);
    sl_oms_free(oms);
    oms = open_again("p256.pub", NULL);
    ck_assert_uint_eq(oms->resource_count, SL_OMS_RESOURCES_MAX);
    sl_oms_free(oms);
    sl_oms_key_free(key);
}

static int sign_once(void *arg, struct sl_err *why)
{
    struct sl_oms_key *key = NULL;
    struct sl_oms *oms = make(names, SL_COUNT(names), 0);
    struct sl_buf made = SL_BUF_INIT(1 << 20);
    int done = sl_oms_key_open(arg, NOW, &key, why);
    if (done == 0)
        done = sl_oms_sign(oms, "model", key, &made, why);
    sl_buf_release(&made);
    sl_oms_free(oms);
    sl_oms_key_free(key);
    return done;
}

SL_TEST(each_allocation_may_fail)
{
    char *pem = read_key("leaf.key"), *leaf = read_key("leaf.cert"),
         *chain = read_key("intermediate.cert");
    struct sl_oms_key_texts texts = {.key = pem, .certificate = leaf, .chain = chain};
    ck_assert_uint_ge(golden_each_allocation(sign_once, &texts), 20);
    texts.certificate = texts.chain = NULL;
    ck_assert_uint_ge(golden_each_allocation(sign_once, &texts), 20);
    free(pem);
    free(leaf);
    free(chain);
}

SL_CASE(.teardown = teardown, .seconds = 60)
