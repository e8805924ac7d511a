/* What a registry says when it wants to know who asks: `Bearer realm="…",service="…",scope="…"`. */
#include <string.h>
#include <strings.h>

#include "oci_auth.h"

enum { VALUE_BYTES_MAX = 2048 };

void sl_oci_challenge_release(struct sl_oci_challenge *challenge)
{
    free(challenge->realm);
    free(challenge->service);
    free(challenge->scope);
    *challenge = (struct sl_oci_challenge){0};
}

/* Letters of a token (RFC 9110 section 5.6.2), as far as names of schemes and parameters have
 * them. */
static size_t word_bytes(const char *text)
{
    return strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");
}

static char **place_of(struct sl_oci_challenge *challenge, const char *name, size_t bytes)
{
    if (bytes == 5 && strncasecmp(name, "realm", bytes) == 0)
        return &challenge->realm;
    if (bytes == 7 && strncasecmp(name, "service", bytes) == 0)
        return &challenge->service;
    if (bytes == 5 && strncasecmp(name, "scope", bytes) == 0)
        return &challenge->scope;
    return NULL;
}

/* A quoted string without its quotes, or a token; *end: behind it. NULL: no memory, or too long. */
static char *take_value(const char *text, const char **end, struct sl_err *err)
{
    char value[VALUE_BYTES_MAX];
    size_t used = 0;
    bool quoted = *text == '"';
    text += quoted;
    while (*text && (quoted ? *text != '"' : !strchr(" ,\t", *text))) {
        text += quoted && *text == '\\' && text[1];
        if (used + 1 >= sizeof(value)) {
            sl_fail(err, SL_E_AUTH, "the registry's challenge is too long");
            return NULL;
        }
        value[used++] = *text++;
    }
    *end = text + (*text == '"');
    return sl_strndup(value, used, err);
}

/* Parameters up to the next scheme; the first of a name counts. *rest: behind them. */
static int take_parameters(const char *text, const char **rest, struct sl_oci_challenge *challenge,
                           struct sl_err *err)
{
    for (;;) {
        text += strspn(text, " ,\t");
        size_t bytes = word_bytes(text);
        *rest = text;
        if (!bytes || text[bytes] != '=')
            return 0;
        char **place = place_of(challenge, text, bytes);
        char *value = take_value(text + bytes + 1, &text, err);
        if (!value)
            return -1;
        if (place && !*place)
            *place = value;
        else
            free(value);
    }
}

/* Bearer before Basic, in whichever order they stand. */
int sl_oci_challenge_parse(const char *header, struct sl_oci_challenge *challenge,
                           struct sl_err *err)
{
    bool found = false;
    *challenge = (struct sl_oci_challenge){0};
    for (const char *at = header + strspn(header, " ,\t"); *at;) {
        struct sl_oci_challenge next = {0};
        size_t bytes = word_bytes(at);
        bool bearer = bytes == 6 && strncasecmp(at, "Bearer", bytes) == 0;
        next.basic = bytes == 5 && strncasecmp(at, "Basic", bytes) == 0;
        if (!bytes || take_parameters(at + bytes, &at, &next, err) < 0) {
            sl_oci_challenge_release(&next);
            break;
        }
        if ((bearer && next.realm && (!found || challenge->basic)) || (next.basic && !found)) {
            sl_oci_challenge_release(challenge);
            *challenge = next;
            found = true;
        } else {
            sl_oci_challenge_release(&next);
        }
    }
    if (found)
        return 0;
    return sl_fail(err, SL_E_AUTH,
                   "the registry asks for a login of a kind that sluice does not "
                   "know");
}
