/* A trusted root of Sigstore, a NUL, and a bundle: no text may do harm, and nobody is let in. */
#include <stdlib.h>
#include <string.h>

#include "keyless.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, 0, size);
    struct sl_err err = SL_ERR_INIT;
    struct sl_bundle *bundle = NULL;
    struct sl_signing_signer signer = {0};
    if (!end)
        return 0;
    const struct sl_signing_trust trust = {.method = SL_SIGNED_KEYLESS,
                                           .identity = "nobody",
                                           .issuer = "nobody",
                                           .trusted_root_json = (const char *)data};
    const char *text = (const char *)end + 1;
    if (sl_bundle_parse(text, size - (size_t)(end + 1 - data), &bundle, &err) == 0 &&
        sl_keyless_verify(bundle, &trust, &signer, &err) == 0)
        abort();
    sl_bundle_free(bundle);
    return 0;
}
