/* A component is one of the names beside a file if it is a dot, at least one byte, and an end. */
#include "own_names.h"

#include <string.h>

#include "mem.h"

static const char *const ends[] = {
#define SL_OWN_BESIDE(end, writer, reader, proof) end,
#define SL_OWN_BELOW(name, writer, reader, proof)
#define SL_OWN_NODE(name, writer, reader, proof)
#include "own_names.def"
#undef SL_OWN_BESIDE
#undef SL_OWN_BELOW
#undef SL_OWN_NODE
};

static bool is_beside(const char *text, size_t bytes)
{
    for (size_t i = 0; i < SL_COUNT(ends); i++) {
        size_t end = strlen(ends[i]);
        if (bytes > 1 + end && text[0] == '.' && memcmp(text + bytes - end, ends[i], end) == 0)
            return true;
    }
    return false;
}

static bool is(const char *name, size_t bytes, const char *text)
{
    return bytes == strlen(text) && memcmp(name, text, bytes) == 0;
}

bool sl_own_name(const char *name, size_t bytes)
{
    for (size_t begin = 0; begin < bytes;) {
        const char *slash = memchr(name + begin, '/', bytes - begin);
        size_t end = slash ? (size_t)(slash - name) : bytes;
        if (is(name + begin, end - begin, ".sluice"))
            return true;
        if (is_beside(name + begin, end - begin))
            return true;
        begin = end + 1;
    }
    return false;
}

bool sl_own_name_of_node(const char *name, size_t bytes, bool closed)
{
    static const char whole[] = ".whole";
    size_t end = sizeof(whole) - 1;
    if (is(name, bytes, ".volumes"))
        return true;
    return closed && (is(name, bytes, "model.yaml") || is(name, bytes, ".lock") ||
                      (bytes > end && memcmp(name + bytes - end, whole, end) == 0));
}
