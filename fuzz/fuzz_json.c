/*
 * JSON by tokens and as a tree. What the strict walk takes as a whole document, the tree takes too,
 * unless a key is there twice, a number does not fit or a string holds NUL; no token lies outside
 * the text.
 */
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "json.h"
#include "json_pull.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void walk(char *text, size_t bytes)
{
    struct sl_pull pull;
    uint64_t number;
    sl_pull_init(&pull, text, bytes);
    for (size_t tokens = 0;; tokens++) {
        enum sl_pull_token token = sl_pull_next(&pull);
        if (tokens > 2 * bytes + 2 || pull.at > bytes || pull.depth > SL_PULL_DEPTH_MAX)
            abort();
        if (token == SL_PULL_ERROR && !pull.why)
            abort();
        if (token == SL_PULL_ERROR || token == SL_PULL_DONE)
            return;
        if (token == SL_PULL_NUMBER)
            sl_pull_uint(&pull, &number);
        if ((token == SL_PULL_KEY || token == SL_PULL_STRING || token == SL_PULL_NUMBER) &&
            (pull.string < text || pull.string + pull.string_bytes > text + bytes))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    char *text = malloc(bytes + 1);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    json_t *tree = sl_json_parse(text, bytes, "fuzz", &err);
    sl_json_get_string(tree, "name");
    sl_json_get_uint(tree, "bytes", 0);
    json_decref(tree);
    if (sl_is_utf8(text, bytes))
        walk(text, bytes);
    free(text);
    return 0;
}
