/* What the AWS tools' files and s3cmd's .s3cfg say. */
#ifndef SL_CREDS_FILES_H
#define SL_CREDS_FILES_H

#include <stdbool.h>

#include "err.h"

/** One profile of the config and credentials files. Strings are owned; NULL: not set. */
struct sl_profile {
    bool found;
    char *access_key, *secret_key, *session_token;
    char *region, *role_arn, *token_file, *session_name;
    char *source_profile, *credential_source, *credential_process, *sso;
    char *endpoint_url, *services, *s3_endpoint_url, *s3_addressing_style;
    char *services_s3, *services_sts; /* endpoint_url of [services X] */
    char *ignore_endpoint_urls;
    char *config_path, *credentials_path; /* that were looked at; NULL: no such file */
};
/**
 * Read profile `name` from AWS_CONFIG_FILE or ~/.aws/config and AWS_SHARED_CREDENTIALS_FILE or
 * ~/.aws/credentials, which comes second and wins. Files that are not there are no error.
 * SL_E_USAGE for broken ones.
 */
int sl_profile_read(struct sl_profile *profile, const char *name, struct sl_err *err);
/** The endpoint for S3: services, then the s3 block, then endpoint_url. NULL: none; borrowed. */
const char *sl_profile_endpoint(const struct sl_profile *profile);
void sl_profile_release(struct sl_profile *profile);

/** .s3cfg of s3cmd. */
struct sl_s3cfg {
    char *path;
    char *access_key, *secret_key, *session_token;
    char *host_base, *host_bucket, *region, *ca_file;
    bool plain_http; /* use_https = False */
    bool no_verify;  /* check_ssl_certificate or check_ssl_hostname = False */
};
/** SL_E_USAGE for a broken file or what sluice does not do; SL_E_NOT_FOUND if it is not there. */
int sl_s3cfg_read(struct sl_s3cfg *s3cfg, const char *path, struct sl_err *err);
void sl_s3cfg_release(struct sl_s3cfg *s3cfg);

/** $HOME/name, NULL if HOME is not set or memory is out; free() it. */
char *sl_home_path(const char *name);

#endif
