/*
 * Manifests that cosign has signed, at a registry that is a range server: where the signatures are
 * found, of what and by whom they must be. Those of data/golden/cosign/ are of cosign 3.1.3
 * (`cosign sign --key`, and with --new-bundle-format=false as releases before 3 sign); e2e asks it
 * again.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "cosign.h"
#include "fetch.h"
#include "golden.h"
#include "hash.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "oci_options.h"
#include "private_sigstore.h"
#include "range_server.h"
#include "scratch.h"
#include "stores.h"
#include "tar_maker.h"

#define BUNDLE "application/vnd.dev.sigstore.bundle.v0.3+json"
#define SIGN   "https://sigstore.dev/cosign/sign/v1"
#define NOW    1796083200

static struct sl_server *registry;
static struct sl_source_config config;
static EVP_PKEY *key, *other_key;
static struct sl_signing_trust trust;
static struct sl_store_signatures found;
static struct sl_signing_signer signer;
static struct sl_err err;
static char uri[128], weights[72], model[72]; /* digests */
static json_t *referrers;                     /* of `model`, as its registry has them */

/* ---- the registry ---------------------------------------------------------------------------- */

static void put(const char *path, const char *name, const char *text)
{
    char target[256];
    snprintf(target, sizeof(target), "/v2/org/m/%s/%s", path, name);
    sl_server_put(registry, target, text, strlen(text), NULL);
}

static void digest_of(const char *text, char digest[72])
{
    uint8_t own[SL_HASH_BYTES_MAX];
    ck_assert_int_eq(sl_digest_of(SL_HASH_SHA256, NULL, 0, text, strlen(text), own, NULL), 0);
    memcpy(digest, "sha256:", 7);
    sl_hex(own, 32, digest + 7);
}

static void put_blob(const char *text, char digest[72])
{
    digest_of(text, digest);
    put("blobs", digest, text);
}

static void put_bytes(const struct sl_buf *data, char digest[72])
{
    char target[256];
    uint8_t own[SL_HASH_BYTES_MAX];
    sl_digest_of(SL_HASH_SHA256, NULL, 0, data->data, data->used, own, NULL);
    memcpy(digest, "sha256:", 7);
    sl_hex(own, 32, digest + 7);
    snprintf(target, sizeof(target), "/v2/org/m/blobs/%s", digest);
    sl_server_put(registry, target, data->data, data->used, NULL);
}

/* tag: NULL for none. */
static void put_manifest(const char *tag, const json_t *manifest, char digest[72])
{
    char *text = json_dumps(manifest, 0);
    digest_of(text, digest);
    put("manifests", digest, text);
    if (tag)
        put("manifests", tag, text);
    free(text);
}

static json_t *layer_of(const char *type, const char *digest, size_t bytes)
{
    return json_pack("{s:s, s:s, s:I}", "mediaType", type, "digest", digest, "size",
                     (json_int_t)bytes);
}

/* An artifact with one layer, which is the model. */
static void publish(const char *type, const char *annotation)
{
    static const char data[] = "weights";
    put_blob(data, weights);
    json_t *layer = layer_of(type, weights, strlen(data));
    json_object_set_new(layer, "annotations", json_pack("{s:s}", annotation, "m.bin"));
    json_t *manifest = json_pack("{s:i, s:[o]}", "schemaVersion", 2, "layers", layer);
    put_manifest("v1", manifest, model);
    json_decref(manifest);
}

static const char *statement_of(const char *digest, const char *predicate)
{
    static char text[1024];
    snprintf(text, sizeof(text),
             "{\"_type\":\"https://in-toto.io/Statement/v1\",\"subject\":[{\"digest\":{\"sha256\":"
             "\"%s\"},\"annotations\":{}}],\"predicateType\":\"%s\",\"predicate\":{}}",
             digest + 7, predicate);
    return text;
}

/* A bundle in a manifest of its own, as `cosign sign` pushes it; the entry that refers to it. */
static json_t *push_bundle(json_t *bundle, const char *predicate)
{
    char *text = json_dumps(bundle, 0), digest[72];
    put_blob(text, digest);
    json_t *manifest = json_pack("{s:i, s:s, s:[o]}", "schemaVersion", 2, "artifactType", BUNDLE,
                                 "layers", layer_of(BUNDLE, digest, strlen(text)));
    put_manifest(NULL, manifest, digest);
    json_decref(manifest);
    json_decref(bundle);
    free(text);
    json_t *entry = json_pack("{s:s, s:s}", "digest", digest, "artifactType", BUNDLE);
    if (predicate)
        json_object_set_new(entry, "annotations",
                            json_pack("{s:s}", "dev.sigstore.bundle.predicateType", predicate));
    return entry;
}

static void refer(json_t *entry)
{
    json_array_append_new(json_object_get(referrers, "manifests"), entry);
}

static void sign_with(EVP_PKEY *by, const char *digest)
{
    refer(push_bundle(sl_sigstore_key_bundle(by, statement_of(digest, SIGN)), SIGN));
}

static void put_referrers(const char *path, const char *name)
{
    char *text = json_dumps(referrers, 0);
    put(path, name, text);
    free(text);
}

/* As the registry's own referrers, of this manifest. */
static void attach(const char *digest)
{
    put_referrers("referrers", digest);
}

static const char *tag_of(const char *digest, const char *end)
{
    static char tag[128];
    snprintf(tag, sizeof(tag), "sha256-%s%s", digest + 7, end);
    return tag;
}

/* As cosign before 3. */
static json_t *simple_layer(EVP_PKEY *by, const char *digest, const char *kind)
{
    char text[512], own[72];
    snprintf(text, sizeof(text),
             "{\"critical\":{\"identity\":{\"docker-reference\":\"r/m\"},\"image\":{"
             "\"docker-manifest-digest\":\"%s\"},\"type\":\"%s\"},\"optional\":null}",
             digest, kind);
    put_blob(text, own);
    json_t *layer = layer_of("application/vnd.dev.cosign.simplesigning.v1+json", own, strlen(text));
    json_object_set_new(
        layer, "annotations",
        json_pack("{s:s}", "dev.cosignproject.cosign/signature", sl_sigstore_sign(by, text)));
    return layer;
}

static void put_simple(json_t *layers, const char *digest)
{
    char own[72];
    json_t *manifest = json_pack("{s:i, s:o}", "schemaVersion", 2, "layers", layers);
    put_manifest(tag_of(digest, ".sig"), manifest, own);
    json_decref(manifest);
}

#define SIMPLE_KIND "cosign container image signature"

/* ---- asking ---------------------------------------------------------------------------------- */

static int find(void)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    sl_store_signatures_release(&found);
    ck_assert_int_eq(sl_store_open(uri, &config, &store, &name, &err), 0);
    ck_assert(sl_store_traits(store)->signatures);
    return sl_store_signatures(store, &found, &err);
}

static int verify(void)
{
    sl_signing_signer_release(&signer);
    ck_assert_msg(find() == 0, "%s", err.message);
    return sl_cosign_verify(&found, &trust, NOW, &signer, &err);
}

static void expect_signed(void)
{
    ck_assert_msg(verify() == 0, "%s", err.message);
    ck_assert_ptr_nonnull(signer.who);
    ck_assert_str_eq(found.digest, model);
}

static void expect_refusal(const char *sentence)
{
    ck_assert_int_eq(verify(), -1);
    ck_assert_msg(strstr(err.message, sentence), "'%s', not '%s'", err.message, sentence);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "E_SIGNATURE");
    ck_assert_ptr_null(signer.who);
}

static void setup(void)
{
    registry = sl_server_start();
    key = EVP_EC_gen("P-256");
    other_key = EVP_EC_gen("P-384");
    trust = (struct sl_signing_trust){.keys_pem = sl_sigstore_pem(key)};
    referrers = json_pack("{s:i, s:[]}", "schemaVersion", 2, "manifests");
    snprintf(uri, sizeof(uri), "oci://127.0.0.1:%u/org/m:v1/", sl_server_port(registry));
    setenv("HOME", "/nonexistent", 1);
    config = (struct sl_source_config){.attempts = 1, .stall_seconds = 20, .hedge = SL_HEDGE_OFF};
    publish("x/raw", "org.opencontainers.image.title");
}

static void teardown(void)
{
    sl_store_signatures_release(&found);
    sl_signing_signer_release(&signer);
    json_decref(referrers);
    EVP_PKEY_free(key);
    EVP_PKEY_free(other_key);
    sl_server_stop(registry);
}

/* ---- where they are -------------------------------------------------------------------------- */

static const struct {
    const char *type, *annotation;
} kinds[] = {
    {"application/vnd.oci.image.layer.v1.tar", "org.opencontainers.image.title"}, /* ORAS */
    {"application/vnd.cncf.model.weight.v1.raw", "org.cncf.model.filepath"},      /* ModelPack */
    {"application/vnd.kitops.modelkit.model.v1.raw", "org.opencontainers.image.title"} /* KitOps */
};

SL_TEST_LOOP(a_bundle_that_refers_to_the_manifest_is_found, 0, (int)SL_COUNT(kinds))
{
    publish(kinds[_i].type, kinds[_i].annotation);
    sign_with(key, model);
    attach(model);
    expect_signed();
    ck_assert_uint_eq(found.count, 1);
    trust.keys_pem = sl_sigstore_pem(other_key);
    expect_refusal("1 signature of cosign, and not one that is asked for: ");
}

SL_TEST(referrers_come_in_pages)
{
    char path[256], link[512];
    snprintf(path, sizeof(path), "/v2/org/m/referrers/%s", model);
    snprintf(link, sizeof(link), "Link: <%s?n=1&last=sha256%%3A0>; rel=\"next\"\r\n", path);
    SL_SCRIPT(registry, {.path = path,
                         .first = 1,
                         .fault = SL_FAULT_STATUS,
                         .status = 200,
                         .headers = link,
                         .text = "{\"manifests\":[]}"});
    sign_with(key, model);
    attach(model);
    expect_signed();
    bool asked = false;
    for (unsigned i = 0; i < sl_server_request_count(registry); i++)
        asked |= strstr(sl_server_request_at(registry, i)->target, "?n=1&last=sha256%3A0") != NULL;
    ck_assert(asked);
}

/* The word of where to go on may be long, and of any characters that an address may have. */
SL_TEST(a_page_with_a_long_name_is_read)
{
    enum { LONG = 3000 };
    char path[256], link[LONG + 512], last[LONG + 1] = "";
    memset(last, 'x', LONG);
    snprintf(path, sizeof(path), "/v2/org/m/referrers/%s", model);
    snprintf(link, sizeof(link), "Link: <%s?last=%s,(@!$;')*>; rel=\"next\"\r\n", path, last);
    SL_SCRIPT(registry, {.path = path,
                         .first = 1,
                         .fault = SL_FAULT_STATUS,
                         .status = 200,
                         .headers = link,
                         .text = "{\"manifests\":[]}"});
    sign_with(key, model);
    attach(model);
    expect_signed();
}

SL_TEST_LOOP(pages_that_lead_nowhere_end, 0, 4)
{
    static const char *const links[] = {"<%s?n=1>; rel=\"next\"", "<%s?n=1 x>; rel=\"next\"",
                                        "<%s>; rel=\"next\"", "%s?n=1; rel=next>"};
    char path[256], link[512], value[400];
    snprintf(path, sizeof(path), "/v2/org/m/referrers/%s", model);
    snprintf(value, sizeof(value), links[_i], path);
    snprintf(link, sizeof(link), "Link: %s\r\n", value);
    SL_SCRIPT(registry, {.path = path, .headers = link});
    attach(model);
    ck_assert_msg(find() == 0, "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(registry), _i ? 3 : 2 + 16);
}

/* Signed, as the tag of old says; asked for referrers, the registry answers with this status. */
static void sign_by_tag(int status)
{
    char path[256];
    snprintf(path, sizeof(path), "/v2/org/m/referrers/%s", model);
    SL_SCRIPT(registry, {.path = path, .fault = SL_FAULT_STATUS, .status = status, .text = "?"});
    sign_with(key, model);
    put_referrers("manifests", tag_of(model, ""));
}

static const int lacks[] = {400, 404, 405, 406, 501};

SL_TEST_LOOP(a_registry_without_referrers_has_a_tag_instead, 0, (int)SL_COUNT(lacks))
{
    sign_by_tag(lacks[_i]);
    expect_signed();
}

static const int refusals[] = {401, 403, 429, 500};

SL_TEST_LOOP(another_refusal_is_a_failure, 0, (int)SL_COUNT(refusals))
{
    sign_by_tag(refusals[_i]);
    ck_assert_int_eq(find(), -1);
    ck_assert_msg(strstr(err.message, "cannot read the signatures of"), "%s", err.message);
    ck_assert_uint_eq(found.count, 0);
}

SL_TEST(signatures_of_cosign_before_3_are_found)
{
    json_t *layers = json_array();
    json_array_append_new(layers, simple_layer(other_key, model, SIMPLE_KIND));
    json_array_append_new(layers, simple_layer(key, model, SIMPLE_KIND));
    put_simple(layers, model);
    expect_signed();
    ck_assert_uint_eq(found.count, 2);
}

SL_TEST_LOOP(an_index_may_be_signed_or_what_it_leads_to, 0, 3)
{
    char index[72];
    json_t *document =
        json_pack("{s:i, s:[{s:s}]}", "schemaVersion", 2, "manifests", "digest", model);
    put_manifest("v1", document, index);
    json_decref(document);
    if (_i == 1)
        put_simple(json_pack("[o]", simple_layer(key, index, SIMPLE_KIND)), index);
    else
        sign_with(key, _i ? model : index);
    attach(_i == 2 ? model : index);
    expect_signed();
}

/* A mirror that lacks everything, and one that has another blob for the bundle's digest. */
SL_TEST_LOOP(mirrors_may_lack_signatures_and_are_not_believed, 0, 2)
{
    struct sl_server *mirror = sl_server_start();
    char name[64], target[256], folder[] = "models", *list[] = {name};
    struct sl_oci_options options = {.image_folder = folder, .mirrors = {list, 1}};
    snprintf(name, sizeof(name), "127.0.0.1:%u", sl_server_port(mirror));
    config.options[0] = (struct sl_store_options){&sl_oci_table, &options};
    sign_with(key, model);
    attach(model);
    ck_assert_int_eq(find(), 0);
    ck_assert_uint_eq(found.count, 1);
    char digest[72], *other = strdup(found.items[0].text);
    digest_of(other, digest);
    other[found.items[0].bytes / 2] ^= 1;
    snprintf(target, sizeof(target), "/v2/org/m/blobs/%s", digest);
    if (_i)
        sl_server_put(mirror, target, other, found.items[0].bytes, NULL);
    expect_signed();
    ck_assert_uint_gt(sl_server_request_count(mirror), 0);
    free(other);
    sl_server_stop(mirror);
}

/* ---- of what they are ------------------------------------------------------------------------ */

SL_TEST(a_manifest_without_signatures_is_not_signed)
{
    expect_refusal("is not signed: its registry has no signature of cosign");
    ck_assert_ptr_nonnull(strstr(err.message, model));
    attach(model); /* an empty list */
    expect_refusal("is not signed");
}

SL_TEST(a_signature_of_another_manifest_is_refused)
{
    char before[72];
    memcpy(before, model, sizeof(before));
    publish("x/raw", "org.cncf.model.filepath");
    sign_with(key, before);
    attach(model);
    expect_refusal("signature of another manifest");
    put_simple(json_pack("[o]", simple_layer(key, before, SIMPLE_KIND)), model);
    json_array_clear(json_object_get(referrers, "manifests"));
    attach(model);
    expect_refusal("signature of another manifest");
}

SL_TEST(a_statement_of_another_kind_is_no_signature)
{
    static const char sbom[] = "https://spdx.dev/Document";
    refer(push_bundle(sl_sigstore_key_bundle(key, statement_of(model, sbom)), NULL));
    attach(model);
    expect_refusal("not a signature of cosign, but a statement of another kind");
    json_array_clear(json_object_get(referrers, "manifests"));
    refer(push_bundle(sl_sigstore_key_bundle(key, "[]"), NULL));
    attach(model);
    expect_refusal("not a signature of cosign");
    json_array_clear(json_object_get(referrers, "manifests"));
    attach(model);
    put_simple(json_pack("[o]", simple_layer(key, model, "atomic container signature")), model);
    expect_refusal("not a signature of cosign, but a document of another kind");
}

SL_TEST(what_is_no_signature_is_passed_over)
{
    json_t *entry = push_bundle(sl_sigstore_key_bundle(key, statement_of(model, SIGN)), SIGN);
    json_object_set_new(entry, "artifactType", json_string("application/spdx+json"));
    refer(entry);
    refer(push_bundle(sl_sigstore_key_bundle(key, "{}"), "https://slsa.dev/provenance/v1"));
    refer(json_pack("{s:s, s:s}", "artifactType", BUNDLE, "digest", "sha256:1"));
    refer(json_string("?"));
    attach(model);
    json_t *large = simple_layer(key, model, SIMPLE_KIND);
    json_object_set_new(large, "size", json_integer(1024 * 1024 + 1));
    json_t *other = simple_layer(key, model, SIMPLE_KIND);
    json_object_set_new(other, "mediaType", json_string("text/plain"));
    put_simple(json_pack("[o,o,n,{}]", large, other), model);
    ck_assert_msg(find() == 0, "%s", err.message);
    ck_assert_uint_eq(found.count, 0);
}

SL_TEST(so_many_signatures_are_looked_at_and_no_more)
{
    json_t *layers = json_array();
    for (unsigned i = 0; i <= SL_STORE_SIGNATURES_MAX; i++)
        json_array_append_new(layers, simple_layer(i < SL_STORE_SIGNATURES_MAX ? other_key : key,
                                                   model, SIMPLE_KIND));
    put_simple(layers, model);
    expect_refusal("64 signatures of cosign");
}

SL_TEST(a_signature_that_is_not_what_its_digest_says_is_a_failure)
{
    sign_with(key, model);
    attach(model);
    json_t *layer = simple_layer(key, model, SIMPLE_KIND);
    put("blobs", json_string_value(json_object_get(layer, "digest")), "{}");
    json_object_set_new(layer, "size", json_integer(2));
    put_simple(json_pack("[o]", layer), model);
    ck_assert_int_eq(find(), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_msg(strstr(err.message, "is not what its digest"), "%s", err.message);
}

/* ---- by whom --------------------------------------------------------------------------------- */

SL_TEST(one_wrong_signature_does_not_hide_the_next)
{
    sign_with(other_key, model);
    refer(push_bundle(json_pack("{s:s}", "mediaType", "text/plain"), SIGN));
    sign_with(key, model);
    attach(model);
    expect_signed();
    ck_assert_uint_eq(found.count, 3);
}

SL_TEST(a_keyless_signature_is_of_an_identity)
{
    struct sl_sigstore sigstore;
    sl_sigstore_init(&sigstore, false);
    json_t *root = sl_sigstore_root(&sigstore);
    char *trusted = json_dumps(root, 0);
    const struct sl_sigstore_wish wish = {.payload = statement_of(model, SIGN)};
    refer(push_bundle(sl_sigstore_bundle(&sigstore, &wish), SIGN));
    attach(model);
    trust = (struct sl_signing_trust){.method = SL_SIGNED_KEYLESS,
                                      .identity = "signer@example.com",
                                      .issuer = "https://login.example.com",
                                      .trusted_root_json = trusted};
    expect_signed();
    ck_assert_str_eq(signer.who, "signer@example.com, by https://login.example.com");
    trust.identity = "other@example.com";
    expect_refusal("another identity");
    put_simple(json_pack("[o]", simple_layer(key, model, SIMPLE_KIND)), model);
    json_array_clear(json_object_get(referrers, "manifests"));
    attach(model);
    expect_refusal("cosign before version 3, which is checked with a public key alone");
    free(trusted);
    json_decref(root);
    sl_sigstore_release(&sigstore);
}

SL_TEST(a_trust_that_is_wrong_is_not_the_signatures_fault)
{
    sign_with(key, model);
    attach(model);
    trust.keys_pem = "no key";
    ck_assert_int_eq(verify(), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

SL_TEST(other_stores_keep_no_signatures)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    ck_assert_int_eq(sl_store_open("file:///tmp/", &config, &store, &name, &err), 0);
    ck_assert(!sl_store_traits(store)->signatures);
    ck_assert_int_eq(sl_store_signatures(store, &found, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
}

SL_TEST_LOOP(what_cosign_has_signed_is_believed, 0, 2)
{
    size_t bytes;
    sl_autofree char *pem = golden_text("cosign/key.pub", &bytes),
                     *digest = golden_text("cosign/digest", &bytes);
    sl_autofree char *text = golden_text(_i ? "cosign/simple.json" : "cosign/bundle.json", &bytes);
    sl_autofree char *signature = golden_text("cosign/simple.sig", &bytes);
    struct sl_store_signature item = {
        .text = text, .bytes = strlen(text), .signature = _i ? signature : NULL};
    const struct sl_store_signatures golden = {.items = &item, .count = 1};
    snprintf(item.digest, sizeof(item.digest), "%s", digest);
    trust.keys_pem = pem;
    ck_assert_msg(sl_cosign_verify(&golden, &trust, NOW, &signer, &err) == 0, "%s", err.message);
    sl_signing_signer_release(&signer);
    item.digest[70] ^= 1;
    ck_assert_int_eq(sl_cosign_verify(&golden, &trust, NOW, &signer, &err), -1);
    ck_assert_msg(strstr(err.message, "signature of another manifest"), "%s", err.message);
    item.digest[70] ^= 1;
    for (size_t i = 0; i < item.bytes; i++) { /* cut off anywhere */
        char *copy = strndup(text, i);
        item.text = copy;
        struct sl_store_signature cut = item;
        cut.bytes = i;
        const struct sl_store_signatures one = {.items = &cut, .count = 1};
        ck_assert_int_eq(sl_cosign_verify(&one, &trust, NOW, &signer, &err), -1);
        free(copy);
    }
}

static int verify_once(void *arg, struct sl_err *why)
{
    (void)arg;
    int result = sl_cosign_verify(&found, &trust, NOW, &signer, why);
    sl_signing_signer_release(&signer);
    return result;
}

SL_TEST_LOOP(every_failing_allocation_is_survived, 0, 2)
{
    if (_i)
        put_simple(json_pack("[o]", simple_layer(key, model, SIMPLE_KIND)), model);
    else
        sign_with(key, model);
    attach(model);
    ck_assert_int_eq(find(), 0);
    ck_assert_uint_ge(golden_each_allocation(verify_once, NULL), 3);
}

/* ---- loads ----------------------------------------------------------------------------------- */

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_load_result result;

static void begin_load(void)
{
    setup();
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
}

static void end_load(void)
{
    teardown();
    sl_scratch_close(scratch_fd, scratch);
}

static int load(const char *more)
{
    struct sl_specs specs;
    char yaml[1024], file[SL_SCRATCH_PATH_BYTES + 16];
    snprintf(file, sizeof(file), "%s/key.pem", scratch);
    FILE *out = fopen(file, "w");
    ck_assert(out && fputs(trust.keys_pem, out) >= 0 && fclose(out) == 0);
    err = (struct sl_err)SL_ERR_INIT;
    snprintf(yaml, sizeof(yaml),
             "source: {uri: \"%s\", include: ['*']%s}\n"
             "verify: {modelSigning: {publicKeyFile: \"%s\"}}\n",
             uri, more, file);
    sl_model_spec(&specs, uri, path, yaml);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    return done;
}

static void refuses(const char *more, const char *sentence)
{
    ck_assert_int_eq(load(more), -1);
    ck_assert_msg(strstr(err.message, sentence), "'%s', not '%s'", err.message, sentence);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert(!sl_model_exists(path, ".sluice/ready") && !sl_model_exists(path, "m.bin"));
}

static const struct sl_claim_case loading;

SL_TEST_LOOP_OF(loading, a_load_is_of_a_signed_manifest, 0, (int)SL_COUNT(kinds))
{
    publish(kinds[_i].type, kinds[_i].annotation);
    refuses("", "is not signed");
    sign_with(other_key, model);
    attach(model);
    refuses("", "not one that is asked for");
    sign_with(key, model);
    attach(model);
    ck_assert_msg(load("") == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", (const uint8_t *)"weights", 7));
    ck_assert_str_eq(result.signed_by.file, model);
    ck_assert_int_eq(strncmp(result.signed_by.by, "key ", 4), 0);
    ck_assert_uint_eq(result.signed_by.loaded, 1);
    ck_assert_uint_eq(result.unhashed, 0);
}

SL_TEST_OF(loading, a_blob_that_was_changed_is_refused)
{
    sign_with(key, model);
    attach(model);
    put("blobs", weights, "weightz");
    refuses("", "m.bin");
}

SL_TEST_OF(loading, files_without_a_hash_of_their_own_are_refused)
{
    sl_autobuf tar = SL_BUF_INIT(1024 * 1024);
    tar_entry(&tar, '0', "m.bin", NULL, "weights", 7);
    tar_end(&tar);
    put_bytes(&tar, weights);
    json_t *manifest =
        json_pack("{s:i, s:[o]}", "schemaVersion", 2, "layers",
                  layer_of("application/vnd.kitops.modelkit.model.v1.tar", weights, tar.used));
    put_manifest("v1", manifest, model);
    json_decref(manifest);
    sign_with(key, model);
    attach(model);
    refuses(", oci: {checkLayersUpTo: 1B}", "raise source.oci.checkLayersUpTo");
    ck_assert_msg(load("") == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "m.bin", (const uint8_t *)"weights", 7));
}

SL_TEST_OF(loading, a_bundle_among_the_files_is_judged_instead)
{
    char digest[72];
    put_blob("{}", digest);
    json_t *one = layer_of("x/raw", weights, 7), *two = layer_of("x/raw", digest, 2);
    json_object_set_new(one, "annotations", json_pack("{s:s}", "org.cncf.model.filepath", "m.bin"));
    json_object_set_new(two, "annotations",
                        json_pack("{s:s}", "org.cncf.model.filepath", "model.sig"));
    json_t *manifest = json_pack("{s:i, s:[o,o]}", "schemaVersion", 2, "layers", one, two);
    put_manifest("v1", manifest, model);
    json_decref(manifest);
    sign_with(key, model);
    attach(model);
    refuses("", "signature 'model.sig': ");
}

static const struct sl_claim_case loading = {.setup = begin_load, .teardown = end_load};

SL_CASE(.setup = setup, .teardown = teardown)
