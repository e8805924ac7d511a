/* The writer keeps a stack of closers and whether a comma is due; nothing else is needed. */
#include "json.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#include "uri_text.h"

void sl_json_init(struct sl_json *json, size_t limit_bytes)
{
    memset(json, 0, sizeof(*json));
    json->buf.limit = limit_bytes;
}

void sl_json_release(struct sl_json *json)
{
    sl_buf_release(&json->buf);
}

static void put(struct sl_json *json, const char *text, size_t bytes)
{
    if (!json->err.kind)
        sl_buf_append(&json->buf, text, bytes, &json->err);
}

static void separate(struct sl_json *json)
{
    if (json->comma)
        put(json, ",", 1);
    json->comma = true;
}

static void open_level(struct sl_json *json, const char *opener, uint8_t closer)
{
    separate(json);
    assert(json->depth < sizeof(json->closer));
    json->closer[json->depth++] = closer;
    put(json, opener, 1);
    json->comma = false;
}

void sl_json_object(struct sl_json *json)
{
    open_level(json, "{", '}');
}

void sl_json_array(struct sl_json *json)
{
    open_level(json, "[", ']');
}

void sl_json_end(struct sl_json *json)
{
    assert(json->depth > 0);
    char closer = (char)json->closer[--json->depth];
    put(json, &closer, 1);
    json->comma = true;
}

static void put_escaped(struct sl_json *json, unsigned char c)
{
    char text[8];
    if (c == '"' || c == '\\')
        snprintf(text, sizeof(text), "\\%c", c);
    else
        snprintf(text, sizeof(text), "\\u%04x", c);
    put(json, text, strlen(text));
}

static size_t valid_run(const char *text, size_t bytes)
{
    unsigned char c = (unsigned char)*text;
    size_t length = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    return length <= bytes && sl_is_utf8(text, length) ? length : 0;
}

void sl_json_string_n(struct sl_json *json, const char *text, size_t bytes)
{
    separate(json);
    put(json, "\"", 1);
    for (size_t i = 0; i < bytes;) {
        unsigned char c = (unsigned char)text[i];
        size_t run = valid_run(text + i, bytes - i);
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f)
            put_escaped(json, c);
        else if (run)
            put(json, text + i, run);
        else
            put(json, "\xef\xbf\xbd", 3);
        i += run ? run : 1;
    }
    put(json, "\"", 1);
}

void sl_json_string(struct sl_json *json, const char *text)
{
    sl_json_string_n(json, text, strlen(text));
}

void sl_json_key_n(struct sl_json *json, const char *key, size_t bytes)
{
    sl_json_string_n(json, key, bytes);
    put(json, ":", 1);
    json->comma = false;
}

void sl_json_key(struct sl_json *json, const char *key)
{
    sl_json_key_n(json, key, strlen(key));
}

/* A value that is JSON already. */
static void put_raw(struct sl_json *json, const char *text)
{
    separate(json);
    put(json, text, strlen(text));
}

void sl_json_uint(struct sl_json *json, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    put_raw(json, text);
}

void sl_json_int(struct sl_json *json, int64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRId64, value);
    put_raw(json, text);
}

void sl_json_double(struct sl_json *json, double value)
{
    char text[40];
    snprintf(text, sizeof(text), "%.6g", value);
    put_raw(json, isfinite(value) ? text : "null");
}

void sl_json_bool(struct sl_json *json, bool value)
{
    put_raw(json, value ? "true" : "false");
}

void sl_json_null(struct sl_json *json)
{
    put_raw(json, "null");
}

void sl_json_key_string(struct sl_json *json, const char *key, const char *text)
{
    sl_json_key(json, key);
    if (text)
        sl_json_string(json, text);
    else
        sl_json_null(json);
}

void sl_json_key_uri(struct sl_json *json, const char *key, const char *uri)
{
    sl_autofree char *shown = json->err.kind ? NULL : sl_uri_sanitize(uri, &json->err);
    sl_json_key_string(json, key, shown ? shown : "");
}

void sl_json_key_uint(struct sl_json *json, const char *key, uint64_t value)
{
    sl_json_key(json, key);
    sl_json_uint(json, value);
}

void sl_json_key_double(struct sl_json *json, const char *key, double value)
{
    sl_json_key(json, key);
    sl_json_double(json, value);
}

void sl_json_key_bool(struct sl_json *json, const char *key, bool value)
{
    sl_json_key(json, key);
    sl_json_bool(json, value);
}

const char *sl_json_text(struct sl_json *json, struct sl_err *err)
{
    assert(json->depth == 0);
    if (json->err.kind) {
        if (err)
            *err = json->err;
        return NULL;
    }
    return sl_buf_string(&json->buf);
}

const char *sl_json_time(char text[SL_TIME_TEXT])
{
    struct timeval now;
    struct tm parts;
    gettimeofday(&now, NULL);
    gmtime_r(&now.tv_sec, &parts);
    size_t used = strftime(text, SL_TIME_TEXT, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(text + used, SL_TIME_TEXT - used, ".%03dZ", (int)(now.tv_usec / 1000) % 1000);
    return text;
}

/*
 * What jansson makes of a text, at most, before it makes anything: its structs as malloc() rounds
 * them, tables while they grow, and what its scanner keeps. Where the text is broken the sum is of
 * no use, and of no harm.
 */
enum {
    OBJECT_BYTES = 240,
    ARRAY_BYTES = 144,
    KEY_BYTES = 160,
    STRING_BYTES = 88,
    NUMBER_BYTES = 32
};
enum { PLACE_BYTES = 24 }; /* of a value in an array */

/* Behind the closing quote. */
static size_t end_of_string(const char *text, size_t bytes, size_t at)
{
    while (at < bytes && text[at] != '"')
        at += text[at] == '\\' ? 2 : 1;
    return at < bytes ? at + 1 : bytes;
}

static bool is_key(const char *text, size_t bytes, size_t at)
{
    while (at < bytes && strchr(" \t\n\r", text[at]) && text[at])
        at++;
    return at < bytes && text[at] == ':';
}

static uint64_t tree_bytes(const char *text, size_t bytes)
{
    uint64_t sum = 0;
    size_t longest = 0;
    for (size_t at = 0; at < bytes;) {
        size_t begin = at++;
        if (text[begin] == '"') {
            at = end_of_string(text, bytes, at);
            longest = SL_MAX(longest, at - begin);
            sum += at - begin + (is_key(text, bytes, at) ? KEY_BYTES : STRING_BYTES);
        } else if (text[begin] == '-' || isdigit((unsigned char)text[begin])) {
            while (at < bytes && strchr("+-.eE0123456789", text[at]) && text[at])
                at++;
            longest = SL_MAX(longest, at - begin);
            sum += NUMBER_BYTES;
        } else {
            sum += text[begin] == '{'   ? OBJECT_BYTES
                   : text[begin] == '[' ? ARRAY_BYTES
                   : text[begin] == ',' ? PLACE_BYTES
                                        : 0;
        }
    }
    return sum + 4 * longest;
}

json_t *sl_json_parse(const char *text, size_t bytes, const char *what, struct sl_err *err)
{
    json_error_t why;
    char becomes[32], limit[32];
    uint64_t tree = tree_bytes(text, bytes);
    if (tree > SL_JSON_TREE_BYTES_MAX) {
        sl_fail(err, SL_E_FORMAT, "%s: its JSON would take %s of memory, limit %s", what,
                sl_human_bytes(tree, becomes), sl_human_bytes(SL_JSON_TREE_BYTES_MAX, limit));
        return NULL;
    }
    json_t *document = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!document && json_error_code(&why) == json_error_out_of_memory)
        sl_fail(err, SL_E_NO_SPACE, "%s: no memory is left to read it", what);
    else if (!document)
        sl_fail(err, SL_E_FORMAT, "%s: line %d: %s", what, why.line, why.text);
    return document;
}

const char *sl_json_get_string(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

uint64_t sl_json_get_uint(const json_t *object, const char *key, uint64_t otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) && json_integer_value(value) >= 0
               ? (uint64_t)json_integer_value(value)
               : otherwise;
}
