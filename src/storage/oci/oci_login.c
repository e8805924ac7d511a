/* Logins as container tools keep them: which file, and which of its entries is of a repository. */
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "log.h"
#include "oci_auth.h"

enum { FILE_BYTES_MAX = 1024 * 1024, PAIR_BYTES_MAX = 16 * 1024 };

void sl_oci_login_release(struct sl_oci_login *login)
{
    sl_secret_free(login->user);
    sl_secret_free(login->password);
    sl_secret_free(login->identity);
    free(login->from);
    free(login->helper);
    *login = (struct sl_oci_login){0};
}

/* ---- one entry ------------------------------------------------------------------------------- */

/* Keys of files are hosts, or URLs of hosts, with paths perhaps. How much of "host/repo" it covers;
 * 0: another one. */
static size_t covers(const char *key, const char *place)
{
    const char *slashes = strstr(key, "://");
    key = slashes ? slashes + 3 : key;
    size_t bytes = strlen(key);
    for (const char *const *end = (const char *const[]){"/v1/", "/v2/", "/v1", "/v2", "/", NULL};
         *end; end++)
        if (bytes > strlen(*end) && strcmp(key + bytes - strlen(*end), *end) == 0) {
            bytes -= strlen(*end);
            break;
        }
    if (strncmp(place, key, bytes) != 0 || (place[bytes] && place[bytes] != '/'))
        return 0;
    return bytes;
}

/* Docker Hub's logins stand under the name of a host that is not asked. */
static size_t covers_hub(const char *key, const char *place)
{
    static const char hub[] = "docker.io/";
    sl_autofree char *other = NULL;
    size_t own = covers(key, place);
    if (own || strncmp(place, hub, sizeof(hub) - 1) != 0)
        return own;
    other = sl_asprintf(NULL, "index.%s", place);
    return other ? covers(key, other) : 0;
}

/* base64 of "user:password" */
static int take_pair(const char *text, const char *from, struct sl_oci_login *login,
                     struct sl_err *err)
{
    size_t bytes = strlen(text);
    sl_autosecretbuf pair = SL_BUF_INIT(PAIR_BYTES_MAX);
    int done = -1;
    if (bytes % 4 == 0 && bytes <= PAIR_BYTES_MAX - 4) {
        sl_autosecret char *plain = sl_alloc(bytes + 1, err);
        if (!plain)
            return -1;
        done = EVP_DecodeBlock((unsigned char *)plain, (const unsigned char *)text, (int)bytes);
        if (done > 0 && sl_buf_append(&pair, plain, (size_t)done, err) < 0)
            return -1;
    }
    const char *colon = done > 0 ? strchr(sl_buf_string(&pair), ':') : NULL;
    if (!colon)
        return sl_fail(err, SL_E_USAGE,
                       "%s: an 'auth' is not base64 of user:password: log in again", from);
    login->user = sl_strndup(sl_buf_string(&pair), (size_t)(colon - sl_buf_string(&pair)), err);
    login->password = login->user ? sl_strdup(colon + 1, err) : NULL;
    return login->password ? 0 : -1;
}

static int take_entry(const json_t *entry, const char *from, struct sl_oci_login *login,
                      struct sl_err *err)
{
    const char *identity = sl_json_get_string(entry, "identitytoken");
    const char *auth = sl_json_get_string(entry, "auth");
    const char *user = sl_json_get_string(entry, "username");
    const char *password = sl_json_get_string(entry, "password");
    if (identity && *identity) {
        login->identity = sl_strdup(identity, err);
        return login->identity ? 0 : -1;
    }
    if (auth && *auth)
        return take_pair(auth, from, login, err);
    if (!user || !password || !*user)
        return 0;
    login->user = sl_strdup(user, err);
    login->password = login->user ? sl_strdup(password, err) : NULL;
    return login->password ? 0 : -1;
}

/* ---- one file -------------------------------------------------------------------------------- */

static const json_t *best_entry(const json_t *auths, const char *place)
{
    const json_t *best = NULL;
    size_t best_covers = 0;
    void *at = json_object_iter((json_t *)auths);
    for (; at; at = json_object_iter_next((json_t *)auths, at)) {
        size_t bytes = covers_hub(json_object_iter_key(at), place);
        if (bytes > best_covers && json_is_object(json_object_iter_value(at))) {
            best = json_object_iter_value(at);
            best_covers = bytes;
        }
    }
    return best;
}

/* Noted for the message of a refusal: public models need none of it. */
static int note_helper(const json_t *document, const char *host, struct sl_oci_login *login,
                       struct sl_err *err)
{
    const char *name = sl_json_get_string(json_object_get(document, "credHelpers"), host);
    name = name ? name : sl_json_get_string(document, "credsStore");
    if (!name || !*name || login->helper)
        return 0;
    login->helper = sl_strdup(name, err);
    return login->helper ? 0 : -1;
}

static void forget_helper(struct sl_oci_login *login)
{
    free(sl_steal(&login->helper));
    free(sl_steal(&login->from));
}

static bool is_found(const struct sl_oci_login *login)
{
    return login->user || login->identity;
}

int sl_oci_login_parse(const char *text, size_t bytes, const char *path, const char *host,
                       const char *repo, struct sl_oci_login *login, struct sl_err *err)
{
    sl_autofree char *from = sl_asprintf(err, "'%s'", path);
    sl_autofree char *place = from ? sl_asprintf(err, "%s/%s", host, repo) : NULL;
    json_t *document = place ? sl_json_parse(text, bytes, from, err) : NULL;
    if (!document) {
        if (err && err->kind == SL_E_FORMAT)
            err->kind = SL_E_USAGE;
        return -1;
    }
    const json_t *auths = json_object_get(document, "auths");
    /* what is in a Secret of type kubernetes.io/dockercfg has no "auths" around it */
    const json_t *entry = best_entry(auths ? auths : document, place);
    int result = entry ? take_entry(entry, from, login, err) : 0;
    if (result == 0 && !is_found(login))
        result = note_helper(document, host, login, err);
    json_decref(document);
    if (result == 0 && is_found(login))
        forget_helper(login); /* of a file before */
    if (result == 0 && (is_found(login) || login->helper) && !login->from)
        login->from = sl_steal(&from);
    return result;
}

/* ---- which file ------------------------------------------------------------------------------ */

static int read_login(const char *path, const char *host, const char *repo,
                      struct sl_oci_login *login, struct sl_err *err)
{
    sl_autosecretbuf text = SL_BUF_INIT(FILE_BYTES_MAX);
    if (sl_buf_read_file(&text, path, err) < 0)
        return -1;
    return sl_oci_login_parse(sl_buf_string(&text), text.used, path, host, repo, login, err);
}

/* Directories of variables, and files in them, in the order of container tools. */
static const struct {
    const char *variable, *file;
} usual[] = {
    {"REGISTRY_AUTH_FILE", ""},
    {"DOCKER_CONFIG", "/config.json"},
    {"DOCKER_CONFIG", "/.dockerconfigjson"},
    {"KSERVE_OCI_DOCKER_CONFIG", ""},
    {"XDG_RUNTIME_DIR", "/containers/auth.json"},
    {"HOME", "/.docker/config.json"},
    {"HOME", "/.config/containers/auth.json"},
};

/* A file that is named itself is meant; of folders, one that is there. */
static void warn_unreadable(const char *variable, const char *file, bool named)
{
    struct sl_err why = SL_ERR_INIT;
    if (!named && errno != EACCES)
        return;
    sl_fail_errno(&why, SL_E_AUTH, errno, "%s leads to '%s', which cannot be read", variable, file);
    sl_log(SL_LOG_WARN, "%s; no login is taken from it", why.message);
}

int sl_oci_login_find(const char *path, const char *host, const char *repo,
                      struct sl_oci_login *login, struct sl_err *err)
{
    if (path && *path)
        return read_login(path, host, repo, login, err) < 0
                   ? sl_wrap(err, "source.oci.dockerConfig")
                   : 0;
    for (size_t i = 0; i < SL_COUNT(usual) && !is_found(login); i++) {
        const char *value = getenv(usual[i].variable);
        if (!value || !*value)
            continue;
        sl_autofree char *file = sl_asprintf(err, "%s%s", value, usual[i].file);
        if (!file)
            return -1;
        if (access(file, R_OK) != 0)
            warn_unreadable(usual[i].variable, file, !*usual[i].file);
        else if (read_login(file, host, repo, login, err) < 0)
            return sl_wrap(err, "%s", usual[i].variable);
    }
    return 0;
}
