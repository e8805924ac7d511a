/* One object after another: its ranges are hashed side by side. */
#include "signing.h"

#include <inttypes.h>

#include "hash_ranges.h"
#include "log.h"
#include "sink.h"
#include "stores.h"
#include "upload.h"

/* Takes the source, whatever happens. */
static int hash_all(struct sl_cli_signing *signing, const char *name, struct sl_source *source,
                    struct sl_sidecar *sidecar, struct sl_err *err)
{
    struct sl_hashed_object object = {name, sidecar->bytes, source, 0, false};
    sl_autofree struct sl_hashed_range *ranges =
        sl_alloc_array(sidecar->range_count, sizeof(*ranges), err);
    for (size_t i = 0; ranges && i < sidecar->range_count; i++) {
        ranges[i].object = &object;
        ranges[i].begin = i * sidecar->range_bytes;
        ranges[i].end = sl_sidecar_range_end(sidecar, i);
    }
    int done = ranges ? sl_cli_hash_ranges(signing->store, ranges, sidecar->range_count, err) : -1;
    sl_source_free(object.source); /* of an empty one */
    if (done < 0)
        return -1;
    for (size_t i = 0; i < sidecar->range_count; i++) {
        sidecar->ranges[i].crc32c = ranges[i].crc32c;
        memcpy(sidecar->ranges[i].sha256, ranges[i].sha256, sizeof(ranges[i].sha256));
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

char *sl_cli_beside(const char *uri, const char *suffix, struct sl_err *err)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    const char *query = kind && kind->traits.urls ? strchr(uri, '?') : NULL;
    int bytes = (int)(query ? (size_t)(query - uri) : strlen(uri));
    return sl_asprintf(err, "%.*s%s%s", bytes, uri, suffix, query ? query : "");
}

int sl_cli_put(const char *uri, const struct sl_source_config *config, const struct sl_buf *text,
               struct sl_err *err)
{
    const struct sl_upload_config how = {.source = config, .replace = true};
    SL_AUTO(sl_upload) upload = NULL;
    if (sl_upload_open(uri, text->used, &how, &upload, err) < 0 ||
        sl_upload_write(upload, 0, text->data, text->used, err) < 0)
        return -1;
    return sl_upload_finish(upload, err);
}

static int put(const struct sl_cli_signing *signing, const char *name, const struct sl_buf *text,
               struct sl_err *err)
{
    sl_autofree char *uri = signing->single
                                ? sl_cli_beside(signing->uri, SL_SIDECAR_SUFFIX, err)
                                : sl_asprintf(err, "%s%s%s", signing->uri, name, SL_SIDECAR_SUFFIX);
    return uri ? sl_cli_put(uri, signing->config, text, err) : -1;
}

int sl_cli_sign_object(struct sl_cli_signing *signing, const char *name, struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    sl_autobuf text = SL_BUF_INIT(SL_SIDECAR_TEXT_BYTES_MAX);
    if (sl_name_check(name, strlen(name), err) < 0 || /* no reader would take its sidecar */
        sl_source_open(signing->store, name, 1, &source, err) < 0)
        return -1;
    SL_AUTO(sl_sidecar)
    sidecar = sl_sidecar_new(name, sl_source_bytes(source), signing->range_bytes, err);
    if (!sidecar)
        return -1;
    sidecar->made_from = *sl_source_version(source);
    if (hash_all(signing, name, sl_steal(&source), sidecar, err) < 0 ||
        add_signature(signing, sidecar, err) < 0 || sl_sidecar_write(sidecar, &text, err) < 0)
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
                        "object '%s' differs from its sidecar in %" PRIu64 " of %zu ranges: it "
                        "was changed or is damaged",
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
    if (!actual || hash_all(signing, name, sl_steal(&source), actual, err) < 0)
        return -1;
    return compare(signing, name, expected, actual, err);
}
