/*
 * JSON by tokens and as a tree. What the strict walk takes as a whole document, the tree takes too,
 * unless a key is there twice, a number does not fit or a string holds NUL; no token lies outside
 * the text. However often a short text stands in an array, what becomes of it stays within the
 * limit of a tree.
 */
#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "json.h"
#include "json_pull.h"

enum { SHORT_BYTES = 64, MANY_BYTES = 2 * 1024 * 1024, ROUND_BYTES = 8 };

static size_t now_bytes;

static void *count_malloc(size_t bytes)
{
    void *memory = malloc(bytes);
    now_bytes += memory ? malloc_usable_size(memory) + ROUND_BYTES : 0;
    if (now_bytes > SL_JSON_TREE_BYTES_MAX)
        abort();
    return memory;
}

static void count_free(void *memory)
{
    now_bytes -= memory ? malloc_usable_size(memory) + ROUND_BYTES : 0;
    free(memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void repeat(const uint8_t *data, size_t bytes)
{
    char *text = malloc(MANY_BYTES + SHORT_BYTES + 2);
    size_t used = 0;
    text[used++] = '[';
    while (used + bytes < MANY_BYTES) {
        memcpy(text + used, data, bytes);
        used += bytes;
        text[used++] = ',';
    }
    text[used - 1] = ']';
    json_decref(sl_json_parse(text, used, "fuzz", NULL));
    free(text);
}

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
    json_set_alloc_funcs(count_malloc, count_free);
    json_t *tree = sl_json_parse(text, bytes, "fuzz", &err);
    if (bytes && bytes <= SHORT_BYTES && json_is_array(tree))
        repeat(data, bytes);
    sl_json_get_string(tree, "name");
    sl_json_get_uint(tree, "bytes", 0);
    json_decref(tree);
    if (sl_is_utf8(text, bytes))
        walk(text, bytes);
    free(text);
    return 0;
}
