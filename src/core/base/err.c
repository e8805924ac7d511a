/* Errors are values: formatting into a fixed buffer, so that failing can never fail itself. */
#include "err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "unsafe_text.h"
#include "uri_text.h"

static const struct sl_err_row rows[] = {
    {"OK", 0, 200, 0, false, "success"},
#define SL_ERR(kind, exit_code, http, grpc, retry, meaning)                                        \
    {#kind, exit_code, http, grpc, retry, meaning},
#include "err.def"
#undef SL_ERR
};

const struct sl_err_row *sl_err_row(enum sl_err_kind kind)
{
    return &rows[(unsigned)kind < SL_ERR_KIND_COUNT ? kind : SL_E_INTERNAL];
}

int sl_err_exit(const struct sl_err *err)
{
    return sl_err_row(err->kind)->exit_code;
}

/* Characters that terminals obey, that turn a line around or end it, and that nobody sees, so that
 * one name looks like another. */
struct characters {
    uint32_t first, last;
};
static const struct characters unsafe[] = {
    {0x00, 0x1f},     {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},     {0x61c, 0x61c},
    {0x115f, 0x1160}, {0x17b4, 0x17b5},   {0x180e, 0x180e},   {0x200b, 0x200b},   {0x200e, 0x200f},
    {0x2028, 0x202e}, {0x2060, 0x206f},   {0x3164, 0x3164},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},
    {0xfff0, 0xfffb}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
};
/* Scripts whose letters U+200C keeps apart and U+200D joins, and emoji, which it joins. Between two
 * of these it changes what is seen, elsewhere nothing. */
static const struct characters joined[] = {
    {0x600, 0x109f},    {0x1780, 0x18af},   {0x1a20, 0x1b7f},   {0x20e3, 0x20e3}, {0x2190, 0x2bff},
    {0xa840, 0xa9df},   {0xaa60, 0xabff},   {0xfb50, 0xfdff},   {0xfe0f, 0xfe0f}, {0xfe70, 0xfefc},
    {0x10a00, 0x11fff}, {0x1e900, 0x1e95f}, {0x1f000, 0x1faff},
};

static bool is_among(const struct characters *table, size_t count, uint32_t point)
{
    for (size_t i = 0; i < count; i++)
        if (point >= table[i].first && point <= table[i].last)
            return true;
    return false;
}

/* The character that begins there; *bytes: how long it is. What is not UTF-8 is none. */
static uint32_t take_character(const unsigned char *text, size_t left, size_t *bytes)
{
    size_t length = *text < 0xc0 ? 1 : *text < 0xe0 ? 2 : *text < 0xf0 ? 3 : 4;
    uint32_t point = length == 1 ? *text : *text & (0x7f >> length);
    *bytes = 1;
    if (length == 1 || length > left)
        return *text < 0x80 ? point : UINT32_MAX;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return UINT32_MAX;
        point = point << 6 | (text[i] & 0x3f);
    }
    *bytes = length;
    return point;
}

static bool is_joined(uint32_t point)
{
    return is_among(joined, sizeof(joined) / sizeof(*joined), point);
}

/* Has what is there two neighbours that it joins, or keeps apart? */
static bool joins(const unsigned char *text, size_t at, size_t bytes, size_t length)
{
    size_t before = 1, end = at + length, own;
    while (before < 4 && before < at && (text[at - before] & 0xc0) == 0x80)
        before++;
    return before <= at && end < bytes &&
           is_joined(take_character(text + at - before, before, &own)) && own == before &&
           is_joined(take_character(text + end, bytes - end, &own));
}

size_t sl_unsafe_at(const char *string, size_t at, size_t bytes)
{
    const unsigned char *text = (const unsigned char *)string;
    size_t length;
    uint32_t point = take_character(text + at, bytes - at, &length);
    if (point == 0x200c || point == 0x200d)
        return joins(text, at, bytes, length) ? 0 : length;
    return is_among(unsafe, sizeof(unsafe) / sizeof(*unsafe), point) ? length : 0;
}

void sl_sanitize(char *text)
{
    size_t bytes = strlen(text);
    for (size_t at = 0, replaced; at < bytes; at += replaced ? replaced : 1) {
        replaced = sl_unsafe_at(text, at, bytes);
        memset(text + at, '?', replaced);
    }
}

void sl_sanitize_message(char *text, size_t size)
{
    sl_uri_hide(text, size); /* first: sanitizing changes characters of URIs */
    sl_sanitize(text);
}

static int fill(struct sl_err *err, enum sl_err_kind kind, const char *code, const char *format,
                va_list args)
{
    if (!err)
        return -1;
    memset(err, 0, offsetof(struct sl_err, message));
    err->kind = kind;
    err->retryable = sl_err_row(kind)->retry;
    snprintf(err->code, sizeof(err->code), "%s", code);
    vsnprintf(err->message, sizeof(err->message), format, args);
    sl_sanitize(err->code);
    sl_sanitize_message(err->message, sizeof(err->message));
    return -1;
}

int sl_fail(struct sl_err *err, enum sl_err_kind kind, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(err, kind, "", format, args);
    va_end(args);
    return -1;
}

int sl_fail_code(struct sl_err *err, enum sl_err_kind kind, const char *code, const char *format,
                 ...)
{
    va_list args;
    va_start(args, format);
    fill(err, kind, code, format, args);
    va_end(args);
    return -1;
}

int sl_fail_errno(struct sl_err *err, enum sl_err_kind kind, int errno_value, const char *format,
                  ...)
{
    va_list args;
    va_start(args, format);
    fill(err, kind, "", format, args);
    va_end(args);
    if (err) {
        char text[128];
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof(err->message) - used, ": %s%s",
                 strerror_r(errno_value, text, sizeof(text)),
                 errno_value == EMFILE ? ": raise the limit of open files (ulimit -n)" : "");
    }
    return -1;
}

bool sl_errno_is_short(int errno_value)
{
    return errno_value == EMFILE || errno_value == ENFILE || errno_value == ENOMEM;
}

int sl_wrap(struct sl_err *err, const char *format, ...)
{
    if (!err)
        return -1;
    char old[sizeof(err->message)];
    memcpy(old, err->message, sizeof(old));
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof(err->message) - 2, format, args);
    va_end(args);
    sl_sanitize_message(err->message, sizeof(err->message) - 2);
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof(err->message) - used, ": %s", old);
    return -1;
}
