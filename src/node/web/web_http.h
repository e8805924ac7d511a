/* What HTTP's text means: paths, ranges, validators, dates, addresses. Pure functions over hostile
 * input; any thread. */
#ifndef SL_WEB_HTTP_H
#define SL_WEB_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum { SL_WEB_PATH_BYTES = 4096 };

/**
 * Percent-decode the path of a request (what is before '?') into a relative path below a directory:
 * "" for "/".
 *
 * @return  0, or the status to answer with: 400 (bad escape, NUL, no leading slash), 404 (a segment
 * that is empty, ".", "..", of ours (own_names.h) or longer than a name can be), 414. A slash at
 * the end is kept.
 */
int sl_web_path_decode(const char *url, char path[SL_WEB_PATH_BYTES]);

enum sl_web_range { SL_WEB_RANGE_NONE, SL_WEB_RANGE_ONE, SL_WEB_RANGE_UNSATISFIABLE };
/**
 * Read a Range header, RFC 9110 section 14.2. Only one range of bytes counts: what is none, and
 * several ranges, are NONE, and the whole is sent, as the RFC allows, so that nobody can ask for
 * overlaps.
 *
 * @text        of the header; may be NULL.
 * @total       bytes of the whole.
 * @begin, end  out, of ONE alone: [begin, end), cut off at the total.
 * @return      which it is.
 */
enum sl_web_range sl_web_range_parse(const char *text, uint64_t total, uint64_t *begin,
                                     uint64_t *end);

/** Is the strong etag (with its quotes) in a list of If-Match or If-None-Match; "*" is any. weak:
 * W/ is ignored. */
bool sl_web_etag_listed(const char *list, const char *etag, bool weak);

/** IMF-fixdate (RFC 9110 section 5.6.7) to seconds since 1970, -1 if it is none. */
int64_t sl_web_date_parse(const char *text);
/** Seconds since 1970 as IMF-fixdate; returns text. */
const char *sl_web_date(int64_t seconds, char text[32]);

/** The conditional headers of one request; NULL where absent. */
struct sl_web_conditions {
    const char *if_match, *if_none_match, *if_modified_since, *if_unmodified_since, *if_range;
};
/**
 * Judge the conditional headers of a request, RFC 9110 section 13.2.2.
 *
 * @etag       what the file has, with its quotes. A weak one (W/) is in no list but "*".
 * @modified   whole seconds since 1970.
 * @use_range  becomes false if If-Range does not hold; else it stays.
 * @return     0: go on; or the status to answer with: 304, 412.
 */
int sl_web_conditions_check(const struct sl_web_conditions *conditions, const char *etag,
                            int64_t modified, bool *use_range);

/** Does an Accept header ask for OpenMetrics, application/openmetrics-text (with a quality above 0,
 * RFC 9110 section 12.5.1)? NULL is no. */
bool sl_web_accepts_openmetrics(const char *accept);

/**
 * "127.0.0.1:9464", "[::1]:9464", ":9464" (every address), "localhost:0" into host ("" for every
 * address) and port. SL_E_USAGE says what is expected.
 */
int sl_web_address_parse(const char *text, char host[256], unsigned *port, struct sl_err *err);

enum { SL_WEB_URL_BYTES = 320 };
/** Where a client on this machine finds what listens at that address and, in the end, this port:
 * "http://127.0.0.1:9464/". SL_E_USAGE. */
int sl_web_url(const char *listen, unsigned port, char url[SL_WEB_URL_BYTES], struct sl_err *err);

#endif
