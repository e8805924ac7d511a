/* What an oci:// URI names. The grammar is that of container tools; a path may follow a tag or a
 * digest, which end the repository's name. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "oci_store.h"

enum { HOST_BYTES_MAX = 255, REPO_BYTES_MAX = 255, TAG_BYTES_MAX = 128 };

static int refuse(const char *uri, struct sl_err *err, const char *why)
{
    return sl_fail(err, SL_E_USAGE,
                   "'%.300s' %s: expected oci://HOST/REPOSITORY[:TAG|@sha256:DIGEST][/FILE], such "
                   "as oci://ghcr.io/org/model:v1",
                   uri, why);
}

bool sl_oci_is_digest(const char *text)
{
    static const char kind[] = "sha256:";
    return strncmp(text, kind, sizeof(kind) - 1) == 0 && strlen(text) == SL_OCI_DIGEST_BYTES - 1 &&
           strspn(text + sizeof(kind) - 1, "0123456789abcdef") == 64;
}

/* As container tools tell a host from the first part of a name. */
static bool is_host(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (strchr(".:", text[i]))
            return true;
    return bytes == 9 && strncasecmp(text, "localhost", 9) == 0;
}

bool sl_oci_is_host(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr(".:-_[]", text[i]))
            return false;
    return bytes >= 1 && bytes <= HOST_BYTES_MAX;
}

bool sl_oci_is_repo(const char *text, size_t bytes)
{
    bool edge = true; /* a letter or digit must come */
    if (bytes < 1 || bytes > REPO_BYTES_MAX)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (islower((unsigned char)c) || isdigit((unsigned char)c))
            edge = false;
        else if (i == 0 || !strchr("/._-", c) || (edge && !(strchr("_-", c) && text[i - 1] == c)))
            return false;
        else
            edge = true;
    }
    return !edge;
}

static bool is_tag(const char *text)
{
    size_t bytes = strlen(text);
    if (bytes < 1 || bytes > TAG_BYTES_MAX || strchr(".-", text[0]))
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("._-", text[i]))
            return false;
    return true;
}

static int take_host(const char *uri, const char **rest, struct sl_oci_uri *parts,
                     struct sl_err *err)
{
    size_t bytes = strcspn(*rest, "/");
    bool host = is_host(*rest, bytes) && (*rest)[bytes] == '/';
    if (host && !sl_oci_is_host(*rest, bytes))
        return refuse(uri, err, "names no registry");
    if (!(*rest)[bytes] && memchr(*rest, '.', strcspn(*rest, ":@")))
        return refuse(uri, err, "names a registry and no repository");
    parts->host = host ? sl_strndup(*rest, bytes, err) : sl_strdup("docker.io", err);
    *rest += host ? bytes + 1 : 0;
    return parts->host ? 0 : -1;
}

static int take_repo(const char *uri, const char **rest, struct sl_oci_uri *parts,
                     struct sl_err *err)
{
    size_t bytes = strcspn(*rest, ":@");
    size_t name = bytes;
    while (!(*rest)[bytes] && name && (*rest)[name - 1] == '/')
        name--; /* the '/' that others want behind folders */
    if (!sl_oci_is_repo(*rest, name))
        return refuse(uri, err, "names no repository (lower-case letters, digits and . _ - /)");
    bool hub = strcmp(parts->host, "docker.io") == 0 && !memchr(*rest, '/', name);
    parts->repo = sl_asprintf(err, "%s%.*s", hub ? "library/" : "", (int)name, *rest);
    *rest += bytes;
    return parts->repo ? 0 : -1;
}

/* "name:tag@sha256:…": the digest counts. */
static int take_reference(const char *uri, const char **rest, struct sl_oci_uri *parts,
                          struct sl_err *err)
{
    size_t bytes = strcspn(*rest, "/");
    const char *digest = memchr(*rest, '@', bytes);
    const char *from = digest ? digest + 1 : *rest + (**rest == ':');
    size_t length = bytes - (size_t)(from - *rest);
    parts->reference = bytes ? sl_strndup(from, length, err) : sl_strdup("latest", err);
    if (!parts->reference)
        return -1;
    if (digest && !sl_oci_is_digest(parts->reference))
        return refuse(uri, err, "has a digest that is not sha256: and 64 lower-case hex digits");
    if (!digest && !is_tag(parts->reference))
        return refuse(uri, err, "has an invalid tag");
    *rest += bytes;
    return 0;
}

int sl_oci_uri_parse(const char *uri, struct sl_oci_uri *parts, struct sl_err *err)
{
    *parts = (struct sl_oci_uri){0};
    if (strncasecmp(uri, "oci://", 6) != 0)
        return refuse(uri, err, "is not an oci:// URI");
    const char *rest = uri + 6;
    if (take_host(uri, &rest, parts, err) < 0 || take_repo(uri, &rest, parts, err) < 0 ||
        take_reference(uri, &rest, parts, err) < 0)
        return -1;
    rest += *rest == '/';
    if (!sl_repository_path_is_plain(rest))
        return refuse(uri, err, "has an invalid path");
    parts->path = sl_strdup(rest, err);
    return parts->path ? 0 : -1;
}

void sl_oci_uri_release(struct sl_oci_uri *parts)
{
    free(parts->host);
    free(parts->repo);
    free(parts->reference);
    free(parts->path);
    *parts = (struct sl_oci_uri){0};
}
