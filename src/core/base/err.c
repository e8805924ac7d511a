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

/* Bytes of a character that terminals obey or that turns a line around: C0, DEL, C1 (U+0080 to
 * U+009F), and the marks of direction U+202A to U+202E and U+2066 to U+2069. */
static size_t command_bytes(const unsigned char *text)
{
    if (text[0] < 0x20 || text[0] == 0x7f)
        return 1;
    if (text[0] == 0xc2 && text[1] >= 0x80 && text[1] < 0xa0)
        return 2;
    if (text[0] != 0xe2)
        return 0;
    bool marks = text[1] == 0x80 && text[2] >= 0xaa && text[2] <= 0xae;
    bool isolates = text[1] == 0x81 && text[2] >= 0xa6 && text[2] <= 0xa9;
    return marks || isolates ? 3 : 0;
}

void sl_sanitize(char *text)
{
    for (size_t bytes; *text; text += bytes ? bytes : 1)
        if ((bytes = command_bytes((const unsigned char *)text)))
            memset(text, '?', bytes);
}

void sl_sanitize_message(char *text, size_t size)
{
    sl_uri_hide(text, size); /* while a control character is no other one */
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
