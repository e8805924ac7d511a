/* What people and logs see of a URI. */
#include "mem.h"
#include "uri_text.h"

char *sl_uri_sanitize(const char *uri, struct sl_err *err)
{
    size_t size = sl_uri_write(uri, NULL, 0) + 1;
    char *text = sl_alloc(size, err);
    if (text)
        sl_uri_write(uri, text, size);
    return text;
}
