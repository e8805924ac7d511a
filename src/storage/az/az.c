/*
 * Blobs of Azure, read by ranges at the blob endpoint, each with the ETag of the first answer in
 * If-Match. What lets a request in is a query (SAS) or a bearer token, so a range needs no
 * signature of its own.
 *
 * https://learn.microsoft.com/rest/api/storageservices/get-blob
 */
#include <stdio.h>
#include <string.h>

#include "az_store.h"

/** source->impl */
struct object {
    char *blob;
    struct {
        pthread_mutex_t mutex;
        unsigned let_in; /* generation of what was used last */
    } locked;
};

/* ---- the store ------------------------------------------------------------------------------- */

static int az_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    struct sl_az *az = store->impl = sl_alloc(sizeof(*az), err);
    if (!az)
        return -1;
    az->store = store;
    if (sl_az_place_find(&az->place, uri, &store->config, key, err) < 0)
        return -1;
    store->uri = sl_asprintf(err, "%s%s", az->place.shown, az->place.prefix);
    if (!store->uri)
        return -1;
    az->creds = sl_az_creds_new(&az->place, &store->config, err);
    return az->creds ? 0 : sl_wrap(err, "cannot open '%s'", store->uri);
}

static void az_close(struct sl_store *store)
{
    struct sl_az *az = store->impl;
    if (!az)
        return;
    sl_az_creds_free(az->creds);
    sl_az_place_release(&az->place);
    free(az);
    store->impl = NULL;
}

static void az_describe(struct sl_store *store,
                        void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    const struct sl_az *az = store->impl;
    row(arg, "endpoint", az->place.base);
    row(arg, "credentials", sl_az_creds_origin(az->creds));
}

/* ---- objects --------------------------------------------------------------------------------- */

static void az_forget(struct sl_source *source)
{
    struct object *object = source->impl;
    if (!object)
        return;
    pthread_mutex_destroy(&object->locked.mutex);
    free(object->blob);
    free(object);
    source->impl = NULL;
}

static int az_locate(struct sl_source *source, struct sl_err *err)
{
    const struct sl_az *az = source->store->impl;
    struct object *object = source->impl = sl_alloc(sizeof(*object), err);
    if (!object)
        return -1;
    pthread_mutex_init(&object->locked.mutex, NULL);
    object->blob = sl_asprintf(err, "%s%s", az->place.prefix, source->name);
    source->uri = sl_asprintf(err, "%s%s", source->store->uri, source->name);
    if (!object->blob || !source->uri)
        return -1;
    if (!*object->blob || strlen(object->blob) > SL_AZ_NAME_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "'%.200s' names no blob: a name has 1 to %d bytes",
                       source->uri, SL_AZ_NAME_BYTES_MAX);
    return 0;
}

static int prepare(struct sl_source *source, struct sl_range_request *request, struct sl_err *err)
{
    struct object *object = source->impl;
    unsigned generation = 0;
    if (sl_az_let_in(source->store->impl, object->blob, "", request, &generation, err) < 0)
        return sl_wrap(err, "cannot read '%.300s'", source->uri);
    SL_LOCKED(&object->locked.mutex);
    object->locked.let_in = generation;
    return 0;
}

/* With a range Content-MD5 is of the range. The ETag is the version: an uploader who changes the
 * MD5 changes it, too. */
static int answered(struct sl_source *source, const struct sl_exchange *exchange,
                    struct sl_version *version, struct sl_err *err)
{
    (void)version;
    struct sl_checksums sums;
    const char *text = sl_exchange_header(exchange, "x-ms-blob-content-md5");
    if (!text && sl_exchange_status(exchange) == 200)
        text = sl_exchange_header(exchange, "Content-MD5");
    sl_az_take_md5(text, source->uri, &sums);
    return sums.count ? sl_source_set_checksums(source, &sums, err) : 0;
}

static int refuse(struct sl_source *source, const struct sl_exchange *exchange, const char *body,
                  size_t body_bytes, struct sl_err *err)
{
    char what[400];
    const struct sl_cloud_reply reply = {
        .status = sl_exchange_status(exchange),
        .retry_after = sl_exchange_header(exchange, "Retry-After"),
        .code = sl_exchange_header(exchange, SL_AZ_CODE_HEADER),
        .body = body,
        .body_bytes = body_bytes,
    };
    snprintf(what, sizeof(what), "cannot read '%.380s'", source->uri);
    return sl_az_refused(source->store->impl, what, SL_AZ_READ, &reply, err);
}

static bool az_recover(struct sl_source *source, const struct sl_err *why, struct sl_err *err)
{
    (void)err;
    struct object *object = source->impl;
    unsigned generation;
    {
        SL_LOCKED(&object->locked.mutex);
        generation = object->locked.let_in;
    }
    return sl_az_recover(source->store->impl, generation, why);
}

/* Of a hierarchical namespace, or as tools for others write it. The refusal of an empty blob's
 * range tells neither. */
static bool az_is_folder(struct sl_source *source)
{
    struct sl_answer answer = {0};
    if (sl_http_ask_empty(source, &answer, NULL) < 0)
        return false;
    bool is_folder = sl_http_says(&answer, "x-ms-resource-type", "directory") ||
                     sl_http_says(&answer, "x-ms-meta-hdi_isfolder", "true");
    sl_answer_release(&answer);
    return is_folder;
}

static const struct sl_http_hooks hooks = {
    .prepare = prepare, .refuse = refuse, .answered = answered, .labels = true};

const struct sl_store_kind sl_az_store = {
    .name = "az",
    .schemes = {"az", "azure", "abfs", "abfss"},
    .example = "az://container/blob",
    .help = "Azure Blob storage; also abfss://container@account.dfs.core.windows.net/blob and "
            "https://account.blob.core.windows.net/container/blob",
    .options = &sl_az_table,
    .options_help = "Azure Blob storage",
    .login = "set AZURE_STORAGE_CONNECTION_STRING",
    .traits = {.listing = true},
    .open = az_open,
    .close = az_close,
    .locate = az_locate,
    .transport = &sl_http_transport,
    .hooks = &hooks,
    .check = sl_az_check,
    .list = sl_az_list,
    .forget = az_forget,
    .recover = az_recover,
    .is_folder = az_is_folder,
    .describe = az_describe,
    .upload = &sl_upload_az_ops,
};
