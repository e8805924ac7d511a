/*
 * Local things come first, as with KServe's own initializer: whatever exists as a path is one. Then
 * the schemes that are somebody else's, each with the way out, and those of sluice last.
 */
#include "storage_uri.h"

#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "mem.h"
#include "stores.h"
#include "url.h"

enum { SCHEMES_BYTES = 512 };

static bool begins(const char *text, const char *beginning)
{
    return strncasecmp(text, beginning, strlen(beginning)) == 0;
}

/* The URI of "sluice+s3://…", "sluice-big+s3://…", "sluice+https:HOST/…"; free() it. */
static char *without_prefix(const char *argument, struct sl_err *err)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    const char *rest = begins(argument, "sluice") ? argument + 6 : "";
    if (*rest == '-')
        rest += strspn(rest, word);
    if (*rest != '+')
        return sl_strdup(argument, err);
    size_t scheme = strcspn(++rest, ":") + 1;
    bool without_slashes = (begins(rest, "http:") || begins(rest, "https:")) && rest[scheme] != '/';
    return without_slashes ? sl_asprintf(err, "%.*s//%s", (int)scheme, rest, rest + scheme)
                           : sl_strdup(rest, err);
}

char *sl_storage_uri_sanitize(const char *argument, struct sl_err *err)
{
    sl_autofree char *uri = without_prefix(argument, err);
    return uri ? sl_uri_sanitize(uri, err) : NULL;
}

void sl_storage_uri_release(struct sl_storage_uri *uri)
{
    free(uri->held);
    *uri = (struct sl_storage_uri){0};
}

/* ---- kinds that are not read ---------------------------------------------------------------- */

static const struct {
    const char *scheme, *advice;
} foreign[] = {
    {"hdfs://", "use an S3 gateway, or leave hdfs:// to KServe's own initializer"},
    {"webhdfs://", "use an S3 gateway, or leave webhdfs:// to KServe's own initializer"},
    {"oci+native://",
     "images are KServe's own affair: let no ClusterStorageContainer of sluice match oci"},
    {"oci+fetch://",
     "images are KServe's own affair: let no ClusterStorageContainer of sluice match oci"},
    {"pvc://", "KServe mounts a volume claim by itself and never asks an initializer for it"},
};
static const char files_advice[] = "Azure Files speaks another protocol: mount the share",
                  git_advice[] = "clone the repository in a Job and load its files from there";

static bool is_azure_files(const char *uri)
{
    static const char *const hosts[] = {".file.core.windows.net/", ".file.storage.azure.net/"};
    for (size_t i = 0; begins(uri, "https://") && i < SL_COUNT(hosts); i++)
        if (strcasestr(uri, hosts[i]))
            return true;
    return false;
}

static bool is_repository(const char *uri)
{
    size_t bytes = strcspn(uri, "?#");
    return begins(uri, "https://") && bytes > 4 && strncmp(uri + bytes - 4, ".git", 4) == 0;
}

static int refuse(const char *uri, const char *advice, struct sl_err *err)
{
    sl_autofree char *clean = sl_uri_sanitize(uri, err);
    return clean ? sl_fail(err, SL_E_USAGE, "'%.300s' is not read by sluice: %s", clean, advice)
                 : -1;
}

/* store: the one that reads it, NULL: none. */
static int refuse_foreign(const char *uri, const struct sl_store_kind *store, struct sl_err *err)
{
    for (size_t i = 0; !store && i < SL_COUNT(foreign); i++)
        if (begins(uri, foreign[i].scheme))
            return refuse(uri, foreign[i].advice, err);
    if (is_azure_files(uri))
        return refuse(uri, files_advice, err);
    if (is_repository(uri))
        return refuse(uri, git_advice, err);
    return 0;
}

/* ---- kinds that are ------------------------------------------------------------------------- */

const char *sl_storage_local_path(const char *text)
{
    return begins(text, "file://") ? text + 7 : text;
}

/* 1: it is local; 0: it is not; -1: it should be, but is not there. */
static int parse_local(struct sl_storage_uri *uri, struct sl_err *err)
{
    const char *path = sl_storage_local_path(uri->text);
    uri->kind = SL_STORAGE_LOCAL;
    if (*path && access(path, F_OK) == 0)
        return 1;
    if (path == uri->text && begins(path, "/mnt/models")) {
        uri->kind = SL_STORAGE_MOUNTED;
        return 1;
    }
    if (path != uri->text || *path == '/')
        return sl_fail(err, SL_E_NOT_FOUND, "there is no '%s': is the volume mounted?", uri->text);
    return 0;
}

static int no_file(const char *uri, struct sl_err *err)
{
    sl_autofree char *clean = sl_uri_sanitize(uri, err);
    return clean ? sl_fail(err, SL_E_USAGE,
                           "'%.300s' names no file: a web server has no listing, so give the URL "
                           "of one",
                           clean)
                 : -1;
}

/* A URL names a file, with or without a query. */
static int check_url(const char *uri, struct sl_err *err)
{
    const char *path = strstr(uri, "://") + 3;
    size_t bytes = strcspn(path, "?#");
    if (!memchr(path, '/', bytes) || path[bytes - 1] == '/')
        return no_file(uri, err);
    return 0;
}

static int judge(struct sl_storage_uri *uri, struct sl_err *err)
{
    int local = parse_local(uri, err);
    if (local)
        return local < 0 ? -1 : 0;
    const struct sl_store_kind *store = sl_stores_find(uri->text);
    if (store && store->traits.local)
        store = NULL; /* that would be there */
    uri->kind = SL_STORAGE_REMOTE;
    uri->store = store;
    if (refuse_foreign(uri->text, store, err) < 0)
        return -1;
    if (store)
        return store->traits.urls && !store->traits.listing ? check_url(uri->text, err) : 0;
    char known[SCHEMES_BYTES];
    sl_stores_name_schemes(known, sizeof(known));
    return sl_fail(err, SL_E_USAGE,
                   "'%.300s' is not a storage URI that is known: expected %s or a path",
                   strchr(uri->text, '@') ? "the URI" : uri->text, known);
}

int sl_storage_uri_parse(const char *argument, struct sl_storage_uri *uri, struct sl_err *err)
{
    *uri = (struct sl_storage_uri){.held = without_prefix(argument, err)};
    uri->text = uri->held;
    if (uri->held && judge(uri, err) == 0)
        return 0;
    sl_storage_uri_release(uri);
    return -1;
}

/* ---- archives ------------------------------------------------------------------------------- */

static bool ends(const char *name, size_t bytes, const char *end, bool exact)
{
    size_t length = strlen(end);
    if (bytes <= length)
        return false;
    const char *tail = name + bytes - length;
    return exact ? strncmp(tail, end, length) == 0 : strncasecmp(tail, end, length) == 0;
}

static enum sl_archive kind_of(const char *name, size_t bytes)
{
    static const char *const short_names[] = {".tar", ".tgz", ".taz", ".tz", ".tbz2", ".txz"};
    static const char *const packings[] = {".gz", ".Z", ".bz2", ".xz", ".br"};
    if (ends(name, bytes, ".zip", false))
        return SL_ARCHIVE_ZIP;
    for (size_t i = 0; i < SL_COUNT(short_names); i++)
        if (ends(name, bytes, short_names[i], false))
            return SL_ARCHIVE_TAR;
    for (size_t i = 0; i < SL_COUNT(packings); i++)
        if (ends(name, bytes, packings[i], true))
            return ends(name, bytes - strlen(packings[i]), ".tar", false) ? SL_ARCHIVE_TAR
                                                                          : SL_ARCHIVE_NONE;
    return SL_ARCHIVE_NONE;
}

enum sl_archive sl_archive_kind(const char *name)
{
    return kind_of(name, strlen(name));
}

enum sl_archive sl_archive_kind_of_url(const char *url)
{
    size_t path = strcspn(url, "?#");
    const char *query = url[path] == '?' ? url + path + 1 : "";
    enum sl_archive kind = kind_of(url, path);
    return kind ? kind : kind_of(query, strcspn(query, "#"));
}
