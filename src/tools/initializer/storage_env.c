/*
 * Variables that sluice reads by itself (keys, web identity, proxies) are left to it. The others
 * become settings whose origin is the variable, so that a wrong value is complained of by its name.
 *
 * Headers may hold secrets and certificates come from two places, but a spec knows files alone:
 * both are put into files in memory and named /proc/self/fd/N, since the root of a container is
 * read-only.
 */
#include "storage_env.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "az_options.h"
#include "buf.h"
#include "ca.h"
#include "exact_io.h"
#include "gs_options.h"
#include "http_store.h"
#include "log.h"
#include "s3_options.h"
#include "url.h"

enum { CERTIFICATES_BYTES_MAX = 16 * 1024 * 1024, HEADER_BYTES_MAX = 64 * 1024 };
/* Where KServe's webhook mounts CA bundles if it is not told otherwise. */
static const char ca_mount[] = "/etc/ssl/custom-certs", ca_file[] = "cabundle.crt";

const struct sl_storage_signing sl_storage_signing[SL_STORAGE_SIGNING_COUNT] = {
    {"SLUICE_SIGNED_BY", "verify.modelSigning.publicKeyFile"},
    {"SLUICE_SIGNATURE", "verify.modelSigning.file"},
};

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool says_true(const char *name)
{
    const char *value = variable(name);
    if (value && strcasecmp(value, "true") != 0 && strcasecmp(value, "false") != 0)
        sl_log(SL_LOG_WARN, "%s is neither 'true' nor 'false' and counts as false", name);
    return value && strcasecmp(value, "true") == 0;
}

static bool is_no(const char *value)
{
    return value && (strcmp(value, "0") == 0 || strcasecmp(value, "false") == 0);
}

void sl_storage_env_release(struct sl_storage_env *env)
{
    for (size_t i = 0; i < env->text_count; i++)
        free(env->texts[i]);
    for (size_t i = 0; i < env->fd_count; i++)
        close(env->fds[i]);
    *env = (struct sl_storage_env){0};
}

static void set(struct sl_storage_env *env, const char *path, const char *value, const char *origin)
{
    env->items[env->count++] = (struct sl_spec_setting){path, value, origin};
}

/* Takes text. */
static int set_text(struct sl_storage_env *env, const char *path, char *text, const char *origin)
{
    if (!text)
        return -1;
    env->texts[env->text_count++] = text;
    set(env, path, text, origin);
    return 0;
}

/* A file in memory with these bytes; its name is kept. */
static int set_file(struct sl_storage_env *env, const char *path, const void *data, size_t bytes,
                    const char *origin, struct sl_err *err)
{
    int fd = memfd_create("sluice", MFD_CLOEXEC);
    if (fd < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot keep %s", origin);
    env->fds[env->fd_count++] = fd;
    if (sl_write_all(fd, data, bytes) < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot keep %s", origin);
    return set_text(env, path, sl_asprintf(err, "/proc/self/fd/%d", fd), origin);
}

/* ---- S3 ------------------------------------------------------------------------------------- */

/* A whole number of a variable that the upstream reads, too; *value is untouched without it. */
static int read_number(const char *name, unsigned long *value, struct sl_err *err)
{
    const char *text = variable(name);
    char *end;
    if (!text)
        return 0;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || number > 1000000)
        return sl_fail(err, SL_E_USAGE, "%s is '%.80s', which is not a whole number", name, text);
    *value = number;
    return 0;
}

/* Time-outs and tries; how many files at a time and how long to connect is sluice's own affair. */
static int add_limits(struct sl_storage_env *env, struct sl_err *err)
{
    unsigned long read_seconds = 0, tries = 0, unused = 0;
    if (read_number("S3_READ_TIMEOUT", &read_seconds, err) < 0 ||
        read_number("S3_MAX_ATTEMPTS", &tries, err) < 0 ||
        read_number("S3_CONNECT_TIMEOUT", &unused, err) < 0 ||
        read_number("S3_MAX_FILE_CONCURRENCY", &unused, err) < 0)
        return -1;
    if (read_seconds && set_text(env, "readers.stallSeconds", sl_asprintf(err, "%lu", read_seconds),
                                 "S3_READ_TIMEOUT") < 0)
        return -1;
    if (!variable("S3_MAX_ATTEMPTS"))
        return 0;
    /* botocore counts tries after the first one, whatever fails */
    if (set_text(env, "readers.unreachableSeconds", sl_asprintf(err, "0"), "S3_MAX_ATTEMPTS") < 0)
        return -1;
    return set_text(env, "readers.attempts", sl_asprintf(err, "%lu", tries + 1), "S3_MAX_ATTEMPTS");
}

/* A bundle that was named must be there: without it nothing would be trusted that was meant. */
static int need_file(const char *path, const char *origin, struct sl_err *err)
{
    if (access(path, R_OK) == 0)
        return 0;
    return sl_fail_errno(err, SL_E_USAGE, errno,
                         "there is no CA bundle '%.300s', which %s names: mount its ConfigMap",
                         path, origin);
}

static char *mounted_bundle(struct sl_err *err)
{
    const char *mount = variable("CA_BUNDLE_VOLUME_MOUNT_POINT");
    return sl_asprintf(err, "%s/%s", mount ? mount : ca_mount, ca_file);
}

static int add_s3_trust(struct sl_storage_env *env, struct sl_err *err)
{
    const char *own = variable("AWS_CA_BUNDLE"), *config_map = NULL;
    if (is_no(variable("S3_VERIFY_SSL"))) {
        set(env, "source.tls.verify", "false", "S3_VERIFY_SSL");
        return 0;
    }
    if (own) {
        set(env, "source.tls.caFile", own, "AWS_CA_BUNDLE");
        return need_file(own, "AWS_CA_BUNDLE", err);
    }
    if (variable("AWS_CA_BUNDLE_CONFIGMAP"))
        config_map = "AWS_CA_BUNDLE_CONFIGMAP";
    else if (variable("CA_BUNDLE_CONFIGMAP_NAME"))
        config_map = "CA_BUNDLE_CONFIGMAP_NAME";
    if (!config_map)
        return 0;
    char *path = mounted_bundle(err);
    if (set_text(env, "source.tls.caFile", path, config_map) < 0)
        return -1;
    return need_file(path, config_map, err);
}

bool sl_storage_is_amazon(const char *url)
{
    static const char legacy[] = "https://s3.amazonaws.com";
    size_t bytes = sizeof(legacy) - 1;
    return strncasecmp(url, legacy, bytes) == 0 && (!url[bytes] || strcmp(url + bytes, "/") == 0);
}

static int add_endpoint(struct sl_storage_env *env, bool accelerate, struct sl_err *err)
{
    static const char *const names[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT"};
    const char *origin = NULL, *url = NULL;
    for (size_t i = 0; i < SL_COUNT(names) && !url; i++) {
        origin = names[i];
        url = variable(origin);
    }
    const char *scheme = is_no(variable("S3_USE_HTTPS")) ? "http" : "https";
    char *whole = url ? sl_asprintf(err, "%s%s%s", strstr(url, "://") ? "" : scheme,
                                    strstr(url, "://") ? "" : "://", url)
                      : NULL;
    if (url && !whole)
        return -1;
    if (whole && sl_storage_is_amazon(whole)) {
        free(whole);
        whole = NULL;
    }
    if (!whole) {
        if (accelerate)
            set(env, "source.s3.endpoint", "https://s3-accelerate.amazonaws.com",
                "S3_USE_ACCELERATE");
        return 0;
    }
    if (accelerate) {
        free(whole);
        return sl_fail(err, SL_E_USAGE,
                       "S3_USE_ACCELERATE is of Amazon alone, but %s names another store: unset "
                       "one of them",
                       origin);
    }
    return set_text(env, "source.s3.endpoint", whole, origin);
}

int sl_storage_env_s3(struct sl_storage_env *env, struct sl_err *err)
{
    bool accelerate = says_true("S3_USE_ACCELERATE"),
         own_host = says_true("S3_USER_VIRTUAL_BUCKET");
    const char *region = variable("AWS_DEFAULT_REGION");
    if (add_endpoint(env, accelerate, err) < 0)
        return -1;
    if (region) /* KServe's own; EKS adds AWS_REGION, where the cluster is */
        set(env, "source.s3.region", region, "AWS_DEFAULT_REGION");
    if (own_host || accelerate)
        set(env, "source.s3.addressing", "virtual",
            own_host ? "S3_USER_VIRTUAL_BUCKET" : "S3_USE_ACCELERATE");
    if (says_true("awsAnonymousCredential"))
        set(env, "source.s3.anonymous", "true", "awsAnonymousCredential");
    return add_s3_trust(env, err) < 0 ? -1 : add_limits(env, err);
}

/* ---- HTTP ----------------------------------------------------------------------------------- */

static bool is_plain(const char *text, bool name)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == 0x7f || (name && (*p == ':' || *p == ' ')))
            return false;
    return true;
}

static int write_headers(const json_t *object, const char *origin, struct sl_buf *lines,
                         struct sl_err *err)
{
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        const char *text = json_string_value(value);
        if (!text || !*name || !is_plain(name, true) || !is_plain(text, false))
            return sl_fail(err, SL_E_USAGE,
                           "%s: the header '%.100s' must be a name and a string of one line",
                           origin, name);
        if (sl_buf_printf(lines, err, "%s: %s\n", name, text) < 0)
            return -1;
    }
    return 0;
}

/* `HOST-headers` holds a JSON object of header fields. */
static int add_headers(struct sl_storage_env *env, const char *uri, struct sl_err *err)
{
    sl_autourl url = {0};
    sl_autobuf lines = SL_BUF_INIT(HEADER_BYTES_MAX);
    json_error_t why;
    if (sl_url_parse(uri, &url, err) < 0)
        return -1;
    char *name = sl_asprintf(err, "%s-headers", url.host);
    if (!name)
        return -1;
    env->texts[env->text_count++] = name;
    const char *text = variable(name);
    if (!text)
        return 0;
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    int done = json_is_object(object)
                   ? write_headers(object, name, &lines, err)
                   : sl_fail(err, SL_E_USAGE, "%s is not a JSON object (line %d, column %d)", name,
                             object ? 1 : why.line, object ? 1 : why.column);
    json_decref(object);
    if (done == 0 && lines.used)
        done = set_file(env, "source.http.headersFile", lines.data, lines.used, name, err);
    if (lines.data)
        explicit_bzero(lines.data, lines.used);
    return done;
}

/* As with the upstream a bundle that cannot be read is only told of; a lack of memory is an end. */
static int read_bundle(struct sl_buf *all, const char *path, bool *read, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    *read = path && sl_buf_read_file(all, path, &why) == 0;
    if (why.kind == SL_E_NO_SPACE) {
        *err = why;
        return -1;
    }
    if (path && !*read)
        sl_log(SL_LOG_WARN, "certificates are left out: %s", why.message);
    return sl_buf_text(all, "\n", err);
}

/* The certificates of the ConfigMap and the system's, one behind the other. */
static int add_both(struct sl_storage_env *env, const char *system, const char *mounted,
                    struct sl_err *err)
{
    sl_autobuf all = SL_BUF_INIT(CERTIFICATES_BYTES_MAX);
    bool read;
    if (read_bundle(&all, mounted, &read, err) < 0)
        return -1;
    if (!read)
        return 0;
    if (read_bundle(&all, system, &read, err) < 0)
        return -1;
    return set_file(env, "source.tls.caFile", sl_buf_string(&all), all.used,
                    "CA_BUNDLE_CONFIGMAP_NAME", err);
}

static int add_http_trust(struct sl_storage_env *env, struct sl_err *err)
{
    static const char *const names[] = {"REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE"};
    const char *file = NULL, *origin = NULL;
    for (size_t i = 0; i < SL_COUNT(names) && !file; i++) {
        origin = names[i];
        file = variable(origin);
    }
    bool mounted = variable("CA_BUNDLE_CONFIGMAP_NAME") && !variable("REQUESTS_CA_BUNDLE");
    if (!mounted) {
        /* AWS_CA_BUNDLE is of S3 alone; the other comes last for sluice. */
        bool matters = variable("AWS_CA_BUNDLE") || variable("REQUESTS_CA_BUNDLE");
        file = file || !matters ? file : sl_ca_system();
        if (file && matters)
            set(env, "source.tls.caFile", file, origin);
        return 0;
    }
    sl_autofree char *path = mounted_bundle(err);
    return path ? add_both(env, file ? file : sl_ca_system(), path, err) : -1;
}

int sl_storage_env_http(struct sl_storage_env *env, const char *uri, struct sl_err *err)
{
    return add_headers(env, uri, err) < 0 ? -1 : add_http_trust(env, err);
}

/* ---- clouds ---------------------------------------------------------------------------------- */

/* Run:ai's; all others are read by the stores themselves. */
static void add_google(struct sl_storage_env *env)
{
    const char *file = variable("RUNAI_STREAMER_GCS_CREDENTIAL_FILE");
    if (says_true("RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS"))
        set(env, "source.gs.anonymous", "true", "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS");
    if (file)
        set(env, "source.gs.credentialsFile", file, "RUNAI_STREAMER_GCS_CREDENTIAL_FILE");
}

int sl_storage_env_of(struct sl_storage_env *env, const struct sl_storage_uri *uri,
                      struct sl_err *err)
{
    for (size_t i = 0; i < SL_COUNT(sl_storage_signing); i++)
        if (variable(sl_storage_signing[i].variable))
            set(env, sl_storage_signing[i].path, variable(sl_storage_signing[i].variable),
                sl_storage_signing[i].variable);
    if (uri->store == &sl_s3_store)
        return sl_storage_env_s3(env, err);
    unsigned long unused;
    if (uri->store == &sl_gs_store)
        add_google(env);
    if (uri->store == &sl_az_store && read_number("AZURE_MAX_FILE_CONCURRENCY", &unused, err) < 0)
        return -1;
    if (uri->store == &sl_gs_store || uri->store == &sl_az_store)
        return add_http_trust(env, err);
    return uri->store == &sl_http_store ? sl_storage_env_http(env, uri->text, err) : 0;
}
