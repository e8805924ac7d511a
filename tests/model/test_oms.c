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

/* A text of the golden files with a NUL behind it; freed by the caller. */
static char *read_text(const char *name, size_t *bytes)
{
    char path[256];
    snprintf(path, sizeof(path), "signing/%s", name);
    uint8_t *data = golden_read(path, bytes);
    char *text = calloc(1, *bytes + 1);
    memcpy(text, data, *bytes);
    free(data);
    return text;
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
};
#define KEY  SL_SIGNED_KEY
#define CERT SL_SIGNED_CERTIFICATE
#define P256 KEY, "keys/p256.pub.pem"
#define ROOT CERT, "keys/root.cert.pem"
#define OK   NULL, SL_OK, NULL
#define BAD  NULL, SL_E_INTEGRITY
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
    {"spec-vectors/valid-key.bundle.json", KEY, "released/signing-key-pub.pem", OK, vectors},
    {"spec-vectors/valid-certificate.bundle.json", CERT, "released/ca-cert.pem", OK, vectors},
    {"bundles/key-p256.sig", ROOT, BAD, "signed with a key, but a certificate is expected"},
    {"bundles/cert-chain.sig", P256, BAD, "signed with a certificate, but a key is expected"},
    {"bundles/key-p256.sig", KEY, "keys/root.cert.pem", NULL, SL_E_USAGE, "BEGIN PUBLIC KEY"},
    {"bundles/cert-chain.sig", CERT, "keys/p256.pub.pem", NULL, SL_E_USAGE, "BEGIN CERTIFICATE"},
};

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
    struct sl_signing_trust trust = {.method = row->method, .allow_expired = row->allow_expired};
    struct sl_oms *oms = NULL;
    *(row->method == KEY ? &trust.keys_pem : &trust.ca_pem) = with;
    make_tensors();
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
