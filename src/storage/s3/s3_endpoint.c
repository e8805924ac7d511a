/*
 * The AWS tools' rules: Amazon gets virtual hosts for buckets whose name is one DNS label, an
 * endpoint of one's own gets the bucket in the path unless told otherwise. What hosts of other
 * stores want stands in two tables: those that refuse path style get virtual hosts without being
 * asked, and those that check the region tell it by their names.
 */
#include "s3_endpoint.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

struct choice {
    const char *url, *from;
    int addressing;
    const char *host_bucket; /* s3cmd: the host part behind "%(bucket)s." */
};

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

bool sl_s3_region_valid(const char *region)
{
    size_t bytes = strlen(region);
    return bytes > 0 && bytes < SL_S3_REGION_MAX &&
           strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") == bytes;
}

/* One DNS label, so that a wildcard certificate covers it. */
static bool is_label(const char *bucket)
{
    size_t bytes = strlen(bucket);
    return bytes >= 3 && bytes <= 63 &&
           strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-") == bytes && bucket[0] != '-' &&
           bucket[bytes - 1] != '-';
}

static bool is_host_name(const char *bucket)
{
    size_t bytes = strlen(bucket);
    return bytes >= 3 && bytes <= 63 &&
           strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-.") == bytes && bucket[0] != '.' &&
           bucket[bytes - 1] != '.' && !strstr(bucket, "..");
}

/* ---- access points ----------------------------------------------------------------------------
 */

bool sl_s3_is_arn(const char *bucket)
{
    return strncmp(bucket, "arn:", 4) == 0;
}

/* One part of an ARN, up to its ':' or end; false: it is empty or too long. */
static bool take_part(const char **at, char *part, size_t bytes)
{
    size_t length = strcspn(*at, ":");
    bool fits = length > 0 && length < bytes;
    snprintf(part, bytes, "%.*s", fits ? (int)length : 0, *at);
    *at += length + ((*at)[length] == ':');
    return fits;
}

int sl_s3_arn_parse(const char *bucket, struct sl_s3_arn *arn, struct sl_err *err)
{
    static const char digits[] = "0123456789", kind[] = "accesspoint";
    char part[64], service[32];
    const char *at = bucket + 4;
    *arn = (struct sl_s3_arn){.region = ""};
    bool good = take_part(&at, part, sizeof(part)) && take_part(&at, service, sizeof(service));
    arn->china = strcmp(part, "aws-cn") == 0;
    bool has_region = take_part(&at, arn->region, sizeof(arn->region));
    good = take_part(&at, arn->account, sizeof(arn->account)) && good;
    if (good && strcmp(service, "s3") != 0)
        return sl_fail(err, SL_E_USAGE,
                       "'%.200s' is an access point of %s, which sluice does not read: name the "
                       "bucket, or a usual access point of it",
                       bucket,
                       strcmp(service, "s3-object-lambda") == 0 ? "S3 Object Lambda" : service);
    if (good && !has_region)
        return sl_fail(err, SL_E_USAGE,
                       "'%.200s' is an access point of several regions, whose signatures sluice "
                       "does not make: name the bucket, or an access point of one region",
                       bucket);
    if (!good || !sl_s3_region_valid(arn->region) || strlen(arn->account) != 12 ||
        strspn(arn->account, digits) != 12 || strncmp(at, kind, sizeof(kind) - 1) != 0 ||
        (at[sizeof(kind) - 1] != '/' && at[sizeof(kind) - 1] != ':') ||
        !is_label(at + sizeof(kind)) || strlen(at + sizeof(kind)) > 50)
        return sl_fail(err, SL_E_USAGE,
                       "'%.200s' names no access point: expected "
                       "s3://arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/KEY",
                       bucket);
    snprintf(arn->name, sizeof(arn->name), "%s", at + sizeof(kind));
    return 0;
}

/* S3 Express One Zone: each session has keys of its own. */
static bool is_directory_bucket(const char *bucket)
{
    static const char end[] = "--x-s3";
    size_t bytes = strlen(bucket);
    return bytes > sizeof(end) - 1 && strcmp(bucket + bytes - (sizeof(end) - 1), end) == 0;
}

static char *amazons(const char *bucket, const char *region, struct sl_err *err)
{
    struct sl_s3_arn arn;
    if (is_directory_bucket(bucket)) {
        sl_fail(err, SL_E_USAGE,
                "'%.100s' is a directory bucket (S3 Express One Zone), which sluice does not read: "
                "copy the model to a general purpose bucket",
                bucket);
        return NULL;
    }
    if (!sl_s3_is_arn(bucket)) {
        bool china = strncmp(region, "cn-", 3) == 0;
        return sl_asprintf(err, "https://s3.%s.amazonaws.com%s", region, china ? ".cn" : "");
    }
    return sl_s3_arn_parse(bucket, &arn, err) < 0
               ? NULL
               : sl_asprintf(err, "https://%s-%s.s3-accesspoint.%s.amazonaws.com%s", arn.name,
                             arn.account, arn.region, arn.china ? ".cn" : "");
}

/* ---- which endpoint ------------------------------------------------------------------------- */

static bool is_amazon_default(const char *host)
{
    return strcasecmp(host, "s3.amazonaws.com") == 0;
}

/* s3cmd: host_base without scheme, host_bucket a template. *text keeps the URL. */
static int from_s3cfg(struct choice *choice, const struct sl_s3cfg *s3cfg, int wanted, char **text,
                      struct sl_err *err)
{
    static const char variable[] = "%(bucket)s";
    const char *template = s3cfg->host_bucket;
    if (!s3cfg->host_base || is_amazon_default(s3cfg->host_base))
        return 0;
    *text =
        strstr(s3cfg->host_base, "://")
            ? sl_strdup(s3cfg->host_base, err)
            : sl_asprintf(err, "%s://%s", s3cfg->plain_http ? "http" : "https", s3cfg->host_base);
    if (!*text)
        return -1;
    choice->url = *text;
    choice->from = s3cfg->path;
    if (!template || wanted != SL_S3_ADDRESSING_AUTO)
        return 0;
    const char *found = strstr(template, variable);
    if (!found || template[0] != '%') {
        if (found)
            return sl_fail(
                err, SL_E_USAGE,
                "'%s': host_bucket '%.100s' is not understood: expected '%%(bucket)s.HOST' "
                "or a host without '%%(bucket)s' for path style",
                s3cfg->path, template);
        choice->addressing = SL_S3_ADDRESSING_PATH;
        return 0;
    }
    const char *rest = template + sizeof(variable) - 1;
    if (*rest != '.' || is_amazon_default(rest + 1))
        return 0; /* s3cmd's default, left as it was */
    choice->addressing = SL_S3_ADDRESSING_VIRTUAL;
    choice->host_bucket = rest + 1;
    return 0;
}

static bool configured_ignored(const struct sl_profile *profile)
{
    const char *text = env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    text = text ? text : profile->ignore_endpoint_urls;
    return text && strcasecmp(text, "true") == 0;
}

static void from_configured(struct choice *choice, const struct sl_profile *profile)
{
    const struct {
        const char *url, *from;
    } rows[] = {
        {env("AWS_ENDPOINT_URL_S3"), "AWS_ENDPOINT_URL_S3"},
        {env("AWS_ENDPOINT_URL"), "AWS_ENDPOINT_URL"},
        {sl_profile_endpoint(profile), "the profile's endpoint_url"},
    };
    if (configured_ignored(profile))
        return;
    for (size_t i = 0; i < SL_COUNT(rows) && !choice->url; i++) {
        choice->url = rows[i].url;
        choice->from = rows[i].from;
    }
}

/* choice->url stays NULL for Amazon. *text keeps what had to be put together. */
static int choose(struct choice *choice, const struct sl_s3_options *options,
                  const struct sl_creds *creds, char **text, struct sl_err *err)
{
    const struct sl_profile *profile = sl_creds_profile(creds);
    choice->addressing = options ? options->addressing : SL_S3_ADDRESSING_AUTO;
    if (options && options->endpoint && *options->endpoint) {
        choice->url = options->endpoint;
        choice->from = "source.s3.endpoint";
    } else if (from_s3cfg(choice, sl_creds_s3cfg(creds), choice->addressing, text, err) < 0) {
        return -1;
    }
    if (!choice->url)
        from_configured(choice, profile);
    const char *style = profile->s3_addressing_style;
    if (choice->addressing == SL_S3_ADDRESSING_AUTO && style) {
        if (strcasecmp(style, "path") == 0)
            choice->addressing = SL_S3_ADDRESSING_PATH;
        else if (strcasecmp(style, "virtual") == 0)
            choice->addressing = SL_S3_ADDRESSING_VIRTUAL;
    }
    return 0;
}

/* ---- what it means for a bucket ------------------------------------------------------------- */

static int parse_endpoint(const struct choice *choice, struct sl_url *url, struct sl_err *err)
{
    bool bare = !strstr(choice->url, "://");
    sl_autofree char *text = sl_asprintf(err, "%s%s", bare ? "https://" : "", choice->url);
    if (!text)
        return -1;
    if (sl_url_parse(text, url, err) < 0)
        return sl_wrap(err, "endpoint from %s", choice->from);
    if (!sl_url_is_base(url))
        return sl_fail(err, SL_E_USAGE,
                       "endpoint from %s must be scheme, host and port, without user, query or "
                       "fragment",
                       choice->from);
    for (size_t bytes = strlen(url->target); bytes && url->target[bytes - 1] == '/';)
        url->target[--bytes] = 0;
    return 0;
}

struct host_rule {
    const char *host;
    uint64_t range_bytes_min; /* each request of CoreWeave's cache is looked up: 15 MB and more */
};
static const struct host_rule coreweave[] = {{"cwobject.com", 0}, {"cwlota.com", 16 << 20}};

/* The region stands between begin and end. With a bucket before it already it is another host. */
struct region_rule {
    const char *begin, *end;
    bool virtual_host; /* paths are refused */
    bool signs;        /* requests are signed for this region, and for no other */
};
static const struct region_rule regional[] = {
    {"oss-", ".aliyuncs.com", true, false},
    {"s3.oss-", ".aliyuncs.com", true, false},
    {"cos.", ".myqcloud.com", true, false},
    {"s3.", ".backblazeb2.com", false, true},
    {"s3.", ".wasabisys.com", false, true},
    {"storage.", ".nebius.cloud", false, true},
    {".compat.objectstorage.", ".oraclecloud.com", false, true}, /* behind a namespace */
};

static const struct host_rule *rule_of_host(const char *host)
{
    for (size_t i = 0; i < SL_COUNT(coreweave); i++)
        if (strcmp(host, coreweave[i].host) == 0)
            return &coreweave[i];
    return NULL;
}

/* region: in the host, of *region_bytes. */
static const struct region_rule *rule_of_region(const char *host, const char **region,
                                                size_t *region_bytes)
{
    for (size_t i = 0; i < SL_COUNT(regional); i++) {
        const struct region_rule *rule = &regional[i];
        const char *at = *rule->begin == '.' ? strstr(host, rule->begin) : host;
        size_t begin = strlen(rule->begin), end = strlen(rule->end), bytes = at ? strlen(at) : 0;
        if (bytes <= begin + end || strncmp(at, rule->begin, begin) != 0 ||
            strcmp(at + bytes - end, rule->end) != 0)
            continue;
        *region = at + begin;
        *region_bytes = bytes - begin - end;
        return memchr(*region, '.', *region_bytes) ? NULL : rule;
    }
    return NULL;
}

static void take_region(struct sl_s3_endpoint *endpoint, const char *host)
{
    static const char r2[] = ".r2.cloudflarestorage.com";
    const char *region;
    size_t bytes, host_bytes = strlen(host);
    const struct region_rule *rule = rule_of_region(host, &region, &bytes);
    if (rule && rule->signs && bytes < sizeof(endpoint->region))
        memcpy(endpoint->region, region, bytes);
    if (host_bytes >= sizeof(r2) && strcmp(host + host_bytes - sizeof(r2) + 1, r2) == 0)
        memcpy(endpoint->region, "auto", sizeof("auto"));
    if (!sl_s3_region_valid(endpoint->region))
        *endpoint->region = 0;
}

static bool wants_virtual(const struct sl_url *url, const struct choice *choice, bool amazon,
                          const char *bucket)
{
    if (choice->addressing != SL_S3_ADDRESSING_AUTO)
        return choice->addressing == SL_S3_ADDRESSING_VIRTUAL;
    if (amazon)
        return is_label(bucket);
    if (rule_of_host(url->host))
        return true;
    const char *region;
    size_t bytes;
    const struct region_rule *rule = rule_of_region(url->host, &region, &bytes);
    return rule && rule->virtual_host && is_label(bucket);
}

static int fill(struct sl_s3_endpoint *endpoint, const struct sl_url *url,
                const struct choice *choice, const char *bucket, struct sl_err *err)
{
    char authority[SL_URL_AUTHORITY_MAX];
    const char *scheme = url->tls ? "https" : "http";
    sl_url_authority(url, authority);
    if (endpoint->whole) {
        endpoint->authority = sl_strdup(authority, err);
        endpoint->base = sl_strdup(url->target, err);
    } else if (endpoint->virtual_host) {
        if (!is_host_name(bucket) || url->ipv6)
            return sl_fail(err, SL_E_USAGE,
                           "bucket '%.100s' cannot be part of the host name '%s': set "
                           "source.s3.addressing to path",
                           bucket, authority);
        endpoint->authority = sl_asprintf(err, "%s.%s", bucket,
                                          choice->host_bucket ? choice->host_bucket : authority);
        endpoint->base = sl_strdup(url->target, err);
    } else {
        sl_autofree char *encoded = sl_url_encode(bucket, false, err);
        endpoint->authority = sl_strdup(authority, err);
        endpoint->base = encoded ? sl_asprintf(err, "%s/%s", url->target, encoded) : NULL;
    }
    if (!endpoint->authority || !endpoint->base)
        return -1;
    endpoint->origin = sl_asprintf(err, "%s://%s", scheme, endpoint->authority);
    return endpoint->origin ? 0 : -1;
}

/* The template of an .s3cfg may name a port or capitals: bring it into the shape of a Host header.
 */
static int normalise(struct sl_s3_endpoint *endpoint, struct sl_err *err)
{
    char authority[SL_URL_AUTHORITY_MAX];
    sl_autourl url = {0};
    if (sl_url_parse(endpoint->origin, &url, err) < 0)
        return sl_wrap(err, "endpoint from %s", endpoint->from);
    sl_url_authority(&url, authority);
    free(endpoint->authority);
    endpoint->authority = sl_strdup(authority, err);
    return endpoint->authority ? 0 : -1;
}

int sl_s3_endpoint_find(struct sl_s3_endpoint *endpoint, const struct sl_s3_options *options,
                        const struct sl_creds *creds, const char *bucket, const char *region,
                        struct sl_err *err)
{
    struct choice choice = {0};
    sl_autofree char *text = NULL, *amazon = NULL;
    sl_autourl url = {0};
    if (choose(&choice, options, creds, &text, err) < 0)
        return -1;
    bool point = sl_s3_is_arn(bucket);
    if (point && choice.url)
        return sl_fail(err, SL_E_USAGE,
                       "'%.200s' is an access point of Amazon, and %s names another store: name "
                       "the bucket, or take the endpoint away",
                       bucket, choice.from);
    if (!choice.url) {
        amazon = amazons(bucket, region, err);
        if (!amazon)
            return -1;
        choice.url = amazon;
        choice.from = point ? "the access point" : "the region";
    }
    if (parse_endpoint(&choice, &url, err) < 0)
        return -1;
    *endpoint = (struct sl_s3_endpoint){.amazon = amazon != NULL, .from = choice.from};
    const struct host_rule *rule = rule_of_host(url.host);
    endpoint->range_bytes_min = rule ? rule->range_bytes_min : 0;
    take_region(endpoint, url.host);
    endpoint->whole = point;
    endpoint->virtual_host = !point && wants_virtual(&url, &choice, endpoint->amazon, bucket);
    if (fill(endpoint, &url, &choice, bucket, err) < 0 || normalise(endpoint, err) < 0) {
        sl_s3_endpoint_release(endpoint);
        return -1;
    }
    return 0;
}

void sl_s3_endpoint_release(struct sl_s3_endpoint *endpoint)
{
    free(endpoint->origin);
    free(endpoint->authority);
    free(endpoint->base);
    *endpoint = (struct sl_s3_endpoint){0};
}
