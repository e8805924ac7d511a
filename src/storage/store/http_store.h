/* What the http backend does for uploads too: where a URL leads, and with which credentials. */
#ifndef SL_HTTP_STORE_H
#define SL_HTTP_STORE_H

#include "range_lane.h"

/** As sl_range_ops.prepare, whatever the method will be. */
int sl_http_prepare(struct sl_source *source, struct sl_range_request *request, struct sl_err *err);
/** As sl_range_ops.redirect. */
int sl_http_redirect(struct sl_source *source, const char *from, const char *to, int status,
                     struct sl_err *err);

#endif
