/* What registries answer and users keep: references, mirrors, manifests, challenges, files of
 * logins. */
#include <stdlib.h>
#include <string.h>

#include "oci_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void read_manifest(const char *text, size_t bytes)
{
    struct sl_oci_manifest manifest;
    struct sl_err err = SL_ERR_INIT;
    if (sl_oci_manifest_parse(text, bytes, "manifest", &manifest, &err) == 0)
        for (size_t i = 0; i < manifest.count; i++)
            if (!*manifest.files[i].name || manifest.files[i].bytes > SL_OBJECT_BYTES_MAX ||
                !sl_oci_is_digest(manifest.files[i].pin))
                abort();
    sl_oci_manifest_release(&manifest);
}

static void read_texts(const char *text, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_oci_uri uri;
    struct sl_oci_challenge challenge;
    struct sl_oci_login login = {0};
    struct sl_oci_mirror mirror;
    sl_oci_mirror_parse(text, &mirror, &err);
    sl_oci_mirror_release(&mirror);
    sl_oci_uri_parse(text, &uri, &err);
    sl_oci_uri_release(&uri);
    sl_oci_challenge_parse(text, &challenge, &err);
    sl_oci_challenge_release(&challenge);
    sl_oci_login_parse(text, bytes, "file", "docker.io", "library/m", &login, &err);
    sl_oci_login_release(&login);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = calloc(1, bytes + 1);
    if (!text)
        return 0;
    if (bytes)
        memcpy(text, data, bytes);
    read_manifest(text, bytes);
    read_texts(text, bytes);
    free(text);
    return 0;
}
