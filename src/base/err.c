/* Errors are values: formatting into a fixed buffer, so that failing can never fail itself. */
#include "err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

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

static void tame(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
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
    tame(err->code);
    tame(err->message);
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
    tame(err->message);
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof(err->message) - used, ": %s", old);
    return -1;
}
