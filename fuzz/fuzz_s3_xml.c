/* What a store answers: a listing page, an error, an answer of STS. */
#include <stdlib.h>
#include <string.h>

#include "s3_error.h"
#include "s3_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int each(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)arg;
    (void)err;
    if (!*entry->name || strlen(entry->name) > SL_S3_KEY_BYTES_MAX)
        abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_s3_fault fault;
    struct sl_s3_next next;
    uint64_t entries = 0;
    const char *text = (const char *)data;
    sl_s3_page_parse(text, bytes, "s3://b/p/", "p/", each, NULL, &next, &entries, &err);
    free(next.text);
    sl_s3_page_parse(text, bytes, "s3://b/", "", each, NULL, &next, &entries, &err);
    free(next.text);
    sl_s3_fault_parse(text, bytes, &fault);
    return 0;
}
