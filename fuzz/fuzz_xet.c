/* What Xet answers: what a range is made of, a token, and chunks, the first byte says which. */
#include <stdlib.h>
#include <string.h>

#include "xet.h"
#include "xet_chunk.h"
#include "xet_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void parse_plan(const char *text, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_xet_plan plan;
    uint64_t total = 0;
    if (sl_xet_plan_parse(text, bytes, 5, &plan, &err) == 0) {
        for (uint32_t i = 0; i < plan.term_count; i++) {
            const struct sl_xet_term *term = &plan.terms[i];
            const struct sl_xet_entry *entry = &plan.entries[term->entry];
            if (term->entry >= plan.entry_count || entry->first_chunk > term->first_chunk ||
                entry->end_chunk < term->end_chunk || entry->begin >= entry->end || !entry->uses)
                abort();
            total += term->bytes;
        }
        if (plan.skip >= total || total - plan.skip < 5)
            abort();
    }
    sl_xet_plan_release(&plan);
}

static void parse_token(const char *text, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    int64_t expires = 0;
    char *access = NULL;
    if (sl_xet_access_parse(text, bytes, &access, &expires, &err) == 0 && !strchr(access, ' '))
        abort();
    sl_secret_free(access);
}

static void decode(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_xet_decoder *decoder = sl_xet_decoder_new(&err);
    struct sl_xet_chunk chunk;
    while (decoder && bytes >= SL_XET_HEAD_BYTES && sl_xet_chunk_head(data, &chunk, &err) == 0 &&
           chunk.packed_bytes <= bytes - SL_XET_HEAD_BYTES) {
        uint8_t *raw = malloc(chunk.raw_bytes);
        sl_xet_decode(decoder, &chunk, data + SL_XET_HEAD_BYTES, raw, &err);
        free(raw);
        data += SL_XET_HEAD_BYTES + chunk.packed_bytes;
        bytes -= SL_XET_HEAD_BYTES + chunk.packed_bytes;
    }
    sl_xet_decoder_free(decoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!bytes)
        return 0;
    char *text = malloc(bytes);
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = 0;
    if (data[0] == 'p')
        parse_plan(text, bytes - 1);
    else if (data[0] == 't')
        parse_token(text, bytes - 1);
    else
        decode(data + 1, bytes - 1);
    free(text);
    return 0;
}
