/*
 * JSON read token by token, for headers of tensor files: strict RFC 8259, no recursion, no
 * allocation.
 *
 * The text is decoded in place: a string token points into it and stays valid as long as the text.
 * The caller has checked that the text is UTF-8 (sl_is_utf8). One thread at a time.
 */
#ifndef SL_JSON_PULL_H
#define SL_JSON_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sl_pull_token {
    SL_PULL_ERROR, /* sl_pull.why and .at say what and where; sticks */
    SL_PULL_OBJECT,
    SL_PULL_ARRAY,
    SL_PULL_CLOSE, /* of the innermost object or array */
    SL_PULL_KEY,   /* string; its value follows */
    SL_PULL_STRING,
    SL_PULL_NUMBER, /* string is its text */
    SL_PULL_TRUE,
    SL_PULL_FALSE,
    SL_PULL_NULL,
    SL_PULL_DONE, /* the document is complete and only white space followed */
};

enum { SL_PULL_DEPTH_MAX = 64 };

struct sl_pull {
    char *text;
    size_t bytes, at;
    const char
        *string; /* KEY, STRING: NUL-terminated (it may hold NULs too). NUMBER: not terminated */
    size_t string_bytes;
    const char *why;  /* of an error */
    uint64_t objects; /* bit n: level n is an object */
    unsigned depth;
    uint8_t expect;
};

/** The text is borrowed and changed; text[bytes] need not exist. */
void sl_pull_init(struct sl_pull *pull, char *text, size_t bytes);
/** The next token. */
enum sl_pull_token sl_pull_next(struct sl_pull *pull);
/**
 * Pass over a value whose first token came; *items (may be NULL): how many there are in an array.
 * false: the text is broken.
 */
bool sl_pull_skip(struct sl_pull *pull, enum sl_pull_token token, uint64_t *items);
/** The number just read as an integer 0 ... 2^64-1 written without sign, fraction and exponent. */
bool sl_pull_uint(const struct sl_pull *pull, uint64_t *value);

#endif
