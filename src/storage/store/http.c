/*
 * Any web server that answers range requests, over range_lane.c.
 *
 * The base is the folder of the URI that was named. The object that was named keeps its path and
 * query exactly as written (a presigned URL's signature covers them); other objects are named by an
 * index, and their names are percent-encoded below the base.
 *
 * Credentials belong to the origin of the base: a request that a redirect led elsewhere carries
 * none of them, configured headers included. Where an object was redirected to is remembered for
 * its other ranges, until that place cannot be reached or answers 401, 403, 404 or 410: signed
 * links expire.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "http_store.h"
#include "imds.h"
#include "log.h"
#include "netrc.h"
#include "url.h"

enum { CREDENTIALS_BYTES_MAX = 64 * 1024, HEADERS_MAX = SL_RANGE_HEADERS_MAX - 8 };

static const struct sl_option http_rows[] = {
    SL_OPTION(sl_http_options, bearer_token_file, STRING, "",
              "file with a token that is sent as Authorization: Bearer to the source's own host"),
    SL_OPTION(sl_http_options, headers_file, STRING, "",
              "file with lines 'Name: value' that are sent to the source's own host"),
    SL_OPTION_END,
};
const struct sl_option_table sl_http_table = {"http", sizeof(struct sl_http_options), http_rows};

struct http_store {
    struct sl_url base; /* target is the folder, with its last '/' */
    char *base_url;     /* without userinfo and query */
    char *key,
        *key_target; /* the object that the URI named: name; last segment and query as written */
    char *login;     /* "Basic …" from the URI or .netrc, NULL for none */
    struct {
        pthread_mutex_t mutex;
        bool loaded;
        struct sl_buf bearer, headers; /* of the files; headers as strings one after another */
    } locked;
};

struct http_source {
    char *url; /* with query */
    struct {
        pthread_mutex_t mutex;
        char *resolved; /* where redirects led, NULL: nowhere */
    } locked;
};

/* ---- opening --------------------------------------------------------------------------------- */

/* The default entry is for whichever host comes: without TLS whoever is on the way would have it.
 */
static int find_in_netrc(struct http_store *http, struct sl_err *err)
{
    struct sl_netrc_login netrc;
    if (!sl_netrc_find(http->base.host, &netrc))
        return 0;
    bool sent = http->base.tls || !netrc.by_default;
    if (sent)
        http->login = sl_http_basic(netrc.login, netrc.password, err);
    else
        sl_log(SL_LOG_WARN,
               "the default entry of .netrc is not sent to '%s', which is without TLS: use https, "
               "or name the host in an entry 'machine %s'",
               http->base.host, http->base.host);
    explicit_bzero(&netrc, sizeof(netrc));
    return !sent || http->login ? 0 : -1;
}

static int find_login(struct http_store *http, struct sl_err *err)
{
    const char *userinfo = http->base.userinfo;
    if (!userinfo)
        return find_in_netrc(http, err);
    size_t colon = strcspn(userinfo, ":");
    const char *rest = userinfo + colon + (userinfo[colon] == ':');
    sl_autofree char *user = sl_url_decode(userinfo, colon, err);
    sl_autofree char *password = user ? sl_url_decode(rest, strlen(rest), err) : NULL;
    http->login = password ? sl_http_basic(user, password, err) : NULL;
    return http->login ? 0 : sl_wrap(err, "the user and password in the URL");
}

/* Cut the target into the folder and the object's last segment with its query. */
static int split_target(struct http_store *http, char **key, struct sl_err *err)
{
    char *target = http->base.target;
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

static int http_check(const char *uri, struct sl_err *err)
{
    sl_autourl url = {0};
    return sl_url_parse(uri, &url, err);
}

static int http_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    struct http_store *http = store->impl = sl_alloc(sizeof(*http), err);
    if (!http)
        return -1;
    pthread_mutex_init(&http->locked.mutex, NULL);
    http->locked.bearer.limit = http->locked.headers.limit = CREDENTIALS_BYTES_MAX;
    if (sl_url_parse(uri, &http->base, err) < 0 || split_target(http, key, err) < 0 ||
        find_login(http, err) < 0)
        return -1;
    http->base_url = sl_url_format(&http->base, false, err);
    store->uri = http->base_url ? sl_strdup(http->base_url, err) : NULL;
    return store->uri ? 0 : -1;
}

static void http_close(struct sl_store *store)
{
    struct http_store *http = store->impl;
    if (!http)
        return;
    sl_url_release(&http->base);
    free(http->base_url);
    free(http->key);
    free(http->key_target);
    free(http->login);
    sl_buf_release(&http->locked.bearer);
    sl_buf_release(&http->locked.headers);
    pthread_mutex_destroy(&http->locked.mutex);
    free(http);
}

static int http_list(struct sl_store *store,
                     int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                     void *arg, struct sl_err *err)
{
    (void)each, (void)arg;
    return sl_fail(
        err, SL_E_USAGE,
        "'%s' has no listing: name an object, or an index such as model.safetensors.index.json",
        store->uri);
}

static int http_locate(struct sl_source *source, struct sl_err *err)
{
    struct http_store *http = source->store->impl;
    struct http_source *place = source->impl = sl_alloc(sizeof(*place), err);
    if (!place)
        return -1;
    pthread_mutex_init(&place->locked.mutex, NULL);
    bool named = http->key[0] && strcmp(source->name, http->key) == 0;
    sl_autofree char *encoded =
        named ? sl_strdup(http->key_target, err) : sl_url_encode(source->name, true, err);
    if (!encoded)
        return -1;
    place->url = sl_asprintf(err, "%s%s", http->base_url, encoded);
    source->uri = sl_asprintf(err, "%s%.*s", http->base_url, (int)strcspn(encoded, "?"), encoded);
    return place->url && source->uri ? 0 : -1;
}

static void http_forget(struct sl_source *source)
{
    struct http_source *place = source->impl;
    if (!place)
        return;
    pthread_mutex_destroy(&place->locked.mutex);
    free(place->url);
    free(place->locked.resolved);
    free(place);
}

/* ---- credentials ----------------------------------------------------------------------------- */

/* Under the lock: the token without the newline that editors put behind it. */
static int load_bearer(struct http_store *http, const char *path, struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(CREDENTIALS_BYTES_MAX);
    if (sl_buf_read_file(&text, path, err) < 0) {
        err->kind = SL_E_AUTH;
        return sl_wrap(err, "source.http.bearerTokenFile");
    }
    const char *token = sl_buf_string(&text);
    size_t bytes = text.used;
    while (bytes && strchr("\r\n \t", token[bytes - 1]))
        bytes--;
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)token[i] <= 0x20 || (unsigned char)token[i] >= 0x7f)
            return sl_fail(err, SL_E_AUTH,
                           "source.http.bearerTokenFile: '%s' holds more than one token", path);
    if (!bytes)
        return sl_fail(err, SL_E_AUTH, "source.http.bearerTokenFile: '%s' is empty", path);
    http->locked.bearer.used = 0;
    return sl_buf_append(&http->locked.bearer, token, bytes, err);
}

/* Under the lock: the lines become strings one after another. */
static int load_headers(struct http_store *http, const char *path, struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(CREDENTIALS_BYTES_MAX);
    if (sl_buf_read_file(&text, path, err) < 0) {
        err->kind = SL_E_AUTH;
        return sl_wrap(err, "source.http.headersFile");
    }
    http->locked.headers.used = 0;
    unsigned number = 0, count = 0;
    for (const char *line = sl_buf_string(&text); *line || line == sl_buf_string(&text);) {
        size_t bytes = strcspn(line, "\n"), used = bytes;
        number++;
        while (used && strchr("\r \t", line[used - 1]))
            used--;
        size_t name = strcspn(line, ":\r\n \t");
        bool good =
            used == 0 || (name && name < used && line[name] == ':' && ++count <= HEADERS_MAX);
        for (size_t i = 0; good && i < used; i++)
            good = (unsigned char)line[i] >= 0x20 && line[i] != 0x7f;
        if (!good)
            return sl_fail(err, SL_E_USAGE,
                           "source.http.headersFile: '%s' line %u is not 'Name: value'", path,
                           number);
        if (used && (sl_buf_append(&http->locked.headers, line, used, err) < 0 ||
                     sl_buf_append(&http->locked.headers, "", 1, err) < 0))
            return -1;
        if (!line[bytes])
            break;
        line += bytes + 1;
    }
    return 0;
}

/* Under the lock. */
static int load_credentials(struct sl_store *store, struct sl_err *err)
{
    struct http_store *http = store->impl;
    const struct sl_http_options *options = store->config.http;
    struct sl_err problem = SL_ERR_INIT;
    if (options && options->bearer_token_file && options->bearer_token_file[0] &&
        load_bearer(http, options->bearer_token_file, &problem) < 0)
        goto failed;
    if (options && options->headers_file && options->headers_file[0] &&
        load_headers(http, options->headers_file, &problem) < 0)
        goto failed;
    http->locked.loaded = true;
    return 0;
failed:
    if (err)
        *err = problem;
    return -1;
}

static int add_credentials(struct sl_store *store, struct sl_range_request *request,
                           struct sl_err *err)
{
    struct http_store *http = store->impl;
    SL_LOCKED(&http->locked.mutex);
    if (!http->locked.loaded && load_credentials(store, err) < 0)
        return -1;
    bool authorized = false;
    const char *headers = sl_buf_string(&http->locked.headers);
    for (size_t at = 0; at < http->locked.headers.used; at += strlen(headers + at) + 1) {
        authorized |= strncasecmp(headers + at, "Authorization:", 14) == 0;
        if (sl_range_add_header(request, err, "%s", headers + at) < 0)
            return -1;
    }
    if (http->locked.bearer.used)
        return sl_range_add_header(request, err, "Authorization: Bearer %s",
                                   sl_buf_string(&http->locked.bearer));
    if (http->login && !authorized)
        return sl_range_add_header(request, err, "Authorization: %s", http->login);
    return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

int sl_http_prepare(struct sl_source *source, struct sl_range_request *request, struct sl_err *err)
{
    struct http_store *http = source->store->impl;
    struct http_source *place = source->impl;
    pthread_mutex_lock(&place->locked.mutex);
    request->url = sl_strdup(place->locked.resolved ? place->locked.resolved : place->url, err);
    pthread_mutex_unlock(&place->locked.mutex);
    sl_autourl url = {0};
    if (!request->url || sl_url_parse(request->url, &url, err) < 0)
        return -1;
    return sl_url_same_origin(&url, &http->base) ? add_credentials(source->store, request, err) : 0;
}

/* A stranger's answer must not send us to the services of our own machine. */
static int check_place(struct sl_source *source, const char *to, struct sl_err *err)
{
    struct http_store *http = source->store->impl;
    sl_autourl url = {0};
    if (sl_url_parse(to, &url, err) < 0)
        return -1;
    if (!sl_imds_redirect_refused(http->base.host, url.host))
        return 0;
    sl_fail(err, SL_E_NET,
            "redirected to '%.100s', an address where clouds keep the keys of machines, which is "
            "not followed",
            url.host);
    if (err)
        err->retryable = false;
    return -1;
}

int sl_http_redirect(struct sl_source *source, const char *from, const char *to, int status,
                     struct sl_err *err)
{
    struct http_source *place = source->impl;
    if (strncmp(from, "https:", 6) == 0 && strncmp(to, "https:", 6) != 0) {
        sl_fail(err, SL_E_NET, "redirected (%d) from https to http, which is not followed", status);
        if (err)
            err->retryable = false;
        return -1;
    }
    if (check_place(source, to, err) < 0)
        return -1;
    char *copy = sl_strdup(to, err);
    if (!copy)
        return -1;
    SL_LOCKED(&place->locked.mutex);
    free(place->locked.resolved);
    place->locked.resolved = copy;
    return 0;
}

/* The first line of a plain-text answer tells people more than the status. */
static int http_refuse(struct sl_source *source, const struct sl_exchange *exchange,
                       const char *body, size_t body_bytes, struct sl_err *err)
{
    char what[400], detail[160] = "";
    const char *type = sl_exchange_header(exchange, "Content-Type");
    if (type && strncasecmp(type, "text/plain", 10) == 0 && body_bytes)
        snprintf(detail, sizeof(detail), "('%.*s')", (int)SL_MIN(strcspn(body, "\r\n"), 120), body);
    snprintf(what, sizeof(what), "cannot read '%.380s'", source->uri);
    return sl_http_fail(err, sl_exchange_status(exchange),
                        sl_exchange_header(exchange, "Retry-After"), what, detail);
}

/* An expired link, or one to a place that is gone, is resolved again; renewed credential files are
 * read again. */
static bool http_mend(struct sl_source *source, const struct sl_err *why, struct sl_err *err)
{
    struct http_source *place = source->impl;
    struct http_store *http = source->store->impl;
    int status = why->http_status;
    bool unreached = strcmp(why->code, SL_NET_UNREACHED) == 0;
    if (unreached || status == 401 || status == 403 || status == 404 || status == 410) {
        SL_LOCKED(&place->locked.mutex);
        if (place->locked.resolved) {
            free(sl_steal(&place->locked.resolved));
            return true;
        }
    }
    const struct sl_http_options *options = source->store->config.http;
    if (status != 401 || !options || (!options->bearer_token_file && !options->headers_file))
        return false;
    SL_LOCKED(&http->locked.mutex);
    return load_credentials(source->store, err) == 0;
}

static struct sl_lane *http_lane_new(struct sl_store *store, struct sl_err *err)
{
    static const struct sl_range_ops ops = {sl_http_prepare, http_refuse, sl_http_redirect};
    return sl_range_lane_new(store, &ops, err);
}

const struct sl_backend sl_http_backend = {
    .name = "http",
    .check = http_check,
    .open = http_open,
    .close = http_close,
    .list = http_list,
    .locate = http_locate,
    .forget = http_forget,
    .lane_new = http_lane_new,
    .lane_free = sl_range_lane_free,
    .lane_start = sl_range_lane_start,
    .lane_read = sl_range_lane_read,
    .lane_poll = sl_range_lane_poll,
    .lane_abort = sl_range_lane_abort,
    .lane_hurry = sl_range_lane_hurry,
    .lane_sent_twice = sl_range_lane_sent_twice,
    .lane_connect = sl_range_lane_connect,
    .lane_leads_to = sl_range_lane_leads_to,
    .mend = http_mend,
    .prepare = sl_http_prepare,
};
