/*
 * An object's ranges are taken one after another by a few threads, each with a source of its own at
 * the one version that the first opening found: an object that changes meanwhile is noticed by
 * every one of them. A range is read in pieces, so memory does not grow with its size.
 */
#include "signing.h"

#include <inttypes.h>
#include <stdio.h>

#include "hash.h"
#include "log.h"
#include "stores.h"
#include "upload.h"

enum { THREADS_MAX = 8, PIECE_BYTES = 8 * 1024 * 1024 };

struct hashing {
    struct sl_store *store;
    const struct sl_source *source; /* at its version */
    struct sl_sidecar *sidecar;
    pthread_mutex_t lock;
    struct {
        size_t next;
        struct sl_err err;
    } locked;
};

/* ---- ranges ---------------------------------------------------------------------------------- */

static int hash_range(struct hashing *hashing, struct sl_source *source, uint8_t *piece, size_t i,
                      struct sl_err *err)
{
    struct sl_sidecar_range *range = &hashing->sidecar->ranges[i];
    uint64_t end = sl_sidecar_range_end(hashing->sidecar, i);
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    range->crc32c = 0;
    for (uint64_t at = i * hashing->sidecar->range_bytes; at < end;) {
        size_t bytes = (size_t)SL_MIN(end - at, (uint64_t)PIECE_BYTES);
        if (sl_source_read(source, at, piece, bytes, err) < 0)
            return -1;
        range->crc32c = sl_crc32c(range->crc32c, piece, bytes);
        sl_sha256_update(sha, piece, bytes);
        at += bytes;
    }
    sl_sha256_finish(sha, range->sha256);
    return 0;
}

static bool take(struct hashing *hashing, size_t *i)
{
    SL_LOCKED(&hashing->lock);
    *i = hashing->locked.next;
    if (hashing->locked.err.kind || *i == hashing->sidecar->range_count)
        return false;
    hashing->locked.next++;
    return true;
}

static int hash_many(struct hashing *hashing, struct sl_err *err)
{
    size_t i, most = (size_t)SL_MIN(hashing->sidecar->range_bytes, (uint64_t)PIECE_BYTES);
    SL_AUTO(sl_source) source = NULL;
    sl_autofree uint8_t *piece = sl_alloc_aligned(4096, most, err);
    if (!piece || sl_source_known(hashing->store, sl_source_name(hashing->source),
                                  sl_source_bytes(hashing->source),
                                  sl_source_version(hashing->source), &source, err) < 0)
        return -1;
    while (take(hashing, &i))
        if (hash_range(hashing, source, piece, i, err) < 0)
            return -1;
    return 0;
}

static void *run(void *arg)
{
    struct hashing *hashing = arg;
    struct sl_err err = SL_ERR_INIT;
    if (hash_many(hashing, &err) == 0)
        return NULL;
    SL_LOCKED(&hashing->lock);
    if (!hashing->locked.err.kind)
        hashing->locked.err = err;
    return NULL;
}

/* This thread hashes too, so one that cannot start costs time only. */
static int hash_all(struct sl_cli_signing *signing, const struct sl_source *source,
                    struct sl_sidecar *sidecar, struct sl_err *err)
{
    struct hashing hashing = {.store = signing->store,
                              .source = source,
                              .sidecar = sidecar,
                              .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[THREADS_MAX];
    size_t wanted = SL_MIN(sidecar->range_count, (size_t)THREADS_MAX), started = 0;
    while (started + 1 < wanted &&
           sl_thread_start(&threads[started], "sl-sign", run, &hashing, NULL) == 0)
        started++;
    run(&hashing);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (hashing.locked.err.kind) { /* no other thread is left */
        *err = hashing.locked.err;
        return -1;
    }
    sl_sidecar_tree(sidecar, sidecar->tree);
    signing->objects++;
    signing->ranges += sidecar->range_count;
    signing->bytes += sidecar->bytes;
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int add_signature(const struct sl_cli_signing *signing, struct sl_sidecar *sidecar,
                         struct sl_err *err)
{
    sl_autobuf text = SL_BUF_INIT(SL_SIDECAR_NAME_BYTES_MAX + 512);
    sl_autobuf signature = SL_BUF_INIT(SL_MINISIGN_FILE_BYTES_MAX);
    sl_autobuf comment = SL_BUF_INIT(SL_SIDECAR_NAME_BYTES_MAX + 128);
    if (!signing->secret)
        return 0;
    if (sl_sidecar_signed_text(sidecar, &text, err) < 0 ||
        sl_buf_printf(&comment, err, "timestamp:%lld\tfile:%s%s", (long long)sl_wall_seconds(),
                      sidecar->name, SL_SIDECAR_SUFFIX) < 0 ||
        sl_minisign_sign(signing->secret, text.data, text.used, comment.data, &signature, err) < 0)
        return -1;
    sidecar->signature = sl_buf_steal(&signature, err);
    return sidecar->signature ? 0 : -1;
}

/* Where the sidecar goes: the suffix comes before a query. */
static char *place_of(const struct sl_cli_signing *signing, const char *name, struct sl_err *err)
{
    if (!signing->single)
        return sl_asprintf(err, "%s%s%s", signing->uri, name, SL_SIDECAR_SUFFIX);
    const struct sl_store_kind *kind = sl_stores_find(signing->uri);
    const char *query = kind && kind->traits.urls ? strchr(signing->uri, '?') : NULL;
    int bytes = (int)(query ? (size_t)(query - signing->uri) : strlen(signing->uri));
    return sl_asprintf(err, "%.*s%s%s", bytes, signing->uri, SL_SIDECAR_SUFFIX, query ? query : "");
}

static int put(const struct sl_cli_signing *signing, const char *name, const struct sl_buf *text,
               struct sl_err *err)
{
    const struct sl_upload_config config = {.source = signing->config, .replace = true};
    SL_AUTO(sl_upload) upload = NULL;
    sl_autofree char *uri = place_of(signing, name, err);
    if (!uri || sl_upload_open(uri, text->used, &config, &upload, err) < 0 ||
        sl_upload_write(upload, 0, text->data, text->used, err) < 0)
        return -1;
    return sl_upload_finish(upload, err);
}

int sl_cli_sign_object(struct sl_cli_signing *signing, const char *name, struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    sl_autobuf text = SL_BUF_INIT(SL_SIDECAR_TEXT_BYTES_MAX);
    if (sl_source_open(signing->store, name, 1, &source, err) < 0)
        return -1;
    SL_AUTO(sl_sidecar)
    sidecar = sl_sidecar_new(name, sl_source_bytes(source), signing->range_bytes, err);
    if (!sidecar)
        return -1;
    sidecar->made_from = *sl_source_version(source);
    if (hash_all(signing, source, sidecar, err) < 0 || add_signature(signing, sidecar, err) < 0 ||
        sl_sidecar_write(sidecar, &text, err) < 0)
        return -1;
    if (put(signing, name, &text, err) < 0)
        return sl_wrap(err, "cannot write the sidecar of '%s'", name);
    return 0;
}

/* ---- checking -------------------------------------------------------------------------------- */

static struct sl_sidecar *read_sidecar(struct sl_cli_signing *signing, const char *name,
                                       struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    SL_AUTO(sl_sidecar) sidecar = NULL;
    sl_autofree char *path = sl_asprintf(err, "%s%s", name, SL_SIDECAR_SUFFIX), *text = NULL;
    if (!path || sl_source_open(signing->store, path, 64u * 1024, &source, err) < 0)
        return NULL;
    uint64_t bytes = sl_source_bytes(source);
    if (bytes > SL_SIDECAR_TEXT_BYTES_MAX) {
        sl_fail_code(err, SL_E_INTEGRITY, "E_SIDECAR",
                     "'%s' is not a sidecar: it has %" PRIu64 " bytes, at most 24 MiB are taken",
                     path, bytes);
        return NULL;
    }
    text = sl_alloc((size_t)bytes + 1, err);
    if (!text || sl_source_read(source, 0, text, (size_t)bytes, err) < 0)
        return NULL;
    if (sl_sidecar_parse(text, (size_t)bytes, &sidecar, err) < 0) {
        sl_wrap(err, "'%s'", path);
        return NULL;
    }
    return sl_steal(&sidecar);
}

/* Every range that differs is told, the first one is the error. */
static int compare(struct sl_cli_signing *signing, const char *name,
                   const struct sl_sidecar *expected, const struct sl_sidecar *actual,
                   struct sl_err *err)
{
    uint64_t before = signing->wrong;
    for (size_t i = 0; i < actual->range_count; i++) {
        const struct sl_sidecar_range *a = &actual->ranges[i], *e = &expected->ranges[i];
        if (a->crc32c == e->crc32c && memcmp(a->sha256, e->sha256, sizeof(a->sha256)) == 0)
            continue;
        char its[65], wanted[65];
        sl_hex(a->sha256, 32, its);
        sl_hex(e->sha256, 32, wanted);
        sl_log(SL_LOG_ERROR,
               "object '%s', bytes %" PRIu64 " to %" PRIu64 ": crc32c %08" PRIx32
               ", expected %08" PRIx32 "; sha256 %s, expected %s",
               name, i * actual->range_bytes, sl_sidecar_range_end(actual, i), a->crc32c, e->crc32c,
               its, wanted);
        signing->wrong++;
    }
    if (signing->wrong == before)
        return 0;
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIDECAR",
                        "object '%s': %" PRIu64 " of %zu ranges are not what its sidecar says: "
                        "the object was changed or is damaged",
                        name, signing->wrong - before, actual->range_count);
}

int sl_cli_check_object(struct sl_cli_signing *signing, const char *name, struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    char why[256];
    SL_AUTO(sl_sidecar) expected = read_sidecar(signing, name, err);
    if (!expected || sl_source_open(signing->store, name, 1, &source, err) < 0)
        return -1;
    if (signing->key && sl_sidecar_check_signature(expected, name, signing->key, err) < 0)
        return -1;
    if (expected->bytes != sl_source_bytes(source)) {
        sl_sidecar_stale(expected, sl_source_bytes(source), sl_source_version(source), why);
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIDECAR",
                            "the sidecar of '%s' is of another version: %s; make it again with "
                            "`sluice sign`",
                            name, why);
    }
    SL_AUTO(sl_sidecar)
    actual = sl_sidecar_new(name, expected->bytes, expected->range_bytes, err);
    if (!actual || hash_all(signing, source, actual, err) < 0)
        return -1;
    return compare(signing, name, expected, actual, err);
}
