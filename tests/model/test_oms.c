/*
 * Signed models: bundles that the reference implementation made (data/golden/signing/, of version
 * 1.1.1 and of older releases) and those that it cannot make, each with its verdict; what is in
 * them is held against the small model that was signed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "golden.h"
#include "oms.h"

enum { NOW = 1796083200 }; /* 2026-12-01, when all but one certificate is valid */

static struct sl_err err;

/* A text of data/golden/signing/; freed by the caller. */
static char *read_text(const char *name, size_t *bytes)
{
    char path[256];
    snprintf(path, sizeof(path), "signing/%s", name);
    return golden_text(path, bytes);
}

/* ---- the model that was signed --------------------------------------------------------------- */

struct object {
    const char *name;
    const char *data;
    size_t bytes;
};
static char tensors[8 + 64 + 4096];
#define TEXT(name, text)                                                                           \
    {                                                                                              \
        name, text, sizeof(text) - 1                                                               \
    }
static const struct object model[] = {
    TEXT("config.json", "{\"architectures\": [\"LlamaForCausalLM\"]}\n"),
    {"model.safetensors", tensors, sizeof(tensors)},
    TEXT("empty.bin", ""),
    TEXT("a-b/one", "one\n"),
    TEXT("a/two", "two\n"),
    TEXT("a/b.c/three", "three\n"),
    TEXT("a/b/four", "four\n"),
    TEXT("naïve – 模型.txt", "käse\n"),
    TEXT(".gitattributes", "# not signed: ignored by default\n"),
    TEXT("notes/todo.txt", "ignored when asked\n"),
    {NULL, NULL, 0},
};
static const struct object small[] = {TEXT("signme-1", "signme-1"),
                                      TEXT("signme-2", "signme-2"),
                                      TEXT("ignore-me", ""),
                                      {NULL, NULL, 0}};
static const struct object vectors[] = {
    TEXT("signme-1", "signme-1\n"), TEXT("signme-2", "signme-2"), {NULL, NULL, 0}};
static const struct object single[] = {TEXT(".", "signme-1\n"), {NULL, NULL, 0}};

static void make_tensors(void)
{
    tensors[0] = 64;
    memset(tensors + 8, ' ', 64);
    static const char head[] =
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[4096],\"data_offsets\":[0,4096]}}";
    memcpy(tensors + 8, head, sizeof(head) - 1);
    for (int i = 0; i < 4096; i++)
        tensors[72 + i] = (char)i;
}

/* Why an object is not what was signed, or NULL. */
static const char *object_fault(const struct sl_oms *oms, const struct object *object)
{
    size_t count;
    const struct sl_oms_resource *first = sl_oms_find(oms, object->name, &count);
    if (!first)
        return sl_oms_ignores(oms, object->name) || (oms->shards && object->bytes == 0)
                   ? NULL
                   : "not signed";
    if (oms->shards && first[count - 1].end != object->bytes)
        return "length";
    for (size_t i = 0; i < count; i++) {
        uint8_t digest[SL_HASH_BYTES_MAX];
        size_t end = oms->shards ? first[i].end : object->bytes;
        ck_assert_int_eq(sl_digest_of(first[i].kind, NULL, 0, object->data + first[i].start,
                                      end - first[i].start, digest, NULL),
                         0);
        if (memcmp(digest, first[i].digest, sl_hash_bytes(first[i].kind)) != 0)
            return "digest";
    }
    return NULL;
}

/* The first fault of all objects, or of a resource that none of them is. */
static const char *model_fault(const struct sl_oms *oms, const struct object *objects)
{
    size_t found = 0, count;
    for (const struct object *object = objects; object->name; object++) {
        const char *fault = object_fault(oms, object);
        if (fault)
            return fault;
        found += sl_oms_find(oms, object->name, &count) ? count : 0;
    }
    return found == oms->resource_count ? NULL : "missing";
}

/* ---- every verdict --------------------------------------------------------------------------- */

struct row {
    const char *file;
    enum sl_signing_method method;
    const char *with;             /* the key's or the root's file */
    const char *fault;            /* of the model, where the bundle itself is good; NULL: none */
    enum sl_err_kind kind;        /* SL_OK: the bundle is taken */
    const char *word;             /* of the message */
    const struct object *objects; /* NULL: model */
    bool allow_expired;
    const char *identity, *issuer; /* keyless */
};
#define KEY     SL_SIGNED_KEY
#define CERT    SL_SIGNED_CERTIFICATE
#define KEYLESS SL_SIGNED_KEYLESS
#define P256    KEY, "keys/p256.pub.pem"
#define ROOT    CERT, "keys/root.cert.pem"
#define OK      NULL, SL_OK, NULL
#define BAD     NULL, SL_E_INTEGRITY
static const struct row rows[] = {
    {"bundles/key-p256.sig", P256, OK},
    {"bundles/key-p384.sig", KEY, "keys/p384.pub.pem", OK},
    {"bundles/key-p521.sig", KEY, "keys/p521.pub.pem", OK},
    {"bundles/key-p256.sig", KEY, "keys/other.pub.pem", BAD, "signed by another key"},
    {"bundles/key-p256.sig", KEY, "keys/rsa.pub.pem", NULL, SL_E_USAGE, "P-256, P-384 and P-521"},
    {"bundles/key-p256.sig", KEY, "keys/ed25519.pub.pem", NULL, SL_E_USAGE, "kind ED25519"},
    {"bundles/key-p256.sig", KEY, "keys/secp256k1.pub.pem", NULL, SL_E_USAGE, "ECDSA over P-256"},
    {"bundles/key-ignore.sig", P256, OK},
    {"bundles/key-blake2.sig", P256, OK},
    {"bundles/key-blake3.sig", P256, NULL, SL_E_FORMAT, "hash blake3, which is not supported"},
    {"bundles/key-shards.sig", P256, OK},
    {"bundles/shards-integer.sig", P256, OK},
    {"bundles/shards-integer-sha256.sig", P256, OK},
    {"bundles/cert-chain.sig", ROOT, OK},
    {"bundles/cert-chain-root.sig", ROOT, OK},
    {"bundles/cert-chain-root.sig", CERT, "keys/otherroot.cert.pem", BAD, "no chain leads"},
    {"bundles/cert-leaf-alone.sig", ROOT, BAD, "must hold the root, and intermediates"},
    {"bundles/cert-leaf-alone.sig", CERT, "keys/intermediate.cert.pem+keys/root.cert.pem", OK},
    {"bundles/cert-leaf-alone.sig", CERT, "keys/intermediate.cert.pem", BAD, "no chain leads"},
    {"bundles/cert-expired.sig", ROOT, BAD, "2026-11-01T01:00:00Z): sign again"},
    {"bundles/cert-expired.sig", ROOT, OK, NULL, .allow_expired = true},
    {"bundles/cert-no-usage.sig", ROOT, BAD, "may not sign"},
    {"bundles/cert-tls-only.sig", ROOT, BAD, "may not sign"},
    {"bundles/bad-root-digest.sig", P256, BAD, "digest is not that of its resources"},
    {"bundles/bad-file-digest.sig", P256, "digest", SL_OK, NULL},
    {"bundles/lacks-a-file.sig", P256, "not signed", SL_OK, NULL},
    {"bundles/names-a-file-too-many.sig", P256, "missing", SL_OK, NULL},
    {"bundles/names-a-file-twice.sig", P256, BAD, "'a/b/four' is there twice"},
    {"bundles/names-a-file-twice-two-digests.sig", P256, BAD, "is there twice"},
    {"bundles/name-dotdot.sig", P256, BAD, "'../outside' has a name with a part . or .."},
    {"bundles/name-absolute.sig", P256, BAD, "'/etc/passwd' has a name that is absolute"},
    {"bundles/digest-upper-case.sig", P256, OK},
    {"bundles/order-reversed.sig", P256, OK},
    {"bundles/order-reversed-root-kept.sig", P256, BAD, "digest is not that of its resources"},
    {"bundles/hash-unknown.sig", P256, NULL, SL_E_FORMAT, "hash md5, which is not supported"},
    {"bundles/fields-unknown.sig", P256, OK},
    {"bundles/subjects-two.sig", P256, BAD, "exactly one subject"},
    {"bundles/predicate-future.sig", P256, NULL, SL_E_FORMAT, "signature/v9.9"},
    {"bundles/statement-future.sig", P256, NULL, SL_E_FORMAT, "Statement/v9"},
    {"bundles/payload-type-other.sig", P256, BAD, "payloadType is 'application/json'"},
    {"bundles/payload-compact.sig", P256, OK},
    {"bundles/payload-not-json.sig", P256, BAD, "line 1"},
    {"bundles/payload-changed.sig", P256, BAD, "the signature is not right"},
    {"bundles/media-type-old.sig", P256, NULL, SL_E_FORMAT, "version=0.2"},
    {"bundles/hint-absent.sig", P256, OK},
    {"bundles/signatures-two-first-wrong.sig", P256, BAD, "has 2 signatures"},
    {"bundles/signatures-none.sig", P256, BAD, "has 0 signatures"},
    {"released/v0.2.0-certificate.sig", CERT, "released/ca-cert.pem", NULL, SL_E_FORMAT,
     "signed by model-signing 0.2, whose signatures are not supported: sign again", small},
    {"released/v0.3.1-elliptic-key.sig", KEY, "released/signing-key-pub.pem", OK, single},
    {"released/v1.1.0-certificate.sig", CERT, "released/ca-cert.pem", OK, small},
    {"released/v1.1.0-sigstore.sig", KEYLESS, "released/trusted_root.json", OK, small,
     .identity = "stefanb@us.ibm.com", .issuer = "https://sigstore.verify.ibm.com/oauth2"},
    {"released/v1.1.0-sigstore.sig", KEYLESS, "released/trusted_root.json", BAD, "", small,
     .identity = "other@us.ibm.com", .issuer = "https://sigstore.verify.ibm.com/oauth2"},
    {"released/v1.1.0-sigstore.sig", KEYLESS, "released/trusted_root.json", BAD, "", small,
     .identity = "stefanb@us.ibm.com", .issuer = "https://accounts.example.com"},
    {"spec-vectors/valid-key.bundle.json", KEY, "released/signing-key-pub.pem", OK, vectors},
    {"spec-vectors/valid-certificate.bundle.json", CERT, "released/ca-cert.pem", OK, vectors},
    {"bundles/key-p256.sig", ROOT, BAD, "signed with a key, but a certificate is expected"},
    {"bundles/cert-chain.sig", P256, BAD, "signed with a certificate, but a key is expected"},
    {"bundles/key-p256.sig", KEY, "keys/root.cert.pem", NULL, SL_E_USAGE, "BEGIN PUBLIC KEY"},
    {"bundles/cert-chain.sig", CERT, "keys/p256.pub.pem", NULL, SL_E_USAGE, "BEGIN CERTIFICATE"},
};

/* True as soon as sl_keyless_verify() can. */
static const bool keyless_is_checked = false;

/* The texts of "A+B", one behind the other. */
static char *read_trust(const char *names)
{
    char name[128], *all = calloc(1, 64 * 1024);
    for (const char *at = names; *at;) {
        size_t length = strcspn(at, "+"), bytes;
        snprintf(name, sizeof(name), "%.*s", (int)length, at);
        char *text = read_text(name, &bytes);
        strncat(all, text, 16 * 1024);
        free(text);
        at += length + (at[length] == '+');
    }
    return all;
}

SL_TEST_LOOP(every_bundle_has_its_verdict, 0, SL_COUNT(rows))
{
    const struct row *row = &rows[_i];
    size_t bytes;
    char *text = read_text(row->file, &bytes), *with = read_trust(row->with);
    struct sl_signing_trust trust = {.method = row->method,
                                     .keys_pem = with,
                                     .ca_pem = with,
                                     .allow_expired = row->allow_expired,
                                     .identity = row->identity,
                                     .issuer = row->issuer,
                                     .trusted_root_json = with};
    struct sl_oms *oms = NULL;
    make_tensors();
    if (row->method == KEYLESS && !keyless_is_checked) {
        free(with);
        free(text);
        return;
    }
    int done = sl_oms_open(text, bytes, &trust, NOW, &oms, &err);
    ck_assert_msg(done == (row->kind == SL_OK ? 0 : -1), "%s: %s", row->file, err.message);
    ck_assert_msg(err.kind == row->kind, "%s: %d %s", row->file, err.kind, err.message);
    ck_assert_msg(!row->word || strstr(err.message, row->word), "%s: %s", row->file, err.message);
    ck_assert_str_eq(err.code, row->kind == SL_E_INTEGRITY ? "E_SIGNATURE" : "");
    if (done == 0) {
        const char *fault = model_fault(oms, row->objects ? row->objects : model);
        ck_assert_msg((fault == NULL) == (row->fault == NULL) &&
                          (!fault || strcmp(fault, row->fault) == 0),
                      "%s: %s", row->file, fault ? fault : "no fault");
        ck_assert_int_eq(oms->signer.expired, row->allow_expired);
        ck_assert_int_eq(oms->signer.method, row->method);
        ck_assert_int_eq(strlen(oms->signer.fingerprint), 64);
    }
    sl_oms_free(oms);
    free(with);
    free(text);
}

SL_TEST(vectors_that_are_invalid_are_refused_before_any_key_is_used)
{
    static const struct {
        const char *name, *word;
        enum sl_err_kind kind;
    } bad[] = {
        {"empty", "line 1", SL_E_INTEGRITY},
        {"missing-envelope", "no dsseEnvelope", SL_E_INTEGRITY},
        {"missing-tlog-entries", "no tlogEntries", SL_E_INTEGRITY},
        {"missing-verification-material", "no verificationMaterial", SL_E_INTEGRITY},
        {"payload-wrong-predicate", "predicateType 'https://example.com", SL_E_FORMAT},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        char name[128];
        size_t bytes;
        struct sl_bundle *bundle = NULL;
        struct sl_oms *oms = NULL;
        snprintf(name, sizeof(name), "spec-vectors/invalid-%s.bundle.json", bad[i].name);
        char *text = read_text(name, &bytes);
        err = (struct sl_err)SL_ERR_INIT;
        ck_assert(sl_bundle_parse(text, bytes, &bundle, &err) < 0 ||
                  sl_oms_peek(bundle, &oms, &err) < 0);
        ck_assert_msg(err.kind == bad[i].kind && strstr(err.message, bad[i].word), "%s: %s", name,
                      err.message);
        sl_bundle_free(bundle);
        free(text);
    }
    size_t bytes;
    struct sl_bundle *bundle = NULL;
    char *text = read_text("spec-vectors/valid-sigstore.bundle.json", &bytes);
    ck_assert_int_eq(sl_bundle_parse(text, bytes, &bundle, &err), 0);
    ck_assert(bundle->method == SL_SIGNED_KEYLESS && bundle->timestamp_count == 1 &&
              json_array_size(bundle->entries) == 1);
    sl_bundle_free(bundle);
    free(text);
}

/* ---- bytes that change ----------------------------------------------------------------------- */

/* Is this place in the name of a member that may be absent? */
static bool is_optional(const char *text, size_t at)
{
    static const char *const names[] = {"\"hint\"", "\"tlogEntries\"", "\"keyid\""};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        const char *found = strstr(text, names[i]);
        size_t begin = (size_t)(found - text) + 1;
        if (found && at >= begin && at < begin + strlen(names[i]) - 2)
            return true;
    }
    return false;
}

/* Every byte of a bundle, changed alone: what is taken has lost a member that may be absent, and
 * says what it said. `step`: each so many; chains take long. */
static void change_bytes(const char *name, const struct sl_signing_trust *trust, size_t step)
{
    size_t bytes;
    char *text = read_text(name, &bytes), *before = read_text(name, &bytes);
    static const char flips[] = {1, 0x20, (char)0x80};
    struct sl_bundle *good, *changed;
    struct sl_signing_signer signer;
    ck_assert_int_eq(sl_bundle_parse(before, bytes, &good, &err), 0);
    ck_assert_int_eq(sl_bundle_verify(good, trust, NOW, &signer, &err), 0);
    sl_signing_signer_release(&signer);
    for (size_t i = 0; i < bytes * sizeof(flips); i += step) {
        size_t at = i / sizeof(flips);
        bool taken = false;
        text[at] = (char)(before[at] ^ flips[i % sizeof(flips)]);
        if (sl_bundle_parse(text, bytes, &changed, NULL) == 0) {
            taken = sl_bundle_verify(changed, trust, NOW, &signer, NULL) == 0;
            ck_assert(!taken || (changed->payload.bytes == good->payload.bytes &&
                                 memcmp(changed->payload.data, good->payload.data,
                                        good->payload.bytes) == 0));
            sl_signing_signer_release(&signer);
            sl_bundle_free(changed);
        }
        bool ascii = (unsigned char)text[at] < 0x80; /* else it is no UTF-8 */
        ck_assert_msg(taken == (ascii && is_optional(before, at)), "%s: byte %zu is %02x", name, at,
                      (unsigned char)text[at]);
        text[at] = before[at];
    }
    sl_bundle_free(good);
    free(before);
    free(text);
}

SL_TEST(every_changed_byte_of_a_bundle_is_refused)
{
    char *key = read_trust("keys/p256.pub.pem"), *root = read_trust("keys/root.cert.pem");
    const struct sl_signing_trust by_key = {.method = KEY, .keys_pem = key},
                                  by_root = {.method = CERT, .ca_pem = root};
    change_bytes("bundles/payload-compact.sig", &by_key, 1);
    change_bytes("bundles/cert-chain.sig", &by_root, 31);
    free(key);
    free(root);
}

SL_TEST(every_prefix_of_a_bundle_is_refused)
{
    size_t bytes;
    char *text = read_text("bundles/cert-chain.sig", &bytes);
    for (size_t i = 0; i < bytes; i++) {
        struct sl_bundle *bundle;
        char *copy = malloc(i + 1); /* so that reading on is seen */
        memcpy(copy, text, i);
        ck_assert_int_eq(sl_bundle_parse(copy, i, &bundle, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
        free(copy);
    }
    free(text);
}

/* ---- what a bundle may be -------------------------------------------------------------------- */

#define MEDIA "{\"mediaType\":\"application/vnd.dev.sigstore.bundle.v0.3+json\","
#define ENVELOPE                                                                                   \
    "\"dsseEnvelope\":{\"payload\":\"e30=\",\"payloadType\":\"application/"                        \
    "vnd.in-toto+json\",\"signatures\":[{\"sig\":\"AAAA\"}]}}"
#define MATERIAL(text) "\"verificationMaterial\":{" text "},"

SL_TEST(what_is_not_a_bundle_is_said)
{
    static const struct {
        const char *text, *word;
        enum sl_err_kind kind;
    } cases[] = {
        {MEDIA MATERIAL("\"publicKey\":{}") ENVELOPE, NULL, SL_OK},
        {MEDIA MATERIAL("\"publicKey\":{\"hint\":null},\"certificate\":null") ENVELOPE, NULL,
         SL_OK},
        {"[]", "mediaType", SL_E_INTEGRITY},
        {"{\"mediaType\":1}", "mediaType", SL_E_INTEGRITY},
        {"{\"mediaType\":\"application/json\"}", "mediaType", SL_E_INTEGRITY},
        {"{\"mediaType\":\"application/vnd.dev.sigstore.bundle.v0.4+json\"}", "v0.4", SL_E_FORMAT},
        {MEDIA "\"mediaType\":1}", "duplicate", SL_E_INTEGRITY},
        {MEDIA "\"messageSignature\":{}}", "one file, not a statement", SL_E_INTEGRITY},
        {MEDIA MATERIAL("") ENVELOPE, "one of publicKey", SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"publicKey\":{},\"certificate\":{}") ENVELOPE, "one of", SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"publicKey\":[]") ENVELOPE, "not an object", SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"publicKey\":{\"hint\":1}") ENVELOPE, "a hint", SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"certificate\":{}") ENVELOPE, "rawBytes is missing", SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"certificate\":{\"rawBytes\":\"AA=\"}") ENVELOPE,
         "rawBytes is not base64", SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"certificate\":{\"rawBytes\":\"AB==\"}") ENVELOPE,
         "rawBytes is not base64", SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"certificate\":{\"rawBytes\":\"AA==\"}") ENVELOPE, "no tlogEntries",
         SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"x509CertificateChain\":{}") ENVELOPE, "no certificate", SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"x509CertificateChain\":{\"certificates\":{}}") ENVELOPE, "a list",
         SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"publicKey\":{},\"tlogEntries\":{}") ENVELOPE, "tlogEntries",
         SL_E_INTEGRITY},
        {MEDIA MATERIAL("\"publicKey\":{},\"timestampVerificationData\":[]") ENVELOPE, "timestamp",
         SL_E_INTEGRITY},
        {MEDIA MATERIAL(
             "\"publicKey\":{}") "\"dsseEnvelope\":{\"payloadType\":\"application/"
                                 "vnd.in-toto+json\",\"signatures\":[{\"sig\":\"AAAA\"}]}}",
         "payload is missing", SL_E_INTEGRITY},
        {MEDIA MATERIAL(
             "\"publicKey\":{}") "\"dsseEnvelope\":{\"payload\":\"e30=\",\"payloadType\":"
                                 "\"application/vnd.in-toto+json\",\"signatures\":[{}]}}",
         "signature is missing", SL_E_INTEGRITY},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_bundle *bundle = NULL;
        err = (struct sl_err)SL_ERR_INIT;
        int done = sl_bundle_parse(cases[i].text, strlen(cases[i].text), &bundle, &err);
        ck_assert_msg(done == (cases[i].word ? -1 : 0) && err.kind == cases[i].kind, "%zu: %s", i,
                      err.message);
        ck_assert_msg(!cases[i].word || strstr(err.message, cases[i].word), "%zu: %s", i,
                      err.message);
        sl_bundle_free(bundle);
    }
}

/* ---- what a statement may be ----------------------------------------------------------------- */

/* The text of a statement whose root is right; `resources`: "NAME ALGORITHM\n"…, each with a digest
 * of ones as long as the algorithm wants. */
static char *statement(const char *serialization, const char *resources)
{
    char *text = calloc(1, 8192), list[4096] = "", root[65];
    uint8_t ones[64], digest[SL_HASH_BYTES_MAX];
    struct sl_sha256 *sha = sl_sha256_new(NULL);
    memset(ones, 0x11, sizeof(ones));
    for (const char *at = resources; *at; at += strcspn(at, "\n") + 1) {
        char name[256], algorithm[64], hex[129];
        ck_assert_int_eq(sscanf(at, "%255s %63s", name, algorithm), 2);
        size_t bytes = strncmp(algorithm, "blake2b", 7) == 0 ? 64 : 32;
        sl_hex(ones, bytes, hex);
        sl_sha256_update(sha, ones, bytes);
        snprintf(list + strlen(list), sizeof(list) - strlen(list),
                 "%s{\"name\":\"%s\",\"algorithm\":\"%s\",\"digest\":\"%s\"}", *list ? "," : "",
                 name, algorithm, hex);
    }
    sl_sha256_finish(sha, digest);
    sl_sha256_free(sha);
    sl_hex(digest, 32, root);
    snprintf(text, 8192,
             "{\"_type\":\"https://in-toto.io/Statement/v1\",\"subject\":[{\"digest\":{\"sha256\":"
             "\"%s\"}}],\"predicateType\":\"https://model_signing/signature/v1.0\",\"predicate\":{"
             "\"serialization\":{%s},\"resources\":[%s]}}",
             root, serialization, list);
    return text;
}

#define FILES  "\"method\":\"files\""
#define SHARDS "\"method\":\"shards\",\"shard_size\":100"

SL_TEST(statements_are_judged_though_they_are_signed)
{
    static const struct {
        const char *serialization, *resources, *word;
        enum sl_err_kind kind;
    } cases[] = {
        {FILES, "a sha256\nb blake2b\n", NULL, SL_OK},
        {FILES, "b sha256\na:0:4 sha256\n", NULL, SL_OK},
        {FILES, ". sha256\n", NULL, SL_OK},
        {SHARDS, "a:100:150 sha256\na:0:100 sha256-sharded-100\nb:c:0:7 sha256\n", NULL, SL_OK},
        {SHARDS, ".:0:100 sha256\n.:100:101 sha256\n", NULL, SL_OK},
        {"\"method\":\"shards\",\"shard_size\":1e2", "a:0:100 blake2b-sharded-100\n", NULL, SL_OK},
        {"", "a sha256\n", "how files were hashed", SL_E_INTEGRITY},
        {"\"method\":\"tree\"", "a sha256\n", "method 'tree'", SL_E_FORMAT},
        {FILES, "", "lists no resources", SL_E_INTEGRITY},
        {FILES, "a sha256\na sha256\n", "'a' is there twice", SL_E_INTEGRITY},
        {FILES, ". sha256\na sha256\n", "single file and files of a folder", SL_E_INTEGRITY},
        {FILES, "a/ sha256\n", "empty part", SL_E_INTEGRITY},
        {FILES, "a//b sha256\n", "empty part", SL_E_INTEGRITY},
        {FILES, "a/./b sha256\n", "part . or ..", SL_E_INTEGRITY},
        {FILES, "a/.. sha256\n", "part . or ..", SL_E_INTEGRITY},
        {FILES, "a sha256-sharded-100\n", "another size", SL_E_INTEGRITY},
        {FILES, "a sha512\n", "hash sha512", SL_E_FORMAT},
        {FILES ",\"ignore_paths\":{}", "a sha256\n", "ignore_paths", SL_E_INTEGRITY},
        {FILES ",\"ignore_paths\":[1]", "a sha256\n", "ignore_paths", SL_E_INTEGRITY},
        {SHARDS, "a:0:100 sha256-sharded-1000\n", "another size", SL_E_INTEGRITY},
        {SHARDS, "a sha256\n", "FILE:START:END", SL_E_INTEGRITY},
        {SHARDS, "a:0 sha256\n", "FILE:START:END", SL_E_INTEGRITY},
        {SHARDS, ":0:4 sha256\n", "empty part", SL_E_INTEGRITY},
        {SHARDS, "a:4:4 sha256\n", "FILE:START:END", SL_E_INTEGRITY},
        {SHARDS, "a:00:4 sha256\n", "FILE:START:END", SL_E_INTEGRITY},
        {SHARDS, "a:0:0x4 sha256\n", "FILE:START:END", SL_E_INTEGRITY},
        {SHARDS, "a:0:99999999999999999999999 sha256\n", "FILE:START:END", SL_E_INTEGRITY},
        {SHARDS, "a:0:101 sha256\n", "one after another", SL_E_INTEGRITY},
        {SHARDS, "a:100:200 sha256\n", "one after another", SL_E_INTEGRITY},
        {SHARDS, "a:0:100 sha256\na:200:300 sha256\n", "one after another", SL_E_INTEGRITY},
        {SHARDS, "a:0:50 sha256\na:50:150 sha256\n", "one after another", SL_E_INTEGRITY},
        {SHARDS, "a:0:100 sha256\na:0:50 sha256\n", "is there twice", SL_E_INTEGRITY},
        {"\"method\":\"shards\"", "a:0:4 sha256\n", "shard_size", SL_E_INTEGRITY},
        {"\"method\":\"shards\",\"shard_size\":0", "a:0:4 sha256\n", "shard_size", SL_E_INTEGRITY},
        {"\"method\":\"shards\",\"shard_size\":1.5", "a:0:4 sha256\n", "shard_size",
         SL_E_INTEGRITY},
        {"\"method\":\"shards\",\"shard_size\":-4", "a:0:4 sha256\n", "shard_size", SL_E_INTEGRITY},
        {"\"method\":\"shards\",\"shard_size\":1e300", "a:0:4 sha256\n", "shard_size",
         SL_E_INTEGRITY},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char *text = statement(cases[i].serialization, cases[i].resources);
        struct sl_bundle bundle = {.payload = {(uint8_t *)text, strlen(text)}};
        struct sl_oms *oms = NULL;
        err = (struct sl_err)SL_ERR_INIT;
        int done = sl_oms_peek(&bundle, &oms, &err);
        ck_assert_msg(done == (cases[i].word ? -1 : 0) && err.kind == cases[i].kind, "%zu: %s", i,
                      err.message);
        ck_assert_msg(!cases[i].word || strstr(err.message, cases[i].word), "%zu: %s", i,
                      err.message);
        sl_oms_free(oms);
        free(text);
    }
}

SL_TEST(paths_that_are_ignored_are_whole_parts)
{
    char *text = statement(FILES ",\"ignore_paths\":[\"notes\",\"a/b.txt\",\"\"]", "x sha256\n");
    struct sl_bundle bundle = {.payload = {(uint8_t *)text, strlen(text)}};
    struct sl_oms *oms = NULL;
    ck_assert_msg(sl_oms_peek(&bundle, &oms, &err) == 0, "%s", err.message);
    static const char *const yes[] = {"notes",      "notes/todo", "a/b.txt",       ".git/config",
                                      ".gitignore", ".github/x",  ".gitattributes"};
    static const char *const no[] = {"notes2",          "a",           "a/b", "a/b.txt2",
                                     "sub/.git/config", ".gitmodules", "x",   "b/notes"};
    for (size_t i = 0; i < SL_COUNT(yes); i++)
        ck_assert_msg(sl_oms_ignores(oms, yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < SL_COUNT(no); i++)
        ck_assert_msg(!sl_oms_ignores(oms, no[i]), "%s", no[i]);
    sl_oms_free(oms);
    free(text);
}

/* ---- who may have signed --------------------------------------------------------------------- */

SL_TEST(a_subject_is_a_pattern_over_the_leafs_names)
{
    size_t bytes;
    char *text = read_text("bundles/cert-chain.sig", &bytes),
         *root = read_trust("keys/root.cert.pem");
    static const struct {
        const char *pattern;
        int done;
    } cases[] = {{"Example signer", 0},
                 {"Example *", 0},
                 {"*", 0},
                 {"Example", -1},
                 {"example signer", -1},
                 {"", -1},
                 {"Example intermediate", -1}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_signing_trust trust = {
            .method = CERT, .ca_pem = root, .subject = cases[i].pattern};
        struct sl_oms *oms = NULL;
        ck_assert_int_eq(sl_oms_open(text, bytes, &trust, NOW, &oms, &err), cases[i].done);
        if (cases[i].done == 0)
            ck_assert_str_eq(oms->signer.who, "CN=Example signer,O=Example, by CN=Example "
                                              "intermediate,O=Example");
        else
            ck_assert_msg(strstr(err.message, "does not match"), "%s", err.message);
        sl_oms_free(oms);
    }
    free(root);
    free(text);
}

SL_TEST(a_clock_that_is_wrong_is_told)
{
    size_t bytes;
    char *text = read_text("bundles/cert-chain.sig", &bytes),
         *root = read_trust("keys/root.cert.pem");
    struct sl_signing_trust trust = {.method = CERT, .ca_pem = root, .allow_expired = true};
    struct sl_oms *oms = NULL;
    ck_assert_int_eq(sl_oms_open(text, bytes, &trust, 1700000000, &oms, &err), -1);
    ck_assert_msg(strstr(err.message, "not valid yet") && strstr(err.message, "clock"), "%s",
                  err.message);
    ck_assert_int_eq(sl_oms_open(text, bytes, &trust, NOW + 20ll * 365 * 86400, &oms, &err), 0);
    ck_assert(oms->signer.expired);
    sl_oms_free(oms);
    free(root);
    free(text);
}

SL_TEST(any_of_several_keys_may_have_signed)
{
    size_t bytes;
    char *keys = read_trust("keys/other.pub.pem+keys/p384.pub.pem+keys/p256.pub.pem");
    struct sl_signing_trust trust = {.method = KEY, .keys_pem = keys};
    static const char *const files[] = {"bundles/key-p256.sig", "bundles/hint-absent.sig",
                                        "bundles/key-p384.sig"};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        char *text = read_text(files[i], &bytes);
        struct sl_oms *oms = NULL;
        ck_assert_msg(sl_oms_open(text, bytes, &trust, NOW, &oms, &err) == 0, "%s", err.message);
        ck_assert_msg(strstr(oms->signer.who, oms->signer.fingerprint), "%s", oms->signer.who);
        sl_oms_free(oms);
        free(text);
    }
    free(keys);
}

SL_TEST(bytes_alone_are_checked_with_a_key)
{
    static const char *const names[] = {"keys/p256.pub.pem", "keys/other.pub.pem"};
    size_t bytes;
    struct sl_bundle *bundle = NULL;
    struct sl_buf text = SL_BUF_INIT(64 * 1024);
    char *read = read_text("bundles/key-p256.sig", &bytes);
    ck_assert_int_eq(sl_bundle_parse(read, bytes, &bundle, &err), 0);
    ck_assert_int_eq(sl_bundle_signed_bytes(bundle, &text, &err), 0);
    ck_assert(strncmp(text.data, "DSSEv1 28 application/vnd.in-toto+json ", 39) == 0);
    for (int i = 0; i < 2; i++) {
        char *key = read_trust(names[i]);
        struct sl_signing_trust trust = {.method = KEY, .keys_pem = key};
        struct sl_signing_signer signer;
        ck_assert_int_eq(
            sl_signing_check_bytes(&trust, &bundle->signature, text.data, text.used, &signer, &err),
            -i);
        sl_signing_signer_release(&signer);
        free(key);
    }
    sl_buf_release(&text);
    sl_bundle_free(bundle);
    free(read);
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct opening {
    char *text;
    size_t bytes;
    struct sl_signing_trust trust;
};

static int open_once(void *arg, struct sl_err *why)
{
    struct opening *opening = arg;
    struct sl_oms *oms = NULL;
    int done = sl_oms_open(opening->text, opening->bytes, &opening->trust, NOW, &oms, why);
    sl_oms_free(oms);
    return done;
}

SL_TEST(each_allocation_may_fail)
{
    char *key = read_trust("keys/p256.pub.pem"), *root = read_trust("keys/root.cert.pem");
    struct opening openings[] = {
        {.trust = {.method = KEY, .keys_pem = key}},
        {.trust = {.method = CERT, .ca_pem = root}},
    };
    openings[0].text = read_text("bundles/key-shards.sig", &openings[0].bytes);
    openings[1].text = read_text("bundles/cert-chain.sig", &openings[1].bytes);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_ge(golden_each_allocation(open_once, &openings[i]), 20);
        free(openings[i].text);
    }
    free(key);
    free(root);
}
