/*
 * Objects of S3 and compatible stores, read by ranges through the channel that http uses too.
 *
 * A range request is pinned by If-Match with the ETag of the first answer, not by versionId: that
 * would need the right s3:GetObjectVersion, which readers of models rarely have. The first request
 * is already a GET of the head, so opening costs one round trip and works without further rights.
 */
#include "s3_store.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "http_call.h"
#include "log.h"
#include "proxy.h"

/** source->impl */
struct object {
    struct sl_s3 *s3;
    char *key;
    struct {
        pthread_mutex_t mutex;
        struct sl_http_object *link; /* where its URL leads; NULL: redirects are not followed */
        struct sl_s3_signed request; /* for all ranges, while it is current */
        bool whole;                  /* empty objects have no range: ask without one */
    } locked;
};

/* ---- the store ------------------------------------------------------------------------------ */

/* How much of a path is the bucket, or an access point: "arn:aws:s3:…:accesspoint/NAME". */
static size_t bucket_bytes_of(const char *path)
{
    size_t bytes = strcspn(path, "/");
    bool named =
        sl_s3_is_arn(path) && bytes >= 11 && memcmp(path + bytes - 11, "accesspoint", 11) == 0;
    return named && path[bytes] ? bytes + 1 + strcspn(path + bytes + 1, "/") : bytes;
}

static int check_bucket(const char *bucket, size_t bytes, const char *uri, struct sl_err *err)
{
    if (sl_s3_is_arn(bucket)) {
        struct sl_s3_arn arn;
        sl_autofree char *text = sl_strndup(bucket, bytes, err);
        return text ? sl_s3_arn_parse(text, &arn, err) : -1;
    }
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:";
    if (bytes < 1 || bytes > 255 || strspn(bucket, allowed) < bytes)
        return sl_fail(err, SL_E_USAGE,
                       "'%.300s' names no bucket: expected s3://BUCKET/KEY or s3://BUCKET/PREFIX/",
                       uri);
    return 0;
}

static int s3_check(const char *uri, struct sl_err *err)
{
    const char *bucket = strncasecmp(uri, "s3://", 5) == 0 ? uri + 5 : "";
    return check_bucket(bucket, bucket_bytes_of(bucket), uri, err);
}

/* Names of versions have 32 letters at Amazon and Ceph. Others are told from a part of the key by
 * a name in front of them that has a dot, and none of their own. */
static bool is_version(const char *name, const char *mark)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t bytes = strlen(mark + 1);
    if (!bytes || strspn(mark + 1, allowed) < bytes)
        return false;
    return bytes == 32 || (memchr(name, '.', (size_t)(mark - name)) && !strchr(mark + 1, '.'));
}

/* "key?versionId=X", or "key#X": cut off, and kept. */
static int split_version(struct sl_s3 *s3, char *path, struct sl_err *err)
{
    static const char query[] = "?versionId=";
    char *mark = strstr(path, query), *name = strrchr(path, '/');
    const char *version = mark ? mark + sizeof(query) - 1 : NULL;
    name = name ? name + 1 : path;
    if (!mark && (mark = strrchr(name, '#')) && is_version(name, mark))
        version = mark + 1;
    if (!version)
        return 0;
    if (!*version || mark == path || mark[-1] == '/')
        return sl_fail(err, SL_E_USAGE, "a version is of one object: expected s3://BUCKET/KEY%sID",
                       query);
    s3->version = sl_strdup(version, err);
    *mark = 0;
    return s3->version ? 0 : -1;
}

/* s3://bucket/folders/key: the key's last segment is *key, what is before it the prefix. */
static int split_uri(struct sl_s3 *s3, const char *uri, char **key, struct sl_err *err)
{
    const char *bucket = strncasecmp(uri, "s3://", 5) == 0 ? uri + 5 : "";
    size_t bucket_bytes = bucket_bytes_of(bucket);
    if (check_bucket(bucket, bucket_bytes, uri, err) < 0)
        return -1;
    sl_autofree char *path = sl_strdup(bucket + bucket_bytes + (bucket[bucket_bytes] == '/'), err);
    if (!path || split_version(s3, path, err) < 0)
        return -1;
    if (strlen(path) > SL_S3_KEY_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "the key in '%.100s…' has %zu bytes, S3 allows %d", uri,
                       strlen(path), SL_S3_KEY_BYTES_MAX);
    const char *slash = strrchr(path, '/');
    size_t prefix_bytes = slash ? (size_t)(slash - path) + 1 : 0;
    s3->bucket = sl_strndup(bucket, bucket_bytes, err);
    s3->prefix = s3->bucket ? sl_strndup(path, prefix_bytes, err) : NULL;
    *key = s3->prefix ? sl_strdup(path + prefix_bytes, err) : NULL;
    s3->named = *key && s3->version ? sl_strdup(*key, err) : NULL;
    return *key && (s3->named || !s3->version) ? 0 : -1;
}

/* What an .s3cfg, or Amazon's own variable, says of TLS where the spec is silent. */
static void add_tls(struct sl_s3 *s3)
{
    const struct sl_s3cfg *s3cfg = sl_creds_s3cfg(s3->creds);
    struct sl_source_config *config = &s3->store->config;
    const char *bundle = getenv("AWS_CA_BUNDLE");
    if (!s3cfg->ca_file && !s3cfg->no_verify && !(bundle && *bundle))
        return;
    s3->tls = config->tls ? *config->tls : (struct sl_tls_options){.verify = true};
    if (!(s3->tls.ca_file && *s3->tls.ca_file) && (s3cfg->ca_file || (bundle && *bundle))) {
        s3->tls.ca_file = s3cfg->ca_file ? s3cfg->ca_file : (char *)(uintptr_t)bundle;
        s3->tls.ca_from = s3cfg->ca_file ? "ca_certs_file of .s3cfg" : "AWS_CA_BUNDLE";
    }
    if (s3cfg->no_verify)
        s3->tls.verify = false;
    config->tls = &s3->tls;
}

static int s3_checksums(struct sl_source *source, struct sl_checksums *sums, struct sl_err *err)
{
    const struct object *object = source->impl;
    return sl_s3_checksums(object->s3, object->key, source, sums, err);
}

/* What options and the endpoint's host tell, and where it may send us; no other thread knows the
 * store yet. */
static int heed_endpoint(struct sl_s3 *s3, struct sl_err *err)
{
    const struct sl_s3_endpoint *endpoint = &s3->locked.endpoint;
    const struct sl_s3_options *options = sl_source_options(&s3->store->config, &sl_s3_table);
    s3->store->advice.checksums = s3_checksums;
    s3->store->advice.range_bytes_min = endpoint->range_bytes_min;
    if (options && options->prestage)
        s3->store->advice.prestage = sl_s3_prestage;
    if (*endpoint->region && !sl_creds_region_given(s3->creds))
        memcpy(s3->locked.region, endpoint->region, sizeof(endpoint->region));
    const char *hosts = options && options->follow_redirects ? options->follow_redirects : "";
    if (!*hosts)
        return 0;
    s3->follows = hosts;
    return sl_http_base_init(&s3->http, endpoint->origin, err);
}

static int s3_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    struct sl_s3 *s3 = sl_alloc(sizeof(*s3), err);
    if (!s3)
        return -1;
    store->impl = s3;
    s3->store = store;
    pthread_mutex_init(&s3->locked.mutex, NULL);
    if (split_uri(s3, uri, key, err) < 0)
        return -1;
    store->uri = sl_asprintf(err, "s3://%s/%s", s3->bucket, s3->prefix);
    s3->creds = store->uri ? sl_creds_new(&store->config, err) : NULL;
    if (!s3->creds)
        return store->uri ? sl_wrap(err, "cannot open '%s'", store->uri) : -1;
    add_tls(s3);
    struct sl_s3_arn arn = {.region = ""};
    if (sl_s3_is_arn(s3->bucket) && sl_s3_arn_parse(s3->bucket, &arn, err) < 0)
        return -1;
    snprintf(s3->locked.region, sizeof(s3->locked.region), "%s",
             *arn.region ? arn.region : sl_creds_region(s3->creds));
    if (sl_s3_endpoint_find(&s3->locked.endpoint, sl_source_options(&store->config, &sl_s3_table),
                            s3->creds, s3->bucket, s3->locked.region, err) < 0 ||
        heed_endpoint(s3, err) < 0)
        return sl_wrap(err, "cannot open '%s'", store->uri);
    sl_log(SL_LOG_DEBUG, "'%s' is at %s%s (from %s), region %s", store->uri,
           s3->locked.endpoint.origin, s3->locked.endpoint.base, s3->locked.endpoint.from,
           s3->locked.region);
    return 0;
}

static void s3_describe(struct sl_store *store,
                        void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    struct sl_s3 *s3 = store->impl;
    char text[1024], region[SL_S3_REGION_MAX];
    {
        SL_LOCKED(&s3->locked.mutex);
        memcpy(region, s3->locked.region, sizeof(region));
        snprintf(text, sizeof(text), "%s%s (from %s)", s3->locked.endpoint.origin,
                 s3->locked.endpoint.base, s3->locked.endpoint.from);
    }
    row(arg, "endpoint", text);
    row(arg, "region", region);
    row(arg, "credentials",
        sl_creds_none_found(s3->creds) ? "none found: requests go unsigned"
                                       : sl_creds_origin(s3->creds));
}

static void s3_close(struct sl_store *store)
{
    struct sl_s3 *s3 = store->impl;
    if (!s3)
        return;
    if (s3->follows)
        sl_http_base_close(&s3->http);
    sl_s3_endpoint_release(&s3->locked.endpoint);
    explicit_bzero(&s3->locked.key, sizeof(s3->locked.key));
    pthread_mutex_destroy(&s3->locked.mutex);
    sl_creds_free(s3->creds);
    free(s3->bucket);
    free(s3->prefix);
    free(s3->version);
    free(s3->named);
    free(s3);
    store->impl = NULL;
}

/* ---- objects -------------------------------------------------------------------------------- */

static void s3_forget(struct sl_source *source)
{
    struct object *object = source->impl;
    if (!object)
        return;
    sl_s3_signed_release(&object->locked.request);
    pthread_mutex_destroy(&object->locked.mutex);
    free(object->key);
    free(object);
    source->impl = NULL;
}

static int s3_locate(struct sl_source *source, struct sl_err *err)
{
    struct sl_s3 *s3 = source->store->impl;
    struct object *object = sl_alloc(sizeof(*object), err);
    if (!object)
        return -1;
    source->impl = object;
    object->s3 = s3;
    pthread_mutex_init(&object->locked.mutex, NULL);
    sl_autofree char *query = NULL; /* of a version that was named, which messages name, too */
    object->key = sl_asprintf(err, "%s%s", s3->prefix, source->name);
    if (!object->key || sl_s3_version_query(s3, object->key, &query, err) < 0)
        return -1;
    source->uri =
        sl_asprintf(err, "%s%s%s%s", source->store->uri, source->name, *query ? "?" : "", query);
    if (!source->uri)
        return -1;
    if (!*object->key || strlen(object->key) > SL_S3_KEY_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "'%.200s' names no object: a key has 1 to %d bytes",
                       source->uri, SL_S3_KEY_BYTES_MAX);
    return 0;
}

/* Under the object's lock: where its URL led, or itself. */
static int place(struct object *object, const char *url, struct sl_range_request *request,
                 struct sl_err *err)
{
    struct sl_s3 *s3 = object->s3;
    if (!s3->follows) {
        request->url = sl_strdup(url, err);
        return request->url ? 0 : -1;
    }
    object->locked.link = sl_http_base_object(&s3->http, url, err);
    return object->locked.link ? sl_http_prepare(&s3->http, object->locked.link, request, err) : -1;
}

static struct sl_http_object *link_of(struct object *object)
{
    SL_LOCKED(&object->locked.mutex);
    return object->locked.link;
}

/* The same request is sent to the node that has the object, as it is: whoever named its host trusts
 * it with the signature, which lets this object be read for some minutes. */
static int redirect(struct sl_source *source, const struct sl_exchange *exchange, const char *from,
                    const char *to, struct sl_err *err)
{
    struct object *object = source->impl;
    struct sl_s3 *s3 = object->s3;
    sl_autourl url = {0};
    if (!s3->follows || sl_exchange_header(exchange, "x-amz-bucket-region"))
        return 1;
    if (sl_url_parse(to, &url, err) < 0)
        return -1;
    if (!sl_proxy_excluded(&url, s3->follows))
        return sl_fail(err, SL_E_USAGE,
                       "the store sends its readers on to '%.200s', which "
                       "source.s3.followRedirects does not name",
                       url.host);
    return sl_http_redirect(&s3->http, link_of(object), from, to, sl_exchange_status(exchange),
                            err);
}

static int sign(const struct object *object, struct sl_s3_signed *made, struct sl_err *err)
{
    sl_autofree char *query = NULL;
    return sl_s3_version_query(object->s3, object->key, &query, err) < 0
               ? -1
               : sl_s3_sign(object->s3, "GET", object->key, query, made, err);
}

static int prepare(struct sl_source *source, struct sl_range_request *request, struct sl_err *err)
{
    struct object *object = source->impl;
    SL_LOCKED(&object->locked.mutex);
    struct sl_s3_signed *made = &object->locked.request;
    if (!sl_s3_signed_current(object->s3, made) && sign(object, made, err) < 0)
        return sl_wrap(err, "cannot read '%.300s'", source->uri);
    request->whole = object->locked.whole;
    request->dates_compared = true;
    if (place(object, made->url, request, err) < 0)
        return -1;
    for (unsigned i = 0; i < made->header_count; i++)
        if (sl_range_add_header(request, err, "%s", made->headers[i]) < 0)
            return -1;
    return 0;
}

/* 416 to the first range of all: the object is empty, and its answer told neither that in a header
 * nor the version. */
static bool is_empty(const struct sl_source *source, int status, const char *body)
{
    const char *size = strstr(body, "<ActualObjectSize>");
    return status == 416 && !source->opened &&
           (!size || strncmp(size, "<ActualObjectSize>0<", 20) == 0);
}

static int refuse(struct sl_source *source, const struct sl_exchange *exchange, const char *body,
                  size_t body_bytes, struct sl_err *err)
{
    struct object *object = source->impl;
    char what[400];
    sl_autourl to = {0};
    const char *location = sl_exchange_header(exchange, "Location");
    bool sent_on = location && sl_url_parse(location, &to, NULL) == 0;
    snprintf(what, sizeof(what), "cannot read '%.380s'", source->uri);
    const struct sl_s3_reply reply = {
        .status = sl_exchange_status(exchange),
        .retry_after = sl_exchange_header(exchange, "Retry-After"),
        .date = sl_exchange_header(exchange, "Date"),
        .bucket_region = sl_exchange_header(exchange, "x-amz-bucket-region"),
        .request_id = sl_exchange_header(exchange, "x-amz-request-id"),
        .sent_to = sent_on ? to.host : NULL,
        .body = body,
        .body_bytes = body_bytes,
    };
    sl_s3_refused(object->s3, what, SL_S3_READ, &reply, err);
    if (is_empty(source, reply.status, body)) {
        SL_LOCKED(&object->locked.mutex);
        object->locked.whole = true;
    }
    return -1;
}

static bool s3_recover(struct sl_source *source, const struct sl_err *why, struct sl_err *err)
{
    struct object *object = source->impl;
    struct sl_http_object *link = link_of(object);
    unsigned keys;
    bool led_away = link && sl_http_recover(&object->s3->http, link, why, err);
    if (!why->http_status)
        return led_away;
    {
        SL_LOCKED(&object->locked.mutex);
        if (why->http_status == 416)
            return object->locked.whole && !source->opened;
        keys = object->locked.request.keys;
    }
    return sl_s3_recover(object->s3, keys, why) || led_away;
}

/* As tools that mount buckets mark it. */
static bool s3_is_folder(struct sl_source *source)
{
    const struct object *object = source->impl;
    struct sl_answer answer = {0};
    if (sl_s3_head(object->s3, object->key, NULL, &answer, NULL) < 0)
        return false;
    bool is_folder = sl_http_says(&answer, "Content-Type", "application/x-directory");
    sl_answer_release(&answer);
    return is_folder;
}

static const struct sl_http_hooks hooks = {
    .prepare = prepare, .refuse = refuse, .redirect = redirect, .labels = true};

const struct sl_store_kind sl_s3_store = {
    .name = "s3",
    .schemes = {"s3"},
    .example = "s3://bucket/key",
    .help = "Amazon S3 and compatible stores, signed with SigV4",
    .options = &sl_s3_table,
    .options_help = "S3 and compatible stores",
    .login = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    .traits = {.listing = true, .caller_credentials = true},
    .open = s3_open,
    .close = s3_close,
    .locate = s3_locate,
    .transport = &sl_http_transport,
    .hooks = &hooks,
    .check = s3_check,
    .list = sl_s3_list,
    .forget = s3_forget,
    .recover = s3_recover,
    .is_folder = s3_is_folder,
    .describe = s3_describe,
    .upload = &sl_upload_s3_ops,
};
