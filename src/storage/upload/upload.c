/*
 * Destinations of every kind: checks of arguments, the first failure that every later call repeats,
 * counting.
 */
#include "upload.h"

#include <inttypes.h>
#include <string.h>

#include "log.h"
#include "metrics.h"
#include "upload_backend.h"

enum { MEMORY_BYTES_DEFAULT = 128 * 1024 * 1024 };

static struct sl_upload *upload_new(const struct sl_store_kind *kind, uint64_t bytes,
                                    const struct sl_upload_config *config, struct sl_err *err)
{
    struct sl_upload *upload = sl_alloc(sizeof(*upload), err);
    if (!upload)
        return NULL;
    upload->kind = kind;
    upload->ops = kind->upload;
    upload->bytes = bytes;
    pthread_mutex_init(&upload->locked.mutex, NULL);
    if (config)
        upload->config = *config;
    if (upload->config.source)
        upload->source = *upload->config.source;
    upload->config.source = &upload->source;
    if (!upload->config.memory_bytes)
        upload->config.memory_bytes = MEMORY_BYTES_DEFAULT;
    return upload;
}

int sl_upload_check_uri(const char *uri, struct sl_err *err)
{
    size_t bytes = uri ? strlen(uri) : 0;
    if (!bytes)
        return sl_fail(err, SL_E_USAGE,
                       "the destination has no URI: name a path, s3://… or https://…");
    if (uri[bytes - 1] == '/')
        return sl_fail(err, SL_E_USAGE, "'%s' names a folder: name the object to write", uri);
    return 0;
}

int sl_upload_open_kind(const struct sl_store_kind *kind, const char *uri, uint64_t bytes,
                        const struct sl_upload_config *config, struct sl_upload **out,
                        struct sl_err *err)
{
    *out = NULL;
    SL_AUTO(sl_upload) upload = upload_new(kind, bytes, config, err);
    if (!upload || sl_cancel_check(upload->source.cancel, err) < 0)
        return -1;
    struct sl_err why = SL_ERR_INIT; /* open() looks at it */
    if (upload->ops->open(upload, uri, &why) < 0) {
        if (err)
            *err = why;
        return -1;
    }
    sl_log(SL_LOG_DEBUG, "writing %" PRIu64 " bytes to '%s'", bytes, upload->uri);
    *out = sl_steal(&upload);
    return 0;
}

void sl_upload_free(struct sl_upload *upload)
{
    if (!upload)
        return;
    upload->ops->close(upload);
    pthread_mutex_destroy(&upload->locked.mutex);
    free(upload->uri);
    free(upload);
}

/* Keep the first failure; always -1. */
static int remember(struct sl_upload *upload, const struct sl_err *why, struct sl_err *err)
{
    SL_LOCKED(&upload->locked.mutex);
    if (upload->locked.failed.kind == SL_OK)
        upload->locked.failed = *why;
    if (err)
        *err = *why;
    return -1;
}

static int check(struct sl_upload *upload, struct sl_err *err)
{
    {
        SL_LOCKED(&upload->locked.mutex);
        if (upload->locked.failed.kind != SL_OK) {
            if (err)
                *err = upload->locked.failed;
            return -1;
        }
    }
    return sl_cancel_check(upload->source.cancel, err);
}

static int check_range(struct sl_upload *upload, uint64_t offset, size_t bytes, struct sl_err *err)
{
    if (offset > upload->bytes || bytes > upload->bytes - offset)
        return sl_fail(err, SL_E_INTERNAL,
                       "bytes %" PRIu64 " to %" PRIu64 " do not lie within '%s' of %" PRIu64,
                       offset, offset + bytes, upload->uri, upload->bytes);
    if (upload->ops->in_order && offset != sl_counter_get(&upload->written))
        return sl_fail(err, SL_E_INTERNAL,
                       "'%s' takes bytes in order: %" PRIu64 " came before %" PRIu64, upload->uri,
                       offset, sl_counter_get(&upload->written));
    return 0;
}

int sl_upload_write(struct sl_upload *upload, uint64_t offset, const void *data, size_t bytes,
                    struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (check(upload, err) < 0)
        return -1;
    if (check_range(upload, offset, bytes, &why) < 0)
        return remember(upload, &why, err);
    if (!bytes)
        return 0;
    if (upload->ops->write(upload, offset, data, bytes, &why) < 0)
        return remember(upload, &why, err);
    sl_counter_add(&upload->written, bytes);
    sl_metric_add(SL_M_SINK_BYTES, bytes);
    return 0;
}

int sl_upload_admit(struct sl_upload *upload, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (check(upload, err) < 0)
        return -1;
    if (upload->ops->admit && upload->ops->admit(upload, &why) < 0)
        return remember(upload, &why, err);
    return 0;
}

int sl_upload_finish(struct sl_upload *upload, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (check(upload, err) < 0)
        return -1;
    uint64_t written = sl_counter_get(&upload->written);
    if (written != upload->bytes) {
        sl_fail(&why, SL_E_INTERNAL, "'%s' got %" PRIu64 " of its %" PRIu64 " bytes", upload->uri,
                written, upload->bytes);
        return remember(upload, &why, err);
    }
    if (upload->ops->finish(upload, &why) < 0)
        return remember(upload, &why, err);
    upload->finished = true;
    return 0;
}
