/* A buffer learns its limit when it is made; growing doubles, so appends are linear in the end. */
#include "buf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 16384 };

void sl_buf_release(struct sl_buf *buf)
{
    free(buf->data);
    buf->data = NULL;
    buf->used = buf->capacity = 0;
}

void sl_secret_buf_release(struct sl_buf *buf)
{
    if (buf->data)
        explicit_bzero(buf->data, buf->capacity);
    sl_buf_release(buf);
}

static int room(struct sl_buf *buf, size_t bytes, struct sl_err *err)
{
    if (bytes > buf->limit || buf->used > buf->limit - bytes)
        return sl_fail(err, SL_E_NO_SPACE, "more than %zu bytes where that is the limit",
                       buf->limit);
    if (buf->used + bytes < buf->capacity)
        return 0;
    char *data = NULL; /* not realloc(), which leaves behind what may be a secret */
    size_t capacity = 0;
    if (sl_grow(&data, &capacity, buf->used + bytes + 1, 1, err) < 0)
        return -1;
    if (buf->data) {
        memcpy(data, buf->data, buf->used);
        explicit_bzero(buf->data, buf->capacity);
        free(buf->data);
    }
    buf->data = data;
    buf->capacity = capacity;
    return 0;
}

int sl_buf_append(struct sl_buf *buf, const void *data, size_t bytes, struct sl_err *err)
{
    if (room(buf, bytes, err) < 0)
        return -1;
    if (bytes)
        memcpy(buf->data + buf->used, data, bytes);
    buf->used += bytes;
    buf->data[buf->used] = 0;
    return 0;
}

int sl_buf_text(struct sl_buf *buf, const char *text, struct sl_err *err)
{
    return sl_buf_append(buf, text, strlen(text), err);
}

int sl_buf_printf(struct sl_buf *buf, struct sl_err *err, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    int done = length < 0 ? sl_fail(err, SL_E_INTERNAL, "cannot format text")
                          : room(buf, (size_t)length, err);
    if (done == 0) {
        vsnprintf(buf->data + buf->used, (size_t)length + 1, format, again);
        buf->used += (size_t)length;
    }
    va_end(again);
    return done;
}

const char *sl_buf_string(const struct sl_buf *buf)
{
    return buf->data ? buf->data : "";
}

void sl_buf_trim(struct sl_buf *buf)
{
    static const char blanks[] = " \t\r\n\v\f";
    size_t begin = 0, end = buf->used;
    while (end && strchr(blanks, buf->data[end - 1]) && buf->data[end - 1])
        end--;
    while (begin < end && strchr(blanks, buf->data[begin]) && buf->data[begin])
        begin++;
    if (end - begin == buf->used)
        return;
    memmove(buf->data, buf->data + begin, end - begin);
    memset(buf->data + end - begin, 0, buf->used - (end - begin));
    buf->used = end - begin;
}

char *sl_buf_steal(struct sl_buf *buf, struct sl_err *err)
{
    if (sl_buf_append(buf, "", 0, err) < 0)
        return NULL;
    char *text = buf->data;
    buf->data = NULL;
    buf->used = buf->capacity = 0;
    return text;
}

static int read_all(struct sl_buf *buf, int fd, char chunk[CHUNK_BYTES], const char *name,
                    enum sl_err_kind kind, struct sl_err *err)
{
    for (;;) {
        ssize_t got = read(fd, chunk, CHUNK_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sl_fail_errno(err, kind, errno, "cannot read '%s'", name);
        if (got == 0)
            return sl_buf_append(buf, "", 0, err);
        if (buf->used + (size_t)got > buf->limit)
            return sl_fail(err, kind, "'%s' is larger than %zu bytes", name, buf->limit);
        if (sl_buf_append(buf, chunk, (size_t)got, err) < 0)
            return -1;
    }
}

int sl_buf_read_fd(struct sl_buf *buf, int fd, const char *name, enum sl_err_kind kind,
                   struct sl_err *err)
{
    char chunk[CHUNK_BYTES];
    int result = read_all(buf, fd, chunk, name, kind, err);
    explicit_bzero(chunk, sizeof(chunk));
    return result;
}

int sl_buf_read_file(struct sl_buf *buf, const char *path, struct sl_err *err)
{
    sl_autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sl_fail_errno(err,
                             errno == ENOENT || errno == ENOTDIR ? SL_E_NOT_FOUND
                             : sl_errno_is_short(errno)          ? SL_E_NO_SPACE
                                                                 : SL_E_USAGE,
                             errno, "cannot open '%s'", path);
    return sl_buf_read_fd(buf, fd, path, SL_E_USAGE, err);
}

void sl_hex(const uint8_t *data, size_t bytes, char *text)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes; i++) {
        text[2 * i] = digits[data[i] >> 4];
        text[2 * i + 1] = digits[data[i] & 15];
    }
    text[2 * bytes] = 0;
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int sl_unhex(const char *text, uint8_t *data, size_t bytes)
{
    if (strlen(text) != 2 * bytes)
        return -1;
    for (size_t i = 0; i < bytes; i++) {
        int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return -1;
        data[i] = (uint8_t)(high << 4 | low);
    }
    return 0;
}

const char *sl_human_bytes(uint64_t bytes, char text[32])
{
    static const char *units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(text, 32, "%u byte%s", (unsigned)bytes, bytes == 1 ? "" : "s");
        return text;
    }
    double value = (double)bytes / 1024;
    unsigned unit = 0;
    while (value >= 1024 && unit + 1 < SL_COUNT(units)) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32,
             value < 10    ? "%.2f %s"
             : value < 100 ? "%.1f %s"
                           : "%.0f %s",
             value, units[unit]);
    return text;
}

const char *sl_human_count(uint64_t count, const char *noun, char text[40])
{
    size_t length = strlen(noun);
    bool hisses = length > 1 && (noun[length - 1] == 's' || strcmp(noun + length - 2, "sh") == 0);
    snprintf(text, 40, "%" PRIu64 " %s%s", count, noun, count == 1 ? "" : hisses ? "es" : "s");
    return text;
}

static int utf8_length(unsigned char c)
{
    return c < 0x80                ? 1
           : c >= 0xc2 && c < 0xe0 ? 2
           : c >= 0xe0 && c < 0xf0 ? 3
           : c >= 0xf0 && c < 0xf5 ? 4
                                   : 0;
}

int sl_is_utf8(const void *data, size_t bytes)
{
    const unsigned char *p = data, *end = p + bytes;
    while (p < end) {
        int length = utf8_length(*p);
        if (!length || end - p < length)
            return 0;
        for (int i = 1; i < length; i++)
            if ((p[i] & 0xc0) != 0x80)
                return 0;
        if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) ||
            (*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f))
            return 0;
        p += length;
    }
    return 1;
}

bool sl_take_digits(const char **text, uint64_t *value)
{
    const char *begin = *text;
    for (*value = 0; **text >= '0' && **text <= '9'; ++*text)
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, (uint64_t)(**text - '0'), value))
            *value = UINT64_MAX;
    return *text > begin;
}
