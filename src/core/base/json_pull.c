/*
 * A state machine over the text. What may come next is one small number, what encloses it is a bit
 * per level, so depth costs nothing and is limited by name. Strings are decoded where they stand:
 * the decoded form is never longer than the escaped one, and the closing quote leaves room for a
 * NUL.
 */
#include "json_pull.h"

#include <string.h>

enum {
    EXPECT_VALUE,
    EXPECT_FIRST_KEY,  /* or } */
    EXPECT_FIRST_ITEM, /* or ] */
    EXPECT_COMMA,      /* or the closing bracket */
    EXPECT_END,
    EXPECT_NOTHING, /* after an error or the end */
};

void sl_pull_init(struct sl_pull *pull, char *text, size_t bytes)
{
    *pull = (struct sl_pull){.text = text, .bytes = bytes, .expect = EXPECT_VALUE};
}

/* Make it an error that why is, as if the text were broken here. Returns SL_PULL_ERROR. */
static enum sl_pull_token fail_at(struct sl_pull *pull, const char *why)
{
    if (!pull->why)
        pull->why = why;
    pull->expect = EXPECT_NOTHING;
    return SL_PULL_ERROR;
}

static int peek(const struct sl_pull *pull)
{
    return pull->at < pull->bytes ? (unsigned char)pull->text[pull->at] : -1;
}

static void skip_space(struct sl_pull *pull)
{
    int c;
    while ((c = peek(pull)) == ' ' || c == '\t' || c == '\n' || c == '\r')
        pull->at++;
}

/* ---- strings --------------------------------------------------------------------------------- */

static int hex_digit(int c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Four hex digits, or -1. */
static int take_hex4(struct sl_pull *pull)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(peek(pull));
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
        pull->at++;
    }
    return value;
}

static char *put_utf8(char *to, unsigned long point)
{
    if (point < 0x80) {
        *to++ = (char)point;
    } else if (point < 0x800) {
        *to++ = (char)(0xc0 | point >> 6);
        *to++ = (char)(0x80 | (point & 0x3f));
    } else if (point < 0x10000) {
        *to++ = (char)(0xe0 | point >> 12);
        *to++ = (char)(0x80 | (point >> 6 & 0x3f));
        *to++ = (char)(0x80 | (point & 0x3f));
    } else {
        *to++ = (char)(0xf0 | point >> 18);
        *to++ = (char)(0x80 | (point >> 12 & 0x3f));
        *to++ = (char)(0x80 | (point >> 6 & 0x3f));
        *to++ = (char)(0x80 | (point & 0x3f));
    }
    return to;
}

/* What follows "\u": one unit, or a pair of surrogates. */
static char *take_unicode(struct sl_pull *pull, char *to)
{
    int unit = take_hex4(pull);
    if (unit < 0) {
        fail_at(pull, "\\u without four hex digits");
        return NULL;
    }
    if (unit < 0xd800 || unit > 0xdfff)
        return put_utf8(to, (unsigned long)unit);
    int low = -1;
    if (unit < 0xdc00 && pull->bytes - pull->at >= 6 && pull->text[pull->at] == '\\' &&
        pull->text[pull->at + 1] == 'u') {
        pull->at += 2;
        low = take_hex4(pull);
    }
    if (low < 0xdc00 || low > 0xdfff) {
        fail_at(pull, "half a surrogate pair");
        return NULL;
    }
    return put_utf8(to, 0x10000ul + ((unsigned long)(unit - 0xd800) << 10) +
                            (unsigned long)(low - 0xdc00));
}

static char *take_escape(struct sl_pull *pull, char *to)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    int c = peek(pull);
    if (c < 0) {
        fail_at(pull, "a string without end");
        return NULL;
    }
    pull->at++;
    if (c == 'u')
        return take_unicode(pull, to);
    const char *name = c ? strchr(names, c) : NULL;
    if (!name) {
        fail_at(pull, "an escape that JSON does not have");
        return NULL;
    }
    *to++ = values[name - names];
    return to;
}

/* The opening quote is taken. */
static enum sl_pull_token take_string(struct sl_pull *pull, enum sl_pull_token token)
{
    char *begin = pull->text + pull->at, *to = begin;
    for (;;) {
        int c = peek(pull);
        if (c < 0)
            return fail_at(pull, "a string without end");
        if (c < 0x20)
            return fail_at(pull, "a control character in a string");
        pull->at++;
        if (c == '"')
            break;
        if (c != '\\')
            *to++ = (char)c;
        else if (!(to = take_escape(pull, to)))
            return SL_PULL_ERROR;
    }
    *to = 0;
    pull->string = begin;
    pull->string_bytes = (size_t)(to - begin);
    return token;
}

/* ---- numbers and words ----------------------------------------------------------------------- */

static bool take_digits(struct sl_pull *pull)
{
    size_t begin = pull->at;
    while (peek(pull) >= '0' && peek(pull) <= '9')
        pull->at++;
    return pull->at > begin;
}

static enum sl_pull_token take_number(struct sl_pull *pull)
{
    size_t begin = pull->at;
    if (peek(pull) == '-')
        pull->at++;
    bool zero = peek(pull) == '0';
    if (!take_digits(pull))
        return fail_at(pull, "a number without digits");
    size_t first = begin + (pull->text[begin] == '-');
    if (zero && pull->at - first > 1)
        return fail_at(pull, "a number with leading zeros");
    if (peek(pull) == '.') {
        pull->at++;
        if (!take_digits(pull))
            return fail_at(pull, "a fraction without digits");
    }
    if (peek(pull) == 'e' || peek(pull) == 'E') {
        pull->at++;
        if (peek(pull) == '+' || peek(pull) == '-')
            pull->at++;
        if (!take_digits(pull))
            return fail_at(pull, "an exponent without digits");
    }
    pull->string = pull->text + begin;
    pull->string_bytes = pull->at - begin;
    return SL_PULL_NUMBER;
}

static enum sl_pull_token take_word(struct sl_pull *pull)
{
    static const struct {
        const char *text;
        enum sl_pull_token token;
    } words[] = {{"true", SL_PULL_TRUE}, {"false", SL_PULL_FALSE}, {"null", SL_PULL_NULL}};
    for (unsigned i = 0; i < 3; i++) {
        size_t bytes = strlen(words[i].text);
        if (pull->bytes - pull->at >= bytes &&
            memcmp(pull->text + pull->at, words[i].text, bytes) == 0) {
            pull->at += bytes;
            return words[i].token;
        }
    }
    return fail_at(pull, pull->at < pull->bytes ? "not a value" : "the text ends too early");
}

bool sl_pull_uint(const struct sl_pull *pull, uint64_t *value)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < pull->string_bytes; i++) {
        int c = (unsigned char)pull->string[i];
        if (c < '0' || c > '9' || __builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(c - '0'), &sum))
            return false;
    }
    *value = sum;
    return pull->string_bytes > 0;
}

/* ---- structure ------------------------------------------------------------------------------- */

static bool in_object(const struct sl_pull *pull)
{
    return pull->objects >> (pull->depth - 1) & 1;
}

static enum sl_pull_token open_level(struct sl_pull *pull, bool object)
{
    if (pull->depth == SL_PULL_DEPTH_MAX)
        return fail_at(pull, "nested deeper than 64 levels");
    pull->at++;
    uint64_t bit = 1ull << pull->depth++;
    pull->objects = object ? pull->objects | bit : pull->objects & ~bit;
    pull->expect = object ? EXPECT_FIRST_KEY : EXPECT_FIRST_ITEM;
    return object ? SL_PULL_OBJECT : SL_PULL_ARRAY;
}

static enum sl_pull_token close_level(struct sl_pull *pull)
{
    pull->at++;
    pull->depth--;
    pull->expect = pull->depth ? EXPECT_COMMA : EXPECT_END;
    return SL_PULL_CLOSE;
}

static enum sl_pull_token take_value(struct sl_pull *pull)
{
    int c = peek(pull);
    if (c == '{' || c == '[')
        return open_level(pull, c == '{');
    pull->expect = pull->depth ? EXPECT_COMMA : EXPECT_END;
    if (c == '"') {
        pull->at++;
        return take_string(pull, SL_PULL_STRING);
    }
    return c == '-' || (c >= '0' && c <= '9') ? take_number(pull) : take_word(pull);
}

static enum sl_pull_token take_key(struct sl_pull *pull)
{
    if (peek(pull) != '"')
        return fail_at(pull, "a member without a name in double quotes");
    pull->at++;
    if (take_string(pull, SL_PULL_KEY) == SL_PULL_ERROR)
        return SL_PULL_ERROR;
    skip_space(pull);
    if (peek(pull) != ':')
        return fail_at(pull, "no colon after a member's name");
    pull->at++;
    pull->expect = EXPECT_VALUE;
    return SL_PULL_KEY;
}

static enum sl_pull_token after_item(struct sl_pull *pull)
{
    bool object = in_object(pull);
    int c = peek(pull);
    if (c == (object ? '}' : ']'))
        return close_level(pull);
    if (c != ',')
        return fail_at(pull, c < 0 ? "the text ends too early"
                                   : "neither a comma nor a closing bracket after a value");
    pull->at++;
    skip_space(pull);
    return object ? take_key(pull) : take_value(pull);
}

enum sl_pull_token sl_pull_next(struct sl_pull *pull)
{
    if (pull->expect == EXPECT_NOTHING)
        return pull->why ? SL_PULL_ERROR : SL_PULL_DONE;
    skip_space(pull);
    switch (pull->expect) {
    case EXPECT_VALUE:
        return take_value(pull);
    case EXPECT_FIRST_KEY:
        return peek(pull) == '}' ? close_level(pull) : take_key(pull);
    case EXPECT_FIRST_ITEM:
        return peek(pull) == ']' ? close_level(pull) : take_value(pull);
    case EXPECT_COMMA:
        return after_item(pull);
    default:
        if (pull->at < pull->bytes)
            return fail_at(pull, "something follows the document");
        pull->expect = EXPECT_NOTHING;
        return SL_PULL_DONE;
    }
}

bool sl_pull_skip(struct sl_pull *pull, enum sl_pull_token token, uint64_t *items)
{
    bool opens = token == SL_PULL_OBJECT || token == SL_PULL_ARRAY;
    unsigned outside = pull->depth - opens;
    for (uint64_t count = 0;; count += pull->depth == outside + 1 && token != SL_PULL_KEY) {
        if (items)
            *items = count;
        if (token == SL_PULL_ERROR || token == SL_PULL_DONE)
            return false;
        if (pull->depth == outside)
            return true;
        do
            token = sl_pull_next(pull);
        while (pull->depth > outside + 1 && token != SL_PULL_ERROR);
    }
}
