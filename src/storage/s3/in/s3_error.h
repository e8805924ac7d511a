/* What S3 says when it refuses, and what that means. */
#ifndef SL_S3_ERROR_H
#define SL_S3_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

/** A refusal: the status, the headers that matter (NULL: absent) and the body. Borrowed. */
struct sl_s3_reply {
    int status;
    const char *retry_after, *date, *bucket_region, *request_id;
    const char *sent_to; /* the host that a redirect names */
    const char *body;
    size_t body_bytes;
};

/** The body's fields, cut to size; "" what is not there. */
struct sl_s3_fault {
    char code[64], message[256], region[64], request_id[128];
};
void sl_s3_fault_parse(const char *body, size_t bytes, struct sl_s3_fault *fault);

enum sl_s3_verb { SL_S3_READ, SL_S3_LIST, SL_S3_WRITE };

/** The refused request, as its message names it. */
struct sl_s3_subject {
    const char *what; /* "cannot read 's3://b/k'" */
    const char *bucket;
    const char *region; /* signed for */
    const char *origin; /* of the credentials */
    bool anonymous;     /* the request was not signed */
    bool none_found;    /* because there were no credentials */
    bool named_twice;   /* the endpoint's path ends as the bucket is called */
    enum sl_s3_verb verb;
};
/** Always -1: err gets kind, code (the store's), http_status, whether to retry, and a message that
 * ends in what to do. fault is filled too. */
int sl_s3_refuse(const struct sl_s3_subject *subject, const struct sl_s3_reply *reply,
                 struct sl_s3_fault *fault, struct sl_err *err);
/** Seconds since 1970 of a Date header; -1 if it is none. */
int sl_s3_parse_date(const char *text, int64_t *seconds);

#endif
