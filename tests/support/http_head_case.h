/* The whole head of an answer, read as an exchange does when its last byte has come. */
#ifndef SL_HTTP_HEAD_CASE_H
#define SL_HTTP_HEAD_CASE_H

#include "exchange.h"
#include "http_head.h"

/** SL_E_NET: it is cut off, too large, or none. */
static inline int http_head_parse(const char *text, size_t bytes, int *status, struct sl_err *err)
{
    struct sl_head head;
    size_t end = sl_head_end(text, bytes);
    if (!end || end > SL_HEADERS_BYTES_MAX)
        return sl_fail(err, SL_E_NET, "the head of the answer is cut off or too large");
    if (sl_head_parse(text, end, &head, err) < 0)
        return -1;
    *status = head.status;
    return 0;
}

#endif
