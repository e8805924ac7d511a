/*
 * What stores in a cloud that are let in by tokens share: what they make of a refusal, how names
 * and hashes are written. Any thread.
 */
#ifndef SL_CLOUD_REPLY_H
#define SL_CLOUD_REPLY_H

#include "http_call.h"

/** A refusal: status, headers that matter (NULL: absent) and body. Borrowed. */
struct sl_cloud_reply {
    int status;
    const char *retry_after, *code; /* code: of a header of the kind's */
    const char *body;               /* NUL-terminated */
    size_t body_bytes;
};
/** Where the texts of headers are kept. */
struct sl_cloud_headers {
    char retry_after[64], code[64];
};
/** The one of a small answer; code_header: NULL for none. Borrows both. */
struct sl_cloud_reply sl_cloud_reply_of(const struct sl_answer *answer, const char *code_header,
                                        struct sl_cloud_headers *headers);

/** Base64 (RFC 4648 section 4) of exactly `bytes` bytes (at most 64)? Then value is filled in. */
bool sl_cloud_base64(const char *text, uint8_t *value, size_t bytes);

/**
 * Take apart what a path names: "container/folders/key".
 *
 * @path       decoded.
 * @container  out: what is before the first '/'.
 * @prefix     out: what is between, "" or with '/' at its end.
 * @key        out: the last segment; may be "".
 * @return     0, or -1 with SL_E_NO_SPACE. free() all three, after a failure too.
 */
int sl_cloud_split(const char *path, char **container, char **prefix, char **key,
                   struct sl_err *err);

#endif
