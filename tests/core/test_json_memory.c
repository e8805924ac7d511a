/*
 * What JSON of strangers becomes in memory: every allocation of jansson is counted, for the shapes
 * that grow the most. What is right in earnest is as large as it ever was.
 */
#include <check.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "json.h"

enum { MIB = 1024 * 1024, TEXT_BYTES = 20 * MIB, ROUND_BYTES = 8 };

static size_t now_bytes, peak_bytes;

static void *count_malloc(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory)
        abort();
    now_bytes += malloc_usable_size(memory) + ROUND_BYTES;
    peak_bytes = SL_MAX(peak_bytes, now_bytes);
    return memory;
}

static void count_free(void *memory)
{
    if (memory)
        now_bytes -= malloc_usable_size(memory) + ROUND_BYTES;
    free(memory);
}

/* In a document that begins and ends so, as often as it takes; %d of an item is its number. */
static const struct shape {
    const char *name, *begin, *item, *end;
} shapes[] = {
    {"objects", "[", "{}", "]"},
    {"arrays", "[", "[]", "]"},
    {"numbers", "[", "0", "]"},
    {"reals", "[", "0.5", "]"},
    {"empty strings", "[", "\"\"", "]"},
    {"short strings", "[", "\"abc\"", "]"},
    {"strings of odd length", "[", "\"abcdefghijklmnopqrstuvwxy\"", "]"},
    {"words", "[", "null", "]"},
    {"objects of a member", "[", "{\"\":0}", "]"},
    {"objects of nine members", "[",
     "{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0}", "]"},
    {"arrays of nine", "[", "[0,0,0,0,0,0,0,0,0]", "]"},
    {"members", "{", "\"%d\":0", "}"},
    {"members of strings", "{", "\"%d\":\"\"", "}"},
    {"members of objects", "{", "\"%d\":{}", "}"},
    {"depth", "[", "[[[[[[[[{}]]]]]]]]", "]"},
    {"escapes", "[", "\"\\u0001\\\\\\\"\"", "]"},
};

static char *make(const struct shape *shape, size_t bytes, size_t *used)
{
    char *text = malloc(bytes + 256);
    ck_assert_ptr_nonnull(text);
    *used = (size_t)snprintf(text, bytes + 256, "%s", shape->begin);
    bool numbered = strstr(shape->item, "%d");
    size_t item = strlen(shape->item);
    for (unsigned i = 0; *used < bytes; i++) {
        if (i)
            text[(*used)++] = ',';
        if (numbered)
            *used += (size_t)snprintf(text + *used, bytes + 256 - *used, "\"%u\"%s", i,
                                      strchr(shape->item, ':'));
        else
            memcpy(text + *used, shape->item, item), *used += item;
    }
    *used += (size_t)snprintf(text + *used, bytes + 256 - *used, "%s", shape->end);
    return text;
}

static bool parses(const char *text, size_t bytes, struct sl_err *err)
{
    now_bytes = peak_bytes = 0;
    json_t *document = sl_json_parse(text, bytes, "text", err);
    json_decref(document);
    return document;
}

SL_TEST_LOOP(no_text_becomes_more_than_the_limit, 0, (int)SL_COUNT(shapes))
{
    bool taken = false, refused = false;
    for (size_t bytes = MIB / 8; !refused; bytes += bytes / 2) {
        struct sl_err err = SL_ERR_INIT;
        size_t used;
        char *text = make(&shapes[_i], bytes, &used);
        bool good = parses(text, used, &err);
        taken |= good;
        refused |= !good;
        ck_assert_uint_le(bytes, TEXT_BYTES);
        ck_assert_msg(peak_bytes <= SL_JSON_TREE_BYTES_MAX, "%s, %zu bytes became %zu",
                      shapes[_i].name, used, peak_bytes);
        if (!good)
            ck_assert_msg(strstr(err.message, " of memory, limit 40.0 MiB"), "%s", err.message);
        free(text);
    }
    ck_assert(taken && refused);
}

/* One string as long as the text, a broken one, one that never ends. */
SL_TEST(long_texts_cost_what_they_are)
{
    static const char ends[] = "\"x\\";
    for (size_t i = 0; i < sizeof(ends) - 1; i++) {
        struct sl_err err = SL_ERR_INIT;
        size_t bytes = 16 * MIB;
        char *text = malloc(bytes);
        ck_assert_ptr_nonnull(text);
        memset(text, 'a', bytes);
        memcpy(text, "[\"", 2);
        text[bytes - 2] = ends[i];
        text[bytes - 1] = ends[i] == '"' ? ']' : 'x';
        parses(text, bytes, &err);
        ck_assert_uint_le(peak_bytes, SL_JSON_TREE_BYTES_MAX);
        free(text);
    }
}

static void setup(void)
{
    json_set_alloc_funcs(count_malloc, count_free);
}

SL_CASE(.setup = setup, .seconds = 120)
