/*
 * What makes a version: something of which equal texts mean equal bytes. A pin does, a version
 * id, and a strong ETag. A weak ETag says that bytes may differ beneath it, whatever stands beside
 * it. A date has a resolution: what was told within it can change again without another date (RFC
 * 9110 section 8.8.2.2), so it counts only if it was old by then.
 */
#include "version.h"

#include <string.h>
#include <strings.h>
#include <time.h>

#include "hash.h"
#include "store_kind.h"

enum {
    DATE_AGE_SECONDS = 2,       /* by the server's own clock; dates are cut to seconds */
    DATE_AGE_SECONDS_OURS = 60, /* by ours, which may differ from the server's */
};

bool sl_etag_is_strong(const char *etag)
{
    return *etag && strncasecmp(etag, "W/", 2) != 0 && strcmp(etag, "\"\"") != 0;
}

/* Where versions are not kept, every object is of version "null". */
static bool id_counts(const char *version_id)
{
    return *version_id && strcmp(version_id, "null") != 0;
}

bool sl_version_is_known(const struct sl_version *version)
{
    if (version->pin[0] || id_counts(version->version_id) || sl_etag_is_strong(version->etag))
        return true;
    return !version->etag[0] && version->last_modified[0] && version->dated;
}

bool sl_source_common_name(const struct sl_source *source, char name[SL_SOURCE_NAME_BYTES])
{
    const struct sl_version *version = &source->version;
    const char *const words[] = {source->uri, version->etag, version->version_id, version->pin,
                                 version->last_modified};
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
    if (!sha || source->queried || source->piece_of || source->past_caches ||
        !sl_version_is_known(version))
        return false;
    for (size_t i = 0; i < SL_COUNT(words) && !source->blob; i++)
        sl_sha256_update(sha, words[i], strlen(words[i]) + 1);
    if (source->blob)
        sl_sha256_update(sha, source->blob, strlen(source->blob));
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), name);
    return true;
}

/* What counts first. */
static const char *text_of(const struct sl_version *version)
{
    return version->pin[0]                    ? version->pin
           : sl_etag_is_strong(version->etag) ? version->etag
           : id_counts(version->version_id)   ? version->version_id
                                              : version->last_modified;
}

int sl_version_name(const struct sl_source *source, uint8_t name[32], struct sl_err *err)
{
    const struct sl_version *version = &source->version;
    uint8_t bytes[8];
    const char *blob = source->piece_of ? NULL : source->blob; /* that is what it is a piece of */
    bool own = !source->queried && (!source->piece_of || version->pin[0]);
    if (!sl_version_is_known(version) || (!own && !blob))
        return 0;
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    const char *const words[] = {blob ? "" : source->uri, blob ? blob : text_of(version)};
    for (size_t i = 0; i < SL_COUNT(words); i++)
        sl_sha256_update(sha, words[i], strlen(words[i]) + 1);
    sl_put_le64(bytes, source->bytes);
    sl_sha256_update(sha, bytes, sizeof(bytes));
    sl_sha256_finish(sha, name);
    return 1;
}

static bool parse_date(const char *text, int64_t *seconds)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    if (!rest || *rest)
        return false;
    *seconds = (int64_t)timegm(&tm);
    return true;
}

bool sl_version_date_settled(const char *last_modified, const char *date)
{
    int64_t modified, now;
    if (!parse_date(last_modified, &modified))
        return false;
    if (*date)
        return parse_date(date, &now) && now - modified >= DATE_AGE_SECONDS;
    return (int64_t)time(NULL) - modified >= DATE_AGE_SECONDS_OURS;
}
