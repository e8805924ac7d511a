/* What the parts of S3 share: one bucket and what was learned about it. */
#ifndef SL_S3_STORE_H
#define SL_S3_STORE_H

#include <pthread.h>

#include "creds.h"
#include "exchange.h"
#include "http_base.h"
#include "s3_endpoint.h"
#include "s3_error.h"
#include "s3_options.h"
#include "sigv4.h"

enum {
    SL_S3_HEADERS_MAX = 13,
    SL_S3_KEY_BYTES_MAX = 1024,
    SL_S3_SIGNATURE_SECONDS = 5 * 60,
    SL_S3_MORE_MAX = SL_S3_HEADERS_MAX - 5
};

/** store->impl */
struct sl_s3 {
    struct sl_store *store;
    char *bucket;
    char *prefix;          /* keys of the store's objects begin so: "" or with '/' at its end */
    char *version, *named; /* of the object of this name; NULL: none was named */
    struct sl_creds *creds;
    struct sl_tls_options tls; /* where an .s3cfg says more than the spec; strings are borrowed */
    const char *follows;       /* hosts that redirects may lead to, as in no_proxy; "": none */
    struct sl_http_base http;  /* where they led; zeroed if there are no such hosts */
    struct {
        pthread_mutex_t mutex;
        struct sl_s3_endpoint endpoint;
        char region[SL_S3_REGION_MAX];
        bool moved;           /* a redirect to another region was followed: once is enough */
        unsigned place;       /* counts changes of endpoint, region and clock */
        int64_t clock_offset; /* the store's clock minus ours, seconds */
        struct sl_sigv4_key key;
        /* told by refusals, used by sl_s3_recover() */
        char stated_region[SL_S3_REGION_MAX];
        bool stated_clock;
        int64_t stated_offset;
    } locked;
};

/** A URL with the headers that let it in. Good for every range of an object while it is young. */
struct sl_s3_signed {
    char *url;
    char *headers[SL_S3_HEADERS_MAX];
    unsigned header_count;
    uint64_t made_ns;
    unsigned place, keys; /* generations of what it was made from; keys is 0: never made */
};
void sl_s3_signed_release(struct sl_s3_signed *request);

/** What follows '?' in requests for a key: the version, if the URI names one of it, else "".
 * *query: encoded, the caller's. SL_E_NO_SPACE. */
int sl_s3_version_query(const struct sl_s3 *s3, const char *key, char **query, struct sl_err *err);
/**
 * Sign a request.
 *
 * @method   "GET" and the like, with no body.
 * @key      of the object; NULL: the request is for the bucket.
 * @query    encoded; "": none.
 * @request  out: replaces what it held; zeroed at first.
 * @return   0, or -1: what sl_creds_get() fails with, SL_E_USAGE, SL_E_NO_SPACE.
 *
 * Any thread; may block while credentials are asked for.
 */
int sl_s3_sign(struct sl_s3 *s3, const char *method, const char *key, const char *query,
               struct sl_s3_signed *request, struct sl_err *err);
/**
 * As sl_s3_sign(), for a request with a body and headers of its own, which are signed, too.
 *
 * @method            "PUT" and the like.
 * @key               as there.
 * @query             as there.
 * @payload           the body's hex SHA-256, or "UNSIGNED-PAYLOAD".
 * @more, more_count  names in lower case; at most SL_S3_MORE_MAX.
 * @request           as there.
 * @return            as there.
 */
int sl_s3_sign_more(struct sl_s3 *s3, const char *method, const char *key, const char *query,
                    const char *payload, const struct sl_sigv4_header *more, size_t more_count,
                    struct sl_s3_signed *request, struct sl_err *err);
/** Still young, and made from the endpoint, region, clock and keys of now. */
bool sl_s3_signed_current(struct sl_s3 *s3, const struct sl_s3_signed *request);

/**
 * Make the error of a refusal, and notes for sl_s3_recover().
 *
 * @what    the subject: "cannot read 's3://b/k'".
 * @verb    what was refused.
 * @reply   borrowed for the call.
 * @return  -1.
 */
int sl_s3_refused(struct sl_s3 *s3, const char *what, enum sl_s3_verb verb,
                  const struct sl_s3_reply *reply, struct sl_err *err);
/** As sl_store_kind.recover; keys is the generation that the refused request was signed with. */
bool sl_s3_recover(struct sl_s3 *s3, unsigned keys, const struct sl_err *why);

/** One small answer, all tries included. Everything is borrowed. */
struct sl_s3_call {
    const char *what; /* "cannot list 's3://b/'" */
    enum sl_s3_verb verb;
    const char *method, *key, *query; /* as sl_s3_sign() */
    const char *payload;              /* as sl_s3_sign_more(); NULL: of no body */
    const struct sl_sigv4_header *more;
    size_t more_count;
    const void *body; /* lent */
    size_t body_bytes, answer_limit;
    const char *root;  /* of the XML that success must be, since an answer of 200 may hold an error
                          (CompleteMultipartUpload); NULL: anything */
    unsigned attempts; /* 0: as the config says */
};
/**
 * Sign, send, read the answer: again after what may pass, and once more after what can be
 * recovered.
 *
 * @exchange  to go by; the caller's.
 * @call      borrowed for the call.
 * @answer    out: release it after a success.
 * @tried     out: how many tries there were; may be NULL.
 * @return    0 for any status of 200 to 299, else -1 with the error of the last try.
 *
 * Blocks; ends on the cancellation of the exchange.
 */
int sl_s3_call(struct sl_s3 *s3, struct sl_exchange *exchange, const struct sl_s3_call *call,
               struct sl_answer *answer, unsigned *tried, struct sl_err *err);

/**
 * Ask for objects to be brought near, as sl_store_advice.prestage (s3_prestage.c).
 *
 * @names, count  of the objects.
 * @stop          ends it.
 * @return        0, or -1 with the first failure; those before it were asked for.
 *
 * Blocks.
 */
int sl_s3_prestage(struct sl_store *store, const char *const *names, size_t count,
                   struct sl_cancel *stop, struct sl_err *err);

/**
 * Ask for the headers of an object (s3_checksum.c).
 *
 * @key     of the object.
 * @more    one more header; NULL: none.
 * @answer  out: release it after a success.
 * @return  0, or -1 as sl_s3_call().
 *
 * Blocks.
 */
int sl_s3_head(struct sl_s3 *s3, const char *key, const struct sl_sigv4_header *more,
               struct sl_answer *answer, struct sl_err *err);

/**
 * Ask for checksums, as sl_store_kind.checksums (s3_checksum.c).
 *
 * @key     of the object.
 * @source  of the object; an answer of another version than its etag tells nothing.
 * @sums    out: left alone where there are none.
 * @return  0, or -1 as sl_s3_call().
 *
 * Blocks.
 */
int sl_s3_checksums(struct sl_s3 *s3, const char *key, const struct sl_source *source,
                    struct sl_checksums *sums, struct sl_err *err);

/** sl_store_kind.list */
int sl_s3_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err);

/** Where the next page begins; zeroed: there is none. */
struct sl_s3_next {
    char *text;  /* a token or a key, malloc'ed */
    bool is_key; /* the store lists as in the first version: after this key */
};
/**
 * Read one page of ListObjectsV2. Fuzzed.
 *
 * @text, bytes  the answer's body.
 * @uri          of the store, for messages.
 * @prefix       names are told without it; one that does not begin so is an error.
 * @each         told of each object; -1 (err filled) ends the page.
 * @arg          of each().
 * @next         out: its text is the caller's to free(); NULL after a failure.
 * @entries      out: how many objects were told.
 * @return       0, or -1 with SL_E_FORMAT, SL_E_NO_SPACE, or what each() fails with.
 */
int sl_s3_page_parse(const char *text, size_t bytes, const char *uri, const char *prefix,
                     int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                     void *arg, struct sl_s3_next *next, uint64_t *entries, struct sl_err *err);

#endif
