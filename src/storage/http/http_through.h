/* Ranges that a cache is asked for (through.h): what it may see, and by which name it keeps them.
 */
#ifndef SL_HTTP_THROUGH_H
#define SL_HTTP_THROUGH_H

#include "http_channel.h"

/** May the request go by this cache? Without TLS to it, nothing does that TLS to the origin hides
 * and that is good for more than this range: tokens, logins, links. The key of SSE-C goes to no
 * cache. Any thread. */
bool sl_http_through_may_see(const struct sl_range_request *request, const char *via);
/** The same of any request for ranges of an opened source, made for that alone: sl_transport. */
bool sl_http_through_may_see_source(struct sl_source *source, const char *via);
/** Add the headers that a cache keeps ranges by: SL_HTTP_THROUGH_KEY, a hash of object and version,
 * and the origin's scheme; and SL_HTTP_THROUGH_NAME, the common name, by which `sluice share` finds
 * an object. SL_E_NO_SPACE, SL_E_USAGE: too many headers. */
int sl_http_through_name(const struct sl_source *source, struct sl_range_request *request,
                         struct sl_err *err);

#define SL_HTTP_THROUGH_KEY  "X-Sluice-Version"
#define SL_HTTP_THROUGH_NAME "X-Sluice-Object"

#endif
