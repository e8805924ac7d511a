/*
 * Ranges over HTTP, which http and s3 share: the lane of a backend (backend.h) on one exchange.
 *
 * It adds Range and the version's precondition to every request, holds the answer to the range
 * contract (206, Content-Range, total, version, encoding, length), fills source->bytes and
 * source->version from the first answer, and hands everything else to the backend's hooks. A
 * backend names sl_range_lane_start, _read, _poll, _abort, _hurry, _sent_twice, _connect, _leads_to
 * and _free in its table and makes lanes by sl_range_lane_new().
 */
#ifndef SL_RANGE_LANE_H
#define SL_RANGE_LANE_H

#include "backend.h"
#include "exchange.h"

enum { SL_RANGE_HEADERS_MAX = 64, SL_RANGE_DETAIL_MAX = 16 * 1024 };

/** What a hook fills: url by sl_strdup() or sl_asprintf(), headers by sl_range_add_header(); the
 * lane frees both. */
struct sl_range_request {
    char *url;                           /* absolute, encoded, with query */
    char *headers[SL_RANGE_HEADERS_MAX]; /* "Name: value"; without Host, Range, If-Match */
    unsigned header_count;
    bool dates_compared; /* no If-Unmodified-Since: stores that keep fractions of seconds refuse
                            their own date; Last-Modified of each answer is compared all the same */
    bool whole; /* ask without Range: for objects that are known to be empty, which have none */
};
int sl_range_add_header(struct sl_range_request *request, struct sl_err *err, const char *format,
                        ...) __attribute__((format(printf, 3, 4)));
void sl_range_request_release(struct sl_range_request *request);

struct sl_range_ops {
    /**
     * URL and headers (credentials, signature) of a GET of source at source->version. Called for
     * every request by the thread that owns the lane; several threads may be in it for one source.
     * Range and preconditions are added afterwards, unsigned.
     */
    int (*prepare)(struct sl_source *source, struct sl_range_request *request, struct sl_err *err);
    /**
     * An answer that is no success and no redirect that was followed: make the error of it (see
     * sl_http_fail()). body is the answer's body as far as SL_RANGE_DETAIL_MAX goes,
     * NUL-terminated. Headers by sl_exchange_header(). NULL: by status alone.
     */
    int (*refuse)(struct sl_source *source, const struct sl_exchange *exchange, const char *body,
                  size_t body_bytes, struct sl_err *err);
    /**
     * A redirect (301 302 303 307 308) to an absolute URL: 0 if it was noted and prepare() will now
     * give the new place, -1 with why it is not followed. At most 10 per request. NULL: redirects
     * go to refuse().
     */
    int (*redirect)(struct sl_source *source, const char *from, const char *to, int status,
                    struct sl_err *err);
};

struct sl_lane *sl_range_lane_new(struct sl_store *store, const struct sl_range_ops *ops,
                                  struct sl_err *err);
/** For requests of another kind, while it has none of its own; borrowed. */
struct sl_exchange *sl_range_lane_exchange(struct sl_lane *lane);
void sl_range_lane_free(struct sl_lane *lane);
int sl_range_lane_start(struct sl_lane *lane, struct sl_source *source, uint64_t begin,
                        uint64_t end, bool first, struct sl_err *err);
enum sl_io_state sl_range_lane_read(struct sl_lane *lane, void *data, size_t bytes, size_t *got,
                                    struct sl_err *err);
int sl_range_lane_poll(struct sl_lane *lane, struct pollfd fds[SL_IO_POLL_MAX],
                       uint64_t *deadline_ns);
void sl_range_lane_abort(struct sl_lane *lane);
bool sl_range_lane_sent_twice(const struct sl_lane *lane);
int sl_range_lane_connect(struct sl_lane *lane, const struct sl_exchange *like, struct sl_err *err);
void sl_range_lane_hurry(struct sl_lane *lane, unsigned hurry);
bool sl_range_lane_leads_to(const struct sl_lane *lane, const struct sl_host *host);

#endif
