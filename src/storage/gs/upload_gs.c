/*
 * A new object of Google Cloud Storage, by one resumable upload of the JSON API: chunks in order,
 * each answered with how much of them is kept, so that a broken one goes on where it broke off.
 * Nothing is visible before the last chunk. That carries the CRC32C of all, which Google compares,
 * and so do we with the one in its answer.
 *
 * An object that is there is looked for at the beginning, and the upload is made conditional
 * (ifGenerationMatch=0), which decides at its end.
 * https://cloud.google.com/storage/docs/performing-resumable-uploads
 */
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "gs_store.h"
#include "hash.h"
#include "json.h"
#include "progress.h"
#include "retry.h"
#include "upload_backend.h"
#include "url.h"

enum {
    CHUNK_UNIT = 256 * 1024, /* all chunks but the last are multiples of it */
    CHUNK_BYTES_MAX = 16 * 1024 * 1024,
    ANSWER_BYTES_MAX = 256 * 1024,
    SESSION_BYTES_MAX = 8 * 1024,
    KEPT_PART = 308,
    GIVEN_UP = 499,
    GIVE_UP_SECONDS = 5,
};

struct gs_upload {
    struct sl_upload *upload;
    struct sl_store *store;
    struct sl_gs *gs;
    struct sl_exchange *exchange;
    char *key;                  /* encoded */
    char *session;              /* its URL, which lets writes in: a secret; NULL: none */
    const char *path;           /* of a request that is not the session's, behind the origin */
    const char *const *headers; /* of the request in hand, beside the credentials */
    unsigned header_count;
    unsigned let_in;
    char what[400];
    uint8_t *chunk;
    size_t chunk_bytes, have; /* room, bytes in it */
    uint64_t kept;            /* by Google, from the object's first byte on */
    uint32_t crc;
    bool complete;
};

/* ---- requests -------------------------------------------------------------------------------- */

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct gs_upload *gsu = arg;
    request->url = gsu->path ? sl_asprintf(err, "%s%s", gsu->gs->origin, gsu->path)
                             : sl_strdup(gsu->session, err);
    if (!request->url || sl_gs_let_in(gsu->gs, request, &gsu->let_in, err) < 0)
        return -1;
    for (unsigned i = 0; i < gsu->header_count; i++)
        if (sl_range_add_header(request, err, "%s", gsu->headers[i]) < 0)
            return -1;
    return 0;
}

static int fail_exists(const struct gs_upload *gsu, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_USAGE, "exists",
                        "'%.380s' exists: name another destination, or replace it with --replace",
                        gsu->upload->uri);
}

static int refuse(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    struct gs_upload *gsu = arg;
    struct sl_cloud_headers headers;
    const struct sl_cloud_reply reply = sl_cloud_reply_of(answer, NULL, &headers);
    if (reply.status == 412 && !gsu->upload->config.replace) {
        fail_exists(gsu, err);
        err->http_status = 412;
        return -1;
    }
    sl_gs_refused(gsu->gs, gsu->what, SL_GS_WRITE, &reply, err);
    if (gsu->session && !gsu->path && (reply.status == 404 || reply.status == 410))
        sl_wrap(err, "the unfinished upload is gone: begin again");
    return -1;
}

static bool recover(void *arg, const struct sl_err *why)
{
    struct gs_upload *gsu = arg;
    return why->http_status == 401 && sl_gs_creds_renew(gsu->gs->creds, gsu->let_in);
}

/* A session that keeps a part says so, and one that was given up answers 499. */
static bool is_success(void *arg, const struct sl_answer *answer)
{
    const struct gs_upload *gsu = arg;
    bool of_session = !gsu->path && (answer->status == KEPT_PART || answer->status == GIVEN_UP);
    return of_session || (answer->status >= 200 && answer->status <= 299);
}

static struct sl_http_call call_of(struct gs_upload *gsu, const char *method)
{
    return (struct sl_http_call){.what = gsu->what,
                                 .method = method,
                                 .answer_limit = ANSWER_BYTES_MAX,
                                 .arg = gsu,
                                 .prepare = prepare,
                                 .is_success = is_success,
                                 .refuse = refuse,
                                 .recover = recover};
}

static struct sl_exchange *new_exchange(const struct gs_upload *gsu, struct sl_err *err)
{
    const struct sl_source_config *config = &gsu->store->config;
    const struct sl_connect connect = {
        .tls = config->tls, .cancel = config->cancel, .stall_seconds = config->stall_seconds};
    return sl_exchange_new(&connect, err);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static char *payer(const struct gs_upload *gsu, struct sl_err *err)
{
    const char *project = gsu->gs->user_project;
    return sl_asprintf(err, "%s%s", project ? "&userProject=" : "", project ? project : "");
}

/* 403: there may be one that we may not see; then the condition of the upload decides. */
static int refuse_existing(struct gs_upload *gsu, struct sl_err *err)
{
    struct sl_answer answer = {0};
    struct sl_err why = SL_ERR_INIT;
    sl_autofree char *pays = payer(gsu, err);
    sl_autofree char *path = pays ? sl_asprintf(err, "/storage/v1/b/%s/o/%s?fields=generation%s",
                                                gsu->gs->bucket, gsu->key, pays)
                                  : NULL;
    if (!path)
        return -1;
    gsu->path = path;
    const struct sl_http_call call = call_of(gsu, "GET");
    int result = sl_http_call(&gsu->store->config, gsu->exchange, &call, &answer, NULL, &why);
    gsu->path = NULL;
    if (result == 0) {
        sl_answer_release(&answer);
        return fail_exists(gsu, err);
    }
    if (why.http_status == 404 || why.http_status == 403)
        return 0;
    *err = why;
    return -1;
}

/* The session lies at the store itself: a token goes nowhere else. */
static int take_session(struct gs_upload *gsu, const struct sl_answer *answer, struct sl_err *err)
{
    char location[SESSION_BYTES_MAX];
    sl_autourl ours = {0}, theirs = {0};
    if (!sl_answer_header(answer, "Location", location, sizeof(location)) ||
        strlen(location) >= sizeof(location) - 1)
        return sl_fail(err, SL_E_NET, "%s: the store did not start an upload", gsu->what);
    if (sl_url_parse(gsu->gs->origin, &ours, err) < 0 ||
        sl_url_parse(location, &theirs, NULL) < 0 || !sl_url_same_origin(&ours, &theirs))
        return sl_fail(err, SL_E_NET,
                       "%s: the store wants the bytes at another server, to which no token is sent",
                       gsu->what);
    gsu->session = sl_strdup(location, err);
    return gsu->session ? 0 : -1;
}

static int begin(struct gs_upload *gsu, struct sl_err *err)
{
    char length[64];
    snprintf(length, sizeof(length), "X-Upload-Content-Length: %" PRIu64, gsu->upload->bytes);
    const char *const headers[] = {length, "X-Upload-Content-Type: application/octet-stream"};
    struct sl_answer answer = {0};
    sl_autofree char *pays = payer(gsu, err);
    sl_autofree char *path =
        pays ? sl_asprintf(err, "/upload/storage/v1/b/%s/o?uploadType=resumable&name=%s%s%s",
                           gsu->gs->bucket, gsu->key,
                           gsu->upload->config.replace ? "" : "&ifGenerationMatch=0", pays)
             : NULL;
    if (!path)
        return -1;
    gsu->path = path;
    gsu->headers = headers;
    gsu->header_count = SL_COUNT(headers);
    const struct sl_http_call call = call_of(gsu, "POST");
    int result = sl_http_call(&gsu->store->config, gsu->exchange, &call, &answer, NULL, err);
    gsu->path = NULL;
    gsu->header_count = 0;
    if (result < 0)
        return -1;
    result = take_session(gsu, &answer, err);
    sl_answer_release(&answer);
    return result;
}

static int open_store(struct gs_upload *gsu, const char *uri, struct sl_err *err)
{
    sl_autofree char *name = NULL;
    struct sl_upload *upload = gsu->upload;
    if (sl_store_open_kind(upload->kind, uri, upload->config.source, &gsu->store, &name, err) < 0)
        return -1;
    gsu->gs = gsu->store->impl;
    if (!*name || gsu->gs->generation)
        return sl_fail(err, SL_E_USAGE,
                       "'%.300s' names no object to write: expected "
                       "gs://BUCKET/OBJECT",
                       uri);
    sl_gs_creds_for_writing(gsu->gs->creds);
    sl_autofree char *key = sl_asprintf(err, "%s%s", gsu->gs->prefix, name);
    gsu->key = key ? sl_url_encode(key, false, err) : NULL;
    free(upload->uri);
    upload->uri = gsu->key ? sl_asprintf(err, "%s%s", sl_store_uri(gsu->store), name) : NULL;
    if (!upload->uri)
        return -1;
    snprintf(gsu->what, sizeof(gsu->what), "cannot write '%.380s'", upload->uri);
    return 0;
}

static int gs_open(struct sl_upload *upload, const char *uri, struct sl_err *err)
{
    struct gs_upload *gsu = upload->impl = sl_alloc(sizeof(*gsu), err);
    if (!gsu)
        return -1;
    gsu->upload = upload;
    if (open_store(gsu, uri, err) < 0)
        return -1;
    uint64_t room = SL_MIN(upload->config.memory_bytes, (uint64_t)CHUNK_BYTES_MAX);
    gsu->chunk_bytes = SL_MAX(room / CHUNK_UNIT, (uint64_t)1) * CHUNK_UNIT;
    gsu->chunk = sl_alloc(gsu->chunk_bytes, err);
    gsu->exchange = gsu->chunk ? new_exchange(gsu, err) : NULL;
    if (!gsu->exchange || (!upload->config.replace && refuse_existing(gsu, err) < 0))
        return -1;
    return begin(gsu, err);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* The object is there: is it what we sent? */
static int check_made(struct gs_upload *gsu, const struct sl_answer *answer, struct sl_err *err)
{
    uint8_t theirs[4], ours[SL_HASH_BYTES_MAX];
    json_t *json = sl_json_parse(sl_buf_string(&answer->body), answer->body.used, "answer", NULL);
    const char *text = json ? sl_json_get_string(json, "crc32c") : NULL;
    sl_crc_digest(SL_HASH_CRC32C, gsu->crc, ours);
    bool wrong = text && (!sl_cloud_base64(text, theirs, 4) || memcmp(theirs, ours, 4) != 0);
    json_decref(json);
    gsu->kept = gsu->upload->bytes;
    gsu->complete = true;
    if (wrong)
        return sl_fail(err, SL_E_INTEGRITY,
                       "%s: the stored bytes differ from those that were sent: delete the object "
                       "and try again",
                       gsu->what);
    return 0;
}

/* How much is kept: "Range: bytes=0-524287", or nothing yet. */
static int take_kept(struct gs_upload *gsu, const struct sl_answer *answer, struct sl_err *err)
{
    char range[64];
    uint64_t last = 0;
    if (answer->status != KEPT_PART)
        return check_made(gsu, answer, err);
    if (!sl_answer_header(answer, "Range", range, sizeof(range)))
        return 0;
    const char *at = strncmp(range, "bytes=0-", 8) == 0 ? range + 8 : "";
    if (!sl_take_digits(&at, &last) || *at || last >= gsu->upload->bytes || last + 1 < gsu->kept)
        return sl_fail(err, SL_E_NET, "%s: the store says that it has bytes that were not sent",
                       gsu->what);
    gsu->kept = last + 1;
    return 0;
}

/* One request of the session, one try; body NULL: only ask how much is kept. */
static int put(struct gs_upload *gsu, const uint8_t *body, size_t bytes, struct sl_err *err)
{
    char range[96], hash[64], text[16];
    uint8_t digest[SL_HASH_BYTES_MAX];
    uint64_t total = gsu->upload->bytes;
    bool last = body && gsu->kept + bytes == total;
    if (bytes)
        snprintf(range, sizeof(range), "Content-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64,
                 gsu->kept, gsu->kept + bytes - 1, total);
    else
        snprintf(range, sizeof(range), "Content-Range: bytes */%" PRIu64, total);
    sl_crc_digest(SL_HASH_CRC32C, gsu->crc, digest);
    EVP_EncodeBlock((unsigned char *)text, digest, 4);
    snprintf(hash, sizeof(hash), "X-Goog-Hash: crc32c=%s", text);
    const char *const headers[] = {range, hash};
    struct sl_answer answer = {0};
    struct sl_http_call call = call_of(gsu, "PUT");
    call.body = body;
    call.body_bytes = bytes;
    call.attempts = 1;
    gsu->headers = headers;
    gsu->header_count = last ? 2 : 1;
    int result = sl_http_call(&gsu->store->config, gsu->exchange, &call, &answer, NULL, err);
    gsu->header_count = 0;
    if (result < 0)
        return -1;
    result = take_kept(gsu, &answer, err);
    sl_answer_release(&answer);
    return result;
}

/* Again after what may pass, from where the store says that it is. */
static int send_chunk(struct gs_upload *gsu, bool last, struct sl_err *err)
{
    const struct sl_source_config *config = &gsu->store->config;
    struct sl_retry retry = sl_store_retry(config);
    uint64_t begin = gsu->kept, end = begin + gsu->have;
    bool asks = false;
    while (gsu->kept < end || (last && !gsu->complete)) {
        struct sl_err why = SL_ERR_INIT;
        uint64_t before = gsu->kept, wait_ms = 0;
        size_t skip = (size_t)(before - begin);
        int result =
            asks ? put(gsu, NULL, 0, &why) : put(gsu, gsu->chunk + skip, gsu->have - skip, &why);
        if (result == 0 && (asks || gsu->kept > before || gsu->complete)) {
            asks = false;
            continue;
        }
        if (result == 0)
            sl_fail(&why, SL_E_NET, "%s: the store has nothing of what was sent", gsu->what);
        if (!why.retryable || !sl_retry_again(&retry, &why, gsu->kept - before, &wait_ms)) {
            *err = why;
            return -1;
        }
        asks = true;
        sl_progress_add_retry(config->progress);
        if (sl_exchange_pause(gsu->exchange, (unsigned)wait_ms, err) < 0)
            return -1;
    }
    if (gsu->kept > end)
        return sl_fail(err, SL_E_NET, "%s: the store says that it has bytes that were not sent",
                       gsu->what);
    gsu->have = 0;
    return 0;
}

/* A full chunk waits for the next byte, since the last one goes with the hash. */
static int gs_write(struct sl_upload *upload, uint64_t offset, const void *data, size_t bytes,
                    struct sl_err *err)
{
    struct gs_upload *gsu = upload->impl;
    const uint8_t *from = data;
    (void)offset;
    while (bytes) {
        if (gsu->have == gsu->chunk_bytes && send_chunk(gsu, false, err) < 0)
            return -1;
        size_t piece = SL_MIN(bytes, gsu->chunk_bytes - gsu->have);
        memcpy(gsu->chunk + gsu->have, from, piece);
        gsu->crc = sl_crc32c(gsu->crc, from, piece);
        gsu->have += piece;
        from += piece, bytes -= piece;
    }
    return 0;
}

static int gs_finish(struct sl_upload *upload, struct sl_err *err)
{
    return send_chunk(upload->impl, true, err);
}

/* ---- giving up ------------------------------------------------------------------------------- */

/* What is kept of it costs nothing and goes after a week. */
static void give_up(struct gs_upload *gsu)
{
    const struct sl_connect connect = {.tls = gsu->store->config.tls,
                                       .stall_seconds = GIVE_UP_SECONDS,
                                       .connect_seconds = GIVE_UP_SECONDS};
    struct sl_answer answer = {0};
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, NULL);
    struct sl_http_call call = call_of(gsu, "DELETE");
    call.attempts = 1;
    if (exchange && sl_http_call(&gsu->store->config, exchange, &call, &answer, NULL, NULL) == 0)
        sl_answer_release(&answer);
}

static void gs_close(struct sl_upload *upload)
{
    struct gs_upload *gsu = upload->impl;
    if (!gsu)
        return;
    if (gsu->session && !upload->finished)
        give_up(gsu);
    sl_exchange_free(gsu->exchange);
    sl_secret_free(gsu->session);
    free(gsu->key);
    free(gsu->chunk);
    sl_store_free(gsu->store);
    free(gsu);
}

const struct sl_upload_ops sl_upload_gs_ops = {
    .in_order = true,
    .open = gs_open,
    .write = gs_write,
    .finish = gs_finish,
    .close = gs_close,
};
