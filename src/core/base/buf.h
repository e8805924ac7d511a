/*
 * Bytes: spans that are borrowed, buffers that grow to a limit, little-endian numbers. Any thread,
 * a buffer by one at a time; nothing blocks but reading files.
 */
#ifndef SL_BUF_H
#define SL_BUF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "err.h"
#include "mem.h"

/** Borrowed memory. */
struct sl_span {
    uint8_t *data;
    size_t bytes;
};

/**
 * Bytes that grow up to a limit learned at the start. data[used] is always 0, so text can be read
 * from it.
 */
struct sl_buf {
    char *data; /* NULL until the first append */
    size_t used, capacity, limit;
};

/** limit counts bytes; going beyond it is SL_E_NO_SPACE. Release with sl_buf_release(). */
/* clang-format off */
#define SL_BUF_INIT(limit_bytes) {.limit = (limit_bytes)}
/* clang-format on */

/** Frees what it holds; zeroed ones are fine. */
void sl_buf_release(struct sl_buf *buf);
#define sl_autobuf __attribute__((cleanup(sl_buf_release))) struct sl_buf
/** The same, wiped before: for secrets. */
void sl_secret_buf_release(struct sl_buf *buf);
#define sl_autosecretbuf __attribute__((cleanup(sl_secret_buf_release))) struct sl_buf

/**
 * Append bytes.
 *
 * @data, bytes  copied; 0 bytes are fine.
 * @return       0, or -1 with SL_E_NO_SPACE: beyond the buffer's limit, or no memory.
 */
int sl_buf_append(struct sl_buf *buf, const void *data, size_t bytes, struct sl_err *err);
/** As sl_buf_append(), of a text without its NUL. */
int sl_buf_text(struct sl_buf *buf, const char *text, struct sl_err *err);
/**
 * Append text.
 *
 * @format  as of printf().
 * @return  0, or -1 with SL_E_NO_SPACE, as of sl_buf_append().
 */
int sl_buf_printf(struct sl_buf *buf, struct sl_err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** The text, "" if nothing was appended; borrowed until the next change. */
const char *sl_buf_string(const struct sl_buf *buf);
/** Take away blanks and line ends around it, as people and editors put them into files of one text.
 * What was behind the rest is overwritten. */
void sl_buf_trim(struct sl_buf *buf);
/** The text, handed over; free() it. NULL: SL_E_NO_SPACE. */
char *sl_buf_steal(struct sl_buf *buf, struct sl_err *err);

/**
 * Read a whole file of at most limit bytes (SL_E_USAGE if larger, SL_E_NOT_FOUND if absent) into
 * buf. Regular files, projected volumes and pipes alike; blocks as these do. SL_E_NO_SPACE.
 */
int sl_buf_read_file(struct sl_buf *buf, const char *path, struct sl_err *err);
/**
 * Append what a descriptor gives, to its end. Blocks.
 *
 * @fd      read from where it stands; the caller's.
 * @name    what it is, for messages.
 * @kind    of the error if reading fails, or if more than buf->limit bytes come.
 * @return  0, or -1.
 */
int sl_buf_read_fd(struct sl_buf *buf, int fd, const char *name, enum sl_err_kind kind,
                   struct sl_err *err);

static inline uint16_t sl_get_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t sl_get_le32(const uint8_t *p)
{
    return (uint32_t)sl_get_le16(p) | (uint32_t)sl_get_le16(p + 2) << 16;
}
static inline uint64_t sl_get_le64(const uint8_t *p)
{
    return (uint64_t)sl_get_le32(p) | (uint64_t)sl_get_le32(p + 4) << 32;
}
static inline void sl_put_le64(uint8_t *p, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

/** Lower-case hex of bytes into text, which holds 2 * bytes + 1. */
void sl_hex(const uint8_t *data, size_t bytes, char *text);
/** -1 if text is not exactly 2 * bytes hex digits. */
int sl_unhex(const char *text, uint8_t *data, size_t bytes);

/** "1.50 GiB", "612 bytes": for people; text holds 32. */
const char *sl_human_bytes(uint64_t bytes, char text[32]);
/** "1 file", "2 hashes": how many of a thing, whose noun has a regular plural of up to 16 bytes. */
const char *sl_human_count(uint64_t count, const char *noun, char text[40]);

/** 1 if the bytes are UTF-8 without overlong forms and surrogates (RFC 3629). */
int sl_is_utf8(const void *data, size_t bytes);

/** The digits at *text, which moves behind them. What does not fit is UINT64_MAX, beyond every
 * limit. False if there are none. */
bool sl_take_digits(const char **text, uint64_t *value);

#endif
