/* Sidecars: no text may do harm, and what is taken is written and read again as it was. */
#include <stdlib.h>
#include <string.h>

#include "sidecar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_sidecar *first = NULL, *second = NULL;
    struct sl_buf text = SL_BUF_INIT(SL_SIDECAR_TEXT_BYTES_MAX);
    char *copy = malloc(size + 1);
    memcpy(copy, data, size);
    if (sl_sidecar_parse(copy, size, &first, &err) == 0) {
        if (sl_sidecar_write(first, &text, &err) < 0 ||
            sl_sidecar_parse(text.data, text.used, &second, &err) < 0 ||
            first->bytes != second->bytes || first->range_count != second->range_count ||
            memcmp(first->tree, second->tree, 32) != 0)
            abort();
    }
    sl_buf_release(&text);
    sl_sidecar_free(second);
    sl_sidecar_free(first);
    free(copy);
    return 0;
}
