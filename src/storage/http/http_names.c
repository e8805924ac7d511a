/* What objects below a base are called, and their URLs. */
#include <string.h>

#include "http_store.h"

/* Cut the target into the folder and the object's last segment with its query. */
int sl_http_store_name(struct sl_http_store *http, char **key, struct sl_err *err)
{
    char *target = http->base.url.target;
    size_t path = strcspn(target, "?"), folder = path;
    while (target[folder - 1] != '/')
        folder--;
    http->key_target = sl_strdup(target + folder, err);
    if (!http->key_target)
        return -1;
    size_t segment = path - folder;
    if (segment == 0 && target[path] == '?') {
        http->key = sl_strdup("object", err);
    } else {
        http->key = sl_url_decode(target + folder, segment, NULL);
        if (!http->key || strchr(http->key, '/')) {
            free(http->key);
            http->key = sl_strndup(target + folder, segment, err);
        }
    }
    target[folder] = 0;
    *key = http->key ? sl_strdup(http->key, err) : NULL;
    return *key ? 0 : -1;
}

int sl_http_store_url(struct sl_store *store, const char *name, char **url, char **uri,
                      struct sl_err *err)
{
    const struct sl_http_store *http = store->impl;
    bool named = http->key[0] && strcmp(name, http->key) == 0;
    sl_autofree char *encoded =
        named ? sl_strdup(http->key_target, err) : sl_url_encode(name, true, err);
    if (!encoded)
        return -1;
    *url = sl_asprintf(err, "%s%s", http->base_url, encoded);
    *uri = sl_asprintf(err, "%s%.*s", http->base_url, (int)strcspn(encoded, "?"), encoded);
    return *url && *uri ? 0 : -1;
}
