/*
 * A set in its store. It is read by one connection, beside the many of the weights, and held
 * against size and hash before anything looks into it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "exact_io.h"
#include "hash.h"
#include "sets_parts.h"
#include "stores.h"
#include "upload.h"

enum { PIECE_BYTES = 4 * 1024 * 1024, PATH_BYTES = 160 };

void sl_sets_source_config(const struct sl_spec *spec, struct sl_cancel *cancel,
                           struct sl_source_config *config)
{
    sl_spec_source_config(spec, cancel, NULL, config);
    config->no_mirrors = true;
    config->through = (struct sl_through_options){0};
    config->preconnect = 0;
    config->preconnect_always = false;
    config->hold_bytes = 0;
    config->beneath_bytes = 0;
    config->credentials = NULL;
}

int sl_sets_store_open(const struct sl_spec *spec, const struct sl_source_config *config,
                       struct sl_store **store, struct sl_err *err)
{
    sl_autofree char *key = NULL;
    return sl_store_open(spec->sink.caches.url, config, store, &key, err);
}

static void name_path(const char *key, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "sets/%.64s/latest.json", key);
}

static void blob_path(const char *sha256, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "blobs/%.64s.tar.zst", sha256);
}

/* ---- reading --------------------------------------------------------------------------------- */

int sl_sets_store_name(struct sl_store *store, const char *key, struct sl_sets_name *name,
                       struct sl_err *err)
{
    char path[PATH_BYTES];
    SL_AUTO(sl_source) source = NULL;
    *name = (struct sl_sets_name){.bytes = 0};
    name_path(key, path);
    if (sl_source_open(store, path, SL_SETS_NAME_BYTES_MAX, &source, err) < 0)
        return -1;
    uint64_t bytes = sl_source_bytes(source);
    if (bytes > SL_SETS_NAME_BYTES_MAX)
        return sl_fail(err, SL_E_FORMAT, "its latest.json has %" PRIu64 " bytes, limit %d", bytes,
                       SL_SETS_NAME_BYTES_MAX);
    sl_autofree char *text = sl_alloc((size_t)bytes + 1, err);
    if (!text || sl_source_read(source, 0, text, (size_t)bytes, err) < 0)
        return -1;
    return sl_sets_name_parse(text, (size_t)bytes, name, err);
}

/* fd: -1: only hashed. */
static int copy(struct sl_source *source, int fd, struct sl_sha256 *sha, struct sl_err *err)
{
    uint64_t bytes = sl_source_bytes(source);
    sl_autofree uint8_t *piece = sl_alloc(PIECE_BYTES, err);
    if (!piece)
        return -1;
    for (uint64_t at = 0; at < bytes;) {
        size_t part = (size_t)SL_MIN(bytes - at, (uint64_t)PIECE_BYTES);
        if (sl_source_read(source, at, piece, part, err) < 0)
            return -1;
        sl_sha256_update(sha, piece, part);
        if (fd >= 0 && sl_write_at(fd, piece, part, at) < 0)
            return sl_fail_errno(err, SL_E_NO_SPACE, errno, "no room for the packed set");
        at += part;
    }
    return 0;
}

int sl_sets_store_fetch(struct sl_store *store, const struct sl_sets_name *name, int fd,
                        struct sl_err *err)
{
    char path[PATH_BYTES], hex[65];
    uint8_t digest[32];
    SL_AUTO(sl_source) source = NULL;
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    blob_path(name->sha256, path);
    if (!sha || sl_source_open(store, path, 1, &source, err) < 0)
        return -1;
    if (sl_source_bytes(source) != name->bytes)
        return sl_fail(err, SL_E_INTEGRITY,
                       "its blob has %" PRIu64 " bytes, and latest.json says %" PRIu64
                       ": save the set again with `sluice caches save --replace`",
                       sl_source_bytes(source), name->bytes);
    if (copy(source, fd, sha, err) < 0)
        return -1;
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), hex);
    return strcmp(hex, name->sha256) == 0
               ? 0
               : sl_fail(err, SL_E_INTEGRITY,
                         "its blob does not have the SHA-256 that latest.json says: save the set "
                         "again with `sluice caches save --replace`");
}

/* ---- writing --------------------------------------------------------------------------------- */

static int open_upload(const struct sl_spec *spec, const struct sl_source_config *config,
                       const char *path, uint64_t bytes, bool replace, struct sl_upload **upload,
                       struct sl_err *err)
{
    const struct sl_upload_config how = {
        .source = config, .replace = replace, .memory_bytes = (uint64_t)8 * PIECE_BYTES, .mode = 0};
    sl_autofree char *uri = sl_asprintf(err, "%s%s", spec->sink.caches.url, path);
    return uri ? sl_upload_open(uri, bytes, &how, upload, err) : -1;
}

static int send_file(struct sl_upload *upload, int fd, uint64_t bytes, struct sl_err *err)
{
    sl_autofree uint8_t *piece = sl_alloc(PIECE_BYTES, err);
    if (!piece)
        return -1;
    for (uint64_t at = 0; at < bytes;) {
        size_t part = (size_t)SL_MIN(bytes - at, (uint64_t)PIECE_BYTES);
        if (sl_read_at(fd, piece, part, at) < 0)
            return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot read the packed set back");
        if (sl_upload_admit(upload, err) < 0 || sl_upload_write(upload, at, piece, part, err) < 0)
            return -1;
        at += part;
    }
    return sl_upload_finish(upload, err);
}

static int put_blob(const struct sl_spec *spec, const struct sl_source_config *config,
                    const struct sl_sets_name *name, int fd, bool replace, struct sl_err *err)
{
    char path[PATH_BYTES];
    SL_AUTO(sl_upload) upload = NULL;
    blob_path(name->sha256, path);
    if (open_upload(spec, config, path, name->bytes, replace, &upload, err) < 0)
        return -1;
    return send_file(upload, fd, name->bytes, err);
}

/* Whoever wrote what lies there, it is held against the name before anybody is led to it. -1: it
 * could not be read. */
static int look_at_blob(const struct sl_spec *spec, const struct sl_source_config *config,
                        const struct sl_sets_name *name, bool *good, struct sl_err *err)
{
    SL_AUTO(sl_store) store = NULL;
    struct sl_err why = SL_ERR_INIT;
    if (sl_sets_store_open(spec, config, &store, err) < 0)
        return -1;
    *good = sl_sets_store_fetch(store, name, -1, &why) == 0;
    if (*good || why.kind == SL_E_INTEGRITY || why.kind == SL_E_NOT_FOUND)
        return 0;
    *err = why;
    return -1;
}

int sl_sets_store_put_blob(const struct sl_spec *spec, const struct sl_source_config *config,
                           const struct sl_sets_name *name, int fd, bool replace,
                           struct sl_err *err)
{
    bool good = false;
    struct sl_err why = SL_ERR_INIT;
    if (put_blob(spec, config, name, fd, replace, &why) == 0)
        return 0;
    if (strcmp(why.code, "exists") != 0) {
        *err = why;
        return -1;
    }
    if (look_at_blob(spec, config, name, &good, err) < 0)
        return -1;
    return good ? 0 : put_blob(spec, config, name, fd, true, err);
}

int sl_sets_store_put_name(const struct sl_spec *spec, const struct sl_source_config *config,
                           const struct sl_sets_name *name, bool replace, struct sl_err *err)
{
    char path[PATH_BYTES];
    SL_AUTO(sl_upload) upload = NULL;
    sl_autobuf text = SL_BUF_INIT(2 * SL_SETS_NAME_BYTES_MAX);
    name_path(name->key, path);
    if (sl_sets_name_write(name, &text, err) < 0)
        return -1;
    if (text.used > SL_SETS_NAME_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "the labels are too long: shorten them");
    if (open_upload(spec, config, path, text.used, replace, &upload, err) < 0 ||
        sl_upload_write(upload, 0, text.data, text.used, err) < 0)
        return -1;
    return sl_upload_finish(upload, err);
}
