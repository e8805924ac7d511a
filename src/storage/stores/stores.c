/*
 * The rows of stores.def, and those that are registered (tests have stores of their own), in one
 * list; a URI's scheme finds its row.
 */
#include "stores.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "az_options.h"
#include "upload_backend.h"
#include "uri_text.h"

#define SL_STORE(name) extern const struct sl_store_kind sl_##name##_store;
#include "stores.def"
#undef SL_STORE

static const struct sl_store_kind *kinds[SL_STORE_KINDS_MAX + 1] = {
#define SL_STORE(name) &sl_##name##_store,
#include "stores.def"
#undef SL_STORE
};

const struct sl_store_kind *sl_stores_at(size_t index)
{
    return index < SL_STORE_KINDS_MAX ? kinds[index] : NULL;
}

/* Letters as schemes have them; "a:b" alone is a file's name. */
static size_t word_bytes(const char *uri)
{
    size_t used = 0;
    while (isalnum((unsigned char)uri[used]) || (used && strchr("+-.", uri[used]) && uri[used]))
        used++;
    return uri[used] == ':' ? used : 0;
}

static bool has_scheme(const struct sl_store_kind *kind, const char *word, size_t bytes)
{
    for (const char *const *scheme = kind->schemes; *scheme; scheme++)
        if (strlen(*scheme) == bytes && strncasecmp(*scheme, word, bytes) == 0)
            return true;
    return false;
}

const struct sl_store_kind *sl_stores_find(const char *uri)
{
    const struct sl_store_kind *local = NULL;
    size_t bytes = word_bytes(uri);
    bool slashes = strncmp(uri + bytes, "://", 3) == 0;
    if (slashes && sl_az_is_blob_url(uri))
        return &sl_az_store;
    for (size_t i = 0; kinds[i]; i++) {
        if (bytes && (slashes || kinds[i]->bare) && has_scheme(kinds[i], uri, bytes))
            return kinds[i];
        if (!local && kinds[i]->traits.local)
            local = kinds[i];
    }
    return bytes && slashes ? NULL : local;
}

size_t sl_stores_schemes(const char *schemes[SL_STORES_SCHEMES_MAX])
{
    size_t count = 0;
    for (size_t i = 0; kinds[i]; i++)
        for (const char *const *scheme = kinds[i]->schemes; *scheme; scheme++)
            schemes[count++] = *scheme;
    return count;
}

static void name_schemes(char *text, size_t bytes, const char *before, bool writable)
{
    size_t used = (size_t)snprintf(text, bytes, "%s", before);
    for (size_t i = 0; kinds[i]; i++)
        for (const char *const *scheme = kinds[i]->schemes; *scheme; scheme++)
            if ((!writable || kinds[i]->upload) && used < bytes)
                used += (size_t)snprintf(text + used, bytes - used, "%s%s://", used ? ", " : "",
                                         *scheme);
}

void sl_stores_name_schemes(char *text, size_t bytes)
{
    name_schemes(text, bytes, "", false);
}

bool sl_uri_is_local(const char *uri)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    return kind && kind->traits.local;
}

bool sl_uri_is_path(const char *uri)
{
    size_t word = strcspn(uri, ":/");
    return uri[word] != ':' || (word == 0 && uri[1] != '/');
}

bool sl_uri_is_encoded(const char *uri)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    return kind && (kind->traits.urls || sl_az_is_blob_url(uri) ||
                    (kind->traits.local && has_scheme(kind, uri, word_bytes(uri))));
}

bool sl_uri_is_of_models(const char *uri)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    return kind && kind->traits.tensors;
}

char *sl_uri_of_model(const char *uri, struct sl_err *err)
{
    size_t bytes = strlen(uri), least = word_bytes(uri) + sizeof("://") - 1;
    while (bytes > least && uri[bytes - 1] == '/')
        bytes--;
    return sl_strndup(uri, bytes, err);
}

bool sl_uri_takes_in_order(const char *uri)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    return kind && kind->upload && kind->upload->in_order;
}

int sl_stores_register(const struct sl_store_kind *kind, struct sl_err *err)
{
    size_t count = 0;
    for (; kinds[count]; count++) {
        if (kinds[count] == kind)
            return 0;
        bool taken = strcmp(kinds[count]->name, kind->name) == 0;
        for (const char *const *scheme = kind->schemes; *scheme; scheme++)
            taken |= has_scheme(kinds[count], *scheme, strlen(*scheme));
        if (taken)
            return sl_fail(err, SL_E_USAGE, "there are two stores '%s'", kind->name);
    }
    if (count == SL_STORE_KINDS_MAX)
        return sl_fail(err, SL_E_NO_SPACE, "more than %d kinds of stores", SL_STORE_KINDS_MAX);
    kinds[count] = kind;
    return 0;
}

/* ---- stores --------------------------------------------------------------------------------- */

static int check_login(const struct sl_store_kind *kind, const char *uri, struct sl_err *err)
{
    if (!kind->login || !sl_uri_holds_key(uri))
        return 0;
    sl_autofree char *shown = sl_uri_sanitize(uri, err);
    return shown ? sl_fail(err, SL_E_USAGE, "'%.300s' holds a key: remove it, and %s", shown,
                           kind->login)
                 : -1;
}

/* Of a hub, as the browser shows it: scheme and path are those of the repository then. */
static const struct page {
    const char *begin, *scheme;
} pages[] = {
    {"https://huggingface.co/", "hf"},
    {"https://hf.co/", "hf"},
    {"https://modelscope.cn/models/", "ms"},
    {"https://www.modelscope.cn/models/", "ms"},
};

/* "ORG/NAME", and what hubs have beside repositories stands in the place of ORG. */
static bool is_repository(const char *path)
{
    static const char *const others[] = {"api",    "datasets", "spaces", "collections", "docs",
                                         "models", "papers",   "blog",   "resources"};
    size_t org = strcspn(path, "/");
    for (size_t i = 0; i < SL_COUNT(others); i++)
        if (strlen(others[i]) == org && strncmp(others[i], path, org) == 0)
            return false;
    size_t name = path[org] ? strcspn(path + org + 1, "/?#") : 0;
    const char *rest = path + org + 1 + name;
    return org && name &&
           (!*rest || strcmp(rest, "/") == 0 || strncmp(rest, "/tree/", 6) == 0 ||
            strncmp(rest, "/files", 6) == 0 || strncmp(rest, "/summary", 8) == 0);
}

static int check_page(const char *uri, struct sl_err *err)
{
    for (const struct page *page = pages; page < pages + SL_COUNT(pages); page++) {
        size_t bytes = strlen(page->begin);
        const char *path = uri + bytes;
        if (strncasecmp(uri, page->begin, bytes) != 0 || !is_repository(path))
            continue;
        int org = (int)strcspn(path, "/"), name = (int)strcspn(path + org + 1, "/?#");
        return sl_fail(err, SL_E_USAGE, "'%.300s' is the web page of a repository: write %s://%.*s",
                       uri, page->scheme, org + 1 + name, path);
    }
    return 0;
}

static const struct sl_store_kind *find_readable(const char *uri, struct sl_err *err)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    char known[SL_STORES_SCHEMES_MAX * 16];
    if (kind)
        return check_login(kind, uri, err) < 0 || check_page(uri, err) < 0 ? NULL : kind;
    name_schemes(known, sizeof(known), "a path", false);
    sl_fail(err, SL_E_USAGE, "no source reads '%.*s://': use %s", (int)SL_MIN(word_bytes(uri), 64),
            uri, known);
    return NULL;
}

int sl_source_check_uri(const char *uri, struct sl_err *err)
{
    const struct sl_store_kind *kind = find_readable(uri, err);
    if (!kind)
        return -1;
    return kind->check ? kind->check(uri, err) : 0;
}

int sl_store_open(const char *uri, const struct sl_source_config *config, struct sl_store **store,
                  char **key, struct sl_err *err)
{
    *store = NULL;
    *key = NULL;
    if (!uri || !*uri)
        return sl_fail(err, SL_E_USAGE, "the source has no URI: name a path, https://… or s3://…");
    const struct sl_store_kind *kind = find_readable(uri, err);
    return kind ? sl_store_open_kind(kind, uri, config, store, key, err) : -1;
}

/* ---- uploads -------------------------------------------------------------------------------- */

int sl_upload_open(const char *uri, uint64_t bytes, const struct sl_upload_config *config,
                   struct sl_upload **upload, struct sl_err *err)
{
    char known[SL_STORES_SCHEMES_MAX * 16];
    *upload = NULL;
    if (sl_upload_check_uri(uri, err) < 0)
        return -1;
    const struct sl_store_kind *kind = sl_stores_find(uri);
    if (kind && check_login(kind, uri, err) < 0)
        return -1;
    if (kind && kind->upload)
        return sl_upload_open_kind(kind, uri, bytes, config, upload, err);
    name_schemes(known, sizeof(known), "a path", true);
    return sl_fail(err, SL_E_USAGE, "nothing can be written to '%.*s:': use %s",
                   (int)SL_MIN(strcspn(uri, ":"), 64), uri, known);
}
