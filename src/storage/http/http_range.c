/* See http_range.h. */
#include "http_range.h"

#include <strings.h>

#include "buf.h"

bool sl_content_range_parse(const char *text, bool unsatisfied, uint64_t *a, uint64_t *b,
                            uint64_t *total, bool *known)
{
    if (strncasecmp(text, "bytes", 5) != 0 || (text[5] != ' ' && text[5] != '='))
        return false;
    text += 6;
    if (unsatisfied) {
        if (*text++ != '*')
            return false;
    } else if (!sl_take_digits(&text, a) || *text++ != '-' || !sl_take_digits(&text, b) ||
               *a > *b) {
        return false;
    }
    if (*text++ != '/')
        return false;
    *known = *text != '*';
    if (!*known)
        return text[1] == 0;
    return sl_take_digits(&text, total) && *text == 0;
}

enum sl_io_state sl_http_pass_over(struct sl_exchange *exchange, uint64_t *skip, void *data,
                                   size_t bytes, struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    while (*skip && state == SL_IO_DATA) {
        size_t got = 0;
        state = sl_exchange_body(exchange, data, (size_t)SL_MIN(bytes, *skip), &got, err);
        *skip -= got;
    }
    return state;
}
