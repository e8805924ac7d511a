/*
 * Signed models: no bundle and no statement may do harm, none that was not signed by the key is
 * taken, and what is taken of a statement is sorted, without anything twice, and found again. A
 * text is tried as a bundle and as a statement, to which a right root digest is given.
 */
#include <stdlib.h>
#include <string.h>

#include "bundle_claims.h"
#include "oms.h"

enum { NOW = 1796083200 }; /* 2026-12-01, when the root is valid */

/* Nobody has the other half. */
static const char key[] = "-----BEGIN PUBLIC KEY-----\n"
                          "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEWW+9hnMZlx/oA5LleN8jI8y/Y6d9\n"
                          "0GeDM9DIUUx0UxioMRbO88AIs2Nbz8imdHH51Y2KrMD9YAe88KbtstPxIg==\n"
                          "-----END PUBLIC KEY-----\n";

/* Its intermediate is in no seed. */
static const char root[] = "-----BEGIN CERTIFICATE-----\n"
                           "MIIB9DCCAXqgAwIBAgIUf3UAo3p3f5dKev8Ns1sBjuRUOnswCgYIKoZIzj0EAwIw\n"
                           "KTEQMA4GA1UECgwHRXhhbXBsZTEVMBMGA1UEAwwMRXhhbXBsZSByb290MB4XDTI2\n"
                           "MTEwMTAwMDAwMFoXDTM2MTAyOTAwMDAwMFowKTEQMA4GA1UECgwHRXhhbXBsZTEV\n"
                           "MBMGA1UEAwwMRXhhbXBsZSByb290MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAE0h7F\n"
                           "swh7MTVQr6k8iMwd33UD4ENlqvdeyWm1hSO1OeZCNtNQAwwN9xuDJ/bJhNzf/YZE\n"
                           "lUdfNpe6s+tQ+h08i+/ZGLCLDMm/HeKvuZpzyisLghilkannvpCoKwSwzWLOo2Mw\n"
                           "YTAPBgNVHRMBAf8EBTADAQH/MB0GA1UdDgQWBBRY40ORL2gkhx6twghRVcADXyf6\n"
                           "yzAfBgNVHSMEGDAWgBRY40ORL2gkhx6twghRVcADXyf6yzAOBgNVHQ8BAf8EBAMC\n"
                           "AQYwCgYIKoZIzj0EAwIDaAAwZQIwVNJMvawZgSRyRVbK1DdyHSEuqZeAiuhcKraM\n"
                           "UXQ1cwkwP/68G2Z1CYyBlfGVHLR2AjEAjLBNy4xbCxtBsrtIORy6BPx6a7W00rSc\n"
                           "sPogj/ZUD0ceLFVniJjgPnFPVEe2f3ae\n"
                           "-----END CERTIFICATE-----\n";

static void give_root(json_t *document)
{
    char hex_root[65];
    uint8_t digest[SL_HASH_BYTES_MAX];
    json_t *subject = json_array_get(json_object_get(document, "subject"), 0), *resource;
    size_t i;
    struct sl_sha256 *sha = sl_sha256_new(NULL);
    json_array_foreach(json_object_get(json_object_get(document, "predicate"), "resources"), i,
                       resource)
    {
        const char *hex = sl_json_get_string(resource, "digest");
        size_t bytes = hex ? strlen(hex) / 2 : 0;
        if (bytes && bytes <= sizeof(digest) && sl_unhex(hex, digest, bytes) == 0)
            sl_sha256_update(sha, digest, bytes);
    }
    sl_sha256_finish(sha, digest);
    sl_sha256_free(sha);
    sl_hex(digest, 32, hex_root);
    json_object_set_new(json_object_get(subject, "digest"), "sha256", json_string(hex_root));
}

static void check(const struct sl_oms *oms)
{
    uint64_t end = 0;
    for (size_t i = 0; i < oms->resource_count; i++) {
        const struct sl_oms_resource *now = &oms->resources[i];
        size_t count;
        const struct sl_oms_resource *first = sl_oms_find(oms, now->name, &count);
        if (!first || first > now || now >= first + count || (!oms->shards && count != 1))
            abort();
        if (oms->shards && now->start != (now == first ? 0 : end))
            abort();
        end = now->end;
        (void)sl_oms_ignores(oms, now->name);
    }
}

static void try_statement(const char *text, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_bundle bundle = {.payload = {(uint8_t *)text, bytes}};
    struct sl_oms *oms = NULL;
    if (sl_oms_peek(&bundle, &oms, &err) == 0)
        check(oms);
    sl_oms_free(oms);
}

static void try_with_root(const char *text, size_t bytes)
{
    json_t *document = sl_json_parse(text, bytes, "input", NULL);
    if (!document)
        return;
    give_root(document);
    char *again = json_dumps(document, JSON_ENCODE_ANY);
    if (again)
        try_statement(again, strlen(again));
    free(again);
    json_decref(document);
}

static void try_bundle(const char *text, size_t bytes)
{
    const struct sl_signing_trust by_key = {.method = SL_SIGNED_KEY, .keys_pem = key};
    const struct sl_signing_trust by_root = {.method = SL_SIGNED_CERTIFICATE, .ca_pem = root};
    struct sl_err err = SL_ERR_INIT;
    struct sl_bundle *bundle = NULL;
    struct sl_oms *oms = NULL;
    struct sl_bundle_claims claims = {0};
    if (sl_bundle_parse(text, bytes, &bundle, &err) == 0) {
        try_statement((const char *)bundle->payload.data, bundle->payload.bytes);
        (void)sl_bundle_claims_read(bundle, &claims, &err);
        sl_bundle_claims_release(&claims);
    }
    sl_bundle_free(bundle);
    if (sl_oms_open(text, bytes, &by_key, NOW, &oms, &err) == 0 ||
        sl_oms_open(text, bytes, &by_root, NOW, &oms, &err) == 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size + 1); /* so that reading on is seen */
    memcpy(copy, data, size);
    try_bundle(copy, size);
    try_statement(copy, size);
    try_with_root(copy, size);
    free(copy);
    return 0;
}
