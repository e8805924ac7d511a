/* Between http_base.c (origin and credentials) and http_object.c (redirects). */
#ifndef SL_HTTP_OBJECT_H
#define SL_HTTP_OBJECT_H

#include "http_base.h"

/** Where to ask: request->url, or request->waits. */
int sl_http_object_place(struct sl_http_base *base, struct sl_http_object *object,
                         struct sl_range_request *request, struct sl_err *err);
/** May this failure be that of a link, so that the next try asks the URL itself? */
bool sl_http_object_expired(struct sl_http_object *object, const struct sl_err *why);
void sl_http_base_forget_objects(struct sl_http_base *base);

#endif
