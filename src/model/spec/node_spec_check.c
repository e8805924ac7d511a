/* Single values of a daemon's config that several of its tables have. */
#include <string.h>

#include "node_spec_parts.h"

enum { SOCKET_PATH_MAX = 107 }; /* of sockaddr_un, without the end */

int node_spec_check_absolute(const char *text, struct sl_err *err)
{
    if (*text == '/')
        return 0;
    return sl_fail(err, SL_E_USAGE, "'%.200s' must be an absolute path", text);
}

int node_spec_check_socket(const char *text, struct sl_err *err)
{
    if (node_spec_check_absolute(text, err) < 0)
        return -1;
    if (strlen(text) <= SOCKET_PATH_MAX)
        return 0;
    return sl_fail(err, SL_E_USAGE, "the path of a socket has at most %d bytes, this has %zu",
                   SOCKET_PATH_MAX, strlen(text));
}

/* A scheme alone would allow every host. */
int node_spec_check_prefix(const char *text, struct sl_err *err)
{
    const char *scheme = strstr(text, "://");
    bool file = strncmp(text, "file:///", 8) == 0;
    if (file || (scheme && scheme > text && scheme[3] && scheme[3] != '/') ||
        (*text == '/' && text[1]))
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'%.200s' must be a URI with a host or bucket, such as s3://models/, or an "
                   "absolute path",
                   text);
}
