/*
 * STORAGE_CONFIG is the JSON of one entry of the secret `storage-config`; STORAGE_OVERRIDE_CONFIG
 * are the parameters of the service's own `storage` section. Together they stand for variables, and
 * only if they are of type s3. They hold secrets: a complaint says where, never what.
 */
#include <string.h>
#include <strings.h>

#include "json.h"
#include "log.h"
#include "storage_env.h"

static const struct {
    const char *field, *variable;
} fields[] = {
    {"endpoint_url", "AWS_ENDPOINT_URL"},
    {"access_key_id", "AWS_ACCESS_KEY_ID"},
    {"secret_access_key", "AWS_SECRET_ACCESS_KEY"},
    {"region", "AWS_DEFAULT_REGION"},
    {"ca_bundle", "AWS_CA_BUNDLE"},
    {"verify_ssl", "S3_VERIFY_SSL"},
    {"anonymous", "awsAnonymousCredential"},
};
/* Of use to KServe itself, before we are started. */
static const char *const others[] = {"type", "bucket", "default_bucket", "certificate",
                                     "cabundle_configmap"};

/* The object in a variable, NULL if it is not set or empty; *bad tells an error from that. */
static json_t *read_object(const char *variable, bool *bad, struct sl_err *err)
{
    const char *text = getenv(variable);
    json_error_t why;
    *bad = false;
    if (!text || !text[strspn(text, " \t\r\n")])
        return NULL;
    *bad = true;
    if (strlen(text) > SL_STORAGE_JSON_BYTES_MAX) {
        sl_fail(err, SL_E_USAGE, "%s is larger than %d bytes", variable, SL_STORAGE_JSON_BYTES_MAX);
        return NULL;
    }
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(object)) {
        if (object)
            sl_fail(err, SL_E_USAGE, "%s is not a JSON object", variable);
        else
            sl_fail(err, SL_E_USAGE, "%s is not JSON: line %d, column %d", variable, why.line,
                    why.column);
        json_decref(object);
        return NULL;
    }
    *bad = false;
    return object;
}

static void warn_of_unknown(const char *variable, const json_t *object)
{
    const char *known[SL_COUNT(fields) + SL_COUNT(others)], *key;
    size_t count = 0;
    const json_t *value;
    for (size_t i = 0; i < SL_COUNT(fields); i++)
        known[count++] = fields[i].field;
    for (size_t i = 0; i < SL_COUNT(others); i++)
        known[count++] = others[i];
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const char *near = sl_nearest(key, known, count);
        if (near && strcmp(near, key) != 0)
            sl_log(SL_LOG_WARN, "%s: unknown field '%.100s', did you mean '%s'?", variable, key,
                   near);
    }
}

/* Strings, and for the two switches true and false themselves. */
static int set_field(const char *variable, const char *field, const char *name, const json_t *value,
                     struct sl_err *err)
{
    const char *text = json_string_value(value);
    bool is_switch = strcmp(field, "verify_ssl") == 0 || strcmp(field, "anonymous") == 0;
    if (!text && is_switch && json_is_boolean(value))
        text = json_is_true(value) ? "true" : "false";
    if (!text)
        return sl_fail(err, SL_E_USAGE, "%s: '%s' must be a string", variable, field);
    if (setenv(name, text, 1) < 0)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory for %s", name);
    return 0;
}

static int apply(const char *variable, const json_t *object, struct sl_err *err)
{
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        const json_t *value = json_object_get(object, fields[i].field);
        if (value && set_field(variable, fields[i].field, fields[i].variable, value, err) < 0)
            return -1;
    }
    return 0;
}

static int apply_both(const json_t *base, const json_t *over, struct sl_err *err)
{
    static const char config[] = "STORAGE_CONFIG", override[] = "STORAGE_OVERRIDE_CONFIG";
    const json_t *over_type = json_object_get(over, "type"),
                 *type = over_type ? over_type : json_object_get(base, "type");
    const char *text = json_string_value(type);
    if (type && !text)
        return sl_fail(err, SL_E_USAGE, "%s: 'type' must be a string",
                       over_type ? override : config);
    if (!text || strcmp(text, "s3") != 0) {
        if (json_object_size(base) + json_object_size(over))
            sl_log(SL_LOG_WARN, "%s is not of type 's3' and is ignored", config);
        return 0;
    }
    warn_of_unknown(config, base);
    warn_of_unknown(override, over);
    return apply(config, base, err) < 0 ? -1 : apply(override, over, err);
}

static bool is_of_amazon(const char *url)
{
    static const char domain[] = ".amazonaws.com";
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    size_t bytes = strcspn(host, ":/"), end = sizeof(domain) - 1;
    return bytes > end && strncasecmp(host + bytes - end, domain, end) == 0;
}

/*
 * KServe's default endpoint means Amazon in any region. One of a region is for S3 alone: as
 * AWS_ENDPOINT_URL it would be taken for that of STS, too, and no role could be assumed.
 */
static int part_from_sts(struct sl_err *err)
{
    static const char all[] = "AWS_ENDPOINT_URL", own[] = "AWS_ENDPOINT_URL_S3";
    const char *url = getenv(own);
    if (url && sl_storage_is_amazon(url))
        unsetenv(own);
    url = getenv(all);
    if (!url || !is_of_amazon(url))
        return 0;
    if (!sl_storage_is_amazon(url) && setenv(own, url, 0) < 0)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory for %s", own);
    unsetenv(all);
    return 0;
}

int sl_storage_env_apply(struct sl_err *err)
{
    bool bad;
    json_t *base = read_object("STORAGE_CONFIG", &bad, err);
    if (bad)
        return -1;
    json_t *over = read_object("STORAGE_OVERRIDE_CONFIG", &bad, err);
    int done = bad ? -1 : apply_both(base, over, err);
    if (done == 0)
        done = part_from_sts(err);
    json_decref(base);
    json_decref(over);
    return done;
}
