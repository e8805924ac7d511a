/*
 * AWS Signature Version 4 as S3 wants it.
 *
 * https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
 */
#ifndef SL_SIGV4_H
#define SL_SIGV4_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "mem.h"

enum { SL_SIGV4_DATE = 17, SL_SIGV4_HEADERS_MAX = 16, SL_SIGV4_QUERY_MAX = 64 };

/** SHA-256 of nothing, in hex: the payload hash of GET, HEAD and DELETE. */
extern const char sl_sigv4_empty[65];

/** Seconds since 1970 as 20130524T000000Z; returns text. */
const char *sl_sigv4_date(int64_t seconds, char text[SL_SIGV4_DATE]);
/** Hex SHA-256 of a body. -1 only if the crypto library fails. */
int sl_sigv4_payload(const void *body, size_t bytes, char text[65], struct sl_err *err);

struct sl_sigv4_header {
    const char *name, *value; /* name in lower case; value as it is sent */
};

/** What is signed. Everything is borrowed. */
struct sl_sigv4_request {
    const char *method;
    const char *path;  /* as it is sent: percent-encoded once, begins with '/' */
    const char *query; /* as it is sent: percent-encoded, in any order, without '?'; "" for none */
    const struct sl_sigv4_header *headers; /* host, every x-amz-* and what else is to be signed; in
                                              any order */
    size_t header_count;                   /* at most SL_SIGV4_HEADERS_MAX */
    const char *payload;                   /* hex SHA-256 or UNSIGNED-PAYLOAD */
    const char *date;                      /* the value of x-amz-date */
    const char *region, *service;
};

/** The lines that are hashed, for tests and for people who compare. free() it. */
char *sl_sigv4_canonical(const struct sl_sigv4_request *request, struct sl_err *err);

/** The signing key of a day, region and service: four HMACs that need not be computed again.
 * Zeroed is empty; wipe it with OPENSSL_cleanse(). One thread at a time. */
struct sl_sigv4_key {
    char scope[128];   /* day/region/service it was made for */
    uint8_t check[32]; /* hash of the secret it was made from */
    uint8_t key[32];
};
/**
 * Make the value of the Authorization header.
 *
 * @request     borrowed for the call.
 * @access_key  its id.
 * @secret_key  what signs.
 * @cache       the signing key of last time, used if it still fits, else made anew; NULL: none.
 * @return      free() it; NULL: SL_E_USAGE for more headers or query parameters than the limits, or
 *              too long a region; SL_E_NO_SPACE.
 */
char *sl_sigv4_sign_cached(const struct sl_sigv4_request *request, const char *access_key,
                           const char *secret_key, struct sl_sigv4_key *cache, struct sl_err *err);

#endif
