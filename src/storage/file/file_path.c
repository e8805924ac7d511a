/* Where a file is that a URI or a path names. */
#include <string.h>
#include <strings.h>

#include "file_store.h"
#include "url.h"

char *sl_file_path(const char *uri, struct sl_err *err)
{
    if (strncasecmp(uri, "file:", 5) != 0)
        return sl_strdup(uri, err);
    const char *path = uri + 5;
    if (strncmp(path, "//", 2) == 0) {
        path += 2;
        if (strncasecmp(path, "localhost/", 10) == 0)
            path += 9;
    }
    if (*path != '/') {
        sl_fail(err, SL_E_USAGE, "'%s' names a host: a local file is file:///PATH", uri);
        return NULL;
    }
    return sl_url_decode(path, strlen(path), err);
}
