/*
 * Names come from listings and indexes, so from strangers. A name is taken only if every way of
 * reading it as a path stays below the destination: refused is better than cleaned, because a
 * cleaned name may collide with another one.
 */
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "own_names.h"
#include "sink.h"

enum { NAME_BYTES_MAX = 1024, COMPONENT_BYTES_MAX = 255, QUOTED_BYTES_MAX = 200 };

static const char *component_fault(const char *text, size_t bytes)
{
    if (bytes == 0)
        return "has an empty path component";
    if (bytes > COMPONENT_BYTES_MAX)
        return "has a path component longer than 255 bytes";
    if ((bytes == 1 && text[0] == '.') || (bytes == 2 && text[0] == '.' && text[1] == '.'))
        return "has a '.' or '..' component";
    return NULL;
}

static const char *byte_fault(const char *name, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c < 0x20 || c == 0x7f)
            return c ? "holds a control character" : "holds a NUL byte";
        if (c == '\\')
            return "holds a backslash";
    }
    return NULL;
}

static const char *name_fault(const char *name, size_t bytes)
{
    if (bytes == 0)
        return "is empty";
    if (bytes > NAME_BYTES_MAX)
        return "is longer than 1024 bytes";
    if (name[0] == '/')
        return "is an absolute path";
    const char *fault = byte_fault(name, bytes);
    if (!fault && !sl_is_utf8(name, bytes)) /* the manifest, being JSON, could not say it */
        fault = "is not UTF-8";
    for (size_t begin = 0; !fault && begin <= bytes;) {
        const char *slash = memchr(name + begin, '/', bytes - begin);
        size_t end = slash ? (size_t)(slash - name) : bytes;
        fault = component_fault(name + begin, end - begin);
        begin = end + 1;
    }
    if (!fault && sl_own_name(name, bytes))
        fault = "is a name of sluice's own files";
    return fault;
}

int sl_name_check(const char *name, size_t bytes, struct sl_err *err)
{
    const char *fault = name_fault(name, bytes);
    if (!fault)
        return 0;
    int shown = (int)SL_MIN(bytes, (size_t)QUOTED_BYTES_MAX);
    return sl_fail_code(
        err, SL_E_FORMAT, "E_NAME",
        "the name '%.*s'%s %s, so it cannot be a file below the destination: rename "
        "it at the source or leave it out with source.exclude",
        shown, name, bytes > QUOTED_BYTES_MAX ? "…" : "", fault);
}
