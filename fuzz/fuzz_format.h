/* What the fuzzers of tensor formats share: index the bytes, open them with the key of the golden
 * files if they are encrypted, digest what is small, slice it. */
#ifndef SL_FUZZ_FORMAT_H
#define SL_FUZZ_FORMAT_H

#include <stdlib.h>

#include "index.h"
#include "log.h"
#include "memory_store.h"
#include "stores.h"

enum { FUZZ_DIGEST_BYTES_MAX = 1 << 20 };

static void fuzz_digest(struct sl_index *index)
{
    uint8_t digest[32];
    uint64_t bytes = 0;
    for (size_t i = 0; i < index->tensor_count; i++) {
        const struct sl_tensor *tensor = &index->tensors[i];
        bytes += tensor->bytes;
        if (tensor->bytes > FUZZ_DIGEST_BYTES_MAX || bytes > FUZZ_DIGEST_BYTES_MAX)
            return; /* meta tensors stand for as many zeros as they like */
        sl_tensor_digest(index, tensor, true, digest, NULL);
        struct sl_slice slice;
        if (tensor->rank <= SL_SLICE_RANK_MAX && sl_slice_parse("x[:]", tensor, &slice, NULL) == 0)
            sl_slice_digest(index, tensor, &slice, digest, NULL);
    }
}

/* With an exact key: whatever a file asks of a derivation, none is made. */
static struct sl_keys *fuzz_unlock(struct sl_index *index)
{
    uint8_t key[SL_KEY_BYTES];
    for (unsigned i = 0; i < sizeof(key); i++)
        key[i] = (uint8_t)(3 + 7 * i);
    struct sl_keys *keys = index->encrypted ? sl_keys_from_key(key, NULL) : NULL;
    sl_index_unlock(index, keys, NULL);
    return keys;
}

/* Once more as a load of whole files looks at them. */
static void fuzz_files(struct sl_store *store, const char *key)
{
    SL_AUTO(sl_index) index = NULL;
    struct sl_source *source = NULL;
    struct sl_err err = SL_ERR_INIT;
    sl_log_setup(SL_LOG_ERROR, false);
    if (sl_source_open(store, key, SL_INDEX_HEAD_BYTES, &source, &err) == 0)
        (void)sl_format_index_files(source, key, &index, &err);
}

/* Index the bytes as an object of this name. */
static void fuzz_index(const char *uri, const char *name, const uint8_t *data, size_t bytes)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_index) index = NULL;
    struct sl_source *source = NULL;
    struct sl_err err = SL_ERR_INIT;
    char *key = NULL;
    if (sl_memory_put(name, data, bytes, &err) == 0 &&
        sl_store_open(uri, NULL, &store, &key, &err) == 0 &&
        sl_source_open(store, key, SL_INDEX_HEAD_BYTES, &source, &err) == 0 &&
        sl_format_index_strict(source, key, &index, &err) == 0) {
        SL_AUTO(sl_keys) keys = fuzz_unlock(index);
        fuzz_digest(index);
    }
    if (store)
        fuzz_files(store, key);
    free(key);
}

#endif
