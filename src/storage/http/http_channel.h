/*
 * HTTP as a transport of stores: ranges, each channel on one exchange.
 *
 * It adds Range and the version's precondition to every request, holds the answer to the range
 * contract (206, Content-Range, total, version, encoding, length), fills source->bytes and
 * source->version from the first answer, and hands everything else to the kind's hooks. A kind says
 * .transport = &sl_http_transport, .hooks = a struct sl_http_hooks. A hook returns 0, or -1 with
 * the error; it must not wait for long, but for credentials. The range contract: RFC 9110 sections
 * 13 to 15.
 */
#ifndef SL_HTTP_CHANNEL_H
#define SL_HTTP_CHANNEL_H

#include "exchange.h"
#include "store_kind.h"

enum { SL_RANGE_HEADERS_MAX = 64, SL_RANGE_DETAIL_MAX = 16 * 1024 };

/** What a hook fills: url by sl_strdup() or sl_asprintf(), headers by sl_range_add_header(); the
 * channel frees both. */
struct sl_range_request {
    char *url;                           /* absolute, encoded, with query */
    char *headers[SL_RANGE_HEADERS_MAX]; /* "Name: value"; without Host, Range, If-Match */
    unsigned header_count;
    bool by_cache;       /* set before: it goes by one, unless it asks */
    bool dates_compared; /* no If-Unmodified-Since: stores that keep fractions of seconds refuse
                            their own date; Last-Modified of each answer is compared all the same */
    bool whole; /* ask without Range: for objects that are known to be empty, which have none */
    /* By sl_http_prepare() (http_base.h); NULL and 0 else: */
    struct sl_http_object *object;
    unsigned place; /* which of its places the URL is */
    bool asks;      /* others wait for what this request learns */
    bool secret;    /* who sees it may read more than this object, or for longer than a signature
                       holds: a token, a login, a link */
    bool waits;     /* there is no URL: try again when wait_fd is readable (another asks), or at
                       wait_until_ns (the origin takes none before) */
    int wait_fd;    /* -1: none */
    uint64_t wait_until_ns; /* 0: no matter when */
};
/**
 * Add a header.
 *
 * @format  as of printf(): "Name: value", less than 8 KiB.
 * @return  0, or -1: SL_E_USAGE: too many, or too long; SL_E_NO_SPACE.
 */
int sl_range_add_header(struct sl_range_request *request, struct sl_err *err, const char *format,
                        ...) __attribute__((format(printf, 3, 4)));
/** Zeroed ones are fine. */
void sl_range_request_release(struct sl_range_request *request);

extern const struct sl_transport sl_http_transport;

/** What the transport asks of a kind. */
struct sl_http_hooks {
    /**
     * URL and headers (credentials, signature) of a GET of source at source->version. Called for
     * every request by the thread that owns the channel; several threads may be in it for one
     * source. Range and preconditions are added afterwards, unsigned.
     */
    int (*prepare)(struct sl_source *source, struct sl_range_request *request, struct sl_err *err);
    /**
     * An answer that is not a success and no redirect that was followed: make the error of it (see
     * sl_http_fail()). body is the answer's body as far as SL_RANGE_DETAIL_MAX goes,
     * NUL-terminated. Headers by sl_exchange_header(). NULL: by status alone.
     */
    int (*refuse)(struct sl_source *source, const struct sl_exchange *exchange, const char *body,
                  size_t body_bytes, struct sl_err *err);
    /**
     * A redirect (301 302 303 307 308) to an absolute URL: 0 if it was noted and prepare() will now
     * give the new place, -1 with why it is not followed, 1 if it is a refusal like others
     * (refuse()). Status and headers by sl_exchange_status(), sl_exchange_header(). At most 10 per
     * request. NULL: always 1.
     */
    int (*redirect)(struct sl_source *source, const struct sl_exchange *exchange, const char *from,
                    const char *to, struct sl_err *err);
    /**
     * The first answer of all with 200 or 206, before its range is judged: a kind may say more of
     * the version than ETag, x-amz-version-id and Last-Modified, which are in it, tell checksums
     * (sl_source_set_checksums()), or refuse it with -1. NULL: nothing.
     */
    int (*answered)(struct sl_source *source, const struct sl_exchange *exchange,
                    struct sl_version *version, struct sl_err *err);
    /**
     * Every answer with 200 or 206, and the URL that gave it: -1 if its head says that its bytes
     * are not of the version that the kind pinned. NULL: nothing.
     */
    int (*check)(struct sl_source *source, const struct sl_exchange *exchange, const char *url,
                 struct sl_err *err);
    /** Of objects up to so many bytes its servers may give all, with 200, whatever range is asked
     * for: what comes before the range is passed over, and what comes behind it is not waited for.
     */
    uint64_t cuts_bytes_max;
    /** Content-Encoding is a label that the uploader put beside the bytes, whatever it says: ranges
     * are of the bytes that are stored. */
    bool labels;
    /** Objects of servers without ranges, or without a length, are read in order. For kinds whose
     * requests have an object (sl_http_prepare()). */
    bool in_order;
};

/** Of a channel of this transport, for requests of another kind while it has none of its own (pages
 * of a listing); borrowed. */
struct sl_exchange *sl_http_channel_exchange(struct sl_channel *channel);

#endif
