/*
 * Redis URIs and what servers refuse. The place of a database number in other programs' URIs is the
 * model's prefix here, as the reference program has it; the database is an option.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "redis_link.h"
#include "url.h"

enum { PASSWORD_BYTES_MAX = 4096, PORT = 6379 };

static const struct sl_option redis_rows[] = {
    SL_OPTION(sl_redis_options, username, STRING, "",
              "user that logs in (ACL); empty means the server's default user"),
    SL_OPTION(sl_redis_options, password_file, STRING, "",
              "file with the password; without it the URI's, or REDIS_PASSWORD in the environment"),
    SL_OPTION(sl_redis_options, database, UINT, "0", "number of the database", .minimum = 0,
              .maximum = INT32_MAX),
    SL_OPTION_END,
};
const struct sl_option_table sl_redis_table = {"redis", sizeof(struct sl_redis_options),
                                               redis_rows};

void sl_redis_place_release(struct sl_redis_place *place)
{
    if (place->password)
        explicit_bzero(place->password, strlen(place->password));
    free(place->url);
    free(place->label);
    free(place->user);
    free(place->password);
    *place = (struct sl_redis_place){0};
}

static bool has_port(const char *authority, size_t bytes)
{
    for (size_t i = bytes; i-- > 0;) {
        if (authority[i] == ':')
            return true;
        if (authority[i] == '@' || authority[i] == ']')
            return false;
    }
    return false;
}

/* The parser of http URLs does the work: they differ in the scheme and the port that is meant. */
int sl_redis_uri_parse(const char *uri, struct sl_url *url, struct sl_err *err)
{
    bool tls = strncasecmp(uri, "rediss:", 7) == 0;
    const char *rest = uri + (tls ? 9 : 8);
    size_t authority = strcspn(rest, "/?#"), userinfo = authority;
    while (userinfo && rest[userinfo - 1] != '@')
        userinfo--;
    bool port = has_port(rest + userinfo, authority - userinfo);
    sl_autofree char *text =
        sl_asprintf(err, "http%s://%.*s%s%s", tls ? "s" : "", (int)authority, rest,
                    port ? "" : ":6379", rest[authority] == '/' ? rest + authority : "/");
    if (!text)
        return -1;
    int result = 0;
    if (userinfo == authority || rest[userinfo] == ':')
        result = sl_fail(err, SL_E_USAGE,
                         "the Redis URI names no host: write redis://[user[:password]@]host[:port]/"
                         "PREFIX");
    else if (strpbrk(rest + authority, "?#"))
        result = sl_fail(err, SL_E_USAGE,
                         "a Redis URI is redis://[user[:password]@]host[:port]/PREFIX: write ? and "
                         "# of a prefix as %%3F and %%23, and set source.redis.database for "
                         "another database");
    else if (sl_url_parse(text, url, err) < 0)
        result = sl_wrap(err, "the Redis URI, as a URL");
    explicit_bzero(text, strlen(text));
    return result;
}

static int read_password(const char *path, struct sl_redis_place *place, struct sl_err *err)
{
    struct sl_buf text = SL_BUF_INIT(PASSWORD_BYTES_MAX);
    int result = sl_buf_read_file(&text, path, err);
    if (result == 0) {
        size_t bytes = strcspn(sl_buf_string(&text), "\r\n");
        place->password = sl_strndup(sl_buf_string(&text), bytes, err);
        result = place->password ? 0 : -1;
    }
    if (text.data)
        explicit_bzero(text.data, text.used);
    sl_buf_release(&text);
    return result < 0 ? sl_wrap(err, "source.redis.passwordFile") : 0;
}

/* A part of user:password, which no message may quote. */
static char *decode_secret(const char *text, size_t bytes, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    char *plain = sl_url_decode(text, bytes, &why);
    if (!plain && why.kind == SL_E_USAGE)
        sl_fail(err, SL_E_USAGE,
                "the user or password in the Redis URI has a broken percent escape");
    else if (!plain)
        *err = why;
    return plain;
}

static int find_login(const struct sl_url *url, const struct sl_redis_options *options,
                      struct sl_redis_place *place, struct sl_err *err)
{
    const char *userinfo = url->userinfo ? url->userinfo : "";
    size_t user = strcspn(userinfo, ":");
    const char *given = userinfo[user] ? userinfo + user + 1 : NULL;
    const char *variable = getenv("REDIS_PASSWORD");
    if (user)
        place->user = decode_secret(userinfo, user, err);
    else if (options && options->username)
        place->user = sl_strdup(options->username, err);
    if (!place->user && (user || (options && options->username)))
        return -1;
    if (given)
        return (place->password = decode_secret(given, strlen(given), err)) ? 0 : -1;
    if (options && options->password_file)
        return read_password(options->password_file, place, err);
    if (variable && *variable)
        return (place->password = sl_strdup(variable, err)) ? 0 : -1;
    return 0;
}

int sl_redis_place_parse(const char *uri, const struct sl_redis_options *options,
                         struct sl_redis_place *place, char **prefix, struct sl_err *err)
{
    sl_autourl url = {0};
    char authority[SL_URL_AUTHORITY_MAX];
    *place = (struct sl_redis_place){0};
    *prefix = NULL;
    if (sl_redis_uri_parse(uri, &url, err) < 0 || find_login(&url, options, place, err) < 0)
        return -1;
    place->database = options ? options->database : 0;
    sl_url_authority(&url, authority);
    place->url = sl_asprintf(err, "http%s://%s/", url.tls ? "s" : "", authority);
    if (!place->url)
        return -1;
    char port[8] = "";
    if (url.port != PORT)
        snprintf(port, sizeof(port), ":%u", url.port);
    place->label = sl_asprintf(err, "redis%s://%s%s%s%s", url.tls ? "s" : "", url.ipv6 ? "[" : "",
                               url.host, url.ipv6 ? "]" : "", port);
    size_t bytes = strlen(url.target + 1); /* a slash at the end names the same model */
    while (bytes && url.target[bytes] == '/')
        bytes--;
    if (place->label)
        *prefix = sl_url_decode(url.target + 1, bytes, err);
    return *prefix ? 0 : -1;
}

/* ---- what servers refuse --------------------------------------------------------------------- */

static const struct refusal {
    const char *begins;
    enum sl_err_kind kind;
    bool passes; /* worth another try */
    const char *advice;
} refusals[] = {
    {"NOAUTH", SL_E_AUTH, false,
     "it wants a password: set REDIS_PASSWORD or source.redis.passwordFile, or put "
     "user and password into the URI, before the host"},
    {"WRONGPASS", SL_E_AUTH, false,
     "check the user and the password: REDIS_PASSWORD, source.redis.passwordFile, or the URI"},
    {"ERR invalid password", SL_E_AUTH, false, "check REDIS_PASSWORD or source.redis.passwordFile"},
    {"ERR AUTH", SL_E_AUTH, false, "it has no password: unset REDIS_PASSWORD"},
    {"ERR Client sent AUTH", SL_E_AUTH, false, "it has no password: unset REDIS_PASSWORD"},
    {"NOPERM", SL_E_AUTH, false,
     "the user needs GET, GETRANGE and STRLEN on the model's keys; docs/redis.md lists what "
     "writing "
     "needs"},
    {"DENIED", SL_E_AUTH, false, "it serves only its own host: see protected-mode in its config"},
    {"MOVED", SL_E_USAGE, false,
     "it is part of a Redis cluster, which cannot hold such a model: use a single server"},
    {"ASK ", SL_E_USAGE, false,
     "it is part of a Redis cluster, which cannot hold such a model: use a single server"},
    {"CROSSSLOT", SL_E_USAGE, false,
     "it is part of a Redis cluster, which cannot hold such a model: use a single server"},
    {"READONLY", SL_E_USAGE, false, "it is a replica: name its primary"},
    {"WRONGTYPE", SL_E_FORMAT, false, "a key of that name holds something other than a string"},
    {"OOM", SL_E_NO_SPACE, false, "it is at its maxmemory: give it more or remove keys"},
    {"LOADING", SL_E_NET, true, "it is still reading its own data"},
    {"BUSY", SL_E_NET, true, "it runs a script"},
    {"TRYAGAIN", SL_E_NET, true, "it moves keys"},
    {"MASTERDOWN", SL_E_NET, true, "its primary is not there"},
    {"CLUSTERDOWN", SL_E_NET, true, "its cluster is not there"},
    {"ERR max number of clients", SL_E_NET, true, "too many connect to it: see --connections"},
};

int sl_redis_fail(const struct sl_redis_place *place, const char *reply, struct sl_err *err)
{
    const struct refusal *refusal = NULL;
    for (size_t i = 0; i < SL_COUNT(refusals) && !refusal; i++)
        if (strncmp(reply, refusals[i].begins, strlen(refusals[i].begins)) == 0)
            refusal = &refusals[i];
    char code[24] = "";
    size_t word = SL_MIN(strcspn(reply, " "), sizeof(code) - 1);
    memcpy(code, reply, word);
    /* What follows "with args" is what was sent, and that may be a password. */
    const char *echo = strstr(reply, " with args");
    int shown = (int)SL_MIN(echo ? (size_t)(echo - reply) : strlen(reply), 160u);
    sl_fail_code(err, refusal ? refusal->kind : SL_E_NET, code, "'%s' answers '%.*s'%s%s",
                 place->label, shown, reply, refusal ? ": " : "", refusal ? refusal->advice : "");
    if (err)
        err->retryable = refusal && refusal->passes;
    return -1;
}
