/*
 * JSON: writing into a limited buffer, and reading small documents (manifests, credentials) through
 * jansson with limits. Tensor headers, which may hold a million members, have their own reader. RFC
 * 8259; any thread, nothing blocks.
 */
#ifndef SL_JSON_H
#define SL_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf.h"
#include "err.h"

/* ---- writing -------------------------------------------------------------------------------- */

/**
 * A document being written. Calls nest: object or array, members, end. Errors stick: the first one
 * is kept in `err` and later calls do nothing, so check sl_json_text() once, at the end. Not for
 * several threads.
 */
struct sl_json {
    struct sl_buf buf;
    struct sl_err err;
    uint8_t closer[64]; /* '}' or ']' of each open level */
    unsigned depth;
    bool comma;
};

/** Nothing is allocated yet; release it. */
void sl_json_init(struct sl_json *json, size_t limit_bytes);
void sl_json_release(struct sl_json *json);
void sl_json_object(struct sl_json *json);
void sl_json_array(struct sl_json *json);
void sl_json_end(struct sl_json *json);
/** "key": to be followed by one value. */
void sl_json_key(struct sl_json *json, const char *key);
void sl_json_key_n(struct sl_json *json, const char *key, size_t bytes);
/** Bytes that are not UTF-8 become U+FFFD. */
void sl_json_string(struct sl_json *json, const char *text);
void sl_json_string_n(struct sl_json *json, const char *text, size_t bytes);
void sl_json_uint(struct sl_json *json, uint64_t value);
void sl_json_int(struct sl_json *json, int64_t value);
/** Six significant digits; not-a-number becomes null. */
void sl_json_double(struct sl_json *json, double value);
void sl_json_bool(struct sl_json *json, bool value);
void sl_json_null(struct sl_json *json);

void sl_json_key_string(struct sl_json *json, const char *key, const char *text);
/** A URI for people, without its secrets: uri_text.h. */
void sl_json_key_uri(struct sl_json *json, const char *key, const char *uri);
void sl_json_key_uint(struct sl_json *json, const char *key, uint64_t value);
void sl_json_key_double(struct sl_json *json, const char *key, double value);
void sl_json_key_bool(struct sl_json *json, const char *key, bool value);

/** The document, borrowed, or NULL with the first error (SL_E_NO_SPACE). Every level must be
 * closed. */
const char *sl_json_text(struct sl_json *json, struct sl_err *err);

#define SL_TIME_TEXT 32
/** The time now as 2026-11-21T04:31:02.123Z; returns text. */
const char *sl_json_time(char text[SL_TIME_TEXT]);

/* ---- reading -------------------------------------------------------------------------------- */

/** Most memory of a parsed document, beside its text. */
enum { SL_JSON_TREE_BYTES_MAX = 40 * 1024 * 1024 };
/**
 * Parse a document that anybody may have written.
 *
 * @text    `bytes` bytes; a NUL at the end is not needed.
 * @what    names it in messages.
 * @return  json_decref() it. NULL: SL_E_FORMAT for what is no JSON, has a key twice, or would take
 * more
 *          than SL_JSON_TREE_BYTES_MAX (which is known before it takes any).
 */
json_t *sl_json_parse(const char *text, size_t bytes, const char *what, struct sl_err *err);
/** The string member, borrowed from the object, or NULL. */
const char *sl_json_get_string(const json_t *object, const char *key);
/** The non-negative integer member, or otherwise. */
uint64_t sl_json_get_uint(const json_t *object, const char *key, uint64_t otherwise);

#endif
