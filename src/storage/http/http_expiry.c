/* See http_expiry.h. The query is a stranger's: numbers that make no sense tell no end. */
#include "http_expiry.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "buf.h"
#include "thread.h"
#include "url.h"

enum { VALUE_BYTES_MAX = 64 };
#define SECONDS_MAX INT64_C(253402300799) /* of the year 9999 */

/* The value of a query's name, whatever its case, decoded. false: absent, or too long. */
static bool find_value(const char *url, const char *name, char value[VALUE_BYTES_MAX])
{
    const char *at = strchr(url, '?');
    size_t bytes = strlen(name);
    while (at) {
        at++;
        if (strncasecmp(at, name, bytes) == 0 && at[bytes] == '=') {
            sl_autofree char *text =
                sl_url_decode(at + bytes + 1, strcspn(at + bytes + 1, "&#"), NULL);
            return text && snprintf(value, VALUE_BYTES_MAX, "%s", text) < VALUE_BYTES_MAX;
        }
        at = strchr(at, '&');
    }
    return false;
}

static bool take_number(const char *text, int64_t *value)
{
    uint64_t number;
    if (!sl_take_digits(&text, &number) || *text || number > (uint64_t)SECONDS_MAX)
        return false;
    *value = (int64_t)number;
    return true;
}

static bool take_time(const char *text, const char *format, int64_t *seconds)
{
    struct tm tm = {0};
    const char *rest = strptime(text, format, &tm);
    if (!rest || *rest)
        return false;
    *seconds = (int64_t)timegm(&tm);
    return true;
}

/* A time and how long the link is good from then on. */
static bool from_date(const char *url, const char *kind, int64_t *end)
{
    char name[32], value[VALUE_BYTES_MAX];
    int64_t begin, lasts;
    snprintf(name, sizeof(name), "X-%s-Date", kind);
    if (!find_value(url, name, value) || !take_time(value, "%Y%m%dT%H%M%SZ", &begin))
        return false;
    snprintf(name, sizeof(name), "X-%s-Expires", kind);
    if (!find_value(url, name, value) || !take_number(value, &lasts))
        return false;
    *end = begin + lasts;
    return true;
}

/* The end that a signed URL tells in its query, as S3 (versions 4 and 2), Google, CloudFront,
 * Azure and their like write it, in seconds since 1970. false: it tells none. */
static bool expiry_of(const char *url, int64_t *end)
{
    static const char *const kinds[] = {"Amz", "Goog", "Oss", "Obs"};
    static const char *const formats[] = {"%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d"};
    char value[VALUE_BYTES_MAX];
    for (size_t i = 0; i < SL_COUNT(kinds); i++)
        if (from_date(url, kinds[i], end))
            return true;
    if (find_value(url, "Expires", value) && take_number(value, end))
        return true;
    if (!find_value(url, "sig", value) && !strstr(url, "sig="))
        return false;
    for (size_t i = 0; find_value(url, "se", value) && i < SL_COUNT(formats); i++)
        if (take_time(value, formats[i], end))
            return true;
    return false;
}

bool sl_http_says_expired(const char *code, const char *message)
{
    return strcasestr(code, "expired") || strcasestr(message, "expired") ||
           strcasestr(message, "specified time frame");
}

const char *sl_http_expiry_text(const char *url, bool said, char text[SL_EXPIRY_TEXT_BYTES])
{
    static const char advice[] = "ask for a new one where it came from";
    int64_t end = 0, now = sl_wall_seconds();
    bool known = expiry_of(url, &end);
    struct tm tm;
    char when[32] = "", ago[48] = "";
    text[0] = 0;
    if (!said && (!known || end > now))
        return text;
    time_t at = (time_t)end;
    if (known && end <= now && gmtime_r(&at, &tm)) {
        int64_t hours = (now - end) / 3600;
        strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S UTC", &tm);
        if (hours >= 48)
            snprintf(ago, sizeof(ago), ", %lld days ago", (long long)(hours / 24));
        snprintf(text, SL_EXPIRY_TEXT_BYTES, "the link expired at %s%s: %s", when, ago, advice);
    } else {
        snprintf(text, SL_EXPIRY_TEXT_BYTES, "the link has expired: %s%s", advice,
                 known ? ", or set this machine's clock" : "");
    }
    return text;
}
