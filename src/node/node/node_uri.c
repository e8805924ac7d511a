/*
 * A prefix is compared as text, so what a server or a file system would read as another place than
 * it looks like is refused before: dots that lead upwards, also written as %2e, backslashes, and
 * queries, with which some servers choose files. In a file system links lead elsewhere, too, and
 * may be exchanged at any time: so a local model is read through a descriptor of the prefix's
 * folder.
 */
#include "node_uri.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "hash.h"
#include "json.h"

enum { ID_BYTES = 16, SPEC_BYTES_MAX = 16 * 1024 };

bool sl_node_is_uri(const char *text)
{
    return *text == '/' || strstr(text, "://");
}

static bool has_any_case(const char *text, const char *part)
{
    for (; *text; text++)
        if (strncasecmp(text, part, strlen(part)) == 0)
            return true;
    return false;
}

/* A part of the path that is "." or "..", or empty: "s3://b//x" is not below "s3://b/". */
static bool has_odd_part(const char *uri)
{
    const char *scheme = strstr(uri, "://"), *at = scheme ? strchr(scheme + 3, '/') : uri;
    while (at) {
        size_t bytes = strcspn(++at, "/");
        if ((bytes == 1 && *at == '.') || (bytes == 2 && memcmp(at, "..", 2) == 0) ||
            (bytes == 0 && *at))
            return true;
        at = strchr(at, '/');
    }
    return false;
}

static bool is_below(const char *prefix, const char *uri)
{
    size_t bytes = strlen(prefix);
    return bytes && strncmp(uri, prefix, bytes) == 0 &&
           (prefix[bytes - 1] == '/' || !uri[bytes] || uri[bytes] == '/');
}

int sl_node_uri_below(const struct sl_list *prefixes, const char *uri, size_t *prefix_bytes)
{
    static const char *const hidden[] = {"%2e", "%2f", "%5c"};
    bool odd = has_odd_part(uri) || uri[strcspn(uri, "?#\\")];
    for (size_t i = 0; i < SL_COUNT(hidden); i++)
        odd = odd || has_any_case(uri, hidden[i]);
    if (odd)
        return -2;
    *prefix_bytes = 0;
    for (size_t i = 0; i < prefixes->count; i++) {
        size_t bytes = strlen(prefixes->items[i]);
        if (is_below(prefixes->items[i], uri) && (!*prefix_bytes || bytes < *prefix_bytes))
            *prefix_bytes = bytes;
    }
    return *prefix_bytes ? 0 : -1;
}

int sl_node_uri_check(const struct sl_list *prefixes, const char *uri, size_t *prefix_bytes,
                      struct sl_err *err)
{
    int fits = sl_node_uri_below(prefixes, uri, prefix_bytes);
    if (fits == -2)
        return sl_fail(err, SL_E_USAGE,
                       "a pool's client may not ask for '%.300s': '.', '..' and empty parts, "
                       "'?', '#', '\\', and %%2e, %%2f, %%5c are not taken there",
                       uri);
    if (fits == 0)
        return 0;
    return sl_fail(err, SL_E_AUTH,
                   "this pool does not load '%.300s' for its clients: ask for a model by name, or "
                   "let its config allow the URI with pool.uriPrefixes",
                   uri);
}

int sl_node_uri_name(const char *uri, const char *device, char name[SL_NODE_URI_NAME],
                     struct sl_err *err)
{
    uint8_t digest[32];
    char hex[2 * ID_BYTES + 1];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    sl_sha256_update(sha, uri, strlen(uri));
    if (strcmp(device, "host") != 0)
        sl_sha256_update(sha, device, strlen(device) + 1); /* no URI has a NUL */
    sl_sha256_finish(sha, digest);
    sl_hex(digest, ID_BYTES, hex);
    snprintf(name, SL_NODE_URI_NAME, "uri-%s", hex);
    return 0;
}

static void write_pool(struct sl_json *json, const char *device)
{
    sl_json_key(json, "sink");
    sl_json_object(json);
    sl_json_key(json, "pool");
    sl_json_object(json);
    sl_json_key_string(json, "device", device);
    sl_json_end(json);
    sl_json_end(json);
}

/* JSON is YAML, and its strings leave nothing of a URI to be read as anything else. */
static const char *write_spec(struct sl_json *json, const char *uri, const char *device,
                              const char *name, struct sl_err *err)
{
    sl_json_object(json);
    sl_json_key_string(json, "apiVersion", "sluice/v1alpha1");
    sl_json_key_string(json, "kind", "Model");
    sl_json_key(json, "metadata");
    sl_json_object(json);
    sl_json_key_string(json, "name", name);
    sl_json_end(json);
    sl_json_key(json, "source");
    sl_json_object(json);
    sl_json_key_string(json, "uri", uri);
    sl_json_end(json);
    if (device)
        write_pool(json, device);
    sl_json_end(json);
    return sl_json_text(json, err);
}

int sl_node_uri_spec(const char *uri, size_t prefix_bytes, const char *device, const char *name,
                     struct sl_specs *specs, struct sl_err *err)
{
    struct sl_json json;
    sl_autobuf complaints = SL_BUF_INIT(SPEC_BYTES_MAX);
    sl_json_init(&json, SPEC_BYTES_MAX);
    const char *text = write_spec(&json, uri, device, name, err);
    int done =
        text ? sl_spec_parse_placed(text, strlen(text), "URI", false, specs, &complaints, err) : -1;
    sl_json_release(&json);
    for (size_t i = 0; done == 0 && i < specs->count; i++)
        specs->items[i].source.beneath_bytes = prefix_bytes;
    return done;
}
