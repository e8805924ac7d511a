/*
 * A strict reading of RFC 9112: whatever two readers could understand differently (folded lines,
 * two lengths, a length beside a transfer coding) is refused, because the next answer on the
 * connection would be read from the wrong place.
 */
#include "http_head.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "mem.h"

static int refuse(struct sl_err *err, const char *why)
{
    sl_fail(err, SL_E_NET, "the server's answer is not HTTP/1.1: %s", why);
    if (err)
        err->retryable = false;
    return -1;
}

size_t sl_head_end(const char *text, size_t bytes)
{
    const char *at = text, *end = text + bytes;
    while ((at = memchr(at, '\n', (size_t)(end - at)))) {
        at++;
        if (at < end && *at == '\n')
            return (size_t)(at + 1 - text);
        if (at + 1 < end && at[0] == '\r' && at[1] == '\n')
            return (size_t)(at + 2 - text);
    }
    return 0;
}

/* The next line without its end; *at moves behind it. */
static const char *next_line(const char **at, const char *end, size_t *bytes)
{
    const char *line = *at, *stop = memchr(line, '\n', (size_t)(end - line));
    if (!stop)
        stop = end;
    *at = stop < end ? stop + 1 : end;
    *bytes = (size_t)(stop - line);
    if (*bytes && line[*bytes - 1] == '\r')
        --*bytes;
    return line;
}

static bool is_token(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)text[i]) && (!text[i] || !strchr("!#$%&'*+-.^_`|~", text[i])))
            return false;
    return bytes > 0;
}

static const char *trim(const char *text, size_t *bytes)
{
    while (*bytes && (*text == ' ' || *text == '\t'))
        text++, --*bytes;
    while (*bytes && (text[*bytes - 1] == ' ' || text[*bytes - 1] == '\t'))
        --*bytes;
    return text;
}

static bool equals(const char *text, size_t bytes, const char *word)
{
    return bytes == strlen(word) && strncasecmp(text, word, bytes) == 0;
}

/* A comma-separated list holds the word. */
static bool lists(const char *text, size_t bytes, const char *word)
{
    while (bytes) {
        const char *comma = memchr(text, ',', bytes);
        size_t item_bytes = comma ? (size_t)(comma - text) : bytes, item = item_bytes;
        const char *trimmed = trim(text, &item);
        if (equals(trimmed, item, word))
            return true;
        if (!comma)
            return false;
        text = comma + 1;
        bytes -= item_bytes + 1;
    }
    return false;
}

static int parse_status_line(const char *line, size_t bytes, struct sl_head *head, bool *old,
                             struct sl_err *err)
{
    if (bytes < 12 || strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') ||
        line[8] != ' ')
        return refuse(err, "no status line of HTTP/1.0 or HTTP/1.1");
    for (int i = 9; i < 12; i++) {
        if (!isdigit((unsigned char)line[i]))
            return refuse(err, "the status is not a number of three digits");
        head->status = head->status * 10 + (line[i] - '0');
    }
    if ((bytes > 12 && line[12] != ' ') || head->status < 100)
        return refuse(err, "the status is not a number of three digits");
    *old = line[7] == '0';
    head->close = *old;
    return 0;
}

static int parse_length(const char *value, size_t bytes, struct sl_head *head, struct sl_err *err)
{
    int64_t length = 0;
    if (bytes > 18)
        return refuse(err, "a Content-Length longer than any object");
    if (bytes == 0)
        return refuse(err, "bad Content-Length");
    for (size_t i = 0; i < bytes; i++) {
        if (!isdigit((unsigned char)value[i]))
            return refuse(err, "bad Content-Length");
        length = length * 10 + (value[i] - '0');
    }
    if (head->content_length >= 0 && head->content_length != length)
        return refuse(err, "two different Content-Length headers");
    head->content_length = length;
    return 0;
}

static int parse_header(const char *line, size_t bytes, struct sl_head *head, bool *chunked,
                        struct sl_err *err)
{
    if (*line == ' ' || *line == '\t')
        return refuse(err, "a folded header line");
    const char *colon = memchr(line, ':', bytes);
    size_t name_bytes = colon ? (size_t)(colon - line) : 0,
           value_bytes = colon ? bytes - name_bytes - 1 : 0;
    if (!is_token(line, name_bytes))
        return refuse(err, "a header line without a name");
    const char *value = trim(colon + 1, &value_bytes);
    for (size_t i = 0; i < value_bytes; i++)
        if (((unsigned char)value[i] < 0x20 && value[i] != '\t') || value[i] == 0x7f)
            return refuse(err, "control characters in a header");

    if (equals(line, name_bytes, "content-length"))
        return parse_length(value, value_bytes, head, err);
    if (equals(line, name_bytes, "transfer-encoding")) {
        if (*chunked || !equals(value, value_bytes, "chunked"))
            return refuse(err, "a Transfer-Encoding other than chunked");
        *chunked = true;
    } else if (equals(line, name_bytes, "connection")) {
        if (lists(value, value_bytes, "close"))
            head->close = true;
        else if (lists(value, value_bytes, "keep-alive"))
            head->close = false;
    }
    return 0;
}

int sl_head_parse(const char *text, size_t bytes, struct sl_head *head, struct sl_err *err)
{
    const char *at = text, *end = text + bytes;
    size_t line_bytes;
    bool old = false, chunked = false;
    *head = (struct sl_head){.content_length = -1, .framing = SL_FRAMING_CLOSE};
    const char *line = next_line(&at, end, &line_bytes);
    if (parse_status_line(line, line_bytes, head, &old, err) < 0)
        return -1;
    while (at < end) {
        line = next_line(&at, end, &line_bytes);
        if (line_bytes == 0)
            break;
        if (parse_header(line, line_bytes, head, &chunked, err) < 0)
            return -1;
    }
    if (chunked && (head->content_length >= 0 || old))
        return refuse(err, "Transfer-Encoding beside a Content-Length or in HTTP/1.0");
    if (chunked)
        head->framing = SL_FRAMING_CHUNKED;
    else if (head->content_length >= 0)
        head->framing = SL_FRAMING_LENGTH;
    return 0;
}

const char *sl_head_find(const char *text, size_t bytes, const char *name, unsigned nth,
                         size_t *value_bytes)
{
    const char *at = text, *end = text + bytes;
    size_t line_bytes;
    next_line(&at, end, &line_bytes);
    while (at < end) {
        const char *line = next_line(&at, end, &line_bytes);
        const char *colon = memchr(line, ':', line_bytes);
        if (!colon || !equals(line, (size_t)(colon - line), name) || nth-- > 0)
            continue;
        *value_bytes = line_bytes - (size_t)(colon - line) - 1;
        return trim(colon + 1, value_bytes);
    }
    return NULL;
}

char *sl_head_keep(const char *text, size_t bytes, size_t *kept, struct sl_err *err)
{
    char *head = sl_alloc(2 * bytes + 2, err), *out = head;
    for (size_t at = 0, line_end; head && at < bytes; at = line_end + 1) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        line_end = newline ? (size_t)(newline - text) : bytes;
        size_t used = line_end - at;
        while (used && strchr("\r \t", text[at + used - 1]))
            used--;
        memcpy(out, text + at, used);
        out += used;
        *out++ = 0;
        *out++ = '\n';
    }
    *kept = head ? (size_t)(out - head) : 0;
    return head;
}
