/*
 * Config files of two families. A file that is absent, or hidden by a home directory that this user
 * may not enter, says nothing; a file that is there and broken is an error with its line, since
 * guessing on would end in a refusal far from its cause.
 */
#include "creds_files.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "buf.h"
#include "ini.h"
#include "option.h"

char *sl_home_path(const char *name)
{
    const char *home = getenv("HOME");
    return home && *home ? sl_asprintf(NULL, "%s/%s", home, name) : NULL;
}

/* Into *member, replacing what was there. "" sets nothing. */
static int put(char **member, const char *value, struct sl_err *err)
{
    if (!*value)
        return 0;
    char *copy = sl_strdup(value, err);
    if (!copy)
        return -1;
    free(*member);
    *member = copy;
    return 0;
}

static void wipe(char *text)
{
    if (text)
        OPENSSL_cleanse(text, strlen(text));
    free(text);
}

static int parse_file(const char *path, enum sl_ini_dialect dialect,
                      int (*each)(const struct sl_ini_item *, void *, struct sl_err *), void *arg,
                      struct sl_err *err)
{
    sl_autosecretbuf text = SL_BUF_INIT(SL_INI_BYTES_MAX);
    if (sl_buf_read_file(&text, path, err) < 0)
        return -1;
    return sl_ini_parse(sl_buf_string(&text), text.used, path, dialect, each, arg, err);
}

/* ---- profiles ------------------------------------------------------------------------------- */

struct profile_reader {
    struct sl_profile *profile;
    const char *name;
    bool config; /* the config file, where sections are [profile NAME] */
};

/* Is the section "WORD NAME", NAME quoted or not? */
static bool names(const char *section, const char *word, const char *name)
{
    size_t bytes = strlen(word);
    if (strncmp(section, word, bytes) != 0 || !isspace((unsigned char)section[bytes]))
        return false;
    section += bytes;
    while (isspace((unsigned char)*section))
        section++;
    size_t name_bytes = strlen(name);
    if (*section == '"')
        return strncmp(section + 1, name, name_bytes) == 0 &&
               strcmp(section + 1 + name_bytes, "\"") == 0;
    return strcmp(section, name) == 0;
}

static bool is_profile(const struct profile_reader *reader, const char *section)
{
    if (!reader->config)
        return strcmp(section, reader->name) == 0;
    if (strcmp(reader->name, "default") == 0 && strcmp(section, "default") == 0)
        return true;
    return names(section, "profile", reader->name);
}

static int on_nested(struct sl_profile *profile, const struct sl_ini_item *item, struct sl_err *err)
{
    if (strcmp(item->parent, "s3") != 0)
        return 0;
    if (strcmp(item->key, "endpoint_url") == 0)
        return put(&profile->s3_endpoint_url, item->value, err);
    if (strcmp(item->key, "addressing_style") == 0)
        return put(&profile->s3_addressing_style, item->value, err);
    return 0;
}

static int on_profile(const struct sl_ini_item *item, void *arg, struct sl_err *err)
{
    struct profile_reader *reader = arg;
    struct sl_profile *p = reader->profile;
    if (!is_profile(reader, item->section))
        return 0;
    p->found = true;
    if (*item->parent)
        return on_nested(p, item, err);
    const struct {
        const char *key;
        char **member;
    } rows[] = {
        {"aws_access_key_id", &p->access_key},
        {"aws_secret_access_key", &p->secret_key},
        {"aws_session_token", &p->session_token},
        {"aws_security_token", &p->session_token},
        {"region", &p->region},
        {"role_arn", &p->role_arn},
        {"web_identity_token_file", &p->token_file},
        {"role_session_name", &p->session_name},
        {"source_profile", &p->source_profile},
        {"credential_source", &p->credential_source},
        {"credential_process", &p->credential_process},
        {"sso_session", &p->sso},
        {"sso_start_url", &p->sso},
        {"login_session", &p->sso},
        {"endpoint_url", &p->endpoint_url},
        {"services", &p->services},
        {"ignore_configured_endpoint_urls", &p->ignore_endpoint_urls},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (strcmp(item->key, rows[i].key) == 0)
            return put(rows[i].member, item->value, err);
    return 0;
}

static int on_services(const struct sl_ini_item *item, void *arg, struct sl_err *err)
{
    struct sl_profile *profile = ((struct profile_reader *)arg)->profile;
    if (!names(item->section, "services", profile->services) ||
        strcmp(item->key, "endpoint_url") != 0)
        return 0;
    if (strcmp(item->parent, "s3") == 0)
        return put(&profile->services_s3, item->value, err);
    if (strcmp(item->parent, "sts") == 0)
        return put(&profile->services_sts, item->value, err);
    return 0;
}

/* The path of a file of the AWS tools in *path, NULL if it says nothing. */
static int find_file(const char *variable, const char *home_name, char **path, struct sl_err *err)
{
    const char *named = getenv(variable);
    sl_autofree char *candidate = named && *named ? sl_strdup(named, err) : sl_home_path(home_name);
    if (!candidate)
        return named && *named ? -1 : 0;
    if (access(candidate, R_OK) < 0) {
        if (errno == ENOENT || errno == ENOTDIR || !(named && *named))
            return 0;
        return sl_fail_errno(err, SL_E_USAGE, errno, "cannot read '%s', which %s names", candidate,
                             variable);
    }
    *path = sl_steal(&candidate);
    return 0;
}

int sl_profile_read(struct sl_profile *profile, const char *name, struct sl_err *err)
{
    struct profile_reader reader = {.profile = profile, .name = name, .config = true};
    if (find_file("AWS_CONFIG_FILE", ".aws/config", &profile->config_path, err) < 0 ||
        find_file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", &profile->credentials_path,
                  err) < 0)
        return -1;
    if (profile->config_path &&
        parse_file(profile->config_path, SL_INI_AWS, on_profile, &reader, err) < 0)
        return -1;
    reader.config = false;
    if (profile->credentials_path &&
        parse_file(profile->credentials_path, SL_INI_AWS, on_profile, &reader, err) < 0)
        return -1;
    if (profile->config_path && profile->services)
        return parse_file(profile->config_path, SL_INI_AWS, on_services, &reader, err);
    return 0;
}

const char *sl_profile_endpoint(const struct sl_profile *profile)
{
    if (profile->services_s3)
        return profile->services_s3;
    return profile->s3_endpoint_url ? profile->s3_endpoint_url : profile->endpoint_url;
}

void sl_profile_release(struct sl_profile *profile)
{
    wipe(profile->secret_key);
    wipe(profile->session_token);
    char *rest[] = {
        profile->access_key,   profile->region,
        profile->role_arn,     profile->token_file,
        profile->session_name, profile->source_profile,
        profile->endpoint_url, profile->credential_source,
        profile->services,     profile->credential_process,
        profile->sso,          profile->s3_endpoint_url,
        profile->services_s3,  profile->s3_addressing_style,
        profile->services_sts, profile->ignore_endpoint_urls,
        profile->config_path,  profile->credentials_path,
    };
    for (size_t i = 0; i < SL_COUNT(rest); i++)
        free(rest[i]);
    *profile = (struct sl_profile){0};
}

/* ---- .s3cfg --------------------------------------------------------------------------------- */

struct s3cfg_reader {
    struct sl_s3cfg *s3cfg;
    const char *path;
    bool aws_keys; /* it holds aws_access_key_id: another kind of file */
};

/* s3cmd: true, yes, on, 1 in any case; the rest is false. We ask for one of the known words. */
static int parse_flag(const struct s3cfg_reader *reader, const struct sl_ini_item *item, bool *flag,
                      struct sl_err *err)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0", ""};
    for (size_t i = 0; i < SL_COUNT(yes); i++)
        if (strcasecmp(item->value, yes[i]) == 0) {
            *flag = true;
            return 0;
        }
    for (size_t i = 0; i < SL_COUNT(no); i++)
        if (strcasecmp(item->value, no[i]) == 0) {
            *flag = false;
            return 0;
        }
    return sl_fail(err, SL_E_USAGE, "%s:%u: '%s' must be True or False", reader->path, item->line,
                   item->key);
}

static int on_s3cfg_flag(struct s3cfg_reader *reader, const struct sl_ini_item *item,
                         struct sl_err *err)
{
    bool https = strcmp(item->key, "use_https") == 0;
    bool check = strcmp(item->key, "check_ssl_certificate") == 0 ||
                 strcmp(item->key, "check_ssl_hostname") == 0;
    bool version2 = strcmp(item->key, "signature_v2") == 0;
    if (!https && !check && !version2)
        return 0;
    bool flag = false;
    if (parse_flag(reader, item, &flag, err) < 0)
        return -1;
    if (version2 && flag)
        return sl_fail(err, SL_E_USAGE,
                       "%s:%u: version 2 signatures are not offered: set signature_v2 = False",
                       reader->path, item->line);
    if (https)
        reader->s3cfg->plain_http = !flag;
    if (check && !flag)
        reader->s3cfg->no_verify = true;
    return 0;
}

static int on_s3cfg(const struct sl_ini_item *item, void *arg, struct sl_err *err)
{
    struct s3cfg_reader *reader = arg;
    struct sl_s3cfg *s = reader->s3cfg;
    if (strncmp(item->key, "aws_", 4) == 0)
        reader->aws_keys = true;
    if (strcmp(item->section, "default") != 0)
        return 0;
    const struct {
        const char *key;
        char **member;
    } rows[] = {
        {"access_key", &s->access_key},      {"secret_key", &s->secret_key},
        {"access_token", &s->session_token}, {"host_base", &s->host_base},
        {"host_bucket", &s->host_bucket},    {"bucket_location", &s->region},
        {"ca_certs_file", &s->ca_file},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (strcmp(item->key, rows[i].key) == 0)
            return put(rows[i].member, item->value, err);
    if (strcmp(item->key, "proxy_host") == 0 && *item->value)
        return sl_fail(err, SL_E_USAGE,
                       "%s:%u: proxy_host is not read: set http_proxy or https_proxy in the "
                       "environment and leave it empty here",
                       reader->path, item->line);
    return on_s3cfg_flag(reader, item, err);
}

int sl_s3cfg_read(struct sl_s3cfg *s3cfg, const char *path, struct sl_err *err)
{
    struct s3cfg_reader reader = {.s3cfg = s3cfg, .path = path};
    if (put(&s3cfg->path, path, err) < 0 ||
        parse_file(path, SL_INI_S3CMD, on_s3cfg, &reader, err) < 0)
        return -1;
    if (!s3cfg->access_key && reader.aws_keys)
        return sl_fail(err, SL_E_USAGE,
                       "'%s' is a file of the AWS tools, not an s3cmd configuration: name it by "
                       "AWS_SHARED_CREDENTIALS_FILE and its section by source.s3.profile",
                       path);
    if (!s3cfg->access_key != !s3cfg->secret_key)
        return sl_fail(err, SL_E_USAGE, "'%s' sets %s without %s: set both or none", path,
                       s3cfg->access_key ? "access_key" : "secret_key",
                       s3cfg->access_key ? "secret_key" : "access_key");
    if (s3cfg->region && strcmp(s3cfg->region, "US") == 0)
        return put(&s3cfg->region, "us-east-1", err);
    return 0;
}

void sl_s3cfg_release(struct sl_s3cfg *s3cfg)
{
    wipe(s3cfg->secret_key);
    wipe(s3cfg->session_token);
    char *rest[] = {s3cfg->path,        s3cfg->access_key, s3cfg->host_base,
                    s3cfg->host_bucket, s3cfg->region,     s3cfg->ca_file};
    for (size_t i = 0; i < SL_COUNT(rest); i++)
        free(rest[i]);
    *s3cfg = (struct sl_s3cfg){0};
}
