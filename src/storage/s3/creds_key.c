/*
 * Keys as values: copied out under the owner's lock, wiped when they go. Their text is checked
 * once, here, so that nothing a service or a file says can break a header, and it is never part of
 * a message.
 */
#include "creds.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "json.h"

static void wipe(char *text)
{
    if (text)
        OPENSSL_cleanse(text, strlen(text));
    free(text);
}

void sl_key_release(struct sl_key *key)
{
    free(key->access_key);
    wipe(key->secret_key);
    wipe(key->session_token);
    *key = (struct sl_key){0};
}

static bool printable(const char *text, size_t most)
{
    size_t bytes = strlen(text);
    for (size_t i = 0; i < bytes; i++)
        if (text[i] <= ' ' || text[i] >= 0x7f)
            return false;
    return bytes > 0 && bytes <= most;
}

int sl_key_set(struct sl_key *key, const char *access_key, const char *secret_key,
               const char *session_token, const char *origin, struct sl_err *err)
{
    if (!printable(access_key, SL_ACCESS_KEY_MAX) || strpbrk(access_key, ",/"))
        return sl_fail(err, SL_E_AUTH,
                       "the access key id of %s is empty, too long or holds a character that is "
                       "not allowed: check for blanks and line breaks",
                       origin);
    if (!printable(secret_key, SL_SECRET_KEY_MAX))
        return sl_fail(err, SL_E_AUTH,
                       "the secret key of %s is empty, too long or holds a character that is not "
                       "allowed: check for blanks and line breaks",
                       origin);
    if (session_token && !*session_token)
        session_token = NULL;
    if (session_token && !printable(session_token, SL_SESSION_TOKEN_MAX))
        return sl_fail(err, SL_E_AUTH,
                       "the session token of %s is too long or holds a character that is not "
                       "allowed: check for blanks and line breaks",
                       origin);
    struct sl_key copy = {.access_key = sl_strdup(access_key, err), .expires = key->expires};
    copy.secret_key = copy.access_key ? sl_strdup(secret_key, err) : NULL;
    if (copy.secret_key && session_token)
        copy.session_token = sl_strdup(session_token, err);
    if (!copy.secret_key || (session_token && !copy.session_token)) {
        sl_key_release(&copy);
        return -1;
    }
    copy.generation = key->generation;
    sl_key_release(key);
    *key = copy;
    return 0;
}

int sl_key_from_json(struct sl_key *key, const struct sl_buf *text, const char *token,
                     const char *origin, struct sl_err *err)
{
    json_t *json = sl_json_parse(sl_buf_string(text), text->used, origin, err);
    if (!json) {
        if (err && err->kind != SL_E_NO_SPACE)
            err->kind = SL_E_AUTH;
        return -1;
    }
    const char *code = sl_json_get_string(json, "Code");
    const char *expiration = sl_json_get_string(json, "Expiration");
    const char *access_key = sl_json_get_string(json, "AccessKeyId");
    const char *secret_key = sl_json_get_string(json, "SecretAccessKey");
    int result = -1;
    if (code && strcmp(code, "Success") != 0)
        sl_fail_code(err, SL_E_AUTH, code, "%s gives no keys: %.200s", origin, code);
    else if (!access_key || !secret_key)
        sl_fail(err, SL_E_AUTH, "%s answers without AccessKeyId or SecretAccessKey", origin);
    else if (expiration && sl_parse_time(expiration, &key->expires) < 0)
        sl_fail(err, SL_E_AUTH, "%s answers with the Expiration '%.64s', which is not a time",
                origin, expiration);
    else
        result =
            sl_key_set(key, access_key, secret_key, sl_json_get_string(json, token), origin, err);
    json_decref(json);
    return result;
}

int sl_key_copy(struct sl_key *key, const struct sl_key *from, struct sl_err *err)
{
    sl_key_release(key);
    if (from->access_key && sl_key_set(key, from->access_key, from->secret_key, from->session_token,
                                       "the store", err) < 0)
        return -1;
    key->expires = from->expires;
    key->generation = from->generation;
    return 0;
}

int sl_parse_time(const char *text, int64_t *seconds)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest)
        return -1;
    if (*rest == '.') {
        size_t digits = strspn(rest + 1, "0123456789");
        if (!digits)
            return -1;
        rest += 1 + digits;
    }
    int64_t offset = 0;
    unsigned hours, minutes;
    int used = 0;
    if ((*rest == '+' || *rest == '-') &&
        sscanf(rest + 1, "%2u:%2u%n", &hours, &minutes, &used) == 2 && used == 5) {
        offset = (int64_t)(hours * 3600 + minutes * 60) * (*rest == '+' ? 1 : -1);
        rest += 6;
    } else if (*rest == 'Z') {
        rest++;
    } else if (*rest) {
        return -1;
    }
    if (*rest)
        return -1;
    *seconds = (int64_t)timegm(&tm) - offset;
    return 0;
}
