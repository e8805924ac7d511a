/* What every format begins with: an index, the first bytes, a name. */
#include <string.h>

#include "format.h"

struct sl_index *sl_format_begin(const char *format, struct sl_source *source, struct sl_err *err)
{
    SL_AUTO(sl_source) held = source;
    SL_AUTO(sl_index) index = sl_index_new(format, err);
    if (!index || sl_index_add_source(index, sl_steal(&held), err) < 0)
        return NULL;
    return sl_steal(&index);
}

char *sl_format_read(struct sl_source *source, uint64_t begin, size_t bytes, struct sl_err *err)
{
    sl_autofree char *data = sl_alloc(bytes + 1, err);
    if (!data)
        return NULL;
    if (bytes > 0 && sl_source_read(source, begin, data, bytes, err) < 0)
        return NULL;
    return sl_steal(&data);
}

bool sl_format_is_fork(const char *name)
{
    const char *slash = strrchr(name, '/');
    return strncmp(slash ? slash + 1 : name, "._", 2) == 0;
}

bool sl_format_has_suffix(const char *name, const char *suffix)
{
    size_t name_bytes = strlen(name), suffix_bytes = strlen(suffix);
    return !sl_format_is_fork(name) && name_bytes >= suffix_bytes &&
           strcmp(name + name_bytes - suffix_bytes, suffix) == 0;
}

size_t sl_format_index_ending(const struct sl_format *format, const char *name)
{
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    if (format->index_name && strcmp(file, format->index_name) == 0)
        return strlen(file);
    return format->index_suffix && sl_format_has_suffix(name, format->index_suffix)
               ? strlen(format->index_suffix)
               : 0;
}
