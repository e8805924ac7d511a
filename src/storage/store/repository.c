/* URIs of repositories (hf://, ms://, oci://) end in a path: which part of it is the store's. */
#include <string.h>

#include "store_kind.h"

bool sl_repository_path_is_plain(const char *path)
{
    if (strlen(path) > SL_REPOSITORY_PATH_BYTES_MAX)
        return false;
    while (*path) {
        size_t bytes = strcspn(path, "/");
        if (bytes == 0 || (bytes == 1 && path[0] == '.') ||
            (bytes == 2 && strncmp(path, "..", 2) == 0))
            return false;
        path += bytes + (path[bytes] == '/');
    }
    return true;
}

int sl_repository_split(struct sl_store *store, const char *uri, const char *path, char **folder,
                        char **key, struct sl_err *err)
{
    const char *slash = strrchr(path, '/');
    size_t bytes = slash ? (size_t)(slash - path) + 1 : 0, before = strlen(uri) - strlen(path);
    const char *between = before && uri[before - 1] == '/' ? "" : "/";
    *folder = sl_strndup(path, bytes, err);
    *key = sl_strdup(path + bytes, err);
    if (!*folder || !*key)
        return -1;
    store->uri = sl_asprintf(err, "%.*s%s%s", (int)before, uri, between, *folder);
    return store->uri ? 0 : -1;
}
