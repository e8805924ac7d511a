/* Signatures and public keys of minisign: no text may do harm, and what is taken is of the key. */
#include <stdlib.h>
#include <string.h>

#include "minisign.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char line[] = "RWSjX+vT03Ch0DgtZtIIdzTx/p7H9qoyCqagFt4DGylixxdqt9+dAZ28";
    struct sl_minisign_key key, other;
    struct sl_minisign_signature signature;
    struct sl_err err = SL_ERR_INIT;
    if (sl_minisign_key_parse(line, strlen(line), &key, &err) < 0)
        abort();
    (void)sl_minisign_key_parse((const char *)data, size, &other, &err);
    if (sl_minisign_parse((const char *)data, size, &key, &signature, &err) == 0 &&
        memcmp(signature.id, key.id, sizeof(key.id)) != 0)
        abort();
    return 0;
}
