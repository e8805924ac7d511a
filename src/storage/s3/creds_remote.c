/*
 * Three small HTTP conversations. Each answer is a stranger's: limited in size, parsed strictly,
 * and never quoted in a message where it could hold a key.
 *
 * Instance metadata and container endpoints are link-local, so they are never asked through a proxy
 * and get short time-outs: off EC2 nobody answers, and in a pod whose hop limit is 1 the answer to
 * the first request never arrives.
 */
#include "creds_remote.h"

#include <ctype.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "buf.h"
#include "exchange.h"
#include "url.h"
#include "xml.h"

enum {
    ANSWER_BYTES_MAX = 256 * 1024,
    TOKEN_FILE_BYTES_MAX = 64 * 1024,
    STS_TRIES = 4,
    STS_SECONDS = 10,
    CONTAINER_TRIES = 3,
    CONTAINER_SECONDS = 2,
    INSTANCE_SECONDS = 1,
    PAUSE_MS = 200,
};

static void wipe_answer(struct sl_answer *answer)
{
    if (answer->body.data)
        OPENSSL_cleanse(answer->body.data, answer->body.used);
    sl_answer_release(answer);
}
#define autoanswer __attribute__((cleanup(wipe_answer))) struct sl_answer

/* A token file anew, without the blanks around it. */
static int read_token(const char *path, struct sl_buf *token, struct sl_err *err)
{
    if (sl_buf_read_file(token, path, err) < 0) {
        err->kind = err->kind == SL_E_NO_SPACE ? err->kind : SL_E_AUTH;
        return sl_wrap(err, "token file");
    }
    sl_buf_trim(token);
    if (!token->used)
        return sl_fail(err, SL_E_AUTH, "token file '%s' is empty: is the token mounted?", path);
    for (size_t i = 0; i < token->used; i++)
        if ((unsigned char)token->data[i] < 0x20 || (unsigned char)token->data[i] >= 0x7f)
            return sl_fail(err, SL_E_AUTH,
                           "token file '%s' holds a line break or a byte that no header may carry",
                           path);
    return 0;
}

/* One try on a connection of its own. */
static int ask(const struct sl_connect *connect, const struct sl_request *request,
               struct sl_answer *answer, struct sl_err *err)
{
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(connect, err);
    if (!exchange)
        return -1;
    return sl_exchange_simple(exchange, request, ANSWER_BYTES_MAX, answer, err);
}

/* ---- STS ------------------------------------------------------------------------------------ */

struct sts_answer {
    char access_key[SL_ACCESS_KEY_MAX], secret_key[SL_SECRET_KEY_MAX];
    char token[SL_SESSION_TOKEN_MAX], expiration[64];
    char code[64], message[256];
};

static int on_sts(const char *path, const char *value, void *arg, struct sl_err *err)
{
    struct sts_answer *sts = arg;
    const struct {
        const char *path;
        char *text;
        size_t bytes;
    } rows[] = {
        {"Credentials/AccessKeyId", sts->access_key, sizeof(sts->access_key)},
        {"Credentials/SecretAccessKey", sts->secret_key, sizeof(sts->secret_key)},
        {"Credentials/SessionToken", sts->token, sizeof(sts->token)},
        {"Credentials/Expiration", sts->expiration, sizeof(sts->expiration)},
        {"Error/Code", sts->code, sizeof(sts->code)},
        {"Error/Message", sts->message, sizeof(sts->message)},
    };
    size_t bytes = strlen(path);
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        size_t tail = strlen(rows[i].path);
        if (bytes < tail || strcmp(path + bytes - tail, rows[i].path) != 0)
            continue;
        while (isspace((unsigned char)*value))
            value++;
        if (snprintf(rows[i].text, rows[i].bytes, "%s", value) >= (int)rows[i].bytes && i < 4)
            return sl_fail(err, SL_E_AUTH, "%s is longer than %zu bytes", rows[i].path,
                           rows[i].bytes - 1);
    }
    return 0;
}

static int sts_body(const struct sl_web_identity *identity, struct sl_buf *body, struct sl_err *err)
{
    sl_autosecretbuf token = SL_BUF_INIT(TOKEN_FILE_BYTES_MAX);
    if ((identity->token ? sl_buf_text(&token, identity->token, err)
                         : read_token(identity->token_file, &token, err)) < 0)
        return -1;
    const char *session = identity->session_name ? identity->session_name : "sluice";
    sl_autofree char *role = sl_url_encode(identity->role_arn, false, err);
    sl_autofree char *name = sl_url_encode(session, false, err);
    char *encoded = sl_url_encode(sl_buf_string(&token), false, err);
    int result = -1;
    if (role && name && encoded)
        result = sl_buf_printf(body, err,
                               "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=%s"
                               "&RoleSessionName=%s&WebIdentityToken=%s",
                               role, name, encoded);
    if (encoded)
        OPENSSL_cleanse(encoded, strlen(encoded));
    free(encoded);
    return result;
}

/* One try: fails retryably where STS or the way to it may recover. */
static int sts_try(const char *url, const struct sl_connect *connect, const struct sl_buf *body,
                   struct sts_answer *sts, struct sl_err *err)
{
    static const char *const headers[] = {"Content-Type: application/x-www-form-urlencoded",
                                          "Accept: application/xml", NULL};
    const struct sl_request request = {.method = "POST",
                                       .url = url,
                                       .headers = headers,
                                       .body = body->data,
                                       .body_bytes = body->used};
    autoanswer answer = {0};
    if (ask(connect, &request, &answer, err) < 0)
        return -1;
    struct sl_err broken = SL_ERR_INIT;
    int parsed =
        sl_xml_parse(sl_buf_string(&answer.body), answer.body.used, "answer", on_sts, sts, &broken);
    if (answer.status != 200) {
        sl_fail_code(err, SL_E_AUTH, sts->code, "%d %s%s%s: check the role and its trust policy",
                     answer.status, sts->code, *sts->message ? ": " : "", sts->message);
        err->http_status = answer.status;
        err->retryable = answer.status >= 500 || strcmp(sts->code, "IDPCommunicationError") == 0;
        return -1;
    }
    if (parsed < 0) {
        *err = broken;
        err->kind = SL_E_AUTH;
        return -1;
    }
    return 0;
}

static int sts_retry(const char *url, const struct sl_connect *connect, const struct sl_buf *body,
                     struct sts_answer *sts, struct sl_err *err)
{
    for (unsigned tries = 1;; tries++) {
        OPENSSL_cleanse(sts, sizeof(*sts));
        if (sts_try(url, connect, body, sts, err) == 0)
            return 0;
        if (!err->retryable || tries == STS_TRIES)
            break;
        if (sl_sleep_ms(PAUSE_MS << (tries - 1), connect->cancel, err) < 0)
            return -1;
    }
    if (err->kind == SL_E_NET)
        err->kind = SL_E_AUTH; /* a credential endpoint that is down */
    err->retryable = false;
    return -1;
}

static int sts_take(const struct sts_answer *sts, struct sl_key *key, struct sl_err *err)
{
    if (!*sts->access_key || !*sts->secret_key || !*sts->token)
        return sl_fail(err, SL_E_AUTH, "the answer holds no credentials");
    if (*sts->expiration && sl_parse_time(sts->expiration, &key->expires) < 0)
        return sl_fail(err, SL_E_AUTH, "the answer's Expiration '%s' is not a time",
                       sts->expiration);
    return sl_key_set(key, sts->access_key, sts->secret_key, sts->token, "STS", err);
}

static char *sts_url(const struct sl_web_identity *identity, struct sl_err *err)
{
    if (identity->endpoint) {
        sl_autourl url = {0};
        if (sl_url_parse(identity->endpoint, &url, err) < 0) {
            sl_wrap(err, "STS endpoint");
            return NULL;
        }
        return sl_url_format(&url, false, err);
    }
    bool china = strncmp(identity->region, "cn-", 3) == 0;
    return sl_asprintf(err, "https://sts.%s.amazonaws.com%s/", identity->region,
                       china ? ".cn" : "");
}

int sl_creds_from_sts(const struct sl_web_identity *identity, const struct sl_tls_options *tls,
                      struct sl_cancel *cancel, struct sl_key *key, struct sl_err *err)
{
    const struct sl_connect connect = {
        .tls = tls, .cancel = cancel, .stall_seconds = STS_SECONDS, .connect_seconds = STS_SECONDS};
    sl_autosecretbuf body = SL_BUF_INIT(4 * TOKEN_FILE_BYTES_MAX);
    sl_autofree char *url = sts_url(identity, err);
    sl_autofree struct sts_answer *sts = sl_alloc(sizeof(*sts), err);
    if (!url || !sts || sts_body(identity, &body, err) < 0)
        return -1;
    int result = sts_retry(url, &connect, &body, sts, err);
    if (result == 0)
        result = sts_take(sts, key, err);
    OPENSSL_cleanse(sts, sizeof(*sts));
    if (result < 0)
        return sl_wrap(err, "cannot assume role '%.200s' at '%.200s'", identity->role_arn, url);
    return 0;
}

/* ---- container ------------------------------------------------------------------------------ */

/* https anywhere, http only to this machine and the three addresses that ECS and EKS use. */
static bool container_host_allowed(const struct sl_url *url)
{
    static const char *const hosts[] = {"169.254.170.2", "169.254.170.23", "fd00:ec2::23",
                                        "localhost", "::1"};
    if (url->tls)
        return true;
    for (size_t i = 0; i < SL_COUNT(hosts); i++)
        if (strcasecmp(url->host, hosts[i]) == 0)
            return true;
    unsigned a, b, c, d;
    int end = 0;
    return sscanf(url->host, "%3u.%3u.%3u.%3u%n", &a, &b, &c, &d, &end) == 4 && !url->host[end] &&
           a == 127 && b < 256 && c < 256 && d < 256;
}

static char *container_url(struct sl_err *err)
{
    const char *relative = getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    sl_autofree char *text = NULL;
    if (relative && *relative) {
        if (*relative != '/') {
            sl_fail(err, SL_E_AUTH,
                    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI must begin with '/', but is '%.100s'",
                    relative);
            return NULL;
        }
        text = sl_asprintf(err, "http://169.254.170.2%s", relative);
    } else {
        text = sl_strdup(full ? full : "", err);
    }
    sl_autourl url = {0};
    if (!text)
        return NULL;
    if (sl_url_parse(text, &url, err) < 0) {
        err->kind = err->kind == SL_E_NO_SPACE ? err->kind : SL_E_AUTH;
        sl_wrap(err, "container credentials");
        return NULL;
    }
    if (!container_host_allowed(&url)) {
        sl_fail(err, SL_E_AUTH,
                "AWS_CONTAINER_CREDENTIALS_FULL_URI names the host '%.100s' over plain http: only "
                "https, loopback, 169.254.170.2, 169.254.170.23 and fd00:ec2::23 are allowed",
                url.host);
        return NULL;
    }
    return sl_url_format(&url, true, err);
}

/* "Authorization: …" in *header, NULL if no token is set. */
static int container_header(char **header, struct sl_err *err)
{
    sl_autosecretbuf token = SL_BUF_INIT(TOKEN_FILE_BYTES_MAX);
    const char *path = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *literal = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    if (path && *path) {
        if (read_token(path, &token, err) < 0)
            return -1;
    } else if (literal && *literal) {
        if (strpbrk(literal, "\r\n"))
            return sl_fail(
                err, SL_E_AUTH,
                "AWS_CONTAINER_AUTHORIZATION_TOKEN holds a line break: it must be one line");
        if (sl_buf_text(&token, literal, err) < 0)
            return -1;
    } else {
        return 0;
    }
    *header = sl_asprintf(err, "Authorization: %s", sl_buf_string(&token));
    return *header ? 0 : -1;
}

static int container_try(const char *url, const struct sl_connect *connect, const char *header,
                         struct sl_key *key, struct sl_err *err)
{
    const char *const headers[] = {"Accept: application/json", header, NULL};
    const struct sl_request request = {.method = "GET", .url = url, .headers = headers};
    autoanswer answer = {0};
    if (ask(connect, &request, &answer, err) < 0)
        return -1;
    if (answer.status != 200) {
        sl_fail(err, SL_E_AUTH, "the endpoint answers %d", answer.status);
        err->http_status = answer.status;
        err->retryable = answer.status >= 500 || answer.status == 429;
        return -1;
    }
    return sl_key_from_json(key, &answer.body, "Token", "the container endpoint", err);
}

int sl_creds_from_container(struct sl_cancel *cancel, struct sl_key *key, struct sl_err *err)
{
    const struct sl_connect connect = {.cancel = cancel,
                                       .stall_seconds = CONTAINER_SECONDS,
                                       .connect_seconds = CONTAINER_SECONDS,
                                       .direct = true};
    sl_autofree char *url = container_url(err);
    char *header = NULL;
    if (!url || container_header(&header, err) < 0)
        return -1;
    int result = -1;
    for (unsigned tries = 1; tries <= CONTAINER_TRIES; tries++) {
        result = container_try(url, &connect, header, key, err);
        if (result == 0 || !err->retryable || tries == CONTAINER_TRIES ||
            sl_sleep_ms(PAUSE_MS << (tries - 1), cancel, err) < 0)
            break;
    }
    if (header)
        OPENSSL_cleanse(header, strlen(header));
    free(header);
    if (result == 0)
        return 0;
    if (err->kind == SL_E_NET)
        err->kind = SL_E_AUTH;
    err->retryable = false;
    return sl_wrap(err, "cannot get container credentials from '%.200s'", url);
}

/* ---- instance metadata ---------------------------------------------------------------------- */

static unsigned number_from(const char *variable, unsigned otherwise, unsigned most)
{
    const char *text = getenv(variable);
    char *end = NULL;
    unsigned long value = text && isdigit((unsigned char)*text) ? strtoul(text, &end, 10) : 0;
    return value && end && !*end ? (unsigned)SL_MIN(value, most) : otherwise;
}

static char *instance_base(struct sl_err *err)
{
    const char *endpoint = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    const char *mode = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
    if (!endpoint || !*endpoint)
        endpoint = mode && strcasecmp(mode, "ipv6") == 0 ? "http://[fd00:ec2::254]"
                                                         : "http://169.254.169.254";
    sl_autourl url = {0};
    if (sl_url_parse(endpoint, &url, err) < 0) {
        sl_wrap(err, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
        return NULL;
    }
    char *text = sl_url_format(&url, false, err);
    for (size_t bytes = text ? strlen(text) : 0; bytes && text[bytes - 1] == '/';)
        text[--bytes] = 0;
    return text;
}

/* 0, 1 if the service is not there or knows no such thing, or -1. */
static int instance_get(const struct sl_connect *connect, const char *url, const char *header,
                        struct sl_answer *answer, struct sl_err *err)
{
    const char *const headers[] = {header, NULL};
    const struct sl_request request = {.method = "GET", .url = url, .headers = headers};
    if (ask(connect, &request, answer, err) < 0)
        return -1;
    if (answer->status == 200)
        return 0;
    if (answer->status == 404)
        return 1;
    return sl_fail(err, SL_E_AUTH, "instance metadata answers %d", answer->status);
}

/* The header that carries the session token. 0, 1 if nobody is there, or -1. */
static int instance_session(const struct sl_connect *connect, const char *base, char **header,
                            struct sl_err *err)
{
    static const char *const headers[] = {"x-aws-ec2-metadata-token-ttl-seconds: 21600", NULL};
    sl_autofree char *url = sl_asprintf(err, "%s/latest/api/token", base);
    if (!url)
        return -1;
    const struct sl_request request = {.method = "PUT", .url = url, .headers = headers};
    unsigned tries = number_from("AWS_METADATA_SERVICE_NUM_ATTEMPTS", 1, 10);
    for (; tries; tries--) {
        autoanswer answer = {0};
        if (ask(connect, &request, &answer, err) < 0) {
            if (err->kind != SL_E_NET)
                return -1;
            continue;
        }
        if (answer.status != 200)
            return 1; /* 403: switched off; anything else is not instance metadata v2 */
        const char *token = sl_buf_string(&answer.body);
        if (!*token || strlen(token) > 1024 || strpbrk(token, "\r\n"))
            return sl_fail(err, SL_E_AUTH, "instance metadata answers with a bad session token");
        *header = sl_asprintf(err, "x-aws-ec2-metadata-token: %s", token);
        return *header ? 0 : -1;
    }
    return 1;
}

static int instance_role(const struct sl_connect *connect, const char *url, const char *header,
                         char **role, struct sl_err *err)
{
    autoanswer answer = {0};
    int result = instance_get(connect, url, header, &answer, err);
    if (result)
        return result;
    size_t bytes = strcspn(sl_buf_string(&answer.body), "\r\n");
    if (!bytes)
        return 1;
    sl_autofree char *name = sl_strndup(answer.body.data, bytes, err);
    *role = name ? sl_url_encode(name, false, err) : NULL;
    return *role ? 0 : -1;
}

static int instance_talk(const struct sl_connect *connect, const char *base, struct sl_key *key,
                         struct sl_err *err)
{
    sl_autofree char *header = NULL, *role = NULL;
    sl_autofree char *roles =
        sl_asprintf(err, "%s/latest/meta-data/iam/security-credentials/", base);
    int result = roles ? instance_session(connect, base, &header, err) : -1;
    if (result == 0)
        result = instance_role(connect, roles, header, &role, err);
    if (result)
        return result;
    sl_autofree char *url = sl_asprintf(err, "%s%s", roles, role);
    autoanswer answer = {0};
    result = url ? instance_get(connect, url, header, &answer, err) : -1;
    if (result)
        return result;
    return sl_key_from_json(key, &answer.body, "Token", "instance metadata", err);
}

int sl_creds_from_instance(struct sl_cancel *cancel, struct sl_key *key, bool *none,
                           struct sl_err *err)
{
    const char *disabled = getenv("AWS_EC2_METADATA_DISABLED");
    *none = true;
    if (disabled && strcasecmp(disabled, "true") == 0)
        return 0;
    unsigned seconds = number_from("AWS_METADATA_SERVICE_TIMEOUT", INSTANCE_SECONDS, 60);
    const struct sl_connect connect = {
        .cancel = cancel, .stall_seconds = seconds, .connect_seconds = seconds, .direct = true};
    sl_autofree char *base = instance_base(err);
    if (!base)
        return -1;
    int result = instance_talk(&connect, base, key, err);
    *none = result == 1;
    if (result >= 0)
        return 0;
    if (err->kind == SL_E_NET)
        err->kind = SL_E_AUTH;
    return sl_wrap(err, "cannot get credentials from instance metadata at '%.200s'", base);
}
