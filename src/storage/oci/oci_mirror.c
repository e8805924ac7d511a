/* How mirrors are written in a spec: as a host, since that is what container tools have, and with
 * what those add to it. */
#include <ctype.h>
#include <string.h>

#include "oci_store.h"
#include "url.h"

enum { MIRROR_BYTES_MAX = 1024 };

/* Whatever may hold a password or a token is not shown. */
static int refuse(const char *text, const char *why, struct sl_err *err)
{
    bool shown = !strpbrk(text, "@?#%") && strlen(text) <= MIRROR_BYTES_MAX;
    return sl_fail(err, SL_E_USAGE,
                   "%s%.100s%s %s: expected HOST[:PORT][/PREFIX], such as cache.internal:5000",
                   shown ? "the mirror '" : "a mirror", shown ? text : "", shown ? "'" : "", why);
}

static int take_registry(const char *text, const char **rest, struct sl_oci_mirror *mirror,
                         struct sl_err *err)
{
    size_t bytes = strcspn(*rest, "=");
    if (!(*rest)[bytes])
        return 0;
    if (!sl_oci_is_host(*rest, bytes))
        return refuse(text, "names no registry before '='", err);
    mirror->registry = sl_strndup(*rest, bytes, err);
    *rest += bytes + 1;
    return mirror->registry ? 0 : -1;
}

static int take_scheme(const char *text, const char **rest, struct sl_oci_mirror *mirror,
                       struct sl_err *err)
{
    static const char plain[] = "http://", tls[] = "https://";
    mirror->plain = strncmp(*rest, plain, sizeof(plain) - 1) == 0;
    mirror->given = mirror->plain || strncmp(*rest, tls, sizeof(tls) - 1) == 0;
    if (!mirror->given && strstr(*rest, "://"))
        return refuse(text, "has a scheme that is neither https nor http", err);
    *rest += !mirror->given ? 0 : mirror->plain ? sizeof(plain) - 1 : sizeof(tls) - 1;
    return 0;
}

/* That the URL has this host and nothing else, too: a port that is none, an address cut short. */
static int check_host(const char *text, const char *host, struct sl_err *err)
{
    sl_autourl url = {0};
    sl_autofree char *made = sl_asprintf(err, "https://%s/", host);
    if (!made)
        return -1;
    bool edges = strchr("[", *host) || isalnum((unsigned char)*host);
    edges = edges && (isalnum((unsigned char)host[strlen(host) - 1]) || strchr(host, ']'));
    return edges && sl_url_parse(made, &url, NULL) == 0 && strcmp(url.target, "/") == 0
               ? 0
               : refuse(text, "names no host", err);
}

int sl_oci_mirror_parse(const char *text, struct sl_oci_mirror *mirror, struct sl_err *err)
{
    const char *rest = text;
    *mirror = (struct sl_oci_mirror){0};
    if (!*text)
        return refuse(text, "is empty", err);
    if (strchr(text, '@'))
        return sl_fail(err, SL_E_USAGE,
                       "a mirror is written with a user or a password: leave that out, and give "
                       "its login by source.oci.dockerConfig");
    if (strlen(text) > MIRROR_BYTES_MAX)
        return refuse(text, "is longer than 1,024 bytes", err);
    if (take_registry(text, &rest, mirror, err) < 0 || take_scheme(text, &rest, mirror, err) < 0)
        return -1;
    size_t bytes = strcspn(rest, "/"), all = strlen(rest);
    while (all > bytes && rest[all - 1] == '/')
        all--; /* as URLs end */
    if (!sl_oci_is_host(rest, bytes))
        return refuse(text, "names no host", err);
    if (all > bytes && !sl_oci_is_repo(rest + bytes + 1, all - bytes - 1))
        return refuse(text, "has a prefix that is not lower-case letters, digits and . _ - /", err);
    mirror->host = sl_strndup(rest, bytes, err);
    mirror->prefix =
        all > bytes ? sl_strndup(rest + bytes + 1, all - bytes - 1, err) : sl_strdup("", err);
    if (!mirror->host || !mirror->prefix)
        return -1;
    return check_host(text, mirror->host, err);
}

void sl_oci_mirror_release(struct sl_oci_mirror *mirror)
{
    free(mirror->registry);
    free(mirror->host);
    free(mirror->prefix);
    *mirror = (struct sl_oci_mirror){0};
}
