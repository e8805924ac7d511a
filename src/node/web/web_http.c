/*
 * Hand-written scanners over text that ends in NUL: no allocation, no locale, every number checked
 * for overflow. What a scanner does not understand it refuses or ignores, as the RFC says for that
 * header.
 */
#include "web_http.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "mem.h"
#include "own_names.h"

/* ---- paths ---------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool segment_refused(const char *segment, size_t bytes, bool last)
{
    if (bytes == 0)
        return !last;
    return bytes > NAME_MAX || (bytes <= 2 && memcmp(segment, "..", bytes) == 0) ||
           sl_own_name(segment, bytes) || sl_own_name_of_node(segment, bytes, false);
}

/* After decoding, since "%2e%2e" is ".." too. */
static int check_segments(const char *path)
{
    for (;;) {
        size_t bytes = strcspn(path, "/");
        if (segment_refused(path, bytes, !path[bytes]))
            return 404;
        if (!path[bytes])
            return 0;
        path += bytes + 1;
    }
}

int sl_web_path_decode(const char *url, char path[SL_WEB_PATH_BYTES])
{
    size_t used = 0;
    path[0] = 0;
    if (*url++ != '/')
        return 400;
    while (*url && *url != '?') {
        int c = (unsigned char)*url++;
        if (c == '%') {
            int high = hex_digit(url[0]), low = high < 0 ? -1 : hex_digit(url[1]);
            if (low < 0 || (c = high << 4 | low) == 0)
                return 400;
            url += 2;
        }
        if (used + 1 >= SL_WEB_PATH_BYTES)
            return 414;
        path[used++] = (char)c;
    }
    path[used] = 0;
    return used ? check_segments(path) : 0;
}

/* ---- ranges --------------------------------------------------------------------------------- */

/* Digits; saturates, since a number too big for us is beyond every object too. NULL if there is
 * none. */
static const char *scan_number(const char *text, uint64_t *value)
{
    if (*text < '0' || *text > '9')
        return NULL;
    for (*value = 0; *text >= '0' && *text <= '9'; text++)
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, (uint64_t)(*text - '0'), value))
            *value = UINT64_MAX / 16;
    return text;
}

static const char *skip_blanks(const char *text)
{
    return text + strspn(text, " \t");
}

static enum sl_web_range suffix_range(uint64_t wanted, uint64_t total, uint64_t *begin,
                                      uint64_t *end)
{
    if (wanted == 0 || total == 0)
        return SL_WEB_RANGE_UNSATISFIABLE;
    *begin = wanted < total ? total - wanted : 0;
    *end = total;
    return SL_WEB_RANGE_ONE;
}

enum sl_web_range sl_web_range_parse(const char *text, uint64_t total, uint64_t *begin,
                                     uint64_t *end)
{
    uint64_t first = 0, last = UINT64_MAX - 1;
    if (!text || strncasecmp(text, "bytes=", 6) != 0)
        return SL_WEB_RANGE_NONE;
    text = skip_blanks(text + 6);
    const char *after_first = scan_number(text, &first);
    bool suffix = !after_first;
    if (after_first)
        text = after_first;
    if (*text++ != '-')
        return SL_WEB_RANGE_NONE;
    const char *after_last = scan_number(text, &last);
    if (after_last)
        text = after_last;
    if (*skip_blanks(text) || (suffix && !after_last) || (!suffix && first > last))
        return SL_WEB_RANGE_NONE;
    if (suffix)
        return suffix_range(last, total, begin, end);
    if (first >= total)
        return SL_WEB_RANGE_UNSATISFIABLE;
    *begin = first;
    *end = last < total ? last + 1 : total;
    return SL_WEB_RANGE_ONE;
}

/* ---- validators ----------------------------------------------------------------------------- */

bool sl_web_etag_listed(const char *list, const char *etag, bool weak)
{
    size_t etag_bytes = strlen(etag);
    for (;;) {
        list += strspn(list, " \t,");
        if (!*list)
            return false;
        if (*list == '*')
            return true;
        bool is_weak = list[0] == 'W' && list[1] == '/';
        const char *tag = is_weak ? list + 2 : list;
        const char *close = *tag == '"' ? strchr(tag + 1, '"') : NULL;
        if (!close)
            return false;
        size_t bytes = (size_t)(close - tag) + 1;
        if (bytes == etag_bytes && memcmp(tag, etag, bytes) == 0 && (weak || !is_weak))
            return true;
        list = close + 1;
    }
}

static const char month_names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

int64_t sl_web_date_parse(const char *text)
{
    struct tm parts = {0};
    char month[4] = "", zone[4] = "";
    int used = 0;
    if (!text || strlen(text) != 29 ||
        sscanf(text, "%*3c, %2d %3c %4d %2d:%2d:%2d %3c%n", &parts.tm_mday, month, &parts.tm_year,
               &parts.tm_hour, &parts.tm_min, &parts.tm_sec, zone, &used) != 7 ||
        used != 29 || memcmp(zone, "GMT", 3) != 0)
        return -1;
    const char *found = strstr(month_names, month);
    if (!found || (found - month_names) % 3 != 0 || parts.tm_year < 1970)
        return -1;
    parts.tm_mon = (int)(found - month_names) / 3;
    parts.tm_year -= 1900;
    return (int64_t)timegm(&parts);
}

const char *sl_web_date(int64_t seconds, char text[32])
{
    static const char day_names[] = "SunMonTueWedThuFriSat";
    time_t when = (time_t)seconds;
    struct tm parts = {0};
    gmtime_r(&when, &parts);
    snprintf(text, 32, "%.3s, %02u %.3s %04u %02u:%02u:%02u GMT", day_names + 3 * parts.tm_wday,
             (unsigned)parts.tm_mday % 100, month_names + 3 * parts.tm_mon,
             (unsigned)(parts.tm_year + 1900) % 10000, (unsigned)parts.tm_hour % 100,
             (unsigned)parts.tm_min % 100, (unsigned)parts.tm_sec % 100);
    return text;
}

int sl_web_conditions_check(const struct sl_web_conditions *conditions, const char *etag,
                            int64_t modified, bool *use_range)
{
    int64_t date;
    if (conditions->if_match) {
        if (!sl_web_etag_listed(conditions->if_match, etag, false))
            return 412;
    } else if ((date = sl_web_date_parse(conditions->if_unmodified_since)) >= 0 &&
               modified > date) {
        return 412;
    }
    if (conditions->if_none_match) {
        if (sl_web_etag_listed(conditions->if_none_match, etag, true))
            return 304;
    } else if ((date = sl_web_date_parse(conditions->if_modified_since)) >= 0 && modified <= date) {
        return 304;
    }
    /* If-Range takes one validator, compared strongly; a date is weak here: files change within a
     * second. */
    if (conditions->if_range && strcmp(conditions->if_range, etag) != 0)
        *use_range = false;
    return 0;
}

/* ---- Accept --------------------------------------------------------------------------------- */

bool sl_web_accepts_openmetrics(const char *accept)
{
    static const char type[] = "application/openmetrics-text";
    const char *found = accept ? strcasestr(accept, type) : NULL;
    if (!found)
        return false;
    char item[256];
    size_t bytes = strcspn(found, ",");
    snprintf(item, sizeof(item), "%.*s", (int)SL_MIN(bytes, sizeof(item) - 1), found);
    const char *quality = strcasestr(item, "q=");
    return !quality || strspn(quality + 2, "0.") != strcspn(quality + 2, "; \t");
}

/* ---- addresses ------------------------------------------------------------------------------ */

static int bad_address(const char *text, const char *why, struct sl_err *err)
{
    return sl_fail(err, SL_E_USAGE,
                   "cannot listen on '%s': %s; give HOST:PORT, for example 127.0.0.1:9464, "
                   "[::]:9464 or :9464",
                   text, why);
}

int sl_web_address_parse(const char *text, char host[256], unsigned *port, struct sl_err *err)
{
    const char *colon = strrchr(text, ':');
    if (!colon)
        return bad_address(text, "there is no port", err);
    const char *begin = text, *end = colon;
    if (*begin == '[') {
        if (end < begin + 3 || end[-1] != ']')
            return bad_address(text, "the brackets hold no address", err);
        begin++;
        end--;
    } else if (memchr(begin, ':', (size_t)(end - begin))) {
        return bad_address(text, "an IPv6 address needs brackets", err);
    }
    uint64_t number;
    const char *after = scan_number(colon + 1, &number);
    if (!after || *after || number > 65535)
        return bad_address(text, "the port is not a number from 0 to 65535", err);
    if (end - begin > 255)
        return bad_address(text, "the host is too long", err);
    snprintf(host, 256, "%.*s", (int)(end - begin), begin);
    *port = (unsigned)number;
    return 0;
}

/* Every address is not an address: for those there is the loopback. */
int sl_web_url(const char *listen, unsigned port, char url[SL_WEB_URL_BYTES], struct sl_err *err)
{
    char host[256];
    unsigned asked;
    if (sl_web_address_parse(listen, host, &asked, err) < 0)
        return -1;
    if (!*host || strcmp(host, "0.0.0.0") == 0)
        snprintf(host, sizeof(host), "127.0.0.1");
    if (strcmp(host, "::") == 0)
        snprintf(host, sizeof(host), "::1");
    const char *open = strchr(host, ':') ? "[" : "", *close = *open ? "]" : "";
    snprintf(url, SL_WEB_URL_BYTES, "http://%s%s%s:%u/", open, host, close, port);
    return 0;
}
