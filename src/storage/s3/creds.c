/*
 * The chain is walked once, when the store is opened, without network: each link but the last two
 * can be told from the environment and the files, and a link that is configured and fails is an
 * error, not a reason to go on, since the next one would be somebody else's identity.
 *
 * Keys that expire are refreshed by one thread from 15 minutes before their end, while the others
 * go on with the old ones; from 10 minutes before, all wait for it. A refresh that fails is tried
 * again a minute later, as long as the old keys are good. (15 and 10 minutes are botocore's.)
 */
#include "creds.h"

#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "caller_credentials.h"
#include "creds_program.h"
#include "creds_remote.h"
#include "log.h"
#include "s3_options.h"
#include "thread_cancel.h"

enum {
    REFRESH_SECONDS = 15 * 60,
    INSIST_SECONDS = 10 * 60,
    PAUSE_SECONDS = 60,       /* between refreshes that change nothing */
    RENEW_PAUSE_SECONDS = 30, /* keys younger than this are not renewed on a server's word */
    FAILURE_SECONDS = 5,      /* threads that waited share a failure that is younger */
};

enum creds_kind {
    KIND_STATIC,
    KIND_STS,
    KIND_PROGRAM,
    KIND_CONTAINER,
    KIND_INSTANCE,
    KIND_ANONYMOUS
};

struct sl_creds {
    const struct sl_source_config *config;
    enum creds_kind kind;
    struct sl_profile profile;
    struct sl_s3cfg s3cfg;
    char *region, *origin;
    bool region_given;
    char *role_arn, *token_file, *session_name, *sts_endpoint; /* KIND_STS */
    pthread_cond_t changed;
    struct {
        pthread_mutex_t mutex;
        struct sl_key key; /* generation 0: none yet */
        bool busy;         /* one thread is asking the service */
        bool stale;        /* the store refused the key: good for nothing */
        bool none_found;
        int64_t next_try, renewed, failed; /* wall seconds */
        struct sl_err failure;             /* of the last refresh */
    } locked;
};

/* ---- choosing ------------------------------------------------------------------------------- */

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Each link answers 1 if it is the one, 0 to go on, -1 if it is configured and broken. */

/* This is the one; origin becomes ours. */
static int chosen(struct sl_creds *creds, enum creds_kind kind, char *origin)
{
    free(creds->origin);
    creds->origin = origin;
    creds->kind = kind;
    if (!origin)
        return -1;
    if (kind == KIND_STATIC || kind == KIND_ANONYMOUS)
        creds->locked.key.generation = 1;
    return 1;
}

static int from_environment(struct sl_creds *creds, struct sl_err *err)
{
    const char *access_key = env("AWS_ACCESS_KEY_ID"), *secret_key = env("AWS_SECRET_ACCESS_KEY");
    const char *token = env("AWS_SESSION_TOKEN"), *expiration = env("AWS_CREDENTIAL_EXPIRATION");
    if (!access_key && !secret_key)
        return 0;
    if (!access_key || !secret_key)
        return sl_fail(err, SL_E_AUTH, "%s is set without %s: set both or none",
                       access_key ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                       access_key ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
    int64_t expires = 0;
    if (expiration && sl_parse_time(expiration, &expires) < 0)
        return sl_fail(err, SL_E_AUTH, "AWS_CREDENTIAL_EXPIRATION is not a time: '%.64s'",
                       expiration);
    if (expires && expires <= sl_wall_seconds())
        return sl_fail(err, SL_E_AUTH,
                       "the credentials of the environment expired at %.64s: get new ones",
                       expiration);
    if (sl_key_set(&creds->locked.key, access_key, secret_key,
                   token ? token : env("AWS_SECURITY_TOKEN"), "the environment", err) < 0)
        return -1;
    return chosen(creds, KIND_STATIC, sl_strdup("the environment", err));
}

static int set_copy(char **member, const char *text, struct sl_err *err)
{
    if (!text)
        return 0;
    *member = sl_strdup(text, err);
    return *member ? 0 : -1;
}

static bool endpoints_ignored(const struct sl_profile *profile)
{
    const char *text = env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    text = text ? text : profile->ignore_endpoint_urls;
    return text && strcasecmp(text, "true") == 0;
}

static int use_sts(struct sl_creds *creds, const char *role_arn, const char *token_file,
                   const char *session_name, struct sl_err *err)
{
    const char *endpoint = NULL;
    if (!endpoints_ignored(&creds->profile)) {
        const struct sl_profile *p = &creds->profile;
        endpoint = env("AWS_ENDPOINT_URL_STS");
        endpoint = endpoint ? endpoint : env("AWS_ENDPOINT_URL");
        endpoint = endpoint ? endpoint : p->services_sts;
        endpoint = endpoint ? endpoint : p->endpoint_url;
    }
    if (set_copy(&creds->role_arn, role_arn, err) < 0 ||
        set_copy(&creds->token_file, token_file, err) < 0 ||
        set_copy(&creds->session_name, session_name, err) < 0 ||
        set_copy(&creds->sts_endpoint, endpoint, err) < 0)
        return -1;
    return chosen(creds, KIND_STS, sl_asprintf(err, "web identity, role '%.200s'", role_arn));
}

static int from_web_identity(struct sl_creds *creds, struct sl_err *err)
{
    const char *role_arn = env("AWS_ROLE_ARN"), *token_file = env("AWS_WEB_IDENTITY_TOKEN_FILE");
    if (!token_file)
        return 0;
    if (!role_arn)
        return sl_fail(err, SL_E_AUTH,
                       "AWS_WEB_IDENTITY_TOKEN_FILE is set without AWS_ROLE_ARN: set both or none");
    return use_sts(creds, role_arn, token_file, env("AWS_ROLE_SESSION_NAME"), err);
}

static const char *profile_name(const struct sl_creds *creds)
{
    const struct sl_s3_options *s3 = sl_source_options(creds->config, &sl_s3_table);
    if (s3 && s3->profile && *s3->profile)
        return s3->profile;
    const char *name = env("AWS_PROFILE");
    return name ? name : "default";
}

/* What this profile needs a program, a browser or another role for. */
static int refuse_profile(const char *name, const char *what, struct sl_err *err)
{
    return sl_fail(
        err, SL_E_AUTH,
        "profile '%.100s' gets its credentials by %s, which sluice does not run: set the "
        "variables that 'aws configure export-credentials --profile %.100s --format env' "
        "prints, or use a profile with keys or a web identity",
        name, what, name);
}

static int from_program(struct sl_creds *creds, const char *name, struct sl_err *err)
{
    const struct sl_s3_options *s3 = sl_source_options(creds->config, &sl_s3_table);
    if (!s3 || !s3->credential_process)
        return refuse_profile(name, "credential_process without source.s3.credentialProcess: true",
                              err);
    return chosen(creds, KIND_PROGRAM,
                  sl_asprintf(err, "the credential_process of profile '%.100s'", name));
}

static int from_profile(struct sl_creds *creds, struct sl_err *err)
{
    struct sl_profile *p = &creds->profile;
    const char *name = profile_name(creds);
    if (!p->found && strcmp(name, "default") != 0)
        return sl_fail(err, SL_E_USAGE, "profile '%.100s' is neither in '%s' nor in '%s'", name,
                       p->config_path ? p->config_path : "~/.aws/config (absent)",
                       p->credentials_path ? p->credentials_path : "~/.aws/credentials (absent)");
    if (p->role_arn && p->token_file)
        return use_sts(creds, p->role_arn, p->token_file, p->session_name, err);
    if (p->role_arn)
        return refuse_profile(name, p->source_profile ? "role_arn with source_profile" : "role_arn",
                              err);
    if (!p->access_key != !p->secret_key)
        return sl_fail(err, SL_E_AUTH, "profile '%.100s' sets %s without %s: set both or none",
                       name, p->access_key ? "aws_access_key_id" : "aws_secret_access_key",
                       p->access_key ? "aws_secret_access_key" : "aws_access_key_id");
    if (p->access_key) {
        if (sl_key_set(&creds->locked.key, p->access_key, p->secret_key, p->session_token,
                       "the profile", err) < 0)
            return sl_wrap(err, "profile '%.100s'", name);
        return chosen(creds, KIND_STATIC,
                      sl_asprintf(err, "profile '%.100s' of %.300s", name,
                                  p->credentials_path ? p->credentials_path : p->config_path));
    }
    if (p->credential_process)
        return from_program(creds, name, err);
    return p->sso ? refuse_profile(name, "SSO or login", err) : 0;
}

static int from_s3cfg(struct sl_creds *creds, const char *path, struct sl_err *err)
{
    if (sl_s3cfg_read(&creds->s3cfg, path, err) < 0)
        return -1;
    if (!creds->s3cfg.access_key)
        return 0;
    if (sl_key_set(&creds->locked.key, creds->s3cfg.access_key, creds->s3cfg.secret_key,
                   creds->s3cfg.session_token, path, err) < 0)
        return -1;
    return chosen(creds, KIND_STATIC, sl_strdup(path, err));
}

static int from_home_s3cfg(struct sl_creds *creds, struct sl_err *err)
{
    sl_autofree char *path = sl_home_path(".s3cfg");
    if (!path || access(path, R_OK) < 0)
        return 0;
    int result = from_s3cfg(creds, path, err);
    if (result == 0)
        sl_s3cfg_release(&creds->s3cfg);
    return result;
}

/* What a caller brought for this model, and nothing else: no other link may answer for it. */
static int from_caller(struct sl_creds *creds, struct sl_err *err)
{
    struct sl_caller_credentials brought;
    if (sl_caller_credentials_get(creds->config->credentials, &brought, err) < 0)
        return -1;
    int result;
    if (brought.role_arn)
        result = use_sts(creds, brought.role_arn, NULL, NULL, err);
    else if (sl_key_set(&creds->locked.key, brought.access_key, brought.secret_key,
                        brought.session_token, "the volume's secret", err) < 0)
        result = -1;
    else
        result = chosen(creds, KIND_STATIC, sl_strdup("the volume's secret", err));
    sl_caller_credentials_release(&brought);
    return result;
}

static int choose(struct sl_creds *creds, struct sl_err *err)
{
    if (creds->config && creds->config->credentials)
        return from_caller(creds, err);
    const struct sl_s3_options *s3 = sl_source_options(creds->config, &sl_s3_table);
    bool named_profile = s3 && s3->profile && *s3->profile;
    int result = 0;
    if (s3 && s3->config_file && *s3->config_file)
        result = from_s3cfg(creds, s3->config_file, err);
    if (result < 0)
        return -1;
    if (s3 && s3->anonymous) {
        sl_key_release(&creds->locked.key);
        return chosen(creds, KIND_ANONYMOUS, sl_strdup("none, as source.s3.anonymous asks", err));
    }
    if (result == 0 && !named_profile)
        result = from_environment(creds, err);
    if (result == 0 && !named_profile)
        result = from_web_identity(creds, err);
    if (result == 0)
        result = from_profile(creds, err);
    if (result == 0 && !creds->s3cfg.path)
        result = from_home_s3cfg(creds, err);
    if (result)
        return result;
    if (env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") || env("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
        return chosen(creds, KIND_CONTAINER, sl_strdup("the container endpoint", err));
    return chosen(creds, KIND_INSTANCE, sl_strdup("instance metadata, if it answers", err));
}

static int choose_region(struct sl_creds *creds, struct sl_err *err)
{
    const struct sl_s3_options *s3 = sl_source_options(creds->config, &sl_s3_table);
    const char *candidates[] = {s3 && s3->region && *s3->region ? s3->region : NULL,
                                env("AWS_REGION"),
                                env("AWS_DEFAULT_REGION"),
                                creds->s3cfg.region,
                                creds->profile.region,
                                "us-east-1"};
    size_t i = 0;
    while (!candidates[i])
        i++;
    size_t bytes = strlen(candidates[i]);
    if (strspn(candidates[i],
               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != bytes ||
        bytes > 63)
        return sl_fail(err, SL_E_USAGE, "region '%.80s' is not a region name, such as us-east-1",
                       candidates[i]);
    creds->region_given = i + 1 < SL_COUNT(candidates);
    creds->region = sl_strdup(candidates[i], err);
    return creds->region ? 0 : -1;
}

struct sl_creds *sl_creds_new(const struct sl_source_config *config, struct sl_err *err)
{
    SL_AUTO(sl_creds) creds = sl_alloc(sizeof(*creds), err);
    if (!creds)
        return NULL;
    creds->config = config;
    pthread_mutex_init(&creds->locked.mutex, NULL);
    sl_thread_cancel_cond_init(&creds->changed);
    if (sl_profile_read(&creds->profile, profile_name(creds), err) < 0 || choose(creds, err) < 0 ||
        choose_region(creds, err) < 0)
        return NULL;
    sl_log(SL_LOG_DEBUG, "S3 credentials: %s", creds->origin);
    return sl_steal(&creds);
}

void sl_creds_free(struct sl_creds *creds)
{
    if (!creds)
        return;
    sl_profile_release(&creds->profile);
    sl_s3cfg_release(&creds->s3cfg);
    sl_key_release(&creds->locked.key);
    free(creds->region);
    free(creds->origin);
    free(creds->role_arn);
    free(creds->token_file);
    free(creds->session_name);
    free(creds->sts_endpoint);
    pthread_cond_destroy(&creds->changed);
    pthread_mutex_destroy(&creds->locked.mutex);
    free(creds);
}

/* ---- refreshing ----------------------------------------------------------------------------- */

/* With the token as it is now: each publish brings a new one. */
static int ask_for_caller(struct sl_creds *creds, const struct sl_web_identity *of_role,
                          struct sl_key *key, struct sl_err *err)
{
    const struct sl_source_config *config = creds->config;
    struct sl_caller_credentials brought;
    if (sl_caller_credentials_get(config->credentials, &brought, err) < 0)
        return -1;
    struct sl_web_identity identity = *of_role;
    identity.token = brought.identity_token ? brought.identity_token : "";
    int result = sl_creds_from_sts(&identity, creds->sts_endpoint ? config->tls : NULL,
                                   sl_thread_cancel(config->cancel), key, err);
    sl_caller_credentials_release(&brought);
    return result;
}

static int ask_service(struct sl_creds *creds, struct sl_key *key, bool *none, struct sl_err *err)
{
    const struct sl_source_config *config = creds->config;
    const struct sl_web_identity identity = {.role_arn = creds->role_arn,
                                             .token_file = creds->token_file,
                                             .session_name = creds->session_name,
                                             .endpoint = creds->sts_endpoint,
                                             .region = creds->region};
    if (config->credentials && creds->kind == KIND_STS)
        return ask_for_caller(creds, &identity, key, err);
    /* TLS options of the spec are for the store, and for an STS of the same house: Amazon's gets
       the system's certificates and is always verified */
    const struct sl_tls_options *tls = creds->sts_endpoint ? config->tls : NULL;
    struct sl_cancel *cancel = sl_thread_cancel(config->cancel);
    if (creds->kind == KIND_STS)
        return sl_creds_from_sts(&identity, tls, cancel, key, err);
    if (creds->kind == KIND_PROGRAM)
        return sl_creds_from_program(profile_name(creds), creds->profile.credential_process, cancel,
                                     key, err);
    if (creds->kind == KIND_CONTAINER)
        return sl_creds_from_container(cancel, key, err);
    return sl_creds_from_instance(cancel, key, none, err);
}

static bool fresh(const struct sl_creds *creds, int64_t now)
{
    const struct sl_key *key = &creds->locked.key;
    if (!key->generation || creds->locked.stale)
        return false;
    if (!key->expires || now < key->expires - REFRESH_SECONDS)
        return true;
    return now < key->expires && now < creds->locked.next_try;
}

/* With the mutex held, which is let go meanwhile. */
static int refresh(struct sl_creds *creds, struct sl_err *err)
{
    sl_autokey key = {0};
    bool none = false;
    creds->locked.busy = true;
    pthread_mutex_unlock(&creds->locked.mutex);
    int result = ask_service(creds, &key, &none, err);
    pthread_mutex_lock(&creds->locked.mutex);
    creds->locked.busy = false;
    pthread_cond_broadcast(&creds->changed);

    struct sl_key *kept = &creds->locked.key;
    int64_t now = sl_wall_seconds();
    creds->locked.next_try = now + PAUSE_SECONDS;
    if (result < 0) {
        creds->locked.failure = *err;
        creds->locked.failed = now;
        bool good = kept->generation && !creds->locked.stale && now < kept->expires;
        return good && err->kind != SL_E_CANCELED ? 0 : -1;
    }
    key.generation = kept->generation + 1;
    sl_key_release(kept);
    *kept = key;
    key = (struct sl_key){0};
    creds->locked.none_found = none;
    creds->locked.stale = false;
    creds->locked.renewed = now;
    return 0;
}

/* Until there is a key that may be used, with the mutex held. */
static int ensure(struct sl_creds *creds, struct sl_err *err)
{
    bool waited = false;
    for (;;) {
        int64_t now = sl_wall_seconds();
        const struct sl_key *key = &creds->locked.key;
        if (fresh(creds, now))
            return 0;
        if (sl_cancel_check(sl_thread_cancel(NULL), err) < 0)
            return -1;
        if (!creds->locked.busy) {
            if (waited && creds->locked.failed + FAILURE_SECONDS > now &&
                creds->locked.failure.kind != SL_E_CANCELED) { /* another's end is not ours */
                *err = creds->locked.failure;
                return -1;
            }
            return refresh(creds, err);
        }
        if (key->generation && !creds->locked.stale && now < key->expires - INSIST_SECONDS)
            return 0;
        waited = true;
        struct sl_cancel *cancel = creds->config->cancel;
        if (sl_thread_cancel_wait(&creds->changed, &creds->locked.mutex, cancel, err) < 0)
            return -1;
    }
}

int sl_creds_get(struct sl_creds *creds, struct sl_key *key, struct sl_err *err)
{
    struct sl_err local = SL_ERR_INIT;
    err = err ? err : &local;
    SL_LOCKED(&creds->locked.mutex);
    if (ensure(creds, err) < 0)
        return -1;
    return sl_key_copy(key, &creds->locked.key, err);
}

bool sl_creds_current(struct sl_creds *creds, unsigned generation)
{
    SL_LOCKED(&creds->locked.mutex);
    return creds->locked.key.generation == generation && fresh(creds, sl_wall_seconds());
}

/* Files may have been written anew since: walk the chain again and take its key if it is another.
 */
static bool reread(struct sl_creds *creds)
{
    SL_AUTO(sl_creds) anew = sl_creds_new(creds->config, NULL);
    if (!anew || anew->kind != KIND_STATIC)
        return false;
    SL_LOCKED(&creds->locked.mutex);
    struct sl_key *a = &anew->locked.key, *b = &creds->locked.key;
    const char *old_token = b->session_token ? b->session_token : "";
    const char *new_token = a->session_token ? a->session_token : "";
    if (strcmp(a->secret_key, b->secret_key) == 0 && strcmp(old_token, new_token) == 0)
        return false;
    a->generation = b->generation + 1;
    struct sl_key old = *b;
    *b = *a;
    *a = old;
    creds->locked.renewed = sl_wall_seconds();
    return true;
}

bool sl_creds_renew(struct sl_creds *creds, unsigned generation)
{
    if (creds->kind == KIND_ANONYMOUS)
        return false;
    {
        SL_LOCKED(&creds->locked.mutex);
        if (creds->locked.key.generation != generation ||
            (generation > 1 && creds->locked.renewed + RENEW_PAUSE_SECONDS > sl_wall_seconds()))
            return true;
        if (creds->locked.none_found)
            return false;
    }
    if (creds->kind == KIND_STATIC)
        return reread(creds);
    struct sl_err err = SL_ERR_INIT;
    SL_LOCKED(&creds->locked.mutex);
    if (creds->locked.key.generation == generation)
        creds->locked.stale = true;
    return ensure(creds, &err) == 0;
}

const char *sl_creds_origin(struct sl_creds *creds)
{
    return creds->origin;
}

bool sl_creds_none_found(struct sl_creds *creds)
{
    SL_LOCKED(&creds->locked.mutex);
    return creds->locked.none_found;
}

const struct sl_profile *sl_creds_profile(const struct sl_creds *creds)
{
    return &creds->profile;
}

const struct sl_s3cfg *sl_creds_s3cfg(const struct sl_creds *creds)
{
    return &creds->s3cfg;
}

bool sl_creds_region_given(const struct sl_creds *creds)
{
    return creds->region_given;
}

const char *sl_creds_region(const struct sl_creds *creds)
{
    return creds->region;
}
