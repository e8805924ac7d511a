/*
 * URIs of Azure and the settings of its own clients.
 *
 * A key or a SAS of the environment belongs to one account: where a URI names another one, it is
 * left alone.
 * https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string
 */
#include "az_place.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cloud_reply.h"
#include "tokens.h"
#include "url.h"

/* Azurite's, known to everybody. */
static const char near_account[] = "devstoreaccount1", near_base[] = "http://127.0.0.1:10000/";
static const char near_key[] =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/* Settings that name a file with a secret. */
static const char sas_file[] = "source.az.sasFile", key_file[] = "source.az.accountKeyFile",
                  connection_file[] = "source.az.connectionStringFile";

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool begins(const char *text, const char *beginning)
{
    return strncasecmp(text, beginning, strlen(beginning)) == 0;
}

/* The account of "ACCOUNT.blob.core.windows.net" and its like: bytes of it, 0 if it is none. */
static size_t account_bytes(const char *host, size_t bytes, const char *service)
{
    static const char *const suffixes[] = {".core.windows.net", ".core.chinacloudapi.cn",
                                           ".core.usgovcloudapi.net", ".core.cloudapi.de",
                                           ".storage.azure.net"};
    char end[64];
    for (size_t i = 0; i < SL_COUNT(suffixes); i++) {
        size_t length = (size_t)snprintf(end, sizeof(end), "%s%s", service, suffixes[i]);
        if (bytes > length && strncasecmp(host + bytes - length, end, length) == 0)
            return strcspn(host, ".") <= 24 ? strcspn(host, ".") : 0;
    }
    return 0;
}

bool sl_az_is_blob_url(const char *uri)
{
    const char *host = begins(uri, "https://") ? uri + 8 : begins(uri, "http://") ? uri + 7 : NULL;
    if (!host)
        return false;
    const char *user = memchr(host, '@', strcspn(host, "/?#"));
    host = user ? user + 1 : host;
    return account_bytes(host, strcspn(host, "/?#:"), ".blob") > 0;
}

/* ---- connection strings ---------------------------------------------------------------------- */

void sl_az_connection_release(struct sl_az_connection *connection)
{
    free(connection->protocol);
    free(connection->account);
    sl_secret_free(connection->key);
    free(connection->suffix);
    free(connection->endpoint);
    sl_secret_free(connection->sas);
    *connection = (struct sl_az_connection){0};
}

static char **member_of(struct sl_az_connection *connection, const char *name, size_t bytes)
{
    const struct {
        const char *name;
        char **text;
    } rows[] = {
        {"DefaultEndpointsProtocol", &connection->protocol},
        {"AccountName", &connection->account},
        {"AccountKey", &connection->key},
        {"EndpointSuffix", &connection->suffix},
        {"BlobEndpoint", &connection->endpoint},
        {"SharedAccessSignature", &connection->sas},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (strlen(rows[i].name) == bytes && strncasecmp(rows[i].name, name, bytes) == 0)
            return rows[i].text;
    return NULL;
}

static int use_development(struct sl_az_connection *connection, struct sl_err *err)
{
    sl_az_connection_release(connection);
    connection->account = sl_strdup(near_account, err);
    connection->key = sl_strdup(near_key, err);
    connection->endpoint = sl_asprintf(err, "%s%s", near_base, near_account);
    return connection->account && connection->key && connection->endpoint ? 0 : -1;
}

int sl_az_connection_parse(const char *text, struct sl_az_connection *connection,
                           struct sl_err *err)
{
    *connection = (struct sl_az_connection){0};
    for (const char *at = text; *at;) {
        size_t bytes = strcspn(at, ";"), name = strcspn(at, "=");
        if (bytes && name >= bytes)
            return sl_fail(err, SL_E_USAGE,
                           "the connection string is not of the form 'Key=Value;Key=Value'");
        if (name == 21 && begins(at, "UseDevelopmentStorage=true"))
            return use_development(connection, err);
        char **member = bytes ? member_of(connection, at, name) : NULL;
        if (member) {
            sl_secret_free(*member);
            *member = sl_strndup(at + name + 1, bytes - name - 1, err);
            if (!*member)
                return -1;
        }
        at += bytes + (at[bytes] == ';');
    }
    if (!connection->account && !connection->endpoint)
        return sl_fail(err, SL_E_USAGE,
                       "the connection string names neither AccountName nor BlobEndpoint");
    return 0;
}

/* ---- URIs ------------------------------------------------------------------------------------ */

void sl_az_place_release(struct sl_az_place *place)
{
    free(place->account);
    free(place->base);
    free(place->container);
    free(place->prefix);
    free(place->shown);
    sl_secret_free(place->uri_sas);
    sl_secret_free(place->key);
    sl_secret_free(place->sas);
    *place = (struct sl_az_place){0};
}

static int check_container(const char *name, size_t bytes, struct sl_err *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    bool special = bytes && *name == '$'; /* $root, $web, $logs */
    if (special)
        name++, bytes--;
    if (bytes < 3 || bytes > 63 || strspn(name, allowed) < bytes)
        return sl_fail(
            err, SL_E_USAGE,
            "the URI names no container of 3 to 63 characters a-z, 0-9 and '-': expected "
            "az://CONTAINER/BLOB, abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/BLOB or "
            "https://ACCOUNT.blob.core.windows.net/CONTAINER/BLOB");
    return 0;
}

/* What a URI says: where the path (container first) begins, and the host, if it has one. */
struct parts {
    const char *host, *path, *query; /* query: behind '?', or NULL */
    size_t host_bytes, path_bytes;
    bool blob_url, hadoop;
};

static void split(const char *uri, struct parts *parts)
{
    *parts = (struct parts){.blob_url = sl_az_is_blob_url(uri)};
    const char *rest = strstr(uri, "://");
    rest = rest ? rest + 3 : "";
    const char *query = strchr(rest, '?');
    if (query && !parts->blob_url && !strstr(query, "sig="))
        query = NULL; /* blobs may be named so */
    size_t end = query ? (size_t)(query - rest) : strlen(rest);
    parts->query = query ? query + 1 : NULL;
    size_t first = SL_MIN(strcspn(rest, "/"), end);
    const char *at = memchr(rest, '@', first);
    parts->path = rest;
    parts->path_bytes = end;
    if (parts->blob_url) {
        parts->host = rest;
        parts->host_bytes = first;
        parts->path = rest + first + (first < end);
        parts->path_bytes = end - (size_t)(parts->path - rest);
    } else if (at) {
        parts->hadoop = true;
        parts->host = at + 1;
        parts->host_bytes = first - (size_t)(at + 1 - rest);
    }
}

/* "CONTAINER/folders/name", decoded; a Hadoop URI's without its host. */
static char *path_of(const struct parts *parts, struct sl_err *err)
{
    if (parts->blob_url)
        return sl_url_decode(parts->path, parts->path_bytes, err);
    if (!parts->hadoop)
        return sl_strndup(parts->path, parts->path_bytes, err);
    size_t container = (size_t)(parts->host - 1 - parts->path);
    size_t before = container + 1 + parts->host_bytes;
    return sl_asprintf(err, "%.*s%.*s", (int)container, parts->path,
                       (int)(parts->path_bytes - before), parts->path + before);
}

int sl_az_check(const char *uri, struct sl_err *err)
{
    struct parts parts;
    split(uri, &parts);
    if (parts.blob_url && memchr(parts.host, '@', parts.host_bytes))
        return sl_fail(err, SL_E_USAGE, "the URL of a blob must not contain a user or password");
    sl_autofree char *path = path_of(&parts, err);
    if (!path)
        return -1;
    if (parts.hadoop && !account_bytes(parts.host, parts.host_bytes, ".dfs") &&
        !account_bytes(parts.host, parts.host_bytes, ".blob"))
        return sl_fail(err, SL_E_USAGE,
                       "the URI's host is not one of Azure's: expected "
                       "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/BLOB");
    return check_container(path, strcspn(path, "/"), err);
}

/* The account and address that the URI itself names; the blob endpoint of a Hadoop URI. */
static int take_host(struct sl_az_place *place, const char *uri, const struct parts *parts,
                     struct sl_err *err)
{
    int bytes = (int)parts->host_bytes, account = (int)strcspn(parts->host, ".");
    const char *service = parts->host + account;
    place->account = sl_strndup(parts->host, (size_t)account, err);
    if (parts->hadoop && strncasecmp(service, ".dfs.", 5) == 0)
        place->base = sl_asprintf(err, "https://%.*s.blob%.*s", account, parts->host,
                                  bytes - account - 4, service + 4);
    else
        place->base = sl_asprintf(err, "%s://%.*s", begins(uri, "http:") ? "http" : "https", bytes,
                                  parts->host);
    return place->account && place->base ? 0 : -1;
}

static int take_uri(struct sl_az_place *place, const char *uri, char **key, struct sl_err *err)
{
    struct parts parts;
    if (sl_az_check(uri, err) < 0)
        return -1;
    split(uri, &parts);
    sl_autofree char *path = path_of(&parts, err);
    if (!path || sl_cloud_split(path, &place->container, &place->prefix, key, err) < 0)
        return -1;
    if (strlen(place->prefix) + strlen(*key) > SL_AZ_NAME_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "a blob's name has at most %d bytes", SL_AZ_NAME_BYTES_MAX);
    if (parts.host && take_host(place, uri, &parts, err) < 0)
        return -1;
    int scheme = (int)strcspn(uri, ":"), host = (int)parts.host_bytes;
    place->shown = parts.blob_url ? sl_asprintf(err, "%s/%s/", place->base, place->container)
                   : parts.hadoop ? sl_asprintf(err, "%.*s://%s@%.*s/", scheme, uri,
                                                place->container, host, parts.host)
                                  : sl_asprintf(err, "%.*s://%s/", scheme, uri, place->container);
    if (place->shown && parts.query && strstr(parts.query, "sig=")) {
        place->uri_sas = sl_strndup(parts.query, strcspn(parts.query, "#"), err);
        return place->uri_sas ? 0 : -1;
    }
    return place->shown ? 0 : -1;
}

/* ---- settings -------------------------------------------------------------------------------- */

struct settings {
    struct sl_az_connection connection;
    const char *connection_from;
};

static int take_connection(struct settings *settings, const char *text, const char *from,
                           struct sl_err *err)
{
    settings->connection_from = from;
    if (sl_az_connection_parse(text, &settings->connection, err) < 0)
        return sl_wrap(err, "%s", from);
    return 0;
}

static int read_connection(struct settings *settings, const struct sl_az_options *options,
                           struct sl_err *err)
{
    const char *text = env("AZURE_STORAGE_CONNECTION_STRING");
    if (options && options->connection_string_file && *options->connection_string_file) {
        sl_autosecret char *file = sl_token_from_file(options->connection_string_file, err);
        return file ? take_connection(settings, file, connection_file, err) : -1;
    }
    return text ? take_connection(settings, text, "AZURE_STORAGE_CONNECTION_STRING", err) : 0;
}

/* The first of the variables that is set. */
static const char *env_of(const char *const *names, const char **from)
{
    for (; *names; names++)
        if (env(*names)) {
            *from = *names;
            return env(*names);
        }
    return NULL;
}

static int take_secret(char **secret, const char *file, const char *said_by, struct sl_err *err)
{
    *secret = sl_token_from_file(file, err);
    return *secret ? 0 : sl_wrap(err, "%s", said_by);
}

/* Key or SAS: of the spec, the connection string, the environment. A leading '?' is cut. */
static int read_secrets(struct sl_az_place *place, const struct sl_az_options *options,
                        const struct settings *settings, bool ours, struct sl_err *err)
{
    static const char *const sas_names[] = {"AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY",
                                            NULL};
    static const char *const key_names[] = {"AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY",
                                            "AZURE_STORAGE_ACCESS_KEY", NULL};
    const struct sl_az_connection *connection = &settings->connection;
    const char *text;
    place->from = sas_file;
    if (options && options->sas_file && *options->sas_file)
        return take_secret(&place->sas, options->sas_file, place->from, err);
    place->from = key_file;
    if (options && options->account_key_file && *options->account_key_file)
        return take_secret(&place->key, options->account_key_file, place->from, err);
    place->from = settings->connection_from;
    bool same = !connection->account || !place->account ||
                strcasecmp(connection->account, place->account) == 0;
    if (same && connection->key)
        return (place->key = sl_strdup(connection->key, err)) ? 0 : -1;
    if (same && connection->sas)
        return (place->sas = sl_strdup(connection->sas, err)) ? 0 : -1;
    if (ours && (text = env_of(sas_names, &place->from)))
        return (place->sas = sl_strdup(text, err)) ? 0 : -1;
    if (ours && (text = env_of(key_names, &place->from)))
        return (place->key = sl_strdup(text, err)) ? 0 : -1;
    place->from = NULL;
    return 0;
}

/* "core.windows.net", or, as some write it, "blob.core.windows.net". */
static char *compose(const char *account, const char *protocol, const char *suffix,
                     struct sl_err *err)
{
    bool whole = begins(suffix, "blob.");
    return sl_asprintf(err, "%s://%s.%s%s", protocol, account, whole ? "" : "blob.", suffix);
}

/* As written, from the settings; NULL without err: nothing says where. */
static char *find_endpoint(const struct sl_az_place *place, const struct sl_az_options *options,
                           const struct sl_az_connection *connection, struct sl_err *err)
{
    const char *suffix = env("AZURE_STORAGE_ENDPOINT_SUFFIX"), *emulator;
    if (options && options->endpoint && *options->endpoint)
        return sl_strdup(options->endpoint, err);
    if (connection->endpoint)
        return sl_strdup(connection->endpoint, err);
    if (env("AZURE_STORAGE_ENDPOINT"))
        return sl_strdup(env("AZURE_STORAGE_ENDPOINT"), err);
    emulator = env("AZURE_STORAGE_USE_EMULATOR");
    if (emulator && (strcasecmp(emulator, "true") == 0 || strcmp(emulator, "1") == 0))
        return sl_asprintf(err, "%s%s", near_base, place->account ? place->account : near_account);
    if (!place->account)
        return NULL;
    suffix = connection->suffix ? connection->suffix : suffix;
    return compose(place->account, connection->protocol ? connection->protocol : "https",
                   suffix ? suffix : "core.windows.net", err);
}

/* The account is the host's first label, or of an address the path. */
static int take_endpoint(struct sl_az_place *place, const char *endpoint, struct sl_err *err)
{
    sl_autofree char *whole =
        sl_asprintf(err, "%s%s", strstr(endpoint, "://") ? "" : "https://", endpoint);
    sl_autourl url = {0};
    if (!whole)
        return -1;
    if (sl_url_parse(whole, &url, err) < 0)
        return sl_wrap(err, "the endpoint of Azure");
    if (!sl_url_is_base(&url))
        return sl_fail(err, SL_E_USAGE,
                       "the endpoint of Azure: expected a URL without user, query or fragment");
    place->tls = url.tls;
    place->near = sl_url_host_is_near(url.host);
    for (size_t bytes = strlen(url.target); bytes && url.target[bytes - 1] == '/';)
        url.target[--bytes] = 0;
    bool address = url.ipv6 || place->near || strspn(url.host, "0123456789.") == strlen(url.host);
    if (!place->account) {
        const char *name = *url.target ? url.target + 1 : url.host;
        place->account = *url.target || !address ? sl_strndup(name, strcspn(name, "./"), err)
                                                 : sl_strdup(near_account, err);
        if (!place->account)
            return -1;
    }
    char authority[SL_URL_AUTHORITY_MAX];
    bool adds = address && !*url.target;
    free(place->base);
    place->base =
        sl_asprintf(err, "http%s://%s%s%s%s", url.tls ? "s" : "", sl_url_authority(&url, authority),
                    url.target, adds ? "/" : "", adds ? place->account : "");
    return place->base ? 0 : -1;
}

static int check_account(const char *account, struct sl_err *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    if (!*account || strlen(account) > 63 || strspn(account, allowed) != strlen(account))
        return sl_fail(err, SL_E_USAGE, "'%.80s' is not the name of an Azure storage account",
                       account);
    return 0;
}

/* Where the account of a Hadoop URI is asked instead of at the host that the URI names: at a
 * private address, or an emulator. What a connection says is of its own account alone. NULL:
 * nowhere. */
static const char *moved_endpoint(const struct sl_az_place *place,
                                  const struct sl_az_options *options,
                                  const struct sl_az_connection *connection)
{
    if (options && options->endpoint && *options->endpoint)
        return options->endpoint;
    bool same = connection->account && strcasecmp(connection->account, place->account) == 0;
    return same ? connection->endpoint : NULL;
}

/* hadoop: the URI names account and host, as Hadoop's do. */
static int take_settings(struct sl_az_place *place, bool hadoop,
                         const struct sl_az_options *options, struct settings *settings,
                         struct sl_err *err)
{
    static const char *const names[] = {"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME",
                                        NULL};
    const char *from, *account = env_of(names, &from);
    if (read_connection(settings, options, err) < 0)
        return -1;
    bool ours = !place->account || !account || strcasecmp(account, place->account) == 0;
    if (!place->account) {
        if (options && options->account && *options->account)
            account = options->account;
        else if (settings->connection.account)
            account = settings->connection.account;
        place->account = account ? sl_strdup(account, err) : NULL;
        if (account && !place->account)
            return -1;
    }
    struct sl_err why = SL_ERR_INIT;
    const char *moved = hadoop ? moved_endpoint(place, options, &settings->connection) : NULL;
    sl_autofree char *endpoint = place->base
                                     ? sl_strdup(moved ? moved : place->base, err)
                                     : find_endpoint(place, options, &settings->connection, &why);
    if (!endpoint && (place->base || why.kind != SL_OK))
        return sl_fail(err, SL_E_NO_SPACE, "out of memory");
    if (!endpoint)
        return sl_fail(err, SL_E_USAGE,
                       "no storage account is named: set AZURE_STORAGE_ACCOUNT or "
                       "source.az.account, or write "
                       "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…");
    if (take_endpoint(place, endpoint, err) < 0 || check_account(place->account, err) < 0)
        return -1;
    return place->uri_sas ? 0 : read_secrets(place, options, settings, ours, err);
}

int sl_az_place_find(struct sl_az_place *place, const char *uri,
                     const struct sl_source_config *config, char **key, struct sl_err *err)
{
    const struct sl_az_options *options = sl_source_options(config, &sl_az_table);
    struct settings settings = {0};
    *place = (struct sl_az_place){0};
    if (take_uri(place, uri, key, err) < 0)
        return -1;
    int result = take_settings(place, place->base && begins(uri, "abfs"), options, &settings, err);
    sl_az_connection_release(&settings.connection);
    return result;
}

/* ---- secrets that are replaced --------------------------------------------------------------- */

/* What a connection string has of the kind that is used; the rest of it stays as it was read. */
static char *secret_of_connection(const char *file, bool key, struct sl_err *err)
{
    struct sl_az_connection connection = {0};
    char *found = NULL;
    sl_autosecret char *text = sl_token_from_file(file, err);
    if (text && sl_az_connection_parse(text, &connection, err) == 0)
        found = sl_steal(key ? &connection.key : &connection.sas);
    sl_az_connection_release(&connection);
    return found;
}

static bool is_from(const struct sl_az_place *place, const char *file, const char *setting)
{
    return place->from && strcmp(place->from, setting) == 0 && file && *file;
}

/* NULL: it is in no file, or cannot be read. */
static char *read_anew(const struct sl_az_place *place, const struct sl_az_options *options)
{
    if (!options || place->uri_sas)
        return NULL;
    if (is_from(place, options->sas_file, sas_file))
        return sl_token_from_file(options->sas_file, NULL);
    if (is_from(place, options->account_key_file, key_file))
        return sl_token_from_file(options->account_key_file, NULL);
    if (is_from(place, options->connection_string_file, connection_file))
        return secret_of_connection(options->connection_string_file, place->key, NULL);
    return NULL;
}

char *sl_az_place_secret(const struct sl_az_place *place, const struct sl_source_config *config,
                         struct sl_err *err)
{
    char *anew = read_anew(place, sl_source_options(config, &sl_az_table));
    if (anew)
        return anew;
    const char *known = place->uri_sas ? place->uri_sas : place->sas ? place->sas : place->key;
    return sl_strdup(known, err);
}
