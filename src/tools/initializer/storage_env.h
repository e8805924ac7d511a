/*
 * What KServe tells a storage initializer through its environment, as settings of a model spec:
 * the variables of its S3 secrets, STORAGE_CONFIG, headers for web servers, CA bundles
 * (github.com/kserve/kserve). One thread, since the environment is read; -1 also
 * for SL_E_NO_SPACE.
 */
#ifndef SL_STORAGE_ENV_H
#define SL_STORAGE_ENV_H

#include "spec.h"
#include "storage_uri.h"

enum { SL_STORAGE_SETTINGS_MAX = 20, SL_STORAGE_JSON_BYTES_MAX = 256 * 1024 };

/** Settings of one source; texts and descriptors live as long as this does. */
struct sl_storage_env {
    struct sl_spec_setting items[SL_STORAGE_SETTINGS_MAX];
    size_t count;
    char *texts[SL_STORAGE_SETTINGS_MAX];
    size_t text_count;
    int fds[2]; /* files in memory: headers, certificates */
    size_t fd_count;
};
/** Variables of our own for who signs models, and what they set. */
struct sl_storage_signing {
    const char *variable, *path;
};
enum { SL_STORAGE_SIGNING_COUNT = 2 };
extern const struct sl_storage_signing sl_storage_signing[SL_STORAGE_SIGNING_COUNT];
/** Closes and frees; zeroed ones are fine. */
void sl_storage_env_release(struct sl_storage_env *env);

/**
 * Once, before threads are started: STORAGE_CONFIG, with STORAGE_OVERRIDE_CONFIG over it, becomes
 * environment, as the upstream does it, and an endpoint of Amazon is parted from that of STS.
 * SL_E_USAGE names variable and field, never a value.
 */
int sl_storage_env_apply(struct sl_err *err);
/** Is this endpoint the one that KServe's configuration begins with, https://s3.amazonaws.com? */
bool sl_storage_is_amazon(const char *url);
/** Settings for s3:// sources. SL_E_USAGE names the variable. */
int sl_storage_env_s3(struct sl_storage_env *env, struct sl_err *err);
/** Settings for an http(s):// source: HOST-headers and certificates. SL_E_USAGE. */
int sl_storage_env_http(struct sl_storage_env *env, const char *uri, struct sl_err *err);

/** Options from KServe's variables for s3:// and http(s)://; none for other stores. SL_E_USAGE. */
int sl_storage_env_of(struct sl_storage_env *env, const struct sl_storage_uri *uri,
                      struct sl_err *err);

#endif
