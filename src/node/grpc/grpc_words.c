/* The words of gRPC's headers: the protocol's text is "gRPC over HTTP2", PROTOCOL-HTTP2. */
#include "grpc_words.h"

#include <string.h>

bool sl_grpc_timeout_parse(const char *text, size_t bytes, uint64_t *ns)
{
    static const struct {
        char unit;
        uint64_t ns;
    } units[] = {
        {'H', 3600 * SL_NS_PER_S},
        {'M', 60 * SL_NS_PER_S},
        {'S', SL_NS_PER_S},
        {'m', SL_NS_PER_MS},
        {'u', 1000},
        {'n', 1},
    };
    uint64_t count = 0;
    if (bytes < 2 || bytes > 9)
        return false;
    for (size_t i = 0; i + 1 < bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        count = count * 10 + (uint64_t)(text[i] - '0');
    }
    for (size_t i = 0; i < SL_COUNT(units); i++) {
        if (text[bytes - 1] != units[i].unit)
            continue;
        if (__builtin_mul_overflow(count, units[i].ns, ns))
            *ns = UINT64_MAX;
        return true;
    }
    return false;
}

bool sl_grpc_is_content_type(const char *text, size_t bytes)
{
    static const char plain[] = "application/grpc", proto[] = "application/grpc+proto";
    size_t at = sizeof(plain) - 1;
    if (bytes < at || memcmp(text, plain, at) != 0)
        return false;
    if (bytes >= sizeof(proto) - 1 && memcmp(text, proto, sizeof(proto) - 1) == 0)
        at = sizeof(proto) - 1;
    return bytes == at || text[at] == ';' || text[at] == ' ';
}

/* Bytes of the UTF-8 character that begins here; 0 if none does. */
static size_t character(const char *text)
{
    size_t left = strnlen(text, 4);
    for (size_t bytes = 1; bytes <= left; bytes++)
        if (sl_is_utf8(text, bytes))
            return bytes;
    return 0;
}

size_t sl_grpc_escape(const char *text, char escaped[SL_GRPC_ESCAPED_BYTES])
{
    static const char digits[] = "0123456789ABCDEF", more[] = "...";
    size_t used = 0, room = SL_GRPC_ESCAPED_BYTES - sizeof(more);
    while (*text) {
        size_t bytes = character(text);
        const char *from = bytes ? text : "?";
        text += bytes ? bytes : 1;
        bytes = bytes ? bytes : 1;
        if (used + 3 * bytes > room) {
            memcpy(escaped + used, more, sizeof(more) - 1);
            used += sizeof(more) - 1;
            break;
        }
        for (size_t i = 0; i < bytes; i++) {
            uint8_t byte = (uint8_t)from[i];
            bool plain = byte >= 0x20 && byte <= 0x7e && byte != '%';
            escaped[used++] = plain ? from[i] : '%';
            if (plain)
                continue;
            escaped[used++] = digits[byte >> 4];
            escaped[used++] = digits[byte & 15];
        }
    }
    escaped[used] = 0;
    return used;
}

const char *sl_grpc_code_name(enum sl_grpc_code code)
{
    static const char *const names[SL_GRPC_CODE_COUNT] = {"OK",
                                                          "CANCELLED",
                                                          "UNKNOWN",
                                                          "INVALID_ARGUMENT",
                                                          "DEADLINE_EXCEEDED",
                                                          "NOT_FOUND",
                                                          "ALREADY_EXISTS",
                                                          "PERMISSION_DENIED",
                                                          "RESOURCE_EXHAUSTED",
                                                          "FAILED_PRECONDITION",
                                                          "ABORTED",
                                                          "OUT_OF_RANGE",
                                                          "UNIMPLEMENTED",
                                                          "INTERNAL",
                                                          "UNAVAILABLE",
                                                          "DATA_LOSS",
                                                          "UNAUTHENTICATED"};
    return (unsigned)code < SL_GRPC_CODE_COUNT ? names[code] : "no code of gRPC";
}
