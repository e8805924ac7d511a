/* The head of an HTTP/1.1 answer: status line and headers, strictly. */
#ifndef SL_HTTP_HEAD_H
#define SL_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum sl_framing { SL_FRAMING_LENGTH, SL_FRAMING_CHUNKED, SL_FRAMING_CLOSE };

struct sl_head {
    int status;
    bool close;              /* the connection ends with this answer */
    enum sl_framing framing; /* of the body, for methods and statuses that have one */
    int64_t content_length;  /* -1: not announced */
};

/** Bytes of the head with its empty line, 0 if it is not complete yet. */
size_t sl_head_end(const char *text, size_t bytes);
/** text is a whole head of bytes. SL_E_NET says what is wrong with it; not retryable, since the
 * server will say it again. */
int sl_head_parse(const char *text, size_t bytes, struct sl_head *head, struct sl_err *err);
/**
 * Find a header's value.
 *
 * @text, bytes  of a head, with its status line.
 * @name         in any case.
 * @nth          of several, from 0.
 * @value_bytes  out: its length, without blanks around it.
 * @return       within text; NULL if there is none.
 */
const char *sl_head_find(const char *text, size_t bytes, const char *name, unsigned nth,
                         size_t *value_bytes);
/** A copy of a whole head with every line ended by "\0\n" and without blanks before that: values
 * are strings then. *kept is its bytes; NULL: no memory. */
char *sl_head_keep(const char *text, size_t bytes, size_t *kept, struct sl_err *err);

#endif
