/*
 * What cosign has attached to a manifest: bundles that refer to it (version 3; the referrers of the
 * distribution specification 1.1, or an index at the tag sha256-HEX where a registry has none), and
 * layers of the manifest at the tag sha256-HEX.sig (before).
 *
 * Everybody who may push may attach, so there may be any number of anything: there are limits, and
 * what is beyond them, or is of another kind, is passed over.
 */
#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "json.h"
#include "log.h"
#include "oci_ask.h"

static const char BUNDLE[] = "application/vnd.dev.sigstore.bundle.v0.3+json",
                  SIMPLE[] = "application/vnd.dev.cosign.simplesigning.v1+json",
                  SIGNATURE[] = "dev.cosignproject.cosign/signature",
                  PREDICATE[] = "dev.sigstore.bundle.predicateType",
                  SIGNED[] = "https://sigstore.dev/cosign/sign/v1";

enum { PAGES_MAX = 16 };

struct finding {
    struct sl_oci *oci;
    struct sl_store_signatures *found;
    const char *digest; /* whose signatures */
    char what[400];
};

static bool says(const json_t *object, const char *key, const char *expected)
{
    const char *text = sl_json_get_string(object, key);
    return text && strcmp(text, expected) == 0;
}

/* ---- documents ------------------------------------------------------------------------------- */

/* *page: the query of a page's "Link: <URL?…>; rel=\"next\"" (RFC 8288); NULL: it is the last. */
static int find_next(const struct finding *finding, const struct sl_answer *answer, char **page,
                     struct sl_err *err)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "?&=%+._~:/-!$'()*,;@";
    size_t bytes;
    free(sl_steal(page));
    sl_autofree char *link = sl_answer_header_whole(answer, "Link", err);
    if (!link)
        return -1;
    char *url = (char *)sl_http_next_link(link, &bytes);
    if (!url)
        return 0;
    url[bytes] = 0;
    const char *query = strchr(url, '?');
    if (!query || !query[1] || query[strspn(query, plain)]) {
        sl_log(SL_LOG_WARN, "%s behind a page: the registry's link to the next one is invalid",
               finding->what);
        return 0;
    }
    *page = sl_strdup(query, err);
    return *page ? 0 : -1;
}

/* *document: json_decref() it; NULL: there is none. page: which one is asked for, and then the next
 * one; NULL: there are none. */
static int ask(const struct finding *finding, const char *reference, bool may_lack, char **page,
               json_t **document, struct sl_err *err)
{
    struct sl_answer answer = {0};
    struct sl_err why = SL_ERR_INIT;
    struct sl_oci_asking asking = {.oci = finding->oci,
                                   .reference = reference,
                                   .what = finding->what,
                                   .referrers = page != NULL,
                                   .page = page ? *page : NULL,
                                   .may_lack = may_lack};
    int result = sl_oci_ask(&asking, &answer, &why);
    *document = NULL;
    if (result == 0 && answer.status <= 299) {
        *document =
            sl_json_parse(sl_buf_string(&answer.body), answer.body.used, finding->what, &why);
        result = *document ? 0 : -1;
    }
    if (result == 0 && page)
        result = find_next(finding, &answer, page, &why);
    if (result < 0)
        json_decref(sl_steal(document));
    sl_answer_release(&answer);
    if (result < 0 && err)
        *err = why;
    return result;
}

/* ---- one signature --------------------------------------------------------------------------- */

static int read_blob(const struct finding *finding, const char *digest, size_t bytes, char *text,
                     struct sl_err *err)
{
    struct sl_version version = {0};
    uint8_t own[SL_HASH_BYTES_MAX], wanted[32];
    SL_AUTO(sl_source) source = NULL;
    memcpy(version.pin, digest, SL_OCI_DIGEST_BYTES);
    if (sl_source_known(finding->oci->store, digest, bytes, &version, &source, err) < 0)
        return -1;
    source->vouch = SL_VOUCH_WHOLE;
    if (sl_source_read(source, 0, text, bytes, err) < 0 ||
        sl_digest_of(SL_HASH_SHA256, NULL, 0, text, bytes, own, err) < 0)
        return -1;
    sl_unhex(digest + sizeof("sha256:") - 1, wanted, sizeof(wanted));
    if (memcmp(own, wanted, sizeof(wanted)) == 0)
        return 0;
    return sl_fail(err, SL_E_INTEGRITY, "%s: a signature is not what its digest %.19s… says",
                   finding->what, digest);
}

/* A layer with a signature, or a bundle where signature is NULL. */
static int add(const struct finding *finding, const json_t *layer, const char *signature,
               struct sl_err *err)
{
    struct sl_store_signatures *found = finding->found;
    const char *digest = sl_json_get_string(layer, "digest");
    uint64_t bytes = sl_json_get_uint(layer, "size", 0);
    if (!digest || !sl_oci_is_digest(digest) || !bytes || bytes > SL_STORE_SIGNATURE_BYTES_MAX ||
        found->count == SL_STORE_SIGNATURES_MAX) {
        sl_log(SL_LOG_WARN, "a signature of '%.300s' is passed over: %s", finding->oci->store->uri,
               found->count == SL_STORE_SIGNATURES_MAX
                   ? "there are more than 64"
                   : "it has no digest, or is larger than 1 MiB");
        return 0;
    }
    sl_autofree char *text = sl_alloc((size_t)bytes + 1, err);
    sl_autofree char *copy = text && signature ? sl_strdup(signature, err) : NULL;
    if (!text || (signature && !copy) || read_blob(finding, digest, (size_t)bytes, text, err) < 0 ||
        sl_grow(&found->items, &found->capacity, found->count + 1, sizeof(*found->items), err) < 0)
        return -1;
    struct sl_store_signature *item = &found->items[found->count++];
    *item = (struct sl_store_signature){
        .text = sl_steal(&text), .bytes = (size_t)bytes, .signature = sl_steal(&copy)};
    snprintf(item->digest, sizeof(item->digest), "%s", finding->digest);
    return 0;
}

/* ---- cosign 3 -------------------------------------------------------------------------------- */

/* An index's entry that may be a signature: what is said of others, such as SBOMs, has another
 * predicate where the entry tells it. */
static bool is_bundle(const json_t *entry)
{
    const char *predicate = sl_json_get_string(json_object_get(entry, "annotations"), PREDICATE);
    const char *digest = sl_json_get_string(entry, "digest");
    return says(entry, "artifactType", BUNDLE) && digest && sl_oci_is_digest(digest) &&
           (!predicate || strcmp(predicate, SIGNED) == 0);
}

static int add_bundles(const struct finding *finding, const json_t *index, struct sl_err *err)
{
    const json_t *entries = json_object_get(index, "manifests");
    unsigned asked = 0;
    for (size_t i = 0; i < json_array_size(entries); i++) {
        const json_t *entry = json_array_get(entries, i);
        json_t *manifest;
        if (!is_bundle(entry) || asked++ >= SL_STORE_SIGNATURES_MAX)
            continue;
        if (ask(finding, sl_json_get_string(entry, "digest"), false, NULL, &manifest, err) < 0)
            return -1;
        const json_t *layer = json_array_get(json_object_get(manifest, "layers"), 0);
        int result = says(layer, "mediaType", BUNDLE) ? add(finding, layer, NULL, err) : 0;
        json_decref(manifest);
        if (result < 0)
            return -1;
    }
    return 0;
}

/* Page by page. *known: the registry has referrers at all. */
static int find_referrers(const struct finding *finding, bool *known, struct sl_err *err)
{
    sl_autofree char *page = NULL;
    for (unsigned i = 0; i == 0 || (page && i < PAGES_MAX); i++) {
        json_t *index;
        if (ask(finding, finding->digest, i == 0, &page, &index, err) < 0)
            return -1;
        *known |= index != NULL;
        int result = add_bundles(finding, index, err);
        json_decref(index);
        if (result < 0)
            return -1;
    }
    return 0;
}

static int find_bundles(const struct finding *finding, struct sl_err *err)
{
    char tag[SL_OCI_DIGEST_BYTES];
    json_t *index;
    bool known = false;
    snprintf(tag, sizeof(tag), "sha256-%s", finding->digest + sizeof("sha256:") - 1);
    if (find_referrers(finding, &known, err) < 0)
        return -1;
    if (known)
        return 0;
    if (ask(finding, tag, true, NULL, &index, err) < 0)
        return -1;
    int result = add_bundles(finding, index, err);
    json_decref(index);
    return result;
}

/* ---- cosign before 3 ------------------------------------------------------------------------- */

static int find_simple(const struct finding *finding, struct sl_err *err)
{
    char tag[SL_OCI_DIGEST_BYTES + 4];
    json_t *manifest;
    int result = 0;
    snprintf(tag, sizeof(tag), "sha256-%s.sig", finding->digest + sizeof("sha256:") - 1);
    if (ask(finding, tag, true, NULL, &manifest, err) < 0)
        return -1;
    const json_t *layers = json_object_get(manifest, "layers");
    for (size_t i = 0; result == 0 && i < json_array_size(layers); i++) {
        const json_t *layer = json_array_get(layers, i);
        const char *signature =
            sl_json_get_string(json_object_get(layer, "annotations"), SIGNATURE);
        if (signature && says(layer, "mediaType", SIMPLE))
            result = add(finding, layer, signature, err);
    }
    json_decref(manifest);
    return result;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Of the manifest, and of the index that led to it, which names it by its digest. */
static int find(struct finding *finding, const struct sl_oci_manifest *manifest, struct sl_err *err)
{
    const char *const digests[] = {manifest->digest, manifest->index};
    for (size_t i = 0; i < SL_COUNT(digests); i++) {
        finding->digest = digests[i];
        if (*digests[i] && (find_bundles(finding, err) < 0 || find_simple(finding, err) < 0))
            return -1;
    }
    return 0;
}

int sl_oci_signatures(struct sl_store *store, struct sl_store_signatures *found, struct sl_err *err)
{
    struct sl_oci *oci = store->impl;
    struct finding finding = {.oci = oci, .found = found};
    const struct sl_oci_manifest *manifest;
    if (sl_oci_files(oci, &manifest, err) < 0)
        return -1;
    snprintf(finding.what, sizeof(finding.what), "cannot read the signatures of '%.300s'",
             store->uri);
    for (;;) {
        struct sl_err why = SL_ERR_INIT;
        snprintf(found->digest, sizeof(found->digest), "%s", manifest->digest);
        if (find(&finding, manifest, &why) == 0)
            return 0;
        sl_store_signatures_release(found);
        if (why.kind == SL_E_INTEGRITY && sl_store_blame_mirrors(store, &why))
            continue;
        if (err)
            *err = why;
        return -1;
    }
}
