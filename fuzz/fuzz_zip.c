/* Archives: directory, local headers, payloads. */
#include <stdlib.h>

#include "memory_store.h"
#include "stores.h"
#include "zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    struct sl_err err = SL_ERR_INIT;
    struct sl_zip zip = {0};
    char *key = NULL;
    if (sl_memory_put("x.zip", data, bytes, &err) == 0 &&
        sl_store_open("memory:x.zip", NULL, &store, &key, &err) == 0 &&
        sl_source_open(store, key, 1, &source, &err) == 0 && sl_zip_open(&zip, source, &err) == 0) {
        for (size_t i = 0; i < zip.count; i++) {
            free(sl_zip_read(&zip, &zip.entries[i], 1 << 20, &err));
            zip.entries[i].wanted = true;
            zip.entries[i].begin = 0;
        }
        sl_zip_locate(&zip, true, &err);
    }
    sl_zip_release(&zip);
    free(key);
    return 0;
}
