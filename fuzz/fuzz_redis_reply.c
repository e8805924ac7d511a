/* What a Redis server says to a login, to SELECT and to every question about a model. */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz_peer.h"
#include "source.h"
#include "stores.h"

enum { OBJECT_BYTES_MAX = 64 * 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct sl_source_config config = {.stall_seconds = 2, .attempts = 1};
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    char uri[96], *key = NULL;
    if (bytes == 0)
        return 0;
    const char *login = data[0] % 2 ? "user:secret@" : "";
    snprintf(uri, sizeof(uri), "redis://%s127.0.0.1:%u/model", login, fuzz_peer_start());
    fuzz_peer_say(data + 1, bytes - 1);
    if (sl_store_open(uri, &config, &store, &key, &err) == 0 &&
        sl_source_open(store, key, 64, &source, &err) == 0) {
        size_t wanted = (size_t)SL_MIN(sl_source_bytes(source), (uint64_t)OBJECT_BYTES_MAX);
        char *object = malloc(wanted + 1);
        sl_source_read(source, 0, object, wanted, &err);
        free(object);
    }
    free(key);
    fuzz_peer_say(NULL, 0);
    return 0;
}
