/*
 * The error value: what failed, on what, why. It lives on the caller's stack and allocates nothing.
 * Any thread.
 */
#ifndef SL_ERR_H
#define SL_ERR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sl_err_kind {
    SL_OK = 0,
#define SL_ERR(kind, exit_code, http, grpc, retry, meaning) SL_E_##kind,
#include "err.def"
#undef SL_ERR
    SL_ERR_KIND_COUNT
};

/** One failure. Copy it to hand it to another thread. Zero-initialise with SL_ERR_INIT. */
struct sl_err {
    enum sl_err_kind kind;
    int http_status;         /* the server's answer, 0 if none */
    uint32_t retry_after_ms; /* asked for by the server, 0 if none */
    bool retryable;          /* set from the kind; whoever knows better sets it anew */
    char code[32]; /* the format's or the server's own code (E_DTYPE, st.json, NoSuchKey), or "" */
    char message[768]; /* one line, no full stop */
};

/* clang-format off */
#define SL_ERR_INIT {0}
/* clang-format on */

/** A row of err.def. */
struct sl_err_row {
    const char *name; /* NOT_FOUND */
    int exit_code, http_status, grpc_status;
    bool retry;
    const char *meaning;
};

/** The row of a kind; SL_OK has exit code 0. Never NULL. */
const struct sl_err_row *sl_err_row(enum sl_err_kind kind);

/**
 * Fill err and return -1.
 *
 * @err     NULL: nothing is recorded.
 * @kind    the row of err.def.
 * @format  as of printf(). Control characters in the message are replaced, so that text of a server
 *          or a file cannot forge log lines.
 */
int sl_fail(struct sl_err *err, enum sl_err_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/**
 * As sl_fail(), with a code.
 *
 * @code    of the format's own table, or the server's; copied.
 * @format  as of printf().
 * @return  -1.
 */
int sl_fail_code(struct sl_err *err, enum sl_err_kind kind, const char *code, const char *format,
                 ...) __attribute__((format(printf, 4, 5)));

/**
 * As sl_fail(), with ": " and the text of an errno at the end.
 *
 * @errno_value  EMFILE adds what to do about it.
 * @format       as of printf().
 * @return       -1.
 */
int sl_fail_errno(struct sl_err *err, enum sl_err_kind kind, int errno_value, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));

/** Is it that descriptors or memory are short? That says nothing of what was asked for. */
bool sl_errno_is_short(int errno_value);

/** Put "context: " in front of the message; always returns -1. */
int sl_wrap(struct sl_err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Replace, in place, every byte of characters that are not for people (unsafe_text.h) by '?': for
 * text of strangers on its way to people. What is not UTF-8 stays. */
void sl_sanitize(char *text);

/** The same of a whole message of at most `size` bytes with its NUL, and no URI in it keeps a
 * secret: uri_text.h. sl_fail(), sl_wrap() and sl_log() do so by themselves. */
void sl_sanitize_message(char *text, size_t size);

/** The process's exit code for err. */
int sl_err_exit(const struct sl_err *err);

#endif
