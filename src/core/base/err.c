/* Errors are values: formatting into a fixed buffer, so that failing can never fail itself. */
#include "err.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

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
static const struct {
    uint32_t first, last;
} unsafe[] = {
    {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},       {0x61c, 0x61c},
    {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e},   {0x2060, 0x206f},
    {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f},
};

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

size_t sl_unsafe_bytes(const char *text, size_t bytes)
{
    size_t length;
    uint32_t point = take_character((const unsigned char *)text, bytes, &length);
    for (size_t i = 0; i < sizeof(unsafe) / sizeof(*unsafe); i++)
        if (point >= unsafe[i].first && point <= unsafe[i].last)
            return length;
    return 0;
}

void sl_sanitize(char *text)
{
    size_t left = strlen(text);
    for (size_t bytes; left; text += bytes, left -= bytes) {
        bytes = sl_unsafe_bytes(text, left);
        memset(text, '?', bytes);
        bytes = bytes ? bytes : 1;
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
        snprintf(err->message + used, sizeof(err->message) - used, ": %s",
                 strerror_r(errno_value, text, sizeof(text)));
    }
    return -1;
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
