/*
 * Objects of Google Cloud Storage, read by ranges through the XML API.
 *
 * The first answer tells the generation, which names these bytes for good: it stands in the URL of
 * every later range, so no precondition is needed, and an object that is replaced meanwhile goes on
 * being read as it was or is gone (404: "changed"). The CRC32C of the whole object comes with the
 * listing and with every first answer, so it is checked without a request.
 *
 * https://cloud.google.com/storage/docs/xml-api/get-object-download
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "gs_store.h"
#include "url.h"

/** source->impl */
struct object {
    char *key;
    struct {
        pthread_mutex_t mutex;
        unsigned token; /* generation of the token that was used last */
        bool whole;     /* empty objects have no range: ask without one */
    } locked;
};

/* ---- the store ------------------------------------------------------------------------------- */

static const char scheme[] = "gs://";

static int check_bucket(const char *bucket, size_t bytes, const char *uri, struct sl_err *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789.-_";
    if (bytes < 3 || bytes > 222 || strspn(bucket, allowed) < bytes)
        return sl_fail(err, SL_E_USAGE,
                       "'%.300s' names no bucket of 3 to 222 characters a-z, 0-9, '-', '_' and "
                       "'.': expected gs://BUCKET/OBJECT or "
                       "gs://BUCKET/PREFIX/",
                       uri);
    return 0;
}

static int gs_check(const char *uri, struct sl_err *err)
{
    const char *bucket = uri + sizeof(scheme) - 1;
    if (strncasecmp(uri, scheme, sizeof(scheme) - 1) != 0)
        bucket = "";
    return check_bucket(bucket, strcspn(bucket, "/"), uri, err);
}

/* "name#123": the generation after the last '#', if it is one. */
static int split_generation(struct sl_gs *gs, char *key, struct sl_err *err)
{
    char *mark = strrchr(key, '#');
    if (!mark || !mark[1] || strspn(mark + 1, "0123456789") != strlen(mark + 1) ||
        strlen(mark + 1) > 20)
        return 0;
    gs->generation = sl_strdup(mark + 1, err);
    *mark = 0;
    return gs->generation ? 0 : -1;
}

static int split_uri(struct sl_gs *gs, const char *uri, char **key, struct sl_err *err)
{
    if (gs_check(uri, err) < 0)
        return -1;
    const char *path = uri + sizeof(scheme) - 1;
    if (strlen(path) > 222 + 1 + SL_GS_KEY_BYTES_MAX + 21)
        return sl_fail(err, SL_E_USAGE,
                       "the name in '%.100s…' is longer than the %d bytes that "
                       "Google allows",
                       uri, SL_GS_KEY_BYTES_MAX);
    if (sl_cloud_split(path, &gs->bucket, &gs->prefix, key, err) < 0 ||
        split_generation(gs, *key, err) < 0)
        return -1;
    gs->key = sl_strdup(*key, err);
    return gs->key ? 0 : -1;
}

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Emulators are named without a scheme, too: "localhost:4443". */
static int find_endpoint(struct sl_gs *gs, const struct sl_gs_options *options, bool *bare,
                         struct sl_err *err)
{
    const char *text =
        options && options->endpoint && *options->endpoint ? options->endpoint : NULL;
    const char *domain = env("GOOGLE_CLOUD_UNIVERSE_DOMAIN"), *from = "source.gs.endpoint";
    if (!text && (text = env("STORAGE_EMULATOR_HOST")))
        from = "STORAGE_EMULATOR_HOST";
    if (!text && (text = env("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE")))
        from = "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE";
    sl_autofree char *whole =
        text ? sl_asprintf(err, "%s%s", strstr(text, "://") ? "" : "http://", text)
             : sl_asprintf(err, "https://storage.%s", domain ? domain : "googleapis.com");
    sl_autourl url = {0};
    if (!whole)
        return -1;
    if (sl_url_parse(whole, &url, err) < 0)
        return sl_wrap(err, "%s", from);
    if (!sl_url_is_base(&url))
        return sl_fail(err, SL_E_USAGE, "%s: expected a URL without user, query or fragment", from);
    gs->origin = sl_url_format(&url, false, err);
    if (!gs->origin)
        return -1;
    for (size_t bytes = strlen(gs->origin); bytes && gs->origin[bytes - 1] == '/';)
        gs->origin[--bytes] = 0;
    *bare = !url.tls && !sl_url_host_is_near(url.host);
    return 0;
}

static int check_project(const struct sl_gs_options *options, struct sl_err *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789-:.";
    const char *project = options && options->user_project ? options->user_project : "";
    if (strspn(project, allowed) != strlen(project) || strlen(project) > 128)
        return sl_fail(err, SL_E_USAGE, "source.gs.userProject: '%.80s' is not a project id",
                       project);
    return 0;
}

static int gs_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    const struct sl_gs_options *options = sl_source_options(&store->config, &sl_gs_table);
    struct sl_gs *gs = store->impl = sl_alloc(sizeof(*gs), err);
    bool bare = false;
    if (!gs)
        return -1;
    gs->store = store;
    if (split_uri(gs, uri, key, err) < 0 || check_project(options, err) < 0 ||
        find_endpoint(gs, options, &bare, err) < 0)
        return -1;
    store->uri = sl_asprintf(err, "gs://%s/%s", gs->bucket, gs->prefix);
    if (!store->uri)
        return -1;
    if (options && options->user_project && *options->user_project &&
        !(gs->user_project = sl_strdup(options->user_project, err)))
        return -1;
    gs->creds = sl_gs_creds_new(&store->config, bare, err);
    return gs->creds ? 0 : sl_wrap(err, "cannot open '%s'", store->uri);
}

static void gs_close(struct sl_store *store)
{
    struct sl_gs *gs = store->impl;
    if (!gs)
        return;
    sl_gs_creds_free(gs->creds);
    free(gs->origin);
    free(gs->bucket);
    free(gs->prefix);
    free(gs->key);
    free(gs->generation);
    free(gs->user_project);
    free(gs);
    store->impl = NULL;
}

static void gs_describe(struct sl_store *store,
                        void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    const struct sl_gs *gs = store->impl;
    row(arg, "endpoint", gs->origin);
    row(arg, "credentials", sl_gs_creds_origin(gs->creds));
}

/* ---- objects --------------------------------------------------------------------------------- */

static void gs_forget(struct sl_source *source)
{
    struct object *object = source->impl;
    if (!object)
        return;
    pthread_mutex_destroy(&object->locked.mutex);
    free(object->key);
    free(object);
    source->impl = NULL;
}

static int gs_locate(struct sl_source *source, struct sl_err *err)
{
    const struct sl_gs *gs = source->store->impl;
    struct object *object = source->impl = sl_alloc(sizeof(*object), err);
    if (!object)
        return -1;
    pthread_mutex_init(&object->locked.mutex, NULL);
    bool is_named = gs->generation && strcmp(source->name, gs->key) == 0;
    object->key = sl_asprintf(err, "%s%s", gs->prefix, source->name);
    source->uri = sl_asprintf(err, "%s%s%s%s", source->store->uri, source->name,
                              is_named ? "#" : "", is_named ? gs->generation : "");
    if (!object->key || !source->uri)
        return -1;
    if (!*object->key || strlen(object->key) > SL_GS_KEY_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "'%.200s' names no object: a name has 1 to %d bytes",
                       source->uri, SL_GS_KEY_BYTES_MAX);
    static const char pin[] = "generation=";
    if (source->version.pin[0] && strncmp(source->version.pin, pin, sizeof(pin) - 1) != 0)
        return sl_fail(err, SL_E_USAGE, "the version of '%s' is not one of Google's", source->uri);
    if (is_named && !source->version.pin[0])
        sl_gs_pin(source->version.pin, gs->generation);
    return 0;
}

static int prepare(struct sl_source *source, struct sl_range_request *request, struct sl_err *err)
{
    struct sl_gs *gs = source->store->impl;
    struct object *object = source->impl;
    unsigned token = 0;
    const char *pin = source->version.pin;
    sl_autofree char *key = sl_url_encode(object->key, true, err);
    if (!key)
        return -1;
    request->url =
        sl_asprintf(err, "%s/%s/%s%s%s", gs->origin, gs->bucket, key, *pin ? "?" : "", pin);
    if (!request->url)
        return -1;
    if (sl_gs_let_in(gs, request, &token, err) < 0)
        return sl_wrap(err, "cannot read '%.300s'", source->uri);
    SL_LOCKED(&object->locked.mutex);
    object->locked.token = token;
    request->whole = object->locked.whole;
    return 0;
}

/* "crc32c=AAAAAA==,md5=…" */
static void take_hash(const char *text, struct sl_checksums *sums)
{
    static const char name[] = "crc32c=";
    const char *at = text ? strstr(text, name) : NULL;
    char value[16];
    if (!at)
        return;
    at += sizeof(name) - 1;
    size_t bytes = strcspn(at, ", ");
    if (bytes >= sizeof(value))
        return;
    memcpy(value, at, bytes);
    value[bytes] = 0;
    if (sl_cloud_base64(value, sums->items[0].value, 4)) {
        sums->items[0].kind = SL_HASH_CRC32C;
        sums->count = 1;
    }
}

/* The generation is all that counts of the version: headers of one generation may differ. */
static int answered(struct sl_source *source, const struct sl_exchange *exchange,
                    struct sl_version *version, struct sl_err *err)
{
    const char *encoding = sl_exchange_header(exchange, "x-goog-stored-content-encoding");
    const char *generation = sl_exchange_header(exchange, "x-goog-generation");
    char pin[SL_PIN_TEXT_MAX];
    struct sl_checksums sums = {0};
    if (encoding && strcasecmp(encoding, "gzip") == 0) /* others are labels */
        return sl_fail(err, SL_E_USAGE,
                       "cannot read '%s': it is stored with Content-Encoding '%.80s', which Google "
                       "unpacks on the way, so it has no ranges; upload it without -Z of gcloud "
                       "storage cp. If it is not packed, take the label away (gcloud storage "
                       "objects update --clear-content-encoding)",
                       source->uri, encoding);
    take_hash(sl_exchange_header(exchange, "x-goog-hash"), &sums);
    if (sums.count && sl_source_set_checksums(source, &sums, err) < 0)
        return -1;
    if (!generation || !sl_gs_pin(pin, generation))
        return 0;
    if (version->pin[0] && strcmp(version->pin, pin) != 0)
        return sl_fail_code(err, SL_E_INTEGRITY, "changed",
                            "'%s': the answer is of %s, but %s was asked for", source->uri, pin,
                            version->pin);
    *version = (struct sl_version){.etag = ""};
    memcpy(version->pin, pin, sizeof(pin));
    return 0;
}

static int refuse(struct sl_source *source, const struct sl_exchange *exchange, const char *body,
                  size_t body_bytes, struct sl_err *err)
{
    struct object *object = source->impl;
    char what[400];
    const struct sl_cloud_reply reply = {.status = sl_exchange_status(exchange),
                                         .retry_after = sl_exchange_header(exchange, "Retry-After"),
                                         .body = body,
                                         .body_bytes = body_bytes};
    if (reply.status == 404 && source->opened && source->version.pin[0])
        sl_fail_code(err, SL_E_INTEGRITY, "changed",
                     "'%s' changed while it was read: its %s is gone", source->uri,
                     source->version.pin);
    else {
        snprintf(what, sizeof(what), "cannot read '%.380s'", source->uri);
        sl_gs_refused(source->store->impl, what, SL_GS_READ, &reply, err);
    }
    if (err)
        err->http_status = reply.status;
    if (reply.status == 416 && !source->opened) { /* an empty object has no range */
        SL_LOCKED(&object->locked.mutex);
        object->locked.whole = true;
    }
    return -1;
}

static bool gs_recover(struct sl_source *source, const struct sl_err *why, struct sl_err *err)
{
    (void)err;
    struct sl_gs *gs = source->store->impl;
    struct object *object = source->impl;
    unsigned token;
    {
        SL_LOCKED(&object->locked.mutex);
        if (why->http_status == 416)
            return object->locked.whole && !source->opened;
        token = object->locked.token;
    }
    return why->http_status == 401 && sl_gs_creds_renew(gs->creds, token);
}

static bool gs_is_folder(struct sl_source *source)
{
    struct sl_answer answer = {0};
    if (sl_http_ask_empty(source, &answer, NULL) < 0)
        return false;
    bool is_folder = sl_http_says(&answer, "Content-Type", "application/x-directory");
    sl_answer_release(&answer);
    return is_folder;
}

static const struct sl_http_hooks hooks = {
    .prepare = prepare, .refuse = refuse, .answered = answered};

const struct sl_store_kind sl_gs_store = {
    .name = "gs",
    .schemes = {"gs"},
    .example = "gs://bucket/object",
    .help = "Google Cloud Storage, with Google's credentials",
    .options = &sl_gs_table,
    .options_help = "Google Cloud Storage",
    .login = "set GOOGLE_APPLICATION_CREDENTIALS to the key's file",
    .traits = {.listing = true},
    .open = gs_open,
    .close = gs_close,
    .locate = gs_locate,
    .transport = &sl_http_transport,
    .hooks = &hooks,
    .check = gs_check,
    .list = sl_gs_list,
    .forget = gs_forget,
    .recover = gs_recover,
    .is_folder = gs_is_folder,
    .describe = gs_describe,
    .upload = &sl_upload_gs_ops,
};
